"""DDR and LPDDR: one access after another, in blocks; LPDDR sends vectors and tables as well."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from ....machine.description import UnitSpec
from ....machine.steps import Step, Steps
from ...fields import Record, bits
from ...lanes import Weight
from ...layout import BLOCK, UNIT
from ...overlay import Transfer
from ...versal.off_chip import BankUnit, starts
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


class LaneTransfer(NamedTuple):
    """One chunk, from or to some peers.

    addr: in units of 64 bytes. size, piece: float32 elements, of the chunk and of a word of the peers' streams. store:
    write to the memory, else read. peers: names of units; "" is none.
    """

    addr: int
    size: int
    store: bool
    peers: tuple[str, ...]
    piece: int = BLOCK


def ddr_uops(mop: LaneDdr, iteration: int) -> Iterator[LaneTransfer]:
    """Yield the uOPs of one repetition of a mOP, one for each chunk. iteration: number of the repetition, from 0."""
    peer = DDR_PEERS[mop.peer] if mop.peer < len(DDR_PEERS) else ""
    for addr in starts(mop, iteration):
        yield LaneTransfer(addr, mop.size, peer in DDR_SOURCES, (peer,))


def lpddr_uops(mop: LaneLpddr, iteration: int) -> Iterator[LaneTransfer]:
    """Yield the uOPs of one repetition of a mOP, one for each chunk: to W0 or W1, or to all of the lanes that `lanes`
    selects; to no peer if `to` is not defined. iteration: the number of the repetition, from 0."""
    peers: tuple[str, ...] = (Weight(mop.to).name,) if mop.to < len(Weight) else ()
    piece = BLOCK
    if mop.to in (Weight.VECTOR, Weight.TABLE, Weight.GAINS):
        kind = "C" if mop.to == Weight.VECTOR else "Post"
        piece = TILE * TILE if mop.to == Weight.TABLE else TILE
        peers = tuple(f"{kind}{i}" for i in range(LANES) if mop.lanes >> i & 1)
    for addr in starts(mop, iteration):
        yield LaneTransfer(addr, mop.size, False, peers, piece)


class LaneBankUnit(BankUnit):
    """DDR and LPDDR: one uOP after another, strictly in order, reading and writing never overlapped."""

    def kernel(self, uop: LaneTransfer) -> Steps:
        yield Step("offchip_uop")
        size, pieces, start = uop.piece, uop.size // uop.piece, uop.addr * UNIT
        words = size // BEAT
        parts = max(1, words // PIECE)
        if uop.store:
            yield self.stored(start, pieces, size, uop.peers[0], words, parts)
        else:
            yield self.loaded(start, pieces, size, uop.peers, words, parts)

    def effect_key(self, uop: LaneTransfer) -> Hashable:
        return uop.size, uop.store, uop.peers, uop.piece


def transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
    """Return the off-chip access of a uOP; None if it makes none."""
    if isinstance(uop, LaneTransfer) and uop.size:
        return Transfer(str(unit.bank), uop.addr, uop.size, uop.store)
    return None


def legal(unit: UnitSpec, uop: LaneTransfer) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not all(uop.peers) or not uop.peers:
        yield "names no destination or source"
    if not uop.size:
        yield "moves no elements"
    if uop.size % uop.piece:
        yield f"size {uop.size} is not a multiple of {uop.piece} elements"
