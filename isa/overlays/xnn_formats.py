"""Wire formats of the XNN overlay, bit for bit (contract sections 1.2, 2 and 7; paper Table 2).

Fields that name a stream carry its peer: `to="MemA0"` on a DDR flag reads as `-> MemA0` in an `.rsn` text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..fields import Record, bits


class Ddr(Record, words=4):
    """Move feature maps between DDR and MemA, MemB or MemC, `chunks` pieces of `size` elements."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 32, "float32 elements of one chunk")
    reuse_stride: int = bits(2, 0, 23, "from one repetition of the packet to the next, in units of 64 bytes")
    chunks: int = bits(2, 23, 4, "chunks", default=1)
    store: int = bits(2, 27, 1, "write to DDR")
    load: int = bits(2, 28, 1, "read from DDR; wins over store")
    to_a0: int = bits(2, 29, 1, "load destination", to="MemA0")
    to_a1: int = bits(2, 30, 1, "load destination", to="MemA1")
    to_a2: int = bits(2, 31, 1, "load destination", to="MemA2")
    chunk_stride: int = bits(3, 0, 23, "from one chunk to the next, in units of 64 bytes")
    to_b0: int = bits(3, 23, 1, "load destination", to="MemB0")
    to_b1: int = bits(3, 24, 1, "load destination", to="MemB1")
    to_b2: int = bits(3, 25, 1, "load destination", to="MemB2")
    from_c0: int = bits(3, 26, 1, "store source", source="MemC0")
    from_c1: int = bits(3, 27, 1, "store source", source="MemC1")
    from_c2: int = bits(3, 28, 1, "store source", source="MemC2")
    from_c3: int = bits(3, 29, 1, "store source", source="MemC3")
    from_c4: int = bits(3, 30, 1, "store source", source="MemC4")
    from_c5: int = bits(3, 31, 1, "store source", source="MemC5")


class Lpddr(Record, words=4):
    """Load weights or vectors from LPDDR into MemB0 or MemB1."""

    addr: int = bits(0, 0, 32, "first element, in units of 64 bytes")
    size: int = bits(1, 0, 32, "float32 elements of one chunk")
    reuse_stride: int = bits(2, 0, 32, "from one repetition of the packet to the next, in units of 64 bytes")
    chunk_stride: int = bits(3, 0, 25, "from one chunk to the next, in units of 64 bytes")
    chunks: int = bits(3, 25, 4, "chunks", default=1)
    to_b0: int = bits(3, 29, 1, "destination", to="MemB0")
    to_b1: int = bits(3, 30, 1, "destination", to="MemB1")
    bias: int = bits(3, 31, 1, "a linear vector, 16 floats a stream word, port 0 only")


class MemA(Record, words=1):
    """LHS scratchpad: send tiles of one buffer while loading the other."""

    dim1: int = bits(0, 0, 9, "rows to load")
    dim2: int = bits(0, 9, 8, "columns to load")
    acc_a: int = bits(0, 17, 3, "row tiles to send")
    acc_b: int = bits(0, 20, 3, "times each tile is sent")
    load: int = bits(0, 23, 1, "fill the other buffer from DDR")
    send: int = bits(0, 24, 1, "send the current buffer to MeshA")


class MemB(Record, words=2):
    """RHS scratchpad: send tiles of one buffer while loading the other, transposing where asked."""

    dim1: int = bits(0, 0, 10, "rows to load (K); with bias: groups of 32 floats per column block")
    dim2: int = bits(0, 10, 10, "columns to load (N); with bias: column blocks")
    acc_a: int = bits(0, 20, 3, "times the tiles are sent")
    acc_b: int = bits(0, 23, 3, "column tiles to send")
    acc_k: int = bits(0, 26, 3, "row tiles to send (MemB2)")
    load: int = bits(0, 29, 1, "fill the other buffer")
    send: int = bits(0, 30, 1, "send the current buffer to MeshB")
    transpose: int = bits(0, 31, 1, "load blocks from DDR, transposed")
    bias: int = bits(1, 0, 1, "load a vector from LPDDR")


class MemC(Record, words=2):
    """Result scratchpad: receive and accumulate into one buffer while storing or sending the other."""

    dim1: int = bits(0, 0, 9, "rows to store")
    dim2: int = bits(0, 9, 10, "columns to store")
    recv_a: int = bits(0, 19, 3, "row tiles to receive")
    recv_b: int = bits(0, 22, 3, "column tiles to receive")
    recv_k: int = bits(0, 25, 3, "no effect")
    send_a: int = bits(0, 28, 3, "row tiles to send")
    store: int = bits(0, 31, 1, "store the other buffer to DDR")
    k_iter: int = bits(1, 0, 16, "rounds to receive; the first overwrites, the others add")
    send_b: int = bits(1, 16, 3, "times each row is sent")
    send_k: int = bits(1, 19, 3, "column tiles to send")
    send: int = bits(1, 22, 1, "send the other buffer to MeshA; suppresses store on MemC0-3")
    recv: int = bits(1, 23, 1, "receive from the MME")
    softmax: int = bits(1, 24, 1, "softmax after receiving")
    gelu: int = bits(1, 25, 1, "activation before storing")
    layernorm: int = bits(1, 26, 1, "normalise before storing")


