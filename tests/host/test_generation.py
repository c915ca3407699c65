"""Continuous batching: each request gets its own tokens, whenever others join, leave, are cancelled, or fail."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MambaConfig,
    MambaForCausalLM,
    MarianConfig,
    MarianForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
    WhisperConfig,
    WhisperForCausalLM,
)

from rsn.base.errors import BoardError, CacheFull, PositionError, PromptTooLong, TensorError, UnsupportedError
from rsn.host.generation import Decoder, Generation, Sampling, Stream
from rsn.host.generation.batching import Event
from rsn.host.serving.health import State
from rsn.host.serving.policy import QueueFull
from rsn.hw.sim.machine import Run
from rsn.tests.effort import cases, examples, full, in_full, long, sampled
from rsn.tests.test_generate import END, OF_GEMMA, SIZES, TOKENS, made

Array = npt.NDArray[np.float32]


def logits_of(tokens: Sequence[int]) -> Array:
    """Those of a model in which the next token depends on all tokens before."""
    return np.random.default_rng(list(tokens)).normal(size=TOKENS).astype(np.float32)


class Scripted:
    """A decoder whose logits are `logits_of` each slot's tokens. fails: the calls that fail, by number. chunk: tokens
    of a prompt that a call takes."""

    vocabulary = TOKENS

    def __init__(self, slots: int = 3, capacity: int = 20, fails: Sequence[int] = (), chunk: int = 20) -> None:
        self.slots, self.capacity, self.chunk = slots, capacity, chunk
        self.held: dict[int, list[int]] = {}
        self.done: dict[int, int] = {}
        self.calls, self.fails, self.widest, self.closed = 0, set(fails), 0, False
        self.go = threading.Event()
        self.go.set()
        self.last_run: Run | None = None

    def prepare(self, tokens: int) -> bool:
        return True

    def _called(self) -> None:
        self.go.wait()
        self.calls += 1
        if self.calls in self.fails:
            raise BoardError("the board is gone")
        self.last_run = Run(1e-3, {}, {}, {})

    def check(self, prompt: Sequence[int]) -> None:
        if not 0 < len(prompt) <= self.capacity or max(prompt) >= TOKENS:
            raise PromptTooLong(f"a prompt of {len(prompt)} tokens, up to {max(prompt, default=0)}")

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
        assert slot not in self.held, "the slot is in use"
        self._called()
        self.done[slot] = self.done.get(slot, 0) + self.chunk
        if self.done[slot] < len(tokens):
            return None
        del self.done[slot]
        self.held[slot] = list(tokens)
        return logits_of(tokens)

    def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        self._called()
        self.widest = max(self.widest, len(tokens))
        out = {}
        for slot, token in tokens.items():
            self.held[slot].append(token)
            assert len(self.held[slot]) <= self.capacity
            out[slot] = logits_of(self.held[slot])
        return out

    def free(self, slot: int) -> None:
        self.held.pop(slot, None)
        self.done.pop(slot, None)

    def close(self) -> None:
        self.closed = True


def alone(tokens: Sequence[int], sampling: Sampling, capacity: int = 20) -> tuple[list[int], str]:
    """The answer that a request must get, whatever else runs."""
    own, generator, out = list(tokens), sampling.generator(), list[int]()
    while True:
        token = sampling.token(logits_of(own), generator, out)
        if token in sampling.stop_tokens:
            return out, "stop"
        out.append(token)
        own.append(token)
        if len(out) == sampling.max_tokens or len(own) > capacity:
            return out, "length"


def test_more_requests_than_slots() -> None:
    decoder = Scripted()
    prompts = [[k, k + 1] for k in range(10)]
    with Generation(decoder) as generation:
        streams = [generation.submit(prompt, Sampling(max_tokens=4 + k)) for k, prompt in enumerate(prompts)]
        for k, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            assert (list(stream), stream.reason) == alone(prompt, Sampling(max_tokens=4 + k))
    assert (decoder.widest, decoder.held, decoder.closed) == (3, {}, True)


def test_a_stop_token_is_no_part_of_the_text() -> None:
    tokens, _ = alone([5], Sampling(max_tokens=3))
    stop = Sampling(max_tokens=9, stop_tokens=frozenset({tokens[2]}))
    with Generation(Scripted()) as generation:
        stream = generation.submit([5], stop)
        assert (list(stream), stream.reason) == (tokens[:2], "stop")


def test_a_full_cache_ends_a_text() -> None:
    with Generation(Scripted(capacity=6)) as generation:
        stream = generation.submit([1, 2, 3], Sampling(max_tokens=50))
        assert (list(stream), stream.reason) == alone([1, 2, 3], Sampling(max_tokens=50), 6)
        assert stream.reason == "length"


def test_a_cancelled_request_frees_its_slot() -> None:
    decoder = Scripted(slots=1)
    decoder.go.clear()
    with Generation(decoder) as generation:
        first, second = (generation.submit([k], Sampling(max_tokens=15)) for k in (1, 2))
        waiting = generation.submit([3])
        first.cancel()
        waiting.cancel()
        decoder.go.set()
        assert len(list(first)) < 15
        assert first.reason == "cancelled"
        assert (list(waiting), waiting.reason) == ([], "cancelled")
        assert list(second) == alone([2], Sampling(max_tokens=15))[0]


def test_a_board_that_fails_once_changes_nothing() -> None:
    with Generation(Scripted(fails=(1, 4))) as generation:
        assert list(generation.submit([7], Sampling(max_tokens=6))) == alone([7], Sampling(max_tokens=6))[0]
        assert generation.health.failures == 2


def test_a_board_that_stays_away_is_an_error_of_its_requests() -> None:
    with Generation(Scripted(fails=(3, 4))) as generation:
        stream = generation.submit([7], Sampling(max_tokens=6))
        with pytest.raises(BoardError, match="gone"):
            list(stream)
        assert list(generation.submit([7], Sampling(max_tokens=6))) == alone([7], Sampling(max_tokens=6))[0]


def test_logits_that_are_no_numbers_are_an_error_of_their_request() -> None:
    class Spoilt(Scripted):
        def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
            return {slot: x * (np.nan if self.held[slot][0] == 1 else 1) for slot, x in super().step(tokens).items()}

    with Generation(Spoilt()) as generation:
        for sampling in (Sampling(max_tokens=3), Sampling(max_tokens=3, temperature=1.0, seed=1)):
            spoilt, good = (generation.submit([k], sampling) for k in (1, 2))
            with pytest.raises(TensorError, match="largest logit is nan"):
                list(spoilt)
            assert list(good) == alone([2], sampling)[0]


def test_a_caller_whose_function_raises_harms_itself_only(logged: list[logging.LogRecord]) -> None:
    def heard(event: Event) -> None:
        raise RuntimeError("closed loop")

    decoder = Scripted()
    with Generation(decoder) as generation:
        lost, kept = generation.submit([1], heard=heard), generation.submit([2], Sampling(max_tokens=3))
        assert list(kept) == alone([2], Sampling(max_tokens=3))[0]
    assert lost.is_cancelled
    assert not decoder.held
    assert any("closed loop" in str(record.exc_info) for record in logged)


def test_a_cancelled_request_may_be_followed_by_another_at_once() -> None:
    decoder, others = Scripted(slots=1), SimpleQueue[Stream]()
    decoder.go.clear()

    def heard(event: Event) -> None:
        if event.reason == "cancelled":
            others.put(generation.submit([2], Sampling(max_tokens=2)))

    with Generation(decoder) as generation:
        streams = [generation.submit([k], heard=heard) for k in (1, 3)]
        for stream in streams:
            stream.cancel()
        decoder.go.set()
        for _ in streams:
            assert list(others.get(timeout=30)) == alone([2], Sampling(max_tokens=2))[0]


def test_an_unforeseen_error_ends_all_requests() -> None:
    class Broken(Scripted):
        def free(self, slot: int) -> None:
            raise RuntimeError("a bug")

    decoder = Broken(slots=1)
    decoder.go.clear()
    with Generation(decoder) as generation:
        streams = [generation.submit([k], Sampling(max_tokens=2)) for k in range(3)]
        decoder.go.set()
        for stream in streams:
            with pytest.raises(RuntimeError, match="a bug"):
                list(stream)
        with pytest.raises(BoardError, match="closed"):
            generation.submit([1])
    assert (generation.health.state, generation.health.error) == (State.CLOSED, "RuntimeError: a bug")
    assert decoder.closed


def test_wrong_requests() -> None:
    decoder = Scripted(slots=1)
    decoder.go.clear()
    with Generation(decoder, queue=1) as generation:
        for wrong in ([], [1] * 21, [TOKENS]):
            with pytest.raises(PromptTooLong, match=f"{len(wrong)} tokens"):
                generation.submit(wrong)
        for value in (2, -1, float("nan"), 10**400):
            with pytest.raises(TensorError, match="top_p is"):
                Sampling(top_p=value)
        with pytest.raises(TensorError, match="temperature is inf"):
            Sampling(temperature=float("inf"))
        streams: list[Stream] = []
        with pytest.raises(QueueFull):
            streams.extend(generation.submit([k]) for k in range(9))
        decoder.go.set()
    with pytest.raises(BoardError, match="closed"):
        generation.submit([1])


@examples(200, 20)
@given(st.integers(0, 2**32))
def test_joins_leaves_and_cancels(seed: int) -> None:
    """No token of one request reaches another, and none is lost."""
    draw = random.Random(seed)
    decoder = Scripted(draw.randint(1, 4), draw.randint(5, 20), [draw.randint(1, 30)], draw.randint(1, 5))
    wanted = []
    with Generation(decoder) as generation:
        for k in range(draw.randint(1, 12)):
            prompt = [draw.randrange(TOKENS) for _ in range(draw.randint(1, 5))]
            sampling = Sampling(
                max_tokens=draw.randint(1, 12),
                temperature=draw.choice([0.0, 0.7, 1.5]),
                top_k=draw.choice([0, 5]),
                top_p=draw.choice([1.0, 0.5]),
                seed=k,
                stop_tokens=frozenset(draw.sample(range(TOKENS), 5)),
            )
            stream = generation.submit(prompt, sampling)
            is_cancelled = draw.random() < 0.2
            if is_cancelled:
                stream.cancel()
            wanted.append((stream, is_cancelled, alone(prompt, sampling, decoder.capacity)))
        for stream, is_cancelled, (tokens, reason) in wanted:
            got = list(stream)
            if is_cancelled and stream.reason == "cancelled":
                assert got == tokens[: len(got)]
            else:
                assert (got, stream.reason) == (tokens, reason)
    assert not decoder.held


def test_sampling() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32))
    drawn = {Sampling(temperature=1.0, top_p=0.6, seed=k).token(logits, np.random.default_rng(k)) for k in range(50)}
    assert drawn == {2, 3}
    drawn = {Sampling(temperature=1.0, top_k=1).token(logits, np.random.default_rng(k)) for k in range(9)}
    assert drawn == {3} == {Sampling(temperature=5.0, top_p=0.0).token(logits, np.random.default_rng(1))}
    for temperature in (5e-324, 1e-320, 1e-9):
        assert Sampling(temperature=temperature).token(logits, np.random.default_rng(1)) == 3
    masked = np.array([-np.inf, 1, -np.inf, 1], np.float32)
    drawn = {Sampling(temperature=1e308).token(masked, np.random.default_rng(k)) for k in range(20)}
    assert drawn == {1, 3}
    assert Sampling().token(np.zeros(4, np.float32), np.random.default_rng()) == 0


# -- on the machine


def answer(model: object, prompt: Sequence[int], tokens: int) -> list[int]:
    """PyTorch's greedy tokens."""
    out = model.generate(  # type: ignore[attr-defined]
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=tokens,
        do_sample=False,
    )
    found: list[int] = out[0, len(prompt) :].tolist()
    return found[: found.index(END)] if END in found else found


