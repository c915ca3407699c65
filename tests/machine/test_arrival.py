"""Units that choose by arrival: results and times follow from the network alone, and equal those of plain events."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim.dataflow import DataRun
from rsn.machine.description import Stream
from rsn.machine.executor import ProcessNetwork
from rsn.machine.plan import TimedWorkload
from rsn.machine.steps import AnyOf, Channel, Step, Steps
from rsn.machine.unit import Unit
from rsn.tests.effort import cases, in_both
from rsn.tests.machine.arrivals import Drawn, Events, draw, merge, on_engine, relay, sink, source
from rsn.tests.machine.test_executor import network, put, toy

ORDERS = {
    "as listed": None,
    "reversed": lambda tasks: tasks[::-1],
    "shuffled": lambda tasks: Random(1).sample(tasks, len(tasks)),
    "shuffled again": lambda tasks: Random(2).sample(tasks, len(tasks)),
}


@in_both
def test_drawn_networks_equal_plain_events_in_every_visiting_order() -> None:
    ended = chose = 0
    for seed in range(cases(1500, 60)):
        net = draw(Random(seed))
        expected = Events(net).run()
        for name, order in ORDERS.items():
            try:
                made, found = on_engine(net, order)
            except DeadlockError:
                assert expected is None, (seed, name)
                continue
            assert found == expected, (seed, name)
            ended += 1
            chose += bool(made.chosen)
    assert ended > 2 * chose / 3 > 0


def two_into_one(times: dict[str, list[int]]) -> Drawn:
    units = {name: source([k, k + 10], "m", times[name]) for k, name in enumerate(times)}
    return Drawn(
        {**units, "m": merge(list(times), "s", [0]), "s": sink("m")},
        {**{(name, "m"): 2 for name in times}, ("m", "s"): 1},
    )


def test_the_first_word_that_comes_is_chosen() -> None:
    made, found = on_engine(two_into_one({"a": [5, 5], "b": [3, 4]}))
    assert found.seen["m"] == [("b", 1), ("a", 0), ("b", 11), ("a", 10)]
    assert made.chosen == {"a->m": 1, "b->m": 3}  # with the end of b; only a is left then


def test_of_words_at_one_time_the_stream_that_is_listed_first_is_chosen() -> None:
    _, found = on_engine(two_into_one({"b": [3, 2], "a": [3, 2]}))
    assert [peer for peer, _ in found.seen["m"]] == ["b", "a", "b", "a"]


def choosing(*peers: str) -> Any:
    def kernel(unit: Unit) -> Steps:
        streams = [unit.source(peer) for peer in peers]
        while True:
            chosen = yield AnyOf(*streams)
            yield Step(gets=(streams[chosen],))

    return kernel


def test_a_deadlock_shows_the_knot() -> None:
    # m waits for a or b; a waits for b, and b for m: no cycle has both reasons of m.
    def get_then_put(source: str, target: str) -> Any:
        def kernel(unit: Unit) -> Steps:
            yield Step(gets=(unit.source(source),))
            yield Step(puts=(unit.sink(target),))

        return kernel

    streams = [Stream(*ends, 1) for ends in (("a", "m"), ("b", "m"), ("b", "a"), ("m", "b"))]
    kernels = {"m": [choosing("a", "b")], "a": [get_then_put("b", "m")], "b": [get_then_put("m", "a")]}
    with pytest.raises(DeadlockError) as raised:
        network(streams, kernels).run()
    text = str(raised.value)
    assert "a knot: none of them moves before another one of them does" in text
    for line in ("m  uOP 0 (t.rsn:1)  waits to get any, a->m (0/1 empty)", "to get any, b->m", "to get b->a"):
        assert line in text
    assert "not every stream was counted: what comes first decides how many words are taken" in text


def test_a_unit_that_waits_for_one_of_several_reports_what_it_has_chosen() -> None:
    streams = [Stream("a", "m", 2), Stream("b", "m", 2)]
    made = network(streams, {"m": [choosing("a", "b")], "a": [put("m", times=2)], "b": [put("m")]})
    with pytest.raises(DeadlockError, match=r"waits for a, which has ended") as raised:
        made.run()
    assert "chosen so far: a->m 2 times, b->m 1 times" in str(raised.value)


def test_other_engines_leave_it_to_the_reference() -> None:
    net = two_into_one({"a": [5, 5], "b": [3, 4]})
    overlay = toy(Stream("a", "m", 1), Stream("b", "m", 1))
    programs = {"m": [choosing("a", "b")], "a": [put("m")], "b": [put("m")]}
    assert not TimedWorkload(overlay, programs).traced
    assert on_engine(net)[0].chosen

    class Refusing(DataRun):
        def __init__(self) -> None:
            ProcessNetwork.__init__(self, overlay, programs, data=True)

    with pytest.raises(ProgramError, match="m chooses by what comes first, which a run without clocks does not know"):
        Refusing().run()


def test_a_merge_that_a_partition_undoes_is_independent_of_time() -> None:
    """Other service times change the order in the middle, and nothing that comes out."""
    outcomes = []
    for slow in (0, 7):
        net = Drawn(
            {
                "a": source([0, 2, 4], "ra", [1, 1, 1]),
                "b": source([1, 3, 5], "rb", [1, 2, 3]),
                "ra": relay("a", "m", [slow]),
                "rb": relay("b", "m", [2]),
                "m": merge(["ra", "rb"], "d", [1]),
                "d": _undo("m", ["x", "y"]),
                "x": sink("d"),
                "y": sink("d"),
            },
            {
                ("a", "ra"): 1,
                ("b", "rb"): 1,
                ("ra", "m"): 2,
                ("rb", "m"): 2,
                ("m", "d"): 1,
                ("d", "x"): 1,
                ("d", "y"): 1,
            },
        )
        outcomes.append(on_engine(net)[1].seen)
    assert outcomes[0]["m"] != outcomes[1]["m"]
    assert outcomes[0]["x"] == outcomes[1]["x"] == [0, 2, 4]
    assert outcomes[0]["y"] == outcomes[1]["y"] == [1, 3, 5]


def _undo(origin: str, targets: list[str]) -> Any:
    def acts(seen: list[Any]) -> Any:
        while (token := (yield "get", origin)) is not None:
            yield "put", targets[token % 2], token
        for target in targets:
            yield "put", target, None

    return acts


def test_streams_to_choose_among_are_listed_once() -> None:
    channel = Channel("c", 1)
    for listed in ((), (channel, channel)):
        with pytest.raises(ValueError, match="one or more streams, each listed once"):
            AnyOf(*listed)
