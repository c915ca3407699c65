"""Stage `tile`: divide a graph into segments, and cut the layers of each into tasks.

Input: a `LayerGraph`, an overlay with patterns, a `Schedule`. Output: `Tiled`. A product is cut into output tiles, an
output tile is divided over a grid of product units (paper section 5.3); sequences are placed one behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..base.errors import ScheduleError, UnsupportedError
from ..isa.layout import BLOCK_ROWS, padded
from ..isa.overlay import Overlay, Patterns, ProductGrid
from .graph import AttentionLayer, Gemm, LayerGraph, Norm
from .groups import Planned, plan
from .mapping import pipeline_of
from .memory import Columns, lay_out_heads
from .schedule import Interleave, Schedule, Tiles, naming

TILE = BLOCK_ROWS
"""Rows and columns of a tile of the product grid."""


class SequenceSpan(NamedTuple):
    """The place of a sequence among the rows of all. start: its first block of 128 rows. blocks: the number of its
    blocks. rows: its rows without padding."""

    start: int
    blocks: int
    rows: int


ENTRIES = 128
"""Of the table of rows in a unit that keeps single rows (`isa.work.SetRow`)."""


@dataclass(frozen=True)
class RowLayout:
    """How the rows of an activation lie in memory. spans: the places of the sequences, in order. blocks: blocks of 128
    rows of all sequences together, padding included. together: all sequences have one row and share one block, in which
    row b is that of sequence b."""

    spans: list[SequenceSpan]
    blocks: int
    together: bool = False


@dataclass(frozen=True)
class OutputRows:
    """The rows of one output tile, from row block `start` of the activation on: `groups` left memories hold `acc` row
    blocks (of 128 rows) each."""

    start: int
    groups: int
    acc: int


@dataclass(frozen=True)
class GridLimits:
    """What a grid of product units holds.

    grid_rows, grid_cols: its size in product units. rows, cols: blocks of 128 rows and of 128 columns of one product
    unit's part of an output tile. slices: slices of 128 of K in a slot of a right memory.
    """

    grid_rows: int
    grid_cols: int
    rows: int
    cols: int
    slices: int

    @staticmethod
    def of(overlay: Overlay, grid: ProductGrid) -> GridLimits:
        """The limits of an overlay's grid, from the smallest of its memories and the counts that its product units can
        take (`matmul` of the first unit). Raises `ProgramError` if a unit of the grid lacks its memory or `matmul`."""
        left, right = ([overlay.memory_of(unit) for unit in units] for units in (grid.left, grid.right))
        results = [overlay.memory_of(unit) for row in grid.results for unit in row]
        counts = overlay.capability_of(grid.products[0][0], "matmul").limits
        return GridLimits(
            grid.rows,
            grid.columns,
            min(*(m.rows // TILE for m in (*left, *results)), int(counts["rows"][1])),
            min(*(m.columns // TILE for m in (*right, *results)), int(counts["columns"][1])),
            min(m.rows for m in right) // TILE,
        )

    def fit(self, cut: Tiles) -> Tiles:
        """The cut, in which defaults that are larger than the grid become what the grid holds. Raises `ScheduleError`
        for other values that the grid cannot hold, and for a height that is not in `row_shapes`."""
        default = Tiles()
        known = {"mme_rows": self.grid_rows, "mme_cols": self.grid_cols}
        known |= {"tile_rows": self.grid_rows * self.rows, "tile_cols": self.grid_cols * self.cols}
        out = {
            f.name: min(value, known[f.name]) if value == getattr(default, f.name) else value
            for f in fields(Tiles)
            for value in [getattr(cut, f.name)]
        }
        sizes = sorted(row_shapes(self.grid_rows, self.rows))
        if out["tile_rows"] not in sizes:
            raise ScheduleError(f"tile_rows={out['tile_rows']}: must be {_either(sizes)} (row blocks in MemA and MemC)")
        if out["tile_cols"] > known["tile_cols"]:
            raise ScheduleError(
                f"tile_cols={out['tile_cols']}: must be 1 to {known['tile_cols']} (column blocks in {self.grid_cols} "
                "MemC)"
            )
        for name, each in (("rows", self.rows), ("cols", self.cols)):
            grid, tile = out[f"mme_{name}"], out[f"tile_{name}"]
            if grid > known[f"mme_{name}"]:
                raise ScheduleError(
                    f"mme_{name}={grid}: must be 1 to {known[f'mme_{name}']} (the MMEs form {self.grid_rows} rows of "
                    f"{self.grid_cols} columns)"
                )
            if tile > grid * each:
                raise ScheduleError(
                    f"tile_{name}={tile} does not fit mme_{name}={grid}: that grid holds at most {grid * each} blocks"
                )
        return Tiles(**out)


def _either(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class StoredStatistics:
    """Mean and variance of the rows of an activation, for norms that are applied as it is loaded.

    rms: mean squares are enough. parts: number of column tiles, each of which has statistics of its own. at_store: the
    product that computes the activation makes them as it stores it; otherwise a pass over the stored activation does.
    """

    rms: bool
    parts: int
    at_store: bool


def statistics_of(
    network: LayerGraph, overlay: Overlay, cuts: Mapping[str, Tiles], limits: GridLimits
) -> dict[str, StoredStatistics]:
    """The statistics that the norms of operands (`x_norm`, `residual_norm`) need, by the name of the activation.

    The product that computes the activation makes them at its store, with three exceptions: its memory of results
    applies something else there, or has no neighbour with which rows are complete, or its tiles are more parts than a
    load can join. Then a pass makes them. cuts: how each product is cut, by the name of its result. Raises
    `ScheduleError` like `column_tiles`."""
    able = overlay.capability("normalise")
    most = able.limits["parts"][1] if able is not None else 0
    norms: dict[str, list[Norm]] = {}
    for layer in network.layers:
        if isinstance(layer, Gemm):
            for name, norm in ((layer.x, layer.x_norm), (layer.residual, layer.residual_norm)):
                if name is not None and norm is not None:
                    norms.setdefault(name, []).append(norm)
    made = {layer.y: layer for layer in network.layers if isinstance(layer, Gemm)}
    out: dict[str, StoredStatistics] = {}
    for name, of in norms.items():
        gemm, rms = made.get(name), all(norm.rms for norm in of)
        width = network.inputs[name] if name in network.inputs else network.columns(name)
        blocks = padded(width, TILE) // TILE
        if gemm is not None and gemm.is_plain_store and cuts[name].mme_cols == limits.grid_cols:
            parts = column_tiles(blocks, cuts[name], False, limits, pairs=True)[0]
            if parts <= most:
                out[name] = StoredStatistics(rms, parts, True)
                continue
        out[name] = StoredStatistics(
            rms, column_tiles(blocks, limits.fit(Tiles()), False, limits, pairs=True)[0], False
        )
    return out


@dataclass(frozen=True, eq=False)
class Tiled:
    """A network, cut for an overlay.

    limits: what the overlay's grid holds. plan: its segments with their knobs. cuts: how a product is cut, by the
    activation that it computes. columns: how the columns of each activation are stored, by its name. rows: how the rows
    of activations lie, by the number of rows of a sequence. statistics: of the activations that are normalised as they
    are loaded, by name. apart: names of activations with one row a sequence whose sequences have blocks of their own;
    in other such activations the rows of all sequences lie together."""

    network: LayerGraph
    overlay: Overlay
    schedule: Schedule
    patterns: Patterns
    limits: GridLimits
    plan: list[Planned]
    cuts: dict[str, Tiles]
    columns: dict[str, Columns]
    rows: dict[int, RowLayout]
    statistics: dict[str, StoredStatistics] = field(default_factory=dict)
    apart: frozenset[str] | None = None

    @property
    def grid(self) -> ProductGrid:
        """The overlay's grid of product units."""
        return self.patterns.grid

    def rows_of(self, name: str) -> RowLayout:
        """How the rows of the activation `name` lie in memory. Raises `KeyError` for one whose number of rows was not
        cut."""
        if self.apart is not None and self.network.seq_of(name) == 1 and name not in self.apart:
            batch = self.network.batch
            return RowLayout([SequenceSpan(0, 1, 1)] * batch, 1, together=True)
        return self.rows[self.network.seq_of(name)]

    def spans_of(self, name: str) -> list[SequenceSpan]:
        """The places of the sequences of the activation `name`, in order. Raises as `rows_of`."""
        return self.rows_of(name).spans

    def seq_blocks_of(self, name: str) -> int:
        """Number of blocks of 128 rows of the longest sequence of the activation `name`. Raises as `rows_of`."""
        return max(span.blocks for span in self.spans_of(name))

    @cached_property
    def row_blocks(self) -> int:
        """Blocks of 128 rows of all sequences of the activation with most rows, padding included."""
        return max(rows.blocks for rows in self.rows.values())

    @cached_property
    def interleave(self) -> Interleave:
        """The interleaving of off-chip accesses. Resolves PUBLISHED to STRICT or INTERLEAVED; it is never PUBLISHED.

        The published host runs programs of half tiles, of which each memory holds one row block although it has room
        for two, layer by layer, without interleaving. For the projections of BERT-Large at L = 384, B = 1 this is
        known; for its other layers it is inferred from the total time.
        """
        if self.schedule.interleave is not Interleave.PUBLISHED:
            return self.schedule.interleave
        return Interleave.STRICT if self.row_blocks <= self.limits.grid_rows else Interleave.INTERLEAVED

    def show(self) -> str:
        """The segments as text: a line for each segment, and one for the tiles of each of its products, whose sizes are
        in elements."""
        out = [f"{self.network.size}: {self.row_blocks} row blocks of {TILE}"]
        for segment in self.plan:
            layers = [segment.layers] if isinstance(segment.layers, AttentionLayer) else segment.layers
            out.append(f"  {segment.kind}: {', '.join(layer.path or layer.y for layer in layers)}")
            if isinstance(segment.layers, AttentionLayer):
                continue
            for gemm in segment.layers:
                cut = self.cuts[gemm.y]
                blocks_of_rows = self.rows_of(gemm.x).blocks
                rows = [t.groups * t.acc * TILE for t in row_tiles(blocks_of_rows, cut, self.limits)]
                passes, halves, blocks = product_tiles(gemm, self.columns[gemm.y], cut, self.limits, self.statistics)
                sizes = ", ".join(f"{rows.count(n)} of {n}" for n in dict.fromkeys(rows))
                out.append(f"    rows: {sizes}; columns: {passes} of {halves * blocks * TILE}")
        return "\n".join(out) + "\n"


