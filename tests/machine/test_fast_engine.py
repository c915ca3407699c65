"""The compiled engine, compared with the executor that defines its results: all numbers and the text of reports."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.assembler.parser import parse
from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim.machine import simulate
from rsn.isa.fields import Record, bits
from rsn.isa.image import decode_image
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlay import InstructionFormat, Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.fig6 import FIG6, Add, Read, Write
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.isa.verify import dry_run, smallest_depth
from rsn.machine import jit
from rsn.machine import plan as planning
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.event_log import EventLog
from rsn.machine.executor import ProcessNetwork
from rsn.machine.fast_engine import run_traces
from rsn.machine.jit import available
from rsn.machine.plan import TimedWorkload, execute, trace_workload
from rsn.machine.steps import Par, Step, Steps
from rsn.machine.timing import RunTiming
from rsn.machine.traces import UntraceableError
from rsn.machine.unit import Unit
from rsn.scheduler import pack
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, Norm, Output
from rsn.scheduler.graph import LayerGraph as Layers
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import PAPER, STRICT, Schedule
from rsn.tests import effort
from rsn.tests.effort import full
from rsn.tests.machine.toys import toy_overlay

ENGINES = {
    "uncompiled": lambda function: function,
    "compiled": jit.compiled,
}
needs_numba = pytest.mark.skipif(not available(), reason="numba is not installed")
PROGRAMS = sorted(p.stem for p in (Path(jit.__file__).parent.parent / "programs").glob("*.rsn"))


LARGE = {"hidden": 1024, "heads": 16, "ffn": 4096}


def found(timing: RunTiming, units: Sequence[str]) -> dict[str, Any]:
    """The complete result of a run."""
    return {
        "latency": timing.latency,
        "busy": timing.busy,
        "amounts": timing.amounts,
        "starts": {u: timing.starts(u) for u in units},
        "waits": timing.waits,
        "firings": rows(timing.events),
        "chain": [c.tolist() for c in vars(timing.critical_path).values()],
    }


def rows(log: EventLog) -> list[tuple[Any, ...]]:
    """The rows of a log with their steps: the order of `log.steps` may differ between engines."""
    steps = [log.steps[i] for i in log.step]
    columns = (log.unit, log.start, log.end, log.before, log.via, log.bound, log.number, log.origin)
    return list(zip(steps, *columns, strict=True))


def same(
    machine: Overlay,
    workload: Any,
    engine: str = "compiled",
    where: Callable[[str, int], str] = lambda unit, origin: f"{unit} line {origin}",
) -> dict[str, Any] | tuple[type, str]:
    """Assert that both engines give the same result, and return it."""
    units = [u.name for u in machine.units]

    def outcome(run: Callable[[], RunTiming]) -> dict[str, Any] | tuple[type, str]:
        try:
            return found(run(), units)
        except ProgramError as e:
            return type(e), str(e)

    def defined() -> RunTiming:
        net = ProcessNetwork(machine, workload, where=where, record=True)
        return RunTiming.of(net, net.run())

    traces = trace_workload(machine, workload, where=where)
    got = outcome(lambda: run_traces(traces, machine, record=True, compiled=ENGINES[engine]))
    assert got == outcome(defined)
    if isinstance(got, dict):
        assert len(got["firings"]) == traces.firings
    return got


def parts(program: Program, depth: int | None = None) -> dict[str, Any]:
    overlay = program.overlay if depth is None else program.overlay.with_rates(mop_fifo_depth=depth)
    return {
        "machine": overlay,
        "workload": InstructionPath(overlay, program.packets, program.preloaded),
        "where": program.where,
    }


# -- programs -----------------------------------------------------------------------------------------------------


@cache
def example(name: str) -> Program:
    file = Path(jit.__file__).parent.parent / "programs" / f"{name}.rsn"
    source = parse(file.read_text(), f"{name}.rsn")
    return source if isinstance(source, Program) else pack.pack(source)


def encoder(batch: int, seq: int, hidden: int = 128, heads: int = 2, ffn: int = 256, masked: bool = False) -> Layers:
    """One transformer encoder without weights."""

    def gemm(x: str, y: str, k: int, n: int, **more: Any) -> Gemm:
        return Gemm(y, x, y, np.zeros((k, n), np.float32), np.zeros(n, np.float32), **more)

    one, norm = np.ones(hidden, np.float32), Norm(1e-6) if masked or hidden == 1024 else None
    layers = (
        *(gemm("x", y, hidden, hidden) for y in "qkv"),
        AttentionLayer("a", "q", "k", "v", "c", heads, hidden // heads, masked),
        gemm("c", "d", hidden, hidden, residual="x", residual_scale=one, norm=norm),
        gemm("d", "h", hidden, ffn, activation=ActivationFunction.GELU_TANH),
        gemm("h", "y", ffn, hidden, residual="d", residual_scale=one, norm=norm),
    )
    return Layers(batch, seq, {"x": hidden}, (Output("y"),), layers)


@cache
def packed(batch: int, seq: int, overlay: str = "xnn-base", schedule: Schedule = PAPER, **shape: Any) -> Program:
    target = {"xnn": XNN, "xnn-base": XNN_BASE}[overlay]
    return pack.pack(lower(encoder(batch, seq, **shape), target, schedule).kernels)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("engine", ["uncompiled", pytest.param("compiled", marks=needs_numba)])
def test_shipped_programs(name: str, engine: str) -> None:
    assert isinstance(same(engine=engine, **parts(example(name))), dict)


@needs_numba
@pytest.mark.parametrize(
    "program",
    [
        lambda: packed(6, 512),
        lambda: packed(1, 384),
        lambda: packed(2, 640),
        lambda: packed(3, 512, schedule=STRICT),
        lambda: packed(2, 384, **LARGE),
        lambda: packed(6, 128, "xnn"),
        lambda: packed(2, 100, "xnn", masked=True),
        lambda: packed(1, 384, "xnn", masked=True),
        lambda: packed(3, 60, "xnn", masked=True, schedule=STRICT),
    ],
)
def test_encoders(program: Callable[[], Program]) -> None:
    p = program()
    assert isinstance(same(**parts(p)), dict)


@needs_numba
def test_mask_lengths_change_nothing_of_the_traces() -> None:
    """With other run-time parameters the registers of opcode 8 differ, and so do the effect keys."""
    p = packed(2, 100, "xnn", masked=True)
    for lengths in ({}, {"len[0]": 1, "len[1]": 100}):
        same(p.overlay, InstructionPath(p.overlay, decode_image(p.bind(lengths), p.overlay), p.preloaded))


@needs_numba
@pytest.mark.parametrize(
    "program", [lambda: packed(2, 384), full(lambda: packed(6, 512, **LARGE)), lambda: example("fig6_app2")]
)
def test_shallow_fifos(program: Callable[[], Program]) -> None:
    """Same result or same deadlock report as the executor, at the smallest depth that runs and below."""
    p = program()
    verdicts = []
    for depth in range(1, 7):
        outcome = same(**parts(p, depth))
        verdicts.append(isinstance(outcome, dict))
        assert isinstance(outcome, dict) or outcome[0] is DeadlockError
    assert verdicts == sorted(verdicts)
    assert smallest_depth(p) == verdicts.index(True) + 1


@needs_numba
def test_what_the_packer_asks() -> None:
    """The packer runs without an instruction path and reads the start of every uOP."""
    kernels = lower(encoder(2, 384), XNN_BASE, PAPER).kernels
    issues = {
        unit: [u for mop in mops for u in pack._form(XNN_BASE, unit, mop).uops(mop, 0)]
        for unit, mops in kernels.sequences.items()
    }
    outcome = same(XNN_BASE, {**issues, **kernels.preloaded})
    assert isinstance(outcome, dict)
    assert len(outcome["starts"]["DDR"]) == len(issues["DDR"])


# -- mistakes -----------------------------------------------------------------------------------------------------


def forwarding(uops: int) -> list[Packet]:
    sends = [Packet.of(1, [Read(size=1, to_fu3=1)]) for _ in range(uops)]
    return [*sends, Packet.of(3, [Write(size=uops, from_fu1=1)]), *(Packet.terminator(o) for o in (1, 2, 3))]


LAST = [Packet.terminator(o) for o in (1, 2, 3)]
BROKEN = {
    "dispatch stalls": forwarding(20),
    "more sent than received": [
        Packet.of(1, [Read(size=3, to_fu3=1)]),
        Packet.of(3, [Write(size=2, from_fu1=1)]),
        *LAST,
    ],
    "less sent than received": [
        Packet.of(1, [Read(size=2, to_fu3=1)]),
        Packet.of(3, [Write(size=3, from_fu1=1)]),
        *LAST,
    ],
    "no terminator": [Packet.of(1, [Read(size=1, to_fu3=1)]), Packet.of(3, [Write(size=1, from_fu1=1)]), *LAST[:2]],
    "more after the terminator": [*LAST, *(Packet.of(2, [Add(size=1)]) for _ in range(3))],
    "so much after it that dispatch stalls": [*LAST, *(Packet.of(2, [Add(size=1)]) for _ in range(9))],
    "nothing at all": [],
    "terminators": LAST,
    "reuse 0": [Packet.of(2, [Add(size=1)] * 3, reuse=0), *LAST],
    "opcode 0": [Packet.of(0, []), *LAST],
    "windows that loop": [
        Packet.of(1, [Read(size=2, to_fu2=1), Read(size=1, to_fu3=1)], reuse=3),
        Packet.of(2, [Add(size=1), Add(size=1)], reuse=3),
        Packet.of(3, [Write(size=2, from_fu2=1), Write(size=1, from_fu1=1)], reuse=3),
        *LAST,
    ],
    "a window cut short": [
        dataclasses.replace(p, header=p.header.replace(window=3)) if i == 0 else p
        for i, p in enumerate([Packet.of(1, [Read(size=1, to_fu3=1)]), Packet.of(3, [Write(size=1, from_fu1=1)])])
    ],
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("engine", ["uncompiled", pytest.param("compiled", marks=needs_numba)])
def test_verdicts(name: str, engine: str) -> None:
    same(FIG6, InstructionPath(FIG6, BROKEN[name]), engine)


@needs_numba
def test_a_broken_encoder_is_reported_the_same() -> None:
    """One packet is removed."""
    p = packed(1, 384)
    for i in range(0, len(p.packets), 7):
        packets = p.packets[:i] + p.packets[i + 1 :]
        same(XNN_BASE, InstructionPath(XNN_BASE, packets, p.preloaded))


# -- small random networks ----------------------------------------------------------------------------------------


class Toy(Unit):
    """A unit whose uOP is a list of steps."""

    def kernel(self, uop: Any) -> Steps:
        for step in uop:
            if isinstance(step, list):
                yield Par(*(self.kernel(lane) for lane in step))
            else:
                amount, gets, puts, words, whole = step
                yield Step(
                    "us",
                    amount,
                    gets=tuple(self.source(s) for s in gets),
                    puts=tuple(self.sink(d) for d in puts),
                    words=words,
                    needs_whole_token=whole,
                )


NAMES = "ABC"


def toy(depths: Mapping[tuple[str, str], int], unit: type[Unit] = Toy) -> Overlay:
    units = tuple(UnitSpec(n, n, 0, unit) for n in NAMES)
    streams = tuple(Stream(a, b, d) for (a, b), d in depths.items())
    return toy_overlay(units, streams)


@st.composite
def networks(draw: st.DrawFn) -> tuple[dict[tuple[str, str], int], dict[str, list[Any]]]:
    """Three units that exchange words in pieces of random size, with and without deadlock."""
    edges = [(a, b) for a in NAMES for b in NAMES if a != b]
    depths = {e: draw(st.integers(1, 6)) for e in draw(st.permutations(edges))[: draw(st.integers(1, 6))]}

    def step(unit: str) -> st.SearchStrategy[Any]:
        sources = [a for a, b in depths if b == unit]
        sinks = [b for a, b in depths if a == unit]
        some = lambda names: st.lists(st.sampled_from(names), unique=True, max_size=2) if names else st.just([])  # noqa: E731
        amount = st.sampled_from([0, 1, 2.5, 0.1, 1 / 3])
        return st.tuples(amount, some(sources), some(sinks), st.sampled_from([1, 1, 1, 2, 3]), st.booleans())

    def uop(unit: str) -> st.SearchStrategy[Any]:
        steps = st.lists(step(unit), max_size=4)
        lane = st.lists(step(unit) | st.lists(steps, max_size=2), max_size=3)
        return st.lists(step(unit) | st.lists(lane, max_size=3), max_size=5)

    return depths, {n: draw(st.lists(uop(n), max_size=4)) for n in NAMES}


@st.composite
def chatter(draw: st.DrawFn) -> tuple[dict[tuple[str, str], int], dict[str, list[Any]]]:
    """Sends equal receives on each stream, so that most runs are complete."""
    edges = [("A", "B"), ("B", "C"), ("A", "C"), ("C", "A")]
    depths = {e: draw(st.integers(2, 7)) for e in edges}
    programs: dict[str, list[Any]] = {n: [] for n in NAMES}
    for a, b in draw(st.lists(st.sampled_from(edges), max_size=12)):
        amount = st.sampled_from([0, 1, 2.5, 0.1, 1 / 3])
        put, get = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (3, 2)]))
        words = put * get * draw(st.integers(1, 2))
        sends = [(draw(amount), [], [b], put, draw(st.booleans())) for _ in range(words // put)]
        takes = [(draw(amount), [a], [], get, draw(st.booleans())) for _ in range(words // get)]
        for unit, steps in ((a, sends), (b, takes)):
            if programs[unit] and draw(st.booleans()):  # in a lane beside the unit's previous uOP
                programs[unit][-1] = [[steps, programs[unit][-1]]]
            else:
                programs[unit].append(steps)
    return depths, programs


@effort.in_full
@pytest.mark.parametrize("engine", ["uncompiled", pytest.param("compiled", marks=needs_numba)])
@pytest.mark.parametrize("kind", [networks, chatter])
def test_random_networks(engine: str, kind: Callable[[], st.SearchStrategy[Any]]) -> None:
    @settings(max_examples=effort.cases(150, 15) if engine == "compiled" else effort.cases(40, 4))
    @given(kind())
    def check(case: tuple[dict[tuple[str, str], int], dict[str, list[Any]]]) -> None:
        depths, programs = case
        same(toy(depths), programs, engine)

    check()


@st.composite
def images(draw: st.DrawFn) -> tuple[list[Packet], int]:
    """Valid packets for the overlay of Fig. 6, some of them removed, and a FIFO depth."""
    packets = []
    for _ in range(draw(st.integers(0, 5))):
        n, window, reuse = draw(st.integers(0, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
        if draw(st.booleans()):
            mops: list[list[Record]] = [[Read(size=n, to_fu3=1)] * window, [], [Write(size=n, from_fu1=1)] * window]
        else:
            mops = [[Read(size=n, to_fu2=1)] * window, [Add(size=n)] * window, [Write(size=n, from_fu2=1)] * window]
        packets += [Packet.of(i + 1, m, reuse=reuse) for i, m in enumerate(mops) if m]
    packets += [Packet.of(0, []), *LAST]
    if draw(st.booleans()):
        packets = draw(st.permutations(packets))
    if packets and draw(st.booleans()):
        packets.pop(draw(st.integers(0, len(packets) - 1)))
    return packets, draw(st.integers(1, 3))


@effort.in_full
@pytest.mark.parametrize("engine", ["uncompiled", pytest.param("compiled", marks=needs_numba)])
def test_random_images(engine: str) -> None:
    @settings(max_examples=effort.cases(100, 10) if engine == "compiled" else effort.cases(40, 4))
    @given(images())
    def check(case: tuple[list[Packet], int]) -> None:
        packets, depth = case
        same(FIG6.with_rates(mop_fifo_depth=depth), InstructionPath(FIG6, packets), engine)

    check()


# -- what is traced, and what is not ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_keys_leave_nothing_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing every uOP gives the same traces as tracing one uOP of each key."""
    check_keys(example(name), monkeypatch)


