"""Bare images from Python: a runner whose tensors are the memories."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.base.errors import TensorError
from rsn.host.runner import Runner
from rsn.host.whole_banks import AFTER, with_whole_banks
from rsn.hw.sim.machine import Machine
from rsn.isa.image import decode_image
from rsn.isa.program import Program, Role
from rsn.tests.hw.examples import example
from rsn.tests.hw.versal.native import native


@pytest.mark.parametrize("board", ["sim", "csim", "vck190@csim"])
def test_a_runner_takes_and_gives_memories(board: str) -> None:
    """Run after run, each from the memories that it is given, to the bit: there is NaN where nothing was written."""
    e = example("fig10")
    overlay, banks = e.program.overlay, e.banks()
    bare = Program(overlay, decode_image(e.program.image, overlay), e.program.preloaded)
    program = with_whole_banks(bare, {bank: memory.size for bank, memory in banks.items()})
    assert [b.role for b in program.buffers] == [Role.INPUT, Role.OUTPUT, Role.WEIGHT]
    with Runner(program, weights={"lpddr": banks["lpddr"]}, board=board) as runner:
        for factor in (1, -3):
            expected = {bank: memory.copy() for bank, memory in banks.items()}
            expected["ddr"] *= factor
            after = runner.run({"ddr": expected["ddr"]}).outputs[AFTER]
            if board == "sim":
                Machine(e.program).run(expected)
            else:
                native().run(e.program, expected)
            np.testing.assert_array_equal(after.view(np.uint32), expected["ddr"].view(np.uint32))
            assert not np.array_equal(expected["ddr"], factor * banks["ddr"], equal_nan=True)
        with pytest.raises(TensorError, match=r"ddr has shape \(196607,\); this program takes \(196608,\)"):
            runner.run({"ddr": banks["ddr"][:-1]})
    assert {b.name for b in with_whole_banks(bare, {"ddr": 16, "lpddr": 0}).buffers} == {"ddr", AFTER}
