"""How it is said that PyTorch runs what torch.compile gave to the machine. Does not load PyTorch."""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType

from ..base.errors import ScheduleError, TensorError, UnsupportedError

Refusal = (UnsupportedError, TensorError, ScheduleError)
"""Why a graph, or a part of it, does not run on the machine."""


class Fallback(UserWarning):
    """A graph, or a part of it, runs in PyTorch. The message says why."""


class _RecompileLimit(logging.Filter):
    """Sees torch say that it compiles a function no more, after `recompile_limit` variants: from then on it calls no
    backend for other shapes, and raises nothing. No other sign of that reaches a backend."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Raises `UnsupportedError` for a function that was compiled with the option fallback="error"."""
        if str(record.msg).startswith("torch._dynamo hit config."):
            self._told(record)
        return True

    @staticmethod
    def _told(record: logging.LogRecord) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and "compiler_fn" not in frame.f_locals:
            frame = frame.f_back
        asked = None if frame is None else frame.f_locals["compiler_fn"]
        if getattr(asked, "compiler_name", None) != "rsn":
            return
        limit = record.args[0] if isinstance(record.args, tuple) and record.args else "recompile_limit"
        why = (
            f"torch compiles no more variants of this function (torch._dynamo.config.{limit}): calls of other shapes "
            f"run in PyTorch; give torch.compile dynamic=True, or a larger {limit}"
        )
        options = getattr(asked, "kwargs", {}).get("options") or {}
        if options.get("fallback") == "error":
            raise UnsupportedError(why)
        warnings.warn(why, Fallback, stacklevel=2)


_recompile_limit = _RecompileLimit()


def watch_recompile_limit() -> None:
    """Warn where torch stops compiling variants of a function for this backend; once, however often it is called."""
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_recompile_limit)
