"""Generation on the machine, modelled: time to the first token, chunks of prompts, and steps beside their bound.

The bound of a step is the time of its weights at the rate of LPDDR, plus that of the cache at the rate of DDR loads. A
model of many layers is timed by two of its layers and the difference to one: layers are alike, and run one after the
other. With --host the rows are wall-clock seconds of this computer instead, on the board `sim`.

Run it as: python benchmarks/decoding.py [--only NAME] [--batch N ...] [--host] [--json]
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from statistics import median
from typing import Any

import click
import torch

from rsn.benchmarks.measuring import wall
from rsn.host.generation import Decoder
from rsn.hw.sim.machine import Machine
from rsn.isa.program import Program, Role
from rsn.rsnlib.captured_graph import CapturedGraph
from rsn.rsnlib.pipeline import Pipeline

ROWS = 512
"""Of a cache; a prompt has a quarter."""


@dataclass(frozen=True)
class DecoderModel:
    """A decoder. layers: how many it has. make: makes one with another number of layers."""

    name: str
    layers: int
    make: Callable[[int], Any]


def gpt2_medium(layers: int) -> Any:
    """Return GPT-2 medium with random weights. layers: how many of its 24 layers it has."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=layers, n_head=16)).eval()


def llama_1b(layers: int) -> Any:
    """Return Llama 3.2 1B with random weights. layers: how many of its 16 layers it has."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=128256)).eval()


MODELS = (DecoderModel("GPT-2 medium", 24, gpt2_medium), DecoderModel("Llama 3.2 1B", 16, llama_1b))


@dataclass(frozen=True)
class Timed:
    """What a program takes. seconds: modelled. bound: seconds to read weights and caches once. ops: of the longest op
    list. image: bytes of the image."""

    seconds: float
    bound: float
    ops: float
    image: float

    def of(self, layers: int, more: Timed) -> Timed:
        """Return the figures of a model with `layers` layers, which grow by the same with each layer. self: of one
        layer. more: of two layers."""
        mine, theirs = astuple(self), astuple(more)
        return Timed(*(a + (layers - 1) * (b - a) for a, b in zip(mine, theirs, strict=True)))


def timed(program: Program) -> Timed:
    """Return what a program takes on the simulator, without data. Raises `ValueError` for one without op lists."""
    overlay = program.overlay
    sizes = {role: sum(4 * b.size for b in program.with_role(role)) for role in (Role.WEIGHT, Role.STATE)}
    rates = {name: overlay.rates[name].value * 1e9 for name in ("lpddr_read_gbs", "ddr_read_gbs")}
    bound = sizes[Role.WEIGHT] / rates["lpddr_read_gbs"] + sizes[Role.STATE] / rates["ddr_read_gbs"]
    ops = max(len(found) for found in program.preloaded.values())
    return Timed(Machine(program).run().latency_s, bound, ops, 4 * len(program.image))


def programs(model: Any, batch: int, prompt: int) -> list[Timed]:
    """Return what the programs of a model take: of a prompt, of a chunk as long behind it, and of a step. model: of
    transformers, in eval mode. batch: sequences. prompt: tokens of each. Raises as `CapturedGraph.divide` and
    `Pipeline.build`."""
    from transformers.cache_utils import StaticCache

    pipeline = Pipeline.named("xnn")
    found: list[Timed] = []

    def backend(graph: Any, example: Any) -> Callable[..., Any]:
        captured = CapturedGraph(graph, pipeline, whole=True)

        def call(*args: Any) -> Any:
            if len(found) < 3:
                traced: Any = captured.divide(args)
                found.append(timed(pipeline.build(traced.network).program))
            return captured.in_pytorch(*args)

        return call

    torch._dynamo.reset()
    run = torch.compile(model.forward, backend=backend)
    cache = StaticCache(model.config, max_cache_len=ROWS)
    with torch.no_grad():
        for rows, before in ((prompt, 0), (prompt, prompt), (1, 2 * prompt)):
            mask = torch.ones(batch, before + rows, dtype=torch.long)
            run(torch.ones(batch, rows, dtype=torch.long), attention_mask=mask, past_key_values=cache)
    return found


def measured(model: DecoderModel, batch: int) -> dict[str, Any]:
    """Return a row of the table as a JSON object: modelled milliseconds of a prompt, a chunk and a step, and tokens a
    second. batch: sequences. Raises as `programs`."""
    one, two = (programs(model.make(layers), batch, ROWS // 4) for layers in (1, 2))
    prompt, chunk, step = (a.of(model.layers, b) for a, b in zip(one, two, strict=True))
    return {
        "model": model.name,
        "batch": batch,
        "first_token_ms": prompt.seconds * 1e3,
        "chunk_ms": chunk.seconds * 1e3,
        "step_ms": step.seconds * 1e3,
        "bound_ms": step.bound * 1e3,
        "of_bound": step.bound / step.seconds,
        "tokens_per_s": batch / step.seconds,
        "prompt": asdict(prompt),
        "chunk": asdict(chunk),
        "step": asdict(step),
    }


def on_host(model: DecoderModel, batch: int) -> dict[str, Any]:
    """Return a row as a JSON object: wall-clock seconds of a prompt and of a step on the simulator, of the model with
    all its layers. batch: slots. Raises as `Decoder`. The machine computes all slots in each step, whether they have a
    sequence or not."""
    tokens = [1 + n for n in range(ROWS // 4)]
    with Decoder(model.make(model.layers), slots=batch, capacity=ROWS) as decoder:
        decoder.prefill(0, tokens)
        decoder.step({0: 1})
        return {
            "model": model.name,
            "batch": batch,
            "step_s": median(wall(lambda: decoder.step({0: 1})) for _ in range(3)),
            "prompt_s": median(wall(lambda: decoder.prefill(0, tokens)) for _ in range(3)),
        }


@click.command()
@click.option("--only", multiple=True, help="names of models, or pieces of them")
@click.option("--batch", "batches", multiple=True, type=int, default=(1, 8, 64), show_default=True)
@click.option("--host", is_flag=True, help="time this computer instead of the machine")
@click.option("--json", "as_json", is_flag=True, help="one JSON object a row")
def main(only: tuple[str, ...], batches: tuple[int, ...], host: bool, as_json: bool) -> None:
    """Print a row for each model and batch."""
    for model in MODELS:
        for batch in batches:
            if only and not any(piece in model.name for piece in only):
                continue
            row = on_host(model, batch) if host else measured(model, batch)
            line = f"| {model.name} | {batch} | "
            if host:
                line += f"{row['prompt_s']:.1f} s | {row['step_s']:.1f} s |"
            else:
                line += (
                    f"{row['first_token_ms']:.0f} ms | {row['chunk_ms']:.0f} ms | {row['step_ms']:.1f} ms | "
                    f"{row['bound_ms']:.1f} ms | {row['of_bound']:.2f} | {row['tokens_per_s']:.1f} | "
                    f"{row['prompt']['ops']:.0f}, {row['step']['ops']:.0f} | "
                    f"{row['prompt']['image'] / 1024:.0f}, {row['step']['image'] / 1024:.0f} KiB |"
                )
            click.echo(json.dumps(row) if as_json else line)


if __name__ == "__main__":
    main()
