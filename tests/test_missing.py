"""What is not installed is said, with the command that installs it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.base import errors
from rsn.cli.main import main

Without = Callable[[str], None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Without:
    """without(package): as if it were not installed."""
    find = importlib.util.find_spec

    def hide(package: str) -> None:
        def spec(name: str) -> ModuleSpec | None:
            return None if name == package else find(name)

        monkeypatch.setattr(errors, "find_spec", spec)
        for loaded in [name for name in sys.modules if name.startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, package, None)  # importing it raises ImportError

    return hide


def test_compiling_takes_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rsn

    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    said = "compiling a model takes torch, which is not installed: pip install torch==2.13.0"
    result = CliRunner().invoke(main, ["compile", "minilm", "-o", str(tmp_path / "m.rsn")])
    assert (result.exit_code, result.stderr) == (3, f"error: {said}\n")
    for call in (rsn.compile, rsn.explain):
        with pytest.raises(ImportError, match=said):
            call(None, ())


def test_models_from_onnx_take_onnx(tmp_path: Path, without: Without) -> None:
    pytest.importorskip("torch")
    without("onnx")
    result = CliRunner().invoke(main, ["compile", "model.onnx", "-o", str(tmp_path / "m.rsn")])
    said = "model.onnx: a model from ONNX takes onnx, which is not installed: pip install onnx"
    assert (result.exit_code, result.stderr) == (3, f"error: {said}\n")


def test_the_sentence_encoder_takes_transformers(without: Without) -> None:
    pytest.importorskip("torch")
    from rsn.programs.minilm import load

    without("transformers")
    said = "the sentence encoder takes transformers, which is not installed: pip install transformers"
    with pytest.raises(errors.MissingError, match=said):
        load(Path())


@pytest.mark.parametrize(
    ("module", "package", "said"),
    [
        (
            "rsn.host.serving.metrics",
            "prometheus_client",
            r"metrics of a runner need prometheus_client, .*: pip install prometheus-client \(the extra serve\)",
        ),
        (
            "rsn.host.serving.core",
            "starlette",
            "serving over HTTP takes starlette, which is not installed: pip install starlette uvicorn",
        ),
        (
            "rsn.host.replicas.on_ray",
            "ray",
            "boards on Ray take ray, which is not installed: pip install ray",
        ),
        (
            "rsn.rsnlib.quantizer",
            "torchao",
            r"rsn\.StreamQuantizer takes torchao, which is not installed: pip install 'torchao>=0\.18,<0\.19'",
        ),
    ],
)
def test_extras(module: str, package: str, said: str, without: Without, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    without(package)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(errors.MissingError, match=said) as raised:
        importlib.import_module(module)
    assert raised.value.exit_code == 3
