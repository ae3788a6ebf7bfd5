"""The docs tell the truth where a machine can see it: names of tests, links, settings, quoted code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from django_backwave import conf
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.management.commands import backwave_prune, backwave_status, backwave_worker

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
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


def test_the_readme_links_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()

    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme] == []


def test_every_setting_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE)

    assert rows == list(conf.DEFAULTS)


@pytest.mark.parametrize("command", [backwave_worker, backwave_status, backwave_prune])
def test_every_option_of_a_command_is_described(command: object) -> None:
    parser = command.Command().create_parser("manage.py", "it")  # type: ignore[attr-defined]
    text = (DOCS / "commands.md").read_text()
    of_django = {"--help", "--version", "--settings", "--pythonpath", "--traceback", "--no-color"}
    of_django |= {"--force-color", "--skip-checks"}
    options = {option for action in parser._actions for option in action.option_strings if option[:2] == "--"}
    described = options - of_django - {"--verbosity"}

    assert [option for option in sorted(described) if f"`{option}" not in text] == []


def test_every_log_line_is_described() -> None:
    text = (DOCS / "commands.md").read_text()
    quiet = {"notify_failed", "withdraw_failed", "worker_killed", "discover"}
    package = ROOT / "django_backwave"
    sent = {
        action for path in package.rglob("*.py") for action in re.findall(r'"action=(\w+)', path.read_text())
    }

    assert sorted(action for action in sent - quiet if f"`action={action}" not in text) == []


def test_every_state_and_outcome_is_described() -> None:
    text = (DOCS / "models.md").read_text()

    assert [state.name for state in JobState if f"| `{state.name}` | {state.value} |" not in text] == []
    assert [outcome.value for outcome in AttemptOutcome if f"`{outcome.value}`" not in text] == []


def test_the_readme_quotes_the_fence() -> None:
    section = (ROOT / "README.md").read_text().partition("store/fence.py")[2]
    quoted = section.split("```python\n")[1].split("```")[0]

    assert quoted in (ROOT / "django_backwave/store/fence.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_the_docs_can_be_parsed(page: Path) -> None:
    for block in re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL):
        indent, code = block
        lines = [line.removeprefix(indent) for line in code.splitlines()]
        body = "\n".join(lines)
        if lines[0].startswith(" "):  # the inside of a function
            body = f"def quoted():\n{body}"
        elif lines[0].startswith('"'):  # of a dict
            body = f"{{{body}}}"
        ast.parse(body)
