"""Attention masks in the machine's form: which keys of each sequence are valid, and which of them each row sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import TensorError
from .key_spans import KeySpans

# An additive mask at or below this hides a key: its exponential is zero in float32 beside any realistic score. Models
# use -inf, the least float32 and, in the past, -10000.
HIDDEN = -1e4
FORBIDDEN = -1e30
"""Bias of masked-out scores: like -inf beside any real score, but finite."""


@dataclass(frozen=True)
class Pattern:
    """Which keys a mask shows to each row, apart from the keys of padding that it hides.

    causal: the row sees no keys behind it. window: the row sees only keys less than `window` rows before it and, unless
    causal, less than `window` rows behind it; None without such a limit. left: sequences may begin with padding.
    """

    causal: bool = False
    window: int | None = None
    left: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether all rows see the same keys."""
        return not self.causal and self.window is None

    def shows(self, seq: int) -> torch.Tensor:
        """Return whether each row sees each key, bool (seq, seq), without padding. seq: rows of a sequence, which are
        its keys too."""
        behind = torch.arange(seq)[:, None] - torch.arange(seq)
        shown = torch.ones(seq, seq, dtype=torch.bool)
        if self.window is not None:
            shown = behind.abs() < self.window
        return shown & (behind >= 0) if self.causal else shown

    def __str__(self) -> str:
        words = ["causal" * self.causal, f"a window of {self.window} rows" * (self.window is not None)]
        return " with ".join(filter(None, words)) or "of whole keys"


PLAIN = Pattern()


def attended_keys(mask: torch.Tensor, batch: int, seq: int, pattern: Pattern = PLAIN) -> npt.NDArray[np.bool_]:
    """Return the valid keys, bool (batch, seq), of a mask that broadcasts to (batch, heads, seq, seq).

    A bool mask is True at valid keys; a float mask is 0 there and at most -1e4 elsewhere. It may have more keys, of a
    cache that holds more rows, all hidden. pattern: which of the valid keys each row sees; rows that would see none may
    see all. Raises `TensorError` for other values or shapes, and for a mask that differs between heads or shows other
    keys than the pattern.
    """
    mask = _truth(mask, batch, seq)
    if pattern.is_plain:
        if not bool((mask == mask.narrow(2, 0, 1)).all()):
            raise TensorError(
                "the attention mask differs between query rows; supported are whole keys, causal masks and windows"
            )
        keys: npt.NDArray[np.bool_] = mask[:, 0, 0].expand(batch, seq).numpy()
        return keys
    full = mask.expand(-1, 1, seq, seq)[:, 0]
    # The last row sees all keys, or in a window some row sees each. A row of padding may see all keys, or none.
    every = full.all(-1, keepdim=True)
    in_window = torch.where(every.all(1), full[:, -1], (full & ~every).any(1))
    valid = full[:, -1] if pattern.window is None else in_window
    wanted = pattern.shows(seq) & valid[:, None]
    is_padding = ~wanted.any(-1, keepdim=True) & (every | ~full.any(-1, keepdim=True))
    if not bool(((full == wanted) | is_padding).all()):
        raise TensorError(f"the attention mask is not {pattern}, as it was in the example")
    shown: npt.NDArray[np.bool_] = valid.expand(batch, seq).numpy()
    return shown


def pattern_of(mask: torch.Tensor, batch: int, seq: int) -> Pattern:
    """Return which keys a mask shows to each row, and whether sequences begin with padding. mask, batch, seq: as for
    `attended_keys`. Raises `TensorError` for a mask that the machine cannot apply by itself."""
    truth = _truth(mask, batch, seq)
    first: TensorError | None = None
    for pattern in _candidates(truth, seq):
        try:
            starts = key_spans(truth, batch, seq, replace(pattern, left=True)).starts
        except TensorError as error:
            first = first or error
            continue
        assert starts is not None
        return replace(pattern, left=bool((starts > 0).any()))
    assert first is not None
    raise first


def _candidates(truth: torch.Tensor, seq: int) -> Iterator[Pattern]:
    yield PLAIN
    if truth.shape[2:] != (seq, seq) or seq == 1:
        return
    yield Pattern(causal=True)
    behind = (torch.arange(seq)[:, None] - torch.arange(seq)).expand(truth.shape[0], seq, seq)
    # Rows that see all or no keys are padding; the window is the distance of the farthest key that another row sees.
    rows = truth[:, 0]
    seen = behind[rows & ~rows.all(-1, keepdim=True)]
    if not len(seen):
        return
    before, after = int(seen.max()) + 1, int(-seen.min()) + 1
    if after == 1:
        yield Pattern(causal=True, window=before)
    elif before >= 1:
        yield Pattern(window=max(before, after))


def is_causal(mask: torch.Tensor, batch: int, seq: int) -> bool:
    """Return whether an attention mask hides the keys behind each row, whatever else it hides. mask, batch, seq: as for
    `attended_keys`. Raises `TensorError` for a tensor that is not a mask."""
    truth = _truth(mask, batch, seq)
    if seq == 1 or truth.shape[2:] != (seq, seq):
        return False
    try:
        attended_keys(truth, batch, seq, Pattern(causal=True))
    except TensorError:
        return False
    return True


def _truth(mask: torch.Tensor, batch: int, seq: int) -> torch.Tensor:
    """The mask as bool of shape (batch or 1, 1, any rows, seq or 1), True at valid keys. Raises TensorError."""
    shape = (1,) * (4 - mask.ndim) + tuple(mask.shape)
    if len(shape) != 4 or shape[0] not in (1, batch) or 1 < shape[3] < seq:
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
    if mask.shape[3] > seq:  # of a cache that holds more rows
        if bool(mask[..., seq:].any()):
            raise TensorError(f"the attention mask shows rows of a cache behind the {seq} new ones")
        mask = mask[..., :seq]
    if not bool((mask == mask.narrow(1, 0, 1)).all()):
        raise TensorError("the attention mask differs between heads; supported are whole keys and causal masks")
    return mask.narrow(1, 0, 1)


def key_spans(mask: torch.Tensor, batch: int, seq: int, pattern: Pattern = PLAIN) -> KeySpans:
    """Return the valid keys of each sequence, 1 to seq in one piece. mask, batch, seq, pattern: as for `attended_keys`.
    `starts` is None unless the pattern has padding on the left.

    Raises `TensorError` as `attended_keys` does and, naming the sequence, if the valid keys are not in one piece, if
    there are none, or if they are not the first ones and the pattern has no padding on the left.
    """
    keys = attended_keys(mask, batch, seq, pattern)
    starts = keys.argmax(axis=1).astype(np.int64) if pattern.left else np.zeros(batch, np.int64)
    counts: npt.NDArray[np.int64] = keys.sum(axis=1, dtype=np.int64)
    for i in range(batch):
        if counts[i] == 0:
            raise TensorError(f"the attention mask hides every key of sequence {i}")
        if not keys[i, starts[i] : starts[i] + counts[i]].all():
            if pattern.left:
                raise TensorError(f"the attention mask of sequence {i} hides a key between others that it shows")
            gap = int(np.argmin(keys[i]))
            raise TensorError(
                f"the attention mask of sequence {i} is not a prefix: key {gap} is hidden and a later one is not; "
                "pad on the right, or give an example that is padded on the left"
            )
    return KeySpans(starts + counts, starts if pattern.left else None)
