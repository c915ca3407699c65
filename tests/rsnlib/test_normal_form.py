"""The normal form: each pass from text to text, every spelling with PyTorch's bits, what is legal behind which pass."""

from __future__ import annotations

import operator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators

from torch.fx import Graph, GraphModule, Interpreter  # noqa: E402 - torch first: it may be missing
from torch.fx.node import map_arg  # noqa: E402

from rsn.rsnlib.capture import exported, packet  # noqa: E402
from rsn.rsnlib.normal_form.editor import Editor  # noqa: E402
from rsn.rsnlib.normal_form.operators import OPERATORS  # noqa: E402
from rsn.rsnlib.normal_form.passes import (  # noqa: E402
    PASSES,
    REMOVED,
    NormalFormError,
    check_form,
    normalise,
)
from rsn.rsnlib.normal_form.text import show  # noqa: E402
from rsn.rsnlib.padding.check import RULES as PADDING  # noqa: E402
from rsn.rsnlib.rules import RULES as LOWERING  # noqa: E402
from rsn.rsnlib.streamed.rules import RULES as STREAMED  # noqa: E402
from rsn.tests.effort import cases, in_both  # noqa: E402

from .graph_text import read  # noqa: E402
from .structures import Network, drawn  # noqa: E402

aten = torch.ops.aten
INPUTS = """\
x: float32[2, 3, 4] = input()
y: float32[2, 3, 4] = input()
w: float32[3, 4] = input()
v: float32[4] = input()
i: int64[2, 3, 4] = input()
m: bool[2, 3, 4] = input()
"""
SPELLINGS = """\
aten._assert_tensor_metadata.default(x, None, None, torch.float32)
aten.addmm.default(aten.select.int(w, 1, 0), w, aten.t.default(w))
aten.addmm.default(w, aten.mm.default(w, aten.t.default(w)), w, beta=0.5, alpha=2)
aten.argsort.default(x, 1, True)
aten.argsort.stable(x, stable=True, dim=-1)
aten.chunk.default(x, 2, 1)
aten.unsafe_chunk.default(x, 2, -1)
aten.split.Tensor(x, 2, 1)
aten.unsafe_split.Tensor(x, 3, -1)
aten.split_with_sizes.default(x, [1, 3], -1)
aten.unsafe_split_with_sizes.default(x, [1, 2], 1)
aten.tensor_split.sections(x, 3, -1)
aten.unbind.int(x, 1)
aten.cosine_similarity.default(x, y, 1)
aten.pairwise_distance.default(x, y)
aten.diff.default(x, 2, 1)
aten.outer.default(v, v)
aten.ger.default(v, v)
aten.prelu.default(x, aten.select.int(w, 1, 0))
aten.masked_fill.Scalar(x, m, -inf)
aten.masked_fill.Scalar(m, m, 0)
aten.masked_fill.Tensor(i, m, aten.scalar_tensor.default(2.0))
aten.index_put.default(w, [aten.select.int(m, 0, 1)], aten.scalar_tensor.default(7.0))
aten.repeat_interleave.self_int(x, 2, 1)
aten.repeat_interleave.self_int(x, 3)
aten.__and__.Tensor(i, i)
aten.__or__.Scalar(i, 5)
aten.__xor__.Tensor(i, i)
aten._log_softmax.default(x, 1, False)
aten._softmax.default(x, -1, False)
aten.special_log_softmax.default(x, 1)
aten.special_softmax.default(x, 1, torch.float64)
aten.special_expit.default(x)
aten._unsafe_view.default(x, [6, 4])
aten.view.default(x, [6, -1])
aten.view_as.default(x, y)
aten.reshape_as.default(x, y)
aten.flatten.using_ints(x, 1)
aten.unflatten.int(x, -1, [2, 2])
aten.squeeze.dim(aten.unsqueeze.default(x, 1), 1)
aten.absolute.default(x)
aten.adjoint.default(x)
aten.mH.default(w)
aten.mT.default(x)
aten.numpy_T.default(w)
aten.t.default(w)
aten.transpose.int(x, 0, -1)
aten.moveaxis.int(x, 0, 2)
aten.movedim.intlist(x, [0, 1], [2, 0])
aten.swapaxes.default(x, 0, 1)
aten.swapdims.default(x, -1, 1)
aten.permute.default(x, [-1, 0, 1])
aten.broadcast_to.default(v, [2, 4])
aten.expand_as.default(w, x)
aten.expand.default(w, [2, -1, -1])
aten.narrow.default(x, -1, -3, 2)
aten.narrow.default(x, 1, 3, 0)
aten.clamp_max.default(x, 0.5)
aten.clamp_min.Tensor(x, v)
aten.clip.default(x, -1, 1)
aten.concat.default([x, y], 1)
aten.concatenate.default([x, y], -1)
aten.divide.Tensor(x, y)
aten.true_divide.Tensor(x, i)
aten.floor_divide.default(i, 3)
aten.multiply.Tensor(x, y)
aten.negative.default(x)
aten.subtract.Tensor(x, y, alpha=2)
aten.rsub.Scalar(x, 1)
aten.rsub.Tensor(x, y, alpha=3)
aten.reciprocal.default(x)
aten.square.default(x)
aten.fix.default(x)
aten.greater.Tensor(x, y)
aten.greater_equal.Scalar(x, 0)
aten.less.Scalar(x, 0)
aten.less_equal.Tensor(x, y)
aten.not_equal.Scalar(i, 2)
aten.norm.Scalar(x)
aten.norm.ScalarOpt_dim(x, None, [1], True)
aten.max.default(x)
aten.max.other(x, y)
aten.min.other(x, y)
aten.mm.default(w, aten.t.default(w))
aten.mv.default(w, v)
aten.dot.default(v, v)
aten.detach.default(x)
aten.dropout.default(x, 0.5, False)
aten.lift_fresh.default(x)
aten.lift_fresh_copy.default(x)
aten.to.dtype(x, torch.float64)
aten.to.dtype(i, torch.int64)
aten.type_as.default(i, x)
aten._to_copy.default(x, dtype=torch.float32)
aten.new_full.default(x, [2, 2], 5)
aten.new_ones.default(x, [3], dtype=torch.int64)
aten.new_zeros.default(x, [3])
aten.ones.default([2])
aten.ones_like.default(i)
aten.zeros.default([2], dtype=torch.bool)
aten.zeros_like.default(x)
aten.tile.default(x, [2])
"""


