"""Data without clocks: what a program computes, once it is known that and when it ends.

Results of a Kahn network depend neither on time nor on how deep its streams are, as long as they are deep enough. So
after a run for time alone, data may flow through deeper streams, many steps at once (`Burst`), past the instruction
path. Source: design section 4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...isa.instruction_path import InstructionPath
from ...machine.executor import ProcessNetwork, Task
from ...machine.steps import Burst, Channel

DEEPER = 32
"""How much deeper than the machine's the streams are: all tiles that a MemB sends for one MME op. What is on its way
then takes at most some 60 MB on XNN."""


class Queue(Channel):
    """A stream whose entries are what a step put: the words of one payload, and the payloads, which a step that takes
    as many gets as they are."""

    __slots__ = ()

    tokens: deque[tuple[int, Sequence[Any]]]  # type: ignore[assignment]

    def __init__(self, name: str, capacity: int, source: str = "", sink: str = "", control: bool = False) -> None:
        super().__init__(name, capacity * DEEPER, source, sink, control)

    def ready(self, words: int) -> int:
        """How many payloads of `words` words can be taken at once."""
        if self.filled < words:
            return 0
        size, payloads = self.tokens[0]
        return len(payloads) if size == words else 1

    def take_all(self, words: int, times: int) -> Sequence[Any]:
        """That many payloads, at most as many as are ready."""
        self.filled -= words * times
        self.space += words * times
        size, payloads = self.tokens[0]
        if size != words:  # another size than the writer's
            return [self._regrouped(words)]
        if len(payloads) == times:
            self.tokens.popleft()
            return payloads
        self.tokens[0] = size, payloads[times:]
        return payloads[:times]

    def put_all(self, words: int, payloads: Sequence[Any]) -> None:
        self.filled += words * len(payloads)
        self.space -= words * len(payloads)
        self.tokens.append((words, payloads))

    def _regrouped(self, words: int) -> Any:
        timed = Channel(self.name, self.capacity)
        while words > timed.filled:
            size, payloads = self.tokens.popleft()
            for payload in payloads:
                timed.tokens.append((size, payload, 0.0, 0.0, 0))
                timed.filled += size
        payload, *_ = timed.take(words)
        self.tokens.extendleft((size, [rest]) for size, rest, *_ in reversed(timed.tokens))
        return payload


class Dataflow(ProcessNetwork):
    """One run of a program for its data. It must be known to end: a deadlock that only the machine's own depths or its
    instruction path have is not found here.

    banks: off-chip memories by name, changed in place. completed: called with unit and number of every uOP of a unit
    that packets drive, when its kernel has ended and before the next begins.
    """

    channel_type = Queue

    def __init__(
        self,
        path: InstructionPath,
        *,
        banks: Mapping[str, Any],
        where: Callable[[str, int], str],
        completed: Callable[[str, int], None] | None = None,
    ) -> None:
        uops: dict[str, Iterator[Any]] = {}
        for u in path.overlay.units:
            uops[u.name] = path.uops(u.name)
            if completed is not None and u.kind not in path.overlay.preloaded:
                uops[u.name] = _told(uops[u.name], u.name, completed)
        super().__init__(path.overlay, uops, banks=banks, data=True, where=where)

    def _step(self, task: Task, ready: deque[Task], alive: set[Task]) -> None:
        fire = task.pending
        left = task.left
        value: Any = None
        while True:
            if fire is None:
                fire = self._next(task, value, ready, alive)
                if fire is None:
                    return
                left = fire.times
            words, gets, puts = fire.words, fire.gets, fire.puts
            if not gets and not puts and fire.do is None:  # it takes time, and nothing else
                value, fire = [], None
                continue
            n = left
            for channel in gets:
                n = min(n, channel.ready(words))  # type: ignore[attr-defined]
                if not n:
                    channel.reader = task
                    break
            else:
                for channel in puts:
                    if channel.space < words:  # with room for one there is room for all: nothing breaks up on its way
                        channel.writer = task
                        n = 0
                        break
            if not n:
                task.pending, task.left = fire, left
                return
            tokens = [channel.take_all(words, n) for channel in gets]  # type: ignore[attr-defined]
            results: Sequence[Any]
            if isinstance(fire, Burst):
                value = None
                results = fire.do(n, *tokens) if fire.do is not None else ()
            else:
                value = [token for (token,) in tokens]
                one = fire.do(*value) if fire.do is not None else fire.send
                results = [(x,) for x in one] if one else ()
            for channel in gets:
                _wake(channel.writer, ready)
                channel.writer = None
            for i, channel in enumerate(puts):
                channel.last = (task.unit.name, task.unit.number, task.unit.issue)
                channel.put_all(words, results[i] if results else (None,) * n)  # type: ignore[attr-defined]
                _wake(channel.reader, ready)
                channel.reader = None
            left -= n
            if not left:
                fire = task.pending = None


def _wake(task: Task | None, ready: deque[Task]) -> None:
    if task is not None and not task.queued:
        task.queued = True
        ready.append(task)


def _told(uops: Iterator[Any], unit: str, completed: Callable[[str, int], None]) -> Iterator[Any]:
    for number, uop in enumerate(uops):
        yield uop
        completed(unit, number)
