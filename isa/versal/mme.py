"""What the MMEs of all overlays compute: products of 128x128 tiles, and their sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...machine.description import Capability
from ...machine.unit import Unit
from .tiles import TILE, Array, TilePayloads, tile_columns, tile_grid, tile_rows

HALF = TILE // 2
MATMUL_SIZES = dict.fromkeys(("tile_rows", "tile_depth", "tile_columns"), (TILE, TILE))
HALF_MODES = (
    Capability("matmul_half_depth", limits={"tile_depth": (HALF, HALF)}, rate="mme_k64_us", elements=TILE**3 // 2),
    Capability("matmul_half_columns", limits={"tile_columns": (HALF, HALF)}, rate="mme_n64_us", elements=TILE**3 // 2),
)
"""What an MME can do beside whole tiles."""
MAX_OPS = 510
"""Of an op list: an AIE tile holds 512 parameter words, of which two are the print code and the count."""


Product = Callable[[Array, Array, bool, bool], Array]
"""`MatrixEngine.product`."""


class TileProducts:
    """Multiplies pairs of tiles as they arrive, and returns the products: a call takes n left and n right tiles, (128,
    128) float32, in the order of `tile_rows` and `tile_columns`, and returns n tiles, the payloads of one stream.

    product: multiplies two tiles, as `MatrixEngine.product`. bias: (128 * cols,), added to each row of the first rows x
    cols products; None for none. rows, cols: row and column tiles of the results for one tile of K. full_k, full_n: as
    for `product`.
    """

    def __init__(self, product: Product, bias: Array | None, rows: int, cols: int, full_k: bool, full_n: bool) -> None:
        self.product = product
        self.bias, self.rows, self.cols, self.full_k, self.full_n = bias, rows, cols, full_k, full_n
        self.left, self.right = tile_rows(rows, cols), tile_columns(rows, cols)
        self.done = 0

    def __call__(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> tuple[Sequence[Array]]:
        if (
            isinstance(a, TilePayloads)
            and isinstance(b, TilePayloads)
            and a.places == self.left
            and b.places == self.right
        ):
            return (self._block(a.block(self.rows, 1), b.block(1, self.cols)),)
        out = [self._tile(x, y) for x, y in zip(a, b, strict=True)]
        return (out,)

    def _block(self, a: Array, b: Array) -> TilePayloads:
        """Multiply all tiles of a slice of K at once."""
        out = self.product(a, b, self.full_k, self.full_n)
        if self.bias is not None and not self.done:
            out += self.bias
        self.done += len(self.left)
        return TilePayloads(out, tile_grid(self.rows, self.cols))

    def _tile(self, a: Array, b: Array) -> Array:
        out = self.product(a, b, self.full_k, self.full_n)
        if self.bias is not None and self.done < len(self.left):
            at = self.done % self.cols * TILE
            out += self.bias[at : at + TILE]
        self.done += 1
        return out


class TileSum:
    """Sums the products of tiles over K inside the MME, and emits one tile. product: multiplies two tiles, as
    `MatrixEngine.product`. bias: (128,), added once to each row; None for none. full_k, full_n: as for `product`."""

    def __init__(self, product: Product, bias: Array | None, full_k: bool, full_n: bool) -> None:
        self.product = product
        self.bias, self.full_k, self.full_n = bias, full_k, full_n
        self.total: Array | None = None

    def add(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> None:
        """Add the products of n pairs of tiles, (128, 128) float32 each. a: left operands, b: right ones. Raises
        `ValueError` if there are not as many of both.
        """
        for x, y in zip(a, b, strict=True):
            more = self.product(x, y, self.full_k, self.full_n)
            if self.total is not None:
                self.total += more
            else:
                self.total = more if self.bias is None else more + self.bias

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        """Take the last pair of tiles, a and b as for `add`. Returns the sum, (128, 128) float32: the payload of one
        stream.
        """
        self.add(1, [a], [b])
        assert self.total is not None
        return (self.total,)


class MatrixEngine(Unit):
    """A unit of 64 AIE tiles that multiplies tiles of 128x128.

    products, sums: the classes that multiply and sum. A machine with another order of summation replaces them.
    """

    products: type[TileProducts] = TileProducts
    sums: type[TileSum] = TileSum

    def product(self, a: Array, b: Array, full_k: bool, full_n: bool) -> Array:
        """Multiply a tile, or a column of tiles, by a tile, or a row of tiles. a: (M, K) float32. b: (K, N) float32.
        Returns (M, N) float32.

        full_k: False for K = 64 mode, which uses only the first 64 of K. full_n: False for N = 64 mode, which computes
        only the first 64 columns of each tile; the others are NaN.
        """
        if not full_k:
            a, b = a[:, :HALF], b[:HALF]
        if full_n:
            return np.asarray(a @ b)
        out = np.full((len(a), b.shape[1]), np.nan, np.float32)
        for j in range(0, b.shape[1], TILE):
            np.matmul(a, b[:, j : j + HALF], out=out[:, j : j + HALF])
        return out
