"""MeshA and MeshB: the switches in front of the MMEs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from ....machine.description import UnitSpec
from ....machine.steps import Burst, Steps
from ....machine.unit import Unit
from ...fields import Record, bits
from ...versal.tiles import BEATS, Array
from ...work import Route


class MeshA(Record, words=2):
    """Route tiles from MemA and MemC to the MMEs, all sources in lock step."""

    size: int = bits(0, 0, 29, "beats; a tile is 512")
    a0_0: int = bits(1, 0, 1, "route", source="MemA0", to="MME0")
    a0_1: int = bits(1, 1, 1, "route", source="MemA0", to="MME1")
    a1_2: int = bits(1, 2, 1, "route", source="MemA1", to="MME2")
    a1_3: int = bits(1, 3, 1, "route", source="MemA1", to="MME3")
    a2_4: int = bits(1, 4, 1, "route", source="MemA2", to="MME4")
    a2_5: int = bits(1, 5, 1, "route", source="MemA2", to="MME5")
    c0_4: int = bits(1, 6, 1, "route", source="MemC0", to="MME4")
    c1_4: int = bits(1, 7, 1, "route", source="MemC1", to="MME4")
    c2_5: int = bits(1, 8, 1, "route", source="MemC2", to="MME5")
    c3_5: int = bits(1, 9, 1, "route", source="MemC3", to="MME5")


class MeshB(Record, words=2):
    """Route tiles from MemB to the MMEs, all sources in lock step."""

    size: int = bits(0, 0, 32, "beats; a tile is 512")
    b0_0: int = bits(1, 0, 1, "route", source="MemB0", to="MME0")
    b0_2: int = bits(1, 1, 1, "route", source="MemB0", to="MME2")
    b0_4: int = bits(1, 2, 1, "route", source="MemB0", to="MME4")
    b1_1: int = bits(1, 3, 1, "route", source="MemB1", to="MME1")
    b1_3: int = bits(1, 4, 1, "route", source="MemB1", to="MME3")
    b1_5: int = bits(1, 5, 1, "route", source="MemB1", to="MME5")
    b2_4: int = bits(1, 6, 1, "route", source="MemB2", to="MME4")
    b2_5: int = bits(1, 7, 1, "route", source="MemB2", to="MME5")


def routes(record: type[Record]) -> tuple[tuple[str, str], ...]:
    """Return the pairs (source, destination) of unit names that a switch with this format can connect."""
    return tuple((x.source, x.to) for x in record.FIELDS if x.source and x.to)


class MeshUnit(Unit):
    """Copy tiles from each active source to all its active destinations, all sources in lock step."""

    def kernel(self, uop: MeshA | MeshB) -> Steps:
        routes: dict[str, list[str]] = {}
        for field in uop.FIELDS:
            if field.source and field.to and getattr(uop, field.name):
                routes.setdefault(field.source, []).append(field.to)
        gets = tuple(self.source(s) for s in routes)
        puts = tuple(self.sink(d) for dests in routes.values() for d in dests)
        fan = tuple(len(dests) for dests in routes.values())

        def copy(n: int, *tiles: Sequence[Array]) -> list[Sequence[Array]]:
            return [t for t, k in zip(tiles, fan, strict=True) for _ in range(k)]

        if gets:
            yield Burst(uop.size // BEATS, "mesh_beat", BEATS, gets=gets, puts=puts, do=copy)

    def effect_key(self, uop: MeshA | MeshB) -> Hashable:
        return uop


def legal(unit: UnitSpec, uop: MeshA | MeshB) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    if uop.size % BEATS:
        yield f"size {uop.size} is not a whole number of tiles of {BEATS} beats"
    dests = [x.to for x in uop.FIELDS if x.to and getattr(uop, x.name)]
    if len(dests) != len(set(dests)):
        yield "two sources for one destination"
    if uop.size and not dests:
        yield "moves tiles along no route"


def emit(record: type[MeshA] | type[MeshB], unit: UnitSpec, items: Iterable[Any]) -> Iterator[MeshA | MeshB]:
    """Yield the instruction of each of the items, `Route`s, whose tiles become beats. record: the format of this
    switch.

    Raises `KeyError` for a pair of units that the switch cannot connect, `FieldError` for more tiles than the field
    `size` can say.
    """
    fields = {(x.source, x.to): x.name for x in record.FIELDS if x.source}
    known: dict[Route, MeshA | MeshB] = {}
    for route in items:
        if route not in known:
            known[route] = record(size=BEATS * route.tiles, **{fields[pair]: 1 for pair in route.routes})
        yield known[route]
