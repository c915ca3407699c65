"""The backend `rsn` of torch.compile: runs captured graphs on the machine, and what it cannot run in PyTorch.

    model = torch.compile(model, backend="rsn", options={"schedule": "best", "fallback": "error"})
    print(rsn.explain(model, example_inputs))

torch captures one or more graphs of a model. A graph is compiled at its first call, and again at the first call with
other shapes. If the machine cannot run a graph as a whole, the graph is split, and PyTorch runs the pieces that the
machine cannot run. A `Fallback` warning gives the reasons; with `fallback="error"` there is an error instead.
The logger `rsn` writes one line at level INFO for each graph that is compiled.

`rsnlib.captured_graph` decides which parts of a graph run on the machine; this module compiles and runs them.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch.fx import GraphModule

from ...base.errors import BoardError, CacheFull, ProgramError, ScheduleError, TensorError, UnsupportedError
from ...isa.overlays import find
from ...rsnlib import explain_captured
from ...rsnlib.captured_graph import CapturedGraph, CompiledWeights
from ...rsnlib.experts.choice import Experts
from ...rsnlib.fallback import Fallback, Refusal, told, watch_recompile_limit
from ...rsnlib.graph_split import Split
from ...rsnlib.partition import Traced
from ...rsnlib.pipeline import Pipeline
from ...rsnlib.trace import NoProductError
from ...rsnlib.verification import Verification, VerifiedCall, verify_named
from ...scheduler.best import schedule_named
from ..boards.named import IN_PROCESS, REAL
from ..boards.profile import PROFILES, find_profile
from ..boards.ssh import Target
from ..forks import forget_in_children
from .compiled import Compiled, modelled_layers
from .experts import plan
from .shared_bank import SharedBank

REMEMBERED = 8
"""Number of programs kept for each graph: one per set of shapes, those used last."""

log = logging.getLogger("rsn")


@dataclass(frozen=True)
class BackendOptions:
    """The options of the backend. board, overlay, schedule, checksums, experts, verify: as for `rsn.compile`; what is
    compared is a graph that torch captured, with what PyTorch computes for it.

    fallback: what to do with a graph that the machine cannot run, or not as a whole. "warn": run it, or the pieces that
    the machine cannot run, in PyTorch, with a warning. "error": raise the reason: `UnsupportedError`, `TensorError` or
    `ScheduleError`.
    """

    board: str = "sim"
    overlay: str = "xnn"
    schedule: Any = "paper"
    fallback: str = "warn"
    checksums: bool = False
    experts: Any = None
    verify: str = "first"

    def pipeline(self) -> Pipeline:
        """Check the options, and return the pipeline that compiles graphs with them. Raises `UnsupportedError`, also
        with fallback="warn", for a value with which no graph could be compiled."""
        if self.fallback not in ("warn", "error"):
            raise UnsupportedError(f'fallback {self.fallback!r}: "warn" or "error"')
        verify_named(self.verify)
        try:
            schedule = schedule_named(self.schedule)
        except ScheduleError as e:
            raise UnsupportedError(f"option schedule: {e}") from None
        try:
            pipeline = Pipeline(overlay=find(self.overlay))
        except (ProgramError, UnsupportedError) as e:
            raise UnsupportedError(f"option overlay: {e}") from None
        if pipeline.overlay.integers:
            raise UnsupportedError(
                f"option overlay: {pipeline.overlay.name} computes in integers, which pieces of a model do not hand "
                "over; rsn.compile takes models for it as a whole"
            )
        try:
            _check_board(self.board)
        except BoardError as e:
            raise UnsupportedError(f"option board: {e}") from None
        pipeline = replace(pipeline, schedule=schedule)
        if self.experts is None:
            return pipeline
        chosen = plan(Experts.of(self.experts), pipeline.overlay, schedule, self.board, is_required=False)
        return replace(pipeline, passes=replace(pipeline.passes, experts=chosen))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> BackendOptions:
        """Return the options of `given`, by name; the others have their defaults. Raises `UnsupportedError` for an
        unknown name."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UnsupportedError(f"no option {name!r} of backend rsn; there are {', '.join(known)}")
        return cls(**given)


def _check_board(name: str) -> None:
    """Raise `BoardError` if there is no board of this name. Opens no board."""
    if name in ("sim", "csim"):
        return
    if name.startswith("ssh:"):
        Target.parse(name)
        return
    profile, _, device = name.partition("@")
    kind = device.partition(":")[0]
    if profile not in PROFILES and not profile.endswith(".toml"):
        raise BoardError(f"no board {name!r}; there are sim, csim, {', '.join(PROFILES)}, and profiles (.toml)")
    find_profile(profile)
    if kind and kind not in (*REAL, *IN_PROCESS):
        raise BoardError(f"no device {device!r}; there are {', '.join((*REAL, *IN_PROCESS))}")


