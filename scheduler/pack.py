"""Packing: from kernel sequences to packets, in an issue order that cannot deadlock.

Order: the kernels run once without an instruction path, and packets are issued in the order in which their first uOPs
begin in that run. When the dispatcher blocks on a full FIFO, everything that the blocking unit needs to go on began
earlier in that run, so it is issued already. The decoder of a Mem stores no window, so its packets hold at most
`MEM_WINDOW` mOPs: then the argument holds for the last mOP of a packet too. A packet shared by several units arrives
early for some of them. The image is therefore run through the decoders, and packed without sharing if it deadlocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.errors import DeadlockError, ProgramError, UnsupportedError
from ..isa.fields import Record
from ..isa.instruction_path import plan_of
from ..isa.overlay import InstructionFormat, Overlay
from ..isa.packet import MAX_WINDOW, Header, Packet, terminators
from ..isa.program import Patch, Program, ProgramSegment, SourceLine, UnpackedProgram
from ..machine.jit import machine_code
from ..machine.plan import execute
from ..machine.timing import RunTiming

Ints = npt.NDArray[np.int64]

MEM_WINDOW = 4
"""Largest number of mOPs in a packet whose decoder stores no window; less than the depth of the mOP FIFOs."""
CLOSE = 20e-6
"""Largest time in seconds between the first uOPs of units that share a packet."""


@dataclass(frozen=True)
class _UnitPacket:
    """A packet of one unit, before equal packets of several units are merged. reuse: how often the decoder runs its
    mOPs."""

    form: InstructionFormat
    mops: tuple[Record, ...]
    reuse: int
    first: int
    """Index of its first mOP in the unit's sequence."""
    patches: tuple[tuple[str, str, int, int], ...] = ()
    """Fields of its first mOP that depend on a run-time parameter: parameter, field, base, cap."""

    def same(self, other: _UnitPacket) -> bool:
        """Whether two units can share one packet for both pieces."""
        return (self.form, self.reuse, self.mops, self.patches) == (other.form, other.reuse, other.mops, other.patches)


class ListTooLong(ProgramError, UnsupportedError):
    """A program needs more ops than a unit's list holds."""


Firsts = dict[str, list[int]]
"""Number of each mOP's first uOP among the uOPs of its unit, by unit."""
Starts = Mapping[str, Sequence[tuple[float, int]]]
"""When each mOP's first uOP begins, by unit: seconds, and a number that orders equal times by dependency."""


def pack(kernels: UnpackedProgram, starts: Starts | None = None) -> Program:
    """Pack kernel sequences into a program. starts: when each mOP began in a run of these kernels; None runs them here.
    Raises `ListTooLong` if an op list is too long, `DeadlockError` or `ProgramError` if the kernels do not fit together
    (e.g. more sends than receives)."""
    overlay = kernels.overlay
    check_lists(kernels)
    if not overlay.formats:
        return _without_packets(kernels)
    starts = starts or _starts(kernels)
    pieces = {unit: _cut(unit, kernels) for unit in kernels.sequences}
    kernels = replace(kernels, segments=tuple(_in_uops(kernels)))
    shared = _assemble(kernels, pieces, starts, share=True)
    try:
        plan_of(shared).run()
        return shared
    except DeadlockError:
        alone = _assemble(kernels, pieces, starts, share=False)
        plan_of(alone).run()
        return alone


def _without_packets(kernels: UnpackedProgram) -> Program:
    """The program of an overlay whose units take lists that are loaded before the run: there is nothing to order."""
    return Program(
        kernels.overlay,
        (),
        kernels.preloaded,
        kernels.buffers,
        preloaded_places=kernels.preloaded_places,
        segments=kernels.segments,
    )


def _in_uops(kernels: UnpackedProgram) -> Iterator[ProgramSegment]:
    """The segments with numbers of uOPs instead of indices of mOPs."""
    units = {unit for segment in kernels.segments for unit in segment.uops} & set(kernels.sequences)
    firsts = {
        unit: [0, *accumulate(map(len, uops_by_mop(kernels.overlay, unit, kernels.sequences[unit])))] for unit in units
    }
    for segment in kernels.segments:
        numbers = {
            unit: tuple((firsts[unit][a], firsts[unit][b]) for a, b in ranges) if unit in firsts else ranges
            for unit, ranges in segment.uops.items()
        }
        yield replace(segment, uops=numbers)


