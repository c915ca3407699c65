"""Rows whose sum has no reciprocal: the C++ machine and the model give the same numbers, zeros and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rsn.isa.layout import block, unblock
from rsn.isa.overlays.xnn import formats as f

from .native import check_same, on_both
from .tile_programs import Case, Group

LEAST, MOST = 2.0**-126, 2.0**126
SCORES = np.float32(
    [0, -3, 5, -80, -87, -92, -100, -103.5, -104, -300, 80, 83, 86, 88, 89, 300, np.inf, -np.inf, np.nan]
)
"""Of a row each. Its exp is 0, below the least normal number, normal or infinite, and so is the sum of 256 of them."""


def rows_of(score: np.ndarray, recv: dict[str, int], store: dict[str, int], **registers: Any) -> np.ndarray:
    """What two neighbours make of rows of equal numbers, `score` over and over, on both machines alike: (128, 256)."""
    config = f.MemCConfig(**registers) if registers else None
    once = {"recv": 1, "recv_a": 1, "recv_b": 1, "k_iter": 1} | recv
    group = Group(once, {"store": 1, "dim1": 128, "dim2": 128} | store, (config, config))
    case = Case([f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)], [group])
    banks = {name: np.zeros_like(bank) for name, bank in case.banks().items()}
    left, right = np.zeros((2, 128, 128), np.float32)
    left[:, 0] = np.resize(score, 128)
    right[0] = 1
    banks["ddr"][: left.size] = block(left).reshape(-1)
    banks["lpddr"][:] = np.resize(block(right).reshape(-1), banks["lpddr"].size)
    with np.errstate(invalid="ignore"):
        model, machine = on_both(case.program, banks)
        check_same(model, machine, within=1e-5)
    halves = model["ddr"][left.size : left.size + 2 * left.size].reshape(2, -1)
    return np.concatenate([unblock(half, 128, 128) for half in halves], axis=1)


@pytest.mark.parametrize(
    "registers",
    [{}, {"softmax_cols": 100}, {"alone": 1}, {"max_sub": 1}, {"causal": 1, "offset": -5, "scale": 0.5, "max_sub": 1}],
    ids=str,
)
def test_softmax_of_rows_whose_sum_has_no_reciprocal(registers: dict[str, Any]) -> None:
    found = rows_of(SCORES, {"softmax": 1}, {}, **registers)
    row, column = np.arange(128)[:, None], np.arange(256)
    valid = np.broadcast_to(column % 128 < registers.get("softmax_cols", 128), found.shape)
    if "causal" in registers:
        valid = column <= row + registers["offset"]
    scores = np.resize(SCORES, 128) * np.float32(registers.get("scale", 1))
    with np.errstate(over="ignore", invalid="ignore"):
        if "max_sub" in registers:
            scores = scores - np.where(np.isfinite(scores), scores, 0)
        e = np.where(valid, np.exp(scores)[:, None], np.float32(0))
        total = e.sum(1, dtype=np.float32) / (2 if "alone" in registers else 1)
    good = (total >= LEAST) & (total <= MOST)
    masked = "softmax_cols" in registers or "causal" in registers
    assert good.any()
    assert not good.all()
    expected = np.full(found.shape, np.nan, np.float32)
    expected[good] = e[good] / total[good, None]
    if masked:
        expected[total < LEAST] = 0
        assert (found[total < LEAST] == 0).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("eps", "result"), [(0.0, np.nan), (1e-6, 0.0)])
def test_norm_of_rows_without_variance(eps: float, result: float) -> None:
    equal = np.float32([0, 1, -2, 2.0**60])
    found = rows_of(equal, {}, {"layernorm": 1}, norm_cols=128, eps=eps)
    np.testing.assert_array_equal(found, np.full((128, 256), result, np.float32))
