"""The overlay `xnn2` on the VCK190: six lanes that keep the rows of a panel on chip."""

from .machine import XNN2

__all__ = ["XNN2"]
