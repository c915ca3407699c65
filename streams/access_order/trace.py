"""Follows a task instance: its puts and gets in order, and between them its accesses to some tensors.

A loop is followed once, for all of its iterations, as long as its counter decides nothing. Where it is compared, the
loop is split; where `%` or `//` asks for a rest, some iterations are followed together; else each one is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from ...base.element_types import ElementType
from ...base.place import Place
from ...isa.overlays.tasks import tree as t
from ...isa.overlays.tasks.operators import BINARY, UNARY
from ...isa.overlays.tasks.values import DTYPES, convert
from ..tree import Body, FixedLoop, Nodes, Op, StreamDecl, same, total
from ..values import FUNCTIONS
from .index import BY_DATA, BY_INDEX, AffineIndex, AxisPart, LoopCounter, TensorAccess, TracedLoop

STEPS = 300_000
"""Limit of the statements that are followed in one check."""
PERIOD = 256
"""The most iterations of a loop that are followed together."""
UNROLLED = 1 << 14
"""The most iterations of a loop that are followed one by one for the sake of an index of a tensor."""


class Untraceable(Exception):
    """A task instance cannot be followed: it has too many statements, or data decide what it does in a way that is not
    followed."""


class UndecidedCount(Exception):
    """What an instance does depends on the counter of a loop that is followed for all iterations at once; the loop must
    be followed in parts.

    counter: of that loop. split: the iteration at which the loop is cut in two. period: how many iterations are
    followed together. Without either (`alone`), each iteration is followed by itself."""

    def __init__(self, counter: LoopCounter, split: int | None = None, period: int | None = None) -> None:
        super().__init__()
        self.counter, self.split, self.period = counter, split, period
        self.alone = split is None and period is None


class _LeftByData(Exception):
    """Data decide whether the innermost loop goes on."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """The part of a tensor that an instance sees. name: the variable in the task. tensor: the name in the region. box:
    the first element and the number of elements along each axis."""

    name: str
    tensor: str
    box: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _OneOf:
    """One of some tensors; data decide which."""

    refs: tuple[TensorRef, ...]


@dataclass(frozen=True, slots=True)
class _Undecided:
    """A value that is known only once a loop is followed otherwise."""

    by: UndecidedCount


@dataclass(frozen=True, slots=True)
class _SliceValue:
    """A slice."""

    low: Any
    high: Any
    step: Any


class _ByData:
    """A value that is known in the run only."""


DATA = _ByData()
_PLAIN = bool | int | float | str


class InstanceTracer:
    """Follows instances of one task.

    body: the statements of the task. streams: the declared streams of the region, by name. nodes: makes the operations
    of the traced bodies. sizes: the values of the sizes that a run gives, by name. The attribute `steps` is the number
    of statements that were followed in the last instance."""

    def __init__(
        self,
        body: tuple[t.Statement, ...],
        streams: Mapping[str, StreamDecl],
        nodes: Nodes,
        sizes: Mapping[str, int],
    ) -> None:
        self.root, self.streams, self.nodes, self.sizes = body, streams, nodes, sizes
        self._written: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
        self._leaves: dict[int, bool] = {}
        self._single: set[tuple[int, int]] = set()
        self.out: list[Any] = []
        self.env: dict[str, Any] = {}
        self._maybe = self._loops = self._most = self.steps = 0
        self.at = Place(1, 1)

    def trace(self, tid: tuple[int, ...], parts: Collection[TensorRef], most: int) -> Body:
        """Return the puts, gets and accesses of an instance. tid: the indices of the instance in the grid of its task.
        parts: the tensors whose accesses are recorded. most: how many statements may be followed. Raises `Untraceable`
        for more statements, and where data decide what is done in a way that is not followed."""
        self.steps, self._most = 0, most
        self._single = set()
        while True:
            self.env = {"get_tid()": tid[0] if len(tid) == 1 else tid, "use()": DATA, "data()": DATA}
            self.env |= {**self.sizes, **{part.name: part for part in parts}}
            self.out, self._maybe, self._loops = [], 0, 0
            try:
                self._block(self.root, ())
                return tuple(self.out)
            except UndecidedCount as by:  # a value of the loop is needed behind it
                if by.counter.key in self._single:
                    raise Untraceable from None
                self._single.add(by.counter.key)
            except (_LeftByData, RecursionError):
                raise Untraceable from None

    # -- statements --------------------------------------------------------------------------------------------------

    def _block(self, body: Sequence[t.Statement], tail: Sequence[t.Statement]) -> str:
        """Follow statements; return how they end: "", or as `Leave` says. tail: what follows them, up to the end of the
        innermost loop, or of the task."""
        for k, node in enumerate(body):
            self.steps += 1
            if self.steps > self._most:
                raise Untraceable
            how = self._statement(node, (*body[k + 1 :], *tail) if isinstance(node, t.If) else ())
            if how:
                return how
        return ""

    def _statement(self, node: t.Statement, rest: Sequence[t.Statement]) -> str:
        self.at = node.place
        match node:
            case t.Get(place, name, stream, index):
                self._end(stream, index, False, place)
                self.env[name] = DATA
            case t.Put(place, stream, index, value):
                self._loaded(self._value(value))
                self._end(stream, index, True, place)
            case t.Assign(_, names, value, kind):
                self._bind(names, self._converted(kind, self._value(value)) if kind else self._value(value))
            case t.Store(_, name, index, value):
                at = self._value(index)
                self._loaded(self._value(value))
                self._store(name, at)
            case t.Read(_, values):
                for part in values:
                    self._loaded(self._value(part))
            case t.Cycles():
                pass
            case t.For():
                return self._for(node)
            case t.While():
                return self._while(node)
            case t.If():
                return self._if(node, rest)
            case t.Leave(_, how):
                return how
        return ""

    def _bind(self, names: tuple[str, ...], value: Any) -> None:
        if len(names) == 1:
            self.env[names[0]] = value
        else:
            items = value if isinstance(value, tuple) and len(value) == len(names) else (DATA,) * len(names)
            self.env.update(zip(names, items, strict=True))

    def _store(self, name: str, at: Any) -> None:
        base = self._settled(self.env.get(name, DATA))
        for ref in self._refs(base):
            self._access(ref, True, at, not isinstance(base, TensorRef))
        if not isinstance(base, TensorRef | _OneOf):
            self.env[name] = DATA

    def _end(self, stream: str, index: Sequence[t.Expression], put: bool, place: Place) -> None:
        array, number = self.streams[stream], 0
        for part, size in zip(index, array.shape, strict=True):
            value = self._known(self._value(part))
            if type(value) is not int:
                raise Untraceable
            number = number * size + value
        self.out.append(self.nodes.op(array.first + number, put, place))

    def _if(self, node: t.If, rest: Sequence[t.Statement]) -> str:
        test = self._truth(self._value(node.test))
        if test is not None:
            return self._block(node.body if test else node.other, rest)
        leaves = self._leaving(node)
        start, outs, envs, hows = dict(self.env), list[Body](), list[dict[str, Any]](), list[str]()
        outer = self.out
        self._maybe += 1
        for arm in (node.body, node.other):
            self.env, self.out = dict(start), []
            hows.append(self._block((*arm, *rest) if leaves else arm, ()))
            outs.append(tuple(self.out))
            envs.append(self.env)
        self._maybe -= 1
        self.out = outer
        one, two = envs
        self.env = {name: one[name] if _equal(one[name], two.get(name)) else _merged(one, two, name) for name in one}
        self.env |= dict.fromkeys(two.keys() - one.keys(), DATA)
        self.out += merged(outs[0], outs[1])
        if not leaves:
            return ""
        if len({*hows} - {""}) + ("" in hows) == 1 and hows[0]:
            return hows[0]
        if "break" in hows:
            raise _LeftByData
        if "return" in hows and self._loops:
            raise Untraceable
        return next((how for how in hows if how), "continue")

    def _leaving(self, node: t.Statement) -> bool:
        found = self._leaves.get(id(node))
        if found is None:
            found = self._leaves[id(node)] = any(isinstance(n, t.Leave) for n in t.nodes(node))
        return found

    # -- loops -------------------------------------------------------------------------------------------------------

    def _for(self, node: t.For) -> str:
        bounds = [self._known(self._value(bound)) for bound in node.bounds]
        if node.kind == "in":
            values = bounds[0]
            if isinstance(values, tuple):
                return self._looped(node, lambda: self._each(node, values))
            self._loaded(values)
            return self._by_data(node)
        if not all(type(bound) is int for bound in bounds):
            return self._by_data(node)
        grid = node.kind == "grid" and len(bounds) > 1
        ranges = [range(bound) for bound in bounds] if grid else [range(*bounds)]
        return self._looped(node, lambda: self._levels(node, ranges, ()))

    def _looped(self, node: t.For | t.While, follow: Callable[[], str]) -> str:
        """Follow a loop; if data turn out to decide whether it goes on, as `_by_data`."""
        outer, env, maybe, loops = self.out, dict(self.env), self._maybe, self._loops
        self.out, self._loops = [], loops + 1
        try:
            how = follow()
        except _LeftByData:
            self.out, self.env, self._maybe, self._loops = outer, env, maybe, loops
            return self._by_data(node)
        self.out, self._loops = [*outer, *self.out], loops
        return how if how == "return" else ""

    def _each(self, node: t.For, values: tuple[Any, ...]) -> str:
        for value in values:
            self._bind(node.names, value)
            how = self._block(node.body, ())
            if how in ("break", "return"):
                return how
        return ""

    def _levels(self, node: t.For, ranges: Sequence[range], values: tuple[Any, ...]) -> str:
        """Follow the loops of a grid. values: the indices of those around."""
        if not ranges:
            self._bind(node.names, values if len(node.names) > 1 or len(values) > 1 else values[0])
            return self._block(node.body, ())
        of, key = ranges[0], (id(node), len(ranges))
        # (first iteration, how often, iterations that are followed together)
        pieces = deque([(0, len(of), 1)] if len(of) else ())
        while pieces:
            first, count, period = pieces.popleft()
            if count == 1:
                for k in range(first, first + period):
                    how = self._levels(node, ranges[1:], (*values, of[k]))
                    if how in ("break", "return"):
                        return how
            elif key in self._single:
                pieces.extendleft((k, 1, 1) for k in reversed(range(first, first + count * period)))
            else:
                counter = LoopCounter(count, key)
                outer, env, maybe, loops = self.out, dict(self.env), self._maybe, self._loops
                try:
                    self._together(node, ranges, values, counter, first, period)
                except UndecidedCount as by:
                    self.out, self.env, self._maybe, self._loops = outer, env, maybe, loops
                    if by.counter is not counter:
                        raise
                    pieces.extendleft(reversed(_divided(first, count, period, by)))
        return ""

    def _together(
        self,
        node: t.For,
        ranges: Sequence[range],
        values: tuple[Any, ...],
        counter: LoopCounter,
        first: int,
        period: int,
    ) -> None:
        """Follow all iterations of a loop at once, `period` of them in each count. Raises `UndecidedCount`."""
        of = ranges[0]
        names = self._names(node)
        for name in names & self.env.keys():
            if self.env[name] is not DATA:
                self.env[name] = _Undecided(UndecidedCount(counter))
        outer, self.out = self.out, []
        for k in range(first, first + period):
            at = AffineIndex(of[k], ((counter, of.step * period),))
            if self._levels(node, ranges[1:], (*values, at)) in ("break", "return"):
                raise UndecidedCount(counter)
        body, self.out = tuple(self.out), outer
        if body:
            self.out.append(TracedLoop(counter, body))
        for name in names & self.env.keys():
            self.env[name] = _at_end(self.env[name], counter)

    def _names(self, node: t.Statement) -> frozenset[str]:
        found = self._written.get(id(node))
        if found is None:
            stored = {n.name for n in t.nodes(node) if isinstance(n, t.Store)}
            rest = tuple(n for n in t.nodes(node) if isinstance(n, t.Get | t.Assign | t.For))
            bound = {name for n in rest for name in ((n.name,) if isinstance(n, t.Get) else n.names)}
            # A store into a tensor leaves the name as it is.
            found = self._written[id(node)] = frozenset(bound), frozenset(stored - bound)
        return found[0] | {name for name in found[1] if not isinstance(self.env.get(name), TensorRef | _OneOf)}

    def _while(self, node: t.While) -> str:
        return self._looped(node, lambda: self._rounds(node))

    def _rounds(self, node: t.While) -> str:
        while True:
            self._block(node.head, ())
            test = self._truth(self._value(node.test))
            if test is None:
                raise _LeftByData
            how = self._block(node.body, ()) if test else "break"
            if how in ("break", "return"):
                return how

    def _by_data(self, node: t.For | t.While) -> str:
        """A loop whose end data decide: nothing in it puts or gets."""
        self.env |= dict.fromkeys(self._names(node), DATA)
        outer, self.out = self.out, []
        self._maybe += 1
        body = (*node.head, t.Read(node.place, (node.test,)), *node.body) if isinstance(node, t.While) else node.body
        for statement in _flat(body):
            if isinstance(statement, t.Get | t.Put):
                raise Untraceable
            if not isinstance(statement, t.Leave):
                self._statement(statement, ())
        self._maybe -= 1
        self.out = [*outer, *self.out]
        self.env |= dict.fromkeys(self._names(node), DATA)
        return ""

    # -- accesses ----------------------------------------------------------------------------------------------------

    def _refs(self, value: Any) -> list[TensorRef]:
        """The tensors that a value is, or may be."""
        if isinstance(value, TensorRef):
            return [value]
        value = value.refs if isinstance(value, _OneOf) else value
        return [ref for part in value for ref in self._refs(part)] if isinstance(value, tuple) else []

    def _loaded(self, value: Any) -> None:
        """All elements of tensors that a value is are read."""
        for ref in self._refs(value):
            self._access(ref, False, (), False)

    def _access(self, ref: TensorRef, write: bool, index: Any, unsure: bool) -> None:
        self._loaded(index)
        index = index if isinstance(index, tuple) else (index,)
        taking = [part for part in index if part is not None]
        if len(taking) > len(ref.box):  # x[:] of a tensor without axes
            taking = []
        axes, why = [], BY_DATA if unsure or self._maybe else ""
        for k, (first, size) in enumerate(ref.box):
            found = self._axis(taking[k], size) if k < len(taking) else AxisPart(AffineIndex(0), AffineIndex(size - 1))
            if found is None:
                why = why or (BY_DATA if _of_data(taking[k]) else BY_INDEX)
                found = AxisPart(AffineIndex(0), AffineIndex(size - 1))
            at = AffineIndex(first)
            axes.append(AxisPart(at.plus(found.low), at.plus(found.high), found.step))
            if not found.high.plus(found.low, -1).terms and found.high.plus(found.low, -1).constant < 0:
                return  # an empty slice
        self.out.append(TensorAccess(ref.tensor, write, ref.name, self.at, tuple(axes), why))

    def _axis(self, part: Any, size: int) -> AxisPart | None:
        """What an index touches of an axis; None if that is not known before the run."""
        if isinstance(part, _SliceValue):
            low, high = (self._number(x) for x in (part.low, part.high))
            step = 1 if part.step is None else self._number(part.step)
            low = AffineIndex(0) if part.low is None else low
            high = AffineIndex(size) if part.high is None else high
            if low is None or high is None or step is None:
                return None
            step = step.constant if isinstance(step, AffineIndex) and not step.terms else step
            return AxisPart(low, high.plus(AffineIndex(-1)), step) if type(step) is int and step > 0 else None
        at = self._number(part)
        return None if at is None else AxisPart(at, at)

    def _number(self, value: Any) -> AffineIndex | None:
        """A whole number of an index; None for data. Raises `UndecidedCount` for one that other ways to follow a loop
        may give."""
        if isinstance(value, _Undecided) and value.by.alone and value.by.counter.times > UNROLLED:
            return None
        value = self._settled(value)
        if type(value) is int:
            return AffineIndex(value)
        return value if isinstance(value, AffineIndex) else None

    # -- values ------------------------------------------------------------------------------------------------------

    def _settled(self, value: Any) -> Any:
        if isinstance(value, _Undecided):
            raise value.by
        return value

    def _known(self, value: Any) -> Any:
        """A value that must not depend on the counter of a loop that is followed as one."""
        value = self._settled(value)
        if isinstance(value, AffineIndex):
            raise UndecidedCount(value.terms[-1][0])
        return value

    def _truth(self, value: Any) -> bool | None:
        """What a test is; None if only data tell."""
        value = self._settled(value)
        if isinstance(value, AffineIndex):
            value = self._settled(_compared("!=", value, 0))
        return bool(value) if isinstance(value, _PLAIN) else None

    def _value(self, node: t.Expression) -> Any:
        match node:
            case t.Constant(value):
                return value
            case t.Name(name):
                return self.env.get(name, DATA)
            case t.Unary(op, operand):
                value = self._value(operand)
                self._loaded(value)
                return self._unary(op, value)
            case t.Binary(op, left, right):
                return self._binary(op, self._value(left), self._value(right))
            case t.Select(test, body, other):
                return self._select(test, body, other)
            case t.Group(items):
                return tuple(map(self._value, items))
            case t.Span(low, high, step):
                parts = (None if part is None else self._value(part) for part in (low, high, step))
                return _SliceValue(*parts)
            case t.Item(base, index):
                return self._item(self._value(base), self._value(index))
            case t.Convert(kind, value):
                return self._converted(kind, self._value(value))
            case t.Kernel(kernel, arguments, named) | t.External(kernel, _, arguments, named):
                values = [*map(self._value, arguments), *(self._value(x) for _, x in named)]
                if isinstance(node, t.Kernel):
                    if kernel == "none":
                        return None
                    if kernel in ("shape", "ndim"):
                        return DATA
                    if kernel in FUNCTIONS and not named and values:
                        return self._function(kernel, values)
                for value in values:
                    self._loaded(value)
        return DATA

    def _unary(self, op: str, value: Any) -> Any:
        if isinstance(value, AffineIndex) and op in "+-":
            return value.times(-1) if op == "-" else value
        if isinstance(value, AffineIndex):
            return _compared("==", value, 0) if op == "not" else _Undecided(UndecidedCount(value.terms[-1][0]))
        if isinstance(value, _Undecided):
            return value
        return _computed(UNARY[op], value) if isinstance(value, _PLAIN) else DATA

    def _binary(self, op: str, a: Any, b: Any) -> Any:
        for value in (a, b):
            self._loaded(value)
        for value in (a, b):
            if isinstance(value, _Undecided):
                return value
        if isinstance(a, _PLAIN | tuple) and isinstance(b, _PLAIN | tuple):
            return _computed(BINARY[op], a, b)
        if not all(isinstance(value, AffineIndex | _PLAIN | tuple) for value in (a, b)):
            return DATA
        return _arithmetic(op, a, b)

    def _select(self, test: t.Expression, body: t.Expression, other: t.Expression) -> Any:
        chosen = self._truth(self._value(test))
        if chosen is not None:
            return self._value(body if chosen else other)
        self._maybe += 1
        values = [self._value(part) for part in (body, other)]
        self._maybe -= 1
        refs = tuple(ref for value in values for ref in self._refs(value))
        if refs:
            return _OneOf(refs)
        return values[0] if _equal(*values) else DATA

    def _item(self, base: Any, index: Any) -> Any:
        base = self._settled(base)
        if isinstance(base, TensorRef | _OneOf):
            for ref in self._refs(base):
                self._access(ref, False, index, not isinstance(base, TensorRef))
            return DATA
        if not isinstance(base, tuple):
            self._loaded(index)
            return DATA
        if isinstance(index, _Undecided):
            return index
        if isinstance(index, AffineIndex):
            return _Undecided(UndecidedCount(index.terms[-1][0]))
        if type(index) is int and -len(base) <= index < len(base):
            return base[index]
        for ref in self._refs(base):
            self._access(ref, False, (), True)
        return DATA

    def _converted(self, kind: ElementType, value: Any) -> Any:
        self._loaded(value)
        if isinstance(value, _Undecided):
            return value
        whole = not kind.shape and kind.dtype != "boolean" and DTYPES[kind.dtype].kind in "iu"
        if not whole or not isinstance(value, int | AffineIndex):
            return DATA
        ends = value.limits({}) if isinstance(value, AffineIndex) else (value, value)
        fits = all(convert(end, kind) == end for end in ends)
        if isinstance(value, AffineIndex):
            return value if fits else _Undecided(UndecidedCount(value.terms[-1][0]))
        return convert(value, kind)

    def _function(self, name: str, values: list[Any]) -> Any:
        for value in values:
            self._loaded(value)
            if isinstance(value, _Undecided):
                return value
        if all(isinstance(value, _PLAIN) for value in values):
            return _computed(FUNCTIONS[name], *values)
        if not all(isinstance(value, int | AffineIndex) for value in values):
            return DATA
        if name == "int":
            return values[0]
        if name in ("min", "max") and len(values) > 1:
            found = values[0]
            for value in values[1:]:
                less = _compared("<=", found, value)
                if isinstance(less, _Undecided):
                    return less
                found = found if less is (name == "min") else value
            return found
        return _Undecided(UndecidedCount(next(v for v in values if isinstance(v, AffineIndex)).terms[-1][0]))


# -- values of counters -----------------------------------------------------------------------------------------------


def _computed(function: Callable[..., Any], *values: Any) -> Any:
    try:
        found = function(*values)
    except (ArithmeticError, TypeError, ValueError, IndexError):
        return DATA
    return found if isinstance(found, _PLAIN) else DATA


def _of_data(part: Any) -> bool:
    parts = (part.low, part.high, part.step) if isinstance(part, _SliceValue) else (part,)
    return any(isinstance(value, _ByData | TensorRef | _OneOf) for value in parts)


def _affine(value: Any) -> AffineIndex | None:
    if isinstance(value, AffineIndex):
        return value
    return AffineIndex(int(value)) if isinstance(value, int) else None


def _plain(value: AffineIndex) -> Any:
    return value if value.terms else value.constant


def _arithmetic(op: str, a: Any, b: Any) -> Any:
    """An operator, one of whose operands depends on a counter."""
    counter = next(x for x in (a, b) if isinstance(x, AffineIndex)).terms[-1][0]
    if op in ("in", "not in") and isinstance(a, AffineIndex) and isinstance(b, tuple):
        for item in b:
            found = _compared("==", a, item) if isinstance(item, int) else _Undecided(UndecidedCount(counter))
            if found is not False:
                return found if isinstance(found, _Undecided) else op == "in"
        return op == "not in"
    x, y = _affine(a), _affine(b)
    if x is None or y is None:
        return _Undecided(UndecidedCount(counter))
    if op in ("+", "-"):
        return _plain(x.plus(y, 1 if op == "+" else -1))
    if op == "*" and not (x.terms and y.terms):
        return _plain(x.times(y.constant) if not y.terms else y.times(x.constant))
    if op in ("//", "%") and not y.terms and y.constant > 0:
        return _divided_by(op, x, y.constant)
    if op in ("==", "!=", "<", "<=", ">", ">="):
        return _compared(op, x, y)
    return _Undecided(UndecidedCount(counter))


def _divided_by(op: str, x: AffineIndex, by: int) -> Any:
    low, high = x.limits({})
    if low // by == high // by:
        return low // by if op == "//" else _plain(x.plus(AffineIndex(-(low // by * by))))
    for counter, factor in reversed(x.terms):
        if factor % by:
            period = by // gcd(factor, by)
            fits = period <= min(PERIOD, counter.times)
            return _Undecided(UndecidedCount(counter, period=period if fits else None))
    if op == "%":
        return x.constant % by
    return AffineIndex(x.constant // by, tuple((counter, factor // by) for counter, factor in x.terms))


def _compared(op: str, a: Any, b: Any) -> Any:
    """A comparison of whole numbers."""
    x, y = _affine(a), _affine(b)
    if x is None or y is None:
        return DATA
    d = x.plus(y, -1)
    low, high = d.limits({})
    holds = BINARY[op]
    if op in ("==", "!="):
        if low > 0 or high < 0:
            return op == "!="
        if low == high:
            return op == "=="
    elif holds(low, 0) == holds(high, 0):
        return bool(holds(low, 0))
    if len(d.terms) > 1:
        return _Undecided(UndecidedCount(d.terms[-1][0]))
    counter, factor = d.terms[0]
    zero = -d.constant // factor  # of d, or the last count before it changes its sign
    for split in (zero, zero + 1):
        if 0 < split < counter.times:
            before, at = (bool(holds(d.constant + factor * k, 0)) for k in (split - 1, split))
            if before is not at:
                return _Undecided(UndecidedCount(counter, split=split))
    return bool(holds(d.constant, 0))


def _divided(first: int, count: int, period: int, by: UndecidedCount) -> list[tuple[int, int, int]]:
    """The pieces of a loop that is followed anew."""
    if by.split is not None:
        return [(first, by.split, period), (first + by.split * period, count - by.split, period)]
    if by.period is not None and by.period * period <= PERIOD:
        times, rest = divmod(count, by.period)
        done = first + times * by.period * period
        return [(first, times, by.period * period)] + [(done + k, 1, 1) for k in range(rest * period)]
    return [(first + k, 1, 1) for k in range(count * period)]


def _at_end(value: Any, counter: LoopCounter) -> Any:
    """A value behind a loop."""
    if isinstance(value, tuple):
        return tuple(_at_end(part, counter) for part in value)
    if isinstance(value, AffineIndex):
        factor = dict(value.terms).get(counter, 0)
        rest = value.plus(AffineIndex(0, ((counter, factor),)), -1) if factor else value
        return _plain(rest.plus(AffineIndex(factor * (counter.times - 1))))
    return value


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, _Undecided) and bool(a == b))


def _merged(one: Mapping[str, Any], two: Mapping[str, Any], name: str) -> Any:
    """A variable after a branch on data."""
    refs = tuple(
        ref
        for value in (one.get(name), two.get(name))
        for ref in (value.refs if isinstance(value, _OneOf) else (value,))
        if isinstance(ref, TensorRef)
    )
    return _OneOf(refs) if refs else DATA


def _flat(body: Sequence[t.Statement]) -> list[t.Statement]:
    """The statements of a loop that ends by data, those of inner branches among them."""
    out: list[t.Statement] = []
    for node in body:
        if isinstance(node, t.If):
            out += [t.Read(node.place, (node.test,)), *_flat(node.body), *_flat(node.other)]
        else:
            out.append(node)
    return out


# -- branches on data -------------------------------------------------------------------------------------------------


def merged(one: Body, two: Body) -> Body:
    """Return the operations of a branch on data as those of one body. one, two: the operations of its arms. The result
    has the accesses of both, each of which may happen.

    If both arms have the same puts and gets in the same order, each access stays between the same puts and gets.
    Otherwise all puts come first, and all gets last, so that a token orders no access of the branch."""
    if not total(one)[0] and not total(two)[0]:
        return (*one, *two)
    found = _zipped(one, two)
    return apart((one, two)) if found is None else found


def _zipped(one: Body, two: Body) -> Body | None:
    out: list[Any] = []
    rest = list(two)
    for node in one:
        if not node.needs:
            out.append(node)
            continue
        while rest and not rest[0].needs:
            out.append(rest.pop(0))
        if not rest or not _alike(node, rest[0]):
            return None
        other = rest.pop(0)
        plain = not accesses(node) and not accesses(other)
        if not plain:
            return None
        out.append(node)
    if any(node.needs for node in rest):
        return None
    return (*out, *rest)


def _alike(one: Any, two: Any) -> bool:
    return same((one,), (two,))


def accesses(node: Any) -> bool:
    """Return whether a node of a body is an access to a tensor, or a loop with such an access."""
    return isinstance(node, TensorAccess) or (isinstance(node, FixedLoop) and any(map(accesses, node.body)))


def apart(arms: Sequence[Body]) -> Body:
    """Return the operations of a branch as one body: all puts, then the accesses, then all gets. In this order a token
    orders none of the accesses. arms: the operations of each arm; all have the same numbers of puts and gets."""
    needs = total(arms[0])[0]
    places = {(op.stream, op.put): op for arm in arms for op in _ops(arm)}
    nodes = Nodes()
    puts = [x for s, put, n in needs if put for x in nodes.repeat(n, (places[s, put],))]
    gets = [x for s, put, n in needs if not put for x in nodes.repeat(n, (places[s, put],))]
    inner = [node for arm in arms for node in _only_accesses(arm)]
    return (*puts, *inner, *gets)


def _ops(body: Body) -> list[Op]:
    out: list[Op] = []
    for node in body:
        if isinstance(node, Op):
            out.append(node)
        elif isinstance(node, FixedLoop):
            out += _ops(node.body)
        elif not isinstance(node, TensorAccess):
            out += [op for arm in getattr(node, "arms", ()) for op in _ops(arm)]
    return out


def _only_accesses(body: Body) -> list[Any]:
    out: list[Any] = []
    for node in body:
        if isinstance(node, TensorAccess):
            out.append(node)
        elif isinstance(node, TracedLoop):
            inner = tuple(_only_accesses(node.body))
            out += (TracedLoop(node.counter, inner),) if inner else ()
    return out
