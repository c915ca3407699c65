"""Small random sentence encoders, and what PyTorch says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertConfig, BertModel

from rsn.programs.minilm import SentenceEncoder
from rsn.programs.sentences import save

LONGEST = 24
VOCABULARY = 100


class Words:
    """A tokenizer: a word's number is the sum of its letters."""

    def __call__(self, sentence: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *(2 + sum(map(ord, word)) % 96 for word in sentence.split()), 99]}


def small(seed: int) -> Any:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64,
    )  # fmt: skip
    return SentenceEncoder(BertModel(config, add_pooling_layer=False)).eval()


def saved(folder: Path, seed: int, name: str) -> Path:
    path = folder / f"{name}.rsnmodel"
    save(small(seed), path, (1, 4), LONGEST)
    return path


def expected(model: Any, ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """Each sequence alone."""
    with torch.no_grad():
        rows = [model(x := torch.tensor([one]), torch.ones_like(x))[0].numpy() for one in ids]
    return np.stack(rows)
