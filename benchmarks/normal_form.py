"""What the normal form costs: capturing one layer of BERT, of a decoder and of a ViT, against the export alone.

    python benchmarks/normal_form.py [--repeats N]

The layers are those of transformers at base size, with random weights. Printed are medians, and the ratio of both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import click
import torch

from rsn.rsnlib.capture import exported
from rsn.rsnlib.normal_form.passes import normalise


def models() -> dict[str, tuple[torch.nn.Module, dict[str, Any]]]:
    """Return models of one layer by name, each with its arguments by name."""
    import transformers as t

    t.utils.logging.set_verbosity_error()
    text = {"input_ids": torch.arange(128)[None] % 100, "attention_mask": torch.ones(1, 128, dtype=torch.int64)}
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 1, "vocab_size": 100}
    decoder = t.LlamaConfig(num_attention_heads=12, use_cache=False, **sizes)
    return {
        "BERT": (t.BertModel(t.BertConfig(num_hidden_layers=1, vocab_size=100)), text),
        "decoder": (t.LlamaForCausalLM(decoder), text),
        "ViT": (t.ViTModel(t.ViTConfig(num_hidden_layers=1)), {"pixel_values": torch.randn(1, 3, 224, 224)}),
    }


def main() -> None:
    """Print, for each model, the median milliseconds of the export and of the normal form, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    click.echo(f"{'one layer':10}{'export':>12}{'normal form':>14}{'ratio':>8}")
    for name, (model, example) in models().items():
        times = []
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            program = exported(model.eval(), (), example)
            between = time.perf_counter()
            normalise(program.graph)
            times.append((between - begun, time.perf_counter() - between))
        export, normal = (1e3 * statistics.median(x[k] for x in times[1:]) for k in range(2))  # the first one imports
        click.echo(f"{name:10}{export:>9.1f} ms{normal:>11.1f} ms{1 + normal / export:>8.3f}")


if __name__ == "__main__":
    main()
