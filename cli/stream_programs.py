"""Stream programs on the command line: FILE.py, or FILE.py:REGION for one of its regions, and their findings."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import decode_source
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..isa.program import Program
from ..streams.build import Unequal, build, size_readings
from ..streams.check import Report, report_on
from ..streams.machines import DYNAMIC
from ..streams.rates import KernelTable, read_kernels
from ..streams.reader import NO_RATES, STATED, parse, read_file
from ..streams.source import Source, SourceFinding
from ..streams.symbolic.forall import Proof, prove
from ..streams.syntax.nodes import FunctionDefinition
from ..streams.tree import Region
from ..streams.values import last_name


class Named(NamedTuple):
    """A stream program as the user names it. region: a region function of the file, None for the file itself."""

    file: Path
    region: str | None


def stream_program(program: str) -> Named | None:
    """Return which stream program an argument PROGRAM names, FILE.py or FILE.py:REGION; None if it names a file of
    another kind."""
    if program.endswith(".py"):
        return Named(Path(program), None)
    file, found, region = program.rpartition(".py:")
    return Named(Path(f"{file}.py"), region) if found else None


def is_region(named: Named) -> bool:
    """Return whether FILE.py, or FILE.py:NAME, is a stream program; otherwise NAME returns a model. Raises `OSError` if
    the file must be read and cannot."""
    if named.region is None:
        return True
    tree = parse(Source(named.file.read_text(encoding="utf-8", errors="replace"), str(named.file)))
    functions = [node for node in tree or () if isinstance(node, FunctionDefinition) and not node.coroutine]
    marks = [d for f in functions if f.name == named.region for d in f.decorators]
    return any(last_name(mark) == "region" for mark in marks)


def uses_dynamic_streams(file: Path) -> bool:
    """Return whether a file may build programs of dynamic streams: it names the package. Nothing is executed. Raises
    `OSError` for a file that cannot be read."""
    text = file.read_text(encoding="utf-8", errors="replace")
    return re.search(r"\bstreams\.dynamic\b|\bstreams import\b.*\bdynamic\b", text) is not None


def is_dynamic(program: Program) -> bool:
    """Return whether a program is for a machine of operators, that is of dynamic streams."""
    return program.overlay.base == DYNAMIC.name


def region_of(named: Named, kernels: str | Path | None, sizes: Mapping[str, int] = STATED) -> Region:
    """Read a stream program, with its beats. kernels: path of a file with the rates and variants of library kernels,
    None without one. sizes: values of sizes that each run gives, by name. Raises `SourceError` for what the file has
    wrong."""
    table = KernelTable(NO_RATES, ()) if kernels is None else read_kernels(Path(kernels))
    return read_file(named.file, named.region, timed=True, rates=table.rates, variants=table.variants, sizes=sizes)


def machine_program(named: Named, execute: bool, kernels: str | None, sizes: Mapping[str, int] = STATED) -> Program:
    """Return the machine of a stream program, as a program. execute: tasks may call functions of the file. kernels:
    path of a file with the rates of library kernels, None without one. sizes: values of sizes that each run gives, by
    name. Raises `SourceError` with the findings of the check."""
    return build(report_on(region_of(named, kernels, sizes)), execute)


def show(report: Report, most: int, as_json: bool, proof: Proof | None = None) -> bool:
    """Print the findings of a check, at most `most` of each code, or all facts as a JSON object; return whether there
    are none but warnings. proof: of all values of the sizes that each run gives, None without one."""
    ok, region = not report.code and (proof is None or proof.ok), report.region
    findings = _gathered(report, most)
    if as_json:
        rows = [_row(region.source.file, f, times) for f, times in findings]
        facts = {"ok": ok, "findings": rows, "instances": len(region.instances), "streams": _streams(report)}
        click.echo(json.dumps(facts if proof is None else {**facts, "sizes": proof.json()}))
        return ok
    for f, times in findings:
        click.echo(region.source.render(f))
        if times > 1:
            click.echo(f"note: and {times - 1} more with this code")
    if ok:
        name = f"{region.source.file}{f':{region.name}' if region.name else ''}"
        streams, instances = _streams(report), len(region.instances)
        click.echo(f"{name}: ok, {counted(streams, 'stream')}, {counted(instances, 'task instance')}")
    if proof is not None:
        click.echo(str(proof))
    return ok


def of_all_sizes(named: Named, report: Report, strict: bool) -> tuple[Report, Proof | None]:
    """Check a stream program for all values of the sizes that each run gives. report: of its check with the values that
    the file states. strict: as for `prove_file`.

    Returns a report and a proof. The report is `report`, or, if runs with different sizes cannot have one machine, one
    with a finding that says why. The proof is None for a program without such sizes, and for one with errors.
    """
    if report.code or not report.region.sizes:
        return report, None
    domain = ", ".join(f"1 <= {size.name} <= {size.largest}" for size in report.region.sizes)
    proof = prove_file(named, domain, strict)
    try:
        if proof.ok:
            size_readings(report.region)
    except Unequal as unequal:
        return unequal.report, None
    return report, proof


def counted(number: int, what: str) -> str:
    """Return a number of things as text, `what` with an s for all numbers but 1: `1 unit`, `2 units`."""
    return f"{number} {what}{'s' * (number != 1)}"


def prove_file(named: Named, domain: str, strict: bool) -> Proof:
    """Check a stream program for all sizes of a domain, the text behind `--for-all`. strict: as for
    `streams.symbolic.forall.prove`. Raises `DomainError` for a text that is no domain, `OSError` for a file that cannot
    be read."""
    try:
        text = decode_source(named.file.read_bytes())
    except (SyntaxError, UnicodeDecodeError, LookupError):
        text = read_file(named.file, named.region).source.text  # no Python, as its check says
    return prove(text, str(named.file), domain, strict, named.region)


def show_proof(proof: Proof, as_json: bool) -> bool:
    """Print the result of a proof, as text or as a JSON object; return whether the program is proved."""
    click.echo(json.dumps({"ok": proof.ok, **proof.json()}) if as_json else str(proof))
    return proof.ok


def _streams(report: Report) -> int:
    return sum(stream.size for stream in report.region.streams)


def _gathered(report: Report, most: int) -> list[tuple[SourceFinding, int]]:
    """Keep at most `most` findings of each code; the last one kept of a code counts those left out."""
    kept: dict[tuple[bool, str], list[tuple[SourceFinding, int]]] = {}
    for f in report.findings:
        same = kept.setdefault((f.warning, f.code), [])
        if len(same) < most:
            same.append((f, 1))
        else:
            same[-1] = same[-1][0], same[-1][1] + 1
    return [row for same in kept.values() for row in same]


def _row(file: str, f: SourceFinding, times: int) -> dict[str, Any]:
    """A finding as JSON. Lines and columns are counted from 1; end_column is the first one that is not marked."""
    line, column, end = f.place or (None, None, None)
    where = f"{file}:{line}:{column}" if f.place else file
    row = {"code": f.code, "message": f.message, "where": where, "warning": f.warning, "help": "; ".join(f.notes)}
    row |= {"times": times, "file": file, "line": line, "column": column, "end_column": end}
    row |= {"subject": f.subject, "notes": list(f.notes)}
    return row | ({"relayouts": [asdict(r) for r in f.relayouts]} if f.relayouts else {})


def unrated(kernels: Sequence[str]) -> str:
    """Return the text that library kernels take no time of their own. kernels: their names, at least one."""
    what = "has no rate and takes" if len(kernels) == 1 else "have no rates and take"
    return f"{', '.join(kernels)} {what} a beat, whatever the tiles: see --kernels, rates="
