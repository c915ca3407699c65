"""`torch.compile(model, backend="rsn")`: what torch captures runs on the machine, or in PyTorch, which is said.

    model = torch.compile(model, backend="rsn", options={"schedule": "best", "fallback": "error"})
    print(rsn.explain(model, example_inputs))

torch captures one or several graphs of a model; each is compiled when it is first called, anew for other shapes. A
graph that the machine cannot run in one is cut where the machine cannot go on; what stays in PyTorch stays with a
`Fallback` warning that says why, or is an error. The logger `rsn` has a line at INFO for each graph that is compiled.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields
from operator import is_
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError, ProgramError, ScheduleError, TensorError, UnsupportedError
from ..forks import forget_in_children

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from ...rsnlib.eager_ops import Uncaptured
    from ...rsnlib.graph_split import Split
    from ...rsnlib.partition import Traced
    from ...rsnlib.summary import Modelled, Work
    from ...scheduler.graph import LayerGraph

REMEMBERED = 8
"""Programs that are kept of a graph, for as many shapes."""
TOLD = 3
"""Reasons that a warning gives; `explain` gives all."""

Refusal = (UnsupportedError, TensorError, ScheduleError)
log = logging.getLogger("rsn")

_watch: ContextVar[_Watch | None] = ContextVar("_watch", default=None)


class Fallback(UserWarning):
    """A graph, or a part of it, runs in PyTorch. The message says why."""


@dataclass(frozen=True)
class Options:
    """board, overlay, schedule, checksums: as for `rsn.compile`. fallback: what becomes of a graph that the machine
    cannot run: "warn" leaves it, or what of it must be, to PyTorch and says so, "error" raises `UnsupportedError`."""

    board: str = "sim"
    overlay: str = "xnn"
    schedule: Any = "paper"
    fallback: str = "warn"
    checksums: bool = False

    def __post_init__(self) -> None:
        """Raises `UnsupportedError` for what no graph could be compiled with: that is nothing to fall back from."""
        from ...isa.overlays import find
        from ...scheduler.best import schedule_named
        from ...scheduler.graph import LayerGraph
        from ...scheduler.lower import lower
        from ...scheduler.schedule import PAPER

        if self.fallback not in ("warn", "error"):
            raise UnsupportedError(f'fallback {self.fallback!r}: "warn" or "error"')
        try:
            schedule = schedule_named(self.schedule)
        except ScheduleError as e:
            raise UnsupportedError(f"option schedule: {e}") from None
        object.__setattr__(self, "schedule", schedule)
        try:
            lower(LayerGraph(1, 1, {}, (), ()), find(self.overlay), PAPER)
        except (ProgramError, UnsupportedError) as e:
            raise UnsupportedError(f"option overlay: {e}") from None
        try:
            _check_board(self.board)
        except BoardError as e:
            raise UnsupportedError(f"option board: {e}") from None

    def lower(self, network: LayerGraph) -> None:
        """Whether it can be put on the machine. Raises `UnsupportedError` or `ScheduleError`."""
        from ...isa.overlays import find
        from ...scheduler.lower import lower
        from ...scheduler.schedule import PAPER, Schedule

        lower(network, find(self.overlay), self.schedule if isinstance(self.schedule, Schedule) else PAPER)

    def modelled(self, network: LayerGraph) -> Modelled:
        """Its modelled time on the machine, where no schedule is searched for with this one, else with the schedule
        "paper". Raises `UnsupportedError` or `ScheduleError`."""
        from ...isa.overlays import find
        from ...scheduler.build import build
        from ...scheduler.schedule import PAPER, Schedule
        from .compiled import modelled_layers

        schedule = self.schedule if isinstance(self.schedule, Schedule) else PAPER
        return modelled_layers(build(network, find(self.overlay), schedule).program, network)

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
    _watch_recompile_limit()
    return _Graph(graph, Options.of(options or {}))


class _RecompileLimit(logging.Filter):
    """Sees torch say that it compiles a function no more, after `recompile_limit` variants: from then on it calls no
    backend for other shapes, and raises nothing. No other sign of that reaches a backend."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Raises `UnsupportedError` for a function that was compiled with the option fallback="error"."""
        if str(record.msg).startswith("torch._dynamo hit config."):
            self._told(record)
        return True

    @staticmethod
    def _told(record: logging.LogRecord) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and "compiler_fn" not in frame.f_locals:
            frame = frame.f_back
        asked = None if frame is None else frame.f_locals["compiler_fn"]
        if getattr(asked, "compiler_name", None) != "rsn":
            return
        limit = record.args[0] if isinstance(record.args, tuple) and record.args else "recompile_limit"
        why = (
            f"torch compiles no more variants of this function (torch._dynamo.config.{limit}): calls of other shapes "
            f"run in PyTorch; give torch.compile dynamic=True, or a larger {limit}"
        )
        options = getattr(asked, "kwargs", {}).get("options") or {}
        if options.get("fallback") == "error":
            raise UnsupportedError(why)
        warnings.warn(why, Fallback, stacklevel=2)


