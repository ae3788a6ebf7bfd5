"""JSON text as it is stored: compact, and exactly what was encoded."""

from __future__ import annotations

import json
from typing import Any

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(value: Any) -> str:
    """Encode compactly; NaN and infinities raise ValueError."""
    return _encoder.encode(value)


def decode_json(text: str) -> Any:
    """Decode what ``encode_json`` made."""
    return json.loads(text)
