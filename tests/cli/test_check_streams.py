"""`rsn check` of stream programs: findings as they are printed, as JSON, exit codes, and files that are no programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rsn.cli.main import main

LISTED = tomllib.loads((Path(__file__).parent.parent / "streams" / "listed.toml").read_text(encoding="utf-8"))
REGION = """from rsn.streams import *
@region()
def pair(n: int = 4):
    s: Stream[i32, 2]
    @task(mapping=[1])
    def a():
        for i in range(n):
            s.put(i)
    @task(mapping=[1])
    def b():
        for i in range(4):
            use(s.get())
pair(3)
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(*args: str, program: str | bytes | None = None) -> Result:
    """Run `rsn check ARGS`, with prog.py as stated."""
    if program is not None:
        Path("prog.py").write_bytes(program.encode() if isinstance(program, str) else program)
    result = CliRunner().invoke(main, ["check", *args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("W1", "prog.py: ok, 1 stream, 2 task instances\n"),
        (
            "I5",
            "prog.py:7:9: error: a cycle of waits: fork waits to put s (2/2); join waits to get t (0/1) [depth]\n"
            "        s.put(i)\n"
            "        ^^^^^^^^\n"
            "note: depth 3 of s is the least with which it ends, others as declared\n",
        ),
        (
            "I14",
            "prog.py:5:5: error: a puts f32[4, 2] on s: Stream[f32[4, 4]] [type]\n"
            '    s.put(tile("f32", 4, 2))\n'
            "    ^^^^^^^^^^^^^^^^^^^^^^^^\n",
        ),
    ],
)
def test_as_printed(name: str, expected: str) -> None:
    result = check("prog.py", program=LISTED[name]["program"].lstrip())
    assert (result.exit_code, result.stdout) == (int("error" in expected), expected)


def test_json() -> None:
    facts = json.loads(check("prog.py", "--json", program=LISTED["I2"]["program"].lstrip()).stdout)
    assert facts == {
        "ok": False,
        "instances": 2,
        "streams": 1,
        "findings": [
            {
                "code": "leak",
                "message": "4 puts more than gets on s: 8 put, 4 got",
                "where": "prog.py:7:9",
                "warning": False,
                "help": "they are left on the stream at the end; its depth is 4",
                "times": 1,
                "file": "prog.py",
                "line": 7,
                "column": 9,
                "end_column": 17,
                "subject": "s",
                "notes": ["they are left on the stream at the end; its depth is 4"],
            }
        ],
    }


def test_regions() -> None:
    assert check("prog.py", program=REGION).exit_code == 1
    result = check("prog.py:pair", program=REGION)
    assert (result.exit_code, result.stdout) == (0, "prog.py:pair: ok, 1 stream, 2 task instances\n")
    result = check("prog.py:pear", program=REGION)
    assert (result.exit_code, result.stdout.splitlines()) == (
        1,
        ["prog.py: error: the file has no region pear [unsupported]", "note: did you mean pair?"],
    )
    assert check("prog.py:", program=REGION).exit_code == 1


def test_strict() -> None:
    result = check("prog.py", program=LISTED["W17"]["program"])
    assert (result.exit_code, "warning" in result.stdout) == (0, True)
    result = check("prog.py", "--strict", program=LISTED["W17"]["program"])
    assert (result.exit_code, "warning" in result.stdout) == (1, False)


def test_at_most_so_many_of_each_code() -> None:
    text = "from rsn.streams import *\n" + "".join(f"s{k}: Stream[i32, 0]\n" for k in range(15))
    result = check("prog.py", "--most", "4", program=text)
    assert result.stdout.count("[depth0]") == 4
    assert "note: and 11 more with this code" in result.stdout
    facts = json.loads(check("prog.py", "--json").stdout)
    assert [f["times"] for f in facts["findings"] if f["code"] == "depth0"] == [1] * 9 + [6]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("prog.py", "--raw"), "--raw: only with a program (.bin) or a bare image"),
        (
            ("prog.py:pair", "--overlay", "xnn", "--ddr-bytes", "4"),
            "--overlay, --ddr-bytes: only with a program (.bin)",
        ),
        (("prog.bin", "--strict"), "--strict: only with a stream program (.py)"),
    ],
)
def test_options_of_the_other_kind(args: tuple[str, ...], message: str) -> None:
    result = check(*args, program=REGION)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("program", "at", "message"),
    [
        (b"x = 1\ny = '\xff'\n", "2:6", "byte 0xff is not utf-8"),
        (b"# coding: martian\n", "1:1", "unknown encoding: martian"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "1:1", "encoding problem: utf-8"),
        (b"x = 1\0\n", None, "null bytes"),
        (b"\r\r\rx = (\r", "4:5", "'(' was never closed"),
    ],
)
def test_what_is_no_text_of_python(program: bytes, at: str | None, message: str) -> None:
    result = check("prog.py", program=program)
    assert result.exit_code == 1
    assert message in result.stdout
    assert at is None or result.stdout.startswith(f"prog.py:{at}: error: ")


def test_text_in_another_encoding() -> None:
    text = "# coding: latin-1\nname = 'é'; from rsn.streams import *; s: Stream[i32, 0]\n"
    assert check("prog.py", program=text.encode("latin-1")).stdout.startswith("prog.py:2:40: error: s has depth 0")


def test_empty_and_missing_files() -> None:
    assert check("prog.py", program="").stdout == "prog.py: ok, 0 streams, 0 task instances\n"
    Path("folder.py").mkdir()
    result = check("folder.py")
    assert (result.exit_code, result.stderr) == (1, "error: folder.py: Is a directory\n")
    result = check("none.py")
    assert (result.exit_code, result.stderr) == (1, "error: none.py: No such file or directory\n")


def test_nothing_is_executed() -> None:
    effect = "__import__('pathlib').Path('ran').touch()"
    text = f"import pathlib\nx = {effect}\n{effect}\n@task(mapping=[{effect}])\ndef a(b=pathlib.Path('ran').touch()):\n"
    result = check("prog.py", program=f"from rsn.streams import *\n{text}    {effect}\n")
    assert result.exit_code == 1
    assert not Path("ran").exists()
