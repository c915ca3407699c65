"""`rsn compile --boards`, and `rsn info` of model files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.cli.main import main


def told(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(x) for x in arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_a_model_in_stages_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "minilm.rsnmodel"
    made = json.loads(told("compile", "minilm", "--seq", 16, "--boards", 2, "-o", path, "--json"))
    shown = json.loads(told("info", path, "--json"))
    assert [of["banks"] for of in made["stages"]] == [of["banks"] for of in shown["programs"]]
    assert [of["seconds"] for of in made["stages"]] == [of["seconds"] for of in shown["stages"]]
    assert shown["stages"][1]["carried"] == 4 * 16 * 384
    assert "a model in 2 stages" in told("info", path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--boards", "x", "-o", "a.rsnmodel"], "--boards x: a number of boards, or auto"),
        (["--boards", "0", "-o", "a.rsnmodel"], "--boards 0: a number"),
        (["--shards", "2", "-o", "a.rsnmodel"], "--shards goes with --boards"),
        (["--boards", "2", "-o", "a.rsn"], "--boards writes a whole model"),
        (["--boards", "2", "-o", "a.rsnmodel", "--pieces"], "--pieces is about one board"),
    ],
)
def test_wrong_options(given: list[str], words: str) -> None:
    assert words in told("compile", "minilm", *given, code=2)