def tile(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Tiled:
    """Cut a network for an overlay with patterns (`Overlay.patterns`, else `AssertionError`).

    Raises `ScheduleError` if the schedule does not fit the network or the overlay, and for operands whose rows do not
    match (`LayerGraph.check_rows`); `UnsupportedError`, naming the layer, for columns that cannot be laid out, for an
    attention that the overlay has no pipeline for, and for more caches than the table of rows has entries.
    """
    patterns = overlay.patterns
    assert patterns is not None, overlay.name
    limits = GridLimits.of(overlay, patterns.grid)
    for layer in network.layers:
        if isinstance(layer, AttentionLayer):
            try:
                pipeline_of(overlay)
            except UnsupportedError as error:
                raise UnsupportedError(f"{layer.place}: {error}") from None
    kinds = len(network.state_rows)
    if network.batch * kinds > ENTRIES:
        raise UnsupportedError(
            f"{network.batch} sequences with caches of {kinds} sizes: the table of rows has {ENTRIES} entries, one for "
            "each; compile for a smaller batch"
        )
    segments = plan(network, schedule)
    cuts: dict[str, Tiles] = {}
    for segment in segments:
        if not isinstance(segment.layers, AttentionLayer):
            with naming(segment.kind):
                cuts |= dict.fromkeys((gemm.y for gemm in segment.layers), limits.fit(segment.tiles))
    network.check_rows()
    statistics = statistics_of(network, overlay, cuts, limits)
    names = (*network.inputs, *(layer.y for layer in network.layers))
    rows = {
        network.seq_of(name): _rows(network, schedule, limits, network.rows_of(name)) for name in dict.fromkeys(names)
    }
    return Tiled(
        network,
        overlay,
        schedule,
        patterns,
        limits,
        segments,
        cuts,
        columns_of(network, overlay, cuts, limits, schedule.whole_tiles, statistics),
        rows,
        statistics,
        _apart(network),
    )


def _apart(network: LayerGraph) -> frozenset[str] | None:
    """The activations of a step of a decoder whose sequences have blocks of their own: caches, and the queries that
    meet them; none in a stage without attention. None if the rows of sequences cannot lie together."""
    if not 1 < network.batch <= TILE or not network.is_step:
        return None
    queries = (layer.q for layer in network.layers if isinstance(layer, AttentionLayer))
    return frozenset({*network.states, *queries})


def _rows(network: LayerGraph, schedule: Schedule, limits: GridLimits, rows: Sequence[int]) -> RowLayout:
    """How sequences of these numbers of rows lie, one behind the other. Raises `ScheduleError` like `_row_blocks`."""
    blocks = [padded(n, TILE) // TILE for n in rows]
    spans = [SequenceSpan(*span) for span in zip(accumulate(blocks, initial=0), blocks, rows, strict=False)]
    return RowLayout(spans, _row_blocks(network, schedule, limits, sum(blocks)))


def _row_blocks(network: LayerGraph, schedule: Schedule, limits: GridLimits, blocks: int) -> int:
    """Row blocks of all sequences. Raises `ScheduleError` if padding to whole tiles would separate sequences."""
    if not schedule.whole_tiles:
        return blocks
    half = limits.grid_rows
    most = half * limits.rows
    whole = half if blocks <= half else padded(blocks, most)
    if whole != blocks and network.batch > 1:
        rows = f"{network.batch} sequences of {blocks * TILE} rows in total"
        raise ScheduleError(
            f"whole_tiles: {rows} do not fill whole tiles of {most * TILE} rows; padding is possible for one sequence "
            "only"
        )
    return whole


def row_shapes(grid_rows: int, rows: int) -> dict[int, tuple[int, int]]:
    """The heights that an output tile may have, in row blocks of 128 rows; for each, how many left memories it takes,
    and how many row blocks each of these has. If several shapes have one height, it is the one with most memories.
    grid_rows: number of left memories. rows: row blocks that one memory can hold."""
    return {groups * acc: (groups, acc) for acc in range(rows, 0, -1) for groups in range(1, grid_rows + 1)}


def row_tiles(blocks: int, cut: Tiles, limits: GridLimits) -> list[OutputRows]:
    """Cut `blocks` row blocks (of 128 rows) into tiles, each as large as the rows of the grid and cut.tile_rows
    allow."""
    shapes = row_shapes(cut.mme_rows, limits.rows)
    out, at = [], 0
    while at < blocks:
        n = max(s for s in shapes if s <= min(blocks - at, cut.tile_rows))
        out.append(OutputRows(at, *shapes[n]))
        at += n
    return out


def column_tiles(
    blocks: int, cut: Tiles, whole: bool, limits: GridLimits, pairs: bool = False, grain: int = 1
) -> tuple[int, int, int]:
    """Cut `blocks` column blocks (of 128 columns) into equal tiles. Returns the number of tiles, the columns of the
    grid that each takes, and the blocks in each of these.

    whole: make one tile over all columns of the grid, as a norm needs whole rows. pairs: take all columns of the grid
    for each tile. grain: blocks that must stay together, such as those of a head; raises `ScheduleError` if a memory of
    results holds fewer.
    """
    tiles = 1 if whole else -(-blocks // cut.tile_cols)
    halves = limits.grid_cols if whole or pairs else min(cut.mme_cols, -(-blocks // tiles))
    each = -(-blocks // (halves * tiles))
    if grain > 1 or pairs:
        each = padded(each, grain) if padded(each, grain) <= limits.cols else limits.cols // grain * grain
        if not each:
            raise ScheduleError(f"{grain} column blocks that must stay together; a memory of results has {limits.cols}")
        tiles = -(-blocks // (halves * each))
    return tiles, halves, each


def product_tiles(
    gemm: Gemm, y: Columns, cut: Tiles, limits: GridLimits, statistics: Mapping[str, StoredStatistics]
) -> tuple[int, int, int]:
    """Cut the columns that a product computes, or that a pass goes over, as `column_tiles` does, with its result and
    its errors. y: layout of the result; a gated product computes twice as many columns. statistics: by the name of the
    activation (`statistics_of`)."""
    made = statistics.get(gemm.y)
    blocks = y.stored // TILE * (2 if gemm.gated else 1)
    grain = max(1, y.pitch // TILE) if gemm.in_heads else 1
    whole, pairs = gemm.norm is not None and not gemm.in_heads, made is not None and made.at_store
    return column_tiles(blocks, cut, whole, limits, pairs, grain)


def columns_of(
    network: LayerGraph,
    overlay: Overlay,
    cuts: Mapping[str, Tiles],
    limits: GridLimits,
    whole_tiles: bool,
    statistics: Mapping[str, StoredStatistics],
) -> dict[str, Columns]:
    """Choose the column layout of every activation; returns them by name.

    Attention heads lie `Overlay.head_pitch` columns apart; an activation that is computed in several column tiles and
    is not an output lies in panels; all others are plain. cuts: how the product that computes an activation is cut, by
    its name. statistics: by the name of the activation (`statistics_of`). whole_tiles: pad results to whole output
    tiles (`Schedule.whole_tiles`). Raises `UnsupportedError` naming the layer or output, `ScheduleError` like
    `column_tiles`."""
    outputs = {o.name for o in network.outputs}
    out: dict[str, Columns] = {n: Columns(1, c, padded(c, TILE)) for n, c in network.inputs.items()}
    for layer in network.layers:
        if isinstance(layer, Gemm):
            n, cut = layer.width, cuts[layer.y]
            whole = cut.tile_cols * TILE // (2 if layer.gated else 1)
            stored = padded(n, max(whole, TILE) if whole_tiles else TILE)
            out[layer.y] = Columns(1, n, stored)
            if layer.in_heads:  # below
                continue
            tiles, halves, blocks = product_tiles(layer, out[layer.y], cut, limits, statistics)
            panel = halves * blocks * TILE // (2 if layer.gated else 1)
            is_panels = tiles > 1 and layer.y not in outputs and panel % TILE == 0  # of whole slices of K
            out[layer.y] = Columns(1, n, stored, panel if is_panels else None)
    for layer in network.layers:
        if isinstance(layer, AttentionLayer):
            values = pipeline_of(overlay).values
            held = overlay.memory_of(values).columns
            if overlay.head_pitch(layer.head_dim) > held:
                raise UnsupportedError(
                    f"{layer.place}: heads of {layer.head_dim} columns; {values} of overlay {overlay.name} holds "
                    f"values of at most {held}"
                )
    lay_out_heads(network, out, lambda heads, width: Columns(heads, width, overlay.head_pitch(width)))
    return out | {y: out[name] for name, y in network.states.items()}
