"""Whether the stream switches of the AI Engine array have room for all streams between PLIOs and tiles.

A switch hands a stream to any of its neighbours, and to several at once, but has few ports to each
(`placement.SWITCH_PORTS`). The search is negotiated congestion: all streams take the cheapest ways, ports that too many
of them want become more expensive, and the streams choose again. A way that it finds exists; the AI Engine compiler's
router need not find the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from ...base.errors import RsnError
from ...isa.versal.placement import ARRAY_COLUMNS, ARRAY_ROWS, SWITCH_PORTS

Switch = tuple[int, int]
"""Column and row: row 0 is the array interface, row r + 1 is row r of tiles."""
Port = tuple[Switch, Switch]
"""All ports from one switch to its neighbour."""
Ports = dict[Switch, list[tuple[Switch, int]]]
"""For each switch its neighbours, each with the index of the ports to it, or from it (`Switches`)."""

ROUNDS = 12
"""A search that has not ended by then has hardly any way left to try."""
_STEPS: Mapping[str, Switch] = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
_DETOUR = 3
"""How many columns a way may leave the range of its ends."""


def _neighbours(at: Switch) -> Iterator[tuple[Switch, int]]:
    for side, (right, up) in _STEPS.items():
        to = at[0] + right, at[1] + up
        if 0 <= to[0] < ARRAY_COLUMNS and 0 <= to[1] <= ARRAY_ROWS:
            yield to, SWITCH_PORTS[side]


class Switches:
    """The array's switches, and how many streams want each port. All ports from a switch to a neighbour are known by
    one index. ports: for each switch its neighbours, each with the index of the ports to it. back: the same, with the
    index of the ports from the neighbour. By index: between: the two switches; room: how many ports there are; wanted:
    how many streams take one at present; surcharge: the factor by which they have become more expensive."""

    def __init__(self) -> None:
        places = [(column, row) for column in range(ARRAY_COLUMNS) for row in range(ARRAY_ROWS + 1)]
        self.ports: Ports = {}
        self.back: Ports = {}
        self.between: list[Port] = []
        self.room: list[int] = []
        for at in places:
            self.ports[at] = []
            for to, room in _neighbours(at):
                self.ports[at].append((to, len(self.room)))
                self.between.append((at, to))
                self.room.append(room)
        numbers = {port: number for number, port in enumerate(self.between)}
        for at, ways in self.ports.items():
            self.back[at] = [(to, numbers[to, at]) for to, _ in ways]
        self.wanted = [0] * len(self.room)
        self.surcharge = [1.0] * len(self.room)

    def route(
        self, streams: Sequence[tuple[Switch, Sequence[Switch]]], merged: Sequence[tuple[Switch, Sequence[Switch]]] = ()
    ) -> list[Port]:
        """Look for a way for each stream. streams: of each, where it begins, and all places where it ends. merged: of
        streams that become one on their way, where that one ends, and all places where they begin. Returns the ports
        that more streams want than there are: none if all have found a way. Raises `RsnError` for a place outside of
        the array."""
        trees = [*((self.ports, *stream) for stream in streams), *((self.back, *stream) for stream in merged)]
        for place in (place for _, start, ends in trees for place in (start, *ends)):
            if place not in self.ports:
                raise RsnError(f"column {place[0]}, row {place[1]} lies outside of the array of switches")
        taken: list[set[int]] = [set() for _ in trees]
        over: list[int] = []
        for _ in range(ROUNDS):
            for i, tree in enumerate(trees):
                for port in taken[i]:
                    self.wanted[port] -= 1
                taken[i] = self._way(*tree)
                for port in taken[i]:
                    self.wanted[port] += 1
            over = [port for port, room in enumerate(self.room) if self.wanted[port] > room]
            if not over:
                break
            for port in over:
                self.surcharge[port] += 0.5 * (self.wanted[port] - self.room[port])
        return [self.between[port] for port in over]

    def _way(self, ports: Ports, start: Switch, ends: Sequence[Switch]) -> set[int]:
        """The ports of a tree from `start` to all of `ends`: each of them joins it where that is cheapest."""
        columns = [start[0], *(end[0] for end in ends)]
        west, east = min(columns) - _DETOUR, max(columns) + _DETOUR
        tree, ways, left = {start}, set[int](), set(ends) - {start}
        while left:
            cost = dict.fromkeys(tree, 0.0)
            before: dict[Switch, tuple[Switch, int]] = {}
            heap = [(0.0, at) for at in tree]
            heapq.heapify(heap)
            while heap:
                spent, at = heapq.heappop(heap)
                if spent > cost[at]:
                    continue
                if at in left:
                    break
                for to, port in ports[at]:
                    if not west <= to[0] <= east:
                        continue
                    next_cost = spent + self._price(port)
                    if next_cost < cost.get(to, float("inf")):
                        cost[to], before[to] = next_cost, (at, port)
                        heapq.heappush(heap, (next_cost, to))
            left.discard(at)
            while at not in tree:
                tree.add(at)
                at, port = before[at]
                ways.add(port)
        return ways

    def _price(self, port: int) -> float:
        wanted, room = self.wanted[port], self.room[port]
        return self.surcharge[port] * (1 + 0.5 * max(0, wanted + 1 - room)) + 0.02 * wanted / room
