"""A model over several boards: where it is cut, what the stages compute, files, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import rsn
from rsn.base.errors import BoardError, ContainerError, ScheduleError, TensorError, UnsupportedError, WrongBoards
from rsn.cli.serve_replicas import DecoderCopies
from rsn.docs import scaling
from rsn.host.boards.several import check_boards
from rsn.host.boards.sim import SimBoard
from rsn.host.generation import Decoder, load_decoder_stage
from rsn.host.generation import load as load_decoder
from rsn.host.generation.loaded import decoder_bytes
from rsn.host.generation.slots import Slots
from rsn.host.model.compiled import Compiled
from rsn.host.model.compiled_stages import BuiltStages, CompiledStages
from rsn.host.model.family import Family
from rsn.host.model.file import read
from rsn.host.model.following import Recipe
from rsn.host.tensors import checksum
from rsn.hw.sim.machine import Machine
from rsn.isa.overlays import XNN
from rsn.rsnlib.changes import Followed
from rsn.rsnlib.nn import Encoder
from rsn.rsnlib.pipeline import Pipeline
from rsn.rsnlib.stage_plan import ChainPart, chain, fewest, least_slowest, needed
from rsn.scheduler.build import build
from rsn.scheduler.graph import Gemm, LayerGraph, Output
from rsn.scheduler.memory import RoomError
from rsn.scheduler.schedule import PAPER, Segment
from rsn.scheduler.stages import chained, cut_places, stages
from rsn.tests.effort import examples, full, long
from rsn.tests.test_generate import made


def bert(layers: int = 2, **changes: Any) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=256,
        vocab_size=100,
        **changes,
    )
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[1, 25:] = 0
    return transformers.BertModel(config).eval(), {"input_ids": torch.randint(100, (2, 40)), "attention_mask": mask}


def llama(device: str = "cpu", vocabulary: int = 100) -> tuple[nn.Module, dict[str, Any]]:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        vocab_size=vocabulary,
        use_cache=False,
    )
    with torch.device(device):
        model = transformers.LlamaForCausalLM(config).eval()
    return model, {"input_ids": torch.randint(100, (1, 24))}


def bart() -> tuple[nn.Module, dict[str, Any]]:
    """An encoder whose result goes to all layers of a decoder, which has another number of rows."""
    import transformers

    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=128,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
        vocab_size=100,
        use_cache=False,
    )
    ids = {"input_ids": torch.randint(3, 100, (2, 40)), "decoder_input_ids": torch.randint(3, 100, (2, 20))}
    return transformers.BartModel(config).eval(), ids


def leaves(result: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    return bool(pairs) and all(torch.equal(x, y) for x, y in pairs)


def difference(got: Any, wanted: Any) -> float:
    """The largest deviation over the largest magnitude, of all tensors."""
    pairs = zip(leaves(got), leaves(wanted), strict=True)
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


MODELS = {"bert": bert, "llama": llama, "bart": bart}


# -- results


@pytest.mark.parametrize(
    ("name", "overlay", "boards"), [("bert", "xnn", 3), ("llama", "xnn2", 2), long("bart", "xnn", 4)]
)
def test_stages_compute_what_one_board_does(name: str, overlay: str, boards: int) -> None:
    model, example = MODELS[name]()
    with (
        rsn.compile(model, example, overlay=overlay) as whole,
        rsn.compile(model, example, overlay=overlay, boards=boards) as cut,
        torch.no_grad(),
    ):
        assert isinstance(cut, CompiledStages)
        assert len(cut.programs) == boards
        got = cut(**example)
        assert same(got, whole(**example))
        shown = example.get("attention_mask", torch.ones(1)).bool()
        wanted, got = (x[0] if name != "llama" else x.logits for x in (model(**example), got))
        hidden = shown if shown.ndim == 2 else torch.ones(wanted.shape[:2], dtype=torch.bool)
        assert difference(got[hidden], wanted[hidden]) < 1e-5


@examples(40, 2, deadline=None)
@given(st.data())
def test_any_cut_computes_the_same(data: st.DataObject) -> None:
    """Also within feed-forwards, and of a model that returns what its stages pass on, which is scaled for the host
    alone."""
    model, example = BERT_WITH_STATES
    pipeline = Pipeline.named("xnn")
    network = pipeline.trace(model, example).network
    places = sorted(data.draw(st.sets(st.sampled_from(cut_places(network, within=True)), min_size=1), "cuts"))
    cuts = tuple(network.layers[place - 1].y for place in places)
    followed = Followed(model)
    recipe = Recipe(followed, example, replace(pipeline, boards=len(cuts) + 1, cuts=cuts))
    staged = BuiltStages.of(recipe.pipeline, recipe.trace())
    assert staged.cuts == cuts
    with CompiledStages(staged, ["sim"] * len(staged.built), recipe, followed.look()) as cut:
        assert same(cut(**example), whole_result())


BERT_WITH_STATES = bert(output_hidden_states=True)


@cache
def whole_result() -> Any:
    with rsn.compile(*BERT_WITH_STATES) as whole:
        return whole(**BERT_WITH_STATES[1])


@pytest.mark.parametrize("overlay", ["xnn", long("xnn2")])
def test_a_product_with_a_large_vocabulary_is_cut(overlay: str, tmp_path: Path) -> None:
    """Its columns are in several stages; a file joins them, too."""
    model, example = llama(vocabulary=3000)
    path = tmp_path / "llama.rsnmodel"
    with (
        rsn.compile(model, example, overlay=overlay) as whole,
        rsn.compile(model, example, overlay=overlay, boards=6) as cut,
    ):
        wanted = whole(**example)
        assert isinstance(cut, CompiledStages)
        assert any("lm_head" in name for name in cut.stages.cuts)
        assert same(cut(**example), wanted)
        cut.save(path)
    with rsn.load(path, boards=["sim"] * 6) as loaded:
        assert same(loaded(**example), wanted)


def test_a_value_that_skips_stages_reaches_its_reader() -> None:
    network = Pipeline.named("xnn").trace(*bart()).network
    parts = stages(network, cut_places(network))
    maker = next(i for i, part in enumerate(parts) if any(out.name == "encoder_layers_0_fc2" for out in part.outputs))
    readers = [i for i, part in enumerate(parts) if "encoder_layers_0_fc2" in part.inputs]
    assert maker + 1 < max(readers)


def test_a_changed_model_is_followed() -> None:
    model, example = bert()
    with rsn.compile(model, example, boards=2) as cut, torch.no_grad():
        before = cut(**example)
        model.encoder.layer[1].output.dense.weight.mul_(0.5)
        after = cut(**example)
        assert not same(before, after)
        with rsn.compile(model, example) as whole:
            assert same(after, whole(**example))


@pytest.mark.parametrize("is_family", [False, True])
def test_a_model_without_the_layers_behind_which_it_was_cut_is_cut_anew(is_family: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)) for _ in range(4))).eval()
    x = torch.randn(2, 8, 64)
    calls = (x, x.repeat(1, 2, 1)) if is_family else (x,)
    shapes: Any = {"input": {1: rsn.Length(8, 16)}} if is_family else None
    with rsn.compile(model, (x,), boards=2, dynamic_shapes=shapes) as cut:
        for call in calls:
            cut(call)
        model[0], model[1] = model[1], nn.Identity().eval()
        for call in calls:
            assert (cut(call) - model(call)).abs().max() < 1e-5
        programs = cut.programs.values() if isinstance(cut, Family) else [cut]
        assert [len(program.programs) for program in programs] == [2] * len(calls)


# -- where a model is cut

SMALL = {"a": 10, "b": 7}


@st.composite
def chains(draw: st.DrawFn) -> list[ChainPart]:
    sizes = st.fixed_dictionaries({"a": st.integers(0, 4), "b": st.integers(0, 3)})
    kinds = draw(st.lists(st.tuples(st.integers(1, 9), sizes, sizes), min_size=1, max_size=3))
    numbers = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=7))
    return [ChainPart(*kinds[k], k, draw(st.integers(0, 12))) for k in numbers]


@examples(3000, 150, deadline=None)
@given(chains(), st.integers(1, 5), st.integers(0, 3))
@example([ChainPart(1, {}, {}, 0, link) for link in (0, 0, 1, 0, 0, 1, 1)], 3, 0)  # its start is fast, its links dear
def test_the_cut_is_the_best_of_all(parts: list[ChainPart], boards: int, launch: int) -> None:
    def price(cuts: tuple[int, ...]) -> tuple[float, float] | None:
        ends = (0, *cuts, len(parts))
        runs = [parts[a:b] for a, b in itertools.pairwise(ends)]
        if any(size > SMALL[bank] for run in runs for bank, size in needed(run).items()):
            return None
        links = [run[0].link_s for run in runs[1:]]
        return max([*links, *(launch + sum(x.seconds for x in run) for run in runs)]), sum(links)

    every = itertools.combinations(range(1, len(parts)), boards - 1)
    prices = [found for cuts in every if (found := price(cuts)) is not None]
    cuts = least_slowest(parts, boards, SMALL, launch)
    assert (None if cuts is None else price(cuts)) == min(prices, default=None)
    least = next((n for n in range(1, len(parts) + 1) if least_slowest(parts, n, SMALL, launch) is not None), None)
    assert fewest(parts, SMALL) == least


@pytest.mark.parametrize(("overlay", "is_within"), [("xnn", True), ("xnn2", False)])
def test_stages_that_would_be_uneven_are_cut_within_a_feed_forward(overlay: str, is_within: bool) -> None:
    """Unless a product would add up in another order then."""
    torch.manual_seed(0)
    model, x = Encoder(1, 512, 8, 4096, "gelu_tanh", 1e-6).eval(), {"hidden_states": torch.randn(1, 8, 512)}
    with rsn.compile(model, x, overlay=overlay) as whole, rsn.compile(model, x, overlay=overlay, boards=2) as cut:
        assert isinstance(cut, CompiledStages)
        assert cut.stages.cuts == (("layers_0_ffn_up",) if is_within else ("layers_0_attn_out",))
        slowest, share = (f([stage.seconds for stage in cut.stages.figures]) for f in (max, fmean))
        assert (slowest < 1.3 * share) == is_within
        assert same(cut(**x), whole(**x))


def test_a_board_has_the_weights_once_and_the_rest_of_each_program() -> None:
    """As often as there are sets of slots what is a step's; equal parts of each program share their activations."""
    prompt = ChainPart(0, {"a": 2}, {"a": 3}, 7, weights={"b": 2})
    step = ChainPart(1, {"a": 1}, {"a": 4}, 5, weights={"b": 1}, beside=(prompt, None))
    assert needed([step, step]) == {"a": 2 * 1 + 4 + 2 * 2 + 3, "b": 2 * 2}
    assert needed([replace(step, sets=3)] * 2) == {"a": 3 * (2 * 1 + 4) + 2 * 2 + 3, "b": 2 * 2}