@pytest.mark.parametrize("name", ["Llama", pytest.param("GPT-2", marks=pytest.mark.long)])
def test_tokens_of_requests_that_join_and_leave(name: str) -> None:
    """On the simulator, with slots at different positions."""
    model = made(name)
    prompts = [[3, 9, 4], [17], list(range(20, 38)), [5, 5]]
    with Generation(Decoder(model, slots=2, capacity=40)) as generation:
        counts = [6, 9, 4, 5]
        stop = frozenset({END})
        streams = [
            generation.submit(prompt, Sampling(max_tokens=n, stop_tokens=stop))
            for prompt, n in zip(prompts, counts, strict=True)
        ]
        got = [list(stream) for stream in streams]
    assert got == [answer(model, prompt, n) for prompt, n in zip(prompts, counts, strict=True)]


@pytest.mark.parametrize(
    ("name", "chunk"),
    [full("Llama", 8), full("GPT-2", 16), long("Gemma 3", 8)],
)
def test_prompts_in_chunks(name: str, chunk: int) -> None:
    """Prompts longer than a chunk, also up to the last row of the cache, between the steps of another text."""
    model = made(name)
    prompts = [[3, 9, 4], [7 * k % END for k in range(19)], [5 * k % END for k in range(40)]]
    counts = [12, 9, 1]
    with Decoder(model, slots=2, capacity=40, chunk=chunk) as decoder, Generation(decoder) as generation:
        streams = [generation.submit(p, Sampling(max_tokens=n)) for p, n in zip(prompts, counts, strict=True)]
        got = [list(stream) for stream in streams]
        assert max(program.rows for program in decoder._prompts) == chunk
    assert got == [alone_in_pytorch(model, p, n) for p, n in zip(prompts, counts, strict=True)]


