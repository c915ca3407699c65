"""The off-chip memories of a board that runs in this process."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...base.errors import ProgramError
from ...isa.program import Array, Buffer, Program, Role, only_weights
from ..tensors import Images


@dataclass(eq=False)
class _Shared:
    """A bank that holds only weights, shared by all programs of this process with the same weights at the same
    addresses. elements: the whole bank, flat and read-only."""

    buffers: tuple[Buffer, ...]
    elements: Array


_shared: weakref.WeakSet[_Shared] = weakref.WeakSet()
_turn = threading.Lock()


def _turn_in_child() -> None:
    global _turn  # another thread may have held it when the process was forked
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_turn_in_child)


class MemoryBanks:
    """The memory banks of a program, as flat float32 arrays by bank (`banks`). Memory that nothing has written is 0.

    A bank that holds only weights is read-only. Programs with the same weights share it, as on a device
    (`xrt.XrtBoard`); if the weights come as an image of the bank, the bank is that image, not a copy. weights: packed,
    by buffer name. Raises `ProgramError` for a weight with another number of elements than its buffer has.
    """

    def __init__(self, program: Program, weights: Mapping[str, Array]) -> None:
        self.program = program
        self.banks: dict[str, Array] = {}
        self._shares: list[_Shared] = []
        for bank in program.overlay.banks:
            buffers = program.in_bank(bank)
            if only_weights(buffers):
                with _turn:
                    share = self._share(bank, buffers, weights)
                self._shares.append(share)
                self.banks[bank] = share.elements
            else:
                self.banks[bank] = np.zeros(program.bank_size(bank), np.float32)
                self.fill({b.name: weights[b.name] for b in buffers if b.role is Role.WEIGHT})

    def _share(self, bank: str, buffers: tuple[Buffer, ...], weights: Mapping[str, Array]) -> _Shared:
        image = weights.image(bank) if isinstance(weights, Images) else None
        if image is not None:
            return _Shared(buffers, image)
        candidates = [x for x in _shared if x.buffers == buffers]
        own: Array | None = None
        for i, b in enumerate(buffers):
            place = self.program.place(b)
            weight = weights[b.name]  # looked up once: the mapping may compute it each time
            _check_size(b, weight)
            if own is None:
                rest = [x for x in candidates if np.array_equal(_bits(x.elements[place]), _bits(weight))]
                if not rest:
                    own = np.zeros(self.program.bank_size(bank), np.float32)
                    for done in buffers[:i]:
                        at = self.program.place(done)
                        own[at] = candidates[0].elements[at]
                candidates = rest or candidates
            if own is not None:
                own[place] = weight
        if own is None:
            return candidates[0]
        own.flags.writeable = False
        made = _Shared(buffers, own)
        _shared.add(made)
        return made

    def fill(self, tensors: Mapping[str, Array]) -> None:
        """Write tensors, by buffer name, into their buffers. Each is flat, in memory order. Raises `ProgramError` for
        a name that no buffer has, and for another number of elements than its buffer has, and `ValueError` for a buffer
        in a read-only bank."""
        for name, flat in tensors.items():
            buffer = self.program.buffer(name)
            _check_size(buffer, flat)
            self._region(buffer)[:] = flat

    def outputs(self) -> dict[str, Array]:
        """Return a copy of each output buffer, flat and in memory order."""
        return {b.name: self._region(b).copy() for b in self.program.with_role(Role.OUTPUT)}

    def _region(self, buffer: Buffer) -> Array:
        return self.banks[buffer.bank][self.program.place(buffer)]


def _check_size(buffer: Buffer, flat: Array) -> None:
    """Raise `ProgramError` unless an array has the elements of its buffer: a single one would fill all of it."""
    if flat.shape != (buffer.size,):
        raise ProgramError(f"{buffer.name} has shape {flat.shape}; its buffer takes ({buffer.size},)")


def _bits(x: Array) -> npt.NDArray[np.uint32]:
    """Return the bit patterns, for a comparison in which NaN equals NaN and 0 differs from -0."""
    return np.ascontiguousarray(x, np.float32).view(np.uint32)
