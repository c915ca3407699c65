"""Quantised models: what the normal form makes of them, what they compute, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
pytest.importorskip("torchao.quantization")

from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.rsnlib.normal_form.editor import Editor  # noqa: E402
from rsn.rsnlib.normal_form.passes import PASSES  # noqa: E402
from rsn.rsnlib.normal_form.text import show  # noqa: E402

from .graph_text import read  # noqa: E402
from .quantised_forms import FORMS  # noqa: E402


def formed(text: str) -> str:
    """A graph behind the pass, without what nothing reads."""
    graph = read(text)
    assert show(graph) == text
    PASSES["quantised"](Editor(graph))
    graph.eliminate_dead_code()
    graph.lint()
    return show(graph)


@pytest.mark.parametrize("form", FORMS)
def test_each_form(form: str) -> None:
    before, behind = FORMS[form]
    assert formed(before) == behind


OPERANDS = """\
x: float32[1, {count}] = input()
s: float32[] = input()
z: int32[] = input()
w: {other}[1, {count}] = input()
c: float32[1] = input()
o: int64[1] = input()
q: {rows}[1, {count}] = quantized_decomposed.quantize_per_tensor.tensor(x, s, z, {low}, {high}, torch.{rows})
left: float32[1, {count}] = quantized_decomposed.dequantize_per_tensor.tensor(q, s, z, {low}, {high}, torch.{rows})
right: float32[1, {count}] = quantized_decomposed.dequantize_per_channel.default(w, c, o, 0, -128, 127, torch.{other})
y: float32[1, 1] = aten.linear.default(left, right)  # block.0
return (y,)
"""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"count": 40000},
            r"a sum of 40000 products of up to 255 x 255 may be 2601000000, beyond the 32 bits of an accumulator",
        ),
        (
            {"rows": "uint8", "low": 0, "high": 255},
            r"it multiplies torch\.uint8 by torch\.int8; a product of integers takes one signed type",
        ),
    ],
)
def test_a_product_is_refused(given: dict[str, object], why: str) -> None:
    text = OPERANDS.format(**{"count": 8, "rows": "int8", "other": "int8", "low": -128, "high": 127} | given)
    with pytest.raises(UnsupportedError, match=rf"^aten\.linear\.default at block\.0: {why}"):
        formed(text)
    assert "rsn.integer_linear" in formed(
        OPERANDS.format(count=33025, rows="int8", other="int8", low=-128, high=127)  # 33025 * 255^2 < 2^31
    )


def test_groups_divide_a_row() -> None:
    text = """\
w: int8[4, 8] = input()
s: float32[4, 2] = input()
y: float32[4, 8] = torchao.dequantize_affine.default(w, [1, 5], s, None, torch.int8, -8, 7)  # block.0
return (y,)
"""
    with pytest.raises(UnsupportedError, match=r"at block\.0: groups of 5 do not divide the 8 positions of axis 1"):
        formed(text)
