"""The summary of `explain`: the FLOPs of PyTorch's operators, and the modelled time, by module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.host.model.compiled import modelled_layers  # noqa: E402
from rsn.rsnlib.flops import FlopCounter  # noqa: E402
from rsn.rsnlib.summary import MAX_LINES, Modelled, ModuleWork, head, table  # noqa: E402
from rsn.rsnlib.trace import trace  # noqa: E402

B, L = 2, 10


def bert(layers: int = 2) -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 96, "num_attention_heads": 3, "intermediate_size": 200, "max_position_embeddings": 32}
    return transformers.BertModel(transformers.BertConfig(vocab_size=50, num_hidden_layers=layers, **sizes)).eval()


def total_flops(module: Any, *inputs: Any) -> int:
    """Of all operators of a module, wherever they run."""
    program = torch.export.export(module, inputs, strict=False)
    counter = FlopCounter()
    return sum(map(counter.of, program.graph.nodes))


# -- FLOPs


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


OPERATORS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "linear": (F.linear, [(2, 5, 7), (3, 7)], 2 * 10 * 7 * 3),
    "matmul": (torch.matmul, [(4, 5, 7), (4, 7, 3)], 2 * 4 * 5 * 7 * 3),
    "einsum": (lambda x, y: torch.einsum("bij,kj->bik", x, y), [(2, 5, 7), (3, 7)], 2 * 10 * 7 * 3),
    "baddbmm": (torch.baddbmm, [(4, 5, 3), (4, 5, 7), (4, 7, 3)], 2 * 4 * 5 * 7 * 3),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=4), [(1, 3, 16, 16), (8, 3, 4, 4)], 2 * 16 * 8 * 48),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 10, 32)] * 3, 2 * 2 * 2 * 3 * 10 * 10 * 32),
    "cross attention": (
        F.scaled_dot_product_attention,
        [(2, 3, 10, 32), (2, 3, 4, 32), (2, 3, 4, 32)],
        2 * 2 * 2 * 3 * 10 * 4 * 32,
    ),
    "grouped queries": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [(2, 4, 10, 32), (2, 2, 10, 32), (2, 2, 10, 32)],
        2 * 2 * 2 * 4 * 10 * 10 * 32,
    ),
    "element by element": (lambda x: (x * 2).tanh() + torch.arange(7), [(5, 7)], 0),
    "values decide": (lambda x: x[x > 0], [(5, 7)], 0),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_flops_of_an_operator(name: str) -> None:
    function, shapes, expected = OPERATORS[name]
    assert total_flops(Call(function).eval(), *(torch.randn(shape) for shape in shapes)) == expected


def test_flops_of_a_recurrence() -> None:
    """Of a whole layer in one operator: eight products in each step."""
    assert total_flops(nn.LSTM(8, 8, batch_first=True).eval(), torch.randn(2, 5, 8)) == 2 * 2 * 5 * 8 * 8 * 8


@given(rows=st.integers(1, 5), inner=st.integers(1, 9), columns=st.integers(1, 9))
@settings(max_examples=20)
def test_flops_of_any_product(rows: int, inner: int, columns: int) -> None:
    assert total_flops(nn.Linear(inner, columns).eval(), torch.randn(rows, inner)) == 2 * rows * inner * columns


def test_flops_of_a_graph_within_the_graph() -> None:
    """Of a condition each branch counts once."""

    def either(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: (x @ x) @ x, (x,))

    assert total_flops(Call(either).eval(), torch.randn(4, 4)) == 3 * 2 * 4**3


# -- the table


def test_table_of_a_stack() -> None:
    """Equal layers are one line, divided into their modules; what is neither a product nor timed has no line."""
    work = [ModuleWork("embeddings"), ModuleWork("mask", 0, False)]
    for i in range(12):
        work += [
            ModuleWork(f"layer.{i}.query", 1_000_000, True, 1e-3),
            ModuleWork(f"layer.{i}.attn", 500_000, True),
            ModuleWork(f"layer.{i}.attn.out", 500_000, True, 1e-3),
            ModuleWork(f"layer.{i}.norm", 0, True, 0.5e-3),
        ]
    work.append(ModuleWork("pooler.dense", 10_000))
    latency = 12 * 2.5e-3 + 1e-3
    assert head(work, latency) == ">99.9 % of 24.01 MFLOP, modelled latency 31.000 ms"
    assert (
        "\n".join(table(work, latency))
        == """\
module         MFLOP   of all  on the machine  modelled ms   of all
layer.0-11    24.000  >99.9 %         100.0 %       30.000   96.8 %
  query       12.000   50.0 %         100.0 %       12.000   38.7 %
  attn        12.000   50.0 %         100.0 %       12.000   38.7 %
    (itself)   6.000   25.0 %         100.0 %            -        -
    out        6.000   25.0 %         100.0 %       12.000   38.7 %
  norm             -        -               -        6.000   19.4 %
