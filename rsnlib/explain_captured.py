"""Explain which parts of a model under torch.compile would run on the machine, and why. Nothing runs on the machine;
PyTorch computes all results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from .graph_split import Examples, Split, work_of
from .partition import Traced
from .summary import Modelled, ModuleWork, head, table
from .trace import NoProductError

Model = Callable[[Program, LayerGraph], Modelled]
"""A function that models the time of a program. The network is the one that it was built from."""

watching: ContextVar[Watch | None] = ContextVar("watching", default=None)
"""Set while a model is explained: the backend then calls it instead of the machine."""


def is_captured(model: object) -> bool:
    """Return whether a model is the result of torch.compile, or a module on which `.compile()` was called."""
    return any(
        getattr(model, name, None) is not None
        for name in ("_orig_mod", "_torchdynamo_orig_callable", "_compiled_call_impl")
    )


def _backend_of(model: object) -> str | None:
    """The name of the backend that a module was compiled with; None if torch does not record it."""
    backend: Any = getattr(getattr(model, "dynamo_ctx", None), "callback", None)
    while backend is not None and getattr(backend, "compiler_name", None) is None:
        backend = getattr(backend, "_torchdynamo_orig_backend", None)
    return getattr(backend, "compiler_name", None)


def explain(model: Callable[..., Any], example_inputs: Examples, modelled: Model) -> str:
    """Return where the parts of a model compiled by torch.compile would run, as text. PyTorch runs the model twice.

    example_inputs: by position or by name. modelled: models the time of each program. Raises `UnsupportedError` like
    the model itself with the option fallback="error", and `TensorError` for example inputs that do not fit.
    """
    original = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    forward = getattr(original, "forward", original)
    args, kwargs, _ = fitting(forward, getattr(original, "__qualname__", type(original).__name__), example_inputs)
    watch, wants_gradients = Watch(modelled, _backend_of(model)), torch.is_grad_enabled()
    token = watching.set(watch)
    try:
        with torch.no_grad():
            model(*args, **kwargs)
            with watch.counting():  # the first call captured all graphs
                model(*args, **kwargs)
    finally:
        watching.reset(token)
    return "\n".join(watch.lines(wants_gradients))


class Watch:
    """Collects what happens to each graph while a model is explained. modelled: models the time of each program.
    backend: the name of the backend that the model was compiled with; None if it is not known. outside: products
    outside of captured graphs."""

    def __init__(self, modelled: Model, backend: str | None) -> None:
        self.outside = Uncaptured()
        self._modelled = modelled
        self._backend = backend
        self._reports: dict[Any, _GraphReport] = {}
        self._ends: list[str] = []
        self._has_gradients = False

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Context of a call of the model. All work of the call is counted: each graph as many times as it is called."""
        for report in self._reports.values():
            report.calls = 0
        with self.outside:
            yield

    def called(self, graph: CapturedGraph, key: Any, args: tuple[Any, ...]) -> Any:
        """Record a call of a graph, and run it in PyTorch. key: tells variants of the graph apart
        (`CapturedGraph.key`). args: as for `CapturedGraph.in_pytorch`. Returns its results. Raises like
        `CapturedGraph.divide` if the graph must run as a whole."""
        if (graph, key) not in self._reports:
            report = self._reports[graph, key] = _report(graph, args, self._modelled)
            self._ends += [graph.end] if graph.end and graph.end not in self._ends else []
            self._has_gradients |= any(getattr(x, "requires_grad", False) for x in args)
            if report.is_refused:
                return report.counted(graph, args)
        else:
            self._reports[graph, key].calls += 1
        with self.outside.graph():
            return graph.in_pytorch(*args)

    def lines(self, wants_gradients: bool) -> Iterator[str]:
        """Yield the report as lines of text: a summary of all graphs, then where the parts of each run.
        wants_gradients: whether gradients were enabled in the caller."""
        count = f"torch.compile: {_many(len(self._reports), 'graph')}, {_many(len(self._ends), 'graph break')}"
        reports = self._reports.values()
        work = [x for report in reports for _ in range(report.calls) for x in report.work]
        if self.outside.flops and self._reports:
            work.append(ModuleWork("(not captured)", self.outside.flops))
        if any(x.flops for x in work):
            latency = sum(report.calls * report.latency_s for report in reports)
            yield f"{count}; on the machine: {head(work, latency or None)}"
            yield from table(work, latency or None)
            if self.outside.uncounted:
                yield "what torch did not capture is not counted in full"
            yield ""
        else:
            yield count
        yield from self._ends
        for i, report in enumerate(reports, 1):
            yield f"graph {i}, {report.lines[0]}"
            yield from report.lines[1:]
        if not self._reports and self._backend == "rsn":
            yield "torch captured nothing for the machine; all of it runs in PyTorch"
        elif not self._reports:
            yield 'nothing was captured for the machine; was it compiled with backend="rsn"?'
        for caller, operators in self.outside.found.items():
            # The caller is this file if all frames below `explain` are PyTorch's.
            where = "a module of PyTorch's own" if caller[0] == __file__ else place(*caller)
            yield f"in PyTorch, as torch did not capture it: {', '.join(sorted(operators))} in {where}"
        if self.outside.found:
            yield "TORCH_LOGS=graph_breaks says why"
        if wants_gradients and self._has_gradients:
            yield "this holds under torch.no_grad(); with gradients all of it runs in PyTorch"


