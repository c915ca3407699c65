"""Reasons for a run's time: every second is counted once, whichever way it is told."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from click import unstyle

from rsn.base.durations import unit_of
from rsn.base.errors import DeadlockError
from rsn.hw.sim.explain import Explanation, explain
from rsn.hw.sim.machine import Machine, critical_path, launch_seconds
from rsn.hw.sim.timeline import Timeline
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.fig6 import FIG6, Read, Write
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Program
from rsn.machine.event_log import OWN, ROOM
from rsn.machine.executor import ProcessNetwork
from rsn.machine.timing import RunTiming

from .examples import NAMES, built, encoder, example, machine

LAST = tuple(Packet.terminator(o) for o in (1, 2, 3))


@cache
def reasons(name: str) -> Explanation:
    return explain(machine(name))


def launch(name: str) -> float:
    return launch_seconds(example(name).program.overlay)


every = pytest.mark.parametrize("name", NAMES)


@every
def test_causes_and_dependencies_add_up_to_the_latency(name: str) -> None:
    e = reasons(name)
    assert e.latency_s == machine(name).run().latency_s > 0
    assert sum(e.causes.values()) == pytest.approx(e.latency_s, rel=1e-9)
    assert sum(e.dependencies.values()) == pytest.approx(e.latency_s, rel=1e-9)
    assert min([*e.causes.values(), *e.dependencies.values()]) > 0


@every
def test_causes_are_those_of_the_run(name: str) -> None:
    e, run = reasons(name), machine(name).run()
    assert {cause: s / e.latency_s for cause, s in e.causes.items()} == pytest.approx(run.critical_path, rel=1e-9)


@every
def test_lines_add_up_to_the_latency_less_the_launch(name: str) -> None:
    lines = reasons(name).lines
    assert sum(x.seconds for x in lines) == pytest.approx(reasons(name).latency_s - launch(name), rel=1e-9)
    assert len({(x.where, x.unit) for x in lines}) == len(lines)
    assert [x.seconds for x in lines] == sorted((x.seconds for x in lines), reverse=True)


@every
def test_segments_follow_on_each_other(name: str) -> None:
    """From the launch to the last store, which ends these programs; each one's causes are all of its time."""
    e = reasons(name)
    at = launch(name)
    for s in e.segments:
        assert s.start == pytest.approx(at, rel=1e-12)
        assert s.end >= s.start
        assert sum(s.causes.values()) == pytest.approx(s.end - s.start, abs=1e-9 * e.latency_s)
        at = s.end
    assert at == pytest.approx(e.latency_s, rel=1e-9)


@every
def test_the_end_of_a_segment_is_that_of_its_last_store(name: str) -> None:
    """Found here without `segments`: the last firing of a unit that writes off chip is the last segment's end."""
    m, e = machine(name), reasons(name)
    timeline = Timeline(m)
    stores = [t for t in timeline.transfers if t.rate.endswith("_write_gbs")]
    assert e.segments[-1].end - launch(name) == pytest.approx(max(t.end.max() for t in stores), rel=1e-12)


def test_segments_of_an_encoder_are_its_layers() -> None:
    assert [s.name for s in reasons("encoder").segments] == [f"l{i}.{n}" for i in range(2) for n in "qkvcdhy"]


@every
def test_units_wait_or_work_until_they_end(name: str) -> None:
    """Where nothing runs side by side, busy time and the three kinds of waits fill the time until the last uOP."""
    m, e = machine(name), reasons(name)
    timeline = Timeline(m)
    side_by_side = {"LHS", "RHS", "OUT", "MemA", "MemB", "MemC"}
    for unit, spent in e.units.items():
        parts = spent.busy, spent.empty, spent.full, spent.instructions
        assert min(parts) >= 0
        assert spent.busy <= e.latency_s
        end = timeline.end[timeline.unit == m.plan.processes.index(unit)].max(initial=0)
        if spent.kind not in side_by_side:
            assert sum(parts) == pytest.approx(end, rel=1e-9)
        else:
            assert sum(parts) >= end * (1 - 1e-9)


