"""Models in pieces: those that the machine cannot run as a whole, compiled, changed, saved and served."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.rsnlib.graph_split import Split  # noqa: E402
from rsn.rsnlib.pipeline import Pipeline  # noqa: E402

C = 64


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Pooled(nn.Module):
    """An encoder, and an attention of one row over its rows: two numbers of rows, of which xnn2 takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = rsn.nn.Encoder(1, C, 2, 96)
        self.probe = nn.Linear(C, C)
        self.head = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        y = self.encoder(x)
        z, _ = self.head(self.probe(one), y, y, need_weights=False)
        return z.squeeze(1)


def test_layers_that_cannot_be_beside_each_other_are_cut_apart() -> None:
    model, given = Pooled().eval(), (torch.randn(2, 9, C), torch.randn(2, 1, C))
    assert not isinstance(Pipeline.named("xnn").divide(model, given, whole=False), Split)
    found = Pipeline.named("xnn2").divide(model, given, whole=False)
    assert isinstance(found, Split)
    assert "takes one number of rows" in found.reasons[0]
    on_machine = [piece.traced.network for piece in found.pieces if piece.traced is not None]
    assert not any(network.seqs for network in on_machine)
    assert sum(len(network.layers) for network in on_machine) >= 8
