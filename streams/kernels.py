"""The library kernels of stream programs: for each one its contract, as data.

A kernel is a pure function of tiles. `KERNELS` states how it treats a pending reduction: a sum commutes with what is
linear, a maximum with what never decreases. `kernel_types` says what follows for types and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..base.element_types import ElementType
from .layouts import LOCAL, Distribution


@dataclass(frozen=True)
class Kernel:
    """The contract of a kernel.

    rule: how the shape of the result follows (key of `RULES`). operands: names of the tiles; optional: how many of the
    last ones may be left out. options: names of further arguments, known before the run, in order. linear: operands in
    each of which it is linear if the others are complete. jointly: it is linear in all operands together. increasing:
    operands in each of which it never decreases; `decreases`: with a negative constant as the other operand it does.
    joins: it is the maximum itself. whole_rows: it needs the whole last axis. floats: it takes floats only. reduces:
    the operator with which it combines elements of different shards.
    """

    name: str
    rule: str
    operands: tuple[str, ...]
    optional: int = 0
    options: tuple[str, ...] = ()
    linear: tuple[int, ...] = ()
    jointly: bool = False
    increasing: tuple[int, ...] = ()
    decreases: bool = False
    joins: bool = False
    whole_rows: bool = False
    floats: bool = False
    reduces: str = ""


KERNELS = {
    kernel.name: kernel
    for kernel in (
        Kernel("matmul", "matmul", ("a", "b"), linear=(0, 1), reduces="+"),
        Kernel("add", "elementwise", ("a", "b"), jointly=True, increasing=(0, 1)),
        Kernel("sub", "elementwise", ("a", "b"), jointly=True, increasing=(0,)),
        Kernel("mul", "elementwise", ("a", "b"), linear=(0, 1), increasing=(0, 1), decreases=True),
        Kernel("scale", "elementwise", ("x", "c"), linear=(0, 1), increasing=(0, 1), decreases=True),
        Kernel("div", "elementwise", ("a", "b"), linear=(0,), increasing=(0,), decreases=True, floats=True),
        Kernel("maximum", "elementwise", ("a", "b"), increasing=(0, 1), joins=True),
        Kernel("arithmetic", "elementwise", ("a", "b")),
        Kernel("minimum", "elementwise", ("a", "b"), increasing=(0, 1)),
        Kernel("neg", "elementwise", ("x",), linear=(0,)),
        Kernel("relu", "elementwise", ("x",), increasing=(0,)),
        Kernel("exp", "elementwise", ("x",), increasing=(0,), floats=True),
        Kernel("sqrt", "elementwise", ("x",), increasing=(0,), floats=True),
        Kernel("gelu", "elementwise", ("x",), floats=True),
        Kernel("silu", "elementwise", ("x",), floats=True),
        Kernel("tanh", "elementwise", ("x",), increasing=(0,), floats=True),
        Kernel("banded", "elementwise", ("x", "first", "last"), floats=True),
        Kernel("softmax", "rows", ("x",), whole_rows=True, floats=True),
        Kernel("layernorm", "rows", ("x", "gamma", "beta"), optional=2, options=("eps",), whole_rows=True, floats=True),
        Kernel("rmsnorm", "rows", ("x", "gamma"), optional=1, options=("eps",), whole_rows=True, floats=True),
        Kernel("transpose", "transpose", ("x",), options=("axes",), linear=(0,), increasing=(0,)),
        Kernel("reshape", "reshape", ("x",), options=("shape",), linear=(0,), increasing=(0,)),
        Kernel("reduce_sum", "reduce", ("x",), options=("axis", "keepdims"), linear=(0,), reduces="+"),
        Kernel(
            "reduce_max", "reduce", ("x",), options=("axis", "keepdims"), increasing=(0,), joins=True, reduces="max"
        ),
    )
}
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
class Operand:
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
    kernel: Kernel
    operands: Sequence[Operand]
    mesh: Sequence[int]
    options: Options = field(default_factory=dict)
