"""Report the deadlock of a native run as the simulator's executor does.

The native machine moves beats where the executor moves parts of steps. It reports what every process waits for and how
much every stream has carried. From this follows a state of the executor: the part of a step that each unit cannot take,
and the words that earlier ones left in the streams. The executor goes on from there, since its streams may hold more
than native ones, and ends at the same point, by a part of a step. It then writes the report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, NoReturn

from ....base.errors import BoardError
from ....isa.instruction_path import InstructionPath, decoder_of, uop_fifo
from ....isa.packet import expand
from ....isa.versal.tiles import BEAT
from ....machine.executor import ProcessNetwork, RunningProcess
from ....machine.steps import NEVER, Burst, Channel, Issue, Par, Step, Steps

End = tuple[str, bool]
"""Name of a stream, and True for its writer's end, False for its reader's."""


@dataclass(frozen=True)
class BlockedProcess:
    """A process that waits at a stream. process: its name. uop: number of the uOP that it runs. put: whether it waits
    for room to put an element; otherwise for an element to get. stream: its name, without the number of a lane."""

    process: str
    uop: int
    put: bool
    stream: str


@dataclass(frozen=True)
class StalledPipeline:
    """A process whose pipeline (style stp) holds elements for a stream back. process: its name. uop: number of the uOP
    that it runs. stream: its name. elements: how many are held back. stages: how many the pipeline has."""

    process: str
    uop: int
    stream: str
    elements: int
    stages: int


@dataclass(frozen=True)
class StreamProgress:
    """What a stream has carried. depth: in elements. written, taken: elements that were written and read so far. last:
    number of the uOP that wrote last."""

    depth: int
    written: int
    taken: int
    last: int

    def least(self, other: StreamProgress) -> StreamProgress:
        """Return what both of two lanes of a stream have carried: the minimum in every number."""
        return StreamProgress(*map(min, astuple(self), astuple(other)))


@dataclass
class NativeReport:
    """The report of the native machine at the end of a run. error: why the run failed, "" if it did not. waits:
    processes that wait. held: pipelines that hold elements back. streams: what each stream has carried, by its name;
    the lanes of a stream count as one."""

    error: str = ""
    waits: list[BlockedProcess] = field(default_factory=list)
    held: list[StalledPipeline] = field(default_factory=list)
    streams: dict[str, StreamProgress] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all processes have ended and all streams are empty."""
        return not self.waits and all(f.written == f.taken for f in self.streams.values())

    @staticmethod
    def parse(report: str) -> NativeReport:
        """Parse the text of a report; csim.h describes its lines. Raises `ValueError` for a line that does not have its
        parts.
        """
        out = NativeReport()
        for line in report.splitlines():
            kind, *rest = line.split("\t")
            if kind == "wait":
                process, uop, what, stream, _ = rest
                out.waits.append(BlockedProcess(process, int(uop), what == "put", _whole(stream)))
            elif kind == "held":
                process, uop, stream, elements, stages = rest
                out.held.append(StalledPipeline(process, int(uop), _whole(stream), int(elements), int(stages)))
            elif kind == "stream":
                name, flow = _whole(rest[0]), StreamProgress(*map(int, rest[1:]))
                out.streams[name] = flow.least(out.streams.get(name, flow))
            else:
                out.error = "\t".join(rest)
        return out


def _whole(stream: str) -> str:
    return stream.partition("[")[0]


def stalled(facts: NativeReport, seed: int) -> str:
    """Describe a deadlock that is caused by pipelines which cannot flush: a line for each of them. facts: the report of
    the run. seed: that of the run's random pauses, for the message.

    Returns "" if no pipeline causes the deadlock. A process that waits for room to put would wait with any style."""
    holders = {h.process for h in facts.held}
    guilty = dict.fromkeys(w.process for w in facts.waits if not w.put and w.process in holders)
    if not guilty:
        return ""
    lines = [f"board csim: deadlock with stalls={seed}: a pipeline of style stp holds back what others wait for"]
    for name in guilty:
        held = [h for h in facts.held if h.process == name]
        back = ", ".join(f"{h.elements} for {h.stream}" for h in dict.fromkeys(held))
        waits = ", ".join(dict.fromkeys(w.stream for w in facts.waits if w.process == name and not w.put))
        stages = held[0].stages
        lines.append(f"{name} uOP {held[0].uop}: waits for {waits}; its loop of {stages} stages holds {back}")
    others = dict.fromkeys(w.process for w in facts.waits if w.process not in guilty)
    lines.append(f"also blocked: {', '.join(others) or 'none'}")
    lines.append("a loop that waits for one stream and writes to another needs style=flp (hw/versal/README.md)")
    return "\n".join(lines)