def test_other_programs_of_a_board_move_a_cut() -> None:
    heavy, light = (ChainPart(1, {"a": 1}, {}, beside=(ChainPart(0, {"a": size}, {}),)) for size in (5, 0))
    alone = [replace(part, beside=()) for part in (heavy, heavy, light, light)]
    assert least_slowest(alone, 2, SMALL, 0) == (2,)
    assert least_slowest([heavy, heavy, light, light], 2, SMALL, 0) == (1,)
    assert fewest([heavy] * 3, SMALL) == 3


def small_banks(lpddr: int) -> Pipeline:
    usual = Pipeline.named("xnn")
    return replace(usual, overlay=replace(usual.overlay, banks={**usual.overlay.banks, "lpddr": lpddr}), boards=None)


def test_auto_takes_the_fewest_boards_that_hold_the_model() -> None:
    pipeline = small_banks(5 << 18)  # a layer's weights are 1.1 MB, with padding
    traced = pipeline.trace(*bert())
    _, cuts = pipeline.cut(traced)
    sizes = [pipeline.build(part).program.bank_size("lpddr") for part in stages(traced.network, cuts)]
    assert len(sizes) == 2
    assert sum(4 * size for size in sizes) > 5 << 18
    with pytest.raises(RoomError, match=r"boards=2: the model needs .* MB in lpddr.*: at least 4 boards"):
        replace(small_banks(3 << 18), boards=2).cut(traced)


