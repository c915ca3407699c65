"""Lowering for an overlay that computes in integers (`xnn8`): panel by panel, whose rows stay on chip.

A panel is up to 512 rows of each engine: of whole sequences, or of one that is spread over engines (`integer_lanes`),
whose keys and values then pass through DDR, from each to all. All weights pass once for a panel. X holds what residuals
add up; T holds what attention reads and makes, and hidden columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np

from ..base.errors import UnsupportedError
from ..isa.layout import ROW_BLOCKS, UNIT, padded
from ..isa.overlay import Overlay
from ..isa.overlays.xnn8.emission import (
    Destination,
    HeadsRound,
    IntegerEmitter,
    PanelNorm,
)
from ..isa.overlays.xnn8.formats import (
    LANES,
    PAIRS,
    ROW_PAIR,
    SHORT_ROW_PAIR,
    T_CELLS,
    X_CELLS,
    AddedResidual,
    ChunkSource,
    EngineOp,
    LaneMemory,
    cells,
)
from ..isa.overlays.xnn8.functions import TABLES
from ..isa.overlays.xnn8.lanes import HEADS, SEND
from ..isa.overlays.xnn8.numbers import BLOCK, X_BITS, BlockNumbers, NormConstants
from ..isa.overlays.xnn8.stored import (
    PackedConstants,
    columns_of,
    row_blocks,
    row_words,
    units_of_row,
)
from ..isa.program import Buffer, Layout, Parameter, ProgramSegment, Role, UnpackedProgram
from .chain import parameters_of
from .dram import Lowered, PackedWeights
from .graph import AttentionLayer, Gemm, Layer, LayerGraph
from .groups import kind_of
from .integer_cells import LaneCells
from .integer_lanes import LaneSeconds, LanesOfSequences, estimated_seconds, placements
from .integer_memory import PanelBuffers
from .integer_products import Pairs, PlacedProduct, ProductBlocks
from .integer_rounds import attention_rounds
from .integer_turns import Emit, PanelOrder, PanelStep, ordered
from .integers import IntegerNetwork, SentRows, is_view
from .memory import check_room

SPREAD = 1.5
"""How many times as slow as another an estimate without steps may call a way that steps are made for."""
MOST_SHARED = 64
"""Heads that the fields of an instruction can skip, for two heads of keys and values in a block."""


class IntegerPanels:
    """Lowers a network in integers for one way in which its sequences lie: as steps that each panel takes. of: the
    network. at: how its sequences lie. Raises `UnsupportedError`, naming the layer, for what the overlay or this
    lowering does not compute."""

    def __init__(self, of: IntegerNetwork, overlay: Overlay, at: LanesOfSequences) -> None:
        self.of, self.net, self.overlay, self.at = of, of.network, overlay, at
        self.emitter = IntegerEmitter(overlay)
        self._memory = PanelBuffers(overlay.banks)
        self._check()
        self._caches = {name: self._rows(name, Role.STATE) for name in self.net.states}
        """The addresses of the sequences in caches."""
        self._kept = {x.y: x for x in self.net.layers if isinstance(x, Gemm) and x.into is not None}
        """The rows that become those of caches, by the name of the cache with them."""
        self._waiting: list[tuple[str, Iterator[Emit]]] = []
        """Activations in T that are to be stored behind the weights of the queries, so that DDR need not wait for
        them."""
        self._x = LaneCells("X", X_CELLS)
        """Activations without their norms."""
        self._walked: tuple[SentRows, int] | None = None
        """What X8 holds, and whose norm Rows has; and how many bits beyond 8."""
        self._walks = 0
        self._in_turn = False
        """Whether panels with even and odd numbers have a half of X and T each."""
        self._takes = LaneSeconds(overlay.seconds, at.rows)
        self._products = ProductBlocks(of, at, self._takes, self._memory)
        self._angles: BlockNumbers | str | None = None
        """What Angles holds: constants, or the input with factors of a call; None for nothing."""
        self._tables: dict[str, list[int]] = {}
        """The addresses of the sequences in inputs with such factors."""
        self._t = LaneCells("T", T_CELLS)
        self._apart: dict[str, int] = {}
        """Addresses of keys and values that the engines give to each other."""
        of_keys = [(x.k, x.v) for x in self.net.layers if isinstance(x, AttentionLayer)]
        self._keys = {name for names in of_keys for name in names}
        self._left: dict[str, int] = {}
        self._queries: dict[str, Gemm] = {}
        """Queries that are computed just before their attention: their tokens then stand for those of its keys, too."""

    def _check(self) -> None:
        net = self.net
        if net.seqs and not net.is_step:
            raise UnsupportedError("inputs with sequences of another length; they are not compiled for xnn8 yet")
        if len(net.state_rows) > 1:
            raise UnsupportedError(
                f"caches of {' and '.join(map(str, net.state_rows))} rows; xnn8 takes those of one size"
            )
        for layer in net.layers:
            facts: tuple[tuple[str, bool], ...]
            if isinstance(layer, AttentionLayer):
                facts = (
                    ("a window", layer.window is not None),
                    ("padding before a sequence", layer.left and not net.is_step),
                    (f"{layer.groups} heads that share keys and values", 2 * layer.groups > MOST_SHARED),
                )
            else:
                again = is_view(layer) and self.of.adds_normalised(layer)
                facts = (
                    ("a gate with a residual", layer.gated and layer.residual is not None),
                    ("a norm of what is normalised already", again),
                )
            for what, is_there in facts:
                if is_there:
                    raise UnsupportedError(f"{layer.place}: {what}; that is not compiled for xnn8 yet")

    # -- memory

    def _rows(self, name: str, role: Role) -> list[int]:
        """Place an activation, a cache, or the factors of a rotation. Returns the address of each sequence."""
        net, of = self.net, self.of
        pitch = LANES * self.at.keys if role is Role.STATE else self.at.pitch
        layout = Layout.SHORT if name in of.columns else Layout.INTEGERS
        if role is Role.OUTPUT and net.is_step and (name in of.columns or self._passes_by(name)):
            pitch, layout = 1, Layout.SHORT if name in of.columns else Layout.LONG
        if name in of.columns:
            stored = len(of.columns[name].places)
            columns = stored if role is Role.STATE else net.columns(name)
        else:
            columns = of.sent[name].columns if name in of.sent else net.inputs[name]
            stored = padded(columns, BLOCK)
        view = net.batch, net.seq_of(name), columns
        made = Buffer(name, "ddr", 0, (net.batch * pitch, stored), layout, role, view, net.lengths)
        at = self._memory.place("ddr", made)
        return [at + i * made.size // net.batch // UNIT for i in range(net.batch)]

    # -- steps

    def steps(self) -> Iterator[PanelStep]:
        """Yield what each panel does, in order. Raises `UnsupportedError`, naming the layer, for activations that X or
        T have no room for."""
        net = self.net
        for layer in net.layers:
            for name in self._reads(layer):
                self._left[name] = self._left.get(name, 0) + 1
        for out in net.outputs:
            raw = self.of.sent[out.name].raw if out.name in self.of.sent else out.name
            self._left[raw] = self._left.get(raw, 0) + 1
        asks = {x.q for x in net.layers if isinstance(x, AttentionLayer)}
        for layer in net.layers:
            if isinstance(layer, AttentionLayer):
                if self.at.parts > 1:
                    seconds = sum(self._products.apart_seconds(name, "ddr_read_gbs") for name in (layer.k, layer.v))
                    yield PanelStep(layer, self._fetch(layer), lanes=seconds)
                if layer.q in self._queries:
                    yield from self._product(self._queries.pop(layer.q))
                yield from (PanelStep(layer, store) for store in self._stores_of_t())
                if layer.k in self._kept:
                    yield PanelStep(layer, self._of_caches(layer))
                else:
                    yield from self._attention(layer)
            elif layer.y in self._kept:
                self._waiting.append((layer.x, self._keep(layer)))
            elif layer.y in asks:
                self._queries[layer.y] = layer
                continue
            elif not layer.multiplies and not is_view(layer):
                yield from self._sum(layer)
            elif not is_view(layer):
                yield from self._product(layer)
                if layer.y in self.of.columns and any(out.name == layer.y for out in net.outputs):
                    self._waiting.append((layer.y, self._give(layer)))
                if self.at.parts > 1 and layer.y in self._keys:
                    yield from (PanelStep(layer, store) for store in self._stores_of_t())
                    seconds = self._products.apart_seconds(layer.y, "ddr_write_gbs")
                    yield PanelStep(layer, self._put_apart(layer), lanes=seconds)
            yield from self._stores(layer)

    def _reads(self, layer: Layer) -> list[str]:
        """What a layer reads, by the names of activations as they are kept."""
        if isinstance(layer, AttentionLayer):
            return [layer.q, layer.k, layer.v]
        if is_view(layer):
            return []
        names = [layer.x] * (layer.multiplies or layer.is_sum)
        names += [layer.residual] if layer.residual is not None else []
        return [self.of.sent[name].raw if name in self.of.sent else name for name in names]

    def _read(self, layer: Layer) -> list[str]:
        """Count the reads of a layer as done, and give back cells of T that nothing else reads. Returns what nothing
        else reads."""
        done = []
        for name in self._reads(layer):
            self._left[name] -= 1
            if not self._left[name]:
                self._t.free(name)
                done.append(name)
        return done

    def _bring(self, layer: Layer, raw: str) -> Iterator[PanelStep]:
        """Let X hold an activation."""
        if raw in self._x.held:
            return
        if raw not in self.net.inputs:
            raise UnsupportedError(f"{layer.place}: it reads {raw}, which is not in X of xnn8 any more")
        blocks = self._blocks_of_x(raw)
        slot = self._x.place(layer, blocks, raw, self.at.rows)
        addresses, gains = self._rows(raw, Role.INPUT), self._gains(raw)
        at = (
            None
            if gains is None
            else self._memory.vectors(f"{raw}.gains", [[PackedConstants(g, g)] for g in columns_of(gains)])
        )
        emit = partial(self.emitter.load, addresses, slot, blocks, at)
        yield self._moves(layer, emit, blocks, "ddr_read_gbs", self._takes.block)

    def _moves(self, layer: Layer, emit: Emit, blocks: int, rate: str, each: float) -> PanelStep:
        """A step that moves blocks of X of a panel: Rows those of one sequence of an engine after the other. each: what
        Rows takes for a block."""
        bytes_of = 2 * BLOCK * blocks * self.at.pitch * max(map(len, self.at.panels))
        in_engine = max(max(Counter(of.engine for of in panel).values()) for panel in self.at.panels)
        lanes = max(bytes_of * self.overlay.seconds[rate], in_engine * blocks * each)
        return PanelStep(layer, emit, lanes=lanes)

    def _blocks_of_x(self, raw: str) -> int:
        return -(-self.of.sent[raw].columns // BLOCK)

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

    def _walk(self, layer: Layer, name: str, low_bits: int = 0) -> Iterator[PanelStep]:
        """Let X8 hold the rows of an activation in X, behind its norm. low_bits: that they have beyond 8."""
        sent = self.of.sent[name]
        yield from self._bring(layer, sent.raw)
        if self._walked == (sent, low_bits):
            return
        blocks, slot = self._blocks_of_x(sent.raw), self._x.first(sent.raw)
        taken = 2 * blocks * cells(self.at.rows)
        if low_bits and taken > X_CELLS:
            raise UnsupportedError(
                f"{layer.place}: its rows of 16 bits take {taken} cells of X8, two for each 16 rows of a block of 64 "
                f"columns; there are {X_CELLS}"
            )
        self._walks += 1
        emit = partial(self.emitter.walk, slot, blocks, self._norm(sent), low_bits)
        yield PanelStep(layer, emit, lanes=self._takes.walk(blocks), walk=self._walks)
        self._walked = sent, low_bits

    def _product(self, layer: Gemm) -> Iterator[PanelStep]:
        sent = self.of.sent.get(layer.x)
        product = self.of.products[layer.y]
        low_bits, chunks = product.low_bits, len(product.weight) // BLOCK
        most = EngineOp.field("depth").bounds[1] // 2
        if low_bits and chunks > most:
            raise UnsupportedError(
                f"{layer.place}: rows of 16 bits of {chunks * BLOCK} columns; xnn8 has up to {most * BLOCK}"
            )
        walks = sent is not None and self._walked != (sent, low_bits)
        slot = 0
        if sent is not None:
            yield from self._walk(layer, layer.x, low_bits)
            slot = self._x.first(sent.raw)
            if self._left[sent.raw] == 1:  # only its copy in X8 is read
                self._x.free(sent.raw)
        residual, affine = AddedResidual.NONE, None
        if layer.residual is not None:
            added = self.of.sent[layer.residual]
            residual = AddedResidual.NORMALISED if self.of.adds_normalised(layer) else AddedResidual.RAW
            has_norm = self._walked is not None and self._walked[0] is added
            if sent is None and residual is AddedResidual.NORMALISED and not has_norm:
                yield from self._walk(layer, layer.residual)
            brought = self._bring(layer, added.raw)
            yield from (step._replace(bound=walks, walk=self._walks * walks) for step in brought)
            if residual is AddedResidual.NORMALISED:
                walked = None if self._walked is None else self._walked[0]
                if walked is None or (walked.raw, walked.norm) != (added.raw, added.norm):
                    raise UnsupportedError(f"{layer.place}: a residual with a norm that its rows are not sent with")
                affine = added.affine
        source = ChunkSource.X8 if sent is not None else ChunkSource.T
        slot = self._t.first(layer.x) if sent is None else slot
        done = self._read(layer)
        if layer.rotary is not None:
            yield from (step._replace(bound=walks, walk=self._walks * walks) for step in self._turn(layer))
        to, vectors = self._destination(layer, residual, affine, done)
        blocks = self._products.placed(layer, to, vectors)
        rows = self._rows(layer.y, Role.OUTPUT) if self._products.passes(layer) else []
        needs = sent is not None or residual is AddedResidual.NORMALISED
        yield from self._blocks(layer, source, slot, chunks, blocks, to, walks, rows, self._walks * needs)
        if rows:
            self._x.free(layer.y)

    def _passes_by(self, name: str) -> bool:
        return any(x.y == name and isinstance(x, Gemm) and self._products.passes(x) for x in self.net.layers)

    def _destination(
        self, layer: Gemm, residual: AddedResidual, affine: Pairs | None, done: Sequence[str]
    ) -> tuple[Destination, list[Pairs]]:
        """Where results go, and the pairs of vectors that they take beside scales and bias. done: what only this layer
        still reads."""
        function = 0 if layer.activation is None else 1 + [*TABLES].index(layer.activation.value)
        added = None if layer.residual is None else self.of.sent[layer.residual].raw
        at = 0 if added is None else self._x.first(added)
        to = Destination(0, residual=residual, residual_slot=at, function=function, gated=layer.gated)
        pairs = [affine] if affine else []
        if layer.y in self.of.columns:
            columns = self.of.columns[layer.y]
            for name in done:
                self._x.free(name)
            readers = (HEADS,) if layer.y in self._keys and self.at.parts == 1 else (SEND,)
            slot = self._t.place(layer, len(columns.places) // BLOCK, layer.y, self.at.rows)
            to = replace(to, slot=slot, in_t=True, readers=readers, pitch=columns.pitch if layer.in_heads else BLOCK)
            to = replace(to, rotated=layer.rotary is not None)
            if layer.norm is not None:
                constants = NormConstants.of(layer.width // layer.heads, layer.norm.eps)
                to = replace(to, norm=PanelNorm(constants, layer.norm.rms))
                pairs.append(self.of.head_norms[layer.y])
            return to, pairs
        gains = self._gains(layer.y)
        to = replace(to, slot=self._in_x(layer, added, done), gains=gains is not None)
        return to, pairs + ([(gains, gains)] if gains else [])

    def _in_x(self, layer: Gemm, added: str | None, done: Sequence[str]) -> int:
        """The first cell of X for the result of a layer: in place of what it is added to, if nothing else reads that.
        Gives back the cells of what nothing else reads."""
        if added in done:
            self._x.rename(str(added), layer.y)
        for name in done:
            self._x.free(name)
        if added in done:
            return self._x.first(layer.y)
        blocks = 2 * PAIRS if self._products.passes(layer) else self._blocks_of_x(layer.y)
        return self._x.place(layer, blocks, layer.y, self.at.rows)

    def _sum(self, layer: Gemm) -> Iterator[PanelStep]:
        """A sum of two activations in X, or a copy of one."""
        names = list(dict.fromkeys([layer.x] * layer.is_sum + [str(layer.residual)]))
        for name in names:
            sent = self.of.sent[name]
            if sent.norm is not None:
                raise UnsupportedError(f"{layer.place}: a sum without a product, of what is normalised; xnn8 has none")
            yield from self._bring(layer, sent.raw)
        source, *others = (self._x.first(self.of.sent[name].raw) for name in names)
        residual = AddedResidual.RAW if others else AddedResidual.NONE
        to, vectors = self._destination(layer, residual, None, self._read(layer))
        to = replace(to, residual_slot=others[0] if others else 0)
        addr = 0
        if to.gains:
            ((gains, _),) = vectors
            addr = self._memory.vectors(f"{layer.y}.gains", [[PackedConstants(g, g)] for g in columns_of(gains)]).addr
        blocks = self._blocks_of_x(layer.y)
        seconds = blocks * self._takes.block * len(names)
        yield PanelStep(layer, partial(self.emitter.sum, source, to, blocks, addr), lanes=seconds)

    def _blocks(
        self,
        layer: Gemm,
        source: ChunkSource,
        slot: int,
        chunks: int,
        blocks: Sequence[PlacedProduct],
        to: Destination,
        walks: bool,
        rows: Sequence[int],
        walk: int,
    ) -> Iterator[PanelStep]:
        """The blocks of a product. rows: where each sequence of a result that passes through X begins; none if it
        stays. walk: as a step has it."""
        made = len(blocks[0].weights.shifts) // (1 + to.gated)
        step = made * cells(self.at.rows)
        size = units_of_row(made, X_BITS) if self.net.is_step else made * self.at.pitch * ROW_PAIR // 2 // UNIT
        """Of a block of results off chip, in units of 64 bytes."""
        for number, block in enumerate(blocks):
            at = step * (number % 2 if rows else number)
            part = replace(to, slot=to.slot + at, residual_slot=to.residual_slot + at)
            each, weights = walks and not number, block.weights
            columns, last, to_rows = (
                len(weights.shifts),
                number == len(blocks) - 1,
                [row + number * size for row in rows],
            )
            emit = partial(self._emit, source, slot, chunks, block, part, each, to_rows, last)
            chunk = self._takes.chunk(columns, short=weights.short, of_ddr=weights.of_ddr)
            tiles = (1 + (weights.low_bits > 0)) * chunks * chunk
            is_slow = to.rotated or to.residual is AddedResidual.NORMALISED
            lanes = columns * self._takes.behind(slow=is_slow, norm=to.norm is not None)
            waits = (not number and source is ChunkSource.T) or each
            yield PanelStep(layer, emit, tiles, lanes, waits, walk, bound=each)

    def _emit(
        self,
        source: ChunkSource,
        slot: int,
        chunks: int,
        block: PlacedProduct,
        to: Destination,
        each: bool,
        rows: Sequence[int],
        last: bool,
    ) -> None:
        """Emit a block of a product. rows: of results that pass through X, where those of each sequence go. last: of
        the product."""
        self.emitter.product(source, slot, chunks, block.weights, block.constants, to, each=each)
        count = len(block.weights.shifts) // (1 + to.gated)
        if rows and self.net.is_step:
            self.emitter.store_rows(rows, to.slot, count, 1, LaneMemory.X)
        elif rows:
            self.emitter.store(rows, to.slot, count, late=True)
        if last:
            self.emitter.stored_late()

    def _turn(self, layer: Gemm) -> Iterator[PanelStep]:
        """Let Angles hold the factors of a rotation."""
        turns = self.of.rotations.get(layer.y)
        blocks = max(BLOCK, self.of.columns[layer.y].pitch) // BLOCK
        if turns is None:
            assert layer.rotary is not None
            source = str(layer.rotary.source)
            if self._angles == source:
                return
            self._angles = source
            if source not in self._tables:
                self._tables[source] = self._rows(source, Role.INPUT)
            addresses = self._tables[source]
        elif isinstance(self._angles, BlockNumbers) and np.array_equal(self._angles.integers, turns.integers):
            return
        else:
            self._angles = turns
            table = BlockNumbers(*(np.zeros((self.at.pitch, blocks, n), np.int64) for n in (BLOCK, 1)))
            count = min(self.net.seq, self.at.pitch)
            for stored, given in zip(table, turns, strict=True):
                stored[:count] = given[:count]
            size = self.at.pitch * blocks * ROW_PAIR // 2
            at = self._memory.weight(f"{layer.y}.angles", "ddr", size, partial(row_words, table))
            addresses = [at] * self.net.batch
        yield PanelStep(layer, partial(self.emitter.load, addresses, 0, blocks, None, LaneMemory.ANGLES))

    def _stores_of_t(self) -> Iterator[Emit]:
        """Store what waits, and give back the cells of T that nothing else reads."""
        for name, stores in self._waiting:
            yield from stores
            self._left[name] -= 1
            if not self._left[name]:
                self._t.free(name)
        self._waiting.clear()

    def _give(self, layer: Gemm) -> Iterator[Emit]:
        """Store a result in T for the host."""
        addresses, is_step = self._rows(layer.y, Role.OUTPUT), self.net.is_step
        return self._stored(layer.y, addresses, 1 if is_step else self.at.pitch, int(is_step))

    def _keep(self, layer: Gemm) -> Iterator[Emit]:
        """Let the new row of each sequence become that of a cache."""
        cache = str(layer.into)
        return self._stored(layer.x, self._caches[cache], LANES * self.at.keys, self.net.seq_of(cache))

    def _stored(self, name: str, addresses: Sequence[int], pitch: int, cache: int) -> Iterator[Emit]:
        """Store rows of an activation in T, eight blocks at a time. pitch, cache: rows of a sequence off chip, and of a
        cache as for `IntegerEmitter.store_rows`."""
        slot, before = self._t.first(name), 0
        for blocks in row_blocks(len(self.of.columns[name].places) // BLOCK):
            at, first = [x + before for x in addresses], slot + blocks.start * cells(self.at.rows)
            yield partial(self.emitter.store_rows, at, first, len(blocks), cache)
            before += pitch * units_of_row(len(blocks))

    def _put_apart(self, layer: Gemm) -> Emit:
        """Let the engines give their keys or values to each other."""
        blocks, slot = len(self.of.columns[layer.y].places) // BLOCK, self._t.first(layer.y)
        self._t.free(layer.y)
        size = blocks * self.at.pitch * SHORT_ROW_PAIR // 2
        addr = self._memory.place("ddr", Buffer(f"{layer.y}.all", "ddr", 0, (size,), Layout.LINEAR, Role.SCRATCH))
        self._apart[layer.y] = addr
        return partial(self.emitter.put_apart, addr, slot, blocks)

    def _fetch(self, layer: AttentionLayer) -> Emit:
        """Let T hold the keys and values of all rows of the sequence."""
        rows = self.at.rows * self.at.parts
        fetched = []
        for name, readers in {layer.v: (HEADS,), layer.k: (SEND, HEADS)}.items():
            blocks = len(self.of.columns[name].places) // BLOCK
            slot = self._t.place(layer, blocks, _whole(name), rows)
            fetched.append((self._apart[name], slot, blocks, readers))

        def emit() -> None:
            for some in fetched:
                self.emitter.fetch(*some)

        return emit

    def _of_caches(self, layer: AttentionLayer) -> Emit:
        """An attention over caches: keys and values of a round come to T of all lanes of an engine, one sequence after
        the other, while the one before is computed if T has room for both."""
        keys, each = self.at.keys, cells(self.at.keys)
        queries = self._t.first(layer.q)
        results = self._t.place(layer, len(self.of.columns[layer.y].places) // BLOCK, layer.y, self.at.rows)
        groups = row_blocks(len(self.of.columns[layer.k].places) // BLOCK)
        starts = [*accumulate((LANES * keys * units_of_row(len(group)) for group in groups), initial=0)]
        rounds: list[tuple[HeadsRound, range]] = []
        for heads in attention_rounds(self.of, self.at, self._takes, layer, (queries, 0, 0, results), keys):
            last = heads.keys // each + heads.blocks(shared=True) - 1
            read = range(heads.keys // each // ROW_BLOCKS, last // ROW_BLOCKS + 1)
            before = each * groups[read.start].start
            rounds.append((heads._replace(keys=heads.keys - before, values=heads.values - before), read))
        most = max(groups[read[-1]].stop - groups[read[0]].start for _, read in rounds)
        caches = [(self._caches[str(self._kept[x].into)], _whole(x)) for x in (layer.k, layer.v)]
        slots = [[self._t.place(layer, most, name, keys) for _, name in caches]]
        with suppress(UnsupportedError):
            slots.append([self._t.place(layer, most, name, keys) for _, name in caches])
        for _, name in caches:
            self._t.free(name)
        self._read(layer)

        def emit() -> None:
            held: dict[int, tuple[int, range]] = {}
            turns: dict[int, int] = defaultdict(int)
            work = [(of, *each) for some in self.emitter.rounds() for each in rounds for of in some]
            last = {of.engine: number for number, (of, *_) in enumerate(work)}
            for number, (of, heads, read) in enumerate(work):
                if held.get(of.engine) != (of.number, read):
                    held[of.engine] = of.number, read
                    turns[of.engine] += 1
                    for (addresses, _), slot, readers in zip(
                        caches, slots[turns[of.engine] % len(slots)], ((SEND, HEADS), (HEADS,)), strict=True
                    ):
                        for i in read:
                            to = slot + each * (groups[i].start - groups[read.start].start)
                            addr = addresses[of.number] + starts[i]
                            self.emitter.load_rows(of, addr, to, len(groups[i]), readers)
                k, v = slots[turns[of.engine] % len(slots)]
                moved = heads._replace(keys=heads.keys + k, values=heads.values + v)
                self.emitter.attend(moved, of, ends=last[of.engine] == number)

        return emit

    def _attention(self, layer: AttentionLayer) -> Iterator[PanelStep]:
        apart = self.at.parts > 1
        names = (layer.q, *(_whole(name) if apart else name for name in (layer.k, layer.v)))
        queries, keys, values = map(self._t.first, names)
        results = self._t.place(layer, len(self.of.columns[layer.y].places) // BLOCK, layer.y, self.at.rows)
        self._read(layer)
        for name in names[1:] if apart else ():
            self._t.free(name)
        rounds = attention_rounds(
            self.of, self.at, self._takes, layer, (queries, keys, values, results), self.at.rows * self.at.parts
        )
        for number, heads in enumerate(rounds):
            emit = partial(self.emitter.attention, heads, last=number == len(rounds) - 1)
            seconds = self._takes.round(layer, heads.heads, self.at)
            yield PanelStep(layer, emit, *seconds, waits=not number, bound=number > 0)

    def _stores(self, layer: Layer) -> Iterator[PanelStep]:
        """Store the activation in X if it is a result of the network."""
        for name in (out.name for out in self.net.outputs):
            sent = self.of.sent.get(name)
            if sent is None or sent.raw not in self._x.held or any(b.name == name for b in self._memory.buffers):
                continue
            blocks, slot = self._blocks_of_x(sent.raw), self._x.first(sent.raw)
            norm, affine = self._norm(sent), None
            if norm is not None:
                pairs = zip(*(columns_of(x) for x in sent.affine), strict=True)
                affine = self._memory.vectors(f"{name}.affine", [[PackedConstants(*pair)] for pair in pairs])
            emit = partial(self.emitter.store, self._rows(name, Role.OUTPUT), slot, blocks, norm, affine)
            each = self._takes.block if norm is None else self._takes.normalised
            yield self._moves(layer, emit, blocks, "ddr_write_gbs", each)
            self._left[sent.raw] -= 1
            if not self._left[sent.raw]:
                self._x.free(sent.raw)

    # -- the program

    @cached_property
    def order(self) -> PanelOrder:
        """The steps of all panels. Raises as `steps`."""
        steps, panels = list(self.steps()), len(self.at.panels)
        one = ordered(steps, panels, 1)
        fit = all(2 * cells.most <= cells.count for cells in (self._x, self._t))
        if panels == 1 or not fit or self.at.parts > 1 or self.net.states or self._angles is not None:
            return one
        two = ordered(steps, panels, 2)
        self._in_turn = two.seconds < one.seconds
        return two if self._in_turn else one

    def lowered(self) -> Lowered:
        """Emit all panels, and return the network as instructions, with its weights. Raises `UnsupportedError`, naming
        the output, for an output that is never in X; `RoomError` if a bank is too small, and as `steps`."""
        made = self.order
        missing = [out.name for out in self.net.outputs if all(b.name != out.name for b in self._memory.buffers)]
        if missing:
            raise UnsupportedError(f"{missing[0]}: a result that X of xnn8 never holds")
        check_room(
            self._memory.buffers, self.overlay, f"{self.net.batch} sequences of {self.net.seq} rows", "lpddr", "ddr"
        )
        uops: dict[str, dict[str, list[tuple[int, int]]]] = {}
        sequences = self.emitter.sequences
        half = [cells.count // 2 for cells in (self._x, self._t)]
        for number, step in made.steps:
            self.emitter.begin(self.at.panels[number], *(half if number % 2 and self._in_turn else (0, 0)))
            before = {unit: len(mops) for unit, mops in sequences.items()}
            step.emit()
            ranges = uops.setdefault(step.layer.y, {})
            for unit, mops in sequences.items():
                if len(mops) > before[unit]:
                    ranges.setdefault(unit, []).append((before[unit], len(mops)))
        self.emitter.finish()
        patches = {name: tuple(found) for name, found in self.emitter.patches.items()}
        segments = tuple(self._segment(layer, uops[layer.y]) for layer in self.net.layers if layer.y in uops)
        kernels = UnpackedProgram(
            overlay=self.overlay,
            sequences={unit: tuple(mops) for unit, mops in sequences.items() if mops},
            buffers=tuple(self._memory.buffers),
            parameters=self._parameters(patches),
            patches=patches,
            segments=segments,
        )
        return Lowered(kernels, PackedWeights(self._memory.made))

    def _parameters(self, patches: Mapping[str, object]) -> tuple[Parameter, ...]:
        net = self.net
        found = parameters_of(net.rows if not net.states else (net.counted_seq,) * net.batch, patches)
        rows = (Parameter(f"row[{b}]", 0, n - 1, 0) for n in net.state_rows for b in range(net.batch))
        return (*found, *rows)

    def _segment(self, layer: Layer, uops: Mapping[str, Sequence[tuple[int, int]]]) -> ProgramSegment:
        kind = kind_of(layer if isinstance(layer, AttentionLayer) else [layer])
        outputs = tuple(b.name for b in self._memory.buffers if b.name == layer.y)
        paths = tuple(dict.fromkeys((layer.path, *layer.fused)))
        return ProgramSegment(layer.y, paths, kind, outputs, {unit: tuple(ranges) for unit, ranges in uops.items()})


def _whole(name: str) -> str:
    """The name, among those in T, of the keys or values of all rows."""
    return f"all rows of {name}"


def lower(network: LayerGraph, overlay: Overlay) -> Lowered:
    """Lower a matched network, which is not folded, to the instructions of an overlay that computes in integers.

    Of all ways in which its sequences can lie in lanes (`placements`) and for which the memories have room, it takes
    the one whose steps take least time by their estimate. Raises `UnsupportedError`, naming the layer, for what it
    cannot compute, and `RoomError` for a bank that is too small.
    """
    found, refusals = _ways(IntegerNetwork.of(network), overlay)
    for panels in found:
        try:
            return panels.lowered()
        except UnsupportedError as error:
            refusals.append((panels.at.rows, error))
    raise min(refusals, key=lambda refusal: refusal[0])[1]


def least_seconds(of: IntegerNetwork, overlay: Overlay) -> float:
    """Return an estimate of the seconds of a network: those of the steps of its fastest way. Raises `UnsupportedError`,
    naming the layer, if there is no way to compute it."""
    found, refusals = _ways(of, overlay)
    if not found:
        raise min(refusals, key=lambda refusal: refusal[0])[1]
    return found[0].order.seconds


def _ways(of: IntegerNetwork, overlay: Overlay) -> tuple[list[IntegerPanels], list[tuple[int, UnsupportedError]]]:
    """The ways for which memories have room, the fastest first; and why others have none, with rows of a lane."""
    found: list[tuple[float, float, IntegerPanels]] = []
    refusals: list[tuple[int, UnsupportedError]] = []
    for at in placements(of, overlay):
        estimate = estimated_seconds(of, overlay.seconds, at)
        if found and estimate > SPREAD * found[0][0]:
            break
        try:
            panels = IntegerPanels(of, overlay, at)
            found.append((estimate, panels.order.seconds, panels))
        except UnsupportedError as error:
            refusals.append((at.rows, error))
    return [panels for *_, panels in sorted(found, key=lambda way: way[1])], refusals
