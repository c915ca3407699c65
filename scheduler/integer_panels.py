"""Lowering for an overlay that computes in integers (`xnn8`): panel by panel, whose rows stay on chip.

A panel is up to 512 rows of each engine, of whole sequences. All weights pass once for a panel. X holds one activation,
the sum of residuals; T holds what attention reads and makes, and hidden columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..isa.layout import ALIGNED, UNIT, padded
from ..isa.overlay import Overlay
from ..isa.overlays.xnn8.emission import (
    Destination,
    HeadsRound,
    IntegerEmitter,
    PanelNorm,
    PlacedSequence,
    StoredConstants,
    StoredWeights,
)
from ..isa.overlays.xnn8.formats import (
    ENGINES,
    LANE_ROWS,
    LANES,
    PAIRS,
    ROW_STEP,
    T_BLOCKS,
    X_BLOCKS,
    AddedResidual,
    ChunkSource,
)
from ..isa.overlays.xnn8.functions import TABLES
from ..isa.overlays.xnn8.lanes import HEADS, SEND
from ..isa.overlays.xnn8.numbers import BLOCK, BlockNumbers, NormConstants
from ..isa.overlays.xnn8.stored import PackedConstants, columns_of, constant_words, weight_words
from ..isa.program import Buffer, Layout, ProgramSegment, Role, UnpackedProgram
from .chain import parameters_of
from .dram import Lowered, PackedWeights
from .graph import AttentionLayer, Gemm, Layer, LayerGraph
from .groups import kind_of
from .integers import IntegerNetwork, SentRows, is_view
from .memory import check_room

Emit = Callable[[], None]
Make = Callable[[], npt.NDArray[np.float32]]


class PlacedProduct(NamedTuple):
    """A block of up to 512 columns of a product: its weights, and where the constants of its results begin."""

    weights: StoredWeights
    constants: int


@dataclass
class TBlocks:
    """Which activation each block of T holds. held: its name, by the number of the block; None for a free one."""

    held: list[str | None] = field(default_factory=lambda: [None] * T_BLOCKS)

    def place(self, layer: Layer, blocks: int) -> int:
        """Return the number of the first of `blocks` free blocks side by side, which then hold the result of a layer.
        Raises `UnsupportedError`, naming the layer, where there is no room."""
        for first in range(T_BLOCKS - blocks + 1):
            if not any(self.held[first : first + blocks]):
                self.held[first : first + blocks] = [layer.y] * blocks
                return first
        free = self.held.count(None)
        raise UnsupportedError(
            f"{layer.place}: its result takes {blocks} blocks of 64 columns; {free} of {T_BLOCKS} of T are free"
        )

    def first(self, name: str) -> int:
        """Return the number of the first block of an activation. Raises `ValueError` for one that T does not hold."""
        return self.held.index(name)

    def free(self, name: str) -> None:
        """Give back the blocks of an activation; of one that T does not hold there are none."""
        self.held = [None if held == name else held for held in self.held]


class IntegerPanels:
    """A network in integers, as steps that each panel takes. Raises `UnsupportedError`, naming the layer, for what the
    overlay or this lowering does not compute."""

    def __init__(self, network: LayerGraph, overlay: Overlay) -> None:
        self.of = IntegerNetwork.of(network, {})
        self.net, self.overlay = network, overlay
        self.emitter = IntegerEmitter(overlay)
        self.buffers: list[Buffer] = []
        self._made: dict[str, Make] = {}
        self._at = dict.fromkeys(overlay.banks, 0)
        self._check()
        self.sequences, self.lanes, self.rows = placement(network.batch, network.seq, overlay.seconds)
        self._x: str | None = None
        """The activation in X, without its norm."""
        self._walked: SentRows | None = None
        """What X8 holds, and whose norm Rows has."""
        self._t = TBlocks()
        self._left: dict[str, int] = {}
        self._queries: dict[str, Gemm] = {}
        """Queries that are computed just before their attention: their tokens then stand for those of its keys, too."""

    def _check(self) -> None:
        net = self.net
        if net.lengths or net.seqs:
            raise UnsupportedError("sequences of different lengths; they are not compiled for xnn8 yet")
        if net.seq > LANES * LANE_ROWS:
            raise UnsupportedError(f"sequences of {net.seq} rows; an engine of xnn8 has {LANES * LANE_ROWS}")
        for layer in net.layers:
            facts: tuple[tuple[str, bool], ...]
            if isinstance(layer, AttentionLayer):
                facts = (
                    ("a window", layer.window is not None),
                    ("padding before a sequence", layer.left),
                    ("queries that share keys", layer.groups > 1),
                    (f"heads of {layer.head_dim} columns", layer.head_dim > BLOCK),
                )
            else:
                facts = (
                    ("a gate", layer.gated),
                    ("a norm or a rotation of heads", layer.in_heads),
                    ("a sum without a product", not layer.multiplies and not is_view(layer)),
                )
            for what, is_there in facts:
                if is_there:
                    raise UnsupportedError(f"{layer.place}: {what}; that is not compiled for xnn8 yet")

    # -- memory

    def _place(self, bank: str, buffer: Buffer, make: Make | None = None) -> int:
        """Place a buffer behind the others of its bank. Returns its address."""
        at = self._at[bank]
        self._at[bank] = padded(at + -(-buffer.size // UNIT), ALIGNED)
        self.buffers.append(Buffer(**{**vars(buffer), "offset": at}))
        if make is not None:
            self._made[buffer.name] = make
        return at

    def _weight(self, name: str, bank: str, words: int, make: Make) -> int:
        return self._place(bank, Buffer(name, bank, 0, (words,), Layout.LINEAR, Role.WEIGHT), make)

    def _rows(self, name: str, role: Role) -> list[int]:
        """Place an activation. Returns the address of each sequence."""
        columns = self.of.sent[name].columns
        pitch, stored = self.lanes * self.rows, padded(columns, BLOCK)
        net = self.net
        shape, view = (net.batch * pitch, stored), (net.batch, net.seq, columns)
        at = self._place("ddr", Buffer(name, "ddr", 0, shape, Layout.INTEGERS, role, view))
        item = pitch * stored // BLOCK * (BLOCK + 1) // 2 // UNIT
        return [at + i * item for i in range(net.batch)]

    def _vectors(self, name: str, blocks: Sequence[Sequence[PackedConstants]]) -> StoredConstants:
        at = self._weight(name, "lpddr", 80 * len(blocks) * len(blocks[0]), partial(constant_words, blocks))
        return StoredConstants(at, len(blocks[0]))

    # -- steps

    def steps(self) -> Iterator[tuple[Layer, Emit]]:
        """Yield what each panel does, in order, with the layer that it is for. Raises `UnsupportedError`, naming the
        layer, for activations that X or T have no room for."""
        net = self.net
        for layer in net.layers:
            for name in self._reads(layer):
                self._left[name] = self._left.get(name, 0) + 1
        asks = {x.q for x in net.layers if isinstance(x, AttentionLayer)}
        for layer in net.layers:
            if isinstance(layer, AttentionLayer):
                if layer.q in self._queries:
                    yield from self._product(self._queries.pop(layer.q))
                yield layer, self._attention(layer)
            elif layer.y in asks:
                self._queries[layer.y] = layer
                continue
            elif not is_view(layer):
                yield from self._product(layer)
            yield from ((layer, store) for store in self._stores())

    def _reads(self, layer: Layer) -> list[str]:
        """What a layer reads, by the names of activations as they are kept."""
        if isinstance(layer, AttentionLayer):
            return [layer.q, layer.k, layer.v]
        if is_view(layer):
            return []
        names = [layer.x] + ([layer.residual] if layer.residual is not None else [])
        return [self.of.sent[name].raw if name in self.of.sent else name for name in names]

    def _read(self, layer: Layer) -> None:
        """Count the reads of a layer as done, and give back blocks of T that nothing else reads."""
        for name in self._reads(layer):
            self._left[name] -= 1
            if not self._left[name]:
                self._t.free(name)

    def _bring(self, layer: Layer, raw: str) -> Iterator[tuple[Layer, Emit]]:
        """Let X hold an activation."""
        if self._x == raw:
            return
        if raw not in self.net.inputs or (self._x is not None and self._left.get(self._x)):
            raise UnsupportedError(
                f"{layer.place}: it reads {raw} while X holds {self._x or 'nothing'}; X of xnn8 holds one activation"
            )
        blocks = self._blocks_of_x(layer, raw)
        addresses, gains = self._rows(raw, Role.INPUT), self._gains(raw)
        at = (
            None
            if gains is None
            else self._vectors(f"{raw}.gains", [[PackedConstants(g, g)] for g in columns_of(gains)])
        )
        yield layer, partial(self.emitter.load, addresses, blocks, at)
        self._x, self._walked = raw, None

    def _blocks_of_x(self, layer: Layer, raw: str) -> int:
        blocks = -(-self.of.sent[raw].columns // BLOCK)
        if blocks > X_BLOCKS:
            raise UnsupportedError(f"{layer.place}: rows of {blocks * BLOCK} columns; X of xnn8 has {X_BLOCKS * BLOCK}")
        return blocks

    def _gains(self, raw: str) -> BlockNumbers | None:
        """The gains by which rows of an activation in X are sent; None if they are not."""
        readers = {x.x for x in self.net.layers if isinstance(x, Gemm) and x.multiplies and x.x in self.of.sent}
        gains = [self.of.sent[name].gains for name in readers if self.of.sent[name].raw == raw]
        for other in gains[1:]:
            if not all(np.array_equal(a, b) for a, b in zip(gains[0], other, strict=True)):
                raise UnsupportedError(f"{raw} is sent with two gains; X of xnn8 keeps one")
        return gains[0] if gains else None

    def _norm(self, sent: SentRows) -> PanelNorm | None:
        if sent.norm is None:
            return None
        return PanelNorm(NormConstants.of(sent.columns, sent.norm.eps), sent.norm.rms)

    def _walk(self, layer: Layer, name: str) -> Iterator[tuple[Layer, Emit]]:
        """Let X8 hold the rows of an activation in X, behind its norm."""
        sent = self.of.sent[name]
        yield from self._bring(layer, sent.raw)
        if self._walked is sent:
            return
        yield layer, partial(self.emitter.walk, self._blocks_of_x(layer, sent.raw), self._norm(sent))
        self._walked = sent

    def _product(self, layer: Gemm) -> Iterator[tuple[Layer, Emit]]:
        sent = self.of.sent.get(layer.x)
        walks = sent is not None and self._walked is not sent
        if sent is not None:
            yield from self._walk(layer, layer.x)
        residual, affine = AddedResidual.NONE, None
        if layer.residual is not None:
            added = self.of.sent[layer.residual]
            residual = AddedResidual.RAW if added.norm is None else AddedResidual.NORMALISED
            if sent is None and residual is AddedResidual.NORMALISED and self._walked is not added:
                yield from self._walk(layer, layer.residual)
            yield from self._bring(layer, added.raw)
            if residual is AddedResidual.NORMALISED:
                if self._walked is None or self._walked.norm is not added.norm:
                    raise UnsupportedError(f"{layer.place}: a residual with a norm that its rows are not sent with")
                affine = added.affine
        source = ChunkSource.X8 if sent is not None else ChunkSource.T
        slot, chunks = (
            (0 if sent is not None else self._t.first(layer.x)),
            len(self.of.products[layer.y].weight) // BLOCK,
        )
        self._read(layer)
        to, gains = self._destination(layer, residual)
        blocks = self._placed(layer, affine, gains)
        yield layer, partial(self._emit, source, slot, chunks, blocks, to, walks)

    def _destination(self, layer: Gemm, residual: AddedResidual) -> tuple[Destination, BlockNumbers | None]:
        function = 0 if layer.activation is None else 1 + [*TABLES].index(layer.activation.value)
        if layer.y in self.of.columns:
            keys = {n for x in self.net.layers if isinstance(x, AttentionLayer) for n in (x.k, x.v)}
            slot = self._t.place(layer, len(self.of.columns[layer.y].places) // BLOCK)
            return Destination(slot, True, HEADS if layer.y in keys else SEND, residual, function), None
        if self._x is not None and self._left.get(self._x):
            raise UnsupportedError(f"{layer.place}: {self._x} is read later; X of xnn8 holds one activation")
        self._blocks_of_x(layer, layer.y)
        self._x, self._walked = layer.y, None
        gains = self._gains(layer.y)
        return Destination(0, residual=residual, function=function, gains=gains is not None), gains

    def _placed(
        self, layer: Gemm, affine: tuple[BlockNumbers, BlockNumbers] | None, gains: BlockNumbers | None
    ) -> list[PlacedProduct]:
        """The product in blocks of 512 columns, with weights and constants in memory."""
        product = self.of.products[layer.y]
        pairs = [(product.columns, product.bias)] + ([affine] if affine else []) + ([(gains, gains)] if gains else [])
        vectors = [[columns_of(vector) for vector in pair] for pair in pairs]
        shifts = product.shifts[:, 0].tolist()
        out = []
        for at in range(0, len(shifts), PAIRS):
            columns = min(PAIRS, len(shifts) - at)
            # LPDDR also has the constants, DDR the rows
            of_ddr = columns * 3 // PAIRS
            weight = product.weight[:, BLOCK * at : BLOCK * (at + columns)]
            name, words = f"{layer.y}.{at // PAIRS}", len(weight) * BLOCK // 4

            def part(
                which: int, weight: npt.NDArray[np.int8] = weight, of_ddr: int = of_ddr
            ) -> npt.NDArray[np.float32]:
                return weight_words(weight, of_ddr)[which]

            lpddr = self._weight(f"{name}.lpddr", "lpddr", words * (columns - of_ddr), partial(part, 0))
            ddr = self._weight(f"{name}.ddr", "ddr", words * of_ddr, partial(part, 1)) if of_ddr else 0
            blocks = [
                [PackedConstants(a[i], b[i], shifts[i] * (kind == 0)) for kind, (a, b) in enumerate(vectors)]
                for i in range(at, at + columns)
            ]
            constants = self._vectors(f"{name}.constants", blocks)
            out.append(
                PlacedProduct(StoredWeights(lpddr, ddr, of_ddr, tuple(shifts[at : at + columns])), constants.addr)
            )
        return out

    def _emit(
        self, source: ChunkSource, slot: int, chunks: int, blocks: Sequence[PlacedProduct], to: Destination, walks: bool
    ) -> None:
        for number, block in enumerate(blocks):
            part = Destination(to.slot + PAIRS * number, to.in_t, to.reader, to.residual, to.function, to.gains)
            each = walks and not number
            self.emitter.product(source, slot, chunks, block.weights, block.constants, part, each=each)

    def _attention(self, layer: AttentionLayer) -> Emit:
        columns = self.of.columns[layer.q]
        of_round = PAIRS * columns.pitch // BLOCK
        queries, keys, values = (self._t.first(name) for name in (layer.q, layer.k, layer.v))
        results = self._t.place(layer, len(self.of.columns[layer.y].places) // BLOCK)
        self._read(layer)
        rounds = []
        for number, head in enumerate(range(0, layer.heads, PAIRS)):
            q, k, v, y = (x + number * of_round for x in (queries, keys, values, results))
            count, seq = min(PAIRS, layer.heads - head), self.net.seq
            rounds.append(HeadsRound(q, k, v, y, count, layer.head_dim, seq, seq, layer.masked, layer.causal))

        def emit() -> None:
            for number, heads in enumerate(rounds):
                self.emitter.attention(heads, last=number == len(rounds) - 1)

        return emit

    def _stores(self) -> Iterator[Emit]:
        """Store the activation in X if it is a result of the network."""
        for name in (out.name for out in self.net.outputs):
            sent = self.of.sent.get(name)
            if sent is None or sent.raw != self._x or any(b.name == name for b in self.buffers):
                continue
            blocks = -(-sent.columns // BLOCK)
            norm, affine = self._norm(sent), None
            if norm is not None:
                pairs = zip(*(columns_of(x) for x in sent.affine), strict=True)
                affine = self._vectors(f"{name}.affine", [[PackedConstants(*pair)] for pair in pairs])
            yield partial(self.emitter.store, self._rows(name, Role.OUTPUT), blocks, norm, affine)

    # -- the program

    def panels(self) -> list[list[PlacedSequence]]:
        """Return the sequences of each panel, spread over the engines."""
        count = -(-self.net.batch // (ENGINES * self.sequences))
        return [
            [
                PlacedSequence(i % ENGINES, i // ENGINES * self.lanes, self.lanes, self.rows, int(number))
                for i, number in enumerate(numbers)
            ]
            for numbers in np.array_split(np.arange(self.net.batch), count)
        ]

    def lowered(self) -> Lowered:
        """Emit all panels, and return the network as instructions, with its weights. Raises `UnsupportedError`, naming
        it, for a result that X never holds, `RoomError` if a bank is too small, and as `steps`."""
        steps = list(self.steps())
        missing = [out.name for out in self.net.outputs if all(b.name != out.name for b in self.buffers)]
        if missing:
            raise UnsupportedError(f"{missing[0]}: a result that X of xnn8 never holds")
        check_room(self.buffers, self.overlay, f"{self.net.batch} sequences of {self.net.seq} rows", "lpddr", "ddr")
        uops: dict[str, dict[str, list[tuple[int, int]]]] = {}
        sequences = self.emitter.sequences
        for panel in self.panels():
            self.emitter.begin(panel)
            for layer, emit in steps:
                before = {unit: len(mops) for unit, mops in sequences.items()}
                emit()
                ranges = uops.setdefault(layer.y, {})
                for unit, mops in sequences.items():
                    if len(mops) > before[unit]:
                        ranges.setdefault(unit, []).append((before[unit], len(mops)))
        self.emitter.finish()
        patches = {name: tuple(found) for name, found in self.emitter.patches.items()}
        segments = tuple(self._segment(layer, uops[layer.y]) for layer in self.net.layers if layer.y in uops)
        kernels = UnpackedProgram(
            overlay=self.overlay,
            sequences={unit: tuple(mops) for unit, mops in sequences.items() if mops},
            buffers=tuple(self.buffers),
            parameters=parameters_of(self.net.rows, patches),
            patches=patches,
            segments=segments,
        )
        return Lowered(kernels, PackedWeights(self._made))

    def _segment(self, layer: Layer, uops: Mapping[str, Sequence[tuple[int, int]]]) -> ProgramSegment:
        kind = kind_of(layer if isinstance(layer, AttentionLayer) else [layer])
        outputs = tuple(b.name for b in self.buffers if b.name == layer.y)
        paths = tuple(dict.fromkeys((layer.path, *layer.fused)))
        return ProgramSegment(layer.y, paths, kind, outputs, {unit: tuple(ranges) for unit, ranges in uops.items()})


class LanesOfSequences(NamedTuple):
    """How sequences lie in lanes. sequences: of an engine, at most. lanes: of a sequence. rows: of a lane."""

    sequences: int
    lanes: int
    rows: int


def placement(batch: int, seq: int, seconds: Mapping[str, float]) -> LanesOfSequences:
    """Return the placement that takes the least time for a chunk of weights, in all panels: in the tiles, by the rows
    of a lane, or off chip. batch: sequences. seq: rows of a sequence, from 1 to 512; more are a `ValueError`. seconds:
    the overlay's, by rate."""
    both = 1 / seconds["ddr_read_gbs"] + 1 / seconds["lpddr_read_gbs"]
    loaded = BLOCK * PAIRS * BLOCK / both
    found = []
    for each in range(1, LANES // -(-seq // LANE_ROWS) + 1):
        lanes = LANES // each
        rows = padded(-(-seq // lanes), ROW_STEP)
        # a block of a sequence is a whole number of address units
        rows = rows if lanes % 2 == 0 else padded(rows, 2 * ROW_STEP)
        panels = -(-batch // (ENGINES * each))
        found.append(
            (panels * max(seconds["chunk_us"] * rows / LANE_ROWS, loaded), LanesOfSequences(each, lanes, rows))
        )
    return min(found)[1]


def _part(weight: npt.NDArray[np.int8], of_ddr: int, bank: int) -> npt.NDArray[np.float32]:
    """What one of the banks has of a weight: 0 LPDDR, 1 DDR."""
    return weight_words(weight, of_ddr)[bank]


def lower(network: LayerGraph, overlay: Overlay) -> Lowered:
    """Lower a matched network, which is not folded, to the instructions of an overlay that computes in integers. Raises
    `UnsupportedError`, naming the layer, for what it cannot compute, and `RoomError` for a bank that is too small."""
    return IntegerPanels(network, overlay).lowered()
