"""What the tiles of a program hold, followed from unit to unit without running it.

The kernels themselves are stepped on tokens that carry only how much of them is valid (`counted`); nothing waits, and
nothing is computed. What a uOP does depends on the uOP, on the unit's state and on the tiles that it takes: each such
combination is stepped once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from ....base.finding import Finding
from ....machine.steps import Burst, Par, Step, Steps
from ....machine.unit import Wiring
from ...expansion import ExpandedProgram, Ints
from ...versal.tiles import ROW_SUM_TOKEN, ROW_TOKEN, TILE_TOKEN
from .counted import LOST, WHOLE, CountedMem, CountingUnit, Exchange, RowNumbers, UopFault, ValidTile, counted

MAX_FOUND = 100
"""Findings of one code that are kept."""
MAX_TILES = 4_000_000
"""Tiles from one unit that are followed; 24 layers (B=8, L=384) send a tenth of that."""


class _Line(NamedTuple):
    """What a stream carries: the number of each tile's kind, and of the uOP that sent it."""

    tiles: Ints
    uops: Ints
    units: Ints
    """Which unit sent it, by position in the overlay: a Mesh hands on what others sent."""

    def at(self, where: Ints) -> _Line:
        """The tiles at these positions of the stream, in this order."""
        return _Line(*(column[where] for column in self))


class _Effect(NamedTuple):
    """What one uOP does: the state that it leaves, by number; the tiles that it sends; what is wrong."""

    after: int
    sends: Ints
    problems: tuple[UopFault, ...]
    exchanges: tuple[Exchange, ...]


class _TooManyError(Exception):
    """Following the tiles would take too long."""


