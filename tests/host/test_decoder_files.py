"""Decoders in files: the same tokens without the model, weights once, and files that are refused."""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

import rsn
from rsn.base.errors import BoardError, ContainerError, TensorError
from rsn.host.generation import Decoder, Generation, Sampling, load, load_decoder_stage, save_folder
from rsn.host.model.file import read
from rsn.host.own_process import call_apart
from rsn.tests.effort import full, long
from rsn.tests.fuzz import models
from rsn.tests.host.test_generation import END, alone_in_pytorch
from rsn.tests.test_generate import made

PROMPTS = [[3, 9, 4], [7 * k % END for k in range(27)], [5 * k % END for k in range(40)]]
COUNTS = [9, 6, 1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of a Llama: two slots of 40 rows, prompts in chunks of 16."""
    path = tmp_path_factory.mktemp("decoder") / "x.rsnmodel"
    with Decoder(made("Llama"), slots=2, capacity=40, chunk=16) as decoder:
        decoder.prefill(0, PROMPTS[1])
        decoder.save(path)
    return path


def texts(path: Path) -> list[list[int]]:
    with Generation(load(path)) as generation:
        streams = [generation.submit(p, Sampling(max_tokens=n)) for p, n in zip(PROMPTS, COUNTS, strict=True)]
        return [list(stream) for stream in streams]


def wanted(model: Any) -> list[list[int]]:
    return [alone_in_pytorch(model, p, n) for p, n in zip(PROMPTS, COUNTS, strict=True)]


def test_tokens_of_a_decoder_from_a_file(saved: Path) -> None:
    assert texts(saved) == wanted(made("Llama"))


@pytest.mark.parametrize("name", [full("GPT-2"), long("Gemma 3")])
def test_tokens_of_decoders_from_files(name: str, tmp_path: Path) -> None:
    with Decoder(made(name), slots=2, capacity=40, chunk=16) as decoder:
        decoder.save(tmp_path / "x.rsnmodel")
    assert texts(tmp_path / "x.rsnmodel") == wanted(made(name))


@pytest.mark.long
@pytest.mark.usefixtures("warm_processes")
def test_a_folder_becomes_a_file(tmp_path: Path) -> None:
    """With the tokenizer, and each program compared with the model."""
    words = Tokenizer(WordLevel({str(n): n for n in range(96)}, unk_token="0"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path / "folder")
    made("Llama").save_pretrained(tmp_path / "folder")
    call_apart(save_folder, tmp_path / "folder", tmp_path / "x.rsnmodel", slots=2, capacity=40, chunk=16)
    assert texts(tmp_path / "x.rsnmodel") == wanted(made("Llama"))
    assert all(part.verified for part in read(tmp_path / "x.rsnmodel").parts)
    with load(tmp_path / "x.rsnmodel") as decoder:
        assert decoder.tokenizer()("7 3 95")["input_ids"] == [7, 3, 95]
    with pytest.raises(TensorError, match="no language model of transformers"):
        call_apart(save_folder, tmp_path, tmp_path / "y.rsnmodel", slots=2, capacity=40, chunk=16)


def test_a_file_holds_the_weights_once(saved: Path) -> None:
    """All programs have one image of the bank of weights; what the host uses is not in it."""
    _, tensors = models.contents(saved)
    model = made("Llama")
    assert [name.partition("/")[0] for name in tensors].count("bank") == 1
    constants = sum(x.nbytes for name, x in tensors.items() if name.startswith("constant"))
    of_host = sum(x.weight.nbytes for x in (model.model.embed_tokens, model.lm_head))
    assert of_host <= constants < 1.5 * of_host  # with tables of positions and masks


def test_what_a_decoder_from_a_file_says(saved: Path) -> None:
    with load(saved) as decoder:
        assert (decoder.slots, decoder.capacity, decoder.chunk, decoder.vocabulary) == (2, 40, 16, 96)
        assert decoder.ends == (END,)
        assert decoder.prepare(40)
        with pytest.raises(ContainerError, match="saved without a tokenizer"):
            decoder.tokenizer()
    with pytest.raises(BoardError, match="closed"):
        decoder.prefill(0, [1])


def test_files_of_others(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="a decoder, for rsn serve --generate"):
        rsn.load(saved)
    with rsn.compile(torch.nn.Linear(8, 8).eval(), (torch.zeros(2, 8),)) as compiled:
        compiled.save(tmp_path / "linear.rsnmodel")
    with pytest.raises(ContainerError, match="no decoder"):
        load(tmp_path / "linear.rsnmodel")


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("decoder settings slots", 3, "torch.int64"),
        ("decoder settings capacity", 41, "torch.int64"),
        ("decoder settings chunk", 8, "argument"),
        ("decoder settings chunk", 1, "chunks of 1"),
        ("decoder settings layers 0 0", 3, "argument past_key_values"),
        ("decoder settings vocabulary", "96", "'96' is not a whole number"),
        ("decoder files", {"../x": "bank/0"}, "the files of a tokenizer are called"),
        ("decoder", None, ""),
        ("parts 0 host written 0", "input_ids", "another shape"),
        ("parts 0 host in_place 0 1", "aten.embedding.default", "are no new rows of arguments"),
        ("parts 0 host caches columns", {}, "have columns of"),
        ("parts 0 host caches states 0 0", "nothing", "have columns of"),
        ("parts 0 host caches rows_taken", [], "only one has masks or caches"),
        ("parts 1 host caches prompts 0 0", "nothing", "nothing"),
    ],
)
def test_each_value_of_a_description_is_checked(
    place: str, value: Any, words: str, saved: Path, tmp_path: Path
) -> None:
    said, tensors = models.contents(saved)
    *way, last = [int(step) if step.isdigit() else step for step in place.split()]
    at = functools.reduce(operator.getitem, way, said)
    at[last] = value
    models.seal(tmp_path / "x.rsnmodel", said, tensors)
    for loads in (load, functools.partial(load_decoder_stage, number=0)):
        with pytest.raises(ContainerError, match=rf"x\.rsnmodel: .*{words}"):
            loads(tmp_path / "x.rsnmodel")
