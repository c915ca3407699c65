"""Counts the operators of integers in the processes of xnn8, as LLVM shows them, and writes their numbers.

`python -m rsn.hw.versal.operators > isa/overlays/xnn8/operators.toml` needs clang. Inlined and unrolled, a process has
each operation that HLS makes an operator of. In a pipelined loop HLS shares an operator among as many operations as its
interval has cycles. Elsewhere each operation is counted by itself, which is more than HLS needs: it shares those of
different states.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import ceil

import click

from .csim.build import MACHINES
from .hlscheck.checker import machine_texts
from .hlscheck.design import HlsDesign
from .hlscheck.ir import Instruction, LlvmFunction
from .sources import sources

SHIFTS = frozenset(("shl", "lshr", "ashr"))
DIVISIONS = frozenset(("udiv", "urem", "sdiv", "srem"))
OUTSIDE = ", outside of pipelines"


def process_operators(machine: str) -> dict[str, Counter[str]]:
    """Return the operators of each process of a machine by its name, and behind `OUTSIDE` those that are in none of its
    pipelined loops: how many of each, by `NAME BITS`, of products `multiply BITSxBITS to BITS`; and `loop`, the number
    of pipelined loops. Templates of one name count as one process, the largest of them. machine: a key of `MACHINES`;
    raises `KeyError` for another, `RsnError` without clang."""
    made_of, folder = MACHINES[machine], sources()
    files = [p.relative_to(folder).as_posix() for pattern in made_of.kernel for p in sorted(folder.glob(pattern))]
    design = HlsDesign(machine_texts(folder), files, "dma_hls", made_of.flags)
    out: dict[str, Counter[str]] = {}
    for function in design.module.functions.values():
        name = design.debug.name_of_function(function.subprogram).partition("<")[0]
        for where, found in zip((name, name + OUTSIDE), _operators(design, function), strict=True):
            if found:
                out[where] = max(out.get(where, Counter()), found, key=lambda made: made.total())
    return out


def _operators(design: HlsDesign, function: LlvmFunction) -> tuple[Counter[str], Counter[str]]:
    """The operators of a function: those of all its pipelined loops, and all others."""
    number, intervals = dict[str, int](), dict[int, int]()
    for n, place in enumerate((p for p in design.pipelines if p.function is function), 1):
        number |= dict.fromkeys(place.blocks, n)
        intervals[n] = max(1, place.interval)
    headers = {loop.header for loop in function.loops}
    width = _widths(function)
    loops = {n: Counter[str]() for n in (0, *intervals)}
    for i in function.instructions():
        loop = number.get(i.block, 0)
        if not (i.opcode == "phi" and i.block in headers):  # which is a register
            loops[loop].update(_of(i, width, in_loop=loop > 0))
    outside, shared = loops.pop(0), Counter({"loop": len(intervals)} if intervals else {})
    for n, found in loops.items():
        shared.update({name: ceil(count / intervals[n]) for name, count in found.items()})
    return shared, outside


def _of(i: Instruction, width: Mapping[str, int], *, in_loop: bool) -> Iterator[str]:
    """The operators of one instruction. Wires are none: constant shifts and masks, parts of words, signs."""
    found = re.match(r".*?\bi(\d+)\b", i.rest)
    if found is None or i.opcode == "call":
        return
    bits = int(found[1])
    if i.opcode == "phi":
        for _ in range(len({value for value, _ in i.incoming}) - 1):
            yield f"choice {width[i.result]}"
        return
    values = [part.split()[-1] for part in i.parts]
    sizes = [_size(value, bits, width) for value in values]
    constants = [not value.startswith("%") for value in values]
    if i.opcode in ("add", "sub"):
        yield f"sum {width[i.result]}"
    elif i.opcode == "mul":
        yield f"multiply {max(sizes)}x{min(sizes)} to {width[i.result]}"
    elif i.opcode in SHIFTS and not constants[1]:
        yield f"{'power' if constants[0] else 'shift'} {width[i.result]}"
    elif i.opcode in DIVISIONS:
        yield f"{'dividers' if in_loop else 'divider'} {max(sizes)}"
    elif i.opcode == "select" and bits == 1:
        yield f"choice {width[i.result]}"
    elif i.opcode == "icmp" and bits > 1 and not (values[1] in ("0", "-1") and re.search("icmp|s[lg]t", i.rest)):
        yield f"order {max(sizes)}"
    elif i.opcode in ("and", "or", "xor") and bits > 1 and not any(constants) and "disjoint" not in i.rest:
        yield f"and {min(sizes) if i.opcode == 'and' else max(sizes)}"


def _size(value: str, bits: int, width: Mapping[str, int]) -> int:
    """The bits of an operand, with its sign. bits: of its type."""
    if not re.fullmatch(r"-?\d+", value):
        return min(bits, width.get(value, bits))
    return int(value).bit_length() + 1 if bits > 1 else 1


def _widths(function: LlvmFunction) -> Mapping[str, int]:
    """The bits of each value of a function, with its sign, as far as they follow from those that it is made of: less
    than its type has, where it was widened. Values that come around a loop have those of their type."""
    width = dict[str, int]()
    for i in function.instructions():
        if i.result:
            own = _type_bits(i)
            width[i.result] = max(1, min(own, _width(i, own, width)))
    return width


def _width(i: Instruction, own: int, width: Mapping[str, int]) -> int:
    if i.opcode in ("zext", "sext", "trunc") and (found := re.search(r"\bi(\d+) (\S+) to i", i.rest)):
        source = int(found[1])
        size = _size(found[2], source, width)
        return size + (i.opcode == "zext" and size == source)
    if i.opcode == "icmp":
        return 1
    if i.opcode in ("phi", "select"):
        values = [v for v, _ in i.incoming] if i.opcode == "phi" else [p.split()[-1] for p in i.parts[1:]]
        return max(_size(v, own, width) for v in values)
    if i.opcode not in _SIZES:
        return own
    values = [part.split()[-1] for part in i.parts]
    constant = int(values[1]) if re.fullmatch(r"-?\d+", values[1]) else None
    return _SIZES[i.opcode](_size(values[0], own, width), _size(values[1], own, width), constant, own)


def _type_bits(i: Instruction) -> int:
    found = re.findall(r"\bi(\d+)\b", i.rest)
    if not found:
        return 64
    return int(found[-1] if i.opcode in ("zext", "sext", "trunc", "select") else found[0])


_SIZES: Mapping[str, Callable[[int, int, int | None, int], int]] = {
    "add": lambda a, b, by, bits: max(a, b) + 1,
    "sub": lambda a, b, by, bits: max(a, b) + 1,
    "mul": lambda a, b, by, bits: a + b,
    "and": lambda a, b, by, bits: b if by is not None and by >= 0 else max(a, b),
    "or": lambda a, b, by, bits: max(a, b),
    "xor": lambda a, b, by, bits: max(a, b),
    "shl": lambda a, b, by, bits: bits if by is None else a + by,
    "ashr": lambda a, b, by, bits: a if by is None else a - by,
    "lshr": lambda a, b, by, bits: bits if by is None else bits - by + 1,
    "udiv": lambda a, b, by, bits: a,
    "urem": lambda a, b, by, bits: b,
}
"""Bits of a result by those of both operands, with their signs, the second one if it is a constant, and the type's."""


@click.command(help=__doc__)
@click.argument("machine", default="xnn8")
def main(machine: str) -> None:
    """Print the table."""
    click.echo("# Operators of integers of each process. Made by: python -m rsn.hw.versal.operators")
    for process, found in sorted(process_operators(machine).items()):
        click.echo(f'\n["{process}"]')
        for name, count in sorted(found.items()):
            click.echo(f'"{name}" = {count}')


if __name__ == "__main__":
    main()