@dataclass
class _GraphReport:
    """Where the parts of one graph would run. lines: as text. work: FLOPs and times by module. latency_s: modelled
    latency of all its programs. is_refused: all of it runs in PyTorch, and its FLOPs are not counted yet. calls: how
    often one call of the model calls the graph."""

    lines: list[str]
    work: list[ModuleWork]
    latency_s: float = 0.0
    is_refused: bool = False
    calls: int = 1

    def add(self, traced: Traced, modelled: Modelled, indent: str) -> None:
        """Add a program of the machine."""
        self.work += traced.work(modelled)
        self.latency_s += modelled.latency_s
        self.lines += [indent + line for line in (traced.title, *traced.operators())]

    def counted(self, graph: CapturedGraph, args: tuple[Any, ...]) -> Any:
        """Run the graph in PyTorch, and count its FLOPs as one module. Returns its results."""
        result, flops = counted(lambda: graph.in_pytorch(*args))
        self.work.append(ModuleWork(graph.title, flops))
        return result


def _report(graph: CapturedGraph, args: tuple[Any, ...], model: Model) -> _GraphReport:
    """Find where the parts of a graph would run. Raises like `CapturedGraph.divide` if it must run as a whole."""

    def modelled(traced: Traced) -> Modelled:
        built = graph.pipeline.without_search.build(traced.network)
        return model(built.program, traced.network)

    try:
        found = graph.divide(args)
        if isinstance(found, Traced):
            report = _GraphReport([f"{graph.title}: on the machine"], [])
            report.add(found, modelled(found), "  ")
            return report
        split, times = found.built(modelled)
    except Refusal as e:
        if graph.whole and not isinstance(e, NoProductError):
            raise
        return _GraphReport([f"{graph.title}: in PyTorch: {e}"], [], is_refused=True)
    return _of_pieces(graph.title, split, times)


def _of_pieces(title: str, split: Split, times: Sequence[Modelled | None]) -> _GraphReport:
    """Where the pieces of a split graph run. times: of each piece, None for PyTorch."""
    report = _GraphReport([f"{title}: in {len(split.pieces)} pieces"], [])
    for i, (piece, time) in enumerate(zip(split.pieces, times, strict=True), 1):
        why = "; ".join(piece.why)
        if piece.traced is None or time is None:
            report.lines.append(f"  piece {i}, in PyTorch: {why or 'no product and no attention'}")
            report.work += work_of(piece)
        else:
            report.lines.append(f"  piece {i}, on the machine{f'; cut here because of {why}' if why else ''}")
            report.add(piece.traced, time, "    ")
    return report


def explain_pieces(split: Split, times: Sequence[Modelled | None]) -> str:
    """Return where the pieces of a module run, and why, as text, after a summary by module of FLOPs and modelled time.
    times: of each piece, None for PyTorch."""
    report = _of_pieces("the model", split, times)
    first = f"{report.lines[0]}, {head(report.work, report.latency_s)}"
    return "\n".join([first, *table(report.work, report.latency_s), "", *report.lines[1:]])


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
