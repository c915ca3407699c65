"""`rsn generate`: text of a language model, on machines that are generated for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.deferred import deferred
from ..base.durations import duration
from ..base.errors import TensorError, WrongResultError, require, require_torch
from ..base.files import write_bytes
from ..base.other_libraries import silence_other_libraries
from ..host.generation import Decoder, IntegerReference, Slots, machine_files
from ..streams.placing.devices import DEVICES, device_named
from .compile import knobs_of
from .options import JSON, Count, Options, option, with_options
from .progress import stepping, working
from .rows16 import CALLS, ROWS16, UNTIL, chosen_rows16

if TYPE_CHECKING:
    from torch import nn

    from ..rsnlib import models, quantised_cache, static_cache
    from ..rsnlib.streamed import block as blocks
    from ..rsnlib.streamed import decoding, figures
    from ..rsnlib.streamed import generate as generating
    from ..rsnlib.streamed import search as searching
else:
    models = deferred("rsn.rsnlib.models")
    quantised_cache = deferred("rsn.rsnlib.quantised_cache")
    static_cache = deferred("rsn.rsnlib.static_cache")
    decoding = deferred("rsn.rsnlib.streamed.decoding")
    figures = deferred("rsn.rsnlib.streamed.figures")
    searching = deferred("rsn.rsnlib.streamed.search")


class GenerateOptions(Options):
    """The options of `rsn generate`."""

    machine: str = option(
        "what runs the model: a machine of its own", type=click.Choice(["generated"]), default="generated"
    )
    overlay: str | None = option("instead of a machine of its own, an overlay", type=click.Choice(["xnn", "xnn8"]))
    rows16: str | None = option(
        ROWS16,
        "--rows16",
        metavar="PATH,...|auto",
    )
    rows16_calls: str | None = option(CALLS)
    rows16_until: float | None = option(UNTIL, metavar="NUMBER")
    onto: str = option(
        "the device that a machine must fit on",
        default="u55c",
        type=click.Choice(list(DEVICES), case_sensitive=False),
    )
    prompt: str | None = option("text of the prompt, with a folder that has a tokenizer")
    tokens: str | None = option("tokens of the prompt, such as 17,4,60 [default: input_ids of the example]")
    answer: Count = option("tokens of the answer, at most", "--max-tokens", default=32)
    capacity: int | None = option(
        "rows of the caches [default: the tokens of prompt and answer]", type=click.IntRange(2)
    )
    on_chip: Count | None = option("most bytes on the chip [default: 75 % of the device]")
    chosen: tuple[str, ...] = option(
        "rows, columns, depth of tiles; outward, packed, kernels, arrays; limits unroll, lanes, port, together",
        "--set",
        metavar="KNOB=VALUE",
    )
    two: bool = option("a machine for prompts and one for steps, each balanced for itself", "--two-machines")
    rows: Count | None = option("tokens of a run of the one machine, at most [default: those of the prompt]")
    head: bool = option("the last norm and the product with the vocabulary on the machine, too", "--head")
    cache: str = option(
        "keys and values in float32, or in int8 with scales, whose products are of integers",
        type=click.Choice(["float32", "int8"]),
        default="float32",
    )
    no_search: bool = option("tiles of 32 x 64 x 64 at once, not the fastest of a few", "--no-search")
    seed: int = option("seed of random weights of FILE.py:CALLABLE", default=0)
    hls: str | None = option(
        "folder to write for a board: C++ of the machines, a host program, the model",
        type=click.Path(file_okay=False),
    )
    compares: bool = option("compare the tokens with those of PyTorch, of xnn8 with its integers", "--compare")
    as_json: bool = JSON


@click.command(name="generate")
@click.argument("model")
@with_options(GenerateOptions)
def generate_command(model: str, options: GenerateOptions) -> None:
    """Generate text with a language model, on a machine of its own.

    MODEL is a folder of a causal language model of transformers, or FILE.py:CALLABLE that returns one, or one and its
    example inputs. Its layers must differ in constants only: the machine goes through all of them. It reads the prompt
    and takes the steps of one token. PyTorch computes what is before the layers, and behind them unless the machine
    does (--head); the modelled times leave that out (docs/stream-machines.md).
    """
    require_torch("generating text")
    silence_other_libraries()
    knobs = knobs_of(options.chosen)
    fixed = {text.partition("=")[0] for text in options.chosen}
    device = device_named(options.onto)
    for name in ("rows16", "rows16_calls", "rows16_until") if options.overlay != "xnn8" else ():
        if getattr(options, name) is not None:
            raise click.UsageError(f"--{name.replace('_', '-')}: only with --overlay xnn8")
    if options.overlay is not None:
        if options.cache != "float32":
            raise click.UsageError("--cache is of a machine of its own")
        _on_overlay(model, options.overlay, options)
        return
    if options.two and options.rows is not None:
        raise click.UsageError("--rows is of one machine, and --two-machines makes two")
    about = f"generating a machine for {model} on {options.onto}"
    first, *others = ["machine of a step", "machine of the prompt"] if options.two else ["machine"]
    with stepping(about, ("load the model", first, *others)) as steps:
        module, tokenizer, prompt = _loaded(model, options)
        if not prompt:
            raise TensorError("the prompt has no tokens")
        steps.done("load the model")
        is_int8 = options.cache == "int8"
        if is_int8:
            quantised_cache.attend_in_integers(module)
        capacity = options.capacity or len(prompt) + options.answer
        rows = None if options.two else min(options.rows or len(prompt), capacity)

        def cost(made: generating.Generated) -> float:
            """The seconds of prompt and answer, or of the one part for which the machine is."""
            if rows is None:
                return made.latency_s
            whole, rest = divmod(len(prompt), rows)
            prompt_s = whole * made.latency_s + (made.latency_of(rest) if rest else 0)
            return prompt_s + (options.answer - 1) * made.latency_of(1)

        def place(block: blocks.Streamed) -> generating.Generated:
            tried = (knobs,) if options.no_search else searching.tile_candidates(block, knobs, fixed)
            return searching.fastest(block, device, tried, on_chip_bytes=options.on_chip, cost=cost)

        decoder = decoding.MachineDecoder(
            module, place, capacity=capacity, rows=rows, head=options.head, integers=is_int8
        )
        steps.done(first)
        machines = {"machine": decoder.step_machine}
        if options.two:
            machines = {"prompt": decoder.prompt_machine(len(prompt)), "step": decoder.step_machine}
            steps.done("machine of the prompt")
    # Before the text, which takes longer than what may be refused here.
    files = machine_files.machine_files(decoder, len(prompt)) if options.hls is not None else {}
    with working(f"running {model}") as progress:
        text = decoder.generate(prompt, options.answer, _ends(module), progress)
    facts = {
        "prompt": prompt,
        "tokens": text.tokens,
        "capacity": capacity,
        "layers": decoder.step_machine.streamed.layers,
        "head": options.head,
        "ttft_s": text.ttft_s,
        "tokens_per_s": text.tokens_per_s,
        "machines": {name: figures.facts(made) for name, made in machines.items()},
    }
    if options.hls is not None:
        for name, content in files.items():
            path = Path(options.hls) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content if isinstance(content, bytes) else content.encode())
        facts["hls"] = options.hls
    if tokenizer is not None:
        facts["text"] = tokenizer.decode(text.tokens)
    wanted, ahead = None, list[float]()
    if options.compares:
        wanted, ahead = _in_pytorch(module, prompt, text.tokens, capacity, integers=is_int8)
        facts["pytorch_tokens"] = wanted
    click.echo(json.dumps(facts) if options.as_json else "\n".join(_lines(facts, machines)))
    _check_same(text.tokens, wanted, "PyTorch", ahead)


def _on_overlay(model: str, overlay: str, options: GenerateOptions) -> None:
    """Generate the most probable text on an overlay, whose caches stay on the board."""
    with stepping(f"compiling {model} for {overlay}", ("load the model", "program of a step", "prompt")) as steps:
        module, tokenizer, prompt = _loaded(model, options)
        if not prompt:
            raise TensorError("the prompt has no tokens")
        steps.done("load the model")
        capacity = options.capacity or len(prompt) + options.answer
        with steps.paused():
            kept = module.config.use_cache
            module.config.use_cache = False  # a call of the choice is a prompt alone
            rows16 = chosen_rows16(options.rows16, options.rows16_calls, options.rows16_until, module)
            module.config.use_cache = kept
        decoder = Decoder(module, slots=1, capacity=capacity, overlay=overlay, verify="never", rows16=rows16)
        steps.done("program of a step")
        logits = decoder.prefill(0, prompt)
    with working(f"running {model}") as progress, decoder:
        first = decoder.last_run
        tokens = _most_probable(decoder, logits, options.answer, _ends(module), progress)
    last = decoder.last_run
    assert first is not None
    assert last is not None
    facts: dict[str, Any] = {"prompt": prompt, "tokens": tokens, "overlay": overlay, "capacity": capacity}
    facts |= {"ttft_s": first.latency_s, "tokens_per_s": 1 / last.latency_s if len(tokens) > 1 else None}
    if tokenizer is not None:
        facts["text"] = tokenizer.decode(tokens)
    wanted, ahead, whose = None, list[float](), "its integers" if overlay == "xnn8" else "PyTorch"
    if options.compares and overlay == "xnn8":
        reference = IntegerReference(module, capacity=capacity, rows16=rows16)
        wanted = _most_probable(reference, reference.prefill(0, prompt), options.answer, _ends(module))
    elif options.compares:
        wanted, ahead = _in_pytorch(module, prompt, tokens, capacity)
    lines = [f"tokens         {' '.join(map(str, tokens))}"]
    if "text" in facts:
        lines.append(f"text           {json.dumps(facts['text'], ensure_ascii=False)}")
    if wanted is not None and wanted == tokens:
        lines.append(f"compared       the same {len(tokens)} tokens by {whose}")
    lines.append(f"TTFT           {duration(first.latency_s)} for {len(prompt)} tokens (modelled)")
    if len(tokens) > 1:
        lines.append(f"tokens/s       {1 / last.latency_s:,.2f} (modelled)")
    click.echo(json.dumps(facts) if options.as_json else "\n".join(lines))
    _check_same(tokens, wanted, whose, ahead)


def _most_probable(
    decoder: Slots, logits: Any, count: int, ends: Sequence[int], progress: Callable[[float], None] = lambda share: None
) -> list[int]:
    """The most probable tokens of the sequence in the first slot, from the logits behind its prompt on."""
    tokens = [int(logits.argmax())]
    while len(tokens) < count and tokens[-1] not in ends:
        progress(len(tokens) / count)
        tokens.append(int(decoder.step({0: tokens[-1]})[0].argmax()))
    return tokens


def _check_same(tokens: Sequence[int], wanted: Sequence[int] | None, whose: str, ahead: Sequence[float] = ()) -> None:
    """Raise `WrongResultError` for tokens of an answer that differ from those that are wanted; None wants none. ahead:
    as `_in_pytorch` returns it; nothing for integers, which must be equal."""
    if wanted is not None and list(wanted) != list(tokens):
        at = next(k for k, pair in enumerate(zip(wanted, tokens, strict=True)) if pair[0] != pair[1])
        by = f", whose logit is larger by {ahead[at]:.2g} of the largest" if ahead else ""
        raise WrongResultError(f"token {at + 1} of the answer is {tokens[at]}, in {whose} {wanted[at]}{by}")


def _lines(facts: dict[str, Any], machines: dict[str, generating.Generated]) -> list[str]:
    """The answer and its modelled times as text."""
    *_, made = machines.values()
    kernels = max(len(machine.streamed.dataflow.nodes) for machine in machines.values())
    lines = [f"tokens         {' '.join(map(str, facts['tokens']))}"]
    if "text" in facts:
        lines.append(f"text           {json.dumps(facts['text'], ensure_ascii=False)}")
    if "pytorch_tokens" in facts and facts["pytorch_tokens"] == facts["tokens"]:
        lines.append(f"PyTorch        the same {len(facts['tokens'])} tokens")
    what = "two machines of up to" if len(machines) > 1 else "one of"
    lines.append(
        f"machines       {what} {kernels} kernels, which go through {facts['layers']} layers; {made.device.name}"
    )
    products = Counter(figures.products(made.streamed).values())
    counted = ", ".join(f"{count} of {types}" for types, count in sorted(products.items()))
    lines.append(f"products       {counted}")
    timed = "modelled, layers and head" if facts["head"] else "modelled, layers only"
    lines.append(f"TTFT           {duration(facts['ttft_s'])} for {len(facts['prompt'])} tokens ({timed})")
    if facts["tokens_per_s"]:
        lines.append(f"tokens/s       {facts['tokens_per_s']:,.2f} ({timed})")
    if "hls" in facts:
        lines.append(f"for a board    {Path(facts['hls']) / 'host.cpp'}, the C++ of the machines, the model")
    for name, machine in machines.items():
        bounds = ", ".join(f"{bound} {duration(seconds)}" for bound, seconds in machine.bounds_s.items())
        lines += ["", f"{name:<14} {duration(machine.latency_s)} with {figures.tiles(machine.streamed.knobs)}"]
        lines.append(f"bounds         {bounds} (busiest: {machine.slowest[0]})")
    return lines


def _loaded(model: str, options: GenerateOptions) -> tuple[nn.Module, Any, list[int]]:
    """The model, its tokenizer (None if it has none), and the tokens of the prompt. Raises `TensorError` for a folder
    that holds no language model, and `click.UsageError` for a prompt that is given in no way, or in two."""
    if options.prompt is not None and options.tokens is not None:
        raise click.UsageError("--prompt and --tokens both give the prompt")
    if not Path(model).is_dir():
        if ":" not in model and not model.endswith((".py", ".onnx", ".pt2")):
            raise TensorError(f"{model}: neither a folder of a language model nor FILE.py:CALLABLE")
        if options.prompt is not None:
            raise click.UsageError(f"--prompt: {model} has no tokenizer; give --tokens")
        module, example = models.load_spec(model, seed=options.seed)
        named = example if isinstance(example, dict) else dict(zip(("input_ids",), example, strict=False))
        given = named.get("input_ids")
        if options.tokens is None and (given is None or given.ndim != 2 or given.shape[0] != 1):
            raise click.UsageError(f"the example of {model} has no input_ids of one sequence; give --tokens")
        if given is None or options.tokens is not None:
            return module, None, _tokens(options.tokens)
        return module, None, given[0].tolist()
    require("transformers", "generation", "pip install transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
        tokenizer: Any = AutoTokenizer.from_pretrained(model) if options.prompt is not None else None
    except Exception as e:  # of several packages, each with its own errors
        raise TensorError(f"{model}: no language model of transformers: {str(e).partition(chr(10))[0]}") from None
    if options.prompt is not None:
        return loaded, tokenizer, tokenizer(options.prompt)["input_ids"]
    if options.tokens is None:
        raise click.UsageError("give --prompt, a text, or --tokens")
    return loaded, None, _tokens(options.tokens)


def _tokens(text: str | None) -> list[int]:
    try:
        return [int(token) for token in (text or "").split(",")]
    except ValueError:
        raise click.UsageError(f"--tokens {text}: whole numbers and commas, such as 17,4,60") from None


def _ends(module: nn.Module) -> Sequence[int]:
    """The tokens that end a text."""
    config: Any = getattr(module, "generation_config", None)
    ends = None if config is None else config.eos_token_id
    return () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)


def _in_pytorch(
    module: Any, prompt: list[int], answer: Sequence[int], capacity: int, integers: bool = False
) -> tuple[list[int], list[float]]:
    """As many of the most probable tokens by the model in PyTorch as an answer has, and for each of them how much its
    logit is larger than that of the answer's token, as a part of the largest magnitude. It decodes as machines do, with
    a cache of this capacity: without a cache PyTorch rounds otherwise, and may get other integers. integers: it is
    one of int8."""
    import torch

    tokens, ahead = list[int](), list[float]()
    cache = static_cache.empty_cache(module.config, 1, capacity, capacity, integers=integers)
    with torch.no_grad():
        for token in answer:
            given = torch.tensor([tokens[-1:] or prompt])
            logits = module(given, past_key_values=cache, use_cache=True).logits[0, -1]
            tokens.append(int(logits.argmax()))
            ahead.append(float((logits[tokens[-1]] - logits[token]) / logits.abs().max()))
    return tokens, ahead
