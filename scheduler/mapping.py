"""Mapping types: how the two dependent products of attention share the machine, and a roofline estimate of each (paper
sections 2.2 and 4.3, Fig. 3, Table 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ..base.errors import UnsupportedError
from ..isa.layout import BLOCK_ROWS, padded
from ..isa.overlay import AttentionPipeline, Overlay
from ..isa.overlays import OVERLAYS
from ..isa.program import MAX_ROWS
from .graph import AttentionLayer, LayerGraph
from .memory import HEAD_COLS


class MappingType(Enum):
    """How the two products of attention, Q K^T and P V, share the MMEs. In Fig. 3 a head is a task, the products are
    its two layers."""

    A = "A"
    """Layer by layer: one product at a time, head after head. The scores of a head wait on chip for P V."""
    B = "B"
    """Task by task: one product at a time, first Q K^T of all heads, then P V. The scores go through DDR."""
    C = "C"
    """Task-parallel: as B, but with heads side by side on all MMEs. On this datapath it is the same program as B: only
    MME 0-3 reach MemC 0-3, which compute softmax, and only MME 4 and 5 reach V, so no product has all six MMEs."""
    D = "D"
    """Pipelined: Q K^T of a head runs while P V of the head before runs on other MMEs. The scores stay on chip."""
    E = "E"
    """Pipelined as D, in steps over parts of the keys, twice over all: first for the maxima and the sums of exp, then
    for the probabilities. It is not in the paper. Rows whose keys fit on chip take one pass, as with D. It also runs
    query heads that share keys, heads of up to 256 columns, windows, soft caps and masks that are inputs."""


@dataclass(frozen=True)
class PipelineLimits:
    """What an attention pipeline holds, in tiles of 128x128 elements. rows: row tiles of a slot of a left memory, and
    of results. keys: key tiles of a slot of a right memory. sent, stored: key tiles that the results of one row of the
    grid can send on, and store. values: row tiles of V in a slot of its memory."""

    rows: int
    keys: int
    sent: int
    stored: int
    values: int

    @staticmethod
    def of(overlay: Overlay, pipeline: AttentionPipeline) -> PipelineLimits:
        """The limits of an overlay's pipeline, from the smallest of its memories and its capabilities. Raises
        `ProgramError` if a unit of the pipeline lacks its memory, or `send`."""
        scores = pipeline.scores
        results = [unit for row in scores.results for unit in row]
        rows = min(overlay.memory_of(unit).rows for unit in (*scores.left, *results, *pipeline.results))
        keys = min(overlay.memory_of(unit).columns for unit in scores.right) // BLOCK_ROWS
        sent = min(int(overlay.capability_of(unit, "send").limits["columns"][1]) for unit in results)
        stored = min(overlay.memory_of(unit).columns for unit in results)
        return PipelineLimits(
            rows // BLOCK_ROWS,
            keys,
            scores.columns * min(keys, sent // BLOCK_ROWS),
            scores.columns * min(keys, stored // BLOCK_ROWS),
            overlay.memory_of(pipeline.values).rows // BLOCK_ROWS,
        )


@dataclass(frozen=True)
class AttentionShape:
    """Size of an attention: heads of all sequences (batch * heads), and the rows and columns (`cols`) of a head's Q, K
    and V, padding included. keys: rows of K and V of a sequence; 0 for as many as Q has. groups: heads of Q that share
    one of K and V."""

    heads: int
    rows: int
    cols: int = HEAD_COLS
    keys: int = 0
    groups: int = 1

    @staticmethod
    def of(network: LayerGraph, attention: AttentionLayer) -> AttentionShape:
        """The size of an attention of a network; every sequence counts as the longest, and a head as 64 columns."""
        rows, keys = (padded(max(network.rows_of(name)), BLOCK_ROWS) for name in (attention.q, attention.k))
        keys = 0 if keys == rows else keys
        return AttentionShape(network.batch * attention.heads, rows, HEAD_COLS, keys, attention.groups)


@dataclass(frozen=True)
class PeakRates:
    """Peak rates of a machine, for a roofline. read, write: seconds per byte from and to the memory of activations.
    first, second: seconds that one product unit takes for one tile product of Q K^T and of P V. first_units,
    second_units: product units of each. head_columns: columns of a tile product, in K or in N. once: number of keys
    whose scores fit on chip. slot: number of rows that go through the pipeline together."""

    read: float
    write: float
    first: float
    second: float
    first_units: int
    second_units: int
    head_columns: int
    once: int
    slot: int

    @staticmethod
    def of(overlay: Overlay) -> PeakRates:
        """The peak rates of an overlay with an attention pipeline. Raises `UnsupportedError` like `pipeline_of`,
        `ProgramError` if a unit of the pipeline lacks its memory or a capability."""
        pipeline = pipeline_of(overlay)
        scores, limits = pipeline.scores, PipelineLimits.of(overlay, pipeline)

        def seconds(unit: str, op: str) -> float:
            return overlay.seconds[str(overlay.capability_of(unit, op).rate)]

        return PeakRates(
            seconds(scores.activations, "load"),
            seconds(scores.activations, "store"),
            seconds(scores.products[0][0], "matmul_half_depth"),
            seconds(pipeline.products[0], "matmul_half_columns"),
            scores.rows * scores.columns,
            len(pipeline.products),
            overlay.head_columns,
            limits.sent * BLOCK_ROWS,
            scores.rows * limits.rows * BLOCK_ROWS,
        )

    @staticmethod
    def published(overlay: Overlay) -> PeakRates:
        """The peak rates of an overlay in the units that Table 3 appears to use.

        The paper does not state them; they are inferred from its numbers, which they reproduce to the last digit: one
        GB/s is 1000 * 2^20 bytes, one TFLOPS is 1024 GFLOPS, and both products run at the rate of K = 64 (6095.64
        GFLOPS on six MMEs, Table 6a). Raises `UnsupportedError` like `pipeline_of`.
        """
        ours = PeakRates.of(overlay)
        product = ours.first * 1024 / 1000
        return replace(
            ours, read=ours.read * 1e6 / 2**20, write=ours.write * 1e6 / 2**20, first=product, second=product
        )


@dataclass(frozen=True)
class Estimate:
    """Lower bounds on the time of an attention in seconds, one row of Table 3.

    inf_flops_s: off-chip accesses only (infinite compute). units: product units in use at the same time.
    mm1_s, mm2_s: Q K^T and P V without waiting for data. inf_bw_s: both products (infinite bandwidth). setup_s: part of
    inf_flops_s before the pipeline overlaps, type D only.
    """

    inf_flops_s: float
    units: int
    mm1_s: float
    mm2_s: float
    inf_bw_s: float
    setup_s: float = 0.0

    @property
    def final_s(self) -> float:
        """The larger of both bounds, in seconds."""
        return max(self.inf_flops_s, self.inf_bw_s)

    @property
    def steady_s(self) -> float:
        """The larger of both bounds without the set-up, in seconds."""
        return max(self.inf_flops_s - self.setup_s, self.inf_bw_s)


def estimate(kind: MappingType, shape: AttentionShape, roofline: PeakRates) -> Estimate:
    """Estimate an attention by a mapping type, as Table 3 does (paper sections 2.2 and 4.3), from peak rates
    (`roofline`); softmax takes no time.

    Type C counts all product units for each product, as the paper does, although this datapath cannot do that
    (`MappingType.C`). Type E counts all keys, also masked ones; more of them than fit on chip are loaded for each slot,
    K twice, and Q K^T is computed twice.
    """
    keys = shape.keys or shape.rows
    passes = 2 if kind is MappingType.E and keys > roofline.once else 1
    operand, key_operand = 4.0 * shape.rows * shape.cols, 4.0 * keys * shape.cols
    scores = 4.0 * shape.rows * keys if kind in (MappingType.B, MappingType.C) else 0.0
    # Q and K of the first head: an assumption, the paper names a set-up but not its parts
    setup = (operand + key_operand) * roofline.read if kind in (MappingType.D, MappingType.E) else 0.0
    key_operands = 2.0
    if kind is MappingType.E:
        key_operands = 3.0 * -(-shape.rows // roofline.slot) if passes > 1 else 2.0 / shape.groups
    loaded = operand + key_operands * key_operand + scores
    moved = shape.heads * (loaded * roofline.read + (operand + scores) * roofline.write)
    products = shape.heads * (shape.rows / BLOCK_ROWS) * (keys / BLOCK_ROWS) * (shape.cols / roofline.head_columns)
    all_units = roofline.first_units + roofline.second_units
    first, second = (roofline.first_units, roofline.second_units)
    if kind is MappingType.C:
        first = second = all_units
    pipelined = kind in (MappingType.D, MappingType.E)
    together = first + second if pipelined else max(first, second)
    mm1, mm2 = passes * products * roofline.first / first, products * roofline.second / second
    return Estimate(
        inf_flops_s=moved + setup,
        units=together,
        mm1_s=mm1,
        mm2_s=mm2,
        inf_bw_s=max(mm1, mm2) if pipelined else mm1 + mm2,
        setup_s=setup,
    )


def max_rows(overlay: Overlay) -> dict[MappingType, int]:
    """Largest number of keys of a sequence that each mapping type can run. The results can send fewer key tiles than
    they store. Raises `UnsupportedError` like `pipeline_of`."""
    pipeline = pipeline_of(overlay)
    limits = PipelineLimits.of(overlay, pipeline)
    sent, stored = (BLOCK_ROWS * tiles for tiles in (limits.sent, limits.stored))
    long = overlay.by_unit[pipeline.scores.results[0][0]].capability("long_softmax")
    return {
        MappingType.A: sent,
        MappingType.B: stored,
        MappingType.C: stored,
        MappingType.D: sent,
        MappingType.E: sent if long is None else MAX_ROWS,
    }


def pipeline_of(overlay: Overlay) -> AttentionPipeline:
    """The attention pipeline of an overlay. Raises `UnsupportedError` if its units form none."""
    found = None if overlay.patterns is None else overlay.patterns.attention
    if found is None:
        able = [o.name for o in OVERLAYS.values() if o.patterns is not None and o.patterns.attention is not None]
        raise UnsupportedError(
            "attention needs two rows and columns of product units, further product units that take their results, and "
            f"a memory for the values, in a pipeline that the units of overlay {overlay.name} do not form; "
            f"{', '.join(able)} can"
        )
    return found


def is_plain(attention: AttentionLayer) -> bool:
    """Whether all mapping types can run an attention, apart from its size: each query head has keys of its own, of no
    more columns than a half tile; it is masked by a length, by the causal order or by a constant bias, or not at all;
    its scores have no soft cap."""
    plain = attention.groups == 1 and attention.head_dim <= HEAD_COLS and attention.mask is None
    return plain and attention.window is None and attention.softcap is None and not attention.left


def mapping_of(network: LayerGraph, attention: AttentionLayer, overlay: Overlay) -> MappingType:
    """The mapping type of an attention for which a schedule names none: the result of `choose` if all types can run the
    attention (`is_plain`), else E. Raises `UnsupportedError` like `pipeline_of`."""
    return choose(AttentionShape.of(network, attention), overlay) if is_plain(attention) else MappingType.E


def choose(shape: AttentionShape, overlay: Overlay) -> MappingType:
    """Choose the mapping type with the lowest steady-state bound (`Estimate.steady_s`) among those of A, B, D and E
    that can run sequences this long; C is the same program as B on this datapath. Equal bounds: D before A before B
    before E. Sequences too long for every type give D, which then reports the limit. Raises `UnsupportedError` like
    `pipeline_of`."""
    roofline, longest = PeakRates.of(overlay), max_rows(overlay)
    fits = [kind for kind in MappingType if (shape.keys or shape.rows) <= longest[kind]] or [MappingType.D]
    order = (MappingType.D, MappingType.A, MappingType.B, MappingType.E)
    return min((kind for kind in order if kind in fits), key=lambda kind: estimate(kind, shape, roofline).steady_s)
