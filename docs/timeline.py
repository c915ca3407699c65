"""The pictures of the documentation: what each unit of a machine did during a run, as the simulator says.

python docs/timeline.py                           # draws docs/pictures anew
python docs/timeline.py PROGRAM.bin PICTURE.svg   # of a program of yours
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rsn.assembler import container
from rsn.base.durations import unit_of
from rsn.docs import front, scaling
from rsn.hw.sim.explain import SegmentTime, explain
from rsn.hw.sim.machine import Machine, causes, launch_seconds
from rsn.hw.sim.scene import covered
from rsn.hw.sim.timeline import Timeline
from rsn.isa.program import Program

Floats = npt.NDArray[np.float64]

DOCS = Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"

WIDTH, LEFT, RIGHT, HEAD = 900, 66, 14, 48
LANE, GAP, COLUMN = 15, 4, 2
LEAST = 2
"""Columns of a lane that a cause has to fill to be shown."""
COLOURS = {
    "DDR load": "#3b7dd8",
    "DDR store": "#e08a1e",
    "LPDDR": "#18a0a0",
    "MME compute": "#57a639",
    "compute": "#57a639",
    "post-op": "#b0529f",
    "on-chip transfer": "#8c9aae",
    "off-chip set-up": "#d1453b",
    "MME set-up": "#7d6b3d",
    "instruction issue": "#a0a000",
    "launch": "#777777",
}
OTHERS = ("#57a639", "#b0529f", "#18a0a0", "#7d6b3d")
STYLE = """
text { font: 12px sans-serif; fill: #24292f } .paper { fill: #ffffff } .line { stroke: #c4cbd3 } .lane { fill: #eff2f5 }
.end { text-anchor: end } .middle { text-anchor: middle } .strong { font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #d1d7de } .paper { fill: #0d1117 } .line { stroke: #3d444d } .lane { fill: #1a2028 }
}
"""


def draw(program: Program, title: str) -> str:
    """Return a picture of a run, as the text of an SVG file: a lane per unit that did something, filled by the share of
    the time in which it was busy, and the critical path below. title: the first line of the picture."""
    machine = Machine(program)
    timeline = Timeline(machine)
    launch, latency = launch_seconds(program.overlay), timeline.seconds + launch_seconds(program.overlay)
    columns = (WIDTH - LEFT - RIGHT) // COLUMN
    edges = np.linspace(0.0, latency, columns + 1)
    kinds = timeline.causes
    lanes = list(_units(timeline, launch, edges))
    chain, of_rate = machine.timing.critical_path, np.array([kinds.index(c) for c in causes(program.overlay)])
    path = _shares(chain.start + launch, chain.end + launch, of_rate[chain.rate], len(kinds), edges)
    if launch:
        path[kinds.index(program.overlay.rates["launch_us"].cause)] += covered(
            np.zeros(1), np.full(1, launch), edges
        ) / (edges[1] - edges[0])
    lanes.append(("critical", path))

    segments = explain(machine).segments
    segments = segments if len(segments) > 1 else []
    at = head = HEAD if segments else HEAD - 18
    body: list[str] = []
    used = [i for i in range(len(kinds)) if sum(rows[i].sum() for _, rows in lanes) >= LEAST]
    colours = dict(zip(used, _colours([kinds[i] for i in used]), strict=True))
    for name, rows in lanes:
        if name == "critical":
            at += 6
        body.append(f'<rect class="lane" x="{LEFT}" y="{at}" width="{columns * COLUMN}" height="{LANE}"/>')
        body.append(f'<text class="end" x="{LEFT - 6}" y="{at + LANE - 3}">{escape(name)}</text>')
        stacked = np.minimum(np.cumsum(rows, axis=0), 1.0)
        body += [_area(stacked[i], at, colours[i]) for i in reversed(used) if rows[i].any()]  # the lower in front
        at += LANE + GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {at + 24}" width="{WIDTH}" height="{at + 24}">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{at + 24}"/>',
        *_legend([(kinds[i], colour) for i, colour in colours.items()]),
        *_segments(segments, latency, head, at - GAP),
        *body,
        *_axis(latency, at - GAP),
        "</svg>",
    ]
    return "\n".join(out) + "\n"


MANY = 40
"""Units from which on a picture has one lane for all of an FU type, with their mean."""


def _units(timeline: Timeline, launch: float, edges: Floats) -> Iterator[tuple[str, Floats]]:
    """Name, and the share of each cause in each column, of every unit that did something; of machines with many units,
    of every FU type."""
    units = timeline.machine.program.overlay.by_kind
    if sum(map(len, units.values())) <= MANY:
        yield from _each(timeline, launch, edges)
        return
    found = dict(_each(timeline, launch, edges))
    for kind, of_kind in units.items():
        busy = [found[u.name] for u in of_kind if u.name in found]
        if busy:
            yield kind, sum(busy[1:], busy[0]) / len(of_kind)


def _each(timeline: Timeline, launch: float, edges: Floats) -> Iterator[tuple[str, Floats]]:
    """Name, and the share of each cause in each column, of every unit that did something."""
    names = timeline.machine.plan.processes
    for unit in timeline.machine.program.overlay.units:
        rows = (timeline.unit == names.index(unit.name)) & ~timeline.fetches & (timeline.took > 0)
        if rows.any():
            start = timeline.start[rows] + launch
            end = start + timeline.took[rows]
            yield unit.name, _shares(start, end, timeline.cause[rows], len(timeline.causes), edges)


def _shares(start: Floats, end: Floats, cause: npt.NDArray[np.int64], kinds: int, edges: Floats) -> Floats:
    out = np.zeros((kinds, len(edges) - 1))
    for kind in np.unique(cause).tolist():
        out[kind] = covered(start[cause == kind], end[cause == kind], edges) / (edges[1] - edges[0])
    return out


def _colours(headings: list[str]) -> list[str]:
    """A colour each; what only some overlay of its own knows takes the next one that is left."""
    taken = {COLOURS[h] for h in headings if h in COLOURS}
    others = iter([c for c in OTHERS if c not in taken] * len(headings))
    return [COLOURS.get(h) or next(others, "#777777") for h in headings]


def _area(height: Floats, at: int, colour: str) -> str:
    """From the floor of a lane to a height, column by column."""
    level = np.rint(height * LANE).astype(int)
    change = np.flatnonzero(np.diff(level, prepend=-1, append=-1))
    runs = zip(level[change[:-1]].tolist(), np.diff(change).tolist(), strict=True)
    path, before = f"M{LEFT} {at + LANE}", 0
    for now, columns in runs:
        path += f"v{before - now}h{COLUMN * columns}" if now != before else f"h{COLUMN * columns}"
        before = now
    return f'<path fill="{colour}" d="{path}v{before}z"/>'


def _legend(entries: list[tuple[str, str]]) -> Iterator[str]:
    at = LEFT
    for name, colour in entries:
        yield f'<rect x="{at}" y="6" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{at + 14}" y="15">{escape(name)}</text>'
        at += 28 + round(6.3 * len(name) + 3 * sum(map(str.isupper, name)))


def _segments(found: list[SegmentTime], latency: float, head: int, bottom: int) -> Iterator[str]:
    """Where each segment has stored its last, and its name where there is room for it."""
    scale = (WIDTH - LEFT - RIGHT) // COLUMN * COLUMN / latency
    for segment in found:
        start, end = LEFT + segment.start * scale, LEFT + segment.end * scale
        name = segment.name.removeprefix("layers_0_").removeprefix("attn_").removeprefix("ffn_")
        name = {"attn": "attention"}.get(name, name)
        if end - start > 6.8 * len(name):
            yield f'<text class="middle strong" x="{(start + end) / 2:.0f}" y="{head - 8}">{escape(name)}</text>'
        yield f'<path class="line" d="M{end:.0f} {head - 18}V{bottom}"/>'


def _axis(latency: float, at: int) -> Iterator[str]:
    unit, factor = unit_of(latency)
    unit = unit.replace("u", "µ")
    span = latency * factor
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if span / s <= 12 or s == 200)
    for i in range(int(span / step) + 1):
        x = LEFT + i * step / span * ((WIDTH - LEFT - RIGHT) // COLUMN * COLUMN)
        label = f"{i * step:g}" + (f" {unit}" if not i else "")
        yield f'<path class="line" d="M{x:.1f} {at}v5"/><text class="middle" x="{x:.1f}" y="{at + 17}">{label}</text>'


def pictures() -> dict[str, str]:
    """Return what docs/pictures holds: the text of each SVG file by its name. Raises `SystemExit`, with the command's
    output, if a command of rsn that makes a program fails."""
    from click.testing import CliRunner

    from rsn.cli.main import main

    def made(*command: str) -> None:
        result = CliRunner().invoke(main, command)
        if result.exit_code:
            raise SystemExit(f"rsn {' '.join(command)}: {result.output}")

    out = {}
    with tempfile.TemporaryDirectory() as folder:
        text, binary = f"{folder}/p.rsn", f"{folder}/p.bin"
        for overlay, picture in (("xnn-base", "bert"), ("xnn2", "bert_xnn2"), ("xnn8", "bert_xnn8")):
            spec = ("bert-large-encoder", "--batch", "6", "--seq", "512", "--overlay", overlay)
            made("compile", *spec, "-o", text)
            made("asm", text, "-o", binary)
            title = f"One encoder of BERT-Large, 6 sequences of 512 rows, on {overlay}, modelled"
            out[f"{picture}.svg"] = draw(container.read(binary), title)
        for name in ("fig6_app2", "gemm768"):
            made("asm", str(DOCS.parent / "programs" / f"{name}.rsn"), "-o", binary)
            out[f"{name}.svg"] = draw(container.read(binary), f"programs/{name}.rsn, modelled")
    out[front.NAME] = front.picture()
    out[scaling.NAME] = scaling.picture()
    return out


def main(arguments: list[str]) -> None:
    """Write pictures. arguments: empty, to write all files of docs/pictures; or the path of a program (.bin) and the
    path of the SVG file to write for it. Raises `SystemExit` as `pictures`, `ValueError` for another number."""
    if arguments:
        program, picture = arguments
        Path(picture).write_text(draw(container.read(program), program), encoding="utf-8")
        return
    PICTURES.mkdir(exist_ok=True)
    for name, content in pictures().items():
        (PICTURES / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
