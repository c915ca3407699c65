"""`rsn.load`: runs a model from its file, without the code of the model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from inspect import Signature
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.deferred import deferred
from ...base.errors import ContainerError, RsnError, TensorError, UnsupportedError
from ...hw.sim.machine import Run, joined
from ...isa.program import Program
from ...rsnlib.call_padding import Fitted
from ...rsnlib.shapes import Batch, Dim
from ..boards import Board
from ..forks import forget_in_children
from ..runner import Runner
from ..serving import ALONE, Serving
from ..serving.arguments import Argument
from ..serving.family import SlotProgram
from ..serving.server import MachineRequest, QueuedCall, Server
from ..text_settings import TextSettings
from ..tokenizers import tokenizer_of
from .file import ModelVariant, Saved, SavedProgram, read
from .module import BoardModule

if TYPE_CHECKING:
    import torch

    from ...rsnlib import precision
    from ...rsnlib.host_part import HostPart
    from ..serving.metrics import Metrics
else:
    precision = deferred("rsn.rsnlib.precision")


def load(
    path: str | os.PathLike[str],
    *,
    board: str | Callable[[], Board] = "sim",
    xclbin: str | os.PathLike[str] | None = None,
) -> Loaded:
    """Load a model that `save(path)` wrote; it can then be called or served.

    board: the name of a board, or a function that opens one. xclbin: path of the bitstream for a real board. PyTorch is
    needed for the host part; the model's code and `transformers` are not. Weights stay in the file until they are used.

    Raises `ContainerError`, naming the file, if it is cut short, altered, or of another format; `MissingError` without
    PyTorch. Nothing in the file is executed: it names PyTorch operators, and classes of results, which are looked up
    only in modules that the process has already imported and in `transformers`.
    """
    saved = read(path)
    if saved.decoder is not None:
        raise ContainerError(f"{path}: a decoder, for rsn serve --generate or rsn.host.generation.load")
    return Loaded(saved, board, xclbin)


class Loaded(BoardModule):
    """A model from a file. Call it as the model; it returns what the model returns, of the model's class if that can be
    imported, else of a class with the same fields. Any thread may call it. The first call opens the board."""

    def __init__(self, saved: Saved, board: str | Callable[[], Board], xclbin: str | os.PathLike[str] | None) -> None:
        self._saved, self._board, self._xclbin = saved, board, xclbin
        self._parts = {part.sizes: i for i, part in enumerate(saved.parts)}
        self._opened: dict[Hashable, Runner] | None = None
        self._turn = threading.Lock()
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        forget_in_children(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the host part before the machine, the machine, and the host part behind it.

        Raises `TensorError` for arguments whose shape or dtype differs from the example's, for sizes larger than those
        of all programs, and for an attention mask that does not hide a suffix of each sequence.
        """
        call, runs = self._asked(args, kwargs), []
        try:
            request = next(call)
            while True:
                result = self._runners()[request.group].run(request.inputs, request.parameters)
                runs.append(result.run)
                request = call.send(result)
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
        return Server(opened, self._asked_by_name, name, self.arguments, self.sizes)

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
        """When a call of each program was compared with the model in PyTorch, before the file was written, by the sizes
        of the program; None for one of which none was. Calls of this object are not: the file has no model."""
        return {part.sizes: part.verified for part in self._saved.parts}

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions whose sizes calls choose, such as the batch; empty for a model of one size."""
        return () if self._saved.padding is None else self._saved.padding.arguments.dims

    @property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that there are programs for, by the name of the dimension ("batch", "length", "length2")."""
        return {name: dim.sizes for name, dim in zip(self._dim_names, self.dims, strict=True)}

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The tensors that a call takes, in the order of the model's own arguments."""
        padding = self._saved.padding
        if padding is None:
            nodes = self._saved.parts[0].interface.arguments
            return tuple(_argument(n.name, n.meta["val"], {}) for n in nodes if hasattr(n.meta["val"], "shape"))
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

    def _runners(self) -> dict[Hashable, Runner]:
        with self._turn:
            if self._opened is None:
                self._opened = self._open(ALONE, None, "rsn")
            return self._opened

    def _open(self, serving: Serving, metrics: Metrics | None, name: str) -> dict[Hashable, Runner]:
        """Open a runner for each group of programs with the same weights, in the order in which calls need them."""
        groups: dict[Hashable, list[SavedProgram]] = {}
        for number, part in enumerate(self._saved.parts):
            for piece, program in part.on_machine.items():
                groups.setdefault(self._group(number, piece), []).append(program)
        opened: dict[Hashable, Runner] = {}
        try:
            for group, members in groups.items():
                opened[group] = Runner(
                    [program.program for program in members],
                    weights=members[0].weights,
                    board=self._board,
                    xclbin=self._xclbin,
                    serving=serving,
                    metrics=metrics,
                    name=name if not opened else f"{name} {len(opened) + 1}",
                )
        except BaseException:
            for runner in opened.values():
                runner.close()
            raise
        return opened

    def _group(self, number: int, piece: int) -> Hashable:
        """The group of a program. number: of the part of the file. Pieces have groups of their own: programs with the
        same weights, or none, may compute different things."""
        return self._saved.same[number], piece

    def _asked_by_name(self, inputs: Mapping[str, Any]) -> QueuedCall:
        """Prepare a server's request. Arguments that the model takes in half precision may come as float32, which is
        what JSON gives."""
        if self._saved.borders is None:
            return self._asked((), dict(inputs))
        return self._asked((), precision.widened_example(dict(inputs)), True)

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_widened: bool = False) -> QueuedCall:
        """A call, in the form of its requests to the machine.

        is_widened: arguments that the model takes in half precision are already float32.
        """
        padding, borders = self._saved.padding, self._saved.borders
        if borders is not None and not is_widened:
            args, kwargs = borders.widened(self._signature, args, kwargs)
        call = Fitted(kwargs, (), ()) if padding is None else padding.fit(args, kwargs)
        number = self._parts[call.taken]
        part = self._saved.parts[number]
        given = args if padding is None else (), dict(call.given)
        # The network's other sequences are padding, copies of the last one. They need not run if requests may have
        # fewer sequences than a program.
        n = None if self._batch is None else call.asked[self._batch]
        if part.split is None:
            result = yield from _one_program(part.on_machine[0].host, self._group(number, 0), n, *given)
        else:
            result = yield from self._pieces(number, part, *given)
        with typed():
            result = result if padding is None else padding.cut(result, call)
            return result if borders is None else borders.narrowed(result)

    def _pieces(self, number: int, part: ModelVariant, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QueuedCall:
        """A call of a model in pieces. number: of its part of the file."""
        assert part.split is not None
        calls = part.split.calls(part.programs, args, kwargs)
        try:
            with typed():
                piece, taken = next(calls)
            while True:
                group = self._group(number, piece)
                gives = yield from _one_program(part.on_machine[piece].host, group, None, taken, {})
                with typed():
                    piece, taken = calls.send(gives)
        except StopIteration as end:
            return end.value

    @property
    def _signature(self) -> Signature:
        padding = self._saved.padding
        return self._saved.parts[0].interface.signature if padding is None else padding.arguments.signature

    @cached_property
    def _batch(self) -> int | None:
        """The index in `dims` of the number of sequences of a request to the machine. None if each request has as many
        as its program: unless the batch of each program is the network's own, programs have several batch sizes, and
        each sequence of a program has a slot."""
        batches = [i for i, dim in enumerate(self.dims) if isinstance(dim, Batch)]
        if len(batches) != 1:
            return None
        (i,) = batches
        parts = self._saved.parts
        if any(part.split is not None for part in parts):
            return None  # what lies between the pieces has the sizes of the programs
        programs = [part.on_machine[0] for part in parts]
        own = all(program.host.batch == part.sizes[i] for program, part in zip(programs, parts, strict=True))
        several = len({part.sizes[i] for part in parts}) > 1
        return i if own and several and all(SlotProgram.of(program.program).slots for program in programs) else None


def _one_program(
    host: HostPart, group: Hashable, sequences: int | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> QueuedCall:
    """A call of one program. sequences: that it asks for; None for those of the program."""
    with typed():
        inputs, spans, state = host.prologue(*args, **kwargs)
    n = host.batch if sequences is None else sequences
    named = {} if spans is None else spans.parameters(n)
    result = yield MachineRequest(group, {name: x[:n] for name, x in inputs.items()}, named)
    # Sequences that were filled in are copies of the last, and so is what the machine would make of them.
    outputs = {name: np.concatenate([y, np.repeat(y[-1:], host.batch - n, 0)]) for name, y in result.outputs.items()}
    with typed():
        return host.epilogue(outputs, state)


@contextmanager
def typed() -> Iterator[None]:
    """Context in which a host part runs. Raises `TensorError` for what PyTorch refuses, such as a token id beyond its
    embedding table."""
    try:
        yield
    except RsnError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        message = str(e).strip().partition("\n")[0]
        raise TensorError(f"the host part (PyTorch) cannot run with these arguments: {message}") from e


def _argument(name: str, x: torch.Tensor, dims: Mapping[int, str]) -> Argument:
    shape: Sequence[int | str] = [dims.get(axis, n) for axis, n in enumerate(x.shape)]
    return Argument(name, str(x.dtype).removeprefix("torch."), tuple(shape))