def backend(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """Make what runs a graph that torch.compile has captured; torch.compile calls this function. Returns the function
    to call instead of the graph.

    example_inputs: ignored, because a graph is compiled for the arguments of its calls. options: by name, the fields of
    `BackendOptions`. others: ignored. Raises `UnsupportedError` for unknown options and wrong values. A call of what is
    returned raises `Refusal`'s errors only with fallback="error", and `WrongResultError` if its verification fails.
    """
    watch_recompile_limit()
    chosen = BackendOptions.of(options or {})
    return _Programs(CapturedGraph(graph, chosen.pipeline(), chosen.fallback == "error"), chosen)


def explain(model: Callable[..., Any], example_inputs: tuple[Any, ...] | dict[str, Any]) -> str:
    """Explain where the parts of a model compiled by torch.compile would run, and why, as text.

    example_inputs: by position or by name. PyTorch runs the model twice; times are those of the simulator. Raises like
    `rsnlib.explain_captured.explain`.
    """
    return explain_captured.explain(model, example_inputs, modelled_layers)


@dataclass
class _ProgramOfShapes:
    """What runs a graph for arguments of some shapes. weights: that it was compiled with. shared: the bank that has
    them on the board. parts: the programs of the machine. verification: of calls. joined: `shared.changes` when the
    weights were last seen to be the same."""

    run: Callable[..., Any]
    weights: CompiledWeights
    shared: SharedBank
    parts: list[Compiled]
    verification: Verification
    joined: int = 0


class _Programs:
    """The function that torch calls instead of a captured graph. It keeps the programs of the graph by the shapes and
    types of the arguments that they were compiled for, and compiles again if weights have changed."""

    def __init__(self, graph: CapturedGraph, options: BackendOptions) -> None:
        self._graph, self._options = graph, options
        self._programs: OrderedDict[Any, _ProgramOfShapes] = OrderedDict()
        self._turn = threading.RLock()
        forget_in_children(self)

    def __call__(self, *args: Any) -> Any:
        graph = self._graph
        key = graph.key(args)
        watch = explain_captured.watching.get()
        if watch is not None:
            return watch.called(graph, key, args)
        weights = graph.weights(args)
        with self._turn:
            made = self._programs.get(key)
            if made is None or not made.weights.are(weights):
                shared = SharedBank.of(weights, self._options.board, self._options.overlay)
                if made is not None:
                    made.shared.changed(made.joined)
                self._programs.pop(key, None)
                # Before compilation reads the weights, so that every later write is noticed.
                kept = CompiledWeights(weights, self._options.checksums)
                parts: list[Compiled] = []
                run = self._compiled(args, shared, parts)
                mode = verify_named(self._options.verify)
                verification = Verification(mode, graph.reference, None, lambda: bool(parts))
                made = _ProgramOfShapes(run, kept, shared, parts, verification)
                self._programs[key] = made
                while len(self._programs) > REMEMBERED:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
            made.joined = made.shared.changes
        verified = made.verification.begin(made, args, {})
        try:
            result = graph.with_counters(made.run(*args), args)
        except CacheFull:
            raise
        except TensorError as e:  # e.g. a mask of another kind than in the first call
            if graph.whole:
                raise
            warnings.warn(f"this call of the graph runs in PyTorch: {e}", Fallback, stacklevel=2)
            return graph.in_pytorch(*args)
        if verified is not None:
            self._check(made, verified, result, args)
        return result

    def _check(self, made: _ProgramOfShapes, verified: VerifiedCall, result: Any, args: Sequence[Any]) -> None:
        """End the verification of a call. Raises `WrongResultError`."""
        depth = sum(part.depth for part in made.parts)
        visible = [shown for part in made.parts for shown in part.shown_rows]
        verified.check(result, tuple(args), {}, layers=depth, visible=visible)
        made.verification.passed(made)

    def forget(self) -> None:
        """Replace the lock after a fork, because another thread may have held it."""
        self._turn = threading.RLock()

    def _compiled(self, args: Sequence[Any], shared: SharedBank, parts: list[Compiled]) -> Callable[..., Any]:
        """Compile the graph for the shapes of these arguments, and add its programs to `parts`. Returns the function
        that runs it, in PyTorch if nothing of it can run on the machine. Raises one of `Refusal` if the graph must run
        as a whole and cannot."""
        graph = self._graph
        try:
            run, reasons = self._built(graph.divide(args), shared, parts)
        except NoProductError as e:  # nothing in it for the machine: no warning is needed
            log.info("%s: in PyTorch: %s", graph.title, e)
            return graph.in_pytorch
        except Refusal as e:
            if graph.whole:
                raise
            log.info("%s: in PyTorch: %s", graph.title, e)
            warnings.warn(f"this graph runs in PyTorch: {e}", Fallback, stacklevel=3)
            return graph.in_pytorch
        if reasons:
            warnings.warn(f"a part of this graph runs in PyTorch: {told(reasons)}", Fallback, stacklevel=3)
        taken = graph.taken(args)
        return lambda *given: run(*(given[i] for i in taken))

    def _built(
        self, found: Traced | Split, shared: SharedBank, parts: list[Compiled]
    ) -> tuple[Callable[..., Any], list[str]]:
        """Build the programs of a traced graph or of the pieces of a split one.

        Returns the function that runs it, and the reasons why parts of it run in PyTorch or it was split; there are
        none for a traced graph. Raises one of `Refusal` if nothing can run on the machine.
        """
        title = self._graph.title
        if isinstance(found, Traced):
            made = self._program(found, shared)
            parts.append(made)
            log.info("%s: on the machine: %s, %d layers", title, found.network.size, len(found.network.layers))
            return made, []
        split, programs = found.built(lambda traced: self._program(traced, shared))
        parts += [program for program in programs if program is not None]
        log.info("%s: %d of %d pieces on the machine: %s", title, len(parts), len(programs), "; ".join(split.reasons))
        return lambda *given: split.run(programs, given, {}), split.reasons

    def _program(self, traced: Traced, shared: SharedBank) -> Compiled:
        """Build the program of a traced graph or piece. Raises one of `Refusal` if it cannot be scheduled."""
        built = self._graph.pipeline.build(traced.network)
        return Compiled(traced, built, board=self._options.board, shared=shared)
