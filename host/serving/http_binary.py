"""Binary bodies of the HTTP interface: tensors by name in the safetensors format, both ways."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ...base.errors import TensorError, UnsupportedError
from ..tensors import shown
from .arguments import Argument, check_names
from .http_json import Form, NotTheForm, Question, Tensor, dtype_of

MEDIA_TYPE = "application/octet-stream"
"""In `content-type` of a request, and in `accept` for the answer."""
WHOLE = "outputs"
"""The name of a result that is one tensor."""


class BinaryTensors(Form):
    """Bodies in the safetensors format, for any model: the arguments by name, and the tensors of the result by their
    names. A request has no timeout. arguments: of the model."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self._arguments = tuple(arguments)

    def read(self, body: bytes) -> Question:
        """Read the tensors of a request, each of the argument's dtype and number of dimensions. Raises `NotTheForm` for
        what is not in the format, `TensorError` naming the argument that does not fit, and `UnsupportedError` for an
        argument of the model whose dtype is no number or boolean of NumPy."""
        try:
            tensors = load(body)
        except (SafetensorError, KeyError, TypeError, ValueError) as e:
            raise NotTheForm(f"the body is not in the safetensors format: {e}") from None
        check_names(self._arguments, tensors)
        for argument in self._arguments:
            x = tensors[argument.name]
            if x.dtype != dtype_of(argument) or x.ndim != len(argument.shape):
                raise TensorError(f"{shown(argument.name)} is {x.dtype} {x.shape}; it should be {argument}")
        return Question(tensors, None)

    def write(self, result: Any) -> bytes:
        """Return the tensors of a result. Those in dictionaries, fields, lists and tuples are named by the way to them,
        such as `past.0.1`; a result that is one tensor is `outputs`. Numbers become tensors without dimensions, what is
        None is left out, and bfloat16 is widened to float32. Raises `UnsupportedError` for other values."""
        tensors: dict[str, Tensor] = {}
        for name, x in _leaves(result, ""):
            if name in tensors:
                raise UnsupportedError(f"{shown(name)}: two tensors of the result would have this name")
            tensors[name or WHOLE] = np.ascontiguousarray(x).reshape(x.shape)
        return save(tensors)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a value, each with its name."""
    members: Any
    if value is None:
        return
    if isinstance(value, Mapping):
        members = value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        members = zip(value._fields, value, strict=True)
    elif isinstance(value, list | tuple):
        members = enumerate(value)
    else:
        yield name, _array(value, name)
        return
    for key, member in members:
        yield from _leaves(member, f"{name}.{key}" if name else str(key))


def _array(value: Any, name: str) -> Tensor:
    if hasattr(value, "detach"):  # PyTorch's
        value = value.detach()
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    if (
        not isinstance(value, np.ndarray | np.generic | bool | int | float)
        or np.asarray(value).dtype.kind not in "biuf"
    ):
        raise UnsupportedError(f"{shown(name)}: the safetensors format cannot hold a {type(value).__name__}")
    return np.asarray(value)
