"""Count the floating-point operations of operators of a captured graph, from the shapes of their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import FlopCounterMode

from .capture import is_static


class FlopCounter:
    """Counts FLOPs of operators like PyTorch's counter: matrix products, convolutions and attention, 2 for each
    multiply and add; masked scores count too. Elementwise operators, norms and softmax count 0. Operators run on meta
    tensors, so that nothing is computed."""

    def __init__(self) -> None:
        self._counted: dict[Any, int] = {}

    def of(self, node: Node) -> int:
        """The FLOPs of one operator; 0 if its shapes depend on data. An operator that calls subgraphs (a loop, a
        condition) counts each subgraph once."""
        if node.op != "call_function" or not all(map(is_static, (node, *node.all_input_nodes))):
            return 0
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return sum(self._of_graph(graph) for graph in _called_graphs(node))
        operands: list[Any] = []
        key = node.target, str(_on_meta((node.args, node.kwargs), operands))
        if not operands:
            return 0  # it has no tensor operand
        if key not in self._counted:
            self._counted[key] = _counted(node)
        return self._counted[key]

    def _of_graph(self, graph: Graph) -> int:
        return sum(map(self.of, graph.nodes))


def counted(run: Callable[[], Any]) -> tuple[Any, int]:
    """Call `run`. Returns its result, and the FLOPs that PyTorch computed in it."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = run()
    return result, int(counter.get_total_flops())


def _on_meta(arguments: Any, operands: list[Any]) -> Any:
    """Arguments with (shape, dtype) in place of tensors and nodes. operands: receives the tensors."""

    def described(x: Any) -> Any:
        value = x.meta.get("val") if isinstance(x, Node) else x
        if isinstance(value, torch.Tensor):
            operands.append(value)
            return tuple(value.shape), value.dtype
        return value

    return map_aggregate(arguments, described)


def _counted(node: Node) -> int:
    def without_values(x: Any) -> Any:
        value = x.meta.get("val") if isinstance(x, Node) else x
        if isinstance(value, torch.Tensor):
            return torch.empty(tuple(value.shape), dtype=value.dtype, device="meta")
        return value

    args, kwargs = map_aggregate((node.args, node.kwargs), without_values)
    try:
        return counted(lambda: node.target(*args, **kwargs))[1]
    except (NotImplementedError, RuntimeError):  # it needs values, which no product does
        return 0


def _called_graphs(node: Node) -> list[Graph]:
    """The subgraphs among an operator's arguments."""
    owner = node.graph.owning_module
    found = [getattr(owner, str(x.target), None) for x in node.all_input_nodes if x.op == "get_attr"]
    return [x.graph for x in found if isinstance(x, GraphModule)]
