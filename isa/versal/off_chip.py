"""DDR and LPDDR: banks off chip, whose accesses are chunks at a distance from each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...machine.description import UnitSpec
from ...machine.steps import Burst
from ...machine.unit import Unit, Wiring
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
    """A bank off chip: its bursts, at its rates."""

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
