"""The network executor on toy overlays in which a uOP is a kernel: FIFOs, clocks, tokens, reports.

Rates: a step of "us" takes one microsecond times its amount. Ends are compared in microseconds.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError, ProgramError
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.fig6 import FIG6, Add, Read, Write
from rsn.isa.packet import Packet
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.event_log import FIRST_WORD
from rsn.machine.executor import ProcessNetwork
from rsn.machine.steps import Par, Step, Steps
from rsn.machine.unit import Unit
from rsn.tests.machine.toys import toy_overlay

Kernel = Callable[[Unit], Steps]


class Toy(Unit):
    def kernel(self, uop: Kernel) -> Steps:
        return uop(self)


def toy(*streams: Stream) -> Overlay:
    names = sorted({u for s in streams for u in (s.src, s.dst)} | {"A"})
    units = tuple(UnitSpec(n, n, 0, Toy) for n in names)
    return toy_overlay(units, streams)


def network(streams: Sequence[Stream], programs: dict[str, Sequence[Kernel]], **options: Any) -> ProcessNetwork:
    return ProcessNetwork(toy(*streams), dict(programs), where=lambda unit, origin: f"t.rsn:{origin + 1}", **options)


def put(to: str, words: int = 1, us: float = 0.0, times: int = 1, whole: bool = False, of: Any = None) -> Kernel:
    def kernel(unit: Unit) -> Steps:
        for _ in range(times):
            do = None if of is None else lambda: (of,)
            yield Step("us", us, puts=(unit.sink(to),), words=words, do=do, needs_whole_token=whole)

    return kernel


def get(
    source: str, words: int = 1, us: float = 0.0, times: int = 1, whole: bool = False, into: list[Any] | None = None
) -> Kernel:
    def kernel(unit: Unit) -> Steps:
        for _ in range(times):
            do = None if into is None else into.append
            yield Step("us", us, gets=(unit.source(source),), words=words, do=do, needs_whole_token=whole)

    return kernel


def end_us(net: ProcessNetwork) -> float:
    return net.run() * 1e6


# -- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer_us", "reader_us", "whole", "depth", "end"),
    [
        (2, 1, False, 9, 6),  # the reader keeps up: it ends with the writer's last token
        (2, 1, True, 9, 7),  # it starts a token only when that is complete: one step of its own more
        (1, 2, False, 9, 6),  # the reader decides, from the first word on
        (1, 2, True, 9, 7),
        (1, 2, True, 1, 9),  # a single slot, held until the reader is done with it: no overlap at all
        (1, 2, False, 1, 6),
    ],
)
def test_two_units(writer_us: float, reader_us: float, whole: bool, depth: int, end: float) -> None:
    """Three tokens from A to B."""
    programs = {"A": [put("B", us=writer_us, times=3)], "B": [get("A", us=reader_us, times=3, whole=whole)]}
    assert end_us(network([Stream("A", "B", depth)], programs)) == pytest.approx(end)


@given(
    writer=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    reader=st.lists(st.integers(0, 5), min_size=12, max_size=12),
    depth=st.integers(1, 4),
    whole=st.booleans(),
)
def test_bounded_fifo_obeys_its_recurrence(writer: list[int], reader: list[int], depth: int, whole: bool) -> None:
    """Token i waits for the slot that token i - depth frees; the reader starts at its first word, or last if whole."""
    ends_w, ends_r = [0.0], [0.0]
    for i, (w, r) in enumerate(zip(writer, reader, strict=False)):
        start_w = max(ends_w[-1], ends_r[1 + i - depth] if i >= depth else 0.0)
        ends_w.append(start_w + w)
        start_r = max(ends_r[-1], ends_w[-1] if whole else start_w)
        ends_r.append(max(start_r + r, ends_w[-1]))
    got: list[Any] = []
    programs = {
        "A": [put("B", us=w, of=np.float32(i)) for i, w in enumerate(writer)],
        "B": [get("A", us=r, whole=whole, into=got) for r in reader[: len(writer)]],
    }
    assert end_us(network([Stream("A", "B", depth)], programs, data=True)) == pytest.approx(max(ends_w[-1], ends_r[-1]))
    assert got == list(range(len(writer)))


@pytest.mark.parametrize(("whole", "end"), [(False, 3), (True, 5)])
def test_a_whole_step_delivers_at_its_end(whole: bool, end: float) -> None:
    programs = {"A": [put("B", us=2, whole=whole)], "B": [get("A", us=3)]}
    assert end_us(network([Stream("A", "B", 1)], programs)) == pytest.approx(end)


def test_lanes_run_side_by_side_and_join() -> None:
    def kernel(unit: Unit) -> Steps:
        def work(us: float) -> Steps:
            yield Step("us", us)

        yield Step("us", 1)
        yield Par(work(3), work(5), work(2))
        yield Par()  # nothing enabled
        yield Step("us", 1)

    net = network([], {"A": [kernel]})
    assert end_us(net) == pytest.approx(7)
    assert net.progress["A"].busy == pytest.approx(7e-6)  # a unit with two busy lanes is busy once


def test_a_lane_that_waits_does_not_hold_up_the_other() -> None:
    """A loads from B while sending to C, as a Mem does; C's token is there long before B's."""
    got: list[Any] = []

    def kernel(unit: Unit) -> Steps:
        yield Par(get("B")(unit), put("C", of=np.float32(1))(unit))

    programs = {"A": [kernel], "B": [put("A", us=10)], "C": [get("A", us=2, into=got)]}
    net = network([Stream("B", "A", 1), Stream("A", "C", 1)], programs, data=True)
    assert end_us(net) == pytest.approx(10)
    assert net.progress["C"].task.clock == pytest.approx(2e-6)
    assert got == [1]


def test_recorded_firings_follow_their_causes() -> None:
    programs = {"A": [put("B", us=2, times=3)], "B": [get("A", us=3, times=3, whole=True)]}
    net = network([Stream("A", "B", 1)], programs, record=True)
    net.run()
    log = net.events
    assert log is not None
    for i in range(len(log)):
        before = log.before[i]
        assert before < i
        if before >= 0:
            assert log.start[i] == (log.start[before] if log.via[i] == FIRST_WORD else log.end[before])


# -- tokens -------------------------------------------------------------------------------------------------------


@st.composite
def two_cuts(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The same number of words, cut into two random lists of pieces."""
    total = draw(st.integers(1, 24))

    def cut() -> list[int]:
        marks = sorted({0, total, *draw(st.sets(st.integers(1, total)))})
        return [b - a for a, b in pairwise(marks)]

    return cut(), cut()


