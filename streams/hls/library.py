"""Library kernels on values."""

from __future__ import annotations

import re
from dataclasses import replace
from inspect import signature
from math import inf
from typing import Any

import numpy as np

from ...base.element_types import NARROW, ElementType
from ...isa.overlays.tasks.kernels import KERNELS
from ..words import MOVED, comes_by_column, comes_by_row, stream_word, word
from .kinds import (
    BOOL,
    CPP,
    F32,
    FLOAT,
    INT,
    LIMITS,
    WIDTHS,
    ItemsKind,
    TextKind,
    Val,
    Value,
    ValueKind,
    hull,
    joined,
    known_int,
    literal,
    of_element,
    width,
)
from .operators import Operators

ELEMENTWISE = {
    "add": "Add",
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "maximum": "Larger",
    "minimum": "Smaller",
    "scale": "Mul",
}
ON_FLOATS = {"gelu": "Gelu", "silu": "Silu", "tanh": "Tanh", "exp": "Exp", "sqrt": "Sqrt", "rint": "Rint"}
ON_ROWS = {"softmax", "layernorm", "rmsnorm"}
ONLY_SINGLE = {"gelu", "silu", "tanh", "exp", "softmax"}
"""Kernels with exp, which is stated for float32 only."""
BUILTIN = {"int", "float", "bool", "abs", "max", "min"}
TURNED_MATRIX = re.compile(r"rsn::transpose<rsn::Tile<[^<>]*>, 1, 0>\((\w+)\)")
"""The transpose of a matrix in a variable: a product reads it in place, where other kernels make a copy."""
EPSILON = 1e-5
"""Default of the parameter eps of the norms."""


