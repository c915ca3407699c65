"""PyTorch blocks as stream programs: typed graphs of streams, and programs that run on the engine."""

from __future__ import annotations

from .block import Streamed, streamed
from .carrying import Carrying
from .knobs import Knobs

__all__ = ["Carrying", "Knobs", "Streamed", "streamed"]
