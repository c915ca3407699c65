"""What `rsn generate` says of models and prompts that it cannot take."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.cli.main import main

LLAMA = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def llama():
    sizes = dict(vocab_size=16, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval(), (torch.zeros(1, %d, dtype=torch.long),)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("nothing", ["--tokens", "1"], "error: nothing: neither a folder of a language model nor FILE.py:CALLABLE"),
        ("empty.py:llama", [], "error: the prompt has no tokens"),
        ("full.py:llama", ["--tokens", ""], "Error: --tokens : whole numbers and commas, such as 17,4,60"),
        ("full.py:llama", ["--prompt", "a"], "Error: --prompt: full.py:llama has no tokenizer; give --tokens"),
        ("full.py:llama", ["--tokens", "1,16", "--no-search"], "error: token 16; the vocabulary has 16"),
    ],
)
def test_models_and_prompts_that_are_refused(
    model: str, options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, tokens in (("empty", 0), ("full", 3)):
        Path(f"{name}.py").write_text(LLAMA % tokens)
    result = CliRunner().invoke(main, ["generate", model, *options])
    assert result.stderr.splitlines()[-1] == message
