"""PyTorch blocks as stream programs give PyTorch's results on the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from rsn.base.errors import ProgramError, UnsupportedError
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.tests.effort import long
from rsn.tests.rsnlib.streamed_blocks import block

SMALL = Knobs(rows=4, columns=8, depth=8)
TOLERANCE = 1e-4


def agrees(module: nn.Module, *inputs: torch.Tensor, knobs: Knobs = SMALL) -> Any:
    """Stream a module, and check its results on the engine; return what was made."""
    made = streamed(module.eval(), inputs, knobs)
    assert not made.report.findings, made.report
    others = tuple(torch.randn_like(x) if x.dtype == torch.float32 else x for x in inputs)
    for arguments in (inputs, others):
        with torch.no_grad():
            expected = module(*arguments)
        got = made.run(*arguments)
        pairs = [(got, expected)] if isinstance(expected, torch.Tensor) else zip(got, expected, strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    return made


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> Any:
        return self.function(*x)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_a_product() -> None:
    made = agrees(nn.Linear(24, 16), torch.randn(2, 6, 24))
    (node,) = made.dataflow.nodes
    assert (node.op, node.memory_bytes) == ("linear", 4 * 8 * 4 + 16 * 4)
    # 12 rows in tiles of 4, 16 columns in tiles of 8, each the sum of 3 products of 1 cycle, and a cycle for its put.
    assert node.timing is not None
    assert (node.timing.tokens, node.timing.interval) == (6, 4)


def test_a_perceptron() -> None:
    made = agrees(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)), torch.randn(8, 16))
    assert [node.op for node in made.dataflow.nodes] == ["layernorm", "linear", "pointwise", "linear"]
    first, second, third = made.dataflow.edges
    assert str(first.put) == "4x8 [2,2]*[4,8] (d0,d1)"
    assert str(first.get) == "4x8 [2,3,2]*[4,1,8] (d0,d2)"
    assert second.put == second.get
    assert str(third.get) == "4x8 [2,2,3]*[4,1,8] (d0,d2)"


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
GROUPED = SIZES | {"num_key_value_heads": 2}
BLOCKS: dict[str, dict[str, int]] = {
    "gpt2": SIZES,
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 8},
    "gemma3": SIZES | {"num_key_value_heads": 1, "head_dim": 16},
}


@pytest.mark.parametrize("name", ["gpt2", *(long(name) for name in BLOCKS if name != "gpt2")])
def test_blocks(name: str) -> None:
    made = agrees(block(name, **BLOCKS[name]), torch.randn(1, 8, 32))
    ops = [node.op for node in made.dataflow.nodes]
    assert ops.count("scores") == ops.count("softmax") == ops.count("attend") == 1
    assert ops.count("linear") == (6 if name == "gpt2" else 7)


@pytest.mark.long
def test_a_full_layer_of_gpt2() -> None:
    full = block("gpt2", hidden_size=1024, intermediate_size=4096, num_attention_heads=16)
    made = streamed(full, (torch.randn(1, 64, 1024),), Knobs(rows=64, columns=64, depth=64, unroll=4096, lanes=256))
    x = torch.randn(1, 64, 1024)
    with torch.no_grad():
        torch.testing.assert_close(made.run(x), full(x), rtol=TOLERANCE, atol=TOLERANCE)


def test_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"aten\.cumsum\.default at the top level: no kernel computes"):
        streamed(Function(lambda x: torch.cumsum(nn.functional.silu(x), 1)).eval(), (torch.randn(4, 8),))
    with pytest.raises(UnsupportedError, match="nothing in this module can be a kernel"):
        streamed(Function(lambda x: x.cumsum(1)).eval(), (torch.randn(4, 8),))
    with pytest.raises(ProgramError, match="knobs for lin, which is no operator of this block; did you mean linear"):
        streamed(nn.Linear(8, 8).eval(), (torch.randn(4, 8),), Knobs(of={"lin": {"rows": 2}}))
