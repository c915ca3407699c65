"""Words of tiles: how many elements a loop takes, the banks that follow, and the memory channels of ports."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.element_types import BITS, CPP_BITS, SCALARS, ElementType, whole_bytes
from rsn.base.errors import ProgramError
from rsn.hw.versal.csim.tasks import build_regions
from rsn.isa.overlays.tasks.program import OffChipTensor
from rsn.streams.check import check
from rsn.streams.dataflow.memory import tensor_bytes
from rsn.streams.hls.emit import cpp_program, word_type
from rsn.streams.hls.kinds import CPP, ValueKind, of_element
from rsn.streams.hls.native import HEADERS
from rsn.streams.hls.project import channels_of, connectivity, device_of, script
from rsn.streams.hls.words import banks
from rsn.streams.orders.order import Order
from rsn.streams.orders.packed_tensor import widened
from rsn.streams.placing.devices import U55C, U280, VC1902
from rsn.streams.tree import bytes_of
from rsn.streams.words import (
    MOVED,
    PORT_BITS,
    REGISTERS,
    STREAM_BITS,
    TileWord,
    matrix,
    moved_rounds,
    port_elements,
    product_word,
    row_word,
    stream_word,
    word,
)
from rsn.tests.effort import examples
from rsn.tests.streams.hls_programs import TURNED
from rsn.tests.streams.test_hls import task_program_of

SHAPES = st.lists(st.integers(1, 48), min_size=1, max_size=3).map(tuple)


@examples(2000, 100)
@given(shape=SHAPES, most=st.integers(1, 5000))
def test_words_divide_tiles_and_keep_within_the_rate(shape: tuple[int, ...], most: int) -> None:
    rows, columns = matrix(shape)
    for made in (word(shape, most), row_word(shape, most)):
        assert rows % made.rows == columns % made.columns == 0
        assert made.elements <= max(1, most)
    assert word(shape, most).rows == 1 or word(shape, most).columns == columns
    by_rows = row_word(shape, most).columns
    assert by_rows & (by_rows - 1) == 0
    if len(shape) > 1:
        product = product_word(shape, most)
        assert product.elements <= max(1, most)
        fit = [r * c for r in _divisors(shape[-2]) for c in _divisors(shape[-1]) if r * c <= most]
        assert product.elements == max(fit, default=1)


@examples(2000, 100)
@given(rows=st.integers(1, 96), columns=st.integers(1, 96), most=st.floats(0.1, 5000), length=st.integers(1, 200))
def test_words_of_products_with_a_turned_operand(rows: int, columns: int, most: float, length: int) -> None:
    made = product_word((rows, columns), most, length)
    assert made.elements <= max(1, most)
    assert rows % made.rows == columns % made.columns == 0
    for size, taken in ((rows, made.rows), (columns, made.columns)):
        assert taken < size or size == 1 or size * length <= REGISTERS
    if max(rows, columns) * length <= REGISTERS:
        assert made.elements == product_word((rows, columns), most).elements


def _divisors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]


def test_words_of_streams() -> None:
    assert stream_word("f32", (64, 64)) == TileWord(1, 64)
    assert stream_word("f32", (64, 16)) == TileWord(4, 16)
    assert stream_word("f32", (5, 80)) == TileWord(1, 40)
    assert stream_word("i8", (16, 16)) == TileWord(16, 16)
    # Longer rows of integers of up to 8 bits have wider words: a row, or as large a part of one as HLS allows.
    assert stream_word("i4", (8, 1024)) == TileWord(1, 1024)
    assert stream_word("i4", (8, 3000)) == TileWord(1, 1000)
    assert stream_word("i8", (8, 1024)) == TileWord(1, 512)
    assert stream_word("i16", (8, 1024)) == TileWord(1, 128)
    assert stream_word("boolean", (8, 1024)) == TileWord(1, 256)


@pytest.mark.parametrize("dtype", SCALARS)
def test_bits_are_those_of_the_table(dtype: str) -> None:
    """A Boolean takes a byte in C++; every other element its own bits, in words, bytes and orders alike."""
    bits = 8 if dtype == "boolean" else BITS[dtype]
    assert stream_word(dtype, (64, 64)).elements * bits == STREAM_BITS
    assert port_elements(dtype) * bits == PORT_BITS
    assert moved_rounds(dtype, 4, stream_word(dtype, (64, 64)).elements) == (4 * PORT_BITS // bits, 1)
    for elements in (1, 3, 7, 8):
        assert bytes_of(ElementType(dtype, (elements,))) == -(-elements * bits // 8)
        assert whole_bytes(elements, dtype) == -(-elements * BITS[dtype] // 8)
        order = Order.parse(f"{elements}x{dtype} [3]*[{elements}] (d0)")
        assert order.bytes_per_token == whole_bytes(elements, dtype)
        assert tensor_bytes(order) == whole_bytes(3 * elements, dtype)
    assert prod(widened((64, 64), (32, 32), dtype, PORT_BITS).vector) * BITS[dtype] == PORT_BITS


def test_bits_of_cpp_are_those_of_the_table(tmp_path: Path) -> None:
    rows = [f"static_assert(rsn::bits_of_element<{CPP[name]}> == {CPP_BITS[name]});" for name in SCALARS]
    rows += [
        f"static_assert(sizeof({word_type(OffChipTensor('x', ElementType(name, (1024,)), True, False), count)}) * 8 == "
        f"{count * CPP_BITS[name]});"
        for name in SCALARS
        for count in (2, port_elements(name))
    ]
    build_regions("\n".join(['#include "kernels.h"', *rows, "int main() {}"]), [HEADERS], tmp_path / "bits", "-O0")


def test_a_number_of_an_unknown_element_type_is_of_no_kind() -> None:
    for shape in ((), (4, 4)):
        with pytest.raises(KeyError, match="f8"):
            of_element("f8", shape)


def test_banks_follow_from_the_loops() -> None:
    tiles = {"a": ValueKind("f32", (32, 64)), "b": ValueKind("f32", (64, 64)), "c": ValueKind("f32", (32, 64))}
    lines = ["rsn::matmul<rsn::Word<8, 16>>(c, a, b);", "rsn::get<rsn::Word<1, 64>>(s_in, a);"]
    assert banks(lines, tiles, {}, {}) == {"a": TileWord(8, 64), "b": TileWord(1, 16), "c": TileWord(8, 16)}
    beside = {"b": [TileWord(4, 1), TileWord(1, 32)]}
    assert banks(lines, tiles, {}, beside)["b"] == TileWord(4, 32)
    turned = ["rsn::put<rsn::Word<1, 8>, rsn::Word<1, 64>>(s_out, rsn::transpose<rsn::Tile<float, 64, 64>, 1, 0>(b));"]
    assert banks(turned, tiles, {}, {})["b"] == TileWord(8, 1)
    product = "rsn::matmul<rsn::Word<8, 16>>(c, a, rsn::transpose<rsn::Tile<float, 64, 64>, 1, 0>(b));"
    assert banks([product], tiles, {}, {}) == {"a": TileWord(8, 1), "b": TileWord(16, 1), "c": TileWord(8, 16)}
    twice = "rsn::matmul<rsn::Word<8, 16>>(c, a, rsn::transpose<rsn::Tile<float, 64, 32>, 1, 0>(a));"
    assert banks([twice], tiles, {}, {})["a"] == TileWord(16, 1)
    left = "rsn::matmul<rsn::Word<8, 16>>(c, rsn::transpose<rsn::Tile<float, 64, 32>, 1, 0>(a), b);"
    assert banks([left], tiles, {}, {}) == {"a": TileWord(1, 8), "b": TileWord(1, 16), "c": TileWord(8, 16)}
    both = "rsn::assign<rsn::Word<1, 8>>(c, rsn::zip<rsn::Tile<float, 64, 64>, float>(rsn::Add(), b, %s(b)));"
    assert banks([both % "rsn::transpose<rsn::Tile<float, 64, 64>, 1, 0>"], tiles, {}, {})["b"] == TileWord(8, 8)
    loads = ["rsn::load<rsn::Tile<float, 64, 64>, 1, 1>(b, weights, 0, 0);"]
    assert banks(loads, tiles, {"weights": 8}, {})["b"] == TileWord(1, 8)


PROGRAM = """\
from rsn.streams import *
x: f32[64, 64]
w: f32[64, 64]
y: f32[64, 64]
s: Stream[f32[64, 64], 2]
@task(mapping=[1], args=[x, w], rates=dict(matmul=128))
def product(x, w):
    s.put(x[:, :] @ w[:, :])
