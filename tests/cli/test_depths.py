"""`rsn depths` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rsn.cli.main import main
from rsn.cli.stream_programs import region_of, stream_program
from rsn.streams.check import report_on
from rsn.streams.fifos.normal import fast_depths, later_starts
from rsn.streams.sizing.program import SizedProgram

PROGRAM = """from rsn.streams import *
s: Stream[i32, 2]
t: Stream[i32, 1]
@task(mapping=[1])
def fork():
    for i in range(8):
        s.put(i)
        if i % 3 == 2:
            t.put(i)
    t.put(0)
    t.put(0)
@task(mapping=[1])
def join():
    for k in range(4):
        use(t.get())
        use(s.get())
        use(s.get())
"""
TABLE = """\
stream        declared  safe alone  safe  fast  bits a slot
s                    2           4     4     5           32
t                    1           -     1     2           32
all, in bits        96               160   224

deeper           bits  latency  interval
safe depths       160       16        14
s 4 -> 5          192       15        13
t 1 -> 2          224       15        12
endless streams             15        12

With depths as declared instances wait for ever: rsn check shows the cycle of waits.
-: no depth of this stream alone is safe, the others as they are.
Safe: counted, without time; proved to be the fewest bits.
Fast, latency, interval: modelled, in clock cycles, 3 executions back to back; proved to be the fewest bits.
"""


def rsn(*args: object) -> Result:
    result = CliRunner().invoke(main, [str(a) for a in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "prog.py"
    path.write_text(PROGRAM)
    return path


def test_the_table(program: Path) -> None:
    shown = rsn("depths", program)
    assert (shown.exit_code, shown.stdout) == (0, TABLE)


def test_json(program: Path) -> None:
    facts = json.loads(rsn("depths", program, "--json", "--runs", 2).stdout)
    assert facts["executions"] == 2
    assert [(s["name"], s["declared"], s["safe_alone"], s["safe"], s["fast"]) for s in facts["streams"]] == [
        ("s", 2, 4, 4, 5),
        ("t", 1, None, 1, 2),
    ]
    assert (facts["safe"]["kind"], facts["safe"]["bits"], facts["safe"]["proved_least"]) == ("counted", 160, True)
    assert (facts["fast"]["kind"], facts["fast"]["bits"], facts["fast"]["proved_least"]) == ("modelled", 224, True)
    assert [step["deeper"] for step in facts["steps"]] == [{}, {"s": 5}, {"t": 2}]
    assert (facts["declared"]["safe"], facts["declared"]["latency"]) == (False, None)
    assert facts["endless"]["latency"] == facts["steps"][-1]["latency"]


def test_a_depth_that_is_set_replaces_the_declared_one(program: Path) -> None:
    facts = json.loads(rsn("depths", program, "--json", "--set", "s=5", "--set", "t=2").stdout)
    assert facts["declared"]["safe"]
    assert facts["declared"]["latency"] == facts["endless"]["latency"]
    assert facts["streams"][0]["peak"] <= 5
    shown = rsn("depths", program, "--set", "s=4", "--set", "t=2").stdout
    assert "depths as chosen" in shown
    assert "4 (set)" in shown


@pytest.mark.parametrize("wrong", ["q=3", "s", "s=", "s=0", "s=-1", "s=1.5", "s=x", "=3", "s=" + "9" * 5000])
def test_wrong_choices_are_refused(program: Path, wrong: str) -> None:
    refused = rsn("depths", program, "--set", wrong)
    assert refused.exit_code == 2
    assert f"--set {wrong}: " in refused.stderr


BUFFERED = """from rsn.streams import *
X: f32[8, 4]
Y: f32[8, 4]
s: Stream[f32[4], 2]
@task(mapping=[1], args=[X]{mark})
def a(x: f32[8, 4]) -> None:
    for i in range(8):
        s.put(x[i] * 2.0)
@task(mapping=[1], args=[Y])
def b(y: f32[8, 4]) -> None:
    for i in range(8):
        y[i] = s.get()
"""


def test_buffers_have_no_depth_to_choose(program: Path) -> None:
    """No program states their depths."""
    program.write_text(BUFFERED.replace("{mark}", ", double_buffer=True"))
    facts = json.loads(rsn("depths", program, "--json").stdout)
    assert [s["name"] for s in facts["streams"]] == ["s"]
    assert (facts["declared"]["bits"], facts["declared"]["latency"]) == (256, facts["endless"]["latency"])
    assert all(step["depths"].keys() == {"s"} for step in facts["steps"])
    refused = rsn("depths", program, "--set", "a.x=4")
    assert (refused.exit_code, "the streams with ends are s" in refused.stderr) == (2, True)
    sized = SizedProgram(report_on(region_of(stream_program(str(program)), None)).region)
    assert sized.later(fast_depths(sized).levels, sized.together({})) is None
    assert later_starts(sized) == {}


def test_findings_are_shown_instead(program: Path) -> None:
    program.write_text(PROGRAM.replace("range(8)", "range(9)"))
    shown = rsn("depths", program)
    assert shown.exit_code == 1
    assert "[leak]" in shown.stdout
    facts = json.loads(rsn("depths", program, "--json").stdout)
    assert (facts["ok"], facts["findings"][0]["code"]) == (False, "leak")
    program.write_text(PROGRAM.replace("use(t.get())", "t.get()"))
    assert rsn("check", program).stdout.count("[depth]") == 1
    assert "[unread]" in rsn("depths", program).stdout


def test_times_that_depend_on_data_are_refused_with_their_line(program: Path) -> None:
    program.write_text(PROGRAM + "        while data():\n            cycles(2)\n")
    shown = rsn("depths", program)
    assert shown.exit_code == 0
    assert "Fast: not known." in shown.stdout
    assert f"{program}:18:9: error: data decides how often this loop runs" in shown.stdout


@pytest.mark.parametrize("text", ["", "x = 1\n", "from rsn.streams import *\n@task(mapping=[2])\ndef t():\n    pass\n"])
def test_programs_without_streams(program: Path, text: str) -> None:
    program.write_text(text)
    shown = rsn("depths", program)
    assert (shown.exit_code, shown.stdout) == (0, f"{program}: no stream has ends\n")


def test_kernels_take_the_cycles_of_their_rates(program: Path) -> None:
    program.write_text(PROGRAM.replace("use(t.get())", "use(add(zeros(f32, 64), t.get() * 1.0))"))
    plain = json.loads(rsn("depths", program, "--json").stdout)
    rates = program.with_suffix(".toml")
    rates.write_text("[kernels]\nadd = 8\n")
    slower = json.loads(rsn("depths", program, "--json", "--kernels", rates).stdout)
    assert slower["endless"]["latency"] >= plain["endless"]["latency"] + 4 * 7
    assert slower["safe"] == plain["safe"]


def test_files_of_other_kinds(tmp_path: Path) -> None:
    assert rsn("depths", tmp_path / "p.bin").exit_code == 2
    assert rsn("depths", tmp_path / "none.py").exit_code == 1
