"""Rules of dataflow regions, memories and streams."""

from __future__ import annotations

import re
from collections import defaultdict

import networkx as nx

from .debug import CppLine
from .design import INCLUDE, HlsDesign
from .facts import MemoryFacts, ProcessAccess
from .ir import Instruction, LlvmFunction
from .memory import Address, FunctionMemory
from .rules import HlsFinding, HlsFindings

MOST_REGISTERS = 1024
MOST_BITS = 4096
DEFAULT_BURST, DEFAULT_OUTSTANDING, DEFAULT_BUNDLE = 16, 16, "gmem"
"""Of INTERFACE m_axi (UG1399, pragma HLS interface)."""


def _names(accesses: list[ProcessAccess]) -> str:
    return ", ".join(a.name for a in accesses)


def processes(facts: MemoryFacts) -> HlsFindings:
    """Yield arrays that more than two processes access, or two write, or that are read before they are written (rule
    `processes`), and arrays between processes for which no STREAM pragma says what they are (rule `unsync`)."""
    design = facts.design
    for memory, found in facts.processes.of.items():
        if memory.is_scalar or len(found) < 2:
            continue
        function = design.module.functions[memory.function]
        variable = design.memories[memory.function].variables[memory.root]
        line = design.debug.variable(variable.number)[2]
        name = f"{variable.name}.{memory.array.name}".rstrip(".")
        writers = [a for a in found if "w" in a.how]
        if len(found) > 2:
            yield HlsFinding(line, "processes", f"{len(found)} processes access {name}: {_names(found)}")
        elif len(writers) > 1:
            yield HlsFinding(line, "processes", f"two processes write {name}: {_names(writers)}")
        elif writers and facts.channel(memory) != "unsync":
            order = list(function.instructions())
            before = [a for a in found if order.index(a.call) < order.index(writers[0].call)]
            if before:
                text = f"{_names(before)} accesses {name} before {writers[0].name}, which writes it, is called"
                yield HlsFinding(line, "processes", text)
        if memory.root not in function.parameters and not facts.channel(memory):
            yield HlsFinding(line, "unsync", f"no STREAM pragma says what {name} between {_names(found)} is")


def streams(facts: MemoryFacts) -> HlsFindings:
    """Yield streams that have not exactly one process that writes and one that reads (rule `stream-ends`), and words
    that have more than `MOST_BITS` bits (rule `word-width`)."""
    design = facts.design
    for function in facts.processes.regions:
        memory = design.memories[function.name]
        for root, variable in memory.variables.items():
            if variable.number < 0 or not design.debug.element_name(variable.number).startswith("stream<"):
                continue
            line = design.debug.variable(variable.number)[2]
            bits = design.debug.bits_of_stream(variable.number)
            if bits > MOST_BITS:
                yield HlsFinding(line, "word-width", f"a word of {variable.name} has {bits} bits")
            argument = root in function.parameters
            ends = {a: found for (f, a), found in facts.processes.ends.items() if f == function.name and a.root == root}
            if not argument and not ends:
                yield HlsFinding(line, "stream-ends", f"no process accesses {variable.name}")
            for address, found in ends.items():
                for how, verb in (("r", "read"), ("w", "write")):
                    those = [a for a in found if how in a.how]
                    if len(those) > 1:
                        yield HlsFinding(
                            line, "stream-ends", f"{len(those)} processes {verb} {variable.name}: {_names(those)}"
                        )
                    if not those and not argument and not address.offset.terms:
                        yield HlsFinding(line, "stream-ends", f"no process {verb}s {variable.name}")


