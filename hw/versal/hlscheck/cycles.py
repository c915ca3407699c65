"""How many cycles a function takes, as HLS would schedule it: at least, from its loops.

A pipelined loop of n iterations takes n - 1 intervals and its depth. A nest of loops that holds nothing else is one
loop (UG1399, pragma HLS loop_flatten). Another loop takes its iterations one after the other, with a cycle to begin
each. Control is run where its numbers are known; of branches that data decide the longest counts. What stands between
loops takes no time but for calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from .design import HlsDesign
from .facts import MemoryFacts
from .interpreter import Known, entered, successor
from .ir import LlvmFunction, NaturalLoop
from .schedule import LoopSchedule
from .trips import trips

MOST_STEPS = 1 << 17
"""Limit of the blocks of a function that are run."""


@dataclass(frozen=True)
class FunctionCycles:
    """How long one run of a function takes. cycles: at least. unknown: number of loops whose iterations are no
    constant; each counts as one iteration."""

    cycles: int
    unknown: int


class CycleCounts:
    """Counts the cycles of functions of a design. facts: of the same design. loops: the schedules of its pipelined
    loops."""

    def __init__(self, design: HlsDesign, facts: MemoryFacts, loops: Iterable[LoopSchedule]) -> None:
        self.design, self.facts = design, facts
        self._loops: Mapping[tuple[str, str], LoopSchedule] = {
            (x.place.function.name, x.place.loop.header if x.place.loop else ""): x for x in loops
        }
        self._done: dict[str, FunctionCycles] = {}

    def of(self, name: str) -> FunctionCycles:
        """Return the cycles of one run of a function. name: of the function in the module. A call of a function by
        itself counts as 0 cycles. Raises `KeyError` if the module has no such function with a body."""
        if name not in self._done:
            self._done[name] = FunctionCycles(0, 0)  # for what calls itself, which a rule refuses
            function = self.design.module.functions[name]
            whole = self._loops.get((name, ""))
            if whole is not None:
                self._done[name] = FunctionCycles(whole.depth, 0)
            else:
                outer = [x for x in function.loops if x.outer is None]
                self._done[name] = self._run(function) or self._path(function, set(function.blocks), outer)
        return self._done[name]

    def iteration(self, function: LlvmFunction, loop: NaturalLoop) -> int:
        """Return how many cycles one iteration of a loop takes, at least; for a pipelined loop this is its depth.
        function: in which the loop is."""
        pipelined = self._loops.get((function.name, loop.header))
        return pipelined.depth if pipelined else self._path(function, loop.blocks, loop.inner).cycles

    def _run(self, function: LlvmFunction) -> FunctionCycles | None:
        """The cycles of a function whose control is known; None if data decide, or if it takes too many steps.
        Pipelined loops with a constant number of iterations are not run."""
        whole = {x.header: x for x in function.loops if (nest := self._nest(function, x)) and not nest.unknown}
        known: Known = {}
        before, block, cycles = "", next(iter(function.blocks)), 0
        for _ in range(MOST_STEPS):
            loop = whole.get(block)
            if loop is not None:
                cycles += self._loop(function, loop).cycles
                exits = [(b, s) for b in loop.blocks for s in function.blocks[b].successors if s not in loop.blocks]
                if len(exits) != 1:
                    return None
                for label in loop.blocks:
                    for i in function.blocks[label].instructions:
                        known.pop(i.result, None)
                before, block = exits[0]
                continue
            entered(function, known, block, before)
            calls = self._calls(function, block)
            if calls.unknown:
                return None
            cycles += calls.cycles
            pipelined = self._loops.get((function.name, block))
            if pipelined is not None:  # its iterations are no constant
                again = pipelined.place.loop is not None and before in pipelined.place.loop.latches
                cycles += self._interval(pipelined) if again else pipelined.depth + 1
            after = successor(function, known, block)
            if after is None:
                return None
            if not after:
                return FunctionCycles(cycles, 0)
            before, block = block, after
        return None

    def _nest(self, function: LlvmFunction, loop: NaturalLoop) -> FunctionCycles | None:
        """The cycles of a pipelined loop, or of a nest around one that holds nothing else; None for another loop."""
        count, unknown = 1, 0
        while True:
            turns = trips(function, loop)
            count, unknown = count * (1 if turns is None else turns), unknown + (turns is None)
            found = self._loops.get((function.name, loop.header))
            if found is not None:
                return FunctionCycles((count - 1) * self._interval(found) + found.depth + 1, unknown)
            if len(loop.inner) != 1 or not self._is_empty(function, loop):
                return None
            loop = loop.inner[0]

    def _interval(self, loop: LoopSchedule) -> int:
        return max(loop.place.interval or 1, loop.recurrence.interval if loop.recurrence else 1)

    def _path(self, function: LlvmFunction, blocks: set[str], inner: list[NaturalLoop]) -> FunctionCycles:
        """The longest way through blocks. inner: the loops among them."""
        of_block = {b: loop.header for loop in inner for b in loop.blocks}
        cost = {loop.header: self._loop(function, loop) for loop in inner}
        graph: nx.DiGraph[str] = nx.DiGraph()
        header = next(label for label in function.blocks if label in blocks)
        graph.add_node(of_block.get(header, header))
        for label in function.blocks:
            if label not in blocks:
                continue
            here = of_block.get(label, label)
            if here == label and label not in cost:
                cost[label] = self._calls(function, label)
            for after in function.blocks[label].successors:
                there = of_block.get(after, after)
                if after in blocks and there != here and after != header:
                    graph.add_edge(here, there)
        best: dict[str, FunctionCycles] = {}
        for node in nx.topological_sort(graph):
            before = max((best[p] for p in graph.predecessors(node)), key=lambda x: x.cycles, default=None)
            own = cost[node]
            best[node] = FunctionCycles(
                own.cycles + (before.cycles if before else 0), own.unknown + (before.unknown if before else 0)
            )
        return max(best.values(), key=lambda x: x.cycles, default=FunctionCycles(0, 0))

    def _calls(self, function: LlvmFunction, label: str) -> FunctionCycles:
        known = self.design.module.functions
        called = [self.of(i.callee) for i in function.blocks[label].instructions if i.callee in known]
        return FunctionCycles(sum(c.cycles + 1 for c in called), sum(c.unknown for c in called))

    def _loop(self, function: LlvmFunction, loop: NaturalLoop) -> FunctionCycles:
        nest = self._nest(function, loop)
        if nest is not None:
            return nest
        turns = trips(function, loop)
        body = self._path(function, loop.blocks, loop.inner)
        return FunctionCycles((1 if turns is None else turns) * (body.cycles + 1), body.unknown + (turns is None))

    def _is_empty(self, function: LlvmFunction, loop: NaturalLoop) -> bool:
        """Whether a loop does nothing but run the one in it."""
        known = self.design.module.functions
        return not any(
            i.opcode in ("load", "store") or i.callee in known or i.callee in ("rsn_hls_get", "rsn_hls_put")
            for label in loop.own
            for i in function.blocks[label].instructions
        )
