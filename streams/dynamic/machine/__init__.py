"""Dynamic programs as machines with files: each operator is a unit, and its configuration is data of the overlay.

    from rsn.streams.dynamic.machine import OperatorMachine, lowered, run_machine

    machine = lowered(OperatorMachine(program, depths=2))
    rsn.assembler.container.write(machine, "program.bin")
    run_machine(machine, {"rows": "1 2 S1 D"}).cycles

`files` has the form of the text, `codec` what it holds of operators, `overlay` the units, `run` their run, and
`token_files` the streams and tensors of a run as files.
"""

from __future__ import annotations

from .files import OperatorMachine
from .overlay import lowered
from .run import MachineRun, run_machine

__all__ = ["MachineRun", "OperatorMachine", "lowered", "run_machine"]
