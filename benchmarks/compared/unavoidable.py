"""The bytes that a network must move to and from off-chip memory on this wiring, whatever its schedule.

A machine computes a product by output tiles, each of which stays in the memories of results while all of K goes by.
With a grid of full tiles of R rows and C columns (768 and 1024 on XNN), for a product of M rows, K columns of its
operand, N columns that it computes (twice those of its result if it is gated), S slices of K that the left memories
keep from one output tile to the next (2 of 128 columns), and n = ceil(N / C), m = ceil(M / R):

    operand   M * (n * K - (n - 1) * min(K, 128 * S))     weights   K * N * m     bias   N * m
    residual  M * N                                       result    M * N

Products of one operand, one behind the other, count as one product with the output tiles of all: the left memories keep
slices between them, and what is loaded beside the operand, statistics and the table of a rotation, serves all. A pass
has no operand and no weights; a sum has a second residual. A rotation loads its table, two numbers for each stored
column of a head, once for each row of the product. An operand that is normalised as it is loaded has statistics, 16
numbers for each row and each C of its columns: stored once, and loaded once by each consumer. If no product computes
it, it is read once more for them.

An attention reads its queries and writes its result once. Without more keys than the memories of results send at a time
(768), it reads the keys and the values of each key head once, for all query heads that share it. With more, it goes,
for each 512 query rows, over the keys twice (once for maxima and sums, once for the scores) and over the values once,
but for those keys that a causal mask or a window hides from all of these rows. Every time after the first it need not
read what the right memories, and that of the values, hold in all their slots (2048 and 1024 keys of up to 128 columns;
1024 of more). Biases and masks of the scores are read once for
each head.

Numbers are float32, and count as stored: rows in blocks of 128, columns in slices of 128, heads at their pitch.
"""

from __future__ import annotations

from collections.abc import Mapping

from rsn.isa.layout import QUARTER
from rsn.isa.overlay import Overlay
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph
from rsn.scheduler.lower import Banks
from rsn.scheduler.mapping import PipelineLimits, pipeline_of
from rsn.scheduler.schedule import PAPER
from rsn.scheduler.tile import TILE, SequenceSpan, Tiled, tile

BYTES = 4


def unavoidable_bytes(network: LayerGraph, overlay: Overlay) -> dict[str, dict[str, int]]:
    """Return the bytes that each layer of a folded network must move, by the name of its result and by bank (DDR,
    LPDDR). Raises `UnsupportedError` like `tile`, and for an overlay without patterns."""
    return _Counted(tile(network, overlay, PAPER)).layers()


