"""Fold the scale and shift of every norm, and every constant factor, into the weights of the consumers.

The machine normalises without scale and shift: of y = n * g + s it computes n. A product of y becomes a product of n
with weight g[:, None] * W and bias b + s @ W; a residual y becomes the residual n with scale g, and s is added to the
bias; an output y becomes the output n with scale g and shift s. All in float64, rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base.errors import UnsupportedError
from ..scheduler.graph import TOP, Array, AttentionLayer, Gemm, LayerGraph, Norm, Output
from ..scheduler.memory import HEAD_COLS
from .layers import AttendLayer, Float64, Layer, LinearLayer, Pass, Source, ancestors


def fold(outputs: list[Layer], batch: int, seq: int, weights: bool = True) -> tuple[LayerGraph, dict[Layer, str]]:
    """Fold layers into a network over batch * seq rows. Returns the network, and the activation name of each layer.

    outputs: the layers whose results the host needs. weights: False fills weights and biases of products with NaN that
    takes no memory, which is enough to compile a program; scales and shifts of outputs are computed in any case,
    because a program contains them. Raises FoldError if a product's result is needed both with and without a residual
    that is fused into it.
    """
    originals = ancestors(outputs)
    separated = _SeparatedPasses(originals)
    laid_out = _LaidOut([separated(layer) for layer in outputs])
    rebuilt = {layer: laid_out(separated(layer)) for layer in originals}
    rebuilt |= {layer: laid_out.side_by_side(separated(layer)) for layer in outputs}
    outputs = [rebuilt[layer] for layer in outputs]
    needed = ancestors(outputs)
    names = _name(sorted(needed, key=lambda layer: not isinstance(layer, Source)))  # arguments keep their names
    layers = (_folded(layer, names, weights) for layer in needed)
    network = LayerGraph(
        batch,
        seq,
        inputs={names[layer]: layer.width for layer in needed if isinstance(layer, Source)},
        outputs=tuple(_output(layer, names[layer]) for layer in outputs),
        layers=tuple(layer for layer in layers if layer is not None),
    )
    return network, names | {layer: names[new] for layer, new in rebuilt.items() if new in names}


fold_shapes = partial(fold, weights=False)
"""`fold` without weights, for compiling a program only."""


class FoldError(UnsupportedError):
    """A layer cannot be folded into a network. layer: that layer."""

    def __init__(self, layer: Layer, message: str) -> None:
        super().__init__(message)
        self.layer = layer


class _SeparatedPasses:
    """Rebuilds layers: an operator fused into a product becomes a `Pass` if the product's bare result is needed too.
    needed: all layers whose results are needed."""

    def __init__(self, needed: Container[Layer]) -> None:
        self._needed = needed
        self._made: dict[Layer, Layer] = {}

    def __call__(self, layer: Layer) -> Layer:
        if layer not in self._made:
            self._made[layer] = self._again(layer)
        return self._made[layer]

    def _again(self, layer: Layer) -> Layer:
        if isinstance(layer, Source):
            return layer
        if isinstance(layer, AttendLayer):
            q, k, v = (self(x) for x in layer.operands)
            return layer if (q, k, v) == layer.operands else replace(layer, q=q, k=k, v=v)
        if isinstance(layer, Pass):
            return replace(layer, x=self(layer.x))
        bare = self._needed_before(layer)
        if bare is not None:
            return self._pass(layer, bare)
        x = self(layer.x)
        residual = None if layer.residual is None else self(layer.residual)
        return layer if (x, residual) == (layer.x, layer.residual) else replace(layer, x=x, residual=residual)

    def _needed_before(self, layer: LinearLayer) -> LinearLayer | None:
        """The last layer before fusions whose own result is needed too."""
        before = layer.before
        while before is not None and before not in self._needed:
            before = before.before
        return before

    def _pass(self, layer: LinearLayer, bare: LinearLayer) -> Pass:
        kept = ("x", "weight", "bias", "residual")
        if bare.factor != layer.factor or any(getattr(bare, name) is not getattr(layer, name) for name in kept):
            raise FoldError(
                layer,
                f"{layer.path or TOP}: its result is needed both before and after something is added to it, which the "
                "machine fuses into the product",
            )
        norm = layer.norm if bare.norm is None else None
        path = layer.fused_path
        if path in ("", layer.path) and layer.path:
            path = f"{layer.path}.{'norm' if norm is not None else 'activation'}"
        return Pass(
            path,
            self(bare),
            layer.activation if bare.activation is None else None,
            norm,
            layer.gain / bare.gain,
        )


Layout = tuple[int, int] | None
"""(heads, columns of a head) if heads are padded because they are narrower than the machine's; None without padding."""