class KernelWriter(Operators):
    """Writes calls of library kernels, and of the Python functions that tasks may call, as C++."""

    def kernel(self, name: str, given: list[Value], named: dict[str, Value]) -> Value:
        """Return the value of a call of a kernel. The statements that it needs are written before. name: of the kernel.
        given: its operands. named: its options, by name. Raises `HlsError` for operands or options that have no C++."""
        if name == "data":
            self.draws = True
            drawn = self.fresh("drawn")
            self.emit(f"const bool {drawn} = draws.next();")
            return Val(BOOL, drawn, 0, 1)
        if name == "use":
            texts = [v.text for v in given if isinstance(v, Val) and not v.has_known]
            if texts:
                self.emit(f"rsn::use({', '.join(texts)});")
            return known_int(0)
        if name in ("len", "shape", "ndim") and len(given) == 1:
            return self._sizes(name, given[0])
        if name == "full":
            return self._full(given)
        if name in ("max", "min", "concat") and len(given) == 1 and isinstance(given[0], ItemsKind):
            given = list(given[0].items)
        if name in BUILTIN:
            return self._builtin(name, [self.plain(v) for v in given])
        if name == "concat":
            return self._concat([self.plain(v) for v in given], named)
        return self._bound_kernel(name, given, named)

    def _sizes(self, name: str, given: Value) -> Value:
        if isinstance(given, ItemsKind | TextKind):
            return known_int(len(given.known) if isinstance(given, TextKind) else len(given.items))
        shape = given.kind.shape
        if name == "shape":
            return literal(shape)
        if name == "len" and not shape:
            self.fail("len of a number")
        return known_int(len(shape) if name == "ndim" else shape[0])

    def _bound_kernel(self, name: str, given: list[Value], named: dict[str, Value]) -> Value:
        """A kernel of the library with its operands and options in their places."""
        try:
            bound = signature(KERNELS[name].compute).bind(*given, **named).arguments
        except TypeError as e:
            self.fail(f"{name}: {e}")
        options: dict[str, Any] = {}
        values: list[Val | None] = []
        for key, value in bound.items():
            if key in ("axis", "keepdims", "eps"):
                options[key] = self.fixed(value, key)
            elif isinstance(value, tuple):  # the sizes of reshape, the axes of transpose
                known = [self.fixed(v, f"{name}: a size or an axis") for v in value]
                options[key] = known[0] if len(known) == 1 and isinstance(known[0], tuple) else tuple(known)
            else:
                values.append(None if value is None else self._operand(name, value))
        operands = [v for v in values if v is not None]
        if operands and not options and all(v.has_known for v in operands):
            folded = self.folded(KERNELS[name], operands, None)
            if folded is not None:
                return folded
        if name in ELEMENTWISE and len(operands) == 2:
            return self._two(name, *operands)
        gamma, beta = ((bound.get(key) is not None) for key in ("gamma", "beta"))
        if beta and not gamma:
            self.fail(f"{name} with beta takes gamma too")
        return self._library(name, operands, options)

    def _operand(self, name: str, value: Value) -> Val:
        """An operand of a kernel. Those that take or combine elements take expressions, products what is read in place,
        others tiles."""
        made = self.number(value)
        if made.adapted:
            self.fail_adapted(made)
        combined = KERNELS[name].rule == "reduce" and not TURNED_MATRIX.fullmatch(made.text)
        if combined or KERNELS[name].rule == "elementwise" or made.text in self.coming:
            return made
        return made if name == "matmul" and self._read_in_product(made) else self.held(made)

    def port_of(self, value: Val) -> str:
        """Return the C++ text of a tile without its transposition, if it is a transpose. For a tile that a product
        reads directly from a stream (`coming`), this is the name of the stream's parameter."""
        turned = TURNED_MATRIX.fullmatch(value.text)
        return turned[1] if turned else value.text

    def _read_in_product(self, value: Val) -> bool:
        """Whether a product reads an operand in place: the transpose of a tile, or integers of tiles."""
        return bool(TURNED_MATRIX.fullmatch(value.text)) or value.integers

    def fixed(self, value: Value, what: str) -> Any:
        """Return the Python value of an operand that must be known before the run. what: its name in the message.
        Raises `HlsError` if it is not known."""
        if not value.has_known:
            self.fail(f"{what} must be known before the run")
        return value.known

    def _two(self, name: str, x: Val, y: Val) -> Val:
        kind = self.result_of(KERNELS[name], (x.kind, y.kind))
        if kind == INT:  # numpy's integers of 64 bits
            sign = {"Add": "+", "Sub": "-", "Mul": "*"}.get(ELEMENTWISE[name])
            if sign:
                made = f"{self.integer(x, 2)} {sign} {y.operand}"
                return Val(INT, f"rsn::convert<std::int64_t>({made})", *LIMITS["i64"])
            return self._chosen(x, y, ">=" if name == "maximum" else "<=")
        return self.elements("", x, y, KERNELS[name], ELEMENTWISE[name], name)

    def _chosen(self, x: Val, y: Val, op: str) -> Val:
        """The first of two numbers of one kind if the comparison holds, else the second."""
        if not (x.kind.is_int and y.kind.is_int) and x.kind != y.kind:
            self.fail(f"max and min take numbers of one kind, not {x.kind} and {y.kind}")
        low, high = hull(x, y) if x.kind.is_int else (None, None)
        kind = joined(x.kind, y.kind)
        assert kind is not None
        wide = max(x.width, y.width, width(low, high)) if kind.is_int else 0
        cpp = WIDTHS[wide] if kind.is_int else kind.cpp
        left = self.integer(x, wide) if kind.is_int else x.operand
        text = f"{left} {op} {y.operand} ? {cpp}({x.text}) : {cpp}({y.text})"
        return Val(INT if kind.is_int else kind, text, low, high, simple=False, wide=wide)

    def _builtin(self, name: str, values: list[Val]) -> Value:
        if values and all(v.has_known for v in values):
            folded = self.folded(KERNELS[name], values, None)
            if folded is not None:
                return folded
        if name in ("max", "min"):
            out = values[0]
            for other in values[1:]:  # Python keeps the first of equal ones
                out = self._chosen(out, other, ">=" if name == "max" else "<=") if out.kind.is_int \
                    else self._first(out, other, name)  # fmt: skip
            return out
        if len(values) != 1 or (values[0].kind.shape and name != "abs"):
            self.fail(f"{name} takes one number")
        (x,) = values
        if name == "bool":
            return self.truth_of(x)
        if name == "float":
            return self.as_kind(x, FLOAT) if x.kind != F32 else Val(FLOAT, f"double({x.text})")
        if name == "int":
            return replace(x, kind=INT) if x.kind.is_int else Val(INT, f"rsn::truncated({x.text})", wide=2)
        if x.kind.is_int:
            bounds = [abs(b) for b in (x.low, x.high) if b is not None]
            high = max(bounds) if len(bounds) == 2 else None
            wide = max(1, x.width, width(0, high))
            return Val(INT, f"rsn::absolute({self.integer(x, wide)})", 0, high, wide=wide)
        return self.mapped("abs", "Abs", x.kind, x)

    def _first(self, x: Val, y: Val, name: str) -> Val:
        """max and min of floats: the second one only if it is larger, or smaller, or NaN."""
        if x.kind != y.kind or x.kind.shape:
            self.fail(f"max and min take numbers of one kind, not {x.kind} and {y.kind}")
        op = ">" if name == "max" else "<"
        other = y.operand
        return Val(x.kind, f"{other} {op} {x.operand} || {other} != {other} ? {other} : {x.operand}", simple=False)

    def _full(self, given: list[Value]) -> Val:
        """A tile of one value. given: element type, value, sizes."""
        if len(given) < 3:
            self.fail("full takes an element type, a value and sizes")
        dtype, value = self.fixed(given[0], "the element type of a tile"), self.plain(given[1])
        sizes = tuple(self.fixed(v, "the size of a tile") for v in given[2:])
        if dtype not in CPP or value.kind.shape or any(type(n) is not int or n < 1 for n in sizes):
            self.fail("full takes an element type, a number and sizes")
        kind = of_element(dtype, sizes)
        own = self.scalar_converted(value, kind.dtype)
        return Val(kind, f"rsn::full<{kind.cpp}>({own})", simple=False)

    def _concat(self, values: list[Val], named: dict[str, Value]) -> Val:
        options = {key: self.fixed(value, key) for key, value in named.items()}
        if not values or not all(v.kind.shape for v in values):
            self.fail("concat takes tiles")
        kind = self.result_of(KERNELS["concat"], tuple(v.kind for v in values), **options)
        axis = int(options.get("axis", 0)) % len(kind.shape)
        name, at = self.tile(kind), 0
        for v in values:
            taken = word(v.kind.shape, MOVED)
            self.takes(v.kind.shape, taken)
            self.emit(f"rsn::place_tile<{taken}, {axis}>({name}, {v.text}, {at});")
            at += v.kind.shape[axis]
        return Val(kind, name)

    def _library(self, name: str, values: list[Val], named: dict[str, Any]) -> Val:
        """The kernels on tiles."""
        if name == "matmul":
            kind = self.matmul_kind(values)
            self.marks.append("loop")
            return self._product(kind, *values)
        if name in ("transpose", "reshape"):
            return self._moved(name, values[0], named)
        kind = self.result_of(KERNELS[name], tuple(v.kind for v in values), **named)
        x = values[0]
        if name in ON_FLOATS or name in ON_ROWS:
            if name in ONLY_SINGLE and ("f64" in (kind.dtype, x.kind.dtype) or x.kind == FLOAT):
                self.fail(f"{name} in f64 differs between computers: use f32")
            return self._on_floats(name, x, values[1:], named)
        if name == "banded":
            return self._banded(x, *values[1:])
        if name == "replace_row":
            made, row, index = self.row_replaced(x, *values[1:])
            return replace(made, text=f"rsn::replace_row({made.text}, {row.text}, {index})", simple=False)
        if name == "relu" and x.kind.is_int:
            return self._chosen(x, known_int(0), ">=")
        if name == "relu":
            return self.mapped(name, "Relu", kind, x)
        if name == "neg":
            return self.number(self.unary("-", x))
        if name in ("reduce_sum", "reduce_max") and x.kind.shape:
            return self._reduced(name, x, kind, named.get("axis"))
        self.fail(f"{name} of {', '.join(str(v.kind) for v in values)} has no C++")

    def product_of_integers(self, dtype: str, a: Val, b: Val, sums: Val | None = None) -> Val | None:
        """Return the product of two integer tiles, with sums of an integer type; None for operands that are no
        integers, and for `sums` of another kind. A sum that is too large wraps around.

        dtype: the element type of the sums. a, b: the tiles. sums: a tile to which the product is added; None to begin
        with zeros. Raises `HlsError` for operands whose shapes do not fit."""
        kind = ValueKind(dtype, self.matmul_kind([a, b]).shape)
        if {a.kind.dtype, b.kind.dtype, dtype} - LIMITS.keys() or dtype in (*NARROW, "boolean"):
            return None
        if sums is not None and sums.kind != kind:
            return None
        self.marks.append("loop")
        a, b = self._operand("matmul", a), self._operand("matmul", b)
        return self._product(kind, a, b, sums)

    def _product(self, kind: ValueKind, a: Val, b: Val, sums: Val | None = None) -> Val:
        """A product of two tiles. The right one may be the transpose of a tile, or come over a stream meanwhile. sums:
        a tile in a variable to which it is added; None for a new one."""
        made, out = ElementType(kind.dtype, kind.shape), sums.text if sums else self.tile(kind)
        stream, turned = self.coming.pop(self.port_of(b), None), self.port_of(b) != b.text
        shape = b.kind.shape[::-1] if turned else b.kind.shape
        coming = ElementType(stream.dtype, shape) if stream is not None else None
        begins = "false" if sums else "true"
        if stream is not None and coming is not None and turned and comes_by_column(coming.dtype, shape):
            taken, steps = self.datapath.dots(made, coming)
            words = f"{taken}, {stream_word(stream.dtype, shape)}, {steps}, {begins}"
            self.emit(f"rsn::matmul_turned_from<{words}>({out}, {a.text}, {stream.port});")
            return Val(kind, out)
        taken = self.datapath.product_word(made, b.kind.shape[-2] if turned else 0)
        comes = coming is not None and not turned and comes_by_row(coming.dtype, shape, taken)
        steps = self.datapath.product_steps(made, taken, coming if comes else None)
        fabric = self.datapath.fabric_columns(made, taken, steps)
        more = f", {begins}, {fabric}" if fabric or steps > 1 else ", false" if sums else ""
        more += f", {steps}" if steps > 1 else ""
        if stream is not None and comes:
            word_of = stream_word(stream.dtype, shape)
            self.emit(f"rsn::matmul_from<{taken}, {word_of}{more}>({out}, {a.text}, {stream.port});")
            return Val(kind, out)
        if stream is not None:
            kept = ValueKind(stream.dtype if b.kind.dtype in LIMITS else b.kind.dtype, shape)
            got = Val(kept, self.tile(kept, "got"))
            self.emit(f"rsn::get<{stream_word(stream.dtype, shape)}>({stream.port}, {got.text});")
            moved = self._moved("transpose", got, {}) if turned else got
            assert isinstance(moved, Val)
            b = moved
        self.emit(f"rsn::matmul<{taken}{more}>({out}, {a.text}, {b.text});")
        return Val(kind, out)

    def _banded(self, x: Val, first: Val, last: Val) -> Val:
        kind = ValueKind("f64" if x.kind.dtype == "f64" else "f32", x.kind.shape)
        if len(kind.shape) < 2 or not (first.kind.is_int and last.kind.is_int) or first.kind.shape or last.kind.shape:
            self.fail(f"banded takes a tile and two integers, not {x.kind}, {first.kind} and {last.kind}")
        if x.kind != kind:
            x = self.as_tile(x, kind)
        ends = ", ".join(self.scalar_converted(v, "i64") for v in (first, last))
        return self.passed("banded", Val(kind, f"rsn::banded({x.text}, {ends})", simple=False), x)

    def _moved(self, name: str, x: Val, options: dict[str, Any]) -> Val:
        """transpose and reshape."""
        given = tuple(next(iter(options.values()), ()))
        if not x.kind.shape:
            if name == "reshape":
                self.fail("reshape of a number")
            return x
        kind = self.result_of(KERNELS[name], (x.kind, *given))
        if name == "reshape":
            return Val(kind, f"rsn::reshape<{kind.cpp}>({x.text})", simple=False, elsewhere=(x.text,))
        rank = len(x.kind.shape)
        axes = tuple(int(k) % rank for k in given) or tuple(reversed(range(rank)))
        text = f"rsn::transpose<{kind.cpp}, {', '.join(map(str, axes))}>({x.text})"
        moves = not (rank == 2 and 1 in kind.shape)  # those of a vector stay in their order
        lanes = self.datapath.lanes(name) if moves else inf
        return Val(kind, text, simple=False, lanes=lanes, elsewhere=(x.text,))

    def matmul_kind(self, values: list[Val]) -> ValueKind:
        """Return the kind of the matrix product of two tiles. Raises `HlsError` for tiles that cannot be multiplied."""
        shapes = [v.kind.shape for v in values]
        if len(values) != 2 or any(len(s) < 2 for s in shapes) or shapes[0][-1] != shapes[1][-2]:
            self.fail(f"matmul of {' and '.join(str(v.kind) for v in values)}")
        try:
            batch = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        except ValueError:
            self.fail(f"matmul of {' and '.join(str(v.kind) for v in values)}")
        a, b = values[0].kind, values[1].kind
        if (a.dtype in LIMITS) != (b.dtype in LIMITS):
            self.fail(f"matmul of integers and floats: {a} and {b}")
        dtype = "i64" if a.dtype in LIMITS else "f64" if "f64" in (a.dtype, b.dtype) else "f32"
        return ValueKind(dtype, (*batch, shapes[0][-2], shapes[1][-1]))

    def _on_floats(self, name: str, x: Val, rest: list[Val], named: dict[str, Any]) -> Val:
        dtype = "f64" if x.kind.dtype in ("f64", "float") else "f32"
        kind = ValueKind(dtype, x.kind.shape)
        if name in ON_FLOATS:
            return self.mapped(name, ON_FLOATS[name], kind, x if x.kind.shape else self.as_kind(x, kind))
        if not kind.shape:
            self.fail(f"{name} of a number")
        x = self.held(self.as_tile(x, kind))
        self.marks.append("loop")
        made, taken = self.tile(kind), self.datapath.row_word(name, kind.shape)
        eps = literal((np.float32 if dtype == "f32" else np.float64)(named.get("eps", EPSILON)))
        assert isinstance(eps, Val)
        option = "" if name == "softmax" else f", {eps.text}"
        self.emit(f"rsn::{name}<{taken}>({made}, {x.text}{option});")
        out = Val(kind, made)
        for op, other in zip(("*", "+"), rest, strict=False):
            out = self.elements(op, out, other)
        return out

    def _reduced(self, name: str, x: Val, kind: ValueKind, axis: Any) -> Val:
        """A reduction along axes, the last of them first."""
        shape = list(x.kind.shape)
        axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        op = "Add" if name == "reduce_sum" else "Larger"
        element = "i64" if name == "reduce_sum" and x.kind.dtype in LIMITS else x.kind.dtype
        for k in sorted({int(k) % len(shape) for k in axes}, reverse=True):
            del shape[k]
            taken = self.datapath.row_word(name, x.kind.shape)
            self.marks.append("loop")
            if shape:
                made = self.tile(ValueKind(element, tuple(shape)))
                self.emit(f"rsn::reduce_tile<{taken}, {k}>({made}, rsn::{op}(), {x.text});")
            else:
                made = self.fresh("all")
                text = f"rsn::reduce_all<{taken}, {k}, {CPP[element]}>(rsn::{op}(), {x.text})"
                self.emit(f"const {CPP[element]} {made} = {text};")
            x = Val(ValueKind(element, tuple(shape)), made)
        if not kind.shape:
            return self.element(x.text, element)
        if x.kind.shape:
            reshaped = Val(kind, f"rsn::reshape<{kind.cpp}>({x.text})", simple=False, elsewhere=(x.text,))
            return x if x.kind == kind else reshaped
        return Val(kind, f"rsn::full<{kind.cpp}>({x.text})", simple=False)
