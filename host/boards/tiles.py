"""Op lists of the MMEs as run-time parameters of their AIE tiles (contract section 2, MME op)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...base.errors import BoardError
from ...isa.fields import Record
from ...isa.overlay import Overlay
from ...isa.overlays.xnn.formats import Mme
from ...isa.packet import Words
from ...isa.program import Program

SIDE = 4
"""Of an MME in tiles: rows, columns, cascade."""

HOLDS_WEIGHT = next(f for f in Mme.FIELDS if f.name == "holds_weight").mask


def tiles(overlay: Overlay, graph: str) -> Iterator[tuple[str, str, bool]]:
    """Each tile: its parameter port, its MME, and whether it holds the previous-layer weights of its columns."""
    for mme in overlay.by_kind["MME"]:
        for row in range(SIDE):
            for column in range(SIDE):
                for cascade in range(SIDE):
                    port = f"{graph}.FG[{mme.index}][{row}][{column}].k{cascade}.in[{3 if cascade else 2}]"
                    yield port, mme.name, cascade == column


def parameters(program: Program, graph: str) -> dict[str, Words]:
    """What each tile is told before a run: print code, number of ops, ops, and zeros up to its fixed size."""
    overlay = program.overlay
    size = overlay.preloaded["MME"][1] + 2
    lists: dict[tuple[str, bool], Words] = {}
    for mme in overlay.by_kind["MME"]:
        ops = np.array([w for op in program.preloaded.get(mme.name, ()) for w in op.encode()], np.uint32)
        for holds in (False, True):
            words = lists[mme.name, holds] = np.zeros(size, np.uint32)
            words[1] = len(ops)
            words[2 : 2 + len(ops)] = ops | HOLDS_WEIGHT if holds else ops & ~np.uint32(HOLDS_WEIGHT)
    return {port: lists[mme, holds] for port, mme, holds in tiles(overlay, graph)}


def op_lists(told: Mapping[str, Words], overlay: Overlay, graph: str) -> dict[str, tuple[Record, ...]]:
    """The inverse: what the MMEs do, given what their tiles were told. Raises `BoardError` where tiles of one MME
    would not do the same, or a tile was told nothing."""
    out: dict[str, tuple[Record, ...]] = {}
    for port, mme, holds in tiles(overlay, graph):
        words = told.get(port)
        if words is None:
            raise BoardError(f"{port} was told nothing")
        if len(words) != overlay.preloaded["MME"][1] + 2 or words[1] > len(words) - 2:
            raise BoardError(f"{port} was told {len(words)} words, of which {words[1:2]} are ops")
        ops = words[2 : 2 + int(words[1])]
        if (ops & HOLDS_WEIGHT != (HOLDS_WEIGHT if holds else 0)).any():
            raise BoardError(f"{port} was told {'not ' if holds else ''}to hold weights")
        records = tuple(Mme.decode([w]) for w in (ops & ~np.uint32(HOLDS_WEIGHT)).tolist())
        if out.setdefault(mme, records) != records:
            raise BoardError(f"{port} was told other ops than the tiles of {mme} before it")
    return {mme: records for mme, records in out.items() if records}
