"""What an overlay cannot do: errors that name the layer, the capability, its limit, and the overlays that can."""

from __future__ import annotations

from ..base.errors import UnsupportedError
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from ..machine.description import UnitSpec


def require(place: str, what: str, overlay: Overlay, op: str, unit: UnitSpec | None = None, **sizes: float) -> None:
    """Check that a machine can do an operation of these sizes.

    place: the layer, for the message. what: what it needs, in words. op: the capability. unit: which unit must do it;
    by default any. sizes: by their names in the limits of the capability. Raises `UnsupportedError` naming the
    capability, or the limit of it that a size exceeds, and the overlays that can.
    """
    found = overlay.capability(op) if unit is None else unit.capability(op)
    if found is None:
        raise UnsupportedError(f"{place}: {what}; overlay {overlay.name} lacks capability {op}{others(op, **sizes)}")
    size = found.exceeded(**sizes)
    if size is not None:
        limit = _range(*found.limits[size])
        raise UnsupportedError(
            f"{place}: {what}; capability {op} of overlay {overlay.name} takes {limit} {size}{others(op, **sizes)}"
        )


def others(op: str, **sizes: float) -> str:
    """The end of a message: the names of the overlays of this package that have capability `op` for these sizes, or
    that none has."""
    able = [
        o.name for o in OVERLAYS.values() if o.emit and (c := o.capability(op)) is not None and not c.exceeded(**sizes)
    ]
    return f"; {', '.join(able)} can" if able else "; no overlay can"


def _range(least: float, most: float) -> str:
    if least == most:
        return f"exactly {least:g}"
    return f"{least:g} to {most:g}"
