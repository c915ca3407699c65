"""Attention masks as the machine knows them: how many keys, from the first, take part in each sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import TensorError

# An additive mask at or below this hides a key: its exponential is zero in float32 beside any realistic score. Models
# use -inf, the least float32 and, in the past, -10000.
HIDDEN = -1e4


def attended_keys(mask: torch.Tensor, batch: int, seq: int, causal: bool = False) -> npt.NDArray[np.bool_]:
    """The keys that take part, (batch, seq), from a mask that broadcasts to (batch, heads, seq, seq).

    A bool mask is True at such a key, a float mask 0 there and at most -1e4 elsewhere. With `causal` it hides for each
    row the keys behind it too, and what the last row sees takes part. Raises TensorError for other values, another
    shape, and a mask that differs between heads or, but for that, between query rows.
    """
    mask = _truth(mask, batch, seq)
    if causal:
        keys: npt.NDArray[np.bool_] = mask[:, 0, -1].expand(batch, seq).numpy()
        if not _is_causal(mask, seq):
            raise TensorError("the attention mask is not causal, as it was in the example")
        return keys
    if not bool((mask == mask.narrow(2, 0, 1)).all()):
        raise TensorError("the attention mask differs between query rows; supported are whole keys and causal masks")
    keys = mask[:, 0, 0].expand(batch, seq).numpy()
    return keys


def is_causal(mask: torch.Tensor, batch: int, seq: int) -> bool:
    """Whether an attention mask hides for each row the keys behind it, whatever else it hides. Raises TensorError for
    what is no mask."""
    mask = _truth(mask, batch, seq)
    return seq > 1 and mask.shape[2] == seq and _is_causal(mask, seq)


def _is_causal(mask: torch.Tensor, seq: int) -> bool:
    if mask.shape[2] != seq:
        return False
    ahead = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    return bool((mask == (mask[:, :, -1:] & ~ahead)).all())


def _truth(mask: torch.Tensor, batch: int, seq: int) -> torch.Tensor:
    """Whether a key takes part, four-dimensional, heads dropped."""
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
    if not bool((mask == mask.narrow(1, 0, 1)).all()):
        raise TensorError("the attention mask differs between heads; supported are whole keys and causal masks")
    return mask.narrow(1, 0, 1)


def prefix_lengths(mask: torch.Tensor, batch: int, seq: int, causal: bool = False) -> npt.NDArray[np.int64]:
    """How many keys take part in each sequence, (batch,), each 1 .. seq; for masks see attended_keys.

    Raises TensorError, naming the sequence, where these keys are not the first ones or where there are none.
    """
    keys = attended_keys(mask, batch, seq, causal)
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
