"""The network executor: units as processes, streams as bounded FIFOs whose tokens carry clocks.

An RSN machine is a Kahn network: a unit runs one kernel after another and blocks on empty or full streams, so what is
computed, and when, does not depend on the order in which units are stepped. There is no event queue. Every process
keeps its own clock; a token carries when its first and last word were written, a freed slot when it was read; a firing
starts at the latest of what it depends on. Source: paper section 3.1; design section 4.

A kernel is a generator over `Step` and `Par`. Run without data (`ProcessNetwork(..., data=False)`) the same kernels
decide deadlock and time alone.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import DeadlockError, ProgramError
from ..isa.overlay import Overlay, UnitSpec
from ..isa.packet import Packet

FREE = "free"
"""The rate of a step that costs nothing."""

NEVER = -1


def seconds_by_rate(overlay: Overlay) -> dict[str, float]:
    """Seconds per amount of every rate that a step can name. An overlay that gives no rates for its instruction path
    gets it for free."""
    return {FREE: 0.0, "dispatch": 0.0, "decode": 0.0} | {name: r.seconds for name, r in overlay.rates.items()}


class Channel:
    """A stream at run time. Capacity and token sizes in words; one writer, one reader.

    empty, full: seconds in which the reader waited for words and the writer for room.
    """

    __slots__ = (
        "capacity",
        "credits",
        "empty",
        "filled",
        "full",
        "last",
        "name",
        "number",
        "reader",
        "space",
        "tokens",
        "writer",
    )

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.number = 0
        self.capacity = capacity
        self.space = capacity
        self.filled = 0
        self.empty = self.full = 0.0
        self.tokens: deque[tuple[int, Any, float, float, int]] = deque()  # words, payload, first, last, firing
        self.credits: deque[tuple[int, float, int]] = deque([(capacity, 0.0, NEVER)])  # words, freed at, by firing
        self.reader: Task | None = None
        self.writer: Task | None = None
        self.last: tuple[str, int, Issue | None] = ("", NEVER, None)  # who put last: unit, uOP number, uOP

    def take(self, words: int) -> tuple[Any, float, float, int]:
        """Remove `words` words: payload, clock of the first and of the last word, firing that wrote the last one."""
        self.filled -= words
        size, payload, first, last, firing = self.tokens.popleft()
        if size == words:
            return payload, first, last, firing
        parts: list[Any] = []
        need = words
        start = first
        while True:
            if size > need:  # the reader's unit is smaller than the writer's: split the token
                rest = None
                if payload is not None:
                    flat = payload.reshape(-1)
                    cut = len(flat) * need // size
                    payload, rest = flat[:cut], flat[cut:]
                self.tokens.appendleft((size - need, rest, first, last, firing))
                size = need
            parts.append(payload)
            need -= size
            if not need:
                break
            size, payload, first, last, firing = self.tokens.popleft()
        whole = None if parts[0] is None else np.concatenate([p.reshape(-1) for p in parts])
        return whole, start, last, firing

    def __str__(self) -> str:
        return self.name


class Step:
    """One step of a kernel: wait for `words` words on each of `gets` and room on each of `puts`, take `amount` times
    the rate, then free and deliver.

    do: called with the payloads of `gets`, returns those of `puts` (a tuple); only when the network runs with data.
    send: payloads for `puts` that are control, not data: delivered in both modes.
    needs_whole_token: the step needs its inputs complete before it starts (an MME); otherwise it streams them
        through (a Mesh).
    """

    __slots__ = ("amount", "do", "gets", "needs_whole_token", "puts", "rate", "send", "times", "words")

    def __init__(
        self,
        rate: str = FREE,
        amount: float = 1.0,
        *,
        gets: Sequence[Channel] = (),
        puts: Sequence[Channel] = (),
        words: int = 1,
        do: Callable[..., Any] | None = None,
        send: tuple[Any, ...] = (),
        needs_whole_token: bool = False,
    ) -> None:
        self.rate = rate
        self.amount = amount
        self.gets = gets
        self.puts = puts
        self.words = words
        self.do = do
        self.send = send
        self.needs_whole_token = needs_whole_token
        self.times = 1


class Burst(Step):
    """`times` equal steps, one after the other. They mean the same as so many `Step`s; whoever runs data alone may take
    several at once.

    do: called with how many of the steps are taken, and for each of `gets` the sequence of their payloads; returns for
    each of `puts` such a sequence, which whoever takes as many gets as it is.
    """

    __slots__ = ()

    def __init__(
        self,
        times: int,
        rate: str = FREE,
        amount: float = 1.0,
        *,
        gets: Sequence[Channel] = (),
        puts: Sequence[Channel] = (),
        words: int = 1,
        do: Callable[..., Any] | None = None,
        needs_whole_token: bool = False,
    ) -> None:
        super().__init__(rate, amount, gets=gets, puts=puts, words=words, do=do, needs_whole_token=needs_whole_token)
        self.times = times


class Par:
    """Run lanes side by side; the kernel goes on when the last one has ended (a Mem loads while it sends)."""

    __slots__ = ("lanes",)

    def __init__(self, *lanes: Steps) -> None:
        self.lanes = lanes


Steps = Generator[Step | Par, Any, None]


class Unit:
    """A functional unit: the state that lives from kernel to kernel, and the kernel. Subclass it to define one.

    memory: the off-chip bank that its `UnitSpec` names, a float32 vector; None if the network runs without data.
    read_only: nobody writes that bank while the network runs.
    """

    read_only = False

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        self.name = spec.name
        self.index = spec.index
        self.memory: Any = net.banks.get(str(spec.bank))
        self._net = net

    def source(self, peer: str, label: str = "") -> Channel:
        """The stream from `peer` to this unit."""
        return self._net.channel(peer, self.name, label)

    def sink(self, peer: str, label: str = "") -> Channel:
        """The stream from this unit to `peer`."""
        return self._net.channel(self.name, peer, label)

    def read(self, at: int, size: int) -> Any:
        """`size` elements of the memory from element `at` on, not to be written to. For a step's `do`: there is data
        then. A copy, because the memory may change before the reader has done with them, unless nobody writes it."""
        piece = self.memory[at : at + size]
        if len(piece) != size:
            raise ProgramError(f"{self.name} reads {size} elements at {at}, beyond its {len(self.memory)}")
        return piece if self.read_only else piece.copy()

    def write(self, at: int, piece: Any) -> None:
        """Write the elements `piece` to the memory from element `at` on. For a step's `do`."""
        target = self.memory[at : at + len(piece)]
        if len(target) != len(piece):
            raise ProgramError(f"{self.name} writes {len(piece)} elements at {at}, beyond its {len(self.memory)}")
        target[:] = piece

    def kernel(self, uop: Any) -> Steps:
        """What one uOP does. The only place where the unit's meaning is written down."""
        raise NotImplementedError

    def effect_key(self, uop: Any) -> Hashable | None:
        """What the steps of `kernel(uop)` depend on, data and addresses aside: uOPs of this unit with equal keys take
        the same steps, so a run without data need not walk through each of them (`traces`).

        None, which is always right, stands for "walk through it". It is the only right answer for a uOP that changes
        state on which later steps depend; such state belongs to the keys of the uOPs that depend on it.
        """
        return None

    @classmethod
    def is_keyed(cls) -> bool:
        """Whether `effect_key` speaks for this class's kernel, not for one that a subclass has replaced."""
        owner = next(c for c in cls.__mro__ if "kernel" in vars(c))
        return any("effect_key" in vars(c) for c in cls.__mro__ if issubclass(c, owner))


