"""Fusion of a graph that comes from PyTorch: groups that fit, in an order in which they can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from rsn.base.errors import BudgetError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.rsnlib.streamed.generate import place
from rsn.streams.dataflow.best_fusion import fuse
from rsn.streams.dataflow.fusion import printed
from rsn.streams.dataflow.memory import fusion_space, memory_use
from rsn.streams.placing.devices import U55C
from rsn.tests.effort import full
from rsn.tests.rsnlib.streamed_blocks import block
from rsn.tests.rsnlib.test_streamed import BLOCKS
from rsn.tests.streams.group_graphs import parts
from rsn.tests.streams.test_hls import built


class FeedForward(nn.Module):
    """A norm, two products and a sum with the input of the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(32, 32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def test_groups_of_a_graph_from_pytorch() -> None:
    torch.manual_seed(0)
    graph = streamed(FeedForward().eval(), (torch.randn(1, 32, 32),), Knobs(rows=8, columns=8, depth=8)).dataflow
    # Rows of 8 x 32 elements before up, of 8 x 64 before down, twice, 4 bytes each; no other orders differ.
    use = memory_use(graph)
    assert use.converters == use.shared == 2 * 4 * (8 * 32 + 8 * 64)
    space = fusion_space(graph)
    whole = space.bytes_of(range(len(space.names)))
    assert whole == use.shared + use.kernels + use.fifos
    assert len(fuse(space, whole).groups) == 1
    for limit in (max(space.own_bytes), whole // 2, whole - 1):
        fusion = fuse(space, limit)
        assert fusion.gap_bytes == 0
        assert fusion.kept_bytes >= printed(space, limit).kept_bytes
        assert max(fusion.bytes) <= limit
        found = parts(graph, fusion)
        assert sum(len(part.graph.nodes) for part in found) == len(graph.nodes)
        assert sum(part.store_bytes for part in found) <= fusion.off_chip_bytes
    with pytest.raises(BudgetError, match=f"alone takes {max(space.own_bytes):,} bytes on chip"):
        fuse(space, max(space.own_bytes) - 1)


@pytest.mark.long
def test_a_buffer_is_filled_while_the_one_before_is_read(tmp_path: Path) -> None:
    """Two buffers instead of one: a row of tiles comes from one product while the next product reads the one before."""
    torch.manual_seed(0)
    x = torch.randn(16, 32)
    knobs = Knobs(rows=4, columns=4, depth=4, unroll=16, packed=1, port=128)
    one = streamed(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).eval(), (x,), knobs, name="products")
    two = one.changed(replace(knobs, ping_pong=1))
    assert not two.report.findings
    assert len(two.report.region.instances) == len(one.report.region.instances) + 1
    y, run = two.timed_run(x)
    before, slower = one.timed_run(x)
    torch.testing.assert_close(y, before, rtol=0, atol=0)
    # A product of 16 sums takes 4 steps of 3 cycles, is 2 deeper, and its loop goes on in another one, as do its two
    # tokens. A row of 8 tiles takes 8 x (8 x 16 + 3) = 1048 cycles to come, and as many to be read; 4 rows and one.
    cycles = [round(r.latency_s * 300e6) for r in (slower, run)]
    assert 5 * 1048 <= cycles[1] <= 5 * 1048 + 20
    assert cycles[0] > 1.25 * cycles[1]
    # Nothing is gained by a third buffer: the first task waits before it hands a buffer over, not behind it.
    streams = [name for name in two.sized().declared if name.endswith(("_buffers", "_wanted"))]
    assert len(streams) == 2
    assert two.changed(depths=dict.fromkeys(streams, 8)).timed_run(x)[1].latency_s == run.latency_s
    (region,) = built(tmp_path, {"products": program_of(two.machine.overlay)}).values()
    tensors = two.tensors(x)
    got, (expected, _) = run_native(region, tensors), run_on_tensors(two.machine, tensors)
    assert {name: value.tobytes() for name, value in got.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", full("llama")])
def test_two_buffers_in_blocks(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 32)
    knobs = Knobs(rows=4, columns=8, depth=8)
    one = streamed(block(name, **BLOCKS[name]), (x,), knobs)
    two = one.changed(replace(knobs, ping_pong=1))
    assert not two.report.findings
    torch.testing.assert_close(two.run(x), one.run(x), rtol=0, atol=0)
    normal = two.with_normal_depths()
    assert {depth for name, depth in normal.sized().declared.items() if name.endswith(("_buffers", "_wanted"))} == {1}
    torch.testing.assert_close(normal.run(x), one.run(x), rtol=0, atol=0)
    groups = {node.name: k // 4 for k, node in enumerate(two.dataflow.nodes)}
    torch.testing.assert_close(two.changed(groups=groups).run(x), one.run(x), rtol=0, atol=0)
    placed = place(two, U55C)
    wide = one.changed(replace(placed.streamed.knobs, ping_pong=0))  # a generated machine chooses its tiles
    torch.testing.assert_close(placed.streamed.run(x), wide.run(x), rtol=0, atol=0)
