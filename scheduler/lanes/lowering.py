"""From a network to the instructions of an overlay of row lanes.

The layers become operations on the rows of a panel (`operations`). What one computes stays in X; what a later one needs
and X no longer has is stored (`plan`). A panel goes through all operations, or, where its rows attend to rows of other
panels, up to the next attention: keys and values of all these panels are stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ...base.errors import ScheduleError, UnsupportedError
from ...isa.lanes import HeadFunctions
from ...isa.layout import Layout, block, padded
from ...isa.overlay import Overlay
from ...isa.overlays.xnn2.emission import Emission
from ...isa.program import Buffer, ProgramSegment, Role, UnpackedProgram
from ..chain import parameters_of
from ..dram import Lowered, PackedWeights
from ..graph import Array, AttentionLayer, Gemm, LayerGraph, Output, Rotary
from ..groups import kind_of
from ..memory import Columns, check_room, lay_out_heads, plain
from ..repeats import folded
from ..schedule import USUAL_LANES, Interleave, Schedule
from . import attend as rounds
from .blocks import (
    TILE,
    AttentionHeads,
    HeadOps,
    Mask,
    Matrix,
    Panel,
    Sequences,
    TiledProduct,
    Vectors,
)
from .modes import Mode, modes_of
from .operations import AddResidual, Attend, Copy, Feed, Matched, Operation, Project, check_width, projected
from .order import order_ddr
from .panels import EMPTY, LATE, PanelEmitter, Residual, panels_of, shared
from .plan import Banks, PlannedKeys, PlannedLoad, PlannedOperation, Planner, Step


def columns_on(network: LayerGraph, overlay: Overlay) -> dict[str, Columns]:
    """How the columns of each activation are stored, by its name. Raises `UnsupportedError` for heads that no tile
    holds."""
    return _columns(projected(network), overlay)


def _columns(network: LayerGraph, overlay: Overlay) -> dict[str, Columns]:
    product = overlay.capability("matmul")
    assert product is not None
    widest = int(product.limits["tile_columns"][1])

    def heads(count: int, width: int) -> Columns:
        if width > widest:
            raise UnsupportedError(f"heads of {width} columns; overlay {overlay.name} has heads of up to {widest}")
        return Columns(count, width, TILE // 2 if width <= TILE // 2 else TILE)

    widths = {**network.inputs, **{layer.y: network.columns(layer.y) for layer in network.layers}}
    out = {name: Columns(1, count, count) for name, count in widths.items()}
    lay_out_heads(network, out, heads)
    return out


class Lowering:
    """Lowers one network in one mode. mode: how the lanes share rows and columns. Raises `ScheduleError` for a schedule
    that does not apply and for operands whose rows do not match, `UnsupportedError` for what the lanes cannot
    compute."""

    def __init__(self, network: LayerGraph, overlay: Overlay, schedule: Schedule, mode: Mode) -> None:
        if replace(schedule, lanes=USUAL_LANES) not in (Schedule(), Schedule(interleave=Interleave.STRICT)):
            raise ScheduleError(
                f"overlay {overlay.name} has lanes: models are lowered by the schedule paper, with knobs of lanes only"
            )
        mode.check()
        network.check_rows()
        masks = {layer.mask for layer in network.layers if isinstance(layer, AttentionLayer)}  # refused below, by name
        other = next((n for n in network.inputs if n not in masks and network.seq_of(n) != network.seq), None)
        if other is not None:
            raise UnsupportedError(
                f"{other}: sequences of {network.seq_of(other)} rows, beside those of {network.seq}; overlay "
                f"{overlay.name} takes one number of rows"
            )
        network = projected(network)
        self.net, self.overlay, self.mode = network, overlay, mode
        self.columns = _columns(network, overlay)
        matched = Matched(network, mode, overlay.name)
        self.ops = matched.operations()
        self.matched = matched
        for op in self.ops:
            self._check(op)
        self.sequences = Sequences(tuple(network.rows))
        self.panels, self.on_chip = self._panels()
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Callable[[], Array]] = {}
        self.ends = dict.fromkeys(overlay.banks, 0)
        assert overlay.lanes is not None
        self.emission = Emission(overlay)
        self.rows = PanelEmitter(self.emission, self.sequences, mode)
        self.banks = overlay.lanes
        self.spare = 0.0
        """Elements of weights of second halves that still go to the bank of weights (`_balanced`)."""
        self.products: dict[int, TiledProduct] = {}
        self.rotations: list[tuple[int, Array, Array, int]] = []
        """Tables of cosines and sines: address, both, and the pitch of heads."""
        self.scales: dict[int, int] = {}
        """Addresses of the scales of sums, by layer."""

    # -- panels

    def _panels(self) -> tuple[list[list[Panel]], bool]:
        """Panels in groups that share sequences, and whether keys and values stay on chip: if that needs no more
        panels."""
        size = self.mode.rows
        packed = panels_of(self.sequences, size)
        groups = list(shared(packed))
        if not any(isinstance(op, Attend) for op in self.ops) or all(len(g) == 1 for g in groups):
            return groups, True
        whole: list[list[Panel]] = []
        rows = list(self.sequences.all)
        for seq in range(len(self.sequences.rows)):
            of = tuple(t for t in rows if t.seq == seq)
            if len(of) > size:
                return groups, False
            if whole and len(whole[-1][0].tiles) + len(of) <= size:
                whole[-1] = [Panel(whole[-1][0].tiles + of)]
            else:
                whole.append([Panel(of)])
        return (whole, True) if len(whole) <= len(packed) else (groups, False)

    # -- checks

    def _check(self, op: Operation) -> None:
        """Raise `UnsupportedError` for an operation that X does not hold."""
        for operand in (op.x, op.residual):
            if operand is None:
                continue
            check_width(op.layers[0].place, self.columns[operand.name].stored, self.mode)
        if isinstance(op, Attend):
            for p in (op.q, op.k, op.v):
                if p.gated or (p.norm is not None and not p.in_heads):
                    raise UnsupportedError(f"{p.place}: a gate or a norm of whole rows of queries, keys or values")

    # -- off-chip memory

    def _buffer(self, name: str, bank: str, shape: tuple[int, ...], layout: Layout, role: Role, **more: object) -> int:
        """Add a buffer. Returns the address of its first element."""
        base, n = name, 2
        while name in self.buffers:
            name, n = f"{base}.{n}", n + 1
        unit = self.overlay.address_unit
        made = Buffer(name, bank, self.ends[bank], shape, layout, role, **more)  # type: ignore[arg-type]
        self.buffers[name] = made
        self.ends[bank] = padded(made.offset + -(-made.size // unit), 64)
        return made.offset * unit

    def _weight(self, name: str, bank: str, shape: tuple[int, ...], layout: Layout, stored: Callable[[], Array]) -> int:
        before = set(self.buffers)
        at = self._buffer(name, bank, shape, layout, Role.WEIGHT)
        (new,) = set(self.buffers) - before
        self.weights[new] = lambda: np.ascontiguousarray(stored(), np.float32).reshape(-1)
        return at

    def _product(self, gemm: Gemm) -> TiledProduct:
        """The weights of a product, stored."""
        if id(gemm) in self.products:
            return self.products[id(gemm)]
        x, y = self.columns[gemm.x], self.columns[gemm.y]
        rows, columns = x.stored, y.stored
        positions = x.positions()
        places = y.positions()
        if gemm.gated:
            # pairs of tiles: gate, and what it multiplies
            gate = places // TILE * 2 * TILE + places % TILE
            places = np.concatenate([gate, gate + TILE])
            columns *= 2

        parts = self.mode.split(columns // TILE // (1 + gemm.gated))
        matrices: list[Matrix] = []
        for number, part in enumerate(parts):
            each = TILE * (1 + gemm.gated)
            first, end = part.start * each, part.stop * each

            def weight(first: int = first, end: int = end) -> Array:
                out = np.zeros((rows, columns), np.float32)
                out[np.ix_(positions, places)] = gemm.weight
                return block(np.ascontiguousarray(out[:, first:end]))

            size = rows * (end - first)
            in_activations = bool(number) and size > self.spare
            if number and not in_activations:
                self.spare -= size
            bank = self.banks.activations if in_activations else self.banks.weights
            name = f"{gemm.path}.weight" + (f".{number}" if number else "")
            at = self._weight(name, bank, (rows, end - first), Layout.BLOCKED, weight) if part else 0
            matrices.append(Matrix(at, rows // TILE, (end - first) // TILE, in_activations))
        scale = gemm.residual_scale if gemm.residual is not None else None
        scaled = scale is not None and not bool(np.all(scale == 1))
        vectors: Vectors | None = None
        if np.any(gemm.bias) or scaled:

            def both() -> Array:
                each = [_placed(gemm.bias, places, columns)]
                if scaled:
                    each.append(_placed(np.asarray(gemm.residual_scale), places, columns))
                return np.stack([v.reshape(-1, TILE) for v in each], axis=1).reshape(-1)

            size = columns * (1 + scaled)
            vectors = Vectors(
                self._weight(f"{gemm.path}.bias", self.banks.weights, (size,), Layout.LINEAR, both), 1 + scaled
            )
        head: HeadOps | None = None
        if gemm.in_heads:
            functions = HeadFunctions(y.pitch, rotate=gemm.rotary is not None)
            if gemm.norm is not None:
                functions = replace(functions, columns=y.width, eps=gemm.norm.eps, rms=gemm.norm.rms)
            head = HeadOps(functions)
            if gemm.rotary is not None:
                table, gains = self._table(gemm, y.pitch)
                head = HeadOps(replace(functions, gains=gains is not None), table, gains)
        made = TiledProduct(
            tuple(matrices),
            rows // TILE,
            columns // TILE // (1 + gemm.gated),
            vectors,
            None if gemm.activation is None else gemm.activation.value,
            gemm.gated,
            head,
        )
        self.products[id(gemm)] = made
        return made

    def _table(self, gemm: Gemm, pitch: int) -> tuple[int, int | None]:
        """The tables of a rotation, one for each row tile of the longest sequence: the address of the first. And the
        address of the gains of a tile's columns, None if all are 1."""
        assert gemm.rotary is not None
        made = _rotation(gemm.rotary)
        if made is None:
            raise UnsupportedError(f"{gemm.place}: a rotation that is none of pairs of columns")
        cos, sin, gains = made
        half = cos.shape[1]
        table = next((at for at, *known in self.rotations if _alike(known, (cos, sin, pitch))), None)
        if table is None:
            tiles = max(self.sequences.tiles(s) for s in range(len(self.sequences.rows)))

            def stored() -> Array:
                out = np.zeros((tiles * TILE, TILE), np.float32)
                rows = np.minimum(np.arange(tiles * TILE), len(cos) - 1)
                out[:, :half] = cos[rows]
                out[:, pitch // 2 : pitch // 2 + half] = sin[rows]
                return out

            shape = tiles * TILE, TILE
            table = self._weight(f"{gemm.path}.rotary", self.banks.weights, shape, Layout.LINEAR, stored)
            self.rotations.append((table, cos, sin, pitch))
        if bool(np.all(gains == 1)):
            return table, None

        def factors() -> Array:
            out = np.zeros(TILE, np.float32)
            for first in range(0, TILE, pitch):
                out[first : first + len(gains)] = gains
            return out

        return table, self._weight(f"{gemm.path}.gains", self.banks.weights, (TILE,), Layout.LINEAR, factors)

    def _matrix(self, name: str) -> Matrix:
        b = self.buffers[name]
        return Matrix(b.offset * self.overlay.address_unit, b.shape[0] // TILE, b.shape[1] // TILE)

    def _activation(self, name: str, output: Output | None = None) -> None:
        columns = self.columns[name]
        role = Role.INPUT if name in self.net.inputs else Role.SCRATCH if output is None else Role.OUTPUT
        shape = (len(self.sequences.all) * TILE, columns.stored)
        view = None if role is Role.SCRATCH else (self.net.batch, self.net.seq, columns.count)
        scale, shift = (None, None) if output is None else (plain(output.scale), plain(output.shift))
        rows = () if view is None else self.net.lengths
        self._buffer(
            name, self.banks.activations, shape, Layout.BLOCKED, role, view=view, rows=rows, scale=scale, shift=shift
        )

    # -- steps

    def lowered(self) -> Lowered:
        """Emit all panels, and order the accesses of DDR. Raises `UnsupportedError` for keys, values or probabilities
        that do not fit, `RoomError` if a bank is too small, `ScheduleError` for a `lag` that there is no room for, and
        `DeadlockError` like `order_ddr`."""
        outputs = {o.name: o for o in self.net.outputs}
        cut = not self.on_chip
        planner = Planner(self.ops, {*self.net.inputs, *outputs}, self.matched.norms, cut=cut)
        sections = range(len(planner.sections()))
        visits = [
            (panel, section)
            for group in self.panels
            for section in sections
            for panel in (group if section % 2 == 0 else group[::-1])
        ]
        known: set[str] = set()
        while planner.stored != known:
            known = set(planner.stored)
            plans = self._plans(planner, visits)
        normed = {op.x.name for op in self.ops if op.x.norm is not None}
        normed |= {op.residual.name for op in self.ops if op.residual is not None and op.residual.norm is not None}
        self.normed = normed
        for name in self.net.inputs:
            self._activation(name)
        for op in self.ops:
            if op.y in planner.stored:
                self._activation(op.y, outputs.get(op.y))
        self.spare = self._balanced() if self.mode.halves > 1 else 0.0
        self.kv: dict[int, AttentionHeads] = {}
        for op in self.ops:
            if isinstance(op, Attend):
                self.kv[id(op)] = self._attention(op, cut)
        self._emit(plans)
        check_room(self.buffers.values(), self.overlay, self.net.size, self.banks.weights, self.banks.activations)
        return self._finished()

    def _balanced(self) -> float:
        """Elements of the weights of second halves that lie in the bank of weights, so that both banks take the same
        time: the other one has activations to move as well."""
        seconds = [
            self.overlay.seconds[str(self.overlay.capability_of(unit.name, "load").rate)]
            for bank in (self.banks.weights, self.banks.activations)
            for unit in self.overlay.units
            if unit.bank == bank
        ]
        weights = sum(layer.weight.size for layer in self.net.layers if isinstance(layer, Gemm))
        moved = sum(b.size for b in self.buffers.values() if b.bank == self.banks.activations)
        share = seconds[1] / sum(seconds)
        asked = self.mode.knobs.lpddr
        in_first = share * (weights + moved) if asked is None else asked * weights
        return max(in_first - weights / 2, 0.0)

    def _attention(self, op: Attend, cut: bool) -> AttentionHeads:
        a = op.attention
        stored: tuple[Matrix, Matrix] | None = None
        if cut:
            for p in (op.k, op.v):
                self._activation(p.y)
            stored = self._matrix(op.k.y), self._matrix(op.v.y)
        mask = Mask(a.causal, a.window, a.masked, a.left, a.softcap or 0.0)
        q, k, v = (self._product(p) for p in (op.q, op.k, op.v))
        return AttentionHeads(q, k, v, a.heads, a.kv_heads or a.heads, self.columns[a.q].pitch, mask, stored)

    def _plans(self, planner: Planner, visits: Sequence[tuple[Panel, int]]) -> list[tuple[Panel, list[Step]]]:
        """The steps of all visits. A panel that goes on finds in X what it has left there."""
        out: list[tuple[Panel, list[Step]]] = []
        banks: Banks = [None, None]
        for panel, section in visits:
            if not out or panel is not out[-1][0]:
                planner.prefer, banks = self._free(out), [None, None]
            out.append((panel, planner.plan(section, banks)))
        return out

    def _emit(self, plans: Sequence[tuple[Panel, list[Step]]]) -> None:
        """Emit the visits of panels. The first load of a visit goes beside the last operation of the one before."""
        brought = False
        for (panel, steps), after in zip(plans, [*plans[1:], None], strict=True):
            with_next: Iterator[None] = EMPTY
            for number, step in enumerate(steps):
                if isinstance(step, PlannedLoad):
                    bringing = EMPTY if brought else self._bring(panel, step)
                    brought = False
                    follows = steps[number + 1]
                    if (
                        isinstance(follows, PlannedOperation)
                        and isinstance(follows.op, Attend)
                        and follows.bank != step.bank
                    ):
                        with_next = bringing  # a residual, which is needed late
                        continue
                    for _ in bringing:
                        pass
                    continue
                beside, behind = with_next, EMPTY
                with_next = EMPTY
                load = after[1][0] if after is not None and after[1] else None
                is_last = number == len(steps) - 1
                if is_last and after is not None and isinstance(load, PlannedLoad) and load.bank == self._left(step):
                    beside, behind = self._early(after[0], load, step)
                    brought = True
                self._step(panel, step, beside, behind)

    @staticmethod
    def _left(step: Step) -> int | None:
        """The bank of X that is free when a step ends; None if none is."""
        if isinstance(step, PlannedKeys):
            return 1 - step.bank
        if isinstance(step, PlannedOperation):
            if isinstance(step.op, Feed):
                return step.bank
            if isinstance(step.op, Project) and step.to is None:
                return 1 - step.bank
        return None

    def _free(self, plans: Sequence[tuple[Panel, list[Step]]]) -> int:
        """The bank into which the next visit loads first."""
        left = self._left(plans[-1][1][-1]) if plans else 0
        return left or 0

    def _bring(self, panel: Panel, load: PlannedLoad) -> Iterator[None]:
        matrix = self._matrix(load.name)
        width = self.columns[load.name].end
        return self.rows.bring(panel, matrix, load.bank, width, load.name in self.normed)

    def _early(self, panel: Panel, load: PlannedLoad, step: Step) -> tuple[Iterator[None], Iterator[None]]:
        """Emitters of a load that goes beside a step: one for beside its slices, one for between its last ones. Beside
        a feed-forward X has no room: T holds as many rows as it can, and the others come as those leave."""
        matrix = self._matrix(load.name)
        width = self.columns[load.name].end
        if isinstance(step, PlannedOperation) and isinstance(step.op, Feed):
            stage, normed = self.rows.stage(panel, matrix), load.name in self.normed
            return (
                islice(stage, self.mode.staging),
                self.rows.land(panel, load.bank, matrix.columns, width, normed, LATE, stage),
            )
        return self._bring(panel, load), EMPTY

    def _step(self, panel: Panel, step: Step, beside: Iterator[None], behind: Iterator[None]) -> None:
        rows = self.rows
        assert not isinstance(step, PlannedLoad)
        self.emission.segment = self.ops.index(step.op)
        if isinstance(step, PlannedKeys):
            rows.keys_to_ddr(panel, self.kv[id(step.op)], step.bank, step.norm, beside)
            for _ in beside:
                pass
            return
        assert isinstance(step, PlannedOperation)
        op, bank, norm, residual = step.op, step.bank, step.norm, step.residual
        width = self.columns[op.y].end
        if isinstance(op, Attend):
            out = self._product(op.out)
            try:
                rounds.AttentionEmitter(rows, panel, self.kv[id(op)], out, bank, norm, residual, width, beside).emit()
            except UnsupportedError as error:
                raise UnsupportedError(f"{op.attention.place}: {error}") from None
        elif isinstance(op, Feed):
            up, down = self._product(op.up), self._product(op.down)
            rows.feed_forward(panel, up, down, bank, norm, residual, width, beside, behind)
        elif isinstance(op, Copy):
            columns = self.columns[op.y].stored // TILE
            rows.copy(panel, columns, Residual(bank, norm), self._scale(op.gemm), width)
        elif isinstance(op, AddResidual):
            assert residual is not None
            rows.add(panel, self.columns[op.y].stored // TILE, bank, residual, self._scale(op.gemm), width)
        elif isinstance(op, Project) and step.to is not None:
            p = self._product(op.gemm)
            rows.product_on_chip(panel, p, bank, norm, residual, width)
        elif isinstance(op, Project):
            p = self._product(op.gemm)
            rows.product(panel, p, bank, norm, self._matrix(op.y), beside)
            for _ in beside:
                pass
        if step.to is not None and step.stored:
            rows.store(panel, step.to, self._matrix(op.y), self.matched.norms.get(op.y))

    def _scale(self, gemm: Gemm) -> int | None:
        """The address of the scale of a sum's residual; None if all are 1."""
        scale = gemm.residual_scale
        if scale is None or bool(np.all(scale == 1)):
            return None
        if id(gemm) not in self.scales:
            y = self.columns[gemm.y]
            self.scales[id(gemm)] = self._weight(
                f"{gemm.path}.scale",
                self.banks.weights,
                (y.stored,),
                Layout.LINEAR,
                lambda: _placed(np.asarray(scale), y.positions(), y.stored),
            )
        return self.scales[id(gemm)]

    # -- the result

    def _finished(self) -> Lowered:
        e = self.emission
        e.segment = len(self.ops) - 1
        e.finish()
        sequences = e.sequences()
        preloaded = {unit: folded(ops, e.repeat) for unit, ops in e.op_lists().items()}
        ordered = order_ddr(e, sequences, preloaded, self.overlay)
        sequences[ordered.unit] = ordered.mops
        patches = {name: tuple(found) for name, found in e.patches.items()}
        segments = tuple(
            ProgramSegment(op.y, _paths(op), _kind(op), (op.y,) if op.y in self.buffers else (), uops)
            for op, uops in zip(self.ops, e.ranges(ordered.order), strict=True)
        )
        kernels = UnpackedProgram(
            overlay=self.overlay,
            sequences=sequences,
            preloaded=preloaded,
            buffers=tuple(self.buffers.values()),
            parameters=parameters_of(self.net.rows, patches),
            patches=patches,
            segments=segments,
        )
        return Lowered(kernels, PackedWeights(self.weights), ordered.run, ordered.starts)


def _rotation(rotary: Rotary) -> tuple[Array, Array, Array] | None:
    """A rotation as cosines and sines of pairs of columns, (rows, pairs), and gains that multiply the columns before:
    own[a] = cos * gain[a], partner[b] = sin * gain[a], own[b] = cos * gain[b], partner[a] = -sin * gain[b]. None if
    it is none."""
    own, partner = np.asarray(rotary.own, np.float64), np.asarray(rotary.partner, np.float64)
    if own.shape[1] % 2:
        return None
    a, b = own[:, 0::2], own[:, 1::2]
    towards_b, towards_a = partner[:, 1::2], -partner[:, 0::2]
    size = np.hypot(a, towards_b).mean(axis=0), np.hypot(b, towards_a).mean(axis=0)
    by_a = size[0] >= size[1]
    scale = np.where(by_a, size[0], size[1])
    scale = np.where(scale > 0, scale, 1)
    cos, sin = np.where(by_a, a, b) / scale, np.where(by_a, towards_b, towards_a) / scale
    gain_a, gain_b = (a * cos + towards_b * sin).mean(axis=0), (b * cos + towards_a * sin).mean(axis=0)
    gains = np.stack([gain_a, gain_b], axis=-1).reshape(-1)
    again = np.stack([cos * gain_a, cos * gain_b, sin * gain_a, sin * gain_b])
    if np.abs(again - np.stack([a, b, towards_b, towards_a])).max(initial=0) > 1e-6 * max(scale.max(initial=1), 1):
        return None
    gains = np.where(np.abs(gains - 1) < 1e-6, 1, gains)  # tables of float32
    return cos.astype(np.float32), sin.astype(np.float32), gains.astype(np.float32)


def _paths(op: Operation) -> tuple[str, ...]:
    """Module paths of the layers of an operation."""
    return tuple(dict.fromkeys(path for layer in op.layers for path in (layer.path, *layer.fused)))


def _kind(op: Operation) -> str:
    """The kind of an operation as a segment."""
    return ", ".join(kind_of(layer if isinstance(layer, AttentionLayer) else [layer]) for layer in op.layers)


def _alike(known: Sequence[Any], made: Sequence[Any]) -> bool:
    """Whether two tables are equal but for the rounding of what they were computed from."""
    (cos, sin, pitch), (a, b, other) = known, made
    return pitch == other and cos.shape == a.shape and bool(max(np.abs(cos - a).max(), np.abs(sin - b).max()) < 1e-6)


def _placed(vector: npt.NDArray[np.floating], places: npt.NDArray[np.intp], columns: int) -> Array:
    out = np.zeros(columns, np.float32)
    out[places] = vector
    return out


def best(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowering:
    """The lowering in the mode that the schedule names. If it names none: P3 if the schedule sets `lanes.lpddr`; else
    the mode whose panels take less time together, where a panel of P3, with half the rows, counts half the time of one
    of R6; and P3 if the lanes cannot compute the network in R6. overlay: of row lanes. Raises as `Lowering` does."""
    assert overlay.lanes is not None
    knobs = schedule.lanes
    modes = modes_of(overlay.lanes, knobs)
    if knobs.mode is not None:
        (asked,) = (mode for mode in modes if mode.name == knobs.mode.value)
        return Lowering(network, overlay, schedule, asked)
    if knobs.lpddr is not None:
        return Lowering(network, overlay, schedule, modes[-1])
    sequences = Sequences(tuple(network.rows))
    by_time = sorted(modes, key=lambda m: len(panels_of(sequences, m.rows)) / m.halves)
    try:
        return Lowering(network, overlay, schedule, by_time[0])
    except UnsupportedError:
        if by_time[0] is modes[-1]:  # it holds the widest rows
            raise
    return Lowering(network, overlay, schedule, modes[-1])


def lower(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
    """Lower a network to the instructions of an overlay of row lanes (`Overlay.lanes`). Raises as `Lowering` and
    `Lowering.lowered` do; an `UnsupportedError` names the layer, or the memory that is too small."""
    return best(network, overlay, schedule).lowered()


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Raise the errors of `Lowering` for this network, without emitting anything; errors that only `Lowering.lowered`
    finds are not raised."""
    best(network, overlay, schedule)
