"""Layers of the machine before folding: the result of each layer equals PyTorch's, with the affine part of LayerNorm.

Layers refer to each other as objects and are compared by identity. Fusing an operator into a product makes a new layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..machine.view import View
from ..scheduler.graph import Activation, Array, attention_formula, fused_formula, product_formula

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Source:
    """An activation that the host provides. width: its columns. view: the host's tensor is this view of it."""

    name: str
    width: int
    view: View

    @property
    def operands(self) -> tuple[Layer, ...]:
        """The layers whose results it reads: none."""
        return ()


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """LayerNorm over N columns, or RMSNorm if `rms`. scale, shift: (N,)."""

    eps: float
    scale: Float64
    shift: Float64
    rms: bool = False


@dataclass(frozen=True, eq=False)
class LinearLayer:
    """norm(gain * activation(factor * (x @ weight + bias) + residual)); weight is (K, N), bias (N,).

    gain is 1 if there is a norm. before: the layer without the operator that was fused last; if its result is needed
    too, that operator becomes a `Pass`. fused_path: module path of the activation or norm that was fused, else "".
    """

    path: str
    x: Layer
    weight: Array
    bias: Float64
    factor: float = 1.0
    residual: Layer | None = None
    activation: Activation | None = None
    norm: LayerNorm | None = None
    gain: float = 1.0
    before: LinearLayer | None = None
    fused_path: str = ""

    @property
    def width(self) -> int:
        """Number of columns of its result."""
        return int(self.weight.shape[1])

    @property
    def is_open(self) -> bool:
        """Whether a bias, a residual, a factor, an activation or a norm can still be fused."""
        return self.activation is None and self.norm is None

    @property
    def operands(self) -> tuple[Layer, ...]:
        """The layers whose results it reads."""
        return (self.x,) if self.residual is None else (self.x, self.residual)


@dataclass(frozen=True, eq=False)
class Pass:
    """norm(gain * activation(x)) as a layer of its own, because x is needed too: e.g. a pre-norm block normalises its
    residual and also adds it later."""

    path: str
    x: Layer
    activation: Activation | None = None
    norm: LayerNorm | None = None
    gain: float = 1.0

    @property
    def width(self) -> int:
        """Number of columns of its result."""
        return self.x.width

    @property
    def operands(self) -> tuple[Layer, ...]:
        """The layers whose results it reads."""
        return (self.x,)


@dataclass(frozen=True, eq=False)
class AttendLayer:
    """softmax(q @ k^T + bias) @ v for each sequence and head; head h starts at column h * head_dim.

    masked: keys beyond the run-time lengths are masked out. causal: for each row, the keys behind it are masked out.
    bias: (batch or 1, heads or 1, seq, seq).
    """

    path: str
    q: Layer
    k: Layer
    v: Layer
    heads: int
    head_dim: int
    masked: bool
    causal: bool = False
    bias: Array | None = None

    @property
    def width(self) -> int:
        """Number of columns of its result."""
        return self.heads * self.head_dim

    @property
    def operands(self) -> tuple[Layer, ...]:
        """The layers whose results it reads."""
        return (self.q, self.k, self.v)


Layer = Source | LinearLayer | Pass | AttendLayer


def show_layers(outputs: Sequence[Layer]) -> str:
    """The layers behind `outputs` as text, a line for each, operands first."""
    numbers = {layer: f"%{i}" for i, layer in enumerate(ancestors(outputs))}
    lines = [f"{name} = {_words(layer, numbers)}" for layer, name in numbers.items()]
    return "\n".join([*lines, "-> " + ", ".join(numbers[layer] for layer in outputs)]) + "\n"


def _words(layer: Layer, numbers: Mapping[Layer, str]) -> str:
    of = [numbers[x] for x in layer.operands]
    if isinstance(layer, Source):
        return f"{layer.name}, {layer.width} columns, from the host"
    if isinstance(layer, AttendLayer):
        q, k, v = of
        words = attention_formula(q, k, v, layer.heads, layer.head_dim, layer.masked, layer.causal, layer.bias)
        return f"{words}  # {layer.path}"
    x, residual = of[0], ""
    if isinstance(layer, LinearLayer):
        x, residual = product_formula(x, layer.weight), of[1] if layer.residual is not None else ""
        x = x if layer.factor == 1 else f"{layer.factor:g} * ({x})"
    norm = None if layer.norm is None else (f"{'rms' if layer.norm.rms else 'layer'}_norm", layer.norm.eps)
    return f"{fused_formula(x, residual, layer.activation, norm, layer.gain)}  # {layer.path}"


def ancestors(layers: Sequence[Layer]) -> dict[Layer, None]:
    """These layers and all layers that they depend on, operands first. The keys are an ordered set."""
    found: dict[Layer, None] = {}
    stack = list(reversed(layers))
    while stack:
        missing = next((x for x in stack[-1].operands if x not in found), None)
        if missing is not None:
            stack.append(missing)
        else:
            found[stack.pop()] = None
    return found
