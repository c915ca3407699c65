"""A network that needs more memory than a bank holds is refused before any kernel is made."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from rsn.isa.layout import UNIT_BYTES
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.verify import check
from rsn.scheduler import bind as module
from rsn.scheduler.best import Best, choose
from rsn.scheduler.build import build
from rsn.scheduler.graph import LayerGraph
from rsn.scheduler.lower import lower
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.memory import RoomError
from rsn.scheduler.schedule import PAPER, Interleave, Loops, Schedule, Tiles
from rsn.scheduler.search import sample
from rsn.tests.effort import thinned

from .networks import Maker

BIASED = Maker().encoder(2, 200, 128, 2, 256, biases=(2, 2))
NETWORKS = {
    "product": Maker().gemm(300, 200, 700),
    "encoder": Maker().encoder(1, 200, 128, 2, 640, layers=4),
    "pre-norm": Maker().encoder(1, 130, 128, 2, 256, pre_norm=True),
    "biased": BIASED,
}
SCHEDULES = {
    "paper": PAPER,
    "rows": Schedule(interleave=Interleave.LISTED, loops=Loops.ROWS),
    "narrow tiles": Schedule(tile_cols=4),
    "scores in DDR": Schedule(attention=MappingType.B),
}


@dataclasses.dataclass
class Cost:
    """A `Price`."""

    latency: float
    busy: dict[str, float] = dataclasses.field(default_factory=dict)


def overlay(**banks: int) -> Overlay:
    """xnn with other banks, in bytes."""
    return dataclasses.replace(XNN, banks={**XNN.banks, **banks})


def needed(network: LayerGraph, schedule: Schedule = PAPER) -> dict[str, int]:
    """Bytes of each bank up to the end of its last buffer."""
    program = build(network, XNN, schedule).program
    return {bank: 4 * program.bank_size(bank) for bank in XNN.banks}


def refusal(network: LayerGraph, target: Overlay, schedule: Schedule = PAPER) -> str:
    with pytest.raises(RoomError) as refused:
        lower(network, target, schedule)
    return str(refused.value)


@pytest.mark.parametrize("bank", ["lpddr", "ddr"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", thinned(NETWORKS, 6))
def test_a_network_fits_in_what_its_program_spans_and_in_no_less(name: str, schedule: str, bank: str) -> None:
    network, chosen = NETWORKS[name], SCHEDULES[schedule]
    size = needed(network, chosen)[bank]
    program = build(network, overlay(**{bank: size}), chosen).program
    assert not [finding for finding in check(program) if finding.code == "B03"]
    assert f"bank {bank}" in refusal(network, overlay(**{bank: size - UNIT_BYTES}), chosen)


def test_weights() -> None:
    assert refusal(NETWORKS["encoder"], overlay(lpddr=500_000)) == (
        "the weights, padding included, need 5.63 MB in float32, but bank lpddr, which holds them, has 0.50 MB "
        "(banks of overlay xnn: ddr 8.59 GB, lpddr 0.50 MB): compile a model with fewer or smaller layers, or compile "
        "its parts separately, each for its own board"
    )


def test_activations() -> None:
    assert refusal(BIASED, overlay(ddr=1 << 20)) == (
        "the activations of 2 x 200 rows, with the biases of attention and all padding, need 2.92 MB in float32, but "
        "bank ddr, which holds them, has 1.05 MB (banks of overlay xnn: ddr 1.05 MB, lpddr 8.59 GB): compile for a "
        "smaller batch or for shorter sequences"
    )


def test_a_small_difference_is_shown() -> None:
    size = needed(NETWORKS["product"])["lpddr"]
    told = refusal(NETWORKS["product"], overlay(lpddr=size - UNIT_BYTES))
    assert "need 0.790 MB" in told
    assert "has 0.789 MB" in told


def test_it_is_refused_before_a_kernel_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*args: Any) -> None:
        raise AssertionError("a kernel was made")

    monkeypatch.setattr(module, "bind_gemms", made)
    monkeypatch.setattr(module, "bind_as", made)
    for size in ({"lpddr": 1 << 16}, {"ddr": 1 << 16}):
        with pytest.raises(RoomError):
            build(BIASED, overlay(**size), Best(1, cost=made))


@pytest.mark.long
def test_a_search_takes_no_schedule_that_pads_more_than_there_is_room_for() -> None:
    """The network has more layers than what is priced of it, so that only the whole does not fit. Narrow tiles pad
    640 columns to 1024, and are cheapest here."""
    network = NETWORKS["encoder"]
    assert len(sample(network).layers) < len(network.layers)
    narrow = ("gemm 128x640 gelu_tanh", Tiles(tile_cols=4))

    def cost(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Cost:
        return Cost(1.0 if narrow in schedule.tiles else 2.0 if schedule.rules else 3.0)

    best = Best(math.inf, cost=cost)
    assert narrow in choose(network, XNN, best).schedule.tiles
    tight = overlay(lpddr=max(needed(network, SCHEDULES[name])["lpddr"] for name in ("paper", "rows")))
    chosen = choose(network, tight, best).schedule
    assert narrow not in chosen.tiles
    assert lower(network, tight, chosen).kernels.buffers


def test_a_schedule_from_the_cache_is_for_the_same_banks(tmp_path: Any) -> None:
    network = NETWORKS["product"]
    best = Best(0.001, cache=tmp_path)
    assert not choose(network, XNN, best).why[0].startswith("from the cache")
    assert choose(network, XNN, best).why[0].startswith("from the cache")
    larger = overlay(lpddr=16 << 30)
    assert not choose(network, larger, best).why[0].startswith("from the cache")


def test_an_empty_network_needs_no_room() -> None:
    assert lower(LayerGraph(1, 1, {}, (), ()), overlay(ddr=0, lpddr=0), PAPER).weights == {}


def test_no_weight_is_made_to_be_measured() -> None:
    """8 GiB and more, of which one element exists."""
    network = Maker().gemm(1, 128, 128)
    gemm = dataclasses.replace(
        network.layers[0],
        weight=np.broadcast_to(np.float32(1), (16_000, 136_000)),
        bias=np.broadcast_to(np.float32(0), (136_000,)),
    )
    network = dataclasses.replace(network, inputs={"x": 16_000}, layers=(gemm,))
    told = refusal(network, XNN)
    assert "need 8.72 GB in float32, but bank lpddr, which holds them, has 8.59 GB" in told
