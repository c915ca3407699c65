"""What left memories load besides slices of a product: tiles that they pass on, and statistics of rows by which they
normalise what they load."""

from __future__ import annotations

from collections.abc import Callable

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK, QUARTER, UNIT
from ..isa.work import Access, Load, LoadNorm, Send
from .binder import Binder, TileAccesses
from .graph import Gemm, Norm
from .refusal import require
from .tile import TILE, OutputRows

NormOf = Callable[[int, int], LoadNorm | None]
"""Of tiles `first` to `first + count - 1` of those that a left memory passes on, the norm."""


def pass_tiles(s: Binder, unit: str, tiles: int, norm_of: NormOf = lambda first, count: None) -> None:
    """Append the work of the left memory `unit`, which loads `tiles` tiles of 128x128 and sends each once, as many at a
    time as it holds. norm_of: the norm of a load, by the number of its first tile and the count of its tiles; by
    default none."""
    most_held = s.overlay.memory_of(unit).rows // TILE
    for t in range(0, tiles, most_held):
        held = min(most_held, tiles - t)
        load = Load(TILE * held, TILE, source=s.grid.activations, norm=norm_of(t, held))
        s.turn(unit, load, Send(held, 1))


def statistics_name(name: str) -> str:
    """The name of the buffer of the statistics of an activation."""
    return f"{name}.statistics"


def statistics_size(s: Binder, name: str) -> int:
    """Number of elements of the statistics of the activation `name`, padded to whole blocks: a quarter block for 128
    rows and a part of the columns. Raises `KeyError` for an activation without statistics."""
    size = s.row_blocks_of(name) * s.tiled.statistics[name].parts * QUARTER
    return -(-size // BLOCK) * BLOCK


def statistics_at(s: Binder, name: str, row: int, part: int) -> int:
    """The number of the first element, in its bank, of the statistics of a row block and a part of the columns. name:
    of the activation; raises `KeyError` if it has no statistics. row: number of the row block. part: number of the
    part."""
    buffer = s.buffers[statistics_name(name)]
    return buffer.offset * UNIT + (row * s.tiled.statistics[name].parts + part) * QUARTER


def check(s: Binder, gemm: Gemm) -> None:
    """Raise `UnsupportedError`, naming the layer, for norms of operands that the overlay cannot apply as it loads: it
    lacks the capability, there are more parts than a load joins, the eps is 0, or the operand lies in heads with
    padding between them."""
    for name, norm in ((gemm.x, gemm.x_norm), (gemm.residual, gemm.residual_norm)):
        if norm is None or name is None:
            continue
        x, parts = s.columns[name], s.tiled.statistics[name].parts
        what = f"{'RMSNorm' if norm.rms else 'LayerNorm'} over {x.count} columns of its operand"
        if x.count != x.end:
            raise UnsupportedError(f"{gemm.place}: {what}, which lie in heads with padding between them")
        if not norm.eps > 0:
            raise UnsupportedError(
                f"{gemm.place}: {what} with eps {norm.eps:g}, which makes no numbers of rows of zeros"
            )
        require(gemm.place, what, s.overlay, "normalise", s.overlay.by_unit[s.grid.left[0]], parts=parts)
        require(gemm.place, what, s.overlay, "statistics", s.overlay.by_unit[s.grid.results[0][0]])


def fresh_statistics(s: Binder, name: str, norm: Norm | None, row: OutputRows, i: int, tile: TileAccesses) -> int:
    """Append the load of the statistics of the rows of grid row i into its left memory, unless it has them. Returns how
    many row tiles of statistics it takes before its next load, 0 if it has them or if `norm` is None.

    name: of the activation. row: the rows of the output tile. tile: receives the access.
    """
    unit = s.grid.left[i]
    at = row.start + i * row.acc
    key = name, norm, at, row.acc
    if norm is None or s.held.get(unit) == key:
        return 0
    s.held[unit] = key
    # The slot filled last is sent before: the statistics may depend on it, or stores that come first in memory
    s.turn(unit, None, None)
    size = row.acc * s.tiled.statistics[name].parts * QUARTER
    tile.loads.append(Access(unit, False, statistics_at(s, name, at, 0), size))
    return row.acc


def load_norm(
    s: Binder, name: str, norm: Norm | None, fresh: int, first: int = 0, same: bool = False
) -> LoadNorm | None:
    """The norm of a load of the activation `name`, which must have statistics; None if `norm` is None. fresh: row tiles
    whose statistics come with it. first: the row tile of the memory at which the load begins. same: all tiles of the
    load are of that row tile."""
    if norm is None:
        return None
    parts = s.tiled.statistics[name].parts
    return LoadNorm(norm.eps, norm.rms, parts, fresh, first, same)
