"""`rsn check`: whether the machine would load a program, whether the program would end, and whether it is likely
correct; of a stream program, whether its tasks and streams fit together."""

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
from ..streams.check import report_on as check_streams
from ..streams.reader import read_file
from .progress import TIMING, working
from .raw import raw_options, read_raw_image, refuse_contradictions, with_memories
from .stream_programs import prove_file, refuse_options, show, show_proof, stream_program

_size = click.IntRange(0)

OF_BINARIES = ("raw", "overlay", "mme", "ddr_bytes", "lpddr_bytes")
"""Options that are not about stream programs."""


@click.command(name="check")
@click.argument("program")
@raw_options()
@click.option("--ddr-bytes", type=_size, help="with --raw: size of the DDR buffer")
@click.option("--lpddr-bytes", type=_size, help="with --raw: size of the LPDDR buffer")
@click.option("--strict", is_flag=True, help="with .py: a value that only some paths read is an error")
@click.option("--for-all", "domain", metavar="SIZES", help="with .py: prove it for all sizes, as 'n >= 1, m >= 2'")
@click.option("--most", default=10, show_default=True, type=click.IntRange(1), help="findings to show of each code")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def check_command(
    program: str, raw: bool, strict: bool, domain: str | None, most: int, as_json: bool, **options: Any
) -> None:
    """Check a program, or a stream program, before it runs.

    Of PROGRAM (.bin): streams, memory, buffers, terminators, and deadlock at the overlay's FIFO depths. Of a stream
    program (FILE.py, FILE.py:REGION): types, ends and counts of streams, branches, and deadlock.

    A bare image (--raw) has no buffers with names and roles: checks that need them are left out; without op lists
    (--mme), also deadlock and the streams of the MMEs.

    A stream program is read, never executed. REGION is one of its functions with @region(), its parameters at their
    defaults; without it, the file itself is checked.

    With --for-all, constants at the top of the file (or names that it does not declare) are sizes: the result is proved
    for all of them, a counterexample, or undecided with the reason. A range such as '2 <= n <= 64' is tried whole.
    """
    named = stream_program(program)
    if named is not None:
        refuse_options(OF_BINARIES, "a program (.bin) or a bare image")
        if domain is not None:
            if not show_proof(prove_file(named, domain, strict), as_json):
                raise SystemExit(1)
            return
        if not show(check_streams(read_file(named.file, named.region), strict), most, as_json):
            raise SystemExit(1)
        return
    refuse_options(("strict", "domain"), "a stream program (.py)")
    _check_binary(Path(program), raw, most, as_json, options)


def _check_binary(program: Path, raw: bool, most: int, as_json: bool, options: dict[str, Any]) -> None:
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
    if not program.overlay.formats:
        return "ends"
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
