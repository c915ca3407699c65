"""How long the texts of real programs are, and that they assemble to the same program."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.assembler.parser import parse
from rsn.assembler.printer import show
from rsn.cli.main import main
from rsn.isa.program import Program

pytestmark = pytest.mark.long


def test_an_encoder_layer_is_read_in_one_go(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "x.rsn"
    command = f"compile bert-large-encoder --batch 6 --seq 512 --overlay xnn-base -o {path}"
    done = CliRunner().invoke(main, command.split(), catch_exceptions=False)
    assert done.exit_code == 0
    text = path.read_text(encoding="utf-8")
    program = parse(text, "x.rsn")
    assert isinstance(program, Program)
    assert len(program.packets) > 100
    assert len(text.splitlines()) < 400
    assert show(program) == text
