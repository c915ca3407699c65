"""Runs a fixed number of instances for every size at once.

A state has for each instance a place in its body, and as forms in the sizes the iterations of the loops around it and
the tokens on the streams. Each move depends on comparisons of forms, which `domain.Domain` decides, or has the sizes
cut. Every stream has one writer and one reader, so one order of moves gives the outcome of all.

Loops are taken by induction. If all instances come back to the same places with other forms, S before and S + D now,
the claim is: from S + k D the run comes to S + (k + 1) D, for each k from 0 to K - 1. It is tried by running once more
from S + k D, with k as an index of the domain; every comparison on the way must come out alike for all k. Then the run
reaches S + K D. K is the largest number for which no loop ends and no stream runs full or empty on the way. What is
claimed is proved by that run alone, so a wrong guess of D or K costs time only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .domain import Domain, SplitIndex, SplitRests, Undecided
from .ends import tokens
from .polynomial import ZERO, Polynomial
from .tree import Body, Branch, Loop, SymbolicOperation

MOVES = 3000
"""Limit of the moves of one run."""

NESTED = 3
"""Limit of inductions within each other."""

Channel = tuple[str, tuple[Polynomial, ...]]
"""A stream: its name, and the index of an array's element."""


class Stuck(Exception):
    """Instances wait for each other for ever, for all sizes of the domain."""


@dataclass
class _SymbolicPlace:
    """A place in a body. done: iterations of the loop that are complete."""

    body: Body
    name: str
    times: Polynomial
    done: Polynomial
    index: int = 0


