"""Print a program as `.rsn` text with packets. Assembling the text gives the same binary again."""

from __future__ import annotations

import base64
import struct
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

import numpy as np

from ..base.errors import ProgramError
from ..base.garbage import gc_disabled
from ..isa.buffer_map import BufferMap
from ..isa.fields import Field, Record
from ..isa.overlay import InstructionFormat, Overlay
from ..isa.overlays.file import lines
from ..isa.packet import NOP, Header, Packet
from ..isa.program import Buffer, Layout, Parameter, Patch, Program, ProgramSegment, Role
from ..machine.description import UnitSpec
from .outline import outline
from .printed_lines import INDENT, NUMBER, SUMMAND, NumberSlot, TextRow, Words, label, named, render_nodes
from .rolling import roll_loops
from .slices import Chunks, bounds_of, whole_buffer
from .spelling import NAME, Spelling, letters, quoted, spelling

WIDTH = 120
"""Columns of a line. Lines that cannot be broken may be longer."""

LISTED = 64
"""Limit of numbers of a vector written one by one. A longer vector is written packed, in base64."""

DECLARED = 4.0
"""Cost in lines of a loop around declarations: a few names are easier to read than a loop that generates them."""


def show(program: Program) -> str:
    """Print a program as its canonical text. Raises `ProgramError` if the language cannot express it.

    It cannot express a field with two patches, a header whose `window` is not its number of mOPs, a skipped header
    (opcode 0) with other bits set, and numbers that are not finite.
    """
    with gc_disabled():
        return _ProgramPrinter(program).text()


def shortest(value: float) -> str:
    """Format a value as the shortest decimal that reads back as the same float32. Raises `ProgramError` if it is not
    finite.
    """
    rounded = np.float32(value)
    if not np.isfinite(rounded):
        raise ProgramError(f"{value} cannot stand in a program: it is not a finite float32")
    return str(rounded)


