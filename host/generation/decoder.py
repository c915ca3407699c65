"""A decoder with slots: one program decodes a token of each of several sequences, which have their own positions.

The step is compiled once, for all slots and a cache of `capacity` rows. A prompt is padded on the right to one of a few
lengths, and has a program of its own, compiled when it is first needed, or beside the steps of others (`prepare`).
Causal attention keeps the padding from the rows before it. A prompt longer than a chunk runs in chunks, which attend to
the rows before; one program serves all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.deferred import deferred
from ...base.errors import (
    BoardError,
    CacheFull,
    PositionError,
    PromptTooLong,
    RsnError,
    TensorError,
    UnsupportedError,
    require_torch,
)
from ...isa.layout import Array
from ..closing import Closing
from ..model.compiled import Compiled
from ..model.shared_bank import SharedBank

if TYPE_CHECKING:
    from ...hw.sim.machine import Run
    from ...rsnlib import changes, static_cache
    from ...rsnlib import pipeline as pipelines
    from ...rsnlib import pool as pools
    from ...rsnlib import verification as verifications
else:
    changes = deferred("rsn.rsnlib.changes")
    pipelines = deferred("rsn.rsnlib.pipeline")
    pools = deferred("rsn.rsnlib.pool")
    static_cache = deferred("rsn.rsnlib.static_cache")
    verifications = deferred("rsn.rsnlib.verification")

log = logging.getLogger("rsn.generation")

SHORTEST = 16
"""Rows of the program for the shortest prompts; each further one has twice as many."""
PROBE, LEAST_PROBE = 8, 3
"""Rows of the cache with which a model is tried out, or as many as a shorter window has. With fewer than three it is
not tried."""
NEAR = 1e-3
"""How far logits may be apart there, of the largest one."""
CHUNK = 128
"""Rows of a chunk: those of a block of the machine. While the weights' bandwidth is the bound, a chunk takes about as
long as a step."""


class PromptProgram(NamedTuple):
    """Which program a prompt runs on. rows: of the program. is_chunk: they follow others in the cache; else they are
    the whole prompt."""

    rows: int
    is_chunk: bool


@dataclass
class _Prompt:
    """A prompt of which chunks have run. tokens: all of them. cache: of its sequence. begun: the model's change count.
    done: the tokens whose rows are in the cache."""

    tokens: list[int]
    cache: Any
    begun: int
    done: int = 0


class Decoder(Closing):
    """Decodes sequences of a causal language model of `transformers`. Not for several threads at once, but programs are
    compiled in a thread of its own.

    model: in eval mode, in float32. A change of it counts from the next prompt or step on, as in PyTorch: the keys and
    values of earlier tokens stay. slots: number of sequences that are decoded together. capacity: the most tokens of a
    sequence, its prompt included. chunk: the most rows of a prompt that run at once. board: as for `rsn.compile`. The
    keys and values of all slots stay on the board; the host has them too, so that a board that failed gets them again.
    A layer with a sliding window has as many rows as the window, and a new token replaces the oldest one. Raises what
    `rsn.compile` raises, `UnsupportedError` for a model that attends to chunks of fixed size, or computes something
    else if it is given positions, `PositionError` for a capacity beyond the model's positions, and `TensorError` for
    slots, a capacity or a chunk that are no whole numbers or too small.

    verify: as for `rsn.compile`: the logits of the first call of each program are compared with those of the model in
    PyTorch, for all tokens of the sequence and without a cache. Raises `WrongResultError` if they differ.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 8,
        capacity: int = 512,
        chunk: int = CHUNK,
        board: str = "sim",
        verify: str = "first",
    ) -> None:
        require_torch("generation")
        if not type(slots) is type(capacity) is type(chunk) is int:
            raise TensorError(f"{slots!r} slots of {capacity!r} rows, chunks of {chunk!r}; these are whole numbers")
        if slots < 1 or capacity < 2:
            raise TensorError(f"{slots} slots of {capacity} rows; there must be one of two at least")
        if chunk < 2:
            raise TensorError(f"chunks of {chunk} rows; they have two at least")
        if not hasattr(getattr(model, "config", None), "get_text_config"):
            raise UnsupportedError(f"{type(model).__name__}: no language model of transformers")
        text = model.config.get_text_config(decoder=True)
        if getattr(text, "attention_chunk_size", None) is not None:
            raise UnsupportedError("a model that attends to chunks: each slot would be in a chunk of its own")
        positions = getattr(text, "max_position_embeddings", None)
        if positions is not None and capacity > positions:
            raise PositionError(f"sequences of {capacity} tokens; the model has positions for {positions}")
        self.slots, self.capacity, self.chunk = slots, capacity, min(chunk, capacity)
        self.vocabulary = int(text.vocab_size)
        self._model, self._board = model, board
        self._pipeline, self._pool = pipelines.Pipeline.named("xnn"), pools.Pool()
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
        self._reading: dict[int, _Prompt] = {}
        """By slot, the prompts of which chunks are left."""
        self._begun = [0] * slots
        """The model's change count when the sequence of each slot began."""
        self._verification = verifications.Verification(
            verifications.verify_named(verify), self._in_pytorch, model, lambda: True
        )
        self._closed = False
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest run; None before the first one."""
        self.told: Callable[[], None] = lambda: None
        """Called, in another thread, when a program that `prepare` asked for is there, or cannot be."""
        self._lock = threading.Lock()
        self._compiling: PromptProgram | None = None
        """The program that is being compiled beside, None for none."""
        self._failed: dict[PromptProgram, Exception] = {}
        """The programs that could not be compiled."""
        try:
            self._cache = self._static_cache(slots)
            self._probe(text)
        except RsnError:
            raise
        except Exception as e:
            raise UnsupportedError(
                f"{type(model).__name__}: it does not run with a static cache of keys and values: "
                f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
            ) from e
        self._followed = changes.Followed(model)
        self._seen = self._followed.look()
        self._shared = SharedBank.of(model.parameters(), board, self._pipeline.overlay.name)
        self._step = self._compiled(self._step_arguments({}))
        shortest = self._prompt_programs()[0]
        self._prompts: dict[PromptProgram, Compiled] = {shortest: self._compiled(self._example(shortest))}

    def length(self, slot: int) -> int:
        """The number of tokens of the sequence in a slot, 0 for a free one. Raises `TensorError` for a slot that there
        is not."""
        return len(self._tokens[self._known_slot(slot)])

    @property
    def _lengths(self) -> list[int]:
        return list(map(len, self._tokens))

    def check(self, prompt: Sequence[int]) -> None:
        """Raises `PromptTooLong` for a prompt of more tokens than a sequence may have, `TensorError` for a prompt
        without tokens, and for tokens that are no numbers of the vocabulary."""
        tokens = self._known(prompt)
        if not tokens:
            raise TensorError("a prompt without tokens")
        if len(tokens) > self.capacity:
            raise PromptTooLong(
                f"a prompt of {len(tokens)} tokens; a sequence has at most {self.capacity}, with its answer"
            )

    def prepare(self, tokens: int) -> bool:
        """Return whether there is a program for prompts of this number of tokens. If there is none, another thread
        compiles it, after those that were asked for before, and then calls `told`. Raises the error of compiling."""
        wanted = self._program_of(tokens)
        with self._lock:
            if wanted in self._prompts:
                return True
            if wanted in self._failed:
                raise self._failed[wanted]
            if self._compiling is None and not self._closed:
                self._compiling = wanted
                # The process may end while a daemon compiles.
                threading.Thread(
                    target=self._compile, args=(wanted, self._prompts), name="rsn-compile", daemon=True
                ).start()
            return False

    def warm_up(self) -> None:
        """Compile the programs of prompts of all lengths now. Raises what `rsn.compile` raises."""
        for wanted in self._prompt_programs():
            if wanted not in self._prompts:
                self._prompts[wanted] = self._compiled(self._example(wanted))

    def _compile(self, wanted: PromptProgram, prompts: dict[PromptProgram, Compiled]) -> None:
        """Compile a program of prompts, and add it to `prompts`."""
        made: Compiled | None = None
        error: Exception | None = None
        try:
            made = self._compiled(self._example(wanted))
        except Exception as e:
            error = e
            log.warning("prompts of %d tokens cannot run: %s: %s", wanted.rows, type(e).__name__, e)
        with self._lock:
            self._compiling = None
            if self._closed or prompts is not self._prompts:  # it is of no use any more
                pass
            elif made is not None:
                prompts[wanted], made = made, None
            elif error is not None:
                self._failed[wanted] = error
        if made is not None:
            made.close()
        self.told()

    def _program_of(self, tokens: int) -> PromptProgram:
        """The program for a prompt."""
        return next(p for p in self._prompt_programs() if p.is_chunk or p.rows >= tokens)

    def free(self, slot: int) -> None:
        """Forget the sequence of a slot. Raises `TensorError` for a slot that there is not."""
        self._tokens[self._known_slot(slot)] = []
        self._reading.pop(slot, None)

    def prefill(self, slot: int, tokens: Sequence[int]) -> Array:
        """Begin a sequence in a slot with the tokens of its prompt. Returns the logits behind its last token, float32
        (vocabulary,).

        Raises what `check` raises, `TensorError` for a slot that there is not, `BoardError` if the board fails or the
        decoder is closed, `WrongResultError` if a verified call differs, and what `rsn.compile` raises if the model has
        changed.
        """
        self._reading.pop(self._known_slot(slot), None)
        while (logits := self.prefill_chunk(slot, tokens)) is None:
            pass
        return logits

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
        """Run the next chunk of a prompt, whose sequence begins with its last one. tokens: the whole prompt; another
        one than in the call before begins anew. Returns None if chunks are left, else as `prefill`, and raises as that:
        then the chunk can be run again."""
        import torch

        self.check(tokens)
        known, slot = self._known(tokens), self._known_slot(slot)
        self._follow()
        wanted = self._program_of(len(known))
        prompt = self._reading.get(slot)
        if prompt is None or prompt.tokens != known:
            prompt = _Prompt(known, self._static_cache(1, self.capacity), self._seen)
        first, end = prompt.done, len(known)
        if wanted.is_chunk:  # the last rows of the cache have a chunk that begins before
            first, end = min(first, self.capacity - wanted.rows), min(first + wanted.rows, end)
        arguments = self._prompt_arguments(known[first:end], wanted.rows, prompt.cache, first)
        if wanted in self._failed:
            raise self._failed[wanted]
        if wanted not in self._prompts:
            self._prompts[wanted] = self._compiled(self._example(wanted))
        program, sequences, verified = self._prompts[wanted], [known], None
        is_last = end == len(known)
        if is_last and prompt.begun == self._seen:  # else keys are from before a change of the model
            verified = self._verification.begin(program, (sequences,), {}, wanted)
        with torch.no_grad():
            logits = program(**arguments).logits
            prompt.done = end
            if is_last:
                self._keep(slot, prompt)
        self.last_run = program.last_run
        if not is_last:
            self._reading[slot] = prompt
            return None
        self._reading.pop(slot, None)
        self._tokens[slot], self._begun[slot] = [], prompt.begun
        last = _behind(logits, end - first)
        if verified is not None:
            verified.check([last], (sequences,), {}, layers=program.depth)
            self._verification.passed(program, wanted)
        self._tokens[slot] = known
        return _numbers(last)

    def _keep(self, slot: int, prompt: _Prompt) -> None:
        """Copy the rows of a prompt to the caches of a slot."""
        import torch

        tokens = len(prompt.tokens)
        for whole, own in zip(self._cache.layers, prompt.cache.layers, strict=True):
            count = whole.max_cache_len
            kept = torch.arange(max(0, tokens - count), tokens)
            for name in ("keys", "values"):
                cache = getattr(whole, name)[slot]
                cache.zero_()  # a hidden row counts 0 times its value, which for what is no number is no number
                cache[:, kept % count] = getattr(own, name)[0, :, kept]

    def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """Append a token to each of some slots. tokens: by slot. Returns the logits behind it, float32 (vocabulary,),
        by slot.

        Raises `CacheFull`, before anything runs, for a slot that has `capacity` tokens, `TensorError` for a slot
        without a sequence and for unknown tokens; other errors as `prefill`.
        """
        import torch

        if not isinstance(tokens, Mapping):
            raise TensorError(f"{type(tokens).__name__} instead of a token for each of some slots")
        slots = [self._known_slot(slot) for slot in tokens]
        tokens = dict(zip(slots, self._known(tokens.values()), strict=True))
        for slot in tokens:
            if not self._lengths[slot]:
                raise TensorError(f"slot {slot} has no sequence")
            if self._lengths[slot] >= self.capacity:
                raise CacheFull(f"slot {slot} has {self.capacity} tokens, as many as its cache has rows")
        self._follow()
        # A slot without a token takes a row too: one that its next token writes anew, or none ever reads.
        taken = [min(length, self.capacity - 1) for length in self._lengths]
        counts = {layer.max_cache_len for layer in self._cache.layers}
        rows = {count: [row % count for row in taken] for count in counts}
        sequences, verified = [[*self._tokens[slot], token] for slot, token in tokens.items()], None
        if all(self._begun[slot] == self._seen for slot in tokens):  # else keys are from before a change of the model
            verified = self._verification.begin(self._step, (sequences,), {}, "step")
        with torch.no_grad():
            logits = self._step.step(rows, **self._step_arguments(tokens)).logits
        self.last_run = self._step.last_run
        if verified is not None:
            last = [logits[slot, -1] for slot in tokens]
            verified.check(last, (sequences,), {}, layers=self._step.depth)
            self._verification.passed(self._step, "step")
        for slot, token in tokens.items():
            self._tokens[slot].append(token)
        return {slot: _numbers(logits[slot, -1]) for slot in tokens}

    def close(self) -> None:
        """Release the boards. Further prompts and steps raise `BoardError`."""
        with self._lock:
            self._closed = True
        self._release()

    def _in_pytorch(self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: verifications.ReferenceKind) -> Any:
        """The logits behind the last token of each of some sequences (`verification.Reference`). args: their tokens."""
        import torch

        model = verifications.of_kind(self._model, kind)
        return [model(torch.tensor([tokens]), use_cache=False).logits[0, -1] for tokens in args[0]]

    def _release(self) -> None:
        for compiled in (self._step, *self._prompts.values()):
            compiled.close()

    def _follow(self) -> None:
        """Compile the step anew if the model has changed, and forget the programs of prompts."""
        if self._closed:
            raise BoardError("this decoder is closed")
        seen = self._followed.look()
        if seen == self._seen:
            self._joined = self._shared.changes
            return
        self._shared.changed(self._joined)
        self._release()
        with self._lock:
            self._prompts = {}  # another object: what is being compiled beside is of before
            self._failed.clear()
        cache, self._cache = self._cache, self._static_cache(self.slots)  # tracing may write to it
        try:
            self._step = self._compiled(self._step_arguments({}))
        finally:
            self._cache = cache
        self._seen = seen

    def _compiled(self, arguments: dict[str, Any]) -> Compiled:
        """A program of the model. All programs share their weights, on the host and on the board."""
        traced = self._pool.shared(self._pipeline.trace(self._model, arguments))
        self._joined = self._shared.changes
        return Compiled(traced, self._pipeline.build(traced.network), self._board, shared=self._shared).open()

    def _example(self, program: PromptProgram) -> dict[str, Any]:
        """The arguments that a program of prompts is compiled with."""
        first = self.capacity - program.rows if program.is_chunk else 0
        return self._prompt_arguments([0], program.rows, self._static_cache(1, self.capacity), first)

    def _prompt_arguments(self, tokens: Sequence[int], rows: int, cache: Any, first: int) -> dict[str, Any]:
        """The model's arguments for tokens of a prompt. rows: of the program. cache: of the prompt's sequence. first:
        the row of the first token."""
        import torch

        # padding is the last token again: what is no number for another token must not reach this sequence
        ids = torch.full((1, rows), tokens[-1])
        ids[0, : len(tokens)] = torch.tensor(list(tokens))
        for layer in cache.layers:
            layer.cumulative_length.fill_(first)
        return {
            "input_ids": ids,
            "past_key_values": cache,
            "logits_to_keep": torch.tensor([len(tokens) - 1]),
        }

    def _step_arguments(self, tokens: Mapping[int, int]) -> dict[str, Any]:
        """The model's arguments. The module computes one position for all sequences; that is the last row, so that its
        own masks hide nothing, and the attention mask says what each sequence sees: of a layer with a window its first
        columns. The order of keys does not matter, and they have their positions already."""
        import torch

        mask = torch.zeros(self.slots, self.capacity, dtype=torch.long)
        for slot, length in enumerate(self._lengths):
            mask[slot, : length + 1] = 1
        for layer in self._cache.layers:
            layer.cumulative_length.fill_(layer.max_cache_len - 1)
        other = next(iter(tokens.values()), 0)
        return {
            "input_ids": torch.tensor([[tokens.get(slot, other)] for slot in range(self.slots)]),
            "attention_mask": mask,
            "position_ids": torch.tensor([[min(n, self.capacity - 1)] for n in self._lengths]),
            "past_key_values": self._cache,
        }

    def _probe(self, text: Any) -> None:
        """Raise `UnsupportedError` unless PyTorch computes the same logits for all tokens at once and for a step with
        the arguments that this class gives. text: the model's configuration.

        In the step a sequence's rows need not lie one behind the other: the model must take its position from
        `position_ids`, as it counts them, and what counts from the mask.
        """
        import torch

        window = getattr(text, "sliding_window", None)
        positions = getattr(text, "max_position_embeddings", None)
        rows = min(n for n in (PROBE, window, positions) if n is not None)
        if rows < LEAST_PROBE:
            return
        count = rows - 2  # one row between its tokens and the new one does not count
        tokens = [(7 * i + 3) % self.vocabulary for i in range(count + 1)]
        cache = self._static_cache(1, rows, capacity=rows)
        mask = torch.ones(1, rows, dtype=torch.long)
        mask[0, count] = 0
        with torch.no_grad():
            ids = torch.tensor([tokens])
            found = self._model(ids, use_cache=False)
            if getattr(found, "logits", None) is None:
                raise UnsupportedError(f"{type(self._model).__name__}: its result has no logits")
            wanted = found.logits[0]
            keep = torch.tensor([count - 1])
            prompt = self._model(input_ids=ids[:, :-1], past_key_values=cache, logits_to_keep=keep).logits
            for layer in cache.layers:
                layer.cumulative_length.fill_(rows - 1)
            chunked = self._static_cache(1, rows, capacity=rows)
            for part in ids[:, :1], ids[:, 1:]:
                chunk = self._model(input_ids=part, past_key_values=chunked).logits
                for layer in chunked.layers:
                    layer.cumulative_length.fill_(1)
            step = self._model(
                input_ids=ids[:, -1:],
                attention_mask=mask,
                position_ids=ids.new_tensor([[count]]),
                past_key_values=cache,
            ).logits
        for name, got, want in (
            ("prompt", _behind(prompt, count), wanted[-2]),
            ("chunk of a prompt", chunk[0, -1], wanted[-1]),
            ("step", step[0, -1], wanted[-1]),
        ):
            if not torch.isfinite(want).all():
                return  # the model has what is no number; there is nothing to compare
            if float((got - want).abs().max()) > NEAR * float(want.abs().max()):
                raise UnsupportedError(
                    f"{type(self._model).__name__}: the logits of a {name} with a static cache and `position_ids` "
                    'differ from those without; torch.compile(model.forward, backend="rsn") and `generate` may run it'
                )

    def _static_cache(self, batch: int, rows: int | None = None, *, capacity: int | None = None) -> Any:
        """A cache for some sequences. rows: of the layers with a sliding window; None: as many as the window has.
        capacity: rows of the other layers; None: that of this decoder."""
        return static_cache.empty_cache(self._model.config, batch, capacity or self.capacity, rows)

    def _prompt_programs(self) -> list[PromptProgram]:
        """The programs of prompts: for the lengths that prompts are padded to, then that of chunks, if prompts can be
        longer than one."""
        sizes = [min(SHORTEST, self.chunk)]
        while sizes[-1] < self.chunk:
            sizes.append(min(2 * sizes[-1], self.chunk))
        whole = [PromptProgram(rows, False) for rows in sizes]
        return whole if self.chunk == self.capacity else [*whole, PromptProgram(self.chunk, True)]

    def _known(self, tokens: Iterable[int]) -> list[int]:
        """Tokens as integers. Raises `TensorError` for what is none, and for unknown ones."""
        if not hasattr(tokens, "__len__"):  # a generator could be read once only
            raise TensorError(f"{tokens!r}; a prompt is a sequence of tokens")
        out = []
        for token in tokens:
            try:
                out.append(index(token))
            except TypeError:
                raise TensorError(f"token {token!r}; tokens are integers") from None
            if not 0 <= out[-1] < self.vocabulary:
                raise TensorError(f"token {token}; the vocabulary has {self.vocabulary}")
        return out

    def _known_slot(self, slot: int) -> int:
        if type(slot) is not int or not 0 <= slot < self.slots:
            raise TensorError(f"slot {slot!r}; there are slots 0 to {self.slots - 1}")
        return slot


def _behind(logits: Any, tokens: int) -> Any:
    """The logits behind the first `tokens` tokens: the only row, or theirs, if the model ignores `logits_to_keep` and
    returns a row for each token."""
    return logits[0, -1 if logits.shape[1] == 1 else tokens - 1]


def _numbers(logits: Any) -> Array:
    """A copy of a tensor of logits."""
    numbers: Array = logits.detach().float().numpy().copy()
    return numbers
