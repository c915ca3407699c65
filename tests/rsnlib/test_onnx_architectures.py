"""Transformers as ONNX files, by both exporters, before and after onnxruntime's optimizers."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from rsn.tests.effort import sampled

from .onnx_architectures import EXPORTERS, FAMILIES, OPSETS, tried

LONG = {("bert", "torchscript", 17), ("roberta", "dynamo", 18), ("gpt2", "torchscript", 20), ("llama", "dynamo", 23)}
EVERY = [(family, exporter, opset) for family in FAMILIES for exporter in EXPORTERS for opset in OPSETS]


@pytest.mark.long
@pytest.mark.parametrize("case", sampled(EVERY, LONG, lambda case: pytest.param(case, marks=pytest.mark.full)), ids=str)
def test_each_form_is_computed_as_by_onnxruntime(case: tuple[str, str, int]) -> None:
    for name, said in tried(*case):
        assert said == "right" or said.startswith("not "), f"{name}: {said}"
