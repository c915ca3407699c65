"""Attention masks as the machine knows them: how many keys, from the first, take part in each sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..isa.errors import TensorError

# An additive mask at or below this hides a key: its exponential is zero in float32 beside any realistic score. Models
# use -inf, the least float32 and, in the past, -10000.
HIDDEN = -1e4


def attended_keys(mask: torch.Tensor, batch: int, seq: int) -> npt.NDArray[np.bool_]:
    """The keys that take part, (batch, seq), from a mask that broadcasts to (batch, heads, seq, seq).

    A bool mask is True at such a key, a float mask 0 there and at most -1e4 elsewhere. Raises TensorError for other
    values, another shape, and a mask that differs between heads or between query rows, as a causal one does.
    """
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[2] not in (1, seq) or shape[3] not in (1, seq):
        raise TensorError(f"an attention mask of {tuple(mask.shape)} does not fit {batch} sequences of {seq} rows")
    mask = mask.detach().reshape(shape)
    for axis in (1, 2):  # expanded dimensions need no comparison
        if mask.stride(axis) == 0:
            mask = mask.narrow(axis, 0, 1)
    if mask.dtype != torch.bool:
        if not mask.dtype.is_floating_point:
            raise TensorError(f"an attention mask is bool or float, not {mask.dtype}")
        hidden = mask <= HIDDEN
        if not bool((hidden | (mask == 0)).all()):
            raise TensorError(f"a float attention mask must be 0 or at most {HIDDEN:g}; a bias is not supported")
        mask = ~hidden
    for axis, what in ((1, "heads"), (2, "query rows")):
        if not bool((mask == mask.narrow(axis, 0, 1)).all()):
            raise TensorError(f"the attention mask differs between {what}; only masks of whole keys are supported")
    keys: npt.NDArray[np.bool_] = mask[:, 0, 0].expand(batch, seq).numpy()
    return keys


def prefix_lengths(mask: torch.Tensor, batch: int, seq: int) -> npt.NDArray[np.int64]:
    """How many keys take part in each sequence, (batch,), each 1 .. seq; for masks see attended_keys.

    Raises TensorError, naming the sequence, where these keys are not the first ones or where there are none.
    """
    keys = attended_keys(mask, batch, seq)
    lengths: npt.NDArray[np.int64] = keys.sum(axis=1, dtype=np.int64)
    for i in range(batch):
        if lengths[i] == 0:
            raise TensorError(f"the attention mask hides every key of sequence {i}")
        if not keys[i, : lengths[i]].all():
            gap = int(np.argmin(keys[i]))
            raise TensorError(
                f"the attention mask of sequence {i} is not a prefix: key {gap} is hidden and a later one is not; "
                "pad on the right"
            )
    return lengths
