"""What the kernels of a task are in hardware, and the cycles of their loops: the model of time of stream programs.

A task with rates has the datapath that the C++ of `rsn hls` builds for it. The C++ takes its words of tiles from here,
and runs, mappings, depths and generated machines their cycles. A loop of n iterations takes n - 1 intervals, the cycles
of one iteration, and one to begin (`rsn.hw.versal.hlscheck.cycles` derives the same of the C++).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, prod
from typing import NamedTuple

from ..base.element_types import FLOATS, ElementType
from ..isa.overlays.tasks.kernels import CONTRACTS
from ..isa.overlays.tasks.program import ELEMENTS, FABRIC
from .words import (
    MOVED,
    SUMS,
    TileWord,
    block_word,
    divisor,
    matrix,
    part_of,
    port_elements,
    product_word,
    row_word,
    stream_word,
    word,
)

TURNED = 8.0
"""Elements of a transpose in a cycle where no rate is stated: as many banks more each way."""

DEPTHS: Mapping[str, int] = {"rint": 2, "div": 10, "sqrt": 14, "exp": 7, "gelu": 26, "silu": 18, "tanh": 32}
"""Cycles from the operands of an operator on elements to its result, one after another on its longest way
(`rsn.hw.versal.hlscheck.operators`). Others take 1."""

CHAINED = 0.3
"""Cycles of an addition of integers behind another one (`rsn.hw.versal.hlscheck.operators`, carry32)."""


def conversion_depth(source: str, target: str) -> int:
    """Return the clock cycles in which an element becomes the same number of another element type: 2 from an integer to
    a float, 1 from a float to an integer (`itofp` and `fptoi` in `rsn.hw.versal.hlscheck.operators`), 0 otherwise.
    source, target: the names of the element types, such as "f32"."""
    if (source in FLOATS) == (target in FLOATS):
        return 0
    return 2 if target in FLOATS else 1


ADDITIONS = 3
"""Additions of integers, one after another, in a cycle (`carry32` in `rsn.hw.versal.hlscheck.operators`)."""


@dataclass(frozen=True)
class Unwritten:
    """An expression of tiles that is not kept in a tile of its own: the loop that reads it computes it.

    lanes: elements that can be computed in a cycle. depth: cycles of its operators, one after another. turned: whether
    it is the transpose of a tile. in_place: whether a product can compute it where it reads it: integer tiles, also
    converted to another integer type, and sums and differences of these."""

    lanes: float = inf
    depth: int = 0
    turned: bool = False
    in_place: bool = False

    @property
    def scales(self) -> bool:
        """Whether a higher rate would compute it in fewer cycles."""
        return self.lanes < MOVED


@dataclass(frozen=True)
class LoopCycles:
    """The clock cycles of loops that run one after another.

    total: all cycles. fixed: those of them that higher rates would not shorten: with n times the rates, the loops take
    `fixed + (total - fixed) / n` cycles."""

    total: int = 0
    fixed: int = 0

    def __add__(self, other: LoopCycles) -> LoopCycles:
        return LoopCycles(self.total + other.total, self.fixed + other.fixed)

    def __mul__(self, times: int) -> LoopCycles:
        return LoopCycles(self.total * times, self.fixed * times)


def loop(iterations: int, depth: int, interval: int = 1) -> LoopCycles:
    """Return the clock cycles of a pipelined loop. iterations: at least 1. depth: cycles of one iteration beyond its
    first one. interval: cycles from the beginning of an iteration to that of the next one. With higher rates a loop has
    fewer iterations; `fixed` of the result is what stays then."""
    return LoopCycles((iterations - 1) * interval + depth + 1, depth + 1 - interval)


def _pass(kind: ElementType, taken: TileWord, depth: int) -> LoopCycles:
    """Cycles of a pass over a tile. A tile of one word takes no loop: it is a part of the beat around it."""
    count = prod(kind.shape) // taken.elements
    return loop(count, depth) if count > 1 else LoopCycles()


ROWS, COLUMNS = "rows", "columns"


class TileOperand(NamedTuple):
    """An operand of a call, for the choice of a kernel variant.

    type: its element type and shape. turned: whether it is the transpose of a tile. unwritten: whether it is an
    expression that is computed where it is read. text: how the program writes it. arrives: whether it is read from
    memory, or got from a stream, for this call alone, so that it can be written by columns while it comes."""

    type: ElementType
    turned: bool
    unwritten: bool
    text: str
    arrives: bool = False

    @property
    def layout(self) -> str:
        """The layout in which the operand lies unless it arrives: "rows", or "columns" for a transpose."""
        return COLUMNS if self.turned else ROWS


def block_of(layout: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block of a layout such as "4x8"; None for the layouts "rows" and "columns"."""
    rows, by, columns = layout.partition("x")
    return (int(rows), int(columns)) if by else None