def bundles(facts: MemoryFacts) -> HlsFindings:
    """Yield m_axi bundles that several processes read or write (rule `bundle`), and ports that allow too short bursts
    (`burst-length`) or too few at once (`outstanding`), or move words without a request (`request`)."""
    design = facts.design
    top = next(
        (f for n, f in design.module.functions.items() if n == design.top or _plain(design, f) == design.top), None
    )
    if top is None:
        return
    memory, users = design.memories[top.name], facts.processes
    by_bundle: dict[str, list[tuple[str, CppLine, ProcessAccess]]] = defaultdict(list)
    stated, by_lines = set[str](), set[str]()
    """Arguments with m_axi, and the names of those with s_axilite, which alone makes a register of a pointer."""

    def used(root: str) -> list[ProcessAccess]:
        """Accesses of an argument by processes."""
        found = [a for m, accesses in users.of.items() if (m.function, m.root) == (top.name, root) for a in accesses]
        ends = users.ends.items()
        return found + [a for (f, at), accesses in ends if (f, at.root) == (top.name, root) for a in accesses]

    file = design.debug.line_of_function(top.subprogram).file  # another machine has a function of this name
    for marked in design.pragmas:
        given = {key: value or "" for key, value in marked.pragma.arguments}
        block = marked.pragma.block.nearest("function")
        of_top = marked.file == file and block is not None and re.search(rf"\b{design.top}\s*\(", block.head)
        if marked.pragma.name != "interface" or not of_top:
            continue
        if "m_axi" not in given and given.get("mode") != "m_axi":
            by_lines |= {given.get("port", "")} if "s_axilite" in given or given.get("mode") == "s_axilite" else set()
            continue
        line = CppLine(marked.file, marked.line)
        root = next(
            (r for r, v in memory.variables.items() if v.name == given.get("port") and r in top.parameters), None
        )
        if root is None:
            continue
        stated.add(root)
        by_bundle[given.get("bundle") or DEFAULT_BUNDLE] += [(given["port"], line, a) for a in used(root)]
        yield from _bursts(facts, top, root, given, line)
    for root, variable in memory.variables.items():
        if root not in top.parameters or root in stated or variable.number < 0:
            continue
        bursts, off_chip = design.debug.is_off_chip(variable.number)
        if bursts or (off_chip and variable.name not in by_lines):
            line = design.debug.variable(variable.number)[2]
            by_bundle[DEFAULT_BUNDLE] += [(variable.name, line, a) for a in used(root)]
            yield from _bursts(facts, top, root, {}, line)
    for bundle, accesses in by_bundle.items():
        for how, verb in (("r", "read"), ("w", "write")):
            those = {id(a.call): (port, line, a) for port, line, a in accesses if how in a.how}
            if len(those) > 1:
                names = ", ".join(f"{a.name} ({port})" for port, _, a in those.values())
                yield HlsFinding(
                    list(those.values())[1][1], "bundle", f"{len(those)} processes {verb} bundle {bundle}: {names}"
                )


def _plain(design: HlsDesign, function: LlvmFunction) -> str:
    return design.debug.name_of_function(function.subprogram)


def _bursts(facts: MemoryFacts, top: LlvmFunction, root: str, given: dict[str, str], line: CppLine) -> HlsFindings:
    """Yield what the requests of a port need, and its pragma does not give."""
    design = facts.design
    asked, moved = set[str](), set[str]()
    for function, at in [(top, root), *_passed(facts, top, root)]:
        memory = design.memories[function.name]
        moved |= {
            i.callee
            for i in function.instructions()
            if i.callee in ("rsn_hls_get", "rsn_hls_put")
            and any(a.root == at for a in memory.addresses(i.arguments[0]))
        }
        requests = [
            i
            for i in function.instructions()
            if i.callee == "rsn_hls_request" and any(a.root == at for a in memory.addresses(i.arguments[0]))
        ]
        for way, kind in (("0", "read"), ("1", "write")):
            those = [i for i in requests if i.arguments[1] == way]
            asked |= {kind} if those else set()
            length = int(given.get(f"max_{kind}_burst_length") or DEFAULT_BURST)
            for i in those:
                if i.arguments[3].isdigit() and int(i.arguments[3]) > length:
                    text = f"a {kind} burst of {i.arguments[3]} words ({design.line(i)}); the port has {length}"
                    yield HlsFinding(line, "burst-length", text)
            blocks = {i.block for i in those}
            ahead = max((sum(_ahead(function, i) for i in those if i.block == b) for b in blocks), default=0)
            allowed = int(given.get(f"num_{kind}_outstanding") or DEFAULT_OUTSTANDING)
            if ahead and kind == "read" and ahead + 1 > allowed:
                text = f"{ahead} bursts are requested ahead of the one that is read; the port allows {allowed}"
                yield HlsFinding(line, "outstanding", text)
    for kind, how in (("read", "rsn_hls_get"), ("write", "rsn_hls_put")):
        if how in moved and kind not in asked:
            yield HlsFinding(line, "request", f"no {kind}_request() asks for what the port {kind}s")


