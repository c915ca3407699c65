"""Abstract values: what each tensor of a captured graph is on the machine, and the state that lowering rules share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node

from ..base.errors import TensorError, UnsupportedError
from ..scheduler.graph import Array, AttentionLayer, Float64, Gemm, Rotary
from .capture import Constants, Environment, Interface, is_empty, is_static, module_path, packet, shape_of, site
from .layers import Base, HostInput, LayerBuilder
from .mask import Pattern
from .pointwise import PointwiseFunction
from .rotate import Factors
from .view import View

if TYPE_CHECKING:
    from .caches import Append

aten = torch.ops.aten


@dataclass(frozen=True)
class Value:
    """A tensor that is `view` of the activation that layer `base` computes. Over a `HostInput` it is a tensor of the
    host, which becomes an input of the machine when a layer needs it."""

    base: Base
    view: View


@dataclass(frozen=True)
class PartialAttention:
    """An attention of which the operators read so far compute only a part.

    q, k: queries and keys, tensors (batch, heads, seq, columns). The value is scale * q @ k^T + masks, of shape (batch,
    heads, seq, seq); if `normal`, the softmax of that. scale: a number, or one per head, shape (heads,). cap: the
    scores are cap * tanh(scale * q @ k^T) before masks are added; None without a cap. masks: nodes that are added.
    """

    q: Value
    k: Value
    scale: float | Float64 = 1.0
    cap: float | None = None
    masks: tuple[Node, ...] = ()
    normal: bool = False


@dataclass(frozen=True)
class HostSuffix:
    """A tensor of the host that depends on results of the machine. node: the operator that left the machine. why: the
    reason, as text."""

    node: Node
    why: str


Abstract = Value | PartialAttention | PointwiseFunction | HostSuffix
"""The abstract value of a node."""


def is_host(value: Abstract) -> bool:
    """Return whether PyTorch computes the tensor before the machine starts."""
    return isinstance(value, Value) and isinstance(value.base, HostInput)


class RefusedError(UnsupportedError):
    """The machine cannot run an operator. node: the operator. left: an earlier operator that the machine cannot run, if
    `node` is refused because its operands are on the host since then; the graph could then be cut there, else at
    `node`. captured: graph, interface and example values of a module that is refused as a whole, so that splitting it
    need not capture it again. tables: names of the arguments from which the host computes the tables, such as those of
    rotary positions, that the operands of `node` were multiplied by; if these arguments were constants, the machine
    might run the operator."""

    def __init__(self, node: Node, message: str, left: Node | None = None) -> None:
        super().__init__(message)
        self.node, self.left = node, left
        self.captured: tuple[ExportedProgram, Interface, Environment] | None = None
        self.tables: tuple[str, ...] = ()


class WrongTypeError(TensorError):
    """An operand of an operator of the machine is not float32. node: the operator."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


def unsupported(node: Node, why: str) -> UnsupportedError:
    """Return the error for an operator that the machine cannot run: a `RefusedError` with operator, module path and
    `why`."""
    return RefusedError(node, f"{site(node)}: {why}")


def _columns(layer: Gemm, index: npt.NDArray[np.intp]) -> dict[str, Any]:
    """The fields of a product that has only these columns of `layer`."""
    # Columns side by side, such as the queries of a packed projection, are a view: a copy costs more than all the rest.
    is_run = len(index) > 0 and np.array_equal(index, np.arange(index[0], index[0] + len(index)))
    columns = slice(index[0], index[0] + len(index)) if is_run else index
    vectors = {"bias": layer.bias, "scale": layer.scale, "shift": layer.shift}
    picked = {name: None if vector is None else vector[columns] for name, vector in vectors.items()}
    return {"weight": layer.weight[:, columns], **picked}


