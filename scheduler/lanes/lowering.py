"""From a network to the instructions of an overlay of row lanes.

The layers become operations on the rows of a panel: attention with its projections, two products with functions between
them, single products, sums. What an operation computes stays in X; what a later one needs and X no longer has is stored.
A panel runs through all operations, or, where its rows attend to rows of other panels, up to the next attention: keys
and values of all these panels are stored first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.errors import ScheduleError, UnsupportedError
from ...isa.layout import Layout, block, padded
from ...isa.overlay import Overlay
from ...isa.overlays.xnn2.results import IDENTITY
from ...isa.overlays.xnn2.rows import COLUMNS
from ...isa.program import Buffer, Role, UnpackedProgram
from ..chain import parameters_of
from ..dram import Lowered, Weights
from ..graph import Activation, Array, AttentionLayer, Gemm, LayerGraph, Norm, Output, Rotary
from ..memory import Columns, lay_out_heads, plain
from ..room import check_room
from ..schedule import Interleave, Schedule
from .blocks import (
    TILE,
    TILE_SIZE,
    Attention,
    HeadOps,
    Mask,
    Matrix,
    Panel,
    Product,
    RowNorm,
    Sequences,
    Vectors,
)
from .emission import Emission
from .order import order_ddr
from .panels import EMPTY, P3, R6, Mode, Residual, Rows, panels_of, shared

ACTIVATIONS = {
    None: IDENTITY,
    Activation.GELU_TANH: 0,
    Activation.GELU_ERF: 1,
    Activation.RELU: 2,
    Activation.SILU: 3,
}


# -- operations -------------------------------------------------------------------------------------------------------


class Operand(NamedTuple):
    """An activation as an operation reads it: what is kept, and the norm that it is sent with."""

    name: str
    norm: RowNorm | None


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a panel. y: what it computes. x, residual: what it reads. layers: that it computes."""

    y: str
    x: Operand
    residual: Operand | None
    layers: tuple[Gemm | AttentionLayer, ...]


@dataclass(frozen=True, eq=False)
class Attend(Operation):
    """attention(x) @ out + residual."""

    attention: AttentionLayer
    q: Gemm
    k: Gemm
    v: Gemm
    out: Gemm


@dataclass(frozen=True, eq=False)
class Feed(Operation):
    """functions(x @ up) @ down + residual."""

    up: Gemm
    down: Gemm


@dataclass(frozen=True, eq=False)
class Multiply(Operation):
    """functions(x @ weight) + residual. stays: the result stays on chip; otherwise it goes to DDR."""

    gemm: Gemm
    stays: bool


@dataclass(frozen=True, eq=False)
class Sum(Operation):
    """x + residual * scale, in place of x."""

    gemm: Gemm


@dataclass(frozen=True, eq=False)
class Copy(Operation):
    """x * scale, in the other bank."""

    gemm: Gemm


def row_norm(norm: Norm | None) -> RowNorm | None:
    """The norm that a read port of X applies."""
    return None if norm is None else RowNorm(norm.eps, norm.rms)


