"""Models on machines that go through all their layers: results and texts are those of PyTorch."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    Int8StaticActivationInt8WeightConfig,
    quantize_,
)
from torchao.quantization.granularity import PerGroup, PerRow, PerTensor

from rsn.assembler import container
from rsn.base.errors import CacheFull, PositionError, ProgramError, PromptTooLong, TensorError, UnsupportedError
from rsn.benchmarks.hls_cycles import counted
from rsn.host.generation.machine_files import machine_files, native_program, programs_of
from rsn.host.native_tasks import run_native, to_memory
from rsn.host.tasks import run_tasks
from rsn.hw.sim.tasks import run_on_tensors
from rsn.hw.versal.csim.tasks import build_regions
from rsn.isa.overlays.tasks.overlay import program_of
from rsn.rsnlib.conv1d import conv1d_to_linear
from rsn.rsnlib.quantised_cache import attend_in_integers
from rsn.rsnlib.static_cache import empty_cache
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.rsnlib.streamed.balance import _Steps
from rsn.rsnlib.streamed.decoding import DecoderProgram, MachineDecoder
from rsn.rsnlib.streamed.generate import DEFAULT, place
from rsn.streams.hls.emit import word_type
from rsn.streams.hls.native import HEADERS
from rsn.streams.placing.devices import U55C
from rsn.tests.compilers import quick_compiler
from rsn.tests.effort import full, long
from rsn.tests.rsnlib.decoder_models import VOCABULARY, decoder_model, with_cache
from rsn.tests.streams.test_hls import built

SMALL = Knobs(rows=4, columns=8, depth=16, packed=1)
PROMPT = [5, 17, 3, 60, 41, 8, 8]
XRT = Path("/usr/include/xrt")


def decoder(
    model: nn.Module, capacity: int = 40, rows: int | None = None, head: bool = False, **knobs: int
) -> MachineDecoder:
    chosen = replace(DEFAULT, **{"columns": 16, "depth": 16, **knobs})
    made = partial(place, device=U55C, knobs=chosen)
    return MachineDecoder(model, made, capacity=capacity, rows=rows, head=head)


def by_pytorch(model: Any, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def agree(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    for own, other in zip(mine["past_key_values"].layers, theirs["past_key_values"].layers, strict=True):
        torch.testing.assert_close(own.keys, other.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own.values, other.values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("gpt2", 1),
        long("llama", 5),
        *(
            full(*case)
            for case in (("gpt2", 5), ("gemma3", 5), ("llama", 1), ("qwen2", 1), ("qwen2", 5), ("gemma3", 1))
        ),
    ],
)
def test_one_program_goes_through_all_layers(name: str, rows: int) -> None:
    model = decoder_model(name)
    arguments = with_cache(model, torch.randint(0, VOCABULARY, (1, rows)), 6, 16)
    made = streamed(model, arguments, SMALL, repeated=True)
    assert not made.report.findings, made.report
    assert made.layers == 3
    assert "for layer in range(3):" in made.text
    groups = {node.name: k for k, node in enumerate(made.dataflow.nodes)}
    parted = made.changed(groups=groups)
    assert not parted.report.findings, parted.report
    split = made.changed(replace(SMALL, kernels=2))
    assert not split.report.findings, split.report
    theirs = copy.deepcopy(arguments)
    with torch.no_grad():
        wanted = model(**theirs).logits
    for way in (made, parted, split):
        mine = copy.deepcopy(arguments)
        torch.testing.assert_close(way.run(**mine).logits, wanted, rtol=1e-4, atol=1e-4)
        agree(mine, theirs)


@pytest.mark.parametrize(
    ("name", "head"),
    [long("gpt2", True), *(full(*case) for case in (("llama", False), ("llama", True), ("gemma3", True)))],
)
def test_a_program_of_any_length_goes_through_all_layers(name: str, head: bool) -> None:
    """Between groups, too, where results of each layer have a place of their own; and behind the layers, with a
    vocabulary that no tile divides."""
    model = decoder_model(name, **({"n_layer": 2} if name == "gpt2" else {}), vocab_size=97)
    example = with_cache(model, torch.zeros(1, 6, dtype=torch.long), 0, 16)
    made = streamed(model, example, SMALL, repeated=True, any_length=True, head=head)
    assert [x.op for x in made.block.graph.kernels if x.op == "select"] == ["select"] * head
    parted = made.changed(groups={node.name: k for k, node in enumerate(made.dataflow.nodes)})
    for way in (made, parted):
        assert not way.report.findings, way.report
        latencies = []
        for rows, position in ((6, 0), (1, 6), (5, 2)):
            mine = with_cache(model, torch.randint(0, VOCABULARY, (1, rows)), position, 16)
            theirs, before = copy.deepcopy(mine), copy.deepcopy(mine)
            with torch.no_grad():
                wanted = model(**theirs).logits
            results, run = way.timed_run(**mine)
            torch.testing.assert_close(results.logits, wanted, rtol=1e-4, atol=1e-4)
            agree(mine, theirs)
            # Rows that only cover the last tile are stored nowhere.
            for own, other in zip(mine["past_key_values"].layers, before["past_key_values"].layers, strict=True):
                assert torch.equal(own.keys[:, :, position + rows :], other.keys[:, :, position + rows :])
            latencies.append(run.latency_s)
        # Pipelines that a position begins, or leaves empty, are some cycles.
        assert latencies[1] < latencies[0] == pytest.approx(latencies[2], rel=1e-3)


def test_a_program_of_a_few_layers_has_the_same_tasks() -> None:
    """So machines are sized for a few layers. Each layer takes the same time, but for what overlaps."""
    model = decoder_model("gpt2")
    made = streamed(model, with_cache(model, torch.zeros(1, 1, dtype=torch.long), 6, 16), SMALL, repeated=True)
    fewer = made.changed(layers=2)
    names = [[t.name for t in of.report.region.streams] for of in (made, fewer)]
    assert names[0] == names[1]
    one, two, three = (
        of.sized().times(of.sized().declared).latency
        for of in (made.changed(layers=1), fewer, made)  # type: ignore[union-attr]
    )
    assert two < 2 * one
    assert three - two == two - one or three < 3 * one


@pytest.mark.parametrize(
    ("name", "rows", "head"),
    [full("gpt2", 3, True), full("llama", 3, False), long("gemma3", 3, True), full("gemma3", 7, False)],
)
def test_one_machine_reads_prompts_and_takes_steps(name: str, rows: int, head: bool) -> None:
    """Of gemma3 beyond its window of 8 tokens."""
    fewer = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    model = decoder_model(name, **({"n_layer": 2} if name == "gpt2" else fewer if name == "gemma3" else {}))
    made = decoder(model, 24, rows, head)
    count = 6 if name == "gpt2" else 8
    text = made.generate(PROMPT, count)
    assert text.tokens == by_pytorch(model, PROMPT, count)
    assert len(text.prompt) == -(-len(PROMPT) // rows)
    assert text.ttft_s == pytest.approx(sum(run.latency_s for run in text.prompt))
    assert made.prompt_machine(len(PROMPT)) is made.step_machine
    assert made.generate(PROMPT[:2], 2).tokens == by_pytorch(model, PROMPT[:2], 2)


@pytest.mark.parametrize("name", [full("llama"), full("qwen2"), full("quantised")])
def test_a_text_is_that_of_pytorch(name: str) -> None:
    """Those of other models: `test_the_host_program`."""
    model = decoder_model("llama" if name == "quantised" else name)
    if name == "quantised":
        four_bits = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
        quantize_(model.model, four_bits)  # type: ignore[arg-type]
    check_text(decoder(model), model)


def check_text(made: MachineDecoder, model: nn.Module) -> None:
    text = made.generate(PROMPT, 32)
    assert text.tokens == by_pytorch(model, PROMPT, 32)
    assert len(set(text.tokens)) > 2
    assert text.ttft_s == pytest.approx(made.prompt_machine(len(PROMPT)).latency_s)
    assert text.steps[-1].latency_s == pytest.approx(made.step_machine.latency_s)
    assert text.tokens_per_s == pytest.approx(1 / made.step_machine.latency_s)
    again = made.generate(PROMPT, 3)  # with what the caches still hold
    assert again.tokens == text.tokens[:3]


@pytest.mark.parametrize("name", [long("llama"), full("qwen2")])
def test_a_text_with_a_cache_of_integers(name: str) -> None:
    """And with products of integers in the attention."""
    model = decoder_model(name, num_hidden_layers=2)
    attend_in_integers(model)
    quantize_(model.model, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(16)))  # type: ignore[arg-type]
    knobs = replace(DEFAULT, columns=16, depth=16)
    made = MachineDecoder(model, partial(place, device=U55C, knobs=knobs), capacity=16, rows=3, integers=True)
    text = made.generate(PROMPT, 8)
    cache = empty_cache(model.config, 1, 16, integers=True)
    wanted: list[int] = []
    with torch.no_grad():
        for _ in range(8):
            given = torch.tensor([wanted[-1:] or PROMPT])
            wanted.append(int(model(given, past_key_values=cache).logits[0, -1].argmax()))
    assert text.tokens == wanted
    program = made.program(1)
    assert len(program.caches) == 4
    assert Counter(program.written.dtypes[x] for x in program.caches.values()) == {"i8": 2, "f32": 2}
    lying = [torch.from_numpy(x) for x in program.read_caches().values() if x.dtype == np.int8]
    for found, part in zip(lying, ("keys", "values"), strict=True):
        rows = torch.stack([getattr(layer, part)[0] for layer in cache.layers])
        # A step of an integer, where rounding is between two of them.
        assert (found.reshape(rows.shape).int() - rows.int()).abs().max() <= 1


class Chain(nn.Module):
    """Layers whose results are products, and a head; by default no tile divides their columns."""

    def __init__(self, width: int = 13, inner: int = 24, words: int = 29, *first: nn.Module) -> None:
        super().__init__()
        layers = (nn.Sequential(*first, nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)) for _ in range(3))
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.head(self.norm(x)[:, row])
        return y


@pytest.mark.parametrize("kernels", [2, long(1)])
def test_a_head_takes_any_row(kernels: int) -> None:
    torch.manual_seed(0)
    model, x = Chain().eval(), torch.randn(1, 10, 13)
    knobs = Knobs(rows=4, columns=8, depth=8, packed=1, kernels=kernels)
    made = streamed(model, (x, torch.tensor([9])), knobs, repeated=True, head=True)
    assert not made.report.findings, made.report
    assert (made.layers, made.written.shapes["head_result"]) == (3, (1, 4, 1, 8))
    assert [made.times_of(x.name) for x in made.block.graph.kernels] == [3, 3, 3, 1, 1, 1]
    with torch.no_grad():
        for row in (9, 3, 0):
            torch.testing.assert_close(made.run(x, torch.tensor([row])), model(x, torch.tensor([row])))
    with pytest.raises(TensorError, match="position 10 is beyond"):
        made.run(x, torch.tensor([10]))


def test_tiles_of_a_vocabulary_have_wide_words() -> None:
    """A tile of 1,187 of 2 x 1,187 columns would pass the streams number by number."""
    torch.manual_seed(0)
    model, x, row = Chain(16, 16, 2 * 1187).eval(), torch.randn(1, 1, 16), torch.tensor([0])
    made = streamed(model, (x, row), Knobs(columns=1280, packed=1), repeated=True, head=True)
    (tile,) = (plan.sizes["tn"] for y, plan in made.plans.items() if y.name == "head")
    assert tile % 32 == 0
    with torch.no_grad():
        torch.testing.assert_close(made.run(x, row), model(x, row))


def test_a_head_of_as_many_rows_shares_the_arrays_of_layers() -> None:
    """With more columns than it has, off the chip and in its result. Balance counts all layers, of which it sees two.
    Beside layers of more rows it has its own multipliers."""
    torch.manual_seed(0)
    model, x, row = Chain().eval(), torch.randn(1, 1, 13), torch.tensor([0])
    knobs = Knobs(rows=4, columns=8, depth=8, arrays=2)
    made = streamed(model, (x, row), knobs, repeated=True, head=True)
    assert not made.report.findings, made.report
    assert {y.op for y in made.plans if y.name.startswith(("linear", "head", "products"))} == {"epilogue", "array"}
    assert made.written.shapes["head_result"] == (1, 30)
    alone = made.changed(layers=1)
    assert made.written.shapes["products_1_weight"][0] == 3 * 12 * 13 + 15 * 13
    assert alone.written.shapes["products_1_weight"][0] == 12 * 13 + 15 * 13
    loads = {moved.tensor: moved.cost for moved in made.written.moved.values()}
    assert loads["products_1_weight"] == (3 * 12 * 13 + 15 * 13) * made.knobs.port  # each number a word
    with torch.no_grad():
        wanted = model(x, row)
        torch.testing.assert_close(made.run(x, row), wanted)
        parted = made.changed(groups={node.name: k for k, node in enumerate(made.dataflow.nodes)})
        torch.testing.assert_close(parted.run(x, row), wanted)
    times = made.sized().together({})
    assert times is not None
    assert _Steps(made.changed(layers=2), 1 << 20).cycles([]) == pytest.approx(times.latency, rel=0.02)
    of_rows = streamed(model, (torch.randn(1, 3, 13), row), knobs, repeated=True, head=True)
    assert [y.name for y in of_rows.plans if y.op == "linear"] == ["head"]


@pytest.mark.long
def test_the_source_of_a_head_in_arrays_is_its_machine(tmp_path: Path) -> None:
    """With the bits of the engine, and no process that takes longer than all: with int4 weights in groups, and more
    words than whole tiles of the arrays have."""
    torch.manual_seed(0)
    model, x, row = Chain(64, 96, 150, nn.LayerNorm(64)).eval(), torch.randn(1, 1, 64), torch.tensor([0])
    quantize_(model, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))
    knobs = replace(DEFAULT, rows=1, columns=16, depth=32, arrays=2, unroll=128)
    made = place(streamed(model, (x, row), repeated=True, head=True), U55C, knobs)
    assert not [y for y in made.streamed.plans if y.op == "linear"]
    with torch.no_grad():
        wanted = model(x, row)
    assert (made.streamed.run(x, row) - wanted).abs().max() < 1e-6 * wanted.abs().max()
    tensors = made.streamed.tensors(x, row)
    region = built(tmp_path, {"head": program_of(made.machine.overlay)})["head"]
    found, outputs = run_native(region, tensors), run_tasks(made.machine, tensors).outputs
    assert all(found[name].tobytes() == outputs[name].tobytes() for name in outputs)
    file = tmp_path / "head.bin"
    container.write(made.machine, file)
    cycles = counted(file)
    assert not cycles.report.findings
    assert cycles.modelled == pytest.approx(made.cycles, abs=2)
    assert max(taken.cycles for _, taken in cycles.report.processes) <= cycles.modelled


@pytest.mark.long
def test_a_quantised_product_with_the_vocabulary() -> None:
    """Two kernels share its columns: more than the vocabulary has, which is prime."""
    model = decoder_model("llama", num_hidden_layers=1, vocab_size=97)
    four_bits = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16))
    quantize_(model, four_bits)
    made = decoder(model, 20, 4, head=True, kernels=2)
    text = made.generate(PROMPT, 3)
    assert text.tokens == by_pytorch(model, PROMPT, 3)
    written = made.program(1).written
    assert written.shape_of_one("lm_head_result") == (1, 2, 1, 52)
    assert written.dtypes["lm_head_weight_0"] == written.dtypes["lm_head_weight_1"] == "i4"


def test_what_a_decoder_refuses() -> None:
    model = decoder_model("gpt2", n_layer=1)
    made = decoder(model, 4)
    with pytest.raises(TensorError, match="a step needs a prompt before it"):
        made.step(1)
    with pytest.raises(PromptTooLong, match="a prompt of 5 tokens; a sequence has at most 4"):
        made.prefill([1] * 5)
    with pytest.raises(TensorError, match="a prompt without tokens"):
        made.prefill([])
    with pytest.raises(TensorError, match="token 96; the vocabulary has 96"):
        made.prefill([96])
    with pytest.raises(TensorError, match="an answer of 0 tokens; the least is 1"):
        made.generate([1], 0)
    tokens = made.generate([1], 4).tokens
    assert tokens == by_pytorch(model, [1], 4)
    with pytest.raises(CacheFull, match="the sequence has 4 tokens"):
        made.step(1)
    with pytest.raises(PositionError, match="sequences of 65 tokens; the model has positions for 64"):
        decoder(model, 65)
    with pytest.raises(UnsupportedError, match="Linear: no language model of transformers"):
        decoder(nn.Linear(2, 2))
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
    with pytest.raises(TensorError, match="has changed since this program was made"):
        made.prefill([1])


@pytest.mark.long
def test_a_time_is_of_a_length_that_the_machine_takes() -> None:
    model = decoder_model("gpt2", n_layer=1)
    one, fixed = (decoder(model, 8, rows).step_machine for rows in (4, None))
    assert one.latency_of(4) == one.latency_s
    for length in (0, 5):
        with pytest.raises(ProgramError, match=f"length = {length} is not from 1 to 4, as decoder states"):
            one.latency_of(length)
    with pytest.raises(ProgramError, match="step has no size length"):
        fixed.latency_of(1)


class Scaled(nn.Module):
    """A layer whose result has a static scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.product = scale, nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        limits = self.scale, 0, -128, 127, torch.int8
        integers = torch.ops.quantized_decomposed.quantize_per_tensor(self.product(x), *limits)
        y: torch.Tensor = torch.ops.quantized_decomposed.dequantize_per_tensor(integers, *limits)
        return y


class ScaledLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scaled(scale) for scale in (0.1, 0.2))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        y: torch.Tensor = self.norm(x)
        return y


def test_layers_have_their_own_numbers() -> None:
    model, x = ScaledLayers().eval(), torch.randn(2, 8)
    made = streamed(model, (x,), SMALL, repeated=True)
    assert not made.report.findings, made.report
    with torch.no_grad():
        torch.testing.assert_close(made.run(x), model(x))


@pytest.mark.parametrize(
    ("arrays", "kernels", "natively"), [full(0, 1, False), full(2, 1, False), full(0, 2, False), long(2, 1, True)]
)
def test_layers_have_their_own_static_scales(arrays: int, kernels: int, natively: bool, tmp_path: Path) -> None:
    """With the bits of a program for one layer, one layer after the other; and those of PyTorch but for rounding."""
    torch.manual_seed(0)
    model, x, row = Chain(64, 96, 29, nn.LayerNorm(64)).eval(), torch.randn(1, 5, 64), torch.tensor([4])
    for number, layer in enumerate(model.modules()):
        if isinstance(layer, nn.Linear) and layer is not model.head:
            scale, granularity = torch.full((1, 1, 1), 0.01 + 0.003 * number), [PerTensor(), PerRow()]
            quantize_(layer, Int8StaticActivationInt8WeightConfig(act_quant_scale=scale, granularity=granularity))
    knobs = Knobs(rows=4, columns=16, depth=16, packed=1, arrays=arrays, kernels=kernels)
    made = streamed(model, (x, row), knobs, repeated=True)
    assert not made.report.findings, made.report
    assert made.written.shapes["linear_1_row_scale" if kernels == 1 else "linear_1_0_row_scale"] == (3, 96 // kernels)
    with torch.no_grad():
        torch.testing.assert_close(made.run(x, row), model(x, row), rtol=1e-5, atol=1e-5)
    (result,) = made.written.outputs.values()
    outputs, _ = run_on_tensors(made.machine, made.tensors(x, row))
    rows = x
    for layer in model.layers:
        rows = streamed(layer, (rows,), knobs).run(rows)
    assert made.written.elements(result, outputs[result]).tobytes() == rows.numpy().tobytes()
    if natively:
        region = built(tmp_path, {"layers": program_of(made.machine.overlay)})["layers"]
        assert run_native(region, made.tensors(x, row))[result].tobytes() == outputs[result].tobytes()


@pytest.mark.parametrize("arrays", [0, long(2)])
def test_layers_may_begin_with_a_quantised_product(arrays: int) -> None:
    """Scales and integers of the first layer's input depend on no tensor of a module."""
    torch.manual_seed(0)
    model, x, row = Chain(32, 64, 29).eval(), torch.randn(1, 5, 32), torch.tensor([4])
    quantize_(model, Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)))
    knobs = Knobs(rows=4, columns=16, depth=16, packed=1, arrays=arrays)
    made = streamed(model, (x, row), knobs, repeated=True)
    assert not made.report.findings, made.report
    assert made.layers == 3
    outputs, _ = run_on_tensors(made.machine, made.tensors(x, row))
    rows = x
    for layer in model.layers:
        rows = streamed(layer, (rows,), knobs).run(rows)
    (result,) = made.written.outputs.values()
    assert made.written.elements(result, outputs[result]).tobytes() == rows.numpy().tobytes()
    with torch.no_grad():
        wanted = model(x, row)
    assert (made.run(x, row) - wanted).abs().max() < 1e-6 * wanted.abs().max()


