"""Lowering: from a network to kernel sequences, by the stages `tile`, `bind`, `chain` and `dram` (paper sections 4.1 to
4.4, Fig. 10 and 11)."""

from __future__ import annotations

from collections.abc import Callable

from ..base.errors import UnsupportedError
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from . import bind as binding
from .bind import bind
from .chain import chain
from .dram import Lowered, order_dram
from .graph import LayerGraph
from .schedule import Schedule
from .tile import tile

Observe = Callable[[str, object], None]
"""Called after each stage or pass with its name and its result."""


def unobserved(name: str, made: object) -> None:
    """Do nothing: the default observer."""


def lower(network: LayerGraph, overlay: Overlay, schedule: Schedule, observe: Observe = unobserved) -> Lowered:
    """Lower a network to kernel sequences. observe: called after each stage. Raises `UnsupportedError` naming the layer
    that the overlay cannot run or the bank that is too small, and `ScheduleError` if the schedule does not fit the
    network."""
    require_patterns(overlay)
    tiled = tile(network, overlay, schedule)
    observe("tile", tiled)
    bound = bind(tiled)
    observe("bind", bound)
    chained = chain(bound)
    observe("chain", chained)
    lowered = order_dram(chained)
    observe("dram", lowered)
    return lowered


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Check that a network fits off-chip memory, without lowering it. Raises like `lower`."""
    require_patterns(overlay)
    binding.place(tile(network, overlay, schedule))


def require_patterns(overlay: Overlay) -> None:
    """Raise `UnsupportedError` for an overlay that networks cannot be lowered to."""
    if overlay.emit is None or overlay.patterns is None:
        able = " or ".join(o.name for o in OVERLAYS.values() if o.emit is not None and o.patterns is not None)
        raise UnsupportedError(
            f"overlay {overlay.name} lacks units that models need (with capability matmul, in a grid); it runs "
            f"programs written by hand. Models are compiled for {able}"
        )
