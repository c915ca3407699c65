"""Specialize a captured graph: fix some of its arguments, and get a module of the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from .fused import FUSED


class Bound(nn.Module):
    """A graph with some arguments fixed. known: values by position. Its tensors become parameters or buffers of this
    module, named as in the graph, so that tracing treats them as constants."""

    def __init__(self, graph: GraphModule, known: Mapping[int, Any]) -> None:
        super().__init__()
        self._graph = _with_numbers(graph, {i: float(x) for i, x in known.items() if is_number(x)})
        names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self._numbers = {i: value for i, value in known.items() if not isinstance(value, torch.Tensor)}
        self._named = {i: names[i] for i in known if i not in self._numbers}
        self._count = len(names)
        for i, name in self._named.items():
            tensor = known[i]
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)

    def forward(self, *others: Any) -> Any:
        """Run the graph. others: the arguments that are not fixed, in order."""
        rest = iter(others)
        arguments = [self._argument(i, rest) for i in range(self._count)]
        # Node by node, so that tracing sees each node's module path and source line.
        return _Unfused(self._graph).run(*arguments)

    def _argument(self, i: int, rest: Any) -> Any:
        if i in self._named:
            return getattr(self, self._named[i])
        return self._numbers[i] if i in self._numbers else next(rest)


class _Unfused(Interpreter):
    """An interpreter that decomposes the operators of PyTorch's fast path (`fused`)."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an operator, or its decomposition."""
        return super().call_function(FUSED.get(target, target), args, kwargs)


def is_number(argument: Any) -> bool:
    """Whether an argument is a number that torch.compile passes as a tensor, such as the eps of a norm."""
    return isinstance(argument, torch.Tensor) and argument.ndim == 0 and argument.dtype == torch.float64


def _with_numbers(graph: GraphModule, numbers: Mapping[int, float]) -> GraphModule:
    """A copy of the graph in which `argument.item()` is replaced by the argument's number. numbers: by position."""
    if not numbers:
        return graph
    made = copy.deepcopy(graph)
    placeholders = made.graph.find_nodes(op="placeholder")
    for i, value in numbers.items():
        for taken in [n for n in placeholders[i].users if n.op == "call_method" and n.target == "item"]:
            for user in list(taken.users):
                user.args, user.kwargs = map_arg(
                    (user.args, user.kwargs), lambda n, taken=taken, value=value: value if n is taken else n
                )
            made.graph.erase_node(taken)
    made.recompile()
    return made


def static_arguments(graph: GraphModule, arguments: Sequence[Any]) -> set[int]:
    """The positions of arguments that are parameters or buffers of the module that the graph was captured from, and
    that the graph does not write to. A cache of keys and values is marked as they are."""
    marked = [
        "_dynamo_static_input_type" in n.meta.get("tensor_dict", {}) and not any(map(_writes, n.users))
        for n in graph.graph.find_nodes(op="placeholder")
    ]
    return {
        i
        for i, x in enumerate(arguments)
        if isinstance(x, nn.Parameter) or (marked[i] and isinstance(x, torch.Tensor) and not is_number(x))
    }


def _writes(node: Node) -> bool:
    """Whether an operator of a graph of torch.compile writes to its first argument, by its name: `copy_`, `add_`."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name == "setitem" or (name.endswith("_") and not name.endswith("__"))
