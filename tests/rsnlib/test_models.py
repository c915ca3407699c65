"""The presets: their shapes, their weights, their meaning; and models from a user's file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rsn.rsnlib.models import SpecError, load_spec, preset
from rsn.rsnlib.trace import trace
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm

# (M, K, N) of the layers of CHARM's benchmarks.
MLP = [(3072, 2048, 4096), (3072, 4096, 4096), (3072, 4096, 4096), (3072, 4096, 1024)]
NCF = [(3072, 2 * n, n) for n in (2048, 1024, 512, 256, 128, 64, 32, 16)] + [(3072, 32, 1)]
VIT = [(3072, 3024, 1024), *[(3072, 1024, 1024)] * 4, (3072, 1024, 4096), (3072, 4096, 1024), (3072, 1024, 3048)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mlp", MLP), ("ncf", NCF), ("vit", VIT), ("gemm:96x64x33", [(96, 64, 33)])],
)
def test_products_are_those_of_the_benchmark(name: str, expected: list[tuple[int, int, int]]) -> None:
    network = trace(*preset(name)).network
    rows = network.batch * network.seq
    gemms = [layer for layer in network.layers if isinstance(layer, Gemm)]
    assert [(rows, *layer.weight.shape) for layer in gemms] == expected
    attention = [
        (network.batch, network.seq, x.heads, x.head_dim) for x in network.layers if isinstance(x, AttentionLayer)
    ]
    assert attention == ([(48, 64, 16, 64)] if name == "vit" else [])


def test_bert_large_encoder() -> None:
    model, inputs = preset("bert-large-encoder", batch=2, seq=8)
    assert isinstance(inputs, dict)
    assert inputs["hidden_states"].shape == (2, 8, 1024)
    network = trace(model, inputs).network
    shapes = [layer.weight.shape for layer in network.layers if isinstance(layer, Gemm)]
    assert shapes == [*[(1024, 1024)] * 4, (1024, 4096), (4096, 1024)]
    (attention,) = (layer for layer in network.layers if isinstance(layer, AttentionLayer))
    assert (attention.heads, attention.head_dim, attention.masked) == (16, 64, False)


@pytest.mark.parametrize("base", [False, True])
def test_minilm_computes_what_pytorch_does(call: Callable[..., Any], base: bool) -> None:
    model, inputs = preset("minilm", batch=2, seq=8, base=base)
    assert isinstance(inputs, dict)
    traced = trace(model, inputs)
    if not base:
        inputs["attention_mask"][1, 5:] = 0
    got, expected = call(traced, **inputs), model(**inputs)
    assert (got - expected).abs().max() <= 1e-5 * expected.abs().max()
    gemms = [layer for layer in traced.network.layers if isinstance(layer, Gemm)]
    assert {layer.activation for layer in gemms} == {
        None,
        ActivationFunction.GELU_TANH if base else ActivationFunction.GELU_ERF,
    }
    assert {layer.norm.eps for layer in gemms if layer.norm} == {1e-6 if base else 1e-12}
    assert [x.masked for x in traced.network.layers if isinstance(x, AttentionLayer)] == [not base] * 6
    assert len({layer.weight.tobytes() for layer in gemms}) == 36, "each layer has weights of its own"


def test_weights_follow_the_seed() -> None:
    first, again, other = (preset("gemm:8x16x16", seed=seed) for seed in (1, 1, 2))
    for (_, a), (_, b), (_, c) in zip(*(model.named_parameters() for model, _ in (first, again, other)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert torch.equal(first[1][0], again[1][0])


def test_rows_can_be_given() -> None:
    _, (x,) = preset("mlp", batch=2, seq=5)
    assert x.shape == (10, 2048)
    _, (x,) = preset("gemm:10x16x16", batch=2, seq=5)
    assert x.shape == (10, 16)


@pytest.mark.parametrize(
    ("name", "batch", "seq", "match"),
    [
        ("gemm:4x16x16", 3, None, "gemm:4x16x16 has M = 4 rows, not 3 x 1"),
        ("gemm:4x16x16", 4, 4, "M = 4 rows, not 4 x 4"),
        ("mlp", 0, None, "--batch 0: the least is 1"),
        ("minilm", 1, -1, "--seq -1: the least is 1"),
        ("model.onnx", 0, None, "--batch 0: the least is 1"),
    ],
)
def test_sizes_that_a_model_cannot_have(name: str, batch: int | None, seq: int | None, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        load_spec(name, batch=batch, seq=seq)


@pytest.mark.parametrize("name", ["resnet", "gemm:1x2", "gemm:0x1x1", "nothing"])
def test_unknown_preset_lists_the_known(name: str) -> None:
    with pytest.raises(ValueError, match="known are bert-large, bert-large-encoder, minilm, mlp, ncf, vit, gemm:MxKxN"):
        load_spec(name)


SOURCE = """
import torch
from torch import nn

def plain(batch, seq):
    return nn.Linear(6, 4)

def with_inputs(seed):
    return nn.Linear(6, 4), (torch.full((3, 6), float(seed)),)

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
    def forward(self, input_ids, attention_mask=None):
        return self.embed(input_ids)

class Two(nn.Linear):
    def forward(self, x, y):
        return x

def two():
    return Two(2, 2)

def none():
    return None

number = 3
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "my model.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def test_callable_of_a_file(source: str) -> None:
    _, inputs = load_spec(f"{source}:with_inputs", seed=7)
    assert inputs[0].tolist() == [[7.0] * 6] * 3
    _, inputs = load_spec(f"{source}:plain", batch=2, seq=5)
    assert {key: x.shape for key, x in inputs.items()} == {"input": (2, 5, 6)}
    _, inputs = load_spec(f"{source}:Tokens", seq=5)
    assert {key: (x.dtype, tuple(x.shape)) for key, x in inputs.items()} == {
        "input_ids": (torch.int64, (1, 5)),
        "attention_mask": (torch.int64, (1, 5)),
    }


def test_weights_of_a_file_follow_the_seed(source: str) -> None:
    weights = [load_spec(f"{source}:plain", seed=seed)[0].weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "has no callable 'missing'"),
        ("number", "has no callable 'number'"),
        ("none", "must return a torch.nn.Module, or .module, example inputs., not NoneType"),
        ("two", "return \\(module, example inputs\\)"),
    ],
)
def test_file_without_a_module(source: str, name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(f"{source}:{name}")


def test_file_that_is_not_there() -> None:
    with pytest.raises(SpecError, match=r"no file .*nowhere\.py") as caught:
        load_spec("nowhere.py:model")
    assert caught.value.exit_code == 2


def test_package_loads_without_torch() -> None:
    code = "import sys, rsn.rsnlib, rsn.rsnlib.fold; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import torc\n", r"mine\.py:1, in <module>: ModuleNotFoundError: No module named 'torc'"),
        ("def make():\n    return 1 / 0\n", r"mine\.py:2, in make: ZeroDivisionError: division by zero"),
        ("def make(:\n", r"mine\.py:1: SyntaxError: "),
    ],
)
def test_mistakes_in_the_users_file_are_told_by_its_own_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SpecError, match=complaint):
        load_spec(f"{tmp_path / 'mine.py'}:make")


def test_a_file_without_a_callable_and_sizes_that_it_does_not_take(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 4), (torch.zeros(2, 4),)\n")
    with pytest.raises(SpecError, match=r"mine\.py: name the callable that makes the model"):
        load_spec(str(file))
    with pytest.raises(SpecError, match=r"--batch 4: .*:make returns its own inputs and has no parameter batch"):
        load_spec(f"{file}:make", batch=4)
    assert not load_spec(f"{file}:make")[0].training
