"""Overlay files, and the allowed values of rates and depths."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rsn.base.errors import ProgramError
from rsn.cli.main import main
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.fig6 import FIG6
from rsn.isa.overlays.fig7 import FIG7
from rsn.isa.overlays.file import changed, facts, find, show
from rsn.isa.overlays.xnn import XNN, XNN_BASE
from rsn.machine.description import MAX_DEPTH

ALL = (XNN, XNN_BASE, FIG6, FIG7)
every = pytest.mark.parametrize("overlay", ALL, ids=lambda o: o.name)
BANDWIDTH, TIME = "ddr_read_gbs", "add"


def parameters(overlay: Overlay) -> dict[str, float]:
    """All parameters that an overlay file can set."""
    fifos = {"mop_fifo_depth": overlay.mop_fifo_depth, "uop_fifo_depth": overlay.uop_fifo_depth}
    return {name: r.value for name, r in overlay.rates.items()} | fifos | {s.name: s.depth for s in overlay.streams}


def read(folder: Path, text: str | bytes, overlay: Overlay = FIG6) -> Overlay:
    path = folder / "o.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return changed(overlay, path)


# -- files --------------------------------------------------------------------------------------------------------


@every
def test_the_file_of_an_overlay_changes_nothing(overlay: Overlay, tmp_path: Path) -> None:
    got = read(tmp_path, show(overlay), overlay)
    assert parameters(got) == parameters(overlay)
    assert got.fingerprint == overlay.fingerprint
    assert {name: dataclasses.asdict(r) for name, r in got.rates.items()} == facts(overlay)["rates"]


@given(data=st.data())
def test_a_written_file_reads_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Exactly, including infinite bandwidths and times of 0."""
    draw = data.draw
    bandwidth = st.floats(1e-3, 1e6) | st.just(math.inf) | st.integers(1, 10**9)
    rates: dict[str, float] = {
        name: draw(bandwidth if r.unit == "GB/s" else st.floats(0, 1e6)) for name, r in FIG6.rates.items()
    }
    depths = {s.name: draw(st.integers(1, MAX_DEPTH)) for s in FIG6.streams}
    fifos = {name: draw(st.integers(1, 99)) for name in ("mop_fifo_depth", "uop_fifo_depth")}
    overlay = FIG6.with_rates(**rates, **fifos).with_depths(depths)
    got = read(tmp_path_factory.mktemp("o"), show(overlay))
    assert parameters(got) == parameters(overlay) == {**rates, **fifos, **depths}


def test_what_is_shown_says_unit_and_source() -> None:
    text = show(XNN)
    assert "ddr_read_gbs = 21.0     # GB/s; given: paper 5.3, observed; counts as DDR load" in text
    assert "norm_us = 162.0         # us; fitted: per 256x512 MemC buffer" in text
    assert "mop_fifo_depth = 6      # slots" in text
    assert '"MeshA->MME0" = 2' in text
    assert '"MemC0->MemC1.norm" = 256' in text


def test_only_what_is_there_changes(tmp_path: Path) -> None:
    text = 'overlay = "xnn"\n[rates]\nddr_read_gbs = 42\nmop_fifo_depth = 8\n[streams]\n"MeshA->MME0" = 4\n'
    got = read(tmp_path, text, XNN)
    was, now = parameters(XNN), parameters(got)
    assert {name: value for name, value in now.items() if value != was[name]} == {
        "ddr_read_gbs": 42,
        "mop_fifo_depth": 8,
        "MeshA->MME0": 4,
    }
    assert got.rates["ddr_read_gbs"].source == XNN.rates["ddr_read_gbs"].source
    assert XNN.rates["ddr_read_gbs"].value == 21  # a copy
    assert got.fingerprint != XNN.fingerprint


