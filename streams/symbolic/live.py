"""Proofs that no instance waits for ever, for every size.

All rules take a network whose streams are empty at the beginning and whose puts and gets are equal in number. Who waits
for ever then waits for another one that waits, so there is a cycle of waits, each on a stream of its own. The rules:

*Parts.* A cycle of waits passes no stream that lies on no cycle of the undirected graph of streams. So the parts that
such streams join (its biconnected components) are proved one by one, each with its own operations alone. A stream by
itself has no cycle: both its ends cannot wait for it.

*One after the other.* If streams have a direction without cycles, and each has room for all its tokens, instances can
run one after the other. In a grid of symbolic size there is no cycle if every stream leads to an instance of a greater
sum of coordinates, each taken with a sign; or to another group, in an order of the groups.

*Rounds.* If all bodies are loops with the same trips, and one iteration leaves every stream empty, it is enough to
prove one iteration: one that stands for all, with its number as an index of the domain.

*Sections.* If bodies can be cut so that the first parts leave every stream empty, both sections are proved apart.

*Run.* A fixed number of instances is run for all sizes at once (`run`); without sizes, by the ordinary run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from ..run import BodyRun, Unending
from ..tree import Body as PlainBody
from ..tree import Nodes
from .domain import Domain, Undecided, at_line, form_of
from .ends import Cell, Wrong, balanced, cells, restricted, tokens
from .forests import is_forest
from .graphs import components, knots
from .polynomial import ONE, ZERO, Polynomial
from .reading import Ranges
from .run import Channel, Stuck, SymbolicRun
from .tree import Body, Branch, InstanceGroup, Item, Loop, SymbolicOperation, SymbolicProgram, replaced, steps_of

UNROLLED = 4096
"""Limit of the operations of a network that is run as it is."""

NO_CYCLE = "a stream on no cycle of streams makes nobody wait for ever"

Bodies = dict[int, Body]
"""The body of each instance, or group."""


class Liveness:
    """Proofs that the instances of one program end. domain: of the sizes. The attribute `used` has the rules that were
    needed, as sentences."""

    def __init__(self, program: SymbolicProgram, domain: Domain) -> None:
        self.program, self.domain = program, domain
        self.used: dict[str, None] = {}

    def prove(self, groups: Sequence[InstanceGroup], found: Sequence[Cell]) -> None:
        """Prove that every instance ends. groups: of the instances. found: the cells of their streams. Raises `Stuck`
        if instances wait for each other for ever whatever the sizes are, `Undecided` if no rule applies, and otherwise
        as `Domain.at_least`."""
        bodies = {k: group.body for k, group in enumerate(groups) if group.body}
        lines = [step.place.line for body in bodies.values() for step in steps_of(body)]
        with at_line(min(lines, default=1)):
            if all(not groups[k].axes for k in bodies) and all(not cell.bound for cell in found):
                self._finite(bodies)
            else:
                self._grids(groups, bodies, found)

    # -- a fixed number of instances ----------------------------------------------------------------------------------

    def _finite(self, bodies: Bodies) -> None:
        for part in components(_edges(bodies)):
            if len(part) > 1:
                self._part({k: body for k in bodies if (body := _only(bodies[k], part))})
            else:
                self.used[NO_CYCLE] = None

    def _part(self, bodies: Bodies) -> None:
        with at_line(min(step.place.line for body in bodies.values() for step in steps_of(body))):
            self._prove_part(bodies)

    def _prove_part(self, bodies: Bodies) -> None:
        if self._one_after_the_other(bodies):
            return
        plain = self._plain(bodies)
        if plain is not None:
            self._run_plain(*plain)
            return
        for rule in (self._rounds, self._sections):
            try:
                if rule(bodies):
                    return
            except (Stuck, Undecided):
                continue
        self._run(bodies)

    def _depth(self, stream: str) -> Polynomial:
        return form_of(self.program.streams[stream].depth)

    def _one_after_the_other(self, bodies: Bodies) -> bool:
        edges = _edges(bodies)
        order = dict.fromkeys(bodies, 0)
        for _ in range(len(order) + 1):
            late = {b: order[a] + 1 for a, b in edges.values() if order[b] <= order[a]}
            if not late:
                break
            order.update(late)
        else:
            return False
        for body in bodies.values():
            for (stream, _, put), count in tokens(body).items():
                if put and not self.domain.proves(self._depth(stream) - count):
                    return False
        self.used["instances can run one after the other in the direction of the streams"] = None
        return True

    def _run(self, bodies: Bodies) -> None:
        channels: dict[Channel, Polynomial] = {}
        for step in (step for body in bodies.values() for step in steps_of(body)):
            if self.program.streams[step.stream].packing > 1:
                line = step.place.line
                raise Undecided(f"line {line}: {step.stream} moves several elements at a time, on a cycle of streams")
            channels[step.stream, step.index] = self._depth(step.stream)
        SymbolicRun(self.domain, list(bodies.values()), channels).finish()
        self.used["the period of the run repeats until its loops end, by induction"] = None

    def _plain(self, bodies: Bodies) -> tuple[list[PlainBody], dict[int, int], dict[int, int]] | None:
        """Return the network as the ordinary run takes it, if no size is left in it, otherwise None."""
        nodes, numbers = Nodes(), dict[Channel, int]()
        left = [UNROLLED]

        def plain(body: Body, env: Mapping[str, int]) -> PlainBody | None:
            out: list[object] = []
            for node in body:
                left[0] -= 1
                if left[0] < 0:
                    return None
                made: PlainBody | None
                if isinstance(node, SymbolicOperation):
                    number = numbers.setdefault((node.stream, node.index), len(numbers))
                    made = (nodes.op(number, node.put, node.place),)
                elif isinstance(node, Loop):
                    times = node.times.put(env).number
                    if times is None:
                        return None
                    if _depends(node.body, node.name):
                        below = []
                        for k in range(min(times, left[0] + 1)):
                            below.append(plain(node.body, {**env, node.name: k}))
                            if below[-1] is None:
                                return None
                        made = tuple(n for one in below for n in one or ())
                    else:
                        once = plain(node.body, env)
                        made = None if once is None else nodes.repeat(times, once)
                else:
                    arms = [plain(arm, env) for arm in node.arms]
                    made = None if None in arms else nodes.choice([arm or () for arm in arms], node.place)
                if made is None:
                    return None
                out += made
            return tuple(out)  # type: ignore[arg-type]

        made = [plain(body, {}) for body in bodies.values()]
        if any(body is None for body in made):
            return None
        counts: dict[Channel, Polynomial] = {}
        for body in bodies.values():
            for (stream, index, put), count in tokens(body).items():
                if put:
                    counts[stream, index] = count
        depths: dict[int, int] = {}
        packing: dict[int, int] = {}
        for (stream, index), number in numbers.items():
            depth, most = self._depth(stream), counts[stream, index]
            known = depth.number
            if known is None:
                if not self.domain.at_least(depth, most):
                    return None
                known = most.number
            if known is None:
                return None
            depths[number], packing[number] = known, self.program.streams[stream].packing
        return [body or () for body in made], depths, packing

    def _run_plain(self, bodies: list[PlainBody], depths: dict[int, int], packing: dict[int, int]) -> None:
        try:
            outcome = BodyRun(bodies, depths, packing).outcome()
        except Unending:
            raise Undecided("a part of the program without sizes is too large to be run before the run") from None
        if outcome.waits or outcome.left:
            raise Stuck
        self.used["what is left without sizes was run, and ends"] = None

    # -- rounds and sections ------------------------------------------------------------------------------------------

    def _rounds(self, bodies: Bodies) -> bool:
        times = _common(bodies)
        if times is None:
            return False

        def one(index: Polynomial) -> None:
            once = _iteration(bodies, times, index, self.domain)
            if not self._even(once):
                raise Undecided("an iteration leaves tokens on a stream")
            self._finite(once)

        self._each(times, one)
        self.used["every iteration of the loops leaves all streams empty, and ends"] = None
        return True

    def _each(self, times: Polynomial, action: Callable[[Polynomial], None]) -> None:
        """Prove something for an index that stands for all below `times`."""
        if times == ONE:
            action(ZERO)
            return
        ranges = Ranges(self.domain, "a loop")
        ranges.begin(times)
        for first, count, stride in ranges:
            if count == ONE:
                for k in range(stride):
                    action(first + k)
                continue
            name = self.domain.fresh()

            def whole(index: Polynomial, stride: int = stride) -> bool:
                for k in range(stride):
                    action(index + k)
                return True

            ranges.attempt((first, count, stride), name, whole, lambda: None)

    def _even(self, bodies: Bodies) -> bool:
        """Whether every stream gets as many tokens as are taken from it, in whole transfers."""
        counts: dict[Channel, Polynomial] = {}
        for body in bodies.values():
            for (stream, index, put), count in tokens(body).items():
                packing = self.program.streams[stream].packing
                if put and packing > 1:
                    number = count.number
                    if number is None or number % packing:
                        return False
                counts[stream, index] = counts.get((stream, index), ZERO) + (count if put else -count)
        return not any(count.terms for count in counts.values())

    def _sections(self, bodies: Bodies) -> bool:
        for start in bodies:
            length = self._first_section(bodies, start)
            if length is not None and any(length[k] < len(body) for k, body in bodies.items()):
                self._finite({k: body[: length[k]] for k, body in bodies.items() if length[k]})
                self._finite({k: body[length[k] :] for k, body in bodies.items() if length[k] < len(body)})
                self.used["sections of the tasks that leave all streams empty were proved one after the other"] = None
                return True
        return False

    def _first_section(self, bodies: Bodies, start: int) -> dict[int, int] | None:
        """How many statements of each body come first, so that all streams are empty, those of one instance first."""
        ends = _edges(bodies)
        length = dict.fromkeys(bodies, 0)
        length[start] = 1
        while True:
            section = {k: body[: length[k]] for k, body in bodies.items()}
            counts: dict[Channel, Polynomial] = {}
            for body in section.values():
                for (stream, index, put), count in tokens(body).items():
                    counts[stream, index] = counts.get((stream, index), ZERO) + (count if put else -count)
            open_ = [(key, count) for key, count in counts.items() if count.terms]
            if not open_:
                return length if self._even(section) else None
            key, count = open_[0]
            if self.domain.proves(count - 1):
                k = ends[key][1]
            elif self.domain.proves(-count - 1):
                k = ends[key][0]
            else:
                return None
            if length[k] == len(bodies[k]):
                return None
            length[k] += 1

    # -- grids of symbolic size ---------------------------------------------------------------------------------------

    def _grids(self, groups: Sequence[InstanceGroup], bodies: Bodies, found: Sequence[Cell]) -> None:
        ordered = self._ordered(groups, found)
        if ordered and all(self._room(cell) for cell in found):
            self.used["instances can run one after the other in the direction of the streams"] = None
            return
        if is_forest(groups, found, self._everywhere):
            self.used[NO_CYCLE] = None
            return
        times = _common(bodies, [name for group in groups for name, _ in group.axes])
        if times is not None:

            def one(index: Polynomial) -> None:
                once = restricted(groups, _iteration(bodies, times, index, self.domain))
                self._again(once)

            self._each(times, one)
            self.used["every iteration of the loops leaves all streams empty, and ends"] = None
            return
        for start in bodies:
            length = self._grid_section(groups, bodies, start)
            if length is not None and any(length[k] < len(body) for k, body in bodies.items()):
                self._again(restricted(groups, {k: body[: length[k]] for k, body in bodies.items()}))
                self._again(restricted(groups, {k: body[length[k] :] for k, body in bodies.items()}))
                self.used["sections of the tasks that leave all streams empty were proved one after the other"] = None
                return
        if ordered:
            self._decide_room(found)
        raise Undecided("the instances of a grid of symbolic size neither run in one direction nor in equal rounds")

    def _again(self, groups: Sequence[InstanceGroup]) -> None:
        found = cells(self.program, groups, self.domain)
        if not self._all_even(found):
            raise Undecided("an iteration leaves tokens on a stream")
        self.prove(groups, found)

    def _all_even(self, found: Sequence[Cell]) -> bool:
        try:
            balanced(found, self.domain)
        except Wrong:
            return False
        for cell in found:
            packing = self.program.streams[cell.stream].packing
            number = cell.writer.count.number if cell.writer else None
            if packing > 1 and (number is None or number % packing):
                return False
        return True

    def _room(self, cell: Cell) -> bool:
        assert cell.writer is not None
        room = self._depth(cell.stream) - cell.writer.count
        return self._everywhere(cell, room)

    def _decide_room(self, found: Sequence[Cell]) -> None:
        """Have the sizes cut where some of them leave room for all tokens of a stream, and others do not."""
        for cell in found:
            assert cell.writer is not None
            room = self._depth(cell.stream) - cell.writer.count
            if room.variables() <= set(self.domain.sizes):
                self.domain.at_least(room)

    def _everywhere(self, cell: Cell, form: Polynomial) -> bool:
        """Whether a form is at least 0 for all streams of a cell."""
        with self.domain.within(cell.bound):
            return self.domain.proves(form)

    def _ordered(self, groups: Sequence[InstanceGroup], found: Sequence[Cell]) -> bool:
        """Whether the direction of the streams has no cycle."""
        arcs: dict[int, set[int]] = {k: set() for k in range(len(groups))}
        for cell in found:
            assert cell.writer is not None
            assert cell.reader is not None
            arcs[cell.writer.group].add(cell.reader.group)
        for knot in knots(arcs):
            inside = [c for c in found if c.writer and c.reader and {c.writer.group, c.reader.group} <= knot]
            if inside and not self._directed(groups, inside):
                return False
        return True

    def _directed(self, groups: Sequence[InstanceGroup], found: Sequence[Cell]) -> bool:
        """Whether all streams lead to a greater sum of the coordinates, each with some sign or left out."""
        ends = [(cell, cell.writer, cell.reader) for cell in found]
        ranks = {len(end.tid) for _, a, b in ends for end in (a, b) if end is not None}
        if len(ranks) > 1:
            return False
        for signs in product((1, -1, 0), repeat=ranks.pop()):
            if all(
                self._everywhere(
                    cell, sum((s * (y - x) for s, x, y in zip(signs, a.tid, b.tid, strict=True)), ZERO) - 1
                )
                for cell, a, b in ends
                if a is not None and b is not None
            ):
                return True
        return False

    def _grid_section(self, groups: Sequence[InstanceGroup], bodies: Bodies, start: int) -> dict[int, int] | None:
        length = dict.fromkeys(bodies, 0)
        length[start] = 1
        while True:
            section = restricted(groups, {k: body[: length[k]] for k, body in bodies.items()})
            found = cells(self.program, section, self.domain)
            wanted: tuple[str, bool] | None = None
            for cell in found:
                put = cell.writer.count if cell.writer else ZERO
                got = cell.reader.count if cell.reader else ZERO
                if put != got:
                    if not cell.reader or self._everywhere(cell, put - got - 1):
                        wanted = cell.stream, False
                    elif not cell.writer or self._everywhere(cell, got - put - 1):
                        wanted = cell.stream, True
                    else:
                        return None
                    break
            if wanted is None:
                return length if self._all_even(found) else None
            advanced = False
            for k, body in bodies.items():
                rest = body[length[k] :]
                if any((step.stream, step.put) == wanted for step in steps_of(rest)):
                    length[k] += 1
                    advanced = True
            if not advanced:
                return None


def _edges(bodies: Bodies) -> dict[Channel, tuple[int, int]]:
    """Return the writer and the reader of each stream."""
    ends: dict[Channel, dict[bool, int]] = {}
    for k, body in bodies.items():
        for step in steps_of(body):
            ends.setdefault((step.stream, step.index), {})[step.put] = k
    return {key: (both[True], both[False]) for key, both in ends.items()}


def _only(body: Body, channels: set[Channel]) -> Body:
    """Return the operations of some streams alone."""
    out: list[Item] = []
    for node in body:
        if isinstance(node, SymbolicOperation):
            if (node.stream, node.index) in channels:
                out.append(node)
        elif isinstance(node, Loop):
            inner = _only(node.body, channels)
            if len(inner) == 1 and isinstance(inner[0], Loop) and not _depends(inner, node.name):
                below = inner[0]
                if not _depends(below.body, below.name) and not below.times.degree(node.name):
                    out.append(Loop(below.name, below.times * node.times, below.body))
                    continue
            if inner:
                out.append(Loop(node.name, node.times, inner))
        else:
            arms = tuple(_only(arm, channels) for arm in node.arms)
            if any(arms):
                out += arms[0] if all(arm == arms[0] for arm in arms) else (Branch(arms, node.place),)
    return tuple(out)


def _depends(body: Body, name: str) -> bool:
    """Whether a body depends on a variable."""
    for node in body:
        if isinstance(node, SymbolicOperation):
            if any(i.degree(name) for i in node.index):
                return True
        elif isinstance(node, Loop):
            if node.times.degree(name) or _depends(node.body, name):
                return True
        elif any(_depends(arm, name) for arm in node.arms):
            return True
    return False


def _common(bodies: Bodies, without: Sequence[str] = ()) -> Polynomial | None:
    """Return trips that divide those of all bodies, if each is one loop, otherwise None."""
    loops = [body[0] for body in bodies.values() if len(body) == 1 and isinstance(body[0], Loop)]
    if len(loops) < len(bodies) or not loops:
        return None
    for candidate in {loop.times: None for loop in loops}:
        if candidate == ONE or candidate.variables() & set(without):
            continue
        if all(loop.times.over(candidate) is not None for loop in loops):
            return candidate
    return None


def _iteration(bodies: Bodies, times: Polynomial, index: Polynomial, domain: Domain) -> Bodies:
    """Return one of `times` equal shares of the loops that the bodies are."""
    out: Bodies = {}
    for k, body in bodies.items():
        loop = body[0]
        assert isinstance(loop, Loop)
        share = loop.times.over(times)
        assert share is not None
        if share == ONE:
            out[k] = replaced(loop.body, {loop.name: index})
        else:
            name = domain.fresh()
            inner = replaced(loop.body, {loop.name: index * share + Polynomial.variable(name)})
            out[k] = (Loop(name, share, inner),)
    return out
