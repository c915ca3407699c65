"""The choice of the next token from a model's logits."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from ...base.errors import TensorError
from ...isa.layout import Array


@dataclass(frozen=True)
class TokenScores:
    """What the model gives to a token. logprob: the logarithm of its probability, before temperature, penalties and
    biases. top: the most probable tokens, each with that logarithm."""

    logprob: float
    top: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, logits: Array, token: int, count: int) -> TokenScores:
        """Return the scores of a token. logits: (vocabulary,), float32, the largest one finite. count: tokens of
        `top`."""
        wide = logits.astype(np.float64) - logits.max()
        wide -= np.log(np.exp(wide).sum())
        best = np.argsort(-wide, kind="stable")[:count]
        return cls(float(wide[token]), tuple((int(i), float(wide[i])) for i in best))


@dataclass(frozen=True)
class Sampling:
    """How the tokens of a request are chosen, and when it ends.

    max_tokens: the most tokens. temperature: 0 always takes the most probable token, the first of equal ones. top_k:
    how many of the most probable tokens can be chosen; 0: all. top_p: only the most probable tokens that together have
    this probability can be chosen. seed: of the random numbers; None takes others each time. stop_tokens: tokens that
    end the text; they are not part of it. presence_penalty: is subtracted from the logits of tokens that are in the
    text already; the prompt does not count. frequency_penalty: is subtracted as many times as the token is in the text.
    logit_bias: added to logits, by token. logprobs: how many of the most probable tokens come with each token, and its
    own probability; None for neither. Raises `TensorError` for a value out of range.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("max_tokens", 1), ("top_k", 0), ("seed", 0), ("logprobs", 0)):
            whole: Any = getattr(self, name)
            if whole is None and name in ("seed", "logprobs"):
                continue
            if type(whole) is bool or not isinstance(whole, int | np.integer) or whole < least:
                raise TensorError(f"{name} is {whole!r}; it should be a whole number from {least} on")
        largest = sys.float_info.max
        ranges = {"temperature": (0.0, largest), "top_p": (0.0, 1.0)}
        ranges |= dict.fromkeys(("presence_penalty", "frequency_penalty"), (-largest, largest))
        for name, (low, high) in ranges.items():
            value: Any = getattr(self, name)
            if not _is_number(value) or not low <= value <= high:  # NaN is not
                raise TensorError(f"{name} is {value!r}; it should be a number from {low:g} to {high:g}")
        biases = self.logit_bias
        if not isinstance(biases, Mapping) or not all(
            isinstance(x, int | np.integer) and x >= 0 and _is_number(y) and isfinite(y) for x, y in biases.items()
        ):
            raise TensorError(f"logit_bias is {biases!r}; it should have a finite number for each of some tokens")
        stops = self.stop_tokens
        if not isinstance(stops, Collection) or not all(isinstance(x, int | np.integer) for x in stops):
            raise TensorError(f"stop_tokens is {stops!r}; it should be a set of tokens")
        object.__setattr__(self, "stop_tokens", frozenset(map(int, stops)))

    def generator(self) -> np.random.Generator:
        """A new generator of random numbers for one request, from `seed`."""
        return np.random.default_rng(self.seed)

    def token(self, logits: Array, random: np.random.Generator, made: Sequence[int] = ()) -> int:
        """Choose a token, a number from 0 on. logits: (vocabulary,), float32; -inf is a token that is never chosen.
        random: from `generator`; unused with temperature 0. made: the tokens of the text so far, without its prompt.

        Raises `TensorError` if logits are no numbers, or none is finite, and for a bias of an unknown token.
        """
        logits = self._adjusted(logits, made)
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

    def _adjusted(self, logits: Array, made: Sequence[int]) -> Array:
        """The logits with penalties and biases."""
        if not self.logit_bias and not self.presence_penalty and not self.frequency_penalty:
            return logits
        found = logits.copy()
        tokens, counts = np.unique(np.array(made, np.int64), return_counts=True)
        found[tokens] -= (self.presence_penalty + self.frequency_penalty * counts).astype(np.float32)
        for token, bias in self.logit_bias.items():
            if token >= len(found):
                raise TensorError(f"logit_bias has token {token}; the vocabulary has {len(found)}")
            found[token] += np.float32(bias)
        return found


def _is_number(value: Any) -> bool:
    return type(value) is not bool and isinstance(value, int | float | np.number)
