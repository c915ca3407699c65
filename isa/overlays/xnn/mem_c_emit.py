"""From the work of a MemC to its instructions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ....base.errors import ProgramError
from ....machine.description import UnitSpec
from ...fields import Record
from ...versal.memory import memory_of
from ...work import Patched, Receive, Send, Softmax, Store
from .mem_c import ACTIVATIONS, ALL_COLUMNS, HEADS, IDENTITY, MemC, MemCConfig, MemCScores, MemCStore, MemCTable
from .registers import Registers

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
    if store.statistics and store.norm is None:
        raise ProgramError("a store leaves statistics of no norm: give it the norm whose mean and variance they are")
    if store.norm is not None:
        yield from (("statistics", int(store.statistics)), ("head_norm", int(store.norm.head > 0)))
        if store.norm.head:
            yield "head_cols", store.norm.columns


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemC | MemCTable | Patched]:
    """Yield the instruction of each `Turn`, and before it those that set registers, if their values change, and that
    fill the table of its store."""
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
