"""A decoder in the integers of overlay xnn8, without a machine: what programs for it equal in each bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...base.deferred import deferred
from .slots import CachedProgram, PromptProgram, Slots

if TYPE_CHECKING:
    from ...rsnlib import integers, static_cache
else:
    integers = deferred("rsn.rsnlib.integers")
    static_cache = deferred("rsn.rsnlib.static_cache")


class IntegerReference(Slots):
    """Decodes sequences as `Decoder(model, overlay="xnn8")` does, with `rsn.in_integers`. model, slots, capacity,
    rows16: as for that. Raises as `rsn.in_integers` does."""

    def __init__(self, model: Any, *, slots: int = 1, capacity: int = 512, rows16: Sequence[str] = ()) -> None:
        super().__init__(slots, capacity, capacity)
        self._model, self._rows16 = model, rows16
        self.vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
        self._cache = self._empty_cache(slots)
        self._programs: dict[PromptProgram | None, CachedProgram] = {}

    def _follow(self) -> None:
        """Nothing: it stays as the model was when its programs were made."""

    def _empty_cache(self, batch: int, rows: int | None = None) -> Any:
        return static_cache.empty_cache(self._model.config, batch, self.capacity, rows)

    def _made(self, wanted: PromptProgram | None) -> CachedProgram:
        if wanted not in self._programs:
            example = self._step_arguments({}) if wanted is None else self._example(wanted)
            self._programs[wanted] = integers.in_integers(self._model, example, rows16=self._rows16)
        return self._programs[wanted]

    @property
    def _step(self) -> CachedProgram:
        return self._made(None)

    def _prompt_program(self, wanted: PromptProgram) -> CachedProgram:
        return self._made(wanted)
