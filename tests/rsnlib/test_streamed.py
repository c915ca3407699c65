"""PyTorch blocks as stream programs give PyTorch's results on the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

from rsn.base.errors import ProgramError, TensorError, UnsupportedError
from rsn.host.native_tasks import run_native
from rsn.hw.sim.tasks import run_on_tensors
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.streamed import Knobs, Streamed, streamed
from rsn.rsnlib.streamed.generate import place
from rsn.rsnlib.streamed.knobs import OF_OPERATORS, SWITCHES
from rsn.streams.dataflow.best_fusion import fuse
from rsn.streams.dataflow.graph import Timing
from rsn.streams.dataflow.memory import fusion_space
from rsn.streams.fifos.measure import alone
from rsn.streams.placing.devices import U55C
from rsn.streams.reader import read
from rsn.streams.syntax.nodes import alike
from rsn.streams.syntax.parser import parsed
from rsn.tests.effort import cases, in_both, long
from rsn.tests.rsnlib.streamed_blocks import Cached, Drawn, block
from rsn.tests.streams.group_graphs import parts
from rsn.tests.streams.test_hls import built
from rsn.tests.streams.trees import places

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


def has_times_of_its_tasks(made: Streamed) -> None:
    """Check the times of kernels with those that their tasks state, and the tree with its text."""
    again = parsed(made.text)
    assert alike(made.written.printed.tree, again)
    assert places(made.written.printed.tree) == places(again)
    region = read(made.text, timed=True)
    traces = {task.task.name: alone(task.beats).puts for task in region.instances}
    for node in made.timed_dataflow.nodes:
        # New rows of a cache go to a store of their own, before the result.
        ends = max((puts.end for puts in traces[node.name].values()), key=lambda ends: int(ends[-1]))
        first, tokens = int(ends[0]), len(ends)
        interval = -(-int(ends[-1] - first) // (tokens - 1)) if tokens > 1 else first
        assert node.timing == Timing(first, interval, tokens), node


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
    (node,) = made.timed_dataflow.nodes
    assert (node.op, node.memory_bytes) == ("linear", 4 * 8 * 4 + 16 * 4)
    # 12 rows in tiles of 4, 16 columns in tiles of 8, each the sum of 3 products and a put. A product adds to the same
    # word of sums in each of 8 steps, so each takes 3 cycles, and then come 4 of depth; a loop takes one to go on, as
    # do each of the tokens, which are single words, and the sum with the bias.
    assert node.timing is not None
    assert (node.timing.tokens, node.timing.interval) == (6, 3 * (7 * 3 + 4 + 1 + 2) + 3)


def test_a_perceptron() -> None:
    made = agrees(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)), torch.randn(8, 16))
    assert [node.op for node in made.dataflow.nodes] == ["layernorm", "linear", "pointwise", "linear"]
    first, second, third = made.dataflow.edges
    assert str(first.put) == "4x8 [2,2]*[4,8] (d0,d1)"
    assert str(first.get) == "4x8 [2,3,2]*[4,1,8] (d0,d2)"
    assert second.put == second.get
    assert str(third.get) == "4x8 [2,2,3]*[4,1,8] (d0,d2)"


def test_a_product_as_several_kernels() -> None:
    """They have the bits of one kernel, the same shares of its columns and units, and less time."""
    module = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)).eval()
    x = torch.randn(8, 16)
    whole = streamed(module, (x,), SMALL)
    made = whole.changed(replace(SMALL, of={"linear_1": {"kernels": 4}, "linear_3": {"kernels": 2}}))
    expected, one = whole.timed_run(x)
    got, several = made.timed_run(x)
    assert got.numpy().tobytes() == expected.numpy().tobytes()
    assert several.latency_s < one.latency_s
    shapes = {y.name: y.shape[2] for y in made.plans if y.op in ("linear", "join")}
    assert shapes == {
        **{f"linear_1_{k}": 6 for k in range(4)},
        "linear_1": 24,
        **{f"linear_3_{k}": 8 for k in range(2)},
        "linear_3": 16,
    }
    placed = place(made, U55C)
    assert len({placed.streamed.units[f"linear_1_{k}"] for k in range(4)}) == 1


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


@pytest.mark.parametrize("name", [long("gpt2"), long("llama")])
def test_a_cache_of_keys_and_values(name: str) -> None:
    module = Cached(block(name, **BLOCKS[name]))
    x, new = torch.randn(1, 6, 32), torch.randn(1, 1, 32)
    prefill = agrees(module, x)
    _, keys, values = prefill.run(x)
    step = agrees(module, new, keys, values)
    assert [node.op for node in step.dataflow.nodes].count("append") == 2
    with torch.no_grad():
        whole, all_keys, _ = module(torch.cat([x, new], 1))
    y, step_keys, _ = step.run(new, keys, values)
    torch.testing.assert_close(y[0, 0], whole[0, -1], rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(step_keys, all_keys, rtol=TOLERANCE, atol=TOLERANCE)


def drawn_knobs(random: Random) -> Knobs:
    switches = {knob: random.randrange(2) for knob in sorted(SWITCHES)}
    sizes = {knob: random.choice((1, 2, 3, 4, 8, 64)) for knob in OF_OPERATORS if knob not in SWITCHES}
    return Knobs(**(sizes | switches))


@in_both
def test_drawn_blocks() -> None:
    for seed in range(cases(120, 2, share=40)):
        random = Random(seed)
        torch.manual_seed(seed)
        module = Drawn(random)
        knobs = drawn_knobs(random)
        has_times_of_its_tasks(agrees(module, torch.randn(1, module.rows, module.width), knobs=knobs))


@pytest.mark.long
def test_groups_pass_results_through_memory() -> None:
    x = torch.randn(1, 8, 32)
    whole = streamed(block("gpt2", **BLOCKS["gpt2"]), (x,), SMALL)
    fusion = fuse(fusion_space(whole.dataflow), 2000)
    names = [node.name for node in whole.dataflow.nodes]
    cut = whole.changed(groups=dict(zip(names, fusion.group, strict=True)))
    assert len(fusion.groups) > 1
    assert not cut.report.findings
    torch.testing.assert_close(cut.run(x), whole.run(x), rtol=0, atol=0)
    stored = {stored for part in parts(whole.dataflow, fusion) for stored in part.stored}
    assert {name.removesuffix("_kept") for name, data in cut.written.inputs.items() if data is None} == stored
    with pytest.raises(ProgramError, match="no group is given for"):
        whole.changed(groups={names[0]: 1})
    with pytest.raises(ProgramError, match="a group of up, which is no kernel of this block; there are "):
        whole.changed(groups={**dict.fromkeys(names, 1), "up": 2})


def test_packed_tensors_are_read_in_whole_words() -> None:
    x = torch.randn(8, 32)
    plain = streamed(nn.Sequential(nn.Linear(32, 48), nn.SiLU(), nn.Linear(48, 32)).eval(), (x,), SMALL)
    packed = plain.changed(replace(SMALL, packed=1))
    # For each of 6 columns of tiles, 4 tiles to sum over: as they are loaded, so that they follow each other.
    assert "linear_0_weight: f32[6, 4, 8, 8]" in packed.text
    torch.testing.assert_close(packed.run(x), plain.run(x), rtol=0, atol=0)
    for made, cycles in ((plain, 8), (packed, 4)):  # a tile of 8 x 8: 8 rows of 32 bytes, or 256 bytes in words of 64
        (load,) = re.findall(r"linear_0_weight_tiles.put.*\n +cycles\((\d+)\)", made.text)
        assert int(load) == cycles
    groups = {node.name: k // 2 for k, node in enumerate(plain.dataflow.nodes)}
    torch.testing.assert_close(packed.changed(groups=groups).run(x), plain.run(x), rtol=0, atol=0)


@pytest.mark.long
def test_normal_depths() -> None:
    x = torch.randn(1, 8, 32)
    made = streamed(block("gpt2", **BLOCKS["gpt2"]), (x,), SMALL)
    normal = made.with_normal_depths()
    y, run = normal.timed_run(x)
    endless = made.changed(depths=dict.fromkeys(re.findall(r"^(\w+): Stream", made.text, re.MULTILINE), 1000))
    assert run.latency_s == endless.timed_run(x)[1].latency_s
    torch.testing.assert_close(y, made.run(x), rtol=0, atol=0)
    with pytest.raises(ProgramError, match="a depth of ln_1_tile, which is no stream of this program; did you mean"):
        made.changed(depths={"ln_1_tile": 3})


CAUSAL = torch.full((8, 8), float("-inf")).triu(1)[None, None]


@pytest.mark.parametrize("attention", [long("eager"), "sdpa"])
@pytest.mark.parametrize("mask", [CAUSAL, long(CAUSAL == 0)], ids=["added", "boolean"])
def test_masks_from_arguments(attention: str, mask: torch.Tensor) -> None:
    if attention == "eager" and mask.dtype == torch.bool:
        pytest.skip("transformers adds masks without sdpa")
    made = agrees(block("llama", attention, **GROUPED), torch.randn(1, 8, 32), mask)
    if attention == "eager":
        return  # a row without keys is not a number, here and in PyTorch
    hidden = torch.full_like(mask, -torch.inf if mask.dtype == torch.float32 else 0)
    with pytest.raises(TensorError, match="hides all keys of a row"):
        made.run(torch.randn(1, 8, 32), hidden)


class Masked(nn.Module):
    """Attention with a constant mask."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


