"""Safe and fast depths of a program, and the steps between them.

Safe: every outcome of the data runs to its end (untimed, counted). Fast: all operations of a beat fire together, and
every execution ends when it would with endless streams (timed, modelled). Both hold at all deeper depths too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from ...base.errors import ProgramError
from ...machine import jit
from .least import Least, least, lowest
from .program import SizedProgram, TimeError, Times

STEPS = 32
"""Limit of the steps between safe and fast depths that are shown."""

BEATS = 1 << 28
"""Limit of the beats that the search for a proof walks: about half a minute with compiled code; without, 64 times fewer
are walked."""

Depths = dict[str, int]
"""Depth in elements by name of the declared stream; of an array, of each of its streams."""


@dataclass(frozen=True)
class DepthPoint:
    """A choice of depths from safe to fast. depths: in elements, by the name of the stream. deeper: those that differ
    from the choice before. bits: of all slots together. times: modelled, in clock cycles."""

    depths: Depths
    deeper: Depths
    bits: int
    times: Times


@dataclass(frozen=True)
class KnownDepths:
    """What is known about the depths of a program; depths are in elements, by the name of the stream.

    declared: those in the program, or the ones that were chosen instead. alone: the least safe depth of each stream
    while the others are as declared; None if no depth of it alone is safe. safe, fast: the depths with the fewest bits
    in all, with a proof or a bound; fast is None without times. at_declared: the times with the declared depths; None
    if these are not safe. endless: the times with streams of unlimited depth. steps: choices from safe to fast; the
    first one is the cheapest safe choice in which no depth is above the fast one. untimed: the reason why there are no
    times; "" if there are."""

    program: SizedProgram
    declared: Depths
    alone: Mapping[str, int | None]
    safe: Least
    fast: Least | None
    at_declared: Times | None
    endless: Times | None
    steps: tuple[DepthPoint, ...]
    untimed: str


def sizes(program: SizedProgram, chosen: Mapping[str, int] | None = None) -> KnownDepths:
    """Return the safe and the fast depths of a program, and steps between them. chosen: depths in place of declared
    ones, in elements, by the name of the stream. Raises `TimeError` if the program is too large even for runs without
    time, `ProgramError` for a stream that has no ends and for a depth that is not one or more whole transfers."""
    for name, depth in (chosen or {}).items():
        group = program.groups.get(name)
        if group is None or depth < 1 or depth % group.decl.packing:
            names = ", ".join(program.groups) or "none"
            raise ProgramError(f"{name} = {depth} is no depth; streams are {names}, in whole transfers of at least one")
    declared = {**program.declared, **(chosen or {})}
    finder = _DepthFinder(program)
    safe = finder.safe(finder.tokens)
    alone = {name: finder.alone(declared, name) for name in declared}
    result = KnownDepths(program, declared, alone, safe, None, None, None, (), "")
    try:
        endless = program.together({})
        assert endless is not None, "beats on endless streams wait for ever"
        at_declared = program.times(declared)
        fast = finder.fast(endless)
        steps = finder.steps(safe.levels, fast.levels)
    except TimeError as e:
        return replace(result, untimed=str(e))
    return replace(result, fast=fast, at_declared=at_declared, endless=endless, steps=steps)


def safe_depths(program: SizedProgram) -> Least:
    """Return the safe depths with the fewest bits in all, with a proof or a bound: in elements, by the name of the
    stream; their cost is in bits. Raises `TimeError` if the program is too large for runs without time."""
    finder = _DepthFinder(program)
    return finder.safe(finder.tokens)


class _DepthFinder:
    def __init__(self, program: SizedProgram) -> None:
        self.program = program
        self.transfer = {name: group.decl.packing for name, group in program.groups.items()}
        self.weights = {name: group.weight for name, group in program.groups.items()}
        self.tokens = {name: group.tokens for name, group in program.groups.items()}

    def safe(self, most: Depths) -> Least:
        """The cheapest safe depths that are at most `most`, which are safe."""
        return least(self.transfer, most, self.transfer, self.weights, self.program.held, enough=self._enough())

    def alone(self, declared: Depths, name: str) -> int | None:
        """The least safe depth of a stream, the others as declared."""

        def holds(depth: int) -> bool:
            return self.program.live({**declared, name: depth})

        most = max(self.tokens[name], declared[name])
        return lowest(self.transfer[name], most, self.transfer[name], holds) if holds(most) else None

    def fast(self, endless: Times) -> Least:
        """The cheapest fast depths."""

        def later(depths: Mapping[str, int]) -> frozenset[str] | None:
            return self.program.later(depths, endless)

        most = {name: count * self.program.executions for name, count in self.tokens.items()}
        return least(self.transfer, most, self.transfer, self.weights, later, enough=self._enough())

    def _enough(self) -> Callable[[], bool]:
        """Whether a search that begins now has walked `BEATS`."""
        most = self.program.walked() + (BEATS if jit.available() else BEATS // 64)
        return lambda: self.program.walked() > most

    # -- the price ----------------------------------------------------------------------------------------------------

    def steps(self, safe: Depths, fast: Depths) -> tuple[DepthPoint, ...]:
        """Deepen streams, and those first that save most cycles for a bit, until the depths are `fast`."""
        if any(safe[name] > fast[name] for name in safe):
            safe = self.safe(fast).levels
        made = [self._step(safe, {})]
        while made[-1].depths != fast:
            before = made[-1]
            deeper = self._best(before, fast) if len(made) < STEPS else None
            if deeper is None:
                deeper = {name: depth for name, depth in fast.items() if depth > before.depths[name]}
            made.append(self._step({**before.depths, **deeper}, deeper))
        return tuple(made)

    def _step(self, depths: Depths, deeper: Depths) -> DepthPoint:
        times = self.program.times(depths)
        assert times is not None, "safe depths wait for ever"
        return DepthPoint(depths, deeper, self.program.bits(depths), times)

    def _sum(self, depths: Depths) -> int:
        """The sum of the ends of all executions: nothing is faster where it is equal."""
        times = self.program.times(depths)
        assert times is not None, "safe depths wait for ever"
        return sum(sum(ends) for ends in times.ends)

    def _best(self, before: DepthPoint, fast: Depths) -> Depths | None:
        """The stream that saves most for a bit, and its depth; several streams where one alone saves nothing."""
        now = sum(sum(ends) for ends in before.times.ends)
        best: tuple[Fraction, str, int, int] | None = None
        for name, depth in before.depths.items():
            while depth < fast[name]:
                depth = min(2 * depth, fast[name])
                after = self._sum({**before.depths, name: depth})
                saved = Fraction(now - after, (depth - before.depths[name]) * self.weights[name])
                if saved > 0 and (best is None or saved >= best[0]):
                    best = saved, name, depth, after
        if best is not None:
            _, name, depth, after = best

            def equal(depth: int) -> bool:
                return self._sum({**before.depths, name: depth}) <= after

            step = self.transfer[name]
            return {name: lowest(before.depths[name] + step, depth, step, equal)}
        return self._several(before, fast, now)

    def _several(self, before: DepthPoint, fast: Depths, now: int) -> Depths | None:
        """The least common deepening that saves anything, without the streams that add nothing to it."""
        deeper = {name: depth for name, depth in before.depths.items() if depth < fast[name]}
        while any(depth < fast[name] for name, depth in deeper.items()):
            deeper = {name: min(2 * depth, fast[name]) for name, depth in deeper.items()}
            after = self._sum({**before.depths, **deeper})
            if after < now:
                for name in sorted(deeper, key=lambda n: -self.weights[n]):
                    others = {n: depth for n, depth in deeper.items() if n != name}
                    if others and self._sum({**before.depths, **others}) <= after:
                        deeper = others
                return deeper
        return None
