"""Deadlock detection and reports, compared with an exhaustive search on small random networks.

The reference below has no clocks, task queues or wake-ups. Its state is the position of every unit and lane and the
number of words in every stream; it explores all moves from all states.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.assembler.parser import parse
from rsn.base.deadlock_report import MAX_LINES, Deadlock
from rsn.base.errors import DeadlockError, ProgramError
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.overlays.fig6 import FIG6, Read, Write
from rsn.isa.packet import Packet
from rsn.isa.program import UnpackedProgram
from rsn.machine.description import Stream, UnitSpec
from rsn.machine.executor import ProcessNetwork
from rsn.machine.fast_engine import run_traces
from rsn.machine.plan import trace_workload
from rsn.machine.steps import Burst, Channel, Par, Step, Steps
from rsn.machine.unit import Unit
from rsn.scheduler.pack import pack
from rsn.tests.machine.toys import toy_overlay

# -- programs ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Move:
    """Get `words` words from each of `gets` and put as many to each of `puts`, `times` times; streams by index."""

    gets: tuple[int, ...] = ()
    puts: tuple[int, ...] = ()
    words: int = 1
    times: int = 1
    us: int = 0

    @property
    def ends(self) -> list[tuple[str, int]]:
        return [("get", s) for s in self.gets] + [("put", s) for s in self.puts]


@dataclasses.dataclass(frozen=True)
class Side:
    """Parallel lanes."""

    lanes: tuple[tuple[Move | Side, ...], ...]


Block = tuple[Move | Side, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """The streams of a network, and the uOPs of each unit."""

    streams: tuple[Stream, ...]
    programs: Mapping[str, tuple[Block, ...]]


def moves(block: Block) -> Iterator[Move]:
    for step in block:
        if isinstance(step, Side):
            for lane in step.lanes:
                yield from moves(lane)
        else:
            yield step


# -- the reference ----------------------------------------------------------------------------------------------------

Cursor = tuple[int, Any]
"""Index of the next step, and the cursors of its lanes, None if it has no lanes."""
State = tuple[tuple[Cursor, ...], tuple[int, ...]]
"""The cursor of every unit, and the number of words in every stream."""


def single(block: Block) -> Block:
    """The same block with every move repeated `times` times."""
    out: list[Move | Side] = []
    for step in block:
        if isinstance(step, Side):
            out.append(Side(tuple(single(lane) for lane in step.lanes)))
        else:
            out += [dataclasses.replace(step, times=1)] * step.times
    return tuple(out)


def rest(block: Block, at: int, lanes: Any = None) -> Cursor:
    """The cursor at step `at` or, if all its lanes have ended, at the next step."""
    while at < len(block):
        step = block[at]
        if not isinstance(step, Side):
            return at, None
        if lanes is None:
            lanes = tuple(rest(lane, 0) for lane in step.lanes)
        if any(cursor[0] < len(lane) for lane, cursor in zip(step.lanes, lanes, strict=True)):
            return at, lanes
        at, lanes = at + 1, None
    return at, None


def offers(block: Block, cursor: Cursor) -> Iterator[tuple[Move, Cursor]]:
    """The possible next moves of a unit, and its cursor after each."""
    at, lanes = cursor
    if at == len(block):
        return
    step = block[at]
    if not isinstance(step, Side):
        yield step, rest(block, at + 1)
        return
    for i, lane in enumerate(step.lanes):
        for move, after in offers(lane, lanes[i]):
            yield move, rest(block, at, (*lanes[:i], after, *lanes[i + 1 :]))


class Reference:
    """Explores every state that a network can reach; holds the only final state."""

    def __init__(self, case: Case) -> None:
        self.streams = case.streams
        self.names = list(case.programs)
        self.blocks: list[Block] = [single(tuple(s for uop in uops for s in uop)) for uops in case.programs.values()]
        self.bounds = []  # of each unit, the step with which each uOP ends
        for uops in case.programs.values():
            ends = [0]
            for uop in uops:
                ends.append(ends[-1] + len(single(uop)))
            self.bounds.append(ends[1:])
        start: State = tuple(rest(b, 0) for b in self.blocks), tuple(0 for _ in self.streams)
        seen, ahead = {start}, [start]
        stuck: list[State] = []
        while ahead:
            state = ahead.pop()
            after = list(self.after(state))
            if not after:
                stuck.append(state)
            for other in after:
                if other not in seen:
                    seen.add(other)
                    ahead.append(other)
            assert len(seen) < 200_000
        # A Kahn network has one final state, independent of the interleaving; there are no endless runs.
        assert len(stuck) == 1
        ((self.cursors, self.filled),) = stuck
        self.states = len(seen)

    def lacking(self, move: Move, filled: Sequence[int]) -> list[tuple[str, int]]:
        """The streams that block a move: too few words to get, or too little room to put."""
        return [("get", s) for s in move.gets if filled[s] < move.words] + [
            ("put", s) for s in move.puts if self.streams[s].depth - filled[s] < move.words
        ]

    def after(self, state: State) -> Iterator[State]:
        cursors, filled = state
        for u, block in enumerate(self.blocks):
            for move, cursor in offers(block, cursors[u]):
                if not self.lacking(move, filled):
                    now = list(filled)
                    for s in move.gets:
                        now[s] -= move.words
                    for s in move.puts:
                        now[s] += move.words
                    yield (*cursors[:u], cursor, *cursors[u + 1 :]), tuple(now)

    @property
    def going(self) -> set[str]:
        """The units that have not ended."""
        return {n for n, b, c in zip(self.names, self.blocks, self.cursors, strict=True) if c[0] < len(b)}

    @property
    def in_lanes(self) -> bool:
        """Whether a unit is blocked in several lanes."""
        return any(len(list(offers(b, c))) > 1 for b, c in zip(self.blocks, self.cursors, strict=True))

    @property
    def waits(self) -> list[tuple[str, int, str, str, int, int]]:
        """Unit, uOP, get or put, stream, words, words in the stream."""
        out = []
        for name, block, bounds, cursor in zip(self.names, self.blocks, self.bounds, self.cursors, strict=True):
            uop = sum(end <= cursor[0] for end in bounds)
            for move, _ in offers(block, cursor):
                for what, s in self.lacking(move, self.filled):
                    out.append((name, uop, what, self.streams[s].name, move.words, self.filled[s]))
        return sorted(out)

    def edges(self) -> set[tuple[str, str]]:
        """Pairs of units of which the first waits for the second."""
        ends = {s.name: (s.src, s.dst) for s in self.streams}
        return {(unit, ends[stream][what == "put"]) for unit, _, what, stream, _, _ in self.waits}


def has_cycle(edges: set[tuple[str, str]]) -> bool:
    """Whether a graph has a cycle: nodes are left after repeatedly removing those without an edge to a node left."""
    left = {a for a, _ in edges}
    while True:
        held = {a for a, b in edges if a in left and b in left}
        if held == left:
            return bool(left)
        left = held


def uneven(case: Case) -> dict[str, tuple[int, int, str, int]]:
    """By stream on which they differ: words sent, words received, and the unit and number of the first surplus uOP."""
    out = {}
    for i, s in enumerate(case.streams):
        counts = {}
        for what, unit in (("put", s.src), ("get", s.dst)):
            each = [sum(m.words * m.times * ((what, i) in m.ends) for m in moves(uop)) for uop in case.programs[unit]]
            counts[what] = each
        sent, received = sum(counts["put"]), sum(counts["get"])
        if sent != received:
            unit, each = (s.src, counts["put"]) if sent > received else (s.dst, counts["get"])
            so_far = [sum(each[: n + 1]) for n in range(len(each))]
            out[s.name] = sent, received, unit, next(n for n, words in enumerate(so_far) if words > min(sent, received))
    return out


# -- the same case on the engines -------------------------------------------------------------------------------------


class Toy(Unit):
    """A unit whose uOP is a block."""

    def kernel(self, uop: tuple[Block, tuple[Stream, ...]]) -> Steps:
        yield from self.steps(*uop)

    def steps(self, block: Block, streams: tuple[Stream, ...]) -> Steps:
        for step in block:
            if isinstance(step, Side):
                yield Par(*(self.steps(lane, streams) for lane in step.lanes))
                continue
            gets: tuple[Channel, ...] = tuple(self.source(streams[s].src, streams[s].label) for s in step.gets)
            puts: tuple[Channel, ...] = tuple(self.sink(streams[s].dst, streams[s].label) for s in step.puts)
            if step.times > 1:
                yield Burst(step.times, "us", step.us, gets=gets, puts=puts, words=step.words)
            else:
                yield Step("us", step.us, gets=gets, puts=puts, words=step.words)


def parts(case: Case) -> dict[str, Any]:
    units = tuple(UnitSpec(n, n, 0, Toy) for n in case.programs)
    overlay = toy_overlay(units, case.streams)
    issues = {n: [(uop, case.streams) for uop in uops] for n, uops in case.programs.items()}
    return {"machine": overlay, "workload": issues, "where": lambda unit, origin: f"{unit}.rsn:{origin + 1}"}


Outcome = tuple[type | None, Any, list[int]]
"""Type of the error or None; the clocks, or message and report; the words left in every stream."""


def ends(net: ProcessNetwork, run: Callable[[], Any]) -> Outcome:
    def filled() -> list[int]:
        return [c.filled for c in net.channels]

    try:
        clocks = run()
    except DeadlockError as e:
        return DeadlockError, (str(e), e.report), filled()
    except ProgramError as e:
        return ProgramError, str(e), filled()
    return None, clocks, filled()


def outcomes(case: Case, seed: int) -> Iterator[Outcome]:
    """The outcomes of the executor with two orders of stepping, and of the compiled engine."""
    shuffle = random.Random(seed)
    program = parts(case)
    for order in (None, lambda tasks: shuffle.sample(tasks, len(tasks))):
        net = ProcessNetwork(**program, order=order)
        yield ends(net, lambda net=net: (net.run(), {n: p.busy for n, p in net.progress.items()}))
    traces = trace_workload(**program)

    def compiled() -> Any:
        timing = run_traces(traces, program["machine"], compiled=lambda function: function)
        return timing.latency, timing.busy

    yield ends(traces.net, compiled)


def check_report(report: Deadlock, text: str, case: Case, reference: Reference) -> None:
    waits = sorted((w.unit, w.number, w.what, w.stream, w.words, w.filled) for w in report.waits)
    assert waits == reference.waits
    ends = {s.name: (s.src, s.dst) for s in case.streams}
    for w in report.waits:
        assert w.place == f"{w.unit}.rsn:{w.number + 1}"
        assert w.peer == ends[w.stream][w.what == "put"]
        assert w.ended == (w.peer not in reference.going)
    assert {w.unit for w in report.waits} == reference.going

    edges = reference.edges()
    assert bool(report.cycle) == has_cycle(edges)
    assert bool(report.cycle) != bool(report.chain)
    links = report.cycle or report.chain
    assert set(links) <= set(report.waits)
    assert len({w.unit for w in links}) == len(links)
    assert [w.peer for w in links[:-1]] == [w.unit for w in links[1:]]
    assert links[-1].peer == links[0].unit if report.cycle else links[-1].ended
    assert {(w.unit, w.peer) for w in links} <= edges

    expected = uneven(case)
    assert {i.stream: (i.sent, i.received, i.unit, i.uop) for i in report.imbalances} == expected
    assert report.uncounted == ""
    if report.chain:  # without an instruction path, a unit ends too early only if it has too few uOPs
        assert report.imbalance is not None
        assert report.imbalance.stream == links[-1].stream

    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) == len(report.waits)
    for row, w in zip(rows, links, strict=False):
        assert row.split()[:4] == [w.unit, "uOP", str(w.number), f"({w.place})"]
        assert f"waits to {w.what} {w.stream} ({w.filled}/{w.capacity}" in row
    assert ("every stream is balanced" in text) == (not expected)


# -- random networks --------------------------------------------------------------------------------------------------


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Random networks, with and without deadlock.

    First a complete run is generated move by move, which gives each unit its program. Then some moves are shifted,
    removed or changed, and some adjacent moves are joined to one step.
    """
    names = "ABCDE"[: draw(st.integers(2, 5))]
    ends = draw(
        st.lists(st.tuples(*[st.sampled_from(names)] * 2), min_size=draw(st.sampled_from([1, 3, 5])), max_size=6)
    )
    depths = [draw(st.integers(1, 4)) for _ in ends]
    filled = [0] * len(ends)
    programs: dict[str, list[Move]] = {n: [] for n in names}
    for _ in range(draw(st.integers(1, 14))):
        s = draw(st.integers(0, len(ends) - 1))
        room = depths[s] - filled[s]
        put = room > 0 and (not filled[s] or draw(st.booleans()))
        words = draw(st.integers(1, room if put else filled[s]))
        times = draw(st.integers(1, (room if put else filled[s]) // words))
        filled[s] += words * times if put else -words * times
        side = {"puts": (s,)} if put else {"gets": (s,)}
        programs[ends[s][not put]].append(Move(**side, words=words, times=times, us=draw(st.integers(0, 3))))
    if draw(st.integers(0, 7)):
        for s, words in enumerate(filled):
            if words:
                programs[ends[s][1]].append(Move(gets=(s,), words=words))

    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 3]))):
        spoil(draw, programs, depths)
    for block in programs.values():
        for i in range(len(block) - 2, -1, -1):
            a, b = block[i : i + 2]
            same = a.words == b.words and a.times == b.times and not set(a.ends) & set(b.ends)
            if same and not draw(st.integers(0, 3)):
                block[i : i + 2] = [dataclasses.replace(a, gets=a.gets + b.gets, puts=a.puts + b.puts)]
    streams = tuple(Stream(a, b, d, str(i)) for i, ((a, b), d) in enumerate(zip(ends, depths, strict=True)))
    blocks = {n: side_by_side(draw, tuple(block), 2) for n, block in programs.items()}
    if not draw(st.integers(0, 3)):  # a unit that needs one more word on several streams at once
        unit = draw(st.sampled_from(names))
        more = [Move(puts=(s,)) for s, (a, _) in enumerate(ends) if a == unit]
        more += [Move(gets=(s,)) for s, (_, b) in enumerate(ends) if b == unit]
        at = draw(st.integers(0, len(blocks[unit])))
        blocks[unit] = (*blocks[unit][:at], Side(tuple((m,) for m in more)), *blocks[unit][at:])
    return Case(streams, {n: cut(draw, block) for n, block in blocks.items()})