@every
def test_streams_wait_as_their_units_do(name: str) -> None:
    e, overlay = reasons(name), example(name).program.overlay
    ends = {s.name: (s.src, s.dst) for s in overlay.streams}
    for unit, spent in e.units.items():
        assert spent.empty == pytest.approx(sum(s.empty for s in e.streams if ends[s.name][1] == unit))
        assert spent.full == pytest.approx(sum(s.full for s in e.streams if ends[s.name][0] == unit))
    assert all(s.empty + s.full > 0 for s in e.streams)


def other(overlay: Overlay, name: str) -> Overlay:
    rate = overlay.rates[name]
    return overlay.with_rates(**{name: rate.value * 2 if rate.unit == "GB/s" else rate.value / 2})


@every
def test_what_if_is_a_fresh_run_with_that_rate(name: str) -> None:
    p, e = example(name).program, reasons(name)
    charged = {rate for rate, amount in machine(name).timing.amounts.items() if amount} & set(p.overlay.rates)
    assert {w.rate for w in e.what_if} - {"launch_us"} == charged
    for w in e.what_if:
        fresh = Machine(dataclasses.replace(p, overlay=other(p.overlay, w.rate))).run()
        assert w.latency_s == pytest.approx(fresh.latency_s, rel=1e-12)
    assert [w.latency_s for w in e.what_if] == sorted(w.latency_s for w in e.what_if)


def test_what_if_agrees_with_the_executor() -> None:
    """Not only with the same engine again."""
    p = example("fig6_app2").program
    for w in reasons("fig6_app2").what_if:
        overlay = other(p.overlay, w.rate)
        assert w.latency_s == pytest.approx(
            ProcessNetwork(overlay, InstructionPath(overlay, p.packets)).run(), rel=1e-12
        )


@pytest.mark.parametrize(
    ("rates", "cause"),
    [
        ({"ddr_read_gbs": 0.01}, "DDR load"),
        ({"ddr_write_gbs": 0.01}, "DDR store"),
        ({"add": 100}, "compute"),
        ({"dispatch": 1000}, "instruction issue"),
    ],
)
def test_a_slow_part_is_the_cause(rates: dict[str, float], cause: str) -> None:
    p = example("fig6_app1").program
    e = explain(Machine(dataclasses.replace(p, overlay=p.overlay.with_rates(**rates))))
    assert next(iter(e.causes)) == cause
    assert e.causes[cause] > 0.9 * e.latency_s
    assert e.what_if[0].rate == next(iter(rates))
    assert e.what_if[0].latency_s < 0.6 * e.latency_s


@pytest.mark.parametrize("shallow", [False, True])
@every
def test_what_the_critical_path_had_waited_for(name: str, shallow: bool) -> None:
    """Step by step along the path: what made the process wait that takes the step, when it last had to. shallow: with
    less room in streams, which then are full."""
    overlay = example(name).program.overlay
    if shallow:
        overlay = overlay.with_depths({s.name: 1 for s in overlay.streams if s.depth == 2})
    m = Machine(dataclasses.replace(example(name).program, overlay=overlay))
    chain = m.timing.critical_path
    expected: dict[str, float] = {}
    for at in range(len(chain.unit)):
        before = at + 1
        while before < len(chain.unit) and chain.via[before] == OWN:
            before += 1
        if before == len(chain.unit):
            what = "nothing"
        elif chain.via[before] == ROOM:
            what = "a full stream"
        else:
            issued = m.plan.processes[chain.unit[before]] not in overlay.by_unit
            what = "instructions" if issued else "an empty stream"
        expected[what] = expected.get(what, 0) + chain.end[at] - chain.start[at]
    expected = {what: seconds for what, seconds in expected.items() if seconds}
    if launch(name):
        expected["launch"] = launch(name)
    assert explain(m).dependencies == pytest.approx(expected, rel=1e-9)
    if name in ("fig6_app1", "fig10", "gemm768"):
        assert ("a full stream" in expected) == shallow


