"""What pragmas say of memories, and which memory of a caller an argument is."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from .debug import CppLine, StoredArray
from .design import HlsDesign, PipelinedPlace
from .ir import Instruction, LlvmFunction
from .marking import MarkedPragma
from .memory import Address, FunctionMemory, Offset

COMPLETE_BELOW = 4
"""Local arrays with fewer elements become registers (UG1399, config_array_partition -complete_threshold)."""
STREAMS = re.compile(r"(stream|burst_maxi)\b")


@dataclass(frozen=True)
class HlsMemory:
    """One memory: an array, or a scalar, in a variable of a function. function: its name in the module. root: the name
    of the variable's value in that function. array: which part of the variable it is."""

    function: str
    root: str
    array: StoredArray

    @property
    def is_scalar(self) -> bool:
        """Whether the memory is one word, and no array."""
        return not self.array.dims


@dataclass(frozen=True)
class DependencePragma:
    """What a DEPENDENCE pragma says of a memory. block: label of the basic block in which it stands. distance:
    iterations between a store and a load of the same element; 0: no element is accessed by two iterations."""

    pragma: MarkedPragma
    block: str
    distance: int


@dataclass(frozen=True)
class ArrayPartition:
    """How a dimension of an array is cut into banks. kind: as the pragma says it, `cyclic`, `block` or `complete`.
    factor: number of banks; ignored if complete."""

    kind: str
    factor: int

    def bank(self, index: int, count: int) -> int:
        """Return the number of the bank in which an element of the dimension lies. index: of the element. count: number
        of elements of the dimension."""
        if self.kind == "complete":
            return index
        return index % self.factor if self.kind == "cyclic" else index // -(-count // self.factor)


@dataclass(frozen=True)
class ProcessAccess:
    """How a process of a dataflow region accesses a memory, stream or port. call: the call of the process in the
    region. name: of the process, in the sources. how: `r` if it reads, `w` if it writes; both are possible."""

    call: Instruction
    name: str
    how: frozenset[str]


class RegionProcesses:
    """Which processes of the dataflow regions of a design access which memories and streams.

    regions: the functions that are dataflow regions. of: for each memory of a region, a variable or an argument of it,
    the accesses by its processes. ends: the same for each stream and AXI port, by the region's name and the address
    there."""

    def __init__(self, design: HlsDesign) -> None:
        self._design = design
        self._used: dict[str, tuple[dict[tuple[int, StoredArray], set[str]], dict[tuple[int, Offset], set[str]]]] = {}
        self.of: dict[HlsMemory, list[ProcessAccess]] = defaultdict(list)
        self.ends: dict[tuple[str, Address], list[ProcessAccess]] = defaultdict(list)
        self.regions: list[LlvmFunction] = []
        for function in design.module.functions.values():
            if any(p.pragma.name == "dataflow" for _, p in design.marks(function, "scope")):
                self.regions.append(function)
                for call in function.instructions():
                    if call.callee in design.module.functions:
                        self._take(function, call)

    def _take(self, function: LlvmFunction, call: Instruction) -> None:
        memories, ends = self._uses_of_call(function, call)
        name = self._design.debug.name_of_function(self._design.module.functions[call.callee].subprogram)
        for (root, array), how in memories.items():
            self.of[HlsMemory(function.name, root, array)].append(ProcessAccess(call, name, frozenset(how)))
        for address, how in ends.items():
            self.ends[function.name, address].append(ProcessAccess(call, name, frozenset(how)))

    def _uses_of_call(
        self, function: LlvmFunction, call: Instruction
    ) -> tuple[dict[tuple[str, StoredArray], set[str]], dict[Address, set[str]]]:
        """What a call accesses, in the words of its caller."""
        here = self._design.memories[function.name]
        memories: dict[tuple[str, StoredArray], set[str]] = defaultdict(set)
        ends: dict[Address, set[str]] = defaultdict(set)
        of_arrays, of_ends = self._uses(call.callee)
        for (position, array), how in of_arrays.items():
            for a in here.addresses(call.arguments[position]):
                variable = here.variables.get(a.root)
                for own in variable.arrays if variable else ():
                    if own.offset == a.offset.constant + array.offset and own.size == array.size:
                        memories[a.root, own] |= how
        for (position, offset), how in of_ends.items():
            for a in here.addresses(call.arguments[position]):
                ends[Address(a.root, a.offset.plus(offset))] |= how
        return memories, ends

    def _uses(self, name: str) -> tuple[dict[tuple[int, StoredArray], set[str]], dict[tuple[int, Offset], set[str]]]:
        """What a function accesses through its arguments, by their positions."""
        if name in self._used:
            return self._used[name]
        function, here = self._design.module.functions[name], self._design.memories[name]
        arrays: dict[tuple[int, StoredArray], set[str]] = defaultdict(set)
        ends: dict[tuple[int, Offset], set[str]] = defaultdict(set)
        self._used[name] = arrays, ends
        position = {p: n for n, p in enumerate(function.parameters)}
        for i in function.instructions():
            if i.callee in self._design.module.functions:
                memories, streams = self._uses_of_call(function, i)
                for (root, array), how in memories.items():
                    if root in position:
                        arrays[position[root], array] |= how
                for address, how in streams.items():
                    if address.root in position:
                        ends[position[address.root], address.offset] |= how
            elif how_it_moves := _MOVES.get(i.callee):
                for address in here.addresses(i.arguments[0]):
                    if address.root in position:
                        ends[position[address.root], address.offset] |= {how_it_moves}
            elif not i.callee.startswith("rsn_hls"):
                for a in here.accesses(i):
                    if a.root in position and not self._is_stream(here, a.root):
                        arrays[position[a.root], a.array] |= {"w" if a.writes else "r"}
        return arrays, ends

    def _is_stream(self, memory: FunctionMemory, root: str) -> bool:
        number = memory.variables[root].number
        return number >= 0 and STREAMS.match(self._design.debug.element_name(number)) is not None


