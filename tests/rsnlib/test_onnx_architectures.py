"""Transformers as ONNX files, by both exporters, before and after onnxruntime's optimizers."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import rsn  # noqa: E402
from rsn.rsnlib.onnx_module import load_onnx  # noqa: E402
from rsn.tests.effort import full, sampled  # noqa: E402

from .onnx_architectures import EXPORTERS, FAMILIES, OPSETS, by_onnxruntime, difference, exported, quantised, tried  # noqa: E402

LONG = {("roberta", "dynamo", 18), ("gpt2", "torchscript", 20), ("llama", "dynamo", 23)}
EVERY = [(family, exporter, opset) for family in FAMILIES for exporter in EXPORTERS for opset in OPSETS]


@pytest.mark.long
@pytest.mark.parametrize("case", sampled(EVERY, LONG, lambda case: pytest.param(case, marks=pytest.mark.full)), ids=str)
def test_each_form_is_computed_as_by_onnxruntime(case: tuple[str, str, int]) -> None:
    for name, said in tried(*case):
        assert said == "right" or said.startswith("not "), f"{name}: {said}"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:the model is quantised")
@pytest.mark.parametrize("how", ["dynamic", "QDQ", "QOperator"])
@pytest.mark.parametrize("family", sampled(["bert", "gpt2", "vit"], ["gpt2"], full))
def test_quantised_by_onnxruntime(family: str, how: str, tmp_path: Path) -> None:
    """All of it runs on the machine, as near to the original as 8 bits are."""
    given = exported(tmp_path / "m.onnx", family, "torchscript", 17)
    wanted = by_onnxruntime(tmp_path / "m.onnx", given)
    module = load_onnx(quantised(tmp_path / "m.onnx", how, given))
    given = {name: given[name] for name in module.inputs}
    with torch.no_grad(), rsn.compile(module, given) as compiled:
        assert difference(module(**given), wanted, given) <= 0.03
        assert difference(compiled(**given), module(**given).numpy(), given) <= 1e-5
