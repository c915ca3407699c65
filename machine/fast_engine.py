"""Runs without data, compiled: the same clocks as `ProcessNetwork`'s, from `traces`, without a Python step per firing.

`execute` takes the quickest way there is and gives the same numbers on each. The engine needs numba (the extra `fast`),
which is imported when a run is long enough to pay for it. `Plan` keeps the traces of a program to time it again with
other rates or FIFO depths.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .description import Machine
from .event_log import FIRST_WORD, LAST_WORD, OWN, ROOM, CriticalPath, EventLog
from .executor import ProcessNetwork, Task
from .steps import NEVER, Issue, Step, Steps
from .traces import (
    FORK,
    GETS,
    MAX_WORDS,
    PEERS,
    PUTS,
    RATE,
    TIMES,
    WHOLE,
    WORDS,
    Floats,
    Ints,
    Traces,
    UntraceableError,
    trace,
)
from .workload import Workload

WORTHWHILE = 100_000
"""Firings, of all runs of a plan together, from which numba is loaded, with the engine's cached code: 0.4 s, as much as
150,000 firings in Python take; but a process that runs one program of this size often runs a second."""

NOBODY = -1


@dataclass(frozen=True, eq=False)
class Timing:
    """A complete run. latency: seconds, without the launch of the program. busy: seconds in which a process (a unit, a
    decoder, the dispatcher) did not wait, by name. amounts: what was charged to each rate. waits: seconds in which the
    reader of a stream waited for words (it was empty), and its writer for room (it was full), by the stream's name.
    order: the jobs of an arbitration, as they were taken."""

    latency: float
    busy: Mapping[str, float]
    amounts: Mapping[str, float]
    waits: Mapping[str, tuple[float, float]]
    order: Sequence[int]
    _starts: Callable[[str], list[tuple[float, int]]]
    _firings: Callable[[], EventLog]
    _chain: Callable[[], CriticalPath]

    @staticmethod
    def of(net: ProcessNetwork, latency: float) -> Timing:
        """What a run of `net` that took `latency` seconds found out."""

        def recorded() -> EventLog:
            if net.events is None:
                raise ValueError("the run was not recorded")
            return net.events

        return Timing(
            latency,
            {name: at.busy for name, at in net.progress.items()},
            net.amounts,
            {c.name: (c.empty, c.full) for c in net.channels},
            (),
            lambda unit: net.progress[unit].starts,
            recorded,
            lambda: recorded().critical_path(),
        )

    def starts(self, unit: str) -> list[tuple[float, int]]:
        """Clock and number of firings at which each uOP of a unit began, in a run without an instruction path."""
        return self._starts(unit)

    @cached_property
    def events(self) -> EventLog:
        """Every firing, if the run was recorded."""
        return self._firings()

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The steps that decided the latency, if the run was recorded."""
        return self._chain()


@dataclass(frozen=True, eq=False)
class ListSchedulingProblem:
    """Work of one process in an order that is yet to be found: jobs, of which it takes one after the other, each whole,
    always when no other process can go on without it. Times are exact: what the others are waiting for is known then.

    It takes the job whose stream has waited longest for words, or, among those that are `in_order`, the one of lowest
    rank; but first one that takes words from a stream, if that delays the other by no more than its patience. Jobs of
    one stream keep their order.

    first, last: items of the process (from 0) at which each job begins and ends. stream: the number of its stream. get:
    whether it takes from it. seconds: how long it is. patience: in seconds. rank: which of several that could begin at
    the same time goes first. needs: the jobs that must be done before it, those of job i from needs_at[i] to
    needs_at[i + 1].
    """

    process: str
    first: Ints
    last: Ints
    stream: Ints
    get: npt.NDArray[np.bool_]
    seconds: Floats
    patience: Floats
    rank: Ints
    in_order: npt.NDArray[np.bool_]
    needs: Ints
    needs_at: Ints


M = TypeVar("M", bound=Machine)