def _passed(facts: MemoryFacts, function: LlvmFunction, root: str) -> list[tuple[LlvmFunction, str]]:
    """Functions that get an argument of another, and what they call it."""
    design, out = facts.design, list[tuple[LlvmFunction, str]]()
    for call in function.instructions():
        callee = design.module.functions.get(call.callee)
        for position, argument in enumerate(call.arguments if callee else ()):
            if callee and any(a.root == root for a in design.memories[function.name].addresses(argument)):
                out += [(callee, callee.parameters[position]), *_passed(facts, callee, callee.parameters[position])]
    return out


def _ahead(function: LlvmFunction, request: Instruction) -> int:
    """Return how many requests one call makes before a word is read: in a loop that only makes requests, its largest
    number of iterations; else 1."""
    loop = function.innermost.get(request.block)
    if loop is None:
        return 1
    inside = [i for b in loop.blocks for i in function.blocks[b].instructions]
    if any(i.callee in ("rsn_hls_get", "rsn_hls_put") for i in inside):
        return 1
    bounds = [re.search(r"\b(?:ult|ne|eq|slt|ugt) i\d+ %\S+, (\d+)$", i.rest) for i in inside if i.opcode == "icmp"]
    return min((int(b[1]) for b in bounds if b and int(b[1]) > 1), default=1)


def responses(facts: MemoryFacts) -> HlsFindings:
    """Yield write requests to AXI ports whose response no code waits for (rule `response`)."""
    design = facts.design
    for function in design.module.functions.values():
        memory = design.memories[function.name]
        answered = {
            a.root
            for i in function.instructions()
            if i.callee == "rsn_hls_response"
            for a in memory.addresses(i.arguments[0])
        }
        writes = (i for i in function.instructions() if i.callee == "rsn_hls_request" and i.arguments[1] == "1")
        for i in writes:
            if not {a.root for a in memory.addresses(i.arguments[0])} & answered:
                line = _outer_line(design.debug.lines(i.place))
                yield HlsFinding(line, "response", "no write_response() answers this request")


def registers(facts: MemoryFacts) -> HlsFindings:
    """Yield ARRAY_PARTITION pragmas that make more than `MOST_REGISTERS` registers of an array (rule `registers`)."""
    for memory, pragmas in list(facts.pragmas.items()):
        if memory.array.count <= MOST_REGISTERS or not facts.registers(memory):
            continue
        for pragma, _ in pragmas:
            if pragma.pragma.name == "array_partition":
                text = f"{pragma.pragma.option('variable')} becomes {memory.array.count} registers"
                yield HlsFinding(CppLine(pragma.file, pragma.line), "registers", text)


def fences(facts: MemoryFacts) -> HlsFindings:
    """Yield processes that share an `unsync` array, of which only tokens tell the order, and put a token behind an
    access without `hls::fence` between (rule `fence`)."""
    design = facts.design
    shared: dict[str, set[str]] = defaultdict(set)
    for memory, found in facts.processes.of.items():
        for access in found if facts.channel(memory) == "unsync" else ():
            function = design.module.functions[access.call.callee]
            there = design.memories[memory.function]
            for parameter, argument in zip(function.parameters, access.call.arguments, strict=True):
                if any(a.root == memory.root for a in there.addresses(argument)):
                    shared[function.name].add(parameter)
    for name, arrays in shared.items():
        function = design.module.functions[name]
        unordered = _unordered(facts, function, arrays)
        if unordered is not None:
            named = ", ".join(sorted(design.memories[name].variables[root].name for root in arrays))
            text = f"{_plain(design, function)} shares {named}, whose order tokens tell: no fence before {unordered}"
            yield HlsFinding(design.debug.line_of_function(function.subprogram), "fence", text)


def _unordered(facts: MemoryFacts, function: LlvmFunction, arrays: set[str]) -> CppLine | None:
    """The first token that is put behind an access of these arrays without a fence between."""
    design, memory = facts.design, facts.design.memories[function.name]
    pipelined = {b for p in design.pipelines if p.function is function for b in p.blocks}
    ahead = {b.label for b in function.blocks.values() if any(_accesses(memory, i, arrays) for i in b.instructions)}
    begun, done = sorted(ahead), set[str]()
    while begun:
        label = begun.pop()
        open_access = label not in ahead or label in done
        for i in function.blocks[label].instructions:
            open_access = open_access or _accesses(memory, i, arrays)
            if i.callee == "rsn_hls_fence":
                open_access = False
            elif i.callee == "rsn_hls_put" and open_access and label not in pipelined:
                return _outer_line(design.debug.lines(i.place))
        if open_access:
            following = [s for s in function.blocks[label].successors if s not in done]
            done |= set(following)
            begun += following
    return None


