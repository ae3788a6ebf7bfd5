"""Draws states.svg from the table of legal moves: `python docs/pictures/states.py`.

Where boxes and lines go stands below; which lines there are is the table's to say. A move that is not drawn,
and a line that is no move, is an error; `tests/docs` checks that the file is what this script draws.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from django_backwave.core.states import MOVES, TERMINAL, JobState

FILE = Path(__file__).with_name("states.svg")
WIDTH, HEIGHT = 920, 470
BOX_WIDTH, BOX_HEIGHT = 160, 46

W, R, G = JobState.WAITING, JobState.READY, JobState.RUNNING
S, C, D, Q = JobState.SUCCEEDED, JobState.CANCELLED, JobState.DEAD_LETTERED, JobState.QUARANTINED

#: The left upper corner of each state's box.
BOXES = {
    W: (10, 190),
    R: (240, 190),
    G: (470, 190),
    S: (710, 80),
    D: (710, 160),
    Q: (710, 240),
    C: (710, 340),
}

#: For each move: the line's path, its label, the label's place, and how the label is anchored.
LINES: dict[tuple[JobState, JobState], tuple[str, str, tuple[int, int], str]] = {
    (W, R): ("M170 213 H238", "last parent", (205, 182), "middle"),
    (R, G): ("M400 203 H468", "claim", (434, 193), "middle"),
    (G, R): ("M500 236 V290 H350 V238", "", (0, 0), "middle"),
    (G, S): ("M630 200 C670 200 665 103 708 103", "returned", (640, 128), "end"),
    (G, D): ("M630 207 C670 207 670 183 708 183", "", (0, 0), "middle"),
    (G, Q): ("M630 219 C670 219 670 263 708 263", "", (0, 0), "middle"),
    (G, C): ("M600 236 C600 330 640 353 708 353", "cancelled while it ran", (630, 327), "start"),
    (R, C): ("M290 236 V366 H708", "cancelled before it ran", (306, 397), "start"),
    (W, C): ("M90 236 V379 H708", "", (0, 0), "middle"),
    (D, R): ("M870 183 H900 V30 H320 V188", "", (0, 0), "middle"),
    (Q, R): ("M870 263 H900 V30", "", (0, 0), "middle"),
    (C, R): ("M870 363 H900 V30", "requeue, by an operator", (336, 48), "start"),
}

#: Text that belongs to no single line.
NOTES = [
    ((425, 308), "middle", "to run again:"),
    ((425, 326), "middle", "failed with tries left, abandoned,"),
    ((425, 344), "middle", "released, snoozed, unroutable"),
    ((790, 221), "middle", "failures used up, or gave up"),
    ((790, 301), "middle", "unroutable beyond the grace"),
    ((100, 258), "start", "planned"),
]

STYLE = """
  .bw-states {
    --ink: var(--color-foreground-primary, #1c2024); --soft: var(--color-foreground-secondary, #5a6470);
    --fill: var(--color-background-secondary, #f4f6f8); --edge: var(--color-brand-primary, #2563c9);
    font: 14px system-ui, sans-serif; }
  @media (prefers-color-scheme: dark) {
    .bw-states {
      --ink: var(--color-foreground-primary, #e4e7eb); --soft: var(--color-foreground-secondary, #a0a9b4);
      --fill: var(--color-background-secondary, #1d2024); --edge: var(--color-brand-primary, #6ea8fe); } }
  .bw-states text { fill: var(--ink); }
  .bw-states .note { fill: var(--soft); font-size: 13px; }
  .bw-states .name { font-weight: 600; text-anchor: middle; }
  .bw-states rect { fill: var(--fill); stroke: var(--edge); stroke-width: 1.5; }
  .bw-states .end { stroke-width: 3; }
  .bw-states path { fill: none; stroke: var(--ink); stroke-width: 1.5; }
  .bw-states .requeue { stroke: var(--soft); stroke-dasharray: 5 4; }
  .bw-states marker path { fill: var(--ink); stroke: none; }
"""


def render() -> str:
    """Return the picture; raise ValueError if it does not draw exactly the legal moves."""
    moves = {(one, other) for one, others in MOVES.items() for other in others}
    if moves != LINES.keys():
        raise ValueError(f"not drawn: {moves - LINES.keys()}; no legal moves: {LINES.keys() - moves}")
    words = "; ".join(f"{one.name} to {other.name}" for one, other in sorted(moves))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bw-states" viewBox="0 0 {WIDTH} {HEIGHT - 60}" '
        'role="img" aria-labelledby="bw-states-title bw-states-desc">',
        '<title id="bw-states-title">The states of a job and its legal moves</title>',
        f'<desc id="bw-states-desc">{words}.</desc>',
        f"<style>{STYLE}</style>",
        '<defs><marker id="bw-states-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs>',
        '<path d="M262 120 V188" marker-end="url(#bw-states-tip)"/>',
        '<text x="262" y="110" text-anchor="middle">enqueue</text>',
    ]
    parts += [_line(move) for move in sorted(LINES)]
    parts += [_text(place, anchor, text, "note") for place, anchor, text in NOTES]
    parts += [_box(state) for state in JobState]
    return "\n".join([*parts, "</svg>", ""])


def _line(move: tuple[JobState, JobState]) -> str:
    path, label, place, anchor = LINES[move]
    requeue = move[0] in TERMINAL
    joins = requeue and not path.endswith("V188")  # it runs into another line, which has the tip
    kind = ' class="requeue"' if requeue else ""
    tip = "" if joins else ' marker-end="url(#bw-states-tip)"'
    line = f'<path{kind} d="{path}"{tip}/>'
    return f"{line}\n{_text(place, anchor, label, 'note')}" if label else line


def _box(state: JobState) -> str:
    x, y = BOXES[state]
    kind = ' class="end"' if state in TERMINAL else ""
    return (
        f'<rect{kind} x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="8"/>'
        f'<text class="name" x="{x + BOX_WIDTH // 2}" y="{y + 28}">{escape(state.name)}</text>'
    )


def _text(place: tuple[int, int], anchor: str, text: str, kind: str) -> str:
    x, y = place
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    FILE.write_text(render())
