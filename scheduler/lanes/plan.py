"""The steps of a panel: which activation is brought into which bank of X, and which ones are stored.

A panel goes through all operations, or, where its rows attend to rows of other panels, up to the next attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...base.errors import UnsupportedError
from ...isa.lanes import SentNorm
from .operations import AddResidual, Attend, Operation, Project, SentOperand
from .panels import Residual


class PlannedLoad(NamedTuple):
    """Bring the activation `name` from DDR into a bank of X, 0 or 1."""

    name: str
    bank: int


class PlannedOperation(NamedTuple):
    """An operation on a panel. op: the operation. bank: the bank of X with its operand. norm: the norm that X applies
    as it sends the operand; None for none. residual: what is added; None for none. to: the bank of the result, None for
    DDR. stored: whether a result in a bank is stored in DDR as well."""

    op: Operation
    bank: int
    norm: SentNorm | None
    residual: Residual | None
    to: int | None
    stored: bool


class PlannedKeys(NamedTuple):
    """Compute keys and values of an attention, and store them in DDR. op: the attention. bank: the bank of X with its
    operand. norm: the norm that X applies as it sends the operand; None for none."""

    op: Attend
    bank: int
    norm: SentNorm | None


Step = PlannedLoad | PlannedOperation | PlannedKeys


class BankContents(NamedTuple):
    """The activation, by its name, that a bank of X holds. loaded: it came from DDR, where one with a norm of its own
    is stored normalised."""

    name: str
    loaded: bool


Banks = list[BankContents | None]
"""What the two banks of X hold."""


class Planner:
    """Plans which activation lies in which bank of X, and which ones have to be stored in DDR.

    operations: in execution order. stored: activations that are stored in any case, by name. norms: the norm that each
    activation is sent with, by its name. cut: a section ends in front of each attention.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        stored: Iterable[str],
        norms: Mapping[str, SentNorm | None],
        *,
        cut: bool,
    ) -> None:
        self.ops, self.norms, self.cut = operations, norms, cut
        self.stored = set(stored)
        self.prefer = 0
        """The bank to load into if both are free."""
        self.last: dict[str, int] = {}
        for i, op in enumerate(operations):
            for operand in (op.x, op.residual):
                if operand is not None:
                    self.last[operand.name] = i

    def sections(self) -> list[list[Operation]]:
        """The operations in execution order as lists: if the planner cuts, a new list begins at each attention; else
        there is one list."""
        out: list[list[Operation]] = [[]]
        for op in self.ops:
            if self.cut and isinstance(op, Attend):
                out.append([])
            out[-1].append(op)
        return out

    def plan(self, section: int, banks: Banks) -> list[Step]:
        """Return the steps of a section, in order. If the planner cuts and another section follows, the last step
        computes the keys and values of the attention with which that section begins.

        section: its number in `sections()`. banks: what the banks hold when the section begins; changed in place to
        what they hold at its end. Activations that must be stored are added to `stored`; if some of them are new, plans
        made earlier must be made again. Raises `UnsupportedError` for a residual with a norm of its own whose bank the
        result overwrites, if `norms` has no norm with which the residual could be stored."""
        sections = self.sections()
        steps: list[Step] = []
        for op in sections[section]:
            self._operation(op, banks, steps)
        if self.cut and section + 1 < len(sections):
            attend = sections[section + 1][0]
            assert isinstance(attend, Attend)
            bank = self._bring(attend.x.name, banks, steps, keep=())
            steps.append(PlannedKeys(attend, bank, self._norm(attend.x, banks[bank])))
        return steps

    def _norm(self, operand: SentOperand, held: BankContents | None) -> SentNorm | None:
        """The norm that X applies when it sends this operand; None if the stored rows are already normalised."""
        assert held is not None
        return None if held.loaded and self.norms.get(operand.name) is not None else operand.norm

    def _bring(self, name: str, banks: Banks, steps: list[Step], keep: tuple[str, ...]) -> int:
        """The bank that has an activation, which is loaded if none has it. keep: activations that must not be
        overwritten."""
        for bank, held in enumerate(banks):
            if held is not None and held.name == name:
                return bank
        self.stored.add(name)
        free = [b for b, held in enumerate(banks) if held is None or held.name not in keep]
        # rather what is not needed any more
        bank = min(free, key=lambda b: (banks[b] is not None, b != self.prefer))
        banks[bank] = BankContents(name, loaded=True)
        steps.append(PlannedLoad(name, bank))
        return bank

    def _normalised(self, op: Operation, residual: Residual, banks: Banks, steps: list[Step]) -> Residual:
        """A residual whose bank the result overwrites: its norm is applied before. The first tile of the result begins
        statistics of the bank, while the last ones of the residual still need the old ones."""
        added = op.residual
        assert added is not None
        if self.norms.get(added.name) is None:
            raise UnsupportedError(
                f"{op.y}: a residual with a norm of its own, beside rows that are not the residual's"
            )
        self.stored.add(added.name)
        banks[residual.bank] = BankContents(added.name, loaded=True)
        steps.append(PlannedLoad(added.name, residual.bank))
        return Residual(residual.bank, None)

    def _operation(self, op: Operation, banks: Banks, steps: list[Step]) -> None:
        for b, held in enumerate(banks):
            if held is not None and self.last.get(held.name, -1) < self.ops.index(op):
                banks[b] = None  # nothing reads it any more
        added = op.residual
        bank = self._bring(op.x.name, banks, steps, keep=() if added is None else (added.name,))
        norm = self._norm(op.x, banks[bank])
        residual: Residual | None = None
        if added is not None:
            at = self._bring(added.name, banks, steps, keep=(op.x.name,))
            residual = Residual(at, self._norm(added, banks[at]))
        to: int | None = 1 - bank
        if isinstance(op, AddResidual):
            to = bank
        elif isinstance(op, Project) and not op.stays:
            to = None
        if residual is not None and residual.norm is not None and residual.bank == to != bank:
            residual = self._normalised(op, residual, banks, steps)
        if to is None:
            self.stored.add(op.y)
        else:
            lost = banks[to]
            if lost is not None and self.last.get(lost.name, -1) > self.ops.index(op):
                self.stored.add(lost.name)
            banks[to] = BankContents(op.y, loaded=False)
        steps.append(PlannedOperation(op, bank, norm, residual, to, op.y in self.stored))
