"""`rsn run --raw`: images that we did not make, on memories as a board would see them.

The two images are put together word by word from contract sections 1 and 2 (`words`), so that they share nothing with
our encoder, assembler or scheduler; numpy in float64 says what must come out.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rsn.cli.main import main
from rsn.tests.host import words as w

Array = w.Array


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@dataclass(frozen=True)
class Case:
    """An image, its op lists by MME, the memories before the run, where the result lies in DDR (in elements), and what
    it must be."""

    packets: tuple[w.Packet, ...]
    ops: dict[str, list[int]]
    ddr: Array
    lpddr: Array
    output: int
    expected: Array

    def write(self, folder: Path) -> Path:
        (folder / "image.bin").write_bytes(w.image(self.packets))
        (folder / "ops.json").write_text(json.dumps(self.ops))
        self.ddr.astype("<f4").tofile(folder / "ddr.bin")
        self.lpddr.astype("<f4").tofile(folder / "lpddr.bin")
        return folder


# -- a GEMM with bias, residual and LayerNorm ------------------------------------------------------------------------


def gemm_packets(x: int, r: int, y: int, vectors: int, weights: int) -> tuple[w.Packet, ...]:
    """y = LayerNorm(x @ weights + bias + r * previous), 768x256 by 256x1024, as contract section 2 wires a GEMM: MMEs
    2i and 2i+1 have rows 256i.., the even ones columns 0..511, the odd ones 512..1023.

    Addresses in units of 64 bytes. Vectors: the 1024 previous-layer weights, then the 1024 of the bias.
    """
    block = w.BLOCK_UNITS
    rows = range(3)  # groups of 256, one for each MemA
    even, odd = ("A0>0", "A1>2", "A2>4"), ("A0>1", "A1>3", "A2>5")
    return (
        # Where the tiles go. The residual is another one for each MME, x the same for both MMEs of a row group.
        w.packet(w.MESH_A, [w.mesh_a(8, *even), w.mesh_a(8, *odd), w.mesh_a(2 * 8, *even, *odd)]),
        # Previous-layer weights, bias, and 2x8 tiles of weights, one tile at a time.
        w.packet(w.MESH_B, [w.mesh_b(1, "B0>0", "B0>2", "B0>4", "B1>1", "B1>3", "B1>5")], reuse=2 + 2 * 8),
        # MemA: 16 tiles of the residual, one load each; then x, 256x128 for each k. Load the next, send the current.
        w.packet(w.MEM_A, [w.mem_a(load=(128, 128))], mask=0b111),
        w.packet(w.MEM_A, [w.mem_a(load=(128, 128), send=(1, 1))], mask=0b111, reuse=15),
        w.packet(
            w.MEM_A,
            [w.mem_a(load=(256, 128), send=(1, 1)), w.mem_a(load=(256, 128), send=(2, 4)), w.mem_a(send=(2, 4))],
            mask=0b111,
        ),
        # MemB: two vectors of 16 groups of 32, each sent as one tile; then the weights, 128x512 for each k.
        w.packet(
            w.MEM_B,
            [
                w.mem_b(load=(16, 1), bias=True),
                w.mem_b(load=(16, 1), bias=True, send=(1, 1)),
                w.mem_b(load=(128, 512), send=(1, 1)),
                w.mem_b(load=(128, 512), send=(2, 4)),
                w.mem_b(send=(2, 4)),
            ],
            mask=0b011,
        ),
        # MemC: one round of the residual and two of products.
        w.packet(
            w.MEM_C,
            [w.mem_c(recv=(2, 4), rounds=3), w.mem_c(store=(256, 512), layernorm=True)],
            mask=0b111111,
        ),
        w.packet(
            w.LPDDR,
            [w.lpddr_load(f"B{j}", vectors + 32 * j, 512, bias=True, reuse_stride=64) for j in range(2)],
            reuse=2,
        ),
        w.packet(
            w.LPDDR,
            [w.lpddr_load(f"B{j}", weights + 8 * j * block, 8 * w.BLOCK, reuse_stride=16 * block) for j in range(2)],
            reuse=2,
        ),
        # The residual has 16 blocks in a row of tiles: 128 rows `a` of a group, of which half `j` goes to one MME.
        *(
            w.packet(
                w.DDR,
                [
                    w.ddr_load(f"A{i}", r + ((2 * i + a) * 16 + 8 * j) * block, 2 * w.BLOCK, reuse_stride=2 * block)
                    for i in rows
                ],
                reuse=4,
            )
            for j in range(2)
            for a in range(2)
        ),
        # x has 4 blocks in a row of tiles, two for each k.
        w.packet(
            w.DDR,
            [
                w.ddr_load(
                    f"A{i}", x + 8 * i * block, 2 * w.BLOCK, chunks=2, chunk_stride=4 * block, reuse_stride=2 * block
                )
                for i in rows
            ],
            reuse=2,
        ),
        w.packet(
            w.DDR,
            [
                w.ddr_store(
                    f"C{2 * i + j}", y + (32 * i + 8 * j) * block, 8 * w.BLOCK, chunks=2, chunk_stride=16 * block
                )
                for i in rows
                for j in range(2)
            ],
        ),
        *w.TERMINATORS,
    )


@cache
def gemm() -> Case:
    rng = np.random.default_rng(1)
    x, r = rng.standard_normal((768, 256), np.float32), rng.standard_normal((768, 1024), np.float32)
    weights = rng.standard_normal((256, 1024), np.float32) / 16
    previous, bias = 1 + rng.standard_normal(1024, np.float32) / 4, rng.standard_normal(1024, np.float32)
    ddr = np.concatenate([w.blocked(x), w.blocked(r), np.full(768 * 1024, 7, np.float32)])
    lpddr = np.concatenate([previous, bias, w.blocked(weights)])
    z = x.astype(np.float64) @ weights + bias + r.astype(np.float64) * previous
    z -= z.mean(axis=1, keepdims=True)
    op = w.mme(1, 1, 2, 2, 4, w.LOAD_PREVIOUS | w.BIAS | w.N128 | w.K128 | w.PREVIOUS)
    at_r, at_y = x.size, x.size + r.size
    return Case(
        gemm_packets(0, at_r // 16, at_y // 16, 0, 2048 // 16),
        {str(i): [op] for i in range(6)},
        ddr,
        lpddr,
        at_y,
        z / np.sqrt((z**2).mean(axis=1, keepdims=True) + 1e-6),
    )


# -- attention -------------------------------------------------------------------------------------------------------

HEADS, L = 2, 384


def attention_packets(q: int, k: int, v: int, out: int) -> tuple[w.Packet, ...]:
    """out = softmax(q @ k.T) @ v for each head, as contract section 2 wires attention: MME 0 and 1 (MemC0, MemC1) have
    rows 0..255, MME 2 and 3 (MemC2, MemC3) rows 256..383; of the keys the even ones have 0..127, the odd ones the other
    256. While the MMEs work on a head, probabilities of the one before go on to MME 4 (rows 0..255) and 5.

    Matrices are 384x128, head h in columns 64h..: a row of tiles has one block of each head, and what is said once for
    a window is repeated for the other head, one block further. Addresses in units of 64 bytes.
    """
    block = w.BLOCK_UNITS
    row = HEADS * block  # from one row of tiles to the next

    def load(to: str, matrix: int, first: int, tiles: int) -> w.Mop:
        """Row tiles of one head."""
        return w.ddr_load(to, matrix + first * row, w.BLOCK, chunks=tiles, chunk_stride=row, reuse_stride=block)

    def store(source: str, first: int, tiles: int) -> w.Mop:
        return w.ddr_store(source, out + first * row, w.BLOCK, chunks=tiles, chunk_stride=row, reuse_stride=block)

    return (
        # The even MMEs need a row tile of q once, the odd ones twice: for each of their column tiles.
        w.packet(
            w.MESH_A,
            [
                w.mesh_a(1, "A0>0", "A1>2"),
                w.mesh_a(2, "A0>1", "A1>3"),
                w.mesh_a(1, "A0>0"),
                w.mesh_a(2, "A0>1"),
            ],
            reuse=HEADS,
        ),
        # Probabilities: a row tile of three column tiles, of which the even MemC has one.
        w.packet(
            w.MESH_A,
            [
                w.mesh_a(1, "C0>4", "C2>5"),
                w.mesh_a(2, "C1>4", "C3>5"),
                w.mesh_a(1, "C0>4"),
                w.mesh_a(2, "C1>4"),
            ],
            reuse=HEADS,
        ),
        # Keys: all of them for both row tiles of MME 0 and 1, and for the one of MME 2 and 3. Then values likewise.
        w.packet(
            w.MESH_B,
            [
                w.mesh_b(1, "B0>0", "B0>2"),
                w.mesh_b(2, "B1>1", "B1>3"),
                w.mesh_b(1, "B0>0"),
                w.mesh_b(2, "B1>1"),
            ],
            reuse=HEADS,
        ),
        w.packet(w.MESH_B, [w.mesh_b(3, "B2>4", "B2>5"), w.mesh_b(3, "B2>4")], reuse=HEADS),
        # Every Mem: load the first head; load the second and send the first; send the second.
        w.packet(
            w.MEM_A,
            [w.mem_a(load=(256, 64)), w.mem_a(load=(256, 64), send=(2, 3)), w.mem_a(send=(2, 3))],
            mask=0b001,
        ),
        w.packet(
            w.MEM_A,
            [w.mem_a(load=(128, 64)), w.mem_a(load=(128, 64), send=(1, 3)), w.mem_a(send=(1, 3))],
            mask=0b010,
        ),
        *(
            w.packet(
                w.MEM_B,
                [
                    w.mem_b(load=(64, 128 * tiles), transpose=True),
                    w.mem_b(load=(64, 128 * tiles), transpose=True, send=(2, tiles)),
                    w.mem_b(send=(2, tiles)),
                ],
                mask=1 << unit,
            )
            for unit, tiles in ((0, 1), (1, 2))
        ),
        w.packet(
            w.MEM_B,
            [
                w.mem_b(load=(L, 64)),
                w.mem_b(load=(L, 64), send=(2, 1), send_k=3),
                w.mem_b(send=(2, 1), send_k=3),
            ],
            mask=0b100,
        ),
        *(
            w.packet(
                w.MEM_C,
                [
                    w.mem_c(recv=(rows, tiles), rounds=1, softmax=True),
                    w.mem_c(recv=(rows, tiles), rounds=1, softmax=True, send=(rows, 1, tiles)),
                    w.mem_c(send=(rows, 1, tiles)),
                ],
                mask=1 << unit,
            )
            for unit, rows, tiles in ((0, 2, 1), (1, 2, 2), (2, 1, 1), (3, 1, 2))
        ),
        *(
            w.packet(
                w.MEM_C,
                [
                    w.mem_c(recv=(rows, 1), rounds=1),
                    w.mem_c(recv=(rows, 1), rounds=1, store=(128 * rows, 64)),
                    w.mem_c(store=(128 * rows, 64)),
                ],
                mask=1 << unit,
            )
            for unit, rows in ((4, 2), (5, 1))
        ),
        w.packet(
            w.DDR,
            [load("A0", q, 0, 2), load("A1", q, 2, 1), load("B0", k, 0, 1), load("B1", k, 1, 2), load("B2", v, 0, 3)],
            reuse=HEADS,
        ),
        w.packet(w.DDR, [store("C4", 0, 2), store("C5", 2, 1)], reuse=HEADS),
        *w.TERMINATORS,
    )


@cache
def attention() -> Case:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((L, 64 * HEADS), np.float32) for _ in range(3))
    k /= 8  # where 1 / sqrt(64) belongs
    expected = np.empty((L, 64 * HEADS))
    for h in range(HEADS):
        head = slice(64 * h, 64 * h + 64)
        p = np.exp(q[:, head].astype(np.float64) @ k[:, head].T)
        expected[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, head]
    ddr = np.concatenate([w.blocked(q), w.blocked(k), w.blocked(v), np.full(q.size, 7, np.float32)])
    keys = [w.mme(1, 1, 1, rows, tiles) for rows, tiles in ((2, 1), (2, 2), (1, 1), (1, 2))]  # K = 64
    values = [w.mme(rows, 1, 3, 1, 1, w.K128 | w.SUM_OVER_K) for rows in (2, 1)]
    units = q.size // 16
    return Case(
        attention_packets(0, units, 2 * units, 3 * units),
        {str(i): [op] * HEADS for i, op in enumerate(keys + values)},
        ddr,
        np.empty(0, np.float32),
        3 * q.size,
        expected,
    )


# -- they run --------------------------------------------------------------------------------------------------------


def files(folder: Path, **changes: object) -> list[object]:
    """Arguments of a run; None leaves an option out."""
    options = {"mme": folder / "ops.json", "ddr": folder / "ddr.bin", "lpddr": folder / "lpddr.bin"} | changes
    return ["--raw", *(x for name, v in options.items() if v is not None for x in (f"--{name}", v))]


def run(folder: Path, *flags: str, **changes: object) -> Result:
    return rsn("run", folder / "image.bin", "--board", "sim", *files(folder, **changes), *flags)


def ran(case: Case, folder: Path) -> tuple[Array, dict[str, Any], str]:
    """DDR after the run, what was reported, and the warnings."""
    folder.mkdir(exist_ok=True)
    result = run(case.write(folder), "--json", **{"dump-ddr": folder / "after.bin"})
    assert result.exit_code == 0, result.stderr
    return np.fromfile(folder / "after.bin", "<f4"), json.loads(result.stdout), result.stderr


both = pytest.mark.parametrize("make", [gemm, attention])


@both
def test_the_result_is_that_of_numpy(make: Callable[[], Case], tmp_path: Path) -> None:
    case = make()
    after, _, warnings = ran(case, tmp_path)
    y = w.unblocked(after[case.output :], *case.expected.shape)
    assert np.abs(y - case.expected).max() < 1e-4 * np.abs(case.expected).max()
    assert (after[: case.output] == case.ddr[: case.output]).all()
    assert len(after) == len(case.ddr)
    assert warnings == ""


@both
def test_check_has_nothing_to_say(make: Callable[[], Case], tmp_path: Path) -> None:
    """Sends equal receives, nothing stale is read, no deadlock at the FIFOs' depth."""
    case = make()
    case.write(tmp_path)
    sizes = ["--ddr-bytes", case.ddr.nbytes, "--lpddr-bytes", case.lpddr.nbytes]
    result = rsn("check", "--raw", tmp_path / "image.bin", "--mme", tmp_path / "ops.json", *sizes, "--json")
    facts = json.loads(result.stdout)
    assert (facts["ok"], facts["findings"]) == (True, [])
    assert facts["smallest_fifo_depth"] is not None