@pytest.mark.parametrize("text", ["", "# nothing", "[rates]", "[rates]\n[streams]", 'overlay = "fig6"'])
def test_a_file_may_say_nothing(text: str, tmp_path: Path) -> None:
    assert parameters(read(tmp_path, text)) == parameters(FIG6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[rates", "no TOML: "),
        ("rates = ", "no TOML: "),
        ("[rates]\nadd = 1\nadd = 2", "no TOML: "),
        (b"\xff\xfe", "no TOML: "),
        (b"[rates]\nadd = 1 \x00", "no TOML: "),
        ("x = " + "[" * 100_000, "no TOML: "),
        ("[rates]\nadd = " + "9" * 5000, "no TOML: "),
        ('overlay = "xnn"', "it is about overlay xnn, the program about fig6"),
        ("overlay = 6", "overlay = 6 is no text"),
        ("[rate]\nadd = 1", "nothing is called 'rate' here \\(did you mean rates\\?\\), only overlay, memories, "),
        ("add = 1", "nothing is called 'add' here"),
        ("rates = 1", "rates is a table of names and numbers"),
        ("[[rates]]\nadd = 1", "rates is a table of names and numbers"),
        ("streams = []", "streams is a table of names and numbers"),
        ('[rates]\nadd = "1"', "rates: add = '1' is no number"),
        ("[rates]\nadd = true", "rates: add = True is no number"),
        ("[rates]\nadd = [1]", r"rates: add = \[1\] is no number"),
        ("[rates]\nadd = 1979-05-27", r"rates: add = .* is no number"),
        ("[rates.add]\nvalue = 1", r"rates: add = .* is no number"),
        (
            "[rates]\nsub = 1",
            "overlay fig6 has no parameter 'sub'; it has mop_fifo_depth, uop_fifo_depth, ddr_read_gbs",
        ),
        ("[rates]\nself = 1", "overlay fig6 has no parameter 'self'"),
        ('[rates]\n"FU1->FU2" = 1', "overlay fig6 has no parameter 'FU1->FU2'"),
        ('[streams]\n"FU2->FU1" = 1', "overlay fig6 has no stream 'FU2->FU1'"),
        ("[streams]\nmop_fifo_depth = 1", "overlay fig6 has no stream 'mop_fifo_depth'"),
        ('[streams]\n"FU1->FU2" = 0', "FU1->FU2=0: a depth must be a whole number from 1 to"),
        ('[streams]\n"FU1->FU2" = 1.5', "FU1->FU2=1.5: a depth must be a whole number"),
        ("[rates]\nmop_fifo_depth = nan", "mop_fifo_depth=nan: a depth must be a whole number"),
        ("[rates]\nddr_read_gbs = -1", "ddr_read_gbs=-1: a bandwidth must be greater than 0 GB/s"),
        ("[rates]\nadd = inf", "add=inf: a time must be finite and at least 0 PL cycles"),
        ("[rates]\nadd = " + "9" * 400, "a time must be finite and at least 0 PL cycles"),
    ],
)
def test_what_a_file_cannot_mean_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=message) as e:
        read(tmp_path, text)
    assert str(e.value).startswith(f"{tmp_path / 'o.toml'}: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such file"):
        changed(FIG6, tmp_path / "nowhere.toml")


# -- rates and depths -----------------------------------------------------------------------------------------------


def attempt(change: Callable[[], Overlay]) -> tuple[Overlay | None, str]:
    try:
        return change(), ""
    except ProgramError as e:
        return None, str(e)


numbers = st.floats() | st.integers() | st.integers(0, 5)


@given(numbers)
def test_every_number_is_a_bandwidth_or_refused(value: float) -> None:
    """Greater than 0, inf included. An accepted value gives a finite time."""
    overlay, message = attempt(lambda: FIG6.with_rates(**{BANDWIDTH: value}))
    if overlay is not None:
        assert overlay.rates[BANDWIDTH].value == value > 0
        assert 0 <= overlay.seconds[BANDWIDTH] < math.inf
    else:
        assert "a bandwidth must be greater than 0 GB/s" in message
        assert not 1e-300 < value < 1e300


@given(numbers)
def test_every_number_is_a_time_or_refused(value: float) -> None:
    """Finite and at least 0."""
    overlay, message = attempt(lambda: FIG6.with_rates(**{TIME: value}))
    if overlay is not None:
        assert overlay.rates[TIME].value == value >= 0
        assert 0 <= overlay.seconds[TIME] < math.inf
    else:
        assert "a time must be finite and at least 0 PL cycles" in message
        assert not 0 <= value < 1e300


