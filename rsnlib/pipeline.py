"""The pipeline from a PyTorch module to a program: capture, rewrite, match, fold, schedule, lower, pack.

`rsn.compile`, the command line and the backend of torch.compile all use it; they differ only in the fields of
`Pipeline`. A network that does not come from a module enters at `scheduler.build`, the second half.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import nn

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.overlay import Overlay
from ..isa.overlays import find
from ..scheduler.best import Best, schedule_named
from ..scheduler.build import Built, Progress, build, rebuild
from ..scheduler.graph import Gemm, LayerGraph
from ..scheduler.lower import Banks, lower, require_compilable
from ..scheduler.memory import RoomError, check_weights
from ..scheduler.norms import norms_at_loads
from ..scheduler.pack import check_lists
from ..scheduler.schedule import PAPER, Schedule
from ..scheduler.shards import opened
from ..scheduler.stages import chained, cuts_at, divided, raw_outputs
from .fold import fold, fold_shapes
from .graph_split import Examples, LimitError, Split, runs_in_pieces, split, split_again
from .integers import check_told, for_integers, smoothed, with_rows16
from .partition import Traced
from .passes import USUAL, Passes
from .stage_plan import plan
from .trace import trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Pipeline:
    """Settings and methods to compile modules into programs.

    overlay: the machine. schedule: a schedule, or `Best` to search for one. passes: of the compiler. lengths: number of
    rows of each sequence, where they differ; None where they do not. checks_rows: check with the example that the host
    part uses no rows beyond `lengths`; False leaves that to the first call. progress: called with the share of a
    search's budget that is spent, 0 to 1. smooth: calls for factors of SmoothQuant, for an overlay that computes in
    integers; None for no factors. rows16: for the same, products whose rows have 16 bits, as for
    `integers.with_rows16`. boards: how many the network is cut for; None: the fewest that hold it. cuts: instead, the
    activations behind which it is cut; None to choose. shards: how many boards compute each stage; chooses_shards: the
    number with the least modelled latency instead (`built_stages`). beside: other programs of the model, for which the
    boards must have room too, as `stage_plan.plan` says. Raises `UnsupportedError` for an overlay that nothing can be
    compiled for, and for `smooth` or `rows16` with an overlay that computes in floats.
    """

    overlay: Overlay
    schedule: Schedule | Best = PAPER
    passes: Passes = USUAL
    lengths: Sequence[int] | None = None
    checks_rows: bool = True
    progress: Progress = lambda share: None
    smooth: Sequence[Examples] | None = None
    rows16: Sequence[str] = ()
    boards: int | None = 1
    cuts: tuple[str, ...] | None = None
    shards: int = 1
    chooses_shards: bool = False
    beside: Sequence[Traced] = ()

    def __post_init__(self) -> None:
        require_compilable(self.overlay)
        for name, given in (("smooth", self.smooth is not None), ("rows16", len(self.rows16) > 0)):
            if given and not self.overlay.integers:
                raise UnsupportedError(f"{name}: overlay {self.overlay.name} does not compute in integers")

    @classmethod
    def named(
        cls,
        overlay: str,
        schedule: str | os.PathLike[str] | Schedule | Best = PAPER,
        *,
        budget_s: float = 30.0,
        passes: Passes | None = None,
        lengths: Sequence[int] | None = None,
        smooth: Sequence[Examples] | None = None,
        rows16: Sequence[str] = (),
        boards: int | None = 1,
        shards: int | None = 1,
    ) -> Pipeline:
        """Return a pipeline for an overlay and a schedule by name. overlay: name, or path of an overlay file. schedule:
        name, path of a file, or object. budget_s: seconds of the search for "best". passes: None for the usual ones.
        lengths, smooth, rows16, boards: as for the class. shards: how many boards compute each stage; None to choose.
        Raises `ProgramError` for an unknown overlay, `ScheduleError` for an unknown schedule."""
        chosen = schedule_named(schedule, budget_s)
        usual = passes or USUAL
        return cls(
            overlay=find(overlay),
            schedule=chosen,
            passes=usual,
            lengths=lengths,
            smooth=smooth,
            rows16=rows16,
            boards=boards,
            shards=shards or 1,
            chooses_shards=shards is None,
        )

    @cached_property
    def _passes(self) -> Passes:
        """The passes, with a check that the weights fit off-chip memory."""
        return _within(self.overlay, self.passes, self.boards)

    @property
    def without_search(self) -> Pipeline:
        """The same pipeline, but with the schedule "paper" instead of a search."""
        return self if isinstance(self.schedule, Schedule) else replace(self, schedule=PAPER)

    @property
    def of_shapes(self) -> Pipeline:
        """The same pipeline for programs without weights: it does not compute the values of weights, only their
        shapes."""
        return replace(self, passes=replace(self.passes, fold=fold_shapes))

    def observed(self, name: str, observer: Callable[[Any], None]) -> Pipeline:
        """Return the same pipeline, but `observer` is called with the result of pass `name`, before other observers."""
        others = self.passes.observe

        def observe(done: str, made: object) -> None:
            if done == name:
                observer(made)
            others(done, made)

        return replace(self, passes=replace(self.passes, observe=observe))

    # -- from a module to a network

    def trace(self, model: nn.Module, example: Examples, *, again: bool = False) -> Traced:
        """Capture, rewrite, match and fold a module into a network and a host part. example: inputs, by position or by
        name. again: as for `trace.trace`. Arguments that rotary positions depend on become constants. Raises like
        `trace.trace`, `RoomError` for more weights than off-chip memory holds, and `ScheduleError` for lengths that do
        not fit."""
        traced = trace(model, example, self._passes, again=again, fixes=True)
        if self.overlay.integers:
            check_told(traced)
        return self.completed(traced, example)

    def completed(self, traced: Traced, example: Examples) -> Traced:
        """Return a traced module with `lengths`, `smooth` and `rows16` applied, if there are any: the last step of
        `trace`. Raises as `Traced.with_lengths`, `integers.smoothed` and `integers.with_rows16` do."""
        if self.smooth is not None:
            traced = smoothed(traced, self.smooth)
        if self.rows16:
            traced = with_rows16(traced, self.rows16)
        if self.lengths is None:
            return traced
        return traced.with_lengths(self.lengths, example if self.checks_rows else None)

    def divide(self, model: nn.Module, example: Examples, *, whole: bool, again: bool = False) -> Traced | Split:
        """Trace a module as a whole or, unless `whole`, split it into pieces. example: inputs, by position or by name.
        again: if the module is traced as a whole, the result can be traced again with new weights (as for
        `trace.trace`). No argument becomes a constant. Raises like `graph_split.split`."""
        return split(model, example, self.check, whole=whole, passes=self._passes, again=again)

    def split_again(self, model: nn.Module, example: Examples) -> Split:
        """Split a module into pieces without a look at the whole, because another state of it was split before.
        Raises like `graph_split.split_again`."""
        return split_again(model, example, self.check, self._passes)

    # -- from a network to a program

    def build(self, network: LayerGraph) -> Built:
        """Schedule, lower and pack a network. Raises `LimitError` or `RoomError` (both `UnsupportedError`) for a
        network beyond a limit of the machine, `ScheduleError` for a schedule that does not fit, and `CompilerError` for
        a program that the compiler's own checks refuse."""
        try:
            return build(network, self.overlay, self.schedule, self.progress, self._passes)
        except RoomError:
            raise
        except UnsupportedError as error:
            raise LimitError(str(error)) from error

    def cut(self, traced: Traced) -> tuple[Traced, tuple[int, ...]]:
        """Return where a network is cut into stages, places as `scheduler.stages.stages` takes them; and the traced
        module, whose host part then computes what no stage does. Raises as `stage_plan.plan` and `build`,
        `UnsupportedError` for an overlay that computes in integers, and `ScheduleError` for a schedule with entries of
        single segments."""
        if self.boards == 1:
            return traced, ()
        if isinstance(self.schedule, Schedule) and self.schedule.segments:
            raise ScheduleError(
                f"boards: the schedule has {len(self.schedule.segments)} entries of single segments, which are for the "
                "whole network; each stage has a program of its own: leave them out, or compile for one board"
            )
        if self.overlay.integers:
            raise UnsupportedError(
                f"boards: overlay {self.overlay.name} computes in integers; results of a stage leave its board as "
                "float32, and the next would round them anew"
            )
        whole = traced
        network, joined = self._divisible(traced)
        traced = replace(traced, network=network, host=traced.host.of_columns(joined, network))
        if self.cuts is None:
            usual = self.without_search
            others = [self._divisible(other)[0] for other in self.beside]
            cuts = plan(network, self.overlay, self.boards, lambda part: usual.build(part).program, self.shards, others)
        else:
            cuts = cuts_at(traced.network, self.cuts)
        if not cuts and self.shards == 1:
            return whole, ()
        affine = {out.name: (out.scale, out.shift) for out in raw_outputs(traced.network, cuts)}
        return replace(traced, host=replace(traced.host, affine=affine)), cuts

    def _divisible(self, traced: Traced) -> tuple[LayerGraph, dict[str, tuple[str, ...]]]:
        """The network as it is cut, and the outputs that became several, as `divided` returns them."""
        network, joined = divided(chained(traced.network))
        return network if self.shards == 1 else opened(network, self.shards), joined

    def rebuild(self, built: Built, network: LayerGraph) -> Built:
        """Compile the same network with other weights, by the schedule already chosen. built: the program with the old
        weights. network: with the new ones. Raises as `scheduler.build.rebuild` does."""
        return rebuild(built, network, self.overlay, self._passes)

    def check(self, network: LayerGraph) -> None:
        """Check that a network can be lowered. Raises `UnsupportedError` if the machine cannot run it, `ScheduleError`
        if the schedule does not fit."""
        schedule = self.schedule if isinstance(self.schedule, Schedule) else PAPER
        check_lists(lower(network, self.overlay, schedule).kernels)

    # -- what is refused

    @contextmanager
    def proposing_pieces(
        self, given: Callable[[], tuple[nn.Module, Examples]], *, is_half: bool, command: str = ""
    ) -> Iterator[None]:
        """Context in which the error for a model that is refused as a whole also proposes pieces, if parts of it would
        run on the machine. given: returns the model, and inputs by position or by name. is_half: the model is a float32
        copy of the user's model. command: what is proposed instead of functions. Raises what the block raises; an
        `UnsupportedError` then names the proposal."""
        try:
            yield
        except UnsupportedError as error:
            paper = replace(self, schedule=PAPER)
            if not self._is_usual or not runs_in_pieces(error, *given(), paper.check):
                raise
            proposal = command or self._functions(is_half)
            raise UnsupportedError(f"{error}; {proposal}, runs the rest on the machine, in pieces") from error

    def _functions(self, is_half: bool) -> str:
        """How to call the functions that make pieces, with the options of this pipeline."""
        given = {} if self.overlay.name == "xnn" else {"overlay": self.overlay.name}
        if self.passes.experts is not None:
            given["experts"] = "static" if self.passes.experts.executor is None else "patched"
        named = "".join(f"{name}={value!r}, " for name, value in given.items())
        options = f", options={given!r}" if given else ""
        which = "model.float()" if is_half else "model"
        return f'rsn.compile(..., {named}whole=False), or torch.compile({which}, backend="rsn"{options})'

    @property
    def _is_usual(self) -> bool:
        """Whether torch.compile would compile the same way; it supports no lengths, other passes, or integers."""
        if self.overlay.integers:
            return False
        return self.lengths is None and (self.passes.rules, self.passes.lower) == (USUAL.rules, USUAL.lower)


