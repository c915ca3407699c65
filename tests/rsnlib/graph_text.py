"""Read a captured graph from its text (`rsnlib.normal_form.text`), so that passes are tested from text to text."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from math import inf, nan
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from rsn.rsnlib.capture import SPELLED
from rsn.rsnlib.normal_form.passes import CHUNKS

TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[A-Za-z_][\w.]*|-?(?:\d[\w.+-]*|inf)|\S)""")
NAMES = {"None": None, "True": True, "False": False, "inf": inf, "-inf": -inf, "nan": nan}
LINE = re.compile(r"(\w+): (.+?) = ([\w.]+)(\(.*?\))(?:  # (.*?)(?: \(([\w.]+)(?:, part of (\d+))?\))?)?")


def read(text: str) -> Graph:
    """The graph that a text shows; tensors have no values. Raises ValueError for a line that is none, or that shows a
    size that depends on data."""
    graph, nodes = Graph(), dict[str, Node]()
    with FakeTensorMode():
        for line in filter(None, text.splitlines()):
            if line.startswith("return "):
                graph.output(_ArgumentReader(line.removeprefix("return "), nodes).value())
            else:
                _read_line(graph, nodes, line)
    return graph


def _read_line(graph: Graph, nodes: dict[str, Node], line: str) -> None:
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no node of a graph: {line}")
    name, kind, op, given, path, spelled, chunks = found.groups()
    args, kwargs = _ArgumentReader(given, nodes).arguments()
    if op == "input":
        node = graph.placeholder(name)
    elif op == "get_attr":
        node = graph.create_node("get_attr", args[0], name=name)
    else:
        node = graph.create_node("call_function", _target(op), args, kwargs, name)
    node.meta["val"] = _ArgumentReader(kind, {}).type()
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


class _ArgumentReader:
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
