"""Workloads: where the units of a machine get their uOPs from in a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import ProgramError
from .balance import UopTable
from .description import StreamNetwork

if TYPE_CHECKING:
    from .executor import ProcessNetwork
    from .traces import TraceItems, TraceTable

MAX_UOPS = 1_000_000
"""Largest number of uOPs of a workload whose words a deadlock report counts: 0.2 s if few of them are distinct."""


class Workload(ABC):
    """The source of the uOPs of a run, e.g. lists or an instruction path."""

    @abstractmethod
    def attach(self, net: ProcessNetwork) -> None:
        """Add each unit to `net` (`spawn_unit`), and the channels and processes that deliver its uOPs."""

    @abstractmethod
    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        """Return the traces of every process that `attach` adds, by name. Raises `UntraceableError` if they are not
        known before the run.
        """

    @abstractmethod
    def fifo_depths(self, machine: StreamNetwork) -> list[int]:
        """Return the capacities, in slots, of the channels that `attach` adds, in its order, if the workload runs on
        `machine`.
        """

    @abstractmethod
    def uop_table(self, machine: StreamNetwork) -> UopTable:
        """Return all uOPs, to count the words that they send and receive.

        Raises `ProgramError` if they are not known before the run, or are too many.
        """

    @abstractmethod
    def where(self, unit: str, origin: int) -> str:
        """Return the place of a uOP as text, for a program without source lines. origin: packet or list position."""


class UopLists(Workload):
    """Lists of uOPs by unit name, without an instruction path. Units without a list do nothing."""

    def __init__(self, uops: Mapping[str, Iterable[Any]]) -> None:
        self.uops = uops

    def attach(self, net: ProcessNetwork) -> None:
        for spec in net.machine.units:
            net.spawn_unit(spec.name, net.feed(spec.name, self.uops.get(spec.name, ())))

    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        lists: dict[str, TraceItems] = {}
        for u in table.net.machine.units:
            lists |= table.unit(u.name).feed(self.uops.get(u.name, ()))
        return lists

    def fifo_depths(self, machine: StreamNetwork) -> list[int]:
        return []

    def uop_table(self, machine: StreamNetwork) -> UopTable:
        lists = {unit: uops for unit, uops in self.uops.items() if isinstance(uops, Sequence)}
        if len(lists) < len(self.uops):
            raise ProgramError("the uOPs of a unit come from an iterator, not from a list")
        if sum(map(len, lists.values())) > MAX_UOPS:
            raise ProgramError(f"the program has more than {MAX_UOPS} uOPs")
        distinct: list[Any] = []
        numbers: dict[tuple[type, Any], int] = {}

        def number(uop: Any) -> int:
            try:
                found = numbers.setdefault((type(uop), uop), len(distinct))  # named tuples of two types may be equal
            except TypeError:  # uOPs without a format need not be hashable
                found = len(distinct)
            if found == len(distinct):
                distinct.append(uop)
            return found

        kinds = {unit: np.array([number(uop) for uop in uops], np.int64) for unit, uops in lists.items()}
        return UopTable(machine, distinct, kinds, {unit: np.arange(len(k)) for unit, k in kinds.items()})

    def where(self, unit: str, origin: int) -> str:
        return f"uOP {origin}"
