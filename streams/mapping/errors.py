"""How a mapping is refused."""

from __future__ import annotations

from ...base.errors import RsnError
from ...base.place import Place
from ..source import Source, SourceFinding

CODES = {
    "name": "no such task instance, or it is named twice",
    "kernel": "the nodes of a bundle compute different things, or differ in their streams or tiles",
    "path": "another path joins the nodes: as one node they would wait for themselves",
    "feedback": "the nodes feed each other",
    "order": "a common peer reads or writes in another order than that in which the shots run",
    "port": "more ports than a tile has",
    "memory": "more bytes than a tile has",
    "tiles": "more nodes than tiles",
    "proof": "the mapped program does not run to its end on its physical streams",
}
"""Codes of refusals."""


class MappingError(RsnError):
    """A primitive, a mapping or a placement is refused. code: a key of `CODES`. message: what is wrong. place: in the
    user's file; None if the refusal is about the mapping as a whole. notes: who takes ports or bytes, and the least
    change that would help."""

    def __init__(self, code: str, message: str, place: Place | None = None, notes: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join([f"{message} [{code}]", *(f"note: {note}" for note in notes)]))
        self.code, self.message, self.place, self.notes = code, message, place, notes

    def rendered(self, source: Source) -> str:
        """Return the message with the user's line and a caret below it. source: the file that the program was read
        from.
        """
        return source.render(SourceFinding(self.code, self.message, self.place, self.notes))
