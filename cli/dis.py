"""`rsn dis`: disassembles a program."""

from __future__ import annotations

from pathlib import Path

import click

from ..assembler.printer import show
from ..base.files import write_text
from .options import PATH, Options, option, refuse_contradictions, with_options
from .programs import loaded, refuse_overwriting
from .raw import BARE, OF_IMAGE, OP_LISTS


class DisOptions(Options):
    """The options of `rsn dis`."""

    output: Path | None = option("the text to write [default: standard output]", "-o", "--output")
    raw: bool = BARE
    overlay: str = OF_IMAGE
    mme: Path | None = OP_LISTS


@click.command(name="dis")
@click.argument("program", type=PATH)
@with_options(DisOptions)
def dis_command(program: Path, options: DisOptions) -> None:
    """Disassemble PROGRAM (.bin) to text (.rsn).

    The text assembles to the same binary.

    The text of a bare image (--raw) has no buffers, and op lists only with --mme. rsn asm --raw makes the same image of
    it; for rsn asm, add what is missing.
    """
    refuse_contradictions(options.raw)
    refuse_overwriting({"--output": options.output}, {"PROGRAM": program, "--mme": options.mme})
    read = loaded(program, options.raw, options.overlay, options.mme)
    text = show(read.program)
    if options.output is None:
        click.echo(text, nl=False)
    else:
        write_text(options.output, text)
    if options.raw:
        missing = "no buffers" if read.op_lists else "no buffers and no op lists (--mme)"
        click.echo(f"{program}: a bare image; its text has {missing}, which only rsn asm --raw accepts", err=True)