class _ProgramPrinter:
    """Prints one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.overlay: Overlay = program.overlay
        self.atlas = BufferMap(program.buffers, self.overlay.address_unit)
        self.clamps: dict[tuple[int, int], dict[str, TextRow]] = {}
        self._known_settings: dict[Hashable, tuple[Words, Words]] = {}
        overlay = self.overlay
        self.taken = {b.name for b in program.buffers} | {p.name for p in program.parameters}
        self.taken |= overlay.by_unit.keys() | overlay.by_kind.keys() | overlay.by_format.keys()
        self.taken |= {f.name for form in overlay.formats for f in form.mop.FIELDS}
        """Names that loop variables and block parameters must not have."""
        for parameter in program.parameters:
            for patch in parameter.patches:
                self._clamp(parameter, patch)

    def text(self) -> str:
        """Return the text: overlay, declarations, segments, op lists, blocks, packets, vectors."""
        declared = [self._parameter(p) for p in self.program.parameters]
        parts = [_overlay(self.overlay), self._laid(declared, DECLARED)]
        parts.append(self._laid([self._buffer(b) for b in self.program.buffers], DECLARED))
        parts.append([_segment(segment) for segment in self.program.segments])
        for units, ops in self._op_lists():
            rows = [self._mop(op, units, {}) for op in ops]
            parts.append([f"{group(units)} {{", *(INDENT + line for line in self._laid(rows)), "}"])
        packets = roll_loops([self._packet(i, p) for i, p in enumerate(self.program.packets)], WIDTH)
        blocks = outline(packets, WIDTH, self.taken, self.overlay.by_unit)
        parts += [render_nodes([block], self.taken, WIDTH) for block in blocks]
        parts.append(render_nodes(packets, self.taken, WIDTH))
        for b in self.program.buffers:  # last, because vectors are long
            parts += [vector(which, b) for which in ("scale", "shift") if getattr(b, which) is not None]
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"

    def _laid(self, rows: Sequence[TextRow], loop_cost: float = 1.0) -> list[str]:
        return render_nodes(roll_loops(rows, WIDTH, loop_cost), self.taken, WIDTH)

    # -- declarations ---------------------------------------------------------------------------------------------

    def _parameter(self, p: Parameter) -> TextRow:
        return Words().put("param").put(*label(p.name)).put(f"{p.low}..{p.high} = {p.default}").row()

    def _buffer(self, b: Buffer) -> TextRow:
        usual = Layout.BLOCKED if len(b.shape) == 2 else Layout.LINEAR
        words = Words().put("buffer").put(*named(b.name)).put(f"{b.bank} {'x'.join(map(str, b.shape))}")
        if b.layout is not usual or len(b.shape) == 2:
            words.put(b.layout.value)
        if b.role is not Role.SCRATCH:
            words.put(b.role.value)
        words.put("at").put(NUMBER, b.offset)
        if b.view:
            words.put(f"view {'x'.join(map(str, b.view))}")
        if b.rows:
            words.put(f"rows {', '.join(map(str, b.rows))}")
        return words.row()

    def _clamp(self, parameter: Parameter, patch: Patch) -> None:
        fields = self.clamps.setdefault((patch.packet, patch.mop), {})
        if patch.field in fields:
            raise ProgramError(f"packet {patch.packet}, mOP {patch.mop}: {patch.field} is patched twice")
        sign, base = ("+", -patch.base) if patch.base < 0 else ("-", patch.base)
        words = Words().put("clamp(").glue(*label(parameter.name)).glue(sign).glue(SUMMAND, base)
        fields[patch.field] = words.glue(", 0, ").glue(NUMBER, patch.cap).glue(")").row()

    # -- op lists -------------------------------------------------------------------------------------------------

    def _op_lists(self) -> list[tuple[list[UnitSpec], Sequence[Record]]]:
        """Return op lists with the units of one kind that share them, in the overlay's order of units."""
        groups: dict[tuple[str, tuple[Record, ...]], list[UnitSpec]] = {}
        for unit in self.overlay.units:
            ops = tuple(self.program.preloaded.get(unit.name, ()))
            if ops:
                groups.setdefault((unit.kind, ops), []).append(unit)
        return [(units, ops) for (_, ops), units in groups.items()]

    # -- packets --------------------------------------------------------------------------------------------------

    def _packet(self, number: int, packet: Packet) -> TextRow:
        """Write one packet; `number` is its index in the image."""
        header = packet.header
        if header.window != len(packet.mops):
            raise ProgramError(f"packet {number} has window={header.window} in its header, but {len(packet.mops)} mOPs")
        if header.opcode == NOP:
            if header != Header(opcode=NOP):
                raise ProgramError(f"packet {number}: a skipped header with other bits set")
            return Words().put("nop").row()
        form = self.overlay.by_opcode[header.opcode]
        units = self.overlay.selected(header.opcode, header.mask)
        head = Words().put("last" if header.last else "packet")
        self._target(head, form, header.mask, units)
        if header.last:
            return head.row()
        if header.reuse != 1:
            head.put("reuse=").glue(NUMBER, header.reuse)
        around = units or self.overlay.by_kind[form.kind][:1]
        mops = (self._mop(m, around, self.clamps.get((number, i), {})) for i, m in enumerate(packet.mops))
        return head.row(tuple(mops))

    def _target(self, words: Words, form: InstructionFormat, mask: int, units: Sequence[UnitSpec]) -> None:
        """Add whom a packet is for: its units, after the format if it is a configuration; or the format and a mask."""
        alone = len(self.overlay.by_kind[form.kind]) == 1
        if not alone and (not units or mask != sum(1 << u.index for u in units)):
            words.put(f"{form.name} mask={mask}")
            return
        if form is not self.overlay.format_of(form.kind):
            words.put(form.name)
        if alone:
            words.put(units[0].name + (f" mask={mask}" if mask else ""))
        elif len(units) == 1:
            words.put(*self._unit(units[0].name))
        else:
            words.put(group(units))

    def _unit(self, name: str) -> tuple[NumberSlot | str, int] | tuple[str]:
        """Return a slot and index for a unit named by kind and index (`MemA0`), else its name."""
        spec = self.overlay.by_unit.get(name)
        if spec is None or name != f"{spec.kind}{spec.index}":
            return (name,)
        return NumberSlot("unit", (spec.kind,)), spec.index

    # -- statements -----------------------------------------------------------------------------------------------

    def _mop(self, mop: Record, units: Sequence[UnitSpec], clamps: Mapping[str, TextRow]) -> TextRow:
        """Write one mOP as words: flags, a piece of a buffer, its peer, and the fields that are not at their default.

        clamps: fields that a run-time parameter sets, with the words of their clamp.
        """
        spelled = spelling(type(mop))
        piece, done = self._piece(mop, spelled, units, clamps)
        if clamps or (spelled.sliced and not done):  # the buffer named for an address depends on earlier stores
            before, after = self._settings(mop, units, clamps, done)
        else:
            values = mop.__dict__
            key = type(mop), tuple([repr(values[n]) for n in values if n not in done])  # -0.0 is not 0.0
            if key not in self._known_settings:
                self._known_settings[key] = self._settings(mop, units, clamps, done)
            before, after = self._known_settings[key]
        row = Words().join(before).join(piece).join(after).row()
        if row.parts:
            return row
        # All fields have their defaults, but a statement needs a word: write the first field.
        return Words().put(f"{mop.FIELDS[0].name}=").glue(NUMBER, getattr(mop, mop.FIELDS[0].name)).row()

    def _settings(
        self, mop: Record, units: Sequence[UnitSpec], clamps: Mapping[str, TextRow], done: Set[str]
    ) -> tuple[Words, Words]:
        """Return the words before a piece of a buffer and those behind it. done: fields that the piece sets."""
        words = spelling(type(mop))
        flags, arrows, settings = Words(), Words(), Words()
        for f in mop.FIELDS:
            value = getattr(mop, f.name)
            if f.name in clamps:
                settings.put(f"{f.name}=").append(clamps[f.name])
            elif f.name in done or repr(value) == repr(getattr(words.default, f.name)):
                continue
            elif f.flag and value == 1:
                if f.name in words.arrows:
                    self._arrow(arrows, f)
                else:
                    flags.put(f.name)
            elif f.name == "addr" and words.sliced:
                self._address(settings.put("addr="), value, units)
            elif f.real:
                settings.put(f"{f.name}={shortest(value)}")
            else:
                settings.put(f"{f.name}=").glue(NUMBER, value)
        return flags, arrows.join(settings)

    def _arrow(self, words: Words, field: Field) -> None:
        """Add the stream that a field selects: `-> MemA0`, `<- MemC0` or `MemA0->MME0`."""
        if field.source and field.to:
            words.put(*self._unit(field.source)).glue("->").glue(*self._unit(field.to))
        elif field.to:
            words.put("->").put(*self._unit(field.to))
        else:
            words.put("<-").put(*self._unit(str(field.source)))

    def _piece(
        self, mop: Record, words: Spelling, units: Sequence[UnitSpec], clamps: Mapping[str, TextRow]
    ) -> tuple[Words, Set[str]]:
        """Return the piece of a buffer that an mOP moves and the fields that it sets; both empty if there is none."""
        if not words.sliced or words.piece & clamps.keys() or units[0].bank is None:
            return Words(), set()
        values = mop.__dict__
        chunks = Chunks(values["addr"], values["size"], values.get("chunks", 1), values.get("chunk_stride", 0))
        if chunks.chunks != 1 and not words.chunked:
            return Words(), set()
        bank, store = units[0].bank, any(values[f.name] for f in words.source.values())
        for order, b in self.atlas.candidates(bank, chunks.addr, store):
            found = self._rectangle(b, chunks, words)
            if found is not None:
                self.atlas.note_access(bank, order, store)
                return found, words.piece
        return Words(), set()

    def _rectangle(self, b: Buffer, chunks: Chunks, words: Spelling) -> Words | None:
        """Write chunks as a buffer or a rectangle of it; None if they are neither."""
        if chunks == whole_buffer(b):
            taken = b.name in words.fields or b.name in self.overlay.by_unit or b.name in self.overlay.by_format
            return Words().put(*named(b.name, quote=taken))
        bounds = bounds_of(b, chunks, self.overlay.address_unit)
        if bounds is None:
            return None
        piece = Words().put(*named(b.name)).glue("[")
        for i, (start, stop) in enumerate(bounds):
            piece.glue(", " if i else "").glue(NUMBER, start).glue(":+").glue(NUMBER, stop - start)
        return piece.glue("]")

    def _address(self, words: Words, addr: int, units: Sequence[UnitSpec]) -> None:
        for _, b in self.atlas.candidates(units[0].bank or "", addr, False):
            words.glue(*named(b.name))
            if addr > b.offset:
                words.glue("+").glue(SUMMAND, addr - b.offset)
            return
        words.glue(NUMBER, addr)


