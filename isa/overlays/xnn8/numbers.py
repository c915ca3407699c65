"""The numbers of overlay xnn8: every step from rows to rows, on integers alone. It is the definition that all else
equals in each bit.

Values are integers with power-of-two exponents: one exponent for each row and block of 64 columns. Three kinds of them
are kept: X (16 bits: what residuals add up), T (8 bits: queries, keys, values, heads, hidden columns), and constants
(16 bits). Products take 8 bits, with one scale for each row and one for each column of the weight; or rows of up to 16
bits, whose two parts of 8 bits pass one after the other.

Rules of all steps: rounding is to the nearest integer, half to even (`rounded`); saturation is symmetric (`saturated`);
a shift to the left is one by a negative number. The widths that a docstring states hold for all inputs, if
`bounds` allows the shapes; so nothing overflows, and the order of sums and maxima does not matter. Multiplications
beside the AIE array fit a DSP58: 27 x 24 bits (AM004).

Arrays are int64 of NumPy, wider than any value. Shapes: (..., blocks, columns of a block) for integers and
(..., blocks, 1) for exponents; what a row has one of is (..., 1, 1).
"""

from __future__ import annotations

from math import e, frexp, log2
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....base.errors import TensorError

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating[Any]]

BLOCK = 64
"""Columns that share an exponent: those of a pair of tiles."""
X_BITS, T_BITS = 16, 8
LOWEST, HIGHEST = -128, 112
"""Exponents of what is stored have 8 bits, and X stays within float32. Blocks of zeros have the lowest one; what is too
small for it becomes 0, and a block that is too large for the highest one saturates. On their way exponents have 11
bits."""
SATURATING = 30
"""A shift to the left by which everything saturates."""
FACTOR_BITS = 15
"""Bits of the mantissa of a factor; it is not negative."""
SUM_BITS = 29
"""Bits of an addend of `added`, without its sign."""
GUARD = 8
"""Bits that X gets behind its last one where blocks of a row are aligned."""
GROUP = 32
"""Rows of a weight of 4 bits that share a multiplier: those that a tile takes of a chunk."""
MULTIPLIER_BITS = 4
"""Bits of a multiplier behind the point, of 8."""
LOW_BITS = 8
"""Bits of the low part of a row of 16 bits, and so the most that a row has beyond 8."""
INVERSE_127 = round(2**22 / 127)
"""1 / 127 in units of 2^-22."""


class BlockNumbers(NamedTuple):
    """Values integers * 2^exponents. integers: (..., blocks, columns of a block). exponents: (..., blocks, 1)."""

    integers: Integers
    exponents: Integers


class RowFactor(NamedTuple):
    """Positive values mantissa * 2^exponent, such as the scales of rows. mantissa: from 2^14 up to 2^15 - 1. Both have
    the same shape, (..., 1, 1) for rows."""

    mantissa: Integers
    exponent: Integers


class NormConstants(NamedTuple):
    """The constants of a norm over the columns of a row. columns: number of columns that count, without padding. added:
    columns * eps, which is added to the sum of squares. root: the square root of columns. added and root are pairs
    (mantissa, exponent) of mantissa * 2^exponent; a mantissa has up to 31 bits."""

    columns: int
    added: tuple[int, int]
    root: tuple[int, int]

    @classmethod
    def of(cls, columns: int, eps: float) -> NormConstants:
        """Return the constants of a norm. columns: number of columns that count. eps: not negative, added to the
        variance."""
        return cls(columns, _constant(columns * eps, 31), _constant(columns**0.5, 31))


class Statistics(NamedTuple):
    """Mean and deviation of the rows of an X; each array is (..., 1, 1). mean: 24 bits, in units of 2^(top - GUARD).
    top: the largest exponent of a row's blocks. inverse: 1 / standard deviation, or, for an RMS norm, 1 / root of the
    mean square."""

    mean: Integers
    top: Integers
    inverse: RowFactor


# -- rounding


