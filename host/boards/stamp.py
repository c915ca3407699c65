"""What this user's processes remember of a device until the computer restarts: that a bitstream's trial passed."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

LONGEST = 512
"""Bytes of a stamp that are read."""


def boot_id() -> str:
    """Return what Linux calls this boot, a UUID as text; "" if it does not say."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class Stamp:
    """A file of this user's that holds one line: the boot, and what is remembered for it. Whatever else is found there,
    such as another user's file, a link or other text, counts as nothing remembered; that costs one more trial.

    device: the device's name. folder: of the file; by default XDG_RUNTIME_DIR, else the temporary folder.
    """

    def __init__(self, device: str, folder: Path | None = None) -> None:
        if folder is None:
            own = Path(os.environ.get("XDG_RUNTIME_DIR") or "")
            folder = own if own.is_absolute() and own.is_dir() else Path(tempfile.gettempdir())
        self.path = folder / f"rsn-{os.getuid()}-{device}.trial"

    def holds(self, text: str) -> bool:
        """Return whether `text` was written during this boot."""
        boot = boot_id()
        return bool(boot) and self._read() == _line(boot, text)

    def write(self, text: str) -> None:
        """Remember `text` for this boot, instead of what was there. A folder that cannot be written is no error."""
        boot = boot_id()
        if not boot:
            return
        with suppress(OSError):
            file, name = tempfile.mkstemp(prefix=f".{self.path.name}-", dir=self.path.parent)
            try:
                os.write(file, _line(boot, text))
                os.replace(name, self.path)
            except OSError:
                os.unlink(name)
            finally:
                os.close(file)

    def remove(self) -> None:
        """Forget what is remembered for any boot. A file that cannot be removed is no error."""
        with suppress(OSError):
            self.path.unlink()

    def _read(self) -> bytes:
        try:
            # O_NONBLOCK: a pipe that another user puts there must not stop us
            file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            found = os.fstat(file)
            private = found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            return os.read(file, LONGEST) if stat.S_ISREG(found.st_mode) and private else b""
        except OSError:
            return b""
        finally:
            os.close(file)


def _line(boot: str, text: str) -> bytes:
    return f"{boot} {text}\n".encode()
