"""A second evaluation of beats, to compare with: equations of the times of all beats, solved by recursion on lists."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from rsn.streams.tree import Beat, Body, FixedLoop

Listed = list[tuple[int, list[tuple[int, bool]]]]
"""Beats in order: cycles, and (stream, put) of each operation."""


def listed(body: Body) -> Listed:
    """All beats of a body without branches, loops unrolled."""
    out: Listed = []
    for node in body:
        if isinstance(node, FixedLoop):
            out += listed(node.body) * node.times
        else:
            assert isinstance(node, Beat)
            out.append((node.cycles, [(op.stream, op.put) for op in node.ops]))
    return out


def run(
    bodies: Sequence[Body], depths: Mapping[int, int], packing: Mapping[int, int], executions: int
) -> tuple[list[int], dict[int, int]] | None:
    """Ends of the executions, and the most slots in use at once on each stream; None if an instance waits for ever.
    depths: of all streams that are not endless.

    The start of a beat is the largest of times of other beats. Passes over all beats are repeated until none is new.
    """
    beats = [listed(body) * executions for body in bodies]
    per = [len(listed(body)) for body in bodies]
    start: list[list[int]] = [[] for _ in beats]
    puts: dict[int, list[tuple[int, int]]] = {}
    gets: dict[int, list[tuple[int, int]]] = {}
    moved = True
    while moved:
        moved = False
        for k, mine in enumerate(beats):
            if len(start[k]) == len(mine):
                continue
            cycles, ops = mine[len(start[k])]
            before = [start[k][-1] + mine[len(start[k]) - 1][0]] if start[k] else [0]
            for stream, put in ops:
                writes, reads = puts.setdefault(stream, []), gets.setdefault(stream, [])
                if put:
                    slot = len(writes) - depths.get(stream, len(writes) + 1)
                    before.append(-1 if slot < 0 else reads[slot][1] if slot < len(reads) else -2)
                else:
                    size = packing.get(stream, 1)
                    last = len(reads) // size * size + size - 1
                    before.append(writes[last][1] if last < len(writes) else -2)
            if -2 in before:
                continue
            at = max(before)
            start[k].append(at)
            for stream, put in ops:
                (puts if put else gets)[stream].append((at, at + cycles))
            moved = True
    if any(len(times) < len(mine) for times, mine in zip(start, beats, strict=True)):
        return None
    ends = [0] * executions
    for k, mine in enumerate(beats):
        for e in range(executions):
            last = (e + 1) * per[k] - 1
            if per[k]:
                ends[e] = max(ends[e], start[k][last] + mine[last][0])
    peaks = {}
    for s, times in puts.items():
        freed = [end for _, end in gets[s]]
        peaks[s] = max(n + 1 - bisect_right(freed, at) for n, (at, _) in enumerate(times))
    return ends, peaks
