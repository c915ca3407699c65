"""Mapping types: how the two dependent products of attention share the machine, and what a roofline says of each
(paper sections 2.2 and 4.3, Fig. 3, Table 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..isa.layout import BLOCK_ROWS, padded
from ..isa.overlay import Overlay
from .graph import Attention, LayerGraph
from .memory import HEAD_COLS

TILE_FLOPS = 2 * BLOCK_ROWS * BLOCK_ROWS * HEAD_COLS
"""Operations of a product of tiles that is 64 wide in K (Q K^T) or in N (P V)."""
AIE_OF_MME = 64
AIE_TILES = 400
"""Of the device (paper section 5)."""


class MappingType(Enum):
    """A head is a task of Fig. 3, Q K^T and P V are its two layers."""

    A = "A"
    """Layer by layer. One product at a time, head after head: a head's scores stay on chip, and wait there for P V."""
    B = "B"
    """Task by task. One product at a time, first Q K^T of all heads: the scores go through DDR."""
    C = "C"
    """Task-parallel. As B, but with heads side by side on all MMEs. On this datapath the same program as B: softmax is
    in MemC 0-3, which MME 0-3 alone reach, and V is with MME 4 and 5 alone, so a product never has all six."""
    D = "D"
    """Pipelined. Q K^T of a head while P V of the head before runs on other MMEs: the scores stay on chip."""


@dataclass(frozen=True)
class Shape:
    """Attention of `heads` heads in all (batch * heads of a sequence): rows x cols operands, padding included."""

    heads: int
    rows: int
    cols: int = HEAD_COLS

    @staticmethod
    def of(network: LayerGraph, attention: Attention) -> Shape:
        return Shape(network.batch * attention.heads, padded(max(network.rows), BLOCK_ROWS))


@dataclass(frozen=True)
class Roofline:
    """Peak rates. read, write: seconds a byte takes from and to DDR; first, second: seconds one MME takes for a
    128x128 tile times a tile, of the first and of the second product."""

    read: float
    write: float
    first: float
    second: float

    @staticmethod
    def of(overlay: Overlay) -> Roofline:
        seconds = overlay.seconds
        return Roofline(
            seconds["ddr_read_gbs"],
            seconds["ddr_write_gbs"],
            seconds["mme_k64_us"],
            seconds["mme_n64_us"],
        )

    @staticmethod
    def published(overlay: Overlay) -> Roofline:
        """The same rates as Table 3 seems to reckon with them. It does not say; this was told from its numbers, which
        then come out to the last digit: a GB/s is 1000 * 2^20 bytes, a TFLOPS is 1024 GFLOPS, and both products run at
        the rate of K = 64 (6095.64 GFLOPS on six MMEs, Table 6a)."""
        ours = Roofline.of(overlay)
        product = ours.first * 1024 / 1000
        return Roofline(ours.read * 1e6 / 2**20, ours.write * 1e6 / 2**20, product, product)


@dataclass(frozen=True)
class Estimate:
    """A row of Table 3. inf_flops_s: off-chip time alone; aie_used: share of the device at most; mm1_s, mm2_s: the
    products without waiting for data; inf_bw_s: both; final_s: the larger bound. setup_s: what of inf_flops_s is spent
    before the pipeline has two things to do at a time."""

    inf_flops_s: float
    aie_used: float
    mm1_s: float
    mm2_s: float
    inf_bw_s: float
    setup_s: float = 0.0

    @property
    def final_s(self) -> float:
        return max(self.inf_flops_s, self.inf_bw_s)

    @property
    def steady_s(self) -> float:
        return max(self.inf_flops_s - self.setup_s, self.inf_bw_s)


def estimate(kind: MappingType, shape: Shape, roofline: Roofline) -> Estimate:
    """Bounds of an attention, softmax ignored. Type C is reckoned as the paper does, with six MMEs for each product,
    which this datapath does not have (`MappingType.C`)."""
    operand = 4.0 * shape.rows * shape.cols
    scores = 4.0 * shape.rows * shape.rows if kind in (MappingType.B, MappingType.C) else 0.0
    # Q and K of the first head; the paper speaks of a set-up without saying what is in it
    setup = 2 * operand * roofline.read if kind is MappingType.D else 0.0
    moved = shape.heads * ((3 * operand + scores) * roofline.read + (operand + scores) * roofline.write)
    products = shape.heads * (shape.rows / BLOCK_ROWS) ** 2 * (shape.cols / HEAD_COLS)
    first, second = (6, 6) if kind is MappingType.C else (4, 2)
    together = first + second if kind is MappingType.D else max(first, second)
    mm1, mm2 = products * roofline.first / first, products * roofline.second / second
    return Estimate(
        inf_flops_s=moved + setup,
        aie_used=together * AIE_OF_MME / AIE_TILES,
        mm1_s=mm1,
        mm2_s=mm2,
        inf_bw_s=max(mm1, mm2) if kind is MappingType.D else mm1 + mm2,
        setup_s=setup,
    )


MAX_ROWS = {MappingType.A: 768, MappingType.B: 1024, MappingType.C: 1024, MappingType.D: 768}
"""Rows of a sequence. A MemC sends three key tiles at most, but stores four."""


def choose(shape: Shape, overlay: Overlay) -> MappingType:
    """The type that can run it with the lowest bound in the steady state, the pipeline among equals."""
    roofline = Roofline.of(overlay)
    fits = [kind for kind in MappingType if shape.rows <= MAX_ROWS[kind]] or [MappingType.D]
    programs = [kind for kind in (MappingType.D, MappingType.A, MappingType.B) if kind in fits]
    return min(programs, key=lambda kind: estimate(kind, shape, roofline).steady_s)
