"""What `rsn generate` says of models and prompts that it cannot take."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rsn.base.errors import WrongResultError
from rsn.cli.generate import _check_same, _in_pytorch
from rsn.cli.main import main
from rsn.rsnlib.models import load_spec

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


def test_pytorch_decodes_with_a_cache(tmp_path: Path) -> None:
    """And tells how much more probable its token is than another one."""
    torch = pytest.importorskip("torch")
    (tmp_path / "full.py").write_text(LLAMA % 3)
    model, _ = load_spec(f"{tmp_path / 'full.py'}:llama", seed=1)
    prompt = [3, 1, 4]
    tokens, ahead = _in_pytorch(model, prompt, [0] * 4, capacity=8)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens[:-1]]), use_cache=False).logits[0, 2:]
    assert tokens == logits.argmax(1).tolist()
    found = (logits.amax(1) - logits[:, 0]) / logits.abs().amax(1)
    torch.testing.assert_close(torch.tensor(ahead), found, rtol=1e-4, atol=1e-5)
    _check_same(tokens, tokens, "PyTorch", ahead)
    with pytest.raises(
        WrongResultError, match=r"token 1 of the answer is 0, in PyTorch \d+, whose .* by 0\.\d+ of the"
    ):
        _check_same([0] * 4, tokens, "PyTorch", ahead)
