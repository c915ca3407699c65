"""What clang and LLVM make of sources, as HLS would see it: functions, inlined and unrolled as their pragmas say.

clang reads each file once. The modules are linked, functions are inlined into their process, loops in pipelines are
unrolled, and small variables become values. No pass runs that moves work between the branches of a program: which
accesses exclude each other follows from its branches.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llvmlite.binding as llvm

from ....base.errors import RsnError
from .debug import CppLine, DebugInformation
from .ir import Instruction, LlvmFunction, Module, NaturalLoop
from .marking import MarkedPragma, MarkedSources
from .memory import FunctionMemory, Types
from .trips import trips

INCLUDE = Path(__file__).parent / "include"
COMPILER = "clang++"
INSTALL_HINT = "Debian, Ubuntu: sudo apt install --no-install-recommends clang"
_FLAGS = (
    *("-std=c++17", "-O1", "-g", "-S", "-emit-llvm", "-Xclang", "-disable-llvm-passes", "-fno-exceptions"),
    *(
        "-fno-math-errno",
        "-ffp-contract=off",
        "-fno-vectorize",
        "-Wno-everything",
        f"-I{INCLUDE}",
        "-include",
        "markers.h",
    ),
)
_INACCESSIBLE = "memory(inaccessiblemem: readwrite)"
_ARGUMENT = "memory(argmem: readwrite, inaccessiblemem: readwrite)"
_EFFECTS = {
    **dict.fromkeys(("scope", "pipeline", "unroll", "variable", "request", "response", "fence"), _INACCESSIBLE),
    **dict.fromkeys(("get", "put", "look"), _ARGUMENT),
}
"""What a marker may access: no pass then moves it, and it hinders none."""
_BEFORE = ("always_inliner", "sroa", "instruction_combine", "sccp", "aggressive_dce")
_UNROLL = (
    *("loop_simplify", "lcssa", "loop_rotate", "loop_unroll", "sroa", "sccp", "instruction_combine", "aggressive_dce"),
)
_AFTER = (*_UNROLL, *_UNROLL, "new_gvn", "sccp", "instruction_combine", "aggressive_dce")
"""Twice, because an inner loop may have a constant bound only once the outer one is unrolled."""


@dataclass(frozen=True)
class PipelinedPlace:
    """A loop, or a whole function, to which a PIPELINE pragma applies. function: that has the loop. loop: None if it is
    the whole function. pragma: that applies. interval: cycles that the pragma states, 0 if it states none."""

    function: LlvmFunction
    loop: NaturalLoop | None
    pragma: MarkedPragma
    interval: int

    @property
    def blocks(self) -> set[str]:
        """Labels of the basic blocks of the loop, or of the function."""
        return self.loop.blocks if self.loop else set(self.function.blocks)


class HlsDesign:
    """Sources of one kernel, compiled, inlined and unrolled. texts: all sources by path. files: the paths of those that
    are compiled. top: name of the top function. flags: further options of clang. Raises `RsnError` if clang is not
    installed, or does not compile the sources.

    pragmas: of all sources. module: what LLVM has made of them. debug: its debug information. memories: of each
    function, by its name. Calls of `rsn_hls_...` in the module are markers: they stand for pragmas (`MarkedSources`),
    or for accesses to streams and ports."""

    def __init__(self, texts: Mapping[str, str], files: Sequence[str], top: str, flags: Sequence[str] = ()) -> None:
        self.top = top
        self.texts = texts
        with tempfile.TemporaryDirectory(prefix="rsn-hls-") as folder:
            marked = MarkedSources(texts, Path(folder).resolve())
            self.pragmas = marked.pragmas
            self.module = Module(_lowered(_linked(marked, files, flags), marked.pragmas))
            self.debug = DebugInformation(self.module, marked.folder)
        types = Types(self.module)
        self.memories = {f.name: FunctionMemory(f, types, self.debug) for f in self.module.functions.values()}

    def marks(self, function: LlvmFunction, kind: str) -> Iterator[tuple[Instruction, MarkedPragma]]:
        """Yield the markers of a kind in a function, each with the pragma for which it stands. kind: the end of the
        marker's name, such as `pipeline` of `rsn_hls_pipeline`."""
        yield from self.marks_of(function.instructions(), kind)

    def marks_of(self, instructions: Iterable[Instruction], kind: str) -> Iterator[tuple[Instruction, MarkedPragma]]:
        """Yield the markers of a kind among instructions, each with the pragma for which it stands. kind: as for
        `marks`."""
        for instruction in instructions:
            if instruction.callee == f"rsn_hls_{kind}":
                number = int(instruction.arguments[0])
                if number >= 0:
                    yield instruction, self.pragmas[number]

    @cached_property
    def pipelines(self) -> list[PipelinedPlace]:
        """All loops and functions to which PIPELINE pragmas apply. A loop that was inlined several times is there as
        often."""
        out = []
        for function in self.module.functions.values():
            for call, pragma in self.marks(function, "pipeline"):
                loop = function.innermost.get(call.block)
                bound = self.number_of(function, loop) == int(call.arguments[2])
                if bound or (loop is not None and self._is_in_nest(function, loop, pragma)):
                    out.append(PipelinedPlace(function, loop, pragma, int(call.arguments[1])))
        return out

    def _is_in_nest(self, function: LlvmFunction, loop: NaturalLoop, pragma: MarkedPragma) -> bool:
        """Whether a loop is one of the nest in front of the braces around a pragma. The innermost of a nest is no loop
        if it has one iteration; HLS makes one loop of all."""
        return self.levels(pragma) > 1 and self.is_in_front(function, loop, pragma)

    @staticmethod
    def levels(pragma: MarkedPragma) -> int:
        """Return how many loops stand in front of the opening brace around a pragma, as two in `for (...) for (...)
        {`."""
        return len(re.findall(r"\bfor\s*\(", pragma.pragma.block.head))

    def is_in_front(self, function: LlvmFunction, loop: NaturalLoop, pragma: MarkedPragma) -> bool:
        """Return whether a loop is one of those in front of the opening brace around a pragma (`levels`). It is taken
        for one if it is in the same file, at most as many lines before the pragma as there are such loops. function: in
        which the loop is."""
        at = self.line(function.blocks[loop.latches[0]].instructions[-1])
        return at.file == pragma.file and pragma.line - self.levels(pragma) <= at.line < pragma.line

    def number_of(self, function: LlvmFunction, loop: NaturalLoop | None) -> int:
        """Return the number that a loop got before clang transformed it; 0 for no loop, -1 for a loop without a number.
        function: in which the loop is."""
        if loop is None:
            return 0
        line = self.module.lines[function.blocks[loop.latches[0]].instructions[-1].line]
        found = re.search(r"!llvm\.loop !(\d+)", line)
        parts = re.findall(r"!(\d+)", self.module.metadata.get(int(found[1]), "")) if found else []
        known = (re.match(r'!\{!"rsn\.loop", i32 (\d+)\}', self.module.metadata.get(int(p), "")) for p in parts)
        return next((int(k[1]) for k in known if k), -1)

    def line_of_loop(self, function: LlvmFunction, loop: NaturalLoop) -> CppLine:
        """Return the first source line of a loop's instructions; the line of the function if none of them has a line.
        function: in which the loop is."""
        places = [self.line(i) for b in loop.blocks for i in function.blocks[b].instructions if i.place >= 0]
        return min(places, key=lambda p: p.line) if places else self.debug.line_of_function(function.subprogram)

    def line(self, instruction: Instruction) -> CppLine:
        """Return where an instruction stands in the sources: its own line, not that of a call through which it was
        inlined; line 0 of file `?` if it has none."""
        lines = self.debug.lines(instruction.place)
        return lines[0] if lines else CppLine("?", 0)