@both
def test_timing_alone_needs_no_memories_and_gives_the_same(make: Callable[[], Case], tmp_path: Path) -> None:
    _, full, _ = ran(make(), tmp_path)
    timed = run(tmp_path, "--timing-only", "--json", ddr=None, lpddr=None)
    assert timed.exit_code == 0, timed.stderr
    assert json.loads(timed.stdout) == full
    assert full["bytes"]["ddr_write"] == 4 * make().expected.size
    assert full["latency_s"] > 0


@both
def test_bit_26_of_an_op_is_the_hosts(make: Callable[[], Case], tmp_path: Path) -> None:
    """The host sets it for each AIE tile, whatever the list says (contract 2)."""
    case = make()
    after, facts, _ = ran(case, tmp_path / "clear")
    marked = {unit: [op | w.HOLDS_WEIGHT for op in ops] for unit, ops in case.ops.items()}
    after_set, facts_set, warnings = ran(replace(case, ops=marked), tmp_path / "set")
    assert (after_set == after).all()
    assert (facts_set, warnings) == (facts, "")


def test_units_may_be_called_by_name(tmp_path: Path) -> None:
    case = attention()
    _, facts, _ = ran(case, tmp_path / "index")
    named = {f"MME{i}": ops for i, ops in case.ops.items()}
    assert ran(replace(case, ops=named), tmp_path / "name")[1] == facts


