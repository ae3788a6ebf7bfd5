"""The benchmarks' own arithmetic: figures, targets, options and the report. Nothing is measured here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import contestants, figures, options, report, targets
from benchmarks.__main__ import MEASURES
from benchmarks.measures import drain, enqueue, flat, memory, pickup
from benchmarks.paths import HERE, REQUIREMENTS
from benchmarks.stamps import Recorder, Stamps


def drained(contestant: str, processes: int, rate: float) -> dict[str, object]:
    return {"contestant": contestant, "processes": processes, "rate": rate, "memory": [50.0]}


def test_medians_and_ratios_leave_out_what_is_missing() -> None:
    assert figures.median([3.0, None, 1.0]) == 2.0
    assert figures.median([None]) is None
    assert figures.ratio(3.0, 2.0) == 1.5
    assert figures.ratio(None, 2.0) is None
    assert figures.ratio(3.0, 0.0) is None


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.0, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert figures.percentile([float(value) for value in range(100, 0, -1)], share) == expected


def test_a_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="percentile of nothing"):
        figures.percentile([], 0.5)


def test_a_table_aligns_all_but_the_first_column() -> None:
    assert figures.table(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_a_drain_counts_the_median_of_its_rounds() -> None:
    results = [drained("pgqueuer", 2, rate) for rate in (10.0, 30.0, 20.0)]

    assert drain.medians([*results, {"contestant": "pgqueuer", "processes": 2, "error": "failed"}]) == {
        ("pgqueuer", 2): 20.0
    }
    assert "| pgqueuer | – | 20 | 10 … 30 | – | 50 |" in drain.section(results)


def test_targets_compare_with_the_same_number_of_processes() -> None:
    results = [
        drained("django_backwave", 1, 900.0),
        drained("django_backwave", 2, 1000.0),
        drained("pgqueuer", 1, 1000.0),
        drained("pgqueuer", 2, 2000.0),
    ]

    found = {target.figure: target for target in targets.targets({"drain": results})}

    assert found["drain, 1 process: django_backwave beside pgqueuer"].reached is True
    assert found["drain, 2 processes: django_backwave beside pgqueuer"].reached is False
    assert found["drain, 2 processes: django_backwave beside pgqueuer"].measured == "0.50 ×"
    assert len(found) == 2


def test_a_pickup_may_be_as_slow_as_the_best_other_database_allows() -> None:
    waits = {"case": pickup.EMPTY, "p99": 5.0}
    results = [
        {"contestant": "django_backwave", "p50": 3.5, **waits},
        {"contestant": "oban", "p50": 3.0, **waits},
        {"contestant": "raw-psycopg", "p50": 1.0, **waits},
        {"contestant": "dramatiq-redis", "p50": 0.5, **waits},
    ]

    p50 = targets.targets({"pickup": results})[0]

    assert (p50.wanted, p50.measured, p50.reached) == ("≤ 3.6 ms", "3.5 ms", True)


def test_a_job_that_never_came_back_misses_the_target() -> None:
    results = [{"case": "killed", "lease": 10.0, "slowest": 3.0, "lost": 1}]

    assert [target.reached for target in targets.targets({"recovery": results})] == [False]


def test_a_figure_that_could_not_be_taken_is_no_success() -> None:
    results = [{"contestant": "django_backwave", "case": pickup.POLLED, "error": "failed"}]

    found = targets.targets({"pickup": results})

    assert [target.reached for target in found] == [None]
    assert "not measured" in targets.section(found)


def test_enqueue_is_compared_with_the_bare_orm_and_the_bulk_with_pgqueuer() -> None:
    results = [
        {"contestant": "django_backwave", "way": enqueue.ONE, "rate": 90.0},
        {"contestant": "django_backwave", "way": enqueue.BULK, "rate": 70.0},
        {"contestant": "django-orm", "way": enqueue.ONE, "rate": 100.0},
        {"contestant": "pgqueuer", "way": enqueue.BULK, "rate": 100.0},
    ]

    assert [target.reached for target in targets.targets({"enqueue": results})] == [True, False]


def test_the_backlog_counts_at_its_largest() -> None:
    results = [
        {"case": flat.EMPTY, "rate": 100.0, "ready": 5, "finished": 0},
        {"case": flat.BACKLOG, "rate": 95.0, "ready": 5, "finished": 10},
        {"case": flat.BACKLOG, "rate": 70.0, "ready": 50, "finished": 100},
    ]

    assert [target.measured for target in targets.targets({"flat": results})] == ["0.70 ×"]
    assert flat.curve(results) == [(5, 0, 100.0), (5, 10, 95.0), (50, 100, 70.0)]


def test_growth_is_measured_after_the_warm_up() -> None:
    samples = [(0, 30.0, 30.0), (100, 50.0, 50.0), (200, 50.0, 50.0), (900, 52.0, 51.0), (1000, 52.0, 51.0)]

    assert memory.summary(samples)["growth"] == pytest.approx(0.02)
    assert memory.summary(samples)["peak"] == 52.0


def test_without_a_flag_everything_is_measured() -> None:
    given = options.parse([])

    assert given.measures == list(MEASURES) == list(options.MEASURES) == list(report.MODULES)
    assert (given.jobs, given.flat_jobs) == (10_000, 20_000)


def test_flags_sizes_and_names_are_taken() -> None:
    given = options.parse(["--drain", "--quick", "--rounds", "5", "--only", "oban,raw-psycopg"])

    assert given.measures == ["drain"]
    assert (given.jobs, given.rounds) == (1_000, 5)
    assert [one.name for one in given.chosen] == ["oban", "raw-psycopg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "sidekiq"], "Unknown contestant 'sidekiq'. Known are django_backwave,"),
        (["--jobs", "0"], "invalid positive value: '0'"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options.parse(arguments)

    assert message in capsys.readouterr().err


def test_every_contestant_has_an_app_and_is_told_of() -> None:
    readme = (HERE / "README.md").read_text()
    apps = {path.stem for path in (HERE / "apps").glob("*.py")}

    assert {contestant.app for contestant in contestants.ALL} <= apps
    told = readme.lower()
    assert [one.name for one in contestants.ALL if one.name.partition("-")[0] not in told] == []
    assert len(contestants.BY_NAME) == len(contestants.ALL)


def test_targets_name_only_contestants_that_exist() -> None:
    named = {*targets.OURS, *targets.DRAIN_ONE, *targets.DRAIN_TWO, drain.LIMIT}

    assert named <= set(contestants.BY_NAME)


def test_what_is_installed_comes_from_the_ordinary_index_unpinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]

    assert [line for line in lines if "://" in line or "==" in line or line.startswith("-")] == []


def test_the_harness_needs_none_of_the_rivals() -> None:
    foreign = {"asyncpg", "celery", "chancy", "django", "dramatiq", "oban", "pgqueuer", "procrastinate"}
    for path in [*HERE.glob("*.py"), *(HERE / "measures").glob("*.py")]:
        imported = {
            name.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert imported & foreign == set(), path.name


def test_stamps_are_seen_from_outside_once_the_gate_is_open(tmp_path: Path) -> None:
    stamps = Stamps(tmp_path / "stamps", 3)
    opened = stamps.open()
    handler = Recorder(tmp_path / "stamps")
    handler(0)
    handler(2)
    assert (stamps.arrived(), stamps.done(), stamps.all_ran()) == (1, 2, False)

    handler(1)

    assert stamps.all_ran()
    assert opened <= stamps.at(0) <= stamps.at(2) <= stamps.at(1) == stamps.last()


def test_a_report_says_when_where_and_with_what() -> None:
    data = {
        "facts": {
            "machine": {"cores": "2"},
            "postgres": {"fsync": "on"},
            "versions": {"pgqueuer": "1.6.0"},
            "contestants": ["pgqueuer"],
            "missing": "dramatiq-redis: no broker answered",
        },
        "measures": {
            "drain": {
                "date": "2026-11-30",
                "sizes": {"jobs": 10_000},
                "results": [drained("pgqueuer", 2, 5.0)],
                "notes": ["a  word"],
            }
        },
    }

    text = report.written(data)

    assert "| measured on | 2026-11-30 |" in text
    assert "| left out | dramatiq-redis: no broker answered |" in text
    assert "| versions | pgqueuer 1.6.0 |" in text
    assert "Sizes: jobs 10,000." in text
    assert "Noted: a word" in text
    assert "## Drain" in text


def test_a_measure_is_added_only_to_those_of_the_same_machine_server_and_version() -> None:
    facts = {
        "machine": {"processor": "one"},
        "postgres": {"fsync": "on"},
        "versions": {"django_backwave": "0.1.0", "oban": "0.7.0"},
        "contestants": ["oban"],
    }
    data = report.nothing()
    report.know(data, facts)

    report.know(data, facts | {"contestants": ["django_backwave"]})
    assert data["facts"]["contestants"] == ["oban", "django_backwave"]

    with pytest.raises(SystemExit, match="another machine, server or version"):
        report.know(data, facts | {"postgres": {"fsync": "off"}})


def test_every_measure_has_its_sizes() -> None:
    assert list(options.SIZES_OF) == list(options.MEASURES)
    assert {name for names in options.SIZES_OF.values() for name in names} == {"concurrency", *options.SIZES}


def test_the_page_keeps_its_place_for_the_report() -> None:
    page = report.PAGE.read_text()

    assert page.count(report.BEGIN) == page.count(report.END) == 1
