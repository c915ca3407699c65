"""Which memory an instruction accesses, and where in it.

An address is a variable or an argument of the function, and an offset: a sum of values, each times a number of bytes,
and a constant. Of the offset follows which element of which dimension an access takes, as far as it is a constant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import NamedTuple

from .debug import DebugInformation, StoredArray
from .ir import Instruction, LlvmFunction, Module, NaturalLoop, split


@dataclass(frozen=True)
class Offset:
    """An offset in bytes: a constant, and values that are each multiplied by a number of bytes. terms: pairs (name of
    the value, bytes), without 0, sorted. constant: in bytes."""

    terms: tuple[tuple[str, int], ...]
    constant: int

    def plus(self, other: Offset) -> Offset:
        """Return the sum of two offsets."""
        terms: dict[str, int] = defaultdict(int)
        for value, scale in (*self.terms, *other.terms):
            terms[value] += scale
        return Offset(tuple(sorted((v, s) for v, s in terms.items() if s)), self.constant + other.constant)

    def times(self, factor: int) -> Offset:
        """Return the offset times a factor."""
        return Offset(tuple((v, s * factor) for v, s in self.terms), self.constant * factor)


@dataclass(frozen=True)
class Address:
    """Where an access begins. root: the name of a variable, an argument, or a value of which nothing more is known.
    offset: from there."""

    root: str
    offset: Offset


@dataclass
class StoredVariable:
    """A variable or an argument of a function. root: the name of its value. name: in the sources. number: of its node
    in the debug information, -1 if there is none. arrays: the memories that HLS makes of it."""

    root: str
    name: str
    number: int
    arrays: tuple[StoredArray, ...]


class ArrayIndex(NamedTuple):
    """The elements of a dimension that an access may mean: `first`, and all that are a multiple of `step` away from it;
    with step 0 only `first`."""

    first: int
    step: int


ANYWHERE = ArrayIndex(0, 1)


@dataclass(frozen=True)
class WordAccess:
    """An access of an instruction to a word of a memory, or to a part of the word. root: the name of the variable's
    value. array: the memory. indices: for each dimension, the elements that it may mean. offset: from the beginning of
    the variable. writes: whether it is a store."""

    instruction: Instruction
    root: str
    array: StoredArray
    indices: tuple[ArrayIndex, ...]
    offset: Offset
    writes: bool

    @property
    def word(self) -> tuple[str, str, tuple[tuple[str, int], ...], int]:
        """A key that is equal for accesses of the same word: variable, memory, offset without its constant, and the
        first byte of the word in the memory."""
        within = self.offset.constant - self.array.offset
        return (
            self.root,
            self.array.name,
            self.offset.terms,
            within - within % self.array.size if self.array.size else 0,
        )


class Types:
    """Sizes and parts of the types of a module. A type is a text, as LLVM writes it."""

    def __init__(self, module: Module) -> None:
        self._structs = module.structs
        self._sizes: dict[str, tuple[int, int]] = {}

    def size(self, text: str) -> int:
        """Return the bytes from one element of an array of this type to the next; 0 for a type that is not known. text:
        the type."""
        return self._size_and_alignment(text)[0]

    def _size_and_alignment(self, text: str) -> tuple[int, int]:
        if text not in self._sizes:
            self._sizes[text] = self._computed(text)
        return self._sizes[text]

    def _computed(self, text: str) -> tuple[int, int]:
        if text in self._structs:
            return self._size_and_alignment(self._structs[text])
        if found := re.fullmatch(r"i(\d+)", text):
            size = 1
            while size * 8 < int(found[1]):
                size *= 2
            return (size, min(size, 8)) if size <= 8 else (-(-int(found[1]) // 64) * 8, 8)
        if text in ("float", "double", "half", "bfloat", "ptr"):
            size = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8}[text]
            return size, size
        if found := re.fullmatch(r"[\[<](\d+) x (.*)[\]>]", text):
            size, alignment = self._size_and_alignment(found[2])
            return int(found[1]) * size, alignment
        packed = text.startswith("<{")
        if found := re.fullmatch(r"<?\{ ?(.*?) ?\}>?", text):
            offset, most = 0, 1
            for part in split(found[1]) if found[1] else []:
                size, alignment = self._size_and_alignment(part)
                alignment = 1 if packed else alignment
                offset = -(-offset // alignment) * alignment + size
                most = max(most, alignment)
            return -(-offset // most) * most, most
        return 0, 1

    def offset(self, text: str, field_number: int) -> int:
        """Return the bytes from the beginning of a struct to one of its fields; 0 if it has no such field. text: the
        type of the struct. field_number: from 0."""
        inside = self._structs.get(text, text)
        found = re.fullmatch(r"<?\{ ?(.*?) ?\}>?", inside)
        parts, packed, offset = split(found[1]) if found else [], inside.startswith("<{"), 0
        for i, part in enumerate(parts):
            size, alignment = self._size_and_alignment(part)
            offset = -(-offset // (1 if packed else alignment)) * (1 if packed else alignment)
            if i == field_number:
                return offset
            offset += size
        return 0

    def part(self, text: str, field_number: int) -> str:
        """Return the type of an element of an array, or of a field of a struct. text: the type of the array or struct.
        field_number: from 0; an array ignores it. Raises `IndexError` if there is no such field."""
        inside = self._structs.get(text, text)
        if found := re.fullmatch(r"[\[<](\d+) x (.*)[\]>]", inside):
            return found[2]
        found = re.fullmatch(r"<?\{ ?(.*?) ?\}>?", inside)
        return split(found[1])[field_number] if found else inside

    def is_struct(self, text: str) -> bool:
        """Return whether a type is a struct."""
        inside = self._structs.get(text, text)
        return inside.startswith(("{", "<{"))


def sum_of(function: LlvmFunction, text: str, depth: int = 0) -> Offset:
    """Return an integer of a function as a constant and a sum of values, each times a number, as far as additions and
    products by constants show it. The numbers of the result are without a unit. text: name of the integer's value, or a
    constant. depth: number of operators around it; no more than eight are followed."""
    if re.fullmatch(r"-?\d+", text):
        return Offset((), int(text))
    made = function.defined.get(text)
    if made is None or depth > 8:
        return Offset(((text, 1),), 0)
    operands = made.parts
    if made.opcode in ("zext", "sext"):
        inner = made.rest.split(" to ")[0].split()[-1]
        below = function.defined.get(inner)
        wraps = below is not None and below.opcode in ("add", "sub", "mul", "shl") and "nuw" not in below.rest
        return Offset(((inner, 1),), 0) if wraps else sum_of(function, inner, depth + 1)
    if made.opcode in ("add", "sub", "or", "mul", "shl") and len(operands) == 2:
        left, right = operands[0].split()[-1], operands[1].split()[-1]
        if made.opcode == "add" or (made.opcode == "or" and "disjoint" in made.rest):
            return sum_of(function, left, depth + 1).plus(sum_of(function, right, depth + 1))
        if made.opcode == "sub":
            return sum_of(function, left, depth + 1).plus(sum_of(function, right, depth + 1).times(-1))
        if re.fullmatch(r"-?\d+", right) and made.opcode in ("mul", "shl"):
            factor = int(right) if made.opcode == "mul" else 1 << int(right)
            return sum_of(function, left, depth + 1).times(factor)
    return Offset(((text, 1),), 0)


def step_of(function: LlvmFunction, loop: NaturalLoop, value: str) -> int | None:
    """Return how much a value grows from one iteration of a loop to the next; None if that is not known. value: its
    name; it must be a `phi` at the head of the loop."""
    made = function.defined.get(value)
    if made is None or made.opcode != "phi" or made.block != loop.header:
        return None
    steps = set[int]()
    for next_value, block in made.incoming:
        if block in loop.latches:
            grown = sum_of(function, next_value)
            if grown.terms != ((value, 1),):
                return None
            steps.add(grown.constant)
    return steps.pop() if len(steps) == 1 else None


@dataclass
class FunctionMemory:
    """The memories that a function accesses. types, debug: of the function's module. aggregated: names of the variables
    whose structs are one word, as the pragma AGGREGATE asks for."""

    function: LlvmFunction
    types: Types
    debug: DebugInformation
    aggregated: set[str] = field(default_factory=set)
    _addresses: dict[str, list[Address]] = field(default_factory=dict)
    _pointers: dict[Address, list[str]] = field(default_factory=dict)
    _accesses: dict[Instruction, list[WordAccess]] = field(default_factory=dict)

    @cached_property
    def variables(self) -> dict[str, StoredVariable]:
        """The variables and arguments of the function, by the names of their values. A variable without debug
        information has the number -1 and no memories."""
        out: dict[str, StoredVariable] = {}
        parameters = set(self.function.parameters)
        roots = {i.result for i in self.function.instructions() if i.opcode == "alloca"} | parameters
        for named in self.function.named:
            if named.value not in roots or named.value in out:
                continue
            name, argument, _ = self.debug.variable(named.variable)
            own = len(self.debug.lines(named.place)) == 1
            if (argument and own and not named.declared) if named.value in parameters else named.declared:
                arrays = self.debug.arrays(named.variable, whole=name in self.aggregated)
                out[named.value] = StoredVariable(named.value, name, named.variable, arrays)
        for root in roots - out.keys():
            out[root] = StoredVariable(root, root, -1, ())
        return out

    def addresses(self, pointer: str, depth: int = 0) -> list[Address]:
        """Return all places to which a pointer may point; there are several where branches or conditions choose the
        pointer. pointer: name of its value. depth: number of pointers that were followed to reach it."""
        if pointer not in self._addresses:
            self._addresses[pointer] = [Address(pointer, Offset((), 0))]  # of a circle
            self._addresses[pointer] = self._of(pointer, depth)
        return self._addresses[pointer]

    def _of(self, pointer: str, depth: int) -> list[Address]:
        made = self.function.defined.get(pointer)
        here = [Address(pointer, Offset((), 0))]
        if pointer.startswith("getelementptr"):
            return here
        if made is None or made.opcode == "alloca" or depth > 40:
            return here
        if made.opcode == "getelementptr":
            parts = split(re.sub(r"^\s*(?:inbounds |nuw |nusw |inrange\([^)]*\) )*", "", made.rest))
            kind, base, indices = parts[0], parts[1].split()[-1], [p.split()[-1] for p in parts[2:]]
            offset = sum_of(self.function, indices[0]).times(self.types.size(kind))
            for index in indices[1:]:
                if self.types.is_struct(kind):
                    offset = offset.plus(Offset((), self.types.offset(kind, int(index))))
                    kind = self.types.part(kind, int(index))
                else:
                    kind = self.types.part(kind, 0)
                    offset = offset.plus(sum_of(self.function, index).times(self.types.size(kind)))
            return [Address(a.root, a.offset.plus(offset)) for a in self.addresses(base, depth + 1)]
        if made.opcode == "phi":
            values = [v for v, _ in made.incoming]
        elif made.opcode == "select":
            values = [p.split()[-1] for p in made.parts[1:]]
        elif made.opcode == "load":  # a reference in a struct: what was stored there, if one value was
            values = self._stored().get(self.addresses(made.parts[1].split()[-1], depth + 1)[0], [])
            if len(values) != 1:
                return here
        elif made.opcode in ("freeze", "bitcast"):
            values = [made.rest.split(" to ")[0].split()[-1]]
        else:
            return here
        found = {a: None for v in values if v != pointer and v.startswith("%") for a in self.addresses(v, depth + 1)}
        return list(found) or here

    def _stored(self) -> dict[Address, list[str]]:
        """Pointers that are stored, by where."""
        if not self._pointers:
            self._pointers[Address("", Offset((), 0))] = []  # what is found on the way sees no more than this
            copies = []
            for i in self.function.instructions():
                if i.opcode == "store" and i.rest.lstrip().startswith("ptr "):
                    value, to = (part.split()[-1] for part in i.parts[:2])
                    for address in self.addresses(to):
                        self._pointers.setdefault(address, []).append(value)
                elif i.callee.startswith("llvm.memcpy"):
                    copies += [(t, f) for t in self.addresses(i.arguments[0]) for f in self.addresses(i.arguments[1])]
            for to_place, of in copies * 2:  # a struct is copied into an argument, and from there into a variable
                for address, values in list(self._pointers.items()):
                    if address.root == of.root and values:
                        apart = address.offset.plus(of.offset.times(-1))
                        copied = Address(to_place.root, to_place.offset.plus(apart))
                        known = self._pointers.setdefault(copied, [])
                        known += [v for v in values if v not in known]
            self._addresses = {p: a for p, a in self._addresses.items() if not self._is_loaded(p)}
        return self._pointers

    def copied(self, address: Address) -> list[Address]:
        """Return the addresses to which the object at an address is copied, if the object has no name, such as an
        argument that is passed by value and copied to a variable. Empty for any other address."""
        out: list[Address] = []
        if address.root not in self.variables or self.variables[address.root].number >= 0:
            return out
        for to, of in self._copies:
            if of.root == address.root and to.root != of.root:
                apart = address.offset.plus(of.offset.times(-1))
                out.append(Address(to.root, to.offset.plus(apart)))
        return out

    @cached_property
    def _copies(self) -> list[tuple[Address, Address]]:
        """Copies of variables: where to, and from where."""
        return [
            (to, of)
            for i in self.function.instructions()
            if i.callee.startswith("llvm.memcpy")
            for to in self.addresses(i.arguments[0])
            for of in self.addresses(i.arguments[1])
            if self._is_variable(to.root) and self._is_variable(of.root)
        ]

    def _is_variable(self, root: str) -> bool:
        made = self.function.defined.get(root)
        return made is not None and made.opcode == "alloca"

    def _is_loaded(self, pointer: str) -> bool:
        """Whether a pointer is the value of a load, or follows from one."""
        made = self.function.defined.get(pointer)
        return made is not None and (
            made.opcode == "load" or any(self._is_loaded(o) for o in made.operands if made.opcode == "getelementptr")
        )

    def accesses(self, instruction: Instruction) -> list[WordAccess]:
        """Return the words that an instruction may access, if it is a load, a store, or a copy; empty for any other
        one."""
        if instruction not in self._accesses:
            self._accesses[instruction] = [
                a
                for pointer, size, writes in _touched(instruction, self.types)
                for a in self._at(instruction, pointer, size, writes)
            ]
        return self._accesses[instruction]

    def _at(self, instruction: Instruction, pointer: str, size: int, writes: bool) -> Iterator[WordAccess]:
        for address in self.addresses(pointer):
            variable, at = self.variables.get(address.root), address.offset.constant
            arrays = variable.arrays if variable else ()
            for array in [x for x in arrays if x.offset < at + size and at < x.offset + x.bytes] or arrays:
                indices = _indices(array, self._stepped(address.offset))
                if indices is None or size > array.size:
                    indices = (ANYWHERE,) * len(array.dims)
                yield WordAccess(instruction, address.root, array, indices, address.offset, writes)

    def _stepped(self, offset: Offset) -> Offset:
        """An offset in which an index that grows from a constant by a constant, or is one of some constants, stands as
        the number of its steps."""
        terms, constant = [], offset.constant
        for value, scale in offset.terms:
            made = self.function.defined.get(value)
            loop = next((x for x in self.function.loops if made and x.header == made.block), None)
            step = step_of(self.function, loop, value) if loop else None
            starts = [v for v, block in made.incoming if loop and block not in loop.latches] if made and step else []
            if step and len(starts) == 1 and re.fullmatch(r"-?\d+", starts[0]):
                constant += int(starts[0]) * scale
                terms.append((value, scale * step))
            elif made and made.opcode == "phi" and all(re.fullmatch(r"-?\d+", v) for v, _ in made.incoming):
                first, *others = (int(v) for v, _ in made.incoming)
                constant += first * scale
                terms.append((value, scale * gcd(*(other - first for other in others))))
            else:
                terms.append((value, scale * _divisor(self.function, value)))
        return Offset(tuple(terms), constant)


def _divisor(function: LlvmFunction, value: str) -> int:
    """A number that divides a value."""
    made = function.defined.get(value)
    match made.opcode if made else "":
        case "sext" | "zext" | "trunc" if made is not None:
            return _divisor(function, made.operands[0])
        case "mul" | "shl" if made is not None and re.search(r", \d+$", made.rest):
            factor = int(made.rest.rsplit(", ", 1)[1])
            return factor if made.opcode == "mul" else 1 << factor
    return 1


def _touched(instruction: Instruction, types: Types) -> Iterator[tuple[str, int, bool]]:
    """Pointers through which an instruction accesses memory: how many bytes, and whether it writes."""
    parts = instruction.parts if instruction.opcode in ("load", "store") else []
    if instruction.opcode == "load":
        yield parts[1].split()[-1], types.size(parts[0].split()[-1] if "x" not in parts[0] else parts[0].strip()), False
    elif instruction.opcode == "store":
        yield parts[1].split()[-1], types.size(parts[0].rsplit(" ", 1)[0].strip()), True
    elif instruction.callee.startswith(("llvm.memcpy", "llvm.memmove", "llvm.memset")):
        arguments = instruction.arguments
        size = int(arguments[2]) if arguments[2].isdigit() else 1 << 40
        yield arguments[0], size, True
        if not instruction.callee.startswith("llvm.memset"):
            yield arguments[1], size, False


def _indices(array: StoredArray, offset: Offset) -> tuple[ArrayIndex, ...] | None:
    """The elements of each dimension that an offset may mean; None: it is not in there."""
    rest = offset.constant - array.offset
    scales = [abs(scale) for _, scale in offset.terms]
    out: list[ArrayIndex] = []
    for d in array.dims:
        moving = [scale for scale in scales if scale >= d.stride > 0]
        scales = [scale for scale in scales if scale < d.stride or d.stride == 0 or scale % d.stride]
        index = rest // d.stride if d.stride else 0
        rest -= index * d.stride
        if moving:
            whole = all(scale % d.stride == 0 for scale in moving)
            out.append(ArrayIndex(index, gcd(*(scale // d.stride for scale in moving))) if whole else ANYWHERE)
        elif d.count and not 0 <= index < d.count:
            return None
        else:
            out.append(ArrayIndex(index, 0))
    return tuple(out) if 0 <= rest < max(array.size, 1) else None
