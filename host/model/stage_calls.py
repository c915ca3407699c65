"""Calls of a model from a file: what the host computes before and after its programs, and what goes from one program to
the next, which may be on another board or in another process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.deferred import deferred
from ...base.errors import RsnError, TensorError
from ...isa.layout import Array
from ...isa.program import Program, Role
from ...rsnlib.call_padding import Fitted, Sizes
from ...rsnlib.shapes import Batch, Dim
from ..serving.family import Result, SlotProgram
from ..serving.server import MachineRequest
from .file import Saved
from .hosted import stage_inputs, stage_parameters
from .hosted_shards import exchanged

if TYPE_CHECKING:
    from inspect import Signature

    from torch.fx import Node

    from ...rsnlib import precision
    from ...rsnlib.host_part import HostPart
else:
    precision = deferred("rsn.rsnlib.precision")


@dataclass(frozen=True, eq=False)
class StageCall:
    """A call of a model between two of its stages. It can be pickled, so that the next stage may be in another process
    or on another computer.

    stage: number of the next stage; if several boards compute each stage, the number of its first program. taken: the
    sizes of the program that the call takes. asked: the sizes of the call itself. sequences: how many of the program's
    sequences run. tensors: the inputs and activations that later stages read, and outputs, by name, float32 (sequences,
    rows, columns); for programs without slots, in the shapes of these. Factors of rotations are not among them, because
    each stage computes its own. parameters: run-time parameters by name. values: what the host needs behind the last
    stage, and the arguments from which factors of rotations are computed, by the name of their node.
    """

    stage: int
    taken: Sizes
    asked: Sizes
    sequences: int
    tensors: Mapping[str, Array]
    parameters: Mapping[str, int]
    values: Mapping[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its tensors, and of the arrays among its `values`."""
        return sum(x.nbytes for x in (*self.tensors.values(), *self.values.values()) if hasattr(x, "nbytes"))


@dataclass(frozen=True)
class _StageEnds:
    """What a stage's program takes: names of inputs; whether its sequences have slots. later: what later stages and the
    host read. tables: the part of the host that makes the factors of rotations which it reads; None without."""

    program: Program
    takes: tuple[str, ...]
    later: Set[str]
    has_slots: bool
    tables: HostPart | None


