"""The knobs of the scheduler, as one value."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from ..base.errors import ScheduleError
from .knobs import check, converted, types_of
from .mapping import MappingType
from .tiles import Tiles


class Interleave(Enum):
    """Ways to put loads and stores on one DDR channel: the three of Fig. 12, one that looks at the machine, and the
    published host's."""

    STRICT = "strict"
    """Load, compute, store; the next tile's loads wait for the stores."""
    INTERLEAVED = "interleaved"
    """Stores of a tile go between the loads of the next one, across segments too (section 4.4)."""
    HARDWARE = "hardware"
    """Reads first, as a memory controller arbitrates that knows nothing of the application: a store goes only where no
    load has to wait for it."""
    LISTED = "listed"
    """List scheduling: whenever the channel is free, the load whose unit has waited longest, or a store before it."""
    PUBLISHED = "published"
    """As the published host: INTERLEAVED within each group of Table 9 (the products that an attention takes, the
    attention, the products behind it), which ends when all is stored; STRICT where one tile of 384 rows holds all."""


@dataclass(frozen=True)
class DramPolicy:
    """How the accesses of a kind of segment are listed. patience_us: by how much a store may delay a load that could
    begin. store_blocks: the largest piece, in 128x64 blocks. by_columns: of the pieces that are ready, those of the
    first columns first, so that the next segment can begin with them; otherwise MemC after MemC. in_order: loads that
    could begin go in the order of the program; otherwise the one whose unit has waited longest."""

    patience_us: float = 4.0
    store_blocks: int = 8
    by_columns: bool = False
    in_order: bool = False

    @property
    def words(self) -> str:
        order = "by columns" if self.by_columns else "by units"
        loads = ", loads in order" * self.in_order
        return f"pieces of {self.store_blocks} blocks {order}, a load waits up to {self.patience_us:g} us{loads}"

    def __post_init__(self) -> None:
        check(self)
        if not -1000 <= self.patience_us <= 1000:
            raise ScheduleError(f"patience_us={self.patience_us}: microseconds from -1000 to 1000")
        if self.store_blocks not in STORE_BLOCKS:
            raise ScheduleError(f"store_blocks={self.store_blocks}: pieces are of {', '.join(map(str, STORE_BLOCKS))}")


STORE_BLOCKS = (1, 2, 4, 8, 16)


class Loops(Enum):
    """Which loop over a product's output tiles is the outer one."""

    COLUMNS = "columns"
    ROWS = "rows"


@dataclass(frozen=True)
class Segment:
    """Layers that go through the machine together, by module path, and how (paper section 4.5, Fig. 13).

    layers: paths, in which `*` stands for one part or some of it: `layers.*.attention` is the attention of every layer.
    Several name products of one activation, such as queries, keys and values, which then share its slices. What is None
    is as for segments that nobody names. overlap: whether its stores go among the loads of what follows; mapping: of an
    attention; tiles and loops: of products; rule: with Interleave.LISTED.
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
            raise ScheduleError(f"layers = {layers!r}: a list of module paths")
        if not layers or len(set(layers)) < len(layers):
            raise ScheduleError(f"layers = {list(layers)!r}: different module paths, one at least")
        object.__setattr__(self, "layers", tuple(layers))
        check(self, but=("layers",))


TABLES: dict[str, type[Tiles | DramPolicy]] = {"tiles": Tiles, "rules": DramPolicy}
"""Knobs that are tables, one entry for each kind of segment."""


@dataclass(frozen=True, kw_only=True)
class Schedule(Tiles):
    """How a network is put on the machine. What it says of tiles holds for all products but those in `tiles`.

    interleave: how loads and stores share DDR. drain: kinds of segments whose stores are done before the next segment
    loads; between all others they overlap (section 4.4), but with Interleave.PUBLISHED within a group only. loops: the
    order of tiles in products of one activation. whole_tiles: products are padded to whole output tiles of 768 (or 384)
    rows and 1024 columns, as the published host does (contract section 6); without, tiles are cut to size. attention:
    its mapping type (section 2.2); None chooses by the roofline. heads_per_slot: how many short heads, of one or two
    row blocks, are taken at once, at most. balance: attention over three row blocks as a stream of row tiles
    (`attention_3_blocks`). rules: for Interleave.LISTED, by kind of segment; what is not there has the default
    `DramPolicy`. segments: by module path, before all that is said by kind; of several that name a layer, the first.
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

    def rule(self, kind: str) -> DramPolicy:
        """How the stores of a kind of segment are listed."""
        return dict(self.rules).get(kind, DramPolicy())

    def tiles_of(self, kind: str) -> Tiles:
        """How a kind of segment is cut."""
        return dict(self.tiles).get(kind, self)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.segments, list | tuple) or not all(isinstance(x, Segment) for x in self.segments):
            raise ScheduleError(f"segments = {self.segments!r}: a list of Segment(...)")
        object.__setattr__(self, "segments", tuple(self.segments))
        for name, made in TABLES.items():
            object.__setattr__(self, name, _pairs(getattr(self, name), made, name))
        cut = self.tiles or any(segment.tiles for segment in self.segments)
        if self.whole_tiles and (cut or any(getattr(self, f.name) != f.default for f in fields(Tiles))):
            raise ScheduleError("whole_tiles goes with tiles of 768x1024 on all MMEs, the published ones")
        if self.heads_per_slot not in (1, 2, 4):
            raise ScheduleError(f"heads_per_slot={self.heads_per_slot}: the first product has four MMEs, for 1, 2 or 4")
        rules = self.rules or any(segment.rule for segment in self.segments)
        if rules and self.interleave is not Interleave.LISTED:
            raise ScheduleError(f'rules go with interleave = "listed", not with {self.interleave.value!r}')
        for name, kinds in (("rules", dict(self.rules)), ("tiles", dict(self.tiles)), ("drain", set(self.drain))):
            if len(kinds) < len(getattr(self, name)):
                raise ScheduleError(f"{name}: two for the same kind of segment")


