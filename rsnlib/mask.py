"""Attention masks in the machine's form: the number of valid keys of each sequence, counted from the first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import TensorError

# An additive mask at or below this hides a key: its exponential is zero in float32 beside any realistic score. Models
# use -inf, the least float32 and, in the past, -10000.
HIDDEN = -1e4


def attended_keys(mask: torch.Tensor, batch: int, seq: int, causal: bool = False) -> npt.NDArray[np.bool_]:
    """The valid keys, bool (batch, seq), of a mask that broadcasts to (batch, heads, rows, seq), with any rows.

    A bool mask is True at valid keys; a float mask is 0 there and at most -1e4 elsewhere. causal: the mask also hides
    the keys behind each row, and the last row shows the valid keys. Raises TensorError for other values or shapes, and
    for a mask that differs between heads or, apart from causality, between query rows.
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
    """Whether an attention mask hides the keys behind each row, whatever else it hides. Raises TensorError for a tensor
    that is not a mask."""
    mask = _truth(mask, batch, seq)
    return seq > 1 and mask.shape[2] == seq and _is_causal(mask, seq)


def _is_causal(mask: torch.Tensor, seq: int) -> bool:
    if mask.shape[2] != seq:
        return False
    ahead = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    return bool((mask == (mask[:, :, -1:] & ~ahead)).all())


def _truth(mask: torch.Tensor, batch: int, seq: int) -> torch.Tensor:
    """The mask as bool of shape (batch or 1, 1, any rows, seq or 1), True at valid keys. Raises TensorError."""
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    if len(shape) != 4 or shape[0] not in (1, batch) or shape[3] not in (1, seq):
        raise TensorError(f"an attention mask of {tuple(mask.shape)} does not fit {batch} sequences of {seq} keys")
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
    """The number of valid keys of each sequence, int64 (batch,), 1 to seq; for masks see `attended_keys`.

    Raises TensorError, naming the sequence, if the valid keys are not the first ones or there are none.
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
