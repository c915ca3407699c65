"""The DDR order keeps read-after-write and each MemC's delivery order, whatever the schedule."""

import pytest

from rsn.base.errors import ScheduleError
from rsn.isa.layout import BLOCK
from rsn.isa.overlays import XNN
from rsn.isa.work import Access
from rsn.scheduler.binder import TileAccesses
from rsn.scheduler.dram import order_accesses
from rsn.scheduler.lower import lower
from rsn.scheduler.schedule import PAPER, STRICT, Interleave, Schedule, Segment

from .networks import Maker


def load(row: int) -> Access:
    return Access("MemA0", False, BLOCK * row, BLOCK)


def store(row: int, unit: str = "MemC0") -> Access:
    return Access(unit, True, BLOCK * row, BLOCK)


def rows(tiles: list[TileAccesses], interleave: Interleave) -> list[str]:
    return [f"{'store' if m.store else 'load'} {m.addr // BLOCK}" for m in order_accesses(tiles, interleave)]


def test_stores_fall_between_the_next_tiles_loads() -> None:
    tiles = [TileAccesses([load(0)], [store(10), store(11)]), TileAccesses([load(1), load(2), load(3), load(4)])]
    assert rows(tiles, Interleave.INTERLEAVED) == [
        "load 0",
        "load 1",
        "load 2",
        "store 10",
        "load 3",
        "load 4",
        "store 11",
    ]
    assert rows(tiles, Interleave.STRICT) == ["load 0", "store 10", "store 11", "load 1", "load 2", "load 3", "load 4"]


def test_a_load_comes_behind_the_store_it_reads_and_what_is_before_that() -> None:
    tiles = [
        TileAccesses([load(0)], [store(10), store(11), store(12)]),
        TileAccesses([load(1), load(11), load(2), load(3)]),
    ]
    assert rows(tiles, Interleave.INTERLEAVED) == [
        "load 0", "load 1", "store 10", "store 11", "load 11", "load 2", "load 3", "store 12",
    ]  # fmt: skip


@pytest.mark.parametrize("schedule", [PAPER, STRICT])
def test_no_load_overtakes_a_store_to_what_it_reads(schedule: Schedule) -> None:
    """In program order activations are written before they are read; the DDR list keeps that, block by block."""
    network = Maker().encoder(2, 256, 256, 4, 512, layers=2)
    ddr = lower(network, XNN, schedule).kernels.sequences["DDR"]
    strict = lower(network, XNN, STRICT).kernels.sequences["DDR"]
    assert sorted(map(str, ddr)) == sorted(map(str, strict))

    def versions(mops) -> list[tuple[str, tuple[int, ...]]]:
        """Each load with how often each of its blocks has been written before it."""
        written: dict[int, int] = {}
        out = []
        for m in mops:
            blocks = [m.addr + c * m.chunk_stride + b * 512 for c in range(m.chunks) for b in range(m.size // 8192)]
            if m.load:
                out.append((str(m), tuple(written.get(b, 0) for b in blocks)))
            else:
                for b in blocks:
                    written[b] = written.get(b, 0) + 1
        return sorted(out)

    assert versions(ddr) == versions(strict)


@pytest.mark.parametrize(("rows", "interleave"), [(384, Interleave.STRICT), (512, Interleave.INTERLEAVED)])
def test_the_published_order_interleaves_from_whole_tiles_on(rows: int, interleave: Interleave) -> None:
    """Up to 384 rows a program goes layer by layer; above, each group of Table 9 does."""
    network = Maker().encoder(1, rows, 256, 4, 512, layers=2)
    published = lower(network, XNN, Schedule(interleave=Interleave.PUBLISHED)).kernels.sequences
    groups = tuple(Segment(f"*.{end}", overlap=False) for end in ("v_proj", "attention", "down"))
    assert published == lower(network, XNN, Schedule(interleave=interleave, segments=groups)).kernels.sequences
    other = Interleave.INTERLEAVED if interleave is Interleave.STRICT else Interleave.STRICT
    assert published["DDR"] != lower(network, XNN, Schedule(interleave=other, segments=groups)).kernels.sequences["DDR"]


def test_sequences_that_fill_one_half_tile_together_are_not_interleaved_either() -> None:
    network = Maker().encoder(3, 128, 256, 4, 512)
    published = lower(network, XNN, Schedule(interleave=Interleave.PUBLISHED)).kernels.sequences
    assert published == lower(network, XNN, STRICT).kernels.sequences


def test_list_scheduling_is_no_fixed_order() -> None:
    with pytest.raises(ScheduleError, match="interleave listed"):
        rows([TileAccesses([load(0)], [])], Interleave.LISTED)


def test_columns_of_an_input_are_not_those_of_a_layer() -> None:
    network = Maker().encoder(1, 128, 256, 4, 512, layers=1)
    with pytest.raises(ScheduleError, match="no layer computes x"):
        network.columns("x")