def rounded(x: Integers, shift: Integers | int) -> Integers:
    """x / 2^shift to the nearest integer, half to even, elementwise. x: at most 61 bits and a sign. shift: in bits, to
    be broadcast to x; a negative one multiplies by 2^-shift. Shifts beyond 62 bits count as 62 bits: to the right they
    make 0."""
    shift = np.asarray(shift, np.int64)
    if shift.min() < 0:
        x = x << np.clip(-shift, 0, 62)
    right = np.clip(shift, 0, 62)
    made = x >> right & (right > 0)  # the last bit of the quotient
    made += x
    made += np.maximum((1 << right >> 1) - 1, 0)
    made >>= right
    return made


def saturated(x: Integers, bits: int) -> Integers:
    """x, limited to the integers of `bits` bits with a sign, symmetrically: to -127 to 127 for 8 bits."""
    most = (1 << bits - 1) - 1
    return np.clip(x, -most, most)


def length(x: Integers) -> Integers:
    """The number of bits of |x|, elementwise: 0 for 0, 8 for 255. Exact for up to 62 bits."""
    high, low = np.abs(x) >> 31, np.abs(x) & 0x7FFFFFFF
    bits = np.where(high > 0, np.frexp(high.astype(np.float64))[1] + 31, np.frexp(low.astype(np.float64))[1])
    return bits.astype(np.int64)


def divided(x: Integers, divisor: Integers | int) -> Integers:
    """x / divisor to the nearest integer, half to even, elementwise. divisor: positive, to be broadcast to x."""
    quotient = x // divisor
    twice = 2 * (x - quotient * divisor)
    made: Integers = quotient + ((twice > divisor) | ((twice == divisor) & (quotient & 1 == 1)))
    return made


def normal(x: Integers, exponent: Integers | int, *, up: bool = False) -> RowFactor:
    """x * 2^exponent as a factor, elementwise. x: not negative, at most 61 bits; 0 counts as 1. up: whether the
    mantissa is rounded up; otherwise it is rounded to the nearest."""
    x = np.maximum(x, 1)
    shift = length(x) - FACTOR_BITS
    made = rounded(x, shift)
    if up:
        made = made + (rounded(made, -shift) < x)
    over = made >> FACTOR_BITS  # rounded up to the next power of two
    return RowFactor(made >> over, exponent + shift + over)


def times(a: RowFactor, b: RowFactor) -> RowFactor:
    """The product of two factors, as a factor, elementwise."""
    return normal(a.mantissa * b.mantissa, a.exponent + b.exponent)


# -- storing


def stored(v: Integers, exponent: Integers, bits: int) -> BlockNumbers:
    """v * 2^exponent as blocks of integers of `bits` bits. The exponent of a block is the least one with which its
    largest integer fits, but from `LOWEST` to `HIGHEST`. In a block for which `HIGHEST` is too low, all that is not 0
    saturates. v: (..., blocks, columns), at most 31 bits and a sign. exponent: (..., blocks, 1), or one for each half
    of a block, (..., blocks, 2). Returns integers of v's shape, with exponents (..., blocks, 1)."""
    exponent = np.broadcast_to(exponent, (*v.shape[:-1], exponent.shape[-1]))
    parts = v.reshape(*exponent.shape, -1)
    most = np.abs(parts).max(-1)
    needed = np.where(most == 0, LOWEST, exponent + length(most) - (bits - 1))
    made = np.maximum(needed.max(-1, keepdims=True), LOWEST)
    integers = saturated(rounded(parts, (made - exponent)[..., None]), bits).reshape(v.shape)
    beyond = made > HIGHEST
    if beyond.any():
        integers = np.where(beyond, np.sign(v) * ((1 << bits - 1) - 1), integers)
    return BlockNumbers(integers, np.minimum(made, HIGHEST))


def added(*addends: tuple[Integers, Integers, int]) -> tuple[Integers, Integers]:
    """The sum of one to three addends: integers of 31 bits and a sign, (..., blocks, columns), and their exponents,
    (..., blocks, 1). addends: each of these two arrays, in shapes that broadcast, and the bits of the largest possible
    integer without its sign. The addends are first shifted to a common exponent, with which each has at most `SUM_BITS`
    bits."""
    top = addends[0][1] + addends[0][2]
    for _, exponent, bits in addends[1:]:
        top = np.maximum(top, exponent + bits)
    top = top - SUM_BITS
    total = rounded(addends[0][0], top - addends[0][1])
    for integers, exponent, _ in addends[1:]:
        total = total + rounded(integers, top - exponent)
    return total, top


