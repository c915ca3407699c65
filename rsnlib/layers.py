"""The machine's part of a module before folding: each layer's result is PyTorch's own, LayerNorm affine and all.

Layers refer to each other as objects and are compared by identity. Fusing something into a product makes a new layer.
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
    """An activation the host provides. The host's tensor shows it through `view`."""

    name: str
    width: int
    view: View

    @property
    def operands(self) -> tuple[Layer, ...]:
        return ()


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """LayerNorm over the N columns, or RMSNorm; scale and shift are (N,)."""

    eps: float
    scale: Float64
    shift: Float64
    rms: bool = False


@dataclass(frozen=True, eq=False)
class Linear:
    """norm(gain * activation(factor * (x @ weight + bias) + residual)); weight (K, N), bias (N,); with a norm
    gain is 1.

    `before` is the layer that something was fused into to make this one. Where both are wanted, what was fused last
    becomes a `Pass`. fused_path: the module path of the activation or norm, "" where it is the product's own.
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
    before: Linear | None = None
    fused_path: str = ""

    @property
    def width(self) -> int:
        return int(self.weight.shape[1])

    @property
    def is_open(self) -> bool:
        """Whether something may still be added."""
        return self.activation is None and self.norm is None

    @property
    def operands(self) -> tuple[Layer, ...]:
        return (self.x,) if self.residual is None else (self.x, self.residual)


@dataclass(frozen=True, eq=False)
class Pass:
    """norm(gain * activation(x)), where x is wanted for itself too: as in a pre-norm block, which normalises its
    residual."""

    path: str
    x: Layer
    activation: Activation | None = None
    norm: LayerNorm | None = None
    gain: float = 1.0

    @property
    def width(self) -> int:
        return self.x.width

    @property
    def operands(self) -> tuple[Layer, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Attend:
    """softmax(q @ k^T + bias) @ v per sequence and head, head h in columns h*head_dim ..; masked by the run-time
    lengths, and causal where each row takes no key behind it. bias: (batch or 1, heads or 1, seq, seq)."""

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
        return self.heads * self.head_dim

    @property
    def operands(self) -> tuple[Layer, ...]:
        return (self.q, self.k, self.v)


Layer = Source | Linear | Pass | Attend


def show_layers(outputs: Sequence[Layer]) -> str:
    """In words, a line for each layer, operands first."""
    numbers = {layer: f"%{i}" for i, layer in enumerate(ancestors(outputs))}
    lines = [f"{name} = {_words(layer, numbers)}" for layer, name in numbers.items()]
    return "\n".join([*lines, "-> " + ", ".join(numbers[layer] for layer in outputs)]) + "\n"


def _words(layer: Layer, numbers: Mapping[Layer, str]) -> str:
    of = [numbers[x] for x in layer.operands]
    if isinstance(layer, Source):
        return f"{layer.name}, {layer.width} columns, from the host"
    if isinstance(layer, Attend):
        q, k, v = of
        words = attention_formula(q, k, v, layer.heads, layer.head_dim, layer.masked, layer.causal, layer.bias)
        return f"{words}  # {layer.path}"
    x, residual = of[0], ""
    if isinstance(layer, Linear):
        x, residual = product_formula(x, layer.weight), of[1] if layer.residual is not None else ""
        x = x if layer.factor == 1 else f"{layer.factor:g} * ({x})"
    norm = None if layer.norm is None else (f"{'rms' if layer.norm.rms else 'layer'}_norm", layer.norm.eps)
    return f"{fused_formula(x, residual, layer.activation, norm, layer.gain)}  # {layer.path}"


def ancestors(layers: Sequence[Layer]) -> dict[Layer, None]:
    """These layers and all they depend on, operands first: a set in a fixed order."""
    found: dict[Layer, None] = {}
    stack = list(reversed(layers))
    while stack:
        missing = next((x for x in stack[-1].operands if x not in found), None)
        if missing is not None:
            stack.append(missing)
        else:
            found[stack.pop()] = None
    return found
