"""Memories with other rows and columns than those of the shipped overlays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rsn.assembler.parser import parse
from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim.dataflow import DataRun
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays import XNN
from rsn.isa.overlays.file import made
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Program, UnpackedProgram
from rsn.isa.verify import check, dry_run
from rsn.machine.executor import ProcessNetwork
from rsn.scheduler.pack import pack

TALL = "[memories.MemB0]\nrows = 256\n"


def of(text: str) -> Overlay:
    return made(f'overlay = "xnn"\n{text}', "sizes.toml")


def text_of(send: str, rows: int = 256) -> str:
    """A product of 128x256 by 256x256: A comes in two slices of K, B in one slot. rows: how many of B are loaded."""
    return f"""\
overlay "sizes.toml"
buffer a ddr 128x256 blocked input
buffer b lpddr 256x256 blocked weight
buffer y ddr 128x256 blocked output

DDR {{
    load a[0:128, 0:128] -> MemA0
    load a[0:128, 128:256] -> MemA0
    store y <- MemC0
}}
LPDDR {{
    b[0:{rows}, 0:256] -> MemB0
}}
MemA0 {{
    load dim1=128 dim2=128
    load send dim1=128 dim2=128 acc_a=1 acc_b=2
    send acc_a=1 acc_b=2
}}
MemB0 {{
    load dim1={rows} dim2=256
    {send}
}}
MeshA {{ MemA0->MME0 size=2048 }}
MeshB {{ MemB0->MME0 size=2048 }}
MME0 {{ n128 k128 a_iter=1 b_iter=1 k_iter=2 acc_a=1 acc_b=2 }}
MemC0 {{
    recv recv_a=1 recv_b=2 k_iter=2
    store dim1=128 dim2=256
}}
"""


@pytest.fixture
def folder(tmp_path: Any) -> Any:
    (tmp_path / "sizes.toml").write_text('overlay = "xnn"\n' + TALL)
    return tmp_path


def packed(text: str, folder: Any) -> Program:
    source = parse(text, str(folder / "p.rsn"))
    assert isinstance(source, UnpackedProgram)
    return pack(source)


def given() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((128, 256), (256, 256)))
    return a, b, {"ddr": np.concatenate([block(a), np.zeros(128 * 256, np.float32)]), "lpddr": block(b).copy()}


@pytest.mark.parametrize("engine", ["executor", "dataflow"])
def test_a_slot_holds_two_slices_of_k(folder: Any, engine: str) -> None:
    program = packed(text_of("send acc_a=1 acc_b=2 acc_k=2"), folder)
    assert check(program) == []
    assert dry_run(program) == []
    a, b, banks = given()
    path = InstructionPath.of(program)
    if engine == "executor":
        ProcessNetwork(program.overlay, path, banks=banks, data=True).run()
    else:
        DataRun(path, banks=banks, where=program.where).run()
    np.testing.assert_allclose(unblock(banks["ddr"][128 * 256 :], 128, 256), a @ b, rtol=1e-5, atol=1e-4)


def test_more_slices_than_were_loaded_are_found(folder: Any) -> None:
    program = packed(text_of("send acc_a=1 acc_b=2 acc_k=2", rows=128), folder)
    assert any(x.code == "X03" and "stale" in x.message for x in check(program))


def test_one_slice_is_sent_without_acc_k(folder: Any) -> None:
    with pytest.raises(DeadlockError, match="MemB0->MeshB: 2 words sent, 4 received"):
        packed(text_of("send acc_a=1 acc_b=2"), folder)


def test_the_published_size_ignores_acc_k() -> None:
    uops: dict[str, list[Any]] = {
        "LPDDR": [f.Transfer(0, 16384, False, "MemB0")],
        "MemB0": [f.MemB(load=1, dim1=128, dim2=128), f.MemB(send=1, acc_a=1, acc_b=1, acc_k=2)],
        "MeshB": [f.MeshB(size=512)],
    }
    with pytest.raises(ProgramError, match="MemB0->MeshB: 1 of 1 words"):
        ProcessNetwork(XNN, uops).run()
    assert [*XNN.legal(XNN.by_unit["MemB0"], uops["MemB0"][1])] == []


def test_limits_of_a_tall_memory() -> None:
    overlay = of(TALL)
    unit = overlay.by_unit["MemB0"]
    assert [*overlay.legal(unit, f.MemB(load=1, dim1=256, dim2=512))] == []
    assert [*overlay.legal(unit, f.MemB(load=1, dim1=384, dim2=512))] == [
        "load 384x512 is no whole number of blocks of a 256x512 buffer"
    ]
    assert [*overlay.legal(unit, f.MemB(send=1, acc_a=1, acc_b=1, acc_k=3))] == ["acc_k=3 row tiles of a buffer with 2"]
    values = of("[memories.MemB2]\nrows = 896")
    assert [*values.legal(values.by_unit["MemB2"], f.MemB(send=1, acc_a=1, acc_b=1, acc_k=7))] == []
    assert [*XNN.legal(XNN.by_unit["MemB2"], f.MemB(send=1, acc_a=1, acc_b=1, acc_k=7))] == [
        "acc_k=7 row tiles of a buffer with 4"
    ]


def test_more_keys_of_a_head_in_one_slot() -> None:
    """MemB2 with seven row tiles of values."""
    overlay = of("[memories.MemB2]\nrows = 896")
    rng = np.random.default_rng(6)
    a, v = rng.standard_normal((128, 896)).astype(np.float32), rng.standard_normal((896, 64)).astype(np.float32)
    slices = [a[:, 128 * k : 128 * k + 128] for k in range(7)]
    ddr = np.concatenate([*map(block, slices), block(v), np.zeros(2 * 8192, np.float32)])
    at = 7 * 1024

    def blocks(peer: str, start: int, count: int, store: bool = False) -> f.Transfer:
        return f.Transfer(start, 8192 * count, store, peer)

    whole, send = {"load": 1, "dim1": 128, "dim2": 128}, {"send": 1, "acc_a": 1, "acc_b": 1}
    uops: dict[str, list[Any]] = {
        "DDR": [
            blocks("MemB2", at, 7),
            *(blocks("MemA2", 1024 * k, 2) for k in range(7)),
            blocks("MemC4", at + 512 * 7, 1, True),
        ],
        "MemA2": [f.MemA(**whole), *[f.MemA(**whole, **send)] * 6, f.MemA(**send)],
        "MemB2": [f.MemB(load=1, dim1=896, dim2=64), f.MemB(**send, acc_k=7)],
        "MeshA": [f.MeshA(size=512 * 7, a2_4=1)],
        "MeshB": [f.MeshB(size=512 * 7, b2_4=1)],
        "MME4": [f.Mme(a_iter=1, b_iter=1, k_iter=7, acc_a=1, acc_b=1, k128=1, n128=0)],
        "MemC4": [f.MemC(recv=1, k_iter=7, recv_a=1, recv_b=1), f.MemC(store=1, dim1=128, dim2=64)],
    }
    banks = {"ddr": ddr, "lpddr": np.zeros(0, np.float32)}
    ProcessNetwork(overlay, uops, banks=banks, data=True).run()
    np.testing.assert_allclose(unblock(ddr[-16384:-8192], 128, 64), a @ v, rtol=1e-4, atol=1e-4)


def test_an_output_tile_of_seven_column_tiles() -> None:
    """MemC with 896 columns: a norm over all of them, whose time grows with them."""
    overlay = of("[memories.MemC]\ncolumns = 896\n[memories.MemB]\ncolumns = 896\n[memories.MemB2]\ncolumns = 64")
    net = ProcessNetwork(overlay, {})
    unit = net.units["MemC0"]
    uop = f.MemC(store=1, dim1=128, dim2=896, layernorm=1, gelu=1)
    assert [*overlay.legal(overlay.by_unit["MemC0"], uop)] == []
    steps = {s.rate: s.amount for s in unit.kernel(uop)}  # type: ignore[union-attr]
    assert steps["norm_us"] == pytest.approx(128 * 896 / (256 * 512))
    assert steps["gelu_beat"] == 128 * 896 // 32
