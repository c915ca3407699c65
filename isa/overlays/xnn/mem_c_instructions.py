"""From the work of a MemC to its instructions; what these may say, and what they say to no effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ....base.errors import ProgramError
from ....machine.description import UnitSpec, memory_of
from ...fields import Record
from ...versal.tiles import TILE
from ...work import Patched, Receive, Registers, Send, Softmax, Store
from .mem_c import (
    ACTIVATIONS,
    ALL_COLUMNS,
    HEADS,
    IDENTITY,
    LATE_PRODUCT,
    TABLE_COLUMNS,
    MemC,
    MemCConfig,
    MemCScores,
    MemCStore,
    MemCTable,
    max_sent,
)
from .ring import SizeField, check_size

Needed = Mapping[type[Record], Mapping[str, Any]]
"""The registers that an operation uses, with their values, by format."""


@lru_cache(typed=True)
def _operation(fill: Receive | None, drain: Send | Store | None) -> MemC:
    receive: dict[str, int] = {}
    if fill is not None:
        receive = {"recv": 1, "k_iter": fill.rounds, "recv_a": fill.rows, "recv_b": fill.columns}
        receive["softmax"] = int(fill.softmax is not None)
    out: dict[str, int] = {}
    if isinstance(drain, Send):
        out = {"send": 1, "send_a": drain.rows, "send_b": drain.times, "send_k": drain.columns}
    elif drain is not None:
        out = {"store": 1, "dim1": drain.rows, "dim2": drain.columns}
        out |= {"gelu": int(drain.activation is not None or drain.gate), "layernorm": int(drain.norm is not None)}
    return MemC(**receive, **out)


@lru_cache(typed=True)
def _needed(fill: Receive | None, drain: Send | Store | None) -> Needed:
    config: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    post: dict[str, Any] = {}
    if fill is not None and fill.softmax is not None:
        config |= dict(_softmax(fill.softmax))
        scores |= dict(_scores(fill.softmax))
    if isinstance(drain, Store):
        if drain.activation is not None or drain.gate:
            config["activation"] = (*ACTIVATIONS, IDENTITY).index(drain.activation or IDENTITY)
        if drain.norm is not None:
            config |= {"eps": _float(drain.norm.eps), "rms": int(drain.norm.rms)}
            config |= {} if drain.norm.head else {"norm_cols": drain.norm.columns}
        post |= dict(_at_store(drain))
    return {MemCConfig: config, MemCScores: scores, MemCStore: post}


def _float(value: float) -> float:
    return float(np.float32(value))


def _softmax(softmax: Softmax) -> Iterator[tuple[str, Any]]:
    yield "softmax_cols", ALL_COLUMNS if softmax.columns is None else softmax.columns
    yield from (("max_sub", 1), ("alone", int(softmax.alone)), ("causal", int(softmax.causal)))
    if softmax.causal:
        yield "offset", softmax.offset


def _scores(softmax: Softmax) -> Iterator[tuple[str, Any]]:
    yield from (("first_cols", softmax.first), ("part", int(softmax.part)))
    yield from (("windowed", int(softmax.low is not None)), ("capped", int(softmax.cap is not None)))
    if softmax.low is not None:
        yield "low", softmax.low
    if softmax.cap is not None:
        yield from (("cap", _float(softmax.cap)), ("inverse_cap", _float(1 / softmax.cap)))


def _at_store(store: Store) -> Iterator[tuple[str, Any]]:
    yield "rotate", int(store.rotation is not None)
    if store.activation is not None or store.gate:
        yield "gate", int(store.gate)
    heads = {store.norm.head if store.norm else 0, store.rotation.head if store.rotation else 0} - {0}
    if len(heads) > 1:
        raise ProgramError(f"a store with heads of {' and '.join(map(str, sorted(heads)))} columns: give both the same")
    if heads:
        yield "head", HEADS.index(*heads)
        if store.norm is None:
            yield "head_norm", 0  # that of wider heads before would be of more columns than these have
    if store.statistics and store.norm is None:
        raise ProgramError("a store leaves statistics of no norm: give it the norm whose mean and variance they are")
    if store.norm is not None:
        yield from (("statistics", int(store.statistics)), ("head_norm", int(store.norm.head > 0)))
        if store.norm.head:
            yield "head_cols", store.norm.columns


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemC | MemCTable | Patched]:
    """Yield the instruction of each of the items, `Turn`s. Before it come those that set registers whose values change,
    and those that fill the table of its store. registers: the unit has those of opcodes 8 to 11.

    Raises `ProgramError` if the unit has no memory, needs a register that it does not have, or if a store says things
    that do not go together; `FieldError` for a value that does not fit its field.
    """
    columns, power_on = memory_of(unit).columns, MemCConfig().norm_cols
    held = [
        Registers(MemCConfig, **({} if columns >= power_on else {"norm_cols": columns})),
        Registers(MemCScores),
        Registers(MemCStore),
    ]
    for turn in items:
        needed = _needed(turn.fill, turn.drain)
        if not registers:
            for of_format in held[1:]:
                of_format.require_power_on(unit, needed[of_format.record])
        else:
            for of_format in held:
                yield from of_format.set(needed[of_format.record])
            if isinstance(turn.drain, Store) and turn.drain.rotation is not None and any(turn.drain.rotation.fresh):
                rows, cols = turn.drain.rotation.fresh
                yield MemCTable(recv_a=rows, recv_b=cols)
        yield _operation(turn.fill, turn.drain)


def legal(unit: UnitSpec, uop: MemC) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and 2).

    Raises `ProgramError` if the unit has no memory.
    """
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    row_tiles, col_tiles = rows // TILE, cols // TILE
    if unit.capability("send") is None and (uop.send or uop.softmax):
        yield "has no way to MeshA and no softmax"
    if uop.recv and uop.softmax and not uop.recv_a & 3:
        yield "a softmax over no rows"
    if uop.recv and uop.softmax and not uop.k_iter and unit.capability(LATE_PRODUCT) is not None:
        yield "a softmax of what was received before, which may still lack its product by 1 / row sums"
    if uop.store and uop.layernorm and not uop.dim1:
        yield "a norm over no rows"
    if uop.recv and (uop.recv_a > row_tiles or uop.recv_b > col_tiles):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a buffer of {row_tiles}x{col_tiles}"
    if uop.store and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"store {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and (uop.send_a > row_tiles or uop.send_k > max_sent(memory_of(unit))):
        yield f"sends {uop.send_a}x{uop.send_k} tiles; {row_tiles}x{max_sent(memory_of(unit))} is the most"


