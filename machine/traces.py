"""Traces: the steps of every process of a workload, as arrays, found without running the network.

The streams that a kernel reads and writes, the number of words and the durations do not depend on data. So each kernel
is stepped once alone and its steps are recorded: a *trace*. A process is then a list of traces. uOPs with the same
steps share one trace (`Unit.effect_key`), which keeps the arrays of a long program small. A workload whose own
processes send control tokens makes their traces itself (`Workload.trace`).

Kernels whose steps cannot be known without a run (they send control tokens, or fail) raise `UntraceableError`. The
executor defines what a program does; `fast_engine` executes these arrays with the same result. `balance` counts the
words of traces.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .description import FREE
from .event_log import StepSignature
from .steps import NEVER, AnyOf, Burst, Channel, Par, Step, Steps
from .unit import Unit, draining

if TYPE_CHECKING:
    from .executor import ProcessNetwork
    from .unit import Wiring

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

MAX_KERNEL_STEPS = 1 << 16
"""Largest number of steps of one kernel. A malformed uOP may ask for billions and yet block at its second in a run."""
MAX_STEPS = 1 << 22
"""Largest number of steps of all traced kernels."""
MAX_UOPS = 1 << 23
"""Largest number of uOPs of a unit."""
MAX_FIRINGS = 1 << 29
"""Largest number of firings: they are numbered in 31 bits, of which the log uses two for `via`."""

MAX_WORDS = 1 << 30
"""Largest stream depth and largest number of words of a step: they are counted in 31 bits."""

GETS, PUTS, PEERS, WORDS, WHOLE, TIMES, RATE = range(7)
"""Columns of `Traces.rows`."""
FORK = -1
"""Value of the column GETS for a row that starts lanes instead of firing: PUTS is their number, PEERS their traces."""


class UntraceableError(Exception):
    """The steps of a program cannot be known without running it. Internal: the caller then uses the executor."""


class Fork(NamedTuple):
    """A row of a trace that starts lanes in parallel. lanes: their trace numbers."""

    lanes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Traces:
    """The traces of every process of `net`, in the order of `net.progress`.

    rows: the steps, with the columns GETS..RATE. amounts: of each row, in units of its rate (bytes, tiles, cycles).
    peers: the channels of a step, gets before puts, or the traces of a fork. at: trace t is rows[at[t]:at[t + 1]].
    items: trace numbers; process p has items[bounds[p]:bounds[p + 1]]. number, origin: uOP and origin of each item, as
    in `Progress`. least: smallest get and put on each channel, in words. most: number of gets and puts on each channel.
    firings: of a complete run. slots: largest number of lanes that are open at once.
    """

    net: ProcessNetwork
    rows: Ints
    amounts: Floats
    peers: Ints
    at: Ints
    items: Ints
    bounds: Ints
    number: Ints
    origin: Ints
    least: Ints
    most: npt.NDArray[np.int64]
    firings: int
    slots: int

    @property
    def steps(self) -> list[StepSignature]:
        """Each row as a step of an `EventLog`. The entry of a fork is a placeholder that no log refers to."""
        out = []
        for (gets, puts, at, words, whole, _, rate), amount in zip(self.rows.tolist(), self.amounts, strict=True):
            gets = max(gets, 0)
            peers = self.peers[at : at + gets + puts].tolist()
            out.append(StepSignature(tuple(peers[:gets]), tuple(peers[gets:]), words, bool(whole), rate, float(amount)))
        return out


class TraceItems:
    """Builds the items of one process: trace numbers, each with the uOP's number and origin."""

    __slots__ = ("number", "origin", "traces")

    def __init__(self) -> None:
        self.traces = array("i")
        self.number = array("i")
        self.origin = array("i")

    def add(self, trace: int, number: int, origin: int) -> None:
        """Append one item. trace: its number. number, origin: as in `Progress`."""
        self.traces.append(trace)
        self.number.append(number)
        self.origin.append(origin)

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Return traces, numbers and origins as three int32 vectors, with one element per item."""
        columns = (self.traces, self.number, self.origin)
        return tuple(np.frombuffer(x, np.int32) if x else np.zeros(0, np.int32) for x in columns)  # type: ignore[return-value]


class KernelTraces:
    """Builds traces; equal traces are kept once. numbers: the number of each trace, by its rows.

    wiring: the units and streams whose kernels are traced. most, at_once: how many steps all kernels together, and a
    single kernel, may take; `record` raises `UntraceableError` beyond.
    """

    def __init__(self, wiring: Wiring, most: int, at_once: int) -> None:
        self.rates = {name: i for i, name in enumerate(wiring.machine.step_seconds)}
        self.numbers: dict[tuple[StepSignature | Fork, ...], int] = {}
        self.firings: list[int] = []
        self.slots: list[int] = []
        self.steps = 0
        self._most, self._at_once = most, at_once

    def trace(self, *rows: StepSignature | Fork) -> int:
        """Return the number of the trace with these rows. It is added if it is new."""
        found = self.numbers.get(rows)
        if found is not None:
            return found
        firings = slots = 0
        for row in rows:
            if isinstance(row, Fork):
                firings += sum(self.firings[t] for t in row.lanes)
                slots = max(slots, sum(1 + self.slots[t] for t in row.lanes))
            else:
                firings += row.times
        self.numbers[rows] = len(self.firings)
        self.firings.append(firings)
        self.slots.append(slots)
        return len(self.firings) - 1

    def step(
        self,
        rate: str = FREE,
        amount: float = 1.0,
        *,
        gets: tuple[Channel, ...] = (),
        puts: tuple[Channel, ...] = (),
        words: int = 1,
        whole: bool = False,
        times: int = 1,
    ) -> StepSignature:
        """Return a row for a trace, with channels and rate as numbers. rate, amount, gets, puts, words, times: as of
        `Step`. whole: the step needs whole tokens.

        Raises `UntraceableError` if the step moves no words, more than `MAX_WORDS`, or uses a stream twice, `KeyError`
        for an unknown rate."""
        if not 0 < words <= MAX_WORDS or len(set(gets)) < len(gets) or len(set(puts)) < len(puts):
            raise UntraceableError("a step moves no words, or uses a stream twice")
        get, put = (tuple(c.number for c in side) for side in (gets, puts))
        return StepSignature(get, put, words, whole, self.rates[rate], float(amount), times)

    def steers(self, step: Step) -> None:
        """Take note of a step that sends control tokens, which decide what others do. This class raises
        `UntraceableError`; a subclass may accept the step.
        """
        raise UntraceableError("a kernel sends tokens that may steer others")

    def record(self, steps: Steps) -> int:
        """Step a kernel, or one of its lanes, alone; return the number of its trace.

        Raises `UntraceableError` if it chooses a stream by arrival (`AnyOf`), sends control tokens, or takes too many
        steps.
        """
        rows: list[StepSignature | Fork] = []
        last: tuple[Any, ...] = ()
        times = 0
        limit = min(self.steps + self._at_once, self._most)

        def flush() -> None:
            if times:
                gets, puts, words, whole, rate, amount = last
                rows.append(self.step(rate, amount, gets=gets, puts=puts, words=words, whole=whole, times=times))

        value: list[None] | None = None
        while True:
            try:
                effect = steps.send(value)
            except StopIteration:
                break
            if isinstance(effect, Par):
                value = None
                if effect.lanes:
                    flush()
                    times = 0
                    rows.append(Fork(tuple([self.record(lane) for lane in effect.lanes])))
                continue
            if isinstance(effect, AnyOf):
                names = ", ".join(channel.name for channel in effect.channels)
                raise UntraceableError(f"what comes first decides how many words are taken from each of {names}")
            if effect.send:
                self.steers(effect)
            self.steps += 1
            if self.steps > limit:
                raise UntraceableError(f"more than {limit} steps")
            gets, parts = tuple(effect.gets), effect.parts
            words, amount = effect.words // parts, effect.amount / parts
            this = (gets, tuple(effect.puts), words, effect.needs_whole_token, effect.rate, amount)
            if times and this == last:
                times += effect.times * parts
            else:
                flush()
                last, times = this, effect.times * parts
            value = None if isinstance(effect, Burst) else [None] * len(gets)
        flush()
        return self.trace(*rows)


class TraceTable(KernelTraces):
    """The traces of all processes of a network."""

    def __init__(self, net: ProcessNetwork) -> None:
        super().__init__(net, MAX_STEPS, MAX_KERNEL_STEPS)
        self.net = net

    def unit(self, name: str) -> UnitTraces:
        """Return the tracer of the unit of this name. Raises `KeyError` if the network has none."""
        return UnitTraces(self, self.net.units[name])

    def finish(self, processes: Sequence[TraceItems]) -> Traces:
        """Make the arrays. processes: items of each process, in the order of `net.progress`.

        Raises `UntraceableError` if the program is too long or a stream too deep for 31-bit numbers.
        """
        columns = [p.columns() for p in processes]
        traces, number, origin = (np.concatenate([c[i] for c in columns]) for i in range(3))
        bounds = np.cumsum([0, *(len(p.traces) for p in processes)])
        firings = int(np.array(self.firings, np.int64)[traces].sum()) if len(traces) else 0
        if len(traces) > 2 * MAX_UOPS or firings > MAX_FIRINGS:
            raise UntraceableError("too long to number its firings")
        if max((c.capacity for c in self.net.channels), default=0) > MAX_WORDS:
            raise UntraceableError("a stream too deep to count its words")
        slots = np.array(self.slots, np.int64)
        return self._arrays(
            np.bincount(traces, minlength=len(slots)),
            items=traces,
            bounds=bounds.astype(np.int32),
            number=number,
            origin=origin,
            firings=firings,
            slots=sum(int(slots[c[0]].max(initial=0)) for c in columns),
        )

    def _arrays(self, runs: npt.NDArray[np.int64], **rest: Any) -> Traces:
        """runs: how often each trace occurs as an item; changed in place."""
        traces = list(self.numbers)
        for t in range(len(traces) - 1, -1, -1):  # a lane has a lower number than what starts it
            for row in traces[t]:
                if isinstance(row, Fork):
                    np.add.at(runs, list(row.lanes), runs[t])
        rows: list[tuple[int, ...]] = []
        amounts: list[float] = []
        peers: list[int] = []
        at = [0]
        places: dict[tuple[int, ...], int] = {}
        least = [[max(1, c.capacity)] * 2 for c in self.net.channels]
        most = [[0, 0] for _ in least]
        for trace, times in zip(traces, runs.tolist(), strict=True):
            for row in trace:
                key = row.lanes if isinstance(row, Fork) else row.gets + row.puts
                if key not in places:
                    places[key] = len(peers)
                    peers += key
                if isinstance(row, Fork):
                    rows.append((FORK, len(key), places[key], 0, 0, 1, 0))
                    amounts.append(0.0)
                    continue
                for side, channels in enumerate((row.gets, row.puts)):
                    for c in channels:
                        least[c][side] = min(least[c][side], row.words)
                        most[c][side] += times * row.times
                rows.append(
                    (
                        len(row.gets),
                        len(row.puts),
                        places[key],
                        row.words,
                        int(row.needs_whole_token),
                        row.times,
                        row.rate,
                    )
                )
                amounts.append(row.amount)
            at.append(len(rows))
        return Traces(
            net=self.net,
            rows=np.array(rows, np.int32).reshape(-1, 7),
            amounts=np.array(amounts, np.float64),
            peers=np.array(peers, np.int32),
            at=np.array(at, np.int32),
            least=np.array(least, np.int32).reshape(-1, 2),
            most=np.array(most, np.int64).reshape(-1, 2),
            **rest,
        )


class KeyedKernels:
    """The kernels of one unit as traces, which are added to `table`; uOPs of equal `effect_key` share one."""

    def __init__(self, table: KernelTraces, unit: Unit) -> None:
        self.table = table
        self.unit = unit
        self._known: dict[Any, int] = {}
        self._keyed = unit.is_keyed()

    def kernel(self, uop: Any) -> tuple[int, bool]:
        """Return the trace of a uOP, and whether it may depend on earlier uOPs (the uOP has no `effect_key`).

        Errors as for `record`.
        """
        key = self.unit.effect_key(uop) if self._keyed else None
        if key is None:
            return self.record(uop), True
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.record(uop)
        return found, False

    def record(self, uop: Any) -> int:
        """Step the kernel of a uOP and return the number of its trace. Raises what `KernelTraces.record` raises, and
        what the kernel raises.
        """
        return self.table.record(self.unit.kernel(uop))


class UnitTraces(KeyedKernels):
    """Traces the kernels of one unit of a run.

    table: the traces of the run, which it adds to. apart: the unit's halves are apart. A uOP is then traced as an index
    into `halves`, which has the traces of its filling and draining half, or the trace of its kernel if it touches no
    slot.
    """

    def __init__(self, table: TraceTable, unit: Unit) -> None:
        super().__init__(table, unit)
        self.name = unit.name
        self.apart = table.net.apart.get(unit.name)
        self.halves: list[tuple[int, int] | int] = []

    def record(self, uop: Any) -> int:
        if self.apart is None:
            return super().record(uop)
        record = self.table.record
        halves = self.unit.halves(uop)
        if halves is None:
            self.halves.append(record(self.unit.kernel(uop)))
        else:
            fill, drain = (self.table.trace() if half is None else record(half) for half in halves)
            self.halves.append((fill, drain))
        return len(self.halves) - 1

    def feed(self, uops: Iterable[Any], origins: Sequence[int] | None = None) -> Mapping[str, TraceItems]:
        """Return the items of a unit that executes a list of uOPs (`ProcessNetwork.feed`), by process. origins: of each
        of `uops`; those of equal origin are the same uOP. None for their numbers.

        Errors as for `record`.
        """
        if origins is None:
            kernels = [self.kernel(uop)[0] for uop in uops]
            origins = range(len(kernels))
        else:
            kernels = list(self._shared(uops, origins))
        if self.apart is not None:
            return self.served(kernels, origins, None, None)
        items = TraceItems()
        items.traces = array("i", kernels)
        items.number, items.origin = array("i", range(len(kernels))), array("i", origins)
        return {self.name: items}

    def _shared(self, uops: Iterable[Any], origins: Sequence[int]) -> Iterator[int]:
        """Yield the trace of each uOP. Those of equal origin share one, unless their kernel may depend on earlier
        uOPs."""
        known: dict[int, int] = {}
        for uop, origin in zip(uops, origins, strict=True):
            trace = known.get(origin)
            if trace is None:
                trace, past = self.kernel(uop)
                if not past:
                    known[origin] = trace
            yield trace

    def served(
        self, kernels: Sequence[int], origins: Sequence[int], source: Channel | None, end: int | None
    ) -> Mapping[str, TraceItems]:
        """Return the items of both processes of a unit whose halves are apart (`ProcessNetwork.take`), by process.

        kernels: what `kernel` returned for each uOP, an index into `halves`. origins: of each uOP. source: the FIFO
        that its uOPs come from, None for a list. end: the origin of the terminator; None if the FIFO delivers none.
        """
        assert self.apart is not None
        table, (slots, drains) = self.table, self.apart
        fifo = () if source is None else (source,)
        take, again = table.trace(table.step(gets=fifo, puts=(slots,))), table.trace(table.step(gets=fifo))
        hand = table.trace(table.step(puts=(drains,)))
        get, free = table.trace(table.step(gets=(drains,))), table.trace(table.step(gets=(slots,)))
        main, other = TraceItems(), TraceItems()
        at, begun = (NEVER, NEVER), (NEVER, NEVER)  # number and origin of the current uOP of each process
        has_room = False

        def make_room() -> None:
            if not has_room:
                main.add(take, *at)
            elif fifo:
                main.add(again, *at)

        for number, (kernel, origin) in enumerate(zip(kernels, origins, strict=True)):
            make_room()
            at = number, origin
            traces = self.halves[kernel]
            has_room = isinstance(traces, int)
            if isinstance(traces, int):
                main.add(traces, *at)
                continue
            main.add(hand, *at)
            main.add(traces[0], *at)
            other.add(get, *begun)
            begun = at
            other.add(traces[1], *begun)
            other.add(free, *begun)
        make_room()
        other.add(get, *begun)
        if source is None or end is not None:
            main.add(hand, *(at if end is None else (len(kernels), end)))
            other.add(free, *begun)
        return {self.name: main, draining(self.name): other}
