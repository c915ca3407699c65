"""Read sections and packets: the units they are for, packet headers, terminators."""

from __future__ import annotations

from dataclasses import dataclass

from lark import Token

from ..isa import packet as wire
from ..isa.overlay import InstructionFormat
from ..isa.program import Patch, SourceLine
from ..machine.description import UnitSpec
from . import syntax as s
from .blocks import Blocks
from .diagnostic import ErrorReport, Mistake, SourceText, did_you_mean, listing
from .names import ScopedNames
from .statements import Site, Statements, UnrolledMop, fitting


@dataclass(frozen=True)
class _First:
    """Text and line of the first section, or of the first packet."""

    text: SourceText
    line: int


class Code:
    """Collects the code of a text: packets in image order, or instructions per unit (kernels) from sections; op lists.

    names, blocks: those of the text. report: where mistakes go. places, patches: source lines of packets, and their
    patches by run-time parameter. kernels, preloaded: lines by unit. first: the first section and the first packet, of
    which a text has only one.
    """

    def __init__(self, names: ScopedNames, blocks: Blocks, report: ErrorReport) -> None:
        self.names = names
        self.blocks = blocks
        self.report = report
        self.statements = Statements(names, report)
        self.packets: list[wire.Packet] = []
        self.places: list[SourceLine] = []
        self.patches: dict[str, list[Patch]] = {}
        self.kernels: dict[str, list[UnrolledMop]] = {}
        self.preloaded: dict[str, list[UnrolledMop]] = {}
        self.first: dict[str, _First] = {}

    def take(self, item: s.Item | s.Mop) -> None:
        """Read a section or packet; ignore declarations. Raises `Mistake` for a statement outside of both, and for a
        section or packet that is wrong as a whole. Other mistakes go to the report; raises `SourceError` once it is
        full.
        """
        match item:
            case s.Section():
                self._section(item)
            case s.PacketBlock():
                self._packet(item)
            case s.Nop():
                self._either("packet", item.start)
                self._append(item.start, wire.Packet(wire.Header(opcode=wire.NOP)))
            case s.Mop():
                raise Mistake(s.start_span(item), "a statement must stand inside a section or a packet")

    def _either(self, which: str, token: Token) -> None:
        """Note the first section or packet. Raises `Mistake` if the text has both."""
        self.first.setdefault(which, _First(self.report.text, s.line(token)))
        for other, place in self.first.items():
            if other != which:
                of = "" if place.text is self.report.text else f" of {place.text.file}"
                note = f"line {place.line}{of} has a {other}"
                hint = "give every unit a section, or write every packet by hand, terminators included"
                raise Mistake(s.token_span(token), "a text has either sections or packets, not both", note, hint)

    def _lines(self, body: tuple[s.Statement, ...], site: Site) -> list[UnrolledMop]:
        """Read the body of a section or packet, unrolled."""
        lines: list[UnrolledMop] = []

        def visit(item: s.Item | s.Mop) -> None:
            if not isinstance(item, s.Mop):
                what = "section" if isinstance(item, s.Section) else "packet"
                raise Mistake(s.start_span(item), f"a {what} cannot stand inside a section or packet")
            self.blocks.spend(s.start_span(item))
            line = self.statements.read(item.words, site)
            if line is not None:
                lines.append(line)

        self.blocks.walk(body, visit)
        return lines

    def _section(self, item: s.Section) -> None:
        heads = self.names.head(item.head)
        units = self.names.units(heads)
        kind = units[0].kind
        preloaded = kind in self.names.overlay.preloaded
        if preloaded:
            held = self.names.overlay.preloaded[kind]
            site = Site(units, kind, held.record, preloaded=True)
        else:
            self._either("section", heads[0].name)
            configs = {f.name: f.mop for f in self.names.overlay.formats if f.kind == kind and f.config}
            site = Site(units, kind, self.names.driver(kind, heads[0]).mop, configs)
        sink = self.preloaded if preloaded else self.kernels
        lines = self._lines(item.body, site)
        for unit in units:
            if lines or not preloaded:
                sink.setdefault(unit.name, []).extend(lines)
            total = len(sink.get(unit.name, ()))
            if preloaded and total > held.longest:
                raise Mistake(s.span(heads[0]), f"{unit.name} holds at most {held.longest} ops, not {total}")

    def _packet(self, item: s.PacketBlock) -> None:
        self._either("packet", item.start)
        overlay = self.names.overlay
        form, units, named = self._addressed(item)
        header = {"mask": sum(1 << u.index for u in units) if len(overlay.by_kind[form.kind]) > 1 else 0}
        for setting in item.settings:
            name = setting.name
            known = ["mask"] if item.last else ["mask", "reuse"]
            if name not in known:
                note = f"it can set {listing(known)}"
                raise Mistake(setting.name_span, f"a packet header takes no {name}", *did_you_mean(name, known), note)
            if isinstance(setting.value, s.Clamp):
                raise Mistake(s.span(setting.value), "a run-time parameter sets fields of mOPs, not of headers")
            if name == "mask" and header["mask"] and named:
                raise Mistake(s.span(setting), "the mask already follows from the units named")
            header[name] = fitting(wire.Header, name, self.names.integer(setting.value), s.span(setting))
        if form.config and item.last:
            raise Mistake(s.span(item.units[0]), f"a {form.name} packet cannot be a terminator")
        if not units and all(x.name != "mask" for x in item.settings):
            known = [u.name for u in overlay.by_kind[form.kind]]
            raise Mistake(s.span(item.units[0]), f"the packet names no unit; {form.kind} units are {listing(known)}")
        units = overlay.selected(form.opcode, header["mask"])
        if item.last:
            self._append(item.start, wire.Packet.terminator(form.opcode, header["mask"]))
            return
        lines = self._lines(item.body, Site(units, form.kind, form.mop))
        room = wire.Header.field("window").bounds[1]
        if len(lines) > room:
            raise Mistake(s.token_span(item.start), f"a packet holds at most {room} mOPs, not {len(lines)}")
        for i, line in enumerate(lines):
            for c in line.clamped:
                patch = Patch(len(self.packets), i, c.field, c.base, c.cap)
                self.patches.setdefault(c.parameter, []).append(patch)
        self._append(item.start, wire.Packet.of(form.opcode, [x.record for x in lines], **header))

    def _append(self, start: Token, packet: wire.Packet) -> None:
        self.blocks.spend(s.token_span(start))
        self.packets.append(packet)
        self.places.append(self.statements.place(start))

    def _addressed(self, item: s.PacketBlock) -> tuple[InstructionFormat, tuple[UnitSpec, ...], bool]:
        """Return the format of a packet, its units, and whether it names the units.

        It may name units (`MemA[0, 2]`), a format and units (`MemCConfig MemC0`), or a format alone, with mask=.
        """
        if not item.units:
            raise Mistake(s.token_span(item.start), "the packet names no unit: write the units it is for")
        overlay = self.names.overlay
        first = item.units[0]
        name = str(first.name)
        if first.ranges is None and name in overlay.by_format and name not in overlay.by_unit:
            form = overlay.by_format[name]
            alone = overlay.by_kind[form.kind]
            if len(item.units) == 1:
                return form, alone if len(alone) == 1 else (), False
            units = self.names.units(item.units[1:])
            if units[0].kind != form.kind:
                raise Mistake(s.span(item.units[1]), f"{name} is for {form.kind} units, not for {units[0].name}")
            return form, units, True
        units = self.names.units(item.units)
        kind = units[0].kind
        if kind in overlay.preloaded:
            hint = f"write a section {kind}[...] {{ ... }} instead"
            raise Mistake(s.span(first), f"{kind} ops are loaded beforehand, not sent in packets", hint)
        return self.names.driver(kind, first), units, True