@pytest.mark.parametrize(
    "program", [lambda: packed(1, 384), lambda: packed(2, 640), lambda: packed(2, 100, "xnn", masked=True)]
)
def test_keys_leave_nothing_out_of_an_encoder(program: Callable[[], Program], monkeypatch: pytest.MonkeyPatch) -> None:
    check_keys(program(), monkeypatch)


def check_keys(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    short = trace_workload(**parts(program))
    for spec in program.overlay.units:
        monkeypatch.setattr(spec.behaviour, "effect_key", lambda unit, uop: None)
    long = trace_workload(**parts(program))
    for field in dataclasses.fields(short):
        if field.name != "net":
            np.testing.assert_array_equal(getattr(short, field.name), getattr(long, field.name))


def test_registers_decide_which_exchanges_there_are() -> None:
    """The same MemC uOP has other steps after its registers were set."""
    softmax = f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=1, softmax=1)
    issues = {
        "MemC0": [softmax, f.MemCConfig(alone=1), softmax, f.MemCConfig(max_sub=1), softmax, f.MemCConfig(), softmax]
    }
    traces = trace_workload(XNN, issues)
    p = list(traces.net.progress).index("MemC0")
    shared, _, alone, _, larger, _, again = traces.items[traces.bounds[p] : traces.bounds[p + 1]].tolist()
    assert shared == again
    assert len({shared, alone, larger}) == 3


