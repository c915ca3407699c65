"""MeshA and MeshB of a lane: each selects the source of one operand of its MME."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ....machine.description import UnitSpec
from ....machine.steps import Steps
from ....machine.unit import Unit, Wiring
from ...fields import Record, bits
from ...versal.tiles import BEATS
from .operands import KV, lanes_of_heads
from .ports import tiles_by


class LaneMeshA(Record, words=1, name="MeshA"):
    """Pass left operands on to the MME of the lane."""

    tiles: int = bits(0, 0, 24, "tiles")
    source: int = bits(0, 24, 2, "X of the even lane of the pair, X of the odd lane, T of the even lane, T of the odd")


class LaneMeshB(Record, words=1, name="MeshB"):
    """Pass right operands on to the MME of the lane."""

    tiles: int = bits(0, 0, 24, "tiles")
    source: int = bits(0, 24, 2, "of an even lane: W0, K0, K1; of an odd lane: W0, W1, V0, V1")


def left_sources(lane: int) -> tuple[str, ...]:
    """Return the read ports that MeshA of a lane selects from, in the order of its field."""
    even = lane & ~1
    return tuple(f"{kind}{i}" for kind in ("XOut", "TOut") for i in (even, even + 1))


def right_sources(lane: int) -> tuple[str, ...]:
    """Return the units that MeshB of a lane selects from, in the order of its field. Even lanes compute scores, so they
    take keys. Odd lanes multiply by values, and have weights of their own, from W1, if the lanes of a pair share the
    columns (mode P3, docs/xnn2.md)."""
    heads = tuple(f"KvOut{i}" for i in range(KV) if lane in lanes_of_heads(i))
    return ("W0", "W1", *heads) if lane & 1 else ("W0", *heads)


class LaneMeshUnit(Unit):
    """MeshA or MeshB of a lane: an operation passes tiles from one of its sources on to the MME of the lane."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        names = (left_sources if spec.kind == "MeshA" else right_sources)(spec.index)
        self.sources = [self.source(name) for name in names]
        self.to_mme = self.sink(f"MME{spec.index}")

    def kernel(self, uop: LaneMeshA | LaneMeshB) -> Steps:
        def copy(n: int, tiles: Sequence[Any]) -> tuple[Sequence[Any]]:
            return (tiles,)

        yield tiles_by("mesh_beat", BEATS, uop.tiles, gets=(self.sources[uop.source],), puts=(self.to_mme,), do=copy)

    def effect_key(self, uop: LaneMeshA | LaneMeshB) -> Hashable:
        return uop


def legal(unit: UnitSpec, uop: LaneMeshA | LaneMeshB) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not uop.tiles:
        yield "passes on no tiles"
    sources = (left_sources if unit.kind == "MeshA" else right_sources)(unit.index)
    if uop.source >= len(sources):
        yield f"source={uop.source} is none: {unit.name} has {len(sources)}"
