"""Options of `rsn run` for those who want to know why: what goes together, what is refused before anything runs, and
what is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rsn.assembler import container
from rsn.assembler.parser import parse
from rsn.cli.main import main
from rsn.hw.sim.explain import explain
from rsn.hw.sim.machine import Machine
from rsn.isa.program import Program, UnpackedProgram
from rsn.scheduler.pack import pack

FOLDER = Path(container.__file__).parent.parent / "programs"


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


def program(name: str) -> Program:
    source = parse((FOLDER / f"{name}.rsn").read_text(encoding="utf-8"), f"{name}.rsn")
    return pack(source) if isinstance(source, UnpackedProgram) else source


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fig6_app2 with its input."""
    out = tmp_path_factory.mktemp("run")
    container.write(program("fig6_app2"), out / "p.bin")
    np.savez(out / "x.npz", x=np.arange(300, dtype=np.float32))
    return out


def run(folder: Path, *more: object) -> Result:
    return rsn("run", folder / "p.bin", "--inputs", folder / "x.npz", *more)


def timed(folder: Path, *more: object) -> Result:
    return rsn("run", folder / "p.bin", "--timing-only", *more)


def refused(result: Result, *messages: str, code: int = 1) -> None:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    for message in messages:
        assert message in result.stderr


# -- what goes together ---------------------------------------------------------------------------------------------

VALUES = {
    "--timing-only": [],
    "--explain": [],
    "--raw": [],
    "--trace": ["t.json"],
    "--report": ["r.html"],
    "--outputs": ["y.npz"],
    "--break": ["FU1"],
    "--compare": ["minilm"],
    "--dump-ddr": ["d.bin"],
}
PICTURES = ("--explain", "--trace", "--report", "--outputs")
CONTRADICTIONS = {
    *(frozenset({"--break", option}) for option in (*PICTURES, "--compare")),
    *(frozenset({"--compare", option}) for option in (*PICTURES, "--timing-only", "--raw")),
    frozenset({"--timing-only", "--outputs"}),
    frozenset({"--raw", "--outputs"}),
}
PAIRS = [frozenset(pair) for pair in combinations([o for o in VALUES if o != "--dump-ddr"], 2)]


