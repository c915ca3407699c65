"""Makes the operations of one task instance: static control is followed, branches on data keep both arms.

A loop is unrolled where its index decides what happens. Otherwise its body is read until an iteration leaves the
variables as it found them; all further ones are like it, however many there are.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from math import prod

from .expressions import Context
from .paths import Paths, State
from .source import Refusal
from .syntax import (
    Grid,
    Pieces,
    chain_length,
    deciding,
    deciding_parts,
    leaves,
    meta_name,
    meta_name_of,
    names_in,
    nested,
    pieces,
    touches,
)
from .tree import Body, Instance, Node, TaskDecl
from .values import Data, Static, Value, compute, distribution_of, type_of

TRIPS = 1 << 40
"""Limit of the iterations of one loop."""

TRIPS_OF_TUPLES = 1 << 16
"""Limit of the iterations of a loop over `enumerate` or `zip`."""


class Exit(Enum):
    """How a block ends."""

    NONE = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3


class _EndsByData(Refusal):
    """Data decides whether a loop goes on."""


class Elaborator(Paths):
    """Statements of an instance. deciding: variables that control or indices depend on; all others hold data."""

    def __init__(self, context: Context, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        found = context.decisive.get(task.body)
        if found is None:
            found = context.decisive.setdefault(task.body, deciding(task.body, context.streams.keys()))
        self.deciding = found
        self._loose = 0

    def instance(self) -> Instance:
        """Read the body of the task. Mistakes are added to the source."""
        whole = True
        try:
            for parameter in self.task.parameters:
                self.env[parameter.name] = self.shards[parameter.name] = self.shard(parameter)
            self.block(self.task.body.body)
            self.end_beat()
        except Refusal as r:
            place = self.context.source.place(r.node) if r.node is not None else None
            self.context.source.add(r.code, r.message, place, *r.notes, subject=self.name)
            whole = False
        except RecursionError:
            self.context.source.add("limit", "expressions or blocks are nested too deeply", self.task.place)
            whole = False
        if whole:
            self.unread(set(self.pending))
        shown = {end: order for end, order in self.shown.items() if order is not None}
        return Instance(self.name, self.task, self.tid, tuple(self.ops), whole, frozenset(self.ran), shown)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt], tail: Sequence[ast.stmt] = ()) -> Exit:
        """Read statements up to the first that leaves the block. tail: what follows the block, up to the end of the
        innermost loop around it, or of the task."""
        k = 0
        while k < len(statements):
            statement = statements[k]
            self.context.step(statement)
            self.ran.add((statement.lineno, statement.col_offset))
            if isinstance(statement, ast.If):
                how = self._if_statement(statement, [*statements[k + 1 :], *tail])
            elif isinstance(statement, ast.With):
                count = chain_length(statements, k)
                how = self._meta(statements[k : k + count], [*statements[k + count :], *tail])
                k += count - 1
            else:
                how = self._statement(statement)
            if how is not Exit.NONE:
                return how
            k += 1
        return Exit.NONE

    def _statement(self, statement: ast.stmt) -> Exit:
        match statement:
            case ast.Expr(value=value):
                self.eval(value)
            case ast.Assign():
                self._assign(statement.targets, statement.value)
            case ast.AnnAssign():
                made = self.annotated(statement)
                self._bind(statement.target, made, statement.value or statement.target)
            case ast.AugAssign():
                self._augmented(statement)
            case ast.For():
                return self._for(statement)
            case ast.While():
                return self._while(statement)
            case ast.Pass():
                pass
            case ast.Continue() | ast.Break():
                if not self._loops:
                    raise Refusal("syntax", "break and continue stand in a loop", statement)
                return Exit.CONTINUE if isinstance(statement, ast.Continue) else Exit.BREAK
            case ast.Return():
                if statement.value is not None:
                    self.returned(statement.value)
                return Exit.RETURN
            case ast.Assert():
                self.held(statement)
            case _:
                name = type(statement).__name__
                self.fail(statement, f"a task has no statement of this kind ({name})")
        return Exit.NONE

    def _assign(self, targets: list[ast.expr], source: ast.expr) -> None:
        target = targets[0]
        if (
            len(targets) == 1
            and isinstance(target, ast.Tuple)
            and isinstance(source, ast.Tuple)
            and len(target.elts) == len(source.elts)
        ):
            values = [self.eval(part) for part in source.elts]
            for name, value, part in zip(target.elts, values, source.elts, strict=True):
                self._bind(name, value, part)
            return
        value = self.eval(source)
        for target in targets:
            self._bind(target, value, source)

    def _augmented(self, statement: ast.AugAssign) -> None:
        if isinstance(statement.target, ast.Name):
            left = ast.copy_location(ast.Name(statement.target.id, ast.Load()), statement.target)
            both = ast.copy_location(ast.BinOp(left, statement.op, statement.value), statement)
            self._bind(statement.target, self.eval(both), both)
        elif isinstance(statement.target, ast.Subscript) and self._stream_of(statement.target) is None:
            part = ast.copy_location(
                ast.Subscript(statement.target.value, statement.target.slice, ast.Load()), statement.target
            )
            both = ast.copy_location(ast.BinOp(part, statement.op, statement.value), statement)
            self._bind(statement.target, self.eval(both), both)
        else:
            self.data(statement.value)
            self._bind(statement.target, Data())

    def _bind(self, target: ast.expr, value: Value, source: ast.expr | None = None) -> None:
        """Assign a value. source: the expression that it comes from, None for the index of a loop."""
        if isinstance(target, ast.Name):
            if target.id in self.context.streams:
                self.fail(target, f"{target.id} is a stream; it cannot be assigned")
            if isinstance(value, Static) and target.id not in self.deciding:
                dist = distribution_of(value, target.id in self.varying)
                if source is None or names_in(source) & self.env.keys():
                    dist = replace(dist, number=None)  # it may differ in the next iteration
                value = Data(type_of(value), dist=dist)
            self.env[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            known = value.value if isinstance(value, Static) else None
            if isinstance(known, tuple) and len(known) != len(target.elts):
                self.fail(target, f"{len(target.elts)} names for {len(known)} values")
            self.read(value)
            for k, part in enumerate(target.elts):
                self._bind(part, Static(known[k]) if isinstance(known, tuple) else Data(), source)
        elif isinstance(target, ast.Subscript):
            if self._stream_of(target) is not None:
                self.fail(target, "a stream cannot be assigned; use put")
            self.store(target, value, target if source is None else source)
        elif isinstance(target, ast.Attribute):
            self.data(target.value)
            self.read(value)
        else:
            self.fail(target, "this cannot be assigned in a task")

    # -- branches ----------------------------------------------------------------------------------------------------

    def _if_statement(self, node: ast.If, rest: Sequence[ast.stmt]) -> Exit:
        """Read a branch. rest: what follows it up to the end of the loop. Where data decides whether that is run, each
        arm takes its own copy of it."""
        test = self.data(node.test)
        apart = self._divides([*node.body, *node.orelse])
        if apart:
            self.end_beat()
        if isinstance(test, Static):
            only = self.block(node.body if test.value else node.orelse, rest)
            if apart:
                self.end_beat()
            if self.varies(node.test):
                self.localise([node])
            return only
        how, bodies, states, start = self._arms([node.body, node.orelse], rest)
        if how[0] is not how[1]:
            self.restore(start)
            how, bodies, states, start = self._arms([[*node.body, *rest], [*node.orelse, *rest]], ())
            at_end = {Exit.NONE, Exit.CONTINUE} if self._loops else set(Exit)
            if how[0] is not how[1] and not {*how} <= at_end:
                if Exit.RETURN in how or not self._loose:
                    raise _EndsByData("join", f"{self.name}: data decides whether the loop ends here", node)
            elif how[0] is not how[1] or how[0] is Exit.NONE:
                how = [Exit.CONTINUE, Exit.CONTINUE]
        self.ops += self.context.nodes.choice(bodies, self.context.source.place(node.test))
        self.merge(*states)
        self.localise([node])
        return how[0] if how[0] is how[1] else Exit.NONE

    def _divides(self, body: Sequence[ast.stmt]) -> bool:
        # A loop that stands for a grid is made here, and is none of the body's.
        return any(self.below.divides.get(statement, True) for statement in body)

    def _arms(
        self, arms: list[list[ast.stmt]], tail: Sequence[ast.stmt]
    ) -> tuple[list[Exit], list[Body], tuple[State, State], State]:
        outer, start, born = self.ops, self.save(), self._futures
        how, bodies, states = list[Exit](), list[Body](), list[State]()
        self._branches += 1
        for arm in arms:
            pending = {n: replace(f) for n, f in start.pending.items()}
            self.env, self.pending, self.tokens = dict(start.env), pending, dict(start.tokens)
            self.ops = []
            how.append(self.block(arm, tail))
            if self._divides(arm):
                self.end_beat()
            bodies.append(tuple(self.ops))
            states.append(State(self.env, self.pending, self.tokens))
        self._branches -= 1
        self.ops, self.before = outer, born
        return how, bodies, (states[0], states[1]), start

    def _meta(self, arms: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> Exit:
        """`with meta_if`, then any number of meta_elif and at most one meta_else; or one `with meta_for`."""
        how = self._meta_arm(arms, rest)
        if any(self.varies(item.context_expr) for part in arms if isinstance(part, ast.With) for item in part.items):
            self.localise(arms)
        return how

    def _meta_arm(self, arms: Sequence[ast.stmt], rest: Sequence[ast.stmt]) -> Exit:
        for statement in arms:
            assert isinstance(statement, ast.With)
            name, call = meta_name(statement)
            if name is None or call is None:
                self.fail(statement, "a task has `with` for meta_if, meta_elif, meta_else and meta_for only")
            if name == "meta_for":
                target = statement.items[0].optional_vars
                return self._counted(statement, target, call, statement.body)
            if name != "meta_if" and statement is arms[0]:
                self.fail(statement, f"{name} without meta_if directly before it")
            if len(call.args) != (name != "meta_else"):
                self.fail(call, f"{name} takes {'no' if name == 'meta_else' else 'one'} condition")
            if name == "meta_else":
                return self.block(statement.body, rest)
            test = self.data(call.args[0])
            if isinstance(test, Data):
                raise Refusal("meta", f"the condition of {name} is not known before the run", call.args[0])
            if test.value:
                return self.block(statement.body, rest)
        return Exit.NONE

    # -- loops -------------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For) -> Exit:
        if meta_name_of(node.iter) != "meta_for":
            self.end_beat()
        if node.orelse:
            self.fail(node.orelse[0], "a loop with else is not supported")
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return self._counted(node, node.target, call, node.body)
        values = self.data(call)
        if isinstance(values, Static) and isinstance(values.value, tuple):
            return self._static(node, node.target, [Static(v) for v in values.value], node.body)
        return self._by_data(node, node.target, node.body)

    def _counted(self, node: ast.stmt, target: ast.expr | None, call: ast.Call, body: list[ast.stmt]) -> Exit:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name not in ("range", "grid", "meta_for"):
            values = None if touches([call]) else self._iterated(call)
            if values is not None:
                return self._static(node, target, values, body)
            self.data(call)
            return self._by_data(node, target, body)
        bounds = [self.data(argument) for argument in call.args]
        if not bounds or call.keywords or (name != "grid" and len(bounds) > 3):
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
        if isinstance(target, ast.Tuple) and len(target.elts) == len(known) and names_in(target) & self.deciding:
            inner = self.context.nests.get((node, *known))
            if inner is None:
                inner = self.context.nests.setdefault((node, *known), nested(target, known, body, node))
            if not leaves(body):
                self.ran.add((node.lineno, node.col_offset, *known))
                return self._static(node, target.elts[0], range(known[0]), inner)
        return self._static(node, target, Grid(known, count), body)

    def _iterated(self, node: ast.expr) -> range | list[Static] | None:
        """What `range`, or `reversed`, `enumerate` or `zip` of static values goes through; None if it is not known."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            values = self.eval(node) if isinstance(node, ast.Name | ast.Tuple | ast.List | ast.Constant) else Data()
            its = values.value if isinstance(values, Static) else None
            return [Static(value) for value in its] if isinstance(its, tuple) else None
        name = node.func.id
        if name not in ("range", "reversed", "enumerate", "zip") or name in self.env or node.keywords or not node.args:
            return None
        if name == "range":
            bounds = [self.data(argument) for argument in node.args]
            numbers = [bound.value for bound in bounds if isinstance(bound, Static)]
            if len(bounds) > 3 or len(numbers) < len(bounds) or not all(type(n) is int for n in numbers):
                return None
            if max(map(abs, numbers)) > TRIPS:
                raise Refusal("limit", f"a loop of more than {TRIPS} iterations", node)
            found = compute(range, numbers, node).value
            return found if isinstance(found, range) else None
        parts = [self._iterated(argument) for argument in node.args]
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
        self, node: ast.stmt, target: ast.expr | None, values: range | Grid | list[Static], body: list[ast.stmt]
    ) -> Exit:
        """A loop with known trips."""
        outer, start = self.ops, self.save()
        self.ran.add((node.lineno, node.col_offset, len(values)))
        self._loops += 1
        around = self.nest, self.bound, self.entered
        self.enter(target, values)
        try:
            how = self._trips(node, target, values, body)
            if isinstance(node, ast.For | ast.With) and self.varies(
                node.iter if isinstance(node, ast.For) else node.items[0].context_expr
            ):
                self.localise(body)
            return how
        except _EndsByData:
            if touches(body):
                raise
            self.ops = outer
            self.restore(start)
        finally:
            self._loops -= 1
            self.nest, self.bound, self.entered = around
        return self._by_data(node, target, body)

    def _trips(
        self, node: ast.stmt, target: ast.expr | None, values: range | Grid | list[Static], body: list[ast.stmt]
    ) -> Exit:
        names = names_in(target) if target is not None else set[str]()
        unrolled = isinstance(node, ast.With) or (isinstance(node, ast.For) and meta_name_of(node.iter) == "meta_for")
        if unrolled and self.context.reading.timed:
            return self._unrolled(target, values, body)
        outer, iterations = self.ops, list[tuple[int, Body]]()
        how, k = Exit.NONE, 0
        plan = self._plan(node, target, names, values, body)
        period, ends = plan or Pieces(0, (len(values),))
        first, end, before = 0, 0, object()
        while k < len(values):
            if k == end:
                first, end = k, next(e for e in ends if e > k)
                before = self.key(names) if period else before
            self.context.step(node)
            self._bind_index(target, values[k])
            self.ops = []
            how = self.block(body)
            self.end_beat()
            self.prune()
            iterations.append((1, tuple(self.ops)))
            k += 1
            if how in (Exit.BREAK, Exit.RETURN):
                break
            if period and (k - first) % period == 0:
                after = self.key(names)
                if after == before and end - k >= period:
                    times = (end - k) // period
                    once = sum((operations for _, operations in iterations[-period:]), ())
                    iterations[-period:] = [(times + 1, once)]
                    k += times * period
                    self._bind_index(target, values[k - 1])
                before = after
        self.ops = [*outer, *self.context.nodes.loop(iterations)]
        return how if how is Exit.RETURN else Exit.NONE

    def _unrolled(self, target: ast.expr | None, values: range | Grid | list[Static], body: list[ast.stmt]) -> Exit:
        """A loop that is unrolled before the run: its iterations are one straight run of statements."""
        for k in range(len(values)):
            self.context.step(body[0])
            self._bind_index(target, values[k])
            how = self.block(body)
            if how in (Exit.BREAK, Exit.RETURN):
                return how if how is Exit.RETURN else Exit.NONE
        return Exit.NONE

    def _plan(
        self,
        node: ast.stmt,
        target: ast.expr | None,
        names: set[str],
        values: range | Grid | list[Static],
        body: list[ast.stmt],
    ) -> Pieces | None:
        """How a loop is stepped; None if each of its iterations is read."""
        if not names & self.deciding:
            return Pieces(1, (len(values),))
        if not isinstance(target, ast.Name) or not isinstance(values, range) or len(values) < 2:
            return None
        parts = self.context.loops.get(node)
        if parts is None:
            parts = deciding_parts(body, self.deciding, self.context.streams)
            self.context.loops[node] = parts

        def known(name: str) -> object:
            value = self.env.get(name, self.context.constants.get(name))
            return value.value if isinstance(value, Static) and name not in parts.stored else None

        return pieces(target.id, values, parts, known)

    def _bind_index(self, target: ast.expr | None, value: int | Static) -> None:
        if target is not None:
            self._bind(target, value if isinstance(value, Static) else Static(value))
            self.bind_indices()

    def _while(self, node: ast.While) -> Exit:
        if node.orelse:
            self.fail(node.orelse[0], "a loop with else is not supported")
        outer, start = self.ops, self.save()
        self._loops += 1
        try:
            return self._rounds(node)
        except _EndsByData:
            if touches([node]):
                raise
            self.ops = outer
            self.restore(start)
        finally:
            self._loops -= 1
        return self._by_data(node, None, [ast.copy_location(ast.Expr(node.test), node.test), *node.body])

    def _rounds(self, node: ast.While) -> Exit:
        self.end_beat()
        outer, iterations = self.ops, list[tuple[int, Body]]()
        before: object = None
        how = Exit.NONE
        while True:
            self.context.step(node)
            self.ops = []
            test = self.data(node.test)
            self.end_beat()
            if isinstance(test, Data):
                head = self.ops
                self.ops = [*outer, *self.context.nodes.loop(iterations)]
                again = ast.copy_location(ast.Expr(node.test), node.test)
                return self._by_data(node, None, [*node.body, again], head)
            if not test.value:
                break
            how = self.block(node.body)
            self.end_beat()
            iterations.append((1, tuple(self.ops)))
            self.prune()
            if how in (Exit.BREAK, Exit.RETURN):
                break
            after = self.key()
            if after == before:
                raise Refusal("limit", "this loop never ends", node)
            before = after
        self.ops = [*outer, *self.context.nodes.loop(iterations)]
        return how if how is Exit.RETURN else Exit.NONE

    def _by_data(
        self, node: ast.stmt, target: ast.expr | None, body: list[ast.stmt], head: Sequence[Node] = ()
    ) -> Exit:
        """A loop whose end depends on data: any number of iterations, so its body must leave every stream as it is.
        head: the operations of its first test."""
        outer = [*self.ops, *head]
        self._branches += 1
        self._loops += 1
        self._loose += 1
        for _ in range(len(self.env) + 3):
            start, born = self.save(), self._futures
            key = self.key()
            self.ops = []
            if target is not None:
                self._bind(target, Data())
            self.block(body)
            self.end_beat()
            if self.ops:
                self.context.reading.by_data.append(self.context.source.place(node))
            touched = sorted({self._stream_name(s) for n in self.ops for s, _, _ in n.needs})
            if touched:
                self.context.source.add(
                    "join",
                    f"{self.name}: data decides how often this loop runs, and so how many tokens pass "
                    f"{', '.join(touched)}",
                    self.context.source.place(node),
                    "tokens are counted before the run; the loop is refused even if both ends agree",
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
        self.ops = outer
        return Exit.NONE

    def _stream_name(self, number: int) -> str:
        made = (d for c in self.context.reading.collectives.values() for d in (c.inward, c.outward))
        known = chain(self.context.streams.values(), made)
        decl = next(d for d in known if d.first <= number < d.first + d.size)
        return decl.element(number - decl.first)
