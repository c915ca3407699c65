"""Attention as two products pipelined on chip (paper 4.3, mapping type D; contract section 2, attention wiring).

Q K^T runs on MME 0-3, softmax in MemC 0-3, which send the probabilities to MME 4 and 5 for P V; V comes from MemB2. A
slot is one step of the pipeline: Q K^T of a slot runs beside P V of the slot before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK_ROWS
from ..isa.overlays.xnn import formats as f
from . import bias
from .counts import MAX_A_ITER, MAX_K_ITER
from .graph import AttentionLayer
from .kernel_builder import KernelBuilder, LengthField, WorkItem
from .order import Tile

SOON = 6
"""Number of loads of the next segment among which the last heads are stored: its MMEs take so many before they need
MemC."""
MAX_SENT = 6
"""Largest number of key tiles that a MemC pair can send: three each."""
STORE_LAG = 3
"""Slots between the loads for a head's scores and the stores of its output: Q K^T, P V, then MemC 4 and 5 store."""


@dataclass
class Slot:
    """One step of the attention pipeline: rows of one or a few heads of a sequence.

    head: first of `heads` heads. q, k: row blocks and key blocks of each head on the even and on the odd unit of a
    pair. start: first row block within the sequence. alone: the sequence has one row block, and each MME serves a head
    of its own. tile: the tile that owns the stores of the output.
    """

    sequence: int
    head: int
    q: tuple[int, int]
    k: tuple[int, int]
    heads: int = 1
    start: int = 0
    alone: bool = False
    tile: Tile = field(default_factory=Tile)


def lower_attention(s: KernelBuilder, att: AttentionLayer) -> None:
    """Lower attention by mapping type D: Q K^T on MME 0-3, softmax in MemC 0-3, P V on MME 4 and 5, pipelined over
    slots (section 4.3). Raises `UnsupportedError` like `check`."""
    check(s, att)
    slots = slots_of(s, att)
    before: Slot | None = None
    first = len(s.tiles)
    for slot in [*slots, None]:  # P V of a slot runs beside Q K^T of the next one
        tile = Tile(lag=STORE_LAG)
        s.tiles.append(tile)
        if slot is not None:
            slot.tile = tile
            lower_slot_scores(s, att, slot, tile)
        if before is not None:
            lower_slot_values(s, att, before, tile)
        before = slot
    hurry(s.tiles[first:])


def hurry(tiles: Sequence[Tile]) -> None:
    """Move the last stores of an attention forward, so that MemC 4 and 5 become free for the next segment.

    They receive the next segment's first tile while they store the last slot, but only after they stored the slot
    before it. tiles: those of the attention; their `lag` and `within` are changed in place.
    """
    last = max(i for i, tile in enumerate(tiles) if tile.stores)
    for i, tile in enumerate(tiles):
        if i + tile.lag >= len(tiles):
            tile.lag, tile.within = (len(tiles) - i, SOON) if i == last else (len(tiles) - 1 - i, None)


def check(s: KernelBuilder, att: AttentionLayer, max_tiles: int = MAX_SENT) -> None:
    """Raises `UnsupportedError`, naming the layer, for attention that the overlay cannot run. max_tiles: largest number
    of key tiles that a MemC pair can pass on."""
    if not s.extended:
        for span in s.spans:
            rows = f"{att.place}: sequences of {span.rows} rows"
            if span.rows % BLOCK_ROWS:
                raise UnsupportedError(
                    f"{rows}; overlay {s.overlay.name} has no masks and needs a multiple of {BLOCK_ROWS} rows"
                )
            if span.blocks == 1:
                least = 2 * BLOCK_ROWS
                raise UnsupportedError(
                    f"{rows}; overlay {s.overlay.name} splits the keys over two MemC and needs at least {least} rows"
                )
    if s.seq_blocks > max_tiles:
        rows = f"{att.place}: sequences of {max(s.net.rows)} rows"
        remedy = (
            "mapping type B, through DDR, runs up to 1024 rows"
            if max_tiles == MAX_SENT
            else "longer sequences need MemC with larger buffers"
        )
        raise UnsupportedError(
            f"{rows}; a MemC pair feeds at most {max_tiles} key tiles, {max_tiles * BLOCK_ROWS} rows; {remedy}"
        )
    if att.causal and not s.extended:
        raise UnsupportedError(f"{att.place}: causal attention; overlay {s.overlay.name} has no masks")
    if att.masked and not s.extended:
        raise UnsupportedError(f"{att.place}: attention with a mask; overlay {s.overlay.name} has no masks")