def graph_of(expression: str) -> Graph:
    """A graph that returns an expression of these inputs, and all results of an operator with several."""
    lines, count = [INPUTS], 0
    while "(aten." in expression or "[aten." in expression or " aten." in expression:
        start = expression.rindex("aten.")
        end = expression.index(")", start) + 1
        lines.append(f"t{count}: float32[1] = {expression[start:end]}\n")
        expression = f"{expression[:start]}t{count}{expression[end:]}"
        count += 1
    graph = read("".join([*lines, f"out: float32[1] = {expression}\n", "return (out,)\n"]))
    mode = next(iter(graph.nodes)).meta["val"].fake_mode
    with mode:
        for node in [x for x in graph.nodes if x.op == "call_function"]:
            args, kwargs = map_arg((node.args, node.kwargs), lambda x: x.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)
    output = graph.output_node()
    out = output.args[0][0]
    if isinstance(out.meta["val"], list | tuple):
        with graph.inserting_before(output):
            parts = [graph.call_function(operator.getitem, (out, n)) for n in range(len(out.meta["val"]))]
        for part, value in zip(parts, out.meta["val"], strict=True):
            part.meta["val"] = value
        output.args = (tuple(parts),)
    if out.meta["val"] is None:
        output.args = ((next(iter(graph.nodes)),),)
    return graph


def values(graph: Graph) -> Any:
    torch.manual_seed(0)
    x, y, w, v = (torch.randn(shape) for shape in ((2, 3, 4), (2, 3, 4), (3, 4), (4,)))
    given = x, y, w, v, torch.randint(-5, 5, (2, 3, 4)), torch.randn(2, 3, 4) > 0
    return Interpreter(GraphModule({}, graph)).run(*given)