@given(two_cuts())
def test_tokens_are_split_and_gathered(cuts: tuple[list[int], list[int]]) -> None:
    """A word carries two elements here; what arrives is what was sent, in order, in the reader's pieces."""
    sent, wanted = cuts
    data = np.arange(2 * sum(sent), dtype=np.float32)
    got: list[np.ndarray] = []
    at, writes = 0, []
    for n in sent:
        writes.append(put("B", n, us=n, of=data[2 * at : 2 * (at + n)].reshape(n, 2)))
        at += n
    programs = {"A": writes, "B": [get("A", n, into=got) for n in wanted]}
    # deep enough for any two pieces: with less, a reader may need more words than the writer can deliver
    net = network([Stream("A", "B", max(sent) + max(wanted))], programs, data=True)
    assert end_us(net) == pytest.approx(sum(sent))
    assert [g.size for g in got] == [2 * n for n in wanted]
    np.testing.assert_array_equal(np.concatenate([g.reshape(-1) for g in got]), data)


@given(two_cuts(), st.integers(0, 1 << 30))
@example(([3, 2, 2], [7]), 5)
def test_the_steps_of_the_critical_path_take_the_whole_time(cuts: tuple[list[int], list[int]], seed: int) -> None:
    """Also where a step streams several tokens through: the first one decides when it begins."""
    sent, wanted = cuts
    choose = random.Random(seed)
    whole = choose.random() < 0.3
    programs = {
        "A": [put("B", n, us=n, whole=choose.random() < 0.5) for n in sent],
        "B": [get("A", n, us=choose.randrange(12), whole=whole) for n in wanted],
    }
    net = network([Stream("A", "B", max(sent) + max(wanted))], programs, record=True)
    latency = net.run()
    assert net.events is not None
    path = net.events.critical_path()
    assert (path.end - path.start).sum() == pytest.approx(latency)


