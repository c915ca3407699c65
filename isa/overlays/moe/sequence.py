"""Seq: from selectors to instructions.

A template has one instruction a line, and what changes in it from part to part. A part is up to a tile of rows of one
expert. `issued` makes the instructions of parts, for the unit Seq as for a host that makes programs.

Seq is a process whose input is a stream and whose outputs are the instruction FIFOs of the other units. Each decoder
has two FIFOs, one from the dispatcher and one from Seq. It reads the first one until a packet without operations tells
it to read the second, and goes back when Seq ends. So each FIFO has one writer and one reader, and what is read next
depends on the program alone: the machine is a Kahn process network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ....base.errors import TensorError
from ....machine.description import UnitSpec
from ....machine.executor import ProcessNetwork
from ....machine.steps import Channel, Issue, Step, Steps
from ....machine.traces import TraceItems, TraceTable, UntraceableError
from ....machine.unit import Unit, Wiring
from ...fields import Record
from ...instruction_path import DISPATCHER, InstructionPath, decoder_of, mop_fifo
from ...overlay import InstructionFormat, Overlay
from ...packet import Header, Packet, expand_window
from ...program import Program
from .formats import ROWS, Line, Rows, Run, TemplatePatch

SEQ, ROUTE = "Seq", "Route"
ONCE = Header(window=1, reuse=1)


class ExpertRows(NamedTuple):
    """Rows of one expert that are computed together. pairs: for each row, its token and its selector as one number,
    token * k + selector, where k is the number of selectors of a token."""

    expert: int
    pairs: tuple[int, ...]


def parts_of(chosen: Sequence[Sequence[int]], experts: int, tile: int, most: int | None = None) -> list[ExpertRows]:
    """Return the parts of a call: experts in ascending order, each one's pairs in the order of tokens, `tile` to a
    part.

    chosen: the experts of each token. experts: how many the layer has. tile: the most rows of a part, at least 1. most:
    rows that one expert may have; None for any number. Raises `TensorError` for an expert that the layer does not have,
    and for an expert with more rows than `most`."""
    pairs: dict[int, list[int]] = {}
    for token, row in enumerate(chosen):
        for place, expert in enumerate(row):
            if not 0 <= expert < experts:
                raise TensorError(
                    f"token {token} selects expert {expert} (its selector {place}); the layer has experts 0 to "
                    f"{experts - 1}"
                )
            pairs.setdefault(expert, []).append(token * len(row) + place)
    out: list[ExpertRows] = []
    for expert, found in sorted(pairs.items()):
        if most is not None and len(found) > most:
            raise TensorError(f"{len(found)} rows select expert {expert}; the program is for at most {most}")
        out += [ExpertRows(expert, tuple(found[i : i + tile])) for i in range(0, len(found), tile)]
    return out


Issued = tuple[InstructionFormat, Record]
"""An instruction with its format."""


def of_part(
    lines: Sequence[Line], part: ExpertRows, number: int, each: int, overlay: Overlay
) -> tuple[list[Issued], list[Issued]]:
    """Return the instructions of one part: those that come first, and its stores, which come last.

    lines: the template. number: of the part, from 0. each: selectors of a token. Raises `KeyError` for an unknown
    opcode, `ValueError` for an unknown patch, `FieldError` for a value that does not fit its field.
    """
    first: list[Issued] = []
    stores: list[Issued] = []
    for line in lines:
        form = overlay.by_opcode[line.opcode]
        mop: Any = line.mop(form.mop)
        match TemplatePatch(line.patch):
            case TemplatePatch.NONE:
                first.append((form, mop))
            case TemplatePatch.WEIGHTS:
                first.append((form, mop.replace(addr=mop.addr + part.expert * line.pitch)))
            case TemplatePatch.ROWS:
                first.append((form, mop.replace(rows=len(part.pairs))))
            case TemplatePatch.PART:
                first.append((form, mop.replace(row0=number)))
            case TemplatePatch.GATHER:
                first += [(form, m) for m in by_rows(mop, [pair // each for pair in part.pairs])]
            case TemplatePatch.SCATTER:
                stores += [(form, m) for m in by_rows(mop, part.pairs)]
    return first, stores


def issued(lines: Sequence[Line], parts: Iterable[ExpertRows], each: int, overlay: Overlay) -> Iterator[Issued]:
    """Yield the instructions of parts. Stores of a part come behind the loads of the next one, so that its weights and
    rows are on their way by then. lines: the template. each: selectors of a token. Raises as `of_part`.
    """
    waiting: list[Issued] = []
    for number, part in enumerate(parts):
        first, stores = of_part(lines, part, number, each, overlay)
        yield from (*first, *waiting)
        waiting = stores
    yield from waiting


def by_rows(mop: Rows, rows: Sequence[int]) -> Iterator[Rows]:
    """Yield an instruction for some rows, by their numbers; several instructions for more than eight rows. Raises
    `FieldError` for a number that does not fit."""
    for i in range(0, len(rows), ROWS):
        some = rows[i : i + ROWS]
        yield mop.replace(count=len(some), **{f"row{j}": row for j, row in enumerate(some)})


def seq_fifo(unit: str) -> str:
    """Return the name of the FIFO from Seq to a unit's decoder."""
    return f"mOP FIFO from Seq of {unit}"


