"""Panels of xnn8 in turn: each has its steps in their order, and what both share belongs to one at a time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rsn.scheduler.integer_turns import PanelStep, ordered
from rsn.tests.effort import examples

ANY: Any = None
"""A layer, or what emits a step: neither matters here."""


@st.composite
def steps_of_a_panel(draw: st.DrawFn) -> list[PanelStep]:
    seconds = st.floats(0.0, 9.0)
    made: list[PanelStep] = []
    walk = 0
    for _ in range(draw(st.integers(1, 9))):
        needs = draw(st.integers(0, 2))  # nothing, a new walk, or what the last one has left
        walk += needs == 1
        waits, bound = draw(st.booleans()), bool(made) and draw(st.booleans())
        made.append(PanelStep(ANY, ANY, draw(seconds), draw(seconds), waits, walk * (needs > 0), bound))
    return made


@examples(100, quick=25)
@given(steps_of_a_panel(), st.integers(1, 5))
def test_an_order_of_panels(steps: list[PanelStep], panels: int) -> None:
    alone, both = ordered(steps, panels, 1), ordered(steps, panels, 2)
    assert [number for number, _ in alone.steps] == [n for n in range(panels) for _ in steps]
    for order in (alone, both):
        of_panels: dict[int, list[PanelStep]] = {n: [] for n in range(panels)}
        held: int | None = None
        before = -1
        for number, step in order.steps:
            at = len(of_panels[number])
            assert step is steps[at]
            assert not step.bound or number == before
            if step.walk:
                assert held in (None, number)
                held = number if any(later.walk == step.walk for later in steps[at + 1 :]) else None
            if number > 1:  # a turn begins a panel when its last one has ended
                assert len(of_panels[number - 2]) == len(steps) or order is alone
            of_panels[number].append(step)
            before = number
        assert all(len(made) == len(steps) for made in of_panels.values())
        for work in (sum(step.tiles for step in steps), sum(step.lanes for step in steps)):
            assert order.seconds >= panels * work * (1 - 1e-9)


def test_one_panel_works_while_the_other_waits() -> None:
    """A block of tiles' work whose results take as long: two panels in turn take half of the time."""
    steps = [PanelStep(ANY, ANY, 1.0, 1.0)] * 10
    assert ordered(steps, 2, 1).seconds == 40
    assert ordered(steps, 2, 2).seconds == 21
