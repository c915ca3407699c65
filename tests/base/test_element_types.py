"""The table of element types, against numpy, the names of the language, and how a run keeps values."""

from __future__ import annotations

import numpy as np
import pytest

from rsn.base.element_types import BITS, CPP_BITS, FLOATS, KEPT, NARROW, SCALARS, ElementType
from rsn.isa.overlays.tasks.values import DTYPES, WORDS, convert
from rsn.streams import language


@pytest.mark.parametrize("name", SCALARS)
def test_a_row(name: str) -> None:
    facts, kept = SCALARS[name], np.dtype(SCALARS[name].kept)
    assert getattr(language, name).name == name
    assert facts.integer == (kept.kind in "biu")
    assert facts.narrow == (facts.bits < 8 * kept.itemsize and name != "boolean")
    assert DTYPES[name] == kept
    assert WORDS[name] == (2 if BITS[name] == 64 else 1)
    if facts.integer and name != "boolean":
        low, high = facts.limits
        assert convert(high + 1, ElementType(name)) == low
        if not facts.narrow:
            assert (low, high) == (np.iinfo(kept).min, np.iinfo(kept).max)
            assert np.dtype(facts.numpy) == kept
    assert len({row.cpp for row in SCALARS.values()}) == len(SCALARS)


def test_names_of_kinds() -> None:
    assert FLOATS == ("f16", "bf16", "f32", "f64")
    assert NARROW == ("i4", "u4", "f16", "bf16")
    assert {name: kept for name, kept in KEPT.items() if kept != name} == {
        "i4": "i8",
        "u4": "u8",
        "f16": "f32",
        "bf16": "f32",
    }
    assert {name: bits for name, bits in CPP_BITS.items() if bits != BITS[name]} == {"boolean": 8}
    assert str(ElementType("i8", (2, 3))) == "i8[2, 3]"
    assert str(ElementType("f32")) == "f32"
    scalars = {name for name, value in vars(language).items() if isinstance(value, language.ScalarType)}
    assert scalars == {*SCALARS}
