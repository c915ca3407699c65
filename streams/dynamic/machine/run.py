"""Runs a machine of operators on tokens and tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ....base.errors import ProgramError, TensorError
from ....isa import program as instructions
from ....isa.instruction_path import InstructionPath
from ....isa.verify import require
from ....machine.dynamic import DynamicRun
from ....machine.executor import ProcessNetwork
from ..memory import Tensor
from ..run import Inputs, TimedRun
from ..tokens import Array, Token
from .files import OperatorMachine
from .overlay import BoundMachine, behaviour_of, bound_in


@dataclass(frozen=True, eq=False)
class MachineRun:
    """What a run of a machine returned. machine: the machine that ran. program: its program with the tokens of this
    run, so that the simulator can repeat the run. run: results and times, as those of `timed`."""

    machine: OperatorMachine
    program: instructions.Program
    run: TimedRun

    @property
    def cycles(self) -> float:
        """The length of the run, in cycles."""
        return self.run.cycles

    @property
    def tokens(self) -> dict[str, list[Token]]:
        """The tokens of each result, by name."""
        return {name: list(self.run.tokens[stream]) for name, stream in self.machine.results.items()}

    @property
    def times(self) -> dict[str, list[float]]:
        """The cycle in which each token of each result was put, by the name of the result, in the order of `tokens`."""
        return {name: list(self.run.times[stream]) for name, stream in self.machine.results.items()}

    def tensors(self) -> dict[str, Array]:
        """Return the tensors that the program stores, by name, each an array of the tensor's shape. Raises
        `ProgramError` if they have no values.
        """
        try:
            return {name: self.run.tensor(tensor) for name, tensor in self.machine.written.items()}
        except ValueError as error:
            raise ProgramError(f"{error}, so that the program has no results off the chip") from None


def run_machine(
    program: instructions.Program,
    inputs: Inputs | None = None,
    tensors: Mapping[str, Array] | None = None,
    with_data: bool = True,
    record: bool = False,
) -> MachineRun:
    """Run the program of a machine of operators. Results and times, in cycles, are those of `timed`.

    inputs: the tokens of each input by its name, as tokens, tokens with times, or text; None for none. tensors: values
    of tensors off the chip, arrays of their shapes by name, for those that are `OperatorMachine.needed`; None for none.
    with_data: whether tiles have values. record: whether to keep the event log in `run.engine.timing`.

    Raises `TensorError` for tensors that do not fit, `ProgramError` for another overlay and for units with wrong uOPs,
    and otherwise as `timed`."""
    machine = bound_in(program.overlay).machine
    require(program)
    bound = BoundMachine(machine, inputs or {}, given_tensors(machine, tensors or {}, with_data), with_data)
    behaviour = behaviour_of(bound)
    units = tuple(dataclasses.replace(unit, behaviour=behaviour) for unit in program.overlay.units)
    program = dataclasses.replace(program, overlay=dataclasses.replace(program.overlay, units=units))
    net = ProcessNetwork(program.overlay, InstructionPath.of(program), where=program.where, record=record)
    engine = DynamicRun.of(net, net.run())
    network = bound.network(net)
    requests = network.off_chip.requests if network.off_chip is not None else ()
    run = TimedRun(**network.results(engine), engine=engine, requests=frozenset(requests))
    return MachineRun(machine, program, run)


def given_tensors(machine: OperatorMachine, given: Mapping[str, Array], with_data: bool) -> dict[Tensor, Array]:
    """Return the values of tensors for a run. given: arrays of the shapes of the tensors, by name. with_data: whether
    tensors must have values. Raises `TensorError` for a name that the program does not have, for another shape, for
    values that are no numbers, and, with data, for missing tensors.
    """
    known, values = machine.tensors, {}
    for name, value in given.items():
        if name not in known:
            raise TensorError(f"the program has no tensor {name!r}; they are {', '.join(known) or 'none'}")
        data, shape = np.asarray(value), known[name].shape
        if data.shape != shape or data.dtype.kind not in "biuf":
            raise TensorError(f"{name} is {data.dtype} of shape {list(data.shape)}; the program has {list(shape)}")
        values[known[name]] = data
    missing = [name for name in machine.needed if known[name].data is None and known[name] not in values]
    if with_data and missing:
        raise TensorError(f"tensors without values: {', '.join(missing)}; a run without data needs none")
    return values
