"""Format a text: indentation, spacing, blank lines. Words, their order and comments stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby

from .diagnostic import SourceText
from .printed_lines import INDENT
from .printer import wrap
from .syntax import read

_QUOTED = r"\"(?:\\.|[^\"\\\n])*\""
_STRING = re.compile(_QUOTED)
_TOKEN = re.compile(
    rf"(?P<space>[ \t]+)|(?P<string>{_QUOTED})|(?P<word>\w+(?:\.\w+)*)"
    r"|(?P<arrow>->|<-)|(?P<range>\.\.)|(?P<sign>[-+*/%])|(?P<other>.)"
)
_CODE = re.compile(rf"(?:{_QUOTED}|[^#\"\n])*")
"""Matches a line up to its comment."""
_VECTOR = re.compile(
    rf"((?:(?:{_QUOTED}|[^#\"\n])*[;{{}}])?[ \t]*(?:scale|shift)[ \t]*(?:{_QUOTED}|[\w.]+)[ \t]*)"
    r"(?:\[(?P<listed>[^\]]*)\]|f32\"(?P<packed>[^\"]*)\")"
)
"""Matches a line with a vector, which may extend over many lines."""


def format_text(text: str, file: str) -> str:
    """Return the text in its canonical layout; formatting it again changes nothing.

    file: the file name in messages. Raises `SourceError` if the text does not follow the grammar.
    """
    read(SourceText(text, file))
    rows: list[tuple[str, str]] = []  # code, comment
    depth = 0
    for line in _lines(text.replace("\r\n", "\n")):
        vector = _VECTOR.match(line)
        head = vector[1] if vector else ""
        code, comment = (part.strip() for part in _split(line[vector.end() :] if vector else line))
        laid = _spaced(head or code)
        if not (laid or comment):
            if rows and rows[-1] != ("", ""):
                rows.append(("", ""))
            continue
        bare = _STRING.sub("", laid)
        leading = len(bare) - len(bare.lstrip("} "))
        laid = INDENT * (depth - bare[:leading].count("}")) + laid
        depth += bare.count("{") - bare.count("}")
        if vector:
            rows += [(row, "") for row in _numbers(f"{laid} ", vector)]
            behind = _spaced(code)
            rows[-1] = (rows[-1][0] + (" " * (behind[:1] == "}")) + behind, comment)
            depth += _STRING.sub("", behind).count("{") - _STRING.sub("", behind).count("}")
        else:
            rows.append((laid, comment) if code else ("", laid + comment))
    return "\n".join(_aligned(rows)).rstrip("\n") + "\n"


def _numbers(start: str, vector: re.Match[str]) -> Iterator[str]:
    if vector["packed"] is not None:
        return iter([f'{start}f32"{"".join(vector["packed"].split())}"'])
    return wrap(start + "[", re.split(r"[\s,]+", vector["listed"].strip()), "]")


def _aligned(rows: list[tuple[str, str]]) -> Iterator[str]:
    """Join code and comment of each row; comments behind code on consecutive lines begin in the same column."""
    for behind, run in groupby(rows, lambda row: bool(row[0] and row[1])):
        block = list(run)
        width = max(len(code) for code, _ in block)
        yield from (f"{code:{width}}  {comment}" if behind else code + comment for code, comment in block)


def _split(line: str) -> tuple[str, str]:
    code = _CODE.match(line)
    end = code.end() if code else 0
    return line[:end], line[end:]


def _lines(text: str) -> Iterator[str]:
    """Split a text into lines; a vector with all its lines counts as one."""
    at = 0
    while at < len(text):
        vector = _VECTOR.match(text, at)
        end = text.find("\n", vector.end() if vector else at)
        end = len(text) if end < 0 else end
        yield text[at:end]
        at = end + 1


def _spaced(code: str) -> str:
    """Space one line of code: one space between words, none around the `=` of a field. Operators and arrows keep a
    space if they have one."""
    tokens = [(m.lastgroup or "", m[0]) for m in _TOKEN.finditer(code.strip())]
    declares = False
    out = ""
    before = ("", "")
    for i, (kind, token) in enumerate(tokens):
        if kind == "space":
            continue
        if before[1] in ("", ";", "{", "}"):
            declares = token in ("const", "param")
        wide = i > 0 and tokens[i - 1][0] == "space"
        if out and _gap(before, (kind, token), wide, declares):
            out += " "
        out += token
        prefix = before[0] in ("", "sign", "range") or before[1] in ("=", "(", "[", ":", ",")
        touches = i + 1 < len(tokens) and tokens[i + 1][0] != "space"
        if (kind == "sign" and (prefix or touches)) or (kind == "arrow" and before[0] and not wide):
            kind = "tight"
        before = (kind, token)
    return out


def _gap(before: tuple[str, str], now: tuple[str, str], wide: bool, declares: bool) -> bool:
    """Return whether to put a space between two tokens. wide: whether the source has one. declares: whether they stand
    in a const or param line, where `=` has spaces around it."""
    kind, token = now
    if before[0] in ("tight", "range") or before[1] in ("[", "(", ":") or kind == "range" or token in "]),;:":
        return False
    if "=" in (before[1], token):
        return declares
    if token in "[(":
        return before[0] == "sign"
    return wide if kind in ("sign", "arrow") else True