def spoil(draw: st.DrawFn, programs: dict[str, list[Move]], depths: list[int]) -> None:
    block = programs[draw(st.sampled_from(sorted(n for n, b in programs.items() if b) or ["A"]))]
    if not block:
        return
    i = draw(st.integers(0, len(block) - 1))
    match draw(st.sampled_from(["move", "move", "move", "leave out", "twice", "words", "depth"])):
        case "move":
            block.insert(draw(st.integers(0, len(block) - 1)), block.pop(i))
        case "leave out":
            del block[i]
        case "twice":
            block.insert(draw(st.integers(0, len(block))), block[i])
        case "words":
            block[i] = dataclasses.replace(block[i], words=draw(st.integers(1, 5)))
        case "depth":
            s = draw(st.integers(0, len(depths) - 1))
            depths[s] = max(1, depths[s] - 1)


def side_by_side(draw: st.DrawFn, block: Block, deep: int) -> Block:
    """Put some adjacent steps into lanes. Each end of a stream is in one lane: it has one reader and one writer."""
    flat = list(moves(block))
    if len(flat) < 2 or not deep or not draw(st.integers(0, 3)):
        return block
    a = draw(st.integers(0, len(flat) - 2))
    b = draw(st.integers(a + 2, len(flat)))
    lane_of: dict[tuple[str, int], int] = {}
    lanes: list[list[Move]] = [[], [], []]
    for move in flat[a:b]:
        taken = {lane_of[e] for e in move.ends if e in lane_of}
        lane = taken.pop() if taken else draw(st.integers(0, 2))
        if taken:  # a step on streams of two lanes
            return block
        lane_of.update(dict.fromkeys(move.ends, lane))
        lanes[lane].append(move)
    inner = tuple(side_by_side(draw, tuple(lane), deep - 1) for lane in lanes)
    return (*flat[:a], Side(inner), *flat[b:])


