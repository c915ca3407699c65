"""The arguments of a call of a module: by name, in one form, and NumPy arrays among them as tensors."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..base.errors import TensorError


def as_tensor(name: str, array: npt.NDArray[Any]) -> torch.Tensor:
    """Convert a NumPy array to a tensor, sharing its memory if PyTorch can. name: of the argument, for messages. Raises
    TensorError for a dtype that PyTorch does not have, and for a masked array, because its mask would be lost."""
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
    TypeError if they do not fit the signature."""
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_any = signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD
        named |= value if is_any else {name: value}
    return named


def canonical(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bring arguments into one form, whether given by position or by name. Raises TypeError if they do not fit."""
    bound = signature.bind(*args, **kwargs)
    return bound.args, dict(sorted(bound.kwargs.items()))  # sorted, because calls may give them in any order
