"""Generation on copies of a decoder whose boards fail, and whose processes end with their caches: each text is the one
that it is without."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import BoardError, CacheFull, ContainerError, PromptTooLong, StateLost, TensorError
from rsn.host.generation import Decoder, Sampling, load, load_decoder_stage
from rsn.host.generation.loaded import DecoderSizes
from rsn.host.model.file import identity
from rsn.host.replicas import replicated, stage, texts
from rsn.host.replicas.decoder_server import DecoderCall, DecoderServer, DecoderStageFile
from rsn.host.replicas.pipeline import LocalPipeline, PipelineDown, PipelineLost
from rsn.host.replicas.replicated import ReplicatedServer
from rsn.host.replicas.stage import StageDown, StageReport
from rsn.host.replicas.texts import Generations, RemoteSlots
from rsn.host.serving import QueueFull, RequestTimeout, State
from rsn.tests.effort import full

from .rigged import Rig
from .test_generation import END, TOKENS, Scripted, alone, answer, logits_of, made
from .test_replicas import until

SIZES = DecoderSizes(3, 20, 4, TOKENS, ())


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "DOWN_POLL_S", 0.005)
    monkeypatch.setattr(stage, "RETRY_S", 0.01)
    monkeypatch.setattr(stage, "LOOK_S", 0.01)
    monkeypatch.setattr(texts, "PAUSE_S", 0.005)


def scripted(fails: Sequence[int] = ()) -> Any:
    return Scripted(SIZES.slots, SIZES.capacity, fails, SIZES.chunk)


class Elsewhere:
    """A decoder that `fate` decides about at each call: None to answer, "before" or "behind" to end with its caches
    before or behind the call, or an error to raise instead of the call."""

    def __init__(self, fate: Callable[[], Any] = lambda: None) -> None:
        self.fate, self.server = fate, DecoderServer([scripted()])
        self.ends = 0

    def ask(self, call: DecoderCall, timeout: float) -> Any:
        what = self.fate() if call.caches else None
        if isinstance(what, Exception):
            raise what
        answer = None if what == "before" else self.server.ask(call).result()
        if what is not None:
            self.ends += 1
            self.server = DecoderServer([scripted()])
            raise PipelineLost("the process ended")
        return answer


def said(slots: RemoteSlots, prompt: Sequence[int], count: int, slot: int = 0) -> list[int]:
    """The tokens of greedy generation."""
    found, made = None, []
    while found is None:
        found = slots.prefill_chunk(slot, prompt)
    while True:
        made.append(int(found.argmax()))
        if len(made) == count:
            slots.free(slot)
            return made
        found = slots.step({slot: made[-1]})[slot]


PROMPT = [3, 1, 4, 1, 5, 9]


@pytest.mark.parametrize("what", ["before", "behind"])
@pytest.mark.parametrize("when", range(1, 8))
def test_caches_that_are_lost_are_filled_again(what: str, when: int) -> None:
    """At each call of a text: two chunks of the prompt, and steps; also while another text has a slot."""
    calls = iter(range(1000))
    there = Elsewhere(lambda: what if next(calls) == when else None)
    slots = RemoteSlots(there.ask, SIZES)
    other = [7, 2]
    assert (slots.prefill_chunk(1, other) == logits_of(other)).all()
    wanted, _ = alone(PROMPT, Sampling(max_tokens=6), SIZES.capacity)
    assert said(slots, PROMPT, 6) == wanted
    assert there.ends == 1
    assert (slots.step({1: 5})[1] == logits_of([*other, 5])).all()


def test_what_ends_a_call() -> None:
    there = Elsewhere()
    slots = RemoteSlots(there.ask, SIZES)
    with pytest.raises(PromptTooLong):
        slots.prefill_chunk(0, [1] * 21)
    with pytest.raises(TensorError, match="slot 0 has no sequence"):
        slots.step({0: 1})
    slots.prefill(0, [1] * 20)
    with pytest.raises(CacheFull):
        slots.step({0: 1})
    failures = iter([BoardError("the board is gone")] * 2)
    there.fate = lambda: next(failures, None)
    slots.free(0)
    assert (slots.prefill(0, [1, 2]) == logits_of([1, 2])).all()  # asked again twice
    there.fate = lambda: BoardError("the board is gone")
    with pytest.raises(BoardError, match="the board is gone"):
        slots.step({0: 3})
    there.fate = lambda: RequestTimeout("no answer in 60 s")
    with pytest.raises(RequestTimeout):
        slots.step({0: 3})
    there.fate = lambda: None
    assert (slots.step({0: 3})[0] == logits_of([1, 2, 3])).all()  # the tokens of before count, and none of those


def test_texts_wait_for_a_copy_that_has_no_board(monkeypatch: pytest.MonkeyPatch) -> None:
    down = iter([StageDown("its board is being opened")] * 20)
    slots = RemoteSlots(Elsewhere(lambda: next(down, None)).ask, SIZES)
    assert (slots.prefill(0, [1, 2]) == logits_of([1, 2])).all()
    monkeypatch.setattr(texts, "RETURN_S", 0.05)
    slots = RemoteSlots(Elsewhere(lambda: StageDown("no board is free")).ask, SIZES)
    with pytest.raises(StageDown, match="no board is free"):
        slots.prefill(0, [1, 2])


def test_caches_stay_while_nothing_is_sent() -> None:
    """A call of another set has failed, and the copy counts as down until it is looked at again. If it has other caches
    then, this costs no attempt."""
    down, lost = PipelineDown("it is being looked at"), StateLost("other caches are here")
    there, begun = Elsewhere(), list[bool]()

    def ask(call: DecoderCall, timeout: float) -> Any:
        begun.append(not call.caches)
        return there.ask(call, timeout)

    slots = RemoteSlots(ask, SIZES)
    slots.prefill(0, [1, 2])
    fates: Iterator[BoardError] = iter([down] * 5)
    there.fate = lambda: next(fates, None)
    assert (slots.step({0: 3})[0] == logits_of([1, 2, 3])).all()
    assert sum(begun) == 1
    fates = iter([down, lost] * 5)
    assert (slots.step({0: 4})[0] == logits_of([1, 2, 3, 4])).all()
    assert sum(begun) == 10  # anew with each of the nine calls behind the first loss


def test_a_caller_learns_that_other_caches_are_there() -> None:
    server = DecoderServer([scripted()])
    first = server.ask(DecoderCall("")).result().caches
    second = server.ask(DecoderCall("")).result().caches
    with pytest.raises(StateLost):
        server.ask(DecoderCall(first, prompt=(0, (1,)))).result()
    assert server.ask(DecoderCall(second, prompt=(0, (1,)))).result().logits[0].argmax() == logits_of([1]).argmax()
    server.close()


def test_a_board_that_fails_again_and_again_is_given_up() -> None:
    server = DecoderServer([scripted(fails=[1, 2, 4, 5, 6])])
    caches = server.ask(DecoderCall("")).result().caches
    states: list[Any] = []
    for _ in range(6):
        error = server.ask(DecoderCall(caches, (0,), prompt=(0, (1,)))).exception()
        states.append((error is None, server.health.state))
    bad, worst, good = (False, State.DEGRADED), (False, State.FAILING), (True, State.READY)
    assert states == [bad, bad, good, bad, bad, worst]
    assert server.health.since == 0.0
    server.close()


# -- copies


class Source:
    """A stage whose decoders are `made`; the first ones fail as `fails` says. number, count: of the stage, and of all.
    groups: sets of slots."""

    def __init__(self, *fails: Sequence[int], number: int = 0, count: int = 1, groups: int = 1) -> None:
        self._fails, self.made, self.lock = list(fails), list[Any](), threading.Lock()
        self._place, self._groups = (number, count), groups

    def open(self, board: Any, figures: Any, name: str) -> DecoderServer:
        with self.lock:
            made = [scripted(self._fails.pop(0) if self._fails else ()) for _ in range(self._groups)]
            self.made += made
            return DecoderServer(made, *self._place)


@contextmanager
def generations(
    source: Any, copies: int, *behind: Any, pipeline: type[LocalPipeline] = LocalPipeline, **more: Any
) -> Iterator[Generations]:
    def start(number: int) -> LocalPipeline:
        return pipeline([source, *behind], ["sim"], number, "m")

    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 1}
    with ReplicatedServer(start, copies, **options) as server:
        server.settled()
        with Generations(server, SIZES, **more) as made:
            yield made


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_each_text_is_that_of_a_text_alone(seed: int, stages: int, groups: int) -> None:
    """Whichever stage fails: those before it have run then."""
    choose = random.Random(seed)
    failing = 6 if stages * groups == 1 else 1  # in all stages of a set at most two: a third one ends the text
    fails = [[choose.sample(range(1, 60), failing if i < 2 else 0) for _ in range(2 * groups)] for i in range(stages)]
    sources = [Source(*fails[i], number=i, count=stages, groups=groups) for i in range(stages)]
    asked = [
        ([choose.randrange(TOKENS) for _ in range(choose.randint(1, 12))], Sampling(max_tokens=choose.randint(1, 12)))
        for _ in range(16)
    ]
    with generations(sources[0], 2, *sources[1:], groups=groups) as made:
        streams = [made.submit(prompt, sampling) for prompt, sampling in asked]
        for stream, (prompt, sampling) in zip(streams, asked, strict=True):
            assert (list(stream), stream.reason) == alone(prompt, sampling, SIZES.capacity)


def test_a_call_without_an_answer_costs_other_sets_nothing() -> None:
    """Only the set of that call is filled again, while the others are in the middle of their texts."""
    asked, begun = Counter[int](), Counter[int]()

    class Forgetful(LocalPipeline):
        async def ask(self, inputs: DecoderCall, timeout: float) -> Any:
            asked[inputs.group] += 1
            begun[inputs.group] += not inputs.caches
            if inputs.group == 0 and asked[0] == 5:
                raise TimeoutError
            return await super().ask(inputs, timeout)

        async def reports(self, figures: bool = False) -> list[StageReport]:
            await asyncio.sleep(0.02)  # others ask meanwhile
            return await super().reports(figures)

    sources = [Source(number=i, count=2, groups=3) for i in range(2)]
    with generations(sources[0], 1, sources[1], pipeline=Forgetful, groups=3) as made:
        streams = [made.submit([1, 2, number], Sampling(max_tokens=16)) for number in range(3)]
        for number, stream in enumerate(streams):
            assert list(stream) == alone([1, 2, number], Sampling(max_tokens=16), SIZES.capacity)[0]
    assert begun == {0: 2, 1: 1, 2: 1}
    assert made.copies.health.failures == 1


def test_requests_go_to_the_copy_with_the_fewest() -> None:
    source = Source()
    with generations(source, 2) as made:
        assert (made.capacity, made.vocabulary, made.health.state) == (SIZES.capacity, TOKENS, State.READY)
        for decoder in source.made:
            decoder.go.clear()
        streams = [made.submit([1, 2], Sampling(max_tokens=2)) for _ in range(6)]
        assert [made.is_idle(number) for number in range(2)] == [False, False]
        until(lambda: all(each.requests == 3 for (each,) in made._each))
        for decoder in source.made:
            decoder.go.set()
        assert all(list(stream) == alone([1, 2], Sampling(max_tokens=2))[0] for stream in streams)


def test_a_decoder_is_replaced_between_texts() -> None:
    """A text that runs ends on the decoder with which it began."""
    source, next_one = Source(), Source()
    with generations(source, 2) as made:
        for decoder in source.made:
            decoder.go.clear()
        streams = [made.submit([1, 2], Sampling(max_tokens=4)) for _ in range(2)]

        def replace() -> None:
            made.copies.replace(lambda number: LocalPipeline([next_one], ["sim"], number, "m"), made.is_idle)

        replacing = threading.Thread(target=replace)
        replacing.start()
        until(lambda: made.copies.drains(0))
        later = made.submit([1, 2], Sampling(max_tokens=4))  # to the copy that is not being replaced yet
        assert not next_one.made
        for decoder in source.made:
            decoder.go.set()
        replacing.join(20)
        assert len(next_one.made) == 2
        assert all(decoder.closed for decoder in source.made)
        for stream in (*streams, later, made.submit([1, 2], Sampling(max_tokens=4))):
            assert list(stream) == alone([1, 2], Sampling(max_tokens=4))[0]


def test_a_single_copy_that_is_being_replaced_takes_no_texts() -> None:
    source = Source()
    with generations(source, 1) as made:
        source.made[0].go.clear()
        stream = made.submit([1], Sampling(max_tokens=2))

        def replace() -> None:
            made.copies.replace(lambda number: LocalPipeline([Source()], ["sim"], number, "m"), made.is_idle)

        replacing = threading.Thread(target=replace)
        replacing.start()
        until(lambda: made.copies.drains(0))
        with pytest.raises(QueueFull, match="the model is being replaced"):
            made.submit([1])
        source.made[0].go.set()
        replacing.join(20)
        assert list(stream) == alone([1], Sampling(max_tokens=2))[0]
        assert list(made.submit([1], Sampling(max_tokens=2))) == alone([1], Sampling(max_tokens=2))[0]


# -- stages


@pytest.fixture(scope="module")
def in_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in three stages, with prompts of several chunks."""
    path = tmp_path_factory.mktemp("models") / "decoder.rsnmodel"
    with Decoder(made("Llama"), slots=2, capacity=32, chunk=16, boards=3) as decoder:
        decoder.save(path)
    return path


