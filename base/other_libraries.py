"""Messages of other libraries to those who call them, who are not our users."""

from __future__ import annotations

import logging
import warnings

LOGGERS = ("torchao", "torch.utils._pytree")
"""They report parts that this computer has no use for, and names that will change."""


def silence_other_libraries() -> None:
    """Show no FutureWarnings in this process, and of `LOGGERS` only errors."""
    warnings.simplefilter("ignore", FutureWarning)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)
