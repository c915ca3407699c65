"""Traces: the file against the format, and what it shows against the run."""

import gzip
import io
import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rsn
from rsn.assembler.parser import parse
from rsn.base.durations import duration
from rsn.hw.sim import trace
from rsn.hw.sim.machine import Machine
from rsn.hw.sim.timeline import Timeline
from rsn.hw.sim.trace import SEGMENTS, UNITS, Titles, TraceEvents, microseconds, round_up, write_trace
from rsn.isa.overlays import XNN
from rsn.isa.program import Program, UnpackedProgram
from rsn.scheduler.graph import ActivationFunction, AttentionLayer, Gemm, LayerGraph, Norm, Output
from rsn.scheduler.lower import lower
from rsn.scheduler.pack import pack
from rsn.scheduler.schedule import PAPER

FOLDER = Path(str(rsn.__file__)).parent / "programs"
SHIPPED = sorted(file.stem for file in FOLDER.glob("*.rsn"))
Event = dict[str, Any]


def encoder(layers: int, batch: int = 2, seq: int = 256, hidden: int = 128, heads: int = 2) -> LayerGraph:
    """Transformer layers with a mask; their numbers do not matter here."""
    one, norm = np.ones(hidden, np.float32), Norm(1e-6)

    def gemm(x: str, y: str, **more: Any) -> Gemm:
        return Gemm(y, x, y, np.zeros((hidden, hidden), np.float32), np.zeros(hidden, np.float32), **more)

    out: list[Gemm | AttentionLayer] = []
    x = "x"
    for i in range(layers):
        q, k, v, c, d, h, y = (f"l{i}.{n}" for n in "qkvcdhy")
        out += [gemm(x, q), gemm(x, k), gemm(x, v), AttentionLayer(f"l{i}", q, k, v, c, heads, hidden // heads, True)]
        out += [
            gemm(c, d, residual=x, residual_scale=one, norm=norm),
            gemm(d, h, activation=ActivationFunction.GELU_TANH),
        ]
        out += [gemm(h, y, residual=d, residual_scale=one, norm=norm)]
        x = y
    return LayerGraph(batch, seq, {"x": hidden}, (Output(x),), tuple(out))


@cache
def program(name: str) -> Program:
    if name == "encoder":
        return pack(lower(encoder(2), XNN, PAPER).kernels)
    file = FOLDER / f"{name}.rsn"
    kernels = parse(file.read_text(encoding="utf-8"), file.name)
    return pack(kernels) if isinstance(kernels, UnpackedProgram) else kernels


@cache
def timeline(name: str) -> Timeline:
    return Timeline(Machine(program(name)))


@pytest.fixture(params=[*SHIPPED, "encoder"])
def drawn(request: pytest.FixtureRequest) -> Timeline:
    return timeline(request.param)


def loaded(t: Timeline, folder: Path) -> dict[str, Any]:
    write_trace(t, folder / "t.json")
    found = json.loads((folder / "t.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def ns(us: float) -> int:
    """Microseconds of the file as Perfetto reads them: cut off (`CoerceToTs` of its importer)."""
    return int(us * 1000.0)


# -- the format -----------------------------------------------------------------------------------------------------

KEYS = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "C": {"ph", "pid", "ts", "name", "args"},
    "s": {"ph", "pid", "tid", "ts", "id", "name", "cat"},
    "f": {"ph", "pid", "tid", "ts", "id", "name", "cat", "bp"},
}
OPTIONAL = {"M": {"tid"}, "s": {"args"}}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def complaints(found: Any) -> Iterator[str]:
    """What the Trace Event Format and the two viewers have against a trace, as far as ours use it."""
    if not isinstance(found, dict) or not isinstance(found.get("traceEvents"), list):
        yield "not the JSON object format"
        return
    if found.get("displayTimeUnit") not in ("ms", "ns"):
        yield f"displayTimeUnit {found.get('displayTimeUnit')!r}"
    if not isinstance(found.get("otherData"), dict):
        yield "otherData is no object"
    well_formed = []
    for at, e in enumerate(found["traceEvents"]):
        wrong = list(_malformed(e))
        yield from (f"event {at}: {w}" for w in wrong)
        if not wrong:
            well_formed.append(e)
    yield from _badly_named(well_formed)
    yield from _overlapping([e for e in well_formed if e["ph"] == "X"])
    yield from _loose(well_formed)
    yield from _miscounted([e for e in well_formed if e["ph"] == "C"])


def _malformed(e: Any) -> Iterator[str]:
    if not isinstance(e, dict) or e.get("ph") not in KEYS:
        yield "no event of a phase we use"
        return
    ph = e["ph"]
    missing, unknown = KEYS[ph] - e.keys(), e.keys() - KEYS[ph] - OPTIONAL.get(ph, set())
    if missing or unknown:
        yield f"{ph}: missing {sorted(missing)}, unknown {sorted(unknown)}"
        return
    for key, kind in (("pid", int), ("tid", int), ("name", str), ("cat", str), ("args", dict), ("id", int)):
        if key in e and (not isinstance(e[key], kind) or isinstance(e[key], bool)):
            yield f"{key} is {e[key]!r}"
    for key in ("ts", "dur"):
        if key in e and (isinstance(e[key], bool) or not isinstance(e[key], int | float) or not 0 <= e[key] < 1e15):
            yield f"{key} is {e[key]!r}"
    if not e["name"]:
        yield "without a name"
    if "cat" in e and (not e["cat"] or "," in e["cat"]):
        yield f"categories {e['cat']!r}"
    if ph == "f" and e["bp"] != "e":
        yield "a flow that ends at the next slice"
    if ph == "C" and not (e["args"] and all(type(v) in (int, float) for v in e["args"].values())):
        yield f"counter values {e['args']}"
    if ph == "M":
        key, kind = METADATA.get(e["name"], ("", str))
        if not key or set(e["args"]) != {key} or not isinstance(e["args"][key], kind):
            yield f"metadata {e['name']} {e['args']}"
        if e["name"].startswith("thread") and "tid" not in e:
            yield "metadata of no thread"


def _badly_named(found: list[Event]) -> Iterator[str]:
    said = Counter((e["name"], e["pid"], e.get("tid")) for e in found if e["ph"] == "M")
    yield from (f"{key} said {n} times" for key, n in said.items() if n > 1)
    for pid in {e["pid"] for e in found}:
        if not said["process_name", pid, None]:
            yield f"process {pid} has no name"
    threads = {(e["pid"], e["tid"]) for e in found if "tid" in e}
    for pid, tid in threads:
        if not said["thread_name", pid, tid]:
            yield f"thread {tid} of process {pid} has no name"
        if tid in {e["pid"] for e in found} or not tid:
            yield f"Perfetto takes thread {tid} for the main one of a process"
    if len({tid for _, tid in threads}) < len(threads):
        yield "two threads of one number, which Perfetto does not tell apart"


def _overlapping(slices: list[Event]) -> Iterator[str]:
    """Slices of a thread follow each other, read as floats or as Perfetto reads them."""
    for tid, own in _by(slices, "tid").items():
        own = sorted(own, key=lambda e: e["ts"])
        for a, b in pairwise(own):
            if _end(a) > ns(b["ts"]) or a["ts"] + a["dur"] > b["ts"] + 1e-6:
                yield f"thread {tid}: {a['name']} at {a['ts']} runs into {b['name']} at {b['ts']}"


def _loose(found: list[Event]) -> Iterator[str]:
    """Flows that do not lead from one slice to another, the way Perfetto binds them: events in the order of time,
    the
    longest slices first, then as in the file; the last slice to begin is open until another of its thread begins."""
    order = sorted(
        (e for e in found if e["ph"] in "Xsf"), key=lambda e: (ns(e["ts"]), e["ph"] != "X", -ns(e.get("dur", 0)))
    )
    open_: dict[int, list[Event]] = defaultdict(list)
    begun: dict[int, Event] = {}
    ended: set[int] = set()
    for e in order:
        around = open_[e["tid"]]
        if e["ph"] == "X":
            while around and _end(around[-1]) <= ns(e["ts"]):
                around.pop()
            around.append(e)
            continue
        if not around or ns(e["ts"]) >= _end(around[-1]):
            yield f"flow {e['id']} {e['ph']} at {e['ts']} lies in no slice"
        if e["ph"] == "s":
            if e["id"] in begun:
                yield f"flow {e['id']} begins twice"
            begun[e["id"]] = e
        elif e["id"] not in begun or e["id"] in ended:
            yield f"flow {e['id']} ends without a beginning"
        else:
            ended.add(e["id"])
            s = begun[e["id"]]
            if (s["name"], s["cat"]) != (e["name"], e["cat"]) or s["ts"] > e["ts"]:
                yield f"flow {e['id']} ends as another, or before it begins"
    if len(begun) != len(ended):
        yield f"{len(begun) - len(ended)} flows do not end"


def _end(e: Event) -> int:
    return ns(e["ts"]) + ns(e["dur"])


def _miscounted(counters: list[Event]) -> Iterator[str]:
    for (pid, name), own in _counters(counters).items():
        if any(a["ts"] >= b["ts"] for a, b in pairwise(own)):
            yield f"counter {name} of process {pid}: not in the order of time"
        if len({frozenset(e["args"]) for e in own}) > 1:
            yield f"counter {name} of process {pid}: its series change"


def _by(found: list[Event], key: str) -> dict[Any, list[Event]]:
    out: dict[Any, list[Event]] = defaultdict(list)
    for e in found:
        out[e[key]].append(e)
    return out


def _counters(found: list[Event]) -> dict[tuple[int, str], list[Event]]:
    out: dict[tuple[int, str], list[Event]] = defaultdict(list)
    for e in found:
        if e["ph"] == "C":
            out[e["pid"], e["name"]].append(e)
    return out


def test_the_format(drawn: Timeline, tmp_path: Path) -> None:
    assert list(complaints(loaded(drawn, tmp_path))) == []


def slice_(**other: Any) -> Event:
    whole = {"ph": "X", "pid": 1, "tid": 5, "ts": 0.0, "dur": 2.0, "name": "a", "cat": "b", "args": {}}
    return {k: v for k, v in (whole | other).items() if v is not None}


def flow(ph: str, **other: Any) -> Event:
    end = {"bp": "e"} if ph == "f" else {}
    whole = {"ph": ph, "pid": 1, "tid": 5, "ts": 1.0, "id": 1, "name": "s", "cat": "c", **end}
    return {k: v for k, v in (whole | other).items() if v is not None}


NAMED: list[Event] = [
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "units"}},
    {"ph": "M", "pid": 1, "tid": 5, "name": "thread_name", "args": {"name": "DDR"}},
]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([slice_(dur=None)], "missing ['dur']"),
        ([slice_(ts="0")], "ts is '0'"),
        ([slice_(ts=float("nan"))], "ts is nan"),
        ([slice_(name="")], "without a name"),
        ([slice_(pid=2)], "process 2 has no name"),
        ([slice_(tid=1)], "thread 1"),
        ([slice_(), slice_(ts=1.999)], "runs into"),
        ([slice_(), flow("s"), flow("f", bp=None)], "missing ['bp']"),
        ([slice_(), flow("s")], "1 flows do not end"),
        ([slice_(), flow("f")], "without a beginning"),
        ([slice_(), flow("s", ts=2.0), flow("f", ts=2.0)], "lies in no slice"),
        ([slice_(), flow("s"), flow("f", name="t")], "ends as another"),
        ([{"ph": "C", "pid": 1, "ts": 0.0, "name": "n", "args": {"x": "1"}}], "counter values"),
        ([{"ph": "C", "pid": 1, "ts": 0.0, "name": "n", "args": {"x": 1}}] * 2, "not in the order of time"),
        ([{"ph": "M", "pid": 1, "tid": 5, "name": "thread_name", "args": {"name": 3}}], "metadata"),
    ],
)
def test_the_check_of_the_format_finds(wrong: list[Event], said: str) -> None:
    other = {"displayTimeUnit": "ns", "otherData": {}}
    assert list(complaints({"traceEvents": [*NAMED, slice_(), flow("s"), flow("f")], **other})) == []
    found = list(complaints({"traceEvents": [*NAMED, *wrong], **other}))
    assert any(said in x for x in found), found