class Talker(Toy):
    """A sends B a control token: the number of its steps."""

    def kernel(self, uop: Any) -> Steps:
        if uop == "tell":
            yield Step(puts=(self.sink("B"),), send=(3,))
        else:
            (times,) = yield Step(gets=(self.source("A"),))
            for _ in range(times):
                yield Step("us")


def test_control_tokens_need_a_run() -> None:
    overlay = toy({("A", "B"): 1}, Talker)
    program = {"A": ["tell"], "B": ["listen"]}
    with pytest.raises(UntraceableError):
        trace_workload(overlay, program)
    assert execute(overlay, program).latency == pytest.approx(3e-6)


def test_a_kernel_that_raises_does_so_only_if_it_is_reached() -> None:
    """Behind a deadlock it is not reached."""
    overlay = toy({("A", "B"): 1})
    bad = [(1, ["C"], [], 1, False)]
    with pytest.raises(ProgramError, match="no stream C->A"):
        execute(overlay, {"A": [bad]})
    with pytest.raises(DeadlockError):
        execute(overlay, {"A": [[(1, [], ["B"], 1, False)] * 2, bad]})


def test_a_uop_with_too_many_steps_is_not_traced() -> None:
    """A billion elements into a stream of two: the executor finds the deadlock at once."""
    packets = [Packet.of(1, [Read(size=(1 << 30) - 1, to_fu3=1)]), *LAST]
    with pytest.raises(DeadlockError):
        execute(FIG6, InstructionPath(FIG6, packets))
    with pytest.raises(UntraceableError):
        trace_workload(FIG6, InstructionPath(FIG6, packets))


