"""The op lists of the MMEs as run-time parameters of their AIE tiles (contract section 2, MME op)."""

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
"""Tiles along each side of an MME: rows, columns, and steps of the cascade."""

HOLDS_WEIGHT = next(f for f in Mme.FIELDS if f.name == "holds_weight").mask


def tiles(overlay: Overlay, graph: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each AIE tile: its parameter port, its MME, and whether it holds the weights of its columns for the
    previous-layer term.

    graph: name of the AI Engine graph.
    """
    for mme in overlay.by_kind["MME"]:
        for row in range(SIDE):
            for column in range(SIDE):
                for cascade in range(SIDE):
                    port = f"{graph}.FG[{mme.index}][{row}][{column}].k{cascade}.in[{3 if cascade else 2}]"
                    yield port, mme.name, cascade == column


def parameters(program: Program, graph: str) -> dict[str, Words]:
    """Return the words that each tile gets before a run, by port: print code, number of ops, the ops, and zeros up to
    the fixed size."""
    overlay = program.overlay
    size = overlay.preloaded["MME"].words + 2
    lists: dict[tuple[str, bool], Words] = {}
    for mme in overlay.by_kind["MME"]:
        ops = np.array([w for op in program.preloaded.get(mme.name, ()) for w in op.encode()], np.uint32)
        for holds in (False, True):
            words = lists[mme.name, holds] = np.zeros(size, np.uint32)
            words[1] = len(ops)
            words[2 : 2 + len(ops)] = ops | HOLDS_WEIGHT if holds else ops & ~np.uint32(HOLDS_WEIGHT)
    return {port: lists[mme, holds] for port, mme, holds in tiles(overlay, graph)}


def op_lists(ports: Mapping[str, Words], overlay: Overlay, graph: str) -> dict[str, tuple[Record, ...]]:
    """Decode the op list of each MME from its tiles' parameters: the inverse of `parameters`.

    Raises `BoardError` if tiles of one MME have different ops, or a tile has none.
    """
    out: dict[str, tuple[Record, ...]] = {}
    for port, mme, holds in tiles(overlay, graph):
        words = ports.get(port)
        if words is None:
            raise BoardError(f"{port} got no parameter")
        if len(words) != overlay.preloaded["MME"].words + 2 or words[1] > len(words) - 2:
            raise BoardError(f"{port} got {len(words)} words, of which {words[1:2]} are ops")
        ops = words[2 : 2 + int(words[1])]
        if (ops & HOLDS_WEIGHT != (HOLDS_WEIGHT if holds else 0)).any():
            raise BoardError(
                f"{port} got ops {'without' if holds else 'with'} the flag holds_weight, which its ops must "
                f"{'' if holds else 'not '}have"
            )
        records = tuple(Mme.decode([w]) for w in (ops & ~np.uint32(HOLDS_WEIGHT)).tolist())
        if out.setdefault(mme, records) != records:
            raise BoardError(f"{port} got other ops than the tiles of {mme} before it")
    return {mme: records for mme, records in out.items() if records}
