"""Quantised models: what the normal form makes of them, what they compute, and what is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
torchao = pytest.importorskip("torchao")

import itertools  # noqa: E402 - torch first: it may be missing
import warnings  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from torch.fx import Node  # noqa: E402
from torchao.quantization import quantize_  # noqa: E402

import rsn  # noqa: E402
from rsn.base import quantised as definition  # noqa: E402
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.rsnlib.capture import lifted, packet, run  # noqa: E402
from rsn.rsnlib.normal_form.editor import Editor  # noqa: E402
from rsn.rsnlib.normal_form.passes import PASSES, capture  # noqa: E402
from rsn.rsnlib.normal_form.text import show  # noqa: E402
from rsn.rsnlib.quantised_ops import INTEGER_LINEAR, INTEGER_MATMUL, INTEGER_PRODUCTS, QUANTISED_OPS  # noqa: E402
from rsn.tests.effort import spread  # noqa: E402

from .graph_text import read  # noqa: E402
from .quantised_forms import FORMS  # noqa: E402
from .quantised_models import (  # noqa: E402
    CONFIGS,
    MODELS,
    OF_INTEGERS,
    OF_WEIGHTS,
    Scores,
    calibrated,
    quantised,
)


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


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("_int_mm", "b: float32[4]", "b: float64[4]"),
        ("_int_mm", "columns: float32[4]", "columns: float64[4]"),
        ("_int_mm of unsigned rows", "aten.mul.Tensor(total, 128)", "aten.mul.Tensor(total, 127)"),
        ("_int_mm of unsigned rows", "aten.add.Tensor(wide, 128)", "aten.add.Tensor(wide, 127)"),
        ("_int_mm with zero points", "sum.dim_IntList(w, [-1])", "sum.dim_IntList(t, [0])"),
        ("_int_mm with zero points", "aten.sub.Tensor(scaled, more)", "aten.sub.Tensor(more, scaled)"),
        ("_int_mm with zero points", "mul.Tensor(offset, again)", "mul.Tensor(offset, offset)"),
        ("only weights", "columns: float32[4]", "columns: float64[4]"),
    ],
)
def test_what_only_looks_like_a_form(form: str, old: str, new: str) -> None:
    """Its product stays, or what is not part of it stays behind it."""
    before, _ = FORMS[form]
    assert old in before
    graph = read(before.replace(old, new))
    PASSES["quantised"](Editor(graph))
    graph.eliminate_dead_code()
    if old.startswith("b:"):
        assert "aten.add.Tensor(back, b)" in show(graph)
    else:
        assert "= aten._int_mm.default(" in show(graph) or "= aten.matmul.default(" in show(graph)


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


# -- what it computes


def test_rows_are_quantised_as_torchao_does() -> None:
    """Scales, zero points and integers have its bits, also of rows of one sign, of zeros, and of huge numbers."""
    from torchao.quantization import MappingType, choose_qparams_affine, quantize_affine

    drawn = np.random.default_rng(0)
    x = (drawn.standard_normal((400, 32)) * 10.0 ** drawn.integers(-30, 30, (400, 1))).astype(np.float32)
    x[::7] = abs(x[::7])
    x[::11] = -abs(x[::11])
    x[5] = 0
    for mapping, least in itertools.product((MappingType.SYMMETRIC, MappingType.ASYMMETRIC), (None, 2**-23)):
        given = torch.from_numpy(x)
        scale, zero = choose_qparams_affine(given, mapping, (1, 32), torch.int8, -128, 127, least, keepdim=True)
        wanted = quantize_affine(given, (1, 32), scale, zero, torch.int8, -128, 127)
        tiny = float(np.finfo(np.float32).smallest_normal)
        is_symmetric = mapping is MappingType.SYMMETRIC
        got = definition.row_scales(x, -128, 127, is_symmetric=is_symmetric, least=tiny if least is None else least)
        assert np.array_equal(got[0], scale.numpy())
        assert np.array_equal(got[1], zero.numpy())
        assert np.array_equal(definition.quantise(x, *got, -128, 127), wanted.numpy())


@pytest.mark.parametrize("groups", [1, 4])
def test_products_are_exact(groups: int) -> None:
    """The sums are those of integers of any size, and the scales are applied in float32 in the stated order."""
    drawn = np.random.default_rng(groups)
    x, w = (drawn.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 3, 64), (5, 64)))
    zero, at = drawn.integers(-128, 128, (2, 3, 1)), drawn.integers(-8, 8, (5, groups))
    scale, of_columns = (drawn.uniform(0.01, 1, shape).astype(np.float32) for shape in ((2, 3, 1), (5, groups)))
    bias = drawn.standard_normal(5).astype(np.float32)
    wanted = np.zeros((2, 3, 5), np.float32)
    for g in range(groups):
        columns = slice(g * 64 // groups, (g + 1) * 64 // groups)
        left, right = x[..., columns].astype(int) - zero, w[:, columns].astype(int) - at[:, g : g + 1]
        wanted = wanted + (left @ right.T).astype(np.float32) * of_columns[:, g]
    got = definition.integer_linear(x, scale, zero, w, of_columns, at, bias)
    assert got.dtype == np.float32
    assert np.array_equal(got, wanted * scale + bias)
    one, other = (np.array(number, np.float32) for number in (0.3, 0.7))
    y = w.T.copy()
    made = definition.integer_matmul(x, one, zero[0, 0, 0], y, other, None)
    assert np.array_equal(made, ((x.astype(int) - zero[0, 0, 0]) @ y.astype(int)).astype(np.float32) * (one * other))


def _difference(got: Any, wanted: Any) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def _captured(model: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[list[Node], Any]:
    """The operators of the normal form, and the first result of running them."""
    program = capture(model, given, {})
    environment = lifted(program)
    arguments = [x for x in program.graph.find_nodes(op="placeholder") if x not in environment]
    environment.update(zip(arguments, given, strict=True))
    operators = [x for x in program.graph.nodes if x.op == "call_function"]
    run(operators, environment)
    returned = program.graph.output_node().args[0]
    return operators, environment[returned[0]]


PAIRS = [*itertools.product(MODELS, CONFIGS)]


@pytest.mark.parametrize("case", spread(PAIRS, 2, PAIRS[::8]), ids=", ".join)
def test_the_normal_form_computes_what_pytorch_does(case: tuple[str, str]) -> None:
    """Within 1e-6 of the largest value. Between linear layers of a model a number may lie between two integers but for
    rounding, so that each is right; the encoder is as far from PyTorch as PyTorch is from itself then."""
    name, config = case
    model, given = quantised(name, config)
    operators, got = _captured(model, given)
    with torch.no_grad():
        wanted = model(*given)
    is_exact = name in ("rows", "without a bias", "four dimensions") or config in OF_WEIGHTS
    assert _difference(got, wanted) < (1e-6 if is_exact else 2e-2)
    products = sum(packet(x) in INTEGER_PRODUCTS for x in operators)
    linear = sum(isinstance(x, torch.nn.Linear) for x in model.modules())
    assert products == (linear if config in OF_INTEGERS else 0)
    known = {packet(x) for x in operators if getattr(x.target, "namespace", "") not in ("aten", "", "_operator")}
    beyond = {torch.ops.torchao.choose_qparams_affine} if config == "one scale a tensor" else set()
    assert known <= {*QUANTISED_OPS, *beyond}


@pytest.mark.parametrize(
    ("model", "bound", "products"),
    [
        (torch.nn.Sequential(torch.nn.Linear(64, 32)), 1e-6, [INTEGER_LINEAR]),
        (Scores(), 2e-2, [INTEGER_LINEAR, INTEGER_LINEAR, INTEGER_MATMUL]),
    ],
    ids=["one product", "products of products"],
)
def test_static_scales(model: torch.nn.Module, bound: float, products: list[Any]) -> None:
    """With the quantizer: linear layers, and products of two activations, are of integers."""
    given = (torch.randn(2, 16, 64),)
    made = calibrated(model.eval(), given)
    operators, got = _captured(made, given)
    with torch.no_grad():
        assert _difference(got, made(*given)) < bound
    assert [packet(x) for x in operators if packet(x) in INTEGER_PRODUCTS] == products


# -- bad input


@pytest.mark.parametrize(
    ("config", "part", "value", "why"),
    [
        ("int4 in groups of 32", "scale", 0.0, r"weight scale is 0 at \(3, 1\); a scale is a positive finite number"),
        ("int8 rows, int8 weights", "scale", float("inf"), r"weight scale is inf at \(3, 0\); a scale is"),
        ("only int4 weights", "scale", float("nan"), r"its scale is nan at \(3, 1\); a scale is a positive"),
        ("int4 in groups of 32", "qdata", 8, r"its weight is 8 at \(3, 1\); int4 is from -8 to 7"),
        ("int4 with zero points", "zero_point", -9, r"its weight zero is -9 at \(3, 1\); int4 is from -8 to 7"),
    ],
)
def test_values_are_checked(config: str, part: str, value: float, why: str) -> None:
    model, given = quantised("rows", config)
    tensor = getattr(model[2].weight, part)
    tensor[3, min(1, tensor.shape[1] - 1)] = value
    with pytest.raises(TensorError, match=rf"^aten\.\w+\.default at 2: .*{why}|^torchao\.\S+ at 2: .*{why}"):
        capture(model, given, {})


def test_weights_of_half_precision_are_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64)).bfloat16().eval()
    torchao.quantization.quantize_(model, CONFIGS["int8 rows, int8 weights"]())
    with pytest.raises(TensorError, match=r"quantised from bfloat16, .* quantise model\.float\(\)"):
        rsn.compile(model, (torch.randn(2, 64).bfloat16(),))


# -- on the machine


@pytest.mark.parametrize("overlay", ["xnn", "xnn2"])
@pytest.mark.parametrize("config", OF_WEIGHTS)
def test_quantised_weights_run_on_the_machine(config: str, overlay: str) -> None:
    model, given = quantised("encoder", config)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with rsn.compile(model, given, overlay=overlay) as compiled, torch.no_grad():
            assert _difference(compiled(*given), model(*given)) < 1e-5
            assert " host " not in compiled.explain().partition("products of")[2]


@pytest.mark.parametrize("config", OF_WEIGHTS)
def test_loaded_weights_are_followed(config: str) -> None:
    """PyTorch counts a write to a quantised weight as one to the whole, not to its parts."""
    models = [torch.nn.Linear(64, 64, bias=False).eval() for _ in range(2)]
    for model in models:
        quantize_(model, CONFIGS[config]())
    x = torch.randn(1, 4, 64)
    with rsn.compile(models[0], (x,)) as compiled, torch.no_grad():
        compiled(x)
        models[0].load_state_dict(models[1].state_dict())
        assert _difference(compiled(x), models[1](x)) < 1e-5


@pytest.mark.parametrize("config", ["int8 rows, int8 weights", "int4 in groups of 32"])
def test_products_of_integers_run_on_the_host(config: str, tmp_path: Any) -> None:
    """With attention on the machine; `explain` tells. A saved model computes the same, and changes are followed."""
    model, given = quantised("encoder", config)
    with pytest.warns(UserWarning, match=r"^6 products of integers: the host computes them"):
        compiled = rsn.compile(model, given)
    with compiled, torch.no_grad():
        first = compiled(*given)
        assert _difference(first, model(*given)) < 2e-2
        text = compiled.explain()
        assert "attention is not quantised" in text
        types = "int8 x int8  " if "int8 w" in config else "int8 x int4 in groups of 32"
        assert any(line.startswith(types) and "  6  " in line for line in text.splitlines())
        assert f"a product of {types.strip()}; the machine multiplies float32" in text
        compiled.save(tmp_path / "model.rsnmodel")
        with rsn.load(tmp_path / "model.rsnmodel") as loaded:
            assert torch.equal(loaded(*given), first)
        model.layers[0].ffn.up.weight.qdata.neg_()
        second = compiled(*given)
        assert _difference(second, first) > 0.01
        assert _difference(second, model(*given)) < 2e-2


def test_static_scales_on_the_machine() -> None:
    """A model that PT2E converted says that it trains, whatever it is told; it is compiled as it is."""
    model, given = MODELS["encoder"]
    example = given()
    made = calibrated(model().eval(), example)
    with pytest.warns(UserWarning, match=r"^6 products of integers"), rsn.compile(made, example) as compiled:
        assert _difference(compiled(*example), made(*example).detach()) < 2e-2


def test_a_deeper_model_is_refused_with_the_way_out() -> None:
    torch.manual_seed(0)
    model, x = rsn.nn.Encoder(layers=2, hidden=128, heads=2, inner=256).eval(), torch.randn(2, 16, 128)
    torchao.quantization.quantize_(model, CONFIGS["int4 in groups of 32"]())
    with pytest.raises(UnsupportedError, match=r"at layers\.1\.attn: it depends on .* torch\.compile\(model, backend"):
        rsn.compile(model, (x,))
    in_pieces = torch.compile(model, backend="rsn")
    with torch.no_grad():
        assert _difference(in_pieces(x), model(x)) < 2e-2
        assert "in 2 pieces" in rsn.explain(in_pieces, (x,))


def test_products_of_integers_alone_are_refused() -> None:
    model, given = quantised("rows", "int4 in groups of 32")
    with pytest.raises(UnsupportedError, match=r"^nothing in this module .*: a product of int8 x int4 in groups of 32"):
        rsn.compile(model, given)


@pytest.mark.long
def test_padding_of_quantised_rows() -> None:
    """Rows beside padding have their own scales, so that a program for more rows serves fewer."""
    model, _ = quantised("encoder", "int4 in groups of 32")
    sizes = {0: rsn.Batch(1, 2), 1: rsn.Length(16, 32)}
    shapes = dict.fromkeys(("hidden_states", "attention_mask"), sizes)
    example = torch.randn(2, 16, 128), torch.ones(2, 16, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        family = rsn.compile(model, example, dynamic_shapes=shapes)
        with family, torch.no_grad():
            x, mask = torch.randn(1, 9, 128), torch.ones(1, 9, dtype=torch.long)
            assert _difference(family(x, mask), model(x, mask)) < 2e-2
