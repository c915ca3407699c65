"""Assemble `.rsn` text to a program. docs/rsn-language.md describes the language.

    text -> tree     -> items with includes -> names          -> packets or kernel sequences
            syntax      include                declarations      packets: blocks unrolled, statements

What a statement may contain follows from the overlay: units and kinds from `Overlay.units`, words from the fields of
the record that drives a unit (`spelling`), pieces of buffers from their layout (`slices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from ..base.errors import SourceError
from ..base.garbage import gc_disabled
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from ..isa.program import KernelPatch, Program, ProgramSegment, UnpackedProgram
from . import declarations, include
from . import syntax as s
from .blocks import Blocks
from .declarations import Declarations
from .diagnostic import ErrorReport, SourceText
from .names import ScopedNames
from .packets import Code


def parse(text: str, file: str, overlays: Mapping[str, Overlay] = OVERLAYS) -> Program | UnpackedProgram:
    """Assemble a text to a `Program`, or, if it has sections instead of packets, to an `UnpackedProgram`.

    file: name of the text in messages and in the source map; includes are relative to its folder. Raises `SourceError`
    with all mistakes found. overlays: those that a text may name, by name.
    """
    with gc_disabled():
        return _assemble(SourceText(text, file), overlays)


def parse_file(path: str | Path) -> Program | UnpackedProgram:
    """Assemble a file as `parse`. Raises `SourceError`, or `OSError` if the file cannot be read."""
    return parse(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """Read the text of a file. Raises `SourceError` if it is not UTF-8, `OSError` if it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SourceError(f"{path}: error: byte {e.start} is not UTF-8; is it a .rsn text?") from None


def _assemble(text: SourceText, overlays: Mapping[str, Overlay]) -> Program | UnpackedProgram:
    """Read all declarations first, so that code may use a buffer declared below it; then the code, in its order."""
    report = ErrorReport(text)
    tree = s.read(text)
    with report.inside(text):
        names = ScopedNames(declarations.overlay(tree, text.file, overlays))
    report.check()
    items = include.items(text, tree[1:], report)
    blocks = Blocks(names, report)
    declared = Declarations(names, report)
    for where, item in items:
        with report.inside(where):
            if isinstance(item, s.Block):
                blocks.walk((item,), blocks.declare)
            elif not isinstance(item, s.TextLoop):
                blocks.walk((item,), declared.take, calls=False)
            elif _declares(item):
                blocks.walk((item,), declared.take_looped, calls=False)
    declared.finish()
    report.check()
    code = Code(names, blocks, report)
    for where, item in items:
        with report.inside(where):
            blocks.walk((item,), code.take)
    report.check()
    segments = tuple(declared.segments.values())
    if "section" in code.first:
        return _kernels(names, code, segments)
    return _program(names, code, segments)


def _declares(loop: s.TextLoop) -> bool:
    """Return whether a loop contains a declaration. If not, it need not be unrolled for the declarations."""
    stack = [loop]
    while stack:
        for item in stack.pop().body:
            if isinstance(item, s.Declaration):
                return True
            if isinstance(item, s.TextLoop):
                stack.append(item)
    return False


def _program(names: ScopedNames, code: Code, segments: tuple[ProgramSegment, ...]) -> Program:
    patches = {name: tuple(rows) for name, rows in code.patches.items()}
    parameters = [dataclasses.replace(p, patches=patches.get(p.name, ())) for p in names.parameters.values()]
    return Program(
        names.overlay,
        tuple(code.packets),
        {u: tuple(x.record for x in lines) for u, lines in code.preloaded.items()},
        tuple(names.buffers.values()),
        tuple(parameters),
        tuple(code.places),
        {u: tuple(x.place for x in lines) for u, lines in code.preloaded.items()},
        segments,
    )


def _kernels(names: ScopedNames, code: Code, segments: tuple[ProgramSegment, ...]) -> UnpackedProgram:
    patches: dict[str, list[KernelPatch]] = {}
    for unit, lines in code.kernels.items():
        for i, line in enumerate(lines):
            for c in line.clamped:
                patches.setdefault(c.parameter, []).append(KernelPatch(unit, i, c.field, c.base, c.cap))
    return UnpackedProgram(
        names.overlay,
        {u: tuple(x.record for x in lines) for u, lines in code.kernels.items()},
        {u: tuple(x.record for x in lines) for u, lines in code.preloaded.items()},
        tuple(names.buffers.values()),
        tuple(names.parameters.values()),
        {name: tuple(rows) for name, rows in patches.items()},
        {u: tuple(x.place for x in lines) for u, lines in code.kernels.items()},
        {u: tuple(x.place for x in lines) for u, lines in code.preloaded.items()},
        segments,
    )
