"""`rsn.compile(..., whole=False)`: a model of which the machine runs pieces, and PyTorch the rest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from ...base.deferred import deferred
from ...hw.sim.machine import Run, joined
from ...rsnlib.experts.choice import EXECUTOR
from .compiled import Compiled
from .experts import PatchedExperts
from .file import ModelVariant, write
from .following import FollowingModule, Recipe
from .shared_bank import SharedBank

if TYPE_CHECKING:
    from ...rsnlib import explain_captured
    from ...rsnlib.capture import Interface
    from ...rsnlib.changes import Change
    from ...rsnlib.graph_split import Split
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.partition import Traced
    from ...rsnlib.precision import Borders
    from ...rsnlib.verification import Verification, Visible
else:
    explain_captured = deferred("rsn.rsnlib.explain_captured")


class CompiledPieces(FollowingModule):
    """A module in pieces: programs of the machine that run one after the other, with operators of PyTorch between them.

    split: the pieces. board: where their programs run. recipe, seen, borders, verification: as for `FollowingModule`.
    shared: the weights of the programs, which the board holds once. Raises `UnsupportedError` if no piece can be
    scheduled.
    """

    def __init__(
        self,
        split: Split,
        board: str,
        recipe: Recipe,
        seen: int,
        borders: Borders | None,
        shared: SharedBank,
        verification: Verification | None,
    ) -> None:
        super().__init__(recipe, seen, borders, verification)
        self._recipe: Recipe
        self._board, self._shared, self._joined = board, shared, shared.changes
        self._programs: list[Compiled | None] = []
        self._split, self._programs = self._built(split)

    def _built(self, split: Split) -> tuple[Split, list[Compiled | None]]:
        """Build the programs of pieces, with the schedules of those that are there."""
        before, number = [program for program in self._programs if program is not None], count()

        def build(traced: Traced) -> Compiled:
            i = next(number)
            old = before[i].built if i < len(before) else None
            built = self._recipe.build(traced) if old is None else self._recipe.rebuild(old, traced)
            return Compiled(traced, built, self._board, shared=self._shared)

        return split.built(build)

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None) -> Any:
        return self._split.run(self._programs, args, kwargs)

    def _take_over(self, change: Change) -> None:
        split, programs = self._built(self._recipe.split_again())
        self._shared.changed(self._joined)
        for program in self._on_machine:
            program.close()
        self._split, self._programs = split, programs

    @property
    def _interface(self) -> Interface:
        return self._split.interface

    @property
    def _made(self) -> Split:
        return self._split

    @property
    def _on_machine(self) -> list[Compiled]:
        return [program for program in self._programs if program is not None]

    @property
    def programs(self) -> tuple[Compiled, ...]:
        """The programs of the pieces on the machine, in order, compiled again if the model has changed; raises as `at`.
        Each can be explained, timed and compared by itself."""
        with self._turn:
            self._follow()
            return tuple(self._on_machine)

    @property
    def reasons(self) -> list[str]:
        """Why the model is cut, and parts of it run in PyTorch, as texts."""
        return self._split.reasons

    @property
    def depth(self) -> int:
        """About how many layers of a transformer the machine runs in all pieces (`LayerGraph.depth`)."""
        return sum(program.depth for program in self._on_machine)

    @property
    def shown_rows(self) -> Sequence[Visible]:
        """The rows that the masks of the latest call showed, for each piece that has masks."""
        return [shown for program in self._on_machine for shown in program.shown_rows]

    @property
    def last_run(self) -> Run | None:
        """Time, traffic and utilization of the latest call's runs, one behind the other, without what PyTorch takes;
        None before the first call."""
        runs = [program.last_run for program in self._on_machine if program.last_run is not None]
        return joined(runs) if runs else None

    @property
    def experts(self) -> tuple[PatchedExperts, ...]:
        """As for `Compiled`: the layers of experts with programs for each call, of all pieces, in order."""
        with self._turn:
            self._follow()
            found: list[Any] = []
            for piece, program in zip(self._split.pieces, self._programs, strict=True):
                own = [node.meta.get(EXECUTOR) for node in piece.nodes] if program is None else program.experts
                found += own
            return tuple(x for x in found if isinstance(x, PatchedExperts))

    def explain(self) -> str:
        """Return a table, as text, of the modules, with their shares of the FLOPs and of the modelled time, and then of
        the pieces: where each runs, why, and why the model is cut there. Raises as `at`."""
        with self._turn:
            self._follow()
            times = [None if program is None else program.modelled_layers() for program in self._programs]
            return explain_captured.explain_pieces(self._split, times)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file (`.rsnmodel`) for `rsn.load`: the programs, their weights, and the operators that
        PyTorch runs. Raises `UnsupportedError`, naming the operator, if a file cannot hold one of these operators, and
        `OSError` if the file cannot be written."""
        with self._turn:
            self._follow()
            write(path, [self.part()], None, self._borders)

    def part(self, sizes: tuple[int, ...] = ()) -> ModelVariant:
        """Return this model as a part of a model file. sizes: those that it is for, in a shape family; () for a model
        alone. Raises as `at`."""
        with self._turn:
            self._follow()
            verified = None if self._verification is None else self._verification.when(self._verified)
            programs = tuple(None if program is None else program.saved() for program in self._programs)
            return ModelVariant(sizes, programs, self._split, verified)

    def _open(self) -> None:
        self._joined = self._shared.changes
        for program in self._on_machine:
            program.open()

    def close(self) -> None:
        """Release the board for good: a call raises `BoardError` from then on."""
        for program in self._on_machine:
            program.close()

    def __repr__(self) -> str:
        own = len(self._on_machine)
        names = ", ".join(dict.fromkeys(program.built.program.overlay.name for program in self._on_machine))
        return f"<rsn.CompiledPieces: {own} of {len(self._programs)} pieces on {names}>"
