"""What the C++ machine of xnn8 does not compute yet, of what its overlay states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....isa.fields import Record
from ....isa.overlays.xnn8.formats import (
    ROW_STEP,
    ChunkSource,
    PanelHeads,
    PanelRows,
    PanelSend,
    RowOp,
    cells,
)
from ....isa.overlays.xnn8.rows import blocks_of_results


@dataclass(frozen=True)
class _Limits:
    rows: int
    """Of a lane, in the whole program."""

    def of(self, mop: Record) -> Iterator[str]:
        """Yield what an instruction asks for beyond the C++ sources."""
        match mop:
            case PanelRows() if mop.blocks:
                yield from self._rows(mop)
            case PanelSend() if mop.chunks:
                yield from self._send(mop)
            case PanelHeads() if mop.heads:
                yield from self._heads(mop)

    def _rows(self, mop: PanelRows) -> Iterator[str]:
        if mop.gated and mop.rotated:
            yield "a gate with a rotation"
        yield from self._lanes(mop)
        if mop.op == RowOp.TAKE:
            if mop.norm and (mop.gated or mop.residual):
                yield "norms of heads behind a gate or a residual"
            if mop.attention:
                yield from self._heads(mop)
        blocks = blocks_of_results(mop, mop.blocks) if mop.op == RowOp.TAKE else mop.blocks
        added = [mop.residual_slot] * (mop.residual > 0) + [mop.source] * (mop.op == RowOp.SUM)
        near = [mop.slot - slot for slot in added if abs(mop.slot - slot) < blocks * cells(self.rows)]
        # blocks of a sum are read in their order, and so before results go there, if these go in front of them
        if any(by > 0 or (by and mop.op == RowOp.TAKE) for by in near):
            yield "an addend that lies partly where results go"

    def _send(self, mop: PanelSend) -> Iterator[str]:
        yield from self._lanes(mop)
        if mop.source == ChunkSource.QUERIES:
            yield from self._heads(mop)

    def _heads(self, mop: PanelRows | PanelSend | PanelHeads) -> Iterator[str]:
        if not isinstance(mop, PanelHeads) and mop.grouped and mop.narrow:
            yield "heads of 32 columns that become rows"
        if mop.skip >= 2 * mop.groups:
            yield "keys and values that lie two heads or more before those of the first head"

    def _lanes(self, mop: PanelRows | PanelSend) -> Iterator[str]:
        if mop.rows != self.rows:
            yield "lanes with other numbers of rows"


def beyond(mops: Sequence[Record]) -> str | None:
    """Return the first thing that instructions of xnn8 ask for and the C++ machine does not compute, as text for a
    message; None if there is none. mops: of a whole program."""
    rows = [mop.rows for mop in mops if isinstance(mop, PanelRows) and mop.blocks]
    limits = _Limits(rows[0] if rows else ROW_STEP)
    return next((what for mop in mops for what in limits.of(mop)), None)
