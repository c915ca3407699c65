"""LLVM's code as text, read: functions, blocks, instructions, loops, places in the sources.

llvmlite parses, links and transforms modules, but its values tell neither the element type of an address, nor debug
locations, nor metadata. All three are in the text, which is regular: an instruction is a line (but `switch`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx

_VALUE = re.compile(r'[%@](?:"[^"]*"|[-\w.$]+)')
_TYPE = re.compile(r"%(?:\"[^\"]*\"|[A-Za-z_][-\w.$:]*)")
_PLACE = re.compile(r"(?:, )?!dbg !(\d+)")
_METADATA = re.compile(r", ![\w.]+ !\d+|, !dbg !\d+| !dbg !\d+")
_LOCAL = r'%(?:"[^"]*"|[-\w.$]+)'
_RESULT = re.compile(rf"\s*(?:({_LOCAL}) = )?(?:tail |musttail |notail )?(\w+)(.*)")
_LABEL = re.compile(r'^(?:"([^"]*)"|([-\w.$]+)):')
_BRACKET = re.compile(r'["(\[{<]')
_CALLEE = re.compile(r"@([-\w.$]+)\(")
_TARGET = re.compile(rf"label ({_LOCAL})")


@dataclass(eq=False)
class Instruction:
    """One instruction. result: the name of its value, or "". text: what follows the opcode. line: index of its last
    line in the module's text. place: the number of its debug location, or -1. block: the label of its block."""

    result: str
    opcode: str
    text: str
    line: int
    place: int
    block: str

    @cached_property
    def rest(self) -> str:
        """The text behind the opcode, without metadata."""
        return _METADATA.sub("", self.text) if "!" in self.text else self.text

    @cached_property
    def operands(self) -> list[str]:
        """Names of values, functions and blocks, in order, without constants."""
        return _VALUE.findall(_without_types(self.rest))

    @cached_property
    def parts(self) -> list[str]:
        """The parts of `rest` between its commas (`split`)."""
        return split(self.rest)

    @cached_property
    def callee(self) -> str:
        """The name of the function that a call calls; "" for another instruction, and for a call of a pointer."""
        found = _CALLEE.search(self.text) if self.opcode == "call" else None
        return found[1] if found else ""

    @cached_property
    def incoming(self) -> list[tuple[str, str]]:
        """Of a `phi`: its values or constants, each with the label of the block from which it comes. Empty for another
        instruction."""
        return [(v.strip(), b) for v, b in re.findall(rf"\[ (.*?), ({_LOCAL}) \]", self.rest)]

    @cached_property
    def arguments(self) -> list[str]:
        """Of a call: its arguments, without their types and attributes.

        Raises `ValueError` for another instruction than a call by name.
        """
        inside = self.rest[self.rest.index("@" + self.callee) + len(self.callee) + 2 :]
        return [part.split()[-1] for part in split(inside[: _closing(inside)]) if part]


def _without_types(text: str) -> str:
    """Names of structs look like those of values; where one stands, a type must: in front of a value or a comma."""
    return re.sub(r'%(?:struct|class|union)\.[-\w.$:]*|%"(?:struct|class|union)\.[^"]*"', "", text)


def _closing(text: str) -> int:
    depth = 1
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth:
            return i
    return len(text)


def split(text: str) -> list[str]:
    """Split a text at the commas that are in no brackets and no quotes; the parts have no blanks around them."""
    if not _BRACKET.search(text):
        return [part.strip() for part in text.split(",")]
    out, depth, begun, quoted = [], 0, 0, False
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{<":
            depth += 1
        elif c in ")]}>":
            depth -= 1
        elif c == "," and not depth:
            out.append(text[begun:i].strip())
            begun = i + 1
    return [*out, text[begun:].strip()]


@dataclass(eq=False)
class BasicBlock:
    """A basic block. label: its name, with the % in front. instructions: in order. successors: labels of the blocks
    that may follow, each once."""

    label: str
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)


@dataclass(eq=False)
class NaturalLoop:
    """A natural loop. header: label of the block by which it is entered. blocks: labels of all its blocks, those of
    inner loops too. latches: labels of the blocks from which it goes back to the header. outer: the loop around it,
    None for an outermost one. inner: the loops right inside it."""

    header: str
    blocks: set[str]
    latches: list[str]
    outer: NaturalLoop | None = None
    inner: list[NaturalLoop] = field(default_factory=list)

    @property
    def own(self) -> set[str]:
        """Labels of its blocks that are in no inner loop."""
        return self.blocks - {b for loop in self.inner for b in loop.blocks}


@dataclass(frozen=True)
class NamedPointer:
    """A record of the debug information that ties a variable of the sources to a pointer. value: name of the pointer.
    declared: whether the variable lies where it points; otherwise the pointer is the variable's value. variable: number
    of the variable's node. place: number of the debug location. block: label of the block."""

    value: str
    declared: bool
    variable: int
    place: int
    block: str