def cut(draw: st.DrawFn, block: Block) -> tuple[Block, ...]:
    """Cut a block into uOPs, some of them empty."""
    marks = sorted(draw(st.lists(st.integers(0, len(block)), max_size=3)))
    return tuple(block[a:b] for a, b in zip([0, *marks], [*marks, len(block)], strict=True))


@pytest.mark.long
def test_against_every_interleaving() -> None:
    tally: Counter[str] = Counter()

    @settings(max_examples=400)
    @given(cases(), st.integers(0, 99))
    def check(case: Case, seed: int) -> None:
        reference = Reference(case)
        first, *others = outcomes(case, seed)
        assert others == [first, first]
        error, facts, filled = first
        assert filled == list(reference.filled)
        if reference.going:
            verdict = "deadlock"
            assert error is DeadlockError
            text, report = facts
            check_report(report, text, case, reference)
            kinds = ["a cycle" if report.cycle else "a chain", "uneven" if report.imbalances else "balanced"]
            tally.update(kinds + ["in lanes"] * reference.in_lanes)
        elif any(reference.filled):
            verdict = "left over"
            assert error is ProgramError
        else:
            verdict = "complete"
            assert error is None
        tally.update([verdict, "all"])

    check()
    # both cases must have been generated often enough
    assert min(tally[k] for k in ("deadlock", "complete")) > tally["all"] / 6
    assert min(tally[k] for k in ("left over", "a cycle", "a chain", "balanced", "uneven", "in lanes")) > 0


