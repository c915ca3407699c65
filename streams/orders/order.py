"""The order in which the tokens of a stream carry a tensor: the itensor type of StreamTensor (MICRO'25, section 3.1.2).

A token is a part of the tensor of `element` shape. A nest of loops gives the tokens, outermost loop first; along a
data axis, a token begins at the iteration of the axis's loop times its step, plus the start. A loop that drives no axis
gives the same tokens again.

As text: element shape and type, trips and steps of the loops, what drives each axis. `4x2xi8 [4,2]*[2,4] (d1,d0)` are
tokens of 4 x 2 elements of i8; loop d0 has 4 trips and steps along columns, loop d1 has 2 and steps along rows. Without
a type it is f32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from ...base.element_types import BITS, whole_bytes
from ...base.errors import ProgramError


@dataclass(frozen=True)
class Axis:
    """Where tokens begin along an axis of a tensor. loop: the loop that moves along the axis, counted from the
    outermost, 0; None if all tokens begin at `start`. start: the first element."""

    loop: int | None
    start: int = 0

    def __str__(self) -> str:
        if self.loop is None:
            return str(self.start)
        return f"d{self.loop}+{self.start}" if self.start else f"d{self.loop}"


@dataclass(frozen=True)
class Order:
    """An order of the tokens of a tensor.

    element: the shape of a token. trips: the iterations of each loop, the outermost first. steps: elements by which
    each loop moves. axes: where tokens begin along each axis of the tensor. dtype: the element type. Raises
    `ProgramError`, as `verify` does."""

    element: tuple[int, ...]
    trips: tuple[int, ...]
    steps: tuple[int, ...]
    axes: tuple[Axis, ...]
    dtype: str = "f32"

    def __post_init__(self) -> None:
        self.verify()

    def verify(self) -> None:
        """Raise `ProgramError` unless each element of the tensor is in exactly one token; a loop that moves along no
        axis gives the same tokens again, which is allowed."""
        if self.dtype not in BITS:
            raise ProgramError(f"order {self}: {self.dtype} is no type of elements; known are {', '.join(BITS)}")
        if len(self.trips) != len(self.steps):
            raise ProgramError(f"order {self}: {len(self.trips)} trips and {len(self.steps)} steps; each loop has both")
        if len(self.axes) != len(self.element):
            raise ProgramError(
                f"order {self}: a token has {len(self.element)} axes, and {len(self.axes)} are given places"
            )
        for what, sizes in (("a token's size", self.element), ("a loop's trips", self.trips), ("a step", self.steps)):
            if min(sizes, default=1) < 1:
                raise ProgramError(f"order {self}: {what} is {min(sizes)}; the least is 1")
        drives: dict[int, int] = {}
        for data_axis, (axis, size) in enumerate(zip(self.axes, self.element, strict=True)):
            if axis.start < 0:
                raise ProgramError(f"order {self}: axis {data_axis} starts at {axis.start}; the least is 0")
            if axis.loop is None:
                continue
            if not 0 <= axis.loop < len(self.trips):
                raise ProgramError(f"order {self}: there is no loop d{axis.loop}; there are {len(self.trips)} loops")
            if drives.setdefault(axis.loop, data_axis) != data_axis:
                raise ProgramError(
                    f"order {self}: loop d{axis.loop} drives axes {drives[axis.loop]} and {data_axis}, so that tokens "
                    f"are on a diagonal only; give each axis a loop of its own"
                )
            trips, step = self.trips[axis.loop], self.steps[axis.loop]
            if trips > 1 and step != size:
                what = "overlap" if step < size else "leave elements out"
                raise ProgramError(
                    f"order {self}: loop d{axis.loop} steps by {step} where a token has {size} elements, so that "
                    f"tokens {what}; step by {size}"
                )

    @cached_property
    def canonical(self) -> Order:
        """The same order without loops of one iteration. Two orders are equal if their canonical forms are."""
        left = [loop for loop, trips in enumerate(self.trips) if trips > 1]
        number = {loop: k for k, loop in enumerate(left)}
        axes = tuple(Axis(number.get(axis.loop) if axis.loop is not None else None, axis.start) for axis in self.axes)
        trips, steps = tuple(self.trips[loop] for loop in left), tuple(self.steps[loop] for loop in left)
        return Order(self.element, trips, steps, axes, self.dtype)

    @property
    def tokens(self) -> int:
        """How many tokens the loops give. A token that comes several times counts each time."""
        return prod(self.trips)

    @cached_property
    def tensor(self) -> tuple[int, ...]:
        """Shape of the tensor, in elements: the box around all tokens."""
        trips = (1 if axis.loop is None else self.trips[axis.loop] for axis in self.axes)
        return tuple(count * size for count, size in zip(trips, self.element, strict=True))

    def axis_of(self, loop: int) -> int | None:
        """Return the axis of the tensor, from 0, along which a loop moves; None for a loop that gives the same tokens
        again. loop: counted from the outermost one, 0."""
        return next((k for k, axis in enumerate(self.axes) if axis.loop == loop), None)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of a token, rounded up to whole ones."""
        return self.bytes_of(prod(self.element))

    def bytes_of(self, elements: int) -> int:
        """Return the bytes of so many elements together, rounded up to whole ones."""
        return whole_bytes(elements, self.dtype)

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Yield the index of the first element of each token, one number for each axis of the tensor, in the order of
        the tokens."""
        for at in product(*map(range, self.trips)):
            yield tuple(a.start if a.loop is None else a.start + at[a.loop] * self.steps[a.loop] for a in self.axes)

    @classmethod
    def parse(cls, text: str, dtype: str = "f32") -> Order:
        """Return the order that a text describes (module docstring). dtype: the element type if the text states none.
        Raises `ProgramError` for a text of another form, and as `verify`."""
        form = r"\s*(\d+(?:x\d+)*)(?:x([a-z]+\w*))?\s*\[([\d,\s]*)\]\s*\*\s*\[([\d,\s]*)\]\s*\(([^()]*)\)\s*"
        found = re.fullmatch(form, text)
        if found is None:
            raise ProgramError(f"{text!r} is no order; one looks like 4x2xi8 [4,2]*[2,4] (d1,d0)")
        axes = []
        for word in filter(None, (part.strip() for part in found[5].split(","))):
            axis = re.fullmatch(r"(?:d(\d+))?(?:(?<=\d)\+)?(\d+)?", word)
            if axis is None:
                raise ProgramError(f"{text!r}: {word!r} places no axis; write d0, d0+4 or 4")
            axes.append(Axis(int(axis[1]) if axis[1] is not None else None, int(axis[2] or 0)))
        trips, steps = (tuple(int(n) for n in found[k].split(",") if n.strip()) for k in (3, 4))
        return cls(tuple(map(int, found[1].split("x"))), trips, steps, tuple(axes), found[2] or dtype)

    def __str__(self) -> str:
        trips, steps = (",".join(map(str, sizes)) for sizes in (self.trips, self.steps))
        shape = "x".join(map(str, self.element)) + (f"x{self.dtype}" if self.dtype != "f32" else "")
        return f"{shape} [{trips}]*[{steps}] ({','.join(map(str, self.axes))})"
