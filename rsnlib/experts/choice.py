"""How experts that data choose are computed, as users say it."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.errors import UnsupportedError

KINDS = ("static", "patched")
EXECUTOR = "rsn_experts"
"""Key in the meta of a node of a captured graph: its executor, which lives as long as the graph."""


@dataclass(frozen=True)
class Experts:
    """How experts that data choose are computed.

    kind: "static": one program in which every expert computes all rows. "patched": for each call, programs of the
    experts that rows select, which the host makes from templates. rows: with "patched", the most rows that one expert
    takes in a call; by default there is no bound. Raises `UnsupportedError` for another kind, and for rows below 1.
    """

    kind: str
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UnsupportedError(f"experts={self.kind!r}: must be {' or '.join(map(repr, KINDS))}")
        if self.rows is None:
            return
        if self.kind == "static":
            raise UnsupportedError("experts: rows are of patched programs; the static one has all rows for each expert")
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise UnsupportedError(f"experts: rows={self.rows!r}: must be a whole number from 1 on")

    @staticmethod
    def of(given: str | Experts) -> Experts:
        """Return what `given` says: an object as it is, or the one of a kind. Raises `UnsupportedError` for another
        value."""
        if isinstance(given, Experts):
            return given
        if not isinstance(given, str):
            raise UnsupportedError(f"experts={given!r}: must be {' or '.join(map(repr, KINDS))}, or an rsn.Experts")
        return Experts(given)
