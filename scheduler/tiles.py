"""How a product is cut into output tiles, and a tile over MMEs (paper section 5.3)."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.errors import ScheduleError
from .knobs import check


@dataclass(frozen=True)
class Tiles:
    """How products are cut. tile_rows, tile_cols: the largest output tile, in 128-row and 128-column blocks (paper
    section 5.3: 768x1024). mme_rows, mme_cols: the grid of MMEs that a tile is divided over, at most: row groups are
    MemAs', columns MemBs'; an MME and its MemC take two row and four column blocks."""

    tile_rows: int = 6
    tile_cols: int = 8
    mme_rows: int = 3
    mme_cols: int = 2

    @property
    def words(self) -> str:
        grid = "" if (self.mme_rows, self.mme_cols) == (3, 2) else f" on {self.mme_rows}x{self.mme_cols} MMEs"
        return f"tiles of {128 * self.tile_rows}x{128 * self.tile_cols}{grid}"

    def __post_init__(self) -> None:
        check(self, but=("segments", "tiles", "rules"))  # of a Schedule, which looks at them itself
        if self.tile_rows not in (1, 2, 3, 4, 6):
            raise ScheduleError(f"tile_rows={self.tile_rows}: MemA and MemC hold tiles of 1, 2, 3, 4 or 6 row blocks")
        if not 1 <= self.tile_cols <= 8:
            raise ScheduleError(f"tile_cols={self.tile_cols}: two MemC of 512 columns hold 1 to 8 column blocks")
        for name, most, each in (("rows", 3, 2), ("cols", 2, 4)):
            grid, tile = getattr(self, f"mme_{name}"), getattr(self, f"tile_{name}")
            if not 1 <= grid <= most:
                raise ScheduleError(f"mme_{name}={grid}: the MMEs are a grid of 3 rows and 2 columns")
            if tile > grid * each:
                raise ScheduleError(f"mme_{name}={grid} takes tiles of at most {grid * each}, not tile_{name}={tile}")


@dataclass(frozen=True)
class RowTile:
    """Rows of one output tile: `groups` MemA with `acc` row blocks each, from row block `start` on."""

    start: int
    groups: int
    acc: int


def row_tiles(blocks: int, cut: Tiles) -> list[RowTile]:
    """Cut `blocks` row blocks into tiles that MemAs of two row blocks can hold; as many MemAs as there are."""
    shapes = {groups * acc: (groups, acc) for acc in (2, 1) for groups in range(1, cut.mme_rows + 1)}
    out, at = [], 0
    while at < blocks:
        n = max(s for s in shapes if s <= min(blocks - at, cut.tile_rows))
        out.append(RowTile(at, *shapes[n]))
        at += n
    return out


def column_tiles(blocks: int, cut: Tiles, whole: bool) -> tuple[int, int, int]:
    """Cut `blocks` column blocks into equal tiles: tiles, halves (MemB) in use, blocks in a half. `whole`: one tile
    over two MemCs, as a norm needs it."""
    tiles = 1 if whole else -(-blocks // cut.tile_cols)
    halves = 2 if whole or (blocks > tiles and cut.mme_cols == 2) else 1
    return tiles, halves, -(-blocks // (halves * tiles))
