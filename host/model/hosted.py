"""A program on a board with what PyTorch computes before and after it: one call of a module. Or the programs of its
stages, each on a board of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...base.errors import StateLost
from ...hw.sim.machine import joined
from ...isa.program import Array, Program, Role
from ..runner import Result
from .caches import Caches

if TYPE_CHECKING:
    from torch.fx import Node

    from ...hw.sim.machine import Run
    from ...rsnlib.host_part import HostPart
    from ...rsnlib.key_spans import KeySpans, RowsOfCaches
    from ...rsnlib.verification import Visible


def stage_inputs(program: Program, known: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of a program by name, float32, each in the shape that users see of its buffer (`Buffer.view`).
    known: the inputs and outputs of the network, and the activations between its stages, float32, by name."""
    buffers = program.with_role(Role.INPUT)
    return {b.name: known[b.name].reshape(b.view or known[b.name].shape) for b in buffers}


def stage_parameters(programs: Sequence[Program], named: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the run-time parameters of each stage, by name. named: the parameters of the whole network.

    A parameter that no program has goes to the first one, which refuses it. If its value is 0 it is left out: a network
    whose masks are constant has no parameter for padding before the rows, and 0 says that there is none.
    """
    known = [{p.name for p in program.parameters} for program in programs]
    given = [{name: value for name, value in named.items() if name in own} for own in known]
    given[0] |= {name: value for name, value in named.items() if value and not any(name in own for own in known)}
    return given


class ProgramOnBoard(Protocol):
    """What runs one program, such as a `Runner`."""

    @property
    def program(self) -> Program:
        """The program."""

    def run(self, inputs: Mapping[str, Array], parameters: Mapping[str, int] | None = None) -> Result:
        """As `Runner.run`."""


class HostedProgram:
    """Runs calls of a network with its host part. Not for several threads at once.

    host: the host part. runners: one for each stage, in order: what runs its only program on a board; the caller closes
    them. The boards keep the caches that calls write to, as `Caches` says. programs, first: if the runners are those of
    some consecutive stages only, the programs of all stages, and the number of the first stage with a runner; None and
    0 if all stages have runners.
    """

    def __init__(
        self, host: HostPart, *runners: ProgramOnBoard, programs: Sequence[Program] | None = None, first: int = 0
    ) -> None:
        self._host, self._runners = host, runners
        own = [runner.program for runner in runners]
        self._programs, self._own = own if programs is None else programs, slice(first, first + len(own))
        self._caches = [Caches(host, program) for program in own]
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's runs, one behind the other; None before the first call."""
        self.visible: Visible | None = None
        """The rows that the masks of the latest call showed; None without masks."""

    def call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rows: RowsOfCaches | None = None,
        passed: dict[str, Array] | None = None,
    ) -> Any:
        """Run the host part before the machine, the machine, and the host part behind it. args, kwargs: of the module,
        by position and by name. rows: the numbers of the rows of caches that new rows replace, as for `Compiled.step`;
        None for those that the module computes. passed: what earlier stages have computed, float32, by name; what these
        stages compute is added to it. Returns the module's result. Raises as `HostPart` and `Runner.run`."""
        host = self._host
        passed = {} if passed is None else passed
        inputs, spans, state = host.prologue(*args, **kwargs)
        self.visible = host.visible(spans)
        if rows is not None:
            spans = host.at_rows(spans, rows)
        parameters = stage_parameters(self._programs, {} if spans is None else spans.parameters())
        known = inputs | passed
        self.last_run = self._on_boards(known, parameters[self._own], state, spans)
        passed |= {name: x for name, x in known.items() if name not in inputs}
        outputs = {name: known[name].reshape(host.batch, host.seq_of(name), -1) for name in host.columns}
        returned = host.epilogue(outputs, state, rows)
        for caches in self._caches:
            caches.keep(state)
        return returned

    def _on_boards(
        self,
        known: dict[str, Array],
        parameters: Sequence[Mapping[str, int]],
        state: dict[Node, Any],
        spans: KeySpans | None,
    ) -> Run:
        """Run all programs, and return their time and traffic. known: the inputs of the network, to which all outputs
        are added. parameters: of each program. state, spans: as the host part returns them."""
        runs = []
        for number, named in enumerate(parameters):
            result = self._on_board(number, known, named, state, spans)
            runs.append(result.run)
            known |= result.outputs
        return joined(runs)

    def _on_board(
        self,
        number: int,
        known: Mapping[str, Array],
        named: Mapping[str, int],
        state: dict[Node, Any],
        spans: KeySpans | None,
    ) -> Result:
        """Run the program of this number. The others: as for `_on_boards`."""
        runner, caches = self._runners[number], self._caches[number]
        inputs = stage_inputs(runner.program, known)
        try:
            brought, turned = caches.missing(state, spans)
            return runner.run(inputs | brought, {**named, **turned})
        except StateLost:  # the board was opened again: it takes all caches anew
            brought, turned = caches.missing(state, spans)
            return runner.run(inputs | brought, {**named, **turned})
