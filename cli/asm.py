"""`rsn asm`: assembles a text."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path

import click

from ..assembler import container
from ..base.errors import ProgramError
from ..base.files import write_text
from ..isa.program import Program
from ..isa.verify import missing_declarations
from .programs import assembled, refuse_overwriting

_path = click.Path(path_type=Path)

SHOWN = 3
"""How many run-time parameters a note names."""


@click.command(name="asm")
@click.argument("source", type=_path)
@click.option("-o", "--output", type=_path, help="the file to write [default: SOURCE with .bin]")
@click.option("--raw", is_flag=True, help="write the bare wire image: no buffers, no op lists")
@click.option("--mme", type=_path, help="with --raw: file to write the op lists to (JSON, as rsn run --raw takes them)")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def asm_command(source: Path, output: Path | None, raw: bool, mme: Path | None, as_json: bool) -> None:
    """Assemble SOURCE (.rsn) to a program (.bin).

    The kernels in SOURCE (a section per unit) are packed; packets written by hand are kept as they are. A program must
    declare buffers for its memory accesses, and op lists for the MMEs; a bare image (--raw) need not.
    """
    if mme is not None and not raw:
        raise click.UsageError("--mme: only with --raw; a program contains its op lists")
    program = assembled(source)
    target = output or source.with_suffix(".bin")
    refuse_overwriting({"--output": target, "--mme": mme}, {"SOURCE": source})
    _refuse_incomplete(program, {"A01", "M05"} if not raw else {"M05"} if mme is not None else set())
    (container.write_raw if raw else container.write)(program, target)
    if raw and program.parameters:
        shown = [f"{p.name} = {p.default}" for p in program.parameters]
        values = ", ".join(shown[:SHOWN]) + (f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else "")
        fixed = "a bare image has no run-time parameters; their defaults are fixed in it"
        click.echo(f"{target}: {fixed}: {values}", err=True)
    if mme is not None:
        index = program.overlay.by_unit
        lists = {
            str(index[u].index): [word for op in ops for word in op.encode()] for u, ops in program.preloaded.items()
        }
        write_text(mme, json.dumps(lists) + "\n")
    if as_json:
        facts = {"program": str(target), "extended": program.extended, "packets": len(program.packets)}
        click.echo(json.dumps(facts | {"image_bytes": 4 * len(program.image)}))


def _refuse_incomplete(program: Program, codes: Container[str]) -> None:
    """Raise `ProgramError` if a text lacks the buffers or op lists that its packets need. codes: the findings to look
    for."""
    found = [f for f in missing_declarations(program) if f.code in codes]
    if found:
        raise ProgramError("\n".join(f"{f}\n  help: {f.help}" for f in found))