def test_a_layer_beyond_a_board_is_refused_by_name() -> None:
    pipeline = small_banks(1 << 17)
    with pytest.raises(RoomError, match="lpddr"):
        pipeline.cut(pipeline.trace(*bert()))


def test_a_model_without_values_is_explained() -> None:
    """The report of a model on the meta device is that of the model."""
    model, example = llama()
    empty, _ = llama("meta")
    assert next(empty.parameters()).is_meta
    for boards in (1, 3):
        assert rsn.explain(empty, example, boards=boards) == rsn.explain(model, example, boards=boards)


@pytest.mark.parametrize(
    ("boards", "error", "words"),
    [
        (99, UnsupportedError, "boards=99: this network can be cut into .* stages at most"),
        (0, ScheduleError, "boards=0"),
        (True, ScheduleError, "boards=True"),
        ("many", ScheduleError, "boards='many'"),
        (["vck190", "vck190@xrt:0"], WrongBoards, "boards vck190 and vck190@xrt:0 are one"),
        (["vck19", "sim"], BoardError, "no board 'vck19'"),
        (["sim"], ScheduleError, "the names of two boards or more"),
    ],
)
def test_wrong_boards_are_refused(boards: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rsn.compile(*bert(), boards=boards)


def test_a_schedule_of_single_segments_is_refused() -> None:
    schedule = replace(PAPER, segments=(Segment("encoder.layer.*.attention.self", overlap=False),))
    with pytest.raises(ScheduleError, match="entries of single segments"):
        rsn.compile(*bert(), boards=2, schedule=schedule)


def test_boards_that_are_apart() -> None:
    check_boards(["sim", "sim", "csim", "csim"], 4)
    check_boards(["vck190", "vck190@xrt:1", "ssh://a", "ssh://b", "ssh://a/vck190@xrt:1"], 5)
    check_boards(["ssh://a/sim", "ssh://a/sim"], 2)
    for pair in (["ssh://a", "ssh://u@a:22/vck190"], ["vck190@pyxrt:1", "vck190-xnn2@xrt:1"], ["ssh://a/my.toml"] * 2):
        with pytest.raises(WrongBoards):
            check_boards(pair, 2)


# -- files


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "bert.rsnmodel"
    with rsn.compile(*bert(), boards=3) as cut:
        cut.save(path)
    return path


def test_a_file_of_stages_runs_as_the_model(saved: Path) -> None:
    model, example = bert()
    with rsn.compile(model, example) as whole, rsn.load(saved, boards=["sim"] * 3) as loaded:
        assert same(loaded(**example), whole(**example))


def test_stages_of_a_file_run_apart(saved: Path) -> None:
    """Each loaded alone, and what goes between them pickled, as between processes."""
    model, example = bert()
    first, middle, last = (rsn.load_stage(saved, number) for number in range(3))
    with first, middle, last, rsn.compile(model, example) as whole:
        assert (first.is_first, first.is_last, last.is_last) == (True, False, True)
        assert set(middle.takes) <= set(first.gives)
        call = pickle.loads(pickle.dumps(first(**example)))
        assert call.size == 4 * 2 * 40 * sum(x.shape[-1] for x in call.tensors.values())
        with pytest.raises(TensorError, match="next stage is 1 came to stage 2"):
            last(call)
        with pytest.raises(TensorError, match="takes what the stage before returned"):
            middle(**example)
        assert same(last(middle(call)), whole(**example))


def test_factors_of_rotations_do_not_go_over_links(tmp_path: Path) -> None:
    """Each stage makes those that it reads, from the positions that the caller gives."""
    model, example = llama()
    example["position_ids"] = torch.arange(3, 27)[None]
    path, calls = tmp_path / "llama.rsnmodel", list[Any]()
    with rsn.compile(model, example) as whole, rsn.compile(model, example, boards=3) as cut:
        assert isinstance(cut, CompiledStages)
        tables = cut.stages.traced.host.tables.keys()
        example["position_ids"] = torch.arange(5, 29)[None]
        wanted = whole(**example)
        cut.save(path)
    for number in range(3):
        with rsn.load_stage(path, number) as stage:
            calls.append(stage(calls[-1]) if number else stage(**example))
            assert tables & set(stage.takes) if number < 2 else not tables & set(stage.takes)
    assert not any(tables & call.tensors.keys() for call in calls[:2])
    assert same(calls[-1], wanted)
    with rsn.load(path, boards=["sim"] * 3) as loaded:
        assert same(loaded(**example), wanted)


def test_a_stage_reads_only_its_own_weights(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    with safe_open(saved, framework="np") as file:
        program = json.loads(file.metadata()["rsn.model"])["parts"][0]["stages"][2]
    name = program["banks"]["lpddr"]
    header = int.from_bytes(content[:8], "little")
    begin, _ = json.loads(content[8 : 8 + header])[name]["data_offsets"]
    at = 8 + header + begin
    damaged = tmp_path / "damaged.rsnmodel"
    damaged.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with rsn.load_stage(damaged, 0), rsn.load_stage(damaged, 1):
        pass
    for load in (partial(rsn.load_stage, damaged, 2), partial(rsn.load, damaged, boards=["sim"] * 3)):
        with pytest.raises(ContainerError, match=f"checksum of {name} differs"):
            load()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "cut for 3 boards, each with a part of it; 1 given: name 3 boards, or compile the model for 1"),
        ({"boards": ["sim", "sim"]}, "cut for 3 boards.*2 given"),
        ({"boards": []}, "0 given: name 3 boards$"),
        ({"boards": ["sim", "vck190", "vck190"]}, "board vck190 is given twice"),
    ],
)
def test_files_for_other_boards_are_refused(saved: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongBoards, match=words):
        rsn.load(saved, **given)


