"""Operators on values: Python's on its own numbers, numpy's on others and on tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...isa.overlays.tasks.operators import BINARY, UNARY
from ...isa.overlays.tasks.values import scalar
from .kinds import (
    BOOL,
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
    known_bool,
    literal,
    width,
)
from .values import ValueWriter

COMPARISONS = {"==": "Eq", "!=": "Ne", "<": "Lt", "<=": "Le", ">": "Gt", ">=": "Ge"}
OPERATIONS = {
    "+": "Add",
    "-": "Sub",
    "*": "Mul",
    "/": "Div",
    "//": "FloorDiv",
    "%": "FloorMod",
    "&": "And",
    "|": "Or",
    "^": "Xor",
    "<<": "ShiftLeft",
    ">>": "ShiftRight",
    **COMPARISONS,
}
"""What the kernels' header calls an operation on elements."""
KERNEL_OF = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
"""The library's name of an operator on elements, under which its rate is stated."""


class Operators(ValueWriter):
    """Writes Python operators on numbers and tiles as C++."""

    def folded(self, function: Callable[..., Any], values: Sequence[Value], made: Val | None) -> Val | None:
        """Return the result of a function whose arguments are all known before the run, as a C++ constant. function: in
        Python. values: its arguments. made: the C++ value of the same result; None if there is none. If an argument is
        not known, `made` is returned; if one is symbolic, `made` with the constant as its known value. Raises
        `HlsError` if the function fails."""
        if not all(v.has_known for v in values):
            return made
        try:
            with np.errstate(all="ignore"):
                out = literal(scalar(function(*(v.known for v in values))))
        except (ArithmeticError, TypeError, ValueError) as e:
            self.fail(str(e))
        if not isinstance(out, Val) or made is None or made.kind != out.kind:
            return out if isinstance(out, Val) else made
        if any(isinstance(v, Val) and v.symbolic for v in values):
            return replace(made, known=out.known, has_known=True, symbolic=True, low=out.low, high=out.high)
        return out

    def unary(self, op: str, given: Value) -> Value:
        """Return the C++ value of a unary operator, folded to a constant if the operand is known. op: `not`, `+`, `-`
        or `~`. given: the operand. Raises `HlsError` for an operand that the operator does not take.
        """
        if op == "not":
            value = self.truth_of(given)
            made = Val(BOOL, f"!{value.operand}", 0, 1)
            return self.folded(UNARY[op], [value], made) or made
        value = self.number(given)
        if value.adapted:
            self.fail_adapted(value)
        if value.kind.shape:
            kind = self.result_of(UNARY[op], (value.kind,))
            if op == "+":
                return value
            return self.mapped("neg", "Neg" if op == "-" else "Not", kind, value)
        kind = self.result_of(UNARY[op], (value.kind,))
        if kind == INT:
            low, high = value.low, value.high
            if op == "-":
                low, high = (None if high is None else -high), (None if low is None else -low)
            if op == "~":
                low, high = (None if high is None else ~high), (None if low is None else ~low)
            text = f"{op if op != '+' else ''}{self.integer(value, width(low, high))}"
            wide = max(value.width, width(low, high))
            made = Val(kind, text, low, high, simple=op == "+" and value.simple, wide=wide)
        else:
            made = Val(kind, f"{op if op != '+' else ''}{value.operand}", simple=False)
        return self.folded(UNARY[op], [value], made) or made

    def integer(self, value: Val, wide: int) -> str:
        """Return the C++ text of an integer as an operand, with a cast if its type is too narrow. wide: the needed
        index in `WIDTHS`."""
        return value.operand if value.width >= wide else f"{WIDTHS[wide]}({value.text})"

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """Return the C++ value of a binary operator, folded to a constant if both operands are known. a, b: the
        operands. op: as written in Python, such as `//` or `not in`. Raises `HlsError` for operands that the operator
        does not take, and for a constant result that fails.
        """
        if op in ("in", "not in"):
            return self._contains(op, a, b)
        if isinstance(a, ItemsKind | TextKind) or isinstance(b, ItemsKind | TextKind):
            made = self.folded(BINARY[op], [a, b], None)
            if made is None:
                self.fail(f"{op} of tuples or texts that only the run knows")
            return made
        x, y = self._pair(op, self.number(a), self.number(b))
        if op == "**":
            return self._power(x, y)
        if x.kind.is_int and y.kind.is_int:
            made = self._integers(op, x, y)
        else:
            made = self.elements(op, x, y)
        return self.folded(BINARY[op], [x, y], made) or made

    def _pair(self, op: str, x: Val, y: Val) -> tuple[Val, Val]:
        """Two operands. A variable that is an int at first is taken beside what it is later."""
        for one, other in ((x, y), (y, x)):
            if one.adapted:
                alike = not other.adapted and other.kind.dtype == one.kind.dtype
                if not alike or op not in ("+", "-", "*", "/", *COMPARISONS):
                    self.fail_adapted(one)
        return x, y

    def _integers(self, op: str, x: Val, y: Val) -> Val:
        """An operation on integers of Python. Its width is that of all values that it takes and gives."""
        if op in COMPARISONS:
            wide = max(x.width, y.width)
            return Val(BOOL, f"{self.integer(x, wide)} {op} {y.operand}", 0, 1, simple=False)
        if op == "/":
            return Val(FLOAT, f"rsn::quotient({x.text}, {y.text})")
        low, high = _limits(op, x, y)
        wide = max(x.width, y.width, width(low, high))
        kind = BOOL if op in ("&", "|", "^") and x.kind == y.kind == BOOL else INT
        if op in ("//", "%"):
            if x.low is not None and x.low >= 0 and y.low is not None and y.low > 0:
                sign = "/" if op == "//" else "%"
                return Val(kind, f"{self.integer(x, wide)} {sign} {y.operand}", low, high, simple=False, wide=wide)
            name = "floordiv" if op == "//" else "floormod"
            text = f"rsn::{name}({self.integer(x, 2) if wide == 2 else x.text}, {y.text})"
            return Val(kind, text, low, high, wide=max(wide, 1))
        if op in ("<<", ">>"):
            places = y.low is not None and y.high is not None and 0 <= y.low <= y.high < (31, 63, 0)[wide]
            if places and (op == ">>" or (x.low is not None and x.low >= 0)):
                return Val(kind, f"{self.integer(x, wide)} {op} {y.operand}", low, high, simple=False, wide=wide)
            text = f"rsn::{'shl' if op == '<<' else 'shr'}({x.text}, static_cast<std::int64_t>({y.text}))"
            return Val(kind, text, low, high, wide=2)
        return Val(kind, f"{self.integer(x, wide)} {op} {y.operand}", low, high, simple=False, wide=wide)

    def _power(self, x: Val, y: Val) -> Value:
        if x.has_known and y.has_known:
            made = self.folded(BINARY["**"], [x, y], None)
            assert made is not None
            return made
        if x.kind.is_int and y.kind.is_int and y.low is not None and y.low >= 0:
            return Val(INT, f"rsn::power({x.text}, static_cast<std::int64_t>({y.text}))", wide=2)
        if x.kind.shape and y.has_known and type(y.known) is int and y.known == 2:
            x = self.held(x)
            return self.elements("*", x, x)
        self.fail("a power of floats differs between computers: write a product, such as x * x")

    def elements(
        self, op: str, x: Val, y: Val, function: Callable[..., Any] | None = None, name: str = "", kernel: str = ""
    ) -> Val:
        """Return the C++ value of an operation on two floats, or on the elements of tiles. op: as for `binary`. x, y:
        the operands. function, name, kernel: for a kernel in place of an operator: the Python function that it
        computes, its name in C++, and its name in the library. Raises `HlsError` for operands that the operation does
        not take."""
        function = function or BINARY[op]
        kind = self.result_of(function, (x.kind, y.kind))
        if name == "" and op in COMPARISONS:
            computed = self._compared(x, y)
        else:
            computed = kind
        compute = element_type(computed)
        low, high = (0, 1) if kind == BOOL else (None, None)
        if op in ("/", "//", "%") and kind == FLOAT and not y.has_known:  # Python's own floats raise
            self.emit(f'rsn::require({y.operand} != 0, "division by zero");')
        if not kind.shape and not name and compute in ("float", "double") and op in ("+", "-", "*", "/", *COMPARISONS):
            text = f"{self.scalar_as(x, computed)} {op} {self.scalar_as(y, computed)}"
            return Val(kind, text, low, high, simple=False)
        left, right = (self.beside(v, computed) for v in (x, y))
        if not kind.shape and kind.is_int:
            self.fail(f"{name or op} of numbers of these kinds ({x.kind}, {y.kind})")
        out = kind.cpp if kind.shape or kind != BOOL else "bool"
        text = f"rsn::zip<{out}, {compute}>(rsn::{name or OPERATIONS[op]}(), {left}, {right})"
        if not kind.shape:
            return Val(kind, text, low, high)
        kernel = kernel or KERNEL_OF.get(OPERATIONS[op], "")
        integers = kernel in ("add", "sub") and kind.dtype in LIMITS and self.integers(x) and self.integers(y)
        return self.passed(kernel, Val(kind, text, simple=False, integers=integers), x, y)

    def row_replaced(self, x: Val, row: Val, index: Val) -> tuple[Val, Val, str]:
        """Return the arguments of the C++ of `replace_row`: the tile, the row as a tile in a variable, and the text of
        the index. Raises `HlsError` for operands that do not fit."""
        if len(x.kind.shape) != 2 or row.kind.shape != (1, x.kind.shape[1]) or not index.kind.is_int:
            self.fail(f"replace_row takes a matrix, a row of it and an integer, not {x.kind}, {row.kind}, {index.kind}")
        made = self.held(self.as_tile(row, ValueKind(x.kind.dtype, row.kind.shape)))
        return replace(x, elsewhere=(made.text,)), made, self.scalar_converted(index, "i64")

    def passed(self, kernel: str, made: Val, *operands: Val) -> Val:
        """Return an expression of tiles with the number of its elements that a cycle computes. If the kernel has a rate
        of its own, the expression is written into a tile by a loop of its own. kernel: the name under which the rate is
        stated. made: the expression. operands: what it reads."""
        lanes = min(self.datapath.lanes(kernel), *(v.lanes for v in operands))
        spread = [v.text for v in operands if v.kind.shape not in ((), made.kind.shape)]
        made = replace(made, lanes=lanes, elsewhere=(*spread, *(text for v in operands for text in v.elsewhere)))
        return self.held(made) if kernel in self.datapath.rates else made

    def mapped(self, kernel: str, function: str, kind: ValueKind, x: Val) -> Val:
        """Return the C++ value of a function of a number, or of each element of a tile. kernel, function: its names in
        the library and in C++. kind: of the result. x: the number or the tile."""
        made = Val(kind, f"rsn::map<{kind.cpp}>(rsn::{function}(), {x.text})", simple=not kind.shape)
        return self.passed(kernel, made, x) if kind.shape else made

    def _compared(self, x: Val, y: Val) -> ValueKind:
        """The kind in which numbers are compared: integers by their values."""
        both = [k for k in (x.kind, y.kind) if k.dtype not in ("bool", "int", "float")]
        if all(k.dtype in LIMITS for k in both) and FLOAT not in (x.kind, y.kind):
            return ValueKind("i64", (1,)) if "u64" not in (k.dtype for k in both) else ValueKind("int")
        return self.result_of(BINARY["+"], (x.kind, y.kind))

    def _contains(self, op: str, a: Value, b: Value) -> Value:
        if a.has_known and b.has_known and not isinstance(b, Val):
            made = known_bool((a.known in b.known) == (op == "in"))
            symbolic = isinstance(a, Val) and a.symbolic
            if not symbolic or not isinstance(b, ItemsKind):
                return made
            return replace(made, text=self._any_equal(op, a, b), simple=True, symbolic=True)
        if not isinstance(b, ItemsKind):
            self.fail(f"{op} takes a tuple or a set of numbers")
        return Val(BOOL, self._any_equal(op, a, b), 0, 1)

    def _any_equal(self, op: str, a: Value, b: ItemsKind) -> str:
        parts = []
        for one in b.items:
            equal = self.binary("==", a, one)
            assert isinstance(equal, Val)
            parts.append(equal.operand)
        text = " || ".join(parts) or "false"
        return f"({text})" if op == "in" else f"!({text})"


