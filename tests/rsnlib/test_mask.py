"""Which attention masks are a prefix of keys per sequence, and what is said of the others."""

from __future__ import annotations

import pytest
import torch

from rsn.base.errors import TensorError
from rsn.rsnlib.mask import attended_keys, prefix_lengths

KEYS = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)


def additive(value: float) -> torch.Tensor:
    return torch.zeros(3, 1, 1, 5).masked_fill(~KEYS[:, None, None], value)


@pytest.mark.parametrize(
    "mask",
    [
        KEYS[:, None, None],
        KEYS[:, None, None].expand(3, 1, 5, 5),
        KEYS[:, None, None].expand(3, 4, 5, 5),
        KEYS[:, None, None].repeat(1, 4, 5, 1),
        additive(float("-inf")),
        additive(torch.finfo(torch.float32).min),
        additive(-10000.0),
        additive(-10000.0).double(),
    ],
    ids=["keys", "rows", "heads", "copied", "inf", "min", "ten thousand", "double"],
)
def test_lengths(mask: torch.Tensor) -> None:
    lengths = prefix_lengths(mask, 3, 5)
    assert lengths.tolist() == [5, 3, 1]
    assert lengths.dtype == "int64"


@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 5), (1, 1, 5), (1, 1, 1, 5), (1, 2, 5, 5), (3, 1, 1, 1)])
def test_mask_broadcasts_over_sequences(shape: tuple[int, ...]) -> None:
    assert prefix_lengths(torch.ones(shape, dtype=torch.bool), 3, 5).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.tensor([[1, 1, 1], [1, 0, 1]]).bool()[:, None, None], r"sequence 1 is not a prefix: key 1 is hidden"),
        (torch.tensor([[0, 1, 1], [1, 1, 1]]).bool()[:, None, None], r"sequence 0 is not a prefix.*pad on the right"),
        (torch.tensor([[1, 1, 1], [0, 0, 0]]).bool()[:, None, None], r"hides every key of sequence 1"),
        (torch.ones(3, 3).tril().bool(), "differs between query rows"),
        (torch.eye(3).bool()[None, :, None], "differs between heads"),
        (torch.full((2, 1, 1, 3), -1.0), "0 or at most -10000"),
        (torch.full((2, 1, 1, 3), float("nan")), "0 or at most -10000"),
        (torch.ones(2, 1, 1, 3, dtype=torch.int64), "bool or float, not torch.int64"),
        (torch.ones(2, 1, 1, 4).bool(), r"\(2, 1, 1, 4\) does not fit 2 sequences of 3 rows"),
        (torch.ones(4, 1, 1, 3).bool(), r"\(4, 1, 1, 3\) does not fit"),
        (torch.ones(1, 2, 1, 1, 3).bool(), r"\(1, 2, 1, 1, 3\) does not fit"),
    ],
)
def test_other_masks_are_refused(mask: torch.Tensor, message: str) -> None:
    with pytest.raises(TensorError, match=message):
        prefix_lengths(mask, 2, 3)


def test_attended_keys_need_not_be_a_prefix() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 0, 0]]).bool()
    assert attended_keys(mask[:, None, None], 2, 3).tolist() == mask.tolist()
