"""Tensors on their way to and from the machine: files, shapes, and the blocked layout."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base import files
from ..base.errors import TensorError
from ..base.files import replacing
from ..isa.layout import block, unblock
from ..isa.program import Buffer, Layout

Array = npt.NDArray[np.float32]

PACKED = "rsn.layout"
"""Key of the safetensors metadata that says that every tensor of the file is stored as it lies in memory."""
LONGEST_SHOWN = 100
CHECKSUMS = "rsn.blake2b"
"""Key of their checksums: a JSON object, name to hexadecimal digest (BLAKE2b, 16 bytes) of the bytes in the file."""


def pack(buffer: Buffer, tensor: npt.NDArray[np.generic]) -> Array:
    """A tensor in the shape users see (`buffer.view`, else `buffer.shape`) to the buffer's elements in memory order.

    Padding is 0; what an item has beyond the buffer's rows of it is left out. Raises `TensorError` naming the buffer
    for another shape or dtype than float32.
    """
    want = buffer.view or buffer.shape
    check_dtype(buffer.name, tensor)
    if tensor.shape != want and not (want[0] == 1 and tensor.shape == want[1:]):
        raise TensorError(f"{shown(buffer.name)}: shape {tensor.shape}; this program takes {want}")
    values: Array = tensor.reshape(want).astype(np.float32, copy=False)
    if buffer.shape != want:
        full = np.zeros(buffer.shape, np.float32)
        if len(want) == 3:
            for item, (at, rows) in zip(values, buffer.items, strict=True):
                full[at : at + rows, : want[2]] = item[:rows]
        else:
            full[tuple(slice(n) for n in want)] = values
        values = full
    return block(values) if buffer.layout is Layout.BLOCKED else np.ascontiguousarray(values).reshape(-1)


def shown(name: str) -> str:
    """A name in a message: whoever wrote the file chose it, so what a terminal would obey is escaped."""
    return name if name.isprintable() and len(name) <= LONGEST_SHOWN else repr(name[:LONGEST_SHOWN])


def check_dtype(name: str, tensor: npt.NDArray[np.generic]) -> None:
    """Raises `TensorError` for another than float32."""
    if tensor.dtype != np.float32:
        raise TensorError(f"{shown(name)}: dtype {tensor.dtype}; this machine computes in float32, so convert it first")


def unpack(buffer: Buffer, flat: Array) -> Array:
    """The buffer's elements in memory order to the shape users see, scale and shift applied. What an item has beyond
    the buffer's rows of it is 0."""
    matrix = unblock(flat, *buffer.shape) if buffer.layout is Layout.BLOCKED else flat.reshape(buffer.shape)
    view = buffer.view or buffer.shape
    if len(view) != 3:
        return _finished(buffer, matrix[tuple(slice(n) for n in view)])
    out = np.zeros(view, np.float32)
    for item, (at, rows) in zip(out, buffer.items, strict=True):
        item[:rows] = _finished(buffer, matrix[at : at + rows, : view[2]])
    return out


def _finished(buffer: Buffer, values: Array) -> Array:
    """A copy with the buffer's scale and shift."""
    out = np.array(values)
    if buffer.scale is not None:
        out *= np.asarray(buffer.scale, np.float32)
    if buffer.shift is not None:
        out += np.asarray(buffer.shift, np.float32)
    return out


