"""From work items to the instructions of opcodes 9 to 13, which come only when a value that is used changes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rsn.base.errors import ProgramError
from rsn.isa.fields import Record
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN, XNN_BASE
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.work import (
    KeyPart,
    LengthField,
    Load,
    LoadNorm,
    Patched,
    Receive,
    Rotation,
    RowNorm,
    Send,
    Softmax,
    Store,
    Turn,
)


def made(unit: str, *turns: Turn, overlay: Overlay = XNN) -> list[Record]:
    assert overlay.emit is not None
    return [x.record if isinstance(x, Patched) else x for x in overlay.emit(overlay.by_unit[unit], turns)]


def stored(*stores: Store) -> list[Record]:
    """The instructions of stores, without the stores."""
    return [x for x in made("MemC4", *(Turn(None, s) for s in stores)) if not isinstance(x, f.MemC)]


def test_registers_of_a_store_change_when_they_are_used() -> None:
    gate, plain = Store(128, 128, "silu", gate=True), Store(128, 128)
    activated = Store(128, 128, "silu")
    assert stored(gate, gate, plain, gate, activated) == [
        f.MemCConfig(activation=3),
        f.MemCStore(gate=1),
        f.MemCStore(),
    ]
    assert stored(Store(128, 128, gate=True))[0] == f.MemCConfig(activation=4)
    (store,) = (x for x in made("MemC4", Turn(None, Store(128, 128, gate=True))) if isinstance(x, f.MemC))
    assert store.gelu


def test_a_table_is_taken_before_the_store_that_says_so() -> None:
    norm = RowNorm(80, 1e-5, rms=True, head=128)
    first = Store(256, 256, norm=norm, rotation=Rotation(128, (2, 2)))
    again = Store(256, 256, norm=norm, rotation=Rotation(128))
    assert made("MemC4", Turn(None, first), Turn(None, again)) == [
        f.MemCConfig(eps=1e-5, rms=1),
        f.MemCStore(rotate=1, head=2, head_cols=80, head_norm=1),
        f.MemCTable(recv_a=2, recv_b=2),
        *[f.MemC(store=1, dim1=256, dim2=256, layernorm=1)] * 2,
    ]


def test_statistics() -> None:
    store = Store(256, 0, norm=RowNorm(512, 1e-6), statistics=True)
    assert stored(store, store._replace(statistics=False)) == [f.MemCStore(statistics=1), f.MemCStore()]
    with pytest.raises(ProgramError, match="statistics of no norm"):
        stored(Store(128, 128, statistics=True))
    heads = Store(128, 128, norm=RowNorm(64, 1e-6, head=64), rotation=Rotation(128))
    with pytest.raises(ProgramError, match="heads of 64 and 128 columns"):
        stored(heads)


def test_scores() -> None:
    def softmaxes(*items: Softmax) -> list[Record]:
        turns = [Turn(Receive(1, 1, 1, item), None) for item in items]
        return [x for x in made("MemC0", *turns) if isinstance(x, f.MemCScores)]

    plain = Softmax()
    assert softmaxes(plain, Softmax(causal=True)) == []
    assert softmaxes(plain._replace(low=-5), plain._replace(low=-5), plain) == [
        f.MemCScores(windowed=1, low=-5),
        f.MemCScores(low=-5),
    ]
    assert softmaxes(plain._replace(cap=50.0, part=KeyPart.MORE)) == [
        f.MemCScores(capped=1, cap=50.0, inverse_cap=0.02, part=2)
    ]
    (patched,) = (
        x
        for x in XNN.emit(
            XNN.by_unit["MemC0"], [Turn(Receive(1, 1, 1, Softmax(first=LengthField(2, 128, 256, "start"))), None)]
        )  # type: ignore[misc]
        if isinstance(x, Patched) and isinstance(x.record, f.MemCScores)
    )
    assert patched.fields == (("first_cols", LengthField(2, 128, 256, "start")),)


def test_loads() -> None:
    norm = LoadNorm(1e-5, True, parts=3, fresh=2)
    loads: Sequence[Load] = [
        Load(256, 128, norm=norm),
        Load(256, 128, norm=norm._replace(fresh=0)),
        Load(128, 128, norm=norm._replace(fresh=0, first=1, same=True)),
        Load(128, 128),
        Load(256, 128, norm=norm),
        Load(256, 128, norm=norm),
    ]
    on = f.MemANorm(normalise=1, rms=1, eps=1e-5, parts=3)
    assert [x for x in made("MemA0", *(Turn(load, None) for load in loads)) if isinstance(x, f.MemANorm)] == [
        on.replace(rows=2),
        on.replace(first=1, same=1),
        on.replace(first=1, same=1, normalise=0),
        on.replace(rows=2),
        on.replace(rows=2),
    ]
    with pytest.raises(ProgramError, match="another norm than that of the statistics"):
        made("MemA0", Turn(loads[0], None), Turn(Load(256, 128, norm=LoadNorm(1e-6, True)), None))


def test_values_of_wide_heads() -> None:
    whole, half = Send(4, 2, whole=True), Send(4, 1)
    assert made("MemB2", Turn(None, whole), Turn(None, whole), Turn(None, half)) == [
        f.MemBConfig(whole=1),
        *[f.MemB(send=1, acc_a=1, acc_b=2, acc_k=4)] * 2,
        f.MemBConfig(),
        f.MemB(send=1, acc_a=1, acc_b=1, acc_k=4),
    ]


@pytest.mark.parametrize(
    ("unit", "turn", "what"),
    [
        ("MemA0", Turn(Load(128, 128, norm=LoadNorm(1e-6)), None), "normalise of MemANorm"),
        ("MemB2", Turn(None, Send(4, 2, whole=True)), "whole of MemBConfig"),
        ("MemC0", Turn(None, Store(128, 128, "gelu_tanh", gate=True)), "gate of MemCStore"),
        ("MemC0", Turn(Receive(1, 1, 1, Softmax(low=3)), None), "windowed and low of MemCScores"),
    ],
)
def test_a_machine_without_the_registers_refuses(unit: str, turn: Turn, what: str) -> None:
    with pytest.raises(ProgramError, match=f"{unit}: the work needs {what}, which this overlay does not have"):
        made(unit, turn, overlay=XNN_BASE)
