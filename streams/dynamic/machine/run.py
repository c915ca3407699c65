"""Runs a machine of operators on tokens and tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....base.errors import ProgramError, TensorError
from ....isa import program as instructions
from ....isa.instruction_path import InstructionPath
from ....machine.dynamic import DynamicRun
from ....machine.executor import ProcessNetwork
from ..run import Inputs, TimedRun
from ..tokens import Array, Token
from .files import OperatorMachine
from .overlay import BoundMachine, OperatorUnit, machine_in, overlay_of


@dataclass(frozen=True, eq=False)
class MachineRun:
    """What a run of a machine gave. machine: what ran. program: with the tokens of this run, so that the simulator can
    repeat it. run: its results and times, as those of `timed`."""

    machine: OperatorMachine
    program: instructions.Program
    run: TimedRun

    @property
    def cycles(self) -> float:
        """The length of the run."""
        return self.run.cycles

    @property
    def tokens(self) -> dict[str, list[Token]]:
        """The tokens of each result, by name."""
        return {name: list(self.run.tokens[stream]) for name, stream in self.machine.results.items()}

    @property
    def times(self) -> dict[str, list[float]]:
        """The cycle in which each of these tokens was put."""
        return {name: list(self.run.times[stream]) for name, stream in self.machine.results.items()}

    def tensors(self) -> dict[str, Array]:
        """Return the tensors that the program stores, by name. Raises `ProgramError` if they have no values."""
        try:
            return {name: self.run.tensor(tensor) for name, tensor in self.machine.written.items()}
        except ValueError as error:
            raise ProgramError(f"{error}, so that the program has no results off the chip") from None


def run_machine(
    program: instructions.Program,
    inputs: Inputs | None = None,
    tensors: Mapping[str, Array] | None = None,
    with_data: bool = True,
) -> MachineRun:
    """Run the program of a machine of operators. Results and times are those of `timed`.

    inputs: tokens of each input, as text, or with times. tensors: values of tensors off the chip, by name; every one
    that the program loads and does not store needs them, unless it has values of its own. with_data: whether tensors
    have values.

    Raises `TensorError` for tensors that do not fit, and otherwise as `timed`.
    """
    bound = bound_to(program, inputs, tensors, with_data)
    net = ProcessNetwork(bound.overlay, InstructionPath.of(bound), where=bound.where)
    engine = DynamicRun.of(net, net.run())
    behaviour = bound.overlay.units[0].behaviour
    assert issubclass(behaviour, OperatorUnit)
    network = behaviour.bound.network(net)
    requests = network.off_chip.requests if network.off_chip is not None else ()
    run = TimedRun(**network.results(engine), engine=engine, requests=frozenset(requests))
    return MachineRun(behaviour.bound.machine, bound, run)


def bound_to(
    program: instructions.Program, inputs: Inputs | None, tensors: Mapping[str, Array] | None, with_data: bool
) -> instructions.Program:
    """Return the program with what a run takes. The arguments are those of `run_machine`."""
    machine = machine_in(program.overlay)
    known, given = machine.tensors, {}
    for name, value in (tensors or {}).items():
        if name not in known:
            raise TensorError(f"the program has no tensor {name!r}; they are {', '.join(known) or 'none'}")
        data = np.asarray(value)
        if data.shape != known[name].shape or data.dtype.kind not in "biuf":
            raise TensorError(f"{name} has {data.dtype} of shape {data.shape}; the program has {known[name].shape}")
        given[known[name]] = data
    missing = [
        name
        for name, tensor in machine.read.items()
        if tensor.data is None and tensor not in given and name not in machine.written
    ]
    if with_data and missing:
        raise TensorError(f"tensors without values: {', '.join(missing)}; a run without data needs none")
    overlay = overlay_of(BoundMachine(machine, inputs or {}, given, with_data))
    return dataclasses.replace(program, overlay=overlay)