def test_layers_that_differ_are_refused() -> None:
    model = decoder_model("gpt2", n_layer=2)
    arguments = with_cache(model, torch.zeros(1, 1, dtype=torch.long), 0, 8)
    model.transformer.h[1].mlp.act = nn.Tanh().eval()
    with pytest.raises(UnsupportedError, match=r"transformer\.h\.1.* differs from .*transformer\.h\.0.*expression is"):
        streamed(model, arguments, SMALL, repeated=True)
    with pytest.raises(UnsupportedError, match="Linear has no layers in a ModuleList that compute"):
        streamed(nn.Linear(4, 4).eval(), (torch.randn(2, 4),), SMALL, repeated=True)


@pytest.mark.long
def test_hls_of_layers_gives_the_same_bits(tmp_path: Path) -> None:
    model = decoder_model("llama")
    arguments = with_cache(model, torch.randint(0, VOCABULARY, (1, 3)), 2, 16)
    made = streamed(model, arguments, SMALL, name="layers", repeated=True)
    tensors = made.tensors(**arguments)
    expected, _ = run_on_tensors(made.machine, tensors)
    got = run_native(built(tmp_path, {"layers": program_of(made.machine.overlay)})["layers"], tensors)
    assert {k: v.tobytes() for k, v in got.items()} == {k: v.tobytes() for k, v in expected.items()}


