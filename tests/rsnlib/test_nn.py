"""rsn.nn: on the simulated machine as in PyTorch, in PyTorch as other implementations, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import nn

import rsn
from rsn.base.errors import ProgramError, UnsupportedError
from rsn.nn import (
    Activation,
    Attention,
    Encoder,
    EncoderLayer,
    FeedForward,
    Linear,
    OperatorError,
    ResidualNorm,
    validate,
)
from rsn.tests.bert_names import BERT_NAMES
from rsn.tests.effort import examples, full, long, thinned

Randomised = Callable[..., Any]
ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")
B, L, C = 2, 20, 96
LENGTHS = [L, 13]
PARTS = ("weight", "bias")


def padding(lengths: list[int] = LENGTHS, seq: int = L) -> torch.Tensor:
    return (torch.arange(seq) < torch.tensor(lengths)[:, None]).long()


def assert_close(got: torch.Tensor, wanted: torch.Tensor, lengths: list[int] | None = None) -> None:
    """Rows that are no padding, to 1e-5 of the largest."""
    assert got.shape == wanted.shape
    for b, n in enumerate(lengths or [wanted.shape[1]] * len(wanted)):
        assert (got[b, :n] - wanted[b, :n]).abs().max() <= 1e-5 * wanted[b, :n].abs().max()


# -- on the machine


class Residual(nn.Module):
    """What is fused into one product (Fig. 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.product, self.norm = Linear(C, C), ResidualNorm(C)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.product(x), x)


OPERATORS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "linear": (lambda: Linear(C, 40), False),
    "linear without bias": (lambda: Linear(C, 40, bias=False), False),
    **{kind: (lambda kind=kind: nn.Sequential(Linear(C, 40), Activation(kind)), False) for kind in ACTIVATIONS},
    "norm": (lambda: nn.Sequential(Linear(C, 40), ResidualNorm(40, 1e-5)), False),
    "residual norm": (Residual, False),
    "attention": (lambda: Attention(C, 3), False),
    "attention, masked": (lambda: Attention(C, 3), True),
    "attention, causal": (lambda: Attention(C, 3, causal=True), False),
    "attention, causal and masked": (lambda: Attention(C, 3, causal=True), True),
    "attention, narrow heads": (lambda: Attention(C, 5, head_dim=24), False),
    "feed-forward": (lambda: FeedForward(C, 200), False),
    "layer": (lambda: EncoderLayer(C, 3, 128), False),
    "layer, pre-norm": (lambda: EncoderLayer(C, 3, 128, norm="pre"), False),
    "encoder": (lambda: Encoder(2, C, 3, 128), True),
    "encoder, pre-norm": (lambda: Encoder(2, C, 3, 128, "gelu_tanh", 1e-5, "pre"), True),
    "decoder": (lambda: Encoder(2, C, 3, 128, "quick_gelu", 1e-5, "pre", causal=True), True),
}


@pytest.mark.parametrize("name", thinned(OPERATORS, 2))
def test_machine_computes_what_pytorch_does(randomised: Randomised, name: str) -> None:
    make, masked = OPERATORS[name]
    model, x = randomised(make()), torch.randn(B, L, C)
    validate(model, seq=L, masked=masked)
    shown = (x, padding([L, L])) if masked else (x,)  # the lengths are those of the call
    called = (x, padding()) if masked else (x,)
    with rsn.compile(model, shown) as compiled, torch.no_grad():
        assert_close(compiled(*called), model(*called), LENGTHS if masked else None)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_layer_is_seven_segments_and_its_passes(randomised: Randomised, norm: Any) -> None:
    """All that is no product goes with one; a sum that is normalised and kept is passed over once more."""
    with rsn.compile(randomised(Encoder(2, C, 3, 128, norm=norm)), (torch.randn(B, L, C),)) as compiled:
        title, *lines = compiled.explain().splitlines()
        lines = [line for line in lines[lines.index("") + 1 :] if line]
    paths = ["attn.query", "attn.key", "attn.value", "attn", "attn.out"]
    paths += ["ffn.up", "ffn.down"]
    products = [line.split()[0] for line in lines if "matrix product" in line or " heads of " in line]
    assert products == [f"layers.{i}.{path}" for i in range(2) for path in paths]
    host = [line.split()[0] for line in lines[2:] if line.split()[1] == "host"]
    assert host == ([] if norm == "post" else ["layers.0.attn_norm"])
    assert f", {14 if norm == 'post' else 17} layers on the machine" in title