@both
def test_sloppy_images_run_with_warnings(make: Callable[[], Case], tmp_path: Path) -> None:
    case = make()
    after, _, _ = ran(case, tmp_path / "clean")
    packets = [list(p) for p in case.packets]
    dirty = next(p for p in packets if p[0] & 0xF == w.MEM_B)
    dirty[2] |= 0xFFFF_FFFE  # all of the second word but `bias` is padding
    idle = w.packet(w.DDR, [w.ddr_load("A0", 0xFFFF_FFFF, w.BLOCK)], reuse=0)  # touches nothing
    skipped = [[0], [0x3F0]]  # opcode 0; with a mask
    ops = {**case.ops, "5": [op | 1 << 30 for op in case.ops["5"]]}
    after_sloppy, _, warnings = ran(replace(case, packets=(*skipped, idle, *packets), ops=ops), tmp_path / "sloppy")
    assert (after_sloppy == after).all()
    places = [line.split(":")[0] if line.startswith("word") else line.split(": ")[1] for line in warnings.splitlines()]
    assert all(": warning F1" in line for line in warnings.splitlines())
    dirty_word = 2 + len(skipped) + len(idle) + sum(map(len, packets[: packets.index(dirty)])) + 2
    assert places == ["word 2", "word 3", f"word {dirty_word}", "MME5", "word 4"]


