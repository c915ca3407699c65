"""Where sequences lie in the lanes of xnn8: several side by side in an engine, or one over several engines; and an
estimate of which of these ways takes the least time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

import numpy as np

from ..base.errors import UnsupportedError
from ..isa.layout import ITEM_ROWS, padded
from ..isa.overlay import Overlay
from ..isa.overlays.xnn8.emission import PlacedSequence
from ..isa.overlays.xnn8.formats import (
    ENGINES,
    LANE_ROWS,
    LANES,
    PAIRS,
    ROW_STEP,
    SHORT_WEIGHT_WORD,
    WEIGHT_WORD,
    WIDE_ROWS,
    slices,
    slices_of_keys,
)
from ..isa.overlays.xnn8.lanes import AHEAD, CHUNK, FILL, PACKET
from ..isa.overlays.xnn8.numbers import BLOCK
from .graph import AttentionLayer, Gemm, LayerGraph
from .integers import IntegerNetwork


class LanesOfSequences(NamedTuple):
    """How sequences lie in lanes. panels: the sequences of each, or parts of one. rows: of a lane. pitch: rows of a
    sequence off chip. parts: engines over which a sequence is spread. keys: of a cache in a lane, in all lanes of an
    engine; 0 without caches."""

    panels: tuple[tuple[PlacedSequence, ...], ...]
    rows: int
    pitch: int
    parts: int = 1
    keys: int = 0


def placements(of: IntegerNetwork, overlay: Overlay) -> list[LanesOfSequences]:
    """Return the ways in which sequences can lie in lanes, those that take less time first."""
    network = of.network
    if network.states:
        return [_step(network)]
    is_wide = any(isinstance(x, AttentionLayer) and x.head_dim > BLOCK for x in network.layers)
    most = WIDE_ROWS if is_wide else LANE_ROWS
    if network.lengths:
        found = [_ragged(network.rows, rows) for rows in range(ROW_STEP, most + 1, ROW_STEP)]
    else:
        found = [_alike(network, each, most) for each in range(1, LANES + 1)]
    found += [_spread(network, parts, most) for parts in range(2, ENGINES + 1)]
    fit = [at for at in found if at is not None]
    if not fit:
        raise UnsupportedError(
            f"sequences of {network.seq} rows; xnn8 has up to {ENGINES * LANES * most}"
            + " if heads have more than 64 columns" * is_wide
        )
    return sorted(fit, key=lambda at: estimated_seconds(of, overlay.seconds, at))


def _lane_rows(rows: int, lanes: int) -> int:
    """The rows of each of some lanes for a sequence: off chip, a block of it is a whole number of groups of rows."""
    return padded(-(-rows // lanes), ROW_STEP if lanes % 2 == 0 else ITEM_ROWS)


def _alike(network: LayerGraph, each: int, most: int) -> LanesOfSequences | None:
    """Up to `each` sequences of an engine, side by side, in no more lanes than they need; None if a lane has no room
    for its rows."""
    rows = _lane_rows(network.seq, LANES // each)
    if rows > most:
        return None
    lanes = min(LANES // each, padded(-(-network.seq // rows), ITEM_ROWS // gcd(rows, ITEM_ROWS)))
    parts = np.array_split(np.arange(network.batch), -(-network.batch // (ENGINES * each)))
    panels = (
        tuple(PlacedSequence(i % ENGINES, i // ENGINES * lanes, lanes, rows, int(n)) for i, n in enumerate(part))
        for part in parts
    )
    return LanesOfSequences(tuple(panels), rows, lanes * rows)


def _step(network: LayerGraph) -> LanesOfSequences:
    """Up to four sequences of an engine, two lanes for the row of each, and all lanes for the keys of one after the
    other. Raises `UnsupportedError` for larger caches than T holds keys of."""
    (capacity,) = network.state_rows
    fits = (
        n for n in range(-(-capacity // LANES), ENGINES * LANE_ROWS + 1) if not n % ROW_STEP and not n % (8 * slices(n))
    )
    keys = next(fits, None)
    at = _alike(network, LANES // 2, LANE_ROWS)
    assert at is not None
    if keys is None:
        raise UnsupportedError(f"caches of {capacity} rows; xnn8 has up to {ENGINES * LANES * LANE_ROWS}")
    panels = tuple(tuple(of._replace(spread=keys) for of in panel) for panel in at.panels)
    return at._replace(panels=panels, keys=keys)


def _spread(network: LayerGraph, parts: int, most: int) -> LanesOfSequences | None:
    """A sequence after the other, over up to `parts` engines; None if a lane has no room, or an engine no rows."""
    rows = padded(-(-network.seq // (LANES * parts)), ROW_STEP)
    of_engine = LANES * rows
    if rows > most or (parts - 1) * of_engine >= network.seq:
        return None
    panels = []
    for number, count in enumerate(network.rows):
        own = -(-count // of_engine)
        of = (PlacedSequence(i, 0, LANES, rows, number, i, own, count, of_engine * parts) for i in range(own))
        panels.append(tuple(of))
    return LanesOfSequences(tuple(panels), rows, of_engine * parts, parts)


def _ragged(counts: Sequence[int], rows: int) -> LanesOfSequences | None:
    """Sequences in as many lanes of `rows` rows as each needs, the longest first, each in the first engine that has
    room; None if one takes more than an engine. counts: rows of the sequences."""
    lanes = [padded(-(-count // rows), ITEM_ROWS // gcd(rows, ITEM_ROWS)) for count in counts]
    if max(lanes) > LANES:
        return None
    pitch = max(lanes) * rows
    engines: list[list[PlacedSequence]] = []
    for number in sorted(range(len(counts)), key=lambda i: -lanes[i]):
        ends = [sum(of.lanes for of in engine) for engine in engines]
        at = next((i for i, end in enumerate(ends) if end + lanes[number] <= LANES), len(engines))
        if at == len(engines):
            engines.append([])
            ends.append(0)
        of = PlacedSequence(at % ENGINES, ends[at], lanes[number], rows, number, length=counts[number], pitch=pitch)
        engines[at].append(of)
    panels = (
        tuple(of for engine in engines[i : i + ENGINES] for of in engine) for i in range(0, len(engines), ENGINES)
    )
    return LanesOfSequences(tuple(panels), rows, pitch)


@dataclass(frozen=True)
class LaneSeconds:
    """About how many seconds parts of a panel take. seconds: of the overlay's rates. rows: of a lane."""

    seconds: Mapping[str, float]
    rows: int

    @property
    def share(self) -> float:
        """Of what a tile has for as many rows as a lane may have."""
        return self.rows / LANE_ROWS

    @property
    def block(self) -> float:
        """Of results, in a lane."""
        return self.rows * BLOCK / 8 * self.seconds["lane_word"]

    @property
    def normalised(self) -> float:
        """Of results that are rotated, or whose residual is normalised; or of what is normalised on its way to DDR."""
        return 2 * self.block

    def chunk(self, columns: int, *, short: bool, of_ddr: int) -> float:
        """Of a product, of some columns of pairs. short: weights have 4 bits. of_ddr: columns whose weights come from
        DDR."""
        word = 4 * (SHORT_WEIGHT_WORD if short else WEIGHT_WORD)
        moved = (columns - of_ddr) * word * self.seconds["lpddr_read_gbs"], of_ddr * word * self.seconds["ddr_read_gbs"]
        return max(self.seconds["chunk_us"] * self.share, *moved, CHUNK * self.seconds["lane_word"])

    def factors(self, blocks: int) -> float:
        """Of norms, and of the factors of rows."""
        return self.rows * (2 * max(blocks, LANES) + blocks / 4 + 2) * self.seconds["lane_word"]

    def walk(self, blocks: int) -> float:
        """Of blocks to X8, with their factors."""
        return self.factors(blocks) + blocks * self.block

    def round(self, layer: AttentionLayer, heads: int, at: LanesOfSequences) -> tuple[float, float]:
        """Of a round of attention, of all sequences of an engine: of tiles, with what they wait for; and of results of
        the last sequence. heads: of the round. Panels with fewer sequences count less."""
        word, key_rows, wide = self.seconds["lane_word"], self.rows * at.parts, layer.head_dim > BLOCK
        tiles = self.seconds["maxima_us"] + self.seconds["weights_us"]
        of_heads = (self.rows << wide) / 8 * PACKET * -(-heads // 2) * word
        passed = 0.0
        for panel in at.panels:
            passed += max(
                sum(
                    max(
                        self.share * slices_of_keys(key_rows, of.lanes) * tiles,
                        # keys, then keys and values; a lane serves one column of pairs after the other
                        3 * slices_of_keys(key_rows, of.lanes) * 2 * BLOCK * (-(-heads // of.lanes) << wide) * word,
                        of_heads,
                    )
                    + self.seconds["round_us"] * self.share
                    # the largest exponents of queries, and of keys and values, are looked for first
                    + (heads * (self.rows + 3 * key_rows) / 4 + 4 * (AHEAD + FILL + heads)) * word
                    for of in panel
                    if of.engine == engine
                )
                for engine in range(ENGINES)
            )
        return passed / len(at.panels) * (1 + wide), of_heads


def estimated_seconds(numbers_of: IntegerNetwork, seconds: Mapping[str, float], at: LanesOfSequences) -> float:
    """About how long all panels take: of each product the tiles, memories off chip, or what is behind the tiles,
    whichever is longest; and attention. At the end of each there is nothing beside what is behind the tiles. Simulated
    times are up to 40 % longer (tests/test_integer_programs.py)."""
    network = numbers_of.network
    takes = LaneSeconds(seconds, at.rows)
    total, walked = 0.0, set[str]()
    for layer in network.layers:
        if isinstance(layer, Gemm):
            k, n = (-(-size // BLOCK) for size in layer.weight.shape)
            is_slow = layer.rotary is not None or numbers_of.adds_normalised(layer)
            behind = takes.normalised if is_slow else takes.block
            if layer.multiplies and layer.x not in walked:  # factors of its rows, of which no norm is left out
                walked.add(layer.x)
                total += takes.factors(k)
            product = numbers_of.products.get(layer.y)
            is_short = product is not None and product.short is not None
            chunk = takes.chunk(PAIRS, short=is_short, of_ddr=PAIRS // 2)
            passes = 1 + (product is not None and product.low_bits > 0)
            total += max(-(-n // PAIRS) * passes * k * chunk, n * behind)
            total += (min(n, PAIRS) * behind + takes.block) * (k > 0)
            continue
        rounds = -(-layer.heads // PAIRS)
        passed, of_heads = takes.round(layer, min(layer.heads, PAIRS), at)
        total += passed * rounds + of_heads
        if at.parts > 1:
            moved = 2 * at.pitch * (layer.kv_heads or layer.heads) * layer.head_dim
            # LPDDR alone has weights meanwhile, so both memories work
            total += moved * (seconds["ddr_write_gbs"] + seconds["ddr_read_gbs"]) / 2
    # rows of the first panel come before anything is computed, those of the last one leave behind everything
    ends = sum(network.inputs.values()) * seconds["ddr_read_gbs"]
    ends += sum(network.columns(out.name) for out in network.outputs) * seconds["ddr_write_gbs"]
    return total * len(at.panels) + 2 * network.batch * at.pitch * ends / len(at.panels)
