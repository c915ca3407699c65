"""Runs all task instances together, without data and time: who can end, and who waits for whom for ever.

A put waits while its stream is full, a get while it is empty. With one writer and one reader for each stream the order
in which instances move does not change the outcome, so one order is run. Loops are not walked token by token: whole
iterations are taken at once where tokens and room suffice, and when all instances have come back to where they were,
but for the counters of their loops, that period is repeated as often as the counters allow.

A branch on data is taken as a whole where all its tokens are there: its arms have equal counts. Only where it cannot
be, and nothing else moves, is each arm tried.

An instance that waits on a stream waits for the instance at its other end. So a cycle of waits is a circle in the graph
of instances and streams, whichever way the streams go. A stream on no circle, a bridge, is in no cycle of waits; where
puts and gets are equal, an instance that waits for ever waits on a cycle in the end. The instances on circles run alike
up to such a cycle if bridges never make them wait. So bridges may be left out to find it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from .tree import Beat, Body, Choice, FixedLoop, Needs, Node, Nodes, Op, total

MOVES = 1_000_000
"""Limit of moves of instances in one check. A move takes an instance as far as it goes before it waits."""

STATES = 20_000
"""Limit of states at which a branch on data stands and each of its arms is tried."""

LOOKED = MOVES // 20
"""Moves of a run after which it is estimated how many it would take."""

REMEMBERED = 4096
"""How many states are remembered in the search for a period."""


class Unending(Exception):
    """A run exceeds `MOVES` or `STATES`, or would: if no period was found in the first `LOOKED` moves, and these passed
    too few of its tokens."""


class Effort:
    """How much all runs of one check may do. moves: left of `MOVES`, or of fewer."""

    def __init__(self, moves: int = MOVES) -> None:
        self.moves = moves

    def spend(self, moves: int) -> None:
        """Count moves. Raises `Unending`."""
        self.moves -= moves
        if self.moves < 0:
            raise Unending


@dataclass(frozen=True)
class InstanceWait:
    """An instance that waits for ever at `op` on a stream with `used` tokens of `depth`.

    node: the operation, or the beat that it is part of. held: all operations of the beat that cannot be done.
    """

    instance: int
    op: Op
    used: int
    depth: int
    node: Op | Beat
    held: tuple[Op, ...]


@dataclass(frozen=True)
class RunEnd:
    """How a run ends. waits: empty if all instances end. left: tokens left on streams at the end. by_data: a branch on
    data was taken in one arm before, so that other runs may end otherwise."""

    waits: tuple[InstanceWait, ...]
    left: Mapping[int, int]
    by_data: bool


class _BodyPlace:
    """A place in a body. index: of the next node. left: iterations left, this one included."""

    __slots__ = ("body", "index", "left")

    def __init__(self, body: Body, index: int = 0, left: int = 1) -> None:
        self.body, self.index, self.left = body, index, left


class _RunState:
    """Places of all instances and tokens on all streams. partial: elements put that fill no transfer yet."""

    def __init__(self, stacks: list[list[_BodyPlace]], fill: dict[int, int], partial: dict[int, int]) -> None:
        self.stacks, self.fill, self.partial = stacks, fill, partial

    def copy(self) -> _RunState:
        stacks = [[_BodyPlace(f.body, f.index, f.left) for f in stack] for stack in self.stacks]
        return _RunState(stacks, dict(self.fill), dict(self.partial))

    def key(self, free: int | None) -> object:
        """What decides how the run goes on. free: the depth of the loop in each instance (1 the outermost, -1 the
        innermost) whose counter is left out; None for none."""
        places: list[object] = []
        for stack in self.stacks:
            at = -1 if free is None or len(stack) < 2 else free % len(stack)
            places.append(tuple((id(f.body), f.index, 0 if k == at else f.left) for k, f in enumerate(stack)))
        return tuple(places), tuple(self.fill.values()), tuple(self.partial.values())


class BodyRun:
    """A run of bodies. depths: of every stream that has ends, in elements. packing: elements of a transfer of those
    streams that move more than one; the reader sees a transfer once it is full. effort: what it may do; a new one
    unless stated."""

    def __init__(
        self,
        bodies: Sequence[Body],
        depths: Mapping[int, int],
        packing: Mapping[int, int],
        effort: Effort | None = None,
    ) -> None:
        self.bodies, self.effort = bodies, effort or Effort()
        self.depths = dict(depths)
        self.packing = {s: p for s, p in packing.items() if p > 1}
        self.rounds = self._moves = self._passed = 0
        self._tokens = sum(n for body in bodies for _, put, n in total(body)[0] if put)
        self._ends: dict[int, list[int]] = {s: [] for s in depths}
        for k, body in enumerate(bodies):
            for s in {s for node in body for s, _, _ in node.needs}:
                self._ends[s].append(k)

    def outcome(self) -> RunEnd:
        """Run; return the first bad outcome, or a good one if there is none. Raises `Unending`."""
        stacks = [[_BodyPlace(body)] if body else [] for body in self.bodies]
        todo = [_RunState(stacks, dict.fromkeys(self.depths, 0), dict.fromkeys(self.packing, 0))]
        seen: set[object] = set()
        while todo:
            state = todo.pop()
            self._advance(state)
            branches = (k for k, stack in enumerate(state.stacks) if stack and isinstance(_next(stack), Choice))
            k = next(branches, None)
            if k is None:
                left = {s: n for s, n in state.fill.items() if n}
                waits = self._waits(state)
                if waits or left:
                    return RunEnd(waits, left, bool(seen))
                continue
            key = state.key(None)
            if key in seen:
                continue
            seen.add(key)
            if len(seen) > STATES:
                raise Unending
            branch = _next(state.stacks[k])
            assert isinstance(branch, Choice)
            for arm in reversed(branch.arms):
                other = state.copy()
                stack = other.stacks[k]
                stack[-1].index += 1
                if arm:
                    stack.append(_BodyPlace(arm))
                else:
                    self._settle(other, stack, set())
                todo.append(other)
        return RunEnd((), {}, bool(seen))

    # -- moving -------------------------------------------------------------------------------------------------------

    def _advance(self, state: _RunState) -> None:
        """Move every instance as far as it goes."""
        moved = set(range(len(state.stacks)))
        memory: tuple[dict[object, list[int]], dict[object, list[int]]] = {}, {}
        while moved:
            self.rounds += 1
            now, moved = sorted(moved), set[int]()
            # To look for a period takes time for all instances, also for those that do not move.
            moves = len(now) + len(state.stacks) // 8
            self.effort.spend(moves)
            self._look(moves)
            for k in now:
                if state.stacks[k]:
                    for s in self._move(state, state.stacks[k]):
                        moved.update(self._ends[s])
            if moved and self.rounds > 2:
                _skip(state, memory[0], -1)
                _skip(state, memory[1], 1)

    def _look(self, moves: int) -> None:
        """Count moves; after `LOOKED` of them, raise `Unending` if the rest would take more than `MOVES`."""
        before, self._moves = self._moves, self._moves + moves
        if before < LOOKED <= self._moves and self._passed * MOVES < self._tokens * self._moves:
            raise Unending

    def _room(self, state: _RunState, needs: Needs, most: int) -> int:
        """How many times tokens and room suffice for `needs` now, at most `most`."""
        for s, put, n in needs:
            free = self.depths[s] - state.fill[s] if put else state.fill[s] - state.partial.get(s, 0)
            if free < n:
                return 0
            most = min(most, free // n)
        return most

    def _take(self, state: _RunState, needs: Needs, times: int, touched: set[int]) -> None:
        for s, put, n in needs:
            state.fill[s] += n * times if put else -n * times
            self._passed += n * times if put else 0
            if put and s in state.partial:
                state.partial[s] = (state.partial[s] + n * times) % self.packing[s]
            touched.add(s)

    def _move(self, state: _RunState, stack: list[_BodyPlace]) -> set[int]:
        """Move one instance until it waits or ends; return the streams whose tokens it has changed."""
        touched: set[int] = set()
        while stack:
            frame = stack[-1]
            node = frame.body[frame.index]
            if isinstance(node, FixedLoop):
                times = self._room(state, node.once, node.times) if node.even else 0
                if times:
                    self._take(state, node.once, times, touched)
                frame.index += 1
                if times < node.times:
                    stack.append(_BodyPlace(node.body, 0, node.times - times))
                    continue
            elif node.even and self._room(state, node.needs, 1):
                self._take(state, node.needs, 1, touched)
                frame.index += 1
            else:
                break
            self._settle(state, stack, touched)
        return touched

    def _settle(self, state: _RunState, stack: list[_BodyPlace], touched: set[int]) -> None:
        """At the end of a body begin the next iteration, after as many whole ones as can be taken at once; leave loops
        that have ended."""
        while stack and stack[-1].index == len(stack[-1].body):
            frame = stack[-1]
            frame.left -= 1
            frame.index = 0
            if frame.left > 1 or (frame.left and len(stack) > 1):
                needs, even = total(frame.body)
                times = self._room(state, needs, frame.left) if even else 0
                if times:
                    self._take(state, needs, times, touched)
                    frame.left -= times
            if frame.left:
                return
            stack.pop()

    def _waits(self, state: _RunState) -> tuple[InstanceWait, ...]:
        waits = []
        for k, stack in enumerate(state.stacks):
            if stack:
                node = _next(stack)
                assert isinstance(node, Op | Beat)
                ops = node.ops if isinstance(node, Beat) else (node,)
                held = tuple(op for op in ops if not self._room(state, op.needs, 1))
                waits.append(
                    InstanceWait(k, held[0], state.fill[held[0].stream], self.depths[held[0].stream], node, held)
                )
        return tuple(waits)


def _next(stack: list[_BodyPlace]) -> Node:
    return stack[-1].body[stack[-1].index]


def _skip(state: _RunState, memory: dict[object, list[int]], free: int) -> None:
    """If all instances are where they were before, but for the counters of the loops at depth `free`, repeat what has
    happened since as often as all counters allow."""
    loops = [stack[free % len(stack)] if len(stack) > 1 else None for stack in state.stacks]
    key = state.key(free)
    now = [0 if loop is None else loop.left for loop in loops]
    before = memory.get(key)
    if before is None:
        if len(memory) >= REMEMBERED:
            memory.clear()
        memory[key] = now
        return
    steps = [b - n for b, n in zip(before, now, strict=True)]
    times = min(((n - 1) // step for n, step in zip(now, steps, strict=True) if step > 0), default=0)
    for loop, step in zip(loops, steps, strict=True):
        if loop is not None and times > 0:
            loop.left -= times * step


def bridges(ends: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the streams that are on no circle. ends: stream -> its two instances."""
    links: dict[int, list[tuple[int, int]]] = {}
    for stream, (a, b) in ends.items():
        links.setdefault(a, []).append((b, stream))
        links.setdefault(b, []).append((a, stream))
    found: set[int] = set()
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    for root in links:
        if root in number:
            continue
        number[root] = lowest[root] = len(number)
        path = [(root, -1, iter(links[root]))]
        while path:
            node, arrived, rest = path[-1]
            for other, stream in rest:
                if stream == arrived:
                    continue
                if other in number:
                    lowest[node] = min(lowest[node], number[other])
                    continue
                number[other] = lowest[other] = len(number)
                path.append((other, stream, iter(links[other])))
                break
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                    if lowest[node] > number[above]:
                        found.add(arrived)
    return found


def without(bodies: Sequence[Body], streams: Container[int], nodes: Nodes) -> list[Body]:
    """Return bodies without the operations on some streams."""
    done: dict[Node, Body] = {}

    def left(node: Node) -> Body:
        known = done.get(node)
        if known is None:
            if all(stream not in streams for stream, _, _ in node.needs):
                known = (node,)
            elif isinstance(node, FixedLoop):
                known = nodes.repeat(node.times, below(node.body))
            elif isinstance(node, Choice):
                known = nodes.choice([below(arm) for arm in node.arms], node.place)
            elif isinstance(node, Beat):
                ops = tuple(op for op in node.ops if op.stream not in streams)
                known = (nodes.beat(ops, node.cycles, node.place),) if ops else ()
            else:
                assert isinstance(node, Op)
                known = ()
            done[node] = known
        return known

    def below(body: Body) -> Body:
        return tuple(part for node in body for part in left(node))

    return [below(body) for body in bodies]
