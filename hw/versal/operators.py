"""Counts what each process of xnn8 takes: LUTs and flip-flops by synthesis, products and quotients as LLVM shows them.

`python -m rsn.hw.versal.operators > FILE`; FILE then takes the place of isa/overlays/xnn8/operators.toml. It needs
clang, and Yosys as `hw/versal/pieces.py` does. What `hw/versal/netlist.py` writes of a process is synthesised, unless
the table in place was made of the same: `logic` is the beginning of its SHA-256. Products in a pipelined loop share a
DSP if its interval has several cycles. Nothing else is shared: a choice in front of a sum takes as many LUTs as a sum.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from math import ceil

import click

from ...isa.overlays.xnn8 import XNN8
from ...isa.overlays.xnn8.cycles import LOOPS
from ...isa.overlays.xnn8.resources import operators, process_counts
from .csim.build import MACHINES
from .hlscheck.checker import machine_texts
from .hlscheck.design import HlsDesign
from .hlscheck.ir import LlvmFunction
from .netlist import verilog
from .pieces import SYNTHESIS, synthesised
from .sources import sources
from .widths import DIVISIONS, is_of_luts, operand_sizes, widths

WITHOUT_DSPS = f"{SYNTHESIS} -nodsp"


def process_logic() -> dict[str, tuple[list[str], Counter[str]]]:
    """Return the logic of each process, by the name of its C++ function. The logic is the Verilog of each instance (a
    template has several), and how many operators are not in there, in the instance that has most: `multiply BITSxBITS
    to BITS` for products; `divider BITS` for quotients one at a time, `dividers BITS` if one begins in each cycle;
    `loop` for the number of pipelined loops, and `step` for that of all their steps.

    Raises `RsnError` without clang, or if the sources do not compile."""
    made_of, folder = MACHINES["xnn8"], sources()
    files = [p.relative_to(folder).as_posix() for p in made_of.kernel_files(folder)]
    design = HlsDesign(machine_texts(folder), files, "dma_hls", made_of.flags)
    counted, out = process_counts(XNN8), dict[str, tuple[list[str], Counter[str]]]()
    for function in design.module.functions.values():
        name = design.debug.name_of_function(function.subprogram).partition("<")[0]
        if name in counted:
            texts, found = out.get(name, ([], Counter[str]()))
            own = _operators(design, function)
            out[name] = [*texts, verilog(design, function)], max(found, own, key=lambda made: made.total())
    return out


def digest(texts: Sequence[str]) -> int:
    """Return a number by which a later call tells whether logic has changed: 32 bits of the SHA-256. texts: the Verilog
    of all instances of a process."""
    return int(sha256("\n".join(texts).encode()).hexdigest()[:8], 16)


def _operators(design: HlsDesign, function: LlvmFunction) -> Counter[str]:
    number, intervals, out = dict[str, int](), {0: 1}, Counter[str]()
    for n, place in enumerate((p for p in design.pipelines if p.function is function), 1):
        number |= dict.fromkeys(place.blocks, n)
        intervals[n] = max(1, place.interval)
        out["loop"] += 1
        name = (place.pragma.pragma.option("ii") or "").removeprefix("ii::")
        out["step"] += LOOPS.get(name, LOOPS["decode"]).fill  # loops of decoders state a number
    width = widths(function)
    loops = {n: Counter[str]() for n in intervals}
    for i in function.instructions():
        loop = number.get(i.block, 0)
        if i.opcode == "mul" and not is_of_luts(i, width):
            smaller, larger = sorted(operand_sizes(i, width))
            loops[loop][f"multiply {larger}x{smaller} to {width[i.result]}"] += 1
        elif i.opcode in DIVISIONS:
            loops[loop][f"{'dividers' if loop else 'divider'} {max(operand_sizes(i, width))}"] += 1
    for n, found in loops.items():
        out.update({name: ceil(count / intervals[n]) for name, count in found.items()})
    return out


def _made(texts: Sequence[str], before: Mapping[str, int]) -> tuple[int, int]:
    """LUTs and flip-flops of logic, of the largest instance of a template."""
    if before.get("logic") == digest(texts):
        return before["LUT"], before["FF"]
    return max(synthesised(texts, WITHOUT_DSPS))


@click.command(help=__doc__)
def main() -> None:
    """Print the table of what each process takes, as TOML. Raises as `process_logic` and `pieces.synthesised`."""
    click.echo("# What each process takes. Made by: python -m rsn.hw.versal.operators")
    processes = sorted(process_logic().items())
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        made = threads.map(lambda x: _made(x[1][0], operators().get(x[0], {})), processes)
    for (process, (texts, found)), (luts, flops) in zip(processes, made, strict=True):
        click.echo(f'\n["{process}"]\nlogic = 0x{digest(texts):08x}\nLUT = {luts}\nFF = {flops}')
        for name, count in sorted(found.items()):
            click.echo(f'"{name}" = {count}')


if __name__ == "__main__":
    main()