@dataclass(frozen=True)
class Issue:
    """A uOP on its way to a unit: which one, from which packet (or list position) it came, and whether it is the last.

    uop is None for the empty uOP of a terminator: nothing is enabled in it, so no kernel runs.
    """

    uop: Any
    origin: int
    last: bool = False


class Task:
    """A process or one lane of it: a generator, a clock, and who waits for it."""

    __slots__ = (
        "after",
        "busy",
        "children",
        "clock",
        "firing",
        "lane",
        "left",
        "pending",
        "queued",
        "slowest",
        "step",
        "steps",
        "unit",
    )

    def __init__(self, steps: Steps, unit: Progress, after: Task | None = None, number: int = 0) -> None:
        self.steps = steps
        self.unit = unit
        self.after = after
        self.lane: tuple[int, ...] = (*after.lane, number) if after else ()  # which lane of which lane
        self.clock: float = after.clock if after else 0.0
        self.firing: int = after.firing if after else NEVER
        self.pending: Step | None = None
        self.left = 0  # of the pending step, how often yet
        self.step = 0  # number of the pending step in `EventLog.steps`
        self.children = 0
        self.queued = True
        self.busy = 0.0
        self.slowest = 0.0  # busy time of the busiest lane so far


class Progress:
    """Where a unit (or decoder, or the dispatcher) stands: for reports, and for the packer.

    number: uOPs begun, less one. busy: seconds in which it did not wait. starts: clock and firing count at which each
    uOP began, kept where uOPs are fed without an instruction path.
    """

    __slots__ = ("index", "issue", "name", "number", "starts", "task")

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.index = index
        self.number = NEVER
        self.issue: Issue | None = None
        self.starts: list[tuple[float, int]] = []
        self.task: Task

    @property
    def busy(self) -> float:
        return self.task.busy