def legal_config(unit: UnitSpec, uop: MemCConfig) -> Iterator[str]:
    """Yield the reasons why values of registers are not defined, although they are in range (contract section 7).

    Raises `ProgramError` if the unit has no memory.
    """
    cols = memory_of(unit).columns
    if uop.activation > len(ACTIVATIONS):
        yield f"activation {uop.activation} is not defined"
    if uop.softmax_cols > cols and uop.softmax_cols != ALL_COLUMNS:
        yield f"softmax_cols={uop.softmax_cols} is neither within 0..{cols} nor {ALL_COLUMNS}"
    if uop.norm_cols > cols:
        yield f"norm_cols={uop.norm_cols} is not within 0..{cols}"


def legal_scores(unit: UnitSpec, uop: MemCScores) -> Iterator[str]:
    """Yield the reasons why values of the registers of a softmax are not defined, although they are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    cols = memory_of(unit).columns
    if unit.capability("send") is None:
        yield "has no softmax"
    if uop.first_cols > cols:
        yield f"first_cols={uop.first_cols} is not within 0..{cols}"
    if uop.capped and (uop.cap <= 0 or uop.inverse_cap <= 0):
        yield f"cap={uop.cap:g} and inverse_cap={uop.inverse_cap:g}: both must be greater than 0"


def legal_store(unit: UnitSpec, uop: MemCStore) -> Iterator[str]:
    """Yield the reasons why values of the registers of a store are not defined, although they are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    head, cols = HEADS[uop.head], memory_of(unit).columns
    if (uop.rotate or uop.head_norm) and not head:
        yield "rotate and head_norm need heads: head = 1 (64 columns), 2 (128) or 3 (256)"
    if head > cols:
        yield f"heads of {head} columns in a buffer of {cols}"
    if uop.head_norm and head and not 0 < uop.head_cols <= head:
        yield f"head_cols={uop.head_cols} is not within 1..{head}"
    if uop.head_norm and uop.statistics:
        yield "statistics are of whole rows: head_norm must be 0"


def legal_table(unit: UnitSpec, uop: MemCTable) -> Iterator[str]:
    """Yield the reasons why the unit cannot fill a table as a uOP says, although its fields are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    memory = memory_of(unit)
    rows, cols = memory.rows // TILE, TABLE_COLUMNS // TILE
    if memory.slots > 2:
        yield f"a table needs a buffer of two slots, not {memory.slots}: a store may still use the one of before"
    if not (0 < uop.recv_a <= rows and 0 < uop.recv_b <= cols):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a table of {rows}x{cols}"


def check_memory(unit: UnitSpec, *, registers: bool) -> None:
    """Raise `ProgramError` if a unit has no memory, or one that is not a whole number of tiles, or one that is too
    large for the fields of `MemC`. registers: the unit has registers; their fields must then hold the sizes too.
    `recv_a` has 3 bits; a MemC that sends reads two of them."""
    rows = [SizeField(MemC, "dim1"), SizeField(MemC, "recv_a", TILE), SizeField(MemC, "send_a", TILE)]
    columns = [SizeField(MemC, "dim2"), SizeField(MemC, "recv_b", TILE)]
    if registers:
        columns += [SizeField(MemCConfig, "softmax_cols"), SizeField(MemCConfig, "norm_cols")]
    check_size(unit, "rows", rows)
    check_size(unit, "columns", columns)


def lint(mop: MemC) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    if mop.send and mop.store:
        yield "send and store are both set; on MemC0-3 send suppresses the store"
    if mop.recv_k:
        yield "recv_k has no effect"
    if (mop.gelu or mop.layernorm) and not mop.store:
        yield "a post-op without store does nothing"
    if mop.softmax and not mop.recv:
        yield "softmax without recv does nothing"