def host_on_stub(made: MachineDecoder, folder: Path) -> str:
    """C++ of the program for a board, and of its machines for this computer in place of XRT's kernels. folder: with the
    files of `machine_files`."""
    texts, kernels, banks = [], [], dict[str, int]()
    for name, of in programs_of(made, len(PROMPT)).items():
        hls = native_program(of)
        tensors = {t.name: t for t in hls.program.tensors}
        lines = (folder / name / "connectivity.cfg").read_text().splitlines()
        bank_of = dict(line.partition(".")[2].split(":") for line in lines if line.startswith("sp="))
        numbers = [str(banks.setdefault(bank_of[a.name], len(banks))) for a in hls.arguments]
        words = [f"{word_type(tensors[a.tensor], a.packed)} *" for a in hls.arguments]
        given = [f"reinterpret_cast<{word}>(given[{k}])" for k, word in enumerate(words)]
        call = f"{hls.name}_top({', '.join([*given, *('number' for _ in hls.sizes)])});"
        run = f"[](const std::vector<void *> &given, int number) {{ (void)number; {call} }}"
        kernels.append(f'{{"{hls.name}_top", {{{", ".join(numbers)}}}, {run}}}')
        texts.append(hls.text)
    table = f"const std::vector<xrt::Built> xrt::built{{{', '.join(kernels)}}};"
    return "\n".join([*texts, "#include <xrt_stub.h>", table, '#include "host.cpp"', ""])