def kept(x: BlockNumbers, bits: int = X_BITS) -> tuple[Integers, Integers, int]:
    """Return blocks as an addend of `added`. bits: of their integers, with the sign."""
    return x.integers, x.exponents, bits - 1


# -- sending X


def statistics(x: BlockNumbers, constants: NormConstants, *, rms: bool) -> Statistics:
    """Mean and deviation of each row of an X. x: 16 bits, (..., blocks, columns); columns that do not count are 0.
    constants: of the norm. rms: whether it is an RMS norm, whose mean counts as 0.

    Each block has a sum (22 bits) and a sum of squares (36). They are aligned to the largest exponent of the row, with
    8 bits more (16 for squares): of n columns, sums have 23 + log2 n bits, sums of squares 46 + log2 n. The squares of
    differences from the rounded mean follow exactly, with 48 + log2 n bits. The variance gets 33 bits, its root 24."""
    columns, (added_mantissa, added_exponent), (mantissa, exponent) = constants
    top = x.exponents.max(-2, keepdims=True)
    lower = top - x.exponents
    squares = rounded(np.square(x.integers).sum(-1, keepdims=True) << 2 * GUARD, 2 * lower).sum(-2, keepdims=True)
    mean = np.zeros_like(top)
    if not rms:
        sums = rounded(x.integers.sum(-1, keepdims=True) << GUARD, lower).sum(-2, keepdims=True)
        mean = divided(sums, columns)
        squares = np.maximum(squares - 2 * mean * sums + columns * mean * mean, 0)
    shift = length(squares) - 31
    own = np.where(squares == 0, added_exponent, 2 * (top - GUARD) + shift)
    common = np.maximum(own, added_exponent)
    added_mantissas = np.asarray(added_mantissa, np.int64)
    total = rounded(rounded(squares, shift), common - own) + rounded(added_mantissas, common - added_exponent)
    odd = common & 1
    total = np.maximum(total, 1) << odd
    root = _root(total << 14)
    inverse = normal(divided(np.asarray(mantissa << 14, np.int64), root), exponent - 14 - (common - odd - 14 >> 1))
    return Statistics(mean, top, inverse)


def sent(
    x: BlockNumbers, gain: BlockNumbers, norm: Statistics | None = None, low_bits: int = 0
) -> tuple[Integers, RowFactor]:
    """The rows of an X as a product takes them: integers up to 127 * 2^low_bits in magnitude, (..., blocks, columns),
    and the scale of each row, (..., 1, 1). x: 16 bits. gain: 16 bits, (blocks, columns), 0 for columns that do not
    count. norm: of the rows; None if they are not normalised. low_bits: bits that the rows have beyond 8, 0 to
    `LOW_BITS`.

    A row stands for (x - mean) * gain / deviation. Its scale does not follow from the largest of these values, which is
    known too late, but from a bound of it: max |x * gain| + |mean| * max |gain|, at most 31 bits, over 127."""
    exponents = x.exponents + gain.exponents
    most = np.abs(x.integers * gain.integers).max(-1, keepdims=True)  # 30 bits
    top = (exponents + 30).max(-2, keepdims=True)
    largest = gain.exponents.max()
    if norm is not None:
        widest = rounded(np.abs(gain.integers).max(-1, keepdims=True), largest - gain.exponents).max()
        offset, offset_exponent = np.abs(norm.mean) * widest, norm.top - GUARD + largest  # 38 bits
        top = np.maximum(top, np.where(offset == 0, top, offset_exponent + 38))
    bound = rounded(most, top - 30 - exponents).max(-2, keepdims=True)
    if norm is not None:
        bound = bound + rounded(offset, top - 30 - offset_exponent)
    scale = normal(bound, top - 30, up=True)
    reciprocal = divided(np.asarray(127 << 22), scale.mantissa)  # 15 bits
    u, exponent = _centred(x, gain, norm)
    most_sent = 127 << low_bits
    rows = np.clip(rounded(u * reciprocal, 22 - low_bits + scale.exponent - exponent), -most_sent, most_sent)
    scale = normal(scale.mantissa * INVERSE_127, scale.exponent - 22 - low_bits)
    return rows, scale if norm is None else times(scale, norm.inverse)


