"""`rsn compile --schedule`: named, searched for and from a file; what goes together, and what is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rsn.base.errors import ScheduleError
from rsn.cli.main import main
from rsn.scheduler import best as best_module
from rsn.scheduler.schedule import PAPER, read_schedule

pytest.importorskip("torch")

SPEC = "gemm:300x128x700"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rsn" / "schedules"


@pytest.fixture
def unsearched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where something is searched for."""

    def never(*args: Any, **more: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(best_module, "search", never)


def compiled(*args: object, spec: str = SPEC) -> Result:
    result = CliRunner().invoke(main, ["compile", spec, *(str(a) for a in args)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # would be a traceback
    return result


def done(*args: object, spec: str = SPEC) -> Result:
    result = compiled(*args, spec=spec)
    assert result.exit_code == 0, result.output
    return result


def refused(result: Result, message: str, code: int = 1) -> None:
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert message in result.stderr


@pytest.mark.parametrize(("spec", "shape"), [(SPEC, ()), ("bert-large-encoder", ("--batch", 1, "--seq", 256))])
def test_a_schedule_that_was_written_gives_the_same_program(
    spec: str, shape: tuple[object, ...], tmp_path: Path, cache: Path
) -> None:
    a, b, s = tmp_path / "a.rsn", tmp_path / "b.rsn", tmp_path / "s.toml"
    done("-o", a, *shape, "--schedule", "best", "--budget", 0.2, "--schedule-out", s, spec=spec)
    assert len(list(cache.glob("*.toml"))) == 1
    words = s.read_text()
    assert words.startswith("# searched for 0.2 s at most\n# modelled ")
    again = tmp_path / "again.toml"
    done("-o", b, *shape, "--schedule", s, "--schedule-out", again, spec=spec)
    assert a.read_text() == b.read_text()
    assert read_schedule(again) == read_schedule(s)


def test_the_second_time_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--schedule", "best", "--budget", 0.2)
    done("-o", tmp_path / "a.rsn", *arguments)

    def never(*args: Any, **more: Any) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(best_module, "search", never)
    facts = json.loads(
        done("-o", tmp_path / "b.rsn", *arguments, "--json", "--schedule-out", tmp_path / "s.toml").stdout
    )
    words = (tmp_path / "s.toml").read_text()
    assert words.startswith("# from the cache: searched for 0.2 s at most, in an earlier run\n# modelled ")
    assert facts["segments"] == 1
    assert (tmp_path / "a.rsn").read_text() == (tmp_path / "b.rsn").read_text()
    with pytest.raises(AssertionError, match="searched"):
        compiled("-o", tmp_path / "b.rsn", "--schedule", "best", "--budget", 0.3)
    with pytest.raises(AssertionError, match="searched"):
        compiled("-o", tmp_path / "b.rsn", *arguments, "--seed", 1)


def test_the_schedule_of_a_name_can_be_written_too(tmp_path: Path, cache: Path) -> None:
    done("-o", tmp_path / "p.rsn", "--schedule-out", tmp_path / "s.toml")
    assert read_schedule(tmp_path / "s.toml") == PAPER
    assert not cache.exists()


@pytest.mark.parametrize("schedule", ["paper", "strict", "s.toml"])
def test_a_budget_goes_with_best(schedule: str, tmp_path: Path, unsearched: None) -> None:
    refused(compiled("-o", tmp_path / "p.rsn", "--schedule", schedule, "--budget", 3), "--budget goes with", code=2)
    refused(compiled("-o", tmp_path / "p.rsn", "--budget", 3), "--budget goes with --schedule best", code=2)


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "-inf"])
def test_a_budget_is_a_time(budget: str, tmp_path: Path, unsearched: None) -> None:
    result = compiled("-o", tmp_path / "p.rsn", "--schedule", "best", "--budget", budget)
    refused(result, f"budget={float(budget)}: must be more than 0 seconds")
    refused(compiled("-o", tmp_path / "p.rsn", "--schedule", "best", "--budget", "long"), "--budget", code=2)
    assert not (tmp_path / "p.rsn").exists()


def test_a_negative_seed_is_refused(tmp_path: Path, unsearched: None) -> None:
    refused(compiled("-o", tmp_path / "p.rsn", "--schedule", "best", "--seed", -1), "seed=-1: ")


def test_targets_are_looked_at_before_the_search(tmp_path: Path, unsearched: None) -> None:
    best = ("--schedule", "best", "--budget", 0.2)
    out = tmp_path / "p.rsn"
    nowhere = tmp_path / "nowhere" / "s.toml"
    refused(compiled("-o", out, *best, "--schedule-out", nowhere), f"{nowhere}: No such file or directory")
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "s.toml"
    refused(compiled("-o", out, *best, "--schedule-out", below), f"{below}: Not a directory")
    refused(compiled("-o", out, *best, "--schedule-out", tmp_path), "is a directory", code=2)
    refused(compiled("-o", nowhere, *best), f"{nowhere}: No such file")
    assert not out.exists()


def test_what_is_no_schedule(tmp_path: Path) -> None:
    out = tmp_path / "p.rsn"
    refused(compiled("-o", out, "--schedule", "fast"), "no schedule 'fast'; there are paper, strict")
    refused(compiled("-o", out, "--schedule", tmp_path / "s.toml"), f"{tmp_path / 's.toml'}: no such file")
    (tmp_path / "s.toml").write_text("tile_rows = 5")
    refused(
        compiled("-o", out, "--schedule", tmp_path / "s.toml"), "gemm 128x700: tile_rows=5: must be 1, 2, 3, 4 or 6"
    )
    (tmp_path / "folder.toml").mkdir()
    refused(compiled("-o", out, "--schedule", tmp_path / "folder.toml"), "folder.toml: Is a directory")
    assert not out.exists()


def test_a_cache_that_cannot_be_written_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done("-o", tmp_path / "p.rsn", "--schedule", "best", "--budget", 0.1)
    assert (tmp_path / "file").read_text() == ""


def test_from_python(tmp_path: Path, cache: Path) -> None:
    import torch

    import rsn
    from rsn.rsnlib.models import preset

    model, example = preset(SPEC)
    with pytest.raises(ScheduleError, match="budget=0"):
        rsn.compile(model, example, schedule="best", budget_s=0)
    best = rsn.compile(model, example, schedule="best", budget_s=0.1)
    assert len(list(cache.glob("*.toml"))) == 1
    with torch.no_grad():
        assert torch.allclose(best(*example), model(*example), atol=1e-4)
    same = rsn.compile(model, example, schedule=best.schedule)
    assert (same.program.image == best.program.image).all()
    best.close()
    same.close()
