"""The control of a function, run as far as its numbers are known: which blocks it takes, and how often.

Values that come from memories, streams and arguments are unknown. What only they decide is not followed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from .ir import Instruction, LlvmFunction

_TWO: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "shl": operator.lshift,
    "ashr": operator.rshift,
    "sdiv": lambda a, b: int(a / b),
    "srem": lambda a, b: a - b * int(a / b),
}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_TYPED = re.compile(r"\bi(\d+) (\S+), (\S+)$")

Known = dict[str, int]
"""Integers by the names of their values; signed."""


def entered(function: LlvmFunction, known: Known, block: str, before: str) -> None:
    """Compute the integers of the block labelled `block` of a function, when it is entered from the block labelled
    `before` ("" for none). known: the integers that are known, changed in place; values that are no longer known leave
    it. Raises `KeyError` for an unknown label."""
    merged = {}
    for i in function.blocks[block].instructions:
        if i.opcode == "phi":
            merged[i.result] = next((_value(known, v) for v, b in i.incoming if b == before), None)
    for name, value in merged.items():
        _keep(known, name, value)
    for i in function.blocks[block].instructions:
        if i.opcode != "phi" and i.result:
            _keep(known, i.result, _computed(known, i))


def successor(function: LlvmFunction, known: Known, block: str) -> str | None:
    """Return the label of the block that comes behind the block labelled `block` of a function; "" if the function ends
    there, None if an unknown value decides. known: as `entered` has left it. Raises `KeyError` for an unknown label."""
    here = function.blocks[block]
    if len(set(here.successors)) < 2:
        return here.successors[0] if here.successors else ""
    last = here.instructions[-1]
    if last.opcode != "br":
        return None
    chosen = _value(known, last.operands[0] if last.operands else last.rest.split(",")[0].split()[-1])
    return None if chosen is None else here.successors[0 if chosen & 1 else 1]


def _keep(known: Known, name: str, value: int | None) -> None:
    if value is None:
        known.pop(name, None)
    else:
        known[name] = value


def _value(known: Known, text: str) -> int | None:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"true": 1, "false": 0}.get(text, known.get(text))


def _wrapped(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> bits - 1 else value


def _computed(known: Known, i: Instruction) -> int | None:
    found = _TYPED.search(i.rest)
    if i.opcode in ("sext", "zext", "trunc"):
        types = re.search(r"\bi(\d+) (\S+) to i(\d+)$", i.rest)
        value = _value(known, types[2]) if types else None
        if types is None or value is None:
            return None
        if i.opcode == "zext":
            value &= (1 << int(types[1])) - 1
        return _wrapped(value, int(types[3]))
    if i.opcode == "select":
        parts = re.search(r"i1 (\S+), i\d+ (\S+), i\d+ (\S+)$", i.rest)
        test = _value(known, parts[1]) if parts else None
        return None if parts is None or test is None else _value(known, parts[2 if test & 1 else 3])
    if found is None:
        return None
    bits, a, b = int(found[1]), _value(known, found[2]), _value(known, found[3])
    if a is None or b is None:
        return None
    if i.opcode == "icmp":
        how = re.search(r"\b(eq|ne|([us])(lt|le|gt|ge)) i", i.rest)
        if how is None:
            return None
        if how[2] == "u":
            a, b = a & (1 << bits) - 1, b & (1 << bits) - 1
        return int(_COMPARED[how[3] or how[1]](a, b))
    if i.opcode == "lshr":
        return _wrapped((a & (1 << bits) - 1) >> b, bits)
    if i.opcode in _TWO and not (i.opcode in ("sdiv", "srem") and b == 0):
        return _wrapped(_TWO[i.opcode](a, b), bits)
    return None
