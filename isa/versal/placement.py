"""Where the MMEs' tiles and PLIOs lie in the AI Engine array of the VCK190, and the C++ header that says so.

The device is XCVC1902-VSVA2197: 50 columns of 8 AIE tiles above a row of interface tiles, through which PLIOs enter and
leave. Sources:

- Columns that have PLIOs: 39 of 50 (AM009, "AI Engine to Programmable Logic Interface"), and columns 0 to 5 are not
  among them (UG1079, "Shim Constraint"); so they are 6 to 44.
- Channels: 8 in and 6 out a column, of 64 bit. Above an eighth of the AI Engines' clock (156 of 1250 MHz) a PLIO needs
  registers at the boundary, which inputs 3 and 7 do not have (UG1079, "AI Engine to PL Interface Performance").
- Streams between neighbouring tiles: `SWITCH_PORTS`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from ..overlay import Overlay
from .tiles import LANES

ARRAY_COLUMNS, ARRAY_ROWS = 50, 8
PLIO_COLUMNS = range(6, 45)
INPUT_CHANNELS = (0, 1, 2, 4, 5, 6)
OUTPUT_CHANNELS = (0, 1, 2, 3)
"""Four of six: no more streams come down to an interface tile from the tile above it."""
ALL_OUTPUT_CHANNELS = range(6)
"""Of these two may be one PLIO, which takes one stream of the array."""
SWITCH_PORTS: Mapping[str, int] = {"north": 6, "south": 4, "east": 4, "west": 4}
"""Streams that leave a tile's switch, and an interface tile's, for its neighbour (mlir-aie, target model of AIE1)."""

SIDE = 4
"""Rows, columns and depth of an MME, in tiles."""
MME_COLUMNS = 2 * SIDE
FIRST_COLUMN = 1
"""Of the tiles: six MMEs take columns 1 to 48, which has them in the middle of the array."""


@dataclass(frozen=True)
class Shim:
    """A place of a PLIO: column of the array, and channel among those of its direction."""

    column: int
    channel: int


def wide_plios(channels: Collection[int]) -> int:
    """Return how many PLIOs of 128 bit the array has. Each takes two channels of a column, an even one and the next one
    (AM009, "AI Engine to Programmable Logic Interface"; aie-rt, xaie_plif.c: a bit for each such pair). channels: those
    of a column that may be used."""
    return len(PLIO_COLUMNS) * sum(c % 2 == 0 and c + 1 in channels for c in channels)


def single_plios(channels: Collection[int]) -> int:
    """Return how many PLIOs of 64 bit the array has beside all those of 128. channels: as for `wide_plios`."""
    return len(PLIO_COLUMNS) * len(channels) - 2 * wide_plios(channels)


def tile(mme: int, row: int, column: int, cascade: int) -> tuple[int, int]:
    """Return array column and row of the tile that multiplies lane 4 * row + cascade of A by lane 4 * column + cascade
    of B, for MME number `mme`.

    Two cascades fill a row of an MME. They run eastwards in even rows and westwards in odd ones, as the array's do
    (UG1079, "AI Engine Architecture Overview").
    """
    at = 2 * row + column // 2
    along = SIDE - 1 - cascade if at % 2 else cascade
    return FIRST_COLUMN + MME_COLUMNS * mme + SIDE * (column % 2) + along, at


def plio_columns(mme: int, mmes: int) -> range:
    """Return the columns of the array that have the PLIOs of MME number `mme` of `mmes`. They begin below its tiles,
    unless too few columns would then be left for the other MMEs on either side; then they begin as near to its tiles as
    possible."""
    least = -(-2 * LANES // len(INPUT_CHANNELS))

    def start(m: int) -> int:
        first = PLIO_COLUMNS.start + least * m
        last = PLIO_COLUMNS.stop - least * (mmes - m)
        return min(max(FIRST_COLUMN + MME_COLUMNS * m, first), last)

    return range(start(mme), start(mme + 1))


@cache
def shims(overlay: Overlay) -> Mapping[str, Shim]:
    """Return the place of each PLIO of the overlay's MMEs, by name, such as `A0_15`: operand, MME, lane. Raises
    `KeyError` for an overlay without MMEs.

    The lanes of an MME are spread evenly over its columns, in the order of the tile columns that they lead to or come
    from. A lane of B or C has one such column. A lane of A is needed in two columns of each half of the MME; those of A
    are spread between those of B."""
    out: dict[str, Shim] = {}
    used: dict[tuple[int, bool], int] = {}
    mmes = len(overlay.by_kind["MME"])
    for mme in range(mmes):
        columns = plio_columns(mme, mmes)
        for lanes, inward, channels in ((_inputs(), True, INPUT_CHANNELS), (_outputs(), False, OUTPUT_CHANNELS)):
            ordered = list(lanes)
            for i, (operand, lane) in enumerate(ordered):
                column = columns[i * len(columns) // len(ordered)]
                taken = used.get((column, inward), 0)
                used[column, inward] = taken + 1
                out[f"{operand}{mme}_{lane}"] = Shim(column, channels[taken])
    return out


def _inputs() -> Iterator[tuple[str, int]]:
    """Operand and lane of the inputs of an MME, from west to east."""
    places = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    b = sorted((tile(0, 0, n, c)[0], SIDE * n + c) for n, c in places)
    a = [SIDE * row + c for c in range(SIDE) for row in range(SIDE)]
    for (_, right), left in zip(b, a, strict=True):
        yield "B", right
        yield "A", left


def _outputs() -> Iterator[tuple[str, int]]:
    places = [(row, column) for row in range(SIDE) for column in range(SIDE)]
    for _, lane in sorted((tile(0, r, n, SIDE - 1)[0], SIDE * r + n) for r, n in places):
        yield "C", lane


def placement_header(overlay: Overlay) -> str:
    """Return the text of the C++ header with the places of PLIOs, for the AI Engine graph. Raises as `shims`."""
    places = shims(overlay)
    mmes = range(len(overlay.by_kind["MME"]))
    out = [
        "// Where the PLIOs of each MME lie: column of the array, and channel. The rule is in",
        "// isa/versal/placement.py. Generated by `make generate`; changes belong there.",
        "// SPDX-License-Identifier: Apache-2.0",
        "#ifndef RSN_AIE_PLACEMENT_H",
        "#define RSN_AIE_PLACEMENT_H",
        "",
        "namespace rsn::mme::placement {",
        "",
        "struct Shim {",
        "    int column, channel;",
        "};",
        "",
        f"constexpr int first_column = {FIRST_COLUMN};  // of the tiles",
        "",
        "// Of MME and lane.",
    ]
    for operand in "ABC":
        out.append(f"constexpr Shim {operand.lower()}[{len(mmes)}][{LANES}] = {{")
        for mme in mmes:
            at = [places[f"{operand}{mme}_{lane}"] for lane in range(LANES)]
            shown = ", ".join(f"{{{s.column}, {s.channel}}}" for s in at[: LANES // 2])
            rest = ", ".join(f"{{{s.column}, {s.channel}}}" for s in at[LANES // 2 :])
            out += [f"    {{{shown},", f"     {rest}}},"]
        out += ["};", ""]
    return "\n".join([*out, "}  // namespace rsn::mme::placement", "", "#endif  // RSN_AIE_PLACEMENT_H", ""])
