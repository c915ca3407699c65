"""Whether a network has room off chip: weights lie in LPDDR, activations and the biases of attention in DDR.

Both are looked at before any kernel is made. What the banks hold is the overlay's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..base.errors import UnsupportedError
from ..isa.layout import UNIT_BYTES
from ..isa.overlay import Overlay

WEIGHTS, ACTIVATIONS = "lpddr", "ddr"
"""The bank of each."""


class RoomError(UnsupportedError):
    """A network that needs more off-chip memory than a bank holds. To cut it in pieces does not help: they are programs
    for one board."""


class Placed(Protocol):
    """What lies in a bank, from an offset in address units on; its size in float32 elements."""

    @property
    def bank(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def size(self) -> int: ...


def check_room(buffers: Iterable[Placed], overlay: Overlay, rows: str) -> None:
    """Raises `RoomError` where buffers end behind their bank. rows: of the network, for messages."""
    ends = dict.fromkeys((WEIGHTS, ACTIVATIONS), 0)
    for b in buffers:
        ends[b.bank] = max(ends[b.bank], b.offset * UNIT_BYTES + 4 * b.size)
    _check(ends[WEIGHTS], WEIGHTS, overlay, "the weights, as they are padded, need", _FEWER)
    what = f"the activations of {rows}, with the biases of attention and all padding, need"
    _check(ends[ACTIVATIONS], ACTIVATIONS, overlay, what, "compile for a smaller batch or for shorter sequences")


def check_weights(elements: int, overlay: Overlay) -> None:
    """The same for so many weights, before anything else is known: padding comes on top. Raises `RoomError`."""
    _check(4 * elements, WEIGHTS, overlay, "the weights need", _FEWER)


_FEWER = "compile a model with fewer or smaller layers, or parts of this one apart, each for a board of its own"


def _check(needed: int, bank: str, overlay: Overlay, what: str, way_out: str) -> None:
    holds = overlay.banks[bank]
    if needed > holds:
        amount, most = _apart(needed, holds)
        banks = ", ".join(f"{name} {_apart(size, size)[0]}" for name, size in overlay.banks.items())
        raise RoomError(
            f"{what} {amount} in float32, and bank {bank}, where they lie, holds {most} (overlay {overlay.name} has "
            f"{banks}): {way_out}"
        )


def _apart(a: int, b: int) -> tuple[str, str]:
    """Two sizes in bytes as text, with as many decimals as show that they differ."""
    unit, size = ("GB", 10**9) if b >= 10**9 else ("MB", 10**6)
    for digits in range(2, 10):
        texts = f"{a / size:.{digits}f} {unit}", f"{b / size:.{digits}f} {unit}"
        if a == b or texts[0] != texts[1]:
            break
    return texts
