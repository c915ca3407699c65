"""The abstract state of a tensor in a captured graph with padded arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, prod

from torch.fx import Node

HIDES = -1e9
"""Elements that are at most this cannot affect a maximum or a softmax of ordinary numbers."""


@dataclass(frozen=True)
class PaddingFill:
    """What is known of the elements at padded positions of a dimension.

    copies: each equals the element at the last valid position. value: each is this number (bools are 0 or 1); None: not
    known. most, least: upper and lower bound of each, to which an ordinary number may have been added; None: not known.
    finite: none is infinite or NaN. If `value` is finite but `finite` is False, an element may be NaN in a line whose
    valid elements are infinite or NaN. shared: an element is infinite or NaN only if the element at the last valid
    position is too, e.g. because one mask hides the same keys in all rows. others: only in `Atom.ahead`: what is known
    of the elements that are not ahead, of which each row has at least one.
    """

    copies: bool = False
    value: float | None = None
    most: float | None = None
    least: float | None = None
    finite: bool = True
    shared: bool = False
    others: PaddingFill | None = None

    @property
    def is_as_finite(self) -> bool:
        """Whether each element is finite if the element at the last valid position is."""
        return self.finite or self.copies or self.shared

    @property
    def may_be_nan(self) -> bool:
        """Whether an element may be NaN although `value` is finite."""
        return self.value is not None and isfinite(self.value) and not self.finite

    @property
    def top(self) -> float:
        """An upper bound of the elements; inf if none is known."""
        return self.value if self.value is not None else inf if self.most is None else self.most

    @property
    def bottom(self) -> float:
        """A lower bound of the elements; -inf if none is known."""
        return self.value if self.value is not None else -inf if self.least is None else self.least


@dataclass(frozen=True)
class Atom:
    """A factor of an axis. An axis into which several were flattened has an atom for each of them, outermost first.

    size: number of positions. dim: index of the dynamic dimension that it follows; then its size is that of the
    dimension plus `offset`, divided by `every` and rounded up, and the valid positions come first. None: the size is
    the same in every call. fill: what is known of its padded positions. ahead: what is known of elements whose position
    in this atom is larger than in the other atom of the same dimension, e.g. those that a causal mask hides; None:
    nothing.
    """

    size: int
    dim: int | None = None
    offset: int = 0
    fill: PaddingFill = PaddingFill()
    ahead: PaddingFill | None = None
    every: int = 1

    @property
    def place(self) -> tuple[int, int | None, int, int]:
        """A key that is equal for atoms with the same positions: size, dim, offset and every."""
        return self.size, self.dim, self.offset, self.every

    def count(self, size: int) -> int:
        """Return the number of its positions if its dimension has `size` positions."""
        return -(-(size + self.offset) // self.every)


Axis = tuple[Atom, ...]
"""The atoms of an axis, without those of a static size 1."""


def plain(size: int) -> Axis:
    """Return a static axis of `size` positions: it has the same size in every call."""
    return () if size == 1 else (Atom(size),)


def is_plain(axis: Axis) -> bool:
    """Return whether an axis has the same size in every call."""
    return all(atom.dim is None for atom in axis)


def size_of(axis: Axis) -> int:
    """Return the number of positions of an axis, padded ones included."""
    return prod(atom.size for atom in axis)


def tidy(atoms: Iterable[Atom]) -> Axis:
    """Return the atoms as one axis: neighbouring static atoms are merged, and those of size 1 are dropped."""
    out: list[Atom] = []
    for atom in atoms:
        if atom.dim is None and out and out[-1].dim is None:
            out[-1] = Atom(out[-1].size * atom.size)
        elif atom.dim is not None or atom.size != 1:
            out.append(atom)
    return tuple(out)


@dataclass(frozen=True)
class Mixed:
    """The reason why valid elements may depend on the padding or on the size. node: the operator that mixes. why: the
    reason, as text. dim: index of the dynamic dimension in `check.Walk.dims`."""

    node: Node
    why: str
    dim: int


class MixedError(Exception):
    """An operator mixes padding with valid elements, or its result depends on the size. dim: index of the dynamic
    dimension. why: the reason, which is the message."""

    def __init__(self, dim: int, why: str) -> None:
        super().__init__(why)
        self.dim = dim


@dataclass(frozen=True)
class TensorState:
    """What is known of a tensor.

    axes: its axes, one for each dimension. low, high: bounds of all elements. value: the value of all elements; None if
    it is not known. finite: no element is infinite or NaN, apart from overflows. indexes: valid elements are indices of
    valid positions of this dynamic dimension; None for none. counts: valid elements count valid positions of this
    dynamic dimension, from 1 on; None for none. mixed: if set, valid elements may depend on padding, and nothing else
    is known. Dynamic dimensions are indices into the walk's `dims`.
    """

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
        """The atoms of all axes, in order."""
        return tuple(atom for axis in self.axes for atom in axis)

    @property
    def dims(self) -> set[int]:
        """The indices of the dynamic dimensions that its axes follow."""
        return {atom.dim for atom in self.atoms if atom.dim is not None}

    @property
    def fills(self) -> list[PaddingFill]:
        """What is known of the padding along each atom of a dynamic dimension, in order."""
        return [atom.fill for atom in self.atoms if atom.dim is not None]

    @property
    def is_finite(self) -> bool:
        """Whether all elements are finite, padding included."""
        return self.finite and all(fill.finite for fill in self.fills)

    def query_of(self, key: Atom) -> Atom | None:
        """Return the other atom of the dimension of `key`, if there is exactly one, else None: it is the rows of scores
        whose keys are `key`."""
        others = [atom for atom in self.atoms if atom.dim == key.dim and atom is not key]
        return others[0] if len(others) == 1 else None

    def hidden_ahead(self, key: Atom) -> PaddingFill | None:
        """Return what is known of the padded positions of `key` in all valid rows (positions of the other atom of its
        dimension). What is known of positions ahead of a row holds for padding too, if padding is ahead of all valid
        rows; None otherwise."""
        return key.ahead if self.lies_ahead(key) else None

    def lies_ahead(self, key: Atom) -> bool:
        """Return whether the padded positions of `key` are ahead of all valid rows (positions of the other atom of its
        dimension); False if there is no such atom."""
        query = self.query_of(key)
        return query is not None and key.every == query.every == 1 and key.offset >= query.offset


def number(value: float) -> TensorState:
    """Return the state of a Python number: it has no axes, and its value is known."""
    return TensorState((), value, value, value, isfinite(value))


def along(state: TensorState, axis: Axis, atom: Atom, place: int) -> PaddingFill:
    """Return what is known of an operand at the padded positions of an atom of the result. state: of the operand. axis:
    the operand's axis there; () if the operand is broadcast along it. atom: of the result. place: index of the atom in
    the axis."""
    if axis and atom.dim is not None:
        return axis[place].fill
    if state.value is not None:
        return PaddingFill(copies=True, value=state.value, finite=isfinite(state.value))
    return PaddingFill(copies=True, finite=state.is_finite)  # the operand is broadcast along this atom


def broadcast(states: Sequence[TensorState], ndim: int) -> list[list[Axis]]:
    """Return for each axis of the result the axis of each operand; () for one of size 1. states: of the operands. ndim:
    number of axes of the result. Raises `MixedError` if the atoms of the operands do not correspond."""
    out = []
    for back in range(ndim, 0, -1):
        axes = [s.axes[-back] if back <= len(s.axes) else () for s in states]
        shown = [axis for axis in axes if axis]
        if any([a.place for a in axis] != [a.place for a in shown[0]] for axis in shown):
            dims = [a.dim for axis in shown for a in axis if a.dim is not None]
            raise MixedError(next(iter(dims), 0), "the positions of its operands do not correspond")
        out.append(axes)
    return out


def refilled(axes: Iterable[Axis], fill: PaddingFill | None = None, *, copies: bool = True) -> tuple[Axis, ...]:
    """Return the axes after an operator that treats all positions along them alike: copies stay copies (unless `copies`
    is False), and finite elements stay finite. fill: replaces what is known of all of them; None keeps it. What was
    known of elements ahead is dropped."""

    def again(atom: Atom) -> Atom:
        if atom.dim is None:
            return atom
        kept = PaddingFill(copies=copies and atom.fill.copies, finite=atom.fill.finite) if fill is None else fill
        return replace(atom, fill=kept, ahead=None)

    return tuple(tuple(map(again, axis)) for axis in axes)
