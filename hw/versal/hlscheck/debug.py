"""Debug information: where in the sources an instruction comes from, and what a variable is made of."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from .ir import Module, split


@dataclass(frozen=True)
class ArrayDimension:
    """A dimension of an array. count: number of elements, 0 if it is not known. stride: bytes from one element to the
    next."""

    count: int
    stride: int


@dataclass(frozen=True)
class StoredArray:
    """An array, or a scalar, of which HLS makes one memory; its elements are called words. name: of the member of the
    variable, "" if it is the whole variable. offset: bytes from the beginning of the variable. dims: its dimensions,
    the outermost first; none for a scalar. size: bytes of a word."""

    name: str
    offset: int
    dims: tuple[ArrayDimension, ...]
    size: int

    @property
    def count(self) -> int:
        """Number of words in all."""
        return prod(max(d.count, 1) for d in self.dims)

    @property
    def bytes(self) -> int:
        """Number of bytes from the beginning of its first word to the end of its last one."""
        return self.size + sum((max(d.count, 1) - 1) * d.stride for d in self.dims)


@dataclass(frozen=True)
class CppLine:
    """A line of a source. file: its path below the folder of all sources. line: its number, from 1; 0 if it is not
    known.
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class DebugInformation:
    """The debug information of a module: names, types and places in the sources. module: compiled with it. folder: of
    the sources that clang read.

    Everything in it is a metadata node, known by its number in the module's text. node: a function that returns the
    fields of a node, by name, given its number. lines: a function that returns, given the number of a debug location,
    the line of the instruction, then those of the calls through which it was inlined."""

    def __init__(self, module: Module, folder: Path) -> None:
        self._module, self._folder = module, folder
        self.node = cache(self._node)
        self.lines = cache(self._lines)

    def _node(self, number: int) -> dict[str, str]:
        """Fields of a metadata node; `kind` is its class."""
        text = self._module.metadata.get(number, "")
        found = re.match(r"(?:distinct )?!(\w+)\((.*)\)$", text)
        if not found:
            return {}
        out = {"kind": found[1]}
        for part in split(found[2]):
            key, _, value = part.partition(": ")
            out[key] = value.strip('"')
        return out

    def _reference(self, node: dict[str, str], key: str) -> int:
        value = node.get(key, "")
        return int(value[1:]) if value.startswith("!") and value[1:].isdigit() else -1

    def file(self, node: dict[str, str]) -> str:
        """Return the file of a scope: its path below the folder, or its name alone if it lies elsewhere. node: the
        fields of the scope's node."""
        found = self.node(self._reference(node, "file"))
        path = os.path.normpath(Path(found.get("directory", ""), found.get("filename", "")))
        inside = path.startswith(f"{self._folder}/")
        return os.path.relpath(path, self._folder) if inside else Path(path).name

    def _lines(self, place: int) -> tuple[CppLine, ...]:
        """The line of an instruction, then those of the calls through which it was inlined."""
        out = []
        while place >= 0:
            node = self.node(place)
            if not node:
                break
            scope = self.node(self._reference(node, "scope"))
            out.append(CppLine(self.file(scope), int(node.get("line", "0"))))
            place = self._reference(node, "inlinedAt")
        return tuple(out)

    def line_of_function(self, subprogram: int) -> CppLine:
        """Return where a function is defined. subprogram: number of the function's node."""
        node = self.node(subprogram)
        return CppLine(self.file(node), int(node.get("line", "0")))

    def name_of_function(self, subprogram: int) -> str:
        """Return the name of a function in the sources, "" if it is not known. subprogram: number of the function's
        node."""
        return self.node(subprogram).get("name", "")

    def variable(self, number: int) -> tuple[str, int, CppLine]:
        """Return the name of a local variable, which argument of its function it is (from 1; 0 if it is none), and
        where it is declared. number: of the variable's node."""
        node = self.node(number)
        scope = self.node(self._reference(node, "scope"))
        return node.get("name", ""), int(node.get("arg", "0")), CppLine(self.file(scope), int(node.get("line", "0")))

    def arrays(self, variable: int, *, whole: bool = False) -> tuple[StoredArray, ...]:
        """Return the memories that HLS makes of a variable: it takes structs apart, and makes one memory of each
        member. variable: number of its node. whole: whether structs stay whole, as the pragma AGGREGATE asks for; each
        is one word then."""
        return tuple(self._parts(self._reference(self.node(variable), "type"), "", 0, (), whole))

    def _element(self, variable: int) -> tuple[dict[str, str], set[str]]:
        """The type of a variable's elements, and the tags of what is before it: references, pointers, arrays, names."""
        node, tags = self.node(self._reference(self.node(variable), "type")), set[str]()
        while node.get("kind") == "DIDerivedType" or node.get("tag") == "DW_TAG_array_type":
            tags.add(node.get("tag", ""))
            node = self.node(self._reference(node, "baseType"))
        return node, tags

    def element_name(self, variable: int) -> str:
        """Return the name of the type of a variable's elements, without references, pointers, arrays and typedefs.
        variable: number of its node. Returns "" for a type without a name."""
        return self._element(variable)[0].get("name", "")

    def is_off_chip(self, variable: int) -> tuple[bool, bool]:
        """Return two answers on an argument of the top function: whether it is memory that is accessed by bursts
        (`burst_maxi`), and whether it is memory behind a pointer. variable: number of its node."""
        node, tags = self._element(variable)
        name = node.get("name", "")
        return name.startswith("burst_maxi<"), "DW_TAG_pointer_type" in tags and not name.startswith("stream<")

    def bits_of_stream(self, variable: int) -> int:
        """Return how many bits an element of a stream, or of an array of streams, has in hardware; 0 if that is not
        known. The type of the element is that of the stream's member element_, as our stand-in for AMD's header
        declares it; `rsn::Nibble` is a byte there and has 4 bits in hardware. variable: number of the stream's node."""
        node, _ = self._element(variable)
        for n in self._list(node):
            member = self.node(n)
            if member.get("tag") == "DW_TAG_inheritance":
                node = self.node(self._reference(member, "baseType"))
        element = next((self.node(n) for n in self._list(node) if self.node(n).get("name") == "element_"), {})
        of = self._plain(self.node(self._reference(element, "baseType")))
        # An integer of 4 bits is a byte where sources are checked, and has 4 bits in hardware.
        return self._bytes(of) * (4 if "rsn::Nibble<" in of.get("name", "") else 8)

    def global_variable(self, number: int) -> tuple[str, CppLine]:
        """Return the name of a global variable, and where it is declared. number: of the variable's node."""
        node = self.node(number)
        if node.get("kind") == "DIGlobalVariableExpression":
            node = self.node(self._reference(node, "var"))
        return node.get("name", ""), CppLine(self.file(node), int(node.get("line", "0")))

    def _bytes(self, node: dict[str, str]) -> int:
        return int(self._plain(node).get("size", "0")) // 8

    def _plain(self, node: dict[str, str]) -> dict[str, str]:
        """A type behind names for it."""
        while node.get("kind") == "DIDerivedType" and "size" not in node:
            node = self.node(self._reference(node, "baseType"))
        return node

    def _parts(
        self, number: int, name: str, offset: int, dims: tuple[ArrayDimension, ...], whole: bool
    ) -> list[StoredArray]:
        node = self.node(number)
        if node.get("kind") == "DIDerivedType":
            reference = node["tag"] in ("DW_TAG_reference_type", "DW_TAG_rvalue_reference_type")
            if (reference or node["tag"] == "DW_TAG_pointer_type") and (dims or name):
                return [StoredArray(name, offset, dims, 8)]
            if node["tag"] == "DW_TAG_pointer_type":  # to the elements of an array, as an argument
                dims = (ArrayDimension(0, self._bytes(self.node(self._reference(node, "baseType")))),)
            return self._parts(self._reference(node, "baseType"), name, offset, dims, whole)
        if node.get("kind") != "DICompositeType":
            return [StoredArray(name, offset, dims, int(node.get("size", "0")) // 8)]
        if node["tag"] == "DW_TAG_array_type":
            base = self._reference(node, "baseType")
            counts = [int(self.node(n).get("count", "0")) for n in self._list(node)]
            stride, more = self._bytes(self.node(base)), list[ArrayDimension]()
            for count in reversed(counts):
                more.insert(0, ArrayDimension(count, stride))
                stride *= count
            return self._parts(base, name, offset, (*dims, *more), whole)
        if (
            whole
            or node.get("tag") == "DW_TAG_enumeration_type"
            or re.match(r"(vector|stream|ap_u?int)<", node.get("name", ""))
        ):
            return [StoredArray(name, offset, dims, int(node.get("size", "0")) // 8)]
        out = []
        for n in self._list(node):
            member = self.node(n)
            if member.get("kind") != "DIDerivedType" or "DIFlagStaticMember" in member.get("flags", ""):
                continue
            if member["tag"] not in ("DW_TAG_member", "DW_TAG_inheritance"):
                continue
            at = offset + int(member.get("offset", "0")) // 8
            inner = f"{name}.{member['name']}".lstrip(".") if member["tag"] == "DW_TAG_member" else name
            out += self._parts(self._reference(member, "baseType"), inner, at, dims, whole)
        return out

    def _list(self, node: dict[str, str]) -> list[int]:
        text = self._module.metadata.get(self._reference(node, "elements"), "")
        return [int(n) for n in re.findall(r"!(\d+)", text)]
