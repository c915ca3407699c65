"""Compute the data of a program without clocks, after a run without data has shown that the program ends, and when.

The results of a Kahn process network depend neither on time nor on the depths of its streams, if these suffice. So the
data may flow through deeper streams, many steps at once (`Burst`), without the instruction path. Source:
docs/simulator.md#data-without-clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...base.errors import ProgramError
from ...isa.instruction_path import InstructionPath
from ...machine.executor import ProcessNetwork, RunningProcess
from ...machine.steps import AnyOf, Burst, Channel

DEEPER = 32
"""Factor by which streams are deeper than the machine's: enough for all tiles that a MemB sends for one MME op. Data in
streams then takes at most about 60 MB on XNN."""


class Queue(Channel):
    """A stream for data without clocks, made as a `Channel` is. It is `DEEPER` times as deep as `capacity` says; only a
    stream of control keeps its depth, because the stream that counts the free slots of a memory says which slots may be
    overwritten.

    tokens: what each step put: the number of words in a payload, and a sequence of payloads. A step that takes the same
    number of payloads gets the sequence without a copy."""

    __slots__ = ()

    tokens: deque[tuple[int, Sequence[Any]]]  # type: ignore[assignment]

    def __init__(self, name: str, capacity: int, source: str = "", sink: str = "", control: bool = False) -> None:
        super().__init__(name, capacity if control else capacity * DEEPER, source, sink, control)

    def ready(self, words: int) -> int:
        """Return how many payloads of `words` words can be taken at once; 1 if words have to be split or
        joined for it.
        """
        if self.filled < words:
            return 0
        size, payloads = self.tokens[0]
        return len(payloads) if size == words else 1

    def take_all(self, words: int, times: int) -> Sequence[Any]:
        """Take `times` payloads of `words` words each, and return them in order. times: at least 1, at most
        `ready(words)`.
        """
        self.filled -= words * times
        self.space += words * times
        size, payloads = self.tokens[0]
        if size != words:  # reader and writer use different sizes
            return [self._regrouped(words)]
        if len(payloads) == times:
            self.tokens.popleft()
            return payloads
        self.tokens[0] = size, payloads[times:]
        return payloads[:times]

    def put_all(self, words: int, payloads: Sequence[Any]) -> None:
        """Put payloads of `words` words each, as one entry."""
        self.filled += words * len(payloads)
        self.space -= words * len(payloads)
        self.tokens.append((words, payloads))

    def _regrouped(self, words: int) -> Any:
        """Take one payload of another size than the writer's: an ordinary channel splits and joins the entries."""
        channel = Channel(self.name, self.capacity)
        while words > channel.filled:
            size, payloads = self.tokens.popleft()
            for payload in payloads:
                channel.tokens.append((size, payload, 0.0, 0.0, 0))
                channel.filled += size
        payload, *_ = channel.take(words)
        self.tokens.extendleft((size, [rest]) for size, rest, *_ in reversed(channel.tokens))
        return payload


class DataRun(ProcessNetwork):
    """One run of a program for its data. The program must be known to end: streams are deeper here and there is no
    instruction path, so that this run may not find a deadlock of the machine.

    path: the program's instructions. banks: off-chip memories by name, float32, changed in place. where: source line of
    a unit's packet or op, for messages. completed: called with the unit and number of every uOP from packets, between
    the end of its kernel and the beginning of the next; None calls nothing.
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
                uops[u.name] = _reporting(uops[u.name], u.name, completed)

        def place(unit: str, number: int) -> str:
            held = path.overlay.op_list(unit)
            # uOPs come without their origins; where no entry is a repeat, an op's number is that of its entry
            if held is None or held.repeat is None:
                return where(unit, number)
            return where(unit, int(held.order(path.preloaded.get(unit, ()))[number]))

        super().__init__(path.overlay, uops, banks=banks, data=True, where=place)

    def release(self) -> None:
        """Let go of units and processes, when the run has ended. They refer to each other and to this object, and would
        hold the data of slots until a garbage collection."""
        for progress in self.progress.values():
            del progress.task
        for held in self.units, self.progress, self._tasks:
            held.clear()

    def await_any(self, task: RunningProcess, choice: AnyOf) -> bool:
        """Raise `ProgramError`: what comes first is not known without clocks."""
        raise ProgramError(f"{task.unit.owner} chooses by what comes first, which a run without clocks does not know")

    def _step(self, task: RunningProcess, ready: deque[RunningProcess], alive: set[RunningProcess]) -> None:
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
            if not gets and not puts and fire.do is None:  # a step that only takes time
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
                    if channel.space < words:  # room for one is enough: all n payloads go in as one entry
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
                channel.last = (task.unit.owner, task.unit.number, task.unit.issue)
                channel.put_all(words, results[i] if results else (None,) * n)  # type: ignore[attr-defined]
                _wake(channel.reader, ready)
                channel.reader = None
            left -= n
            if not left:
                fire = task.pending = None


def _wake(task: RunningProcess | None, ready: deque[RunningProcess]) -> None:
    if task is not None and not task.queued:
        task.queued = True
        ready.append(task)


def _reporting(uops: Iterator[Any], unit: str, completed: Callable[[str, int], None]) -> Iterator[Any]:
    """Yield uOPs, and call `completed` for each when the next one is asked for."""
    for number, uop in enumerate(uops):
        yield uop
        completed(unit, number)
