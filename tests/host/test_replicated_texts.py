"""Generation on copies of a decoder whose boards fail, and whose processes end with their caches: each text is the one
that it is without."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import BoardError, CacheFull, PromptTooLong, StateLost, TensorError
from rsn.host.generation import Decoder, Sampling
from rsn.host.generation.loaded import DecoderSizes
from rsn.host.model.file import identity
from rsn.host.replicas import replicated, stage, texts
from rsn.host.replicas.decoder_server import DecoderCall, DecoderServer, WholeDecoder
from rsn.host.replicas.pipeline import LocalPipeline, PipelineLost
from rsn.host.replicas.replicated import ReplicatedServer
from rsn.host.replicas.stage import StageDown
from rsn.host.replicas.texts import Generations, RemoteSlots
from rsn.host.serving import QueueFull, RequestTimeout, State

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
        self.fate, self.server = fate, DecoderServer(scripted())
        self.ends = 0

    def ask(self, call: DecoderCall, timeout: float) -> Any:
        what = self.fate() if call.caches else None
        if isinstance(what, Exception):
            raise what
        answer = None if what == "before" else self.server.ask(call).result()
        if what is not None:
            self.ends += 1
            self.server = DecoderServer(scripted())
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


def test_a_caller_learns_that_other_caches_are_there() -> None:
    server = DecoderServer(scripted())
    first = server.ask(DecoderCall("")).result().caches
    second = server.ask(DecoderCall("")).result().caches
    with pytest.raises(StateLost):
        server.ask(DecoderCall(first, prompt=(0, (1,)))).result()
    assert server.ask(DecoderCall(second, prompt=(0, (1,)))).result().logits[0].argmax() == logits_of([1]).argmax()
    server.close()


def test_a_board_that_fails_again_and_again_is_given_up() -> None:
    server = DecoderServer(scripted(fails=[1, 2, 4, 5, 6]))
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
    """A stage whose decoders are `made`; the first ones fail as `fails` says."""

    def __init__(self, *fails: Sequence[int]) -> None:
        self._fails, self.made, self.lock = list(fails), list[Any](), threading.Lock()

    def open(self, board: Any, figures: Any, name: str) -> DecoderServer:
        with self.lock:
            self.made.append(scripted(self._fails.pop(0) if self._fails else ()))
            return DecoderServer(self.made[-1])


@contextmanager
def generations(source: Any, copies: int, **more: Any) -> Iterator[Generations]:
    def start(number: int) -> LocalPipeline:
        return LocalPipeline([source], ["sim"], number, "m")

    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 1}
    with ReplicatedServer(start, copies, **options) as server:
        server.settled()
        with Generations(server, SIZES, **more) as made:
            yield made


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_each_text_is_that_of_a_text_alone(seed: int) -> None:
    choose = random.Random(seed)
    fails = [choose.sample(range(1, 60), 6) for _ in range(2)]
    asked = [
        ([choose.randrange(TOKENS) for _ in range(choose.randint(1, 12))], Sampling(max_tokens=choose.randint(1, 12)))
        for _ in range(16)
    ]
    with generations(Source(*fails), 2) as made:
        streams = [made.submit(prompt, sampling) for prompt, sampling in asked]
        for stream, (prompt, sampling) in zip(streams, asked, strict=True):
            assert (list(stream), stream.reason) == alone(prompt, sampling, SIZES.capacity)


def test_requests_go_to_the_copy_with_the_fewest() -> None:
    source = Source()
    with generations(source, 2) as made:
        assert (made.capacity, made.vocabulary, made.health.state) == (SIZES.capacity, TOKENS, State.READY)
        for decoder in source.made:
            decoder.go.clear()
        streams = [made.submit([1, 2], Sampling(max_tokens=2)) for _ in range(6)]
        assert [made.is_idle(number) for number in range(2)] == [False, False]
        until(lambda: all(each.requests == 3 for each in made._each))
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


@pytest.mark.long
def test_a_decoder_over_two_boards_on_two_copies(tmp_path: Path) -> None:
    """A run of one of the boards fails now and then. Tokens are PyTorch's."""
    model = made("Llama")
    path = tmp_path / "decoder.rsnmodel"
    with Decoder(model, slots=2, capacity=32, boards=2) as decoder:
        decoder.save(path)

    def fails(number: int) -> None:
        if number % 7 == 0:
            raise BoardError("the board is gone")

    boards = [(Rig(before=fails), Rig()), (Rig(), Rig(before=fails))]
    source = WholeDecoder(str(path), identity(path))
    sizes = DecoderSizes(2, 32, 32, TOKENS, (END,))
    options: Any = {"name": "m", "arguments": (), "sizes": {}, "places": 1}
    prompts = [[3, 1, 4], [1, 5, 9, 2, 6], [5], [3, 5, 8, 9]]
    with ReplicatedServer(lambda number: LocalPipeline([source], boards, number, "m"), 2, **options) as server:
        server.settled()
        assert [report.board.count(" + ") for (report,) in server.reports()] == [1, 1]
        with Generations(server, sizes) as generations:
            greedy = Sampling(max_tokens=12, stop_tokens=frozenset({END}))
            streams = [generations.submit(prompt, greedy) for prompt in prompts]
            assert [list(stream) for stream in streams] == [answer(model, prompt, 12) for prompt in prompts]
