"""The compiler's passes: watched, shown and replaced."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import rsn
from rsn.base.errors import WrongResultError
from rsn.cli.main import main
from rsn.isa.overlay import Overlay
from rsn.rsnlib.dump import SHOWN, shown
from rsn.rsnlib.rules import RULES
from rsn.rsnlib.values import Abstract, AbstractState, Arguments, Value
from rsn.scheduler.dram import Lowered
from rsn.scheduler.graph import ActivationFunction, Gemm, LayerGraph
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import Schedule


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).eval()


X = torch.randn(20, 64)


def test_they_are_told_in_their_order_with_what_they_made() -> None:
    seen: list[tuple[str, str]] = []
    passes = rsn.Passes(observe=lambda name, made: seen.append((name, shown(name, made))))
    rsn.compile(model(), (X,), passes=passes)
    assert [name for name, _ in seen] == list(SHOWN)
    texts = dict(seen)
    assert "aten.linear.default" in texts["capture"]
    assert texts["match"].splitlines() == [
        "1 x 20 rows: input (64 columns)",
        "  linear_0 = relu(input @ weight 64x128 + bias)",
        "  linear_2 = linear_0 @ weight 128x64 + bias",
        "  -> linear_2",
    ]
    assert texts["fold"] == texts["match"]
    assert texts["schedule"].startswith("tile_rows = 6\n")
    assert "MemC0: " in texts["dram"]
    assert texts["pack"].startswith("overlay xnn")


def test_layers_read_alike_before_and_after_folding() -> None:
    seen: dict[str, str] = {}
    passes = rsn.Passes(observe=lambda name, made: seen.update({name: shown(name, made)}))
    mask = torch.ones(1, 20, dtype=torch.int64)
    rsn.compile(rsn.nn.Encoder(1, 64, 1, 128, eps=1e-6).eval(), (X[None], mask), passes=passes)
    match, fold = (seen[name].splitlines() for name in ("match", "fold"))
    assert "  layers_0_attn_key = 0.125 * (hidden_states @ weight 64x64 + bias)" in match
    assert "  layers_0_attn_key = hidden_states @ weight 64x64 + bias" in fold
    (attention,) = (line for line in fold if "softmax" in line)
    assert attention in match
    assert attention.endswith("_query @ layers_0_attn_key^T) @ layers_0_attn_value, 1 heads of 64, masked")
    out = "  layers_0_attn_out = layer_norm(layers_0_attn @ weight 64x64 + bias + hidden_states"
    assert f"{out}, eps 1e-06) * scale + shift" in match
    assert f"{out} * scale, eps 1e-06)" in fold


def test_dump_after(tmp_path: Path) -> None:
    given = ["compile", "gemm:128x64x64", "-o", str(tmp_path / "p.rsn"), "--dump-after", "fold"]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 0
    assert "-- after fold\n1 x 128 rows: input (64 columns)\n" in result.output
    assert "-- after pack" not in result.output
    result = CliRunner().invoke(main, [*given, "--dump-after", "pack", "--json"])
    assert json.loads(result.stdout)["segments"] == 1
    assert "-- after pack\noverlay xnn" in result.stderr
    result = CliRunner().invoke(main, [*given[:4], "--dump-after", "all"])
    assert [line for line in result.stdout.splitlines() if line.startswith("-- ")] == [f"-- after {p}" for p in SHOWN]


def test_a_rule_for_an_operator_of_ones_own() -> None:
    """It is a rule of what is done on the machine: here `clamp` becomes the ReLU of the product before it."""

    def clamp(values: AbstractState, node: Any, a: Arguments) -> Abstract | str:
        value = values.of[a["self"]]
        if not isinstance(value, Value) or not isinstance(value.base, Gemm) or not value.base.is_open:
            return "it is possible only behind a product"
        return Value(values.layers.fuse(value.base, activation=ActivationFunction.RELU), value.view)

    class Clamped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.clamp(self.layer(x), min=0)

    module = Clamped().eval()
    passes = rsn.Passes(rules={**RULES, torch.ops.aten.clamp: clamp})
    with rsn.compile(module, (X,)) as usual, rsn.compile(module, (X,), passes=passes) as own:
        assert re.search("host +after the machine: .* clamp$", usual.explain(), re.M)
        assert " host " not in own.explain().split("operators")[1]
        assert torch.allclose(own(X), module(X), atol=1e-5)


def test_another_lowering() -> None:
    """One that only counts, and hands on to ours."""
    calls: list[int] = []

    def counting(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
        calls.append(len(network.layers))
        return lower(network, overlay, schedule)

    rsn.compile(model(), (X,), passes=rsn.Passes(lower=counting))
    assert calls == [2]


@dataclass
class Accesses:
    """A cost model, if an odd one: the more DDR accesses, the better."""

    latency: float
    busy: dict[str, float]

    @classmethod
    def of(cls, network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Accesses:
        count = len(lower(network, overlay, schedule).kernels.sequences["DDR"])
        return cls(1 / count, {"DDR": 1 / count})


@pytest.mark.long
def test_another_cost_model(tmp_path: Path) -> None:
    """The search finds what is best by it, and does not keep that for ours."""
    chosen: list[Any] = []
    passes = rsn.Passes(observe=lambda name, made: chosen.append(made) if name == "schedule" else None)
    best = rsn.Best(budget_s=5, cache=tmp_path, cost=Accesses.of)
    x = torch.randn(1000, 256)
    wide = nn.Sequential(nn.Linear(256, 1024), nn.Linear(1024, 256)).eval()
    networks: list[LayerGraph] = []
    fold = rsn.Passes(observe=lambda name, made: networks.append(made) if name == "fold" else None)  # type: ignore[arg-type]
    rsn.compile(wide, (x,), passes=fold)
    with rsn.compile(wide, (x,), schedule=best, passes=passes) as compiled:
        assert torch.allclose(compiled(x), wide(x), atol=1e-4)
    found, overlay = chosen[0].schedule, compiled.program.overlay
    paper = Accesses.of(networks[0], overlay, Schedule())
    assert Accesses.of(networks[0], overlay, found).latency < paper.latency
    assert "by another cost model" in chosen[0].why[0]
    assert list(tmp_path.iterdir()) == []


def test_another_fold() -> None:
    """It sees the layers before scale and shift go into weights; here it leaves out the last one's bias."""
    from rsn.rsnlib.fold import fold

    def without_bias(matched: LayerGraph) -> LayerGraph:
        network = fold(matched)
        *first, last = network.layers
        assert isinstance(last, Gemm)
        return replace(network, layers=(*first, replace(last, bias=0 * last.bias)))

    module = model()
    passes = rsn.Passes(fold=without_bias)
    with rsn.compile(module, (X,), passes=passes) as compiled, pytest.raises(WrongResultError, match="result: "):
        compiled(X)
    with rsn.compile(module, (X,), passes=passes, verify="never") as compiled, torch.no_grad():
        assert torch.allclose(compiled(X) + module[2].bias, module(X), atol=1e-5)


