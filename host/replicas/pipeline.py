"""One copy of a model: its stages, each with a board, through which requests go one behind the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol, cast

from ...base.errors import BoardError
from ..boards.several import BoardName
from .shards import ShardSource
from .stage import StageDown, StageOnBoard, StageReport, StageSource


class PipelineLost(BoardError):
    """A part of a pipeline ended, or could not be reached, while it had the request. Nothing of an answer arrived."""


class PipelineDown(StageDown):
    """A pipeline does not work at this moment. Nothing was sent to it."""


class BoardPipeline(Protocol):
    """The stages of one copy of a model. All methods are called in one event loop."""

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """Run a request through all stages, and return the model's result. inputs: the model's arguments by name.
        timeout: in seconds. While the request is in one stage, others run others. Raises `StageDown` if a stage has no
        board, `PipelineLost`, and what `Server.ask` raises or its future has. Cancelled, the request is cancelled
        where its run has not begun."""

    async def reports(self, figures: bool = False) -> list[StageReport]:
        """Return the state of each stage, or of each shard of each, in order. figures: with its metrics. Raises any
        error if one cannot be reached."""

    def restart(self) -> None:
        """End the processes of stages that hang, and start them again, if they have processes of their own."""

    async def close(self) -> None:
        """Finish the requests that the stages have, and release the boards. Raises nothing."""


class LocalPipeline:
    """A pipeline in this process: each stage, or each shard of a stage, runs in threads of its own.

    sources: of the stages, in order, or of the shards of each. boards: for all of them. first: the number of the board
    that the first stage tries first. name: of the model, for metrics. shards: how many boards compute each stage; with
    more than one, the sources are `ShardSource`s.
    """

    def __init__(
        self, sources: Sequence[StageSource], boards: Sequence[BoardName], first: int, name: str, shards: int = 1
    ) -> None:
        self._each: list[StageOnBoard] = []
        for at in range(0, len(sources), shards):
            source, *rest = sources[at : at + shards]
            others = [StageOnBoard(other, boards, first + at + i, name) for i, other in enumerate(rest, 1)]
            if others:
                source = cast(ShardSource, source).joined([other.ask for other in others])
            self._each += [StageOnBoard(source, boards, first + at, name), *others]
        self._stages = self._each[::shards]

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """As `BoardPipeline.ask`."""
        ends = time.monotonic() + timeout
        for stage in self._stages:
            inputs = await stage.answer(inputs, ends - time.monotonic())
        return inputs

    async def reports(self, figures: bool = False) -> list[StageReport]:
        """As `BoardPipeline.reports`."""
        return [each.report(figures) for each in self._each]

    def restart(self) -> None:
        """Do nothing: threads cannot be ended."""

    async def close(self) -> None:
        """As `BoardPipeline.close`."""
        for each in self._each:  # in order: what the first ones finish goes on to the others
            await asyncio.to_thread(each.close)
