"""Specialize a captured graph: fix some of its arguments, and get a module of the others. Its fast path of transformer
layers becomes operators that have lowering rules.

In eval mode, without gradients and with an even number of heads, nn.TransformerEncoderLayer and nn.MultiheadAttention
call one fused operator, which torch.compile captures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.nn import functional

PADDING = 1
"""The mask_type of a padding mask, which is the same for all rows of a sequence."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    columns: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute torch._native_multi_head_attention."""
    given: dict[str, Any] = {}
    if mask is not None:  # True or -inf hides a key
        hidden = mask.bool()
        if mask_type == PADDING:
            given["key_padding_mask"] = hidden
        else:
            given["attn_mask"] = hidden.flatten(0, 1) if hidden.ndim == 4 else hidden
    x = query.transpose(0, 1)
    k, v = (x if y is query else y.transpose(0, 1) for y in (key, value))
    result, weights = functional.multi_head_attention_forward(
        x, k, v, columns, heads, qkv_weight, qkv_bias, None, None, False, 0.0, weight, bias,
        training=False, need_weights=need_weights, average_attn_weights=average_attn_weights, **given,
    )  # fmt: skip
    return result.transpose(0, 1), weights


def _encoder_layer(
    x: Tensor,
    columns: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    weight: Tensor,
    bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Compute torch._transformer_encoder_layer_fwd."""

    def attention(x: Tensor) -> Tensor:
        given = (columns, heads, qkv_weight, qkv_bias, weight, bias, mask)
        return _attention(x, x, x, *given, need_weights=False, mask_type=mask_type)[0]

    def feed_forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(
            functional.gelu(inner) if use_gelu else functional.relu(inner), ffn_weight_2, ffn_bias_2
        )

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (columns,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, (columns,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + attention(first(x))
        return x + feed_forward(second(x))
    x = first(x + attention(x))
    return second(x + feed_forward(x))


FUSED: dict[Any, Callable[..., Any]] = {
    torch._transformer_encoder_layer_fwd: _encoder_layer,
    torch._native_multi_head_attention: _attention,
}
"""By operator of the fast path, a function that computes the same."""


class Bound(nn.Module):
    """A graph with some arguments fixed. known: their values, by position among the graph's placeholders, from 0 on.
    Its tensors become parameters or buffers of this module, named as in the graph, so that tracing treats them as
    constants."""

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
        """Run the graph, and return its results. others: the arguments that are not fixed, in order. Raises `TypeError`
        for another number of them."""
        taken = self._count - len(self._named) - len(self._numbers)
        if len(others) != taken:
            raise TypeError(f"the graph takes {taken} arguments, not {len(others)}")
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
    """Return whether an argument is a number that torch.compile passes as a tensor, such as the eps of a norm: float64,
    of shape ()."""
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
    """Return the positions, from 0 on, of arguments that are parameters or buffers of the module that the graph was
    captured from, and that the graph does not write to. arguments: of a call, in the order of the graph's placeholders.
    A cache of keys and values, which torch marks like a buffer, is none of them: the graph writes to it."""
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
