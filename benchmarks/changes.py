"""What the check for changes of a model costs, which is made before each call.

Measured for a model of 400 tensors, and for BERT-base beside a call of it (batch 1, 128 rows) on the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import torch
import transformers
from torch import nn

import rsn
from rsn.benchmarks.measuring import cpu
from rsn.rsnlib.changes import Snapshot

LAYERS = 33  # of 12 parameters each; the model has 4 more


def microseconds(call: Callable[[], Any], rounds: int = 30, calls: int = 100) -> float:
    """Return the CPU microseconds of a call in this process: the mean over `calls` calls, of the best of `rounds`
    rounds, since other load only adds to it."""

    def many() -> None:
        for _ in range(calls):
            call()

    return min(cpu(many) for _ in range(rounds)) / calls * 1e6


def main() -> None:
    """Print how long it takes to look for changes of a model, alone and as a part of a call."""
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(LAYERS)]
    model = nn.Sequential(*layers, nn.Linear(32, 32), nn.Linear(32, 32)).eval()
    count = sum(1 for _ in model.parameters())
    modules = sum(1 for _ in model.modules())
    click.echo(f"{count} tensors in {modules} modules: {microseconds(Snapshot(model).change):.0f} us a look")

    config = transformers.BertConfig()
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()
    inputs = {"input_ids": torch.randint(30000, (1, 128)), "attention_mask": torch.ones(1, 128, dtype=torch.int64)}
    look = microseconds(Snapshot(bert).change)
    with rsn.compile(bert, inputs) as compiled, torch.no_grad():
        call = microseconds(lambda: compiled(**inputs), rounds=3, calls=1)
    count = sum(1 for _ in bert.parameters())
    click.echo(f"BERT-base, {count} tensors: {look:.0f} us of a call of {call / 1e3:.0f} ms, {100 * look / call:.3f} %")


if __name__ == "__main__":
    main()
