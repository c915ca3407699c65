"""A layer of experts with its router on the machine with Seq: three ways, with the results of PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.isa.overlays.moe import moe  # noqa: E402
from rsn.tests.effort import full, long, sampled  # noqa: E402
from rsn.tests.rsnlib.expert_layers import Loop, assert_equal, block  # noqa: E402

HOWS = ("static", "patched", "sequenced")
SMALL = moe(rows=16, tile=32)


class Routed(Loop):
    """A loop with a router without a bias, in several spellings."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.router = torch.nn.Linear(64, 4, bias=spelling == "bias")

    def forward(self, x: Any) -> Any:
        logits = self.router(x)
        if self.spelling == "chosen":
            top, index = logits.topk(self.each)
            shares = top.softmax(-1)
        elif self.spelling == "sigmoid":
            shares, index = logits.sigmoid().topk(self.each)
        else:
            shares, index = logits.softmax(-1).topk(self.each)
            if self.spelling == "eps":
                shares = shares / (shares.sum(-1, keepdim=True) + 1e-3)
        out = torch.zeros_like(x)
        for e, down in enumerate(self.down):
            token, place = torch.where(index == e)
            y = down(torch.relu(self.gate[e](x[token])) * self.up[e](x[token]))
            out.index_add_(0, token, y * shares[token, place, None])
        return out + x if self.spelling == "residual" else out


@pytest.mark.long
@pytest.mark.parametrize("how", HOWS)
def test_a_layer_of_transformers(how: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    for family in ("mixtral", "qwen3"):
        module, x = block(family, None, experts=6), torch.randn(2, 20, 64)
        layer = rsn.ExpertLayer.of(module, (x,), how=how, machine=SMALL)
        with torch.no_grad():
            assert_equal(layer(x), module(x))
            other = torch.randn(2, 20, 64)
            assert_equal(layer(hidden_states=other), module(other))


@pytest.mark.parametrize("how", sampled(HOWS, ["sequenced"]))
@pytest.mark.parametrize("spelling", sampled(["all", "chosen"], ["chosen"], full))
def test_other_spellings(spelling: str, how: str) -> None:
    torch.manual_seed(0)
    module, x = Routed(spelling).eval(), torch.randn(20, 64)
    with torch.no_grad():
        assert_equal(rsn.ExpertLayer.of(module, (x,), how=how, machine=SMALL)(x), module(x))


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("bias", "its logits are not known"),
        long("sigmoid", "its router is not known"),
        long("eps", "its router is not known"),
        long("residual", "does more than to choose experts"),
    ],
)
def test_refused_layers(spelling: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        rsn.ExpertLayer.of(Routed(spelling).eval(), (torch.randn(20, 64),), machine=SMALL)


def test_a_module_without_experts() -> None:
    with pytest.raises(UnsupportedError, match="the module has 0 layers of experts that are known"):
        rsn.ExpertLayer.of(torch.nn.Linear(8, 8).eval(), (torch.randn(4, 8),), machine=SMALL)


@pytest.mark.long
def test_more_rows_than_declared() -> None:
    torch.manual_seed(0)
    module, x = Routed("chosen").eval(), torch.randn(20, 64)
    for how in HOWS:
        layer = rsn.ExpertLayer.of(module, (x,), how=how, machine=SMALL, rows=5)
        with pytest.raises(TensorError, match=r"rows select expert \d; the program is for at most 5"):
            layer(x)
    with pytest.raises(UnsupportedError, match="rows=0"):
        rsn.ExpertLayer.of(module, (x,), machine=SMALL, rows=0)
    with pytest.raises(UnsupportedError, match="how='dynamic': must be one of"):
        rsn.ExpertLayer.of(module, (x,), machine=SMALL, how="dynamic")


@pytest.mark.long
def test_arguments_that_do_not_fit() -> None:
    layer = rsn.ExpertLayer.of(Routed("chosen").eval(), (torch.randn(20, 64),), machine=SMALL)
    for wrong in (torch.randn(21, 64), torch.randn(20, 64, dtype=torch.float64)):
        with pytest.raises(TensorError):
            layer(wrong)
