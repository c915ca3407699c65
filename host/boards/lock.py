"""One runner to a device: a lock that goes with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from ...base.errors import BoardError
from ..forks import forget_in_children
from .device import BoardBusy


class DeviceLock:
    """Of a device, by name. Not a lock file, whose holder may have died, but a lock on a file (flock)."""

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.path = (folder or Path(tempfile.gettempdir())) / f"rsn-{device}.lock"
        self._file: int | None = None
        forget_in_children(self)

    def acquire(self) -> None:
        """Raises `BoardBusy`, saying who has it, at once."""
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
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def forget(self) -> None:
        """See `forks`: the lock is the parent's. An open copy of the file would hold it when the parent lets it go."""
        self.release()

    def _open(self) -> int:
        """The file is shared by all users and never removed: who removed it could lock it beside another."""
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(self.path, flags)  # without O_CREAT: Linux may refuse that for a file of somebody else's
            except FileNotFoundError:
                file = os.open(self.path, flags | os.O_CREAT, 0o666)
                os.fchmod(file, 0o666)
                return file
        except OSError as e:
            raise BoardError(f"{self.path}: {e.strerror}; the lock of the device cannot be opened") from None
