"""Where stages come from: files of models."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...base.errors import ContainerError
from ..model.file import identity
from ..model.loaded import load
from ..serving.policy import Serving
from .stage import BoardName, StageServer

if TYPE_CHECKING:
    from ..serving.metrics import Metrics


@dataclass(frozen=True)
class WholeModel:
    """A model file that is not cut, as the only stage (`StageSource`).

    path: of the file, the same on all computers. identity: of its content, so that a stage that begins later does not
    take another model from there. serving: how calls queue. xclbin: path of the bitstream for a real board.
    """

    path: str
    identity: str
    serving: Serving
    xclbin: str | os.PathLike[str] | None = None

    def open(self, board: BoardName, figures: Metrics | None, name: str) -> StageServer:
        """As `StageSource.open`."""
        loaded = load(self.path, board=board, xclbin=self.xclbin)
        require_same(self.path, self.identity)  # after loading: what was replaced since then was not read
        return loaded.server(self.serving, metrics=figures, name=name)


def require_same(path: str, wanted: str) -> None:
    """Raise `ContainerError` if a file is not the one with this identity any more."""
    if identity(path) != wanted:
        raise ContainerError(f"{path}: another model than the one that is served; tell the server to replace it")