class _Matched:
    """The operations of a network."""

    def __init__(self, network: LayerGraph, mode: Mode) -> None:
        self.net, self.mode = network, mode
        self.made = {layer.y: layer for layer in network.layers}
        self.readers: dict[str, list[Gemm | AttentionLayer]] = {}
        for layer in network.layers:
            for name in layer.operands:
                self.readers.setdefault(name, []).append(layer)
        self.outputs = {o.name for o in network.outputs}
        self.views: dict[str, Operand] = {}
        """Activations that are the norm of another one."""
        self.norms: dict[str, RowNorm | None] = {}
        """The norm with which each activation is sent that is computed here."""

    def operations(self) -> list[Operation]:
        """All operations, in execution order."""
        out: list[Operation] = []
        taken: set[str] = set()
        for layer in self.net.layers:
            if isinstance(layer, AttentionLayer):
                out.append(self._attend(layer))
                taken.add(out[-1].y)
            elif layer.y in taken or self._feeds_attention(layer) or self._is_up(layer):
                continue
            elif self._is_view(layer) and self.operand(str(layer.residual)).norm is None:
                raw = self.operand(str(layer.residual))
                self.views[layer.y] = Operand(raw.name, row_norm(layer.norm))
            else:
                found = self._other(layer)
                taken.add(found.y)
                out.append(found)
            if out:
                self._note(out[-1])
        return out

    def _note(self, op: Operation) -> None:
        last = op.layers[-1]
        self.norms[op.y] = row_norm(last.norm) if isinstance(last, Gemm) and not last.in_heads else None

    def operand(self, name: str, norm: Norm | None = None) -> Operand:
        """How an activation is read. norm: that the layer itself applies to it."""
        if name in self.views:
            found = self.views[name]
        else:
            found = Operand(name, self.norms.get(name))
        if norm is not None:
            if found.norm is not None:
                raise UnsupportedError(f"{name}: a norm of what a norm made")
            found = Operand(found.name, row_norm(norm))
        return found

    def _only(self, name: str) -> Gemm | AttentionLayer | None:
        """The only layer that reads an activation that is no output; None if there are others."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.outputs else None

    def _is_view(self, layer: Gemm) -> bool:
        """Whether a layer does nothing but a norm over one activation, which only operations on chip read."""
        scale = layer.residual_scale
        return (
            not layer.multiplies
            and not layer.is_sum
            and layer.norm is not None
            and layer.activation is None
            and layer.residual_norm is None
            and (scale is None or bool(np.all(scale == 1)))
            and layer.y not in self.outputs
        )

    def _feeds_attention(self, layer: Gemm) -> bool:
        reader = self._only(layer.y)
        return isinstance(reader, AttentionLayer) and layer.y in (reader.q, reader.k, reader.v)

    def _is_up(self, layer: Gemm) -> bool:
        """Whether a product is only read by another product, and can be computed with it."""
        reader = self._only(layer.y)
        return (
            isinstance(reader, Gemm)
            and reader.multiplies
            and reader.x == layer.y
            and reader.residual != layer.y
            and reader.x_norm is None
            and layer.multiplies
            and layer.residual is None
            and layer.norm is None
            and not layer.in_heads
            and self._is_slice(reader)
            and layer.x not in (reader.y,)
        )

    def _is_slice(self, gemm: Gemm) -> bool:
        """Whether slices of K can be added up in X: nothing but a norm is applied to the sum."""
        return (
            gemm.multiplies
            and gemm.activation is None
            and not gemm.gated
            and not gemm.in_heads
            and padded(gemm.width, TILE) // TILE <= self.mode.columns
        )

    def _attend(self, a: AttentionLayer) -> Attend:
        products = [self.made.get(name) for name in (a.q, a.k, a.v)]
        out = self._only(a.y)
        for name, p in zip((a.q, a.k, a.v), products, strict=True):
            if not isinstance(p, Gemm) or not self._feeds_attention(p) or p.residual is not None or p.activation:
                raise UnsupportedError(
                    f"{a.place}: {name} is not a product that only this attention reads; overlay xnn2 computes "
                    "queries, keys and values beside the attention"
                )
        if not isinstance(out, Gemm) or out.x != a.y or not self._is_slice(out) or out.x_norm is not None:
            raise UnsupportedError(f"{a.place}: no product of up to {self.mode.columns * TILE} columns reads its result alone")
        q, k, v = (p for p in products if isinstance(p, Gemm))
        x = self.operand(q.x, q.x_norm)
        if any(self.operand(p.x, p.x_norm) != x for p in (k, v)):
            raise UnsupportedError(f"{a.place}: queries, keys and values of different activations")
        for what, given in (("a bias", a.bias is not None), ("a mask of numbers", a.mask is not None)):
            if given:
                raise UnsupportedError(f"{a.place}: {what} of scores; overlay xnn2 has masks of rows and columns only")
        return Attend(out.y, x, self._residual(out), (q, k, v, a, out), a, q, k, v, out)

    def _residual(self, gemm: Gemm) -> Operand | None:
        return None if gemm.residual is None else self.operand(gemm.residual, gemm.residual_norm)

    def _other(self, layer: Gemm) -> Operation:
        if layer.is_sum:
            x = self.operand(layer.x, layer.x_norm)
            if x.norm is not None:
                raise UnsupportedError(f"{layer.place}: a sum whose first addend is normalised")
            return Sum(layer.y, x, self._residual(layer), (layer,), layer)
        if not layer.multiplies:
            if layer.activation is not None or layer.in_heads:
                raise UnsupportedError(f"{layer.place}: a pass over one activation that is no norm")
            x = self.operand(str(layer.residual), layer.residual_norm)
            return Copy(layer.y, x, None, (layer,), layer)
        up = self.made.get(layer.x)
        if isinstance(up, Gemm) and self._is_up(up):
            return Feed(layer.y, self.operand(up.x, up.x_norm), self._residual(layer), (up, layer), up, layer)
        x = self.operand(layer.x, layer.x_norm)
        stays = self._is_slice(layer)
        if not stays and (layer.residual is not None or (layer.norm is not None and not layer.in_heads)):
            raise UnsupportedError(
                f"{layer.place}: a residual or a norm of {layer.width} columns; a bank of X has {COLUMNS * TILE} "
                f"({COLUMNS * TILE * TILE * 4 >> 10} KiB), in {self.mode.halves} lanes"
            )
        return Multiply(layer.y, x, self._residual(layer), (layer,), layer, stays)


# -- what a panel does ------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Bring an activation into a bank of X."""

    name: str
    bank: int


