"""The overlay xnn2 beside xnn-base and the published figures: BERT-Large at L = 384, one encoder, a decoder layer.

All times are modelled, launch and instruction path included; the published ones are measured (paper tables 9 and 10).
xnn-base: by the published order of the host, schedule `paper`. bound: products of the model on six MMEs, without any
waiting, keys of all rows counted. busy: the bound by the time. DDR, LPDDR: bytes moved. ops: words of the longest op
list of an MME, of 510. --mhz: instead, the times with such clocks of the fabric; MMEs and off-chip memories keep
theirs. --overlay: with --mhz, another overlay than xnn2, such as xnn8, whose tiles keep their clock.

Run it as: python benchmarks/growth.py [--only NAME ...] [--base] [--mhz CLOCK ... [--overlay NAME]] [--json]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import torch
from torch import nn

from rsn.base.errors import RsnError
from rsn.benchmarks.measuring import markdown
from rsn.hw.sim.machine import Machine, Run
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN_BASE, find
from rsn.isa.overlays.xnn2 import XNN2
from rsn.isa.program import Program
from rsn.rsnlib.nn import Encoder
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.static_cache import empty_cache, register
from rsn.scheduler.graph import AttentionLayer, Gemm, LayerGraph

TILE = 128


@dataclass(frozen=True)
class MeasuredModel:
    """A model. published: measured milliseconds. most: what the overlay is to reach, in milliseconds."""

    name: str
    make: Callable[[], tuple[nn.Module, dict[str, Any]]]
    published: float | None = None
    most: float | None = None


def bert(layers: int, batch: int, seq: int) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """Return a function that makes an encoder of `layers` layers of BERT-Large, and its arguments by name. batch, seq:
    sequences, and rows of each."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        with torch.device("meta"):
            module = Encoder(layers, 1024, 16, 4096, "gelu_tanh", 1e-6)
        module = module.to_empty(device="cpu").eval()
        for parameter in module.parameters():
            parameter.data.fill_(0.5)  # not 0: a bias of zeros would be left out
        return module, {"hidden_states": torch.zeros(batch, seq, 1024)}

    return make


def llama(layers: int, seq: int) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """Return a function that makes a decoder of `layers` layers of Llama 3.2 1B, and its arguments by name. seq: tokens
    of its one sequence."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            hidden_size=2048,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            intermediate_size=8192,
            num_hidden_layers=layers,
            vocab_size=64,
            use_cache=False,
        )
        return LlamaModel(config).eval(), {"input_ids": torch.zeros(1, seq, dtype=torch.int64)}

    return make


def llama_step(batch: int, rows: int, *, four_bits: bool = False) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """Return a function that makes Llama 3.2 1B with its head, and the arguments of a step by name. batch: sequences.
    rows: of the caches. All layers have the weights of the first one, on which no time depends. four_bits: weights are
    integers from -8 to 7, as xnn8 takes them."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64}
        heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
        config = LlamaConfig(**sizes, **heads, max_position_embeddings=131072, tie_word_embeddings=True)
        with torch.device("meta"):
            module = LlamaForCausalLM(config)
        module = module.to_empty(device="cpu")
        first, *others = module.model.layers
        for layer in others:
            for name, parameter in first.named_parameters():
                path, _, own = name.rpartition(".")
                setattr(layer.get_submodule(path), own, parameter)
        for parameter in module.parameters():
            parameter.data.fill_(0.5)
            if four_bits and parameter.ndim > 1:
                parameter.data.uniform_(-7.49, 7.49).round_()
        module.model.rotary_emb = type(module.model.rotary_emb)(config)
        cache = empty_cache(config, batch, rows)
        for layer in cache.layers:
            layer.cumulative_length.fill_(rows - 1)
        return module.eval(), {
            "input_ids": torch.zeros(batch, 1, dtype=torch.int64),
            "attention_mask": torch.ones(batch, rows, dtype=torch.int64),
            "position_ids": torch.full((batch, 1), rows - 1),
            "past_key_values": cache,
        }

    return make


