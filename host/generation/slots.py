"""Slots of a decoder: the sequences, their caches, and the arguments of its programs, wherever these come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...base.errors import CacheFull, PromptTooLong, TensorError
from ...isa.layout import Array
from ...rsnlib.key_spans import RowsOfCaches
from ..closing import Closing

if TYPE_CHECKING:
    from ...hw.sim.machine import Run

SHORTEST = 16
"""Rows of the program for the shortest prompts; each further one has twice as many."""
CHUNK = 128
"""Rows of a chunk: those of a block of the machine. While the weights' bandwidth is the bound, a chunk takes about as
long as a step."""


class PromptProgram(NamedTuple):
    """Which program a prompt runs on. rows: the rows that the program computes. is_chunk: the program computes a chunk
    of the prompt, whose rows follow earlier rows in the cache; False: it computes the whole prompt."""

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


class _Read(NamedTuple):
    """A prompt whose rows are in the caches of a slot. tokens: all of them. logits: behind the last one, float32
    (vocabulary,)."""

    tokens: list[int]
    logits: Array


class CachedProgram(Protocol):
    """A program of the model on a board, which is called with the model's arguments."""

    @property
    def last_run(self) -> Run | None:
        """Time, traffic and utilization of the latest call's run; None before the first call."""

    def __call__(self, **arguments: Any) -> Any:
        """Return the model's result, with `logits`."""

    def step(self, rows: RowsOfCaches, **arguments: Any) -> Any:
        """The same as a call, but new rows of caches replace the rows that `rows` says, as for `Compiled.step`."""


