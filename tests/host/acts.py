"""What processes of `own_process` do in tests: a module that they can import."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rsn.base.errors import BudgetError, ImageError

ERRORS = {"budget": BudgetError("too much", "x", 2, 1), "image": ImageError("no packet", 3), "other": LookupError("no")}


def act(path: Path, then: str = "") -> None:
    """Write the number of the process, and then end, wait, or raise one of `ERRORS`."""
    path.write_text(str(os.getpid()))
    if then in ERRORS:
        raise ERRORS[then]
    os._exit(7) if then == "end" else time.sleep(600 if then == "wait" else 0)
