"""The machine's C++ sources, run natively: the BERT-Large encoder at B = 1, L = 512, in wall seconds on this computer.

Beside it the simulator in Python with data, and the largest difference of their results, relative to the largest value.
The goal is 60 s on two cores.

Run it as: python benchmarks/csim.py [--runs 5] [--json]
"""

from __future__ import annotations

import json
import os
import tempfile

import click
import numpy as np

from rsn.benchmarks.measuring import command_line, wall
from rsn.host.runner import Result, Runner
from rsn.hw.versal.csim.build import build as build_machine
from rsn.isa.overlays.xnn.formats import Mme
from rsn.isa.overlays.xnn.mme import flops

BATCH, SEQ = 1, 512


def fresh_build() -> float:
    """Return the seconds of real time that building the machine adds to its first use. Raises `BoardError` if it cannot
    be built."""
    kept = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            return wall(build_machine)
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if kept is not None:
                os.environ["XDG_CACHE_HOME"] = kept


def main() -> None:
    """Run the benchmark."""
    options = command_line(__doc__, runs=5, json=True).parse_args()
    from rsn.rsnlib.models import load_spec
    from rsn.rsnlib.pipeline import Pipeline

    model, example = load_spec("bert-large-encoder", batch=BATCH, seq=SEQ, seed=0, base=True)
    pipeline = Pipeline.named("xnn-base")
    built = pipeline.build(pipeline.trace(model, example).network)
    ops = [op for ops in built.program.preloaded.values() for op in ops]
    work = sum(flops(op) for op in ops if isinstance(op, Mme))
    x = np.random.default_rng(0).standard_normal((BATCH, SEQ, 1024)).astype(np.float32)
    inputs = {next(b.name for b in built.program.buffers): x}
    results: dict[str, Result] = {}

    def timed(board: str) -> list[float]:
        with Runner(built.program, weights=built.weights, board=board) as runner:
            times = [wall(lambda: results.update({board: runner.run(inputs)})) for _ in range(options.runs + 1)]
        return sorted(times[1:])  # the first allocates memory, and on the simulator also models the time

    built_s = fresh_build()
    ours, model_s = timed("csim"), timed("sim")
    (y,), (wanted,) = (results[board].outputs.values() for board in ("csim", "sim"))
    result = {
        "cores": len(os.sched_getaffinity(0)),
        "build_s": built_s,
        "csim_s": ours[len(ours) // 2],
        "csim_slowest_s": ours[-1],
        "sim_s": model_s[len(model_s) // 2],
        "gflop": work / 1e9,
        "apart": float(np.abs(y - wanted).max() / np.abs(wanted).max()),
    }
    if options.json:
        click.echo(json.dumps(result))
        return
    click.echo(
        f"BERT-Large encoder, B={BATCH}, L={SEQ}, {result['gflop']:.1f} GFLOP, {result['cores']} cores, wall seconds"
    )
    slowest = f"median of {options.runs}; slowest {result['csim_slowest_s']:.2f}"
    click.echo(f"C++ machine     {result['csim_s']:6.2f}   ({slowest}; {work / 1e9 / result['csim_s']:.1f} GFLOP/s)")
    click.echo(f"simulator       {result['sim_s']:6.2f}   (results only, one thread)")
    click.echo(f"difference      {result['apart']:.1e} of the largest value")
    click.echo(f"built in        {result['build_s']:6.2f}   once")


if __name__ == "__main__":
    main()