def alone_in_pytorch(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """Greedy tokens, each from all tokens before, without a cache."""
    own = list(prompt)
    with torch.no_grad():
        for _ in range(tokens):
            own.append(int(model(torch.tensor([own]), use_cache=False).logits[0, -1].argmax()))
    return own[len(prompt) :]


@pytest.mark.long
def test_prompts_and_steps_share_the_weights_of_a_board() -> None:
    """All programs have the same bank of weights, little larger than that of the step alone; the board has it once."""
    with Decoder(made("Llama"), slots=2, capacity=40) as decoder:
        decoder.prefill(0, [1] * 20)
        compiled = [decoder._step, *decoder._prompts.values()]
        programs = [x._on_board.runner.program for x in compiled]
        banks = [tuple(b for b in program.buffers if b.bank == "lpddr") for program in programs]
        assert len(programs) == 3
        assert banks[0] == banks[1] == banks[2]
        assert programs[0].bank_size("lpddr") < 1.2 * decoder._step.program.bank_size("lpddr")
        held = [x._on_board.runner._boards._boards[0]._memories.banks["lpddr"] for x in compiled]  # type: ignore[attr-defined]
        assert held[0] is held[1] is held[2]


@pytest.mark.long
def test_weights_that_change_between_tokens() -> None:
    """Keys and values of before stay, as in PyTorch; prompts and steps from then on have the new weights."""
    model = made("Llama")
    prompts = {0: [3, 9, 4], 1: list(range(20, 38))}
    with Decoder(model, slots=2, capacity=40) as decoder, torch.no_grad():
        wanted = model(torch.tensor([prompts[0]]), use_cache=True)
        assert difference(decoder.prefill(0, prompts[0]), wanted.logits[0, -1]) < 1e-5
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
        model.lm_head.weight.mul_(0.5)
        own = model(torch.tensor([prompts[1]]), use_cache=True)
        assert difference(decoder.prefill(1, prompts[1]), own.logits[0, -1]) < 1e-5
        got = decoder.step({0: 7, 1: 8})
        for slot, cache in enumerate((wanted.past_key_values, own.past_key_values)):
            then = model(torch.tensor([[7 + slot]]), past_key_values=cache)
            assert difference(got[slot], then.logits[0, -1]) < 1e-5


def difference(got: Array, wanted: torch.Tensor) -> float:
    return float((torch.from_numpy(got) - wanted).abs().max() / wanted.abs().max())


WINDOWED: dict[str, Callable[[int], Any]] = {
    "Mistral": lambda w: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=w)),
    "Gemma 3": lambda w: Gemma3ForCausalLM(Gemma3TextConfig(**OF_GEMMA | {"sliding_window": w})),
    "Qwen2": lambda w: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, sliding_window=w, use_sliding_window=True, max_window_layers=1)
    ),
    "Phi-3": lambda w: Phi3ForCausalLM(Phi3Config(**SIZES, sliding_window=w)),
    "StarCoder2": lambda w: Starcoder2ForCausalLM(Starcoder2Config(**SIZES, sliding_window=w)),
}
"""Models with windows in all layers, or in some."""