def compiler() -> str:
    """Return the path of clang. Raises `RsnError` if it is not installed."""
    found = shutil.which(COMPILER)
    if found is None:
        raise RsnError(f"there is no {COMPILER}, which reads the sources as HLS does; {INSTALL_HINT}")
    return found


def _linked(marked: MarkedSources, files: Sequence[str], flags: Sequence[str]) -> llvm.ModuleRef:
    """The module of all files."""
    clang = compiler()
    version = subprocess.run([clang, "-dumpversion"], capture_output=True, text=True, check=True).stdout
    opaque = ["-Xclang", "-opaque-pointers"] if version.startswith("14.") else []

    def compiled(name: str) -> str:
        command = [clang, *_FLAGS, *opaque, *flags, "-x", "c++", str(marked.folder / name), "-o", "-"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RsnError(f"{name} does not compile:\n" + done.stderr.replace(f"{marked.folder}/", ""))
        return done.stdout

    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(compiled, files))
    modules = [
        llvm.parse_assembly(
            re.sub(r"^declare .*@(rsn_hls_(\w+))\((.*)\).*$", _declaration, t.replace(", inrange ", ", "), flags=re.M)
        )
        for t in texts
    ]
    first, *others = modules
    for other in others:
        first.link_in(other)
    first.verify()
    return first