def lying(layout: str) -> str:
    """Return a layout as the end of a sentence that begins with "it lies": "by rows", or "in blocks of 4x8"."""
    return f"by {layout}" if block_of(layout) is None else f"in blocks of {layout}"


@dataclass(frozen=True)
class KernelVariant:
    """A variant of a library kernel, with the conditions under which it may be called (its contract: Dato, section
    5.1).

    name: in files and messages. kernel: the name of the library kernel that it computes. tile: the sizes of one call in
    elements: rows, depth and columns of a product, rows and columns of other kernels; larger operands take several
    calls. latency: clock cycles of a call. interval: cycles from one call to the next.

    vectors: for each operand, how many elements of a row it takes in a cycle; the words in which the operand passes
    streams must be whole vectors; () for 1 each. layouts: for each operand "rows", "columns", or blocks such as "4x8"
    (elements by rows in a block, blocks by rows in the operand); () for rows each. types: the element types that
    operands may have, and shapes: the sizes of the whole computation that are taken; () for any. source, call: the path
    of the C++ header that has the variant, and its name there; "" if it has no C++."""

    name: str
    kernel: str
    tile: tuple[int, ...]
    latency: int
    interval: int
    vectors: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    source: str = ""
    call: str = ""

    @property
    def sizes(self) -> tuple[str, ...]:
        """The names of the sizes in `tile`, in order: rows, depth and columns of a product; rows and columns of other
        kernels."""
        return ("rows", "depth", "columns") if self.kernel == "matmul" else ("rows", "columns")

    def layout(self, number: int) -> str:
        """Return the layout of an operand: "rows", "columns", or blocks such as "4x8". number: of the operand, from
        0."""
        return self.layouts[number] if self.layouts else ROWS

    def vector(self, number: int) -> int:
        """Return how many elements of a row of an operand are taken in a cycle. number: of the operand, from 0."""
        return self.vectors[number] if self.vectors else 1

    def call_tile(self, number: int) -> tuple[int, ...]:
        """Return the sizes that one call takes of an operand: its rows and columns, in elements. number: of the
        operand, from 0."""
        return self.tile[number : number + 2] if self.kernel == "matmul" else self.tile

    def misfit(self, operands: Sequence[TileOperand], result: ElementType, sizes: Sequence[int]) -> str:
        """Return, as text, the first condition of the contract that a call does not meet; "" if it meets all. operands:
        of the call. result: the type of its result. sizes: the sizes of the whole computation in elements, in the order
        of `tile`."""
        rule = CONTRACTS[self.kernel].rule
        for number, operand in enumerate(operands):
            if not operand.type.shape:
                continue
            wanted, vector = self.layout(number), self.vector(number)
            if wanted != ROWS and len(operand.type.shape) < 2:
                return f"{operand.text} is {operand.type}, and it takes a matrix {lying(wanted)}"
            block = block_of(wanted)
            row = block[1] if block else operand.type.shape[-2 if wanted == COLUMNS else -1]
            width = stream_word(operand.type.dtype, (row,)).columns
            if rule == "elementwise" and operand.type.shape != result.shape:
                return f"{operand.text} is {operand.type}, and the result {result}"
            if operand.unwritten:
                return f"{operand.text} is computed where it is read: assign it first"
            if self.types and operand.type.dtype not in self.types:
                return f"{operand.text} is {operand.type}, and it takes {' or '.join(self.types)}"
            if width % vector:
                return f"words of {operand.text} have {width} elements, no multiple of a vector of {vector}"
        if self.shapes and tuple(sizes) not in self.shapes:
            return f"{by(self.sizes)} = {by(sizes)}, and it takes {' or '.join(map(by, self.shapes))}"
        for name, size, one in zip(self.sizes, sizes, self.tile, strict=True):
            if size % one:
                return f"{name} = {size} is no multiple of {one}"
            if size != one and name == "columns" and rule == "rows":
                return f"{name} = {size}, and it takes whole rows of {one}"
        return ""


