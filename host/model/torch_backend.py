"""`torch.compile(model, backend="rsn")`: what torch captures runs on the machine, or in PyTorch, which is said.

    model = torch.compile(model, backend="rsn", options={"schedule": "best", "fallback": "error"})
    print(rsn.explain(model, example_inputs))

torch captures one or several graphs of a model; each is compiled when it is first called, anew for other shapes. A
graph that the machine cannot run in one is cut where the machine cannot go on; what stays in PyTorch stays with a
`Fallback` warning that says why, or is an error. The logger `rsn` has a line at INFO for each graph that is compiled.

What of a graph runs where is decided in `rsnlib.captured_graph`; here it runs.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError, ProgramError, ScheduleError, TensorError, UnsupportedError
from ...rsnlib.fallback import Fallback, Refusal, watch_recompile_limit
from ..forks import forget_in_children

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from ...rsnlib.captured_graph import CapturedGraph, Weights
    from ...rsnlib.graph_split import Split
    from ...rsnlib.partition import Traced
    from ...rsnlib.pipeline import Pipeline

REMEMBERED = 8
"""Programs that are kept of a graph, for as many shapes."""
TOLD = 3
"""Reasons that a warning gives; `explain` gives all."""

log = logging.getLogger("rsn")


@dataclass(frozen=True)
class Options:
    """board, overlay, schedule, checksums: as for `rsn.compile`. fallback: what becomes of a graph that the machine
    cannot run: "warn" leaves it, or what of it must be, to PyTorch and says so, "error" raises `UnsupportedError`."""

    board: str = "sim"
    overlay: str = "xnn"
    schedule: Any = "paper"
    fallback: str = "warn"
    checksums: bool = False

    def pipeline(self) -> Pipeline:
        """How graphs are compiled. Raises `UnsupportedError` for what no graph could be compiled with: that is nothing
        to fall back from."""
        from ...isa.overlays import find
        from ...rsnlib.pipeline import Pipeline
        from ...scheduler.best import schedule_named
        from ...scheduler.graph import LayerGraph

        if self.fallback not in ("warn", "error"):
            raise UnsupportedError(f'fallback {self.fallback!r}: "warn" or "error"')
        try:
            schedule = schedule_named(self.schedule)
        except ScheduleError as e:
            raise UnsupportedError(f"option schedule: {e}") from None
        try:
            pipeline = Pipeline(overlay=find(self.overlay))
            pipeline.check(LayerGraph(1, 1, {}, (), ()))
        except (ProgramError, UnsupportedError) as e:
            raise UnsupportedError(f"option overlay: {e}") from None
        try:
            _check_board(self.board)
        except BoardError as e:
            raise UnsupportedError(f"option board: {e}") from None
        return replace(pipeline, schedule=schedule)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Raises `UnsupportedError` for an unknown option."""
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise UnsupportedError(f"no option {name!r} of backend rsn; there are {', '.join(known)}")
        return cls(**given)


def _check_board(name: str) -> None:
    """Whether there is one of this name; none is opened. Raises `BoardError`."""
    from ..boards.named import IN_PROCESS, REAL
    from ..boards.profile import PROFILES, find_profile
    from ..boards.ssh import Target

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
    if kind and kind not in REAL | IN_PROCESS:
        raise BoardError(f"no device {device!r}; there are {', '.join(REAL | IN_PROCESS)}")


def backend(
    graph: GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, **others: Any
) -> Callable[..., Any]:
    """As torch.compile asks for it. Raises `UnsupportedError` for options that are unknown or wrong."""
    from ...rsnlib.captured_graph import CapturedGraph

    watch_recompile_limit()
    chosen = Options.of(options or {})
    return _Programs(CapturedGraph(graph, chosen.pipeline(), chosen.fallback == "error"), chosen)


def explain(model: Callable[..., Any], example_inputs: tuple[Any, ...] | dict[str, Any]) -> str:
    """As `rsnlib.explain_captured.explain`, with the times of the simulator."""
    from ...rsnlib import explain_captured
    from .compiled import modelled_layers

    return explain_captured.explain(model, example_inputs, modelled_layers)


class _Programs:
    """What torch calls for a captured graph: its programs, by the shapes of what it was called with."""

    def __init__(self, graph: CapturedGraph, options: Options) -> None:
        self._graph, self._options = graph, options
        self._programs: OrderedDict[Any, tuple[Callable[..., Any], Weights]] = OrderedDict()
        self._turn = threading.RLock()
        forget_in_children(self)

    def __call__(self, *args: Any) -> Any:
        from ...rsnlib.captured_graph import Weights
        from ...rsnlib.explain_captured import watching

        graph = self._graph
        key = graph.key(args)
        watch = watching.get()
        if watch is not None:
            return watch.called(graph, key, args)
        weights = graph.weights(args)
        with self._turn:
            program, compiled_with = self._programs.get(key, (None, None))
            if program is None or compiled_with is None or not compiled_with.are(weights):
                self._programs.pop(key, None)
                kept = Weights(weights, self._options.checksums)  # before they are read
                program = self._compiled(args)
                self._programs[key] = program, kept
                while len(self._programs) > REMEMBERED:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
        try:
            return program(*args)
        except TensorError as e:  # such as a mask of another kind than in the first call
            if graph.whole:
                raise
            warnings.warn(f"this call of the graph runs in PyTorch: {e}", Fallback, stacklevel=2)
            return graph.in_pytorch(*args)

    def forget(self) -> None:
        """In a forked process: the turn may have been another thread's."""
        self._turn = threading.RLock()

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        from ...rsnlib.trace import NoProductError

        graph = self._graph
        try:
            run, reasons = self._built(graph.divide(args))
        except NoProductError as e:  # what lies between, and no reason to warn
            log.info("%s: in PyTorch: %s", graph.title, e)
            return graph.in_pytorch
        except Refusal as e:
            if graph.whole:
                raise
            log.info("%s: in PyTorch: %s", graph.title, e)
            warnings.warn(f"this graph runs in PyTorch: {e}", Fallback, stacklevel=3)
            return graph.in_pytorch
        if reasons:
            told = "; ".join(reasons[:TOLD]) + (f"; and {len(reasons) - TOLD} more" if len(reasons) > TOLD else "")
            warnings.warn(f"a part of this graph runs in PyTorch: {told}", Fallback, stacklevel=3)
        taken = graph.taken(args)
        return lambda *given: run(*(given[i] for i in taken))

    def _built(self, found: Traced | Split) -> tuple[Callable[..., Any], list[str]]:
        """What computes it, and what of it is PyTorch's, or why it comes in pieces. Raises one of `Refusal`."""
        from ...rsnlib.partition import Traced

        title = self._graph.title
        if isinstance(found, Traced):
            made = self._program(found)
            log.info("%s: on the machine: %s, %d layers", title, found.network.size, len(found.network.layers))
            return made, []
        programs: list[Callable[..., Any] | None] = []
        reasons = found.reasons
        for piece in found.pieces:
            try:
                programs.append(None if piece.traced is None else self._program(piece.traced))
            except Refusal as e:
                programs.append(None)
                reasons.append(str(e))
        count = sum(program is not None for program in programs)
        if not count:
            raise UnsupportedError(reasons[-1])
        log.info("%s: %d of %d pieces on the machine: %s", title, count, len(programs), "; ".join(reasons))
        return lambda *given: found.run(programs, given), reasons

    def _program(self, traced: Traced) -> Callable[..., Any]:
        from .compiled import Compiled

        return Compiled(traced, self._graph.pipeline.build(traced.network), self._options.board)
