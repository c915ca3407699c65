"""A machine that is given raw memory and parameters only computes what the same machine does when it is given a
program: so what the runner puts where, and reads from where, is right to the byte."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rsn.base.errors import BoardError, ProgramError
from rsn.host import tensors
from rsn.host.boards import lock, named, open_board, xrt
from rsn.host.boards.device import BoardBusy, BoardLost, BoardTimeout
from rsn.host.boards.memories import MemoryBanks
from rsn.host.boards.profile import VCK190
from rsn.host.boards.session import Session
from rsn.host.boards.xrt import XrtBoard
from rsn.host.runner import Runner
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.program import Buffer, Layout, Program, Role
from rsn.scheduler.build import Built, build
from rsn.scheduler.schedule import PAPER
from rsn.tests.effort import long
from rsn.tests.hw.examples import encoder, example

from .faulty import Faulty, raising
from .programs import SEQ, X, attention, base
from .xclbins import Made


def outputs(built: Built, x: np.ndarray, board: str, lengths: tuple[int, ...] = ()) -> np.ndarray:
    with Runner(built.program, weights=built.weights, board=board) as runner:
        return runner.run({"x": x}, {f"len[{i}]": n for i, n in enumerate(lengths)}).outputs["y"]


@pytest.mark.parametrize(("board", "device"), [("sim", "vck190@sim"), ("csim", "vck190@csim")])
@pytest.mark.parametrize("lengths", [(SEQ, SEQ), (17, SEQ), (1, 129)])
def test_same_bits_as_the_machine_itself(board: str, device: str, lengths: tuple[int, int]) -> None:
    expected = outputs(attention(), X, board, lengths)
    assert np.ptp(expected) > 1
    np.testing.assert_array_equal(outputs(attention(), X, device, lengths), expected)


def test_an_input_of_another_size_is_refused() -> None:
    """One element would fill the whole buffer."""
    memories = MemoryBanks(base().program, base().weights)
    size = base().program.buffer("x").size
    memories.fill({"x": np.ones(size, np.float32)})
    for wrong in (1, size - 1):
        with pytest.raises(ProgramError, match=rf"x has shape \({wrong},\); its buffer takes \({size},\)"):
            memories.fill({"x": np.zeros(wrong, np.float32)})
    name = next(iter(base().weights))
    with pytest.raises(ProgramError, match=rf"{re.escape(name)} has shape \(1,\)"):
        MemoryBanks(base().program, {**base().weights, name: np.zeros(1, np.float32)})


@pytest.mark.parametrize("device", ["vck190@sim", "vck190-isca25@sim"])
def test_a_base_program_runs_on_either_bitstream(device: str) -> None:
    np.testing.assert_array_equal(outputs(base(), X, device), outputs(base(), X, "sim"))


def test_an_unextended_program_of_the_larger_overlay_runs_on_the_published_image() -> None:
    larger = dataclasses.replace(base().program, overlay=VCK190.overlay)
    assert not larger.extended
    with Runner(larger, weights=base().weights, board="vck190-isca25@sim") as runner:
        np.testing.assert_array_equal(runner.run({"x": X}).outputs["y"], outputs(base(), X, "sim"))


@pytest.mark.parametrize(("board", "device"), [("sim", "vck190-xnn2@sim"), long("csim", "vck190-xnn2@csim")])
def test_same_bits_on_xnn2(board: str, device: str) -> None:
    """Attention and products that MMEs sum, by op lists with repeats."""
    built = attention(XNN2)
    assert any(op.first_depth > 1 for ops in built.program.preloaded.values() for op in ops)
    np.testing.assert_array_equal(outputs(built, X, device), outputs(built, X, board))


@pytest.mark.parametrize("name", ["fig10", "encoder"])
def test_programs_of_every_kind(name: str) -> None:
    """Fig. 10, written by hand; two encoder layers with residuals, whose previous-layer weights some tiles hold."""
    e = example(name)
    weights, inputs = ({b.name: e.given[b.name] for b in e.program.with_role(r)} for r in (Role.WEIGHT, Role.INPUT))
    results = []
    for name in ("sim", "vck190@sim"):
        board = open_board(name)
        board.load(e.program, weights)
        results.append(board.run(e.program.image, inputs)[0])
        board.close()
    assert results[0]
    for output, flat in results[0].items():
        np.testing.assert_array_equal(results[1][output], flat)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    faulty = Faulty()
    monkeypatch.setitem(named.IN_PROCESS, "sim", lambda profile: faulty)
    return faulty


def test_a_run_moves_inputs_and_outputs_alone(device: Faulty) -> None:
    built = attention()
    with Runner(built.program, weights=built.weights, board="vck190@sim") as runner:
        runner.run({"x": X})
        loaded = device.written
        weights = sum(4 * b.size for b in built.program.with_role(Role.WEIGHT))
        assert loaded > weights
        runner.run({"x": X})
        assert device.written - loaded == 4 * built.program.buffer("x").size
        loaded = device.written
        runner.run({"x": X}, {"len[0]": 17})
        assert device.written - loaded == 4 * built.program.buffer("x").size + built.program.image.nbytes
        assert device.made["update_parameter"] == 384


def test_weights_under_other_buffers(device: Faulty) -> None:
    """Weights count, wherever they are declared; what two buffers share is cleared once."""
    p = base().program
    whole = [Buffer(name, "lpddr", 0, (p.bank_size("lpddr"),), Layout.LINEAR) for name in ("before", "behind")]
    covered = dataclasses.replace(base(), program=dataclasses.replace(p, buffers=(whole[0], *p.buffers, whole[1])))
    np.testing.assert_array_equal(outputs(covered, X, "vck190@sim"), outputs(base(), X, "sim"))
    weights, cleared = sizes(p)
    written = 36 + weights + cleared + 4 * whole[0].size + 4 * p.buffer("x").size + p.image.nbytes  # 36: the probe
    assert device.written == written


def test_large_tensors_may_take_longer(device: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes from a mapped file on a slow card does not count as a driver that is stuck."""
    limits: list[float | None] = []
    plain = Session.bounded
    monkeypatch.setattr(Session, "bounded", lambda self, calls, s=None: (limits.append(s), plain(self, calls, s))[1])
    moved = [4 * attention().program.buffer(name).size for name in "xy"]
    for large, expected in ((min(moved), [xrt.LOADING_S] * 2), (max(moved) + 1, [None] * 2)):
        monkeypatch.setattr(xrt, "LARGE", large)
        with Runner(attention().program, weights=attention().weights, board="vck190@sim") as runner:
            limits.clear()
            runner.run({"x": X})
            assert [limits[0], limits[-1]] == expected


