"""When a task gets and puts its tokens: measured from its own operations, not from a formula.

A task that never waits for its partners does the beats of its body one after another, so its times are sums of cycles.
Most real tasks have no single rate: a matrix product takes K tiles for one it puts, a softmax a whole row. Therefore
the traces are exact: the time of every token. `Trace.timing` returns D, II and T where one rate is all there is.

`together` gives the same times for all tasks of a program on endless FIFOs, where a task waits for tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...base.errors import ProgramError
from ..dataflow.graph import Timing
from ..dataflow.topology import topological_order
from ..tree import Beat, Body, FixedLoop

Ints = npt.NDArray[np.int64]

BEATS = 1 << 23
"""Limit of the beats of a task that are listed one by one."""


@dataclass(frozen=True)
class Trace:
    """The operations of a task on one stream, the first one first. begin, end: integers [operations], the cycles in
    which their beats begin and end. From the end on, the token of a put can be got, and the slot of a token that was
    got is free."""

    begin: Ints
    end: Ints

    @property
    def tokens(self) -> int:
        """The number of tokens; each operation moves one."""
        return len(self.end)

    def timing(self) -> Timing | None:
        """Return the operations as first cycle, interval and number of tokens; None if the tokens come at more than one
        rate. The first cycle is the one from which on the first token can be got. A single token has all cycles until
        then as its interval."""
        intervals = np.diff(self.end)
        if len(intervals) and (intervals != intervals[0]).any():
            return None
        first = int(self.end[0])
        return Timing(first, int(intervals[0]) if len(intervals) else max(1, first), self.tokens)


@dataclass(frozen=True)
class TaskTimes:
    """When a task works, in cycles. first: when its first beat begins. last: when its last beat ends. puts, gets: its
    operations on each stream, by the number of the stream."""

    first: int
    last: int
    puts: Mapping[int, Trace]
    gets: Mapping[int, Trace]


@dataclass(frozen=True)
class _Listed:
    """Beats one by one: their cycles, and the beats of the operations on each stream, by stream and direction."""

    cycles: Ints
    ops: Mapping[tuple[int, bool], Ints]


def alone(body: Body) -> TaskTimes:
    """Return the times of a task whose partners never make it wait. body: of beats, without branches on data. Raises
    `ProgramError` for more than `BEATS` beats."""
    return _times(_listed(body), {}, 0)


def together(
    bodies: Sequence[Body], packing: Mapping[int, int] | None = None, starts: Mapping[int, int] | None = None
) -> tuple[TaskTimes, ...]:
    """Return the times of all tasks of a program with FIFOs of unlimited depth, in the order of `bodies`.

    bodies: of beats, without branches on data; every stream has one task that puts and one that gets. packing: elements
    that move together on a stream, by its number; 1 if not given. starts: the cycle before which a task does nothing,
    by the position of its body; 0 if not given. Raises `CycleError` for tasks that wait for each other's tokens in a
    cycle (use `normal.peaks`), and `ProgramError` for a task of more than `BEATS` beats."""
    listed = [_listed(body) for body in bodies]
    writers = {s: k for k, one in enumerate(listed) for s, put in one.ops if put}
    names = [str(k) for k in range(len(bodies))]
    links = [(names[writers[s]], names[k]) for k, one in enumerate(listed) for s, put in one.ops if not put]
    visible: dict[int, Ints] = {}
    found: dict[int, TaskTimes] = {}
    for name in topological_order(names, links):
        k = int(name)
        times = _times(listed[k], visible, (starts or {}).get(k, 0))
        for s, trace in times.puts.items():
            size = (packing or {}).get(s, 1)
            at = np.arange(trace.tokens)
            visible[s] = trace.end[at - at % size + size - 1]
        found[k] = times
    return tuple(found[k] for k in range(len(bodies)))


def peak(put: Trace, get: Trace) -> int:
    """Return the most slots of a FIFO that are in use at once. The slot of a token is in use from the beginning of its
    put to the end of its get. put, get: the operations at both ends; as many tokens in each."""
    freed = np.searchsorted(get.end, put.begin, side="right")
    return int((np.arange(1, put.tokens + 1) - freed).max(initial=0))


def _times(listed: _Listed, visible: Mapping[int, Ints], start: int) -> TaskTimes:
    """The times of a task that waits for tokens. visible: when the tokens of a stream can be got; at once if not given.

    What a task does is late by a time that only grows: with every token that comes later than the task is ready.
    """
    ready = np.cumsum(listed.cycles) - listed.cycles
    late = np.full(len(ready), start, np.int64)
    for (s, put), beats in listed.ops.items():
        if not put and s in visible:
            np.maximum.at(late, beats, visible[s] - ready[beats])
    begin = ready + np.maximum.accumulate(late)
    end = begin + listed.cycles
    traces = {key: Trace(begin[beats], end[beats]) for key, beats in listed.ops.items()}
    return TaskTimes(
        int(begin[0]) if len(begin) else start,
        int(end[-1]) if len(end) else start,
        {s: trace for (s, put), trace in traces.items() if put},
        {s: trace for (s, put), trace in traces.items() if not put},
    )


def _listed(body: Body) -> _Listed:
    """List the beats of a body, loops unrolled."""
    cycles: list[Ints] = []
    ops: dict[tuple[int, bool], list[Ints]] = {}
    count = 0
    for node in body:
        if isinstance(node, Beat):
            one = _Listed(np.array([node.cycles]), {(op.stream, op.put): np.zeros(1, np.int64) for op in node.ops})
        else:
            assert isinstance(node, FixedLoop), "beats and loops only"
            once = _listed(node.body)
            size = len(once.cycles)
            if size * node.times > BEATS:
                raise ProgramError(f"a loop has more than {BEATS} beats; too many to list them one by one")
            turns = np.arange(node.times)[:, None] * size
            one = _Listed(np.tile(once.cycles, node.times), {key: (turns + at).ravel() for key, at in once.ops.items()})
        cycles.append(one.cycles)
        for key, at in one.ops.items():
            ops.setdefault(key, []).append(at + count)
        count += len(one.cycles)
        if count > BEATS:
            raise ProgramError(f"a task has more than {BEATS} beats; too many to list them one by one")
    empty = np.zeros(0, np.int64)
    return _Listed(np.concatenate(cycles or [empty]), {key: np.concatenate(at) for key, at in ops.items()})
