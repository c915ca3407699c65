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

A beat takes all its tokens and slots at once, or none. So it can wait for ever where its operations, one after another,
would not: it waits for a second token and meanwhile does not take the first one, for whose slot the writer of the
second waits. Where that happens, and only there, the operations of the beat are done one after another.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from ..isa.overlays.tasks.tree import last_cycles
from .tree import Beat, Body, Choice, FixedLoop, Needs, Node, Nodes, Op, Region, total

MOVES = 1_000_000
"""Limit of moves of instances in one check. A move takes an instance as far as it goes before it waits."""

STATES = 20_000
"""Limit of states at which a branch on data stands and each of its arms is tried."""

LOOKED = MOVES // 20
"""Moves of a run after which it is estimated how many it would take."""

REMEMBERED = 4096
"""How many states are remembered in the search for a period."""


class Unending(Exception):
    """A run takes more than `MOVES` moves or `STATES` states, or would take more: the first `LOOKED` moves did not
    repeat themselves, and moved too few of its tokens."""


class Effort:
    """The moves that all runs of one check may make together; a move is a step of an instance. moves: how many are
    left."""

    def __init__(self, moves: int = MOVES) -> None:
        self.moves = moves

    def spend(self, moves: int) -> None:
        """Count moves. Raises `Unending` if more were made than there were."""
        self.moves -= moves
        if self.moves < 0:
            raise Unending


@dataclass(frozen=True)
class InstanceWait:
    """An instance that waits for ever. instance: its number in the region. op: the operation that it waits to do. used:
    the tokens on the stream of that operation. depth: of that stream, in elements. node: the operation, or the beat
    that it is part of. held: all operations of the beat that cannot be done."""

    instance: int
    op: Op
    used: int
    depth: int
    node: Op | Beat
    held: tuple[Op, ...]


@dataclass(frozen=True)
class RunEnd:
    """How a run ends. waits: the instances that wait for ever; () if all instances end. left: the tokens that are left
    on each stream, by its number. by_data: whether the run took one arm of a branch on data, so that other runs may end
    otherwise."""

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
    """A run of the bodies of a program's instances, without time.

    bodies: one for each instance. depths: of every stream that has ends, in elements, by its number. packing: how many
    elements a stream moves together, by its number, for those that move several; the reader sees them once all are put.
    effort: the moves that it may make; None for a new `Effort`."""

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
        """Run; return the first way to end in which an instance waits for ever or tokens are left, or, if there is
        none, a way in which all is well. Raises `Unending` if it takes too many moves or states."""
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


# -- circles ----------------------------------------------------------------------------------------------------------


def bridges(ends: Mapping[int, tuple[int, int]]) -> set[int]:
    """Return the numbers of the streams that are bridges: no circle of instances and streams, in whichever direction,
    goes over them. ends: the numbers of the two instances of each stream, by its number."""
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
    """Return bodies without the operations on some streams. streams: their numbers. nodes: makes the new nodes."""
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


# -- beats ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """Which beats fire at once. bodies: of all instances, in order, with the other beats divided into operations.
    apart: the beats that were divided. live: whether every outcome of the data runs to its end."""

    bodies: tuple[Body, ...]
    apart: tuple[Beat, ...]
    live: bool


def stream_depths(region: Region) -> tuple[dict[int, int], dict[int, int]]:
    """Return two mappings by the number of each stream that has ends: its depth, and how many elements it moves
    together, both in elements."""
    ends = sorted({s for instance in region.instances for node in instance.body for s, _, _ in node.needs})
    declared = {s: region.stream(s)[0] for s in ends}
    return {s: decl.depth for s, decl in declared.items()}, {s: decl.packing for s, decl in declared.items()}


def fire_together(bodies: Sequence[Body], depths: Mapping[int, int], packing: Mapping[int, int]) -> Together:
    """Divide the beats that cannot fire at once with these depths, until every instance ends.

    bodies: of beats. depths, packing: as for `BodyRun`. All instances run, without time. If they wait for ever, each
    beat whose first operation can be done, while another one of it cannot, is a candidate. Instances are grouped by who
    waits for whom; in each group that waits for no other group, the candidates are divided, and the run begins anew. If
    such a group has no candidate, the program waits for ever even with single operations; then the result is not
    `live`. There are at most as many runs as beats. Raises `Unending` if a run takes too many moves or states."""
    now = tuple(bodies)
    writers: dict[int, int] = {}
    readers: dict[int, int] = {}
    for k, body in enumerate(bodies):
        for s, put, _ in total(body)[0]:
            (writers if put else readers)[s] = k
    apart: list[Beat] = []
    while True:
        waits = BodyRun(now, depths, packing).outcome().waits
        peers = {w.instance: [(readers if op.put else writers)[op.stream] for op in w.held] for w in waits}
        closed = _closed_groups(peers)
        found: list[Beat] = []
        for wait in waits:
            node = wait.node
            if wait.instance in closed and isinstance(node, Beat) and node.ops[0] not in wait.held:
                found += [node] if node not in found else []
        if not found:
            return Together(now, tuple(apart), not waits)
        apart += found
        take = _Taker(found)
        now = tuple(take.body(body) for body in now)


def _closed_groups(peers: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the members of groups that reach each other, and nobody else, along `peers`."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on: set[int] = set()
    closed: set[int] = set()
    for root in peers:
        if root in index:
            continue
        walk = [(root, iter(peers[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on.add(root)
        while walk:
            k, rest = walk[-1]
            for peer in rest:
                if peer not in peers:
                    continue
                if peer not in index:
                    index[peer] = low[peer] = len(index)
                    stack.append(peer)
                    on.add(peer)
                    walk.append((peer, iter(peers[peer])))
                    break
                if peer in on:
                    low[k] = min(low[k], index[peer])
            else:
                walk.pop()
                if walk:
                    low[walk[-1][0]] = min(low[walk[-1][0]], low[k])
                if low[k] == index[k]:
                    group = set(stack[stack.index(k) :])
                    del stack[stack.index(k) :]
                    on -= group
                    if all(peer in group for member in group for peer in peers[member]):
                        closed |= group
    return closed


class _Taker:
    """Takes beats apart: one operation after another, each in one cycle, the last one in what is left of the beat's
    cycles, and one at least."""

    def __init__(self, beats: Sequence[Beat]) -> None:
        self._nodes = Nodes()
        self._made: dict[Node, Body] = {}
        for beat in beats:
            *others, last = beat.ops
            alone = [self._nodes.beat((op,), 1, op.place) for op in others]
            rest = last_cycles(beat.cycles, len(others))
            self._made[beat] = (*alone, self._nodes.beat((last,), rest, last.place))

    def body(self, body: Body) -> Body:
        """Return a body with these beats taken apart; without any it is the same object."""
        made = [self._node(node) for node in body]
        if all(new == (node,) for new, node in zip(made, body, strict=True)):
            return body
        return tuple(node for new in made for node in new)

    def _node(self, node: Node) -> Body:
        made = self._made.get(node)
        if made is None:
            made = (node,)
            if isinstance(node, FixedLoop):
                body = self.body(node.body)
                made = made if body is node.body else self._nodes.repeat(node.times, body)
            elif isinstance(node, Choice):
                arms = [self.body(arm) for arm in node.arms]
                if any(arm is not old for arm, old in zip(arms, node.arms, strict=True)):
                    made = self._nodes.choice(arms, node.place)
            self._made[node] = made
        return made
