"""How many bits each value of a function has, and of how many of them something is made."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from .hlscheck.ir import Instruction, LlvmFunction

SHIFTS = frozenset(("shl", "lshr", "ashr"))
DIVISIONS = frozenset(("udiv", "urem", "sdiv", "srem"))
IN_LUTS = 8
"""Bits of the smaller operand of a product up to which it is made of LUTs, not of a DSP."""


def widths(function: LlvmFunction) -> Mapping[str, int]:
    """Return how many bits each integer value of a function needs, with its sign, by the value's name. It is at most
    the bits of the value's type, and at most 64. It is less where the operands of its instruction or its users show
    that fewer bits are enough. A value that comes around a loop needs the bits of its type, or fewer if its users need
    fewer. The result also has values that are no integers, such as floats; their numbers mean nothing."""
    width = dict[str, int]()
    for i in function.instructions():
        if i.result:
            own = type_bits(i)
            width[i.result] = max(1, min(own, _width(i, own, width)))
    needed = _needed(function)
    return {value: max(1, min(bits, needed[value])) for value, bits in width.items()}


def constant_of(i: Instruction) -> int | None:
    """Return the last operand of an instruction if it is an integer constant, else None."""
    last = i.parts[-1].split()
    return int(last[-1]) if last and re.fullmatch(r"-?\d+", last[-1]) else None


def power_of(x: int | None) -> int | None:
    """Return the binary logarithm of x if x is a power of two, else None."""
    return x.bit_length() - 1 if x is not None and x > 0 and not x & (x - 1) else None


def size_of(value: str, bits: int, width: Mapping[str, int]) -> int:
    """Return how many bits an operand needs, with its sign. value: its name, or a constant. bits: of its type. width:
    bits of all values, as `widths` returns them."""
    if not re.fullmatch(r"-?\d+", value):
        return min(bits, width.get(value, bits))
    return int(value).bit_length() + 1 if bits > 1 else 1


def operand_bits(i: Instruction) -> int:
    """Return the bits of the type of an instruction's operands; 0 if they are no integers."""
    found = re.match(r".*?\bi(\d+)\b", i.rest)
    return int(found[1]) if found else 0


def operand_sizes(i: Instruction, width: Mapping[str, int]) -> tuple[int, int]:
    """Return how many bits each operand needs, with its sign. i: an instruction with two operands. width: as for
    `size_of`."""
    one, other = (size_of(part.split()[-1], operand_bits(i), width) for part in i.parts)
    return one, other


def is_of_luts(i: Instruction, width: Mapping[str, int]) -> bool:
    """Return whether a multiplication is made of LUTs, and of no DSP: one by a power of two, which is a shift, or by a
    number of few bits. i: the multiplication. width: as for `size_of`."""
    return power_of(abs(constant_of(i) or 0)) is not None or min(operand_sizes(i, width)) <= IN_LUTS


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
    constant = constant_of(i)
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
        size = size_of(found[2], source, width)
        return size + (i.opcode == "zext" and size == source)
    if i.opcode == "icmp":
        return 1
    if i.opcode in ("phi", "select"):
        values = [v for v, _ in i.incoming] if i.opcode == "phi" else [p.split()[-1] for p in i.parts[1:]]
        return max(size_of(v, own, width) for v in values)
    if i.opcode not in _SIZES:
        return own
    values = [part.split()[-1] for part in i.parts]
    constant = int(values[1]) if re.fullmatch(r"-?\d+", values[1]) else None
    return _SIZES[i.opcode](size_of(values[0], own, width), size_of(values[1], own, width), constant, own)


def type_bits(i: Instruction) -> int:
    """Return the bits of the type of an instruction's result; 64 if it is no integer."""
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