def in_banks(made: DecoderProgram) -> bytes:
    """What the memories of a board hold of a machine, argument by argument: channels have every n-th 64 bytes."""
    hls, held = native_program(made), []
    for a in hls.arguments:
        (tensor,) = (t for t in hls.program.tensors if t.name == a.tensor)
        whole, count = to_memory(made.read(a.tensor), tensor), max(1, len(tensor.channels))
        own = b"".join(whole[at : at + 64] for at in range(64 * (a.channel or 0), len(whole), 64 * count))
        held.append(own.ljust(64 * (len(whole) // (64 * count) + 1), b"\0"))
    return b"".join(held)


@pytest.mark.parametrize(
    ("name", "rows"),
    [full("gpt2", None), full("llama", None), full("gemma3", None), long("gpt2", 3), full("gemma3", 3)],
)
def test_the_host_program(name: str, rows: int | None, tmp_path: Path) -> None:
    """On a stub of XRT. At its end memory holds the engine's bits. A longer text is that of PyTorch. Of one machine for
    all with int4 weights, two in a byte, of the layers and of the head."""
    model = decoder_model(name)
    is_quantised = (name, rows) == ("gpt2", 3)
    if is_quantised:
        conv1d_to_linear(model)
        quantize_(model, Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(16)))
    made = decoder(model, rows=rows, head=is_quantised)
    text = made.generate(PROMPT, 8)
    for path, content in machine_files(made, len(PROMPT)).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "xrt").mkdir()
    for header in ("xrt_bo.h", "xrt_device.h", "xrt_kernel.h"):
        (tmp_path / "xrt" / header).write_text("#include <xrt_stub.h>\n")
    files = []
    for machine, of in programs_of(made, len(PROMPT)).items():
        files.append(tmp_path / f"{machine}.xclbin")
        files[-1].write_text(f"{native_program(of).name}_top")  # all that the stub needs of it
    program = tmp_path / "host"
    with quick_compiler():
        build_regions(host_on_stub(made, tmp_path), [HEADERS, tmp_path, Path(__file__).parent], program, "-O0")
    held = tmp_path / "held"

    def host(count: int, *tokens: int) -> subprocess.CompletedProcess[str]:
        command = [program, *files, tmp_path / "model.bin", *map(str, (count, *tokens))]
        environment = {**os.environ, "XRT_STUB_MEMORY": str(held)}
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)

    done = host(8, *PROMPT)
    assert (done.returncode, done.stderr, [*map(int, done.stdout.split())]) == (0, "", text.tokens)
    assert held.read_bytes() == in_banks(made.program(1))
    other = host(8, 1, 2)
    if rows:
        assert (other.returncode, [*map(int, other.stdout.split())]) == (0, made.generate([1, 2], 8).tokens)
    else:
        assert (other.returncode, other.stderr) == (1, "error: the machine is for prompts of another length\n")
    compiler = shutil.which("g++")
    if compiler and XRT.is_dir():
        shutil.rmtree(tmp_path / "xrt")
        options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-isystem", str(XRT), "-fsyntax-only"]
        subprocess.run([compiler, *options, tmp_path / "host.cpp"], check=True)
    if rows is None:
        check_text(made, model)
