"""Trained ONNX transformers that packages ship, end to end: onnxruntime against the module, and against the machine in
pieces. `.ci/run` installs the packages, without what they depend on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.rsnlib.captured_graph import CapturedGraph  # noqa: E402
from rsn.rsnlib.onnx_module import load_onnx  # noqa: E402
from rsn.tests.effort import full  # noqa: E402

from .onnx_architectures import by_onnxruntime  # noqa: E402

Given = dict[str, np.ndarray]
DRAW = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


FILES: dict[str, tuple[str, str, Callable[[], Given], float, float]] = {
    "a graph transformer of reactions": (
        "chython-rxnmap",
        "rxnmap.onnx",
        lambda: {
            "atoms": DRAW.integers(1, 20, (1, 24)),
            "neighbors": DRAW.integers(0, 4, (1, 24)),
            "distances": DRAW.integers(0, 5, (1, 24, 24)),
            "roles": DRAW.integers(1, 3, (1, 24)),
        },
        1e-4,
        0.99,
    ),
    "an encoder of speech, quantised": (
        "pipecat-ai",
        "smart-turn-v3.2-cpu.onnx",
        lambda: {"input_features": floats(1, 80, 800)},
        0.03,  # onnxruntime rounds between layers
        0.9,
    ),
    "a recogniser of text": ("rapidocr", "PP-OCRv6_rec_small.onnx", lambda: {"x": floats(1, 3, 48, 320)}, 1e-4, 0.05),
    "a decoder with attention": (
        "arabic-name-romanizer",
        "decoder.onnx",
        lambda: {
            "prefix": DRAW.integers(1, 20, (2, 5)),
            "memory": floats(2, 7, 256),
            "src_mask": np.arange(7) < np.array([[7], [5]]),
            "hidden": floats(2, 2, 256),
        },
        1e-4,
        0.8,
    ),
}
"""Package, file, inputs, the largest relative difference, and the least share of FLOPs on the machine."""
LARGEST = "a graph transformer of reactions"


def path_of(package: str, name: str) -> Path:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    return next(Path(str(file.locate())) for file in files if file.name == name)


def difference(got: Any, wanted: np.ndarray) -> float:
    return float(np.abs(got.numpy() - wanted).max() / np.abs(wanted).max())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [full(kind) if kind == LARGEST else kind for kind in FILES])
def test_a_trained_model(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, name, make, bound, share = FILES[kind]
    path, given = path_of(package, name), {key: torch.from_numpy(x) for key, x in make().items()}
    wanted, module = by_onnxruntime(path, given), load_onnx(path)
    inputs = tuple(given[key] for key in module.inputs)
    compiled = torch.compile(module.captured(*inputs), backend="rsn")
    torch._dynamo.reset()
    # Dividing a graph takes most of the time: what computes and what is explained share it.
    monkeypatch.setattr(CapturedGraph, "divide", cache(CapturedGraph.divide))
    with torch.no_grad():
        for computed in (module, compiled):
            results = computed(*inputs)
            assert difference(results[0] if isinstance(results, tuple) else results, wanted) <= bound
        said = rsn.explain(compiled, inputs)
    on_machine = float(str(said).partition("on the machine: ")[2].partition(" %")[0]) / 100
    assert on_machine >= share


class OnMachine:
    """An onnxruntime session whose model runs on the machine."""

    def __init__(self, path: Path) -> None:
        self.module = load_onnx(path)
        self.sizes = 0

    def run(self, _: None, feed: Given) -> list[np.ndarray]:
        inputs = tuple(torch.from_numpy(feed[name]) for name in self.module.inputs)
        self.sizes += 1
        with torch.no_grad(), rsn.compile(self.module.captured(*inputs), inputs, whole=False) as compiled:
            results = compiled(*inputs)
        return [x.numpy() for x in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_names_that_are_spelled_by_a_trained_decoder() -> None:
    folder = path_of("arabic-name-romanizer", "decoder.onnx").parent
    from arabic_name_romanizer.inference import OnnxModel

    names = ["\u0646\u0648\u0631", "\u0633\u0644\u0645"]  # short ones: each letter is a program
    model = OnnxModel(folder, beam_width=1)
    wanted = model.transliterate_units(names, None, 1)
    model.backend.decoder = OnMachine(folder / "decoder.onnx")  # the encoder is a GRU
    assert [[text for text, _ in unit] for unit in model.transliterate_units(names, None, 1)] == [
        [text for text, _ in unit] for unit in wanted
    ]
    assert wanted[0][0][0].lower().startswith("n")
    assert model.backend.decoder.sizes > 3