def test_unknown_pass() -> None:
    with pytest.raises(KeyError):
        shown("optimise", None)


@pytest.mark.parametrize("name", ["choose", "lower", "pack"])
def test_a_pass_that_returns_something_else(name: str) -> None:
    passes = rsn.Passes(**{name: lambda *args: None})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"Passes.{name} returned NoneType, not "):
        rsn.compile(model(), (X,), schedule=rsn.Best(budget_s=1), passes=passes)


def test_a_rule_that_makes_a_layer_by_itself() -> None:
    def negative(values: AbstractState, node: Any, a: Arguments) -> Abstract | str:
        value = values.of[a["self"]]
        assert isinstance(value, Value)
        assert isinstance(value.base, Gemm)
        return Value(replace(value.base, factor=-1.0), value.view)

    passes = rsn.Passes(rules={**RULES, torch.ops.aten.relu: negative})
    with pytest.raises(
        TypeError, match=r"the rule for aten\.relu\.default returned a layer that values\.layers did not"
    ):
        rsn.compile(model(), (X,), passes=passes)


def test_a_rule_that_returns_something_else() -> None:
    passes = rsn.Passes(rules={**RULES, torch.ops.aten.relu: lambda *args: 5})  # type: ignore[dict-item, return-value]
    with pytest.raises(TypeError, match=r"the rule for aten\.relu\.default returned int, not a value or a reason"):
        rsn.compile(model(), (X,), passes=passes)
