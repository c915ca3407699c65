"""The table of ONNX operators: it is ONNX's, row by row; what it does not read is refused; random cases of every row
are computed as onnxruntime does."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from onnx import TensorProto, defs, helper, numpy_helper  # noqa: E402 - onnx first: it may be missing

import rsn  # noqa: E402
from rsn.base.errors import RsnError, TensorError, UnsupportedError  # noqa: E402
from rsn.rsnlib.onnx_module import OnnxModule, load_onnx  # noqa: E402
from rsn.rsnlib.onnx_operators import contrib, elementwise, layers, page, reductions, shapes  # noqa: E402
from rsn.rsnlib.onnx_operators.normal import QUANTISED  # noqa: E402
from rsn.rsnlib.onnx_operators.table import MICROSOFT, REQUIRED, TABLE  # noqa: E402
from rsn.tests.effort import cases, in_both  # noqa: E402

from . import onnx_hostile  # noqa: E402
from .onnx_drawn import DRAWERS, NOT_DRAWN, Case, outcome, outcome_of  # noqa: E402

LACKING = {
    "Cast": {"round_mode"},
    "CastLike": {"round_mode"},
    "Constant": {"sparse_value", "value_string", "value_strings"},
}
"""Attributes of ONNX's newest operators that the table refuses."""
OURS = {"kv_num_heads", "q_num_heads", "num_heads", "seed"}
"""Attributes for which ONNX has no default, where 0 stands for none."""


@pytest.mark.parametrize("name", sorted(name for domain, name in TABLE if not domain))
def test_a_row_is_the_operator_of_onnx(name: str) -> None:
    schema, row = defs.get_schema(name, page.NEWEST, ""), TABLE["", name]
    theirs = {}
    for key, x in schema.attributes.items():
        value = helper.get_attribute_value(x.default_value) if x.default_value.name else None
        theirs[key] = REQUIRED if x.required else value.decode() if isinstance(value, bytes) else value
    assert set(theirs) - set(row.attributes) == LACKING.get(name, set())
    assert set(row.attributes) <= set(theirs)
    for key, default in row.attributes.items():
        if key in OURS:
            assert (default, theirs[key]) == (0, None)
        else:
            assert default == (pytest.approx(theirs[key]) if isinstance(default, float) else theirs[key])
    optional = defs.OpSchema.FormalParameterOption
    assert [x.is_optional for x in row.inputs if not x.is_variadic] == [
        x.option == optional.Optional for x in schema.inputs if x.option != optional.Variadic
    ]
    assert [x.is_variadic for x in row.inputs] == [x.option == optional.Variadic for x in schema.inputs]
    if len(row.inputs) > 2:
        assert [x.name for x in row.inputs] == [x.name.lower() for x in schema.inputs]


def test_the_page_is_that_of_the_table() -> None:
    """If not: make generate."""
    assert page.PAGE.read_text(encoding="utf-8") == page.page()


def test_every_row_is_drawn() -> None:
    assert {name for _, name in set(TABLE) - set(DRAWERS)} == set(NOT_DRAWN)
    assert set(DRAWERS) <= set(TABLE)


@in_both
def test_random_cases_are_those_of_onnxruntime() -> None:
    counts: Counter[str] = Counter()
    for seed in range(cases(20000, 100, share=80)):
        name, said = outcome(seed)
        assert not said.startswith("wrong"), f"seed {seed}, {name}: {said}"
        counts[said.partition(":")[0]] += 1
    assert counts["right"] > 0.85 * counts.total(), counts


def halves(*numbers: float) -> Any:
    return np.array([[numbers]], np.float16)


