"""JSON text as it is stored: compact, and exactly what was encoded."""

from __future__ import annotations

import json
from typing import Any

_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(value: Any) -> str:
    """Encode compactly; NaN and infinities raise ValueError."""
    return _encoder.encode(value)


def decode_json(text: str) -> Any:
    """Decode JSON; what is none raises ValueError."""
    # What ``encode_json`` made has nothing before it and nothing behind it: no need to look for that.
    try:
        value, end = _decoder.raw_decode(text)
        whole = end == len(text)
    except (TypeError, ValueError):
        whole = False
    return value if whole else json.loads(text)
