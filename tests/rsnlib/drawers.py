"""For each operator of the normal form a function of tensors (batch, rows, columns), for random networks.

Most are drawn from the operator's schema: tensors in turn, numbers by the names of the arguments. A new operator needs
a line here only if its schema has an argument without a default that `NUMBERS` does not know.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from rsn.rsnlib.normal_form.operators import OPERATORS, OperatorKind
from rsn.rsnlib.quantised_ops import DEQUANTISE, INTEGER_LINEAR, INTEGER_MATMUL, QUANTISE, ROW_SCALES

aten = torch.ops.aten
Drawer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of two values of a network and of one of its arguments, whose numbers are the same on the host and on the machine:
what has steps is computed from that."""

NUMBERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "dim": lambda x: -1,
    "dims": lambda x: [1],
    "shifts": lambda x: [1],
    "repeats": lambda x: [1, 1, 1],
    "normalized_shape": lambda x: [x.shape[-1]],
    "min": lambda x: -0.5,
    "threshold": lambda x: 0.1,
    "value": lambda x: 0.25,
    "weight": lambda x: 0.25,
    "kernel_size": lambda x: [2],
    "output_size": lambda x: [4],
    "k": lambda x: x.shape[-1],
    "q": lambda x: 0.5,
    "fill_value": lambda x: 0.5,
}
"""Arguments without defaults, and some with one that would leave nothing to do."""
REAL = {
    *(aten.add, aten.sub, aten.mul, aten.neg, aten.abs, aten.relu, aten.gelu, aten.silu, aten.tanh, aten.sigmoid),
    *(aten.erf, aten.maximum, aten.minimum, aten.softplus, aten.elu, aten.mish, aten.leaky_relu, aten.clamp, aten.pow),
}
"""Operators of all numbers that do not grow faster than squares; others get numbers between 0 and 1."""
STEPS = {aten.floor, aten.ceil, aten.round, aten.trunc, aten.sign, aten.fmod, aten.remainder, aten.threshold, aten.mode}
"""Operators with steps."""
WHOLE = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isfinite", "argmax", "argmin", "count_nonzero"}
"""Operators whose results are truths or whole numbers."""
TRUTHS = {aten.logical_and, aten.logical_or, aten.logical_not, aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor}
TRUTHS |= {aten.bitwise_not, aten.all, aten.any}
"""Operators of truths."""


def drawer(op: Any) -> Drawer | None:
    """The function of an operator; None if there is none."""
    return SPECIAL.get(op) or _by_schema(op)


def _by_schema(op: Any) -> Drawer | None:
    for name in ("Tensor", "dim", "dim_IntList", "correction", "default", "int"):
        if name not in op.overloads():
            continue
        target = getattr(op, name)
        schema = [x for x in target._schema.arguments if x.name != "out"]
        tensors = [x for x in schema if str(x.type) == "Tensor"]
        lacking = [x for x in schema if not x.has_default_value() and x not in tensors]
        if tensors and all(x.name in NUMBERS or "keepdim" in x.name for x in lacking):
            return _drawer(target, schema, len(tensors))
    return None


def _drawer(target: Any, schema: list[Any], count: int) -> Drawer:
    """Call an operator with so many tensors. What it asks of the schema it asks now: torch.compile follows the rest."""
    op = target.overloadpacket
    numbers = [(a.name, "List" in str(a.type)) for a in schema if a.name in NUMBERS and "Tensor" not in str(a.type)]
    keeps = {"keepdim": True} if any(a.name == "keepdim" for a in schema) else {}
    has_steps = op in STEPS or op in TRUTHS or op.__name__ in WHOLE
    is_bounded = op not in REAL and not has_steps and OPERATORS.get(op) not in (OperatorKind.VIEW, OperatorKind.COPY)

    def drawn(x: torch.Tensor, y: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        kwargs: dict[str, Any] = dict(keeps)
        for name, is_list in numbers:
            number = NUMBERS[name](x)
            kwargs[name] = [number] if is_list and not isinstance(number, list) else number
        operands = [given, given.flip(1)] if has_steps else [x, y]
        if op in TRUTHS:
            operands = [t > 0 for t in operands]
        elif is_bounded:
            operands = [t.tanh() * 0.4 + 0.5 for t in operands]
        return _as_wide(target(*(operands * 2)[:count], **kwargs), x)

    return drawn


def _as_wide(made: Any, x: torch.Tensor) -> torch.Tensor:
    """A result as a tensor of the shape of x: itself, or x with its numbers added to the rows."""
    made = made[0] if isinstance(made, list | tuple) else made
    made = made if made.dtype == x.dtype else made.to(x.dtype)
    if made.shape == x.shape:
        return made
    if made.ndim == 3 and made.shape[:2] == x.shape[:2]:
        return x + made.mean(-1, keepdim=True)
    return x + (made.reshape(x.shape[0], -1).mean(-1)[:, None, None] if made.numel() % x.shape[0] == 0 else made.mean())


def _weight(x: torch.Tensor, *shape: int) -> torch.Tensor:
    """Constant numbers of the size of a weight."""
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=x.dtype) * 0.7).sin().reshape(shape) * x.shape[-1] ** -0.5


