"""The overlay that machines of dynamic streams are made of. Importing this module lets files describe such machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..base.deferred import deferred
from ..isa.layout import Layout
from ..isa.overlay import Overlay
from ..isa.overlays.file import WHOLE
from ..machine.dynamic import CLOCK_HZ, RATES

if TYPE_CHECKING:
    from .dynamic.machine import overlay as operator_overlay
else:
    operator_overlay = deferred("rsn.streams.dynamic.machine.overlay")


def _made(given: Mapping[str, Any], name: str) -> Overlay:
    """Return the machine that a parsed file describes. Raises `ProgramError`."""
    return operator_overlay.made(given, name)


DYNAMIC = Overlay(
    name="dynamic",
    units=(),
    streams=(),
    clock_hz=CLOCK_HZ,
    formats=(),
    rates=RATES,
    terminators=(),
    layout=Layout.LINEAR,
    whole=_made,
)
"""The overlay without units that machines of dynamic streams are made of."""

WHOLE[DYNAMIC.name] = DYNAMIC
