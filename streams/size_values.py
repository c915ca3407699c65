"""Readings of a program with several values of the sizes that each run gives, of which one machine is made.

A machine has the streams, tasks and tiles of all of its runs, so they must be the same whatever the values are: what a
reading finds (`FileReading`) is compared with what the others find. With few values, all are read. With more, some are,
and what none of these readings evaluates is in no machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple, TypeVar

from ..base.place import Place
from .check import Report
from .expressions import FileReading
from .reader import read_again
from .source import SourceFinding
from .tree import Region, SizeDecl

ALL = 16
"""Limit of the combinations of values that are all read."""

Key = TypeVar("Key")
Item = TypeVar("Item")


class SizeReadings(NamedTuple):
    """Readings of one region. regions: with different values, the largest ones last; the names that their tasks see
    hold what all of them found. unread: which values were read, as text, "" if all were."""

    regions: tuple[Region, ...]
    unread: str


def size_readings(region: Region) -> SizeReadings:
    """Return readings of a region with several values of its sizes; for a region without sizes the region alone, not
    read again. Raises `Unequal` where the values decide what a machine has once (streams, tasks, types, shapes of
    tiles), and for errors that only other values bring."""
    if not region.sizes:
        return SizeReadings((region,), "")
    points, all_values = _points(region.sizes)
    regions = [read_again(region, region.buffered, point) for point in points]
    for one, point in zip(regions, points, strict=True):
        if errors := [found for found in one.source.findings if not found.warning]:
            raise Unequal(one, *(replace(f, notes=(*f.notes, f"with {_said(point)}")) for f in errors))
    last = regions[-1]
    for one, point in zip(regions, points, strict=True):
        _compare(one, last, point)
    shared = _together([next(iter(one.contexts.values())).reading for one in regions])
    contexts = {name: replace(context, reading=shared) for name, context in last.contexts.items()}
    _same_shapes(regions, points)
    regions[-1] = replace(last, contexts=contexts)
    return SizeReadings(tuple(regions), "" if all_values else "; ".join(map(_said, points)))


class Unequal(Exception):
    """Runs with different values of sizes have no machine in common."""

    def __init__(self, region: Region, *findings: SourceFinding) -> None:
        super().__init__(str(findings))
        self.report = Report(region, findings)


def _said(point: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def _points(sizes: Sequence[SizeDecl]) -> tuple[list[dict[str, int]], bool]:
    """The values that are read, and whether they are all. They follow from the largest values alone, so that a program
    has one machine whatever values it states."""
    names = [size.name for size in sizes]
    if prod(size.largest for size in sizes) <= ALL:
        every = product(*(range(1, size.largest + 1) for size in sizes))
        return [dict(zip(names, point, strict=True)) for point in every], True
    largest = {size.name: size.largest for size in sizes}
    few = [{**largest, size.name: value} for size in sizes for value in (1, 2, 3, size.largest // 2)]
    made = [dict.fromkeys(names, 1), *few, largest]
    inside = [point for point in made if all(1 <= point[name] <= largest[name] for name in names)]
    return [point for k, point in enumerate(inside) if point not in inside[k + 1 :]], False


def _compare(one: Region, last: Region, point: Mapping[str, int]) -> None:
    """Refuse streams and tasks that differ from those of the largest values."""
    for a, b in zip(one.streams, last.streams, strict=False):
        if a != b:
            raise Unequal(one, _differs(a.name, a.place, point))
    for x, y in zip(one.tasks, last.tasks, strict=True):
        if [p.layout for p in x.parameters] != [p.layout for p in y.parameters]:
            raise Unequal(one, _differs(f"a layout of {x.name}", x.place, point))
    if len(one.streams) != len(last.streams) or one.collectives != last.collectives:
        raise Unequal(one, _differs("the streams of collectives", None, point))


def _differs(what: str, place: Place | None, point: Mapping[str, int]) -> SourceFinding:
    message = f"{what} would be another one with {_said(point)} than with the largest values"
    return SourceFinding("unsupported", message, place, ("one machine serves all runs",))


def _same_shapes(regions: Sequence[Region], points: Sequence[Mapping[str, int]]) -> None:
    """Refuse tiles whose shapes follow from the values of sizes."""
    found: dict[tuple[str, Place], set[tuple[int, ...]]] = {}
    for region, point in zip(reversed(regions), reversed(points), strict=True):
        reading = next(iter(region.contexts.values())).reading
        for key, shapes in reading.evaluated.items():
            if shapes and found.setdefault(key, shapes) != shapes:
                one, other = (", ".join(map(str, sorted(of))) for of in (shapes, found[key]))
                message = f"{key[0]}: a tile of shape {one} with {_said(point)}, and {other} with other values"
                note = "a size that each run gives decides no shape of a tile: take parts of a fixed size in a loop"
                raise Unequal(region, SourceFinding("type", message, key[1], (note,)))


def _together(readings: Sequence[FileReading]) -> FileReading:
    """What several readings of one file found, as one."""
    *others, last = readings
    shapes = dict(last.shapes)
    for reading in others:
        for at, known in reading.shapes.items():
            shapes[at] = known if shapes.get(at, known) == known else None
    stores: dict[tuple[str, str], dict[tuple[int, ...], bool]] = {}
    for reading in readings:
        for parameter, alike in reading.stores.items():
            of_task = stores.setdefault(parameter, {})
            of_task.update((tid, of_task.get(tid, True) and equal) for tid, equal in alike.items())
    return replace(
        last,
        shapes=shapes,
        stores=stores,
        calls={},
        divided=set().union(*(reading.divided for reading in readings)),
        unlike=set().union(*(reading.unlike for reading in readings)),
        renamed=set().union(*(reading.renamed for reading in readings)),
        costs=_unions(reading.costs for reading in readings),
        choices=_unions(reading.choices for reading in readings),
        types=_unions(reading.types for reading in readings),
        evaluated=_unions(reading.evaluated for reading in readings),
    )


def _unions(found: Iterable[Mapping[Key, set[Item]]]) -> dict[Key, set[Item]]:
    made: dict[Key, set[Item]] = {}
    for of_reading in found:
        for key, items in of_reading.items():
            made.setdefault(key, set()).update(items)
    return made
