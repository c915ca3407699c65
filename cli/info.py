"""`rsn info`: shows what a program contains, and what its machine costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ..host.model.file import SUFFIX
from ..isa.overlays import find
from ..isa.overlays.file import changed, differences
from ..isa.program import Program
from ..isa.statistics import count
from .machine import show_cycles, show_resources
from .model_files import show_model
from .options import JSON, PATH, RAW, Options, option, refuse_contradictions, was_given, with_options
from .programs import loaded
from .raw import BARE, OP_LISTS, OVERLAY, RawImage
from .shown import picked, table

MACHINE = "xnn"
"""The overlay that `rsn info` shows without PROGRAM and --overlay: the one of hw/versal."""


class InfoOptions(Options):
    """The options of `rsn info`."""

    raw: bool = BARE
    overlay: str = option(
        "with --raw: the overlay of PROGRAM; without PROGRAM: the overlay to show, by default xnn; a name or a file "
        "(*.toml)",
        default=OVERLAY,
        of=RAW,
    )
    mme: Path | None = OP_LISTS
    overlay_file: Path | None = option("with --resources or --cycles: changes to the overlay (.toml)")
    resources: bool = option("show instead which resources of its device the machine needs")
    cycles: bool = option("show instead the cycles of its units, by their sources and as simulated")
    as_json: bool = JSON


@click.command(name="info")
@click.argument("program", type=PATH, required=False)
@with_options(InfoOptions)
def info_command(program: Path | None, options: InfoOptions) -> None:
    """Show what PROGRAM (.bin, .rsn or .rsnmodel) holds.

    That is: mOPs, packets, bytes and uOPs per type of unit, and its buffers. The segments of a compiled program too,
    where the file says them. Of a model file: its programs, and what each stage of a model over several boards takes.

    Packets and bytes include terminators; terminators are not uOPs. For a bare image (--raw) without op lists (--mme),
    the ops of the MMEs are unknown.

    With --resources or --cycles: what the machine of PROGRAM, or of --overlay, costs.
    """
    costs = options.resources or options.cycles
    if options.resources and options.cycles:
        raise click.UsageError("--resources and --cycles: give one of them")
    if options.overlay_file is not None and not costs:
        raise click.UsageError("--overlay-file: only with --resources or --cycles")
    if program is not None and program.suffix == SUFFIX and not costs and not options.raw:
        show_model(program, options.as_json)
        return
    if program is not None:
        refuse_contradictions(options.raw)
    elif not costs or options.raw or options.mme is not None:
        raise click.UsageError("Missing argument 'PROGRAM'; it may be left out with --resources and --cycles")
    read = None if program is None else loaded(program, options.raw, options.overlay, options.mme)
    if costs:
        machine = read.program.overlay if read else find(options.overlay if was_given("overlay") else MACHINE)
        if options.overlay_file is not None:
            machine = changed(machine, options.overlay_file)
        (show_resources if options.resources else show_cycles)(machine, options.as_json)
        return
    assert read is not None
    _show_program(str(program), read, options.as_json)


def _show_program(name: str, read: RawImage, as_json: bool) -> None:
    program = read.program
    sizes: dict[str, dict[str, int | None]] = {key: {**per_kind} for key, per_kind in count(program).items()}
    for kind in () if read.op_lists else program.overlay.preloaded:
        sizes["uops"][kind] = sizes["bytes"][kind] = None  # not 0: unknown
    if as_json:
        click.echo(json.dumps(_facts(program) | sizes))
        return
    extent = "extended" if program.extended else "base"
    click.echo(f"{name}: {extent} program for overlay {program.overlay.name} ({program.overlay.fingerprint})")
    for line in differences(program.overlay):
        click.echo(f"  {program.overlay.base} changed: {line}")
    kinds = [k for k in sizes["uops"] if k != "total"]
    rows = [[k, *(_number(sizes[key].get(k)) for key in sizes), _ratio(sizes, k)] for k in (*kinds, "total")]
    click.echo(table([["", *(key.replace("_", " ") for key in sizes), "uop bytes / bytes"], *rows]))
    if program.parameters:
        click.echo()
        columns = [[p.name, f"{p.low}..{p.high}", str(p.default), str(len(p.patches))] for p in program.parameters]
        click.echo(table([["parameter", "range", "default", "places"], *columns]))
    if program.segments:
        click.echo()
        columns = [[str(i), s.name, s.kind, ", ".join(s.layers)] for i, s in enumerate(program.segments)]
        click.echo(table([["#", "segment", "kind", "layers"], *columns]))
    if program.buffers:
        click.echo()
        columns = [
            [b.name, b.bank, f"{b.offset:#x}", "x".join(map(str, b.shape)), b.layout.value, b.role.value]
            for b in program.buffers
        ]
        click.echo(table([["buffer", "memory", "at", "shape", "layout", "role"], *columns]))


def _number(n: int | None) -> str:
    return "" if n is None else str(n)


def _ratio(sizes: Mapping[str, Mapping[str, int | None]], kind: str) -> str:
    """Return the bytes of uOPs per byte of instructions (paper Fig. 9)."""
    uops, instructions = (sizes[key].get(kind) for key in ("uop_bytes", "bytes"))
    return f"{uops / instructions:.1f}" if uops and instructions else ""


def _facts(program: Program) -> dict[str, Any]:
    """Return the facts of `info --json` besides the counts. Offsets are in address units of the overlay."""
    return {
        "overlay": program.overlay.name,
        **picked(program.overlay, "fingerprint", "base"),
        "changes": list(program.overlay.changes),
        "extended": program.extended,
        "buffers": [
            picked(b, "name", "bank", "offset", "shape", "view")
            | {"rows": b.rows or None, "layout": b.layout.value, "role": b.role.value}
            for b in program.buffers
        ],
        "parameters": [
            picked(p, "name", "low", "high", "default") | {"patches": len(p.patches)} for p in program.parameters
        ],
        "segments": [picked(s, "name", "kind", "layers", "outputs", "uops") for s in program.segments],
    }
