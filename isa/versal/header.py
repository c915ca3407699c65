"""Generates the header of a machine: the formats of an overlay with their codec, and its sizes, in C++17."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from textwrap import wrap
from typing import Any

import numpy as np

from ...machine.description import Stream
from .. import layout
from ..fields import Field, Record
from ..overlay import InstructionFormat, Overlay
from ..packet import MAX_WINDOW, NOP, Header
from ..reference import MADE_BY, WIDTH, about, expansion
from . import tiles
from .loop import PipelinedLoop

PING_PONG = 2
"""Slots of a memory that needs no number of them."""


def header(overlay: Overlay, loops: Mapping[str, PipelinedLoop], fields: str) -> str:
    """Return the text of the C++17 header of an overlay whose units move 128x128 tiles: formats with their codec, and
    sizes of the datapath.

    loops: of its sources, by the names of their constants. fields: path of pl/fields.h, from the header's folder. All
    headers have one namespace and one guard, because a machine is built for one overlay.
    """
    out = [
        f"// The instruction set of overlay {overlay.name}: wire formats and their codec, units, streams, sizes.",
        f"// {MADE_BY}",
        "//",
        "// Plain C++17 without library types, for HLS, AIE and native builds alike. docs/isa.md has the same as text.",
        "// SPDX-License-Identifier: Apache-2.0",
        "#ifndef RSN_XNN_ISA_H",
        "#define RSN_XNN_ISA_H",
        "",
        f'#include "{fields}"',
        "",
        "namespace rsn::xnn {",
        "",
        *_identity(overlay),
        "",
        *_opcodes(overlay),
    ]
    out += ["", "// Packet header.", *_struct(Header, [])]
    forms = {form.mop: form for form in reversed(overlay.formats)}  # units may share one
    for form in reversed(forms.values()):
        out += ["", *_form(form)]
    out += ["", *_mop_words(overlay)]
    for kind, ops in overlay.preloaded.items():
        record = ops.record
        facts = [("longest_list", str(ops.longest), "ops")]
        out += ["", *_comment(f"{kind}, preloaded: {about(record)}"), *_struct(record, facts)]
    out += ["", *_datapath(overlay, loops), "", "}  // namespace rsn::xnn", "", "#endif  // RSN_XNN_ISA_H", ""]
    return "\n".join(line.rstrip() for line in out)


def record_header(record: type[Record], kinds: type[IntEnum], fields: str) -> str:
    """Return the text of the C++17 header of one record, for AI Engine tiles. kinds: what the values of its field
    `kind` are called. fields: path of pl/fields.h, from the header's folder."""
    guard = f"RSN_{record.NAME.upper()}_H"
    out = [
        f"// {about(record)}",
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        f'#include "{fields}"',
        "",
        "namespace rsn::xnn {",
        "",
        f"enum class {kinds.__name__} : std::uint8_t {{",
        *(f"    {kind.name} = {kind.value}," for kind in kinds),
        "};",
        "",
        *_struct(record, []),
        "",
        "}  // namespace rsn::xnn",
        "",
        f"#endif  // {guard}",
        "",
    ]
    return "\n".join(line.rstrip() for line in out)


def _identity(overlay: Overlay) -> Iterator[str]:
    yield "// Names of the formats below; a container carries the one it was made for."
    yield f'inline constexpr char overlay[] = "{overlay.name}";'
    yield f'inline constexpr char fingerprint_text[] = "{overlay.fingerprint}";'
    yield f"inline constexpr std::uint64_t fingerprint_bits = 0x{overlay.fingerprint}u;"
    if overlay.extends:
        yield f'inline constexpr char extends[] = "{overlay.extends}";'
        yield f"inline constexpr unsigned extension = {overlay.extension};  // version of what it adds"


def _opcodes(overlay: Overlay) -> Iterator[str]:
    rows = [("Nop", NOP, "skipped: one header word, no payload")]
    rows += [(f.name, f.opcode, about(f.mop)) for f in overlay.formats]
    yield "enum class Opcode : std::uint8_t {"
    yield from _aligned([(f"    {name} = {value},", f"// {doc}") for name, value, doc in rows])
    yield "};"


