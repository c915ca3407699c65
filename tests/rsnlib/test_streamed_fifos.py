"""Depths of FIFOs of blocks from PyTorch: no wait for a slot with normal depths, no later end with fast ones."""

from __future__ import annotations

import pytest
import torch

from rsn.rsnlib.streamed import Knobs, streamed
from rsn.streams.timing.timed import BeatTiming, TimedProgram
from rsn.tests.effort import full, sampled
from rsn.tests.rsnlib.scaled_blocks import SCALED
from rsn.tests.rsnlib.streamed_blocks import block


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(SCALED, SCALED.keys() - {"llama"}, rest=full))
def test_depths_of_blocks(name: str) -> None:
    module, x = block(name, **SCALED[name]), torch.randn(1, 16, SCALED[name]["hidden_size"])
    made = streamed(module, (x,), Knobs(rows=8, columns=8, depth=8))
    program = made.sized()
    endless = program.together({})
    assert endless is not None
    runs, bits = {}, {}
    for kind, one in (("normal", made.with_normal_depths()), ("fast", made.with_fast_depths())):
        assert one.report.code == ""
        sized = one.sized()
        (bodies,) = sized.outcomes.bodies
        run = TimedProgram(bodies, sized.packing).run(sized.of_streams(sized.declared))
        assert isinstance(run, BeatTiming), "a deadlock"
        assert run.latency == endless.latency
        runs[kind], bits[kind] = run, sized.bits(sized.declared)
    assert not any(runs["normal"].full.values())
    assert any(runs["fast"].full.values())
    assert bits["fast"] < bits["normal"] / 2
    with torch.no_grad():
        torch.testing.assert_close(made.with_fast_depths().run(x), module(x), atol=1e-4, rtol=1e-4)
