"""`torch.compile(model, backend="rsn")`: on the machine where it can be, in PyTorch where it says so."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.host.model.compiled import Compiled  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.isa.program import UnpackedProgram  # noqa: E402
from rsn.rsnlib import pipeline  # noqa: E402
from rsn.scheduler.pack import ListTooLong  # noqa: E402
from rsn.tests.effort import long  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran on the machine, call by call."""
    seen: list[str] = []
    run = Compiled.__call__

    def noted(self: Compiled, *args: Any, **kwargs: Any) -> Any:
        seen.append(repr(self))
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Compiled, "__call__", noted)
    return seen


def encoder() -> nn.Module:
    one = nn.TransformerEncoderLayer(48, 3, 80, activation="gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(one, 2, enable_nested_tensor=False).eval()


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_by_name(runs: list[str]) -> None:
    model, x = encoder(), torch.randn(2, 10, 48)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    for _ in range(2):
        close(fast(x), model(x))
    assert len(runs) == 2
    assert "2 x 10 rows" in runs[0]


def test_other_shapes_are_other_programs(runs: list[str]) -> None:
    model = encoder()
    fast = torch.compile(model, backend="rsn", dynamic=True, options={"fallback": "error"})
    for shape in ((2, 10), (3, 10), (2, 140), (2, 10)):
        x = torch.randn(*shape, 48)
        close(fast(x), model(x))
    assert ["2 x 10" in runs[0], "3 x 10" in runs[1], "2 x 140" in runs[2], "2 x 10" in runs[3]] == [True] * 4


def test_changed_weights_are_seen() -> None:
    model, x = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7)).eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    close(fast(x), model(x))
    model[0].weight.mul_(2)
    close(fast(x), model(x))


class Mixed(nn.Module):
    """Two products that the machine takes, and between them what it does not: torch breaks the graph there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 30), nn.Linear(30, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if float(y.sum()) > 1e9:
            return x
        y = self.second(torch.sin(y))
        return y


def test_graphs_between_which_python_decides(runs: list[str]) -> None:
    model, x = Mixed().eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    close(fast(x), model(x))
    assert len(runs) == 2


class Columns(nn.Module):
    """A product of two activations that is no attention."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.transpose(1, 2), x)


