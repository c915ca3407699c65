"""Tensors on their way to and from the machine: files, shapes, and the blocked layout."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..isa.errors import TensorError
from ..isa.files import replacing
from ..isa.layout import block, unblock
from ..isa.program import Buffer, Layout

Array = npt.NDArray[np.float32]

PACKED = "rsn.layout"
"""Key of the safetensors metadata that says that every tensor of the file is stored as it lies in memory."""


def pack(buffer: Buffer, tensor: npt.NDArray[np.generic]) -> Array:
    """A tensor in the shape users see (`buffer.view`, else `buffer.shape`) to the buffer's elements in memory order.

    Padding is 0. Raises `TensorError` naming the buffer for another shape or dtype than float32.
    """
    want = buffer.view or buffer.shape
    if tensor.dtype != np.float32:
        raise TensorError(f"{buffer.name}: dtype {tensor.dtype}; this machine computes in float32, so convert it first")
    if tensor.shape != want and not (want[0] == 1 and tensor.shape == want[1:]):
        raise TensorError(f"{buffer.name}: shape {tensor.shape}; this program takes {want}")
    values: Array = tensor.reshape(want).astype(np.float32, copy=False)
    if buffer.shape != want:
        full = np.zeros(buffer.shape, np.float32)
        _viewed(full, buffer)[...] = values
        values = full
    return block(values) if buffer.layout is Layout.BLOCKED else np.ascontiguousarray(values).reshape(-1)


def unpack(buffer: Buffer, flat: Array) -> Array:
    """The buffer's elements in memory order to the shape users see, scale and shift applied."""
    matrix = unblock(flat, *buffer.shape) if buffer.layout is Layout.BLOCKED else flat.reshape(buffer.shape)
    out = np.ascontiguousarray(_viewed(matrix, buffer))
    if buffer.scale is not None:
        out = out * np.asarray(buffer.scale, np.float32)
    if buffer.shift is not None:
        out = out + np.asarray(buffer.shift, np.float32)
    return out


def _viewed(stored: Array, buffer: Buffer) -> Array:
    """The part of a stored matrix that users see."""
    view = buffer.view or buffer.shape
    if len(view) == 3:
        pitch = buffer.shape[0] // view[0]
        return stored.reshape(view[0], pitch, -1)[:, : view[1], : view[2]]
    return stored[tuple(slice(n) for n in view)]


def load_weights(path: str | os.PathLike[str], buffers: tuple[Buffer, ...]) -> dict[str, Array]:
    """Weights by buffer name, as they lie in memory. Raises `TensorError` for one that is missing or does not fit."""
    tensors, packed = _safetensors(path)
    missing = [b.name for b in buffers if b.name not in tensors]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise TensorError(f"{path}: no tensor {missing[0]!r}{others}, which the program needs")
    out = {}
    for b in buffers:
        t = tensors[b.name]
        try:
            out[b.name] = _stored(b, t) if packed else pack(b, t)
        except TensorError as e:
            raise TensorError(f"{path}: {e}") from None
    return out


def _stored(buffer: Buffer, tensor: npt.NDArray[np.generic]) -> Array:
    if tensor.dtype != np.float32:
        raise TensorError(f"{buffer.name}: dtype {tensor.dtype}, not float32")
    if tensor.size != buffer.size or tensor.ndim != 1:
        raise TensorError(f"{buffer.name}: {tensor.shape} elements; this program takes {buffer.size}, packed")
    return tensor  # type: ignore[return-value]


def load_tensors(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[np.generic]]:
    """Inputs from `.safetensors`, `.npz` or `.npy` (one tensor, under the name "")."""
    suffix = Path(path).suffix
    if suffix == ".safetensors":
        return _safetensors(path)[0]
    try:
        if suffix == ".npy":
            return {"": np.load(path, allow_pickle=False)}
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise TensorError(f"{path}: no such file") from None
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as e:
        raise TensorError(f"{path}: not a readable {suffix} file: {e}") from None
    raise TensorError(f"{path}: tensors come as .safetensors, .npz or .npy")


def _safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, npt.NDArray[np.generic]], bool]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, PACKED in metadata  # noqa: SIM118
    except FileNotFoundError:
        raise TensorError(f"{path}: no such file") from None
    except (SafetensorError, OSError, TypeError, ValueError) as e:
        raise TensorError(f"{path}: not a readable safetensors file: {e}") from None


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise `TensorError` for a path that `save_tensors` would refuse: before a long run, not after it."""
    target = Path(path)
    if target.suffix not in (".safetensors", ".npz"):
        raise TensorError(f"{path}: tensors are written as .safetensors or .npz")
    if not target.parent.is_dir():
        raise TensorError(f"{path}: no folder {target.parent}")


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], *, packed: bool = False) -> None:
    """Write `.safetensors` or `.npz`, whole or not at all."""
    from safetensors.numpy import save_file

    target = Path(path)
    check_target(target)
    whole = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    with replacing(target) as temporary:
        if target.suffix == ".npz":
            np.savez(temporary, **whole)  # type: ignore[arg-type]
        else:
            save_file(whole, temporary, metadata={PACKED: "blocked 128x64"} if packed else None)


def zeros(buffer: Buffer) -> Array:
    """What a timing run takes where no tensor is given."""
    return np.zeros(prod(buffer.shape), np.float32)
