"""How long it takes to model the time of a program: CPU time without data, compiled and in Python, in one run.

    python benchmarks/timing.py [--runs 5] [--skip-python] [--json]

The program is 24 layers of BERT-Large at B = 8, L = 384 on the base overlay, and one of its encoders. "first" is a new
process that decodes an image, makes the traces and runs them; numba's import and the loading of its cached code count,
the modules that the process imports at its start do not. "again" is another run with other rates; "why" is a run that
records every step and computes the critical path. "python" is the executor in Python, which defines the result.
Latencies must be exactly equal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from rsn.assembler import container
from rsn.base.durations import duration
from rsn.benchmarks.measuring import command_line, cpu, timed_cpu
from rsn.cli.published.networks import encoder
from rsn.hw.sim.machine import simulate, summary
from rsn.isa.image import decode_image
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlays.xnn import XNN_BASE
from rsn.isa.program import Program
from rsn.isa.statistics import count
from rsn.isa.verify import smallest_depth
from rsn.machine.executor import ProcessNetwork
from rsn.machine.jit import available
from rsn.machine.plan import TimedWorkload
from rsn.scheduler.lower import lower
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER

FIRST_GOAL = 2.0
"""CPU seconds that the first evaluation of the 24 layers may take."""
AGAIN_GOAL = 0.1
"""CPU seconds that another evaluation with other rates may take."""

FIRST = """
import sys, time
from rsn.assembler import container
from rsn.machine.plan import TimedWorkload
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.image import decode_image
program = container.read(sys.argv[1])
image = program.image
before = time.process_time()
packets = decode_image(image, program.overlay)
latency = TimedWorkload(program.overlay, InstructionPath(program.overlay, packets, program.preloaded)).run().latency
print(time.process_time() - before, latency.hex())
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark. arguments: those of the command line by default."""
    parser = command_line(__doc__, runs=5, json=True)
    parser.add_argument("--skip-python", action="store_true", help="leave out the Python path (about 20 s)")
    options = parser.parse_args(arguments)
    if not available():
        parser.error("numba is not installed: pip install numba")
    rows = [measure(name, n, options.runs, not options.skip_python) for name, n in (("encoder", 1), ("24 layers", 24))]
    click.echo(json.dumps(rows) if options.json else "\n\n".join(report(r) for r in rows))


def measure(name: str, layers: int, runs: int, python: bool) -> dict[str, Any]:
    """Return the CPU seconds of each task on a program of `layers` layers of BERT-Large, by name of the task, and
    counts. name: of the program. runs: of each measurement; the fastest counts. python: the executor in Python, too."""
    kernels = lower(encoder(8, 384, layers), XNN_BASE, PAPER).kernels
    simulate(pack(kernels))  # loads the engine, and caches its code for the child process
    packing, program = timed_cpu(lambda: pack(kernels))
    decoding, packets = timed_cpu(lambda: decode_image(program.image, XNN_BASE))
    tracing, plan = timed_cpu(lambda: TimedWorkload(XNN_BASE, InstructionPath(XNN_BASE, packets, program.preloaded)))
    other = XNN_BASE.with_rates(ddr_read_gbs=42, ddr_write_gbs=47)
    latency = plan.run().latency
    result: dict[str, Any] = {
        "name": name,
        "uops": count(program)["uops"]["total"],
        "first": first(program, latency, runs),
        "decode": decoding,
        "trace": tracing,
        "again": best(runs, lambda: plan.run(other)),
        "why": best(runs, lambda: summary(plan.run(other, record=True), other, 0)),
        "depth": best(runs, lambda: smallest_depth(program)),
        "pack": packing,
        "latency_s": latency,
    }
    result["firings"] = len(plan.run(record=True).events)
    if python:
        net = ProcessNetwork(XNN_BASE, InstructionPath(XNN_BASE, packets, program.preloaded))
        result["python"], defined = timed_cpu(net.run)
        assert defined == latency, f"{defined!r} is not {latency!r}"
    return result


def best(runs: int, task: Callable[[], Any]) -> float:
    """Call `task` `runs` times, at least once; return the CPU seconds of the fastest call."""
    return min(cpu(task) for _ in range(runs))


def first(program: Program, latency: float, runs: int) -> float:
    """Return the CPU seconds of the first evaluation in a new process, the fastest of `runs`. latency: the result that
    it must have, in seconds; `AssertionError` for another one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.bin"
        container.write(program, file)
        seconds = []
        for _ in range(runs):
            command = [sys.executable, "-c", FIRST, str(file)]
            taken, found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            assert float.fromhex(found) == latency
            seconds.append(float(taken))
    return min(seconds)


def report(result: dict[str, Any]) -> str:
    """Return the result of `measure` as a table, lines of text."""
    rows = [
        ("first evaluation, new process", "first", f"   (goal for 24 layers: {FIRST_GOAL:g})"),
        ("  decode the image", "decode", ""),
        ("  make the traces", "trace", ""),
        ("again, other rates", "again", f"   (goal for 24 layers: {AGAIN_GOAL:g})"),
        ("again, with the critical path", "why", ""),
        ("smallest FIFO depth", "depth", ""),
        ("pack the kernels", "pack", ""),
        ("Python path, one run", "python", ""),
    ]
    uops, firings = result["uops"], result["firings"]
    lines = [
        f"{result['name']}: {uops:,} uOPs, {firings:,} firings, modelled latency {duration(result['latency_s'])}",
        f"{'CPU time':<34}{'seconds':>9}{'ns/firing':>11}{'Python is':>12}",
    ]
    for name, key, goal in rows:
        if key in result:
            ratio = f"{result['python'] / result[key]:10.1f} x" if "python" in result else ""
            lines.append(f"{name:<34}{result[key]:9.4f}{result[key] / firings * 1e9:11.1f}{ratio:>12}{goal}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
