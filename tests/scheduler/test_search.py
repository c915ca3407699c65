"""The search for a schedule: never worse than what it begins with, the same every time, and kept."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import DeadlockError, ProgramError, ScheduleError, UnsupportedError
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.machine.timing import RunTiming
from rsn.scheduler import best as best_module
from rsn.scheduler import search as module
from rsn.scheduler.best import Best, Chosen, choose
from rsn.scheduler.build import build
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph, Output
from rsn.scheduler.schedule import PAPER, Interleave, Schedule
from rsn.scheduler.search import SearchResult, describe, first, price, sample, search
from rsn.tests.effort import spread, thinned

from .networks import Maker, error, execute, reference
from .test_memories import overlay_of


class Clock:
    """`time.monotonic` for a search, which counts calls: a budget is then a number of calls."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*args: Any, **more: Any) -> SearchResult:
        monkeypatch.setattr(module, "time", Clock())
        return search(*args, **more)

    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setattr(best_module, "search", begun)


def searched(network: LayerGraph, calls: float = 60, seed: int = 0, **more: Any) -> SearchResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", Clock())
        return search(network, more.pop("overlay", XNN), calls, seed, **more)


def encoder(layers: int = 1, **changes: Any) -> LayerGraph:
    shape = {"batch": 1, "seq": 300, "hidden": 128, "heads": 2, "ffn": 600} | changes
    return Maker().encoder(layers=layers, **shape)


# -- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(encoder(), id="encoder"),
        pytest.param(encoder(3, seq=128, ffn=200), id="three layers", marks=pytest.mark.long),
        pytest.param(encoder(batch=2, seq=256, heads=1, hidden=64), id="batch", marks=pytest.mark.long),
        pytest.param(Maker().gemm(700, 128, 1500), id="gemm", marks=pytest.mark.long),
        pytest.param(Maker().gemm(1, 1, 1), id="tiny gemm"),
        pytest.param(Maker().encoder(1, 900, 64, 1, 64), id="long", marks=pytest.mark.long),
    ],
)
def test_what_is_found_is_no_worse_than_the_published_order(network: LayerGraph) -> None:
    found = searched(network)
    small = sample(network)
    assert price(small, XNN, found.schedule).latency == found.latency_s <= price(small, XNN, PAPER).latency
    assert price(network, XNN, found.schedule).latency <= price(network, XNN, PAPER).latency * (1 + 1e-9)
    assert all(s <= found.latency_s for s in found.busy.values())
    assert (found.sampled, found.segments) == (len(small.layers), len(network.layers))


def test_it_finds_something() -> None:
    """On the base machine, where the published order is the paper's; a quarter of it after twenty tries."""
    network = Maker().encoder(1, 384, 1024, 16, 1024)
    found = searched(network, 25, overlay=XNN_BASE)
    assert found.schedule.interleave is Interleave.LISTED
    assert found.latency_s < 0.97 * price(network, XNN_BASE, PAPER).latency
    assert len(found.steps) >= 2
    assert found.steps[0].startswith("as in the paper: ")


def test_what_is_found_computes_the_same() -> None:
    network = encoder(2, seq=200, heads=3, hidden=60)
    schedule = searched(network).schedule
    x = np.random.default_rng(0).standard_normal((1, 200, 60)).astype(np.float32)
    y, _, _ = execute(network, x, XNN, schedule)
    assert error(y, reference(network, x)) < 1e-4


@pytest.mark.long
def test_the_same_every_time() -> None:
    one, two = (searched(encoder(), 50, seed=3) for _ in range(2))
    assert one == two
    assert one.tried > 20


def test_the_seed_decides_what_is_tried_first() -> None:
    tried: list[Schedule] = []
    orders = set()
    for seed in range(2):
        tried.clear()
        searched(encoder(seq=200), 30, seed=seed, cost=_noting(tried))
        orders.add(tuple(tried))
    assert len(orders) > 1


def _noting(tried: list[Schedule]) -> Callable[..., RunTiming]:
    def noting(network: LayerGraph, overlay: Any, schedule: Schedule) -> RunTiming:
        tried.append(schedule)
        return price(network, overlay, schedule)

    return noting


