"""Decoders on xnn8, with caches in DDR: prompts and steps are the integers of the model, in every bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from click.testing import CliRunner  # noqa: E402 - torch first: it may be missing

import rsn  # noqa: E402
from rsn.assembler.container import dumps, loads  # noqa: E402
from rsn.assembler.parser import parse  # noqa: E402
from rsn.assembler.printer import show  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.host import tensors  # noqa: E402
from rsn.host.generation import Decoder, IntegerReference, load, save_folder  # noqa: E402
from rsn.host.generation.slots import PromptProgram  # noqa: E402
from rsn.isa.program import Buffer, Layout, Program, Role  # noqa: E402
from rsn.isa.verify import check  # noqa: E402
from rsn.tests.effort import full, long, spread  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "initializer_range": 0.2,
}
OF_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 1, "n_head": 2, "vocab_size": 96, "initializer_range": 0.2}


def llama(**fields: Any) -> Any:
    config = transformers.LlamaConfig(**SIZES | fields, bos_token_id=0, eos_token_id=95)
    return transformers.LlamaForCausalLM(config).eval()


def gpt2(**fields: Any) -> Any:
    config = transformers.GPT2Config(**OF_GPT2 | fields, bos_token_id=0, eos_token_id=95)
    return transformers.GPT2LMHeadModel(config).eval()


def qwen3(**fields: Any) -> Any:
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES | fields)).eval()


def quantised(model: Any) -> Any:
    torchao = pytest.importorskip("torchao.quantization")
    torchao.quantize_(model, torchao.Int8DynamicActivationInt8WeightConfig())
    return model


CASES: dict[str, tuple[Callable[[], Any], int, int]] = {
    "GPT-2": (gpt2, 2, 40),
    "Llama, heads that become rows": (lambda: quantised(llama(num_hidden_layers=2)), 3, 70),
    "eight sequences, logits that pass through X": (lambda: llama(vocab_size=1100), 8, 130),
    "heads that share keys and stay heads": (lambda: qwen3(num_attention_heads=6, head_dim=24), 2, 40),
    "wide heads, with norms": (lambda: qwen3(num_attention_heads=10, num_key_value_heads=10, head_dim=128), 1, 64),
    "twelve heads, thirteen sequences": (
        lambda: qwen3(num_attention_heads=12, num_key_value_heads=12, head_dim=32),
        13,
        24,
    ),
    "large caches": (lambda: qwen3(num_attention_heads=20, num_key_value_heads=10, head_dim=64), 4, 900),
}
"""Model, slots, capacity."""


@pytest.mark.parametrize("name", spread(CASES, 2, quick=("GPT-2",)))
def test_prompts_and_steps_are_the_integers(name: str) -> None:
    """Each call is compared with the integers: logits and caches. Sequences have different lengths; some wait."""
    make, slots, capacity = CASES[name]
    torch.manual_seed(0)
    model = make()
    with Decoder(model, slots=slots, capacity=capacity, overlay="xnn8", verify="always") as decoder:
        for slot in range(min(slots, 3)):
            decoder.prefill(slot, [7 * k % 90 + slot for k in range(3 + 4 * slot)])
        for token in range(3):
            decoder.step({slot: token + slot for slot in range(min(slots, 3)) if slot != token})
        step = decoder._step.program
        assert not check(step)
        states = step.with_role(Role.STATE)
        assert {b.layout for b in states} == {Layout.SHORT}
        assert {p.name for p in step.parameters} >= {f"row[{b}]" for b in range(slots)}
    again = parse(show(step), "a.rsn")
    assert isinstance(again, Program)
    for other in (again, loads(dumps(step))):
        assert (other.packets, other.buffers) == (step.packets, step.buffers)


def test_steps_of_rsn_compile() -> None:
    """`rsn.compile` of a step writes the row of the cache that the model computes; the first call is verified."""
    torch.manual_seed(0)
    model = gpt2()
    reference = IntegerReference(model, slots=2, capacity=24)
    prompts = [[5, 9, 17], [3, 4, 5, 6]]
    for slot, prompt in enumerate(prompts):
        reference.prefill(slot, prompt)
    arguments = reference._step_arguments({0: 1, 1: 2})
    wanted = rsn.in_integers(model, arguments)
    compiled = rsn.compile(model, arguments, overlay="xnn8")
    copies = [torch.utils._pytree.tree_map(lambda x: x.clone() if hasattr(x, "clone") else x, arguments) for _ in "ab"]
    with torch.no_grad():
        got, expected = compiled(**copies[0]).logits, wanted(**copies[1]).logits
    assert torch.equal(got, expected)
    for a, b in zip(*(x["past_key_values"].layers for x in copies), strict=True):
        assert torch.equal(a.keys, b.keys)
        assert a.keys[:, :, -1].any()


@pytest.mark.long
def test_rows_of_16_bits() -> None:
    """Prompts and steps take them, and equal the integers."""
    torch.manual_seed(0)
    model, rows16 = llama(), "*.layers.*.self_attn.*"
    plain, wide = (IntegerReference(model, capacity=16, rows16=names) for names in ((), rows16))
    with Decoder(model, slots=1, capacity=16, overlay="xnn8", rows16=rows16) as decoder:
        for act in (lambda x: x.prefill(0, [5, 9, 17]), lambda x: x.step({0: 4})[0]):
            got, wanted, before = map(act, (decoder, wide, plain))
            assert np.array_equal(got, wanted)
            assert not np.array_equal(got, before)


MODEL = """
from rsn.tests import test_integer_decoding as tests
import torch