def test_an_inherited_key_is_not_used_for_an_overridden_kernel() -> None:
    """`Counting` overrides `kernel` and inherits `effect_key`."""

    class Once(Toy):
        def effect_key(self, uop: Any) -> Any:
            return len(uop)

    class Counting(Once):
        count = 0

        def kernel(self, uop: Any) -> Steps:
            self.count += 1
            for _ in range(self.count):
                yield Step("us")

    assert trace_workload(toy({}, Once), {"A": [[(1, [], [], 1, False)]] * 3}).firings == 3
    assert trace_workload(toy({}, Counting), {"A": [[]] * 3}).firings == 1 + 2 + 3


# -- user-defined units, with an instruction path -----------------------------------------------------------------


class Pulse(Record, words=1):
    """Unit A sends `n` words to B; unit B receives `n` words from A."""

    n: int = bits(0, 0, 16, "words")
    step: int = bits(0, 16, 8, "words more in each iteration")


def growing(mop: Pulse, iteration: int) -> Any:
    yield mop.n + iteration * mop.step


class Pulsing(Unit):
    def kernel(self, uop: int) -> Steps:
        for _ in range(uop):
            if self.name == "A":
                yield Step("us", 1, puts=(self.sink("B"),))
            else:
                yield Step("us", 2, gets=(self.source("A"),))


