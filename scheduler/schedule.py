"""A schedule: all choices of the scheduler as one value, and its TOML file format."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from ..base.errors import ScheduleError
from .mapping import MappingType


@cache
def types_of(made: Any) -> dict[str, Any]:
    """The type of each field of the dataclass `made`, by the name of the field. Cached, because a search makes many
    schedules."""
    return get_type_hints(made)


def check(knobs: Any, skip: tuple[str, ...] = ()) -> None:
    """Convert the fields of `knobs`, a frozen dataclass, to their types, in place, except those in `skip`. Raises
    `ScheduleError` for a value that cannot be converted."""
    made: Any = type(knobs)
    types = types_of(made)
    for f in fields(knobs):
        given = getattr(knobs, f.name)
        if f.name in skip or (given is None and NoneType in get_args(types[f.name])):
            continue
        value = converted(types[f.name], given, f.name)
        if value is not given:
            object.__setattr__(knobs, f.name, value)


def converted(knob_type: Any, given: Any, name: str) -> Any:
    """Convert a value that was given for a knob to the knob's type.

    knob_type: an Enum, bool, int, float or a class of this module, also with `| None`. str means a tuple of texts,
    which may be given as a list. name: the name of the knob, for messages. Raises `ScheduleError` if the value has
    another type, is not among the values of an Enum, or is too large for a float."""
    knob_type = next((x for x in get_args(knob_type) if isinstance(x, type) and x is not NoneType), knob_type)
    if issubclass(knob_type, Enum):
        try:
            return knob_type(given)
        except ValueError:
            values = ", ".join(repr(m.value) for m in knob_type)
            raise ScheduleError(f"{name} = {given!r}: must be one of {values}") from None
    if knob_type is str:
        if not isinstance(given, list | tuple) or not all(isinstance(kind, str) for kind in given):
            raise ScheduleError(f"{name} = {given!r}: must be a list of kinds of segments (strings)")
        return tuple(given)
    if knob_type is bool:
        if not isinstance(given, bool):
            raise ScheduleError(f"{name} = {given!r}: must be true or false")
        return given
    if knob_type not in (int, float):
        if type(given) is not knob_type:  # not isinstance: a Schedule is a subclass of Tiles, but no valid value here
            raise ScheduleError(f"{name} = {given!r}: must be {knob_type.__name__}(...)")
        return given
    if isinstance(given, bool) or not isinstance(given, Real):
        raise ScheduleError(f"{name} = {given!r}: must be a number")
    if knob_type is int and not isinstance(given, Integral):
        raise ScheduleError(f"{name} = {given!r}: must be a whole number")
    try:
        return knob_type(given)
    except OverflowError:  # a whole number beyond the range of float
        raise ScheduleError(f"{name}: the number is too large") from None


@dataclass(frozen=True)
class Tiles:
    """Limits on how products are cut into output tiles.

    tile_rows, tile_cols: largest output tile, in blocks of 128 rows and of 128 columns (paper section 5.3: 768x1024).
    mme_rows, mme_cols: largest grid of MMEs (rows by columns) that computes one tile; each MemA feeds a row of the
    grid, each MemB a column. A machine that holds less than the defaults takes what it holds; `tile` refuses other
    values that it cannot hold. Raises `ScheduleError` for numbers below 1.
    """

    tile_rows: int = 6
    tile_cols: int = 8
    mme_rows: int = 3
    mme_cols: int = 2

    @property
    def words(self) -> str:
        """Tile size in elements, and the grid if it is not the default, as text for the log of a search."""
        grid = "" if (self.mme_rows, self.mme_cols) == (3, 2) else f" on {self.mme_rows}x{self.mme_cols} MMEs"
        return f"tiles of {128 * self.tile_rows}x{128 * self.tile_cols}{grid}"

    def __post_init__(self) -> None:
        check(self, skip=("segments", "tiles", "rules"))  # fields of the subclass Schedule, which checks them itself
        for f in fields(Tiles):
            if getattr(self, f.name) < 1:
                raise ScheduleError(f"{f.name}={getattr(self, f.name)}: must be at least 1")


class LaneMode(Enum):
    """How the lanes of an overlay share rows and columns (`scheduler/lanes/modes.py`)."""

    R6 = "R6"
    """Six row tiles, one for each lane."""
    P3 = "P3"
    """Three row tiles, one for each pair of lanes, whose lanes share the columns."""


@dataclass(frozen=True)
class LaneKnobs:
    """How an overlay of row lanes computes a network.

    mode: None takes the one that takes less time. lag: by how many groups the product of probabilities and values comes
    later than the scores of the same group; a group is one head of a row tile of each pair. None takes 2, or as many as
    there is room for. trail: by how many rounds of attention the output projection of heads comes later than their
    scores. hidden: slots of the memory T for activated tiles between the two products of a feed-forward. lpddr: the
    share of the weights, 0.5 to 1, that the bank of weights has in mode P3, which is then taken; None lets both banks
    take the same time. Raises `ScheduleError` for values out of range; a network for which there is no room with them
    is refused when it is lowered.
    """

    mode: LaneMode | None = None
    lag: int | None = None
    trail: int = 2
    hidden: int = 3
    lpddr: float | None = None

    def __post_init__(self) -> None:
        check(self)
        for name, least in (("lag", 0), ("trail", 1), ("hidden", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ScheduleError(f"lanes.{name} = {value}: must be at least {least}")
        if self.lpddr is not None and not 0.5 <= self.lpddr <= 1:
            raise ScheduleError(f"lanes.lpddr = {self.lpddr}: must be from 0.5 to 1, a share of the weights")
        if self.lpddr is not None and self.mode is LaneMode.R6:
            raise ScheduleError("lanes.lpddr is for mode P3: in mode R6 all weights lie in one bank")


USUAL_LANES = LaneKnobs()


class Interleave(Enum):
    """How the loads and stores of a program share the one DDR channel (paper Fig. 12 shows the first three)."""

    STRICT = "strict"
    """Load, compute, store: the loads of a tile wait for the stores of the tile before."""
    INTERLEAVED = "interleaved"
    """The stores of a tile go between the loads of the next tile, across segments too (paper section 4.4)."""
    HARDWARE = "hardware"
    """Reads first, like a memory controller that does not know the application: a store is issued only when it delays
    no load."""
    LISTED = "listed"
    """List scheduling: whenever the channel is free, it takes the load whose unit has waited longest, or a store before
    that load (`DramPolicy`)."""
    PUBLISHED = "published"
    """The order of the published host: INTERLEAVED within each group of Table 9 (the products that an attention reads,
    the attention, the products behind it), with a drain after each group; STRICT where one tile of 384 rows holds all
    rows."""


@dataclass(frozen=True)
class DramPolicy:
    """List scheduling parameters for the DDR accesses of one kind of segment.

    patience_us: microseconds by which a store may delay a load that is ready. store_blocks: largest piece of a store,
    in blocks of 128x64 elements. by_columns: True stores the ready pieces of the leftmost columns first, so that the
    next segment can begin with them; False stores MemC after MemC. in_order: True takes ready loads in program order;
    False takes the load whose unit has waited longest. Raises `ScheduleError` for a value out of range.
    """

    patience_us: float = 4.0
    store_blocks: int = 8
    by_columns: bool = False
    in_order: bool = False

    @property
    def words(self) -> str:
        """The policy as one line of text, for the log of a search."""
        order = "by columns" if self.by_columns else "by units"
        loads = ", loads in order" * self.in_order
        return f"pieces of {self.store_blocks} blocks {order}, a load waits up to {self.patience_us:g} us{loads}"

    def __post_init__(self) -> None:
        check(self)
        if not -1000 <= self.patience_us <= 1000:
            raise ScheduleError(f"patience_us={self.patience_us}: must be from -1000 to 1000 microseconds")
        if self.store_blocks not in STORE_BLOCKS:
            sizes = ", ".join(map(str, STORE_BLOCKS))
            raise ScheduleError(f"store_blocks={self.store_blocks}: must be one of {sizes} (blocks of 128x64)")


STORE_BLOCKS = (1, 2, 4, 8, 16)
"""Sizes that a piece of a store may have, in blocks of 128x64 elements."""


class Loops(Enum):
    """Which loop over the output tiles of a product is the outer loop."""

    COLUMNS = "columns"
    """Column tiles outside, row tiles inside: addresses advance by constant strides, so that the image is small."""
    ROWS = "rows"
    """Row tiles outside: MemA keeps slices of the activation for several products, so that DDR loads less."""


@dataclass(frozen=True)
class Segment:
    """Layers, selected by module path, that form one segment, and how it is scheduled (paper section 4.5, Fig. 13).

    layers: module paths; `*` matches one part of a path or some of it: `layers.*.attention` is the attention of every
    layer. Several paths name products of one activation, such as queries, keys and values; these then share its slices.
    mapping: mapping type of an attention. overlap: whether its stores go among the loads of the next segment. tiles,
    loops: for products. rule: for Interleave.LISTED. None means: as the schedule says for this kind of segment. Raises
    `ScheduleError` for a value of another type.
    """

    layers: tuple[str, ...] | str
    mapping: MappingType | None = None
    overlap: bool | None = None
    tiles: Tiles | None = None
    loops: Loops | None = None
    rule: DramPolicy | None = None

    def __post_init__(self) -> None:
        layers = (self.layers,) if isinstance(self.layers, str) else self.layers
        if not isinstance(layers, list | tuple) or not all(isinstance(path, str) for path in layers):
            raise ScheduleError(f"layers = {layers!r}: must be a list of module paths (strings)")
        if not layers or len(set(layers)) < len(layers):
            raise ScheduleError(f"layers = {list(layers)!r}: must name at least one module path, and each path once")
        object.__setattr__(self, "layers", tuple(layers))
        check(self, skip=("layers",))


TABLES: dict[str, type[Tiles | DramPolicy]] = {"tiles": Tiles, "rules": DramPolicy}
"""Knobs that are tables with one entry for each kind of segment."""


@dataclass(frozen=True, kw_only=True)
class Schedule(Tiles):
    """How a network is mapped to the machine: tiles, order of loops, mapping type of attention, order of DDR accesses.

    tile_rows, tile_cols, mme_rows, mme_cols (see `Tiles`) hold for all products whose kind is not in `tiles`.
    interleave: how loads and stores share DDR. drain: kinds of segments whose stores end before the next segment loads;
    all other segments overlap with the next (paper section 4.4), with Interleave.PUBLISHED within a group only. loops:
    order of output tiles in products of one activation. whole_tiles: pad products to whole output tiles of 768 (or 384)
    rows and 1024 columns, as the published host does (contract section 6); False cuts tiles to size. attention: mapping
    type (paper section 2.2); None chooses by the roofline. heads_per_slot: maximum number of heads of one or two row
    blocks in a pipeline slot. balance: run attention over three row blocks as a stream of row tiles
    (`attention_3_blocks`). tiles: by kind of segment. rules: by kind of segment, for Interleave.LISTED; kinds without
    an entry have the default `DramPolicy`. segments: by module path; these come before all entries by kind, and the
    first that matches a layer applies. lanes: knobs of overlays of row lanes; there, `interleave` is the only other
    knob with an effect. Raises `ScheduleError` for values out of range or that contradict each other.
    """

    interleave: Interleave = Interleave.INTERLEAVED
    drain: tuple[str, ...] = ()
    loops: Loops = Loops.COLUMNS
    whole_tiles: bool = False
    attention: MappingType | None = None
    heads_per_slot: int = 4
    balance: bool = False
    tiles: tuple[tuple[str, Tiles], ...] = ()
    rules: tuple[tuple[str, DramPolicy], ...] = ()
    segments: tuple[Segment, ...] = ()
    lanes: LaneKnobs = USUAL_LANES

    def rule(self, kind: str) -> DramPolicy:
        """The list scheduling policy of a kind of segment: its entry in `rules`, else the default policy."""
        return dict(self.rules).get(kind, DramPolicy())

    def tiles_of(self, kind: str) -> Tiles:
        """How products of a kind of segment are cut into tiles: as the entry of the kind in `tiles` says, else as the
        schedule itself does. Entries of single segments (`segments`) are not looked at."""
        return dict(self.tiles).get(kind, self)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.segments, list | tuple) or not all(isinstance(x, Segment) for x in self.segments):
            raise ScheduleError(f"segments = {self.segments!r}: must be a list of Segment(...)")
        object.__setattr__(self, "segments", tuple(self.segments))
        for name, made in TABLES.items():
            object.__setattr__(self, name, _pairs(getattr(self, name), made, name))
        cut = self.tiles or any(segment.tiles for segment in self.segments)
        if self.whole_tiles and (cut or any(getattr(self, f.name) != f.default for f in fields(Tiles))):
            raise ScheduleError(
                "whole_tiles cannot be combined with other tile knobs: it needs the default tiles, 768x1024 on all MMEs"
            )
        if self.heads_per_slot not in (1, 2, 4):
            raise ScheduleError(
                f"heads_per_slot={self.heads_per_slot}: must be 1, 2 or 4 (the first product runs on four MMEs)"
            )
        rules = self.rules or any(segment.rule for segment in self.segments)
        if rules and self.interleave is not Interleave.LISTED:
            raise ScheduleError(f'rules need interleave = "listed", not {self.interleave.value!r}')
        for name, kinds in (("rules", dict(self.rules)), ("tiles", dict(self.tiles)), ("drain", set(self.drain))):
            if len(kinds) < len(getattr(self, name)):
                raise ScheduleError(f"{name}: two entries for the same kind of segment")


def _pairs(given: object, made: type[Tiles | DramPolicy], name: str) -> tuple[tuple[str, Tiles | DramPolicy], ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is made
        for pair in given
    ):
        raise ScheduleError(f"{name} = {given!r}: must be pairs (kind of segment, {made.__name__}(...))")
    return tuple(given)


PAPER = Schedule()
PUBLISHED = Schedule(interleave=Interleave.PUBLISHED, whole_tiles=True)
STRICT = Schedule(interleave=Interleave.STRICT)
SCHEDULES = {"paper": PAPER, "strict": STRICT, "published": PUBLISHED}


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a TOML file, as `show_schedule` prints it; absent knobs have their defaults. Raises
    `ScheduleError`, naming file, knob and limit, for a file that does not exist, is no TOML, or has an unknown knob or
    a wrong value; `OSError` for a file that cannot be read."""
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        with naming(str(path)):
            return _schedule(given)
    except FileNotFoundError:
        raise ScheduleError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as e:  # ValueError: not UTF-8, not TOML, or a number of 5000 digits
        raise ScheduleError(f"{path}: not a TOML file: {e}") from None


