"""The operator `rsn::rotate`, rotary positions as one operator of a rewritten graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LIBRARY = torch.library.Library("rsn", "DEF")
LIBRARY.define("rotate(Tensor x, Tensor own, Tensor partner, int[] partners) -> Tensor")


def rotate(x: Tensor, own: Tensor, partner: Tensor, partners: Sequence[int]) -> Tensor:
    """x[..., c] * own[..., c] + x[..., partners[c]] * partner[..., c]."""
    return x * own + x[..., list(partners)] * partner


LIBRARY.impl("rotate", rotate, "CompositeImplicitAutograd")
ROTATE = torch.ops.rsn.rotate
