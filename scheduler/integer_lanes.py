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
    """How the sequences of a network lie in the lanes of xnn8. panels: the sequences of each panel; if a sequence is
    spread over several engines, its parts. rows: of a lane. pitch: rows of a sequence off chip, padding included.
    parts: over how many engines a sequence is spread. keys: rows that a cache has in a lane, where all lanes of an
    engine hold a part of each cache; 0 without caches."""

    panels: tuple[tuple[PlacedSequence, ...], ...]
    rows: int
    pitch: int
    parts: int = 1
    keys: int = 0


def placements(of: IntegerNetwork, overlay: Overlay) -> list[LanesOfSequences]:
    """Return the ways in which the sequences of a network can lie in lanes, those with the least estimated time
    (`estimated_seconds`) first. Raises `UnsupportedError` for sequences with more rows than all lanes hold, and for a
    step of a decoder that its lanes cannot hold."""
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
    """Estimates of the seconds that the work of a panel takes on xnn8. seconds: the overlay's rates, by name, as
    seconds of one amount. rows: of a lane. A block has 64 columns of the rows of a lane."""

    seconds: Mapping[str, float]
    rows: int

    @property
    def share(self) -> float:
        """The rows of a lane as a share of the most that it may have, 0 to 1. The time of a tile (of the AI Engine) is
        in proportion to it."""
        return self.rows / LANE_ROWS

    @property
    def block(self) -> float:
        """Seconds in which a lane scales and stores a block of results."""
        return self.rows * BLOCK / 8 * self.seconds["lane_word"]

    @property
    def normalised(self) -> float:
        """Seconds in which a lane stores a block of results that are rotated or whose residual is normalised, or sends
        a block to DDR that is normalised on its way: twice those of `block`."""
        return 2 * self.block

    def behind(self, *, slow: bool, norm: bool) -> float:
        """Of results of a product. slow: as those of `normalised`. norm: a norm of heads follows."""
        return 2 * self.normalised if norm else self.normalised if slow else self.block

    def chunk(self, columns: int, *, short: bool, of_ddr: int) -> float:
        """Return the seconds of the products of 64 of K for all rows of a panel. columns: of pairs, that is, blocks of
        64 columns of the result. short: weights have 4 bits. of_ddr: of how many of these columns the weights come from
        DDR; the others come from LPDDR."""
        word = 4 * (SHORT_WEIGHT_WORD if short else WEIGHT_WORD)
        moved = (columns - of_ddr) * word * self.seconds["lpddr_read_gbs"], of_ddr * word * self.seconds["ddr_read_gbs"]
        return max(self.seconds["chunk_us"] * self.share, *moved, CHUNK * self.seconds["lane_word"])

    def factors(self, blocks: int) -> float:
        """Return the seconds in which lanes find the norms of rows and the factors of rows as integers. blocks: of a
        row, 64 columns each."""
        return self.rows * (2 * max(blocks, LANES) + blocks / 4 + 2) * self.seconds["lane_word"]

    def walk(self, blocks: int) -> float:
        """Return the seconds of a walk: lanes find the factors of rows and move the rows from X to X8. blocks: of a
        row, 64 columns each."""
        return self.factors(blocks) + blocks * self.block

    def round(self, layer: AttentionLayer, heads: int, at: LanesOfSequences) -> tuple[float, float]:
        """Return the seconds of a round of attention over all sequences of a panel: first those of the tiles, with what
        they wait for, as the mean over all panels; then those of storing the results of the last sequence. layer: the
        attention. heads: in the round. at: how the sequences lie."""
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
    """Return an estimate of the seconds of a network, for one way in which its sequences lie.

    It adds up, for each product, the longest of three times: of the tiles, of the memories off chip, and of the lanes
    behind the tiles. At the end of a product only the lanes work. It adds the rounds of attention, and the first loads
    and the last stores. Simulated times are up to 40 % longer (tests/test_integer_programs.py). numbers_of: the
    network. seconds: the overlay's rates, by name. at: how its sequences lie.
    """
    network = numbers_of.network
    takes = LaneSeconds(seconds, at.rows)
    total, walked = 0.0, set[str]()
    for layer in network.layers:
        if isinstance(layer, Gemm):
            k, n = (-(-size // BLOCK) for size in layer.weight.shape)
            is_slow = layer.rotary is not None or numbers_of.adds_normalised(layer)
            behind = takes.behind(slow=is_slow, norm=layer.in_heads and layer.norm is not None)
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
