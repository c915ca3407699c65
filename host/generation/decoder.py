"""A decoder with slots: one program decodes a token of each of several sequences, which have their own positions.

The step is compiled once, for all slots and a cache of `capacity` rows. A prompt is padded on the right to one of a few
lengths, and has a program of its own, compiled when it is first needed, or beside the steps of others (`prepare`).
Causal attention keeps the padding from the rows before it. A prompt longer than a chunk runs in chunks, which attend to
the rows before; one program serves all of them.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...base.deferred import deferred
from ...base.errors import (
    BoardError,
    PositionError,
    RsnError,
    TensorError,
    UnsupportedError,
    WrongResultError,
    require_torch,
)
from .. import tokenizers
from ..boards.several import BoardName, boards_named, shards_named
from ..model.board_memory import LESS, board_bytes, board_table, require_room
from ..model.compiled import Compiled
from ..model.compiled_shards import built_stages
from ..model.compiled_stages import CompiledStages
from ..model.file import ModelVariant, SavedText, write
from ..model.shared_bank import SharedBank
from .slots import CHUNK, CachedProgram, PromptProgram, Slots, behind

if TYPE_CHECKING:
    from ...isa.program import Program
    from ...rsnlib import changes, integers, static_cache
    from ...rsnlib import pipeline as pipelines
    from ...rsnlib import pool as pools
    from ...rsnlib import verification as verifications
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.partition import Traced
else:
    changes = deferred("rsn.rsnlib.changes")
    integers = deferred("rsn.rsnlib.integers")
    pipelines = deferred("rsn.rsnlib.pipeline")
    pools = deferred("rsn.rsnlib.pool")
    static_cache = deferred("rsn.rsnlib.static_cache")
    verifications = deferred("rsn.rsnlib.verification")

log = logging.getLogger("rsn.generation")

PROBE, LEAST_PROBE = 8, 3
"""Rows of the cache with which a model is tried out, or as many as a shorter window has. With fewer than three it is
not tried."""
NEAR, NEAR_QUANTISED = 1e-3, 0.1
"""How far logits may be apart there, of the largest one; and of a model with quantised weights."""


DecoderPart = Compiled | CompiledStages
"""A program of a decoder, on a board, or of stages, on several."""


class Decoder(Slots):
    """Decodes sequences of a causal language model of `transformers`. Not for several threads at once, but programs are
    compiled in a thread of its own.

    model: in eval mode, in float32. A change of it counts from the next prompt or step on, as in PyTorch: the keys and
    values of earlier tokens stay. slots: number of sequences that are decoded together. capacity: the most tokens of a
    sequence, its prompt included. chunk: the most rows of a prompt that run at once. board, boards, shards: as for
    `rsn.compile`; all programs are cut where the step is, so that boards have room for all of them. overlay: the
    machine, one that keeps caches: "xnn", or "xnn8", which takes each prompt at once. rows16: as for `rsn.compile`, of
    prompts and steps. The keys and values of all slots stay on the board, or on that of their stage; the host has them
    too, so that a board that failed gets them again. A layer with a sliding window has as many rows as the window, and
    a new token replaces the oldest one. Raises what `rsn.compile` raises, `RoomError` if a board cannot hold all its
    programs, `UnsupportedError` for a model that attends to chunks of fixed size, or computes something else if it is
    given positions, `PositionError` for a capacity beyond the model's positions, and `TensorError` for slots, a
    capacity or a chunk that are no whole numbers or too small.

    verify: as for `rsn.compile`: the logits of the first call of each program are compared with those of the model in
    PyTorch, for all tokens of the sequence and without a cache; on xnn8 with those of its integers, which are the same
    in each bit, and so are the caches. Raises `WrongResultError` if they differ.
    """

    def __init__(
        self,
        model: Any,
        *,
        slots: int = 8,
        capacity: int = 512,
        chunk: int = CHUNK,
        board: str = "sim",
        boards: int | str | Sequence[BoardName] = 1,
        verify: str = "first",
        overlay: str = "xnn",
        shards: int | str = 1,
        rows16: Sequence[str] = (),
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
        count, names = boards_named(boards)
        each = shards_named(shards, count)
        self._pipeline = pipelines.Pipeline.named(overlay, boards=count, shards=each, rows16=rows16)
        self._pool = pools.Pool()
        in_integers = self._pipeline.overlay.integers
        super().__init__(slots, capacity, capacity if in_integers else chunk)
        self.vocabulary = int(text.vocab_size)
        ends = model.generation_config.eos_token_id if getattr(model, "generation_config", None) else None
        self.ends = () if ends is None else tuple(ends) if isinstance(ends, list | tuple) else (ends,)
        self._model = model
        self._boards: tuple[BoardName, ...] = (board,) if names is None else tuple(names)
        self._mode = verifications.verify_named(verify)
        self._references: weakref.WeakKeyDictionary[Compiled, integers.IntegerModel] = weakref.WeakKeyDictionary()
        """What programs are compared with, of an overlay that computes in integers."""
        self._verification = verifications.Verification(
            "never" if in_integers else self._mode, self._in_pytorch, model, lambda: True
        )
        self._closed = False
        self._lock = threading.Lock()
        self._compiling: PromptProgram | None = None
        """The program that is being compiled beside, None for none."""
        self._failed: dict[PromptProgram, Exception] = {}
        """The programs that could not be compiled."""
        try:
            self._cache = self._empty_cache(slots)
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
        self._shared: list[SharedBank] = []
        """Of each board."""
        self._traced: dict[PromptProgram, Traced] = {}
        """The programs of prompts that are not compiled yet, of which the cut of several boards was made."""
        self._prompts: dict[PromptProgram, DecoderPart] = {}
        self._step_program = self._compiled()
        shortest = self._prompt_programs()[0]
        self._prompts[shortest] = self._compiled(shortest)

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
                self._prompts[wanted] = self._compiled(wanted)

    def try_out(self) -> None:
        """Run a prompt on each program of prompts, and a step, so that these calls are compared with the model (see
        `verify`). The sequence in the first slot is forgotten. Raises what `prefill` and `step` raise."""
        for wanted in self._prompt_programs():
            self.prefill(0, [k % self.vocabulary for k in range(wanted.rows + wanted.is_chunk)])
        self.prefill(0, [0])
        self.step({0: 0})
        self.free(0)

    def _compile(self, wanted: PromptProgram, prompts: dict[PromptProgram, DecoderPart]) -> None:
        """Compile a program of prompts, and add it to `prompts`."""
        made: DecoderPart | None = None
        error: Exception | None = None
        try:
            made = self._compiled(wanted)
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

    def close(self) -> None:
        """Release the boards. Further prompts and steps raise `BoardError`."""
        with self._lock:
            self._closed = True
        self._release()

    def save(self, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
        """Write the decoder to a file (`.rsnmodel`) for `load`: its programs of the step and of prompts of all lengths,
        the weights once, and the part that PyTorch runs. tokenizer: of transformers; `rsn serve --generate` needs it.

        Raises what `rsn.compile` raises, `UnsupportedError`, naming the operator, if the host part cannot be written,
        and `OSError` if the file cannot be.
        """
        self._follow()
        self.warm_up()
        programs = {"step": self._step} | {wanted: self._prompts[wanted] for wanted in self._prompt_programs()}
        for compiled in programs.values():
            compiled.open()  # all have joined the bank of weights then
        settings = {
            "slots": self.slots,
            "capacity": self.capacity,
            "chunk": self.chunk,
            "vocabulary": self.vocabulary,
            "ends": list(map(int, self.ends)),
            "layers": [[*x.keys.shape[1:], x.values.shape[3]] for x in self._cache.layers],
        }
        files = {} if tokenizer is None else tokenizers.files_of(tokenizer)
        parts = (self._part(compiled, what) for what, compiled in programs.items())
        write(path, parts, None, None, SavedText(settings, files))

    def _part(self, compiled: DecoderPart, what: object) -> ModelVariant:
        """A program for a file, without the classes that its arguments and its result have."""
        part = compiled.part(in_bank=True)
        own = part.on_machine[0].host
        host = replace(own, interface=own.interface.of_tensors("logits"))
        programs = tuple(replace(program, host=host) for program in part.on_machine.values())
        return replace(part, programs=programs, verified=self._verification.when(compiled, what))

    @property
    def _step(self) -> DecoderPart:
        return self._step_program

    def _prompt_program(self, wanted: PromptProgram) -> DecoderPart:
        if wanted in self._failed:
            raise self._failed[wanted]
        if wanted not in self._prompts:
            self._prompts[wanted] = self._compiled(wanted)
        return self._prompts[wanted]

    def _verified(self, program: CachedProgram, sequences: Any, what: object) -> Callable[[list[Any]], None] | None:
        assert isinstance(program, Compiled | CompiledStages)
        begun = self._verification.begin(program, (sequences,), {}, what)
        if begun is None:
            return None

        def check(logits: list[Any]) -> None:
            begun.check(logits, (sequences,), {}, layers=program.depth)
            self._verification.passed(program, what)

        return check

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
            self._joined = [shared.changes for shared in self._shared]
            return
        for shared, joined in zip(self._shared, self._joined, strict=True):
            shared.changed(joined)
        self._release()
        with self._lock:
            self._prompts = {}  # another object: what is being compiled beside is of before
            self._failed.clear()
            self._traced.clear()
        cache, self._cache = self._cache, self._empty_cache(self.slots)  # tracing may write to it
        try:
            self._step_program = self._compiled()
        finally:
            self._cache = cache
        self._seen = seen

    def _compiled(self, wanted: PromptProgram | None = None) -> DecoderPart:
        """A program of prompts; None: that of the step. All programs share their weights, on the host and on each
        board. Those of several boards are cut as the first one, that of the step; prompts may end before its last
        stages. Raises what `rsn.compile` raises, and `RoomError` if a board cannot hold it beside the others."""
        traced, pipeline = self._trace(wanted), self._pipeline
        if not self._shared and pipeline.boards != 1:
            self._traced = {prompt: self._trace(prompt) for prompt in self._prompt_programs()}
            pipeline = replace(pipeline, beside=tuple(self._traced.values()))
        staged = built_stages(pipeline, traced)
        count = staged.board_count
        if not self._shared:
            each = staged.boards_each
            self._pipeline = replace(self._pipeline, boards=count, cuts=staged.cuts, shards=each, chooses_shards=False)
            self._boards = self._boards if len(self._boards) == count else self._boards * count
            overlay, tensors = self._pipeline.overlay.name, list(self._model.parameters())
            names = [f"{board}" if count == 1 else f"{board}, board {k}" for k, board in enumerate(self._boards)]
            self._shared = [SharedBank.of(tensors, name, overlay) for name in names]
        self._joined = [shared.changes for shared in self._shared]
        made: DecoderPart
        if count > 1:
            made = CompiledStages(staged, self._boards[:count], shared=self._shared[:count])
        else:
            made = Compiled(traced, staged.built[0], self._boards[0], shared=self._shared[0])
        others = [] if wanted is None else [self._step, *self._prompts.values()]
        for board, sizes in enumerate(self._bytes([*others, made])):
            what = "the step" if wanted is None else f"the programs of a step and of prompts of {wanted.rows} tokens"
            require_room(sizes, self._pipeline.overlay, f"board {board}: {what}", LESS)
        made.open()
        if isinstance(made, Compiled) and self._pipeline.overlay.integers and self._mode != "never":
            self._references[made] = integers.IntegerModel(traced)
        return made

    def _trace(self, wanted: PromptProgram | None) -> Traced:
        """The network of a program of prompts; None: of that of the step."""
        if wanted is not None and (known := self._traced.pop(wanted, None)) is not None:
            return known
        arguments = self._step_arguments({}) if wanted is None else self._example(wanted)
        return self._pool.shared(self._pipeline.trace(self._model, arguments))

    def _bytes(self, parts: Sequence[DecoderPart], sets: int = 1) -> list[dict[str, int]]:
        """The bytes that programs take on each board, by bank. parts: the step, and programs of prompts. sets: as for
        `loaded.decoder_bytes`."""
        programs: list[list[tuple[Program, int]]] = [[] for _ in self._shared]
        for number, part in enumerate(parts):
            for board, program in part.on_boards:
                programs[board].append((program, 1 if number else sets))
        return [board_bytes(of) for of in programs]

    def explain(self) -> str:
        """Return tables as text: of a step, as `Compiled.explain` has it, and what each board holds of the programs of
        the step and of prompts of all lengths. Raises what `rsn.compile` raises."""
        self._follow()
        self.warm_up()
        parts, count = [self._step, *self._prompts.values()], len(self._shared) // self._pipeline.shards
        served = self._bytes(parts, count) if count > 1 else []
        return "\n".join([*board_table(self._bytes(parts), count, served), "", self._step.explain()])

    def _logits(self, program: CachedProgram, arguments: dict[str, Any], rows: RowsOfCaches | None = None) -> Any:
        import torch

        reference = self._references.get(program) if isinstance(program, Compiled) else None
        if reference is None or not isinstance(program, Compiled):
            return super()._logits(program, arguments, rows)
        given = verifications.copied(arguments)
        logits, wanted = (
            super(Decoder, self)._logits(x, a, rows) for x, a in ((program, arguments), (reference, given))
        )
        layers = zip(*(x["past_key_values"].layers for x in (arguments, given)), strict=True)
        pairs = [(logits, wanted), *((getattr(a, x), getattr(b, x)) for a, b in layers for x in ("keys", "values"))]
        if not all(torch.equal(*pair) for pair in pairs):
            raise WrongResultError(
                "the logits or the caches of a call differ from the integers of the model. Nothing is returned. This "
                "is an error of rsn, not of the model: please report it"
            )
        if self._mode == "first":
            del self._references[program]
        return logits

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
        cache = static_cache.empty_cache(self._model.config, 1, rows, rows)
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
            chunked = static_cache.empty_cache(self._model.config, 1, rows, rows)
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
        near = NEAR_QUANTISED if verifications.is_quantised(self._model) else NEAR
        for name, got, want in (
            ("prompt", behind(prompt, count), wanted[-2]),
            ("chunk of a prompt", chunk[0, -1], wanted[-1]),
            ("step", step[0, -1], wanted[-1]),
        ):
            if not torch.isfinite(want).all():
                return  # the model has what is no number; there is nothing to compare
            if float((got - want).abs().max()) > near * float(want.abs().max()):
                raise UnsupportedError(
                    f"{type(self._model).__name__}: the logits of a {name} with a static cache and `position_ids` "
                    'differ from those without; torch.compile(model.forward, backend="rsn") and `generate` may run it'
                )

    def _empty_cache(self, batch: int, rows: int | None = None) -> Any:
        return static_cache.empty_cache(self._model.config, batch, self.capacity, rows)
