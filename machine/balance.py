"""Compares the words sent and received on every stream, without running the network.

The kernels of each unit are traced alone (`traces`), and the words of their traces are counted. A kernel depends
only on its uOP and on the unit's registers, so uOPs of equal `effect_key` are stepped once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.deadlock_report import Imbalance
from ..base.finding import Finding
from .description import FREE, StreamNetwork
from .event_log import StepSignature
from .steps import Channel, Step
from .traces import Fork, KernelTraces, KeyedKernels, UntraceableError
from .unit import Wiring

MAX_STEPS = 4_000_000
"""Largest number of kernel steps that are counted; the largest real program needs a few thousand."""

PUT, GET = range(2)

Ints = npt.NDArray[np.int64]


def _nowhere(unit: str, uop: int) -> str:
    return unit


@dataclass(frozen=True, eq=False)
class UopTable:
    """All uOPs of a machine's units, as indices into a list of distinct uOPs.

    uops: the distinct uOPs. kinds: by unit, the index in `uops` of each uOP, in execution order. origins: by unit, the
    packet or list position of each uOP. missing: units whose uOPs are not known. where: given a unit and the position
    of a uOP in `kinds`, its place in the source. `kinds` and `origins` hold int64 vectors with one element per uOP of
    the unit.
    """

    machine: StreamNetwork
    uops: Sequence[Any]
    kinds: Mapping[str, Ints]
    origins: Mapping[str, Ints]
    missing: Collection[str] = ()
    where: Callable[[str, int], str] = _nowhere


@dataclass
class Balance:
    """The result of counting.

    uneven: streams on which sends and receives differ, in the overlay's order. totals: words (sent, received) by
    stream. undecided: by stream that could not be counted, the reason.
    """

    uneven: list[Imbalance]
    totals: dict[str, tuple[int, int]]
    undecided: dict[str, str]

    @property
    def findings(self) -> list[Finding]:
        """A finding S01 for each uneven stream, in the order of `uneven`."""
        return [i.finding for i in self.uneven]

    @property
    def even(self) -> bool:
        """Whether every stream was counted and sends equal receives on each."""
        return not self.undecided and not self.uneven


def balance(table: UopTable) -> Balance:
    """Count the words sent and received on every stream of a machine, over all uOPs of its units.

    A unit whose kernels cannot be traced, or whose uOPs are missing, raises nothing: its streams are `undecided`.
    """
    machine = table.machine
    words = _Words(Wiring(machine))
    traces: dict[str, Ints] = {}
    reasons: dict[str, str] = {}
    for u in machine.units:
        if u.name in table.missing:
            reasons[u.name] = f"the op lists of the {u.kind}s are not known"
            continue
        try:
            traces[u.name] = words.unit(table, u.name)
        except UntraceableError as e:
            reasons[u.name] = str(e)
    for stream in machine.streams:  # the value of a control token may decide the next steps of its reader
        if stream.name in words.control:
            reasons.setdefault(stream.dst, f"{stream.name} carries control")
    moved = words.moved()
    out = Balance([], {}, {})
    for number, stream in enumerate(machine.streams):
        name = stream.name
        reason = reasons.get(stream.src) or reasons.get(stream.dst)
        if reason:
            out.undecided[name] = reason
            continue
        sent, received = (
            np.array([each.get((number, side), 0) for each in moved] or [0], np.int64)[traces[unit]]
            for unit, side in ((stream.src, PUT), (stream.dst, GET))
        )
        totals = int(sent.sum()), int(received.sum())
        out.totals[name] = totals
        if totals[0] != totals[1]:
            more, per_uop = (stream.src, sent) if totals[0] > totals[1] else (stream.dst, received)
            uop = int(np.searchsorted(np.cumsum(per_uop), min(totals), side="right"))
            where = table.where(more, uop)
            out.uneven.append(Imbalance(name, stream.src, stream.dst, *totals, uop, where))
    return out


class _Words(KernelTraces):
    """Traces as far as they say which words are moved. control: streams on which control tokens were sent."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring, MAX_STEPS, MAX_STEPS)
        self.wiring = wiring
        self.control: set[str] = set()

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
        """A row without times, which any step has."""
        get, put = (tuple(c.number for c in side) for side in (gets, puts))
        return StepSignature(get, put, words, False, 0, 0.0, times)

    def steers(self, step: Step) -> None:
        self.control.update(c.name for c in step.puts)

    def unit(self, table: UopTable, name: str) -> Ints:
        """The traces of a unit's uOPs. Raises `UntraceableError`."""
        kernels = KeyedKernels(self, self.wiring.units[name])
        kinds = table.kinds[name].tolist() if name in table.kinds else []
        known: dict[int, int] = {}
        traces: list[int] = []
        try:
            for kind in kinds:
                trace = known.get(kind)
                if trace is None:
                    trace, changes = kernels.kernel(table.uops[kind])
                    if changes:  # the state, of which effect keys are made
                        known.clear()
                    else:
                        known[kind] = trace
                traces.append(trace)
        except UntraceableError:
            raise
        except Exception as e:  # kernels may be user code, and they get no data here
            raise UntraceableError(f"the kernel of {name} fails without data: {e!r}") from e
        return np.array(traces, np.int64)

    def moved(self) -> list[Counter[tuple[int, int]]]:
        """The words that each trace puts on and gets from streams, by index of the stream and PUT or GET."""
        out: list[Counter[tuple[int, int]]] = []
        for rows in self.numbers:
            words: Counter[tuple[int, int]] = Counter()
            for row in rows:
                if isinstance(row, Fork):  # a lane has a lower number than what starts it
                    for lane in row.lanes:
                        words += out[lane]
                    continue
                for side, channels in ((PUT, row.puts), (GET, row.gets)):
                    for channel in channels:
                        words[channel, side] += row.words * row.times
            out.append(words)
        return out
