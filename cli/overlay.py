"""`rsn overlay`: shows the parameters of an overlay."""

from __future__ import annotations

import json

import click

from ..isa.overlays import find
from ..isa.overlays.file import facts, show


@click.command(name="overlay")
@click.argument("name", default="xnn")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def overlay_command(name: str, as_json: bool) -> None:
    """Show the parameters of an overlay: value, unit, source.

    The overlay is xnn, xnn-base, xnn2, xnn8, fig6, fig7, or a file.

    The output is an overlay file, for --overlay and for rsn run --overlay-file: keep the lines that you change.
    """
    found = find(name)
    click.echo(json.dumps(facts(found)) if as_json else show(found), nl=as_json)