def windowed(name: str, window: int) -> Any:
    """A model in which other tokens matter: its weights are larger than a new model's."""
    torch.manual_seed(1)
    model = WINDOWED[name](window).eval()
    for path, weight in model.named_parameters():
        if weight.ndim > 1 and ".layers." in path:
            weight.data.mul_(6)
    return model


def decode_beside_pytorch(model: Any, seed: int, rounds: int, capacity: int, board: str = "sim") -> float:
    """Slots with prompts of any lengths, which join and leave between steps. Returns the largest difference of the
    logits from those of PyTorch, which gets all tokens of a sequence at once and has no cache."""
    draw, worst, slots = random.Random(seed), 0.0, 3
    held: dict[int, list[int]] = {}

    def compare(slot: int, got: Array) -> None:
        nonlocal worst
        wanted = model(torch.tensor([held[slot]]), use_cache=False).logits[0, -1]
        worst = max(worst, difference(got, wanted))

    with Decoder(model, slots=slots, capacity=capacity, board=board) as decoder, torch.no_grad():
        for _ in range(rounds):
            slot = draw.randrange(slots)
            if slot in held and draw.random() < 0.3:
                decoder.free(slot)
                del held[slot]
            elif slot not in held:
                held[slot] = [draw.randrange(END) for _ in range(draw.randint(1, capacity))]
                compare(slot, decoder.prefill(slot, held[slot]))
            for _ in range(draw.randint(1, 6)):
                own = {k: draw.randrange(END) for k in held if len(held[k]) < capacity and draw.random() < 0.8}
                for k, token in own.items():
                    held[k].append(token)
                for k, logits in decoder.step(own).items() if own else ():
                    compare(k, logits)
    return worst