@pytest.mark.parametrize(
    "case",
    [
        Case("Sum", [halves(60000), halves(60000), halves(-60000)]),
        Case("Sum", [halves(1000), halves(0.1), halves(-1000)]),
        Case("Mean", [halves(60000, 1), halves(50000, 2**-10)]),
        Case("LRN", [halves(300, 2000)[None]], {"size": 1, "alpha": 0.5}),
        Case("LpNormalization", [halves(60000, -60000)]),
        *(Case(f"Reduce{name}", [halves(30000, 50000)]) for name in ("L2", "LogSum")),
    ],
)
def test_only_the_result_of_halves_is_rounded(case: Case) -> None:
    """Sums and squares that lead to it may be beyond the type, or need more bits."""
    assert outcome_of(case, 18) == "right"


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_means_of_a_norm_are_float32(kind: type) -> None:
    inputs = [halves(400, -900, 20).astype(kind), np.ones(3, kind)]
    assert outcome_of(Case("LayerNormalization", inputs, outputs=3), 17) == "right"


@pytest.mark.parametrize("name", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_a_sum_before_a_norm_of_halves_is_rounded_once(name: str) -> None:
    x, one, zero = halves(60000, -60000, 20), np.ones(3, np.float16), np.zeros(3, np.float16)
    bias = np.array([30000, -30000, 0], np.float16)
    inputs = [x, -x, one, *([zero] if name == "SkipLayerNormalization" else []), bias]
    assert outcome_of(Case(name, inputs, outputs=4, domain=MICROSOFT), 17) == "right"


def test_padding_has_the_type_of_what_is_padded() -> None:
    """Also where the number is an attribute, of which the converter makes float32."""
    for kind in (np.float16, np.float64):
        assert outcome_of(Case("Pad", [np.ones((2, 2), kind), np.ones(4, np.int64)]), 10) == "right"


@pytest.mark.parametrize("numbers", [[1, 1e8], [1e8, 1], [2, np.inf, 5], [7]])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_running_sum_without_its_own_element_is_exact(numbers: list[float], reverse: int) -> None:
    inputs, attributes = [np.array(numbers, np.float32), np.array(0)], {"exclusive": 1, "reverse": reverse}
    assert outcome_of(Case("CumSum", inputs, attributes, frozenset({1})), 14) == "right"


def test_the_sign_of_nan_is_nan() -> None:
    """Of float16 too, where onnxruntime's is 0."""
    assert TABLE["", "Sign"].compute(torch.tensor(torch.nan, dtype=torch.float16)).isnan()
    for kind in (np.float32, np.float64):
        assert outcome_of(Case("Sign", [np.array([np.nan, -np.inf, 0, 2], kind)]), 13) == "right"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_reduction_of_integers_ends_at_the_limits_of_their_type(dtype: Any) -> None:
    """As onnxruntime's; they would wrap in PyTorch."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    half = high // 2 + 1
    x = torch.tensor([[high, high, -1], [-half, -1, 3], [2, 3, -4], [low, low, 0]], dtype=dtype)
    given = {name: compute(x, [1])[:, 0].tolist() for name, compute in reductions.REDUCTIONS.items()}
    assert given["ReduceProd"] == [low, high, -24, 0]
    assert given["ReduceSum"] == [high, 2 - half, 1, low]
    assert given["ReduceL1"] == [high, half + 4, 9, high]
    assert given["ReduceSumSquare"] == [high, high, 29, high]
    assert given["ReduceL2"] == [high, half, 5, high]
    assert reductions.REDUCTIONS["ReduceLogSum"](x[:1], [1]).item() == int(np.log(float(2 * high)))
    means = [int(sum(map(Fraction, row), Fraction()) / 3) for row in x.tolist()]
    assert (given["ReduceMean"], means[2]) == (means, 0)
    many = torch.full((1, 40), low, dtype=dtype)
    many[0, 7] = 0
    assert reductions.REDUCTIONS["ReduceProd"](many, [1]).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_a_mean_of_no_numbers_is_zero(dtype: Any) -> None:
    """As onnxruntime's."""
    got = reductions.REDUCTIONS["ReduceMean"](torch.ones((2, 0), dtype=dtype), [1])
    assert got.dtype is dtype
    assert got.tolist() == [[0], [0]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.int32, np.int64, np.float32])