def check_lists(kernels: UnpackedProgram) -> None:
    """Raise `ListTooLong` if a unit has more ops than its list holds."""
    for unit, ops in kernels.preloaded.items():
        capacity = kernels.overlay.preloaded[kernels.overlay.by_unit[unit].kind].longest
        if len(ops) > capacity:
            raise ListTooLong(
                f"{unit} needs {len(ops)} ops but holds at most {capacity}: compile fewer layers, a smaller batch or "
                "shorter sequences in one program"
            )


def _form(overlay: Overlay, unit: str, mop: Record) -> InstructionFormat:
    kind = overlay.by_unit[unit].kind
    for form in overlay.formats:
        if form.kind == kind and form.mop is type(mop):
            return form
    raise ProgramError(f"{type(mop).__name__} does not program {unit} on overlay {overlay.name}")


def uops_of(kernels: UnpackedProgram) -> dict[str, list[Any]]:
    """Expand the mOPs of every unit to uOPs, each mOP issued once. Returns the uOPs by unit, without those of op
    lists."""
    return issued(kernels.overlay, kernels.sequences)[0]


def uops_by_mop(overlay: Overlay, unit: str, mops: Sequence[Record]) -> Iterator[Sequence[Any]]:
    """Yield for each of `mops` of the unit named `unit`, in order, the sequence of uOPs that it expands to. Each mOP is
    expanded once, not repeated as by the `reuse` of a packet. Raises `ProgramError` for a mOP that does not program the
    unit."""
    forms = {kind: _form(overlay, unit, mop) for kind, mop in {type(m): m for m in mops}.items()}
    known: dict[int, Sequence[Any]] = {}  # by id(): equal mOPs are mostly one object
    for mop in mops:
        uops = known.get(id(mop))
        if uops is None:
            uops = known[id(mop)] = tuple(forms[type(mop)].uops(mop, 0))
        yield uops


def issued(overlay: Overlay, sequences: Mapping[str, Sequence[Record]]) -> tuple[dict[str, list[Any]], Firsts]:
    """Expand the mOPs of every unit to uOPs, each mOP issued once. sequences: mOPs by unit. Returns the uOPs by unit,
    and for each mOP of a unit the number of its first uOP. Raises `ProgramError` for a mOP that does not program its
    unit."""
    issues: dict[str, list[Any]] = {}
    firsts: Firsts = {}
    for unit, mops in sequences.items():
        by_mop = list(uops_by_mop(overlay, unit, mops))
        issues[unit] = list(chain.from_iterable(by_mop))
        firsts[unit] = [0, *accumulate(map(len, by_mop))][:-1]
    return issues, firsts


def starts_of(run: RunTiming, firsts: Firsts) -> dict[str, list[tuple[float, int]]]:
    """When each mOP began in a run without the instruction path, by unit: seconds, and a number that orders equal
    times. firsts: as `issued` returns it. A mOP that no uOP follows takes the start of the last uOP."""
    out = {}
    for unit, first in firsts.items():
        begun = run.starts(unit)
        out[unit] = [begun[min(f, len(begun) - 1)] for f in first]
    return out


def _starts(kernels: UnpackedProgram) -> Starts:
    issues, firsts = issued(kernels.overlay, kernels.sequences)

    def entry_of(unit: str, number: int) -> int:
        held = kernels.overlay.op_list(unit)
        return number if held is None else int(held.order(kernels.preloaded[unit])[number])

    def where(unit: str, origin: int) -> str:
        first = firsts.get(unit)
        if first is None:
            index, places, noun = entry_of(unit, origin), kernels.preloaded_places.get(unit, ()), "op"
        else:
            index = max(i for i, f in enumerate(first) if f <= origin)
            places, noun = kernels.places.get(unit, ()), "mOP"
        return str(places[index]) if index < len(places) else f"{noun} {index}"

    lists = kernels.overlay.unrolled(kernels.preloaded)
    return starts_of(execute(kernels.overlay, {**issues, **lists}, where=where), firsts)


