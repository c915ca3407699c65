"""Which tiles have 64 columns or rows alone, and whether the MMEs multiply them so.

T sends half of a slot as a tile whose other columns hold no numbers, K and V send one block so. An MME has a mode for
either: K = 64 for left tiles and for those of K, which are transposed, N = 64 for those of V.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ....base.finding import Finding
from ...expansion import ExpandedProgram, Ints
from ...lanes import SlotPart, TileTarget
from .mesh import LaneMeshA, LaneMeshB, left_sources, right_sources
from .mme import LaneMme
from .operands import KV, LANES, KvOut, lanes_of_heads
from .order import Flags, fields_of, spread
from .scratch import TOut


class Sent(NamedTuple):
    """The tiles that a unit sends to a lane, in order. op: for each tile, the number of the operation that sends it.
    half: for each tile, whether it is half a tile."""

    op: Ints
    half: Flags


def findings(expansion: ExpandedProgram) -> Iterator[Finding]:
    """Yield a finding (Y08) for each unit that sends half tiles which an MME multiplies as whole ones: the first such
    tile. Sends must equal receives on every stream.
    """
    for lane in range(LANES):
        mme = fields_of(expansion, f"MME{lane}", LaneMme)
        op, _ = spread(mme["times"] * (mme["first"] * mme["first_depth"] + mme["second"] * mme["second_depth"]))
        left, right = left_sources(lane), right_sources(lane)
        routes = {
            "A": _routes(expansion, f"MeshA{lane}", LaneMeshA),
            "B": _routes(expansion, f"MeshB{lane}", LaneMeshB),
        }
        # the unit, which of its mesh's tiles it sends, what a half has, and the mode for it
        senders = [
            (unit, routes["A"] == left.index(unit), "columns", "k64") for unit in left if unit.startswith("TOut")
        ]
        for i in (i for i in range(KV) if lane in lanes_of_heads(i)):
            what, mode = ("rows", "k64") if i < KV // 2 else ("columns", "n64")
            senders.append((f"KvOut{i}", routes["B"] == right.index(f"KvOut{i}"), what, mode))
        for unit, taken, what, mode in senders:
            sent = _heads(expansion, unit, lane) if unit.startswith("KvOut") else _tiles(expansion, unit, lane)
            (products,) = np.nonzero(taken[: len(op)])
            n = min(len(products), len(sent.op))
            (wrong,) = np.nonzero(sent.half[:n] & (mme[mode][op[products[:n]]] == 0))
            if len(wrong):
                i, j = int(op[products[wrong[0]]]), int(sent.op[wrong[0]])
                sender = f"{unit} uOP {j} ({expansion.where(unit, j)})"
                text = f"MME{lane} op {i} multiplies whole tiles; {sender} sends it one of 64 {what}"
                yield Finding("Y08", text, expansion.where(f"MME{lane}", i), help=f"set `{mode}`, or send whole tiles")


def _routes(expansion: ExpandedProgram, mesh: str, record: type[LaneMeshA | LaneMeshB]) -> Ints:
    """The source of each tile that a mesh passes on."""
    routed = fields_of(expansion, mesh, record)
    return np.repeat(routed["source"], routed["tiles"])


def _tiles(expansion: ExpandedProgram, name: str, lane: int) -> Sent:
    """What a T sends to the MME of a lane."""
    t = fields_of(expansion, name, TOut)
    to = (t["to"] == TileTarget.PAIR) | (t["to"] == (TileTarget.ODD if lane & 1 else TileTarget.EVEN))
    op, _ = spread(np.where(to, t["tiles"] * t["times"], 0))
    return Sent(op, t["part"][op] != SlotPart.WHOLE)


def _heads(expansion: ExpandedProgram, name: str, lane: int) -> Sent:
    """What a K or V sends to the MME of a lane."""
    k = fields_of(expansion, name, KvOut)
    op, _ = spread(np.where(k["lanes"] >> lane & 1, k["tiles"], 0))
    return Sent(op, k["wide"][op] == 0)
