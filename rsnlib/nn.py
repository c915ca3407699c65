"""RSNlib (paper section 4.5, Fig. 13): the machine's operators as PyTorch modules, for models written for the machine.

    model = rsn.nn.Encoder(layers=2, hidden=768, heads=12, inner=3072)
    rsn.nn.validate(model, "xnn", seq=512)  # needs neither weights nor inputs
    compiled = rsn.compile(model.eval(), (hidden_states, attention_mask))

Each module is plain PyTorch, to train or to run anywhere. `rsn.compile` reads the PyTorch operators that they call, not
their classes, so that they can be mixed with any other module. The machine fuses other operators into the matrix
product before them (paper section 4.3): put an activation or a norm behind a `Linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from ..base.deferred import deferred
from ..base.errors import RsnError, UnsupportedError
from ..isa.overlays import find
from ..scheduler import graph
from ..scheduler.lower import lower
from ..scheduler.norms import norms_at_loads
from ..scheduler.schedule import Schedule

if TYPE_CHECKING:
    from . import quantised_attention
else:
    quantised_attention = deferred("rsn.rsnlib.quantised_attention")  # it takes torchao

__all__ = [
    "Activation",
    "Attention",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "Linear",
    "OperatorError",
    "ResidualNorm",
    "validate",
]


class OperatorError(RsnError, ValueError):
    """An argument of an operator is wrong on any machine."""


def _check_sizes(module: nn.Module, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise OperatorError(f"{type(module).__name__}: {name}={size}; must be at least 1")


def _check_choice(module: nn.Module, name: str, given: str, choices: Iterable[str]) -> None:
    known = list(choices)
    if given not in known:
        raise OperatorError(f"{type(module).__name__}: no {name} {given!r}; there are {', '.join(known)}")


class Linear(nn.Linear):
    """A matrix product: x @ weight^T + bias, (..., in_features) to (..., out_features). weight: (out_features,
    in_features). bias: (out_features,); False for none. Raises `OperatorError` for sizes below 1."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        _check_sizes(self, in_features=in_features, out_features=out_features)
        super().__init__(in_features, out_features, bias)


class _Kind(NamedTuple):
    function: Callable[[torch.Tensor], torch.Tensor]
    machine: graph.ActivationFunction
    """The activation of the machine that computes it; argument and result may be scaled."""


_KINDS = {
    "gelu": _Kind(F.gelu, graph.ActivationFunction.GELU_ERF),
    "gelu_tanh": _Kind(lambda x: F.gelu(x, approximate="tanh"), graph.ActivationFunction.GELU_TANH),
    "quick_gelu": _Kind(lambda x: x * torch.sigmoid(1.702 * x), graph.ActivationFunction.SILU),
    "relu": _Kind(F.relu, graph.ActivationFunction.RELU),
    "silu": _Kind(F.silu, graph.ActivationFunction.SILU),
}


class Activation(nn.Module):
    """An activation function of each element. The machine applies it to the result of a product.

    kind: "gelu" (with erf), "gelu_tanh", "quick_gelu" (x * sigmoid(1.702 x); on the machine a scaled SiLU), "relu" or
    "silu". Raises `OperatorError` for any other.
    """

    def __init__(self, kind: str = "gelu") -> None:
        super().__init__()
        _check_choice(self, "activation", kind, _KINDS)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the function of each element. x: any shape, which the result has too."""
        return _KINDS[self.kind].function(x)

    def extra_repr(self) -> str:
        """Return the kind, for PyTorch's print of a module."""
        return self.kind


