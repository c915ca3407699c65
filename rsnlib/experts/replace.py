"""What takes the place of layers of experts in a captured graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...base.errors import UnsupportedError
from ...scheduler.graph import TOP
from ..capture import arguments, dtype_of, module_path, packet, shape_of
from ..rewriter import Rewriter
from .choice import EXECUTOR
from .operators import ACTIVATIONS, Executor, attached
from .recognise import RecognisedExperts, WeightColumns, find, same

aten = torch.ops.aten


@dataclass(frozen=True)
class ExpertLayerSizes:
    """The sizes of a layer of experts. path: of its module. tokens: number of rows. each: experts that a row selects,
    k. experts: how many there are, E. width, inner: H and I, the columns of a row and of what is gated. activation: of
    the gate, as in `scheduler.graph.ActivationFunction`."""

    path: str
    tokens: int
    each: int
    experts: int
    width: int
    inner: int
    activation: str


MakeExecutor = Callable[[ExpertLayerSizes], Executor]
"""Makes what computes a layer of experts. Raises `UnsupportedError` if that is not possible."""


@dataclass(frozen=True)
class ExpertsPlan:
    """How experts that data choose are computed.

    executor: makes what computes a layer for a call; None: the layer becomes products of all experts over all rows.
    is_required: a graph without such layers is refused.
    """

    executor: MakeExecutor | None = None
    is_required: bool = False


def replace_experts(program: ExportedProgram, plan: ExpertsPlan) -> int:
    """Replace all layers of experts in a captured graph, in place, as the plan says. Returns how many there were.
    Raises `UnsupportedError` as the plan's executors, and for a graph without such layers if the plan requires one."""
    graph, found = Rewriter(program), 0
    for node in graph.nodes():
        layer = find(node)
        if layer is not None and is_plain(graph, layer):
            graph.put(_static(graph, layer) if plan.executor is None else _operator(graph, layer, plan.executor), node)
            found += 1
    if plan.is_required and not found:
        raise UnsupportedError(
            "experts: the module has no layer of experts that is known; docs/experts.md tells which ones are"
        )
    if found:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
    return found


def is_plain(graph: Rewriter, layer: RecognisedExperts) -> bool:
    """Return whether a layer can be replaced: all is float32, the weights are constant, and the activation is one of
    `ACTIVATIONS`."""
    weights = [
        w for c in (layer.gate, layer.up, layer.down) for w in (c.weight if isinstance(c.weight, tuple) else [c.weight])
    ]
    floats = all(dtype_of(x) == torch.float32 for x in (layer.node, layer.x, layer.shares, *weights))
    return floats and layer.activation in ACTIVATIONS and all(w in graph.constants for w in weights)


def _selectors(graph: Rewriter, layer: RecognisedExperts) -> tuple[Node, Node]:
    """The experts of each token and their shares, (tokens, k) each."""
    shape = [layer.tokens, layer.each]
    index, shares = (graph.insert(layer.node, aten.reshape.default, x, shape) for x in (layer.index, layer.shares))
    return index, shares


def is_chosen_here(layer: RecognisedExperts) -> bool:
    """Return whether the selectors of a layer are those of a topk over as many columns as there are experts, so that
    none is out of range."""
    index = same(layer.index)
    if index.target is not operator.getitem or index.args[1] != 1:
        return False
    top = index.args[0]
    if not isinstance(top, Node) or packet(top) is not aten.topk:
        return False
    a = arguments(top)
    scores = shape_of(a["self"])
    return scores[-1] == layer.experts and a["dim"] % len(scores) == len(scores) - 1


