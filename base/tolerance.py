"""The largest difference between the machine's results and PyTorch's that passes."""

from __future__ import annotations

BOUND = 1e-4
"""Largest allowed difference from PyTorch, relative to the largest magnitude in the tensor."""
FEW_LAYERS, BOUND_OF_FEW = 4, 1e-5
"""Networks of so many layers of a transformer, or fewer, differ less."""


def bound_of(layers: int) -> float:
    """The largest allowed difference for a network of so many layers of a transformer."""
    return BOUND_OF_FEW if layers <= FEW_LAYERS else BOUND
