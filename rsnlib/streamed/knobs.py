"""Knobs of a stream program made from a PyTorch block: how operators are cut into tiles, and how wide they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import log2, sqrt
from numbers import Integral

from ...base.element_types import SCALARS
from ...base.errors import ProgramError
from ...streams.words import MOVED

OF_OPERATORS = ("rows", "columns", "depth", "unroll", "fabric", "lanes", "port", "outward", "kernels", "together")
"""Knobs that an operator may have for itself."""

SWITCHES = frozenset(("outward", "packed", "ping_pong"))
"""Knobs that are 0 or 1."""

PRODUCTS = frozenset(("linear", "array", "scores", "attend"))
"""Operators that `unroll` is about; `lanes` is about the others."""

ADDERS = 32
"""Elements of sums, biases and masks that a product in float32 takes in a cycle beside its multiply-adds."""

SCALED = 0.1
"""Multipliers of a multiply-add of integers, for each one of what scales a sum and adds it (`resources`): half a DSP of
five. Where c of one kind cost as much as 1 of the other, s steps and a pass take least time with sqrt(c / s) elements
for each multiply-add."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Knobs of all operators; `of` changes them for single operators. Raises `ProgramError` for values that are no
    whole numbers from 1 on, or not 0 or 1 where they must be, and for knobs that an operator does not have.

    rows, columns: of a tile, at most. depth: of the tiles that a product sums over, in elements, at most. Whole tiles
    cover the rows (`covering`); of the other sizes a tile has the largest divisor that the knob allows. unroll:
    multiply-adds of a product in a clock cycle. fabric: how many of these, of a product of integers, are in LUTs.
    lanes: elements of other operators in a cycle. port: bytes that a load or store moves in a cycle; of an operator,
    each of its loads.

    outward: 1 if the loop over the sum of a linear operator is outside the one over columns: the kernel then works on
    each tile of its operand as it comes, and keeps a row of tiles of sums; 0 if each tile of the result is complete
    before the next one begins. kernels: into how many kernels a linear operator is divided, at most; each has an equal
    share of its columns. arrays: how many arrays of multipliers all products with constant weights share (`arrays`), at
    most; 0 if each of them has multipliers of its own. together: how many row tiles of heads a norm, a softmax or a
    quantiser takes together, at most. It works on their rows in turn; with a single row it would wait for its own
    pipeline.

    packed: 1 if tensors off the chip lie tile by tile, as they are moved, so that a tile is read in full words of the
    port; 0 if they are row-major, so that each row of a tile begins a word. ping_pong: 1 if a converter has two
    buffers, of which one is filled while the other is read; 0 if it has one, which is filled and read in turn. of:
    knobs of single operators: by the name of the operator, values by the name of the knob.
    """

    rows: int = 16
    columns: int = 16
    depth: int = 16
    unroll: int = 256
    fabric: int = 0
    lanes: int = 16
    port: int = 64
    outward: int = 0
    kernels: int = 1
    arrays: int = 0
    together: int = 1
    packed: int = 0
    ping_pong: int = 0
    of: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for knob in (*OF_OPERATORS, "arrays", "packed", "ping_pong"):
            _check(f"knob {knob}", knob, getattr(self, knob))
        for operator, changed in self.of.items():
            for knob, value in changed.items():
                if knob not in OF_OPERATORS:
                    raise ProgramError(f"operator {operator} has no knob {knob!r}; there are {', '.join(OF_OPERATORS)}")
                _check(f"knob {knob} of {operator}", knob, value)

    def at(self, name: str) -> Knobs:
        """Return the knobs of one operator: these knobs, with those that `of` has for the operator of this name."""
        return replace(self, of={}, **self.of[name]) if name in self.of else self

    def lanes_of(self, name: str, op: str) -> int:
        """Return the multiply-adds of a product, or the elements of another kernel, in a cycle. name, op: of the
        operator, as in `StreamOperator`."""
        chosen = self.at(name)
        return chosen.unroll if op in PRODUCTS else chosen.lanes

    def check_names(self, names: list[str]) -> None:
        """Check that knobs are given for operators with these names only. Raises `ProgramError` for another one."""
        for name in self.of:
            if name not in names:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
                raise ProgramError(f"knobs for {name}, which is no operator of this block; {hint}")


def _check(name: str, knob: str, value: object) -> None:
    if not isinstance(value, Integral):
        raise ProgramError(f"{name} is {value!r}; it is a whole number")
    if knob in SWITCHES:
        if value not in (0, 1):
            raise ProgramError(f"{name} is {value}; it is 0 or 1")
    elif value < (least := int(knob not in ("fabric", "arrays"))):
        raise ProgramError(f"{name} is {value}; the least is {least}")


def elements_beside(types: tuple[str, str], rows: int, units: int, steps: float) -> int:
    """Return how many elements a product takes in a clock cycle beside its multiply-adds: of sums, scales, biases,
    masks and weights.

    A weight that is dequantised in front of the product is used for all rows of a tile, so it is taken as fast as the
    product needs it. Sums of integers are scaled in passes over a tile: then the number is the one with which product
    and passes together take the least time for the multipliers of both. types: element types of the two operands. rows:
    of a tile. units: multiply-adds in a cycle. steps: multiply-adds of each sum for each pass (`plans.steps_of`); 0
    without passes.
    """
    if SCALARS[types[0]].integer and steps:
        return min(MOVED, 1 << max(0, round(log2(max(1.0, units * sqrt(SCALED / steps))))))
    is_dequantised = SCALARS[types[1]].integer and not SCALARS[types[0]].integer
    return max(ADDERS, -(-units // rows)) if is_dequantised else ADDERS


def fit(size: int, most: int) -> int:
    """Return the largest divisor of `size` that is at most `most`, both from 1 on."""
    return next(n for n in range(min(size, most), 0, -1) if size % n == 0)


def fit_words(size: int, most: int) -> int:
    """Return the largest divisor of `size` that is at most `most`, both from 1 on. If there are divisors that are
    multiples of `MOVED`, the largest of these is taken: a tile with such a number of columns moves in full words of a
    stream."""
    return MOVED * fit(size // MOVED, most // MOVED) if size % MOVED == 0 and most >= MOVED else fit(size, most)