class VariantChoice(NamedTuple):
    """Which kernel variant a call takes.

    variant: None if none fits. cycles: clock cycles of the call, with the loops over its tiles and the copies of
    operands; 0 without a variant. trips: the iterations of each of these loops, the outermost first. others: for each
    other variant a text: its cycles, or the condition that the call does not meet. copies: for each operand the cycles
    in which it is copied to the layout of the variant; None if it needs no copy. layouts: texts for a message about the
    layout of operands."""

    variant: KernelVariant | None
    cycles: int
    trips: tuple[int, ...]
    others: tuple[str, ...]
    copies: tuple[int | None, ...] = ()
    layouts: tuple[str, ...] = ()

    @property
    def loops(self) -> str:
        """The iterations of the loops around the call as text, such as `4 x 2`."""
        return by(self.trips)


def by(sizes: Sequence[object]) -> str:
    """Return sizes as text, such as `4 x 8`."""
    return " x ".join(map(str, sizes))


def _told(operand: TileOperand, layout: str, copy: int | None) -> str:
    """What a note tells of the layout of an operand, "" of one that lies by rows."""
    if copy is not None:
        return f"{operand.text} is copied to lie {lying(layout)}, {copy} cycles"
    if not operand.type.shape or layout == ROWS:
        return ""
    return f"{operand.text} {'arrives' if operand.arrives else 'lies'} {lying(layout)}, so it is not copied"