@task(mapping=[1], args=[y])
def store(y):
    y[:, :] = s.get()
"""


def test_rates_become_units() -> None:
    text = cpp_program(task_program_of(PROGRAM, "p")).text
    assert "rsn::matmul<rsn::Word<2, 64>>" in text
    assert "rsn::receive<rsn::Word<1, 64>, rsn::Shape<64, 64>, 1, 1>(s_in, y, 0, 0);" in text
    assert "rsn::matmul<rsn::Word<1, 1>>" in cpp_program(task_program_of(PROGRAM.replace("128", "1"), "p")).text


def test_products_read_the_transpose_of_a_tile_in_place() -> None:
    text = cpp_program(task_program_of(TURNED.format(rate=256), "p")).text
    lines = [line.split("(", 1)[1] for line in text.splitlines() if "rsn::matmul<" in line]
    turned = "rsn::transpose<rsn::Tile<float, 64, %d>, 1, 0>(%s)"
    assert lines == [
        f"tile_1, a, {turned % (48, 'k')});",
        f"tile_2, {turned % (32, 'a')}, a);",
        f"tile_4, a, {turned % (48, 'got_3')});",
    ]
    assert "rsn::assign" not in text


IN_CHANNELS = """\
# v++ --link --config connectivity.cfg: U55C
[connectivity]
nk=p_top:1:p_1
sp=p_1.x:HBM[0]
sp=p_1.w_c0:HBM[4]
sp=p_1.w_c1:HBM[5]
sp=p_1.y:HBM[2]
"""


def test_channels_and_parts_of_devices() -> None:
    program = task_program_of(PROGRAM, "p")
    made = cpp_program(program)
    assert channels_of(made, U55C) == {"x": (0,), "w": (1,), "y": (2,)}
    assert "sp=p_1.y:HBM[2]\n" in connectivity(made, U55C)
    assert "sp=p_1.y:LPDDR\n" in connectivity(made, VC1902)
    placed = tuple(replace(t, channels=(4, 5)) if t.name == "w" else t for t in program.tensors)
    far = cpp_program(replace(program, tensors=placed, device="u55c"))
    assert channels_of(far, U55C)["w"] == (4, 5)
    assert connectivity(far, U55C) == IN_CHANNELS
    apart = tuple(replace(t, channels=(31, 32)) if t.name == "w" else t for t in program.tensors)
    of_both = connectivity(cpp_program(replace(program, tensors=apart, device="u280")), U280)
    assert "sp=p_1.w_c0:HBM[31]\nsp=p_1.w_c1:DDR[0]\n" in of_both
    assert device_of(far.program) is U55C
    assert device_of(program) is VC1902
    assert device_of(program, "u280") is U280
    with pytest.raises(ProgramError, match="p is a machine for U55C, with memory channels of it, not of VC1902"):
        device_of(far.program, "vc1902")
    assert "set_part xcu55c" in script(far.name, far.program.clock_hz, U55C)


TILES = """\
from rsn.streams import *
w: f32[4, 64, 64]
y: f32[4, 64, 64]
s: Stream[f32[64, 64], 2]
@task(mapping=[1], args=[w])
def load(w):
    for i in range(4):
        s.put(w[i])
