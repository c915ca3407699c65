"""What quantisation costs: embeddings, or other rows of numbers, of a model beside those of the same in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import spearmanr
from torch.utils import _pytree as pytree

from ..base.errors import TensorError
from .graph_split import Examples


@dataclass(frozen=True)
class Quality:
    """How near rows of results are to those of a reference.

    worst, mean: the smallest and the mean cosine of a row and the reference's row; 1 is the same direction. spearman:
    rank correlation of the cosines between all pairs of rows, the model's with the reference's; 1 is the same order.
    largest: difference, divided by the reference's largest magnitude.
    """

    rows: int
    worst: float
    mean: float
    spearman: float
    largest: float


def quality(model: Callable[..., Any], reference: Callable[..., Any], batches: Iterable[Examples]) -> Quality:
    """Compare the rows that two models compute: the last dimension of the first tensor that they return.

    model, reference: modules, or what `rsn.compile` returns. batches: arguments, by position or by name. Raises
    `TensorError` for fewer than three rows, which have no order of pairs, for results of other shapes than the
    reference's, and for results that are not finite.
    """
    rows = [(_rows(model, batch), _rows(reference, batch)) for batch in batches]
    got, wanted = (np.concatenate(side) if rows else np.zeros((0, 1)) for side in zip(*rows, strict=True))
    if got.shape != wanted.shape:
        raise TensorError(f"results of shape {got.shape}; those of the reference have {wanted.shape}")
    if len(got) < 3:
        raise TensorError(f"{len(got)} rows: quality needs three, for an order of their pairs")
    if not (np.isfinite(got).all() and np.isfinite(wanted).all()):
        raise TensorError("a result is not finite")
    one, other = _directions(got), _directions(wanted)
    cosines = (one * other).sum(1)
    pairs = np.triu_indices(len(one), 1)
    ranks = spearmanr((one @ one.T)[pairs], (other @ other.T)[pairs]).statistic
    largest = float(np.abs(got - wanted).max() / (np.abs(wanted).max() or 1.0))
    return Quality(len(got), float(cosines.min()), float(cosines.mean()), float(ranks), largest)


def _rows(model: Callable[..., Any], batch: Examples) -> npt.NDArray[np.float64]:
    with torch.no_grad():
        result = model(**batch) if isinstance(batch, dict) else model(*batch)
    tensor = next(x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor))
    made: npt.NDArray[np.float64] = tensor.detach().double().reshape(-1, tensor.shape[-1]).numpy()
    return made


def _directions(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    made: npt.NDArray[np.float64] = rows / np.where(lengths == 0, 1, lengths)
    return made
