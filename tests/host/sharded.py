"""A small model in shards for tests, in a file, whose answers PyTorch knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import rsn
from rsn.host.model.file import NO_BOARD, identity, read
from rsn.host.replicas.files import StageFile
from rsn.host.serving import Serving

STAGES, SHARDS = 2, 2
VOCABULARY, LONGEST = 100, 24
NAMES = ("input_ids", "attention_mask")


def bert(seed: int) -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(seed)
    sizes: Any = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    return BertModel(BertConfig(vocab_size=VOCABULARY, **sizes), add_pooling_layer=False).eval()


def inputs(seed: int, batch: int = 1, length: int = LONGEST) -> dict[str, torch.Tensor]:
    ids = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def save(path: Path, seed: int = 0, *batches: int, stages: int = STAGES, shards: int = SHARDS) -> Path:
    """Write the model with weights from a seed, for batches of these sizes, or one sequence of `LONGEST` rows."""
    sizes: Any = {name: {0: rsn.Batch(*batches), 1: rsn.Length(LONGEST)} for name in NAMES} if batches else None
    rsn.compile(bert(seed), inputs(0), dynamic_shapes=sizes, boards=stages * shards, shards=shards).save(path)
    return path


def sources(path: Path, serving: Serving) -> list[StageFile]:
    own, saved = identity(path), read(path, NO_BOARD)
    return [
        StageFile(str(path), own, number, saved.boards, serving, None, saved.shards) for number in range(saved.boards)
    ]


def right(found: Any, wanted: Any) -> bool:
    """Whether a result is that of PyTorch."""
    x, y = found.last_hidden_state, wanted.last_hidden_state
    return bool((x - y).abs().max() <= 1e-5 * y.abs().max())
