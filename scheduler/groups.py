"""Segments: which layers are lowered together, the kind name of each segment, and the knobs that a schedule sets for
it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import pairwise

from ..base.errors import ScheduleError
from .graph import AttentionLayer, Gemm, LayerGraph
from .mapping import MappingType
from .schedule import DramPolicy, Interleave, Loops, Schedule, Segment, Tiles

Group = list[Gemm] | AttentionLayer
"""The layers of a segment: consecutive products of one activation, or one attention."""
SHOWN = 8
"""Largest number of module paths in a message."""
HARDWARE = DramPolicy(patience_us=0.0, store_blocks=16)
"""The policy of Interleave.HARDWARE: reads first, as a memory controller that does not know the application."""


@dataclass(frozen=True)
class Planned:
    """A segment with its kind name and the knobs that apply to it. layers: what it computes. loops, tiles: for
    products. rule: for list scheduling. mapping: None chooses by the roofline. drain: all its stores end before the
    next segment loads."""

    layers: Group
    kind: str
    loops: Loops
    tiles: Tiles
    rule: DramPolicy
    mapping: MappingType | None
    drain: bool


def plan(network: LayerGraph, schedule: Schedule) -> list[Planned]:
    """Divide a network into segments, in execution order, each with its knobs. Raises `ScheduleError` if the schedule
    names kinds or layers that the network does not have, or combines layers that cannot form one segment."""
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
    """Whether a group of Table 9 ends with each segment: groups end before the products that an attention reads, before
    the attention, and behind it."""
    read_by = {
        name: group.y for group in groups if isinstance(group, AttentionLayer) for name in (group.q, group.k, group.v)
    }

    def readers(group: Group) -> set[str]:
        return {read_by[layer.y] for layer in _layers(group) if layer.y in read_by}

    return [
        isinstance(a, AttentionLayer) or isinstance(b, AttentionLayer) or bool(readers(b) and readers(a) != readers(b))
        for a, b in pairwise(groups)
    ] + [False] * bool(groups)


def _planned(group: Group, kind: str, schedule: Schedule, chosen: Segment | None, end: bool) -> Planned:
    """The knobs of a segment: by module path (`chosen`), else by kind, else of the whole schedule. end: a group of
    Table 9 ends with this segment."""
    entry = chosen or Segment("")
    rule = HARDWARE if schedule.interleave is Interleave.HARDWARE else entry.rule or schedule.rule(kind)
    loops = Loops.ROWS if isinstance(group, list) and len(group) > 1 else schedule.loops
    return Planned(
        group,
        kind,
        entry.loops or loops,
        entry.tiles or schedule.tiles_of(kind),
        rule,
        entry.mapping or schedule.attention,
        end or kind in schedule.drain if entry.overlap is None else not entry.overlap,
    )


class _Chosen:
    """The entry of schedule.segments that applies to each layer: the first that matches its path."""

    def __init__(self, network: LayerGraph, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._network = network
        self._of: dict[str, tuple[int, str]] = {}
        """Index of the entry and the pattern that matches, by the layer's output activation."""
        for layer in network.layers:
            for i, segment in enumerate(segments):
                pattern = next((p for p in segment.layers if matches_path(p, layer.path)), None)
                if pattern is not None:
                    self._of.setdefault(layer.y, (i, pattern))

    def index(self, layer: Gemm | AttentionLayer) -> int | None:
        """The number of the entry that applies to a layer; None if there is none."""
        return self._of[layer.y][0] if layer.y in self._of else None

    def of(self, group: Group) -> Segment | None:
        """The entry that applies to a segment; None if there is none."""
        at = self.index(_layers(group)[0])
        return None if at is None else self._segments[at]

    def check(self, groups: Sequence[Group]) -> None:
        """Check the entries against the segments. Raises `ScheduleError` for a pattern that matches no layer, for
        layers that cannot form one segment, and for knobs that do not apply to the segment."""
        missing = {(i, p) for i, segment in enumerate(self._segments) for p in segment.layers}
        for _, pattern in sorted(missing - set(self._of.values())):
            raise ScheduleError(f"segments: {pattern!r} {self._why_missing(pattern)}")
        for group in groups:
            segment = self.of(group)
            if segment is not None:
                self._check(group, segment)

    def _why_missing(self, pattern: str) -> str:
        known = list(dict.fromkeys(layer.path for layer in self._network.layers))
        if any(matches_path(pattern, path) for path in known):
            return "matches only layers that an earlier entry matches; the first entry that matches a layer applies"
        depth = len(pattern.split("."))
        below = [path for path in known if matches_path(pattern, ".".join(path.split(".")[:depth]))]
        if below:
            return f"is not a layer but contains layers: {some_of(below)}"
        close = get_close_matches(pattern, known, n=3)
        if close:
            return f"matches no layer; did you mean {some_of(close)}?"
        return f"matches no layer; there are {some_of(known)}"

    def _check(self, group: Group, segment: Segment) -> None:
        paths = ", ".join(layer.path for layer in _layers(group))
        matched = {self._of[layer.y][1] for layer in _layers(group)}
        if matched != set(segment.layers):
            others = ", ".join(p for p in segment.layers if p not in matched)
            raise ScheduleError(
                f"segments: {paths} cannot form one segment with {others}: a segment is one attention, or consecutive "
                "products of the same activation without residual and LayerNorm"
            )
        if isinstance(group, AttentionLayer) and (segment.tiles or segment.loops):
            raise ScheduleError(f"segments: {paths} is an attention; tiles and loops apply to products only")
        if not isinstance(group, AttentionLayer) and segment.mapping:
            raise ScheduleError(f"segments: {paths} is a product; a mapping type applies to an attention only")