@pytest.mark.parametrize("expression", SPELLINGS.splitlines())
def test_every_spelling(expression: str) -> None:
    """It becomes operators of the table, pass by pass, that compute the same bits, but for the order of a sum; the
    message names the same."""
    graph = graph_of(expression)
    before = values(graph)
    editor = Editor(graph)
    for name, change in PASSES.items():
        change(editor)
        check_form(graph, name)
        assert show(read(show(graph))) == show(graph)
    graph.lint()
    assert {packet(node) for node in graph.nodes if node.op == "call_function"} <= set(OPERATORS)
    for got, wanted in zip(values(graph), before, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        # Some processors begin the sums of these products with the addend, others end with it.
        in_one = "addmm" in expression or "baddbmm" in expression
        torch.testing.assert_close(got, wanted, rtol=1e-6 if in_one else 0, atol=1e-6 if in_one else 0)
    for node, result in zip(graph.output_node().args[0], values(graph), strict=True):
        assert (node.meta["val"].shape, node.meta["val"].dtype) == (result.shape, result.dtype)


def test_there_is_a_case_for_each_spelling() -> None:
    names = {line.partition("(")[0].split(".")[1] for line in SPELLINGS.replace("(aten.", "\naten.").splitlines()}
    lacking = {op.__name__ for ops in REMOVED.values() for op in ops} - names
    assert lacking == {"_assert_async", "_assert_scalar", "scalar_tensor", "unsqueeze"} - names


def test_numbers_and_sizes_that_data_decide() -> None:
    """A number that a tensor tells is an argument as before; what has no size that is known stays as it is."""

    class Model(torch.nn.Module):
        def forward(self, x: Any, m: Any) -> Any:
            most = x.max().item()
            return x.masked_fill(m, most).clamp_min(most), x.repeat_interleave(torch.tensor([1, 2]), 0).unsqueeze(0)

    graph = exported(Model().eval(), (torch.randn(2, 3), torch.randn(2, 3) > 0), {}).graph
    normalise(graph)
    text = show(graph)
    assert "aten.where.ScalarSelf(m, item, x)  # (aten.masked_fill.Scalar)" in text
    assert "aten.clamp.default(masked_fill, min=item)" in text
    assert "float32[1, u0, 3] = aten.unsqueeze.default(" in text


GOLDEN = {
    "checks": (
        """\
x: float32[2, 4] = input()
check: NoneType = aten._assert_tensor_metadata.default(x, None, None, torch.float32)
y: float32[2, 4] = aten.relu.default(x)  # act
return (y,)
""",
        """\
x: float32[2, 4] = input()
y: float32[2, 4] = aten.relu.default(x)  # act
return (y,)
""",
    ),
    "decompositions": (
        """\
b: float32[6] = input()
w: float32[4, 6] = input()
x: float32[2, 4] = input()
m: bool[2, 6] = input()
packed: float32[2, 6] = aten.addmm.default(b, x, w)  # layer.0
hidden: float32[2, 6] = aten.masked_fill.Scalar(packed, m, -inf)
halves: (float32[2, 3], float32[2, 3],) = aten.chunk.default(hidden, 2, 1)  # gate
one: float32[2, 3] = getitem(halves, 0)
other: float32[2, 3] = getitem(halves, 1)
return (other, one)
""",
        """\
b: float32[6] = input()
w: float32[4, 6] = input()
x: float32[2, 4] = input()
m: bool[2, 6] = input()
permute_default: float32[6, 4] = aten.permute.default(w, [1, 0])  # layer.0 (aten.addmm.default)
packed: float32[2, 6] = aten.linear.default(x, permute_default, b)  # layer.0 (aten.addmm.default)
hidden: float32[2, 6] = aten.where.ScalarSelf(m, -inf, packed)  # (aten.masked_fill.Scalar)
one: float32[2, 3] = aten.slice.Tensor(hidden, 1, 0, 3)  # gate (aten.chunk.default, part of 2)
other: float32[2, 3] = aten.slice.Tensor(hidden, 1, 3, 6)  # gate (aten.chunk.default, part of 2)
return (other, one)
""",
    ),
    "spellings": (
        """\
x: float32[2, 4] = input()
y: float32[2, 4] = input()
row: float32[2, 1, 4] = aten.unsqueeze.default(x, 1)  # a
back: float32[2, 4] = aten.flatten.using_ints(row, 0, 1)
turned: float32[4, 2] = aten.mT.default(back)
again: float32[2, 4] = aten.transpose.int(turned, -1, 0)
same: float32[2, 4] = aten.to.dtype(again, torch.float32)
double: float64[2, 4] = aten.to.dtype(same, torch.float64)
left: float32[2, 4] = aten.rsub.Scalar(x, 1)
times: float32[2, 4] = aten.multiply.Tensor(left, same)
return (times, double)
""",
        """\
x: float32[2, 4] = input()
y: float32[2, 4] = input()
row: float32[2, 1, 4] = aten.reshape.default(x, [2, 1, 4])  # a (aten.unsqueeze.default)
back: float32[2, 4] = aten.reshape.default(row, [2, 4])  # (aten.flatten.using_ints)
turned: float32[4, 2] = aten.permute.default(back, [1, 0])  # (aten.mT.default)
again: float32[2, 4] = aten.permute.default(turned, [1, 0])  # (aten.transpose.int)
same: float32[2, 4] = aten.detach.default(again)  # (aten.to.dtype)
double: float64[2, 4] = aten._to_copy.default(same, dtype=torch.float64)  # (aten.to.dtype)
left: float32[2, 4] = aten.sub.Tensor(1, x)  # (aten.rsub.Scalar)
times: float32[2, 4] = aten.mul.Tensor(left, same)  # (aten.multiply.Tensor)
return (times, double)
""",
    ),
    "quantised": (
        """\
x: float32[2, 4] = input()
s: float32[] = input()
z: int64[] = input()
q: int8[2, 4] = quantized_decomposed.quantize_per_tensor.tensor(x, s, z, -128, 127, torch.int8)  # a
u: uint8[2, 4] = quantized_decomposed.quantize_per_tensor.tensor(x, s, z, 0, 255, torch.uint8)  # a
return (q, u)
""",
        """\
x: float32[2, 4] = input()
s: float32[] = input()
z: int64[] = input()
_to_copy_default: int32[] = aten._to_copy.default(z, dtype=torch.int32)  # a \
(quantized_decomposed.quantize_per_tensor.tensor)
q: int8[2, 4] = rsn.quantise.default(x, s, _to_copy_default, -128, 127)  # a \
(quantized_decomposed.quantize_per_tensor.tensor)
u: uint8[2, 4] = quantized_decomposed.quantize_per_tensor.tensor(x, s, z, 0, 255, torch.uint8)  # a
return (q, u)
""",
    ),
    "copies": (
        """\
x: float32[2, 4] = input()
copy: float32[2, 4] = aten.clone.default(x)
kept: float32[2, 4] = aten.clone.default(x)
shown: float32[8] = aten.reshape.default(kept, [8])
whole: float32[2, 4] = aten.alias.default(copy)
y: float32[2, 4] = aten.relu.default(whole)
dense: float32[2, 4] = aten.contiguous.default(x)
pairs: float32[2, 2, 2] = aten.reshape.default(dense, [2, 2, 2])
turned: complex64[2, 2] = aten.view_as_complex.default(pairs)
both: float32[2, 4] = aten.add.Tensor(kept, dense)
return (y, shown, turned, both)
""",
        """\
x: float32[2, 4] = input()
kept: float32[2, 4] = aten.clone.default(x)
shown: float32[8] = aten.reshape.default(kept, [8])
whole: float32[2, 4] = aten.alias.default(x)
y: float32[2, 4] = aten.relu.default(whole)
dense: float32[2, 4] = aten.contiguous.default(x)
pairs: float32[2, 2, 2] = aten.reshape.default(dense, [2, 2, 2])
turned: complex64[2, 2] = aten.view_as_complex.default(pairs)
both: float32[2, 4] = aten.add.Tensor(x, x)
return (y, shown, turned, both)
""",
    ),
}
"""A graph before and behind each pass."""


@pytest.mark.parametrize("name", PASSES)
def test_each_pass(name: str) -> None:
    before, behind = GOLDEN[name]
    graph = read(before)
    assert show(graph) == before
    PASSES[name](Editor(graph))
    assert show(graph) == behind


@in_both
@pytest.mark.parametrize("part", range(2))
def test_a_graph_as_text_is_read_back(part: int) -> None:
    """Of random networks, as torch.export makes them and in the normal form, which changes nothing twice."""
    for seed in range(part, cases(60, 4), 2):
        structure = drawn(seed)
        graph = exported(Network(structure), structure.arguments(0), {}).graph
        for _ in range(2):
            assert show(read(show(graph))) == show(graph)
            normalise(graph)
        before = show(graph)
        normalise(graph)
        assert show(graph) == before


@pytest.mark.parametrize(
    "line", ["y = aten.relu.default(x)", "y: float32[u0, 4] = aten.relu.default(x)", "y: float32[2] = x + x"]
)
def test_what_is_no_line(line: str) -> None:
    with pytest.raises(ValueError, match=r"no node of a graph|depends on data"):
        read(f"x: float32[2, 4] = input()\n{line}\nreturn (y,)\n")


def test_what_a_pass_leaves_is_found() -> None:
    graph = read("x: float32[2, 4] = input()\ny: float32[8] = aten.view.default(x, [8])\nreturn (y,)\n")
    check_form(graph, "decompositions")
    with pytest.raises(NormalFormError, match=r"^y: aten\.view\.default behind the pass spellings$"):
        check_form(graph, "spellings")


@pytest.mark.parametrize("rules", [LOWERING, PADDING, STREAMED], ids=["lowering", "padding", "streams"])
def test_rules_read_the_normal_form_alone(rules: Any) -> None:
    """But for a view of the same bits as another type, which padding follows."""
    assert set(rules) - set(OPERATORS) <= {aten.view}
