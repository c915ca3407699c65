"""Functions of elements and of heads, as units behind an MME apply them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...base.errors import ProgramError
from .tiles import Array


class HeadNorm(NamedTuple):
    """A norm over the first `columns` columns of each head; those behind become 0. eps: added to the variance. rms:
    without mean: x / sqrt(mean square + eps)."""

    columns: int
    eps: float
    rms: bool

    def apply(self, x: Array) -> Array:
        """Return x with each head normalised, and columns behind `columns` 0. x: (rows, heads, columns from a head to
        the next), float32; the result has this shape too.
        """
        out = np.zeros_like(x)
        part = x[:, :, : self.columns]
        if not self.rms:
            part = part - part.sum(axis=2, keepdims=True, dtype=np.float32) / np.float32(self.columns)
        variance = np.square(part).sum(axis=2, keepdims=True, dtype=np.float32) / np.float32(self.columns)
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, :, : self.columns] = part * (np.float32(1) / np.sqrt(variance + np.float32(self.eps)))
        return out


def erf(x: Array) -> Array:
    """Return the error function of each element, float32 of the shape of x."""
    from scipy import special  # here, because importing it takes longer than most commands

    return np.asarray(special.erf(x), np.float32)


def activation(x: Array, which: int) -> Array:
    """Return x behind an activation, element by element: float32 of the shape of x. which: 0 gelu by tanh, 1 gelu by
    erf, 2 relu, 3 silu, 4 x itself. Raises `ProgramError` for another number.
    """
    match which:
        case 0:
            inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
            out = np.float32(0.5) * x * (1 + np.tanh(inner))
        case 1:
            out = np.float32(0.5) * x * (1 + erf(x * np.float32(0.7071067811865476)))
        case 2:
            out = np.where(x < 0, np.float32(0), x)  # of -0 it is -0, as in PyTorch and on the device
        case 3:
            with np.errstate(over="ignore"):
                out = x / (1 + np.exp(-x))
        case 4:
            out = x
        case _:
            raise ProgramError(f"MemC activation {which} is not defined")
    return np.asarray(out, np.float32)
