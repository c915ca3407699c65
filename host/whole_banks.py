"""Programs whose buffers are whole banks: how a bare image, which has no buffers, runs on every board."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ..isa.program import Buffer, Layout, Program, Role

WRITTEN = "ddr"
"""The bank that programs write. No unit writes another one (contract section 2: LPDDR only loads)."""

AFTER = f"{WRITTEN}_after"
"""Name of the output with the contents of that bank after a run."""


def with_whole_banks(program: Program, sizes: Mapping[str, int]) -> Program:
    """Return the program with one buffer for each bank, which has the bank's name. sizes: of the banks, in float32
    elements; an empty bank has no buffer.

    DDR is an input and, in the same place, the output `AFTER`. Other banks are weights, which a board keeps between
    runs and `ssh://` sends once.
    """
    buffers = []
    for bank in program.overlay.banks:
        roles = {bank: Role.INPUT, AFTER: Role.OUTPUT} if bank == WRITTEN else {bank: Role.WEIGHT}
        for name, role in roles.items() if sizes.get(bank) else ():
            buffers.append(Buffer(name, bank, 0, (sizes[bank],), Layout.LINEAR, role))
    return dataclasses.replace(program, buffers=tuple(buffers))
