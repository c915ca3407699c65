"""The one path from a PyTorch module to a program: capture, rewrite, match, fold, schedule, lower, pack.

`rsn.compile`, the command line and the backend of torch.compile all take it. What differs between them is in the fields
of `Pipeline`. A network that comes from no module enters at `scheduler.build`, which is the second half.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from ..base.errors import UnsupportedError
from ..isa.overlay import Overlay
from ..isa.overlays import find
from ..scheduler.best import Best, schedule_named
from ..scheduler.build import Built, Progress, build, rebuild
from ..scheduler.graph import LayerGraph
from ..scheduler.lower import lower
from ..scheduler.room import RoomError
from ..scheduler.schedule import PAPER, Schedule
from .graph_split import Examples, LimitError, Split, runs_in_pieces, split
from .partition import Traced
from .passes import USUAL, Passes, within
from .trace import trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipeline:
    """How modules become programs.

    overlay: the machine. schedule: one, or `Best` to search for one. passes: the compiler's. lengths: of the sequences,
    where they differ. checks_rows: whether PyTorch's part is checked, with the example, to use no rows beyond
    `lengths`; otherwise the first call does that. progress: told the share of a search's budget that is spent.
    """

    overlay: Overlay
    schedule: Schedule | Best = PAPER
    passes: Passes = USUAL
    lengths: Sequence[int] | None = None
    checks_rows: bool = True
    progress: Progress = lambda share: None

    @classmethod
    def named(
        cls,
        overlay: str,
        schedule: str | os.PathLike[str] | Schedule | Best = PAPER,
        *,
        budget_s: float = 30.0,
        passes: Passes | None = None,
        lengths: Sequence[int] | None = None,
    ) -> Pipeline:
        """For an overlay and a schedule by name. Raises `ProgramError` or `ScheduleError` for an unknown one."""
        chosen = schedule_named(schedule, budget_s)
        return cls(overlay=find(overlay), schedule=chosen, passes=passes or USUAL, lengths=lengths)

    @cached_property
    def _passes(self) -> Passes:
        """With the check that the weights have room on the machine."""
        return within(self.overlay, self.passes)

    @property
    def without_search(self) -> Pipeline:
        """With the schedule "paper" where one would be searched for."""
        return self if isinstance(self.schedule, Schedule) else replace(self, schedule=PAPER)

    def observed(self, name: str, observer: Callable[[Any], None]) -> Pipeline:
        """Where `observer` is also shown what the pass of this name has made, before others are."""
        tell = self.passes.observe

        def observe(done: str, made: object) -> None:
            if done == name:
                observer(made)
            tell(done, made)

        return replace(self, passes=replace(self.passes, observe=observe))

    # -- from a module to a network

    def trace(self, model: nn.Module, example: Examples, *, again: bool = False) -> Traced:
        """Capture, rewrite, match, fold: the machine's network and PyTorch's part. Raises as `trace.trace`, and
        `ScheduleError` for lengths that do not fit."""
        return self.with_lengths(trace(model, example, self._passes, again=again), example)

    def with_lengths(self, traced: Traced, example: Examples) -> Traced:
        """The last step of `trace`."""
        if self.lengths is None:
            return traced
        return traced.with_lengths(self.lengths, example if self.checks_rows else None)

    def divide(self, model: nn.Module, example: tuple[Any, ...], *, whole: bool) -> Traced | Split:
        """As `trace`, but in pieces what cannot be had in one, unless `whole`. Raises as `graph_split.split`."""
        return split(model, example, self.check, whole=whole, passes=self._passes)

    # -- from a network to a program

    def build(self, network: LayerGraph) -> Built:
        """Schedule, lower, pack. Raises `LimitError` or `RoomError`, which are `UnsupportedError`, for what is beyond a
        limit of the machine, and `ScheduleError`."""
        try:
            return build(network, self.overlay, self.schedule, self.progress, self._passes)
        except RoomError:
            raise
        except UnsupportedError as error:
            raise LimitError(str(error)) from error

    def rebuild(self, built: Built, network: LayerGraph) -> Built:
        """The same program for a network with other weights (`scheduler.build.rebuild`)."""
        return rebuild(built, network, self.overlay, self._passes)

    def check(self, network: LayerGraph) -> None:
        """Whether a network can be put on the machine. Raises `UnsupportedError` or `ScheduleError`."""
        lower(network, self.overlay, self.schedule if isinstance(self.schedule, Schedule) else PAPER)

    # -- what is refused

    @contextmanager
    def proposing_pieces(self, model: nn.Module, example: Examples, *, is_half: bool) -> Iterator[None]:
        """Where `model` is refused as a whole in this context, and torch.compile would run some of it on the machine,
        say so. is_half: `model` is a copy in float32 of the user's model."""
        try:
            yield
        except UnsupportedError as error:
            paper = replace(self, schedule=PAPER)
            if not self._is_usual or not runs_in_pieces(error, model, example, paper.check):
                raise
            options = "" if self.overlay.name == "xnn" else f", options={{'overlay': '{self.overlay.name}'}}"
            given = "model.float()" if is_half else "model"
            way_out = f'torch.compile({given}, backend="rsn"{options}) runs the rest on the machine, in pieces'
            raise UnsupportedError(f"{error}; {way_out}") from error

    @property
    def _is_usual(self) -> bool:
        """Whether torch.compile, which knows neither lengths nor other passes, does the same."""
        return self.lengths is None and (self.passes.rules, self.passes.lower) == (USUAL.rules, USUAL.lower)
