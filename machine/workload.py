"""What the units of a machine do in a run: lists of uOPs, or whatever else brings them their uOPs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import ProgramError
from .balance import UopTable
from .description import Machine

if TYPE_CHECKING:
    from .executor import ProcessNetwork
    from .traces import Items, TraceTable

MAX_UOPS = 1_000_000
"""uOPs of a workload that a report counts. Where few of them are distinct, so many take 0.2 s."""


class Workload(ABC):
    """Where the uOPs of a run come from."""

    @abstractmethod
    def attach(self, net: ProcessNetwork) -> None:
        """Add one process for each unit to `net`, and the channels and processes that bring it its uOPs."""

    @abstractmethod
    def trace(self, table: TraceTable) -> Mapping[str, Items]:
        """The traces of every process that `attach` adds, by its name. Raises `UntraceableError`."""

    @abstractmethod
    def fifo_depths(self, machine: Machine) -> list[int]:
        """Capacities on `machine` of the channels that `attach` adds, in its order."""

    @abstractmethod
    def uop_table(self, machine: Machine) -> UopTable:
        """All uOPs, to count what they send and receive. Raises `ProgramError` where they are not known or too many."""

    @abstractmethod
    def where(self, unit: str, origin: int) -> str:
        """The place of a uOP, where no source is known."""


class UopLists(Workload):
    """uOPs by unit, without an instruction path: what there is before packets are made. Other units do nothing."""

    def __init__(self, uops: Mapping[str, Iterable[Any]]) -> None:
        self.uops = uops

    def attach(self, net: ProcessNetwork) -> None:
        for spec in net.machine.units:
            net.spawn(spec.name, net.feed(spec.name, self.uops.get(spec.name, ())))

    def trace(self, table: TraceTable) -> Mapping[str, Items]:
        return {u.name: table.unit(u.name).feed(self.uops.get(u.name, ())) for u in table.net.machine.units}

    def fifo_depths(self, machine: Machine) -> list[int]:
        return []

    def uop_table(self, machine: Machine) -> UopTable:
        lists = {unit: uops for unit, uops in self.uops.items() if isinstance(uops, Sequence)}
        if len(lists) < len(self.uops):
            raise ProgramError("the uOPs were made up on the way")
        if sum(map(len, lists.values())) > MAX_UOPS:
            raise ProgramError(f"more than {MAX_UOPS} uOPs")
        distinct: list[Any] = []
        numbers: dict[tuple[type, Any], int] = {}

        def number(uop: Any) -> int:
            try:
                found = numbers.setdefault((type(uop), uop), len(distinct))  # named tuples of two types may be equal
            except TypeError:  # not every uOP is hashable where no format describes it
                found = len(distinct)
            if found == len(distinct):
                distinct.append(uop)
            return found

        kinds = {unit: np.array([number(uop) for uop in uops], np.int64) for unit, uops in lists.items()}
        return UopTable(machine, distinct, kinds, {unit: np.arange(len(k)) for unit, k in kinds.items()})

    def where(self, unit: str, origin: int) -> str:
        return f"uOP {origin}"