def followers(overlay: Overlay) -> tuple[UnitSpec, ...]:
    """Return the units that Seq can issue instructions to: all others."""
    return tuple(u for u in overlay.units if u.kind != SEQ)


class SeqUnit(Unit):
    """Seq: keeps the lines of a template, and issues their instructions to the other units for each part that Route
    tells it."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.lines: list[Line] = []

    def kernel(self, uop: Line | Run) -> Steps:
        if isinstance(uop, Line):
            self.lines.append(uop)
            return
        overlay = self._net.machine
        assert isinstance(overlay, Overlay)
        source = self.source("Route")
        fifos = {u.kind: self._net.named_channel(seq_fifo(u.name)) for u in followers(overlay)}
        lines, self.lines = tuple(self.lines), []
        waiting: list[Issued] = []
        number = 0
        while True:
            (part,) = yield Step("dispatch", gets=(source,))
            first, stores = ([], []) if part is None else of_part(lines, part, number, uop.each, overlay)
            for form, mop in (*first, *waiting):
                yield Step("dispatch", 1 + mop.WORDS)
                yield Step(puts=(fifos[form.kind],), send=((number, ONCE, form, mop),))
            waiting = stores
            number += 1
            if part is None:
                break
        for fifo in fifos.values():
            yield Step(puts=(fifo,), send=(None,))


def following(overlay: Overlay) -> list[Packet]:
    """Return the packets that tell the decoders of all units but Seq to read from Seq until it ends, one packet for
    each."""
    return [Packet(Header(opcode=overlay.format_of(u.kind).opcode)) for u in followers(overlay)]


class SequencedPath(InstructionPath):
    """The workload of an image whose decoders may follow Seq.

    program: of the machine for experts. packets: those that are run; the packets of the program are not. parts: the
    parts that Route tells Seq in a run without data; None is enough for a run with data, in which Route finds them.
    most: rows that one expert may have; a run with more raises `TensorError`; None for any number.
    """

    def __init__(
        self,
        program: Program,
        packets: Sequence[Packet],
        parts: Sequence[ExpertRows] | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__(program.overlay, packets)
        self.parts, self.most = parts, most

    def attach(self, net: ProcessNetwork) -> None:
        """Add the FIFOs from Seq and tell Route its parts, then all that `InstructionPath.attach` adds."""
        depth = self.overlay.mop_fifo_depth
        for spec in followers(self.overlay):
            net.add_channel(seq_fifo(spec.name), depth, SEQ, decoder_of(spec.name), control=True)
        route: Any = net.units[ROUTE]
        route.parts, route.most = self.parts, self.most
        super().attach(net)

    def _dispatch(self, net: ProcessNetwork) -> Steps:
        progress = net.progress[DISPATCHER]
        for number, packet in enumerate(self.packets):
            header = packet.header
            progress.number, progress.issue = number, Issue(packet, number)
            yield Step("dispatch")
            form = self.overlay.by_opcode[header.opcode]
            (unit,) = self.overlay.selected(header.opcode, header.mask)
            sink = net.named_channel(mop_fifo(unit.name))
            if not packet.mops:  # a terminator, or the order to follow Seq
                yield Step(puts=(sink,), send=((number, header, form, None),))
            for mop in packet.mops:
                yield Step("dispatch", mop.WORDS)
                yield Step(puts=(sink,), send=((number, header, form, mop),))

    def _decode(self, net: ProcessNetwork, name: str, mops: Channel, uops: Channel) -> Steps:
        progress = net.progress[name]
        unit = progress.serves
        source = mops
        while True:
            progress.number += 1
            (taken,) = yield Step(gets=(source,))
            if taken is None:  # Seq has ended
                source = mops
                continue
            number, header, form, mop = taken
            progress.issue = Issue(mop, number)
            if header.last:
                yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(None, number, True),))
                return
            if mop is None:
                source = net.named_channel(seq_fifo(str(unit)))
                continue
            window = [mop]
            while form.loops_window and len(window) < header.window:
                ((_, _, _, mop),) = yield Step(gets=(source,))
                window.append(mop)
            for uop in expand_window(form, window, range(header.reuse)):
                yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(uop, number),))

    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        """Raise `UntraceableError`: what Seq issues is known only in a run."""
        raise UntraceableError("Seq issues what its selectors say")
