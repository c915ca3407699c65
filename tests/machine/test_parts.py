"""A step in parts equals so many smaller steps for time and deadlock, in every engine; its data come as of one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.executor import ProcessNetwork
from rsn.machine.fast_engine import run_traces
from rsn.machine.plan import trace_workload
from rsn.machine.steps import Burst, Step, Steps
from rsn.machine.unit import Unit
from rsn.tests.effort import examples
from rsn.tests.machine.toys import toy_overlay

WORDS = 4
"""Words of a tile, which has one element a word."""
Uop = tuple[int, float, int, bool]
"""Tiles, microseconds of each, parts of a step, and whether it needs whole tiles."""


class Sender(Unit):
    """Sends tiles 0, 1, 2, ..."""

    split = False
    sent = 0

    def kernel(self, uop: Uop) -> Steps:
        tiles, us, parts, whole = uop

        def make(n: int) -> tuple[list[Any]]:
            self.sent += n
            return ([np.full(WORDS, i, np.float32) for i in range(self.sent - n, self.sent)],)

        yield moved(self, tiles, us, parts, whole, puts=(self.sink(after(self.name)),), do=make)


class Passer(Unit):
    """Doubles tiles."""

    split = False

    def kernel(self, uop: Uop) -> Steps:
        tiles, us, parts, whole = uop
        ends = {"gets": (self.source(before(self.name)),), "puts": (self.sink(after(self.name)),)}
        yield moved(self, tiles, us, parts, whole, **ends, do=lambda n, given: ([2 * x for x in given],))


class Receiver(Unit):
    """Keeps tiles. A step that is no burst takes the first one."""

    split = False

    def __init__(self, spec: UnitSpec, net: Any) -> None:
        super().__init__(spec, net)
        self.kept: list[Any] = []

    def kernel(self, uop: Uop) -> Steps:
        tiles, us, parts, whole = uop
        gets = (self.source(before(self.name)),)
        if not self.split:
            value = yield Step("us", us, gets=gets, words=WORDS, parts=parts, needs_whole_token=whole)
            self.kept.append(value[0])
            tiles -= 1
        yield moved(self, tiles, us, parts, whole, gets=gets, do=lambda n, given: self.kept.extend(given))


def before(name: str) -> str:
    return name[0] + str(int(name[1:]) - 1)


def after(name: str) -> str:
    return name[0] + str(int(name[1:]) + 1)


def moved(unit: Any, tiles: int, us: float, parts: int, whole: bool, do: Any = None, **ends: Any) -> Burst:
    if unit.split:
        return Burst(tiles * parts, "us", us / parts, words=WORDS // parts, needs_whole_token=whole, **ends)
    return Burst(tiles, "us", us, words=WORDS, parts=parts, needs_whole_token=whole, do=do, **ends)


def machine(count: int, depths: list[int], *, split: bool) -> Any:
    kinds: list[type[Unit]] = [Sender, *[Passer] * (count - 2), Receiver]
    made = {kind: type(f"Split{kind.__name__}", (kind,), {"split": split}) for kind in set(kinds)}
    units = [UnitSpec(f"U{i}", kind.__name__, i, made[kind]) for i, kind in enumerate(kinds)]
    return toy_overlay(units, [Stream(f"U{i}", f"U{i + 1}", depth) for i, depth in enumerate(depths)])


def ended(run: Any) -> tuple[Any, ...]:
    try:
        return ("ended", run())
    except DeadlockError as e:
        return ("deadlock", str(e))


@examples(300, 30)
@given(st.data())
def test_a_chain_of_units(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    tiles = data.draw(st.integers(1, 5))
    parts = [data.draw(st.sampled_from([1, 2, 4])) for _ in range(count)]
    depths = [data.draw(st.integers(1, 2 * WORDS)) for _ in range(count - 1)]
    uops = {}
    for i in range(count):
        us, whole = data.draw(st.sampled_from([0.0, 1.0, 2.5, 4.0])), data.draw(st.booleans())
        cut = data.draw(st.integers(1, tiles)) if i < count - 1 else tiles  # in one or two uOPs
        uops[f"U{i}"] = [(n, us, parts[i], whole) for n in (cut, tiles - cut) if n]
    as_one, as_many = (machine(count, depths, split=split) for split in (False, True))
    net = ProcessNetwork(as_one, uops, data=True)
    found = ended(net.run)
    assert found == ended(ProcessNetwork(as_many, uops).run)
    assert found[0] == ended(ProcessNetwork(as_one, uops).run)[0]
    traces = trace_workload(as_one, uops)
    traced = ended(lambda: run_traces(traces, as_one, compiled=lambda f: f).latency)
    assert traced == found
    if found[0] == "ended":
        want = [np.full(WORDS, i * 2 ** (count - 2), np.float32) for i in range(tiles)]
        kept = getattr(net.units[f"U{count - 1}"], "kept")  # noqa: B009
        np.testing.assert_array_equal(np.stack(kept), np.stack(want))


def test_a_stream_may_hold_less_than_a_step_moves() -> None:
    """In one part it would wait for ever."""

    def run(parts: int) -> tuple[Any, ...]:
        uops = {f"U{i}": [(3, 1.0, parts, False)] for i in range(3)}
        return ended(ProcessNetwork(machine(3, [1, 1], split=False), uops).run)

    assert run(WORDS) == ("ended", pytest.approx(3e-6))
    assert run(1)[0] == "deadlock"
    assert "1/1" not in run(1)[1]
    assert "too shallow for 4" in run(1)[1]