class Keyed(Pulsing):
    def kernel(self, uop: int) -> Steps:
        return super().kernel(uop)

    def effect_key(self, uop: int) -> int:
        return uop


class Remembering(Pulsing):
    """Moves as many words as it has executed uOPs, and ignores the uOP's number."""

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.done = 0

    def kernel(self, uop: int) -> Steps:
        self.done += 1
        return super().kernel(self.done)


@needs_numba
@pytest.mark.parametrize("unit", [Pulsing, Keyed, Remembering])
@pytest.mark.parametrize("addresses", [None, lambda mop, reuse: None])
def test_uops_that_differ_from_iteration_to_iteration(unit: type[Unit], addresses: Any) -> None:
    """They are traced correctly even if the format promises, by `addresses`, that iterations do not differ."""
    formats = [
        InstructionFormat(n, i, n, Pulse, True, 1, growing, addresses=addresses) for i, n in ((1, "A"), (2, "B"))
    ]
    overlay = toy_overlay([UnitSpec(n, n, 0, unit) for n in "AB"], [Stream("A", "B", 2)], formats=formats)
    window = [Pulse(n=2, step=1), Pulse(n=1)]
    packets = [Packet.of(o, window, reuse=3) for o in (1, 2)] + [Packet.terminator(o) for o in (1, 2)]
    outcome = same(overlay, InstructionPath(overlay, packets))
    assert isinstance(outcome, dict)
    words = sum(range(1, 7)) if unit is Remembering else 2 + 3 + 4 + 3
    assert outcome["amounts"]["us"] == 3 * words


