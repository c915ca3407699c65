"""The instruction path: a dispatcher, and a decoder in front of each unit, deliver the uOPs of an image to the units.

The dispatcher issues packets strictly in image order. It writes each mOP of a packet to the decoder of every selected
unit, in ascending index; each write blocks while the decoder's FIFO is full. A decoder expands mOPs to uOPs. Source:
contract section 1.3, paper section 3.3 and Fig. 8.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ..base.errors import ProgramError
from ..machine.balance import UopTable
from ..machine.description import StreamNetwork, UnitSpec
from ..machine.executor import MAX_UOPS, ProcessNetwork, Workload
from ..machine.plan import TimedWorkload
from ..machine.steps import NEVER, Channel, Issue, Step, Steps
from ..machine.traces import MAX_UOPS as MAX_TRACED
from ..machine.traces import TraceItems, TraceTable, UnitTraces, UntraceableError
from .expansion import ExpandedProgram, preloaded_uops, uop_upper_bound
from .fields import Record
from .overlay import InstructionFormat, Overlay, one_uop
from .packet import Header, Packet, expand, expand_window
from .program import Program

DISPATCHER = "dispatcher"
Mop = tuple[int, Header, InstructionFormat, Record | None]
"""One slot of an mOP FIFO: packet number, header, format, and the mOP, which is None for a terminator."""


def decoder_of(unit: str) -> str:
    """Return the process name of a unit's decoder."""
    return f"decoder {unit}"


def mop_fifo(unit: str) -> str:
    """Return the name of the FIFO in front of a unit's decoder."""
    return f"mOP FIFO of {unit}"


def uop_fifo(unit: str) -> str:
    """Return the name of the FIFO between a unit's decoder and the unit."""
    return f"uOP FIFO of {unit}"


def _depths(machine: StreamNetwork) -> tuple[int, int]:
    """FIFO slots in front of each decoder and of each unit, of the machine that runs: its depths may be changed."""
    if not isinstance(machine, Overlay):
        raise TypeError(f"machine {machine.name} has no instruction path: it is no overlay")
    return machine.mop_fifo_depth, machine.uop_fifo_depth


