"""Repeats in op lists: a list of ops with equal sections one behind the other, as short as possible.

A section of p ops that runs n times becomes p ops and a repeat. As repeats are not nested, a list is a sequence of such
sections and of ops between them, so dynamic programming from the end of the list finds the shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..base.errors import FieldError
from ..isa.fields import Record
from ..isa.overlay import Repeat
from ..machine.jit import machine_code

Ints = npt.NDArray[np.int64]
MakeRepeat = Callable[[int, int], Record]
"""Given `length` and `times`, the entry that is this repeat. Raises `FieldError` for a value that its field cannot
hold."""

MAX_LENGTH = 128
"""Longest section that `folded` looks for."""


def folded(
    ops: Sequence[Record], make_repeat: MakeRepeat, *, repeat: Repeat | None = None, longest: int = MAX_LENGTH
) -> tuple[Record, ...]:
    """Return the shortest op list that executes these ops (`OpList.unrolled`).

    make_repeat: makes the entry of a repeat. repeat: reads an entry of the overlay, to find ops that are repeats
    themselves, for which `ValueError` is raised; None does not look for them. longest: the most ops of a section that
    is repeated."""
    if repeat is not None and any(repeat(op) is not None for op in ops):
        raise ValueError("the ops to fold have a repeat")
    if len(ops) < 3:
        return tuple(ops)
    numbers: dict[tuple[type, Record], int] = {}
    keys = np.array([numbers.setdefault((type(op), op), len(numbers)) for op in ops], np.int64)
    periods = min(longest, len(ops) // 2, _most(lambda length: make_repeat(length, 1), longest))
    most = _most(lambda times: make_repeat(1, times), len(ops))
    if periods < 1 or most < 1:
        return tuple(ops)
    section, times = machine_code(_shortest)(keys, periods, most)
    out: list[Record] = []
    at = 0
    while at < len(ops):
        length = int(section[at])
        if not length:
            out.append(ops[at])
            at += 1
            continue
        out += [*ops[at : at + length], make_repeat(length, int(times[at]))]
        at += length * (1 + int(times[at]))
    return tuple(out)


def _most(make: Callable[[int], Record], most: int) -> int:
    """The largest value up to `most` that a field of a repeat holds; 0 if it holds none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        try:
            make(middle)
        except FieldError:
            high = middle - 1
        else:
            low = middle
    return low


def _shortest(keys: Ints, periods: int, most: int) -> tuple[Ints, Ints]:
    """The shortest list from each op on. keys: ops that are equal have equal numbers. periods: longest section. most:
    largest `times` of a repeat.

    Returns two arrays: the length of the section that begins at an op, 0 for an op outside of sections, and how many
    more times the section runs.
    """
    n = len(keys)
    cost = np.zeros(n + 1, np.int64)  # entries of the shortest list of ops[i:]
    section = np.zeros(n, np.int64)
    times = np.zeros(n, np.int64)
    alike = np.zeros(periods + 1, np.int64)  # by period p: how many ops from i on equal the op p behind them
    # By position (of the last ones) and period: entries behind the best section that begins there, and its `times`. The
    # best of position i has one repetition, or is the best of i + p with one more.
    rest = np.zeros((periods + 1, periods + 1), np.int64)
    held = np.zeros((periods + 1, periods + 1), np.int64)
    for i in range(n - 1, -1, -1):
        row = i % (periods + 1)
        cost[i] = 1 + cost[i + 1]
        for p in range(1, min(periods, n - 1 - i) + 1):
            alike[p] = alike[p] + 1 if keys[i] == keys[i + p] else 0
            held[row, p] = 0
            if alike[p] < p:
                continue
            best, count = cost[i + 2 * p], 1
            behind = (i + p) % (periods + 1)
            if alike[p] >= 2 * p and rest[behind, p] < best:
                if held[behind, p] < most:
                    best, count = rest[behind, p], held[behind, p] + 1
                else:  # its best is out of reach
                    for t in range(2, min(alike[p] // p, most) + 1):
                        if cost[i + p * (t + 1)] < best:
                            best, count = cost[i + p * (t + 1)], t
            rest[row, p], held[row, p] = best, count
            if p + 1 + best < cost[i]:
                cost[i] = p + 1 + best
                section[i], times[i] = p, count
    return section, times
