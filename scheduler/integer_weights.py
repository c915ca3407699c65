"""Weights of xnn8 as integers: of 8 bits, with a scale for each column; or of 4 bits, with a multiplier beside it for
each 32 rows of a column.

A weight that its model has quantised keeps its integers. The compiler recognises it by its numbers alone: each column,
or each group of rows, is integers times a scale. So it does not matter how the model wrote, joined or cut the weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..isa.overlays.xnn8.numbers import GROUP, MULTIPLIER_BITS, Floats, unpacked

Columns = Callable[[slice], Floats]
"""Makes some columns of a weight, (K, some)."""
KEPT = 2**-12
"""How far from an integer a weight may be that was one times a scale: both were rounded to float32."""
STRIP = 512
"""Columns that are quantised at a time: they stay in the cache."""
LARGEST = 15
"""The multiplier of the group with the largest scale of a column, in whole numbers: its integers are exact, and 8 bits
hold -8 times it."""


class ShortWeight(NamedTuple):
    """A weight of 4 bits. codes: int8 (K, N), from -8 to 7. multipliers: one for each 32 rows of a column, in units of
    2^-4, uint8 (K / 32, N). The integers that tiles multiply are made of both."""

    codes: npt.NDArray[np.int8]
    multipliers: npt.NDArray[np.uint8]


class QuantisedWeight(NamedTuple):
    """A weight as integers. scales: of its columns, float64 (N,). integers: as tiles multiply them, int8 (K, N). short:
    the weight of 4 bits from which `integers` are made; None for a weight of 8 bits."""

    scales: Floats
    integers: npt.NDArray[np.int8]
    short: ShortWeight | None = None


def strips(count: int) -> Iterator[slice]:
    """Yield ranges of at most `STRIP` columns that together are the `count` columns of a weight."""
    yield from (slice(at, min(at + STRIP, count)) for at in range(0, count, STRIP))


def quantised(columns: Columns, count: int) -> QuantisedWeight:
    """Return a weight as integers.

    It has 4 bits if each group of 32 rows of each column is integers from -8 to 7 times a scale. Else it has 8 bits,
    from -127 to 127; a column that already is integers from -128 to 127 times a scale keeps these. columns: makes a
    range of the columns, float (K, n), with K a multiple of 32, so that not all of them need be in memory at a time.
    count: number of all columns, N.
    """
    found = _groups(columns, count)
    if found is not None:
        codes, of_groups = found
        most = of_groups.max(0)
        most[most == 0] = 1
        multipliers = np.rint(of_groups / most * (LARGEST << MULTIPLIER_BITS)).astype(np.uint8)
        integers = np.empty(codes.shape, np.int8)
        for strip in strips(count):
            integers[:, strip] = unpacked(codes[:, strip], multipliers[:, strip])
        return QuantisedWeight(most / LARGEST, integers, ShortWeight(codes, multipliers))
    scales, integers = np.empty(count), np.empty((0, count), np.int8)
    for strip in strips(count):
        scales[strip], made = _of_columns(columns(strip))
        if not len(integers):
            integers = np.empty((len(made), count), np.int8)
        integers[:, strip] = made
    return QuantisedWeight(scales, integers)


def _of_columns(weight: Floats) -> tuple[Floats, Floats]:
    """The scales and the integers of 8 bits of columns (K, N)."""
    most = np.abs(weight).max(0)
    most[most == 0] = 1
    of_kept = most / 128
    kept = np.flatnonzero(_near_integers(weight[:GROUP] / of_kept))  # the first rows tell of most that they are none
    finer = weight[:, kept] / of_kept[kept]
    kept = kept[_near_integers(finer) & (finer.max(0) < 127.5)]
    scales = most / 127
    scales[kept] = of_kept[kept]
    return scales, np.rint(weight / scales)


def _near_integers(x: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.all(np.abs(x - np.rint(x)) < KEPT, axis=0)
    return found


def has_four_bits(weight: Floats) -> bool:
    """Return whether a weight (K, N), K at least 1, is of 4 bits for `quantised`; rows of zeros behind it change
    nothing."""
    is_number = weight.strides == (0, 0)  # one for all, as without values
    return not is_number and _groups(lambda strip: weight[:, strip], weight.shape[1]) is not None


def _groups(columns: Columns, count: int) -> tuple[npt.NDArray[np.int8], Floats] | None:
    """The integers of 4 bits (K, N), and the scales of groups (K / 32, N), of a weight that is made of them; else None,
    also without both signs: a module without values has equal numbers."""
    codes, scales = np.empty((0, count), np.int8), np.empty((0, count))
    for strip in strips(count):
        part = columns(strip)
        for at in range(0, len(part), GROUP):
            rows = slice(at, at + GROUP)
            found = _group(part[rows].astype(np.float64))
            if found is None:
                return None
            if not len(codes):
                codes = np.empty((len(part), count), np.int8)
                scales = np.empty((-(-len(part) // GROUP), count))
            codes[rows, strip], scales[at // GROUP, strip] = found
    return (codes, scales) if codes.min() < 0 < codes.max() else None


def _group(rows: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int8], Floats] | None:
    """The same for a group (32, N), with the smallest scales that there are."""
    above, below = rows.max(0), -rows.min(0)
    most = np.maximum(above, below)
    scales, codes = np.where(most == 0, 0.0, np.inf), np.zeros(rows.shape, np.int8)
    for largest in range(8, 0, -1):
        left = np.flatnonzero(np.isinf(scales) & (above * largest < most * 7.5))  # 7 is the largest above 0
        if len(left):
            times = rows[:, left] * (largest / most[left])
            nearest = np.rint(times)
            fits = _near_integers(times)
            scales[left[fits]] = most[left[fits]] / largest
            codes[:, left[fits]] = nearest[:, fits]
    return None if np.isinf(scales).any() else (codes, scales)
