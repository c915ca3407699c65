"""What integers a machine can multiply, as a quantizer of PT2E (`torchao.quantization.pt2e`).

prepared = prepare_pt2e(torch.export.export(model, inputs).module(), StreamQuantizer())
prepared(*calibration)
model = convert_pt2e(prepared)
"""

from __future__ import annotations

from ..base.errors import require, require_torch

require_torch("rsn.StreamQuantizer")
require("torchao", "rsn.StreamQuantizer", "pip install 'torchao>=0.18,<0.19'")

import torch  # noqa: E402 - what is missing is said first
from torch.fx import GraphModule, Node  # noqa: E402
from torchao.quantization.pt2e import HistogramObserver, PerChannelMinMaxObserver  # noqa: E402
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer  # noqa: E402

aten = torch.ops.aten
ANNOTATION = "quantization_annotation"
"""Key in a node's meta under which PT2E looks for what it quantises."""
ROWS = QuantizationSpec(torch.int8, HistogramObserver, -128, 127, torch.per_tensor_affine)
"""Activations: int8, one scale and zero point a tensor, from what calibration shows."""
WEIGHTS = QuantizationSpec(torch.int8, PerChannelMinMaxObserver, -127, 127, torch.per_channel_symmetric, 0)
"""Weights (N, K): int8, a scale for each row."""


class StreamQuantizer(Quantizer):  # type: ignore[misc, unused-ignore]
    """Quantises both operands of linear layers with constant weights, and of products of two activations. All else
    stays in float32."""

    def annotate(self, model: GraphModule) -> GraphModule:
        """Mark in the meta of a graph's nodes which operands PT2E shall quantise. Returns the graph, which is changed
        in place."""
        for node in model.graph.nodes:
            if node.target is aten.linear.default:
                _note(node, WEIGHTS if node.args[1].op == "get_attr" else ROWS)
            elif node.target is aten.matmul.default:
                _note(node, ROWS)
        return model

    def validate(self, model: GraphModule) -> None:
        """Do nothing: machines can compute every product that `annotate` marks."""


def _note(node: Node, other: QuantizationSpec) -> None:
    node.meta[ANNOTATION] = QuantizationAnnotation({node.args[0]: ROWS, node.args[1]: other}, None, _annotated=True)
