"""What a MemC of overlay `xnn` does at a store beyond opcode 8: gates, norms of heads, rotations, statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.isa.overlays.xnn import formats as f
from rsn.tests.effort import examples
from rsn.tests.hw.store_modes import Halves, same

HEADS = {64: 1, 128: 2, 256: 3}


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(program: Halves) -> float:
    """What is stored, and the statistics behind it, are what numpy says; the seconds that it takes."""
    found, statistics, seconds = program.run()
    expected, wanted = program.expected()
    same(found, expected)
    if wanted is not None:
        np.testing.assert_allclose(statistics, wanted, rtol=1e-5, atol=1e-5)
    return seconds


def both(record: object) -> tuple:
    return record, record


def table(rows: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    return random(7, rows, head), random(8, rows, head)


@st.composite
def stores(draw: st.DrawFn) -> Halves:
    """Any store that the registers allow."""
    rows, cols = draw(st.sampled_from([128, 256])), draw(st.sampled_from([128, 256, 384, 512]))
    flags = {name: draw(st.integers(0, 1)) for name in ("gelu", "layernorm")}
    kind = draw(st.sampled_from(["row", "head", "statistics"])) if flags["layernorm"] else "row"
    gate, rotate = draw(st.integers(0, 1)) if flags["gelu"] else 0, draw(st.integers(0, 1))
    most = min(cols // 2, 256) if gate else cols
    head = draw(st.sampled_from([h for h in HEADS if h <= most]))
    grain = head if rotate or kind == "head" else 64
    stored = tuple(grain * draw(st.integers(1, most // grain)) for _ in range(2))
    repeats = draw(st.integers(1, 2)) if kind != "row" and not flags["gelu"] else 1
    config = f.MemCConfig(
        rms=draw(st.integers(0, 1)), activation=draw(st.integers(0, 4)), eps=draw(st.sampled_from([1e-6, 0.1]))
    )
    configs = tuple(config.replace(norm_cols=draw(st.integers(16, stored[j]))) for j in range(2))
    post = f.MemCStore(
        gate=gate,
        rotate=rotate,
        statistics=kind == "statistics",
        head_norm=kind == "head",
        head=HEADS[head],
        head_cols=draw(st.integers(16, head)),
    )
    x = random(draw(st.integers(0, 99)), 2, rows, cols)
    return Halves(x, stored, configs, both(post), flags, table(rows, head) if rotate else None, repeats)


@given(stores())
@examples(full=50, quick=5, deadline=None)
def test_stores_are_what_numpy_says(program: Halves) -> None:
    check(program)


def test_a_gate_multiplies_by_the_columns_behind() -> None:
    x = random(1, 2, 256, 256)
    program = Halves(x, (128, 64), both(f.MemCConfig(activation=3)), both(f.MemCStore(gate=1)), {"gelu": 1})
    wide = Halves(x, (128, 64), both(f.MemCConfig(activation=3)), flags={"gelu": 1})
    assert check(program) < check(wide)  # the activation walks over the columns of the gate alone


def test_heads_are_rotated_after_their_norm() -> None:
    post = f.MemCStore(head=2, head_norm=1, head_cols=80, rotate=1)
    check(
        Halves(
            random(2, 2, 256, 256), (256, 128), both(f.MemCConfig(rms=1)), both(post), {"layernorm": 1}, table(256, 128)
        )
    )


def test_statistics_follow_the_data_which_stay_as_they_are() -> None:
    post = f.MemCStore(statistics=1)
    config = (f.MemCConfig(norm_cols=256), f.MemCConfig(norm_cols=100))
    x = random(3, 2, 256, 256) * 3 + 1
    plain = check(Halves(x, (256, 128), config, flags={"layernorm": 1}))
    assert check(Halves(x, (256, 128), config, both(post), {"layernorm": 1})) < plain
    check(Halves(x, (256, 128), config, both(post), {"layernorm": 1}, repeats=3))  # quarters begin and end blocks
    check(Halves(x, (0, 0), config, both(post), {"layernorm": 1}))


@pytest.mark.parametrize(
    ("post", "flags", "stored", "message"),
    [
        (f.MemCStore(gate=1), {"gelu": 1}, 320, "MemC0: gate: stores 320 columns; 64 to 256 is possible"),
        (f.MemCStore(rotate=1, head=3), {}, 128, "stores 128 columns, which are no whole number of heads of 256"),
        (
            f.MemCStore(rotate=1, head=1),
            {},
            128,
            "its table holds 0 rows of 0 columns: load one of as many rows and 128",
        ),
    ],
)
def test_what_cannot_be_stored_is_refused(post: f.MemCStore, flags: dict[str, int], stored: int, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        Halves(random(4, 2, 128, 512), (stored, stored), post=both(post), flags=flags).run()
