"""The simulator as a board: how long a run takes is worked out once for each choice of parameters, and stays right."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import numpy as np
import pytest

from rsn.base.errors import BoardError
from rsn.host.boards.sim import SimBoard
from rsn.host.runner import Runner
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import XNN
from rsn.isa.overlays.fig6 import FIG6, Read, Write
from rsn.isa.packet import Packet
from rsn.isa.program import Buffer, Layout, Parameter, Patch, Program, Role
from rsn.scheduler.build import Built, build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER

SEQ = 300
rng = np.random.default_rng(4)


@pytest.fixture(scope="module")
def built() -> Built:
    """Masked attention: the lengths change what is computed, not how long it takes."""
    qkv = [
        Gemm(n, "x", n, rng.standard_normal((64, 64)).astype(np.float32) / 8, np.zeros(64, np.float32)) for n in "qkv"
    ]
    layers = (*qkv, AttentionLayer("a", "q", "k", "v", "y", 1, 64, True))
    return build(LayerGraph(2, SEQ, {"x": 64}, (Output("y"),), layers), XNN, PAPER)


X = rng.standard_normal((2, SEQ, 64)).astype(np.float32)
LENGTHS = [(300, 300), (17, 300), (300, 17), (1, 1), (129, 128)]


def named(lengths: tuple[int, int]) -> dict[str, int]:
    return {f"len[{i}]": n for i, n in enumerate(lengths)}


def test_a_parameter_may_change_the_time() -> None:
    """A copy of n elements, from 1 to 100: the right time for each, in whatever order, remembered or not."""

    def patch(packet: int) -> Patch:
        return Patch(packet, 0, "size", 0, 100)

    packets = (
        Packet.of(1, [Read(size=0, to_fu3=1)]),
        Packet.of(3, [Write(addr=100, size=0, from_fu1=1)]),
        *(Packet.terminator(o) for o in (1, 2, 3)),
    )
    x, y = (
        Buffer(n, "ddr", at, (100,), Layout.LINEAR, r) for n, at, r in (("x", 0, Role.INPUT), ("y", 100, Role.OUTPUT))
    )
    p = Program(FIG6, packets, buffers=(x, y), parameters=(Parameter("n", 1, 100, 50, (patch(0), patch(1))),))
    board = SimBoard()
    board.load(p, {})
    flat = np.arange(1, 101, dtype=np.float32)
    took: dict[int, float] = {}
    for n in (50, 1, 100, 50, *range(1, 20), 100, 1):
        outputs, run = board.run(p.bind({"n": n}), {"x": flat})
        assert run.latency_s == Machine(p, p.bind({"n": n})).run().latency_s
        took[n] = run.latency_s
        assert run.bytes["ddr_read"] == 4 * n
        np.testing.assert_array_equal(outputs["y"][:n], flat[:n])
    assert took[100] - took[50] == pytest.approx(50 / XNN.clock_hz)  # an element a cycle
    assert p.bind({}).tobytes() == p.bind({"n": 50}).tobytes()


def test_each_choice_of_parameters_has_its_own_time_and_result(built: Built) -> None:
    """In turn, twice, as if each were the first."""
    with Runner(built.program, weights=built.weights) as runner:
        for lengths in (*LENGTHS, *LENGTHS):
            got = runner.run({"x": X}, named(lengths))
            fresh = Machine(built.program, built.program.bind(named(lengths))).run()
            assert vars(got.run) == vars(fresh)
            with Runner(built.program, weights=built.weights) as first:
                np.testing.assert_array_equal(got.outputs["y"], first.run({"x": X}, named(lengths)).outputs["y"])
        assert not np.array_equal(
            runner.run({"x": X}, named((300, 300))).outputs["y"], runner.run({"x": X}, named((17, 300))).outputs["y"]
        )


def test_repeated_runs_are_equal_and_are_timed_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Machine] = []
    init = Machine.__init__

    def counted(machine: Machine, *args: object, **options: object) -> None:
        made.append(machine)
        init(machine, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Machine, "__init__", counted)
    with Runner(built.program, weights=built.weights) as runner:
        results = [runner.run({"x": X}, named((17, 300))) for _ in range(3)]
        assert len(made) == 1
        runner.run({"x": X}, named((18, 300)))
        assert len(made) == 2
    for r in results[1:]:
        assert vars(r.run) == vars(results[0].run)
        np.testing.assert_array_equal(r.outputs["y"], results[0].outputs["y"])


def test_other_inputs_give_other_results_at_the_same_time(built: Built) -> None:
    with Runner(built.program, weights=built.weights) as runner:
        one, other, again = (runner.run({"x": x}) for x in (X, 2 * X, X))
    assert vars(one.run) == vars(other.run)
    assert not np.array_equal(one.outputs["y"], other.outputs["y"])
    np.testing.assert_array_equal(one.outputs["y"], again.outputs["y"])


def test_only_the_last_few_are_remembered(built: Built) -> None:
    board = SimBoard()
    board.load(built.program, built.weights)
    packed = {"x": np.zeros(built.program.buffer("x").size, np.float32)}

    def run(first: int) -> weakref.ref[Machine]:
        words = built.program.bind({"len[0]": first})
        board.run(words, packed)
        return weakref.ref(board._machines[words.tobytes()])

    machines = {n: run(n) for n in range(1, SimBoard.REMEMBERED)}
    assert run(1)() is machines[1]()  # used again, so not the next to go
    machines[0] = run(99)
    run(100)
    gc.collect()
    alive = {n for n, machine in machines.items() if machine() is not None}
    assert alive == set(machines) - {2}


def test_a_stop_leaves_the_board_fit_to_run(built: Built) -> None:
    with Runner(built.program, weights=built.weights) as runner:
        before = runner.run({"x": X})
        stopped = runner.stop({"x": 3 * X}, "MemC0", 1)
        after = runner.run({"x": X})
    assert (stopped.unit, stopped.number) == ("MemC0", 1)
    np.testing.assert_array_equal(before.outputs["y"], after.outputs["y"])
    assert vars(before.run) == vars(after.run)


def test_another_program_is_another_board(built: Built) -> None:
    board = SimBoard()
    board.load(built.program, built.weights)
    words = built.program.bind({})
    packed = {"x": np.zeros(built.program.buffer("x").size, np.float32)}
    _, one = board.run(words, packed)
    slower = built.program.overlay.with_rates(ddr_read_gbs=1)
    board.load(dataclasses.replace(built.program, overlay=slower), built.weights)
    _, other = board.run(words, packed)
    assert other.latency_s > one.latency_s
    board.close()
    with pytest.raises(BoardError, match="no program is loaded"):
        board.run(words, packed)
    with pytest.raises(BoardError, match="no program is loaded"):
        board.stop(words, packed, "DDR", 0)
