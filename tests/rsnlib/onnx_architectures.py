"""Small transformers of many architectures as ONNX files: by both exporters of PyTorch, for several opsets, and after
onnxruntime's optimizer. Each is computed by onnxruntime, by the imported module, and on the machine.

    python -m rsn.tests.rsnlib.onnx_architectures --opset 18 --family bert --show
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import logging
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import rsn
from rsn.base.errors import RsnError
from rsn.rsnlib.onnx_module import load_onnx

Given = dict[str, torch.Tensor]
EXPORTERS = ("torchscript", "dynamo")
OPSETS = (17, 18, 20, 23)
OPTIMISED = ("as exported", "by onnxruntime", "by its transformer optimizer")
BOUND = 1e-5
ROWS = 20
TYPES = {"bert": "bert", "roberta": "bert", "distilbert": "bert", "albert": "bert", "gpt2": "gpt2", "vit": "vit"}
"""What onnxruntime's transformer optimizer calls a model; it has no others of these."""


class Encoder(nn.Module):
    """A model of transformers as a function of its inputs by position, which returns its last hidden state."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        given: dict[str, Any] = dict(zip(self.names, args, strict=True))
        if "use_cache" in inspect.signature(self.model.forward).parameters:
            given["use_cache"] = False
        made: torch.Tensor = self.model(**given)[0]
        return made


def text(name: str, **more: Any) -> Callable[[], tuple[nn.Module, Given]]:
    """A model that takes tokens and a mask of padding on the right."""

    def make() -> tuple[nn.Module, Given]:
        import transformers

        sizes = {"vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = getattr(transformers, f"{name}Config")(**{**sizes, "intermediate_size": 96, **more})
        lengths = torch.tensor([[ROWS], [13]])
        given = {
            "input_ids": torch.randint(5, 80, (2, ROWS)),
            "attention_mask": (torch.arange(ROWS) < lengths).long(),
        }
        cls = getattr(transformers, f"{name}EncoderModel", None) or getattr(transformers, f"{name}Model")
        return cls(config), given

    return make


def picture(name: str, **more: Any) -> Callable[[], tuple[nn.Module, Given]]:
    """A model that takes pictures."""

    def make() -> tuple[nn.Module, Given]:
        import transformers

        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
        config = getattr(transformers, f"{name}Config")(**{**sizes, "image_size": 32, "patch_size": 8, **more})
        return getattr(transformers, f"{name}Model")(config), {"pixel_values": torch.randn(2, 3, 32, 32)}

    return make


FAMILIES: dict[str, Callable[[], tuple[nn.Module, Given]]] = {
    "bert": text("Bert"),
    "roberta": text("Roberta"),
    "distilbert": text("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=96),
    "albert": text("Albert", embedding_size=32),
    "mpnet": text("MPNet"),
    "gpt2": text("GPT2", n_embd=64, n_layer=2, n_head=4),
    "opt": text("OPT", ffn_dim=96, word_embed_proj_dim=64),
    "gpt_neox": text("GPTNeoX"),
    "llama": text("Llama", num_key_value_heads=2),
    "qwen3": text("Qwen3", num_key_value_heads=2, head_dim=16),
    "gemma": text("Gemma", num_key_value_heads=1, head_dim=16),
    "mistral": text("Mistral", num_key_value_heads=2, sliding_window=8),
    "t5": text("T5", d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4),
    "vit": picture("ViT"),
    "clip": picture("CLIPVision"),
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters print, log and warn of."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def exported(path: Path, family: str, exporter: str, opset: int) -> Given:
    """Write a file; return inputs."""
    torch.manual_seed(0)
    model, given = FAMILIES[family]()
    axes = {name: {0: "batch", 1: "sequence"} if x.ndim == 2 else {0: "batch"} for name, x in given.items()}
    with quiet(), torch.no_grad():
        torch.onnx.export(
            Encoder(model, list(given)).eval(),
            tuple(given.values()),
            str(path),
            dynamo=exporter == "dynamo",
            input_names=list(given),
            opset_version=opset,
            verbose=False,
            **({} if exporter == "dynamo" else {"dynamic_axes": axes}),
        )
    return given


def optimised(path: Path, family: str, how: str) -> Path:
    """The same file after an optimizer."""
    out = path.with_suffix(f".{OPTIMISED.index(how)}.onnx")
    with quiet():
        if how == OPTIMISED[1]:
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.optimized_model_filepath = str(out)
            options.log_severity_level = 4
            options.intra_op_num_threads = 1  # a process for each core already
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        else:
            from onnxruntime.transformers.optimizer import optimize_model

            made = optimize_model(str(path), TYPES.get(family, "bert"), num_heads=4, hidden_size=64)
            made.save_model_to_file(str(out))
    return out


def quantised(path: Path, how: str, given: Given) -> Path:
    """The same file quantised by onnxruntime. how: "dynamic", "QDQ" or "QOperator"."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

    class Once(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{name: x.numpy() for name, x in given.items()}]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    out = path.with_suffix(f".{how}.onnx")
    with quiet():
        if how == "dynamic":
            quantize_dynamic(str(path), str(out))
        else:
            quantize_static(str(path), str(out), Once(), quant_format=QuantFormat[how])
    return out


