"""`rsn info --resources` and `--cycles`: what the machine itself costs, without a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from ..base.errors import ResourceError
from ..isa.overlay import Overlay
from ..isa.overlays.file import without_hardware
from ..machine.resources import Chip, ClockPlan, Deviation, ResourceUse, budget, plan, require_fits
from .shown import picked


def show_resources(overlay: Overlay, as_json: bool) -> None:
    """Print how much of its device's resources the overlay needs, as a table or as a JSON object. Raises
    `ResourceError`, after the table, if it does not fit, and for an overlay that names no device; of an overlay with
    other units or memories, which no sources build, it only warns."""
    device = overlay.device
    if device is None:
        raise ResourceError(f"overlay {overlay.name} names no device: its resources cannot be compared with one")
    rows = budget(overlay.resources(overlay), device)
    deviations = list(overlay.deviations())
    planned = plan(rows, device)
    errors = {d.resource: d.error for d in deviations if not d.unit}
    if as_json:
        facts = {
            "overlay": overlay.name,
            "device": device.name,
            "fits": all(row.share <= 1 for row in rows),
            "resources": {row.resource: _facts(row, errors.get(row.resource)) for row in rows},
            "deviations": [picked(d, "resource", "unit", "published", "estimated", "error") for d in deviations],
            "hard_blocks": {"share": planned.average, "guideline": device.guidelines.average},
            "limit": planned.limit,
            "of_guideline": planned.used,
            "guidelines": device.guidelines.source,
            "clock_hz": planned.clock_hz,
            "clock_reason": planned.reason,
        }
        click.echo(json.dumps(facts))
    else:
        click.echo(f"overlay {overlay.name} on a {device.name}; ~ is an estimate\n")
        click.echo(f"{'':<10}{'needed':>9}{'of':>9}{'':>7}{'paper':>9}{'routed':>9}")
        for row in rows:
            needed = f"{'~' if row.estimate else ''}{row.needed}"
            known = ("" if x is None else str(x) for x in (row.capacity.published, row.capacity.post_route))
            line = f"{row.resource:<10}{needed:>9}{row.capacity.amount:>9}{row.share:>7.0%}"
            line += "".join(f"{x:>9}" for x in known)
            click.echo(f"{line}  {row.capacity.unit}" + (f"; {row.capacity.remark}" if row.capacity.remark else ""))
        click.echo("\npaper, routed: the published implementation, by its paper and by its post-route report")
        _show_deviations(deviations)
        for row in rows:
            click.echo(f"\n{row.resource}: available according to {row.capacity.source}")
            for part, amount in row.parts.items():
                click.echo(f"{amount:>9}  {part}")
        _show_plan(planned, rows, device)
    try:
        require_fits(rows, device)
    except ResourceError as e:
        if not without_hardware(overlay):
            raise
        click.echo(f"warning: {e}", err=True)


def _show_plan(planned: ClockPlan, rows: Sequence[ResourceUse], device: Chip) -> None:
    """Print how full the device is by the vendor's guidelines, and the clock to plan with."""
    click.echo("\nwhat a router would say: share, guideline, and the part of it that is used")
    shown = [(row.resource, row.share, row.capacity.guideline) for row in rows]
    shown.append(("average", planned.average, device.guidelines.average))
    for (name, share, guideline), used in zip((x for x in shown if x[2]), planned.used.values(), strict=True):
        click.echo(f"{name:<10}{share:>6.0%}{guideline:>7.0%}{used:>8.2f}")
    click.echo(f"average: of {', '.join(device.guidelines.hard)}, the hard blocks")
    click.echo(f"guidelines: {device.guidelines.source}")
    click.echo(f"limit: {planned.limit}; the published implementation uses {planned.routed:.2f} of a guideline at most")
    click.echo(f"clock to plan with, an estimate: {planned.clock_hz / 1e6:.0f} MHz: {planned.reason}")


def _show_deviations(deviations: Sequence[Deviation]) -> None:
    """Print how far the estimate is from published figures, resource by resource, the total last."""
    if not deviations:
        return
    click.echo("\nerror of the estimate, where it is made of the published implementation")
    width = max(len(d.unit) for d in deviations)
    click.echo(f"{'':<10}{'':<{width}}{'estimate':>10}{'report':>9}")
    for d in sorted(deviations, key=lambda d: d.resource):
        where = d.unit or "in all"
        click.echo(f"{d.resource:<10}{where:<{width}}{d.estimated:>10}{d.published:>9}{d.error:>+8.1%}")


def _facts(row: ResourceUse, error: float | None) -> dict[str, Any]:
    """Return the use of a resource for --json. error: of the estimate, relative; None if not known."""
    shown = {"needed": row.needed, "available": row.capacity.amount, **picked(row, "share", "estimate")}
    shown |= {"error": error, **picked(row.capacity, "published", "post_route", "remark", "unit", "source")}
    return shown | {"parts": row.parts}


def show_cycles(overlay: Overlay, as_json: bool) -> None:
    """Print the cycles of the units as their sources state them, beside the time that the simulator charges, as a table
    or as a JSON object with seconds. Raises `ResourceError` for an overlay without sources."""
    costs = list(overlay.costs(overlay))
    if not costs:
        raise ResourceError(f"overlay {overlay.name} states no cycles of its units: it has no HLS sources")
    if as_json:
        rows = [
            picked(c, "what", "cycles", "seconds") | {"simulated_s": c.simulated} | picked(c, "difference", "remark")
            for c in costs
        ]
        click.echo(json.dumps({"overlay": overlay.name, "pl_hz": overlay.clock_hz, "costs": rows}))
        return
    click.echo(
        f"overlay {overlay.name} at {overlay.clock_hz / 1e6:.0f} MHz: by the loops of its units, and as simulated\n"
    )
    width = max(len(c.what) for c in costs)
    click.echo(f"{'':<{width}}{'cycles':>9}{'us':>10}{'simulated':>12}")
    for c in costs:
        times: Sequence[float] = (c.seconds * 1e6, c.simulated * 1e6)
        line = f"{c.what:<{width}}{c.cycles:>9}{times[0]:>10.3f}{times[1]:>12.3f}{c.difference:>+8.0%}"
        click.echo(f"{line}  {c.remark}".rstrip())
