"""The rounds in which attention is computed on xnn8: a head in each column of pairs."""

from __future__ import annotations

from ..isa.layout import padded
from ..isa.overlays.xnn8.emission import HeadsRound
from ..isa.overlays.xnn8.formats import PAIRS, cells
from ..isa.overlays.xnn8.numbers import BLOCK
from .graph import AttentionLayer
from .integer_lanes import LaneSeconds, LanesOfSequences
from .integers import IntegerNetwork


def attention_rounds(
    of: IntegerNetwork,
    at: LanesOfSequences,
    takes: LaneSeconds,
    layer: AttentionLayer,
    slots: tuple[int, int, int, int],
    key_rows: int,
) -> list[HeadsRound]:
    """Return the rounds of an attention, each with up to eight heads.

    of: the network. at: how its sequences lie in lanes. takes: estimates for the work of a panel. layer: the attention.
    slots: numbers of the first cells, in T, of queries, keys, values and results. key_rows: rows of keys in a lane.
    """

    def seconds(step: int) -> float:
        counts = (min(step, layer.heads - head) for head in range(0, layer.heads, step))
        return sum(takes.round(layer, count, at)[0] for count in counts)

    net = of.network
    columns, rounds, grouped = of.columns[layer.q], [], of.groups(layer)
    if grouped > 1:
        kv_heads = layer.kv_heads or layer.heads
        for head in range(0, kv_heads, PAIRS):
            before = head * columns.pitch // BLOCK
            q, y = (x + before * grouped * cells(at.rows) for x in (slots[0], slots[3]))
            k, v = (x + before * cells(key_rows) for x in slots[1:3])
            of_round = (min(PAIRS, kv_heads - head), layer.head_dim, net.seq, net.seq_of(layer.k), grouped, 0)
            rounds.append(HeadsRound(q, k, v, y, *of_round, layer.masked, layer.causal, grouped=True))
        return rounds
    per = max(1, BLOCK // columns.pitch)  # heads of a block
    step = min(PAIRS, _even_heads(layer), key=seconds)
    for head in range(0, layer.heads, step):
        first = head // layer.groups // per * per  # of keys and values
        q, y = (x + head * columns.pitch // BLOCK * cells(at.rows) for x in (slots[0], slots[3]))
        k, v = (x + first * columns.pitch // BLOCK * cells(key_rows) for x in slots[1:3])
        count, seq, skip = min(step, layer.heads - head), net.seq_of(layer.k), head - first * layer.groups
        shares = layer.groups, skip, layer.masked, layer.causal
        rounds.append(HeadsRound(q, k, v, y, count, layer.head_dim, net.seq, seq, *shares))
    return rounds


def _even_heads(layer: AttentionLayer) -> int:
    """About as many heads in each round; in twos, which two streams of results bring."""
    return padded(-(-layer.heads // -(-layer.heads // PAIRS)), 2)