class Compute(NamedTuple):
    """An operation. bank: of x. residual: bank of the residual. to: the bank of the result, None for DDR. stored:
    whether the result is stored as well."""

    op: Operation
    bank: int
    residual: int | None
    to: int | None
    stored: bool


class Keys(NamedTuple):
    """Keys and values of an attention, to DDR."""

    op: Attend
    bank: int


Step = Load | Compute | Keys


class _Planner:
    """Which activation lies in which bank, and which ones have to be stored."""

    def __init__(self, operations: Sequence[Operation], inputs: set[str], outputs: set[str], cut: bool) -> None:
        self.ops = operations
        self.inputs, self.outputs, self.cut = inputs, outputs, cut
        self.stored = set(inputs) | outputs
        self.prefer = 0
        """The bank to load into if both are free."""
        self.last: dict[str, int] = {}
        for i, op in enumerate(operations):
            for operand in (op.x, op.residual):
                if operand is not None:
                    self.last[operand.name] = i

    def sections(self) -> list[list[Operation]]:
        """The operations, cut in front of each attention."""
        out: list[list[Operation]] = [[]]
        for op in self.ops:
            if self.cut and isinstance(op, Attend):
                out.append([])
            out[-1].append(op)
        return out

    def plan(self, section: int, banks: list[str | None]) -> list[Step]:
        """The steps of a section. banks: what X holds when it begins; changed in place. Activations that must be stored
        are added to `stored`."""
        sections = self.sections()
        ops = sections[section]
        steps: list[Step] = []
        for op in ops:
            self._operation(op, banks, steps)
        if self.cut and section + 1 < len(sections):
            attend = sections[section + 1][0]
            assert isinstance(attend, Attend)
            bank = self._bring(attend.x.name, banks, steps, keep=())
            steps.append(Keys(attend, bank))
        return steps

    def _bring(self, name: str, banks: list[str | None], steps: list[Step], keep: tuple[str, ...]) -> int:
        """The bank of an activation, which is loaded if X does not have it."""
        if name in banks:
            return banks.index(name)
        self.stored.add(name)
        free = [b for b in range(2) if banks[b] is None or banks[b] not in keep]
        # rather what is not needed any more
        bank = min(free, key=lambda b: (banks[b] is not None, b != self.prefer))
        banks[bank] = name
        steps.append(Load(name, bank))
        return bank

    def _operation(self, op: Operation, banks: list[str | None], steps: list[Step]) -> None:
        residual = None if op.residual is None else op.residual.name
        x = op.x.name
        for b in range(2):
            if banks[b] is not None and self._ended(banks[b], op):
                banks[b] = None
        bank = self._bring(x, banks, steps, keep=tuple(n for n in (residual,) if n in banks))
        to: int | None = 1 - bank
        at: int | None = None
        if isinstance(op, Sum):
            to = bank
        elif isinstance(op, Multiply) and not op.stays:
            to = None
        if residual is not None:
            at = self._bring(residual, banks, steps, keep=(x,))
        if to is None:
            self.stored.add(op.y)
        else:
            lost = banks[to]
            if lost is not None and self._needed(lost, op):
                self.stored.add(lost)
            banks[to] = op.y
        steps.append(Compute(op, bank, at, to, op.y in self.stored))

    def _ended(self, name: str | None, op: Operation) -> bool:
        """Whether nothing from this operation on reads an activation."""
        return self.last.get(str(name), -1) < self.ops.index(op)

    def _needed(self, name: str, op: Operation) -> bool:
        """Whether a later operation reads an activation."""
        return self.last.get(name, -1) > self.ops.index(op)


