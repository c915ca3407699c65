"""g++ and clang have nothing to say about the C++ sources, with warnings of conversions and shadowing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rsn.hw.versal.csim import lint as linter
from rsn.hw.versal.csim.build import MACHINES
from rsn.hw.versal.sources import sources

MISTAKES = ["unsigned char f(unsigned x) { return x; }", "int f(int x) { { int x = 2; } return x; }"]


def require(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}: {linter.INSTALL_HINT}")


@pytest.mark.long
def test_the_sources() -> None:
    """By the second compiler; `make lint-cxx` has both."""
    require("clang++")
    assert linter.lint("clang++") == ""


def test_all_sources_are_there() -> None:
    folders = ("pl", "aie", "csim", "xnn2", "xnn8")
    versal = sources()
    assert {p for m in MACHINES for p in linter.files(m, versal)} == {
        p for f in folders for s in ("cpp", "cc") for p in (versal / f).rglob(f"*.{s}")
    }


@pytest.mark.parametrize("code", MISTAKES)
@pytest.mark.parametrize("compiler", linter.COMPILERS)
def test_a_mistake(compiler: str, code: str, tmp_path: Path) -> None:
    require(compiler)
    (tmp_path / "pl").mkdir()
    (tmp_path / "pl/a.cpp").write_text(code, encoding="utf-8")
    assert "a.cpp:1:" in linter.lint(compiler, tmp_path)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(linter, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(SystemExit, match="1"):
        linter.main()
    assert capsys.readouterr().out == f"wrong  no-such-compiler\nnot installed ({linter.INSTALL_HINT})\n"