@given(st.integers(0, 10**13))
def test_times_are_read_as_they_were_written(n: int) -> None:
    (us,) = microseconds(np.array([n]))
    assert ns(json.loads(json.dumps(us))) == n
    assert us == pytest.approx(n / 1000, rel=1e-15)


@given(st.integers(1, 10**12))
def test_bins_have_round_widths(n: int) -> None:
    width = round_up(n)
    assert n <= width < max(2.5 * n, 2)
    assert str(width).rstrip("0") in "125"


# -- what is shown --------------------------------------------------------------------------------------------------


def threads(found: list[Event]) -> dict[int, str]:
    return {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}


def area(own: list[Event]) -> float:
    """Of a counter, over microseconds; it ends at 0."""
    (what,) = own[0]["args"]
    assert own[-1]["args"][what] == 0
    return sum(a["args"][what] * (b["ts"] - a["ts"]) for a, b in pairwise(own))


def test_every_unit_that_worked_has_a_track(drawn: Timeline) -> None:
    found = list(TraceEvents(drawn).events())
    busy = {n for n, s in drawn.machine.timing.busy.items() if s > 0}
    shown = {e["tid"] for e in found if e["ph"] == "X" and e["pid"] != SEGMENTS}
    assert busy <= {name for tid, name in threads(found).items() if tid in shown} == {t.name for t in drawn.tracks}