_recompile_limit = _RecompileLimit()


def _watch_recompile_limit() -> None:
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_recompile_limit)  # once, however often it is added


# -- a graph


class _Weights:
    """The weights that a program was compiled with; they are kept, so that others cannot have their identity."""

    def __init__(self, tensors: Sequence[Any], checksums: bool) -> None:
        from ...rsnlib.changes import Numbers

        self._tensors = tensors
        self._numbers = Numbers(tensors, checksums)

    def are(self, tensors: Sequence[Any]) -> bool:
        """Whether these are they, unchanged."""
        same = all(map(is_, tensors, self._tensors))
        return same and not self._numbers.have_moved() and not self._numbers.have_changed()


class _Graph:
    """One captured graph, and its programs by the shapes of what it was called with."""

    def __init__(self, graph: GraphModule, options: Options) -> None:
        self._graph = graph
        self.options = options
        self._programs: OrderedDict[Any, tuple[Callable[..., Any], _Weights]] = OrderedDict()
        self._kinds: tuple[list[int], list[int]] | None = None
        self._turn = threading.RLock()
        self.title = _title(graph)
        self.end = _end(graph)
        forget_in_children(self)

    def __call__(self, *args: Any) -> Any:
        others, weights = self._sorted(args)
        key = tuple(map(_facts, others)), self._wants_gradients(args)
        watch = _watch.get()
        if watch is not None:
            return watch.called(self, key, args)
        with self._turn:
            program, compiled_with = self._programs.get(key, (None, None))
            if program is None or compiled_with is None or not compiled_with.are(weights):
                self._programs.pop(key, None)
                kept = _Weights(weights, self.options.checksums)  # before they are read
                program = self._compiled(args)
                self._programs[key] = program, kept
                while len(self._programs) > REMEMBERED:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(key)
        try:
            return program(*args)
        except TensorError as e:  # such as a mask of another kind than in the first call
            if self.options.fallback == "error":
                raise
            warnings.warn(f"this call of the graph runs in PyTorch: {e}", Fallback, stacklevel=2)
            return self.in_pytorch(*args)

    def _sorted(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Arguments of each call, and weights. Which are which is the same in every call."""
        if self._kinds is None:
            from ...rsnlib.specialize import static_arguments

            weights = static_arguments(self._graph, args)
            self._kinds = [i for i in range(len(args)) if i not in weights], sorted(weights)
        others, weights_ = self._kinds
        return [args[i] for i in others], [args[i] for i in weights_]

    def forget(self) -> None:
        """In a forked process: the turn may have been another thread's."""
        self._turn = threading.RLock()

    def in_pytorch(self, *args: Any) -> Any:
        """What the graph computes."""
        return self._graph.forward(*args)

    def divided(self, args: Sequence[Any]) -> Traced | Split:
        """What of it runs where. Raises one of `Refusal` where nothing would run on the machine, and with the option
        fallback="error" where not all is the machine's that has to be."""
        from ...isa.overlays import find
        from ...rsnlib.graph_split import split
        from ...rsnlib.passes import within
        from ...rsnlib.specialize import Bound

        if self._wants_gradients(args):
            raise UnsupportedError("gradients are wanted, and the machine has none: call it under torch.no_grad()")
        known = self._known(args)
        others = tuple(x for i, x in enumerate(args) if i not in known)
        whole = self.options.fallback == "error"
        passes = within(find(self.options.overlay))
        return split(Bound(self._graph, known).eval(), others, self.options.lower, whole=whole, passes=passes)

    def _known(self, args: Sequence[Any]) -> dict[int, Any]:
        """What a program is compiled for, by position: weights and numbers."""
        self._sorted(args)
        weights = set(self._kinds[1]) if self._kinds else set()
        return {i: x for i, x in enumerate(args) if i in weights or _is_number(x)}

    def _wants_gradients(self, args: Sequence[Any]) -> bool:
        import torch

        return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args)

    def _compiled(self, args: Sequence[Any]) -> Callable[..., Any]:
        from ...rsnlib.trace import NoProductError

        try:
            run, reasons = self._built(self.divided(args))
        except NoProductError as e:  # what lies between, and no reason to warn
            log.info("%s: in PyTorch: %s", self.title, e)
            return self.in_pytorch
        except Refusal as e:
            if self.options.fallback == "error":
                raise
            log.info("%s: in PyTorch: %s", self.title, e)
            warnings.warn(f"this graph runs in PyTorch: {e}", Fallback, stacklevel=3)
            return self.in_pytorch
        if reasons:
            told = "; ".join(reasons[:TOLD]) + (f"; and {len(reasons) - TOLD} more" if len(reasons) > TOLD else "")
            warnings.warn(f"a part of this graph runs in PyTorch: {told}", Fallback, stacklevel=3)
        known = self._known(args)
        return lambda *given: run(*(x for i, x in enumerate(given) if i not in known))

    def _built(self, found: Traced | Split) -> tuple[Callable[..., Any], list[str]]:
        """What computes it, and what of it is PyTorch's, or why it comes in pieces. Raises one of `Refusal`."""
        from ...rsnlib.partition import Traced

        if isinstance(found, Traced):
            made = self._program(found)
            log.info("%s: on the machine: %s, %d layers", self.title, found.network.size, len(found.network.layers))
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
        log.info("%s: %d of %d pieces on the machine: %s", self.title, count, len(programs), "; ".join(reasons))
        return lambda *given: found.run(programs, given), reasons

    def _program(self, traced: Traced) -> Callable[..., Any]:
        from ...isa.overlays import find
        from ...scheduler.build import build
        from .compiled import Compiled

        built = build(traced.network, find(self.options.overlay), self.options.schedule)
        return Compiled(traced, built, self.options.board)


