"""The programs by which a session finds out what is booted: an empty one, and a small one with a known result.

On a platform whose programmable logic is loaded at boot, XRT reports what the xclbin file says, and nothing of what is
in the logic. The register that the empty program sets, and the numbers that the other one computes, come from there.
"""

from __future__ import annotations

import numpy as np

from ...isa.fields import Record
from ...isa.lanes import ResultTarget, RowSource, TileSource, TileTarget
from ...isa.layout import BLOCK, UNIT, block, unblock
from ...isa.overlay import Overlay
from ...isa.overlays.xnn.formats import Ddr, Lpddr, MemA, MemB, MemC, MeshA, MeshB, Mme
from ...isa.overlays.xnn2.mesh import LaneMeshA, LaneMeshB
from ...isa.overlays.xnn2.mme import LaneMme
from ...isa.overlays.xnn2.off_chip import DDR_PEERS, LaneDdr, LaneLpddr
from ...isa.overlays.xnn2.operands import W
from ...isa.overlays.xnn2.results import C
from ...isa.overlays.xnn2.rows import XIn, XOut, XStore
from ...isa.overlays.xnn2.scratch import TIn, TOut
from ...isa.packet import Packet, terminators
from ...isa.program import Array, Buffer, Program, Role
from ...isa.versal.tiles import BEATS, TILE

DEPTH, COLUMNS = TILE, 2 * TILE
"""Y (rows, 256) = X (rows, 128) @ W (128, 256)."""

TILES = 2 * BLOCK
"""Elements of a tile of 128 by 128: two blocks."""


def operands(rows: int) -> tuple[Array, Array]:
    """Return X, (rows, 128), and W, (128, 256), float32: whole numbers from -5 to 5. No two rows, and no two columns,
    are equal: if the machine puts one in the place of another, Y differs."""
    x, w = (
        ((40503 * r + 9973 * c + 97 * r * c) ** 2 >> 13) % 11 - 5
        for r, c in (np.indices((rows, DEPTH)), np.indices((DEPTH, COLUMNS)))
    )
    return x.astype(np.float32), w.astype(np.float32)


