"""Where the stages of a model come from: its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from ...base.errors import ContainerError
from ..boards.several import BoardName
from ..model.file import identity, read
from ..model.loaded import load
from ..model.saved_runners import open_runners
from ..model.stages import ModelStage, load_stage
from ..serving.policy import Serving
from ..serving.server import Server
from .shards import Ask, others_of, shard_server
from .stage import StageServer

if TYPE_CHECKING:
    from ..serving.metrics import Metrics


Opened = TypeVar("Opened", bound=StageServer | ModelStage)


@dataclass(frozen=True)
class StageFile:
    """A stage of a model file (`StageSource`), or a shard of a stage (`ShardSource`).

    path: of the file, the same on all computers. identity: of its content (`file.identity`), so that a stage that
    begins later does not load another model that has taken the file's place. number, count: the number of its board,
    from 0, and how many boards the model takes. serving: how calls queue. xclbin: path of the bitstream for a real
    board. shards: how many boards compute each stage. others: functions that ask the other shards of the stage, if this
    is the first one.
    """

    path: str
    identity: str
    number: int
    count: int
    serving: Serving
    xclbin: str | os.PathLike[str] | None = None
    shards: int = 1
    others: Sequence[Ask] = ()

    def joined(self, others: Sequence[Ask]) -> StageFile:
        """As `ShardSource.joined`."""
        return replace(self, others=others)

    def open(self, board: BoardName, figures: Metrics | None, name: str) -> StageServer:
        """As `StageSource.open`."""
        if self.count == 1:  # also a model in pieces
            loaded = load(self.path, board=board, xclbin=self.xclbin)
            require_same(self.path, self.identity)  # after loading: what was replaced since then was not read
            return loaded.server(self.serving, metrics=figures, name=name)
        if self.shards > 1:
            return self._open_shard(board, figures, name)
        stage = load_stage(
            self.path,
            self.number,
            board=board,
            xclbin=self.xclbin,
            serving=self.serving,
            metrics=figures,
            name=name,
        )
        return unchanged(stage, self.path, self.identity).server(name)

    def _open_shard(self, board: BoardName, figures: Metrics | None, name: str) -> Server:
        require_same(self.path, self.identity)
        saved = read(self.path, self.number)
        stage, shard = divmod(self.number, self.shards)
        given: Any = {"xclbin": self.xclbin, "serving": self.serving, "metrics": figures, "name": name}
        if shard:
            numbers = saved.parts[0].board_numbers
            runners = open_runners(saved, lambda i: board if numbers[i] == self.number else None, **given)
            server = shard_server(runners, name)
        else:
            others = others_of(saved, stage, self.others)
            server = ModelStage(saved, stage, board, **given, others=others).server(name)
        return unchanged(server, self.path, self.identity)


def unchanged(opened: Opened, path: str, wanted: str) -> Opened:
    """Return what was opened of a file, if the file still has the same content. opened: what was opened. path: of the
    file. wanted: the content's identity (`file.identity`). If it has another content, closes `opened` and raises as
    `require_same`."""
    try:
        require_same(path, wanted)
    except BaseException:
        opened.close()
        raise
    return opened


def require_same(path: str, wanted: str) -> None:
    """Raise `ContainerError` if a file has another content now. path: of the file. wanted: the identity of the content
    that it had (`file.identity`)."""
    if identity(path) != wanted:
        raise ContainerError(f"{path}: another model than the one that is served; tell the server to replace it")
