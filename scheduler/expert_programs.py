"""Programs of the active experts of a layer, put together from templates.

A template is the program of one expert over a number of row tiles. The program of a call is the packets of the active
experts one after the other, each expert's from the template for its number of row tiles, with addresses patched. The
host gathers the rows of each expert, and scatters the results. Each template ends with all units idle, so that
templates one after the other cannot wait for each other.

All addresses of a template in one memory are moved by the same distance: those of weights to the weights of the expert,
those of activations to a region of its own, in which its buffers lie as in the template. One packet may reach several
buffers, because the packer finds steps from one access to the next whatever they belong to; so buffers must not move
apart from each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import UnsupportedError
from ..isa.fields import Record
from ..isa.layout import Layout, padded
from ..isa.overlay import Overlay
from ..isa.packet import Packet
from ..isa.program import Buffer, Program, Role
from .build import build
from .graph import ActivationFunction, Gemm, LayerGraph, Output
from .lower import lower
from .schedule import PAPER, Schedule

Array = npt.NDArray[np.float32]
ALIGN = 64
"""Address units of which each buffer's place is a multiple."""
X, Y = "x", "y"


@dataclass(frozen=True)
class ExpertSizes:
    """The sizes of a layer of experts. path: of its module, for messages. experts: how many experts there are. width:
    columns of a row. inner: columns that are gated. activation: of the gate. rows: the most rows that one expert takes
    in a call."""

    path: str
    experts: int
    width: int
    inner: int
    activation: ActivationFunction
    rows: int

    def network(self, rows: int, gate_up: Array | None = None, down: Array | None = None) -> LayerGraph:
        """One expert as a network over one sequence of `rows` rows. gate_up, down: as for `layers`."""
        return LayerGraph(1, rows, {X: self.width}, (Output(Y),), self.layers(gate_up, down))

    def layers(self, gate_up: Array | None = None, down: Array | None = None, number: str = "") -> tuple[Gemm, Gemm]:
        """One expert as two layers. gate_up: (width, 2 inner), the gate's columns first. down: (inner, width). None
        stands for zeros. number: text that the names of their activations end with."""
        wide = np.zeros((self.width, 2 * self.inner), np.float32) if gate_up is None else gate_up
        back = np.zeros((self.inner, self.width), np.float32) if down is None else down
        h = f"h{number}"
        return (
            Gemm(self.path, X, h, wide, np.zeros(2 * self.inner, np.float32), self.activation, gated=True),
            Gemm(self.path, h, f"{Y}{number}", back, np.zeros(self.width, np.float32)),
        )


@dataclass(frozen=True, eq=False)
class Template:
    """The program of one expert over `tiles` row tiles. packets: the packets of the program, without terminators. span:
    how many address units its activations take."""

    tiles: int
    program: Program
    packets: tuple[Packet, ...]
    span: int


@dataclass(frozen=True)
class TemplateRows:
    """Rows of one expert that one template computes. expert: number of the expert. tiles: row tiles of the template.
    begin, rows: the number of the first of the expert's rows, and how many rows. number: of this part in its program;
    the names of its buffers end with it."""

    expert: int
    tiles: int
    begin: int
    rows: int
    number: int

    @property
    def x(self) -> str:
        """The name of the buffer of its rows."""
        return f"{X}{self.number}"

    @property
    def y(self) -> str:
        """The name of the buffer of its results."""
        return f"{Y}{self.number}"


@dataclass(frozen=True, eq=False)
class Launch:
    """A program of some experts, all of whose weights are in its buffer `experts`. parts: in the order in which they
    are computed."""

    program: Program
    parts: tuple[TemplateRows, ...]


