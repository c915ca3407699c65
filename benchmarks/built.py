"""Times of the overlay xnn2 as `isa/overlays/xnn2/resources.py` counts it, beside the machine that is simulated.

The simulator moves whole tiles between units, and each stream holds one at least. Here a tile moves in 16 parts, and a
stream holds two beats (here one part) where the count has no FIFO for it.

Run it as: python benchmarks/built.py [--only NAME ...] [--json]
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import click

from rsn.benchmarks.growth import CASES
from rsn.hw.sim.machine import Machine
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn.tiles import BEATS, BLOCK_TOKEN, BLOCK_WORDS, TILE_TOKEN
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.overlays.xnn2.resources import depth_of
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.steps import Burst, Par
from rsn.machine.unit import Unit
from rsn.rsnlib.pipeline import Pipeline

PARTS = 16
"""Of a tile."""
WORDS = BLOCK_WORDS // 8
"""Of a part of a block."""


def built(overlay: Overlay) -> Overlay:
    """The overlay with the streams that its resources are counted for. For runs without data."""
    tiles = {s.name for s in overlay.streams if s.token is TILE_TOKEN}
    blocks = {s.name for s in overlay.streams if s.token is BLOCK_TOKEN}

    def stream(s: Stream) -> Stream:
        _, depth = depth_of(overlay, s)
        mme = "MME" in (overlay.by_unit[s.src].kind, overlay.by_unit[s.dst].kind)
        if s.token is TILE_TOKEN:
            parts = s.depth * PARTS if mme else max(depth * PARTS // BEATS, 1)
            return dataclasses.replace(s, depth=parts, token=dataclasses.replace(TILE_TOKEN, words=PARTS))
        return dataclasses.replace(s, depth=max(depth, WORDS)) if s.token is BLOCK_TOKEN else s

    def split(step: Any) -> Any:
        if isinstance(step, Par):
            return Par(*(steps(lane) for lane in step.lanes))
        ends = {"gets": step.gets, "puts": step.puts}
        names = {c.name for c in (*step.gets, *step.puts)}
        if names & tiles:
            if step.needs_whole_token:
                return Burst(step.times, step.rate, step.amount, words=PARTS, needs_whole_token=True, **ends)
            return Burst(step.times * PARTS, step.rate, step.amount / PARTS, **ends)
        if names & blocks and step.words % WORDS == 0:
            parts = step.words // WORDS
            return Burst(step.times * parts, step.rate, step.amount / parts, words=WORDS, **ends)
        return step

    def steps(of: Iterator[Any]) -> Any:
        for step in of:
            yield split(step)

    made: dict[type[Unit], type[Unit]] = {}

    def unit(spec: UnitSpec) -> UnitSpec:
        base = spec.behaviour

        def kernel(self: Any, uop: Any) -> Any:
            return steps(base.kernel(self, uop))

        made.setdefault(base, type(f"Built{base.__name__}", (base,), {"kernel": kernel}))
        return dataclasses.replace(spec, behaviour=made[base])

    streams, units = tuple(map(stream, overlay.streams)), tuple(map(unit, overlay.units))
    return dataclasses.replace(overlay, streams=streams, units=units)


def measured(name: str) -> dict[str, Any]:
    """Milliseconds of a case: simulated, and as it would be built."""
    case = next(c for c in CASES if c.name == name)
    module, example = case.make()
    pipeline = Pipeline.named(XNN2.name)
    program = pipeline.build(pipeline.trace(module, example).network).program
    times = [
        Machine(dataclasses.replace(program, overlay=overlay)).run().latency_s * 1e3 for overlay in (XNN2, built(XNN2))
    ]
    return {"name": name, "simulated": times[0], "built": times[1]}


@click.command()
@click.option("--only", multiple=True, help="names of cases, or pieces of them")
@click.option("--json", "as_json", is_flag=True, help="one JSON object a case")
def main(only: tuple[str, ...], as_json: bool) -> None:
    """Print the times of both."""
    for case in CASES:
        if only and not any(piece in case.name for piece in only):
            continue
        row = measured(case.name)
        line = f"{row['name']:<26}{row['simulated']:>10.3f} ms{row['built']:>10.3f} ms"
        click.echo(json.dumps(row) if as_json else f"{line}{row['built'] / row['simulated'] - 1:>+8.1%}")


if __name__ == "__main__":
    main()
