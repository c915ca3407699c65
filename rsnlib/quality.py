"""What quantisation costs: embeddings, logits, or other rows of numbers, of a model beside those of the same in
float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from scipy.stats import spearmanr
from torch import Tensor
from torch.utils import _pytree as pytree

from ..base.errors import RsnError, TensorError
from .graph_split import Examples
from .verification import Visible

NO_TOKEN = -100
"""Stands for a token that does not count, such as padding; as in PyTorch's `cross_entropy`."""
FEWEST = 3
"""Rows from which on their pairs have an order."""


@dataclass(frozen=True)
class Quality:
    """How near rows of results are to those of a reference.

    rows: how many rows were compared. worst, mean: the smallest and the mean cosine of a row and the reference's row; 1
    is the same direction. spearman: rank correlation of the cosines between all pairs of rows, the model's with the
    reference's; 1 is the same order; None for fewer than three rows, for pairs that are all equally near, and for
    logits. largest: the largest difference of an element, divided by the reference's largest magnitude. perplexity,
    of_reference: of given tokens, by the logits of the model and of the reference; None without tokens.
    """

    rows: int
    worst: float
    mean: float
    spearman: float | None
    largest: float
    perplexity: float | None = None
    of_reference: float | None = None


def quality(
    model: Callable[..., Any],
    reference: Callable[..., Any],
    batches: Iterable[Examples],
    perplexity_of: Iterable[Tensor] | None = None,
) -> Quality:
    """Compare the rows that two models compute: the last dimension of the first tensor that they return.

    model, reference: modules, or what `rsn.compile` returns. batches: arguments, by position or by name. perplexity_of:
    where results are logits (batch, seq, vocabulary), for each batch the tokens (batch, seq) that it was made of: the
    logits of each position tell the probability of the next token. `NO_TOKEN` is not counted. None: the result has no
    perplexity. Raises `TensorError` for no rows, for results of other shapes than the reference's, for results that are
    not finite, and for tokens that do not fit the logits.
    """
    batches = list(batches)
    tokens = None if perplexity_of is None else list(perplexity_of)
    return _quality(_results(model, batches), _results(reference, batches), tokens)


def quality_in_steps(
    compiled: Callable[[], Any],
    model: Callable[[], Any],
    reference: Callable[[], Any],
    perplexity_of: Tensor | None,
    visible: Callable[[], Visible | None],
) -> tuple[Quality, Quality]:
    """Return what quantisation costs, and what the machine adds: the `quality` of a quantised model beside its
    reference in float32, and of the compiled model beside the quantised one.

    compiled, model, reference: each computes the same call, and returns its result. perplexity_of: the tokens (batch,
    seq) of this call, as for `quality`; None for no perplexity. visible: called behind the compiled model; returns the
    rows that masks show, others are padding and not compared. Raises as `quality`.
    """
    tokens = None if perplexity_of is None else [perplexity_of]
    try:
        wanted = _results(reference, [()])
    except RsnError:
        raise
    except Exception as error:  # whatever a module raises that takes other arguments
        raise TensorError(f"the reference cannot compute this call: {type(error).__name__}: {error}") from error
    machine, quantised = _results(compiled, [()]), _results(model, [()])
    shown = visible()
    return _quality(quantised, wanted, tokens, shown), _quality(machine, quantised, tokens, shown)


def _quality(
    results: list[Tensor], references: list[Tensor], tokens: list[Tensor] | None, visible: Visible | None = None
) -> Quality:
    got, wanted = _rows(results, visible), _rows(references, visible)
    if got.shape != wanted.shape:
        raise TensorError(f"results of shape {got.shape}; those of the reference have {wanted.shape}")
    if not got.size:
        raise TensorError("no rows to compare")
    if not (np.isfinite(got).all() and np.isfinite(wanted).all()):
        raise TensorError("a result is not finite")
    one, other = _directions(got), _directions(wanted)
    cosines = (one * other).sum(1)
    ranks = None
    if tokens is None and len(one) >= FEWEST:
        pairs = np.triu_indices(len(one), 1)
        near = [(x @ x.T)[pairs] for x in (one, other)]
        if all(np.ptp(x) for x in near):
            ranks = float(spearmanr(*near).statistic)
    largest = float(np.abs(got - wanted).max() / (np.abs(wanted).max() or 1.0))
    both = (None, None) if tokens is None else tuple(_perplexity(x, tokens, visible) for x in (results, references))
    return Quality(len(got), float(cosines.min()), float(cosines.mean()), ranks, largest, *both)


def _results(model: Callable[..., Any], batches: list[Examples]) -> list[Tensor]:
    """The first tensor that a model returns for each batch, in float64."""
    made = []
    for batch in batches:
        with torch.no_grad():
            result = model(**batch) if isinstance(batch, dict) else model(*batch)
        tensors = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
        if not tensors or not tensors[0].dim():
            raise TensorError(f"a model returns {type(result).__name__} without rows to compare")
        made.append(tensors[0].detach().double())
    return made


def _shown(x: Tensor, visible: Visible | None) -> Tensor:
    """Which rows of a result are compared: bool, of its shape without the last dimension."""
    rows = None if visible is None or x.dim() < 3 else visible.rows(x.shape)
    return torch.ones(x.shape[:-1], dtype=torch.bool) if rows is None else rows.expand(*x.shape[:-1], 1)[..., 0]


def _rows(results: list[Tensor], visible: Visible | None) -> npt.NDArray[np.float64]:
    if len({x.shape[-1] for x in results}) > 1:
        raise TensorError(
            f"rows of {' and '.join(str(x.shape[-1]) for x in results)} numbers cannot be compared as one"
        )
    return np.concatenate([x[_shown(x, visible)].numpy() for x in results]) if results else np.zeros((0, 1))


def _directions(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    made: npt.NDArray[np.float64] = rows / np.where(lengths == 0, 1, lengths)
    return made


def _perplexity(results: list[Tensor], tokens: list[Tensor], visible: Visible | None) -> float:
    """exp of the mean of -log of the probability of each next token. Raises `TensorError`."""
    if len(results) != len(tokens):
        raise TensorError(f"tokens of {len(tokens)} batches; there are {len(results)}")
    losses = []
    for logits, given in zip(results, tokens, strict=True):
        if given.dim() != 2 or given.is_floating_point() or logits.shape[:-1] != given.shape:
            shapes = f"{given.dtype} {tuple(given.shape)}; the results are {tuple(logits.shape)}"
            raise TensorError(
                f"tokens are {shapes}: a perplexity takes integers (batch, seq), and a logit for each token"
            )
        following, shown = given[:, 1:].long(), _shown(logits, visible)
        is_counted = (following != NO_TOKEN) & shown[:, :-1] & shown[:, 1:]  # padding follows nothing
        wanted = following[is_counted]
        if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < logits.shape[-1]:
            raise TensorError(
                f"tokens from {wanted.min()} to {wanted.max()}; the results have {logits.shape[-1]} logits"
            )
        losses.append(F.cross_entropy(logits[:, :-1][is_counted], wanted, reduction="none"))
    all_losses = torch.cat(losses)
    if not all_losses.numel():
        raise TensorError("no token behind another one: a perplexity is of tokens that follow others")
    return exp(float(all_losses.mean()))
