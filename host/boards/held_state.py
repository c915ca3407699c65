"""What a board remembers of buffers with role `state`: whether its memory holds what the host and the runs before have
put there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from ...base.errors import StateLost
from ...isa.program import Program, Role


class HeldState:
    """Which states of a loaded program the board still holds. States are the buffers with the role `state`: they keep
    their contents between runs. program: the loaded one. At first no state is held. Before a run each one must be held,
    or written by the host. A run that succeeds leaves all of them held; a run that fails, or `lose`, leaves none."""

    def __init__(self, program: Program) -> None:
        self._names = frozenset(b.name for b in program.with_role(Role.STATE))
        self._held: set[str] = set()

    def lose(self) -> None:
        """Note that the board has other memory than before: no state is held any more."""
        self._held.clear()

    @contextmanager
    def during(self, given: Collection[str]) -> Iterator[None]:
        """Context of a run. given: names of the buffers that the host writes before it. Raises `StateLost` if a state
        is neither held nor given; after any error in the context none is held."""
        missing = self._names - self._held - set(given)
        if missing:
            raise StateLost(
                f"the board does not hold {min(missing)}, which the program keeps between runs: it was never written, "
                "or was lost when a run or the board failed; begin the session again"
            )
        self._held.clear()
        yield
        self._held.update(self._names)
