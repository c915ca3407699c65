"""The binder for machines without patterns: a network is lowered product by product, with all operands in off-chip
memory.

It knows a machine only by its description (`circuits`), and asks units for work items only (`strips`). Matrices lie row
by row. Rows of a sequence and columns are padded to whole tiles of every product unit, so that each of them can compute
any part; padding is computed and stored as well, so that what is read is defined.

Product units share each layer by rows: the next rows go to the unit that would end first if its time were its bound,
the padded tiles that it already has in this layer and these, times the rate of its products. Equal units get rows in
turn; a unit that is fast, or whose tiles fit better, gets more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import lcm

import numpy as np

from ..base.errors import FieldError, ScheduleError, UnsupportedError
from ..isa.fields import Record
from ..isa.layout import Layout, padded
from ..isa.overlay import Overlay
from ..isa.program import Buffer, KernelPatch, ProgramSegment, Role, UnpackedProgram
from ..isa.work import LengthField, RowNorm, Softmax, Store
from .bindable import require_gemm, require_scores, require_values
from .chain import instructions, parameters_of
from .circuits import Circuit, Path, circuits_of
from .dram import Lowered, PackedWeights
from .graph import Array, AttentionLayer, Gemm, LayerGraph, Output, free_name
from .groups import kind_of
from .memory import Arena, Columns, check_room, lay_out_heads, plain, reads, stored_vector, stored_weight
from .schedule import Interleave, Schedule
from .strips import Operands, StoredRegion, UnitWork, WorkLists

SCORES = "scores"
"""The buffer of the scores of one head, one after the other."""


def bind(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
    """Lower a network product by product. Of the schedule only `interleave` has an effect: strict or interleaved.
    Raises `UnsupportedError` naming the layer and the capability that the overlay lacks, or the bank that is too small,
    and `ScheduleError` for a schedule with any other knob."""
    return _Binder(network, overlay, schedule).lowered()


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Check that a network fits off-chip memory and the overlay's capabilities, without binding it. Raises like
    `bind`."""
    _Binder(network, overlay, schedule).placed()


def columns_on(network: LayerGraph, overlay: Overlay) -> dict[str, Columns]:
    """The column layout of every activation on an overlay without patterns, by name. Raises `UnsupportedError` for an
    overlay without circuits, and for heads that cannot be laid out."""
    return _columns(network, _column_grain(circuits_of(overlay).all))


def _columns(network: LayerGraph, grain: int) -> dict[str, Columns]:
    widths = {**network.inputs, **{layer.y: network.columns(layer.y) for layer in network.layers}}
    out = {name: Columns(1, count, padded(count, grain), align=grain) for name, count in widths.items()}
    lay_out_heads(network, out, lambda heads, width: Columns(heads, width, padded(width, grain), align=grain))
    return out


def _column_grain(circuits: Sequence[Circuit]) -> int:
    """Columns are padded to a multiple of this many: whole tiles of every product unit, as K and as columns."""
    return lcm(*(size for c in circuits for size in (c.tile.depth, c.tile.columns)))


