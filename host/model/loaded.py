"""`rsn.load`: runs a model from its file, without the code of the model."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...base.errors import ContainerError, UnsupportedError
from ...hw.sim.machine import Run, joined
from ...isa.program import Program
from ...rsnlib.shapes import Dim
from ..boards.several import BoardName, boards_for
from ..forks import forget_in_children
from ..runner import Result, Runner
from ..serving import ALONE, Serving
from ..serving.arguments import Argument
from ..serving.server import MachineRequest, QueuedCall, Server
from ..text_settings import TextSettings
from ..tokenizers import tokenizer_of
from .file import ModelVariant, Saved, read
from .hosted_shards import beside
from .module import BoardModule
from .saved_runners import Group, open_runners
from .stage_calls import HostErrors, SavedCalls

if TYPE_CHECKING:
    import torch

    from ...rsnlib.host_part import HostPart
    from ..serving.metrics import Metrics


def load(
    path: str | os.PathLike[str],
    *,
    board: BoardName = "sim",
    boards: Sequence[BoardName] | None = None,
    xclbin: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Load a model that `save(path)` wrote; it can then be called or served.

    board: the name of a board, or a function that opens one. boards: one for each stage of a model in stages, or for
    each shard of each (docs/many-boards.md), in order. xclbin: path of the bitstream for a real board. PyTorch is
    needed for the host part; the model's code and `transformers` are not. Weights stay in the file until they are used.

    Raises `ContainerError`, naming the file, if it is cut short, altered, or of another format; `BoardError` for
    another number of boards than stages, and for a board that is named twice; `MissingError` without
    PyTorch. Nothing in the file is executed: it names PyTorch operators, and classes of results, which are looked up
    only in modules that the process has already imported and in `transformers`.
    """
    saved = read(path)
    if saved.decoder is not None:
        raise ContainerError(f"{path}: a decoder, for rsn serve --generate or rsn.host.generation.load")
    return Loaded(saved, boards_for(path, saved.boards, board, boards), xclbin)