def test_numbers_that_are_none_give_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    x = X.copy()
    x[0, 0] = np.inf
    expected = outputs(base(), x, "sim")
    assert np.isnan(expected).any()
    np.testing.assert_array_equal(outputs(base(), x, "vck190@sim"), expected)
    assert not recwarn.list


def sizes(program: Program) -> tuple[int, int]:
    """Bytes of the weights, and of what begins as 0."""
    weights = sum(4 * b.size for b in program.with_role(Role.WEIGHT))
    return weights, sum(4 * b.size for b in program.buffers) - weights


def test_weights_that_are_there_already_stay(device: Faulty) -> None:
    built, other = attention(), attention(seed=5)
    weights, cleared = sizes(built.program)
    changed = {**built.weights, "q.weight": other.weights["q.weight"]}
    board = XrtBoard(Session(VCK190, device))
    for given, moved in ((built.weights, weights), (dict(built.weights), 0), (changed, weights), (changed, 0)):
        written = device.written
        board.load(built.program, given)
        assert device.written - written - (36 if given is built.weights else 0) == moved + cleared  # 36: the probe
    x = {"x": tensors.pack(built.program.buffer("x"), X)}
    got = board.run(built.program.image, x)[0]["y"]
    board.close()
    fresh = XrtBoard(Session(VCK190, Faulty()))
    fresh.load(built.program, changed)
    np.testing.assert_array_equal(got, fresh.run(built.program.image, x)[0]["y"])
    fresh.close()


def results(board: XrtBoard, built: Built) -> np.ndarray:
    x = tensors.pack(built.program.buffer("x"), X)
    return board.run(built.program.image, {"x": x})[0]["y"]


