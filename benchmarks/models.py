"""Models of real size with random weights, each on the simulated machine against PyTorch: one row per model.

difference: the largest of an output, relative to that output's largest magnitude. compile: wall time from the module to
a program, with the schedule `paper`. latency: the modelled time of the machine. segments: how many the machine
runs. host: products, norms, activations and embeddings that stay in PyTorch. A refused model shows the reason. Nothing
is downloaded: transformers builds each model from its configuration.

Run it as: python benchmarks/models.py [--small] [--only NAME ...] [--json]
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rsn.base.errors import RsnError
from rsn.benchmarks.measuring import command_line, markdown, print_models
from rsn.host.model.compiled import Compiled
from rsn.rsnlib.models import preset
from rsn.rsnlib.partition import Traced
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.rules import PRODUCTS

Made = tuple[nn.Module, tuple[Any, ...] | dict[str, Any]]

SMALL = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072}
GPT2 = {"n_embd": 96, "n_layer": 2, "n_head": 3}
DISTIL = {"dim": 96, "n_layers": 2, "n_heads": 3, "hidden_dim": 128}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
DEBERTA = {
    "vocab_size": 128100,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "type_vocab_size": 0,
}
SHORT = 32
"""Rows of a sequence with --small."""


def transformer(name: str, small: dict[str, Any], **config: Any) -> Callable[[bool], nn.Module]:
    """Return a function that makes a model of transformers with random weights, given whether it is to be small. name:
    of its class, without Model. config: its configuration; small: what --small changes in it."""

    def make(is_small: bool) -> nn.Module:
        import transformers

        transformers.utils.logging.set_verbosity_error()
        given = config | small if is_small else config
        made = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**given))
        return made.eval()

    return make


def text(model: Callable[[bool], nn.Module], length: int, masked: bool = True) -> Callable[[bool], Made]:
    """Return a function that makes a model and its arguments by name, given whether it is to be small. model: makes the
    model. length: tokens of the one sequence. masked: with a mask."""

    def make(is_small: bool) -> Made:
        ids = torch.randint(5, 1000, (1, SHORT if is_small else length))
        return model(is_small), {"input_ids": ids} | ({"attention_mask": torch.ones_like(ids)} if masked else {})

    return make


def image(model: Callable[[bool], nn.Module]) -> Callable[[bool], Made]:
    """Return a function that makes a model and its argument, one image, by name, given whether it is to be small.
    model: makes the model."""

    def make(is_small: bool) -> Made:
        made = model(is_small)
        size = made.config.image_size
        return made, {"pixel_values": torch.randn(1, 3, size, size)}

    return make


class NeuMF(nn.Module):  # type: ignore[misc]
    """A recommender: the product of two embeddings beside a tower of layers over two other embeddings. From user and
    item ids (rows,) to scores (rows, 1)."""

    def __init__(self, users: int, items: int, factors: int, *tower: int) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.tower_user, self.tower_item = nn.Embedding(users, tower[0] // 2), nn.Embedding(items, tower[0] // 2)
        self.tower = nn.ModuleList(nn.Linear(k, n) for k, n in pairwise(tower))
        self.score = nn.Linear(factors + tower[-1], 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return scores, float32 (rows, 1), 0 to 1. user, item: int64 ids, (rows,)."""
        x = torch.cat([self.tower_user(user), self.tower_item(item)], -1)
        for layer in self.tower:
            x = layer(x).relu()
        joined = torch.cat([self.user(user) * self.item(item), x], -1)
        return self.score(joined).sigmoid()


def neumf(is_small: bool) -> Made:
    """Return the recommender and example ids of users and items, int64 (rows,) each. is_small: with fewer rows and
    columns."""
    sizes = (50, 40, 8, 32, 16, 8) if is_small else (6040, 3706, 64, 256, 128, 64)
    rows = 64 if is_small else 3072
    return NeuMF(*sizes).eval(), tuple(torch.randint(0, n, (rows,)) for n in sizes[:2])


def mlp(is_small: bool) -> Made:
    """Return a chain of products, or one product if `is_small`, and its example input."""
    return preset("gemm:64x96x96") if is_small else preset("mlp")


