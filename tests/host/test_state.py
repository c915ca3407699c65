"""Buffers that keep their contents between runs: on every board in this process, and what happens when one fails."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import numpy.typing as npt
import pytest

from rsn.base.errors import BoardError, StateLost, TensorError
from rsn.host.boards.sim import SimBoard
from rsn.host.runner import Runner
from rsn.host.serving import Serving
from rsn.hw.sim.machine import Machine
from rsn.tests.isa.test_rows import appending

from .rigged import Rig

Array = npt.NDArray[np.float32]
BUILT = appending(1, 1, 128, 20)
KEPT = np.arange(20 * 128, dtype=np.float32).reshape(1, 20, 128)


def row(value: float) -> dict[str, Array]:
    return {"x": np.full((1, 1, 128), value, np.float32)}


@pytest.mark.parametrize("board", ["sim", pytest.param("csim", marks=pytest.mark.long), "vck190@sim"])
def test_contents_are_kept(board: str) -> None:
    """A run needs them once; the board itself is asked what it holds, by a run that changes one row."""
    with Runner(BUILT.program, weights=BUILT.weights, board=board) as runner:
        with pytest.raises(StateLost, match="does not hold kept"):
            runner.run(row(1), {"row[0]": 0})
        runner.run(row(1) | {"kept": KEPT}, {"row[0]": 3})
        runner.run(row(2), {"row[0]": 4})
        with pytest.raises(TensorError, match="20 is out of range"):
            runner.run(row(3), {"row[0]": 20})
        runner.run(row(3), {"row[0]": 5})
        if board == "sim":
            memory = runner._boards._boards[0]._memories.banks["ddr"]  # type: ignore[attr-defined]
            assert [float(memory[1024 * (r % 2) + 64 * (r // 2)]) for r in (2, 3, 4, 5, 6)] == [256, 1, 2, 3, 768]


@pytest.mark.long
def test_simulators_of_steps_are_not_kept() -> None:
    """The image of each step is another one, and each has a simulator."""
    found: list[weakref.ref[Machine]] = []
    with Runner(BUILT.program, weights=BUILT.weights) as runner:
        runner.run(row(1) | {"kept": KEPT}, {"row[0]": 0})
        board = runner._boards._boards[0]
        assert isinstance(board, SimBoard)
        for r in range(5):
            runner.run(row(r), {"row[0]": r})
            found += map(weakref.ref, board._machines.values())
        gc.collect()
        assert sum(x() is not None for x in found) == 1


def test_a_board_that_fails_loses_them() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise BoardError("the board is gone")

    rig = Rig(fail)
    serving = Serving(retries=3, backoff_s=0.01)
    with Runner(BUILT.program, weights=BUILT.weights, board=rig, serving=serving) as runner:
        runner.run(row(1) | {"kept": KEPT}, {"row[0]": 3})
        with pytest.raises(BoardError, match="gone"):
            runner.run(row(2), {"row[0]": 4})
        with pytest.raises(StateLost):
            runner.run(row(2), {"row[0]": 4})
        runner.run(row(2) | {"kept": KEPT}, {"row[0]": 4})
        runner.run(row(2), {"row[0]": 5})
    assert len(rig.runs) == 5, "a run of a program with state is not repeated"


def test_wrong_contents() -> None:
    with Runner(BUILT.program, weights=BUILT.weights) as runner:
        with pytest.raises(TensorError, match="kept has shape"):
            runner.run(row(1) | {"kept": KEPT[:, :5]}, {"row[0]": 0})
        with pytest.raises(TensorError, match="no input 'other'"):
            runner.run(row(1) | {"other": KEPT}, {"row[0]": 0})