_MOVES = {"rsn_hls_get": "r", "rsn_hls_put": "w"}


class MemoryFacts:
    """What the pragmas of a design say of its memories. pragmas: those of each memory, each with its marker.
    without_memory: pragmas whose variable has no memory, each with the name of the function. Methods take functions and
    memories of this design, and raise `KeyError` for others."""

    def __init__(self, design: HlsDesign) -> None:
        self.design = design
        self.pragmas: dict[HlsMemory, list[tuple[MarkedPragma, Instruction]]] = defaultdict(list)
        self.without_memory: list[tuple[MarkedPragma, str]] = []
        self._cuts: dict[HlsMemory, tuple[ArrayPartition | None, ...]] = {}
        for function in design.module.functions.values():
            marked = list(design.marks(function, "variable"))
            of = design.memories[function.name]
            of.aggregated |= {p.pragma.option("variable") or "" for _, p in marked if p.pragma.name == "aggregate"}
            for call, pragma in marked:
                self._take(function, call, pragma)

    def _take(self, function: LlvmFunction, call: Instruction, pragma: MarkedPragma) -> None:
        named = pragma.pragma.option("variable") or ""
        found = list(self.named(function, call.arguments[1], named))
        for memory in found:
            self.pragmas[memory].append((pragma, call))
        if not found:
            self.without_memory.append((pragma, function.name))

    def named(self, function: LlvmFunction, pointer: str, name: str) -> Iterator[HlsMemory]:
        """Yield the memories that a pragma names: of the variable to which a pointer leads, or of a member of it.
        function: in which the pragma stands. pointer: name of the value that leads to the variable. name: the variable
        as the pragma writes it; with a dot it is one member."""
        memory = self.design.memories[function.name]
        for address in memory.addresses(pointer):
            for at in (address, *memory.copied(address)):
                variable = memory.variables.get(at.root)
                for array in variable.arrays if variable else ():
                    begins = array.offset == at.offset.constant
                    if begins or (array.offset > at.offset.constant and at == address and "." not in name):
                        yield HlsMemory(function.name, at.root, array)

    # -- across calls

    @cached_property
    def callers(self) -> Mapping[str, list[tuple[LlvmFunction, Instruction]]]:
        """For each function with a body, by its name, the calls of it: the function that calls, and the instruction."""
        out: dict[str, list[tuple[LlvmFunction, Instruction]]] = defaultdict(list)
        for function in self.design.module.functions.values():
            for i in function.instructions():
                if i.callee in self.design.module.functions:
                    out[i.callee].append((function, i))
        return out

    def origins(self, memory: HlsMemory) -> list[HlsMemory]:
        """Return the memories that a memory may be: for an argument those that callers pass, through any number of
        calls; otherwise itself."""
        function = self.design.module.functions[memory.function]
        if memory.root not in function.parameters:
            return [memory]
        position, out = function.parameters.index(memory.root), dict[HlsMemory, None]()
        for caller, call in self.callers[memory.function]:
            of_caller = self.design.memories[caller.name]
            for address in of_caller.addresses(call.arguments[position]):
                variable = of_caller.variables.get(address.root)
                for array in variable.arrays if variable else ():
                    if (
                        array.offset == address.offset.constant + memory.array.offset
                        and array.size == memory.array.size
                    ):
                        out |= dict.fromkeys(self.origins(HlsMemory(caller.name, address.root, array)))
        return list(out) or [memory]

    def _stated(self, memory: HlsMemory) -> list[list[tuple[MarkedPragma, Instruction]]]:
        """Pragmas of a memory; of an argument those of each memory of a caller that it may be."""
        origins = self.origins(memory)
        return [self.pragmas[memory] + (self.pragmas[o] if o != memory else []) for o in origins]

    # -- what they say

    def partitions(self, memory: HlsMemory) -> tuple[ArrayPartition | None, ...]:
        """Return, for each dimension of a memory, how it is cut into banks; None if it is not. An argument may be
        several memories (`origins`): where these are cut differently, it is None."""
        if memory not in self._cuts:
            found = [_partitions(memory.array, pragmas) for pragmas in self._stated(memory)]
            cuts = tuple(of[0] if len(set(of)) == 1 else None for of in zip(*found, strict=True))
            self._cuts[memory] = cuts
        return self._cuts[memory]

    def storage(self, memory: HlsMemory) -> tuple[str, str]:
        """Return the type and the implementation of a memory that BIND_STORAGE states, each "" if it states none."""
        stated = (p.pragma for pragmas in self._stated(memory) for p, _ in pragmas)
        bound = next((p for p in stated if p.name == "bind_storage"), None)
        return (bound.option("type") or "", bound.option("impl") or "") if bound else ("", "")

    def channel(self, memory: HlsMemory) -> str:
        """Return what a STREAM pragma makes of an array between processes: its type in lower case, such as `pipo`;
        `fifo` if the pragma states none; "" without a pragma."""
        stated = (p.pragma for pragmas in self._stated(memory) for p, _ in pragmas)
        return next((p.option("type") or "fifo" for p in stated if p.name == "stream"), "")

    def registers(self, memory: HlsMemory) -> bool:
        """Return whether each element of an array is a register: because pragmas say so, or because HLS makes registers
        of an array of few elements."""
        left = [d.count for d, p in zip(memory.array.dims, self.partitions(memory), strict=True) if not _is_complete(p)]
        few = prod(left) < COMPLETE_BELOW and all(left)
        return not left or (few and not self.storage(memory)[0])

    def is_in_registers(self, memory: HlsMemory) -> bool:
        """Return whether no port limits the accesses of a memory: it is a scalar, or each of its elements is a
        register."""
        return memory.is_scalar or self.registers(memory)

    def is_shared(self, memory: HlsMemory) -> bool:
        """Return whether several processes of a dataflow region access a memory."""
        return any(len(self.processes.of.get(o, ())) > 1 for o in self.origins(memory))

    @cached_property
    def processes(self) -> RegionProcesses:
        """Which processes of dataflow regions access which memories and streams. It is found at the first use."""
        return RegionProcesses(self.design)

    def dependences(self, memory: HlsMemory, place: PipelinedPlace) -> list[DependencePragma]:
        """Return what DEPENDENCE pragmas in a pipelined loop or function say of a memory. place: the loop or function.
        Left out are pragmas on dependences within an iteration (`intra`), and of a write on a read or write before it
        (`war`, `waw`)."""
        out = []
        for pragma, call in self.pragmas[memory]:
            if pragma.pragma.name != "dependence" or call.block not in place.blocks:
                continue
            if pragma.pragma.option("type") == "intra" or pragma.pragma.option("direction") in ("war", "waw"):
                continue
            false = pragma.pragma.option("dependent") == "false"
            out.append(DependencePragma(pragma, call.block, 0 if false else int(call.arguments[2]) or 1))
        return out

    @cached_property
    def _bound(self) -> Mapping[tuple[CppLine, str], tuple[str, str]]:
        """What BIND_OP says of the operators in the line that declares its variable: implementation and latency."""
        out = {}
        for marked in self.design.pragmas:
            pragma = marked.pragma
            if pragma.name != "bind_op":
                continue
            lines = self.design.texts[marked.file].splitlines()
            named = re.compile(rf"\b{re.escape(pragma.option('variable') or '')}\s*=[^=]")
            for line in range(marked.line - 1, 0, -1):
                if named.search(lines[line - 1]):
                    where = CppLine(marked.file, line), pragma.option("op") or ""
                    out[where] = pragma.option("impl") or "", pragma.option("latency") or ""
                    break
        return out

    def bound(self, line: CppLine, operator: str) -> tuple[str, str]:
        """Return the implementation and the latency in cycles, both as texts, that BIND_OP states of an operator in a
        line; each is "" if it states none. operator: by the name that HLS gives it, such as `fadd`."""
        return self._bound.get((line, operator), ("", ""))


def _is_complete(partition: ArrayPartition | None) -> bool:
    return partition is not None and partition.kind == "complete"


def _partitions(
    array: StoredArray, pragmas: list[tuple[MarkedPragma, Instruction]]
) -> tuple[ArrayPartition | None, ...]:
    """How pragmas cut each dimension of an array, None if they do not."""
    out: list[ArrayPartition | None] = [None] * len(array.dims)
    for marked, call in pragmas:
        if marked.pragma.name not in ("array_partition", "array_reshape"):
            continue
        given = {key: (value or key).lower() for key, value in marked.pragma.arguments}
        kind = next((k for k in ("complete", "cyclic", "block") if k in given.values()), "complete")
        dim, factor = int(given.get("dim", "1")), int(call.arguments[2])
        for d in range(len(out)) if dim == 0 else (dim - 1,):
            if 0 <= d < len(out):
                out[d] = ArrayPartition(kind, factor or 1)
    return tuple(out)