@contextmanager
def naming(where: str) -> Iterator[None]:
    """A context that puts the place `where` before the text of a `ScheduleError` that is raised in it."""
    try:
        yield
    except ScheduleError as e:
        raise ScheduleError(f"{where}: {e}") from None


NAMED = "segments"
"""The array of tables with knobs by module path."""
LANES = "lanes"
"""The table with the knobs of row lanes."""
INNER: dict[str, type[Tiles | DramPolicy]] = {"tiles": Tiles, "rule": DramPolicy}
"""The tables within one entry of that array."""


def _schedule(given: dict[str, Any]) -> Schedule:
    tables: dict[str, Any] = {}
    for name, made in TABLES.items():
        table = given.pop(name, {})
        if not isinstance(table, dict) or not all(isinstance(knobs, dict) for knobs in table.values()):
            raise ScheduleError(f'{name}: must be a table of tables, one for each kind of segment: [{name}."KIND"]')
        tables[name] = tuple((kind, _entry(made, knobs, f"{name}.{kind!r}")) for kind, knobs in table.items())
    lanes = given.pop(LANES, {})
    if not isinstance(lanes, dict):
        raise ScheduleError(f"{LANES}: must be a table")
    named = given.pop(NAMED, [])
    if not isinstance(named, list) or not all(isinstance(entry, dict) for entry in named):
        raise ScheduleError(f"{NAMED}: must be an array of tables, [[{NAMED}]], each with its layers")
    segments = tuple(_segment(entry, f"{NAMED}[{i}]") for i, entry in enumerate(named))
    of_lanes = LaneKnobs(**_knobs(LaneKnobs, lanes, f"{LANES}."))
    return Schedule(**_knobs(Schedule, given, ""), **tables, segments=segments, lanes=of_lanes)