class Weights(Mapping[str, Array]):
    """A file's weights by buffer name, as they lie in memory, each read when it is asked for: a program's weights are
    larger than anything else, and a board has memory of its own for them.

    Raises `TensorError`, at once, for one that is missing or does not fit.
    """

    def __init__(self, path: str | os.PathLike[str], buffers: tuple[Buffer, ...]) -> None:
        self._path = path
        self._buffers = {b.name: b for b in buffers}
        with _opened(path) as file:
            metadata = file.metadata() or {}
            self._packed = PACKED in metadata
            self._checksums = _read_checksums(path, metadata.get(CHECKSUMS, "{}"))
            names = set(file.keys())
            missing = [b.name for b in buffers if b.name not in names]
            if missing:
                others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
                raise TensorError(f"{path}: no tensor {missing[0]!r}{others}, which the program needs")
            for b in buffers if self._packed else ():
                _check_stored(path, b, file.get_slice(b.name))
        for b in buffers if not self._packed else ():
            self[b.name]

    def __getitem__(self, name: str) -> Array:
        buffer = self._buffers[name]
        with _opened(self._path) as file:
            tensor = file.get_tensor(name)
        if name in self._checksums and self._checksums[name] != _checksum(tensor):
            raise TensorError(f"{self._path}: {name!r} is not what was written: its checksum differs; copy it again")
        try:
            return tensor if self._packed else pack(buffer, tensor)
        except TensorError as e:
            raise TensorError(f"{self._path}: {e}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


class Given(Mapping[str, Array]):
    """Weights by buffer name, as they lie in memory, checked when they are asked for: a mapping may make each anew."""

    def __init__(self, given: Mapping[str, Array], buffers: tuple[Buffer, ...]) -> None:
        self._given = given
        self._buffers = {b.name: b for b in buffers}

    def __getitem__(self, name: str) -> Array:
        buffer, weight = self._buffers[name], self._given[name]
        check_dtype(f"weight {name}", weight)
        if weight.shape != (buffer.size,):
            raise TensorError(f"weight {shown(name)}: {weight.shape}; packed it has {buffer.size} elements")
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


class Images(Mapping[str, Array]):
    """Weights by buffer name that lie in images of whole banks: a board in this process takes an image as its memory,
    without a copy. They are read-only.

    banks: flat images by bank. buffers: of the weights. others: those that lie in no image. unit: elements of an
    address. Raises `TensorError` for a weight that is in neither.
    """

    def __init__(
        self, banks: Mapping[str, Array], buffers: tuple[Buffer, ...], others: Mapping[str, Array], unit: int
    ) -> None:
        self._banks, self._others, self._unit = banks, others, unit
        self._buffers = {b.name: b for b in buffers}
        for image in banks.values():
            image.flags.writeable = False
        for b in buffers:
            if self[b.name].shape != (b.size,):
                raise TensorError(f"weight {shown(b.name)}: {self[b.name].shape}; packed it has {b.size} elements")

    def image(self, bank: str) -> Array | None:
        """Of a whole bank, if there is one."""
        return self._banks.get(bank)

    def __getitem__(self, name: str) -> Array:
        buffer = self._buffers[name]
        if buffer.bank in self._banks:
            start = buffer.offset * self._unit
            return self._banks[buffer.bank][start : start + buffer.size]
        if name not in self._others:
            raise TensorError(f"no weight {name!r}, which the program needs")
        return self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


def _checksum(tensor: npt.NDArray[np.generic]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(tensor).data, digest_size=16).hexdigest()


def _read_checksums(path: str | os.PathLike[str], text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise TensorError(f"{path}: {CHECKSUMS} in its metadata is no JSON object")
    return found


def _check_stored(path: str | os.PathLike[str], buffer: Buffer, stored: Any) -> None:
    shape = tuple(stored.get_shape())
    if stored.get_dtype() != "F32":
        raise TensorError(f"{path}: {shown(buffer.name)}: dtype {stored.get_dtype()}, not float32")
    if shape != (buffer.size,):
        raise TensorError(f"{path}: {shown(buffer.name)}: {shape} elements; this program takes {buffer.size}, packed")


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
    with _opened(path) as file:
        metadata = file.metadata() or {}
        return {name: file.get_tensor(name) for name in file.keys()}, PACKED in metadata  # noqa: SIM118


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[Any]:
    """A safetensors file; what goes wrong with it is a `TensorError`."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError:
        raise TensorError(f"{path}: no such file") from None
    except (SafetensorError, OSError, TypeError, ValueError) as e:
        if isinstance(e, TensorError):
            raise
        raise TensorError(f"{path}: not a readable safetensors file: {e}") from None


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise `TensorError` for a path that `save_tensors` would refuse: before a long run, not after it."""
    target = Path(path)
    if target.suffix not in (".safetensors", ".npz"):
        raise TensorError(f"{path}: tensors are written as .safetensors or .npz")
    if not target.parent.is_dir():
        raise TensorError(f"{path}: no folder {target.parent}")
    files.check_target(path)


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Array], *, packed: bool = False) -> None:
    """Write `.safetensors` or `.npz`, whole or not at all."""
    from safetensors.numpy import save_file

    target = Path(path)
    check_target(target)
    whole = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    taken = whole.keys() & {"file", "allow_pickle"}  # what numpy calls its own arguments
    if target.suffix == ".npz" and taken:
        raise TensorError(f"{path}: no tensor of an .npz can be called {min(taken)!r}; write .safetensors")
    with replacing(target) as temporary:
        if target.suffix == ".npz":
            np.savez(temporary, **whole)  # type: ignore[arg-type]
        else:
            checksums = json.dumps({n: _checksum(t) for n, t in whole.items()}) if packed else ""
            metadata = {PACKED: "blocked 128x64", CHECKSUMS: checksums} if packed else None
            save_file(whole, temporary, metadata=metadata)