class Attention(nn.Module):
    """Self-attention with its projections, on (batch, seq, hidden): softmax(query @ key^T / sqrt(head_dim)) @ value in
    each of `heads` heads. hidden: columns of operand and result. head_dim: columns of a head; None means hidden /
    heads. causal: row i attends to the keys 0 to i only. quantised: both products are of int8
    (`rsn.quantised_attention`). Raises `OperatorError` for sizes below 1, or if hidden / heads is needed and not
    whole."""

    def __init__(
        self, hidden: int, heads: int, head_dim: int | None = None, causal: bool = False, quantised: bool = False
    ) -> None:
        super().__init__()
        _check_sizes(self, hidden=hidden, heads=heads)
        if head_dim is None and hidden % heads:
            raise OperatorError(
                f"Attention: hidden={hidden} is not divisible by heads={heads}; choose another number of heads, or "
                "give head_dim"
            )
        self.heads, self.causal, self.quantised = heads, causal, quantised
        self.head_dim = hidden // heads if head_dim is None else head_dim
        _check_sizes(self, head_dim=self.head_dim)
        columns = heads * self.head_dim
        self.query, self.key, self.value = (Linear(hidden, columns) for _ in range(3))
        self.out = Linear(columns, hidden)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return (batch, seq, hidden). x: (batch, seq, hidden).

        mask: (batch, seq), 1 or True at valid keys. Sequences must be padded on the right: valid keys come first. Or a
        mask of four dimensions, as F.scaled_dot_product_attention takes it; it must hide the later keys too if the
        attention is causal, because `causal` is then ignored. None hides no keys but those that `causal` hides.
        """
        split = (self.heads, self.head_dim)
        q, k, v = (f(x).unflatten(-1, split).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = None if mask is None else _seen(mask, self.causal)
        if self.quantised:
            made, _ = quantised_attention.quantised_attention(self, q, k, v, seen, is_causal=self.causal)
            return self.out(made.flatten(2))
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=self.causal and mask is None)
        return self.out(context.transpose(1, 2).flatten(2))

    def extra_repr(self) -> str:
        """Return the settings, for PyTorch's print of a module."""
        return f"heads={self.heads}, head_dim={self.head_dim}, causal={self.causal}" + ", quantised" * self.quantised


def _seen(mask: torch.Tensor, causal: bool) -> torch.Tensor:
    """The attention mask, which broadcasts to (batch, heads, seq, seq), from a mask of valid keys."""
    if mask.ndim == 4:
        return mask
    keys = mask.bool()[:, None, None, :]
    seq = mask.shape[-1]
    return keys & torch.ones(seq, seq, dtype=torch.bool, device=mask.device).tril() if causal else keys


class ResidualNorm(nn.LayerNorm):
    """LayerNorm of x + residual, or of x, over the last dimension of `hidden` columns. eps: is added to the variance.
    Raises `OperatorError` for sizes below 1."""

    def __init__(self, hidden: int, eps: float = 1e-12) -> None:
        _check_sizes(self, hidden=hidden)
        super().__init__(hidden, eps)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return the norm of x + residual, (..., hidden). x, residual: (..., hidden); None adds nothing."""
        return super().forward(x if residual is None else x + residual)


class FeedForward(nn.Module):
    """down(activation(up(x))): from `hidden` to `inner` columns and back. activation: a kind of `Activation`. Raises
    `OperatorError` for sizes below 1, and for an unknown kind."""

    def __init__(self, hidden: int, inner: int, activation: str = "gelu") -> None:
        super().__init__()
        _check_sizes(self, hidden=hidden, inner=inner)
        self.up = Linear(hidden, inner)
        self.activation = Activation(activation)
        self.down = Linear(inner, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., hidden). x: (..., hidden)."""
        return self.down(self.activation(self.up(x)))


Order = Literal["post", "pre"]
"""Where an encoder layer normalises."""


class EncoderLayer(nn.Module):
    """A transformer layer: attention and feed-forward, each with a residual connection.

    hidden, heads, causal, quantised: as for `Attention`; causal makes it the layer of a decoder. inner, activation: as
    for `FeedForward`. eps: of both norms, as for `ResidualNorm`. norm: "post" normalises the sums, as BERT does; "pre"
    normalises the inputs of attention and feed-forward, as GPT-2 and ViT do. Raises `OperatorError` for another norm,
    and as these modules do.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        inner: int,
        activation: str = "gelu",
        eps: float = 1e-12,
        norm: Order = "post",
        causal: bool = False,
        quantised: bool = False,
    ) -> None:
        super().__init__()
        _check_choice(self, "norm", norm, ("post", "pre"))
        self.norm = norm
        self.attn = Attention(hidden, heads, causal=causal, quantised=quantised)
        self.attn_norm = ResidualNorm(hidden, eps)
        self.ffn = FeedForward(hidden, inner, activation)
        self.ffn_norm = ResidualNorm(hidden, eps)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return (batch, seq, hidden). x: (batch, seq, hidden). mask: as for `Attention.forward`."""
        if self.norm == "post":
            x = self.attn_norm(self.attn(x, mask), x)
            return self.ffn_norm(self.ffn(x), x)
        x = x + self.attn(self.attn_norm(x), mask)
        return x + self.ffn(self.ffn_norm(x))

    def extra_repr(self) -> str:
        """Return the settings, for PyTorch's print of a module."""
        return f"norm={self.norm}"


