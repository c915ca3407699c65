"""Programs of a layer of experts for the machine with Seq (`isa.overlays.moe`): static, patched by a host, sequenced.

All three have the same templates: the lines of one part, which is up to a tile of rows of one expert. Static: all
experts compute all rows, and shares are 0 where a token has not chosen an expert. Patched: a program computes logits,
a host chooses and issues the parts. Sequenced: Route chooses and Seq issues the parts, in one program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ..base.errors import TensorError, UnsupportedError
from ..isa.fields import Record
from ..isa.layout import Layout, padded
from ..isa.overlay import Overlay
from ..isa.overlays.moe.formats import (
    Add,
    Choose,
    Fill,
    Finish,
    Hold,
    Line,
    Product,
    RowPort,
    Rows,
    Run,
    TemplatePatch,
    Tiles,
)
from ..isa.overlays.moe.sequence import ExpertRows, Issued, by_rows, following, issued
from ..isa.overlays.moe.units import ACTIVATIONS
from ..isa.packet import MAX_WINDOW, Packet
from ..isa.program import Buffer, Program, Role, place_buffers

Array = npt.NDArray[np.float32]
MAX_ROW = (1 << 16) - 1
"""Largest number of a row that an instruction of Acts can name."""


@dataclass(frozen=True)
class MoeSizes:
    """The sizes of a layer of experts with its router. path: of its module, for messages. tokens: in a call. each: how
    many experts a token chooses. experts: how many experts there are. width: columns of a row. inner: columns that are
    gated. activation: one of `ACTIVATIONS`. over_chosen: shares are a softmax over the chosen experts, not over all."""

    path: str
    tokens: int
    each: int
    experts: int
    width: int
    inner: int
    activation: str
    over_chosen: bool


class MoePrograms:
    """The programs of a layer for the machine with Seq.

    tile_rows, tile: rows and columns of a tile of Mac. width, inner, logits: the sizes of the layer, padded to whole
    tiles. Raises `UnsupportedError`, naming the layer, for an activation that Post lacks, and for sizes beyond a limit
    of the machine.
    """

    def __init__(self, sizes: MoeSizes, overlay: Overlay) -> None:
        self.sizes, self.overlay = sizes, overlay
        limits = overlay.capability_of("Mac", "matmul").limits
        self.tile_rows, self.tile = int(limits["tile_rows"][1]), int(limits["tile_columns"][1])
        self.width, self.inner, self.logits = (padded(n, self.tile) for n in (sizes.width, sizes.inner, sizes.experts))
        if sizes.activation not in ACTIVATIONS:
            raise UnsupportedError(f"{sizes.path}: activation {sizes.activation}; Post has {', '.join(ACTIVATIONS)}")
        for what, number in {
            "pairs of token and expert": sizes.tokens * sizes.experts,
            "columns of a row": max(self.width, self.logits),
            "blocks of columns in front of the gate": 2 * self.inner // self.tile,
        }.items():
            if number > MAX_ROW:
                raise UnsupportedError(f"{sizes.path}: {number} {what}; instructions of {overlay.name} count {MAX_ROW}")
        needed = {"weights": 4 * self.weight_elements, "ddr": 4 * max(self._program([], True).bank_size("ddr"), 1)}
        for bank, size in needed.items():
            if size > overlay.banks[bank]:
                raise UnsupportedError(
                    f"{sizes.path}: needs {size} bytes of {bank}; overlay {overlay.name} has {overlay.banks[bank]}"
                )

    # -- weights

    @property
    def router_elements(self) -> int:
        """Number of elements of the router's weights, which come first in the bank."""
        return self.width * self.logits

    @property
    def pitch(self) -> int:
        """Number of elements from the weights of one expert to those of the next."""
        return 3 * self.width * self.inner

    @property
    def weight_elements(self) -> int:
        """Number of elements of all weights: the router's, then those of all experts."""
        return self.router_elements + self.sizes.experts * self.pitch

    def packed(self, router: Array, gate_up: Array, down: Array) -> Array:
        """Return all weights as the machine stores them, (weight_elements,): tiles, in the order in which Mac takes
        them.

        router: (E, H). gate_up: (E, 2 I, H), the gate first. down: (E, H, I). All float32. E: experts. H: `width` of
        the sizes. I: their `inner`. Raises `TensorError` for other shapes and types."""
        s = self.sizes
        shapes = {
            "router": (router, (s.experts, s.width)),
            "gate_up": (gate_up, (s.experts, 2 * s.inner, s.width)),
            "down": (down, (s.experts, s.width, s.inner)),
        }
        for name, (given, shape) in shapes.items():
            if given.shape != shape or given.dtype != np.float32:
                raise TensorError(f"{s.path}: {name} is {given.dtype} {given.shape}; the layer takes float32 {shape}")
        out = np.empty(self.weight_elements, np.float32)
        out[: self.router_elements] = self._tiles(router.T, self.width, self.logits).reshape(-1)
        at, inner = self.router_elements, s.inner
        for wide, back in zip(gate_up, down, strict=True):
            gate, up = (self._tiles(half.T, self.width, self.inner) for half in (wide[:inner], wide[inner:]))
            size = 2 * gate.size
            out[at : at + size] = np.stack([gate, up], 1).reshape(-1)
            out[at + size : at + self.pitch] = self._tiles(back.T, self.inner, self.width).reshape(-1)
            at += self.pitch
        return out

    def _tiles(self, matrix: Array, depth: int, columns: int) -> Array:
        """A matrix (K, N) as (blocks of columns, tiles of K, tile, tile)."""
        tile = self.tile
        full = np.zeros((depth, columns), np.float32)
        full[: matrix.shape[0], : matrix.shape[1]] = matrix
        return full.reshape(depth // tile, tile, columns // tile, tile).transpose(2, 0, 1, 3)

    # -- templates

    def _line(self, mop: Record, patch: TemplatePatch = TemplatePatch.NONE, pitch: int = 0) -> Line:
        form = next(f for f in self.overlay.formats if f.mop is type(mop))
        return Line.of(form.opcode, mop, patch, pitch)

    def _router_lines(self, at: dict[str, int]) -> list[Line]:
        """The template of logits: a part is a tile of tokens."""
        depth, blocks = self.width // self.tile, self.logits // self.tile
        return [
            self._line(Fill(depth=depth, times=blocks), TemplatePatch.ROWS),
            self._line(Tiles(addr=0, tiles=depth * blocks)),
            self._line(Product(results=blocks, depth=depth), TemplatePatch.ROWS),
            self._line(Finish(blocks=blocks), TemplatePatch.ROWS),
            self._line(Rows(addr=at["x"], size=self.width, port=RowPort.X), TemplatePatch.GATHER),
            self._line(Rows(addr=at["logits"], size=self.logits, port=RowPort.RESULT), TemplatePatch.SCATTER),
        ]

    def expert_lines(self, at: dict[str, int], shares: int) -> list[Line]:
        """Return the template of an expert: its instructions, with what Seq or a host patches in each. at: number of
        the first element of each buffer, by name: `x`, `pairs`, and `shares` if Post takes them from Acts. shares:
        where Post takes them from, 1 for Acts, 2 for Route."""
        depth, blocks = self.width // self.tile, self.inner // self.tile
        which = ACTIVATIONS.index(self.sizes.activation)
        lines = [
            self._line(Fill(depth=depth, times=2 * blocks), TemplatePatch.ROWS),
            self._line(Tiles(addr=self.router_elements, tiles=3 * depth * blocks), TemplatePatch.WEIGHTS, self.pitch),
            self._line(Product(results=2 * blocks, depth=depth), TemplatePatch.ROWS),
            self._line(Finish(blocks=blocks, gate=1, activation=which), TemplatePatch.ROWS),
            self._line(Hold(blocks=blocks, times=depth), TemplatePatch.ROWS),
            self._line(Product(results=depth, depth=blocks, hidden=1), TemplatePatch.ROWS),
            self._line(Finish(blocks=depth, shares=shares), TemplatePatch.ROWS),
            self._line(Rows(addr=at["x"], size=self.width, port=RowPort.X), TemplatePatch.GATHER),
        ]
        if shares == 1:
            share = Rows(addr=at["shares"], size=self.tile_rows, count=1, port=RowPort.SHARES)
            lines.append(self._line(share, TemplatePatch.PART))
        lines.append(self._line(Rows(addr=at["pairs"], size=self.width, port=RowPort.RESULT), TemplatePatch.SCATTER))
        return lines

    # -- programs

    def _buffers(self, pairs: int, parts: int = 0) -> list[Buffer]:
        """Place the buffers of a program. pairs: results for each token. parts: whose shares come from the host."""
        s = self.sizes
        weights = Buffer("weights", "weights", 0, (self.weight_elements,), Layout.LINEAR, Role.WEIGHT)
        rows = [
            Buffer("x", "ddr", -1, (s.tokens, self.width), Layout.LINEAR, Role.INPUT, (s.tokens, s.width)),
            Buffer("logits", "ddr", -1, (s.tokens, self.logits), Layout.LINEAR, Role.OUTPUT, (s.tokens, s.experts)),
            Buffer("y", "ddr", -1, (s.tokens, self.width), Layout.LINEAR, Role.OUTPUT, (s.tokens, s.width)),
            Buffer("pairs", "ddr", -1, (s.tokens * pairs, self.width), Layout.LINEAR),
            Buffer("shares", "ddr", -1, (max(parts, 1), self.tile_rows), Layout.LINEAR, Role.INPUT),
        ]
        return list(place_buffers([weights, *rows[: len(rows) if parts else -1]], self.overlay.address_unit))

    def _program(self, packets: Iterable[Packet], dense: bool = False, parts: int = 0, unused: str = "") -> Program:
        """A program of these packets and the terminators. unused: an output that it does not make."""
        s = self.sizes
        ends = [Packet.terminator(self.overlay.by_format[name].opcode) for name in self.overlay.terminators]
        buffers = self._buffers(s.experts if dense else s.each, parts)
        buffers = [replace(b, role=Role.SCRATCH) if b.name == unused else b for b in buffers]
        return Program(self.overlay, (*packets, *ends), {}, tuple(buffers))

    def _at(self, dense: bool = False, parts: int = 0) -> dict[str, int]:
        return {b.name: b.offset for b in self._program([], dense, parts).buffers}

    def _packed(self, made: Iterable[Issued]) -> Iterator[Packet]:
        """Instructions as packets: those of one format in a row together."""
        for _, group in groupby(made, key=lambda issue: issue[0].opcode):
            form, mops = None, []
            for form, mop in group:
                mops.append(mop)
                if len(mops) == MAX_WINDOW:
                    yield Packet.of(form.opcode, mops)
                    mops = []
            if form is not None and mops:
                yield Packet.of(form.opcode, mops)

    def _one(self, *mops: Record) -> Iterator[Packet]:
        forms = {f.mop: f for f in self.overlay.formats}
        yield from self._packed((forms[type(mop)], mop) for mop in mops)

    @cached_property
    def token_parts(self) -> list[ExpertRows]:
        """The numbers of all tokens, cut into parts of at most `tile_rows` rows; the expert of each part is 0."""
        tokens, tile = self.sizes.tokens, self.tile_rows
        return [ExpertRows(0, tuple(range(i, min(i + tile, tokens)))) for i in range(0, tokens, tile)]

    def _router(self, at: dict[str, int]) -> Iterator[Packet]:
        yield from self._packed(issued(self._router_lines(at), self.token_parts, 1, self.overlay))

    def _choose(self, at: dict[str, int], *, dense: bool) -> Iterator[Packet]:
        s = self.sizes
        fields = {"tokens": s.tokens, "size": self.logits, "experts": s.experts, "each": s.each}
        yield from self._one(Choose(**fields, over_chosen=int(s.over_chosen), dense=int(dense)))
        loads = Rows(addr=at["logits"], size=self.logits, port=RowPort.ROUTE)
        yield from self._one(*by_rows(loads, range(s.tokens)))

    def _combine(self, at: dict[str, int], each: int) -> Iterator[Packet]:
        """Add up the results of each token."""
        tokens = self.sizes.tokens
        yield from self._one(Add(results=tokens, each=each, size=self.width))
        loads = Rows(addr=at["pairs"], size=self.width, port=RowPort.SUM)
        stores = Rows(addr=at["y"], size=self.width, port=RowPort.TOTAL)
        for token in range(tokens):
            yield from self._one(*by_rows(loads, range(token * each, token * each + each)), *by_rows(stores, [token]))

    def static(self) -> Program:
        """Return the program in which every expert computes all rows. Its input is `x`, (tokens, width), its outputs
        are `logits`, (tokens, experts), and `y`, (tokens, width)."""
        at, s = self._at(dense=True), self.sizes
        parts = [
            ExpertRows(expert, tuple(token * s.experts + expert for token in part.pairs))
            for expert in range(s.experts)
            for part in self.token_parts
        ]
        lines = self.expert_lines(at, 2)
        packets = [*self._router(at), *self._choose(at, dense=True)]
        packets += self._packed(issued(lines, parts, s.experts, self.overlay))
        return self._program([*packets, *self._combine(at, s.experts)], dense=True)

    def router(self) -> Program:
        """Return the program that computes the logits, (tokens, experts), alone; a host reads them, and chooses the
        experts."""
        return self._program(self._router(self._at()), unused="y")

    def patched(self, parts: Sequence[ExpertRows]) -> Program:
        """Return the program that computes the parts that a host has chosen. parts: for each, an expert and the numbers
        of its pairs, token * `each` + selector. The program's input `shares`, (parts, tile_rows), has the shares of the
        rows of each part."""
        at = self._at(parts=len(parts))
        lines = self.expert_lines(at, 1)
        packets = self._packed(issued(lines, parts, self.sizes.each, self.overlay))
        return self._program([*packets, *self._combine(at, self.sizes.each)], parts=len(parts), unused="logits")

    def sequenced(self) -> Program:
        """Return the program in which Route chooses experts, and Seq issues their parts. Its buffers are those of
        `static`."""
        at = self._at()
        packets = [*self._router(at), *self._one(*self.expert_lines(at, 2))]
        packets += [*self._choose(at, dense=False), *self._one(Run(each=self.sizes.each))]
        return self._program([*packets, *following(self.overlay), *self._combine(at, self.sizes.each)])

    # -- what cannot be avoided

    def bound_s(self, active: int) -> float:
        """Return a lower bound of the time of the layer, in seconds. One memory moves the router's weights and those of
        `active` experts, once; another one moves the rows and the results. Each memory has its bandwidth, and both work
        at the same time."""
        seconds = self.overlay.seconds
        s = self.sizes
        weights = s.width * s.experts + active * 3 * s.width * s.inner
        rows = 4 * s.tokens * s.width
        return max(
            4 * weights * seconds["weights_read_gbs"], rows * (seconds["ddr_read_gbs"] + seconds["ddr_write_gbs"])
        )