@in_full
@pytest.mark.parametrize(
    ("name", "window"),
    [full("Mistral", 8)]
    + [(long if w == 30 else full)("Gemma 3", w) for w in (1, 5, 16, 29, 30, 31)]
    + [full(name, w) for name in WINDOWED for w in (7, 4096)],
)
def test_sliding_windows(name: str, window: int) -> None:
    """Prompts and steps beyond the window, windows up to the capacity and longer."""
    assert decode_beside_pytorch(windowed(name, window), window, cases(8, 4), 30) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(WINDOWED, {"Gemma 3"}, full))
def test_sliding_windows_on_the_cpp_machine(name: str) -> None:
    assert decode_beside_pytorch(windowed(name, 8), 3, 4, 20, "csim") < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(WINDOWED, {"Gemma 3"}, full))
def test_requests_to_models_with_windows(name: str) -> None:
    """Greedy tokens of requests that wait for slots, more than two windows of them."""
    tokens = cases(64, 14)
    model = windowed(name, 6)
    prompts = [[3, 9, 4], [17], list(range(20, 38)), [5, 5]]
    with Generation(Decoder(model, slots=2, capacity=tokens + 20)) as generation:
        sampling = Sampling(max_tokens=tokens, stop_tokens=frozenset({END}))
        streams = [generation.submit(prompt, sampling) for prompt in prompts]
        got = [list(stream) for stream in streams]
    assert got == [answer(model, prompt, tokens) for prompt in prompts]


