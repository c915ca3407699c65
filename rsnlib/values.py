"""What a tensor of the captured graph is to the machine, and what the rules know of all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..base.errors import TensorError, UnsupportedError
from ..machine.view import View
from ..scheduler.graph import Array
from .capture import Constants, Environment, Interface, is_empty, is_static, module_path, packet, shape_of, site
from .layers import Attend, Float64, Layer, Linear, Source
from .pointwise import Pointwise

aten = torch.ops.aten


@dataclass(frozen=True)
class Value:
    """A tensor that shows an activation. Over a Source it is the host's, and becomes an activation when needed."""

    base: Layer
    view: View


@dataclass(frozen=True)
class PartialAttention:
    """scale * q @ k^T + masks, (batch, heads, seq, seq), and the softmax of that if `normal`; scale: of all heads, or
    (heads,)."""

    q: Value
    k: Value
    scale: float | Float64 = 1.0
    masks: tuple[Node, ...] = ()
    normal: bool = False


@dataclass(frozen=True)
class HostSuffix:
    """A tensor of the host that depends on the machine: which operator left the machine, and why."""

    node: Node
    why: str


Abstract = Value | PartialAttention | Pointwise | HostSuffix | list[Value]


def is_host(value: Abstract) -> bool:
    """Whether PyTorch computes it before the machine starts."""
    if isinstance(value, list):
        return all(map(is_host, value))
    return isinstance(value, Value) and isinstance(value.base, Source)


class RefusedError(UnsupportedError):
    """What the machine cannot run. node: where the graph would have to be cut. captured: of a module that is refused as
    a whole, its graph, how it is called and the example's values, so that nobody has to capture it again to cut it."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.captured: tuple[ExportedProgram, Interface, Environment] | None = None


class WrongTypeError(TensorError):
    """A tensor of another type than float32 where the machine computes. node: the operator that takes it."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


def unsupported(node: Node, why: str) -> UnsupportedError:
    return RefusedError(node, f"{site(node)}: {why}")


class AbstractState:
    """The value of each node so far. Every activation of the machine has `rows` = batch * seq rows. causal: attention
    masks from the arguments that are causal in the example."""

    def __init__(self, program: ExportedProgram, causal: Container[Node] = ()) -> None:
        self.program = program
        self.causal = causal
        self.of: dict[Node, Abstract] = {}
        self.masks: dict[Attend, Node] = {}
        self.source_nodes: dict[Source, Node] = {}
        self._made: dict[Any, Any] = {}
        self._constants = Constants(program)
        self.batch, self.seq = self._find_rows()
        self.rows = self.batch * self.seq

    def _find_rows(self) -> tuple[int, int]:
        """(batch, seq) as the first attention has them, else as the first matrix product has them."""
        products = []
        for node in self.program.graph.nodes:
            op, shape = packet(node), shape_of(node)
            if any(map(is_empty, (node, *node.all_input_nodes))):
                continue
            if op in (aten.scaled_dot_product_attention, aten.softmax) and len(shape) == 4:
                return shape[0], shape[2]
            if op in (aten.linear, aten.mm, aten.addmm, aten.matmul):
                x, weight = node.args[1:3] if op is aten.addmm else node.args[:2]
                if self.is_constant(weight) and not self.is_constant(x) and len(shape_of(x)) > 1:
                    products.append(shape_of(x)[:-1])
        if not products:
            return 1, 1
        batch, *seq = products[0] if len(products[0]) > 1 else (1, *products[0])
        return batch, prod(seq)

    def root(self, node: Node) -> Value:
        """A tensor of the host as an activation of its own."""
        shape = shape_of(node) if is_static(node) else ()
        view = View.dense(shape)
        if len(shape) == 3 and shape[:2] == (self.seq, self.batch) != (self.batch, self.seq):
            view = View.dense((self.batch, self.seq, shape[2])).permute((1, 0, 2))  # as with batch_first=False
        return Value(self.source(node, view, shape[-1] if shape else 1), view)

    def source(self, node: Node, view: View, width: int) -> Source:
        """The activation that this tensor of the host (or what it broadcasts to) shows through `view`."""
        if (node, view) not in self._made:
            name = node.name if node.op == "placeholder" else module_path(node) or node.name
            self._made[node, view] = source = Source(name, width, view)
            self.source_nodes[source] = node
        made: Source = self._made[node, view]
        return made

    def operand(self, node: Node, fits: Callable[[View, int], bool]) -> Value | None:
        """As `fit`; but a tensor of the host that does not fit may be taken for an activation of its own."""
        value = self.of[node]
        found = self.fit(value, fits)
        return self.fit(self.root(node), fits) if found is None and is_host(value) else found

    def fit(self, value: Abstract, fits: Callable[[View, int], bool]) -> Value | None:
        """The value as one of an activation that it shows in full, if fits(view, columns of the activation) then.

        Columns of a projection (queries, keys and values packed in one) become a projection of their own.
        """
        if not isinstance(value, Value):
            return None
        base, columns = value.base, value.view.columns(self.rows, value.base.width)
        if columns is None or (isinstance(base, Source) and prod(base.view.shape) != self.rows * base.width):
            return None  # also where it shows the first rows of a tensor that has more
        index, view = columns
        if not np.array_equal(index, np.arange(base.width)):
            if not isinstance(base, Linear) or base.residual is not None or base.norm is not None:
                return None
            key = (base, index.tobytes())
            if key not in self._made:
                self._made[key] = replace(base, weight=base.weight[:, index], bias=base.bias[index], before=None)
            base = self._made[key]
        return Value(base, view) if fits(view, base.width) else None

    def is_constant(self, x: Any) -> bool:
        """Whether it depends on no argument of the module."""
        return x in self._constants

    def constant(self, node: Node) -> torch.Tensor:
        """The value of one that depends on none."""
        return self._constants.value(node)

    def once(self, what: str, array: Array) -> Array:
        """The same array for all that have equal ones, as the layers of a stack have."""
        digest = hashlib.blake2b(np.ascontiguousarray(array).data).digest()
        made: Array = self._made.setdefault((what, array.shape, digest), array)
        return made

    def vector(self, node: Node | None, width: int, default: float) -> Float64 | None:
        """A parameter (width,) in float64, `default` everywhere if there is none; None if it is not such a vector."""
        if node is None:
            return np.full(width, default)
        if not self.is_constant(node) or self.constant(node).numel() != width:
            return None
        vector: Float64 = self.constant(node).double().numpy().reshape(width)
        return vector

    def number(self, x: Any) -> float | None:
        """A number of the graph, or a constant tensor of one; None if it is neither."""
        if isinstance(x, int | float):
            return float(x)
        return float(self.constant(x)) if self.is_constant(x) and self.constant(x).numel() == 1 else None


Arguments = dict[str, Any]
"""Of an operator, by name."""
LoweringPattern = Callable[[AbstractState, Node, Arguments], Abstract | str]
"""From what an operator is given to what it makes, or to why the machine does not take it."""
