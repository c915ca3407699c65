"""What is known of a tensor of a captured graph some of whose arguments are filled up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod

from torch.fx import Node

HIDES = -1e9
"""What is at most this takes no part in a maximum or a softmax beside ordinary numbers."""


@dataclass(frozen=True)
class Fill:
    """What is known of the elements at filled-up positions of a dimension, whatever their other positions are.

    copies: each equals the element at the last valid position. value: each is this number (a truth is 0 or 1). most,
    least: each is at most, at least this, but for what ordinary numbers add to it. finite: none is infinite or NaN; a
    finite `value` without that may be NaN in lines whose valid elements are infinite or NaN themselves. shared: none is
    infinite or NaN but where the element at the last valid position is, as what one mask hides in all rows.
    """

    copies: bool = False
    value: float | None = None
    most: float | None = None
    least: float | None = None
    finite: bool = True
    shared: bool = False

    @property
    def is_as_finite(self) -> bool:
        """Whether each is finite where the element at the last valid position is."""
        return self.finite or self.copies or self.shared

    @property
    def may_be_nan(self) -> bool:
        """Whether `value` holds but for such lines."""
        return self.value is not None and isfinite(self.value) and not self.finite

    @property
    def top(self) -> float:
        """What they are at most."""
        return self.value if self.value is not None else inf if self.most is None else self.most

    @property
    def bottom(self) -> float:
        """What they are at least."""
        return self.value if self.value is not None else -inf if self.least is None else self.least


@dataclass(frozen=True)
class Atom:
    """A factor of an axis: an axis that several were flattened into has one for each of them, outermost first.

    dim: the number of the dynamic dimension that it follows, whose size plus `offset` it has, or, rounded up, one in
    `every` of that; its first positions are the valid ones. None: it has the same size in every call. fill: of the
    positions behind the valid ones. ahead: of elements whose position in this atom is larger than that in the other
    atom of the same dimension, as those that a causal mask hides.
    """

    size: int
    dim: int | None = None
    offset: int = 0
    fill: Fill = Fill()
    ahead: Fill | None = None
    every: int = 1

    @property
    def place(self) -> tuple[int, int | None, int, int]:
        """Equal for atoms whose positions are the same."""
        return self.size, self.dim, self.offset, self.every

    def count(self, size: int) -> int:
        """The positions that it has where its dimension has this size."""
        return -(-(size + self.offset) // self.every)


Axis = tuple[Atom, ...]
"""Without atoms of size 1 that follow nothing."""


def plain(size: int) -> Axis:
    """An axis that has the same size in every call."""
    return () if size == 1 else (Atom(size),)


def is_plain(axis: Axis) -> bool:
    return all(atom.dim is None for atom in axis)


def size_of(axis: Axis) -> int:
    return prod(atom.size for atom in axis)


def tidy(atoms: Iterable[Atom]) -> Axis:
    """The same positions in as few atoms as possible."""
    out: list[Atom] = []
    for atom in atoms:
        if atom.dim is None and out and out[-1].dim is None:
            out[-1] = Atom(out[-1].size * atom.size)
        elif atom.dim is not None or atom.size != 1:
            out.append(atom)
    return tuple(out)


@dataclass(frozen=True)
class Mixed:
    """Why valid elements may depend on what is filled in, or on the size. dim: of which dynamic dimension."""

    node: Node
    why: str
    dim: int


class MixedError(Exception):
    """An operator mixes what is filled in with what is valid. dim: the number of the dynamic dimension."""

    def __init__(self, dim: int, why: str) -> None:
        super().__init__(why)
        self.dim = dim


@dataclass(frozen=True)
class State:
    """A tensor. low, high: bounds of all its elements. value: of all of them, where it is known. finite: none of them
    is infinite or NaN, but for overflows. indexes: the dynamic dimension of whose valid positions its valid elements
    are numbers. counts: the dynamic dimension of which they count valid positions, at least one. mixed: where nothing
    of the rest holds."""

    axes: tuple[Axis, ...]
    low: float = -inf
    high: float = inf
    value: float | None = None
    finite: bool = True
    indexes: int | None = None
    counts: int | None = None
    mixed: Mixed | None = None

    @property
    def atoms(self) -> Axis:
        return tuple(atom for axis in self.axes for atom in axis)

    @property
    def dims(self) -> set[int]:
        """The dynamic dimensions that it has."""
        return {atom.dim for atom in self.atoms if atom.dim is not None}

    @property
    def fills(self) -> list[Fill]:
        """Of each of its dynamic dimensions."""
        return [atom.fill for atom in self.atoms if atom.dim is not None]

    @property
    def is_finite(self) -> bool:
        """Whether all its elements are, what is filled in too."""
        return self.finite and all(fill.finite for fill in self.fills)

    def query_of(self, key: Atom) -> Atom | None:
        """The one other atom of the same dimension."""
        others = [atom for atom in self.atoms if atom.dim == key.dim and atom is not key]
        return others[0] if len(others) == 1 else None

    def hidden_ahead(self, key: Atom) -> Fill | None:
        """What is known of filled-up positions of an atom in all valid rows, which are those of the other atom of its
        dimension: where a row hides what is ahead of it, it hides what is filled in. None where that does not hold."""
        return key.ahead if self.lies_ahead(key) else None

    def lies_ahead(self, key: Atom) -> bool:
        """Whether its filled-up positions are ahead of all valid rows, which are those of the other atom."""
        query = self.query_of(key)
        return query is not None and key.every == query.every == 1 and key.offset >= query.offset


def number(value: float) -> State:
    """A number of the graph."""
    return State((), value, value, value, isfinite(value))


def along(state: State, axis: Axis, atom: Atom, place: int) -> Fill:
    """What is known of an operand at filled-up positions of an atom of the result: `axis` is its own there, and `place`
    the number of the atom in it."""
    if axis and atom.dim is not None:
        return axis[place].fill
    if state.value is not None:
        return Fill(copies=True, value=state.value, finite=isfinite(state.value))
    return Fill(copies=True, finite=state.is_finite)  # it does not vary there


def broadcast(states: Sequence[State], ndim: int) -> list[list[Axis]]:
    """For each axis of the result the axes of the operands, () where one has one position there. Raises `MixedError`
    where atoms do not stand beside each other."""
    out = []
    for back in range(ndim, 0, -1):
        axes = [s.axes[-back] if back <= len(s.axes) else () for s in states]
        shown = [axis for axis in axes if axis]
        if any([a.place for a in axis] != [a.place for a in shown[0]] for axis in shown):
            dims = [a.dim for axis in shown for a in axis if a.dim is not None]
            raise MixedError(next(iter(dims), 0), "the positions of its operands do not correspond")
        out.append(axes)
    return out


def refilled(axes: Iterable[Axis], fill: Fill | None = None, *, copies: bool = True) -> tuple[Axis, ...]:
    """The axes with what is known after an operator of which nothing is known but that it treats what lies along them
    alike: copies stay copies, and finite numbers finite. fill: what is known instead, of all of them."""

    def again(atom: Atom) -> Atom:
        if atom.dim is None:
            return atom
        kept = Fill(copies=copies and atom.fill.copies, finite=atom.fill.finite) if fill is None else fill
        return replace(atom, fill=kept, ahead=None)

    return tuple(tuple(map(again, axis)) for axis in axes)
