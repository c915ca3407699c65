"""From a program to `.rsn` text, at the level of packets. Assembling the text gives the same binary again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..isa.datapath import Form, Overlay, UnitSpec
from ..isa.errors import ProgramError
from ..isa.fields import Record
from ..isa.packet import NOP, Header, Packet
from ..isa.program import Buffer, Layout, Parameter, Patch, Program, Role
from .slices import Atlas, Chunks, uncut, whole
from .spelling import KEYWORDS, NAME, Spelling, quoted, spelling

WIDTH = 100
"""Columns of a line, where it can be broken."""

INDENT = "  "

LONGEST_PATTERN = 8
"""Ops that are looked at as one when repeats are sought."""


def show(program: Program) -> str:
    """The canonical text of a program. Raises `ProgramError` for what the language cannot say (see `_Printer`)."""
    return _Printer(program).text()


def shortest(value: float) -> str:
    """The shortest decimal that reads back as this float32."""
    rounded = np.float32(value)
    if not np.isfinite(rounded):
        raise ProgramError(f"{value} has no place in a program")
    return str(rounded)


class _Printer:
    """Prints one program. Unsayable: a field with two patches, a header with `window` unlike its mOPs, a skipped
    header (opcode 0) with other bits set, numbers that are not finite."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.overlay: Overlay = program.overlay
        self.atlas = Atlas(program.buffers, self.overlay.address_unit)
        self.clamps: dict[tuple[int, int], dict[str, str]] = {}
        for parameter in program.parameters:
            for patch in parameter.patches:
                self._clamp(parameter, patch)

    def text(self) -> str:
        parts = [[f"overlay {quoted_overlay(self.overlay.name)}"]]
        parts.append([self._parameter(p) for p in self.program.parameters])
        parts.append([self._buffer(b) for b in self.program.buffers])
        parts += [list(self._ops(units, ops)) for units, ops in self._op_lists()]
        parts.append([line for i, p in enumerate(self.program.packets) for line in self._packet(i, p)])
        for b in self.program.buffers:  # long and dull, so last
            parts += [list(_vector(which, b)) for which in ("scale", "shift") if getattr(b, which) is not None]
        return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"

    # -- declarations ---------------------------------------------------------------------------------------------

    def _parameter(self, p: Parameter) -> str:
        return f"param {label(p.name)} {p.low}..{p.high} = {p.default}"

    def _buffer(self, b: Buffer) -> str:
        usual = Layout.BLOCKED if len(b.shape) == 2 else Layout.LINEAR
        words = ["buffer", quoted(b.name), b.bank, "x".join(map(str, b.shape))]
        words += [b.layout.value] if b.layout is not usual or len(b.shape) == 2 else []
        words += [b.role.value] if b.role is not Role.SCRATCH else []
        words += ["at", str(b.offset)]
        words += ["view", "x".join(map(str, b.view))] if b.view else []
        return " ".join(words)

    def _clamp(self, parameter: Parameter, patch: Patch) -> None:
        fields = self.clamps.setdefault((patch.packet, patch.mop), {})
        if patch.field in fields:
            raise ProgramError(f"packet {patch.packet}, mOP {patch.mop}: {patch.field} is patched twice")
        sign, base = ("+", -patch.base) if patch.base < 0 else ("-", patch.base)
        fields[patch.field] = f"clamp({label(parameter.name)}{sign}{base}, 0, {patch.cap})"

    # -- op lists -------------------------------------------------------------------------------------------------

    def _op_lists(self) -> list[tuple[list[UnitSpec], Sequence[Record]]]:
        """Units of one kind with equal lists together, in the overlay's order."""
        groups: dict[tuple[str, tuple[Record, ...]], list[UnitSpec]] = {}
        for unit in self.overlay.units:
            ops = tuple(self.program.preloaded.get(unit.name, ()))
            if ops:
                groups.setdefault((unit.kind, ops), []).append(unit)
        return [(units, ops) for (_, ops), units in groups.items()]

    def _ops(self, units: list[UnitSpec], ops: Sequence[Record]) -> Iterator[str]:
        yield f"{group(units)} {{"
        for pattern, count in repeats([self._mop(op, units, {}) for op in ops]):
            if count == 1:
                yield from (INDENT + line for line in pattern)
            elif len(pattern) == 1 and len(pattern[0]) < WIDTH - 20:
                yield f"{INDENT}for {count} {{ {pattern[0]} }}"
            else:
                yield f"{INDENT}for {count} {{"
                yield from (2 * INDENT + line for line in pattern)
                yield f"{INDENT}}}"
        yield "}"

    # -- packets --------------------------------------------------------------------------------------------------

    def _packet(self, number: int, packet: Packet) -> Iterator[str]:
        header = packet.header
        if header.window != len(packet.mops):
            raise ProgramError(f"packet {number}: window={header.window} and {len(packet.mops)} mOPs")
        if header.opcode == NOP:
            if header != Header(opcode=NOP):
                raise ProgramError(f"packet {number}: a skipped header with other bits set")
            yield "nop"
            return
        form = self.overlay.by_opcode[header.opcode]
        units = self.overlay.selected(header.opcode, header.mask)
        target = self._target(form, header.mask, units)
        if header.last:
            yield f"last {target}"
            return
        start = f"packet {target}" + (f" reuse={header.reuse}" if header.reuse != 1 else "")
        around = units or self.overlay.by_kind[form.kind][:1]
        mops = [self._mop(m, around, self.clamps.get((number, i), {})) for i, m in enumerate(packet.mops)]
        inline = f"{start} {{ {mops[0]} }}" if len(mops) == 1 else f"{start} {{ }}"
        if len(mops) < 2 and len(inline) <= WIDTH:
            yield inline
            return
        yield f"{start} {{"
        yield from (INDENT + m for m in mops)
        yield "}"

    def _target(self, form: Form, mask: int, units: Sequence[UnitSpec]) -> str:
        """Who a packet is for: units, before them the format if it is not the one that drives them, or a bare mask."""
        alone = len(self.overlay.by_kind[form.kind]) == 1
        words = [form.name] if form is not self.overlay.form_of(form.kind) else []
        if alone:
            return " ".join([*words, units[0].name, *([f"mask={mask}"] if mask else [])])
        if not units or mask != sum(1 << u.index for u in units):
            return f"{form.name} mask={mask}"
        return " ".join([*words, group(units)])

    # -- statements -----------------------------------------------------------------------------------------------

    def _mop(self, mop: Record, units: Sequence[UnitSpec], clamps: Mapping[str, str]) -> str:
        """The words of one mOP: flags, a piece of a buffer, its peer, and what differs from the defaults."""
        words = spelling(type(mop))
        flags: list[str] = []
        arrows: list[str] = []
        settings: list[str] = []
        piece, done = self._piece(mop, words, units, clamps)
        for f in mop.FIELDS:
            value = getattr(mop, f.name)
            if f.name in clamps:
                settings.append(f"{f.name}={clamps[f.name]}")
            elif f.name in done or repr(value) == repr(getattr(words.default, f.name)):  # -0.0 is not 0.0
                continue
            elif f.flag and value == 1:
                arrow = words.arrow(f)
                (arrows if arrow else flags).append(arrow or f.name)
            elif f.name == "addr" and words.sliced:
                settings.append(f"addr={self._address(value, units)}")
            else:
                settings.append(f"{f.name}={shortest(value) if f.real else value}")
        out = [*flags, *piece, *arrows, *settings]
        # A format may have nothing to say; a statement needs a word.
        return " ".join(out) if out else f"{mop.FIELDS[0].name}={getattr(mop, mop.FIELDS[0].name)}"

    def _piece(
        self, mop: Record, words: Spelling, units: Sequence[UnitSpec], clamps: Mapping[str, str]
    ) -> tuple[list[str], set[str]]:
        """The piece of a buffer that an mOP moves, and the fields it stands for; nothing if it is no such piece."""
        names = {"addr", "size", "chunks", "chunk_stride"} & words.fields.keys()
        if not words.sliced or names & clamps.keys() or units[0].bank is None:
            return [], set()
        values: dict[str, int] = {n: getattr(mop, n) for n in names}
        chunks = Chunks(values["addr"], values["size"], values.get("chunks", 1), values.get("chunk_stride", 0))
        if chunks.chunks != 1 and not words.chunked:
            return [], set()
        bank, store = units[0].bank, any(getattr(mop, f.name) for f in words.source.values())
        for order, b in self.atlas.around(bank, chunks.addr, store):
            text = self._rectangle(b, chunks, words)
            if text is not None:
                self.atlas.touch(bank, order, store)
                return [text], names
        return [], set()

    def _rectangle(self, b: Buffer, chunks: Chunks, words: Spelling) -> str | None:
        if chunks == whole(b):
            return quoted(b.name, {*words.fields, *self.overlay.by_unit, *self.overlay.by_form})
        bounds = uncut(b, chunks, self.overlay.address_unit)
        if bounds is None:
            return None
        return f"{quoted(b.name)}[{', '.join(f'{start}:+{stop - start}' for start, stop in bounds)}]"

    def _address(self, addr: int, units: Sequence[UnitSpec]) -> str:
        for _, b in self.atlas.around(units[0].bank or "", addr, False):
            return quoted(b.name) + (f"+{addr - b.offset}" if addr > b.offset else "")
        return str(addr)


