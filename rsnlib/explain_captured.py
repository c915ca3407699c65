"""What of a model that torch.compile captures would run where, and why; nothing is compiled, PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from ..isa.program import Program
from ..scheduler.graph import LayerGraph
from .capture import fitting
from .captured_graph import CapturedGraph, place
from .eager_ops import Uncaptured
from .fallback import Refusal
from .flops import counted
from .graph_split import Examples, work_of
from .partition import Traced
from .summary import Modelled, Work, head, table
from .trace import NoProductError

Model = Callable[[Program, LayerGraph], Modelled]
"""The modelled time of a program that was built from a network."""

watching: ContextVar[Watch | None] = ContextVar("watching", default=None)
"""Set while a model is explained: the backend then asks it instead of the machine."""


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


def explain(model: Callable[..., Any], example_inputs: Examples, modelled: Model) -> str:
    """What of `model`, which torch.compile has made, would run where, and why; PyTorch computes it, twice.

    Raises `UnsupportedError` as the model itself would with the option fallback="error", and `TensorError` for example
    inputs that do not fit.
    """
    original = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    forward = getattr(original, "forward", original)
    args, kwargs, _ = fitting(forward, getattr(original, "__qualname__", type(original).__name__), example_inputs)
    watch, wants_gradients = Watch(modelled, _backend_of(model)), torch.is_grad_enabled()
    token = watching.set(watch)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
            with watch.outside:  # now that all is captured
                model(*args, **kwargs)
    finally:
        watching.reset(token)
    return "\n".join(watch.lines(wants_gradients))


class Watch:
    """Asked instead of the machine while a model is explained. backend: that the model was compiled with."""

    def __init__(self, modelled: Model, backend: str | None) -> None:
        self.outside = Uncaptured()
        self._modelled = modelled
        self._backend = backend
        self._told: dict[Any, _Told] = {}
        self._ends: list[str] = []
        self._has_gradients = False

    def called(self, graph: CapturedGraph, key: Any, args: tuple[Any, ...]) -> Any:
        """What the graph computes, by PyTorch. Raises as `CapturedGraph.divide` where it is to be `whole`."""
        if (graph, key) not in self._told:
            told = self._told[graph, key] = _told(graph, args, self._modelled)
            self._ends += [graph.end] if graph.end and graph.end not in self._ends else []
            self._has_gradients |= any(getattr(x, "requires_grad", False) for x in args)
            if told.is_refused:
                return told.counted(graph, args)
        with self.outside.graph():
            return graph.in_pytorch(*args)

    def lines(self, wants_gradients: bool) -> Iterator[str]:
        """The summary of all graphs, and what of each runs where."""
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
        for caller, operators in self.outside.found.items():
            # Below `explain` there is only PyTorch where no line of the user's is.
            where = "a module of PyTorch's own" if caller[0] == __file__ else place(*caller)
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

    def counted(self, graph: CapturedGraph, args: tuple[Any, ...]) -> Any:
        """What the graph computes, by PyTorch; counted as one module."""
        result, flops = counted(lambda: graph.in_pytorch(*args))
        self.work.append(Work(graph.title, flops))
        return result


def _told(graph: CapturedGraph, args: tuple[Any, ...], model: Model) -> _Told:
    """What would run where. Raises as `CapturedGraph.divide` where it is to be `whole`."""

    def modelled(traced: Traced) -> Modelled:
        built = graph.pipeline.without_search.build(traced.network)
        return model(built.program, traced.network)

    try:
        found = graph.divide(args)
        if isinstance(found, Traced):
            told = _Told([f"{graph.title}: on the machine"], [])
            told.add(found, modelled(found), "  ")
            return told
    except Refusal as e:
        if graph.whole and not isinstance(e, NoProductError):
            raise
        return _Told([f"{graph.title}: in PyTorch: {e}"], [], is_refused=True)
    told = _Told([f"{graph.title}: in {len(found.pieces)} pieces"], [])
    for i, piece in enumerate(found.pieces, 1):
        why = "; ".join(piece.why)
        time = None
        if piece.traced is not None:
            try:
                time = modelled(piece.traced)
            except Refusal as e:
                why = str(e)
        if piece.traced is None or time is None:
            told.lines.append(f"  piece {i}, in PyTorch: {why or 'no product and no attention'}")
            told.work += work_of(piece)
        else:
            told.lines.append(f"  piece {i}, on the machine{f'; cut here because of {why}' if why else ''}")
            told.add(piece.traced, time, "    ")
    return told


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
