"""The scheduler's input: a graph of matrix products and attention over named activations, after folding.

An activation is a float32 matrix of `batch * seq` rows with a name. Every matrix product is one pass over the datapath,
fused with its neighbours that are no matrix products (paper section 4.3 and Fig. 11).
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
"""How messages name the root module, whose path is empty."""


class Activation(Enum):
    """Activation function that MemC applies at its store. The base machine has GELU_TANH only; the others need opcode
    8."""

    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU = "relu"
    SILU = "silu"


@dataclass(frozen=True)
class Norm:
    """LayerNorm over the columns with biased variance, or RMSNorm with `rms`.

    Without scale and shift: those are folded into the consumers. eps: added to the variance or the mean square.
    """

    eps: float
    rms: bool = False


@dataclass(frozen=True, eq=False)
class Gemm:
    """y = norm(activation(x @ weight + bias + residual * residual_scale)); all but the product are optional.

    weight is (K, N), bias and residual_scale are (N,), all float32. `activation` and `norm` exclude each other. x, y,
    residual: names of activations. path: the module path. K = 0 means no product and no bias: a pass over the residual
    (`x` is the same activation), for activations that a pre-norm model both normalises and keeps. fused: module paths
    of the activation or norm, where they are modules of their own.
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
    fused: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The module path for messages; TOP for the root module."""
        return self.path or TOP

    @property
    def multiplies(self) -> bool:
        """Whether the pass has a matrix product, i.e. K > 0."""
        return len(self.weight) > 0


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """y = softmax(q @ k^T + bias) @ v for each sequence and head. The scale of the scores is folded into the weights of
    the keys.

    q, k, v, y: names of activations of heads * head_dim columns; head h starts at column h * head_dim. masked: keys at
    and beyond the length of the sequence (the run-time parameter len[b]) are masked out. causal: for each row, the keys
    behind it are masked out. bias: finite constants of shape (batch or 1, heads or 1, seq, seq), such as relative
    positions or another mask.
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
    def fused(self) -> tuple[str, ...]:
        """Module paths of what is fused into it: an attention has none of its own."""
        return ()

    @property
    def place(self) -> str:
        """The module path for messages; TOP for the root module."""
        return self.path or TOP


Layer = Gemm | AttentionLayer


@dataclass(frozen=True, eq=False)
class Output:
    """An activation that is returned to the host as activation * scale + shift. scale, shift: (N,), the affine part of
    a last LayerNorm; None for none."""

    name: str
    scale: Array | None = None
    shift: Array | None = None


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """Layers in execution order over `batch` sequences of `seq` rows. inputs: column count by activation.

    lengths: rows of each sequence, where they differ; rows beyond are neither stored nor computed. Empty: all `seq`.
    """

    batch: int
    seq: int
    inputs: dict[str, int]
    outputs: tuple[Output, ...]
    layers: tuple[Layer, ...] = field(default=())
    lengths: tuple[int, ...] = ()

    @property
    def rows(self) -> tuple[int, ...]:
        """Number of rows of each sequence."""
        return self.lengths or (self.seq,) * self.batch

    @property
    def size(self) -> str:
        """Batch and rows as text, for messages."""
        if not self.lengths:
            return f"{self.batch} x {self.seq} rows"
        return f"{self.batch} sequences of {', '.join(map(str, self.lengths))} rows"

    def columns(self, name: str) -> int:
        """Number of columns of an activation that a layer of this graph computes."""
        layer = next(layer for layer in self.layers if layer.y == name)
        return layer.heads * layer.head_dim if isinstance(layer, AttentionLayer) else int(layer.weight.shape[1])

    def show(self) -> str:
        """The graph as text: a line for the inputs, for each layer, and for the outputs."""
        inputs = ", ".join(f"{name} ({columns} columns)" for name, columns in self.inputs.items())
        outputs = ", ".join(out.name + " * scale + shift" * (out.scale is not None) for out in self.outputs)
        lines = [f"  {layer.y} = {_formula(layer)}" for layer in self.layers]
        return "\n".join([f"{self.size}: {inputs}", *lines, f"  -> {outputs}"]) + "\n"

    def with_lengths(self, lengths: Sequence[int]) -> LayerGraph:
        """The same layers over sequences of these numbers of rows. Raises `ScheduleError` unless there are `batch`
        whole numbers from 1 to `seq`."""
        given: object = lengths
        if isinstance(given, str) or not hasattr(given, "__len__"):
            raise ScheduleError(f"lengths = {lengths!r}: must be a list of whole numbers, one for each sequence")
        for n in lengths:
            if isinstance(n, bool) or not hasattr(n, "__index__"):
                raise ScheduleError(f"lengths: {n!r} is not a whole number")
        if len(lengths) != self.batch:
            raise ScheduleError(f"lengths: {len(lengths)} given for a batch of {self.batch} sequences")
        for i, n in enumerate(lengths):
            if not 1 <= n <= self.seq:
                raise ScheduleError(f"lengths: {n} for sequence {i}; a length must be from 1 to {self.seq} rows")
        same = all(n == self.seq for n in lengths)
        return replace(self, lengths=() if same else tuple(int(n) for n in lengths))


def _formula(layer: Layer) -> str:
    if isinstance(layer, AttentionLayer):
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
