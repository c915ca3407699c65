"""What the C++ machine of xnn8 does not compute is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from rsn.hw.versal.csim.xnn8_limits import beyond
from rsn.isa.fields import Record
from rsn.isa.overlays.xnn8.emission import Destination, HeadsRound
from rsn.isa.overlays.xnn8.formats import ChunkEnd, ChunkSource, LaneMemory, RowOp
from rsn.isa.overlays.xnn8.lanes import HEADS

from .test_csim_xnn8 import Layer

BEFORE = "keys and values that lie two heads or more before those of the first head"
NARROW = "heads of 32 columns that become rows"


def layer(head_dim: int = 64) -> dict[str, list[Record]]:
    """The instructions of a product, and of attention with two lanes of 32 rows."""
    hand = Layer(1, 1, 1, 2, 32)
    hand.begin(1, None)
    hand.product(ChunkSource.X8, 0, 1, Destination(0, True, (HEADS,)), 1, 0)
    hand.emit.attention(HeadsRound(4, 0, 2, 6, 1, head_dim, 64, 64), last=True)
    hand.store(1)
    return hand.emit.sequences


def missing(units: dict[str, list[Record]]) -> str | None:
    return beyond([mop for mops in units.values() for mop in mops])


def test_an_encoder_layer_is_not_refused() -> None:
    assert missing(layer()) is None


@pytest.mark.parametrize("head_dim", [32, 128])
def test_heads_of_other_widths_are_not_refused(head_dim: int) -> None:
    assert missing(layer(head_dim)) is None


@pytest.mark.parametrize(
    ("unit", "which", "fields", "what"),
    [
        ("Rows0", {"op": RowOp.LOAD}, {"memory": LaneMemory.ANGLES, "blocks": 2}, None),
        ("Rows0", {"op": RowOp.TAKE}, {"gated": 1, "rotated": 1}, "a gate with a rotation"),
        ("Rows0", {"op": RowOp.TAKE}, {"norm": 1}, None),
        ("Rows0", {"op": RowOp.TAKE}, {"norm": 1, "gated": 1}, "norms of heads behind a gate or a residual"),
        ("Rows0", {"op": RowOp.STORE}, {"memory": LaneMemory.T}, None),
        ("Rows0", {"op": RowOp.LOAD}, {"memory": LaneMemory.T}, None),
        ("Rows0", {"op": RowOp.SEND}, {"op": RowOp.SUM}, None),
        ("Rows0", {"op": RowOp.SEND}, {"op": RowOp.SUM, "slot": 1}, "an addend that lies partly where results go"),
        ("Rows0", {"op": RowOp.SEND}, {"op": RowOp.SUM, "source": 1}, None),
        ("Rows0", {"op": RowOp.SEND}, {"rows": 16}, "lanes with other numbers of rows"),
        ("Rows0", {"op": RowOp.SEND}, {"low_bits": 8}, None),
        ("Rows0", {"attention": 1}, {"groups": 2, "skip": 4}, BEFORE),
        ("Rows0", {"attention": 1}, {"key_rows": 64}, None),
        ("Send0", {"source": 2}, {"skip": 1}, None),
        ("Heads0", {}, {"values": 127, "groups": 3}, None),
        ("Send0", {"source": 2}, {"others": 2, "first_row": 64}, None),
        ("Heads0", {}, {"skip": 3}, BEFORE),
        ("DDR", {"end": ChunkEnd.LOAD}, {"end": ChunkEnd.LOAD_T}, None),
        ("DDR", {"end": ChunkEnd.LOAD}, {"end": ChunkEnd.LOAD_ROWS}, None),
        ("Rows0", {"op": RowOp.STORE}, {"by_row": 1, "memory": LaneMemory.T}, None),
        ("Rows0", {"attention": 1}, {"spread": 1, "key_rows": 64}, None),
        ("Send0", {"source": 2}, {"grouped": 1}, None),
        ("Send0", {"source": 2}, {"grouped": 1, "narrow": 1}, NARROW),
        ("Engine0", {"attention": 1}, {"spread": 1, "key_rows": 64}, None),
    ],
)
def test_what_it_lacks_is_refused_by_name(
    unit: str, which: dict[str, Any], fields: dict[str, int], what: str | None
) -> None:
    """what: None for what it has."""
    units = layer()
    mops = units[unit]
    at = next(i for i, mop in enumerate(mops) if all(getattr(mop, k) == v for k, v in which.items()))
    mops[at] = mops[at].replace(**fields)
    assert missing(units) == what
