"""The code blocks of a Markdown page, with the language and the caption that they carry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


class Block(NamedTuple):
    """A fenced block: ``language`` of its first line, ``caption`` if it is a directive that has one."""

    language: str
    caption: str
    code: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order, without their indentation."""
    fenced = re.findall(r"^( *)```([^\n`]*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for indent, info, body in fenced:
        code = "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))
        caption = re.match(r":caption: (.*)\n+", code)
        if caption:
            code = code[caption.end() :]
        yield Block(info.removeprefix("{code-block}").strip(), caption[1] if caption else "", code)
