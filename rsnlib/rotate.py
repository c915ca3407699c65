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
    """The cache without its first rows, and new ones behind it; (batch, heads, rows, columns)."""
    return torch.cat([cache[:, :, new.shape[2] :], new], 2)


def rotate(x: Tensor, own: Tensor, partner: Tensor, partners: Sequence[int]) -> Tensor:
    """x[..., c] * own[..., c] + x[..., partners[c]] * partner[..., c]."""
    return x * own + x[..., list(partners)] * partner


LIBRARY.impl("rotate", rotate, "CompositeImplicitAutograd")
LIBRARY.impl("roll_in", roll_in, "CompositeImplicitAutograd")
ROTATE = torch.ops.rsn.rotate
ROLL_IN = torch.ops.rsn.roll_in


@dataclass(frozen=True)
class Factors:
    """The factors of a rotation, computed by the host: `own` for each column, `partner` for the column that it is
    paired with. Both broadcast to (batch, heads, rows, columns). heads: the axis of those four in which they have one
    position."""

    own: Node
    partner: Node
    heads: int