@task(mapping=[1], args=[y])
def store(y):
    for i in range(4):
        y[i] = s.get()
"""


def test_a_tensor_has_a_port_in_each_of_its_channels() -> None:
    program = task_program_of(TILES, "p")
    placed = tuple(replace(t, channels=tuple(range(8))) if t.name == "w" else t for t in program.tensors)
    text = cpp_program(replace(program, tensors=placed, device="u55c")).text
    ports = [line for line in text.splitlines() if "interface m_axi" in line]
    apart = [f"#pragma HLS interface m_axi port=w_c{k} bundle=load_w_c{k} depth=128" for k in range(8)]
    assert ports == [*apart, "#pragma HLS interface m_axi port=y bundle=store depth=1024"]
    assert 'hls::stream<hls::vector<float, 64>, 128> s("s");' in text
    assert (
        "rsn::send_rounds<rsn::Word<1, 64>, rsn::Moved<128, 2>, rsn::Shape<64, 64>, 0, 1, 1>(s_out, w, i, 0, 0);"
        in text
    )
    assert "rsn::receive<rsn::Word<1, 64>, rsn::Shape<64, 64>, 0, 1, 1>(s_in, y, i, 0, 0);" in text


@pytest.mark.parametrize(
    ("dtype", "shape", "channels", "taken", "moved"),
    [
        ("f32", (64, 64), 2, 64, (64, 2)),
        ("f32", (64, 64), 4, 64, (64, 1)),
        ("f32", (64, 64), 8, 64, (128, 2)),
        ("f32", (64, 64), 16, 64, (256, 4)),
        ("f32", (48, 48), 9, 48, (144, 3)),
        ("f16", (64, 64), 8, 128, (256, 2)),
    ],
)
def test_rounds_and_words_of_a_stream(
    dtype: str, shape: tuple[int, ...], channels: int, taken: int, moved: tuple[int, int]
) -> None:
    assert stream_word(dtype, shape).elements == taken
    assert moved_rounds(dtype, channels, taken) == moved


def test_what_becomes_registers_is_the_same_in_the_model_and_in_the_source() -> None:
    (least,) = re.findall(r"words_in_turn\(.*\) \{ return sums <= (\d+) \?", (HEADERS / "kernels.h").read_text("utf-8"))
    assert int(least) == MOVED


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ("dict(matmull=2)", "there is no kernel matmull"),
        ("dict(matmul=0)", "matmul = 0: work in a cycle, larger than 0"),
        ("dict()", "rates= states work in a cycle by kernel"),
        ("128", "rates= states work in a cycle by kernel"),
    ],
)
def test_rates_that_are_none(rates: str, message: str) -> None:
    report = check(PROGRAM.replace("dict(matmul=128)", rates))
    assert message in report.findings[0].message