PROMPTS = [[3, 1, 4], list(range(1, 20)), [5], [1, 5, 9, 2, 6]]
STAGES = 3


@contextmanager
def on_boards(path: Path, boards: Sequence[Any], groups: int) -> Iterator[Generations]:
    """A decoder over boards of this process."""
    sources = [DecoderStageFile(str(path), identity(path), number, STAGES, groups) for number in range(STAGES)]
    sizes, options = DecoderSizes(2, 32, 16, TOKENS, (END,)), {"name": "m", "arguments": (), "sizes": {}, "places": 1}
    count = len(boards) // STAGES

    def start(number: int) -> LocalPipeline:
        return LocalPipeline(sources, boards, STAGES * number, "m")

    with ReplicatedServer(start, count, **options) as server:  # type: ignore[arg-type]
        server.settled()
        with Generations(server, sizes, groups=groups) as generations:
            yield generations


@pytest.mark.long
@pytest.mark.parametrize("groups", [1, full(2)])
def test_stages_compute_what_one_process_does(groups: int, in_stages: Path) -> None:
    """Each bit: with prompts in chunks, prompts that share rows, and slots that are used again."""
    with load(in_stages, boards=["sim"] * STAGES) as whole, ExitStack() as held:
        stages = [load_decoder_stage(in_stages, number, groups=groups) for number in range(STAGES)]
        for of in stages:
            held.callback(of[-1].close)

        def asked(call: Callable[[Any], Any]) -> Any:
            passed: dict[str, Any] = {}
            for of in stages:
                of[-1].passed = passed
                found = call(of[-1])
                passed = of[-1].passed
            assert not passed
            return found

        def read(slot: int, prompt: Sequence[int]) -> None:
            assert (whole.prefill(slot, prompt) == asked_whole(slot, prompt)).all()

        def asked_whole(slot: int, prompt: Sequence[int]) -> Any:
            found = None
            while found is None:
                found = asked(lambda stage: stage.prefill_chunk(slot, prompt))
            return found

        def step(tokens: dict[int, int]) -> None:
            wanted, found = whole.step(tokens), asked(lambda stage: stage.step(tokens))
            assert found.keys() == wanted.keys()
            assert all((found[slot] == wanted[slot]).all() for slot in wanted)

        read(0, PROMPTS[1])
        read(1, [*PROMPTS[1][:17], 7])
        step({0: 3, 1: 4})
        step({1: 4})
        whole.free(0)
        asked(lambda stage: stage.free(0))
        read(0, [*PROMPTS[1][:17], 7])
        step({0: 3, 1: 4})
        own = [[x.keys.numel() > 0 for x in of[-1]._cache.layers] for of in stages]
        assert sorted(map(sum, own)) == [0, 1, 1]  # no stage has caches of another one


