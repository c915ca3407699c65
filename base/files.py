"""Atomic writing of files: a file is replaced by its complete new content or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it replaces `path` when the block ends without an error.

    The temporary path has the same suffix. If `path` is a pipe or a device, yield `path` itself. Raises `OSError` that
    names `path`, not the temporary file.
    """
    target = Path(os.path.realpath(path))
    if _is_written_to(path):
        yield Path(path)
        return
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=target.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as e:  # name the file that the user gave, not the temporary one
        if e.errno is not None and (e.filename is None or Path(e.filename).parent == target.parent):
            raise OSError(e.errno, e.strerror, os.fspath(path)) from e
        raise
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise the `OSError` that writing `path` would raise. Call it before a long run, not after it."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if _is_written_to(path):
        return
    try:
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as e:
        raise OSError(e.errno, e.strerror, os.fspath(path)) from e


def _is_written_to(path: str | os.PathLike[str]) -> bool:
    """Whether `path` exists and is no regular file (a pipe, a device)."""
    # the path as given: `realpath` of a pipe names no file
    return Path(path).exists() and not Path(path).is_file()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, atomically. Raises `OSError`, as `replacing`."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write `data` atomically. Raises `OSError`, as `replacing`."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def cache_folder(name: str) -> Path:
    """Return the folder of one of this user's caches, which may not exist yet: `rsn/NAME` in XDG_CACHE_HOME, or in
    ~/.cache. Raises `RuntimeError` for a user without a home folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rsn" / name


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
