"""Models as transformers builds them, small and with random weights, against PyTorch on the simulated machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.isa.errors import UnsupportedError  # noqa: E402

SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
WORDS = {"vocab_size": 100}
IMAGES = {"image_size": 64, "patch_size": 16}
LENGTHS = [20, 13]


def model(name: str, attention: str, **config: Any) -> Any:
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}Config")(attn_implementation=attention, **config)
    return getattr(transformers, f"{name}Model")(made).eval()


def text(masked: bool) -> dict[str, Any]:
    torch.manual_seed(1)
    ids = torch.randint(5, 90, (2, LENGTHS[0]))
    mask = (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}


def images() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


GPT2 = {"n_embd": 96, "n_layer": 2, "n_head": 3, "n_positions": 64, "use_cache": False}
DISTIL = {"dim": 96, "n_layers": 2, "n_heads": 3, "hidden_dim": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("Bert", WORDS | SIZES, lambda: text(True)),
    "bert without mask": ("Bert", WORDS | SIZES, lambda: text(False)),
    "roberta": ("Roberta", WORDS | SIZES, lambda: text(True)),
    "distilbert": ("DistilBert", WORDS | DISTIL, lambda: text(True)),
    "electra": ("Electra", WORDS | SIZES | {"embedding_size": 96}, lambda: text(True)),
    "electra, narrow embedding": ("Electra", WORDS | SIZES | {"embedding_size": 40}, lambda: text(True)),
    "gpt2": ("GPT2", WORDS | GPT2, lambda: text(False)),
    "gpt2, padded": ("GPT2", WORDS | GPT2, lambda: text(True)),
    "clip, text": ("CLIPText", WORDS | SIZES | {"max_position_embeddings": 32}, lambda: text(False)),
    "clip, images": ("CLIPVision", IMAGES | SIZES, images),
    "vit": ("ViT", IMAGES | SIZES, images),
    "deit": ("DeiT", IMAGES | SIZES, images),
}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, attention: str) -> None:
    name, config, inputs = FAMILIES[family]
    module, given = model(name, attention, **config), inputs()
    with rsn.compile(module, given) as compiled, torch.no_grad():
        got, wanted = compiled(**given).last_hidden_state, module(**given).last_hidden_state
    lengths = LENGTHS if "attention_mask" in given else [wanted.shape[1]] * len(wanted)
    for b, n in enumerate(lengths):
        assert (got[b, :n] - wanted[b, :n]).abs().max() <= 1e-5 * wanted[b, :n].abs().max()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("MPNet", r"encoder\.layer\.0\.attention\.attn: an attention takes one mask, float and from the host"),
        ("DebertaV2", r"encoder\.layer\.0\.attention\.self: aten\.bmm\.default is not an operation of the machine"),
    ],
)
def test_what_the_machine_cannot_run_is_refused_by_module(name: str, complaint: str) -> None:
    torch.manual_seed(0)
    module = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**WORDS, **SIZES)).eval()
    with pytest.raises(UnsupportedError, match=complaint):
        rsn.compile(module, text(True))
