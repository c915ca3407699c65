"""The buffers off chip of a program for xnn8, one behind the other in each bank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ..isa.layout import ALIGNED, UNIT, padded
from ..isa.overlays.xnn8.emission import StoredConstants
from ..isa.overlays.xnn8.stored import PackedConstants, constant_words
from ..isa.program import Buffer, Layout, Role

Make = Callable[[], npt.NDArray[np.float32]]


class PanelBuffers:
    """Places the buffers of a program off chip. banks: names of the banks. buffers: those placed so far. made: by the
    name of a buffer of weights, the function that makes its words. Addresses are in address units of 64 bytes."""

    def __init__(self, banks: Iterable[str]) -> None:
        self.buffers: list[Buffer] = []
        self.made: dict[str, Make] = {}
        self._ends = dict.fromkeys(banks, 0)

    def place(self, bank: str, buffer: Buffer, make: Make | None = None) -> int:
        """Place a buffer behind the others of its bank. Returns its address, in address units. make: makes its words,
        for a buffer of weights; None for any other."""
        at = self._ends[bank]
        self._ends[bank] = padded(at + -(-buffer.size // UNIT), ALIGNED)
        self.buffers.append(Buffer(**{**vars(buffer), "offset": at}))
        if make is not None:
            self.made[buffer.name] = make
        return at

    def weight(self, name: str, bank: str, words: int, make: Make) -> int:
        """Place a buffer of `words` words that are made from weights. name, bank: of the buffer. make: makes the words.
        Returns its address, in address units."""
        return self.place(bank, Buffer(name, bank, 0, (words,), Layout.LINEAR, Role.WEIGHT), make)

    def vectors(self, name: str, blocks: Sequence[Sequence[PackedConstants]]) -> StoredConstants:
        """Place constants of columns in LPDDR. blocks: for each block of columns its constants, as many for each.
        Returns where they lie."""
        at = self.weight(name, "lpddr", 80 * len(blocks) * len(blocks[0]), partial(constant_words, blocks))
        return StoredConstants(at, len(blocks[0]))
