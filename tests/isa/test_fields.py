"""Bit-field tables: the codec agrees with the table, and invalid tables and values are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import FieldError
from rsn.isa.fields import Field, Record, bits
from rsn.isa.overlays import OVERLAYS
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.packet import Header
from rsn.tests.effort import examples

RECORDS = sorted(
    {Header}
    | {form.mop for o in OVERLAYS.values() for form in o.formats}
    | {ops.record for o in OVERLAYS.values() for ops in o.preloaded.values()},
    key=lambda r: r.__name__,
)


def values(spec: Field) -> st.SearchStrategy:
    if spec.real:
        return st.floats(width=32, allow_nan=False, allow_infinity=False)
    return st.integers(*spec.bounds)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
@examples(100, quick=10)
@given(data=st.data())
def test_decode_inverts_encode_and_padding_stays_zero(record: type[Record], data: st.DataObject) -> None:
    made = record(**{spec.name: data.draw(values(spec)) for spec in record.FIELDS})
    words = made.encode()
    assert record.decode(words) == made
    assert not record.padding_set(words)


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.__name__)
def test_padding_is_masked_when_decoding(record: type[Record]) -> None:
    plain = record().encode()
    dirty = [w | p for w, p in zip(plain, record.PADDING, strict=True)]
    assert record.decode(dirty) == record()
    assert record.padding_set(dirty) == any(record.PADDING)


def test_a_value_that_does_not_fit_names_field_and_range() -> None:
    with pytest.raises(FieldError, match=r"^MemA\.dim1: 600 does not fit in 9 bits \(0\.\.511\)$"):
        f.MemA(dim1=600)
    with pytest.raises(FieldError, match=r"MemCConfig\.offset: 2147483648 does not fit in 32 bits"):
        f.MemCConfig(offset=1 << 31)


def test_tables_with_overlaps_or_stray_fields_cannot_be_declared() -> None:
    with pytest.raises(TypeError, match=r"Clash\.b overlaps"):

        class Clash(Record, words=1):
            a: int = bits(0, 0, 4, "")
            b: int = bits(0, 3, 1, "")

    with pytest.raises(TypeError, match=r"Stray\.a lies outside its 1 words"):

        class Stray(Record, words=1):
            a: int = bits(0, 30, 4, "")


def test_the_wrong_number_of_words_is_refused() -> None:
    with pytest.raises(FieldError, match="MemB takes 2 words, not 1"):
        f.MemB.decode([0])


def test_a_real_field_holds_a_finite_float32() -> None:
    assert f.MemCConfig(eps=1e-12).eps == f.MemCConfig.decode(f.MemCConfig(eps=1e-12).encode()).eps
    with pytest.raises(FieldError, match=r"MemCConfig\.scale: nan is not a finite float32"):
        f.MemCConfig(scale=float("nan"))
