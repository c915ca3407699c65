"""A captured graph as text: a line for each node, with the type and the shape of its result.

    weight: float32[6, 4] = input()
    x: float32[2, 4] = input()
    y: float32[2, 6] = aten.linear.default(x, weight)  # encoder.0 (aten.addmm.default)
    return (y,)

Behind `#` are the path of the module and, if it has another name here, the operator of the user's model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..capture import SPELLED, module_path
from .passes import CHUNKS


def show(graph: Graph) -> str:
    """Return a graph as text: a line for each node, as the head of this file shows. The text has everything of the
    graph that passes read, so a test can make the graph of it again."""
    return "".join(f"{_line(node)}\n" for node in graph.nodes)


def _line(node: Node) -> str:
    if node.op == "output":
        return f"return {_shown(node.args[0])}"
    kind, target = ("input", "") if node.op == "placeholder" else (node.op, repr(node.target))
    given = [target] if node.op == "get_attr" else []
    if node.op == "call_function":
        kind = str(node.target) if isinstance(node.target, OpOverload) else node.target.__name__
        given = [*map(_shown, node.args), *(f"{name}={_shown(x)}" for name, x in node.kwargs.items())]
    text = f"{node.name}: {_type(node.meta.get('val'))} = {kind}({', '.join(given)})"
    chunks = f", part of {node.meta[CHUNKS]}" if CHUNKS in node.meta else ""
    spelled = f"({node.meta[SPELLED]}{chunks})" if SPELLED in node.meta else ""
    note = " ".join(filter(None, (module_path(node), spelled)))
    return f"{text}  # {note}" if note else text


def _shown(x: Any) -> str:
    if isinstance(x, list | tuple):
        parts = ", ".join(map(_shown, x))
        return f"[{parts}]" if isinstance(x, list) else f"({parts}{',' * (len(x) == 1)})"
    if isinstance(x, torch.device):
        return f"torch.{x.type}"
    return x.name if isinstance(x, Node) else repr(x)


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_type, value))},)"
    return type(value).__name__
