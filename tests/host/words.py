"""Images put together word by word from the contract (docs/contract.md), without a line of our own encoder.

What a board or another generator would make; whoever wants to know what an image looks like can read it here. A mOP is
a list of words, an image a list of packets, a packet a list of words. Bit positions are written down where they are
used; the section of the contract stands beside them. Nothing here may import `rsn`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Mop = list[int]
Packet = list[int]

DDR, LPDDR, MEM_A, MEM_B, MEM_C, MESH_A, MESH_B = 1, 2, 3, 4, 5, 6, 7
"""Opcodes (1.1)."""

TILE_BEATS = 512
"""Mesh beats of a 128x128 tile (2)."""
BLOCK = 128 * 64
"""Elements of an off-chip block (3)."""
BLOCK_UNITS = BLOCK * 4 // 64
"""What a block counts in addresses and strides, which go in steps of 64 bytes (1.4)."""


# -- image and packets (1, 1.1) --------------------------------------------------------------------------------------


def packet(opcode: int, mops: Sequence[Mop], *, mask: int = 0, reuse: int = 1) -> Packet:
    """mask: bit i selects Mem unit i; 0 for DDR, LPDDR and the meshes, of which there is one each."""
    header = opcode
    header |= mask << 4
    header |= len(mops) << 11  # window
    header |= reuse << 16
    return [header, *(word for mop in mops for word in mop)]


def terminator(opcode: int, mask: int = 0) -> Packet:
    return [opcode | mask << 4 | 1 << 10]


TERMINATORS = [
    terminator(DDR),
    terminator(LPDDR),
    terminator(MEM_A, 0b111),
    terminator(MEM_B, 0b111),
    terminator(MEM_C, 0b111111),
    terminator(MESH_B),
    terminator(MESH_A),
]
"""One for each of the 16 decoders, in the order in which the authors ship them (1.3)."""


def image(packets: Sequence[Packet]) -> bytes:
    """Number of packet words, number of packets, the packets; little-endian."""
    words = [word for p in packets for word in p]
    return np.array([len(words), len(packets), *words], "<u4").tobytes()


# -- payloads (1.2) --------------------------------------------------------------------------------------------------


def ddr_load(to: str, addr: int, size: int, *, chunks: int = 1, chunk_stride: int = 0, reuse_stride: int = 0) -> Mop:
    """to: A0..A2 or B0..B2. addr and strides in units of 64 bytes, size in elements of one chunk."""
    w2 = reuse_stride | chunks << 23 | 1 << 28
    w3 = chunk_stride
    if to[0] == "A":
        w2 |= 1 << 29 + int(to[1])
    else:
        w3 |= 1 << 23 + int(to[1])
    return [addr, size, w2, w3]


def ddr_store(
    source: str, addr: int, size: int, *, chunks: int = 1, chunk_stride: int = 0, reuse_stride: int = 0
) -> Mop:
    """source: C0..C5."""
    return [addr, size, reuse_stride | chunks << 23 | 1 << 27, chunk_stride | 1 << 26 + int(source[1])]


def lpddr_load(to: str, addr: int, size: int, *, reuse_stride: int = 0, bias: bool = False) -> Mop:
    """One chunk to B0 or B1."""
    return [addr, size, reuse_stride, 1 << 25 | 1 << 29 + int(to[1]) | bias << 31]


def mem_a(*, load: tuple[int, int] | None = None, send: tuple[int, int] | None = None) -> Mop:
    """load: rows, columns; send: row tiles, times each."""
    w0 = 0
    if load:
        w0 |= load[0] | load[1] << 9 | 1 << 23
    if send:
        w0 |= send[0] << 17 | send[1] << 20 | 1 << 24
    return [w0]


def mem_b(
    *,
    load: tuple[int, int] | None = None,
    transpose: bool = False,
    bias: bool = False,
    send: tuple[int, int] | None = None,
    send_k: int = 0,
) -> Mop:
    """load: rows, columns (after transposition), or with bias groups of 32 floats, column blocks; send: times, column
    tiles; send_k: row tiles, of MemB2."""
    w0 = 0
    if load:
        w0 |= load[0] | load[1] << 10 | 1 << 29
    if send:
        w0 |= send[0] << 20 | send[1] << 23 | send_k << 26 | 1 << 30
    return [w0 | transpose << 31, int(bias)]


def mem_c(
    *,
    recv: tuple[int, int] | None = None,
    rounds: int = 0,
    softmax: bool = False,
    store: tuple[int, int] | None = None,
    layernorm: bool = False,
    send: tuple[int, int, int] | None = None,
) -> Mop:
    """recv: row tiles, column tiles, as often as `rounds`; store: rows, columns; send: row tiles, times each, column
    tiles."""
    w0 = w1 = 0
    if recv:
        w0 |= recv[0] << 19 | recv[1] << 22
        w1 |= rounds | 1 << 23
    if store:
        w0 |= store[0] | store[1] << 9 | 1 << 31
    if send:
        w0 |= send[0] << 28
        w1 |= send[1] << 16 | send[2] << 19 | 1 << 22
    return [w0, w1 | softmax << 24 | layernorm << 26]


A_ROUTES = ("A0>0", "A0>1", "A1>2", "A1>3", "A2>4", "A2>5", "C0>4", "C1>4", "C2>5", "C3>5")
B_ROUTES = ("B0>0", "B0>2", "B0>4", "B1>1", "B1>3", "B1>5", "B2>4", "B2>5")


def mesh_a(tiles: int, *routes: str) -> Mop:
    """Move `tiles` tiles along each of the routes, which are named as in contract section 1.2: source > MME."""
    return [tiles * TILE_BEATS, sum(1 << A_ROUTES.index(r) for r in routes)]


def mesh_b(tiles: int, *routes: str) -> Mop:
    return [tiles * TILE_BEATS, sum(1 << B_ROUTES.index(r) for r in routes)]


# -- op of an MME (2) ------------------------------------------------------------------------------------------------

LOAD_PREVIOUS, BIAS, N128, K128, SUM_OVER_K, PREVIOUS, HOLDS_WEIGHT = (1 << bit for bit in range(20, 27))


def mme(a_iter: int, b_iter: int, k_iter: int, acc_a: int, acc_b: int, flags: int = 0) -> int:
    return a_iter | b_iter << 4 | k_iter << 8 | acc_a << 15 | acc_b << 17 | flags


# -- memory (3) ------------------------------------------------------------------------------------------------------


def _offsets(rows: int, cols: int) -> npt.NDArray[np.int64]:
    """Where element (r, c) of a matrix lies: its block, then its place in it."""
    r, c = np.arange(rows)[:, None], np.arange(cols)[None, :]
    block = (r // 128) * (cols // 64) + c // 64
    r, c = r % 128, c % 64
    return BLOCK * block + 2048 * (r // 32) + 1024 * (r % 2) + 64 * ((r % 32) // 2) + c


def blocked(matrix: Array) -> Array:
    """A matrix as it lies in memory."""
    out = np.empty(matrix.size, np.float32)
    out[_offsets(*matrix.shape)] = matrix
    return out


def unblocked(memory: Array, rows: int, cols: int) -> Array:
    return memory[_offsets(rows, cols)]
