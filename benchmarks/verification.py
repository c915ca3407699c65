"""What it costs to verify programs: the check of a new one, as a share of its compilation, and its first call, beside
later ones on the simulator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
import torch
import transformers
from torch import nn

import rsn
from rsn.benchmarks.measuring import wall
from rsn.isa.program import Program
from rsn.rsnlib.passes import USUAL, Passes
from rsn.scheduler.schedule import Schedule

Made = tuple[nn.Module, dict[str, Any]]
"""A model, and arguments of a call."""


def bert(layers: int, batch: int, seq: int, hidden: int, heads: int) -> Made:
    """Return an encoder with random weights, and its arguments. batch, seq: sequences, and tokens of each. hidden:
    columns."""
    config = transformers.BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    return transformers.BertModel(config, add_pooling_layer=False), {"input_ids": torch.randint(1000, (batch, seq))}


def gpt2() -> Made:
    """Return a decoder without a cache, with random weights, and its arguments."""
    model = transformers.GPT2Model(transformers.GPT2Config(n_layer=4))
    return model, {"input_ids": torch.randint(1000, (2, 128)), "use_cache": False}


def vit() -> Made:
    """Return a vision transformer with random weights, and its argument."""
    return transformers.ViTModel(transformers.ViTConfig(num_hidden_layers=6)), {
        "pixel_values": torch.randn(1, 3, 224, 224)
    }


MODELS: dict[str, Callable[[], Made]] = {
    "6 layers of MiniLM, 4 x 128": lambda: bert(6, 4, 128, 384, 12),
    "4 layers of GPT-2, 2 x 128": gpt2,
    "6 layers of ViT-base, 1 x 197": vit,
    "a layer of BERT-large, 6 x 512": lambda: bert(1, 6, 512, 1024, 16),
}


def measure(made: Made, overlay: str) -> str:
    """Return a line of text: the check's share of the seconds of compilation, and the first call beside later ones.
    overlay: its name. Raises what `rsn.compile` raises."""
    model, given = made[0].eval(), made[1]
    checks: list[float] = []

    def check(program: Program, schedule: Schedule) -> None:
        checks.append(wall(lambda: USUAL.check(program, schedule)))

    begin = time.perf_counter()
    with torch.no_grad(), rsn.compile(model, given, overlay=overlay, passes=Passes(check=check)) as compiled:
        compilation = time.perf_counter() - begin
        first = wall(lambda: compiled(**given))
        later = min(wall(lambda: compiled(**given)) for _ in range(2))
    return (
        f"check {sum(checks) / compilation:5.1%} of {compilation:.2f} s of compilation; "
        f"first call {first:.2f} s, later {later:.2f} s: {first / later:.1f} times"
    )


def main() -> None:
    """Print a line for each model and overlay."""
    for name, make in MODELS.items():
        for overlay in ("xnn", "xnn2"):
            click.echo(f"{name:32} {overlay:5} {measure(make(), overlay)}")


if __name__ == "__main__":
    main()