BERT = transformer("Bert", SMALL)
GPT2_SMALL = transformer("GPT2", GPT2, use_cache=False, bos_token_id=None, eos_token_id=None)
MODELS: dict[str, Callable[[bool], Made]] = {
    "bert-base, L=128": text(BERT, 128),
    "bert-base, L=512": text(BERT, 512),
    "roberta-base, L=128": text(transformer("Roberta", SMALL, **ROBERTA), 128),
    "roberta-base, L=512": text(transformer("Roberta", SMALL, **ROBERTA), 512),
    "distilbert, L=128": text(transformer("DistilBert", DISTIL), 128),
    "electra-base, L=128": text(transformer("Electra", SMALL, **BASE, embedding_size=768), 128),
    "minilm, L=128": text(transformer("Bert", SMALL, **MINILM), 128),
    "mpnet-base, L=128": text(transformer("MPNet", SMALL, vocab_size=30527), 128),
    "deberta-v3-base, L=128": text(transformer("DebertaV2", SMALL, **BASE, **DEBERTA), 128),
    "gpt2, L=128": text(GPT2_SMALL, 128, masked=False),
    "gpt2, L=512": text(GPT2_SMALL, 512, masked=False),
    "clip-vit-b/32, text": text(transformer("CLIPText", SMALL), 77, masked=False),
    "clip-vit-b/32, image": image(transformer("CLIPVision", SMALL)),
    "vit-base": image(transformer("ViT", SMALL | {"image_size": 64})),
    "deit-base": image(transformer("DeiT", SMALL | {"image_size": 64})),
    "mlp, 3072 rows": mlp,
    "neumf, 3072 rows": neumf,
}


def measured(make: Callable[[bool], Made], small: bool) -> dict[str, Any]:
    """Return the figures of one model by name: the largest `difference` relative to the largest result of PyTorch,
    `compile_s`, `latency_ms`, `segments`, operators on the `host`; or `refused`, the reason. make, small: makes the
    model."""
    torch.manual_seed(0)
    model, inputs = make(small)
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, {})
    start = time.perf_counter()
    try:
        pipeline = Pipeline.named("xnn")
        traced = pipeline.trace(model, inputs)
        built = pipeline.build(traced.network)
    except RsnError as error:
        return {"refused": str(error)}
    with Compiled(traced, built, "sim") as compiled, torch.no_grad():
        took = time.perf_counter() - start
        got, wanted = (pytree.tree_leaves(call(*args, **kwargs)) for call in (compiled, model))
        assert compiled.last_run is not None
        return {
            "difference": max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, wanted, strict=True)),
            "compile_s": took,
            "latency_ms": 1e3 * compiled.last_run.latency_s,
            "segments": len(traced.network.layers),
            "host": on_host(traced),
        }


NAMED = {*(x.__name__ for x in PRODUCTS), "embedding", "layer_norm", "tanh", "sigmoid", "gelu", "relu", "softmax"}
"""Operators that compute enough to be listed."""


def on_host(traced: Traced) -> str:
    """Return the operators that stay on the host as text, with the module of each, except those that compute little."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for placement in traced.placements:
        if placement.where == "host" and placement.op in NAMED and placement.path not in found[placement.op]:
            found[placement.op].append(placement.path)
    return "; ".join(
        f"{op} ({paths[0]}{f' and {len(paths) - 1} more' if len(paths) > 1 else ''})" if paths[0] else op
        for op, paths in found.items()
    )


HEAD = ("model", "difference", "compile, s", "latency, ms", "segments", "host")


def row(name: str, facts: dict[str, Any]) -> str:
    """Return one row of the table as Markdown. name: of the model. facts: from `measured`."""
    cells = [name, *("",) * 4, f"refused: {facts.get('refused')}"]
    if "refused" not in facts:
        numbers = (f"{facts['difference']:.1e}", f"{facts['compile_s']:.1f}", f"{facts['latency_ms']:.2f}")
        cells = [name, *numbers, str(facts["segments"]), facts["host"]]
    return markdown(cells)


def main() -> None:
    """Print a row for each model, or JSON."""
    parser = command_line(__doc__, json=True)
    parser.add_argument("--small", action="store_true", help="tiny models of the same families")

    def facts(name: str, options: Namespace) -> dict[str, Any]:
        return measured(MODELS[name], options.small)

    print_models(parser, MODELS, HEAD, facts, row)


if __name__ == "__main__":
    main()