def settle(path: InstructionPath, facts: NativeReport, where: Callable[[str, int], str]) -> NoReturn:
    """Raise the error that the executor would raise in the state in which the native machine stopped. It never returns.

    path: the program's instructions. facts: the report of the run. where: returns the source line of a unit's packet or
    op, given the unit and its number, for the report. Raises `DeadlockError`, or `ProgramError` if words are left in
    streams; `BoardError` if only a part of a word is left in a stream."""
    net, left = _stopped(path, facts, where)
    tasks = [net.progress[name].task for name in left]
    for task in tasks:
        task.steps = _rest(net, path, task.unit.name, left[task.unit.name])
    try:
        net.run_from(tasks)
    except _GoesOnError:  # an MME of the AIE array may wait for room that the simulator's does not need yet
        net, left = _stopped(path, facts, where)
        net.settle(set(_frozen(net, left)))
    raise BoardError("board csim: a part of a word is left in a stream")


class _GoesOnError(Exception):
    """A unit would end its uOP in the simulator."""


def _stopped(
    path: InstructionPath, facts: NativeReport, where: Callable[[str, int], str]
) -> tuple[ProcessNetwork, dict[str, Effects]]:
    """Return the executor in the state of the native machine, and what each waiting process has still to do."""
    net = ProcessNetwork(path.overlay, path, where=where)
    left: dict[str, Effects] = {}
    moved: dict[End, int] = {}
    # Native streams move at most a beat at a time; to the executor, a word may be many beats.
    beats = {s.name: max(1, s.token.word_elements // BEAT) for s in net.machine.streams}
    for name, flow in facts.streams.items():
        moved[name, False], moved[name, True] = flow.taken // beats.get(name, 1), flow.written // beats.get(name, 1)
    for name in dict.fromkeys(w.process for w in facts.waits):
        if name in net.progress:  # the executor has no fetch process
            left[name] = _left_of(net, path, name, [w for w in facts.waits if w.process == name], moved)
    for channel in net.channels:
        held = moved.get((channel.name, True), 0) - moved.get((channel.name, False), 0)
        _fill(channel, min(max(held, 0), channel.capacity))
        if channel.filled:
            writer, last = channel.source, facts.streams[channel.name].last
            channel.last = (writer, last, Issue(None, _origin(path, writer, last)))
    return net, left


def _frozen(net: ProcessNetwork, left: Mapping[str, Effects]) -> Iterator[RunningProcess]:
    """The processes and their lanes, each at the step that it cannot take."""
    for name, effects in left.items():
        task = net.progress[name].task
        yield task
        lanes = effects[0] if effects else []
        for number, steps in enumerate(lanes):
            if steps:
                lane = task if len(lanes) == 1 else RunningProcess(_each([]), task.unit, task, number)
                lane.pending = steps[0]
                yield lane


def _fill(channel: Channel, words: int) -> None:
    """Let a channel hold so many words."""
    channel.filled, channel.space = words, channel.capacity - words
    channel.tokens.clear()
    channel.credits.clear()
    if words:
        channel.tokens.append((words, None, 0.0, 0.0, NEVER))
    if channel.space:
        channel.credits.append((channel.space, 0.0, NEVER))


def _left_of(
    net: ProcessNetwork, path: InstructionPath, name: str, waits: Sequence[BlockedProcess], moved: dict[End, int]
) -> Effects:
    """Return what a waiting process has still to do of its uOP, from the part of a step on that it cannot take.

    moved: words put and got so far, by stream and direction; what was moved of untaken parts is taken out.
    """
    progress = net.progress[name]
    progress.number = waits[0].uop
    progress.issue = Issue(None, _origin(path, name, progress.number))
    idle = any(net.named_channel(w.stream).control and not w.put for w in waits)
    if progress.serves is not None or idle:
        channel = net.named_channel(waits[0].stream)
        return [[[Step(puts=(channel,)) if waits[0].put else Step(gets=(channel,))]]]
    done, effects = _effects(net, path, name, progress.number)
    blocked = {(w.stream, w.put) for w in waits}
    for at, lanes in enumerate(effects):
        left = [_left(steps, blocked, done, moved) for steps in lanes]
        if any(left):
            return [left, *effects[at + 1 :]]
    return []


def _left(steps: Sequence[Step], blocked: Collection[End], done: dict[End, int], moved: dict[End, int]) -> list[Step]:
    """Return what is left of the steps of a lane, of the first one as many parts as have not been taken; add to `done`
    what was."""
    for number, fire in enumerate(steps):
        words, parts = fire.words // fire.parts, fire.times * fire.parts
        ends = [(c.name, False) for c in fire.gets] + [(c.name, True) for c in fire.puts]
        stuck = [end for end in ends if end in blocked]
        taken = parts
        if stuck:  # as many as all the streams that it waits for allowed
            taken = min(parts, *((moved[end] - done.get(end, 0)) // words for end in stuck))
        for end in ends:
            done[end] = done.get(end, 0) + taken * words
        if taken < parts:
            for end in ends:
                moved[end] = done[end]
            rest = Burst(
                parts - taken, gets=fire.gets, puts=fire.puts, words=words, needs_whole_token=fire.needs_whole_token
            )
            return [rest, *steps[number + 1 :]]
    return []


def _rest(net: ProcessNetwork, path: InstructionPath, name: str, effects: Effects) -> Steps:
    """These effects, and then the wait for the next uOP, if there is one. Raises `_GoesOnError` if there is none."""
    for lanes in effects:
        if len(lanes) == 1:
            yield from lanes[0]
        else:
            yield Par(*map(_each, lanes))
    if net.progress[name].serves is None and path.overlay.by_unit[name].kind not in path.overlay.preloaded:
        yield Step(gets=(net.named_channel(uop_fifo(name)),))
    raise _GoesOnError


def _each(steps: Iterable[Step]) -> Steps:
    yield from steps


Effects = list[list[list[Step]]]
"""What a kernel does, one after the other: steps, by lanes that run side by side."""


def _effects(net: ProcessNetwork, path: InstructionPath, name: str, number: int) -> tuple[dict[End, int], Effects]:
    """Return the words that a unit's uOPs before this one have moved, by stream and direction, and what this uOP
    does."""
    unit = net.units[name]
    total: dict[End, int] = {}
    for i, uop in enumerate(path.uops(name)):
        effects = _lanes(unit.kernel(uop))
        if i == number:
            return total, effects
        for fire in (fire for lanes in effects for lane in lanes for fire in lane):
            for channels, put in ((fire.gets, False), (fire.puts, True)):
                for c in channels:
                    total[c.name, put] = total.get((c.name, put), 0) + fire.times * fire.words
    return total, []


def _lanes(steps: Any) -> Effects:
    out: Effects = []
    for effect in steps:
        if isinstance(effect, Par):
            out.append([[f for f in lane if isinstance(f, Step)] for lane in effect.lanes])
        elif effect.times > 0:
            out.append([[effect]])
    return out


def _origin(path: InstructionPath, name: str, number: int) -> int:
    """Return the packet, or the position in a preloaded list, that a process's uOP number belongs to; -1 if none.

    A decoder counts windows or mOPs instead of uOPs, the dispatcher packets.
    """
    unit = name.removeprefix(decoder_of(""))
    spec = path.overlay.by_unit.get(unit)
    if number < 0 or spec is None:
        return number
    if spec.kind in path.overlay.preloaded:  # its entries may repeat
        order = path.overlay.preloaded[spec.kind].order(path.preloaded.get(unit, ()))
        return int(order[number]) if number < len(order) else number
    loops = path.overlay.format_of(spec.kind).loops_window
    for i, packet in path.packets_for(unit):
        if packet.header.last:
            taken = 1
        elif name == unit:
            taken = sum(1 for _ in expand(packet, path.overlay))
        else:
            taken = min(1, packet.header.window) if loops else packet.header.window
        if number < taken:
            return i
        number -= taken
    return -1
