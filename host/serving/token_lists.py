"""Lists of tokens as the tensors that a model of texts takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def padded(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None
) -> dict[str, npt.NDArray[np.int64]]:
    """Return `input_ids` and `attention_mask`, and with `types` also `token_type_ids`, int64 (texts, tokens), padded on
    the right to the longest text. ids: the tokens of each text. types: for each token, which part of a pair it belongs
    to, 0 or 1; None for none."""
    given = {"input_ids": ids, "attention_mask": [[1] * len(text) for text in ids]}
    given |= {} if types is None else {"token_type_ids": types}
    width = max(map(len, ids))
    made = {name: np.zeros((len(ids), width), np.int64) for name in given}
    for name, rows in given.items():
        for i, row in enumerate(rows):
            made[name][i, : len(row)] = row
    return made


def runs(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield lists of the numbers of texts that share a run. Texts of like lengths are together, because each takes the
    time of the longest. lengths: of the texts, in tokens. most: the most texts of a run."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for at in range(0, len(order), most):
        yield order[at : at + most]
