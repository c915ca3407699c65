"""A program's stream effects as arrays: what every process does, in order, without running it.

Which streams a kernel reads and writes, how many words and for how long does not depend on data. So each kernel is run
once with nobody at the other end and its steps are written down, a *trace*; a process is then a list of traces. uOPs
that differ in nothing that matters share one (`Unit.effect_key`), which keeps the arrays of a long program small. The
instruction path carries tokens that steer its kernels, so its traces are made from the packets, along
`ProcessNetwork`'s own `_dispatch` and `_decode`.

What cannot be known without a run (a kernel that sends control tokens, or that fails) raises `UntraceableError`; the
executor in `network` remains the definition of what a program does. `compiled` executes these arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.garbage import uncollected
from ..isa.fields import Record
from ..isa.overlay import InstructionFormat, Overlay, one_uop
from ..isa.packet import Header, Packet
from .executor import FREE, NEVER, Burst, Channel, Par, ProcessNetwork, Steps, StepSignature, Unit

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

MAX_IN_ONE = 1 << 16
"""Steps of one kernel before giving up. A hostile uOP may ask for billions, and stall at its second in a run."""
MAX_STEPS = 1 << 22
"""Steps of all kernels that are traced."""
MAX_UOPS = 1 << 23
MAX_FIRINGS = 1 << 29
"""Firings are numbered in 31 bits, of which the log takes two for what decided when they could start."""

MAX_WORDS = 1 << 30
"""Of a stream's depth and of a step: they are counted in 31 bits."""

GETS, PUTS, PEERS, WORDS, WHOLE, TIMES, RATE = range(7)
"""Columns of `Traces.rows`."""
FORK = -1
"""In the column GETS: the row fires nothing and starts lanes, PUTS of them; PEERS are their traces."""


class UntraceableError(Exception):
    """The stream effects of this program cannot be known without running it. Not for users: there is another way."""