@pytest.mark.parametrize("calls", spread([1, 2, 5, 13, 14, 40], 3, quick=[2]))
def test_a_longer_budget_is_no_worse(calls: int) -> None:
    assert searched(encoder(), calls + 20).latency_s <= searched(encoder(), calls).latency_s


def test_the_shortest_budget_gives_something() -> None:
    found = searched(encoder(), 1e-300)
    assert found.schedule == PAPER


def test_a_search_without_end_ends_where_no_rule_is_better() -> None:
    found = searched(Maker().gemm(256, 128, 256), math.inf)
    assert found.tried < 200
    again = searched(Maker().gemm(256, 128, 256), 1e9)
    assert again == found


def test_progress_is_a_share_that_grows() -> None:
    shares: list[float] = []
    searched(encoder(), 40, progress=shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.2
    assert 0.8 < shares[-1] <= 1


@pytest.mark.parametrize("budget", [0, 0.0, -1, -math.inf, math.nan])
def test_a_budget_is_a_time(budget: float) -> None:
    with pytest.raises(ScheduleError, match="budget"):
        search(encoder(), XNN, budget)
    with pytest.raises(ScheduleError, match=f"budget={budget}: must be more than 0 seconds"):
        Best(budget)


def test_a_seed_is_not_negative() -> None:
    with pytest.raises(ScheduleError, match="seed=-1: "):
        Best(seed=-1)


def test_what_the_machine_cannot_run_is_refused_as_without_a_search() -> None:
    network = Maker().encoder(1, 128, 320, 1, 128)
    with pytest.raises(UnsupportedError, match=r"l0.attention: heads of 320 columns"):
        searched(network)


def test_tiles_that_the_machine_does_not_hold_are_passed_over() -> None:
    """Memories of one row block hold no tile of four on two rows of MMEs."""
    overlay = overlay_of({"MemA": {"rows": 128}})
    tried: list[Schedule] = []
    searched(Maker().gemm(900, 64, 700), math.inf, overlay=overlay, cost=_noting(tried))
    rows = {cut.tile_rows for schedule in tried for _, cut in schedule.tiles}
    assert rows == {3, 6}


@pytest.mark.long
def test_schedules_that_do_not_run_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one without an image does not count, however quick."""
    network = encoder()

    def fragile(network: LayerGraph, overlay: Any, schedule: Schedule) -> RunTiming:
        if schedule.balance:
            raise DeadlockError(lambda: None)  # type: ignore[arg-type, return-value]
        return price(network, overlay, schedule)

    found = searched(network, cost=fragile)
    assert not found.schedule.balance

    def unpackable(kernels: Any, starts: object = None) -> Any:
        raise ProgramError("MME0 needs 511 ops but holds at most 510")

    monkeypatch.setattr(module, "pack", unpackable)
    assert searched(network, cost=fragile).schedule == PAPER


@pytest.mark.long
def test_images_that_are_too_large_are_dear() -> None:
    """An overlay without room for any but the smallest image."""
    network = encoder()
    assert searched(network).schedule != PAPER
    tight = dataclasses.replace(XNN, image_bytes=100)
    assert searched(network, overlay=tight).schedule == PAPER


# -- what stands for a network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layers", "kept"), [(1, 1), (2, 2), (3, 2), (24, 2)])
def test_two_of_many_equal_layers_stand_for_all(layers: int, kept: int) -> None:
    network = encoder(layers, seq=128, hidden=64, heads=1, ffn=64)
    small = sample(network)
    assert small.layers == network.layers[: 7 * kept]
    assert [o.name for o in small.outputs] == [f"l{kept - 1}.y"]
    if kept == layers:
        assert small is network


def chain(*widths: int) -> LayerGraph:
    make = Maker()
    layers = tuple(
        Gemm(f"g{i}", f"y{i}" if i else "x", f"y{i + 1}", make.matrix(a, b), make.vector(b))
        for i, (a, b) in enumerate(pairwise(widths))
    )
    return LayerGraph(1, 64, {"x": widths[0]}, (Output(f"y{len(layers)}"),), layers)


@pytest.mark.parametrize(
    ("widths", "kept"),
    [
        ((64, 64, 64, 64), 2),
        ((64, 64, 64), 2),
        ((64, 64), 1),
        ((64, 128, 64, 128, 64, 128, 64), 4),
        ((64, 128, 64, 128, 64, 128, 64, 128), 7),  # half a repetition is left over
        ((64, 64, 64, 128), 3),
        ((32, 64, 64, 64), 3),
        ((64, 65, 64, 128, 64, 65, 64, 128, 64), 8),  # twice is not more than two
    ],
)
def test_unequal_layers_stand_for_themselves(widths: tuple[int, ...], kept: int) -> None:
    small = sample(chain(*widths))
    assert len(small.layers) == kept
    searched(chain(*widths), 20)  # whose image is reckoned from the sample


def test_products_that_are_lowered_together_stay_together() -> None:
    """Rules are named by how many there are: those of a part would be rules about nothing."""
    make = Maker()
    layers = tuple(Gemm(f"g{i}", "x", f"y{i}", make.matrix(64, 64), make.vector(64)) for i in range(6))
    network = LayerGraph(1, 200, {"x": 64}, tuple(Output(layer.y) for layer in layers), layers)
    build(network, XNN, searched(network, 20).schedule)


def test_a_layer_that_reaches_back_further_is_another_one() -> None:
    network = encoder(6, seq=128, hidden=64, heads=1, ffn=64)
    layers = list(network.layers)
    far = layers[-1]
    assert isinstance(far, Gemm)
    layers[-1] = dataclasses.replace(far, residual="l0.x1")
    odd = dataclasses.replace(network, layers=tuple(layers))
    assert len(sample(odd).layers) == 42
    assert len(sample(network).layers) == 14


def test_the_size_of_the_whole_is_reckoned_from_three_repetitions() -> None:
    network = encoder(5, seq=128, hidden=64, heads=1, ffn=64)
    size = module._Size(network, sample(network), XNN)
    assert size.bytes(PAPER) == pytest.approx(4 * len(build(network, XNN, PAPER).program.image), rel=0.05)
    one = first(network, 7)
    alone = module._Size(one, sample(one), XNN)
    assert alone.bytes(PAPER) == 4 * len(build(one, XNN, PAPER).program.image)


# -- what is kept --------------------------------------------------------------------------------------------------


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[LayerGraph]:
    """The networks that a search was made for."""
    seen: list[LayerGraph] = []
    counted = best_module.search

    def noting(network: LayerGraph, *args: Any, **more: Any) -> SearchResult:
        seen.append(network)
        return counted(network, *args, **more)

    monkeypatch.setattr(best_module, "search", noting)
    return seen


SMALL = Maker().gemm(300, 64, 200)


def test_a_second_time_nothing_is_searched(tmp_path: Path, searches: list[LayerGraph]) -> None:
    best = Best(20, cache=tmp_path / "a" / "b")
    one = choose(SMALL, XNN, best)
    two = choose(Maker(np.random.default_rng(9)).gemm(300, 64, 200), XNN, best)  # other numbers, same shape
    assert len(searches) == 1
    assert two.schedule == one.schedule
    assert one.why[0] == "searched for 20 s at most"
    assert two.why == ("from the cache: searched for 20 s at most, in an earlier run", *one.why[1:])
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert file.read_text() == one.show()


def test_a_shorter_budget_takes_what_is_there_a_longer_one_searches(tmp_path: Path, searches: list[LayerGraph]) -> None:
    for budget, wanted in (
        (20.0, 1),
        (5.0, 1),
        (19.999, 1),
        (20.0001, 2),
        (20.0001, 2),
        (1234567.25, 3),
        (1234567.25, 3),
    ):
        choose(SMALL, XNN, Best(budget, cache=tmp_path))
        assert len(searches) == wanted
    assert len(list(tmp_path.iterdir())) == 1


OTHERS: dict[str, Callable[[pytest.MonkeyPatch], tuple[LayerGraph, Any, int]]] = {
    "rows": lambda patch: (Maker().gemm(301, 64, 200), XNN, 0),
    "columns": lambda patch: (Maker().gemm(300, 64, 201), XNN, 0),
    "batch": lambda patch: (dataclasses.replace(SMALL, batch=2, seq=150), XNN, 0),
    "overlay": lambda patch: (SMALL, XNN_BASE, 0),
    "rate": lambda patch: (SMALL, XNN.with_rates(ddr_read_gbs=20.0), 0),
    "depth": lambda patch: (SMALL, XNN.with_rates(mop_fifo_depth=8), 0),
    "stream": lambda patch: (SMALL, XNN.with_depths({"DDR->MemA0": 512}), 0),
    "seed": lambda patch: (SMALL, XNN, 1),
    "version": lambda patch: (patch.setattr(best_module, "VERSION", -1), (SMALL, XNN, 0))[1],  # type: ignore[func-returns-value]
}


@pytest.mark.parametrize("what", thinned(OTHERS, 3))
def test_another_one_is_searched_for(
    what: str, tmp_path: Path, searches: list[LayerGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(SMALL, XNN, Best(20, cache=tmp_path))
    network, overlay, seed = OTHERS[what](monkeypatch)
    choose(network, overlay, Best(20, seed, cache=tmp_path))
    assert len(searches) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_all_that_matters_of_a_network_is_in_its_description() -> None:
    network = encoder()
    attention, dense, up = network.layers[3:6]
    assert isinstance(attention, AttentionLayer)
    assert isinstance(dense, Gemm)
    assert isinstance(up, Gemm)
    changed = [
        (3, dataclasses.replace(attention, masked=True)),
        (3, dataclasses.replace(attention, heads=4, head_dim=32)),
        (3, dataclasses.replace(attention, q="l0.k", k="l0.q")),
        (4, dataclasses.replace(dense, residual=None, residual_scale=None)),
        (4, dataclasses.replace(dense, norm=None)),
        (5, dataclasses.replace(up, activation=None)),
        (5, dataclasses.replace(up, x="l0.c")),
    ]
    seen = {describe(network)}
    for at, layer in changed:
        layers = (*network.layers[:at], layer, *network.layers[at + 1 :])
        seen.add(describe(dataclasses.replace(network, layers=layers)))
    assert len(seen) == 1 + len(changed)
    renamed = tuple(dataclasses.replace(layer, path="other") for layer in network.layers)
    assert describe(dataclasses.replace(network, layers=renamed)) in seen


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"# \n",
        b"# searched for\n",
        b"# searched for ever s\n",
        b"# searched for 20 s\nrules = 3\n",
        b"# searched for 20 s\ninterleave = ",
        b"# searched for 20 s\nno_such_knob = 3\n",
        b"\xff\xfe\x00",
        b"[" * 5000,
        bytes(range(128, 192)),
    ],
)
def test_a_broken_file_is_searched_anew(damage: bytes, tmp_path: Path, searches: list[LayerGraph]) -> None:
    best = Best(20, cache=tmp_path)
    one = choose(SMALL, XNN, best)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage)
    assert choose(SMALL, XNN, best) == one
    assert len(searches) == 2
    assert file.read_text() == one.show()


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, searches: list[LayerGraph]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed").chmod(0o500)
    for folder in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "closed" / "new", Path("/proc/rsn")):
        assert isinstance(choose(SMALL, XNN, Best(5, cache=folder)), Chosen)
    assert len(searches) == 4


def test_where_the_file_should_be_there_is_a_folder(tmp_path: Path, searches: list[LayerGraph]) -> None:
    best = Best(5, cache=tmp_path)
    choose(SMALL, XNN, best)
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    choose(SMALL, XNN, best)
    assert len(searches) == 2
    assert [p.name for p in tmp_path.iterdir()] == [file.name]  # and no temporary file


def test_the_users_cache_is_where_xdg_says(
    tmp_path: Path, searches: list[LayerGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    built = build(SMALL, XNN, Best(5))
    assert len(list((tmp_path / "xdg" / "rsn" / "schedules").glob("*.toml"))) == 1
    assert build(SMALL, XNN, Best(5)).chosen.schedule == built.chosen.schedule
    assert len(searches) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    build(SMALL, XNN, Best(5))
    assert len(list((tmp_path / "home" / ".cache" / "rsn" / "schedules").glob("*.toml"))) == 1
