"""A checked stream program with depths to be chosen: whether it ends, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from ...base.element_types import BITS
from ...base.errors import ProgramError
from ...base.place import Place
from ..run import BodyRun, Unending, fire_together
from ..source import Source
from ..timing.bytecode import LONGEST, TooLong
from ..timing.outcomes import OUTCOMES, ByDataError, Outcomes, outcomes
from ..timing.timed import TOKENS, BeatTiming, EndlessWait, Late, TimedProgram, TooManyTokens
from ..tree import Body, Region, StreamDecl, branches

RUNS = 64
"""Runs with different depths whose results are kept: a search comes back to depths that it has just tried."""

CappedDepths = tuple[tuple[str, int], ...]
"""Depths by name, none beyond the tokens of its stream: no deeper one changes a run."""


class TimeError(ProgramError):
    """Data decides the time of a program, or the program is too large to be run or timed. The message has the line with
    a caret in the first case, and the limit that is exceeded in the second."""


@dataclass(frozen=True)
class DeclaredStream:
    """A declared stream, or array of streams, that has ends; all streams of an array have one depth. elements: the
    numbers of its streams that have ends. bits: of one element of data. tokens: elements that one execution puts on
    that stream of the array which gets most."""

    decl: StreamDecl
    elements: tuple[int, ...]
    bits: int
    tokens: int

    @property
    def weight(self) -> int:
        """The bits of one more slot in each stream of the array, together."""
        return self.bits * len(self.elements)


@dataclass(frozen=True)
class Times:
    """The times of a program with some depths, in clock cycles. runs: of each outcome of the data, or of the fastest
    and the slowest. apart: the places of beats that were divided because they cannot fire at once with these depths."""

    runs: tuple[BeatTiming, ...]
    apart: tuple[Place, ...] = ()

    @property
    def ends(self) -> tuple[tuple[int, ...], ...]:
        """The cycle in which each execution ends, for each outcome."""
        return tuple(run.ends for run in self.runs)

    @property
    def latency(self) -> int:
        """Cycles of the first execution, in the slowest outcome."""
        return max(run.latency for run in self.runs)

    @property
    def interval(self) -> int | None:
        """Cycles between the ends of the last two executions, in the slowest outcome; None for a single execution."""
        return max((run.interval for run in self.runs if run.interval is not None), default=None)

    @property
    def total(self) -> int:
        """Cycles of all executions, in the slowest outcome."""
        return max(run.ends[-1] for run in self.runs)

    @property
    def converged(self) -> bool:
        """Whether the last two intervals are equal, in all outcomes."""
        return all(run.converged for run in self.runs)


class SizedProgram:
    """A program whose depths are to be found; a check finds no other error in it. region: read with beats. executions:
    how many, one right after another, are timed."""

    def __init__(self, region: Region, executions: int = 3) -> None:
        self.region, self.executions = region, executions
        self.source: Source = region.source
        self.bodies = [instance.beats for instance in region.instances]
        self._made: list[TimedProgram] = []
        self._waits, self._times = lru_cache(RUNS)(self._run_untimed), lru_cache(RUNS)(self._run_timed)

    def _error(self, place: Place, message: str) -> TimeError:
        lines = self.source.lines
        start, end = place.column - 1, min(place.end - 1, len(lines[place.line - 1]))
        caret = " " * start + "^" * max(1, end - start)
        at = f"{self.source.file}:{place.line}:{place.column}"
        return TimeError(f"{at}: error: {message}\n{lines[place.line - 1]}\n{caret}")

    @cached_property
    def groups(self) -> dict[str, DeclaredStream]:
        """The declared streams that have ends, by name. The streams between the parts of double buffered tasks are left
        out: programs do not state their depths."""
        return {name: group for name, group in self._with_ends.items() if not group.decl.buffer_of}

    @cached_property
    def buffers(self) -> dict[int, int]:
        """The depths of the streams between the parts of double buffered tasks, in elements, by the number of the
        stream. They are the same in every run."""
        found = (group for group in self._with_ends.values() if group.decl.buffer_of)
        return {s: group.decl.depth for group in found for s in group.elements}

    @cached_property
    def _with_ends(self) -> dict[str, DeclaredStream]:
        tokens: dict[int, int] = {}
        for instance in self.region.instances:
            for node in instance.body:
                for s, put, n in node.needs:
                    if put:
                        tokens[s] = tokens.get(s, 0) + n
        groups: dict[str, DeclaredStream] = {}
        for decl in self.region.streams:
            elements = tuple(s for s in sorted(tokens) if decl.first <= s < decl.first + decl.size)
            if elements:
                bits = BITS[decl.type.dtype] * prod(decl.type.shape)
                groups[decl.name] = DeclaredStream(decl, elements, bits, max(tokens[s] for s in elements))
        return groups

    @cached_property
    def declared(self) -> dict[str, int]:
        """The declared depths, in elements, by name of the stream."""
        return {name: group.decl.depth for name, group in self.groups.items()}

    @cached_property
    def packing(self) -> dict[int, int]:
        """How many elements each stream that has ends moves together, by its number."""
        return {s: group.decl.packing for group in self._with_ends.values() for s in group.elements}

    def of_streams(self, depths: Mapping[str, int]) -> dict[int, int]:
        """Return depths by the number of the stream, those of `buffers` included. depths: in elements, by the name of
        the declared stream; a name that is missing is left out. Raises `ProgramError` for a depth below 1 of a stream
        that carries tokens."""
        chosen = [(depths[name], group) for name, group in self.groups.items() if name in depths]
        for depth, group in chosen:
            if depth < 1 and group.tokens:
                raise ProgramError(f"{group.decl.name} has depth {depth}; the least is 1")
        return self.buffers | {s: depth for depth, group in chosen for s in group.elements}

    def bits(self, depths: Mapping[str, int]) -> int:
        """Return the bits of all slots. depths: as for `of_streams`. Raises `KeyError` for a name that no stream with
        ends has."""
        return sum(depth * self.groups[name].weight for name, depth in depths.items())

    # -- untimed ------------------------------------------------------------------------------------------------------

    def waits(self, depths: Mapping[str, int]) -> Mapping[int, tuple[int, bool]]:
        """Run the program without time and without beats. Return for each instance that waits for ever, by its number,
        the number of the stream and whether it waits to put; these are from the first outcome of the data in which an
        instance does. depths: as for `of_streams`. Raises `TimeError` for a program that is too large."""
        return self._waits(self._capped(depths, 1))

    def _capped(self, depths: Mapping[str, int], executions: int) -> CappedDepths:
        most = {name: group.tokens * executions for name, group in self.groups.items()}
        return tuple((name, min(depths[name], tokens)) for name, tokens in most.items() if name in depths)

    def _run_untimed(self, capped: CappedDepths) -> Mapping[int, tuple[int, bool]]:
        bodies = [instance.body for instance in self.region.instances]
        numbers = self.of_streams(dict(capped))
        try:
            if self._sequence is not None:  # no branches on data: the compiled loop
                run = self._sequence.run(numbers)
                return run.waits if isinstance(run, EndlessWait) else {}
            waits = BodyRun(bodies, numbers, self.packing).outcome().waits
        except Unending:
            raise self._limit("its run without time takes more than run.MOVES moves, or run.STATES states") from None
        except TooManyTokens:
            raise self._limit(f"more than {TOKENS} tokens would wait on its streams at once") from None
        return {wait.instance: (wait.op.stream, wait.op.put) for wait in waits}

    @cached_property
    def _sequence(self) -> TimedProgram | None:
        """The operations one after another; None if data decides between any."""
        bodies = [instance.body for instance in self.region.instances]
        if any(branches(body) for body in bodies):
            return None
        try:
            model = TimedProgram(bodies, self.packing)
            self._made.append(model)
            return model
        except TooLong:
            raise self._limit(f"it has more than {LONGEST} puts and gets") from None

    def live(self, depths: Mapping[str, int]) -> bool:
        """Return whether every outcome of the data runs to its end. depths: as for `of_streams`. Raises `TimeError` as
        `waits`."""
        return not self.waits(depths)

    def held(self, depths: Mapping[str, int]) -> frozenset[str] | None:
        """Return None if every outcome of the data runs to its end. Otherwise return the names of streams of which at
        least one must be deeper, whatever the depths of the others: those that are full in one cycle of waits. depths:
        as for `of_streams`. Raises `TimeError` as `waits`."""
        waits = self.waits(depths)
        if not waits:
            return None
        path: list[int] = []
        k = min(waits)
        while k not in path:
            path.append(k)
            stream, put = waits[k]
            k = (self._readers if put else self._writers)[stream]
        cycle = [waits[i] for i in path[path.index(k) :]]
        return frozenset(self.region.stream(stream)[0].name for stream, put in cycle if put) & self.groups.keys()

    @cached_property
    def _writers(self) -> dict[int, int]:
        return self._ends(True)

    @cached_property
    def _readers(self) -> dict[int, int]:
        return self._ends(False)

    def _ends(self, side: bool) -> dict[int, int]:
        bodies = (instance.body for instance in self.region.instances)
        return {s: k for k, body in enumerate(bodies) for node in body for s, put, _ in node.needs if put is side}

    def walked(self) -> int:
        """Return how many beats all runs with times have executed so far; runs in which beats were divided are left
        out."""
        return sum(model.walked for model in self._made)

    # -- timed --------------------------------------------------------------------------------------------------------

    @cached_property
    def outcomes(self) -> Outcomes:
        """The outcomes of branches on data. Raises `TimeError` where data decide the time in more ways than can be told
        apart.
        """
        if self.region.by_data:
            raise self._error(self.region.by_data[0], "data decides how often this loop runs, and it takes time")
        return self._outcomes(tuple(self.bodies))

    def _outcomes(self, bodies: tuple[Body, ...]) -> Outcomes:
        try:
            return outcomes(bodies)
        except ByDataError as e:
            message = (
                f"data decides what fires here, in more than {OUTCOMES} ways: the time is not known before the run"
            )
            raise self._error(e.place, message) from None

    def together(self, depths: Mapping[str, int]) -> Times | None:
        """Return the times with some depths; None if a beat waits for ever. depths: in elements, by the name of the
        declared stream; one that is missing has no limit. Raises `TimeError` as `outcomes`, and for a program that is
        too large."""
        return self._all_outcomes(self._models, depths, ())

    def later(self, depths: Mapping[str, int], than: Times) -> frozenset[str] | None:
        """Return None if every execution ends as early as in `than`, the times with streams of unlimited depth.
        Otherwise return the names of streams of which at least one must be deeper, whatever the depths of the others.
        depths: as for `together`. Raises `TimeError` as `together`."""
        numbers = self.of_streams(depths)
        try:
            for model, run in zip(self._models, than.runs, strict=True):
                result = model.run(numbers, limits=run.ends)
                if isinstance(result, EndlessWait):
                    return frozenset(depths)
                if isinstance(result, Late):
                    groups = self.groups.items()
                    return frozenset(name for name, group in groups if not result.full.isdisjoint(group.elements))
        except TooManyTokens:
            raise self._limit(f"more than {TOKENS} tokens would wait on its streams at once") from None
        return None

    def times(self, depths: Mapping[str, int]) -> Times | None:
        """Return the times with some depths, after beats that cannot fire at once were divided; None if an instance
        waits for ever even then. depths: as for `together`. Raises `TimeError` as `together`."""
        return self._times(self._capped(depths, self.executions))

    def _run_timed(self, capped: CappedDepths) -> Times | None:
        depths = dict(capped)
        found = self.together(depths)
        if found is not None:
            return found
        endless = {name: group.tokens for name, group in self.groups.items()}
        try:
            one = fire_together(self.bodies, self.of_streams({**endless, **depths}), self.packing)
        except Unending:
            raise self._limit("its run without time takes more than run.MOVES moves, or run.STATES states") from None
        if not one.live:
            return None
        places = tuple(sorted({beat.place for beat in one.apart}))
        return self._all_outcomes(self._models_of(self._outcomes(one.bodies)), depths, places)

    @cached_property
    def _models(self) -> list[TimedProgram]:
        models = self._models_of(self.outcomes)
        self._made += models
        return models

    def _models_of(self, found: Outcomes) -> list[TimedProgram]:
        try:
            return [TimedProgram(bodies, self.packing, self.executions) for bodies in found.bodies]
        except TooLong:
            raise self._limit(f"its beats take more than {LONGEST} cycles") from None

    def _all_outcomes(
        self, models: list[TimedProgram], depths: Mapping[str, int], apart: tuple[Place, ...]
    ) -> Times | None:
        runs: list[BeatTiming] = []
        numbers = self.of_streams(depths)
        try:
            for model in models:
                run = model.run(numbers)
                if not isinstance(run, BeatTiming):
                    return None
                runs.append(run)
        except TooManyTokens:
            raise self._limit(f"more than {TOKENS} tokens would wait on its streams at once") from None
        return Times(tuple(runs), apart)

    def _limit(self, what: str) -> TimeError:
        return TimeError(f"{self.source.file}: error: the program is too large: {what}")
