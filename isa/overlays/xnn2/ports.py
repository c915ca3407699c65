"""The two ports of an on-chip memory: a unit that writes tiles, and a unit that reads them.

Both have a program of their own and run side by side. Two streams of tokens keep them in order: the writer puts a token
to `filled` for each tile that it has written, the reader puts one to `free` for each operation that it has ended. An
operation first takes as many tokens as its field `wait` says; the compiler counts them (`isa/versal/tokens.py`).
Nothing else is fixed: a slot may hold anything, for any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ....machine.description import Stream, UnitSpec
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.token_type import TokenType
from ....machine.unit import Unit, Wiring
from ...layout import block, unblock
from ...versal.tiles import BEAT, BEATS, BLOCK_WORDS, TILE, Array

FILLED, FREE = "filled", "free"
"""Labels of the streams between the two ports."""
TOKENS = 64
"""Depth of these streams."""
TILE_BLOCKS = 2
"""128x64 blocks in a tile."""
HALF = TILE // TILE_BLOCKS
TILE_WORDS = 4
"""Words of a tile. A stream without a FIFO holds one, so the unit at its end takes the tile while the other one sends
it. In hardware such a stream holds `STREAM_BEATS`. With 16 words a tile the times are the same to 0.01 %. From one FIFO
to the next a tile goes through two such streams at most, so if the unit behind them does not take it, the first one has
not sent all of it."""
TILE_TOKEN = TokenType("tile", TILE, TILE, TILE_WORDS, f"{TILE_WORDS} words make a {TILE}x{TILE} tile")
PIECE = BEATS // TILE_WORDS
"""Words of 1024 bit in a word of a tile. So many words of blocks and tables are in a stream without a FIFO."""
STREAM_BEATS = 4
"""Beats that a stream without a FIFO holds in hardware: a shift register in half a LUT a bit. Of two beats HLS makes
registers and a choice, which take twice the LUTs and two flip-flops a bit (`isa/versal/pieces.toml`)."""
TOKEN = np.zeros(1, np.float32)


def has_fifo(stream: Stream) -> bool:
    """Whether a stream is built as a FIFO of its depth: it carries tokens smaller than a block, or holds more than one
    tile or `PIECE` words of blocks and tables. Any other stream only hands these over, and is built with `STREAM_BEATS`
    beats."""
    beats = stream.depth * stream.token.word_elements // BEAT
    return stream.token.rows * stream.token.columns < BLOCK_WORDS * BEAT or beats > PIECE


class SlotValues:
    """The tiles of a memory by slot, (128, 128) float32 each; NaN where none was written. count: number of slots; an
    index beyond goes round the ring. Tiles are replaced, never changed in place, since a tile that was sent may still
    be on its way."""

    def __init__(self, count: int) -> None:
        self.tiles: list[Any] = [None] * count

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, slot: int) -> Any:
        tile = self.tiles[slot % len(self.tiles)]
        return np.full((TILE, TILE), np.nan, np.float32) if tile is None else tile

    def __setitem__(self, slot: int, tile: Any) -> None:
        self.tiles[slot % len(self.tiles)] = tile


class FilledMemory:
    """A memory that a write port fills: its `slots`, and the two streams of tokens between it and the read port.

    port: the write port. reader: name of the read port. slots: number of slots. Raises `ProgramError` if the machine
    has no such streams."""

    def __init__(self, port: Unit, reader: str, slots: int) -> None:
        self.slots = SlotValues(slots)
        self._filled, self._free = port.sink(reader, FILLED), port.source(reader, FREE)

    def wait(self, tokens: int) -> Steps:
        """Return the steps that wait until the reader has ended `tokens` more operations."""
        if tokens:
            yield Burst(tokens, gets=(self._free,))

    def done(self) -> Step:
        """Return the step that tells the reader that a tile has been written."""
        return Step(puts=(self._filled,), do=lambda: (TOKEN,))


class WritePort(Unit):
    """A unit that writes tiles into the slots of a memory. peer: the FU type of the read port, which has the same
    index."""

    peer: str

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        assert spec.memory is not None
        memory = FilledMemory(self, f"{self.peer}{spec.index}", spec.memory.slots)
        self.slots, self.wait, self.done = memory.slots, memory.wait, memory.done


class ReadPort(Unit):
    """A unit that sends tiles from the slots of a memory. peer: the FU type of the write port. writer: name of the
    write port; None for the one with the same index."""

    peer: str

    def __init__(self, spec: UnitSpec, net: Wiring, writer: str | None = None) -> None:
        super().__init__(spec, net)
        self._writer = writer = writer or f"{self.peer}{spec.index}"
        self.filled, self.free = self.source(writer, FILLED), self.sink(writer, FREE)

    @cached_property
    def writer(self) -> Any:
        """The unit that is the write port of the same memory. Raises `KeyError` if there is none."""
        return self._net.units[self._writer]

    def wait(self, tokens: int) -> Steps:
        """Return the steps that wait until the writer has written `tokens` more tiles."""
        if tokens:
            yield Burst(tokens, gets=(self.filled,))

    def done(self) -> Step:
        """Return the step that tells the writer that an operation has ended."""
        return Step(puts=(self.free,), do=lambda: (TOKEN,))


def send(sinks: Sequence[Channel], tiles: Sequence[Any], make: Any) -> Burst:
    """Return the burst that sends tiles to all sinks at once. tiles: their places, in the form that `make` takes. make:
    returns the tile at a place, (128, 128) float32."""
    at = 0

    def some(n: int) -> tuple[list[Array], ...]:
        nonlocal at
        at += n
        made = [make(place) for place in tiles[at - n : at]]
        return (made,) * len(sinks)

    return tiles_by("mesh_beat", BEATS, len(tiles), puts=tuple(sinks), do=some)


def tiles_by(
    rate: str,
    amount: float,
    times: int,
    *,
    gets: Sequence[Channel] = (),
    puts: Sequence[Channel] = (),
    do: Any = None,
) -> Burst:
    """Return the burst that takes and sends `times` tiles, each word by word. rate, amount: name of the rate, and how
    much of it a tile takes. gets, puts, do: as of a `Burst`.
    """
    return Burst(times, rate, amount, gets=gets, puts=puts, words=TILE_WORDS, parts=TILE_WORDS, do=do)


def tile_by(
    rate: str, amount: float, *, gets: Sequence[Channel] = (), puts: Sequence[Channel] = (), do: Any = None
) -> Step:
    """Return the step that takes and sends a tile, word by word. rate, amount: name of the rate, and how much of it the
    tile takes. gets, puts, do: as of a `Step`.
    """
    return Step(rate, amount, gets=gets, puts=puts, words=TILE_WORDS, parts=TILE_WORDS, do=do)


def blocks_in(source: Channel, count: int, take: Any) -> Iterator[Step]:
    """Yield the steps that take `count` blocks from off-chip memory. take: is called with the number of each block from
    0, and the block, (128, 64) float32.
    """
    for number in range(count):

        def one(piece: Any, number: int = number) -> None:
            take(number, unblock(np.asarray(piece).reshape(-1), TILE, HALF))

        yield Step("mem_word", BLOCK_WORDS, gets=(source,), words=BLOCK_WORDS, parts=BLOCK_WORDS // PIECE, do=one)


def blocks_out(sink: Channel, make: Any) -> Iterator[Step]:
    """Yield the steps that send a tile to off-chip memory, as two blocks. make: returns the tile, (128, 128)
    float32.
    """
    for half in range(TILE_BLOCKS):

        def one(half: int = half) -> tuple[Array]:
            return (block(np.ascontiguousarray(make()[:, half * HALF : (half + 1) * HALF])),)

        yield Step("mem_word", BLOCK_WORDS, puts=(sink,), words=BLOCK_WORDS, parts=BLOCK_WORDS // PIECE, do=one)


def outside(slots: int, first: int, count: int, *, ring: bool) -> Iterator[str]:
    """Yield the reasons why a port cannot use `count` slots from `first` on, of a memory of `slots`. ring: behind the
    last one comes the first."""
    if first >= slots:
        yield f"slot={first}: the memory has {slots} slots"
    elif ring and count > slots:
        yield f"{count} slots of a memory that has {slots}"
    elif not ring and first + count > slots:
        yield f"slots {first} to {first + count - 1} of a memory that has {slots}"