def test_segments_are_slices_on_tracks_where_they_do_not_overlap(drawn: Timeline) -> None:
    segments = drawn.machine.program.segments
    rows = [e for e in TraceEvents(drawn).events() if e["ph"] == "X" and e["pid"] == SEGMENTS]
    assert [(e["name"], e["args"]["kind"]) for e in rows] == [(s.name, s.kind) for s in segments]
    intervals = drawn.intervals(segments)
    assert [e["ts"] for e in rows] == pytest.approx([1e6 * start for start, _ in intervals], abs=1e-3)
    for tid in {e["tid"] for e in rows}:
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in rows if e["tid"] == tid)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in pairwise(own))
    assert max((end for _, end in intervals), default=drawn.seconds) == drawn.seconds


def test_a_slice_is_a_uop(drawn: Timeline) -> None:
    found = [e for e in TraceEvents(drawn).events() if e["ph"] in "XM"]
    names = threads(found)
    rows = {(names[e["tid"]], e["args"]["uop"]): e for e in found if e["ph"] == "X" and e["pid"] == UNITS}
    expansion = Titles(drawn.machine).expansion
    for track in drawn.tracks:
        if track.name not in expansion.sequences:
            continue
        run = expansion.sequences[track.name]
        for number, origin, start, end in zip(track.number, track.origin, track.start, track.end, strict=True):
            if end == start:
                continue
            e = rows.pop((track.name, int(number)))
            assert run.origins[number] == origin
            assert e["ts"] == pytest.approx(start * 1e6, abs=6e-4)
            assert e["ts"] + e["dur"] == pytest.approx(end * 1e6, abs=6e-4)
            assert 0 <= e["args"]["busy"] <= 1
            assert e["cat"] in drawn.causes
    assert rows == {}