class Fork(NamedTuple):
    """Lanes, by trace number, that run side by side."""

    lanes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Traces:
    """Every process of `net`, in the order of `net.progress`, as a list of traces.

    rows, amounts: the steps (amounts in what the rate counts), `times` in a column of their own. peers: channels of a
    step, gets before puts, or traces of a fork. at: trace t is rows[at[t]:at[t + 1]]. items: trace numbers, process p
    having those from bounds[p] to bounds[p + 1]. number, origin: the uOP to which each item belongs, as `Progress`
    counts. least: smallest get and put of each channel, in words; most: how many gets and puts it sees. firings: how
    many a complete run has. slots: lanes that can be open at once.
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
        """Each row as a step of a log; what stands for a fork is in no log."""
        out = []
        for (gets, puts, at, words, whole, _, rate), amount in zip(self.rows.tolist(), self.amounts, strict=True):
            gets = max(gets, 0)
            peers = self.peers[at : at + gets + puts].tolist()
            out.append(StepSignature(tuple(peers[:gets]), tuple(peers[gets:]), words, bool(whole), rate, float(amount)))
        return out


@uncollected()
def trace(
    overlay: Overlay,
    *,
    packets: Sequence[Packet] | None = None,
    issues: Mapping[str, Sequence[Any]] | None = None,
    preloaded: Mapping[str, Sequence[Any]] | None = None,
    where: Callable[[str, int], str],
) -> Traces:
    """The traces of what `ProcessNetwork` with the same arguments would run. Raises `UntraceableError`."""
    net = ProcessNetwork(overlay, packets=packets, issues=issues, preloaded=preloaded, where=where)
    table = _Table(net)
    lists: dict[str, _Items] = {}
    try:
        queues = _queues(overlay, packets) if packets is not None else {}
        if packets is not None:
            lists["dispatcher"] = _dispatcher(table, overlay, packets)
        for spec in overlay.units:
            unit = _Unit(table, net.units[spec.name])
            if spec.kind in overlay.preloaded:
                lists[spec.name] = unit.feed((preloaded or {}).get(spec.name, ()))
            elif packets is not None:
                lists[f"decoder {spec.name}"], lists[spec.name] = unit.serve(
                    queues[spec.name], overlay.format_of(spec.kind).loops_window
                )
            else:
                lists[spec.name] = unit.feed((issues or {}).get(spec.name, ()))
        return table.finish([lists[name] for name in net.progress])
    except UntraceableError:
        raise
    except Exception as e:
        # A kernel, a uOP or a stream is at fault, and whether a run gets there is for the run to say.
        raise UntraceableError(f"{type(e).__name__}: {e}") from e


class _Items:
    """The items of one process under construction: traces with uOP number and origin."""

    __slots__ = ("number", "origin", "traces")

    def __init__(self) -> None:
        self.traces = array("i")
        self.number = array("i")
        self.origin = array("i")

    def add(self, trace: int, number: int, origin: int) -> None:
        self.traces.append(trace)
        self.number.append(number)
        self.origin.append(origin)

    def columns(self) -> tuple[Ints, Ints, Ints]:
        columns = (self.traces, self.number, self.origin)
        return tuple(np.frombuffer(x, np.int32) if x else np.zeros(0, np.int32) for x in columns)  # type: ignore[return-value]


class _Table:
    """Traces under construction. Equal ones are kept once."""

    def __init__(self, net: ProcessNetwork) -> None:
        self.net = net
        self.rates = {name: i for i, name in enumerate(net.rate_names)}
        self.numbers: dict[tuple[StepSignature | Fork, ...], int] = {}
        self.firings: list[int] = []
        self.slots: list[int] = []
        self.steps = 0

    def trace(self, *rows: StepSignature | Fork) -> int:
        """The number of the trace with these rows."""
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
        if not 0 < words <= MAX_WORDS or len(set(gets)) < len(gets) or len(set(puts)) < len(puts):
            raise UntraceableError("a step moves no words, or uses a stream twice")
        get, put = (tuple(c.number for c in side) for side in (gets, puts))
        return StepSignature(get, put, words, whole, self.rates[rate], float(amount), times)

    def record(self, steps: Steps) -> int:
        """Run a kernel, or one of its lanes, with nobody at the other end."""
        rows: list[StepSignature | Fork] = []
        last: tuple[Any, ...] = ()
        times = 0
        limit = min(self.steps + MAX_IN_ONE, MAX_STEPS)

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
            if effect.send:
                raise UntraceableError("a kernel sends tokens that may steer others")
            self.steps += 1
            if self.steps > limit:
                raise UntraceableError("too many steps to trace")
            gets = tuple(effect.gets)
            this = (gets, tuple(effect.puts), effect.words, effect.needs_whole_token, effect.rate, effect.amount)
            if times and this == last:
                times += effect.times
            else:
                flush()
                last, times = this, effect.times
            value = None if isinstance(effect, Burst) else [None] * len(gets)
        flush()
        return self.trace(*rows)

    def finish(self, processes: Sequence[_Items]) -> Traces:
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
        """runs: how often each trace occurs as an item."""
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


Mop = tuple[int, Header, InstructionFormat, Record | None]
"""What a slot of an mOP FIFO holds: packet number, header, form, and the mOP or, of a terminator, None."""


def _queues(overlay: Overlay, packets: Sequence[Packet]) -> dict[str, list[Mop]]:
    """What the dispatcher writes into the FIFO of each unit."""
    out: dict[str, list[Mop]] = {u.name: [] for u in overlay.units}
    for number, packet in enumerate(packets):
        header = packet.header
        if not header.opcode:
            continue
        form = overlay.by_opcode[header.opcode]
        queue: list[Mop] = [(number, header, form, None)] if header.last else []
        queue += [(number, header, form, mop) for mop in packet.mops]
        for unit in overlay.selected(header.opcode, header.mask):
            out[unit.name] += queue
    return out


def _dispatcher(table: _Table, overlay: Overlay, packets: Sequence[Packet]) -> _Items:
    items = _Items()
    known: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
    for number, packet in enumerate(packets):
        header = packet.header
        key = (header.opcode, header.mask, header.last, tuple([m.WORDS for m in packet.mops]))
        if key not in known:
            rows = [table.step("dispatch")]
            if header.opcode:
                units = overlay.selected(header.opcode, header.mask)
                puts = [table.step(puts=(table.net.fifo("mops", u.name),)) for u in units]
                if header.last:
                    rows += puts
                for mop in packet.mops:
                    rows += [table.step("dispatch", mop.WORDS), *puts]
            known[key] = table.trace(*rows)
        items.add(known[key], number, number)
    return items


class _Unit:
    """Traces of one unit and of its decoder."""

    def __init__(self, table: _Table, unit: Unit) -> None:
        self.table = table
        self.unit = unit
        self.known: dict[Any, int] = {}
        self.uops = 0
        self.keyed = unit.is_keyed()

    def _kernel(self, uop: Any) -> tuple[int, bool]:
        """The trace of a uOP, and whether it depends on the unit's past."""
        key = self.unit.effect_key(uop) if self.keyed else None
        if key is None:
            return self.table.record(self.unit.kernel(uop)), True
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.table.record(self.unit.kernel(uop))
        return found, False

    def feed(self, uops: Iterable[Any]) -> _Items:
        items = _Items()
        items.traces = array("i", [self._kernel(uop)[0] for uop in uops])
        items.number = items.origin = array("i", range(len(items.traces)))
        return items

    def serve(self, queue: Sequence[Mop], loops_window: bool) -> tuple[_Items, _Items]:
        """Decoder and unit. Both end waiting for more where the image has no terminator."""
        net, table = self.table.net, self.table
        source, sink = net.fifo("mops", self.unit.name), net.fifo("uops", self.unit.name)
        get = table.trace(table.step(gets=(source,)))
        decoder = _Items()
        kernels: list[int] = []
        origins: list[int] = []
        at, group, origin = 0, -1, NEVER
        while True:
            group += 1
            decoder.add(get, group, origin)
            if at == len(queue):
                break
            number, header, form, mop = queue[at]
            origin, at = number, at + 1

            def put(times: int, form: InstructionFormat = form) -> int:
                return table.trace(table.step("decode", form.decode_cycles, puts=(sink,), times=times))

            if header.last:
                decoder.add(put(1), group, number)
                break
            window = [mop]
            if loops_window and header.window > 1:
                missing = header.window - 1
                window += [m for _, _, _, m in queue[at : at + missing]]
                at += missing
                decoder.add(table.trace(table.step(gets=(source,), times=missing)), group, number)
                if at > len(queue):
                    break
            before = len(kernels)
            kernels += self._window(form, window, header.reuse)
            if len(kernels) > before:
                decoder.add(put(len(kernels) - before), group, number)
                origins += [number] * (len(kernels) - before)
        return decoder, self._fed(table.trace(table.step(gets=(sink,))), kernels, origins)

    def _window(self, form: InstructionFormat, window: Sequence[Any], reuse: int) -> list[int]:
        """Traces of the uOPs that a window, or an mOP that repeats, becomes."""
        self.uops += reuse * sum(int(getattr(m, "chunks", 1)) for m in window)
        if self.uops > MAX_UOPS:
            raise UntraceableError("too many uOPs")

        def iterate(iteration: int) -> list[tuple[int, bool]]:
            return [self._kernel(uop) for mop in window for uop in form.uops(mop, iteration)]

        if not reuse:
            return []
        first = iterate(0)
        traces = [t for t, _ in first]
        # A kernel with a past runs in its turn. A format with `addresses` promises uOPs that differ in nothing else;
        # a key that has addresses in it shows here.
        alike = not any(past for _, past in first) and (
            form.uops is one_uop or (form.addresses is not None and iterate(reuse - 1) == first)
        )
        if alike:
            return traces * reuse
        return traces + [t for i in range(1, reuse) for t, _ in iterate(i)]

    @staticmethod
    def _fed(get: int, kernels: list[int], origins: list[int]) -> _Items:
        """Get, kernel, get, kernel, ..., get: while it waits, a unit still stands at the uOP before."""
        items = _Items()
        n = len(kernels)
        items.traces = array("i", [get]) * (2 * n + 1)
        items.traces[1::2] = array("i", kernels)
        for column, values in ((items.number, np.arange(n)), (items.origin, origins)):
            column.append(NEVER)
            column.frombytes(np.repeat(np.asarray(values, np.int32), 2).tobytes())
        return items
