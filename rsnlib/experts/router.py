"""A whole layer of experts with its router, read from a module: what `isa.overlays.moe` runs as one program."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.fx import Node

from ...base.errors import UnsupportedError
from ...scheduler.graph import TOP
from ..capture import Interface, arguments, fitting, module_of, module_path, packet, shape_of
from ..normal_form.passes import capture
from ..rewriter import Rewriter
from .library import in_groups
from .recognise import RecognisedExperts, find, same
from .replace import is_plain, weights_of

aten = torch.ops.aten
Array = npt.NDArray[np.float32]
KNOWN = "a router is topk(softmax(x @ weight)), normalised by its sum or not, or softmax(topk(x @ weight))"


@dataclass(frozen=True, eq=False)
class RoutedLayer:
    """A layer of E experts with its router, for rows of H columns; I columns are gated.

    path: of its module. tokens: number of rows. each: experts that a row selects. activation: of the gate, as in
    `scheduler.graph.ActivationFunction`. over_chosen: shares are a softmax over the chosen experts, not over all.
    shape: of the module's argument and of its result; each row is a token. interface: how the module is called. router:
    (E, H). gate_up: (E, 2 I, H), the gate first. down: (E, H, I).
    """

    path: str
    tokens: int
    each: int
    activation: str
    over_chosen: bool
    shape: tuple[int, ...]
    interface: Interface
    router: Array
    gate_up: Array
    down: Array


def routed_layer(model: nn.Module, example: tuple[Any, ...] | dict[str, Any]) -> RoutedLayer:
    """Read a layer from a module that is nothing but a router and its experts. example: inputs, by position or by name.
    Raises `UnsupportedError` for any other module, and as `module_of`, `fitting` and `capture` do."""
    model = module_of(model)
    args, kwargs, signature = fitting(model.forward, f"{type(model).__name__}.forward", example)
    with in_groups(model):
        program = capture(model, args, kwargs)
    interface = Interface.of(program, signature)
    graph = Rewriter(program)
    found = [layer for node in graph.nodes() if (layer := find(node)) is not None and is_plain(graph, layer)]
    if len(found) != 1:
        raise UnsupportedError(
            f"the module has {len(found)} layers of experts that are known, not 1; docs/experts.md tells which ones are"
        )
    (layer,) = found
    place = module_path(layer.node) or TOP
    logits, over_chosen = _shares(layer, place)
    weight = _logits(logits, layer, place)
    inputs = [n for n in program.graph.find_nodes(op="placeholder") if n not in graph.constants]
    outputs = [same(x) for x in program.graph.output_node().all_input_nodes]
    if len(inputs) != 1 or same(layer.x) is not inputs[0] or outputs != [layer.node]:
        raise UnsupportedError(f"{place}: the module does more than to choose experts for its argument and to run them")
    if weight not in graph.constants:
        raise UnsupportedError(f"{place}: the weights of its router are no constants")
    (result,) = program.graph.output_node().all_input_nodes
    if shape_of(result) != shape_of(inputs[0]):
        raise UnsupportedError(f"{place}: its result has shape {shape_of(result)}, its argument {shape_of(inputs[0])}")
    gate_up, down = weights_of(graph, layer)

    def value(node: Node) -> Array:
        array: Array = graph.value(node).detach().numpy()
        return array

    return RoutedLayer(
        *(place, layer.tokens, layer.each, layer.activation, over_chosen, shape_of(inputs[0]), interface),
        *(value(weight), value(gate_up), value(down)),
    )


def _operand(node: Node) -> Node:
    operand: Node = arguments(node)["self"]
    return operand


def _parts(node: Node) -> Iterator[Node]:
    """What is divided, and the divisor."""
    a = arguments(node)
    for name in ("self", "other"):
        if isinstance(a[name], Node):
            yield a[name]


def _shares(layer: RecognisedExperts, place: str) -> tuple[Node, bool]:
    """The logits that a layer's shares are a softmax of, and whether over the chosen ones only."""
    index, shares = same(layer.index), same(layer.shares)
    refused = UnsupportedError(f"{place}: its router is not known: {KNOWN}")
    if index.target is not operator.getitem or index.args[1] != 1:
        raise refused
    top = index.args[0]
    if not isinstance(top, Node) or packet(top) is not aten.topk:
        raise refused
    a = arguments(top)
    if a["k"] != layer.each or not a["largest"] or a["dim"] not in (-1, 1) or len(shape_of(_operand(top))) != 2:
        raise refused
    values = next((x for x in top.users if x.target is operator.getitem and x.args[1] == 0), None)
    if values is None:
        raise refused
    if packet(shares) is aten.softmax and same(_operand(shares)) is values and _is_last(shares):
        return _operand(top), True
    over_chosen = False
    if packet(shares) is aten.div:
        given = [same(x) for x in _parts(shares)]
        if len(given) != 2 or given[0] is not values or not _is_sum(given[1], values):
            raise refused
        shares, over_chosen = values, True
    softmax = same(_operand(top))
    if shares is not values or packet(softmax) is not aten.softmax or not _is_last(softmax):
        raise refused
    return _operand(softmax), over_chosen


def _is_last(softmax: Node) -> bool:
    a = arguments(softmax)
    return a["dim"] in (-1, len(shape_of(softmax)) - 1) and a["dtype"] in (None, torch.float32)


def _is_sum(node: Node, values: Node) -> bool:
    a = arguments(node)
    return packet(node) is aten.sum and a["dim"] in ([-1], [1]) and bool(a["keepdim"]) and same(a["self"]) is values


def _logits(node: Node, layer: RecognisedExperts, place: str) -> Node:
    """The weights (E, H) of the product that logits are."""
    node = same(node)
    a = arguments(node)
    if packet(node) is not aten.linear or a["bias"] is not None or same(a["input"]) is not same(layer.x):
        raise UnsupportedError(f"{place}: its logits are not known: a router is x @ weight, without a bias")
    weight: Node = a["weight"]
    return weight
