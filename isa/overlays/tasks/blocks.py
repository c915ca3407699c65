"""Compiles the statements of task trees to what `TaskUnit` steps.

Computation that touches no stream is one closure. What a statement reads and writes is kept beside it, so that a unit
can tell which statements of a beat must wait for its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ....base.element_types import ElementType
from ....base.errors import ProgramError
from ....base.place import Place
from .expressions import Value, Variables, converted, is_unknown, value_of, within
from .tree import (
    Assign,
    Cycles,
    Expression,
    External,
    For,
    Get,
    If,
    Item,
    Kernel,
    Leave,
    Name,
    Put,
    Read,
    Select,
    Statement,
    Store,
    While,
    divides,
    nodes,
)
from .values import UNKNOWN, ByData, convert, scalar

Action = Callable[[Variables], None]
"""Executes statements that touch no stream."""

ROUNDS = 10_000_000
"""Limit of the iterations of a loop that touches no stream and ends by data."""


# -- what a unit steps ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class LocalStatements:
    """Statements that touch no stream.

    place: in the file of the task, as of all blocks here. action: executes them. reads, writes: names of the variables
    that they read and write. loops: there is a loop in them, so that they end a beat. effects: they write to a tensor
    or tile, or call a function of the host.
    """

    place: Place
    action: Action
    reads: frozenset[str]
    writes: frozenset[str]
    loops: bool
    effects: bool


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """A get. name: the variable that is bound to the token. stream: name of the array of streams. index: compute the
    place in that array, a function for each axis. reads: names of the variables that the index reads.
    """

    place: Place
    name: str
    stream: str
    index: tuple[Value, ...]
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Give:
    """A put. stream: name of the array of streams. index: compute the place in that array, a function for each axis.
    value: computes the token. index_reads, reads: names of the variables that the index and the value read."""

    place: Place
    stream: str
    index: tuple[Value, ...]
    value: Value
    index_reads: frozenset[str]
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Spend:
    """A statement that adds clock cycles to the beat. count: computes how many. reads: names of the variables that it
    reads."""

    place: Place
    count: Value
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class CountedLoop:
    """A loop over values that are known when it begins.

    names: variables that an iteration binds. values: computes the values of all iterations. unrolled: all iterations
    are one straight run of statements. alike: all iterations take the same steps, since no index of a stream, test,
    bound of a loop or number of cycles depends on a variable that the loop writes. reads: variables that `values`
    reads. writes: variables that the loop writes, `names` included."""

    place: Place
    names: tuple[str, ...]
    values: Value
    body: tuple[Block, ...]
    unrolled: bool
    alike: bool
    reads: frozenset[str]
    writes: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Until:
    """A loop with a test (`while`). head: statements before each test. test: computes whether the loop goes on."""

    place: Place
    head: tuple[Block, ...]
    test: Value
    body: tuple[Block, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StreamBranch:
    """A branch whose arms touch streams, or one that is decided before the run.

    test: computes whether `body` or `other` is executed. decided: the test is decided before the run (`meta_if`), so
    that the branch ends no beat. reads: names of the variables that the test reads."""

    place: Place
    test: Value
    body: tuple[Block, ...]
    other: tuple[Block, ...]
    decided: bool
    reads: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class EarlyExit:
    """A statement that leaves a loop, an iteration or the task. how: `break`, `continue` or `return`."""

    place: Place
    how: str


Block = LocalStatements | Take | Give | Spend | CountedLoop | Until | StreamBranch | EarlyExit


# -- statements -------------------------------------------------------------------------------------------------------


def names_in(*parts: Any) -> frozenset[str]:
    """Return the names of variables that expressions, or tuples of them, read."""
    return frozenset(node.name for node in nodes(parts) if isinstance(node, Name))


def written(parts: Any) -> frozenset[str]:
    """Return the names of variables that statements write. A store into a tile writes the name of the tile. parts:
    statements, or tuples of them.
    """
    out: set[str] = set()
    for node in nodes(parts):
        match node:
            case Get(name=name) | Store(name=name):
                out.add(name)
            case Assign(names=names) | For(names=names):
                out.update(names)
    return frozenset(out)


def deciding(body: tuple[Statement, ...]) -> frozenset[str]:
    """Return the variables that decide the course of a run: tests, bounds of loops, cycles and indices of streams
    depend on them, directly or through other variables.

    body: the statements of a task."""
    found: set[str] = set()
    flows: list[tuple[frozenset[str], frozenset[str]]] = []
    for node in nodes(body):
        match node:
            case If(test=test) | While(test=test):
                found |= names_in(test)
            case For(names=names, bounds=bounds):
                found |= names_in(bounds)
            case Get(index=index) | Put(index=index):
                found |= names_in(index)
            case Cycles(count=count):
                found |= names_in(count)
            case Assign(names=names, value=value):
                flows.append((frozenset(names), names_in(value)))
            case Store(name=name, index=index, value=value):
                flows.append((frozenset((name,)), names_in(index, value)))
    changed = True
    while changed:
        before = len(found)
        for targets, sources in flows:
            if targets & found:
                found |= sources
        changed = len(found) > before
    return frozenset(found)


class Compiler:
    """Compiles the statements of a task (`body`). file: name of the file that its places are in, for messages. types:
    the element type of each array of streams, by its name."""

    def __init__(self, body: tuple[Statement, ...], file: str, types: Mapping[str, ElementType]) -> None:
        self.file, self.types = file, types
        self.deciding = deciding(body)
        self.body = self.blocks(body)

    def blocks(self, body: tuple[Statement, ...]) -> tuple[Block, ...]:
        """Return the compiled form of statements, in order. Raises as `block`."""
        return tuple(map(self.block, body))

    def block(self, node: Statement) -> Block:
        """Return the compiled form of one statement. Raises `ProgramError` for what is no statement or expression,
        `KeyError` for an unknown array of streams. Errors of a computation are raised when it runs, as `ProgramError`
        with the place.
        """
        match node:
            case Get(place, name, stream, index):
                return Take(place, name, stream, self._index(place, index), names_in(index))
            case Put(place, stream, index, value):
                kind, compute = self.types[stream], value_of(value)
                give = self._guarded(place, lambda env: convert(compute(env), kind))
                return Give(place, stream, self._index(place, index), give, names_in(index), names_in(value))
            case Cycles(place, count):
                return Spend(place, self._guarded(place, _whole(value_of(count))), names_in(count))
            case Leave(place, how):
                return EarlyExit(place, how)
        if isinstance(node, If) and (divides((*node.body, *node.other)) or node.decided):
            test = self._guarded(node.place, value_of(node.test))
            arms = self.blocks(node.body), self.blocks(node.other)
            return StreamBranch(node.place, test, *arms, node.decided, names_in(node.test))
        if isinstance(node, For) and self._steps(node.body):
            writes = written(node)
            inside = frozenset().union(*(self._decides(s) for s in node.body))
            alike = not writes & inside and not (written(node.body) & self.deciding)
            values = self._guarded(node.place, _trips(node))
            body = self.blocks(node.body)
            return CountedLoop(
                node.place, node.names, values, body, node.unrolled, alike, names_in(node.bounds), writes
            )
        if isinstance(node, While) and self._steps((*node.head, *node.body)):
            test = self._guarded(node.place, value_of(node.test))
            return Until(node.place, self.blocks(node.head), test, self.blocks(node.body))
        loops = any(isinstance(n, For | While) for n in nodes(node))
        effects = any(isinstance(n, Store | External) for n in nodes(node))
        return LocalStatements(node.place, self.action(node), names_in(node), written(node), loops, effects)

    def _index(self, place: Place, index: tuple[Expression, ...]) -> tuple[Value, ...]:
        return tuple(self._guarded(place, _whole(value_of(part))) for part in index)

    def _steps(self, body: tuple[Statement, ...]) -> bool:
        return any(isinstance(n, Get | Put | Cycles | Leave) for n in nodes(body))

    def _decides(self, node: Statement) -> frozenset[str]:
        """The names on which the steps of a statement depend, but not through other variables."""
        out: set[str] = set()
        for n in nodes(node):
            match n:
                case If(test=test) | While(test=test):
                    out |= names_in(test)
                case For(bounds=bounds):
                    out |= names_in(bounds)
                case Get(index=index) | Put(index=index):
                    out |= names_in(index)
                case Cycles(count=count):
                    out |= names_in(count)
        return frozenset(out)

    def _guarded(self, place: Place, compute: Value) -> Value:
        """Name the place in the errors of a computation."""

        def guarded(env: Variables) -> Any:
            try:
                return compute(env)
            except (ArithmeticError, TypeError, ValueError, IndexError, KeyError, AttributeError, ProgramError) as e:
                raise ProgramError(f"{self.file}:{place.line}:{place.column}: {_said(e)}") from None

        return guarded

    # -- statements that touch no stream ----------------------------------------------------------------------------

    def action(self, node: Statement) -> Action:
        """Compile a statement without puts, gets and cycles to a function that executes it on variables. Raises as
        `block`.
        """
        compute = self._guarded(node.place, self._action(node))
        return lambda env: compute(env)

    def _action(self, node: Statement) -> Value:
        match node:
            case Assign(names=names, value=value, type=kind):
                shared = isinstance(value, Name | Item | Select | Kernel)
                return _assignment(names, value_of(value), kind, shared)
            case Store(name=name, index=index, value=value):
                return _store(name, value_of(index), value_of(value))
            case Read(values=values):
                parts = tuple(map(value_of, values))
                return lambda env: [part(env) for part in parts]
            case If(test=test, body=body, other=other):
                return self._if(value_of(test), self._sequence(body), self._sequence(other), written((body, other)))
            case For(names=names, body=body):
                return self._for(_trips(node), names, self._sequence(body), written(node))
            case While(head=head, test=test, body=body):
                writes = written((head, body))
                return self._while(self._sequence(head), value_of(test), self._sequence(body), writes)
        raise ProgramError(f"{node} is no statement without streams")

    def _sequence(self, body: tuple[Statement, ...]) -> Action:
        actions = tuple(map(self.action, body))

        def run(env: Variables) -> None:
            for act in actions:
                act(env)

        return run

    def _if(self, test: Value, body: Action, other: Action, writes: frozenset[str]) -> Value:
        def run(env: Variables) -> None:
            chosen = test(env)
            if chosen is UNKNOWN:
                env.update(dict.fromkeys(writes, UNKNOWN))
            else:
                (body if chosen else other)(env)

        return run

    def _for(self, trips: Value, names: tuple[str, ...], body: Action, writes: frozenset[str]) -> Value:
        def run(env: Variables) -> None:
            try:
                values = trips(env)
            except ByData:
                env.update(dict.fromkeys(writes, UNKNOWN))
                return
            for value in values:
                bind(env, names, value)
                body(env)

        return run

    def _while(self, head: Action, test: Value, body: Action, writes: frozenset[str]) -> Value:
        def run(env: Variables) -> None:
            for _ in range(ROUNDS):
                head(env)
                chosen = test(env)
                if chosen is UNKNOWN:
                    env.update(dict.fromkeys(writes, UNKNOWN))
                    return
                if not chosen:
                    return
                body(env)
            raise ProgramError(f"this loop has run {ROUNDS} times, which is the limit")

        return run


def _whole(compute: Value) -> Value:
    """A computation whose result must be a whole number, 0 or more, that is known before the run."""

    def whole(env: Variables) -> int:
        value = compute(env)
        if value is UNKNOWN:
            raise ProgramError("an index or a number of cycles is not known before the run")
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ProgramError(f"{value} is no index and no number of cycles")
        return value

    return whole


def _said(error: Exception) -> str:
    return f"the name {error} has no value here" if isinstance(error, KeyError) else str(error)


def bind(env: Variables, names: tuple[str, ...], value: Any) -> None:
    """Bind a value to one name, or its items to several; an unknown value to all. env: variables, changed in place.
    Raises `ProgramError` for another number of items than names, `TypeError` for a value without items and several
    names."""
    if len(names) == 1:
        env[names[0]] = value
    elif value is UNKNOWN:
        env.update(dict.fromkeys(names, UNKNOWN))
    else:
        items = tuple(value)
        if len(items) != len(names):
            raise ProgramError(f"{len(names)} names for {len(items)} values")
        env.update(zip(names, map(scalar, items), strict=True))


def _assignment(names: tuple[str, ...], compute: Value, kind: ElementType | None, shared: bool) -> Value:
    """shared: the value may be a tile of another variable, or a part of one. Tiles are values: it is copied."""

    def run(env: Variables) -> None:
        value = compute(env)
        if kind is not None:
            value = _converted_whole(value, kind)
        elif shared and isinstance(value, np.ndarray):
            value = value.copy()
        bind(env, names, value)

    return run


def _converted_whole(value: Any, kind: ElementType) -> Any:
    return convert(value, kind) if kind.shape or value is UNKNOWN else converted(kind, value)


def _store(name: str, index: Value, compute: Value) -> Value:
    def run(env: Variables) -> None:
        base, at, value = env[name], index(env), compute(env)
        if base is UNKNOWN:
            return
        if value is UNKNOWN or is_unknown(at):
            env[name] = base if getattr(base, "off_chip", False) else UNKNOWN
        else:
            if type(value) is int and isinstance(base, np.ndarray) and base.dtype.kind in "iu":
                value = convert(value, ElementType(f"{base.dtype.kind}{8 * base.dtype.itemsize}"))
            base[within(base, at)] = value

    return run


class _Grid:
    """The points of a grid in order, the last index innermost."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return prod(max(0, size) for size in self.sizes)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return product(*map(range, self.sizes))

    def __getitem__(self, number: int) -> tuple[int, ...]:
        number %= len(self)
        point = []
        for size in reversed(self.sizes):
            number, index = divmod(number, size)
            point.append(index)
        return tuple(reversed(point))


def _trips(node: For) -> Value:
    bounds = tuple(map(value_of, node.bounds))

    def values(env: Variables) -> Any:
        sizes = [bound(env) for bound in bounds]
        if any(map(is_unknown, sizes)):
            raise ByData
        if node.kind == "range":
            return range(*sizes)
        if node.kind == "grid":
            return _Grid(sizes) if len(sizes) > 1 else range(*sizes)
        return tuple(sizes[0])

    return values
