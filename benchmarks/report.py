"""The report: raw results as JSON, all that was measured as Markdown, and both in the documentation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from benchmarks import processes, targets
from benchmarks.contestants import BY_NAME
from benchmarks.figures import table
from benchmarks.measures import drain, enqueue, flat, memory, pickup, recovery, sqlite
from benchmarks.options import MEASURES
from benchmarks.paths import RESULTS, ROOT
from benchmarks.pictures import ALTERNATIVES

MODULES: dict[str, ModuleType] = {
    "drain": drain,
    "enqueue": enqueue,
    "pickup": pickup,
    "flat": flat,
    "sqlite": sqlite,
    "memory": memory,
    "recovery": recovery,
}
RAW, REPORT = RESULTS / "results.json", RESULTS / "report.md"
# Beside the report as they are beside the page, so that the same links lead to them.
CHARTS = RESULTS / "pictures"
PAGE, PICTURES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "pictures"
BEGIN, END = "<!-- begin of what `make bench` measured -->", "<!-- end of what `make bench` measured -->"

TITLES = {name: name.capitalize() for name in MEASURES} | {"pickup": "Pick-up", "sqlite": "SQLite"}


def nothing() -> dict[str, Any]:
    """Return the results of a run that has not begun."""
    return {"facts": {}, "measures": {}}


def load() -> dict[str, Any]:
    """Return the last results; nothing if there are none."""
    return json.loads(RAW.read_text()) if RAW.exists() else nothing()


def know(data: dict[str, Any], facts: Mapping[str, Any]) -> None:
    """Take what is known of the machine, the server and the contestants; those of earlier measures stay.

    Ends the process if the measures that are there come from another machine, server or version.
    """
    before = data["facts"]
    if before and (
        before["postgres"],
        before["machine"]["processor"],
        before["versions"]["django_backwave"],
    ) != (
        facts["postgres"],
        facts["machine"]["processor"],
        facts["versions"]["django_backwave"],
    ):
        raise SystemExit("--add: the last report is of another machine, server or version. Measure anew.")
    names = dict.fromkeys([*before.get("contestants", []), *facts["contestants"]])
    versions = {**before.get("versions", {}), **facts["versions"]}
    data["facts"] = {**facts, "versions": versions, "contestants": list(names)}


def record(
    data: dict[str, Any],
    name: str,
    results: Sequence[Mapping[str, Any]],
    *,
    sizes: Mapping[str, int],
    notes: Sequence[str],
) -> None:
    """Add what was measured, and write it down at once: a later measure may be interrupted."""
    today = datetime.now(UTC).date().isoformat()
    data["measures"][name] = {
        "date": today,
        "sizes": dict(sizes),
        "results": list(results),
        "notes": list(notes),
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    RAW.write_text(json.dumps(data, indent=1) + "\n")
    if name == "flat":
        draw()
    REPORT.write_text(written(data))


def written(data: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    measures = {name: data["measures"][name] for name in MEASURES if name in data["measures"]}
    found = targets.targets({name: measure["results"] for name, measure in measures.items()})
    parts = [facts(data["facts"], measures)]
    if found:
        parts.append(f"## Reach\n\n{targets.section(found)}")
    for name, measure in measures.items():
        parts.append(f"## {TITLES[name]}\n\n{sentence(MEASURES[name])}\n\n{body(name, measure)}")
    parts.append(f"## Contestants\n\n{tuned(data['facts'].get('contestants', []))}")
    return "\n\n".join(parts) + "\n"


def facts(known: Mapping[str, Any], measures: Mapping[str, Any]) -> str:
    """Return when, where and with what it was measured."""
    dates = sorted({measure["date"] for measure in measures.values()})
    rows = [("measured on", " and ".join(dates))]
    for group in ("machine", "postgres", "versions"):
        told = ", ".join(f"{name} {value}" for name, value in known.get(group, {}).items())
        rows.append((group, told))
    if known.get("missing"):
        rows.append(("left out", known["missing"]))
    return table(("fact", "value"), rows).replace("---:", "---")


def body(name: str, measure: Mapping[str, Any]) -> str:
    """Return a measure's sizes, its table and charts, and what was noted while it was taken."""
    sizes = ", ".join(f"{size} {value:,}" for size, value in measure["sizes"].items())
    parts = [f"Sizes: {sizes}.", MODULES[name].section(measure["results"])]
    if name == "flat":
        shown = [(file, text) for file, text in ALTERNATIVES.items() if (CHARTS / file).exists()]
        parts += [f"![{text}](pictures/{file})" for file, text in shown]
    parts += [f"Noted: {' '.join(note.split())}" for note in measure["notes"]]
    return "\n\n".join(parts)


def tuned(names: Sequence[str]) -> str:
    """Return what each contestant was tuned to."""
    return table(("contestant", "tuned to"), [(name, BY_NAME[name].tuned) for name in names]).replace(
        "---:", "---"
    )


def sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def draw() -> None:
    """Draw the charts, in the environment that has a library for it."""
    processes.run(["-m", "benchmarks.chart", str(RAW), str(CHARTS)], {}, timeout=120)


def publish() -> None:
    """Put the last report and its charts into the documentation."""
    if not REPORT.exists():
        raise SystemExit(f"There is no {REPORT.relative_to(ROOT)} yet: measure first.")
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{REPORT.read_text()}\n{END}{tail}")
    for chart in CHARTS.glob("*.svg"):
        shutil.copy(chart, PICTURES / chart.name)