@pytest.mark.long
def test_a_stage_that_there_is_not(in_stages: Path, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match=r"no stage 3; it has 3, numbered from 0"):
        load_decoder_stage(in_stages, 3)
    with pytest.raises(BoardError, match="no board 'vck1900'"):
        load_decoder_stage(in_stages, 0, board="vck1900")
    with pytest.raises(ContainerError, match="no such file"):
        load_decoder_stage(tmp_path / "none.rsnmodel", 0)


@pytest.mark.long
def test_a_stage_checks_the_constants_that_it_takes(in_stages: Path, tmp_path: Path) -> None:
    """Those of its rotations, and not the table of words, which is the first stage's."""
    content, damaged = in_stages.read_bytes(), tmp_path / "damaged.rsnmodel"
    header = int.from_bytes(content[:8], "little")
    described = {name: x for name, x in json.loads(content[8 : 8 + header]).items() if name.startswith("constant/")}
    found = set()
    for name, of in described.items():
        at = 8 + header + of["data_offsets"][0]
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with suppress(ContainerError):
            load_decoder_stage(damaged, 1)[0].close()
            continue
        found.add(name)
        with pytest.raises(ContainerError, match=f"checksum of {name} differs"):
            load_decoder_stage(damaged, 1)
    largest = max(described, key=lambda name: described[name]["data_offsets"][1] - described[name]["data_offsets"][0])
    assert found
    assert largest not in found


