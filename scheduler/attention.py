"""Attention as two products pipelined on chip (paper 4.3, mapping type D; contract section 2, attention wiring).

Q K^T runs on MME 0-3, softmax in MemC 0-3, which send the probabilities to MME 4 and 5 for P V; V comes from MemB2. A
slot is one step of the pipeline: Q K^T of a slot runs beside P V of the slot before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK_COLS
from ..isa.work import LengthField, Load, Multiply, Receive, Send, Softmax, Store
from . import attention_bias
from .binder import Binder, Drain, TileAccesses, multiply_as
from .graph import AttentionLayer
from .grid import most
from .mapping import PipelineLimits, pipeline_of
from .refusal import require
from .tile import TILE

SOON = 6
"""Number of loads of the next segment among which the last heads are stored: its MMEs take so many before they need
MemC."""
STORE_LAG = 3
"""Slots between the loads for a head's scores and the stores of its output: Q K^T, P V, then the results are stored."""


@dataclass
class AttentionSlot:
    """One step of the attention pipeline: rows of one or a few heads of a sequence.

    sequence: its number. head: the first of `heads` query heads. q, k: numbers of row blocks and of key blocks (128
    rows) of each head on the even and on the odd unit of a pair. start: number of the first row block within the
    sequence. alone: the sequence has one row block, and each MME serves a head of its own. tile: the tile that owns the
    stores of the output.
    """

    sequence: int
    head: int
    q: tuple[int, int]
    k: tuple[int, int]
    heads: int = 1
    start: int = 0
    alone: bool = False
    tile: TileAccesses = field(default_factory=TileAccesses)


def bind_attention(s: Binder, att: AttentionLayer) -> None:
    """Bind attention by mapping type D: Q K^T on the grid of scores, softmax in its results, P V on the product units
    behind them, pipelined over slots (paper section 4.3). Raises `UnsupportedError` like `check`."""
    check(s, att)

    def begin(slot: AttentionSlot, tile: TileAccesses) -> None:
        slot.tile = tile
        bind_slot_scores(s, att, slot, tile)

    pipelined(s, slots_of(s, att), begin, lambda slot, made, tile: bind_slot_values(s, att, slot, tile))


Step = TypeVar("Step")


def pipelined(
    s: Binder,
    steps: Iterable[Step],
    begin: Callable[[Step, TileAccesses], None],
    end: Callable[[Step, TileAccesses, TileAccesses], None],
) -> None:
    """Bind the steps of an attention, so that P V of each runs beside Q K^T of the next one.

    In each round, `begin` binds Q K^T of a step and `end` binds P V of the step before. Both append their loads and
    stores to the `TileAccesses` of the round, their last argument `now`: begin(step, now), end(step, begun, now).
    begun: the `TileAccesses` that `begin` got for this step. Adds a round more than there are steps to `s.tiles`. At
    least one step must store something."""
    first = len(s.tiles)
    before: tuple[Step, TileAccesses] | None = None
    for step in [*steps, None]:
        tile = TileAccesses(lag=STORE_LAG)
        s.tiles.append(tile)
        if step is not None:
            begin(step, tile)
        if before is not None:
            end(*before, tile)
        before = None if step is None else (step, tile)
    hurry(s.tiles[first:])


def hurry(tiles: Sequence[TileAccesses]) -> None:
    """Move the last stores of an attention forward, so that MemC 4 and 5 become free for the next segment.

    They receive the next segment's first tile while they store the last slot, but only after they stored the slot
    before it. tiles: those of the attention, at least one with stores; their `lag` and `within` are changed in place.
    """
    last = max(i for i, tile in enumerate(tiles) if tile.stores)
    for i, tile in enumerate(tiles):
        if i + tile.lag >= len(tiles):
            tile.lag, tile.within = (len(tiles) - i, SOON) if i == last else (len(tiles) - 1 - i, None)


