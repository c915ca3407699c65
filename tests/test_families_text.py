"""Today's text models as transformers builds them, small and with random weights, against PyTorch on the simulated
machine: decoders with their vocabulary product, and encoders."""

from __future__ import annotations

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.tests.effort import full, long  # noqa: E402
from rsn.tests.respelled import respelled  # noqa: E402

WORDS = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
DECODER = WORDS | SIZES | {"head_dim": 32, "use_cache": False}
GROUPS = DECODER | {"num_attention_heads": 4, "num_key_value_heads": 2}
PLAIN_GROUPS = {name: x for name, x in GROUPS.items() if name != "head_dim"} | {"hidden_size": 128}
WINDOW = {"sliding_window": 8}
SCALED = WINDOW | {"query_pre_attn_scalar": 32}
LOCAL = {"local_attention": 8, "num_hidden_layers": 3, "global_attn_every_n_layers": 2, "mask_token_id": 3}
ENDS = {"cls_token_id": 1, "sep_token_id": 2}
NEO = WORDS | {"hidden_size": 96, "num_layers": 2, "num_heads": 3, "max_position_embeddings": 64, "use_cache": False}
NEO |= {"attention_types": [[["global", "local"], 1]], "window_size": 8}
T5 = {"vocab_size": 100, "d_model": 96, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 3}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", DECODER),
    "llama, groups": ("LlamaForCausalLM", GROUPS),
    "qwen2": ("Qwen2ForCausalLM", PLAIN_GROUPS),
    "qwen3": ("Qwen3ForCausalLM", GROUPS),
    "gemma 2": ("Gemma2ForCausalLM", GROUPS | SCALED),
    "gemma 3": ("Gemma3ForCausalLM", GROUPS | SCALED),
    "gemma 3, one key head": ("Gemma3ForCausalLM", GROUPS | SCALED | {"num_key_value_heads": 1}),
    "mistral": ("MistralForCausalLM", GROUPS | WINDOW),
    "phi 3": ("Phi3ForCausalLM", PLAIN_GROUPS),
    "modernbert": ("ModernBertForMaskedLM", WORDS | SIZES | LOCAL | ENDS),
    "gpt neo": ("GPTNeoForCausalLM", NEO),
    "mpt": (
        "MptForCausalLM",
        WORDS | {"d_model": 96, "n_heads": 3, "n_layers": 2, "max_seq_len": 64, "use_cache": False},
    ),
    "nomicbert": ("NomicBertModel", WORDS | SIZES),
    "eurobert": ("EuroBertForMaskedLM", DECODER | {"num_key_value_heads": 3, "mask_token_id": 3}),
    "cohere": ("CohereForCausalLM", GROUPS),
    "falcon": ("FalconForCausalLM", PLAIN_GROUPS),
    "olmo 2": ("Olmo2ForCausalLM", GROUPS),
    "nemotron": ("NemotronForCausalLM", GROUPS),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", GROUPS),
    "t5 1.1": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}),
}
EXPERTS = {
    "mixtral": (
        "MixtralForCausalLM",
        GROUPS | {"num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3 moe": (
        "Qwen3MoeForCausalLM",
        GROUPS | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    ),
}
CONFIGS = {"Gemma3ForCausalLM": "Gemma3TextConfig"}
LENGTHS = [20, 13]
MASKS = ("", "right", "left")
SPELLINGS = ("sdpa", "eager", "respelled")
MISSING = {(family, spelling) for family in ("gemma 2", "gpt neo", "mpt") for spelling in ("sdpa", "respelled")}
"""What transformers does not have."""
ALIKE = {"llama", "gemma 3, one key head", "mistral", "hunyuan"}
"""Families whose parts others have: `llama, groups`, `gemma 3` with its window, and `qwen3` with its norms of heads."""
QUICK = {("llama, groups", "sdpa", "left"), ("gpt neo", "eager", "right"), ("mpt", "eager", "left")}
CASES = [
    (family, spelling, mask)
    for family in FAMILIES
    for spelling in SPELLINGS
    for mask in MASKS
    if (family, spelling) not in MISSING and not (spelling == "respelled" and mask == "left")
]


def model(name: str, config: dict[str, Any], attention: str) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    config_class = getattr(transformers, CONFIGS[name]) if name in CONFIGS else kind.config_class
    return kind(config_class(attn_implementation=attention, **config)).eval()


def text(mask: str) -> dict[str, Any]:
    """Words, with a mask of padding on the right or left, or without a mask."""
    torch.manual_seed(1)
    ids = torch.randint(5, 90, (2, LENGTHS[0]))
    keys = (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]).long()
    keys = keys.flip(1) if mask == "left" else keys
    return {"input_ids": ids, "attention_mask": keys} if mask else {"input_ids": ids}


def first(result: Any) -> Any:
    return result.to_tuple()[0]


def apart(a: Any, b: Any) -> bool:
    """Whether results differ by so much that a model that mixed them up would be noticed."""
    return bool((a - b).abs().max() > 1e-3 * b.abs().max())


def share(explained: str) -> float:
    """The part of the FLOPs on the machine, in percent."""
    found = re.search(r"([\d.]+) % of", explained)
    assert found is not None
    return float(found.group(1))


def assert_close(got: Any, wanted: Any, given: dict[str, Any]) -> None:
    """Rows of padding do not count."""
    keys = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
    assert got.shape == wanted.shape
    assert (got[keys] - wanted[keys]).abs().max() <= 1e-5 * wanted[keys].abs().max()


def marked(case: tuple[str, str, str]) -> Any:
    """In the long tests each family once but those in `ALIKE`, every second one respelled; in the other spellings and
    with the other masks in those of all cases."""
    family, spelling, mask = case
    usual = "eager" if (family, "sdpa") in MISSING else "sdpa"
    number = [*FAMILIES].index(family)
    respelt = number % 2 and (family, "respelled") not in MISSING
    often = (spelling, mask) == (("respelled", "") if respelt else (usual, "right")) and family not in ALIKE
    return case if case in QUICK else (long if often else full)(*case)


@pytest.mark.parametrize(("family", "spelling", "mask"), [*map(marked, CASES)])
def test_family(family: str, spelling: str, mask: str) -> None:
    name, config = FAMILIES[family]
    module, given = model(name, config, "sdpa" if spelling == "respelled" else spelling), text(mask)
    with torch.no_grad():
        wanted = first(module(**given))
    if spelling == "respelled":
        module = respelled(module, given)
    with rsn.compile(module, given) as compiled:
        assert_close(first(compiled(**given)), wanted, given)
        assert share(compiled.explain()) >= 95


@pytest.mark.long
@pytest.mark.parametrize("family", [full("mixtral"), "qwen3 moe"])
def test_experts_stay_in_pytorch(family: str) -> None:
    """Data chooses them. Attention, norms, routers and the vocabulary product run on the machine. All FLOPs count: each
    token takes its experts, in each layer three products."""
    module, given = model(*EXPERTS[family], "sdpa"), text("right")
    torch._dynamo.reset()
    fast = torch.compile(module, backend="rsn")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_close(first(fast(**given)), first(module(**given)), given)
    explained = rsn.explain(fast, given)
    assert "experts chosen by data" in explained
    config = EXPERTS[family][1]
    tokens, inner = 2 * LENGTHS[0], config.get("moe_intermediate_size", config["intermediate_size"])
    layers = config["num_hidden_layers"]
    experts = layers * 2 * config["num_experts_per_tok"] * tokens * 3 * config["hidden_size"] * inner
    assert re.search(rf"\bexperts +{experts / 1e6:.3f} .* 0\.0 %", explained), explained
    assert share(explained) < 60
    stopped = r"model\.layers\.1\.self_attn\.q_proj" if layers > 1 else "lm_head"
    reason = rf"at {stopped} \(.*experts chosen by data\).* model\.layers\.0\.mlp\.gate"
    with pytest.raises(rsn.errors.UnsupportedError, match=reason):
        rsn.compile(module, given)


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama, groups", full("modernbert")])
def test_torch_compile(family: str) -> None:
    """As a whole, without a warning."""
    module, given = model(*FAMILIES[family], "sdpa"), text("right")
    torch._dynamo.reset()
    fast = torch.compile(module, backend="rsn", options={"fallback": "error"})
    with torch.no_grad():
        assert_close(first(fast(**given)), first(module(**given)), given)
    assert share(rsn.explain(fast, given)) >= 95


@pytest.mark.long
def test_lengths_of_a_family() -> None:
    """Positions are those within the sequence, whatever size the call is padded to."""
    module = model(*FAMILIES["llama, groups"], "sdpa")
    shapes = {name: {0: rsn.Batch(2), 1: rsn.Length(16, 24)} for name in ("input_ids", "attention_mask")}
    with rsn.compile(module, text("right"), dynamic_shapes=shapes) as compiled, torch.no_grad():
        for rows in (20, 11):
            given = {name: x[:, :rows].contiguous() for name, x in text("right").items()}
            assert_close(first(compiled(**given)), first(module(**given)), given)


@pytest.mark.long
@pytest.mark.parametrize("sequences", [2, 1])
def test_new_weights_files_and_threads(sequences: int, tmp_path: Any) -> None:
    """Writes through `.data`, also to frequencies; then the file has them, and threads call one model."""
    name, config = FAMILIES["qwen3"]
    module = model(name, config | {"num_hidden_layers": 1}, "sdpa")
    given = {name: x[-sequences:].contiguous() for name, x in text("left").items()}
    with torch.no_grad(), rsn.compile(module, given, checksums=True) as compiled:
        before = first(module(**given))
        assert_close(first(compiled(**given)), before, given)
        for x in (*module.parameters(), *(x for name, x in module.named_buffers() if "inv_freq" in name)):
            x.data.mul_(1 + 0.3 * torch.rand(x.shape))
        assert apart(first(module(**given)), before)
        assert_close(first(compiled(**given)), first(module(**given)), given)
        compiled.save(tmp_path / "model.rsnm")
        with rsn.load(tmp_path / "model.rsnm") as loaded:
            assert_close(torch.as_tensor(loaded(**given)[0]), first(module(**given)), given)
        calls = [given | {"input_ids": given["input_ids"].roll(n, 1)} for n in range(4)]
        assert apart(first(module(**calls[1])), first(module(**calls[0])))
        with ThreadPoolExecutor(4) as pool:
            for call, got in zip(calls, pool.map(lambda x: first(compiled(**x)), calls), strict=True):
                assert_close(got, first(module(**call)), call)


@pytest.mark.long
def test_left_padding_in_a_family() -> None:
    """The programs of all sizes take it, also those for fewer sequences and rows than the example has."""
    name, config = FAMILIES["llama, groups"]
    module = model(name, config | {"num_hidden_layers": 1}, "sdpa")
    shapes = {name: {0: rsn.Batch(1, 2), 1: rsn.Length(4, 24)} for name in ("input_ids", "attention_mask")}
    with rsn.compile(module, text("left"), dynamic_shapes=shapes) as compiled, torch.no_grad():
        for sequences, rows, padding in ((2, 20, 7), (1, 20, 3), (1, 4, 1), (1, 24, 0), (2, 3, 2)):
            given = {name: x[:sequences, :rows].contiguous() for name, x in text("left").items()}
            given["input_ids"] = torch.randint(5, 90, (sequences, rows))
            given["attention_mask"] = (torch.arange(rows) >= torch.tensor([padding, 0])[:sequences, None]).long()
            assert_close(first(compiled(**given)), first(module(**given)), given)


@pytest.mark.long
@pytest.mark.parametrize("shown", [[1], [1, 0, 0]], ids=["a row", "a row and padding"])
def test_a_family_whose_example_shows_one_row(shown: list[int]) -> None:
    """Its programs are for more."""
    name, config = FAMILIES["llama, groups"]
    module = model(name, config | {"num_hidden_layers": 1}, "sdpa")
    mask = torch.tensor([shown])
    example = {"input_ids": torch.full_like(mask, 7), "attention_mask": mask}
    sizes = {0: rsn.Batch(2), 1: rsn.Length(20)}
    with rsn.compile(module, example, dynamic_shapes=dict.fromkeys(example, sizes)) as compiled, torch.no_grad():
        for given in (text("right"), example):
            assert_close(first(compiled(**given)), first(module(**given)), given)


@pytest.mark.long
def test_position_ids_of_calls(tmp_path: Any) -> None:
    """Of the compiled model and of its file: each call may have its own. Rotations depend on distances alone: those of
    the calls differ. Without a mask, transformers takes positions with gaps for several texts."""
    module, given = model(*FAMILIES["llama, groups"], "sdpa"), text("right")
    given["position_ids"] = torch.arange(3, 3 + LENGTHS[0])[None]
    results = []
    with torch.no_grad(), rsn.compile(module, given) as compiled:
        compiled.save(tmp_path / "model.rsnm")
        with rsn.load(tmp_path / "model.rsnm") as loaded:
            for begin, step in ((3, 1), (0, 2), (11, 7)):
                given["position_ids"] = begin + step * torch.arange(LENGTHS[0])[None]
                wanted = first(module(**given))
                results.append(wanted)
                assert_close(first(compiled(**given)), wanted, given)
                assert_close(torch.as_tensor(loaded(**given)[0]), wanted, given)
    assert all(apart(results[0], other) for other in results[1:])


@pytest.mark.long
def test_position_ids_of_sequences() -> None:
    """They may differ, also in programs whose sizes calls choose."""
    module, given = model(*FAMILIES["llama, groups"], "sdpa"), text("left")
    counted = (given["attention_mask"].cumsum(1) - 1).clamp(min=0) * torch.tensor([[1], [3]])
    with torch.no_grad():
        wanted = first(module(**given, position_ids=counted))
        plain = first(module(**given))
        assert apart(wanted[1, -1], plain[1, -1])
        with rsn.compile(module, given | {"position_ids": counted}) as compiled:
            assert_close(first(compiled(**given, position_ids=counted)), wanted, given)
        with rsn.compile(module, given) as compiled:
            assert_close(first(compiled(**given)), plain, given)
        given = text("right")
        given["position_ids"] = torch.arange(LENGTHS[0]).repeat(2, 1) * torch.tensor([[1], [5]])
        shapes = {name: {0: rsn.Batch(2), 1: rsn.Length(16, 24)} for name in given}
        with rsn.compile(module, given, dynamic_shapes=shapes) as family:
            assert_close(first(family(**given)), first(module(**given)), given)


@pytest.mark.long
def test_a_call_that_the_example_does_not_cover() -> None:
    """Never a wrong number: padding on the left needs an example with it."""
    module = model(*FAMILIES["llama, groups"], "sdpa")
    with (
        rsn.compile(module, text("right")) as compiled,
        pytest.raises(rsn.errors.TensorError, match="give an example that is padded on the left"),
    ):
        compiled(**text("left"))
