"""The fusion that keeps most bytes on chip, proved: over all fusions without cycles, under the limit.

Groups that can run one after the other are a chain of *ideals*: sets of nodes that hold all that their nodes read, from
none to all; each group is the difference of two consecutive ideals. So a shortest-path search over ideals is exact. A
transformer's graph is narrow and has few of them: 20 to 40 for each block. A graph of n nodes without streams has 2^n,
so the search counts its steps and gives up beyond a number of them.

All streams that lead out of an ideal are cut. An ideal whose cuts alone leave less on chip than a fusion that is known
already is not searched further; in a network of many blocks these are most.

The best fusion: most bytes of tensors kept on chip; of those, fewest groups; of those, fewest bytes of memory in all;
of those, the first found in topological order. Groups are connected: to split one that is not costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from .fusion import Fusion, FusionSpace

STEPS = 400_000
"""Limit of the steps of the search, one to three seconds."""

STEPS_PER_IDEAL = 20
"""A search with fewer steps for each ideal is not begun."""


@dataclass(frozen=True)
class _In:
    """A stream into a node. source: bit of its source. taps: bits of the other nodes that get from the same
    converter; the converter takes no more bytes if one of them is in the group."""

    source: int
    tensor_bytes: int
    fifo_bytes: int
    converter_bytes: int
    taps: int


def exact(space: FusionSpace, limit: int, steps: int = STEPS, at_least: int = 0) -> Fusion | None:
    """Return the best fusion of a space; None if the search takes more than `steps`.

    limit: the most memory of a group in bytes, C_max of StreamTensor. steps: how many steps the search may take.
    at_least: bytes that a known fusion keeps on chip under this limit; the search skips what keeps less. Raises
    `BudgetError` if a node alone takes more than the limit."""
    space.check_budget(limit)
    count = len(space.names)
    full = (1 << count) - 1
    into = _streams_into(space)
    needs = [sum({stream.source for stream in streams}) for streams in into]
    nexts: list[list[int]] = [[] for _ in range(count)]
    touches = [0] * count
    for s in space.streams:
        if s.target not in nexts[s.source]:
            nexts[s.source].append(s.target)
        touches[s.source] |= 1 << s.target
        touches[s.target] |= 1 << s.source
    out = [0] * count
    for s in space.streams:
        out[s.source] += s.tensor_bytes
    if _wide(needs, nexts, steps // STEPS_PER_IDEAL):
        return None

    # Of each ideal: (bytes kept, -groups, -bytes of memory), and the ideal before its last group.
    best: dict[int, tuple[int, int, int]] = {0: (0, 0, 0)}
    before: dict[int, int] = {}
    queue: list[tuple[int, int]] = [(0, 0)]  # ideals by their number of nodes: all that lead to one come before it
    sources = [node for node in range(count) if not needs[node]]
    readies: dict[int, tuple[int, ...]] = {0: tuple(sources)}
    remaining = {0: space.tensor_bytes}  # bytes of the streams that nodes outside of an ideal put
    while queue:
        _, base = heappop(queue)
        if base == full:
            break
        kept_before, groups, memory_before = best[base]
        seen = {base}
        todo = [(base, readies[base], 0, 0, remaining[base])]
        while todo:
            ideal, ready, memory, kept, left = todo.pop()
            for node in ready:
                bit = 1 << node
                larger = ideal | bit
                if larger in seen:
                    continue
                steps -= 1
                if steps < 0:
                    return None
                seen.add(larger)
                group = ideal ^ base
                more, gain = space.own_bytes[node], 0
                for stream in into[node]:
                    if stream.source & group:
                        gain += stream.tensor_bytes
                        more += stream.fifo_bytes
                        if not stream.taps & group:
                            more += stream.converter_bytes
                if memory + more > limit:
                    continue
                after = tuple(n for n in ready if n != node) + tuple(n for n in nexts[node] if not needs[n] & ~larger)
                todo.append((larger, after, memory + more, kept + gain, left - out[node]))
                value = (kept_before + kept + gain, groups - 1, memory_before - memory - more)
                if value[0] + left - out[node] < at_least:
                    continue
                known = best.get(larger)
                if (known is None or value > known) and _connected(group | bit, touches):
                    best[larger], before[larger] = value, base
                    if known is None:
                        readies[larger], remaining[larger] = after, left - out[node]
                        heappush(queue, (larger.bit_count(), larger))
    group_of = [0] * count
    ideal = full
    while ideal:
        smaller = before[ideal]
        for node in range(count):
            if (ideal ^ smaller) >> node & 1:
                group_of[node] = smaller
        ideal = smaller
    return Fusion.ordered(space, group_of, limit, best[full][0], "exact")


def _wide(needs: list[int], nexts: list[list[int]], most: int) -> bool:
    """Whether there are more ideals than `most`. needs: bits of what each node reads. nexts: what reads each node."""
    first = tuple(node for node, bits in enumerate(needs) if not bits)
    seen, todo = {0}, [(0, first)]
    while todo:
        ideal, ready = todo.pop()
        for node in ready:
            larger = ideal | 1 << node
            if larger not in seen:
                seen.add(larger)
                if len(seen) > most:
                    return True
                after = tuple(n for n in ready if n != node) + tuple(n for n in nexts[node] if not needs[n] & ~larger)
                todo.append((larger, after))
    return False


def _streams_into(space: FusionSpace) -> list[list[_In]]:
    taps: dict[int, int] = {}
    for stream in space.streams:
        if stream.converter is not None:
            taps[stream.converter] = taps.get(stream.converter, 0) | 1 << stream.target
    found: list[list[_In]] = [[] for _ in space.names]
    for target, streams in enumerate(space.into):
        paid: set[int] = set()
        for s in streams:
            size, others = 0, 0
            if s.converter is not None and s.converter not in paid:
                paid.add(s.converter)
                size, others = space.converter_bytes[s.converter], taps[s.converter] & ~(1 << target)
            found[target].append(_In(1 << s.source, s.tensor_bytes, s.fifo_bytes, size, others))
    return found


def _connected(group: int, touches: list[int]) -> bool:
    """Whether streams join all nodes of a group, in any direction. group: bits. touches: bits of each node's peers."""
    reached = edge = group & -group
    while edge:
        node = edge.bit_length() - 1
        edge ^= 1 << node
        fresh = touches[node] & group & ~reached
        reached |= fresh
        edge |= fresh
    return reached == group
