"""Models over 1 to 16 boards, modelled: time between results, latency, and the bound of both.

The parts of a model (docs/many-boards.md) are timed as programs of their own, the layers in its middle by one of them.
Each number of boards then has the cut whose slowest stage takes least time. While calls follow each other, a result
comes each time the slowest stage has run, or the link has carried a call. The bound of that time is the least that any
cut can have: the work of one board divided by N, or its longest part, or the link. Steps of a decoder need results of
the steps before: N boards are at work if there are N batches of sequences.

With --shards S boards compute each stage together. A row then compares the latency of the fewest stages that hold the
model with that of as many boards without shards, and with the bound: the time of one board divided by S.

Run it as: python benchmarks/many_boards.py [--only NAME] [--batch N ...] [--shards S ...] [--rate link_gbs=0.118]
[--json]
`python docs/scaling.py ROWS.json` draws what --json prints.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import torch
from torch import nn

from rsn.hw.sim.machine import launch_seconds
from rsn.isa.overlay import Overlay
from rsn.rsnlib import static_cache
from rsn.rsnlib.capture import without_values
from rsn.rsnlib.nn import Encoder
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.stage_plan import ChainPart, chain, fewest, is_uneven, least_slowest, slowest_seconds
from rsn.scheduler.shards import opened, shard_places
from rsn.scheduler.stages import chained, cut_places, divided

BATCHES, BOARDS = (1, 8, 64), range(1, 17)
PROMPT, ROWS = 128, 512
"""Tokens of a prompt; rows of the caches of a step, all of which count."""
BERT_ROWS = 384
TRIED = 3
"""Layers of the models that are compiled: those in the middle of the others are like the second one."""

Made = tuple[nn.Module, dict[str, Any]]


@dataclass(frozen=True)
class ManyBoardsCase:
    """A model. layers: how many it has. make: makes one with `TRIED` layers on the meta device, and its arguments, for
    a number of sequences. tokens: of each sequence in a call."""

    name: str
    overlay: str
    layers: int
    make: Callable[[int], Made]
    tokens: int


def bert(batch: int) -> Made:
    """Return layers of BERT-Large, and their arguments."""
    with torch.device("meta"):
        module = Encoder(TRIED, 1024, 16, 4096, "gelu_tanh", 1e-6).eval()
    return module, {"hidden_states": torch.zeros(batch, BERT_ROWS, 1024)}


def llama(hidden: int, width: int, heads: int, step: bool, batch: int) -> Made:
    """Return a Llama of some size, and its arguments. step: those of a step, else of a prompt."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=width,
        num_hidden_layers=TRIED,
        num_attention_heads=heads,
        num_key_value_heads=8,
        vocab_size=128256,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    rows = ROWS if step else PROMPT
    given = {
        "input_ids": torch.zeros(batch, 1 if step else PROMPT, dtype=torch.long),
        "past_key_values": static_cache.empty_cache(config, batch, rows, None),
    }
    if not step:
        return model, given | {"logits_to_keep": torch.tensor([PROMPT - 1])}
    for layer in given["past_key_values"].layers:
        layer.cumulative_length.fill_(rows - 1)
    mask = {"attention_mask": torch.ones(batch, rows, dtype=torch.long)}
    return model, given | mask | {"position_ids": torch.full((batch, 1), rows - 1)}


ONE, EIGHT = (2048, 8192, 32), (4096, 14336, 32)
CASES = (
    ManyBoardsCase("BERT-Large", "xnn2", 24, bert, BERT_ROWS),
    ManyBoardsCase("Llama 3.2 1B, prompt", "xnn", 16, partial(llama, *ONE, False), PROMPT),
    ManyBoardsCase("Llama 3.2 1B, step", "xnn", 16, partial(llama, *ONE, True), 1),
    ManyBoardsCase("Llama 3.1 8B, prompt", "xnn", 32, partial(llama, *EIGHT, False), PROMPT),
    ManyBoardsCase("Llama 3.1 8B, step", "xnn", 32, partial(llama, *EIGHT, True), 1),
)


def parts_of(
    case: ManyBoardsCase, overlay: Overlay, batch: int, shards: int = 1, within: bool = False
) -> list[ChainPart]:
    """Return the parts of a model with all its layers, which `shards` boards compute. within: also cut within
    feed-forwards. Raises as `Pipeline.trace`, `opened` and `chain`."""
    model, example = case.make(batch)
    empty = without_values(model)
    assert empty is not None
    pipeline = Pipeline(overlay=overlay, boards=None).of_shapes
    network, _ = divided(chained(pipeline.trace(empty, example).network))
    network = network if shards == 1 else opened(network, shards)
    places = cut_places(network, within) if shards == 1 else shard_places(network, shards)
    names = [network.layers[place - 1].y for place in places]
    made = chain(network, overlay, lambda part: pipeline.build(part).program, places, shards)
    last = f"layers_{TRIED - 1}_"
    each = 3 if within else 2
    if len(names) < each * TRIED - 1 or not all(last in x for x in names[each * (TRIED - 1) : each * TRIED - 1]):
        raise ValueError(f"{case.name}: {len(made)} parts of {TRIED} layers: {', '.join(names)}")
    return [*made[:each], *made[each : 2 * each] * (case.layers - 2), *made[2 * each :]]


