"""The network executor: units as processes, streams as bounded FIFOs whose tokens carry clocks.

An RSN machine is a Kahn process network: a unit runs one kernel after another and blocks on empty or full streams. So
results and times do not depend on the order in which units are stepped, and no event queue is needed. Each process
keeps its own clock. A token carries the times at which its first and last word were written, a freed slot the time at
which it was read; a firing starts at the latest time of all that it depends on. Source: paper section 3.1,
docs/time.md#what-time-means.

A unit that chooses by arrival (`AnyOf`) has to know that no earlier word can come. It chooses when nothing else in the
network can move, and of several such units only the one whose choice starts first (ties: the unit that is listed
first); then all others go on. Each word that is yet to come follows from that choice or from a later one, and no step
takes negative time, so none can come earlier. Results remain independent of the order in which units are stepped.

A kernel is a generator over `Step` and `Par`. In a run without data (`ProcessNetwork(..., data=False)`) the same
kernels decide only time and deadlock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.errors import DeadlockError, ProgramError
from .balance import UopTable
from .deadlock import explain
from .description import StreamNetwork
from .event_log import FIRST_WORD, LAST_WORD, OWN, ROOM, EventLog, StepSignature
from .steps import NEVER, AnyOf, Burst, Channel, Issue, Par, Step, Steps, joined
from .unit import Wiring, draining

if TYPE_CHECKING:
    from .traces import TraceItems, TraceTable


TIME_IS_UP = -1
"""In place of the index of a stream: no word has come until the time that the unit gave."""


class RunningProcess:
    """A process or one lane of it: its generator, clock and pending step.

    steps: its generator. unit: the process. after: the task that forked this lane, None for a process. number: of the
    lane among those of one fork. firing: number of its last firing. taken: for each part of the pending step that has
    been executed, the payloads that it took, one for each stream; cleared when the step ends. children: number of lanes
    that have not ended. queued: it is in the queue of tasks to step. busy: seconds in which it did not wait. choice:
    the streams among which it waits to choose; None if it waits for no choice. offer: the earliest choice that is known
    so far: its time in seconds, and the index of the stream in `choice`, or `TIME_IS_UP`; None if there is none yet.
    chosen: the index that its kernel gets next.
    """

    __slots__ = (
        "after",
        "busy",
        "children",
        "choice",
        "chosen",
        "clock",
        "firing",
        "lane",
        "left",
        "offer",
        "pending",
        "queued",
        "slowest",
        "step",
        "steps",
        "taken",
        "unit",
    )

    def __init__(self, steps: Steps, unit: Progress, after: RunningProcess | None = None, number: int = 0) -> None:
        self.steps = steps
        self.unit = unit
        self.after = after
        self.lane: tuple[int, ...] = (*after.lane, number) if after else ()  # lane numbers from the outermost fork on
        self.clock: float = after.clock if after else 0.0
        self.firing: int = after.firing if after else NEVER
        self.pending: Step | None = None
        self.left = 0  # repetitions of the pending step, or of its parts, that are left
        self.taken: list[list[Any]] = []
        self.step = 0  # number of the pending step in `EventLog.steps`
        self.children = 0
        self.queued = True
        self.busy = 0.0
        self.slowest = 0.0  # busy time of the busiest lane so far
        self.choice: AnyOf | None = None
        self.offer: tuple[float, int] | None = None
        self.chosen: int | None = None

    def gather(self, payloads: list[Any], ends: bool) -> list[Any]:
        """Keep the payloads that a part of a step took. payloads: one for each stream of the step. ends: the part is
        the last one.

        Returns the payloads of the whole step (`joined`) if the part is the last, else `payloads`.
        """
        self.taken.append(payloads)
        if not ends:
            return payloads
        whole = [joined(pieces) for pieces in zip(*self.taken, strict=True)]
        self.taken.clear()
        return whole


class Progress:
    """The position of a process in its program; reports and the packer read it.

    index: its number in `ProcessNetwork.progress`. owner: the unit that it is a process of, else its own name.
    serves: None for a unit; for a process of the instruction path the unit that it feeds, "" if it feeds all units.
    number: the current uOP, -1 before the first. issue: the same uOP with its origin. busy: seconds in which it did not
    wait. starts: clock and firing count at the start of each uOP; empty in a run with an instruction path.
    """

    __slots__ = ("index", "issue", "name", "number", "owner", "serves", "starts", "task")

    def __init__(self, name: str, index: int, serves: str | None = None, owner: str = "") -> None:
        self.name = name
        self.owner = owner or name
        self.index = index
        self.serves = serves
        self.number = NEVER
        self.issue: Issue | None = None
        self.starts: list[tuple[float, int]] = []
        self.task: RunningProcess

    @property
    def busy(self) -> float:
        """Seconds in which the process did not wait."""
        return self.task.busy


def unit_processes(machine: StreamNetwork) -> dict[str, str]:
    """Return the unit of each process that the units of a machine may have in a run, by the name of the process. A unit
    has its own process, and one that drains its slots."""
    return {name: u.name for u in machine.units for name in (u.name, draining(u.name))}


class Handover(NamedTuple):
    """What joins the two processes of a unit whose halves are apart (`Unit.ahead`).

    slots: a word for each uOP that has been taken and is not drained. It holds `Unit.ahead` words, so uOP i is taken
    when uOP i - ahead is drained. drains: the draining halves of uOPs that have been taken.
    """

    slots: Channel
    drains: Channel


class ProcessNetwork(Wiring):
    """One run of a machine: the reference engine, which defines results and times. Methods take names of units, and
    raise `KeyError` for an unknown one.

    workload: the uOPs of each unit. A mapping stands for lists of uOPs by unit name (`UopLists`). data: kernels compute
    data; otherwise the run gives times only. banks: off-chip memories by name (float32 vectors); ignored unless `data`.
    order: permutes the list of processes; for tests. record: keep the event log in `events`. chosen: how often each
    stream, by name, was chosen among several by arrival (`AnyOf`); if any was, results may depend on times. where:
    returns the place of a uOP in the source, given unit and origin; default: the workload's `where`."""

    def __init__(
        self,
        machine: StreamNetwork,
        workload: Workload | Mapping[str, Iterable[Any]],
        *,
        banks: Mapping[str, Any] | None = None,
        data: bool = False,
        order: Callable[[list[Any]], list[Any]] | None = None,
        record: bool = False,
        where: Callable[[str, int], str] | None = None,
    ) -> None:
        super().__init__(machine, banks=banks, data=data)
        self.workload = workload if isinstance(workload, Workload) else UopLists(workload)
        self.where = where or self.workload.where
        self._seconds = machine.step_seconds
        self.rate_names = list(self._seconds)
        self._rate_index = {n: i for i, n in enumerate(self.rate_names)}
        self.amounts = dict.fromkeys(self.rate_names, 0.0)
        self.events = EventLog.empty() if record else None
        self._known_steps: dict[StepSignature, int] = {}
        self._count = 0
        self._offers: list[tuple[float, int, tuple[int, ...], int, int, RunningProcess]] = []
        self._offered = 0
        self.chosen: dict[str, int] = {}
        self.progress: dict[str, Progress] = {}
        self._tasks: list[RunningProcess] = []
        self.apart = {name: self._handover(name, unit.ahead) for name, unit in self.units.items() if unit.ahead}
        self.workload.attach(self)
        if order is not None:
            self._tasks = order(self._tasks)

    # -- construction ---------------------------------------------------------------------------------------------

    def _handover(self, unit: str, ahead: int) -> Handover:
        """Add the channels between the two processes of a unit."""
        names = (f"slots of {unit}", f"uOPs that {unit} is to drain")
        return Handover(*(self.add_channel(name, ahead, unit, draining(unit), control=True) for name in names))

    def spawn(self, name: str, steps: Steps, serves: str | None = None, owner: str = "") -> None:
        """Add a process of this name, which executes `steps`. serves, owner: as in `Progress`."""
        progress = Progress(name, len(self.progress), serves, owner)
        progress.task = RunningProcess(steps, progress)
        self.progress[name] = progress
        self._tasks.append(progress.task)

    def spawn_unit(self, name: str, steps: Steps) -> None:
        """Add the process of the unit `name`, which executes `steps`; for a unit with halves apart (`Unit.ahead`) also
        the process of its draining half. Each unit is added once; this is not checked.
        """
        self.spawn(name, steps)
        if name in self.apart:
            self.spawn(draining(name), self._drain(name), owner=name)

    def feed(self, name: str, uops: Iterable[Any], origins: Iterable[int] | None = None) -> Steps:
        """Return the steps of the unit `name` that executes a list of uOPs, without an instruction path. origins: of
        each of `uops`; None for their numbers.
        """
        unit, progress = self.units[name], self.progress[name]
        apart = self.apart.get(name)
        has_room = False
        for number, (uop, origin) in enumerate(zip(uops, count() if origins is None else origins, strict=False)):
            if apart is not None and not has_room:
                yield Step(puts=(apart.slots,))
            progress.number = number
            progress.issue = Issue(uop, origin)
            progress.starts.append((progress.task.clock, self._count))
            if apart is None:
                yield from unit.kernel(uop)
            else:
                has_room = yield from self.take(name)
        if apart is not None:
            if not has_room:
                yield Step(puts=(apart.slots,))
            yield from self.end(name)

    def take(self, name: str) -> Generator[Step | Par | AnyOf, Any, bool]:
        """Return the steps that execute the current uOP of a unit whose halves are apart, up to the end of its filling
        half. The process has put a word to the unit's `slots` for this uOP. The value of the generator is True if no
        uOP has taken that word, because this one touches no slot."""
        unit, progress = self.units[name], self.progress[name]
        assert progress.issue is not None
        halves = unit.halves(progress.issue.uop)
        if halves is None:
            yield from unit.kernel(progress.issue.uop)
            return True
        fill, drain = halves
        yield Step(puts=(self.apart[name].drains,), send=((progress.issue, progress.number, drain),))
        if fill is not None:
            yield from fill
        return False

    def end(self, name: str) -> Steps:
        """Return the steps that end the process which drains the unit `name`. A word has been put to the unit's `slots`
        for it.
        """
        yield Step(puts=(self.apart[name].drains,), send=((None, NEVER, None),))

    def _drain(self, name: str) -> Steps:
        """The process that executes the draining halves of a unit's uOPs, until the last."""
        apart, progress = self.apart[name], self.progress[draining(name)]
        while True:
            ((issue, number, steps),) = yield Step(gets=(apart.drains,))
            if issue is not None:
                progress.number, progress.issue = number, issue
            if steps is not None:
                yield from steps
            yield Step(gets=(apart.slots,))
            if issue is None:
                return

    @property
    def firings(self) -> int:
        """Number of steps that have been executed."""
        return self._count

    # -- execution ------------------------------------------------------------------------------------------------

    def run(self) -> float:
        """Run to the end and return the latency in seconds.

        Raises `DeadlockError` with the wait-for report, or `ProgramError` if words are left in streams.
        """
        return self.run_from(self._tasks)

    def run_from(self, tasks: Iterable[RunningProcess]) -> float:
        """Run these tasks to the end, with the words that streams hold. Returns the latency in seconds; raises as
        `run`.
        """
        ready: deque[RunningProcess] = deque(tasks)
        alive: set[RunningProcess] = set(ready)
        end = 0.0
        while ready:
            while ready:
                task = ready.popleft()
                task.queued = False
                if task.choice is not None and not self._offer(task):
                    continue
                self._step(task, ready, alive)
                end = max(end, task.clock)
            self._choose(ready)
        self.settle(alive)
        return end

    def _offer(self, task: RunningProcess) -> bool:
        """Note which stream a task would choose, as far as is known, and let later words wake it. With one stream there
        is nothing to know, and the task takes it at once; returns whether it did."""
        assert task.choice is not None
        until = task.choice.until
        if until is None and len(task.choice.channels) == 1 and task.choice.channels[0].filled:
            self._take_choice(task, 0)
            return True
        best: tuple[float, int] | None = None if until is None else (until, TIME_IS_UP)
        for index, channel in enumerate(task.choice.channels):
            if not channel.filled:
                channel.reader = task
            elif (
                best is None or (first := channel.tokens[0][2]) < best[0] or (first == until and best[1] == TIME_IS_UP)
            ):
                best = channel.tokens[0][2], index
        if best is not None:
            task.offer = max(task.clock, best[0]), best[1]
            self._offered += 1
            heappush(self._offers, (task.offer[0], task.unit.index, task.lane, best[1], self._offered, task))
        return False

    def _take_choice(self, task: RunningProcess, index: int) -> None:
        """Let a task go on with a stream on which there is a word, or without one when its time is up. Its clock is
        then at least the time of that word: what it does next, even before it takes the word, follows from it."""
        assert task.choice is not None
        if index == TIME_IS_UP:
            assert task.choice.until is not None
            start, end, firing, via = task.clock, task.choice.until, task.firing, OWN
            task.choice, task.offer, task.chosen = None, None, None
            if end <= start:
                return
        else:
            channel = task.choice.channels[index]
            _, _, end, ended, firing = channel.tokens[0]
            task.choice, task.offer, task.chosen = None, None, index
            if end <= task.clock:
                return
            channel.empty += end - task.clock
            start, via = end, LAST_WORD if end == ended else FIRST_WORD
        number = self._count
        self._count = number + 1
        if (log := self.events) is not None:
            issue = task.unit.issue
            log.unit.append(task.unit.index)
            log.step.append(self._step_number(log, CHOICE))
            log.start.append(start)
            log.end.append(end)
            log.before.append(firing)
            log.via.append(via)
            log.bound.append(NEVER)
            log.number.append(task.unit.number)
            log.origin.append(issue.origin if issue is not None else NEVER)
        task.clock, task.firing = end, number

    def _choose(self, ready: deque[RunningProcess]) -> None:
        """Let the task choose that can do so first; nothing else in the network can move."""
        while self._offers:
            start, _, _, index, _, task = heappop(self._offers)
            if task.choice is None or task.offer != (start, index):
                continue  # a word that came earlier has replaced this offer
            for channel in task.choice.channels:
                channel.reader = None
            if index != TIME_IS_UP and (len(task.choice.channels) > 1 or task.choice.until is not None):
                name = task.choice.channels[index].name
                self.chosen[name] = self.chosen.get(name, 0) + 1
            self._take_choice(task, index)
            task.queued = True
            ready.append(task)
            return

    def settle(self, alive: Collection[RunningProcess]) -> None:
        """Raise unless the run is complete. alive: the processes that have not ended; none of them can move.

        Raises `DeadlockError` if there are any, `ProgramError` if words are left in streams.
        """
        if alive:
            raise DeadlockError(explain(self, alive))
        left = [c for c in self._channels.values() if c.filled]
        if left:
            rows = "\n".join(f"  {self._leftover(c)}" for c in left)
            error = ProgramError(f"the program ends with data left in streams (more sent than received)\n{rows}")
            error.left = {c.name: [payload for _, payload, *_ in c.tokens] for c in left}
            raise error

    def _leftover(self, channel: Channel) -> str:
        unit, number, issue = channel.last
        place = f" ({self.where(unit, issue.origin)})" if issue is not None else ""
        return f"{channel.name}: {channel.filled} of {channel.capacity} words, the last from {unit} uOP {number}{place}"

    def _step(self, task: RunningProcess, ready: deque[RunningProcess], alive: set[RunningProcess]) -> None:
        """Advance one task until it blocks, forks or ends."""
        fire = task.pending
        left = task.left
        value: Any = task.chosen
        task.chosen = None
        firings = self.events
        while True:
            if fire is None:
                fire = self._next(task, value, ready, alive)
                if fire is None:
                    return
                left = fire.times * fire.parts
                if firings is not None:
                    task.step = self._step_number(firings, fire)
            parts = fire.parts
            words = fire.words if parts == 1 else fire.words // parts
            blocked = False
            for channel in fire.gets:
                if channel.filled < words:
                    channel.reader = task
                    blocked = True
                    break
            if not blocked:
                for channel in fire.puts:
                    if channel.space < words:
                        channel.writer = task
                        blocked = True
                        break
            if blocked:
                task.pending, task.left = fire, left
                return
            # all words and room are available: compute the clocks
            start, before, via = task.clock, task.firing, OWN
            finish, bound = 0.0, NEVER
            awaited: Channel | None = None
            late: Channel | None = None
            number = self._count
            self._count = number + 1
            payloads: list[Any] = []
            for channel in fire.gets:
                payload, first, ended, last, opened, firing = channel.take(words, parts)
                payloads.append(payload)
                if fire.needs_whole_token:
                    first = last
                if first > start:
                    start, awaited = first, channel
                    if fire.needs_whole_token:
                        before, via = firing, LAST_WORD
                    else:
                        before, via = opened, LAST_WORD if first == ended else FIRST_WORD
                if last > finish:
                    finish, bound, late = last, firing, channel
            for channel in fire.puts:
                channel.space -= words
                need = words
                while need:
                    size, freed, firing = channel.credits.popleft()
                    if size > need:
                        channel.credits.appendleft((size - need, freed, firing))
                        size = need
                    need -= size
                    if freed > start:
                        start, before, via, awaited = freed, firing, ROOM, channel
            if awaited is not None:
                if via == ROOM:
                    awaited.full += start - task.clock
                else:
                    awaited.empty += start - task.clock
            amount = fire.amount if parts == 1 else fire.amount / parts
            duration = amount * self._seconds[fire.rate]
            end = start + duration
            if late is not None and finish > end:
                late.empty += finish - end
                end = finish
            else:
                bound = NEVER
            task.clock, task.firing = end, number
            task.busy += duration
            self.amounts[fire.rate] += amount
            if firings is not None:
                firings.unit.append(task.unit.index)
                firings.step.append(task.step)
                firings.start.append(start)
                firings.end.append(end)
                firings.before.append(before)
                firings.via.append(via)
                firings.bound.append(bound)
                issue = task.unit.issue
                firings.number.append(task.unit.number)
                firings.origin.append(issue.origin if issue is not None else NEVER)
            # compute and deliver the data
            burst = isinstance(fire, Burst)
            ends = parts == 1 or left % parts == 1
            if parts > 1:
                payloads = task.gather(payloads, ends)
            results: Any = fire.send if ends else ()
            if fire.do is not None and self.data and ends:
                if burst:
                    results = [row[0] for row in fire.do(1, *([p] for p in payloads)) or ()]
                else:
                    results = fire.do(*payloads)
            for channel in fire.gets:
                channel.space += words
                channel.credits.append((words, end, number))
                writer = channel.writer
                if writer is not None:
                    channel.writer = None
                    if not writer.queued:
                        writer.queued = True
                        ready.append(writer)
            first = end if fire.needs_whole_token else start
            for i, channel in enumerate(fire.puts):
                channel.filled += words
                channel.last = (task.unit.owner, task.unit.number, task.unit.issue)
                channel.tokens.append((words, results[i] if results else None, first, end, number))
                reader = channel.reader
                if reader is not None:
                    channel.reader = None
                    if not reader.queued:
                        reader.queued = True
                        ready.append(reader)
            left -= 1
            if not left:
                value = None if burst else payloads
                fire = task.pending = None

    def _step_number(self, log: EventLog, fire: Step) -> int:
        """The index of a step in `log.steps`, which lists equal steps once."""
        gets, puts = tuple([c.number for c in fire.gets]), tuple([c.number for c in fire.puts])
        words, amount = fire.words // fire.parts, float(fire.amount / fire.parts)
        step = StepSignature(gets, puts, words, fire.needs_whole_token, self._rate_index[fire.rate], amount)
        known = self._known_steps.setdefault(step, len(self._known_steps))
        if known == len(log.steps):
            log.steps.append(step)
        return known

    def _next(
        self, task: RunningProcess, value: Any, ready: deque[RunningProcess], alive: set[RunningProcess]
    ) -> Step | None:
        """Return the next step of a task, None if it has ended or forked, or waits to choose. value: the payloads of
        the previous step, or the index of the stream that was chosen."""
        while True:
            try:
                effect = task.steps.send(value)
            except StopIteration:
                self._finish(task, ready, alive)
                return None
            if isinstance(effect, Par):
                if effect.lanes:
                    self._fork(task, effect, ready, alive)
                    return None
            elif effect.times:
                return effect  # type: ignore[return-value]  # an AnyOf has none; a test of types costs time
            elif isinstance(effect, AnyOf):
                if not self.await_any(task, effect):
                    return None
                value, task.chosen = task.chosen, None
                continue
            value = None

    def await_any(self, task: RunningProcess, choice: AnyOf) -> bool:
        """Let a task wait until it may choose among the streams of `choice`. Returns whether it has chosen already."""
        task.choice = choice
        return self._offer(task)

    def _fork(self, task: RunningProcess, par: Par, ready: deque[RunningProcess], alive: set[RunningProcess]) -> None:
        task.children = len(par.lanes)
        for i, lane in enumerate(par.lanes):
            child = RunningProcess(lane, task.unit, task, i)
            alive.add(child)
            ready.append(child)

    def _finish(self, task: RunningProcess, ready: deque[RunningProcess], alive: set[RunningProcess]) -> None:
        alive.discard(task)
        parent = task.after
        if parent is None:
            return
        if task.clock > parent.clock:
            parent.clock, parent.firing = task.clock, task.firing
        parent.slowest = max(parent.slowest, task.busy)
        parent.children -= 1
        if not parent.children:
            parent.busy += parent.slowest
            parent.slowest = 0.0
            parent.queued = True
            ready.append(parent)


