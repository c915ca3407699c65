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
from ..isa.verify import check, dry_run, smallest_depth
from ..streams.check import report_on as check_streams
from ..streams.reader import read_file
from .options import (
    BINARIES,
    JSON,
    RAW,
    STREAMS,
    Count,
    File,
    Options,
    option,
    refuse,
    refuse_contradictions,
    with_options,
)
from .progress import TIMING, working
from .raw import BARE, OF_IMAGE, OP_LISTS, read_raw_image, with_memories
from .stream_programs import (
    is_region,
    of_all_sizes,
    prove_file,
    region_of,
    show,
    show_proof,
    stream_program,
    uses_dynamic_streams,
)


class CheckOptions(Options):
    """The options of `rsn check`."""

    raw: bool = BARE
    overlay: str = OF_IMAGE
    mme: Path | None = OP_LISTS
    ddr_bytes: int | None = option("with --raw: size of the DDR buffer", type=click.IntRange(0), of=(RAW, BINARIES))
    lpddr_bytes: int | None = option("with --raw: size of the LPDDR buffer", type=click.IntRange(0), of=(RAW, BINARIES))
    strict: bool = option("with .py: a value that only some paths read is an error", of=STREAMS)
    domain: str | None = option(
        "with .py: prove it for all sizes, as 'n >= 1, m >= 2'", "--for-all", metavar="SIZES", of=STREAMS
    )
    kernels: File | None = option("with .py: how fast library kernels are (.toml)", of=STREAMS)
    most: Count = option("findings to show of each code", default=10)
    as_json: bool = JSON


@click.command(name="check")
@click.argument("program")
@with_options(CheckOptions)
def check_command(program: str, options: CheckOptions) -> None:
    """Check a program, or a stream program, before it runs.

    Of PROGRAM (.bin): streams, memory, buffers, terminators, and deadlock at the overlay's FIFO depths. Of a stream
    program (FILE.py, FILE.py:REGION): types, ends and counts of streams, branches, and deadlock.

    A bare image (--raw) has no buffers with names and roles: checks that need them are left out; without op lists
    (--mme), also deadlock and the streams of the MMEs.

    A stream program is read, never executed. REGION is one of its functions with @region(), its parameters at their
    defaults; without it, the file itself is checked.

    With --for-all, constants at the top of the file (or names that it does not declare) are sizes: the result is proved
    for all of them, a counterexample, or undecided with the reason. A range such as '2 <= n <= 64' is tried whole;
    'n >= 8, n % 8 == 0' are the multiples of 8. Sizes that each run gives (n: Size[64] = 8) are checked with all of
    their values without this option.
    """
    named = stream_program(program)
    if named is None:
        refuse(STREAMS)
        _check_binary(Path(program), options)
        return
    refuse(BINARIES)
    if uses_dynamic_streams(named.file) and not is_region(named):
        raise click.UsageError(
            f"{program}: a program of dynamic streams is checked when it is built: rsn compile {program}"
        )
    if options.domain is not None:
        if options.kernels:
            raise click.UsageError("--kernels: a proof for all sizes has no times")
        ok = show_proof(prove_file(named, options.domain, options.strict), options.as_json)
    else:
        region = region_of(named, options.kernels) if options.kernels else read_file(named.file, named.region)
        report = check_streams(region, options.strict)
        report, proof = of_all_sizes(named, report, options.strict)
        ok = show(report, options.most, options.as_json, proof)
    if not ok:
        raise SystemExit(1)


def _check_binary(program: Path, options: CheckOptions) -> None:
    refuse_contradictions(options.raw)
    if options.raw:
        loaded, findings, runnable = _raw(program, options)
    else:
        loaded = container.read(program)
        findings, runnable = check(loaded), True
    depth = None
    if runnable and all(f.warning for f in findings):
        with working(TIMING):
            findings += dry_run(loaded)
            if all(f.warning for f in findings):
                depth = smallest_depth(loaded)
    findings = gather(findings, options.most)
    ok = all(f.warning for f in findings)
    if options.as_json:
        click.echo(json.dumps({"ok": ok, "findings": [_row(f) for f in findings], "smallest_fifo_depth": depth}))
    else:
        _show(findings)
        if ok:
            undecided = any(f.code == "D04" for f in findings)
            end = "whether it ends is not decided" if undecided else _depth(loaded, depth)
            click.echo(f"{program}: ok on {loaded.overlay.name}, {end}")
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


def _raw(path: Path, options: CheckOptions) -> tuple[Program, list[Finding], bool]:
    """Read a bare image, and check the packets that can be decoded. Returns the program, the findings, and whether it
    is complete enough for a run without data."""
    read = read_raw_image(path, find(options.overlay), options.mme)
    sizes = {"ddr": options.ddr_bytes, "lpddr": options.lpddr_bytes}
    program = with_memories(read.program, {bank: size for bank, size in sizes.items() if size is not None})
    findings = read.findings
    if read.complete:
        findings = findings + check(program, roles=False, op_lists=read.op_lists)
    return program, findings, read.op_lists and read.complete
