"""Generate the tables in docs/rsn-language.md with the words of every format of every overlay.

`python -m rsn.assembler.reference docs/rsn-language.md` updates the tables in a document.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..isa.fields import Field, Record
from ..isa.overlay import Overlay
from ..isa.overlays import OVERLAYS
from .spelling import spelling

BEGIN = "<!-- words: written by rsn.assembler.reference -->"
END = "<!-- end of words -->"

HEADING = ("in", "flags", "streams", "numbers", "pieces of buffers")


def tables(overlays: Mapping[str, Overlay] = OVERLAYS) -> str:
    """Return the tables in Markdown, one per overlay, sorted by name. overlays: by name. An overlay that extends
    another lists only the added words.
    """
    parts = []
    for overlay in sorted(overlays.values(), key=lambda o: (o.extends or o.name, o.extends is not None)):
        base = overlays.get(overlay.extends or "")
        known = {form.name for form in base.formats} if base else set()
        rows = [_row(f"`{f.name}`" if f.config else f.kind, f.mop) for f in overlay.formats if f.name not in known]
        if base is None:
            rows += [_row(kind, ops.record) for kind, ops in overlay.preloaded.items()]
        more = f", beside the words of `{base.name}`" if base else ""
        parts.append("\n".join([f"### Overlay `{overlay.name}`{more}", "", *_table(rows)]))
    return "\n\n".join(parts) + "\n"


def insert(document: str, overlays: Mapping[str, Overlay] = OVERLAYS) -> str:
    """Return a Markdown document with its tables replaced by current ones. Raises `ValueError` if it has no place for
    them.

    overlays: those of the tables, by name.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{tables(overlays)}\n{END}{after}"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    for row in (HEADING, ("---",) * len(HEADING), *rows):
        yield "| " + " | ".join(row) + " |"


def _row(where: str, record: type[Record]) -> tuple[str, ...]:
    words = spelling(record)
    plain = [f for f in record.FIELDS if f.name not in words.arrows]
    streams = [_arrow(f) for f in record.FIELDS if f.name in words.arrows]
    pieces = "no"
    if words.sliced:
        pieces = "yes, in chunks" if words.chunked else "yes, in one chunk"
    return (
        where,
        ", ".join(f"`{f.name}`" for f in plain if f.flag),
        ", ".join(streams),
        ", ".join(_number(f, getattr(words.default, f.name)) for f in plain if not f.flag),
        pieces,
    )


def _arrow(f: Field) -> str:
    if f.source and f.to:
        return f"`{f.source}->{f.to}`"
    return f"`-> {f.to}`" if f.to else f"`<- {f.source}`"


def _number(f: Field, default: float) -> str:
    low, high = f.bounds
    kind = "real" if f.real else f"{low}..{_short(high)}" if low == 0 else f"{_short(low)}..{_short(high)}"
    return f"`{f.name}` {kind}" + (f" = {default:g}" if default else "")


def _short(n: int) -> str:
    """Format a bound of a field; a large one as a power of two."""
    size = abs(n) + (n > 0)
    if size < 1 << 16:
        return str(n)
    return f"2^{size.bit_length() - 1}-1" if n > 0 else f"-2^{size.bit_length() - 1}"


def _main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(insert(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    _main()
