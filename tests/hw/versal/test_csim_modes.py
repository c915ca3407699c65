"""Opcodes 9 to 13 on the C++ machine: what the model in Python computes, and what numpy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.program import Program, UnpackedProgram
from rsn.scheduler.pack import pack
from rsn.tests.effort import examples
from rsn.tests.hw import load_modes, score_modes, store_modes
from rsn.tests.hw.load_modes import Norm
from rsn.tests.hw.score_modes import Scores
from rsn.tests.hw.store_modes import Halves
from rsn.tests.hw.test_load_modes import norms
from rsn.tests.hw.test_score_modes import check as check_scores
from rsn.tests.hw.test_score_modes import programs as softmaxes
from rsn.tests.hw.test_store_modes import check as check_store
from rsn.tests.hw.test_store_modes import stores

from .native import check_same, native, on_both

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)
SEEDS = st.integers(1, 2**64 - 1)


def packed(units: dict[str, list[Any]], overlay: Overlay) -> Program:
    ops = {unit: tuple(x) for unit, x in units.items() if overlay.by_unit[unit].kind in overlay.preloaded}
    mops = {unit: tuple(x) for unit, x in units.items() if unit not in ops}
    return pack(UnpackedProgram(overlay, mops, ops))


def on_machine(
    units: dict[str, list[Any]], ddr: np.ndarray, lpddr: np.ndarray, overlay: Overlay = XNN
) -> tuple[np.ndarray, float]:
    """As `store_modes.run`: DDR after a program on the C++ machine, which must be what it is after one on the model."""
    model, machine = on_both(packed(units, overlay), {"ddr": ddr, "lpddr": lpddr})
    check_same(model, machine, within=1e-5)
    return machine["ddr"], 1.0


def stalled(seed: int) -> Any:
    """The same, of a run with pauses, which must give the bits of a run without."""

    def run(
        units: dict[str, list[Any]], ddr: np.ndarray, lpddr: np.ndarray, overlay: Overlay = XNN
    ) -> tuple[np.ndarray, float]:
        program = packed(units, overlay)
        plain, stalls = ({"ddr": ddr.copy(), "lpddr": lpddr.copy()} for _ in range(2))
        native().run(program, plain)
        native().run(program, stalls, stalls=seed)
        check_same(plain, stalls)
        return stalls["ddr"], 1.0

    return run


def check_load(program: Norm) -> None:
    for found, expected in zip(program.run()[0], program.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@given(stores())
@examples(24, quick=2, phases=UNSHRUNK, deadline=None)
def test_any_store(program: Halves) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_modes, "run", on_machine)
        check_store(program)


@given(norms())
@examples(16, quick=2, phases=UNSHRUNK, deadline=None)
def test_any_load_that_normalises(program: Norm) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_modes, "run", on_machine)
        check_load(program)


@given(softmaxes())
@examples(24, quick=2, phases=UNSHRUNK, deadline=None)
def test_any_softmax(program: Scores) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_modes, "run", on_machine)
        check_scores(program)


def test_a_softmax_that_leaves_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_modes, "run", on_machine)
    (even, odd), _ = score_modes.left_three_times(np.random.default_rng(4).standard_normal((2, 256, 128)) * 3)
    np.testing.assert_allclose(even[0].sum(axis=1) + odd[0].sum(axis=1), 1, rtol=1e-5)


@given(stores(), norms(), softmaxes(), SEEDS)
@examples(5, quick=1, phases=UNSHRUNK, deadline=None)
def test_stalls_change_no_bit(store: Halves, load: Norm, softmax: Scores, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for modes in (store_modes, load_modes, score_modes):
            patch.setattr(modes, "run", stalled(seed))
        check_store(store)
        check_load(load)
        check_scores(softmax)


@pytest.mark.parametrize("fields", [{}, {"alone": 1, "cap": 5.0}, {"offset": 30, "low": -20}], ids=str)
def test_scores_that_are_no_numbers(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite scores, NaN, and rows in which no key counts, in three parts: the same numbers, zeros and NaN."""
    x = np.random.default_rng(1).standard_normal((3, 2, 128, 128)).astype(np.float32)
    for row, value in enumerate((np.inf, -np.inf, np.nan, 3e38, -3e38)):
        x[row % 3, row % 2, row, :40] = value
        x[:, :, 10 + row] = value
    monkeypatch.setattr(score_modes, "run", on_machine)
    with np.errstate(invalid="ignore", over="ignore"):
        found, _ = Scores(x, **fields).run()
    good = np.isfinite(found[0]).all(axis=1)
    assert good[20:].all()
    assert not good.all()