def normalised(x: BlockNumbers, gain: BlockNumbers, shift: BlockNumbers, norm: Statistics) -> tuple[Integers, Integers]:
    """(x - mean) * gain / deviation + shift, as `added` returns it. x: 16 bits, (..., blocks, columns). gain, shift: 16
    bits, (blocks, columns). norm: of the rows of x."""
    u, exponent = _centred(x, gain, norm)
    return added((u * norm.inverse.mantissa, exponent + norm.inverse.exponent, 41), kept(shift))


def _centred(x: BlockNumbers, gain: BlockNumbers, norm: Statistics | None) -> tuple[Integers, Integers]:
    """(x - mean) * gain: 26 bits and a sign, and exponents. The difference has 24 bits, the product 39."""
    top = x.exponents.max(-2, keepdims=True) if norm is None else norm.top
    centred = rounded(x.integers << GUARD, top - x.exponents)
    if norm is not None:
        centred = centred - norm.mean
    return rounded(centred * gain.integers, 13), top - GUARD + 13 + gain.exponents


def _root(x: Integers) -> Integers:
    """The root of x, rounded down. x: at most 48 bits, so float64 is exact enough."""
    return np.floor(np.sqrt(x.astype(np.float64))).astype(np.int64)


def _constant(value: float, bits: int) -> tuple[int, int]:
    """A constant of the host, not negative, as an integer of `bits` bits and its exponent; 0 has one that loses."""
    exponent = max(frexp(value)[1] - bits, -400) if value else -400
    return round(value / 2.0**exponent) if value else 0, exponent


# -- sending T


def of_rows(x: BlockNumbers, low_bits: int = 0) -> tuple[Integers, RowFactor]:
    """The rows of a T as a product takes them: integers of 8 + low_bits bits, (..., blocks, columns), and the scale of
    each row, (..., 1, 1). They are aligned to the largest exponent of their row. x: 8 bits, (..., blocks, columns).
    low_bits: bits that the rows have beyond 8, with which blocks of smaller exponents lose fewer bits."""
    top = x.exponents.max(-2, keepdims=True)
    factor = RowFactor(np.full_like(top, 1 << 14), top - 14 - low_bits)
    return rounded(x.integers, top - low_bits - x.exponents), factor


