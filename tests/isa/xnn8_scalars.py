"""The numbers of xnn8 once more, for one row at a time, on Python's integers and fractions, which have no width. Each
step checks the widths that `isa/overlays/xnn8/numbers.py` states.

A block is (integers, exponent). A factor is (mantissa, exponent).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from rsn.isa.overlays.xnn8.numbers import FAR, HIGHEST, INVERSE_127, LOG2_E, LOWEST, POWER, Table

Block = tuple[list[int], int]
Factor = tuple[int, int]


def fits(x: int, bits: int) -> int:
    """x, whose magnitude must have at most `bits` bits."""
    assert abs(x) <= 1 << bits, (x, bits)
    return x


def exponent(x: int) -> int:
    assert -1 << 10 <= x < 1 << 10, x
    return x


def near(x: int, shift: int) -> int:
    if shift <= 0:
        return x << -shift
    quotient, rest = divmod(x, 1 << shift)
    twice = 2 * rest - (1 << shift)
    return quotient + (twice > 0 or (twice == 0 and quotient % 2))


def limited(x: int, bits: int) -> int:
    most = 2 ** (bits - 1) - 1
    return max(-most, min(x, most))


def unpacked(code: int, multiplier: int) -> int:
    return limited(near(fits(code * multiplier, 11), 4), 8)


def normal(x: int, at: int, up: bool = False) -> Factor:
    x = max(x, 1)
    shift = x.bit_length() - 15
    mantissa = -((-x * 2 ** max(0, -shift)) // 2 ** max(0, shift)) if up else near(x, shift)
    return (mantissa // 2, exponent(at + shift + 1)) if mantissa == 1 << 15 else (mantissa, exponent(at + shift))


def stored(v: Sequence[int], at: int, bits: int) -> Block:
    most = max(map(abs, v))
    made = LOWEST if not most else max(LOWEST, at + most.bit_length() - (bits - 1))
    if made > HIGHEST:
        return [limited(x << bits, bits) for x in v], HIGHEST
    return [limited(near(x, made - at), bits) for x in v], made


def added(*addends: tuple[int, int, int]) -> tuple[int, int]:
    top = max(at + bits for _, at, bits in addends) - 29
    return fits(sum(fits(near(fits(x, bits), top - at), 29) for x, at, bits in addends), 31), exponent(top)


def statistics(x: Sequence[Block], columns: int, eps: tuple[int, int], root_n: tuple[int, int], rms: bool):
    """eps, root_n: columns * eps, and the root of columns, as 31 bits and an exponent."""
    top = max(e for _, e in x)
    n = columns.bit_length()
    sums = fits(sum(near(fits(sum(b), 22) << 8, top - e) for b, e in x), 23 + n)
    squares = fits(sum(near(fits(sum(c * c for c in b), 36) << 16, 2 * (top - e)) for b, e in x), 46 + n)
    mean = 0 if rms else fits(round(Fraction(sums, columns)), 23)
    if not rms:
        squares = max(0, fits(squares - fits(2 * mean * sums, 47 + n) + columns * mean * mean, 48 + n))
    shift = squares.bit_length() - 31
    own = 2 * (top - 8) + shift if squares else eps[1]
    common = max(own, eps[1])
    total = fits(max(1, near(near(squares, shift), common - own) + near(eps[0], common - eps[1])), 32)
    if common % 2:
        total, common = 2 * total, common - 1
    root = fits(isqrt(total << 14), 24)
    return mean, top, normal(round(Fraction(root_n[0] << 14, root)), root_n[1] - 14 - (common - 14) // 2)


def centred(x: Sequence[Block], gain: Sequence[Block], norm) -> list[Block]:
    mean, top = (0, max(e for _, e in x)) if norm is None else norm[:2]
    return [
        ([fits(near(fits(fits(near(m << 8, top - e), 23) - mean, 24) * g, 13), 26) for m, g in zip(b, c, strict=True)],
         top - 8 + f + 13)
        for (b, e), (c, f) in zip(x, gain, strict=True)
    ]  # fmt: skip


def sent(x: Sequence[Block], gain: Sequence[Block], norm, low: int = 0) -> tuple[list[list[int]], Factor]:
    most = [(max(abs(fits(m * g, 30)) for m, g in zip(b, c, strict=True)), e + f)
            for (b, e), (c, f) in zip(x, gain, strict=True)]  # fmt: skip
    top = max(e + 30 for _, e in most)
    offset, at = 0, 0
    if norm is not None:
        largest = max(f for _, f in gain)
        offset = fits(abs(norm[0]) * max(near(max(map(abs, c)), largest - f) for c, f in gain), 38)
        at = norm[1] - 8 + largest
        top = max(top, at + 38) if offset else top
    bound = fits(max(near(m, top - 30 - e) for m, e in most) + near(offset, top - 30 - at), 31)
    scale = normal(bound, top - 30, up=True)
    reciprocal = fits(round(Fraction(127 << 22, scale[0])), 15)
    most = 127 << low
    rows = [[max(-most, min(most, near(fits(u * reciprocal, 41), 22 + scale[1] - e - low))) for u in block]
            for block, e in centred(x, gain, norm)]  # fmt: skip
    scale = normal(scale[0] * INVERSE_127, scale[1] - 22 - low)
    return rows, scale if norm is None else normal(scale[0] * norm[2][0], scale[1] + norm[2][1])


def normalised(x: Sequence[Block], gain: Sequence[Block], shift: Sequence[Block], norm) -> list[list[tuple[int, int]]]:
    return [
        [added((u * norm[2][0], e + norm[2][1], 41), (s, f, 15)) for u, s in zip(b, c, strict=True)]
        for (b, e), (c, f) in zip(centred(x, gain, norm), shift, strict=True)
    ]


def scaled(total: int, shift: int, column: Factor, row: Factor) -> tuple[int, int, int]:
    drained = fits(near(total, shift), 15)
    assert limited(drained, 16) == drained
    return fits(fits(near(drained * column[0], 4), 26) * row[0], 41), exponent(shift + column[1] + 4 + row[1]), 41


def activated(v: int, at: int, table: Table | None) -> int:
    if table is None:
        return max(v, 0)
    index = min(near(abs(v), -table.steps - at), len(table.entries) - 1)
    return fits(max(v, 0) - near(int(table.entries[index]), at + table.fraction), 31)


def gated(gate: tuple[int, int], x: tuple[int, int]) -> tuple[int, int]:
    return fits(near(fits(near(gate[0], 5), 26) * fits(near(x[0], 8), 23), 20), 29), gate[1] + x[1] + 33


def rotated(v: Sequence[int], at: int, own: Sequence[int], partner: Sequence[int]) -> list[tuple[int, int]]:
    short = [fits(near(x, 5), 26) for x in v]
    return [(fits(near(short[c] * own[c] + short[c ^ 1] * partner[c], 12), 30), at + 3) for c in range(len(v))]


def power(x: int) -> int:
    made = POWER[3]
    for c in (2, 1, 0):
        made = fits(near((POWER[c] << 14) + made * x, 14), 15)
    for _ in range(3):
        made = fits(near(made * made, 15), 15)
    return near(made, 7)


def weights(scores: Sequence[int], at: int, shows: Sequence[bool], head_dim: int) -> list[int]:
    widest = max(0, (2 * head_dim * 127 * 127).bit_length() - 15)
    first = max(0, min(-11 - at, widest))
    second = max(0, 3 - at - first)
    seen = [s for s, shown in zip(scores, shows, strict=True) if shown]
    return [
        power(min(near(limited(near(fits(max(seen) - s, 31), first), 16) * LOG2_E, second), FAR)) if shown else 0
        for s, shown in zip(scores, shows, strict=True)
    ]


def of_weights(total: int, weight: int, at: int, keys: int) -> tuple[int, int]:
    shift = max(0, (127 * 255 * keys).bit_length() - 26)
    divisor = normal(weight, 0)
    reciprocal = fits(round(Fraction(1 << 29, divisor[0])), 15)
    return added((fits(near(total, shift), 26) * reciprocal, at + shift - 29 - divisor[1], 41))
