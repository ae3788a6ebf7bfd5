"""The pages tell the truth where a machine can see it: names of tests and code, links, words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, blocks

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
GUARANTEES = [f"G{number}" for number in range(1, 13)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)


def guarantees() -> dict[str, str]:
    """Return the text of each guarantee's section."""
    parts = re.split(r"^## (G\d+): .*$", (DOCS / "guarantees.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def defined_tests(path: Path) -> set[str]:
    """Return the tests of a file, those of classes as Class::test."""
    return set(_tests(ast.parse(path.read_text()).body))


def _tests(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{node.name}::")


def named_tests(section: str) -> Iterator[tuple[str, str]]:
    """Yield (file, test) for each test that a list under **Tests:** names."""
    for line in re.findall(r"^- (`tests/.*)$", section, re.MULTILINE):
        file, *names = re.findall(r"`([^`]+)`", line)
        for name in names:
            yield file, name


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_guarantee_has_its_section_in_order() -> None:
    assert list(guarantees()) == GUARANTEES


@pytest.mark.parametrize("number", GUARANTEES)
def test_a_guarantee_names_code_and_tests_that_exist(number: str) -> None:
    section = guarantees()[number]
    code = re.findall(r"`(django_backwave/[\w/]+\.py)`", section)
    named = list(named_tests(section))

    assert code, "no code is named"
    assert named, "no test is named"
    assert [path for path in code if not (ROOT / path).is_file()] == []
    assert [(file, name) for file, name in named if name not in defined_tests(ROOT / file)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text()))
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_the_readme_quotes_the_fence() -> None:
    section = (ROOT / "README.md").read_text().partition("store/fence.py")[2]
    quoted = section.split("```python\n")[1].split("```")[0]

    assert quoted in (ROOT / "django_backwave/store/fence.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_the_docs_can_be_parsed(page: Path) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(whole(block.code))


def whole(code: str) -> str:
    """Return code that stands by itself: the inside of a function or of a dict gets its frame."""
    if code.startswith(" "):
        return f"def quoted():\n{code}"
    return f"{{{code}}}" if code.startswith('"') else code


def test_every_page_is_linked_from_the_readme_or_shows_another_file() -> None:
    readme = (ROOT / "README.md").read_text()
    shows = {page.name for page in DOCS.glob("*.md") if "```{include}" in page.read_text()}
    pages = {page.name for page in DOCS.glob("*.md")} - shows - {"index.md"}

    assert sorted(page for page in pages if f"(docs/{page})" not in readme) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_line_holds_one_sentence(page: Path) -> None:
    prose = re.sub(r"`[^`]*`|\([^)]*\)", "", without_code(page.read_text()))
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    "))]

    assert [line for line in lines if re.search(r"[a-z]{2}[.!?] [A-Z]", line)] == []