class Encoder(nn.Module):
    """A stack of encoder layers. layers: how many. Others: as for `EncoderLayer`, also the errors; `OperatorError` too
    for layers below 1. With norm="pre" a norm follows the last layer, because its sum is not normalised."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        heads: int,
        inner: int,
        activation: str = "gelu",
        eps: float = 1e-12,
        norm: Order = "post",
        causal: bool = False,
        quantised: bool = False,
    ) -> None:
        super().__init__()
        _check_sizes(self, layers=layers)
        self.causal = causal
        self.layers = nn.ModuleList(
            EncoderLayer(hidden, heads, inner, activation, eps, norm, causal, quantised) for _ in range(layers)
        )
        self.norm = ResidualNorm(hidden, eps) if norm == "pre" else None

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return (batch, seq, hidden). hidden_states: (batch, seq, hidden). attention_mask: as `mask` of
        `Attention.forward`."""
        # Once for all layers, because the host computes every mask before the machine starts.
        mask = None if attention_mask is None else _seen(attention_mask, self.causal)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
        return hidden_states if self.norm is None else self.norm(hidden_states)


def validate(model: nn.Module, overlay: str = "xnn", *, seq: int = 512, masked: bool = False) -> None:
    """Check that an overlay can run the operators of rsn.nn in a model, without weights and inputs.

    overlay: its name, or the path of an overlay file. seq: rows of a sequence. masked: calls will have an attention
    mask. Each operator is lowered alone; only `rsn.compile` can check the operators between them and the size of the
    program. Raises `UnsupportedError` with a line for each operator that cannot run (module path, reason, limit), or if
    the model has no operator of rsn.nn; `ProgramError` for an unknown overlay.
    """
    target, schedule = find(overlay), Schedule()
    faults, seen = [], 0
    for path, module in model.named_modules():
        where = path or graph.TOP
        network = _network(where, module, seq, masked)
        if network is None:
            continue
        seen += 1
        if isinstance(module, Attention) and module.quantised:
            faults.append(f"{where}: the overlays have no attention of integers")
            continue
        try:
            lower(norms_at_loads(network, target), target, schedule)
        except UnsupportedError as error:
            faults.append(str(error))
    if not seen:
        raise UnsupportedError(
            f"{type(model).__name__} has no operator of rsn.nn to check; for other modules use rsn.compile"
        )
    if faults:
        raise UnsupportedError("\n  ".join((f"overlay {overlay} cannot run this model:", *faults)))


WIDTH = 128
"""Number of columns of the test network, if the operator does not determine it."""


def _network(path: str, module: nn.Module, seq: int, masked: bool) -> graph.LayerGraph | None:
    """A network with one operator of rsn.nn; None for other modules and for modules composed of operators."""
    width = WIDTH
    layers: list[graph.Layer]
    match module:
        case Linear():
            width = module.in_features
            layers = [_gemm(path, "y", width, module.out_features)]
        case Activation():
            layers = [_gemm(path, "y", width, WIDTH, activation=_KINDS[module.kind].machine)]
        case ResidualNorm():
            layers = [_gemm(path, "y", width, module.normalized_shape[0], norm=graph.Norm(module.eps))]
        case Attention():
            heads, columns = module.heads, module.head_dim
            layers = [_gemm(path, name, width, heads * columns) for name in ("q", "k", "v")]
            layers += [
                graph.AttentionLayer(path, "q", "k", "v", "heads", heads, columns, masked=masked, causal=module.causal),
                _gemm(path, "y", heads * columns, width, x="heads"),
            ]
        case _:
            return None
    return graph.LayerGraph(1, seq, {"x": width}, (graph.Output("y"),), tuple(layers))


def _gemm(
    path: str,
    y: str,
    k: int,
    n: int,
    activation: graph.ActivationFunction | None = None,
    norm: graph.Norm | None = None,
    x: str = "x",
) -> graph.Gemm:
    """A product (K, N) whose weights take no memory."""
    zeros = np.broadcast_to(np.float32(0), (k, n))
    return graph.Gemm(path, x, y, zeros, zeros[0], activation, norm=norm)
