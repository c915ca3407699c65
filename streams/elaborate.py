"""Makes the operations of one task instance: static control is followed, branches on data keep both arms.

A loop is unrolled where its index decides what happens. Otherwise its body is read until an iteration leaves the
variables as it found them; all further ones are like it, however many there are.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from itertools import chain
from math import prod

from .expressions import EMPTY, RegionContext, WrittenBody, is_beat
from .source import TRIPS_BY_DATA, Refusal
from .stores import Paths, PathState
from .syntax import nodes as syn
from .syntax.control import Grid, Pieces, deciding, deciding_parts, leaves, nested, pieces
from .tree import Instance, TaskDecl
from .values import Data, Static, Value, compute, distribution_of, type_of

TRIPS = 1 << 40
"""Limit of the iterations of one loop."""

TRIPS_OF_TUPLES = 1 << 16
"""Limit of the iterations of a loop over `enumerate` or `zip`."""


class Exit(Enum):
    """How a block of statements ends: at its last statement (NONE), or by `continue`, `break` or `return`."""

    NONE = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3


class _EndsByData(Refusal):
    """Data decides whether a loop goes on."""


class Elaborator(Paths):
    """Reads the statements of a task instance and records its puts and gets.

    context, task, name, tid: the region, the task, the name of the instance, and its indices in the grid of the task.
    Attributes: deciding: the variables on which control flow or indices depend; all others are treated as data. alone:
    whether the next loop is the only statement of the loop around it. pipelined: whether the loop that was read last is
    a pipeline, in which an iteration begins in each clock cycle."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        found = context.decisive.get(task.body)
        if found is None:
            found = context.decisive.setdefault(task.body, deciding(task.body, context.streams.keys()))
        self.deciding = found
        self._loose = 0
        self.alone = self.pipelined = False

    def instance(self) -> Instance:
        """Read the body of the task; return the instance with its operations. Mistakes are added to the source as
        findings; then the `whole` of the instance is False."""
        whole = True
        try:
            for parameter in self.task.parameters:
                self.env[parameter.name] = self.shards[parameter.name] = self.shard(parameter)
            self.block(self.task.body.body)
            self.apart(self.task.body)
            self.end_beat()
        except Refusal as r:
            self.context.source.add(r.code, r.message, r.place, *r.notes, subject=self.name)
            whole = False
        except RecursionError:
            self.context.source.add("limit", "expressions or blocks are nested too deeply", self.task.place)
            whole = False
        if whole:
            self.unread(set(self.pending))
        shown = {end: order for end, order in self.shown.items() if order is not None}
        ops, beats = self.closed()
        return Instance(self.name, self.task, self.tid, ops, whole, frozenset(self.ran), shown, beats)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def block(self, statements: syn.Block, tail: syn.Block = ()) -> Exit:
        """Read statements up to the first that leaves the block; return how the block ends. tail: the statements behind
        the block, up to the end of the innermost loop around it, or of the task. Raises `Refusal` for anything that the
        language does not have, `RecursionError` for blocks that are nested too deeply."""
        k = 0
        while k < len(statements):
            statement = statements[k]
            self.context.step(statement)
            self.ran.add(statement.place[:2])
            if isinstance(statement, syn.Branching):
                how = self._if_statement(statement, (*statements[k + 1 :], *tail))
            elif isinstance(statement, syn.MetaChain):
                how = self._meta(statement, (*statements[k + 1 :], *tail))
            else:
                how = self._statement(statement)
            if how is not Exit.NONE:
                return how
            k += 1
        return Exit.NONE

    def _statement(self, statement: syn.StatementNode) -> Exit:
        assigned = statement if isinstance(statement, syn.Assignment) else None
        self.several = assigned is not None and (assigned.pairs is not None or len(assigned.targets) > 1)
        match statement:
            case syn.Evaluation(value=value):
                self.eval(value)
            case syn.Assignment():
                self._assign(statement)
            case syn.Declaration():
                made, exchanged = self.annotated(statement)
                # What collectives made is a new tile.
                self._bind(statement.target, made, None if exchanged else statement.value or statement.target)
            case syn.ForLoop():
                return self._for(statement)
            case syn.WhileLoop():
                return self._while(statement)
            case syn.Skip():
                pass
            case syn.Jump(how=how):
                if not self._loops:
                    raise Refusal("syntax", "break and continue stand in a loop", statement)
                return Exit.CONTINUE if how == "continue" else Exit.BREAK
            case syn.Returning():
                if statement.value is not None:
                    self.returned(statement.value)
                return Exit.RETURN
            case syn.Assertion():
                self.held(statement)
            case syn.TooDeep():
                raise RecursionError
            case _:
                self.fail(statement, f"a task has no statement of this kind ({statement.kind})")
        return Exit.NONE

    def _assign(self, node: syn.Assignment) -> None:
        if node.pairs is not None:
            values = [self.eval(part) for _, part in node.pairs]
            for value, (name, part) in zip(values, node.pairs, strict=True):
                self._bind(name, value, part)
            return
        target, source = node.targets[0], node.value
        if node.augmented and not isinstance(target, syn.Identifier):
            assert isinstance(source, syn.Infix)
            if not isinstance(target, syn.Subscript) or self._stream_of(target) is not None:
                self.data(source.right)
                self._bind(target, Data())
                return
        value = self.eval(source)
        for target in node.targets:
            self._bind(target, value, source)

    def _bind(self, target: syn.ExpressionNode, value: Value, source: syn.ExpressionNode | None = None) -> None:
        """Assign a value. source: the expression that it comes from, None for the index of a loop."""
        if isinstance(target, syn.Identifier):
            if target.name in self.context.streams:
                self.fail(target, f"{target.name} is a stream; it cannot be assigned")
            if isinstance(value, Static) and target.name not in self.deciding:
                dist = distribution_of(value, target.name in self.varying)
                if source is None or source.facts.names & self.env.keys():
                    dist = replace(dist, number=None)  # it may differ in the next iteration
                value = Data(type_of(value), dist=dist)
            terms = self.sum_of(source)  # of the variables as they are before it
            self.env[target.name] = value if source is None else self.assigned(target.name, value, source)
            self.note_sum(target.name, terms)
        elif syn.is_listed(target):
            known = value.value if isinstance(value, Static) else None
            if isinstance(known, tuple) and len(known) != len(target.items):
                self.fail(target, f"{len(target.items)} names for {len(known)} values")
            self.read(value)
            for k, part in enumerate(target.items):
                self._bind(part, Static(known[k]) if isinstance(known, tuple) else Data(), source)
        elif isinstance(target, syn.Subscript):
            if self._stream_of(target) is not None:
                self.fail(target, "a stream cannot be assigned; use put")
            self.store(target, value, target if source is None else source)
        elif isinstance(target, syn.Attribute):
            self.data(target.base)
            self.read(value)
        else:
            self.fail(target, "this cannot be assigned in a task")

    # -- branches ----------------------------------------------------------------------------------------------------

    def _if_statement(self, node: syn.Branching, rest: syn.Block) -> Exit:
        """Read a branch. rest: what follows it up to the end of the loop. Where data decides whether that is run, each
        arm takes its own copy of it."""
        test = self.data(node.test)
        apart = self._divides((*node.body, *node.orelse))
        if apart:
            self.context.reading.divided.add((self.task.name, node.place))
            self.end_beat()
        if isinstance(test, Static):
            before = len(self.ops)
            only = self.block(node.body if test.value else node.orelse, rest)
            self.charges += len(self.ops) > before  # no pipeline has a branch around tokens
            if apart:
                self.end_beat()
            if self.varies(node.test):
                self.localise((node,))
            return only
        how, bodies, states, start = self._arms((node.body, node.orelse), rest)
        if how[0] is not how[1]:
            self.restore(start)
            how, bodies, states, start = self._arms(((*node.body, *rest), (*node.orelse, *rest)), ())
            at_end = {Exit.NONE, Exit.CONTINUE} if self._loops else set(Exit)
            if how[0] is not how[1] and not {*how} <= at_end:
                if Exit.RETURN in how or not self._loose:
                    what = f"{self.name}: data decides whether the loop ends here"
                    raise _EndsByData("join", what, node, TRIPS_BY_DATA)
            elif how[0] is not how[1] or how[0] is Exit.NONE:
                how = [Exit.CONTINUE, Exit.CONTINUE]
        self.resume((self.ops, self.beats), self.chosen(bodies, node.test.place))
        self.merge(*states)
        self.localise((node,))
        return how[0] if how[0] is how[1] else Exit.NONE

    def _divides(self, body: syn.Block) -> bool:
        found = [statement.facts for statement in body]
        return any(facts.ends_beat for facts in found) or (
            self.datapath is not None and any(self._is_tile(name) for facts in found for name in facts.names)
        )

    def _is_tile(self, name: str) -> bool:
        value = self.env.get(name)
        return isinstance(value, Data) and value.type is not None and bool(value.type.shape)

    def _arms(
        self, arms: tuple[syn.Block, syn.Block], tail: syn.Block
    ) -> tuple[list[Exit], list[WrittenBody], tuple[PathState, PathState], PathState]:
        outer, start, born, apart = self.begin(), self.save(), self._futures, (self.words, self.depth)
        how, bodies, states, aparts = list[Exit](), list[WrittenBody](), list[PathState](), [apart]
        self._branches += 1
        for arm in arms:
            pending = {n: replace(f) for n, f in start.pending.items()}
            self.env, self.pending, self.tokens = dict(start.env), pending, dict(start.tokens)
            self.ops, self.beats = [], []
            self.words, self.depth = apart
            how.append(self.block(arm, tail))
            aparts.append((self.words, self.depth))
            if self._divides(arm):
                self.end_beat()
            bodies.append(self.closed())
            states.append(PathState(self.env, self.pending, self.tokens))
        self._branches -= 1
        self.words, self.depth = map(max, zip(*aparts, strict=True))
        self.resume(outer)
        self.before = born
        return how, bodies, (states[0], states[1]), start

    def _meta(self, chain: syn.MetaChain, rest: syn.Block) -> Exit:
        """`with meta_if`, then any number of meta_elif and at most one meta_else; or one `with meta_for`."""
        how = self._meta_arm(chain.arms, rest)
        if any(self.varies(head) for arm in chain.arms for head in arm.heads):
            self.localise((chain,))
        return how

    def _meta_arm(self, arms: tuple[syn.MetaArm, ...], rest: syn.Block) -> Exit:
        for statement in arms:
            name = statement.name
            if not name:
                self.fail(statement, "a task has `with` for meta_if, meta_elif, meta_else and meta_for only")
            call = statement.call
            if name == "meta_for":
                return self._counted(statement, statement.target, call, statement.body)
            if name != "meta_if" and statement is arms[0]:
                self.fail(statement, f"{name} without meta_if directly before it")
            if len(call.arguments) != (name != "meta_else"):
                self.fail(call, f"{name} takes {'no' if name == 'meta_else' else 'one'} condition")
            if name == "meta_else":
                return self.block(statement.body, rest)
            test = self.data(call.arguments[0])
            if isinstance(test, Data):
                raise Refusal("meta", f"the condition of {name} is not known before the run", call.arguments[0])
            if test.value:
                return self.block(statement.body, rest)
        return Exit.NONE

    # -- loops -------------------------------------------------------------------------------------------------------

    def _for(self, node: syn.ForLoop) -> Exit:
        if not node.unrolled:
            self.end_beat()
        if node.orelse:
            self.fail(node.orelse[0], "a loop with else is not supported")
        call = node.iterable
        if isinstance(call, syn.Invocation) and isinstance(call.function, syn.Identifier):
            return self._counted(node, node.target, call, node.body)
        values = self.data(call)
        if isinstance(values, Static) and isinstance(values.value, tuple):
            return self._static(node, node.target, [Static(v) for v in values.value], node.body)
        return self._by_data(node, node.target, node.body)

    def _counted(
        self, node: syn.StatementNode, target: syn.ExpressionNode | None, call: syn.Invocation, body: syn.Block
    ) -> Exit:
        name = call.function.name if isinstance(call.function, syn.Identifier) else ""
        if name not in ("range", "grid", "meta_for"):
            values = None if call.facts.touches else self._iterated(call)
            if values is not None:
                return self._static(node, target, values, body)
            self.data(call)
            return self._by_data(node, target, body)
        bounds = [self.data(argument) for argument in call.arguments]
        if not bounds or call.named or (name != "grid" and len(bounds) > 3):
            self.fail(call, f"{name} takes sizes")
        known = [bound.value for bound in bounds if isinstance(bound, Static)]
        if len(known) < len(bounds):
            if name == "meta_for":
                raise Refusal("meta", "the bounds of meta_for are not known before the run", call)
            return self._by_data(node, target, body)
        if not all(isinstance(bound, int) for bound in known) or (name != "grid" and len(known) == 3 and not known[2]):
            self.fail(call, f"{name} takes integers, and a step other than 0")
        count = prod(max(0, bound) for bound in known) if name == "grid" else (max(map(abs, known)) + 1)
        if count > TRIPS:
            raise Refusal("limit", f"a loop of more than {TRIPS} iterations", call)
        if name != "grid":
            return self._static(node, target, range(*known), body)
        if len(known) == 1:
            return self._static(node, target, range(known[0]), body)
        if syn.is_tuple(target) and len(target.items) == len(known) and target.facts.names & self.deciding:
            inner = self.context.nests.get((node, *known))
            if inner is None:
                inner = self.context.nests.setdefault((node, *known), nested(target, known, body, node))
            if not leaves(body):
                self.ran.add((*node.place[:2], *known))
                return self._static(node, target.items[0], range(known[0]), inner)
        return self._static(node, target, Grid(known, count), body)

    def _iterated(self, node: syn.ExpressionNode) -> range | list[Static] | None:
        """What `range`, or `reversed`, `enumerate` or `zip` of static values goes through; None if it is not known."""
        if not isinstance(node, syn.Invocation) or not isinstance(node.function, syn.Identifier):
            values = (
                self.eval(node) if isinstance(node, syn.Identifier | syn.Literal) or syn.is_listed(node) else Data()
            )
            its = values.value if isinstance(values, Static) else None
            return [Static(value) for value in its] if isinstance(its, tuple) else None
        name = node.function.name
        if (
            name not in ("range", "reversed", "enumerate", "zip")
            or name in self.env
            or node.named
            or not node.arguments
        ):
            return None
        if name == "range":
            bounds = [self.data(argument) for argument in node.arguments]
            numbers = [bound.value for bound in bounds if isinstance(bound, Static)]
            if len(bounds) > 3 or len(numbers) < len(bounds) or not all(type(n) is int for n in numbers):
                return None
            if max(map(abs, numbers)) > TRIPS:
                raise Refusal("limit", f"a loop of more than {TRIPS} iterations", node)
            found = compute(range, numbers, node).value
            return found if isinstance(found, range) else None
        parts = [self._iterated(argument) for argument in node.arguments]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or (name != "zip" and len(known) > 1):
            return None
        if name == "reversed":
            return known[0][::-1]
        count = min(map(len, known))
        if count > TRIPS_OF_TUPLES:
            raise Refusal("limit", f"{name} of more than {TRIPS_OF_TUPLES} values", node)
        columns = [[v.value if isinstance(v, Static) else v for v in part[:count]] for part in known]
        if name == "enumerate":
            columns.insert(0, [*range(count)])
        return [Static(row) for row in zip(*columns, strict=True)]

    def _static(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        values: range | Grid | list[Static],
        body: syn.Block,
    ) -> Exit:
        """A loop with known trips."""
        outer, start = (self.ops, self.beats), self.save()
        self.ran.add((*node.place[:2], len(values)))
        self._loops += 1
        around = self.nest, self.bound, self.entered, self.alone
        self.enter(target, values)
        try:
            how = self._trips(node, target, values, body)
            head = (
                node.iterable
                if isinstance(node, syn.ForLoop)
                else node.heads[0]
                if isinstance(node, syn.MetaArm)
                else None
            )
            if head is not None and self.varies(head):
                self.localise(body)
            return how
        except _EndsByData:
            if any(part.facts.touches for part in body):
                raise
            self.resume(outer)
            self.restore(start)
        finally:
            self._loops -= 1
            self.nest, self.bound, self.entered, self.alone = around
        return self._by_data(node, target, body)

    def _trips(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        values: range | Grid | list[Static],
        body: syn.Block,
    ) -> Exit:
        names = target.facts.names if target is not None else frozenset[str]()
        unrolled = isinstance(node, syn.ForLoop | syn.MetaArm) and node.unrolled
        straight = unrolled and self.context.reading.timed  # its beats are those of one straight run of statements
        outer, iterations = (self.ops, self.beats), list[tuple[int, WrittenBody]]()
        how, k, around, alone = Exit.NONE, 0, (self.words, self.depth), self.alone
        self.alone = not unrolled and len(body) == 1 and isinstance(body[0], syn.ForLoop)
        plan = None if straight else self._plan(node, target, names, values, body)
        period, ends = plan or Pieces(0, (len(values),))
        first, end, before = 0, 0, object()
        while k < len(values):
            if k == end:
                first, end = k, next(e for e in ends if e > k)
                before = self.key(names) if period else before
            self.context.step(node)
            self._bind_index(target, values[k])
            self.ops = []
            if not straight:
                self.beats = []
            charges = self.charges
            self.pipelined = False
            if not unrolled:
                self.words = self.depth = 0
            how = self.block(body)
            nest = self.alone and self.pipelined
            self.pipelined = nest or (self.charges == charges and is_beat(self.ops))
            if not unrolled and not self.pipelined:
                self.apart(node, begins=1)
            if not straight:
                self.end_beat()
            self.prune()
            iterations.append((1, WrittenBody(tuple(self.ops), () if straight else tuple(self.beats))))
            k += 1
            if how in (Exit.BREAK, Exit.RETURN):
                break
            if period and (k - first) % period == 0:
                after = self.key(names)
                if after == before and end - k >= period:
                    times = (end - k) // period
                    period_of = [one for _, one in iterations[-period:]]
                    once = sum((one.ops for one in period_of), ()), sum((one.beats for one in period_of), ())
                    iterations[-period:] = [(times + 1, WrittenBody(*once))]
                    k += times * period
                    self._bind_index(target, values[k - 1])
                before = after
        self.alone, self.pipelined = alone, self.pipelined and not unrolled
        if self.pipelined and not alone:
            self.filled(node)
        if not unrolled and not (self.pipelined and alone):
            self.words, self.depth = around
        self.resume((outer[0], self.beats if straight else outer[1]), self.looped(iterations))
        return how if how is Exit.RETURN else Exit.NONE

    def _plan(
        self,
        node: syn.StatementNode,
        target: syn.ExpressionNode | None,
        names: frozenset[str],
        values: range | Grid | list[Static],
        body: syn.Block,
    ) -> Pieces | None:
        """How a loop is stepped; None if each of its iterations is read."""
        if not names & self.deciding:
            return Pieces(1, (len(values),))
        if not isinstance(target, syn.Identifier) or not isinstance(values, range) or len(values) < 2:
            return None
        parts = self.context.loops.get(node)
        if parts is None:
            parts = deciding_parts(body, self.deciding, self.context.streams)
            self.context.loops[node] = parts

        def known(name: str) -> object:
            value = self.env.get(name, self.context.constants.get(name))
            return value.value if isinstance(value, Static) and name not in parts.stored else None

        return pieces(target.name, values, parts, known)

    def _bind_index(self, target: syn.ExpressionNode | None, value: int | Static) -> None:
        if target is not None:
            self._bind(target, value if isinstance(value, Static) else Static(value))
            self.bind_indices()

    def _while(self, node: syn.WhileLoop) -> Exit:
        if node.orelse:
            self.fail(node.orelse[0], "a loop with else is not supported")
        outer, start = (self.ops, self.beats), self.save()
        self._loops += 1
        try:
            return self._rounds(node)
        except _EndsByData:
            if node.facts.touches:
                raise
            self.resume(outer)
            self.restore(start)
        finally:
            self._loops -= 1
        return self._by_data(node, None, (syn.Evaluation(node.test.place, node.test), *node.body))

    def _rounds(self, node: syn.WhileLoop) -> Exit:
        self.end_beat()
        outer, iterations, around = (self.ops, self.beats), list[tuple[int, WrittenBody]](), (self.words, self.depth)
        before: object = None
        how = Exit.NONE
        while True:
            self.context.step(node)
            self.ops, self.beats = [], []
            test = self.data(node.test)
            self.end_beat()
            if isinstance(test, Data):
                head = self.closed()
                self.resume(outer, self.looped(iterations))
                again = syn.Evaluation(node.test.place, node.test)
                return self._by_data(node, None, (*node.body, again), head)
            if not test.value:
                break
            self.words = self.depth = 0
            how = self.block(node.body)
            self.apart(node, begins=1)
            self.end_beat()
            iterations.append((1, self.closed()))
            self.prune()
            if how in (Exit.BREAK, Exit.RETURN):
                break
            after = self.key()
            if after == before:
                raise Refusal("limit", "this loop never ends", node)
            before = after
        self.words, self.depth = around
        self.resume(outer, self.looped(iterations))
        return how if how is Exit.RETURN else Exit.NONE

    def _by_data(
        self, node: syn.StatementNode, target: syn.ExpressionNode | None, body: syn.Block, head: WrittenBody = EMPTY
    ) -> Exit:
        """A loop whose end depends on data: any number of iterations, so its body must leave every stream as it is.
        head: the operations of its first test."""
        self.resume((self.ops, self.beats), head)
        outer = self.begin()
        self._branches += 1
        self._loops += 1
        self._loose += 1
        for _ in range(len(self.env) + 3):
            start, born = self.save(), self._futures
            key = self.key()
            self.ops, self.beats = [], []
            if target is not None:
                self._bind(target, Data())
            self.block(body)
            self.end_beat()
            if self.beats:
                self.context.reading.by_data.append(node.place)
            touched = sorted({self._stream_name(s) for n in self.ops for s, _, _ in n.needs})
            if touched:
                self.context.source.add(
                    "join",
                    f"{self.name}: data decides how often this loop runs, and so how many tokens pass "
                    f"{', '.join(touched)}",
                    node.place,
                    "tokens are counted before the run; the loop is refused even if both ends agree",
                    TRIPS_BY_DATA,
                    subject=self.name,
                    uncounted=True,
                )
            self.before = born
            self.merge(start, self.save())
            if touched or self.key() == key:
                break
        self.localise(body)
        self._branches -= 1
        self._loops -= 1
        self._loose -= 1
        self.resume(outer)
        return Exit.NONE

    def _stream_name(self, number: int) -> str:
        made = (d for c in self.context.reading.collectives.values() for d in c.arrays)
        known = chain(self.context.streams.values(), made)
        return next(self.element(d, number) for d in known if d.first <= number < d.first + d.size)


class EvaluationRecorder(Elaborator):
    """Reads the statements of a task instance in a file with sizes that a run gives, and records in
    `FileReading.evaluated` which expressions it evaluates."""

    def eval(self, node: syn.ExpressionNode) -> Value:
        """Return the value of an expression as `Elaborator` does, and record that it was evaluated; of a tile also its
        shape. A tensor parameter by its name is recorded without a shape, which may differ from run to run."""
        value = super().eval(node)
        shapes = self.context.reading.evaluated.setdefault((self.task.name, node.place), set())
        named = isinstance(value, Data) and value.tensor and isinstance(node, syn.Identifier)
        kind = value.type if isinstance(value, Data) and not named else None
        shapes |= {kind.shape} if kind is not None and kind.shape else set()
        return value
