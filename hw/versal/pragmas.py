"""Check the `#pragma HLS` lines of C++ texts against the table of directives.

A mistake in a pragma costs hours: HLS warns of some, ignores others, and builds a machine that is slower or stops. What
is checked follows from the text alone: directive, options and their values, where the pragma stands, and whether the
variable, port or function that it names is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property

from .directives import DIRECTIVES, ONLY_MEMORY, OPERATORS, STORAGE, Directive, Legal, PragmaPlace, PragmaValue

LOOP_WORDS = ("for", "while", "do")
SCOPE_WORDS = ("namespace", "struct", "class", "union", "enum", "extern")
OTHER_WORDS = ("if", "else", "switch", "try", "catch")


@dataclass
class BracedText:
    """A text in braces in a C++ file, or the whole file. file: the text of the file. head: what stands before the
    opening brace. kind: what it is, `file`, `loop`, `function`, `scope` (of a namespace, class or struct) or `other`.
    start, end: offsets of the braces in `file`. outer: the block around it, None for a file. parts: the pieces of its
    text that are in no block inside."""

    file: str
    head: str
    kind: str
    start: int
    end: int
    outer: BracedText | None = None
    parts: list[str] = field(default_factory=list)

    def around(self) -> Iterator[BracedText]:
        """Yield this block and those around it, the innermost first."""
        block: BracedText | None = self
        while block is not None:
            yield block
            block = block.outer

    @property
    def text(self) -> str:
        """The text between the braces, with the blocks inside."""
        return self.file[self.start + 1 : self.end]

    def nearest(self, kind: str) -> BracedText | None:
        """Return the innermost block of a kind, this one included; None if there is none."""
        return next((b for b in self.around() if b.kind == kind), None)


@dataclass(frozen=True)
class Pragma:
    """One `#pragma HLS`. line: number of its first line, from 1. at: its offset in the file. text: what follows the
    word HLS. block: the innermost one around it."""

    line: int
    at: int
    text: str
    block: BracedText

    @property
    def name(self) -> str:
        """The directive, in lower case; "" if there is none."""
        return self.text.split(maxsplit=1)[0].lower() if self.text else ""

    @cached_property
    def arguments(self) -> list[tuple[str, str | None]]:
        """What follows the directive, in order: an option as (key in lower case, value), a word alone as (word in lower
        case, None)."""
        out: list[tuple[str, str | None]] = []
        for part in re.sub(r"\s*=\s*", "=", self.text).split()[1:]:
            key, equals, value = part.partition("=")
            out.append((key.lower(), value if equals else None))
        return out

    def option(self, key: str) -> str | None:
        """Return the value of the option `key`, in lower case; None if it is not there or has no value."""
        return next((v.lower() for k, v in self.arguments if k == key and v is not None), None)


def read(text: str) -> list[Pragma]:
    """Return the HLS pragmas of a C++ text, in order. One that stands in a comment is left out."""
    return list(_pragmas(text, _blocks(_blanked(text))))


def check(texts: Mapping[str, str], others: Collection[str] = (), *, styles: bool = True) -> Iterator[str]:
    """Yield a sentence for each mistake in the pragmas of C++ texts: `FILE:LINE: what`. texts: by the names of their
    files.

    others: further texts, in which only functions and constants are looked up. styles: whether each PIPELINE must state
    its style, as it must where loops access streams."""
    blank = {name: _blanked(text) for name, text in texts.items()}
    known = "\n".join((*blank.values(), *map(_blanked, others)))
    for name, text in texts.items():
        blocks = _blocks(blank[name])
        found = list(_pragmas(text, blocks))
        for pragma in found:
            for finding in _findings(pragma, known, styles):
                yield f"{name}:{pragma.line}: {finding}"
        yield from (f"{name}:{line}: {what}" for line, what in _unstated_stalls(blank[name], blocks, found))


def _findings(pragma: Pragma, known: str, styles: bool) -> Iterator[str]:
    directive = DIRECTIVES.get(pragma.name)
    if directive is None:
        yield f"there is no directive {pragma.name.upper() or 'without a name'}{_meant(pragma.name, DIRECTIVES)}"
        return
    title = pragma.name.upper()
    given: dict[str, str] = {}
    for key, value in pragma.arguments:
        if value is None and key in directive.words:
            continue
        if value is None and directive.free and key in _choices(directive.options[directive.free]):
            key, value = directive.free, key
        if value is None or key not in directive.options:
            written = key if value is None else f"{key}="
            names = [*(f"{o}=" for o in directive.options), *directive.words, *_free_words(directive)]
            yield f"{title} has no {written}{_meant(written, names)} (UG1399, {directive.section})"
            continue
        if key in given:
            yield f"{title} says {key}= twice"
        given[key] = value
        if wrong := _wrong_value(key, value, directive.options[key], pragma, known, given):
            yield f"{title} {key}={value}: {wrong}"
    for needed in directive.required:
        if not any(key in given for key in needed.split("|")):
            yield f"{title} needs {needed.replace('|', '= or ')}= (UG1399, {directive.section})"
    if not _stands_right(pragma.block, directive.place):
        yield f"{title} must stand {directive.place.value} (UG1399, {directive.section})"
    if pragma.name in RULES:
        yield from RULES[pragma.name](pragma, given)
    if styles and pragma.name == "pipeline" and "style" not in given and ("off", None) not in pragma.arguments:
        yield "PIPELINE needs style=: flp, or stp in a loop that uses a memory port (hw/versal/README.md)"


def _choices(legal: Legal) -> Collection[str]:
    return legal if isinstance(legal, frozenset) else ()


def _free_words(directive: Directive) -> Collection[str]:
    return _choices(directive.options[directive.free]) if directive.free else ()


def _meant(written: str, names: Collection[str]) -> str:
    close = get_close_matches(written.lower(), sorted(names), 1, 0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _wrong_value(key: str, value: str, legal: Legal, pragma: Pragma, known: str, given: Mapping[str, str]) -> str:
    """Return what is wrong with a value, or "". known: the code of all texts."""
    if isinstance(legal, frozenset):
        if value.lower() in legal:
            return ""
        return _meant(value, legal).lstrip("; ") or f"it must be one of {', '.join(sorted(legal))}"
    function = pragma.block.nearest("function")
    if legal is PragmaValue.NUMBER:
        missing = [n for n in re.findall(r"[A-Za-z_]\w*", value) if not re.search(rf"\b{n}\b", known)]
        if not value or not re.fullmatch(r"[\w:+*/() -]+", value):
            return "it must be a number or a constant"
        return f"there is no {missing[0]}{_meant(missing[0], _identifiers(known))}" if missing else ""
    if legal is PragmaValue.VARIABLE:
        visible = " ".join(text for b in pragma.block.around() for text in (b.head, *b.parts))
        names = _identifiers(visible)
        root = re.split(r"[.\[]|->", value)[0]
        return "" if root in names else f"there is no such variable here{_meant(root, names)}"
    if legal is PragmaValue.PORT and value != "return":
        names = _parameters(function)
        return "" if value in names else f"the function has no such argument{_meant(value, names)}"
    if legal is PragmaValue.FUNCTION and given.get("type") == "function":
        names = set(re.findall(r"\b(\w+)\s*\(", known))
        absent = [f for f in value.split(",") if f not in names]
        return f"there is no function {absent[0]}{_meant(absent[0], names)}" if absent else ""
    return "" if value else "it is empty"


def _identifiers(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _parameters(function: BracedText | None) -> set[str]:
    """The names of a function's parameters."""
    head = function.head if function else ""
    inside = head[head.find("(") + 1 : head.rfind(")")]
    return {found[-1] for part in inside.split(",") if (found := re.findall(r"[A-Za-z_]\w*", part.partition("[")[0]))}