def test_powers_of_integers_are_those_of_onnxruntime(dtype: Any, exponent: Any) -> None:
    """Beyond the type, too; PyTorch's wrap, and are float32 with such an exponent."""
    import onnxruntime

    numbers = [2, 3, -2, 7, 0, -1, 123456789, 46341, -46341, 3, 0], [31, 40, 63, -1, 0, -3, 1, 4, 3, 30, -1]
    bases, exponents = np.array(numbers[0], dtype), np.array(numbers[1], exponent)
    for x, y in [
        (bases, exponents),
        *((bases[k:][:n], np.array(exponents[k])) for k in range(len(bases)) for n in (1, 4)),
    ]:
        kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in (dtype, exponent)]
        named = zip("xy", kinds, (x.shape, y.shape), strict=True)
        inputs = [helper.make_tensor_value_info(*one) for one in named]
        outputs = [helper.make_tensor_value_info("z", kinds[0], x.shape)]
        graph = helper.make_graph([helper.make_node("Pow", ["x", "y"], ["z"])], "g", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x, "y": y})
        got = elementwise.power(torch.from_numpy(x), y.item() if y.ndim == 0 else torch.from_numpy(y)).numpy()
        assert got.dtype == dtype
        assert np.array_equal(got, wanted)


def model_of(
    *nodes: Any, inputs: dict[str, tuple[int, ...]], output: str = "y", opset: int = 20, **constants: np.ndarray
) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


node = helper.make_node
W = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
X = {"x": (2, 8)}
REFUSED: dict[str, tuple[Any, str]] = {
    "operator": (node("Det", ["x"], ["y"], name="d"), "Det d: this operator is not supported"),
    "attribute": (node("Relu", ["x"], ["y"], alpha=1.0), "Relu -> y: its attribute alpha is not supported"),
    "missing attribute": (node("Concat", ["x"], ["y"]), "Concat -> y: it needs an attribute axis"),
    "input": (node("Relu", ["x", "x"], ["y"]), "Relu -> y: its input 2 is not supported"),
    "output": (node("Relu", ["x"], ["y", "z"]), "Relu -> y, z: its output z is not supported"),
    "shape that depends on data": (node("Reshape", ["x", "x"], ["y"]), "Reshape -> y: its shape depends on data"),
    "axis": (node("Softmax", ["x"], ["y"], axis=5), "Softmax -> y: Dimension out of range"),
    "index": (node("Gather", ["x", "far"], ["y"]), "Gather -> y: index .*out of"),
    "direction": (node("BitShift", ["far", "far"], ["y"], direction="UP"), "BitShift -> y: direction UP"),
}


def test_an_activation_with_too_few_numbers_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="activation Clip needs numbers: 2, not 1"):
        contrib.activated(torch.ones(2), "Clip", [0.0])


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_names_the_node(what: str) -> None:
    refused, why = REFUSED[what]
    with pytest.raises(RsnError, match=why):
        OnnxModule(model_of(refused, inputs=X, far=np.array([9])))(torch.randn(2, 8))


OLD_RESIZES = [(7, "Upsample", (1.0, 1.5)), (9, "Upsample", (1.1, 2.0)), (10, "Resize", (1.3, 0.6))]