def some_of(paths: Sequence[str]) -> str:
    """Return the first few of some module paths, and how many more there are, for a message."""
    more = len(paths) - SHOWN
    return ", ".join(paths[:SHOWN]) + f" and {more} more" * (more > 0)


def matches_path(pattern: str, path: str) -> bool:
    """Return whether a module path matches a pattern, part by part: `*` stands for one part or some of it."""
    patterns, parts = pattern.split("."), path.split(".")
    return len(patterns) == len(parts) and all(map(fnmatchcase, parts, patterns))


def _layers(group: Group) -> Sequence[Gemm | AttentionLayer]:
    return [group] if isinstance(group, AttentionLayer) else group


def groups_of(network: LayerGraph, loops: Loops, chosen: _Chosen | None = None) -> Iterator[Group]:
    """Divide a network's layers into segments, in execution order: an attention is one by itself; a list holds products
    that are one together.

    Consecutive products of the same activation are one with Loops.ROWS, where they share slices, if their operand is
    normalised as it is loaded, or if an entry of `Schedule.segments` names them together. chosen: these entries,
    matched to the layers; None for none."""
    products: list[Gemm] = []
    for layer in network.layers:
        if products and not (isinstance(layer, Gemm) and _share_segment(products[-1], layer, loops, chosen)):
            yield products
            products = []
        if isinstance(layer, Gemm):
            products = [*products, layer]
        else:
            yield layer
    if products:
        yield products


def _share_segment(a: Gemm, b: Gemm, loops: Loops, chosen: _Chosen | None) -> bool:
    stored = any(layer.residual or (layer.norm and not layer.in_heads) for layer in (a, b))
    if a.x != b.x or a.x_norm != b.x_norm or stored:
        return False
    named = (None, None) if chosen is None else (chosen.index(a), chosen.index(b))
    if named != (None, None):
        return named[0] == named[1]
    return loops is Loops.ROWS or a.x_norm is not None  # statistics, and tables, come once for all of them


def kind_of(group: Group) -> str:
    """The name of a kind of segment in schedules, such as `gemm 1024x4096 gelu_tanh`. Segments of the same operation
    and shape have the same kind. group: a list of at least one product, or an attention."""
    if isinstance(group, AttentionLayer):
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
    words += ["gated"] if gemm.gated else []
    words += ["sum"] if gemm.is_sum else ["residual"] if gemm.residual else []
    heads = f" of {gemm.heads} heads" if gemm.in_heads else ""
    words += ["rms" * gemm.norm.rms + "norm" + heads] if gemm.norm else []
    words += ["rotary" + heads] if gemm.rotary else []
    for name, norm in (("x", gemm.x_norm), ("residual", gemm.residual_norm)):
        words += ["rms" * norm.rms + f"norm of {name}"] if norm else []
    return " ".join(words)


def _check_kinds(schedule: Schedule, known: set[str]) -> None:
    for name, given in (("rules", dict(schedule.rules)), ("tiles", dict(schedule.tiles)), ("drain", schedule.drain)):
        for kind in given:
            if kind not in known or (name == "tiles" and kind.startswith("attention")):
                kinds = sorted(k for k in known if name != "tiles" or not k.startswith("attention"))
                raise ScheduleError(f"{name}.{kind!r}: the network has no such segment; there are {', '.join(kinds)}")