def expected(built: Built) -> np.ndarray:
    board = XrtBoard(Session(VCK190, Faulty()))
    board.load(built.program, built.weights)
    try:
        return results(board, built)
    finally:
        board.close()


def test_programs_resident_beside_each_other(device: Faulty) -> None:
    """Three on one device, two of them with the same weights; each run moves its input and its image alone."""
    session = Session(VCK190, device)
    builts = (attention(), base(), attention())
    boards = [XrtBoard(session) for _ in builts]
    for board, built in zip(boards, builts, strict=True):
        written = device.written
        board.load(built.program, built.weights)
    assert device.written - written == sizes(attention().program)[1]  # the last one's weights were there
    assert device.made["open"] == 1
    assert len(device.inner._buffers) == 3 * 3 - 1
    for i in (0, 1, 2, 0, 2, 1):
        np.testing.assert_array_equal(results(boards[i], builts[i]), expected(builts[i]))
    boards[0].close()
    np.testing.assert_array_equal(results(boards[2], builts[2]), expected(builts[2]))  # has its weights still
    device.next("wait", raising(BoardLost("gone")))
    with pytest.raises(BoardLost):
        results(boards[1], builts[1])
    assert not device.open_now
    for i in (2, 1):  # what one has lost the other uploads anew, too
        np.testing.assert_array_equal(results(boards[i], builts[i]), expected(builts[i]))
    boards[1].close()
    assert device.open_now
    boards[2].close()
    boards[2].close()
    assert not device.open_now


def test_one_network_at_several_batch_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a server has them: one device, one copy of the weights, the programs beside each other."""
    device = Faulty()
    monkeypatch.setitem(named.REAL, "xrt", lambda index: device)
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    network = encoder(1, 1, 128)
    sizes = [build(dataclasses.replace(network, batch=n), XNN, PAPER) for n in (1, 2)]
    x = np.random.default_rng(0).standard_normal((2, 128, 128)).astype(np.float32)
    xclbin = Made().write(tmp_path / "a.xclbin")
    programs, weights = [b.program for b in sizes], sizes[0].weights
    with Runner(programs, weights=weights, board="vck190", xclbin=xclbin) as runner:
        got = [runner.run({"x": x[:1]}), runner.run({"x": x}), runner.run({"x": x[1:]})]
        assert len(device.inner._buffers) == 2 * 3 - 1
        assert device.made["open"] == 1
    with Runner(programs[1], weights=weights) as runner:
        (name, expected) = next(iter(runner.run({"x": x}).outputs.items()))
    for result, wanted in zip(got, (expected[:1], expected, expected[1:]), strict=True):
        np.testing.assert_allclose(result.outputs[name], wanted, atol=1e-5)
    assert not device.open_now


def test_no_room_beside_another(device: Faulty) -> None:
    """The one that is there stays; who comes too late is told that it is a matter of room."""
    session = Session(VCK190, device)
    first, second = XrtBoard(session), XrtBoard(session)
    first.load(attention().program, attention().weights)
    device.inner._memory = sum(len(d) for d, _ in device.inner._buffers.values()) + (64 << 10)
    with pytest.raises(BoardBusy, match=r"no room for \d+ bytes .*, beside 3 buffers of other programs"):
        second.load(base().program, base().weights)
    assert len(device.inner._buffers) == 3
    np.testing.assert_array_equal(results(first, attention()), expected(attention()))
    first.close()
    assert not device.open_now
    second.load(base().program, base().weights)
    np.testing.assert_array_equal(results(second, base()), expected(base()))
    second.close()


def test_boards_of_one_name_share_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In one process, while somebody uses it; and another file is another bitstream, which has to wait."""
    made: list[Faulty] = []

    def device(index: int) -> Faulty:
        made.append(Faulty())
        return made[-1]

    monkeypatch.setitem(named.REAL, "xrt", device)
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))
    ours, copy = (str(Made().write(tmp_path / f"{n}.xclbin")) for n in ("a", "b"))
    boards = [open_board("vck190", xclbin=f) for f in (ours, ours, copy)]
    for board in boards[:2]:
        board.load(base().program, base().weights)
    with pytest.raises(BoardBusy, match=f"in use by process {os.getpid()}"):
        boards[2].load(base().program, base().weights)
    assert [d.made["open"] for d in made if d.made] == [1]
    for board in boards:
        board.close()
    boards[2].load(base().program, base().weights)
    boards[2].close()
    assert not any(d.open_now for d in made)


