"""The programs by which a session finds out what is booted: an empty one, and a small one with a known result.

On a platform whose programmable logic is loaded at boot, XRT reports what the xclbin file says, and nothing of what is
in the logic. The register that the empty program sets, and the numbers that the other one computes, come from there.
"""

from __future__ import annotations

import numpy as np

from ...isa.layout import BLOCK, UNIT, block, unblock
from ...isa.overlay import Overlay
from ...isa.overlays.xnn.formats import Ddr, Lpddr, MemA, MemB, MemC, MeshA, MeshB, Mme
from ...isa.packet import Packet, terminators
from ...isa.program import Array, Buffer, Program, Role
from ...isa.versal.tiles import BEATS, TILE

ROWS, DEPTH, COLUMNS = 3 * TILE, TILE, 2 * TILE
"""Y (384, 256) = X (384, 128) @ W (128, 256): a tile of rows for each MemA, one of columns for MemB0 and MemB1."""

TILES = 2 * BLOCK
"""Elements of a tile of 128 by 128: two blocks."""


def operands() -> tuple[Array, Array]:
    """Return X and W: whole numbers of at most 5 in size. No two rows or columns of either are alike, so that whatever
    changes places shows in Y."""
    x, w = (
        ((40503 * r + 9973 * c + 97 * r * c) ** 2 >> 13) % 11 - 5
        for r, c in (np.indices((ROWS, DEPTH)), np.indices((DEPTH, COLUMNS)))
    )
    return x.astype(np.float32), w.astype(np.float32)


def trial_program(overlay: Overlay) -> Program:
    """Return the small program, for `xnn-base` or a machine that extends it: one product, with numbers that float32
    holds exactly. X is in DDR, W in LPDDR, Y behind X. Every AIE tile, MemA, MemC, both Meshes, MemB0 and MemB1 take
    part."""
    at_y = ROWS * DEPTH
    loads = [
        Ddr(addr=i * TILES // UNIT, size=TILES, load=1, to_a0=i == 0, to_a1=i == 1, to_a2=i == 2) for i in range(3)
    ]
    # W is stored by blocks, so a MemB takes its two column blocks as one piece
    weights = [Lpddr(addr=i * TILES // UNIT, size=TILES, to_b0=i == 0, to_b1=i == 1) for i in range(2)]
    stores = [Ddr(addr=(at_y + i * TILES) // UNIT, size=TILES, store=1, **{f"from_c{i}": 1}) for i in range(6)]
    codes = {kind: overlay.format_of(kind).opcode for kind in overlay.terminators}
    a, b, c = (sum(1 << u.index for u in overlay.by_kind[kind]) for kind in ("MemA", "MemB", "MemC"))
    b01 = b & 0b11
    packets = [
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
    op = Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)
    buffers = (
        Buffer("x", "ddr", 0, (ROWS, DEPTH), role=Role.INPUT),
        Buffer("w", "lpddr", 0, (DEPTH, COLUMNS), role=Role.WEIGHT),
        Buffer("y", "ddr", at_y // UNIT, (ROWS, COLUMNS), role=Role.OUTPUT),
    )
    lists = {u.name: (op,) for u in overlay.by_kind["MME"]}
    return Program(overlay, (*packets, *terminators(overlay)), lists, buffers)


def trial_inputs() -> dict[str, Array]:
    """Return X and W as the program's buffers hold them, by name."""
    x, w = operands()
    return {"x": block(x), "w": block(w)}


def wrong(flat: Array) -> str:
    """Return what is wrong with the program's result, "" if nothing is. flat: the buffer Y, (ROWS * COLUMNS,)."""
    x, w = operands()
    found, expected = unblock(flat, ROWS, COLUMNS), x @ w
    bad = np.argwhere(found != expected)
    if not len(bad):
        return ""
    row, column = bad[0].tolist()
    return (
        f"{len(bad)} of {expected.size} numbers are wrong, the first in row {row}, column {column}: "
        f"{found[row, column]:g} instead of {expected[row, column]:g}"
    )
