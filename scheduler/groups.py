"""Which layers are lowered together, as one segment, what segments that are alike are called, and what a schedule says
of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import pairwise

from ..base.errors import ScheduleError
from .graph import Attention, Gemm, LayerGraph
from .mapping import MappingType
from .schedule import DramPolicy, Interleave, Loops, Schedule, Segment
from .tiles import Tiles

Group = list[Gemm] | Attention
"""Products of one activation, or one attention."""
SHOWN = 8
"""Module paths in a message, at most."""
HARDWARE = DramPolicy(patience_us=0.0, store_blocks=16)
"""How a memory controller orders stores that knows nothing of the application: reads first."""


@dataclass(frozen=True)
class Planned:
    """A segment, and how it goes through the machine."""

    layers: Group
    kind: str
    loops: Loops
    tiles: Tiles
    rule: DramPolicy
    mapping: MappingType | None
    drain: bool


def plan(network: LayerGraph, schedule: Schedule) -> list[Planned]:
    """The segments of a network in their order. Raises `ScheduleError` where the schedule speaks of segments or layers
    that are not there, or puts together what the machine cannot."""
    chosen = _Chosen(network, schedule.segments)
    groups = list(groups_of(network, schedule.loops, chosen))
    chosen.check(groups)
    kinds = [kind_of(group) for group in groups]
    _check_kinds(schedule, set(kinds))
    ends = _ends(groups) if schedule.interleave is Interleave.PUBLISHED else [False] * len(groups)
    return [
        _planned(group, kind, schedule, chosen.of(group), end)
        for group, kind, end in zip(groups, kinds, ends, strict=True)
    ]


def _ends(groups: Sequence[Group]) -> list[bool]:
    """Whether one of the groups of Table 9 ends with a segment: before the products that an attention takes, before the
    attention, and behind it."""
    taken_by = {
        name: group.y for group in groups if isinstance(group, Attention) for name in (group.q, group.k, group.v)
    }

    def takers(group: Group) -> set[str]:
        return {taken_by[layer.y] for layer in _layers(group) if layer.y in taken_by}

    return [
        isinstance(a, Attention) or isinstance(b, Attention) or bool(takers(b) and takers(a) != takers(b))
        for a, b in pairwise(groups)
    ] + [False] * bool(groups)


def _planned(group: Group, kind: str, schedule: Schedule, chosen: Segment | None, end: bool) -> Planned:
    """By its module path, else by its kind, else as all. end: what it belongs to ends with it."""
    said = chosen or Segment("")
    rule = HARDWARE if schedule.interleave is Interleave.HARDWARE else said.rule or schedule.rule(kind)
    together = Loops.ROWS if isinstance(group, list) and len(group) > 1 else schedule.loops
    return Planned(
        group,
        kind,
        said.loops or together,
        said.tiles or schedule.tiles_of(kind),
        rule,
        said.mapping or schedule.attention,
        end or kind in schedule.drain if said.overlap is None else not said.overlap,
    )


class _Chosen:
    """Which of a schedule's segments each layer belongs to: the first that names it."""

    def __init__(self, network: LayerGraph, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._network = network
        self._of: dict[str, tuple[int, str]] = {}
        """Segment and pattern, by activation."""
        for layer in network.layers:
            for i, segment in enumerate(segments):
                pattern = next((p for p in segment.layers if _matches(p, layer.path)), None)
                if pattern is not None:
                    self._of.setdefault(layer.y, (i, pattern))

    def index(self, layer: Gemm | Attention) -> int | None:
        return self._of[layer.y][0] if layer.y in self._of else None

    def of(self, group: Group) -> Segment | None:
        at = self.index(_layers(group)[0])
        return None if at is None else self._segments[at]

    def check(self, groups: Sequence[Group]) -> None:
        """Raises `ScheduleError` for a segment that is not there, in full, or says what does not go with it."""
        missing = {(i, p) for i, segment in enumerate(self._segments) for p in segment.layers}
        for _, pattern in sorted(missing - set(self._of.values())):
            raise ScheduleError(f"segments: {pattern!r} {self._why_missing(pattern)}")
        for group in groups:
            segment = self.of(group)
            if segment is not None:
                self._check(group, segment)

    def _why_missing(self, pattern: str) -> str:
        known = list(dict.fromkeys(layer.path for layer in self._network.layers))
        if any(_matches(pattern, path) for path in known):
            return "names no layer that an earlier entry does not name: the first that names a layer holds"
        depth = len(pattern.split("."))
        below = [path for path in known if _matches(pattern, ".".join(path.split(".")[:depth]))]
        if below:
            return f"is no layer but holds some: {_some(below)}"
        close = get_close_matches(pattern, known, n=3)
        return f"is no layer; did you mean {_some(close)}?" if close else f"is no layer; there are {_some(known)}"

    def _check(self, group: Group, segment: Segment) -> None:
        paths = ", ".join(layer.path for layer in _layers(group))
        there = {self._of[layer.y][1] for layer in _layers(group)}
        if there != set(segment.layers):
            without = ", ".join(p for p in segment.layers if p not in there)
            raise ScheduleError(
                f"segments: {paths} cannot go together with {without}: one segment are products of the same activation "
                "that follow on each other, without residual or LayerNorm, or one attention"
            )
        if isinstance(group, Attention) and (segment.tiles or segment.loops):
            raise ScheduleError(f"segments: {paths} is an attention: tiles and loops go with products")
        if not isinstance(group, Attention) and segment.mapping:
            raise ScheduleError(f"segments: {paths}: a mapping type goes with an attention, not with a product")


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + f" and {more} more" * (more > 0)


def _matches(pattern: str, path: str) -> bool:
    """Part by part: `*` stands for (some of) one part of a module path."""
    wanted, parts = pattern.split("."), path.split(".")
    return len(wanted) == len(parts) and all(map(fnmatchcase, parts, wanted))


def _layers(group: Group) -> Sequence[Gemm | Attention]:
    return [group] if isinstance(group, Attention) else group


def groups_of(network: LayerGraph, loops: Loops, chosen: _Chosen | None = None) -> Iterator[Group]:
    """What is lowered together: products of the same activation that follow on each other, where they share slices.
    chosen: what a schedule says of layers by name."""
    waiting: list[Gemm] = []
    for layer in network.layers:
        if waiting and not (isinstance(layer, Gemm) and _together(waiting[-1], layer, loops, chosen)):
            yield waiting
            waiting = []
        if isinstance(layer, Gemm):
            waiting = [*waiting, layer]
        else:
            yield layer
    if waiting:
        yield waiting


def _together(a: Gemm, b: Gemm, loops: Loops, chosen: _Chosen | None) -> bool:
    if a.x != b.x or a.residual or b.residual or a.norm or b.norm:
        return False
    named = (None, None) if chosen is None else (chosen.index(a), chosen.index(b))
    return loops is Loops.ROWS if named == (None, None) else named[0] == named[1]


def kind_of(group: Group) -> str:
    """What segments that are alike have in common, as schedules name them: `gemm 1024x4096 gelu`."""
    if isinstance(group, Attention):
        return (
            f"attention {group.heads}x{group.head_dim}"
            + " causal" * group.causal
            + ("" if group.bias is None else " biased")
        )
    gemm = group[0]
    k, n = gemm.weight.shape
    words = [f"gemm {k}x{n}" if gemm.multiplies else f"pass {n}"]
    words += [f"times {len(group)}"] if len(group) > 1 else []
    words += [gemm.activation.value] if gemm.activation else []
    words += ["residual"] if gemm.residual else []
    words += ["rms" * gemm.norm.rms + "norm"] if gemm.norm else []
    return " ".join(words)


def _check_kinds(schedule: Schedule, known: set[str]) -> None:
    for name, given in (("rules", dict(schedule.rules)), ("tiles", dict(schedule.tiles)), ("drain", schedule.drain)):
        for kind in given:
            if kind not in known or (name == "tiles" and kind.startswith("attention")):
                there = sorted(k for k in known if name != "tiles" or not k.startswith("attention"))
                raise ScheduleError(f"{name}.{kind!r}: there is no such segment; there are {', '.join(there)}")
