"""Moves and renames change no bit of a program, no time and no weight; what does is recorded anew, on purpose."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from rsn.tests.golden.programs import RECORD, cases, differences, facts, fingerprints


@cache
def recorded() -> Any:
    return json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", cases())
def test_a_program_is_what_was_recorded(name: str) -> None:
    assert list(differences(recorded()[name], facts(cases()[name]()))) == []


def test_overlays_have_the_fingerprints_that_were_recorded() -> None:
    assert recorded()["overlays"] == fingerprints()
    assert recorded().keys() == {"overlays", *cases()}
