"""Variables of C++ for names of Python: one for each kind of value, and what holds where paths meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .expressions import ExpressionWriter
from .kinds import (
    BOOL,
    CPP,
    INT,
    LIMITS,
    WIDTHS,
    ItemsKind,
    ShardKind,
    Val,
    Value,
    ValueKind,
    hull,
    joined,
    width,
)
from .names import CppNames
from .values import Poison

STORED = ("boolean", "i8", "i16", "i32", "i64", "u8", "u16")
"""Integer types that a variable is declared with: C++ computes with them in signed arithmetic."""

Env = dict[str, Value | Poison]


@dataclass
class Variable:
    """A C++ variable. text: its name. kind: the type of its values. low, high: limits of all integers that it holds;
    None for no known limit. dtype: the element type that all of its integers have; "" if they have none in common, None
    before the first one."""

    text: str
    kind: ValueKind
    low: int | None = 0
    high: int | None = 0
    dtype: str | None = None

    @property
    def width(self) -> int:
        """The index in `WIDTHS` of the C++ type of an integer; 0 for other variables."""
        return 0 if self.kind != INT or self.dtype else width(self.low, self.high)

    @property
    def declaration(self) -> str:
        """The C++ statement that declares it; numbers begin with 0."""
        if self.kind.shape:
            return f"{self.kind.cpp} {self.text};"
        if self.kind == BOOL:
            return f"bool {self.text} = false;"
        if self.kind == INT:
            return f"{CPP[self.dtype] if self.dtype else WIDTHS[width(self.low, self.high)]} {self.text} = 0;"
        return f"{self.kind.cpp} {self.text} = 0;"


NO_WIDTHS: Mapping[str, int] = {}


class Variables(ExpressionWriter):
    """Keeps values in C++ variables. file: the name of the user's file. widths: an index in `WIDTHS` for each integer
    variable, by its C++ name, that was found to be wide when the task was written a first time."""

    def __init__(self, file: str, widths: Mapping[str, int]) -> None:
        super().__init__(file)
        self.widths = widths
        self.names = CppNames()
        self.variables: dict[tuple[str, str], Variable] = {}
        self.parts: dict[str, ShardKind] = {}
        self.plain_indices: frozenset[str] = frozenset()

    def variable(self, name: str, kind: ValueKind) -> Variable:
        """Return the C++ variable that holds the values of a name of one kind; the first call makes it."""
        key = "number" if kind == INT else str(kind)
        found = self.variables.get((name, key))
        if found is None:
            taken = name in self.parts or any(other == name for other, _ in self.variables)
            suffix = f"_{kind.dtype}" + "".join(f"_{n}" for n in kind.shape) if taken else ""
            found = Variable(self.names.of(name, suffix), kind)
            self.variables[name, key] = found
        return found

    def keep(self, name: str, value: Val, dtype: str = "", adapted: bool = False) -> Val:
        """Write the assignment of a value to the C++ variable of a name; return the value as later statements read it.
        dtype: the element type whose limits an integer keeps; "" if none is known. adapted: whether the name also had a
        value of another type."""
        variable = self.variable(name, value.kind)
        self._widen(variable, value, dtype)
        if value.kind == INT and value.width == 2 > width(value.low, value.high):
            value = replace(value, text=f"static_cast<std::int64_t>({value.text})")
        if value.kind.shape:
            self.tiles[variable.text] = value.kind
        if value.kind.shape and value.text != variable.text:
            self.assign(variable.text, value)
        elif value.text != variable.text:
            self.emit(f"{variable.text} = {value.text};")
        limits = (value.low, value.high) if value.kind.is_int else (None, None)
        wide = self.widths.get(variable.text, 0)
        return Val(value.kind, variable.text, *limits, adapted=adapted or value.adapted, wide=wide)

    def _widen(self, variable: Variable, value: Val, dtype: str) -> None:
        if value.kind != INT:
            return
        dtype = dtype or next((d for d in STORED if LIMITS[d] == (value.low, value.high)), "")
        if variable.dtype is None:
            variable.low, variable.high = value.low, value.high
            variable.dtype = dtype if dtype in STORED else ""
        else:
            variable.low, variable.high = hull(Val(INT, "", variable.low, variable.high), value)
        if variable.dtype:
            low, high = LIMITS[variable.dtype]
            if value.low is None or value.high is None or value.low < low or value.high > high:
                variable.dtype = ""

    def bind(self, name: str, value: Value, dtype: str = "") -> None:
        """Give a name a value, and write the assignment to its C++ variable. A value that is known before the run gets
        no variable. dtype: as for `keep`."""
        if isinstance(value, ItemsKind):
            self.env[name] = self._kept_items(name, value)
        elif isinstance(value, Val) and value.text in self.fresh_tiles and name.startswith("%"):
            self.env[name] = value  # one of the lowering's own, which one statement reads
        elif isinstance(value, Val) and not value.has_known:
            self.env[name] = self.keep(name, value, dtype)
        else:
            self.env[name] = value

    def _kept_items(self, name: str, value: ItemsKind) -> ItemsKind:
        made: list[Any] = []
        for k, one in enumerate(value.items):
            part = f"{name}.{k}"
            if isinstance(one, ItemsKind):
                made.append(self._kept_items(part, one))
            else:
                made.append(self.keep(part, one) if isinstance(one, Val) and not one.has_known else one)
        return ItemsKind(tuple(made))

    def join(self, a: Env, b: Env, widen: bool = False) -> Env:
        """Return the values of names behind a branch. a, b: the values at the end of each path. A name with no common
        type becomes a `Poison`. widen: whether limits of integers that differ become unknown, as in loops."""
        out: Env = {}
        for name in {**a, **b}:
            one, other = a.get(name), b.get(name)
            if one == other and one is not None:
                out[name] = one
            elif not name.startswith("%") or (one is not None and other is not None):
                both = (one, other) if one is not None and other is not None else (one or other, one or other)
                out[name] = self._joined(name, *both, widen)
        return out

    def _joined(self, name: str, a: Value | Poison | None, b: Value | Poison | None, widen: bool) -> Value | Poison:
        if isinstance(a, Poison) or isinstance(b, Poison):
            return a if isinstance(a, Poison) else b  # type: ignore[return-value]
        if isinstance(a, ItemsKind) and isinstance(b, ItemsKind) and len(a.items) == len(b.items):
            parts = [
                x if x == y else self._joined(f"{name}.{k}", x, y, widen)
                for k, (x, y) in enumerate(zip(a.items, b.items, strict=True))
            ]
            for part in parts:
                if isinstance(part, Poison):
                    return part
            return ItemsKind(tuple(parts))
        if not isinstance(a, Val) or not isinstance(b, Val):
            return a if a == b and a is not None else Poison(f"{name} is of several kinds here")
        kind = joined(a.kind, b.kind)
        if kind is None:
            whole = a.kind.dtype in LIMITS and b.kind.dtype in LIMITS
            note = f"; what is computed of integers has 64 bits: convert it, as in i32({name})" if whole else ""
            return Poison(f"{name} is {a.kind} on one path and {b.kind} on another{note}")
        low, high = hull(a, b) if kind == INT else (None, None)
        if kind == BOOL:
            low, high = 0, 1
        if widen and kind == INT:
            low = low if a.low == b.low else None
            high = high if a.high == b.high else None
        mixed = any(v.kind != kind and not (v.kind.is_int and kind.is_int) for v in (a, b))
        variable = self.variable(name, kind)
        wide = self.widths.get(variable.text, 0)
        return Val(kind, variable.text, low, high, adapted=mixed or a.adapted or b.adapted, wide=wide)

    def settle(self, now: Env, wanted: Env) -> list[str]:
        """Return the C++ assignments at the end of a path, after which variables hold what the statements behind the
        branch expect. now: the values of names on this path. wanted: those behind the branch. Raises `HlsError` for a
        value that no variable of the wanted kind holds."""
        outer, self.lines = self.lines, []
        for name, target in wanted.items():
            value = now.get(name)
            if value is None or value == target or isinstance(target, Poison) or isinstance(value, Poison):
                continue
            self._settle_one(name, value, target)
        made, self.lines = self.lines, outer
        return made

    def _settle_one(self, name: str, value: Value, target: Value) -> None:
        if isinstance(target, ItemsKind) and isinstance(value, ItemsKind):
            for k, (x, y) in enumerate(zip(value.items, target.items, strict=True)):
                if x != y:
                    self._settle_one(f"{name}.{k}", x, y)
        elif isinstance(target, Val) and isinstance(value, Val) and not target.has_known:
            dtype = (self.variable(name, value.kind).dtype or "") if value.kind == INT else ""
            self.keep(name, self.as_kind(value, target.kind), dtype)

    def declare(self, name: str, value: Value | Poison) -> None:
        """Make the C++ variable of a name, and one for each item of a tuple. A value that is known before the run gets
        none."""
        if isinstance(value, Val) and not value.has_known and name not in self.plain_indices:
            self.variable(name, value.kind)
        elif isinstance(value, ItemsKind):
            for k, part in enumerate(value.items):
                self.declare(f"{name}.{k}", part)