class StepSignature(NamedTuple):
    """What a firing does, its clocks and its data aside: channels by their number in `ProcessNetwork.channels`, the
    rate by its number in `ProcessNetwork.rate_names`. times: how often in a row, in a trace; 1 in a log."""

    gets: tuple[int, ...]
    puts: tuple[int, ...]
    words: int
    needs_whole_token: bool
    rate: int
    amount: float
    times: int = 1


OWN, FIRST_WORD, LAST_WORD, ROOM = range(4)
"""What decided when a firing could start: the end of its own process's last one; the first word of a token, or its last
where it is needed whole; the slot that a get had freed."""


@dataclass
class EventLog:
    """One row per firing, in an order in which every firing comes after those it depends on.

    unit: the process, by its number in `ProcessNetwork.progress`. step: which of `steps`. before, via: the firing that
    decided when this one could start, and how. bound: the firing whose last word decided when this one could end, or -1
    where its own duration did. number, origin: the uOP, and the packet or list position from which it came.
    """

    steps: list[StepSignature]
    unit: array[int]
    step: array[int]
    start: array[float]
    end: array[float]
    before: array[int]
    via: array[int]
    bound: array[int]
    number: array[int]
    origin: array[int]

    @staticmethod
    def empty() -> EventLog:
        return EventLog([], *(array(c) for c in "iiddiiiii"))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.end)

    def critical_path(self) -> CriticalPath:
        """Walk back from the end of the run through whatever each step waited for. A step that streams a token through
        ends when its source does: its own duration then does not count."""
        rows: list[tuple[int, int, float, float, int, int]] = []
        at = int(np.argmax(np.frombuffer(self.end, dtype=np.float64))) if len(self) else NEVER
        via = OWN
        while at >= 0:
            if via != FIRST_WORD:
                if self.bound[at] >= 0:
                    at, via = self.bound[at], LAST_WORD
                    continue
                rate = self.steps[self.step[at]].rate
                rows.append((self.unit[at], rate, self.start[at], self.end[at], self.origin[at], via))
            at, via = self.before[at], self.via[at]
        columns = list(zip(*rows, strict=True)) or [()] * 6
        types = (np.int32, np.int32, np.float64, np.float64, np.int32, np.int32)
        return CriticalPath(*(np.array(c, t) for c, t in zip(columns, types, strict=True)))


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The steps that decided when a run ended, the last one first: unit and rate by number as in `EventLog` and `Step`,
    clocks in seconds, the packet or list position of the uOP, and how what came after depended on it."""

    unit: npt.NDArray[np.int32]
    rate: npt.NDArray[np.int32]
    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    origin: npt.NDArray[np.int32]
    via: npt.NDArray[np.int32]


class ProcessNetwork:
    """One run of an overlay. Give it either an instruction image (`packets`) or each unit's uOPs (`issues`).

    packets: the decoded image; dispatcher and decoders then take part, in time and in deadlock.
    issues: uOPs per unit without the instruction path (what the packer needs before there is an image).
    preloaded: uOPs of the units that have no packets.
    banks: off-chip memories by name (float32 vectors); ignored unless `data`.
    order: a permutation hook for tests, called with the list of processes.
    """

    channel_type: type[Channel] = Channel

    def __init__(
        self,
        overlay: Overlay,
        *,
        packets: Sequence[Packet] | None = None,
        issues: Mapping[str, Iterable[Any]] | None = None,
        preloaded: Mapping[str, Sequence[Any]] | None = None,
        banks: Mapping[str, Any] | None = None,
        data: bool = False,
        order: Callable[[list[Any]], list[Any]] | None = None,
        record: bool = False,
        where: Callable[[str, int], str] = lambda unit, origin: f"packet {origin}",
    ) -> None:
        self.overlay = overlay
        self.packets = packets
        self.issues = issues or {}
        self.preloaded = preloaded or {}
        self.data = data
        self.banks: Mapping[str, Any] = (banks or {}) if data else {}
        self.where = where
        self._seconds = seconds_by_rate(overlay)
        self.rate_names = list(self._seconds)
        self._rate_index = {n: i for i, n in enumerate(self.rate_names)}
        self.amounts = dict.fromkeys(self.rate_names, 0.0)
        self.events = EventLog.empty() if record else None
        self._known_steps: dict[StepSignature, int] = {}
        self._count = 0
        self._channels = {s.name: self.channel_type(s.name, s.depth) for s in overlay.streams}
        self.units = {u.name: u.behaviour(u, self) for u in overlay.units}
        self.progress: dict[str, Progress] = {}
        self._tasks: list[Task] = []
        if packets is not None:
            self._wire(packets)
        for spec in overlay.units:
            if spec.kind in overlay.preloaded:
                self._spawn(spec.name, self._feed(spec.name, self.preloaded.get(spec.name, ())))
            elif packets is not None:
                self._spawn(spec.name, self._serve(spec.name))
            else:
                self._spawn(spec.name, self._feed(spec.name, self.issues.get(spec.name, ())))
        for number, channel in enumerate(self._channels.values()):
            channel.number = number
        if order is not None:
            self._tasks = order(self._tasks)

    # -- construction ---------------------------------------------------------------------------------------------

    def channel(self, src: str, dst: str, label: str = "") -> Channel:
        name = f"{src}->{dst}" + (f".{label}" if label else "")
        try:
            return self._channels[name]
        except KeyError:
            raise ProgramError(f"overlay {self.overlay.name} has no stream {name}") from None

    @property
    def channels(self) -> tuple[Channel, ...]:
        """Every stream, then the FIFOs of the instruction path."""
        return tuple(self._channels.values())

    def fifo(self, level: str, unit: str) -> Channel:
        """The FIFO in front of a unit's decoder (`level` "mops") or of the unit ("uops")."""
        return self._channels[f"{level} {unit}"]

    def has_channel(self, src: str, dst: str, label: str = "") -> bool:
        return f"{src}->{dst}" + (f".{label}" if label else "") in self._channels

    def _spawn(self, name: str, steps: Steps) -> None:
        progress = Progress(name, len(self.progress))
        progress.task = Task(steps, progress)
        self.progress[name] = progress
        self._tasks.append(progress.task)

    def _wire(self, packets: Sequence[Packet]) -> None:
        for spec in self.overlay.units:
            if spec.kind in self.overlay.preloaded:
                continue
            mops = Channel(f"mOP FIFO of {spec.name}", self.overlay.mop_fifo_depth)
            uops = Channel(f"uOP FIFO of {spec.name}", self.overlay.uop_fifo_depth)
            self._channels[f"mops {spec.name}"] = mops
            self._channels[f"uops {spec.name}"] = uops
            form = self.overlay.format_of(spec.kind)
            self._spawn(f"decoder {spec.name}", self._decode(spec.name, mops, uops, form.loops_window))
        self._spawn("dispatcher", self._dispatch(packets))

    # -- the instruction path (contract 1.3) ----------------------------------------------------------------------

    def _dispatch(self, packets: Sequence[Packet]) -> Steps:
        """Issue packets strictly in image order; a masked packet goes to its units in ascending index, each write
        blocking."""
        progress = self.progress["dispatcher"]
        for number, packet in enumerate(packets):
            header = packet.header
            progress.number = number
            progress.issue = Issue(packet, number)
            yield Step("dispatch")
            if not header.opcode:
                continue
            form = self.overlay.by_opcode[header.opcode]
            sinks = [self.fifo("mops", u.name) for u in self.overlay.selected(header.opcode, header.mask)]
            if header.last:
                for sink in sinks:
                    yield Step(puts=(sink,), send=((number, header, form, None),))
            for mop in packet.mops:
                yield Step("dispatch", mop.WORDS)
                for sink in sinks:
                    yield Step(puts=(sink,), send=((number, header, form, mop),))

    def _decode(self, unit: str, mops: Channel, uops: Channel, loops_window: bool) -> Steps:
        """Second-level decoder. A slot of its FIFO holds one mOP with its window and reuse."""
        progress = self.progress[f"decoder {unit}"]
        while True:
            progress.number += 1
            ((number, header, form, mop),) = yield Step(gets=(mops,))
            progress.issue = Issue(mop, number)
            if header.last:
                yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(None, number, True),))
                return
            if not loops_window:
                for iteration in range(header.reuse):
                    for uop in form.uops(mop, iteration):
                        yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(uop, number),))
                continue
            window = [mop]
            while len(window) < header.window:
                ((_, _, _, mop),) = yield Step(gets=(mops,))
                window.append(mop)
            for iteration in range(header.reuse):
                for mop in window:
                    for uop in form.uops(mop, iteration):
                        yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(uop, number),))

    def _serve(self, name: str) -> Steps:
        """Run the uOPs that the decoder sends, one kernel at a time, until the last."""
        unit, progress, source = self.units[name], self.progress[name], self.fifo("uops", name)
        while True:
            (issue,) = yield Step(gets=(source,))
            progress.number += 1
            progress.issue = issue
            if issue.last:
                return
            yield from unit.kernel(issue.uop)

    def _feed(self, name: str, uops: Iterable[Any]) -> Steps:
        """Run a list of uOPs without an instruction path."""
        unit, progress = self.units[name], self.progress[name]
        for number, uop in enumerate(uops):
            progress.number = number
            progress.issue = Issue(uop, number)
            progress.starts.append((progress.task.clock, self._count))
            yield from unit.kernel(uop)

    # -- execution ------------------------------------------------------------------------------------------------

    def run(self) -> float:
        """Run to the end; the latency in seconds. Raises `DeadlockError` with the wait-for report, or `ProgramError`
        when tokens are left over."""
        ready: deque[Task] = deque(self._tasks)
        alive: set[Task] = set(self._tasks)
        end = 0.0
        while ready:
            task = ready.popleft()
            task.queued = False
            self._step(task, ready, alive)
            end = max(end, task.clock)
        self.settle(alive)
        return end

    def settle(self, alive: Collection[Task]) -> None:
        """Raise unless the run is complete, `alive` being the processes that can move no more."""
        if alive:
            from .deadlock import explain  # it counts streams, for which it needs a network

            raise DeadlockError(explain(self, alive))
        left = [c for c in self._channels.values() if c.filled]
        if left:
            rows = "\n".join(f"  {self._leftover(c)}" for c in left)
            raise ProgramError(f"the program ends with data left in streams (more sent than received)\n{rows}")

    def _leftover(self, channel: Channel) -> str:
        unit, number, issue = channel.last
        place = f" ({self.where(unit, issue.origin)})" if issue is not None else ""
        return f"{channel.name}: {channel.filled} of {channel.capacity} words, the last from {unit} uOP {number}{place}"

    def _step(self, task: Task, ready: deque[Task], alive: set[Task]) -> None:
        """Advance one process until it blocks, forks or ends."""
        fire = task.pending
        left = task.left
        value: Any = None
        firings = self.events
        while True:
            if fire is None:
                fire = self._next(task, value, ready, alive)
                if fire is None:
                    return
                left = fire.times
                if firings is not None:
                    task.step = self._step_number(firings, fire)
            words = fire.words
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
            # everything is there: the clocks
            start, before, via = task.clock, task.firing, OWN
            finish, bound = 0.0, NEVER
            awaited: Channel | None = None
            late: Channel | None = None
            number = self._count
            self._count = number + 1
            payloads: list[Any] = []
            for channel in fire.gets:
                payload, first, last, firing = channel.take(words)
                payloads.append(payload)
                if fire.needs_whole_token:
                    first = last
                if first > start:
                    start, before, via, awaited = first, firing, LAST_WORD if first == last else FIRST_WORD, channel
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
            duration = fire.amount * self._seconds[fire.rate]
            end = start + duration
            if late is not None and finish > end:
                late.empty += finish - end
                end = finish
            else:
                bound = NEVER
            task.clock, task.firing = end, number
            task.busy += duration
            self.amounts[fire.rate] += fire.amount
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
            # the data
            burst = isinstance(fire, Burst)
            results: Any = fire.send
            if fire.do is not None and self.data:
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
                channel.last = (task.unit.name, task.unit.number, task.unit.issue)
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
        """The number of a step in the log, where equal ones are listed once."""
        gets, puts = tuple([c.number for c in fire.gets]), tuple([c.number for c in fire.puts])
        step = StepSignature(
            gets, puts, fire.words, fire.needs_whole_token, self._rate_index[fire.rate], float(fire.amount)
        )
        known = self._known_steps.setdefault(step, len(self._known_steps))
        if known == len(log.steps):
            log.steps.append(step)
        return known

    def _next(self, task: Task, value: Any, ready: deque[Task], alive: set[Task]) -> Step | None:
        """A process's next step, given what the last one got; None where it has ended or started lanes."""
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
                return effect
            value = None

    def _fork(self, task: Task, par: Par, ready: deque[Task], alive: set[Task]) -> None:
        task.children = len(par.lanes)
        for i, lane in enumerate(par.lanes):
            child = Task(lane, task.unit, task, i)
            alive.add(child)
            ready.append(child)

    def _finish(self, task: Task, ready: deque[Task], alive: set[Task]) -> None:
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