def test_caches_of_other_kinds_are_refused() -> None:
    chunked = Llama4TextConfig(**SIZES, head_dim=16, attention_chunk_size=8)
    with pytest.raises(UnsupportedError, match="attends to chunks"):
        Decoder(Llama4ForCausalLM(chunked).eval(), slots=1, capacity=24)
    recurrent = Qwen3NextConfig(**SIZES, num_experts=2)
    with pytest.raises(UnsupportedError, match="a static cache with a LinearAttentionLayer"):
        Decoder(Qwen3NextForCausalLM(recurrent).eval(), slots=1, capacity=24)


@pytest.mark.long
def test_errors_of_a_decoder() -> None:
    model = made("GPT-2")
    with pytest.raises(PositionError, match="300 tokens; the model has positions for 256"):
        Decoder(model, capacity=300)
    with Decoder(model, slots=1, capacity=4) as decoder:
        with pytest.raises(TensorError, match="slot 0 has no sequence"):
            decoder.step({0: 1})
        with pytest.raises(PromptTooLong, match="5 tokens"):
            decoder.prefill(0, [1] * 5)
        with pytest.raises(TensorError, match="without tokens"):
            decoder.prefill(0, [])
        with pytest.raises(TensorError, match=r"token 3\.7; tokens are integers"):
            decoder.prefill(0, [3.7])  # type: ignore[list-item]
        with pytest.raises(TensorError, match="token 96"):
            decoder.prefill(0, [96])
        with pytest.raises(TensorError, match="token -1"):
            decoder.check([-1])
        decoder.prefill(0, [1, 2, 3])
        decoder.step({0: 4})
        with pytest.raises(CacheFull, match="slot 0 has 4 tokens"):
            decoder.step({0: 5})


# -- models and arguments that a decoder must not take as others ------------------------------------------------------

