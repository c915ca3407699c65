"""Task machines: overlays whose units run trees of operations."""

from .overlay import TASKS

__all__ = ["TASKS"]
