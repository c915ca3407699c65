"""Overlays by name: those that ship, and those that files make of them."""

from .fig6 import FIG6
from .fig7 import FIG7
from .file import find
from .shipped import OVERLAYS
from .xnn import XNN, XNN_BASE

__all__ = ["FIG6", "FIG7", "OVERLAYS", "XNN", "XNN_BASE", "find"]