def vit(batch: int) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    """Return a function that makes ViT-Base, 12 layers of 197 rows, and its arguments by name. batch: images."""

    def make() -> tuple[nn.Module, dict[str, Any]]:
        from transformers import ViTConfig, ViTModel

        with torch.device("meta"):
            module = ViTModel(ViTConfig(), add_pooling_layer=False)
        module = module.to_empty(device="cpu").eval()
        for parameter in module.parameters():
            parameter.data.fill_(0.5)
        return module, {"pixel_values": torch.zeros(batch, 3, 224, 224)}

    return make


CASES = (
    MeasuredModel("encoder B=6 L=512", bert(1, 6, 512), 17.98, 13.5),
    MeasuredModel("2 encoders B=6 L=512", bert(2, 6, 512)),
    MeasuredModel("24 layers B=8 L=384", bert(24, 8, 384), 444, 308),
    MeasuredModel("24 layers B=4 L=384", bert(24, 4, 384), 220, 154),
    MeasuredModel("24 layers B=2 L=384", bert(24, 2, 384), 122, 77.5),
    MeasuredModel("24 layers B=1 L=384", bert(24, 1, 384), 95, 39.5),
    MeasuredModel("ViT-Base B=6", vit(6)),
    MeasuredModel("Llama 1B layer L=384", llama(1, 384), None, 7.4),
    MeasuredModel("Llama 1B 4 layers L=384", llama(4, 384), None, 4 * 7.4),
    MeasuredModel("Llama 1B step B=1, 512 keys", llama_step(1, 512)),
    MeasuredModel("Llama 1B step B=8, 512 keys", llama_step(8, 512)),
    MeasuredModel("Llama 1B step B=1, 512 keys, 4 bits", llama_step(1, 512, four_bits=True)),
    MeasuredModel("Llama 1B step B=8, 512 keys, 4 bits", llama_step(8, 512, four_bits=True)),
)