def _limits(op: str, x: Val, y: Val) -> tuple[int | None, int | None]:
    """The limits of the result of an operation on integers."""
    if x.low is None or x.high is None or y.low is None or y.high is None:
        if op == "%" and y.low is not None and y.high is not None and y.low > 0:
            return 0, y.high - 1
        if op == "&":
            for one in (x, y):
                if one.low is not None and one.low >= 0 and one.high is not None:
                    return 0, one.high
        return None, None
    ends = [(a, b) for a in (x.low, x.high) for b in (y.low, y.high)]
    if op in ("+", "-", "*"):
        found = [BINARY[op](a, b) for a, b in ends]
        return min(found), max(found)
    if op == "//" and (y.low > 0 or y.high < 0):
        found = [a // b for a, b in ends]
        return min(found), max(found)
    if op == "%" and y.low > 0:
        return 0, (min(x.high, y.high - 1) if x.low >= 0 else y.high - 1)
    if op == "<<" and y.low >= 0 and y.high <= 64:
        found = [a << b for a, b in ends]
        return min(found), max(found)
    if op == ">>" and y.low >= 0 and y.high <= 127:
        found = [a >> b for a, b in ends]
        return min(found), max(found)
    if op in ("&", "|", "^"):
        if x.low >= 0 and y.low >= 0:
            if op == "&":
                return 0, min(x.high, y.high)
            return 0, (1 << max(x.high, y.high).bit_length()) - 1
        bits = max(v.bit_length() for v in (x.low, x.high, y.low, y.high))
        return -(1 << bits), (1 << bits) - 1
    return None, None
