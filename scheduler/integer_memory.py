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
    """The buffers of some banks, and what makes the words of those with weights, by name."""

    def __init__(self, banks: Iterable[str]) -> None:
        self.buffers: list[Buffer] = []
        self.made: dict[str, Make] = {}
        self._ends = dict.fromkeys(banks, 0)

    def place(self, bank: str, buffer: Buffer, make: Make | None = None) -> int:
        """Place a buffer behind the others of its bank. Returns its address."""
        at = self._ends[bank]
        self._ends[bank] = padded(at + -(-buffer.size // UNIT), ALIGNED)
        self.buffers.append(Buffer(**{**vars(buffer), "offset": at}))
        if make is not None:
            self.made[buffer.name] = make
        return at

    def weight(self, name: str, bank: str, words: int, make: Make) -> int:
        """Place what follows from weights, a number of words. Returns its address."""
        return self.place(bank, Buffer(name, bank, 0, (words,), Layout.LINEAR, Role.WEIGHT), make)

    def vectors(self, name: str, blocks: Sequence[Sequence[PackedConstants]]) -> StoredConstants:
        """Place the constants of blocks; returns where."""
        at = self.weight(name, "lpddr", 80 * len(blocks) * len(blocks[0]), partial(constant_words, blocks))
        return StoredConstants(at, len(blocks[0]))