def _accesses(memory: FunctionMemory, instruction: Instruction, roots: set[str]) -> bool:
    return any(a.root in roots for a in memory.accesses(instruction))


def statics(facts: MemoryFacts) -> HlsFindings:
    """Yield variables that are no constants and outlive their function (rule `static`)."""
    for text in facts.design.module.lines:
        found = re.match(r"@(\S+) = .*\bglobal\b", text)
        if found and not re.search(r"\b(?:external|constant)\b", text):
            place = re.search(r"!dbg !(\d+)", text)
            node = facts.design.debug.global_variable(int(place[1])) if place else ("", CppLine("?", 0))
            yield HlsFinding(node[1], "static", f"{node[0] or found[1]} is a variable that outlives its function")


def synthesisable(facts: MemoryFacts) -> HlsFindings:
    """Yield calls of functions of which HLS has no code, and functions that call themselves, directly or not (rule
    `synthesisable`)."""
    design, calls = facts.design, nx.DiGraph()
    for function in design.module.functions.values():
        for i in function.instructions():
            if i.opcode != "call":
                continue
            if i.callee in design.module.functions:
                calls.add_edge(function.name, i.callee)
            elif not i.callee.startswith(("llvm.", "rsn_hls_")) and i.callee not in KNOWN:
                yield HlsFinding(
                    design.line(i), "synthesisable", f"calls {i.callee or 'a pointer'}, of which HLS has no code"
                )
    for circle in nx.simple_cycles(calls):
        function = design.module.functions[circle[0]]
        line = design.debug.line_of_function(function.subprogram)
        yield HlsFinding(line, "synthesisable", f"{_plain(design, function)} calls itself")


KNOWN = frozenset(("expf", "sqrtf", "exp", "sqrt", "logf", "log", "powf", "fmaf", "memcpy", "memset", "memmove"))
"""Functions of libraries that HLS has code of."""


def state_order(facts: MemoryFacts) -> HlsFindings:
    """Yield accesses to two streams that HLS could make in the same state, in any order, outside of pipelines (rule
    `state-order`)."""
    design = facts.design
    pipelined = {(p.function.name, b) for p in design.pipelines for b in p.blocks}
    for function in design.module.functions.values():
        seen = set[tuple[CppLine, CppLine]]()
        for block in function.blocks.values():
            if (function.name, block.label) in pipelined:
                continue
            for n, i in enumerate(block.instructions):
                if i.callee not in ("rsn_hls_get", "rsn_hls_put"):
                    continue
                for other in _in_one_state(design, function, block.label, n, pipelined):
                    if i.callee == "rsn_hls_get" and _follows(design, function, i, other):
                        continue
                    pair = design.line(i), design.line(other)
                    if pair not in seen and _end(design, function, i) != _end(design, function, other):
                        seen.add(pair)
                        lines = design.debug.lines(i.place), design.debug.lines(other.place)
                        of = _outer_line(lines[1])
                        yield HlsFinding(
                            of, "state-order", f"could share a state with the access of {_outer_line(lines[0])}"
                        )


def _follows(design: HlsDesign, function: LlvmFunction, read: Instruction, other: Instruction) -> bool:
    """Whether it depends on what was read if an access takes place: it then comes behind the read in any case."""
    memory = design.memories[function.name]
    root, derived = _end(design, function, read).root, set[str]()
    copied = {root}
    for i in function.instructions():
        if i.callee.startswith("llvm.memcpy") and memory.addresses(i.arguments[1])[0].root in copied:
            copied.add(memory.addresses(i.arguments[0])[0].root)
        is_read = i.opcode == "load" and memory.addresses(i.parts[1].split()[-1])[0].root in copied
        if i.result and (is_read or any(o in derived for o in i.operands)):
            derived.add(i.result)
    between = nx.descendants(function.graph, read.block) | {read.block}
    deciders = nx.ancestors(function.graph, other.block) & between
    return any(
        o in derived
        for b in deciders | {read.block}
        for o in function.blocks[b].instructions[-1].operands
        if len(function.blocks[b].successors) > 1
    )


def _outer_line(lines: tuple[CppLine, ...]) -> CppLine:
    """The innermost line of the sources themselves, and not of what stands in for AMD's headers."""
    return next((x for x in lines if x.file not in _HEADERS), lines[0] if lines else CppLine("?", 0))


