"""A captured graph while it is rewritten: facts about its operators, and methods to insert and replace them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .capture import SPELLED, Constants, arguments, dtype_of, is_empty, is_static, packet, shape_of
from .normal_form.editor import Editor

aten = torch.ops.aten


@dataclass(frozen=True)
class LinearProduct:
    """A product x @ weight + bias. node: its result, (..., N). x: (..., K). weight: constant, (N, K) if `transposed`,
    else (K, N). bias: (N,) or None."""

    node: Node
    x: Node
    weight: Node
    bias: Node | None
    transposed: bool

    @property
    def width(self) -> int:
        """The number of columns of the result, N."""
        return shape_of(self.node)[-1]


@dataclass(frozen=True)
class Premise:
    """The weights and constants whose values decided about rewrites or went into new constants. With other values, a
    rewritten graph may compute something else than the model. read: the tensors, each with the digest of its values."""

    read: tuple[tuple[torch.Tensor, bytes], ...]

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> Premise:
        """Record the present values of tensors."""
        return cls(tuple((x, _digest(x)) for x in tensors))

    def holds(self) -> bool:
        """Return whether all tensors still have the values that were recorded."""
        return all(_digest(x) == digest for x, digest in self.read)


def _digest(x: torch.Tensor) -> bytes:
    flat = x.detach().contiguous().view(-1)
    return hashlib.blake2b(flat.view(torch.uint8).numpy() if x.numel() else b"").digest()


def _place(node: Node) -> dict[str, Any]:
    """The meta of a node without what it computes."""
    return {key: x for key, x in node.meta.items() if key not in ("val", SPELLED)}


class Rewriter(Editor):
    """A captured graph and what is known of its nodes; both are updated with each rewrite.

    constants: nodes that depend on no argument. products: products that the machine may compute, if it has their rows.
    computed: products, attention, and all nodes that depend on them; the host computes all other nodes before the
    machine starts.
    """

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__(program.graph)
        self.program = program
        self.constants = Constants(program)
        self.products: dict[Node, LinearProduct] = {}
        self.computed: set[Node] = set()
        self._gone: set[Node] = set()
        self._read: dict[Node, torch.Tensor] = {}
        self.memo: dict[Any, Any] = {}
        """What rewrites keep for later nodes."""
        for node in self.graph.nodes:
            self._note(node)

    def _note(self, node: Node) -> None:
        """Record what is known of a node; its operands must be recorded already."""
        if self.constants.note(node):
            return
        product = self._product(node)
        if product is not None:
            self.products[node] = product
        attention = packet(node) is aten.scaled_dot_product_attention
        if product is not None or attention or any(x in self.computed for x in node.all_input_nodes):
            self.computed.add(node)

    def _product(self, node: Node) -> LinearProduct | None:
        op, a = packet(node), arguments(node)
        if any(map(is_empty, (node, *node.all_input_nodes))):
            return None
        if op is aten.linear:
            found = LinearProduct(node, a["input"], a["weight"], a["bias"], True)
        elif op is aten.matmul:
            found = LinearProduct(node, a["self"], a["other"], None, False)
        else:
            return None
        floats = all(dtype_of(x) == torch.float32 for x in (node, found.x, found.weight))
        plain = is_static(node) and is_static(found.x) and len(shape_of(found.x)) > 1 == len(shape_of(found.weight)) - 1
        vector = found.bias is None or (found.bias in self.constants and shape_of(found.bias) == (found.width,))
        return found if floats and plain and vector and found.weight in self.constants else None

    def insert(self, at: Node, target: Any, *args: Any, origin: Node | None = None, **kwargs: Any) -> Node:
        """Insert an operator before `at`, and return its node. target, args, kwargs: the operator and its arguments, in
        which nodes stand for tensors. origin: the node whose module path it gets; None takes that of `at`. Raises what
        PyTorch raises for shapes that do not fit."""
        node = super().insert(at, target, *args, **kwargs)
        node.meta = {**_place(origin or at), "val": node.meta["val"]}
        self._note(node)
        return node

    @property
    def premise(self) -> Premise:
        """What the rewritten graph relies on: the weights and constants on which the values that `value` has returned
        depend, with the digests of their present values."""
        return Premise.of(self._read.values())

    def value(self, node: Node) -> torch.Tensor:
        """Return the value of a node of `constants`, in the node's shape. Records the weights and constants on which it
        depends. Raises as `Constants.value` does."""
        seen, stack = {node}, [node]
        while stack:
            x = stack.pop()
            if x.op != "call_function" and isinstance(found := self.constants.value(x), torch.Tensor):
                self._read[x] = found
            stack += [y for y in x.all_input_nodes if y not in seen]
            seen.update(x.all_input_nodes)
        return self.constants.value(node)

    def constant(self, at: Node, value: torch.Tensor) -> Node:
        """Insert a constant before `at`, and return its node. value: of any shape and type."""
        name, root = f"rsn_constant_{len(self.graph.nodes)}", self.program.graph_module
        while hasattr(root, name):
            name += "_"
        setattr(root, name, value)
        with self.graph.inserting_before(at):
            node = self.graph.create_node("get_attr", name)  # get_attr would look for it in another module
        with self._mode:
            node.meta = {**_place(at), "val": self._mode.from_tensor(value, static_shapes=True)}
        self.constants.add(node, value)
        return node

    def put(self, new: Node, old: Node) -> None:
        """Replace `old` by `new` everywhere, in place, and remove operators that are no longer used. What is known of
        the nodes is updated."""
        users = old.replace_all_uses_with(new)
        stack = [new] if new in self.computed else []
        while stack:
            found = [x for x in stack.pop().users if x not in self.computed]
            self.computed.update(found)
            stack.extend(found)
        for user in users:  # what is known of them depends on their operands
            self.products.pop(user, None)
            self._note(user)
        stack = [old]
        while stack:
            node = stack.pop()
            if node in self._gone or node.op != "call_function" or node.users:
                continue
            stack.extend(node.all_input_nodes)
            self._erase(node)

    def _erase(self, node: Node) -> None:
        self._gone.add(node)
        self.graph.erase_node(node)

    def nodes(self) -> Iterator[Node]:
        """Return the operators at the time of the call, in order, without those removed during the iteration."""
        return (x for x in list(self.graph.nodes) if x.op == "call_function" and x not in self._gone)

    @staticmethod
    def is_sole(node: Node) -> bool:
        """Return whether exactly one node uses a node's result."""
        return len(node.users) == 1

    def weight(self, at: Node, product: LinearProduct, spans: Sequence[tuple[int, int]] = ()) -> Node:
        """Insert nodes before `at` for the weight (N, K) of a product, and return the last of them. spans: ranges of
        the operand's columns to keep, each from the first to before the second number; K is then the sum of their
        widths. Empty keeps all."""
        axis = 1 if product.transposed else 0
        origin = product.node
        pieces = [self.insert(at, aten.slice.Tensor, product.weight, axis, *span, origin=origin) for span in spans]
        weight = pieces[0] if pieces else product.weight
        if len(pieces) > 1:
            weight = self.insert(at, aten.cat.default, pieces, axis, origin=origin)
        return weight if product.transposed else self.insert(at, aten.permute.default, weight, [1, 0], origin=origin)


Rewrite = Callable[[Rewriter, Node], Node | None]
"""A rewrite: called with a graph and a node, an operator of it. It inserts what takes the place of the node, and
returns the node that replaces it, or None to leave it. It does not remove the given one (`Rewriter.put` does)."""


def replacing(*operators: Any) -> Callable[[Rewrite], Rewrite]:
    """Return a decorator for a `Rewrite` of some operators: of a node of any other one the decorated function returns
    None. operators: without their overloads, such as `aten.mul`."""

    def made(rewrite: Rewrite) -> Rewrite:
        @wraps(rewrite)
        def replaced(graph: Rewriter, node: Node) -> Node | None:
            return rewrite(graph, node) if packet(node) in operators else None

        return replaced

    return made