def of_heads(
    x: BlockNumbers,
    pitch: int,
    shows: npt.NDArray[np.bool_] | None = None,
    least: Integers | None = None,
    groups: int = 1,
) -> tuple[Integers, Integers]:
    """A T as attention takes it: int8 (batch, heads, rows, pitch), and the exponent of each head and sequence, (batch,
    heads, 1, 1): the largest one in its rows. x: (batch, rows, blocks, columns). pitch: columns from a head to the
    next, 32 or a multiple of 64. shows: (batch, rows), whether a row counts; others become 0, and their exponents are
    ignored. None: all rows count. least: the least exponents that the first heads may have, (heads, 1, 1), because
    further rows of these heads lie elsewhere; None for no such rows. groups: how many
    neighbouring heads share an exponent."""
    unit = min(pitch, BLOCK)
    batch, rows = x.integers.shape[:2]
    of_units = x.exponents.repeat(BLOCK // unit, -2).reshape(batch, rows, -1, pitch // unit, 1)
    integers = x.integers.reshape(*of_units.shape[:-1], unit)
    if shows is not None:
        hidden = ~shows[:, :, None, None, None]
        of_units, integers = np.where(hidden, LOWEST, of_units), np.where(hidden, 0, integers)
    top = of_units.max((1, 3), keepdims=True)
    if least is not None:
        first = top[:, :, : len(least)]
        np.maximum(first, least.reshape(1, 1, -1, 1, 1), out=first)
    if groups > 1:
        top = top.reshape(batch, 1, -1, groups, 1, 1).max(3).repeat(groups, 2)
    integers = rounded(integers, top - of_units).reshape(batch, rows, -1, pitch)
    return integers.transpose(0, 2, 1, 3), top.reshape(batch, -1, 1, 1)


# -- products


def unpacked(codes: npt.NDArray[np.int8], multipliers: npt.NDArray[np.uint8]) -> Integers:
    """Weights of 4 bits as tiles multiply them: each weight times the multiplier of its group, rounded to 8 bits, (K,
    N). codes: -8 to 7, (K, N). multipliers: in units of 2^-4, (K / 32, N)."""
    products = codes.reshape(-1, GROUP, codes.shape[-1]).astype(np.int64) * multipliers[:, None]
    return saturated(rounded(products, MULTIPLIER_BITS), 8).reshape(codes.shape)


def sums(x: npt.NDArray[np.integer[Any]], y: npt.NDArray[np.integer[Any]]) -> Integers:
    """x @ y: (..., M, N), of which all sums fit in 32 bits. x, y: integers of 8 bits, (..., M, K) and (..., K, N), both
    with a sign, or one without and the other from -127 to 127. Computed in floats, which is exact for sums of up to 24
    or 53 bits, because NumPy multiplies integers a hundred times slower."""
    dtype = np.float32 if x.shape[-1] * 255 * 127 < 1 << 24 else np.float64
    made: Integers = (x.astype(dtype) @ y.astype(dtype)).astype(np.int64)
    return made


def parts(rows: Integers) -> tuple[Integers, Integers]:
    """The high and the low parts of rows of more than 8 bits, with which rows = high * 256 + low. rows: up to 127 * 256
    in magnitude, as `sent` and `of_rows` make them. high: -127 to 127. low: -128 to 127. All three have one shape."""
    high = rows + 128 >> LOW_BITS
    return high, rows - (high << LOW_BITS)


def sums_of_rows(rows: Integers, weight: npt.NDArray[np.integer[Any]], low_bits: int) -> Integers:
    """`sums` of rows that have `low_bits` bits beyond 8: those of the high parts, times 256, plus those of the low
    parts. rows: (..., M, K). weight: 8 bits, (K, N). `bounds.low_bits` says for which weights all of them fit in 32
    bits, so they are exact."""
    if not low_bits:
        return sums(rows, weight)
    high, low = parts(rows)
    return (sums(high, weight) << LOW_BITS) + sums(low, weight)


def drained(x: Integers, shifts: Integers) -> Integers:
    """Sums as they leave the tiles: shifted to the right and saturated to 16 bits, (..., blocks, columns). x: 32 bits,
    (..., N). shifts: in bits, (blocks, 1); with the shifts that `drain_shift` returns nothing saturates."""
    return saturated(rounded(x.reshape(*x.shape[:-1], -1, BLOCK), shifts), 16)


def drain_shift(largest: int) -> int:
    """The least shift to the right, in bits, with which no sum of magnitudes up to `largest` saturates in 16 bits."""
    shift = max(0, largest.bit_length() - 15)
    return shift + (int(rounded(np.asarray(largest), shift)) >= 1 << 15)


def scaled(drain: Integers, shifts: Integers, columns: BlockNumbers, row: RowFactor) -> tuple[Integers, Integers, int]:
    """What drained sums stand for, as an addend of `added` with 41 bits: sum * scale of the column (30 bits, of which
    26 are kept) * scale of the row. drain: as `drained` returns it. shifts: those with which it was drained. columns:
    the scales of columns, 16 bits, (blocks, columns). row: the scales of rows, (..., 1, 1)."""
    products = rounded(drain * columns.integers, 4) * row.mantissa
    return products, shifts + columns.exponents + 4 + row.exponent, 41


# -- functions of elements


class Table(NamedTuple):
    """An activation function f for which max(x, 0) - f(x) is the same for x and -x, by a table of that difference.
    entries: the difference, 15 bits, in units of 2^-fraction, for |x| = 0, 1, 2 ... in units of 2^-steps; the last
    entry also stands for all larger ones."""

    entries: Integers
    steps: int
    fraction: int


def activated(v: Integers, exponent: Integers, table: Table | None) -> Integers:
    """A function of v * 2^exponent: integers that have the same exponents. v: 31 bits and a sign, (..., blocks,
    columns). exponent: (..., blocks, 1). table: None for max(v, 0)."""
    positive = np.maximum(v, 0)
    if table is None:
        return positive
    index = np.minimum(rounded(np.abs(v), np.maximum(-table.steps - exponent, -SATURATING)), len(table.entries) - 1)
    return positive - rounded(table.entries[index], exponent + table.fraction)


def gated(gate: tuple[Integers, Integers], x: tuple[Integers, Integers]) -> tuple[Integers, Integers]:
    """gate * x: integers of 29 bits and a sign, and exponents. gate, x: each integers of 31 bits and a sign, (...,
    blocks, columns), of which 26 and 23 bits are multiplied, and exponents, (..., blocks, 1)."""
    products = rounded(gate[0], 5) * rounded(x[0], 8)
    return rounded(products, 20), gate[1] + x[1] + 33


def rotated(v: Integers, exponent: Integers, own: Integers, partner: Integers) -> tuple[Integers, Integers]:
    """v * own + v of the neighbouring column (c ^ 1) * partner: integers of 30 bits and a sign, and exponents, in the
    shapes of v and exponent. v: 31 bits and a sign, (..., blocks, columns), of which 26 are multiplied. exponent: of v,
    (..., blocks, 1) or (..., blocks, 2). own, partner: 16 bits in units of 2^-14, to be broadcast to v."""
    short = rounded(v, 5)
    pairs = short.reshape(*short.shape[:-1], -1, 2)
    turned = short * own + pairs[..., ::-1].reshape(short.shape) * partner
    return rounded(turned, 12), exponent + 3


def turned(angles: BlockNumbers) -> tuple[Integers, Integers]:
    """The factors of a rotation, own and partner, as `rotated` takes them. angles: 16 bits, below 2, (..., blocks,
    columns): for each pair of columns first the factor of a column itself, then that of its partner, whose sign is
    changed for the first column of the pair."""
    units = rounded(angles.integers, -14 - angles.exponents)
    pairs = units.reshape(*units.shape[:-1], -1, 2)
    own, partner = pairs[..., :1], pairs[..., 1:]
    each = np.concatenate([own, own], -1), np.concatenate([-partner, partner], -1)
    return each[0].reshape(units.shape), each[1].reshape(units.shape)


def joined(v: Integers, exponent: Integers) -> tuple[Integers, Integers]:
    """Join units of 32 columns, two of which become a block of 64; units of 64 columns stay as they are. v: (...,
    units, columns). exponent: (..., units, 1). An odd number of units gets one of zeros behind it. Returns integers
    (..., blocks, 64), and the exponents of each block's units, (..., blocks, 2) or (..., blocks, 1), as `stored` takes
    them."""
    count = BLOCK // v.shape[-1]
    odd = [(0, 0)] * (v.ndim - 2) + [(0, -v.shape[-2] % count), (0, 0)]
    v, exponent = np.pad(v, odd), np.pad(exponent, odd, constant_values=LOWEST)
    shape = (*v.shape[:-2], -1)
    return v.reshape(*shape, BLOCK), exponent.reshape(*shape, count)


def heads_normalised(
    v: Integers,
    exponent: Integers,
    pitch: int,
    gain: BlockNumbers,
    shift: BlockNumbers,
    constants: NormConstants,
    *,
    rms: bool,
) -> tuple[Integers, Integers]:
    """Normalise each head; returns what `joined` returns: 31 bits and a sign, and exponents. v: 31 bits and a sign,
    (..., blocks, columns), which are stored with 16 bits first. exponent: (..., blocks, 1). pitch: columns from a head
    to the next, 32 or a multiple of 64. gain, shift: 16 bits, (blocks, columns). constants, rms: as for `statistics`,
    of a head."""
    unit = min(pitch, BLOCK)

    def split(x: Integers, exponents: Integers) -> tuple[Integers, Integers]:
        shape = (*x.shape[:-2], -1, pitch // unit)
        return x.reshape(*shape, unit), exponents.repeat(BLOCK // unit, -2).reshape(*shape, 1)

    head = stored(*split(v, exponent), X_BITS)
    of_gain, of_shift = (BlockNumbers(*split(*x)) for x in (gain, shift))
    made, exponents = normalised(head, of_gain, of_shift, statistics(head, constants, rms=rms))
    shape = (*v.shape[:-2], -1)
    return joined(made.reshape(*shape, unit), exponents.reshape(*shape, 1))


# -- attention, in the tiles

POWER = (32752, -22690, 7717, -1409)
"""Coefficients of the cubic for 2^-u * (255 / 256)^(1/8), u from 0 to 1.25, in units of 2^-15: of those near the best
ones by least squares, the ones whose largest error in `power` is smallest."""
FAR = 10 << 11
"""From this exponent on (in units of 2^-11) a power is 0."""
LOG2_E = round(2**14 * log2(e))
"""log2 e in units of 2^-14."""


def power(x: Integers) -> Integers:
    """255 * 2^-x, to within 0.54, elementwise: 0 to 255. x: in units of 2^-11, from 0 to `FAR`. Computed as a cubic of
    x / 8, squared three times, in 16 bits."""
    made = np.full_like(x, POWER[3])
    for c in POWER[2::-1]:
        made = rounded((c << 14) + made * x, 14)  # one accumulator, shifted once
    for _ in range(3):
        made = rounded(made * made, 15)
    return rounded(made, 7)


def score_shifts(exponent: Integers, head_dim: int) -> tuple[Integers, Integers]:
    """Return two shifts to the right, in bits: that of the difference of two scores, to 16 bits, and that of its
    product with log2 e, which makes it the x of `power`. exponent: of the scores; the shifts have its shape. head_dim:
    columns of a head. The first shift is the least with which a difference that saturates is beyond `FAR`, or with
    which none saturates."""
    widest = max(0, (2 * head_dim * 127 * 127).bit_length() - 15)
    first = np.clip(-11 - exponent, 0, widest)
    return first, np.maximum(3 - exponent - first, 0)


def weights(scores: Integers, shifts: tuple[Integers, Integers], shows: npt.NDArray[np.bool_]) -> Integers:
    """The weights of softmax, uint8, before they are divided by their sum: 255 for the largest score of a row.

    scores: int32 (..., rows, keys), in the natural logarithm. shifts: as `score_shifts` returns them, of each head and
    sequence, (..., 1, 1). shows: keys that count, to be broadcast to scores; a row without any has weights of 0."""
    first, second = shifts
    largest = np.where(shows, scores, -(1 << 31)).max(-1, keepdims=True)
    below = saturated(rounded(np.where(shows, largest - scores, 0), first), 16)
    return np.where(shows, power(np.minimum(rounded(below * LOG2_E, second), FAR)), 0)


def of_weights(total: Integers, weight: Integers, exponent: Integers, keys: int) -> tuple[Integers, Integers]:
    """Sums of weighted values over the sum of their weights, for a head: as `added` returns it, (..., rows, columns).

    total: int32 (..., rows, columns), as the sums leave the tiles; they are shifted to 26 bits if there may be more
    with this number of keys. weight: sums of weights, (..., rows, 1), up to 255 * keys; where it is 0 the result is 0.
    exponent: of the values, (..., 1, 1). keys: the most that a sequence may have."""
    shift = max(0, (127 * 255 * keys).bit_length() - 26)
    divisor = normal(weight, 0)
    reciprocal = divided(np.asarray(1 << 29), divisor.mantissa)  # 16 bits
    return added((rounded(total, shift) * reciprocal, exponent + shift - 29 - divisor.exponent, 41))


# -- the host


def blocks_of(values: Floats, bits: int) -> BlockNumbers:
    """The nearest blocks of `bits` bits. values: (..., columns), filled up with 0 to whole blocks. Returns (...,
    blocks, 64) with exponents (..., blocks, 1). Raises `TensorError` for values that are not finite."""
    if not np.isfinite(values).all():
        raise TensorError("a value is not finite; overlay xnn8 computes with integers")
    columns = values.shape[-1]
    padded = np.zeros((*values.shape[:-1], -(-columns // BLOCK) * BLOCK))
    padded[..., :columns] = values
    padded = padded.reshape(*values.shape[:-1], -1, BLOCK)
    most = np.abs(padded).max(-1, keepdims=True)
    exponents = np.clip(np.frexp(most)[1].astype(np.int64) - (bits - 1), LOWEST, HIGHEST)
    exponents = np.where(most == 0, LOWEST, exponents)
    return BlockNumbers(saturated(np.rint(np.ldexp(padded, -exponents)).astype(np.int64), bits), exponents)


def values_of(x: BlockNumbers, columns: int) -> npt.NDArray[np.float32]:
    """What blocks stand for: float32 (..., columns), exact for 16 bits unless beyond float32's range. columns: of the
    result; those behind them are left out."""
    values = np.ldexp(x.integers.astype(np.float64), x.exponents)
    return values.reshape(*values.shape[:-2], -1)[..., :columns].astype(np.float32)
