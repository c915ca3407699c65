"""A graph that passes of the normal form change."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..capture import SPELLED, op_name

aten = torch.ops.aten


class Editor:
    """A graph that passes change. Each node's meta has a fake tensor in `val`: shape and type without values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._mode: Any = detect_fake_mode([x.meta["val"] for x in graph.nodes if "val" in x.meta])

    def insert(self, at: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Insert an operator before the node `at`, and return its node. In messages it counts as a part of the operator
        `at`. target, args, kwargs: the operator and its arguments, in which nodes stand for tensors. Its result is
        computed on fake tensors; raises what PyTorch raises for shapes that do not fit."""
        with self._mode, torch.no_grad():
            values = map_arg((args, kwargs), lambda x: x.meta["val"])
            made = target(*values[0], **values[1])
        return self.add(at, target, args, kwargs, made)

    def add(self, at: Node, target: Any, args: Any, kwargs: Any, made: Any) -> Node:
        """Insert an operator before `at` whose result, `made`, is known: a fake tensor. Returns its node. target, args,
        kwargs: as for `insert`."""
        with self.graph.inserting_before(at):
            node = self.graph.call_function(target, args, kwargs)
        node.meta = at.meta | {"val": made, SPELLED: op_name(at)}
        return node

    def decompose(self, node: Node) -> None:
        """Replace an operator by the operators that PyTorch composes it of. Its result must be one tensor."""
        recorder = _Recorder(self, node)
        args, kwargs = map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
        with self._mode, torch.no_grad(), recorder:
            made = node.target(*args, **kwargs)
        last = recorder.nodes[id(made)]
        respell(node, last.target, *last.args, **last.kwargs)
        self.graph.erase_node(last)


class _Recorder(TorchDispatchMode):
    """Adds each operator that PyTorch runs to a graph, before the node that it is a part of."""

    def __init__(self, graph: Editor, at: Node) -> None:
        super().__init__()
        self._graph, self._at = graph, at
        self.nodes = {id(x.meta["val"]): x for x in at.all_input_nodes}
        """By the id() of a result, its node."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            if func._schema.is_mutable:  # such as clamp_min_: the operand is the result from here on
                func = getattr(getattr(aten, func.overloadpacket.__name__.removesuffix("_")), func._overloadname)
            args, kwargs = pytree.tree_map(lambda x: self.nodes.get(id(x), x), (args, kwargs or {}))
            self.nodes[id(made)] = self._graph.add(self._at, func, args, kwargs, made)
        return made


def respell(node: Node, target: Any, *args: Any, **kwargs: Any) -> None:
    """Make an operator another one with the same result, in place. target, args, kwargs: the new operator and its
    arguments. The name that messages have for it stays."""
    if node.target is not target:
        node.meta[SPELLED] = op_name(node)
    node.target, node.args, node.kwargs = target, args, kwargs
