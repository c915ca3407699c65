"""Fold every LayerNorm's scale and shift, and every constant factor, into the weights of what consumes them.

The machine normalises without scale and shift: of y = n * g + s it keeps n. A product of y becomes a product of n with
g[:, None] * W and bias b + s @ W, a residual y the residual n with scale g and s added to the bias, an output y
the output n with scale g and shift s. All of it in float64, rounded once.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..base.errors import UnsupportedError
from ..scheduler.graph import TOP, Array, Attention, Gemm, LayerGraph, Norm, Output
from ..scheduler.memory import HEAD_COLS
from .layers import Attend, Float64, Layer, Linear, Pass, Source, ancestors


def fold(outputs: list[Layer], batch: int, seq: int, weights: bool = True) -> tuple[LayerGraph, dict[Layer, str]]:
    """The network that computes `outputs` over batch * seq rows, and the activation name of each layer in it.

    weights: without, weights and biases of products are NaN that takes no memory, for a program alone: all else, also
    scales and shifts of outputs, which stand in a program, is the same. Raises UnsupportedError where a product's
    result is wanted with and without a residual that is added to it.
    """
    originals = ancestors(outputs)
    apart = _Apart(originals)
    laid_out = _LaidOut([apart(layer) for layer in outputs])
    rebuilt = {layer: laid_out(apart(layer)) for layer in originals}
    rebuilt |= {layer: laid_out.side_by_side(apart(layer)) for layer in outputs}
    outputs = [rebuilt[layer] for layer in outputs]
    wanted = ancestors(outputs)
    names = _name(sorted(wanted, key=lambda layer: not isinstance(layer, Source)))  # arguments keep their names
    layers = (_folded(layer, names, weights) for layer in wanted)
    network = LayerGraph(
        batch,
        seq,
        inputs={names[layer]: layer.width for layer in wanted if isinstance(layer, Source)},
        outputs=tuple(_output(layer, names[layer]) for layer in outputs),
        layers=tuple(layer for layer in layers if layer is not None),
    )
    return network, names | {layer: names[new] for layer, new in rebuilt.items() if new in names}


fold_shapes = partial(fold, weights=False)


class FoldError(UnsupportedError):
    """Layers that do not become segments. layer: which."""

    def __init__(self, layer: Layer, message: str) -> None:
        super().__init__(message)
        self.layer = layer


class _Apart:
    """Layers again, with a pass of its own for what is fused into a result that is wanted without it too."""

    def __init__(self, wanted: Container[Layer]) -> None:
        self._wanted = wanted
        self._made: dict[Layer, Layer] = {}

    def __call__(self, layer: Layer) -> Layer:
        if layer not in self._made:
            self._made[layer] = self._again(layer)
        return self._made[layer]

    def _again(self, layer: Layer) -> Layer:
        if isinstance(layer, Source):
            return layer
        if isinstance(layer, Attend):
            q, k, v = (self(x) for x in layer.operands)
            return layer if (q, k, v) == layer.operands else replace(layer, q=q, k=k, v=v)
        if isinstance(layer, Pass):
            return replace(layer, x=self(layer.x))
        bare = self._wanted_before(layer)
        if bare is not None:
            return self._pass(layer, bare)
        x = self(layer.x)
        residual = None if layer.residual is None else self(layer.residual)
        return layer if (x, residual) == (layer.x, layer.residual) else replace(layer, x=x, residual=residual)

    def _wanted_before(self, layer: Linear) -> Linear | None:
        before = layer.before
        while before is not None and before not in self._wanted:
            before = before.before
        return before

    def _pass(self, layer: Linear, bare: Linear) -> Pass:
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
"""How many heads, of how many columns each, lie apart because they are narrower than the machine's; None: none do."""


