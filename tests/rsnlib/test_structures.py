"""Random structures of networks, on all overlays, whole and in pieces, against PyTorch."""

from __future__ import annotations

import pytest

from rsn.tests.effort import cases, in_both

from . import structures
from .structures import WAYS, Structure, chosen, drawn, outcome, shrunk

PARTS = 5
"""Tests that the structures are divided into."""


@in_both
@pytest.mark.parametrize("part", range(PARTS))
def test_any_structure_is_right_or_refused(part: int) -> None:
    for seed in range(part, cases(1500, 5), PARTS):
        structure = drawn(seed)
        for way in chosen(seed):
            result = outcome(structure, way)
            assert not result.startswith("wrong"), f"{way}: {result}\n{shrunk(structure, way)}"


def test_structures_follow_from_their_seeds() -> None:
    assert drawn(3) == drawn(3)
    assert len({str(drawn(seed)) for seed in range(20)}) == 20
    assert {way for seed in range(20) for way in chosen(seed)} == set(WAYS)


def test_a_wrong_structure_becomes_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that whatever has a norm is wrong: what is left is a norm."""

    def has_norm(structure: Structure, way: str) -> str:
        return "wrong: 1" if any(s.op == "layer_norm" for s in structure.statements) else "right"

    monkeypatch.setattr(structures, "outcome", has_norm)
    structure = next(s for s in map(drawn, range(50)) if has_norm(s, "") != "right" and len(s.statements) > 5)
    small = shrunk(structure, "xnn")
    assert has_norm(small, "") != "right"
    assert len(small.statements) <= 2
