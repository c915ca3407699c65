"""The picture of what `rsn tune --overlay xnn2` found: latency against on-chip memory, for some models.

python docs/front.py "TITLE=TRIALS.json" ...   # of outputs of rsn tune --json: writes docs/fronts.json and the picture
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor
from pathlib import Path
from typing import Any

from rsn.isa.overlays.xnn2 import XNN2
from rsn.rsnlib.lane_search import GOALS, MEMORY_KNOBS, usual

DOCS = Path(__file__).resolve().parent
KEPT = DOCS / "fronts.json"
"""The fronts, with the knobs of each point."""
NAME = "front_xnn2.svg"

WIDTH, HEIGHT, LEFT, RIGHT, HEAD, FOOT, BETWEEN = 900, 290, 50, 16, 52, 26, 68
COLOURS = {"R6": "#57a639", "P3": "#3b7dd8"}
STYLE = """
text { font: 12px sans-serif; fill: #24292f } .paper { fill: #ffffff } .line { stroke: #c4cbd3 } .lane { fill: #eff2f5 }
.end { text-anchor: end } .middle { text-anchor: middle } .strong { font-weight: bold }
.front { fill: none; stroke: #8c9aae; stroke-width: 1.5 } .ships { fill: none; stroke: #d1453b; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #d1d7de } .paper { fill: #0d1117 } .line { stroke: #3d444d } .lane { fill: #1a2028 }
}
"""


def kept(trials: Mapping[str, Any]) -> dict[str, Any]:
    """Return what docs/fronts.json keeps of an output of rsn tune --json: the numbers of trials and of refused ones,
    the front, and the fastest trial with the memory sizes of the overlay as it ships. Raises `SystemExit`, with a
    message, if no trial has these sizes."""
    ships = usual(XNN2)
    shipping = [
        trial
        for trial in trials["trials"]
        if GOALS["latency"] in trial and all(trial["knobs"][k.name] == ships[k.name] for k in MEMORY_KNOBS)
    ]
    if not shipping:
        raise SystemExit("no trial has the memories that ship")
    return {
        "trials": len(trials["trials"]),
        "refused": sum("refused" in trial for trial in trials["trials"]),
        "ships": _point(min(shipping, key=lambda trial: (trial[GOALS["latency"]], trial["trial"]))),
        "front": [_point(trial) for trial in trials["best"]],
    }


def _point(trial: Mapping[str, Any]) -> dict[str, Any]:
    return {"ms": trial[GOALS["latency"]], "kib": trial[GOALS["memory"]], "knobs": trial["knobs"]}


def draw(fronts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a picture, as the text of an SVG file: side by side, for each model, its front as a line of steps, and the
    overlay as it ships as a ring. fronts: by title of the model, at least one, each as `kept` returns it."""
    wide = (WIDTH - LEFT - RIGHT - BETWEEN * (len(fronts) - 1)) / len(fronts)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        "<title>Latency against on-chip memory of xnn2 with other memories, modelled</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}"/>',
        *_legend(),
    ]
    for number, (title, front) in enumerate(fronts.items()):
        out += _panel(title, front, LEFT + number * (wide + BETWEEN), wide)
    return "\n".join([*out, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    at = LEFT
    for mode, colour in COLOURS.items():
        yield f'<circle cx="{at + 5}" cy="11" r="4" fill="{colour}"/><text x="{at + 14}" y="15">mode {mode}</text>'
        at += 84
    yield f'<circle class="ships" cx="{at + 5}" cy="11" r="5"/><text x="{at + 14}" y="15">memories that ship</text>'


def _panel(title: str, front: Mapping[str, Any], left: float, wide: float) -> Iterator[str]:
    points = sorted([*front["front"]], key=lambda p: p["kib"])
    shown = [*points, front["ships"]]
    (x0, x1, x_step), (y0, y1, y_step) = _range([p["kib"] / 1024 for p in shown]), _range([p["ms"] for p in shown])
    bottom, high = HEIGHT - FOOT, HEIGHT - FOOT - HEAD

    def place(p: Mapping[str, Any]) -> tuple[float, float]:
        return left + (p["kib"] / 1024 - x0) / (x1 - x0) * wide, bottom - (p["ms"] - y0) / (y1 - y0) * high

    yield f'<text class="strong" x="{left:.0f}" y="{HEAD - 12}">{escape(title)}</text>'
    yield f'<rect class="lane" x="{left:.1f}" y="{HEAD}" width="{wide:.1f}" height="{high}"/>'
    for i in range(round((x1 - x0) / x_step) + 1):
        x = left + i * x_step / (x1 - x0) * wide
        unit = " MiB" if not i else ""
        yield f'<path class="line" d="M{x:.1f} {HEAD}V{bottom}"/>'
        yield f'<text class="middle" x="{x:.1f}" y="{bottom + 17}">{x0 + i * x_step:g}{unit}</text>'
    for i in range(round((y1 - y0) / y_step) + 1):
        y = bottom - i * y_step / (y1 - y0) * high
        unit = " ms" if not i else ""
        yield f'<path class="line" d="M{left:.1f} {y:.1f}h{wide:.1f}"/>'
        yield f'<text class="end" x="{left - 6:.1f}" y="{y + 4:.1f}">{y0 + i * y_step:g}{unit}</text>'
    x, y = place(points[0])
    path = f"M{x:.1f} {HEAD}V{y:.1f}"
    for point in points[1:]:
        x, y = place(point)
        path += f"H{x:.1f}V{y:.1f}"
    yield f'<path class="front" d="{path}H{left + wide:.1f}"/>'
    for point in points:
        x, y = place(point)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[point["knobs"]["mode"]]}"/>'
    x, y = place(front["ships"])
    yield f'<circle class="ships" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """The first mark of an axis, the last one, and the distance between marks."""
    least, most = min(values), max(values)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (most - least) / s <= 8 or s == 100)
    first, last = floor(least / step + 1e-9), ceil(most / step - 1e-9)
    return first * step, (last if last > first else first + 1) * step, step


def picture() -> str:
    """Return the picture of the fronts in docs/fronts.json, as the text of an SVG file."""
    return draw(json.loads(KEPT.read_text(encoding="utf-8")))


def main(arguments: Sequence[str]) -> None:
    """Write the picture. arguments: TITLE=FILE for each model, where `rsn tune --json` wrote the file; docs/fronts.json
    is then made of them. Without arguments docs/fronts.json is drawn as it is. Raises `SystemExit` as `kept`."""
    fronts = {}
    for argument in arguments:
        title, _, path = argument.rpartition("=")
        fronts[title] = kept(json.loads(Path(path).read_text(encoding="utf-8")))
    if fronts:
        KEPT.write_text(json.dumps(fronts, indent=1) + "\n", encoding="utf-8")
    (DOCS / "pictures" / NAME).write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
