"""The factors of a rotation that the host computes in each call."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True)
class Factors:
    """The factors of a rotation as tensors of the host, four-dimensional or with fewer leading dimensions; `heads` is
    the axis of the four that has one position."""

    own: Node
    partner: Node
    heads: int