class Plan(Generic[M]):
    """A program ready to be timed as often as one likes, with other rates or FIFO depths. The arguments are those of
    `ProcessNetwork`; the traces are made once."""

    def __init__(
        self,
        machine: M,
        workload: Workload | Mapping[str, Sequence[Any]],
        *,
        where: Callable[[str, int], str] | None = None,
    ) -> None:
        self.machine = machine
        self._program: dict[str, Any] = {"workload": workload, "where": where}
        self._traces: Traces | None = None
        self._firings = 0  # of all runs so far
        with suppress(UntraceableError):
            self._traces = trace(machine, **self._program)

    @property
    def traced(self) -> bool:
        """Whether what the program does is known without data."""
        return self._traces is not None

    @cached_property
    def processes(self) -> list[str]:
        """What runs side by side, in the order in which a log numbers it: units, decoders, the dispatcher."""
        net = self._traces.net if self._traces is not None else ProcessNetwork(self.machine, **self._program)
        return list(net.progress)

    def run(self, machine: M | None = None, *, record: bool = False) -> Timing:
        """What `ProcessNetwork.run` finds out: the time, or a `DeadlockError` or `ProgramError` with its report.

        machine: the plan's own with other rates or FIFO depths.
        """
        machine = machine or self.machine
        traces = self._traces
        if traces is not None:
            self._firings += traces.firings
            worthwhile = self._firings >= WORTHWHILE or "numba" in sys.modules
            if worthwhile and available() and _loads():
                return run_traces(traces, machine, record=record)
        net = ProcessNetwork(machine, **self._program, record=record)
        return Timing.of(net, net.run())


def execute(
    machine: Machine,
    workload: Workload | Mapping[str, Sequence[Any]],
    *,
    record: bool = False,
    where: Callable[[str, int], str] | None = None,
) -> Timing:
    """Time a workload once."""
    return Plan(machine, workload, where=where).run(record=record)


@cache
def available() -> bool:
    """Whether there is a compiled engine, as far as can be said without loading it."""
    return importlib.util.find_spec("numba") is not None


@cache
def _loads() -> bool:
    try:
        importlib.import_module("numba")
    except ImportError:  # it refuses a numpy that is newer than itself
        return False
    return True


@cache
def _machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled, kept on disk from one process to the next where there is a place for it."""
    numba = importlib.import_module("numba")
    try:
        return numba.njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        return numba.njit(function, nogil=True)  # type: ignore[no-any-return]


def engine() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What makes `run_traces` fast, as far as this installation goes; without numba it runs as it stands, slowly."""
    return _machine_code if available() and _loads() else lambda function: function


