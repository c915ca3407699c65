"""The compiled engine: runs traces without data, with exactly the clocks of `ProcessNetwork`."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from . import engine_loop, jit
from .description import StreamNetwork
from .engine_loop import (
    ALIVE,
    CHILDREN,
    FILLED,
    LAST,
    LOG_BEFORE,
    LOG_BOUND,
    LOG_ITEM,
    LOG_ROW,
    NOBODY,
    ROW,
    STOP,
)
from .event_log import CriticalPath, EventLog
from .executor import RunningProcess
from .list_scheduling import ListSchedulingProblem, job_tables
from .steps import NEVER, Issue, Step, Steps
from .timing import RunTiming
from .traces import MAX_WORDS, RATE, Floats, Ints, Traces


def run_traces(
    traces: Traces,
    machine: StreamNetwork,
    *,
    record: bool = False,
    arbitration: ListSchedulingProblem | None = None,
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = jit.compiled,
) -> RunTiming:
    """Run traces to the end with the rates and FIFO depths of `machine`. Raises the errors of `ProcessNetwork.run`.

    record: keep the event log. arbitration: work of one process whose order the run decides; None: all keep their
    order. compiled: compiles the two loops of `engine_loop`; the identity function gives the same result slowly. Raises
    `ValueError` if `machine` has other rates, streams or on-chip memories than the machine that was traced."""
    net = traces.net
    seconds = machine.step_seconds
    streams = machine.streams
    if list(seconds) != net.rate_names or [s.name for s in streams] != [s.name for s in net.machine.streams]:
        raise ValueError(f"overlay {machine.name} has other rates or streams than the overlay that was traced")
    if [u.memory for u in machine.units] != [u.memory for u in net.machine.units]:
        raise ValueError(f"overlay {machine.name} has other memories than the overlay that was traced")
    depths = list({s.name: s.depth for s in streams}.values())
    depths += [c.capacity for handover in net.apart.values() for c in handover]
    depths += net.workload.fifo_depths(machine)
    capacity = np.minimum(depths, MAX_WORDS).astype(np.int32)
    # Ring sizes: all tokens but the first are whole puts, all credits but the first whole gets; one more is in transit.
    most = np.minimum(capacity[:, None] // traces.least[:, ::-1], traces.most[:, ::-1]) + 3
    rings = 1 << np.ceil(np.log2(most)).astype(np.int64)
    table = np.empty((traces.firings if record else 0, 4), np.int32)
    began = np.empty(traces.firings if record else 0, np.float64)
    duration = traces.amounts * np.array([*seconds.values()])[traces.rows[:, RATE]]
    arbiter, jobs, jobs_s, needs, queue, queue_at = job_tables(traces, arbitration)
    latency, alive, last, busy, amounts, waits, starts, counts, channels, tasks, order = compiled(engine_loop.run)(
        traces.rows,
        duration,
        traces.amounts,
        # arrays used only as indices: unsigned, numba omits the check for negative indices (10 % of the time)
        traces.peers.view(np.uint32),
        traces.at.view(np.uint32),
        traces.items.view(np.uint32),
        traces.bounds,
        capacity,
        rings,
        traces.slots,
        len(seconds),
        table,
        began,
        arbiter,
        jobs,
        jobs_s,
        needs,
        queue,
        queue_at,
    )
    if alive or channels[:, FILLED].any():
        _raise_stopped(traces, capacity, channels, tasks)
    names = list(net.progress)

    def ended() -> Floats:
        """The end of each firing: by its own duration, or the end of the firing that bound it."""
        root = np.where(table[:, LOG_BOUND] < 0, np.arange(len(table), dtype=np.int32), table[:, LOG_BOUND])
        while (table[root, LOG_BOUND] >= 0).any():
            root = root[root]
        return np.asarray(began[root] + duration[table[root, LOG_ROW]])

    def begun(unit: str) -> list[tuple[float, int]]:
        p = names.index(unit)
        if any(c.control and c.sink == unit for c in net.channels):
            return []  # as in the executor, which records starts only in a run without an instruction path
        number = traces.number[traces.bounds[p] : traces.bounds[p + 1]]
        first = np.flatnonzero((number != NEVER) & np.append(True, number[1:] != number[:-1])[: len(number)])
        own = first + traces.bounds[p]
        return list(zip(starts[own].tolist(), counts[own].tolist(), strict=True))

    def recorded() -> None:
        if not record:
            raise ValueError("the run was not recorded: pass record=True")

    def firings() -> EventLog:
        recorded()
        owner = np.repeat(np.arange(len(names)), np.diff(traces.bounds))
        return EventLog(
            steps=traces.steps,
            unit=_array("i", owner[table[:, LOG_ITEM]]),
            step=_array("i", table[:, LOG_ROW]),
            start=_array("d", began),
            end=_array("d", ended()),
            before=_array("i", table[:, LOG_BEFORE] >> 2),
            via=_array("i", table[:, LOG_BEFORE] & 3),
            bound=_array("i", table[:, LOG_BOUND]),
            number=_array("i", traces.number[table[:, LOG_ITEM]]),
            origin=_array("i", traces.origin[table[:, LOG_ITEM]]),
        )

    def chain() -> CriticalPath:
        recorded()
        at, via = compiled(engine_loop.walk)(table, last)
        item = table[at, LOG_ITEM]
        return CriticalPath(
            unit=(np.searchsorted(traces.bounds, item, "right") - 1).astype(np.int32),
            rate=traces.rows[table[at, LOG_ROW], RATE],
            start=began[at],
            end=began[at] + duration[table[at, LOG_ROW]],
            origin=traces.origin[item],
            via=via,
        )

    return RunTiming(
        latency,
        dict(zip(names, busy.tolist(), strict=True)),
        dict(zip(seconds, amounts.tolist(), strict=True)),
        dict(zip([c.name for c in net.channels], map(tuple, waits.tolist()), strict=True)),
        order.tolist(),
        begun,
        firings,
        chain,
    )


def _array(code: str, column: npt.NDArray[Any]) -> Any:
    return array(code, column.astype(code).tobytes())


def _nothing() -> Steps:
    yield from ()


def _raise_stopped(traces: Traces, capacity: Ints, channels: Ints, tasks: Ints) -> None:
    """Copy the state in which the engine stopped into the network, which raises the executor's error for it."""
    net = traces.net
    by_index = net.channels
    processes = list(net.progress.values())

    def stand(progress: Any, item: int) -> None:
        progress.number = int(traces.number[item]) if item >= 0 else NEVER
        progress.issue = Issue(None, int(traces.origin[item])) if item >= 0 else None

    for channel, depth, state in zip(by_index, capacity.tolist(), channels.tolist(), strict=True):
        channel.capacity, channel.filled, channel.space = depth, state[FILLED], depth - state[FILLED]
        item = state[LAST]
        if item >= 0:
            writer = processes[int(np.searchsorted(traces.bounds, item, "right")) - 1]
            stand(writer, item)
            channel.last = (writer.owner, writer.number, writer.issue)
    for progress, first, (*_, item) in zip(processes, traces.bounds.tolist(), tasks.tolist(), strict=False):
        stand(progress, item if item >= first else NEVER)
    made: dict[int, RunningProcess] = {}

    def task(i: int) -> RunningProcess:
        if i not in made:
            _, process, parent, lane, *_ = tasks[i].tolist()
            made[i] = RunningProcess(_nothing(), processes[process], None if parent == NOBODY else task(parent), lane)
        return made[i]

    alive = []
    for i in np.flatnonzero(tasks[:, ALIVE]).tolist():
        blocked = task(i)
        # otherwise the task waits for its lanes, or is an arbiter that may begin no job
        if not tasks[i, CHILDREN] and tasks[i, ROW] < tasks[i, STOP]:
            gets, puts, at, words, *_ = traces.rows[tasks[i, ROW]].tolist()
            peers = [by_index[c] for c in traces.peers[at : at + gets + puts]]
            blocked.pending = Step(gets=peers[:gets], puts=peers[gets:], words=words)
        alive.append(blocked)
    net.settle(alive)
