"""Models of texts as one module: from tokens to a vector for each text, or to the scores of a classifier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Embedder(nn.Module):
    """The modules of a `SentenceTransformer`, one behind the other. modules: each takes features by name and returns
    them; the last one adds `sentence_embedding`."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return float32 (texts, columns). input_ids, attention_mask, token_type_ids: int64 (texts, tokens)."""
        features: dict[str, Any] = _given(input_ids, attention_mask, token_type_ids)
        for part in self.parts:
            features = part(features)
        embedding: torch.Tensor = features["sentence_embedding"]
        return embedding


class Scorer(nn.Module):
    """The logits of a sequence classifier of transformers, without the rest of its result."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return float32 (texts, labels). input_ids, attention_mask, token_type_ids: int64 (texts, tokens)."""
        logits: torch.Tensor = self.classifier(**_given(input_ids, attention_mask, token_type_ids)).logits
        return logits


def _given(ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor | None) -> dict[str, Any]:
    given = {"input_ids": ids, "attention_mask": mask}
    return given if types is None else given | {"token_type_ids": types}
