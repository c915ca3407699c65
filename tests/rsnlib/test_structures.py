"""Random structures of networks, on all overlays, whole and in pieces, against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from rsn.base.errors import UnsupportedError
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import OVERLAYS
from rsn.scheduler.lower import require_compilable
from rsn.tests.effort import cases, in_both, spread

from . import structures
from .structures import WAYS, Statement, Structure, chosen, drawn, outcome, shrunk

PARTS = 5
"""Tests that the structures are divided into."""
QUICK = ("erf", "cumsum", "topk", "gather", "bmm")
"""Operators of the normal form that `make test` tries."""
REST = [name for name in structures.FORM if name not in QUICK]
TOGETHER = 8
"""How many of the others are in one graph: much of what a graph takes does not depend on its size."""


@in_both
@pytest.mark.parametrize("part", range(PARTS))
def test_any_structure_is_right_or_refused(part: int) -> None:
    for seed in range(part, cases(500, 5, share=40), PARTS):
        structure = drawn(seed)
        for way in chosen(seed):
            result = outcome(structure, way)
            assert not result.startswith("wrong"), f"{way}: {result}\n{shrunk(structure, way)}"


def between_products(names: Sequence[str]) -> Structure:
    """Operators of the normal form beside each other, each between two products, with an output for each."""
    parts: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [("linear", ("x",), {"out": 32, "bias": True})]
    outputs = []
    for name in names:
        at = len(parts)
        parts += [("form", ("v0", "v0", "x"), {"name": name}), ("linear", (f"v{at}",), {"out": 32, "bias": True})]
        parts += [("add", (f"v{at}", f"v{at + 1}"), {"alpha": 1})]
        outputs.append(f"v{at + 2}")
    made = tuple(Statement(f"v{n}", op, xs, tuple(more.items())) for n, (op, xs, more) in enumerate(parts))
    return Structure(1, 2, 5, (("x", 32),), made, tuple(outputs))


@pytest.mark.parametrize(
    "names",
    [[name] for name in QUICK] + spread((REST[n : n + TOGETHER] for n in range(0, len(REST), TOGETHER)), 3),
    ids=" ".join,
)
def test_each_operator_of_the_normal_form(names: Sequence[str]) -> None:
    """Alone between products: right where the machine takes what is behind it, else refused. In pieces, several in one
    graph: right. Every operator of the table can be drawn."""
    for name in names:
        assert structures.drawer(structures.FORM[name]) is not None
        assert not outcome(between_products([name]), "xnn").startswith("wrong"), name
    if outcome(between_products(names), "torch.compile xnn2") != "right":
        assert {name: outcome(between_products([name]), "torch.compile xnn2") for name in names} == dict.fromkeys(
            names, "right"
        )
        pytest.fail("right alone, but not together")


@pytest.mark.long
def test_scores_of_the_host_alone() -> None:
    """In a piece, a sum behind which a softmax and a product stand may be of two arguments."""
    assert outcome(drawn(4126), "torch.compile xnn2") == "right"


def test_all_overlays_that_compile_models_are_ways() -> None:
    def compiles(overlay: Overlay) -> bool:
        with suppress(UnsupportedError):
            require_compilable(overlay)
            return True
        return False

    float32 = {name for name, overlay in OVERLAYS.items() if not overlay.integers and compiles(overlay)}
    assert float32 <= set(WAYS)


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
