"""Sequences of tensors, which exporters use to take tensors apart: their lengths are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .table import Ints, Tensor, axis_of, need, operator


@operator("SequenceConstruct")
def sequence_construct(*inputs: Tensor) -> list[list[Tensor]]:
    """A sequence of its inputs.

    Returns the sequence as the only item of a list, because a list of results has one item for each output.
    """
    return [list(inputs)]


@operator("SequenceAt")
def sequence_at(input_sequence: Sequence[Tensor], position: Ints) -> Tensor:
    """The tensor at `position`, which may count from the end.

    position: one number. Raises `UnsupportedError` if it lies outside the sequence.
    """
    (at,) = position
    need(-len(input_sequence) <= at < len(input_sequence), f"item {at} of {len(input_sequence)}")
    return input_sequence[at]


@operator("SequenceLength")
def sequence_length(input_sequence: Sequence[Tensor]) -> Tensor:
    """The number of tensors in the sequence, which is known.

    Returns an int64 tensor of shape ().
    """
    return torch.tensor(len(input_sequence))


@operator("ConcatFromSequence")
def concat_from_sequence(input_sequence: Sequence[Tensor], *, axis: int, new_axis: int = 0) -> Tensor:
    """The tensors behind each other along `axis`; stacked along a new axis with `new_axis`.

    axis: may be negative. PyTorch raises `IndexError` for one that lies outside, `RuntimeError` for other sizes that
    differ.
    """
    return torch.stack(list(input_sequence), axis) if new_axis else torch.cat(list(input_sequence), axis)


@operator("SplitToSequence")
def split_to_sequence(
    input: Tensor, split: Ints | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[list[Tensor]]:
    """A sequence of parts along `axis`. Without `split` each is one row, and `keepdims=0` leaves that axis out of its
    shape.

    split: the rows of each part, or one number, of which the last part may have fewer. keepdims: read without `split`
    only. Returns the sequence as the only item of a list. Raises `UnsupportedError` for an axis that lies outside, and
    for an empty `split`.
    """
    where = axis_of(axis, input.ndim)
    if split is None:
        parts = list(input.split(1, where))
        return [parts if keepdims else [x.squeeze(where) for x in parts]]
    need(len(split) > 0, "a split into no parts")
    return [list(input.split(split if len(split) > 1 else split[0], where))]