@pytest.mark.parametrize(("first", "last"), [(-3, 0), (-1, 2), (-20, 1), (0, 20)])
def test_bands_are_masks_by_index(first: int, last: int) -> None:
    mask = torch.ones(8, 12, dtype=torch.bool).triu(first).tril(last)
    made = agrees(Masked(mask), torch.randn(1, 2, 8, 4), torch.randn(1, 2, 12, 4), torch.randn(1, 2, 12, 4))
    assert "banded(" in made.text
    assert not any("mask" in name for name in made.written.inputs)


def test_other_masks_are_tensors() -> None:
    operands = torch.randn(2, 8, 4), torch.randn(2, 8, 4), torch.randn(2, 8, 4)
    made = agrees(Masked(torch.randn(2, 8, 8)), *operands)
    assert "banded(" not in made.text
    with pytest.raises(UnsupportedError, match="its mask hides all keys of a row"):
        streamed(Masked(torch.ones(8, 8, dtype=torch.bool).tril(-1)).eval(), operands)


def test_the_host_looks_embeddings_up() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
            self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 20)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1]))))

    made = agrees(Model(), torch.randint(0, 20, (1, 8)))
    assert [node.op for node in made.dataflow.nodes] == ["layernorm", "linear"]


class Words(nn.Module):
    """Words that the host looks up, a norm, and products of one column and of several."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.one, self.more = nn.Linear(16, 1), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.words(x))
        return self.one(y), self.more(y)


@pytest.mark.parametrize("name", ["words.weight", "norm.bias", "one.weight", "more.bias"])
def test_weights_that_change_are_refused(name: str) -> None:
    torch.manual_seed(0)
    model, x = Words().eval(), torch.arange(8)
    made = streamed(model, (x,), SMALL)
    with torch.no_grad():
        model.get_parameter(name).mul_(2)
    for call in (made.run, made.tensors, made.changed(Knobs()).run):
        with pytest.raises(TensorError, match=f"{name} of the module has changed since this program was made"):
            call(x)
    agrees(model, x)


def test_the_weights_are_those_of_the_capture() -> None:
    torch.manual_seed(0)
    model, x = Words().eval(), torch.arange(8)
    made = streamed(model, (x,), SMALL)
    before = made.run(x)
    for parameter in (x for x in model.parameters() if x.numel() > 3):
        parameter.data.numpy().reshape(-1)[1] = 3.0  # PyTorch does not count such a write, and no sample shows it
    torch.testing.assert_close(made.run(x), before, rtol=0, atol=0)
    next(model.parameters()).data.mul_(2)
    with pytest.raises(TensorError, match="has changed since this program was made from it"):
        made.run(x)


def test_what_is_added_to_a_product_is_a_row() -> None:
    weight = torch.randn(8, 8)
    for shape in ((8,), (1, 8), (1,), (1, 1)):
        agrees(Added(torch.randn(shape), weight), torch.randn(8, 8))
    for shape in ((8, 1), (8, 8)):
        with pytest.raises(UnsupportedError, match=r"addmm.*is \[8, [18]\]; it must be one row of 8 elements"):
            streamed(Added(torch.randn(shape), weight).eval(), (torch.randn(8, 8),))


class Added(nn.Module):
    """bias + x @ weight."""

    def __init__(self, bias: torch.Tensor, weight: torch.Tensor) -> None:
        super().__init__()
        self.bias, self.weight = nn.Parameter(bias), nn.Parameter(weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_products_of_two_operands() -> None:
    silu = nn.functional.silu
    agrees(Function(lambda x, y: silu(x) @ silu(y)), torch.randn(6, 4), torch.randn(4, 8))
    agrees(Function(lambda x, y: silu(x) @ silu(y).t()), torch.randn(6, 4), torch.randn(8, 4))


def test_rotary_positions_from_arguments() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            heads = nn.functional.silu(x).view(1, 8, 2, 8).transpose(1, 2)
            turned = torch.cat([-heads[..., 4:], heads[..., :4]], -1)
            return (heads * cos + turned * sin).transpose(1, 2).reshape(1, 8, 16)

    made = agrees(Model(), torch.randn(1, 8, 16), torch.randn(8, 8), torch.randn(8, 8))
    assert [node.op for node in made.dataflow.nodes] == ["pointwise", "turn", "pointwise"]


@pytest.mark.long
def test_hls_gives_the_same_bits(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    past = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    step = Cached(block("llama", **sizes, num_key_value_heads=1)).eval(), (torch.randn(1, 1, 8), *past)
    blocks = {"step": step, "prompt": (block("gpt2", **sizes), (torch.randn(1, 4, 8),))}
    knobs = Knobs(rows=2, columns=4, depth=4, packed=1)
    made = {name: streamed(module, inputs, knobs, name=name) for name, (module, inputs) in blocks.items()}
    made["outward"] = made["prompt"].changed(replace(knobs, outward=1))
    blocks["outward"] = blocks["prompt"]
    regions = built(tmp_path, {name: program_of(x.machine.overlay) for name, x in made.items()})
    for name, x in made.items():
        tensors = x.tensors(*blocks[name][1])
        expected, _ = run_on_tensors(x.machine, tensors)
        got = run_native(regions[name], tensors)
        assert {key: value.tobytes() for key, value in got.items()} == {
            key: value.tobytes() for key, value in expected.items()
        }


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
    with pytest.raises(UnsupportedError, match=r"can be a kernel: .*; it has aten\.cumsum\.default at"):
        streamed(Function(lambda x: x.cumsum(1)).eval(), (torch.randn(4, 8),))
    for number in (float("inf"), float("nan")):
        with pytest.raises(
            UnsupportedError, match=rf"aten\.mul\.Tensor at the top level: {number} is no finite number"
        ):
            streamed(Function(lambda x, factor=number: nn.functional.silu(x) * factor).eval(), (torch.randn(4, 8),))
    for rows in (2.5, "2"):
        with pytest.raises(ProgramError, match=f"knob rows is {rows!r}; it is a whole number"):
            Knobs(rows=rows)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="knobs for lin, which is no operator of this block; did you mean linear"):
        streamed(nn.Linear(8, 8).eval(), (torch.randn(4, 8),), Knobs(of={"lin": {"rows": 2}}))