@pytest.mark.parametrize(("reader_us", "whole", "end"), [(1, True, 10), (1, False, 9), (12, False, 12)])
def test_a_gathered_token_spans_its_parts(reader_us: float, whole: bool, end: float) -> None:
    """Its first word is there from the start, its last one after 4 + 5 us."""
    programs = {"A": [put("B", us=4), put("B", us=5)], "B": [get("A", 2, us=reader_us, whole=whole)]}
    assert end_us(network([Stream("A", "B", 2)], programs)) == pytest.approx(end)


def test_control_tokens_travel_without_data_too() -> None:
    seen: list[Any] = []

    def sender(unit: Unit) -> Steps:
        yield Step(puts=(unit.sink("B"),), send=("stop",))

    def receiver(unit: Unit) -> Steps:
        (token,) = yield Step(gets=(unit.source("A"),))
        seen.append(token)

    network([Stream("A", "B", 1)], {"A": [sender], "B": [receiver]}).run()
    assert seen == ["stop"]


# -- what goes wrong ----------------------------------------------------------------------------------------------


def test_data_left_over_is_an_error() -> None:
    net = network([Stream("A", "B", 4)], {"A": [put("B"), put("B", times=2)], "B": [get("A")]})
    with pytest.raises(ProgramError) as e:
        net.run()
    assert str(e.value) == (
        "the program ends with data left in streams (more sent than received)\n"
        "  A->B: 2 of 4 words, the last from A uOP 1 (t.rsn:2)"
    )


def test_deadlock_names_unit_uop_stream_and_line() -> None:
    """A and B each fill the other's stream before they read; a lane's wait is reported as its unit's."""

    def both(unit: Unit) -> Steps:
        yield Par(put("C", 2)(unit), get("C")(unit))

    streams = [Stream("A", "B", 1), Stream("B", "A", 1), Stream("C", "D", 1), Stream("D", "C", 1)]
    programs = {
        "A": [put("B"), put("B"), get("B", times=2)],
        "B": [put("A", times=2), get("A", times=2)],
        "D": [both],
    }
    with pytest.raises(DeadlockError) as e:
        network(streams, programs).run()
    assert (
        str(e.value)
        == """\
deadlock: no unit can move
a cycle, in which each waits for the next and the last for the first:
  A  uOP 1 (t.rsn:2)  waits to put A->B (1/1 full)
  B  uOP 0 (t.rsn:1)  waits to put B->A (1/1 full)
also blocked:
  D  uOP 0 (t.rsn:1)  waits to put D->C (0/1, too shallow for 2; C has ended)
  D  uOP 0 (t.rsn:1)  waits to get C->D (0/1 empty; C has ended)
first imbalance: D->C: 2 words sent, 0 received; D uOP 0 (t.rsn:1) is the first that sends words which C never receives
sends and receives differ also on C->D"""
    )


def test_a_stream_that_is_not_there() -> None:
    with pytest.raises(ProgramError, match="overlay toy has no stream B->A"):
        network([Stream("A", "B", 1)], {"A": [get("B")]}).run()


TRIANGLE = [Stream(a, b, d) for a, b, d in (("A", "B", 1), ("A", "C", 2), ("B", "C", 1), ("C", "A", 2))]


