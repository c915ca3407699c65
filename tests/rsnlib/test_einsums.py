"""Einsums as matrix products, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.rsnlib.capture import packet  # noqa: E402
from rsn.rsnlib.einsums import einsums  # noqa: E402
from rsn.rsnlib.normal_form.passes import capture  # noqa: E402
from rsn.rsnlib.rewrites import rewrite  # noqa: E402

from .test_convolutions import rewritten  # noqa: E402

aten = torch.ops.aten


class Equation(nn.Module):
    """An einsum with a weight, as the first operand or the second."""

    def __init__(self, equation: str, *shape: int, first: bool = False) -> None:
        super().__init__()
        self.equation, self.weight, self.first = equation, nn.Parameter(torch.randn(shape)), first

    def forward(self, x: Any) -> Any:
        operands = (self.weight, x) if self.first else (x, self.weight)
        return torch.einsum(self.equation, *operands)


PRODUCTS = {
    "...k,nk->...n": (Equation("...k,nk->...n", 7, 6), (2, 5, 6)),
    "the weight first": (Equation("kn,blk->bln", 6, 7, first=True), (2, 5, 6)),
    "cut into heads": (Equation("bld,dhk->bhlk", 6, 3, 4), (2, 5, 6)),
    "heads together": (Equation("bhlk,hkd->bld", 3, 4, 6), (2, 3, 5, 4)),
    "dimensions apart": (Equation("kbl,nk->nbl", 7, 6), (6, 2, 5)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_with_a_weight(name: str) -> None:
    model, shape = PRODUCTS[name]
    with torch.no_grad():
        found = rewritten(model, torch.randn(shape), einsums)
    assert found.count(aten.linear) == 1
    assert aten.einsum not in found


@pytest.mark.parametrize(
    ("equation", "weight", "shape"),
    [
        ("bk,bk->b", (2, 6), (2, 6)),
        ("blk,nj->bln", (7, 4), (2, 5, 6)),
        ("blk,k->blk", (6,), (2, 5, 6)),
        ("bkk,nk->bn", (7, 6), (2, 6, 6)),
        ("blk,blnk->bln", (2, 5, 3, 6), (2, 5, 6)),
    ],
    ids=["batch", "sums of one operand", "factors", "diagonal", "a weight of each row"],
)
def test_other_einsums_are_left_alone(equation: str, weight: tuple[int, ...], shape: tuple[int, ...]) -> None:
    program = capture(Equation(equation, *weight).eval(), (torch.randn(shape),), {})
    assert not rewrite(program, (einsums,))


class Attending(nn.Module):
    """An attention that is spelled with einsums throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(24, 3, 8) / 5) for _ in range(3))
        self.o = nn.Parameter(torch.randn(3, 8, 24) / 5)

    def forward(self, x: Any) -> Any:
        q, k, v = (torch.einsum("bld,dhk->blhk", x, weight) for weight in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 8**0.5
        attended = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return torch.einsum("bqhd,hdn->bqn", attended, self.o)


def test_attention_in_einsums() -> None:
    torch.manual_seed(0)
    model, x = Attending().eval(), torch.randn(2, 10, 24)
    assert aten.einsum in {packet(node) for node in capture(model, (x,), {}).graph.nodes}
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        got, wanted = compiled(x), model(x)
        text = compiled.explain()
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert "100.0 %" in text.splitlines()[0]