@given(
    batch=st.integers(1, 2),
    seq=st.integers(1, 140),
    heads=st.integers(1, 5),
    head_dim=st.integers(1, 64),
    inner=st.integers(1, 300),
    kind=st.sampled_from(ACTIVATIONS),
    norm=st.sampled_from(["post", "pre"]),
    causal=st.booleans(),
)
@examples(20, quick=2)
def test_any_size(
    batch: int, seq: int, heads: int, head_dim: int, inner: int, kind: str, norm: Any, causal: bool
) -> None:
    hidden = heads * head_dim
    assume(hidden > 1)  # a norm of one column is 0
    torch.manual_seed(0)
    model = EncoderLayer(hidden, heads, inner, kind, 1e-5, norm, causal).eval()
    x = torch.randn(batch, seq, hidden)
    with rsn.compile(model, (x,)) as compiled, torch.no_grad():
        assert_close(compiled(x), model(x))


# -- in PyTorch


def test_names_of_the_weights() -> None:
    names = list(Encoder(1, 8, 2, 16, norm="pre").state_dict())
    modules = ["attn.query", "attn.key", "attn.value", "attn.out", "attn_norm"]
    modules += ["ffn.up", "ffn.down", "ffn_norm"]
    paths = [*(f"layers.0.{module}" for module in modules), "norm"]
    assert names == [f"{path}.{part}" for path in paths for part in PARTS]


@pytest.mark.parametrize(
    ("norm", "causal"), [("post", False), long("pre", True), full("post", True), full("pre", False)]
)
def test_gradients(norm: Any, causal: bool) -> None:
    torch.manual_seed(0)
    model = Encoder(2, 6, 2, 8, norm=norm, causal=causal, eps=1e-5).double().train()
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert torch.autograd.gradcheck(lambda x: model(x, mask), x)
    (model(x, mask) * torch.randn_like(x)).sum().backward()
    # What all keys of a row have in common, softmax takes out.
    still = [path for path, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9]
    assert still == [f"layers.{i}.attn.key.bias" for i in range(2)]


def test_a_row_takes_the_keys_that_the_mask_leaves_and_none_behind_it() -> None:
    x = torch.randn(1, 7, 12)
    with torch.no_grad():
        for causal in (False, True):
            attention = Attention(12, 3, causal=causal)
            for mask in (padding([4], 7), padding([4], 7).bool(), padding([4], 7).float()):
                torch.testing.assert_close(attention(x, mask)[:, :4], attention(x[:, :4]))
        torch.testing.assert_close(attention(x)[:, :4], attention(x[:, :4]))
        last = torch.ones(1, 1, 7, 7).tril().bool()
        torch.testing.assert_close(attention(x, last), attention(x))


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation(kind: str) -> None:
    known = {
        "gelu": nn.GELU(),
        "gelu_tanh": nn.GELU(approximate="tanh"),
        "quick_gelu": lambda x: nn.functional.silu(1.702 * x) / 1.702,
        "relu": nn.ReLU(),
        "silu": nn.SiLU(),
    }
    x = torch.linspace(-9, 9, 99)
    torch.testing.assert_close(Activation(kind)(x), known[kind](x))


def from_torch(layer: nn.TransformerEncoderLayer) -> dict[str, torch.Tensor]:
    """The weights of PyTorch's layer under the names of ours."""
    names = {
        "self_attn.out_proj": "attn.out",
        "linear1": "ffn.up",
        "linear2": "ffn.down",
        "norm1": "attn_norm",
        "norm2": "ffn_norm",
    }
    theirs = layer.state_dict()
    ours = {
        f"attn.{name}.{part}": x
        for part in PARTS
        for name, x in zip(("query", "key", "value"), theirs[f"self_attn.in_proj_{part}"].chunk(3), strict=True)
    }
    return ours | {f"{our}.{part}": theirs[f"{name}.{part}"] for name, our in names.items() for part in PARTS}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_torch_transformer_encoder_layer(randomised: Randomised, norm: Any, kind: str, causal: bool) -> None:
    theirs = randomised(
        nn.TransformerEncoderLayer(C, 3, 128, 0.0, kind, 1e-5, batch_first=True, norm_first=norm == "pre")
    )
    ours = EncoderLayer(C, 3, 128, kind, 1e-5, norm, causal)
    ours.load_state_dict(from_torch(theirs))
    x, mask = torch.randn(B, L, C), padding()
    ahead = torch.ones(L, L).triu(1).bool() if causal else None
    with torch.no_grad():
        wanted = theirs.train()(x, src_mask=ahead, src_key_padding_mask=mask == 0)
        assert_close(ours(x, mask), wanted, LENGTHS)


