"""`rsn diff`: shows where two programs differ, unit by unit."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from ..assembler import container
from ..isa.overlays import find
from ..isa.program import Program
from ..isa.program_diff import Comparison, diff_programs
from ..streams import machines as machines  # so that files of its machines are read
from .raw import OVERLAY

_path = click.Path(dir_okay=False, path_type=Path)


@click.command(name="diff")
@click.argument("first", type=_path)
@click.argument("second", type=_path)
@click.option("--raw", is_flag=True, help="both are bare wire images")
@click.option("--overlay", default=OVERLAY, show_default=True, help="with --raw: the overlay of the images")
@click.option("--most", default=20, show_default=True, type=click.IntRange(1), help="differences to show")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def diff_command(first: Path, second: Path, raw: bool, overlay: str, most: int, as_json: bool) -> None:
    """Show where the programs FIRST and SECOND (.bin) differ.

    That is: the uOPs of each unit, op lists, buffers, parameters.

    Exits with 0 if all units run the same uOPs, however they are packed, else with 1.
    """
    programs = [container.read_raw(p, find(overlay)) if raw else container.read(p) for p in (first, second)]
    result = diff_programs(*programs)
    if as_json:
        click.echo(json.dumps(_facts(programs, result, most)))
    else:
        _show(programs, result, most)
    if not result.same:
        raise SystemExit(1)


def _facts(programs: list[Program], result: Comparison, most: int) -> dict[str, object]:
    return {
        "same": result.same,
        "identical": result.identical,
        "bytes": [4 * len(p.image) for p in programs],
        "packets": [len(p.packets) for p in programs],
        "differences": [asdict(d) for d in result.differences[:most]],
        "more": max(0, len(result.differences) - most),
    }


def _show(programs: list[Program], result: Comparison, most: int) -> None:
    if result.identical:
        click.echo("the same image")
        return
    if result.same:
        (a, b), (pa, pb) = ([4 * len(p.image) for p in programs], [len(p.packets) for p in programs])
        click.echo(f"same kernels, other packing: {a} vs {b} bytes, {pa} vs {pb} packets")
        return
    for d in result.differences[:most]:
        click.echo(str(d))
    if len(result.differences) > most:
        click.echo(f"... and {len(result.differences) - most} more differences (--most)")
