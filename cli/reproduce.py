"""`rsn reproduce`: the paper's tables, modelled and published side by side."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

import click

from ..scheduler.best import schedule_named
from .options import SettingOption
from .progress import working
from .published.rows import FAR, NOTES, PERHAPS_NOTE, PublishedRow, calibrated_parameters, rows_of
from .published.step import STEP, claims, findings, measure, step_rows, step_summary

TABLES = ("table3", "table6", "table7", "table9", "fig18", "table10", "table11", "fig9")


@click.command(name="reproduce")
@click.argument("table", default="all", type=click.Choice([*TABLES, STEP, "all"]))
@click.option("--schedule", default="published", show_default=True, help="schedule of the paper's optimised rows")
@click.option("--set", "rates", multiple=True, type=SettingOption(float), help="change a rate or depth of rsn overlay")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def reproduce_command(table: str, schedule: str, rates: Sequence[tuple[str, float]], as_json: bool) -> None:
    """Compare the paper's TABLE, or all, with the model.

    Each row has the published and the modelled value, their difference, and whether a constant of the model was fitted
    on it. Table step are figures of another paper, STeP, which are not part of all; it takes some minutes."""
    if table == STEP:
        if rates or schedule != "published":
            raise click.UsageError("--schedule and --set are of the overlay; the figures of step have none")
        _reproduce_step(as_json)
        return
    plan = schedule_named(schedule)
    with working("modelling") as progress:
        rows = rows_of(list(TABLES) if table == "all" else [table], plan, dict(rates), progress)
    if as_json:
        click.echo(json.dumps({"rows": [row.as_json() for row in rows], "summary": _summary(rows)}))
        return
    _show(rows)
    _show_summary(rows)


def _reproduce_step(as_json: bool) -> None:
    """Compare the figures of STeP with the programs of dynamic streams."""
    with working("running the programs of STeP's figures") as progress:
        measured = measure(progress=progress)
    rows, said = [*step_rows(measured), *claims(measured)], findings(measured)
    summary = step_summary(rows)
    if as_json:
        facts = {"rows": [row.as_json() for row in rows], "summary": summary}
        click.echo(json.dumps(facts | {"findings": [dataclasses.asdict(one) for one in said]}))
        return
    _show(rows)
    click.echo(f"\n{len(rows)} rows; errors:")
    for quantity, facts in summary.items():
        click.echo(
            f"  {quantity:<24} {facts['rows']:3} rows, mean {facts['mean_abs_error_pct']:.2f} %, "
            f"worst {facts['worst_error_pct']:+.2f} % ({facts['worst']})"
        )
    _show_far(rows)
    click.echo("\nbeside them:")
    for one in said:
        click.echo(textwrap.fill(f"{one.name}. {one.text}", 118, initial_indent="  ", subsequent_indent="    "))


def _mean_error(rows: Sequence[PublishedRow]) -> float | None:
    return sum(abs(row.error_pct) for row in rows) / len(rows) if rows else None


def _summary(rows: Sequence[PublishedRow]) -> dict[str, Any]:
    """Return numbers of rows, mean absolute errors in percent, and the timed row with the largest error."""
    groups = {
        "all": list(rows),
        "predicted": [r for r in rows if r.kind == "predicted"],
        "predicted, instructions apart": [r for r in rows if r.kind == "predicted" and r.table != "fig9"],
        "calibrated": [r for r in rows if r.kind == "calibrated"],
        "perhaps calibrated": [r for r in rows if r.fit is not None and not r.fit.certain],
        "timed": [r for r in rows if r.timed],
    }
    worst = max(groups["timed"], key=lambda row: abs(row.error_pct), default=None)
    return {
        "rows": {name: len(group) for name, group in groups.items()},
        "mean_abs_error_pct": {name: _mean_error(group) for name, group in groups.items()},
        "worst_timed": worst and {"table": worst.table, "row": worst.row, "error_pct": worst.error_pct},
        "calibrated_parameters": calibrated_parameters(),
    }


def _show(rows: Sequence[PublishedRow]) -> None:
    table = ""
    widths = [max((len(cell) for cell in column), default=0) for column in zip(*map(_cells, rows), strict=True)]
    for row in rows:
        if row.table != table:
            table = row.table
            click.echo(f"{'' if row is rows[0] else chr(10)}{table}")
        what, unit, *numbers, kind = (
            c.rjust(w) if 2 <= i <= 4 else c.ljust(w) for i, (c, w) in enumerate(zip(_cells(row), widths, strict=True))
        )
        note = "; ".join(filter(None, (row.fitted, row.known)))
        click.echo(f"  {what}  {unit}  {'  '.join(numbers)}  {kind}  {note}".rstrip())


def _cells(row: PublishedRow) -> list[str]:
    kind = row.kind if row.fit is None or row.fit.certain else "calibrated?"
    return [row.row, row.unit, f"{row.paper:g}", _number(row.model), f"{row.error_pct:+.1f} %", kind]


def _number(value: float) -> str:
    """Format a number with four digits."""
    return f"{value:.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _show_summary(rows: Sequence[PublishedRow]) -> None:
    facts = _summary(rows)
    click.echo(f"\n{len(rows)} rows; mean absolute error:")
    for name, error in facts["mean_abs_error_pct"].items():
        if error is not None:
            click.echo(f"  {name:<30} {error:5.1f} %  ({facts['rows'][name]} rows)")
    if worst := facts["worst_timed"]:
        click.echo(f"  {'timed, the worst':<30} {worst['error_pct']:+5.1f} %  ({worst['table']}, {worst['row']})")
    if facts["rows"]["timed"] < len(rows):
        click.echo("\nnot among the timed rows:")
        for pattern, reason in NOTES.untimed.items():
            left_out = [row for row in rows if fnmatch(row.key, pattern)]
            if left_out:
                what = left_out[0].row if len(left_out) == 1 else f"{len(left_out)} rows"
                click.echo(f"  {left_out[0].table:<8} {what:<28} {reason}")
    _show_far(rows)
    if facts["rows"]["perhaps calibrated"]:
        click.echo(f"\ncalibrated?: {PERHAPS_NOTE}")
    fitted = facts["calibrated_parameters"]
    click.echo(f"\n{len(fitted)} calibrated parameters: {', '.join(fitted)}")


def _show_far(rows: Sequence[PublishedRow]) -> None:
    """The rows with large errors, each with its explanation."""
    far = [row for row in rows if row.far]
    if far:
        click.echo(f"\n{len(far)} {'row' if len(far) == 1 else 'rows'} beyond {FAR:g} %:")
        width = max(len(row.row) for row in far)
        before = ""
        for row in far:
            reason = row.explanation or "not explained"
            ditto = '"' if reason == before else reason
            click.echo(f"  {row.table:<8} {row.row:<{width}} {row.error_pct:+7.1f} %  {ditto}")
            before = reason
