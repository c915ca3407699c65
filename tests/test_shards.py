"""Boards that compute each layer together: what is divided, what the shards compute, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import rsn
from rsn.base.errors import ContainerError, ScheduleError, UnsupportedError, WrongBoards
from rsn.cli.main import main
from rsn.host.generation import Decoder
from rsn.host.generation import load as load_decoder
from rsn.host.generation.slots import Slots
from rsn.host.generation.stage import load_decoder_stage
from rsn.host.model.compiled_shards import BuiltShards, built_stages
from rsn.host.model.compiled_stages import CompiledStages
from rsn.host.model.file import read
from rsn.host.model.hosted_shards import exchanged
from rsn.host.model.stage_figures import best_shards
from rsn.host.runner import Runner
from rsn.host.tensors import checksum
from rsn.isa.overlays import XNN
from rsn.rsnlib.reference import compute
from rsn.scheduler.graph import ActivationFunction, Array, AttentionLayer, Gemm, Layer, LayerGraph, Norm, Output
from rsn.scheduler.memory import RoomError
from rsn.scheduler.shards import opened, rounds, shard_places
from rsn.scheduler.stages import chained, stages
from rsn.tests.effort import examples, full, long
from rsn.tests.test_generate import MODELS as FAMILIES
from rsn.tests.test_stages import bart, bert, difference, llama, same, small_banks


def gpt2() -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=192, n_layer=2, n_head=6, vocab_size=100, use_cache=False)
    return transformers.GPT2Model(config).eval(), {"input_ids": torch.randint(100, (2, 24))}


MODELS = {"bert": bert, "llama": llama, "gpt2": gpt2, "bart": bart}


# -- results


@pytest.mark.parametrize(
    ("name", "overlay", "boards", "shards"),
    [
        ("llama", "xnn", 4, 2),
        long("bert", "xnn2", 4, 4),
        long("llama", "xnn", 4, 4),  # each head of keys is on two boards
        full("gpt2", "xnn", 3, 3),
        full("bert", "xnn", 2, 2),
        long("bart", "xnn", 4, 2),
    ],
)
def test_shards_compute_what_one_board_does(name: str, overlay: str, boards: int, shards: int) -> None:
    model, example = MODELS[name]()
    with (
        rsn.compile(model, example, overlay=overlay) as whole,
        rsn.compile(model, example, overlay=overlay, boards=boards, shards=shards) as cut,
        torch.no_grad(),
    ):
        assert isinstance(cut, CompiledStages)
        wanted, got = whole(**example), cut(**example)
        assert difference(got, wanted) < 1e-6
        rows = example.get("attention_mask", example["input_ids"] >= 0).bool()
        rows = torch.ones(wanted[0].shape[:2], dtype=torch.bool) if name == "bart" else rows
        assert difference(got[0][rows], model(**example)[0][rows]) < 1e-5
        again = cut(**example)
        assert all(torch.equal(x, y) for x, y in zip(got.values(), again.values(), strict=True) if torch.is_tensor(x))


def values_of(network: LayerGraph, inputs: dict[str, Array]) -> dict[str, Array]:
    """All activations of a network, in PyTorch."""
    known = dict(inputs)
    for layer in network.layers:
        known[layer.y] = compute(network, layer, known, None)
    return known


def outputs_of(network: LayerGraph | None, known: dict[str, Array]) -> dict[str, Array] | None:
    if network is None:
        return None
    assert all(known[name].shape[-1] == columns for name, columns in network.inputs.items())
    found = values_of(network, {name: known[name] for name in network.inputs})
    return {out.name: found[out.name] for out in network.outputs}


@st.composite
def networks(draw: st.DrawFn) -> LayerGraph:
    """Transformers of one to three layers, some of whose inner results are outputs too."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    columns, dim = 8, draw(st.sampled_from([2, 3]))
    layers: list[Layer] = []
    outputs: list[str] = []
    is_pre, is_rms = draw(st.booleans()), draw(st.booleans())
    norm = Norm(1e-5, is_rms)

    def product(x: str, y: str, rows: int, width: int, **fields: Any) -> str:
        bias = random.normal(size=width).astype(np.float32)
        weight = random.normal(size=(rows, width)).astype(np.float32) / np.float32(rows**0.5)
        layers.append(Gemm(y, x, y, weight, bias, **fields))
        return y

    def closing(x: str, y: str, rows: int, h: str) -> str:
        scale = random.normal(size=columns).astype(np.float32)
        return product(x, y, rows, columns, residual=h, residual_scale=scale, norm=None if is_pre else norm)

    h = "x"
    for i in range(draw(st.integers(1, 3))):
        first = {"x_norm": norm} if is_pre else {}
        groups, heads = draw(st.sampled_from([(1, 4), (2, 4), (4, 4), (1, 12), (6, 12)]))
        keys = heads // groups * dim
        fields: dict[str, Any] = {"norm": norm, "heads": heads} if draw(st.booleans()) else {}
        q = product(h, f"q{i}", columns, heads * dim, **fields, **first)
        k = product(h, f"k{i}", columns, keys, **first)
        v = product(h, f"v{i}", columns, keys, **first)
        if draw(st.booleans()):
            outputs.append(k)
        bias = random.normal(size=(1, heads, 5, 5)).astype(np.float32) if draw(st.booleans()) else None
        kv = heads // groups if groups > 1 else 0
        layers.append(AttentionLayer(f"a{i}", q, k, v, f"a{i}", heads, dim, causal=i == 0, bias=bias, kv_heads=kv))
        h = closing(f"a{i}", f"o{i}", heads * dim, h)
        width, is_gated = draw(st.integers(5, 13)), draw(st.booleans())
        gate: dict[str, Any] = {"gated": is_gated, "activation": ActivationFunction.SILU}
        f = product(h, f"f{i}", columns, (1 + is_gated) * width, **gate, **first)
        h = closing(f, f"h{i}", width, h)
        if draw(st.booleans()):
            outputs.append(h)
    if draw(st.booleans()):
        h = product(h, "logits", columns, 11)
    names = dict.fromkeys((*outputs, h))
    return LayerGraph(2, 5, {"x": columns}, tuple(map(Output, names)), tuple(layers))


