"""Moves and renames change no bit of a program, no time and no weight; what does is recorded anew, on purpose."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from rsn.tests.effort import sampled
from rsn.tests.golden.programs import RECORD, cases, differences, facts, fingerprints


@cache
def recorded() -> Any:
    return json.loads(RECORD.read_text(encoding="utf-8"))


SLOW = ("bert-large", "encoder", "causal", "minilm", "vit", "family", "ncf", "mlp 2x128")
"""Beginnings of the names of programs that take a second or more, of which a quick run makes one."""
QUICK = {name for name in cases() if not name.startswith(SLOW)} | {"encoder 3x40 with masks, paper"}


@pytest.mark.parametrize("name", sampled(cases(), QUICK))
def test_a_program_is_what_was_recorded(name: str) -> None:
    assert list(differences(recorded()[name], facts(cases()[name]()))) == []


def test_overlays_have_the_fingerprints_that_were_recorded() -> None:
    assert recorded()["overlays"] == fingerprints()
    assert recorded().keys() == {"overlays", *cases()}
