"""Text of generated tokens, with real tokenizers that are made in memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rsn.host.generation.text import UNFINISHED, TextPieces
from rsn.tests.effort import examples

SENTENCES = ["the cat sits on the mat", "naïve café, größer 猫 座る", "emoji 🙂🙃 and 👩‍👩‍👧", "a  b   c\n\nd\te"] * 3
ENDS = ["<s>", "</s>", "<|im_end|>", "<unk>"]


def made(kind: str) -> Any:
    """A tokenizer of a kind, trained on a few sentences."""
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=320, special_tokens=ENDS, initial_alphabet=alphabet)
        tokenizer.train_from_iterator(SENTENCES, trainer)
    elif kind == "words":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece(cleanup=False)
        tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=150, special_tokens=ENDS))
    else:
        pieces = [(f"<0x{byte:02X}>", -9.0) for byte in range(256)]
        pieces += [(x, -3.0) for x in ("▁", "▁the", "▁cat", "a", "t", "s", "▁a", "▁b", "é", "猫")]
        vocabulary = [(x, 0.0) for x in ENDS] + pieces
        tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", additional_special_tokens=["<|im_end|>"]
    )


TOKENIZERS = {kind: made(kind) for kind in ("bytes", "words", "pieces")}


def streamed(pieces: TextPieces, tokens: list[int]) -> list[str]:
    """The pieces of an answer, up to a stop string."""
    out = []
    for token in tokens:
        out.append(pieces.add(token))
        if pieces.is_stopped:
            return out
    return [*out, pieces.rest()]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@examples(2000, 150)
def test_pieces_are_the_text_behind_the_prompt(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    text = data.draw(st.sampled_from(SENTENCES) | st.text(min_size=1, max_size=20))
    tokens = tokenizer(text)["input_ids"]
    tokens += data.draw(st.lists(st.integers(4, len(tokenizer) - 1), max_size=6))
    cut = data.draw(st.integers(0, len(tokens)))
    prompt, answer = tokens[:cut], tokens[cut:]
    whole = tokenizer.decode(tokens, skip_special_tokens=True)
    before = tokenizer.decode(prompt, skip_special_tokens=True).rstrip(UNFINISHED)
    pieces = streamed(TextPieces(tokenizer, (), prompt), answer)
    if whole.startswith(before) and UNFINISHED not in whole:
        assert before + "".join(pieces) == whole
    assert UNFINISHED not in "".join(pieces[:-1]) or UNFINISHED in whole
    # a stop string of the answer: the text is cut in front of the first one, and nothing behind it was given
    expected = "".join(pieces)
    if expected:
        first = data.draw(st.integers(0, len(expected) - 1))
        stops = [expected[first : first + data.draw(st.integers(1, 5))], "never in there"]
        found = "".join(streamed(TextPieces(tokenizer, stops, prompt), answer))
        assert found == expected[: expected.index(stops[0])]


def test_a_leading_space_is_kept() -> None:
    tokenizer = TOKENIZERS["pieces"]
    prompt, answer = tokenizer("the cat")["input_ids"], tokenizer("the cat")["input_ids"]
    assert tokenizer.decode(answer) == "the cat"
    assert "".join(streamed(TextPieces(tokenizer, (), prompt), answer)) == " the cat"


def test_a_character_that_begins_in_the_prompt() -> None:
    tokenizer = TOKENIZERS["bytes"]
    tokens = tokenizer("x🙃")["input_ids"]
    pieces = streamed(TextPieces(tokenizer, (), tokens[:-1]), tokens[-1:])
    assert "".join(pieces) == "🙃"


def test_a_stop_string_in_the_text_of_a_special_token() -> None:
    tokenizer = TOKENIZERS["bytes"]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    answer = [*tokenizer("the cat")["input_ids"], end, *tokenizer(" sits")["input_ids"]]
    for stop in ("<|im_end|>", "im_end", "cat<|", "|> s"):
        pieces = TextPieces(tokenizer, [stop])
        expected = "the " if stop == "cat<|" else "the cat"
        assert "".join(streamed(pieces, answer)) == expected, stop
        assert pieces.is_stopped, stop
    assert "".join(streamed(TextPieces(tokenizer), answer)) == "the cat sits"


def test_no_stop_string_begins_in_the_prompt() -> None:
    tokenizer = TOKENIZERS["bytes"]
    pieces = TextPieces(tokenizer, ["cat sits"], tokenizer("the cat")["input_ids"])
    assert "".join(streamed(pieces, tokenizer(" sits on")["input_ids"])) == " sits on"


def test_what_may_begin_a_stop_string_is_held_back() -> None:
    tokenizer = TOKENIZERS["bytes"]
    pieces = TextPieces(tokenizer, ["on the roof", "the dog"])
    given = ""
    for token in tokenizer("sits on the mat")["input_ids"]:
        given += pieces.add(token)
        assert not given.endswith(("on", "on ", "on t", "on th", "on the", "on the "))
    assert given + pieces.rest() == "sits on the mat"