@given(numbers, st.sampled_from(["mop_fifo_depth", "uop_fifo_depth", "FU1->FU2"]))
def test_every_number_is_a_depth_or_refused(value: float, name: str) -> None:
    """A whole number of at least 1."""
    fifo = name.endswith("_depth")
    overlay, message = attempt(lambda: FIG6.with_rates(**{name: value}) if fifo else FIG6.with_depths({name: value}))
    if overlay is not None:
        assert 1 <= value <= MAX_DEPTH
        assert parameters(overlay)[name] == value
        assert type(parameters(overlay)[name]) is int
    else:
        assert message.startswith(f"{name}={value}: a depth must be a whole number from 1 to")
        assert not (1 <= value <= MAX_DEPTH and value == int(value))


@pytest.mark.parametrize(
    ("rates", "allowed"),
    [
        ({BANDWIDTH: math.inf}, True),
        ({BANDWIDTH: 0}, False),
        ({BANDWIDTH: -0.0}, False),
        ({BANDWIDTH: math.nan}, False),
        ({BANDWIDTH: -math.inf}, False),
        ({BANDWIDTH: 5e-324}, False),
        ({TIME: 0}, True),
        ({TIME: math.inf}, False),
        ({TIME: math.nan}, False),
        ({TIME: -1}, False),
        ({"mop_fifo_depth": 0}, False),
        ({"mop_fifo_depth": 1.0}, True),
        ({"mop_fifo_depth": 1.5}, False),
        ({"mop_fifo_depth": math.inf}, False),
        ({"uop_fifo_depth": -1}, False),
        ({"uop_fifo_depth": MAX_DEPTH + 1}, False),
        ({"nonsense": 1}, False),
        ({"self": 1}, False),
        ({"": 1}, False),
    ],
)
def test_what_no_machine_can_have(rates: dict[str, float], allowed: bool) -> None:
    if allowed:
        assert all(parameters(FIG6.with_rates(**rates))[name] == value for name, value in rates.items())
    else:
        with pytest.raises(ProgramError):
            FIG6.with_rates(**rates)


def test_unknown_streams_are_named() -> None:
    with pytest.raises(ProgramError, match="overlay fig6 has no stream 'FU1'"):
        FIG6.with_depths({"FU1->FU2": 3, "FU1": 3})
    assert parameters(FIG6.with_depths({})) == parameters(FIG6)


# -- the command ----------------------------------------------------------------------------------------------------


@every
def test_rsn_overlay_prints_a_file(overlay: Overlay, tmp_path: Path) -> None:
    printed = CliRunner().invoke(main, ["overlay", overlay.name])
    assert (printed.exit_code, printed.stderr) == (0, "")
    assert printed.stdout == show(overlay)
    assert parameters(read(tmp_path, printed.stdout, overlay)) == parameters(overlay)
    as_json = json.loads(CliRunner().invoke(main, ["overlay", overlay.name, "--json"]).stdout)
    assert as_json == json.loads(json.dumps(facts(overlay)))
    assert {**{n: r["value"] for n, r in as_json["rates"].items()}, **as_json["fifos"], **as_json["streams"]} == (
        parameters(overlay)
    )


def test_rsn_overlay_of_an_unknown_one() -> None:
    result = CliRunner().invoke(main, ["overlay", "xnm"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no overlay 'xnm'" in result.stderr


def test_the_clock_scales_what_is_counted_in_cycles(tmp_path: Path) -> None:
    slow = FIG6.with_rates(clock_mhz=130)
    for name, rate in FIG6.rates.items():
        times = 2 if rate.unit == "PL cycles" else 1
        assert slow.seconds[name] == pytest.approx(times * FIG6.seconds[name], rel=1e-12)
    path = tmp_path / "slow.toml"
    path.write_text('overlay = "fig6"\n[rates]\nclock_mhz = 130\n')
    assert find(str(path)).seconds == slow.seconds
    for mhz in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ProgramError, match="is no clock"):
            FIG6.with_rates(clock_mhz=mhz)
