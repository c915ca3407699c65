"""The same model in another spelling: its operators as a flat function over renamed tensors, products as einsums and
addmm, attention and activations as calls of functions or spelled out."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn
from torch.export.graph_signature import InputKind
from torch.fx import Node

aten = torch.ops.aten


class Respelled(nn.Module):
    """Calls the operators of a captured module in other words. Its tensors have other names, and it has no submodules;
    arguments are given by the names that they had, and results come as a tuple of tensors."""

    def __init__(self, module: nn.Module, given: dict[str, Any]) -> None:
        super().__init__()
        with torch.no_grad():
            self._program = torch.export.export(module, (), given, strict=False)
        numbers = count()
        self._names: dict[str, str] = {}
        for spec in self._program.graph_signature.input_specs:
            if spec.kind == InputKind.USER_INPUT:
                continue
            target = str(spec.target)
            found = self._program.state_dict.get(target, self._program.constants.get(target))
            self._names[spec.arg.name] = f"tensor_{next(numbers)}"  # type: ignore[union-attr]
            self.register_buffer(self._names[spec.arg.name], torch.as_tensor(found).detach())  # type: ignore[union-attr]
        self.arguments = list(given)

    def forward(self, **given: Any) -> Any:
        """The results as a tuple."""
        kinds = count()
        flat = iter(torch.utils._pytree.tree_leaves(tuple(given[name] for name in self.arguments)))
        values: dict[Node, Any] = {}
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                own = self._names.get(node.name)
                values[node] = next(flat) if own is None else getattr(self, own)
            elif node.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                function = SPELLINGS.get(node.target)
                if function is None:
                    values[node] = node.target(*args, **kwargs)
                elif function is linear:
                    values[node] = linear(next(kinds), *args, **kwargs)
                else:
                    values[node] = function(*args, **kwargs)
        return tuple(values[x] for x in self._program.graph.output_node().args[0] if isinstance(x, Node))


def linear(kind: int, x: Any, weight: Any, bias: Any = None) -> Any:
    """In turn an einsum, addmm over flat rows, and a product with the transposed weight."""
    if kind % 3 == 1 and bias is not None:
        return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], -1)
    y = torch.einsum("...k,nk->...n", x, weight) if kind % 3 == 0 else x @ weight.mT
    return y if bias is None else y + bias


def attention(q: Any, k: Any, v: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False, **more: Any) -> Any:
    """Scores, softmax and values one after the other."""
    if causal or more.get("enable_gqa"):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, **more)
    factor = more.get("scale") or q.shape[-1] ** -0.5
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * factor
    if mask is not None:
        scores = scores + (torch.where(mask, 0.0, float("-inf")) if mask.dtype == torch.bool else mask)
    return torch.matmul(torch.softmax(scores, -1), v)


def gelu(x: Any, approximate: str = "none") -> Any:
    """By its formula."""
    if approximate == "tanh":
        return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


SPELLINGS: dict[Any, Any] = {
    aten.linear.default: linear,
    aten.scaled_dot_product_attention.default: attention,
    aten.gelu.default: gelu,
    aten.silu.default: lambda x: x * torch.sigmoid(x),
    aten.layer_norm.default: lambda x, *a: F.layer_norm(x, *a[:4]),
    aten.conv2d.default: lambda x, *a: F.conv2d(x, *a),
    aten.conv1d.default: lambda x, *a: F.conv1d(x, *a),
}
