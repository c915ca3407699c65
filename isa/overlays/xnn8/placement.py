"""Where the tiles and PLIOs of the pairs lie in the AI Engine array, and the C++ header that says so.

A row of pairs lies in the row of the array with its number, each pair in two neighbouring columns. A stream of rows
goes along its row, one of weights up its columns. PLIOs of an engine lie in the columns nearest to its tiles that are
left by the others. Sources: `isa/versal/placement.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

from ...reference import MADE_BY
from ...versal.board import ArrayStream, arguments
from ...versal.placement import FIRST_COLUMN, PLIO_COLUMNS, Shim
from .formats import ENGINES, LANES, PAIRS
from .network import PORTS
from .tile_streams import NARROW_BITS, PLIO_BITS, TILES, narrow_lanes

ENGINE_COLUMNS = TILES * PAIRS
"""Of the array, that an engine takes."""
WIDE_INPUTS, NARROW_INPUTS = (0, 4), (2, 6)
"""Channels of a column. A PLIO of 128 bit takes the next one, too; all of these have registers."""
OUTPUTS = (0, 2, 4)


ARGUMENTS = arguments(dict.fromkeys(("LPDDR", "DDR"), PORTS))
"""Of the PL kernel."""


class Plio(NamedTuple):
    """A stream between the PL kernel and tiles. operand: a for rows, b for weights, keys and values, c for results.
    engine: 0 to 2. number: of the lane, or, for b, of the column of pairs. tile: 0 for the first, 1 for the last tile
    of the pairs; for results, 0 if they are from even columns, 1 if from odd ones."""

    operand: str
    engine: int
    number: int
    tile: int

    @property
    def stream(self) -> ArrayStream:
        """The stream's names in kernel and graph, its direction, and its width."""
        narrow = self.operand == "a" and self.number in narrow_lanes(self.engine)
        port = f"{self.operand}{self.engine}_{self.number}_{self.tile}"
        return ArrayStream(port, self.operand != "c", NARROW_BITS if narrow else PLIO_BITS)


def plios() -> Iterator[Plio]:
    """Yield all streams between the PL kernel and tiles, engine by engine: its rows, its weights, its results."""
    for engine in range(ENGINES):
        for operand in "abc":
            for number in range(PAIRS if operand == "b" else LANES):
                for tile in range(TILES):
                    yield Plio(operand, engine, number, tile)


def tile(engine: int, row: int, column: int, last: bool) -> tuple[int, int]:
    """Return the column and the row in the array of a tile of a pair. engine: 0 to 2. row: of the pair in the engine,
    which is its lane. column: of the pair in the engine. last: whether it is the tile that has the results, at the end
    of the cascade. The cascade runs eastwards in even rows and westwards in odd ones, as the array's does."""
    along = int(last) if row % 2 == 0 else 1 - int(last)
    return FIRST_COLUMN + ENGINE_COLUMNS * engine + TILES * column + along, row


@cache
def shims() -> Mapping[Plio, Shim]:
    """Return the place of each PLIO. Engines take columns of the array from west to east, each as many as its inputs of
    128 bit need. Inputs of weights, which lead up from there, and of rows, which lead along, alternate; results are
    spread evenly."""
    out: dict[Plio, Shim] = {}
    first = PLIO_COLUMNS.start
    for engine in range(ENGINES):
        order = sorted((p for p in plios() if p.engine == engine), key=lambda p: (p.number, p.operand, p.tile))
        into = {bits: [p for p in order if p.stream[1:] == (True, bits)] for bits in (PLIO_BITS, NARROW_BITS)}
        wide = into[PLIO_BITS]
        columns = range(first, first + -(-len(wide) // len(WIDE_INPUTS)))
        first = columns.stop
        for group, channels in (
            (wide, WIDE_INPUTS),
            (into[NARROW_BITS], NARROW_INPUTS),
            ([p for p in order if not p.stream.into], OUTPUTS),
        ):
            taken = dict.fromkeys(columns, 0)
            for i, plio in enumerate(group):
                column = columns[i * len(columns) // len(group)]
                out[plio] = Shim(column, channels[taken[column]])
                taken[column] += 1
    return out


def placement_header() -> str:
    """Return the text of the C++ header with the places of PLIOs, for the AI Engine graph."""
    places = shims()
    wide = ", ".join(str(narrow_lanes(engine).start) for engine in range(ENGINES))
    out = [
        "// Where the PLIOs of each engine lie: column of the array, and channel. The rule is in",
        f"// isa/overlays/xnn8/placement.py. {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        "#ifndef RSN_XNN8_PLACEMENT_H",
        "#define RSN_XNN8_PLACEMENT_H",
        "",
        "namespace rsn::xnn8::placement {",
        "",
        "struct Shim {",
        "    int column, channel;",
        "};",
        "",
        f"constexpr unsigned engines = {ENGINES}, lanes = {LANES}, pairs = {PAIRS};  // of an engine, and of a lane",
        f"constexpr int first_column = {FIRST_COLUMN};  // of the tiles",
        "",
        f"// Of an engine, lanes whose streams of rows have {PLIO_BITS} bit; those of the others have {NARROW_BITS}.",
        f"constexpr unsigned wide_lanes[engines] = {{{wide}}};",
        "",
        "// Of an engine, of a lane or a column of pairs, and of a tile; of results, from even and odd columns.",
    ]
    for operand in "abc":
        out.append(f"constexpr Shim {operand}[engines][{'pairs' if operand == 'b' else 'lanes'}][2] = {{")
        for engine in range(ENGINES):
            of = [p for p in plios() if (p.operand, p.engine) == (operand, engine)]
            shown = [f"{{{places[p].column}, {places[p].channel}}}" for p in of]
            pairs = [f"{{{one}, {other}}}" for one, other in zip(shown[::TILES], shown[1::TILES], strict=True)]
            half = len(pairs) // 2
            out += [f"    {{{', '.join(pairs[:half])},", f"     {', '.join(pairs[half:])}}},"]
        out += ["};", ""]
    return "\n".join([*out, "}  // namespace rsn::xnn8::placement", "", "#endif  // RSN_XNN8_PLACEMENT_H", ""])