# -- lowering ---------------------------------------------------------------------------------------------------------


def columns_on(network: LayerGraph) -> dict[str, Columns]:
    """How the columns of each activation are stored."""
    widths = {**network.inputs, **{layer.y: network.columns(layer.y) for layer in network.layers}}
    out = {name: Columns(1, count, count) for name, count in widths.items()}
    lay_out_heads(network, out, lambda heads, width: Columns(heads, width, head_pitch(width)))
    return out


def head_pitch(width: int) -> int:
    """Columns from a head to the next. Raises `UnsupportedError` for heads that no tile holds."""
    if width > TILE:
        raise UnsupportedError(f"heads of {width} columns; overlay xnn2 has heads of up to {TILE}")
    return TILE // 2 if width <= TILE // 2 else TILE


class Lowering:
    """Lowers one network."""

    def __init__(self, network: LayerGraph, overlay: Overlay, schedule: Schedule, mode: Mode) -> None:
        if schedule not in (Schedule(), Schedule(interleave=Interleave.STRICT)):
            raise ScheduleError(f"overlay {overlay.name} has lanes: models are lowered by the schedule paper only")
        network.check_rows()
        other = next((n for n in network.inputs if network.seq_of(n) != network.seq), None)
        if other is not None:
            raise UnsupportedError(
                f"{other}: sequences of {network.seq_of(other)} rows, beside those of {network.seq}; overlay "
                f"{overlay.name} takes one number of rows"
            )
        self.net, self.overlay, self.mode = network, overlay, mode
        self.columns = columns_on(network)
        matched = _Matched(network, mode)
        self.ops = matched.operations()
        self.matched = matched
        for op in self.ops:
            self._check(op)
        self.sequences = Sequences(tuple(network.rows))
        self.panels, self.on_chip = self._panels()
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Callable[[], Array]] = {}
        self.ends = dict.fromkeys(overlay.banks, 0)
        self.emission = Emission()
        self.rows = Rows(self.emission, self.sequences, mode)
        self.products: dict[int, Product] = {}
        self.tables: dict[str, int] = {}

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
            tiles = self.columns[operand.name].stored // TILE
            if tiles > self.mode.columns:
                lanes = self.mode.halves
                raise UnsupportedError(
                    f"{op.layers[0].place}: 128 rows of {tiles * TILE} columns need {tiles * TILE_SIZE * 4 >> 10} KiB; a "
                    f"bank of X has {COLUMNS * TILE_SIZE * 4 >> 10} KiB, and {lanes} lane{'s' * (lanes > 1)} share rows"
                )
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

    def _product(self, gemm: Gemm) -> Product:
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

            bank = "ddr" if number else "lpddr"
            name = f"{gemm.path}.weight" + (f".{number}" if number else "")
            at = self._weight(name, bank, (rows, end - first), Layout.BLOCKED, weight) if part else 0
            matrices.append(Matrix(at, rows // TILE, (end - first) // TILE, bool(number)))
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
                self._weight(f"{gemm.path}.bias", "lpddr", (size,), Layout.LINEAR, both), 1 + scaled
            )
        head: HeadOps | None = None
        if gemm.in_heads:
            head = HeadOps(y.pitch)
            if gemm.norm is not None:
                head = replace(head, columns=y.width, eps=gemm.norm.eps, rms=gemm.norm.rms)
            if gemm.rotary is not None:
                head = replace(head, table=self._table(gemm, y.pitch))
        made = Product(
            tuple(matrices),
            rows // TILE,
            columns // TILE // (1 + gemm.gated),
            vectors,
            ACTIVATIONS[gemm.activation],
            gemm.gated,
            head,
        )
        self.products[id(gemm)] = made
        return made

    def _table(self, gemm: Gemm, pitch: int) -> int:
        """The tables of a rotation, one for each row tile of the longest sequence. Returns the address of the first."""
        rotary = gemm.rotary
        assert rotary is not None
        key = f"{rotary.key} {pitch}"
        if key not in self.tables:
            tiles = max(self.sequences.tiles(s) for s in range(len(self.sequences.rows)))
            made = _rotation(rotary)
            if made is None:
                raise UnsupportedError(f"{gemm.place}: a rotation that is none of pairs of columns")
            cos, sin, gains = made

            def stored() -> Array:
                out = np.zeros((tiles, TILE + 1, TILE), np.float32)
                half = cos.shape[1]
                for i in range(tiles):
                    rows = np.minimum(np.arange(i * TILE, (i + 1) * TILE), len(cos) - 1)
                    out[i, :TILE, :half] = cos[rows]
                    out[i, :TILE, pitch // 2 : pitch // 2 + half] = sin[rows]
                    for first in range(0, TILE, pitch):
                        out[i, TILE, first : first + len(gains)] = gains
                return out

            size = tiles * (TILE + 1) * TILE
            self.tables[key] = self._weight(f"{gemm.path}.rotary", "lpddr", (size,), Layout.LINEAR, stored)
        return self.tables[key]

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
        self._buffer(name, "ddr", shape, Layout.BLOCKED, role, view=view, rows=rows, scale=scale, shift=shift)

    # -- steps

    def lowered(self) -> Lowered:
        """Emit all panels, and order the accesses of DDR."""
        outputs = {o.name: o for o in self.net.outputs}
        cut = not self.on_chip
        planner = _Planner(self.ops, set(self.net.inputs), set(outputs), cut)
        sections = len(planner.sections())
        while True:
            known = set(planner.stored)
            for s in range(sections):
                planner.plan(s, [None, None])
            if planner.stored == known:
                break
        normed = {op.x.name for op in self.ops if op.x.norm is not None}
        normed |= {op.residual.name for op in self.ops if op.residual is not None and op.residual.norm is not None}
        self.normed = normed
        for name in self.net.inputs:
            self._activation(name)
        for op in self.ops:
            if op.y in planner.stored:
                self._activation(op.y, outputs.get(op.y))
        self.kv: dict[int, Attention] = {}
        for op in self.ops:
            if isinstance(op, Attend):
                self.kv[id(op)] = self._attention(op, cut)
        visits = [
            (panel, section)
            for group in self.panels
            for section in range(sections)
            for panel in (group if section % 2 == 0 else group[::-1])
        ]
        self._emit(planner, visits)
        check_room(self.buffers.values(), self.overlay, self.net.size, "lpddr", "ddr")
        return self._finished()

    def _attention(self, op: Attend, cut: bool) -> Attention:
        a = op.attention
        stored: tuple[Matrix, Matrix] | None = None
        if cut:
            for p in (op.k, op.v):
                self._activation(p.y)
            stored = self._matrix(op.k.y), self._matrix(op.v.y)
        mask = Mask(a.causal, a.window, a.masked, a.left, a.softcap or 0.0)
        products = (self._product(p) for p in (op.q, op.k, op.v))
        return Attention(
            *products, a.heads, a.kv_heads or a.heads, self.columns[a.q].pitch, mask, stored
        )

    def _emit(self, planner: _Planner, visits: Sequence[tuple[Panel, int]]) -> None:
        """Emit the visits of panels. The first load of a visit goes beside the last operation of the one before."""
        banks: list[str | None] = [None, None]
        before: Panel | None = None
        plans: list[tuple[Panel, list[Step]]] = []
        for panel, section in visits:
            if panel is not before:
                planner.prefer, banks = self._free(plans), [None, None]
            plans.append((panel, planner.plan(section, banks)))
            before = panel
        brought = False
        for (panel, steps), after in zip(plans, [*plans[1:], None], strict=True):
            for number, step in enumerate(steps):
                if isinstance(step, Load):
                    if not brought:
                        for _ in self._bring(panel, step):
                            pass
                    brought = False
                    continue
                beside, behind, is_last = EMPTY, EMPTY, number == len(steps) - 1
                load = after[1][0] if after is not None and after[1] else None
                if is_last and after is not None and isinstance(load, Load) and load.bank == self._left(step):
                    beside, behind = self._early(after[0], load, step)
                    brought = True
                self._step(panel, step, beside, behind)

    @staticmethod
    def _left(step: Step) -> int | None:
        """The bank that is free behind a step."""
        if isinstance(step, Keys):
            return 1 - step.bank
        if isinstance(step, Compute):
            if isinstance(step.op, Feed):
                return step.bank
            if isinstance(step.op, Multiply) and step.to is None:
                return 1 - step.bank
        return None

    def _free(self, plans: Sequence[tuple[Panel, list[Step]]]) -> int:
        """The bank for the first load of the next visit."""
        left = self._left(plans[-1][1][-1]) if plans else 0
        return left or 0

    def _bring(self, panel: Panel, load: Load) -> Iterator[None]:
        matrix = self._matrix(load.name)
        width = self.columns[load.name].end
        return self.rows.bring(panel, matrix, load.bank, width, load.name in self.normed)

    def _early(self, panel: Panel, load: Load, step: Step) -> tuple[Iterator[None], Iterator[None]]:
        """What brings an activation beside a step: beside its slices, and between its last ones."""
        matrix = self._matrix(load.name)
        width = self.columns[load.name].end
        if isinstance(step, Compute) and isinstance(step.op, Feed):
            return (
                self.rows.stage(panel, matrix),
                self.rows.land(panel, load.bank, matrix.columns, width, load.name in self.normed),
            )
        return self._bring(panel, load), EMPTY

    def _step(self, panel: Panel, step: Step, beside: Iterator[None], behind: Iterator[None]) -> None:
        rows = self.rows
        if isinstance(step, Keys):
            rows.keys_to_ddr(panel, self.kv[id(step.op)], step.bank, step.op.x.norm, beside)
            for _ in beside:
                pass
            return
        assert isinstance(step, Compute)
        op, bank = step.op, step.bank
        residual = None
        if op.residual is not None and step.residual is not None:
            residual = Residual(step.residual, op.residual.norm)
        width = self.columns[op.y].end
        if isinstance(op, Attend):
            out = self._product(op.out)
            rows.attend(panel, self.kv[id(op)], out, bank, op.x.norm, residual, width)
        elif isinstance(op, Feed):
            up, down = self._product(op.up), self._product(op.down)
            rows.feed_forward(panel, up, down, bank, op.x.norm, residual, width, beside, behind)
        elif isinstance(op, Copy):
            columns = self.columns[op.y].stored // TILE
            rows.copy(panel, columns, Residual(bank, op.x.norm), self._scale(op.gemm), width)
        elif isinstance(op, Sum):
            assert residual is not None
            rows.add(panel, self.columns[op.y].stored // TILE, bank, residual, self._scale(op.gemm), width)
        elif isinstance(op, Multiply) and step.to is not None:
            p = self._product(op.gemm)
            rows.product_on_chip(panel, p, bank, op.x.norm, residual, width)
        elif isinstance(op, Multiply):
            p = self._product(op.gemm)
            rows.product(panel, p, bank, op.x.norm, self._matrix(op.y), beside)
            for _ in beside:
                pass
        if step.to is not None and step.stored:
            rows.store(panel, step.to, self._matrix(op.y), self.matched.norms.get(op.y))

    def _scale(self, gemm: Gemm) -> int | None:
        """The address of the scale of a sum's residual; None if all are 1."""
        scale = gemm.residual_scale
        if scale is None or bool(np.all(scale == 1)):
            return None
        key = f"scale {id(gemm)}"
        if key not in self.tables:
            y = self.columns[gemm.y]
            self.tables[key] = self._weight(
                f"{gemm.path}.scale",
                "lpddr",
                (y.stored,),
                Layout.LINEAR,
                lambda: _placed(np.asarray(scale), y.positions(), y.stored),
            )
        return self.tables[key]

    # -- the result

    def _finished(self) -> Lowered:
        e = self.emission
        e.finish()
        sequences, preloaded = e.sequences(), e.op_lists()
        ordered = order_ddr(e, sequences, preloaded, self.overlay)
        sequences["DDR"] = ordered.mops
        patches = {name: tuple(found) for name, found in e.patches.items()}
        kernels = UnpackedProgram(
            overlay=self.overlay,
            sequences=sequences,
            preloaded=preloaded,
            buffers=tuple(self.buffers.values()),
            parameters=parameters_of(self.net.rows, patches),
            patches=patches,
        )
        return Lowered(kernels, Weights(self.weights), ordered.run, ordered.starts)


def _rotation(rotary: Rotary) -> tuple[Array, Array, Array] | None:
    """A rotation as cosines and sines of pairs of columns, (rows, pairs), and gains that multiply the columns before:
    own[a] = cos * gain[a], partner[b] = sin * gain[a], own[b] = cos * gain[b], partner[a] = -sin * gain[b]. None if it is
    none."""
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
    return cos.astype(np.float32), sin.astype(np.float32), gains.astype(np.float32)


def _placed(vector: npt.NDArray[np.floating], places: npt.NDArray[np.intp], columns: int) -> Array:
    out = np.zeros(columns, np.float32)
    out[places] = vector
    return out


def best(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowering:
    """The lowering in the mode that takes least time: a panel of P3 has half the rows, and takes half the time, of one
    of R6. Raises like `lower`."""
    modes = sorted((R6, P3), key=lambda m: len(panels_of(Sequences(tuple(network.rows)), m.rows)) / m.halves)
    try:
        return Lowering(network, overlay, schedule, modes[0])
    except UnsupportedError:
        try:
            return Lowering(network, overlay, schedule, modes[1])
        except UnsupportedError as error:
            if modes[1] is P3:  # it holds more columns
                raise
            first = error
        Lowering(network, overlay, schedule, modes[0])
        raise first from None


def lower(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> Lowered:
    """Lower a network. Raises `UnsupportedError` naming the layer, or the memory that is too small."""
    return best(network, overlay, schedule).lowered()


def place(network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
    """Check that a network can be lowered. Raises like `lower`."""
    best(network, overlay, schedule)