@st.composite
def chatter(draw: st.DrawFn) -> dict[str, list[Kernel]]:
    """Random programs, with and without deadlock: each unit's kernels in random order, some in parallel lanes."""

    def side_by_side(one: Kernel, other: Kernel) -> Kernel:
        def kernel(unit: Unit) -> Steps:
            yield Par(one(unit), other(unit))

        return kernel

    steps: dict[str, list[tuple[Stream, Kernel]]] = {"A": [], "B": [], "C": []}
    for s in draw(st.lists(st.sampled_from(TRIANGLE), max_size=10)):
        times = draw(st.integers(1, 2))
        steps[s.src].append((s, put(s.dst, us=draw(st.integers(0, 3)), times=times)))
        steps[s.dst].append((s, get(s.src, us=draw(st.integers(0, 3)), times=times)))
    programs: dict[str, list[Kernel]] = {}
    for unit, kernels in steps.items():
        order = draw(st.permutations(kernels)) if draw(st.booleans()) else kernels
        programs[unit] = [kernel for _, kernel in order]
        if len(order) > 1 and order[-1][0] != order[-2][0] and draw(st.booleans()):
            programs[unit][-2:] = [side_by_side(order[-2][1], order[-1][1])]
    return programs


@given(chatter(), st.integers(0, 99))
def test_the_outcome_does_not_depend_on_the_order_of_stepping(programs: dict[str, list[Kernel]], seed: int) -> None:
    """Compares the end of every unit, or the text of the error."""

    def outcome(order: Callable[[list[Any]], list[Any]]) -> Any:
        net = network(TRIANGLE, programs, order=order)
        try:
            return net.run(), [p.task.clock for p in net.progress.values()]
        except ProgramError as e:
            return type(e), str(e)

    shuffle = random.Random(seed)
    assert outcome(lambda tasks: tasks) == outcome(lambda tasks: shuffle.sample(tasks, len(tasks)))


# -- the instruction path -----------------------------------------------------------------------------------------


def forwarding(uops: int) -> list[Packet]:
    """FU1 sends single elements, each with its own uOP and packet; FU3's only packet follows them in the image."""
    sends = [Packet.of(1, [Read(size=1, to_fu3=1)]) for _ in range(uops)]
    return [*sends, Packet.of(3, [Write(size=uops, from_fu1=1)]), *(Packet.terminator(o) for o in (1, 2, 3))]


@pytest.mark.parametrize(("depth", "most"), [(1, 7), (6, 12), (9, 15)])
def test_mop_fifo_depth_decides_whether_dispatch_deadlocks(depth: int, most: int) -> None:
    """Before FU3 reads, there is room for two elements in the stream, one uOP in FU1, two in its FIFO, one in its
    decoder and `depth` mOPs before that (paper section 3.3, "Deadlock")."""
    overlay = FIG6.with_rates(mop_fifo_depth=depth)
    ProcessNetwork(overlay, InstructionPath(overlay, forwarding(most))).run()
    with pytest.raises(DeadlockError) as e:
        ProcessNetwork(overlay, InstructionPath(overlay, forwarding(most + 1))).run()
    report = e.value.report
    blocked = [w.unit for w in report.waits]
    assert blocked == ["FU1", "FU2", "FU3", "decoder FU1", "decoder FU2", "decoder FU3", "dispatcher"]
    assert [w.unit for w in report.cycle] == ["FU1", "FU3", "decoder FU3", "dispatcher", "decoder FU1"]
    assert "waiting for the dispatcher: FU2\nevery stream is balanced: order or depth is at fault" in str(e.value)


def test_an_instruction_path_without_rates_is_free() -> None:
    rates = {name: rate for name, rate in FIG6.rates.items() if name not in ("dispatch", "decode")}
    free = toy_overlay(FIG6.units, FIG6.streams, name="free", formats=FIG6.formats, rates=rates)
    packets = [
        Packet.of(1, [Read(size=10, to_fu2=1)]),
        Packet.of(2, [Add(size=10)]),
        Packet.of(3, [Write(size=10, from_fu2=1)]),
        *(Packet.terminator(o) for o in (1, 2, 3)),
    ]
    assert ProcessNetwork(free, InstructionPath(free, packets)).run() == pytest.approx(10 / free.clock_hz)