def _is_number(x: Any) -> bool:
    from ...rsnlib.specialize import is_number

    return not hasattr(x, "shape") or is_number(x)


def _facts(x: Any) -> Any:
    """All that a program depends on of an argument."""
    return float(x) if _is_number(x) else (tuple(x.shape), x.dtype, x.device)


# -- before anything runs


def is_captured(model: object) -> bool:
    """Whether torch.compile has made it, of a module or a function, or is to run when a module is called."""
    return any(
        getattr(model, name, None) is not None
        for name in ("_orig_mod", "_torchdynamo_orig_callable", "_compiled_call_impl")
    )


def _backend_of(model: object) -> str | None:
    """The name of the backend that a module was compiled with, where torch can be asked for it."""
    asked: Any = getattr(getattr(model, "dynamo_ctx", None), "callback", None)
    while asked is not None and getattr(asked, "compiler_name", None) is None:
        asked = getattr(asked, "_torchdynamo_orig_backend", None)
    return getattr(asked, "compiler_name", None)


def explain(model: Callable[..., Any], example_inputs: tuple[Any, ...] | dict[str, Any]) -> str:
    """What of `model`, which torch.compile has made, would run where, and why; nothing is compiled, PyTorch computes.

    Raises `UnsupportedError` as the model itself would with the option fallback="error", and `TensorError` for example
    inputs that do not fit.
    """
    import torch

    from ...rsnlib.capture import fitting
    from ...rsnlib.eager_ops import Uncaptured

    original = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    forward = getattr(original, "forward", original)
    args, kwargs, _ = fitting(forward, getattr(original, "__qualname__", type(original).__name__), example_inputs)
    watch, wants_gradients = _Watch(Uncaptured(), _backend_of(model)), torch.is_grad_enabled()
    token = _watch.set(watch)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
            with watch.outside:  # now that all is captured
                model(*args, **kwargs)
    finally:
        _watch.reset(token)
    return "\n".join(watch.lines(wants_gradients))