def machine_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, a loop over arrays, compiled where numba is loaded already: loading it takes longer than most such
    loops."""
    return _machine_code(function) if "numba" in sys.modules and _loads() else function


def run_traces(
    traces: Traces,
    machine: Machine,
    *,
    record: bool = False,
    arbitration: ListSchedulingProblem | None = None,
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] = _machine_code,
) -> Timing:
    """Run to the end, as `ProcessNetwork.run`. arbitration: work whose order the run finds. compiled: what makes the
    two loops below fast; they work without, slowly."""
    net = traces.net
    seconds = machine.step_seconds
    streams = machine.streams
    if list(seconds) != net.rate_names or [s.name for s in streams] != [s.name for s in net.machine.streams]:
        raise ValueError(f"overlay {machine.name} has other rates or streams than the program's")
    depths = list({s.name: s.depth for s in streams}.values())
    depths += net.workload.fifo_depths(machine)
    capacity = np.minimum(depths, MAX_WORDS).astype(np.int32)
    # All tokens but the first are whole puts, all credits but the first whole gets; one more of each passes by.
    most = np.minimum(capacity[:, None] // traces.least[:, ::-1], traces.most[:, ::-1]) + 3
    rings = 1 << np.ceil(np.log2(most)).astype(np.int64)
    table = np.empty((traces.firings if record else 0, 4), np.int32)
    began = np.empty(traces.firings if record else 0, np.float64)
    duration = traces.amounts * np.array([*seconds.values()])[traces.rows[:, RATE]]
    arbiter, jobs, jobs_s, needs, queue, queue_at = _jobs(traces, arbitration)
    latency, alive, last, busy, amounts, waits, starts, counts, channels, tasks, order = compiled(_run)(
        traces.rows,
        duration,
        traces.amounts,
        # what is used as an index alone: unsigned, it is not checked for counting from the end, a tenth of the time
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
        _strand(traces, capacity, channels, tasks)
    names = list(net.progress)

    def ended() -> Floats:
        """When each firing ended: by its own duration, or with the one that bound it."""
        root = np.where(table[:, LOG_BOUND] < 0, np.arange(len(table), dtype=np.int32), table[:, LOG_BOUND])
        while (table[root, LOG_BOUND] >= 0).any():
            root = root[root]
        return np.asarray(began[root] + duration[table[root, LOG_ROW]])

    def begun(unit: str) -> list[tuple[float, int]]:
        p = names.index(unit)
        if any(c.control and c.sink == unit for c in net.channels):
            return []  # as the executor, which notes them of units that are fed a list
        own = slice(traces.bounds[p], traces.bounds[p + 1])
        return list(zip(starts[own].tolist(), counts[own].tolist(), strict=True))

    def recorded() -> None:
        if not record:
            raise ValueError("the run was not recorded")

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
        at, via = compiled(_walk)(table, last)
        item = table[at, LOG_ITEM]
        return CriticalPath(
            unit=(np.searchsorted(traces.bounds, item, "right") - 1).astype(np.int32),
            rate=traces.rows[table[at, LOG_ROW], RATE],
            start=began[at],
            end=began[at] + duration[table[at, LOG_ROW]],
            origin=traces.origin[item],
            via=via,
        )

    return Timing(
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


def _strand(traces: Traces, capacity: Ints, channels: Ints, tasks: Ints) -> None:
    """Put the network into the state in which the engine stopped, and let it say what it thinks of that."""
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
            channel.last = (writer.name, writer.number, writer.issue)
    for progress, first, (*_, item) in zip(processes, traces.bounds.tolist(), tasks.tolist(), strict=False):
        stand(progress, item if item >= first else NEVER)
    made: dict[int, Task] = {}

    def task(i: int) -> Task:
        if i not in made:
            _, process, parent, lane, *_ = tasks[i].tolist()
            made[i] = Task(_nothing(), processes[process], None if parent == NOBODY else task(parent), lane)
        return made[i]

    alive = []
    for i in np.flatnonzero(tasks[:, ALIVE]).tolist():
        blocked = task(i)
        if not tasks[i, CHILDREN] and tasks[i, ROW] < tasks[i, STOP]:  # else an arbiter that may begin nothing
            gets, puts, at, words, *_ = traces.rows[tasks[i, ROW]].tolist()
            peers = [by_index[c] for c in traces.peers[at : at + gets + puts]]
            blocked.pending = Step(gets=peers[:gets], puts=peers[gets:], words=words)
        alive.append(blocked)
    net.settle(alive)


JOB_FIRST, JOB_END, JOB_STREAM, JOB_GET, JOB_RANK, JOB_NEEDS, JOB_NEEDS_END, JOB_IN_ORDER = range(8)
"""Columns of the table of jobs."""
JOB_SECONDS, JOB_PATIENCE = range(2)
"""Columns of the table of their times."""


def _jobs(traces: Traces, given: ListSchedulingProblem | None) -> tuple[int, Ints, Floats, Ints, Ints, Ints]:
    """An arbitration for the engine: process, jobs, their times, needs, and the jobs of each stream in turn."""
    streams = len(traces.net.channels)
    if given is None:
        none = np.zeros(0, np.int32)
        return -1, np.zeros((0, 8), np.int32), np.zeros((0, 2)), none, none, np.zeros(streams + 1, np.int32)
    process = list(traces.net.progress).index(given.process)
    base = traces.bounds[process]
    columns = (
        given.first + base,
        given.last + base,
        given.stream,
        given.get,
        given.rank,
        given.needs_at[:-1],
        given.needs_at[1:],
        given.in_order,
    )
    queue = np.argsort(given.stream, kind="stable").astype(np.int32)
    return (
        process,
        np.stack(columns, axis=1).astype(np.int32),
        np.stack((given.seconds, given.patience), axis=1),
        given.needs.astype(np.int32),
        queue,
        np.searchsorted(given.stream[queue], np.arange(streams + 1)).astype(np.int32),
    )


ALIVE, PROCESS, PARENT, LANE, CHILDREN, QUEUED, FIRING, ROW, STOP, LEFT, ITEM = range(11)
"""Columns of the engine's task table; ITEM only of a process, not of its lanes."""
CLOCK, BUSY, SLOWEST = range(3)
"""Columns of the table of the tasks' times, in seconds."""
FILLED, READER, WRITER, LAST = range(4)
TOKEN, TOKENS_END, TOKEN_PLACE, TOKEN_MASK = range(4, 8)
CREDIT, CREDITS_END, CREDIT_PLACE, CREDIT_MASK = range(8, 12)
"""Columns of the engine's channel table. LAST is the item that put last; tokens and credits are rings."""
LOG_ROW, LOG_ITEM, LOG_BEFORE, LOG_BOUND = range(4)
"""Columns of the log: as `EventLog`, `via` being the lowest two bits of LOG_BEFORE."""