class Loaded(BoardModule):
    """A model from a file. Call it as the model; it returns what the model returns, of the model's class if that can be
    imported, else of a class with the same fields. Any thread may call it. The first call opens the board.

    saved: the file's content. boards: one for each stage, or for each shard of each. xclbin: path of the bitstream for
    a real board.
    """

    def __init__(self, saved: Saved, boards: Sequence[BoardName], xclbin: str | os.PathLike[str] | None) -> None:
        self._saved, self._boards, self._xclbin = saved, tuple(boards), xclbin
        self._calls = SavedCalls(saved)
        self._parts = {part.sizes: i for i, part in enumerate(saved.parts)}
        self._opened: dict[Any, Runner] | None = None
        self._turn = threading.Lock()
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        forget_in_children(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host part before the machine, the machine, and the host part behind it.

        Raises `TensorError` for arguments whose shape or dtype differs from the example's, for sizes larger than those
        of all programs, and for an attention mask that does not hide a suffix of each sequence.
        """
        runs: list[Run] = []

        def run(request: MachineRequest) -> Result:
            return self._runners()[request.group].run(request.inputs, request.parameters)

        call = self._asked(args, kwargs)
        with ThreadPoolExecutor(self._saved.shards) as pool:  # which starts no thread before it has work
            try:
                requests = next(call)
                while True:
                    results = [run(*requests)] if len(requests) == 1 else list(pool.map(run, requests))
                    runs.append(beside([result.run for result in results]))
                    requests = call.send(results)
            except StopIteration as end:
                self.last_run = joined(runs)
                return end.value

    def server(self, serving: Serving | None = None, *, metrics: Metrics | None = None, name: str = "rsn") -> Server:
        """Return a server of this model with a board of its own. Requests wait in its queue and share runs.

        serving: how requests queue, and what happens when the board fails; None for the defaults of `Serving`. metrics:
        where to count requests, under `name`; None counts nothing. Raises `BoardError` if the board cannot be used,
        `ValueError` if a runner of these metrics has this name.
        """
        opened = self._open(serving or Serving(), metrics, name)
        boards = {}
        if len(self._boards) > 1:
            numbers = {group: self._board_number(group[1]) for group in opened}
            boards = {group: f"board {i} ({self._boards[i]})" for group, i in numbers.items()}
        return Server(opened, self._asked_by_name, name, self.arguments, self.sizes, boards)

    def text(self) -> tuple[TextSettings, Any] | None:
        """Return what a server of texts needs, the settings and the tokenizer, of transformers; None for a model that
        was saved without. Raises `ContainerError` if they cannot be read."""
        saved = self._saved.encoder
        if saved is None:
            return None
        try:
            settings = TextSettings.of(saved.settings)
        except (LookupError, ValueError) as e:
            raise ContainerError(f"its description of texts cannot be read: {e}") from None
        if not {"batch", "length"} <= self.sizes.keys():
            raise ContainerError("a model of texts has programs for several batches and lengths")
        return settings, tokenizer_of(saved.files)

    @property
    def programs(self) -> dict[tuple[int, ...], Program]:
        """The programs by the sizes that they are for, one size for each of `dims`, in that order; under () for a model
        of one size. Raises `UnsupportedError` for a model in pieces, which has several for each of the sizes: see
        `pieces`."""
        if any(part.split is not None for part in self._saved.parts):
            raise UnsupportedError("a model in pieces has several programs for each of its sizes: see pieces")
        return {sizes: programs[0] for sizes, programs in self.pieces.items()}

    @property
    def pieces(self) -> dict[tuple[int, ...], tuple[Program, ...]]:
        """The programs of the pieces on the machine, in order, by the sizes that they are for, as in `programs`; one
        for a model that is no model in pieces."""
        return {part.sizes: tuple(x.program for x in part.on_machine.values()) for part in self._saved.parts}

    @property
    def verified(self) -> dict[tuple[int, ...], datetime | None]:
        """When a call of each program was last compared with the model in PyTorch, before the file was written (UTC),
        by the sizes of the program; None if none was. Calls of this object are not compared, because the file does not
        hold the model."""
        return {part.sizes: part.verified for part in self._saved.parts}

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions whose sizes calls choose, such as the batch; empty for a model of one size."""
        return self._calls.dims

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that there are programs for, by the name of the dimension ("batch", "length", "length2")."""
        return {name: dim.sizes for name, dim in zip(self._dim_names, self.dims, strict=True)}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that a call takes, in the order of the model's own arguments."""
        padding = self._saved.padding
        if padding is None:
            named = self._saved.parts[0].interface.names.items()
            return tuple(_argument(name, n.meta["val"], {}) for n, name in named if hasattr(n.meta["val"], "shape"))
        names, shapes = dict(zip(self.dims, self._dim_names, strict=True)), padding.arguments.shapes
        return tuple(
            _argument(name, x, {axis % x.ndim: names[dim] for axis, dim in shapes.get(name, {}).items()})
            for name, x in padding.arguments.example.items()
            if hasattr(x, "shape")
        )

    def close(self) -> None:
        """Release the board; the next call opens it again. Servers have boards of their own, which stay open."""
        with self._turn:
            opened, self._opened = self._opened or {}, None
        for runner in opened.values():
            runner.close()

    def forget(self) -> None:
        """In a forked child: the open board belongs to the parent; the next call opens another one."""
        self._turn, self._opened = threading.Lock(), None

    def __repr__(self) -> str:
        sizes = "; ".join(f"{name} {'|'.join(map(str, of))}" for name, of in self.sizes.items()) or "one size"
        takes = ", ".join(map(str, self.arguments))
        return f"<rsn.Loaded: {takes}; {sizes}; {sum(map(len, self.pieces.values()))} programs>"

    @property
    def _dim_names(self) -> list[str]:
        """The names of the dimensions: "batch" or "length", numbered from the second of a kind on."""
        names: list[str] = []
        for dim in self.dims:
            same = sum(name.rstrip("0123456789") == dim.what for name in names)
            names.append(f"{dim.what}{same + 1}" if same else dim.what)
        return names

    def _runners(self) -> dict[Any, Runner]:
        with self._turn:
            if self._opened is None:
                self._opened = self._open(ALONE, None, "rsn")
            return self._opened

    def _open(self, serving: Serving, metrics: Metrics | None, name: str) -> dict[Group, Runner]:
        """Open a runner for each group of programs with the same weights, in the order in which calls need them."""
        return open_runners(
            self._saved,
            lambda number: self._boards[self._board_number(number)],
            xclbin=self._xclbin,
            serving=serving,
            metrics=metrics,
            name=name,
        )

    def _board_number(self, number: int) -> int:
        """The number of the board of a program, or piece, of this number."""
        return self._saved.parts[0].board_numbers.get(number, 0)

    def _group(self, number: int, piece: int) -> Group:
        """The group of a program. number: of the part of the file. piece: or the number of the program."""
        return self._saved.same[number], piece

    def _asked_by_name(self, inputs: Mapping[str, Any]) -> QueuedCall:
        """Prepare a server's request."""
        return self._asked((), *self._calls.by_name(inputs))

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_widened: bool = False) -> QueuedCall:
        """A call, in the form of its requests to the machine. is_widened: arguments that the model takes in half
        precision are already float32."""
        fitted, args, kwargs = self._calls.fitted(args, kwargs, is_widened)
        number = self._parts[fitted.taken]
        part = self._saved.parts[number]
        if part.split is None:
            call = self._calls.begun(fitted, args, kwargs)
            return self._calls.end((yield from self._calls.queued(call, lambda i: self._group(number, i))))
        result = yield from self._pieces(number, part, args, kwargs)
        with HostErrors():
            return self._calls.finished(result, fitted)

    def _pieces(self, number: int, part: ModelVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueuedCall:
        """A call of a model in pieces. number: of its part of the file."""
        assert part.split is not None
        calls = part.split.calls(part.programs, args, kwargs)
        try:
            with HostErrors():
                piece, taken = next(calls)
            while True:
                group = self._group(number, piece)
                gives = yield from _one_program(part.on_machine[piece].host, group, taken)
                with HostErrors():
                    piece, taken = calls.send(gives)
        except StopIteration as end:
            return end.value


def _one_program(host: HostPart, group: Hashable, args: tuple[Any, ...]) -> QueuedCall:
    """A call of the program of a piece, with the values that it takes."""
    with HostErrors():
        inputs, spans, state = host.prologue(*args)
    (result,) = yield [MachineRequest(group, inputs, {} if spans is None else spans.parameters())]
    with HostErrors():
        return host.epilogue(result.outputs, state)


def _argument(name: str, x: torch.Tensor, dims: Mapping[int, str]) -> Argument:
    shape: Sequence[int | str] = [dims.get(axis, n) for axis, n in enumerate(x.shape)]
    return Argument(name, str(x.dtype).removeprefix("torch."), tuple(shape))