def total_bytes(layers: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the sum over all layers, in bytes by bank. layers: as `unavoidable_bytes` returns them."""
    out: dict[str, int] = {}
    for banks in layers.values():
        for bank, count in banks.items():
            out[bank] = out.get(bank, 0) + count
    return out


class _Counted:
    """Counts the bytes of one network."""

    def __init__(self, tiled: Tiled) -> None:
        self.t, self.network, self.limits = tiled, tiled.network, tiled.limits
        self.tile_rows = self.limits.grid_rows * self.limits.rows * TILE
        self.tile_columns = self.limits.grid_cols * self.limits.cols * TILE
        self.before: list[Gemm] = []
        """Products of one operand, directly before the layer that is counted."""
        self.passed: set[str] = set()
        """Activations whose pass for statistics is counted."""
        self.kept = min(tiled.overlay.memory_of(unit).slots for unit in tiled.grid.left) * TILE

    def layers(self) -> dict[str, dict[str, int]]:
        """The bytes of each layer, by the name of its result and by bank."""
        banks = Banks.of(self.t.overlay)
        out: dict[str, dict[str, int]] = {}
        for layer in self.network.layers:
            if isinstance(layer, AttentionLayer) or not (self.before and _shares(self.before[-1], layer)):
                self.before = []
            if isinstance(layer, AttentionLayer):
                out[layer.y] = {banks.activations: BYTES * self._attention(layer)}
                continue
            moved = {banks.activations: BYTES * self._activations(layer)}
            weights = BYTES * self._weights(layer)
            moved[banks.weights] = moved.get(banks.weights, 0) + weights
            out[layer.y] = moved
            self.before.append(layer)
        return out

    def _rows(self, name: str) -> int:
        return self.t.rows_of(name).blocks * TILE

    def _computed(self, layer: Gemm) -> int:
        return self.t.columns[layer.y].stored * (2 if layer.gated else 1)

    def _activations(self, layer: Gemm) -> int:
        rows, result = self._rows(layer.y), self.t.columns[layer.y].stored
        count = rows * result * (1 + (layer.residual is not None) + layer.is_sum)
        if layer.multiplies:
            k, tiles = self.t.columns[layer.x].used, -(-self._computed(layer) // self.tile_columns)
            count += rows * (tiles * k - (tiles - (not self.before)) * min(k, self.kept))
        if layer.rotary is not None and layer.rotary.key not in [x.rotary.key for x in self.before if x.rotary]:
            count += rows * 2 * self.t.overlay.head_pitch(layer.rotary.head_dim)
        x = layer.x if layer.x_norm and not self.before else None
        for name in {x, layer.residual if layer.residual_norm else None} - {None}:
            count += self._statistics(str(name))
            if not self.t.statistics[str(name)].at_store and name not in self.passed:
                self.passed.add(str(name))
                count += self._statistics(str(name)) + self._rows(str(name)) * self.t.columns[str(name)].stored
        made = self.t.statistics.get(layer.y)
        return count + (self._statistics(layer.y) if made is not None and made.at_store else 0)

    def _statistics(self, name: str) -> int:
        return self._rows(name) // TILE * QUARTER * -(-self.t.columns[name].stored // self.tile_columns)

    def _weights(self, layer: Gemm) -> int:
        if not layer.multiplies:
            return 0
        k, n = self.t.columns[layer.x].used, self._computed(layer)
        return (k + 1) * n * -(-self._rows(layer.y) // self.tile_rows)

    def _attention(self, layer: AttentionLayer) -> int:
        overlay = self.t.overlay
        pipeline = pipeline_of(overlay)
        limits = PipelineLimits.of(overlay, pipeline)
        pitch, heads = overlay.head_pitch(layer.head_dim), layer.heads // layer.groups
        chunk = pipeline.scores.rows * limits.rows * TILE
        count = 0
        for q, k in zip(self.t.spans_of(layer.q), self.t.spans_of(layer.k), strict=True):
            rows, keys = q.blocks * TILE, k.blocks * TILE
            count += 2 * layer.heads * rows * pitch
            if k.blocks <= limits.sent:
                count += 2 * heads * keys * pitch
            else:
                seen = [self._seen(layer, at, min(rows, at + chunk), k) for at in range(0, rows, chunk)] * layer.groups
                values = overlay.memory_of(pipeline.values)
                rights = [overlay.memory_of(unit) for unit in pipeline.scores.right]
                held = sum(m.columns * m.slots for m in rights) // -(-pitch // TILE)
                count += heads * pitch * (_read(2 * seen, held) + _read(seen, values.rows * values.slots))
            scores = (layer.bias is not None) + (layer.mask is not None)
            count += scores * layer.heads * rows * keys
        return count

    @staticmethod
    def _seen(layer: AttentionLayer, first: int, end: int, keys: SequenceSpan) -> int:
        """Keys of whole blocks that rows `first` to `end - 1` of a head see."""
        low, high = 0, keys.blocks * TILE
        if layer.causal:
            high = min(high, end)
        if layer.window is not None:
            low = max(0, first - layer.window + 1) // TILE * TILE
            if not layer.causal:
                high = min(high, -(-(end + layer.window - 1) // TILE) * TILE)
        return max(0, high - low)


def _read(seen: list[int], held: int) -> int:
    """Keys that must be read if so many are seen at a time, and `held` stay from one time to the next."""
    return max(*seen, 0, sum(seen) - (len(seen) - 1) * held)


def _shares(a: Gemm, b: Gemm) -> bool:
    """Whether b directly behind a takes the same slices of an operand."""
    return a.multiplies and b.multiplies and a.x == b.x
