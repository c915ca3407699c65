"""The cheapest levels at which a monotone property holds, with a proof, or with a bound."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from .cover import Clause, Levels, cost, cover

TRIES = 2000
"""Limit of the levels that one search tries, unless another is given."""

Fails = Callable[[Mapping[str, int]], Collection[str] | None]
"""Whether the property fails at some levels: None if it holds; otherwise the names of which one must be higher, however
high the others are."""


@dataclass(frozen=True)
class Least:
    """The cheapest levels that were found at which a property holds. levels: by name. cost: theirs. bound: a cost below
    which the property never holds. proved: whether `cost` is that bound. alone: the least level of each name while all
    others are as high as useful. tries: how many choices of levels were tried."""

    levels: Levels
    cost: int
    bound: int
    proved: bool
    alone: Levels
    tries: int


def lowest(low: int, high: int, step: int, holds: Callable[[int], bool]) -> int:
    """Return the lowest of the levels low, low + step, .. up to high at which `holds` is true. It must be true at
    `high`, and at all levels above one at which it is true. Levels near `low` are tried first."""
    if holds(low):
        return low
    bad, good = low, low + step
    while good < high and not holds(good):
        bad, good = good, low + 2 * (good - low)
    good = min(good, high)
    while good - bad > step:
        middle = bad + (good - bad) // step // 2 * step
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def least(
    low: Mapping[str, int],
    high: Mapping[str, int],
    steps: Mapping[str, int],
    weights: Mapping[str, int],
    fails: Fails,
    tries: int = TRIES,
    enough: Callable[[], bool] = lambda: False,
) -> Least:
    """Return the cheapest levels at which a property holds. The property must be monotone: if it holds at some levels,
    it holds at all higher ones.

    low: the lowest levels, by name. high: levels at which the property holds and beyond which no level matters; each is
    a whole number of `steps` above `low`. steps: from one level to the next. weights: the cost of one level. fails:
    returns None for levels at which the property holds; otherwise names of which one must be higher. tries: how many
    choices of levels may be tried. enough: whether to end the search early.

    First each name is lowered alone, with all others high: its level cannot be less. Then all are lowered one after
    another, those with the highest weight first, until none can be lower. Levels at which the property fails are raised
    as far as it still fails; one of the names must be above them, which is a clause. The cheapest levels that satisfy
    all clauses either hold, and then nothing is cheaper, or give another clause. After `tries` choices, or once
    `enough` returns True, the search ends with the best so far."""
    search = _LeastSearch(low, high, steps, weights, fails)
    return search.run(tries, enough)


class _LeastSearch:
    def __init__(
        self,
        low: Mapping[str, int],
        high: Mapping[str, int],
        steps: Mapping[str, int],
        weights: Mapping[str, int],
        fails: Fails,
    ) -> None:
        self.low, self.high, self.steps, self.weights = low, high, steps, weights
        self._fails = fails
        self._known: dict[tuple[int, ...], Collection[str] | None] = {}
        self.tries = 0

    def fails(self, levels: Mapping[str, int]) -> Collection[str] | None:
        key = tuple(levels[name] for name in self.low)
        if key not in self._known:
            self.tries += 1
            self._known[key] = self._fails(levels)
        return self._known[key]

    def run(self, tries: int, enough: Callable[[], bool]) -> Least:
        high = dict(self.high)
        alone = {name: self._lowest(high, name, self.low[name]) for name in self.low}
        bound = cost(alone, self.weights)
        if self.fails(alone) is None:
            return Least(alone, bound, bound, True, alone, self.tries)
        levels = self._lowered(high, alone)
        clauses: list[Clause] = []
        while cost(levels, self.weights) > bound and self.tries < tries and not enough():
            found = cover(alone, self.weights, clauses)
            bound = max(bound, found.bound)
            if bound >= cost(levels, self.weights):
                break
            names = self.fails(found.levels)
            if names is None:
                if cost(found.levels, self.weights) < cost(levels, self.weights):
                    levels = found.levels
                if not found.proved:
                    break
            else:
                clauses.append(self._clause(found.levels, names))
        spent = cost(levels, self.weights)
        return Least(levels, spent, bound, bound >= spent, alone, self.tries)

    def _lowest(self, levels: Mapping[str, int], name: str, low: int) -> int:
        def holds(level: int) -> bool:
            return self.fails({**levels, name: level}) is None

        return lowest(low, levels[name], self.steps[name], holds)

    def _lowered(self, levels: Levels, low: Levels) -> Levels:
        """Lower all levels in turn: first all together, then one by one, until no single one can be lower."""
        share = 0
        while share < max(levels.values(), default=0).bit_length():
            capped = {n: min(levels[n], low[n] + (self.steps[n] << share)) for n in levels}
            if self.fails(capped) is None:
                levels = capped
                break
            share += 1
        for name in sorted(levels, key=lambda n: -self.weights[n]):
            levels = {**levels, name: self._lowest(levels, name, low[name])}
        return levels

    def _clause(self, levels: Mapping[str, int], names: Collection[str]) -> Clause:
        """Raise levels at which the property fails as far as it still does; return what must be exceeded."""
        top = {name: level if name in names else self.high[name] for name, level in levels.items()}
        if self.fails(top) is None:
            raise AssertionError("the property fails for names other than those given")
        clause: dict[str, int] = {}
        for name in sorted(names, key=lambda n: (self.weights[n], n)):
            over = self._lowest({**top, name: self.high[name]}, name, top[name]) if self._matters(top, name) else None
            if over is None:
                top[name] = self.high[name]
            else:
                clause[name] = over
                top[name] = over - self.steps[name]
        return clause

    def _matters(self, top: Mapping[str, int], name: str) -> bool:
        return self.fails({**top, name: self.high[name]}) is None