def test_the_last_slice_ends_with_the_run(drawn: Timeline) -> None:
    end = max(e["ts"] + e["dur"] for e in TraceEvents(drawn).events() if e["ph"] == "X")
    assert end == pytest.approx(drawn.seconds * 1e6, abs=6e-4)


def sent(t: Timeline) -> Counter[tuple[str, int, int]]:
    """Words from uOP to uOP along each stream: the log replayed, word by word."""
    streams = t.machine.program.overlay.streams
    queues: dict[int, deque[int]] = defaultdict(deque)
    out: Counter[tuple[str, int, int]] = Counter()
    for step, number in zip(t.step.tolist(), t.number.tolist(), strict=True):
        s = t.log.steps[step]
        for c in s.gets:
            if c < len(streams):
                out.update((streams[c].name, queues[c].popleft(), number) for _ in range(s.words))
        for c in s.puts:
            if c < len(streams):
                queues[c].extend([number] * s.words)
    assert not any(queues.values())
    return out


def arrows(found: list[Event]) -> Iterator[tuple[str, Event, Event, int]]:
    """Stream, sending slice, receiving slice, words."""
    slices = {tid: sorted(own, key=lambda e: e["ts"]) for tid, own in _by(_phase(found, "X"), "tid").items()}
    starts = {tid: [e["ts"] for e in own] for tid, own in slices.items()}

    def around(e: Event) -> Event:
        return slices[e["tid"]][int(np.searchsorted(starts[e["tid"]], e["ts"], "right")) - 1]

    ends = {e["id"]: e for e in _phase(found, "f")}
    for s in _phase(found, "s"):
        yield s["name"], around(s), around(ends[s["id"]]), s["args"]["words"]


def _phase(found: list[Event], ph: str) -> list[Event]:
    return [e for e in found if e["ph"] == ph]


def test_flows_are_what_went_along_streams(drawn: Timeline) -> None:
    found = list(TraceEvents(drawn).events())
    names = threads(found)
    streams = {s.name: (s.src, s.dst) for s in drawn.machine.program.overlay.streams}
    shown: Counter[tuple[str, int, int]] = Counter()
    for stream, a, b, words in arrows(found):
        assert (names[a["tid"]], names[b["tid"]]) == streams[stream]
        shown[stream, a["args"]["uop"], b["args"]["uop"]] += words
    assert shown == sent(drawn)


