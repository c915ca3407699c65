"""What a pipelined loop needs of cycles: by its recurrences, and by the ports of its memories."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from math import gcd

import networkx as nx

from .debug import CppLine
from .design import HlsDesign, PipelinedPlace
from .facts import STREAMS, HlsMemory, MemoryFacts
from .ir import Instruction, NaturalLoop
from .memory import Address, FunctionMemory, WordAccess, step_of
from .operators import OPERATORS, operator_of
from .recurrence import OperatorEdge, Recurrence, tightest
from .trips import trips


class LoopSchedule:
    """A pipelined loop, or function, of a design, and which cycles it needs. place: the loop. facts: of the same
    design. memory: the memories of its function. instructions: of all its blocks, in the order of the module's text;
    methods know an instruction by its index in there. number: that index, by the name of the instruction's value.
    Numbers of cycles are lower bounds."""

    def __init__(self, design: HlsDesign, place: PipelinedPlace, facts: MemoryFacts) -> None:
        self.design, self.place, self.facts = design, place, facts
        self.memory: FunctionMemory = design.memories[place.function.name]
        blocks = place.function.blocks
        self.instructions = [i for label in blocks if label in place.blocks for i in blocks[label].instructions]
        self.number = {i.result: n for n, i in enumerate(self.instructions) if i.result}

    @cached_property
    def operators(self) -> list[str]:
        """The row of the table `OPERATORS` for each instruction, in the order of `instructions`."""
        out = []
        for i in self.instructions:
            operator = operator_of(i.opcode, i.rest, i.callee)
            if operator in ("fadd", "fsub") and self.facts.bound(self.design.line(i), "fadd")[0] == "fabric":
                operator = "fabric"
            if id(i) in self.accesses:
                operator = self._of_access(self.accesses[id(i)])
            out.append(operator)
        return out

    def is_multiplier(self, n: int) -> bool:
        """Return whether an instruction is a multiplication, of floats or integers, that is not made of LUTs. n: its
        index."""
        operator = self.operators[n]
        in_luts = operator == "mul" and self.facts.bound(self.design.line(self.instructions[n]), "mul")[0] == "fabric"
        return operator in ("fmul", "mul") and not in_luts

    def _of_access(self, accesses: tuple[WordAccess, ...]) -> str:
        """A copy is a load, and a store as well where both ends are in a RAM. In registers neither takes time."""
        in_ram = [a.writes for a in accesses if not self.facts.is_in_registers(self.memory_of(a))]
        return {(): "wire", (False,): "load", (True,): "store"}.get(tuple(sorted(set(in_ram))), "copy")

    def memory_of(self, access: WordAccess) -> HlsMemory:
        """Return the memory to which an access of this loop goes."""
        return HlsMemory(self.place.function.name, access.root, access.array)

    @cached_property
    def accesses(self) -> dict[int, tuple[WordAccess, ...]]:
        """The accesses of each instruction that loads, stores or copies, by the `id` of the instruction. Accesses to
        streams and AXI ports are left out."""
        out = {}
        for i in self.instructions:
            found = tuple(a for a in self.memory.accesses(i) if not self.is_stream(a.root))
            if found or i.opcode in ("load", "store"):
                out[id(i)] = found
        return out

    def is_stream(self, root: str) -> bool:
        """Return whether a variable is a stream, an array of streams, or an AXI port. root: the name of the variable's
        value."""
        variable = self.memory.variables.get(root)
        return (
            variable is not None
            and variable.number >= 0
            and bool(STREAMS.match(self.design.debug.element_name(variable.number)))
        )

    @cached_property
    def edges(self) -> list[OperatorEdge]:
        """Which instructions need which others: for a value, for a branch that chooses between values, or for what
        memory holds."""
        return [*self._of_values(), *self._of_memories()]

    def _cycles(self, n: int) -> float:
        return OPERATORS[self.operators[n]].cycles

    def _of_values(self) -> Iterator[OperatorEdge]:
        header = self.place.loop.header if self.place.loop else ""
        latches = set(self.place.loop.latches) if self.place.loop else set[str]()
        for n, i in enumerate(self.instructions):
            if i.opcode == "phi":
                for value, block in i.incoming:
                    again = i.block == header and block in latches
                    if value in self.number and (again or (block, i.block) not in self._inner_backs):
                        yield OperatorEdge(self.number[value], n, self._cycles(self.number[value]), int(again))
                if i.block != header:
                    yield from self._of_choice(i, n)
                continue
            for value in i.operands:
                if value in self.number:
                    yield OperatorEdge(self.number[value], n, self._cycles(self.number[value]), 0)

    @cached_property
    def _inner_backs(self) -> set[tuple[str, str]]:
        """Edges back to the heads of loops that are left inside."""
        inner = (x for x in self.place.function.loops if x.header in self.place.blocks and x is not self.place.loop)
        return {(latch, x.header) for x in inner for latch in x.latches}

    def _of_choice(self, phi: Instruction, n: int) -> Iterator[OperatorEdge]:
        """A value depends on the conditions of the branches between which it chooses."""
        for label in self._choosing(phi.block):
            branch = self.place.function.blocks[label].instructions[-1]
            for value in branch.operands:
                if value in self.number:
                    yield OperatorEdge(
                        self.number[value], n, self._cycles(self.number[value]) + OPERATORS["logic"].cycles, 0
                    )

    def _choosing(self, block: str) -> set[str]:
        """Blocks that end in a branch which decides from where this block is reached: there are at least two ways into
        it from such a branch."""
        graph, dominator = self._forward, self._dominator
        top, found, ahead = dominator.get(block), set[str](), list(graph.predecessors(block))
        while ahead:
            at = ahead.pop()
            if at in found:
                continue
            found.add(at)
            if at != top:
                ahead += graph.predecessors(at)
        before = list(graph.predecessors(block))
        return {b for b in found if sum(way == b or way in self.reached[b] for way in before) > 1}

    @cached_property
    def _forward(self) -> nx.DiGraph[str]:
        """Blocks of one iteration."""
        loop = self.place.loop
        graph: nx.DiGraph[str] = nx.DiGraph(self.place.function.graph.subgraph(self.place.blocks))
        backs = {(latch, loop.header) for latch in loop.latches} if loop else set[tuple[str, str]]()
        graph.remove_edges_from(self._inner_backs | backs)
        return graph

    @cached_property
    def _dominator(self) -> Mapping[str, str]:
        start = self.place.loop.header if self.place.loop else next(iter(self.place.function.blocks))
        found: dict[str, str] = nx.immediate_dominators(self._forward, start)
        return found

    @cached_property
    def reached(self) -> dict[str, set[str]]:
        """For each block, by its label, the labels of the blocks that may come behind it in the same iteration."""
        out: dict[str, set[str]] = {}
        for label in reversed(list(nx.topological_sort(self._forward))):
            after = [*self._forward.successors(label)]
            out[label] = set(after).union(*(out[block] for block in after))
        return out

    def _of_memories(self) -> Iterator[OperatorEdge]:
        by_array: dict[HlsMemory, tuple[list[tuple[int, WordAccess]], list[tuple[int, WordAccess]]]] = defaultdict(
            lambda: ([], [])
        )
        for n, i in enumerate(self.instructions):
            for access in self.accesses.get(id(i), ()):
                by_array[self.memory_of(access)][access.writes].append((n, access))
        for memory, (loads, stores) in by_array.items():
            stated = min((d.distance for d in self.facts.dependences(memory, self.place)), default=None)
            for s, store in stores:
                for n, load in loads:
                    if _apart(load, store):
                        continue
                    if self._before(s, n):
                        yield OperatorEdge(s, n, self._cycles(s), 0)
                    if memory.root in self._made_anew:
                        continue
                    distance = self._distance(load, store) if stated is None else stated
                    if distance:
                        yield OperatorEdge(s, n, self._cycles(s), distance)

    def _before(self, one: int, other: int) -> bool:
        """Whether an instruction comes before another in the same iteration."""
        here, there = self.instructions[one].block, self.instructions[other].block
        return one < other if here == there else there in self.reached[here]

    @cached_property
    def _made_anew(self) -> set[str]:
        """Variables that begin in each iteration, so that nothing of the one before is left in them."""
        starts = (i for i in self.instructions if i.callee.startswith("llvm.lifetime.start"))
        return {a.root for i in starts for a in self.memory.addresses(i.arguments[-1])}

    def _distance(self, load: WordAccess, store: WordAccess) -> int:
        """Iterations from a store to the first load that may read it; 0 if none does."""
        if load.offset.terms != store.offset.terms:
            return 1
        step = 0
        for value, scale in load.offset.terms:
            moved = self._step(value)
            if moved is None:
                return 1
            step += moved * scale
        if not step:
            return 1
        apart = store.offset.constant - load.offset.constant
        size = max(load.array.size, 1)
        if abs(apart) < size or apart % step:
            return 0 if abs(apart) < size or abs(apart % step) >= size else 1
        return max(apart // step, 0)

    def _step(self, value: str) -> int | None:
        """How much a value grows from iteration to iteration: 0 if it does not change, None if that is not known."""
        if value not in self.number:
            return 0
        return step_of(self.place.function, self.place.loop, value) if self.place.loop else None

    @cached_property
    def recurrence(self) -> Recurrence | None:
        """The circle of instructions that needs most cycles per iteration; None if none needs more than one."""
        return tightest(self.edges, 1)

    # -- for findings

    @cached_property
    def line(self) -> CppLine:
        """The line of its PIPELINE pragma."""
        return CppLine(self.place.pragma.file, self.place.pragma.line)

    def name_of(self, memory: HlsMemory) -> str:
        """Return the name of a memory in the sources: a variable, or variable and member, as `a.b`. memory: of this
        loop's function."""
        variable = self.memory.variables[memory.root]
        return f"{variable.name}.{memory.array.name}".rstrip(".")

    def name_of_end(self, end: Address) -> str:
        """Return the name of a stream or an AXI port in the sources; "a port" if it has none. end: its address in this
        loop's function."""
        variable = self.memory.variables.get(end.root)
        return variable.name if variable else "a port"

    @property
    def left(self) -> list[NaturalLoop]:
        """The loops right inside it, which were not unrolled whole; empty if all were."""
        loop = self.place.loop
        return loop.inner if loop else [x for x in self.place.function.loops if x.outer is None]

    @property
    def head(self) -> str:
        """The C++ text in front of the opening brace around its pragma, such as `for (...)`."""
        return self.place.pragma.pragma.block.head

    @property
    def function_text(self) -> str:
        """The text of the function in which its pragma stands, "" if it stands in none."""
        block = self.place.pragma.pragma.block.nearest("function")
        return block.text if block else ""

    @cached_property
    def depth(self) -> int:
        """Cycles from the beginning of an iteration to its end, at least."""
        forward: nx.DiGraph[int] = nx.DiGraph()
        for e in self.edges:
            if not e.distance and forward.get_edge_data(e.of, e.to, {"cycles": -1.0})["cycles"] < e.cycles:
                forward.add_edge(e.of, e.to, cycles=e.cycles)
        return int(nx.dag_longest_path_length(forward, weight="cycles"))

    @cached_property
    def trips(self) -> int | None:
        """Number of iterations; None if it is no constant, and for a function."""
        return trips(self.place.function, self.place.loop) if self.place.loop else None


def _apart(one: WordAccess, other: WordAccess) -> bool:
    """Whether two accesses are of different elements, by what is known of their indices."""
    both = zip(one.indices, other.indices, strict=True)
    return any((a.first - b.first) % gcd(a.step, b.step) if a.step or b.step else a != b for a, b in both)
