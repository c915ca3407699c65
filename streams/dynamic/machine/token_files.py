"""Streams and tensors of a run as files.

A text (`.txt`) has a line for each stream, its tokens in their text form: `rows: [[1,2]] S1 [[3,4]] S1 D`. Numbers are
written with all their digits.

An `.npz` has tensors by their names, and arrays for each stream NAME:

| array | of | what |
| --- | --- | --- |
| `NAME.stops` | tokens but D | 0 for an element, n for the stop Sn |
| `NAME.times` | tokens | the cycle in which each comes; D is the last one |
| `NAME.tiles` | elements | tiles [n, rows, columns] of one size; of several sizes, all their values |
| `NAME.sizes` | elements | rows and columns of each tile, and how many of its rows are filled, -1 for all |
| `NAME.chosen` | elements | selectors [n, choices]: what is chosen |
| `NAME.shapes`, `NAME.of.` .. | buffers | the shape of each buffer; their elements, as arrays like these |
| `NAME.0.` .. | tuples | the parts, as arrays like these |

A stream without `times` is there from the first cycle on. Tiles without values have no `tiles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from ....base.errors import TensorError
from ..errors import StepError, TokenError
from ..run import Arrivals
from ..shapes import BufferType, DataType, SelectorType, StreamType, TileType, TupleType
from ..tokens import DONE, Array, BufferReference, Element, Selector, Stop, Tile, Token

STOPS, TIMES = ".stops", ".times"


def text_of(streams: Mapping[str, Sequence[Token]]) -> str:
    """Return streams as a text, a line for each, as the module docstring shows. streams: tokens by the name of the
    stream.
    """
    return "".join(f"{name}: {' '.join(map(_word, tokens))}\n" for name, tokens in streams.items())


def _word(token: Token) -> str:
    if isinstance(token, tuple):
        return f"({','.join(map(_word, token))})"
    if not isinstance(token, Tile) or token.data is None or not token.data.size:
        return str(token)
    rows = [[_number(value) for value in row] for row in token.data.tolist()]
    if token.shape != (1, 1):
        return "[" + ",".join(f"[{','.join(row)}]" for row in rows) + "]"
    return ("T" if token.data[0, 0] else "F") if token.dtype == "boolean" else rows[0][0]


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, bool) else repr(value)


def read_text(text: str, name: str) -> dict[str, str]:
    """Return the streams of a text, by name, each as the text of its tokens. Empty lines and those that begin with #
    are skipped. name: of the file, for messages. Raises `TensorError` for a line that is no stream, and for a name that
    is there twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        stream, colon, tokens = line.rpartition(":")  # a name may have colons, tokens have none
        if not colon or not stream.strip():
            raise TensorError(f"{name}:{number}: a line is the name of a stream, a colon, and its tokens")
        if stream.strip() in found:
            raise TensorError(f"{name}:{number}: the stream {stream.strip()} is there twice")
        found[stream.strip()] = tokens
    return found


def arrays_of(
    stream: str, kind: StreamType, tokens: Sequence[Token], times: Sequence[float] | None
) -> dict[str, Array]:
    """Return a stream as arrays by name, of the shapes in the table of the module docstring. stream: its name. kind:
    its type. tokens: up to D, which is the last one. times: the cycle of each token, None for tokens without times.
    Raises `TensorError` for tiles of one stream whose values no array holds exactly, or of which only some have values.
    """
    elements = [one for one in tokens[:-1] if not isinstance(one, Stop)]
    stops = np.array([one.level if isinstance(one, Stop) else 0 for one in tokens[:-1]], np.int32)
    return {
        stream + STOPS: stops,
        **({} if times is None else {stream + TIMES: np.array(times, np.float64)}),
        **dict(_written(stream, kind.data, elements)),
    }


def _written(name: str, data: DataType, elements: Sequence[Any]) -> Iterator[tuple[str, Array]]:
    match data:
        case TileType():
            sizes = [(one.rows, one.columns, -1 if one.filled is None else one.filled) for one in elements]
            yield f"{name}.sizes", np.array(sizes, np.int32).reshape(-1, 3)
            values = [one.data for one in elements if one.data is not None]
            if len(values) == len(elements):
                yield f"{name}.tiles", _joined(name, values)
            elif values:
                raise TensorError(f"{name}: some tiles have values and some have none; no file holds such a stream")
        case SelectorType(choices):
            chosen = np.zeros((len(elements), choices), np.bool_)
            for row, one in zip(chosen, elements, strict=True):
                row[list(one.chosen)] = True
            yield f"{name}.chosen", chosen
        case BufferType(element, shape):
            yield f"{name}.shapes", np.array([one.shape for one in elements], np.int32).reshape(-1, len(shape))
            yield from _written(f"{name}.of", element, [inner for one in elements for inner in one.elements])
        case TupleType(parts):
            for number, part in enumerate(parts):
                yield from _written(f"{name}.{number}", part, [one[number] for one in elements])


