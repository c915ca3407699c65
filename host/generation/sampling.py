"""The choice of the next token from a model's logits."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.errors import TensorError
from ...isa.layout import Array


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a request are chosen, and when it ends.

    max_tokens: the most tokens. temperature: 0 always takes the most probable token, the first of equal ones. top_k:
    how many of the most probable tokens can be chosen; 0: all. top_p: only the most probable tokens that together have
    this probability can be chosen. seed: of the random numbers; None takes others each time. stop_tokens: tokens that
    end the text; they are not part of it. Raises `TensorError` for a value out of range.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("top_k", 0), ("seed", 0)):
            whole: Any = getattr(self, name)
            if whole is None and name == "seed":
                continue
            if type(whole) is bool or not isinstance(whole, int | np.integer) or whole < least:
                raise TensorError(f"{name} is {whole!r}; it should be a whole number from {least} on")
        for name, high in (("temperature", sys.float_info.max), ("top_p", 1.0)):
            value: Any = getattr(self, name)
            number = type(value) is not bool and isinstance(value, int | float | np.number)
            if not number or not 0 <= value <= high:  # NaN is not
                raise TensorError(f"{name} is {value!r}; it should be a number from 0 to {high:g}")
        stops = self.stop_tokens
        if not isinstance(stops, Collection) or not all(isinstance(x, int | np.integer) for x in stops):
            raise TensorError(f"stop_tokens is {stops!r}; it should be a set of tokens")
        object.__setattr__(self, "stop_tokens", frozenset(map(int, stops)))

    def generator(self) -> np.random.Generator:
        """A new generator of random numbers for one request, from `seed`."""
        return np.random.default_rng(self.seed)

    def token(self, logits: Array, random: np.random.Generator) -> int:
        """Choose a token, a number from 0 on. logits: (vocabulary,), float32; -inf is a token that is never chosen.
        random: from `generator`; unused with temperature 0.

        Raises `TensorError` if logits are no numbers, or none is finite.
        """
        largest = logits.max()
        if not np.isfinite(largest):  # also if one is NaN
            raise TensorError(f"the model's largest logit is {largest}, so that no token can be chosen")
        if self.temperature == 0:
            return int(np.argmax(logits))
        with np.errstate(over="ignore"):  # at a tiny temperature all others are infinitely far from the largest
            scores = (logits.astype(np.float64) - largest) / float(self.temperature)
        order = np.argsort(-scores, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        weights = np.exp(scores[order])
        shares = weights / weights.sum()
        # the first token always stays
        kept = np.cumsum(shares) - shares < self.top_p if self.top_p > 0 else np.arange(len(shares)) < 1
        shares = shares[kept] / shares[kept].sum()
        return int(random.choice(order[kept], p=shares))
