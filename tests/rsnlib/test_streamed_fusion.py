"""Fusion of a graph that comes from PyTorch: groups that fit, in an order in which they can run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rsn.base.errors import BudgetError
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.streams.dataflow.best_fusion import fuse
from rsn.streams.dataflow.fusion import printed
from rsn.streams.dataflow.memory import fusion_space, memory_use
from rsn.streams.dataflow.parts import parts


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
