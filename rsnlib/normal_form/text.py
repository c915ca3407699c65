"""A captured graph as text, and read from it: a line for each node, with the type and the shape of its result.

    weight: float32[6, 4] = input()
    x: float32[2, 4] = input()
    y: float32[2, 6] = aten.linear.default(x, weight)  # encoder.0 (aten.addmm.default)
    return (y,)

Behind `#` are the path of the module and, if it has another name here, the operator of the user's model.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from ..capture import SPELLED, module_path
from .passes import CHUNKS

TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_][\w.]*|-?(?:\d[\w.+-]*|inf)|\S)""")
NAMES = {"None": None, "True": True, "False": False, "inf": inf, "-inf": -inf, "nan": nan}
LINE = re.compile(r"(\w+): (.+?) = ([\w.]+)(\(.*?\))(?:  # (.*?)(?: \(([\w.]+)(?:, part of (\d+))?\))?)?")


def show(graph: Graph) -> str:
    """A graph as text; `read` reads it, unless a size depends on data."""
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


def read(text: str) -> Graph:
    """The graph that a text shows; tensors have no values. Raises ValueError for a line that is none, or that shows a
    size that depends on data."""
    graph, nodes = Graph(), dict[str, Node]()
    with FakeTensorMode():
        for line in filter(None, text.splitlines()):
            if line.startswith("return "):
                graph.output(_Reader(line.removeprefix("return "), nodes).value())
            else:
                _read_line(graph, nodes, line)
    return graph


def _read_line(graph: Graph, nodes: dict[str, Node], line: str) -> None:
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no node of a graph: {line}")
    name, kind, op, given, path, spelled, chunks = found.groups()
    args, kwargs = _Reader(given, nodes).arguments()
    if op == "input":
        node = graph.placeholder(name)
    elif op == "get_attr":
        node = graph.create_node("get_attr", args[0], name=name)
    else:
        node = graph.create_node("call_function", _target(op), args, kwargs, name)
    node.meta["val"] = _Reader(kind, {}).type()
    if path:
        node.meta["nn_module_stack"] = {"": (path, "")}
    if spelled:
        node.meta[SPELLED] = spelled
    if chunks:
        node.meta[CHUNKS] = int(chunks)
    nodes[name] = node


def _target(name: str) -> Callable[..., Any]:
    if name == "getitem":
        return operator.getitem
    target: Any = torch.ops
    for part in name.split("."):
        target = getattr(target, part)
    found: Callable[..., Any] = target
    return found


class _Reader:
    """Reads the arguments of an operator, and types."""

    def __init__(self, text: str, nodes: Mapping[str, Node]) -> None:
        self._tokens = TOKEN.findall(text)
        self._nodes = nodes
        self._at = 0

    def _take(self) -> str:
        self._at += 1
        token: str = self._tokens[self._at - 1]
        return token

    def _is(self, token: str) -> bool:
        """Whether the next token is this one; then it is taken."""
        found = self._tokens[self._at : self._at + 1] == [token]
        self._at += found
        return found

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Those between brackets, by position and by name."""
        args, kwargs = list[Any](), dict[str, Any]()
        self._take()
        while not self._is(")"):
            if self._tokens[self._at + 1] == "=":
                name = self._take()
                self._take()
                kwargs[name] = self.value()
            else:
                args.append(self.value())
            self._is(",")
        return tuple(args), kwargs

    def value(self) -> Any:
        """One argument."""
        token = self._take()
        if token in "[(":
            parts = []
            while not self._is("]" if token == "[" else ")"):
                parts.append(self.value())
                self._is(",")
            return parts if token == "[" else tuple(parts)
        if token in NAMES or token in self._nodes:
            return NAMES[token] if token in NAMES else self._nodes[token]
        if token.startswith("torch."):
            return torch.device("cpu") if token == "torch.cpu" else getattr(torch, token.removeprefix("torch."))
        if token[0] in "\"'":
            return token[1:-1].encode().decode("unicode_escape")
        return float(token) if set(token) & set(".en") else int(token)

    def type(self) -> Any:
        """A tensor of a type and a shape, or several."""
        token = self._take()
        if token == "(":
            parts = []
            while not self._is(")"):
                parts.append(self.type())
                self._is(",")
            return tuple(parts)
        if self._at == len(self._tokens):
            return None  # no tensor
        try:
            return torch.empty(self.value(), dtype=getattr(torch, token))
        except ValueError:
            raise ValueError(f"a size of {''.join(self._tokens)} depends on data") from None
