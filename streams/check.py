"""Checks a stream program before it runs: ends, types, counts, branches, cycles of waits, depths, futures.

The state of a program is that of all its task instances together. With static control the verdict is exact. A branch on
data must leave the same tokens in each arm, and each arm is tried. `source.CODES` lists the codes in the order of
causes; the first finding names the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .access_order.finding import race_findings
from .orders.converter import converter, parting
from .orders.order import Order
from .orders.shown import ShownOrder, squeezed
from .reader import read
from .run import MOVES, BodyRun, Effort, InstanceWait, RunEnd, Unending, bridges, without
from .source import ARMS_BY_DATA, ORDER, SourceFinding
from .syntax.nodes import COLLECTIVES
from .timing.bytecode import TooLong
from .timing.timed import EndlessWait, TimedProgram, TooManyTokens
from .tree import Beat, Choice, FixedLoop, Instance, Node, Nodes, Op, Region, StreamDecl, branches, total

FEW = MOVES // 5
"""Moves after which a program without branches on data goes on in compiled code."""
BEATS = 1 << 31
"""Limit of the operations that compiled runs of one check walk."""
NAMED = 8
"""How many streams a note about depths names."""
LIMITS = f"the check makes at most {MOVES} moves of task instances, and {BEATS} in compiled code"


@dataclass(frozen=True)
class Report:
    """The result of a check of `region`. findings: errors first, then warnings; among errors, causes come before what
    follows from them (the order of `source.CODES`)."""

    region: Region
    findings: tuple[SourceFinding, ...]

    @property
    def code(self) -> str:
        """The code of the first error (a key of `source.CODES`); "" if the program has no error."""
        return next((f.code for f in self.findings if not f.warning), "")

    def __str__(self) -> str:
        return "\n".join(self.region.source.render(f) for f in self.findings)


def check(text: str, file: str = "<program>", strict: bool = False, region: str | None = None) -> Report:
    """Check the text of a stream program.

    text: in the language of stream programs; it is not executed. file: the name of the file in findings. strict: makes
    it an error if only some paths of a task read a value that the task got. region: the name of one region function of
    the file, which is read with its defaults; None for the file itself. Mistakes become findings of the report; nothing
    is raised for them."""
    return report_on(read(text, file, region), strict)


def report_on(region: Region, strict: bool = False) -> Report:
    """Check a region that was read; return its findings, which are also added to its source. strict: as for `check`."""
    _Check(region).run()
    found = region.source.findings
    if strict:
        found = [replace(f, warning=f.warning and f.code != "unread") for f in found]
    return Report(region, tuple(sorted(found, key=lambda f: (f.warning, ORDER[f.code]))))


class _Check:
    def __init__(self, region: Region) -> None:
        self.region = region
        self.source = region.source
        self.exchanges = {stream.name: COLLECTIVES[c.what] for c in region.collectives for stream in c.arrays}
        self.puts: Ends = {}
        self.gets: Ends = {}
        self.at: dict[tuple[int, bool], Op] = {}
        self._ends_well: bool | None = None
        self._bodies = [instance.body for instance in region.instances]
        self._effort = Effort(FEW if not any(branches(body) for body in self._bodies) else MOVES)
        self._compiled: TimedProgram | None = None
        for k, instance in enumerate(region.instances):
            for node in instance.body:
                self._count(k, node)
        self._find_last()

    def run(self) -> None:
        """Add findings to the source, up to the first kind that makes the later ones meaningless."""
        if any(f.code in ("syntax", "limit", "unsupported", "assert") for f in self.source.findings):
            return
        self._ends()
        self._joins()
        if any(f.code in ("p2p", "index", "meta", "join") for f in self.source.findings):
            return
        self._unused()
        self._packing()
        if not self._counts() and not any(f.code == "pack" for f in self.source.findings):
            compare_orders(self.region, self.puts, self.gets)
            self._live()
        if not any(f.code != "unread" and not f.warning for f in self.source.findings):
            self.source.findings += race_findings(self.region)
        if {f.code for f in self.source.findings if not f.warning} == {"unread"}:
            self.source.findings[:] = map(_though_it_ends, self.source.findings)

    # -- counts -------------------------------------------------------------------------------------------------------

    def _count(self, k: int, node: Node) -> None:
        for stream, put, n in node.needs:
            ends = (self.puts if put else self.gets).setdefault(stream, {})
            ends[k] = ends.get(k, 0) + n

    def _find_last(self) -> None:
        """Find the last operation of each end of a stream."""
        seen: set[Node] = set()
        for instance in reversed(self.region.instances):
            todo = list(instance.body)
            while todo:
                node = todo.pop()
                if isinstance(node, Op):
                    self.at.setdefault((node.stream, node.put), node)
                elif node not in seen:
                    seen.add(node)
                    todo += node.body if isinstance(node, FixedLoop) else node.ops if isinstance(node, Beat) else ()
                    todo += [below for arm in reversed(node.arms) for below in arm] if isinstance(node, Choice) else ()

    def _name(self, stream: int) -> str:
        return self.region.stream(stream)[1]

    def _group(self, decl: StreamDecl) -> list[str]:
        """What to say of a stream if it belongs to a collective."""
        if decl.name not in self.exchanges:
            return []
        return [f"{self.exchanges[decl.name]} is complete when all instances that it joins have come to it"]

    def _task(self, k: int) -> str:
        return self.region.instances[k].name

    def _unused(self) -> None:
        used = self.puts.keys() | self.gets.keys()
        for decl in self.region.streams:
            if decl.name in self.exchanges or decl.buffer_of:
                continue
            idle = sum(s not in used for s in range(decl.first, decl.first + decl.size)) if decl.size < 1 << 16 else 0
            if idle:
                what = f"{decl.name} has no ends"
                if decl.shape:
                    what = f"{idle} stream{'s' * (idle > 1)} of {decl.name} {'have' if idle > 1 else 'has'} no ends"
                self.source.add("unused", what, decl.place, warning=True, subject=decl.name)

    def _ends(self) -> None:
        """One writer, one reader, and not the same."""
        for stream in sorted(self.puts.keys() | self.gets.keys()):
            name = self._name(stream)
            writers, readers = (sorted(ends.get(stream, {})) for ends in (self.puts, self.gets))
            for ends, what, put in ((readers, "consumers", False), (writers, "producers", True)):
                if len(ends) > 1:
                    names = [self._task(k) for k in ends]
                    listed = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) < 9 else f"{len(names)} instances"
                    place = self.at[stream, put].place
                    count = "two" if len(names) == 2 else str(len(names))
                    self.source.add("p2p", f"{name} has {count} {what}, {listed}", place, subject=name)
            if len(writers) == 1 and writers == readers:
                message = f"{name} has both ends in {self._task(writers[0])}"
                self.source.add("p2p", message, self.at[stream, False].place, subject=name)

    def _packing(self) -> None:
        for stream, ends in sorted(self.puts.items()):
            decl, name = self.region.stream(stream)
            count = sum(ends.values())
            if count % decl.packing:
                message = f"{name}: {count} elements are no whole number of transfers of {decl.packing}"
                note = f"the last {count % decl.packing} never leave"
                self.source.add("pack", message, self.at[stream, True].place, note, subject=name)

    def _counts(self) -> bool:
        """Compare puts and gets of every stream; return whether any differ."""
        wrong = False
        for stream in sorted(self.puts.keys() | self.gets.keys()):
            put, got = (sum(ends.get(stream, {}).values()) for ends in (self.puts, self.gets))
            if put == got:
                continue
            wrong = True
            decl, name = self.region.stream(stream)
            place = self.at[stream, put > got].place
            if put > got:
                whom = "; nobody gets from it" if not got else ""
                message = f"{_times(put - got, 'put')} more than gets on {name}: {put} put, {got} got{whom}"
                notes = [f"they are left on the stream at the end; its depth is {decl.depth}", *self._group(decl)]
                self.source.add("leak", message, place, *notes, subject=name)
            else:
                whom = "; nobody puts on it" if not put else ""
                reader = self._task(next(iter(self.gets[stream])))
                message = f"{_times(got - put, 'get')} more than puts on {name}: {put} put, {got} got{whom}"
                self.source.add("starved", message, place, f"{reader} waits for ever", *self._group(decl), subject=name)
        return wrong

    # -- branches -----------------------------------------------------------------------------------------------------

    def _joins(self) -> None:
        seen: set[Node] = set()
        for instance in self.region.instances:
            todo = list(instance.body)
            while todo:
                node = todo.pop()
                if node in seen or node.even:
                    continue
                seen.add(node)
                if isinstance(node, FixedLoop):
                    todo += node.body
                elif isinstance(node, Choice):
                    inner = [below for arm in node.arms for below in arm if not below.even]
                    todo += inner
                    if not inner:
                        self._join(instance, node)

    def _join(self, instance: Instance, node: Choice) -> None:
        a, b = ({(s, put): n for s, put, n in total(arm)[0]} for arm in node.arms)
        parts = []
        for stream, put in sorted(a.keys() | b.keys()):
            x, y = a.get((stream, put), 0), b.get((stream, put), 0)
            if x != y:
                parts.append(f"{'put' if put else 'get'} {self._name(stream)} {x} against {y}")
        message = f"{instance.name}: the arms leave different tokens: {', '.join(parts[:6])}"
        notes = ["puts and gets must not depend on data: move them out of the branch"]
        if self._fine():
            notes.append("every outcome of the data runs to its end; it is refused because the arms differ")
        notes.append(ARMS_BY_DATA)
        self.source.add("join", message, node.place, *notes, subject=instance.name)

    def _fine(self) -> bool:
        """Whether every outcome runs to its end and leaves nothing, as far as that can be tried."""
        if self._ends_well is None:
            self._ends_well = self._every_outcome_ends()
        return self._ends_well

    def _every_outcome_ends(self) -> bool:
        if any(f.uncounted or (f.code != "join" and not f.warning) for f in self.source.findings):
            return False
        try:
            outcome = self._outcome({})
        except Unending:
            return False
        return not outcome.waits and not outcome.left

    # -- waits --------------------------------------------------------------------------------------------------------

    def _outcome(self, deeper: Mapping[int, int]) -> RunEnd:
        """Run all instances. deeper: depths of some streams other than declared."""
        depths, packing = {}, {}
        for stream in sorted(self.puts.keys() | self.gets.keys()):
            decl = self.region.stream(stream)[0]
            depths[stream], packing[stream] = deeper.get(stream, decl.depth), decl.packing
        if self._compiled is None:
            try:
                return BodyRun(self._bodies, depths, packing, self._effort).outcome()
            except Unending:
                if any(branches(body) for body in self._bodies):
                    raise
        return self._run_compiled(depths, packing)

    def _run_compiled(self, depths: Mapping[int, int], packing: Mapping[int, int]) -> RunEnd:
        """Run a large program without branches on data, with the time that nobody asks for, in compiled code. The place
        of a wait is the last one of its stream. Raises `Unending`."""
        try:
            if self._compiled is None:
                self._compiled = TimedProgram(self._bodies, packing)
            if self._compiled.walked > BEATS:
                raise Unending
            found = self._compiled.run(depths)
        except (TooLong, TooManyTokens):
            raise Unending from None
        if not isinstance(found, EndlessWait):
            return RunEnd((), {}, False)
        waits = []
        for k, (stream, put) in sorted(found.waits.items()):
            op = self.at[stream, put]
            waits.append(InstanceWait(k, op, depths[stream] if put else 0, depths[stream], op, (op,)))
        return RunEnd(tuple(waits), {}, False)

    def _live(self) -> None:
        self._leave_bridges_out()
        try:
            outcome = self._outcome({})
            if outcome.waits:
                self._stuck(outcome)
        except Unending:
            message = "the program is too large to be run before the run: it is not known whether it ends"
            self.source.add("limit", message, None, LIMITS)

    def _leave_bridges_out(self) -> None:
        """Run only what can be in a cycle of waits. To be used where puts and gets of every stream are equal."""
        ends = {s: (next(iter(its)), next(iter(self.gets[s]))) for s, its in self.puts.items()}
        left_out = bridges(ends)
        self._bodies = without(self._bodies, left_out, Nodes())
        for stream in left_out:
            del self.puts[stream], self.gets[stream]

    def _stuck(self, outcome: RunEnd) -> None:
        """Report a cycle of waits, and the least depth that breaks it."""
        cycle = self._cycle(outcome.waits)
        text = "; ".join(self._wait(wait) for wait in cycle[:8])
        if len(cycle) > 8:
            text += f"; ... ({len(cycle)} in all)"
        notes = ["so it is for some outcomes of the data only"] if outcome.by_data else []
        wait = next((w for w in cycle if w.op.put), cycle[0])
        name = self._name(wait.op.stream)
        endless = {s: max(1, sum(ends.values())) for s, ends in self.puts.items()}
        if self._outcome(endless).waits:
            self.source.add("deadlock", f"a cycle of waits: {text}", wait.op.place, *notes, subject=name)
            return
        try:
            notes += self._least(outcome.waits, endless)
        except Unending:
            notes.append(f"the least depth is not known: {LIMITS}")
        self.source.add("depth", f"a cycle of waits: {text}", wait.op.place, *notes, subject=name)

    def _wait(self, wait: InstanceWait) -> str:
        what = "put" if wait.op.put else "get"
        return f"{self._task(wait.instance)} waits to {what} {self._name(wait.op.stream)} ({wait.used}/{wait.depth})"

    def _cycle(self, waits: Sequence[InstanceWait]) -> list[InstanceWait]:
        """Follow the waits from one instance to the next until one comes again."""
        of = {wait.instance: wait for wait in waits}
        path: list[int] = []
        k = waits[0].instance
        while k in of and k not in path:
            path.append(k)
            stream = of[k].op.stream
            k = next(iter((self.gets if of[k].op.put else self.puts)[stream]))
        return [of[i] for i in (path[path.index(k) :] if k in path else path)]

    def _least(self, waits: Sequence[InstanceWait], endless: Mapping[int, int]) -> list[str]:
        """Say for each full stream the least depth, with the others as declared, with which every outcome ends."""
        notes = []
        full = [wait.op.stream for wait in waits if wait.op.put]
        for stream in full[:NAMED]:
            decl, name = self.region.stream(stream)
            low, high = decl.depth // decl.packing, -(-endless[stream] // decl.packing)
            if self._outcome({stream: high * decl.packing}).waits:
                continue
            while high - low > 1:
                middle = (low + high) // 2
                if self._outcome({stream: middle * decl.packing}).waits:
                    low = middle
                else:
                    high = middle
            notes.append(f"depth {high * decl.packing} of {name} is the least with which it ends, others as declared")
        return notes or [self._together(full, endless)]

    def _together(self, full: Sequence[int], endless: Mapping[int, int]) -> str:
        """Name streams that break a cycle of waits if all of them are deeper. full: those that are full in it; with
        them deeper, others may be."""
        deeper = dict.fromkeys(full)
        while waits := self._outcome({s: endless[s] for s in deeper}).waits:
            deeper |= dict.fromkeys(wait.op.stream for wait in waits if wait.op.put)
        for stream in [*deeper] if len(deeper) <= NAMED else ():
            rest = [s for s in deeper if s != stream]
            if not self._outcome({s: endless[s] for s in rest}).waits:
                del deeper[stream]
        if len(deeper) > NAMED:
            return f"it takes {len(deeper)} deeper streams to break it; rsn depths finds their depths"
        return f"deeper streams together break it: {', '.join(map(self._name, deeper))}"


def _though_it_ends(finding: SourceFinding) -> SourceFinding:
    """A finding about a value that nobody reads, of a program that is refused for that alone."""
    if finding.code != "unread" or finding.warning:
        return finding
    return replace(finding, notes=(*finding.notes, "every outcome runs to its end; it is refused for the lost value"))


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count > 1 else ''}"


Ends = dict[int, dict[int, int]]
"""Stream -> instance -> tokens that it puts, or gets."""


# -- orders -----------------------------------------------------------------------------------------------------------


def compare_orders(region: Region, puts: Ends, gets: Ends) -> None:
    """Add a finding to `region.source` for each stream whose two ends, or an end and the type of the stream, show
    different orders of tokens. puts, gets: how many tokens each instance puts or gets, by the number of the stream and
    that of the instance. A stream with several instances at an end is not compared."""
    showing = {stream for instance in region.instances for stream, _ in instance.orders}
    for decl in region.streams:
        if decl.order is not None:
            showing |= {*range(decl.first, decl.first + decl.size)} & puts.keys() & gets.keys()
    for stream in sorted(showing & puts.keys() & gets.keys()):
        ends = [(region.instances[k], count) for side in (puts, gets) for k, count in side[stream].items()]
        if len(ends) == 2:
            _compare(region, stream, ends)


def _compare(region: Region, stream: int, ends: list[tuple[Instance, int]]) -> None:
    decl, name = region.stream(stream)
    count = ends[0][1]
    put, get = (_shown(instance, stream, side, count) for (instance, _), side in zip(ends, (True, False), strict=True))
    source, target = (instance.name for instance, _ in ends)
    if decl.order is not None:
        stated = squeezed(decl.order)
        if stated.tokens != count:
            message = f"{name} states an order of {decl.order.tokens} tokens, and {count} pass"
            region.source.add("order", message, decl.place, f"the order: {decl.order}", subject=decl.name)
        elif put is not None and (where := parting(put.order, stated, ("put", "stated"))):
            message = f"{source} puts {name} in another order than it states: {where}"
            _add(region, decl, message, put, (put.order, stated), [])
        elif get is not None and (where := parting(stated, get.order, ("stated", "got"))):
            message = f"{target} gets {name} in another order than it states: {where}"
            _add(region, decl, message, get, (stated, get.order), [])
    elif put is not None and get is not None and put.single == get.single and put.order.tensor == get.order.tensor:
        where = parting(put.order, get.order)
        if where:
            message = f"{target} gets {name} in another order than {source} puts it: {where}"
            line = region.source.lines[put.place.line - 1].strip()
            _add(region, decl, message, get, (put.order, get.order), [f"put in line {put.place.line}: {line}"])


def _shown(instance: Instance, stream: int, put: bool, count: int) -> ShownOrder | None:
    """What an end shows, if the statement that shows it makes all of its puts or gets."""
    shown = instance.orders.get((stream, put))
    return shown if shown is not None and shown.order.tokens == count else None


def _add(
    region: Region, decl: StreamDecl, message: str, end: ShownOrder, orders: tuple[Order, Order], notes: list[str]
) -> None:
    notes = [*notes, f"the orders: {orders[0]} and {orders[1]}"]
    if orders[0].tensor == orders[1].tensor:
        made = converter(*orders)
        assert made is not None
        shape = "x".join(map(str, made.buffer))
        notes.append(
            f"a converter between them holds {shape} elements of {made.put.dtype} twice: {made.ping_pong_bytes} bytes"
        )
    region.source.add("order", message, end.place, *notes, subject=decl.name)
