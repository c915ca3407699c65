"""The overlays that ship, by name."""

from __future__ import annotations

from ..overlay import Overlay
from .fig6 import FIG6
from .fig7 import FIG7
from .xnn import XNN, XNN_BASE

OVERLAYS: dict[str, Overlay] = {o.name: o for o in (XNN, XNN_BASE, FIG6, FIG7)}
