"""A decoder on a board, as a stage: it is asked for chunks of prompts and for steps, and says if it lost its caches."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError, RsnError, StateLost
from ...isa.layout import Array
from .. import generation
from ..generation.slots import Slots
from ..serving.health import Health, State
from .files import require_same
from .stage import Boards

if TYPE_CHECKING:
    from ..serving.metrics import Metrics

FAILURES = 3
"""How many calls behind each other the board may fail before it counts as down."""


@dataclass(frozen=True)
class DecoderCall:
    """A call of a decoder in another process. caches: the name of the caches that the caller knows; "" to begin anew,
    with empty ones. freed: slots whose sequences have ended. prompt: a slot and all tokens of its prompt, of which the
    next chunk runs; None for a step. tokens: of the step, by slot."""

    caches: str
    freed: tuple[int, ...] = ()
    prompt: tuple[int, tuple[int, ...]] | None = None
    tokens: Mapping[int, int] | None = None


@dataclass(frozen=True)
class DecoderAnswer:
    """The answer to a call. caches: their name. logits: float32 (vocabulary,), by slot; none of a chunk that is not the
    last one of its prompt."""

    caches: str
    logits: Mapping[int, Array]


@dataclass(frozen=True)
class WholeDecoder:
    """A file of a decoder as the only stage (`StageSource`), which has all boards of the decoder: the part of the host
    that knows the caches is in one process. The attributes are those of `StageFile`."""

    path: str
    identity: str
    xclbin: str | os.PathLike[str] | None = None

    def open(self, board: Boards, figures: Metrics | None, name: str) -> DecoderServer:
        """As `StageSource.open`."""
        boards = board if isinstance(board, tuple) else (board,)
        decoder = generation.load(self.path, boards=boards, xclbin=self.xclbin)
        try:
            require_same(self.path, self.identity)
        except BaseException:
            decoder.close()
            raise
        return DecoderServer(decoder)


class DecoderServer:
    """A decoder that is asked by `DecoderCall`s, which run one after the other (`StageServer`). It owns the decoder.

    Its caches have a name of their own, so that a caller who knows others learns that they are gone (`StateLost`).
    """

    def __init__(self, decoder: Slots) -> None:
        self._decoder = decoder
        self._caches = ""
        self._failures = 0
        self.health = Health()
        self._thread = ThreadPoolExecutor(1, "rsn-decoder")

    def ask(self, call: DecoderCall, *, timeout: float | None = None, wait: float | None = None) -> Future[Any]:
        """Queue a call, and return the future of its `DecoderAnswer`. timeout, wait: unused: a call that has begun
        cannot be given up. On the future are set `StateLost` for caches that are not there, and what `Slots` raises."""
        return self._thread.submit(self._answer, call)

    def close(self) -> None:
        """Finish the calls, and release the board."""
        self._thread.shutdown()
        self._decoder.close()

    def _answer(self, call: DecoderCall) -> DecoderAnswer:
        if not call.caches:
            self._caches = uuid.uuid4().hex
            for slot in range(self._decoder.slots):
                self._decoder.free(slot)
            return DecoderAnswer(self._caches, {})
        if call.caches != self._caches:
            raise StateLost("the caches that the caller knows are not here")
        for slot in call.freed:
            self._decoder.free(slot)
        if call.prompt is not None:
            slot, tokens = call.prompt
            logits = self._ran(lambda: self._decoder.prefill_chunk(slot, tokens))
            return DecoderAnswer(self._caches, {} if logits is None else {slot: logits})
        return DecoderAnswer(self._caches, self._ran(lambda: self._decoder.step(call.tokens or {})))

    def _ran(self, run: Callable[[], Any]) -> Any:
        """Run something on the board, and keep the health. Nothing has changed if the board fails."""
        try:
            found = run()
        except BoardError as e:
            self._failures += 1
            failed = self.health.failed(e)
            # since=0.0: the stage looks for another board at once. Nothing here opens this one again.
            self.health = replace(failed, since=0.0) if self._failures >= FAILURES else failed.to(State.DEGRADED)
            raise
        except RsnError:
            raise
        except BaseException:
            self._caches = ""  # what the decoder has is unknown
            raise
        self._failures = 0
        self.health = self.health.to(State.READY)
        return found