def test_the_reference_knows_a_deadlock() -> None:
    """Two units that each fill the other's stream before they read: deadlock, but not with deeper streams."""

    def both(depth: int) -> Case:
        streams = Stream("A", "B", depth, "0"), Stream("B", "A", depth, "1")
        a: Block = (Move(puts=(0,), times=2), Move(gets=(1,), times=2))
        b: Block = (Move(puts=(1,), times=2), Move(gets=(0,), times=2))
        return Case(streams, {"A": (a,), "B": (b,)})

    shallow = Reference(both(1))
    assert shallow.going == {"A", "B"}
    assert shallow.filled == (1, 1)
    assert shallow.waits == [("A", 0, "put", "A->B.0", 1, 1), ("B", 0, "put", "B->A.1", 1, 1)]
    assert not Reference(both(2)).going


# -- reports ----------------------------------------------------------------------------------------------------------


def stopped(case: Case) -> DeadlockError:
    with pytest.raises(DeadlockError) as e:
        ProcessNetwork(**parts(case)).run()
    return e.value


def test_a_unit_may_wait_for_itself() -> None:
    error = stopped(Case((Stream("A", "A", 2, "0"),), {"A": ((Move(gets=(0,)), Move(puts=(0,))),)}))
    assert str(error) == (
        "deadlock: no unit can move\n"
        "A waits for itself:\n"
        "  A  uOP 0 (A.rsn:1)  waits to get A->A.0 (0/2 empty)\n"
        "every stream is balanced: order or depth is at fault"
    )


