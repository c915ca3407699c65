"""The words that set a record's fields in a statement. Parser and printer share them; they follow from its fields."""

from __future__ import annotations

import json
import re
from collections import Counter

from ..isa.fields import Field, Record

NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
"""Matches a name that needs no quotes; the NAME of rsn.lark."""

KEYWORDS = ("clamp", "for")
"""Names that need quotes, because rsn.lark reads them as keywords where a name may stand."""


class Spelling:
    """The words that set the fields of one record.

    fields: all fields, by name (`dim1=128`; one-bit fields also as a bare word). default: the record with all fields at
    their defaults. to, source, routes: one-bit fields that select a stream, by peer (`-> MemA0`, `<- MemC0`,
    `MemA0->MME0`), if no other field has the same peer. arrows: the names of those fields. flags: the names of the
    other one-bit fields. sliced: whether a piece of a buffer (`x[0:+128, 0:+64]`) can set addr and size. chunked:
    whether that piece may have several chunks. piece: the fields that it sets.
    """

    def __init__(self, record: type[Record]) -> None:
        self.fields = {f.name: f for f in record.FIELDS}
        self.default = record()
        peers = Counter((f.source, f.to) for f in record.FIELDS)
        named = [f for f in record.FIELDS if f.flag and (f.to or f.source) and peers[f.source, f.to] == 1]
        self.to: dict[str | None, Field] = {f.to: f for f in named if f.to and not f.source}
        self.source: dict[str | None, Field] = {f.source: f for f in named if f.source and not f.to}
        self.routes = {(f.source, f.to): f for f in named if f.source and f.to}
        self.arrows = {f.name for f in named}
        self.flags = [f.name for f in record.FIELDS if f.flag and f.name not in self.arrows]
        self.sliced = {"addr", "size"} <= self.fields.keys()
        self.chunked = self.sliced and {"chunks", "chunk_stride"} <= self.fields.keys()
        self.piece = {"addr", "size", "chunks", "chunk_stride"} & self.fields.keys()


_KNOWN: dict[type[Record], Spelling] = {}


def spelling(record: type[Record]) -> Spelling:
    """Return the spelling of a record's fields; it is built once per record."""
    if record not in _KNOWN:
        _KNOWN[record] = Spelling(record)
    return _KNOWN[record]


def quoted(name: str) -> str:
    """Write a name as source text: in quotes if it is no plain name, or a keyword."""
    return name if NAME.fullmatch(name) and name not in KEYWORDS else f'"{letters(name)}"'


def letters(name: str) -> str:
    """Escape a name, or a part of one, for use between quotes: as in a JSON string, where also `{` is escaped."""
    return json.dumps(name, ensure_ascii=False)[1:-1].replace("{", "\\u007b")  # a brace begins an expression