class TileFlow:
    """Follows the tiles of one program. Off-chip memory and the numbers between neighbours are not followed: a load
    brings what the Mem asks for, and what a MemC expects of its neighbour is kept in `exchanges`, with its uOP."""

    def __init__(self, expansion: ExpandedProgram) -> None:
        self.x = expansion
        self.net = Wiring(counted(expansion.overlay))
        self.found: list[Finding] = []
        self.told: Counter[str] = Counter()
        self.exchanges: dict[str, list[tuple[int, Exchange]]] = {}
        self.lines: dict[str, _Line] = {}
        """Streams of which it is known what they carry."""
        self.routed: dict[str, set[str]] = {}
        """The lines that each Mesh has been walked through with."""
        self.kinds: list[ValidTile] = []
        self.numbers: dict[ValidTile, int] = {}
        streams, units = expansion.overlay.streams, expansion.overlay.units
        tiles = [s for s in streams if s.token is TILE_TOKEN]
        self.into = {u.name: [s.name for s in tiles if s.dst == u.name] for u in units}
        self.out = {u.name: [s.name for s in tiles if s.src == u.name] for u in units}
        self.writer = {s.name: s.src for s in tiles}
        self.links = {s.name for s in streams if s.token in (ROW_TOKEN, ROW_SUM_TOKEN)}

    def findings(self, balanced: bool) -> Iterator[Finding]:
        """Follow the tiles, and yield what is wrong with them: at most 100 findings of each code, and the warning X10
        if there are too many tiles to follow.

        balanced: each stream sends as many words as it receives. If not, it is not known which tile goes where: the
        Mems are checked alone. Call it once for an object; `exchanges` is complete behind the last finding.
        """
        try:
            self._follow(balanced)
        except _TooManyError:
            text = f"more than {MAX_TILES} tiles leave one unit: what they hold was not followed"
            self.found.append(Finding("X10", text, "program", True, "nothing is wrong with that; run it to be sure"))
        yield from self.found

    def _follow(self, balanced: bool) -> None:
        units = self.x.overlay.by_kind
        for u in (*units["MemA"], *units["MemB"]):
            self._unit(u.name)
        if not balanced:
            for u in units["MemC"]:
                self._unit(u.name)
            return
        # MemCs that send to a Mesh come first; then the Mesh is walked through again, with what they send.
        for sends in (True, False):
            for mesh in (*units["MeshB"], *units["MeshA"]):
                self._mesh(mesh.name)
            for c in units["MemC"]:
                if bool(self.out[c.name]) == sends:
                    for source in self.into[c.name]:
                        self._unit(self.writer[source])
                    self._unit(c.name)

    def number(self, tile: ValidTile) -> int:
        """Return the number of a kind of tile: an index into `kinds`, to which a new kind is added. Where the tile came
        from does not matter.
        """
        if tile.sender is not None:
            tile = ValidTile(tile.rows, tile.cols, tile.groups)
        n = self.numbers.get(tile)
        if n is None:
            n = self.numbers[tile] = len(self.kinds)
            self.kinds.append(tile)
        return n

    # -- findings

    def _report(self, unit: str, uop: int, problem: UopFault, taken: Mapping[str, int]) -> None:
        """taken: tiles of each stream that the unit took before this uOP."""
        self.told[problem.code] += 1
        if self.told[problem.code] > MAX_FOUND:
            return
        text = problem.text
        if problem.sender is not None:
            stream, number = problem.sender
            text = text.replace("{sender}", self._sender(self.lines[stream], taken[stream] + number))
        kind = "op" if self.x.overlay.by_unit[unit].kind in self.x.overlay.preloaded else "uOP"
        where = self.x.where(unit, uop)
        self.found.append(Finding(problem.code, f"{unit} {kind} {uop} {text}", where, problem.warning, problem.help))

    def _sender(self, line: _Line, at: int) -> str:
        name, uop = self.x.overlay.units[int(line.units[at])].name, int(line.uops[at])
        return f"sent by {name} uOP {uop} at {self.x.where(name, uop)}"

    # -- units

    def _unit(self, name: str) -> None:
        """Step all uOPs of a unit."""
        unit: Any = self.net.units[name]
        run = self.x.sequences[name].kinds
        inputs = [s for s in self.into[name] if s in self.lines]
        needs = self._needs(unit, run, inputs)
        ends = np.cumsum(needs, axis=1)
        pieces = (
            [np.split(self.lines[s].tiles, end[:-1]) for s, end in zip(inputs, ends, strict=True)] if len(run) else []
        )
        states, numbers = [unit.state], {unit.state: 0}
        known: dict[tuple[Any, ...], int] = {}
        effects: list[_Effect] = []
        order: list[int] = []
        now = 0
        for i, kind in enumerate(run.tolist()):
            key: tuple[Any, ...] = (now, kind, *[p[i].tobytes() for p in pieces]) if pieces else (now, kind)
            number = known.get(key)
            if number is None:
                tiles = {s: p[i].tolist() for s, p in zip(inputs, pieces, strict=True)}
                effect = self._step(unit, self.x.uops[kind], states[now], tiles)
                after = numbers.setdefault(unit.state, len(states))
                if after == len(states):
                    states.append(unit.state)
                number = known[key] = len(effects)
                effects.append(effect._replace(after=after))
            order.append(number)
            now = effects[number].after
        steps = np.array(order, np.int64)
        for i in self._having(steps, [bool(e.problems) for e in effects]):
            before = {s: int(end[i] - n[i]) for s, end, n in zip(inputs, ends, needs, strict=True)}
            for problem in effects[order[i]].problems:
                self._report(name, i, problem, before)
        unit.state = states[now]
        if isinstance(unit, CountedMem) and any(b.held.lost for b in unit.buffers):
            last = "is the last, and a filled buffer was never sent or stored: its data are lost"
            self._report(name, len(run) - 1, LOST._replace(text=last), {})
        exchanging = self._having(steps, [bool(e.exchanges) for e in effects])
        self.exchanges[name] = [(i, e) for i in exchanging for e in effects[order[i]].exchanges]
        self._sent(name, steps, [e.sends for e in effects])

    @staticmethod
    def _having(steps: Ints, which: Sequence[bool]) -> list[int]:
        """The uOPs that took one of the steps for which `which` is true."""
        found: list[int] = np.flatnonzero(np.array([*which, False])[steps]).tolist() if any(which) else []
        return found

    def _sent(self, name: str, steps: Ints, sends: Sequence[Ints]) -> None:
        """Keep what a unit sends, step by step."""
        counts = np.array([*map(len, sends), 0], np.int64)[steps]
        if counts.sum() > MAX_TILES:
            raise _TooManyError
        tiles = np.concatenate([np.zeros(0, np.int64), *[sends[i] for i in steps.tolist()]])
        uops = np.repeat(np.arange(len(steps)), counts)
        position = self.x.overlay.units.index(self.x.overlay.by_unit[name])
        for s in self.out[name]:
            self.lines[s] = _Line(tiles, uops, np.full(len(tiles), position))

    def _needs(self, unit: CountingUnit, run: Ints, inputs: Sequence[str]) -> Ints:
        """How many tiles of each input each uOP takes: that depends on the uOP alone (`Unit.effect_key`)."""
        each = np.zeros((len(inputs), len(self.x.uops)), np.int64)
        start = unit.state
        for kind in np.unique(run).tolist() if inputs else ():
            words = words_moved(unit.kernel(self.x.uops[kind]))
            each[:, kind] = [words[s] for s in inputs]
        unit.state = start
        unit.clear()
        return each[:, run]

    def _step(self, unit: CountingUnit, uop: Any, state: Any, tiles: Mapping[str, Sequence[int]]) -> _Effect:
        """One uOP. Tokens know where they came from only where something is wrong."""
        for traced in (False, True):
            unit.clear()
            unit.state = state
            kernel = _Kernel(self, unit.name, unit.exchanges, tiles, traced)
            kernel.walk(unit.kernel(uop))
            if not unit.problems:
                break
        problems, exchanges = tuple(unit.problems.values()), tuple(unit.exchanges)
        return _Effect(0, np.array(kernel.sends, np.int64), problems, exchanges)

    # -- Meshes

    def _mesh(self, mesh: str) -> None:
        """Route tiles from all sources of which it is known what they send. The kernel hands on what it gets."""
        known = [s for s in self.into[mesh] if s in self.lines]
        if self.routed.get(mesh) == set(known):
            return
        self.routed[mesh] = set(known)
        run = self.x.sequences[mesh].kinds
        tiles = np.zeros((len(known), len(self.x.uops)), np.int64)
        goes: dict[tuple[str, str], Ints] = {}
        for kind in np.unique(run).tolist():
            for source, sink, times in _routes(self.net.units[mesh].kernel(self.x.uops[kind])):
                if source in known:
                    tiles[known.index(source), kind] = times
                    goes.setdefault((source, sink), np.zeros(len(self.x.uops), np.int64))[kind] = 1
        for to in self.out[mesh]:
            parts, turns = [], []
            for source, counts in zip(known, tiles[:, run], strict=True):
                if (source, to) in goes:
                    turn = np.repeat(np.arange(len(run)), counts)
                    here = np.flatnonzero(goes[source, to][run][turn])
                    parts.append(self.lines[source].at(here))
                    turns.append(turn[here])
            if parts:
                line = _Line(*(np.concatenate(x) for x in zip(*parts, strict=True)))
                self.lines[to] = line.at(np.argsort(np.concatenate(turns), kind="stable"))


