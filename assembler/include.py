"""Read the texts that a text includes, each once, with limits on depth and size for texts from unknown sources."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from . import syntax as s
from .diagnostic import ErrorReport, Mistake, SourceText

DEPTH = 16
"""Limit of texts that include each other in a chain."""

LONGEST = 16 << 20
"""Limit of an included text, in bytes."""

Located = tuple[SourceText, s.Item]
Identity = tuple[int, int]


def items(text: SourceText, tree: tuple[s.Item, ...], report: ErrorReport) -> list[Located]:
    """Return the items of a text, each with the text it stands in; an `include` is replaced by the items it includes.

    tree: the items of `text` itself. Mistakes go to the report; raises `SourceError` once it is full.
    """
    reader = _IncludeReader(report)
    reader.read(text, tree, (_identity(text.file),))
    return reader.found


class _IncludeReader:
    """Collects the items of a text and of the texts that it includes. found: each item with its text."""

    def __init__(self, report: ErrorReport) -> None:
        self.report = report
        self.found: list[Located] = []
        self._seen: set[Identity] = set()

    def read(self, text: SourceText, tree: tuple[s.Item, ...], chain: tuple[Identity | None, ...]) -> None:
        """Append the items of a text to `found`. chain: files that include each other down to this text."""
        for item in tree:
            if not isinstance(item, s.Include):
                self.found.append((text, item))
                continue
            included = None
            with self.report.inside(text):
                included = self._open(text, item, chain)
            if included is not None:
                with self.report.inside(included[0]):
                    self.read(included[0], s.tree(included[0]), (*chain, included[1]))

    def _open(
        self, text: SourceText, item: s.Include, chain: tuple[Identity | None, ...]
    ) -> tuple[SourceText, Identity] | None:
        """Read the file that an `include` names; None if it has been read before."""
        span = s.token_span(item.file)
        name = s.unquoted(item.file)
        if not name or "\0" in name or Path(name).is_absolute():
            raise Mistake(span, "an include names a file by its path relative to this file")
        if len(chain) > DEPTH:
            raise Mistake(span, f"more than {DEPTH} nested includes")
        path = Path(text.file).parent / name
        # Without O_NONBLOCK, opening a pipe or a device would block.
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError as e:
            raise Mistake(span, f"{path} cannot be read: {e.strerror}") from None
        try:
            status = os.fstat(handle)
            identity = status.st_dev, status.st_ino
            if not stat.S_ISREG(status.st_mode):
                raise Mistake(span, f"{path} is not a regular file")
            if identity in chain:
                raise Mistake(span, f"{path} includes itself")
            if identity in self._seen:
                return None
            if status.st_size > LONGEST:
                raise Mistake(span, f"{path} has {status.st_size} bytes; an included text has at most {LONGEST}")
            with os.fdopen(handle, "rb", closefd=False) as file:
                source = file.read(status.st_size).decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise Mistake(span, f"byte {e.start} of {path} is not UTF-8; is it a .rsn text?") from None
        except OSError as e:
            raise Mistake(span, f"{path} cannot be read: {e.strerror}") from None
        finally:
            os.close(handle)
        self._seen.add(identity)
        return SourceText(source, str(path), f"included from {text.at(span[0])}", *text.notes), identity


def _identity(file: str) -> Identity | None:
    try:
        status = os.stat(file)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
