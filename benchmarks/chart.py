"""The charts, by matplotlib in the contestants' environment: `python -m benchmarks.chart RAW FOLDER`."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from benchmarks.measures import flat
from benchmarks.pictures import ALTERNATIVES, SIZE_CHART, SNAPSHOT_CHART

type Results = Sequence[Mapping[str, Any]]

SIZE = (7.2, 3.4)
# Colours to draw with, and what the finished picture has instead: the page's own, light or dark.
INK, SOFT, MAIN, OTHER = "#000001", "#000002", "#000003", "#000004"
COLOURS = {INK: "var(--ink)", SOFT: "var(--soft)", MAIN: "var(--main)", OTHER: "var(--other)"}
STYLE = """
  .{name} {{
    --ink: var(--color-foreground-primary, #1c2024); --soft: var(--color-foreground-secondary, #5a6470);
    --main: var(--color-brand-primary, #2563c9); --other: var(--picture-bad, #c43838); }}
  @media (prefers-color-scheme: dark) {{
    .{name} {{
      --ink: var(--color-foreground-primary, #e4e7eb); --soft: var(--color-foreground-secondary, #a0a9b4);
      --main: var(--color-brand-primary, #6ea8fe); --other: var(--picture-bad, #f07a7a); }} }}
  .{name} * {{ stroke-linejoin: round; stroke-linecap: butt }}
"""


def main(raw: Path, folder: Path) -> None:
    """Draw what the results have."""
    results = json.loads(raw.read_text())["measures"].get("flat", {}).get("results", [])
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "benchmarks", "font.size": 10, "font.family": "sans-serif"}
    )
    sizes = [result for result in results if result["case"] in (flat.EMPTY, flat.BACKLOG)]
    folder.mkdir(parents=True, exist_ok=True)
    if sizes:
        draw(folder / SIZE_CHART, sizes, by_size)
    timed = [result for result in results if "over_time" in result]
    if timed:
        draw(folder / SNAPSHOT_CHART, timed, by_time)


def by_size(axes: Axes, results: Results) -> str:
    """Draw each run as a dot over the number of rows, and a line through the medians; return it in words."""
    curve = flat.curve(results)
    rows = [due + finished for due, finished, _ in curve]
    rates = [value for _, _, value in curve]
    axes.plot(rows, rates, color=MAIN, marker="o", label="median")
    axes.scatter(
        [result["ready"] + result["finished"] for result in results],
        [result["rate"] for result in results],
        color=SOFT,
        s=10,
        zorder=3,
        label="each run",
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("jobs in the table, due and finished")
    return "; ".join(f"{value:,.0f} jobs/s with {count:,}" for count, value in zip(rows, rates, strict=True))


def by_time(axes: Axes, results: Results) -> str:
    """Draw the rate over the seconds of load; return it in words."""
    for result, colour in zip(results, (MAIN, OTHER), strict=False):
        instants, rates = zip(*result["over_time"], strict=True)
        axes.plot(instants, rates, color=colour, label=result["case"])
    axes.set_xlabel("seconds of load")
    return "; ".join(
        f"{result['case']}: {result['rate']:,.0f} jobs/s, at the end {result['rate_at_end']:,.0f}"
        for result in results
    )


def draw(path: Path, results: Results, fill: Callable[[Axes, Results], str]) -> None:
    """Write one chart."""
    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    told = fill(axes, results)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("jobs/s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(color=SOFT, alpha=0.3)
    for spine in axes.spines.values():
        spine.set_color(SOFT)
    axes.tick_params(which="both", color=SOFT, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.legend(frameon=False, labelcolor=INK)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    path.write_text(finish(drawn.getvalue(), f"bw-{path.stem}", ALTERNATIVES[path.name], told))


def finish(svg: str, name: str, title: str, description: str) -> str:
    """Make a picture of the documentation: told in words, in the page's colours, its ids its own."""
    box = re.search(r'viewBox="[^"]+"', svg).group()
    body = svg[svg.index("</metadata>") + len("</metadata>") :]
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", body)
    body = re.sub(r"font-family: [^;\"]+", "font-family: system-ui, sans-serif", body)
    for colour, ours in COLOURS.items():
        body = body.replace(colour, ours)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="{name}" '
        f'{box} role="img" aria-labelledby="{name}-title {name}-desc">\n'
        f'<title id="{name}-title">{title}</title>\n<desc id="{name}-desc">{description}</desc>\n'
    )
    lines = (line.rstrip() for line in body.splitlines())
    return f"{head}<style>{STYLE.format(name=name)}</style>" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
