"""Models of images and of sound, and models whose decoder attends to an encoder, as transformers builds them: small,
with random weights, against PyTorch on the simulated machine, each also in another spelling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402
from rsn.tests.effort import full, long  # noqa: E402
from rsn.tests.respelled import respelled  # noqa: E402

SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
WORDS = {"vocab_size": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGES = {"image_size": 64, "patch_size": 16}
BART = {"d_model": 96, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
BART |= {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "max_position_embeddings": 64}
T5 = {"d_model": 96, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 3, "use_cache": False}
WHISPER = {"d_model": 96, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 128}
WHISPER |= {"max_source_positions": 50, "num_mel_bins": 20, "decoder_start_token_id": 1}


def model(name: str, attention: str, **config: Any) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    return kind(kind.config_class(attn_implementation=attention, **config)).eval()


def whisper(attention: str) -> Any:
    return model("WhisperModel", attention, **WORDS, **WHISPER).get_encoder()


def blip(attention: str) -> Any:
    torch.manual_seed(0)
    text = SIZES | {"vocab_size": 100, "encoder_hidden_size": 96, "max_position_embeddings": 32, "use_cache": False}
    text |= {"bos_token_id": 1, "sep_token_id": 2}
    kind = transformers.BlipForImageTextRetrieval
    return kind(kind.config_class(text_config=text, vision_config=SIZES | IMAGES, projection_dim=32)).eval()


def images() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


def sounds() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 20, 100)


def words(name: str = "input_ids", count: int = 20) -> dict[str, Any]:
    torch.manual_seed(1)
    return {name: torch.randint(5, 90, (2, count))}


def both(mask: bool = False) -> dict[str, Any]:
    given = words() | words("decoder_input_ids", 12)
    shown = (torch.arange(20) < torch.tensor([20, 13])[:, None]).long()
    return given | ({"attention_mask": shown} if mask else {})


class Family(NamedTuple):
    """make: from the kind of attention to a model. inputs: of a call. share: of FLOPs on the machine, at least."""

    make: Callable[[str], Any]
    inputs: Callable[[], dict[str, Any]]
    share: float = 0.99


def of(name: str, inputs: Callable[[], dict[str, Any]], share: float = 0.99, **config: Any) -> Family:
    return Family(lambda attention: model(name, attention, **config), inputs, share)


DINO = SIZES | IMAGES | {"mlp_ratio": 2}
SIGLIP_TEXT = SIZES | WORDS | {"max_position_embeddings": 20, "projection_size": 96}
FAMILIES: dict[str, Family] = {
    "dinov2": of("Dinov2Model", images, **DINO),
    "dinov2, registers": of("Dinov2WithRegistersModel", images, **DINO),
    "dinov2, gated": of("Dinov2Model", images, **DINO, use_swiglu_ffn=True),
    "dinov3": of("DINOv3ViTModel", images, **SIZES, **IMAGES),
    "whisper, encoder": Family(whisper, lambda: {"input_features": sounds()}, 0.93),
    "siglip, images": of("SiglipVisionModel", images, **SIZES, **IMAGES),
    "siglip, heads of 72": of(
        "SiglipVisionModel", images, **SIZES | IMAGES | {"hidden_size": 144, "num_attention_heads": 2}
    ),
    "siglip, width 1152": of(
        "SiglipVisionModel",
        images,
        **SIZES | IMAGES | {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 1},
    ),
    "siglip, text": of("SiglipTextModel", words, **SIGLIP_TEXT),
    "bart": of("BartModel", both, **WORDS, **BART),
    "bart, padded": of("BartModel", lambda: both(mask=True), **WORDS, **BART),
    "t5, both": of("T5Model", both, **WORDS, **T5),
    "t5, both, padded": of("T5Model", lambda: both(mask=True), **WORDS, **T5),
    "blip": Family(blip, lambda: words() | images()),
}
"""Whole in one program each."""

QUICK = {("siglip, heads of 72", "sdpa", False), ("dinov2", "eager", True)}
"""A probe that pools; layer scale, in another spelling."""
MISSING = {("blip", "sdpa")}
"""What transformers does not have."""
CASES = [
    (family, attention, other)
    for family in FAMILIES
    for attention in ("sdpa", "eager")
    for other in (False, True)
    if (family, attention) not in MISSING
]


def tensors(result: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def marked(case: tuple[str, str, bool]) -> Any:
    """Each family once in the long tests; with the other attention, and in another spelling, in those of all cases."""
    family, attention, other = case
    first = "eager" if (family, "sdpa") in MISSING else "sdpa"
    return case if case in QUICK else (long if (attention, other) == (first, False) else full)(*case)


@pytest.mark.parametrize(("family", "attention", "other"), map(marked, CASES))
def test_family(family: str, attention: str, other: bool) -> None:
    """Every result of the module, and the share of FLOPs on the machine."""
    made = FAMILIES[family]
    module, given = made.make(attention), made.inputs()
    module.config.use_cache = False
    if other:
        module = respelled(module, given)
    with rsn.compile(module, given) as compiled, torch.no_grad():
        results = zip(tensors(compiled(**given)), tensors(module(**given)), strict=True)
        text = compiled.explain()
    share = float(text.split(" % of")[0].split(" ")[-1].removeprefix(">"))
    assert share >= 100 * made.share, text
    for got, wanted in results:
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


# -- windows, of which a module compiled as a whole has none


def sam() -> Any:
    """With a window of 7 x 7 rows, and one attention over all 256. Its positions are 0 at first, which hides them."""
    config = {"hidden_size": 128, "num_attention_heads": 2, "mlp_dim": 256, "image_size": 256, "patch_size": 16}
    config |= {"num_hidden_layers": 2, "window_size": 7, "global_attn_indexes": [1], "output_channels": 32}
    made = model("SamVisionModel", "sdpa", **config)
    for name, parameter in made.named_parameters():
        if "rel_pos" in name or "pos_embed" in name:
            torch.nn.init.normal_(parameter)
    return made


def swin() -> Any:
    config = {"image_size": 64, "patch_size": 4, "embed_dim": 64, "depths": [2], "num_heads": [2]}
    return model("SwinModel", "sdpa", **config, window_size=4)


WINDOWED = {
    "sam": (sam, (1, 3, 256, 256), 0.74, r"einsum\.default is not an operation|a product of two activations"),
    "swin": (swin, (2, 3, 64, 64), 0.95, r"\(windows\): its query is not a projection of 32 x 16 rows, cut into heads"),
}
"""The model, the shape of its images, the share of FLOPs on the machine, and why it is refused as a whole."""


@pytest.mark.parametrize("name", [long("swin"), full("sam")])
def test_windows_run_in_pieces(name: str) -> None:
    """Between pieces the host cuts rows into windows, and computes what depends on both positions and queries."""
    make, shape, share, why = WINDOWED[name]
    module, given = make(), {"pixel_values": torch.randn(shape)}
    with pytest.raises(UnsupportedError, match=why):
        rsn.compile(module, given)
    torch._dynamo.reset()
    fast = torch.compile(module, backend="rsn")
    with torch.no_grad():
        with pytest.warns(Fallback):
            got = fast(**given).last_hidden_state
        wanted = module(**given).last_hidden_state
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    text = rsn.explain(fast, given)
    assert float(text.split(" % of")[0].split(" ")[-1]) >= 100 * share
    attentions = [" ".join(line.split()) for line in text.splitlines() if "scaled_dot_product_attention" in line]
    assert any("machine attention, 2 heads of " in line for line in attentions)