def test_memories_may_come_through_a_pipe(tmp_path: Path) -> None:
    case = attention()
    after, _, _ = ran(case, tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(case.ddr.astype("<f4").tobytes(),), daemon=True)
    writer.start()
    result = run(tmp_path, ddr=pipe, **{"dump-ddr": tmp_path / "again.bin"})
    writer.join(timeout=10)
    assert result.exit_code == 0, result.stderr
    assert (np.fromfile(tmp_path / "again.bin", "<f4") == after).all()


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return attention().write(tmp_path)


def refused(result: Result, *messages: str, code: int = 1) -> None:
    assert (result.exit_code, result.stdout) == (code, "")
    for message in messages:
        assert message in result.stderr


def test_memories_that_the_image_leaves(folder: Path) -> None:
    """The last block that is stored: row tile 2 of head 1, in the fourth matrix of 384x128."""
    with open(folder / "ddr.bin", "r+b") as f:
        f.truncate(attention().ddr.nbytes - 64)
    address = (3 * L * 128 + 2 * 2 * w.BLOCK + w.BLOCK) // 16
    places = f"DDR writes 8192 elements at ddr address {address:#x}", f"{folder / 'ddr.bin'}, up to {0x2FFF:#x}"
    refused(run(folder), *places)
    refused(run(folder, "--timing-only"), *places)
    assert run(folder, "--timing-only", ddr=None).exit_code == 0
    (folder / "ddr.bin").write_bytes(b"")
    refused(run(folder), "DDR reads 8192 elements at ddr address 0x0,", "ddr.bin, up to 0x0)")
    gemm().write(folder)
    (folder / "lpddr.bin").write_bytes(b"")
    refused(run(folder), "LPDDR reads 512 elements at lpddr address 0x0,", "lpddr.bin, up to 0x0)")