def test_a_stage_that_there_is_not(saved: Path) -> None:
    for number in (3, -1):
        with pytest.raises(ContainerError, match=f"no stage {number}; it has 3, numbered from 0"):
            rsn.load_stage(saved, number)


def test_a_board_of_another_overlay_is_refused(saved: Path) -> None:
    with pytest.raises(BoardError, match="xnn2"):
        rsn.load_stage(saved, 1, board="vck190-xnn2@sim")


def test_hostile_stages(saved: Path, tmp_path: Path) -> None:
    """Stages in another order, one twice, one left out: none is loaded."""
    with safe_open(saved, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for order in ([1, 0, 2], [0, 1, 1], [0, 2], [], [0, 1, 2, 2]):
        description = json.loads(metadata["rsn.model"])
        part = description["parts"][0]
        part["stages"] = [part["stages"][i] for i in order]
        text = json.dumps(description)
        path = tmp_path / "hostile.rsnmodel"
        save_file(tensors, path, {"rsn.model": text, "rsn.model.blake2b": checksum(text.encode())})
        with pytest.raises(ContainerError):
            rsn.load(path, boards=["sim"] * len(order))


# -- calls that follow each other


class MeetingBoard(SimBoard):
    """A simulator whose first run, in the last stage, waits until each stage before is in a run for a later call."""

    def __init__(self, begun: list[threading.Semaphore], stage: int) -> None:
        super().__init__()
        self._begun, self._stage, self._runs = begun, stage, 0

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self._runs += 1
        last = len(self._begun)
        if self._stage == last and self._runs == 1:
            assert all(begun.acquire(timeout=60) for begun in self._begun), "a stage waited for the last one"
        elif self._stage < last and self._runs == 1 + last - self._stage:
            self._begun[self._stage].release()
        return super().run(*args, **kwargs)


def test_calls_follow_each_other_through_the_stages(saved: Path) -> None:
    model, example = bert()
    begun = [threading.Semaphore(0) for _ in range(2)]
    boards = [partial(MeetingBoard, begun, stage) for stage in range(3)]
    others = [{**example, "input_ids": torch.randint(100, (2, 40))} for _ in range(2)]
    with rsn.load(saved, boards=boards) as loaded, loaded.server() as server, rsn.compile(model, example) as whole:
        answers = [server.submit(**inputs) for inputs in (example, *others)]
        assert all(same(x.result(60), whole(**y)) for x, y in zip(answers, (example, *others), strict=True))


# -- generation


@pytest.mark.parametrize(("name", "boards"), [long("Llama", 5), full("Gemma 3", 2)])
def test_a_decoder_over_several_boards(name: str, boards: int, tmp_path: Path) -> None:
    """Prompts, in chunks too, and steps: each logit is that of one board, in memory and from a file. Logits of prompts
    are a product of PyTorch, whose last bit depends on where the weights lie in a file. Of five boards the last one has
    the product with the vocabulary alone, of which programs of prompts have none."""
    sizes: dict[str, Any] = {"slots": 2, "capacity": 40, "chunk": 16}
    prompts = [[3, 9, 4], [7 * k % 61 for k in range(27)]]

    def run(decoder: Slots) -> tuple[list[Any], list[Any]]:
        with decoder:
            read = [decoder.prefill(slot, prompt) for slot, prompt in enumerate(prompts)]
            steps = [x for k in range(3) for x in decoder.step({0: k, 1: k + 5}).values()]
            return read, steps + [x for layer in decoder._cache.layers for x in (layer.keys, layer.values)]

    one, two = Decoder(made(name), **sizes), Decoder(made(name), **sizes, boards=boards)
    one.save(tmp_path / "one.rsnmodel")
    two.save(tmp_path / "two.rsnmodel")
    with pytest.raises(WrongBoards, match=f"cut for {boards} boards"):
        load_decoder(tmp_path / "two.rsnmodel")
    (read, steps), *others = (
        run(decoder) for decoder in (one, two, load_decoder(tmp_path / "two.rsnmodel", boards=["sim"] * boards))
    )
    for also_read, also_steps in others:
        assert all(np.allclose(x, y, atol=1e-6) for x, y in zip(also_read, read, strict=True))
        assert all(np.array_equal(x, y) for x, y in zip(also_steps, steps, strict=True))


@pytest.mark.long
def test_a_decoder_takes_as_many_boards_as_hold_it() -> None:
    with Decoder(made("Llama"), slots=1, capacity=16, chunk=16, boards="auto") as decoder:
        assert isinstance(decoder._step, Compiled)


@pytest.fixture
def small_ddr(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Gives boards a DDR of so many bytes."""
    return lambda size: monkeypatch.setitem(cast("dict[str, int]", XNN.banks), "ddr", size)


TEXTS: dict[str, Any] = {"slots": 2, "capacity": 64, "chunk": 32}
"""A step of these takes 2.4 MB of DDR, which one board of 4 MB holds; three programs of prompts take 0.85 MB or
more on each of two boards."""


def test_a_decoder_is_refused_where_prompts_do_not_fit(small_ddr: Callable[[int], None]) -> None:
    small_ddr(4_000_000)
    with pytest.raises(RoomError, match=r"boards=2: .* MB in ddr.* at least 4 boards, or fewer slots"):
        Decoder(made("Llama"), **TEXTS, boards=2)


@pytest.mark.long
def test_a_decoder_is_served_with_the_sets_of_slots_that_fit(small_ddr: Callable[[int], None], tmp_path: Path) -> None:
    """Where the boards hold the decoder, but not a set of slots for each stage, `rsn serve` says so before it opens
    one."""
    small_ddr(5_000_000)
    path = tmp_path / "x.rsnmodel"
    with Decoder(made("Llama"), **TEXTS, boards="auto") as decoder:
        assert isinstance(decoder._step, CompiledStages)
        assert len(decoder._step.programs) == 2  # the step alone fits one
        table = decoder.explain().splitlines()[:3]
        decoder.save(path)
    assert table[0].endswith("ddr with 2 sets of slots  lpddr with 2 sets of slots")
    held, served = decoder_bytes(read(path)), decoder_bytes(read(path), 2)
    for number, (one, two) in enumerate(zip(held, served, strict=True)):
        sizes = [size for sizes in (one, two) for size in sizes.values()]
        assert table[1 + number].split() == [str(number), *(x for n in sizes for x in (f"{n / 1e6:.1f}", "MB"))]
    assert all(of["ddr"] < 5_000_000 for of in held)
    assert any(of["ddr"] > 5_000_000 for of in served)
    with load_decoder(path, boards=["sim"] * 2) as loaded:
        loaded.prefill(0, [3, 9])
    load_decoder_stage(path, 0)[0].close()
    for refused in (
        lambda: load_decoder_stage(path, 0, groups=2),
        lambda: DecoderCopies(path, (), "sim", 1, None, queue=1, max_wait_s=0, timeout_s=1, xclbin=None),
    ):
        with pytest.raises(
            RoomError, match=r"board 0 with 2 sets of slots.* MB in ddr, of which .* 5.00 MB: fewer slots"
        ):
            refused()
    small_ddr(4_000_000)
    with pytest.raises(RoomError, match=r"x.rsnmodel: the programs of board 0 need .* MB in ddr"):
        load_decoder(path, boards=["sim"] * 2)


def test_new_rows_of_caches_are_in_the_stage_of_their_layer() -> None:
    """A network that ends with the copies that outputs need, as programs of prompts do."""
    gemms = [Gemm(f"g{k}", "x" if k == 0 else f"y{k - 1}", f"y{k}", SQUARE, np.zeros(64)) for k in range(3)]
    copies = [Gemm(f"c{k}", f"y{k}", f"c{k}", SQUARE, np.zeros(64)) for k in range(2)]
    network = LayerGraph(1, 4, {"x": 64}, tuple(Output(x) for x in ("y2", "c0", "c1")), (*gemms, *copies))
    assert [layer.y for layer in chained(network).layers] == ["y0", "c0", "y1", "y2", "c1"]
    first, second, third = stages(chained(network), (2, 3))
    assert {out.name for out in first.outputs} == {"y0", "c0"}
    assert {out.name for out in third.outputs} == {"y2", "c1"}
    assert second.inputs == {"y0": 64}


SQUARE = np.eye(64, dtype=np.float32)


# -- the time of many boards


def test_the_picture_of_scaling_has_a_line_for_each_model() -> None:
    rows = [
        {"model": "A & B", "overlay": "xnn", "batch": batch, "boards": n, "of_boards": 1 / n}
        for batch in (1, 8)
        for n in (1, 2, 4)
    ]
    lines = scaling.lines_of("\n".join(map(json.dumps, rows)))
    assert lines == {"A & B (xnn)": {"1": 1.0, "2": 1.0, "4": 1.0}}
    drawn = ElementTree.fromstring(scaling.draw(lines))
    assert [x.text for x in drawn.iter() if x.text and x.text.startswith("A & B")] == ["A & B (xnn)"]
    kept = json.loads(scaling.KEPT.read_text("utf-8"))
    assert len(kept) == 5
    assert (scaling.DOCS / "pictures" / scaling.NAME).read_text("utf-8") == scaling.picture()


def test_stages_take_little_less_than_their_parts() -> None:
    """The times by which a cut is chosen are those of the programs of its stages, from above and within a tenth."""
    pipeline = Pipeline.named("xnn", boards=2)
    traced, cuts = pipeline.cut(pipeline.trace(*bert(4)))
    network = traced.network
    parts = chain(network, pipeline.overlay, lambda part: pipeline.build(part).program, cut_places(network))
    whole = sum(x.seconds for x in parts)
    built = [Machine(pipeline.build(x).program).timing.latency for x in stages(network, cuts)]
    assert 0.9 * whole < sum(built) <= whole


def test_rows_of_a_stage_of_a_step_lie_together() -> None:
    """Also without an attention: eight sequences of one row take as long as one of eight rows."""
    gemm = Gemm("g", "x", "y", SQUARE, np.zeros(64, np.float32))
    step = LayerGraph(8, 1, {"x": 64}, (Output("y"),), (gemm,), of_step=True)
    together, apart, rows = (
        Machine(build(network, XNN, PAPER).program).timing.latency
        for network in (step, replace(step, of_step=False), replace(step, batch=1, seq=8))
    )
    assert together == rows < apart
