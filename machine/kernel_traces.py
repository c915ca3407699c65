"""Traces of kernels: the steps of one uOP, found by stepping its kernel alone, without waiting and without data.

The streams that a kernel reads and writes, the number of words and the durations do not depend on data. `traces` makes
a workload of them, and `balance` counts their words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .description import FREE
from .event_log import StepSignature
from .steps import AnyOf, Burst, Channel, Par, Step, Steps
from .unit import Unit
from .wiring import Wiring

MAX_WORDS = 1 << 30
"""Largest stream depth and largest number of words of a step: they are counted in 31 bits."""


class UntraceableError(Exception):
    """The steps of a program cannot be known without running it. Internal: the caller then uses the executor."""


class Fork(NamedTuple):
    """A row of a trace that starts lanes in parallel. lanes: their trace numbers."""

    lanes: tuple[int, ...]


class KernelTraces:
    """Builds traces; equal traces are kept once, by their rows in `numbers`.

    most, at_once: the most steps of all kernels, and of one.
    """

    def __init__(self, wiring: Wiring, most: int, at_once: int) -> None:
        self.rates = {name: i for i, name in enumerate(wiring.machine.step_seconds)}
        self.numbers: dict[tuple[StepSignature | Fork, ...], int] = {}
        self.firings: list[int] = []
        self.slots: list[int] = []
        self.steps = 0
        self._most, self._at_once = most, at_once

    def trace(self, *rows: StepSignature | Fork) -> int:
        """Return the number of the trace with these rows; adds it if it is new."""
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
        """Return a row for a trace, with channels and rate as numbers. whole: the step needs whole tokens.

        Raises `UntraceableError` if the step moves no words or uses a stream twice.
        """
        if not 0 < words <= MAX_WORDS or len(set(gets)) < len(gets) or len(set(puts)) < len(puts):
            raise UntraceableError("a step moves no words, or uses a stream twice")
        get, put = (tuple(c.number for c in side) for side in (gets, puts))
        return StepSignature(get, put, words, whole, self.rates[rate], float(amount), times)

    def steers(self, step: Step) -> None:
        """Meet a step that sends control tokens. Raises `UntraceableError`."""
        raise UntraceableError("a kernel sends tokens that may steer others")

    def record(self, steps: Steps) -> int:
        """Step a kernel, or one of its lanes, alone; return the number of its trace."""
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


class KeyedKernels:
    """The kernels of one unit as traces; uOPs of equal `effect_key` share one."""

    def __init__(self, table: KernelTraces, unit: Unit) -> None:
        self.table = table
        self.unit = unit
        self._known: dict[Any, int] = {}
        self._keyed = unit.is_keyed()

    def kernel(self, uop: Any) -> tuple[int, bool]:
        """Return the trace of a uOP, and whether it may depend on earlier uOPs (the uOP has no `effect_key`)."""
        key = self.unit.effect_key(uop) if self._keyed else None
        if key is None:
            return self.record(uop), True
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.record(uop)
        return found, False

    def record(self, uop: Any) -> int:
        """Step the kernel of a uOP."""
        return self.table.record(self.unit.kernel(uop))