pooler.dense   0.010   <0.1 %           0.0 %            -        -
launch             -        -               -        1.000    3.2 %
total         24.010  100.0 %         >99.9 %       31.000  100.0 %
FLOPs: products, convolutions and attention at the model's sizes, 2 for a multiply and add
modelled: the machine's time up to the module's last store, from the store before it;
what PyTorch computes on the host is not timed"""
    )


def test_table_without_times() -> None:
    work = [
        ModuleWork("", 100, True),
        ModuleWork("0.dense", 200, True),
        ModuleWork("2.dense", 200, False),
        ModuleWork("3.dense", 200, True),
    ]
    assert head(work, None) == "71.4 % of 700 FLOP"
    assert (
        "\n".join(table(work))
        == """\
module            FLOP   of all  on the machine
the top level  100.000   14.3 %         100.0 %
0,3.dense      400.000   57.1 %         100.0 %
2.dense        200.000   28.6 %           0.0 %
total          700.000  100.0 %          71.4 %
FLOPs: products, convolutions and attention at the model's sizes, 2 for a multiply and add"""
    )


def test_nothing_to_count() -> None:
    assert head([ModuleWork("relu", 0, True)], 40e-6) == "no FLOPs, modelled latency 40.0 us"
    assert table([])[1].split() == ["total", "-", "-", "-"]


@given(
    st.lists(
        st.builds(
            ModuleWork,
            st.lists(st.sampled_from(["a", "b", "c", "0", "1", "2", "3"]), max_size=4).map(".".join),
            st.integers(0, 10**12),
            st.booleans(),
            st.floats(0, 1),
        ),
        max_size=60,
    )
)
def test_parts_add_up(work: list[ModuleWork]) -> None:
    """The lines without a margin add up to the total, and there are few of them."""
    lines = table([*work, ModuleWork("x", 1000, True, 1.0)], sum(x.seconds for x in work) + 1.0)
    rows = [line for line in lines[1:] if not line.startswith(("FLOPs:", "modelled:", "what "))]
    *rows, total = rows
    assert len(rows) <= MAX_LINES + 1

    def cell(row: str, i: int) -> float:
        text = row.replace(" %", "").replace("the top level", "top").replace(" others", "others").split()[i]
        return 0.0 if text == "-" else float(text)

    for i in (1, 4):
        outer = [cell(row, i) for row in rows if not row.startswith(" ")]
        assert sum(outer) == pytest.approx(cell(total, i), abs=1e-3 * (len(outer) + 1))


def test_many_modules_are_few_lines() -> None:
    work = [ModuleWork(f"m{chr(97 + i)}.dense", 1000 * (i + 1), True) for i in range(26)]
    lines = table(work)
    assert len(lines) == MAX_LINES + 3
    assert [line.split()[0] for line in lines[1:-2]] == [*(f"m{chr(97 + i)}.dense" for i in range(11, 26)), "11"]
    assert lines[-3].split()[:3] == ["11", "others", "66.000"]


# -- of models


def test_shares_of_bert() -> None:
    """Counted by hand: 2 layers of 20 rows, and the pooler, which looks at a row of each sequence."""
    ids = torch.randint(50, (B, L))
    traced = trace(bert(), {"input_ids": ids})
    rows, width, inner = B * L, 96, 200
    layer = 2 * rows * (4 * width * width + 2 * width * inner) + 2 * 2 * B * L * L * width
    work = traced.work()
    assert sum(x.flops for x in work if x.on_machine) == 2 * layer
    assert {x.path: x.flops for x in work if x.flops and not x.on_machine} == {"pooler.dense": 2 * B * width * width}
    seconds = {x.y: 1e-3 * i for i, x in enumerate(traced.network.layers, 1)}
    lines = traced.explain(Modelled(sum(seconds.values()), seconds)).splitlines()
    assert lines[0] == "2 x 10 rows, 14 layers on the machine: 99.4 % of 6.212 MFLOP, modelled latency 105.000 ms"
    assert " ".join(lines[2].split()) == "encoder.layer.0-1 6.175 99.4 % 100.0 % 105.000 100.0 %"


def test_modelled_time_of_a_program() -> None:
    """Each layer's, and with the launch they add up to the latency; also where the scores lie off chip, which is part
    of their attention."""
    model, x = rsn.nn.Encoder(1, 48, 3, 64, norm="pre").eval(), torch.randn(1, 800, 48)
    with rsn.compile(model, (x,)) as compiled:
        network = trace(model, (x,)).network
        modelled = modelled_layers(compiled.program, network)
        assert modelled.latency_s == compiled.modelled.latency_s
        assert modelled.layers.keys() == {layer.y for layer in network.layers}
        assert modelled.segments.keys() == {s.name for s in compiled.program.segments}
        launch = compiled.modelled.causes["launch"]
        for times in (modelled.layers, modelled.segments):
            assert sum(times.values()) + launch == pytest.approx(modelled.latency_s)
        assert compiled.explain() == rsn.explain(model, (x,))


def test_rows_beyond_the_lengths() -> None:
    with rsn.compile(rsn.nn.Encoder(1, 48, 3, 64).eval(), (torch.randn(2, 30, 48),), lengths=[30, 7]) as compiled:
        text = compiled.explain()
    assert "FLOPs of rows beyond the lengths are counted; the machine does not compute them" in text.splitlines()