def test_another_program_takes_the_place_of_one(device: Faulty) -> None:
    """Smaller, then larger: buffers stay or grow, and memory that nobody has written is 0 again."""
    board = XrtBoard(Session(VCK190, device))
    large, small = attention(), base()
    tensors = {b.name: np.full(b.size, 0.5, np.float32) for b in large.program.with_role(Role.INPUT)}
    expected = {}
    for built in (large, small):
        fresh = XrtBoard(Session(VCK190, Faulty()))
        fresh.load(built.program, built.weights)
        flat = {"x": np.resize(tensors["x"], built.program.buffer("x").size)}
        expected[id(built)] = fresh.run(built.program.image, flat)[0]["y"]
    for built in (small, large, small, large):
        board.load(built.program, built.weights)
        flat = {"x": np.resize(tensors["x"], built.program.buffer("x").size)}
        np.testing.assert_array_equal(board.run(built.program.image, flat)[0]["y"], expected[id(built)])
    assert len(device.inner._buffers) == 3
    board.close()
    assert not device.open_now


# The proof is worth something only if a runner that forgets a thing does not get the right results.


def forgetful(device: Faulty, call: str, number: int) -> np.ndarray:
    """What comes out when one call of the runner's is left out."""
    built = attention()
    board = XrtBoard(Session(dataclasses.replace(VCK190, timeout_s=0.3), device, now=device.clock))
    device.next(call, lambda real: None, number)
    board.load(built.program, built.weights)
    return board.run(built.program.image, {"x": tensors.pack(built.program.buffer("x"), X)})[0]["y"]


def test_a_tile_that_is_told_nothing_stops_the_machine(device: Faulty) -> None:
    with pytest.raises(BoardTimeout, match=r"did not end in 0\.3 s"):
        forgetful(device, "update_parameter", 384)


def test_a_graph_that_does_not_run_stops_the_machine(device: Faulty) -> None:
    with pytest.raises(BoardTimeout, match=r"did not end in 0\.3 s"):
        forgetful(device, "run_graph", 1)


def test_a_graph_that_nobody_waited_for_cannot_be_run(device: Faulty) -> None:
    board = XrtBoard(Session(VCK190, device))
    board.load(base().program, base().weights)
    device.next("wait_graph", lambda real: True)
    results(board, base())
    with pytest.raises(BoardError, match="wait for the end of its iteration first"):
        results(board, base())


def test_a_reset_in_mid_iteration_leaves_the_array_stuck(device: Faulty) -> None:
    def stopped(run: Callable[[], object]) -> object:
        run()
        device.inner.reset_graph()
        return run()

    board = XrtBoard(Session(dataclasses.replace(VCK190, timeout_s=0.3), device, now=device.clock))
    board.load(base().program, base().weights)
    device.next("run_graph", stopped)
    with pytest.raises(BoardTimeout, match=r"did not end in 0\.3 s"):
        results(board, base())


@pytest.mark.parametrize("buffer", ["q.weight", "v.bias", "x"])
def test_a_buffer_that_was_not_written_shows(device: Faulty, buffer: str) -> None:
    """Memory is full of NaN before; an input is 0 before the first."""
    buffers = [b.name for b in attention().program.buffers]
    before = len(buffers) if buffer == "x" else buffers.index(buffer)
    got = forgetful(device, "write", 1 + before + 1)  # the probe's image is written first
    assert not got.any() if buffer == "x" else np.isnan(got).any()


def test_base_needs_no_fingerprint() -> None:
    board = XrtBoard(Session(dataclasses.replace(VCK190, overlay=XNN_BASE, fingerprint=""), Faulty()))
    board.load(base().program, base().weights)
    assert "fingerprint" not in board._session.facts
    board.close()
