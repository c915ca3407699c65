"""Finds the layers of a stream program: what XNN's units do for matrix products and attention, whoever wrote the loops.

The program runs with tiles that remember what they were computed from (`Symbolic`). What it stores is then compared
with the layers of the machine: an output whose parts are sums of products over parts of K that cover K once is a matrix
product, however it was cut and whichever way its parts went. A result that has another form is refused, with the place
of the form in the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import TensorError, UnsupportedError
from ..isa.overlays.tasks.overlay import machine_of, shots_of
from ..isa.overlays.tasks.program import OffChipTensor, TaskProgram
from ..isa.overlays.tasks.unit import BANK, TensorPart
from ..isa.overlays.tasks.values import Symbolic
from ..machine.executor import ProcessNetwork
from ..machine.unit import Unit
from .graph import ActivationFunction, Array, AttentionLayer, Gemm, Layer, LayerGraph, Norm, Output

Range = tuple[int, int]
"""First index, and the one behind the last."""

ACTIVATIONS = {"gelu": ActivationFunction.GELU_ERF, "relu": ActivationFunction.RELU, "silu": ActivationFunction.SILU}
EPSILON = 1e-5
"""Of the norms of the library."""


# -- what a program computes -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SymbolicTile(Symbolic):
    """A tile without numbers, which knows how it was computed. op: "load" for a part of a tensor, whose arguments are
    the name of the tensor and its ranges; otherwise a kernel, whose arguments are tiles and numbers. shape: in
    elements."""

    op: str
    shape: tuple[int, ...]
    arguments: tuple[Any, ...]

    __array_ufunc__ = None  # numpy's arrays leave operators to this class

    def kernel(self, name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the tile that a kernel computes with this tile among its arguments. Raises as `applied`."""
        if name == "use":
            return arguments[0]
        return applied(name, arguments, named)

    def __add__(self, other: Any) -> SymbolicTile:
        return applied("add", (self, other), {})

    __radd__ = __add__

    def __sub__(self, other: Any) -> SymbolicTile:
        return applied("sub", (self, other), {})

    def __mul__(self, other: Any) -> SymbolicTile:
        return applied("scale", (self, other), {})

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> SymbolicTile:
        if isinstance(other, int | float) and other:
            return applied("scale", (self, 1 / other), {})
        return applied("div", (self, other), {})

    def __getitem__(self, index: Any) -> SymbolicTile:
        if self.op != "load" or not isinstance(index, tuple | slice):
            raise UnsupportedError("a part of a computed tile is no operand of the machine's layers")
        tensor, ranges = self.arguments
        parts = index if isinstance(index, tuple) else (index,)
        return loaded(tensor, _within(ranges, parts))


def _within(ranges: tuple[Range, ...], index: Sequence[Any]) -> tuple[Range, ...]:
    """The part of a part. Raises `UnsupportedError` for single elements and steps."""
    out = []
    for k, (low, high) in enumerate(ranges):
        part = index[k] if k < len(index) else slice(None)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise UnsupportedError("the machine's layers take rows and columns, no single elements")
        first = 0 if part.start is None else int(part.start)
        last = high - low if part.stop is None else int(part.stop)
        out.append((low + first, low + last))
    return tuple(out)


def loaded(tensor: str, ranges: tuple[Range, ...]) -> SymbolicTile:
    """The part of a tensor at `ranges`, one range for each axis."""
    return SymbolicTile("load", tuple(high - low for low, high in ranges), (tensor, ranges))


