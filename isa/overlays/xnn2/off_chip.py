"""DDR and LPDDR: one access after another, in blocks; LPDDR sends vectors and tables as well."""

from __future__ import annotations

from collections.abc import Iterator

from ...fields import Record, bits
from ...lanes import Weight
from ...layout import BLOCK
from ...versal.off_chip import ChunkBankUnit, ChunkTransfer, starts
from ...versal.tiles import BEAT, TILE
from .operands import LANES
from .ports import PIECE

DDR_SINKS = ("TIn1", "TIn3", "TIn5", "KvIn0", "KvIn1", "W1")
DDR_SOURCES = (*(f"XStore{i}" for i in range(LANES)), *(f"Post{i}" for i in range(LANES)))
DDR_PEERS = (*DDR_SINKS, *DDR_SOURCES)


class LaneDdr(Record, words=4, name="Ddr"):
    """Move activations between DDR and a unit, `chunks` pieces of `size` elements; or load weights to W1."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 26, "float32 elements of one chunk: whole blocks")
    peer: int = bits(1, 26, 5, "T1, T3, T5, K, V, W1; from X0 to X5, Post0 to Post5")
    reuse_stride: int = bits(2, 0, 32, "from one repetition of the packet to the next, in units of 64 bytes")
    chunk_stride: int = bits(3, 0, 24, "from one chunk to the next, in units of 64 bytes")
    chunks: int = bits(3, 24, 8, "chunks", default=1)


class LaneLpddr(Record, words=4, name="Lpddr"):
    """Load weights or vectors from LPDDR, `chunks` pieces of `size` elements."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 23, "float32 elements of one chunk: whole blocks, vectors of 128, or tables of 16384")
    lanes: int = bits(1, 23, 6, "of vectors and tables: bit i selects lane i")
    to: int = bits(1, 29, 3, "W0, W1, vectors to C, tables to Post, vectors to Post")
    reuse_stride: int = bits(2, 0, 32, "from one repetition of the packet to the next, in units of 64 bytes")
    chunk_stride: int = bits(3, 0, 24, "from one chunk to the next, in units of 64 bytes")
    chunks: int = bits(3, 24, 8, "chunks", default=1)


def ddr_uops(mop: LaneDdr, iteration: int) -> Iterator[ChunkTransfer]:
    """Yield the uOPs of one repetition of a mOP, one for each chunk. iteration: number of the repetition, from 0."""
    peer = DDR_PEERS[mop.peer] if mop.peer < len(DDR_PEERS) else ""
    for addr in starts(mop, iteration):
        yield ChunkTransfer(addr, mop.size, peer in DDR_SOURCES, (peer,))


def lpddr_uops(mop: LaneLpddr, iteration: int) -> Iterator[ChunkTransfer]:
    """Yield the uOPs of one repetition of a mOP, one for each chunk: to W0 or W1, or to all of the lanes that `lanes`
    selects; to no peer if `to` is not defined. iteration: the number of the repetition, from 0."""
    peers: tuple[str, ...] = (Weight(mop.to).name,) if mop.to < len(Weight) else ()
    piece = BLOCK
    if mop.to in (Weight.VECTOR, Weight.TABLE, Weight.GAINS):
        kind = "C" if mop.to == Weight.VECTOR else "Post"
        piece = TILE * TILE if mop.to == Weight.TABLE else TILE
        peers = tuple(f"{kind}{i}" for i in range(LANES) if mop.lanes >> i & 1)
    for addr in starts(mop, iteration):
        yield ChunkTransfer(addr, mop.size, False, peers, piece)


class LaneBankUnit(ChunkBankUnit):
    """DDR and LPDDR: one uOP after another, strictly in order, reading and writing never overlapped."""

    def words(self, piece: int) -> tuple[int, int]:
        words = piece // BEAT
        return words, max(1, words // PIECE)