def _segment(given: dict[str, Any], where: str) -> Segment:
    layers = given.pop("layers", None)
    inner: dict[str, Any] = {}
    for name, made in INNER.items():
        if name in given:
            knobs = given.pop(name)
            if not isinstance(knobs, dict):
                raise ScheduleError(f"{where}.{name} = {knobs!r}: must be a table")
            inner[name] = _entry(made, knobs, f"{where}.{name}")
    knobs = _knobs(Segment, given, f"{where}.")
    with naming(where):
        return Segment(layers, **knobs, **inner)


def _entry(made: type[Tiles | DramPolicy], given: dict[str, Any], where: str) -> Tiles | DramPolicy:
    knobs = _knobs(made, given, f"{where}.")
    with naming(where):
        return made(**knobs)


def _knobs(made: type[Tiles | DramPolicy | Segment | LaneKnobs], given: dict[str, Any], where: str) -> dict[str, Any]:
    """Convert the values of a file to the knobs' types. Raises `ScheduleError` for an unknown knob or another type."""
    knob_class: Any = made
    types = types_of(knob_class)
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name not in types or name in TABLES:
            raise ScheduleError(f"no knob {where}{name}; there are {', '.join(f.name for f in fields(made))}")
        out[name] = converted(types[name], value, f"{where}{name}")
    return out


