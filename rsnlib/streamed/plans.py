"""Kernels: which tiles an operator takes and gives, in which order, with which memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import gcd, inf, prod

from ...base.element_types import BITS, BY_NUMPY, ElementType, whole_bytes
from ...isa.overlays.tasks.program import FABRIC
from ...streams.dataflow.graph import Dataflow, Edge, KernelNode
from ...streams.datapath import Datapath
from ...streams.orders.order import Axis, Order
from ...streams.orders.text import token_shape
from ...streams.words import MOVED, STREAM_BITS, row_word, stream_word, word
from .arrays import WEIGHTS, SharedArrays, arrays_of
from .knobs import PRODUCTS, Knobs, elements_beside, fit, fit_words
from .lengths import row_tiles
from .operators import Matrices, OperatorGraph, StreamOperator, vectors_of
from .pointwise import operations
from .sequences import as_order_of, common_tensor, row_units


@dataclass(frozen=True)
class KernelPlan:
    """How a kernel computes an operator: the loops of its task, the sizes of its tiles, and the orders of its streams.

    gets: the order of the tokens of each operand. put: the order of the tokens of the result. loops: how many times
    each of the kernel's loops is run, by name, outermost first. sizes: of its tiles in elements, by name: tm rows, tn
    columns, tk elements along a sum, width columns of a head. memory_bytes: bytes of its own memory. computed: shape of
    the tile that its units work on, in elements. beside: the order of each further result that it computes
    (`operators.BESIDE`).
    """

    gets: tuple[Order, ...]
    put: Order
    loops: Mapping[str, int]
    sizes: Mapping[str, int]
    memory_bytes: int
    computed: tuple[int, ...]
    beside: Mapping[StreamOperator, Order] = field(default_factory=dict)


SUMS = "i32"
"""The element type of sums of products of integers (`base.quantised.ACCUMULATOR_BITS`)."""

Loop = tuple[int, int]
"""Trips and step."""


def tiles(
    of: StreamOperator,
    tile: tuple[int, int],
    loops: list[Loop],
    *,
    shape: Matrices | None = None,
    head: int | None = None,
    row: int | None = None,
    column: int | None = None,
) -> Order:
    """Return an order of tiles of a result.

    of: the operator whose result it is. tile: (rows, columns) of a tile. loops: for each loop, outermost first, how
    many times it is run, and by how many elements it goes on each time. shape: the result seen as other matrices,
    (heads, rows, columns); None for its own shape. head, row, column: the index of the loop that goes along each axis;
    None for an axis with one tile. A tensor of one head has no axis for heads.
    """
    axes = (Axis(head), Axis(row), Axis(column))
    element = (1, *tile)
    first = 0 if (shape or of.shape)[0] > 1 else 1
    trips, steps = tuple(n for n, _ in loops), tuple(step for _, step in loops)
    return Order(element[first:], trips, steps, axes[first:], of.dtype)


def linear(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of a linear operator. Loops, outermost first: row tiles, column tiles, tiles along the sum; so
    each tile of the result is complete before the next one begins. With the knob `outward`, and more than one column
    tile: row tiles, tiles along the sum, column tiles; so a row of tiles is complete at the end of its row."""
    if x.operand("weight_scale") is not None:
        return _quantised_linear(x, knobs, unit)
    operand, weight = x.operands
    (_, m, depth), n = operand.shape, x.shape[2]
    tm, tn, tk = fit(unit, knobs.rows), fit(n, knobs.columns), fit(depth, knobs.depth)
    rows, columns, parts = row_tiles(x, m, tm), n // tn, depth // tk
    if knobs.outward and columns > 1:
        return KernelPlan(
            (
                tiles(operand, (tm, tk), [(rows, tm), (parts, tk)], row=0, column=1),
                tiles(weight, (tk, tn), [(rows, 1), (parts, tk), (columns, tn)], row=1, column=2),
            ),
            tiles(x, (tm, tn), [(rows, tm), (columns, tn)], row=0, column=1),
            {"rows": rows, "parts": parts, "columns": columns},
            {"tm": tm, "tn": tn, "tk": tk},
            whole_bytes(tm * n, x.dtype) + whole_bytes(tm * tk, operand.dtype),
            (tm, tn),
        )
    return KernelPlan(
        (
            tiles(operand, (tm, tk), [(rows, tm), (columns, 1), (parts, tk)], row=0, column=2),
            tiles(weight, (tk, tn), [(rows, 1), (columns, tn), (parts, tk)], row=2, column=1),
        ),
        tiles(x, (tm, tn), [(rows, tm), (columns, tn)], row=0, column=1),
        {"rows": rows, "columns": columns, "parts": parts},
        {"tm": tm, "tn": tn, "tk": tk},
        whole_bytes(tm * tn, x.dtype),
        (tm, tn),
    )


