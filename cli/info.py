"""`rsn info`: shows what a program contains, and what its machine costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from ..isa.overlays import find
from ..isa.overlays.file import changed, differences
from ..isa.program import Program
from ..isa.statistics import count
from .machine import show_cycles, show_resources
from .programs import loaded
from .raw import RawImage, raw_options, refuse_contradictions, was_given

MACHINE = "xnn"
"""The overlay that `rsn info` shows without PROGRAM and --overlay: the one of hw/versal."""

_path = click.Path(path_type=Path)


@click.command(name="info")
@click.argument("program", type=_path, required=False)
@raw_options("with --raw: the overlay of PROGRAM; without PROGRAM: the overlay to show, by default xnn")
@click.option("--overlay-file", type=_path, help="with --resources or --cycles: changes to the overlay (.toml)")
@click.option("--resources", is_flag=True, help="show instead which resources of its device the machine needs")
@click.option("--cycles", is_flag=True, help="show instead the cycles of its units, by their sources and as simulated")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def info_command(
    program: Path | None,
    raw: bool,
    overlay: str,
    mme: Path | None,
    overlay_file: Path | None,
    resources: bool,
    cycles: bool,
    as_json: bool,
) -> None:
    """Show what PROGRAM (.bin or .rsn) holds.

    That is: mOPs, packets, bytes and uOPs per type of unit, and its buffers. The segments of a compiled program too,
    where the file says them.

    Packets and bytes include terminators; terminators are not uOPs. For a bare image (--raw) without op lists (--mme),
    the ops of the MMEs are unknown.

    With --resources or --cycles: what the machine of PROGRAM, or of --overlay, costs.
    """
    if resources and cycles:
        raise click.UsageError("--resources and --cycles: give one of them")
    if overlay_file is not None and not (resources or cycles):
        raise click.UsageError("--overlay-file: only with --resources or --cycles")
    if program is not None:
        refuse_contradictions(raw)
    elif not (resources or cycles) or raw or mme is not None:
        raise click.UsageError("Missing argument 'PROGRAM'; it may be left out with --resources and --cycles")
    read = None if program is None else loaded(program, raw, overlay, mme)
    if resources or cycles:
        machine = read.program.overlay if read else find(overlay if was_given("overlay") else MACHINE)
        if overlay_file is not None:
            machine = changed(machine, overlay_file)
        (show_resources if resources else show_cycles)(machine, as_json)
        return
    assert read is not None
    _show_program(str(program), read, as_json)


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
    _table([["", *(key.replace("_", " ") for key in sizes), "uop bytes / bytes"], *rows])
    if program.parameters:
        click.echo()
        columns = [[p.name, f"{p.low}..{p.high}", str(p.default), str(len(p.patches))] for p in program.parameters]
        _table([["parameter", "range", "default", "places"], *columns])
    if program.segments:
        click.echo()
        columns = [[str(i), s.name, s.kind, ", ".join(s.layers)] for i, s in enumerate(program.segments)]
        _table([["#", "segment", "kind", "layers"], *columns])
    if program.buffers:
        click.echo()
        columns = [
            [b.name, b.bank, f"{b.offset:#x}", "x".join(map(str, b.shape)), b.layout.value, b.role.value]
            for b in program.buffers
        ]
        _table([["buffer", "memory", "at", "shape", "layout", "role"], *columns])


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
        "fingerprint": program.overlay.fingerprint,
        "base": program.overlay.base,
        "changes": list(program.overlay.changes),
        "extended": program.extended,
        "buffers": [
            {
                "name": b.name,
                "bank": b.bank,
                "offset": b.offset,
                "shape": b.shape,
                "view": b.view,
                "rows": b.rows or None,
                "layout": b.layout.value,
                "role": b.role.value,
            }
            for b in program.buffers
        ],
        "parameters": [
            {"name": p.name, "low": p.low, "high": p.high, "default": p.default, "patches": len(p.patches)}
            for p in program.parameters
        ],
        "segments": [
            {"name": s.name, "kind": s.kind, "layers": s.layers, "outputs": s.outputs, "uops": s.uops}
            for s in program.segments
        ],
    }


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: numbers to the right, words to the left. The first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [all(c.isdecimal() or not c for c in column) for column in zip(*rows[1:], strict=True)]
    for row in rows:
        cells = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        click.echo("  ".join(cells).rstrip())
