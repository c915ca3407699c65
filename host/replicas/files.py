"""Where the stages of a model come from: its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.errors import ContainerError
from ..boards.several import BoardName
from ..model.file import identity
from ..model.loaded import load
from ..model.stages import load_stage
from ..serving.policy import Serving
from .stage import StageServer

if TYPE_CHECKING:
    from ..serving.metrics import Metrics


@dataclass(frozen=True)
class StageFile:
    """A stage of a model file (`StageSource`).

    path: of the file, the same on all computers. identity: of its content, so that a stage that begins later does not
    take another model from there. number, count: of the stage, from 0, and of all stages of the file. serving: how
    calls queue. xclbin: path of the bitstream for a real board.
    """

    path: str
    identity: str
    number: int
    count: int
    serving: Serving
    xclbin: str | os.PathLike[str] | None = None

    def open(self, board: BoardName, figures: Metrics | None, name: str) -> StageServer:
        """As `StageSource.open`."""
        if self.count == 1:  # also a model in pieces
            loaded = load(self.path, board=board, xclbin=self.xclbin)
            require_same(self.path, self.identity)  # after loading: what was replaced since then was not read
            return loaded.server(self.serving, metrics=figures, name=name)
        stage = load_stage(
            self.path,
            self.number,
            board=board,
            xclbin=self.xclbin,
            serving=self.serving,
            metrics=figures,
            name=name,
        )
        try:
            require_same(self.path, self.identity)
        except BaseException:
            stage.close()
            raise
        return stage.server(name)


def require_same(path: str, wanted: str) -> None:
    """Raise `ContainerError` if a file is not the one with this identity any more."""
    if identity(path) != wanted:
        raise ContainerError(f"{path}: another model than the one that is served; tell the server to replace it")