@pytest.mark.parametrize(("opset", "name", "scales"), OLD_RESIZES)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("is_in_branch", [False, True])
def test_a_resize_of_before_opset_11(
    opset: int, name: str, scales: tuple[float, float], mode: str, is_in_branch: bool
) -> None:
    """It has other places for rows, and onnx's converter does not know that."""
    of_four, constants = [1.0, 1.0, *scales], {}
    if opset == 7:
        resize = node(name, ["x"], ["y"], mode=mode, scales=of_four)
    else:
        constants["scales"] = np.array(of_four, np.float32)
        resize = node(name, ["x", "scales"], ["y"], mode=mode)
    if is_in_branch:
        constants["yes"] = np.array(True)
        branch = helper.make_graph([resize], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        resize = node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    model = model_of(resize, inputs={"x": (1, 2, 5, 7)}, opset=opset, **constants)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 7)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    got = OnnxModule(model)(torch.from_numpy(x))
    assert got.shape == wanted.shape
    assert np.allclose(got, wanted, atol=1e-5)


def test_a_hardmax_of_before_opset_13_in_a_branch_is_refused() -> None:
    branch = helper.make_graph(
        [node("Hardmax", ["x"], ["y"])], "b", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    chosen = node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    with pytest.raises(UnsupportedError, match="before opset 13 it is another function"):
        OnnxModule(model_of(chosen, inputs=X, opset=11, yes=np.array(True)))


@pytest.mark.parametrize("index", [(0, 3), (0, -4), (-3, 0)])
def test_an_index_that_lies_outside_hits_no_other_element(index: tuple[int, int]) -> None:
    x, at = torch.arange(6.0).reshape(2, 3), torch.tensor([index])
    with pytest.raises((IndexError, RuntimeError)):
        shapes.gather_nd(x, at)
    for reduction in ("none", *shapes.REDUCTIONS):
        with pytest.raises((IndexError, RuntimeError)):
            shapes.scatter_nd(x, at, torch.ones(1), reduction=reduction)


@pytest.mark.parametrize(
    "norm", [lambda x, y: layers.layer_norm(x, 1, y, None, 0), lambda x, y: layers.rms_norm(x, 1, y, 0)]
)
def test_a_scale_that_makes_a_norm_larger_is_refused(norm: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"makes \[4, 2, 3\] of \[2, 3\]"):
        norm(torch.ones(2, 3), torch.ones(4, 1, 3))


def test_an_index_that_a_call_gives() -> None:
    graph = helper.make_graph(
        [node("Gather", ["E", "x"], ["e"]), node("MatMul", ["e", "W"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, (1, 4))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(W, "E"), numpy_helper.from_array(W, "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    with torch.no_grad(), rsn.compile(OnnxModule(model), (torch.tensor([[0, 1, 2, 3]]),)) as compiled:
        assert torch.allclose(
            compiled(torch.tensor([[-1, 7, -8, 0]])), torch.from_numpy(W[[7, 7, 0, 0]] @ W), atol=1e-5
        )
        for far in (8, -9):
            with pytest.raises(TensorError, match=r"embedding.*index out of range"):
                compiled(torch.tensor([[0, 1, 2, far]]))


def test_a_branch_that_is_known() -> None:
    def branch(name: str, op: str) -> Any:
        return helper.make_graph([node(op, ["x"], [name])], name, [], [helper.make_empty_tensor_value_info(name)])

    one = node("If", ["c"], ["z"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Relu"))
    x = torch.randn(2, 8)
    for known, wanted in ((True, -x), (False, x.relu())):
        assert torch.equal(OnnxModule(model_of(one, inputs=X, output="z", c=np.array(known)))(x), wanted)
    unknown = node("Cast", ["x"], ["c"], to=TensorProto.BOOL)
    with pytest.raises(UnsupportedError, match="If -> z: its condition depends on data"):
        OnnxModule(model_of(unknown, one, inputs={"x": (1,)}, output="z"))(torch.randn(1))


# -- quantised models


def quantised() -> dict[str, Any]:
    """The product of two layers, quantised in three ways."""
    scale, zero = np.array(0.02, np.float32), np.array(3, np.int8)
    w8 = np.clip(np.round(W / 0.03), -128, 127).astype(np.int8)
    more = {"s": scale, "z": zero, "w": w8, "ws": np.array(0.03, np.float32), "wz": np.array(0, np.int8)}
    dq = [node("DequantizeLinear", ["w", "ws", "wz"], ["wf"])]
    qdq = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("Reshape", ["xq", "shape"], ["xr"]),
        node("DequantizeLinear", ["xr", "s", "z"], ["xf"]),
        *dq,
        node("MatMul", ["xf", "wf"], ["y"]),
    ]
    operators = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("QLinearMatMul", ["xq", "s", "z", "w", "ws", "wz", "s", "z"], ["yq"]),
        node("DequantizeLinear", ["yq", "s", "z"], ["y"]),
    ]
    integers = [
        node("DynamicQuantizeLinear", ["x"], ["xq", "xs", "xz"]),
        node("MatMulInteger", ["xq", "w", "xz", "wz"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["xs", "ws"], ["u"]),
        node("Mul", ["f", "u"], ["y"]),
    ]
    made = {"QDQ": qdq, "QOperator": operators, "dynamic": integers}
    return {name: model_of(*nodes, inputs=X, shape=np.array([2, 8]), **more) for name, nodes in made.items()}


@pytest.mark.parametrize("kind", ["QDQ", "QOperator", "dynamic"])
def test_quantised_models_are_computed_in_float32(kind: str) -> None:
    model, x = quantised()[kind], torch.randn(2, 8)
    with pytest.warns(UserWarning, match=QUANTISED):
        module = OnnxModule(model)
    wanted = x @ (torch.from_numpy(np.clip(np.round(W / 0.03), -128, 127)).float() * 0.03)
    with torch.no_grad(), rsn.compile(module, (x,)) as compiled:
        assert torch.allclose(compiled(x), wanted, atol=1e-4)


# -- files


@in_both
def test_damaged_files_are_refused_or_answer() -> None:
    with ProcessPoolExecutor(1) as pool:  # whose memory is limited
        counts = pool.submit(onnx_hostile.some, range(cases(20000, 300))).result()
    assert set(counts) == {"refused", "answers"}, counts
    assert counts["answers"] > counts.total() / 50


def test_sizes_by_their_names(tmp_path: Any) -> None:
    graph = helper.make_graph(
        [node("MatMul", ["x", "W"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", "sequence", 8))],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(W, "W")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    module = load_onnx(path)
    shapes = module.dynamic_shapes(batch=rsn.Batch(1, 2), sequence=rsn.Length(4, 16))
    x = torch.randn(2, 9, 8)
    with torch.no_grad(), rsn.compile(module, module.example(1, 4), dynamic_shapes=shapes) as family:
        assert torch.allclose(family(x=x), x @ torch.from_numpy(W), atol=1e-5)
    with pytest.raises(UnsupportedError, match="no size is named rows; the file names batch, sequence"):
        module.dynamic_shapes(rows=rsn.Length(4, 16))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_weights_in_half_precision(kind: int) -> None:
    weight = helper.make_tensor("W", kind, [8, 8], W.reshape(-1).tolist())
    graph = helper.make_graph(
        [node("Cast", ["W"], ["w"], to=TensorProto.FLOAT), node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_empty_tensor_value_info("y")],
        [weight],
    )
    module = OnnxModule(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))
    x, dtype = torch.randn(2, 8), torch.float16 if kind == TensorProto.FLOAT16 else torch.bfloat16
    with torch.no_grad():
        assert torch.allclose(module(x), x @ torch.from_numpy(W).to(dtype).float(), atol=1e-5)


def test_weights_in_a_file_of_their_own(tmp_path: Any) -> None:
    path, x = tmp_path / "m.onnx", torch.randn(2, 8)
    model = model_of(node("MatMul", ["x", "W"], ["y"]), inputs=X, W=W)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert torch.allclose(load_onnx(path)(x), x @ torch.from_numpy(W), atol=1e-5)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(UnsupportedError, match="not an ONNX model"):
        load_onnx(path)
