"""What rsn check finds in programs that use opcodes 9 to 13: each test has one mistake, and its code alone is found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.isa.fields import Record
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Program
from rsn.tests.isa.test_xnn_checks import RECV, STORE, codes, found

SEND = f.MemC(send=1, send_a=1, send_b=1, send_k=2)
SOFT = RECV.replace(softmax=1)
ALONE = f.MemCConfig(alone=1)
LOAD = f.MemA(load=1, dim1=128, dim2=128)
SEND_A = f.MemA(send=1, acc_a=1, acc_b=1)
TABLE = f.MemCTable(recv_a=1, recv_b=1)
GELU = STORE.replace(gelu=1)


def both(uops: Sequence[Record], units: tuple[str, str] = ("MemC4", "MemC5")) -> dict[str, Sequence[Record]]:
    return dict.fromkeys(units, uops)


@pytest.mark.parametrize(
    "units",
    [
        {"MemC5": [f.MemCStore(gate=1), RECV, GELU.replace(dim2=128)]},
        {"MemC5": [f.MemCStore(rotate=1, head=1), RECV, TABLE, STORE]},
        {"MemC5": [f.MemCStore(rotate=1, head=1), RECV, TABLE, STORE, RECV, STORE]},  # a table serves all that follow
        {"MemC5": [f.MemCStore(head_norm=1, head=2), RECV, STORE.replace(layernorm=1)]},
        both([f.MemCStore(statistics=1), f.MemCConfig(norm_cols=256), RECV, STORE.replace(layernorm=1)]),
        both([f.MemCStore(statistics=1), f.MemCConfig(norm_cols=256), RECV, STORE.replace(layernorm=1, dim2=0)]),
        {"MemA0": [f.MemANorm(rows=1, parts=2, normalise=1), LOAD, SEND_A]},
        {
            "MemB2": [
                f.MemBConfig(whole=1),
                f.MemB(load=1, dim1=128, dim2=256),
                f.MemB(send=1, acc_a=1, acc_b=2, acc_k=1),
            ]
        },
        {"MemC0": [ALONE, f.MemCScores(part=1), SOFT, f.MemCScores(part=2), SOFT, f.MemCScores(part=3), SOFT, SEND]},
        both([f.MemCScores(part=1), SOFT, f.MemCScores(part=3), SOFT, SEND], ("MemC0", "MemC1")),
    ],
)
def test_programs_without_a_mistake(units: dict[str, Sequence[Record]]) -> None:
    assert codes(**units) == []


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ({"MemC5": [f.MemCStore(gate=1), RECV, GELU.replace(dim2=320)]}, "gate: stores 320 columns; 64 to 256"),
        ({"MemC5": [f.MemCStore(rotate=1, head=3), RECV, STORE.replace(dim2=128)]}, "no whole number of heads of 256"),
        ({"MemC5": [f.MemCStore(rotate=1, head=1), RECV, STORE]}, "its table holds 0 rows of 0 columns"),
        ({"MemC5": [f.MemCStore(rotate=1, head=2), RECV, TABLE, STORE]}, "its table holds 128 rows of 128 columns"),
        ({"MemA0": [f.MemANorm(normalise=1), LOAD, SEND_A]}, "row tile 0; those of 0 row tiles were loaded"),
        (
            {"MemA0": [f.MemANorm(rows=1, parts=2, normalise=1, first=1), LOAD, SEND_A]},
            "row tile 1; those of 1 row tiles were loaded",
        ),
        ({"MemC0": [ALONE, f.MemCScores(part=2), SOFT]}, "maxima and sums are kept of 0 rows"),
        ({"MemC0": [ALONE, f.MemCScores(part=3), SOFT, SEND]}, "maxima and sums are kept of 0 rows"),
        (
            {"MemC0": [ALONE, f.MemCScores(part=1), SOFT.replace(recv_a=2), f.MemCScores(part=3), SOFT, SEND]},
            "takes further keys of 128 rows; maxima and sums are kept of 256 rows",
        ),
        ({"MemC0": [ALONE, f.MemCScores(part=1), SOFT, SEND]}, "of which a softmax kept maxima and sums only"),
        (
            {
                "MemB2": [
                    f.MemBConfig(whole=1),
                    f.MemB(load=1, dim1=128, dim2=256),
                    f.MemB(send=1, acc_a=1, acc_b=3, acc_k=1),
                    f.MemB(),
                    f.MemB(send=1, acc_a=1, acc_b=2, acc_k=1),
                ]
            },
            "sends 3 column tiles of a buffer with 2",
        ),
    ],
)
def test_registers_that_do_not_go_with_a_uop(units: dict[str, Sequence[Record]], message: str) -> None:
    findings = [x for x in found(False, **units) if not x.warning]
    assert {x.code for x in findings} == {"X11"}
    assert message in findings[0].message
    assert findings[0].help


def test_stale_columns_of_gates_and_heads() -> None:
    assert codes(MemC5=[f.MemCStore(gate=1), RECV.replace(recv_b=1), GELU.replace(dim2=128)]) == ["X03"]
    heads = f.MemCStore(head_norm=1, head=2)
    assert codes(MemC5=[heads, RECV.replace(recv_b=1), STORE.replace(layernorm=1)])[0] == "X03"


def test_a_table_that_nothing_uses_is_lost() -> None:
    assert codes(MemC5=[f.MemCStore(rotate=1, head=1), RECV, TABLE, TABLE, STORE]) == ["X02?"]


def test_neighbours_agree_on_parts_and_windows() -> None:
    def pair(a: f.MemCScores, b: f.MemCScores) -> list[str]:
        return [x.message for x in found(False, MemC0=[a, SOFT, SEND], MemC1=[b, SOFT, SEND]) if x.code == "X07"]

    assert pair(f.MemCScores(windowed=1), f.MemCScores()) == [
        "softmax of MemC0 uOP 1 and MemC1 uOP 1 do not agree: windowed 1 and 0"
    ]
    (message,) = pair(f.MemCScores(part=1), f.MemCScores(part=2))
    assert message.endswith("do not agree: part 1 and 2")


def test_statistics_have_transfers_of_their_own() -> None:
    norm = f.MemC(store=1, dim1=128, dim2=128, layernorm=1)
    mem_c = [f.MemCStore(statistics=1), f.MemCConfig(norm_cols=256), RECV, norm]

    def stores(*sizes: int) -> list[str]:
        ddr = [f.Ddr(store=1, size=size, from_c4=1) for size in sizes]
        return codes(DDR=[*ddr, f.Ddr(store=1, size=16384, from_c5=1)], **both(mem_c))

    assert stores(16384, 2048) == []
    assert stores(8192, 8192, 2048) == []
    assert stores(18432) == ["X12"]
    assert stores(2048, 16384) == ["X12"]
    mem_a = [f.MemANorm(rows=1, parts=2, normalise=1), LOAD, SEND_A]

    def loads(*sizes: int) -> list[str]:
        return codes(MemA0=mem_a, DDR=[f.Ddr(load=1, size=size, to_a0=1) for size in sizes])

    assert loads(2048, 2048, 16384) == loads(4096, 16384) == []
    assert loads(16384, 4096) == ["X12"]


@pytest.mark.parametrize(
    ("unit", "uop", "reason"),
    [
        ("MemC4", f.MemCScores(part=1), "has no softmax"),
        ("MemC0", f.MemCScores(first_cols=600), "first_cols=600 is not within 0..512"),
        ("MemC0", f.MemCScores(capped=1, cap=-1), "cap=-1 and inverse_cap=1: both must be greater than 0"),
        ("MemC0", f.MemCStore(rotate=1), "rotate and head_norm need heads"),
        ("MemC0", f.MemCStore(head_norm=1, head=1, head_cols=80), "head_cols=80 is not within 1..64"),
        ("MemC0", f.MemCStore(head_norm=1, head=1, statistics=1), "statistics are of whole rows"),
        ("MemC0", f.MemCTable(recv_a=3, recv_b=1), "receives 3x1 tiles into a table of 2x4"),
        ("MemA0", f.MemANorm(rows=3, parts=1), "statistics of 3 row tiles; a buffer has 2"),
        ("MemA0", f.MemANorm(rows=1), "statistics of no parts"),
        ("MemA0", f.MemANorm(eps=-1.0), "eps=-1 must not be less than 0"),
        ("MemB1", f.MemBConfig(whole=1), "whole is a register of MemB2"),
    ],
)
def test_values_that_are_not_defined(unit: str, uop: Record, reason: str) -> None:
    assert any(reason in text for text in XNN.legal(XNN.by_unit[unit], uop))


CONFIGURATIONS = """\
overlay xnn
packet MemCScores MemC[0..3] {
  windowed capped first_cols=clamp(start[0]-128, 0, 256) part=2 low=-511 cap=50 inverse_cap=0.02
}
packet MemCStore MemC[0..5] { gate rotate head=2 head_cols=128 head_norm }
packet MemCTable MemC[0..1] { recv_a=2 recv_b=2 }
packet MemANorm MemA[0..2] { normalise rms rows=2 parts=4 eps=1e-05 }
packet MemBConfig MemB2 { whole }
"""


def test_the_text_of_configurations() -> None:
    text = CONFIGURATIONS.replace("overlay xnn\n", "overlay xnn\nparam start[0] 0..512 = 200\n")
    made = parse(text, "p.rsn")
    assert isinstance(made, Program)
    assert made.extended
    uops = [p.mops[0] for p in made.packets]
    assert uops[0].first_cols == 72
    again = parse(show(made), "q.rsn")
    assert isinstance(again, Program)
    assert [p.mops for p in again.packets] == [p.mops for p in made.packets]
    assert again.parameters == made.parameters


def test_kernels_of_a_unit_have_their_configurations_between() -> None:
    made = parse(
        "overlay xnn\nMemA0 { MemANorm normalise rows=1 parts=3; load dim1=128 dim2=128; send acc_a=1 acc_b=1 }", "k"
    )
    assert [type(x).__name__ for x in made.sequences["MemA0"]] == ["MemANorm", "MemA", "MemA"]  # type: ignore[union-attr]
