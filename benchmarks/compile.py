"""CPU time from a network to a container: BERT-Large, 24 layers, L = 384, without weights.

Without torch.export, which comes before, and without the work on weights. The first figure includes loading the
compiled engine. For comparison: the StreamTensor paper states 26.8 to 63.4 s for a model (its Fig. 10c).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from rsn.assembler import container
from rsn.benchmarks.measuring import cpu
from rsn.cli.published.networks import encoder
from rsn.isa.overlays.xnn import XNN_BASE
from rsn.scheduler.best import Best
from rsn.scheduler.build import build
from rsn.scheduler.graph import LayerGraph
from rsn.scheduler.schedule import PAPER, Schedule


def compiled(network: LayerGraph, schedule: Schedule | Best, target: Path) -> None:
    """Compile a network for `XNN_BASE`, and write its container. target: path of that file. Raises as `build`."""
    container.write(build(network, XNN_BASE, schedule).program, target)


def main() -> None:
    """Print the CPU seconds of compiling 24 layers of BERT-Large, by batch and schedule."""
    with TemporaryDirectory() as folder:
        target = Path(folder) / "p.bin"
        for batch in (1, 2, 4, 8):
            network = encoder(batch, 384, 24)
            for schedule, what in (
                (PAPER, "paper"),
                (Best(5.0, 0, Path(folder)), "best, searching 5 s"),
                (Best(5.0, 0, Path(folder)), "best, found before"),
            ):
                seconds = cpu(partial(compiled, network, schedule, target))
                click.echo(f"B={batch}, {what}: {seconds:.2f} s")


if __name__ == "__main__":
    main()
