"""A refusal names the idea beside the operator, and proposes torch.compile where that runs the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.rsnlib import graph_split as pieces  # noqa: E402
from rsn.rsnlib.trace import trace  # noqa: E402

WAY_OUT = (
    '; rsn.compile(..., whole=False), or torch.compile(model, backend="rsn"), runs the rest on the machine, in pieces'
)
B, L, C, H = 2, 10, 48, 4


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def refusal(module: Any, inputs: Any) -> str:
    with pytest.raises(UnsupportedError) as error:
        rsn.explain(module, inputs)
    return str(error.value)


def named(message: str) -> str:
    """The ideas in a message, behind the operator and its path."""
    place, _, _ = message.partition(": ")
    return place.partition(" (")[2].removesuffix(")")


# -- models of transformers

SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GROUPS = {"num_key_value_heads": 2}
WORDS = {"vocab_size": 100, "use_cache": False}
POSITIONS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
SWIN = {"image_size": 64, "embed_dim": 32, "depths": [2], "num_heads": [2], "window_size": 4}

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mixtral": (
        "Mixtral",
        WORDS | SIZES | GROUPS | {"num_local_experts": 4},
        "a gated feed-forward, experts chosen by data",
    ),
    "deberta": ("DebertaV2", {"vocab_size": 100} | SIZES | POSITIONS, "positions multiplied with queries or keys"),
    "swin": ("Swin", SWIN, "windows"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_ideas_of_models(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    kind, config, ideas = MODELS[name]
    made = getattr(transformers, f"{kind}Model")
    model = made(made.config_class(**config)).eval()
    ids = torch.randint(5, 90, (2, 20))
    inputs = {"pixel_values": torch.randn(2, 3, 64, 64)} if kind == "Swin" else {"input_ids": ids}
    message = refusal(model, inputs | ({"decoder_input_ids": ids[:, :9].contiguous()} if kind == "Bart" else {}))
    assert named(message) == ideas
    assert message.endswith(WAY_OUT)


def test_a_cache_that_is_returned() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=100, n_embd=96, n_layer=1, n_head=3, n_positions=64)
    assert refusal(transformers.GPT2Model(config).eval(), (torch.randint(90, (1, 8)),)) == (
        "GPT2Model returns a DynamicCache, which torch.export does not support (a cache of keys and values: "
        "switch it off, use_cache=False)"
    )


# -- modules


class Own(nn.Module):
    """An attention and a feed-forward, of which a function makes something."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(C, C) for _ in range(4))
        self.up, self.gate, self.down = nn.Linear(C, 64), nn.Linear(C, 64), nn.Linear(64, C)
        self.pack = nn.Linear(C, 128)
        self.positions = nn.Parameter(torch.randn(H, C // H, L))
        self.rnn = nn.GRU(C, C, batch_first=True)
        self.conv = nn.Conv1d(C, C, 3, padding=1)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def heads(x: Any) -> Any:
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def joined(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


def cached(m: Any, x: Any, keys: Any, values: Any) -> Any:
    k, v = torch.cat([keys, heads(m.k(x))], 2), torch.cat([values, heads(m.v(x))], 2)
    return m.o(joined(F.scaled_dot_product_attention(heads(m.q(x)), k, v)))


def written(m: Any, x: Any, keys: Any, at: Any) -> Any:
    k = keys.index_copy(2, at, heads(m.k(x)))
    return m.o(joined(F.scaled_dot_product_attention(heads(m.q(x)), k, k)))


def cross(m: Any, x: Any, y: Any) -> Any:
    """Over some of the rows, which the machine cannot take apart."""
    return m.o(joined(F.scaled_dot_product_attention(heads(m.q(x)), heads(m.k(x))[:, :, :5], heads(m.v(x))[:, :, :5])))


def cross_spelled_out(m: Any, x: Any, y: Any) -> Any:
    scores = heads(m.q(x)) @ heads(m.k(x))[:, :, :5].transpose(-2, -1)
    return m.o(joined(scores.softmax(-1) @ heads(m.v(x))[:, :, :5]))


def rotary_interleaved(m: Any, x: Any, angles: Any) -> Any:
    def turned(x: Any) -> Any:
        return x * angles.cos() + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * angles.sin()

    return m.o(joined(F.scaled_dot_product_attention(turned(heads(m.q(x))), turned(heads(m.k(x))), heads(m.v(x)))))


def rotary_complex(m: Any, x: Any, angles: Any) -> Any:
    def turned(x: Any) -> Any:
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)

    return m.o(joined(F.scaled_dot_product_attention(turned(heads(m.q(x))), turned(heads(m.k(x))), heads(m.v(x)))))


def positions_times_queries(m: Any, x: Any) -> Any:
    q = heads(m.q(x))
    scores = q @ heads(m.k(x)).transpose(-2, -1) + q @ m.positions
    return m.o(joined(scores.softmax(-1) @ heads(m.v(x))))


def with_weights(m: Any, x: Any) -> Any:
    weights = (heads(m.q(x)) @ heads(m.k(x)).transpose(-2, -1)).softmax(-1)
    return m.o(joined(weights @ heads(m.v(x)))), weights


def gated(m: Any, x: Any) -> Any:
    """By a sigmoid, which is no activation of the machine."""
    return m.down(torch.sigmoid(m.gate(x)) * m.up(x))


def gated_packed(m: Any, x: Any) -> Any:
    gate, up = m.pack(x).chunk(2, -1)
    return m.down(F.glu(torch.cat([up, gate], -1)) + F.mish(gate) * up)


def squared(m: Any, x: Any) -> Any:
    """No gate: a function of one product."""
    h = m.up(x)
    return m.down(h * h.sin())


def chosen(m: Any, x: Any) -> Any:
    rows = m.gate(x).softmax(-1).topk(2).indices[..., 0].flatten()
    return m.down(m.up(x).flatten(0, 1)[rows])


def recurrent(m: Any, x: Any) -> Any:
    return m.o(m.rnn(m.q(x))[0])


def convolved(m: Any, x: Any) -> Any:
    return m.o(m.conv(m.q(x).transpose(1, 2)).transpose(1, 2))


def plain(m: Any, x: Any) -> Any:
    return m.down(m.up(x).sin())


X = torch.randn(B, L, C)
MODULES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "joined with a cache": (cached, (X, *[torch.randn(B, H, 5, C // H)] * 2), "a cache of keys and values"),
    "written to a cache": (written, (X, torch.randn(B, H, 20, C // H), torch.arange(L)), "a cache of keys and values"),
    "cross attention": (cross, (X, torch.randn(B, 7, C)), "cross attention"),
    "cross attention, spelled out": (cross_spelled_out, (X, torch.randn(B, 7, C)), "cross attention"),
    "rotary, interleaved": (rotary_interleaved, (X, torch.randn(B, H, L, C // H)), "rotary positions"),
    "rotary, complex": (rotary_complex, (X, torch.randn(B, H, L, C // H // 2)), "rotary positions"),
    "positions": (positions_times_queries, (X,), "positions multiplied with queries or keys"),
    "weights": (with_weights, (X,), "attention weights as a result"),
    "gated": (gated, (X,), "a gated feed-forward"),
    "gated, packed": (gated_packed, (X,), "a gated feed-forward"),
    "one product": (squared, (X,), ""),
    "experts": (chosen, (X,), "experts chosen by data"),
    "recurrence": (recurrent, (X,), "a recurrence"),
    "convolution": (convolved, (X,), "a convolution, other than of separate patches"),
    "none": (plain, (X,), ""),
}


@pytest.mark.parametrize("name", MODULES)
def test_ideas(name: str) -> None:
    function, inputs, ideas = MODULES[name]
    message = refusal(Own(function).eval(), inputs)
    assert named(message) == ideas
    assert message.endswith(WAY_OUT)


def test_a_refusal_in_words() -> None:
    assert refusal(Own(gated).eval(), (X,)) == (
        "aten.linear.default at down (a gated feed-forward): it depends on aten.sigmoid.default at the top level, "
        f"which cannot run on the machine: aten.sigmoid.default is not part of an activation of the machine{WAY_OUT}"
    )


# -- torch.compile is proposed where it works


@pytest.mark.parametrize("name", ["gated", "cross attention", "weights"])
def test_the_proposal_works(name: str) -> None:
    function, inputs, _ = MODULES[name]
    module = Own(function).eval()
    torch._dynamo.reset()
    fast = torch.compile(module, backend="rsn")
    with torch.no_grad():
        with pytest.warns(Fallback):
            got = fast(*inputs)
        torch.testing.assert_close(got, module(*inputs), rtol=1e-4, atol=1e-5)
        assert ", on the machine" in rsn.explain(fast, inputs)


def test_no_proposal_where_nothing_would_run() -> None:
    message = refusal(nn.GRU(8, 8).eval(), (torch.randn(2, 5, 8),))
    assert message == (
        "nothing in this module runs on the machine: aten.gru.input at the top level (a recurrence): aten.gru.input is "
        "not an operation of the machine"
    )


def test_no_proposal_with_lengths() -> None:
    """torch.compile has none."""
    with pytest.raises(UnsupportedError) as error:
        rsn.compile(Own(gated).eval(), (X,), lengths=[10, 3])
    assert "gated" in str(error.value)
    assert "torch.compile" not in str(error.value)


def test_the_proposal_names_the_overlay() -> None:
    masked, mask = rsn.nn.Encoder(1, 128, 2, 128).eval(), torch.ones(1, 256, dtype=torch.int64)
    with pytest.raises(UnsupportedError) as error:
        rsn.explain(masked, (torch.randn(1, 256, 128), mask), overlay="xnn-base")
    assert str(error.value) == (
        "layers.0.attn: attention with a mask; overlay xnn-base lacks capability mask; xnn can; "
        "rsn.compile(..., overlay='xnn-base', whole=False), or torch.compile(model, backend=\"rsn\", "
        "options={'overlay': 'xnn-base'}), runs the rest on the machine, in pieces"
    )


def test_the_look_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph is captured once more at most, and not run: the first piece needs arguments alone."""
    captures: list[Any] = []
    monkeypatch.setattr(pieces, "captured", lambda *args: captures.append(args))
    monkeypatch.setattr(pieces, "run", lambda *args: pytest.fail("the graph was run"))
    module = Own(gated).eval()
    with pytest.raises(UnsupportedError) as error:
        trace(module, (X,))
    assert pieces.runs_in_pieces(error.value, module, (X,), lambda network: None)
    assert captures == []
