"""`rsn tune --overlay`: the front of latency and memory of row lanes, and the files of its best machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.docs import front
from rsn.rsnlib.lane_search import LaneSearch
from rsn.tests.effort import FULL

pytest.importorskip("optuna")
pytest.importorskip("torch")

MODEL = """\
import torch
from rsn.rsnlib.nn import Encoder


def block(batch, seq):
    return Encoder(1, 256, 4, 512, "gelu", 1e-12).eval(), (torch.zeros(batch, seq, 256),)
"""


def rsn(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    return "model.py:block"


def asked(spec: str, trials: int, *more: str) -> tuple[str, ...]:
    return ("tune", spec, "--overlay", "xnn2", "--batch", "2", "--seq", "128", "--trials", str(trials), *more)


@pytest.mark.long
def test_no_other_trial_beats_one_of_the_front(spec: str) -> None:
    goals = "latency ms", "on-chip KiB"
    made = json.loads(rsn(*asked(spec, 48, "--goal", "latency", "--goal", "memory", "--json")))
    costs = [tuple(trial[goal] for goal in goals) for trial in made["trials"] if "refused" not in trial]
    front = [tuple(trial[goal] for goal in goals) for trial in made["best"]]
    assert len(costs) >= 12
    assert len(front) > 1
    assert front == sorted(front)
    assert [memory for _, memory in front] == sorted((memory for _, memory in front), reverse=True)
    for latency, memory in front:
        assert not any(a <= latency and b <= memory and (a, b) != (latency, memory) for a, b in costs)
    assert all(trial["refused"] for trial in made["trials"] if "refused" in trial)


def test_the_files_of_the_best_machine_make_it_again(spec: str) -> None:
    files = ("-o", "best.rsn", "--overlay-out", "best.toml", "--schedule-out", "schedule.toml")
    made = json.loads(rsn(*asked(spec, 12, "--on-chip", str(12 << 20), *files, "--json")))
    assert all("at most 12288 KiB are asked for" in made["trials"][n]["refused"] for n in range(2))
    (best,) = made["best"]
    options = ("--overlay", "best.toml", "--schedule", "schedule.toml")
    rsn("compile", spec, "--batch", "2", "--seq", "128", *options, "-o", "again.rsn")
    for name in ("best", "again"):
        rsn("asm", f"{name}.rsn", "-o", f"{name}.bin")
        run = json.loads(rsn("run", f"{name}.bin", "--timing-only", "--json"))
        assert run["latency_s"] * 1e3 == pytest.approx(best["latency ms"], rel=1e-9)


@pytest.mark.long
def test_the_front_of_the_page_is_what_the_simulator_says() -> None:
    """If not: the commands of docs/xnn2.md, "Other memories"."""
    fronts = json.loads(front.KEPT.read_text())
    bert = next(kept for title, kept in fronts.items() if "BERT" in title)
    search = LaneSearch("bert-large-encoder", "xnn2", ("latency", "memory"), batch=6, seq=512)
    points = bert["front"] if FULL else bert["front"][::4]
    for point in [*points, bert["ships"]]:
        assert search.evaluate(point["knobs"]).costs == pytest.approx((point["ms"], point["kib"]), rel=1e-9)
    for kept in fronts.values():
        costs = [(point["kib"], point["ms"]) for point in kept["front"]]
        assert costs == sorted(costs, reverse=True)
        assert [ms for _, ms in costs] == sorted(ms for _, ms in costs)


def test_a_picture_of_fronts_has_all_points() -> None:
    fronts = {"A & B": {"front": [point(1.5, 9 << 10, "R6"), point(2.0, 7 << 10, "P3")], "ships": point(1.6, 15104)}}
    drawn = ElementTree.fromstring(front.draw(fronts))
    texts = [e.text for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "A & B" in texts
    assert {"7 MiB", "15", "1.5 ms", "2"} <= set(texts)
    circles = list(drawn.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 3 + 3  # of the legend, of the front and what ships
    with pytest.raises(SystemExit, match="no trial has the memories that ship"):
        front.kept({"trials": [], "best": []})


def point(ms: float, kib: float, mode: str = "R6") -> dict[str, Any]:
    return {"ms": ms, "kib": kib, "knobs": {"mode": mode}}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--overlay", "xnn"), "overlay xnn has no row lanes"),
        (("--overlay", "xnn3"), "no overlay 'xnn3'"),
        (("--overlay", "xnn2", "--onto", "u280"), "--onto: only with a generated machine, not with --overlay"),
        (("--schedule-out", "x.toml"), "--schedule-out: only with --overlay"),
        (("--overlay", "small.toml"), "small.toml: a search begins with an overlay that ships, not with a file"),
        (
            ("--overlay", "xnn2", "--on-chip", "1"),
            "no machine fits: memories of 13184 KiB; at most 0 KiB are asked for",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused(spec: str, options: tuple[str, ...], told: str) -> None:
    Path("small.toml").write_text('overlay = "xnn2"\n[memories.XIn]\nslots = 8\n')
    result = CliRunner().invoke(main, ["tune", spec, "--trials", "2", *options])
    assert result.exit_code in (1, 2)
    assert told in result.output