def _declaration(found: re.Match[str]) -> str:
    parameters = found[3].replace("ptr noundef", "ptr nocapture")
    return f"declare void @{found[1]}({parameters}) nounwind willreturn {_EFFECTS[found[2]]}"


def _lowered(module: llvm.ModuleRef, pragmas: Sequence[MarkedPragma]) -> str:
    """The text of a module after inlining and unrolling."""
    alone = _not_inlined(Module(str(module)), pragmas)
    for function in module.functions:
        if not function.is_declaration:
            function.add_function_attribute("noinline" if function.name in alone else "alwaysinline")
    _run(module, _BEFORE)
    again = llvm.parse_assembly(_with_unrolling(Module(str(module))))
    _run(again, _AFTER)
    return str(again)


def _not_inlined(module: Module, pragmas: Sequence[MarkedPragma]) -> set[str]:
    """Functions that stay by themselves: those that say so, dataflow regions, and their processes."""
    out = set()
    for function in module.functions.values():
        for instruction in function.instructions():
            if instruction.callee != "rsn_hls_scope":
                continue
            pragma = pragmas[int(instruction.arguments[0])].pragma
            if pragma.name == "inline" and ("off", None) in pragma.arguments:
                out.add(function.name)
            if pragma.name == "dataflow":
                out |= {function.name} | {i.callee for i in function.instructions() if i.callee}
    return out


def _with_unrolling(module: Module) -> str:
    """The module's text, in which each loop has a number and says whether it is unrolled: those in pipelines are, whole
    (UG1399, "Unrolling Loops"), others as their pragma says."""
    first = number = max(module.metadata, default=0) + 1
    lines, more = list(module.lines), list[str]()
    for function in module.functions.values():
        for loop in function.loops:
            how = _unrolling(function, loop)
            for latch in loop.latches:
                at = function.blocks[latch].instructions[-1].line
                lines[at] = re.sub(r", !llvm\.loop !\d+", "", lines[at]) + f", !llvm.loop !{number}"
            for i in (i for label in loop.own for i in function.blocks[label].instructions):
                if i.callee in ("rsn_hls_pipeline", "rsn_hls_unroll"):
                    lines[i.line] = re.sub(r"i32 (?:noundef )?0\)", f"i32 {number - first + 1})", lines[i.line])
            more += [
                f"!{number} = distinct !{{!{number}, !{number + 1}, !{number + 2}}}",
                f"!{number + 1} = !{{{how}}}",
                f'!{number + 2} = !{{!"rsn.loop", i32 {number - first + 1}}}',
            ]
            number += 3
    return "\n".join([*lines, *more]) + "\n"


MOST_COPIES = 64
"""Of a loop in a pipeline that says nothing: with more iterations it is left, for a finding."""


def _unrolling(function: LlvmFunction, loop: NaturalLoop) -> str:
    calls = {i.callee: i for label in loop.own for i in function.blocks[label].instructions if i.callee}
    if "rsn_hls_unroll" in calls and (factor := calls["rsn_hls_unroll"].arguments[1]) != "0":
        return f'!"llvm.loop.unroll.count", i32 {factor}'
    few = _in_pipeline(function, loop.outer) and (trips(function, loop) or MOST_COPIES + 1) <= MOST_COPIES
    whole = "rsn_hls_unroll" in calls or few
    return f'!"llvm.loop.unroll.{"full" if whole and "rsn_hls_pipeline" not in calls else "disable"}"'


def _in_pipeline(function: LlvmFunction, loop: NaturalLoop | None) -> bool:
    while loop:
        if any(i.callee == "rsn_hls_pipeline" for label in loop.own for i in function.blocks[label].instructions):
            return True
        loop = loop.outer
    return False


def _run(module: llvm.ModuleRef, passes: Sequence[str]) -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.set_option("", "-pragma-unroll-threshold=100000000")
    machine = llvm.Target.from_default_triple().create_target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    manager = llvm.create_new_module_pass_manager()
    for name in passes:
        getattr(manager, f"add_{name}_pass")()
    manager.run(module, builder)
