"""Passes from the graph that torch.export makes to the normal form. Each changes a graph in place.

An operator gets another name, or becomes several that compute the same bits, such as PyTorch itself composes it of.
Only an `addmm` with factors, and products of quantised numbers, may round otherwise. What an operator was in the user's
model stays in its meta (`capture.SPELLED`), for messages.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ..capture import SPELLED, arguments, dtype_of, exported, is_static, op_name, packet, shape_of
from .editor import Editor, respell
from .operators import OPERATORS, VIEWS, named
from .quantised import check_values, plain_tensors, quantised

aten = torch.ops.aten
CHUNKS = "rsn_chunks"
"""Key in the meta of a slice that was a part of a chunk: how many parts the dimension was divided into."""


class NormalFormError(Exception):
    """A pass has left an operator that it should have replaced: a mistake in the pass."""


def is_exempt(node: Node) -> bool:
    """Return whether passes may leave an operator as it is. This holds for operators whose sizes depend on data, that
    read bits as numbers of another type, that make complex conjugates, that read from a tensor how often each position
    is repeated or where a part begins, and for dropout in training mode."""
    op, a = packet(node), arguments(node)
    if not all(map(is_static, (node, *node.all_input_nodes))):
        parts = node.meta["val"]  # of a dimension of known size
        return not isinstance(parts, list | tuple) or not all(isinstance(x.shape[a["dim"]], int) for x in parts)
    if op in (aten.repeat_interleave, aten.narrow):
        return not isinstance(a.get("repeats" if op is aten.repeat_interleave else "start"), int)
    if op in (aten.adjoint, aten.mH):
        return bool((dtype_of(node) or torch.bool).is_complex)
    return node.target is aten.view.dtype or bool(a.get("train") and a.get("p"))


def check_form(graph: Graph, after: str = "copies") -> None:
    """Check that no operator occurs that the passes up to `after`, a key of `PASSES`, remove. Raises `NormalFormError`
    with the operator if one does."""
    passes = list(REMOVED)
    gone: set[Any] = set().union(*(REMOVED[name] for name in passes[: passes.index(after) + 1]))
    for node in graph.nodes:
        if packet(node) in gone and not is_exempt(node):
            raise NormalFormError(f"{node.name}: {op_name(node)} behind the pass {after}")


# -- checks

CHECKS = set(named("_assert_async _assert_scalar _assert_tensor_metadata"))


def checks(graph: Editor) -> None:
    """Remove the checks that torch.export inserts, in place. They always hold, because shapes and types are static."""
    for node in graph.graph.nodes:
        if packet(node) in CHECKS:
            graph.graph.erase_node(node)


# -- decompositions


def _addmm(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """A linear, whose weight is the transposed matrix."""
    x, y, bias = a["mat1"], a["mat2"], a["self"]
    if a["beta"] == a["alpha"] == 1:
        respell(node, aten.linear.default, x, graph.insert(node, aten.permute.default, y, [1, 0]), bias)
        return
    product = graph.insert(node, aten.matmul.default, x, y)
    if a["alpha"] != 1:
        product = graph.insert(node, aten.mul.Tensor, product, a["alpha"])
    if a["beta"] != 1:
        bias = graph.insert(node, aten.mul.Tensor, bias, a["beta"])
    respell(node, aten.add.Tensor, product, bias)


def _argsort(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    x, options = a.pop("self"), a
    sort = aten.sort.stable if "stable" in a else aten.sort.default
    respell(node, operator.getitem, graph.insert(node, sort, x, **options), 1)


def _masked_fill(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    x, value, dtype = a["self"], a["value"], dtype_of(node)
    if node.target is aten.masked_fill.Tensor:
        if dtype_of(value) != dtype:
            value = graph.insert(node, aten._to_copy.default, value, dtype=dtype)
        respell(node, aten.where.self, a["mask"], value, x)
    elif isinstance(value, Node) or torch.result_type(x.meta["val"], value) == dtype:
        respell(node, aten.where.ScalarSelf, a["mask"], value, x)
    else:
        respell(node, aten.where.self, a["mask"], graph.insert(node, aten.full.default, [], value, dtype=dtype), x)


def _masked_put(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """x[mask] = number, which is `index_put`."""
    x, indices, value = a["self"], a["indices"], a["values"]
    if a["accumulate"] or len(indices) != 1 or dtype_of(indices[0]) != torch.bool or shape_of(value) != ():
        return
    mask, missing = indices[0], len(shape_of(x)) - len(shape_of(indices[0]))
    if missing:
        mask = graph.insert(node, aten.reshape.default, mask, [*shape_of(mask), *(1,) * missing])
    respell(node, aten.where.self, mask, value, x)


def _parts(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """The parts of a dimension as slices, or as single positions."""
    x = a["self"]
    axis, begin = a["dim"] % len(shape_of(x)), 0
    ranges = []
    for part in node.meta["val"]:
        length = part.shape[axis] if part.ndim == len(shape_of(x)) else 0
        ranges.append((begin, begin + length))
        begin += length
    for part in list(node.users):
        index = part.args[1]
        assert isinstance(index, int)
        begin, end = ranges[index]
        part.meta = node.meta | {"val": part.meta["val"]}
        if packet(node) in (aten.chunk, aten.unsafe_chunk):
            part.meta[CHUNKS] = a["chunks"]
        if packet(node) is aten.unbind:
            respell(part, aten.select.int, x, axis, index)
        else:
            respell(part, aten.slice.Tensor, x, axis, begin, end)
        part.meta[SPELLED] = op_name(node)
    graph.graph.erase_node(node)


def _repeat_interleave(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    """Each position several times in place: a view, and a copy."""
    x, dim = a["self"], a["dim"]
    if dim is None:
        x, dim = graph.insert(node, aten.reshape.default, x, [-1]), 0
    before, behind = list(shape_of(x)[: dim % len(shape_of(x)) + 1]), list(shape_of(x)[dim % len(shape_of(x)) + 1 :])
    x = graph.insert(node, aten.reshape.default, x, [*before, 1, *behind])
    x = graph.insert(node, aten.expand.default, x, [*before, a["repeats"], *behind])
    respell(node, aten.reshape.default, x, list(shape_of(node)))


def _composed(graph: Editor, node: Node, a: dict[str, Any]) -> None:
    graph.decompose(node)


DECOMPOSITIONS: dict[Any, Callable[[Editor, Node, dict[str, Any]], None]] = {
    **dict.fromkeys((aten.chunk, aten.unsafe_chunk, aten.tensor_split, aten.split, aten.unsafe_split), _parts),
    **dict.fromkeys((aten.split_with_sizes, aten.unsafe_split_with_sizes, aten.unbind), _parts),
    **dict.fromkeys((aten.cosine_similarity, aten.pairwise_distance, aten.diff), _composed),
    **dict.fromkeys((aten.outer, aten.ger, aten.prelu), _composed),
    aten.addmm: _addmm,
    aten.argsort: _argsort,
    aten.index_put: _masked_put,
    aten.masked_fill: _masked_fill,
    aten.repeat_interleave: _repeat_interleave,
}


def decompositions(graph: Editor) -> None:
    """Replace each operator of `DECOMPOSITIONS` by the several operators that it is composed of, in place."""
    for node in graph.graph.nodes:
        made = DECOMPOSITIONS.get(packet(node))
        if made is not None and not is_exempt(node):
            made(graph, node, arguments(node))


# -- one spelling of each operator

ALIASES: dict[Any, Any] = dict(
    zip(
        named(
            "__and__ __or__ __xor__ absolute clip concat concatenate divide fix greater greater_equal less less_equal "
            "multiply negative not_equal special_expit subtract true_divide"
        ),
        named("bitwise_and bitwise_or bitwise_xor abs clamp cat cat div trunc gt ge lt le mul neg ne sigmoid sub div"),
        strict=True,
    )
)
"""Operators with another name, with the same overloads."""

Spelling = tuple[Any, tuple[Any, ...]] | tuple[Any, tuple[Any, ...], dict[str, Any]] | None
"""An operator of the normal form with its arguments; None leaves the one that is there."""


def _shaped(target: Any) -> Callable[[Node, dict[str, Any]], Spelling]:
    """An operator that takes the shape of its result."""
    return lambda node, a: (target, (a["self"], list(shape_of(node))))


def _permuted(node: Node, a: dict[str, Any]) -> Spelling:
    # Run the operator on a meta tensor and read the order off its strides, so that every spelling is covered.
    probe = torch.empty((2,) * len(shape_of(node)), device="meta")
    strides = node.target(probe, *node.args[1:], **node.kwargs).stride()
    return aten.permute.default, (a["self"], [probe.stride().index(s) for s in strides])


def _narrowed(node: Node, a: dict[str, Any]) -> Spelling:
    begin = a["start"] + (shape_of(a["self"])[a["dim"]] if a["start"] < 0 else 0)
    return aten.slice.Tensor, (a["self"], a["dim"], begin, begin + a["length"])


def _full(value: int | None) -> Callable[[Node, dict[str, Any]], Spelling]:
    return lambda node, a: (
        aten.full.default,
        (list(shape_of(node)), a.get("fill_value", a.get("s")) if value is None else value),
        {"dtype": dtype_of(node)},
    )


def _like(value: int) -> Callable[[Node, dict[str, Any]], Spelling]:
    return lambda node, a: (aten.full_like.default, (a["self"], value), {"dtype": dtype_of(node)})


def _cast(node: Node, a: dict[str, Any]) -> Spelling:
    x = a["self"]
    if dtype_of(x) != dtype_of(node):
        return aten._to_copy.default, (x,), {"dtype": dtype_of(node)}
    copies = packet(node) in (aten._to_copy, aten.lift_fresh_copy) or a.get("copy")
    return (aten.clone if copies else aten.detach).default, (x,)


def _dropout(node: Node, a: dict[str, Any]) -> Spelling:
    return aten.detach.default, (a["input"],)


def _product(node: Node, a: dict[str, Any]) -> Spelling:
    x, y = node.all_input_nodes[0], node.all_input_nodes[-1]
    return aten.matmul.default, (x, y)


def _limits(name: str) -> Callable[[Node, dict[str, Any]], Spelling]:
    def spelled(node: Node, a: dict[str, Any]) -> Spelling:
        return getattr(aten.clamp, node.target._overloadname), (a["self"],), {name: a[name]}

    return spelled


def _extreme(of_two: Any, of_all: Any) -> Callable[[Node, dict[str, Any]], Spelling]:
    def spelled(node: Node, a: dict[str, Any]) -> Spelling:
        if "other" in a:
            return of_two, (a["self"], a["other"])
        return None if "dim" in a else (of_all, (a["self"],))

    return spelled


def _norm(node: Node, a: dict[str, Any]) -> Spelling:
    order, dim = a["p"], a.get("dim")
    given = (a["self"], 2 if order is None else order, dim or None, a.get("keepdim", False))
    return aten.linalg_vector_norm.default, given, {"dtype": a["dtype"]} if a.get("dtype") is not None else {}


def _along(target: Any) -> Callable[[Node, dict[str, Any]], Spelling]:
    return lambda node, a: (target, (a["self"], a["dim"], a.get("dtype")))


def _reversed(node: Node, a: dict[str, Any]) -> Spelling:
    return aten.sub.Tensor, (a["other"], a["self"]), {} if a["alpha"] == 1 else {"alpha": a["alpha"]}


SPELLINGS: dict[Any, Callable[[Node, dict[str, Any]], Spelling]] = {
    **dict.fromkeys((aten.view, aten._unsafe_view, aten.flatten, aten.unflatten), _shaped(aten.reshape.default)),
    **dict.fromkeys((aten.reshape, aten.reshape_as, aten.view_as), _shaped(aten.reshape.default)),
    **dict.fromkeys((aten.squeeze, aten.unsqueeze), _shaped(aten.reshape.default)),
    **dict.fromkeys((aten.expand, aten.expand_as, aten.broadcast_to), _shaped(aten.expand.default)),
    **dict.fromkeys((aten.transpose, aten.t, aten.movedim, aten.moveaxis, aten.swapaxes, aten.swapdims), _permuted),
    **dict.fromkeys((aten.mT, aten.numpy_T, aten.adjoint, aten.mH, aten.permute), _permuted),
    **dict.fromkeys((aten.zeros, aten.new_zeros), _full(0)),
    **dict.fromkeys((aten.ones, aten.new_ones), _full(1)),
    **dict.fromkeys((aten.new_full, aten.scalar_tensor), _full(None)),
    **dict.fromkeys((aten.to, aten._to_copy, aten.type_as), _cast),
    **dict.fromkeys((aten.lift_fresh, aten.lift_fresh_copy), _cast),
    **dict.fromkeys((aten.mm, aten.mv, aten.dot), _product),
    aten.zeros_like: _like(0),
    aten.ones_like: _like(1),
    aten.dropout: _dropout,
    aten.narrow: _narrowed,
    aten.clamp_min: _limits("min"),
    aten.clamp_max: _limits("max"),
    aten.max: _extreme(aten.maximum.default, aten.amax.default),
    aten.min: _extreme(aten.minimum.default, aten.amin.default),
    aten.norm: _norm,
    aten.square: lambda node, a: (aten.pow.Tensor_Scalar, (a["self"], 2)),
    aten.reciprocal: lambda node, a: (aten.div.Tensor, (1, a["self"])),
    aten.rsub: _reversed,
    aten.floor_divide: lambda node, a: (aten.div.Tensor_mode, (a["self"], a["other"]), {"rounding_mode": "floor"}),
    **dict.fromkeys((aten._softmax, aten.special_softmax), _along(aten.softmax.int)),
    **dict.fromkeys((aten._log_softmax, aten.special_log_softmax), _along(aten.log_softmax.int)),
    aten.tile: lambda node, a: (
        aten.repeat.default,
        (a["self"], [*(1,) * (len(shape_of(a["self"])) - len(a["dims"])), *a["dims"]]),
    ),
    aten.pad: lambda node, a: (
        (aten.constant_pad_nd.default, (a["self"], a["pad"], a["value"] or 0)) if a["mode"] == "constant" else None
    ),
}


def spellings(graph: Editor) -> None:
    """Give each operator its one name in the normal form, in place. Views get the shape of their result as their
    argument."""
    for node in graph.graph.nodes:
        op = packet(node)
        if op in ALIASES:
            respell(node, getattr(ALIASES[op], node.target._overloadname), *node.args, **node.kwargs)
            op = packet(node)
        rule = SPELLINGS.get(op)
        found = None if rule is None or is_exempt(node) else rule(node, arguments(node))
        if found is not None:
            target, args, kwargs = found if len(found) == 3 else (*found, {})
            respell(node, target, *args, **kwargs)


# -- copies


def copies(graph: Editor) -> None:
    """Remove copies of the same type, and operators that change nothing, in place. One stays if the memory of a result
    of the graph depends on it, or that of an operand of an operator outside the normal form, which may need contiguous
    elements. An alias (a slice of the whole dimension) stays too: for another size it may be a part."""
    graph.graph.eliminate_dead_code()
    same = {aten.detach, aten.clone, aten.contiguous}
    shown: set[Node] = set()
    others = [x for x in graph.graph.nodes if x.op == "call_function" and packet(x) not in OPERATORS]
    stack = [x for node in (graph.graph.output_node(), *others) for x in node.all_input_nodes]
    while stack:
        node = stack.pop()
        if node not in shown and (packet(node) in VIEWS or packet(node) in same):
            shown.add(node)
            stack += node.all_input_nodes
    for node in graph.graph.nodes:
        if packet(node) not in same:
            continue
        for user in list(node.users):
            if user not in shown and packet(user) in OPERATORS:
                user.replace_input_with(node, node.all_input_nodes[0])
        if not node.users:
            graph.graph.erase_node(node)


PASSES: dict[str, Callable[[Editor], None]] = {
    "checks": checks,
    "decompositions": decompositions,
    "spellings": spellings,
    "quantised": quantised,
    "copies": copies,
}
"""The passes in their order."""
REMOVED: dict[str, set[Any]] = {
    "checks": CHECKS,
    "decompositions": set(DECOMPOSITIONS) - set(OPERATORS),
    "spellings": {*ALIASES, *SPELLINGS} - set(OPERATORS),
    "quantised": set(),
    "copies": set(),
}
"""By pass the operators that do not occur behind it. Quantised numbers that the form does not know stay with the
operators of their library; the last pass leaves copies where the memory of a result, or of an operand of another
operator, depends on them."""


def normalise(graph: Graph) -> None:
    """Bring an exported graph to the normal form, in place. Raises `NormalFormError` if a pass leaves an operator that
    it should replace."""
    editor = Editor(graph)
    for change in PASSES.values():
        change(editor)
    check_form(graph)


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """Capture a module checked by `module_of`; its graph is in the normal form. args, kwargs: as for `exported`. Raises
    like `exported`, `normalise` and `check_values`."""
    program = exported(model, args, kwargs)
    plain_tensors(program)
    normalise(program.graph)
    check_values(program)
    return program