def _overlay(overlay: Overlay) -> list[str]:
    """Write the declaration of the overlay: its name, and what an overlay file changed, so that the text needs no
    file."""
    changes = [quoted(line) for line in lines(overlay)] if overlay.changes else []
    one = " ".join([f"overlay {quoted_overlay(overlay.name)}", *changes])
    if overlay.whole is None:
        return [one]
    return [f"overlay {quoted_overlay(overlay.name)} {{", *(INDENT + line for line in changes), "}"]


def _segment(segment: ProgramSegment) -> str:
    """Write the declaration of a segment. It has no uOPs: they are found again when the text is assembled."""
    words = [f"segment {quoted(segment.name)}"]
    if segment.kind:
        words.append(f'kind "{letters(segment.kind)}"')
    if segment.layers:
        words.append("layers " + ", ".join(f'"{letters(path)}"' for path in segment.layers))
    if segment.outputs:
        words.append("outputs " + ", ".join(map(quoted, segment.outputs)))
    return " ".join(words)


def quoted_overlay(name: str) -> str:
    """Return an overlay's name as source text: as it is if it begins with a letter or an underscore, and goes on with
    letters, digits, underscores, dashes and single dots, none of these at its end; else in quotes."""
    return name if NAME.fullmatch(name.replace("-", "_")) and name[0] != "-" else quoted(name)


