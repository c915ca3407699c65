"""CPU seconds of whole commands, start-up included, on 24 layers of BERT-Large at B = 8, L = 384, beside their targets.

    python benchmarks/commands.py [--runs 3] [--json] [--skip-compile]

Programs of 1, 4 and 24 layers are made first, without weights, to show whether the time to print a program grows with
its length. The median of the runs counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click

from rsn.assembler import container
from rsn.assembler.printer import show
from rsn.benchmarks.measuring import RSN, child, command_line
from rsn.cli.published.networks import encoder
from rsn.isa.overlays.xnn import XNN
from rsn.scheduler.build import build
from rsn.scheduler.schedule import PAPER


class MeasuredCommand(NamedTuple):
    """A command to measure. arguments: of `rsn`. target: CPU seconds, None for a row that is only for comparison."""

    title: str
    arguments: list[str]
    target: float | None


def rows(folder: Path, compiles: bool) -> list[MeasuredCommand]:
    """Return the commands to measure, and write the files that they read. folder: for files. compiles: with `rsn
    compile`, which needs PyTorch."""
    out = folder / "out"
    made: list[MeasuredCommand] = []
    if compiles:
        command = ["compile", "bert-large", "--batch", "8", "--seq", "384", "-o", str(out.with_suffix(".rsn"))]
        made.append(MeasuredCommand("rsn compile bert-large, B = 8, L = 384", command, 10.0))
    for layers in (1, 4, 24):
        program = build(encoder(8, 384, layers), XNN, PAPER).program
        binary, raw, text = (folder / f"{layers}.{kind}" for kind in ("bin", "raw", "rsn"))
        container.write(program, binary)
        container.write_raw(program, raw)
        text.write_text(show(program), encoding="utf-8")
        target = {24: 3.0}.get(layers)
        many = f"{layers} layer{'s' * (layers > 1)}"
        made.append(MeasuredCommand(f"rsn dis, {many}", ["dis", str(binary), "-o", str(out)], target))
        made.append(
            MeasuredCommand(
                f"rsn dis --raw, {many}", ["dis", str(raw), "--raw", "--overlay", "xnn", "-o", str(out)], None
            )
        )
    made += [
        MeasuredCommand("rsn asm, 24 layers", ["asm", str(text), "-o", str(out)], 1.0),
        MeasuredCommand("rsn run --timing-only, 24 layers", ["run", str(binary), "--timing-only"], 1.5),
        MeasuredCommand("rsn check, 24 layers", ["check", str(binary)], 1.2),
        MeasuredCommand("rsn --help", ["--help"], 0.2),
    ]
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark. arguments: those of the command line by default."""
    parser = command_line(__doc__, runs=3, json=True)
    parser.add_argument("--skip-compile", action="store_true", help="leave out rsn compile, which needs torch")
    options = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        if not options.json:
            click.echo(f"{'':42}{'CPU s':>8}{'target':>8}")
        for row in rows(Path(folder), not options.skip_compile):
            child([*RSN, *row.arguments])  # not measured: it fills caches, such as numba's
            seconds = statistics.median(child([*RSN, *row.arguments]) for _ in range(options.runs))
            found.append({"command": row.title, "cpu_s": seconds, "target_s": row.target})
            if not options.json:
                target = "" if row.target is None else f"{row.target:8.1f}"
                click.echo(f"{row.title:42}{seconds:8.2f}{target}")
    if options.json:
        click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
