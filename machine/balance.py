"""Compares the words sent and received on every stream, without running the network.

The kernels of each unit are stepped alone, without waiting, and the words that they put and get are counted. A kernel
depends only on its uOP and on the unit's registers, so each distinct pair is stepped once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.deadlock_report import Imbalance
from ..base.finding import Finding
from .description import Machine, Memory
from .steps import AnyOf, Channel, Par, Steps
from .unit import Immutable, Unit
from .wiring import Wiring

MAX_STEPS = 4_000_000
"""Largest number of kernel steps that are counted; the largest real program needs a few thousand."""

State = tuple[tuple[str, Any], ...]


class _Undecidable(Exception):
    """The words that a unit sends and receives cannot be counted by stepping its kernels alone."""


Ints = npt.NDArray[np.int64]


def _nowhere(unit: str, uop: int) -> str:
    return unit


@dataclass(frozen=True, eq=False)
class UopTable:
    """All uOPs of a machine's units, as indices into a list of distinct uOPs.

    uops: the distinct uOPs. kinds: by unit, the index in `uops` of each uOP, in execution order. origins: by unit, the
    packet or list position of each uOP. missing: units whose uOPs are not known. where: given a unit and the position
    of a uOP in `kinds`, its place in the source.
    """

    machine: Machine
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
        """A finding S01 for each uneven stream."""
        return [i.finding for i in self.uneven]

    @property
    def even(self) -> bool:
        """Whether every stream was counted and sends equal receives on each."""
        return not self.undecided and not self.uneven


def balance(table: UopTable) -> Balance:
    """Count the words sent and received on every stream of a machine, over all uOPs of its units."""
    machine = table.machine
    counts = _Counts(Wiring(machine))
    traffic: dict[str, _Traffic] = {}
    reasons: dict[str, str] = {}
    for u in machine.units:
        if u.name in table.missing:
            reasons[u.name] = f"the op lists of the {u.kind}s are not known"
            continue
        try:
            traffic[u.name] = counts.unit(table, u.name)
        except _Undecidable as e:
            reasons[u.name] = str(e)
    for stream in machine.streams:  # the value of a control token may decide the next steps of its reader
        if stream.name in counts.control:
            reasons.setdefault(stream.dst, f"{stream.name} carries control")
    out = Balance([], {}, {})
    for stream in machine.streams:
        name = stream.name
        reason = reasons.get(stream.src) or reasons.get(stream.dst)
        if reason:
            out.undecided[name] = reason
            continue
        sent, received = traffic[stream.src].words(name, 0), traffic[stream.dst].words(name, 1)
        totals = int(sent.sum()), int(received.sum())
        out.totals[name] = totals
        if totals[0] != totals[1]:
            more, per_uop = (stream.src, sent) if totals[0] > totals[1] else (stream.dst, received)
            uop = int(np.searchsorted(np.cumsum(per_uop), min(totals), side="right"))
            where = table.where(more, uop)
            out.uneven.append(Imbalance(name, stream.src, stream.dst, *totals, uop, where))
    return out


@dataclass(frozen=True, eq=False)
class _Traffic:
    """The words that the uOPs of one unit move.

    effects: by uOP, an index into `table`. table: distinct effects: words by (stream, side); side 0 puts, side 1 gets.
    """

    effects: Ints
    table: list[dict[tuple[str, int], int]]

    def words(self, stream: str, side: int) -> Ints:
        """Words that each uOP puts on a stream (side 0) or gets from it (side 1)."""
        each = np.array([e.get((stream, side), 0) for e in self.table] or [0], np.int64)
        return each[self.effects]


class _Counts:
    """Steps the kernels of units alone and counts the words that they put and get.

    control: streams on which control tokens were sent.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.control: set[str] = set()
        self.steps = 0

    def unit(self, table: UopTable, name: str) -> _Traffic:
        return self._remembered(table, name) or self._stepped(table, name)

    def _stepped(self, table: UopTable, name: str) -> _Traffic:
        """Step the kernels in order, for units whose state cannot be compared; uOPs of equal `effect_key` once."""
        spec = table.machine.by_unit[name]
        unit = spec.behaviour(spec, self.wiring)
        kinds = table.kinds[name].tolist() if name in table.kinds else []
        keys = {k: unit.effect_key(table.uops[k]) if unit.is_keyed() else None for k in set(kinds)}
        known: dict[Hashable, int] = {}
        effects: list[dict[tuple[str, int], int]] = []
        out = []
        for kind in kinds:
            key = keys[kind]
            effect = None if key is None else known.get(key)
            if effect is None:
                effect = len(effects)
                effects.append(self._effect(unit, table.uops[kind]))
                if key is not None:
                    known[key] = effect
            out.append(effect)
        return _Traffic(np.array(out, np.int64), effects)

    def _remembered(self, table: UopTable, name: str) -> _Traffic | None:
        """Step each distinct pair of unit state and uOP once; None if the state cannot be compared."""
        unit = self.wiring.units[name]
        state = _state(unit)
        if state is None:
            return None
        numbers, states = {state: 0}, [state]
        known: dict[tuple[int, int], tuple[int, int]] = {}
        effects: list[dict[tuple[str, int], int]] = []
        now, out = 0, []
        for kind in table.kinds[name].tolist() if name in table.kinds else []:
            step = known.get((now, kind))
            if step is None:
                unit.__dict__.update(states[now])
                effects.append(self._effect(unit, table.uops[kind]))
                after = _state(unit)
                if after is None:
                    return None
                if after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                step = known[now, kind] = len(effects) - 1, numbers[after]
            effect, now = step
            out.append(effect)
        return _Traffic(np.array(out, np.int64), effects)

    def _effect(self, unit: Unit, uop: Any) -> dict[tuple[str, int], int]:
        out: dict[tuple[str, int], int] = {}
        try:
            self._walk(unit.kernel(uop), out)
        except _Undecidable:
            raise
        except Exception as e:  # kernels may be user code, and they get no data here
            raise _Undecidable(f"the kernel of {unit.name} fails without data: {e!r}") from e
        return out

    def _walk(self, steps: Steps, out: dict[tuple[str, int], int]) -> None:
        value: Any = None
        while True:
            try:
                effect = steps.send(value)
            except StopIteration:
                return
            value = None
            if isinstance(effect, Par):
                for lane in effect.lanes:
                    self._walk(lane, out)
                continue
            if isinstance(effect, AnyOf):
                names = ", ".join(channel.name for channel in effect.channels)
                raise _Undecidable(f"what comes first decides how many words are taken from each of {names}")
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise _Undecidable(f"more than {MAX_STEPS} steps")
            for side, channels in ((0, effect.puts), (1, effect.gets)):
                for channel in channels:
                    key = channel.name, side
                    out[key] = out.get(key, 0) + effect.words * effect.times
            if effect.send:
                self.control.update(c.name for c in effect.puts)
            value = [None] * len(effect.gets)


_PLAIN = (int, float, str, bool, np.generic, type(None), Immutable)
_FIXED: tuple[type, ...] = (Channel, Wiring, Memory)


def _state(unit: Unit) -> State | None:
    """The attributes of a unit that its kernels may change; None if some of them cannot be compared."""
    out: list[tuple[str, Any]] = []
    for name, value in vars(unit).items():
        if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value)):
            out.append((name, value))
        elif not _unchanging(value):
            return None
    return tuple(out)


def _unchanging(value: Any) -> bool:
    """Whether an attribute is no state: a stream, or memory that is empty because the run has no data."""
    if isinstance(value, tuple):
        return all(_unchanging(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.size == 0
    if isinstance(value, list):
        return not value
    return isinstance(value, _FIXED)
