"""FLOPs of experts that data chooses: all spellings of a layer count the same."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rsn.rsnlib.flops import FlopCounter  # noqa: E402 - torch first: it may be missing

TOKENS, WIDTH, INNER, EXPERTS, EACH = 12, 8, 16, 4, 2


@torch.library.custom_op("rsn_tests::in_groups", mutates_args=())
def in_groups(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows in groups, each times a matrix of its own."""
    return torch.cat([x[a:b] @ w for a, b, w in zip([0, *ends[:-1].tolist()], ends.tolist(), weight, strict=True)])


@in_groups.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[-1])


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, EXPERTS)
        self.weight = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER))


class OneByOne(Experts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).topk(EACH).indices
        out = x.new_zeros(TOKENS, INNER)
        for e in range(EXPERTS):
            (rows,) = torch.where((chosen == e).any(-1))
            out = out.index_add(0, rows, x[rows] @ self.weight[e])
        return out


class InGroups(Experts):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.router(x).topk(EACH).indices.flatten()
        order = chosen.argsort()
        ends = torch.nn.functional.one_hot(chosen, EXPERTS).sum(0).cumsum(0)
        return in_groups(x[order // EACH], self.weight, ends)


@pytest.mark.parametrize("kind", [OneByOne, InGroups])
def test_each_token_takes_its_experts(kind: type[Experts]) -> None:
    graph = torch.export.export(kind().eval(), (torch.randn(TOKENS, WIDTH),), strict=False).graph
    counter = FlopCounter()
    router = 2 * TOKENS * WIDTH * EXPERTS
    assert sum(map(counter.of, graph.nodes)) == router + EACH * TOKENS * 2 * WIDTH * INNER
