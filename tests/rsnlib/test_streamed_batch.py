"""Attention of several sequences at once as stream programs, with the results of PyTorch."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch
from torch import nn

from rsn.base.errors import UnsupportedError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.tests.effort import cases, full, in_both, long
from rsn.tests.rsnlib.streamed_blocks import Attention, Cached, Drawn, block
from rsn.tests.rsnlib.test_streamed import BLOCKS, SMALL, Function, agrees, drawn_knobs, has_times_of_its_tasks
from rsn.tests.streams.test_hls import built


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("batch", [2, full(3)])
@pytest.mark.parametrize("attention", [long("eager"), "sdpa"])
@pytest.mark.parametrize("name", ["gpt2", "llama", *(long(name) for name in ("qwen2", "qwen3", "gemma3"))])
def test_blocks(name: str, attention: str, batch: int) -> None:
    made = agrees(block(name, attention, **BLOCKS[name]), torch.randn(batch, 6, 32))
    assert "banded(" in made.text or attention == "eager"
    (scores,) = (x for x in made.plans if x.op == "scores")
    assert scores.shape == (batch * 4, 6, 6)


@pytest.mark.parametrize(("name", "batch"), [long("gpt2", 2), full("gpt2", 3), full("llama", 2), long("llama", 3)])
def test_a_cache_of_keys_and_values(name: str, batch: int) -> None:
    module = Cached(block(name, **BLOCKS[name]))
    x, new = torch.randn(batch, 6, 32), torch.randn(batch, 1, 32)
    _, keys, values = agrees(module, x).run(x)
    assert keys.shape == (batch, 2 if name == "llama" else 4, 6, 8)
    agrees(module, new, keys, values)


@in_both
def test_drawn_blocks() -> None:
    for seed in range(cases(60, 2, share=30)):
        random = Random(1000 + seed)
        torch.manual_seed(seed)
        module = Drawn(random)
        knobs = drawn_knobs(random)
        batch = random.choice((2, 3))
        has_times_of_its_tasks(agrees(module, torch.randn(batch, module.rows, module.width), knobs=knobs))


def test_no_tile_of_rows_lies_in_two_sequences() -> None:
    module = nn.Sequential(nn.Linear(8, 8), Attention(8, 2, 1, 4, frozenset()))
    made = agrees(module, torch.randn(2, 6, 8), knobs=Knobs(rows=4, columns=8, depth=8))
    assert {plan.sizes["tm"] for plan in made.plans.values()} == {3}  # 4 divides 12 rows, but not the 6 of a sequence
    to_scores = [edge for edge in made.dataflow.edges if made.dataflow.node(edge.target).op == "scores"]
    assert [str(edge.put) for edge in to_scores] == ["1x3x8 [2,2,1]*[1,3,8] (d0,d1,d2)"] * 2
    assert str(to_scores[0].get) == "1x3x4 [2,2,2]*[1,4,3] (d0,d2,d1)"


@pytest.mark.parametrize(
    "shape", [(2, 1, 6, 6), long((1, 4, 6, 6)), long((2, 4, 6, 6)), long((4, 6, 6)), (6, 6)], ids=str
)
def test_masks(shape: tuple[int, ...]) -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            q = nn.functional.silu(x).view(2, 6, 4, 8).transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
            return y.transpose(1, 2).reshape(2, 6, 32)

    agrees(Masked(), torch.randn(2, 6, 32), torch.randn(shape))


@pytest.mark.long
def test_a_constant_mask_of_each_sequence() -> None:
    mask = torch.randn(2, 1, 6, 6)
    attend = nn.functional.scaled_dot_product_attention
    agrees(Function(lambda q, k, v: attend(q, k, v, attn_mask=mask)), *(torch.randn(2, 4, 6, 8) for _ in range(3)))


@pytest.mark.parametrize("spelling", ["one head", long("batched products")])
def test_three_dimensions(spelling: str) -> None:
    """A batch, or a batch and heads, in one dimension in front of the rows."""
    heads = 1 if spelling == "one head" else 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            width = 8 // heads
            q, k, v = (
                y.view(3, 4, heads, width).transpose(1, 2).reshape(-1, 4, width)
                for y in self.project(x).chunk(3, dim=-1)
            )
            y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)
            return self.out(y.view(3, heads, 4, width).transpose(1, 2).reshape(3, 4, 8))

    agrees(Model(), torch.randn(3, 4, 8))


def test_groups_pass_batches_through_memory() -> None:
    made = streamed(Attention(8, 2, 1, 4, frozenset(("causal",))).eval(), (torch.randn(2, 4, 8),), SMALL)
    x = torch.randn(2, 4, 8)
    for packed in (0, 1):
        groups = {node.name: k for k, node in enumerate(made.dataflow.nodes)}
        cut = made.changed(Knobs(rows=2, columns=4, depth=4, packed=packed), groups=groups)
        assert not cut.report.findings
        torch.testing.assert_close(cut.run(x), made.run(x), rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_hls_gives_the_same_bits(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    past = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 4)
    step = Cached(block("llama", **sizes, num_key_value_heads=1)).eval(), (torch.randn(2, 1, 8), *past)
    blocks = {
        "step": step,
        "prompt": (block("gpt2", **sizes), (torch.randn(2, 4, 8),)),
        "three": (block("llama", **sizes, num_key_value_heads=1), (torch.randn(3, 4, 8),)),
    }
    knobs = Knobs(rows=2, columns=4, depth=4, packed=1)
    made = {name: streamed(module, inputs, knobs, name=name) for name, (module, inputs) in blocks.items()}
    regions = built(tmp_path, {name: program_of(x.machine.overlay) for name, x in made.items()})
    for name, x in made.items():
        tensors = x.tensors(*blocks[name][1])
        expected, _ = run_on_tensors(x.machine, tensors)
        got = run_native(regions[name], tensors)
        assert {key: value.tobytes() for key, value in got.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }


def test_refused() -> None:
    attend = nn.functional.scaled_dot_product_attention
    q, k = torch.randn(2, 2, 4, 8), torch.randn(1, 2, 4, 8)
    with pytest.raises(UnsupportedError, match="queries of 2 sequences, and keys of 1; give both the same batch"):
        streamed(Function(lambda q, k: attend(q, k, k)).eval(), (q, k))

    class Axial(nn.Module):
        """Attention along one axis of a picture, then along both as one."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.silu(x)
            rows = x.view(4, 1, 4, 8)
            whole = x.view(2, 1, 8, 8)
            return attend(rows, rows, rows).view(16, 8) + attend(whole, whole, whole).view(16, 8)

    with pytest.raises(UnsupportedError, match=r"takes its rows as 4 sequences of 4, .* as 2 sequences of 8"):
        streamed(Axial().eval(), (torch.randn(16, 8),))