@examples(2000, 40, deadline=None)
@given(networks(), st.sampled_from([2, 4]), st.data())
def test_any_network_in_shards_computes_the_same(network: LayerGraph, shards: int, data: st.DataObject) -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    wanted = values_of(network, {"x": x})
    network = opened(network, shards)
    places = shard_places(network, shards)
    cuts = sorted(data.draw(st.sets(st.sampled_from(places)))) if places else []
    known: dict[str, Array] = {"x": x}
    sizes = {layer.y: layer.weight.size for layer in network.layers if isinstance(layer, Gemm)}
    for stage in stages(network, cuts):
        for one in rounds(stage, shards):
            for part in filter(None, one.networks):
                for layer in part.layers:  # heads of keys may be on several boards
                    if isinstance(layer, Gemm) and layer.multiplies and layer.y[0] not in "kv":
                        assert layer.weight.size < sizes[layer.y]
            known |= exchanged(one.exchange, [outputs_of(part, known) for part in one.networks])
    for out in network.outputs:
        # A norm of two columns makes much of a rounding; a part that is missing is as large as the rest.
        assert np.abs(known[out.name] - wanted[out.name]).max() <= 1e-4 * np.abs(wanted[out.name]).max()


@pytest.mark.long
def test_a_changed_model_is_followed() -> None:
    model, example = bert(1)
    with rsn.compile(model, example, boards=2, shards=2) as cut, torch.no_grad():
        before = cut(**example)
        model.encoder.layer[0].output.dense.weight.mul_(0.5)
        after = cut(**example)
        assert difference(after, before) > 1e-3
        with rsn.compile(model, example) as whole:
            assert difference(after, whole(**example)) < 1e-6


# -- memory and refusals


def test_a_layer_beyond_one_board_is_divided() -> None:
    pipeline = small_banks(3 << 17)
    traced = pipeline.trace(*bert())
    with pytest.raises(RoomError, match=r"bank lpddr, .* has 0.39 MB .*shards=2 \(--shards 2\)"):
        pipeline.cut(traced)
    built = BuiltShards.of(replace(pipeline, shards=4), traced)
    assert len(built.figures) == 4
    assert all(stage.banks["lpddr"] <= 3 << 17 for stage in built.figures)
    with pytest.raises(RoomError, match=r"boards=4: .* on each of the shards=4 boards of all stages: at least 16 boar"):
        BuiltShards.of(replace(pipeline, shards=4, boards=4), traced)