def test_what_the_machine_cannot_run_stays_in_pytorch_and_says_so(runs: list[str]) -> None:
    model, x = Columns(), torch.randn(2, 5, 20)
    fast = torch.compile(model, backend="rsn")
    with pytest.warns(Fallback, match=r"this graph runs in PyTorch: .*aten\.bmm\.default .*not an operation"):
        close(fast(x), model(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", Fallback)  # once for each program
        close(fast(x), model(x))
    assert runs == []


class Bmm(nn.Module):
    """An attention that is capped, which the machine cannot do."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(columns, columns) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.bmm(self.query(x), self.key(x).transpose(1, 2))
        return x + torch.bmm((5 * torch.tanh(scores / 5)).softmax(-1), self.value(x))


class Recurrent(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.gru = nn.GRU(columns, columns, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.gru(x)
        return x + y


class Tanh(nn.Module):
    """Nothing but what stands between products."""

    def __init__(self, columns: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()


def sandwich(middle: type[nn.Module]) -> nn.Module:
    """Two layers that the machine takes, and another between them."""
    layers = [nn.TransformerEncoderLayer(48, 3, 80, activation="gelu", batch_first=True) for _ in range(2)]
    return nn.Sequential(layers[0], middle(48), layers[1]).eval()


MIDDLES = [
    (Bmm, r"aten\.bmm\.default at 1: aten\.bmm\.default is not an operation of the machine"),
    (Recurrent, r"aten\.gru\.input at 1\.gru \(a recurrence\): aten\.gru\.input is not an operation of the machine"),
    (Tanh, r"aten\.linear\.default at 2\.self_attn: it depends on aten\.tanh\.default at 1, which cannot run"),
]


@pytest.mark.parametrize(("middle", "reason"), MIDDLES)
def test_the_rest_of_a_graph_runs_on_the_machine(middle: type[nn.Module], reason: str, runs: list[str]) -> None:
    model, x = sandwich(middle), torch.randn(2, 10, 48)
    fast = torch.compile(model, backend="rsn")
    with torch._dynamo.config.patch(allow_rnn=True):
        text = rsn.explain(fast, (x,))
        assert runs == []
        with pytest.warns(Fallback, match="a part of this graph .*: " + reason):
            got = fast(x)
    wanted = model(x)
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert [("2 x 10 rows" in run) for run in runs] == [True] * 2
    assert re.search(r"piece 2, on the machine; cut here because of " + reason, text)
    for product in ("0.self_attn", "0.linear2", "2.self_attn", "2.linear2"):
        assert re.search(rf"^ +{re.escape(product)} +machine +matrix product", text, re.M)
    assert not re.search(r"^ +1\S* +machine.*(bmm|gru|tanh)", text, re.M)


@pytest.mark.parametrize(("middle", "reason"), [MIDDLES[0], *(long(*case) for case in MIDDLES[1:])])
def test_or_that_is_an_error(middle: type[nn.Module], reason: str, runs: list[str]) -> None:
    fast, x = torch.compile(sandwich(middle), backend="rsn", options={"fallback": "error"}), torch.randn(2, 10, 48)
    with torch._dynamo.config.patch(allow_rnn=True):
        for call in (lambda: rsn.explain(fast, (x,)), lambda: fast(x)):
            with pytest.raises(UnsupportedError, match=reason):
                call()
    assert runs == []


def test_or_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 7)).eval()
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    with pytest.raises(UnsupportedError, match="cannot run on the machine"):
        fast(torch.randn(5, 20))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"falback": "error"}, "no option 'falback' of backend rsn; there are board, overlay, schedule, fallback"),
        ({"fallback": "silent"}, 'fallback \'silent\': "warn" or "error"'),
        ({"schedule": "bst"}, "option schedule: no schedule 'bst'"),
        ({"schedule": "nofile.toml"}, r"option schedule: nofile\.toml: no such file"),
        ({"schedule": 3}, "option schedule: .*3: must be a name"),
        ({"overlay": "xn"}, "option overlay: no overlay 'xn' .did you mean xnn.*; there are xnn"),
        ({"overlay": "fig6"}, "option overlay: overlay fig6 lacks a unit with capability matmul"),
        ({"board": "vck19"}, "option board: no board 'vck19'; there are sim, csim, vck190"),
        ({"board": "vck190@xtr"}, "option board: no device 'xtr'; there are xrt"),
        ({"board": "ssh://"}, "option board: .*ssh://"),
    ],
)
@pytest.mark.parametrize("asked", ["called", "explained"])
def test_options(options: dict[str, Any], complaint: str, asked: str) -> None:
    fast, x = torch.compile(nn.Linear(3, 4).eval(), backend="rsn", options=options), torch.randn(2, 3)
    with pytest.raises(Exception, match=complaint):
        fast(x) if asked == "called" else rsn.explain(fast, (x,))


def test_a_board_that_is_not_here_can_be_explained() -> None:
    for board in ("vck190", "ssh://board"):
        fast = torch.compile(nn.Linear(3, 4).eval(), backend="rsn", options={"board": board})
        assert "on the machine" in rsn.explain(fast, (torch.randn(2, 3),))
        torch._dynamo.reset()


def test_a_schedule_for_segments_that_a_graph_does_not_have(runs: list[str]) -> None:
    schedule = rsn.Schedule(segments=(rsn.Segment("other"),))
    fast, x = torch.compile(nn.Linear(3, 4).eval(), backend="rsn", options={"schedule": schedule}), torch.randn(2, 3)
    assert re.search(r"in PyTorch: .*other", rsn.explain(fast, (x,)))
    with pytest.warns(Fallback, match="this graph runs in PyTorch: .*other"):
        fast(x)
    assert runs == []


class Wide(nn.Module):
    """An attention with heads that are too wide for the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(640, 2, 80, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


LIMITS = [
    (Wide, (2, 10, 640), "heads of 320 columns", 2),
    (
        lambda: nn.Sequential(nn.Linear(64, 15400), nn.LayerNorm(15400), nn.Linear(15400, 64)),
        (9, 64),
        "over 15400 columns",
        2,
    ),
]


@pytest.mark.parametrize(
    ("make", "shape", "reason", "pieces", "schedule"),
    [
        (*LIMITS[1], "paper"),
        long(*LIMITS[0], "paper"),
        (*LIMITS[0], rsn.Best(budget_s=0.1)),
    ],
)
def test_a_layer_beyond_a_limit_is_cut_out(
    make: Any, shape: tuple[int, ...], reason: str, pieces: int, schedule: Any, runs: list[str]
) -> None:
    model, x = make().eval(), torch.randn(shape)
    fast = torch.compile(model, backend="rsn", options={"schedule": schedule})
    text = rsn.explain(fast, (x,))
    assert reason in text
    assert runs == []
    with pytest.warns(Fallback, match=reason):
        close(fast(x), model(x))
    assert len(runs) == pieces == len(re.findall("^  piece .*on the machine", text, re.M))
    refused = torch.compile(model, backend="rsn", options={"schedule": schedule, "fallback": "error"})
    for call in (lambda: rsn.explain(refused, (x,)), lambda: refused(x)):
        with pytest.raises(UnsupportedError, match=reason):
            call()


def test_too_many_layers_for_one_program_are_several(monkeypatch: pytest.MonkeyPatch, runs: list[str]) -> None:
    """Five layers where a program holds two, with a residual around all."""

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))

        def forward(self, x: Any) -> Any:
            y = x
            for layer in self.layers:
                y = layer(y).relu()
            return x + y

    def check(kernels: UnpackedProgram) -> None:
        if len(kernels.preloaded["MME0"]) > 2:
            raise ListTooLong("MME0 needs more ops")

    monkeypatch.setattr(pipeline, "check_lists", check)
    model, x = Deep().eval(), torch.randn(1, 4, 64)
    with torch.no_grad():
        fast = torch.compile(model, backend="rsn")
        with pytest.warns(Fallback, match="MME0 needs more ops"):
            close(fast(x), model(x))
    assert len(runs) >= 3


class Attention(nn.Module):
    """As GPT-2 spells it."""

    def __init__(self, columns: int, heads: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj, self.heads = nn.Linear(columns, 3 * columns), nn.Linear(columns, columns), heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.c_attn(x).chunk(3, -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class PreNorm(nn.Module):
    def __init__(self, columns: int, heads: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = norm(columns), Attention(columns, heads), norm(columns)
        self.mlp = nn.Sequential(nn.Linear(columns, 96), nn.GELU("tanh"), nn.Linear(96, columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class SpelledRms(nn.Module):
    """RMSNorm as models spell it that are older than the operator."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Stack(nn.Module):
    def __init__(self, layers: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.h = nn.ModuleList(PreNorm(1280, 20, norm) for _ in range(layers))
        self.ln_f = norm(1280)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.h:
            x = layer(x)
        return self.ln_f(x)


@pytest.mark.parametrize(
    ("layers", "norm", "kind"),
    [long(2, nn.LayerNorm, "LayerNorm"), long(1, nn.RMSNorm, "RMSNorm"), (1, SpelledRms, "RMSNorm")],
)
def test_norms_wider_than_a_memory_run_on_the_machine(layers: int, norm: Any, kind: str, runs: list[str]) -> None:
    model, x = Stack(layers, norm).eval(), torch.randn(1, 5, 1280)
    fast = torch.compile(model, backend="rsn")
    text = rsn.explain(fast, (x,))
    for i in range(layers):
        assert re.search(rf"^ +h\.{i}\.attn +machine +attention, 20 heads of 64", text, re.M)
    assert f"{kind} over 1280 columns" not in text
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-5)
    assert len(runs) == 1


def test_norms_of_the_fast_path_run_on_the_machine(runs: list[str]) -> None:
    model = nn.TransformerEncoderLayer(1280, 20, 96, batch_first=True, norm_first=True).eval()
    fast, x = torch.compile(model, backend="rsn"), torch.randn(1, 5, 1280)
    assert len(re.findall("machine +(?:matrix product|attention)", rsn.explain(fast, (x,)))) == 5
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-5)
    assert len(runs) == 1


def test_an_attention_in_a_layout_of_its_own_is_cut_out(runs: list[str]) -> None:
    """Its heads are narrow, and its result is the last: a product puts them side by side."""

    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(40, 120)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (y.unflatten(-1, (8, 5)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    model, x = Narrow().eval(), torch.randn(1, 64, 40)
    fast = torch.compile(model, backend="rsn", options={"overlay": "xnn-base"})
    assert re.search("qkv +machine +matrix product 40 x 120", rsn.explain(fast, (x,)))
    with pytest.warns(Fallback, match=r"aten\.scaled_dot_product_attention\.default at .*: sequences of 64 rows"):
        torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-5)
    assert len(runs) == 1


class Wanted(nn.Module):
    """A product whose result is wanted bare, and with something fused into it that the machine cannot do."""

    def __init__(self, columns: int, *fused: nn.Module) -> None:
        super().__init__()
        self.up, self.down, self.fused = nn.Linear(32, columns), nn.Linear(columns, 16), nn.Sequential(*fused)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x)
        return self.down(h) + self.down(self.fused(h))


@pytest.mark.parametrize(
    ("columns", "fused", "overlay", "reason"),
    [
        (64, [nn.ReLU()], "xnn-base", r"at fused\.0: activation relu; overlay xnn-base"),
        (64, [nn.RMSNorm(64)], "xnn-base", r"at fused\.0: .*overlay xnn-base lacks capability rmsnorm"),
    ],
)
def test_a_pass_that_the_machine_has_no_room_for(
    columns: int, fused: list[nn.Module], overlay: str, reason: str, runs: list[str]
) -> None:
    model, x = Wanted(columns, *fused).eval(), torch.randn(7, 32)
    fast = torch.compile(model, backend="rsn", options={"overlay": overlay})
    assert len(re.findall("machine +matrix product", rsn.explain(fast, (x,)))) == 3
    with pytest.warns(Fallback, match=reason):
        torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-5)
    assert len(runs) == 2


class Layer(nn.Module):
    """Called so that PyTorch would take its fast path."""

    def __init__(self, mask: str, norm_first: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(48, 4, 80, activation="gelu", batch_first=True, norm_first=norm_first)
        self.mask = mask

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        count = x.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(count) if "causal" in self.mask else None
        padding = torch.arange(count) >= lengths[:, None] if "padding" in self.mask else None
        return self.layer(x, src_mask=causal, src_key_padding_mask=padding)


@pytest.mark.parametrize(
    ("mask", "norm_first"),
    [
        ("padding", False),
        ("causal", True),
        *(long(*x) for x in (("", False), ("", True), ("causal", False), ("padding", True))),
    ],
)
def test_the_fast_path_is_for_the_machine(mask: str, norm_first: bool, runs: list[str]) -> None:
    model, x, lengths = Layer(mask, norm_first).eval(), torch.randn(2, 10, 48), torch.tensor([10, 7])
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    assert "attention, 4 heads of 12" in rsn.explain(fast, (x, lengths))
    got, wanted = fast(x, lengths), model(x, lengths)
    close(got[0], wanted[0])
    close(got[1, :7], wanted[1, :7])
    assert len(runs) == 1


@pytest.mark.parametrize("need_weights", [False, True])
def test_the_fast_path_of_attention(need_weights: bool, runs: list[str]) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(48, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x, x, x, need_weights=need_weights)[0]

    model, x = Attention().eval(), torch.randn(2, 10, 48)
    close(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))
    assert len(runs) == 1


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_summary_of_what_torch_does_not_capture_at_all(kind: type[nn.Module], runs: list[str]) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = kind(20, 30)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)[0]

    x = torch.randn(2, 5, 20)
    text = rsn.explain(torch.compile(Wrapped().eval(), backend="rsn", options={"fallback": "error"}), (x,))
    assert "torch captured nothing for the machine; all of it runs in PyTorch" in text
    assert re.search(r"^in PyTorch, as torch did not capture it: .*(rnn|mm).* in forward at", text, re.M)
    torch._dynamo.reset()
    assert 'was it compiled with backend="rsn"?' in rsn.explain(torch.compile(Wrapped().eval(), backend="eager"), (x,))


def test_gradients_stay_in_pytorch(runs: list[str]) -> None:
    model, x = nn.Linear(20, 30), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn")
    with torch.enable_grad(), pytest.warns(Fallback, match=r"gradients are wanted.*torch\.no_grad"):
        fast(x).sum().backward()
    assert model.weight.grad is not None
    assert runs == []


class Half(nn.Module):
    """A layer in another type than what is around it."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.layer = nn.Linear(columns, columns).half()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.half()).float()


def test_a_layer_of_another_type_is_cut_out(runs: list[str]) -> None:
    model, x = sandwich(Half), torch.randn(2, 10, 48)
    with pytest.warns(Fallback, match=r"aten\.linear\.default at 1\.layer: its weight is torch\.float16"):
        got = torch.compile(model, backend="rsn")(x)
    torch.testing.assert_close(got, model(x), rtol=0, atol=1e-3)  # half rounds what the two differ by
    assert len(runs) == 2


def test_half_precision_says_what_to_do() -> None:
    fast = torch.compile(nn.Linear(20, 30).half().eval(), backend="rsn", options={"fallback": "error"})
    with pytest.raises(Exception, match=r"float16; the machine computes in float32"):
        fast(torch.randn(5, 20).half())


@pytest.mark.long
def test_deberta_runs_in_pieces(runs: list[str]) -> None:
    """Its attention has products of its own for positions; all around it is the machine's."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80}
    positions = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
    config = transformers.DebertaV2Config(vocab_size=100, **sizes, **positions)
    model, ids = transformers.DebertaV2Model(config).eval(), torch.randint(5, 90, (2, 12))
    with pytest.warns(Fallback, match=r"attention\.self \(positions multiplied with queries or keys\): aten\.bmm"):
        got = torch.compile(model, backend="rsn")(ids).last_hidden_state
    wanted = model(ids).last_hidden_state
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert len(runs) == 3


# -- the summary


def test_summary_before_anything_runs(runs: list[str]) -> None:
    model, x = Mixed().eval(), torch.randn(5, 20)
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    lines = rsn.explain(fast, {"x": x}).splitlines()
    assert runs == []
    start = r"torch\.compile: 2 graphs, 1 graph break; on the machine: 100\.0 % of 8\.1 kFLOP, modelled latency .* us"
    assert re.fullmatch(start, lines[0])
    assert [line.split()[:2] for line in lines[2:4]] == [["first", "6.000"], ["second", "2.100"]]
    here, after = Path(__file__).name, lines.index("")
    assert re.fullmatch(rf"graph break in forward at .*{here}:\d+: Unsupported Tensor\.item\(\) .*", lines[after + 1])
    assert re.fullmatch(rf"graph 1, forward at .*{here}:\d+: on the machine", lines[after + 2])
    assert lines[after + 3] == "  1 x 5 rows, 1 layers on the machine"
    assert lines[after + 4] == "  inputs others_0; outputs first"
    second = next(i for i, line in enumerate(lines) if line.startswith("graph 2, "))
    assert re.search(r"^ +second +machine +matrix product 30 x 7 +linear$", "\n".join(lines[second:]), re.M)
    close(fast(x), model(x))
    assert len(runs) == 2
    assert rsn.explain(fast, {"x": x}).splitlines() == lines  # now that it has run, too


def test_summary_of_a_function(runs: list[str]) -> None:
    layer = nn.Linear(20, 30).eval()

    @torch.compile(backend="rsn")
    def function(x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        return layer(x) + layer(x) if twice else layer(x).relu()

    x = torch.randn(5, 20)
    text = rsn.explain(function, {"x": x, "twice": True})
    assert re.search(r"^graph 1, function at .*: on the machine$", text, re.M)
    assert re.search(r"^ +layer +machine +matrix product 20 x 30 +linear$", text, re.M)
    assert runs == []
    close(function(x), layer(x).relu())
    with pytest.raises(
        TensorError, match=r"example inputs do not fit .*function\(x: .*: missing a required argument: 'x'"
    ):
        rsn.explain(function, ())


def test_summary_of_a_module_compiled_in_place() -> None:
    model = Mixed().eval()
    model.compile(backend="rsn")
    assert "2 graphs, 1 graph break" in rsn.explain(model, (torch.randn(5, 20),))


def test_summary_says_what_torch_did_not_capture(runs: list[str]) -> None:
    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(20, 30), nn.Linear(30, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.profiler.record_function("a context that torch does not go on in"):
                for _ in range(2):
                    y = self.first(x)
                    torch._dynamo.graph_break()
            return self.second(y)

    lines = rsn.explain(torch.compile(Opaque().eval(), backend="rsn"), (torch.randn(5, 20),)).splitlines()
    assert lines[:2] == [
        "torch.compile: 0 graphs, 0 graph breaks",
        "torch captured nothing for the machine; all of it runs in PyTorch",
    ]
    outside = [
        line for line in lines if line.startswith("in PyTorch, as torch did not capture it: addmm in forward at")
    ]
    assert len(outside) == 2
    assert runs == []


def test_summary_says_that_gradients_are_another_thing() -> None:
    fast, x = torch.compile(nn.Linear(20, 30).eval(), backend="rsn"), torch.randn(5, 20)
    note = "this holds under torch.no_grad(); with gradients all of it runs in PyTorch"
    assert note not in rsn.explain(fast, (x,))
    with torch.enable_grad():
        assert rsn.explain(fast, (x,)).endswith(note)


def test_a_line_of_the_log_for_each_graph(logged: list[logging.LogRecord]) -> None:
    x = torch.randn(2, 10, 48)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Fallback)
        for model in (encoder(), sandwich(Tanh), Columns(), Tanh(48)):
            torch.compile(model, backend="rsn")(x)
    said = [record.getMessage().split(": ", 1)[1] for record in logged if record.name == "rsn"]
    assert said[0] == "on the machine: 2 x 10 rows, 17 layers"
    assert said[1].startswith("2 of 2 pieces on the machine: aten.linear.default at 2.self_attn: it depends on")
    assert said[2].startswith("in PyTorch: nothing in this module runs on the machine: aten.bmm.default at")
    assert (
        said[3] == "in PyTorch: nothing in this module runs on the machine: it has no matrix product and no attention"
    )


# -- modes, masks


def test_without_a_product_nothing_falls_back() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Fallback)
        for fallback in ("warn", "error"):
            torch.compile(Tanh(48), backend="rsn", options={"fallback": fallback})(torch.randn(2, 3))


def test_dropout_in_training_mode_stays_in_pytorch(runs: list[str]) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.Linear(30, 7))
    fast = torch.compile(model, backend="rsn")
    with pytest.warns(
        Fallback, match=r"aten\.dropout\.default at 1: dropout in training mode: call model\.eval\(\) first"
    ):
        fast(torch.randn(5, 20))
    assert runs == []


def test_training_mode_without_dropout_makes_no_difference(runs: list[str]) -> None:
    model, x = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 7)).train(), torch.randn(5, 20)
    close(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))
    assert len(runs) == 1


def test_inference_mode(runs: list[str]) -> None:
    model, x = encoder(), torch.randn(2, 10, 48)
    with torch.inference_mode():
        close(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))
    assert len(runs) == 1


def test_weights_of_inference_mode(runs: list[str]) -> None:
    with torch.inference_mode():
        model, x = encoder(), torch.randn(2, 10, 48)
        close(torch.compile(model, backend="rsn", options={"fallback": "error"})(x), model(x))
    assert len(runs) == 1


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(48, 3, 80, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        keys = torch.arange(x.shape[1])
        return self.layer(x, src_key_padding_mask=(keys >= lengths[:, None]) | (keys < start[:, None]))


@pytest.mark.parametrize("fallback", ["warn", "error"])
def test_a_mask_of_another_kind_in_a_later_call(fallback: str, runs: list[str]) -> None:
    model, x = Masked().eval(), torch.randn(2, 10, 48)
    fast = torch.compile(model, backend="rsn", options={"fallback": fallback})
    lengths, zeros = torch.tensor([10, 7]), torch.tensor([0, 0])
    close(fast(x, lengths, zeros), model(x, lengths, zeros))
    left = torch.tensor([0, 3])
    if fallback == "error":
        with pytest.raises(TensorError, match="mask of sequence 1 is not a prefix"):
            fast(x, lengths, left)
        return
    with pytest.warns(Fallback, match="this call of the graph runs in PyTorch: .*mask of sequence 1 is not a prefix"):
        close(fast(x, lengths, left), model(x, lengths, left))
    close(fast(x, lengths, zeros), model(x, lengths, zeros))
    assert len(runs) == 3
