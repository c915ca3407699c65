"""Sends against receives on every stream, counted without running the network.

A unit's kernels are stepped alone, without waiting: what they put and get is counted. A kernel is a function of its uOP
and of the unit's registers, so each distinct pair is stepped once.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.deadlock_report import Imbalance
from ..base.finding import Finding
from ..isa.expansion import Expansion, Ints
from ..isa.fields import Record
from .executor import Channel, Par, ProcessNetwork, Steps, Unit

MAX_STEPS = 4_000_000
"""Kernel steps that are counted; the largest real program needs a few thousand."""

State = tuple[tuple[str, Any], ...]


class _Undecidable(Exception):
    """The kernels of a unit cannot be stepped alone."""


@dataclass
class Balance:
    """What was counted. uneven: in the overlay's order. totals: words (sent, received) per stream. undecided: streams
    of which that cannot be said, and why."""

    uneven: list[Imbalance]
    totals: dict[str, tuple[int, int]]
    undecided: dict[str, str]

    @property
    def findings(self) -> list[Finding]:
        return [i.finding for i in self.uneven]

    @property
    def even(self) -> bool:
        """Whether every stream was counted and comes out even."""
        return not self.undecided and not self.uneven


def balance(expansion: Expansion) -> Balance:
    """Count every stream of a program."""
    overlay = expansion.overlay
    counts = _Counts(ProcessNetwork(overlay, issues={}))
    traffic: dict[str, _Traffic] = {}
    reasons: dict[str, str] = {}
    for u in overlay.units:
        if u.name in expansion.missing:
            reasons[u.name] = f"the op lists of the {u.kind}s are not known"
            continue
        try:
            traffic[u.name] = counts.unit(expansion, u.name)
        except _Undecidable as e:
            reasons[u.name] = str(e)
    for stream in overlay.streams:  # what a control token says may decide what its reader does next
        if stream.name in counts.control:
            reasons.setdefault(stream.dst, f"{stream.name} carries control")
    out = Balance([], {}, {})
    for stream in overlay.streams:
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
            where = expansion.where(more, uop)
            out.uneven.append(Imbalance(name, stream.src, stream.dst, *totals, uop, where))
    return out


@dataclass(frozen=True, eq=False)
class _Traffic:
    """Per uOP of a unit the number of an effect, and the effects: words per stream, put and got."""

    effects: Ints
    table: list[dict[tuple[str, int], int]]

    def words(self, stream: str, side: int) -> Ints:
        """Words that each uOP puts (side 0) on a stream or gets (1) from it."""
        each = np.array([e.get((stream, side), 0) for e in self.table] or [0], np.int64)
        return each[self.effects]


class _Counts:
    """Steps kernels on the units of a network that never runs."""

    def __init__(self, net: ProcessNetwork) -> None:
        self.net = net
        self.control: set[str] = set()
        self.steps = 0

    def unit(self, expansion: Expansion, name: str) -> _Traffic:
        return self._remembered(expansion, name) or self._stepped(expansion, name)

    def _stepped(self, expansion: Expansion, name: str) -> _Traffic:
        """Kernels stepped one after the other, because the unit's state cannot be compared; those of one key once."""
        spec = expansion.overlay.by_unit[name]
        unit = spec.behaviour(spec, self.net)
        kinds = expansion.sequences[name].kinds.tolist()
        keys = {k: unit.effect_key(expansion.uops[k]) if unit.is_keyed() else None for k in set(kinds)}
        known: dict[Hashable, int] = {}
        table: list[dict[tuple[str, int], int]] = []
        out = []
        for kind in kinds:
            key = keys[kind]
            effect = None if key is None else known.get(key)
            if effect is None:
                effect = len(table)
                table.append(self._effect(unit, expansion.uops[kind]))
                if key is not None:
                    known[key] = effect
            out.append(effect)
        return _Traffic(np.array(out, np.int64), table)

    def _remembered(self, expansion: Expansion, name: str) -> _Traffic | None:
        """Each pair of state and uOP stepped once; None where the state cannot be compared."""
        unit = self.net.units[name]
        state = _state(unit)
        if state is None:
            return None
        numbers, states = {state: 0}, [state]
        known: dict[tuple[int, int], tuple[int, int]] = {}
        table: list[dict[tuple[str, int], int]] = []
        now, out = 0, []
        for kind in expansion.sequences[name].kinds.tolist():
            step = known.get((now, kind))
            if step is None:
                unit.__dict__.update(states[now])
                table.append(self._effect(unit, expansion.uops[kind]))
                after = _state(unit)
                if after is None:
                    return None
                if after not in numbers:
                    numbers[after] = len(states)
                    states.append(after)
                step = known[now, kind] = len(table) - 1, numbers[after]
            effect, now = step
            out.append(effect)
        return _Traffic(np.array(out, np.int64), table)

    def _effect(self, unit: Unit, uop: Any) -> dict[tuple[str, int], int]:
        out: dict[tuple[str, int], int] = {}
        try:
            self._walk(unit.kernel(uop), out)
        except _Undecidable:
            raise
        except Exception as e:  # kernels are anybody's code, and here they get no data
            raise _Undecidable(f"{unit.name} needs what it receives to go on: {e!r}") from e
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


_PLAIN = (int, float, str, bool, np.generic, type(None), Record)
_FIXED: tuple[type, ...] = (Channel, ProcessNetwork)


def _state(unit: Unit) -> State | None:
    """A unit's attributes that kernels may read and change; None if some of them cannot be compared."""
    out: list[tuple[str, Any]] = []
    for name, value in vars(unit).items():
        if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, _PLAIN) for v in value)):
            out.append((name, value))
        elif not _unchanging(value):
            return None
    return tuple(out)


def _unchanging(value: Any) -> bool:
    """Whether an attribute is no state: streams, and memory that is empty because there is no data."""
    if isinstance(value, tuple):
        return all(_unchanging(v) for v in value)
    if isinstance(value, np.ndarray):
        return value.size == 0
    if isinstance(value, list):
        return not value
    return isinstance(value, _FIXED)
