"""Small random sentence encoders, and what PyTorch says of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import BertConfig, BertModel

import rsn
from rsn.programs.minilm import SentenceEncoder

LONGEST = 24
VOCABULARY = 100


def small(seed: int) -> Any:
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64,
    )  # fmt: skip
    return SentenceEncoder(BertModel(config, add_pooling_layer=False)).eval()


def saved(folder: Path, seed: int, name: str) -> Path:
    """Compile a model for one and four sequences of up to `LONGEST` tokens, and save it."""
    path = folder / f"{name}.rsnmodel"
    mask = torch.ones(4, LONGEST, dtype=torch.long)
    example = {"input_ids": 2 * mask, "attention_mask": mask}  # ids of 0 and 1 would be taken for a mask
    sizes = {name: {0: rsn.Batch(1, 4), 1: rsn.Length(LONGEST)} for name in example}
    rsn.compile(small(seed), example, dynamic_shapes=sizes).save(path)
    return path


def expected(model: Any, ids: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
    """Each sequence alone."""
    with torch.no_grad():
        rows = [model(x := torch.tensor([one]), torch.ones_like(x))[0].numpy() for one in ids]
    return np.stack(rows)
