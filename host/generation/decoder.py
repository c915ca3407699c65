"""A decoder with slots: one program decodes a token of each of several sequences, which have their own positions.

The step is compiled once, for all slots and a cache of `capacity` rows. A prompt is padded on the right to one of a few
lengths, and has a program of its own, compiled when it is first needed, or beside the steps of others (`prepare`).
Causal attention keeps the padding from the rows before it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

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


class Decoder(Closing):
    """Decodes sequences of a causal language model of `transformers`. Not for several threads at once, but programs are
    compiled in a thread of its own.

    model: in eval mode, in float32. A change of it counts from the next prompt or step on, as in PyTorch: the keys and
    values of earlier tokens stay. slots: number of sequences that are decoded together. capacity: the most tokens of a
    sequence, its prompt included. board: as for `rsn.compile`. The keys and values of all slots stay on the board; the
    host has them too, so that a board that failed gets them again. A layer with a sliding window has as many rows as
    the window, and a new token replaces the oldest one. Raises what `rsn.compile` raises, `UnsupportedError` for a
    model that attends to chunks, or computes something else if it is given positions, `PositionError` for a capacity
    beyond the model's positions, and `TensorError` for slots or a capacity that are no whole numbers or too small.

    verify: as for `rsn.compile`: the logits of the first call of each program are compared with those of the model in
    PyTorch, for all tokens of the sequence and without a cache. Raises `WrongResultError` if they differ.
    """

    def __init__(
        self, model: Any, *, slots: int = 8, capacity: int = 512, board: str = "sim", verify: str = "first"
    ) -> None:
        require_torch("generation")
        if type(slots) is not int or type(capacity) is not int:
            raise TensorError(f"{slots!r} slots of {capacity!r} rows; both are whole numbers")
        if slots < 1 or capacity < 2:
            raise TensorError(f"{slots} slots of {capacity} rows; there must be one of two at least")
        if not hasattr(getattr(model, "config", None), "get_text_config"):
            raise UnsupportedError(f"{type(model).__name__}: no language model of transformers")
        text = model.config.get_text_config(decoder=True)
        if getattr(text, "attention_chunk_size", None) is not None:
            raise UnsupportedError("a model that attends to chunks: each slot would be in a chunk of its own")
        positions = getattr(text, "max_position_embeddings", None)
        if positions is not None and capacity > positions:
            raise PositionError(f"sequences of {capacity} tokens; the model has positions for {positions}")
        self.slots, self.capacity = slots, capacity
        self.vocabulary = int(text.vocab_size)
        self._model, self._board = model, board
        self._pipeline, self._pool = pipelines.Pipeline.named("xnn"), pools.Pool()
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
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
        self._compiling: int | None = None
        """The rows of the program that is being compiled beside, None for none."""
        self._failed: dict[int, Exception] = {}
        """By their rows, the programs that could not be compiled."""
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
        shortest = self._prompt_sizes()[0]
        self._prompts: dict[int, Compiled] = {shortest: self._compiled(self._prompt_arguments([0], shortest))}

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
        rows = self._rows(tokens)
        with self._lock:
            if rows in self._prompts:
                return True
            if rows in self._failed:
                raise self._failed[rows]
            if self._compiling is None and not self._closed:
                self._compiling = rows
                # The process may end while a daemon compiles.
                threading.Thread(
                    target=self._compile, args=(rows, self._prompts), name="rsn-compile", daemon=True
                ).start()
            return False

    def warm_up(self) -> None:
        """Compile the programs of prompts of all lengths now. Raises what `rsn.compile` raises."""
        for rows in self._prompt_sizes():
            if rows not in self._prompts:
                self._prompts[rows] = self._compiled(self._prompt_arguments([0], rows))

    def _compile(self, rows: int, prompts: dict[int, Compiled]) -> None:
        """Compile the program for prompts of this number of rows, and add it to `prompts`."""
        made: Compiled | None = None
        error: Exception | None = None
        try:
            made = self._compiled(self._prompt_arguments([0], rows))
        except Exception as e:
            error = e
            log.warning("prompts of %d tokens cannot run: %s: %s", rows, type(e).__name__, e)
        with self._lock:
            self._compiling = None
            if self._closed or prompts is not self._prompts:  # it is of no use any more
                pass
            elif made is not None:
                prompts[rows], made = made, None
            elif error is not None:
                self._failed[rows] = error
        if made is not None:
            made.close()
        self.told()

    def _rows(self, tokens: int) -> int:
        """The rows of the program for a prompt."""
        return next(n for n in self._prompt_sizes() if n >= tokens)

    def free(self, slot: int) -> None:
        """Forget the sequence of a slot. Raises `TensorError` for a slot that there is not."""
        self._tokens[self._known_slot(slot)] = []

    def prefill(self, slot: int, tokens: Sequence[int]) -> Array:
        """Begin a sequence in a slot with the tokens of its prompt. Returns the logits behind its last token, float32
        (vocabulary,).

        Raises what `check` raises, `TensorError` for a slot that there is not, `BoardError` if the board fails or the
        decoder is closed, `WrongResultError` if a verified call differs, and what `rsn.compile` raises if the model has
        changed.
        """
        import torch

        self.check(tokens)
        tokens, slot = self._known(tokens), self._known_slot(slot)
        self._follow()
        rows = self._rows(len(tokens))
        arguments = self._prompt_arguments(tokens, rows)
        if rows in self._failed:
            raise self._failed[rows]
        if rows not in self._prompts:
            self._prompts[rows] = self._compiled(arguments)
        program, sequences = self._prompts[rows], [list(tokens)]
        verified = self._verification.begin(program, (sequences,), {}, rows)
        with torch.no_grad():
            logits = program(**arguments).logits
            for whole, own in zip(self._cache.layers, arguments["past_key_values"].layers, strict=True):
                count = whole.max_cache_len
                kept = torch.arange(max(0, len(tokens) - count), len(tokens))
                for name in ("keys", "values"):
                    cache = getattr(whole, name)[slot]
                    cache.zero_()  # a hidden row counts 0 times its value, which for what is no number is no number
                    cache[:, kept % count] = getattr(own, name)[0, :, kept]
        self._tokens[slot], self._begun[slot], self.last_run = [], self._seen, program.last_run
        last = _behind(logits, len(tokens))
        if verified is not None:
            verified.check([last], (sequences,), {}, layers=program.depth)
            self._verification.passed(program, rows)
        self._tokens[slot] = list(tokens)
        return _numbers(last)

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

    def _prompt_arguments(self, tokens: Sequence[int], rows: int) -> dict[str, Any]:
        import torch

        # padding is the last token again: what is no number for another token must not reach this sequence
        ids = torch.full((1, rows), tokens[-1])
        ids[0, : len(tokens)] = torch.tensor(list(tokens))
        return {
            "input_ids": ids,
            "past_key_values": self._static_cache(1, self.capacity),
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
            step = self._model(
                input_ids=ids[:, -1:],
                attention_mask=mask,
                position_ids=ids.new_tensor([[count]]),
                past_key_values=cache,
            ).logits
        for name, got, want in (("prompt", _behind(prompt, count), wanted[-2]), ("step", step[0, -1], wanted[-1])):
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

    def _prompt_sizes(self) -> list[int]:
        """The lengths that prompts are padded to."""
        sizes = [min(SHORTEST, self.capacity)]
        while sizes[-1] < self.capacity:
            sizes.append(min(2 * sizes[-1], self.capacity))
        return sizes

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
