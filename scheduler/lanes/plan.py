"""The steps of a panel: which activation is brought into which bank of X, and which ones are stored.

A panel goes through all operations, or, where its rows attend to rows of other panels, up to the next attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .operations import Attend, Multiply, Operation, Sum


class Load(NamedTuple):
    """Bring an activation into a bank of X."""

    name: str
    bank: int


class Compute(NamedTuple):
    """An operation. bank: of x. residual: bank of the residual. to: the bank of the result, None for DDR. stored:
    whether the result is stored as well."""

    op: Operation
    bank: int
    residual: int | None
    to: int | None
    stored: bool


class Keys(NamedTuple):
    """Keys and values of an attention, to DDR."""

    op: Attend
    bank: int


Step = Load | Compute | Keys


class Planner:
    """Which activation lies in which bank, and which ones have to be stored."""

    def __init__(self, operations: Sequence[Operation], inputs: set[str], outputs: set[str], cut: bool) -> None:
        self.ops = operations
        self.inputs, self.outputs, self.cut = inputs, outputs, cut
        self.stored = set(inputs) | outputs
        self.prefer = 0
        """The bank to load into if both are free."""
        self.last: dict[str, int] = {}
        for i, op in enumerate(operations):
            for operand in (op.x, op.residual):
                if operand is not None:
                    self.last[operand.name] = i

    def sections(self) -> list[list[Operation]]:
        """The operations, cut in front of each attention."""
        out: list[list[Operation]] = [[]]
        for op in self.ops:
            if self.cut and isinstance(op, Attend):
                out.append([])
            out[-1].append(op)
        return out

    def plan(self, section: int, banks: list[str | None]) -> list[Step]:
        """The steps of a section. banks: what X holds when it begins; changed in place. Activations that must be stored
        are added to `stored`."""
        sections = self.sections()
        ops = sections[section]
        steps: list[Step] = []
        for op in ops:
            self._operation(op, banks, steps)
        if self.cut and section + 1 < len(sections):
            attend = sections[section + 1][0]
            assert isinstance(attend, Attend)
            bank = self._bring(attend.x.name, banks, steps, keep=())
            steps.append(Keys(attend, bank))
        return steps

    def _bring(self, name: str, banks: list[str | None], steps: list[Step], keep: tuple[str, ...]) -> int:
        """The bank of an activation, which is loaded if X does not have it."""
        if name in banks:
            return banks.index(name)
        self.stored.add(name)
        free = [b for b in range(2) if banks[b] is None or banks[b] not in keep]
        # rather what is not needed any more
        bank = min(free, key=lambda b: (banks[b] is not None, b != self.prefer))
        banks[bank] = name
        steps.append(Load(name, bank))
        return bank

    def _operation(self, op: Operation, banks: list[str | None], steps: list[Step]) -> None:
        residual = None if op.residual is None else op.residual.name
        x = op.x.name
        for b in range(2):
            if banks[b] is not None and self._ended(banks[b], op):
                banks[b] = None
        bank = self._bring(x, banks, steps, keep=() if residual is None or residual not in banks else (residual,))
        to: int | None = 1 - bank
        at: int | None = None
        if isinstance(op, Sum):
            to = bank
        elif isinstance(op, Multiply) and not op.stays:
            to = None
        if residual is not None:
            at = self._bring(residual, banks, steps, keep=(x,))
        if to is None:
            self.stored.add(op.y)
        else:
            lost = banks[to]
            if lost is not None and self._needed(lost, op):
                self.stored.add(lost)
            banks[to] = op.y
        steps.append(Compute(op, bank, at, to, op.y in self.stored))

    def _ended(self, name: str | None, op: Operation) -> bool:
        """Whether nothing from this operation on reads an activation."""
        return self.last.get(str(name), -1) < self.ops.index(op)

    def _needed(self, name: str, op: Operation) -> bool:
        """Whether a later operation reads an activation."""
        return self.last.get(name, -1) > self.ops.index(op)