class ExpertPrograms:
    """The templates of a layer, and programs made of them.

    sizes: of the layer. schedule: of each template. tile: rows of a row tile. max_tiles: row tiles of the largest
    template. Raises `UnsupportedError`, naming the layer, if the overlay cannot run one expert, if it keeps weights and
    activations in one memory, or if the weights of all do not fit its memory; other errors as `build` does.
    """

    def __init__(self, sizes: ExpertSizes, overlay: Overlay, schedule: Schedule = PAPER) -> None:
        self.sizes, self.overlay, self.schedule = sizes, overlay, schedule
        self._templates: dict[int, Template] = {}
        one = build(sizes.network(1), overlay, schedule).program
        self.tile = one.buffer(X).shape[0]
        self._weights = _weights_of(one)
        self.weights_bank, self.bank = self._weights[0].bank, one.buffer(X).bank
        self._unit = overlay.address_unit
        if self.weights_bank == self.bank or any(b.bank != self.weights_bank for b in self._weights):
            raise UnsupportedError(
                f"{sizes.path}: overlay {overlay.name} keeps weights and activations in one memory, where templates "
                "cannot move them apart"
            )
        self.pitch = padded(max(self._end(b) for b in self._weights), ALIGN)
        """Address units from one expert's weights to the next's."""
        needed = 4 * self._unit * self.pitch * sizes.experts
        there = min(overlay.banks[self.weights_bank], overlay.max_bank_bytes)
        if needed > there:
            raise UnsupportedError(
                f"{sizes.path}: the weights of {sizes.experts} experts need {needed} bytes of {self.weights_bank}, "
                f"which has {there} on overlay {overlay.name}"
            )
        self.max_tiles = self._largest(-(-sizes.rows // self.tile))

    def _largest(self, tiles: int) -> int:
        """The most row tiles, up to `tiles`, whose template fits the overlay's lists of instructions."""
        low, high = 1, tiles
        if self._fits([self.template(tiles)]):
            return tiles
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits([self.template(middle)]) else (low, middle - 1)
        if not self._fits([self.template(low)]):
            raise UnsupportedError(
                f"{self.sizes.path}: the program of one expert exceeds what {self.overlay.name} takes"
            )
        return low

    def template(self, tiles: int) -> Template:
        """The template for a number of row tiles, made at the first call. Raises `UnsupportedError` if its weights lie
        otherwise than in the other templates; other errors as `build` does."""
        if tiles not in self._templates:
            program = build(self.sizes.network(tiles * self.tile), self.overlay, self.schedule).program
            if program.parameters:
                raise UnsupportedError(f"{self.sizes.path}: the program of an expert has run-time parameters")
            if _weights_of(program) != self._weights:
                raise UnsupportedError(f"{self.sizes.path}: the weights of an expert lie otherwise for other rows")
            packets = tuple(p for p in program.packets if not p.header.last)
            span = max(self._end(b) for b in program.buffers if b.bank == self.bank)
            self._templates[tiles] = Template(tiles, program, packets, padded(span, ALIGN))
        return self._templates[tiles]

    def _end(self, b: Buffer) -> int:
        """The address unit behind a buffer."""
        return b.offset + -(-b.size // self._unit)

    # -- weights

    def weights(self, expert: int, gate_up: Array, down: Array) -> Iterator[tuple[int, Array]]:
        """The weights of one expert as the machine stores them: pairs of the number of the first element in the bank,
        and the elements, (n,).

        expert: its number, from 0 on. gate_up: (2 inner, width), the gate first. down: (width, inner), both as PyTorch
        has them. Raises like `lower`."""
        network = self.sizes.network(1, np.ascontiguousarray(gate_up.T), np.ascontiguousarray(down.T))
        packed = lower(network, self.overlay, self.schedule).weights
        for b in self._weights:
            yield self._unit * (expert * self.pitch + b.offset), packed[b.name]

    @property
    def weight_elements(self) -> int:
        """Number of float32 elements that the weights of all experts take in their bank."""
        return self._unit * self.pitch * self.sizes.experts

    # -- programs

    def launches(self, counts: Mapping[int, int]) -> list[Launch]:
        """The programs for a call. counts: the number of rows of each active expert, at least 1, by its number; experts
        are computed in this order.

        One program, or several if one would exceed the overlay's lists of instructions or memory. Raises like
        `template`.
        """
        out: list[Launch] = []
        held: list[tuple[int, int, int]] = []
        for expert, rows in counts.items():
            for begin in range(0, rows, self.max_tiles * self.tile):
                part = expert, begin, min(rows - begin, self.max_tiles * self.tile)
                if held and not self._fits([self.template(self._tiles(n)) for _, _, n in (*held, part)]):
                    out.append(self._launch(held))
                    held = []
                held.append(part)
        return [*out, self._launch(held)] if held else out

    def _tiles(self, rows: int) -> int:
        return -(-rows // self.tile)

    def _fits(self, templates: Sequence[Template]) -> bool:
        """Whether a program of these templates fits the overlay's lists of instructions and its memory."""
        overlay = self.overlay
        words = sum(p.words for t in templates for p in t.packets) + sum(p.words for p in self._ends) + 2
        if overlay.image_bytes is not None and 4 * words > overlay.image_bytes:
            return False
        for kind, held in overlay.preloaded.items():
            for unit in overlay.by_kind[kind]:
                if sum(len(t.program.preloaded.get(unit.name, ())) for t in templates) > held.longest:
                    return False
        used = sum(t.span for t in templates)
        return 4 * self._unit * used <= min(overlay.banks[self.bank], overlay.max_bank_bytes)

    @cached_property
    def _ends(self) -> tuple[Packet, ...]:
        """The terminators of all units."""
        return tuple(p for p in self.template(1).program.packets if p.header.last)

    def _launch(self, held: Sequence[tuple[int, int, int]]) -> Launch:
        packets: list[Packet] = []
        parts: list[TemplateRows] = []
        ops: dict[str, tuple[Record, ...]] = {}
        experts = replace(self._weights[0], name="experts", offset=0, shape=(self.weight_elements,), view=None)
        buffers = [replace(experts, layout=Layout.LINEAR)]
        at = 0
        for number, (expert, begin, rows) in enumerate(held):
            template = self.template(self._tiles(rows))
            packets += self._moved(template, {self.weights_bank: expert * self.pitch, self.bank: at})
            for unit, listed in template.program.preloaded.items():
                ops[unit] = (*ops.get(unit, ()), *listed)
            own = [b for b in template.program.buffers if b.bank == self.bank]
            buffers += [replace(b, name=f"{b.name}{number}", offset=b.offset + at) for b in own]
            parts.append(TemplateRows(expert, template.tiles, begin, rows, number))
            at += template.span
        return Launch(Program(self.overlay, (*packets, *self._ends), ops, tuple(buffers)), tuple(parts))

    def _moved(self, template: Template, distance: Mapping[str, int]) -> Iterator[Packet]:
        """The packets of a template with their addresses moved. distance: address units, by memory."""
        for packet in template.packets:
            form = self.overlay.by_opcode[packet.header.opcode]
            bank = self.overlay.by_kind[form.kind][0].bank
            if form.config or bank is None:
                yield packet
            else:
                mops: Sequence[Any] = packet.mops
                yield Packet(packet.header, tuple(m.replace(addr=m.addr + distance[bank]) for m in mops))


def _weights_of(program: Program) -> list[Buffer]:
    return [b for b in program.buffers if b.role is Role.WEIGHT]


def counted(index: npt.NDArray[np.int64]) -> dict[int, npt.NDArray[np.int64]]:
    """Return which pairs of a token and a selector choose each expert, by the number of the expert, in ascending order;
    experts that nobody chooses are left out. index: (tokens, k), the experts of each token. A pair is its position in
    `index` taken row by row, token * k + selector; those of an expert are an ascending array (pairs,)."""
    flat = index.reshape(-1)
    order = np.argsort(flat, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(flat[order])) + 1).tolist(), len(flat)]
    return {int(flat[order[a]]): order[a:b] for a, b in pairwise(ends) if a < b}