def check(s: Binder, att: AttentionLayer, *, in_memory: bool = False) -> None:
    """Raises `UnsupportedError`, naming the layer, for an attention that the overlay cannot run: with more keys than
    the memories hold, or with lengths of sequences, a causal order or a mask for which it lacks the capability.
    in_memory: the scores go through off-chip memory (mapping type B), which holds more keys."""
    pipeline = pipeline_of(s.overlay)
    limits = PipelineLimits.of(s.overlay, pipeline)
    unit = s.overlay.by_unit[pipeline.scores.results[0][0]]
    for span in s.spans_of(att.k):
        rows = f"sequences of {span.rows} rows"
        if span.rows % TILE:
            require(att.place, f"{rows}, no multiple of {TILE}", s.overlay, "mask", unit)
        if span.blocks == 1:
            require(att.place, f"{rows}, fewer than {2 * TILE}", s.overlay, "row_softmax", unit)
    most_tiles = limits.stored if in_memory else limits.sent
    if s.seq_blocks_of(att.k) > most_tiles:
        rows = f"sequences of {max(s.net.rows_of(att.k))} rows"
        op = "store" if in_memory else "send"
        remedy = (
            f"no mapping type runs more than {limits.stored * TILE} rows"
            if s.seq_blocks_of(att.k) > limits.stored
            else f"mapping type B, through off-chip memory, runs up to {limits.stored * TILE} rows"
        )
        raise UnsupportedError(
            f"{att.place}: {rows}; capability {op} of {unit.kind} of overlay {s.overlay.name} takes at most "
            f"{most_tiles} key tiles, {most_tiles * TILE} rows; {remedy}"
        )
    if att.causal:
        require(att.place, "causal attention", s.overlay, "causal_mask", unit)
    if att.masked:
        require(att.place, "attention with a mask", s.overlay, "mask", unit)


def softmax_of(
    s: Binder, att: AttentionLayer, sequence: int, key_block: int, keys: int, alone: bool, row_block: int = 0
) -> Softmax:
    """The softmax of a memory that receives rows from row block `row_block` of a sequence on, and `keys` key blocks
    from block `key_block` on. A block has 128 rows.

    It masks the padding of the sequence, or the keys beyond its run-time length if `att.masked`. alone: this memory has
    all keys of its rows.
    """
    base = key_block * TILE
    columns: int | LengthField | None = max(0, min(keys * TILE, s.spans_of(att.k)[sequence].rows - base))
    if att.masked:
        columns = LengthField(sequence, base, keys * TILE)
    elif columns == keys * TILE:
        columns = None
    return Softmax(columns, alone, att.causal, row_block * TILE if att.causal else 0)


def slots_of(s: Binder, att: AttentionLayer) -> list[AttentionSlot]:
    """Divide the heads of all sequences into pipeline slots, in execution order. A slot has rows of one or a few heads
    of one sequence."""
    return [
        slot
        for sequence, (span, keys) in enumerate(zip(s.spans_of(att.q), s.spans_of(att.k), strict=True))
        for slot in (_single_slots if keys.blocks == 1 else _pair_slots)(
            s, sequence, (span.blocks, keys.blocks), att, s.schedule.heads_per_slot
        )
    ]


def _single_slots(
    s: Binder, sequence: int, blocks: tuple[int, int], att: AttentionLayer, max_heads: int
) -> Iterator[AttentionSlot]:
    """The slots of a sequence of one key block: each unit of the grid serves one row block of a head of its own. Two
    heads share a memory of the grid, and all share that of V. blocks: of rows and of keys."""
    limits = PipelineLimits.of(s.overlay, pipeline_of(s.overlay))
    step = min(max_heads, limits.values) if min(limits.rows, limits.keys) > 1 else 1
    for head in range(0, att.heads, step):
        for start in range(blocks[0]):
            yield AttentionSlot(
                sequence, head, heads=min(step, att.heads - head), alone=True, q=(1, 1), k=(1, 1), start=start
            )


