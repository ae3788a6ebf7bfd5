"""``backwave_manifest``: what stored jobs depend on, and which change of the code would strand them."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_backwave import job, manifest, registry
from django_backwave.manifest import Entry, breaches

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
FILE = "backwave_manifest.json"


def receipt(context, order_id: int, copies: int = 1): ...


def report(*, month: str): ...


def key_of(month: str) -> str:
    return month


@pytest.fixture(autouse=True)
def code(monkeypatch):
    """Register two jobs in the place of those that the tests' other modules define."""
    monkeypatch.setattr(registry._registry, "_tasks", {})
    monkeypatch.setattr("django_backwave.management.commands.backwave_manifest.discover", list)
    job(
        name="receipt",
        aliases=["shop.receipt", "old.receipt"],
        queue_name="mail",
        schema="receipt/2",
        accepts=["receipt/1", None, "receipt/1"],
        key="receipt:{order_id}",
        takes_context=True,
    )(receipt)
    job(key=key_of, name="report")(report)


def command(*arguments: str) -> str:
    out = StringIO()
    call_command("backwave_manifest", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def refused(*arguments: str) -> tuple[list[str], str]:
    """Return the lines that a refusal prints, and its last word."""
    lines = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("backwave_manifest", *arguments, stdout=lines, stderr=lines)
    assert caught.value.returncode == 1
    return lines.getvalue().splitlines(), str(caught.value)


def entry(**changes) -> Entry:
    values = {
        "aliases": (),
        "accepts": (),
        "key": None,
        "queue": "mail",
        "schema": None,
        "signature": "(order_id)",
    }
    return Entry(**values | changes)


class TestWithoutOptions:
    def test_it_prints_each_value_on_a_line_of_its_own_in_order(self):
        assert command() == (
            "{\n"
            '  "jobs": {\n'
            '    "receipt": {\n'
            '      "accepts": [\n'
            "        null,\n"
            '        "receipt/1"\n'
            "      ],\n"
            '      "aliases": [\n'
            '        "old.receipt",\n'
            '        "shop.receipt"\n'
            "      ],\n"
            '      "key": "receipt:{order_id}",\n'
            '      "queue": "mail",\n'
            '      "schema": "receipt/2",\n'
            '      "signature": "(order_id, copies=...)"\n'
            "    },\n"
            '    "report": {\n'
            '      "accepts": [],\n'
            '      "aliases": [],\n'
            '      "key": "tests.commands.test_manifest.key_of()",\n'
            '      "queue": "default",\n'
            '      "schema": null,\n'
            '      "signature": "(*, month)"\n'
            "    }\n"
            "  },\n"
            '  "version": 1\n'
            "}\n"
        )

    def test_it_reads_back(self):
        assert manifest.loads(command()) == manifest.of_code()

    def test_a_module_that_fails_is_told(self, monkeypatch):
        def discover():
            raise ImportError("The module 'shop.jobs' failed")

        monkeypatch.setattr("django_backwave.management.commands.backwave_manifest.discover", discover)

        assert refused() == ([], "The module 'shop.jobs' failed")

    def test_both_options_at_once_are_refused(self, tmp_path):
        with pytest.raises(CommandError, match="not allowed with argument"):
            command("--write", str(tmp_path / FILE), "--check", str(tmp_path / FILE))


class TestFiles:
    def test_what_is_written_is_up_to_date(self, tmp_path):
        file = tmp_path / FILE

        assert command("--write", str(file)) == f"Wrote {file}: 2 jobs.\n"
        assert file.read_text() == command()
        assert command("--check", str(file)) == f"{file} is up to date: 2 jobs.\n"

    def test_a_formatter_may_have_been_at_it(self, tmp_path):
        file = tmp_path / FILE
        file.write_text(json.dumps(json.loads(command()), sort_keys=False))

        assert "is up to date" in command("--check", str(file))

    def test_a_change_that_harms_nobody_is_only_to_be_written_down(self, tmp_path):
        file = tmp_path / FILE
        command("--write", str(file))
        job(name="further")(key_of)

        assert refused("--check", str(file)) == (
            [],
            f"{file} is out of date; stored jobs are safe. Run: manage.py backwave_manifest --write {file}",
        )

    def test_one_that_does_is_told_in_a_line_each(self, tmp_path, monkeypatch):
        file = tmp_path / FILE
        command("--write", str(file))
        monkeypatch.setattr(registry._registry, "_tasks", {})
        job(name="receipt", aliases=["shop.receipt"], queue_name="mail", schema="receipt/3")(receipt)

        lines, last = refused("--check", str(file))

        assert [line.partition(".")[0] for line in lines] == [
            "receipt: jobs stored with schema 'receipt/2' are not taken any more, and would be quarantined",
            "receipt: jobs stored without a schema are not taken any more, and would be quarantined",
            "receipt: jobs stored with schema 'receipt/1' are not taken any more, and would be quarantined",
            "receipt: the key changes from 'receipt:{order_id}' in queue 'mail' to none",
            "old",
            "report: no job has this name or alias any more, and stored ones would be quarantined",
        ]
        assert last == (
            f"{file} has what this code breaks. If no stored job depends on that any more, run: "
            f"manage.py backwave_manifest --write {file}"
        )

    def test_a_file_that_is_not_there(self, tmp_path):
        file = tmp_path / FILE

        assert refused("--check", str(file)) == (
            [],
            f"{file} cannot be read: No such file or directory. For a first one run: "
            f"manage.py backwave_manifest --write {file}",
        )

    def test_a_place_that_cannot_be_written(self, tmp_path):
        file = tmp_path / "nowhere" / FILE

        assert refused("--write", str(file)) == ([], f"{file} cannot be written: No such file or directory.")

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            ("{", "Expecting property name enclosed in double quotes"),
            ("\udc80", "can't decode byte 0x80"),
            ("[]", 'it is not of the form {"jobs": {…}, "version": 1}'),
            ('{"jobs": {}, "version": 2}', 'it is not of the form {"jobs": {…}, "version": 1}'),
            ('{"jobs": [], "version": 1}', '"jobs" must be an object of job names'),
            ({"x": 1}, "the job 'x' must have accepts, aliases, key, queue, schema, signature"),
            ({"x": {"queue": "mail"}}, "the job 'x' must have accepts, aliases, key"),
            ({"x": {"aliases": "y"}}, "aliases of the job 'x' must be a list"),
            ({"x": {"accepts": None}}, "accepts of the job 'x' must be a list"),
            ({"x": {"queue": None}}, "values of the job 'x' must be strings"),
            ({"x": {"accepts": [1]}}, "values of the job 'x' must be strings"),
            (
                {"x": {"signature": "print()"}},
                "signature of the job 'x': 'print()' is no signature such as '(order_id, copies=...)'",
            ),
        ],
    )
    def test_a_file_that_is_none(self, tmp_path, content, reason):
        file = tmp_path / FILE
        if isinstance(content, dict):
            [(name, values)] = content.items()
            whole = json.loads(manifest.dumps({name: entry()}))
            if isinstance(values, dict) and len(values) == 1 and values != {"queue": "mail"}:
                values = whole["jobs"][name] | values
            content = json.dumps(whole | {"jobs": {name: values}})
        file.write_bytes(content.encode(errors="surrogateescape"))

        lines, last = refused("--check", str(file))

        assert lines == []
        assert last.startswith(f"{file} is no manifest: ")
        assert reason in last
        assert last.endswith(f". Run: manage.py backwave_manifest --write {file}")


