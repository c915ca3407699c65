"""Tensors between files and the machine: safetensors and NumPy files, shapes, and the blocked memory layout."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..base import files
from ..base.errors import TensorError
from ..base.files import replacing
from ..isa.layout import BY_ROW, block, scaled, unblock
from ..isa.overlays.xnn8.stored import (
    matrix_of_words,
    matrix_of_words_by_row,
    matrix_words,
    matrix_words_by_row,
)
from ..isa.program import Array, Buffer, Layout

PACKED = "rsn.layout"
"""Key of the safetensors metadata. Where it is set, every tensor of the file is stored flat, in the machine's memory
order."""
LONGEST_SHOWN = 100
"""Characters of a name that a message shows."""
CHECKSUMS = "rsn.blake2b"
"""Key of the safetensors metadata with the checksums: a JSON object, name to hexadecimal digest (BLAKE2b, 16 bytes) of
the tensor's bytes in the file."""


def pack(buffer: Buffer, tensor: npt.NDArray[np.generic]) -> Array:
    """Convert a tensor from the user's shape (`buffer.view`, else `buffer.shape`) to the buffer's elements in memory
    order.

    tensor: float32. Returns a flat array of `buffer.size` elements. Padding is 0; rows of a sequence beyond those that
    the buffer has for it are left out. Raises `TensorError`, naming the buffer, for another shape or dtype, and for
    numbers that are not finite where a buffer has integers.
    """
    view = buffer.view or buffer.shape
    check_dtype(buffer.name, tensor)
    if tensor.shape != view and not (view[0] == 1 and tensor.shape == view[1:]):
        raise TensorError(f"{shown(buffer.name)} has shape {tensor.shape}; this program takes {view}")
    values: Array = tensor.reshape(view).astype(np.float32, copy=False)
    if buffer.shape != view:
        full = np.zeros(buffer.shape, np.float32)
        if len(view) == 3 and not buffer.rows:
            _items(full, view)[:] = values
        elif len(view) == 3:
            for item, (at, rows) in zip(values, buffer.items, strict=True):
                full[at : at + rows, : view[2]] = item[:rows]
        else:
            full[tuple(slice(n) for n in view)] = values
        values = full
    match buffer.layout:
        case Layout.BLOCKED:
            return block(values)
        case Layout.INTEGERS:
            return np.concatenate([matrix_words(item) for item in values.reshape(-1, *buffer.item_shape)])
        case Layout.SHORT | Layout.LONG:
            bits, items = 8 * BY_ROW[buffer.layout], values.reshape(-1, *buffer.item_shape)
            return np.concatenate([matrix_words_by_row(item, bits) for item in items])
    return np.ascontiguousarray(values).reshape(-1)


def shown(name: str) -> str:
    """Return a name as a message shows it: escaped if it has unprintable characters, cut after `LONGEST_SHOWN`
    characters. Names come from files, and a terminal would execute control characters."""
    return name if name.isprintable() and len(name) <= LONGEST_SHOWN else repr(name[:LONGEST_SHOWN])


def check_dtype(name: str, tensor: npt.NDArray[np.generic]) -> None:
    """Raise `TensorError` unless the tensor is float32. name: for the message."""
    if tensor.dtype != np.float32:
        raise TensorError(f"{shown(name)} has dtype {tensor.dtype}; the machine computes in float32: convert it first")


