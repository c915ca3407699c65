"""The lock that lets one process at a time use a device. The system releases it when its process ends, however it
ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ...base.errors import BoardError
from ..forks import forget_in_children
from .device import BoardBusy


class DeviceLock:
    """A lock on a device, by the device's name: `flock` on a file. A mere lock file would stay behind when its process
    dies."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.path = (folder or Path(tempfile.gettempdir())) / f"rsn-{device}.lock"
        self._file: int | None = None
        forget_in_children(self)

    def acquire(self) -> None:
        """Take the lock. Raises `BoardBusy` at once, naming the process that holds it, if another one does."""
        if self._file is not None:
            return
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 20, 0).decode(errors="replace").strip()
            os.close(file)
            raise BoardBusy(
                f"the device is in use by process {holder or 'unknown'} ({self.path}); wait for it, or end it"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def forget(self) -> None:
        """In a forked child: close the copy of the file. It would keep the lock held after the parent releases it."""
        self.release()

    def _open(self) -> int:
        """Open the file. All users share it, and it is never removed: after a removal two processes could lock two
        different files."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(self.path, flags)  # no O_CREAT: Linux may refuse it for another user's file
            except FileNotFoundError:
                file = os.open(self.path, flags | os.O_CREAT, 0o666)
                os.fchmod(file, 0o666)
                return file
        except OSError as e:
            raise BoardError(f"{self.path}: {e.strerror}; the lock of the device cannot be opened") from None