@pytest.mark.parametrize("pair", sorted(CONTRADICTIONS, key=sorted), ids=lambda p: " ".join(sorted(p)))
def test_options_that_contradict_each_other(
    folder: Path, pair: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either order: usage, both named, nothing written."""
    monkeypatch.chdir(tmp_path)
    for options in (sorted(pair), sorted(pair, reverse=True)):
        args = [x for option in options for x in (option, *VALUES[option])]
        refused(rsn("run", folder / "p.bin", *args), *pair, code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pair", [p for p in PAIRS if p not in CONTRADICTIONS], ids=lambda p: " ".join(sorted(p)))
def test_all_other_pairs_do_not(
    folder: Path, pair: frozenset[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has what both ask for; an option of bare images is refused for the program alone."""
    args = [x for option in sorted(pair) for x in (option, *VALUES[option])]
    monkeypatch.chdir(tmp_path)
    if "--raw" in pair:
        refused(rsn("run", folder / "p.bin", *args), "a program of this toolchain, not a bare image: leave out --raw")
        return
    result = run(folder, *args)
    assert result.exit_code == 0, result.stderr
    files = [VALUES[option][0] for option in pair & {"--trace", "--report", "--outputs"}]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(files)
    assert ("what its unit had waited for" in result.stdout) == ("--explain" in pair), result.stdout
    assert ("FU1 stopped before uOP 0 " in result.stdout) == ("--break" in pair)


@pytest.mark.parametrize("option", ["--break", "--compare"])
def test_the_contents_of_a_memory_go_with_a_whole_run_alone(folder: Path, option: str) -> None:
    args = ["--raw", "--dump-ddr", "d.bin", option, *VALUES[option]]
    refused(rsn("run", folder / "p.bin", *args), "--dump-ddr", option, code=2)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--dump", "d.npz"], ["--dump", "--break"]),
        (["--bound", "1"], ["--bound", "--compare"]),
        (["--seed", "1"], ["--seed", "--compare"]),
        (["--compare", "minilm", "--bound", "nan"], ["--bound nan"]),
        (["--compare", "minilm", "--bound", "-1"], ["--bound -1"]),
        (["--compare", "minilm", "--bound", "inf"], ["--bound inf"]),
        (["--compare", "minilm", "--bound", "x"], ["--bound"]),
        (["--compare", "minilm", "--seed", "x"], ["--seed"]),
        (["--break", "FU1:x"], ["--break", "'x' is not the number of a uOP"]),
        (["--break", "FU1:"], ["--break", "'' is not the number of a uOP"]),
        (["--break", "FU1:-1"], ["--break", "'-1' is not the number of a uOP"]),
        (["--break", "FU1:1:2"], ["--break", "'1:2' is not the number of a uOP"]),
        (["--break", "FU1:1.0"], ["--break", "'1.0' is not the number of a uOP"]),
        (["--set", "add"], ["--set", "expected NAME=NUMBER"]),
        (["--set", "add="], ["--set", "'' is not a number"]),
        (["--set", "add=x"], ["--set", "'x' is not a number"]),
        (["--set", "add=1=2"], ["--set", "'1=2' is not a number"]),
        (["--param", "len=1.5"], ["--param", "'1.5' is not a whole number"]),
        (["--trace", "."], ["--trace", "directory"]),
        (["--report", "."], ["--report", "directory"]),
        (["--break", "FU1", "--dump", "."], ["--dump", "directory"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_options_that_say_nothing_or_nonsense(folder: Path, args: list[str], named: list[str]) -> None:
    refused(run(folder, *args), *named, code=2)


@pytest.mark.parametrize(
    "args",
    [
        ["--timing-only"],
        ["--set", "add=1"],
        ["--overlay-file", "o.toml"],
        ["--explain"],
        ["--trace", "t.json"],
        ["--report", "r.html"],
        ["--break", "FU1"],
        ["--compare", "minilm"],
        ["--explain", "--trace", "t.json", "--set", "add=1"],
    ],
    ids=lambda a: " ".join(a),
)
def test_a_real_board_knows_none_of_it(folder: Path, args: list[str]) -> None:
    named = [a for a in args if a.startswith("--")]
    refused(rsn("run", folder / "p.bin", "--board", "vck190", *args), *named, "--board sim", code=2)


# -- before the run -------------------------------------------------------------------------------------------------


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run would be noticed."""

    def fail(*args: object, **options: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("rsn.hw.sim.machine.Machine.run", fail)
    monkeypatch.setattr("rsn.hw.sim.breakpoint.stop", fail)


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize("option", ["--trace", "--report", "--dump", "--outputs"])
@pytest.mark.parametrize("place", ["nowhere/out", "p.bin/out"])
def test_what_cannot_be_written_is_refused_before_the_run(folder: Path, option: str, place: str) -> None:
    target = folder / f"{place}.npz"
    more = ["--break", "FU3"] if option == "--dump" else []
    result = run(folder, option, target, *more)
    refused(result, f"{target}: ")
    assert result.stderr.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == ["p.bin", "x.npz"]


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--set", "sub=1"], "overlay fig6 has no parameter 'sub'; it has mop_fifo_depth"),
        (["--set", "=1"], "overlay fig6 has no parameter ''"),
        (["--set", "self=1"], "overlay fig6 has no parameter 'self'"),
        (["--set", "add=nan"], "add=nan: a time must be finite and at least 0 PL cycles"),
        (["--set", "add=-1"], "add=-1.0: a time must be"),
        (["--set", "add=1e999"], "add=inf: a time must be"),
        (["--set", "ddr_read_gbs=0"], "ddr_read_gbs=0.0: a bandwidth must be greater than 0 GB/s"),
        (["--set", "ddr_read_gbs=nan"], "ddr_read_gbs=nan: a bandwidth must be"),
        (["--set", "mop_fifo_depth=1.5"], "mop_fifo_depth=1.5: a depth must be a whole number"),
        (["--set", "mop_fifo_depth=0"], "mop_fifo_depth=0.0: a depth must be"),
        (["--overlay-file", "nowhere.toml"], "nowhere.toml: no such file"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_rates_that_no_machine_has(folder: Path, args: list[str], message: str) -> None:
    refused(run(folder, *args), message)
    refused(timed(folder, *args), message)


def test_where_nothing_can_stop(folder: Path) -> None:
    refused(run(folder, "--break", "FU9"), "overlay fig6 has no unit 'FU9'; it has FU1, FU2, FU3")
    refused(run(folder, "--break", ""), "overlay fig6 has no unit ''")
    refused(run(folder, "--break", "FU1:3"), "FU1 runs 3 uOPs, numbered from 0: there is no uOP 3")
    refused(run(folder, "--break", "FU1:99999999999999999999"), "there is no uOP 99999999999999999999")


# -- other rates ----------------------------------------------------------------------------------------------------


def latency(result: Result) -> float:
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["latency_s"])


def test_an_overlay_file_is_so_many_settings(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.toml"
    file.write_text('overlay = "fig6"\n[rates]\nadd = 7\nddr_write_gbs = 0.5\n')
    by_file = latency(timed(folder, "--overlay-file", file, "--json"))
    assert by_file == latency(timed(folder, "--set", "add=7", "--set", "ddr_write_gbs=0.5", "--json"))
    assert by_file > latency(timed(folder, "--json"))
    assert by_file == latency(run(folder, "--overlay-file", file, "--json"))
    # what is set beside it counts
    both = latency(timed(folder, "--overlay-file", file, "--set", "add=1", "--json"))
    assert both == latency(timed(folder, "--set", "ddr_write_gbs=0.5", "--json"))


def test_what_rsn_overlay_prints_changes_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text(rsn("overlay", "fig6").stdout)
    assert timed(folder, "--overlay-file", tmp_path / "o.toml", "--json").stdout == timed(folder, "--json").stdout
    (tmp_path / "o.toml").write_text(rsn("overlay", "fig7").stdout)
    refused(timed(folder, "--overlay-file", tmp_path / "o.toml"), "it is about overlay fig7, the program about fig6")


def test_stream_depths_change_no_result(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "o.toml").write_text('[streams]\n"FU1->FU3" = 100\n"FU1->FU2" = 1\n')
    outputs = []
    for more in ((), ("--overlay-file", tmp_path / "o.toml")):
        latency(run(folder, "--json", "--outputs", tmp_path / "y.npz", *more))
        outputs.append(np.load(tmp_path / "y.npz")["y"])
    np.testing.assert_array_equal(*outputs)


def test_a_depth_that_makes_it_stop_is_reported(folder: Path, tmp_path: Path) -> None:
    """Twenty packets for FU1 before the only one for FU3: they fit into FIFOs of 6, not of 1."""
    from rsn.isa.overlays.fig6 import FIG6, Read, Write
    from rsn.isa.packet import Packet
    from rsn.isa.program import Buffer, Layout

    sends = [Packet.of(1, [Read(size=1, to_fu3=1)]) for _ in range(10)]
    packets = (*sends, Packet.of(3, [Write(size=10, from_fu1=1)]), *(Packet.terminator(o) for o in (1, 2, 3)))
    buffers = (Buffer("y", "ddr", 0, (10,), Layout.LINEAR),)
    container.write(Program(FIG6, packets, buffers=buffers), tmp_path / "p.bin")
    assert timed(tmp_path).exit_code == 0
    for more in (["--timing-only"], ["--timing-only", "--explain"], ["--timing-only", "--trace", tmp_path / "t.json"]):
        refused(rsn("run", tmp_path / "p.bin", "--set", "mop_fifo_depth=1", *more), "deadlock: no unit can move")
    assert not (tmp_path / "t.json").exists()
    at_start = rsn("run", tmp_path / "p.bin", "--set", "mop_fifo_depth=1", "--timing-only", "--break", "FU1:2")
    assert at_start.exit_code == 0, at_start.output


# -- what is printed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [run, timed])
def test_explain_as_text_and_json(folder: Path, how: Callable[..., Result]) -> None:
    text = how(folder, "--explain").stdout
    reasons = explain(Machine(program("fig6_app2")))
    assert text.endswith(f"\n\n{reasons}\n")
    facts = json.loads(how(folder, "--explain", "--json").stdout)
    plain = json.loads(how(folder, "--json").stdout)
    assert {key: value for key, value in facts.items() if key != "explain"} == plain
    assert facts["explain"] == json.loads(json.dumps(reasons.as_json()))
    assert set(plain) == {"latency_s", "mops", "bytes", "utilization", "critical_path"}


def test_explain_heeds_other_rates(folder: Path) -> None:
    def causes(*more: str) -> dict[str, Any]:
        facts = json.loads(timed(folder, "--explain", "--json", *more).stdout)
        assert sum(facts["explain"]["causes"].values()) == pytest.approx(facts["latency_s"])
        return dict(facts["explain"]["causes"])

    assert next(iter(causes("--set", "add=50"))) == "compute"
    assert "compute" not in causes("--set", "add=0")


def test_a_break_shows_and_dumps(folder: Path, tmp_path: Path) -> None:
    text = run(folder, "--break", "FU3:1", "--dump", tmp_path / "d.npz")
    assert text.exit_code == 0, text.output
    assert text.stdout.startswith("FU3 stopped before uOP 1 (fig6_app2.rsn:21) at ")
    with np.load(tmp_path / "d.npz") as dump:
        assert dump["fill FU1->FU3"].tolist()[1] == 2
    facts = json.loads(run(folder, "--break", "FU3:1", "--json").stdout)
    assert (facts["unit"], facts["uop"], facts["where"]) == ("FU3", 1, "fig6_app2.rsn:21")
    assert json.loads(timed(folder, "--break", "FU3:1", "--json").stdout) == facts
    assert json.loads(run(folder, "--break", "FU3", "--json").stdout)["uop"] == 0


def test_what_was_written_is_told(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--outputs", tmp_path / "y.npz", "--trace", tmp_path / "t.json")
    assert result.exit_code == 0, result.output
    told = [line.split()[1] for line in result.stdout.splitlines() if line.startswith(("outputs", "trace", "report"))]
    assert told == [str(tmp_path / "y.npz"), str(tmp_path / "t.json")]
    assert all(Path(file).stat().st_size for file in told)
    x = np.arange(300, dtype=np.float32)
    x[:100] += 1
    x[200:] += 1
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], x)
