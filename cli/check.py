"""`rsn check`: whether the machine would load a program, whether the program would end, and whether it is likely
correct."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..assembler import container
from ..base.finding import Finding, gather
from ..isa.overlays import find
from ..isa.program import Program
from ..isa.verify import check, dry_plan, dry_run, smallest_depth
from .progress import TIMING, working
from .raw import raw_options, read_raw_image, refuse_contradictions, with_memories

_size = click.IntRange(0)


@click.command(name="check")
@click.argument("program", type=click.Path(dir_okay=False, path_type=Path))
@raw_options()
@click.option("--ddr-bytes", type=_size, help="with --raw: size of the DDR buffer")
@click.option("--lpddr-bytes", type=_size, help="with --raw: size of the LPDDR buffer")
@click.option("--most", default=10, show_default=True, type=click.IntRange(1), help="findings to show of each code")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def check_command(program: Path, raw: bool, most: int, as_json: bool, **options: Any) -> None:
    """Check PROGRAM (.bin): streams, memory, buffers, terminators, and deadlock at the overlay's FIFO depths.

    A bare image (--raw) has no buffers with names and roles: checks that need them are left out; without op lists
    (--mme), also deadlock and the streams of the MMEs.
    """
    refuse_contradictions(raw)
    loaded, findings, runnable = _raw(program, options) if raw else _container(program)
    depth = None
    if runnable and all(f.warning for f in findings):
        with working(TIMING):
            plan = dry_plan(loaded)
            findings += dry_run(loaded, plan)
            if all(f.warning for f in findings):
                depth = smallest_depth(loaded, plan)
    findings = gather(findings, most)
    ok = all(f.warning for f in findings)
    if as_json:
        click.echo(json.dumps({"ok": ok, "findings": [_row(f) for f in findings], "smallest_fifo_depth": depth}))
    else:
        _show(findings)
        if ok:
            click.echo(f"{program}: ok on {loaded.overlay.name}, {_depth(loaded, depth)}")
    if not ok:
        raise SystemExit(1)


def _depth(program: Program, depth: int | None) -> str:
    if depth is None:
        return "deadlock not decided (needs the op lists, --mme)"
    return f"runs at mOP FIFO depth {program.overlay.mop_fifo_depth} (and down to {depth})"


def _row(f: Finding) -> dict[str, Any]:
    row = {"code": f.code, "message": f.message, "where": f.where, "warning": f.warning}
    return row | {"help": f.help, "times": f.times}


def _show(findings: Sequence[Finding]) -> None:
    for f in findings:
        click.echo(str(f))
        if f.help:
            click.echo(f"  help: {f.help}")


def _container(path: Path) -> tuple[Program, list[Finding], bool]:
    loaded = container.read(path)
    return loaded, check(loaded), True


def _raw(path: Path, options: dict[str, Any]) -> tuple[Program, list[Finding], bool]:
    """Read a bare image, and check the packets that can be decoded. Returns the program, the findings, and whether it
    is complete enough for a run without data."""
    read = read_raw_image(path, find(options["overlay"]), options["mme"])
    given = {bank: options.get(f"{bank}_bytes") for bank in read.program.overlay.banks}
    program = with_memories(read.program, {bank: size for bank, size in given.items() if size is not None})
    findings = read.findings
    if read.complete:
        findings = findings + check(program, roles=False, op_lists=read.op_lists)
    return program, findings, read.op_lists and read.complete