class Slots(Closing):
    """Sequences that are decoded together, each in a slot. Not for several threads at once.

    slots: how many. capacity: the most tokens of a sequence, its prompt included. chunk: the most rows of a prompt that
    run at once.
    """

    vocabulary: int
    """The number of tokens that there are."""
    ends: tuple[int, ...]
    """The tokens that end a text, as the model's configuration of generation has them."""
    _cache: Any
    """The caches of all slots: `layers`, each with `keys`, `values`, `cumulative_length` and `max_cache_len`, as a
    `StaticCache` has them."""

    @property
    def _step(self) -> CachedProgram:
        """The program of a step."""
        raise NotImplementedError

    def __init__(self, slots: int, capacity: int, chunk: int) -> None:
        self.slots, self.capacity, self.chunk = slots, capacity, min(chunk, capacity)
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
        self._reading: dict[int, _Prompt] = {}
        """By slot, the prompts of which chunks are left."""
        self._prompts_read: dict[int, _Read] = {}
        """By slot, the prompts of the sequences there."""
        self._begun = [0] * slots
        """The model's change count when the sequence of each slot began."""
        self._seen = 0
        """The model's change count."""
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest run; None before the first one, and for a prompt that took none,
        since another slot has it."""
        self.passed: dict[str, Array] = {}
        """For a stage of a decoder: before a call, what the stages before have computed, by name; behind it, what those
        behind read."""
        self.told: Callable[[], None] = lambda: None
        """Called, in another thread, when a program that `prepare` asked for is there, or cannot be."""

    # -- what programs there are

    def prepare(self, tokens: int) -> bool:
        """Return whether there is a program for prompts of this number of tokens. A class that compiles programs begins
        to do so if there is none, and calls `told` when it is there."""
        return True

    def warm_up(self) -> None:
        """Make the programs of prompts of all lengths now."""

    def _follow(self) -> None:
        """Take over what has changed, before a run. Raises `BoardError` if the decoder is closed."""
        raise NotImplementedError

    def _prompt_program(self, wanted: PromptProgram) -> CachedProgram:
        """The program for a prompt."""
        raise NotImplementedError

    def _empty_cache(self, batch: int, rows: int | None = None) -> Any:
        """A cache for some sequences. rows: of the layers with a sliding window; None: as many as the window has."""
        raise NotImplementedError

    def _logits(self, program: CachedProgram, arguments: dict[str, Any], rows: RowsOfCaches | None = None) -> Any:
        """Run a program. rows: as for `CachedProgram.step`; None for a prompt. Returns the logits of its result."""
        return (program(**arguments) if rows is None else program.step(rows, **arguments)).logits

    def _verified(self, program: CachedProgram, sequences: Any, what: object) -> Callable[[list[Any]], None] | None:
        """What to call with the logits behind each of some sequences, to compare them; None if this call of a program
        is not verified. what: tells programs apart."""
        return None

    # -- sequences

    def length(self, slot: int) -> int:
        """The number of tokens of the sequence in a slot, 0 for a free slot. Raises `TensorError` for a slot that does
        not exist."""
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

    def free(self, slot: int) -> None:
        """Forget the sequence of a slot. Raises `TensorError` for a slot that does not exist."""
        self._tokens[self._known_slot(slot)] = []
        self._reading.pop(slot, None)
        self._prompts_read.pop(slot, None)

    def prefill(self, slot: int, tokens: Sequence[int]) -> Array:
        """Begin a sequence in a slot with the tokens of its prompt. Returns the logits behind its last token, float32
        (vocabulary,).

        Raises what `check` raises, `TensorError` for a slot that does not exist, `BoardError` if the board fails or the
        decoder is closed, `WrongResultError` if a verified call differs, and what `rsn.compile` raises if the model has
        changed.
        """
        self._reading.pop(self._known_slot(slot), None)
        while (logits := self.prefill_chunk(slot, tokens)) is None:
            pass
        return logits

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
        """Run the next chunk of a prompt. The last chunk begins a sequence in the slot.

        tokens: the whole prompt; with another prompt than in the call before, its first chunk runs. Returns None if
        chunks are left, else the logits as `prefill` does. Raises as `prefill`; then the same chunk can be run again.
        """
        import torch

        self.check(tokens)
        known, slot = self._known(tokens), self._known_slot(slot)
        self._follow()
        wanted = self._program_of(len(known))
        prompt = self._reading.get(slot)
        if prompt is None or prompt.tokens != known:
            prompt = _Prompt(known, self._empty_cache(1, self.capacity), self._seen)
            if (logits := self._share(slot, prompt, wanted)) is not None:
                return logits
        first, end = prompt.done, len(known)
        if wanted.is_chunk:  # the last rows of the cache have a chunk that begins before
            first, end = min(first, self.capacity - wanted.rows), min(first + wanted.rows, end)
        arguments = self._prompt_arguments(known[first:end], wanted.rows, prompt.cache, first)
        program, sequences, verified = self._prompt_program(wanted), [known], None
        is_last = end == len(known)
        if is_last and prompt.begun == self._seen:  # else keys are from before a change of the model
            verified = self._verified(program, sequences, wanted)
        with torch.no_grad():
            logits = self._logits(program, arguments)
            prompt.done = end
            if is_last:
                self._keep(slot, prompt)
        self.last_run = program.last_run
        if not is_last:
            self._reading[slot] = prompt
            return None
        last = behind(logits, end - first)
        self._tokens[slot] = []
        self._prompts_read.pop(slot, None)
        if verified is not None:
            verified([last])
        return self._read(slot, prompt, _numbers(last))

    def _read(self, slot: int, prompt: _Prompt, logits: Array) -> Array:
        """A prompt has been read, and its rows are in the caches of a slot. Returns a copy of `logits`."""
        self._reading.pop(slot, None)
        self._tokens[slot], self._begun[slot] = list(prompt.tokens), prompt.begun
        self._prompts_read[slot] = _Read(prompt.tokens, logits)
        return logits.copy()

    def _share(self, slot: int, prompt: _Prompt, program: PromptProgram) -> Array | None:
        """Copy rows of a prompt that another slot has, so that they are not computed again. Returns the logits behind
        the prompt if it is the same as there, None if tokens are left.

        Only rows that the program would compute in the same chunk, so that every bit is the same as without the other
        slot: those of whole chunks, but for the rows that a last chunk computes again.
        """
        shortest = min(layer.max_cache_len for layer in self._cache.layers)  # a longer sequence has replaced rows
        best, source, read = 0, 0, None
        for other, found in self._prompts_read.items():
            if other == slot or self._begun[other] != prompt.begun or len(self._tokens[other]) >= shortest:
                continue
            if found.tokens == prompt.tokens:
                best, source, read = len(prompt.tokens), other, found
                break
            if program.is_chunk and self._program_of(len(found.tokens)).is_chunk:
                pairs = zip(found.tokens, prompt.tokens[:-1], strict=False)
                same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
                count = min(same, self.capacity - program.rows) // program.rows * program.rows
                best, source = max((best, source), (count, other))
        for whole, own in zip(self._cache.layers, prompt.cache.layers, strict=True):
            for name in ("keys", "values"):
                getattr(own, name)[0, :, :best] = getattr(whole, name)[source, :, :best]
        prompt.done = best
        if read is None:
            return None
        self._keep(slot, prompt)
        self.last_run = None
        return self._read(slot, prompt, read.logits)

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
        """Append a token to the sequences of some slots. tokens: by slot. Returns for each of these slots the logits
        behind its token, float32 (vocabulary,).

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
            verified = self._verified(self._step, sequences, "step")
        with torch.no_grad():
            logits = self._logits(self._step, self._step_arguments(tokens), rows)
        self.last_run = self._step.last_run
        if verified is not None:
            verified([logits[slot, -1] for slot in tokens])
        for slot, token in tokens.items():
            self._tokens[slot].append(token)
        return {slot: _numbers(logits[slot, -1]) for slot in tokens}

    # -- arguments

    def _program_of(self, tokens: int) -> PromptProgram:
        """The program for a prompt."""
        return next(p for p in self._prompt_programs() if p.is_chunk or p.rows >= tokens)

    def _prompt_programs(self) -> list[PromptProgram]:
        """The programs of prompts: for the lengths that prompts are padded to, then that of chunks, if prompts can be
        longer than one."""
        sizes = [min(SHORTEST, self.chunk)]
        while sizes[-1] < self.chunk:
            sizes.append(min(2 * sizes[-1], self.chunk))
        whole = [PromptProgram(rows, False) for rows in sizes]
        return whole if self.chunk == self.capacity else [*whole, PromptProgram(self.chunk, True)]

    def _example(self, program: PromptProgram) -> dict[str, Any]:
        """The arguments that a program of prompts is compiled with."""
        first = self.capacity - program.rows if program.is_chunk else 0
        return self._prompt_arguments([0], program.rows, self._empty_cache(1, self.capacity), first)

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


def behind(logits: Any, tokens: int) -> Any:
    """Return the logits behind the last of `tokens` tokens, (vocabulary,). logits: (1, rows, vocabulary). If the model
    ignores `logits_to_keep`, there is one row for each token; else there is one row, which is returned."""
    return logits[0, -1 if logits.shape[1] == 1 else tokens - 1]


def _numbers(logits: Any) -> Array:
    """A copy of a tensor of logits."""
    numbers: Array = logits.detach().float().numpy().copy()
    return numbers