def mask_of(
    s: KernelBuilder, att: AttentionLayer, sequence: int, key_block: int, keys: int, alone: bool, row_block: int = 0
) -> dict[str, Any]:
    """The softmax registers of a MemC that receives rows from `row_block` on and `keys` key blocks from `key_block` on.

    They mask the padding of the sequence, or the keys beyond its run-time length if `att.masked`. alone: this MemC has
    all keys of its rows. Empty for the base machine, which has no masks.
    """
    if not s.extended:
        return {}
    base = key_block * BLOCK_ROWS
    cols: Any = max(0, min(keys * BLOCK_ROWS, s.spans[sequence].rows - base))
    if att.masked:
        cols = LengthField(sequence, base, keys * BLOCK_ROWS)
    elif cols == keys * BLOCK_ROWS:
        cols = 1023
    out = {"softmax_cols": cols, "max_sub": 1, "alone": int(alone)}
    return out | {"causal": 1, "offset": row_block * BLOCK_ROWS} if att.causal else out | {"causal": 0}


def slots_of(s: KernelBuilder, att: AttentionLayer) -> list[Slot]:
    """Divide the heads of all sequences into pipeline slots, in execution order."""
    return [
        slot
        for sequence, span in enumerate(s.spans)
        for slot in (_single_slots if span.blocks == 1 else _pair_slots)(
            sequence, span.blocks, att, s.schedule.heads_per_slot
        )
    ]


def _single_slots(sequence: int, blocks: int, att: AttentionLayer, max_heads: int) -> Iterator[Slot]:
    """The slots of a sequence of one row block: each of MME 0-3 serves a head of its own."""
    for head in range(0, att.heads, max_heads):
        yield Slot(sequence, head, heads=min(max_heads, att.heads - head), alone=True, q=(1, 1), k=(1, 1))


def _pair_slots(sequence: int, blocks: int, att: AttentionLayer, max_heads: int) -> Iterator[Slot]:
    """The slots of a longer sequence: row halves on MemA0 and MemA1, key halves on MemB0 and MemB1, at most four row
    blocks. A slot has one head; two if a head has two row blocks, because MemB2 holds the values of both. A causal mask
    counts rows from the first of a MemC, which therefore takes one head only."""
    step = min(max_heads, 2) if blocks == 2 and not att.causal else 1
    for head in range(0, att.heads, step):
        for start in range(0, blocks, 4):
            q = halved(min(4, blocks - start))
            yield Slot(sequence, head, heads=min(step, att.heads - head), q=q, k=halved(blocks), start=start)


