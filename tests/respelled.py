"""Models in another spelling: the same computation in other operators, without the names of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten
Spelling = Callable[[Callable[..., Node], Node, int], Node | None]


def respelled(model: torch.nn.Module, given: dict[str, Any]) -> torch.nn.Module:
    """The model, captured with these arguments, with linear layers as einsum, matmul and addmm, attention as products
    and a softmax, and norms, SiLU and negations spelled out. Its results have the structure of the model's."""
    with torch.no_grad():
        made = torch.export.export(model, (), given, strict=False).module()
    graph: Graph = made.graph
    count = 0
    for node in list(graph.nodes):
        spelling = SPELLINGS.get(node.target)
        if spelling is None:
            continue
        with graph.inserting_before(node):
            new = spelling(lambda f, *args, **kwargs: graph.call_function(f, args, kwargs), node, count)
        count += 1
        if new is not None:
            new.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    for node in graph.nodes:
        node.meta.pop("nn_module_stack", None)
    graph.eliminate_dead_code()
    made.recompile()
    for module in made.modules():
        module.training = False
    return made


def _shape(x: Any) -> list[int]:
    return list(x.meta["val"].shape)


def _linear(call: Callable[..., Node], node: Node, count: int) -> Node:
    x, weight, *bias = node.args
    if bias and bias[0] is not None:
        flat = call(aten.reshape.default, x, [-1, _shape(x)[-1]])
        made = call(aten.addmm.default, bias[0], flat, call(aten.t.default, weight))
        return call(aten.reshape.default, made, _shape(node))
    if count % 2:
        return call(aten.einsum.default, "...k,nk->...n", [x, weight])
    return call(aten.matmul.default, x, call(aten.t.default, weight))


def _attention(call: Callable[..., Node], node: Node, count: int) -> Node:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    q, k, v, mask = (given.get(name) for name in names[:4])
    heads, rows, columns = _shape(q)[1:]
    if _shape(k)[1] != heads:
        k, v = (call(aten.repeat_interleave.self_int, x, heads // _shape(k)[1], 1) for x in (k, v))
    q = call(aten.mul.Tensor, q, given.get("scale") or columns**-0.5)
    scores = call(aten.einsum.default, "bhqd,bhkd->bhqk", [q, k])
    if given.get("is_causal"):
        mask = call(aten.tril.default, call(aten.ones.default, [rows, rows], dtype=torch.bool))
    if mask is not None and mask.meta and mask.meta["val"].dtype != torch.bool:
        scores = call(aten.add.Tensor, scores, mask)
    elif mask is not None:
        hidden = call(aten.to.dtype, call(aten.logical_not.default, mask), torch.float32)
        scores = call(aten.add.Tensor, scores, call(aten.mul.Tensor, hidden, -1e9))
    return call(aten.einsum.default, "bhqk,bhkd->bhqd", [call(aten.softmax.int, scores, -1), v])


def _mean(call: Callable[..., Node], node: Node, count: int) -> Node:
    x = node.args[0]
    return call(aten.div.Tensor, call(aten.sum.dim_IntList, x, [-1], True), _shape(x)[-1])


def _pow(call: Callable[..., Node], node: Node, count: int) -> Node | None:
    return call(aten.square.default, node.args[0]) if node.args[1] == 2 else None


SPELLINGS: dict[Any, Spelling] = {
    aten.linear.default: _linear,
    aten.scaled_dot_product_attention.default: _attention,
    aten.mean.dim: _mean,
    aten.pow.Tensor_Scalar: _pow,
    aten.silu.default: lambda call, node, _: call(aten.mul.Tensor, call(aten.sigmoid.default, *node.args), *node.args),
    aten.neg.default: lambda call, node, _: call(aten.mul.Tensor, node.args[0], -1),
    aten.rsqrt.default: lambda call, node, _: call(aten.reciprocal.default, call(aten.sqrt.default, node.args[0])),
}
"""By operator, what computes the same: makes nodes with `call`, and returns the last."""