def quoted_overlay(name: str) -> str:
    return name if NAME.fullmatch(name.replace("-", "_")) else quoted(name)


def label(name: str) -> str:
    """A parameter's name: `len`, `len[3]`, or quoted."""
    stem, bracket, index = name.partition("[")
    if bracket and name.endswith("]") and NAME.fullmatch(stem) and stem not in KEYWORDS:
        digits = index[:-1]
        if digits.isascii() and digits.isdecimal() and digits == str(int(digits[:20])):
            return name
    return quoted(name)


def group(units: Sequence[UnitSpec]) -> str:
    """`MemA0`, `MemC[0..5]`, `MemC[0, 2..4]`: units of one kind."""
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


def repeats(lines: Sequence[str]) -> Iterator[tuple[Sequence[str], int]]:
    """Cut a list into patterns and how often each stands in a row; greedy, the pattern that covers most first."""
    i = 0
    while i < len(lines):
        best = (1, 1)
        for size in range(1, min(LONGEST_PATTERN, len(lines) - i) + 1):
            count = 1
            while lines[i + size * count : i + size * (count + 1)] == lines[i : i + size]:
                count += 1
            if count > 1 and size * count > best[0] * best[1]:
                best = (size, count)
        size, count = best
        yield lines[i : i + size], count
        i += size * count


def _vector(which: str, b: Buffer) -> Iterator[str]:
    return wrap(f"{which} {quoted(b.name)} [", [shortest(v) for v in getattr(b, which)], "]")


def wrap(start: str, words: Sequence[str], end: str) -> Iterator[str]:
    """Words behind `start`, broken into indented lines."""
    line = start + words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) > WIDTH:
            yield line
            line = INDENT + word
        else:
            line += f" {word}"
    yield line + end