class SavedCalls:
    """The host's part of calls of a model from a file, which is no model in pieces. saved: the file's content."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._parts = {part.sizes: part for part in saved.parts}
        self._known: dict[Sizes, list[_StageEnds]] = {}

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions whose sizes calls choose, such as the batch; empty for a model of one size."""
        return () if self._saved.padding is None else self._saved.padding.arguments.dims

    @property
    def signature(self) -> Signature:
        """That of the model's call."""
        padding = self._saved.padding
        return self._saved.parts[0].interface.signature if padding is None else padding.arguments.signature

    @cached_property
    def batch(self) -> int | None:
        """The index in `dims` of the number of sequences, if a request to the machine may have fewer sequences than a
        program: if the model has programs of several batch sizes, the batch of each is the network's own, and each
        sequence of a program has a slot. None if each request has as many sequences as its program."""
        batches = [i for i, dim in enumerate(self.dims) if isinstance(dim, Batch)]
        if len(batches) != 1:
            return None
        (i,) = batches
        parts = self._saved.parts
        if any(part.split is not None for part in parts):
            return None  # what lies between the pieces has the sizes of the programs
        own = all(part.on_machine[0].host.batch == part.sizes[i] for part in parts)
        several = len({part.sizes[i] for part in parts}) > 1
        programs = [program for part in parts for program in part.on_machine.values()]
        return i if own and several and all(SlotProgram.of(program.program).slots for program in programs) else None

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], is_widened: bool = False) -> StageCall:
        """Compute the host's part before the first stage. args, kwargs: the model's arguments, by position and by name.
        is_widened: the arguments that the model takes in half precision are float32 already. Raises `TensorError` for
        arguments that do not fit."""
        return self.begun(*self.fitted(args, kwargs, is_widened))

    def begun(self, fitted: Fitted, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StageCall:
        """Compute the host's part before the first stage, as `begin` does, of arguments that are padded already.
        fitted, args, kwargs: as `fitted` returns them."""
        host = self._parts[fitted.taken].on_machine[0].host
        with HostErrors():
            inputs, spans, state = host.prologue(*args, **kwargs)
        # The network's other sequences are padding, copies of the last one. They need not run if requests may have
        # fewer sequences than a program.
        n = host.batch if self.batch is None else fitted.asked[self.batch]
        values = {node.name: value for node, value in state.items() if node not in host.constants}
        later = [ends.tables for ends in self._ends(fitted.taken)[1:] if ends.tables is not None]
        if later:
            given = host.interface.bind(args, kwargs)
            values |= {node.name: given[node] for part in later for node in part.interface.arguments}
        own = self._ends(fitted.taken)[0].takes
        return StageCall(
            0,
            fitted.taken,
            fitted.asked,
            n,
            {name: x[:n] for name, x in inputs.items() if name in own or name not in host.tables},
            {} if spans is None else spans.parameters(n),
            values,
        )

    def by_name(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return copies of the arguments of a server's request, because the caller may write to them while the request
        waits; and whether they are widened (`begin`). inputs: the arguments by name. Those that the model takes in half
        precision may come as float32, because JSON gives that."""
        copied = {name: _copied(x) for name, x in inputs.items()}
        if self._saved.borders is None:
            return copied, False
        return precision.widened_example(copied), True

    def fitted(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], is_widened: bool = False
    ) -> tuple[Fitted, tuple[Any, ...], dict[str, Any]]:
        """Return the sizes of a call, and its arguments in float32, padded to those of a program. The others, and what
        is raised: as for `begin`."""
        padding, borders = self._saved.padding, self._saved.borders
        if borders is not None and not is_widened:
            args, kwargs = borders.widened(self.signature, args, kwargs)
        if padding is None:
            return Fitted({}, (), ()), args, kwargs
        fitted = padding.fit(args, kwargs)
        return fitted, (), dict(fitted.given)

    def request(self, call: StageCall) -> tuple[dict[str, Array], dict[str, int]]:
        """Return the inputs and parameters of the next stage of a call, as `Runner.run` takes them. Raises
        `TensorError` for a call without an input."""
        ends, known = self._ends(call.taken)[call.stage], dict(call.tensors)
        if ends.tables is not None and call.stage:
            self._saved.check(ends.tables.constants.values())
            known |= {name: x[: call.sequences] for name, x in ends.tables.made_tables(call.values).items()}
        missing = next((name for name in ends.takes if name not in known), None)
        if missing is not None:
            raise TensorError(f"stage {call.stage}: {missing} is missing in the call")
        if ends.has_slots:
            inputs = {name: known[name] for name in ends.takes}
        else:
            inputs = stage_inputs(ends.program, known)
        programs = [x.program for x in self._ends(call.taken)]
        return inputs, stage_parameters(programs, call.parameters)[call.stage]

    def queued(
        self, call: StageCall, group: Callable[[int], Hashable], stage: int | None = None
    ) -> Generator[Sequence[MachineRequest], list[Result], StageCall]:
        """Run the programs of a call. It is a generator: it yields the requests that run at the same time, one or those
        of all shards, and is sent their results. group: returns the runner of a program, by the program's number.
        stage: number of the only stage to run; None for all. Returns the call behind the last program."""
        for one in self._parts[call.taken].steps:
            if stage not in (None, one.stage):
                continue
            numbers = [i for i in one.programs if i is not None]
            requests = [MachineRequest(group(i), *self.request(replace(call, stage=i))) for i in numbers]
            results = yield requests
            outputs = {i: result.outputs for i, result in zip(numbers, results, strict=True)}
            given = exchanged(one.exchange, [None if i is None else outputs[i] for i in one.programs])
            call = self.after(replace(call, stage=numbers[-1]), given)
        return call

    def after(self, call: StageCall, outputs: Mapping[str, Array]) -> StageCall:
        """Return a call behind its next stage. outputs: of that stage, by name. Tensors that neither a later stage nor
        the host reads are dropped."""
        later = self._ends(call.taken)[call.stage].later
        kept = {name: x for name, x in (*call.tensors.items(), *outputs.items()) if name in later}
        return replace(call, stage=call.stage + 1, tensors=kept)

    def end(self, call: StageCall) -> Any:
        """Compute the host's part behind the last stage. Returns the model's result. Raises `TensorError` for a call
        that lacks an output."""
        part = self._parts[call.taken]
        host, n = part.on_machine[0].host, call.sequences
        outputs: dict[str, Array] = {}
        for name in host.columns.keys() & call.tensors.keys():
            y = call.tensors[name]
            # Sequences that were filled in are copies of the last, and so is what the machine would make of them.
            y = np.concatenate([y, np.repeat(y[-1:], host.batch - n, 0)]) if n < host.batch else y
            outputs[name] = y.reshape(host.batch, host.seq_of(name), -1)
        with HostErrors():
            result = host.epilogue(outputs, self._state(host, call))
            return self.finished(result, Fitted({}, call.taken, call.asked))

    def finished(self, result: Any, fitted: Fitted) -> Any:
        """Return the result of a program, cut to the sizes of its call, in the data types of the model."""
        padding, borders = self._saved.padding, self._saved.borders
        result = result if padding is None else padding.cut(result, fitted)
        return result if borders is None else borders.narrowed(result)

    def _ends(self, sizes: Sizes) -> list[_StageEnds]:
        """What the stages of the programs for some sizes take, and what is needed behind them."""
        if sizes not in self._known:
            stages = self._parts[sizes].on_machine
            host = stages[0].host
            later = frozenset(host.columns)
            found = []
            for stage in reversed(stages.values()):
                takes = tuple(b.name for b in stage.program.with_role(Role.INPUT))
                tables = host.of_tables(takes) if not host.tables.keys().isdisjoint(takes) else None
                has_slots = bool(SlotProgram.of(stage.program).slots)
                found.append(_StageEnds(stage.program, takes, later, has_slots, tables))
                later |= set(takes) - host.tables.keys()
            self._known[sizes] = found[::-1]
        return self._known[sizes]

    @staticmethod
    def _state(host: HostPart, call: StageCall) -> dict[Node, Any]:
        """The values that the host needs behind the last stage, and all its constants."""
        nodes = (*host.interface.arguments, *host.before)
        return host.constants | {node: call.values[node.name] for node in nodes if node.name in call.values}


def _copied(x: Any) -> Any:
    """A value with copies of its tensors and arrays, which may be in containers."""
    if isinstance(x, np.ndarray):
        return x.copy()
    if hasattr(x, "detach"):
        return x.detach().clone()
    if x is None or isinstance(x, bool | int | float):
        return x
    from torch.utils import _pytree as pytree

    leaves, structure = pytree.tree_flatten(x)
    return structure.unflatten([y if y is x else _copied(y) for y in leaves])


class HostErrors:
    """Context in which a host part runs. Raises `TensorError` for what PyTorch refuses, such as a token id beyond its
    embedding table. A generator with `contextmanager` would take three times as long."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        refused = ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError
        if isinstance(error, refused) and not isinstance(error, RsnError):
            message = str(error).strip().partition("\n")[0]
            raise TensorError(f"the host part (PyTorch) cannot run with these arguments: {message}") from error