# -- where units get their uOPs from -----------------------------------------------------------------------------------


MAX_UOPS = 1_000_000
"""Largest number of uOPs of a workload whose words a deadlock report counts: 0.2 s if few of them are distinct."""


class Workload(ABC):
    """The source of the uOPs of a run, e.g. lists or an instruction path."""

    @abstractmethod
    def attach(self, net: ProcessNetwork) -> None:
        """Add each unit to `net` (`spawn_unit`), and the channels and processes that deliver its uOPs."""

    @abstractmethod
    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        """Return the traces of every process that `attach` adds, by name. Raises `UntraceableError` if they are not
        known before the run.
        """

    @abstractmethod
    def fifo_depths(self, machine: StreamNetwork) -> list[int]:
        """Return the capacities, in slots, of the channels that `attach` adds, in its order, if the workload runs on
        `machine`.
        """

    @abstractmethod
    def uop_table(self, machine: StreamNetwork) -> UopTable:
        """Return all uOPs, to count the words that they send and receive.

        Raises `ProgramError` if they are not known before the run, or are too many.
        """

    @abstractmethod
    def where(self, unit: str, origin: int) -> str:
        """Return the place of a uOP as text, for a program without source lines. origin: packet or list position."""


class UopLists(Workload):
    """A workload without an instruction path. uops: a list of uOPs for each unit, by its name; units without a list do
    nothing."""

    def __init__(self, uops: Mapping[str, Iterable[Any]]) -> None:
        self.uops = uops

    def attach(self, net: ProcessNetwork) -> None:
        for spec in net.machine.units:
            net.spawn_unit(spec.name, net.feed(spec.name, self.uops.get(spec.name, ())))

    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        lists: dict[str, TraceItems] = {}
        for u in table.net.machine.units:
            lists |= table.unit(u.name).feed(self.uops.get(u.name, ()))
        return lists

    def fifo_depths(self, machine: StreamNetwork) -> list[int]:
        return []

    def uop_table(self, machine: StreamNetwork) -> UopTable:
        lists = {unit: uops for unit, uops in self.uops.items() if isinstance(uops, Sequence)}
        if len(lists) < len(self.uops):
            raise ProgramError("the uOPs of a unit come from an iterator, not from a list")
        if sum(map(len, lists.values())) > MAX_UOPS:
            raise ProgramError(f"the program has more than {MAX_UOPS} uOPs")
        distinct: list[Any] = []
        numbers: dict[tuple[type, Any], int] = {}

        def number(uop: Any) -> int:
            try:
                found = numbers.setdefault((type(uop), uop), len(distinct))  # named tuples of two types may be equal
            except TypeError:  # uOPs without a format need not be hashable
                found = len(distinct)
            if found == len(distinct):
                distinct.append(uop)
            return found

        kinds = {unit: np.array([number(uop) for uop in uops], np.int64) for unit, uops in lists.items()}
        return UopTable(machine, distinct, kinds, {unit: np.arange(len(k)) for unit, k in kinds.items()})

    def where(self, unit: str, origin: int) -> str:
        return f"uOP {origin}"


CHOICE = Step()
"""What the log shows for a choice that a unit has waited for."""
