"""Normal depths of a stream program: the least with which no task ever waits for a free slot.

They are the peaks of a run on endless FIFOs, counted on the timed engine. So they are right for tasks of several rates,
for tasks that a slow input holds up, and for tasks that lead to each other, where equations for a pair of kernels
(`equations`) are not. No FIFO can be less deep without a wait: a put would find it full.

Most of these waits cost nothing: a task that loads weights may wait until they are needed. `fast_depths` lowers normal
depths as far as all executions still end as early as with endless FIFOs.

A task that starts as soon as it can fills the FIFOs behind it early. `later_starts` finds tasks that may start later at
no cost in time, by a linear program over start times weighted by bits (`starts`); the program then states the wait with
`cycles(n)` as the first statement of the task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType

from ...base.errors import ProgramError
from ...base.place import Place
from ..sizing.least import Least, least
from ..sizing.program import SizedProgram, TimeError
from ..timing.bytecode import TooLong
from ..timing.timed import COUNTED, TOKENS, EndlessWait, Late, TimedProgram, TooManyTokens
from ..tree import Beat, Body, FixedLoop, Nodes
from .measure import TaskTimes, together
from .starts import Fifo, KernelGraph, schedule


@dataclass(frozen=True)
class NormalDepths:
    """The normal depths of a program. depths: in elements, by the name of the declared stream. bits: of all slots
    together. starts: cycles that an instance waits before its first beat, by its number; instances that do not wait are
    left out. latency: cycles of one execution, modelled."""

    depths: Mapping[str, int]
    bits: int
    starts: Mapping[int, int]
    latency: int


def normal_depths(program: SizedProgram, later: bool = False) -> NormalDepths:
    """Return the normal depths for one execution of a program.

    All elements of an array of streams get the depth of the deepest. Where data decide between outcomes, the depths are
    enough for each outcome. later: whether tasks may start later (`later_starts`) if that takes fewer bits in all; the
    latency stays. Raises `TimeError` if the time of the program is not known before the run, or the program is too
    large, and `ProgramError` if a beat waits for ever to fire."""
    bodies = program.outcomes.bodies
    soon = _normal(program, bodies, {})
    if not later:
        return soon
    starts = later_starts(program)
    found = _normal(program, bodies, starts)
    return found if found.bits < soon.bits and found.latency <= soon.latency else soon


def fast_depths(program: SizedProgram, slack: float = 0.0, tries: int = 200) -> Least:
    """Return the depths with the fewest bits, none above the normal one, with which every execution ends as early as
    with FIFOs of unlimited depth: in elements, by the name of the declared stream, with all bits as the cost.

    slack: by which share of that time executions may end later, for fewer bits; 0 or more. tries: as for
    `sizing.least.least`.

    The search begins at the normal depths of all executions, which takes a few runs. `sizing.depths.sizes` begins at
    the number of tokens and takes far longer; it may find fewer bits, where one FIFO above its normal depth lets others
    be less deep. So `bound` and `proved` of the result hold among depths up to the normal ones. Raises as
    `normal_depths`, and `ProgramError` for a slack below 0."""
    if slack < 0:
        raise ProgramError(f"the slack is {slack}; the least is 0, which is no later end")
    high = _normal(program, program.outcomes.bodies, {}, program.executions).depths
    endless = program.together({})
    assert endless is not None, "beats on endless streams wait for ever"
    runs = tuple(replace(run, ends=tuple(int(end * (1 + slack)) for end in run.ends)) for run in endless.runs)
    allowed = replace(endless, runs=runs)
    low = {name: group.decl.packing for name, group in program.groups.items()}
    weights = {name: group.weight for name, group in program.groups.items()}
    return least(low, high, low, weights, lambda depths: program.later(depths, allowed), tries)


def _normal(
    program: SizedProgram, outcomes: tuple[tuple[Body, ...], ...], starts: Mapping[int, int], executions: int = 1
) -> NormalDepths:
    found: dict[int, int] = {}
    latency = 0
    for bodies in outcomes:
        try:
            model = TimedProgram(waiting(bodies, starts), program.packing, executions)
            most, end = peaks(model, program.buffers)
        except TooLong:
            raise TimeError(f"{program.source.file}: error: its beats take too many cycles to be timed") from None
        except TooManyTokens:
            message = f"more than {TOKENS} tokens would wait on its streams at once"
            raise TimeError(f"{program.source.file}: error: {message}") from None
        latency = max(latency, end)
        for s, depth in most.items():
            found[s] = max(depth, found.get(s, 0))
    depths: dict[str, int] = {}
    for name, group in program.groups.items():
        packing = group.decl.packing
        deepest = max(found[s] for s in group.elements)
        depths[name] = -(-max(1, deepest) // packing) * packing
    return NormalDepths(depths, program.bits(depths), dict(starts), latency)


def waiting(bodies: tuple[Body, ...], starts: Mapping[int, int]) -> tuple[Body, ...]:
    """Return bodies in which some tasks wait before their first beat. bodies: of beats. starts: cycles to wait, by the
    position of the body."""
    nodes = Nodes()
    made: list[Body] = []
    for k, body in enumerate(bodies):
        wait = starts.get(k, 0)
        made.append((nodes.beat((), wait, _place(body)), *body) if wait and body else body)
    return tuple(made)


def _place(body: Body) -> Place:
    """The place of the first beat."""
    node = body[0]
    while isinstance(node, FixedLoop):
        node = node.body[0]
    assert isinstance(node, Beat), "beats and loops only"
    return node.place


def peaks(model: TimedProgram, buffers: Mapping[int, int] = MappingProxyType({})) -> tuple[dict[int, int], int]:
    """Return the most slots in use at once on each stream, by its number, and the latency, for FIFOs of unlimited
    depth.

    model: of the program. buffers: depths of streams whose depth is limited, in elements, by the number of the stream.
    The latency is that of one run of the model, in cycles. A stream with many tokens is run with a limit that is
    doubled until no put waits for a slot. Raises `TooManyTokens` as `TimedProgram.run`, and `ProgramError` if a beat
    waits for ever to fire."""
    depths = {s: n if n < COUNTED else COUNTED - 1 for s, n in model.tokens.items()} | dict(buffers)
    while True:
        run = model.run(depths)
        assert not isinstance(run, Late), "a run without limits"
        if isinstance(run, EndlessWait):
            full = {s for s, put in run.waits.values() if put} - buffers.keys()
            if not full:
                raise ProgramError("beats wait for ever to fire on endless streams: each waits for a token of another")
        else:
            full = {s for s, cycles in run.full.items() if cycles} - buffers.keys()
            if not full:
                # A stream that is as deep as its tokens, and long, is not counted: it was full with one slot less.
                return {s: run.peak.get(s, n) for s, n in model.tokens.items()}, run.latency
        for s in full:
            tokens = model.tokens[s]
            depths[s] = tokens if depths[s] >= tokens - 1 else min(2 * depths[s], tokens - 1)


def later_starts(program: SizedProgram) -> dict[int, int]:
    """Return how many cycles instances wait before their first beat if tasks start later, so that FIFOs hold fewer bits
    and the program ends no later: by the number of the instance; instances that do not wait are left out.

    Each token of a run with FIFOs of unlimited depth waits some cycles on its stream before it is got; the least wait
    on a stream is its slack. A task may start later by up to the slack of its outputs, and more if the tasks that read
    them start later too. A linear program finds the delays that save most bits. The result is empty for programs with
    several outcomes of the data, with tasks that wait for each other's tokens in a cycle or that load and store while
    they compute, or with too many beats to be listed. Raises `TimeError` if the time of the program is not known before
    the run."""
    outcomes = program.outcomes.bodies
    if len(outcomes) != 1 or program.buffers:
        return {}
    try:
        times = together(outcomes[0], program.packing)
        graph = _graph(program, times)
    except ProgramError:
        return {}
    moved = schedule(graph, "bits", max((time.last for time in times), default=0), sources_wait=True).starts
    return {k: times[k].first + move for k, move in enumerate(moved) if move}


def _graph(program: SizedProgram, times: tuple[TaskTimes, ...]) -> KernelGraph:
    """The graph of how far tasks may move: a stream with slack lets its source move that much more than its target."""
    bits = {s: group.bits for group in program.groups.values() for s in group.elements}
    readers = {s: (k, trace) for k, time in enumerate(times) for s, trace in time.gets.items()}
    fifos = []
    for k, time in enumerate(times):
        for s, put in time.puts.items():
            target, get = readers[s]
            slack = int((get.begin - put.end).min())
            rate = Fraction(put.tokens, int(put.end[-1] - put.begin[0]))
            fifos.append(Fifo(k, target, bits[s], -slack, rate))
    names = tuple(str(k) for k in range(len(times)))
    return KernelGraph(names, (None,) * len(times), tuple(fifos), tuple(time.last for time in times))