def _joined(name: str, values: Sequence[Array]) -> Array:
    """Tiles as one array: [n, rows, columns] if all have one size, else their values one after the other."""
    kind = np.result_type(*{one.dtype for one in values}) if values else np.dtype(np.float64)
    for one in values:
        back = one.astype(kind).astype(one.dtype)
        if not np.array_equal(one, back, equal_nan=one.dtype.kind == "f"):
            raise TensorError(
                f"{name}: {one.dtype} and {kind} in one stream: no array holds the values of both exactly"
            )
    if len({one.shape for one in values}) == 1:
        return np.stack(values).astype(kind, copy=False)
    return np.concatenate([one.reshape(-1) for one in values]).astype(kind, copy=False) if values else np.zeros(0, kind)


def streams_in(arrays: Mapping[str, Array], wanted: Mapping[str, StreamType], file: str) -> dict[str, Arrivals]:
    """Return the streams that are in arrays, by name, with the cycle of each token (0 without `times`). arrays: by the
    names that `arrays_of` gives. wanted: the types of the streams to look for, by name. file: for messages. Raises
    `TensorError` for arrays that are no stream of such a type.
    """
    found = {}
    for name, kind in wanted.items():
        if name + STOPS in arrays:
            try:
                found[name] = _stream(arrays, name, kind)
            except (KeyError, ValueError, StepError, TokenError) as error:
                raise TensorError(f"{file}: {name} is no stream of {kind}: {error}") from None
    return found


def _stream(arrays: Mapping[str, Array], name: str, kind: StreamType) -> Arrivals:
    stops = arrays[name + STOPS]
    if stops.ndim != 1 or stops.dtype.kind not in "iu":
        raise ValueError(f"{name}{STOPS} is no list of whole numbers")
    levels = stops.tolist()
    elements = iter(_read(arrays, name, kind.data, levels.count(0)))
    tokens: list[Token] = [Stop(level) if level else next(elements) for level in levels]
    times = arrays.get(name + TIMES, np.zeros(len(levels) + 1))
    if times.shape != (len(levels) + 1,) or times.dtype.kind not in "iuf" or not np.isfinite(times).all():
        raise ValueError(f"{name}{TIMES} is no list of {len(levels) + 1} times")
    return Arrivals([*tokens, DONE], times.astype(np.float64).tolist())


def _read(arrays: Mapping[str, Array], name: str, data: DataType, count: int) -> list[Element]:
    """The elements of a stream. count: how many there are."""
    match data:
        case TileType(dtype=dtype):
            return _tiles(arrays, name, dtype, count)
        case SelectorType(choices):
            chosen = _shaped(arrays, f"{name}.chosen", (count, choices))
            return [Selector(tuple(np.flatnonzero(row).tolist())) for row in chosen]
        case BufferType(element, shape):
            given = _shaped(arrays, f"{name}.shapes", (count, len(shape)))
            if (given < 0).any():
                raise ValueError(f"{name}.shapes has a size below 0")
            sizes = [tuple(row) for row in given.tolist()]
            inner = iter(_read(arrays, f"{name}.of", element, sum(map(prod, sizes))))
            return [BufferReference(one, tuple(next(inner) for _ in range(prod(one)))) for one in sizes]
        case TupleType(parts):
            columns = [_read(arrays, f"{name}.{number}", part, count) for number, part in enumerate(parts)]
            return list(zip(*columns, strict=True))


def _tiles(arrays: Mapping[str, Array], name: str, dtype: str, count: int) -> list[Element]:
    values = arrays.get(f"{name}.tiles")
    if f"{name}.sizes" in arrays:
        sizes = _shaped(arrays, f"{name}.sizes", (count, 3))
    else:
        whole = arrays[f"{name}.tiles"]
        if whole.ndim != 3 or len(whole) != count:
            raise ValueError(f"{name}.tiles has shape {list(whole.shape)}; [{count}, rows, columns] is expected")
        sizes = np.tile(np.array([*whole.shape[1:], -1]), (count, 1))
    if values is not None and values.dtype.kind not in "biuf":
        raise ValueError(f"{name}.tiles has values of {values.dtype}")
    if values is not None and values.dtype.kind in "iu" and values.dtype.itemsize < 8:
        values = values.astype(np.int64)  # as a text has them: a run computes in the types of its arrays
    made: list[Element] = []
    at = 0
    for rows, columns, filled in sizes.tolist():
        if min(rows, columns) < 0 or not -1 <= filled <= rows:
            raise ValueError(f"{name}.sizes has a tile of {rows}x{columns} with {filled} rows filled")
        piece = None if values is None else values.reshape(-1)[at : at + rows * columns].reshape(rows, columns)
        at += rows * columns
        made.append(Tile(rows, columns, dtype, piece, None if filled < 0 else filled))
    if values is not None and at != values.size:
        raise ValueError(f"{name}.tiles has {values.size} values, and the sizes {at}")
    return made


def _shaped(arrays: Mapping[str, Array], name: str, shape: tuple[int, ...]) -> Array:
    array = arrays[name]
    if array.shape != shape or array.dtype.kind not in "biu":
        raise ValueError(
            f"{name} has {array.dtype} of shape {list(array.shape)}; whole numbers {list(shape)} are expected"
        )
    return array
