"""The generated files are those of the record, and the C++ codec agrees with the Python codec."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import FieldError
from rsn.hw.versal.sources import sources
from rsn.isa.fields import Field, Record
from rsn.isa.overlays import OVERLAYS, XNN
from rsn.isa.overlays.page import page
from rsn.isa.packet import Header
from rsn.tests.isa.generated import RECORD
from rsn.tests.isa.generated import record as recorded

GXX = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"]

FORMATS: tuple[type[Record], ...] = (
    Header,
    *(f.mop for f in XNN.formats),
    *(ops.record for ops in XNN.preloaded.values()),
)

Lines = Sequence[tuple[int, Sequence[int]]]
"""Index of a format and the words of a record, by line."""


def test_generated_files_hold_what_is_recorded() -> None:
    """If the tables have changed on purpose: python -m rsn.tests.isa.generated, and look at the difference."""
    assert list(recorded()) == RECORD.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", OVERLAYS)
def test_reference_names_everything(name: str) -> None:
    text = page()
    overlay = OVERLAYS[name]
    rows = [f"`{f.name}`" for form in overlay.formats for f in form.mop.FIELDS] + [
        f"`{rate}`" for rate in overlay.rates
    ]
    rows += [f"## Overlay {name}", overlay.fingerprint, *overlay.by_unit]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize("flags", [[], ["-Wshadow", "-Wconversion"]])
def test_header_compiles_alone(flags: list[str]) -> None:
    subprocess.run([*GXX, *flags, "-fsyntax-only", "-x", "c++", str(sources() / "isa.h")], check=True)


def test_header_holds_the_datapath(tmp_path: Path) -> None:
    """The values of the constants, printed by a compiled program."""
    units = [f"units::{kind} == {len(units)}" for kind, units in XNN.by_kind.items()]
    depths = [f"depth::{s.src}_to_{s.dst}{'_' if s.label else ''}{s.label} == {s.depth}" for s in XNN.streams]
    forms = [f"{f.mop.NAME}::opcode == {f.opcode} && {f.mop.NAME}::words == {f.mop.WORDS}" for f in XNN.formats]
    forms += [f"{f.mop.NAME}::loops_window == {str(f.loops_window).lower()}" for f in XNN.formats]
    other = [
        f"mop_fifo_depth == {XNN.mop_fifo_depth}",
        f"uop_fifo_depth == {XNN.uop_fifo_depth}",
        f"address_unit == {XNN.address_unit}",
        "MemCConfig{}.softmax_cols == 1023 && MemCConfig{}.norm_cols == 512 && MemCConfig{}.eps == 1e-6f",
        "decoded(0x00011005u).opcode == 5 && decoded(0x00011005u).window == 2 && decoded(0x00011005u).reuse == 1",
    ]
    source = tmp_path / "constants.cpp"
    asserts = "\n".join(f"static_assert({claim});" for claim in (*units, *depths, *forms, *other))
    decoded = "constexpr Header decoded(Word word) { return Header::decode(&word); }"
    source.write_text(f'#include "isa.h"\nusing namespace rsn::xnn;\n{decoded}\n{asserts}\n', encoding="utf-8")
    subprocess.run([*GXX, "-fsyntax-only", "-I", str(sources()), str(source)], check=True)


# -- the codec ----------------------------------------------------------------------------------------------------


def _program() -> str:
    """A C++ program that reads lines `format words...` and prints the decoded fields, then the words encoded again."""

    def printed(f: Field) -> str:
        value = f"static_cast<long long>(r.{f.name})"
        return f'std::printf("%lld ", {f"static_cast<long long>(from_float(r.{f.name}))" if f.real else value});'

    cases = []
    for i, record in enumerate(FORMATS):
        name = record.NAME
        read = f'for (unsigned i = 0; i < {name}::words; ++i) if (std::scanf("%u", &in[i]) != 1) return 1;'
        code = f"case {i}: {{ {read} const {name} r = {name}::decode(in); r.encode(out);"
        code += "".join(printed(f) for f in record.FIELDS)
        cases.append(code + f' for (unsigned i = 0; i < {name}::words; ++i) std::printf("%u ", out[i]); break; }}')
    body = "\n".join(cases)
    return f"""#include "isa.h"
#include <cstdio>
using namespace rsn::xnn;
int main() {{
    Word in[4], out[4];
    for (unsigned format; std::scanf("%u", &format) == 1; std::puts("")) switch (format) {{
{body}
    default: return 1;
    }}
}}
"""


@pytest.fixture(scope="session")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Lines], list[list[int]]]:
    """A function that runs the C++ codec on many lines at once."""
    folder = tmp_path_factory.mktemp("codec")
    source, program = folder / "codec.cpp", folder / "codec"
    source.write_text(_program(), encoding="utf-8")
    subprocess.run([*GXX, "-I", str(sources()), "-o", str(program), str(source)], check=True)

    def run(lines: Lines) -> list[list[int]]:
        text = "\n".join(" ".join(map(str, (number, *words))) for number, words in lines)
        done = subprocess.run([program], input=text, capture_output=True, text=True, check=True, timeout=60)
        return [[int(x) for x in line.split()] for line in done.stdout.splitlines()]

    return run


def expected(record: Record) -> list[int]:
    """The numbers that the C++ program prints for a record: its fields (a float as its bits), then its words."""
    values = []
    for f in record.FIELDS:
        value = getattr(record, f.name)
        values.append(struct.unpack("<I", struct.pack("<f", value))[0] if f.real else value)
    return [*values, *record.encode()]


def test_random_words_decode_alike(codec: Callable[[Lines], list[list[int]]]) -> None:
    rng = random.Random(0)
    lines: list[tuple[int, list[int]]] = []
    records = []
    for number, record in enumerate(FORMATS):
        for _ in range(500):
            words = [rng.choice((0, 0xFFFF_FFFF, rng.getrandbits(32))) for _ in range(record.WORDS)]
            try:
                records.append(record.decode(words))
            except FieldError:  # a float that is not finite: Python refuses it
                continue
            lines.append((number, words))
    assert codec(lines) == [expected(r) for r in records]


def _values(f: Field) -> st.SearchStrategy[Any]:
    return st.floats(width=32, allow_nan=False, allow_infinity=False) if f.real else st.integers(*f.bounds)


RECORDS = st.one_of([st.builds(r, **{f.name: _values(f) for f in r.FIELDS}) for r in FORMATS])


@settings(max_examples=50)
@given(st.lists(RECORDS, min_size=1, max_size=20))
def test_records_decode_alike(codec: Callable[[Lines], list[list[int]]], records: list[Record]) -> None:
    lines = [(FORMATS.index(type(r)), r.encode()) for r in records]
    assert codec(lines) == [expected(r) for r in records]
