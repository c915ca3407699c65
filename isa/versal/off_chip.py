"""DDR and LPDDR: banks off chip, whose accesses are chunks at a distance from each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...machine.description import UnitSpec
from ...machine.steps import Burst, Step, Steps
from ...machine.unit import Unit, Wiring
from ..layout import BLOCK, UNIT
from ..overlay import Transfer
from .tiles import Array

READ_ONLY = "lpddr"
"""The bank that no unit writes."""


def starts(mop: Any, iteration: int) -> Iterator[int]:
    """Yield the address of each chunk of a mOP with `addr`, `reuse_stride`, `chunk_stride` and `chunks`, in address
    units, modulo 2**32. iteration: of the packet's reuse, from 0."""
    base = mop.addr + iteration * mop.reuse_stride
    for chunk in range(mop.chunks):
        yield (base + chunk * mop.chunk_stride) & 0xFFFF_FFFF


def addresses(mop: Any, reuse: int) -> npt.NDArray[np.int64]:
    """Return what `starts` gives for the first `reuse` iterations, in address units, as an array (reuse, chunks) of
    int64.
    """
    iterations = np.arange(reuse, dtype=np.int64)[:, None] * mop.reuse_stride
    chunks = np.arange(mop.chunks, dtype=np.int64)[None] * mop.chunk_stride
    return np.asarray((mop.addr + iterations + chunks) & 0xFFFF_FFFF)


class BankUnit(Unit):
    """A unit of an off-chip memory. Makes the bursts that read and write its bank, at the rates `BANK_read_gbs` and
    `BANK_write_gbs` of the machine."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.read_only = spec.bank == READ_ONLY
        self._read, self._write = f"{spec.bank}_read_gbs", f"{spec.bank}_write_gbs"

    def loaded(self, start: int, pieces: int, size: int, peers: Sequence[str], words: int, parts: int = 1) -> Burst:
        """Return the burst that sends `pieces` pieces of `size` float32 elements, from element `start` on, to all
        peers. words: of a piece on the stream, in `parts` parts.

        Raises `ProgramError` for a peer without a stream; in a run with data, when it reads beyond the bank.
        """
        at = start

        def fetch(n: int) -> tuple[Array, ...]:
            nonlocal at
            at += n * size
            return (self.read(at - n * size, n * size).reshape(n, size),) * len(peers)

        sinks = tuple(self.sink(peer) for peer in peers)
        return Burst(pieces, self._read, size * 4, puts=sinks, words=words, parts=parts, do=fetch)

    def stored(self, start: int, pieces: int, size: int, peer: str, words: int, parts: int = 1) -> Burst:
        """Return the burst that writes `pieces` pieces of `size` float32 elements, which a peer sends, from element
        `start` on. words, parts: as for `loaded`, with the same errors.
        """
        at = start

        def keep(n: int, tokens: Any) -> None:
            nonlocal at
            for token in [tokens] if isinstance(tokens, np.ndarray) else tokens:
                self.write(at, np.asarray(token).reshape(-1))
                at += np.size(token)

        gets = (self.source(peer),)
        return Burst(pieces, self._write, size * 4, gets=gets, words=words, parts=parts, do=keep)


class ChunkTransfer(NamedTuple):
    """One chunk, from or to some peers.

    addr: in units of 64 bytes. size, piece: float32 elements, of the chunk and of a word of the peers' streams. store:
    write to the memory, else read. peers: names of units; "" is none.
    """

    addr: int
    size: int
    store: bool
    peers: tuple[str, ...]
    piece: int = BLOCK


class ChunkBankUnit(BankUnit):
    """DDR and LPDDR: one uOP after another, strictly in order, reading and writing never overlapped."""

    def words(self, piece: int) -> tuple[int, int]:
        """Return how many words of a stream a piece takes, and in how many parts it moves (`Step`). piece: its number
        of float32 elements. A subclass defines it; this class raises `NotImplementedError`."""
        raise NotImplementedError

    def kernel(self, uop: ChunkTransfer) -> Steps:
        yield Step("offchip_uop")
        pieces, start = uop.size // uop.piece, uop.addr * UNIT
        words, parts = self.words(uop.piece)
        if uop.store:
            yield self.stored(start, pieces, uop.piece, uop.peers[0], words, parts)
        else:
            yield self.loaded(start, pieces, uop.piece, uop.peers, words, parts)

    def effect_key(self, uop: ChunkTransfer) -> Hashable:
        return uop.size, uop.store, uop.peers, uop.piece


def transfer(unit: UnitSpec, uop: Any) -> Transfer | None:
    """Return the off-chip access of a uOP; None if it makes none."""
    if isinstance(uop, ChunkTransfer) and uop.size:
        return Transfer(str(unit.bank), uop.addr, uop.size, uop.store)
    return None


def legal(unit: UnitSpec, uop: ChunkTransfer) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range."""
    if not all(uop.peers) or not uop.peers:
        yield "names no destination or source"
    if not uop.size:
        yield "moves no elements"
    if uop.size % uop.piece:
        yield f"size {uop.size} is not a multiple of {uop.piece} elements"
