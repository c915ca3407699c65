"""Cheapest levels that satisfy clauses "one of these names has at least this level": branch and bound, exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Levels = dict[str, int]
Clause = Mapping[str, int]
"""Name -> level: one of the names must have at least its level."""

NODES = 100_000
"""Limit of the nodes of one search."""


@dataclass(frozen=True)
class Cover:
    """The cheapest levels that were found. levels: by name. bound: a cost below which no levels satisfy all clauses.
    proved: whether the cost of the levels is that bound."""

    levels: Levels
    bound: int
    proved: bool


def cost(levels: Mapping[str, int], weights: Mapping[str, int]) -> int:
    """Return the sum of level times weight over all names, such as the bits of depths."""
    return sum(level * weights[name] for name, level in levels.items())


def cover(low: Mapping[str, int], weights: Mapping[str, int], clauses: Sequence[Clause]) -> Cover:
    """Return the cheapest levels that are at least `low` and satisfy all clauses. low: by name. weights: the cost of
    one level of each name, above 0. clauses: each is a set of levels by name, of which at least one must be reached."""
    return _CoverSearch(weights, clauses).run(dict(low))


class _CoverSearch:
    def __init__(self, weights: Mapping[str, int], clauses: Sequence[Clause]) -> None:
        self.weights, self.clauses = weights, clauses
        self.best: Levels | None = None
        self.most = 0
        self.nodes = 0

    def run(self, low: Levels) -> Cover:
        bound = cost(low, self.weights) + (self._disjoint(low, {}) or 0)
        self._branch(low, cost(low, self.weights), {})
        assert self.best is not None, "a clause without names"
        whole = self.nodes < NODES
        return Cover(self.best, self.most if whole else bound, whole or self.most == bound)

    def _open(self, levels: Levels) -> list[Clause]:
        return [c for c in self.clauses if all(levels[name] < level for name, level in c.items())]

    def _steps(self, clause: Clause, levels: Levels, caps: Mapping[str, int]) -> list[tuple[int, str, int]]:
        """(cost, name, level) of each way to satisfy a clause. caps: levels that names may not reach any more."""
        ways = [
            ((level - levels[name]) * self.weights[name], name, level)
            for name, level in clause.items()
            if name not in caps or level < caps[name]
        ]
        return sorted(ways)

    def _disjoint(self, levels: Levels, caps: Mapping[str, int]) -> int | None:
        """The cost of open clauses that share no names; None if one cannot be satisfied."""
        used: set[str] = set()
        total = 0
        for clause in sorted(self._open(levels), key=len):
            ways = self._steps(clause, levels, caps)
            if not ways:
                return None
            if used.isdisjoint(clause):
                used.update(clause)
                total += ways[0][0]
        return total

    def _branch(self, levels: Levels, spent: int, caps: Mapping[str, int]) -> None:
        """Satisfy the open clause with the fewest ways in each of them; a later way leaves out what the earlier ones
        have tried."""
        self.nodes += 1
        more = self._disjoint(levels, caps)
        if more is None or (self.best is not None and spent + more >= self.most):
            return
        clauses = self._open(levels)
        if not clauses:
            self.best, self.most = dict(levels), spent
            return
        ways = min((self._steps(clause, levels, caps) for clause in clauses), key=len)
        left = dict(caps)
        for extra, name, level in ways:
            if self.nodes >= NODES and self.best is not None:
                return
            self._branch({**levels, name: level}, spent + extra, left)
            left[name] = min(level, left.get(name, level))
