"""How Sphinx builds these pages; `make docs` runs it, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from django_backwave import __version__  # noqa: E402 - it needs the path

project = "django-backwave"
author = "django-backwave contributors"
project_copyright = "django-backwave contributors; BSD-3-Clause"
version = release = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3  # links to headings are those of GitHub, so that pages read well there, too
exclude_patterns: list[str] = []

html_theme = "furo"
html_title = f"django-backwave {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"


def inline_pictures(app: Any, doctree: nodes.document, _: str) -> None:
    """Put SVG files into the page itself, so that their colours follow its light or dark theme."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        if image["uri"].endswith(".svg"):
            svg = (HERE / image["uri"]).read_text()
            image.replace_self(nodes.raw("", f'<div class="picture">{svg}</div>', format="html"))


def setup(app: Any) -> dict[str, bool]:
    """Take part in the build."""
    app.connect("doctree-resolved", inline_pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