@dataclass
class SymbolicRun:
    """A run of a fixed number of instances, whose loops and depths depend on sizes.

    domain: of the sizes. bodies: one for each instance. depths: of each stream, in elements. nested: how many runs this
    one is a part of. stacks: for each instance, its place in the body and in each loop around it. fill: the tokens on
    each stream. turn: the number of the instance that moves next. idle: how many instances in turn could not move."""

    domain: Domain
    bodies: Sequence[Body]
    depths: Mapping[Channel, Polynomial]
    nested: int = 0
    stacks: list[list[_SymbolicPlace]] = field(default_factory=list)
    fill: dict[Channel, Polynomial] = field(default_factory=dict)
    turn: int = 0
    idle: int = 0

    def __post_init__(self) -> None:
        if not self.stacks:
            self.stacks = [[_SymbolicPlace(body, "", Polynomial.of(1), ZERO)] if body else [] for body in self.bodies]
            self.fill = dict.fromkeys(self.depths, ZERO)

    def finish(self) -> None:
        """Run to the end. Raises `Stuck` if instances wait for each other for ever, `Undecided` for more than `MOVES`
        moves or if no induction over a loop is found, and otherwise as `Domain.at_least`."""
        self._run(None, MOVES)
        if any(self.stacks):
            raise Stuck

    # -- states -------------------------------------------------------------------------------------------------------

    def _place(self) -> object:
        return tuple(tuple((id(f.body), f.index) for f in stack) for stack in self.stacks), self.turn, self.idle

    def _forms(self) -> list[Polynomial]:
        forms = [form for stack in self.stacks for frame in stack for form in (frame.times, frame.done)]
        return forms + list(self.fill.values())

    def _set(self, forms: Sequence[Polynomial]) -> None:
        values = iter(forms)
        for stack in self.stacks:
            for frame in stack:
                frame.times, frame.done = next(values), next(values)
        self.fill = dict(zip(self.fill, values, strict=True))

    def _copy(self) -> SymbolicRun:
        stacks = [[_SymbolicPlace(f.body, f.name, f.times, f.done, f.index) for f in stack] for stack in self.stacks]
        return SymbolicRun(
            self.domain, self.bodies, self.depths, self.nested + 1, stacks, dict(self.fill), self.turn, self.idle
        )

    # -- moves --------------------------------------------------------------------------------------------------------

    def _run(self, until: tuple[object, list[Polynomial]] | None, limit: int) -> bool:
        """Run to the end, or to a place with given forms; return whether it is reached."""
        memory: dict[object, tuple[list[Polynomial], int]] = {}
        for move in range(limit):
            event = self._move()
            if event == "end":
                return False
            if until is not None and self._place() == until[0] and self._forms() == until[1]:
                return True
            if event == "go on":
                continue
            place, now = self._place(), self._forms()
            before = memory.get(place)
            memory[place] = now, move
            if before is not None and self.nested < NESTED and self._repeat(before[0], now, move - before[1]):
                memory.clear()
        if until is not None:
            return False
        raise Undecided("the run does not come back to a place where it was")

    def _move(self) -> str:
        """Make one move: "back" at the begin of another iteration, "turn" when the next instance is looked at, "end" if
        no instance can move."""
        stack = self.stacks[self.turn]
        if stack:
            frame = stack[-1]
            node = frame.body[frame.index]
            if isinstance(node, Loop):
                env = {f.name: f.done for f in stack if f.name}
                frame.index += 1
                stack.append(_SymbolicPlace(node.body, node.name, node.times.put(env), ZERO))
                self.idle = 0
                return "go on"
            if self._take(node, stack):
                frame.index += 1
                self.idle = 0
                return self._settle(stack)
        self.turn = (self.turn + 1) % len(self.stacks)
        self.idle += 1
        return "end" if self.idle > len(self.stacks) else "turn"

    def _take(self, node: SymbolicOperation | Branch, stack: Sequence[_SymbolicPlace]) -> bool:
        """Take the tokens of a node, if they and the room for them are there."""
        if isinstance(node, SymbolicOperation):
            key = node.stream, node.index
            if node.put:
                if not self.domain.at_least(self.depths[key], self.fill[key] + 1):
                    return False
                self.fill[key] = self.fill[key] + 1
            else:
                if not self.domain.at_least(self.fill[key], 1):
                    return False
                self.fill[key] = self.fill[key] - 1
            return True
        env = {f.name: f.done for f in stack if f.name}
        needs = {key: count.put(env) for key, count in tokens(node.arms[0]).items()}
        for (stream, index, put), count in needs.items():
            room = self.depths[stream, index] - self.fill[stream, index] if put else self.fill[stream, index]
            if not self.domain.at_least(room, count):
                if self._any(node, needs):
                    raise Undecided(f"line {node.place.line}: a branch on data may wait in the middle")
                return False
        for (stream, index, put), count in needs.items():
            self.fill[stream, index] += count if put else -count
        return True

    def _any(self, node: Branch, needs: Mapping[tuple[str, tuple[Polynomial, ...], bool], Polynomial]) -> bool:
        """Whether some arm of a branch could begin."""
        for arm in node.arms:
            first = arm[0] if arm else None
            if not isinstance(first, SymbolicOperation):
                return True
            key = first.stream, first.index
            room = self.depths[key] - self.fill[key] if first.put else self.fill[key]
            if self.domain.at_least(room, 1):
                return True
        return False

    def _settle(self, stack: list[_SymbolicPlace]) -> str:
        """At the end of a body begin the next iteration, or leave loops that have ended."""
        while stack and stack[-1].index == len(stack[-1].body):
            frame = stack[-1]
            frame.done = frame.done + 1
            if self.domain.at_least(frame.times, frame.done + 1):
                frame.index = 0
                return "back"
            stack.pop()
        return "go on"

    # -- induction ----------------------------------------------------------------------------------------------------

    def _repeat(self, before: Sequence[Polynomial], now: list[Polynomial], moves: int) -> bool:
        """Try to repeat what has happened between two states with the same places; return whether it is done."""
        step = [b - a for a, b in zip(before, now, strict=True)]
        times = self._times(step, now)
        if times is None:
            return False
        for _ in range(4):
            if not self.domain.at_least(times, 2):
                return False
            name = self.domain.fresh()
            try:
                with self.domain.bound(name, times) as k:
                    other = self._copy()
                    other._set([form + change * k for form, change in zip(now, step, strict=True)])
                    goal = [form + change * (k + 1) for form, change in zip(now, step, strict=True)]
                    if not other._run((self._place(), goal), 4 * moves + 40):
                        return False
            except SplitIndex as split:
                if split.name != name:
                    raise
                times = split.at
                continue
            except SplitRests as split:
                if split.name != name:
                    raise
                return False
            except Undecided:
                return False
            self._set([form + change * times for form, change in zip(now, step, strict=True)])
            return True
        return False

    def _times(self, step: Sequence[Polynomial], now: Sequence[Polynomial]) -> Polynomial | None:
        """Guess how often a step can be repeated: until the first loop ends, or a stream runs full or empty."""
        limits: list[Polynomial] = []
        frames = sum(map(len, self.stacks))
        for k in range(frames):
            rate = (step[2 * k + 1] - step[2 * k]).number
            if rate is None or rate < 0:
                return None
            if rate:
                limits.append(self.domain.floor(now[2 * k] - now[2 * k + 1] - 1, Polynomial.of(rate))[0])
        for key, change, fill in zip(self.fill, step[2 * frames :], now[2 * frames :], strict=True):
            rate = change.number
            if rate:
                room = self.depths[key] - fill if rate > 0 else fill
                limits.append(self.domain.floor(room, Polynomial.of(abs(rate)))[0])
        best: Polynomial | None = None
        for limit in limits:
            if best is None or not self.domain.at_least(limit, best):
                best = limit
        return best
