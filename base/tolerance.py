"""The largest difference between the machine's results and PyTorch's that passes."""

from __future__ import annotations

BOUND = 1e-4
"""Largest allowed difference from PyTorch, relative to the largest magnitude in the tensor."""
FEW_LAYERS, BOUND_OF_FEW = 4, 1e-5
"""Up to how many layers of a transformer a network must keep the second bound."""


def bound_of(layers: int) -> float:
    """Return the largest allowed difference from PyTorch, relative to the largest magnitude in the tensor. layers: how
    many layers the transformer has."""
    return BOUND_OF_FEW if layers <= FEW_LAYERS else BOUND
