"""ONNX models, written by both of PyTorch's exporters and by hand, against onnxruntime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from click.testing import CliRunner
from torch import nn

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import rsn  # noqa: E402 - onnx first: it may be missing
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.rsnlib.onnx_module import load_onnx  # noqa: E402
from rsn.tests.effort import sampled  # noqa: E402

EXPORTERS = [True, False]


def exported(path: Path, model: nn.Module, given: dict[str, torch.Tensor], dynamo: bool) -> Path:
    more: dict[str, Any] = {"opset_version": 18}
    if not dynamo:
        more = {"opset_version": 17, "dynamic_axes": {name: {0: "batch", 1: "seq"} for name in given}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, tuple(given.values()), str(path), dynamo=dynamo, input_names=list(given), verbose=False, **more
        )
    return path


def by_onnxruntime(path: Path, given: dict[str, torch.Tensor]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path))
    result: np.ndarray = session.run(None, {name: x.numpy() for name, x in given.items()})[0]
    return result


def close(got: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max())


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 128}
        self.bert = BertModel(BertConfig(vocab_size=100, **sizes))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


@pytest.mark.long
@pytest.mark.parametrize("dynamo", sampled(EXPORTERS, quick=[True]))
def test_bert_with_a_mask(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    mask = (torch.arange(20) < torch.tensor([[20], [13]])).long()
    given = {"input_ids": torch.randint(5, 90, (2, 20)), "attention_mask": mask}
    path = exported(tmp_path / "bert.onnx", Bert().eval(), given, dynamo)
    wanted = by_onnxruntime(path, given)
    with rsn.compile(load_onnx(path).eval(), tuple(given.values())) as compiled:
        got = compiled(*given.values()).numpy()
    assert close(got[0], wanted[0])
    assert close(got[1, :13], wanted[1, :13])


class Block(nn.Module):
    """Pre-norm, causal, with a quick GELU, queries, keys and values in one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(48, 144), nn.Linear(48, 48)
        self.up, self.down = nn.Linear(48, 80), nn.Linear(80, 48)
        self.n1, self.n2 = nn.LayerNorm(48), nn.LayerNorm(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (t.view(b, n, 3, 16).transpose(1, 2) for t in self.qkv(self.n1(x)).split(c, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, c))
        y = self.up(self.n2(x))
        return x + self.down(y * torch.sigmoid(1.702 * y))


@pytest.mark.long
@pytest.mark.parametrize("dynamo", EXPORTERS)
def test_a_causal_block(tmp_path: Path, dynamo: bool) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(2, 30, 48)}
    path = exported(tmp_path / "block.onnx", nn.Sequential(Block(), Block()).eval(), given, dynamo)
    with rsn.compile(load_onnx(path).eval(), tuple(given.values())) as compiled:
        assert close(compiled(given["x"]).numpy(), by_onnxruntime(path, given))


def test_the_command_line(tmp_path: Path) -> None:
    """Sizes that a model leaves open are those asked for."""
    torch.manual_seed(0)
    given = {"x": torch.randn(2, 30, 48)}
    path = exported(tmp_path / "block.onnx", nn.Sequential(Block()).eval(), given, dynamo=False)
    text, weights = str(tmp_path / "b.rsn"), str(tmp_path / "b.safetensors")
    made = CliRunner().invoke(
        main, ["compile", str(path), "--batch", "3", "--seq", "40", "-o", text, "--weights", weights]
    )
    assert made.exit_code == 0, made.output
    assert "view 3x40x48" in Path(text).read_text(encoding="utf-8")


def model_of(node: Any, opset: int = 18) -> Any:
    x = onnx.helper.make_tensor_value_info("x", 1, [2, 3])
    y = onnx.helper.make_tensor_value_info("y", 1, [2, 3])
    return onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [x], [y]), opset_imports=[onnx.helper.make_opsetid("", opset)]
    )


@pytest.mark.parametrize(
    ("model", "complaint"),
    [
        (model_of(onnx.helper.make_node("Det", ["x"], ["y"], name="d")), "Det d: this operator is not supported"),
        (model_of(onnx.helper.make_node("Relu", ["x"], ["y"]), 6), "opset 6 is too old; opsets from 7 on"),
        (model_of(onnx.helper.make_node("Relu", ["z"], ["y"])), "not an ONNX model: "),
    ],
    ids=["operator", "opset", "invalid"],
)
def test_what_is_refused(tmp_path: Path, model: Any, complaint: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=complaint) as refused:
        load_onnx(path)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize("data", [b"", b"no model", b"\xff" * 100])
def test_what_is_no_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match="not an ONNX model"):
        load_onnx(path)
    with pytest.raises(UnsupportedError, match=r"missing\.onnx: no such file"):
        load_onnx(tmp_path / "missing.onnx")
