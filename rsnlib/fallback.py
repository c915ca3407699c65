"""Warnings that PyTorch runs a graph, or part of one, instead of the machine. This module does not import PyTorch."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from types import FrameType

from ..base.errors import ScheduleError, TensorError, UnsupportedError

Refusal = (UnsupportedError, TensorError, ScheduleError)
"""The errors for a graph, or a part of it, that cannot run on the machine."""


TOLD = 3
"""Largest number of reasons in a warning; `explain` gives all."""


class Fallback(UserWarning):
    """The warning that a graph, or a part of it, runs in PyTorch. The message says why."""


def told(reasons: Sequence[str]) -> str:
    """Return the reasons of a warning as text: the first `TOLD`, and how many more there are."""
    more = f"; and {len(reasons) - TOLD} more" if len(reasons) > TOLD else ""
    return "; ".join(reasons[:TOLD]) + more


class _RecompileLimit(logging.Filter):
    """Detects torch's log record that it stops compiling a function after `recompile_limit` variants. From then on
    torch calls no backend for other shapes and raises nothing; the log is the only sign of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all records pass. Raises `UnsupportedError` at the limit for a function that was compiled with the option
        fallback="error"; warns otherwise."""
        if str(record.msg).startswith("torch._dynamo hit config."):
            self._limit_reached(record)
        return True

    @staticmethod
    def _limit_reached(record: logging.LogRecord) -> None:
        """Warn, or raise, if the function was compiled for this backend."""
        frame: FrameType | None = sys._getframe()
        while frame is not None and "compiler_fn" not in frame.f_locals:
            frame = frame.f_back
        backend = None if frame is None else frame.f_locals["compiler_fn"]
        if getattr(backend, "compiler_name", None) != "rsn":
            return
        limit = record.args[0] if isinstance(record.args, tuple) and record.args else "recompile_limit"
        why = (
            f"torch compiles no more variants of this function (torch._dynamo.config.{limit}): calls of other shapes "
            f"run in PyTorch; give torch.compile dynamic=True, or a larger {limit}"
        )
        options = getattr(backend, "kwargs", {}).get("options") or {}
        if options.get("fallback") == "error":
            raise UnsupportedError(why)
        warnings.warn(why, Fallback, stacklevel=2)


_recompile_limit = _RecompileLimit()


def watch_recompile_limit() -> None:
    """Start to warn when torch stops compiling variants of a function for this backend. Later calls have no effect."""
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_recompile_limit)