_HEADERS = frozenset(path.name for path in INCLUDE.iterdir())


def _end(design: HlsDesign, function: LlvmFunction, call: Instruction) -> Address:
    return design.memories[function.name].addresses(call.arguments[0])[0]


def _in_one_state(
    design: HlsDesign, function: LlvmFunction, label: str, position: int, pipelined: set[tuple[str, str]]
) -> list[Instruction]:
    """The accesses that follow another one in the same pass, without a loop or a call between."""
    out, done = list[Instruction](), set[str]()
    loop = function.innermost.get(label)
    ahead = [(label, position + 1)]
    while ahead:
        at, start = ahead.pop()
        for i in function.blocks[at].instructions[start:]:
            if i.callee in ("rsn_hls_get", "rsn_hls_put"):
                out.append(i)
                break
            if i.callee in design.module.functions:
                break
        else:
            for after in function.blocks[at].successors:
                same = function.innermost.get(after) is loop and not (loop and after == loop.header)
                if same and after not in done and (function.name, after) not in pipelined:
                    done.add(after)
                    ahead.append((after, 0))
    return out


def regions(facts: MemoryFacts) -> HlsFindings:
    """Yield the places where the sources say `RSN_DATAFLOW` in a scope that has no DATAFLOW pragma (rule
    `canonical`)."""
    found = [(p.file, p.pragma.block) for p in facts.design.pragmas if p.pragma.name == "dataflow"]
    for name, text in facts.design.texts.items():
        for marked in re.finditer(r"^ *RSN_DATAFLOW\(\);", text, re.MULTILINE):
            if not any(file == name and block.start < marked.start() < block.end for file, block in found):
                line = CppLine(name, text.count("\n", 0, marked.start()) + 1)
                yield HlsFinding(line, "canonical", "no DATAFLOW pragma: its processes would run one after the other")


def canonical(facts: MemoryFacts) -> HlsFindings:
    """Yield statements in a dataflow region that are neither declarations nor calls of processes, and processes that
    return a value (rule `canonical`)."""
    design = facts.design
    for marked in design.pragmas:
        if marked.pragma.name != "dataflow":
            continue
        block = marked.pragma.block
        first = block.file.count("\n", 0, block.start) + 1
        for inner_start, text in _statements(block.file, block.start + 1, block.end):
            plain = " ".join(text.split())
            if plain and not _CANONICAL.fullmatch(plain):
                line = block.file.count("\n", 0, inner_start) + 1
                yield HlsFinding(
                    CppLine(marked.file, max(line, first)),
                    "canonical",
                    f"`{plain[:60]}` is no declaration and no call of a process",
                )
    for function in facts.processes.regions:
        for i in function.instructions():
            callee = design.module.functions.get(i.callee)
            if callee and not re.search(r"\bvoid @", i.rest):
                yield HlsFinding(design.line(i), "canonical", f"process {_plain(design, callee)} returns a value")


_CANONICAL = re.compile(
    r"(?!(?:if|else|for|while|do|switch|return|goto|break|continue|throw|try)\b)"
    r"(?:RSN_DATAFLOW\(\)|RSN_PROCESS\(.*\)|RSN_TASK\(.*\)|RSN_MEMORY\(.*\)|[\w:]+(?:<[^;=]*>)?\([^=]*\)"
    r"|(?:static )?[\w:]+(?:<[^=;]*>)? [^=]*(?:\(\"[^\"]*\"\)|\{\"[^\"]*\"\})?|[\w:]+(?:<[^=;]*>)? \w+(?:, \w+)*)"
)


def _statements(text: str, start: int, end: int) -> list[tuple[int, str]]:
    """Statements of a block, with their offsets; one with braces as a whole."""
    out, depth, begun = [], 0, start
    for at in range(start, end):
        c = text[at]
        depth += (c in "({[") - (c in ")}]")
        if depth == 0 and c in ";}":
            piece = text[begun : at + (c == "}")]
            blank = len(piece) - len(piece.lstrip())
            out.append((begun + blank, piece.strip()))
            begun = at + 1
    return out


RULES_OF_DESIGNS = (
    *(
        processes,
        streams,
        bundles,
        responses,
        registers,
        fences,
        statics,
        synthesisable,
        state_order,
        regions,
        canonical,
    ),
)
