"""`rsn check`: would the machine load this program, and would it end."""

from __future__ import annotations

import json

import click


@click.command(name="check")
@click.argument("program", type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def check_command(program: str, as_json: bool) -> None:
    """Check PROGRAM (.bin): sends against receives, memory bounds, terminators, deadlock at the FIFO depth."""
    from ...assembler import container
    from ...isa.verify import dry_run, verify

    loaded = container.read(program)
    findings = verify(loaded)
    if all(f.warning for f in findings):
        findings += dry_run(loaded)
    ok = all(f.warning for f in findings)
    if as_json:
        rows = [{"code": f.code, "message": f.message, "where": f.where, "warning": f.warning} for f in findings]
        click.echo(json.dumps({"ok": ok, "findings": rows}))
    else:
        for finding in findings:
            click.echo(str(finding))
        if ok:
            depth = loaded.overlay.mop_fifo_depth
            click.echo(f"{program}: ok on {loaded.overlay.name}, runs at mOP FIFO depth {depth}")
    if not ok:
        raise SystemExit(1)
