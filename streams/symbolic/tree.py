"""What a program is for every size: task instances in groups, with loops whose trips are forms in the sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base.place import Place
from ..tree import Nodes, StreamDecl
from .polynomial import Polynomial


@dataclass(frozen=True)
class Element:
    """One stream of an array, by the name of the array and an index that may depend on sizes; the reader for one size
    has a number in its place. index: () for a single stream. shown: the index as findings write it."""

    name: str
    index: tuple[Polynomial, ...]
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name + (f"[{','.join(self.shown)}]" if self.shown else "")


@dataclass(frozen=True)
class SymbolicOperation:
    """A put or a get of one token. stream: the name of the array of streams. index: of the stream in the array; () for
    a single stream. put: whether it is a put."""

    stream: str
    index: tuple[Polynomial, ...]
    put: bool
    place: Place

    @property
    def needs(self) -> tuple[tuple[Any, bool, int], ...]:
        """The tokens that it moves: (name of the array, whether it puts, 1). The reader only asks which streams a node
        uses."""
        return ((self.stream, self.put, 1),)


@dataclass(frozen=True)
class Loop:
    """A loop. name: the variable that counts its iterations, from 0. times: how many there are. body: the operations of
    one."""

    name: str
    times: Polynomial
    body: Body

    @property
    def needs(self) -> tuple[tuple[Any, bool, int], ...]:
        """The `needs` of all operations of the body, in one iteration."""
        return tuple(need for node in self.body for need in node.needs)


@dataclass(frozen=True)
class Branch:
    """A branch that data decide. arms: the operations of each arm. place: of its condition."""

    arms: tuple[Body, ...]
    place: Place

    @property
    def needs(self) -> tuple[tuple[Any, bool, int], ...]:
        """The `needs` of all operations of all arms."""
        return tuple(need for arm in self.arms for node in arm for need in node.needs)


Item = SymbolicOperation | Loop | Branch
Body = tuple[Item, ...]


Variables = tuple[tuple[str, Polynomial], ...]
"""Variables with their counts, outer ones first."""

Box = tuple[tuple[Polynomial, Polynomial], ...]
"""For each axis of a tensor, the first element and the one behind the last."""


@dataclass(frozen=True)
class AccessBox:
    """What a statement accesses of a tensor. store: whether it stores. alike: whether it is a store outside of loops
    with which all instances that hold the same part of the tensor store the same values. box: the elements in the whole
    tensor. bound: the variables in `box`, of the grid and of the loops around the statement, with their counts. place:
    of the statement."""

    tensor: str
    store: bool
    alike: bool
    box: Box
    bound: Variables
    place: Place


@dataclass(frozen=True)
class SlicePassage:
    """The part of a tensor that a statement puts on a stream, or into which it stores a token. stream: the name of the
    array of streams. put: whether the statement puts. box: the elements in the part that the instance holds; None if it
    is no part of a tensor. single: for each axis, whether the statement has a single index there, not a slice. bound:
    as for `AccessBox`. place: of the statement."""

    stream: str
    put: bool
    box: Box | None
    single: tuple[bool, ...]
    bound: Variables
    place: Place


@dataclass(frozen=True)
class InstanceGroup:
    """Instances of a task with the same operations. name: in findings. task: the name of the task. tid: the grid
    indices of an instance, as forms in the variables of `axes`. axes: these variables with their counts. body: the
    operations. accesses: to tensors. passages: the parts of tensors that streams move. ran: as for `Instance`."""

    name: str
    task: str
    tid: tuple[Polynomial, ...]
    axes: Variables
    body: Body
    accesses: tuple[AccessBox, ...] = ()
    passages: tuple[SlicePassage, ...] = ()
    ran: frozenset[tuple[int, ...]] = frozenset()


@dataclass(frozen=True)
class SymbolicProgram:
    """A program that is read for all sizes of a domain. streams: the declared arrays, by name. groups: the instances of
    all tasks."""

    streams: Mapping[str, StreamDecl]
    groups: tuple[InstanceGroup, ...]


class SymbolicNodes(Nodes):
    """Makes the nodes of bodies that depend on sizes. names: yields new names of loop variables."""

    def __init__(self, names: Iterator[str]) -> None:
        super().__init__()
        self.names = names

    def op(self, stream: Any, put: bool, place: Place) -> Any:
        """Return a put or a get of one token. stream: an `Element`."""
        return SymbolicOperation(stream.name, stream.index, put, place)

    def repeat(self, times: int, body: Any) -> Any:
        """Return the body of a loop with a known number of equal iterations; an empty one for 0."""
        if times <= 0 or not body:
            return ()
        return body if times == 1 else (Loop(next(self.names), Polynomial.of(times), tuple(body)),)

    def loop(self, iterations: Sequence[tuple[int, Any]]) -> Any:
        """Return the body of all iterations of a loop; equal ones (`shape`) become one loop. iterations: as for
        `Nodes.loop`."""
        alike: dict[object, Any] = {}
        return super().loop([(times, alike.setdefault(shape(tuple(body)), tuple(body))) for times, body in iterations])

    def choice(self, arms: Sequence[Any], place: Place) -> Any:
        """Return a branch on data as a body. If all arms have the same operations in the same order, they are returned
        without a branch. place: of the condition."""
        if all(shape(arm) == shape(arms[0]) for arm in arms[1:]):
            return arms[0]
        return (Branch(tuple(tuple(arm) for arm in arms), place),)


def shape(body: Body, names: Mapping[str, Polynomial] | None = None) -> tuple[object, ...]:
    """Return a key of a body. Two bodies have equal keys if they have the same operations, loops and branches in the
    same order, wherever they stand and whatever their loop variables are called. names: forms in place of variables of
    the loops around the body; None for none."""
    names = dict(names or {})
    out: list[object] = []
    for node in body:
        if isinstance(node, SymbolicOperation):
            out.append((node.stream, tuple(i.put(names) for i in node.index), node.put))
        elif isinstance(node, Loop):
            inner = {**names, node.name: Polynomial.variable(f"${len(names)}")}
            out.append((node.times.put(names), shape(node.body, inner)))
        else:
            out.append(tuple(shape(arm, names) for arm in node.arms))
    return tuple(out)


def replaced(body: Body, values: Mapping[str, Polynomial | int]) -> Body:
    """Return a body with variables replaced. values: the form or number for each variable, by its name."""
    out: list[Item] = []
    for node in body:
        if isinstance(node, SymbolicOperation):
            index = tuple(i.put(values) for i in node.index)
            out.append(node if index == node.index else SymbolicOperation(node.stream, index, node.put, node.place))
        elif isinstance(node, Loop):
            out.append(Loop(node.name, node.times.put(values), replaced(node.body, values)))
        else:
            out.append(Branch(tuple(replaced(arm, values) for arm in node.arms), node.place))
    return tuple(out)


def steps_of(body: Body) -> Iterator[SymbolicOperation]:
    """Yield all puts and gets of a body: those of a loop once, and those of all arms of a branch."""
    for node in body:
        if isinstance(node, SymbolicOperation):
            yield node
        elif isinstance(node, Loop):
            yield from steps_of(node.body)
        else:
            for arm in node.arms:
                yield from steps_of(arm)
