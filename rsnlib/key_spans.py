"""The keys of each sequence that attention masks show, as the run-time parameters of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import TensorError

RowsOfCaches = Sequence[int] | Mapping[int, Sequence[int]]
"""Where caches take the new row of each sequence: all caches, or by the number of rows that caches have."""


def rows_of(rows: RowsOfCaches, count: int) -> Sequence[int]:
    """Return the numbers of the rows that the new rows of the sequences take, from 0 on, in caches of `count` rows.
    rows: one list for all caches, or a list by the number of rows of caches. Raises `TensorError` if `rows` has no list
    for caches of that size."""
    if not isinstance(rows, Mapping):
        return rows
    if count not in rows:
        raise TensorError(f"new rows for caches of {sorted(rows)} rows; the model has caches of {count}")
    return rows[count]


class KeySpans(NamedTuple):
    """Which keys of each sequence attention sees, as int64 (batch,) arrays: the keys from `starts` up to `lengths`
    (exclusive). starts: None means 0. rows: the row at which a cache takes the new row of each sequence; None without
    caches. others: the same for caches with other numbers of rows, by that number."""

    lengths: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64] | None = None
    rows: npt.NDArray[np.int64] | None = None
    others: Mapping[int, KeySpans] = MappingProxyType({})

    @classmethod
    def of(cls, parameters: Mapping[str, int], batch: int) -> KeySpans:
        """Return the spans of `batch` sequences, 1 or more. parameters: all run-time parameters of a program, by name,
        in rows. A length that is missing is -1; `starts` is None if one of them is missing. `rows` and `others` are not
        read from the parameters: they keep their defaults."""
        lengths, starts = ([parameters.get(f"{x}[{i}]", -1) for i in range(batch)] for x in ("len", "start"))
        return cls(np.array(lengths, np.int64), None if min(starts) < 0 else np.array(starts, np.int64))

    def parameters(self, count: int | None = None, kind: int | str = "") -> dict[str, int]:
        """Return the run-time parameters of a program, by name: in rows of a sequence, from 0 on. count: only those of
        the first `count` sequences; None: all. kind: the number of rows of caches that have parameters of their own; ""
        for the program's own."""
        named = {f"len{kind}[{i}]": int(n) for i, n in enumerate(self.lengths[:count])}
        for name, numbers in (("start", self.starts), ("row", self.rows)):
            named |= {f"{name}{kind}[{i}]": int(n) for i, n in enumerate(() if numbers is None else numbers[:count])}
        for rows, spans in self.others.items():
            named |= spans.parameters(count, rows)
        return named
