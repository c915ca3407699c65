"""Machines that are generated for a layer of StreamTensor's models, on its device, beside its published times.

    python benchmarks/stream_machines.py [gpt2 qwen llama gemma] [--lengths 32 64 128 256] [--numbers w4a8]
        [--trials 6] [--seed 0] [--head]

For each model: a machine for a layer that reads a prompt, and one for a layer that decodes a token with a cache. The
layers of a model run one after the other on the same machine, with other weights, as StreamTensor's do. So the time to
the first token (TTFT) is layers times the first machine's latency, and the speed is one token per layers times the
second one's. Prompt and answer have the same length. Tiles are searched.

--numbers: w4a8, int4 weights with a scale for each column, int8 rows, attention of integers and a cache of int8 for
prompt and answer; w4a8-128, the same with a scale for groups of 128 numbers of a column; f32, float32, with a cache
that is copied as it grows, at the middle length of the answer.

--head: also the times of machines that go through all layers, with the same tiles, and then compute the last norm and
the product with the vocabulary; not of f32, whose cache grows. Its weights are of the same kind. In a step it has the
arrays of the layers; in a prompt, whose other products have more rows, it has tiles and kernels of its own.

Ours is modelled. StreamTensor's is measured, with 4-bit weights and 8-bit activations, on a U55C at 250 MHz (MICRO'25,
10.1145/3725843.3762817, tables 4 to 7). Nothing depends on this computer but the seconds of the generation.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
import torch
from torch import nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache
from transformers.masking_utils import AttentionMaskInterface, eager_mask

import rsn
from rsn.base.durations import duration
from rsn.base.errors import RsnError
from rsn.benchmarks.measuring import command_line
from rsn.rsnlib.quantised_cache import QuantisedStaticLayer
from rsn.rsnlib.streamed import streamed
from rsn.rsnlib.streamed.block import Streamed
from rsn.rsnlib.streamed.generate import DEFAULT, Generated, place
from rsn.rsnlib.streamed.search import KNOBS, KNOBS_OF_INTEGERS, START
from rsn.streams.placing.devices import U55C
from rsn.tests.rsnlib.streamed_blocks import Cached, Rotated, block
from rsn.tuning.problem import Choice, Knob, Outcome
from rsn.tuning.study import tune

LAYERS = {"gpt2": 24, "qwen": 24, "llama": 22, "gemma": 26}
"""Table 7."""
WORDS = {"gpt2": 50257, "qwen": 151936, "llama": 32000, "gemma": 262144}
"""Words of the vocabularies, as in the models."""
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}),
    "qwen": (
        "qwen2",
        {"hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2},
    ),
    "llama": (
        "llama",
        {"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4},
    ),
    "gemma": (
        "gemma3",
        {"hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1}
        | {"head_dim": 256},
    ),
}
"""Table 7; Gemma's columns of a head, which the table leaves out, as in the model."""
PUBLISHED = {
    32: (194.99, 34.59, 199.51),
    64: (358.24, 61.27, 215.51),
    128: (696.65, 125.35, 224.05),
    256: (1387.76, 272.85, 229.61),
}
"""GPT-2 by length of prompt and answer: latency in ms, TTFT in ms, tokens/s (tables 4 and 5)."""
COMPILE_S = 26.8, 63.4
"""Seconds of StreamTensor's own passes, over the four models (Fig. 10c)."""
TILES: Mapping[str, tuple[Choice, ...]] = {
    "prompt": (
        {"rows": 8, "columns": 64, "depth": 256, "packed": 1, "kernels": 1, "arrays": 12},
        {"rows": 8, "columns": 512, "depth": 128, "packed": 1, "kernels": 1, "arrays": 0},
        {"rows": 8, "columns": 32, "depth": 256, "packed": 1, "kernels": 1, "arrays": 12},
    ),
    "token": (
        {"rows": 1, "columns": 64, "depth": 256, "packed": 1, "kernels": 1, "arrays": 20},
        {"rows": 1, "columns": 1024, "depth": 128, "packed": 1, "kernels": 8, "arrays": 0},
        {"rows": 1, "columns": 128, "depth": 256, "packed": 1, "kernels": 1, "arrays": 8},
    ),
}
"""Tiles of machines of integers that are tried first."""
HEAD = {"columns": 1024, "depth": 256, "kernels": 4}
"""Tiles of the product with the vocabulary, and its kernels, where it has no arrays of the layers."""


