"""Operators that reduce axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from .elementwise import in_float32
from .table import Ints, Tensor, axis_of, need, operator


def _mean(x: Tensor, axes: list[int]) -> Tensor:
    if not all(x.shape[n] for n in axes):  # 0 of no numbers, as in onnxruntime; ONNX leaves it open
        return x.sum(axes, True, dtype=x.dtype)
    if x.is_floating_point():
        return x.mean(axes, keepdim=True)
    count = prod(x.shape[axis] for axis in axes)
    whole = x.long().div(count, rounding_mode="floor")  # a sum of elements might be beyond int64
    rest = (x - whole * count).sum(axes, keepdim=True)
    made = whole.sum(axes, keepdim=True) + rest.div(count, rounding_mode="floor")
    return (made + ((made < 0) & (rest % count != 0))).to(x.dtype)  # towards 0


def _bounded(exact: Tensor, wrapped: Tensor) -> Tensor:
    """Integers that end at the limits of their type, as onnxruntime computes them. exact: in float64, whose rounding
    may take a number of 64 bits to a limit that is near. wrapped: in the type, right between its limits."""
    low, high = _limits(wrapped)
    return torch.where(exact >= high, high, torch.where(exact <= low, low, wrapped))


def _product(x: Tensor, axes: list[int]) -> Tensor:
    def of(x: Tensor) -> Tensor:
        for axis in axes:
            x = x.prod(axis, keepdim=True, dtype=x.dtype)
        return x

    if x.is_floating_point():
        return in_float32(of)(x)
    return _bounded(of(x.double()).nan_to_num(nan=0.0), of(x))  # not a number: 0 times what is beyond float64


def _sum(x: Tensor, axes: list[int], term: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """The sum of `term` of the elements."""

    def of(x: Tensor) -> Tensor:
        return term(x).sum(axes, keepdim=True, dtype=x.dtype)

    return in_float32(of)(x) if x.is_floating_point() else _bounded(of(x.double()), of(x))


def _of_floats(function: Callable[[Tensor, list[int]], Tensor]) -> Callable[[Tensor, list[int]], Tensor]:
    """A reduction of floats, for integers as well: it is computed in float64, and its fraction is dropped. Of floats of
    16 bits, sums and squares are in float32: they may be beyond the type of their logarithm or root."""

    def compute(x: Tensor, axes: list[int]) -> Tensor:
        if x.is_floating_point():
            return in_float32(function)(x, axes)
        exact = function(x.double(), axes)
        return _bounded(exact, exact.to(x.dtype))

    return compute


def _extreme(
    function: Callable[..., Tensor], of_none: Callable[[Tensor], Any]
) -> Callable[[Tensor, list[int]], Tensor]:
    def compute(x: Tensor, axes: list[int]) -> Tensor:
        if all(x.shape[n] for n in axes):
            return (
                function(x.byte(), axes, keepdim=True).bool()
                if x.dtype is torch.bool
                else function(x, axes, keepdim=True)
            )
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        return torch.full(shape, of_none(x), dtype=x.dtype)

    return compute


def _limits(x: Tensor) -> tuple[Any, Any]:
    if x.dtype is torch.bool:
        return False, True
    if x.is_floating_point():
        return -torch.inf, torch.inf
    return torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max


REDUCTIONS: dict[str, Callable[[Tensor, list[int]], Tensor]] = {
    "ReduceMean": _mean,
    "ReduceSum": _sum,
    "ReduceProd": _product,
    "ReduceMax": _extreme(torch.amax, lambda x: _limits(x)[0]),
    "ReduceMin": _extreme(torch.amin, lambda x: _limits(x)[1]),
    "ReduceL1": lambda x, axes: _sum(x, axes, torch.abs),
    "ReduceL2": _of_floats(lambda x, axes: _sum(x, axes, torch.square).sqrt()),
    "ReduceSumSquare": lambda x, axes: _sum(x, axes, torch.square),
    "ReduceLogSum": _of_floats(lambda x, axes: _sum(x, axes).log()),
    "ReduceLogSumExp": _of_floats(lambda x, axes: x.logsumexp(axes, True)),
}
"""Reductions of some axes, which stay with one element."""


def _reduction(function: Callable[[Tensor, list[int]], Tensor]) -> Callable[..., Any]:
    def compute(data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if not axes and noop_with_empty_axes:
            return function(data.unsqueeze(-1), [data.ndim]).squeeze(-1)
        over = sorted({axis_of(n, data.ndim) for n in axes or range(data.ndim)})
        if not data.ndim:
            return function(data.reshape(1), [0]).reshape(())
        made = function(data, over)
        return made if keepdims else made.squeeze(tuple(over))

    return compute


for _name, _function in REDUCTIONS.items():
    operator(_name)(_reduction(_function))


def _place(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def compute(data: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        where = axis_of(axis, data.ndim)
        if not select_last_index:
            return function(data, where, keepdim=bool(keepdims))
        return data.shape[where] - 1 - function(data.flip(where), where, keepdim=bool(keepdims))

    return compute


operator("ArgMax")(_place(torch.argmax))
operator("ArgMin")(_place(torch.argmin))


@operator("CumSum")
def cumulative_sum(x: Tensor, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """Running sums along `axis`, in the type of x.

    x: any shape, which the result has too. axis: one number; it may be negative. exclusive: each sum leaves its own
    element out. reverse: sums run from the end. Raises `UnsupportedError` for an axis that lies outside.
    """
    where = axis_of(axis[0], x.ndim)
    x = x.flip(where) if reverse else x
    if exclusive and x.shape[where]:  # the sums minus x would be rounded twice, and NaN behind an infinity
        x = torch.cat([torch.zeros_like(x.narrow(where, 0, 1)), x.narrow(where, 0, x.shape[where] - 1)], where)
    made = x.cumsum(where, dtype=x.dtype)
    return made.flip(where) if reverse else made


@operator("LpNormalization")
def lp_normalization(input: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    """The operand divided by its norm along `axis`; 0 where the norm is 0.

    p: 1 or 2, the kind of the norm. Returns a tensor of the shape of `input`. Raises `UnsupportedError` for another p,
    and for an axis that lies outside.
    """
    need(p in (1, 2), f"p = {p}")

    def normalised(x: Tensor) -> Tensor:
        size = x.norm(p, axis_of(axis, x.ndim), keepdim=True)
        return torch.where(size == 0, torch.zeros_like(x), x / size)

    return in_float32(normalised)(input)