def _stands_right(block: BracedText, place: PragmaPlace) -> bool:
    if block.nearest("function") is None:
        return False
    return {
        PragmaPlace.FUNCTION: block.kind == "function",
        PragmaPlace.LOOP: block.kind == "loop",
        PragmaPlace.LOOP_OR_FUNCTION: block.kind in ("loop", "function"),
        PragmaPlace.INSIDE: True,
    }[place]


# -- what options say together ----------------------------------------------------------------------------------------


def _bind_op(_: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    op, impl = given.get("op", "").lower(), given.get("impl", "").lower()
    if op in OPERATORS and impl and impl not in OPERATORS[op]:
        yield f"BIND_OP impl={impl} is not for {op}; it has {', '.join(sorted(OPERATORS[op]))}"


def _bind_storage(_: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    kind, impl = given.get("type", "").lower(), given.get("impl", "").lower()
    if kind in STORAGE and impl and impl not in STORAGE[kind]:
        yield f"BIND_STORAGE impl={impl} is not for {kind}; it has {', '.join(sorted(STORAGE[kind]))}"


def _array(pragma: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    if given.get("type", "").lower() in ("cyclic", "block") and "factor" not in given:
        yield f"{pragma.name.upper()} type={given['type']} needs factor="


def _dependence(_: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    if "distance" in given and (given.get("type"), given.get("dependent")) != ("inter", "true"):
        yield "DEPENDENCE distance= means something with type=inter and dependent=true alone"


def _interface(_: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(ONLY_MEMORY & given.keys()):
        if given.get("mode", "m_axi").lower() != "m_axi":
            yield f"INTERFACE {key}= is for m_axi alone"


def _pipeline(pragma: Pragma, given: Mapping[str, str]) -> Iterator[str]:
    block = pragma.block
    if block.kind == "function" and block.file[block.start + 1 : pragma.at].strip():
        yield "PIPELINE is behind the head of a function, and in no loop's braces: HLS would pipeline the function"
    if given.get("style", "").lower() != "stp":
        return
    if not _uses_memory(pragma.block):
        yield "PIPELINE style=stp in a loop without a memory port: it may keep its last outputs for ever; say style=flp"
    if not any(STALLS in part for block in pragma.block.around() for part in block.parts):
        yield f"PIPELINE style=stp without {STALLS}() before the loop, which tells the native run"


RULES = {
    "bind_op": _bind_op,
    "bind_storage": _bind_storage,
    "array_partition": _array,
    "array_reshape": _array,
    "dependence": _dependence,
    "interface": _interface,
    "pipeline": _pipeline,
}

STALLS = "RSN_STALLS"


def _uses_memory(loop: BracedText) -> bool:
    """Whether a loop accesses an argument of its function that is a port (`Port`, `MemoryPort`) or a pointer."""
    function = loop.nearest("function")
    head = function.head if function else ""
    ports = re.findall(r"\b(?:(?:Memory)?Port[\s&]+|[\w:]+\s*\*\s*(?:const\s+)?)(\w+)\s*(?=[,)])", head)
    return any(re.search(rf"\b{port}\s*[.\[]", loop.text) for port in ports)


def _unstated_stalls(
    text: str, blocks: Collection[BracedText], pragmas: Collection[Pragma]
) -> Iterator[tuple[int, str]]:
    """Yield the uses of RSN_STALLS() in whose block there is no loop of style stp."""
    for found in re.finditer(rf"\b{STALLS}\b", text):
        block = _innermost(blocks, found.start())
        loops = [p for p in pragmas if p.option("style") == "stp" and p.at > found.start()]
        if not any(block in p.block.around() for p in loops):
            line = text.count("\n", 0, found.start()) + 1
            yield line, f"{STALLS}() without a loop of style=stp behind it in this block"


# -- the text ---------------------------------------------------------------------------------------------------------

_INSIDE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HLS = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+HLS\b((?:\\\n|[^\n])*)", re.MULTILINE | re.IGNORECASE)


def _blanked(text: str) -> str:
    """Return C++ without comments, strings and preprocessor lines, in the same places."""
    return _DIRECTIVE.sub(_spaces, _INSIDE.sub(_spaces, text))


def _spaces(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _pragmas(text: str, blocks: Collection[BracedText]) -> Iterator[Pragma]:
    for found in _HLS.finditer(_COMMENT.sub(_spaces, text)):
        words = found[1].replace("\\\n", " ").strip()
        at = found.start()
        yield Pragma(text.count("\n", 0, at) + 1, at, words, _innermost(blocks, at))


def _innermost(blocks: Collection[BracedText], at: int) -> BracedText:
    return max((b for b in blocks if b.start < at < b.end), key=lambda b: b.start)


def _blocks(text: str) -> list[BracedText]:
    """Return the blocks of a file; the first is the file. text: blanked."""
    here = BracedText(text, "", "file", -1, len(text) + 1)
    blocks, begun, parentheses = [here], 0, [0]
    for found in re.finditer(r"[(){};]", text):
        at, sign = found.start(), found[0]
        if sign in "()":
            parentheses[-1] += 1 if sign == "(" else -1
        elif sign == ";" and not parentheses[-1]:
            here.parts.append(text[begun : at + 1])
            begun = at + 1
        elif sign == "{":
            head = text[begun:at]
            here.parts.append(head)
            here = BracedText(text, head, _kind(head, here), at, len(text), here)
            blocks.append(here)
            parentheses.append(0)
            begun = at + 1
        elif sign == "}" and here.outer is not None:
            here.parts.append(text[begun:at])
            here.end = at
            here = here.outer
            parentheses.pop()
            begun = at + 1
    return blocks


def _kind(head: str, outer: BracedText) -> str:
    """What a block is, by what stands before it: `loop`, `function`, `scope`, or `other`."""
    words = re.sub(r"^\s*(?:\w+\s*:(?!:)\s*)+", "", head).split()
    first = re.split(r"\W", words[0])[0] if words else ""
    if first in LOOP_WORDS:
        return "loop"
    if first in SCOPE_WORDS and "(" not in head:
        return "scope"
    if first in OTHER_WORDS or outer.nearest("function") is not None:
        return "other"
    return "function" if re.search(r"\)[\w\s:&>-]*$|\)\s*:[^;]*$", head) else "other"
