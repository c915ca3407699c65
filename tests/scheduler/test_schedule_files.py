"""Schedules as files: what is written is read back, and what cannot be a schedule is refused by name."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ScheduleError
from rsn.isa.overlays import XNN
from rsn.scheduler.graph import Gemm, LayerGraph, Output
from rsn.scheduler.mapping import MappingType
from rsn.scheduler.schedule import (
    PAPER,
    SCHEDULES,
    STORE_BLOCKS,
    TABLES,
    DramPolicy,
    Interleave,
    LaneKnobs,
    LaneMode,
    Loops,
    Schedule,
    Segment,
    Tiles,
    read_schedule,
    show_schedule,
)
from rsn.scheduler.tile import tile

rules = st.builds(
    DramPolicy,
    patience_us=st.floats(-1000, 1000),
    store_blocks=st.sampled_from(STORE_BLOCKS),
    by_columns=st.booleans(),
    in_order=st.booleans(),
)
kinds = st.sampled_from(["gemm 1024x4096 gelu_tanh", "attention 16x64"]) | st.text(
    st.characters(codec="utf-8"), max_size=8
)


@st.composite
def cuts(draw: st.DrawFn) -> Tiles:
    rows, cols = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    tile_rows = draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if n <= 2 * rows]))
    return Tiles(tile_rows, draw(st.integers(1, 4 * cols)), rows, cols)


@st.composite
def lanes(draw: st.DrawFn) -> LaneKnobs:
    mode = draw(st.sampled_from([None, *LaneMode]))
    return LaneKnobs(
        mode,
        draw(st.none() | st.integers(0, 9)),
        draw(st.integers(1, 5)),
        draw(st.integers(2, 5)),
        None if mode is LaneMode.R6 else draw(st.none() | st.floats(0.5, 1)),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    interleave = draw(st.sampled_from(Interleave))
    named = draw(st.dictionaries(kinds, rules, max_size=4)) if interleave is Interleave.LISTED else {}
    whole = draw(st.booleans())
    rule = st.none() | rules if interleave is Interleave.LISTED else st.none()
    segments = st.builds(
        Segment,
        layers=st.lists(kinds, min_size=1, max_size=3, unique=True),
        mapping=st.sampled_from([None, *MappingType]),
        overlap=st.none() | st.booleans(),
        tiles=st.none() if whole else st.none() | cuts(),
        loops=st.sampled_from([None, *Loops]),
        rule=rule,
    )
    return Schedule(
        **vars(Tiles() if whole else draw(cuts())),
        interleave=interleave,
        drain=tuple(draw(st.lists(kinds, max_size=3, unique=True))),
        loops=draw(st.sampled_from(Loops)),
        balance=draw(st.booleans()),
        whole_tiles=whole,
        attention=draw(st.sampled_from([None, *MappingType])),
        heads_per_slot=draw(st.sampled_from([1, 2, 4])),
        tiles=() if whole else tuple(draw(st.dictionaries(kinds, cuts(), max_size=3)).items()),
        rules=tuple(named.items()),
        segments=draw(st.lists(segments, max_size=3)),
        lanes=draw(lanes()),
    )


remarks = st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=20), max_size=3)


@given(schedules(), remarks)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, schedule: Schedule, why: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "s.toml"
    path.write_text(show_schedule(schedule, why), encoding="utf-8")
    assert read_schedule(path) == schedule


def test_every_knob_is_written() -> None:
    """One that is forgotten here would be lost between a search and the run."""
    assert show_schedule(Schedule(lanes=LaneKnobs(LaneMode.P3, 1, 2, 4, 0.75))).endswith(
        '\n[lanes]\nmode = "P3"\nlag = 1\ntrail = 2\nhidden = 4\nlpddr = 0.75\n'
    )
    for f in dataclasses.fields(Schedule):
        assert f.name in ("attention", "segments", "lanes", *TABLES) or f"\n{f.name} = " in "\n" + show_schedule(PAPER)


GOLDEN = """\
# searched for 30.0 s
# 24 segments
tile_rows = 6
tile_cols = 8
mme_rows = 3
mme_cols = 2
interleave = "listed"
drain = ["attention 16x64"]
loops = "rows"
whole_tiles = false
attention = "D"
heads_per_slot = 4
balance = true

[tiles."gemm 1024x1024"]
tile_rows = 2
tile_cols = 4
mme_rows = 2
mme_cols = 1

[rules."gemm 1024x4096 gelu_tanh"]
patience_us = 10.0
store_blocks = 8
by_columns = false
in_order = false

