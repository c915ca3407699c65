"""The memory of the arguments of modules that write in place: where it lies, and which arguments share it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.fx import Node

from ..base.errors import TensorError


def as_laid_out(node: Node, value: torch.Tensor, *, is_written: bool) -> torch.Tensor:
    """An argument with the strides of the example's, for a graph without writes, which is valid for these alone: the
    argument itself, or a copy. is_written: the module may write to it, then a copy will not do, and raises
    TensorError."""
    strides = node.meta["val"].stride()
    if all(one == other for n, one, other in zip(value.shape, value.stride(), strides, strict=True) if n > 1):
        return value
    if is_written:
        raise TensorError(
            f"argument {node.name}, which the module may write to, has strides {value.stride()}; it must have those of "
            f"the example, {strides}"
        )
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


def check_apart(arguments: Mapping[Node, Any], written: Collection[Node]) -> None:
    """Check that no argument shares memory with one of those that the module writes to. Raises TensorError."""
    tensors = {node: x for node, x in arguments.items() if isinstance(x, torch.Tensor)}
    for node in written:
        for other, x in tensors.items():
            if other is not node and overlap(tensors[node], x):
                raise TensorError(
                    f"arguments {node.name} and {other.name} share their memory, and the module writes to "
                    f"{node.name}: give {other.name}.clone()"
                )


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the elements of two tensors lie within the same memory, in ranges that overlap."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (first, last), (begin, end) = map(_span, (a, b))
    return first < end and begin < last


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements, and the one behind the last."""
    reach = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size()
