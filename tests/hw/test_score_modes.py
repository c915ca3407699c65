"""The softmax of overlay `xnn` beyond opcode 8: rows whose keys come in parts, windows, left padding, soft caps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.versal.functions import activation
from rsn.machine.executor import ProcessNetwork
from rsn.tests.effort import examples
from rsn.tests.hw.score_modes import Scores, left_three_times


def random(seed: int, *shape: int, size: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)


def check(program: Scores) -> float:
    found, seconds = program.run()
    for a, b in zip(found, program.expected(), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-6)
    return seconds


@st.composite
def programs(draw: st.DrawFn) -> Scores:
    rows, cols = draw(st.sampled_from([128, 256])), draw(st.sampled_from([128, 256]))
    parts = draw(st.booleans())
    chunks, alone = draw(st.integers(1, 3)) if parts else 1, draw(st.integers(0, 1))
    keys = chunks * cols * (1 if alone else 2)

    def some(low: int, high: int) -> int | None:
        return draw(st.none() | st.integers(low, high))

    return Scores(
        random(draw(st.integers(0, 99)), chunks, 2, rows, cols, size=draw(st.sampled_from([1.0, 30.0]))),
        parts,
        alone,
        scale=draw(st.sampled_from([1.0, 0.25])),
        cap=draw(st.none() | st.sampled_from([5.0, 50.0])),
        first=some(0, keys) or 0,
        end=some(0, keys),
        offset=some(-rows, keys),
        low=some(-rows, keys),
    )


@given(programs())
@examples(full=50, quick=5, deadline=None)
def test_softmax_is_what_numpy_says(program: Scores) -> None:
    check(program)


@pytest.mark.long
def test_as_many_keys_as_the_description_says() -> None:
    check(Scores(random(2, 16, 2, 128, 256, size=3.0), first=1000, end=8000, low=-3000, offset=7500))


def test_parts_take_the_time_of_their_passes() -> None:
    """Two passes for maxima and sums, and one more to apply them; a soft cap takes eight times as long as one."""
    x = random(1, 2, 2, 128, 256)
    free = {name: 1e30 if rate.unit == "GB/s" else 0.0 for name, rate in XNN.rates.items() if "soft" not in name}
    overlay = XNN.with_rates(**free)
    plain, capped = Scores(x).run(overlay)[1], Scores(x, cap=20.0).run(overlay)[1]
    beats, fills = 128 * 256 // 32, 4 * 50 + 2 * 30
    assert plain * XNN.clock_hz == pytest.approx(2 * 3 * beats + fills, abs=0.01)
    assert capped - plain == pytest.approx(4 * beats * XNN.seconds["softcap_beat"])


def test_a_softmax_that_leaves_more_than_once_has_its_factors_once() -> None:
    """Before a post-op all of the slot is multiplied, in a pass; a store without one multiplies on the way."""
    x = random(3, 2, 256, 128, size=3.0)
    scores = np.concatenate(x, axis=1).astype(np.float64)
    exps = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax = exps / exps.sum(axis=1, keepdims=True)
    once = activation(softmax, 0)
    found, _ = left_three_times(x)
    for j, stored in enumerate(found):
        part = np.s_[:, j * 128 : j * 128 + 128]
        for a, b in zip(stored, (softmax, once, activation(once, 0)), strict=True):
            np.testing.assert_allclose(a, b[part], rtol=3e-5, atol=1e-6)
    free = {name: 1e30 if rate.unit == "GB/s" else 0.0 for name, rate in XNN.rates.items() if name != "softmax_beat"}
    _, seconds = left_three_times(x, XNN.with_rates(**free))
    assert seconds * XNN.clock_hz == pytest.approx(2 * 256 * 128 / 32 + 256 * 512 / 32, abs=0.01)


def test_keys_without_a_first_part_are_refused() -> None:
    recv = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=0, softmax=1)
    for part in (2, 3):
        units = {"MemC0": [f.MemCConfig(alone=1), f.MemCScores(part=part), recv]}
        with pytest.raises(ProgramError, match=r"MemC0: takes further keys of 128 rows; .* kept of 0 rows"):
            ProcessNetwork(XNN, units, banks={"ddr": np.zeros(1), "lpddr": np.zeros(1)}, data=True).run()


def test_keys_of_which_maxima_and_sums_are_kept_are_undefined() -> None:
    ddr = np.zeros(16384, np.float32)
    units = {
        "MemC0": [
            f.MemCConfig(alone=1),
            f.MemCScores(part=1),
            f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=0, softmax=1),
            f.MemC(store=1, dim1=128, dim2=128),
        ],
        "DDR": [f.Transfer(0, 16384, True, "MemC0")],
    }
    with np.errstate(invalid="ignore"):
        ProcessNetwork(XNN, units, banks={"ddr": ddr, "lpddr": np.zeros(1)}, data=True).run()
    assert np.isnan(ddr).all()