class _LaidOut:
    """Rebuilds layers: inserts a product with the identity matrix (exact) where a consumer needs another column layout,
    or an attention reads a result whose scale or shift is not applied yet.

    A product stores its columns in the head layout of an attention if no consumer needs another layout; products of its
    result can read any layout.
    """

    def __init__(self, outputs: Sequence[Layer]) -> None:
        self._made: dict[Layer, Layer] = {}
        self._again: dict[tuple[Layer, Layout], LinearLayer] = {}
        needed: dict[Layer, dict[Layout, None]] = {layer: {None: None} for layer in outputs}
        for layer in ancestors(outputs):
            for operand, layout in _operand_layouts(layer):
                needed.setdefault(operand, {})[layout] = None
        self._needed = needed

    def __call__(self, layer: Layer) -> Layer:
        if layer not in self._made:
            made = layer
            if isinstance(layer, AttendLayer):
                layout = _head_layout(layer.heads, layer.head_dim)
                q, k, v = (self._attended(x, layout) for x in layer.operands)
                made = layer if (q, k, v) == layer.operands else replace(layer, q=q, k=k, v=v)
            elif isinstance(layer, Pass):
                x = self.side_by_side(layer.x)
                made = layer if x is layer.x else replace(layer, x=x)
            elif isinstance(layer, LinearLayer):
                residual = None if layer.residual is None else self.side_by_side(layer.residual)
                x = self(layer.x)
                made = layer if (x, residual) == (layer.x, layer.residual) else replace(layer, x=x, residual=residual)
            self._made[layer] = made
        return self._made[layer]

    def side_by_side(self, layer: Layer) -> Layer:
        """The layer without padding between heads, for consumers other than products and attention."""
        return self(layer) if self._layout(layer) is None else self._moved(layer, None)

    def _attended(self, layer: Layer, layout: Layout) -> Layer:
        fits = self._layout(layer) == layout and _affine(layer) is None
        return self(layer) if fits else self._moved(layer, layout)

    def _layout(self, layer: Layer) -> Layout:
        """The layout in which a layer stores its result."""
        if isinstance(layer, AttendLayer):
            return _head_layout(layer.heads, layer.head_dim)
        if not isinstance(layer, LinearLayer) or layer.residual is not None or _affine(layer) is not None:
            return None
        layouts = self._needed.get(layer, {})
        return None if None in layouts else next(iter(layouts), None)

    def _moved(self, layer: Layer, layout: Layout) -> LinearLayer:
        if (layer, layout) not in self._again:
            eye, zeros = np.eye(layer.width, dtype=np.float32), np.zeros(layer.width)
            path = layer.name if isinstance(layer, Source) else layer.path
            self._again[layer, layout] = LinearLayer(f"{path}.columns".lstrip("."), self(layer), eye, zeros)
        return self._again[layer, layout]


def _operand_layouts(layer: Layer) -> Iterator[tuple[Layer, Layout]]:
    """The layout that a layer needs of each operand, except the operand of a product, which can have any layout."""
    if isinstance(layer, AttendLayer):
        yield from ((x, _head_layout(layer.heads, layer.head_dim)) for x in layer.operands)
    elif isinstance(layer, Pass):
        yield layer.x, None
    elif isinstance(layer, LinearLayer) and layer.residual is not None:
        yield layer.residual, None


def _head_layout(heads: int, head_dim: int) -> Layout:
    return (heads, head_dim) if head_dim < HEAD_COLS else None


def _folded(layer: Layer, names: dict[Layer, str], weights: bool) -> Gemm | AttentionLayer | None:
    if isinstance(layer, LinearLayer):
        return _gemm(layer, names, weights)
    if isinstance(layer, Pass):
        return _pass(layer, names)
    if isinstance(layer, AttendLayer):
        q, k, v = (names[x] for x in layer.operands)
        shape = layer.heads, layer.head_dim
        return AttentionLayer(layer.path, q, k, v, names[layer], *shape, layer.masked, layer.causal, layer.bias)
    return None


