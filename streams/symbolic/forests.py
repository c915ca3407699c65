"""Whether the undirected graph of streams has no cycle, for instances of grids of symbolic size.

Instances are ranked: by an order of the tasks, then by the sum of the coordinates, each taken with a sign. If both ends
of every stream have different ranks, and no instance has two streams to instances of lower rank, there is no cycle: the
instance of the highest rank on a cycle would have two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, islice, permutations, product

from .ends import Cell, End
from .polynomial import ZERO, Polynomial
from .tree import InstanceGroup

ORDERS = 200
"""Limit of the rankings that are tried."""

Proves = Callable[[Cell, Polynomial], bool]
"""Whether a form is at least 0 for all streams of a cell."""


def is_forest(groups: Sequence[InstanceGroup], found: Sequence[Cell], proves: Proves) -> bool:
    """Return whether the undirected graph of instances and streams is found to have no cycle; two streams between the
    same instances are a cycle. It has none if the instances can be ordered so that each has at most one stream to
    instances before it; False means that none of the first `ORDERS` orders is shown to be such.

    groups: of the instances. found: the cells of the streams. proves: returns whether a form is proved to be at least
    0."""
    tasks = list({groups[end.group].task: None for cell in found for end in (cell.writer, cell.reader) if end})
    axes = max((len(group.tid) for group in groups), default=0)
    signs = [one for one in product((1, -1, 0), repeat=axes) if any(one)]
    for order, sign in islice(product(permutations(tasks), signs), ORDERS):
        place = {task: k for k, task in enumerate(order)}
        ends: list[End] = []
        for cell in found:
            end = _upper(cell, groups, place, sign, proves)
            if end is None:
                break
            ends.append(end)
        if len(ends) < len(found):
            continue
        if all(map(_single, found, ends)) and not any(
            a[1].group == b[1].group and not _disjoint(a, b, proves)
            for a, b in combinations(zip(found, ends, strict=True), 2)
        ):
            return True
    return False


def _upper(
    cell: Cell, groups: Sequence[InstanceGroup], place: Mapping[str, int], signs: Sequence[int], proves: Proves
) -> End | None:
    """Return the end of higher rank, None if it is not seen."""
    a, b = cell.writer, cell.reader
    assert a is not None
    assert b is not None
    tasks = groups[a.group].task, groups[b.group].task
    if tasks[0] != tasks[1]:
        return a if place[tasks[0]] > place[tasks[1]] else b
    rise = sum((s * (y - x) for s, x, y in zip(signs, a.tid, b.tid, strict=False)), ZERO)
    if proves(cell, rise - 1):
        return b
    return a if proves(cell, -rise - 1) else None


def _single(cell: Cell, end: End) -> bool:
    """Whether each stream of the cell has another instance at this end: each coordinate is one of the instance's."""
    for name, _ in cell.bound:
        if not any(part.degree(name) == 1 and part.variables() & set(dict(cell.bound)) == {name} for part in end.tid):
            return False
    return True


def _disjoint(a: tuple[Cell, End], b: tuple[Cell, End], proves: Proves) -> bool:
    """Whether two cells have different instances at these ends: some coordinate is always less at one of them."""
    for x, y in zip(a[1].tid, b[1].tid, strict=True):
        # The coordinates of a cell are named by its axes; those of the second one must not be those of the first.
        renamed = {name: Polynomial.variable(f"{name}'") for name, _ in b[0].bound}
        both = Cell("", (), (*a[0].bound, *((f"{name}'", count) for name, count in b[0].bound)), None, None)
        rise = y.put(renamed) - x
        if proves(both, rise - 1) or proves(both, -rise - 1):
            return True
    return False