OF_DECODERS = {
    "vocab_size": TOKENS, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 95, "is_decoder": True,
    "max_position_embeddings": 256,
}  # fmt: skip
OF_BART = OF_DECODERS | {
    "d_model": 64, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
    "decoder_ffn_dim": 96, "encoder_ffn_dim": 96, "decoder_start_token_id": 2,
}  # fmt: skip
OF_ROBERTA = OF_DECODERS | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def larger(model: Any) -> Any:
    """With layers that matter."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1 and ".layer" in name:
            weight.data.mul_(6)
    return model.eval()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MarianForCausalLM(MarianConfig(**OF_BART, decoder_vocab_size=TOKENS)),  # without position_ids
        lambda: RobertaForCausalLM(RobertaConfig(**OF_ROBERTA)),  # whose positions begin elsewhere
    ],
)
def test_models_with_positions_of_their_own_are_refused(make: Callable[[], Any]) -> None:
    torch.manual_seed(1)
    with pytest.raises(UnsupportedError, match="the logits of a step with a static cache and `position_ids` differ"):
        Decoder(larger(make()), slots=1, capacity=20)


@pytest.mark.long
def test_a_model_that_computes_all_logits_of_a_prompt() -> None:
    torch.manual_seed(1)
    model = larger(WhisperForCausalLM(WhisperConfig(**OF_BART, max_target_positions=256)))
    with Decoder(model, slots=1, capacity=20) as decoder, torch.no_grad():
        for count in (5, 15, 16, 17, 20):
            prompt = [(3 * i + 2) % 90 + 2 for i in range(count)]
            want = model(torch.tensor([prompt]), use_cache=False).logits[0, -1].numpy()
            assert np.abs(decoder.prefill(0, prompt) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MambaForCausalLM(MambaConfig(vocab_size=TOKENS, hidden_size=64, num_hidden_layers=2)).eval(), "Mamba"),
        (lambda: made("Llama").model, "LlamaModel: its result has no logits"),
        (lambda: torch.nn.Linear(2, 2), "Linear: no language model"),
        (lambda: "Llama", "str: no language model"),
    ],
)
def test_what_is_no_model_with_a_cache_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Decoder(make(), slots=1, capacity=4)


@pytest.mark.parametrize("sizes", [{"slots": "2"}, {"slots": 1.5}, {"slots": True}, {"capacity": 10.5}, {"chunk": "1"}])
def test_sizes_that_are_no_numbers(sizes: dict[str, Any]) -> None:
    with pytest.raises(TensorError, match="these are whole numbers"):
        Decoder(made("Llama"), **sizes)


@pytest.mark.long
def test_slots_and_tokens_that_there_are_not() -> None:
    with Decoder(made("Llama"), slots=2, capacity=20) as decoder:
        decoder.prefill(0, [1, 2, 3])
        decoder.prefill(1, [4, 5, 6])
        for call in (
            lambda: decoder.step({-1: 7}), lambda: decoder.step({2: 5}), lambda: decoder.step({"0": 5}),
            lambda: decoder.prefill(2, [1]), lambda: decoder.free(5), lambda: decoder.length(-1),
        ):  # fmt: skip
            with pytest.raises(TensorError, match="there are slots 0 to 1"):
                call()
        for tokens in (torch.tensor([3.7, 2.2]), torch.tensor([[3, 2]]), 3, [3.5], ["a"], iter([3])):
            with pytest.raises(TensorError):
                decoder.prefill(0, tokens)  # type: ignore[arg-type]
        with pytest.raises(TensorError, match="list instead of a token for each of some slots"):
            decoder.step([1, 2])  # type: ignore[arg-type]
        assert [decoder.length(slot) for slot in range(2)] == [3, 3]
        first = decoder.prefill(0, torch.tensor([3, 2]))
        np.testing.assert_array_equal(decoder.prefill(1, [3, 2]), first)
    with torch.no_grad():
        decoder._model.lm_head.weight.mul_(1.5)
    with pytest.raises(BoardError, match="this decoder is closed"):
        decoder.prefill(0, [1])


@pytest.mark.long
def test_what_is_no_number_for_another_token_reaches_nobody() -> None:
    """Padding and slots without a token take tokens of the requests."""
    model = made("Llama")
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = float("nan")
        with Decoder(model, slots=2, capacity=28) as decoder:
            found = [decoder.prefill(1, [1, 2, 3]), decoder.step({1: 5})[1]]
        for logits, tokens in zip(found, ([1, 2, 3], [1, 2, 3, 5]), strict=True):
            want = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].numpy()
            kept = np.isfinite(want)
            assert np.abs(logits - want)[kept].max() <= 1e-5 * np.abs(want[kept]).max()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": 2.5}, {"max_tokens": "x"}, {"max_tokens": None}, {"max_tokens": 0}, {"top_k": 2.5}, {"seed": -1},
        {"seed": 1.5}, {"temperature": "hot"}, {"temperature": float("nan")}, {"top_p": 1.5}, {"top_p": None},
        {"stop_tokens": 5}, {"stop_tokens": ["a"]}, {"stop_tokens": "ab"},
    ],
)  # fmt: skip
def test_sampling_out_of_range(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(TensorError, match=f"{name} is "):
        Sampling(**wrong)


def test_sampling_is_no_dictionary() -> None:
    with Generation(Scripted()) as generation, pytest.raises(TensorError, match="dict instead of Sampling"):
        generation.submit([1], {"max_tokens": 3})  # type: ignore[arg-type]


def test_a_listener_that_leaves_by_any_exception_ends_its_request_alone() -> None:
    decoder = Scripted(slots=2)
    decoder.go.clear()

    def heard(event: Event) -> None:
        raise SystemExit(1)

    with Generation(decoder) as generation:
        stream = generation.submit([1], Sampling(max_tokens=10))
        generation.submit([2], heard=heard)
        decoder.go.set()
        assert list(stream) == alone([1], Sampling(max_tokens=10))[0]
        assert list(generation.submit([3], Sampling(max_tokens=2))) == alone([3], Sampling(max_tokens=2))[0]


def test_cancelled_requests_leave_the_queue() -> None:
    decoder = Scripted(slots=1)
    decoder.go.clear()
    with Generation(decoder, queue=2) as generation:
        generation.submit([1], Sampling(max_tokens=8))
        while decoder.calls or generation._waiting:  # until it has begun
            pass
        waiting = [generation.submit([2]), generation.submit([3])]
        with pytest.raises(QueueFull):
            generation.submit([4])
        for stream in waiting:
            stream.cancel()
        last = generation.submit([4], Sampling(max_tokens=2))
        decoder.go.set()
        assert [list(stream) for stream in waiting] == [[], []]
        assert [stream.reason for stream in waiting] == ["cancelled", "cancelled"]
        assert list(last) == alone([4], Sampling(max_tokens=2))[0]


# -- programs of prompts that are compiled beside


class Compiling(Scripted):
    """A decoder in which the programs of prompts of more than two tokens are compiled until `finish`."""

    told: Callable[[], None]

    def __init__(self, error: Exception | None = None, slots: int = 2) -> None:
        super().__init__(slots)
        self.is_compiled, self.error = False, error

    def prepare(self, tokens: int) -> bool:
        if self.is_compiled and self.error is not None and tokens > 2:
            raise self.error
        return self.is_compiled or tokens <= 2

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
        if not self.prepare(len(tokens)):
            raise AssertionError("not compiled")
        return super().prefill_chunk(slot, tokens)

    def finish(self) -> None:
        self.is_compiled = True
        self.told()


def test_requests_pass_one_whose_program_is_being_compiled() -> None:
    decoder = Compiling()
    with Generation(decoder) as generation:
        long, left = generation.submit([1, 2, 3], Sampling(3)), generation.submit([1, 2, 3])
        for k in range(4):
            assert list(generation.submit([k], Sampling(5))) == alone([k], Sampling(5))[0]
        left.cancel()
        assert (list(left), left.reason) == ([], "cancelled")
        decoder.finish()
        assert list(long) == alone([1, 2, 3], Sampling(3))[0]


def test_a_program_that_cannot_be_compiled_is_an_error_of_its_requests() -> None:
    decoder = Compiling(UnsupportedError("too long"))
    with Generation(decoder) as generation:
        long = generation.submit([1, 2, 3])
        decoder.finish()
        with pytest.raises(UnsupportedError, match="too long"):
            list(long)
        assert list(generation.submit([1], Sampling(5))) == alone([1], Sampling(5))[0]


def test_one_chunk_of_a_prompt_runs_between_two_steps_of_others() -> None:
    order: list[str] = []

    class Ordered(Scripted):
        def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
            order.append("prompt")
            return super().prefill_chunk(slot, tokens)

        def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
            order.append("step")
            self.slots = 6
            return super().step(tokens)

    decoder = Ordered(slots=1, chunk=2)
    decoder.go.clear()
    with Generation(decoder) as generation:
        streams = [generation.submit([0], Sampling(12))]
        while not order:
            time.sleep(0.002)
        streams += [generation.submit([k] * k, Sampling(4)) for k in range(1, 6)]
        decoder.go.set()
        for stream in streams:
            list(stream)
    joined = order[order.index("step") :]
    assert joined.count("prompt") == 1 + 1 + 2 + 2 + 3
    assert all(pair != ("prompt", "prompt") for pair in pairwise(joined))


@pytest.mark.long
def test_prompts_are_compiled_beside_the_steps() -> None:
    """On the simulator: steps go on; the program has the model's logits; after a change of the model it is another."""
    model, told = made("Llama"), threading.Event()
    with Decoder(model, slots=2, capacity=40) as decoder, torch.no_grad():
        decoder.told = told.set
        decoder.prefill(0, [3, 9, 4])
        assert decoder.prepare(3)
        assert not decoder.prepare(20)
        steps = 0
        while not told.is_set():
            if steps < 30:
                decoder.step({0: 5})
            steps += 1
        assert steps > 1
        assert decoder.prepare(20)
        prompt = list(range(20, 40))
        got = decoder.prefill(1, prompt)
        assert difference(got, model(torch.tensor([prompt])).logits[0, -1]) < 1e-5
        told.clear()
        assert not decoder.prepare(33)
        model.model.layers[0].mlp.up_proj.weight.mul_(2)
        got = decoder.prefill(1, prompt)
        assert difference(got, model(torch.tensor([prompt])).logits[0, -1]) < 1e-5
        assert told.wait(120)
        got = decoder.prefill(1, list(range(35)))
        assert difference(got, model(torch.tensor([list(range(35))])).logits[0, -1]) < 1e-5
