"""The reference pages are complete: each name, option, setting, check, log line and word is there."""

from __future__ import annotations

import re

import pytest
from django.core.management import BaseCommand, get_commands, load_command_class

import django_backwave
from django_backwave import JobContext, JobResult, conf, exceptions
from django_backwave.core.states import AttemptOutcome, JobState
from django_backwave.jobs import PER_ENQUEUE, JobOptions
from django_backwave.models import Action, Attempt, Job, Mark, Worker
from tests.docs.blocks import DOCS, ROOT

COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_backwave")

#: Log lines for ourselves: they tell a user nothing that another line does not.
QUIET = {"withdraw_failed", "worker_killed", "discover"}


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def section(name: str, heading: str) -> str:
    """Return what stands below a heading of the second level, up to the next one."""
    parts = re.split(r"^## (.*)$", page(name), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def rows(text: str) -> list[str]:
    """Return what the first cells of a text's tables name in code."""
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)))


def public(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_every_public_name_has_a_heading() -> None:
    headings = re.findall(r"^## (.*)$", page("api"), re.MULTILINE)

    assert [name for name in django_backwave.__all__ if name not in headings] == []


def test_every_option_of_a_job_is_described() -> None:
    described = section("api", "job")

    assert sorted(rows(described)) == sorted(JobOptions.__annotations__)
    assert [option for option in PER_ENQUEUE if f"`{option}`" not in described] == []


@pytest.mark.parametrize("kind", [JobContext, JobResult])
def test_every_attribute_is_described(kind: type) -> None:
    described = {row.partition("(")[0] for row in rows(section("api", kind.__name__))}

    assert public(kind) - described == set()


def test_every_exception_is_described() -> None:
    own = [
        name
        for name, value in vars(exceptions).items()
        if getattr(value, "__module__", "") == exceptions.__name__
    ]

    assert [
        name for name in own if f"`{name}`" not in page("api") and f"## {name}\n" not in page("api")
    ] == []


def test_every_setting_is_described() -> None:
    assert rows(page("settings")) == list(conf.DEFAULTS)


def test_every_check_has_a_heading() -> None:
    sources = (ROOT / "django_backwave" / "checks").glob("*.py")
    ids = {
        found
        for source in sources
        for found in re.findall(r'"(django_backwave\.[EW]\d+)"', source.read_text())
    }
    headings = re.findall(r"^## (.*)$", page("checks"), re.MULTILINE)

    assert headings == sorted(ids)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_of_a_command_is_described(name: str) -> None:
    command = load_command_class("django_backwave", name)
    described = {row.partition(" ")[0] for row in rows(section("commands", name))}

    assert options(command) - options(BaseCommand()) - described == set()
    assert {row for row in described if row.startswith("--")} - options(command) == set()


def options(command: BaseCommand) -> set[str]:
    parser = command.create_parser("manage.py", "it")
    return {option for action in parser._actions for option in action.option_strings if option[:2] == "--"}


def test_every_log_line_is_described() -> None:
    sources = (ROOT / "django_backwave").rglob("*.py")
    sent = {action for source in sources for action in re.findall(r'"action=(\w+)', source.read_text())}

    assert sorted(action for action in sent - QUIET if f"`action={action}" not in page("commands")) == []


def test_every_state_and_outcome_is_described() -> None:
    text = page("models")

    assert [state.name for state in JobState if f"| `{state.name}` | {state.value} |" not in text] == []
    assert [outcome.value for outcome in AttemptOutcome if f"`{outcome.value}`" not in text] == []


@pytest.mark.parametrize("model", [Job, Attempt, Mark, Worker, Action])
def test_every_column_is_described(model: type[Job]) -> None:
    described = section("models", model.__name__)
    columns = [field.name for field in model._meta.fields]

    assert [name for name in columns if f"`{name}`" not in described and name != "id"] == []


def test_every_permission_is_described() -> None:
    custom = [codename for codename, _ in Job._meta.permissions]

    assert [codename for codename in (*custom, "view_job") if f"`{codename}`" not in page("admin")] == []


def test_the_glossary_has_every_word_of_the_states_and_outcomes() -> None:
    words = re.findall(r"^\| ([a-z -]+?)(?:, [a-z ]+)? \|", page("glossary"), re.MULTILINE)
    stated = [state.label for state in (JobState.DEAD_LETTERED, JobState.QUARANTINED)]
    outcomes = section_of_word("outcome")

    assert [word for word in stated if word not in words] == []
    told = {outcome.value.replace("_", " ") for outcome in AttemptOutcome} - {"abandoned"}
    assert sorted(word for word in told if word not in outcomes) == []
    assert "abandoned" in words


def section_of_word(word: str) -> str:
    return next(line for line in page("glossary").splitlines() if line.startswith(f"| {word} |"))


def avoided() -> list[str]:
    """Return the glossary's words that we do not use at all, as a user would write them."""
    cells = re.findall(r"^\|[^|]+\|[^|]+\|([^|]+)\|$", page("glossary"), re.MULTILINE)
    words = {word.strip() for cell in cells[2:] for word in cell.split(",")}
    # These have an everyday meaning, too.
    everyday = {
        "error",
        "lock",
        "retry",
        "result",
        "message",
        "unknown",
        "failed job",
        "kind",
        "node",
        "server",
    }
    return sorted(word for word in words - everyday if "(" not in word)


@pytest.mark.parametrize(
    "name", ["index", "quickstart", "lifecycle", "fence", "handlers", "async", "models", "admin"]
)
def test_pages_use_no_word_that_the_glossary_rules_out(name: str) -> None:
    text = page(name).lower()

    assert [word for word in avoided() if re.search(rf"\b{word}s?\b", text)] == []
