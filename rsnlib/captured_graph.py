"""A graph that torch.compile has captured: which arguments need a program of their own, and which parts the machine
runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import is_
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..base.errors import UnsupportedError
from .changes import Numbers
from .graph_split import Split
from .partition import Traced
from .pipeline import Pipeline
from .specialize import Bound, is_number, static_arguments
from .verification import ReferenceKind, in_double, moved


class CompiledWeights:
    """The weights that a program was compiled with. tensors: they are kept alive, so that no other tensor gets their
    id(). checksums: compare checksums of the contents too, as for `Numbers`."""

    def __init__(self, tensors: Sequence[Any], checksums: bool) -> None:
        self._tensors = tensors
        self._numbers = Numbers(tensors, checksums)

    def are(self, tensors: Sequence[Any]) -> bool:
        """Return whether these are the same tensors, in the same order, with unchanged values."""
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        return same and not self._numbers.have_moved() and not self._numbers.have_changed()


class CapturedGraph:
    """A captured graph of torch.compile, and the pipeline that compiles it. whole: do not split the graph; either all
    of its products run on the machine, or none. title: where the graph begins in the user's code. end: why torch broke
    the graph; "" if it did not."""

    def __init__(self, graph: GraphModule, pipeline: Pipeline, whole: bool) -> None:
        self._graph = graph
        self.pipeline = pipeline
        self.whole = whole
        self._kinds: tuple[list[int], list[int]] | None = None
        self._counters = _Counters(graph)
        self.title = _title(graph)
        self.end = _end(graph)

    def in_pytorch(self, *args: Any) -> Any:
        """Run the graph in PyTorch, and return its results. args: all arguments, weights among them, in the order of
        its placeholders."""
        return self._graph.forward(*args)

    def reference(self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: ReferenceKind) -> Any:
        """Return the results of a call in PyTorch (`verification.Reference`). args: as for `in_pytorch`. kwargs: not
        read, a graph has none. kind: how PyTorch computes them."""
        if kind is ReferenceKind.DOUBLE:
            args = in_double(args)
        elif kind is ReferenceKind.MOVED:
            drawn = torch.Generator().manual_seed(0)
            args = tuple(moved(x, drawn) if isinstance(x, torch.nn.Parameter) else x for x in args)
        return self._graph.forward(*args)

    def key(self, args: Sequence[Any]) -> Any:
        """Return a hashable key of everything in the arguments of a call, except weights and counters, that a program
        depends on. args: as for `in_pytorch`. Calls with equal keys share a program."""
        others, _ = self._positions(args)
        counters = self._counters.positions
        return tuple(_facts(args[i]) for i in others if i not in counters), _wants_gradients(args)

    def with_counters(self, results: Any, args: Sequence[Any]) -> Any:
        """Return the results of a call, with right values of those results that are computed only from counters and
        constants.

        A counter is a number among the arguments from which only such results are computed, such as how many rows a
        cache has; calls with other values of it share a program. results: of the program, which may have been compiled
        with other values of the counters. args: as for `in_pytorch`.
        """
        numbers = self._counters.results(args)
        return [numbers.get(i, x) for i, x in enumerate(results)] if numbers else results

    def weights(self, args: Sequence[Any]) -> list[Any]:
        """Return those of `args` (as for `in_pytorch`) that are parameters or buffers of the model, in order."""
        _, weights = self._positions(args)
        return [args[i] for i in weights]

    def divide(self, args: Sequence[Any]) -> Traced | Split:
        """Trace the graph as a whole or, unless `whole`, split it into pieces. args: as for `in_pytorch`. The result
        takes the arguments at the positions `taken`. Raises `UnsupportedError` if gradients are wanted, and one of
        `Refusal` if nothing would run on the machine or, with `whole`, not all products."""
        if _wants_gradients(args):
            raise UnsupportedError("gradients are wanted, and the machine has none: call it under torch.no_grad()")
        taken = self.taken(args)
        known = {i: x for i, x in enumerate(args) if i not in taken}
        module = Bound(self._graph, known).eval()
        return self.pipeline.divide(module, tuple(args[i] for i in taken), whole=self.whole)

    def taken(self, args: Sequence[Any]) -> list[int]:
        """Return the positions of the arguments that a program takes in each call, from 0 on. args: as for
        `in_pytorch`. All other arguments (weights and numbers) are compiled into it."""
        others, _ = self._positions(args)
        return [i for i in others if not _is_number(args[i])]

    def _positions(self, args: Sequence[Any]) -> tuple[list[int], list[int]]:
        """The positions of the arguments of each call, and those of weights. They are the same in every call."""
        if self._kinds is None:
            weights = static_arguments(self._graph, args)
            self._kinds = [i for i in range(len(args)) if i not in weights], sorted(weights)
        return self._kinds


class _Counters:
    """The numbers that a graph only counts with, such as how many rows a cache has: no operator on tensors takes them.
    Calls with other counters need no other program. positions: of the arguments."""

    def __init__(self, graph: GraphModule) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._made: dict[Node, list[Node]] = {}
        """By the argument of a counter, the numbers that are made of it, in order."""
        for node in placeholders:
            made = _counted(node) if isinstance(node.meta.get("example_value"), torch.SymInt) else None
            if made is not None:
                self._made[node] = made
        self.positions = {placeholders.index(node): node for node in self._made}
        returned = graph.graph.output_node().args[0]
        nodes = list(returned) if isinstance(returned, list | tuple) else []
        known = {x for node, made in self._made.items() for x in (node, *made)}
        self._returned = {i: x for i, x in enumerate(nodes) if isinstance(x, Node) and x in known}

    def results(self, args: Sequence[Any]) -> dict[int, int]:
        """The numbers among a graph's results that are made of counters, by position."""
        values: dict[Node, Any] = {node: args[i] for i, node in self.positions.items()}
        for node in dict.fromkeys(x for made in self._made.values() for x in made):
            values[node] = node.target(*map_arg(node.args, values.__getitem__))
        return {i: values[node] for i, node in self._returned.items()}