@dataclass(eq=False)
class LlvmFunction:
    """A function with a body. name: in the module. parameters: their names, with the % in front. head: the text behind
    its parameters, such as attributes. subprogram: number of its node in the debug information, -1 if there is none.
    blocks: by label, in order. named: which variables of the sources its pointers are."""

    name: str
    parameters: list[str]
    head: str
    subprogram: int
    blocks: dict[str, BasicBlock] = field(default_factory=dict)
    named: list[NamedPointer] = field(default_factory=list)

    def instructions(self) -> Iterator[Instruction]:
        """Yield all instructions, block by block."""
        for block in self.blocks.values():
            yield from block.instructions

    @cached_property
    def defined(self) -> dict[str, Instruction]:
        """The instructions that have a value, by its name."""
        return {i.result: i for i in self.instructions() if i.result}

    @cached_property
    def graph(self) -> nx.DiGraph[str]:
        """The control flow: the labels of all blocks, with an edge to each block that may follow."""
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(self.blocks)
        graph.add_edges_from((b.label, s) for b in self.blocks.values() for s in b.successors)
        return graph

    @cached_property
    def loops(self) -> list[NaturalLoop]:
        """All natural loops, inner ones before those around them."""
        entry = next(iter(self.blocks))
        dominator = nx.immediate_dominators(self.graph, entry)
        depths = {entry: 0}

        def depth(block: str) -> int:
            """How many blocks dominate a block that is reached."""
            way = []
            while block not in depths:
                way.append(block)
                block = dominator[block]
            for below in reversed(way):
                depths[below] = depths[block] + 1
                block = below
            return depths[block]

        def dominated(block: str, by: str) -> bool:
            above = depth(by)
            while depth(block) > above:
                block = dominator[block]
            return block == by

        found: dict[str, NaturalLoop] = {}
        for block in self.blocks.values():
            if block.label not in dominator and block.label != entry:
                continue
            for header in block.successors:
                if dominated(block.label, header):
                    loop = found.setdefault(header, NaturalLoop(header, {header}, []))
                    loop.latches.append(block.label)
                    ahead = [block.label]
                    while ahead:
                        at = ahead.pop()
                        if at not in loop.blocks:
                            loop.blocks.add(at)
                            ahead += self.graph.predecessors(at)
        loops = sorted(found.values(), key=lambda loop: len(loop.blocks))
        for i, loop in enumerate(loops):
            loop.outer = next((o for o in loops[i + 1 :] if loop.header in o.blocks and o is not loop), None)
            if loop.outer:
                loop.outer.inner.append(loop)
        return loops

    @cached_property
    def innermost(self) -> dict[str, NaturalLoop]:
        """The innermost loop around each block, by the block's label. Blocks that are in no loop are left out."""
        out: dict[str, NaturalLoop] = {}
        for loop in self.loops:
            for block in loop.blocks:
                out.setdefault(block, loop)
        return out


class Module:
    """A module of LLVM, read from its text. text: as LLVM prints it. lines: the lines of the text. functions: those
    with a body, by name. metadata: the text of each node, by number. structs: the text of each named type, by its name
    with the %."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.functions: dict[str, LlvmFunction] = {}
        self.metadata: dict[int, str] = {}
        self.structs: dict[str, str] = {}
        self._read()

    def _read(self) -> None:
        function: LlvmFunction | None = None
        block: BasicBlock | None = None
        number = 0
        while number < len(self.lines):
            line = self.lines[number]
            number += 1
            if function is None:
                if line.startswith("define"):
                    function = _function(line)
                    self.functions[function.name] = function
                    block = None
                elif line.startswith("!") and (found := re.match(r"!(\d+) = (.*)", line)):
                    self.metadata[int(found[1])] = found[2]
                elif line.startswith("%") and (found := re.match(r"(%\S+|%\"[^\"]*\") = type (.*)", line)):
                    self.structs[found[1]] = found[2]
                continue
            if line == "}":
                function = None
                continue
            if line[:1] != " " and (found := _LABEL.match(line)):
                label = "%" + (f'"{found[1]}"' if found[1] is not None else found[2])
                block = function.blocks[label] = BasicBlock(label)
                continue
            stripped = line.lstrip()
            if not stripped or stripped[0] == ";":
                continue
            if block is None:  # the entry has a label only where it is named
                label = f"%{len(function.parameters)}"
                block = function.blocks[label] = BasicBlock(label)
            if stripped.startswith("#dbg_"):
                _named(line, block, function)
                continue
            while stripped.startswith("switch") and "]" not in line:
                line += self.lines[number]
                number += 1
            instruction = _instruction(line, number - 1, block.label)
            block.instructions.append(instruction)
            if instruction.opcode in ("br", "switch"):
                block.successors = list(dict.fromkeys(_TARGET.findall(line)))


def _function(line: str) -> LlvmFunction:
    found = re.search(r"@([-\w.$]+|\"[^\"]*\")\(", line)
    assert found is not None
    inside = line[found.end() :]
    end = _closing(inside)
    parameters = [p.split()[-1] for p in split(inside[:end]) if p and p != "..."]
    place = _PLACE.search(inside)
    return LlvmFunction(found[1].strip('"'), parameters, inside[end:], int(place[1]) if place else -1)


def _named(line: str, block: BasicBlock, function: LlvmFunction) -> None:
    found = re.search(r"#dbg_(value|declare)\(ptr (\S+), !(\d+), .*, !(\d+)\)", line)
    if found:
        declared = found[1] == "declare" or "DW_OP_deref" in line
        function.named.append(NamedPointer(found[2], declared, int(found[3]), int(found[4]), block.label))


def _instruction(line: str, number: int, block: str) -> Instruction:
    found = _RESULT.match(line)
    assert found is not None, line
    place = _PLACE.search(found[3])
    return Instruction(found[1] or "", found[2], found[3], number, int(place[1]) if place else -1, block)
