"""Models as transformers builds them, small and with random weights, against PyTorch on the simulated machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.tests.effort import full, long, thinned  # noqa: E402

SIZES = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
WORDS = {"vocab_size": 100}
IMAGES = {"image_size": 64, "patch_size": 16}
LENGTHS = [20, 13]


def model(name: str, attention: str, **config: Any) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}Model")
    return kind(kind.config_class(attn_implementation=attention, **config)).eval()


def text(masked: bool) -> dict[str, Any]:
    torch.manual_seed(1)
    ids = torch.randint(5, 90, (2, LENGTHS[0]))
    mask = (torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}


def images() -> dict[str, Any]:
    torch.manual_seed(1)
    return {"pixel_values": torch.randn(2, 3, 64, 64)}


T5 = {"d_model": 96, "d_kv": 32, "d_ff": 128, "num_layers": 2, "num_heads": 3}
GPT2 = {"n_embd": 96, "n_layer": 2, "n_head": 3, "n_positions": 64, "use_cache": False}
DISTIL = {"dim": 96, "n_layers": 2, "n_heads": 3, "hidden_dim": 128}
FAMILIES: dict[str, tuple[str, dict[str, Any], Callable[[], dict[str, Any]]]] = {
    "bert": ("Bert", WORDS | SIZES, lambda: text(True)),
    "bert without mask": ("Bert", WORDS | SIZES, lambda: text(False)),
    "roberta": ("Roberta", WORDS | SIZES, lambda: text(True)),
    "distilbert": ("DistilBert", WORDS | DISTIL, lambda: text(True)),
    "electra": ("Electra", WORDS | SIZES | {"embedding_size": 96}, lambda: text(True)),
    "electra, narrow embedding": ("Electra", WORDS | SIZES | {"embedding_size": 40}, lambda: text(True)),
    "mpnet": ("MPNet", WORDS | SIZES, lambda: text(True)),
    "t5": ("T5Encoder", WORDS | T5, lambda: text(True)),
    "gpt2": ("GPT2", WORDS | GPT2, lambda: text(False)),
    "gpt2, padded": ("GPT2", WORDS | GPT2, lambda: text(True)),
    "clip, text": ("CLIPText", WORDS | SIZES | {"max_position_embeddings": 32}, lambda: text(False)),
    "clip, images": ("CLIPVision", IMAGES | SIZES, images),
    "vit": ("ViT", IMAGES | SIZES, images),
    "deit": ("DeiT", IMAGES | SIZES, images),
}


MISSING = ("mpnet", "sdpa")
"""What transformers does not have."""
ATTENTIONS = [
    (family, attention) for family in FAMILIES for attention in ("sdpa", "eager") if (family, attention) != MISSING
]


QUICK = {("bert", "sdpa"), ("gpt2, padded", "eager"), ("t5", "eager"), ("vit", "sdpa")}
"""A mask, a causal one with padding, a bias with RMS norms, patches."""


OFTEN = set(ATTENTIONS[::2])
"""Each family in one of the two, half of them in each; `make test-full` tries all."""


@pytest.mark.parametrize(
    ("family", "attention"), [c if c in QUICK else (long if c in OFTEN else full)(*c) for c in ATTENTIONS]
)
def test_family(family: str, attention: str, tmp_path: Path) -> None:
    """Compiled, and written to a file and loaded."""
    name, config, inputs = FAMILIES[family]
    module, given = model(name, attention, **config), inputs()
    with rsn.compile(module, given) as compiled, torch.no_grad():
        answer, wanted = compiled(**given), module(**given).last_hidden_state
        compiled.save(tmp_path / "x.rsnmodel")
    with rsn.load(tmp_path / "x.rsnmodel") as loaded:
        again = loaded(**given)
    assert type(again) is type(answer)
    assert all(torch.equal(again[field], answer[field]) for field in answer)
    got = answer.last_hidden_state
    lengths = LENGTHS if "attention_mask" in given else [wanted.shape[1]] * len(wanted)
    for b, n in enumerate(lengths):
        assert (got[b, :n] - wanted[b, :n]).abs().max() <= 1e-5 * wanted[b, :n].abs().max()


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        ("vit", "sdpa"),
        long("deit", "eager"),
        long("clip, images", "sdpa"),
        *(full(*case) for case in (("vit", "eager"), ("deit", "sdpa"), ("clip, images", "eager"))),
    ],
)
def test_patches_are_embedded_on_the_machine(family: str, attention: str) -> None:
    """With the class tokens and the positions, which the host adds up: one product with one residual."""
    name, config, inputs = FAMILIES[family]
    lines = [" ".join(line.split()) for line in rsn.explain(model(name, attention, **config), inputs()).splitlines()]
    (embedding,) = (line for line in lines if "patch_embedding" in line and line.endswith("linear"))
    assert "machine matrix product 768 x 96" in embedding
    assert not any("conv2d" in line for line in lines)


class NeuMF(torch.nn.Module):
    """Neural matrix factorisation: which item a user may like, from factors multiplied and from a tower of layers."""

    def __init__(self, users: int, items: int, factors: int, *tower: int) -> None:
        super().__init__()
        nn = torch.nn
        self.users, self.items = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.tower_users, self.tower_items = (nn.Embedding(n, tower[0] // 2) for n in (users, items))
        layers = (nn.Sequential(nn.Linear(k, n), nn.ReLU()) for k, n in pairwise(tower))
        self.tower = nn.Sequential(*layers)
        self.predict = nn.Linear(factors + tower[-1], 1)

    def forward(self, user: Any, item: Any) -> Any:
        factors = self.users(user) * self.items(item)
        tower = self.tower(torch.cat([self.tower_users(user), self.tower_items(item)], dim=-1))
        return torch.sigmoid(self.predict(torch.cat([factors, tower], dim=-1))).view(-1)


def test_recommender() -> None:
    """Tower and prediction on the machine, the factors' product and the sigmoid on the host."""
    torch.manual_seed(0)
    module = NeuMF(200, 500, 16, 128, 64, 32, 16).eval()
    given = torch.randint(0, 200, (300,)), torch.randint(0, 500, (300,))
    with rsn.compile(module, given) as compiled, torch.no_grad():
        got, wanted = compiled(*given), module(*given)
        text = compiled.explain()
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    assert text.startswith("1 x 300 rows, 5 layers on the machine")
    runs = [
        tuple(line.split()[:2]) for line in text.splitlines() if line.endswith(("linear", "relu", "mul", "sigmoid"))
    ]
    tower = [(f"tower.{i}.{j}", "machine") for i in range(3) for j in range(2)]
    assert runs[:1] + runs[-1:] == [("(top", "level)")] * 2
    assert set(runs[1:-1]) == {*tower, ("predict", "machine")}


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("DebertaV2", r"encoder\.layer\.0\.attention\.self: aten\.bmm\.default is not an operation of the machine"),
    ],
)
def test_what_the_machine_cannot_run_is_refused_by_module(name: str, complaint: str) -> None:
    torch.manual_seed(0)
    module = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**WORDS, **SIZES)).eval()
    with pytest.raises(UnsupportedError, match=complaint):
        rsn.compile(module, text(True))


HEADS = {
    "BertForMaskedLM": WORDS | SIZES,
    "BertForTokenClassification": WORDS | SIZES,
    "BertForSequenceClassification": WORDS | SIZES,
    "DistilBertForQuestionAnswering": WORDS | DISTIL,
    "GPT2LMHeadModel": WORDS | GPT2 | {"bos_token_id": 0, "eos_token_id": 0},
}


@pytest.mark.parametrize("name", thinned(HEADS, 3))
def test_task(name: str) -> None:
    """What stands on an encoder runs on the machine where it has a row for each word."""
    torch.manual_seed(0)
    made = getattr(transformers, name)
    module, given = made(made.config_class(**HEADS[name])).eval(), text(True)
    with rsn.compile(module, given) as compiled, torch.no_grad():
        results = zip(compiled(**given).to_tuple(), module(**given).to_tuple(), strict=True)
    for got, wanted in results:  # of the first sequence, which has no padding
        assert (got[0] - wanted[0]).abs().max() <= 1e-5 * wanted[0].abs().max()