def show_schedule(schedule: Schedule, why: Sequence[str] = ()) -> str:
    """A schedule as the text of a TOML file, below the lines of `why` as comments. `read_schedule` reads it back."""
    lines = [f"# {line}".rstrip() for line in why]
    lines += _lines(schedule, (*TABLES, NAMED, LANES))
    if schedule.lanes != USUAL_LANES:
        lines += ["", f"[{LANES}]", *_lines(schedule.lanes)]
    for table in TABLES:
        for kind, entry in getattr(schedule, table):
            lines += ["", f"[{table}.{_quoted(kind)}]", *_lines(entry)]
    for segment in schedule.segments:
        lines += ["", f"[[{NAMED}]]", *_lines(segment, INNER)]
        for name in INNER:
            entry = getattr(segment, name)
            lines += [] if entry is None else [f"[{NAMED}.{name}]", *_lines(entry)]
    return "\n".join(lines) + "\n"


def _lines(knobs: Tiles | DramPolicy | Segment | LaneKnobs, skip: Container[str] = ()) -> list[str]:
    """One line of TOML for each knob that is not None. skip: knobs that are tables, printed elsewhere."""
    values = {f.name: getattr(knobs, f.name) for f in fields(knobs) if f.name not in skip}
    return [f"{name} = {_quoted(value)}" for name, value in values.items() if value is not None]


def _quoted(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no surrogate pairs