[rules."attention 16x64"]
patience_us = -2.5
store_blocks = 4
by_columns = true
in_order = true

[[segments]]
layers = ["layers.*.query", "layers.*.key", "layers.*.value"]
overlap = false
loops = "rows"
[segments.tiles]
tile_rows = 4
tile_cols = 8
mme_rows = 2
mme_cols = 2

[[segments]]
layers = ["layers.0"]
mapping = "A"
"""


def test_golden() -> None:
    schedule = Schedule(
        interleave=Interleave.LISTED,
        loops=Loops.ROWS,
        drain=("attention 16x64",),
        balance=True,
        attention=MappingType.D,
        tiles=(("gemm 1024x1024", Tiles(2, 4, 2, 1)),),
        rules=(
            ("gemm 1024x4096 gelu_tanh", DramPolicy(10.0, 8)),
            ("attention 16x64", DramPolicy(-2.5, 4, by_columns=True, in_order=True)),
        ),
        segments=(
            Segment(
                ("layers.*.query", "layers.*.key", "layers.*.value"),
                overlap=False,
                loops=Loops.ROWS,
                tiles=Tiles(4, mme_rows=2),
            ),
            Segment("layers.0", mapping=MappingType.A),
        ),
    )
    assert show_schedule(schedule, ["searched for 30.0 s", "24 segments"]) == GOLDEN


def read(tmp_path: Path, text: str | bytes) -> Schedule:
    path = tmp_path / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_schedule(path)


def test_knobs_that_are_not_there_have_their_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "") == PAPER
    assert read(tmp_path, 'interleave = "strict"') == SCHEDULES["strict"]
    own = read(tmp_path, 'interleave = "listed"\n[rules.x]\npatience_us = 3')  # a whole number is a number
    assert own.rule("x") == DramPolicy(3.0)
    assert isinstance(own.rule("x").patience_us, float)
    assert own.rule("y") == DramPolicy()


LISTED = 'interleave = "listed"\n[rules."gemm 8x8"]\n'
SEGMENT = '[[segments]]\nlayers = ["a"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile_row = 6", r"no knob tile_row; there are tile_rows, .*, interleave, .*, tiles, rules"),
        (
            LISTED + "patience = 3",
            r"no knob rules.'gemm 8x8'.patience; there are patience_us, store_blocks, by_columns, in_order$",
        ),
        ("mme_cols = 0", "mme_cols=0: must be at least 1"),
        ("lanes = 3", "lanes: must be a table"),
        ("[lanes]\nlags = 3", "no knob lanes.lags; there are mode, lag, trail, hidden, lpddr$"),
        ("[lanes]\nlag = -1", "lanes.lag = -1: must be at least 0"),
        ('[lanes]\nlag = "1"', "lanes.lag = '1': must be a number"),
        ('[lanes]\nmode = "R5"', "lanes.mode = 'R5': must be one of 'R6', 'P3'"),
        ('[lanes]\nmode = "R6"\nlpddr = 0.6', "lanes.lpddr is for mode P3"),
        ("heads_per_slot = 3", "heads_per_slot=3: must be 1, 2 or 4 "),
        ('drain = "a"', "drain = 'a': must be a list of kinds of segments"),
        ("drain = [1]", r"drain = \[1\]: must be a list of kinds of segments"),
        ('drain = ["a", "a"]', "drain: two entries for the same kind of segment"),
        ("[tiles.x]\nrows = 5", "no knob tiles.'x'.rows; there are tile_rows, tile_cols, mme_rows, mme_cols$"),
        ("tiles = 3", "tiles: must be a table of tables"),
        ("whole_tiles = true\n[tiles.x]", "whole_tiles cannot be combined with other tile knobs"),
        (LISTED + "rules = {}", r"no knob rules.'gemm 8x8'.rules; "),
        ("tile_rows = 0", "tile_rows=0: "),
        ("tile_rows = 6.0", "tile_rows = 6.0: must be a whole number"),
        ("tile_rows = true", "tile_rows = True: must be a number"),
        ('tile_cols = "8"', "tile_cols = '8': must be a number"),
        ("tile_cols = -1", "tile_cols=-1: "),
        ("tile_cols = [8]", r"tile_cols = \[8\]: must be a number"),
        ('balance = "yes"', "balance = 'yes': must be true or false"),
        ("balance = 1", "balance = 1: must be true or false"),
        (
            'interleave = "fast"',
            "interleave = 'fast': must be one of 'strict', 'interleaved', 'hardware', 'listed', 'published'",
        ),
        ("interleave = []", r"interleave = \[\]: must be one of"),
        ('loops = "Rows"', "loops = 'Rows': must be one of 'columns', 'rows'"),
        ('attention = "F"', "attention = 'F': must be one of 'A', 'B', 'C', 'D', 'E'"),
        ("attention = []", r"attention = \[\]: must be one of 'A'"),
        ("attention = {}", "attention = {}: must be one of 'A'"),
        (LISTED + "patience_us = 1001", "patience_us=1001.0: must be from -1000 to 1000 microseconds"),
        (LISTED + "patience_us = nan", "patience_us=nan: must be from"),
        (LISTED + "patience_us = -inf", "patience_us=-inf: must be from"),
        (LISTED + "patience_us = 1979-05-27", "patience_us = .*: must be a number"),
        (LISTED + "patience_us = 1" + 400 * "0", "rules.'gemm 8x8'.patience_us: the number is too large"),
        (LISTED + "store_blocks = 3", "store_blocks=3: must be one of 1, 2, 4, 8, 16"),
        (LISTED + "store_blocks = 8.5", "store_blocks = 8.5: must be a whole number"),
        (LISTED + "by_columns = 0", "rules.'gemm 8x8'.by_columns = 0: must be true or false"),
        ("rules = 3", "rules: must be a table of tables"),
        ('interleave = "listed"\nrules.x = 3', "rules: must be a table of tables"),
        ("[rules.x]\npatience_us = 3.0", "rules need interleave = \"listed\", not 'interleaved'"),
        ('interleave = "hardware"\n[rules.x]', "rules need interleave = \"listed\", not 'hardware'"),
        ("whole_tiles = true\ntile_cols = 4", "whole_tiles cannot be combined .* tiles, 768x1024 on all MMEs"),
        ("[segments]", r"segments: must be an array of tables, \[\[segments\]\], each with its layers"),
        ("[[segments]]", r"segments\[0\]: layers = None: must be a list of module paths"),
        ("[[segments]]\nlayers = 3", r"segments\[0\]: layers = 3: must be a list of module paths"),
        (
            "[[segments]]\nlayers = []",
            r"segments\[0\]: layers = \[\]: must name at least one module path, and each path once",
        ),
        (SEGMENT + "tile = 3", r"no knob segments\[0\].tile; there are layers, mapping, overlap, tiles, loops, rule$"),
        (SEGMENT + "overlap = 1", r"segments\[0\].overlap = 1: must be true or false"),
        (SEGMENT + 'mapping = "F"', r"segments\[0\].mapping = 'F': must be one of 'A', 'B', 'C', 'D', 'E'"),
        (SEGMENT + "tiles = 3", r"segments\[0\].tiles = 3: must be a table"),
        (SEGMENT + "[segments.rule]", "rules need interleave = \"listed\", not 'interleaved'"),
        ("whole_tiles = true\n" + SEGMENT + "[segments.tiles]", "whole_tiles cannot be combined with other tile knobs"),
        ("tile_rows = 6\ntile_cols = = 3", "not a TOML file: .*line 2"),
        ("tile_rows = 6\ntile_rows = 6", "not a TOML file: "),
        (LISTED + LISTED, "not a TOML file: "),
        ("a = 1" + 5000 * "0", "not a TOML file: .*digits"),
        (b"\xff\xfe", "not a TOML file: .*utf-8"),
        ("a = " + 5000 * "[", "not a TOML file: "),
    ],
)
def test_what_is_no_schedule_is_refused_by_file_and_knob(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as refused:
        read(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'mine.toml'}: ")
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_schedule_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    with suppress(ScheduleError):
        assert isinstance(read_schedule(path), Schedule)


def values() -> st.SearchStrategy[str]:
    plain = st.sampled_from(
        [
            "1",
            "-3",
            "0.5",
            "nan",
            "inf",
            "true",
            '"listed"',
            '"rows"',
            '"A"',
            "[1]",
            "{}",
            "{a = 1}",
            "1979-05-27",
            "''",
        ]
    )
    return plain | st.integers(-(10**30), 10**30).map(str)


names = st.sampled_from([f.name for f in dataclasses.fields(Schedule)] + ["rules.x", "rules.x.patience_us", "other"])


@given(st.lists(st.tuples(names, values()), max_size=3))
def test_any_knobs_of_any_type_are_a_schedule_or_refused(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "knobs.toml"
    path.write_text("\n".join(f"{name} = {value}" for name, value in given))
    with suppress(ScheduleError):
        schedule = read_schedule(path)
        path.write_text(show_schedule(schedule))
        assert read_schedule(path) == schedule


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"nowhere.toml: no such file"):
        read_schedule(tmp_path / "nowhere.toml")
    with pytest.raises(OSError, match=str(tmp_path)):
        read_schedule(tmp_path)


def test_no_schedule_contradicts_itself() -> None:
    with pytest.raises(ScheduleError, match="rules need interleave"):
        Schedule(rules=(("x", DramPolicy()),))
    with pytest.raises(ScheduleError, match="two entries for the same kind"):
        Schedule(interleave=Interleave.LISTED, rules=(("x", DramPolicy()), ("x", DramPolicy(1.0))))


def test_in_python_as_in_a_file() -> None:
    as_text = Schedule(
        attention="A",  # type: ignore[arg-type]
        interleave="listed",  # type: ignore[arg-type]
        loops="rows",  # type: ignore[arg-type]
        segments=[Segment("x", mapping="B")],  # type: ignore[arg-type]
    )
    assert as_text == Schedule(
        attention=MappingType.A,
        interleave=Interleave.LISTED,
        loops=Loops.ROWS,
        segments=(Segment("x", mapping=MappingType.B),),
    )


@pytest.mark.parametrize(
    ("made", "knobs", "message"),
    [
        (Schedule, {"attention": "F"}, "attention = 'F': must be one of 'A', 'B', 'C', 'D', 'E'"),
        (Schedule, {"attention": Loops.ROWS}, "attention = <Loops.ROWS: 'rows'>: must be one of "),
        (Schedule, {"interleave": "fast"}, "interleave = 'fast': must be one of 'strict', "),
        (Schedule, {"interleave": None}, "interleave = None: must be one of 'strict', "),
        (Schedule, {"drain": "x"}, "drain = 'x': must be a list of kinds of segments"),
        (Schedule, {"balance": 1}, "balance = 1: must be true or false"),
        (Schedule, {"tile_rows": "6"}, "tile_rows = '6': must be a number"),
        (Schedule, {"segments": Segment("x")}, "segments = Segment(layers=('x',)"),
        (Schedule, {"segments": ("x",)}, "segments = ('x',): must be a list of Segment(...)"),
        (Schedule, {"tiles": {"x": 3}}, "tiles = {'x': 3}: must be pairs (kind of segment, Tiles(...))"),
        (Segment, {"layers": "x", "mapping": "F"}, "mapping = 'F': must be one of 'A'"),
        (Segment, {"layers": "x", "overlap": "no"}, "overlap = 'no': must be true or false"),
        (Segment, {"layers": "x", "tiles": {"tile_rows": 3}}, "tiles = {'tile_rows': 3}: must be Tiles(...)"),
        (Segment, {"layers": "x", "rule": {}}, "rule = {}: must be DramPolicy(...)"),
        (Segment, {"layers": 5}, "layers = 5: must be a list of module paths"),
        (Tiles, {"tile_cols": 2.5}, "tile_cols = 2.5: must be a whole number"),
        (DramPolicy, {"patience_us": "4"}, "patience_us = '4': must be a number"),
    ],
)
def test_what_is_no_schedule_in_python(made: type, knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        made(**knobs)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mme_rows = 4", "mme_rows=4: must be 1 to 3 .the MMEs form 3 rows of 2 columns"),
        ("mme_rows = 2", "tile_rows=6 does not fit mme_rows=2: that grid holds at most 4 blocks"),
        ("mme_cols = 1\ntile_cols = 5", "tile_cols=5 does not fit mme_cols=1: that grid holds at most 4 blocks"),
        ('[tiles."gemm 64x128"]\ntile_rows = 5', "gemm 64x128: tile_rows=5: must be 1, 2, 3, 4 or 6 .row blocks"),
        ("tile_cols = 9", "tile_cols=9: must be 1 to 8 .column blocks"),
        ('[[segments]]\nlayers = ["l"]\n[segments.tiles]\ntile_rows = 5', "gemm 64x128: tile_rows=5: must be 1, 2"),
    ],
)
def test_tiles_that_the_machine_cannot_hold_are_refused(tmp_path: Path, text: str, message: str) -> None:
    layer = Gemm("l", "x", "y", np.ones((64, 128), np.float32), np.zeros(128, np.float32))
    network = LayerGraph(1, 128, {"x": 64}, (Output("y"),), (layer,))
    with pytest.raises(ScheduleError, match=message):
        tile(network, XNN, read(tmp_path, text))