def test_a_long_report_is_cut() -> None:
    """A ring of 60 units, and another unit with 60 lanes."""
    names = [f"U{i}" for i in range(60)]
    ring = [Stream(a, b, 1, "r") for a, b in zip(names, [*names[1:], names[0]], strict=True)]
    more = [Stream("Z", n, 1, "z") for n in names]
    programs: dict[str, tuple[Block, ...]] = {
        n: ((Move(gets=(i - 1 if i else 59,)), Move(puts=(i,)), Move(gets=(60 + i,))),) for i, n in enumerate(names)
    }
    programs["Z"] = ((Side(tuple((Move(puts=(60 + i,), times=2),) for i in range(60))),),)
    error = stopped(Case((*ring, *more), programs))
    assert len(error.report.cycle) == 60
    assert len(error.report.waits) == 120
    assert len(error.report.imbalances) == 60
    assert json.loads(json.dumps(dataclasses.asdict(error.report)))["cycle"][0]["stream"] == "U59->U0.r"
    lines = str(error).splitlines()
    assert len(lines) == MAX_LINES
    assert "  ... and 41 more" in lines
    assert lines[-1].startswith("sends and receives differ also on Z->U1.z, ")


def test_streams_are_counted_once_when_the_report_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for the smallest depth meets many deadlocks and reads no report."""
    calls = []

    def counting(expansion: Any) -> Any:
        calls.append(expansion)
        raise ValueError("a kernel of somebody's")

    monkeypatch.setattr("rsn.machine.deadlock.balance", counting)
    error = stopped(Case((Stream("A", "B", 1, "0"),), {"A": (), "B": ((Move(gets=(0,)),),)}))
    assert not calls
    assert str(error).splitlines()[-1] == "not every stream was counted: ValueError: a kernel of somebody's"
    assert error.report.uncounted
    assert len(calls) == 1


ONE = [Packet.of(1, [Read(size=1, to_fu3=1)]), Packet.of(3, [Write(size=1, from_fu1=1)])]
LAST = [Packet.terminator(o) for o in (1, 2, 3)]


def test_an_image_without_a_terminator() -> None:
    with pytest.raises(DeadlockError) as e:
        ProcessNetwork(FIG6, InstructionPath(FIG6, [*ONE, *LAST[:1]])).run()
    assert (
        str(e.value)
        == """\
