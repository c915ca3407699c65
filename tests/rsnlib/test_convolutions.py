"""Convolutions as products of gathered rows, and factors of columns in weights, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing

from rsn.rsnlib.capture import lifted, packet, run  # noqa: E402
from rsn.rsnlib.column_factors import column_factors  # noqa: E402
from rsn.rsnlib.normal_form.passes import capture  # noqa: E402
from rsn.rsnlib.rewrites import patches, rewrite  # noqa: E402
from rsn.tests.effort import examples  # noqa: E402

aten = torch.ops.aten


def rewritten(model: Any, x: Any, *rules: Any) -> list[Any]:
    """The operators of the rewritten graph, whose result is checked to be the module's."""
    program = capture(model.eval(), (x,), {})
    rewrite(program, rules)
    environment = lifted(program)
    environment |= {n: x for n in program.graph.find_nodes(op="placeholder") if n not in environment}
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    run(nodes, environment)
    (result,) = program.graph.output_node().all_input_nodes
    got, wanted = environment[result], model(x)
    assert got.shape == wanted.shape == result.meta["val"].shape
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max() + 1e-12
    return [packet(node) for node in nodes]


@examples(60, quick=5)
@given(data=st.data())
def test_any_convolution(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.integers(low, high)) for _ in range(n))

    kernel, dilation = each(1, 4), each(1, 3)
    least = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [low + data.draw(st.integers(0, 6)) for low in least]
    same = data.draw(st.booleans())
    stride = (1,) * n if same else each(1, 4)
    channels, columns = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
    made = (nn.Conv1d, nn.Conv2d)[n - 1]
    settings: dict[str, Any] = {"padding": "same" if same else each(0, 3), "bias": data.draw(st.booleans())}
    model = made(channels, columns, kernel, stride, dilation=dilation, **settings)
    leading = data.draw(st.sampled_from([(), (1,), (3,)]))
    with torch.no_grad():
        found = rewritten(model, torch.randn(*leading, channels, *sizes), patches)
    assert found.count(aten.linear) == 1
    assert not {aten.conv1d, aten.conv2d} & set(found)


class Scaled(nn.Module):
    """(x @ W + b) * g, with what may stand between."""

    def __init__(self, bias: bool, between: Any, first: bool) -> None:
        super().__init__()
        self.dense, self.gain = nn.Linear(8, 6, bias=bias), nn.Parameter(torch.randn(6))
        self.between, self.first = between, first

    def forward(self, x: Any) -> Any:
        y = self.between(self.dense(x))
        return x[..., :6] + (self.gain * y if self.first else y * self.gain.view(1, 6))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "between",
    [lambda y: y, lambda y: y.view(2, 5, 6), lambda y: (y + torch.ones(6)).view(2, 5, 6)],
    ids=["directly", "reshaped", "with a bias"],
)
def test_factors_of_columns_go_into_the_weight(bias: bool, between: Any) -> None:
    with torch.no_grad():
        found = rewritten(Scaled(bias, between, bias), torch.randn(2, 5, 8), column_factors)
    assert found.count(aten.linear) == 1
    assert found.count(aten.mul) <= 2  # constants: the weight and the bias times the factors


@pytest.mark.parametrize(
    "between",
    [
        lambda y: y.relu(),
        lambda y: y.view(2, 5, 2, 3).flatten(2).transpose(0, 1).transpose(0, 1),
        lambda y: y.reshape(2, 6, 5).transpose(1, 2),
    ],
    ids=["activation", "other columns between", "moved"],
)
def test_other_factors_are_left_alone(between: Any) -> None:
    program = capture(Scaled(True, between, False).eval(), (torch.randn(2, 5, 8),), {})
    assert not rewrite(program, (column_factors,))