class _Watch:
    """Asked instead of the machine while a model is explained."""

    def __init__(self, outside: Uncaptured, backend: str | None) -> None:
        self.outside = outside
        self._backend = backend
        self._told: dict[Any, _Told] = {}
        self._ends: list[str] = []
        self._has_gradients = False

    def called(self, graph: _Graph, key: Any, args: tuple[Any, ...]) -> Any:
        """What the graph computes, by PyTorch. Raises as `_Graph.divided`, with the option fallback="error"."""
        if (graph, key) not in self._told:
            told = self._told[graph, key] = _told(graph, args)
            self._ends += [graph.end] if graph.end and graph.end not in self._ends else []
            self._has_gradients |= any(getattr(x, "requires_grad", False) for x in args)
            if told.is_refused:
                return told.counted(graph, args)
        with self.outside.graph():
            return graph.in_pytorch(*args)

    def lines(self, wants_gradients: bool) -> Iterator[str]:
        """The summary of all graphs, and what of each runs where."""
        from ...rsnlib.summary import head, table

        count = f"torch.compile: {_many(len(self._told), 'graph')}, {_many(len(self._ends), 'graph break')}"
        told = self._told.values()
        work = [x for one in told for x in one.work]
        if any(x.flops for x in work):
            latency = sum(one.latency_s for one in told)
            yield f"{count}; on the machine: {head(work, latency or None)}"
            yield from table(work, latency or None)
            if self.outside.found:
                yield "what torch did not capture is not counted"
            yield ""
        else:
            yield count
        yield from self._ends
        for i, one in enumerate(told, 1):
            yield f"graph {i}, {one.lines[0]}"
            yield from one.lines[1:]
        if not self._told and self._backend == "rsn":
            yield "torch captured nothing for the machine; all of it runs in PyTorch"
        elif not self._told:
            yield 'nothing was captured for the machine; was it compiled with backend="rsn"?'
        for place, operators in self.outside.found.items():
            where = "a module of PyTorch's own" if place[0] == __file__ else _place(*place)
            yield f"in PyTorch, as torch did not capture it: {', '.join(sorted(operators))} in {where}"
        if self.outside.found:
            yield "TORCH_LOGS=graph_breaks says why"
        if wants_gradients and self._has_gradients:
            yield "this holds under torch.no_grad(); with gradients all of it runs in PyTorch"


@dataclass
class _Told:
    """What of a graph would run where: in lines, and counted. latency_s: modelled, of all its programs. is_refused:
    whether all of it is PyTorch's, and yet to be counted."""

    lines: list[str]
    work: list[Work]
    latency_s: float = 0.0
    is_refused: bool = False

    def add(self, traced: Traced, modelled: Modelled, indent: str) -> None:
        """What runs on the machine, in one program."""
        self.work += traced.work(modelled)
        self.latency_s += modelled.latency_s
        self.lines += [indent + line for line in (traced.title, *traced.operators())]

    def counted(self, graph: _Graph, args: tuple[Any, ...]) -> Any:
        """What the graph computes, by PyTorch; counted as one module."""
        from ...rsnlib.flops import counted
        from ...rsnlib.summary import Work

        result, flops = counted(lambda: graph.in_pytorch(*args))
        self.work.append(Work(graph.title, flops))
        return result


def _told(graph: _Graph, args: tuple[Any, ...]) -> _Told:
    """What would run where. Raises as `_Graph.divided`, with the option fallback="error"."""
    from ...rsnlib.graph_split import work_of
    from ...rsnlib.partition import Traced
    from ...rsnlib.trace import NoProductError

    try:
        found = graph.divided(args)
        if isinstance(found, Traced):
            told = _Told([f"{graph.title}: on the machine"], [])
            told.add(found, graph.options.modelled(found.network), "  ")
            return told
    except Refusal as e:
        if graph.options.fallback == "error" and not isinstance(e, NoProductError):
            raise
        return _Told([f"{graph.title}: in PyTorch: {e}"], [], is_refused=True)
    told = _Told([f"{graph.title}: in {len(found.pieces)} pieces"], [])
    for i, piece in enumerate(found.pieces, 1):
        why = "; ".join(piece.why)
        try:
            modelled = None if piece.traced is None else graph.options.modelled(piece.traced.network)
        except Refusal as e:
            modelled, why = None, str(e)
        if piece.traced is None or modelled is None:
            told.lines.append(f"  piece {i}, in PyTorch: {why or 'no product and no attention'}")
            told.work += work_of(piece)
        else:
            told.lines.append(f"  piece {i}, on the machine{f'; cut here because of {why}' if why else ''}")
            told.add(piece.traced, modelled, "    ")
    return told


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _title(graph: GraphModule) -> str:
    """Where in the user's code it begins: in the outermost `forward`, or function."""
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "get_attr") and node.stack_trace:
            lines = re.findall(r'File "(.*)", line (\d+), in (\S+)', node.stack_trace)
            for path, line, name in sorted(lines, key=lambda x: x[2] != "forward")[:1]:
                return _place(path, line, name)
    return "without operators"


def _end(graph: GraphModule) -> str:
    """Why and where torch broke the graph, "" where it ends with the function."""
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    where = [_place(x.filename, x.lineno, x.name) for x in reason.user_stack[-1:]]
    return f"graph break in {where[0] if where else 'code that is not known'}: {reason.reason.splitlines()[0]}"


def _place(path: str, line: int | str, function: str) -> str:
    file = Path(path)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{function} at {shown}:{line}"
