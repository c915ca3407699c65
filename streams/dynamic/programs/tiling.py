"""Hierarchical tiling: a product of large tiles, as they are loaded, and the same of tiles of the size that a unit
computes (v1, Fig. 12; v2, Fig. 18)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import StepError
from ..expansions import RetileStreamify
from ..functions import Add, Matmul
from ..graph import Program, Stream
from ..memory import Tensor
from ..operators.higher_order import Accum, FlatMap, Map
from ..operators.off_chip import LinearOffChipLoad, LinearOffChipStore
from ..operators.on_chip import Bufferize, Streamify
from ..operators.shape import Flatten, Repeat, Reshape
from ..shapes import TileType
from ..tokens import Array


@dataclass(frozen=True)
class TiledProducts:
    """Products A x B^T, one after the other. count: how many. rows, inner: of a matrix A; columns, inner: of a matrix
    B. unit: rows and columns of a tile that a unit computes. Raises `StepError` for numbers less than 1, and for sizes
    that are not whole tiles of a unit."""

    count: int = 4
    rows: int = 16
    inner: int = 256
    columns: int = 32
    unit: int = 16

    def __post_init__(self) -> None:
        sizes = self.rows, self.inner, self.columns
        if min(self.count, *sizes, self.unit) < 1 or any(size % self.unit for size in sizes):
            raise StepError("TiledProducts", f"{self}: sizes of 1 or more, whole in tiles of a unit")


@dataclass(frozen=True)
class TiledProgram:
    """A program of products. result: the tensor [count * rows, columns] that it stores. streams: the streams that the
    figure of the paper shows, by their names."""

    program: Program
    result: Tensor
    streams: Mapping[str, Stream]


def tiled_products(
    of: TiledProducts,
    hierarchical: bool,
    *,
    compute: int | None = None,
    dtype: str = "f32",
    a: Array | None = None,
    b: Array | None = None,
) -> TiledProgram:
    """Return the program of the products `of` (STeP v1, Fig. 12; v2, Fig. 18).

    hierarchical: in tiles of a unit, into which loaded tiles are cut; otherwise each matrix is one tile. Then each row
    of tiles of A is buffered, and read once for each row of tiles of B; B is buffered as a whole, and read once for
    each row of tiles of A. compute: operations a cycle of each unit; None for no bound. dtype: of all elements. a, b:
    tensors [count * rows, inner] and [count * columns, inner]; without them the program has no data. Raises `StepError`
    for values of other shapes.
    """
    first = Tensor((of.count * of.rows, of.inner), dtype, a, name="a")
    second = Tensor((of.count * of.columns, of.inner), dtype, b, name="b")
    result = Tensor((of.count * of.rows, of.columns), dtype, name="result")
    product = Map(Matmul(transpose_right=True), compute=compute)
    with Program() as program:
        left, right = _load(first, of.rows, of), _load(second, of.columns, of)
        if not hierarchical:
            made = product(left, right)
            LinearOffChipStore(result)(made)
            return TiledProgram(program, result, {"A": left, "B": right, "results": made})
        left, right = _cut(left, of), _cut(right, of)
        left_again = Streamify(count=of.columns // of.unit)(Bufferize(1)(left))
        buffers = Bufferize(2)(right)
        right_again = Streamify()(buffers, Repeat(of.rows // of.unit)(buffers))
        products = product(left_again, right_again)
        made = Accum(1, Add, compute=compute)(products)
        LinearOffChipStore(result)(made)
    named = {"A": left, "B": right, "A again": left_again, "B again": right_again, "products": products}
    return TiledProgram(program, result, {**named, "results": made})


def _load(tensor: Tensor, rows: int, of: TiledProducts) -> Stream:
    """Matrices with a number of rows, each a tile: [count]."""
    loaded = LinearOffChipLoad(tensor, (rows, of.inner), (1,), (of.count,))()
    made: Stream = Flatten(0, 1)(loaded)
    return made


def _cut(matrices: Stream, of: TiledProducts) -> Stream:
    """Matrices in tiles of a unit, row by row: [count, rows of tiles, tiles of a row]."""
    rows = FlatMap(RetileStreamify(of.unit))(matrices)
    flat = FlatMap(RetileStreamify(of.unit, along=1))(rows)
    data = matrices.type.data
    assert isinstance(data, TileType)
    by_row, _ = Reshape(0, of.inner // of.unit)(flat)
    made: Stream = Reshape(1, int(data.rows.size) // of.unit)(by_row)[0]
    return made
