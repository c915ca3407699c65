"""The test cases of ONNX's own operators that the onnx package ships: each is right, or refused for a reason below."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import helper, numpy_helper  # noqa: E402 - onnx first: it may be missing

from rsn.base.errors import RsnError, UnsupportedError  # noqa: E402
from rsn.rsnlib.onnx_module import OnnxModule, tensor_of  # noqa: E402
from rsn.rsnlib.onnx_operators.table import TABLE  # noqa: E402
from rsn.tests.effort import FULL  # noqa: E402

TYPES = "strings, and numbers of less than 8 bits or of 8 with a point"
REASONS = {
    r"\"\w+\" not implemented for 'UInt64'": "PyTorch has no arithmetic of unsigned integers of 64 bits",
    r"numbers of ONNX's type|numbers of type|has a type that PyTorch does not have": TYPES,
    r"its attribute round_mode is not supported": "numbers of 8 bits with a point",
    r"dropout in training mode|training_mode": "training",
    r"is no tensor|returns a sequence": "sequences and options as inputs and outputs",
    r"its output \S+ is not supported": "the places of the largest elements of a pool",
    r"opset \d is too old": "opsets before 7",
    r"no whole number of rows": "what ONNX's examples and onnxruntime compute otherwise",
    r"depends on data": "sizes and axes that depend on data",
}
"""What a refusal of a supported operator may say, and why it is refused."""
TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 2e-2}
"""The largest relative difference, of types that are not computed in float32."""


def value(given: Any, kind: int) -> torch.Tensor:
    """A value of a test case as a tensor of one of ONNX's types. kind: 0 for what is no tensor."""
    if not kind:
        raise UnsupportedError("a value is no tensor")
    if isinstance(given, onnx.TensorProto):
        return tensor_of(given)
    array = np.asarray(given)
    if kind == onnx.TensorProto.BFLOAT16:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return tensor_of(numpy_helper.from_array(np.array(array.astype(helper.tensor_dtype_to_np_dtype(kind)))))


def kinds(values: Any) -> list[int]:
    return [x.type.tensor_type.elem_type for x in values]


def with_known(model: Any, given: list[torch.Tensor]) -> Any:
    """The same model with its inputs as constants: those that give sizes must be."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for x, tensor in zip(model.graph.input, given, strict=True):
        kind = x.type.tensor_type.elem_type
        array = tensor.float().numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
        made.graph.initializer.append(helper.make_tensor(x.name, kind, list(tensor.shape), array.reshape(-1).tolist()))
    del made.graph.input[:]
    return made


def run(model: Any, given: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        got = OnnxModule(model)(*given)
    except RsnError as error:
        if "depends on data" not in str(error):
            raise
        got = OnnxModule(with_known(model, given))()
    return list(got) if isinstance(got, tuple) else [got]


def complaint(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> str:
    """What is wrong with results; empty if nothing is."""
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for x, y in zip(got, wanted, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{x.dtype} {tuple(x.shape)}, not {y.dtype} {tuple(y.shape)}"
        near = TOLERANCE.get(x.dtype, 1e-3)
        if not torch.allclose(x.double(), y.double(), near, near / 100 if x.dtype not in TOLERANCE else near, True):
            return f"differs by {float((x.double() - y.double()).abs().max()):.1e}"
    return ""


def outcome(case: Any) -> str:
    """ "right", "refused: " with the reason, or what is wrong."""
    try:
        for inputs, outputs in case.data_sets:
            given = [value(x, kind) for x, kind in zip(inputs, kinds(case.model.graph.input), strict=True)]
            wanted = [value(x, kind) for x, kind in zip(outputs, kinds(case.model.graph.output), strict=True)]
            wrong = complaint(run(case.model, given), wanted)
            if wrong:
                return wrong
    except RsnError as error:
        reason = next((why for pattern, why in REASONS.items() if re.search(pattern, str(error))), None)
        return f"refused: {reason}" if reason else f"refused without a reason: {error}"
    return "right"


@cache
def outcomes() -> dict[str, str]:
    """What cases of supported operators give: all in `make test-full`, else every third of each operator."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = [x for x in collect_testcases(None) if x.model is not None and operators(x.model) <= set(TABLE)]
        if not FULL:
            of_kind: Counter[frozenset[tuple[str, str]]] = Counter()
            for case in [*found]:
                kind = frozenset(operators(case.model))
                if of_kind[kind] % 3:
                    found.remove(case)
                of_kind[kind] += 1
        return {x.name: outcome(x) for x in found}


def operators(model: Any) -> set[tuple[str, str]]:
    return {("" if node.domain == "ai.onnx" else node.domain, node.op_type) for node in model.graph.node}


@pytest.mark.long
def test_cases_of_operators_are_right_or_refused() -> None:
    wrong = {name: said for name, said in outcomes().items() if said != "right" and not said.startswith("refused: ")}
    assert wrong == {}
    counts = Counter(outcomes().values())
    assert counts["right"] > 0.85 * counts.total(), counts
