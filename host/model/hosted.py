"""A program on a board with what PyTorch computes before and after it: one call of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.errors import StateLost
from ...isa.program import Program
from ..runner import Runner
from .caches import Caches

if TYPE_CHECKING:
    from ...hw.sim.machine import Run
    from ...rsnlib.host_part import HostPart
    from ...rsnlib.key_spans import RowsOfCaches
    from ...rsnlib.verification import Visible


class HostedProgram:
    """Calls of a program with its host part. Not for several threads at once.

    host: the host part. runner: runs the program, which is its only one, on a board; the caller closes it. The board
    keeps the caches that calls write to, as `Caches` says.
    """

    def __init__(self, host: HostPart, runner: Runner) -> None:
        self._host, self._runner = host, runner
        self._program: Program = runner.program
        self._caches = Caches(host, self._program)
        self.last_run: Run | None = None
        """Time, traffic and utilization of the latest call's run; None before the first call."""
        self.visible: Visible | None = None
        """The rows that the masks of the latest call showed; None without masks."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], rows: RowsOfCaches | None = None) -> Any:
        """Run the host part before the machine, the machine, and the host part behind it. args, kwargs: of the module,
        by position and by name. rows: the rows of caches that new ones become, as for `Compiled.step`; None for those
        that the module says. Returns the module's result. Raises as `HostPart` and `Runner.run`."""
        host, program = self._host, self._program
        inputs, spans, state = host.prologue(*args, **kwargs)
        self.visible = host.visible(spans)
        if rows is not None:
            spans = host.at_rows(spans, rows)
        known = {p.name for p in program.parameters}
        parameters = {} if spans is None else spans.parameters()
        # Constant masks without padding before their rows are no reason for a parameter.
        parameters = {name: value for name, value in parameters.items() if value or name in known}
        # In the view of a buffer the rows of sequences may lie together.
        inputs = {name: x.reshape(program.buffer(name).view or x.shape) for name, x in inputs.items()}
        try:
            brought, turned = self._caches.missing(state, spans)
            result = self._runner.run(inputs | brought, parameters | turned)
        except StateLost:  # the board was opened again: it takes all caches anew
            brought, turned = self._caches.missing(state, spans)
            result = self._runner.run(inputs | brought, parameters | turned)
        self.last_run = result.run
        outputs = {name: x.reshape(host.batch, host.seq_of(name), -1) for name, x in result.outputs.items()}
        returned = host.epilogue(outputs, state, rows)
        self._caches.keep(state)
        return returned
