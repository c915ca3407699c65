"""The library kernels of stream programs: for each one its contract, as data.

A kernel is a pure function of tiles. `KERNELS` states how it treats a pending reduction: a sum commutes with what is
linear, a maximum with what never decreases. `kernel_types` says what follows for types and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base.element_types import ElementType
from ..isa.overlays.tasks.kernels import CONTRACTS, LibraryKernel
from .layouts import LOCAL, Distribution

KERNELS = {name: kernel for name, kernel in CONTRACTS.items() if kernel.rule}
"""Kernels with tiles as operands. `concat`, `zeros`, `full` and `allreduce` have functions of their own below."""

ALIASES = {
    "add": "add",
    "amax": "reduce_max",
    "concatenate": "concat",
    "divide": "div",
    "exp": "exp",
    "matmul": "matmul",
    "max": "reduce_max",
    "maximum": "maximum",
    "minimum": "minimum",
    "multiply": "mul",
    "negative": "neg",
    "reshape": "reshape",
    "sqrt": "sqrt",
    "subtract": "sub",
    "sum": "reduce_sum",
    "transpose": "transpose",
    "true_divide": "div",
}
"""Functions of NumPy with the contract of a kernel."""


@dataclass(frozen=True)
class KernelOperand:
    """A value as a kernel sees it. type: of its shard, None if unknown. text: how the program writes it."""

    type: ElementType | None
    dist: Distribution = LOCAL
    text: str = "this value"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the shard."""
        return self.type.shape if self.type is not None else ()


Options = Mapping[str, object]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    kernel: LibraryKernel
    operands: Sequence[KernelOperand]
    mesh: Sequence[int]
    options: Options = field(default_factory=dict)
