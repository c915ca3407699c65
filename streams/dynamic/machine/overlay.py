"""The machine of a dynamic program: a unit for each operator and each input, and one for the memory off the chip.

A unit has one uOP, which says which configuration of the overlay it has; it runs until the end of its streams.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from ....base.errors import ProgramError, UndecidedError
from ....isa import program as instructions
from ....isa.fields import Record, bits
from ....isa.overlay import OpList, Overlay
from ....machine.description import UnitSpec
from ....machine.dynamic import DynamicUnit
from ....machine.executor import ProcessNetwork
from ....machine.steps import NEVER, Steps
from ....machine.traces import UntraceableError
from ...build import unit_names
from ...machines import DYNAMIC
from ..memory import Tensor
from ..run import OFF_CHIP_UNIT, Arrivals, OperatorNetwork
from ..tokens import Array, Token
from .files import OperatorMachine, lines, parsed

if TYPE_CHECKING:
    from ....machine.unit import Wiring


class RunOperator(Record, words=1):
    """Run one operator, or one input, to the end of its streams."""

    operator: int = bits(0, 0, 32, "number of the unit, whose configuration the overlay holds")


@dataclass(frozen=True, eq=False)
class BoundMachine:
    """A machine with what one of its runs takes. inputs: the tokens of each input by its name, as tokens, tokens with
    times, or text; None for a machine that is not run. tensors: the values of tensors off the chip, arrays of their
    shapes. with_data: whether tiles have values; if not, only their sizes are computed."""

    machine: OperatorMachine
    inputs: Mapping[str, Sequence[Token] | Arrivals | str] | None = None
    tensors: Mapping[Tensor, Array] = field(default_factory=dict)
    with_data: bool = True
    _networks: WeakKeyDictionary[ProcessNetwork, OperatorNetwork] = field(default_factory=WeakKeyDictionary)

    def network(self, net: ProcessNetwork) -> OperatorNetwork:
        """Return the units and streams of a run. net: the run; its units are made at the first call, and each run has
        its own. Raises `UndecidedError` for a machine without `inputs`, `StepError` for inputs that do not fit the
        program, `StreamFault` for a text that is no stream."""
        if (known := self._networks.get(net)) is None:
            if self.inputs is None:
                raise UndecidedError(f"tokens decide what the units of {self.machine.name} do: a run takes them")
            known = self._networks[net] = self._operators(self.inputs)
        return known

    def empty_network(self) -> OperatorNetwork:
        """Return the units and streams of the machine with inputs that have no tokens; they have the names that they
        have in every run. Raises `StepError` for a feedback without a writer and a depth below 1."""
        return self._operators(dict.fromkeys(self.machine.program.inputs, ()))

    def _operators(self, inputs: Mapping[str, Sequence[Token] | Arrivals | str]) -> OperatorNetwork:
        machine = self.machine
        names = dict(zip(_others(machine), unit_names(_others(machine)), strict=True))
        return OperatorNetwork(
            machine.name,
            machine.program,
            inputs,
            machine.depths,
            machine.rates,
            None,
            self.with_data,
            tensors=self.tensors,
            unit_name=names.__getitem__,
        )


def _others(machine: OperatorMachine) -> list[str]:
    """What units are called in a run that are no operators."""
    return [*(f"input {name}" for name in machine.program.inputs), OFF_CHIP_UNIT]


class OperatorUnit(DynamicUnit):
    """A unit of a machine of operators. bound: the machine with what a run takes; `behaviour_of` sets it in a subclass
    for each machine."""

    bound: ClassVar[BoundMachine]

    def kernel(self, uop: Any) -> Steps:
        """Return the steps of the unit's operator, in a run. uop: a `RunOperator`; the unit has one operator only, so
        its number is not read. Raises `UntraceableError` outside of a run.
        """
        net: Wiring = self.net
        if not isinstance(net, ProcessNetwork) or net.progress[self.name].number == NEVER:
            raise UntraceableError("tokens decide how many words each stream carries")
        return super().kernel(self.bound.network(net).network.uop(self.name))


def behaviour_of(bound: BoundMachine) -> type[OperatorUnit]:
    """Return a class of units that run the operators of `bound`; all units of a machine have it."""
    return type("OperatorUnit", (OperatorUnit,), {"bound": bound})


def overlay_of(machine: OperatorMachine, in_files: bool = True) -> Overlay:
    """Return the overlay of a machine: a unit for each input and each operator, in this order, and one for the memory
    off the chip. in_files: whether the overlay can be written to files; False for a machine that only runs in this
    process. Raises `ProgramError` for a program without operators, and, with `in_files`, `StepError` for an operator
    that files cannot hold."""
    if not machine.program.nodes:
        raise ProgramError("operators: there are none, so there is no machine to make")
    bound = BoundMachine(machine)
    network = bound.empty_network().network
    behaviour = behaviour_of(bound)
    kinds = _kinds(machine, network.units)
    counts: Counter[str] = Counter()
    units = []
    for name, kind in zip(network.units, kinds, strict=True):
        units.append(UnitSpec(name, kind, counts[kind], behaviour))
        counts[kind] += 1
    return dataclasses.replace(
        DYNAMIC,
        name=machine.name,
        units=tuple(units),
        streams=network.streams,
        preloaded={kind: OpList(RunOperator, RunOperator.WORDS) for kind in counts},
        legal=_legal(network.units),
        title=lambda uop: network.units[uop.operator] if uop.operator < len(network.units) else "",
        base=DYNAMIC.name,
        changes=tuple(lines(machine)) if in_files else (),
    )


def _kinds(machine: OperatorMachine, units: Sequence[str]) -> list[str]:
    """The kind of each unit: inputs come first, then the operators, then the memory."""
    nodes = [f"{node.operator.name}Unit" for node in machine.program.nodes]
    inputs = ["InputUnit"] * len(machine.program.inputs)
    return [*inputs, *nodes, *["MemoryUnit"] * (len(units) - len(inputs) - len(nodes))]


def _legal(units: Sequence[str]) -> Callable[[UnitSpec, Any], Iterator[str]]:
    """Makes the check that a unit runs its own operator."""
    own = {name: number for number, name in enumerate(units)}

    def legal(unit: UnitSpec, uop: RunOperator) -> Iterator[str]:
        if uop.operator != own[unit.name]:
            yield f"runs another unit's operator: its own is {own[unit.name]}"

    return legal


def bound_in(overlay: Overlay) -> BoundMachine:
    """Return the machine that an overlay of operators is made of. Raises `ProgramError` for another overlay."""
    behaviour = overlay.units[0].behaviour
    if not issubclass(behaviour, OperatorUnit):
        raise ProgramError(f"{overlay.name} is no machine of operators")
    return behaviour.bound


def made(given: Mapping[str, Any], name: str) -> Overlay:
    """Return the overlay that a parsed overlay file describes. given, name: as for `files.parsed`. Raises
    `ProgramError` for a file that describes no machine of operators."""
    return overlay_of(parsed(given, name))


def lowered(machine: OperatorMachine, in_files: bool = True) -> instructions.Program:
    """Return the program of a machine, which `assembler.container` writes as an image and `assembler.printer` as a
    text. It has no values of tensors. in_files: False for a machine that only runs in this process, whose operators may
    apply Python functions.

    Raises `StepError`, at the user's line, for an operator that files cannot hold, and `ProgramError` for a program
    without operators."""
    overlay = overlay_of(machine, in_files)
    where = {node.name: node.where for node in machine.program.nodes}
    places = {}
    for unit in overlay.units:
        file, _, line = where.get(unit.name, "").rpartition(":")
        if line.isdecimal():
            places[unit.name] = (instructions.SourceLine(file, int(line)),)
    uops = {unit.name: (RunOperator(operator=number),) for number, unit in enumerate(overlay.units)}
    return instructions.Program(overlay, (), uops, preloaded_places=places)