def model():
    torch.manual_seed(1)
    return tests.quantised(tests.%s(%s=2)), (torch.tensor([[17, 4, 60]]),)
"""


@pytest.mark.parametrize(("name", "layers"), [long("llama", "num_hidden_layers"), full("gpt2", "n_layer")])
def test_generated_text(name: str, layers: str, tmp_path: Path) -> None:
    """`rsn generate` gives the tokens of the integers."""
    path = tmp_path / "a.py"
    path.write_text(MODEL % (name, layers))
    options = ["--overlay", "xnn8", "--compare"]
    made = CliRunner().invoke(main, ["generate", f"{path}:model", *options])
    assert made.exit_code == 0, made.output
    tokens, compared, *_ = made.stdout.splitlines()
    count = len(tokens.split()) - 1
    assert compared == f"compared       the same {count} tokens by its integers"
    assert count == 32 or tokens.endswith(" 95")


@pytest.mark.long
def test_files(tmp_path: Path) -> None:
    """A saved decoder answers the same, and its weights have a byte each."""
    torch.manual_seed(0)
    model = llama(hidden_size=256, intermediate_size=512)
    reference = IntegerReference(model, slots=2, capacity=16)
    with Decoder(model, slots=2, capacity=16, overlay="xnn8") as decoder:
        decoder.save(tmp_path / "a.rsnmodel")
        weights = sum(4 * b.size for b in decoder._step.program.with_role(Role.WEIGHT))
    matrices = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2) + 256 * 96
    assert matrices < weights < 1.3 * matrices
    with load(tmp_path / "a.rsnmodel") as loaded:
        for slot, prompt in enumerate(([5, 6], [7, 8, 9])):
            got, wanted = (x.prefill(slot, prompt) for x in (loaded, reference))
            assert np.abs(got - wanted).max() < 1e-5 * np.abs(wanted).max()  # PyTorch has the head behind a prompt
        got, wanted = (x.step({0: 4, 1: 3}) for x in (loaded, reference))
        assert all(np.array_equal(got[slot], wanted[slot]) for slot in wanted)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (lambda: IntegerReference(gpt2(n_positions=2000), capacity=1600)._step_arguments({}), "xnn8 has up to 1536"),
        (
            lambda: IntegerReference(gpt2(), capacity=24)._example(PromptProgram(8, True)),
            "8 new rows for a cache that has others",
        ),
    ],
)
def test_what_is_refused(example: Callable[[], Any], message: str) -> None:
    with pytest.raises(rsn.errors.UnsupportedError, match=message):
        rsn.compile(gpt2(n_positions=2000), example(), overlay="xnn8")


@pytest.mark.parametrize("layout", [Layout.SHORT, Layout.LONG])
def test_rows_of_integers_off_chip(layout: Layout) -> None:
    """What the host gives is what it gets, for numbers that the integers hold."""
    random = np.random.default_rng(0)
    view, bits = (3, 5, 700), 8 if layout is Layout.SHORT else 16
    buffer = Buffer("a", "ddr", 0, (3 * 7, 704), layout, Role.STATE, view)
    values = random.integers(-(1 << bits - 1) + 1, 1 << bits - 1, view) * 2.0 ** random.integers(-9, 9, (3, 5, 1))
    for first in range(0, 700, 64):  # each block has a number of all bits
        values[..., first] = 2.0 ** (bits - 2) * 2.0 ** random.integers(10, 14, (3, 5))
    given = tensors.unpack(buffer, tensors.pack(buffer, values.astype(np.float32)))
    packed = tensors.pack(buffer, given)
    assert packed.size == buffer.size == 3 * 7 * 16 * sum(bits // 8 * n + 1 for n in (8, 3))
    assert np.array_equal(tensors.unpack(buffer, packed), given)
    spread = np.abs(given - values).max(-1) / np.abs(values).max(-1)
    assert spread.max() <= 2.0 ** (1 - bits)
    with pytest.raises(rsn.errors.TensorError, match="not finite"):
        tensors.pack(buffer, np.full(view, np.nan, np.float32))


@pytest.mark.long
def test_a_folder_becomes_a_file(tmp_path: Path) -> None:
    """As `rsn serve --generate FOLDER --overlay xnn8` has it."""
    torch.manual_seed(0)
    model = llama()
    model.save_pretrained(tmp_path / "folder")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({str(n): n for n in range(96)}, unk_token="0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "folder")
    save_folder(tmp_path / "folder", tmp_path / "x.rsnmodel", slots=1, capacity=16, chunk=16, overlay="xnn8")
    reference = IntegerReference(model, slots=1, capacity=16)
    with load(tmp_path / "x.rsnmodel") as loaded:
        assert loaded.tokenizer()("7")["input_ids"] == [7]
        for decoder in (loaded, reference):
            decoder.prefill(0, [5, 6])
        assert np.array_equal(loaded.step({0: 4})[0], reference.step({0: 4})[0])