def _gemm(layer: LinearLayer, names: dict[Layer, str], weights: bool) -> Gemm:
    weight, bias = _product(layer) if weights else (_unknown(layer.weight), _unknown(layer.bias))
    scale = None
    if layer.residual is not None:
        residual = _affine(layer.residual)
        scale = np.ones(layer.width) if residual is None else residual.scale
        bias = bias if residual is None else bias + residual.shift
    return Gemm(
        layer.path,
        x=names[layer.x],
        y=names[layer],
        weight=weight,
        bias=bias.astype(np.float32),
        activation=layer.activation,
        residual=None if layer.residual is None else names[layer.residual],
        residual_scale=None if scale is None else scale.astype(np.float32),
        norm=None if layer.norm is None else Norm(layer.norm.eps, layer.norm.rms),
        fused=_fused(layer),
    )


def _fused(layer: LinearLayer) -> tuple[str, ...]:
    """The module path of the activation or norm that is fused into a product. A function that is called in a module
    around the product has no path of its own."""
    path = layer.fused_path
    around = f"{layer.path}.".startswith(f"{path}.")
    return () if not path or around else (path,)


def _product(layer: LinearLayer) -> tuple[Array, Float64]:
    """Weight and bias of a product, with the scale and shift of its operand folded in."""
    affine = _affine(layer.x)
    factor = np.float64(layer.factor)
    if affine is None:
        return _scaled(layer.weight, np.broadcast_to(factor, len(layer.weight))), layer.bias * factor
    bias = layer.bias + _times(affine.shift, layer.weight)
    return _scaled(layer.weight, affine.scale * factor), bias * factor


def _unknown(like: np.ndarray) -> Array:
    """NaN in the shape of `like`, without memory: any use of it is seen in the results."""
    return np.broadcast_to(np.float32(np.nan), like.shape)


def _pass(layer: Pass, names: dict[Layer, str]) -> Gemm:
    """A pass: no product, its operand is the residual. Such a pass has no bias; if a shift of the operand must be
    added, the pass is an exact product with the scale as diagonal matrix."""
    affine = _affine(layer.x)
    scale = (np.ones(layer.width) if affine is None else affine.scale).astype(np.float32)
    shifts = affine is not None and bool(affine.shift.any())
    return Gemm(
        layer.path,
        x=names[layer.x],
        y=names[layer],
        weight=np.diag(scale) if shifts else np.zeros((0, layer.width), np.float32),
        bias=(affine.shift if affine is not None and shifts else np.zeros(layer.width)).astype(np.float32),
        activation=layer.activation,
        residual=None if shifts else names[layer.x],
        residual_scale=None if shifts else scale,
        norm=None if layer.norm is None else Norm(layer.norm.eps, layer.norm.rms),
    )


def _output(layer: Layer, name: str) -> Output:
    affine = _affine(layer)
    if affine is None:
        return Output(name)
    return Output(name, affine.scale.astype(np.float32), affine.shift.astype(np.float32))


@dataclass(frozen=True)
class _Affine:
    """The scale and shift that the machine does not apply to a result, (N,) each."""

    scale: Float64
    shift: Float64


def _affine(layer: Layer) -> _Affine | None:
    if not isinstance(layer, LinearLayer | Pass):
        return None
    if layer.norm is not None:
        return _Affine(layer.norm.scale, layer.norm.shift)
    return None if layer.gain == 1 else _Affine(np.full(layer.width, layer.gain), np.zeros(layer.width))


PIECE = 16
"""Rows or columns of a weight that are converted at a time. They stay in the cache, which is ten times faster."""


def _scaled(weight: Array, factors: np.ndarray) -> Array:
    """A copy of `weight` with row i multiplied by factors[i] in float64, rounded once."""
    out = np.empty(weight.shape, np.float32)
    for at in range(0, len(out), PIECE):
        rows = slice(at, at + PIECE)
        out[rows] = weight[rows] * factors[rows, None]
    return out


def _times(vector: np.ndarray, weight: Array) -> np.ndarray:
    """vector @ weight in float64."""
    out = np.empty(weight.shape[1])
    for at in range(0, len(out), PIECE):
        out[at : at + PIECE] = vector @ weight[:, at : at + PIECE].astype(np.float64)
    return out


def _name(layers: Iterable[Layer]) -> dict[Layer, str]:
    """A unique identifier for each layer, from its module path."""
    names: dict[Layer, str] = {}
    taken: set[str] = set()
    for layer in layers:
        stem = re.sub(r"\W", "_", layer.name if isinstance(layer, Source) else layer.path)
        if not stem or stem[0].isdigit():
            kind = "attention" if isinstance(layer, AttendLayer) else "pass" if isinstance(layer, Pass) else "linear"
            stem = f"{kind}_{stem}".removesuffix("_")
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}_{n}"
        taken.add(name)
        names[layer] = name
    return names
