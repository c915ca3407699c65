"""Transfers between a mesh and its memory: what each epoch moves, through the ports at the edge of the mesh.

An *epoch* holds shots of which none waits for another one: their level in the order that streams and nodes give. Loads
of one tile in one epoch are one transfer to all its nodes (multicast). Tiles of a tensor that lie beside each other are
moved together (coalesced), and what is moved together is divided where ports would be idle (split): Dato, section 6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from typing import NamedTuple

from .machine import MeshDescription
from .mapping import Mapped
from .tiles import TensorTile

Point = tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """A block of tiles of a tensor that is loaded or stored in one piece. tensor: the name. write: whether it is
    stored. low, high: its first tile, and the tile behind its last one, along each axis, counted in tiles. size: bytes.
    nodes: the numbers of the nodes at its other end; several nodes either all get the same tile, or a tile each."""

    tensor: str
    write: bool
    low: Point
    high: Point
    size: int
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        parts = (str(a) if b == a + 1 else f"{a}:{b}" for a, b in zip(self.low, self.high, strict=True))
        return f"{self.tensor}[{', '.join(parts)}]"


@dataclass(frozen=True)
class Epoch:
    """What nodes load and store in one epoch. tiles: how many loads and stores of tiles shots make. distinct: the same,
    with a tile that several nodes load counted once. loads, stores: for each port of the mesh, its transfers, one after
    another."""

    tiles: int
    distinct: int
    loads: tuple[tuple[Transfer, ...], ...]
    stores: tuple[tuple[Transfer, ...], ...]


def levels(mapped: Mapped) -> list[list[int]]:
    """Return for each node the number of the epoch of each of its phases, from 0. Phases that wait for each other in a
    cycle, and all that depend on them, get numbers that no other phase has."""
    first = [0, *accumulate(group.phases[-1] + 1 for group in mapped.groups)]
    at = [0] * len(mapped.graph.nodes)
    edges: set[tuple[int, int]] = set()
    for start, end, group in zip(first, first[1:], mapped.groups, strict=False):
        edges.update(pairwise(range(start, end)))
        for shot, phase in zip(group.shots, group.phases, strict=True):
            at[shot] = start + phase
    edges.update((at[edge.writer], at[edge.reader]) for edge in mapped.graph.edges.values())
    after: list[list[int]] = [[] for _ in range(first[-1])]
    missing = [0] * first[-1]
    for a, b in edges:
        if a != b:
            after[a].append(b)
            missing[b] += 1
    found = [first[-1] + k if count else 0 for k, count in enumerate(missing)]
    todo = [k for k, count in enumerate(missing) if not count]
    for k in todo:
        for n in after[k]:
            missing[n] -= 1
            if not missing[n]:
                todo.append(n)
                found[n] = found[k] + 1  # the last one that comes is of the highest level
    return [found[start:end] for start, end in pairwise(first)]


Move = tuple[int, bool, TensorTile]
"""A node that moves a tile, and whether it stores it."""


def moved(mapped: Mapped) -> dict[int, list[Move]]:
    """Return what is moved in each epoch, by its number: the node, whether it stores, and the tile. A tile that the
    shot before on a node had is not loaded again."""
    out: dict[int, list[Move]] = defaultdict(list)
    nodes = mapped.graph.nodes
    for k, (group, level) in enumerate(zip(mapped.groups, levels(mapped), strict=True)):
        last: dict[str, Point] = {}
        for shot, phase in zip(group.shots, group.phases, strict=True):
            lives = nodes[shot].footprint.lives
            for tile in nodes[shot].tiles:
                if (tile.parameter, False) in lives and last.get(tile.tensor) != tile.point:
                    out[level[phase]].append((k, False, tile))
                if (tile.parameter, True) in lives:
                    out[level[phase]].append((k, True, tile))
                last[tile.tensor] = tile.point
    return out


def off_chip(mapped: Mapped) -> int:
    """Return the bytes of tiles that are loaded and stored in one run. A tile that several nodes load in one epoch
    counts once."""
    count = 0
    for moves in moved(mapped).values():
        known = set[tuple[str, Point]]()
        for _, write, tile in moves:
            if write or (tile.tensor, tile.point) not in known:
                count += tile.size
            if not write:
                known.add((tile.tensor, tile.point))
    return count


def epochs(mapped: Mapped, machine: MeshDescription) -> list[Epoch]:
    """Return what is moved in each epoch, in order, and through which ports of the mesh (Dato, section 6). machine: the
    mesh."""
    out = []
    for _, moves in sorted(moved(mapped).items()):
        sides = []
        distinct = 0
        for write, ports in ((False, machine.load_ports), (True, machine.store_ports)):
            found = _tiles(moves, write)
            distinct += sum(map(len, found.values()))
            blocks = [
                _Block(tensor, tiles, box) for (tensor, _), tiles in sorted(found.items()) for box in boxes(tiles)
            ]
            sides.append(_dealt([block.transfer(write) for block in _split(blocks, ports)], ports))
        out.append(Epoch(len(moves), distinct, sides[0], sides[1]))
    return out


_Tiles = dict[Point, tuple[int, tuple[int, ...]]]
"""Bytes and nodes of the tiles of a tensor."""


def _tiles(moves: Sequence[Move], write: bool) -> dict[tuple[str, tuple[int, ...]], _Tiles]:
    """The tiles that are moved, by tensor and shape of a tile."""
    out: dict[tuple[str, tuple[int, ...]], _Tiles] = defaultdict(dict)
    for node, stores, tile in moves:
        if stores == write:
            tiles = out[tile.tensor, tile.type.shape]
            before = tiles.get(tile.point, (0, ()))[1]
            tiles[tile.point] = tile.size, (*before, node)
    return out


Box = tuple[Point, Point]
"""The first tile of a block, and the one behind its last, along each axis."""


def boxes(tiles: Collection[Point]) -> list[Box]:
    """Return boxes that together have each of some tiles once. Tiles side by side along the last axis are joined to a
    row, and then equal rows to a box. tiles: at least one."""
    found = [(point, tuple(at + 1 for at in point)) for point in sorted(tiles)]
    for axis in reversed(range(len(found[0][0]))):

        def across(box: Box, axis: int = axis) -> tuple[Point, ...]:
            return tuple((*side[:axis], *side[axis + 1 :]) for side in box)

        joined: list[Box] = []
        for low, high in sorted(found, key=lambda box: (across(box), box[0][axis])):
            if joined and across(joined[-1]) == across((low, high)) and joined[-1][1][axis] == low[axis]:
                joined[-1] = joined[-1][0], high
            else:
                joined.append((low, high))
        found = joined
    return found


class _Block(NamedTuple):
    """Tiles of a tensor that are moved together. tiles: those of the tensor, of which the box is a part."""

    tensor: str
    tiles: _Tiles
    box: Box

    @property
    def points(self) -> list[Point]:
        return list(product(*(range(a, b) for a, b in zip(*self.box, strict=True))))

    @property
    def size(self) -> int:
        return sum(self.tiles[point][0] for point in self.points)

    def halves(self) -> list[_Block]:
        low, high = self.box
        axis = max(range(len(low)), key=lambda k: high[k] - low[k])
        middle = ((low[axis] + high[axis] + 1) // 2,)
        cuts = (low, (*high[:axis], *middle, *high[axis + 1 :])), ((*low[:axis], *middle, *low[axis + 1 :]), high)
        return [self._replace(box=cut) for cut in cuts]

    def transfer(self, write: bool) -> Transfer:
        nodes = dict.fromkeys(node for point in self.points for node in self.tiles[point][1])
        return Transfer(self.tensor, write, *self.box, self.size, tuple(nodes))


def _split(blocks: list[_Block], ports: int) -> list[_Block]:
    """Divide the largest blocks, while ports would be idle."""
    out = list(blocks)
    while len(out) < ports:
        largest = max(
            (k for k, block in enumerate(out) if len(block.points) > 1), key=lambda k: out[k].size, default=-1
        )
        if largest < 0:
            break
        out += out.pop(largest).halves()
    return out


def _dealt(blocks: Sequence[Transfer], ports: int) -> tuple[tuple[Transfer, ...], ...]:
    """Give each port its transfers: the largest first, each to the port that has the fewest bytes."""
    dealt: list[list[Transfer]] = [[] for _ in range(min(ports, len(blocks)))]
    for block in sorted(blocks, key=lambda block: -block.size):
        min(dealt, key=lambda held: sum(b.size for b in held)).append(block)
    return tuple(map(tuple, dealt))
