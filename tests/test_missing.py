"""What is not installed is said, with the command that installs it."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.host.cli import main
from rsn.isa import errors


@pytest.fixture(autouse=True)
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def spec(name: str) -> ModuleSpec | None:
        return None if name == "torch" else found(name)

    monkeypatch.setattr(errors, "find_spec", spec)


def test_compiling_takes_torch(tmp_path: Path) -> None:
    import rsn

    said = "compiling a model takes torch, which is not installed: pip install torch==2.13.0"
    result = CliRunner().invoke(main, ["compile", "minilm", "-o", str(tmp_path / "m.rsn")])
    assert (result.exit_code, result.stderr) == (3, f"error: {said}\n")
    for call in (rsn.compile, rsn.explain):
        with pytest.raises(ImportError, match=said):
            call(None, ())
