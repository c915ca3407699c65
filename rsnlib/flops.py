"""Count the floating-point operations of operators of a captured graph, from the shapes of their operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import FlopCounterMode

from .capture import arguments, dtype_of, is_static, packet, shape_of

aten = torch.ops.aten

CHOSEN_PRODUCTS = {aten.linear: "weight", aten.mm: "mat2", aten.matmul: "other", aten.addmm: "mat2"}
"""Products of rows that data may choose, each with the argument that is the weight."""


class FlopCounter:
    """Counts FLOPs of operators like PyTorch's counter: matrix products, convolutions and attention, 2 for each
    multiply and add; masked scores count too. Elementwise operators, norms and softmax count 0. Operators run on meta
    tensors, so that nothing is computed.

    Experts that data chooses: a product of rows in groups counts each row once. If each expert has a product of its
    own, whose number of rows depends on data, it counts the mean over experts, rows * k / experts; the sum is exact if
    no row is dropped."""

    def __init__(self) -> None:
        self._counted: dict[Any, int] = {}

    def of(self, node: Node) -> int:
        """Return the FLOPs of one operator, 2 for a multiply and add; 0 if its shapes depend on data, except for
        experts. An operator that calls subgraphs (a loop, a condition) counts each subgraph once."""
        if node.op != "call_function":
            return 0
        if not all(map(is_static, (node, *node.all_input_nodes))):
            return _of_expert(node)
        if packet(node) is torch.ops.rsn.experts:
            a = arguments(node)
            return 2 * prod(shape_of(a["index"])) * (prod(shape_of(a["gate_up"])[1:]) + prod(shape_of(a["down"])[1:]))
        grouped = _of_groups(node)
        if grouped:
            return grouped
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


def _of_groups(node: Node) -> int:
    """The FLOPs of a product of rows (rows, K) in groups, each with a matrix of its own of (groups, K, N): by operands
    and result, whatever the operator is called. 0 for any other operator."""
    tensors = [x for x in node.all_input_nodes if shape_of(x)]
    floats, indices = (
        [shape_of(x) for x in tensors if bool(x.meta["val"].is_floating_point()) == is_float]
        for is_float in (True, False)
    )
    if len(floats) != 2 or len(indices) != 1 or dtype_of(node) is None:
        return 0
    (rows, k), matrices = floats[0] if len(floats[0]) == 2 else (0, 0), floats[1]
    if not rows or len(matrices) != 3 or indices[0] != matrices[:1] or matrices[1] != k:
        return 0
    return 2 * rows * k * matrices[2] if shape_of(node) == (rows, matrices[2]) else 0


def _of_expert(node: Node) -> int:
    """The mean FLOPs of a product of the rows that were given to one of several experts; 0 for any other operator."""
    weight = arguments(node).get(CHOSEN_PRODUCTS.get(packet(node), ""))
    if not isinstance(weight, Node) or not is_static(weight) or len(shape_of(weight)) != 2:
        return 0
    k, n = shape_of(weight)
    for x in _behind(node):
        if packet(x) in (aten.topk, aten.argmax) and is_static(x):
            a = arguments(x)
            scores, dim = shape_of(a["self"]), a["dim"]
            if dim is None or dim % len(scores) != len(scores) - 1:
                return 0
            each = a["k"] if packet(x) is aten.topk else 1
            return round(2 * k * n * prod(scores[:-1]) * each / scores[-1])
    return 0


def _behind(node: Node) -> Iterator[Node]:
    """The nodes that a node depends on, the nearest first."""
    seen, todo = {node}, [node]
    for x in todo:
        new = [y for y in x.all_input_nodes if y not in seen]
        seen.update(new)
        yield from new
        todo += new


def counted(run: Callable[[], Any]) -> tuple[Any, int]:
    """Call `run` without gradients. Returns its result, and the FLOPs that PyTorch computed in it, 2 for a multiply and
    add."""
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
