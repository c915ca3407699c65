"""The base class of objects that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A context manager whose `close` is called at the end of its block."""

    def close(self) -> None:
        """Release what the object holds. Further calls do nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
