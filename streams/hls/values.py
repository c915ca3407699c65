"""Values of a task as C++ text: what every expression needs, and how a value becomes another kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

import numpy as np

from ...base.element_types import FLOATS, NARROW, ElementType
from ...base.errors import ProgramError
from ...base.place import Place
from ..datapath import Datapath
from ..words import MOVED, TileWord, word
from .kinds import (
    BOOL,
    CPP,
    F32,
    F64,
    FLOAT,
    INT,
    LIMITS,
    WIDTHS,
    ItemsKind,
    TextKind,
    Val,
    Value,
    ValueKind,
    element_type,
    inside,
    known_bool,
    known_int,
    literal,
    of_element,
    result,
    retold,
    tile_type,
)


class HlsError(ProgramError):
    """A task program, or a dynamic program, has no C++. The message begins with the place in the user's file."""


class NeedsUnrolling(Exception):
    """A value must be known before the run, and is only if the loop around it is unrolled."""


@dataclass(frozen=True)
class Poison:
    """Stands for the value of a name that has different types on the paths that lead here. why: the message for a
    statement that reads the name."""

    why: str


def names(name: str, text: str) -> bool:
    """Return whether a C++ text contains `name` as a whole word."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


@dataclass(frozen=True)
class ComingTile:
    """A tile that a product, or a put, reads directly from a stream. port: the C++ name of the stream's parameter.
    dtype: the element type of the tile."""

    port: str
    dtype: str


class ValueWriter:
    """Makes C++ values, and writes the statements that they need.

    file: the name of the user's file, for messages. Attributes: env: the values of names. lines: the statements so far.
    datapath: of the task. tiles: the kinds of the C++ variables that are tiles. fresh_tiles: those of them that hold an
    intermediate result and are read by one statement. made_of: the expression that each of these holds. coming: the
    tiles that are read directly from a stream, by the parameter of the stream. packed: for each tensor, a number of
    elements at multiples of which all accesses begin and end. marks: accesses of streams, loops and branches so far,
    from which beats are told. place: of the statement that is being written."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.place = Place(1, 1)
        self.env: dict[str, Value | Poison] = {}
        self.lines: list[str] = []
        self.datapath = Datapath()
        self.tiles: dict[str, ValueKind] = {}
        self.fresh_tiles: set[str] = set()
        self.made_of: dict[str, Val] = {}
        self.coming: dict[str, ComingTile] = {}
        self.packed: dict[str, int] = {}
        self.marks: list[object] = []
        self.draws = False
        self._count = 0

    def fail(self, what: str) -> NoReturn:
        """Raise `HlsError` with the file, line and column of the statement that is being written. what: what is
        wrong."""
        raise HlsError(f"{self.file}:{self.place.line}:{self.place.column}: hls: {what}")

    def emit(self, line: str) -> None:
        """Append one line of C++ to the function."""
        self.lines.append(line)

    def fresh(self, prefix: str) -> str:
        """Return a C++ name that is not in use: the prefix and a count."""
        self._count += 1
        return f"{prefix}_{self._count}"

    def number(self, value: Value) -> Val:
        """Return `value`, which must be a number or a tile. Raises `HlsError` for a tuple or a text."""
        if isinstance(value, Val):
            return value
        self.fail("a tuple or a text where a number or a tile is expected")

    def plain(self, value: Value) -> Val:
        """Return a number as it is, and a tile in a C++ variable. Raises `HlsError` for a tuple or a text, and for a
        variable that changes its type."""
        made = self.number(value)
        if made.adapted:
            self.fail_adapted(made)
        return self.held(made)

    def fail_adapted(self, value: Val) -> NoReturn:
        """Raise `HlsError` for a variable whose first value is a Python int or float and whose later values have
        another type."""
        self.fail(
            f"{value.text} holds an int or a float at first and {value.kind} later: annotate its first assignment, "
            f"such as {value.text}: {value.kind} = ..."
        )

    def held(self, value: Val) -> Val:
        """Return a value; if it is a tile with a longer C++ expression, write it into a variable first, so that it is
        computed once."""
        if not value.kind.shape or value.simple:
            return value
        name = self.tile(value.kind)
        self.assign(name, value)
        return Val(value.kind, name)

    def tile(self, kind: ValueKind, prefix: str = "tile") -> str:
        """Declare a new C++ variable that is a tile, and return its name. kind: of the tile. prefix: of the name."""
        name = self.fresh(prefix)
        self.emit(f"{kind.cpp} {name};")
        self.tiles[name] = kind
        self.fresh_tiles.add(name)
        self.made_of.pop(name, None)  # of a writing that was given up
        return name

    def assign(self, target: str, value: Val) -> None:
        """Write the loop that stores an expression in a tile. target: the C++ name of the tile."""
        if value.moves(target):
            value = self.held(value)
        if value.simple and self._renamed(value.text, target):
            return
        taken = word(value.kind.shape, min(value.lanes, MOVED))
        self.takes(value.kind.shape, taken)
        self.emit(f"rsn::assign<{taken}>({target}, {value.text});")
        self.made_of[target] = value

    def _renamed(self, name: str, target: str) -> bool:
        """Let a statement that has made a tile in a variable of its own make it in another one. Returns whether it
        could: nothing else reads the one, and nothing since has read the other."""
        declared = f"{self.tiles[name].cpp} {name};" if name in self.fresh_tiles else ""
        if declared not in self.lines:
            return False
        since = self.lines.index(declared)
        if any(names(target, line) for line in self.lines[since:]):
            made = self.made_of.get(name)  # in the line that makes it, each element may take that at its own place
            if made is None or made.moves(target) or len(self.lines) > since + 2:
                return False
        self.fresh_tiles.remove(name)
        self.lines[since:] = [re.sub(rf"\b{name}\b", target, line) for line in self.lines[since + 1 :]]
        return True

    def takes(self, shape: tuple[int, ...], taken: TileWord) -> str:
        """Note that a loop goes over a tile. shape: of the tile. taken: the elements that a cycle takes. Returns "" if
        it is a loop; for a tile of one word "_apart", the end of the name of the C++ function for a single access
        outside of pipelines."""
        if prod(shape) != taken.elements:
            self.marks.append("loop")
        return "" if prod(shape) != taken.elements else "_apart"

    def truth_of(self, given: Value) -> Val:
        """Return whether a value is true, as a C++ Boolean. Raises `HlsError` for a tile."""
        if isinstance(given, ItemsKind | TextKind):
            return known_bool(bool(given.known))
        value = self.plain(given)
        if value.kind.shape:
            self.fail("a tile decides; reduce it to a number first")
        if value.kind == BOOL:
            return value
        if value.has_known and not value.symbolic:
            return known_bool(bool(value.known))
        made = Val(BOOL, f"{value.operand} != 0", 0, 1, simple=False)
        return replace(made, known=bool(value.known), has_known=True, symbolic=True) if value.has_known else made

    def result_of(self, function: Callable[..., Any], kinds: tuple[Any, ...], **named: Any) -> ValueKind:
        """Return the kind of the result of a function. kinds, named: as for `kinds.result`. Raises `HlsError` if the
        function raises an error.
        """
        try:
            return result(function, kinds, tuple(named.items()))
        except (ArithmeticError, TypeError, ValueError, IndexError, AttributeError, ProgramError) as e:
            self.fail(str(e).replace("\n", " "))

    def scalar_as(self, value: Val, kind: ValueKind) -> str:
        """Return the C++ text of a number as an operand of a computation in floats of the kind `kind`. Raises
        `HlsError` for a tile.
        """
        return self.as_kind(value, ValueKind(kind.dtype)).operand

    def as_kind(self, value: Val, kind: ValueKind) -> Val:
        """Return a value as a variable of this kind holds it. A number becomes a tile in which it is each element.
        Raises `HlsError` for a tile of another kind.
        """
        if value.kind == kind or (value.kind.is_int and kind.is_int):
            return replace(value, kind=kind)
        if kind.shape:
            if value.kind.shape:
                self.fail(f"{value.kind} where {kind} is expected")
            return Val(kind, f"rsn::full<{kind.cpp}>({self.beside(value, kind)})", simple=False)
        if value.has_known and not value.symbolic:
            number = np.float32(float(value.known)) if kind == F32 else float(value.known)
            made = literal(np.float64(number) if kind == F64 else number)
            assert isinstance(made, Val)
            return made
        if value.kind.is_int:
            return Val(kind, f"rsn::{'to_float' if kind == F32 else 'to_double'}({value.text})")
        if {value.kind, kind} <= {FLOAT, F64}:
            return replace(retold(value), kind=kind)
        return Val(kind, f"{kind.cpp}({value.text})")

    def beside(self, value: Val, kind: ValueKind) -> str:
        """Return the C++ text of an operand beside a tile, or of a kernel. A Python number is converted to the element
        type of `kind`; a tile stays as it is."""
        if value.kind.shape:
            return value.text
        compute = element_type(kind)
        if compute == "rsn::Int":
            return f"rsn::Int({value.text})"
        if value.has_known and not value.symbolic and compute in ("float", "double"):
            return self.as_kind(value, F32 if compute == "float" else F64).text
        if value.kind in (F32, F64):
            return value.text if value.kind.cpp == compute else f"{compute}({value.text})"
        if kind.dtype in LIMITS and value.kind.is_int:
            low, high = LIMITS[kind.dtype]
            if value.low is not None and value.high is not None and low <= value.low and value.high <= high:
                return f"{compute}({value.text})" if value.width < 2 else f"rsn::convert<{compute}>({value.text})"
        return f"rsn::beside<{compute}>({value.text})"

    def as_tile(self, value: Val, kind: ValueKind) -> Val:
        """Return a tile converted to the element type of `kind`; the shape is the same."""
        if value.kind == kind:
            return value
        integers = self.integers(value) and kind.dtype in LIMITS
        text = f"rsn::convert_tile<{kind.cpp}>({value.text})"
        return replace(value, kind=kind, text=text, simple=False, integers=integers)

    def integers(self, value: Val) -> bool:
        """Return whether a product can compute a value where it reads it (`Val.integers`): an integer, an integer tile
        in a variable, or an expression of these."""
        return value.kind.is_int or (value.kind.dtype in LIMITS and (value.simple or value.integers))

    def converted(self, given: Value, kind: ElementType) -> Val:
        """Return a value converted to the type `kind`, as a put or a typed assignment does. Raises `HlsError` if the
        shapes differ, for a tuple or a text, and for a variable that changes its type.
        """
        value = self.number(given)
        if value.kind.shape != kind.shape:
            what = f"a tile of shape {value.kind.shape}" if value.kind.shape else "a number"
            self.fail(f"{what} where {kind.dtype}{list(kind.shape) or ''} is expected")
        if value.adapted and kind.dtype not in FLOATS:
            self.fail_adapted(value)
        out = of_element(kind.dtype, kind.shape)
        if kind.shape:
            if kind.dtype in NARROW:
                inner = f"rsn::convert_tile<{tile_type(kind.dtype, kind.shape)}>({value.text})"
                return replace(value, kind=out, text=f"rsn::convert_tile<{out.cpp}>({inner})", simple=False)
            return self.as_tile(value, out)
        text = _wider(self.scalar_converted(value, kind.dtype), kind.dtype)
        if not out.is_int:
            return replace(value, kind=out) if text == value.text else Val(out, text)
        low, high = LIMITS[kind.dtype]
        kept = value.kind.is_int and inside(value, low, high)
        if kept:
            return replace(value, kind=out) if kind.dtype != "boolean" or value.kind == BOOL else Val(BOOL, text, 0, 1)
        made = Val(out, text, low, high)
        if value.has_known and not value.symbolic and value.kind.is_int:
            bits = high - low + 1
            return known_int((int(value.known) - low) % bits + low) if out == INT else known_bool(bool(value.known))
        return made

    def scalar_converted(self, value: Val, dtype: str) -> str:
        """Return the C++ text of a number, converted to the C++ type of an element. dtype: of the element."""
        if dtype in ("f32", "f64") and value.has_known and not value.symbolic:
            made = literal(np.asarray(value.known).astype(np.float32 if dtype == "f32" else np.float64)[()])
            assert isinstance(made, Val)
            return made.text
        if dtype == "boolean" and value.kind == BOOL:
            return value.text
        if (dtype == "f32" and value.kind == F32) or (dtype == "f64" and value.kind in (F64, FLOAT)):
            return value.text
        held = dtype in LIMITS and dtype != "boolean" and dtype not in NARROW
        if held and value.kind.is_int and inside(value, *LIMITS[dtype]):
            return value.text if value.width < 2 else f"rsn::convert<{CPP[dtype]}>({value.text})"
        return f"rsn::convert<{CPP[dtype]}>({value.text})"

    def element(self, text: str, dtype: str) -> Val:
        """Return an element of a tile, tensor or stream as a value. text: the C++ that reads it. dtype: its type in
        memory."""
        kind, text = of_element(dtype), _wider(text, dtype)
        if not kind.is_int:
            return Val(kind, text)
        wide = {"u32": 1, "u64": 2}.get(dtype, 0)
        return Val(kind, f"{WIDTHS[wide]}({text})" if wide else text, *LIMITS[dtype])


def _wider(text: str, dtype: str) -> str:
    """The C++ text of an element as the number with which C++ computes."""
    return text if dtype not in NARROW else f"{'float' if dtype in FLOATS else 'int'}({text})"
