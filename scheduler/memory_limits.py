"""Check that a network fits off-chip memory: on XNN weights lie in LPDDR, activations and the biases of attention in
DDR.

The check runs before any kernel is made. The overlay states the sizes of the banks.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.errors import UnsupportedError
from ..isa.overlay import Overlay
from ..isa.program import Buffer


class RoomError(UnsupportedError):
    """A network needs more off-chip memory than a bank holds. Splitting its graph does not help: all parts are programs
    for one board."""


def check_room(buffers: Iterable[Buffer], overlay: Overlay, rows: str, weights: str, activations: str) -> None:
    """Raises `RoomError` if buffers end beyond their bank. rows: the network's batch and rows as text, for messages.
    weights, activations: the banks that hold them, which may be the same; other banks hold weights."""
    ends = dict.fromkeys((weights, activations), 0)
    for b in buffers:
        ends[b.bank] = max(ends.get(b.bank, 0), 4 * (b.offset * overlay.address_unit + b.size))
    fewer_rows = "compile for a smaller batch or for shorter sequences"
    for bank, end in ends.items():
        subject, remedy = "the weights, padding included, need", _FEWER
        if bank == activations == weights:
            subject = f"the weights and the activations of {rows}, with all padding, need"
            remedy = f"{_FEWER}; or {fewer_rows}"
        elif bank == activations:
            subject = f"the activations of {rows}, with the biases of attention and all padding, need"
            remedy = fewer_rows
        _check(end, bank, overlay, subject, remedy)


def check_weights(elements: int, overlay: Overlay, bank: str) -> None:
    """Raises `RoomError` if this many float32 weights exceed their bank even without padding. It allows an early error,
    before weights are copied."""
    _check(4 * elements, bank, overlay, "the weights need", _FEWER)


_FEWER = "compile a model with fewer or smaller layers, or compile its parts separately, each for its own board"


def _check(needed: int, bank: str, overlay: Overlay, subject: str, remedy: str) -> None:
    capacity = overlay.banks[bank]
    if needed > capacity:
        amount, limit = _as_text(needed, capacity)
        banks = ", ".join(f"{name} {_as_text(size, size)[0]}" for name, size in overlay.banks.items())
        raise RoomError(
            f"{subject} {amount} in float32, but bank {bank}, which holds them, has {limit} (banks of overlay "
            f"{overlay.name}: {banks}): {remedy}"
        )


def _as_text(a: int, b: int) -> tuple[str, str]:
    """Two sizes in bytes as text, with enough decimals that they differ if the sizes do."""
    unit, size = ("GB", 10**9) if b >= 10**9 else ("MB", 10**6)
    for digits in range(2, 10):
        texts = f"{a / size:.{digits}f} {unit}", f"{b / size:.{digits}f} {unit}"
        if a == b or texts[0] != texts[1]:
            break
    return texts