def bound(network: LayerGraph, overlay: Overlay) -> float:
    """Return the seconds of all products of a network on the MMEs of an overlay, if none of these ever waits."""
    seconds, mmes = overlay.seconds, len(overlay.by_kind["MME"])
    rows = sum(-(-n // TILE) for n in network.rows)
    total = 0.0
    for layer in network.layers:
        if isinstance(layer, Gemm):
            k, n = (-(-size // TILE) for size in layer.weight.shape)
            total += rows * k * n * seconds["mme_tile_us"]
        elif isinstance(layer, AttentionLayer):
            pairs = sum((-(-n // TILE)) ** 2 for n in network.rows) * layer.heads
            if layer.head_dim <= TILE // 2:
                total += pairs * (seconds["mme_k64_us"] + seconds["mme_n64_us"])
            else:
                total += pairs * 2 * seconds["mme_tile_us"]
    return total / mmes


def modelled(case: MeasuredModel, overlay: Overlay) -> tuple[LayerGraph, Program, Run]:
    """Return the network of a model, its program on an overlay, and a run of it without data. Raises as
    `Pipeline.trace` and `Pipeline.build`."""
    module, example = case.make()
    pipeline = Pipeline(overlay=overlay)
    network = pipeline.trace(module, example).network
    program = pipeline.build(network).program
    return network, program, Machine(program).run()


def measured(case: MeasuredModel, overlay: Overlay) -> dict[str, Any]:
    """Return the figures of one model on one overlay by name: modelled `ms`, their `bound` in ms, the part of time in
    which MMEs are `busy`, MB of each bank, KiB of the image, words of the longest op list. Raises as `Pipeline.trace`
    and `Pipeline.build`."""
    network, program, run = modelled(case, overlay)
    least = bound(network, overlay)
    moved = {bank: sum(n for name, n in run.bytes.items() if name.startswith(bank)) for bank in ("ddr", "lpddr")}
    lists = [sum(op.WORDS for op in ops) for ops in program.preloaded.values()]
    return {
        "ms": run.latency_s * 1e3,
        "bound": least * 1e3,
        "busy": least / run.latency_s,
        "ddr_mb": moved["ddr"] / 1e6,
        "lpddr_mb": moved["lpddr"] / 1e6,
        "image_kib": 4 * len(program.image) / 1024,
        "ops": max(lists),
    }


@click.command()
@click.option("--only", multiple=True, help="Cases whose name contains this text.")
@click.option("--base", is_flag=True, help="xnn-base as well; it takes some minutes.")
@click.option("--mhz", multiple=True, type=float, help="Instead: times with this clock of the fabric.")
@click.option("--overlay", default=XNN2.name, show_default=True, help="With --mhz: the overlay.")
@click.option("--json", "as_json", is_flag=True)
def main(only: tuple[str, ...], base: bool, mhz: tuple[float, ...], overlay: str, as_json: bool) -> None:
    """Print a row for each case."""
    np.seterr(all="ignore")
    register()
    if mhz:
        cases = [case for case in CASES if not only or any(text in case.name for text in only)]
        _clocks(cases, find(overlay), mhz, as_json)
        return
    if overlay != XNN2.name:
        raise click.UsageError("--overlay goes with --mhz")
    found = []
    if not as_json:
        columns = "model", "published ms", "xnn-base ms", "xnn2 ms", "asked", "bound", "busy %", "DDR MB", "LPDDR MB"
        click.echo(markdown((*columns, "image KiB", "op words")))
        click.echo("|---" * (len(columns) + 2) + "|")
    for case in CASES:
        if only and not any(text in case.name for text in only):
            continue
        try:
            row = measured(case, find(XNN2.name))
        except RsnError as error:  # a step of a decoder, whose caches xnn2 does not keep
            click.echo(f"{case.name} on {XNN2.name}: {error}", err=True)
            continue
        row["base_ms"] = None
        if base:
            try:
                row["base_ms"] = measured(case, XNN_BASE)["ms"]
            except RsnError as error:  # a decoder, or more ops than an MME holds
                click.echo(f"{case.name} on xnn-base: {error}", err=True)
        found.append({"name": case.name, "published_ms": case.published, "asked_ms": case.most, **row})
        if not as_json:
            cells = [
                case.name,
                _number(case.published),
                _number(row["base_ms"]),
                f"{row['ms']:.2f}",
                _number(case.most),
                f"{row['bound']:.2f}",
                f"{100 * row['busy']:.1f}",
                f"{row['ddr_mb']:.1f}",
                f"{row['lpddr_mb']:.1f}",
                f"{row['image_kib']:.0f}",
                row["ops"],
            ]
            click.echo(markdown(cells))
    if as_json:
        click.echo(json.dumps(found, indent=1))


def _clocks(cases: Sequence[MeasuredModel], overlay: Overlay, mhz: Sequence[float], as_json: bool) -> None:
    """Print the times of cases with some clocks."""
    machines = {clock: overlay.with_rates(clock_mhz=clock) for clock in mhz}
    if not as_json:
        click.echo(markdown(("model", *(f"{clock:.0f} MHz" for clock in mhz))))
        click.echo("|---" * (len(mhz) + 1) + "|")
    found = []
    for case in cases:
        try:
            times = {clock: modelled(case, machine)[2].latency_s * 1e3 for clock, machine in machines.items()}
        except RsnError as error:
            click.echo(f"{case.name} on {overlay.name}: {error}", err=True)
            continue
        found.append({"name": case.name, "ms": times})
        if not as_json:
            click.echo(markdown((case.name, *(f"{ms:.2f}" for ms in times.values()))))
    if as_json:
        click.echo(json.dumps(found, indent=1))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