# -- one plan, many runs ------------------------------------------------------------------------------------------


@pytest.mark.long
@needs_numba
def test_other_rates_need_no_other_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NUMBA_MIN_FIRINGS", 0)
    program = parts(packed(6, 512, **LARGE))
    overlay = program.pop("machine")
    plan = TimedWorkload(overlay, **program)
    for changes in ({}, {"ddr_read_gbs": 42}, {"mme_tile_us": 0.5, "decode": 3}, {"mop_fifo_depth": 4}, {}):
        other = overlay.with_rates(**changes)
        net = ProcessNetwork(other, **program)
        assert plan.run(other).latency == net.run()
    with pytest.raises(DeadlockError) as e:
        plan.run(overlay.with_rates(mop_fifo_depth=1))
    with pytest.raises(DeadlockError) as defined:
        ProcessNetwork(overlay.with_rates(mop_fifo_depth=1), **program).run()
    assert str(e.value) == str(defined.value)
    assert plan.run().latency == ProcessNetwork(overlay, **program).run()
    with pytest.raises(ValueError, match="not recorded"):
        _ = plan.run().critical_path
    with pytest.raises(ValueError, match="other rates or streams"):
        plan.run(FIG6)


@pytest.mark.parametrize("name", ["fig6_app2", "fig10"])
def test_without_numba_nothing_changes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = example(name)
    monkeypatch.setattr(planning, "NUMBA_MIN_FIRINGS", 0)
    fast = simulate(p), dry_run(p), smallest_depth(p)
    monkeypatch.setattr(planning, "available", lambda: False)
    slow = simulate(p), dry_run(p), smallest_depth(p)
    assert dataclasses.asdict(fast[0]) == dataclasses.asdict(slow[0])
    assert fast[1:] == slow[1:]


@needs_numba
def test_numba_that_fails_to_load_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NUMBA_MIN_FIRINGS", 0)
    monkeypatch.setitem(sys.modules, "numba", None)  # importing it raises ImportError
    jit.loads.cache_clear()
    try:
        assert simulate(example("fig6_app1")).latency_s > 0
    finally:
        jit.loads.cache_clear()


def test_numba_is_loaded_only_for_long_runs() -> None:
    """Loading it takes longer than most programs run."""
    code = """
import sys
import rsn.cli.main, rsn.hw.sim.machine, rsn.isa.verify
from rsn.machine.plan import execute
from rsn.isa.overlays.fig6 import FIG6
execute(FIG6, {})
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
