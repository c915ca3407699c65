"""A stage of a decoder with its board: it runs chunks of prompts and steps, and says if it lost its caches."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError, RsnError, StateLost
from ...isa.layout import Array
from .. import generation
from ..boards.several import BoardName
from ..generation.slots import Slots
from ..serving.health import Health, State
from ..serving.policy import RequestTimeout
from .files import require_same, unchanged
from .pipeline import PipelineLost
from .shards import Ask, OtherRunner, shard_server
from .stage import StageDown, StageServer

if TYPE_CHECKING:
    from ...isa.program import Program
    from ..serving.metrics import Metrics

FAILURES = 3
"""How many calls behind each other the board may fail before it counts as down."""


@dataclass(frozen=True)
class DecoderCall:
    """A call of a decoder in other processes. caches: the name of the caches that the caller knows; "" to begin anew,
    with empty ones. freed: slots whose sequences have ended. prompt: a slot and all tokens of its prompt, of which the
    next chunk runs; None for a step. tokens: of the step, by slot. group: the number of the set of slots."""

    caches: str
    freed: tuple[int, ...] = ()
    prompt: tuple[int, tuple[int, ...]] | None = None
    tokens: Mapping[int, int] | None = None
    group: int = 0


@dataclass(frozen=True)
class PassedCall:
    """A call that a stage gives to the next one. call: what was asked; its `caches` is a name, never "". begins: the
    caches of that name are new, so the next stage begins with empty ones. passed: as `Slots.passed`."""

    call: DecoderCall
    begins: bool
    passed: Mapping[str, Array]


@dataclass(frozen=True)
class DecoderAnswer:
    """The answer to a call. caches: their name. logits: float32 (vocabulary,), by slot; none of a chunk that is not the
    last one of its prompt."""

    caches: str
    logits: Mapping[int, Array]


@dataclass(frozen=True)
class DecoderStageFile:
    """A stage of a file of a decoder (`StageSource`), or a shard of a stage (`ShardSource`). groups: how many sets of
    slots it has; while one stage runs one set, others run others. path, identity, number, count, xclbin, shards,
    others: as for `StageFile`."""

    path: str
    identity: str
    number: int = 0
    count: int = 1
    groups: int = 1
    xclbin: str | os.PathLike[str] | None = None
    shards: int = 1
    others: Sequence[Ask] = ()

    def joined(self, others: Sequence[Ask]) -> DecoderStageFile:
        """As `ShardSource.joined`."""
        return replace(self, others=others)

    def open(self, board: BoardName, figures: Metrics | None, name: str) -> StageServer:
        """As `StageSource.open`."""
        require_same(self.path, self.identity)
        given: Any = {"groups": self.groups, "board": board, "xclbin": self.xclbin}
        stage, shard = divmod(self.number, self.shards)
        server: StageServer
        if shard:
            server = shard_server(generation.load_decoder_shard(self.path, self.number, **given), name)
        else:
            stages = generation.load_decoder_stage(
                self.path, stage, **given, shards=self.shards, beside=self._beside if self.others else None
            )
            server = DecoderServer(stages, stage, self.count // self.shards)
        return unchanged(server, self.path, self.identity)

    def _beside(self, key: Hashable, board: int, program: Program) -> OtherRunner:
        return OtherRunner(key, self.others[board - self.number - 1], program)


class DecoderServer:
    """A stage of a decoder that is asked by `DecoderCall`s, or behind the first stage by `PassedCall`s, which run one
    after the other (`StageServer`). It owns the stage.

    groups: the sets of slots. number, count: of the stage, from 0, and of all stages. The caches of each set have a
    name of their own, so that a caller who knows others learns that they are gone (`StateLost`).
    """

    def __init__(self, groups: Sequence[Slots], number: int = 0, count: int = 1) -> None:
        self._groups, self._number, self._count = groups, number, count
        self._caches = [""] * len(groups)
        self._failures = 0
        self.health = Health()
        self._thread = ThreadPoolExecutor(1, "rsn-decoder")

    def ask(
        self, asked: DecoderCall | PassedCall, *, timeout: float | None = None, wait: float | None = None
    ) -> Future[Any]:
        """Queue a call, and return the future of the `PassedCall` of the next stage, or of the `DecoderAnswer`.
        timeout, wait: unused: a call that has begun cannot be given up. On the future are set `StateLost` for caches
        that are not there, and behind the first stage if the board fails, since stages before have run; and what
        `Slots` raises."""
        return self._thread.submit(self._answer, asked)

    def close(self) -> None:
        """Finish the calls, and release the board."""
        self._thread.shutdown()
        for slots in self._groups:
            slots.close()

    def _answer(self, asked: DecoderCall | PassedCall) -> PassedCall | DecoderAnswer:
        if isinstance(asked, DecoderCall):
            begins = not asked.caches
            asked = PassedCall(replace(asked, caches=asked.caches or uuid.uuid4().hex), begins, {})
        call, slots = asked.call, self._groups[asked.call.group]
        if asked.begins:
            self._caches[call.group] = call.caches
            for slot in range(slots.slots):
                slots.free(slot)
            return self._on(asked, {}, {})
        if call.caches != self._caches[call.group]:
            raise StateLost("the caches that the caller knows are not here")
        for slot in call.freed:
            slots.free(slot)
        slots.passed = dict(asked.passed)
        if call.prompt is not None:
            slot, tokens = call.prompt
            logits = self._ran(call.group, lambda: slots.prefill_chunk(slot, tokens))
            return self._on(asked, {} if logits is None else {slot: logits}, slots.passed)
        return self._on(asked, self._ran(call.group, lambda: slots.step(call.tokens or {})), slots.passed)

    def _on(
        self, asked: PassedCall, logits: Mapping[int, Array], passed: Mapping[str, Array]
    ) -> PassedCall | DecoderAnswer:
        if self._number == self._count - 1:
            return DecoderAnswer(asked.call.caches, logits)
        return replace(asked, passed=passed)

    def _ran(self, group: int, run: Callable[[], Any]) -> Any:
        """Run something on the board, and keep the health. Nothing has changed here if the board fails."""
        try:
            found = run()
        except BoardError as e:
            if not isinstance(e, StageDown | PipelineLost | RequestTimeout):  # of another shard
                self._failures += 1
                failed = self.health.failed(e)
                # since=0.0: the stage looks for another board at once. Nothing here opens this one again.
                self.health = replace(failed, since=0.0) if self._failures >= FAILURES else failed.to(State.DEGRADED)
            if self._number and not isinstance(e, StateLost):
                raise StateLost(f"the stages before have run: {e}") from e
            raise
        except RsnError:
            raise
        except BaseException:
            self._caches[group] = ""  # what the stage has is unknown
            raise
        self._failures = 0
        self.health = self.health.to(State.READY)
        return found