def by_onnxruntime(path: Path, given: Given) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # a process for each core already
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = {x.name for x in session.get_inputs()}
    result: np.ndarray = session.run(None, {name: x.numpy() for name, x in given.items() if name in known})[0]
    return result


def difference(got: torch.Tensor, wanted: np.ndarray, given: Given) -> float:
    """The largest one among rows that are no padding, relative to the largest magnitude."""
    expected = torch.from_numpy(wanted)
    if got.shape != expected.shape:
        return float("inf")
    if "attention_mask" in given:
        shown = given["attention_mask"][..., None]
        got, expected = got * shown, expected * shown
    worst = float((got - expected).abs().max() / expected.abs().max())
    return worst if worst == worst else float("inf")


def outcome(path: Path, given: Given, overlay: str = "xnn") -> str:
    """ "right", "refused: " with the reason, or what is wrong."""
    wanted = by_onnxruntime(path, given)
    try:
        module = load_onnx(path)
        given = {name: x for name, x in given.items() if name in module.inputs}
        with torch.no_grad():
            worst = difference(module(**given), wanted, given)
            if worst > BOUND:
                return f"wrong, the module: {worst:.1e}"
            with rsn.compile(module, given, overlay=overlay) as compiled:
                worst = difference(compiled(**given), wanted, given)
    except RsnError as error:
        return "refused: " + re.sub(r"^\S+\.onnx: ", "", str(error))
    except Exception as error:
        return f"wrong: {type(error).__name__} {str(error)[:200]}"
    return "right" if worst <= BOUND else f"wrong: {worst:.1e}"


def tried(family: str, exporter: str, opset: int) -> list[tuple[str, str]]:
    """What each form of a file gives: its name, and the outcome."""
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        name = f"{family}, {exporter}, opset {opset}"
        try:
            given = exported(path, family, exporter, opset)
        except Exception as error:
            return [(name, f"not exported: {type(error).__name__}")]
        for how in OPTIMISED if opset <= 20 else OPTIMISED[:2]:
            if how == OPTIMISED[2] and family not in TYPES:
                continue
            try:
                made = path if how == OPTIMISED[0] else optimised(path, family, how)
                by_onnxruntime(made, given)
            except Exception as error:
                found.append((f"{name}, {how}", f"not by onnxruntime: {type(error).__name__}"))
                continue
            found.append((f"{name}, {how}", outcome(made, given)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, nargs="*", default=list(FAMILIES))
    parser.add_argument("--exporter", choices=EXPORTERS, nargs="*", default=EXPORTERS)
    parser.add_argument("--opset", type=int, nargs="*", default=OPSETS)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--show", action="store_true", help="each file, not only what is not right")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(given.processes) as pool:
        todo = [pool.submit(tried, f, e, o) for f in given.family for e in given.exporter for o in given.opset]
        for one in todo:
            for name, result in one.result():
                counts[result.partition(":")[0]] += 1
                if given.show or result != "right":
                    print(f"{name:60} {result[:300]}", flush=True)
    print(*(f"{count} {what}" for what, count in counts.most_common()), sep=", ")


if __name__ == "__main__":
    main()