def halved(blocks: int) -> tuple[int, int]:
    """Divide row or key blocks over the even and the odd unit of a pair; the even one gets the odd block."""
    return -(-blocks // 2), blocks // 2


def lower_slot_scores(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile, stored: bool = False) -> None:
    """Append softmax(Q K^T) of a slot. MemC 0-3 then store the probabilities if `stored`, else send them to MME 4 and
    5. tile: receives the loads."""
    if slot.alone:
        _scores_single(s, att, slot, tile, stored)
    else:
        _scores_pair(s, att, slot, tile, stored)


def _score_output(rows: int, keys: int, stored: bool) -> dict[str, Any]:
    """The uOP fields by which a MemC stores or sends its scores."""
    if stored:
        return {"store": 1, "dim1": BLOCK_ROWS * rows, "dim2": BLOCK_ROWS * keys}
    return {"send": 1, "send_a": rows, "send_b": 1, "send_k": keys}


def _scores_single(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile, stored: bool) -> None:
    """Heads h, h+1 share MemA0, h+2, h+3 MemA1; h, h+2 share MemB0, h+1, h+3 MemB1. Each goes to its own MME."""
    n, row, col = slot.heads, s.spans[slot.sequence].start, slot.head
    _score_ops(s, att, [(m, 1, 1) for m in range(n)])
    halves = [range(col + 2 * i, col + min(n, 2 * i + 2)) for i in range(2)]
    for i, heads in enumerate(halves):
        if heads and att.bias is not None:
            for m, head in enumerate(heads, 2 * i):
                bias.send_bias(s, att, slot.sequence, i, [(head, 0)], [(m, 1)], tile)
    for i, heads in enumerate(halves):
        if heads:
            _queries(s, att, row, 1, heads, i, {"send": 1, "acc_a": len(heads), "acc_b": 1}, tile)
    for j in range(2):
        heads = range(col + j, col + n, 2)
        if heads:
            _keys(s, att, row, 1, heads, j, {"send": 1, "acc_a": 1, "acc_b": len(heads)}, tile)
    for j in range(2):
        s.route("MeshA", [f"a{m // 2}_{m}" for m in range(j, n, 2)], 1)
    for i in range(2):
        s.route("MeshB", [f"b{m % 2}_{m}" for m in range(2 * i, min(2 * i + 2, n))], 1)
    for m in range(n):
        s.mem[f"MemC{m}"].append(
            WorkItem(
                {"recv": 1, "k_iter": _rounds(att), "recv_a": 1, "recv_b": 1, "softmax": 1},
                _score_output(1, 1, stored),
                recv_config=mask_of(s, att, slot.sequence, 0, 1, alone=True),
            )
        )


def _scores_pair(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile, stored: bool) -> None:
    row0 = s.spans[slot.sequence].start
    q, k, n = slot.q, slot.k, slot.heads  # with several heads, q and k are one block each
    groups = [i for i in range(2) if q[i]]
    heads = range(slot.head, slot.head + n)
    _score_ops(s, att, [(2 * i + j, q[i] * n, k[j]) for i in groups for j in range(2)])
    for i in groups if att.bias is not None else ():
        start = slot.start + (q[0] if i else 0)
        places = [(head, row) for row in range(start, start + q[i]) for head in heads]
        bias.send_bias(s, att, slot.sequence, i, places, [(2 * i, k[0]), (2 * i + 1, k[1])], tile)
    for i in groups:
        at = row0 + slot.start + (q[0] if i else 0)
        _queries(s, att, at, q[i], heads, i, {"send": 1, "acc_a": q[i] * n, "acc_b": k[0]}, tile)
    for j in range(2):
        at = row0 + (k[0] if j else 0)
        _keys(s, att, at, k[j], heads, j, {"send": 1, "acc_a": q[0], "acc_b": k[j] * n}, tile)
    for a in range(q[0]):
        active = [i for i in groups if a < q[i]]
        for halves, tiles in (((0, 1), k[1]), ((0,), k[0] - k[1])):  # only the even MMEs take the odd key tile
            s.route("MeshA", [f"a{i}_{2 * i + h}" for i in active for h in halves], tiles * n)
            s.route("MeshB", [f"b{h}_{2 * i + h}" for i in active for h in halves], tiles * n)
    for i in groups:
        for j in range(2):
            s.mem[f"MemC{2 * i + j}"].append(
                WorkItem(
                    {"recv": 1, "k_iter": _rounds(att), "recv_a": q[i] * n, "recv_b": k[j], "softmax": 1},
                    _score_output(q[i] * n, k[j], stored),
                    recv_config=mask_of(
                        s, att, slot.sequence, k[0] if j else 0, k[j], False, slot.start + (q[0] if i else 0)
                    ),
                )
            )


def _rounds(att: AttentionLayer) -> int:
    """Number of partial sums that MemC adds for a score: the product, and the bias if there is one."""
    return 1 if att.bias is None else 2


def _queries(
    s: KernelBuilder, att: AttentionLayer, row: int, rows: int, heads: range, i: int, send: dict[str, Any], tile: Tile
) -> None:
    """Append loads of Q into MemA i, and its sends: `rows` row tiles from block `row` on, of each of `heads`, which are
    consecutive. send: uOP fields of the sends. tile: receives the loads."""
    unit = f"MemA{i}"
    if att.bias is None:
        tile.loads.append(s.blocks(att.q, row, rows, heads.start, len(heads), unit))
    else:
        bias.load_queries(s, att, row, rows, heads, unit, tile)
    s.mem[unit].append(WorkItem({"load": 1, "dim1": 128 * rows * len(heads), "dim2": _k_columns(att)}, send))


def _keys(
    s: KernelBuilder, att: AttentionLayer, row: int, rows: int, heads: range, j: int, send: dict[str, Any], tile: Tile
) -> None:
    """Append loads of K into MemB j, transposed, and its sends: `rows` key tiles from block `row` on, of each of
    `heads`. send: uOP fields of the sends. tile: receives the loads."""
    unit = f"MemB{j}"
    if att.bias is not None:
        bias.load_keys(s, att, row, rows, heads, unit, tile)
    elif heads.step == 1:
        tile.loads.append(s.blocks(att.k, row, rows, heads.start, len(heads), unit))
    else:
        tile.loads += [s.blocks(att.k, row, rows, head, 1, unit) for head in heads]
    load = {"load": 1, "transpose": 1, "dim1": _k_columns(att), "dim2": 128 * rows * len(heads)}
    s.mem[unit].append(WorkItem(load, send))


def _k_columns(att: AttentionLayer) -> int:
    """Columns of a tile of Q or K: those of one head, with a bias also those of its neighbour."""
    return 64 if att.bias is None else 128


def _score_ops(s: KernelBuilder, att: AttentionLayer, shapes: Sequence[tuple[int, int, int]]) -> None:
    """Append the MME ops for Q K^T of a slot. shapes: (MME, acc_a, acc_b)."""
    if att.bias is not None:
        bias.score_ops(s, shapes)
        return
    for mme, acc_a, acc_b in shapes:
        score_op(s, mme, acc_a, acc_b)


def score_op(s: KernelBuilder, mme: int, acc_a: int, acc_b: int) -> None:
    """Append acc_a * acc_b tile products in K = 64 mode to an MME. Each emits one tile, so one op counts products of
    any heads: a new op starts only when the last is full."""
    ops = s.mme[f"MME{mme}"]
    left = acc_a * acc_b
    while left:
        op = f.Mme(a_iter=1, b_iter=1, k_iter=0, acc_a=1, acc_b=1, n128=1)
        if ops and _same_but(ops[-1], op, "k_iter") and 0 < ops[-1].k_iter < MAX_K_ITER:
            op = ops.pop()
        more = min(left, MAX_K_ITER - op.k_iter)
        ops.append(op.replace(k_iter=op.k_iter + more))
        left -= more


def value_op(s: KernelBuilder, mme: int, acc_a: int, k_iter: int) -> None:
    """Append P V for `acc_a` row blocks to an MME: 64 columns wide, accumulated over `k_iter` key tiles. An op equal to
    the one before raises that one's a_iter instead."""
    ops = s.mme[f"MME{mme}"]
    op = f.Mme(a_iter=1, b_iter=1, k_iter=k_iter, acc_a=acc_a, acc_b=1, k128=1, acc_k=1)
    if ops and _same_but(ops[-1], op, "a_iter") and ops[-1].a_iter < MAX_A_ITER:
        op = op.replace(a_iter=ops.pop().a_iter + 1)
    ops.append(op)


def lower_slot_values(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile) -> None:
    """Append P V of a slot, P coming from MemC 0-3. tile: receives the loads of V; `slot.tile` receives the stores."""
    if slot.alone:
        _values_single(s, att, slot, tile)
    else:
        _values_pair(s, att, slot, tile)


def _values_single(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile) -> None:
    n, row, col = slot.heads, s.spans[slot.sequence].start, slot.head
    for h in range(n):
        tile.loads.append(s.blocks(att.v, row, 1, col + h, 1, "MemB2"))
    s.mem["MemB2"].append(
        WorkItem({"load": 1, "dim1": 128 * n, "dim2": 64}, {"send": 1, "acc_a": 1, "acc_b": 1, "acc_k": n})
    )
    for j in range(2):  # P of heads j and j+2, in lock step
        s.route("MeshA", [f"c{m}_{4 + m // 2}" for m in range(j, n, 2)], 1)
    for i in range(2):
        count = max(0, min(2, n - 2 * i))
        if not count:
            continue
        s.route("MeshB", [f"b2_{4 + i}"], count)
        for _ in range(count):
            value_op(s, 4 + i, 1, 1)
        c = f"MemC{4 + i}"
        s.mem[c].append(
            WorkItem(
                {"recv": 1, "k_iter": 1, "recv_a": count, "recv_b": 1},
                {"store": 1, "dim1": 128 * count, "dim2": 64},
            )
        )
        slot.tile.stores.append(s.blocks(att.y, row, 1, col + 2 * i, count, c, store=True))


def _values_pair(s: KernelBuilder, att: AttentionLayer, slot: Slot, tile: Tile) -> None:
    row0, blocks, _ = s.spans[slot.sequence]
    q, k, n = slot.q, slot.k, slot.heads
    groups = [i for i in range(2) if q[i]]
    parts = [(at, min(4, blocks - at)) for at in range(0, blocks, 4)]
    repeats = 1 if len(parts) == 1 else q[0]
    for repeat in range(repeats):
        for start, count in parts:
            load: dict[str, Any] = {}
            if repeat == 0:
                for head in range(slot.head, slot.head + n):
                    tile.loads.append(s.blocks(att.v, row0 + start, count, head, 1, "MemB2"))
                load = {"load": 1, "dim1": 128 * count * n, "dim2": 64}
            rows = q[0] if len(parts) == 1 else 1
            s.mem["MemB2"].append(WorkItem(load, {"send": 1, "acc_a": rows, "acc_b": 1, "acc_k": count * n}))
    for a in range(q[0] * n):
        active = [i for i in groups if a < q[i] * n]
        for j in range(2):
            s.route("MeshA", [f"c{2 * i + j}_{4 + i}" for i in active], k[j])
        s.route("MeshB", [f"b2_{4 + i}" for i in active], blocks)
    for i in groups:
        for _ in range(n):
            value_op(s, 4 + i, q[i], blocks)
        c = f"MemC{4 + i}"
        s.mem[c].append(
            WorkItem(
                {"recv": 1, "k_iter": 1, "recv_a": q[i] * n, "recv_b": 1},
                {"store": 1, "dim1": 128 * q[i] * n, "dim2": 64},
            )
        )
        at = row0 + slot.start + (q[0] if i else 0)
        slot.tile.stores.append(s.blocks(att.y, at, q[i], slot.head, n, c, store=True))


def _same_but(a: f.Mme, b: f.Mme, name: str) -> bool:
    return all(getattr(a, x.name) == getattr(b, x.name) for x in b.FIELDS if x.name != name)