def _cut(unit: str, kernels: UnpackedProgram) -> list[_UnitPacket]:
    """Cut the sequence of one unit into packets: with loops if the decoder loops over a window, else with runs of
    repeated mOPs."""
    mops = kernels.sequences[unit]
    patches: dict[int, tuple[tuple[str, str, int, int], ...]] = {}
    for name, places in kernels.patches.items():
        for p in places:
            if p.unit == unit:
                patches[p.index] = (*patches.get(p.index, ()), (name, p.field, p.base, p.cap))
    overlay = kernels.overlay
    form = overlay.format_of(overlay.by_unit[unit].kind)
    alone = set(patches)  # these are packets of their own, and so are configurations between windows
    if form.loops_window:
        alone |= {i for i, mop in enumerate(mops) if _form(overlay, unit, mop).config}
    pieces: list[_UnitPacket] = []
    at = 0
    for index in [*sorted(alone), len(mops)]:
        between = mops[at:index]
        if between:
            cut = _windows(form, between) if form.loops_window else _repeats(overlay, unit, between)
            pieces += [replace(p, first=p.first + at) for p in cut]
        if index < len(mops):
            own = _form(overlay, unit, mops[index])
            pieces.append(_UnitPacket(own, (mops[index],), 1, index, patches.get(index, ())))
        at = index + 1
    return pieces


def _windows(form: InstructionFormat, mops: Sequence[Record]) -> list[_UnitPacket]:
    """Cut a sequence into packets with loops, with or without chunks, whichever is smaller."""
    merged, firsts = _chunked(form, mops)
    plain, chunked = _loops(form, mops), [replace(p, first=firsts[p.first]) for p in _loops(form, merged)]
    return min(plain, chunked, key=_words)


def _repeats(overlay: Overlay, unit: str, mops: Sequence[Record]) -> Iterator[_UnitPacket]:
    """Cut a sequence into packets of runs of equal mOPs; neighbouring runs of equal length share a packet (AAABBB)."""
    runs: list[tuple[int, Record, int]] = []
    for i, mop in enumerate(mops):
        if runs and runs[-1][1] == mop:
            runs[-1] = (runs[-1][0], mop, runs[-1][2] + 1)
        else:
            runs.append((i, mop, 1))
    at = 0
    while at < len(runs):
        first, mop, count = runs[at]
        form = _form(overlay, unit, mop)
        count = min(count, form.max_reuse)
        if count < runs[at][2]:
            runs[at] = (first + count, mop, runs[at][2] - count)
            yield _UnitPacket(form, (mop,), count, first)
            continue
        window = [mop]
        at += 1
        while (
            not form.config
            and at < len(runs)
            and len(window) < MEM_WINDOW
            and runs[at][2] == count
            and _form(overlay, unit, runs[at][1]) is form
        ):
            window.append(runs[at][1])
            at += 1
        yield _UnitPacket(form, tuple(window), count, first)


def _words(pieces: Sequence[_UnitPacket]) -> int:
    return sum(Header.WORDS + len(p.mops) * p.form.mop.WORDS for p in pieces)


def _chunked(form: InstructionFormat, mops: Sequence[Record]) -> tuple[list[Record], list[int]]:
    """Merge runs of equal accesses a constant stride apart into one mOP with chunks. Returns the merged sequence, and
    the index of each mOP's first access.

    This is not always smaller: a run may extend over the start of a window that would repeat.
    """
    fields = {x.name: x for x in form.mop.FIELDS}
    if not {"addr", "chunks", "chunk_stride"} <= set(fields):
        return list(mops), list(range(len(mops)))
    max_chunks, max_stride = fields["chunks"].bounds[1], fields["chunk_stride"].bounds[1]
    key = _numbered(mops, [name for name in fields if name != "addr"])
    addr = np.array([getattr(m, "addr", 0) for m in mops], np.int64)
    single = np.array([getattr(m, "chunks", 0) == 1 for m in mops], np.bool_)
    step = np.diff(addr)
    joins = single[:-1] & (key[1:] == key[:-1]) & (step >= 0) & (step <= max_stride)
    further = _run_lengths(joins[1:] & joins[:-1] & (step[1:] == step[:-1])).tolist() if len(mops) > 2 else []
    out: list[Record] = []
    firsts: list[int] = []
    at = 0
    while at < len(mops):
        n = 1
        if at < len(joins) and joins[at]:
            n = min(max_chunks, 2 + (further[at] if at < len(further) else 0))
        first = mops[at]
        out.append(first if n == 1 else first.replace(chunks=n, chunk_stride=int(step[at])))
        firsts.append(at)
        at += n
    return out, firsts


