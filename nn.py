"""`rsn.nn`: the machine's operators as PyTorch modules. They are in `rsn.rsnlib.nn`."""

from __future__ import annotations

from .base.errors import require_torch

require_torch("rsn.nn")

from .rsnlib.nn import *  # noqa: E402, F403 - what is missing is said first
from .rsnlib.nn import __all__ as __all__  # noqa: E402