@pytest.mark.parametrize(
    ("name", "given", "error", "words"),
    [
        ("bert", {"boards": 3, "shards": 3}, UnsupportedError, r"layer.0.attention.self: 4 heads cannot .* shards=3"),
        ("bert", {"boards": 3, "shards": 2}, ScheduleError, "boards=3: with shards=2 a multiple of 2"),
        ("bert", {"shards": 2}, ScheduleError, "boards=1: with shards=2 a multiple of 2"),
        ("bert", {"boards": 2, "shards": 0}, ScheduleError, "shards=0"),
        ("bert", {"boards": 2, "shards": True}, ScheduleError, "shards=True"),
        ("bert", {"boards": 2, "shards": 2, "overlay": "xnn8"}, UnsupportedError, "xnn8 computes in integers"),
        ("bert", {"boards": 99 * 2, "shards": 2}, UnsupportedError, "boards=198: .* 4 stages at most"),
        ("bert", {"boards": ["vck190", "vck190@xrt:0"], "shards": 2}, WrongBoards, "vck190@xrt:0 are one"),
    ],
)
def test_wrong_shards_are_refused(name: str, given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rsn.compile(*MODELS[name](), **given)


def test_a_network_that_cannot_be_divided_is_refused() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64), nn.LayerNorm(64)).eval()
    with pytest.raises(UnsupportedError, match="0: shards=2: the network has no heads or columns"):
        rsn.compile(model, (torch.rand(1, 8, 64),), boards=2, shards=2)


def test_groups_of_heads_that_do_not_divide_are_refused() -> None:
    zeros = np.zeros((6, 6), np.float32)
    products = tuple(Gemm(y, "x", y, zeros[:, :n], zeros[0, :n]) for y, n in (("q", 6), ("k", 2), ("v", 2)))
    attention = AttentionLayer("a", "q", "k", "v", "a", 6, 1, kv_heads=2)
    layers = (*products, attention, Gemm("o", "a", "o", zeros, zeros[0]))
    network = LayerGraph(1, 4, {"x": 6}, (Output("o"),), layers)
    assert len(rounds(opened(network, 6), 6)[0].networks) == 6
    with pytest.raises(UnsupportedError, match=r"a: 6 heads, of which each 3 share keys, .* shards=3: 2 heads"):
        opened(network, 3)


@pytest.mark.long
def test_a_model_without_values_is_explained() -> None:
    model, example = llama()
    empty, _ = llama("meta")
    given: dict[str, Any] = {"boards": 4, "shards": 2}
    assert rsn.explain(empty, example, **given) == rsn.explain(model, example, **given)


# -- time


def test_times_of_stages_are_those_of_their_parts() -> None:
    """The table has every launch and exchange; a faster link takes their share away."""
    pipeline = replace(small_banks(1 << 30), shards=2, boards=2)
    traced = pipeline.trace(*llama())
    (slow,) = BuiltShards.of(pipeline, traced).figures
    fast = replace(pipeline, overlay=pipeline.overlay.with_rates(link_gbs=1e9, link_us=0.0))
    (quick,) = BuiltShards.of(fast, traced).figures
    assert slow.seconds - quick.seconds == pytest.approx(slow.exchange_s, rel=1e-6)
    link_us, link_s = XNN.seconds["link_us"], XNN.seconds["link_gbs"]
    assert slow.exchange_s == pytest.approx(2 * 5 * link_us + slow.exchanged * link_s)  # four sums and the logits


