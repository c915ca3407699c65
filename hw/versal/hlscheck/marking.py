"""Sources whose HLS pragmas clang keeps: each becomes a call of a function without a body, in the same line.

Clang drops the pragmas of HLS. A call stands where its pragma stood, so what the compiler makes of scopes, templates
and inlined functions, it makes of pragmas too: the loop that is left around the call is the loop that HLS binds the
pragma to, and the address that it is given is the array, whatever names it had on the way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .. import pragmas
from ..pragmas import Pragma

_OF_VARIABLES = ("aggregate", "array_partition", "array_reshape", "bind_storage", "dependence", "stream")
"""Directives whose variable is an array or a stream, of which a call passes the address."""
_OF_SCOPES = ("dataflow", "inline", "latency", "loop_flatten")
"""Directives of the scope in which they stand."""


@dataclass(frozen=True, eq=False)
class MarkedPragma:
    """A pragma for which a marker stands in the code that clang compiles. file: its path below the folder of all
    sources. pragma: as read from there."""

    file: str
    pragma: Pragma

    @property
    def line(self) -> int:
        """The line of the pragma in its file, from 1."""
        return self.pragma.line


class MarkedSources:
    """Copies of sources in which a marker stands in place of each pragma: a call of a function without a body,
    `rsn_hls_...`, whose first argument is an index of `pragmas`. texts: the sources by path. folder: where the copies
    are written. pragmas: of all sources. Raises `OSError` if a copy cannot be written."""

    def __init__(self, texts: Mapping[str, str], folder: Path) -> None:
        self.texts = texts
        self.folder = folder
        self.pragmas: list[MarkedPragma] = []
        for name, text in texts.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._marked(name, text), encoding="utf-8")

    def _marked(self, name: str, text: str) -> str:
        out, done = [], 0
        for pragma in pragmas.read(text):
            end = text.index("\n", pragma.at + len(_whole(text, pragma.at)) - 1)
            lines = text[pragma.at : end].count("\n")
            call = _call(pragma, len(self.pragmas))
            self.pragmas.append(MarkedPragma(name, pragma))
            out += [text[done : pragma.at], call, "\n" * lines]
            done = end
        return "".join(out) + text[done:]


def _whole(text: str, at: int) -> str:
    """The lines of a directive that begins at `at`, those behind a backslash included."""
    found = re.compile(r"(?:\\\n|[^\n])*").match(text, at)
    assert found is not None
    return found[0]


def _call(pragma: Pragma, number: int) -> str:
    """The statement that replaces a pragma, or "" where the text alone says all."""
    name, given = pragma.name, dict(pragma.arguments)
    if name == "pipeline":
        return "" if "off" in given else f"rsn_hls_pipeline({number}, ({given.get('ii') or 0}), 0);"
    if name == "unroll":
        return "" if "off" in given else f"rsn_hls_unroll({number}, ({given.get('factor') or 0}), 0);"
    if name in _OF_SCOPES:
        return f"rsn_hls_scope({number});"
    if name in _OF_VARIABLES and given.get("variable"):
        value = given.get("factor") or given.get("distance") or 0
        return f"rsn_hls_variable({number}, &({given['variable']}), {value});"
    return ""
