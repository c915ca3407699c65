"""Registers of a unit, as its instructions set them: one instruction where values that are used change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ...fields import Record
from ...work import LengthField, Patched


class Registers:
    """The registers that one format sets, in the order of the unit's instructions.

    values: those that differ from the power-on values, which are the defaults of `record`.
    """

    def __init__(self, record: type[Record], **values: Any) -> None:
        self.record = record
        power_on = record()
        self.values: dict[str, Any] = {x.name: getattr(power_on, x.name) for x in record.FIELDS} | values

    def require_power_on(self, unit: UnitSpec, needed: Mapping[str, Any]) -> None:
        """Raise `ProgramError` if work needs other values: for units without these registers."""
        differ = [name for name, value in needed.items() if self.values[name] != value]
        if differ:
            raise ProgramError(
                f"{unit.name}: the work needs {' and '.join(differ)} of {self.record.NAME}, which this overlay "
                "does not have: compile for one that has (--overlay xnn)"
            )

    def set(self, needed: Mapping[str, Any]) -> Iterator[Patched]:
        """Yield the instruction after which all `needed` registers have their values; none if they have them."""
        if any(self.values[name] != value for name, value in needed.items()):
            self.values |= needed
            yield self.made()

    def made(self, **once: Any) -> Patched:
        """The instruction with the values of now, and with values that hold for this instruction alone."""
        values = self.values | once
        lengths = tuple((name, value) for name, value in values.items() if isinstance(value, LengthField))
        return Patched(self.record(**values | dict.fromkeys((name for name, _ in lengths), 0)), lengths)
