"""Generation on copies of a decoder, each on boards of its own. The tokens of all texts are known here, so that caches
that are lost with a board, a process or a computer are filled again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...base.errors import BoardError, CacheFull, StateLost, TensorError
from ...isa.layout import Array
from ..closing import Closing
from ..generation.batching import Event, Generation, Stream
from ..generation.loaded import DecoderSizes
from ..generation.sampling import Sampling
from ..generation.slots import Slots
from ..serving.health import Health
from ..serving.policy import QueueFull, RequestTimeout
from .decoder_server import DecoderAnswer, DecoderCall
from .pipeline import PipelineDown, PipelineLost
from .replicated import ATTEMPTS, ReplicatedServer
from .stage import StageDown

if TYPE_CHECKING:
    from ..serving.metrics import Metrics

RETURN_S = 60.0
"""Seconds that texts wait for a copy that was lost."""
CALL_S = 60.0
"""The most seconds of a chunk of a prompt, or of a step."""
PAUSE_S = 0.05
"""Seconds between two attempts."""


class RemoteSlots(Slots):
    """The slots of a decoder that runs elsewhere.

    ask: sends a call, and returns its answer; raises as `BoardPipeline.ask`. sizes: of the decoder. group: the number
    of the set of slots there. If the caches are lost, the sequences of all slots are read again as prompts, before the
    call that has found it is repeated; the caller notices nothing but the time.
    """

    def __init__(
        self,
        ask: Callable[[DecoderCall, float], DecoderAnswer],
        sizes: DecoderSizes,
        group: int = 0,
    ) -> None:
        super().__init__(sizes.slots, sizes.capacity, sizes.chunk)
        self.vocabulary, self.ends = sizes.vocabulary, sizes.ends
        self._ask, self._group = ask, group
        self._caches = ""
        """The name of the caches there; "" if they do not have the sequences of all slots."""
        self._freed: set[int] = set()
        """Slots that are free here, and not there yet."""

    def free(self, slot: int) -> None:
        """As `Slots.free`."""
        super().free(slot)
        self._freed.add(slot)

    def prefill_chunk(self, slot: int, tokens: Sequence[int]) -> Array | None:
        """As `Slots.prefill_chunk`."""
        self.check(tokens)
        known, slot = tuple(self._known(tokens)), self._known_slot(slot)
        self._tokens[slot] = []
        logits = self._answered(lambda: self._call(prompt=(slot, known))).get(slot)
        if logits is not None:
            self._tokens[slot] = list(known)
        return logits

    def step(self, tokens: Mapping[int, int]) -> dict[int, Array]:
        """As `Slots.step`."""
        tokens = dict(zip(map(self._known_slot, tokens), self._known(tokens.values()), strict=True))
        for slot in tokens:
            if not self._tokens[slot]:
                raise TensorError(f"slot {slot} has no sequence")
            if len(self._tokens[slot]) >= self.capacity:
                raise CacheFull(f"slot {slot} has {self.capacity} tokens, as many as its cache has rows")
        found = dict(self._answered(lambda: self._call(tokens=tokens)))
        for slot, token in tokens.items():
            self._tokens[slot].append(token)
        return found

    def close(self) -> None:
        """Do nothing: the pipeline is closed by its owner."""

    def _answered(self, call: Callable[[], Mapping[int, Array]]) -> Mapping[int, Array]:
        """Make a call, after filling the caches again if they are lost, and again if they are lost meanwhile, at most
        `ATTEMPTS` times. Raises the last `BoardError`."""
        failed, ends = 0, time.monotonic() + RETURN_S
        error: BoardError | None = None
        while True:
            try:
                self._restore()
                return call()
            except PipelineDown as e:  # the caches are as before; if not, `StateLost` will tell
                error = e
            except StageDown as e:  # this stage has lost them, and those before it have run
                self._caches, error = "", e
            except (PipelineLost, StateLost, RequestTimeout) as e:  # whether it was run is unknown
                failed += not (isinstance(e, StateLost) and isinstance(error, PipelineDown))
                self._caches, error = "", e
            except BoardError as e:  # the first stage's board failed, and the caches are as before
                failed, error = failed + 1, e
            except BaseException:  # stages before may have run
                self._caches = ""
                raise
            if failed >= ATTEMPTS or time.monotonic() > ends:
                raise error
            time.sleep(PAUSE_S)

    def _restore(self) -> None:
        """Fill the caches with the sequences of all slots, if they do not have them."""
        if self._caches:
            return
        caches = self._ask(DecoderCall("", group=self._group), CALL_S).caches
        for slot, tokens in enumerate(self._tokens):
            while (
                tokens
                and not self._ask(DecoderCall(caches, prompt=(slot, tuple(tokens)), group=self._group), CALL_S).logits
            ):
                pass
        self._caches = caches
        self._freed.clear()

    def _call(self, **what: Any) -> Mapping[int, Array]:
        freed = tuple(self._freed)
        found = self._ask(DecoderCall(self._caches, freed, group=self._group, **what), CALL_S).logits
        self._freed.difference_update(freed)
        return found


class Generations(Closing):
    """Generates texts on several copies of a decoder, as a `Generation` does on one.

    copies: of the decoder, which the caller closes. sizes: of the decoder. groups: sets of slots of each copy, of which
    each stage runs one at a time. queue: the most requests that wait for a slot of a set. metrics: where to count
    requests, under `name`, the number of the copy, and that of the set if there are several.
    """

    def __init__(
        self,
        copies: ReplicatedServer,
        sizes: DecoderSizes,
        *,
        groups: int = 1,
        queue: int = 256,
        metrics: Metrics | None = None,
        name: str = "rsn",
    ) -> None:
        self.copies = copies

        def made(number: int, group: int) -> Generation:
            def ask(call: DecoderCall, timeout: float) -> DecoderAnswer:
                answer: DecoderAnswer = copies.ask_one(number, call, timeout).result()
                return answer

            own = f"{name} {number}" if groups == 1 else f"{name} {number}.{group}"
            return Generation(RemoteSlots(ask, sizes, group), queue=queue, metrics=metrics, name=own)

        self._each = [[made(number, group) for group in range(groups)] for number in range(len(copies.reports()))]

    def submit(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        heard: Callable[[Event], None] | None = None,
    ) -> Stream:
        """As `Generation.submit`, on the set of slots with the fewest requests, of a copy that works. While all are
        about to be replaced, `QueueFull` is raised."""
        numbers = [number for number in range(len(self._each)) if not self.copies.drains(number)]
        if not numbers:
            raise QueueFull("the model is being replaced")
        ready = [number for number in numbers if self.copies.is_ready(number)] or numbers
        best = min((each for number in ready for each in self._each[number]), key=lambda each: each.requests)
        return best.submit(tokens, sampling, heard=heard)

    def is_idle(self, number: int) -> bool:
        """Return whether a copy has no requests."""
        return not any(each.requests for each in self._each[number])

    @property
    def capacity(self) -> int:
        """The most tokens of a sequence, its prompt included."""
        return self._each[0][0].capacity

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""
        return self._each[0][0].vocabulary

    @property
    def health(self) -> Health:
        """The health of the copies."""
        return self.copies.health

    def close(self) -> None:
        """Finish the submitted requests. Further ones raise `BoardError`."""
        for each in chain(*self._each):
            each.close()
