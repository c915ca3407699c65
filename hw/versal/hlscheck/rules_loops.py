"""Rules of pipelined loops."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import gcd

import networkx as nx

from ....isa.versal.loop import PipelinedLoop
from .cycles import CycleCounts
from .debug import CppLine
from .design import HlsDesign
from .facts import HlsMemory, MemoryFacts
from .ir import Instruction
from .memory import Address, WordAccess
from .operators import OPERATORS
from .recurrence import spelled
from .rules import HlsFinding, HlsFindings
from .schedule import LoopSchedule

WRITES_AND_READS: Mapping[str, tuple[int, int, int]] = {
    "ram_1p": (1, 1, 1),
    "ram_s2p": (1, 1, 2),
    "ram_2p": (1, 2, 2),
    "ram_t2p": (2, 2, 2),
    "ram_1wnr": (1, 1 << 20, 1 << 20),
    "rom_1p": (0, 1, 1),
    "rom_2p": (0, 2, 2),
    "rom_np": (0, 1 << 20, 1 << 20),
    "": (2, 2, 2),
}
"""By type of memory (UG1399, pragma HLS bind_storage): writes, reads, and both together, in a cycle. Without a type HLS
takes up to two ports."""
CHAIN = 16
"""Comparisons behind each other in one iteration from which on a tree pays: a cycle each, of a loop of some hundred."""


def interval(loop: LoopSchedule) -> HlsFindings:
    """Yield the recurrence of a pipelined loop that needs more cycles than the loop states as its interval (rule
    `interval`)."""
    found = loop.recurrence if loop.place.interval and not loop.left else None
    if found is None or found.interval <= loop.place.interval:
        return
    lines = sorted({str(loop.design.line(loop.instructions[n])) for n in found.nodes if loop.operators[n] in OPERATORS})
    through = spelled(loop.operators[n] for n in found.nodes)
    yield HlsFinding(
        loop.line,
        "interval",
        f"states II={loop.place.interval}; a value that the loop carries needs {found.interval} cycles or more: "
        f"{through}; through {', '.join(lines[:6])}",
    )


def ports(loop: LoopSchedule) -> HlsFindings:
    """Yield memories of which an iteration accesses a bank more often than the ports of the bank allow in the interval
    of the loop (rules `ports`, and `shared-port` for arrays of two processes)."""
    by_bank: dict[tuple[HlsMemory, tuple[int, ...]], list[WordAccess]] = defaultdict(list)
    for accesses in loop.accesses.values():
        for access in accesses:
            memory = loop.memory_of(access)
            if loop.facts.is_in_registers(memory):
                continue
            for bank in _banks(access, memory, loop.facts):
                by_bank[memory, bank].append(access)
    worst: dict[tuple[HlsMemory, str], tuple[int, str]] = {}
    stated = max(loop.place.interval, 1)
    for (memory, _), found in by_bank.items():
        for rule, needed, what in _needs(loop, memory, found):
            if needed > worst.get((memory, rule), (stated, ""))[0]:
                worst[memory, rule] = needed, what
    for (memory, rule), (needed, what) in worst.items():
        text = f"states II={stated}; {loop.name_of(memory)} needs {needed}: {what} of a bank in an iteration"
        yield HlsFinding(loop.line, rule, text)


def _banks(access: WordAccess, memory: HlsMemory, facts: MemoryFacts) -> list[tuple[int, ...]]:
    """The banks that an access may take."""
    out: list[tuple[int, ...]] = [()]
    for index, d, partition in zip(access.indices, memory.array.dims, facts.partitions(memory), strict=True):
        if partition is None:
            continue
        count = max(d.count if partition.kind == "complete" else partition.factor, 1)
        step = min(index.step, 1) if partition.kind == "block" else gcd(index.step, count)
        chosen = range(index.first % step, count, step) if step else [partition.bank(index.first, d.count)]
        out = [(*bank, n) for bank in out for n in chosen]
    return out


def _needs(loop: LoopSchedule, memory: HlsMemory, found: list[WordAccess]) -> Iterator[tuple[str, int, str]]:
    """Yield the cycles that the accesses of a bank need, for each limit, with the rule and what there is of them."""
    kind, _ = loop.facts.storage(memory)
    most = WRITES_AND_READS.get(kind, WRITES_AND_READS[""])
    reads, writes = ([a for a in found if a.writes == way] for way in (False, True))
    n_reads, n_writes, n_both = (_at_once(loop, x) for x in (reads, writes, found))
    of = f" with {kind}" if kind else ""
    for n, limit, what in ((n_reads, most[1], "reads"), (n_writes, most[0], "writes"), (n_both, most[2], "accesses")):
        if n:
            yield "ports", -(-n // limit) if limit else 1 << 10, f"{n} {what}{of}"
    if loop.facts.is_shared(memory):
        yield "shared-port", n_both, f"{n_both} accesses by one of two processes"


def _at_once(loop: LoopSchedule, accesses: list[WordAccess]) -> int:
    """Words that one iteration accesses at most: two in branches that exclude each other count as one."""
    words: dict[object, set[str]] = defaultdict(set)
    for a in accesses:
        words[a.word, a.writes].add(a.instruction.block)
    if len(words) < 2:
        return len(words)
    graph: nx.Graph[object] = nx.Graph()
    graph.add_nodes_from(words)
    items = list(words.items())
    for i, (one, blocks) in enumerate(items):
        for other, others in items[i + 1 :]:
            if any(b == o or o in loop.reached[b] or b in loop.reached[o] for b in blocks for o in others):
                graph.add_edge(one, other)
    clique, _ = nx.max_weight_clique(graph, weight=None)
    return len(clique)


def stream_rate(loop: LoopSchedule) -> HlsFindings:
    """Yield streams and AXI ports that are accessed more than once in a cycle (rule `stream-rate`)."""
    by_end: dict[tuple[str, Address], list[Instruction]] = defaultdict(list)
    for i in loop.instructions:
        if i.callee in ("rsn_hls_get", "rsn_hls_put"):
            by_end[i.callee, loop.memory.addresses(i.arguments[0])[0]].append(i)
    for (what, end), calls in by_end.items():
        graph: nx.Graph[int] = nx.Graph()
        graph.add_nodes_from(range(len(calls)))
        for n, one in enumerate(calls):
            for m in range(n):
                other = calls[m]
                if (
                    one.block == other.block
                    or one.block in loop.reached[other.block]
                    or other.block in loop.reached[one.block]
                ):
                    graph.add_edge(n, m)
        most = len(nx.max_weight_clique(graph, weight=None)[0])
        if most > max(loop.place.interval, 1):
            verb, name = "reads" if what == "rsn_hls_get" else "writes", loop.name_of_end(end)
            yield HlsFinding(
                loop.line,
                "stream-rate",
                f"states II={max(loop.place.interval, 1)}; {verb} {name} {most} times in an iteration",
            )


def pipeline_place(loop: LoopSchedule) -> HlsFindings:
    """Yield loops inside a pipelined loop, or function, that were not unrolled (rules `unroll-bound`,
    `pipeline-place`)."""
    place = loop.place
    for left in loop.left:
        number = str(loop.design.number_of(place.function, left))
        calls = (i for label in left.own for i in place.function.blocks[label].instructions)
        marks = loop.design.marks_of(calls, "unroll")
        unrolled = next((CppLine(p.file, p.line) for i, p in marks if i.arguments[2] == number), None)
        if unrolled:
            yield HlsFinding(unrolled, "unroll-bound", "the loop cannot be unrolled: its number of iterations varies")
        else:
            line = loop.design.line_of_loop(place.function, left)
            yield HlsFinding(
                loop.line, "pipeline-place", f"binds a scope with the loop of {line}, which HLS would unroll"
            )


def pipeline_call(loop: LoopSchedule) -> HlsFindings:
    """Yield the calls of functions that are not inlined, in a pipelined loop (rule `pipeline-call`)."""
    for i in loop.instructions:
        if i.callee in loop.design.module.functions:
            name = loop.design.debug.name_of_function(loop.design.module.functions[i.callee].subprogram)
            yield HlsFinding(
                loop.design.line(i), "pipeline-call", f"calls {name}, which is not inlined, in a pipelined loop"
            )


def chain(loop: LoopSchedule) -> HlsFindings:
    """Yield the longest chain of float comparisons in an iteration, if it has `CHAIN` or more (rule `chain`)."""
    if loop.operators.count("fcmp") < CHAIN:
        return
    edges = [(e.of, e.to) for e in loop.edges if e.distance == 0]
    graph: nx.DiGraph[int] = nx.DiGraph(edges)
    longest: dict[int, int] = {}
    for n in nx.topological_sort(graph):
        before = max((longest[p] for p in graph.predecessors(n)), default=0)
        longest[n] = before + (loop.operators[n] == "fcmp")
    last = max(longest, key=lambda n: longest[n], default=None)
    if last is not None and longest[last] >= CHAIN:
        text = f"{longest[last]} float comparisons behind each other in an iteration, up to "
        yield HlsFinding(loop.line, "chain", text + str(loop.design.line(loop.instructions[last])))


def dependences(loop: LoopSchedule) -> HlsFindings:
    """Yield DEPENDENCE pragmas that HLS would not apply (rules `dependence-struct`, `dependence-lost`)."""
    accessed = {loop.memory_of(a) for accesses in loop.accesses.values() for a in accesses}
    by_pragma: dict[object, list[HlsMemory]] = defaultdict(list)
    for memory in accessed | set(loop.facts.pragmas):
        for said in loop.facts.dependences(memory, loop.place) if memory.function == loop.place.function.name else ():
            if said.distance != 1:  # that is said of what depends on the iteration before in any case
                by_pragma[said.pragma].append(memory)
    for pragma, memories in by_pragma.items():
        line, name = CppLine(pragma.file, pragma.line), pragma.pragma.option("variable")  # type: ignore[attr-defined]
        if len(memories) > 1:
            members = ", ".join(sorted(m.array.name for m in memories))
            yield HlsFinding(
                line, "dependence-struct", f"DEPENDENCE variable={name} is a struct of {members}: name the member"
            )
        elif memories[0] not in accessed:
            yield HlsFinding(line, "dependence-lost", f"the loop accesses no array {name}")
        elif memories[0].is_scalar or loop.facts.registers(memories[0]):
            yield HlsFinding(line, "dependence-lost", f"{name} is in registers, whose values no pragma separates")


def table(loop: LoopSchedule, loops: Mapping[str, PipelinedLoop], items: Mapping[str, frozenset[int]]) -> HlsFindings:
    """Yield the differences between a loop and the table of cycles (rules `unmodelled`, `rounds`, `trip-count`,
    `fill`). loops: the table, by the name to which a pragma refers. items: by the same names, the numbers of items with
    which times are computed."""
    stated = loop.place.pragma.pragma.option("ii") or "1"
    named = re.fullmatch(r"ii::(\w+)", stated)
    if not named:
        if stated != "1":
            yield HlsFinding(
                loop.line, "unmodelled", f"II={stated} is in no table of cycles: name it there, as ii::..."
            )
        return
    row = loops.get(named[1])
    if row is None:
        return
    if loop.place.interval != row.ii:
        yield HlsFinding(loop.line, "unmodelled", f"II={loop.place.interval}; the table says {row.ii} for {named[1]}")
    walks = re.search(r"\b(?:Walk<|Rounds )", loop.head)
    if row.rounds > 1 and f"rounds::{named[1]}" not in (loop.head if walks else loop.function_text):
        yield HlsFinding(
            loop.line, "rounds", f"the table counts {row.rounds} rounds an item; the loop has no rounds::{named[1]}"
        )
    trips = loop.trips
    if trips is not None and named[1] in items and trips not in {n * row.rounds for n in items[named[1]]}:
        known = ", ".join(str(n) for n in sorted(items[named[1]]))
        yield HlsFinding(loop.line, "trip-count", f"{trips} iterations; times are computed with {known} for {named[1]}")
    if loop.depth > row.fill:
        yield HlsFinding(
            loop.line, "fill", f"{loop.depth} cycles deep or more; the table says {row.fill} for {named[1]}"
        )


def off(design: HlsDesign) -> HlsFindings:
    """Yield loops whose PIPELINE pragma switches the pipeline off (rule `unmodelled`)."""
    for marked in design.pragmas:
        if marked.pragma.name == "pipeline" and ("off", None) in marked.pragma.arguments:
            line = CppLine(marked.file, marked.line)
            yield HlsFinding(line, "unmodelled", "the pipeline is off: an iteration ends before the next one begins")


def latency(design: HlsDesign, counts: CycleCounts) -> HlsFindings:
    """Yield iterations that take more or fewer cycles than their LATENCY pragma states (rule `latency`). A loop that
    has a single iteration is unrolled, so it is not checked. counts: of the same design."""
    for function in design.module.functions.values():
        for call, marked in design.marks(function, "scope"):
            least, most = (marked.pragma.option(end) or "" for end in ("min", "max"))
            loop = function.innermost.get(call.block)
            stated = int(most) if marked.pragma.name == "latency" and least == most and most.isdecimal() else 0
            if not stated or loop is None or not design.is_in_front(function, loop, marked):
                continue
            derived = counts.iteration(function, loop)
            if abs(stated - derived) > max(1, stated // 10):
                text = f"states a latency of {stated} cycles; an iteration takes {derived} or more"
                yield HlsFinding(CppLine(marked.file, marked.line), "latency", text)


RULES_OF_LOOPS = (interval, ports, stream_rate, pipeline_place, pipeline_call, chain, dependences)