def test_memories_that_are_none(folder: Path) -> None:
    (folder / "odd.bin").write_bytes(bytes(4097))
    message = "odd.bin: 4097 bytes are not whole float32 elements of 4 bytes"
    refused(run(folder, ddr=folder / "odd.bin"), message)
    refused(run(folder, lpddr=folder / "odd.bin"), message)
    refused(run(folder, ddr=folder / "nowhere.bin"), "nowhere.bin: No such file")
    refused(run(folder, ddr=None), "a bare image needs --ddr")
    refused(run(folder, lpddr=None), "a bare image needs --lpddr")
    with open(folder / "huge.bin", "wb") as f:
        f.truncate((8 << 30) + 4)
    refused(run(folder, ddr=folder / "huge.bin"), "huge.bin: larger than 8192 MiB")


def test_a_dump_that_cannot_be_written_is_refused_before_the_run(folder: Path) -> None:
    (folder / "ops.json").write_text("{}")
    refused(run(folder), "MME")  # it would not end: no MME takes its tiles
    for target in (folder / "nowhere" / "after.bin", folder / "ddr.bin" / "after.bin"):
        result = run(folder, **{"dump-ddr": target})
        refused(result, f"error: {target}: ")
        assert result.stderr.count("\n") == 1
    refused(run(folder, **{"dump-ddr": folder}), "is a directory", code=2)


