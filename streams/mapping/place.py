"""Which tile runs which node: the sum of the lengths of all physical streams is made small.

The length of a stream counts its steps from tile to tile along rows and columns.

A small mapping is placed by exhaustive search with bounds, and is then proved to be the best. A larger one starts
greedily and swaps tiles while that helps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import MappingError
from .machine import MeshDescription
from .mapping import Mapped
from .primitives import refusal

TRIED = 50_000
"""Limit of partial placements that the exhaustive search looks at."""

SWAPS = 1_000_000
"""Limit of moves and swaps that are compared."""

SIZE = 100
"""Limit of nodes for the exhaustive search."""

Weights = Sequence[dict[int, int]]
"""For each node: its neighbours, and how many streams join them."""


@dataclass(frozen=True)
class Placement:
    """Where the nodes of a mapping are on a mesh. tiles: (row, column) of each node, by its number. length: the sum
    over all streams of the steps from tile to tile. bound: a length below which there is no placement."""

    tiles: tuple[tuple[int, int], ...]
    length: int
    bound: int

    @property
    def optimal(self) -> bool:
        """Whether the length equals the lower bound, so that no placement is shorter."""
        return self.length == self.bound


def place(mapped: Mapped, machine: MeshDescription) -> Placement:
    """Return where the nodes of a mapping are placed on the mesh of a machine. Raises `MappingError` if there are more
    nodes than tiles, or if a node needs more ports or bytes than a tile has."""
    nodes = len(mapped.groups)
    if nodes > machine.tiles:
        largest = max(range(nodes), key=lambda k: len(mapped.groups[k].shots))
        kinds = Counter(group.kernel for group in mapped.groups).most_common(1)[0][1]
        notes = (
            f"{kinds} nodes are equal and could share tiles (bundle)"
            if kinds > 1
            else "chain puts two nodes on one tile",
            f"the largest node is {mapped.name(largest)}",
        )
        raise MappingError("tiles", f"{nodes} nodes onto {machine.tiles} tiles of {machine.name}", None, notes)
    for k in range(nodes):
        found = mapped.over(k, machine)
        if found:
            raise refusal(mapped, k, found[0], f"onto {machine.name}")
    weights: list[dict[int, int]] = [{} for _ in range(nodes)]
    for stream in mapped.streams:
        for a, b in ((stream.writer, stream.reader), (stream.reader, stream.writer)):
            weights[a][b] = weights[a].get(b, 0) + 1
    return best_placement(weights, machine.rows, machine.columns)


def best_placement(weights: Weights, rows: int, columns: int, tried: int = TRIED) -> Placement:
    """Return the shortest placement of nodes on a mesh of `rows` by `columns` tiles that is found. weights: for each
    node, how many streams it has with each neighbour, by the number of the neighbour. tried: how many partial
    placements the proof may look at. Raises `MappingError` for more nodes than tiles."""
    if len(weights) > max(rows, 0) * max(columns, 0):
        raise MappingError("tiles", f"{len(weights)} nodes onto {rows} x {columns} tiles")
    order = _order(weights)
    at = _improved(weights, _greedy(weights, order, rows, columns), rows, columns)
    bound = _bound(weights)
    length = _length(weights, at)
    if length > bound:
        found = _exhaustive(weights, order, rows, columns, length, tried)
        if found is not None:
            best, finished = found
            at = best or at
            length = _length(weights, at)
            bound = length if finished else bound
    return Placement(tuple(at[k] for k in range(len(weights))), length, bound)


Tile = tuple[int, int]


def _steps(a: Tile, b: Tile) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _length(weights: Weights, at: dict[int, Tile]) -> int:
    return sum(w * _steps(at[a], at[b]) for a, near in enumerate(weights) for b, w in near.items() if a < b)


def _order(weights: Weights) -> list[int]:
    """The nodes, each with as many streams as possible to those before it."""
    left = set(range(len(weights)))
    order: list[int] = []
    gain = dict.fromkeys(left, 0)
    while left:
        k = max(left, key=lambda n: (gain[n], sum(weights[n].values()), -n))
        left.discard(k)
        order.append(k)
        for n, w in weights[k].items():
            gain[n] += w
    return order


def _greedy(weights: Weights, order: list[int], rows: int, columns: int) -> dict[int, Tile]:
    centre = (rows - 1) / 2, (columns - 1) / 2
    free = [(r, c) for r in range(rows) for c in range(columns)]
    at: dict[int, Tile] = {}
    for k in order:

        def far(tile: Tile, k: int = k) -> tuple[float, float]:
            near = sum(w * _steps(tile, at[n]) for n, w in weights[k].items() if n in at)
            return near, abs(tile[0] - centre[0]) + abs(tile[1] - centre[1])

        at[k] = min(free, key=far)
        free.remove(at[k])
    return at


def _improved(weights: Weights, at: dict[int, Tile], rows: int, columns: int) -> dict[int, Tile]:
    """Swap nodes, or move one to a free tile, while the length falls."""
    used = {tile: k for k, tile in at.items()}
    every = [(r, c) for r in range(rows) for c in range(columns)]

    def cost(k: int, tile: Tile, other: int | None, moved: Tile) -> int:
        return sum(w * _steps(tile, moved if n == other else at[n]) for n, w in weights[k].items())

    better = True
    left = SWAPS
    while better and left > 0:
        better = False
        for k in range(len(weights)):
            left -= len(every)
            for tile in every if left > 0 else ():
                here, other = at[k], used.get(tile)
                if tile == here:
                    continue
                before = cost(k, here, other, tile)
                after = cost(k, tile, other, here)
                if other is not None:
                    before += cost(other, tile, k, here)
                    after += cost(other, here, k, tile)
                if after < before:
                    at[k], used[tile] = tile, k
                    if other is None:
                        del used[here]
                    else:
                        at[other], used[here] = here, other
                    better = True
    return at


def _bound(weights: Weights) -> int:
    """A length that no placement is below: each node has 4 tiles at one step, 8 at two, and so on."""
    twice = 0
    for near in weights:
        left, distance = 4, 1
        for w in sorted(near.values(), reverse=True):
            if not left:
                distance += 1
                left = 4 * distance
            twice += w * distance
            left -= 1
    return -(-twice // 2)


def _exhaustive(
    weights: Weights, order: list[int], rows: int, columns: int, best: int, tried: int
) -> tuple[dict[int, Tile] | None, bool] | None:
    """Search all placements up to mirrors; return a better one, if there is, and whether all were looked at."""
    every = [(r, c) for r in range(rows) for c in range(columns)]
    rank = {k: n for n, k in enumerate(order)}
    earlier = [[(n, w) for n, w in weights[k].items() if rank[n] < rank[k]] for k in order]
    rest = [0] * (len(order) + 1)  # each stream that is not placed yet takes at least a step
    for n in range(len(order) - 1, -1, -1):
        rest[n] = rest[n + 1] + sum(w for _, w in earlier[n])
    at: dict[int, Tile] = {}
    used: set[Tile] = set()
    found: dict[int, Tile] | None = None
    count = 0

    def tiles(n: int) -> list[Tile]:
        return every if n else [(r, c) for r, c in every if 2 * r < rows and 2 * c < columns]

    def go(n: int, length: int) -> bool:
        nonlocal best, found, count
        if n == len(order):
            best, found = length, dict(at)
            return True
        count += 1
        if count > tried:
            return False
        options = []
        for tile in tiles(n):
            if tile not in used:
                added = sum(w * _steps(tile, at[other]) for other, w in earlier[n])
                if length + added + rest[n + 1] < best:
                    options.append((added, tile))
        for added, tile in sorted(options):
            if length + added + rest[n + 1] >= best:
                continue
            at[order[n]] = tile
            used.add(tile)
            whole = go(n + 1, length + added)
            used.discard(tile)
            del at[order[n]]
            if not whole:
                return False
        return True

    if len(order) > SIZE:
        return None
    finished = go(0, 0)
    return found, finished
