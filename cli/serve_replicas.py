"""`rsn serve --boards, --replicas, --ray`: copies of a model over many boards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..base.deferred import deferred
from ..base.errors import ContainerError, RsnError, WrongBoards
from ..host.boards.several import check_boards
from ..host.generation.loaded import DecoderSizes, require_decoder_room, saved_tokenizer
from ..host.model.file import identity, read
from ..host.model.loaded import Loaded
from ..host.replicas.decoder_server import DecoderStageFile
from ..host.replicas.files import StageFile
from ..host.replicas.pipeline import BoardPipeline, LocalPipeline
from ..host.replicas.replicated import ReplicatedServer
from ..host.replicas.stage import StageSource, said_dead
from ..host.replicas.texts import Generations
from ..host.serving.arguments import Argument
from ..host.serving.policy import Serving

if TYPE_CHECKING:
    from ..host.replicas import on_ray
    from ..host.serving.metrics import Metrics
else:
    on_ray = deferred("rsn.host.replicas.on_ray")


class Copies:
    """A model, or a decoder, that is served from many boards. model: path of its file. boards: names of all boards; if
    there are none, `board` stands for each board that a copy needs. count: copies of the model; None for as many as
    there are boards for. ray: address of a Ray cluster, as for `on_ray.cluster`; None for threads of this process.
    queue: the most requests that wait. max_wait_s: as for `Serving`. timeout_s: the most seconds of a request. xclbin:
    as for `rsn.load`. Raises `ContainerError` for a file that is no such model, and `BoardError` for too few boards,
    for a board that is named twice, and for a name that means none."""

    def __init__(
        self,
        model: Path,
        boards: Sequence[str],
        board: str,
        count: int | None,
        ray: str | None,
        *,
        queue: int,
        max_wait_s: float,
        timeout_s: float,
        xclbin: str | None,
    ) -> None:
        # absolute: actors may have another working directory
        self._path, self._ray, self._xclbin = str(model.resolve()), ray, xclbin
        self._queue, self._max_wait_s, self._timeout_s = queue, max_wait_s, timeout_s
        self._sources = self._read()
        each = self.stages * self.shards
        named = tuple(boards) or (board,) * (each * (count or 1))
        self.count = len(named) // each if count is None else count
        if not 0 < self.count * each <= len(named):
            cut = f"{self.stages} stages" if self.shards == 1 else f"{self.stages} stages of {self.shards} shards"
            of = f"{self.count or 1} x {cut}, each on a board of its own"
            raise WrongBoards(f"{model}: {of}, need {(self.count or 1) * each} boards; {len(named)} given")
        # a cluster that runs already may have such a device in each of its computers
        check_devices(named, are_elsewhere=ray not in (None, "local"))
        self._boards = named
        self._devices = self.count * each if all(map(_is_of_its_computer, named)) else 0

    stages: int
    """Stages of a copy."""
    shards: int
    """Boards that compute each of them."""
    loaded: Loaded
    """The model without a board."""

    def _read(self) -> list[StageSource]:
        """Read the file, and return where its stages come from. Raises `ContainerError`, also for a file that cannot
        take the place of the one that was read before."""
        own, saved = identity(self._path), read(self._path, 0)
        if saved.decoder is not None:
            raise ContainerError(f"{self._path}: a decoder, for rsn serve --generate")
        loaded = Loaded(saved, ["sim"] * saved.boards, None)
        before, cut = getattr(self, "loaded", loaded), (saved.stages, saved.shards)
        if (loaded.arguments, loaded.sizes) != (before.arguments, before.sizes):
            raise ContainerError(f"{self._path}: a model with other arguments or sizes")
        if cut != getattr(self, "_cut", cut):
            raise ContainerError(f"{self._path}: a model cut for another number of boards")
        self.loaded, self._cut, (self.stages, self.shards) = loaded, cut, cut
        # no waiting for a board that is down: another copy answers
        serving = Serving(queue=self._queue, max_wait_s=self._max_wait_s, give_up_s=0.0)
        return [
            StageFile(self._path, own, number, saved.boards, serving, self._xclbin, saved.shards)
            for number in range(saved.boards)
        ]

    @contextmanager
    def server(self, name: str, metrics: Metrics | None) -> Iterator[ReplicatedServer]:
        """Start all copies, and close them at the end of a `with` block; SIGHUP replaces them by what the file has
        then. name: of the model. metrics: where to count requests. Raises `BoardError` if no copy works."""
        loaded = self.loaded
        # all stages have a full run before them and one behind that
        places = 2 * self.stages * max(loaded.sizes.get("batch", (1,)))
        with (
            self._started(name, loaded.arguments, loaded.sizes, places, metrics) as (server, replace),
            _on_hangup(replace),
        ):
            yield server

    @contextmanager
    def _started(
        self,
        name: str,
        arguments: Sequence[Argument],
        sizes: Mapping[str, tuple[int, ...]],
        places: int,
        metrics: Metrics | None,
    ) -> Iterator[tuple[ReplicatedServer, Callable[..., None]]]:
        """Start all copies while this lasts. Yields their server, and what replaces them, with the `idle` of
        `ReplicatedServer.replace`."""
        with ExitStack() as held:
            start = held.enter_context(self._starting(name))
            server = held.enter_context(
                ReplicatedServer(
                    partial(start, self._sources),
                    self.count,
                    name=name,
                    arguments=arguments,
                    sizes=sizes,
                    places=places,
                    queue=self._queue,
                    timeout_s=self._timeout_s,
                    metrics=metrics,
                    shards=self.shards,
                )
            )
            server.settled()
            yield server, partial(self._renew, server, start)

    @contextmanager
    def _starting(self, name: str) -> Iterator[Callable[[Sequence[StageSource], int], BoardPipeline]]:
        """Yield what makes the pipeline of a number."""
        boards, shards, each = self._boards, self.shards, self.stages * self.shards
        if self._ray is None:
            yield lambda sources, number: LocalPipeline(sources, boards, each * number, name, shards)
            return
        with on_ray.cluster(self._ray, self._devices) as (nodes, takes_device):
            yield lambda sources, number: on_ray.RayPipeline(
                sources, boards, each * number, name, nodes[number % len(nodes)], int(takes_device), shards
            )

    def _renew(
        self,
        server: ReplicatedServer,
        start: Callable[[Sequence[StageSource], int], BoardPipeline],
        idle: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """Read the file again, and replace all copies. Prints what becomes of it."""
        try:
            server.replace(partial(start, self._read()), idle)
        except (RsnError, OSError) as e:
            click.echo(f"the model was not replaced: {e}", err=True)
        else:
            click.echo("the model was replaced", err=True)


class DecoderCopies(Copies):
    """As `Copies`, of a decoder."""

    sizes: DecoderSizes
    """Those that the file says."""

    def _read(self) -> list[StageSource]:
        own, saved = identity(self._path), read(self._path)
        if saved.decoder is None:
            raise ContainerError(f"{self._path}: no decoder; Decoder.save writes one")
        try:
            sizes = DecoderSizes.of(saved.decoder)
        except (LookupError, TypeError, ValueError) as e:
            raise ContainerError(f"{self._path}: not a decoder that rsn can read: {e}") from e
        require_decoder_room(self._path, saved, saved.stages)
        known = (sizes, saved.stages, saved.shards)
        if known != getattr(self, "_known", known):
            raise ContainerError(f"{self._path}: a decoder of other sizes, or cut for another number of boards")
        self._known, self._text = known, saved.decoder
        self.sizes, self.stages, self.shards = known
        return [
            # as many sets of slots as stages: all work then
            DecoderStageFile(self._path, own, number, saved.boards, self.stages, self._xclbin, self.shards)
            for number in range(saved.boards)
        ]

    def tokenizer(self) -> Any:
        """Return the tokenizer of the file. Raises as `LoadedDecoder.tokenizer`."""
        return saved_tokenizer(self._text)

    @contextmanager
    def generation(self, name: str, metrics: Metrics | None) -> Iterator[Generations]:
        """Start all copies, and close them at the end of a `with` block; otherwise as `server`."""
        with (
            self._started(name, (), {}, 1, None) as (server, replace),
            Generations(server, self.sizes, groups=self.stages, queue=self._queue, metrics=metrics, name=name) as made,
            _on_hangup(partial(replace, idle=made.is_idle)),
        ):
            yield made


def check_devices(boards: Sequence[str], are_elsewhere: bool) -> None:
    """Check names of boards. Raises `WrongBoards` for a device that is named twice, and `BoardError` for a name that
    means no board. are_elsewhere: the boards are on several computers, which may have devices of the same name."""
    own = [board for board in boards if _is_of_its_computer(board)]
    others = [board for board in boards if board not in own]
    told = [*others, *(dict.fromkeys(own) if are_elsewhere else own)]
    check_boards(told, len(told))


def _is_of_its_computer(board: str) -> bool:
    """Whether a board is a device of the computer that opens it, of which there is one."""
    return board not in ("sim", "csim") and not board.startswith("ssh:")


@contextmanager
def _on_hangup(act: Callable[[], None]) -> Iterator[None]:
    """Call a function, in a thread, at each SIGHUP while this lasts, one call after the other."""
    turn = threading.Lock()

    def called() -> None:
        with turn:
            act()

    def heard(number: int, frame: object) -> None:
        threading.Thread(target=called, name="rsn-replace", daemon=True).start()

    before = signal.signal(signal.SIGHUP, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def told_boards(server: ReplicatedServer) -> str:
    """Return which boards the stages have, and which do not work, as text."""
    reports = [report for stages in server.reports() for report in stages]
    dead = {board: why for report in reports for board, why in report.dead.items()}
    have = ", ".join(report.board for report in reports if report.board)
    return "; ".join(filter(None, (f"on boards {have}", said_dead(dead))))


def described(server: ReplicatedServer) -> list[list[dict[str, Any]]]:
    """Return the state of each stage of each copy, or of each shard of each stage, in order, as JSON has it."""
    return [
        [
            (server.place(number) if server.shards > 1 else {})
            | {
                "board": report.board,
                "process": report.process,
                "node": report.node,
                "state": report.health.state.value,
                "error": report.health.error,
                "dead": dict(report.dead),
                "opening_s": round(report.opening_s, 3),
            }
            for number, report in enumerate(stages)
        ]
        for stages in server.reports()
    ]
