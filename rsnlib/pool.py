"""Share equal weights between the programs of one model, whose networks and host parts hold the same numbers."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ..scheduler.graph import Array, Gemm
from .capture import Environment
from .graph_split import Split
from .partition import Traced

SMALL = 1 << 14
"""Tensors up to this size in bytes are not shared, because the gain would be too small."""


class Pool:
    """Stores equal weights of several programs once. It holds weak references only: weights are freed with the last
    program that uses them."""

    def __init__(self) -> None:
        self._arrays: weakref.WeakValueDictionary[tuple[Any, ...], Array] = weakref.WeakValueDictionary()
        self._tensors: weakref.WeakValueDictionary[tuple[Any, ...], torch.Tensor] = weakref.WeakValueDictionary()

    def shared(self, traced: Traced) -> Traced:
        """Return the traced module with its weights of more than `SMALL` bytes replaced by equal arrays that other
        programs already hold; the rest are held from now on."""
        layers = tuple(
            replace(x, weight=self._array(x.weight), bias=self._array(x.bias)) if isinstance(x, Gemm) else x
            for x in traced.network.layers
        )
        network, host = replace(traced.network, layers=layers), traced.host
        return replace(traced, network=network, host=replace(host, constants=self._constants(host.constants)))

    def shared_pieces(self, split: Split) -> Split:
        """Return a split module with its weights shared, those of its pieces as `shared` does."""
        pieces = (x if x.traced is None else replace(x, traced=self.shared(x.traced)) for x in split.pieces)
        return replace(split, pieces=tuple(pieces), constants=self._constants(split.constants))

    def _constants(self, constants: Environment) -> Environment:
        return {node: self._tensor(x) if isinstance(x, torch.Tensor) else x for node, x in constants.items()}

    def _array(self, x: Array) -> Array:
        return x if x.nbytes <= SMALL else self._arrays.setdefault((x.shape, _digest(x)), x)

    def _tensor(self, x: torch.Tensor) -> torch.Tensor:
        if x.nbytes <= SMALL or not x.is_contiguous():
            return x
        return self._tensors.setdefault((x.dtype, x.shape, _digest(x.view(torch.uint8).numpy())), x)


def _digest(x: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(x).data, digest_size=16).digest()
