"""Modelled times of whole models on generated machines: all layers in one run, beside a layer alone.

    python benchmarks/whole_models.py [gpt2 qwen llama gemma] [--lengths 32 128] [--four-bits] [--one-machine] [--head]
        [--tiles 32x64x64 4x512x128] [--json]

For each of StreamTensor's models (`stream_machines.py`), on a U55C at 250 MHz, a machine that reads a prompt and one
for a step of a token, with caches for a prompt and an answer of the same length. Of several tiles those are taken with
which prompt and answer take the least time. Two layers are captured, and the program goes through as many as the model
has: its text and its times do not depend on the numbers in the weights. A layer alone is a machine that goes through
one; the last columns are layers times its latency. Nothing is measured; only the seconds depend on this computer.

--four-bits: linear layers with int4 weights in groups of 128 and int8 rows, quantised with torchao. --one-machine: one
machine for both. --head: the last norm and the product with the vocabulary on the machine, too; else they are in no
figure. --tiles: rows, columns and depth of tiles.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GPT2Config, LlamaConfig, Qwen2Config

import rsn
from rsn.benchmarks.measuring import command_line
from rsn.benchmarks.stream_machines import LAYERS, SIZES, WORDS
from rsn.rsnlib.static_cache import empty_cache
from rsn.rsnlib.streamed import Streamed, streamed
from rsn.rsnlib.streamed.figures import tiles as figures_of_tiles
from rsn.rsnlib.streamed.generate import DEFAULT, Generated, place
from rsn.rsnlib.streamed.search import fastest
from rsn.streams.placing.devices import U55C

CONFIGS = {"qwen": Qwen2Config, "llama": LlamaConfig, "gemma": Gemma3TextConfig}
CAPTURED = 2
"""Layers that are captured."""


def model(name: str, four_bits: bool, head: bool = False) -> Any:
    """A model with random weights, and `CAPTURED` layers. head: with its whole vocabulary."""
    _, sizes = SIZES[name]
    words = {"vocab_size": WORDS[name] if head else 256, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    if name == "gpt2":
        width, heads, inner = (sizes[x] for x in ("hidden_size", "num_attention_heads", "intermediate_size"))
        config: Any = GPT2Config(n_embd=width, n_head=heads, n_inner=inner, n_layer=CAPTURED, **words)
    else:
        config = CONFIGS[name](num_hidden_layers=CAPTURED, **sizes, **words)
    made = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if four_bits:
        from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
        from torchao.quantization.granularity import PerGroup

        rsn.conv1d_to_linear(made)
        weights = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(128))
        quantize_(made if head else made.get_decoder(), weights)
    return made


def program(of: Any, layers: int, rows: int, capacity: int, any_length: bool = False, head: bool = False) -> Streamed:
    """The stream program of a model for a number of rows, or up to it, which goes through `layers` layers. head: and
    what is behind them."""
    arguments = {
        "input_ids": torch.zeros(1, rows, dtype=torch.long),
        "past_key_values": empty_cache(of.config, 1, capacity, capacity),
        "logits_to_keep": torch.tensor([rows - 1]),
    }
    made = streamed(of, arguments, DEFAULT, repeated=True, any_length=any_length, head=head)
    assert made.block.repeated is not None
    block = replace(made.block, repeated=replace(made.block.repeated, count=layers))
    return replace(made, block=block).changed(layers=layers)


def figures(name: str, length: int, tiles: list[str], four_bits: bool, one: bool, head: bool) -> dict[str, Any]:
    """The modelled times of a model, in seconds, and its machines. tiles: to try."""
    begun, layers, found = time.perf_counter(), LAYERS[name], dict[str, Any]()
    of = model(name, four_bits, head)
    sizes = [[*map(int, tile.split("x"))] for tile in tiles]
    tried = [replace(DEFAULT, rows=rows, columns=columns, depth=depth) for rows, columns, depth in sizes]

    def made(rows: int, cost: Callable[[Generated], float]) -> Generated:
        return fastest(program(of, layers, rows, 2 * length, one, head), U55C, tried, cost=cost)

    if one:
        machine = made(length, lambda x: x.latency_s + (length - 1) * x.latency_of(1))
        ttft, step, machines = machine.latency_s, machine.latency_of(1), {"machine": machine}
    else:
        machines = {what: made(rows, lambda x: x.latency_s) for what, rows in (("prompt", length), ("step", 1))}
        ttft, step = (x.latency_s for x in machines.values())
    for what, machine in machines.items():
        found[what] = {"tiles": figures_of_tiles(machine.streamed.knobs), "used": machine.used()}
    if not one and not head:
        for what, machine in machines.items():
            found[what]["alone_s"] = place(machine.streamed.changed(machine.streamed.knobs, layers=1), U55C).latency_s
    found |= {"layers": layers, "ttft_s": ttft, "tokens_per_s": 1 / step, "took_s": time.perf_counter() - begun}
    return found | {"latency_s": ttft + (length - 1) * step}


def main() -> None:
    """Print the modelled times of each model and length, or all of them as JSON."""
    parser = command_line(__doc__, json=True)
    parser.add_argument("models", nargs="*", choices=[*SIZES, []], default=["gpt2"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[32], help="of prompt and answer")
    parser.add_argument("--four-bits", action="store_true", help="int4 weights, int8 rows")
    parser.add_argument("--one-machine", action="store_true", help="for prompt and steps")
    parser.add_argument("--head", action="store_true", help="the product with the vocabulary, too")
    parser.add_argument("--tiles", nargs="+", default=["32x64x64"], help="rows x columns x depth")
    options = parser.parse_args()
    results = {}
    if not options.json:
        click.echo(f"{'model':<7}{'length':>7}{'TTFT ms':>10}{'tok/s':>9}{'latency ms':>12}")
    for name in options.models:
        for length in options.lengths:
            how = options.tiles, options.four_bits, options.one_machine, options.head
            row = results[f"{name} {length}"] = figures(name, length, *how)
            if options.json:
                continue
            click.echo(
                f"{name:<7}{length:>7}{row['ttft_s'] * 1e3:>10.2f}{row['tokens_per_s']:>9.2f}"
                f"{row['latency_s'] * 1e3:>12.2f}   ({row['took_s']:.0f} s)"
            )
            machines = {what: row[what] for what in ("machine", "prompt", "step") if what in row}
            for what, machine in machines.items():
                click.echo(f"  {what}: {machine['tiles']}, {machine['used']}")
            if all("alone_s" in x for x in machines.values()):
                ttft, step = (row["layers"] * x["alone_s"] for x in machines.values())
                click.echo(f"  layers x a machine of one: TTFT {ttft * 1e3:.2f} ms, {1 / step:.2f} tok/s")
    if options.json:
        click.echo(json.dumps(results))


if __name__ == "__main__":
    main()
