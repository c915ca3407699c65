"""Lowering: from a network to kernel sequences, by the stages `tile`, `bind`, `chain` and `dram` (paper sections 4.1 to
4.4, Fig. 10 and 11), or product by product for overlays without patterns (`product_by_product`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.overlay import Overlay
from . import bind as binding
from . import integer_panels, product_by_product
from .bind import bind
from .chain import chain
from .circuits import circuits_of
from .dram import Lowered, order_dram
from .graph import Gemm, LayerGraph
from .lanes import lowering
from .memory import Columns
from .schedule import PAPER, USUAL_LANES, Schedule
from .tile import tile

Observe = Callable[[str, object], None]
"""Called after each stage or pass with its name and its result."""


def unobserved(name: str, made: object) -> None:
    """Do nothing: the default observer. name, made: a stage or pass, and what it made."""


def lower(network: LayerGraph, overlay: Overlay, schedule: Schedule, observe: Observe = unobserved) -> Lowered:
    """Lower a network to kernel sequences. observe: called after each stage. Raises `UnsupportedError` naming the layer
    that the overlay cannot run or the bank that is too small, `ScheduleError` if the schedule does not fit the network
    or if a layer reads what is not computed before it, `FieldError` for a number that a field of an instruction cannot
    hold, and `DeadlockError` if list scheduling finds that the program cannot end."""
    network.check_order()
    if overlay.integers:
        lowered = integer_panels.lower(network, overlay)
        observe("dram", lowered)
        return lowered
    _check_steps(network, overlay)
    if overlay.lanes is not None:
        lowered = lowering.lower(network, overlay, schedule)
        observe("dram", lowered)
        return lowered
    _without_lanes(overlay, schedule)
    if overlay.patterns is None:
        lowered = product_by_product.bind(network, overlay, schedule)
        observe("dram", lowered)
        return lowered
    tiled = tile(network.in_place(), overlay, schedule)
    observe("tile", tiled)
    bound = bind(tiled)
    observe("bind", bound)
    chained = chain(bound)
    observe("chain", chained)
    lowered = order_dram(chained)
    observe("dram", lowered)
    return lowered


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Check that a network fits off-chip memory and the overlay's capabilities, without lowering it. On an overlay of
    row lanes it does not check the size of banks, nor anything else that needs the emitted panels. Raises
    `UnsupportedError` and `ScheduleError` like `lower`, but not for layers in a wrong order."""
    if overlay.integers:
        integer_panels.lower(network, overlay)
        return
    _check_steps(network, overlay)
    if overlay.lanes is not None:
        lowering.place(network, overlay, schedule)
        return
    _without_lanes(overlay, schedule)
    if overlay.patterns is None:
        product_by_product.place(network, overlay, schedule)
    else:
        binding.place(tile(network.in_place(), overlay, schedule))


def _check_steps(network: LayerGraph, overlay: Overlay) -> None:
    """Raise `UnsupportedError` for what takes an overlay that keeps rows, if it does not."""
    if overlay.capability("keep_rows") is not None:
        return
    for layer in network.layers:
        if isinstance(layer, Gemm) and (layer.into is not None or (layer.rotary is not None and layer.rotary.source)):
            what = "a cache of keys and values" if layer.into is not None else "rotary positions from the host"
            raise UnsupportedError(f"{layer.place}: {what}; overlay {overlay.name} has no capability keep_rows")


def _without_lanes(overlay: Overlay, schedule: Schedule) -> None:
    """Raise `ScheduleError` for a schedule with knobs of row lanes."""
    if schedule.lanes != USUAL_LANES:
        raise ScheduleError(f"lanes: overlay {overlay.name} has no row lanes")


def columns_on(network: LayerGraph, overlay: Overlay) -> dict[str, Columns]:
    """How the columns of each activation are stored on an overlay, by the name of the activation. Raises like
    `place`, and `UnsupportedError` for an overlay that computes in integers."""
    if overlay.integers:
        raise UnsupportedError(
            f"overlay {overlay.name} keeps activations as integers on chip; none but results can be read"
        )
    if overlay.lanes is not None:
        return lowering.columns_on(network, overlay)
    if overlay.patterns is None:
        return product_by_product.columns_on(network, overlay)
    return tile(network.in_place(), overlay, PAPER).columns


class Banks(NamedTuple):
    """The names of the off-chip memories that hold weights and activations; they may be the same."""

    weights: str
    activations: str

    @staticmethod
    def of(overlay: Overlay) -> Banks:
        """The banks of an overlay. Raises like `require_compilable`."""
        if overlay.integers:
            return Banks("lpddr", "ddr")
        if overlay.lanes is not None:
            return Banks(overlay.lanes.weights, overlay.lanes.activations)
        if overlay.patterns is None:
            circuits = circuits_of(overlay)
            return Banks(circuits.weights_bank, circuits.activations_bank)
        grid = overlay.patterns.grid
        return Banks(*(str(overlay.by_unit[unit].bank) for unit in (grid.weights, grid.activations)))


def require_compilable(overlay: Overlay) -> None:
    """Raise `UnsupportedError` for an overlay that networks cannot be lowered to, naming what it lacks."""
    if overlay.patterns is None and overlay.lanes is None and not overlay.integers:
        circuits_of(overlay)
