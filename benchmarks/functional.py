"""The simulator with data against PyTorch's eager forward: the BERT-Large encoder at B = 6, L = 512.

Both use one thread, one after the other in the same process; times are CPU seconds. The first run of a program also
models its time; later runs with the same run-time parameters do not. Memory is the peak of a process that loads the
program and its weights and runs it once, minus the program's buffers (activations and weights).

Run it as: python benchmarks/functional.py [--runs 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from rsn.assembler import container
from rsn.benchmarks.measuring import command_line, cpu
from rsn.host.runner import Runner
from rsn.host.tensors import load_tensors, save_tensors

BATCH, SEQ = 6, 512


def prepare(folder: Path) -> Callable[[object], object]:
    """Compile an encoder layer, write program, weights and input to `folder` (p.bin, w.safetensors, x.safetensors), and
    return the PyTorch module."""
    from rsn.rsnlib.models import load_spec
    from rsn.rsnlib.pipeline import Pipeline

    model, example = load_spec("bert-large-encoder", batch=BATCH, seq=SEQ, seed=0, base=True)
    pipeline = Pipeline.named("xnn-base")
    built = pipeline.build(pipeline.trace(model, example).network)
    container.write(built.program, folder / "p.bin")
    save_tensors(folder / "w.safetensors", built.weights, packed=True)
    x = np.random.default_rng(0).standard_normal((BATCH, SEQ, 1024)).astype(np.float32)
    save_tensors(folder / "x.safetensors", {next(b.name for b in built.program.buffers): x})
    forward: Callable[[object], object] = model
    return forward


def once(folder: Path) -> None:
    """Run what `prepare` wrote to `folder`, and print the memory of this process and of the buffers in MB, as JSON. The
    benchmark starts it in a process of its own."""
    with Runner(folder / "p.bin", weights=folder / "w.safetensors") as runner:
        runner.run(load_tensors(folder / "x.safetensors"))
        buffers = sum(4 * b.size for b in runner.program.buffers)
    # not ru_maxrss: a child inherits its parent's
    peak = 1024 * next(int(x.split()[1]) for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    click.echo(json.dumps({"peak_mb": peak / 1e6, "buffers_mb": buffers / 1e6}))


def main() -> None:
    """Print time and memory of a functional run, beside PyTorch."""
    parser = command_line(__doc__, runs=5, json=True)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        once(options.once)
        return
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = prepare(folder)
        command = [sys.executable, __file__, "--once", name]
        memory = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        inputs = load_tensors(folder / "x.safetensors")
        (x,) = (torch.from_numpy(t) for t in inputs.values())
        with Runner(folder / "p.bin", weights=folder / "w.safetensors") as runner, torch.no_grad():
            first = cpu(lambda: runner.run(inputs))
            model(x)  # its first forward allocates
            pairs = [(cpu(lambda: runner.run(inputs)), cpu(lambda: model(x))) for _ in range(options.runs)]
    ours, theirs = (sorted(column) for column in zip(*pairs, strict=True))
    middle = len(pairs) // 2
    result = {
        "first_s": first,
        "again_s": ours[middle],
        "torch_s": theirs[middle],
        "ratio": ours[middle] / theirs[middle],
        "ratio_of_best": ours[0] / theirs[0],
        **memory,
        "beyond_buffers_mb": memory["peak_mb"] - memory["buffers_mb"],
    }
    if options.json:
        click.echo(json.dumps(result))
        return
    click.echo(f"BERT-Large encoder, B={BATCH}, L={SEQ}, one thread, CPU seconds, median of {options.runs}")
    click.echo(f"first run       {result['first_s']:6.2f}")
    click.echo(f"every other run {result['again_s']:6.2f}")
    best = f"best of each {result['ratio_of_best']:.2f}"
    click.echo(f"PyTorch         {result['torch_s']:6.2f}   ratio {result['ratio']:.2f} ({best})")
    click.echo(f"peak memory     {memory['peak_mb']:6.0f} MB, of which buffers {memory['buffers_mb']:.0f} MB")


if __name__ == "__main__":
    main()