def test_flows_leave_when_the_first_word_can_be_got(drawn: Timeline) -> None:
    """A nanosecond before the end of the slice at the latest: a slice does not hold its end."""
    ready: dict[tuple[str, int], set[int]] = defaultdict(set)
    for step, number, start, end in zip(drawn.step, drawn.number, drawn.start, drawn.end, strict=True):
        s = drawn.log.steps[step]
        for c in s.puts:
            at = round((end if s.needs_whole_token else start) * 1e9)
            ready[drawn.streams[c], int(number)] |= {at, at - 1}
    found = list(TraceEvents(drawn).events())
    for (stream, a, _, _), e in zip(arrows(found), _phase(found, "s"), strict=True):
        assert ns(e["ts"]) in ready[stream, a["args"]["uop"]]


def test_bandwidth_adds_up_to_the_bytes_moved(drawn: Timeline) -> None:
    run = drawn.machine.run()
    counters = {
        name: own for (pid, name), own in _counters(list(TraceEvents(drawn).events())).items() if pid == trace.MEMORY
    }
    assert counters
    for name, own in counters.items():
        width = min(b["ts"] - a["ts"] for a, b in pairwise(own))
        assert area(own) * 1e3 == pytest.approx(run.bytes[name], rel=1e-3, abs=len(own) * width * 0.05)
        assert max(e["args"]["GB/s"] for e in own) <= program_rate(drawn, name) * 1.001
    assert counters.keys() == {n for n, moved in run.bytes.items() if moved and n != "instructions"}


def program_rate(t: Timeline, name: str) -> float:
    """GB/s of all the units that share a rate's name."""
    units = [u for u in t.machine.program.overlay.units if u.bank is not None]
    return float(t.machine.program.overlay.rates[f"{name}_gbs"].value) * len(units)


def test_fill_is_that_of_the_streams(drawn: Timeline) -> None:
    overlay = drawn.machine.program.overlay
    depth = {s.name: s.depth for s in overlay.streams}
    for (pid, name), own in _counters(list(TraceEvents(drawn).events())).items():
        if pid == trace.MEMORY:
            continue
        path = overlay.mop_fifo_depth if name.startswith("mOP") else overlay.uop_fifo_depth
        (what,) = own[0]["args"]
        assert 0 <= max(e["args"][what] for e in own) <= depth.get(name, path)
        ((clocks, level),) = drawn.fill([drawn.streams.index(name)])
        exact = float(np.sum(np.diff(clocks) * level[:-1])) * 1e6
        off = drawn.seconds * 1e6 * 0.0006 if what.endswith("(mean)") else len(clocks) * 1e-3 * depth.get(name, path)
        assert area(own) == pytest.approx(exact, rel=1e-6, abs=off + 1e-9)


# -- much at once ---------------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_SLICES", 10)
    monkeypatch.setattr(trace, "MAX_FLOWS", 10)
    monkeypatch.setattr(trace, "MAX_CHANGES", 5)


@pytest.mark.usefixtures("crowded")
def test_the_format_of_what_was_drawn_together(drawn: Timeline, tmp_path: Path) -> None:
    assert list(complaints(loaded(drawn, tmp_path))) == []


@pytest.mark.usefixtures("crowded")
def test_slices_of_packets_hold_all_uops() -> None:
    t = timeline("encoder")
    found = list(TraceEvents(t).events())
    slices = [e for e in found if e["ph"] == "X" and e["pid"] == UNITS]
    names = threads(found)
    count: Counter[str] = Counter()
    for e in slices:
        count[names[e["tid"]]] += e["args"].get("uops", 1)
        assert ("more" in e["name"].split()) == ("uops" in e["args"])
    count.update(names[e["tid"]] for e in slices for x in e["args"].get("before", "").split("; ") if x)
    assert count == {k.name: len(k.number) for k in t.tracks if k.name in count}
    packets = Counter((e["tid"], e["args"]["where"]) for e in slices)
    assert set(packets.values()) == {1}
    notes = TraceEvents(t).notes()
    assert f"{sum(count.values())} uOPs are too many" in notes["slices"]
    assert "too many" in notes["flows"]