class MeshA(Record, words=2):
    """Route tiles from MemA and MemC to the MMEs, all sources in lock step."""

    size: int = bits(0, 0, 29, "beats; a tile is 512")
    a0_0: int = bits(1, 0, 1, "route", source="MemA0", to="MME0")
    a0_1: int = bits(1, 1, 1, "route", source="MemA0", to="MME1")
    a1_2: int = bits(1, 2, 1, "route", source="MemA1", to="MME2")
    a1_3: int = bits(1, 3, 1, "route", source="MemA1", to="MME3")
    a2_4: int = bits(1, 4, 1, "route", source="MemA2", to="MME4")
    a2_5: int = bits(1, 5, 1, "route", source="MemA2", to="MME5")
    c0_4: int = bits(1, 6, 1, "route", source="MemC0", to="MME4")
    c1_4: int = bits(1, 7, 1, "route", source="MemC1", to="MME4")
    c2_5: int = bits(1, 8, 1, "route", source="MemC2", to="MME5")
    c3_5: int = bits(1, 9, 1, "route", source="MemC3", to="MME5")


class MeshB(Record, words=2):
    """Route tiles from MemB to the MMEs, all sources in lock step."""

    size: int = bits(0, 0, 32, "beats; a tile is 512")
    b0_0: int = bits(1, 0, 1, "route", source="MemB0", to="MME0")
    b0_2: int = bits(1, 1, 1, "route", source="MemB0", to="MME2")
    b0_4: int = bits(1, 2, 1, "route", source="MemB0", to="MME4")
    b1_1: int = bits(1, 3, 1, "route", source="MemB1", to="MME1")
    b1_3: int = bits(1, 4, 1, "route", source="MemB1", to="MME3")
    b1_5: int = bits(1, 5, 1, "route", source="MemB1", to="MME5")
    b2_4: int = bits(1, 6, 1, "route", source="MemB2", to="MME4")
    b2_5: int = bits(1, 7, 1, "route", source="MemB2", to="MME5")


class MemCConfig(Record, words=4):
    """Registers of a MemC (our opcode 8). The defaults are the power-on values, which give exactly the base machine."""

    softmax_cols: int = bits(0, 0, 10, "own leading valid columns; 1023 is all received", default=1023)
    norm_cols: int = bits(0, 10, 10, "own leading valid columns of the norm", default=512)
    activation: int = bits(0, 20, 3, "0 gelu tanh, 1 gelu erf, 2 relu, 3 silu, 4 identity")
    rms: int = bits(0, 23, 1, "norm without mean")
    max_sub: int = bits(0, 24, 1, "subtract the row maximum before exp")
    causal: int = bits(0, 25, 1, "column c is valid for row r if c <= r + offset")
    alone: int = bits(0, 26, 1, "no softmax exchange with the neighbour")
    offset: int = bits(1, 0, 32, "of the causal mask", signed=True)
    scale: float = bits(2, 0, 32, "score scale", default=1.0, real=True)
    eps: float = bits(3, 0, 32, "of the norm", default=1e-6, real=True)


class Mme(Record, words=1):
    """One op of a matrix multiplication engine (the same for its 64 AIE tiles but for `holds_weight`)."""

    a_iter: int = bits(0, 0, 4, "row tile groups")
    b_iter: int = bits(0, 4, 4, "column tile groups")
    k_iter: int = bits(0, 8, 7, "products per tile group")
    acc_a: int = bits(0, 15, 2, "row tiles in a group")
    acc_b: int = bits(0, 17, 3, "column tiles in a group")
    load_prev: int = bits(0, 20, 1, "read previous-layer weights: one B tile")
    bias: int = bits(0, 21, 1, "read a bias: one B tile; add it at k = 0")
    n128: int = bits(0, 22, 1, "128 columns, else 64")
    k128: int = bits(0, 23, 1, "K = 128, else 64")
    acc_k: int = bits(0, 24, 1, "accumulate over k here, not in MemC")
    prev: int = bits(0, 25, 1, "emit A tiles times the previous-layer weights first")
    holds_weight: int = bits(0, 26, 1, "this AIE holds the previous-layer weight; set per AIE tile by the host")


class Transfer(NamedTuple):
    """A DDR or LPDDR uOP: one chunk, from or to one peer."""

    addr: int
    size: int
    store: bool
    peer: str
    bias: bool = False


_LOADS = [(f.name, str(f.to)) for f in Ddr.FIELDS if f.to]
_STORES = [(f.name, str(f.source)) for f in Ddr.FIELDS if f.source]


def ddr_uops(mop: Ddr, iteration: int) -> Iterator[Transfer]:
    """One uOP per chunk (contract 1.3); load wins over store, the first destination or source wins (1.4)."""
    store = bool(mop.store and not mop.load)
    peer = ""
    if mop.load or mop.store:
        values = mop.__dict__
        for name, other in _STORES if store else _LOADS:
            if values[name]:
                peer = other
                break
    base = mop.addr + iteration * mop.reuse_stride
    for chunk in range(mop.chunks):
        yield Transfer((base + chunk * mop.chunk_stride) & 0xFFFF_FFFF, mop.size, store, peer)


def lpddr_uops(mop: Lpddr, iteration: int) -> Iterator[Transfer]:
    """One uOP per chunk; a vector goes to MemB0 if that is set, else to MemB1."""
    peer = "MemB0" if mop.to_b0 else "MemB1" if mop.to_b1 or mop.bias else ""
    base = mop.addr + iteration * mop.reuse_stride
    for chunk in range(mop.chunks):
        yield Transfer((base + chunk * mop.chunk_stride) & 0xFFFF_FFFF, mop.size, False, peer, bool(mop.bias))


def addresses(mop: Ddr | Lpddr, reuse: int) -> npt.NDArray[np.int64]:
    """The addresses that `ddr_uops` and `lpddr_uops` give: (reuse, chunks)."""
    iterations = np.arange(reuse, dtype=np.int64)[:, None] * mop.reuse_stride
    chunks = np.arange(mop.chunks, dtype=np.int64)[None] * mop.chunk_stride
    return np.asarray((mop.addr + iterations + chunks) & 0xFFFF_FFFF)