def trial_program(overlay: Overlay) -> Program:
    """Return the small program for a machine of a profile: one product, with numbers that float32 holds exactly. X is
    in DDR, W in LPDDR, Y behind X. Every AIE tile takes part."""
    make, rows, op = (_by_lanes, 6, LaneMme(first=2, first_depth=1)) if overlay.lanes else (
        _by_blocks, 3, Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)
    )  # fmt: skip
    at_y = rows * TILE * DEPTH
    buffers = (
        Buffer("x", "ddr", 0, (rows * TILE, DEPTH), role=Role.INPUT),
        Buffer("w", "lpddr", 0, (DEPTH, COLUMNS), role=Role.WEIGHT),
        Buffer("y", "ddr", at_y // UNIT, (rows * TILE, COLUMNS), role=Role.OUTPUT),
    )
    lists = {u.name: (op,) for u in overlay.by_kind["MME"]}
    return Program(overlay, (*make(overlay, at_y), *terminators(overlay)), lists, buffers)


def _by_blocks(overlay: Overlay, at_y: int) -> list[Packet]:
    """Of `xnn-base`, or a machine that extends it: a tile of rows for each MemA, one of columns for MemB0 and MemB1.
    MemC and both Meshes take part, too. at_y: the first element of Y."""
    loads = [
        Ddr(addr=i * TILES // UNIT, size=TILES, load=1, to_a0=i == 0, to_a1=i == 1, to_a2=i == 2) for i in range(3)
    ]
    # W is stored by blocks, so a MemB takes its two column blocks as one piece
    weights = [Lpddr(addr=i * TILES // UNIT, size=TILES, to_b0=i == 0, to_b1=i == 1) for i in range(2)]
    stores = [Ddr(addr=(at_y + i * TILES) // UNIT, size=TILES, store=1, **{f"from_c{i}": 1}) for i in range(6)]
    codes = {kind: overlay.format_of(kind).opcode for kind in overlay.terminators}
    a, b, c = (sum(1 << u.index for u in overlay.by_kind[kind]) for kind in ("MemA", "MemB", "MemC"))
    b01 = b & 0b11
    return [
        Packet.of(codes["DDR"], loads),
        Packet.of(codes["LPDDR"], weights),
        Packet.of(codes["MemA"], [MemA(dim1=TILE, dim2=TILE, load=1), MemA(acc_a=1, acc_b=1, send=1)], mask=a),
        Packet.of(codes["MemB"], [MemB(dim1=TILE, dim2=TILE, load=1), MemB(acc_a=1, acc_b=1, send=1)], mask=b01),
        Packet.of(codes["MeshA"], [MeshA(size=BEATS, a0_0=1, a0_1=1, a1_2=1, a1_3=1, a2_4=1, a2_5=1)]),
        Packet.of(codes["MeshB"], [MeshB(size=BEATS, b0_0=1, b0_2=1, b0_4=1, b1_1=1, b1_3=1, b1_5=1)]),
        Packet.of(
            codes["MemC"],
            [MemC(recv_a=1, recv_b=1, k_iter=1, recv=1), MemC(dim1=TILE, dim2=TILE, store=1)],
            mask=c,
        ),
        Packet.of(codes["DDR"], stores),
    ]


def _by_lanes(overlay: Overlay, at_y: int) -> list[Packet]:
    """Of lanes: a tile of rows for each, which comes through T of the odd lane of its pair, and W through W0. X, C and
    both Meshes take part, too. at_y: the first element of Y."""
    lanes = range(len(overlay.by_kind["MME"]))
    second = next(u.memory.slots for u in overlay.by_kind["XIn"] if u.memory is not None) // 2  # bank of X
    arrive = [i for odd in (0, 1) for i in lanes if i % 2 == odd]  # T holds rows of the even lanes first
    tile = TILES // UNIT
    loads = [LaneDdr(addr=i * tile, size=TILES, peer=DDR_PEERS.index(f"TIn{i | 1}")) for i in arrive]
    stores = [
        LaneDdr(addr=at_y // UNIT + 2 * i * tile, size=2 * TILES, peer=DDR_PEERS.index(f"XStore{i}")) for i in lanes
    ]
    every, even, odd = (sum(1 << i for i in lanes[at::step]) for at, step in ((0, 1), (0, 2), (1, 2)))
    to_rows = TileTarget.ROWS_EVEN, TileTarget.ROWS_ODD
    left = [XIn(wait=2), XIn(stored=1)]  # no token stays in a stream
    work: list[tuple[str, int, list[Record]]] = [
        ("DDR", 0, [*loads]),
        ("LPDDR", 0, [LaneLpddr(addr=i * tile, size=TILES) for i in range(2)]),
        ("W", 1, [W(tiles=2, lanes=every)]),
        ("MeshA", even, [LaneMeshA(tiles=2)]),
        ("MeshA", odd, [LaneMeshA(tiles=2, source=1)]),
        ("MeshB", every, [LaneMeshB(tiles=2)]),
        ("TIn", odd, [*(TIn(slot=i, tiles=1, source=TileSource.DDR) for i in range(2)), TIn(wait=2)]),
        ("TOut", odd, [TOut(slot=i, tiles=1, to=to, wait=1) for i, to in enumerate(to_rows)]),
        ("XIn", every, [XIn(tiles=1, source=RowSource.SCRATCH), XIn(slot=second, tiles=2, store=1), *left]),
        ("XOut", every, [XOut(tiles=1, times=2, wait=1), XOut(wait=2)]),
        ("XStore", every, [XStore(slot=second, tiles=2, wait=1)]),
        ("C", every, [C(tiles=2, to=ResultTarget.ROWS)]),
        ("DDR", 0, [*stores]),
    ]
    return [Packet.of(overlay.format_of(kind).opcode, mops, mask=mask) for kind, mask, mops in work]


def trial_inputs(program: Program) -> dict[str, Array]:
    """Return X and W as the program's buffers hold them, flat float32 in memory order, by name."""
    x, w = operands(program.buffer("x").shape[0])
    return {"x": block(x), "w": block(w)}


def wrong(program: Program, flat: Array) -> str:
    """Return what is wrong with the program's result, "" if nothing is. flat: the buffer Y, (rows * 256,)."""
    rows = program.buffer("x").shape[0]
    x, w = operands(rows)
    found, expected = unblock(flat, rows, COLUMNS), x @ w
    bad = np.argwhere(found != expected)
    if not len(bad):
        return ""
    row, column = bad[0].tolist()
    return (
        f"{len(bad)} of {expected.size} numbers are wrong, the first in row {row}, column {column}: "
        f"{found[row, column]:g} instead of {expected[row, column]:g}"
    )
