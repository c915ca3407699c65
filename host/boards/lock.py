"""The lock that lets one process at a time use a device. The system releases it when its process ends, however it
ends."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ...base.errors import BoardError
from ..forks import forget_in_children
from .device import BoardBusy
from .stamp import boot_id

UNFINISHED = "unfinished "
"""In the file behind the holder's line: a run of this boot (boot id) has not ended."""
LONGEST = 256
"""Bytes of the file that are read."""


class DeviceLock:
    """A lock on a device, by the device's name: `flock` on a file in `folder`, by default the temporary folder. A mere
    lock file would stay behind when its process dies.

    Its holder also notes in the file, for the next one of whichever user, that a run has begun and not ended. The note
    outlives a process that is killed, and counts until the computer restarts.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        self.path = (folder or Path(tempfile.gettempdir())) / f"rsn-{device}.lock"
        self.unfinished = False
        """Whether a run of this boot has begun and not ended, by this holder or one before it. Known while it is
        held."""
        self._file: int | None = None
        self._boot = ""
        forget_in_children(self)

    def acquire(self) -> None:
        """Take the lock; nothing happens if this object holds it. Raises `BoardBusy` at once, naming the process that
        holds it, if another one does, and `BoardError` if the file cannot be opened."""
        if self._file is not None:
            return
        file = self._open()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _lines(file)[0]
            os.close(file)
            raise BoardBusy(
                f"the device is in use by process {holder or 'unknown'} ({self.path}); wait for it, or end it"
            ) from None
        self._file, self._boot = file, boot_id()
        self.note(bool(self._boot) and _lines(file)[1] == UNFINISHED + self._boot)

    def note(self, unfinished: bool) -> None:
        """Note in the file whether a run has begun and not ended (`unfinished`). The caller holds the lock. A disk that
        is full is no error."""
        self.unfinished = unfinished
        second = f"{UNFINISHED}{self._boot}\n" if unfinished and self._boot else ""
        line = f"{os.getpid()}\n{second}".encode()
        if self._file is not None:
            with suppress(OSError):  # of a full disk: then only this process knows
                os.pwrite(self._file, line, 0)
                os.ftruncate(self._file, len(line))

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


def _lines(file: int) -> tuple[str, str]:
    """Return the two lines of the lock's file. Anybody may have written it: only these are looked at."""
    first, _, rest = os.pread(file, LONGEST, 0).decode(errors="replace").partition("\n")
    holder = first.strip()
    return holder if holder.isdecimal() else "", rest.partition("\n")[0]
