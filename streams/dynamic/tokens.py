"""Tokens of dynamic streams, and streams as nested lists (STeP, section 3.1).

A stream of rank a carries tensors of rank a: data tokens, stops `Stop(n)` with 1 <= n <= a, and `DONE` at its end. A
stop of level n ends the tensor of rank n that is open, and those inside of it; where several end together, only the
highest stop is written.

The papers leave open how a group without children is written. Here a stop with nothing open before it ends a tensor of
its level without children, and such a stop stands for itself: it never merges with the stop of what is around it. So
every nesting has one spelling: at rank 2, `S2 D` is one matrix without rows, `S1 S2 D` one of a single empty row, and
`1 S1 S1 S2 D` has the rows [1] and []. A stop that ends what has no need to end there (`1 S1 S2 D`) is refused: a
reader with other rules would mean a further group by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...base.element_types import BITS
from .errors import TokenError

Array: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Tile:
    """A matrix of a regular size. rows, columns: in elements. dtype: the element type. data: an array [rows, columns];
    None in a run without data. filled: how many rows hold values, from the first one on; None for all (`SetOffset`,
    `AppendRow`). Raises `ValueError` for data of another shape."""

    rows: int
    columns: int
    dtype: str
    data: Array | None = None
    filled: int | None = None

    def __post_init__(self) -> None:
        if self.data is not None and self.data.shape != self.shape:
            raise ValueError(f"a tile of {self.rows}x{self.columns} with data of shape {list(self.data.shape)}")

    @classmethod
    def of(cls, values: object, dtype: str = "bf16") -> Tile:
        """Return a tile of a number ([1,1]), a row (a list of numbers) or a matrix (a list of rows). dtype: the element
        type. Raises `ValueError` for an array of more dimensions, for rows of different lengths, and for values that
        NumPy has no numbers for."""
        data = np.atleast_2d(np.asarray(values))
        if data.dtype.kind in "OSU":
            raise ValueError(f"{values!r:.60} is no number, row or matrix of numbers")
        return cls(data.shape[0], data.shape[1], dtype, data)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    @property
    def bytes(self) -> int:
        """Bytes of all rows, filled or not, rounded up."""
        return -(-self.rows * self.columns * BITS[self.dtype] // 8)

    @property
    def scalar(self) -> int:
        """The value of a [1,1] tile as an integer: an address, a size, or a flag. Raises `ValueError` for another
        shape, for a tile without data, and for a value that is no integer."""
        if self.data is None or self.shape != (1, 1):
            raise ValueError(f"a tile of {self.rows}x{self.columns}{'' if self.data is not None else ' without data'}")
        value = self.data[0, 0]
        if not np.isfinite(value) or value % 1 != 0:
            raise ValueError(f"{value:g} is no integer")
        return int(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tile):
            return NotImplemented
        if (self.shape, self.dtype, self.filled) != (other.shape, other.dtype, other.filled):
            return False
        if self.data is None or other.data is None:
            return self.data is other.data
        return bool(np.array_equal(self.data, other.data))

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __str__(self) -> str:
        if self.data is None:
            return f"<{self.rows}x{self.columns}>"
        if self.shape == (1, 1):
            value = self.data[0, 0]
            return ("T" if value else "F") if self.dtype == "boolean" else f"{value:g}"
        return "[" + ",".join("[" + ",".join(f"{value:g}" for value in row) + "]" for row in self.data) + "]"


@dataclass(frozen=True)
class Selector:
    """Which of several streams are chosen (a multi-hot vector). chosen: their numbers from 0, rising."""

    chosen: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", tuple(sorted(set(self.chosen))))

    def __str__(self) -> str:
        return f"({','.join(map(str, self.chosen))})"


@dataclass(frozen=True)
class BufferReference:
    """A read-only reference to a buffer on chip. shape: in elements, outermost dimension first. elements: in row-major
    order."""

    shape: tuple[int, ...]
    elements: tuple[Any, ...] = field(repr=False)

    @property
    def bytes(self) -> int:
        """Bytes of the tiles in its elements."""
        return sum(size_in_bytes(element) for element in self.elements)

    def __str__(self) -> str:
        return f"Buf[{','.join(map(str, self.shape))}]"


Element: TypeAlias = Tile | Selector | BufferReference | tuple[Any, ...]


@dataclass(frozen=True)
class Stop:
    """The end of a tensor of rank `level`, and of those inside of it. Raises `TokenError` for a level less than 1."""

    level: int

    def __post_init__(self) -> None:
        if self.level < 1:
            raise TokenError(f"S{self.level}: the least level of a stop is 1", 0)

    def __str__(self) -> str:
        return f"S{self.level}"


@dataclass(frozen=True)
class Done:
    """The end of a stream."""

    def __str__(self) -> str:
        return "D"


DONE = Done()
Token: TypeAlias = Tile | Selector | BufferReference | tuple[Any, ...] | Stop | Done


def size_in_bytes(element: Element) -> int:
    """Return the bytes of the tiles in an element, those in parts of a tuple too; selectors and references to buffers
    take none.
    """
    if isinstance(element, tuple):
        return sum(map(size_in_bytes, element))
    return element.bytes if isinstance(element, Tile) else 0


class Groups:
    """Follows the groups of a stream, token by token.

    rank: of the stream. Attributes: position: of the last token, from 0; -1 before the first one. lowest: after a stop,
    the lowest rank of a tensor that it ended; the stop ended a tensor of rank n if lowest <= n <= level of the stop,
    with or without children. was_empty: after a stop, whether the tensor of the rank `lowest` had no children."""

    __slots__ = ("_ended", "_open", "lowest", "position", "rank", "was_empty")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.position = -1
        self.lowest = 0
        self.was_empty = False
        self._open = [False] * (rank + 2)  # whether the tensor of each rank that is not ended yet has children
        self._ended = 0  # the level of a stop just before, if it ended a tensor with children

    def see(self, token: Token) -> None:
        """Follow one more token. Raises `TokenError` for a stop above the rank, a stop that should have been one with
        the stop before it, and the end D in an open group."""
        self.position += 1
        if isinstance(token, Stop):
            self._stop(token.level)
        elif isinstance(token, Done):
            if any(self._open[1 : self.rank + 1]):
                level = max(n for n in range(1, self.rank + 1) if self._open[n])
                raise TokenError(f"D where a group of rank {level} is open; S{self.rank} must end it", self.position)
        else:
            self._open[1] = self.rank > 0
            self._ended = 0

    def _stop(self, level: int) -> None:
        if level > self.rank:
            raise TokenError(f"S{level} in a stream of rank {self.rank}", self.position)
        if 0 < self._ended < level:
            raise TokenError(
                f"S{level} right after S{self._ended}, which ended a group with children; where several groups end, "
                f"only the highest stop is written",
                self.position,
            )
        self.lowest = next((n for n in range(1, level + 1) if self._open[n]), level)
        self.was_empty = not self._open[self.lowest]
        for n in range(1, level + 1):
            self._open[n] = False
        self._open[level + 1] = level < self.rank
        self._ended = 0 if self.was_empty else level


def encode(nested: Sequence[Any], rank: int, element: Callable[[Any], Element] | None = None) -> list[Token]:
    """Return the tokens of a stream of this rank, DONE at its end.

    nested: the tensors of the stream, each a list of lists, `rank` deep. element: makes an element of a leaf; by
    default, a leaf that is no element becomes a tile. Raises `TypeError` for lists that are less deep, and as `Tile.of`
    for a leaf.
    """
    make = element or as_element
    tokens: list[Token] = []

    def write(value: Any, level: int) -> None:
        if level == 0:
            tokens.append(make(value))
            return
        for child in value:
            write(child, level - 1)
        # The stop of the last child rises, unless that child has none of its own: it is empty, or an element.
        if level > 1 and len(value) and len(value[-1]):
            tokens[-1] = Stop(level)
        else:
            tokens.append(Stop(level))

    for tensor in nested:
        write(tensor, rank)
    tokens.append(DONE)
    return tokens


def as_element(value: Any) -> Element:
    """Return an element as it is, and any other value as a tile. Raises `ValueError` as `Tile.of`."""
    return value if isinstance(value, Tile | Selector | BufferReference | tuple) else Tile.of(value)


def decode(tokens: Iterable[Token], rank: int) -> list[Any]:
    """Return the tensors of a stream of this rank: a list of tensors, each of them lists, `rank` deep, of elements.
    Raises `TokenError` unless the tokens are a whole stream of this rank.
    """
    groups = Groups(rank)
    levels: list[list[Any]] = [[] for _ in range(rank + 1)]  # children of the open tensor of each rank + 1
    done = False
    for token in tokens:
        if done:
            raise TokenError(f"{token} after D", groups.position + 1)
        groups.see(token)
        if isinstance(token, Stop):
            for level in range(groups.lowest, token.level + 1):
                levels[level].append(levels[level - 1])
                levels[level - 1] = []
        elif isinstance(token, Done):
            done = True
        else:
            levels[0].append(token)
    if not done:
        raise TokenError("the stream ends without D", groups.position + 1)
    return levels[rank]


def show(tokens: Iterable[Token]) -> str:
    """Return tokens as text, with spaces between them: `1 2 S1 3 S2 D`."""
    return " ".join(_shown(token) for token in tokens)


def _shown(token: Token) -> str:
    return f"({','.join(map(_shown, token))})" if isinstance(token, tuple) else str(token)


def parse(text: str, dtype: str = "bf16", selectors: bool = False) -> list[Token]:
    """Return the tokens of a stream's text, as `show` prints it: `1 2 S1 3 S2 D`, `[[1,2],[3,4]] D`, `T F S1 D`, `<2x3>
    D` (no data).

    dtype: of tiles. selectors: whether (0,2) is a selector; otherwise it is a tuple. Raises `TokenError` for a word
    that is no token.
    """
    return [_read(word, dtype, selectors, position) for position, word in enumerate(_words(text))]


def _words(text: str) -> Iterator[str]:
    depth, word = 0, ""
    for letter in text:
        if letter.isspace() and depth == 0:
            if word:
                yield word
            word = ""
        elif not letter.isspace():
            depth += (letter in "([") - (letter in ")]")
            word += letter
    if word:
        yield word


def _read(word: str, dtype: str, selectors: bool, position: int) -> Token:
    if word == "D":
        return DONE
    if word in ("T", "F", "True", "False"):
        return Tile.of(word[0] == "T", "boolean")
    try:
        if word[0] == "S" and word[1:].isdecimal():
            return Stop(int(word[1:]))
        if word[0] == "(" and word[-1] == ")":
            parts = list(_words(_spaced(word[1:-1])))
            if selectors:
                return Selector(tuple(map(int, parts)))
            return tuple(_read(part, dtype, selectors, position) for part in parts)
        if word[0] == "<" and word[-1] == ">":
            rows, columns = map(int, word[1:-1].split("x"))
            if min(rows, columns) < 0:
                raise ValueError(word)
            return Tile(rows, columns, dtype)
        return Tile.of(_numbers(word), dtype)
    except (ValueError, TokenError, RecursionError) as error:
        raise TokenError(
            f"{word!r:.60} is no token; one is a number, a matrix [[1,2]], (0,2), S1 or D", position
        ) from error


def _spaced(word: str) -> str:
    """Commas between parts, which are not inside of brackets, as spaces."""
    depth, spaced = 0, ""
    for letter in word:
        depth += (letter in "([") - (letter in ")]")
        spaced += " " if letter == "," and depth == 0 else letter
    return spaced


def _numbers(word: str, depth: int = 2) -> Any:
    """A number, or numbers in brackets, at most `depth` of them around each."""
    if not word.startswith("["):
        return int(word) if word.lstrip("-").isdecimal() else float(word)
    if not word.endswith("]") or not depth:
        raise ValueError(word)
    return [_numbers(part, depth - 1) for part in _words(_spaced(word[1:-1]))]
