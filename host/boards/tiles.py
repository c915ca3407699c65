"""The op lists of the MMEs as run-time parameters of their AIE tiles (contract section 2, MME op)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ...base.errors import BoardError
from ...isa.fields import Record
from ...isa.overlay import Overlay
from ...isa.packet import Words
from ...isa.program import Program

SIDE = 4
"""Tiles along each side of an MME: rows, columns, and steps of the cascade."""


def weight_flag(overlay: Overlay) -> np.uint32:
    """Return the bit of an op by which a tile keeps weights for the previous-layer term; 0 if ops have none."""
    fields = overlay.preloaded["MME"].record.FIELDS
    return np.uint32(next((f.mask for f in fields if f.name == "holds_weight"), 0))


def tiles(overlay: Overlay, graph: str) -> Iterator[tuple[str, str, bool]]:
    """Yield each AIE tile: the name of its parameter port, the name of its MME, and whether it holds the weights of its
    columns for the previous-layer term. graph: name of the AI Engine graph."""
    for mme in overlay.by_kind["MME"]:
        for row in range(SIDE):
            for column in range(SIDE):
                for cascade in range(SIDE):
                    port = f"{graph}.FG[{mme.index}][{row}][{column}].k{cascade}.in[{3 if cascade else 2}]"
                    yield port, mme.name, cascade == column


def parameters(program: Program, graph: str) -> dict[str, Words]:
    """Return the 32-bit words that each tile gets before a run, by port: print code, number of ops, the ops, and zeros
    up to the fixed size. graph: name of the AI Engine graph."""
    overlay = program.overlay
    size, flag = overlay.preloaded["MME"].words + 2, weight_flag(overlay)
    lists: dict[tuple[str, bool], Words] = {}
    for mme in overlay.by_kind["MME"]:
        entries = program.preloaded.get(mme.name, ())
        ops = np.array([w for op in entries for w in op.encode()], np.uint32)
        for holds in (False, True):
            words = lists[mme.name, holds] = np.zeros(size, np.uint32)
            words[1] = len(entries)
            words[2 : 2 + len(ops)] = ops | flag if holds else ops & ~flag
    return {port: lists[mme, holds] for port, mme, holds in tiles(overlay, graph)}


def op_lists(ports: Mapping[str, Words], overlay: Overlay, graph: str) -> dict[str, tuple[Record, ...]]:
    """Decode the op list of each MME, by its name, from its tiles' parameters: the inverse of `parameters`. MMEs
    without ops are left out.

    ports: the words of each tile, by port. graph: name of the AI Engine graph. Raises `BoardError` if tiles of one MME
    have different ops, or a tile has none.
    """
    out: dict[str, tuple[Record, ...]] = {}
    flag, form = weight_flag(overlay), overlay.preloaded["MME"]
    for port, mme, holds in tiles(overlay, graph):
        words = ports.get(port)
        if words is None:
            raise BoardError(f"{port} got no parameter")
        count = form.record.WORDS * int(words[1]) if len(words) > 1 else 0
        if len(words) != form.words + 2 or count > form.words:
            raise BoardError(f"{port} got {len(words)} words, of which {count} are ops")
        ops = words[2 : 2 + count]
        if (ops & flag != (flag if holds else 0)).any():
            raise BoardError(
                f"{port} got ops {'without' if holds else 'with'} the flag holds_weight, which its ops must "
                f"{'' if holds else 'not '}have"
            )
        entries = (ops & ~flag).reshape(-1, form.record.WORDS).tolist()
        records = tuple(form.record.decode(entry) for entry in entries)
        if out.setdefault(mme, records) != records:
            raise BoardError(f"{port} got other ops than the tiles of {mme} before it")
    return {mme: records for mme, records in out.items() if records}
