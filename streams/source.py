"""Findings about a stream program, each with a code, a place in the user's file, and a caret below it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.place import Place
from .syntax.nodes import Block, SyntaxNode

WIDEST = 200
"""Limit of characters that a finding shows of its line."""

CODES = {
    "syntax": "the file is not Python",
    "unsupported": "a statement, an expression or a name that the language does not have",
    "limit": "the program is larger than a named limit of the check",
    "assert": "a condition that the program asserts does not hold",
    "p2p": "a stream has two writers, two readers, or both ends in one task instance",
    "type": "a value has another element type or shape than the stream",
    "layout": "the layouts of tensors do not fit each other, the kernel or the mesh",
    "pending": "a reduction over shards is not complete where its result is needed",
    "pack": "elements fill no whole number of transfers",
    "depth0": "a declared depth is below 1",
    "index": "an index is outside the array of streams or an axis, in any iteration of the loops around it, or is not "
    "known before the run",
    "meta": "a condition of meta_if is not known before the run",
    "join": "the arms of a branch, or the iterations of a loop that ends by data, leave different tokens",
    "starved": "more gets than puts: the other end has ended or is missing",
    "leak": "more puts than gets: tokens are left at the end",
    "deadlock": "a cycle of waits at any depth",
    "depth": "a cycle of waits that a deeper stream breaks",
    "order": "tokens of a tensor are put in one order and got in another one, or in another one than the stream states",
    "race": "two task instances access the same element of a tensor, one of them stores it, and no token orders them",
    "future": "what one get gives is awaited twice, or used after drop",
    "unread": "a value that is taken from a stream is never read",
    "unused": "a stream has no ends",
    "inserted": "a collective that a layout asks for",
    "inferred": "the labels that are found in place of ?",
    "variant": "which variant of a kernel is taken, or which conditions fail",
}
"""Codes, in the order of causes: if several apply, the first one names the cause."""

_DYNAMIC = "in rsn.streams.dynamic they may (docs/dynamic-streams.md#where-data-decide)"
ARMS_BY_DATA = f"{_DYNAMIC}: Partition, FlatMap(WhereTrue()), SortedMerge"
"""What expresses a branch whose arms put or get differently."""
TRIPS_BY_DATA = f"{_DYNAMIC}: TakeWhile leaves a loop early, Iterate repeats one"
"""What expresses a loop whose trips data decide."""

ORDER = {code: rank for rank, code in enumerate(CODES)}

NOTES = ("inserted", "inferred", "variant")
"""Codes of what is told, and is no mistake."""


@dataclass(frozen=True)
class Relayout:
    """A change of the layout of a tensor. tensor: its name. before, after: labels and pending reductions, as text. how:
    the name of the collective, or "memory" and the two tasks. size: bytes that move, over all instances."""

    tensor: str
    before: str
    after: str
    how: str
    size: int

    def __str__(self) -> str:
        return f"{self.tensor}: {self.before} to {self.after} by {self.how}: {self.size} bytes move"


@dataclass(frozen=True)
class SourceFinding:
    """An error, a warning or a note about a program.

    code: a key of `CODES`; those in `NOTES` are of notes. message: the first line. place: in the file; None if the
    finding is about the file as a whole. notes: further lines. warning: whether it is no error. subject: the stream
    with its indices, or the task instance. uncounted: whether data decide how many tokens pass, so that no more can be
    said. relayouts: the changes of layouts that it reports."""

    code: str
    message: str
    place: Place | None = None
    notes: tuple[str, ...] = ()
    warning: bool = False
    subject: str = ""
    uncounted: bool = False
    relayouts: tuple[Relayout, ...] = ()


@dataclass
class Source:
    """The text of a file, and what was found in it. file: its name. findings: in the order in which they were added.
    tree: the statements of the text; None until it is parsed, unless the tree was there first."""

    text: str
    file: str
    findings: list[SourceFinding] = field(default_factory=list)
    tree: Block | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.text = self.text.replace("\r\n", "\n").replace("\r", "\n")  # as Python counts lines
        self.lines = self.text.split("\n")
        self._seen: set[tuple[str, Place | None, str, bool]] = set()

    def add(
        self,
        code: str,
        message: str,
        place: Place | None,
        *notes: str,
        warning: bool = False,
        subject: str = "",
        uncounted: bool = False,
        relayouts: tuple[Relayout, ...] = (),
    ) -> None:
        """Add a finding; one with the same code, place and subject is added only once. code: a key of `CODES`. The
        other arguments are those of `SourceFinding`."""
        key = code, place, "" if place is not None and not warning and code == "unsupported" else subject, warning
        if key not in self._seen:
            self._seen.add(key)
            self.findings.append(SourceFinding(code, message, place, notes, warning, subject, uncounted, relayouts))

    def render(self, d: SourceFinding) -> str:
        """Return a finding as several lines of text: its place, code and message; the line of the source; a line with
        carets; and the notes. d: the finding."""
        notes = [f"note: {n}" for n in (*d.notes, *d.relayouts)]
        kind = "note" if d.code in NOTES else "warning" if d.warning else "error"
        if d.place is None:
            return "\n".join([f"{self.file}: {kind}: {d.message} [{d.code}]", *notes])
        line = self.lines[d.place.line - 1] if d.place.line <= len(self.lines) else ""
        start, end = d.place.column - 1, d.place.end - 1
        first = max(0, start - WIDEST // 2) if len(line) > WIDEST else 0
        shown = line[first : first + WIDEST]
        margin = "".join("\t" if c == "\t" else " " for c in shown[: start - first])
        caret = "^" * max(1, min(end - first, len(shown)) - (start - first))
        at = f"{self.file}:{d.place.line}:{d.place.column}"
        out = [f"{at}: {kind}: {d.message} [{d.code}]", shown, margin + caret]
        return "\n".join(out + notes)


class Refusal(Exception):
    """A mistake that ends the reading of a task instance or of a declaration; whoever reads it makes a finding of it.
    code, message, notes: as for `SourceFinding`. node: where the mistake is; None if only its reader knows the
    place."""

    def __init__(self, code: str, message: str, node: SyntaxNode | None, *notes: str) -> None:
        super().__init__(message)
        self.code, self.message, self.notes = code, message, notes
        self.place = None if node is None else node.place
