"""The factors of a rotation that the host computes in each call."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True)
class Factors:
    """The factors of a rotation, computed by the host: `own` for each column, `partner` for the column that it is
    paired with. Both broadcast to (batch, heads, rows, columns). heads: the axis of those four in which they have one
    position."""

    own: Node
    partner: Node
    heads: int
