"""Into which banks a tile is cut, so that a loop takes a word of it in a cycle."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import gcd, lcm, prod

from ..words import REGISTERS, SUMS, TileWord, matrix
from .kinds import LIMITS, ValueKind

_DECLARED = re.compile(r"^\s*rsn::Tile<[^;=]*> (\w+);$")
_WORD = re.compile(r"rsn::Word<(\d+), (\d+)>")
_NAME = re.compile(r"(?:rsn::transpose<[^()]*, (\d+)>\()?\b([A-Za-z_]\w*)")
"""A name, and the last axis of the transpose of which it is the operand."""
_ALLOWED = "// hls-allow registers: in each cycle a product of integers takes one step of all sums"
_STEPS = re.compile(r"rsn::matmul_(?:from<.*, (?:true|false), \d+, (\d+)|turned_from<.*, (\d+), (?:true|false))>\(")
"""Steps of a sum that a product takes in a cycle, columns of its left operand."""
_BY_OPERAND = {
    "rsn::matmul<": ((True, True), (True, False), (False, True)),
    "rsn::matmul_from<": ((True, True), (True, False)),
    "rsn::matmul_turned_from<": ((True, True), (True, False)),
}
"""Of which axes of each argument a kernel takes as many elements as its word has: rows, columns. Others: both."""


def banks(
    lines: Sequence[str],
    tiles: Mapping[str, ValueKind],
    packed: Mapping[str, int],
    beside: Mapping[str, Sequence[TileWord]],
) -> dict[str, TileWord]:
    """Return into how many banks the rows and the columns of each tile are cut, by the C++ name of the tile. lines: C++
    of a function. tiles: the kinds of its tiles. packed: elements that a memory port moves in a cycle, by the name of
    its tensor. beside: elements that are read or written in a cycle where the lines do not show it, by the name of the
    tile."""
    out = {}
    for name, kind in tiles.items():
        rows, columns = matrix(kind.shape)
        words = beside.get(name, ())
        out[name] = TileWord(lcm(*(gcd(rows, w.rows) for w in words)), lcm(*(gcd(columns, w.columns) for w in words)))
    for line in lines:
        found, stepped = _WORD.search(line), _STEPS.search(line)
        steps = int(stepped[1] or stepped[2]) if stepped else 1
        kernel = next((k for k in _BY_OPERAND if k in line), "")
        parts = _arguments(line) if kernel else [line[found.end() if found else 0 :]]
        names = [(k, axis, name) for k, part in enumerate(parts) for axis, name in _NAME.findall(part)]
        if found:
            taken = TileWord(int(found[1]), int(found[2]))
        elif "rsn::load<" in line or "rsn::save<" in line:
            taken = TileWord(1, next(packed[n] for *_, n in names if n in packed))
        else:
            continue
        for k, axis, name in ((k, axis, n) for k, axis, n in names if n in tiles):
            by_rows, by_columns = _BY_OPERAND[kernel][k] if kernel else (True, True)
            each = taken.rows if by_rows else 1, taken.columns if by_columns else steps if k == 1 else 1
            last = len(tiles[name].shape) - 1
            each_row, each_column = each[::-1] if axis and int(axis) != last else each
            rows, columns = matrix(tiles[name].shape)
            out[name] = TileWord(
                lcm(out[name].rows, gcd(rows, each_row)), lcm(out[name].columns, gcd(columns, each_column))
            )
    return out


def _arguments(line: str) -> list[str]:
    """The arguments of a call of a kernel, whose template arguments have no brackets of calls."""
    parts, depth = [""], 0
    for letter in line[line.index("(") + 1 : line.rindex(")")]:
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def partitioned(
    lines: Sequence[str],
    tiles: Mapping[str, ValueKind],
    packed: Mapping[str, int],
    beside: Mapping[str, Sequence[TileWord]],
) -> Iterator[str]:
    """Yield the lines of a function, with a pragma behind the declaration of each tile that is cut into banks. lines,
    tiles, packed, beside: as for `banks`.
    """
    found = banks(lines, tiles, packed, beside)
    for line in lines:
        yield line
        declared = _DECLARED.match(line)
        if declared:
            name = declared[1]
            sizes = matrix(tiles[name].shape)
            integers = found[name] == sizes and REGISTERS < prod(sizes) <= SUMS and tiles[name].dtype in LIMITS
            for dim, (count, size) in enumerate(zip(found[name], sizes, strict=True), 1):
                if count > 1:
                    if integers:
                        yield _ALLOWED
                    how = "complete" if count == size else f"cyclic factor={count}"
                    yield f"#pragma HLS array_partition variable={name}.v dim={dim} {how}"
