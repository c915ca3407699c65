"""What a capture costs with the normal form, against another checkout of rsn or against the export alone, in turns.

    python benchmarks/normal_form.py [--rounds N] [--other FOLDER]

FOLDER: the folder that has that checkout as `rsn`. Each round captures one BERT layer, one layer of a decoder and one
of a ViT (transformers, base sizes, random weights) in a process of either checkout; printed are the medians, and the
median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import torch

REPEATS = 5


def models() -> dict[str, tuple[torch.nn.Module, dict[str, Any]]]:
    """Models of one layer, each with an example."""
    import transformers as t

    t.utils.logging.set_verbosity_error()
    ids = {"input_ids": torch.arange(128)[None] % 100}
    mask = {"attention_mask": torch.ones(1, 128, dtype=torch.int64)}
    decoder = t.LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=1, num_attention_heads=12, vocab_size=100,
        use_cache=False,
    )  # fmt: skip
    return {
        "BERT layer": (t.BertModel(t.BertConfig(num_hidden_layers=1, vocab_size=100)), ids | mask),
        "decoder layer": (t.LlamaForCausalLM(decoder), ids | mask),
        "ViT layer": (t.ViTModel(t.ViTConfig(num_hidden_layers=1)), {"pixel_values": torch.randn(1, 3, 224, 224)}),
    }


def measured() -> dict[str, list[float]]:
    """Seconds of a capture, and of the part of it that is not export, by model: medians of `REPEATS` after the
    first."""
    from rsn.rsnlib import trace

    normal = 0.0
    try:
        from rsn.rsnlib.normal_form import capture
    except ImportError:
        pass
    else:
        normalise = capture.normalise  # type: ignore[attr-defined]

        def timed(graph: torch.fx.Graph) -> None:
            nonlocal normal
            begun = time.perf_counter()
            normalise(graph)
            normal += time.perf_counter() - begun

        capture.normalise = timed  # type: ignore[attr-defined]
    found = {}
    for name, (model, example) in models().items():
        times = []
        for _ in range(REPEATS + 1):
            begun, normal = time.perf_counter(), 0.0
            trace.captured(model.eval(), example)
            times.append((time.perf_counter() - begun, normal))
        found[name] = [statistics.median(x[k] for x in times[1:]) for k in range(2)]
    return found


def _of(folder: Path) -> dict[str, list[float]]:
    """`measured` in a process of a checkout."""
    command = [sys.executable, __file__, "--one"]
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    found: dict[str, list[float]] = json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--other", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        click.echo(json.dumps(measured()))
        return
    own = Path(__file__).resolve().parent.parent / ".typing"
    rounds = [(_of(own), _of(given.other) if given.other else None) for _ in range(given.rounds)]
    click.echo(f"{'':16}{'capture':>12}{'normalising':>14}{'other':>12}{'ratio':>8}")
    for name in rounds[0][0]:
        whole, part = (statistics.median(mine[name][k] for mine, _ in rounds) for k in range(2))
        before = [(other or {name: [mine[name][0] - mine[name][1]]})[name][0] for mine, other in rounds]
        ratio = statistics.median(mine[name][0] / b for (mine, _), b in zip(rounds, before, strict=True))
        numbers = f"{1e3 * whole:>9.1f} ms{1e3 * part:>11.1f} ms{1e3 * statistics.median(before):>9.1f} ms"
        click.echo(f"{name:16}{numbers}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
