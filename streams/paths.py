"""What the paths through a task have come to: variables, futures that wait to be read, and how they go on as one."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

from .expressions import Future, RegionContext, Taken, either
from .layouts import merged
from .stores import Stores
from .tree import TaskDecl
from .values import Data, Static, Value, distribution_of, joined, type_of


class PathState(NamedTuple):
    """What a path has come to: variables by name (`env`), unread futures by number (`pending`), and how other futures
    were taken (`tokens`).
    """

    env: dict[str, Value]
    pending: dict[int, Future]
    tokens: dict[int, tuple[Taken, Future]]


class Paths(Stores):
    """Follows the paths through a task instance. before: number of the last future that was made before the innermost
    branch on data began."""

    def __init__(self, context: RegionContext, task: TaskDecl, name: str, tid: tuple[int, ...]) -> None:
        super().__init__(context, task, name, tid)
        self.before = 0

    def save(self) -> PathState:
        """Return a copy of the state of this path: variables, unread futures, and how futures were taken. Raises
        `Refusal` as `RegionContext.step`."""
        size = len(self.env) + len(self.pending) + len(self.tokens)
        self.context.step(self.task.body, size // 8)
        return PathState(dict(self.env), {n: replace(future) for n, future in self.pending.items()}, dict(self.tokens))

    def restore(self, state: PathState) -> None:
        """Continue from a state that `save` returned; the state belongs to this path from then on."""
        self.env, self.pending, self.tokens = state

    def merge(self, a: PathState, b: PathState) -> None:
        """Continue from the states a and b of two paths, as one path.

        A variable whose values differ becomes data. A future that both paths have read is no longer kept. A future from
        before the branch that only one path has read counts as read by some paths (`Future.used`). Raises `Refusal` as
        `RegionContext.step`.
        """
        env: dict[str, Value] = {}
        tokens = either(a.tokens, b.tokens)
        self.context.step(self.task.body, len(a.env) // 2)
        for name in a.env.keys() | b.env.keys():
            x, y = a.env.get(name), b.env.get(name)
            if x is None or y is None:
                env[name] = x or y or Data()
            elif x is y or x == y:
                env[name] = x
            else:
                both = {f for v in (x, y) if isinstance(v, Data) for f in v.futures}
                # Of those that were taken, one of each kind tells as much as all.
                kinds = {tokens[f][0]: f for f in sorted(both, reverse=True) if f in tokens}
                futures = frozenset({f for f in both if f in a.pending or f in b.pending} | {*kinds.values()})
                varies = name in self.varying
                dist = merged(distribution_of(x, varies), distribution_of(y, varies))
                tensor = x.tensor if isinstance(x, Data) and isinstance(y, Data) and x.tensor == y.tensor else ""
                env[name] = Data(joined(type_of(x), type_of(y)), futures, dist, tensor)
        pending: dict[int, Future] = {}
        born = self.before
        for number in a.pending.keys() | b.pending.keys():
            x_future, y_future = a.pending.get(number), b.pending.get(number)
            future = x_future or y_future
            assert future is not None
            some = number <= born and (x_future is None or y_future is None)
            used = max(f.used for f in (x_future, y_future) if f is not None)
            pending[number] = replace(future, used=1 if some or used else 0)
        self.env, self.pending, self.tokens = env, pending, tokens

    def key(self, without: Container[str] = ()) -> object:
        """Return the variables as a key, with futures numbered as they appear: equal keys mean that nothing differs
        from here on. without: names of variables that are left out; if one of them holds an unread future, the key
        equals no other. Raises `Refusal` as `RegionContext.step`."""
        self.context.step(self.task.body, len(self.env) // 8)
        numbers: dict[int, int] = {}
        out: list[object] = []
        for name in sorted(self.env):
            value = self.env[name]
            if name in without:
                if isinstance(value, Data) and any(f in self.pending for f in value.futures):
                    return object()
                continue
            if isinstance(value, Static):
                out.append((name, type(value.value).__name__, value.value))
                continue
            waiting = [
                (numbers.setdefault(f, len(numbers)), self.pending[f].used)
                for f in sorted(value.futures)
                if f in self.pending
            ]
            how = frozenset(self.tokens[f][0] for f in value.futures if f in self.tokens)
            out.append((name, value.type, value.dist, value.tensor, tuple(waiting), how))
        return tuple(out)

    def prune(self) -> None:
        """Forget futures that no variable holds any more, and report those of them that nothing has read. Inside an arm
        of a branch none is reported, because the other arm may still hold it."""
        if not self.pending and not self.tokens:
            return
        held = {f for v in self.env.values() if isinstance(v, Data) for f in v.futures}
        self.tokens = {f: how for f, how in self.tokens.items() if f in held}
        if self._branches == 0:
            self.unread(self.pending.keys() - held)

    def unread(self, numbers: set[int]) -> None:
        """Add a finding for each of these futures, which nothing reads, or some paths only; they are forgotten.
        numbers: of the futures.
        """
        source = self.context.source
        for number in sorted(numbers):
            future = self.pending.pop(number)
            if future.used:
                message = f"{self.name} reads what it gets from {future.stream} on some paths only"
                source.add("unread", message, future.place, warning=True, subject=self.name)
            else:
                message = f"{self.name} never reads what it gets from {future.stream}"
                source.add("unread", message, future.place, "drop(...) says that it is meant", subject=self.name)
