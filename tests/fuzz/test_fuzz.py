"""Readers against hostile input: what fuzzing found, a small part of `tests/fuzz/mutate.py`, and hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.tests.effort import cases, in_full

from . import mutate
from .corpus import FOUND, covering
from .mutate import FoundError, at_most, run
from .targets import TARGETS, seeds

pytestmark = pytest.mark.long

REGRESSIONS = sorted(path for target in TARGETS for path in (FOUND / target).glob("*"))


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_what_was_found_stays_fixed(path: Path) -> None:
    """Each was once a crash or a hang; what it was is its name."""
    with at_most(30):
        TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_inputs_that_cover_the_reader(target: str) -> None:
    """A minimal set of inputs that reaches everything fuzzing has reached."""
    for data in covering(target):
        TARGETS[target](data)


@in_full
@pytest.mark.parametrize(("target", "count"), [("image", 4000), ("binary", 600), ("text", 300)])
def test_mutated_inputs(target: str, count: int) -> None:
    """Both outcomes, and the bounds of `tests/fuzz/mutate.py`."""
    count = cases(count, count // 4)
    outcomes = run(target, count, seed=1).outcomes
    assert outcomes.total() == count
    accepted = sum(outcomes[word] for word in ("image", "program", "kernels"))
    assert count / 50 < accepted < count


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=400))
def test_any_bytes(target: str, data: bytes) -> None:
    TARGETS[target](data)


CHANGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 16), st.binary(max_size=8)), min_size=1, max_size=4)
"""Where, how many bytes to take away, what to put there."""


@pytest.mark.parametrize("target", TARGETS)
@given(number=st.integers(0, 6), changes=CHANGES)
def test_changed_inputs(target: str, number: int, changes: list[tuple[int, int, bytes]]) -> None:
    data = seeds(target)[number]
    for at, removed, put in changes:
        at %= len(data) + 1
        data = data[:at] + put + data[at + removed :]
    TARGETS[target](data)


def test_a_reader_that_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "SECONDS", 0.05)
    monkeypatch.setattr(mutate, "_peak", lambda read, data: 0.0)
    calls = iter([False] * len(seeds("image")))

    def reader(data: bytes) -> str:
        while next(calls, True):
            pass
        return ""

    monkeypatch.setitem(TARGETS, "image", reader)
    with pytest.raises(FoundError, match="TimeoutError"):
        run("image", 1)


def test_a_reader_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "image", lambda data: [][len(data)])
    with pytest.raises(FoundError, match="IndexError: list index out of range"):
        run("image", 1)
