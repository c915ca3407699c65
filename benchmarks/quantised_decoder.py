"""What quantisation costs a decoder: its perplexity on a text, beside float32.

    python benchmarks/quantised_decoder.py [--steps 600] [--seed 0]

A small decoder is trained on sentences that this file makes: sums in words, such as "nine and four are thirteen.". So
it takes no download, and its perplexity tells how much of what it has learned is left. The perplexity is that of a
character, on sentences that it has not seen; the machine's is that of `rsn.compile` on the same tokens.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Mapping
from typing import Any

import click
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup

import rsn
from rsn.benchmarks.measuring import command_line

UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
LETTERS = " -.abcdefghijklmnopqrstuvwxyz"
LENGTH = 64
"""Tokens of a row."""

CONFIGS: Mapping[str, Any] = {
    "int8 weights": Int8WeightOnlyConfig(),
    "int4 weights, groups of 32": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int4 weights, a scale a row": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerAxis(0)),
    "int8 rows and weights": Int8DynamicActivationInt8WeightConfig(),
    "int8 rows, int4 weights, groups of 32": Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
}
"""Configurations of torchao."""


class Logits(nn.Module):  # type: ignore[misc]
    """The logits of a causal language model of transformers, (batch, tokens, letters)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any) -> Any:
        """Return logits, float32 (batch, tokens, letters). input_ids: int64 (batch, tokens)."""
        return self.model(input_ids=input_ids, use_cache=False).logits


def number(n: int) -> str:
    """Return a number in words, such as twenty-one. n: 0 to 99."""
    if n < len(UNITS):
        return UNITS[n]
    tens, units = divmod(n, 10)
    return TENS[tens - 2] + (f"-{UNITS[units]}" if units else "")


def sums(seed: int) -> tuple[list[str], list[str]]:
    """Return sentences to train with, and others, a tenth of all, in random order: each sum of two numbers below 50
    once. seed: of the order."""
    pairs = list(itertools.product(range(50), repeat=2))
    random.Random(seed).shuffle(pairs)
    text = [f"{number(a)} and {number(b)} are {number(a + b)}. " for a, b in pairs]
    return text[: -len(text) // 10], text[-len(text) // 10 :]


def rows(text: list[str]) -> torch.Tensor:
    """Return sentences, one behind the other, as token ids, int64 (rows, LENGTH); what fills no row is left out."""
    ids = [LETTERS.index(letter) for letter in "".join(text)]
    return torch.tensor(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)


def trained(seed: int, steps: int) -> Logits:
    """Return a decoder, in eval mode, after `steps` steps, at least 1, on the sentences to train with of `sums(seed)`.
    seed: of its weights, too."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(LETTERS), max_position_embeddings=LENGTH, **sizes)
    model = Logits(transformers.LlamaForCausalLM(config))
    known = rows(sums(seed)[0])
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for _ in range(steps):
        ids = known[torch.randint(len(known), (32,))]
        loss = nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
    model.eval()
    return model


def costs(model: Logits, seed: int, configs: Mapping[str, Any] = CONFIGS) -> dict[str, tuple[float, ...]]:
    """Return for each configuration, by its name, the perplexity of the model in float32, of the quantised one in
    PyTorch, and of the quantised one on the machine, on sentences that it has not seen. seed: that of `trained`.
    configs: of torchao's `quantize_`, by name."""
    ids = rows(sums(seed)[1])[:8]
    found = {}
    for name, config in configs.items():
        quantised = copy.deepcopy(model)
        quantize_(quantised, config)
        cost = rsn.quality(quantised, model, [(ids,)], perplexity_of=[ids])
        on_machine = torch.compile(quantised, backend="rsn")
        with torch.no_grad():
            added = rsn.quality(on_machine, quantised, [(ids,)], perplexity_of=[ids])
        perplexities = cost.of_reference, cost.perplexity, added.perplexity
        found[name] = tuple(x for x in perplexities if x is not None)
    return found


def in_integers(model: Logits, seed: int) -> tuple[float, float]:
    """Return the perplexity of the model in float32, and in the integers of overlay xnn8, on the same sentences. seed:
    that of `trained`."""
    ids = rows(sums(seed)[1])[:8]
    found = rsn.quality(rsn.in_integers(model, (ids,)), model, [(ids,)], perplexity_of=[ids])
    assert found.of_reference is not None
    assert found.perplexity is not None
    return found.of_reference, found.perplexity


def main() -> None:
    """Print the perplexity of each configuration."""
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of training [default: 600]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = trained(options.seed, options.steps)
    made = costs(model, options.seed)
    click.echo(f"{'':<38}{'float32':>9}{'quantised':>11}{'on the machine':>16}")
    for name, (reference, quantised, machine) in made.items():
        click.echo(f"{name:<38}{reference:>9.4f}{quantised:>11.4f}{machine:>16.4f}")
    reference, quantised = in_integers(model, options.seed)
    click.echo(f"{'integers of xnn8':<38}{reference:>9.4f}{quantised:>11.4f}{'-':>16}")


if __name__ == "__main__":
    main()
