"""Streams between kernel and tiles, and which of them are narrow.

Streams have `PLIO_BITS` in a cycle of the kernel. A wide one is a PLIO of as many bits at the kernel's clock, on two
channels of a column of the array that both have registers (`placement.wide_plios`). There are too few of these for all
inputs. The others are PLIOs of half the width at twice the clock, each on a channel with registers that no wide one
takes. Sources:

- A PLIO has its own clock, up to half of that of the AI Engines: 625 MHz (UG1079, "AI Engine to PL Interface
  Performance"; DS957, "AI Engine Switching Characteristics", -2 at 0.80 V). So the kernel's may be up to 312 MHz.
- The linker puts converters of width and clock between a port of the kernel and its PLIO (UG1701, "Linker").
"""

from __future__ import annotations

from typing import NamedTuple

from ...versal.placement import INPUT_CHANNELS, wide_plios
from .formats import ENGINES, LANES, PAIRS

PLIO_BITS, NARROW_BITS = 128, 64
NARROW_BEAT = NARROW_BITS / PLIO_BITS
"""Cycles of the kernel for a beat of a narrow stream."""
TILES = 2
"""Of a pair, each with its own streams."""


class TileStreams(NamedTuple):
    """Streams that are alike. into: whether they lead into the array. all: how many there are. narrow: how many of them
    are narrow."""

    into: bool
    all: int
    narrow: int = 0


NARROW_LANES = -(-max(0, TILES * ENGINES * (LANES + PAIRS) - wide_plios(INPUT_CHANNELS)) // TILES)
"""Lanes with narrow streams of rows, the last of all. Of rows, because queries are few: narrow streams of keys would
hold up attention if a design had to clock them like the kernel."""
TILE_STREAMS = {
    "rows and queries to both tiles of the pairs of a lane": TileStreams(
        True, ENGINES * LANES * TILES, NARROW_LANES * TILES
    ),
    "weights, keys and values to both tiles of a column of pairs": TileStreams(True, ENGINES * PAIRS * TILES),
    "packets of results from the pairs of a lane": TileStreams(False, ENGINES * LANES * TILES),
}


def narrow_lanes(engine: int) -> range:
    """Return the numbers of an engine's lanes whose streams of rows are narrow. engine: 0 to 2."""
    wide = ENGINES * LANES - NARROW_LANES - engine * LANES
    return range(min(max(0, wide), LANES), LANES)
