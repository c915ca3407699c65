"""Semantic checks of XNN (double buffers, contents of tiles, neighbours): each reports its mistake and no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest

from rsn.base.finding import Finding
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.fields import Record
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.overlays.xnn.checks import rules
from rsn.isa.packet import Packet
from rsn.isa.program import Program
from rsn.machine.executor import ProcessNetwork

MASKED = {"MemA": 3, "MemB": 4, "MemC": 5}


def packets_for(unit: str, uops: Sequence[Record]) -> list[Packet]:
    spec = XNN.by_unit[unit]
    out = []
    for uop in uops:
        opcode = next(x.opcode for x in XNN.formats if x.kind == spec.kind and x.mop is type(uop))
        out.append(Packet.of(opcode, [uop], mask=1 << spec.index if spec.kind in MASKED else 0))
    return out


def program(**units: Sequence[Record]) -> Program:
    """A program of these mOPs by unit; the ops of MMEs are preloaded."""
    packets = [p for u, uops in units.items() if not u.startswith("MME") for p in packets_for(u, uops)]
    ops = {u: tuple(uops) for u, uops in units.items() if u.startswith("MME")}
    return Program(XNN, tuple(packets), ops)  # type: ignore[arg-type]


def found(balanced: bool, **units: Sequence[Record]) -> list[Finding]:
    return list(rules(ExpandedProgram(program(**units)), balanced))


def codes(balanced: bool = False, **units: Sequence[Record]) -> list[str]:
    return [x.code + ("?" if x.warning else "") for x in found(balanced, **units)]


LOAD_A = f.MemA(load=1, dim1=256, dim2=128)
SEND_A = f.MemA(send=1, acc_a=2, acc_b=1)
LOAD_B = f.MemB(load=1, dim1=128, dim2=256)
SEND_B = f.MemB(send=1, acc_a=1, acc_b=2)
RECV = f.MemC(recv=1, recv_a=1, recv_b=2, k_iter=1)
STORE = f.MemC(store=1, dim1=128, dim2=256)


@pytest.mark.parametrize(
    ("unit", "fill", "empty"), [("MemA0", LOAD_A, SEND_A), ("MemB1", LOAD_B, SEND_B), ("MemC5", RECV, STORE)]
)
def test_a_buffer_is_filled_before_it_is_emptied(unit: str, fill: Record, empty: Record) -> None:
    assert codes(**{unit: [fill, empty]}) == []
    both = fill.replace(**{x.name: getattr(empty, x.name) or getattr(fill, x.name) for x in empty.FIELDS})
    assert codes(**{unit: [fill, both, both, empty]}) == []
    assert codes(**{unit: [empty]}) == ["X01"]
    idle = type(fill)()
    assert codes(**{unit: [fill, idle, empty]}) == ["X01", "X02?"]  # one flip too many
    assert codes(**{unit: [fill, idle, idle, empty]}) == []
    assert codes(**{unit: [fill, fill, empty, empty]}) == []
    assert codes(**{unit: [fill, fill, fill, empty, empty]}) == ["X02?"]


def test_words_of_a_finding() -> None:
    (finding,) = found(False, MemA0=[SEND_A])
    assert str(finding) == "packet 0 (word 2): error X01: MemA0 uOP 0 sends a buffer that nothing has filled"
    assert finding.help == "the flag flips at every uOP: the load must stand in the uOP before the send"


def test_a_buffer_may_be_sent_twice() -> None:
    """Schedules that walk K forwards and backwards send a buffer twice."""
    idle = f.MemA()
    assert codes(MemA0=[LOAD_A, SEND_A, idle, SEND_A]) == []


def test_data_that_are_lost() -> None:
    assert codes(MemA0=[LOAD_A, f.MemA(), LOAD_A, SEND_A]) == ["X02?"]
    assert codes(MemA0=[LOAD_A, SEND_A, LOAD_A]) == ["X02?"]
    assert codes(MemC0=[RECV, f.MemC(), RECV, STORE]) == ["X02?"]


@pytest.mark.parametrize(
    ("unit", "uops"),
    [
        ("MemA0", [LOAD_A.replace(dim1=128), SEND_A]),
        ("MemA0", [LOAD_A, SEND_A, LOAD_A.replace(dim1=128), SEND_A]),  # the second row tile is of the load before
        ("MemB0", [LOAD_B.replace(dim2=128), SEND_B]),
        ("MemB0", [f.MemB(load=1, bias=1, dim1=8, dim2=1), SEND_B]),
        ("MemB2", [f.MemB(load=1, dim1=128, dim2=64), f.MemB(send=1, acc_a=1, acc_b=1, acc_k=2)]),
        ("MemC5", [RECV, STORE.replace(dim1=256)]),
        ("MemC5", [RECV, STORE.replace(dim2=320)]),
        ("MemC0", [RECV, f.MemC(send=1, send_a=2, send_b=1, send_k=2)]),
        ("MemC0", [RECV, f.MemC(send=1, send_a=1, send_b=1, send_k=3)]),
    ],
)
def test_stale_rows_and_columns(unit: str, uops: Sequence[Record]) -> None:
    assert codes(**{unit: uops}) == ["X03"]


def test_a_norm_needs_its_columns() -> None:
    norm = STORE.replace(layernorm=1, dim2=256)
    both = {u: [f.MemCConfig(norm_cols=256), RECV, norm] for u in ("MemC4", "MemC5")}
    assert codes(**both) == []
    assert codes(**{u: uops[1:] for u, uops in both.items()}) == ["X03", "X03"]  # 512 are normalised


def test_a_post_op_is_applied_once() -> None:
    gelu, idle = STORE.replace(gelu=1), f.MemC()
    assert codes(MemC5=[RECV, STORE, idle, STORE]) == []
    assert codes(MemC5=[RECV, gelu, idle, STORE]) == []
    assert codes(MemC5=[RECV, gelu, idle, gelu]) == ["X06?"]


def test_softmax_neighbours() -> None:
    soft = RECV.replace(softmax=1)
    send = f.MemC(send=1, send_a=1, send_b=1, send_k=2)
    pair = {"MemC0": [soft, send], "MemC1": [soft, send]}
    assert codes(**pair) == []
    assert codes(**pair | {"MemC1": [RECV, send]}) == ["X07"]
    assert codes(**pair | {"MemC1": [soft.replace(recv_a=2), send]}) == ["X07"]
    assert codes(**pair | {"MemC1": [soft.replace(recv_b=0)]}) == ["X07"]
    alone = f.MemCConfig(alone=1)
    assert codes(MemC0=[alone, soft, send]) == []
    assert codes(**pair | {"MemC1": [f.MemCConfig(max_sub=1), soft, send]}) == ["X07"]
    (finding,) = found(False, **pair | {"MemC1": [soft.replace(recv_a=2), send]})
    assert finding.message == "softmax of MemC0 uOP 0 and MemC1 uOP 0 do not agree: recv_a 1 and 2"


def test_norm_neighbours() -> None:
    norm = STORE.replace(layernorm=1)
    config = f.MemCConfig(norm_cols=256)
    pair = {"MemC2": [config, RECV, norm], "MemC3": [config, RECV, norm]}
    assert codes(**pair) == []
    assert codes(**pair | {"MemC3": [config, RECV, STORE]}) == ["X08"]
    assert codes(**pair | {"MemC3": [config.replace(rms=1), RECV, norm]}) == ["X08"]
    taller = [config, RECV.replace(recv_a=2), norm.replace(dim1=256)]
    assert codes(**pair | {"MemC3": taller}) == ["X08"]


def test_a_vector_is_one_at_both_ends() -> None:
    def both(sent: int, taken: int) -> list[str]:
        load = f.MemB(load=1, bias=1, dim1=32, dim2=4) if taken else f.MemB(load=1, dim1=128, dim2=64)
        lpddr = f.Lpddr(size=4096, bias=1, to_b0=1) if sent else f.Lpddr(size=8192, to_b0=1)
        return codes(LPDDR=[lpddr], MemB0=[load, f.MemB(send=1, acc_a=1, acc_b=1)])

    assert [both(0, 0), both(1, 1)] == [[], []]
    assert [both(0, 1), both(1, 0)] == [["X09"], ["X09"]]


# -- tiles on their way: one product from DDR to DDR ---------------------------------------------------------------

GEMM: dict[str, Sequence[Record]] = {
    "DDR": [f.Ddr(size=16384, load=1, to_a2=1), f.Ddr(size=16384, store=1, from_c5=1)],
    "LPDDR": [f.Lpddr(size=128, bias=1, to_b1=1), f.Lpddr(size=16384, to_b1=1)],
    "MemA2": [f.MemA(load=1, dim1=128, dim2=128), f.MemA(send=1, acc_a=1, acc_b=1)],
    "MemB1": [
        f.MemB(load=1, bias=1, dim1=4, dim2=1),
        f.MemB(load=1, dim1=128, dim2=128, send=1, acc_a=1, acc_b=1),
        f.MemB(send=1, acc_a=1, acc_b=1),
    ],
    "MeshA": [f.MeshA(size=512, a2_5=1)],
    "MeshB": [f.MeshB(size=1024, b1_5=1)],
    "MME5": [f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, bias=1, n128=1, k128=1)],
    "MemC5": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1), f.MemC(store=1, dim1=128, dim2=128)],
}


def runs(units: dict[str, Sequence[Record]]) -> bool:
    """Run the uOPs without data; raises if they do not complete. The checks assume that sends equal receives."""
    issues = {}
    for unit, mops in units.items():
        if not unit.startswith("MME"):
            form = XNN.format_of(XNN.by_unit[unit].kind)
            issues[unit] = [u for m in mops for u in form.uops(m, 0)]
    ProcessNetwork(XNN, {**issues, **{u: m for u, m in units.items() if u.startswith("MME")}}).run()
    return True


def change(unit: str, position: int, **fields: int) -> Callable[[dict[str, Sequence[Record]]], None]:
    def apply(units: dict[str, Sequence[Record]]) -> None:
        mops = list(units[unit])
        mops[position] = mops[position].replace(**fields)
        units[unit] = mops

    return apply


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], []),
        # 64 columns of A in K = 128 mode; in K = 64 mode they do
        ([change("MemA2", 0, dim2=64), change("DDR", 0, size=8192)], ["X05"]),
        (
            [
                change("MemA2", 0, dim2=64),
                change("DDR", 0, size=8192),
                change("MME5", 0, k128=0, bias=0),
                change("MeshB", 0, size=512),
                change("LPDDR", 0, size=0),
                change("MemB1", 0, load=0),
                change("MemB1", 1, send=0),
            ],
            [],
        ),
        ([change("MemB1", 0, dim1=2), change("LPDDR", 0, size=64)], ["X04"]),  # 64 floats of bias for 128 columns
        # a narrow B tile gives 64 valid columns
        ([change("MemB1", 1, dim2=64), change("LPDDR", 1, size=8192)], ["X03"]),
        (
            [
                change("MemB1", 1, dim2=64),
                change("LPDDR", 1, size=8192),
                change("MemC5", 1, dim2=64),
                change("DDR", 1, size=8192),
            ],
            [],
        ),
    ],
)
def test_what_tiles_hold(changes: Sequence[Callable[..., None]], expected: list[str]) -> None:
    units = dict(GEMM)
    for apply in changes:
        apply(units)
    assert runs(units)
    assert codes(True, **units) == expected


def test_a_vector_in_the_place_of_a_matrix() -> None:
    """The same number of words in the other order: the program completes, but the product is wrong."""
    units = dict(GEMM)
    matrix, vector = GEMM["MemB1"][1].replace(send=0), GEMM["MemB1"][0].replace(send=1, acc_a=1, acc_b=1)
    units["MemB1"] = [matrix, vector, GEMM["MemB1"][2]]
    units["LPDDR"] = GEMM["LPDDR"][::-1]
    assert runs(units)
    bias, product = found(True, **units)
    assert (bias.code, product.code) == ("X04", "X04")
    assert bias.where == "MME5 op 0"
    assert bias.message == (
        "MME5 op 0 reads a bias from a B tile that is a matrix, sent by MemB1 uOP 1 at packet 7 (word 29)"
    )
    assert codes(False, **units) == []  # unknown which tile goes where


def test_only_what_kernels_read_counts() -> None:
    """A send of no tiles reads nothing, and sends nothing; a load of no columns fills nothing."""
    assert codes(MemA0=[SEND_A.replace(acc_b=0)]) == []
    assert codes(MemA0=[LOAD_A, SEND_A.replace(acc_b=0)]) == ["X02?"]
    assert codes(MemA0=[LOAD_A.replace(dim2=0), SEND_A]) == ["X01"]


WEIGHTS: dict[str, Sequence[Record]] = {
    **GEMM,
    "DDR": [f.Ddr(size=16384, load=1, to_a2=1)] * 2 + [GEMM["DDR"][1]],
    "LPDDR": [GEMM["LPDDR"][0]],
    "MemA2": [GEMM["MemA2"][0], f.MemA(load=1, dim1=128, dim2=128, send=1, acc_a=1, acc_b=1), GEMM["MemA2"][1]],
    "MemB1": [GEMM["MemB1"][0], GEMM["MemB1"][2]],
    "MeshA": [f.MeshA(size=1024, a2_5=1)],
    "MeshB": [f.MeshB(size=512, b1_5=1)],
    "MME5": [f.Mme(a_iter=1, b_iter=1, acc_a=1, acc_b=1, load_prev=load, prev=1, n128=1, k128=1) for load in (1, 0)],
    "MemC5": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=2), GEMM["MemC5"][1]],
}
"""Two tiles scaled by the same previous-layer weights, which the second op keeps from the first."""


def test_previous_layer_weights_are_checked_where_they_are_used() -> None:
    assert runs(WEIGHTS)
    assert codes(True, **WEIGHTS) == []
    short = {**WEIGHTS, "LPDDR": [f.Lpddr(size=64, bias=1, to_b1=1)]}
    short["MemB1"] = [WEIGHTS["MemB1"][0].replace(dim1=2), WEIGHTS["MemB1"][1]]
    first, second = found(True, **short)
    assert first.message == (
        "MME5 op 0 reads previous-layer weights of 128 columns; the vector sent by MemB1 uOP 1 at packet 8 (word 31) "
        "has 64"
    )
    assert second.message == "MME5 op 1 reads previous-layer weights of 128 columns; the vector that it keeps has 64"
    without = {**WEIGHTS, "LPDDR": [], "MemB1": [], "MeshB": [], "MME5": [WEIGHTS["MME5"][1]] * 2}
    assert [x.message for x in found(True, **without)] == [
        f"MME5 op {i} uses previous-layer weights that were never loaded" for i in range(2)
    ]


def test_attention_is_followed_through_both_products() -> None:
    soft = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1, softmax=1)
    send = f.MemC(send=1, send_a=1, send_b=1, send_k=1)
    units: dict[str, Sequence[Record]] = {
        "MemA0": [f.MemA(load=1, dim1=128, dim2=64), f.MemA(send=1, acc_a=1, acc_b=1)],
        "MemB0": [f.MemB(load=1, transpose=1, dim1=64, dim2=128), f.MemB(send=1, acc_a=1, acc_b=1)],
        "MemB1": [f.MemB(load=1, transpose=1, dim1=64, dim2=128), f.MemB(send=1, acc_a=1, acc_b=1)],
        "MemB2": [f.MemB(load=1, dim1=256, dim2=64), f.MemB(send=1, acc_a=1, acc_b=1, acc_k=2)],
        "MeshA": [f.MeshA(size=512, a0_0=1, a0_1=1), f.MeshA(size=512, c0_4=1), f.MeshA(size=512, c1_4=1)],
        "MeshB": [f.MeshB(size=512, b0_0=1, b1_1=1), f.MeshB(size=1024, b2_4=1)],
        "MME0": [f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1)],
        "MME1": [f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1)],
        "MME4": [f.Mme(a_iter=1, b_iter=1, k_iter=2, acc_a=1, acc_b=1, k128=1, acc_k=1)],
        "MemC0": [soft, send],
        "MemC1": [soft, send],
        "MemC4": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1), f.MemC(store=1, dim1=128, dim2=64)],
    }
    assert codes(True, **units) == []
    # P V is 64 columns wide: the rest is undefined
    wide = {**units, "MemC4": [units["MemC4"][0], f.MemC(store=1, dim1=128, dim2=128)]}
    assert codes(True, **wide) == ["X03"]
    # scores in K = 128 mode read columns that were never loaded
    deep = {**units, "MME0": [f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)]}
    assert codes(True, **deep) == ["X05", "X05"]


@pytest.mark.parametrize(
    ("mop", "text"),
    [
        (f.Ddr(size=8192, load=1, to_a0=1, to_b2=1), "loads to MemA0 and MemB2; MemA0 alone gets the data"),
        (f.Ddr(size=8192, store=1, from_c1=1, from_c3=1), "stores from MemC1 and MemC3; MemC1 alone is read"),
        (f.Ddr(size=8192, load=1, store=1, to_a0=1), "load and store are both set; load wins"),
        (f.Lpddr(size=8192, to_b0=1, to_b1=1), "loads to MemB0 and MemB1; MemB0 alone gets the data"),
        (f.Lpddr(size=128, bias=1), "a vector without destination goes to MemB1"),
        (f.MemC(send=1, store=1), "send and store are both set; on MemC0-3 send suppresses the store"),
        (f.MemC(recv=1, recv_k=1), "recv_k has no effect"),
        (f.MemC(gelu=1), "a post-op without store does nothing"),
        (f.MemC(softmax=1), "softmax without recv does nothing"),
        (f.Mme(acc_k=1), "K = 64 mode ignores acc_k and prev"),
    ],
)
def test_bits_that_the_machine_does_not_heed(mop: Record, text: str) -> None:
    assert list(XNN.lint(mop)) == [text]


def test_programs_with_too_many_tiles_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    from rsn.isa.overlays.xnn import flow

    monkeypatch.setattr(flow, "MAX_TILES", 3)
    assert codes(MemA0=[LOAD_A, SEND_A.replace(acc_b=2)]) == ["X10?"]


def test_places_are_source_lines() -> None:
    from rsn.isa.program import SourceLine

    p = dataclasses.replace(program(MemA0=[SEND_A]), places=(SourceLine("a.rsn", 7),))
    assert [x.where for x in rules(ExpandedProgram(p), False)] == ["a.rsn:7"]
