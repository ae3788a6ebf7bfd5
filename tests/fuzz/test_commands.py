"""Hostile options for the commands: a CommandError, or success; never a traceback."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import claimed, ready
from tests.fuzz.cases import ODD, fuzz, texts

pytestmark = pytest.mark.django_db

#: Command → its options that take a value. None of them makes a worker run here.
OPTIONS = {
    "backwave_status": ("--database", "--max-due-age", "--max-due", "--max-dead"),
    "backwave_prune": ("--done-days", "--dead-days", "--database"),
    "backwave_doctor": ("--database", "--rows", "--timeout", "--max-due-age", "--max-transaction-age"),
}
FLAGS = ("--json", "--dry-run", "--require-served")

#: Of the worker's only what is refused before it starts is tried: a database that does not exist ends it.
WORKER = (
    "--queue",
    "--concurrency",
    "--processes",
    "--lease",
    "--poll",
    "--max-jobs",
    "--max-memory",
    "--shutdown-timeout",
    "--heartbeat-file",
)

numbers = st.integers().map(str) | st.floats().map(str) | st.integers(0, 400).map(str)
values = st.sampled_from(ODD) | texts | numbers


def run(*arguments: str) -> None:
    """Run a command; CommandError and an exit code are its ways to say no."""
    said, code = "something", 0
    try:
        call_command(*arguments, stdout=StringIO(), stderr=StringIO(), no_color=True)
    except CommandError as error:
        said = str(error).strip()
    except SystemExit as end:
        code = end.code
    assert said
    assert code in (0, 1, 2, 3)


@fuzz(0.05)
@given(data=st.data())
def _hostile(data):
    command = data.draw(st.sampled_from(sorted(OPTIONS)))
    arguments = [command]
    for option in data.draw(st.lists(st.sampled_from(OPTIONS[command]), max_size=3)):
        arguments.append(f"{option}={data.draw(values)}")
    arguments += data.draw(st.lists(st.sampled_from(FLAGS) | values, max_size=2))
    run(*arguments)


def test_commands_take_any_value_or_refuse_it():
    ready()
    claimed()
    _hostile()


@fuzz(0.05)
@given(options=st.lists(st.tuples(st.sampled_from(WORKER), values), max_size=3))
def test_a_worker_refuses_what_it_cannot_do(options):
    arguments = [f"{option}={value}" for option, value in options]
    run("backwave_worker", *arguments, "--database=nowhere")


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_each_oddity_once_in_each_option(value):
    for command, options in OPTIONS.items():
        for option in options:
            run(command, f"{option}={value}")
    for option in WORKER:
        run("backwave_worker", f"{option}={value}", "--database=nowhere")