class TestBreaches:
    @pytest.mark.parametrize(
        "after",
        [
            {"a": entry()},
            {"a": entry(), "b": entry(signature="()")},
            {"b": entry(aliases=("a",))},
            {"a": entry(signature="(order_id, copies=...)")},
            {"a": entry(schema="a/2", accepts=(None,))},
            {"a": entry(key="order:{order_id}")},
            {"a": entry(accepts=("a/2",))},
        ],
    )
    def test_what_stored_jobs_survive(self, after):
        assert breaches({"a": entry()}, after) == []

    @pytest.mark.parametrize(
        ("before", "after", "line"),
        [
            (
                {},
                None,
                "a: no job has this name or alias any more, and stored ones would be quarantined. Add 'a' to "
                "the aliases of the job that takes its place.",
            ),
            (
                {"schema": "a/1"},
                {"schema": "a/2"},
                "a: jobs stored with schema 'a/1' are not taken any more, and would be quarantined. Put "
                "'a/1' into accepts until none is left.",
            ),
            (
                {},
                {"schema": "a/2"},
                "a: jobs stored without a schema are not taken any more, and would be quarantined. Put None "
                "into accepts until none is left.",
            ),
            (
                {"schema": "a/2", "accepts": ("a/1",)},
                {"accepts": ()},
                "a: jobs stored with schema 'a/1' are not taken any more, and would be quarantined. Put "
                "'a/1' into accepts until none is left.",
            ),
            (
                {},
                {"signature": "(order_id, copies)"},
                "a: not every call stored for (order_id) fits (order_id, copies): missing a required "
                "argument: 'copies'. Keep the old parameters as they are, and give new ones a default.",
            ),
            (
                {"signature": "(order_id, copies=...)"},
                {"signature": "(order_id, loud=..., copies=...)"},
                "a: not every call stored for (order_id, copies=...) fits (order_id, loud=..., copies=...): "
                "what was given by position would be taken for another parameter. Keep the old parameters as "
                "they are, and give new ones a default.",
            ),
            (
                {},
                {"queue": "post"},
                "a: the queue changes from 'mail' to 'post'. Keep a worker on 'mail' until its stored jobs "
                "are done.",
            ),
            (
                {"key": "order:{order_id}"},
                {"key": "{order_id}"},
                "a: the key changes from 'order:{order_id}' in queue 'mail' to '{order_id}' in queue 'mail'. "
                "Enqueues do not meet the generations that exist, so their work may be done twice.",
            ),
        ],
    )
    def test_what_they_do_not(self, before, after, line):
        told = breaches({"a": entry(**before)}, {} if after is None else {"a": entry(**before | after)})

        assert told == [line]

    def test_a_new_queue_is_a_new_place_for_keys(self):
        before, after = entry(key="{order_id}"), entry(key="{order_id}", queue="post")

        assert [line.partition(".")[0] for line in breaches({"a": before}, {"a": after})] == [
            "a: the queue changes from 'mail' to 'post'",
            "a: the key changes from '{order_id}' in queue 'mail' to '{order_id}' in queue 'post'",
        ]

    def test_a_signature_counts_only_where_stored_jobs_would_reach_it(self):
        """Jobs of a schema that is gone never run: that is said, and nothing of their arguments."""
        before = entry(schema="a/1")
        after = entry(schema="a/2", signature="(other)")

        [line] = breaches({"a": before}, {"a": after})

        assert "schema 'a/1'" in line

    def test_each_of_its_names_must_lead_somewhere(self):
        before = entry(aliases=("b", "c"))

        lines = breaches({"a": before}, {"new": entry(aliases=("a", "c"))})

        assert [line.partition(":")[0] for line in lines] == ["b"]

    def test_names_that_lead_apart_are_compared_apart(self):
        before = entry(aliases=("b",))

        [line] = breaches({"a": before}, {"a": entry(), "b": entry(signature="()")})

        assert line.startswith("b: not every call stored for (order_id) fits ()")


@pytest.mark.process
def test_the_example_has_a_manifest_that_is_up_to_date():
    """As its continuous integration would find out: system checks run, and no database is asked."""
    done = subprocess.run(
        [sys.executable, "manage.py", "backwave_manifest", "--check", FILE],
        cwd=EXAMPLE,
        env={"PYTHONPATH": str(EXAMPLE.parent), "DATABASE_URL": "postgres://nobody@127.0.0.1:1/nothing"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{FILE} is up to date: 5 jobs.\n"