def _counted(counter: Node) -> list[Node] | None:
    """The numbers that are made of a counter and constants alone, in order; None if anything else uses it."""
    found: dict[Node, None] = {}
    stack = [counter]
    while stack:
        for user in stack.pop().users:
            if user.op == "output" or user in found:
                continue
            is_number = isinstance(user.meta.get("example_value"), int | torch.SymInt)
            alone = all(x is counter or x in found for x in user.all_input_nodes)
            if user.op != "call_function" or not is_number or not alone or user.kwargs:
                return None
            found[user] = None
            stack.append(user)
    order = {node: i for i, node in enumerate(counter.graph.nodes)}
    return sorted(found, key=order.__getitem__)


def _wants_gradients(args: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in args)


def _is_number(x: Any) -> bool:
    return not hasattr(x, "shape") or is_number(x)


def _facts(x: Any) -> Any:
    """Everything in an argument that a program depends on."""
    return float(x) if _is_number(x) else (tuple(x.shape), x.dtype, x.device)


def _title(graph: GraphModule) -> str:
    """The line of the user's code where a graph begins, in the outermost `forward` or function."""
    for node in graph.graph.nodes:
        if node.op not in ("placeholder", "get_attr") and node.stack_trace:
            lines = re.findall(r'File "(.*)", line (\d+), in (\S+)', node.stack_trace)
            for path, line, name in sorted(lines, key=lambda x: x[2] != "forward")[:1]:
                return place(path, line, name)
    return "without operators"


def _end(graph: GraphModule) -> str:
    """Why and where torch broke the graph; "" if it ends with the function."""
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    where = [place(x.filename, x.lineno, x.name) for x in reason.user_stack[-1:]]
    return f"graph break in {where[0] if where else 'code that is not known'}: {reason.reason.splitlines()[0]}"


def place(path: str, line: int | str, function: str) -> str:
    """Return a function and a line of code as text, for messages. path: of the file, shown relative to the current
    folder if it lies in it."""
    file = Path(path)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{function} at {shown}:{line}"
