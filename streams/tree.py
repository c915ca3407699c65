"""What the reader makes of a file: streams, tasks, and for each task instance a tree of operations.

Nodes are made by `Nodes`, which makes each distinct node once: equal nodes are the same object.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from ..base.element_types import CPP_BITS, ElementType
from ..base.place import Place
from ..isa.overlays.tasks.tree import Expression
from .datapath import KernelVariant
from .layouts import OPEN
from .orders.order import Order
from .orders.shown import ShownOrder
from .source import Source
from .syntax.nodes import FunctionDefinition

if TYPE_CHECKING:
    from .expressions import RegionContext

PERIOD = 64
"""The longest period, in iterations, that is looked for in an unrolled loop."""


def bytes_of(type_: ElementType) -> int:
    """Return the bytes of one element of a stream or tensor, a tile or a number, rounded up: a Boolean takes one byte,
    two numbers of 4 bits take one, and a number of a type that is not known takes 4.
    """
    return -(-CPP_BITS.get(type_.dtype, 32) * prod(type_.shape) // 8)


@dataclass(frozen=True)
class StreamDecl:
    """A declared stream or array of streams. name: with the calls of regions around it. type: of an element. depth: in
    elements. packing: elements that move together. shape: of the array; () for a single stream. place: of the
    declaration. first: the number of its first stream among all of the region. order: in which it carries the tokens of
    a tensor; None if that is not stated. buffer_of: for a stream between the parts of a double buffered task, the name
    of the task; "" for a stream of the program."""

    name: str
    type: ElementType
    depth: int
    packing: int
    shape: tuple[int, ...]
    place: Place
    first: int
    order: Order | None = None
    buffer_of: str = ""

    @property
    def size(self) -> int:
        """How many streams the array has; 1 for a single stream."""
        return prod(self.shape)

    def element(self, number: int) -> str:
        """Return the name of one stream of the array with its indices. number: of the stream among all of the
        region."""
        return self.name + (f"[{','.join(map(str, self.index(number)))}]" if self.shape else "")

    def index(self, number: int) -> tuple[int, ...]:
        """Return the indices of one stream of the array, row-major. number: of the stream among all of the region."""
        index = []
        for size in reversed(self.shape):
            number, i = divmod(number, size)
            index.append(i)
        return tuple(reversed(index))


@dataclass(frozen=True)
class Collective:
    """An exchange of tiles among instances of a task, at one place of the program. Instances that differ only along
    some axes of the grid are a group.

    what: the function of the language. task: the name of the task. op: "+" or "max", by which tiles are combined; ""
    for an all-gather. axes: the axes of the grid. axis: of the tile, along which it is gathered or cut; None for an
    all-reduce. place: where it stands. inserted: whether it is no call in the program, but stands before a store or an
    assignment whose layout asks for it.

    arrays: its streams, in arrays [groups, columns]. An all-reduce has two arrays with a column for each instance of a
    group but the first: from the others to the first one, and the results back. Any other collective has one array with
    a column for each instance of a group; on it the instance puts to each other instance in turn."""

    what: str
    task: str
    op: str
    axes: tuple[int, ...]
    axis: int | None
    place: Place
    inserted: bool
    arrays: tuple[StreamDecl, ...]

    @property
    def size(self) -> int:
        """Bytes that pass its streams in one execution, in all groups together."""
        return sum(array.size * bytes_of(array.type) for array in self.arrays)


def peers(member: int, others: int) -> list[tuple[int, int]]:
    """Return from which streams an instance gets its tiles, in an exchange in which each instance of a group puts to
    each other one: for each, the number of the instance that puts, and the column of its stream (`Collective.arrays`).
    member: the number of the instance in its group, from 0. others: the number of other instances in the group."""
    return [(source, member - (source < member)) for source in range(others + 1) if source != member]


@dataclass(frozen=True)
class SizeDecl:
    """A size that a run gives. value: in this reading. largest: its largest value; the smallest is 1."""

    name: str
    value: int
    largest: int
    place: Place


@dataclass(frozen=True)
class TensorDecl:
    """A tensor off the chip, an argument of the region. sized: the axes whose sizes a run gives: the number of the
    axis, and its size as an expression of the sizes."""

    name: str
    type: ElementType
    place: Place
    sized: tuple[tuple[int, Expression], ...] = ()


@dataclass(frozen=True)
class TaskParameter:
    """A parameter of a task. tensor: that `args=` binds to it; None without. type: element type and shape of the whole
    tensor; None if neither a tensor nor an annotation states them. layout: the text in `Layout(..)`; None if there is
    none, which means a copy in every instance. place: of the annotation, or of the name."""

    name: str
    tensor: TensorDecl | None
    type: ElementType | None
    layout: str | None
    place: Place

    @property
    def is_open(self) -> bool:
        """Whether its layout has a ?, for which a label is to be found."""
        return OPEN in (self.layout or "")


@dataclass(frozen=True)
class TaskDecl:
    """A declared task.

    name: with the calls of regions around it, such as pair.producer. mapping: the sizes of its grid. body: its
    function. parameters: in order. rates: what its datapath does in a clock cycle, by kernel, as the task states it.
    double_buffer: whether it asks for parts that load and store while it computes. whole, part: for such a part, the
    task that it is a part of, and which part it is; None and "" for a task of the program."""

    name: str
    mapping: tuple[int, ...]
    body: FunctionDefinition
    place: Place
    parameters: tuple[TaskParameter, ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    double_buffer: bool = False
    whole: TaskDecl | None = None
    part: str = ""


Needs = tuple[tuple[int, bool, int], ...]
"""(stream, whether it is put on, number of tokens), sorted, each stream and direction once."""


class Node:
    """A node of the tree of operations. needs: the tokens that all operations below it put and get. even: whether these
    numbers hold for every outcome of branches on data; if not, they are the largest of the arms."""

    __slots__ = ("even", "needs")

    def __init__(self, needs: Needs, even: bool) -> None:
        self.needs, self.even = needs, even


class Op(Node):
    """A put or a get of one token. stream: the number of the stream. put: whether it is a put. place: of the
    statement."""

    __slots__ = ("place", "put", "stream")

    def __init__(self, stream: int, put: bool, place: Place) -> None:
        super().__init__(((stream, put, 1),), True)
        self.stream, self.put, self.place = stream, put, place


class Beat(Node):
    """Puts and gets that fire together, and the clock cycles that they take. ops: () for a beat that only takes time.
    place: of the first operation, or of what takes cycles. fixed: how many of the cycles higher rates would not
    shorten."""

    __slots__ = ("cycles", "fixed", "ops", "place")

    def __init__(self, ops: tuple[Op, ...], cycles: int, place: Place, fixed: int = 0) -> None:
        super().__init__(total(ops)[0], True)
        self.ops, self.cycles, self.place, self.fixed = ops, cycles, place, fixed


class FixedLoop(Node):
    """A loop of `times` iterations with the same operations. body: these. once: the needs of one iteration."""

    __slots__ = ("body", "once", "times")

    def __init__(self, times: int, body: Body) -> None:
        needs, even = total(body)
        super().__init__(tuple((s, put, n * times) for s, put, n in needs), even)
        self.times, self.body, self.once = times, body, needs


class Choice(Node):
    """A branch that data decide. arms: the operations of each arm. place: of its condition."""

    __slots__ = ("arms", "place")

    def __init__(self, arms: tuple[Body, ...], place: Place) -> None:
        counts = [total(arm) for arm in arms]
        most: dict[tuple[int, bool], int] = {}
        for needs, _ in counts:
            for stream, put, n in needs:
                most[stream, put] = max(n, most.get((stream, put), 0))
        even = all(even and needs == counts[0][0] for needs, even in counts)
        super().__init__(tuple((s, put, n) for (s, put), n in sorted(most.items())), even)
        self.arms, self.place = arms, place


Body = tuple[Node, ...]


def total(body: Iterable[Node]) -> tuple[Needs, bool]:
    """Return the numbers of tokens that a body puts on and gets from each stream, sorted, and whether these hold for
    every outcome of its branches on data."""
    counts: dict[tuple[int, bool], int] = {}
    even = True
    for node in body:
        even = even and node.even
        for stream, put, n in node.needs:
            counts[stream, put] = counts.get((stream, put), 0) + n
    return tuple((s, put, n) for (s, put), n in sorted(counts.items())), even


def branches(body: Body) -> bool:
    """Return whether a body has a branch on data."""
    return any(isinstance(node, Choice) or (isinstance(node, FixedLoop) and branches(node.body)) for node in body)


class Nodes:
    """Makes the nodes of trees, each distinct one once."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], Node] = {}

    def op(self, stream: int, put: bool, place: Place) -> Op:
        """Return a put or a get of one token. stream: the number of the stream. put: whether it is a put. place: of the
        statement."""
        key = (stream, put, place)
        made = self._made.get(key) or self._made.setdefault(key, Op(stream, put, place))
        assert isinstance(made, Op)
        return made

    def beat(self, ops: tuple[Op, ...], cycles: int, place: Place, fixed: int = 0) -> Node:
        """Return a beat. ops, cycles, place, fixed: as for `Beat`."""
        key = ("beat", ops, cycles, place, fixed)
        return self._made.get(key) or self._made.setdefault(key, Beat(ops, cycles, place, fixed))

    def repeat(self, times: int, body: Body) -> Body:
        """Return a body that repeats another one; an empty one for 0 times. A loop whose body is a single loop becomes
        one loop."""
        if times <= 0 or not body:
            return ()
        if times == 1:
            return body
        if len(body) == 1 and isinstance(body[0], FixedLoop):
            times, body = times * body[0].times, body[0].body
        key = ("repeat", times, body)
        return (self._made.get(key) or self._made.setdefault(key, FixedLoop(times, body)),)

    def choice(self, arms: Sequence[Body], place: Place) -> Body:
        """Return a branch on data as a body. If all arms have the same operations in the same order, they are returned
        without a branch. arms: at least one. place: of the condition."""
        if all(same(arm, arms[0]) for arm in arms[1:]):
            return arms[0]
        key = ("choice", place, *arms)
        return (self._made.get(key) or self._made.setdefault(key, Choice(tuple(arms), place)),)

    def loop(self, iterations: Sequence[tuple[int, Body]]) -> Body:
        """Return the body of all iterations of a loop; iterations that repeat with a period of at most `PERIOD` become
        one loop. iterations: for each run of equal iterations, their number, and the operations of one of them."""
        runs: list[tuple[int, Body]] = []
        for times, body in iterations:
            if not body:
                continue
            if runs and runs[-1][1] == body:
                runs[-1] = runs[-1][0] + times, body
            else:
                runs.append((times, body))
        for period in range(2, min(PERIOD, len(runs) // 2) + 1):
            if all(runs[k] == runs[k + period] for k in range(len(runs) - period)):
                once = sum((self.repeat(times, body) for times, body in runs[:period]), ())
                left = runs[len(runs) - len(runs) % period :]
                rest = sum((self.repeat(times, body) for times, body in left), ())
                return self.repeat(len(runs) // period, once) + rest
        return tuple(node for times, body in runs for node in self.repeat(times, body))


def same(a: Body, b: Body) -> bool:
    """Return whether two bodies have the same operations, with the same cycles, in the same order; their places may
    differ."""
    if a == b:
        return True
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, Op) and isinstance(y, Op):
            equal = (x.stream, x.put) == (y.stream, y.put)
        elif isinstance(x, Beat) and isinstance(y, Beat):
            equal = x.cycles == y.cycles and same(x.ops, y.ops)
        elif isinstance(x, FixedLoop) and isinstance(y, FixedLoop):
            equal = x.times == y.times and same(x.body, y.body)
        elif isinstance(x, Choice) and isinstance(y, Choice):
            equal = len(x.arms) == len(y.arms) and all(map(same, x.arms, y.arms))
        else:
            equal = False
        if not equal:
            return False
    return True


@dataclass(frozen=True)
class Instance:
    """A task instance with its operations.

    name: such as `gemm[0,1]`. task: its task. tid: its indices in the grid of the task. body: the operations. whole:
    whether these are all; if not, a mistake ended the reading. ran: the statements that it runs, each as (line,
    column); of loops with a known number of iterations also (line, column, iterations). orders: the orders that
    statements show at the ends of streams, by the number of the stream and whether the end puts. beats: the operations
    in beats, if the reading is timed; else ()."""

    name: str
    task: TaskDecl
    tid: tuple[int, ...]
    body: Body
    whole: bool
    ran: frozenset[tuple[int, ...]] = frozenset()
    orders: Mapping[tuple[int, bool], ShownOrder] = field(default_factory=dict, compare=False)
    beats: Body = ()


@dataclass(frozen=True)
class Region:
    """A region that was read, with the regions that it calls.

    source: the text and its findings. streams, tasks, instances: of this region and of those that it calls. tensors:
    off the chip, its arguments. name: of the function; "" for a whole file. contexts: what each task sees, by the name
    of the task. by_data: the places of loops that take time and whose number of iterations data decide, if the reading
    is timed. collectives: their streams are the last ones of `streams`. rates, float_add, variants: as for `Datapath`.
    timed: whether instances have beats. buffered: the names of tasks that are double buffered although they do not ask
    for it. sizes: those that a run gives."""

    source: Source
    streams: tuple[StreamDecl, ...]
    tasks: tuple[TaskDecl, ...]
    instances: tuple[Instance, ...]
    tensors: tuple[TensorDecl, ...] = ()
    name: str = ""
    contexts: Mapping[str, RegionContext] = field(default_factory=dict)
    by_data: tuple[Place, ...] = ()
    collectives: tuple[Collective, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    float_add: int = 1
    timed: bool = False
    variants: tuple[KernelVariant, ...] = ()
    buffered: frozenset[str] = frozenset()
    sizes: tuple[SizeDecl, ...] = ()

    def stream(self, number: int) -> tuple[StreamDecl, str]:
        """Return the declaration of a stream, and the name of the stream with its indices. number: of the stream among
        all of the region, from 0."""
        decl = self.streams[bisect_right(self._firsts, number) - 1]
        return decl, decl.element(number - decl.first)

    @cached_property
    def _firsts(self) -> list[int]:
        return [decl.first for decl in self.streams]
