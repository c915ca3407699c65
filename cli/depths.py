"""`rsn depths`: safe and fast depths of the streams of a stream program, and what the steps between them cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ..streams.check import report_on
from ..streams.sizing.depths import DepthPoint, KnownDepths, sizes
from ..streams.sizing.least import Least
from ..streams.sizing.program import SizedProgram, Times
from .progress import TIMING, working
from .shown import picked, table
from .stream_programs import Named, region_of, show, stream_program

WIDE = 60
"""Characters of the column with changed depths, at most."""


@click.command(name="depths")
@click.argument("program")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1, 1000), help="executions, back to back")
@click.option("--set", "chosen", multiple=True, metavar="STREAM=DEPTH", help="a depth instead of the declared one")
@click.option("--kernels", type=click.Path(dir_okay=False, path_type=Path), help="how fast library kernels are (.toml)")
@click.option("--json", "as_json", is_flag=True, help="one JSON object on stdout")
def depths_command(program: str, runs: int, chosen: Sequence[str], kernels: Path | None, as_json: bool) -> None:
    """Find safe and fast depths for a stream program's streams.

    Of PROGRAM (FILE.py, FILE.py:REGION): the least depths that are safe, the least that are fast, and the latency of
    the steps between. Safe: every outcome of the data runs to its end; counted, without time. Alone: with the other
    streams as declared; together: the fewest bits in all streams. Fast: executions back to back end when they would
    with endless streams; modelled, in clock cycles, with the fewest bits. Depths are in elements; an array of streams
    has one depth.

    The program is read, never executed. Findings other than a cycle of waits that a deeper stream breaks are shown
    instead.
    """
    named = stream_program(program)
    if named is None:
        raise click.UsageError(f"{program} is no stream program: FILE.py or FILE.py:REGION")
    report = report_on(region_of(named, kernels))
    if any(f.code != "depth" and not f.warning for f in report.findings):
        show(report, 10, as_json)
        raise SystemExit(1)
    sized = SizedProgram(report.region, runs)
    depths = _chosen(sized, chosen)
    with working(TIMING):
        found = sizes(sized, depths)
    if as_json:
        click.echo(json.dumps(facts(found)))
    else:
        _show(named, found, set(depths))


def _chosen(program: SizedProgram, chosen: Sequence[str]) -> dict[str, int]:
    depths: dict[str, int] = {}
    for text in chosen:
        name, _, number = text.partition("=")
        group = program.groups.get(name)
        if group is None:
            raise click.UsageError(f"--set {text}: the streams with ends are {', '.join(program.groups) or 'none'}")
        depth = int(number) if number.isascii() and number.isdigit() and len(number) < 18 else 0
        if depth < 1 or depth % group.decl.packing:
            unit = f"a multiple of {group.decl.packing}, the elements of a transfer" if group.decl.packing > 1 else ""
            raise click.UsageError(f"--set {text}: the depth of {name} is a whole number above 0{unit and ', '}{unit}")
        depths[name] = depth
    return depths


# -- JSON -------------------------------------------------------------------------------------------------------------


def facts(found: KnownDepths) -> dict[str, Any]:
    """Return everything that `rsn depths` found as values for JSON. Depths are in elements, sizes in bits, times in
    clock cycles; what is not known is None."""
    program = found.program
    return {
        "file": program.source.file,
        "executions": program.executions,
        "streams": [_stream(found, name) for name in program.groups],
        "safe": {"kind": "counted", **_least(found.safe)},
        "fast": None if found.fast is None else {"kind": "modelled", **_least(found.fast)},
        "steps": [picked(step, "deeper", "depths", "bits") | _times(step.times) for step in found.steps],
        "declared": {"bits": program.bits(found.declared), "safe": _is_safe(found), **_times(found.at_declared)},
        "endless": _times(found.endless),
        "outcomes": len(found.endless.runs) if found.endless else None,
        "all_outcomes": program.outcomes.exact if found.endless else None,
        "no_times": found.untimed,
    }


def _stream(found: KnownDepths, name: str) -> dict[str, Any]:
    group = found.program.groups[name]
    runs = found.at_declared.runs if found.at_declared else ()
    row: dict[str, Any] = {"name": name, "streams": len(group.elements), "declared": found.declared[name]}
    row |= {"safe_alone": found.alone[name], "safe": found.safe.levels[name]}
    row |= {"fast": found.fast.levels[name] if found.fast else None, "element_bits": group.bits}
    tables = {"peak": [run.peak for run in runs]}
    tables |= {"wait_empty": [run.empty for run in runs], "wait_full": [run.full for run in runs]}
    for key, found_in in tables.items():
        row[key] = max((table[s] for table in found_in for s in group.elements if s in table), default=None)
    return row


def _least(least: Least) -> dict[str, Any]:
    bits = {"bits": least.cost, "at_least_bits": least.bound, "proved_least": least.proved}
    return {"depths": least.levels, **bits}


def _times(times: Times | None) -> dict[str, Any]:
    if times is None:
        return {"latency": None, "interval": None, "total": None, "converged": None, "apart": []}
    return picked(times, "latency", "interval", "total", "converged") | {"apart": _lines(times)}


def _lines(times: Times) -> list[int]:
    return sorted({place.line for place in times.apart})


def _is_safe(found: KnownDepths) -> bool:
    return found.program.live(found.declared)


# -- text -------------------------------------------------------------------------------------------------------------


def _show(named: Named, found: KnownDepths, chosen: set[str]) -> None:
    program = found.program
    region = f":{named.region}" if named.region else ""
    if not program.groups:
        click.echo(f"{named.file}{region}: no stream has ends")
        return
    rows = [["stream", "declared", "safe alone", "safe", "fast", "bits a slot"]]
    for name, group in program.groups.items():
        fast = found.fast.levels[name] if found.fast else None
        count = f" ({len(group.elements)})" if group.decl.shape else ""
        cells = (found.alone[name], found.safe.levels[name], fast)
        declared = f"{found.declared[name]}{' (set)' if name in chosen else ''}"
        rows.append([name + count, declared, *map(_cell, cells), str(group.weight)])
    bits = (program.bits(found.declared), None, found.safe.cost, found.fast.cost if found.fast else None)
    rows.append(["all, in bits", *("" if b is None else str(b) for b in bits), ""])
    click.echo(_table(rows))
    if found.steps:
        click.echo("")
        steps = [["deeper", "bits", "latency", "interval"]]
        for k, step in enumerate(found.steps):
            *above, last = _deeper(step, found.steps[k - 1] if k else None)
            steps += [[line, "", "", ""] for line in above]
            steps.append(_row(last, step.bits, step.times))
        if found.at_declared:
            what = "depths as chosen" if chosen else "depths as declared"
            steps.append(_row(what, program.bits(found.declared), found.at_declared))
        if found.endless:
            steps.append(_row("endless streams", None, found.endless))
        click.echo(_table(steps))
    click.echo("")
    for line in _remarks(found, chosen):
        click.echo(line)


def _table(rows: Sequence[Sequence[str]]) -> str:
    return table(rows, [False] + [True] * (len(rows[0]) - 1))


def _cell(number: int | None) -> str:
    return "-" if number is None else str(number)


def _row(what: str, bits: int | None, times: Times) -> list[str]:
    return [what, "" if bits is None else str(bits), str(times.latency), _cell(times.interval)]


def _deeper(step: DepthPoint, before: DepthPoint | None) -> list[str]:
    """Return the depths that differ, in lines of up to `WIDE` characters where names are not longer."""
    if before is None:
        return ["safe depths"]
    lines = [""]
    for name, depth in step.deeper.items():
        change = f"{name} {before.depths[name]} -> {depth}"
        if not lines[-1]:
            lines[-1] = change
        elif len(lines[-1]) + len(change) + 2 <= WIDE:
            lines[-1] += f", {change}"
        else:
            lines[-1] += ","
            lines.append(change)
    return lines


def _remarks(found: KnownDepths, chosen: set[str]) -> list[str]:
    program = found.program
    lines = []
    if not _is_safe(found):
        what = "chosen" if chosen else "declared"
        lines.append(f"With depths as {what} instances wait for ever: rsn check shows the cycle of waits.")
    if None in found.alone.values():
        lines.append("-: no depth of this stream alone is safe, the others as they are.")
    lines.append(f"Safe: counted, without time; {_proof(found.safe)}.")
    if found.fast is None or found.endless is None:
        lines.append("Fast: not known.")
        lines.append(found.untimed)
        return lines
    runs = program.executions
    several = f"{runs} executions back to back" if runs > 1 else "one execution"
    lines.append(f"Fast, latency, interval: modelled, in clock cycles, {several}; {_proof(found.fast)}.")
    if runs > 2 and not all(t.converged for t in _all_times(found)):
        lines.append("The intervals have not settled; --runs takes more executions.")
    if len(found.endless.runs) > 1:
        if program.outcomes.exact:
            lines.append(f"Data decides: the slowest of {len(found.endless.runs)} outcomes.")
        else:
            lines.append("Data decides: with the slowest arm of every branch; fast for that and for the fastest arms.")
    apart = sorted({line for times in _all_times(found) for line in _lines(times)})
    if apart:
        at = f"line{'s' * (len(apart) > 1)} {', '.join(map(str, apart))}"
        lines.append(f"At some of these depths the operations of beats at {at} cannot fire together, and fire in turn.")
    return lines


def _all_times(found: KnownDepths) -> list[Times]:
    times = [step.times for step in found.steps]
    return times + [t for t in (found.at_declared, found.endless) if t is not None]


def _proof(least: Least) -> str:
    if least.proved:
        return "proved to be the fewest bits"
    return f"no fewer than {least.bound} bits are needed"
