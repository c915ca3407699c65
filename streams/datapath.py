"""What the kernels of a task are in hardware, and the cycles of their loops: the model of time of stream programs.

A task with rates has the datapath that the C++ of `rsn hls` builds for it. The C++ takes its words of tiles from here,
and runs, mappings, depths and generated machines their cycles. A loop of n iterations takes n - 1 intervals, the cycles
of one iteration, and one to begin (`rsn.hw.versal.hlscheck.cycles` derives the same of the C++).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, prod

from ..base.element_types import FLOATS, ElementType
from ..isa.overlays.tasks.program import ELEMENTS
from .words import MOVED, TileWord, matrix, part_of, port_elements, product_word, row_word, stream_word, word

TURNED = 8.0
"""Elements of a transpose in a cycle where no rate is stated: as many banks more each way."""

DEPTHS: Mapping[str, int] = {"div": 10, "sqrt": 14, "exp": 20, "gelu": 26, "silu": 31, "tanh": 32}
"""Cycles from the operands of an operator on elements to its result, one after another on its longest way
(`rsn.hw.versal.hlscheck.operators`). Others take 1."""


@dataclass(frozen=True)
class Unwritten:
    """An expression of tiles that is computed in the loop of what reads it. lanes: elements of it that a cycle may
    compute. depth: cycles of its operators, one after another. turned: it is a transposed tile."""

    lanes: float = inf
    depth: int = 0
    turned: bool = False

    @property
    def scales(self) -> bool:
        """Whether more units would compute it in fewer cycles."""
        return self.lanes < MOVED


def loop(iterations: int, depth: int, interval: int = 1) -> int:
    """Return the cycles of a pipelined loop. depth: of an iteration, beyond its first cycle."""
    return (iterations - 1) * interval + depth + 1


def _pass(kind: ElementType, taken: TileWord, depth: int) -> int:
    """Cycles of a pass over a tile. A tile of one word takes no loop: it is a part of the beat around it."""
    count = prod(kind.shape) // taken.elements
    return loop(count, depth) if count > 1 else 0


@dataclass(frozen=True)
class Datapath:
    """The datapath of a task. rates: work in a cycle by kernel: multiply-adds of `matmul`, elements of others, or of
    `elements`, which are all others; one where none is stated. float_add: cycles of an addition of floats."""

    rates: Mapping[str, float] = field(default_factory=dict)
    float_add: int = 1

    def lanes(self, kernel: str) -> float:
        """Return the elements that a kernel takes in a cycle."""
        return self.rates.get(kernel, TURNED if kernel == "transpose" else self.rates.get(ELEMENTS, 1.0))

    def product_word(self, kind: ElementType, turned: int = 0) -> TileWord:
        """Return the sums of a product that are added to in a cycle: of the rate, what is of use. A sum that is added
        to can be added to again some cycles later, so there are at least as many words of sums, if they suffice. kind:
        of the result. turned: as in `words.product_word`."""
        sums = prod(kind.shape[-2:])
        if sums <= MOVED:  # streams take all of it in a cycle, so it becomes registers, which no index tells apart
            return product_word(kind.shape, sums, turned)
        useful = max(1, sums // self._turns(kind.dtype))
        return product_word(kind.shape, min(self.rates.get("matmul", 1.0), useful), turned)

    def multiply_adds(self, kind: ElementType) -> int:
        """Return the multiply-adds of a product in a cycle. kind: of the result."""
        taken = self.product_word(kind)
        return ceil(taken.elements / self._interval_of(kind, taken))

    def row_word(self, kernel: str, shape: Sequence[int]) -> TileWord:
        """Return the elements that a kernel which combines rows takes in a cycle. shape: of its operand."""
        return row_word(shape, min(self.lanes(kernel), MOVED))

    def product(self, kind: ElementType, depth: int, turned: bool = False) -> int:
        """Return the cycles of a product. kind: of the result. depth: elements of each sum. turned: its right operand
        is read as the transpose of a tile."""
        taken = self.product_word(kind, depth if turned else 0)
        words = prod(kind.shape[-2:]) // taken.elements
        return prod(kind.shape[:-2]) * loop(depth * words, self.float_add + 2, self._interval_of(kind, taken))

    def _interval_of(self, kind: ElementType, taken: TileWord) -> int:
        """Cycles between two steps of a product. What becomes registers is added to as if it were one word."""
        sums = prod(kind.shape[-2:])
        return self._interval(kind.dtype, 1 if sums <= MOVED else sums // taken.elements)

    def rows(self, kernel: str, kind: ElementType) -> int:
        """Return the cycles of softmax or a norm. kind: of the operand."""
        taken = self.row_word(kernel, kind.shape)
        columns = kind.shape[-1]
        mean = 1 if columns & (columns - 1) == 0 else DEPTHS["div"]  # a power of 2 divides as a product
        root = mean + 1 + DEPTHS["sqrt"]
        sums = {
            "softmax": ((0, 0), (1 + DEPTHS["exp"], 0)),
            "layernorm": ((0, mean), (2, root)),
            "rmsnorm": ((1, root),),
        }[kernel]
        last = loop(prod(kind.shape) // taken.elements, DEPTHS["div"] + 1)
        return last + sum(self._combined(kind, taken, before, behind) for before, behind in sums)

    def reduction(self, kernel: str, kind: ElementType, axes: Sequence[int] | None) -> int:
        """Return the cycles of a sum or maximum along axes, None for all. kind: of the operand."""
        shape = list(kind.shape)
        cycles = 0
        for axis in sorted({a % len(shape) for a in (range(len(shape)) if axes is None else axes)}, reverse=True):
            taken = self.row_word(kernel, shape)
            part = ElementType(kind.dtype, tuple(shape))
            if axis == len(shape) - 1:
                cycles += self._combined(part, taken, 0, 0)
            else:
                inner = prod(shape[axis + 1 :])
                outer = prod(shape[:axis])
                cycles += outer * self._combining(kind.dtype, shape[axis], ceil(inner / taken.columns), 1, 1)
            del shape[axis]
        return cycles

    def _combined(self, kind: ElementType, taken: TileWord, before: int, behind: int) -> int:
        """Rows that are combined to a number each. before, behind: cycles of what is computed of an element, and of a
        row's result."""
        rows, columns = matrix(kind.shape)
        tree = taken.columns.bit_length() - 1
        parts, groups = columns // taken.columns, rows // taken.rows
        return self._combining(kind.dtype, parts, groups, before + tree + 1, behind + 1)

    def _combining(self, dtype: str, parts: int, groups: int, before: int, behind: int) -> int:
        return loop(parts * groups, before, self._interval(dtype, groups)) + loop(groups, behind)

    def _interval(self, dtype: str, sums: int) -> int:
        """Cycles from one step of a loop to the next. sums: those that the loop adds to, one in each step."""
        return ceil(self._turns(dtype) / sums)

    def _turns(self, dtype: str) -> int:
        """Cycles in which a sum is read, added to and written."""
        return (self.float_add if dtype in FLOATS else 0) + 2

    def elements(self, kind: ElementType, value: Unwritten) -> int:
        """Return the cycles of the loop that computes an expression and keeps it in a tile."""
        taken = word(kind.shape, min(value.lanes, MOVED))
        return _pass(kind, taken, value.depth + 1)

    def got(self, kind: ElementType) -> int:
        """Return the cycles in which a tile comes from a stream."""
        return _pass(kind, stream_word(kind.dtype, kind.shape), 1)

    def put(self, kind: ElementType, value: Unwritten) -> int:
        """Return the cycles in which an expression, or a tile, is put on a stream."""
        whole = stream_word(kind.dtype, kind.shape)
        part = part_of(word(kind.shape, min(value.lanes, whole.elements)), whole)
        return _pass(kind, part, value.depth)

    def moved(self, kind: ElementType, axis: int) -> int:
        """Return the cycles in which a part of a tensor is read or written. axis: elements of the last axis of the
        whole."""
        return _pass(kind, TileWord(1, port_elements(kind.dtype, kind.shape[-1], axis)), 0)