@pytest.mark.usefixtures("crowded")
def test_flows_left_are_those_waited_for() -> None:
    """They lead between slices between which words went, and where nobody waited there is none."""
    t = timeline("encoder")
    found = list(TraceEvents(t).events())
    origin = {(k.name, int(n)): int(o) for k in t.tracks for n, o in zip(k.number, k.origin, strict=True)}
    ends = {s.name: (s.src, s.dst) for s in t.machine.program.overlay.streams}
    went = {(s, origin[ends[s][0], a], origin[ends[s][1], b]) for s, a, b in sent(t)}
    shown = [
        (s, origin[ends[s][0], a["args"]["uop"]], origin[ends[s][1], b["args"]["uop"]]) for s, a, b, _ in arrows(found)
    ]
    assert set(shown) < went
    assert len(shown) == len(set(shown)) > 10
    waits = t.machine.timing.waits
    assert all(waits[s][0] > 0 for s, _, _ in shown)


def test_a_program_that_does_nothing(tmp_path: Path) -> None:
    p = program("fig6_app1")
    idle = Program(p.overlay, tuple(x for x in p.packets if x.header.last))
    found = loaded(Timeline(Machine(idle)), tmp_path)
    assert list(complaints(found)) == []
    assert not [e for e in found["traceEvents"] if e["pid"] == UNITS and e["ph"] != "M"]


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("gemm768", "load x [0:128, 0:128] -> MemA0"),
        ("gemm768", "store y [0:128, 0:512] <- MemC0"),
        ("gemm768", "load w [0:128, 0:512] -> MemB0"),
        ("gemm768", "MemA0->MME0/MME1 MemA1->MME2/MME3 MemA2->MME4/MME5 size=32768"),
        ("gemm768", "load send dim1=256 dim2=128 acc_a=2 acc_b=4"),
        ("gemm768", "packet 0: 3 mOPs for DDR, 8 times"),
        ("fig6_app1", "load x [0:100] -> FU2"),
        ("fig7_app2", "load x [100:200] send"),
        ("encoder", "load l0.q [0:128, 0:128] -> MemA0"),
        ("encoder", "load l1.v [0:128, 0:64] -> MemB2"),
    ],
)
def test_names(name: str, title: str) -> None:
    found = {e["name"] for e in TraceEvents(timeline(name)).events() if e["ph"] == "X"}
    assert title in found, sorted(found)


def test_shared_memory_has_one_name() -> None:
    """Buffers of the two layers lie in one place: what is loaded is what was stored there last."""
    found = [e["name"] for e in TraceEvents(timeline("encoder")).events() if e["ph"] == "X"]
    assert not [n for n in found if " or " in n]


def settings(t: Timeline) -> Counter[str]:
    return Counter(
        x for e in TraceEvents(t).events() if e["ph"] == "X" for x in e["args"].get("before", "").split("; ") if x
    )


def test_what_takes_no_time_is_told_with_what_follows() -> None:
    t = timeline("encoder")
    assert all(e["dur"] > 0 for e in TraceEvents(t).events() if e["ph"] == "X")
    still = sum(int((k.start == k.end).sum()) for k in t.tracks)
    assert sum(settings(t).values()) == still > 0
    assert "max_sub softmax_cols=128 norm_cols=128" in settings(t)


def test_run_time_parameters_are_heeded() -> None:
    p = program("encoder")
    shorter = Timeline(Machine(p, p.bind({"len[0]": 17})))
    assert "softmax_cols=17" in " ".join(settings(shorter))


# -- the file -------------------------------------------------------------------------------------------------------


def test_compressed_or_not_it_is_the_same(tmp_path: Path) -> None:
    t = timeline("fig7_app1")
    for name in ("a.json", "a.json.gz", "b.json.gz"):
        write_trace(t, tmp_path / name)
    plain = (tmp_path / "a.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert json.load(io.BytesIO(plain))["traceEvents"] == list(TraceEvents(t).events())


def test_notes_say_what_was_run() -> None:
    notes = TraceEvents(timeline("gemm768")).notes()
    assert notes["program"] == "gemm768.rsn"
    assert notes["rates"]["ddr_read_gbs"] == "21 GB/s (DDR load)"
    assert notes["latency"].startswith(f"{duration(timeline('gemm768').machine.run().latency_s)}, ")


@pytest.mark.parametrize("name", ["no/such/folder/t.json", "file/t.json", "folder", "no/such/folder/t.json.gz"])
def test_targets_that_cannot_be_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"t\.json|folder") as caught:
        write_trace(timeline("fig6_app1"), tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "folder"]


def test_a_trace_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json").write_text("old")
    monkeypatch.setattr(TraceEvents, "_arrows", lambda self: iter([{"ts": float("nan")}]))
    with pytest.raises(ValueError, match="JSON"):
        write_trace(timeline("fig6_app1"), tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1
