"""Sequences of tensors, which exporters use to take tensors apart: their lengths are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .table import Ints, Tensor, axis_of, need, operator


@operator("SequenceConstruct")
def sequence_construct(*inputs: Tensor) -> list[list[Tensor]]:
    return [list(inputs)]


@operator("SequenceAt")
def sequence_at(input_sequence: Sequence[Tensor], position: Ints) -> Tensor:
    (at,) = position
    need(-len(input_sequence) <= at < len(input_sequence), f"item {at} of {len(input_sequence)}")
    return input_sequence[at]


@operator("SequenceLength")
def sequence_length(input_sequence: Sequence[Tensor]) -> Tensor:
    return torch.tensor(len(input_sequence))


@operator("ConcatFromSequence")
def concat_from_sequence(input_sequence: Sequence[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    return torch.stack(list(input_sequence), axis) if new_axis else torch.cat(list(input_sequence), axis)


@operator("SplitToSequence")
def split_to_sequence(
    input: Tensor, split: Ints | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[list[Tensor]]:
    where = axis_of(axis, input.ndim)
    if split is None:
        parts = list(input.split(1, where))
        return [parts if keepdims else [x.squeeze(where) for x in parts]]
    need(len(split) > 0, "a split into no parts")
    return [list(input.split(split if len(split) > 1 else split[0], where))]