class _Binder:
    """Binds one network."""

    def __init__(self, network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
        if schedule not in (Schedule(), Schedule(interleave=Interleave.STRICT)):
            raise ScheduleError(
                f"overlay {overlay.name} has no patterns: models are bound product by product, by the schedules paper "
                "and strict only"
            )
        network.check_rows()
        other = next((name for name in network.inputs if network.seq_of(name) != network.seq), None)
        if other is not None:
            raise UnsupportedError(
                f"{other}: sequences of {network.seq_of(other)} rows, beside those of {network.seq}; overlay "
                f"{overlay.name} has no patterns, and takes one number of rows"
            )
        self.net, self.overlay = network, overlay
        self.circuits = circuits_of(overlay)
        self.group = lcm(*(c.tile.rows for c in self.circuits.all))
        """Rows that one product unit computes: whole tiles of every unit."""
        grain = _column_grain(self.circuits.all)
        attends = any(isinstance(layer, AttentionLayer) for layer in network.layers)
        self.row_grain = lcm(self.group, grain) if attends else self.group
        """Rows of a sequence are padded to a multiple of this many; in attention they are also K and columns."""
        self.pitch = padded(max(network.rows), self.row_grain)
        self.columns = _columns(network, grain)
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Callable[[], Array]] = {}
        self.ends = dict.fromkeys(overlay.banks, 0)
        self.shared: dict[int, StoredRegion] = {}
        self.work = WorkLists(overlay, schedule.interleave is Interleave.STRICT)
        self.spent: dict[str, float] = {}
        """Bound of the work that each product unit has in this layer (`_bound`)."""

    def placed(self) -> list[Callable[[], None]]:
        """Check all layers and place all buffers. Returns what binds each layer."""
        bound = [
            self._attention(layer) if isinstance(layer, AttentionLayer) else self._gemm(layer)
            for layer in self.net.layers
        ]
        self._place_activations()
        banks = self.circuits.weights_bank, self.circuits.activations_bank
        check_room(self.buffers.values(), self.overlay, self.net.size, *banks)
        return bound

    def lowered(self) -> Lowered:
        """Place all buffers, bind all layers, and turn work items into instructions."""
        for number, binding in enumerate(self.placed()):
            self.spent, self.work.layer = {}, number
            binding()
        return Lowered(self._emitted(self.work.finish()), PackedWeights(self.weights))

    # -- off-chip memory

    def _weight(self, name: str, bank: str, shape: tuple[int, ...], stored: Callable[[], Array]) -> StoredRegion:
        """Reserve a buffer for a weight matrix or vector. stored: makes its elements, of this shape."""
        name = free_name(name, self.buffers)
        self.weights[name] = lambda: np.ascontiguousarray(stored(), np.float32).reshape(-1)
        unit = self.overlay.address_unit
        made = Buffer(name, bank, self.ends[bank], shape, Layout.LINEAR, Role.WEIGHT)
        self.buffers[name] = made
        self.ends[bank] = padded(made.offset + -(-made.size // unit), 64)
        return StoredRegion(name, made.offset * unit, shape[-1])

    def _weights(
        self, name: str, paths: Iterable[Path], shape: tuple[int, ...], stored: Callable[[], Array]
    ) -> dict[str, StoredRegion]:
        """Reserve a buffer for a weight in every bank that one of the paths begins at. Returns their places by bank."""
        banks = dict.fromkeys(_bank(path) for path in paths)
        return {bank: self._weight(name, bank, shape, stored) for bank in banks}

    def _region(self, name: str) -> StoredRegion:
        b = self.buffers[name]
        return StoredRegion(name, b.offset * self.overlay.address_unit, b.shape[1])

    def _place_activations(self) -> None:
        """Place the activations. Inputs and outputs keep their memory, as do scores; the memory of other activations is
        reused after their last reader."""
        bank, unit = self.circuits.activations_bank, self.overlay.address_unit
        arena = Arena(self.ends[bank])
        outputs = {o.name: o for o in self.net.outputs}
        last = {name: i for i, layer in enumerate(self.net.layers) for name in reads(layer)}

        def add(name: str, shape: tuple[int, int], role: Role, output: Output | None = None) -> None:
            at = arena.take(-(-shape[0] * shape[1] // unit))
            view = None if role is Role.SCRATCH else (self.net.batch, self.net.seq, self.columns[name].count)
            scale, shift = (None, None) if output is None else (plain(output.scale), plain(output.shift))
            rows = () if view is None else self.net.lengths
            self.buffers[name] = Buffer(name, bank, at, shape, Layout.LINEAR, role, view, rows, scale, shift)

        def shape(name: str) -> tuple[int, int]:
            return self.net.batch * self.pitch, self.columns[name].stored

        for name in self.net.inputs:
            add(name, shape(name), Role.INPUT)
        if any(isinstance(layer, AttentionLayer) for layer in self.net.layers):
            self.scores = SCORES
            while self.scores in self.columns or self.scores in self.buffers:
                self.scores += "_"
            add(self.scores, (self.pitch, self.pitch), Role.SCRATCH)
        for i, layer in enumerate(self.net.layers):
            out = outputs.get(layer.y)
            add(layer.y, shape(layer.y), Role.OUTPUT if out is not None else Role.SCRATCH, out)
            for name in dict.fromkeys(reads(layer)):
                b = self.buffers[name]
                if last[name] == i and b.role is Role.SCRATCH:
                    arena.give(b.offset, -(-b.size // unit))

    # -- layers

    def _able(self, require: Callable[[Circuit], None]) -> list[Circuit]:
        """The circuits that have what is required. Raises the error of the first one if there are none."""
        able, refused = [], []
        for c in self.circuits.all:
            try:
                require(c)
                able.append(c)
            except UnsupportedError as error:
                refused.append(error)
        if not able:
            raise refused[0]
        return able

    def _row_tiles(self, able: Sequence[Circuit], rows: int, depth: int, columns: int) -> Iterator[tuple[Circuit, int]]:
        """Yield the row tiles of `rows` rows, each with its circuit. depth, columns: of the product."""
        rated = all(c.matmul.rate is not None for c in able)
        cost = {c.product.name: _bound(self.overlay, c, self.group, depth, columns, rated) for c in able}
        for start in range(0, padded(rows, self.row_grain), self.group):
            chosen = min(able, key=lambda c: self.spent.get(c.product.name, 0.0) + cost[c.product.name])
            name = chosen.product.name
            self.spent[name] = self.spent.get(name, 0.0) + cost[name]
            for row in range(start, start + self.group, chosen.tile.rows):
                yield chosen, row

    def _gemm(self, gemm: Gemm) -> Callable[[], None]:
        """Check a product and reserve its weights. Returns what binds it."""
        x, y = self.columns[gemm.x], self.columns[gemm.y]
        kept = None if gemm.residual is None else self.columns[gemm.residual]
        able = self._able(lambda c: require_gemm(c, gemm, x, y, kept, self.overlay))
        weights: dict[str, StoredRegion] = {}
        if gemm.multiplies:
            shape = (x.used, y.stored)
            made = partial(stored_weight, gemm, x, y.positions(), y.stored)
            weights = self._weights(f"{gemm.path}.weight", (c.weights for c in able), shape, made)
        vectors: dict[str, dict[str, StoredRegion]] = {}
        given = {
            "bias": (f"{gemm.path}.bias", gemm.bias if gemm.multiplies else None),
            "scale": (f"{gemm.path}.residual_scale", gemm.residual_scale),
        }
        for op, (name, vector) in given.items():
            paths = [c.added[op] for c in able if c.takes(op)]
            if vector is not None and paths:
                vectors[op] = self._weights(
                    name, paths, (y.stored,), partial(stored_vector, vector, y.positions(), y.stored)
                )

        def bound() -> None:
            left, out = self._region(gemm.x), self._region(gemm.y)
            residual = None if gemm.residual is None else self._region(gemm.residual)
            depth = x.end if gemm.multiplies else 0
            norm = None if gemm.norm is None else RowNorm(y.count, gemm.norm.eps, gemm.norm.rms)
            activation = None if gemm.activation is None else gemm.activation.value
            for b, rows in enumerate(self.net.rows):
                for c, row in self._row_tiles(able, rows, depth, y.stored):
                    for at, count in _strips(c, y.stored):
                        place = b * self.pitch + row, at
                        operands = Operands(
                            left.at(place[0], 0),
                            weights[_bank(c.weights)].at(0, at) if weights else None,
                            -(-depth // c.tile.depth),
                            vectors={op: v[_bank(c.added[op])].at(0, at) for op, v in vectors.items() if c.takes(op)},
                            residual=None if residual is None else residual.at(*place),
                        )
                        store = Store(c.tile.rows, count * c.tile.columns, activation, norm)
                        self.work.strip(c, operands, out.at(*place), count, store)

        return bound

    def _attention(self, att: AttentionLayer) -> Callable[[], None]:
        """Check an attention and reserve the constants of its bias. Returns what binds it."""
        scoring = self._able(lambda c: require_scores(c, att, self.net.rows, self.row_grain, self.overlay))
        valuing = self._able(lambda c: require_values(c, att, self.pitch, self.overlay))
        bias = None if att.bias is None else self._scores_bias(att, att.bias)

        def bound() -> None:
            for b, rows in enumerate(self.net.rows):
                for head in range(att.heads):
                    self._scores(att, scoring, bias, b, rows, head)
                    self._values(att, valuing, b, rows, head)

        return bound

    def _scores_bias(self, att: AttentionLayer, bias: Array) -> StoredRegion:
        """The bias of scores: one matrix below the other for each sequence and head. Layers with the same bias share
        it."""
        if id(bias) not in self.shared:
            batch, heads, *_ = bias.shape

            def stored() -> Array:
                out = np.zeros((batch, heads, self.pitch, self.pitch), np.float32)
                kept = bias[:, :, : self.pitch, : self.pitch]
                out[:, :, : kept.shape[2], : kept.shape[3]] = kept
                return out.reshape(-1, self.pitch)

            shape, bank = (batch * heads * self.pitch, self.pitch), self.circuits.activations_bank
            self.shared[id(bias)] = self._weight(f"{att.path}.scores_bias", bank, shape, stored)
        return self.shared[id(bias)]

    def _scores(
        self, att: AttentionLayer, able: Sequence[Circuit], bias: StoredRegion | None, b: int, rows: int, head: int
    ) -> None:
        """softmax(q @ k^T + bias) of one head of sequence `b`, into the buffer of scores."""
        heads, keys = self.columns[att.q], padded(rows, self.row_grain)
        first, out = head * heads.pitch, self._region(self.scores)
        q, k = self._region(att.q), self._region(att.k)
        first_key = head // att.groups * self.columns[att.k].pitch
        columns: int | LengthField | None = None if keys == rows else rows
        if att.masked:
            columns = LengthField(b, 0, rows)
        for c, row in self._row_tiles(able, rows, att.head_dim, keys):
            residual = None
            if bias is not None and att.bias is not None:
                batch, count = att.bias.shape[:2]
                residual = bias.at((b % batch * count + head % count) * self.pitch + row, 0)
            operands = Operands(
                q.at(b * self.pitch + row, first),
                k.at(b * self.pitch, first_key),
                -(-att.head_dim // c.tile.depth),
                transposed=True,
                residual=residual,
            )
            softmax = Softmax(columns, causal=att.causal, offset=row if att.causal else 0)
            self.work.strip(c, operands, out.at(row, 0), keys // c.tile.columns, Store(c.tile.rows, keys), softmax)

    def _values(self, att: AttentionLayer, able: Sequence[Circuit], b: int, rows: int, head: int) -> None:
        """Scores @ v of one head of sequence `b`."""
        heads, keys = self.columns[att.y], padded(rows, self.row_grain)
        scores, v, out = (self._region(name) for name in (self.scores, att.v, att.y))
        for c, row in self._row_tiles(able, rows, keys, heads.pitch):
            for at, count in _strips(c, heads.pitch):
                value = v.at(b * self.pitch, head // att.groups * self.columns[att.v].pitch + at)
                operands = Operands(scores.at(row, 0), value, keys // c.tile.depth)
                place = out.at(b * self.pitch + row, head * heads.pitch + at)
                self.work.strip(c, operands, place, count, Store(c.tile.rows, count * c.tile.columns))

    # -- instructions

    def _emitted(self, work: dict[str, UnitWork]) -> UnpackedProgram:
        """The instructions of every unit. Raises `UnsupportedError` for a value that a field does not hold."""
        made: dict[str, tuple[Record, ...]] = {}
        patches: dict[str, list[KernelPatch]] = {}
        for u in self.overlay.units:
            try:
                items = work[u.name].items
                made[u.name] = tuple(instructions(self.overlay, u, items, patches)) if items else ()
            except FieldError as e:
                raise UnsupportedError(f"{u.name} of overlay {self.overlay.name}: {e}") from e
        sequences = {unit: of_unit for unit, of_unit in made.items() if of_unit}
        ops = self.overlay.unrolled(made)
        listed = {u.name for u in self.overlay.units if u.kind in self.overlay.preloaded}
        return UnpackedProgram(
            overlay=self.overlay,
            sequences={u: s for u, s in sequences.items() if u not in listed},
            preloaded={u: s for u, s in sequences.items() if u in listed},
            buffers=tuple(self.buffers.values()),
            parameters=parameters_of(self.net.rows, patches),
            patches={name: tuple(p) for name, p in patches.items()},
            segments=tuple(self._segments(work)) if all(len(ops[u]) == len(work[u].items) for u in made) else (),
        )

    def _segments(self, work: dict[str, UnitWork]) -> Iterator[ProgramSegment]:
        """Every layer as a segment, with the instructions of each unit that belong to it. Valid if each item is one
        instruction; otherwise nobody but the overlay knows which items an instruction is for."""
        for number, layer in enumerate(self.net.layers):
            uops = {unit: ranges for unit, of_unit in work.items() if (ranges := of_unit.ranges(number))}
            kind = kind_of(layer if isinstance(layer, AttentionLayer) else [layer])
            yield ProgramSegment(layer.y, (layer.path, *layer.fused), kind, (layer.y,), uops)


def _bank(path: Path) -> str:
    """The bank that a path begins at."""
    return str(path.units[0].bank)


def _strips(circuit: Circuit, columns: int) -> Iterator[tuple[int, int]]:
    """Cut columns into strips: the first column and the number of tiles of each."""
    tiles, width = columns // circuit.tile.columns, circuit.tile.columns
    for first in range(0, tiles, circuit.strip):
        yield first * width, min(circuit.strip, tiles - first)


def _bound(overlay: Overlay, circuit: Circuit, rows: int, depth: int, columns: int, rated: bool) -> float:
    """A bound of the seconds of a product on a circuit: padded tiles times the rate of the product unit. A pass without
    a product counts as one tile of K. rated: all units that are compared have a rate; otherwise the bound is in
    multiply-adds."""
    tile, able = circuit.tile, circuit.matmul
    multiply_adds = padded(rows, tile.rows) * padded(max(depth, 1), tile.depth) * columns
    if able.rate is None or not rated:
        return multiply_adds
    return multiply_adds / able.elements * overlay.seconds[able.rate]
