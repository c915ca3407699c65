"""The scheduler's pipeline: a network to a packed program."""

from __future__ import annotations

from dataclasses import dataclass

from ..isa.datapath import Overlay
from ..isa.program import Program
from .lower import Weights, lower
from .pack import pack
from .schedule import Schedule
from .segment import Network


@dataclass(frozen=True, eq=False)
class Built:
    """A program and its weights, by buffer name, as they lie in LPDDR."""

    program: Program
    weights: Weights


def build(network: Network, overlay: Overlay, schedule: Schedule) -> Built:
    """Lower to kernel sequences, order the off-chip accesses, pack. Raises `UnsupportedError` or `ScheduleError`."""
    lowered = lower(network, overlay, schedule)
    return Built(pack(lowered.kernels), lowered.weights)