def test_what_slow_packets_are() -> None:
    p = example("fig6_app1").program
    e = explain(Machine(dataclasses.replace(p, overlay=p.overlay.with_rates(dispatch=1000))))
    (first, share), *_ = sorted(e.dependencies.items(), key=lambda item: -item[1])
    assert first in ("nothing", "instructions")  # the dispatcher itself waits for nothing
    assert share > 0.9 * e.latency_s


def test_json_has_the_same_as_plain_values() -> None:
    for name in ("fig6_app1", "encoder"):
        e = reasons(name)
        facts = json.loads(json.dumps(e.as_json(), allow_nan=False))
        keys = ["causes", "dependencies", "units", "streams", "segments", "lines", "what_if"]
        assert list(facts) == keys
        assert facts["causes"] == e.causes
        assert set(facts["units"]["FU1" if name == "fig6_app1" else "DDR"]) == {
            "kind", "busy", "empty", "full", "instructions",
        }  # fmt: skip
        assert set(facts["segments"][0]) == {
            "name", "kind", "layers", "where", "began", "start", "end", "causes",
        }  # fmt: skip
        assert set(facts["lines"][0]) == {"where", "unit", "seconds", "cause"}
        assert set(facts["what_if"][0]) == {"rate", "cause", "latency_s"}


# -- the screen ---------------------------------------------------------------------------------------------------


def check_screen(text: str) -> list[str]:
    lines = text.split("\n")
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 110
    assert not any(line != line.rstrip() for line in lines)
    assert all(c.isprintable() for line in lines for c in line)
    assert unstyle(text) == text
    assert "nan" not in text
    return lines


@every
def test_it_fits_a_screen(name: str) -> None:
    lines = check_screen(str(reasons(name)))
    headings = ["critical path", "segment, to its last store", "source line on the critical path", "busiest unit of a"]
    for heading in headings:
        assert sum(line.startswith(heading) for line in lines) == 1
    # what is shown of the lines is what is said
    shown = [line for line in lines if reasons(name).lines[0].where in line and reasons(name).lines[0].unit in line]
    unit, factor = unit_of(reasons(name).latency_s)  # one for all of the screen
    assert f"{reasons(name).lines[0].seconds * factor:.3f} {unit}" in shown[0]


def test_many_segments_fit_a_screen() -> None:
    """Eight layers: segments whose names differ in numbers alone are shown as one, and how many they are."""
    e = explain(Machine(built(encoder(8, 1, 64, hidden=64, heads=1, ffn=64)).program))
    assert len(e.segments) == 8 * 7
    lines = check_screen(str(e))
    rows = [line for line in lines if line.startswith("  l*.")]
    assert [row.split()[:2] for row in rows] == [[f"l*.{n}", "x8"] for n in "qkvcdhy"]
    shown = sum(float(row.split()[2]) for row in rows)
    factor = unit_of(e.latency_s)[1]
    assert shown == pytest.approx(factor * (e.latency_s - launch("encoder")), abs=0.01)


def test_many_unlike_segments_are_cut_off() -> None:
    names = [chr(ord("a") + i) * 40 for i in range(20)]
    packets = [p for i in range(20) for p in store(100 * i, 5)]
    e = explain(Machine(fig6(packets, [Buffer(n, "ddr", 100 * i, (5,), Layout.LINEAR) for i, n in enumerate(names)])))
    assert [s.name for s in e.segments] == names
    lines = check_screen(str(e))
    assert "  and 12 more" in lines


def store(at: int, size: int) -> list[Packet]:
    return [Packet.of(1, [Read(size=size, to_fu3=1)]), Packet.of(3, [Write(addr=at, size=size, from_fu1=1)])]


def fig6(packets: list[Packet], buffers: list[Buffer]) -> Program:
    return Program(FIG6, (*packets, *LAST), buffers=tuple(buffers))