@dataclass(frozen=True)
class LayerSearch:
    """A search for the tiles of a layer on the device U55C, for `rsn.tuning`."""

    layer: Streamed
    name: str = "layer"
    goals: tuple[str, ...] = ("latency ms",)
    knobs: tuple[Knob, ...] = KNOBS
    start: tuple[Choice, ...] = (START,)
    found: dict[str, Generated] = field(default_factory=dict)
    """The machines so far, by their choice as JSON."""

    def evaluate(self, choice: Choice) -> Outcome:
        """Return the modelled latency of the machine of a choice, in ms. Raises `RsnError` if it does not fit."""
        return Outcome((self.made(choice).latency_s * 1e3,))

    def made(self, choice: Choice) -> Generated:
        """Return the machine of a choice, which is made once. choice: a value for each of `KNOBS`. Raises `RsnError` if
        it does not fit."""
        values: dict[str, Any] = {**choice}
        key = json.dumps(values, sort_keys=True)
        if key not in self.found:
            self.found[key] = place(self.layer, U55C, replace(DEFAULT, **values))
        return self.found[key]


class QuantisedStep(nn.Module):  # type: ignore[misc]
    """A decoder layer with a cache of int8 of fixed capacity as tensors: (x, position, keys, values, scales of keys,
    scales of values) to (y, these four)."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, position: Any, *cache: Any) -> Any:
        """Return the rows, (1, new, width), and the cache. x: (1, new, width). position: of the first new row, int64
        scalar. cache: int8 and float32 (1, heads, capacity, columns or 1)."""
        capacity = cache[0].shape[2]
        mask = torch.arange(capacity) <= position + torch.arange(x.shape[1])[:, None]
        made = QuantisedStaticLayer(capacity)
        for part, tensors in ((made, cache[:2]), (made.scales, cache[2:])):
            part.keys, part.values = (tensor.clone() for tensor in tensors)
            part.device, part.cumulative_length, part.is_initialized = x.device, position.clone(), True
        named = {"mask": mask[None, None], "first": position}
        arguments = named if isinstance(self.layer, Rotated) else {"attention_mask": mask[None, None]}
        y = self.layer(x, past_key_values=Cache(layers=[made]), **arguments)
        y = y if isinstance(y, torch.Tensor) else y[0]
        return y, made.keys, made.values, made.scales.keys, made.scales.values


class LayersAndHead(nn.Module):  # type: ignore[misc]
    """Layers, a norm, and a product with a vocabulary for one row: (x, row) to logits, or, with `QuantisedStep`s as
    layers, (x, row, position, caches of all layers) to logits and caches."""

    def __init__(self, layers: Sequence[nn.Module], norm: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.layers, self.norm, self.head = nn.ModuleList(layers), norm, head

    def forward(self, x: Any, row: Any, *given: Any) -> Any:
        """Return logits, (1, 1, words), and the caches. x: (1, rows, width). row: whose logits, int64 (1,). given:
        position and caches."""
        position = given[:1]
        stored: list[Any] = []
        for k, layer in enumerate(self.layers):
            y = layer(x, *position, *given[4 * k + 1 : 4 * k + 5])
            x, *caches = (y,) if isinstance(y, torch.Tensor) else y
            stored += caches if position else []
        return (self.head(self.norm(x)[:, row]), *stored)


def quantised(model: str, sizes: dict[str, Any], group: int) -> nn.Module:
    """Return a layer with int4 weights, int8 rows and attention of integers. model, sizes: as for `block`. group:
    numbers of a column with one scale, 0 for all."""
    AttentionInterface.register("quantised", rsn.quantised_attention)
    AttentionMaskInterface.register("quantised", eager_mask)
    made = block(model, "quantised", **sizes)
    rsn.conv1d_to_linear(made)
    return with_four_bits(made, group)


def with_four_bits(module: nn.Module, group: int) -> nn.Module:
    """Quantise the linear layers of a module, and return it. group: as for `quantised`."""
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerAxis, PerGroup

    granularity = PerGroup(group) if group else PerAxis(0)
    quantize_(module, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=granularity))
    return module.eval()


def with_head(
    model: str, layers: Sequence[nn.Module], given: tuple[Any, ...], group: int, like: Generated
) -> Generated:
    """Return the machine that goes through all layers of a model, and computes what is behind them. layers: two of
    them. given: the arguments of `LayersAndHead`. group: as for `quantised`. like: the machine of a layer, whose tiles
    it has, but for `HEAD`."""
    width = given[0].shape[-1]
    norm = nn.LayerNorm(width) if model == "gpt2" else nn.RMSNorm(width)
    head = with_four_bits(nn.Sequential(nn.Linear(width, WORDS[model], bias=False)), group)
    made = streamed(LayersAndHead(layers, norm, head).eval(), given, repeated=True, head=True)
    assert made.block.repeated is not None
    # The program's text and its times do not depend on the numbers in the weights.
    made = replace(made, block=replace(made.block, repeated=replace(made.block.repeated, count=LAYERS[model])))
    names = "rows", "columns", "depth", "packed", "kernels", "arrays"
    tiles = {name: getattr(like.streamed.knobs, name) for name in names}
    shares = tiles["arrays"] and given[0].shape[1] == 1
    knobs = replace(DEFAULT, **tiles, of={} if shares else {"head_0": HEAD})
    return place(made.changed(layers=LAYERS[model]), U55C, knobs)


def best(layer: Streamed, trials: int, seed: int, tiles: tuple[Choice, ...] = ()) -> Generated:
    """Return the fastest of `trials` machines of a layer. seed: of the search. tiles: to try first, of a machine of
    integers; none for float32. Raises `RsnError` if none fits the device."""
    problem = LayerSearch(layer, knobs=KNOBS_OF_INTEGERS, start=tiles) if tiles else LayerSearch(layer)
    found = tune(problem, trials, seed=seed, together=min(2, trials))
    if not found.best:
        raise RsnError(f"no machine fits: {found.trials[0].outcome.refused}")
    return problem.made(found.best[0].choice)


def figures(model: str, length: int, trials: int, seed: int, numbers: str, head: bool) -> dict[str, Any]:
    """Return the two machines of a model, for the prompt and for a token, and its modelled times, as a JSON object.
    model: key of `SIZES`. length: tokens of the prompt and of the answer. trials, seed: as for `best`, also its error.
    numbers: of weights and rows, as --numbers. head: with the times of machines with the product with the vocabulary.
    """
    name, sizes = SIZES[model]
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    kv, columns = sizes.get("num_key_value_heads", heads), sizes.get("head_dim", hidden // heads)
    torch.manual_seed(seed)
    group, whole = 128 if "128" in numbers else 0, dict[str, float]()
    module = block(name, **sizes) if numbers == "f32" else quantised(name, sizes, group)
    begun = time.perf_counter()
    layer = streamed(module, (torch.randn(1, length, hidden),))
    captured = time.perf_counter() - begun
    new = torch.randn(1, 1, hidden)
    if numbers == "f32":
        prompt = best(layer, trials, seed)
        # In the middle of the answer; rounded so that tiles of rows divide the cache.
        cache = -(-(length + length // 2) // 16) * 16
        past = (torch.randn(1, kv, cache - 1, columns), torch.randn(1, kv, cache - 1, columns))
        token = best(streamed(Cached(module).eval(), (new, *past)), trials, seed)
    else:
        prompt = best(layer, trials, seed, TILES["prompt"])
        integers = (torch.zeros(1, kv, 2 * length, columns, dtype=torch.int8) for _ in range(2))
        held = (*integers, *(torch.ones(1, kv, 2 * length, 1) for _ in range(2)))
        step = streamed(QuantisedStep(module).eval(), (new, torch.tensor(length), *held))
        token = best(step, trials, seed, TILES["token"])
        if head:
            both = [module, quantised(name, sizes, group)]
            rows = torch.randn(1, length, hidden), torch.tensor([length - 1])
            row = new, torch.tensor([0]), torch.tensor(length), *held, *(x.clone() for x in held)
            ttft = with_head(model, both, rows, group, prompt).latency_s
            one = with_head(model, [*map(QuantisedStep, both)], row, group, token)
            whole = {
                "head_ttft_ms": ttft * 1e3,
                "head_tokens_per_s": 1 / one.latency_s,
                "head_latency_ms": (ttft + length * one.latency_s) * 1e3,
                "head_bound_tokens_per_s": 1 / device_bound(one),
            }
    seconds = time.perf_counter() - begun
    layers = LAYERS[model]
    ttft, each = layers * prompt.latency_s, layers * token.latency_s
    return whole | {
        "ttft_ms": ttft * 1e3,
        "tokens_per_s": 1 / each,
        "latency_ms": (ttft + length * each) * 1e3,
        "bound_ttft_ms": layers * device_bound(prompt) * 1e3,
        "bound_tokens_per_s": 1 / (layers * device_bound(token)),
        "prompt": {"knobs": shown(prompt), "used": prompt.used(), "seconds": dict(prompt.seconds)},
        "token": {"knobs": shown(token), "used": token.used(), "seconds": dict(token.seconds)},
        "capture_s": captured,
        "search_s": seconds,
    }


def device_bound(made: Generated) -> float:
    """Return the least seconds that a layer takes on the device with any machine: all multipliers are busy, or its
    memory."""
    return max(made.bounds_s["multipliers"], made.bounds_s["memory off the chip"])


def shown(made: Generated) -> str:
    """Return the knobs of a machine as text: its tiles, and `packed`, 1 if tensors off the chip lie tile by tile."""
    k = made.streamed.knobs
    return f"tiles {k.rows} x {k.columns} x {k.depth}, packed {k.packed}, kernels {k.kernels}, arrays {k.arrays}"


def main() -> None:
    """Print the modelled times of each model and length beside the published ones, or all figures as JSON."""
    parser = command_line(__doc__, json=True)
    parser.add_argument("models", nargs="*", choices=[*SIZES, []], default=["gpt2"])
    parser.add_argument("--lengths", nargs="+", type=int, default=list(PUBLISHED), help="of prompt and answer")
    parser.add_argument("--trials", type=int, default=6, help="machines to try for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numbers", choices=["w4a8", "w4a8-128", "f32"], default="w4a8")
    parser.add_argument("--head", action="store_true", help="also with the product with the vocabulary")
    options = parser.parse_args()
    if options.head and options.numbers == "f32":
        parser.error("--head is of machines of integers, whose caches have a fixed capacity")
    results: dict[str, Any] = {}
    head = f"{'model':<7}{'length':>7}{'latency ms':>12}{'TTFT ms':>10}{'bound':>9}{'tok/s':>9}{'bound':>8}"
    if not options.json:
        click.echo(f"{head}   published: latency, TTFT, tok/s")
    for model in options.models:
        for length in options.lengths:
            how = options.trials, options.seed, options.numbers, options.head
            row = results[f"{model} {length}"] = figures(model, length, *how)
            if options.json:
                continue
            published = PUBLISHED.get(length) if model == "gpt2" else None
            beside = "" if published is None else "{:>12.2f}{:>9.2f}{:>9.2f}".format(*published)
            click.echo(
                f"{model:<7}{length:>7}{row['latency_ms']:>12.2f}{row['ttft_ms']:>10.2f}{row['bound_ttft_ms']:>9.2f}"
                f"{row['tokens_per_s']:>9.2f}{row['bound_tokens_per_s']:>8.1f}{beside}"
            )
            if options.head:
                click.echo(
                    f"  all layers and the product with the vocabulary: latency {row['head_latency_ms']:.2f} ms, "
                    f"TTFT {row['head_ttft_ms']:.2f} ms, {row['head_tokens_per_s']:.2f} tok/s, "
                    f"bound {row['head_bound_tokens_per_s']:.1f}"
                )
            for part in ("prompt", "token"):
                steps = ", ".join(f"{step} {duration(seconds)}" for step, seconds in row[part]["seconds"].items())
                used = ", ".join(f"{name} {count:,}" for name, count in row[part]["used"].items())
                click.echo(f"  {part:<7}{row[part]['knobs']}; {used}; {steps}")
            click.echo(
                f"  capture {row['capture_s']:.1f} s; all machines of both searches {row['search_s']:.1f} s "
                f"({2 * options.trials} tried)"
            )
    if options.json:
        click.echo(json.dumps(results))
        return
    low, high = COMPILE_S
    click.echo(f"Seconds of StreamTensor's own passes: {low} to {high} (published).")


if __name__ == "__main__":
    main()