def test_bert_layer_of_transformers(randomised: Randomised) -> None:
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = pytest.importorskip("transformers").BertConfig(
        hidden_size=C, num_attention_heads=3, intermediate_size=128, attn_implementation="sdpa"
    )
    theirs, ours = randomised(bert.BertLayer(config)), EncoderLayer(C, 3, 128)
    state = theirs.state_dict()
    ours.load_state_dict(
        {f"{our}.{part}": state[f"{name}.{part}"] for name, our in BERT_NAMES.items() for part in PARTS}
    )
    x, mask = torch.randn(B, L, C), padding()
    with torch.no_grad():
        wanted = theirs(x, attention_mask=mask.bool()[:, None, None, :])
        assert_close(ours(x, mask), wanted[0] if isinstance(wanted, tuple) else wanted, LENGTHS)


# -- what is refused


def refusal(call: Callable[..., Any], *args: Any, **kwargs: Any) -> str | None:
    """The message of an UnsupportedError."""
    try:
        call(*args, **kwargs)
    except UnsupportedError as error:
        return str(error)
    return None


def meta(make: Callable[[], nn.Module]) -> nn.Module:
    """Without memory: no weight is looked at."""
    with torch.device("meta"):
        return make()


def heads_and_norm() -> nn.Module:
    return Encoder(2, 15680, 49, 64)


def for_base(activation: str = "gelu_tanh", **more: Any) -> Callable[[], nn.Module]:
    return lambda: Encoder(1, 1024, 16, 64, activation, **{"eps": 1e-6} | more)


