"""Decoders with parallel blocks, norms of heads and norms behind blocks, with positions that calls give: compiled,
generated with a static cache, and in slots."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.host.generation.decoder import Decoder  # noqa: E402
from rsn.tests.effort import full, long, sampled  # noqa: E402

WORDS = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
DECODER = WORDS | SIZES | {"max_position_embeddings": 128}
GROUPS = {"num_key_value_heads": 2}
OLD = WORDS | {"n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8, "n_positions": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-j": ("GPTJForCausalLM", OLD),
    "codegen": ("CodeGenForCausalLM", OLD),
    "gpt-neox": ("GPTNeoXForCausalLM", DECODER | {"use_parallel_residual": True}),
    "gpt-neox, not parallel": ("GPTNeoXForCausalLM", DECODER | {"use_parallel_residual": False}),
    "phi": ("PhiForCausalLM", DECODER),
    "falcon": ("FalconForCausalLM", WORDS | {**SIZES, "ffn_hidden_size": 96, "parallel_attn": True}),
    "falcon, new": ("FalconForCausalLM", WORDS | {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "cohere": ("CohereForCausalLM", DECODER | GROUPS),
    "cohere, norms of heads": ("CohereForCausalLM", DECODER | GROUPS | {"use_qk_norm": True}),
    "stablelm": ("StableLmForCausalLM", DECODER | {"use_parallel_residual": True, "num_key_value_heads": 4}),
    "qwen3": ("Qwen3ForCausalLM", DECODER | {"num_key_value_heads": 4, "head_dim": 16}),
    "qwen3, groups": ("Qwen3ForCausalLM", DECODER | GROUPS | {"head_dim": 16}),
    "olmo2": ("Olmo2ForCausalLM", DECODER | GROUPS),
    "olmo3": ("Olmo3ForCausalLM", DECODER | GROUPS),
    "llama": ("LlamaForCausalLM", DECODER),
}
QUICK = {"gpt-j"}
OFTEN = {"gpt-j", "gpt-neox, not parallel", "cohere, norms of heads", "qwen3, groups", "olmo3"}
"""Families that the long tests try: of each kind of block, of norms and of heads one. `make test-full` tries all."""
LANES = {"olmo3"}
"""Those that the long tests try on the overlay of row lanes, too."""
ROWS = 12


def made(family: str) -> Any:
    """A small model in eval mode, with the numbers of a trained one: norms and biases are not 1 and 0."""
    torch.manual_seed(0)
    name, config = FAMILIES[family]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**config)).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            elif "norm" in path:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model


def positions(start: int) -> dict[str, Any]:
    torch.manual_seed(start)
    return {"input_ids": torch.randint(5, 90, (2, ROWS)), "position_ids": torch.arange(start, start + ROWS)[None]}


def assert_close(got: Any, wanted: Any) -> None:
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    ("family", "overlay"),
    [
        *(
            (pytest.param if family in QUICK else long if family in OFTEN else full)(family, "xnn")
            for family in FAMILIES
        ),
        *((long if family in LANES else full)(family, "xnn2") for family in FAMILIES),
    ],
)
def test_positions_from_arguments(family: str, overlay: str) -> None:
    """From 3 on in the example; others in later calls, where the machine takes them, and else an error."""
    model = made(family)
    given = [{**positions(start), "use_cache": False} for start in (3, 0, 40)]
    with torch.no_grad():
        try:
            compiled = rsn.compile(model, given[0], overlay=overlay, verify="never")
        except UnsupportedError as error:
            pytest.skip(str(error)[:150])
        assert_close(compiled(**given[0]).logits, model(**given[0]).logits)
        for each in given[1:]:
            if "position_ids" in {x.name for x in compiled._traced.host.interface.fixed}:
                with pytest.raises(TensorError, match="position_ids has other values than in the example"):
                    compiled(**each)
            else:
                assert_close(compiled(**each).logits, model(**each).logits)
        torch._dynamo.reset()
        captured = torch.compile(model, backend="rsn", options={"overlay": overlay, "verify": "never"})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for each in given:
                assert_close(captured(**each).logits, model(**each).logits)


@pytest.mark.long
@pytest.mark.parametrize("family", sampled(FAMILIES, {"qwen3"}, full))
def test_generation(family: str) -> None:
    """Tokens of `generate` with a static cache, and logits in slots of a decoder."""
    model = made(family)
    prompt = torch.randint(5, 90, (1, 5), generator=torch.Generator().manual_seed(1))
    wanted = model.generate(prompt, max_new_tokens=6, do_sample=False, eos_token_id=None)
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="rsn", options={"verify": "never"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = model.generate(
            prompt, max_new_tokens=6, do_sample=False, eos_token_id=None, cache_implementation="static"
        )
    assert torch.equal(got, wanted)
    model = made(family)
    try:
        decoder = Decoder(model, slots=2, capacity=16, verify="never")
    except UnsupportedError as error:
        pytest.skip(str(error)[:150])
    tokens = wanted[0].tolist()
    decoder.prefill(1, [7, 8, 9])
    logits = [decoder.prefill(0, tokens[:5])]
    logits += [decoder.step({0: token, 1: 11})[0] for token in tokens[5:]]
    with torch.no_grad():
        expected = model(wanted).logits[0, 4:]
    assert_close(torch.tensor(logits), expected)