def _within(overlay: Overlay, passes: Passes, boards: int | None) -> Passes:
    """The same passes for an overlay: its heads are laid out as it needs them, norms go where they cost least, and
    weights that exceed its bank, on one board, raise `RoomError` before folding copies them."""

    def observe(name: str, made: Any) -> None:
        if (
            boards == 1 and name == "match" and passes.fold in (fold, fold_shapes)
        ):  # another fold may need fewer weights
            # Two layers of the same weight may become one product.
            weights = {id(x.weight): x.weight.size for x in made.layers if isinstance(x, Gemm)}
            check_weights(sum(weights.values()), overlay, Banks.of(overlay).weights)
        passes.observe(name, made)

    if overlay.integers:
        return for_integers(passes)
    passes = replace(
        passes,
        norms_of_inputs=overlay.lanes is not None,  # X normalises as it sends
        keeps_caches=overlay.capability("keep_rows") is not None,
    )
    if passes.fold not in (fold, fold_shapes):
        return replace(passes, observe=observe)

    def folded(graph: LayerGraph) -> LayerGraph:
        weights, activates = passes.fold is fold, overlay.lanes is None
        return norms_at_loads(fold(graph, weights, overlay.head_pitch, activates=activates), overlay)

    return replace(passes, observe=observe, fold=folded)