def _heads(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(-1, (-1, 16)).transpose(1, 2)


def _positions(x: torch.Tensor) -> torch.Tensor:
    """The columns in another order."""
    return torch.arange(x.shape[-1]).flip(0)


def _everywhere(x: torch.Tensor) -> torch.Tensor:
    return _positions(x).expand(x.shape)


def _attended(x: torch.Tensor, y: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    made = aten.scaled_dot_product_attention(_heads(x), _heads(y), _heads(y))
    return made.transpose(1, 2).flatten(2)


def _windows(x: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return _as_wide(make(x[:, None]), x)


SPECIAL: dict[Any, Drawer] = {
    aten.alias: lambda x, y, g: x[:],
    aten.reshape: lambda x, y, g: x.reshape(-1, x.shape[-1]).reshape(x.shape),
    aten.permute: lambda x, y, g: x.permute(1, 2, 0).permute(2, 0, 1),
    aten.expand: lambda x, y, g: x[:, :1].expand(x.shape) + y,
    aten.slice: lambda x, y, g: torch.cat([x[..., 16:], x[..., :16]], -1),
    aten.select: lambda x, y, g: x + y.select(1, 0)[:, None],
    aten._to_copy: lambda x, y, g: x.double().to(x.dtype),
    aten.cat: lambda x, y, g: torch.cat([x[..., :16], y[..., 16:]], -1),
    aten.stack: lambda x, y, g: torch.stack([x, y], 2)[:, :, 1],
    aten.repeat: lambda x, y, g: x[..., : x.shape[-1] // 2].repeat(1, 1, 2),
    aten.where: lambda x, y, g: torch.where(g > 0, x, y),
    aten.clamp: lambda x, y, g: x.clamp(-0.5, 0.75),
    aten.pow: lambda x, y, g: x**2,
    aten._prelu_kernel: lambda x, y, g: torch.nn.functional.prelu(x, torch.full((), 0.25, dtype=x.dtype)),
    aten.linalg_vector_norm: lambda x, y, g: x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + 1),
    aten.prod: lambda x, y, g: _as_wide((x[..., :4].tanh() + 1).prod(-1, keepdim=True), x),
    aten.kthvalue: lambda x, y, g: x + y.kthvalue(2, -1, keepdim=True)[0],
    aten.batch_norm: lambda x, y, g: (
        torch.nn.functional.batch_norm(
            x.mT, torch.zeros(x.shape[-1], dtype=x.dtype), torch.ones(x.shape[-1], dtype=x.dtype)
        ).mT
    ),
    aten.glu: lambda x, y, g: torch.nn.functional.glu(torch.cat([x, y], -1)),
    aten.group_norm: lambda x, y, g: torch.nn.functional.group_norm(x.mT, 4).mT,
    aten.instance_norm: lambda x, y, g: torch.nn.functional.instance_norm(x.mT).mT,
    aten.tril: lambda x, y, g: x.tril(1),
    aten.triu: lambda x, y, g: x.triu(-1),
    aten.constant_pad_nd: lambda x, y, g: torch.nn.functional.pad(x, (1, -1)),
    aten.pad: lambda x, y, g: torch.nn.functional.pad(x, (1, 0), mode="reflect")[..., :-1],
    aten.conv1d: lambda x, y, g: aten.conv1d(x.mT, _weight(x, x.shape[-1], x.shape[-1], 1)).mT,
    aten.conv2d: lambda x, y, g: _windows(x, lambda t: aten.conv2d(t, _weight(x, 4, 1, 1, 8), None, [1, 8])),
    aten.conv3d: lambda x, y, g: _as_wide(aten.conv3d(x[:, None, None], _weight(x, 2, 1, 1, 1, 4)), x),
    aten.im2col: lambda x, y, g: _windows(x, lambda t: aten.im2col(t, [2, 2], [1, 1], [0, 0], [2, 2])),
    aten.adaptive_avg_pool2d: lambda x, y, g: _windows(x, lambda t: aten.adaptive_avg_pool2d(t, [2, 2])),
    aten.avg_pool2d: lambda x, y, g: _windows(x, lambda t: aten.avg_pool2d(t, [1, 4])),
    aten.max_pool2d: lambda x, y, g: _windows(x, lambda t: aten.max_pool2d(t, [1, 4])),
    aten.linear: lambda x, y, g: aten.linear(x, _weight(x, x.shape[-1], x.shape[-1])),
    aten.matmul: lambda x, y, g: x @ _weight(x, x.shape[-1], x.shape[-1]),
    aten.bmm: lambda x, y, g: aten.bmm(aten.bmm(x, y.mT) / x.shape[-1], x),
    aten.baddbmm: lambda x, y, g: aten.baddbmm(x, x, _weight(x, x.shape[-1], x.shape[-1]).expand(len(x), -1, -1)),
    aten.einsum: lambda x, y, g: torch.einsum("brc,cd->brd", x, _weight(x, x.shape[-1], x.shape[-1])),
    aten.scaled_dot_product_attention: _attended,
    aten.embedding: lambda x, y, g: x + aten.embedding(_weight(x, 2, x.shape[-1]), (g[..., 0] > 0).long()),
    aten.gather: lambda x, y, g: x.gather(-1, _everywhere(x)),
    aten.take_along_dim: lambda x, y, g: x.take_along_dim(_everywhere(x), -1),
    aten.index: lambda x, y, g: x[:, :, _positions(x)],
    aten.index_select: lambda x, y, g: x.index_select(-1, _positions(x)),
    aten.index_add: lambda x, y, g: x.index_add(-1, _positions(x), y),
    aten.index_copy: lambda x, y, g: x.index_copy(1, torch.zeros(1, dtype=torch.int64), y[:, :1]),
    aten.index_put: lambda x, y, g: x.index_put([torch.zeros(1, dtype=torch.int64)], y[:1]),
    aten.isin: lambda x, y, g: x * torch.isin(g.round(), torch.tensor([0.0, 1.0])),
    aten.one_hot: lambda x, y, g: x + torch.nn.functional.one_hot((g[..., 0] > 0).long(), 2).to(x.dtype)[..., :1],
    aten.scatter: lambda x, y, g: x.scatter(-1, _everywhere(x), y),
    aten.scatter_add: lambda x, y, g: x.scatter_add(-1, _everywhere(x), y),
    aten.scatter_reduce: lambda x, y, g: x.scatter_reduce(-1, _everywhere(x), y, "amax"),
    aten.arange: lambda x, y, g: x + torch.arange(x.shape[1], dtype=x.dtype)[:, None] * 0.1,
    aten.full: lambda x, y, g: x * torch.full((x.shape[-1],), 0.5, dtype=x.dtype),
    aten.quantile: lambda x, y, g: x - x.quantile(0.5, dim=-1, keepdim=True),
    aten.nanquantile: lambda x, y, g: x - x.nanquantile(0.5, dim=-1, keepdim=True),
    aten.upsample_nearest2d: lambda x, y, g: _upsampled(x, "nearest"),
    aten.upsample_bilinear2d: lambda x, y, g: _upsampled(x, "bilinear"),
    aten.upsample_bicubic2d: lambda x, y, g: _upsampled(x, "bicubic"),
    operator.getitem: lambda x, y, g: x + x.topk(2, -1)[0].sum(-1, keepdim=True),
    torch.ops.rsn.rotate: lambda x, y, g: (
        torch.ops.rsn.rotate(
            _heads(x), _weight(x, x.shape[1], 16), _weight(x, x.shape[1], 16), [*range(8, 16), *range(8)]
        )
        .transpose(1, 2)
        .flatten(2)
    ),
    torch.ops.rsn.roll_in: lambda x, y, g: torch.ops.rsn.roll_in(x[:, None], y[:, None, :1])[:, 0],
    ROW_SCALES: lambda x, y, g: x + ROW_SCALES(g, True, 1e-6, -128, 127)[0].to(x.dtype),
    QUANTISE: lambda x, y, g: x + 0.05 * _integers(g).to(x.dtype)[..., :1],
    DEQUANTISE: lambda x, y, g: x + DEQUANTISE(_integers(g), _scale(), None, 8).to(x.dtype)[..., :1],
    INTEGER_LINEAR: lambda x, y, g: (
        x
        + INTEGER_LINEAR(
            *(_integers(g), _scale(), None),
            *(_small_integers(x.shape[-1], g.shape[-1]), _scale().expand(x.shape[-1], 1).contiguous(), None, None, 4),
        ).to(x.dtype)
    ),
    INTEGER_MATMUL: lambda x, y, g: (
        x
        + INTEGER_MATMUL(
            *(_integers(g), *ROW_SCALES(g, False, 1e-6, -128, 127)),
            *(_small_integers(g.shape[-1], x.shape[-1]), _scale().expand(1, x.shape[-1]).contiguous(), None),
        ).to(x.dtype)
    ),
}
"""Operators whose operands need another form, or whose schema does not say what to draw."""


def _scale() -> torch.Tensor:
    return torch.full((), 0.05)


def _integers(x: torch.Tensor) -> torch.Tensor:
    """Numbers as int8."""
    return QUANTISE(x, _scale(), None, -128, 127)


def _small_integers(*sizes: int) -> torch.Tensor:
    """A weight of 4 bits."""
    return (torch.arange(prod(sizes)).reshape(sizes) % 15 - 7).to(torch.int8)


def _upsampled(x: torch.Tensor, mode: str) -> torch.Tensor:
    return _windows(x, lambda t: torch.nn.functional.interpolate(t, scale_factor=(1.0, 2.0), mode=mode))