def unpack(buffer: Buffer, flat: Array) -> Array:
    """Convert the buffer's elements in memory order to the user's shape (`buffer.view`, else `buffer.shape`), and apply
    the buffer's scale and shift. Returns a new float32 array.

    flat: float32, `buffer.size` elements; `ValueError` for another number. Rows of a sequence beyond those that the
    buffer has for it are 0.
    """
    match buffer.layout:
        case Layout.BLOCKED:
            matrix = unblock(flat, *buffer.shape)
        case Layout.INTEGERS:
            items = flat.reshape(buffer.shape[0] // buffer.item_shape[0], -1)
            matrix = np.concatenate([matrix_of_words(item, buffer.shape[1]) for item in items])
        case Layout.SHORT | Layout.LONG:
            bits, items = 8 * BY_ROW[buffer.layout], flat.reshape(buffer.shape[0] // buffer.item_shape[0], -1)
            matrix = np.concatenate([matrix_of_words_by_row(item, buffer.shape[1], bits) for item in items])
        case _:
            matrix = flat.reshape(buffer.shape)
    view = buffer.view or buffer.shape
    if len(view) != 3:
        return _finished(buffer, matrix[tuple(slice(n) for n in view)])
    if not buffer.rows:  # all items are alike, and one operation takes them
        return _finished(buffer, _items(matrix, view))
    out = np.zeros(view, np.float32)
    for item, (at, rows) in zip(out, buffer.items, strict=True):
        item[:rows] = _finished(buffer, matrix[at : at + rows, : view[2]])
    return out


def _items(matrix: Array, view: Sequence[int]) -> Array:
    """The items of a view (batch, rows, columns) in a stored matrix, of which each begins with as many rows as the
    others."""
    batch, rows, columns = view
    return matrix.reshape(batch, -1, matrix.shape[1])[:, :rows, :columns]


def _finished(buffer: Buffer, values: Array) -> Array:
    """Return a copy of the values with the buffer's scale and shift applied."""
    return scaled(values, buffer.scale, buffer.shift)


class _ByBuffer(Mapping[str, Array]):
    """Weights by buffer name, flat and in memory order."""

    def __init__(self, buffers: tuple[Buffer, ...]) -> None:
        self._buffers = {b.name: b for b in buffers}

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


class WeightFile(_ByBuffer):
    """The weights in a safetensors file by buffer name, flat float32 in memory order. buffers: those of the weights.
    Each is read when it is looked up, so that only one at a time is in memory.

    Raises `TensorError` when it is made, for a weight that is missing or has another shape or dtype; and when a weight
    is looked up whose checksum differs.
    """

    def __init__(self, path: str | os.PathLike[str], buffers: tuple[Buffer, ...]) -> None:
        super().__init__(buffers)
        self._path = path
        with _opened(path) as file:
            metadata = file.metadata() or {}
            self._packed = PACKED in metadata
            self._checksums = _read_checksums(path, metadata.get(CHECKSUMS, "{}"))
            names = set(file.keys())
            missing = [b.name for b in buffers if b.name not in names]
            if missing:
                others = f" and {len(missing) - 1} others are" if len(missing) > 1 else " is"
                raise TensorError(
                    f"{path}: tensor {missing[0]!r}{others} missing; the program needs it: is this its file?"
                )
            for b in buffers if self._packed else ():
                _check_stored(path, b, file.get_slice(b.name))
        for b in buffers if not self._packed else ():
            self[b.name]

    def __getitem__(self, name: str) -> Array:
        buffer = self._buffers[name]
        with _opened(self._path) as file:
            tensor = file.get_tensor(name)
        if name in self._checksums and self._checksums[name] != checksum(np.ascontiguousarray(tensor).data):
            raise TensorError(f"{self._path}: the checksum of {name!r} differs: the file is damaged; copy it again")
        try:
            return tensor if self._packed else pack(buffer, tensor)
        except TensorError as e:
            raise TensorError(f"{self._path}: {e}") from None


class Given(_ByBuffer):
    """Weights from a mapping, by buffer name, flat float32 in memory order. given: the mapping. buffers: those of the
    weights. Each is checked when it is looked up, because the mapping may compute it then. Raises `TensorError` for
    another dtype or size."""

    def __init__(self, given: Mapping[str, Array], buffers: tuple[Buffer, ...]) -> None:
        super().__init__(buffers)
        self._given = given

    def __getitem__(self, name: str) -> Array:
        buffer, weight = self._buffers[name], self._given[name]
        check_dtype(f"weight {name}", weight)
        if weight.shape != (buffer.size,):
            raise TensorError(f"weight {shown(name)} has shape {weight.shape}; packed it has {buffer.size} elements")
        return weight


class Images(_ByBuffer):
    """Weights by buffer name, stored in images of whole banks. A board in this process uses an image as its memory,
    without copying it. The arrays are read-only.

    banks: flat float32 images by bank. buffers: those of the weights. others: flat weights that are in no image, by
    name. unit: elements of an address unit. Raises `TensorError` for a weight that is missing or has another size.
    """

    def __init__(
        self, banks: Mapping[str, Array], buffers: tuple[Buffer, ...], others: Mapping[str, Array], unit: int
    ) -> None:
        super().__init__(buffers)
        self._banks, self._others, self._unit = banks, others, unit
        for image in banks.values():
            image.flags.writeable = False
        for b in buffers:
            if self[b.name].shape != (b.size,):
                shape = self[b.name].shape
                raise TensorError(f"weight {shown(b.name)} has shape {shape}; packed it has {b.size} elements")

    def image(self, bank: str) -> Array | None:
        """Return the image of a whole bank, flat float32, or None if there is none."""
        return self._banks.get(bank)

    def __getitem__(self, name: str) -> Array:
        buffer = self._buffers[name]
        if buffer.bank in self._banks:
            start = buffer.offset * self._unit
            return self._banks[buffer.bank][start : start + buffer.size]
        if name not in self._others:
            raise TensorError(f"weight {name!r} is missing; the program needs it")
        return self._others[name]


def checksum(data: bytes | memoryview) -> str:
    """Return the checksum that files of tensors and of models have: BLAKE2b of 16 bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _read_checksums(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TensorError(f"{path}: {CHECKSUMS} in its metadata is not a JSON object")
    return found


def _check_stored(path: str | os.PathLike[str], buffer: Buffer, stored: Any) -> None:
    shape = tuple(stored.get_shape())
    if stored.get_dtype() != "F32":
        raise TensorError(f"{path}: {shown(buffer.name)} has dtype {stored.get_dtype()}; the machine takes float32")
    if shape != (buffer.size,):
        name = shown(buffer.name)
        raise TensorError(f"{path}: {name} has shape {shape}; packed, this program takes {buffer.size} elements")


def load_tensors(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[np.generic]]:
    """Read tensors by name from a `.safetensors`, `.npz` or `.npy` file; the tensor of an `.npy` has the name "".

    Raises `TensorError`, naming the file, if it does not exist or cannot be read.
    """
    suffix = Path(path).suffix
    if suffix == ".safetensors":
        with _opened(path) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
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
    raise TensorError(f"{path}: tensors are read from .safetensors, .npz or .npy files")


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a safetensors file; raise `TensorError` for whatever goes wrong with it."""
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise TensorError(f"{path}: no such file") from None
    except (SafetensorError, OSError, TypeError, ValueError) as e:
        if isinstance(e, TensorError):
            raise
        raise TensorError(f"{path}: not a readable safetensors file: {e}") from None


def check_tensor_file(path: str | os.PathLike[str]) -> None:
    """Raise `TensorError` for a path that `save_tensors` would refuse (another suffix, no folder), and `OSError` for a
    file that cannot be written. Call it before a long run."""
    target = Path(path)
    if target.suffix not in (".safetensors", ".npz"):
        raise TensorError(f"{path}: tensors are written as .safetensors or .npz")
    if not target.parent.is_dir():
        raise TensorError(f"{path}: there is no folder {target.parent}")
    files.check_target(path)


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], *, packed: bool = False) -> None:
    """Write tensors to a `.safetensors` or `.npz` file, completely or not at all.

    packed: the tensors are in the machine's memory order; only a `.safetensors` file records that, with checksums.
    Raises `TensorError` for another suffix, a folder that does not exist, elements that are no numbers, or a name that
    an `.npz` cannot have, `OSError` if the file cannot be written.
    """
    target = Path(path)
    check_tensor_file(target)
    whole = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    for name, tensor in whole.items():
        if tensor.dtype.kind in "OSUMm":
            raise TensorError(f"{path}: {shown(name)} has dtype {tensor.dtype}; a file of tensors holds numbers")
    taken = whole.keys() & {"file", "allow_pickle"}  # np.savez would take them for its own arguments
    if target.suffix == ".npz" and taken:
        raise TensorError(f"{path}: NumPy cannot write a tensor called {min(taken)!r} to .npz; write .safetensors")
    with replacing(target) as temporary:
        if target.suffix == ".npz":
            np.savez(temporary, **whole)  # type: ignore[arg-type]
        else:
            checksums = json.dumps({n: checksum(t.data) for n, t in whole.items()}) if packed else ""
            metadata = {PACKED: "blocked 128x64", CHECKSUMS: checksums} if packed else None
            save_file(whole, temporary, metadata=metadata)