def applied(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> SymbolicTile:
    """The tile that a kernel computes. name: of the kernel. arguments: tiles and numbers, at least one of them a tile.
    named: the named arguments. Raises `UnsupportedError` for a kernel, or for arguments, that no layer has."""
    if named and name not in ("layernorm", "rmsnorm"):
        raise UnsupportedError(f"{name} with {', '.join(named)} is no part of the machine's layers")
    tiles = [x for x in arguments if isinstance(x, SymbolicTile)]
    first = tiles[0]
    if name in ("add", "sub"):
        zeros = [x for x in arguments if not isinstance(x, SymbolicTile) and not np.any(np.asarray(x))]
        if zeros and (name == "add" or arguments[0] is first):
            return first
        if len(tiles) == 2 and name == "add":
            return SymbolicTile("add", max((t.shape for t in tiles), key=len), (*_terms(tiles[0]), *_terms(tiles[1])))
    if name in ("mul", "scale") and len(tiles) == 1:
        factor = next((x for x in arguments if not isinstance(x, SymbolicTile)), None)
        if isinstance(factor, int | float | np.floating):
            return SymbolicTile("scale", first.shape, (first, float(factor)))
    if name == "matmul" and len(tiles) == 2:
        a, b = tiles
        return SymbolicTile("matmul", (a.shape[0], b.shape[1]), (a, b))
    if name == "transpose" and len(arguments) == 1:
        return SymbolicTile("transpose", first.shape[::-1], (first,))
    if name in ACTIVATIONS or name in ("softmax", "layernorm", "rmsnorm"):
        return SymbolicTile(name, first.shape, (*arguments, *named.values()))
    raise UnsupportedError(f"{name} is no part of the machine's layers")


def _terms(tile: SymbolicTile) -> tuple[SymbolicTile, ...]:
    return tile.arguments if tile.op == "add" else (tile,)


class Stored(NamedTuple):
    """A part of a matrix that a program stores. ranges: of the part, one for each axis. tile: that is stored there."""

    ranges: tuple[Range, ...]
    tile: SymbolicTile


def stores(program: TaskProgram) -> dict[str, list[Stored]]:
    """Run a program without numbers; return for each output, by its name, the parts that are stored, each with its
    tile. Raises `UnsupportedError` for what no layer computes, and the errors of a run (`DeadlockError`)."""
    found: dict[str, dict[tuple[Range, ...], SymbolicTile]] = {}

    class TiledTensor(TensorPart):
        """A tensor whose parts are tiles without numbers."""

        def __init__(self, unit: Unit, tensor: OffChipTensor, offset: int, cut: tuple[slice, ...]) -> None:
            super().__init__(unit, tensor, offset, cut)
            self.tensor, self.ranges = tensor, tuple((s.start, s.stop) for s in cut)

        def __getitem__(self, index: Any) -> Any:
            parts = index if isinstance(index, tuple) else (index,)
            if self.tensor.output:
                raise UnsupportedError(f"{self.tensor.name} is read and written; a layer writes each part once")
            return loaded(self.tensor.name, _within(self.ranges, parts))

        def __setitem__(self, index: Any, value: Any) -> None:
            parts = index if isinstance(index, tuple) else (index,)
            ranges = _within(self.ranges, parts)
            if not isinstance(value, SymbolicTile):
                raise UnsupportedError(f"{self.tensor.name} gets numbers that no layer computes")
            known = found.setdefault(self.tensor.name, {})
            if not _same(known.setdefault(ranges, value), value):
                raise UnsupportedError(f"{self.tensor.name}: one part gets two values; a layer writes each part once")

    overlay = machine_of(program, TiledTensor)
    ProcessNetwork(overlay, shots_of(program, overlay), banks={BANK: np.zeros(0, np.float32)}, data=True).run()
    return {name: [Stored(*item) for item in parts.items()] for name, parts in found.items()}


# -- layers ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layers:
    """The layers that a program computes, as a graph whose weights and biases are 0. weights, biases: the name of the
    tensor that a layer takes its weight or bias from, by the path of the layer."""

    graph: LayerGraph
    weights: Mapping[str, str]
    biases: Mapping[str, str]

    def with_values(self, tensors: Mapping[str, Any]) -> LayerGraph:
        """Return the graph with the values of weights and biases, in float32. tensors: arrays of the shapes in the
        program, by the name of the tensor. A factor of a product is multiplied into its weight. Raises `KeyError` for a
        missing tensor, `TensorError` for another shape."""

        def value(name: str, like: Array) -> Array:
            made = np.asarray(tensors[name], np.float32)
            if made.shape != like.shape:
                raise TensorError(f"{name} has shape {list(made.shape)}; the program has {list(like.shape)}")
            return made

        layers: list[Layer] = []
        for layer in self.graph.layers:
            if isinstance(layer, Gemm) and layer.multiplies:
                weight, bias = value(self.weights[layer.path], layer.weight), layer.bias
                if layer.path in self.biases:
                    bias = value(self.biases[layer.path], bias)
                layer = replace(layer, weight=weight * np.float32(layer.factor), bias=bias, factor=1.0)
            layers.append(layer)
        return replace(self.graph, layers=tuple(layers))


def layers_of(program: TaskProgram) -> Layers:
    """Return the layers that a stream program computes. Raises `UnsupportedError` if it computes something else, or
    with tensors that are not float32, and the errors of `stores`."""
    shapes = {t.name: t.type.shape for t in program.tensors}
    for t in program.tensors:
        if t.type.dtype != "f32":
            raise UnsupportedError(f"{t.name} is {t.type.dtype}; the machine computes in float32")
    finder = _LayerFinder(shapes)
    for name, parts in stores(program).items():
        finder.matrix(name, parts, shapes[name])
    rows = {shapes[name][0] for name in finder.inputs}
    if len(rows) != 1:
        raise UnsupportedError(f"activations have {sorted(rows)} rows; layers of one graph have as many")
    graph = LayerGraph(
        1,
        rows.pop(),
        {name: shapes[name][1] for name in finder.inputs},
        tuple(Output(t.name) for t in program.tensors if t.output),
        tuple(finder.layers),
    )
    return Layers(graph, finder.weights, finder.biases)


@dataclass(frozen=True)
class _Form:
    """What is around the product of one part: all parts of a layer have the same."""

    weight: str
    factor: float
    bias: str
    residual: str
    activation: str
    norm: str


@dataclass
class _LayerFinder:
    """Collects layers, operands first."""

    shapes: Mapping[str, tuple[int, ...]]
    layers: list[Layer] = field(default_factory=list)
    inputs: dict[str, None] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def matrix(self, name: str, parts: Sequence[Stored], shape: tuple[int, ...]) -> None:
        """Add the layers that compute a matrix of which these are the parts."""
        if len(shape) != 2:
            raise UnsupportedError(f"{name} has {len(shape)} axes; the machine computes matrices")
        covered = np.zeros(shape, np.int8)
        for (rows, columns), _ in parts:
            covered[rows[0] : rows[1], columns[0] : columns[1]] += 1
        if (covered != 1).any():
            row, column = (int(n) for n in np.argwhere(covered != 1)[0])
            raise UnsupportedError(f"{name}[{row}, {column}] is stored {covered[row, column]} times")
        if all(_is_attention(part.tile) for part in parts):
            self._attention(name, parts, shape)
        else:
            self._product(name, parts, shape)

    # -- products ----------------------------------------------------------------------------------------------------

    def _product(self, name: str, parts: Sequence[Stored], shape: tuple[int, ...]) -> None:
        operands: dict[tuple[Range, Range], SymbolicTile] = {}
        forms: set[_Form] = set()
        for part in parts:
            rows, columns = part.ranges
            at = f"{name}[{rows[0]}:{rows[1]}, {columns[0]}:{columns[1]}]"
            form, products = self._form(part, shape, at)
            forms.add(form)
            covered = 0
            for x, (first, last) in sorted(products, key=lambda p: p[1]):
                if first != covered:
                    raise UnsupportedError(f"{at} adds products from row {first} of {form.weight} on, not {covered}")
                covered = last
                known = operands.setdefault((rows, (first, last)), x)
                if not _same(known, x):
                    raise UnsupportedError(f"{at}: two values for one part of the operand")
            if covered != self.shapes[form.weight][0]:
                raise UnsupportedError(f"{at} adds {covered} of {self.shapes[form.weight][0]} rows of {form.weight}")
        if len(forms) > 1:
            raise UnsupportedError(f"parts of {name} are computed in {len(forms)} ways")
        form = forms.pop()
        source = self._operand(name, operands)
        width = self.shapes[form.weight]
        bias = np.zeros(width[1], np.float32)
        norm = Norm(EPSILON, rms=form.norm == "rmsnorm") if form.norm else None
        activation = ACTIVATIONS[form.activation] if form.activation else None
        residual = form.residual or None
        if residual is not None:
            self.inputs.setdefault(residual)
        weight = np.zeros(width, np.float32)
        layer = Gemm(name, source, name, weight, bias, activation, residual, None, norm, form.factor)
        self.layers.append(layer)
        self.weights[name] = form.weight
        if form.bias:
            self.biases[name] = form.bias

    def _form(self, part: Stored, shape: tuple[int, ...], at: str) -> tuple[_Form, list[tuple[SymbolicTile, Range]]]:
        """What is around the product of a part, and its products: left operands, and rows of the weight."""
        rows, columns = part.ranges
        tile, norm, activation = part.tile, "", ""
        if tile.op in ("layernorm", "rmsnorm"):
            if len(tile.arguments) > 1 or columns != (0, shape[1]):
                raise UnsupportedError(f"{at}: a norm with its own weights, or of a part of the rows")
            norm, tile = tile.op, tile.arguments[0]
        elif tile.op in ACTIVATIONS:
            activation, tile = tile.op, tile.arguments[0]
        products, bias, residual, weights, factors = (
            list[tuple[SymbolicTile, Range]](),
            "",
            "",
            set[str](),
            set[float](),
        )
        for term in _terms(tile):
            inner, factor = _unscaled(term)
            if inner.op == "matmul" and inner.arguments[1].op == "load":
                x, w = inner.arguments
                weight, (k, cut) = w.arguments
                if cut != columns:
                    raise UnsupportedError(f"{at} has columns {cut[0]}:{cut[1]} of {weight}")
                products.append((x, k))
                weights.add(weight)
                factors.add(factor)
            elif inner.op == "load" and factor == 1 and inner.arguments[1] == (columns,) and not bias:
                bias = inner.arguments[0]
            elif inner.op == "load" and factor == 1 and inner.arguments[1] == (rows, columns) and not residual:
                residual = inner.arguments[0]
            else:
                raise UnsupportedError(f"{at}: {inner.op} is no product, bias or residual of a layer")
        if len(weights) != 1 or len(factors) != 1:
            raise UnsupportedError(f"{at} adds products of {len(weights)} weights; a layer has one")
        factor = factors.pop()
        if bias and factor != 1:
            raise UnsupportedError(f"{at} scales its product, but not its bias")
        return _Form(weights.pop(), factor, bias, residual, activation, norm), products

    def _operand(self, name: str, parts: Mapping[tuple[Range, Range], SymbolicTile]) -> str:
        """The activation of which these are the parts: a tensor, or the result of other layers."""
        direct = {t.arguments[0] for (r, k), t in parts.items() if t.op == "load" and t.arguments[1] == (r, k)}
        if len(direct) == 1 and all(t.op == "load" for t in parts.values()):
            tensor = str(direct.pop())
            self.inputs.setdefault(tensor)
            return tensor
        if direct:
            raise UnsupportedError(f"the operand of {name} is in part a tensor, in part computed")
        self.count += 1
        inner = f"{name}.x{self.count}"
        height = max(rows[1] for rows, _ in parts)
        width = max(columns[1] for _, columns in parts)
        self.matrix(inner, [Stored(ranges, tile) for ranges, tile in parts.items()], (height, width))
        return inner

    # -- attention ---------------------------------------------------------------------------------------------------

    def _attention(self, name: str, parts: Sequence[Stored], shape: tuple[int, ...]) -> None:
        found: set[tuple[str, str, str, float, int]] = set()
        for part in parts:
            rows, columns = part.ranges
            at = f"{name}[{rows[0]}:{rows[1]}, {columns[0]}:{columns[1]}]"
            soft, v = part.tile.arguments
            scores, scale = _unscaled(soft.arguments[0])
            q, transposed = scores.arguments if scores.op == "matmul" else (scores, scores)
            k = transposed.arguments[0] if transposed.op == "transpose" else scores
            if not (q.op == k.op == v.op == "load"):
                raise UnsupportedError(f"{at}: the operands of an attention are parts of tensors")
            whole = (0, shape[0])
            want = [(q, (rows, columns)), (k, (whole, columns)), (v, (whole, columns))]
            for tile, ranges in want:
                if tile.arguments[1] != ranges:
                    raise UnsupportedError(f"{at} reads another part of {tile.arguments[0]} than an attention does")
            if columns[0] % (columns[1] - columns[0]):
                raise UnsupportedError(f"{at}: heads have as many columns each")
            names = [str(tile.arguments[0]) for tile in (q, k, v)]
            found.add((names[0], names[1], names[2], scale, columns[1] - columns[0]))
        if len(found) > 1:
            raise UnsupportedError(f"parts of {name} are computed in {len(found)} ways")
        q_name, k_name, v_name, scale, head = found.pop()
        for tensor in (q_name, k_name, v_name):
            self.inputs.setdefault(tensor)
        keys = k_name
        if scale != 1:
            keys = f"{name}.keys"
            none = np.zeros((0, shape[1]), np.float32)
            factors = np.full(shape[1], scale, np.float32)
            zeros = np.zeros(shape[1], np.float32)
            self.layers.append(Gemm(keys, k_name, keys, none, zeros, residual=k_name, residual_scale=factors))
        self.layers.append(AttentionLayer(name, q_name, keys, v_name, name, shape[1] // head, head))


def _is_attention(tile: SymbolicTile) -> bool:
    return tile.op == "matmul" and tile.arguments[0].op == "softmax"


def _unscaled(tile: SymbolicTile) -> tuple[SymbolicTile, float]:
    """A tile without the numbers that it is multiplied by, and their product."""
    factor = 1.0
    while tile.op == "scale":
        tile, factor = tile.arguments[0], factor * tile.arguments[1]
    return tile, factor


def _same(a: Any, b: Any) -> bool:
    """Whether two tiles are computed in the same way."""
    if not isinstance(a, SymbolicTile) or not isinstance(b, SymbolicTile):
        return bool(a == b)
    if a is b:
        return True
    if (a.op, a.shape, len(a.arguments)) != (b.op, b.shape, len(b.arguments)):
        return False
    return all(_same(x, y) for x, y in zip(a.arguments, b.arguments, strict=True))
