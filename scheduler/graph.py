"""What the scheduler is given: matrix products and attention over named activations, all that folds already folded.

An activation is a float32 matrix of `batch * seq` rows, known by name. Every matrix product here is one pass over the
datapath with its non-MM neighbours fused as in section 4.3 and Fig. 11 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from ..base.errors import ScheduleError

Array = npt.NDArray[np.float32]
TOP = "the top level"
"""What the module itself is called, whose path is empty."""


class Activation(Enum):
    """What MemC applies at its store. The base machine knows GELU_TANH alone; the others need opcode 8."""

    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True)
class Norm:
    """LayerNorm over the columns, biased variance, without scale and shift (those are folded into the consumers); or,
    with `rms`, division by the root of the mean square."""

    eps: float
    rms: bool = False


@dataclass(frozen=True, eq=False)
class Gemm:
    """y = norm(activation(x @ weight + bias + residual * residual_scale)), each part but the product optional.

    weight is (K, N), bias and residual_scale are (N,), all float32. `activation` and `norm` exclude each other.
    `path` is the module path, for messages. With K = 0 there is no product and no bias: a pass over the residual, which
    is `x` too, for what pre-norm models normalise and keep.
    """

    path: str
    x: str
    y: str
    weight: Array
    bias: Array
    activation: Activation | None = None
    residual: str | None = None
    residual_scale: Array | None = None
    norm: Norm | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return self.path or TOP

    @property
    def multiplies(self) -> bool:
        """Whether there is a product."""
        return len(self.weight) > 0


@dataclass(frozen=True, eq=False)
class Attention:
    """y = softmax(q @ k^T + bias) @ v for each sequence and head; the score scale is folded into the keys' weights
    already.

    q, k, v and y have heads * head_dim columns, head h in columns h*head_dim .. . With `masked`, keys at and beyond
    the sequence's length (the run-time parameter len[b]) take no part; with `causal`, for each row, those behind it.
    bias is (batch or 1, heads or 1, seq, seq), finite: what depends on positions alone, or any other mask.
    """

    path: str
    q: str
    k: str
    v: str
    y: str
    heads: int
    head_dim: int
    masked: bool = False
    causal: bool = False
    bias: Array | None = None

    @property
    def place(self) -> str:
        """For messages."""
        return self.path or TOP


Layer = Gemm | Attention


@dataclass(frozen=True, eq=False)
class Output:
    """An activation handed back to the host as activation * scale + shift (both (N,), the last LayerNorm's affine)."""

    name: str
    scale: Array | None = None
    shift: Array | None = None


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A chain of layers over `batch` sequences of `seq` rows. `inputs` maps an activation to its column count.

    lengths: how many rows each sequence has, where they differ; the others are neither stored nor computed. Empty: all.
    """

    batch: int
    seq: int
    inputs: dict[str, int]
    outputs: tuple[Output, ...]
    layers: tuple[Layer, ...] = field(default=())
    lengths: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each sequence."""
        return self.lengths or (self.seq,) * self.batch

    @property
    def size(self) -> str:
        """In words."""
        if not self.lengths:
            return f"{self.batch} x {self.seq} rows"
        return f"{self.batch} sequences of {', '.join(map(str, self.lengths))} rows"

    def columns(self, name: str) -> int:
        """Of the activation that a layer makes."""
        layer = next(layer for layer in self.layers if layer.y == name)
        return layer.heads * layer.head_dim if isinstance(layer, Attention) else int(layer.weight.shape[1])

    def show(self) -> str:
        """In words: what comes in, a line for each layer, what goes out."""
        inputs = ", ".join(f"{name} ({columns} columns)" for name, columns in self.inputs.items())
        outputs = ", ".join(out.name + " * scale + shift" * (out.scale is not None) for out in self.outputs)
        lines = [f"  {layer.y} = {_formula(layer)}" for layer in self.layers]
        return "\n".join([f"{self.size}: {inputs}", *lines, f"  -> {outputs}"]) + "\n"

    def with_lengths(self, lengths: Sequence[int]) -> LayerGraph:
        """The same over sequences of so many rows. Raises `ScheduleError` for lengths that do not fit."""
        given: object = lengths
        if isinstance(given, str) or not hasattr(given, "__len__"):
            raise ScheduleError(f"lengths = {lengths!r}: a list of whole numbers, one for each sequence")
        for n in lengths:
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise ScheduleError(f"lengths: {n!r} is no whole number")
        if len(lengths) != self.batch:
            raise ScheduleError(f"{len(lengths)} lengths for a batch of {self.batch} sequences")
        for i, n in enumerate(lengths):
            if not 1 <= n <= self.seq:
                raise ScheduleError(f"length {n} of sequence {i}: sequences have 1 to {self.seq} rows")
        same = all(n == self.seq for n in lengths)
        return replace(self, lengths=() if same else tuple(int(n) for n in lengths))


def _formula(layer: Layer) -> str:
    if isinstance(layer, Attention):
        return attention_formula(
            layer.q, layer.k, layer.v, layer.heads, layer.head_dim, layer.masked, layer.causal, layer.bias
        )
    x = product_formula(layer.x, layer.weight) if layer.multiplies else ""
    residual = "" if layer.residual is None else layer.residual + " * scale" * (layer.residual_scale is not None)
    norm = None if layer.norm is None else (f"{'rms_' * layer.norm.rms}norm", layer.norm.eps)
    return fused_formula(x, residual, layer.activation, norm)


def product_formula(x: str, weight: Array) -> str:
    """A matrix product with its bias, in words. x: the operand, in words."""
    k, n = weight.shape
    return f"{x} @ weight {k}x{n} + bias"


def fused_formula(
    x: str, residual: str, activation: Activation | None, norm: tuple[str, float] | None, gain: float = 1.0
) -> str:
    """What is fused behind a product, in words: norm(gain * activation(x + residual)). x, residual: in words, "" for
    none. norm: what it is called, and its eps."""
    words = " + ".join(filter(None, (x, residual)))
    words = words if activation is None else f"{activation.value}({words})"
    words = words if gain == 1 else f"{gain:g} * {words}"
    return words if norm is None else f"{norm[0]}({words}, eps {norm[1]:g})"


def attention_formula(
    q: str, k: str, v: str, heads: int, head_dim: int, masked: bool, causal: bool, bias: Array | None
) -> str:
    """An attention, in words."""
    added = "" if bias is None else " + bias " + "x".join(map(str, bias.shape))
    words = f"softmax({q} @ {k}^T{added}) @ {v}, {heads} heads of {head_dim}"
    return words + ", masked" * masked + ", causal" * causal
