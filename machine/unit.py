"""A functional unit's behaviour: what its kernel does with one uOP."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from ..base.errors import ProgramError
from .description import UnitSpec
from .steps import Channel, Steps

if TYPE_CHECKING:
    from .wiring import Wiring


class Immutable:
    """A value that never changes, such as an instruction: a unit may keep it as state that can be compared."""

    __slots__ = ()


class Unit:
    """A functional unit: the state that lives from kernel to kernel, and the kernel. Subclass it to define one.

    memory: the off-chip bank that its `UnitSpec` names, a float32 vector; None if the network runs without data.
    read_only: nobody writes that bank while the network runs.
    """

    read_only = False

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        self.name = spec.name
        self.index = spec.index
        self.memory: Any = net.banks.get(str(spec.bank))
        self._net = net

    def source(self, peer: str, label: str = "") -> Channel:
        """The stream from `peer` to this unit."""
        return self._net.channel(peer, self.name, label)

    def sink(self, peer: str, label: str = "") -> Channel:
        """The stream from this unit to `peer`."""
        return self._net.channel(self.name, peer, label)

    def read(self, at: int, size: int) -> Any:
        """`size` elements of the memory from element `at` on, not to be written to. For a step's `do`: there is data
        then. A copy, because the memory may change before the reader has done with them, unless nobody writes it."""
        piece = self.memory[at : at + size]
        if len(piece) != size:
            raise ProgramError(f"{self.name} reads {size} elements at {at}, beyond its {len(self.memory)}")
        return piece if self.read_only else piece.copy()

    def write(self, at: int, piece: Any) -> None:
        """Write the elements `piece` to the memory from element `at` on. For a step's `do`."""
        target = self.memory[at : at + len(piece)]
        if len(target) != len(piece):
            raise ProgramError(f"{self.name} writes {len(piece)} elements at {at}, beyond its {len(self.memory)}")
        target[:] = piece

    def kernel(self, uop: Any) -> Steps:
        """What one uOP does. The only place where the unit's meaning is written down."""
        raise NotImplementedError

    def effect_key(self, uop: Any) -> Hashable | None:
        """What the steps of `kernel(uop)` depend on, data and addresses aside: uOPs of this unit with equal keys take
        the same steps, so a run without data need not walk through each of them (`traces`).

        None, which is always right, stands for "walk through it". It is the only right answer for a uOP that changes
        state on which later steps depend; such state belongs to the keys of the uOPs that depend on it.
        """
        return None

    @classmethod
    def is_keyed(cls) -> bool:
        """Whether `effect_key` speaks for this class's kernel, not for one that a subclass has replaced."""
        owner = next(c for c in cls.__mro__ if "kernel" in vars(c))
        return any("effect_key" in vars(c) for c in cls.__mro__ if issubclass(c, owner))
