"""Operators of rewritten graphs: `rsn::rotate`, rotary positions; `rsn::roll_in`, a new row of a cache whose rows move
up; and the factors of a rotation that the host computes in each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import Node

LIBRARY = torch.library.Library("rsn", "DEF")
LIBRARY.define("rotate(Tensor x, Tensor own, Tensor partner, int[] partners) -> Tensor")


LIBRARY.define("roll_in(Tensor cache, Tensor new) -> Tensor")


def roll_in(cache: Tensor, new: Tensor) -> Tensor:
    """Return the cache, (batch, heads, rows, columns), without its first rows, and with the new ones, (batch, heads,
    new rows, columns), behind it."""
    return torch.cat([cache[:, :, new.shape[2] :], new], 2)


def rotate(x: Tensor, own: Tensor, partner: Tensor, partners: Sequence[int]) -> Tensor:
    """Return x[..., c] * own[..., c] + x[..., partners[c]] * partner[..., c]. x: (..., columns). own, partner: are
    broadcast to x. partners: the column that each is paired with, from 0 on."""
    return x * own + x[..., list(partners)] * partner


LIBRARY.impl("rotate", rotate, "CompositeImplicitAutograd")
LIBRARY.impl("roll_in", roll_in, "CompositeImplicitAutograd")
ROTATE = torch.ops.rsn.rotate
ROLL_IN = torch.ops.rsn.roll_in


@dataclass(frozen=True)
class Factors:
    """The factors of a rotation, computed by the host: `own` for each column, `partner` for the column that it is
    paired with. Both broadcast to (batch, heads, rows, columns), or to (batch, rows, heads, columns). heads: the axis
    of heads among those four, 1 or 2, along which they have one position."""

    own: Node
    partner: Node
    heads: int
