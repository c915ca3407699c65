"""How near the machine must come to PyTorch."""

from __future__ import annotations

BOUND = 1e-4
"""Largest difference from PyTorch, relative to the largest magnitude of the tensor (design section 5)."""