@pytest.mark.long
def test_all_stages_work_at_the_same_time(in_stages: Path) -> None:
    """With as many sets of slots as stages. With one, only one of them does."""
    changed, running, most = threading.Condition(), 0, 0

    def before(number: int) -> None:
        nonlocal running, most
        with changed:
            running += 1
            most = max(most, running)
            changed.notify_all()
            # simulators take turns, so that few of them are here at one time unless they wait for each other
            changed.wait_for(lambda: most == STAGES, 0.01 if groups == 1 else 0.3)
            running -= 1

    for groups in (1, STAGES):
        with on_boards(in_stages, [Rig(before=before) for _ in range(STAGES)], groups) as generations:
            streams = [generations.submit([1 + i, 5], Sampling(max_tokens=8)) for i in range(groups)]
            assert [len(list(stream)) for stream in streams] == [8] * groups
        assert most == groups


@pytest.mark.full
def test_a_decoder_over_three_boards_on_two_copies(in_stages: Path) -> None:
    """A run of some of the boards fails now and then. Tokens are PyTorch's."""
    model = made("Llama")

    def fails(number: int) -> None:
        if number % 29 == 0:  # seldom enough that one of three attempts succeeds
            raise BoardError("the board is gone")

    boards = [Rig(before=fails), Rig(), Rig(before=fails), Rig(), Rig(before=fails), Rig()]
    with on_boards(in_stages, boards, STAGES) as generations:
        assert [len(stages) for stages in generations.copies.reports()] == [STAGES] * 2
        greedy = Sampling(max_tokens=12, stop_tokens=frozenset({END}))
        streams = [generations.submit(prompt, greedy) for prompt in PROMPTS * 2]
        wanted = [answer(model, prompt, 12) for prompt in PROMPTS]
        assert [list(stream) for stream in streams] == wanted * 2
