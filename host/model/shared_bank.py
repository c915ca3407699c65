"""The weights of programs that were compiled from one model, which a board holds once.

A prompt and a step of a decoder, and the graphs that torch.compile captures of one model, are programs with the same
weights at different addresses. Boards of one process share a bank of weights if programs declare the same buffers with
the same contents; here programs get the same buffers (`scheduler.shared_weights`).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ...scheduler.shared_weights import WeightLibrary
from ..forks import forget_in_children

if TYPE_CHECKING:
    import torch

    from ...scheduler.build import Built

ENOUGH = 0.5
"""The share of its weights that a program has in common with a library that it joins."""


class BankUser(Protocol):
    """What runs a program on a board."""

    def release(self) -> None:
        """Release the board, because the bank grows, unless a run is taking place. Must not wait."""


@dataclass(frozen=True)
class _Placed:
    """A member's program as it was built, and linked, that is with its weights where the library has them. version: of
    the library."""

    built: Built
    library: WeightLibrary
    version: int
    linked: Built


class SharedBank:
    """The places of weights on the boards of one model: its programs lie at shared addresses (`WeightLibrary`), so that
    a board holds equal weights once. Methods are thread-safe."""

    def __init__(self) -> None:
        self._members: weakref.WeakKeyDictionary[BankUser, _Placed] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self.changes = 0
        """How often `changed` has taken effect."""
        forget_in_children(self)

    @staticmethod
    def of(tensors: Iterable[torch.Tensor], board: str, overlay: str) -> SharedBank:
        """Return the bank for programs with the weights `tensors`: the bank of other programs that have one of these
        tensors too, or a new one. board, overlay: names of both; programs on another board or overlay have a bank of
        their own."""
        return _banks.find(list(tensors), (board, overlay))

    def place(self, member: BankUser, built: Built) -> Built:
        """Return the program of a member, with its weights at the addresses that all programs share; call it before
        each run. built: the program as it was compiled. The result is the same object until another program joins, or
        the member has another program. Raises as `WeightLibrary.linked`."""
        with self._lock:
            known = self._members.get(member)
            if known is not None and known.built is not built:
                known = None
            if known is not None and known.version == len(known.library.buffers):
                return known.linked
            library = self._library(built) if known is None else known.library
            if library.add(built):
                for other, placed in self._members.items():
                    if placed.library is library and other is not member:
                        other.release()
            linked = library.linked(built)
            self._members[member] = _Placed(built, library, len(library.buffers), linked)
            return linked

    def changed(self, since: int) -> None:
        """Forget all places, because the weights of the model have changed. since: the value of `changes` when the
        caller's weights were up to date. Nothing happens if another program has reported a change since then."""
        with self._lock:
            if since == self.changes:
                self.changes += 1
                self._members.clear()

    def _library(self, built: Built) -> WeightLibrary:
        """The library that has most of a program's weights, or a new one."""
        libraries = list({id(x.library): x.library for x in self._members.values()}.values())
        best = max(libraries, key=lambda x: x.common(built), default=None)
        return best if best is not None and best.common(built) >= ENOUGH else WeightLibrary(built)

    def forget(self) -> None:
        """Replace the lock after a fork, because another thread may have held it."""
        self._lock = threading.Lock()


class _Banks:
    """All banks of this process, by board and overlay, each with the tensors of its programs by id."""

    def __init__(self) -> None:
        self._tensors: weakref.WeakKeyDictionary[SharedBank, dict[int, weakref.ref[torch.Tensor]]]
        self._tensors = weakref.WeakKeyDictionary()
        self._machines: weakref.WeakKeyDictionary[SharedBank, tuple[str, str]] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        forget_in_children(self)

    def find(self, tensors: list[torch.Tensor], machine: tuple[str, str]) -> SharedBank:
        with self._lock:
            for bank, known in self._tensors.items():
                if self._machines[bank] == machine and any(_is_among(x, known) for x in tensors):
                    break
            else:
                bank = SharedBank()
                self._machines[bank] = machine
            known = {i: x for i, x in self._tensors.get(bank, {}).items() if x() is not None}
            self._tensors[bank] = known | {id(x): weakref.ref(x) for x in tensors}
            return bank

    def forget(self) -> None:
        """Replace the lock after a fork."""
        self._lock = threading.Lock()


def _is_among(tensor: torch.Tensor, known: dict[int, weakref.ref[torch.Tensor]]) -> bool:
    found = known.get(id(tensor))
    return found is not None and found() is tensor


_banks = _Banks()