deadlock: no unit can move
each waits for the next, and the last for the dispatcher, which has ended:
  FU2          start  waits to get uOP FIFO of FU2 (0/2 empty)
  decoder FU2  start  waits to get mOP FIFO of FU2 (0/6 empty; dispatcher has ended)
waiting for the dispatcher, which has ended: FU3
every stream is balanced: the image ends too early, or it ends a unit too early"""
    )


def test_a_program_too_long_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rsn.isa.instruction_path.MAX_UOPS", 1)
    with pytest.raises(DeadlockError) as e:
        ProcessNetwork(FIG6, InstructionPath(FIG6, [ONE[1], *ONE, *LAST])).run()
    assert str(e.value).splitlines()[-1] == "not every stream was counted: the program has more than 1 uOPs"


MEMB = """\
MemB[0..1] {
    load dim1=128 dim2=128
    for STEPS-1 {
        load dim1=128 dim2=128 send acc_a=1 acc_b=%d
"""
LOADS = """\
        for k in 0..K {
            load x[0:128, k*128:+128] -> MemA0
        }
"""
STORES = """\
        store y[0:128, p*256:+128]     <- MemC0
        store y[0:128, p*256+128:+128] <- MemC1
"""


@pytest.mark.parametrize(
    ("report", "right", "wrong"),
    [
        ("fig10_acc_b", MEMB % 1, MEMB % 2),  # the tiles of w are sent twice
        ("fig10_order", LOADS + STORES, STORES + LOADS),  # y is stored before x is loaded
    ],
)
def test_a_broken_program_is_reported_like_this(root: Path, report: str, right: str, wrong: str) -> None:
    """Compares the whole report with the one in the folder `reports`."""
    text = (root / "programs" / "fig10.rsn").read_text(encoding="utf-8")
    assert text.count(right) == 1
    kernels = parse(text.replace(right, wrong), "fig10.rsn")
    assert isinstance(kernels, UnpackedProgram)
    expected = (root / "tests" / "machine" / "reports" / f"{report}.txt").read_text(encoding="utf-8")
    with pytest.raises(DeadlockError) as e:
        pack(kernels)
    assert f"{e.value}\n" == expected