def rows(case: ManyBoardsCase, overlay: Overlay, batch: int) -> list[dict[str, Any]]:
    """Return a row for each number of boards that hold the model, as JSON objects. Raises as `parts_of`."""
    halves, launch_s = parts_of(case, overlay, batch), launch_seconds(overlay)
    finer = parts_of(case, overlay, batch, within=True) if overlay.lanes is None else halves
    whole, longest = sum(part.seconds for part in halves), max(part.seconds for part in finer)
    found = []
    for boards in BOARDS:
        parts, cuts = halves, least_slowest(halves, boards, overlay.banks, launch_s)
        if cuts is None:
            continue
        slowest = slowest_seconds(parts, cuts, launch_s)
        if is_uneven(parts, cuts, launch_s):
            found_cuts = least_slowest(finer, boards, overlay.banks, launch_s)
            if found_cuts is not None and slowest_seconds(finer, found_cuts, launch_s) < slowest:
                parts, cuts, slowest = finer, found_cuts, slowest_seconds(finer, found_cuts, launch_s)
        links = [parts[cut].link_s for cut in cuts]
        least_link = min((part.link_s for part in parts[1:]), default=0.0) if boards > 1 else 0.0
        bound = max(launch_s + max(whole / boards, longest), least_link)
        found.append(
            {
                "model": case.name,
                "overlay": overlay.name,
                "batch": batch,
                "boards": boards,
                "result_ms": 1e3 * slowest,
                "latency_ms": 1e3 * (boards * launch_s + sum(part.seconds for part in parts) + sum(links)),
                "tokens_per_s": batch * case.tokens / slowest,
                "link_ms": 1e3 * max(links, default=0.0),
                "bound_ms": 1e3 * bound,
                "of_bound": bound / slowest,
                "of_boards": (launch_s + whole) / boards / slowest,
            }
        )
    return found


def shard_row(case: ManyBoardsCase, overlay: Overlay, batch: int, shards: int) -> dict[str, Any]:
    """Return the latency of a call with shards, beside that of stages alone, as a JSON object. shards: how many boards
    compute each stage; there are as few stages as hold the model. Raises as `parts_of`."""
    parts, launch_s = parts_of(case, overlay, batch, shards), launch_seconds(overlay)
    plain = parts_of(case, overlay, batch)
    count = fewest(parts, overlay.banks)
    if count is None:
        raise ValueError(f"{case.name}: shards={shards} do not hold a layer")
    latencies = []
    for chosen, boards, launch in ((parts, count, 0.0), (plain, count * shards, launch_s)):
        cuts = least_slowest(chosen, boards, overlay.banks, launch)
        of_links = None if cuts is None else sum(chosen[cut].link_s for cut in cuts)
        latencies.append(None if of_links is None else boards * launch + sum(x.seconds for x in chosen) + of_links)
    sharded, piped = latencies
    assert sharded is not None
    bound = (launch_s + sum(part.seconds for part in plain)) / shards
    return {
        "model": case.name,
        "overlay": overlay.name,
        "batch": batch,
        "shards": shards,
        "boards": count * shards,
        "latency_ms": 1e3 * sharded,
        "exchange_ms": 1e3 * sum(part.exchange_s for part in parts),
        "stages_latency_ms": None if piped is None else 1e3 * piped,
        "bound_ms": 1e3 * bound,
        "of_bound": bound / sharded,
    }


@click.command()
@click.option("--only", multiple=True, help="names of models, or pieces of them")
@click.option("--batch", "batches", multiple=True, type=int, default=BATCHES, show_default=True)
@click.option("--rate", "rates", multiple=True, metavar="NAME=VALUE", help="other rates, such as link_gbs=0.118")
@click.option("--shards", multiple=True, type=int, help="also print the latency if N boards compute each stage")
@click.option("--json", "as_json", is_flag=True, help="one JSON object a row")
def main(
    only: tuple[str, ...], batches: tuple[int, ...], rates: tuple[str, ...], shards: tuple[int, ...], as_json: bool
) -> None:
    """Print a row for each model, batch and number of boards or shards."""
    given = {name: float(value) for name, _, value in (rate.partition("=") for rate in rates)}
    for case in CASES:
        if only and not any(piece in case.name for piece in only):
            continue
        for batch in batches:
            overlay = Pipeline.named(case.overlay).overlay.with_rates(**given)
            for number in shards:
                row = shard_row(case, overlay, batch, number)
                columns = ("latency_ms", "exchange_ms", "stages_latency_ms", "bound_ms", "of_bound")
                numbers = " | ".join("-" if row[x] is None else f"{row[x]:.2f}" for x in columns)
                line = f"| {case.name} | {batch} | {number} | {row['boards']} | {numbers} |"
                click.echo(json.dumps(row) if as_json else line)
            for row in () if shards else rows(case, overlay, batch):
                numbers = " | ".join(f"{row[x]:.2f}" for x in ("result_ms", "latency_ms", "link_ms", "bound_ms"))
                shares = " | ".join(f"{row[x]:.2f}" for x in ("of_bound", "of_boards"))
                line = f"| {case.name} | {batch} | {row['boards']} | {numbers} | {shares} | {row['tokens_per_s']:.1f} |"
                click.echo(json.dumps(row) if as_json else line)


if __name__ == "__main__":
    main()
