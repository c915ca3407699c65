"""What a MemA of overlay `xnn` does at a load: (x - mean) / sqrt(variance + eps) of rows, by statistics from DDR."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.tests.effort import examples
from rsn.tests.hw.load_modes import Norm


@st.composite
def norms(draw: st.DrawFn) -> Norm:
    tiles, parts = (
        draw(st.integers(1, 2)),
        tuple(draw(st.lists(st.sampled_from([128, 192, 1024]), min_size=1, max_size=8))),
    )
    loads = []
    for _ in range(draw(st.integers(1, 3))):
        count, same = draw(st.integers(1, tiles)), draw(st.integers(0, 1))
        loads.append((count, draw(st.integers(0, tiles - (1 if same else count))), same))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x = random.standard_normal((128 * tiles, sum(parts))) * random.uniform(0.1, 9) + random.uniform(-3, 3)
    return Norm(x.astype(np.float32), parts, tuple(loads), draw(st.integers(0, 1)), draw(st.sampled_from([1e-6, 0.1])))


@given(norms())
@examples(full=40, quick=4, deadline=None)
def test_rows_are_normalised_as_they_are_loaded(program: Norm) -> None:
    for found, expected in zip(program.run()[0], program.expected(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_a_load_without_statistics_is_refused() -> None:
    x = np.ones((128, 128), np.float32)
    with pytest.raises(ProgramError, match="MemA0: normalises by the statistics of row tile 1; those of 1 row tiles"):
        Norm(x, (128,), ((1, 1, 0),)).run()