def _static(graph: Rewriter, layer: RecognisedExperts) -> Node:
    """All experts as products over all rows. Each token's results count with their shares; where a token has not
    selected an expert, with 0, whatever the result is."""
    at = layer.node
    index, shares = _selectors(graph, layer)
    if is_chosen_here(layer):
        none = graph.insert(at, aten.full.default, [layer.tokens, layer.experts], 0, dtype=torch.float32)
        share = graph.insert(at, aten.scatter_add.default, none, 1, index, shares)
    else:
        share = graph.insert(at, torch.ops.rsn.expert_weights.default, index, shares, layer.experts)
    results = []
    for expert in range(layer.experts):
        gate = graph.insert(at, aten.linear.default, layer.x, _of_one(graph, layer, layer.gate, expert))
        up = graph.insert(at, aten.linear.default, layer.x, _of_one(graph, layer, layer.up, expert))
        gated = graph.insert(at, aten.mul.Tensor, _activated(graph, layer, gate), up)
        results.append(graph.insert(at, aten.linear.default, gated, _of_one(graph, layer, layer.down, expert)))
    each = graph.insert(at, aten.stack.default, results, 1)
    column = graph.insert(at, aten.reshape.default, share, [layer.tokens, layer.experts, 1])
    chosen = graph.insert(at, aten.ne.Scalar, column, 0)
    kept = graph.insert(at, aten.where.ScalarOther, chosen, each, 0.0)
    return graph.insert(at, aten.sum.dim_IntList, graph.insert(at, aten.mul.Tensor, kept, column), [1])


def _activated(graph: Rewriter, layer: RecognisedExperts, x: Node) -> Node:
    at = layer.node
    match layer.activation:
        case "silu":
            return graph.insert(at, aten.silu.default, x)
        case "relu":
            return graph.insert(at, aten.relu.default, x)
        case activation:
            return graph.insert(
                at, aten.gelu.default, x, approximate=activation.removeprefix("gelu_").replace("erf", "none")
            )


def weights_of(graph: Rewriter, layer: RecognisedExperts) -> tuple[Node, Node]:
    """Insert the weights of all experts, and return their nodes: (E, 2 I, H) with the gate first, and (E, H, I), with E
    experts, H columns of a row and I columns that are gated."""
    return _all_of(graph, layer, layer.gate, layer.up), _all_of(graph, layer, layer.down)


def _of_one(graph: Rewriter, layer: RecognisedExperts, columns: WeightColumns, expert: int) -> Node:
    """The weight (N, K) of one expert."""
    at = layer.node
    if isinstance(columns.weight, tuple):
        matrix = columns.weight[expert]
    else:
        matrix = graph.insert(at, aten.select.int, columns.weight, 0, expert)
    if columns.transposed:
        matrix = graph.insert(at, aten.permute.default, matrix, [1, 0])
    return _kept(graph, at, matrix, columns, 0)


def _kept(graph: Rewriter, at: Node, matrix: Node, columns: WeightColumns, dim: int) -> Node:
    if (columns.first, columns.end) == (0, shape_of(matrix)[dim]):
        return matrix
    return graph.insert(at, aten.slice.Tensor, matrix, dim, columns.first, columns.end)


def _operator(graph: Rewriter, layer: RecognisedExperts, make: MakeExecutor) -> Node:
    """One operator, whose executor computes it."""
    at = layer.node
    width, inner = shape_of(layer.x)[1], layer.gate.end - layer.gate.first
    sizes = ExpertLayerSizes(
        module_path(at) or TOP, layer.tokens, layer.each, layer.experts, width, inner, layer.activation
    )
    executor = make(sizes)
    index, shares = _selectors(graph, layer)
    given = (layer.x, index, shares, *weights_of(graph, layer))
    node = graph.insert(at, torch.ops.rsn.experts.default, *given, layer.activation, attached(executor))
    node.meta[EXECUTOR] = executor
    return node


def _all_of(graph: Rewriter, layer: RecognisedExperts, *parts: WeightColumns) -> Node:
    """The weights of all experts, (E, N, K), with the columns of all parts one after the other."""
    at = layer.node
    first, last = parts[0], parts[-1]
    if isinstance(first.weight, Node) and not first.transposed and first.first == 0:
        joins = len(parts) == 1 or (first.weight is last.weight and not last.transposed and first.end == last.first)
        if joins and last.end == shape_of(first.weight)[1]:
            return first.weight
    rows = [
        graph.insert(at, aten.stack.default, [_of_one(graph, layer, part, e) for e in range(layer.experts)])
        for part in parts
    ]
    return rows[0] if len(rows) == 1 else graph.insert(at, aten.cat.default, rows, 1)