class InstructionPath(Workload):
    """The workload of a decoded image: its packets, and the op lists of the units that packets do not drive.

    preloaded: op lists by unit name (the MMEs); None for none.
    """

    def __init__(
        self, overlay: Overlay, packets: Sequence[Packet], preloaded: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        self.overlay = overlay
        self.packets = packets
        self.preloaded = preloaded or {}

    @staticmethod
    def of(program: Program) -> InstructionPath:
        """Return the instruction path of a program, with its op lists."""
        return InstructionPath(program.overlay, program.packets, program.preloaded)

    def packets_for(self, unit: str) -> Iterator[tuple[int, Packet]]:
        """Yield the packets that select a unit, terminators included, as (index in the image, packet). Raises
        `KeyError` for an unknown unit.
        """
        spec = self.overlay.by_unit[unit]
        for number, packet in enumerate(self.packets):
            header = packet.header
            if header.opcode and spec in self.overlay.selected(header.opcode, header.mask):
                yield number, packet

    def uops(self, unit: str) -> Iterator[Any]:
        """Yield the uOPs that a unit executes, in order. Raises `KeyError` for an unknown unit, `ProgramError` for a
        repeat in its op list that is not possible.
        """
        if self.overlay.by_unit[unit].kind in self.overlay.preloaded:
            entries = self.preloaded.get(unit, ())
            yield from map(entries.__getitem__, self._origins(unit))
            return
        for _, packet in self.packets_for(unit):
            if not packet.header.last:
                yield from expand(packet, self.overlay)

    def _origins(self, unit: str) -> Iterator[int]:
        """Yield the list entry of each op that a unit with an op list executes."""
        return self.overlay.preloaded[self.overlay.by_unit[unit].kind].walk(self.preloaded.get(unit, ()))

    def where(self, unit: str, origin: int) -> str:
        return f"{'op' if unit in self.preloaded else 'packet'} {origin}"

    def fifo_depths(self, machine: StreamNetwork) -> list[int]:
        return [*_depths(machine)] * len(self._decoded())

    def uop_table(self, machine: StreamNetwork) -> UopTable:
        listed = preloaded_uops(self.overlay, self.preloaded)
        if sum(uop_upper_bound(p, self.overlay) for p in self.packets) + listed > MAX_UOPS:
            raise ProgramError(f"the program has more than {MAX_UOPS} uOPs")
        preloaded = {unit: tuple(ops) for unit, ops in self.preloaded.items()}
        return ExpandedProgram(Program(self.overlay, tuple(self.packets), preloaded)).uop_table

    def _decoded(self) -> list[UnitSpec]:
        """The units that packets drive."""
        return [u for u in self.overlay.units if u.kind not in self.overlay.preloaded]

    # -- as processes ---------------------------------------------------------------------------------------------

    def attach(self, net: ProcessNetwork) -> None:
        mop_depth, uop_depth = _depths(net.machine)
        for spec in self._decoded():
            decoder = decoder_of(spec.name)
            mops = net.add_channel(mop_fifo(spec.name), mop_depth, DISPATCHER, decoder, control=True)
            uops = net.add_channel(uop_fifo(spec.name), uop_depth, decoder, spec.name, control=True)
            net.spawn(decoder, self._decode(net, decoder, mops, uops), serves=spec.name)
        net.spawn(DISPATCHER, self._dispatch(net), serves="")
        for spec in self.overlay.units:
            if spec.kind in self.overlay.preloaded:
                net.spawn_unit(spec.name, net.feed(spec.name, self.uops(spec.name), self._origins(spec.name)))
            else:
                net.spawn_unit(spec.name, self._serve(net, spec.name))

    def _dispatch(self, net: ProcessNetwork) -> Steps:
        progress = net.progress[DISPATCHER]
        for number, packet in enumerate(self.packets):
            header = packet.header
            progress.number = number
            progress.issue = Issue(packet, number)
            yield Step("dispatch")
            if not header.opcode:
                continue
            form = self.overlay.by_opcode[header.opcode]
            units = self.overlay.selected(header.opcode, header.mask)
            sinks = [net.named_channel(mop_fifo(u.name)) for u in units]
            if header.last:
                for sink in sinks:
                    yield Step(puts=(sink,), send=((number, header, form, None),))
            for mop in packet.mops:
                yield Step("dispatch", mop.WORDS)
                for sink in sinks:
                    yield Step(puts=(sink,), send=((number, header, form, mop),))

    def _decode(self, net: ProcessNetwork, name: str, mops: Channel, uops: Channel) -> Steps:
        """The process of a decoder. A slot of its FIFO holds one mOP with its window and reuse."""
        progress = net.progress[name]
        while True:
            progress.number += 1
            ((number, header, form, mop),) = yield Step(gets=(mops,))
            progress.issue = Issue(mop, number)
            if header.last:
                yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(None, number, True),))
                return
            window = [mop]
            while form.loops_window and len(window) < header.window:
                ((_, _, _, mop),) = yield Step(gets=(mops,))
                window.append(mop)
            for uop in expand_window(form, window, range(header.reuse)):
                yield Step("decode", form.decode_cycles, puts=(uops,), send=(Issue(uop, number),))

    def _serve(self, net: ProcessNetwork, name: str) -> Steps:
        """The process of a unit: execute the uOPs from its decoder one after the other, until the last."""
        unit, progress, source = net.units[name], net.progress[name], net.named_channel(uop_fifo(name))
        apart = net.apart.get(name)
        room: tuple[Channel, ...] = ()
        has_room = False
        while True:
            if apart is not None:
                room = () if has_room else (apart.slots,)
            issue, *_ = yield Step(gets=(source,), puts=room)
            progress.number += 1
            progress.issue = issue
            if issue.last:
                break
            if apart is None:
                yield from unit.kernel(issue.uop)
            else:
                has_room = yield from net.take(name)
        if apart is not None:
            yield from net.end(name)

    # -- as traces ------------------------------------------------------------------------------------------------

    def trace(self, table: TraceTable) -> Mapping[str, TraceItems]:
        lists: dict[str, TraceItems] = {DISPATCHER: self._dispatcher(table)}
        queues = self._queues()
        for spec in self.overlay.units:
            unit = table.unit(spec.name)
            if spec.kind in self.overlay.preloaded:
                if self.overlay.preloaded[spec.kind].executed(self.preloaded.get(spec.name, ())) > MAX_TRACED:
                    raise UntraceableError("too many uOPs")
                lists |= unit.feed(self.uops(spec.name), list(self._origins(spec.name)))
            else:
                served = _Served(table, unit, spec.name)
                lists |= served.run(queues[spec.name])
        return lists

    def _queues(self) -> dict[str, list[Mop]]:
        """The mOPs that the dispatcher writes into the FIFO of each unit."""
        out: dict[str, list[Mop]] = {u.name: [] for u in self.overlay.units}
        for number, packet in enumerate(self.packets):
            header = packet.header
            if not header.opcode:
                continue
            form = self.overlay.by_opcode[header.opcode]
            queue: list[Mop] = [(number, header, form, None)] if header.last else []
            queue += [(number, header, form, mop) for mop in packet.mops]
            for unit in self.overlay.selected(header.opcode, header.mask):
                out[unit.name] += queue
        return out

    def _dispatcher(self, table: TraceTable) -> TraceItems:
        """The traces of `_dispatch`: packets of equal opcode, mask and length share one."""
        items = TraceItems()
        known: dict[tuple[int, int, int, tuple[int, ...]], int] = {}
        for number, packet in enumerate(self.packets):
            header = packet.header
            key = (header.opcode, header.mask, header.last, tuple([m.WORDS for m in packet.mops]))
            if key not in known:
                rows = [table.step("dispatch")]
                if header.opcode:
                    units = self.overlay.selected(header.opcode, header.mask)
                    puts = [table.step(puts=(table.net.named_channel(mop_fifo(u.name)),)) for u in units]
                    if header.last:
                        rows += puts
                    for mop in packet.mops:
                        rows += [table.step("dispatch", mop.WORDS), *puts]
                known[key] = table.trace(*rows)
            items.add(known[key], number, number)
        return items


