"""The overlays that ship, by name."""

from __future__ import annotations

from ..overlay import Overlay
from .fig6 import FIG6
from .fig7 import FIG7
from .xnn import XNN, XNN_BASE
from .xnn2 import XNN2
from .xnn8 import XNN8

OVERLAYS: dict[str, Overlay] = {o.name: o for o in (XNN, XNN_BASE, XNN2, XNN8, FIG6, FIG7)}
