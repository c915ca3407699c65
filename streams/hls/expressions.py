"""Expressions of a task as C++ text with static kinds. Python's rules hold: exact integers, floor division, order."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ...base.element_types import ElementType
from ...isa.overlays.tasks import tree as t
from ..words import TileWord, port_elements, round_elements, round_word
from .indices import Index, indices, with_new_axes, without_new_axes
from .kinds import (
    INT,
    LIMITS,
    WIDTHS,
    ItemsKind,
    ShardKind,
    TextKind,
    Val,
    Value,
    ValueKind,
    hull,
    joined,
    literal,
    of_element,
    width,
)
from .library import KernelWriter
from .values import Poison

RUN = (t.Name("use()"), t.Name("data()"))
"""Arguments of kernels that stand for the run."""


class ExpressionWriter(KernelWriter):
    """Writes expressions as C++."""

    def value(self, node: t.Expression) -> Value:
        """Return the value of an expression, with its C++ text. The statements that it needs are written before. Raises
        `HlsError` for anything that has no C++."""
        match node:
            case t.Constant(value):
                return literal(value)
            case t.Name(name):
                return self._name(name)
            case t.Unary(op, operand):
                return self.unary(op, self.value(operand))
            case t.Binary(op, left, right):
                return self.binary(op, self.value(left), self.value(right))
            case t.Select(test, body, other):
                return self._select(test, body, other)
            case t.Group(items):
                return ItemsKind(tuple(self.value(x) for x in items))
            case t.Item(base, index):
                return self._item(self.value(base), index)
            case t.Kernel(kernel, arguments, options):
                given = [self.value(x) for x in arguments if x not in RUN]
                return self.kernel(kernel, given, {key: self.value(x) for key, x in options})
            case t.Convert(kind, t.Kernel("matmul", (left, right))):
                a, b = (self.number(self.value(x)) for x in (left, right))
                product = self.product_of_integers(kind.dtype, a, b) or self.number(self.kernel("matmul", [a, b], {}))
                return self.converted(product, ElementType(kind.dtype, product.kind.shape))
            case t.Convert(kind, value):
                made = self.value(value)
                if isinstance(made, Val) and self.port_of(made) in self.coming and kind.dtype in LIMITS:
                    return made  # a product takes it as it comes
                shape = () if isinstance(made, ItemsKind | TextKind) else made.kind.shape
                return self.converted(made, ElementType(kind.dtype, shape))
            case t.External(name):
                self.fail(f"{name} is a function of Python; use library kernels")
        self.fail(f"an expression of this kind ({type(node).__name__}) has no C++")

    def _name(self, name: str) -> Value:
        value = self.env.get(name)
        if value is None:
            self.fail(f"the name {name} has no value here")
        if isinstance(value, Poison):
            self.fail(value.why)
        return value

    def truth(self, node: t.Expression) -> Val:
        """Return whether the value of an expression is true, as a C++ Boolean. Raises `HlsError` for a tile, and for
        anything that has no C++."""
        return self.truth_of(self.value(node))

    def _select(self, test: t.Expression, body: t.Expression, other: t.Expression) -> Value:
        chosen = self.truth(test)
        if chosen.has_known:
            return self.value(body if chosen.known else other)
        outer, arms, values = self.lines, list[list[str]](), list[Val]()
        for part in (body, other):
            self.lines = []
            values.append(self.plain(self.value(part)))
            arms.append(self.lines)
        self.lines = outer
        kind = joined(values[0].kind, values[1].kind)
        if kind is None or (kind != values[0].kind and kind != values[1].kind) or not _mixes(values, kind):
            self.fail(f"one arm is {values[0].kind}, the other {values[1].kind}")
        low, high = hull(*values) if kind.is_int else (None, None)
        wide = max(width(low, high), *(v.width for v in values)) if kind == INT else 0
        cpp = WIDTHS[wide] if kind == INT else kind.cpp
        texts = []
        for arm, value in zip(arms, values, strict=True):
            self.lines = arm
            made = self.as_kind(value, kind)
            texts.append(f"{cpp}({made.text})" if kind == INT else made.operand)
        self.lines = outer
        if not arms[0] and not arms[1]:
            return Val(kind, f"{chosen.operand} ? {texts[0]} : {texts[1]}", low, high, simple=False, wide=wide)
        name = self.fresh("chosen")
        self.emit(f"{cpp} {name}{' = 0' if not kind.shape else ''};")
        self.emit(f"if ({chosen.text}) {{")
        self.lines += [f"    {line}" for line in (*arms[0], f"{name} = {texts[0]};")]
        self.emit("} else {")
        self.lines += [f"    {line}" for line in (*arms[1], f"{name} = {texts[1]};")]
        self.emit("}")
        return Val(kind, name, low, high, wide=wide)

    def shard_part(self, node: t.Expression) -> tuple[ShardKind, list[Index]] | None:
        """Return the tensor that an expression takes a part of, or names, and an index for each of its axes; None if
        the expression does neither. Raises `HlsError` for indices that do not fit."""
        base, index = (node.base, node.index) if isinstance(node, t.Item) else (node, None)
        shard = self.env.get(base.name) if isinstance(base, t.Name) else None
        if not isinstance(shard, ShardKind) or not shard.shape:
            return None
        if index is None:
            return shard, [Index("0", 1, n, 0) for n in shard.shape]
        return None if without_new_axes(index)[1] else (shard, indices(self, index, shard.shape))

    def _item(self, base: Value, index: t.Expression) -> Value:
        if isinstance(base, ItemsKind | TextKind):
            at = self.value(index)
            if at.has_known and isinstance(base, ItemsKind) and isinstance(at, Val):
                try:
                    found: Value = base.items[at.known]
                except (IndexError, TypeError) as e:
                    self.fail(str(e))
                return found
            return self._table(base, at)
        whole = base if isinstance(base, ShardKind) else self.held(self.number(base))
        shape = whole.shape if isinstance(whole, ShardKind) else whole.kind.shape
        if not shape and not isinstance(whole, ShardKind):
            self.fail("a number has no parts")
        index, axes = without_new_axes(index)
        parts = indices(self, index, shape)
        name, dtype = (whole.name, whole.dtype) if isinstance(whole, ShardKind) else (whole.text, whole.kind.dtype)
        if all(part.step == 0 for part in parts):
            if axes:
                self.fail("a new axis of a number")
            if isinstance(whole, ShardKind):
                self.access(whole, parts)
            return self.element(f"{name}.at({', '.join(part.start for part in parts)})", dtype)
        if isinstance(whole, ShardKind):
            made = self.loaded(whole, parts)
        else:
            kind = ValueKind(dtype, tuple(part.length for part in parts if part.step))
            text = f"rsn::part<{kind.cpp}, {steps_of(parts)}>({name}, {starts_of(parts)})"
            made = Val(kind, text, simple=False, elsewhere=(name,))
        if axes:
            kind = ValueKind(made.kind.dtype, with_new_axes(parts, axes))
            tile = self.held(made).text
            made = Val(kind, f"rsn::reshape<{kind.cpp}>({tile})", simple=False, elsewhere=(tile,))
        return made

    def loaded(self, shard: ShardKind, parts: Sequence[Index]) -> Val:
        """Write the loop that reads a part of a tensor into a new tile, and return the tile. parts: an index for each
        axis of the shard."""
        kind = of_element(shard.dtype, tuple(part.length for part in parts if part.step))
        name = self.tile(kind)
        self.load(shard, parts, name, kind.cpp)
        return Val(kind, name)

    def load(self, shard: ShardKind, parts: Sequence[Index], name: str, cpp: str) -> None:
        """Write the loop that reads a part of a tensor into a tile. parts: an index for each axis of the shard. name,
        cpp: the C++ name and type of the tile."""
        taken = self.round_word(shard, parts)
        self.access(shard, parts, taken is not None)
        self.marks.append("loop")
        load = f"load_rounds<{taken}, " if taken else "load<"
        self.emit(f"rsn::{load}{cpp}, {steps_of(parts)}>({name}, {shard.name}, {starts_of(parts)});")

    def number(self, value: Value) -> Val:
        """Return a value that is a number or a tile as it is; read a tensor into a new tile. Raises `HlsError` for a
        tuple or a text."""
        if not isinstance(value, ShardKind):
            return super().number(value)
        if value.shape:
            return self.loaded(value, [Index("0", 1, n, 0) for n in value.shape])
        self.access(value, [])
        return self.element(f"{value.name}.at()", value.dtype)

    def access(self, shard: ShardKind, parts: Sequence[Index], rounds: bool = False) -> bool:
        """Note, for the width of the memory port, at multiples of how many elements an access begins and ends along the
        last axis of a tensor. parts: an index for each axis of the shard. rounds: whether the access moves a word in
        each memory channel in turn (`in_rounds`). Returns `rounds`."""
        last = parts[-1] if parts else Index("0")
        found = gcd(last.factor, last.length, shard.shape[-1]) if last.step == 1 else 1
        if rounds:
            found = port_elements(shard.dtype)
        self.packed[shard.name] = gcd(self.packed.get(shard.name, 0), found)
        return rounds

    def in_rounds(self, shard: ShardKind, parts: Sequence[Index]) -> bool:
        """Return whether a part of a tensor in several memory channels lies in one piece that is a whole number of
        rounds; a round is one word in each channel. parts: an index for each axis of the shard."""
        if shard.channels == 1:
            return False
        inner = 1
        for k in reversed(range(len(parts))):
            part, size = parts[k], shard.shape[k]
            if part.step == 1 and part.length == size == shard.whole[k]:
                inner *= size
                continue
            inner *= gcd(part.factor, part.length, size)
            if part.step > 1 or any(p.step and p.length > 1 for p in parts[:k]):
                return False
            break
        return inner % round_elements(shard.dtype, shard.channels) == 0

    def round_word(self, shard: ShardKind, parts: Sequence[Index]) -> TileWord | None:
        """Return the elements of a part of a tensor, as rows and columns, that one round moves in a cycle; None if the
        part does not move in rounds (`in_rounds`). parts: an index for each axis of the shard."""
        shape = [part.length for part in parts if part.step]
        return round_word(shard.dtype, shape, shard.channels) if self.in_rounds(shard, parts) else None

    def _table(self, base: Value, at: Value) -> Value:
        """An item of a tuple of numbers at an index that the run knows."""
        index = self.plain(at)
        numbers = [x for x in base.items if isinstance(x, Val)] if isinstance(base, ItemsKind) else []
        if not isinstance(base, ItemsKind) or not numbers or len(numbers) < len(base.items) or not index.kind.is_int:
            self.fail("an index of a tuple that only the run knows, whose items are no numbers")
        kind: ValueKind | None = numbers[0].kind
        low, high = numbers[0].low, numbers[0].high
        for one in numbers[1:]:
            kind = None if kind is None or (not one.kind.is_int and one.kind != kind) else joined(kind, one.kind)
            low, high = hull(Val(INT, "", low, high), one)
        if kind is None or kind.shape:
            self.fail("an index of a tuple that only the run knows, whose items are of several kinds")
        wide = max(width(low, high), *(x.width for x in numbers)) if kind == INT else 0
        cpp = WIDTHS[wide] if kind == INT else kind.cpp
        name = self.fresh("table")
        self.emit(f"const {cpp} {name}[] = {{{', '.join(x.text for x in numbers)}}};")
        return Val(kind, f"{name}[rsn::within({index.text}, {len(numbers)})]", low, high, wide=wide)


def steps_of(parts: Sequence[Index]) -> str:
    """Return the steps of indices as the text of C++ template arguments; the step is 0 for an index that drops its
    axis. parts: an index for each axis."""
    return ", ".join(str(part.step) for part in parts)


def starts_of(parts: Sequence[Index]) -> str:
    """Return the first elements of indices as the text of C++ arguments. parts: an index for each axis."""
    return ", ".join(part.start for part in parts)


def _mixes(values: Sequence[Val], kind: ValueKind) -> bool:
    """Whether two arms may be taken as one kind: integers, or the same."""
    return all(v.kind == kind or (v.kind.is_int and kind.is_int) for v in values)
