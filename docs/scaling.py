"""The picture of models over several boards: how many times as many results N boards give as one, modelled.

python docs/scaling.py ROWS.json   # of benchmarks/many_boards.py --json: writes docs/scaling.json and the picture
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rsn.docs.front import DOCS, STYLE

KEPT = DOCS / "scaling.json"
"""By title of a line, the factor over one board, by the number of boards."""
NAME = "scaling.svg"
BATCH = 8
"""The sequences of the lines that are drawn."""

SIZE, LEFT, HEAD, FOOT, RIGHT = 320, 40, 14, 40, 250
COLOURS = ("#57a639", "#3b7dd8", "#b0529f", "#18a0a0", "#e08a1e")
Lines = Mapping[str, Mapping[str, float]]


def lines_of(text: str) -> dict[str, dict[str, float]]:
    """Return the lines of the picture: by title, "MODEL (OVERLAY)", how many times as many results N boards give as
    one, by N as text. text: what benchmarks/many_boards.py --json printed, one JSON object a line; only rows with
    batches of `BATCH` sequences count."""
    found: dict[str, dict[str, float]] = {}
    for row in map(json.loads, text.splitlines()):
        if row["batch"] == BATCH:
            line = found.setdefault(f"{row['model']} ({row['overlay']})", {})
            line[str(row["boards"])] = round(row["of_boards"] * row["boards"], 2)
    return found


def draw(lines: Lines) -> str:
    """Return a picture, as the text of an SVG file: a line for each model, and one for N times as many results of N
    boards. lines: as `lines_of` returns them, at least one."""
    most = max(int(boards) for line in lines.values() for boards in line)
    width, height = LEFT + SIZE + RIGHT, HEAD + SIZE + FOOT

    def place(boards: float, factor: float) -> str:
        return f"{LEFT + boards / most * SIZE:.1f} {HEAD + SIZE - factor / most * SIZE:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>Results of N boards over those of one, modelled</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<rect class="lane" x="{LEFT}" y="{HEAD}" width="{SIZE}" height="{SIZE}"/>',
    ]
    for mark in range(0, most + 1, 4):
        x, y = place(mark, mark).split()
        out += [
            f'<path class="line" d="M{x} {HEAD}V{HEAD + SIZE}M{LEFT} {y}h{SIZE}"/>',
            f'<text class="middle" x="{x}" y="{HEAD + SIZE + 16}">{mark}</text>',
            f'<text class="end" x="{LEFT - 6}" y="{float(y) + 4:.1f}">{mark}</text>',
        ]
    out.append(f'<text class="middle" x="{LEFT + SIZE / 2}" y="{HEAD + SIZE + 34}">boards</text>')
    out.append(f'<path class="line" stroke-dasharray="4 3" d="M{place(0, 0)}L{place(most, most)}"/>')
    for number, (title, line) in enumerate(lines.items()):
        colour, y = COLOURS[number % len(COLOURS)], HEAD + 20 + 22 * number
        path = "L".join(place(int(boards), factor) for boards, factor in line.items())
        out += [
            f'<path fill="none" stroke="{colour}" stroke-width="2" d="M{path}"/>',
            f'<rect x="{LEFT + SIZE + 14}" y="{y - 9}" width="14" height="4" fill="{colour}"/>',
            f'<text x="{LEFT + SIZE + 34}" y="{y - 3}">{escape(title)}</text>',
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def picture() -> str:
    """Return the picture of the lines in docs/scaling.json, as the text of an SVG file."""
    return draw(json.loads(KEPT.read_text(encoding="utf-8")))


def main(arguments: Sequence[str]) -> None:
    """Write the picture. arguments: empty, to draw docs/scaling.json as it is; or the path of a file that the benchmark
    wrote, from which docs/scaling.json is made first."""
    if arguments:
        made = lines_of(Path(arguments[0]).read_text(encoding="utf-8"))
        KEPT.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    (DOCS / "pictures" / NAME).write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