class AbstractState:
    """The state of an abstract interpretation: the abstract value of each node so far, in `of`.

    batch, seq: sequences, and rows of each. Activations of the machine have batch * seq rows, or as many as those of
    another attention: batch * n, n one of `seqs`. layers: makes layers. written: the arguments that the graph writes
    to, each with its new value. masks: the mask node of each masked attention. patterns: which keys each row sees in
    the example, by attention mask; None for one that becomes an input of the machine and is added to scores.
    source_nodes: the tensor of the host that each input of the machine holds. norms_of_inputs, keeps_caches: what the
    machine can do (`Passes`). example: the values of the example by node, which receives others that are computed; None
    without one.
    """

    def __init__(
        self,
        program: ExportedProgram,
        patterns: Mapping[Node, Pattern | None] = MappingProxyType({}),
        *,
        norms_of_inputs: bool = False,
        keeps_caches: bool = True,
        example: Environment | None = None,
    ) -> None:
        self.program = program
        self.patterns = patterns
        self.norms_of_inputs = norms_of_inputs
        self.keeps_caches = keeps_caches
        self.example = example
        self.of: dict[Node, Abstract] = {}
        self.layers = LayerBuilder()
        self.written = written_arguments(program)
        self.masks: dict[AttentionLayer, Node] = {}
        self.appends: dict[Gemm, Append] = {}
        """The caches that rows are appended to, by the layer that appends them."""
        self.appended: dict[Node, Append] = {}
        """The same by the operator."""
        self.source_nodes: dict[HostInput, Node] = {}
        self.tables: dict[HostInput, Factors] = {}
        """The tensors of the host that inputs with factors of rotations are made of."""
        self.shown: dict[Value, Node] = {}
        """The first tensor of the host that is each view of a source."""
        self._made: dict[Any, Any] = {}
        self._constants = Constants(program)
        self.batch, self.seq = self._find_rows()
        # Rows that depend on data are no rows of the machine
        self.seqs = frozenset(n for n in (self.seq, *self._attended_rows()) if isinstance(n, int))
        self.rows = self.batch * self.seq

    def _find_rows(self) -> tuple[int, int]:
        """(batch, seq) of the first attention, else of the first matrix product, else (1, 1)."""
        products = []
        for node in self.program.graph.nodes:
            op, shape = packet(node), shape_of(node)
            if any(map(is_empty, (node, *node.all_input_nodes))):
                continue
            if op in (aten.scaled_dot_product_attention, aten.softmax) and len(shape) == 4:
                return shape[0], shape[2]
            if op in (aten.linear, aten.matmul):
                x, weight = node.args[:2]
                if self.is_constant(weight) and not self.is_constant(x) and len(shape_of(x)) > 1:
                    products.append(shape_of(x)[:-1])
        if not products:
            return 1, 1
        batch, *seq = products[0] if len(products[0]) > 1 else (1, *products[0])
        return batch, prod(seq)

    def _attended_rows(self) -> Iterator[int]:
        """Rows of the queries, and of the keys, of a sequence, of every attention over `batch` sequences."""
        for node in self.program.graph.nodes:
            if not all(map(is_static, (node, *node.all_input_nodes))) or is_empty(node):
                continue
            shape = shape_of(node)
            if len(shape) != 4 or shape[0] != self.batch:
                continue
            if packet(node) is aten.softmax:
                yield from shape[2:]
            elif packet(node) is aten.scaled_dot_product_attention:
                yield from (shape_of(x)[2] for x in node.args[:2] if isinstance(x, Node))

    def root(self, node: Node) -> Value:
        """Return a tensor of the host as an input of the machine, whose columns are the last dimension of the tensor.
        node: the tensor, of any shape."""
        shape = shape_of(node) if is_static(node) else ()
        view = View.dense(shape)
        if len(shape) == 3 and shape[0] != self.batch == shape[1] and shape[0] in self.seqs:
            view = View.dense((self.batch, shape[0], shape[2])).permute((1, 0, 2))  # as with batch_first=False
        return Value(self.source(node, view, shape[-1] if shape else 1), view)

    def source(self, node: Node, view: View, width: int) -> HostInput:
        """Return the input of the machine that holds a tensor of the host. Equal arguments give the same `HostInput`.

        node: the tensor. view: where each element of the tensor, after broadcasting, lies in the input. width: number
        of columns of the input.
        """
        if (node, view, width) not in self._made:
            name = node.name if node.op == "placeholder" else module_path(node) or node.name
            self._made[node, view, width] = source = self.layers.source(name, width, view)
            self.source_nodes[source] = node
        made: HostInput = self._made[node, view, width]
        return made

    def table(self, own: Node, partner: Node, heads: int, columns: int) -> HostInput:
        """Return the input of the machine with the factors of a rotation, which the host computes: batch * seq rows.
        Equal arguments give the same `HostInput`.

        own, partner, heads: as for `Factors`. columns: of each of the two tensors; the input has twice as many.
        """
        key = own, partner, heads
        if key not in self._made:
            view = View.dense((self.batch, self.seq, 2 * columns))
            self._made[key] = source = self.layers.source(f"{module_path(own)}.table", 2 * columns, view)
            self.tables[source] = Factors(own, partner, heads)
        made: HostInput = self._made[key]
        return made

    def operand(self, node: Node, fits: Callable[[View, int], bool]) -> Value | None:
        """Return the value of `node` as a whole activation that fits, as `fit` does. A tensor of the host that does not
        fit may become an input of the machine by itself. Returns None if that does not fit either. fits: as for
        `fit`."""
        value = self.of[node]
        found = self.fit(value, fits)
        return self.fit(self.root(node), fits) if found is None and is_host(value) else found

    def fit(self, value: Abstract, fits: Callable[[View, int], bool]) -> Value | None:
        """Return a value that shows a whole activation, if fits(view, columns of the activation) is true; None
        otherwise, and for values that are no activations of the machine's rows.

        A slice of the columns of a projection (queries, keys and values packed in one) becomes a separate projection.
        """
        if isinstance(value, PointwiseFunction) and value.square is not None:
            value = Value(value.square(), value.view)
        if not isinstance(value, Value):
            return None
        base, rows = value.base, self.layers.rows(value.base)
        columns = value.view.columns(rows, base.width) if self.has_rows(rows) else None
        if columns is None:
            return None  # also for the first rows of a tensor that has more
        index, view = columns
        if not np.array_equal(index, np.arange(base.width)):
            if not isinstance(base, Gemm) or base.residual is not None or not base.multiplies or base.into is not None:
                return None
            if base.norm is not None or base.rotary is not None or base.gated:  # these need all columns
                return None
            key = (base, index.tobytes())
            if key not in self._made:
                self._made[key] = self.layers.variant(base, **_columns(base, index))
            base = self._made[key]
        return Value(base, view) if fits(view, base.width) else None

    def in_heads(self, shape: tuple[int, ...]) -> View:
        """Return the view of an activation (batch * rows, heads * columns) as a tensor (batch, heads, rows, columns of
        a head). shape: of that tensor; its batch and that of the state are the same."""
        _, heads, rows, columns = shape
        return View.dense((self.batch, rows, heads, columns)).permute((0, 2, 1, 3))

    def has_rows(self, rows: int) -> bool:
        """Return whether activations of the machine may have `rows` rows, over all sequences."""
        return rows % self.batch == 0 and rows // self.batch in self.seqs

    def seq_of(self, base: Base) -> int:
        """Return the rows of each sequence of an activation."""
        return self.layers.rows(base) // self.batch

    def is_constant(self, x: Any) -> bool:
        """Return whether x is a node that depends on no argument of the module."""
        return x in self._constants

    def constant(self, node: Node) -> torch.Tensor:
        """Return the value of a node that depends on no argument (`Constants.value`)."""
        return self._constants.value(node)

    def once(self, kind: str, array: Array) -> Array:
        """Return one shared array for all equal arrays of a kind, e.g. for the equal biases of a stack of layers. kind:
        any word; arrays of different kinds are not shared. array: of any shape."""
        digest = hashlib.blake2b(np.ascontiguousarray(array).data).digest()
        made: Array = self._made.setdefault((kind, array.shape, digest), array)
        return made

    def rotary(self, rotary: Rotary) -> Rotary:
        """Return one shared object for all equal rotary positions. Their tables must be shared already (`once`)."""
        key = ("rotary", id(rotary.own), id(rotary.partner), rotary.partners)
        made: Rotary = self._made.setdefault(key, rotary)
        return made

    def vector(self, node: Node | None, width: int, default: float) -> Float64 | None:
        """Return the value of a constant node as a vector of `width` elements in float64, shape (width,), filled with
        `default` if `node` is None. Returns None if the node is not constant or has another number of elements."""
        if node is None:
            return np.full(width, default)
        if not self.is_constant(node) or self.constant(node).numel() != width:
            return None
        vector: Float64 = self.constant(node).double().numpy().reshape(width)
        return vector

    def number(self, x: Any) -> float | None:
        """Return the value of a Python number, or of a constant tensor of one element; None for anything else."""
        if isinstance(x, int | float):
            return float(x)
        return float(self.constant(x)) if self.is_constant(x) and self.constant(x).numel() == 1 else None


def written_arguments(program: ExportedProgram) -> dict[Node, Node]:
    """Return the arguments (placeholders) that a graph writes to, each with the node of its new value."""
    named = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    values = program.graph.output_node().args[0]
    assert isinstance(values, list | tuple)
    specs = program.graph_signature.output_specs
    return {
        named[str(spec.target)]: value
        for spec, value in zip(specs, values, strict=True)
        if spec.kind == OutputKind.USER_INPUT_MUTATION and isinstance(value, Node)
    }


Arguments = dict[str, Any]
"""An operator's arguments by name."""
LoweringPattern = Callable[[AbstractState, Node, Arguments], Abstract | str]
"""A lowering rule: called with the state, an operator, and the operator's arguments by name. It returns the abstract
value of the operator's result, or the reason (text) why the machine cannot run it here."""
