"""The arguments of a call of a module: by name, in one form, and NumPy arrays among them as tensors; and the memory of
arguments and results, where it lies and what shares it, for those who write to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..base.errors import TensorError

K = TypeVar("K", bound=Hashable)
LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, np.ndarray, type(None), bool, int, float, str})
"""Types of arguments that are no containers (pytree)."""
FORMS = 64
"""The most forms of calls that are remembered."""


class CallForms(Generic[K]):
    """Where the arguments of calls go, by the form of a call: how many are given by position, and which by name. To
    bind a call to a signature takes ten times as long as to find its form. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[tuple[int | str, ...], dict[K, int]] = {}

    def arranged(
        self,
        arrange: Callable[[tuple[Any, ...], dict[str, Any]], Mapping[K, Any]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> dict[K, Any]:
        """Return the arguments of a call, `args` by position and `kwargs` by name, as `arrange` does. `arrange` is
        called once for each form of a call, with objects in place of the arguments, and must place each argument by the
        form alone. Raises whatever `arrange` raises."""
        form: tuple[int | str, ...] = (len(args), *kwargs)
        places, values = self._known.get(form), (*args, *kwargs.values())
        if places is None:
            marks = [object() for _ in values]
            named = dict(zip(kwargs, marks[len(args) :], strict=True))
            try:
                arranged = arrange(tuple(marks[: len(args)]), named)
            except TensorError:
                return dict(arrange(args, dict(kwargs)))  # its message is about the arguments
            number = {mark: i for i, mark in enumerate(marks)}
            places = {key: number[mark] for key, mark in arranged.items()}
            if len(self._known) >= FORMS:
                self._known.clear()
            self._known[form] = places
        return {key: values[i] for key, i in places.items()}


def as_tensor(name: str, array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a NumPy array as a tensor of its shape, sharing its memory if PyTorch can. name: of the argument, for
    messages. Raises `TensorError` for a dtype that PyTorch does not have, and for a masked array, because its mask
    would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise TensorError(f"argument {name} is a masked array: convert it with {name}.filled()")
    plain = array.dtype.isnative and array.flags.writeable and min(array.strides, default=0) >= 0
    try:
        return torch.from_numpy(array if plain else np.array(array, array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise TensorError(
            f"argument {name} is a NumPy array of {array.dtype}, a type that PyTorch does not have"
        ) from None


def by_name(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter name. Arguments collected by **kwargs keep their own names. Raises
    `TypeError` if they do not fit the signature."""
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_any = signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD
        named |= value if is_any else {name: value}
    return named


def canonical(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, by position and by name, in one form, whether they were given by position or by
    name. Raises `TypeError` if they do not fit the signature."""
    bound = signature.bind(*args, **kwargs)
    return bound.args, dict(sorted(bound.kwargs.items()))  # sorted, because calls may give them in any order


def as_laid_out(node: Node, value: torch.Tensor, *, is_written: bool) -> torch.Tensor:
    """Return an argument with the strides of the example's: the argument itself, or a copy. A graph without writes is
    valid for these strides alone.

    node: the placeholder of the argument. value: of the shape of the example. is_written: the module may write to the
    argument. A copy would lose the write, so other strides then raise `TensorError`.
    """
    strides = node.meta["val"].stride()
    if all(one == other for n, one, other in zip(value.shape, value.stride(), strides, strict=True) if n > 1):
        return value
    if is_written:
        raise TensorError(
            f"argument {node.name}, which the module may write to, has strides {value.stride()}; it must have those of "
            f"the example, {strides}"
        )
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


Layouts = dict[int, tuple[tuple[int, ...], int]]
"""Strides and offset in common memory, by position among the results of a module."""


def results_in_common(program: ExportedProgram) -> tuple[Layouts, ...]:
    """Return which results share memory: for each group of two or more results of one type that are views of the same
    memory, the strides and the offset of each result in that memory, in elements, by the result's position. Memory that
    an argument uses too does not count."""
    returned = list(program.graph.output_node().args[0])
    values = {i: x.meta["val"] for i, x in enumerate(returned) if isinstance(x, Node)}
    tensors = {i: x for i, x in values.items() if isinstance(x, torch.Tensor)}
    given = [x.meta.get("val") for x in program.graph.find_nodes(op="placeholder")]
    theirs = {x.untyped_storage()._cdata for x in given if isinstance(x, torch.Tensor)}
    groups: dict[int, Layouts] = {}
    for i, x in tensors.items():
        if x.untyped_storage()._cdata not in theirs:
            groups.setdefault(x.untyped_storage()._cdata, {})[i] = x.stride(), x.storage_offset()
    return tuple(
        group
        for group in groups.values()
        if len({returned[i] for i in group}) > 1 and len({tensors[i].dtype for i in group}) == 1
    )


def put_in_common(results: list[Any], groups: Iterable[Layouts]) -> None:
    """Make the results of each group views of one memory again, in place; results that share memory already stay.
    results: of a call, in order. groups: as `results_in_common` returns them. This is needed for results that the
    machine computed, because each has memory of its own."""
    for group in groups:
        if len({results[i].untyped_storage().data_ptr() for i in group}) == 1:
            continue
        first = results[min(group)]
        ends = (_reach(results[i].shape, stride) + offset for i, (stride, offset) in group.items())
        memory = torch.empty(max(ends), dtype=first.dtype)
        for i, (stride, offset) in group.items():
            view = memory.as_strided(results[i].shape, stride, offset)
            once = tuple(slice(None) if step else slice(1) for step in stride)  # what expand repeats is there once
            view[once].copy_(results[i][once])
            results[i] = view


ViewsOfArguments = dict[int, tuple[str, tuple[int, ...], int]]
"""By position among the results of a module: the name of an argument, strides in elements, and the bytes from the begin
of the argument to that of the result."""


def results_in_arguments(program: ExportedProgram) -> ViewsOfArguments:
    """Return which results are views of an argument, and where in its memory each begins (`ViewsOfArguments`). A result
    that is the argument itself does not count."""
    given = [x for x in program.graph.find_nodes(op="placeholder") if isinstance(x.meta.get("val"), torch.Tensor)]
    owners = {x.meta["val"].untyped_storage()._cdata: x for x in given}
    found: ViewsOfArguments = {}
    for i, result in enumerate(program.graph.output_node().args[0]):
        view = result.meta["val"] if isinstance(result, Node) and result not in given else None
        if isinstance(view, torch.Tensor) and view.untyped_storage()._cdata in owners:
            argument = owners[view.untyped_storage()._cdata]
            first, begin = (x.storage_offset() * x.itemsize for x in (argument.meta["val"], view))
            found[i] = argument.name, view.stride(), begin - first
    return found


def check_apart(arguments: Mapping[Node, Any], written: Collection[Node]) -> None:
    """Check that no argument shares memory with an argument that the module writes to. arguments: the values of a call
    by placeholder. written: placeholders of the arguments that are written to. Raises `TensorError`, naming both."""
    tensors = {node: x for node, x in arguments.items() if isinstance(x, torch.Tensor)}
    for node in written:
        for other, x in tensors.items():
            if other is not node and overlap(tensors[node], x):
                raise TensorError(
                    f"arguments {node.name} and {other.name} share their memory, and the module writes to "
                    f"{node.name}: give {other.name}.clone()"
                )


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the elements of two tensors lie within the same memory, in ranges that overlap."""
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (first, last), (begin, end) = map(_span, (a, b))
    return first < end and begin < last


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The first address of a tensor's elements, and the one behind the last."""
    return x.data_ptr(), x.data_ptr() + _reach(x.shape, x.stride()) * x.element_size()


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory lie from the first element of a tensor to the last."""
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)) + 1
