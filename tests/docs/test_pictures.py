"""The pictures say what the code does, and can be read by everybody."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS

PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


def test_the_picture_of_states_is_drawn_from_the_table_of_moves() -> None:
    script = runpy.run_path(str(DOCS / "pictures" / "states.py"))

    assert (DOCS / "pictures" / "states.svg").read_text() == script["render"]()


def test_a_move_that_is_not_drawn_is_an_error() -> None:
    script = runpy.run_path(str(DOCS / "pictures" / "states.py"))
    script["LINES"].popitem()

    with pytest.raises(ValueError, match="not drawn"):
        script["render"]()


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_has_a_title_a_description_and_colours_for_light_and_dark(picture: Path) -> None:
    svg = picture.read_text()
    root = ET.fromstring(svg)  # noqa: S314 - a file of our own
    tags = [child.tag.rpartition("}")[2] for child in root]

    assert root.get("role") == "img"
    assert tags[:2] == ["title", "desc"]
    assert "prefers-color-scheme: dark" in svg
    assert "var(--color-foreground-primary" in svg


def test_every_picture_is_shown() -> None:
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))

    assert [picture.name for picture in PICTURES if f"(pictures/{picture.name})" not in pages] == []
