"""`rsn compile -o x.rsnmodel`: a whole model, by the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.cli.main import main  # noqa: E402
from rsn.rsnlib.models import load_spec  # noqa: E402

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU()), (torch.ones(20, 64),)
"""


@pytest.mark.parametrize("options", [[], ["--lengths", "13,20"]])
def test_a_whole_model(options: list[str], tmp_path: Path) -> None:
    spec, path = (
        ["minilm", "--batch", "2", "--seq", "20"] if options else [f"{tmp_path / 'm.py'}:make"],
        tmp_path / "x.rsnmodel",
    )
    (tmp_path / "m.py").write_text(MODEL)
    ran = CliRunner().invoke(main, ["compile", *spec, *options, "-o", str(path)])
    assert not ran.exit_code, ran.output
    assert ran.output.startswith(f"{path}: ")
    model, example = load_spec(spec[0], batch=2 if options else None, seq=20 if options else None, seed=0, base=False)
    given = example if isinstance(example, dict) else dict(zip(["input"], example, strict=True))
    if "attention_mask" in given:
        given["attention_mask"][0, 13:] = 0
    with rsn.load(path) as loaded, torch.no_grad():
        got, wanted = loaded(**given), model.eval()(**given)
    if options:
        got, wanted = got[0, :13], wanted[0, :13]
    assert got.shape == wanted.shape
    assert float((got - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())


WAVES = """
import torch

class Waves(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 8)

    def forward(self, x):
        return self.last(torch.sin(self.first(x)))

def make():
    torch.manual_seed(0)
    return Waves(), (torch.ones(20, 64),)
"""


def test_a_model_in_pieces(tmp_path: Path) -> None:
    spec, path = f"{tmp_path / 'waves.py'}:make", tmp_path / "x.rsnmodel"
    (tmp_path / "waves.py").write_text(WAVES)
    refused = CliRunner().invoke(main, ["compile", spec, "-o", str(path)])
    assert refused.exit_code
    assert "; --pieces, with a whole model (.rsnmodel) as the output, runs the rest on the machine" in refused.stderr
    assert not path.exists()
    ran = CliRunner().invoke(main, ["compile", spec, "--pieces", "--explain", "-o", str(path)])
    assert not ran.exit_code, ran.output
    assert ran.output.startswith(f"{path}: 2 of 2 pieces on xnn, 2 segments, ")
    assert "in PyTorch: sin\ncut because of aten.linear.default at last: it depends on aten.sin.default" in ran.output
    assert "the model: in 2 pieces, 100.0 % of" in ran.output
    told = CliRunner().invoke(main, ["compile", spec, "--pieces", "--json", "-o", str(path)])
    assert [piece["segments"] for piece in json.loads(told.stdout)["pieces"]] == [1, 1]
    model, (x,) = load_spec(spec, batch=None, seq=None, seed=0, base=False)
    with rsn.load(path) as loaded, torch.no_grad():
        got, wanted = loaded(x), model.eval()(x)
    assert float((got - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-o", "x.rsn"], "--pieces writes a whole model (.rsnmodel)"),
        (["-o", "x.rsnmodel", "--lengths", "3,4"], "--lengths is about one program; with --pieces"),
    ],
)
def test_pieces_are_not_one_program(options: list[str], words: str) -> None:
    ran = CliRunner().invoke(main, ["compile", "minilm", "--pieces", *options])
    assert ran.exit_code == 2
    assert words in ran.output


WAVE = """
import torch

class Wave(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.sin(self.linear(x))

def make():
    return Wave(), (torch.ones(20, 64),)
"""


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [
        (".rsn", "in PyTorch, so not in this text (.rsnmodel keeps it): sin"),
        (".rsnmodel", "in PyTorch: sin"),
    ],
)
def test_what_stays_in_pytorch_is_named(suffix: str, expected: str, tmp_path: Path) -> None:
    """A program text holds the machine's part alone."""
    (tmp_path / "m.py").write_text(WAVE)
    arguments = ["compile", f"{tmp_path / 'm.py'}:make", "-o", str(tmp_path / f"x{suffix}")]
    ran = CliRunner().invoke(main, arguments)
    assert not ran.exit_code, ran.output
    assert ran.output.splitlines()[1:] == [expected]
    assert json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)["in_pytorch"] == ["sin"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--overlay", "fig6", "-o", "x.rsn"], "overlay fig6 lacks a unit with capability matmul and emit, which"),
        (["-o", "x.bin"], "x.bin: rsn compile writes .rsn or .rsnmodel; rsn asm makes a .bin of the .rsn"),
    ],
)
def test_what_no_model_is_compiled_to(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(main, ["compile", "gemm:128x64x64", *options])
    assert ran.exit_code
    assert message in ran.stderr
    assert not list(tmp_path.iterdir())
