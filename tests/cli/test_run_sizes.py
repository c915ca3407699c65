"""Sizes that each run gives on the command line: check, compile, asm, run, hls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.assembler import container
from rsn.cli.main import main
from rsn.tests.streams.test_run_sizes import CENTER


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.py").write_text(CENTER.format(largest=6))
    np.savez("x.npz", x=np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32))


def rsn(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def latency(*arguments: str) -> float:
    code, out = rsn("run", *arguments, "--timing-only", "--json")
    assert code == 0, out
    return float(json.loads(out)["latency_s"])


def test_one_machine_runs_with_several_values() -> None:
    assert rsn("compile", "p.py", "-o", "p.rsn")[0] == 0
    assert rsn("asm", "p.rsn", "-o", "p.bin")[0] == 0
    Path("long.rsn").write_text(Path("p.rsn").read_text().replace("rows=2", "rows=6"))
    assert rsn("asm", "long.rsn", "-o", "long.bin")[0] == 0
    assert container.read("long.bin").overlay.changes == container.read("p.bin").overlay.changes
    times = [latency("p.py", "--size", f"rows={rows}") for rows in range(1, 7)]
    assert times == sorted(set(times))
    assert times == [latency("p.bin", "--size", f"rows={rows}") for rows in range(1, 7)]
    assert (times[1], times[5]) == (latency("p.bin"), latency("long.bin"))
    for program, outputs in (("p.py", "y.npz"), ("long.bin", "z.npz")):
        code, out = rsn("run", program, "--size", "rows=4", "--inputs", "x.npz", "--outputs", outputs)
        assert code == 0, out
    y, z = (np.load(name)["y"] for name in ("y.npz", "z.npz"))
    assert y.shape == (8, 3)
    assert y.tobytes() == z.tobytes()
    assert (
        rsn("hls", "p.py", "-o", "out", "--run", "--size", "rows=4", "--inputs", "x.npz", "--outputs", "n.npz")[0] == 0
    )
    assert np.load("n.npz")["y"].tobytes() == y.tobytes()
    assert Path("out/y.expected.bin").read_bytes()[: y.nbytes] == y.tobytes()
    assert Path("out/y.expected.bin").stat().st_size == 12 * 3 * 4  # room for the largest value


def test_a_check_tries_all_values() -> None:
    code, out = rsn("check", "p.py")
    assert (code, "proved for all 1 <= rows <= 6: each of the 6 sizes" in out) == (0, True)
    facts = json.loads(rsn("check", "p.py", "--json")[1])
    assert facts["ok"]
    assert facts["sizes"]["verdict"] == "proved"
    text = Path("p.py").read_text()
    Path("p.py").write_text(text.replace("means.put(total / n)", "if r < 9:\n            means.put(total / n)"))
    code, out = rsn("check", "p.py")
    assert code == 1
    assert "counterexample: rows = 5: " in out
    assert "[starved]" in out
    Path("p.py").write_text(
        text + "\n\n@task(mapping=[1], args=[x])\ndef tile(x: f32[2 * rows, n]) -> None:\n    use(x + 1)\n"
    )
    code, out = rsn("check", "p.py")
    assert (code, "a tile of shape" in out) == (1, True)


def test_wrong_values_are_refused() -> None:
    for arguments in (("run", "p.py", "--timing-only"), ("hls", "p.py", "-o", "out")):
        code, out = rsn(*arguments, "--size", "rows=7")
        assert (code != 0, "rows = 7 is not from 1 to 6" in out) == (True, True)
        code, out = rsn(*arguments, "--size", "n=2")
        assert (code != 0, "no size n" in out) == (True, True)
    assert "'two' is not a whole number" in rsn("run", "p.py", "--size", "rows=two")[1]
    code, out = rsn("map", "p.py")
    assert (code != 0, "a mapping is for one value of rows" in out) == (True, True)