def _routes(steps: Steps) -> Iterator[tuple[str, str, int]]:
    """Source and sink of each stream that a kernel hands on as it gets it, and how many tiles of it."""
    for step in steps:
        if isinstance(step, Burst) and step.do is not None:
            for source, sink in zip(step.do(step.times, *(c.name for c in step.gets)), step.puts, strict=True):
                yield source, sink.name, step.times


def words_moved(steps: Steps) -> Counter[str]:
    """Return how many words the steps of a kernel take from, or put on, each stream, by its name. Lanes are counted
    too.
    """
    out: Counter[str] = Counter()
    for step in steps:
        if isinstance(step, Par):
            for lane in step.lanes:
                out += words_moved(lane)
        elif isinstance(step, Step):
            for channel in (*step.gets, *step.puts):
                out[channel.name] += step.words * step.times
    return out


class _Kernel:
    """One kernel, stepped with nobody at the other end. tiles: the kinds of those that it takes, by stream."""

    def __init__(
        self, flow: TileFlow, unit: str, exchanges: list[Exchange], tiles: Mapping[str, Sequence[int]], traced: bool
    ) -> None:
        self.flow, self.exchanges = flow, exchanges
        self.out, self.into = flow.out[unit], flow.into[unit]
        self.tokens: dict[str, Iterator[ValidTile]] = {}
        for stream, numbers in tiles.items():
            found = [flow.kinds[n] for n in numbers]
            if traced:
                found = [ValidTile(t.rows, t.cols, t.groups, (stream, i)) for i, t in enumerate(found)]
            self.tokens[stream] = iter(found)
        self.sends: list[int] = []

    def walk(self, steps: Steps) -> None:
        """Take all steps, of lanes one lane after the other."""
        for step in steps:
            if isinstance(step, Par):
                for lane in step.lanes:
                    self.walk(lane)
            elif isinstance(step, Step) and step.times and step.do is not None:
                self._take(step, step.do)

    def _take(self, step: Step, do: Any) -> None:
        given = [self._given(c.name, step.times) for c in step.gets]
        result: Sequence[Sequence[Any]]
        if isinstance(step, Burst):
            result = do(step.times, *given) or ()
        else:
            result = [[x] for x in do(*(x for (x,) in given)) or ()]
        for channel, tokens in zip(step.gets, given, strict=True):
            if channel.name in self.flow.links:
                self.exchanges[-1].gets += ((tokens[0].what, step.words),)
        for channel, tokens in zip(step.puts, result, strict=True):
            if channel.name in self.out:
                self.sends += map(self.flow.number, tokens)
            elif channel.name in self.flow.links:
                self.exchanges[-1].puts += ((getattr(tokens[0], "what", "columns"), step.words),)

    def _given(self, stream: str, times: int) -> list[Any]:
        """Tokens of a stream: those that are known, else what its reader asks for."""
        if stream in self.tokens:
            return list(islice(self.tokens[stream], times))
        return [WHOLE if stream in self.into else RowNumbers()] * times
