"""Packets of an instruction image (mOPs behind a one-word header): encoding, and expansion to uOPs.

Source: contract section 1, paper section 3.3 and Fig. 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..base.errors import ImageError
from .fields import Record, bits

if TYPE_CHECKING:
    from .overlay import InstructionFormat, Overlay

Words = npt.NDArray[np.uint32]

NOP = 0
"""Opcode 0: one header word that the dispatcher skips."""


MAX_WINDOW = 31
"""Largest number of mOPs in a packet."""


class Header(Record, words=1):
    """Packet header (contract 1.1)."""

    opcode: int = bits(0, 0, 4, "FU type; 0 is skipped")
    mask: int = bits(0, 4, 6, "bit i selects instance i; ignored for FU types with one instance")
    last: int = bits(0, 10, 1, "terminator: ends the decoders of the selected FUs")
    window: int = bits(0, 11, 5, "mOPs in the packet")
    reuse: int = bits(0, 16, 16, "how often the window (DDR, LPDDR, Mesh) or each mOP (Mem) is issued; 0 is legal")


@dataclass(frozen=True)
class Packet:
    """One packet: `header.window` mOPs of one format for the units in `header.mask`."""

    header: Header
    mops: tuple[Record, ...] = ()

    @staticmethod
    def of(opcode: int, mops: Sequence[Record], *, mask: int = 0, reuse: int = 1) -> Packet:
        """Make a packet of some mOPs of the format with this opcode. mask: bit i selects the unit of index i. reuse:
        how often the mOPs are issued. Raises `FieldError` for more mOPs than `MAX_WINDOW`, or a number that does not
        fit its field.
        """
        return Packet(Header(opcode=opcode, mask=mask, window=len(mops), reuse=reuse), tuple(mops))

    @staticmethod
    def terminator(opcode: int, mask: int = 0) -> Packet:
        """Make a packet that ends the decoders of the selected units. opcode: of a format that drives them. mask: bit i
        selects the unit of index i. Raises `FieldError` for a number that does not fit its field.
        """
        return Packet(Header(opcode=opcode, mask=mask, last=1))

    @property
    def words(self) -> int:
        """Size in 32-bit words, including the header's word."""
        return 1 + sum(m.WORDS for m in self.mops)


def terminators(overlay: Overlay) -> list[Packet]:
    """Return the packets that end all decoders, in the overlay's order. Alone they are the smallest complete image.
    Raises `ProgramError` if no format drives one of the types in `Overlay.terminators`."""
    kinds = [(overlay.format_of(kind).opcode, overlay.by_kind[kind]) for kind in overlay.terminators]
    return [
        Packet.terminator(opcode, sum(1 << u.index for u in units) if len(units) > 1 else 0) for opcode, units in kinds
    ]


def encode_image(packets: Sequence[Packet]) -> Words:
    """Return the image, a vector of uint32: number of packet words, number of packets, then the packets back to back
    (contract 1).

    Raises `ImageError` if the window of a header is not the number of mOPs.
    """
    body: list[int] = []
    known: dict[int, tuple[int, ...]] = {}  # by identity: the decoder makes equal mOPs one object
    for packet in packets:
        if packet.header.window != len(packet.mops):
            raise ImageError(f"header says window={packet.header.window}, the packet holds {len(packet.mops)} mOPs")
        body.extend(packet.header.encode())
        for mop in packet.mops:
            words = known.get(id(mop))
            if words is None:
                words = known[id(mop)] = mop.encode()
            body.extend(words)
    return np.array([len(body), len(packets), *body], dtype=np.uint32)


def expand_window(form: InstructionFormat, mops: Sequence[Any], iterations: range) -> Iterator[Any]:
    """Yield the uOPs of a window's mOPs in some iterations of its reuse (contract 1.3). mops: of the format.
    iterations: numbers of repetitions, from 0.

    A format with `loops_window` repeats the whole window; any other format repeats each mOP alone.
    """
    if form.loops_window:
        for iteration in iterations:
            for mop in mops:
                yield from form.uops(mop, iteration)
    else:
        for mop in mops:
            for iteration in iterations:
                yield from form.uops(mop, iteration)


def expand(packet: Packet, overlay: Overlay) -> Iterator[Any]:
    """Yield the uOPs that one packet expands to, at each unit that it selects. Raises `KeyError` for an opcode that the
    overlay does not have, 0 included.
    """
    return expand_window(overlay.by_opcode[packet.header.opcode], packet.mops, range(packet.header.reuse))
