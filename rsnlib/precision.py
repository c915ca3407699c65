"""Models with float16 or bfloat16 weights: computed in float32, with arguments and results converted.

The machine computes in float32, so a copy of the module with widened tensors is compiled; widening is exact. `Borders`
records which arguments are given, and which results are returned, in half precision; all other code sees float32 only.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..base.errors import TensorError
from .call_arguments import as_tensor, by_name
from .capture import FLOAT32, copied, fitting, tensors_of
from .exporting import in_turn

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""The half-precision types by name. float32 represents each of their values exactly."""

Dtypes = tuple[str | None, ...]
"""For each leaf of a structure: "float16" or "bfloat16" for a tensor of that type, None for anything else."""


@dataclass(frozen=True)
class Borders:
    """Types of the arguments and results of a model with half-precision weights; plain data.

    weights: half-precision types among the weights. arguments: types of each argument's leaves, by name. results: types
    of the result's leaves; None if PyTorch cannot run the model, then floating results get the type `usual` (None:
    float32).
    """

    weights: Dtypes
    arguments: Mapping[str, Dtypes]
    results: Dtypes | None
    usual: str | None

    @classmethod
    def of(cls, model: nn.Module, example_inputs: tuple[Any, ...] | dict[str, Any]) -> Borders | None:
        """Return the types of a model's arguments and results; None for a model without half-precision tensors.
        example_inputs: as for `fitting`. PyTorch may run the model once, on a copy. Raises `TensorError` for example
        inputs that do not fit, and for weights that were quantised from half precision."""
        count = Counter[str | None]()
        for x in tensors_of(model):
            if x.is_floating_point():
                count[_half(x)] += x.numel()
            if is_traceable_wrapper_subclass(x) and _half(x) is not None:
                raise TensorError(
                    f"{type(model).__name__} has weights that were quantised from {_half(x)}, and their scales are of "
                    f"that type; {FLOAT32}: quantise model.float()"
                )
        weights = tuple(name for name in HALVES if name in count)
        if not weights:
            return None
        args, kwargs, signature = fitting(model.forward, f"{type(model).__name__}.forward", example_inputs)
        arguments = {name: _dtypes(x) for name, x in by_name(signature, args, kwargs).items()}
        return cls(weights, arguments, _results(model, args, kwargs), count.most_common(1)[0][0])

    @property
    def told(self) -> str:
        """The note to the user about conversions, which is printed once for each compilation."""
        return (
            f"the model's weights are {' and '.join(filter(None, self.weights))}: the machine computes in float32; "
            "arguments and results are converted"
        )

    def widened(
        self, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call, by position and by name, converted for the model in float32. signature: of
        the model's forward. Arguments that do not fit it stay as they are. Raises `TensorError` for an argument of
        another type than in the example."""
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return args, kwargs  # Interface.bind reports what does not fit
        for name, value in bound.arguments.items():
            is_any = signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD
            bound.arguments[name] = self.named(value) if is_any else self.named({name: value})[name]
        return bound.args, bound.kwargs

    def named(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments `given` by name, converted like those of `widened`. Raises as it does."""
        return {name: self._argument(name, value) for name, value in given.items()}

    def narrowed(self, result: Any) -> Any:
        """Return a result of the model in float32, of any structure, converted to the types that PyTorch's model
        returns."""
        leaves, structure = pytree.tree_flatten(result)
        dtypes = self.results
        if dtypes is None or len(dtypes) != len(leaves):
            dtypes = (self.usual,) * len(leaves)
        return pytree.tree_unflatten([_narrow(x, name) for x, name in zip(leaves, dtypes, strict=True)], structure)

    def _argument(self, name: str, value: Any) -> Any:
        leaves, structure = pytree.tree_flatten(value)
        dtypes = self.arguments.get(name, ())
        if len(dtypes) != len(leaves):
            return value  # another structure than in the example; Interface.bind reports it
        return pytree.tree_unflatten([_widen(name, x, d) for x, d in zip(leaves, dtypes, strict=True)], structure)


def widened_example(example_inputs: tuple[Any, ...] | dict[str, Any]) -> Any:
    """Return example inputs, by position or by name, of which those in half precision are converted to float32."""
    return pytree.tree_map_only(torch.Tensor, lambda x: x if _half(x) is None else x.float(), example_inputs)


class Widened:
    """A copy of a module in float32, in `module`; it shares all tensors that are not in half precision. Raises
    `TensorError` for a module that cannot be copied."""

    def __init__(self, model: nn.Module) -> None:
        self._halves = [(x, _float32(x)) for x in tensors_of(model) if _half(x) is not None]
        try:
            self.module = copied(model, {id(x): wide for x, wide in self._halves})
        except Exception as error:  # copy.deepcopy may raise anything
            raise TensorError(
                f"{type(model).__name__} has weights in half precision and cannot be copied ({error}); {FLOAT32}: "
                "convert it first, as model.float() does"
            ) from error

    def update(self) -> None:
        """Copy the current values of the original module's tensors into the copy."""
        with torch.no_grad():
            for x, wide in self._halves:
                wide.copy_(x)


def in_float32(
    model: nn.Module, example_inputs: tuple[Any, ...] | dict[str, Any]
) -> tuple[nn.Module, tuple[Any, ...] | dict[str, Any], Borders | None]:
    """Return a module, its example inputs (by position or by name) and None; or, where its weights are in half
    precision, copies of both in float32, and the borders. Raises `TensorError` as `Borders.of` and `Widened` do."""
    borders = Borders.of(model, example_inputs)
    if borders is None:
        return model, example_inputs, None
    return Widened(model).module, widened_example(example_inputs), borders


def floating_dtypes(model: nn.Module) -> dict[str, torch.dtype]:
    """Return the dtypes of a module's floating-point parameters and buffers, by name."""
    named = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {name: x.dtype for name, x in named if x.is_floating_point()}


def has_halves(model: nn.Module) -> bool:
    """Return whether any tensor of a module is in half precision."""
    return any(_half(x) is not None for x in tensors_of(model))


def _half(x: Any) -> str | None:
    """The name of a tensor's type if it is in `HALVES`, else None."""
    return next((name for name, dtype in HALVES.items() if getattr(x, "dtype", None) == dtype), None)


def _dtypes(x: Any) -> Dtypes:
    return tuple(_half(leaf) for leaf in pytree.tree_leaves(x))


def _float32(x: torch.Tensor) -> torch.Tensor:
    """A float32 copy that can be written to, even if the original was made in inference mode."""
    with torch.inference_mode(False), torch.no_grad():
        wide = torch.empty(x.shape, dtype=torch.float32).copy_(x)
        return nn.Parameter(wide, requires_grad=False) if isinstance(x, nn.Parameter) else wide


def _widen(name: str, x: Any, half: str | None) -> Any:
    if half is None:
        return x
    if isinstance(x, np.ndarray):
        x = as_tensor(name, x)
    if isinstance(x, torch.Tensor):
        if _half(x) != half:
            raise TensorError(f"argument {name} is {x.dtype}; the example's is {HALVES[half]}")
        return x.float()
    return x


def _narrow(x: Any, name: str | None) -> Any:
    return x.to(HALVES[name]) if name is not None and isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _results(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dtypes | None:
    """The types that PyTorch's model returns, found with fake tensors, or else by running it; None if both fail."""

    def without_values() -> Any:
        twin = copied(model)  # outside of the mode, which would copy tensors too
        with in_turn(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            by_position, by_name = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            return twin(*by_position, **by_name)

    for called in (without_values, lambda: copied(model)(*args, **kwargs)):
        try:
            with torch.no_grad():
                return _dtypes(called())
        except Exception:  # whatever a model raises
            continue
    return None
