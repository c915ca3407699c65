"""The best fusion that is known for a graph of any width: proved, or with a bound on what a better one could keep.

A graph with few ideals is solved by `exact_fusion`. One with many, such as parallel heads of an attention, is cut into
*windows* of its topological order where few bytes cross, and each window is solved. A fusion of the whole graph is a
fusion of each window plus streams between windows; so no fusion keeps more than the windows' best plus what crosses,
which is the bound. Then groups of neighbouring windows are merged, and nodes moved, while that keeps more bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .exact_fusion import STEPS, exact
from .fusion import FusedStream, Fusion, FusionSpace, printed

WINDOWS = (24, 18, 12, 8, 4)
"""Most nodes of a window, tried in this order until the windows are solved in `STEPS` together."""


def fuse(space: FusionSpace, limit: int, steps: int = STEPS) -> Fusion:
    """Return the fusion that keeps most bytes on chip, as far as `steps` of search show; `Fusion.gap_bytes` says how
    many more bytes a better fusion could keep at most. The same space, limit and steps give the same fusion.

    limit: the most memory of a group in bytes, C_max of StreamTensor. steps: how many steps the search may take; the
    default takes one to three seconds. Raises `BudgetError` if a node alone takes more than the limit."""
    listed = improved(space, limit, printed(space, limit).group)
    found = exact(space, limit, steps, space.kept_bytes(listed))
    if found is not None:
        return found
    group, bound = list(range(len(space.names))), space.tensor_bytes
    for width in WINDOWS:
        solved = by_windows(space, limit, width, steps)
        if solved is not None:
            group, bound = solved
            break
    best = max(improved(space, limit, group), listed, key=space.kept_bytes)
    return Fusion.ordered(space, best, limit, bound, "windows")


def by_windows(space: FusionSpace, limit: int, width: int, steps: int) -> tuple[list[int], int] | None:
    """Cut a space into windows of consecutive nodes and find the best fusion of each (`exact`). Return the number of
    the group of each node, from 1, and a bound on the bytes that any fusion keeps on chip; None if a window takes more
    than its share of the steps.

    limit: the most memory of a group in bytes. width: the most nodes of a window. steps: of the searches of all windows
    together. Raises `BudgetError` if a node alone takes more than `limit`."""
    order = _depth_first(space)
    position = {node: k for k, node in enumerate(order)}
    cuts = _cuts(space, position, width)
    share = max(steps // (len(cuts) - 1), 1)
    group, count = [0] * len(order), 0
    bound = sum(
        stream.tensor_bytes
        for stream in space.streams
        if any(position[stream.source] < cut <= position[stream.target] for cut in cuts)
    )
    for first, last in pairwise(cuts):
        nodes = order[first:last]
        solved = exact(_part(space, nodes), limit, share)
        if solved is None:
            return None
        bound += solved.kept_bytes
        for node, number in zip(nodes, solved.group, strict=True):
            group[node] = count + number
        count += len(solved.groups)
    return group, bound


def _depth_first(space: FusionSpace) -> list[int]:
    """A topological order in which a node is followed by those that it makes ready, so that chains stay together."""
    waits = [len(streams) for streams in space.into]
    nexts: list[list[int]] = [[] for _ in space.names]
    for stream in space.streams:
        nexts[stream.source].append(stream.target)
    ready = [node for node in reversed(range(len(waits))) if not waits[node]]
    order: list[int] = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in reversed(nexts[node]):
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return order


def _cuts(space: FusionSpace, position: dict[int, int], width: int) -> list[int]:
    """Where windows of at most `width` nodes begin and end, so that fewest bytes cross; of those, fewest windows."""
    by_target: list[list[tuple[int, int]]] = [[] for _ in space.names]
    for stream in space.streams:
        by_target[position[stream.target]].append((position[stream.source], stream.tensor_bytes))
    best: list[tuple[int, int]] = [(0, 0)]
    start: list[int] = [0]
    for end in range(1, len(space.names) + 1):
        options = []
        for first in range(max(0, end - width), end):
            crossing = sum(size for k in range(first, end) for source, size in by_target[k] if source < first)
            options.append((best[first][0] + crossing, best[first][1] + 1, first))
        bytes_crossing, windows, first = min(options)
        best.append((bytes_crossing, windows))
        start.append(first)
    cuts = [len(space.names)]
    while cuts[-1]:
        cuts.append(start[cuts[-1]])
    return cuts[::-1]


def _part(space: FusionSpace, nodes: Sequence[int]) -> FusionSpace:
    """The space of some nodes, given in topological order."""
    number = {node: k for k, node in enumerate(nodes)}
    streams = tuple(
        FusedStream(number[s.source], number[s.target], s.tensor_bytes, s.converter, s.fifo_bytes)
        for s in space.streams
        if s.source in number and s.target in number
    )
    names = tuple(space.names[node] for node in nodes)
    return FusionSpace(names, tuple(space.own_bytes[node] for node in nodes), streams, space.converter_bytes)


def improved(space: FusionSpace, limit: int, group: Sequence[int]) -> list[int]:
    """Return the group of each node after merges of groups and moves of nodes that keep more bytes on chip; the change
    that gains most is made first, until none gains.

    limit: the most memory of a group in bytes. group: the number of the group of each node, at first; groups within the
    limit that do not wait for each other."""
    now = list(group)
    while True:
        kept = space.kept_bytes(now)
        options = sorted(_changes(space, now), key=lambda option: (-option[0], option[1]))
        for gain, nodes, number in options:
            if gain <= 0:
                return now
            tried = list(now)
            for node in nodes:
                tried[node] = number
            members = [node for node, other in enumerate(tried) if other == number]
            if space.bytes_of(members) <= limit and _runs(space, tried):
                assert space.kept_bytes(tried) == kept + gain
                now = tried
                break
        else:
            return now


def _changes(space: FusionSpace, group: Sequence[int]) -> list[tuple[int, tuple[int, ...], int]]:
    """Bytes gained, nodes, and the group that they go to: whole groups, and single nodes, along streams."""
    members = space.groups_of(group)
    between: dict[tuple[int, int], int] = {}
    to_group: dict[tuple[int, int], int] = {}
    for stream in space.streams:
        a, b = group[stream.source], group[stream.target]
        between[a, b] = between.get((a, b), 0) + stream.tensor_bytes
        for node, other in ((stream.source, b), (stream.target, a)):
            to_group[node, other] = to_group.get((node, other), 0) + stream.tensor_bytes
    merges = [
        (between[pair] + between.get(pair[::-1], 0), tuple(members[pair[0]]), pair[1])
        for pair in between
        if pair[0] != pair[1]
    ]
    moves = [
        (size - to_group.get((node, group[node]), 0), (node,), number)
        for (node, number), size in to_group.items()
        if number != group[node] and len(members[group[node]]) > 1
    ]
    return [*merges, *moves]


def _runs(space: FusionSpace, group: Sequence[int]) -> bool:
    """Whether groups can run one after the other: their graph has no cycle."""
    after: dict[int, set[int]] = {number: set() for number in group}
    waits = dict.fromkeys(after, 0)
    for stream in space.streams:
        source, target = group[stream.source], group[stream.target]
        if source != target and target not in after[source]:
            after[source].add(target)
            waits[target] += 1
    ready = [number for number, count in waits.items() if not count]
    done = 0
    while ready:
        number = ready.pop()
        done += 1
        for target in after[number]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return done == len(after)
