"""Statements of a task instance as C++: loops are written until the kinds of their variables are stable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.element_types import ElementType
from ...isa.overlays.tasks import tree as t
from ..words import MOVED, word
from .expressions import starts_of, steps_of
from .indices import indices
from .kinds import (
    INT,
    LIMITS,
    ItemsKind,
    ShardKind,
    TextKind,
    Val,
    Value,
    literal,
    width,
)
from .passes import fused
from .values import HlsError, NeedsUnrolling
from .variables import Env
from .variants import VariantWriter

PASSES = 12
"""Limit of the passes over a loop until the kinds of its variables are stable."""
_APART = re.compile(r"(rsn::(?:read|write|get|put))_apart\b")
LONGEST = 20_000
"""Limit of the lines of one function."""


@dataclass
class OpenLoop:
    """A loop whose body is being written. head: the values of names with which every iteration begins. ends: the values
    of names at each end of an iteration: its last statement, `break` and `continue`."""

    head: Env
    ends: list[Env] = field(default_factory=list)


class BodyWriter(VariantWriter):
    """Writes the body of a task instance. given, named: the arguments of `VariantWriter`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.loops: list[OpenLoop] = []
        self.alive = True
        self.line = 0
        self._header = 0

    def write(self) -> list[str]:
        """Return the C++ lines of the body of a task. Raises `HlsError` for anything that has no C++, and for more than
        `LONGEST` lines."""
        try:
            self.block(fused(self.task.body, self.reads))
        except NeedsUnrolling:
            self.fail("this must be known before the run")
        return self.lines

    def block(self, body: Sequence[t.Statement]) -> None:
        """Write statements up to the first that leaves the block. Raises `HlsError` for anything that has no C++ and
        for more than `LONGEST` lines, `NeedsUnrolling` for a value that is known before the run only if a loop is
        unrolled."""
        done: t.Statement | None = None
        for k, statement in enumerate(body):
            behind = body[k + 1] if k + 1 < len(body) else None
            if not self.alive:
                return
            if len(self.lines) > LONGEST:
                self.fail(f"the function has more than {LONGEST} lines; its loops before the run are too long")
            if statement is done:
                continue
            if isinstance(statement, t.Get) and self.comes(statement, behind):
                continue
            into = None
            match statement, behind:
                case t.Get(name=got), t.Store(value=t.Name(read)) if got == read and self.reads[got] == 1:
                    into = behind
            if self.statement(statement, into):
                done = behind

    def statement(self, node: t.Statement, into: t.Store | None = None) -> bool:
        """Write one statement, and before it a comment with its line in the user's file. into: the store right behind
        it, which may take the tile of a get while it comes. Returns whether that store is written too. Raises
        `HlsError` and `NeedsUnrolling` as `block`."""
        self.place = node.place
        at, start = self.line, len(self.lines)
        self.line = node.place.line
        moved = into is not None and isinstance(node, t.Get) and self.receive(node, into)
        if not moved:
            self._write(node)
        same = at == node.place.line or (isinstance(node, t.For) and self._header == node.place.line)
        if len(self.lines) > start and not same and not self.lines[start].startswith("RSN_AT"):
            self.lines.insert(start, f"RSN_AT({node.place.line});  // {self.file}:{node.place.line}")
        return moved

    def _write(self, node: t.Statement) -> None:
        match node:
            case t.Get(_, name, stream, index):
                self.get(name, stream, index)
            case t.Put(_, stream, index, value):
                self.put(stream, index, value)
            case t.Assign(_, names, value, kind):
                self._assign(names, value, kind)
            case t.Store(_, name, index, value):
                self._store(name, index, value)
            case t.Read(_, values):
                for part in values:
                    made = self.value(part)
                    if isinstance(made, Val) and not made.has_known and not made.text.isidentifier():
                        self.emit(f"rsn::use({made.text});")
            case t.Cycles():
                pass
            case t.If():
                self._if(node)
            case t.For():
                self._for(node)
            case t.While():
                self._while(node)
            case t.Leave(_, how):
                self._leave(how)
            case _:
                self.fail(f"a statement of this kind ({type(node).__name__}) has no C++")

    def captured(self, body: Sequence[t.Statement], env: Env) -> tuple[list[str], Env, bool]:
        """Write statements to a list of their own. Return their lines, the values of names behind them, and whether the
        statement behind them is reached. env: the values of names before them. Raises `HlsError` and `NeedsUnrolling`
        as `block`."""
        outer, self.lines, self.env = self.lines, [], dict(env)
        line, self.line = self.line, 0
        self.block(body)
        made, after, alive = self.lines, self.env, self.alive
        self.lines, self.alive, self.line = outer, True, line
        return made, after, alive

    def _assign(self, names: tuple[str, ...], node: t.Expression, kind: ElementType | None) -> None:
        choice = self.calls.get(names[0])
        if choice is None and kind is None and self._adds_product(names, node):
            return
        value = self.value(node) if choice is None else self.call_variant(choice, node)
        if kind is not None:
            number = self.number(value)
            value = self.converted(number, kind if kind.shape else ElementType(kind.dtype, number.kind.shape))
        if len(names) == 1:
            self.bind(names[0], value, "" if kind is None or kind.shape else kind.dtype)
            return
        items = self._unpacked(value, len(names))
        held = []
        for one in items:
            if isinstance(one, Val) and one.kind.shape:
                name = self.tile(one.kind, "part")
                self.assign(name, one)
                one = Val(one.kind, name)
            elif isinstance(one, Val) and not one.has_known:
                name = self.fresh("part")
                self.emit(f"const auto {name} = {one.text};")
                one = replace(one, text=name, simple=True)
            held.append(one)
        for name, one in zip(names, held, strict=True):
            self.bind(name, one)

    def _adds_product(self, names: tuple[str, ...], node: t.Expression) -> bool:
        """Write the addition of a product of integers to a variable, `x = i32(x + a @ b)`: each step of the product
        adds to the sums that are there. Returns whether the assignment is one."""
        match node:
            case t.Convert(of, t.Binary("+", t.Name(name), t.Kernel("matmul", (left, right)) as product)):
                sums = self.env.get(name)
                read = t.Name(name) in t.nodes(product)
                if names != (name,) or read or not isinstance(sums, Val) or "add" in self.datapath.rates:
                    return False
                if of.dtype not in LIMITS or sums.kind.dtype != of.dtype or sums.text not in self.tiles:
                    return False
                before = len(self.lines)
                a, b = (self.number(self.value(x)) for x in (left, right))
                if self.product_of_integers(of.dtype, a, b, sums) is not None:
                    return True
                del self.lines[before:]
        return False

    def _unpacked(self, value: Value, count: int) -> Sequence[Any]:
        if isinstance(value, ItemsKind):
            items: Sequence[Any] = value.items
        else:
            tile = self.held(self.number(value))
            if len(tile.kind.shape) != 1:
                self.fail("only tuples and tiles of one axis are assigned to several names")
            items = [self.element(f"{tile.text}.at({k})", tile.kind.dtype) for k in range(tile.kind.shape[0])]
        if len(items) != count:
            self.fail(f"{count} names for {len(items)} values")
        return items

    def _store(self, name: str, index: t.Expression, node: t.Expression) -> None:
        base = self._name(name)
        if isinstance(base, ItemsKind | TextKind) or (isinstance(base, Val) and not base.kind.shape):
            self.fail(f"{name} is no tile and no tensor")
        shape = base.shape if isinstance(base, ShardKind) else base.kind.shape
        dtype = base.dtype if isinstance(base, ShardKind) else base.kind.dtype
        parts = indices(self, index, shape)
        value = self.number(self.value(node))
        target = base.name if isinstance(base, ShardKind) else base.text
        round_word = None
        if isinstance(base, ShardKind):
            round_word = self.round_word(base, parts)
            self.access(base, parts, round_word is not None)
            self.stored |= {p for p, part in self.parts.items() if part == base}
        taken = tuple(part.length for part in parts if part.step)
        if value.kind.shape:
            self._check_spread(value.kind.shape, taken)
            if value.moves(target):
                value = self.held(value)
        elif value.adapted and dtype in LIMITS:
            self.fail_adapted(value)
        text = value.text if value.kind.shape else self.scalar_converted(value, dtype)
        if not taken:
            if value.kind.shape:
                self.fail(f"a tile of shape {value.kind.shape} where a number is expected")
            starts = ", ".join(part.start for part in parts)
            if isinstance(base, ShardKind):
                self.emit(f"{target}.set({', '.join(filter(None, (text, starts)))});")
            else:
                self.emit(f"{target}.at({starts}) = {text};")
            return
        sizes = f"rsn::Shape<{', '.join(map(str, taken))}>, {steps_of(parts)}"
        if isinstance(base, ShardKind):
            self.marks.append("loop")
            save = f"save_rounds<{round_word}, " if round_word else "save<"
            self.emit(f"rsn::{save}{sizes}>({target}, {text}, {starts_of(parts)});")
            return
        at_once = word(taken, min(value.lanes, MOVED))
        self.takes(taken, at_once)
        self.emit(f"rsn::store_part<{at_once}, {sizes}>({target}, {text}, {starts_of(parts)});")

    def _check_spread(self, shape: tuple[int, ...], taken: tuple[int, ...]) -> None:
        trimmed = shape
        while len(trimmed) > len(taken) and trimmed[0] == 1:
            trimmed = trimmed[1:]
        short = taken[len(taken) - len(trimmed) :]
        if (
            trimmed != shape
            or len(trimmed) > len(taken)
            or any(a not in (1, b) for a, b in zip(trimmed, short, strict=True))
        ):
            self.fail(f"a tile of shape {shape} where {taken} is expected")

    def _if(self, node: t.If) -> None:
        test = self.truth(node.test)
        if test.has_known:
            self.block(node.body if test.known else node.other)
            return
        if node.decided:
            raise NeedsUnrolling
        before, env = len(self.marks), self.env
        arms = [self.captured(body, env) for body in (node.body, node.other)]
        if len(self.marks) > before:
            self.marks.append("branch")
        ends = [end for _, end, alive in arms if alive]
        self.alive = bool(ends)
        after = ends[0] if ends else env
        if len(ends) == 2:
            after = self.join(ends[0], ends[1])
        texts = [lines + (self.settle(end, after) if alive else []) for lines, end, alive in arms]
        self.env = after
        if not texts[0] and not texts[1]:
            return
        if texts[0]:
            self.emit(f"if ({test.text}) {{")
        else:
            self.emit(f"if (!{test.operand}) {{")
            texts = [texts[1], []]
        self._inner(texts[0])
        if texts[1]:
            self.emit("} else {")
            self._inner(texts[1])
        self.emit("}")

    def _inner(self, lines: Sequence[str]) -> None:
        self.lines += [line if line.startswith("#") else f"    {line}" for line in lines]

    def _leave(self, how: str) -> None:
        if how == "return":
            self.emit("return;")
        else:
            if not self.loops:
                self.fail(f"{how} in a loop that is unrolled before the run has no C++")
            loop = self.loops[-1]
            loop.ends.append(dict(self.env))
            self.lines += self.settle(self.env, loop.head)
            self.emit(f"{how};")
        self.marks.append("leave")
        self.alive = False

    def _for(self, node: t.For) -> None:
        bounds = [self.value(bound) for bound in node.bounds]
        if node.kind == "in":
            if not isinstance(bounds[0], ItemsKind):
                self.fail("a loop over items takes a tuple")
            self._unrolled(node.names, list(bounds[0].items), node.body)
            return
        if node.kind == "grid" and len(bounds) > 1:
            self._grid(node, [self.bound(b) for b in bounds])
            return
        low, high, step = self._range([self.bound(b) for b in bounds])
        if len(node.names) != 1:
            self.fail(f"{len(node.names)} names for one index")
        if node.unrolled:
            if not (low.has_known and high.has_known):
                raise NeedsUnrolling
            saved = self._state()
            try:
                self._range_loop(node.names[0], low, high, step, node.body, unroll=True)
                return
            except NeedsUnrolling:
                self._restore(saved)
            except HlsError:
                self._restore(saved)
            values = range(low.known, high.known, step)
            if len(values) > LONGEST:
                self.fail(f"a loop before the run of {len(values)} iterations; the limit is {LONGEST}")
            self._unrolled(node.names, [literal(int(k)) for k in values], node.body)
            return
        self._range_loop(node.names[0], low, high, step, node.body)

    def _range(self, bounds: list[Val]) -> tuple[Val, Val, int]:
        zero = literal(0)
        assert isinstance(zero, Val)
        if len(bounds) == 1:
            return zero, bounds[0], 1
        if len(bounds) == 3 and not bounds[2].has_known:
            self.fail("the step of a loop must be known before the run")
        step = int(bounds[2].known) if len(bounds) == 3 else 1
        if step == 0:
            self.fail("the step of a loop is 0")
        return bounds[0], bounds[1], step

    def _grid(self, node: t.For, bounds: list[Val]) -> None:
        """A nest of loops. One whose body breaks would end all of them."""
        if any(isinstance(n, t.Leave) and n.how == "break" for n in _own(node.body)):
            self.fail("break out of a loop over a grid has no C++: write its loops one in another")
        if len(node.names) != len(bounds):
            self.fail(f"{len(node.names)} names for {len(bounds)} indices")
        body = node.body
        for name, bound in reversed(list(zip(node.names[1:], node.bounds[1:], strict=True))):
            body = (t.For(node.place, (name,), "range", (bound,), body, node.unrolled),)
        self._for(t.For(node.place, node.names[:1], "range", node.bounds[:1], body, node.unrolled))

    def _unrolled(self, names: tuple[str, ...], values: list[Any], body: Sequence[t.Statement]) -> None:
        loops, self.loops = self.loops, []
        for value in values:
            if not self.alive:
                break
            for name, one in zip(names, [value] if len(names) == 1 else self._unpacked(value, len(names)), strict=True):
                self.bind(name, one)
            self.line = 0
            self.block(body)
        self.loops = loops
        self.marks.append("loop")

    def _state(self) -> tuple[Any, ...]:
        variables = {key: replace(v) for key, v in self.variables.items()}
        marks = list(self.marks)
        names = self.names.copy()
        return dict(self.env), list(self.lines), variables, dict(self.ports), marks, names, self._count, self.place, \
            list(self.loops), self.draws, self.line, {key: list(v) for key, v in self.banks.items()}  # fmt: skip

    def _restore(self, state: tuple[Any, ...]) -> None:
        (env, lines, variables, ports, marks, names, self._count, self.place, loops, self.draws, self.line) = state[:-1]
        self.banks = {key: list(v) for key, v in state[-1].items()}
        self.env, self.lines, self.ports, self.marks = dict(env), list(lines), dict(ports), list(marks)
        self.variables = {key: replace(v) for key, v in variables.items()}
        self.names, self.loops, self.alive = names.copy(), list(loops), True

    def _stable(self, head: Env, write: Any) -> tuple[list[str], Env]:
        """Write a loop until the values with which its iterations begin are those with which they end. write: writes
        one iteration from `self.env`. Returns the lines of the body, and the values at the head."""
        for turn in range(PASSES):
            saved = self._state()
            loop = OpenLoop(head)
            self.loops.append(loop)
            outer, self.lines, self.env = self.lines, [], dict(head)
            line, self.line = self.line, 0
            write(loop)
            self.loops.pop()
            lines, self.lines, self.line = self.lines, outer, line
            new = head
            for end in loop.ends:
                new = self.join(new, dict(end.items()), widen=turn > 0)
            if new == head:
                return lines, head
            self._restore(saved)
            for name, value in new.items():  # variables that joins have made; others are declared where they were kept
                if value != head.get(name):
                    self.declare(name, value)
            head = new
        self.fail(f"the kinds of the variables of this loop are not stable after {PASSES} passes")

    def _end_iteration(self, loop: OpenLoop) -> None:
        if self.alive:
            loop.ends.append(dict(self.env))
            self.lines += self.settle(self.env, loop.head)
        self.alive = True

    def _range_loop(
        self, name: str, low: Val, high: Val, step: int, body: Sequence[t.Statement], unroll: bool = False
    ) -> None:
        """A loop over a range. The index is a variable of the loop, unless the task changes or reads it elsewhere."""
        if low.has_known and high.has_known and not len(range(low.known, high.known, step)):
            return
        last = (low.known, range(low.known, high.known, step)[-1]) if low.has_known and high.has_known else None
        limits = (min(last), max(last)) if last else _limits(low, high, step)
        ends = [self._fixed_bound(low), self._fixed_bound(high)]
        kind = "int" if width(*limits) == 0 and max(low.width, high.width) == 0 else "std::int64_t"
        if limits[0] is None or limits[1] is None or width(*limits) == 2:
            limits = LIMITS["i64"]
        own = name in self.plain_indices or not name
        counter = self.names.of(name or "_") if own else self.fresh("index")
        compare = f"{counter} {'<' if step > 0 else '>'} {ends[1]}"
        move = {1: f"++{counter}", -1: f"--{counter}"}.get(step, f"{counter} += {step}")
        entry = dict(self.env)
        index = Val(INT, counter, *limits)
        before = len(self.marks)

        def write(loop: OpenLoop) -> None:
            self._header = self.place.line
            if own:
                self.env[name] = index
            else:
                self.bind(name, index)
            self.block(body)
            if own:
                for end in (*loop.ends, self.env):
                    end.pop(name, None)
            self._end_iteration(loop)

        if own:
            entry.pop(name, None)
            self.env.pop(name, None)
        lines, head = self._stable(entry, write)
        self.lines += self.settle(entry, head)
        one_beat = _one_beat(self.marks[before:]) and (last is None or last[0] != last[1])
        if one_beat:
            lines = [_APART.sub(r"\1", line) for line in lines]
        self.emit(f"for ({kind} {counter} = {ends[0]}; {compare}; {move}) {{")
        if self.sizes and last is None and limits[0] is not None and limits[1] is not None and limits != LIMITS["i64"]:
            most = max(1, (limits[1] - limits[0]) // abs(step) + 1)
            self.lines.append(f"#pragma HLS loop_tripcount max={most}")
        if unroll:
            self.lines.append("#pragma HLS unroll")
        elif one_beat:
            self.lines.append("#pragma HLS pipeline II=1 style=flp")
        self._inner(lines)
        self.emit("}")
        self.env = dict(head)
        self.line = 0
        self.marks.append("loop")

    def _fixed_bound(self, value: Val) -> str:
        """A bound of a loop, which is computed once."""
        if value.has_known:
            return value.text
        name = self.fresh("bound")
        self.emit(f"const std::int64_t {name} = static_cast<std::int64_t>({value.text});")
        return name

    def _while(self, node: t.While) -> None:
        def write(loop: OpenLoop) -> None:
            self.block(node.head)
            test = self.truth(node.test)
            loop.ends.append(dict(self.env))
            stop = ["break;"]
            stop = [*self.settle(self.env, loop.head), *stop]
            if not (test.has_known and test.known):
                self.emit(f"if (!{test.operand}) {{")
                self._inner(stop)
                self.emit("}")
            self.block(node.body)
            self._end_iteration(loop)

        entry = dict(self.env)
        lines, head = self._stable(entry, write)
        self.lines += self.settle(entry, head)
        self.emit("while (true) {")
        self._inner(lines)
        self.emit("}")
        self.env = dict(head)
        self.line = 0
        self.marks.append("loop")


def _limits(low: Val, high: Val, step: int) -> tuple[int | None, int | None]:
    """Limits of the index of a loop whose bounds the run knows."""
    if step > 0:
        return low.low, None if high.high is None else high.high - 1
    return None if high.low is None else high.low + 1, low.high


def _one_beat(marks: Sequence[object]) -> bool:
    """Whether what was recorded is one beat: no element of a stream twice, the gets before the puts."""
    ends = [m for m in marks if isinstance(m, tuple)]
    if len(ends) < len(marks) or not ends or len({(s, at) for s, at, _ in ends}) < len(ends):
        return False
    puts = [put for _, _, put in ends]
    return puts == sorted(puts) and all(at is not None for _, at, _ in ends)


def _own(body: Sequence[t.Statement]) -> list[t.Statement]:
    """The statements of a loop that are not in a loop inside it."""
    found: list[t.Statement] = []
    for node in body:
        found.append(node)
        if isinstance(node, t.If):
            found += _own((*node.body, *node.other))
    return found
