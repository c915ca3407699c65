"""The weight cache of a board's computer: weights by checksum in a folder of bounded size, so that each is sent
once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...base.errors import BoardError
from ...base.files import cache_folder, replacing
from ...isa.layout import Array

MAX = 8 << 30
"""Bytes that the cache keeps at most; it also leaves half of the free disk. Weights that were not used for longest are
removed first. Only the weights of the program in use may exceed the limit."""


def checksum(weight: npt.ArrayLike | bytes | bytearray) -> str:
    """Return the SHA-256, in hexadecimal, of a weight: float32 elements, or their bytes, in memory order
    (little-endian)."""
    raw = weight if isinstance(weight, bytes | bytearray) else np.ascontiguousarray(weight, "<f4").data
    return hashlib.sha256(raw).hexdigest()


def is_checksum(text: object) -> bool:
    """Return whether a value is a string as `checksum` returns it: 64 hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


class WeightCache:
    """A folder with a file for each weight, named by its checksum. Several sessions may share it: files appear
    complete, and a file that another session removes stays readable to the one that has mapped it.

    folder: None for the user's cache. most: bytes that it keeps at most.
    """

    def __init__(self, folder: Path | None = None, most: int = MAX) -> None:
        self.folder, self._most = folder or cache_folder("weights"), most

    def find(self, name: str, elements: int) -> Array | None:
        """Return the weight with this checksum, float32 (elements,), mapped and read-only; None if it is missing or
        damaged. The sender then sends it again.

        name: the checksum. elements: its size in float32 elements.
        """
        path = self.folder / name
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size != 4 * elements:
                    return None
                weight = np.memmap(file, "<f4", "r", shape=(elements,))
            if checksum(weight) != name:
                return None
            os.utime(path)
        except OSError:
            return None
        return weight

    def put(self, name: str, raw: bytearray) -> None:
        """Keep a weight that was received. Raises `BoardError` if its checksum is not `name`, or if the disk is
        full."""
        if checksum(raw) != name:
            raise BoardError("a weight arrived damaged, or was changed while it was sent; run it again")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self.folder / name) as temporary:
                temporary.write_bytes(raw)
        except OSError as e:
            raise BoardError(
                f"the weights cannot be kept on the board: {e}; make room there, or name another folder for them there "
                "(XDG_CACHE_HOME)"
            ) from e

    def prune(self, keep: Collection[str], room: int) -> None:
        """Remove weights until `room` more bytes fit, those first that were not used for longest, and also what broken
        transfers left behind. The checksums in `keep` stay. Errors of the file system are ignored."""
        files = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    known = entry.stat(follow_symlinks=False)
                    files.append((known.st_mtime, known.st_size, entry.name))
        total = sum(size for _, size, _ in files)
        with contextlib.suppress(OSError):
            self._most = min(self._most, (total + shutil.disk_usage(self.folder).free) // 2)
        for _, size, name in sorted(files):
            if total + room <= self._most:
                return
            if name not in keep:
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()
                    total -= size
