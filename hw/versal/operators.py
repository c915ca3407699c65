"""Counts the operators of integers in the processes of xnn8, as LLVM shows them, and writes their numbers.

`python -m rsn.hw.versal.operators > isa/overlays/xnn8/operators.toml` needs clang. Inlined and unrolled, a process has
each operation that HLS makes an operator of. In a pipelined loop HLS shares an operator among as many operations as its
interval has cycles. Elsewhere each operation is counted by itself, which is more than HLS needs: it shares those of
different states.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
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
    width, tests, registers = _widths(function), _bit_tests(function), _registers(function, headers)
    loops = {n: Counter[str]() for n in (0, *intervals)}
    for i in function.instructions():
        loop = number.get(i.block, 0)
        # such a choice is a register
        if not (i.opcode == "phi" and i.block in headers) and tests.isdisjoint((i.result,)):
            loops[loop].update(_of(i, width, registers, in_loop=loop > 0))
    outside, shared = loops.pop(0), Counter({"loop": len(intervals)} if intervals else {})
    for n, found in loops.items():
        shared.update({name: ceil(count / intervals[n]) for name, count in found.items()})
    return shared, outside


def _bit_tests(function: LlvmFunction) -> frozenset[str]:
    """Comparisons that look at one bit of a value, which is a wire."""
    bits = {i.result for i in function.instructions() if i.opcode == "and" and _power(_constant(i)) is not None}
    tests = (i for i in function.instructions() if i.opcode == "icmp" and _constant(i) == 0)
    return frozenset(i.result for i in tests if bits.intersection(i.operands))


def _constant(i: Instruction) -> int | None:
    """The second operand, if it is a constant of more than one bit."""
    last = i.parts[-1].split()
    return int(last[-1]) if last and re.fullmatch(r"-?\d+", last[-1]) else None


def _power(x: int | None) -> int | None:
    """The binary logarithm of x, if x is a power of two."""
    return x.bit_length() - 1 if x is not None and x > 0 and not x & (x - 1) else None


def _registers(function: LlvmFunction, headers: Set[str]) -> Mapping[str, frozenset[str]]:
    """Of choices that only registers take, the values that are registers themselves: what keeps its value needs no
    choice, because a register has an enable. headers: blocks in which loops begin."""
    phis = {i.result: i for i in function.instructions() if i.opcode == "phi"}
    registers = frozenset(name for name, i in phis.items() if i.block in headers)
    readers: dict[str, set[str]] = {}
    for i in function.instructions():
        for value in i.operands:
            readers.setdefault(value, set()).add(i.result)
    taken, before = set(registers), 0
    while len(taken) > before:
        before = len(taken)
        taken.update(name for name in phis if readers.get(name, {""}) <= taken)
    return dict.fromkeys(taken - registers, registers)


def _of(
    i: Instruction, width: Mapping[str, int], registers: Mapping[str, frozenset[str]], *, in_loop: bool
) -> Iterator[str]:
    """The operators of one instruction. Wires are none: constant shifts and masks, parts of words, signs."""
    found = re.match(r".*?\bi(\d+)\b", i.rest)
    if found is None or i.opcode == "call":
        return
    bits = int(found[1])
    if i.opcode == "phi":
        for _ in range(len({value for value, _ in i.incoming} - registers.get(i.result, frozenset())) - 1):
            yield f"choice {width[i.result]}"
        return
    values = [part.split()[-1] for part in i.parts]
    sizes = [_size(value, bits, width) for value in values]
    constants = [not value.startswith("%") for value in values]
    if i.opcode in ("add", "sub"):
        yield f"sum {width[i.result]}"
    elif i.opcode == "mul" and _power(abs(_constant(i) or 0)) is not None:
        yield f"sum {sizes[0]}"  # a number that is negated, in another place
    elif i.opcode == "mul":
        yield f"multiply {max(sizes)}x{min(sizes)} to {width[i.result]}"
    elif i.opcode in SHIFTS and not constants[1]:
        yield f"{'power' if constants[0] else 'shift'} {width[i.result]}"
    elif i.opcode in DIVISIONS:
        yield f"{'dividers' if in_loop else 'divider'} {max(sizes)}"
    elif i.opcode == "select" and bits == 1:
        yield f"choice {width[i.result]}"
    elif i.opcode == "icmp" and bits > 1 and not (values[1] in ("0", "-1") and re.search("s[lg]t", i.rest)):
        # against 2^n, it is seen whether a bit from n on is set
        edge = _power(_constant(i) if " ult " in i.rest else (_constant(i) or 0) + 1 if " ugt " in i.rest else None)
        if edge is not None or (constants[1] and re.match(r"\s*(eq|ne)\b", i.rest)):
            yield f"test {max(1, sizes[0] - (edge or 0))}"
        else:
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
    needed = _needed(function)
    return {value: max(1, min(bits, needed[value])) for value, bits in width.items()}


def _needed(function: LlvmFunction) -> Counter[str]:
    """How many of its lower bits are needed of each value by those that are made of it: less than its type has, where
    others are cut off."""
    needed = Counter[str]()
    instructions = [*function.instructions()][::-1]
    changed = True
    while changed:
        before = needed.total()
        for i in instructions:
            for value, bits in _needs(i, needed[i.result]):
                needed[value] = max(needed[value], bits)
        changed = needed.total() > before
    return needed


def _needs(i: Instruction, bits: int) -> Iterator[tuple[str, int]]:
    """What an instruction needs of its operands if `bits` are needed of its result."""
    values = [part.split()[-1] for part in i.parts if part.strip()]
    constant = _constant(i)
    if i.opcode in ("add", "sub", "mul", "or", "xor"):
        yield from ((value, bits) for value in values)
    elif i.opcode == "and":
        mask = 64 if constant is None or constant < 0 else constant.bit_length()
        yield from ((value, min(bits, mask)) for value in values)
    elif i.opcode in SHIFTS and constant is not None:
        yield values[0], min(64, bits + constant) if i.opcode != "shl" else max(0, bits - constant)
    elif i.opcode in ("zext", "sext", "trunc") and (found := re.search(r"\bi(\d+) (\S+) to i(\d+)", i.rest)):
        yield found[2], min(bits, int(found[1]), int(found[3]))
    elif i.opcode == "phi":
        yield from ((value, bits) for value, _ in i.incoming)
    elif i.opcode == "select":
        yield from ((value, bits if n else 1) for n, value in enumerate(values))
    else:
        yield from ((value, 64) for value in i.operands)


def _width(i: Instruction, own: int, width: Mapping[str, int]) -> int:
    if i.opcode in ("zext", "sext", "trunc") and (found := re.search(r"\bi(\d+) (\S+) to i", i.rest)):
        source = int(found[1])
        size = _size(found[2], source, width)
        return size + (i.opcode == "zext" and size == source > 1)  # a truth value needs no sign
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
    "lshr": lambda a, b, by, bits: a if by is None else a - by,
    "udiv": lambda a, b, by, bits: a,
    "urem": lambda a, b, by, bits: b,
}
"""Bits of a result by those of both operands, with their signs, the second one if it is a constant, and the type's.
What LLVM shifts to the right without its sign is not negative."""


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
