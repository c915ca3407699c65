"""Check sources by all rules: those of hw/versal, and folders that `rsn hls` writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....base.errors import RsnError
from ....isa.overlays.xnn.cycles import BURST_WORDS
from ....isa.overlays.xnn.cycles import LOOPS as XNN_LOOPS
from ....isa.overlays.xnn2.cycles import LOOPS as XNN2_LOOPS
from ....isa.overlays.xnn8.cycles import LOOPS as XNN8_LOOPS
from ....isa.versal.loop import PipelinedLoop
from ....isa.versal.tiles import BEATS, BLOCK_WORDS, TILE
from ..csim.build import MACHINES
from . import rules_aie, rules_dataflow, rules_loops
from .cycles import CycleCounts, FunctionCycles
from .debug import CppLine
from .design import HlsDesign
from .facts import MemoryFacts
from .rules import RULES, HlsFinding
from .schedule import LoopSchedule

TABLES: Mapping[str, Mapping[str, PipelinedLoop]] = {"xnn": XNN_LOOPS, "xnn2": XNN2_LOOPS, "xnn8": XNN8_LOOPS}
ITEMS: Mapping[str, frozenset[int]] = {
    "port": frozenset({BURST_WORDS, BLOCK_WORDS, 4}),  # a burst, a block that is kept, a row of it
    "load": frozenset({BLOCK_WORDS}),
    "store": frozenset({BLOCK_WORDS}),
    "take": frozenset({BLOCK_WORDS, BEATS, TILE // 4}),  # the last: ends of a head, four rows each
    "statistics": frozenset({TILE // 2}),
    **dict.fromkeys(("send", "mesh", "receive"), frozenset({BEATS})),
    **dict.fromkeys(("exchange", "join", "factors"), frozenset({TILE})),
}
"""By row of a table of cycles the numbers of items with which times are computed, of loops that have one number."""
_ALLOWED = re.compile(r"//\s*hls-allow ([\w-]+): (\S.*)")


@dataclass(frozen=True)
class CheckedLoop:
    """What was derived of a pipelined loop. line: of its PIPELINE pragma. function: in which it is, by its name in the
    sources. stated: the initiation interval that the pragma states. needed: the least interval that recurrences allow;
    None if a loop is left inside. trips: number of iterations; None if it is no constant. depth: cycles of an
    iteration, at least. multiplications: of floats and of integers in an iteration, without those by a constant or made
    of LUTs."""

    line: CppLine
    function: str
    stated: int
    needed: int | None
    trips: int | None
    depth: int
    multiplications: int


@dataclass
class HlsReport:
    """What a check has found. findings: in the order of the sources. allowed: findings that a comment in the source
    allows, each with the reason that it gives. loops: all pipelined loops. processes: of dataflow regions, in order,
    each with its name and the cycles of one run."""

    findings: list[HlsFinding] = field(default_factory=list)
    allowed: list[tuple[HlsFinding, str]] = field(default_factory=list)
    loops: list[CheckedLoop] = field(default_factory=list)
    processes: list[tuple[str, FunctionCycles]] = field(default_factory=list)


def check_kernel(
    texts: Mapping[str, str],
    files: Sequence[str],
    top: str,
    flags: Sequence[str] = (),
    table: Mapping[str, PipelinedLoop] | None = None,
) -> HlsReport:
    """Check the sources of one kernel. texts: all sources by path. files: the paths of those that are compiled. top:
    name of the top function. flags: further options of clang. table: the cycles of loops, by the name to which PIPELINE
    pragmas refer; None: loops are not compared with a table. Raises `RsnError` if clang is not installed, or does not
    compile the sources."""
    design = HlsDesign(texts, files, top, flags)
    facts, report = MemoryFacts(design), HlsReport()
    found: dict[HlsFinding, None] = {}
    loops = [LoopSchedule(design, place, facts) for place in design.pipelines]
    for loop in loops:
        place = loop.place
        for rule in rules_loops.RULES_OF_LOOPS:
            found |= dict.fromkeys(rule(loop))
        if table is not None:
            found |= dict.fromkeys(rules_loops.table(loop, table, ITEMS))
        needed = None if loop.left else loop.recurrence.interval if loop.recurrence else 1
        name = design.debug.name_of_function(place.function.subprogram)
        products = sum(map(loop.is_multiplier, range(len(loop.instructions))))
        report.loops.append(CheckedLoop(loop.line, name, place.interval or 1, needed, loop.trips, loop.depth, products))
    if table is not None:
        found |= dict.fromkeys(rules_loops.off(design))
    counts = CycleCounts(design, facts, loops)
    for region in facts.processes.regions:
        for call in region.instructions():
            process = design.module.functions.get(call.callee)
            if process is not None and not call.callee.startswith("_ZN3hls"):  # not those that make streams
                report.processes.append((design.debug.name_of_function(process.subprogram), counts.of(process.name)))
    found |= dict.fromkeys(rules_loops.latency(design, counts))
    for rule_of_design in rules_dataflow.RULES_OF_DESIGNS:
        found |= dict.fromkeys(rule_of_design(facts))
    return _sorted(report, found, texts)


def machine_texts(versal: Path) -> dict[str, str]:
    """Return the sources of all machines that are for AMD's tools, by their paths below the folder `versal` of all
    sources. Raises `OSError`.
    """
    paths = (p.relative_to(versal) for p in sorted(versal.rglob("*")) if p.suffix in (".h", ".cpp", ".cc"))
    return {
        p.as_posix(): (versal / p).read_text(encoding="utf-8")
        for p in paths
        if p.parts[0] in ("aie", "pl", "xnn2", "xnn8", "isa.h")
    }


def check_machine(machine: str, versal: Path) -> HlsReport:
    """Check the sources of a machine. machine: a key of `MACHINES`; raises `KeyError` for another. versal: the folder
    of all sources.

    Raises as `check_kernel`, and `OSError`."""
    made_of = MACHINES[machine]
    texts = machine_texts(versal)
    files = [p.relative_to(versal).as_posix() for p in made_of.kernel_files(versal)]
    report = check_kernel(texts, files, "dma_hls", made_of.flags, TABLES[machine])
    programs = {name: text for name, text in texts.items() if name.startswith("aie/") or name in made_of.graph}
    found = dict.fromkeys([*report.findings, *rules_aie.pointers(programs), *rules_aie.alignment(programs)])
    for program in (p for p in made_of.graph if "entries.h" in texts[p]):  # others compare their own stack
        found |= dict.fromkeys(rules_aie.stacks(versal, program, made_of.flags))
    whole = HlsReport(loops=report.loops, processes=report.processes)
    return _sorted(whole, dict.fromkeys([*found, *(f for f, _ in report.allowed)]), texts)


def check_folder(folder: Path, sizes: Mapping[str, int] | None = None) -> HlsReport:
    """Check a folder that `rsn hls` has written, except for its test bench. sizes: by name, values of sizes that each
    run gives; loops then have the iterations of a run with these values. Raises as `check_kernel`, `RsnError` for a
    size that the sources do not have, and `OSError` if the folder cannot be read or has no hls.tcl."""
    texts = {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.iterdir()) if p.suffix in (".h", ".cpp")}
    texts.pop("testbench.cpp", None)
    script = (folder / "hls.tcl").read_text(encoding="utf-8")
    top = re.search(r"^set_top (\w+)", script, re.MULTILINE)
    names = set(re.findall(r"RSN_SIZE\((\w+), \w+\);", texts.get("top.cpp", "")))
    flags = ["-DRSN_SIZE(name,given)=RSN_SIZE_##name(given)"] if names else []
    values = {name: f"({value})" for name, value in (sizes or {}).items()}
    if unknown := sorted(values.keys() - names):
        raise RsnError(f"{folder} has no size {unknown[0]}; it has {', '.join(sorted(names)) or 'none'}")
    flags += [f"-DRSN_SIZE_{name}(given)={values.get(name, '(given)')}" for name in sorted(names)]
    return check_kernel(texts, ["top.cpp"], top[1] if top else "", flags)


def _sorted(report: HlsReport, found: Iterable[HlsFinding], texts: Mapping[str, str]) -> HlsReport:
    """The report with these findings, without those that a comment in the line, or in the one before it, allows."""
    lines = {name: text.splitlines() for name, text in texts.items()}
    for finding in sorted(found, key=lambda f: (f.line.file, f.line.line, f.rule, f.text)):
        assert finding.rule in RULES
        of_file, n = lines.get(finding.line.file, []), finding.line.line
        near = [_ALLOWED.search(text) for text in of_file[max(n - 2, 0) : n]]
        reason = next((a[2] for a in near if a and a[1] == finding.rule), None)
        if reason is None:
            report.findings.append(finding)
        else:
            report.allowed.append((finding, reason))
    return report
