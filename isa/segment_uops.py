"""Finds the uOPs of segments of which only the outputs are known, as in a `.rsn` text.

A store belongs to the segment whose output it fills. Other work is followed from there, against the streams: a stream
keeps the order of its words, so the words for a segment end at one place of each stream, and the uOPs up to that place
work for this segment or for an earlier one. A memory drains its slots in the order in which it fills them. All this
holds if every unit works for one segment after the other, as in a compiled program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from math import ceil, floor

import numpy as np
import numpy.typing as npt

from ..machine.balance import WordCounts, word_counts
from .expansion import Expansion, uop_upper_bound
from .program import Program
from .verify import MAX_UOPS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Ranges = tuple[tuple[int, int], ...]

MAX_OUTPUTS = 4096
"""Limit of the outputs of all segments together, for texts from elsewhere; 24 layers of an encoder have 168."""
OVERLAP = 2
"""How many segments may have stores left when another one begins to store."""
ROUNDS = 64
"""Limit of visits per unit. Programs that run need a few; in one that deadlocks, units may wait for each other's words
on and on."""


def with_uops(program: Program) -> Program:
    """Return a program whose segments have their uOPs, found from their outputs.

    What cannot be followed is left out: units behind one whose words cannot be counted without data, and everything in
    a program with too many uOPs or outputs.
    """
    outputs = sum(max(1, len(segment.outputs)) for segment in program.segments)
    if not 0 < outputs <= MAX_OUTPUTS or sum(uop_upper_bound(p, program.overlay) for p in program.packets) > MAX_UOPS:
        return program
    expansion = Expansion(program)
    owners = {unit: _store_owners(expansion, unit) for unit in _movers(program)}
    found = _Followed(expansion, owners).uops()
    return replace(program, segments=tuple(replace(s, uops=of) for s, of in zip(program.segments, found, strict=True)))


def _movers(program: Program) -> list[str]:
    """The units that access off-chip memory."""
    return [u.name for u in program.overlay.units if u.bank is not None]


def _store_owners(expansion: Expansion, unit: str) -> Ints:
    """The segment of each uOP of a unit that stores to an output, -1 for all others.

    Outputs may share memory in turn. A store belongs to the first output at its address that does not have this piece
    yet. Outputs of segments that ended long before do not count: one with padded rows may never have all its pieces.
    """
    program = expansion.program
    owners = np.full(len(expansion.sequences[unit]), -1, np.int64)
    of_output = {name: i for i, s in enumerate(program.segments) for name in s.outputs}
    for bank, accesses in expansion.accesses.items():
        grain = program.overlay.address_unit
        spans = sorted(
            (of_output[b.name], b.offset * grain, b.offset * grain + b.size)
            for b in program.buffers
            if b.bank == bank and b.name in of_output
        )
        own = np.array([u.name == unit for u in accesses.units], np.bool_)[accesses.unit] & accesses.store
        uops, starts, ends = accesses.uop[own], accesses.start[own], accesses.end[own]
        cuts = np.unique(np.concatenate([starts, ends]))  # outputs at one place may be stored in pieces of other sizes
        low, high = (np.searchsorted(cuts, edge).tolist() for edge in (starts, ends))
        here = {at: [segment for segment, start, end in spans if start <= at < end] for at in set(starts.tolist())}
        done: list[set[int]] = [set() for _ in cuts]
        now = 0
        for uop, at, first, behind in zip(uops.tolist(), starts.tolist(), low, high, strict=True):
            stored = set().union(*done[first:behind])
            lacking = [segment for segment in here[at] if segment not in stored]
            near = [segment for segment in lacking if segment >= now - OVERLAP]
            if not here[at]:
                continue
            owners[uop] = owner = (near or lacking or here[at][-1:])[0]
            now = max(now, owner)
            for piece in done[first:behind]:
                piece.add(owner)
    return owners


class _Followed:
    """Follows words from stores back to all units. Arrays have an element per segment.

    ends: by stream, how many of its words are for this segment or an earlier one. filled, drained: by unit with a
    memory, how many of its uOPs there are up to the last one that fills, or drains, a slot for them; by any other unit
    both are the number up to the last one that works for them.
    """

    def __init__(self, expansion: Expansion, owners: Mapping[str, Ints]) -> None:
        self.overlay, self.owners = expansion.overlay, owners
        self.count = len(expansion.program.segments)
        self.lengths = {name: len(sequence) for name, sequence in expansion.sequences.items()}
        streams, by_unit = self.overlay.streams, self.overlay.by_unit
        words = word_counts(expansion.uop_table)
        self.puts = {s.name: _sums(words[s.src].words(s.name, 0)) for s in streams if s.src in words}
        self.gets = {s.name: _sums(words[s.dst].words(s.name, 1)) for s in streams if s.dst in words}
        self.ends = {s.name: np.zeros(self.count, np.int64) for s in streams}
        self.filled = {u.name: np.zeros(self.count) for u in self.overlay.units}
        self.drained = dict(self.filled)
        self.among = {s.name for s in streams if by_unit[s.src].kind == by_unit[s.dst].kind}
        self.drains: dict[str, tuple[Ints, Ints]] = {}
        """By unit with a memory: its uOPs that drain a slot, and the number of uOPs up to the fill of that slot."""
        for spec in self.overlay.units:
            if spec.memory is not None and spec.name in words:
                self.drains[spec.name] = self._drains(expansion, spec.name, spec.memory.slots, words[spec.name])

    def _drains(self, expansion: Expansion, unit: str, slots: int, words: WordCounts) -> tuple[Ints, Ints]:
        """A row of `drains`. An operation drains the slot behind the one that it fills, which was filled by the
        operation before it, or, if that one filled none, by an earlier one in the same slot."""
        sides = []
        for side in (0, 1):
            sides.append(np.zeros(self.lengths[unit], np.bool_))
            for s in self.overlay.streams:
                if unit == (s.dst if side else s.src) and s.name not in self.among:
                    sides[side] |= words.uses(s.name, side)
        config = tuple(form.mop for form in self.overlay.formats if form.config)
        kinds = expansion.sequences[unit].kinds.tolist()
        sets_registers = {kind: isinstance(expansion.uops[kind], config) for kind in set(kinds)}
        filled = [0] * slots
        before, drains, fills = 0, [], []
        for uop, (kind, drain, fill) in enumerate(zip(kinds, *(side.tolist() for side in sides), strict=True)):
            if sets_registers[kind]:
                continue
            if drain:
                drains.append(uop)
                fills.append(filled[(before - 1) % slots])
            if fill:
                filled[before % slots] = uop + 1
            before += 1
        return np.array(drains, np.int64), np.maximum.accumulate(np.array(fills, np.int64))

    def uops(self) -> list[dict[str, Ranges]]:
        """The uOPs of each segment by unit."""
        waiting: set[str] = set()
        for unit, owner in self.owners.items():
            upto = np.zeros(self.count, np.int64)
            (stores,) = np.nonzero(owner >= 0)
            np.maximum.at(upto, owner[stores], stores + 1)
            reached = np.maximum.accumulate(upto).astype(np.float64)
            waiting |= self._take(unit, reached, reached)
        for _ in range(ROUNDS * len(self.overlay.units)):
            if not waiting:
                break
            unit = min(waiting)
            waiting.remove(unit)
            waiting |= self._back(unit)
        found: list[dict[str, Ranges]] = [{} for _ in range(self.count)]
        for unit in self.drained:
            for segment, ranges in self._ranges(unit):
                found[segment][unit] = (*found[segment].get(unit, ()), ranges)
        return found

    def _take(self, unit: str, filled: Floats, drained: Floats) -> set[str]:
        """Note that a unit takes words with its first uOPs, those of units of its kind with the first `drained` ones,
        all others with the first `filled` ones. Returns the units whose words these are, if they are more than were
        noted before."""
        more = set()
        for s in self.overlay.streams:
            if s.dst == unit and s.name in self.gets:
                words = _sum_of(self.gets[s.name], drained if s.name in self.among else filled)
                ends = np.maximum(self.ends[s.name], words)
                if (ends != self.ends[s.name]).any():
                    self.ends[s.name] = ends
                    more |= {s.src} - self.owners.keys()
        return more

    def _back(self, unit: str) -> set[str]:
        """Go from the words that a unit sends to those that it takes for them. Returns as `_take`."""
        passed_on = self._sent(unit, among=False)
        drained = np.maximum(passed_on, self._sent(unit, among=True))
        filled = drained
        if unit in self.drains:
            drains, fills = self.drains[unit]
            slots = np.searchsorted(drains, np.ceil(drained))
            drained, filled = (np.append(0.0, x)[slots] for x in (drains + 1, fills))
        self.filled[unit], self.drained[unit] = filled, drained
        # What a unit gives to others of its kind may be for the next segment too, if it drains nothing for this one.
        return self._take(unit, filled, np.minimum(drained, np.ceil(passed_on)))

    def _sent(self, unit: str, among: bool) -> Floats:
        """How many uOPs of a unit send the words for a segment. among: those to units of its kind, else the others."""
        reached = np.zeros(self.count)
        for s in self.overlay.streams:
            if s.src == unit and s.name in self.puts and (s.name in self.among) == among:
                reached = np.maximum(reached, _reach(self.puts[s.name], self.ends[s.name]))
        return reached

    def _ranges(self, unit: str) -> Iterator[tuple[int, tuple[int, int]]]:
        """Yield the ranges of a unit's uOPs, each with its segment; those of one segment in ascending order."""
        if unit in self.owners:
            at = 0
            for owner, run in groupby(self._loads_too(unit).tolist()):
                end = at + sum(1 for _ in run)
                if owner >= 0:
                    yield owner, (at, end)
                at = end
            return
        before = 0.0, 0.0
        for segment, now in enumerate(zip(self.filled[unit].tolist(), self.drained[unit].tolist(), strict=True)):
            if now != before:
                # A segment may also drain a slot again that was filled for the one before it.
                first = before[0] if now[0] > before[0] else before[1]
                yield segment, (floor(first), ceil(max(now)))
                before = now

    def _loads_too(self, unit: str) -> Ints:
        """The segment of each uOP of a unit that accesses off-chip memory: of a load, by the words that it sends."""
        owner = self.owners[unit].copy()
        for s in self.overlay.streams:
            if s.src == unit and s.name in self.puts:
                first, end = self.puts[s.name][:-1], self.puts[s.name][1:]
                (loads,) = np.nonzero((end > first) & (owner < 0))
                of = np.searchsorted(self.ends[s.name], first[loads], "right")
                owner[loads] = np.where(of < self.count, of, -1)
        return owner


def _sums(words: Ints) -> Ints:
    """Sums of the first 0, 1, ... elements."""
    return np.append(0, np.cumsum(words))


def _reach(sums: Ints, words: Ints) -> Floats:
    """How many uOPs it takes to move this many words, part of the last one included. sums: as `_sums` returns them."""
    end = np.minimum(np.searchsorted(sums, words), len(sums) - 1)
    last = np.maximum(end - 1, 0)
    part = np.minimum((words - sums[last]) / np.maximum(sums[end] - sums[last], 1), 1.0)
    return np.where(end > 0, last + part, 0.0)


def _sum_of(sums: Ints, uops: Floats) -> Ints:
    """How many words so many uOPs move: a part of a uOP moves the same part of its words."""
    whole = np.minimum(uops.astype(np.int64), len(sums) - 1)
    behind = np.minimum(whole + 1, len(sums) - 1)
    part = (uops - whole) * (sums[behind] - sums[whole])
    words: Ints = sums[whole] + np.ceil(part - 1e-6).astype(np.int64)
    return words
