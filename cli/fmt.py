"""`rsn fmt`: formats program texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..assembler.formatter import format_text
from ..assembler.parser import read_text
from ..base.files import write_text

_path = click.Path(path_type=Path)


@click.command(name="fmt")
@click.argument("files", type=_path, nargs=-1, required=True)
@click.option("--check", is_flag=True, help="change nothing; exit 1 if a file would be changed")
def fmt_command(files: Sequence[Path], check: bool) -> None:
    """Format .rsn FILES in place: indentation, spacing, blank lines. Words and comments are kept."""
    changed = []
    for path in files:
        text = read_text(path)
        formatted = format_text(text, str(path))
        if formatted != text:
            changed.append(path)
            if not check:
                write_text(path, formatted)
    for path in changed:
        click.echo(f"{path}: {'not formatted; run rsn fmt' if check else 'formatted'}", err=True)
    if check and changed:
        raise SystemExit(1)
