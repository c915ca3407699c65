"""How a product is cut into output tiles, and an output tile is divided over MMEs (paper section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import ScheduleError
from .knobs import check


@dataclass(frozen=True)
class Tiles:
    """Limits on how products are cut into output tiles.

    tile_rows, tile_cols: largest output tile, in blocks of 128 rows and of 128 columns (paper section 5.3: 768x1024).
    mme_rows, mme_cols: largest grid of MMEs that computes one tile; each MemA feeds a row of the grid, each MemB a
    column. An MME and its MemC hold two row blocks by four column blocks. Raises `ScheduleError` for tiles that do not
    fit the machine or the grid.
    """

    tile_rows: int = 6
    tile_cols: int = 8
    mme_rows: int = 3
    mme_cols: int = 2

    @property
    def words(self) -> str:
        """Tile size in elements, and the grid if it is not the default, as text for the log of a search."""
        grid = "" if (self.mme_rows, self.mme_cols) == (3, 2) else f" on {self.mme_rows}x{self.mme_cols} MMEs"
        return f"tiles of {128 * self.tile_rows}x{128 * self.tile_cols}{grid}"

    def __post_init__(self) -> None:
        check(self, skip=("segments", "tiles", "rules"))  # fields of the subclass Schedule, which checks them itself
        if self.tile_rows not in (1, 2, 3, 4, 6):
            raise ScheduleError(f"tile_rows={self.tile_rows}: must be 1, 2, 3, 4 or 6 (row blocks in MemA and MemC)")
        if not 1 <= self.tile_cols <= 8:
            raise ScheduleError(f"tile_cols={self.tile_cols}: must be 1 to 8 (column blocks in two MemC)")
        for name, limit, each in (("rows", 3, 2), ("cols", 2, 4)):
            grid, tile = getattr(self, f"mme_{name}"), getattr(self, f"tile_{name}")
            if not 1 <= grid <= limit:
                raise ScheduleError(f"mme_{name}={grid}: must be 1 to {limit} (the MMEs form 3 rows of 2 columns)")
            if tile > grid * each:
                raise ScheduleError(
                    f"tile_{name}={tile} does not fit mme_{name}={grid}: that grid holds at most {grid * each} blocks"
                )


@dataclass(frozen=True)
class RowTile:
    """The rows of one output tile: `groups` MemAs hold `acc` row blocks each, from row block `start` on."""

    start: int
    groups: int
    acc: int


def row_tiles(blocks: int, cut: Tiles) -> list[RowTile]:
    """Cut `blocks` row blocks into tiles, each as large as cut.mme_rows MemAs (one or two row blocks each) and
    cut.tile_rows allow."""
    shapes = {groups * acc: (groups, acc) for acc in (2, 1) for groups in range(1, cut.mme_rows + 1)}
    out, at = [], 0
    while at < blocks:
        n = max(s for s in shapes if s <= min(blocks - at, cut.tile_rows))
        out.append(RowTile(at, *shapes[n]))
        at += n
    return out


def column_tiles(blocks: int, cut: Tiles, whole: bool) -> tuple[int, int, int]:
    """Cut `blocks` column blocks into equal tiles. Returns the number of tiles, of halves in use (MemBs), and of blocks
    in a half. whole: make one tile over two MemCs, as a norm needs whole rows."""
    tiles = 1 if whole else -(-blocks // cut.tile_cols)
    halves = 2 if whole or (blocks > tiles and cut.mme_cols == 2) else 1
    return tiles, halves, -(-blocks // (halves * tiles))
