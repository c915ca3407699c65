"""The memory of a unit."""

from __future__ import annotations

from ...base.errors import ProgramError
from ...machine.description import Memory, UnitSpec


def memory_of(unit: UnitSpec) -> Memory:
    """The memory of a unit. Raises `ProgramError` if it has none."""
    if unit.memory is None:
        raise ProgramError(f"{unit.name}: a {unit.kind} needs a memory")
    return unit.memory
