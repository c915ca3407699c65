"""Weights of several programs at the same addresses, so that a device holds them once.

A prompt and a step of a decoder are different networks with the same weights, and a compiler lays out each for itself.
Here a library gives every distinct content a place, and programs are written anew for these places, before they are
packed.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..isa.fields import Record
from ..isa.layout import UNIT, padded
from ..isa.overlay import Overlay
from ..isa.program import Buffer, Role, UnpackedProgram
from .build import Built
from .dram import Weights
from .graph import Array
from .pack import pack

Key = tuple[object, ...]


@dataclass(frozen=True)
class _Kept:
    """A content of the library. buffer: its place. built: a program that makes it, under the name `name`."""

    buffer: Buffer
    built: Built
    name: str


class WeightLibrary:
    """The weights of programs of one overlay, each content once, in the bank that holds nothing else."""

    def __init__(self, overlay: Overlay, bank: str) -> None:
        self._overlay, self._bank = overlay, bank
        self._kept: dict[Key, _Kept] = {}
        self._names: set[str] = set()
        self._end = 0

    def add(self, built: Built) -> None:
        """Give all weights of a program a place that have none yet."""
        for key, buffer in self._keyed(built):
            if key in self._kept:
                continue
            name, n = buffer.name, 2
            while name in self._names:
                name, n = f"{buffer.name}.{n}", n + 1
            self._names.add(name)
            self._kept[key] = _Kept(replace(buffer, name=name, offset=self._end), built, buffer.name)
            self._end += padded(prod(buffer.shape) // UNIT, 64)

    def linked(self, built: Built) -> Built | None:
        """The program with its weights where the library has them, and all of the library's declared; None if the
        library lacks one of them. Programs that are linked after the last `add` have the same bank."""
        places: dict[str, int] = {}
        for key, buffer in self._keyed(built):
            if key not in self._kept:
                return None
            places[buffer.name] = self._kept[key].buffer.offset
        others = tuple(b for b in built.kernels.buffers if b.bank != self._bank)
        kept = tuple(x.buffer for x in self._kept.values())
        moved = _moved(built.kernels, self._overlay, self._bank, places)
        kernels = replace(built.kernels, sequences=moved, buffers=(*others, *kept))
        made = {x.buffer.name: (lambda x=x: x.built.weights[x.name]) for x in self._kept.values()}
        own = {b.name: (lambda b=b: built.weights[b.name]) for b in others if b.role is Role.WEIGHT}
        return replace(built, program=pack(kernels), weights=Weights(made | own), kernels=kernels)

    def _keyed(self, built: Built) -> Iterator[tuple[Key, Buffer]]:
        for b in built.kernels.buffers:
            if b.bank == self._bank:
                yield (b.shape, b.layout, _digest(built.weights[b.name])), b


def _digest(stored: Array) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(stored).data, digest_size=16).digest()


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