HEADS = "heads of 320 columns; MemB2 of overlay xnn holds values of at most 256"
JOINED = "capability normalise of overlay xnn takes 1 to 15 parts; no overlay can"
WIDE = f"LayerNorm over 15680 columns of its operand; {JOINED}"
TANH = "overlay xnn-base lacks capability relu; xnn can"
REFUSED: dict[str, tuple[Callable[[], nn.Module], Mapping[str, Any], list[str]]] = {
    "heads and norms": (
        heads_and_norm,
        {},
        [
            f"layers.{i}.{what}"
            for i in range(2)
            for what in (f"attn: {HEADS}", f"attn_norm: {WIDE}", f"ffn_norm: {WIDE}")
        ],
    ),
    "top level": (lambda: Attention(640, 2), {}, [f"the top level: {HEADS}"]),
    "in a model of the user's": (
        lambda: nn.ModuleDict({"tower": nn.Sequential(nn.Linear(9, 9), Attention(640, 2)), "other": nn.GELU()}),
        {},
        [f"tower.1: {HEADS}"],
    ),
    "base, rows": (
        for_base(),
        {"overlay": "xnn-base", "seq": 300},
        [
            "layers.0.attn: sequences of 300 rows, no multiple of 128; overlay xnn-base lacks capability mask; xnn can",
        ],
    ),
    "base, activation": (
        for_base("relu"),
        {"overlay": "xnn-base"},
        [f"layers.0.ffn.activation: activation relu; {TANH}"],
    ),
    "base, eps": (
        for_base(eps=1e-5),
        {"overlay": "xnn-base"},
        [
            f"layers.0.{x}_norm: LayerNorm with eps 1e-05; capability layernorm of overlay xnn-base takes 0 to 2e-06 "
            "eps; xnn can"
            for x in ("attn", "ffn")
        ],
    ),
    "base, columns": (
        lambda: ResidualNorm(768, 1e-6),
        {"overlay": "xnn-base"},
        [
            "the top level: LayerNorm over 768 columns; capability layernorm of overlay xnn-base takes exactly 1024 "
            "columns; xnn can"
        ],
    ),
    "base, causal": (
        for_base(causal=True),
        {"overlay": "xnn-base"},
        ["layers.0.attn: causal attention; overlay xnn-base lacks capability causal_mask; xnn can"],
    ),
    "base, masked": (
        for_base(),
        {"overlay": "xnn-base", "masked": True},
        ["layers.0.attn: attention with a mask; overlay xnn-base lacks capability mask; xnn can"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_overlay_cannot_run_is_listed_by_module(name: str) -> None:
    make, how, lines = REFUSED[name]
    overlay = how.get("overlay", "xnn")
    found = refusal(validate, meta(make), **how)
    assert found == "\n  ".join([f"overlay {overlay} cannot run this model:", *lines])


def test_what_the_base_overlay_runs_passes() -> None:
    for norm in ("post", "pre"):
        validate(meta(for_base(norm=norm)), "xnn-base")


def test_more_slices_than_an_instruction_counts() -> None:
    """The extension splits them; whoever says that the published machine does not, the module is named."""
    model = meta(lambda: nn.Sequential(Linear(127 * 128, 8), Linear(8, 127 * 128 + 1), Linear(127 * 128 + 1, 8)))
    assert refusal(validate, model) is None
    found = refusal(validate, model, overlay="xnn-base")
    assert found is not None
    assert re.fullmatch(r"overlay xnn-base cannot run this model:\n  2: .+", found)


@st.composite
def encoders(draw: st.DrawFn) -> tuple[Encoder, torch.Tensor, bool]:
    """Some that each overlay can run, some that none can."""
    hidden, heads = draw(st.sampled_from([(1024, 16), (1024, 8), (256, 4), (192, 2), (1280, 20)]))
    kind, eps = (
        draw(st.sampled_from(["gelu_tanh", "gelu_tanh", "gelu", "quick_gelu"])),
        draw(st.sampled_from([0, 1e-5])),
    )
    norm, causal = draw(st.sampled_from(["post", "pre"])), draw(st.booleans())
    seq = draw(st.sampled_from([256, 256, 128, 200, 1000, 1100]))
    torch.manual_seed(0)
    model = Encoder(1, hidden, heads, 64, kind, eps, norm, causal).eval()
    return model, torch.randn(1, seq, hidden), draw(st.booleans())


@given(encoders(), st.sampled_from(["xnn", "xnn-base"]))
@example((Encoder(1, 1024, 16, 64, "gelu_tanh").eval(), torch.randn(1, 256, 1024), False), "xnn-base")
@examples(25, quick=2)
def test_validate_and_compile_agree(case: tuple[Encoder, torch.Tensor, bool], overlay: str) -> None:
    """What validate lets pass compiles; of what it refuses, compile says one of its lines, by a path in the model."""
    model, x, masked = case
    seq = x.shape[1]
    inputs = (x, padding([seq - 1], seq)) if masked else (x,)
    said = refusal(lambda: rsn.compile(model, inputs, overlay=overlay).close())
    found = refusal(validate, model, overlay, seq=seq, masked=masked)
    assert (said is None) == (found is None)
    if said is not None and found is not None:
        path, why = said.split(": ", 1)
        assert path.startswith("layers.0.")
        why = why.partition("; rsn.compile(...")[0]
        assert why in [line.split(": ", 1)[1] for line in found.splitlines()[1:]]


def test_what_is_not_of_ours_is_not_judged() -> None:
    found = refusal(validate, nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))
    assert found == "Sequential has no operator of rsn.nn to check; for other modules use rsn.compile"


def test_unknown_overlay() -> None:
    with pytest.raises(ProgramError, match=r"no overlay 'xn' .did you mean xnn.*; there are xnn, xnn-base"):
        validate(Linear(4, 4), "xn")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Attention(100, 3),
            "Attention: hidden=100 is not divisible by heads=3; choose another number of heads, or give head_dim",
        ),
        (lambda: Attention(100, 0), "Attention: heads=0; must be at least 1"),
        (lambda: Attention(100, 2, head_dim=0), "Attention: head_dim=0; must be at least 1"),
        (lambda: Linear(0, 4), "Linear: in_features=0; must be at least 1"),
        (lambda: FeedForward(4, -1), "FeedForward: inner=-1; must be at least 1"),
        (lambda: ResidualNorm(0), "ResidualNorm: hidden=0; must be at least 1"),
        (lambda: Encoder(0, 4, 2, 8), "Encoder: layers=0; must be at least 1"),
        (
            lambda: FeedForward(4, 8, "tanh"),
            "Activation: no activation 'tanh'; there are gelu, gelu_tanh, quick_gelu, relu, silu",
        ),
        (lambda: Encoder(1, 4, 2, 8, norm="both"), "EncoderLayer: no norm 'both'; there are post, pre"),  # type: ignore[arg-type]
    ],
)
def test_arguments_that_make_sense_nowhere(make: Callable[[], nn.Module], message: str) -> None:
    with pytest.raises(OperatorError) as caught:
        make()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("alone", [Activation("relu"), ResidualNorm(C)], ids=["activation", "norm"])
def test_what_goes_with_a_product_does_not_run_without_one(alone: nn.Module) -> None:
    with pytest.raises(UnsupportedError, match="it has no matrix product and no attention"):
        rsn.compile(alone.eval(), (torch.randn(B, L, C),))


# -- where it is


@pytest.fixture
def python(root: Path) -> Iterator[Callable[[str], str]]:
    def run(code: str) -> str:
        done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.mark.long
def test_an_attribute_of_the_package_that_loads_when_it_is_asked_for(python: Callable[[str], str]) -> None:
    code = "import sys, rsn; print('torch' in sys.modules, 'nn' in dir(rsn)); n = rsn.nn; import rsn.nn as m"
    assert python(f"{code}; print(n is m, sorted(n.__all__) == n.__all__)") == "False True\nTrue True"


def test_without_torch_it_says_how_to_install_it(python: Callable[[str], str]) -> None:
    code = """
import sys
sys.modules["torch"] = None
import rsn
try:
    rsn.nn
except ImportError as error:
    print(type(error).__name__, error)
"""
    assert python(code).startswith("MissingError rsn.nn takes torch, which is not installed: pip install torch")
