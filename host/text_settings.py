"""What a server has to know of a model of texts, besides its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..base.json_values import Json, as_bool, as_int, as_list, as_str

ACTIVATIONS = ("sigmoid", "softmax")
"""What makes probabilities of logits."""


@dataclass(frozen=True)
class TextSettings:
    """What a server has to know of a model of texts. longest: the most tokens of a text. vocabulary: how many tokens
    there are. columns: of a vector of a text; of a classifier, its logits. has_types: the model takes `token_type_ids`.
    is_normalized: vectors have the length 1. prompt: text that is put in front of each text. labels: of a classifier,
    () for an encoder. activation: what makes scores of logits, one of `ACTIVATIONS`.

    Raises `ValueError` for numbers below 1, for another number of labels than of columns, and for another activation.
    """

    longest: int
    vocabulary: int
    columns: int
    has_types: bool = False
    is_normalized: bool = False
    prompt: str = ""
    labels: tuple[str, ...] = ()
    activation: str = "sigmoid"

    def __post_init__(self) -> None:
        if min(self.longest, self.vocabulary, self.columns) < 1 or len(self.labels) not in (0, self.columns):
            raise ValueError(f"no model of texts: {self}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"the activation {self.activation!r}")

    @classmethod
    def of(cls, given: Mapping[str, Json]) -> TextSettings:
        """Read the settings from JSON. Raises `LookupError` or `ValueError` for settings that are missing or wrong."""
        return cls(
            as_int(given["longest"]), as_int(given["vocabulary"]), as_int(given["columns"]),
            as_bool(given["has_types"]), as_bool(given["is_normalized"]), as_str(given["prompt"]),
            tuple(map(as_str, as_list(given["labels"]))), as_str(given["activation"]),
        )  # fmt: skip