class _LaidOut:
    """Layers again, with a product with the identity, which is exact, wherever one wants columns to lie otherwise than
    they do, or an attention wants what is scaled or shifted yet.

    A product may store its columns in the heads of one attention, if they are wanted so and not otherwise; products of
    its result take them in any way.
    """

    def __init__(self, outputs: Sequence[Layer]) -> None:
        self._made: dict[Layer, Layer] = {}
        self._again: dict[tuple[Layer, Layout], Linear] = {}
        wanted: dict[Layer, dict[Layout, None]] = {layer: {None: None} for layer in outputs}
        for layer in ancestors(outputs):
            for operand, layout in _layouts_wanted(layer):
                wanted.setdefault(operand, {})[layout] = None
        self._wanted = wanted

    def __call__(self, layer: Layer) -> Layer:
        if layer not in self._made:
            made = layer
            if isinstance(layer, Attend):
                layout = _apart(layer.heads, layer.head_dim)
                q, k, v = (self._attended(x, layout) for x in layer.operands)
                made = layer if (q, k, v) == layer.operands else replace(layer, q=q, k=k, v=v)
            elif isinstance(layer, Pass):
                x = self.side_by_side(layer.x)
                made = layer if x is layer.x else replace(layer, x=x)
            elif isinstance(layer, Linear):
                residual = None if layer.residual is None else self.side_by_side(layer.residual)
                x = self(layer.x)
                made = layer if (x, residual) == (layer.x, layer.residual) else replace(layer, x=x, residual=residual)
            self._made[layer] = made
        return self._made[layer]

    def side_by_side(self, layer: Layer) -> Layer:
        """For whoever is neither a product of it nor an attention."""
        return self(layer) if self._layout(layer) is None else self._moved(layer, None)

    def _attended(self, layer: Layer, layout: Layout) -> Layer:
        fits = self._layout(layer) == layout and _affine(layer) is None
        return self(layer) if fits else self._moved(layer, layout)

    def _layout(self, layer: Layer) -> Layout:
        """As it is stored."""
        if isinstance(layer, Attend):
            return _apart(layer.heads, layer.head_dim)
        if not isinstance(layer, Linear) or layer.residual is not None or _affine(layer) is not None:
            return None
        wanted = self._wanted.get(layer, {})
        return None if None in wanted else next(iter(wanted), None)

    def _moved(self, layer: Layer, layout: Layout) -> Linear:
        if (layer, layout) not in self._again:
            eye, zeros = np.eye(layer.width, dtype=np.float32), np.zeros(layer.width)
            path = layer.name if isinstance(layer, Source) else layer.path
            self._again[layer, layout] = Linear(f"{path}.columns".lstrip("."), self(layer), eye, zeros)
        return self._again[layer, layout]


def _layouts_wanted(layer: Layer) -> Iterator[tuple[Layer, Layout]]:
    """Of a layer's operands, but for a product's own, which may lie in any way."""
    if isinstance(layer, Attend):
        yield from ((x, _apart(layer.heads, layer.head_dim)) for x in layer.operands)
    elif isinstance(layer, Pass):
        yield layer.x, None
    elif isinstance(layer, Linear) and layer.residual is not None:
        yield layer.residual, None


def _apart(heads: int, head_dim: int) -> Layout:
    return (heads, head_dim) if head_dim < HEAD_COLS else None


def _folded(layer: Layer, names: dict[Layer, str], weights: bool) -> Gemm | Attention | None:
    if isinstance(layer, Linear):
        return _gemm(layer, names, weights)
    if isinstance(layer, Pass):
        return _pass(layer, names)
    if isinstance(layer, Attend):
        q, k, v = (names[x] for x in layer.operands)
        shape = layer.heads, layer.head_dim
        return Attention(layer.path, q, k, v, names[layer], *shape, layer.masked, layer.causal, layer.bias)
    return None


def _gemm(layer: Linear, names: dict[Layer, str], weights: bool) -> Gemm:
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
    )


def _product(layer: Linear) -> tuple[Array, Float64]:
    """Its weight and bias, with what the machine leaves out of its operand."""
    affine = _affine(layer.x)
    factor = np.float64(layer.factor)
    if affine is None:
        return _scaled(layer.weight, np.broadcast_to(factor, len(layer.weight))), layer.bias * factor
    bias = layer.bias + _times(affine.shift, layer.weight)
    return _scaled(layer.weight, affine.scale * factor), bias * factor


def _unknown(like: np.ndarray) -> Array:
    """As many numbers, which spoil every result that they get into."""
    return np.broadcast_to(np.float32(np.nan), like.shape)


def _pass(layer: Pass, names: dict[Layer, str]) -> Gemm:
    """An operation over its operand as residual, without a product. That has no bias: where the operand lacks a shift,
    the product with its scale as a diagonal matrix, which is exact, adds it."""
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
    """What the machine leaves out of a result, (N,) each."""

    scale: Float64
    shift: Float64


def _affine(layer: Layer) -> _Affine | None:
    if not isinstance(layer, Linear | Pass):
        return None
    if layer.norm is not None:
        return _Affine(layer.norm.scale, layer.norm.shift)
    return None if layer.gain == 1 else _Affine(np.full(layer.width, layer.gain), np.zeros(layer.width))


PIECE = 16
"""Rows or columns of a weight that are converted at a time, so that they stay in the cache: ten times faster."""


def _scaled(weight: Array, factors: np.ndarray) -> Array:
    """A copy with row i times factors[i] in float64, rounded once."""
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
    """An identifier for each, from the module path."""
    names: dict[Layer, str] = {}
    taken: set[str] = set()
    for layer in layers:
        stem = re.sub(r"\W", "_", layer.name if isinstance(layer, Source) else layer.path)
        if not stem or stem[0].isdigit():
            kind = "attention" if isinstance(layer, Attend) else "pass" if isinstance(layer, Pass) else "linear"
            stem = f"{kind}_{stem}".removesuffix("_")
        name, n = stem, 1
        while name in taken:
            n += 1
            name = f"{stem}_{n}"
        taken.add(name)
        names[layer] = name
    return names
