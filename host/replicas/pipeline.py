"""One copy of a model: its stages, each with a board, through which requests go one behind the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from ...base.errors import BoardError
from ..boards.several import BoardName
from .stage import StageOnBoard, StageReport, StageSource


class PipelineLost(BoardError):
    """A part of a pipeline ended, or could not be reached, while it had the request. Nothing of an answer arrived."""


class BoardPipeline(Protocol):
    """The stages of one copy of a model. All methods are called in one event loop."""

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """Run a request through all stages, and return the model's result. inputs: the model's arguments by name.
        timeout: in seconds. While the request is in one stage, others run others. Raises `StageDown` if a stage has no
        board, `PipelineLost`, and what `Server.ask` raises or its future has. Cancelled, the request is cancelled
        where its run has not begun."""

    async def reports(self, figures: bool = False) -> list[StageReport]:
        """Return the state of each stage, in order. figures: with its metrics. Raises any error if one cannot be
        reached."""

    def restart(self) -> None:
        """End the processes of stages that hang, and start them again, if they have processes of their own."""

    async def close(self) -> None:
        """Finish the requests that the stages have, and release the boards. Raises nothing."""


class LocalPipeline:
    """A pipeline in this process: each stage runs in threads of its own.

    sources: of the stages, in order. boards: for all of them. first: the number of the board that the first stage tries
    first. name: of the model, for metrics.
    """

    def __init__(self, sources: Sequence[StageSource], boards: Sequence[BoardName], first: int, name: str) -> None:
        self._stages = [StageOnBoard(source, boards, first + i, name) for i, source in enumerate(sources)]

    async def ask(self, inputs: Any, timeout: float) -> Any:
        """As `BoardPipeline.ask`."""
        ends = time.monotonic() + timeout
        for stage in self._stages:
            left = ends - time.monotonic()
            inputs = await asyncio.wrap_future(await asyncio.to_thread(stage.ask, inputs, left))
        return inputs

    async def reports(self, figures: bool = False) -> list[StageReport]:
        """As `BoardPipeline.reports`."""
        return [stage.report(figures) for stage in self._stages]

    def restart(self) -> None:
        """Do nothing: threads cannot be ended."""

    async def close(self) -> None:
        """As `BoardPipeline.close`."""
        for stage in self._stages:  # in order: what the first ones finish goes on to the others
            await asyncio.to_thread(stage.close)