def _loops(form: InstructionFormat, mops: Sequence[Record]) -> list[_UnitPacket]:
    """Cut a sequence into windows that repeat (addresses advance by a constant stride per mOP) and literal packets
    between them. Dynamic programming from the end of the sequence finds the cut with the fewest words."""
    loop, join = machine_code(_cheapest)(*_repetitions(form, mops), Header.WORDS, form.mop.WORDS)
    n = len(mops)
    out: list[_UnitPacket] = []
    at, literal = 0, 0  # mops[literal:at] become the next literal packet
    while at < n:
        w, r = (join if literal < at else loop)[at].tolist()
        if not w and at - literal < MAX_WINDOW:
            at += 1
            continue
        if literal < at:
            out.append(_UnitPacket(form, tuple(mops[literal:at]), 1, literal))
            literal = at
        if w:
            out.append(_UnitPacket(form, tuple(_advancing(mops, at, w)), r, at))
            at = literal = at + w * r
    if literal < n:
        out.append(_UnitPacket(form, tuple(mops[literal:]), 1, literal))
    return out


def _cheapest(starts: Ints, windows: Ints, times: Ints, header: int, each: int) -> tuple[Ints, Ints]:
    """The cheapest encoding from each position on, by dynamic programming.

    starts, windows, times: as `_repetitions` returns them. header, each: words of a packet header and of a mOP. Returns
    two arrays of shape (n, 2): the window and its repetitions that start at a position, window 0 for a literal mOP; the
    second array holds where the mOP may join an open literal packet.
    """
    n = len(starts) - 1
    closed = np.zeros(n + 1, np.int64)  # cheapest encoding of mops[i:], in words
    opened = np.zeros(n + 1, np.int64)  # the same behind a literal packet that mop i may join
    loop = np.zeros((n, 2), np.int64)
    join = np.zeros((n, 2), np.int64)
    for i in range(n - 1, -1, -1):
        best, open_best = header + each + opened[i + 1], each + opened[i + 1]
        for at in range(starts[i], starts[i + 1]):
            w, limit = windows[at], times[at]
            for r in range(2 if limit <= 32 else limit - 1, limit + 1):
                cost = header + each * w + closed[i + w * r]
                if cost < best:
                    best = cost
                    loop[i, 0], loop[i, 1] = w, r
                if cost < open_best:
                    open_best = cost
                    join[i, 0], join[i, 1] = w, r
        closed[i], opened[i] = best, open_best
    return loop, join


def _advancing(mops: Sequence[Record], at: int, w: int) -> Iterator[Record]:
    """The `w` mOPs of the window at `at`, each with the address stride to its next occurrence."""
    for j in range(at, at + w):
        mop, after = mops[j], mops[j + w]
        if hasattr(mop, "reuse_stride"):
            mop = mop.replace(reuse_stride=getattr(after, "addr", 0) - getattr(mop, "addr", 0))
        yield mop


