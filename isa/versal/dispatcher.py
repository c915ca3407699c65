"""Generates the dispatcher of a machine in C++, which hands instructions to the decoders of its units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import wrap

from ...machine.description import UnitSpec
from ..overlay import Overlay
from ..reference import MADE_BY, WIDTH

MME = "MME"


def dispatcher(overlay: Overlay) -> str:
    """Return the text of dispatch.cpp in the folder of a machine, which hands mOPs to the decoders of the units."""
    units = [u for u in overlay.units if u.kind != MME]
    lines = [
        "// Dispatcher: the image to the mOP FIFOs of the decoders (contract 1).",
        "//",
        "// One packet after the other, in image order; a mOP for several units goes to them in ascending index, and",
        "// each write waits for room. A mOP of n words takes n cycles, and a few to be handed on.",
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        '#include "dispatch.h"',
        "",
        '#include "../pl/dispatcher.h"',
        "",
        "namespace rsn::xnn {",
        "",
        *_dispatch_head(overlay, units, " {"),
        "    words.read();  // their number, which the fetch needs",
        "    const Word packets = words.read();",
        "dispatch_packets:",
        "    for (Word packet = 0; packet < packets; ++packet) {",
        "        const Word raw = words.read();",
        "        RSN_UOP(packet);",
        "        const Header header = Header::decode(&raw);",
        "        const unsigned slots = header.last ? 1 : header.window;",
        "    dispatch_mops:",
        "        for (unsigned m = 0; m < slots; ++m) {",
        "            switch (static_cast<Opcode>(header.opcode)) {",
    ]
    for form in overlay.formats:
        of_kind = [u for u in units if u.kind == form.kind]
        lines += [
            f"            case Opcode::{form.name}: {{",
            f"                const auto mop = take<{form.mop.NAME}::words>(header, size_of(header), words);",
        ]
        for u in of_kind:
            alone = "" if len(of_kind) == 1 else f"if (header.mask & {1 << u.index}) "
            lines.append(f"                {alone}give(mop, {snake(u.name)});")
        lines += ["                break;", "            }"]
    lines += [
        "            case Opcode::Nop:",
        "                break;",
        "            }",
        "        }",
        "    }",
        "}",
        "",
        "}  // namespace rsn::xnn",
        "",
    ]
    return "\n".join(lines)


def dispatcher_header(overlay: Overlay) -> str:
    """Return the text of dispatch.h in the folder of a machine, which declares the dispatcher."""
    units = [u for u in overlay.units if u.kind != MME]
    guard = f"RSN_{overlay.name.upper()}_DISPATCH_H"
    lines = [
        f"// {MADE_BY}",
        "// SPDX-License-Identifier: Apache-2.0",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        '#include "../pl/types.h"',
        "",
        "namespace rsn::xnn {",
        "",
        *_dispatch_head(overlay, units, ";"),
        "",
        "}  // namespace rsn::xnn",
        "",
        f"#endif  // {guard}",
        "",
    ]
    return "\n".join(lines)


def _dispatch_head(overlay: Overlay, units: Sequence[UnitSpec], end: str) -> list[str]:
    arguments = ["hls::stream<Word> &words"]
    arguments += [f"hls::stream<Mop<{words_of(overlay, u)}>> &{snake(u.name)}" for u in units]
    return call("void dispatch", arguments, end, indent="")


def call(name: str, arguments: Sequence[str], end: str, *, indent: str) -> list[str]:
    """Return the lines of a C++ call or declaration, NAME(ARGUMENTS)END, wrapped. end: the text behind the bracket,
    such as `;`. indent: the blanks before the name."""
    head = f"{indent}{name}("
    text = ", ".join(arguments) + ")" + end
    return wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False)


def words_of(overlay: Overlay, unit: UnitSpec) -> str:
    """Return the name of the C++ constant that says how many words an instruction of the unit has. Raises
    `ProgramError` if packets do not drive the unit."""
    return f"{overlay.format_of(unit.kind).mop.NAME}::words"


def snake(name: str) -> str:
    """Return a name such as XIn0 in lower case with underscores between its words, such as x_in0."""
    if name.isupper():
        return name.lower()
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