def group(units: Sequence[UnitSpec]) -> str:
    """Write units of one kind as `MemA0`, `MemC[0..5]` or `MemC[0, 2..4]`, in the order of their indices. units: at
    least one.
    """
    if len(units) == 1:
        return units[0].name
    runs: list[list[int]] = []
    for index in sorted(u.index for u in units):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    shown = [str(r[0]) if len(r) == 1 else f"{r[0]}..{r[-1]}" for r in runs]
    return f"{units[0].kind}[{', '.join(shown)}]"


def vector(which: str, b: Buffer) -> list[str]:
    """Write a buffer's "scale" or "shift" (`which`), one number per column, as lines of text. Raises `ProgramError` for
    non-finite numbers.
    """
    values = getattr(b, which)
    start = f"{which} {quoted(b.name)} "
    words = [shortest(v) for v in values]  # for packed vectors too: it refuses numbers that are not finite
    if len(values) <= LISTED:
        return list(wrap(start + "[", words, "]"))
    data = base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
    return [f'{start}f32"{data}"']


def wrap(start: str, words: Sequence[str], end: str) -> Iterator[str]:
    """Yield `start`, words and `end` as lines of at most `WIDTH` columns, indented from the second line on; a longer
    word has a line of its own. words: at least one.
    """
    line = start + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = INDENT + word
        else:
            line += f" {word}"
    yield line + end