def _repetitions(form: InstructionFormat, mops: Sequence[Record]) -> tuple[Ints, Ints, Ints]:
    """Find windows that repeat, by comparing the sequence with itself shifted.

    Returns starts, windows, times: the windows that repeat at position i are windows[starts[i]:starts[i + 1]], their
    largest numbers of repetitions the same slice of times.
    """
    stride = next((x for x in form.mop.FIELDS if x.name == "reuse_stride"), None)
    key = _numbered(mops, [x.name for x in form.mop.FIELDS if stride is None or x.name != "addr"])
    addr = np.array([getattr(m, "addr", 0) if stride else 0 for m in mops], np.int64)
    places, windows, times = [], [], []
    for w in range(1, min(MAX_WINDOW, len(mops) // 2) + 1):
        step = addr[w:] - addr[:-w]
        equal = (key[w:] == key[:-w]) & (step >= 0) & (step < (1 << stride.width if stride else 1))
        steady = equal[w:] & equal[:-w] & (step[w:] == step[:-w])
        twice, more = _run_lengths(equal), _run_lengths(steady)
        at = np.flatnonzero(twice >= w)
        further = np.where(at < len(more), more[np.minimum(at, len(more) - 1)] // w, 0) if len(more) else at * 0
        places.append(at)
        windows.append(np.full(len(at), w))
        times.append(np.minimum(2 + further, form.max_reuse))
    if not places:
        none = np.zeros(0, np.int64)
        return np.zeros(len(mops) + 1, np.int64), none, none
    place = np.concatenate(places)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(mops) + 1))
    return starts, np.concatenate(windows)[order], np.concatenate(times)[order]


def _numbered(mops: Sequence[Record], names: Sequence[str]) -> Ints:
    """Number mOPs so that those with equal values in the fields `names` have equal numbers."""
    numbers: dict[Any, int] = {}
    fields = attrgetter(*names)
    return np.array([numbers.setdefault(fields(m), len(numbers)) for m in mops], np.int64)


def _run_lengths(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The number of consecutive flags that are set, from each position on."""
    positions = np.arange(len(flags))
    stops = np.where(flags, len(flags), positions)
    following = np.minimum.accumulate(stops[::-1])[::-1]
    return following - positions


def _assemble(kernels: UnpackedProgram, pieces: dict[str, list[_UnitPacket]], starts: Starts, share: bool) -> Program:
    """Merge the packets of all units in the order of their first uOPs, with the terminators last. share: equal packets
    of units of one kind become one packet."""
    overlay = kernels.overlay
    packets: list[Packet] = []
    places: list[SourceLine] = []
    patched: dict[str, list[Patch]] = {}
    heads = dict.fromkeys(pieces, 0)
    heap = [(starts[u][p[0].first], u) for u, p in pieces.items() if p]
    heapq.heapify(heap)
    while heap:
        start, unit = heapq.heappop(heap)
        if heads[unit] == len(pieces[unit]) or starts[unit][pieces[unit][heads[unit]].first] != start:
            continue  # shared: already part of another unit's packet
        piece = pieces[unit][heads[unit]]
        group = [unit]
        if share:
            for peer in overlay.by_kind[overlay.by_unit[unit].kind]:
                if peer.name == unit or peer.name not in pieces or heads[peer.name] >= len(pieces[peer.name]):
                    continue
                other = pieces[peer.name][heads[peer.name]]
                if other.same(piece) and starts[peer.name][other.first][0] - start[0] <= CLOSE:
                    group.append(peer.name)
        for name, field, base, cap in piece.patches:
            patched.setdefault(name, []).append(Patch(len(packets), 0, field, base, cap))
        source = kernels.places.get(unit, ())
        if piece.first < len(source):
            places.append(source[piece.first])
        mask = sum(1 << overlay.by_unit[u].index for u in group)
        single = len(overlay.by_kind[piece.form.kind]) == 1
        packets.append(Packet.of(piece.form.opcode, piece.mops, mask=0 if single else mask, reuse=piece.reuse))
        for u in group:
            heads[u] += 1
            if heads[u] < len(pieces[u]):
                heapq.heappush(heap, (starts[u][pieces[u][heads[u]].first], u))
    packets += terminators(overlay)
    parameters = tuple(replace(p, patches=tuple(patched.get(p.name, ()))) for p in kernels.parameters)
    preloaded = {u.name: kernels.preloaded.get(u.name, ()) for k in overlay.preloaded for u in overlay.by_kind[k]}
    return Program(
        overlay=overlay,
        packets=tuple(packets),
        preloaded=preloaded,
        buffers=kernels.buffers,
        parameters=parameters,
        places=tuple(places) if len(places) == len(packets) - len(overlay.terminators) else (),
        preloaded_places=kernels.preloaded_places,
        segments=kernels.segments,
    )