def _mop_words(overlay: Overlay) -> Iterator[str]:
    words = {f.opcode: f"{f.mop.NAME}::words" for f in overlay.formats}
    count = 1 << Header.field("opcode").width
    text = ", ".join(words.get(opcode, "0") for opcode in range(count))
    yield "// Words of a mOP, by opcode; and which opcodes there are."
    yield f"inline constexpr unsigned mop_words[{count}] = {{"
    yield from wrap(text, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    yield "};"
    yield f"inline constexpr unsigned opcodes = {1 + max(words)};"


def _form(form: InstructionFormat) -> Iterator[str]:
    yield from _comment(f"{form.name}, opcode {form.opcode}: {about(form.mop)}")
    yield from _comment(expansion(form))
    facts = [
        ("opcode", f"static_cast<unsigned>(Opcode::{form.name})", ""),
        ("max_reuse", str(form.max_reuse), ""),
        ("decode_cycles", str(form.decode_cycles), "PL cycles per uOP, at least"),
        ("loops_window", str(form.loops_window).lower(), ""),
    ]
    yield from _struct(form.mop, facts)


def _struct(record: type[Record], facts: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """One format as a struct: constants, bit positions, values, codec, and static checks of the table.

    A field name that is a C++ keyword is not caught here, but by the compiler.
    """
    name, fields = record.NAME, record.FIELDS
    constants = [("words", str(record.WORDS), ""), *facts]
    yield f"struct {name} {{"
    yield from _aligned(
        [
            (f"    static constexpr {_constant_type(value)} {key} = {value};", f"// {note}" if note else "")
            for key, value, note in constants
        ]
    )
    yield "    struct bits {"
    yield from (f"        using {f.name} = Field<{f.word}, {f.low}, {f.width}>;" for f in fields)
    yield "    };"
    joined = ", ".join(f"bits::{f.name}" for f in fields)
    yield from wrap(f"using layout = Layout<{joined}>;", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8)
    yield ""
    default = record()
    yield from _aligned(
        [(f"    {_type(f)} {f.name} = {_literal(f, getattr(default, f.name))};", f"// {_meaning(f)}") for f in fields]
    )
    yield ""
    constexpr = "" if any(f.real for f in fields) else "constexpr "
    yield f"    static {constexpr}{name} decode(const Word *in) {{"
    yield f"        {name} out;"
    yield from (f"        out.{f.name} = {_from_bits(f)};" for f in fields)
    yield "        return out;"
    yield "    }"
    yield f"    {constexpr}void encode(Word *out) const {{"
    yield from (f"        out[{w}] = 0;" for w in range(record.WORDS))
    yield from (f"        bits::{f.name}::set(out, {_to_bits(f)});" for f in fields)
    yield "    }"
    initial = default.encode()
    raw = {f.name: (initial[f.word] & f.mask) >> f.low for f in fields}
    if any(raw.values()):
        words = ", ".join(f"0x{w:08X}u" for w in initial)
        yield ""
        yield "    // The words of a value in which nothing was changed."
        yield f"    static constexpr Word initial[{record.WORDS}] = {{{words}}};"
    yield "};"
    for w, padding in enumerate(record.PADDING):
        used = 0xFFFF_FFFF & ~padding
        yield f"static_assert({name}::layout::used({w}) == 0x{used:08X}u && {name}::layout::disjoint({w}));"
    for key, value in raw.items():
        if value:
            yield f"static_assert({name}::bits::{key}::get({name}::initial) == 0x{value:X}u);"


def _constant_type(value: str) -> str:
    return "bool" if value in ("true", "false") else "unsigned"


def _type(f: Field) -> str:
    if f.real:
        return "float"
    if f.flag:
        return "bool"
    size = 8 if f.width <= 8 else 16 if f.width <= 16 else 32
    return f"std::{'' if f.signed else 'u'}int{size}_t"


def _literal(f: Field, value: Any) -> str:
    if f.flag:
        return "true" if value else "false"
    if f.real:
        digits = str(np.float32(value))
        return (digits if "." in digits or "e" in digits else f"{digits}.0") + "f"
    return str(value)


def _from_bits(f: Field) -> str:
    raw = f"bits::{f.name}::get(in)"
    if f.real:
        return f"to_float({raw})"
    if f.flag:
        return f"{raw} != 0"
    if f.signed:
        value = f"to_signed<{f.width}>({raw})"
        return value if f.width > 16 else f"static_cast<{_type(f)}>({value})"
    return raw if f.width > 16 else f"static_cast<{_type(f)}>({raw})"


def _to_bits(f: Field) -> str:
    if f.real:
        return f"from_float({f.name})"
    if f.signed:
        return f"static_cast<Word>({f.name})"
    return f.name


def _datapath(overlay: Overlay, loops: Mapping[str, PipelinedLoop]) -> Iterator[str]:
    yield "// Instruction path."
    yield from _constants(
        [
            ("image_words_before_packets", 2, "packet words, packets"),
            ("max_window", MAX_WINDOW, "mOPs in a packet"),
            ("mop_fifo_depth", overlay.mop_fifo_depth, "mOPs, with their window and reuse, per decoder"),
            ("uop_fifo_depth", overlay.uop_fifo_depth, "uOPs, per unit"),
            ("fetch_depth", tiles.FETCH_WORDS, "words of the image, ahead of the dispatcher"),
            ("pl_hz", int(overlay.clock_hz), "clock of the programmable logic"),
        ]
    )
    yield ""
    yield "// The order in which terminators are issued; every decoder needs exactly one."
    names = ", ".join(f"Opcode::{name}" for name in overlay.terminators)
    yield f"inline constexpr Opcode terminators[{len(overlay.terminators)}] = {{"
    yield from wrap(names, WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 4)
    yield "};"
    yield ""
    yield "// Off-chip memory: matrices in blocks, addresses and strides in units."
    yield from _constants(
        [
            ("address_unit", overlay.address_unit, "float32 elements"),
            ("address_unit_bytes", 4 * overlay.address_unit, ""),
            ("block_rows", layout.BLOCK_ROWS, ""),
            ("block_cols", layout.BLOCK_COLS, ""),
            ("block_size", layout.BLOCK, "elements"),
            ("smallest_load", layout.QUARTER, "elements: a quarter block"),
        ]
    )
    yield "// and how they travel: words of a stream to or from off-chip memory, beats of a Mesh."
    yield from _constants(
        [
            ("tile", tiles.TILE, "rows and columns"),
            ("beats_per_tile", tiles.BEATS, ""),
            ("words_per_block", tiles.BLOCK_WORDS, "of 1024 bit"),
            ("lanes", tiles.LANES, "of a beat, each a 64-bit stream to or from an MME"),
            ("beat_floats", tiles.BEAT, "floats in a beat or word of 1024 bit"),
            ("lane_floats", tiles.BEAT // tiles.LANES, "of them in a lane"),
            ("line_floats", tiles.BEAT // 2, "and from or to one AXI port"),
            (
                "port_lines",
                layout.QUARTER // tiles.BEAT,
                "that a port moves before the next address is the other's",
            ),
            ("floats_per_bias_word", tiles.BIAS_WORD, ""),
        ]
    )
    yield f"static_assert(address_unit_bytes == {layout.UNIT_BYTES} && block_size == block_rows * block_cols);"
    yield ""
    yield "// How many units there are of each type."
    yield "namespace units {"
    yield from _constants([(kind, len(units), "") for kind, units in overlay.by_kind.items()])
    yield from _constants([("total", len(overlay.units), "")])
    yield "}  // namespace units"
    yield ""
    yield "// Elements of one of the slots of a unit."
    yield "namespace buffers {"
    for kind, units in overlay.by_kind.items():
        same = len({u.memory for u in units}) == 1
        for name, memory in [(kind, units[0].memory)] if same else [(u.name, u.memory) for u in units]:
            if memory is not None:
                sizes = [("rows", memory.rows, ""), ("cols", memory.columns, "")]
                if memory.slots > PING_PONG:
                    sizes.append(("slots", memory.slots, ""))
                yield from _constants([(f"{name}_{size}", value, doc) for size, value, doc in sizes])
    yield "}  // namespace buffers"
    yield ""
    yield "// What each stream holds, in words."
    yield "namespace depth {"
    yield from _constants([(_cpp_name(s), s.depth, s.token.doc) for s in overlay.streams])
    yield "}  // namespace depth"
    yield ""
    yield "// Cycles from one round of a loop to the next."
    yield "namespace ii {"
    yield from _constants([(name, loop.ii, loop.doc) for name, loop in loops.items()])
    yield "}  // namespace ii"
    yield "// Rounds that a loop takes for one item, where more than one: 32 / rounds elements of a patch in each."
    yield "namespace rounds {"
    yield from _constants([(name, loop.rounds, "") for name, loop in loops.items() if loop.rounds > 1])
    yield "}  // namespace rounds"


def _cpp_name(stream: Stream) -> str:
    return f"{stream.src}_to_{stream.dst}" + (f"_{stream.label}" if stream.label else "")


def _constants(rows: Iterable[tuple[str, int, str]]) -> Iterator[str]:
    yield from _aligned(
        [(f"inline constexpr unsigned {name} = {value};", f"// {note}" if note else "") for name, value, note in rows]
    )


def _aligned(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Code and comment in two columns; a comment that does not fit goes above its line."""
    room = max((len(code) for code, comment in rows if comment), default=0)
    for code, comment in rows:
        if not comment:
            yield code
        elif room + 2 + len(comment) <= WIDTH:
            yield f"{code:<{room}}  {comment}"
        else:
            indent = " " * (len(code) - len(code.lstrip()))
            yield from wrap(comment, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}// ")
            yield code


def _comment(text: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent="// ", subsequent_indent="// ")


def _meaning(f: Field) -> str:
    """The field's meaning and, if it enables a stream, the units at its ends."""
    if f.to and f.source:
        return f"{f.doc}: {f.source} to {f.to}"
    if f.to or f.source:
        return f"{f.doc}: {f.to or f.source}"
    return f.doc