def _pair_slots(
    s: Binder, sequence: int, blocks: tuple[int, int], att: AttentionLayer, max_heads: int
) -> Iterator[AttentionSlot]:
    """The slots of a sequence of more keys: row halves on the rows of the grid, key halves on its columns, as many row
    blocks as the memories hold. A slot has one head; more if a head has two row blocks, because the memory of V holds
    the values of all. A causal mask counts rows from the first of a memory, which therefore takes one head only.
    blocks: of rows and of keys."""
    limits = PipelineLimits.of(s.overlay, pipeline_of(s.overlay))
    most_heads = (
        min(max_heads, limits.rows, limits.keys, limits.values // 2) if blocks == (2, 2) and not att.causal else 1
    )
    step, rows = max(1, most_heads), 2 * limits.rows
    for head in range(0, att.heads, step):
        for start in range(0, blocks[0], rows):
            q = halved(min(rows, blocks[0] - start))
            yield AttentionSlot(
                sequence, head, heads=min(step, att.heads - head), q=q, k=halved(blocks[1]), start=start
            )


def halved(blocks: int) -> tuple[int, int]:
    """Divide a number of row or key blocks over the even and the odd unit of a pair; the even one gets one more of an
    odd number."""
    return -(-blocks // 2), blocks // 2


def bind_slot_scores(
    s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses, stored: bool = False
) -> None:
    """Append softmax(Q K^T) of a slot. stored: the result units then store the probabilities, rather than send them to
    the product units of P V. tile: receives the loads of Q and K."""
    if slot.alone:
        _scores_single(s, att, slot, tile, stored)
    else:
        _scores_pair(s, att, slot, tile, stored)


def _score_output(rows: int, keys: int, stored: bool) -> Drain:
    """How a memory stores or sends its scores."""
    return Store(TILE * rows, TILE * keys) if stored else Send(rows, keys)


def _scores_single(s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses, stored: bool) -> None:
    """Heads h, h+1 share the left memory of grid row 0, h+2, h+3 that of row 1; h, h+2 share the right memory of column
    0, h+1, h+3 that of column 1. Each goes to its own product unit."""
    grid = pipeline_of(s.overlay).scores
    n, row, col = slot.heads, s.spans_of(att.q)[slot.sequence].start + slot.start, slot.head
    first_key = s.spans_of(att.k)[slot.sequence].start
    units = [divmod(m, 2) for m in range(n)]
    _score_ops(s, att, [(unit, 1, 1) for unit in units])
    halves = [range(col + 2 * i, col + min(n, 2 * i + 2)) for i in range(2)]
    for i, heads in enumerate(halves):
        if heads and att.bias is not None:
            for j, head in enumerate(heads):
                attention_bias.send_bias(s, att, slot.sequence, i, [(head, slot.start)], [(j, 1)], tile)
    for i, heads in enumerate(halves):
        if heads:
            _queries(s, att, row, 1, heads, i, Send(len(heads), 1, 1), tile)
    for j in range(2):
        heads = range(col + j, col + n, 2)
        if heads:
            _keys(s, att, first_key, 1, heads, j, Send(1, len(heads), 1), tile)
    for j in range(2):
        s.route(grid.left_switch, [(grid.left[i], grid.products[i][h]) for i, h in units if h == j], 1)
    for i in range(2):
        s.route(grid.right_switch, [(grid.right[j], grid.products[h][j]) for h, j in units if h == i], 1)
    for i, j in units:
        s.turn(
            grid.results[i][j],
            Receive(_rounds(att), 1, 1, softmax_of(s, att, slot.sequence, 0, 1, alone=True, row_block=slot.start)),
            _score_output(1, 1, stored),
        )


def _scores_pair(s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses, stored: bool) -> None:
    grid = pipeline_of(s.overlay).scores
    row0, first_key = s.spans_of(att.q)[slot.sequence].start, s.spans_of(att.k)[slot.sequence].start
    q, k, n = slot.q, slot.k, slot.heads  # with several heads, q and k are one block each
    groups = [i for i in range(2) if q[i]]
    heads = range(slot.head, slot.head + n)
    _score_ops(s, att, [((i, j), q[i] * n, k[j]) for i in groups for j in range(2)])
    for i in groups if att.bias is not None else ():
        start = slot.start + (q[0] if i else 0)
        places = [(head, row) for row in range(start, start + q[i]) for head in heads]
        attention_bias.send_bias(s, att, slot.sequence, i, places, [(0, k[0]), (1, k[1])], tile)
    for i in groups:
        at = row0 + slot.start + (q[0] if i else 0)
        _queries(s, att, at, q[i], heads, i, Send(q[i] * n, 1, k[0]), tile)
    for j in range(2):
        at = first_key + (k[0] if j else 0)
        _keys(s, att, at, k[j], heads, j, Send(1, k[j] * n, q[0]), tile)
    for a in range(q[0]):
        active = [i for i in groups if a < q[i]]
        for halves, tiles in (((0, 1), k[1]), ((0,), k[0] - k[1])):  # only column 0 takes the odd key tile
            units = [(i, h) for i in active for h in halves]
            s.route(grid.left_switch, [(grid.left[i], grid.products[i][h]) for i, h in units], tiles * n)
            s.route(grid.right_switch, [(grid.right[h], grid.products[i][h]) for i, h in units], tiles * n)
    for i in groups:
        for j in range(2):
            softmax = softmax_of(s, att, slot.sequence, k[0] if j else 0, k[j], False, slot.start + (q[0] if i else 0))
            s.turn(
                grid.results[i][j],
                Receive(_rounds(att), q[i] * n, k[j], softmax),
                _score_output(q[i] * n, k[j], stored),
            )


def _rounds(att: AttentionLayer) -> int:
    """Number of partial sums that are added for a score: the product, and the bias if there is one."""
    return 1 if att.bias is None else 2


def _queries(
    s: Binder, att: AttentionLayer, row: int, rows: int, heads: range, i: int, send: Send, tile: TileAccesses
) -> None:
    """Append loads of Q into the left memory of grid row i, and its sends: `rows` row tiles from block `row` on, of
    each of `heads`, which are consecutive. tile: receives the loads."""
    grid = pipeline_of(s.overlay).scores
    if att.bias is None:
        tile.loads.append(s.blocks(att.q, row, rows, heads.start, len(heads), grid.left[i]))
    else:
        attention_bias.load_queries(s, att, row, rows, heads, grid.left[i], tile)
    s.turn(grid.left[i], Load(TILE * rows * len(heads), _k_columns(s, att), source=grid.activations), send)


def _keys(
    s: Binder, att: AttentionLayer, row: int, rows: int, heads: range, j: int, send: Send, tile: TileAccesses
) -> None:
    """Append loads of K into the right memory of grid column j, transposed, and its sends: `rows` key tiles from block
    `row` on, of each of `heads`. tile: receives the loads."""
    grid = pipeline_of(s.overlay).scores
    unit = grid.right[j]
    if att.bias is not None:
        attention_bias.load_keys(s, att, row, rows, heads, unit, tile)
    elif heads.step == 1:
        tile.loads.append(s.blocks(att.k, row, rows, heads.start, len(heads), unit))
    else:
        tile.loads += [s.blocks(att.k, row, rows, head, 1, unit) for head in heads]
    s.turn(unit, Load(_k_columns(s, att), TILE * rows * len(heads), True, grid.activations), send)


def _k_columns(s: Binder, att: AttentionLayer) -> int:
    """Columns of a tile of Q or K: those of one head, with a bias also those of its neighbour."""
    return s.overlay.head_columns * (1 if att.bias is None else 2)


def _score_ops(s: Binder, att: AttentionLayer, shapes: Sequence[tuple[tuple[int, int], int, int]]) -> None:
    """Append the ops for Q K^T of a slot. shapes: (grid row and column, row tiles, column tiles)."""
    if att.bias is not None:
        attention_bias.score_ops(s, shapes)
        return
    for unit, rows, columns in shapes:
        score_op(s, unit, rows * columns)


def score_op(s: Binder, unit: tuple[int, int], products: int) -> None:
    """Append `products` tile products, each over half of K, to a product unit. unit: its (grid row, grid column). Each
    product gives one tile, whatever head it is of, so that one op can count products of several heads: a new op begins
    only when the last one has as many as it can count. Raises like `pipeline_of`."""
    i, j = unit
    ops, most_products = s.ops(pipeline_of(s.overlay).scores.products[i][j]), most(s, "matmul", "depth")
    left = products
    while left:
        last, one = ops[-1] if ops else None, Multiply(depth=1, half_depth=True)
        room = 0
        if isinstance(last, Multiply) and last._replace(depth=1) == one:
            room = most_products - last.depth
        more = min(left, room or most_products)
        if room:
            assert isinstance(last, Multiply)
            ops[-1] = last._replace(depth=last.depth + more)
        else:
            ops.append(one._replace(depth=more))
        left -= more


def value_op(s: Binder, i: int, rows: int, keys: int) -> None:
    """Append P V for `rows` row blocks to the product unit behind grid row i: half of the columns, summed over `keys`
    key tiles. If the op before is equal, the number of its row groups is raised instead. Raises like `pipeline_of`."""
    ops = s.ops(pipeline_of(s.overlay).products[i])
    op = Multiply(depth=keys, rows=rows, half_columns=True, sums=True)
    joined = multiply_as(ops[-1] if ops else None, op, "row_groups", most(s, "matmul", "row_groups"))
    if joined is not None:
        ops.pop()
    ops.append(joined or op)


def bind_slot_values(s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses) -> None:
    """Append P V of a slot, P coming from the results of Q K^T. tile: receives the loads of V; `slot.tile` receives the
    stores."""
    if slot.alone:
        _values_single(s, att, slot, tile)
    else:
        _values_pair(s, att, slot, tile)


def load_values(s: Binder, rows: int, send: Send, load: bool = True) -> None:
    """Append the work of the memory of V: `rows` row tiles, loaded if `load` (otherwise a slot before holds them), and
    sent as `send` says. Raises like `pipeline_of`."""
    pipeline = pipeline_of(s.overlay)
    fill = Load(TILE * rows, s.overlay.head_columns, source=pipeline.scores.activations) if load else None
    s.turn(pipeline.values, fill, send)


def is_held(s: Binder, unit: str, item: int, parts: int) -> bool:
    """Return whether a slot of a memory already holds the data that an item needs, so that the item need not load them.
    unit: name of the memory. item: number of the item, from 0. parts: the items need this many different parts of data
    in turn, again and again; each item fills the slot behind that of the item before it."""
    slots = s.overlay.memory_of(unit).slots
    return item >= slots and slots % parts == 0


def _values_single(s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses) -> None:
    pipeline = pipeline_of(s.overlay)
    grid, n, col = pipeline.scores, slot.heads, slot.head
    row, first_key = s.spans_of(att.q)[slot.sequence].start + slot.start, s.spans_of(att.k)[slot.sequence].start
    for h in range(n):
        tile.loads.append(s.blocks(att.v, first_key, 1, col + h, 1, pipeline.values))
    load_values(s, n, Send(n, 1))
    units = [divmod(m, 2) for m in range(n)]
    for j in range(2):  # P of heads j and j+2, in lock step
        s.route(grid.left_switch, [(grid.results[i][h], pipeline.products[i]) for i, h in units if h == j], 1)
    for i in range(2):
        count = max(0, min(2, n - 2 * i))
        if not count:
            continue
        s.route(grid.right_switch, [(pipeline.values, pipeline.products[i])], count)
        for _ in range(count):
            value_op(s, i, 1, 1)
        unit = pipeline.results[i]
        s.turn(unit, Receive(1, count, 1), Store(TILE * count, BLOCK_COLS))
        slot.tile.stores.append(s.blocks(att.y, row, 1, col + 2 * i, count, unit, store=True))


def _values_pair(s: Binder, att: AttentionLayer, slot: AttentionSlot, tile: TileAccesses) -> None:
    pipeline = pipeline_of(s.overlay)
    grid, held = pipeline.scores, PipelineLimits.of(s.overlay, pipeline).values
    row0 = s.spans_of(att.q)[slot.sequence].start
    first_key, blocks, _ = s.spans_of(att.k)[slot.sequence]
    q, k, n = slot.q, slot.k, slot.heads
    groups = [i for i in range(2) if q[i]]
    parts = [(at, min(held, blocks - at)) for at in range(0, blocks, held)]
    repeats = 1 if len(parts) == 1 else q[0]
    for repeat in range(repeats):
        for part, (start, count) in enumerate(parts):
            load = not is_held(s, pipeline.values, repeat * len(parts) + part, len(parts))
            if load:
                for head in range(slot.head, slot.head + n):
                    tile.loads.append(s.blocks(att.v, first_key + start, count, head, 1, pipeline.values))
            times = q[0] if len(parts) == 1 else 1
            load_values(s, count * n, Send(count * n, 1, times), load)
    for a in range(q[0] * n):
        active = [i for i in groups if a < q[i] * n]
        for j in range(2):
            s.route(grid.left_switch, [(grid.results[i][j], pipeline.products[i]) for i in active], k[j])
        s.route(grid.right_switch, [(pipeline.values, pipeline.products[i]) for i in active], blocks)
    for i in groups:
        for _ in range(n):
            value_op(s, i, q[i], blocks)
        unit = pipeline.results[i]
        s.turn(unit, Receive(1, q[i] * n, 1), Store(TILE * q[i] * n, BLOCK_COLS))
        at = row0 + slot.start + (q[0] if i else 0)
        slot.tile.stores.append(s.blocks(att.y, at, q[i], slot.head, n, unit, store=True))
