"""Check what HLS would make of sources, without AMD's tools.

python -m rsn.hw.versal.hlscheck [xnn|xnn2|FOLDER]... [--loops] [--size NAME=NUMBER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ....base.errors import RsnError
from ..csim.build import MACHINES
from ..sources import sources
from .checker import check_folder, check_machine


@click.command()
@click.argument("what", nargs=-1)
@click.option("--loops", is_flag=True, help="list all pipelined loops, with what was derived of them")
@click.option("--size", "sizes", multiple=True, metavar="NAME=NUMBER", help="of folders: a size that each run gives")
def main(what: tuple[str, ...], loops: bool, sizes: tuple[str, ...]) -> None:
    """Check machines, by the names of their overlays, or folders that `rsn hls` has written.

    [default of WHAT: all machines]
    """
    wrong, values = 0, dict[str, int]()
    for text in sizes:
        size, _, number = text.partition("=")
        if not number.isdecimal():
            raise click.UsageError(f"--size {text}: NAME=NUMBER is expected, such as rows=4")
        values[size] = int(number)
    for name in what or tuple(MACHINES):
        try:
            report = check_machine(name, sources()) if name in MACHINES else check_folder(Path(name), values)
        except (RsnError, OSError) as e:
            raise click.ClickException(str(e)) from e
        for finding in report.findings:
            click.echo(str(finding))
        for finding, reason in report.allowed:
            click.echo(f"allowed: {finding.line}: {finding.rule}: {reason}")
        for loop in report.loops if loops else ():
            trips = "any number of" if loop.trips is None else loop.trips
            needs = f"II={loop.stated}, needs {'an inner loop unrolled' if loop.needed is None else loop.needed}"
            products = f", {loop.multiplications} multiplications" if loop.multiplications else ""
            click.echo(f"{loop.line}: {loop.function}: {needs}; {trips} iterations, {loop.depth} deep{products}")
        for process, counted in report.processes if loops else ():
            more = f", and loops without a constant number of iterations: {counted.unknown}" if counted.unknown else ""
            click.echo(f"{process}: {counted.cycles} cycles{more}")
        click.echo(f"{name}: {len(report.loops)} pipelined loops, {len(report.findings)} findings")
        wrong += len(report.findings)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
