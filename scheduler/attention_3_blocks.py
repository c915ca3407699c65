"""Attention over three row blocks as a stream of row tiles, so that both halves of the machine have equal work.

Three row blocks cannot be halved: head by head, one MemC pair would get two row tiles and the other one. Here the row
tiles of all heads, in order, go to the two pairs alternately, two in a slot. Every third slot holds tiles of two heads;
MemB then sends the keys (and MemB2 the values) of one head to one pair and those of the next head to the other. All
uOPs of a Mem are equal, whatever head they belong to, so one mOP stands for as many of them as a packet can repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .attention import STORE_LAG, check, halved, hurry, mask_of, score_op
from .counts import MAX_A_ITER, MAX_ACC_A
from .graph import AttentionLayer
from .kernel_builder import KernelBuilder, WorkItem
from .order import Tile

BLOCKS = 3
"""Row blocks of the sequences that are lowered this way."""

Row = tuple[int, int, int]
"""A row tile: sequence, head, row block within the sequence."""


def lower_streamed(s: KernelBuilder, att: AttentionLayer) -> None:
    """Lower attention by mapping type D, like `lower_attention`, for sequences of `BLOCKS` row blocks each."""
    check(s, att)
    batch, heads = range(s.net.batch), range(att.heads)
    rows: list[Row] = [(b, h, r) for b in batch for h in heads for r in range(BLOCKS)]
    slots = [rows[i : i + 2] for i in range(0, len(rows), 2)]
    first = len(s.tiles)
    before: Sequence[Row] = ()
    made: Tile | None = None
    for slot in [*slots, ()]:  # P V of a slot runs beside Q K^T of the next one
        tile = Tile(lag=STORE_LAG)
        s.tiles.append(tile)
        _scores(s, att, slot, tile)
        if made is not None:
            _values(s, att, before, tile, made)
        before, made = slot, tile
    for i in range(2):
        _value_ops(s, 4 + i, sum(1 for slot in slots if i < len(slot)))
    hurry(s.tiles[first:])


def _begun(slot: Sequence[Row]) -> list[tuple[int, int]]:
    """The heads whose first row tile is in a slot."""
    return [(sequence, head) for sequence, head, row in slot if row == 0]


def _passes(s: KernelBuilder, att: AttentionLayer, sequence: int, head: int) -> int:
    """Number of slots in which a head has row tiles, i.e. how often its keys and values are sent."""
    start = (sequence * att.heads + head) * BLOCKS
    return (start + BLOCKS - 1) // 2 - start // 2 + 1


def _in_turn(slot: Sequence[Row]) -> list[list[int]]:
    """The MemC pairs of a slot, grouped: pairs in one list receive a tile of MemB at the same time. Both pairs if the
    slot has one head, else one after the other."""
    if len({row[:2] for row in slot}) == 1:
        return [list(range(len(slot)))]
    return [[i] for i in range(len(slot))]


def _scores(s: KernelBuilder, att: AttentionLayer, slot: Sequence[Row], tile: Tile) -> None:
    keys = halved(BLOCKS)
    for sequence, head in _begun(slot):
        for j in range(2):
            at = sequence * BLOCKS + (keys[0] if j else 0)
            tile.loads.append(s.blocks(att.k, at, keys[j], head, 1, f"MemB{j}"))
            load: dict[str, Any] = {"load": 1, "transpose": 1, "dim1": 64, "dim2": 128 * keys[j]}
            passes = _passes(s, att, sequence, head)
            s.mem[f"MemB{j}"].append(WorkItem(load, {"send": 1, "acc_a": passes, "acc_b": keys[j]}))
    for i, (sequence, head, row) in enumerate(slot):
        tile.loads.append(s.blocks(att.q, sequence * BLOCKS + row, 1, head, 1, f"MemA{i}"))
        s.mem[f"MemA{i}"].append(
            WorkItem({"load": 1, "dim1": 128, "dim2": 64}, {"send": 1, "acc_a": 1, "acc_b": keys[0]})
        )
        for j in range(2):
            score_op(s, 2 * i + j, 1, keys[j])
            s.mem[f"MemC{2 * i + j}"].append(
                WorkItem(
                    {"recv": 1, "k_iter": 1, "recv_a": 1, "recv_b": keys[j], "softmax": 1},
                    {"send": 1, "send_a": 1, "send_b": 1, "send_k": keys[j]},
                    recv_config=mask_of(s, att, sequence, keys[0] if j else 0, keys[j], False, row),
                )
            )
    key_halves = (((0, 1), keys[1]), ((0,), keys[0] - keys[1]))  # only the even MMEs take the odd key tile
    for halves, tiles in key_halves:
        s.route("MeshA", [f"a{i}_{2 * i + h}" for i in range(len(slot)) for h in halves], tiles)
    for pairs in _in_turn(slot):
        for halves, tiles in key_halves:
            s.route("MeshB", [f"b{h}_{2 * i + h}" for i in pairs for h in halves], tiles)


def _values(s: KernelBuilder, att: AttentionLayer, slot: Sequence[Row], tile: Tile, made: Tile) -> None:
    """Append P V of a slot. tile: receives the loads of V. made: the tile of the slot's scores, which owns the
    stores."""
    keys = halved(BLOCKS)
    for sequence, head in _begun(slot):
        tile.loads.append(s.blocks(att.v, sequence * BLOCKS, BLOCKS, head, 1, "MemB2"))
        passes = _passes(s, att, sequence, head)
        send = {"send": 1, "acc_a": passes, "acc_b": 1, "acc_k": BLOCKS}
        s.mem["MemB2"].append(WorkItem({"load": 1, "dim1": 128 * BLOCKS, "dim2": 64}, send))
    for j in range(2):
        s.route("MeshA", [f"c{2 * i + j}_{4 + i}" for i in range(len(slot))], keys[j])
    for pairs in _in_turn(slot):
        s.route("MeshB", [f"b2_{4 + i}" for i in pairs], BLOCKS)
    for i, (sequence, head, row) in enumerate(slot):
        c = f"MemC{4 + i}"
        s.mem[c].append(
            WorkItem({"recv": 1, "k_iter": 1, "recv_a": 1, "recv_b": 1}, {"store": 1, "dim1": 128, "dim2": 64})
        )
        made.stores.append(s.blocks(att.y, sequence * BLOCKS + row, 1, head, 1, c, store=True))


def _value_ops(s: KernelBuilder, mme: int, rows: int) -> None:
    """Append P V for `rows` row tiles to an MME, three in an iteration, because each iteration costs a set-up."""
    left = rows
    while left:
        acc_a = min(MAX_ACC_A, left)
        a_iter = min(left // acc_a, MAX_A_ITER)
        s.op(mme, a_iter=a_iter, b_iter=1, k_iter=BLOCKS, acc_a=acc_a, acc_b=1, k128=1, acc_k=1)
        left -= acc_a * a_iter
