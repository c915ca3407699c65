"""Finds the layers of a captured model that are the same but for their constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from ...base.errors import UnsupportedError
from ..capture import LIFTED, Environment, Interface, draws, dtype_of, module_path, shape_of, site
from ..view import View
from .operators import ROW_SCALE, FromHost, OperatorGraph, Positions, StreamOperator
from .pointwise import with_numbers_apart
from .reading import GraphPart, GraphReader, OperatorBlock, Rule, ahead, block_of
from .repeated import RepeatedLayers, held_by_layers, of_layer
from .showing import ShownTensor

ReadGraph = tuple[OperatorGraph, dict[Node, ShownTensor]]
"""Operators of a part of a graph, and what its nodes show of their results."""


def repeated_block(
    model: nn.Module,
    program: ExportedProgram,
    interface: Interface,
    values: Environment,
    rules: Mapping[Any, Rule],
    head: bool = False,
) -> OperatorBlock:
    """Return the first layer of a captured model as a block, with what differs in the other layers
    (`OperatorBlock.repeated`).

    model: the module that was captured. program, interface, rules: as for `GraphReader`. values: of all nodes that are
    no operators, by node. head: kernels also compute what is behind the layers. Raises `UnsupportedError` for a model
    without layers in a `ModuleList`, for layers that do not follow each other as a chain, for two layers that differ in
    anything but constants and tensors of the host, and for a layer that stores anything but caches of fixed capacity;
    and as `GraphReader.read` does.
    """
    _merge_equal(program)
    parts = _parts(model, program, interface)
    read = _with_vectors([GraphReader(program, interface, rules, part).read() for part in parts])
    for other, part in zip(read[1:], parts[1:], strict=True):
        _check_same(read[0][0], other[0], parts[0].path, part.path)
    graph, shown = read[0]
    given = next((x for x in graph.operators if _node_of(x) is parts[0].given), None)
    result = shown.get(parts[0].results[0])
    if given is None or result is None or given.shape != result.operator.shape or not _is_dense(result):
        raise UnsupportedError(f"{parts[0].path} does not give rows as it takes them; layers in a chain do")
    results, layer_of = dict[Node, ShownTensor](), dict[Node, int]()
    for k, (part, (_, own)) in enumerate(zip(parts, read, strict=True)):
        for node, first in zip(part.results, parts[0].results, strict=True):
            if node in own and (node is not part.results[0] or part is parts[-1]):
                results[node], layer_of[node] = shown[first], k
    _check_stored(graph, result.operator)
    layers = [graph for graph, _ in read]
    held = held_by_layers(layers, given.name)
    if head:
        last = parts[-1].results[0]
        layers = [of_layer(x, own[part.results[0]].operator.name) for (x, own), part in zip(read, parts, strict=True)]
        part = _head(program, interface, last)
        found, of_head = GraphReader(program, interface, rules, part, {x.name for x in graph.operators}).read()
        graph = _with_head(layers[0], result.operator, found, last)
        results |= {x: ShownTensor(_named(graph, shown.operator.name), shown.view) for x, shown in of_head.items()}
        if last not in interface.result.all_input_nodes:
            del results[last]
    kept = [x.positions for of in (graph, *layers[1:]) for x in of.operators]
    positions, _ = ahead(program, {x.node for x in kept if x})
    needed = {x.node for of in held.values() for x in of if isinstance(x, FromHost)}
    others, _ = ahead(program, needed | {x.data.node for x in graph.operators if isinstance(x.data, FromHost)})
    host = [*positions, *(node for node in others if node not in positions)]
    behind, _ = ahead(program, interface.result.all_input_nodes, {*results, *host})
    repeated = RepeatedLayers(len(parts), given.name, result.operator.name, layers[1:], layer_of, behind)
    return block_of(program, interface, graph, results, host, values, repeated)


def _head(program: ExportedProgram, interface: Interface, last: Node) -> GraphPart:
    """What computes behind the layers: the operators that depend on the result of the last one."""
    found: set[Node] = set()
    for node in program.graph.nodes:
        if node.op == "call_function" and any(x is last or x in found for x in node.all_input_nodes):
            found.add(node)
    return GraphPart("", frozenset(found), last, tuple(x for x in interface.result.all_input_nodes if x in found))


def _with_head(layer: OperatorGraph, result: StreamOperator, head: OperatorGraph, last: Node) -> OperatorGraph:
    """A layer, and behind its result what computes from that of the last layer. head: it. last: the node of that
    result. Raises `UnsupportedError` where the head takes other rows than layers give."""
    given = [x for x in head.operators if _node_of(x) is last]
    if len(given) != 1 or given[0].shape != result.shape or given[0].data != FromHost(last, View.dense(shape_of(last))):
        raise UnsupportedError("what is behind the layers does not take the rows that they give; leave it to the host")
    made = {given[0]: result}
    for x in head.operators:
        if x is not given[0]:
            made[x] = replace(x, operands=tuple(made[operand] for operand in x.operands))
    kept = [x for x in layer.results if x is not result]
    behind = tuple(made[x] for x in head.operators if x is not given[0])
    return OperatorGraph((*layer.operators, *behind), (*kept, *(made[x] for x in head.results)))


def _named(graph: OperatorGraph, name: str) -> StreamOperator:
    return next(x for x in graph.operators if x.name == name)


def _merge_equal(program: ExportedProgram) -> None:
    """Let operators with the same operands be one, such as those that each layer applies to a mask."""
    found: dict[tuple[object, str, str], Node] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or draws(node):
            continue
        first = found.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)


def _parts(model: nn.Module, program: ExportedProgram, interface: Interface) -> list[GraphPart]:
    """The layers: modules of the `ModuleList` that has most operators, and of several those that hold the others."""
    operators = [node for node in program.graph.nodes if node.op == "call_function"]
    lists = {path: x for path, x in model.named_modules() if isinstance(x, nn.ModuleList)}
    most = dict.fromkeys(lists, 0)
    for node in operators:
        for path in lists:
            most[path] += module_path(node).startswith(f"{path}.")
    path = max(most, key=lambda x: (most[x], -len(x)), default="")
    if not most.get(path):
        raise UnsupportedError(
            f"{type(model).__name__} has no layers in a ModuleList that compute, so no machine can go through them"
        )
    layers: dict[str, list[Node]] = {f"{path}.{k}": [] for k in range(len(lists[path]))}
    prepared: dict[str, list[Node]] = {name: [] for name in layers}
    computed = _computed(program, f"{path}.")
    for node in operators:
        at = module_path(node).removeprefix(f"{path}.").partition(".")[0]
        if module_path(node).startswith(f"{path}."):
            (layers if node in computed else prepared)[f"{path}.{at}"].append(node)
    parts, given = [], None
    names = [name for name, nodes in layers.items() if nodes]
    for name, later in zip(names, [*names[1:], None], strict=True):
        own = set(layers[name])
        readers = set(layers[later]) if later else {x for x in operators if not any(x in of for of in layers.values())}
        passed = [node for node in layers[name] if any(reader in readers for reader in node.users)]
        if len(passed) != 1:
            said = ", ".join(map(site, passed)) or "none"
            raise UnsupportedError(f"{later or 'what is behind the layers'} reads several results of {name}: {said}")
        if given is None:
            others = set(layers[later]) if later else set()
            own |= _begin(passed[0], prepared[name], others)
            given = _first_input(passed[0], own, others)
        stored = tuple(x for x in interface.result.all_input_nodes if x in own and x is not passed[0])
        parts.append(GraphPart(name, frozenset(own), given, (passed[0], *stored)))
        given = passed[0]
    return parts


def _computed(program: ExportedProgram, path: str) -> set[Node]:
    """The nodes that depend on a tensor of a module below a path: not masks, positions, and tables of these."""
    placeholders = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
    found = {x for x, spec in placeholders if spec.kind in LIFTED and str(spec.target).startswith(path)}
    for node in program.graph.nodes:
        if any(x in found for x in node.all_input_nodes):
            found.add(node)
    return found


def _begin(passed: Node, prepared: Sequence[Node], later: set[Node]) -> set[Node]:
    """What the first layer computes of its input before any tensor of a module is used, such as the scales of its rows.
    passed: the result of that layer. prepared: its nodes that depend on no such tensor, in order. later: the nodes of
    the second layer."""
    read_later = {x for node in later for x in node.all_input_nodes}
    inputs = {x for node in prepared for x in node.all_input_nodes if x not in prepared and x not in read_later}
    reached = {x for x in inputs if _is_alike(x, passed)}
    for node in prepared:
        if any(x in reached for x in node.all_input_nodes):
            reached.add(node)
    return reached.intersection(prepared)


def _first_input(passed: Node, own: set[Node], later: set[Node]) -> Node:
    """The node that the first layer takes as the others take the result of the layer before. passed: that result. own,
    later: the nodes of the first two layers."""

    def read(nodes: set[Node]) -> set[Node]:
        return {x for node in nodes for x in node.all_input_nodes if x not in own and x not in nodes}

    alike = [x for x in read(own) - read(later) if _is_alike(x, passed)]
    if len(alike) != 1:
        raise UnsupportedError(
            f"the first layer reads {len(alike)} tensors that are like its result, {list(shape_of(passed))}; "
            "layers in a chain read one"
        )
    return alike[0]


def _is_alike(x: Node, y: Node) -> bool:
    """Whether two nodes are tensors of one shape and type."""
    return (shape_of(x), dtype_of(x)) == (shape_of(y), dtype_of(y))


def _node_of(x: StreamOperator) -> Node | None:
    return x.data.node if isinstance(x.data, FromHost) else None


def _is_dense(shown: ShownTensor) -> bool:
    return shown.view == View.dense(shown.view.shape)


def _check_stored(graph: OperatorGraph, result: StreamOperator) -> None:
    """Raise `UnsupportedError` for what a layer stores for each layer, and is no cache of fixed capacity."""
    for x in graph.results:
        if x is not result and x.op != "replace":
            raise UnsupportedError(
                f"{x.site or x.name}: each layer stores its result; layers store rows of caches of fixed capacity, as "
                "those of a StaticCache"
            )


def _with_vectors(read: list[ReadGraph]) -> list[ReadGraph]:
    """Layers in which numbers of the graph that are not the same in all of them are vectors of kernels, of which each
    layer has its own: those of elementwise operators, and static scales of the rows of products."""
    made: list[dict[StreamOperator, StreamOperator]] = [{} for _ in read]
    for of_layers in zip(*(graph.operators for graph, _ in read), strict=False):
        for x, y, done in zip(of_layers, _with_own_numbers(of_layers), made, strict=True):
            done[x] = replace(y, operands=tuple(done[operand] for operand in y.operands))
    if any(len(done) < len(graph.operators) for done, (graph, _) in zip(made, read, strict=True)):
        return read  # they differ in more
    return [
        (
            OperatorGraph(tuple(done.values()), tuple(done[x] for x in graph.results)),
            {node: replace(value, operator=done[value.operator]) for node, value in shown.items()},
        )
        for done, (graph, shown) in zip(made, read, strict=True)
    ]


def _with_own_numbers(of_layers: Sequence[StreamOperator]) -> Sequence[StreamOperator]:
    """An operator of each layer, with vectors in place of numbers that differ."""
    first, numbers = of_layers[0], dict[str, tuple[float, ...]]()
    if len({(x.op, x.shape) for x in of_layers}) > 1:
        return of_layers
    changed: dict[str, Any] = {}
    if first.op == "pointwise":
        changed["expression"] = with_numbers_apart([x.attributes["expression"] for x in of_layers], numbers)
        if changed["expression"] is None:  # they differ in more
            return of_layers
    scales = tuple(x.attributes["scale"] for x in of_layers if x.op == "linear" and "scale" in x.attributes)
    if len(scales) == len(of_layers) and len({*scales}) > 1:
        numbers[ROW_SCALE] = scales
    if not numbers:
        return of_layers

    def vectors(k: int) -> dict[str, Any]:
        own = {name: np.full(first.shape[2], of[k], np.float32) for name, of in numbers.items()}
        return {**of_layers[k].attributes.get("vectors", {}), **own}

    kept = ({name: of for name, of in x.attributes.items() if name != "scale"} for x in of_layers)
    return [
        replace(x, attributes={**own, **changed, "vectors": vectors(k)})
        for k, (x, own) in enumerate(zip(of_layers, kept, strict=True))
    ]


def _check_same(first: OperatorGraph, other: OperatorGraph, path: str, other_path: str) -> None:
    """Raise `UnsupportedError` for the first difference between the operators of two layers beside their constants and
    the tensors of the host. path, other_path: of the layers."""
    number = {x: k for k, x in enumerate(first.operators)} | {x: k for k, x in enumerate(other.operators)}
    for mine, theirs in zip(first.operators, other.operators, strict=False):
        for what in ("op", "shape", "dtype"):
            if getattr(mine, what) != getattr(theirs, what):
                raise _differ(mine, theirs, path, other_path, what, getattr(mine, what), getattr(theirs, what))
        if [number[x] for x in mine.operands] != [number[x] for x in theirs.operands]:
            raise _differ(mine, theirs, path, other_path, "operands", *(_names(x) for x in (mine, theirs)))
        if type(mine.data) is not type(theirs.data):
            raise _differ(mine, theirs, path, other_path, "data", *(type(x.data).__name__ for x in (mine, theirs)))
        for what in sorted({*mine.attributes, *theirs.attributes}):
            a, b = (_structure(what, x.attributes.get(what)) for x in (mine, theirs))
            if a != b:
                raise _differ(mine, theirs, path, other_path, what, a, b)
    if len(first.operators) != len(other.operators) or len(first.results) != len(other.results):
        raise UnsupportedError(
            f"{other_path} has {len(other.operators)} operators and tensors, {path} has {len(first.operators)}; "
            "layers that one machine goes through differ in constants only"
        )


def _structure(name: str, value: object) -> object:
    """What of an attribute must be the same in all layers: of vectors their sizes."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.name
    if name == "vectors" and isinstance(value, Mapping):
        return {key: _structure(key, x) for key, x in value.items()}
    if isinstance(value, Positions):
        return value.capacity
    return value


def _names(x: StreamOperator) -> str:
    return ", ".join(operand.name for operand in x.operands)


def _differ(
    mine: StreamOperator, theirs: StreamOperator, path: str, other_path: str, what: str, a: object, b: object
) -> UnsupportedError:
    return UnsupportedError(
        f"{theirs.site or theirs.name} differs from {mine.site or mine.name}: {what} is {b}, not {a}; of {path} and "
        f"{other_path} a machine can only have one, unless they differ in constants only"
    )
