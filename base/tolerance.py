"""The largest difference between the machine's results and PyTorch's that passes."""

from __future__ import annotations

BOUND = 1e-4
"""Largest allowed difference from PyTorch, relative to the largest magnitude in the tensor (design section 5)."""