def _quantised_linear(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan of a linear operator with a quantised weight. Loops: row tiles, column tiles, groups of the weight, tiles
    along the sum of a group. Scales and zero points of a weight come once for each group of a tile of the result, those
    of rows once for each row tile."""
    (_, m, depth), n = x.operands[0].shape, x.shape[2]
    scale = x.operand("weight_scale")
    assert scale is not None
    groups = scale.shape[1]
    tm, tn, tk = fit(unit, knobs.rows), fit(n, knobs.columns), fit(depth // groups, knobs.depth)
    rows, columns, parts = row_tiles(x, m, tm), n // tn, depth // tk

    def get(name: str, operand: StreamOperator) -> Order:
        match name:
            case "x":
                return tiles(operand, (tm, tk), [(rows, tm), (columns, 1), (parts, tk)], row=0, column=2)
            case "weight":
                return tiles(operand, (tk, tn), [(rows, 1), (columns, tn), (parts, tk)], row=2, column=1)
            case "scale" | "zero":
                return tiles(operand, (tm, 1), [(rows, tm)], row=0)
        return tiles(operand, (1, tn), [(rows, 1), (columns, tn), (groups, 1)], row=2, column=1)

    orders = [get(*named) for named in zip(x.attributes["operand_names"], x.operands, strict=True)]
    sums = tm * tn if x.multiplies_integers else 0
    return KernelPlan(
        tuple(orders),
        tiles(x, (tm, tn), [(rows, tm), (columns, tn)], row=0, column=1),
        {"rows": rows, "columns": columns, "groups": groups, "parts": parts // groups},
        {"tm": tm, "tn": tn, "tk": tk},
        whole_bytes(tm * tn, x.dtype) + whole_bytes(sums, SUMS),
        (tm, tn),
    )


def array(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of a shared array of multipliers: for each row tile of a turn it takes the tiles of weights of its
    products in this turn. As the order of the weights says, all tiles of all turns come once for each row tile. Its
    sums are tiles of the rows, and of the columns of all its products."""
    shared: SharedArrays = x.attributes["arrays"]
    (tk, tn), (_, m, columns) = shared.tile, x.shape
    counts = [weight.shape[1] // tk for weight in x.operands]
    tm = fit(unit, knobs.rows)
    rows = row_tiles(x, m, tm)
    sums = SUMS if x.multiplies_integers else x.dtype
    return KernelPlan(
        tuple(tiles(y, (tk, tn), [(rows, 1), (n, tk)], row=1) for y, n in zip(x.operands, counts, strict=True)),
        tiles(replace(x, dtype=sums), (tm, tn), [(rows, tm), (columns // tn, tn)], row=0, column=1),
        {"rows": rows, "tiles": sum(counts)},
        {"tm": tm, "tn": tn, "tk": tk},
        whole_bytes(tm * tn, sums),
        (tm, tn),
    )


def epilogue(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of the epilogue of a product on shared arrays. Loops: row tiles, column tiles (each as wide as a
    tile of all its arrays together), groups of the weight. The left operand is sent to all arrays as often as the array
    needs it that needs it most often (`SharedArrays.rounds`)."""
    shared: SharedArrays = x.attributes["arrays"]
    product, turn = shared.product(x.name), shared.turn(x.name)
    (tk, each), m = shared.tile, x.shape[1]
    tm, tn = fit(unit, knobs.rows), each * product.count
    rows = row_tiles(x, m, tm)

    def get(name: str, operand: StreamOperator) -> Order:
        if name == "x":
            parts = product.groups * product.parts
            loops = [(rows, tm), (shared.rounds(turn), 1), (parts, tk)]
            return tiles(operand, (tm, tk), loops, row=0, column=2)
        if name.startswith(WEIGHTS):
            return tiles(operand, shared.tile, [(rows, 1), (operand.shape[1] // tk, tk)], row=1)
        if name == "weight_scale":
            loops = [(rows, 1), (product.columns, tn), (product.groups, 1)]
            return tiles(operand, (1, tn), loops, row=2, column=1)
        return tiles(operand, (tm, 1), [(rows, tm)], row=0)

    orders = [get(*named) for named in zip(x.attributes["operand_names"], x.operands, strict=True)]
    is_scaled = x.operand("weight_scale") is not None
    kept = whole_bytes(tm * tn, SUMS if is_scaled else x.dtype)
    return KernelPlan(
        tuple(orders),
        tiles(x, (tm, tn), [(rows, tm), (product.columns, tn)], row=0, column=1),
        {"rows": rows, "columns": product.columns, "groups": product.groups},
        {"tm": tm, "tn": tn},
        kept + (whole_bytes(tm * tn, x.dtype) if product.groups > 1 else 0),
        (tm, tn),
    )


def join(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of the columns of several products of equal width, side by side: for each row of tiles the tiles
    of the first product, then those of the second, and so on. The loop `columns` counts the column tiles of one
    product."""
    _, rows, columns = x.shape
    width = x.operands[0].shape[2]
    tm, tn = fit(unit, knobs.rows), fit(width, knobs.columns)
    count = row_tiles(x, rows, tm)
    put = tiles(x, (tm, tn), [(count, tm), (columns // tn, tn)], row=0, column=1)
    gets = (tiles(part, (tm, tn), [(count, tm), (width // tn, tn)], row=0, column=1) for part in x.operands)
    loops = {"rows": count, "columns": width // tn}
    return KernelPlan(tuple(gets), put, loops, {"tm": tm, "tn": tn}, 0, (tm, tn))


def _in_place(
    x: StreamOperator, tile: tuple[int, int], parts: tuple[StreamOperator, ...]
) -> tuple[tuple[Order, ...], Order]:
    """Orders of operands and of a result, row by row of tiles."""
    heads, rows, columns = x.shape
    loops = [(heads, 1), (row_tiles(x, rows, tile[0]), tile[0]), (columns // tile[1], tile[1])]
    if heads == 1:
        order = tiles(x, tile, loops[1:], row=0, column=1)
    else:
        order = tiles(x, tile, loops, head=0, row=1, column=2)
    return tuple(replace(order, dtype=part.dtype) for part in parts), order


def pointwise(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of an elementwise operator: tile by tile."""
    heads, rows, columns = x.shape
    tm, tn = fit(unit, knobs.rows), fit_words(columns, knobs.columns)
    gets, put = _in_place(x, (tm, tn), x.operands)
    loops = {"heads": heads, "rows": row_tiles(x, rows, tm), "columns": columns // tn}
    return KernelPlan(gets, put, loops, {"tm": tm, "tn": tn}, 0, (tm, tn))


def along_rows(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of softmax and norms: the kernel gathers a row of tiles, computes it, and puts it tile by tile. In
    a norm of each head, a tile has all columns of a head."""
    heads, rows, columns = x.shape
    whole = x.attributes.get("columns", columns)
    tm = fit(unit, knobs.rows)
    tn = whole if whole < columns else fit_words(columns, knobs.columns)
    gets, put = _in_place(x, (tm, tn), x.operands)
    loops = {"heads": heads, "rows": row_tiles(x, rows, tm), "columns": columns // tn}
    together = _together(loops, "columns" if whole < columns else "heads", knobs)
    sizes = {"tm": tm, "tn": tn, "together": together}
    taken = together * tm
    return KernelPlan(gets, put, loops, sizes, whole_bytes(taken * whole, x.operands[0].dtype), (taken, whole))


def _together(loops: Mapping[str, int], along: str, knobs: Knobs) -> int:
    """How many row tiles of heads a kernel takes together: those that follow each other. along: the loop over heads.
    In `columns` they lie side by side, else one behind another, and the innermost loop is theirs if each has one
    tile."""
    inner = [n for name, n in loops.items() if name != along and not (name in ("heads", "rows") and along != "heads")]
    return fit(loops[along], knobs.together) if all(n == 1 for n in inner) else 1


def quantise(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of the quantisation of rows to integers with scales and zero points: the kernel keeps a row of
    tiles until the scale of each row is known. If rows are quantised head by head and the heads lie side by side, a
    tile has all columns of a head."""
    heads, rows, width = x.shape
    columns: int = x.attributes["columns"]
    tm, tn = fit(unit, knobs.rows), columns if columns < width else fit_words(columns, knobs.columns)
    gets, put = _in_place(x, (tm, tn), x.operands)
    loops = {"heads": heads, "rows": row_tiles(x, rows, tm), "parts": width // columns, "columns": columns // tn}
    compared = tn * (1 if x.attributes["is_symmetric"] else 2) if columns > tn else 0
    together = _together(loops, "parts" if columns < width else "heads", knobs)
    sizes, taken = {"tm": tm, "tn": tn, "together": together}, together * tm
    return KernelPlan(gets, put, loops, sizes, whole_bytes(taken * (columns + compared), x.dtype), (taken, tn))


def _beside(plan: KernelPlan, beside: Sequence[StreamOperator]) -> dict[StreamOperator, Order]:
    """The orders of what a kernel that quantises rows makes."""
    tile = plan.sizes.get("tm", 1), 1
    return {y: replace(plan.put if y.op == "integers" else _in_place(y, tile, ())[1], dtype=y.dtype) for y in beside}


def scale_columns(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of attention weights whose columns are multiplied by the scales of the rows of values: tile by
    tile, with as many scales as a tile has columns."""
    heads, rows, keys = x.shape
    tm, tn = fit(unit, knobs.rows), fit(keys, knobs.columns)
    (of_weights,), put = _in_place(x, (tm, tn), x.operands[:1])
    key_heads = x.attributes["key_heads"]
    count = row_tiles(x, rows, tm)
    inner = [(heads // key_heads, 1), (count, 1), (keys // tn, tn)]
    of_scales = _of_heads(x.operands[1], key_heads, x.attributes["key_sequences"], (tn, 1), inner)
    loops = {"heads": heads, "rows": count, "columns": keys // tn}
    return KernelPlan((of_weights, of_scales), put, loops, {"tm": tm, "tn": tn}, 0, (tm, tn))


def by_heads(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of rotary positions, and of columns in another order: row tiles of each head. A table of rotary
    positions has one head, which serves all heads; it has the rows of all sequences, or the rows of one sequence, which
    serve all of them."""
    _, rows, columns = x.shape
    width: int = x.attributes["columns"]
    tm, heads = fit(unit, knobs.rows), columns // width
    count = row_tiles(x, rows, tm)
    order = tiles(x, (tm, width), [(count, tm), (heads, width)], row=0, column=1)
    gets = [order]
    for operand in x.operands[1:]:
        of_one = operand.shape[1]
        loops = [(rows // of_one, 1), (row_tiles(operand, of_one, tm), tm), (heads, 1)]
        gets.append(tiles(operand, (tm, width), loops, row=1))
    named = {"rows": count, "columns": heads}
    return KernelPlan(tuple(gets), order, named, {"tm": tm, "tn": width}, 0, (tm, width))


def _of_heads(x: StreamOperator, heads: int, sequences: int, tile: tuple[int, int], inner: list[Loop]) -> Order:
    """Tiles of as many columns as a head has, head by head: from heads side by side in the columns of a matrix for each
    sequence. heads: of all sequences. inner: the loops inside those over sequences and heads; the last one drives the
    rows."""
    each = heads // sequences
    rows, step = inner[-1]
    shape = sequences, rows * step, each * tile[1]
    loops = [(sequences, 1), (each, tile[1]), *inner]
    return tiles(x, tile, loops, shape=shape, head=0, row=1 + len(inner), column=1)


def scores(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of scores: for each head and row tile of queries, a product with all tiles of keys. The heads of a
    group read the same keys, one after the other."""
    heads, rows, columns = x.shape
    key_heads, width = x.attributes["key_heads"], x.attributes["columns"]
    tm, tn = fit(rows, knobs.rows), fit(columns, knobs.columns)
    m, n, group = row_tiles(x, rows, tm), columns // tn, heads // key_heads
    of_rows, of_keys = [(m, tm)], [(group, 1), (m, 1), (n, tn)]

    def get(name: str, operand: StreamOperator) -> Order:
        match name:
            case "mask":
                return _of_mask(operand, heads, x.attributes["mask"], (tm, tn), [(m, tm), (n, tn)])
            case "keys" | "other_scale" | "other_zero":
                tile = tn, width if name == "keys" else 1
                return _of_heads(operand, key_heads, x.attributes["key_sequences"], tile, of_keys)
        tile = tm, width if name == "queries" else 1
        return _of_heads(operand, heads, x.attributes["sequences"], tile, of_rows)

    gets = [get(*named) for named in zip(x.attributes["operand_names"], x.operands, strict=True)]
    _, put = _in_place(x, (tm, tn), ())
    named = {"heads": heads, "rows": m, "columns": n}
    sizes = {"tm": tm, "tn": tn, "width": width}
    return KernelPlan(tuple(gets), put, named, sizes, whole_bytes(tm * width, types_of(x)[0]), (tm, tn))


def _of_mask(
    mask: StreamOperator, heads: int, of: tuple[int, int, int], tile: tuple[int, int], inner: list[Loop]
) -> Order:
    """Tiles of a mask, for each head. heads: of all sequences. of: the sequences of the scores, and those and the heads
    of each that the mask tells apart, 1 if it serves all."""
    sequences, apart, heads_apart = of
    each = heads // sequences
    if mask.shape[0] == heads:
        return tiles(mask, tile, [(heads, 1), *inner], head=0, row=1, column=2)
    head = 0 if apart > 1 else 1 if heads_apart > 1 else None
    return tiles(mask, tile, [(sequences, 1), (each, 1), *inner], head=head, row=2, column=3)


def attend(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of weights times values: for each head and row tile the sum over all tiles of values. The heads of
    a sequence are put side by side."""
    weights = x.operands[0]
    heads, rows, keys = weights.shape
    key_heads, width = x.attributes["key_heads"], x.attributes["columns"]
    tm, tn = fit(rows, knobs.rows), fit(keys, knobs.columns)
    m, n, group = row_tiles(x, rows, tm), keys // tn, heads // key_heads
    (of_weights,), _ = _in_place(weights, (tm, tn), (weights,))
    of_rows = [_in_place(operand, (tm, 1), (operand,))[0][0] for operand in x.operands[2:]]
    inner = [(group, 1), (m, 1), (n, tn)]
    of_values = _of_heads(x.operands[1], key_heads, x.attributes["key_sequences"], (tn, width), inner)
    put = _of_heads(x, heads, x.attributes["sequences"], (tm, width), [(m, tm)])
    named = {"heads": heads, "rows": m, "parts": n}
    sizes = {"tm": tm, "tn": tn, "width": width}
    sums = whole_bytes(tm * width, SUMS if x.multiplies_integers else x.dtype)
    return KernelPlan((of_weights, of_values, *of_rows), put, named, sizes, sums, (tm, width))


def append(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of a cache with new rows behind it: for each head the rows of the cache, then the new rows. A tile
    has as many rows side by side as a stream moves in a cycle. A tile with rows of one operand only is put as it comes.
    If one tile has rows of both, the kernel keeps that tile and those behind it."""
    heads, rows, width = x.shape
    before, _ = x.attributes["rows"]
    (first, second), (of_first, of_second) = x.operands, x.attributes["sequences"]
    stored, new = prod(first.shape[:2]) // of_first, prod(second.shape[:2]) // of_second
    tm = fit(rows if first.is_memory else gcd(rows, stored), max(1, STREAM_BITS // BITS[x.dtype] // width))
    whole, cut = divmod(before, tm)
    through = not cut and before + new == rows
    tn = tm if through else fit(new, knobs.rows)
    got = whole + (cut > 0) if first.is_memory else stored // tm
    gets = (
        _of_heads(first, heads, of_first, (tm, width), [(got, tm)]),
        _of_heads(second, heads, of_second, (tn, width), [(new // tn, tn)]),
    )
    put = tiles(x, (tm, width), [(heads, 1), (rows // tm, tm)], head=0, row=1)
    kept = 0 if through else max(rows - whole * tm, cut + new)
    named = {"heads": heads, "before": whole, "got": got, "new": new // tn, "tiles": rows // tm - whole}
    sizes = {"tm": tm, "tn": tn, "width": width, "cut": cut, "kept": kept}
    return KernelPlan(gets, put, named, sizes, whole_bytes(kept * width, x.dtype), (tm, width))


def replace_rows(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of a cache with rows replaced: for each head first the new rows, which the kernel keeps, then the
    tiles of the cache, in which it puts them. The tiles are those that attention reads, if both kernels have the same
    knobs."""
    heads, width = x.attributes["heads"], x.attributes["columns"]
    of_cache, of_new = x.attributes["sequences"]
    capacity, new = x.shape[1], prod(x.operands[1].shape[:2]) // of_new
    tm, tn = fit(capacity, knobs.columns), fit(new, knobs.rows)
    count = row_tiles(x.operands[1], new, tn)
    put = _of_heads(x, heads, of_cache, (tm, width), [(capacity // tm, tm)])
    gets = put, _of_heads(x.operands[1], heads, of_new, (tn, width), [(count, tn)])
    named = {"heads": heads, "tiles": capacity // tm, "new": count}
    sizes = {"tm": tm, "tn": tn, "width": width}
    return KernelPlan(gets, put, named, sizes, whole_bytes(new * width, x.operands[1].dtype), (tm, width))


def select(x: StreamOperator, knobs: Knobs, unit: int) -> KernelPlan:
    """Plan (`PLANS`) of rows at positions: the kernel takes all tiles of the operand, and keeps a row of tiles and the
    wanted rows; then it puts the wanted rows."""
    (operand,) = x.operands
    _, count, width = x.shape
    rows = operand.shape[1]
    tm, tn = fit(rows, knobs.rows), fit(width, knobs.columns)
    tall = row_tiles(operand, rows, tm)
    get = tiles(operand, (tm, tn), [(tall, tm), (width // tn, tn)], row=0, column=1)
    put = tiles(x, (count, tn), [(width // tn, tn)], column=0)
    named, sizes = {"rows": tall, "columns": width // tn}, {"tm": tm, "tn": tn}
    return KernelPlan((get,), put, named, sizes, whole_bytes((tm + count) * width, x.dtype), (count, tn))


def new_rows(x: StreamOperator, plan: KernelPlan) -> Order:
    """Return the order in which a kernel that replaces rows of a cache puts the new rows on the stream to the task that
    stores them: tiles of a tensor (sequences, new rows, columns of all heads of a sequence), sequence by sequence, head
    by head. x: the operator. plan: its plan."""
    heads, width = x.attributes["heads"], x.attributes["columns"]
    sequences, tn, new = x.attributes["sequences"][0], plan.sizes["tn"], plan.loops["new"]
    each = heads // sequences
    loops = [(sequences, 1), (each, width), (new, tn)]
    shape = sequences, new * tn, each * width
    return tiles(x.operands[1], (tn, width), loops, shape=shape, head=0, row=2, column=1)


PLANS: Mapping[str, Callable[[StreamOperator, Knobs, int], KernelPlan]] = {
    "linear": linear,
    "array": array,
    "epilogue": epilogue,
    "join": join,
    "pointwise": pointwise,
    "quantise": quantise,
    "scale_columns": scale_columns,
    "softmax": along_rows,
    "layernorm": along_rows,
    "rmsnorm": along_rows,
    "rotary": by_heads,
    "turn": by_heads,
    "scores": scores,
    "attend": attend,
    "append": append,
    "replace": replace_rows,
    "select": select,
}
"""The plan of each operator's kernel: called with the operator, its own knobs, and its unit of rows, which the rows of
a tile divide (`row_units`). It returns how the kernel cuts the operator into tiles."""


def puts_of(x: StreamOperator, plan: KernelPlan) -> dict[StreamOperator, Order]:
    """Return the order of each result of a kernel, by the operator of the result: first its own, then its further
    results. x: the operator of the kernel. plan: its plan."""
    return {x: plan.put, **plan.beside}


def planned(
    graph: OperatorGraph, knobs: Knobs, carried: Mapping[str, str] | None = None
) -> dict[StreamOperator, KernelPlan]:
    """Return the plan of each operator of a graph that has a kernel, and of each shared array. All kernels at the
    streams of a result have orders of one and the same tensor.

    carried: for layers that a machine goes through: results that take the place of tensors off the chip in the next
    layer. By the name of each such tensor, the name of the operator of the result; None without layers. Raises
    `ProgramError` for knobs of operators that the graph does not have, and `UnsupportedError` for kernels that cut the
    rows of a result into different sequences.
    """
    arrays = arrays_of(graph.kernels)
    knobs.check_names([x.name for x in (*graph.kernels, *arrays)])
    units = row_units(graph)
    for of_array, epilogues in arrays.items():  # all have the same tiles of rows
        common = reduce(gcd, (units[x] for x in epilogues))
        units |= dict.fromkeys((of_array, *epilogues), common)
    plans = {x: PLANS[x.op](x, knobs.at(x.name), units.get(x, x.shape[1])) for x in graph.kernels}
    plans = {x: replace(plan, beside=_beside(plan, graph.beside(x))) for x, plan in plans.items()}
    ends = {y: [(x.name, put)] for x, plan in plans.items() for y, put in puts_of(x, plan).items()}
    given = {x: x for x in ends}
    of_names = {x.name: x for x in plans}
    given |= {x: of_names[carried[x.name]] for x in graph.operators if carried and x.name in carried}
    for x, plan in plans.items():
        for operand, get in zip(x.operands, plan.gets, strict=True):
            if operand in given:
                ends[given[operand]].append((x.name, get))
    tensors = {x: common_tensor(x, orders) for x, orders in ends.items()}
    found = {
        x: replace(
            plan,
            put=as_order_of(plan.put, tensors[x]),
            beside={y: as_order_of(put, tensors[y]) for y, put in plan.beside.items()},
            gets=tuple(
                as_order_of(get, tensors[given[operand]]) if operand in given else get
                for operand, get in zip(x.operands, plan.gets, strict=True)
            ),
        )
        for x, plan in plans.items()
    }
    return found | {x: PLANS[x.op](x, knobs.at(x.name), units[x]) for x in arrays}


def dataflow(plans: Mapping[StreamOperator, KernelPlan]) -> Dataflow:
    """Return the dataflow graph of planned kernels: its nodes are the kernels, its edges the streams between them. A
    kernel loads its operands off the chip by itself, so there are no nodes for these. Shared arrays are no nodes
    either, because the products that share them may lie in several groups. plans: of all kernels, as `planned` returns
    them."""
    nodes, edges = [], []
    for x, plan in plans.items():
        if x.op == "array":
            continue
        nodes.append(node_of(x, plan))
        for k, operand in enumerate(x.operands):
            if not operand.is_memory:
                put = puts_of(operand.kernel, plans[operand.kernel])[operand]
                edges.append(Edge(operand.kernel.name, x.name, put, plan.gets[k], k))
    return Dataflow.of(nodes, edges)


def node_of(x: StreamOperator, plan: KernelPlan) -> KernelNode:
    """Return a kernel as a node of a dataflow graph, without its times. x: its operator. plan: its plan."""
    attributes: dict[str, object] = {"shape": x.shape, **plan.sizes}
    if x.op in PRODUCTS:
        attributes |= {"types": types_of(x), "steps": steps_of(x, plan)}
    if x.op == "pointwise":
        attributes["operations"] = operations(x.attributes["expression"])
    if x.op == "epilogue":
        attributes["scaled"] = x.operand("weight_scale") is not None
    vectors = sum(whole_bytes(v.size, BY_NUMPY[v.dtype.name]) for v in vectors_of(x).values())
    return KernelNode(x.name, x.op, attributes, plan.memory_bytes + vectors)


def types_of(x: StreamOperator) -> tuple[str, str]:
    """Return the element types of the two operands of a product, as it multiplies them, such as i8 and i4; i16 for
    integers from which zero points are subtracted. A weight that the kernel dequantises has the type that it comes
    in."""
    if x.op == "array":
        return x.attributes["arrays"].types  # type: ignore[no-any-return]
    left, right = x.operands[0].dtype, x.operands[1].dtype
    if x.multiplies_integers:
        zeros = ["zero", "weight_zero"] if x.op == "linear" else ["left_zero", "other_zero"]
        left, right = (
            "i16" if x.attributes.get(zero) or x.operand(zero) else dtype
            for zero, dtype in zip(zeros, (left, right), strict=True)
        )
    return left, right


def units_of(x: StreamOperator, plan: KernelPlan, float_add: int, most: float) -> int:
    """Return how many multiply-adds (of a product) or elements (of another kernel) a kernel computes in a clock cycle.
    x: its operator. plan: its plan. float_add: clock cycles of an addition of floats on the device. most: the number
    that its knobs allow."""
    if x.op in PRODUCTS:
        sums = SUMS if x.multiplies_integers else x.dtype
        kind = ElementType(sums, plan.computed)
        return Datapath({"matmul": most}, float_add).multiply_adds(kind, _coming(x, plan), x.op == "scores")
    if x.op in ("append", "replace", "join", "select"):  # they move tiles, and compute nothing
        return word(plan.computed, MOVED).elements
    if x.op in ("softmax", "layernorm", "rmsnorm", "quantise"):
        return row_word(plan.computed, min(most, MOVED)).elements
    # Results are computed where they are put on a stream: by words of the stream, or parts of them.
    return word(stream_word(plan.put.dtype, token_shape(plan.put)), min(most, MOVED)).elements


def rates(x: StreamOperator, plan: KernelPlan, knobs: Knobs, float_add: int) -> dict[str, int]:
    """Return the rates of a kernel per clock cycle, as `Datapath.rates` has them. A product has "matmul":
    multiply-adds; "fabric": how many of them, of integers, are in LUTs; and "elements": elements of sums, biases and
    masks (`ADDERS`). Another kernel has "elements": the elements that it computes. knobs: of the operator. float_add:
    as for `units_of`."""
    units = units_of(x, plan, float_add, knobs.lanes_of(x.name, x.op))
    if x.op in PRODUCTS:
        fabric = fabric_of(x, plan, units, knobs.fabric)
        of_fabric = {FABRIC: fabric} if fabric else {}
        return {
            "matmul": units,
            **of_fabric,
            "elements": beside(x, plan, units) or MOVED,  # what computes no element moves tiles
        }
    return {"elements": units}


def beside(x: StreamOperator, plan: KernelPlan, units: int) -> int:
    """Return how many elements of sums, scales, biases and masks a product computes in a cycle beside its multiply-adds
    (`elements_beside`); 0 for an array of integers, which only adds up. units: its multiply-adds in a cycle."""
    if x.op == "array" and x.multiplies_integers:
        return 0
    return elements_beside(types_of(x), plan.sizes["tm"], units, steps_of(x, plan))


def fabric_of(x: StreamOperator, plan: KernelPlan, units: int, most: int) -> int:
    """Return how many multiply-adds of a product are in LUTs; 0 for anything but a product of integers. units: its
    multiply-adds in a cycle. most: how many its knob `fabric` allows."""
    if not (x.op in PRODUCTS and x.multiplies_integers):
        return 0
    path, kind = Datapath({"matmul": units, FABRIC: most}), ElementType(SUMS, plan.computed)
    taken, steps = path.product_units(kind, _coming(x, plan), x.op == "scores")
    return path.fabric_columns(kind, taken, steps) * taken.rows * steps


def _coming(x: StreamOperator, plan: KernelPlan) -> ElementType | None:
    """The tiles of weights, keys or values that a product of integers takes as they come; None for other products, and
    for those with zero points, which are subtracted first."""
    zero = "weight_zero" if x.op == "linear" else "other_zero"
    has_zero = x.op != "array" and (x.operand(zero) is not None or bool(x.attributes.get(zero)))
    if not x.multiplies_integers or has_zero:
        return None
    dtype = types_of(x)[1] if x.op == "array" else x.operands[1].dtype
    rows, columns = ("tn", "width") if x.op in ("scores", "attend") else ("tk", "tn")
    return ElementType(dtype, (plan.sizes[rows], plan.sizes[columns]))


def steps_of(x: StreamOperator, plan: KernelPlan) -> float:
    """Return how many multiply-adds of each sum there are for each pass that scales the sums of a tile, of a linear
    product of integers. The sums of each group of the weight are scaled in a pass and added up; with several groups,
    one more pass scales the total. Returns infinity for an array of integers, which scales nothing, and 0 for other
    products."""
    if x.op == "array" and x.multiplies_integers:
        return inf
    if x.op != "linear" or not x.multiplies_integers:
        return 0
    groups = plan.loops["groups"]
    return x.operands[0].shape[2] / (groups + 1 if groups > 1 else 1)


def multiply_adds(x: StreamOperator) -> int:
    """Return the multiply-adds of a kernel in an execution; 0 for what is no product."""
    match x.op:
        case "linear":
            return prod(x.shape) * x.operands[0].shape[2]
        case "array":
            return x.shape[1] * prod(x.operands[0].shape)
        case "scores":
            return prod(x.shape) * int(x.attributes["columns"])
        case "attend":
            return prod(x.shape) * x.operands[0].shape[2]
    return 0
