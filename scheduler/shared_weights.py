"""Weights of several programs at the same addresses, so that a device holds them once.

A prompt and a step of a decoder are different networks with the same weights, and the compiler lays out each for
itself. Here a library gives every distinct content a place in the bank that holds weights alone, and programs are
written anew for these places.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ..isa.fields import Record
from ..isa.layout import ALIGNED, padded
from ..isa.overlay import Overlay
from ..isa.program import Buffer, Role, UnpackedProgram
from .build import Built, require_sound
from .dram import PackedWeights
from .graph import Array, free_name
from .lower import Banks

Key = tuple[object, ...]


class WeightLibrary:
    """The weights of several programs of one overlay in the bank of weights, in which equal weights lie once. A weight
    keeps its place for ever; new weights follow behind. first: a program whose weights keep the places that the
    compiler gave them."""

    def __init__(self, first: Built) -> None:
        self._overlay = first.kernels.overlay
        self._bank = Banks.of(self._overlay).weights
        self._first: Built | None = first
        """Until a program with another layout comes, which alone makes it worth while to read all weights."""
        self._places: dict[Key, int] = {}
        self._made: dict[str, Callable[[], Array]] = {}
        self.buffers = self._buffers(first)
        """Of the bank, in the order of their addresses."""

    def common(self, built: Built) -> float:
        """Return how much a program has in common with the library, 0 to 1: the elements of equal weights, as a share
        of all elements of the one that has fewer. It is 0 for a program that keeps anything but weights in the bank of
        weights."""
        own = self._buffers(built)
        if not own or not self.buffers:
            return 0.0
        if own == self.buffers:
            return 1.0
        known = self._known()
        same = sum(b.size for b in own if _key(built, b) in known)
        return same / min(sum(b.size for b in own), sum(b.size for b in self.buffers))

    def add(self, built: Built) -> bool:
        """Give a place to each weight of a program that has none yet. Returns whether the library has grown. It has not
        if all weights have a place, or if the bank has no room for all new ones; then no weight gets a place."""
        own = self._buffers(built)
        if own == self.buffers:
            return False
        known, unit = self._known(), self._overlay.address_unit
        new: dict[Key, tuple[Buffer, str]] = {}
        names, last = {b.name for b in self.buffers}, self.buffers[-1]
        end = last.offset + padded(last.size // unit, ALIGNED)
        for b in own:
            key = _key(built, b)
            if key in known or key in new:
                continue
            name = free_name(b.name, names)
            names.add(name)
            new[key] = replace(b, name=name, offset=end), b.name
            end += padded(b.size // unit, ALIGNED)
        if 4 * unit * end > self._overlay.banks[self._bank]:
            return False
        for key, (buffer, name) in new.items():
            self._keep(key, buffer, built, name)
        self.buffers += tuple(buffer for buffer, _ in new.values())
        return bool(new)

    def linked(self, built: Built) -> Built:
        """Return the program with its weights at the library's places, and with all weights of the library declared;
        the program as it is if the library lacks one of its weights. Programs that are linked after the last `add` have
        the same bank. Raises like `pack`, and `CompilerError` like `require_sound`."""
        own = self._buffers(built)
        if own == self.buffers:
            return built
        known = self._known()
        if not all(_key(built, b) in known for b in own):
            return built
        places = {b.name: known[_key(built, b)] for b in own}
        kernels = built.kernels
        others = tuple(b for b in kernels.buffers if b.bank != self._bank)
        if not {b.name for b in others}.isdisjoint(b.name for b in self.buffers):
            return built  # a name of another program's weight is that of a buffer in another bank
        made = dict(self._made)
        # Its own weights are read from itself: those of another program may be of before a change of the model.
        names = {b.offset: b.name for b in self.buffers}
        taken = {b.name: names[places[b.name]] for b in own} | {b.name: b.name for b in others if b.role is Role.WEIGHT}
        made |= {name: partial(built.weights.__getitem__, of) for of, name in taken.items()}
        moved = _moved(kernels, self._overlay, self._bank, places)
        kernels = replace(kernels, sequences=moved, buffers=(*others, *self.buffers))
        program = built.pack(kernels, None)
        require_sound(program, built.chosen.schedule)
        return replace(built, program=program, weights=PackedWeights(made), kernels=kernels)

    def _buffers(self, built: Built) -> tuple[Buffer, ...]:
        """The buffers of a program in the bank; none if not all of them are weights."""
        found = sorted((b for b in built.kernels.buffers if b.bank == self._bank), key=lambda b: b.offset)
        return tuple(found) if all(b.role is Role.WEIGHT for b in found) else ()

    def _known(self) -> dict[Key, int]:
        """The places of the contents."""
        if self._first is not None:
            for b in self.buffers:
                self._keep(_key(self._first, b), b, self._first, b.name)
            self._first = None
        return self._places

    def _keep(self, key: Key, buffer: Buffer, built: Built, name: str) -> None:
        self._places.setdefault(key, buffer.offset)
        self._made[buffer.name] = partial(built.weights.__getitem__, name)


def _key(built: Built, buffer: Buffer) -> Key:
    return buffer.shape, buffer.layout, built.weights.digest(buffer.name)


def _moved(
    kernels: UnpackedProgram, overlay: Overlay, bank: str, places: Mapping[str, int]
) -> dict[str, tuple[Record, ...]]:
    """The sequences with the addresses of a bank moved from buffers to where these are now."""
    buffers = sorted((b for b in kernels.buffers if b.bank == bank), key=lambda b: b.offset)
    starts = [b.offset for b in buffers]

    def placed(mop: Record) -> Record:
        at: int = mop.addr  # type: ignore[attr-defined]
        buffer = buffers[bisect_right(starts, at) - 1]
        return mop.replace(addr=at - buffer.offset + places[buffer.name])

    units = {u.name for u in overlay.units if u.bank == bank}
    return {unit: tuple(map(placed, mops)) if unit in units else mops for unit, mops in kernels.sequences.items()}
