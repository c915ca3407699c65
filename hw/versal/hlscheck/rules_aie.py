"""Rules of the control programs of AI Engine tiles."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ....base.errors import RsnError
from .debug import CppLine
from .design import compiler
from .ir import LlvmFunction, Module
from .memory import Types
from .rules import HlsFinding, HlsFindings

VECTOR_BYTES = 32
ENTRIES = {"mme_first": (0,), "mme_middle": (1, 2), "mme_last": (3,)}
"""Functions of the tiles of a cascade, each with its places."""
_STACKS = """
extern "C" { extern const unsigned rsn_hls_stacks[]; }
const unsigned rsn_hls_stacks[] = {rsn::mme::stack_bytes(0), rsn::mme::stack_bytes(1), rsn::mme::stack_bytes(2),
                                   rsn::mme::stack_bytes(3), rsn::mme::stack_for_calls};
"""
_TYPE = r"(?:const\s+)?(?:auto|float|double|char|u?int(?:8|16|32)|short|int|long|unsigned|std::\w+|(?:\w+::)*[A-Z]\w*)"
_DECLARED = (
    rf"(?:^|[(,;{{{{}}}}])\s*{_TYPE}\s*(?:const\s*)?\*\s*(?:const\s+)?(?:({{restrict}})\s|[A-Z_]+\s)?\s*(?:const\s+)?\b{{name}}\b"
    r"(?:\s*=\s*[&(]*(\w+))?"
)
"""A pointer where it is declared, perhaps with a macro that is nothing, and what it is made of."""
_NAME = r"(?<![.\w])(?<!->)(?!const\b)([A-Za-z_]\w*)\b(?!\s*[.(])"
"""A variable where it is used: no member, and no function."""
_ITERATOR = r"\b{name}\s*=\s*aie::begin_vector(?:<\d+>)?\(\s*(\w+)"
"""An iterator of vectors that is not begin_restrict_vector, and its pointer."""


def pointers(texts: Mapping[str, str]) -> HlsFindings:
    """Yield the pointers in pipelined loops that are not `__restrict`, so that the compiler must expect them to lead to
    the same memory as others (rule `restrict`). texts: of the source files, by path."""
    words = "|".join({"__restrict", *(m for t in texts.values() for m in re.findall(r"#define (\w+) __restrict\b", t))})
    for name, text in texts.items():
        for start, end in _pipelined(text):
            function = max(text.rfind("\n}", 0, start), 0)  # what comes before it belongs to others
            for used in dict.fromkeys(re.findall(_NAME, text[start:end])):
                at = re.compile(rf"(?<![.\w])(?<!->){used}\b").search(text, start)
                if at and not _is_apart(text[function : at.start()], used, words):
                    line = text.count("\n", 0, at.start()) + 1
                    yield HlsFinding(CppLine(name, line), "restrict", f"{used} is not __restrict")


def _pipelined(text: str) -> Iterator[tuple[int, int]]:
    """Where the bodies of loops with chess_prepare_for_pipelining begin and end."""
    for found in re.finditer(r"\bchess_prepare_for_pipelining\b[^{;]*\{", text):
        depth, at = 1, found.end()
        while depth and at < len(text):
            depth += (text[at] == "{") - (text[at] == "}")
            at += 1
        yield found.end(), at


def _is_apart(before: str, name: str, words: str, depth: int = 0) -> bool:
    """Whether the nearest declaration of a pointer, or of an iterator, says so, or makes it of one that does; or the
    name is no pointer."""
    iterators = list(re.finditer(_ITERATOR.format(name=name), before))
    if iterators:
        return _is_apart(before[: iterators[-1].start()], iterators[-1][1], words, depth + 1)
    declared = list(re.finditer(_DECLARED.format(restrict=words, name=name), before, re.MULTILINE))
    if not declared:
        return not depth  # what a pointer is made of must be known
    last = declared[-1]
    known = last[2] is not None and depth < 4
    return bool(last[1]) or (known and _is_apart(before[: last.start()], last[2], words, depth + 1))


def alignment(texts: Mapping[str, str]) -> HlsFindings:
    """Yield arrays of floats that are not aligned for vectors of 32 bytes (rule `alignment`). texts: of the source
    files, by path."""
    for name, text in texts.items():
        for n, line in enumerate(text.splitlines(), 1):
            found = re.match(r"\s*(?:static\s+)?(?:alignas\((\d+)\)\s+)?(?:(?:static|const)\s+)*float (\w+)\[", line)
            if found and int(found[1] or 4) % VECTOR_BYTES:
                yield HlsFinding(CppLine(name, n), "alignment", f"{found[2]} is not alignas({VECTOR_BYTES})")


def stacks(folder: Path, program: str, flags: Sequence[str]) -> HlsFindings:
    """Yield where the stack of a tile, as the graph states it, is too small for a control program (rule `stack`).
    folder: of all sources. program: the program's path below it. flags: options of the compiler. Raises `RsnError` if
    clang is not installed or the program does not compile, `OSError` if it cannot be read."""
    text = (folder / program).read_text(encoding="utf-8")
    first = CppLine(program, 1)
    if "stack_bytes" not in text or "static_assert" not in text:
        yield HlsFinding(first, "stack", "no static_assert compares its variables with stack_bytes")
    frames = _frames(folder, program, flags)
    if frames is None:
        yield HlsFinding(first, "stack", "its static_assert fails: the graph states less than its variables take")
        return
    needed, stated = frames
    *of_places, for_calls = stated
    for entry, places in ENTRIES.items():
        for place in places:
            if needed.get(entry, 0) + for_calls > of_places[place]:
                text = f"{entry} has {needed[entry]} bytes of variables and {for_calls} for calls"
                yield HlsFinding(
                    first, "stack", f"{text}; the graph states {of_places[place]} for tile {place} of a cascade"
                )


def _frames(folder: Path, program: str, flags: Sequence[str]) -> tuple[dict[str, int], list[int]] | None:
    """Bytes of the aligned variables of each entry, and the stack of each place with that for calls. None if a
    static_assert fails. Raises `RsnError` if the program does not compile."""
    includes = [f"-I{folder / name}" for name in ("csim/include", "aie", "")]
    with tempfile.TemporaryDirectory(prefix="rsn-aie-") as scratch:
        source = Path(scratch) / "stacks.cc"
        source.write_text(f'#include "{folder / program}"\n{_STACKS}', encoding="utf-8")
        command = [
            compiler(),
            "-std=c++17",
            "-O1",
            "-S",
            "-emit-llvm",
            "-Wno-everything",
            *includes,
            *flags,
            str(source),
            "-o",
            "-",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if re.search(r"error: static_assert(?:ion)? failed|error: static assertion failed", done.stderr):
        return None
    if done.returncode:
        raise RsnError(f"{program} does not compile:\n{done.stderr}")
    module = Module(done.stdout)
    types = Types(module)

    def frame(function: LlvmFunction) -> int:
        """Of a function and the one that it calls which needs most; none calls itself."""
        variables = (i.rest for i in function.instructions() if i.opcode == "alloca")
        aligned = [text for text in variables if int(text.rpartition("align ")[2]) >= VECTOR_BYTES]
        called = {i.callee for i in function.instructions()} & module.functions.keys()
        own = sum(types.size(text.split(",")[0].strip()) for text in aligned)
        return own + max((frame(module.functions[name]) for name in called), default=0)

    functions = module.functions.values()
    needed = {e: frame(f) for e in ENTRIES for f in functions if f"{len(e)}{e}" in f.name}
    stated = re.search(r"@rsn_hls_stacks = .*\[(.*?)\]", re.sub(r"\[\d+ x i32\] ", "", done.stdout))
    return needed, [int(n) for n in re.findall(r"i32 (\d+)", stated[1])] if stated else []