_PLANS: WeakKeyDictionary[Program, TimedWorkload[Overlay]] = WeakKeyDictionary()


def plan_of(program: Program) -> TimedWorkload[Overlay]:
    """Return the timed run of a program whose parameters are at their defaults. It is traced once in the life of the
    program, because tracing is slow. `TimedWorkload.run` says what a run raises.
    """
    plan = _PLANS.get(program)
    if plan is None:
        places = replace(program)  # the plan must not keep the program itself
        plan = _PLANS[program] = TimedWorkload(program.overlay, InstructionPath.of(program), where=places.where)
    return plan


class _Served:
    """Makes the traces of `_decode` and `_serve` for one unit."""

    def __init__(self, table: TraceTable, unit: UnitTraces, name: str) -> None:
        self.table = table
        self.unit = unit
        self.source = table.net.named_channel(mop_fifo(name))
        self.sink = table.net.named_channel(uop_fifo(name))
        self.decoder = decoder_of(name)
        self.uops = 0

    def run(self, queue: Sequence[Mop]) -> Mapping[str, TraceItems]:
        """Return the items of the decoder and of the unit's processes, by name. Without a terminator all end with a
        blocked get."""
        table = self.table
        get = table.trace(table.step(gets=(self.source,)))
        decoder = TraceItems()
        kernels: list[int] = []
        origins: list[int] = []
        at, group, origin = 0, -1, NEVER
        end: int | None = None
        while True:
            group += 1
            decoder.add(get, group, origin)
            if at == len(queue):
                break
            number, header, form, mop = queue[at]
            origin, at = number, at + 1
            if header.last:
                decoder.add(self._put(form, 1), group, number)
                end = number
                break
            window = [mop]
            if form.loops_window and header.window > 1:
                missing = header.window - 1
                window += [m for _, _, _, m in queue[at : at + missing]]
                at += missing
                decoder.add(table.trace(table.step(gets=(self.source,), times=missing)), group, number)
                if at > len(queue):
                    break
            before = len(kernels)
            kernels += self._window(form, window, header.reuse)
            if len(kernels) > before:
                decoder.add(self._put(form, len(kernels) - before), group, number)
                origins += [number] * (len(kernels) - before)
        fed = self.unit.served(kernels, origins, self.sink, end) if self.unit.apart else self._fed(kernels, origins)
        return {self.decoder: decoder, **fed}

    def _put(self, form: InstructionFormat, times: int) -> int:
        step = self.table.step("decode", form.decode_cycles, puts=(self.sink,), times=times)
        return self.table.trace(step)

    def _window(self, form: InstructionFormat, window: Sequence[Any], reuse: int) -> list[int]:
        """The traces of the uOPs that a window expands to."""
        self.uops += reuse * sum(int(getattr(m, "chunks", 1)) for m in window)
        if self.uops > MAX_TRACED:
            raise UntraceableError("too many uOPs")

        def iterate(iterations: range) -> list[tuple[int, bool]]:
            return [self.unit.kernel(uop) for uop in expand_window(form, window, iterations)]

        if not reuse:
            return []
        first = iterate(range(1))
        traces = [t for t, _ in first]
        # A kernel that may depend on earlier uOPs is traced once per uOP. A format with `addresses` promises that
        # iterations differ in addresses only; comparing first and last shows effect keys that contain addresses.
        alike = not any(past for _, past in first) and (
            form.uops is one_uop or (form.addresses is not None and iterate(range(reuse - 1, reuse)) == first)
        )
        if alike:
            return traces * reuse
        return traces + [t for t, _ in iterate(range(1, reuse))]

    def _fed(self, kernels: list[int], origins: list[int]) -> Mapping[str, TraceItems]:
        """The items of a unit: get, kernel, get, kernel, ..., get. A get belongs to the uOP before it."""
        items = TraceItems()
        n = len(kernels)
        get = self.table.trace(self.table.step(gets=(self.sink,)))
        items.traces = array("i", [get]) * (2 * n + 1)
        items.traces[1::2] = array("i", kernels)
        for column, values in ((items.number, np.arange(n)), (items.origin, origins)):
            column.append(NEVER)
            column.frombytes(np.repeat(np.asarray(values, np.int32), 2).tobytes())
        return {self.unit.name: items}
