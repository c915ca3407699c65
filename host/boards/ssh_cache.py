"""Weights by checksum, in a folder of bounded size, so that they cross the network once."""

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
from ...base.files import replacing

Array = npt.NDArray[np.float32]

MAX = 8 << 30
"""Bytes that are kept at most, and half of the disk that is free; what has not been used for longest goes first. Only
the weights of one program may be more."""


def checksum(weight: npt.ArrayLike | bytes | bytearray) -> str:
    """Of a weight as it lies in memory."""
    raw = weight if isinstance(weight, bytes | bytearray) else np.ascontiguousarray(weight, "<f4").data
    return hashlib.sha256(raw).hexdigest()


def is_checksum(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rsn" / "weights"


class WeightCache:
    """A file for each weight, named by its checksum. Sessions may share it: files appear whole, and one that another
    session removes stays readable to who has it mapped."""

    def __init__(self, folder: Path | None = None, most: int = MAX) -> None:
        self.folder, self._most = folder or default_folder(), most

    def find(self, name: str, elements: int) -> Array | None:
        """The weight with this checksum, mapped; None where it is not there, or damaged: it is then sent anew."""
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
        """Keep a weight that has come. Raises `BoardError` where it is not the one announced, or has no room."""
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
        """Make room for so many bytes more. What transfers that broke off left behind goes, too; `keep` stays."""
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