def _run(
    rows: Ints,
    duration: Floats,
    amounts: Floats,
    peers: npt.NDArray[np.uint32],
    at: npt.NDArray[np.uint32],
    items: npt.NDArray[np.uint32],
    bounds: Ints,
    capacity: Ints,
    rings: npt.NDArray[np.int64],
    slots: int,
    rates: int,
    log: Ints,
    log_start: Floats,
    arbiter: int,
    jobs: Ints,
    jobs_s: Floats,
    needs: Ints,
    queue: Ints,
    queue_at: Ints,
) -> Any:
    """`ProcessNetwork.run`, statement by statement, on arrays: the order of stepping too, so that firings have its
    numbers. And `ListSchedulingProblem`, for the process `arbiter`.

    One function, because calls between compiled functions would each have to be compiled and cached.
    """
    record = len(log) > 0
    processes = len(bounds) - 1
    size = processes + slots
    tasks = np.zeros((size, 11), np.int32)
    times = np.zeros((size, 3), np.float64)
    ready = np.empty(size + 1, np.int32)
    free = np.empty(slots + 1, np.int32)
    for i in range(slots):
        free[i] = size - 1 - i
    unused = slots
    for i in range(processes):
        tasks[i, ALIVE] = 1
        tasks[i, PROCESS] = i
        tasks[i, PARENT] = NOBODY
        tasks[i, QUEUED] = 1
        tasks[i, FIRING] = NEVER
        tasks[i, ITEM] = bounds[i] - 1
        ready[i] = i
    head, waiting = 0, processes
    alive = processes
    channels = np.zeros((len(capacity), 12), np.int32)
    token_at = credit_at = 0
    for c in range(len(capacity)):
        channels[c, READER] = channels[c, WRITER] = NOBODY
        channels[c, LAST] = NEVER
        channels[c, TOKEN_PLACE], channels[c, TOKEN_MASK] = token_at, rings[c, 0] - 1
        channels[c, CREDIT_PLACE], channels[c, CREDIT_MASK] = credit_at, rings[c, 1] - 1
        token_at += rings[c, 0]
        credit_at += rings[c, 1]
    tokens = np.empty((token_at, 2), np.int32)  # words, firing
    token_clocks = np.empty((token_at, 2), np.float64)  # first, last
    credits = np.empty((credit_at, 2), np.int32)  # words, firing
    credit_clocks = np.empty(credit_at, np.float64)  # freed
    for c in range(len(capacity)):
        place = channels[c, CREDIT_PLACE]
        credits[place, 0], credits[place, 1], credit_clocks[place] = capacity[c], NEVER, 0.0
        channels[c, CREDITS_END] = 1
    starts = np.empty(len(items), np.float64)
    counts = np.empty(len(items), np.int32)
    total = np.zeros(rates, np.float64)
    waits = np.zeros((len(capacity), 2), np.float64)
    count = 0
    latency, longest, last_firing = 0.0, -1.0, NEVER
    picked = np.empty(len(jobs), np.int32)
    done = np.zeros(len(jobs), np.bool_)
    next_job = queue_at.copy()
    chosen, job_end, parked = 0, bounds[arbiter] if arbiter >= 0 else 0, False

    while True:
        if not waiting:
            if not parked:
                break
            now = times[arbiter, CLOCK]
            put, put_start, put_since = -1, 0.0, 0.0
            get, get_start = -1, 0.0
            for c in range(len(capacity)):
                if next_job[c] == queue_at[c + 1]:
                    continue
                job = queue[next_job[c]]
                reader = channels[c, READER]
                if channels[c, FILLED] == 0 if jobs[job, JOB_GET] else reader == NOBODY:
                    continue
                possible = True
                for i in range(jobs[job, JOB_NEEDS], jobs[job, JOB_NEEDS_END]):
                    if not done[needs[i]]:
                        possible = False
                        break
                if not possible:
                    continue
                if jobs[job, JOB_GET]:
                    place = channels[c, TOKEN_PLACE] + (channels[c, TOKEN] & channels[c, TOKEN_MASK])
                    start = max(now, token_clocks[place, 0])
                    first = start == get_start and jobs[job, JOB_RANK] < jobs[get, JOB_RANK]
                    if get < 0 or start < get_start or first:
                        get, get_start = job, start
                else:
                    since = times[reader, CLOCK]
                    start = max(now, since)
                    earlier = since < put_since
                    if put >= 0 and jobs[job, JOB_IN_ORDER] and jobs[put, JOB_IN_ORDER]:
                        earlier = jobs[job, JOB_RANK] < jobs[put, JOB_RANK]
                    if put < 0 or start < put_start or (start == put_start and earlier):
                        put, put_start, put_since = job, start, since
            if get >= 0 and (put < 0 or get_start + jobs_s[get, JOB_SECONDS] <= put_start + jobs_s[get, JOB_PATIENCE]):
                job = get
            elif put >= 0:
                job = put
            else:
                break
            picked[chosen] = job
            chosen += 1
            done[job] = True
            next_job[jobs[job, JOB_STREAM]] += 1
            tasks[arbiter, ITEM] = jobs[job, JOB_FIRST] - 1
            job_end = jobs[job, JOB_END]
            parked = False
            tasks[arbiter, QUEUED] = 1
            tail = head
            ready[tail if tail <= size else tail - size - 1] = arbiter
            waiting = 1
        task = ready[head]
        head = head + 1 if head < size else 0
        waiting -= 1
        tasks[task, QUEUED] = 0
        process = tasks[task, PROCESS]
        item = tasks[process, ITEM]
        row, stop, left = tasks[task, ROW], tasks[task, STOP], tasks[task, LEFT]
        firing = tasks[task, FIRING]
        clock, busy = times[task, CLOCK], times[task, BUSY]
        while True:
            if row == stop:
                parent = tasks[task, PARENT]
                if parent == NOBODY:
                    if process == arbiter and item + 1 >= job_end and chosen < len(jobs):
                        parked = True
                        break
                    if item + 1 < (job_end if process == arbiter else bounds[process + 1]):
                        item += 1
                        tasks[task, ITEM] = item
                        starts[item] = clock
                        counts[item] = count
                        t = items[item]
                        row, stop = at[t], at[t + 1]
                        if row < stop:
                            left = rows[row, TIMES]
                        continue
                else:
                    if clock > times[parent, CLOCK]:
                        times[parent, CLOCK] = clock
                        tasks[parent, FIRING] = firing
                    times[parent, SLOWEST] = max(times[parent, SLOWEST], busy)
                    tasks[parent, CHILDREN] -= 1
                    if tasks[parent, CHILDREN] == 0:
                        times[parent, BUSY] += times[parent, SLOWEST]
                        times[parent, SLOWEST] = 0.0
                        tasks[parent, QUEUED] = 1
                        tail = head + waiting
                        ready[tail if tail <= size else tail - size - 1] = parent
                        waiting += 1
                    free[unused] = task
                    unused += 1
                tasks[task, ALIVE] = 0
                alive -= 1
                break
            gets, puts, peer = rows[row, GETS], rows[row, PUTS], rows[row, PEERS]
            if gets == FORK:
                tasks[task, CHILDREN] = puts
                for i in range(puts):
                    unused -= 1
                    lane = free[unused]
                    t = peers[peer + i]
                    tasks[lane, ALIVE] = 1
                    tasks[lane, PROCESS] = process
                    tasks[lane, PARENT] = task
                    tasks[lane, LANE] = i
                    tasks[lane, CHILDREN] = 0
                    tasks[lane, QUEUED] = 1
                    tasks[lane, FIRING] = firing
                    tasks[lane, ROW], tasks[lane, STOP] = at[t], at[t + 1]
                    if at[t] < at[t + 1]:
                        tasks[lane, LEFT] = rows[at[t], TIMES]
                    times[lane, CLOCK] = clock
                    times[lane, BUSY] = times[lane, SLOWEST] = 0.0
                    tail = head + waiting
                    ready[tail if tail <= size else tail - size - 1] = lane
                    waiting += 1
                alive += puts
                row += 1
                if row < stop:
                    left = rows[row, TIMES]
                break
            words, whole, rate = rows[row, WORDS], rows[row, WHOLE], rows[row, RATE]
            took, amount = duration[row], amounts[row]
            middle, final = peer + gets, peer + gets + puts
            while left:
                blocked = False
                for i in range(peer, middle):
                    c = peers[i]
                    if channels[c, FILLED] < words:
                        channels[c, READER] = task
                        blocked = True
                        break
                if not blocked:
                    for i in range(middle, final):
                        c = peers[i]
                        if capacity[c] - channels[c, FILLED] < words:
                            channels[c, WRITER] = task
                            blocked = True
                            break
                if blocked:
                    break
                # everything is there: the clocks
                start, before, via, awaited = clock, firing, OWN, 0
                finish, bound, late = 0.0, NEVER, 0
                for i in range(peer, middle):
                    c = peers[i]
                    channels[c, FILLED] -= words
                    token, mask, base = channels[c, TOKEN], channels[c, TOKEN_MASK], channels[c, TOKEN_PLACE]
                    place = base + (token & mask)
                    first = token_clocks[place, 0]
                    need = words
                    while tokens[place, 0] < need:  # gather
                        need -= tokens[place, 0]
                        token += 1
                        place = base + (token & mask)
                    if tokens[place, 0] > need:  # split
                        tokens[place, 0] -= need
                    else:
                        token += 1
                    channels[c, TOKEN] = token
                    last = token_clocks[place, 1]
                    if whole:
                        first = last
                    if first > start:
                        start, before, awaited = first, tokens[place, 1], c
                        via = LAST_WORD if first == last else FIRST_WORD
                    if last > finish:
                        finish, bound, late = last, tokens[place, 1], c
                for i in range(middle, final):
                    c = peers[i]
                    credit, mask, base = channels[c, CREDIT], channels[c, CREDIT_MASK], channels[c, CREDIT_PLACE]
                    need = words
                    while need:
                        place = base + (credit & mask)
                        piece = credits[place, 0]
                        if piece > need:
                            credits[place, 0] = piece - need
                            need = 0
                        else:
                            need -= piece
                            credit += 1
                        if credit_clocks[place] > start:
                            start, before, via, awaited = credit_clocks[place], credits[place, 1], ROOM, c
                    channels[c, CREDIT] = credit
                if via != OWN:
                    waits[awaited, 1 if via == ROOM else 0] += start - clock
                end = start + took
                if finish > end:
                    waits[late, 0] += finish - end
                    end = finish
                else:
                    bound = NEVER
                if record:
                    log[count, LOG_ROW], log[count, LOG_ITEM] = row, item
                    log[count, LOG_BEFORE], log[count, LOG_BOUND] = before * 4 + via, bound
                    log_start[count] = start
                    if end > longest:
                        longest, last_firing = end, count
                clock, firing = end, count
                count += 1
                busy += took
                total[rate] += amount
                for i in range(peer, middle):
                    c = peers[i]
                    place = channels[c, CREDIT_PLACE] + (channels[c, CREDITS_END] & channels[c, CREDIT_MASK])
                    channels[c, CREDITS_END] += 1
                    credits[place, 0], credits[place, 1], credit_clocks[place] = words, firing, end
                    other = channels[c, WRITER]
                    if other != NOBODY:
                        channels[c, WRITER] = NOBODY
                        if tasks[other, QUEUED] == 0:
                            tasks[other, QUEUED] = 1
                            tail = head + waiting
                            ready[tail if tail <= size else tail - size - 1] = other
                            waiting += 1
                first = end if whole else start
                for i in range(middle, final):
                    c = peers[i]
                    channels[c, FILLED] += words
                    channels[c, LAST] = item
                    place = channels[c, TOKEN_PLACE] + (channels[c, TOKENS_END] & channels[c, TOKEN_MASK])
                    channels[c, TOKENS_END] += 1
                    tokens[place, 0], tokens[place, 1] = words, firing
                    token_clocks[place, 0], token_clocks[place, 1] = first, end
                    other = channels[c, READER]
                    if other != NOBODY:
                        channels[c, READER] = NOBODY
                        if tasks[other, QUEUED] == 0:
                            tasks[other, QUEUED] = 1
                            tail = head + waiting
                            ready[tail if tail <= size else tail - size - 1] = other
                            waiting += 1
                left -= 1
            if left:
                break
            row += 1
            if row < stop:
                left = rows[row, TIMES]
        tasks[task, ROW], tasks[task, STOP], tasks[task, LEFT] = row, stop, left
        tasks[task, FIRING] = firing
        times[task, CLOCK], times[task, BUSY] = clock, busy
        latency = max(latency, clock)
    return (
        latency,
        alive,
        last_firing,
        times[:processes, BUSY].copy(),
        total,
        waits,
        starts,
        counts,
        channels,
        tasks,
        picked,
    )


def _walk(log: Ints, at: int) -> tuple[npt.NDArray[np.int64], Ints]:
    """`EventLog.chain`: the numbers of the firings whose own duration counts, last to first, and how what came after
    depended on each."""
    out = np.empty(16, np.int64)
    how = np.empty(16, np.int32)
    n, via = 0, OWN
    while at >= 0:
        if via != FIRST_WORD:
            if log[at, LOG_BOUND] >= 0:
                at, via = log[at, LOG_BOUND], LAST_WORD
                continue
            if n == len(out):
                out = np.concatenate((out, out))
                how = np.concatenate((how, how))
            out[n], how[n] = at, via
            n += 1
        at, via = log[at, LOG_BEFORE] >> 2, log[at, LOG_BEFORE] & 3
    return out[:n].copy(), how[:n].copy()