@pytest.mark.parametrize("shards", [2, 4])
def test_bytes_between_shards_are_those_that_move(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the boards behind the first one take and give in a call."""
    moved: dict[Runner, int] = {}
    run = Runner.run

    def counted(self: Runner, inputs: Any, parameters: Any = None) -> Any:
        result = run(self, inputs, parameters)
        moved[self] = sum(x.nbytes for x in (*inputs.values(), *result.outputs.values()))
        return result

    monkeypatch.setattr(Runner, "run", counted)
    model, example = bert(1)
    with rsn.compile(model, example, boards=shards, shards=shards) as cut:
        assert isinstance(cut, CompiledStages)
        (stage,) = cut.stages.figures
        cut(**example)
        runners, numbers = cut._hosted._runners, cut.stages.board_numbers
        assert stage.exchanged == sum(moved[x] for x, board in zip(runners, numbers, strict=True) if board % shards)


@cache
def traced_bert() -> Any:
    return small_banks(1 << 30).trace(*bert(1))


@examples(40, 2, deadline=None)
@given(
    st.sampled_from([2, 4, None]),
    st.sampled_from([0.01, 1.0, 1e9]),
    st.sampled_from([0, 50]),
    st.sampled_from([19, 30]),
)
def test_auto_is_the_best_of_all_numbers(boards: int | None, link_gbs: float, link_us: int, bank: int) -> None:
    """Of the numbers with the fewest boards, that with the least time of a call, for slow and fast links."""
    pipeline = replace(small_banks(1 << bank), boards=boards, chooses_shards=True)
    pipeline = replace(pipeline, overlay=pipeline.overlay.with_rates(link_gbs=link_gbs, link_us=link_us))
    calls: dict[int, tuple[int, float]] = {}
    refused: list[str] = []
    for shards in (1, 2, 3, 4):
        if boards is not None and boards % shards:
            continue
        one = replace(pipeline, shards=shards, chooses_shards=False)
        try:
            built = built_stages(one, traced_bert())
        except UnsupportedError as e:
            refused.append(str(e))
            continue
        calls[shards] = built.board_count, sum(x.seconds + x.link_s for x in built.figures)
    if not calls:
        with pytest.raises(UnsupportedError) as found:
            built_stages(pipeline, traced_bert())
        assert all(reason in str(found.value) for reason in refused)
        return
    chosen = built_stages(pipeline, traced_bert())
    assert chosen.boards_each == min(calls, key=lambda shards: calls[shards])
    tried = {x.shards: (x.boards, x.call_s) for x in chosen.tried if not x.refused}
    assert tried.items() <= calls.items()
    least = min(calls.values())[0]
    assert tried.keys() >= {shards for shards, (count, _) in calls.items() if count == least}
    assert "taken" in next(line for line in chosen.table() if line.startswith(f"{chosen.boards_each}  "))


@pytest.mark.long
def test_auto_divides_a_layer_that_no_board_holds() -> None:
    pipeline = replace(small_banks(3 << 17), chooses_shards=True)
    chosen = built_stages(pipeline, traced_bert())
    first, *_, last = chosen.tried
    assert "bank lpddr" in first.refused
    assert (last.shards, last.refused) == (4, "")
    assert all(stage.banks["lpddr"] <= 3 << 17 for stage in chosen.figures)
    with pytest.raises(RoomError, match=r"shards=auto: no number of shards fits: shards=1: .*; shards=2: .*lpddr"):
        built_stages(replace(pipeline, boards=2), traced_bert())


def test_auto_on_the_way_from_the_user() -> None:
    """The chosen number is shown with the others, and results are those of the model. A word other than auto is
    refused."""
    model, example = bert(1)
    with rsn.compile(model, example, boards=2, shards="auto") as cut:
        assert isinstance(cut, CompiledStages)
        assert cut.stages.boards_each == best_shards(cut.stages.tried).shards  # type: ignore[union-attr]
        assert "shards=auto: of those with the fewest boards, the number whose call takes least" in cut.explain()
        assert difference(cut(**example), model(**example)) < 1e-5
    with pytest.raises(ScheduleError, match=r'shards=\'most\': a number of boards .*, or "auto"'):
        rsn.compile(model, example, boards=2, shards="most")


def test_what_others_read_later_is_sent_to_them() -> None:
    """The encoder's result is a norm that the first board computes; all read it when their queries are there."""
    network = opened(chained(small_banks(1 << 30).trace(*bart()).network), 2)
    sent = [name for one in rounds(network, 2) for name in one.exchange.spread]
    assert "encoder_layers_0_fc2" in sent
    assert not any(network.columns(name) != 128 for name in sent)


# -- generation


@pytest.mark.parametrize(
    ("name", "boards", "shards"),
    [long("Llama", 4, 4), full("GPT-2", 4, 2), full("Gemma 3", 2, 2)],
)
def test_a_decoder_in_shards(name: str, boards: int, shards: int) -> None:
    """Prompts, in chunks too, and steps; the caches of the host are those of one board. The weights are as they are:
    larger ones, as in `made`, carry roundings on, and a board is 2e-6 from float64 itself."""
    torch.manual_seed(1)
    model = FAMILIES[name]().eval()
    sizes: dict[str, Any] = {"slots": 2, "capacity": 40, "chunk": 16}
    prompts = [[3, 9, 4], [7 * k % 61 for k in range(27)]]

    def run(decoder: Slots) -> list[Any]:
        with decoder:
            read = [decoder.prefill(slot, prompt) for slot, prompt in enumerate(prompts)]
            steps = [x for k in range(3) for x in decoder.step({0: k, 1: k + 5}).values()]
            return [*read, *steps, *(x for layer in decoder._cache.layers for x in (layer.keys, layer.values))]

    one = run(Decoder(model, **sizes))
    for x, y in zip(run(Decoder(model, **sizes, boards=boards, shards=shards)), one, strict=True):
        assert np.abs(np.asarray(x) - np.asarray(y)).max() <= 1e-6 * np.abs(np.asarray(y)).max()


@pytest.mark.long
def test_a_decoder_in_shards_from_a_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    decoder = Decoder(FAMILIES["Llama"]().eval(), slots=1, capacity=24, chunk=8, boards=2, shards=2)
    decoder.save(tmp_path / "llama.rsnmodel")
    with pytest.raises(ContainerError, match="load_decoder_stage takes stages of one board"):
        load_decoder_stage(tmp_path / "llama.rsnmodel", 0)
    serve = ["serve", "--generate", str(tmp_path / "llama.rsnmodel"), "--boards", "sim"]
    result = CliRunner().invoke(main, serve)
    told = "1 x 1 stages of 2 shards, each on a board of its own, need 2 boards; 1 given"
    assert (result.exit_code, told in result.output) == (3, True), result.output
    with decoder, load_decoder(tmp_path / "llama.rsnmodel", boards=["sim"] * 2) as loaded:
        for each in (lambda of: of.prefill(0, [3, 9, 4]), lambda of: of.step({0: 5})[0], lambda of: of.step({0: 7})[0]):
            # logits of prompts are a product of PyTorch, whose last bit depends on where the weights lie
            assert np.allclose(each(loaded), each(decoder), atol=1e-6)


# -- files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards") / "llama.rsnmodel"
    with rsn.compile(*llama(), boards=4, shards=2) as cut:
        cut.save(path)
    return path


def test_a_file_of_shards_runs_as_the_model(saved: Path, tmp_path: Path) -> None:
    model, example = llama()
    with rsn.load(saved, boards=["sim"] * 4) as loaded:
        got = loaded(**example)
        assert difference(got, model(**example)) < 1e-5
        with loaded.server() as server:
            assert same(server.submit(**example).result(), got)


def test_a_shard_holds_its_part_of_the_weights(saved: Path) -> None:
    """Boards of a stage have as much, but for the biases of sums, which the first one adds."""
    part = read(saved).parts[0]
    sizes = [0] * part.boards
    for number, board in part.board_numbers.items():
        sizes[board] += part.on_machine[number].program.bank_size("lpddr")
    for one, other in zip(sizes[::2], sizes[1::2], strict=True):
        assert abs(one - other) < 0.03 * one
    with rsn.compile(*llama(), boards=2) as stages:
        whole = sum(program.bank_size("lpddr") for program in stages.programs)
    assert sum(sizes) < 1.6 * whole  # heads of 32 columns take 64; the same heads are on one board of each pair


def test_what_boards_a_file_of_shards_needs(saved: Path) -> None:
    with pytest.raises(WrongBoards, match="4 boards"):
        rsn.load(saved)
    with pytest.raises(ContainerError, match="load_stage takes stages of one board"):
        rsn.load_stage(saved, 0)
    result = CliRunner().invoke(main, ["serve", str(saved), "--port", "0", *(["--boards", "sim"] * 3)])
    told = "llama.rsnmodel: 1 x 2 stages of 2 shards, each on a board of its own, need 4 boards; 3 given"
    assert (result.exit_code, told in result.output) == (3, True), result.output


def test_hostile_rounds(saved: Path, tmp_path: Path) -> None:
    """What a file says of rounds is checked before anything runs."""
    with safe_open(saved, framework="pt") as file:
        text, tensors = file.metadata()["rsn.model"], {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    changes: list[tuple[Any, ...]] = [
        ("stage", 1),
        ("programs", [0, 0]),
        ("programs", [0, None]),
        ("programs", [None, 1]),
        ("programs", [0]),
        ("sums", []),
        ("sums", ["lm_head"]),
        ("columns", {"lm_head": [[0, 50], [50, 100]]}),
        ("caches", {"lm_head": [[0, 50], [50, 100]]}),
        ("programs", ["0", "1"]),
    ]
    for key, value in changes:
        described = json.loads(text)
        described["parts"][0]["rounds"][0][key] = value
        assert described != json.loads(text)
        _refused(described, tensors, tmp_path)
    for value in ([[0, 50], [51, 101]], [[0, 50], [0, 50]], [[-50, 0], [50, 100]], [[0, 50]], [[0, 50, 1], [50, 100]]):
        described = json.loads(text)
        described["parts"][0]["rounds"][-1]["columns"]["lm_head"] = value
        _refused(described, tensors, tmp_path)


def _refused(described: dict[str, Any], tensors: dict[str, torch.Tensor], folder: Path) -> None:
    changed = json.dumps(described)
    save_file(tensors, folder / "x.rsnmodel", {"rsn.model": changed, "rsn.model.blake2b": checksum(changed.encode())})
    with pytest.raises(ContainerError):
        rsn.load(folder / "x.rsnmodel", boards=["sim"] * 4)