def _pairs(given: object, made: type[Tiles | DramPolicy], name: str) -> tuple[tuple[str, Tiles | DramPolicy], ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and type(pair[1]) is made
        for pair in given
    ):
        raise ScheduleError(f"{name} = {given!r}: pairs of a kind of segment and its {made.__name__}(...)")
    return tuple(given)


PAPER = Schedule()
PUBLISHED = Schedule(interleave=Interleave.PUBLISHED, whole_tiles=True)
STRICT = Schedule(interleave=Interleave.STRICT)
SCHEDULES = {"paper": PAPER, "strict": STRICT, "published": PUBLISHED}


def read_schedule(path: str | os.PathLike[str]) -> Schedule:
    """A schedule from a TOML file, as `write_schedule` writes it; knobs that are not there have their defaults. Raises
    `ScheduleError` naming file, knob and limit."""
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        return _schedule(given)
    except FileNotFoundError:
        raise ScheduleError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as e:  # ValueError: not UTF-8, not TOML, or a number of 5000 digits
        raise ScheduleError(f"{path}: no TOML: {e}") from None
    except ScheduleError as e:
        raise ScheduleError(f"{path}: {e}") from None


NAMED = "segments"
"""Knobs by module path, an array of tables."""
INNER: dict[str, type[Tiles | DramPolicy]] = {"tiles": Tiles, "rule": DramPolicy}
"""What is a table in an entry of these."""


def _schedule(given: dict[str, Any]) -> Schedule:
    tables: dict[str, Any] = {}
    for name, made in TABLES.items():
        table = given.pop(name, {})
        if not isinstance(table, dict) or not all(isinstance(knobs, dict) for knobs in table.values()):
            raise ScheduleError(f"{name} is a table of tables, one for each kind of segment")
        tables[name] = tuple((kind, _entry(made, knobs, f"{name}.{kind!r}")) for kind, knobs in table.items())
    named = given.pop(NAMED, [])
    if not isinstance(named, list) or not all(isinstance(entry, dict) for entry in named):
        raise ScheduleError(f"{NAMED} are tables of their own, [[{NAMED}]], each with its layers")
    segments = tuple(_segment(entry, f"{NAMED}[{i}]") for i, entry in enumerate(named))
    return Schedule(**_knobs(Schedule, given, ""), **tables, segments=segments)


def _segment(given: dict[str, Any], where: str) -> Segment:
    layers = given.pop("layers", None)
    inner: dict[str, Any] = {}
    for name, made in INNER.items():
        if name in given:
            knobs = given.pop(name)
            if not isinstance(knobs, dict):
                raise ScheduleError(f"{where}.{name} = {knobs!r}: a table")
            inner[name] = _entry(made, knobs, f"{where}.{name}")
    knobs = _knobs(Segment, given, f"{where}.")
    try:
        return Segment(layers, **knobs, **inner)
    except ScheduleError as e:
        raise ScheduleError(f"{where}: {e}") from None


def _entry(made: type[Tiles | DramPolicy], given: dict[str, Any], where: str) -> Tiles | DramPolicy:
    knobs = _knobs(made, given, f"{where}.")
    try:
        return made(**knobs)
    except ScheduleError as e:
        raise ScheduleError(f"{where}: {e}") from None


def _knobs(made: type[Tiles | DramPolicy | Segment], given: dict[str, Any], where: str) -> dict[str, Any]:
    """Values of the right types. Raises `ScheduleError` for an unknown knob or one of another type."""
    of: Any = made
    types = types_of(of)
    out: dict[str, Any] = {}
    for name, value in given.items():
        if name not in types or name in TABLES:
            raise ScheduleError(f"no knob {where}{name}; there are {', '.join(f.name for f in fields(made))}")
        out[name] = converted(types[name], value, f"{where}{name}")
    return out


def show_schedule(schedule: Schedule, why: Sequence[str] = ()) -> str:
    """A schedule as TOML, after remarks."""
    lines = [f"# {line}".rstrip() for line in why]
    lines += _lines(schedule, (*TABLES, NAMED))
    for table in TABLES:
        for kind, entry in getattr(schedule, table):
            lines += ["", f"[{table}.{_quoted(kind)}]", *_lines(entry)]
    for segment in schedule.segments:
        lines += ["", f"[[{NAMED}]]", *_lines(segment, INNER)]
        for name in INNER:
            entry = getattr(segment, name)
            lines += [] if entry is None else [f"[{NAMED}.{name}]", *_lines(entry)]
    return "\n".join(lines) + "\n"


def _lines(of: Tiles | DramPolicy | Segment, but: Container[str] = ()) -> list[str]:
    """All knobs that are set; those of the tables apart."""
    values = {f.name: getattr(of, f.name) for f in fields(of) if f.name not in but}
    return [f"{name} = {_quoted(value)}" for name, value in values.items() if value is not None]


def _quoted(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no surrogate pairs