@dataclass(frozen=True)
class Datapath:
    """What computes and moves the tiles of a task.

    rates: what a kernel does in a clock cycle, by its name: multiply-adds for `matmul`, elements for others. `elements`
    is the rate of all kernels that have none of their own; without it they take one element, and a product one
    multiply-add, a cycle. `fabric` says how many of the multiply-adds of integers are made of LUTs. float_add: cycles
    of an addition of floats. variants: kernel variants; one that fits a call computes it in place of the kernel."""

    rates: Mapping[str, float] = field(default_factory=dict)
    float_add: int = 1
    variants: tuple[KernelVariant, ...] = ()

    def chosen(self, kernel: str, operands: Sequence[TileOperand], result: ElementType) -> VariantChoice | None:
        """Return the variant that computes a call of a kernel: of those that fit, the one with the fewest cycles, and
        of several the first. The choice has no variant if none fits; the result is None if the kernel has no variants.

        kernel: its name. operands: of the call. result: its type; that of a product is [.., rows, columns]."""
        variants = [variant for variant in self.variants if variant.kernel == kernel]
        if not variants:
            return None
        batch, sizes = 1, tuple(matrix(result.shape))
        if kernel == "matmul":
            batch = prod(result.shape[:-2])
            sizes = (result.shape[-2], operands[0].type.shape[-1], result.shape[-1])
        found: list[VariantChoice] = []
        others: list[str] = []
        for variant in variants:
            wrong = variant.misfit(operands, result, sizes)
            if wrong:
                others.append(f"{variant.name} does not fit: {wrong}")
                continue
            trips = tuple(size // one for size, one in zip(sizes, variant.tile, strict=True))
            copies = tuple(self._copy(operand, variant.layout(k)) for k, operand in enumerate(operands))
            calls = loop(batch * prod(trips), variant.latency, variant.interval).total
            cycles = calls + sum(filter(None, copies))
            told = (_told(operand, variant.layout(k), copies[k]) for k, operand in enumerate(operands))
            trips = (batch, *trips) if batch > 1 else trips
            found.append(VariantChoice(variant, cycles, trips, (), copies, tuple(filter(None, told))))
        if not found:
            return VariantChoice(None, 0, (), tuple(others))
        best = min(found, key=lambda one: one.cycles)
        fitting = ((one.variant, one.cycles) for one in found if one is not best)
        others += [f"{variant.name} fits, with {cycles} cycles" for variant, cycles in fitting if variant is not None]
        return best._replace(others=tuple(others))

    def _copy(self, operand: TileOperand, layout: str) -> int | None:
        """Return the cycles in which an operand is copied to a layout, None if it lies so, or arrives so. What arrives
        comes row by row, and makes no blocks."""
        block = block_of(layout)
        if not operand.type.shape or operand.layout == layout or (operand.arrives and block is None):
            return None
        return _pass(operand.type, self.copy_word(operand.type.shape, operand.turned, layout), 1).total

    def copy_word(self, shape: Sequence[int], turned: bool, layout: str) -> TileWord:
        """Return which elements of an operand are copied to another layout in one cycle, as rows and columns. shape: of
        the operand. turned: whether it is the transpose of a tile. layout: the new layout. A transposition moves fewer
        elements in a cycle: as many as the rate of `transpose` says."""
        block = block_of(layout)
        most = min(MOVED, self.lanes("transpose") if turned or layout == COLUMNS else MOVED)
        return block_word(shape, block, most) if block else word(shape, most)

    def lanes(self, kernel: str) -> float:
        """Return how many elements a kernel takes in a clock cycle: its rate. kernel: its name."""
        return self.rates.get(kernel, TURNED if kernel == "transpose" else self.rates.get(ELEMENTS, 1.0))

    def product_word(self, kind: ElementType, turned: int = 0) -> TileWord:
        """Return the sums of a product, as rows and columns of the result, to which one cycle adds.

        It has at most as many elements as the rate of `matmul` says. A floating-point sum can be added to again only
        some cycles later, so the word is small enough that other sums fill these cycles, where the result is large
        enough. Integer sums that are all registers can be added to in each cycle. kind: the type of the result. turned:
        as for `words.product_word`."""
        sums, rate = prod(kind.shape[-2:]), self.rates.get("matmul", 1.0)
        if sums <= MOVED:  # streams take all of it in a cycle, so it becomes registers, which no index tells apart
            return product_word(kind.shape, sums, turned)
        if kind.dtype in FLOATS or sums > min(rate, SUMS):
            rate = min(rate, max(1, sums // self._turns(kind.dtype)))
        return product_word(kind.shape, rate, turned)

    def product_steps(self, kind: ElementType, taken: TileWord, coming: ElementType | None) -> int:
        """Return how many multiply-adds of each sum a product does in one cycle. More than 1 if all its sums are
        integer registers, its rate has several multiply-adds for each sum, and a word of the right operand has several
        rows.

        kind: the type of the result. taken: the sums that one cycle adds to, from `product_word`. coming: the token
        type of the stream from which the right operand is taken while it comes (`words.comes_by_row`); None if it is a
        tile."""
        sums = prod(kind.shape[-2:])
        if coming is None or kind.dtype in FLOATS or taken.elements != sums:
            return 1
        return divisor(stream_word(coming.dtype, coming.shape).rows, self.rates.get("matmul", 1.0) / sums)

    def dots(self, kind: ElementType, coming: ElementType) -> tuple[TileWord, int]:
        """Return two values for a product whose right operand is the transpose of a tile that comes over a stream
        (`words.comes_by_column`): the sums that one cycle adds to, as rows and columns of the result, and how many
        products it adds to each.

        If a cycle takes a whole word of the stream, it can multiply several columns of it, and several rows of the left
        operand. kind: the type of the result. coming: the token type of the stream, [columns of the result, elements of
        a sum]."""
        rate, rows = self.rates.get("matmul", 1.0), prod(kind.shape[:-1])
        whole = stream_word(coming.dtype, coming.shape)
        steps = row_word((1, whole.columns), rate).columns
        columns = divisor(whole.rows, rate / steps) if steps == whole.columns else 1
        return TileWord(divisor(rows, rate / (steps * columns)) if columns == whole.rows else 1, columns), steps

    def fabric_columns(self, kind: ElementType, taken: TileWord, steps: int = 1) -> int:
        """Return how many columns of the sums that one cycle adds to are multiplied in LUTs; an even number, since of
        the other columns two share a multiplier. 0 for floats. kind: the type of the result. taken: the sums that one
        cycle adds to. steps: multiply-adds of each sum in a cycle."""
        columns = min(taken.columns, int(self.rates.get(FABRIC, 0) // (taken.rows * steps)))
        return 0 if kind.dtype in FLOATS else columns // 2 * 2

    def multiply_adds(self, kind: ElementType, coming: ElementType | None = None, turned: bool = False) -> int:
        """Return the multiply-adds of a product in a cycle, rounded up. kind: the type of the result [.., rows,
        columns]. coming: the token type of the stream over which the right operand comes, None if it is a tile. turned:
        whether the right operand is a transpose."""
        taken, steps = self.product_units(kind, coming, turned)
        dots = turned and coming is not None
        return steps * ceil(taken.elements / (1 if dots else self._interval_of(kind, taken)))

    def product_units(self, kind: ElementType, coming: ElementType | None, turned: bool) -> tuple[TileWord, int]:
        """Return the sums of a product that one cycle adds to, as rows and columns of the result, and the multiply-adds
        of each. kind, coming, turned: as for `multiply_adds`."""
        if turned and coming is not None:
            return self.dots(kind, coming)
        taken = self.product_word(kind)
        return taken, self.product_steps(kind, taken, coming)

    def row_word(self, kernel: str, shape: Sequence[int]) -> TileWord:
        """Return the elements that a kernel on whole rows, such as softmax or a sum, takes in a cycle, as rows and
        columns. kernel: its name. shape: of its operand."""
        return row_word(shape, min(self.lanes(kernel), MOVED))

    def product(
        self,
        kind: ElementType,
        depth: int,
        turned: bool = False,
        before: int = 0,
        coming: ElementType | None = None,
    ) -> LoopCycles:
        """Return the clock cycles of a matrix product. kind: the type of the result [.., rows, columns]. depth:
        products in each sum. turned: whether the right operand is read as the transpose of a tile. before: cycles in
        which an element of an operand is computed where it is read. coming: the token type of the stream over which the
        right operand comes, None if it is a tile."""
        if turned and coming is not None:
            taken, steps = self.dots(kind, coming)
            levels = ceil((steps.bit_length() - 1) / ADDITIONS)
            words = prod(kind.shape) // taken.elements
            return loop(words * (depth // steps), before + self._turns(kind.dtype) + levels)
        taken = self.product_word(kind, depth if turned else 0)
        words = prod(kind.shape[-2:]) // taken.elements
        together = self.product_steps(kind, taken, coming)
        step = before + self._turns(kind.dtype) + round(CHAINED * (together - 1))
        return loop(depth // together * words, step, self._interval_of(kind, taken)) * prod(kind.shape[:-2])

    def _interval_of(self, kind: ElementType, taken: TileWord) -> int:
        """Cycles between two steps of a product. What becomes registers is added to as if it were one word: integers in
        each cycle."""
        sums = prod(kind.shape[-2:])
        if kind.dtype not in FLOATS and sums == taken.elements:
            return 1
        return self._interval(kind.dtype, 1 if sums <= MOVED else sums // taken.elements)

    def rows(self, kernel: str, kind: ElementType) -> LoopCycles:
        """Return the clock cycles of a kernel on whole rows. kernel: softmax, layernorm or rmsnorm; `KeyError` for
        another. kind: the type of the operand."""
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
        return sum((self._combined(kind, taken, before, behind) for before, behind in sums), last)

    def reduction(
        self, kernel: str, kind: ElementType, axes: Sequence[int] | None, value: Unwritten | None = None
    ) -> LoopCycles:
        """Return the clock cycles of a sum or maximum along axes. kernel: its name. kind: the type of the operand.
        axes: of the operand, negative ones counted from the last; None for all. value: the operand if it is an
        expression that is not kept in a tile, else None. Raises `ValueError` for an axis that the operand does not
        have."""
        shape = list(kind.shape)
        if any(not -len(shape) <= axis < len(shape) for axis in axes or ()):
            raise ValueError(f"{kernel} along axes {axes} of {kind}")
        cycles, before = LoopCycles(), value.depth if value else 0
        for axis in sorted({a % len(shape) for a in (range(len(shape)) if axes is None else axes)}, reverse=True):
            taken = self.row_word(kernel, shape)
            part = ElementType(kind.dtype, tuple(shape))
            if axis == len(shape) - 1:
                cycles += self._combined(part, taken, before, 0)
            else:
                inner = prod(shape[axis + 1 :])
                outer = prod(shape[:axis])
                parts, groups = shape[axis], ceil(inner / taken.columns)
                cycles += (self._combining(parts, groups, before + 1) + loop(groups, 1)) * outer
            del shape[axis]
            before = 0
        return cycles

    def _combined(self, kind: ElementType, taken: TileWord, before: int, behind: int) -> LoopCycles:
        """Rows that are combined to a number each. before, behind: cycles of what is computed of an element, and of a
        row's result."""
        rows, columns = matrix(kind.shape)
        tree = taken.columns.bit_length() - 1
        parts, groups = columns // taken.columns, rows // taken.rows
        results = loop(groups, behind + 1).total  # one of each row, until a word has several rows
        return self._combining(parts, groups, before + tree + 1) + LoopCycles(results, results)

    def _combining(self, parts: int, groups: int, before: int) -> LoopCycles:
        """Cycles in which `parts` values of each group are combined pair by pair. What a level of the tree keeps goes
        to the next level only, so no step waits for the one before."""
        return loop(parts * groups, before + parts.bit_length() - 1)

    def _interval(self, dtype: str, sums: int) -> int:
        """Cycles from one step of a loop to the next. sums: those that the loop adds to, one in each step."""
        return ceil(self._turns(dtype) / sums)

    def _turns(self, dtype: str) -> int:
        """Cycles in which a sum is read, added to and written."""
        return (self.float_add if dtype in FLOATS else 0) + 2

    def elements(self, kind: ElementType, value: Unwritten) -> LoopCycles:
        """Return the clock cycles of the loop that computes an expression and writes it into a tile; none for a tile of
        one word. kind: the type of the tile. value: the expression."""
        taken = word(kind.shape, min(value.lanes, MOVED))
        return _pass(kind, taken, value.depth + 1)

    def got(self, kind: ElementType) -> int:
        """Return the clock cycles in which a tile comes over a stream; 0 for a tile of one word. kind: the type of the
        tile."""
        return _pass(kind, stream_word(kind.dtype, kind.shape), 1).total

    def put(self, kind: ElementType, value: Unwritten) -> LoopCycles:
        """Return the clock cycles in which a tile, or the value of an expression, is put on a stream; none for one
        word. kind: its type. value: the expression; `Unwritten()` for a tile."""
        whole = stream_word(kind.dtype, kind.shape)
        part = part_of(word(kind.shape, min(value.lanes, whole.elements)), whole)
        return _pass(kind, part, value.depth)

    def moved(self, kind: ElementType, axis: int) -> int:
        """Return the clock cycles in which a part of a tensor off the chip is read or written; 0 for one word of a
        memory port. kind: the type of the part. axis: elements along the last axis of the whole tensor."""
        return _pass(kind, TileWord(1, port_elements(kind.dtype, kind.shape[-1], axis)), 0).total
