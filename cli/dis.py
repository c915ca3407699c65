"""`rsn dis`: disassembles a program."""

from __future__ import annotations

from pathlib import Path

import click

from ..assembler.printer import show
from ..base.files import write_text
from .programs import loaded, refuse_overwriting
from .raw import raw_options, refuse_contradictions

_path = click.Path(path_type=Path)


@click.command(name="dis")
@click.argument("program", type=_path)
@click.option("-o", "--output", type=_path, help="the text to write [default: standard output]")
@raw_options()
def dis_command(program: Path, output: Path | None, raw: bool, overlay: str, mme: Path | None) -> None:
    """Disassemble PROGRAM (.bin) to text (.rsn).

    The text assembles to the same binary.

    The text of a bare image (--raw) has no buffers, and op lists only with --mme. rsn asm --raw makes the same image of
    it; for rsn asm, add what is missing.
    """
    refuse_contradictions(raw)
    refuse_overwriting({"--output": output}, {"PROGRAM": program, "--mme": mme})
    read = loaded(program, raw, overlay, mme)
    text = show(read.program)
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
    if raw:
        missing = "no buffers" if read.op_lists else "no buffers and no op lists (--mme)"
        click.echo(f"{program}: a bare image; its text has {missing}, which only rsn asm --raw accepts", err=True)
