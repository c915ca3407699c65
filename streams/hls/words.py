"""How many elements of a tile a loop takes in a cycle, and into which banks a tile is cut for that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, lcm, prod
from typing import NamedTuple

from ...base.element_types import BITS
from .kinds import ValueKind

STREAM_BITS = 2048
"""Most bits of a word of a stream. HLS takes up to 4,096 (UG1399, Vector Data Types)."""
PORT_BITS = 512
"""Bits of a port to the memory off the chip: the widest that AXI interconnects of Alveo cards and of Versal have."""


class TileWord(NamedTuple):
    """Elements of a tile that one cycle takes: rows and columns, which divide those of the tile."""

    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """How many they are."""
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"rsn::Word<{self.rows}, {self.columns}>"


def matrix(shape: Sequence[int]) -> tuple[int, int]:
    """The rows and columns of a tile: all axes but the last one are its rows."""
    return prod(shape[:-1]), shape[-1]


def divisor(size: int, most: float) -> int:
    """The largest divisor of a size that is at most `most`, and at least 1."""
    return next(n for n in range(max(1, min(size, int(most))), 0, -1) if size % n == 0)


def word(shape: Sequence[int], most: float) -> TileWord:
    """The largest word of whole rows, or of a part of a row, with at most `most` elements."""
    rows, columns = matrix(shape)
    part = divisor(columns, most)
    return TileWord(divisor(rows, most / columns) if part == columns else 1, part)


def row_word(shape: Sequence[int], most: float) -> TileWord:
    """The word of a kernel that combines the elements of each row pair by pair: its columns are a power of 2."""
    rows, columns = matrix(shape)
    part = gcd(columns, 1 << max(0, min(columns, int(most)).bit_length() - 1))
    return TileWord(divisor(rows, most / part), part)


def product_word(shape: Sequence[int], most: float) -> TileWord:
    """The sums of a product that are added to in a cycle: most of them, and of several ways that with most columns.
    shape: of the product."""
    rows, columns = shape[-2:]
    ways = (TileWord(divisor(rows, most / n), n) for n in range(1, columns + 1) if columns % n == 0 and n <= most)
    return max(ways, key=lambda way: (way.elements, way.columns))


def stream_word(dtype: str, shape: Sequence[int]) -> TileWord:
    """The word in which a tile goes over a stream."""
    return word(shape, max(1, STREAM_BITS // max(8, BITS[dtype])))


_DECLARED = re.compile(r"^\s*rsn::Tile<[^;=]*> (\w+);$")
_WORD = re.compile(r"rsn::Word<(\d+), (\d+)>")
_TURNED = re.compile(r"rsn::transpose<[^()]*>\((\w+)\)")
_NAME = re.compile(r"\b[A-Za-z_]\w*")
_BY_OPERAND = {"rsn::matmul<": ((True, True), (True, False), (False, True))}
"""Of which axes of each argument a kernel takes as many elements as its word has: rows, columns. Others: both."""


def banks(lines: Sequence[str], tiles: Mapping[str, ValueKind], packed: Mapping[str, int]) -> dict[str, TileWord]:
    """How many banks the rows and the columns of each tile need. lines: of a function. tiles: the kinds of its
    variables. packed: the elements that a port moves in a cycle, by the name of its shard."""
    out = {name: TileWord(1, 1) for name in tiles}
    for line in lines:
        found = _WORD.search(line)
        names = _NAME.findall(line[found.end() if found else 0 :])
        if found:
            taken = TileWord(int(found[1]), int(found[2]))
        elif "rsn::load<" in line or "rsn::save<" in line:
            taken = TileWord(1, next(packed[n] for n in names if n in packed))
        else:
            continue
        named = [n for n in names if n in tiles]
        turned = _TURNED.findall(line)
        kernel = next((k for k in _BY_OPERAND if k in line), "")
        for k, name in enumerate(named):
            by_rows, by_columns = _BY_OPERAND[kernel][k] if kernel else (True, True)
            each_row, each_column = reversed(taken) if name in turned else taken
            rows, columns = matrix(tiles[name].shape)
            out[name] = TileWord(
                lcm(out[name].rows, gcd(rows, each_row) if by_rows else 1),
                lcm(out[name].columns, gcd(columns, each_column) if by_columns else 1),
            )
    return out


def partitioned(lines: Sequence[str], tiles: Mapping[str, ValueKind], packed: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of a function, with a pragma behind the declaration of each tile that is cut into banks."""
    found = banks(lines, tiles, packed)
    for line in lines:
        yield line
        declared = _DECLARED.match(line)
        if declared:
            name = declared[1]
            sizes = matrix(tiles[name].shape)
            for dim, (count, size) in enumerate(zip(found[name], sizes, strict=True), 1):
                if count > 1:
                    how = "complete" if count == size else f"cyclic factor={count}"
                    yield f"#pragma HLS array_partition variable={name}.v dim={dim} {how}"
