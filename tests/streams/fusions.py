"""Drawn fusion spaces, and an oracle that tries every partition of the nodes into groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from rsn.streams.dataflow.fusion import FusedStream, FusionSpace


def drawn_space(random: Random, most: int = 7) -> tuple[FusionSpace, int]:
    """A space of up to `most` nodes with streams of all kinds, and a limit in which each node fits."""
    count = random.randint(1, most)
    density = random.choice([0.15, 0.3, 0.5])
    streams: list[FusedStream] = []
    converters: list[int] = []
    for target in range(count):
        for source in range(target):
            while random.random() < density:
                converter = None
                if random.random() < 0.7:
                    same = [s.converter for s in streams if s.source == source and s.converter is not None]
                    if same and random.random() < 0.5:
                        converter = random.choice(same)
                    else:
                        converter = len(converters)
                        converters.append(random.choice([0, 10, 30, 100]))
                size = random.choice([1, 5, 5, 20])
                streams.append(FusedStream(source, target, size, converter, random.choice([0, 0, 3])))
    own = tuple(random.choice([0, 0, 5, 20]) for _ in range(count))
    space = FusionSpace(tuple("abcdefg"[:count]), own, tuple(streams), tuple(converters))
    return space, max(*own, random.choice([0, 20, 60, 100, 150, 300]), 0)


def partitions(count: int) -> Iterator[tuple[int, ...]]:
    """Every partition of `count` nodes, as the group of each node."""

    def extend(group: list[int], groups: int) -> Iterator[tuple[int, ...]]:
        if len(group) == count:
            yield tuple(group)
            return
        for number in range(groups + 1):
            yield from extend([*group, number], max(groups, number + 1))

    yield from extend([], 0)


def memory(space: FusionSpace, group: Sequence[int], number: int) -> int:
    """Bytes on chip of a group, written down again: nodes, FIFOs, and each converter once."""
    inside = [s for s in space.streams if group[s.source] == group[s.target] == number]
    nodes = sum(own for own, other in zip(space.own_bytes, group, strict=True) if other == number)
    converters = {s.converter for s in inside} - {None}
    return nodes + sum(s.fifo_bytes for s in inside) + sum(space.converter_bytes[k or 0] for k in converters)


def acyclic(space: FusionSpace, group: Sequence[int]) -> bool:
    """Whether one group after the other can be taken away that reads nothing of those that are left."""
    links = {(group[s.source], group[s.target]) for s in space.streams if group[s.source] != group[s.target]}
    left = set(group)
    while left:
        free = {number for number in left if not any(b == number and a in left for a, b in links)}
        if not free:
            return False
        left -= free
    return True


def most_kept(space: FusionSpace, limit: int) -> int:
    """The most bytes that any fusion keeps on chip: every partition is tried."""
    best = -1
    for group in partitions(len(space.names)):
        kept = sum(s.tensor_bytes for s in space.streams if group[s.source] == group[s.target])
        if kept > best and acyclic(space, group) and all(memory(space, group, k) <= limit for k in set(group)):
            best = kept
    return best