def test_a_run_that_fails_leaves_the_old_dump(folder: Path) -> None:
    (folder / "ops.json").write_text("{}")
    (folder / "after.bin").write_bytes(b"old")
    before = sorted(folder.iterdir())
    refused(run(folder, **{"dump-ddr": folder / "after.bin"}))
    assert (folder / "after.bin").read_bytes() == b"old"
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", ["ops.json: not a JSON object"]),
        ("{", ["ops.json: not a JSON object"]),
        ("\xff", ["ops.json: not a JSON object"]),
        ("[" * 100_000, ["ops.json: not a JSON object"]),
        ("[[1]]", ["ops.json: op lists: error F12: expected an object of indices or unit names"]),
        ("null", ["ops.json: op lists: error F12: expected an object"]),
        ('{"6": [1]}', ["ops.json: key 6: error M01", "no unit 6 with an op list", "0, 1, 2, 3, 4, 5, MME0"]),
        ('{"00": [1]}', ["key 00: error M01"]),
        ('{"-1": [1]}', ["key -1: error M01"]),
        ('{"": [1]}', ["key '': error M01"]),
        ('{"mme0": [1]}', ["key mme0: error M01"]),
        ('{"MemA0": []}', ["key MemA0: error M01"]),
        ('{"\\n": []}', ["key '\\n': error M01"]),
        ('{"0": [1], "MME0": [1]}', ["key MME0: error F12: MME0 has two op lists, under the keys 0 and MME0"]),
        ('{"MME3": [1], "3": [1]}', ["key 3: error F12: MME3 has two op lists, under the keys MME3 and 3"]),
        ('{"0": [1], "0": [1]}', ["ops.json: key '0' occurs twice"]),
        ('{"2": 1}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        ('{"2": ""}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        ('{"2": [1.0]}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        ('{"2": [true]}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        ('{"2": [4294967296]}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        ('{"2": [-1]}', ["the ops of MME2 (key 2) are not a list of 32-bit words"]),
        (json.dumps({"2": [0x0081_8111] * 511}), ["MME2: error M02: 511 ops; it holds 510"]),
    ],
)
def test_op_lists_that_are_none(folder: Path, text: str, messages: list[str]) -> None:
    (folder / "ops.json").write_text(text, encoding="latin-1")
    refused(run(folder), *messages)
    checked = rsn("check", "--raw", folder / "image.bin", "--mme", folder / "ops.json")
    assert checked.exit_code == 1
    for message in messages:
        assert message in checked.output


def test_op_lists_are_not_guessed(folder: Path) -> None:
    refused(run(folder, mme=None), "a bare image for xnn-base needs --mme")
    refused(run(folder, "--timing-only", mme=None), "a bare image for xnn-base needs --mme")
    refused(run(folder, mme=folder / "nowhere.json"), "nowhere.json: No such file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"", "word 0: error F01: an image has at least 2 words, this one 0"),
        (lambda data: data[:-1], "error F01: an image consists of words of 4 bytes"),
        (lambda data: data[:-4], "word 0: error F02: the image announces"),
        (lambda data: data + bytes(4), "word 0: error F02: the image announces"),
        (lambda data: data[:4] + bytes(4) + data[8:], "word 1: error F03: the image announces 0 packets"),
        (lambda data: data[:8] + b"\x08" + data[9:], "word 2: error F04: opcode 8 is not defined in overlay xnn-base"),
        (lambda data: b"\x7fELF" + bytes(65 << 20), "image.bin: larger than 64 MiB"),
    ],
    ids=["empty", "cut byte", "cut word", "one word more", "packets", "opcode", "large"],
)
def test_images_that_are_none(folder: Path, change: Callable[[bytes], bytes], message: str) -> None:
    (folder / "image.bin").write_bytes(change((folder / "image.bin").read_bytes()))
    refused(run(folder), message)
    refused(run(folder, "--timing-only", ddr=None, lpddr=None), message)
    assert message in rsn("check", "--raw", folder / "image.bin").output


def test_an_image_without_a_terminator_is_refused(folder: Path) -> None:
    (folder / "image.bin").write_bytes(w.image(attention().packets[:-1]))
    refused(run(folder), "MeshA: error P05: no terminator")


def test_a_tile_too_many_is_an_error(folder: Path) -> None:
    """What is left in a stream at the end, or blocks it, is named; nothing is written."""
    packets = list(attention().packets)
    at = next(i for i, p in enumerate(packets) if p[0] & 0xF == w.MESH_B and len(p) == 1 + 2 * 2)
    packets[at] = w.packet(w.MESH_B, [w.mesh_b(3, "B2>4", "B2>5"), w.mesh_b(3, "B2>4", "B2>5")], reuse=HEADS)
    (folder / "image.bin").write_bytes(w.image(packets))
    refused(run(folder, **{"dump-ddr": folder / "after.bin"}), "MeshB->MME5")
    assert not (folder / "after.bin").exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--weights", "x.npz"),
        ("--inputs", "x.npz"),
        ("--outputs", "y.npz"),
        ("--param", "len[0]=1"),
        ("--dump-ddr", "after.bin", "--timing-only"),
    ],
    ids=lambda o: o[0],
)
def test_options_that_raw_contradicts(folder: Path, options: tuple[str, ...]) -> None:
    refused(run(folder, *options), options[0], "not with --", code=2)


@pytest.mark.parametrize("option", ["mme", "ddr", "lpddr", "dump-ddr", "overlay"])
def test_options_of_raw_alone(folder: Path, option: str) -> None:
    program = folder / "image.bin"
    refused(rsn("run", program, f"--{option}", "xnn-base"), f"--{option}: only with --raw", code=2)
    if option in ("mme", "overlay"):
        refused(rsn("check", program, f"--{option}", "xnn-base"), f"--{option}: only with --raw", code=2)


def test_an_unknown_overlay_is_named(folder: Path) -> None:
    refused(run(folder, "--overlay", "xnm"), "no overlay 'xnm'")
