"""What Accum and Scan fold elements with (STeP, section 3.2.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .functions import NONE, Add, Base, Cost, Function, Matmul, tiles_in
from .shapes import DataType, Dimension, Symbols, TileType, TupleType, dimension, largest_volume, tile, volume
from .tokens import Element, Tile


class Update(Base, ABC):
    """A function that folds elements, one after another, into a state, for `Accum` and `Scan`."""

    @abstractmethod
    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        """Return the type of the state after a whole group of elements. element: the type of an element. group: the
        dimensions of the group, the outermost first. symbols: makes symbols for new sizes. Raises `InputRefused` for
        elements that the update does not take."""

    @abstractmethod
    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        """Return the type of the state after any element of a group, as Scan puts it. element, group, symbols: as for
        `state`. Raises `InputRefused` for elements that the update does not take."""

    @abstractmethod
    def start(self, element: DataType) -> Element:
        """Return the state before the first element. element: the type of the elements."""

    @abstractmethod
    def __call__(self, state: Any, element: Any) -> Element:
        """Return the state after one more element. state: before it. Raises `ValueError` for an element that does not
        fit.
        """

    def cost(self, *of: Any) -> Cost:
        """Return the operations of one update as a factor and sizes, whose product is their number; (0, ()) for none.
        of: the element, or its type."""
        return NONE


@dataclass(frozen=True)
class Fold(Update):
    """An update by a function of a state and an element; the state has the type of the elements. initial: each value of
    the first state."""

    function: Function
    initial: float = 0

    @property
    def name(self) -> str:
        """The name in messages: that of the function."""
        return self.function.name

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.running(one_of(element, group, symbols), group, symbols)

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.function.type(element, element)

    def start(self, element: DataType) -> Element:
        (one,) = tiles_in(self.name, [element], 1)
        if not one.static:
            return Start(1, 1, one.dtype, np.full((1, 1), self.initial))
        rows, columns = (int(size.size) for size in one.shape)
        return Tile(rows, columns, one.dtype, np.full((rows, columns), self.initial))

    def __call__(self, state: Any, element: Any) -> Element:
        check_alike(self.name, state, element)
        return self.function(state, element)

    def cost(self, *of: Any) -> Cost:
        return self.function.cost(of[0], of[0])


class Start(Tile):
    """The state before the first tile of a group whose tiles have a dynamic size: one value, which stands for all
    elements."""


def check_alike(name: str, state: Tile, more: Any) -> None:
    """Raise `ValueError` if `more`, the next tile, has another size than the state, unless the state is a `Start`.
    name: of the update, for the message."""
    if state.shape != more.shape and not isinstance(state, Start):
        raise ValueError(f"{name} of tiles of {state.rows}x{state.columns} and {more.rows}x{more.columns}")


def folded(function: Function | Update, initial: float = 0) -> Update:
    """Return an update as it is, and a function of a state and an element as a `Fold`. initial: each value of the first
    state of the `Fold`."""
    return function if isinstance(function, Update) else Fold(function, initial)


@dataclass(frozen=True)
class MatmulAdd(Update):
    """Add the product of two tiles to the state, so that a large product is computed tile by tile. The elements are
    tuples of the two tiles. product: how they are multiplied."""

    product: Matmul = field(default_factory=Matmul)

    @property
    def name(self) -> str:
        """The name in messages: matmul."""
        return "matmul"

    @property
    def matmul(self) -> bool:
        """True: it multiplies matrices."""
        return True

    def _pair(self, element: DataType) -> tuple[DataType, ...]:
        return element.parts if isinstance(element, TupleType) else (element,)

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.running(one_of(element, group, symbols), group, symbols)

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.product.type(*self._pair(element))

    def start(self, element: DataType) -> Element:
        state = self.product.type(*self._pair(element))
        assert isinstance(state, TileType)
        if not state.static:
            return Start(1, 1, state.dtype, np.zeros((1, 1)))
        rows, columns = (int(size.size) for size in state.shape)
        return Tile(rows, columns, state.dtype, np.zeros((rows, columns)))

    def __call__(self, state: Any, element: Any) -> Element:
        made = self.product(*element)
        check_alike(self.name, state, made)
        added: Element = Add(state, made)
        return added

    def cost(self, *of: Any) -> Cost:
        return self.product.cost(*(of[0].parts if isinstance(of[0], TupleType) else of[0]))


@dataclass(frozen=True)
class Retile(Update):
    """Join the tiles of a group to one tile. along: 0 for one below the other, 1 for side by side."""

    along: int

    @property
    def name(self) -> str:
        """The name in messages: RetileRow or RetileCol."""
        return ("RetileRow", "RetileCol")[self.along]

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        (one,) = tiles_in(self.name, [element], 1)
        (other,) = tiles_in(self.name, [one_of(element, group, symbols)], 1)
        size = packed(one.shape[self.along], group, symbols)
        return TileType(other.rows, size, one.dtype) if self.along else TileType(size, other.columns, one.dtype)

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        (one,) = tiles_in(self.name, [element], 1)
        size = symbols.ragged("R", at_most=largest_volume([*group, one.shape[self.along]]))
        return TileType(one.rows, size, one.dtype) if self.along else TileType(size, one.columns, one.dtype)

    def start(self, element: DataType) -> Element:
        (one,) = tiles_in(self.name, [element], 1)
        other = one.shape[1 - self.along].size
        known = int(other) if other.is_Integer else 0
        shape = (known, 0) if self.along else (0, known)
        return Tile(*shape, one.dtype, np.zeros(shape))

    def __call__(self, state: Any = None, element: Any = None) -> Any:
        """The state after one more tile. Without any, the function itself: `RetileRow()` is `RetileRow`."""
        if state is None:
            return self
        if not state.shape[self.along]:
            assert isinstance(element, Tile)
            return replace(element, filled=None)
        if state.shape[1 - self.along] != element.shape[1 - self.along]:
            raise ValueError(
                f"{self.name} of tiles of {state.rows}x{state.columns} and {element.rows}x{element.columns}"
            )
        data = None
        if state.data is not None and element.data is not None:
            data = np.concatenate([state.data, element.data], axis=self.along)
        size = state.shape[self.along] + element.shape[self.along]
        shape = (state.rows, size) if self.along else (size, state.columns)
        return Tile(*shape, state.dtype, data)


def one_of(element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
    """Return the type of elements of which there is one for each group, such as the last elements of groups. Sums over
    the stream in the type are divided by the size of the group. element: the type of all elements. group: the
    dimensions of the group, the outermost first. symbols: makes new symbols in place of sums if the group is ragged."""
    regular = not any(one.ragged for one in group)
    return symbols.again(element, 1 / volume(group) if regular else None)


def packed(size: Dimension, group: Sequence[Dimension], symbols: Symbols) -> Dimension:
    """Return the size of a tile that joins a group of tiles, along the axis along which they are joined. size: of one
    tile, in rows or columns. group: the dimensions of the group, the outermost first. symbols: makes a symbol for a new
    ragged size; the size is ragged if the group or the tile has a ragged dimension."""
    parts = [*group, size]
    varying = [one for one in parts if one.ragged]
    if not varying:
        return dimension(volume(parts))
    whole = [one for one in parts if one.size != 1]
    if len(whole) == 1:
        return whole[0]
    # The innermost ragged one has the sum over all groups, so that what is outside of it is counted.
    inside = parts[parts.index(varying[-1]) :]
    # Only if nothing is added up around a ragged one, the largest group has its largest value.
    exact = len(varying) == 1 and whole[0].ragged
    largest = largest_volume(parts)
    return symbols.ragged("R", at_most=largest, total=volume(inside), largest=largest if exact else None)


RetileRow, RetileCol = Retile(0), Retile(1)


@dataclass(frozen=True)
class Last(Update):
    """Keep the last element of each group, such as the last tile of a KV cache, to which a row is to be appended."""

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return symbols.again(element, None)

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return element

    def start(self, element: DataType) -> Element:
        return Tile(0, 0, "bf16")

    def __call__(self, state: Any, element: Any) -> Element:
        done: Element = element
        return done


@dataclass(frozen=True)
class AllRead(Update):
    """Make a flag, a [1,1] tile, of each group once all its elements were read; it says, for example, that a request is
    done."""

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return tile(1, 1, "boolean")

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return tile(1, 1, "boolean")

    def start(self, element: DataType) -> Element:
        return Tile.of(True, "boolean")

    def __call__(self, state: Any, element: Any) -> Element:
        done: Element = state
        return done


@dataclass(frozen=True)
class DefinedUpdate(Update):
    """An update that the user defines.

    label: its name in messages. result: takes the type of an element, returns the type of the state. initial: returns
    the first state. apply: takes a state and an element, returns the next state. flops: takes an element or its type,
    and returns the operations of an update as `Update.cost`; None for an update that counts none. cpp: `apply` as a C++
    expression for `rsn hls`, which is called with a Boolean (whether the element is the first of its group), the
    element, and the state, which it changes (docs/dynamic-streams.md); "" for none."""

    label: str
    result: Callable[[DataType], DataType]
    initial: Callable[[], Element]
    apply: Callable[[Any, Any], Element]
    flops: Callable[..., Cost] | None = None
    cpp: str = ""

    @property
    def name(self) -> str:
        """The name in messages: `label`."""
        return self.label

    def state(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.result(one_of(element, group, symbols))

    def running(self, element: DataType, group: Sequence[Dimension], symbols: Symbols) -> DataType:
        return self.result(element)

    def start(self, element: DataType) -> Element:
        return self.initial()

    def __call__(self, state: Any, element: Any) -> Element:
        return self.apply(state, element)

    def cost(self, *of: Any) -> Cost:
        return self.flops(*of) if self.flops else NONE