@pytest.mark.parametrize(
    "name",
    ["", " ", "a\nb", "\x1b[31mred", "\x9b31m", "\u202eabc", "\t", "%s{x}", "x" * 500, "\U0001f600" * 40, "*", "1"],
)
def test_names_of_any_kind_are_shown_safely(name: str) -> None:
    """A program may come from anywhere; what it calls its buffers must not write over a terminal."""
    p = fig6(store(0, 5), [Buffer(name, "ddr", 0, (5,), Layout.LINEAR)])
    e = explain(Machine(p))
    assert e.segments[0].name == name
    check_screen(str(e))


@pytest.mark.parametrize(
    "packets",
    [[], [Packet.of(0, [])], store(0, 1), [Packet.of(1, [Read(size=0, to_fu3=1)])]],
    ids=["terminators", "opcode 0", "one element", "an empty uOP"],
)
@pytest.mark.parametrize("buffers", [[], [Buffer("y", "ddr", 0, (5,), Layout.LINEAR)]], ids=["no buffers", "buffers"])
def test_programs_that_do_next_to_nothing(packets: list[Packet], buffers: list[Buffer]) -> None:
    e = explain(Machine(fig6(packets, buffers)))
    assert sum(e.causes.values()) == pytest.approx(e.latency_s)
    assert sum(x.seconds for x in e.lines) == pytest.approx(e.latency_s)
    check_screen(str(e))
    json.dumps(e.as_json(), allow_nan=False)


def test_a_program_that_takes_no_time() -> None:
    """Every rate without bound."""
    free = FIG6.with_rates(ddr_read_gbs=np.inf, ddr_write_gbs=np.inf, add=0, dispatch=0, decode=0)
    p = dataclasses.replace(fig6(store(0, 5), [Buffer("y", "ddr", 0, (5,), Layout.LINEAR)]), overlay=free)
    e = explain(Machine(p))
    assert (e.latency_s, e.causes, e.lines) == (0, {}, [])
    check_screen(str(e))
    json.dumps(e.as_json(), allow_nan=False)


def test_a_deadlock_has_its_own_report() -> None:
    with pytest.raises(DeadlockError, match=r"FU3 .* waits to get FU1->FU3"):
        explain(Machine(fig6([store(0, 5)[1]], [])))


# -- the order in which units are stepped ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fig6_app2", "fig7_app2", "fig10", "encoder"])
@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_stepping_changes_nothing(name: str, seed: int) -> None:
    """Waits, charges, the path and what is on it, and every firing with what it depended on; only the numbers that the
    log gives them differ."""
    shuffle = random.Random(seed)

    def run(order: Callable[[list[object]], list[object]]) -> tuple[object, ...]:
        p = example(name).program
        net = ProcessNetwork(p.overlay, InstructionPath.of(p), record=True, order=order)
        done = RunTiming.of(net, net.run())
        log = done.events

        def one(i: int) -> tuple[object, ...]:
            return log.unit[i], log.steps[log.step[i]], log.start[i], log.end[i], log.number[i], log.origin[i]

        links = [(one(i), log.via[i], *(one(j) if j >= 0 else None for j in (log.before[i], log.bound[i])))
                 for i in range(len(log))]  # fmt: skip
        spent = {cause: round(seconds, 12) for cause, seconds in critical_path(done, p.overlay).items()}
        return done.latency, dict(done.busy), dict(done.amounts), dict(done.waits), Counter(links), spent

    as_they_are, shuffled = run(lambda tasks: tasks), run(lambda tasks: shuffle.sample(tasks, len(tasks)))
    assert as_they_are == shuffled


def test_of_stores_that_end_together_the_first_unit_counts() -> None:
    """OUT1 and OUT2 store to y in the same step. What is shown must not depend on the order of a set."""
    (segment,) = explain(machine("fig7_app1")).segments
    assert segment.where == "fig7_app1.rsn:32"
