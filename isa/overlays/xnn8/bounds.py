"""Proof that nothing overflows in the numbers of xnn8: largest magnitudes, from shapes and weights, beside widths.

Steps whose widths do not depend on shapes state them where they are defined (`numbers`). These are the others.
"""

from __future__ import annotations

from ....base.errors import UnsupportedError
from .numbers import GUARD, LOW_BITS, X_BITS

SUM_BITS = 32
"""Bits of a sum in a tile, with its sign."""
WIDE_BITS = 63
"""Bits of the sums from which the deviation of a row follows, with their sign."""


def check_product(place: str, largest: int) -> None:
    """Check that no sum of a product of rows of 8 bits overflows. place: of the product in the model, for the message.
    largest: 127 * the largest sum of magnitudes of a column of the weight. Raises `UnsupportedError` with the
    numbers."""
    _check(place, "a sum of products with rows of up to 127", largest, SUM_BITS)


def low_bits(place: str, magnitudes: int) -> int:
    """Return how many bits the rows of a product may have beyond 8, 1 to `LOW_BITS`, so that no sum overflows on its
    way: high parts pass first, which are up to 128 / 256 larger than the rows. place: of the product in the model, for
    the message. magnitudes: the largest sum of magnitudes of a column of the weight. Raises `UnsupportedError` with the
    numbers if not even 1 is possible."""
    of_bits = {bits: ((127 << bits) + 128) * magnitudes for bits in range(LOW_BITS, 0, -1)}
    _check(place, "a sum of products with rows of 9 bits", of_bits[1], SUM_BITS)
    return next(bits for bits, largest in of_bits.items() if largest < 1 << SUM_BITS - 1)


def check_attention(place: str, head_dim: int, keys: int) -> None:
    """Check that neither the scores of attention, which start at the largest one of a row, nor the sums of weighted
    values overflow. place: of the attention in the model, for the message. head_dim: columns of a head. keys: the most
    of a sequence. Raises `UnsupportedError` with the numbers."""
    _check(place, f"the difference of two scores of {head_dim} columns", 2 * head_dim * 127 * 127, SUM_BITS)
    _check(place, f"a sum of {keys} values of up to 127 with weights of up to 255", keys * 127 * 255, SUM_BITS)


def check_norm(place: str, columns: int) -> None:
    """Check that the sums over a row, from which its deviation follows, do not overflow. place: of the norm in the
    model, for the message. columns: of the row. Raises `UnsupportedError` with the numbers."""
    most = 1 << X_BITS - 1 + GUARD
    _check(place, f"sums of squares over {columns} columns", 4 * columns * most * most, WIDE_BITS)


def _check(place: str, what: str, largest: int, bits: int) -> None:
    if largest >= 1 << bits - 1:
        raise UnsupportedError(f"{place}: {what} may be {largest}, beyond the {bits} bits that there are for it")
