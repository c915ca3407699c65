"""Text of generated tokens, with real tokenizers that are made in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from rsn.host.generation.text import UNFINISHED, TextPieces
from rsn.tests.effort import examples

SENTENCES = [
    "the cat sits on the mat",
    "naïve café, größer 猫 座る",
    "emoji 🙂🙃 and 👩‍👩‍👧",
    "a  b   c\n\nd\te",
    "it's what they don't say: \"no\", we're (not) sure... I've 3.5 and 1,000!",
] * 3
WORDS = [*" ".join(SENTENCES[:5]).split(" "), "  ", "\n", " '", "n't", '"']
ENDS = ["<s>", "</s>", "<|im_end|>", "<unk>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def made(kind: str) -> Any:
    """A tokenizer of a kind, trained on a few sentences."""
    more: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<|im_end|>"]}
    if kind.startswith("bytes"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "bytes behind a space")
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=320, special_tokens=ENDS, initial_alphabet=alphabet)
        tokenizer.train_from_iterator(SENTENCES, trainer)
    elif kind.startswith("words"):
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        if is_clean := kind == "words as BERT has them":
            tokenizer.normalizer = normalizers.BertNormalizer()
            tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(cleanup=is_clean)
        more["clean_up_tokenization_spaces"] = is_clean
        tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=ENDS))
    elif kind == "numbers":  # without a decoder, as in docs/generation.md
        tokenizer = Tokenizer(models.WordLevel({str(n): n for n in range(96)}, unk_token="0"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        more = {"eos_token": "95"}
    else:
        if kind == "pieces as Llama 2 has them":
            tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
            trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=ENDS + BYTES)
            tokenizer.train_from_iterator(SENTENCES, trainer)
            kept = json.loads(tokenizer.to_str())
            kept["added_tokens"] = [x for x in kept["added_tokens"] if x["content"] in ENDS]
            tokenizer = Tokenizer.from_str(json.dumps(kept))
        else:
            pieces = [(x, -9.0) for x in BYTES]
            pieces += [(x, -3.0) for x in ("▁", "▁the", "▁cat", "a", "t", "s", "▁a", "▁b", "é", "猫")]
            vocabulary = [(x, 0.0) for x in ENDS] + pieces
            tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3, byte_fallback=True))
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **more)


KINDS = (
    "bytes", "bytes behind a space", "words", "words as BERT has them", "pieces", "pieces as Llama 2 has them",
    "numbers",
)  # fmt: skip
TOKENIZERS = {kind: made(kind) for kind in KINDS}


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
@examples(1000, 60)
def test_prompt_and_text_have_the_tokens_again(kind: str, data: st.DataObject) -> None:
    """Of a prompt that has its tokens again, and of tokens that any text has."""
    tokenizer = TOKENIZERS[kind]
    words = [str(n) for n in range(1, 95)] if kind == "numbers" else WORDS
    text = " ".join(data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=40)))
    tokens = tokenizer(text)["input_ids"]
    cut = data.draw(st.integers(1, max(1, len(tokens))))
    prompt, whole = (text_of(tokenizer, some) for some in (tokens[:cut], tokens))
    assume(tokenizer(prompt)["input_ids"] == tokens[:cut])
    assume(tokenizer(whole)["input_ids"] == tokens)
    answer = "".join(streamed(TextPieces(tokenizer, (), tokens[:cut]), tokens[cut:]))
    assert tokenizer(prompt + answer)["input_ids"] == tokens


def text_of(tokenizer: Any, tokens: list[int]) -> str:
    found: str = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return found


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(data=st.data())
@examples(1000, 60)
def test_pieces_are_the_text_behind_the_prompt(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    text = data.draw(st.sampled_from(SENTENCES) | st.text(min_size=1, max_size=20))
    tokens = tokenizer(text)["input_ids"]
    tokens += data.draw(st.lists(st.integers(4, len(tokenizer) - 1), max_size=6))
    cut = data.draw(st.integers(0, len(tokens)))
    prompt, answer = tokens[:cut], tokens[cut:]
    whole = text_of(tokenizer, tokens)
    before = text_of(tokenizer, prompt).rstrip(UNFINISHED)
    pieces = streamed(TextPieces(tokenizer, (), prompt), answer)
    if whole.startswith(before) and UNFINISHED not in whole:
        assert before + "".join(pieces) == whole
    assert UNFINISHED not in "".join(pieces[:-1]) or UNFINISHED in whole
    # a stop string of the answer: the text is cut in front of the first one, and nothing behind it was given
    expected = "".join(pieces)
    if expected:
        first = data.draw(st.integers(0, len(expected) - 1))
        stops = [expected[first : first + data.draw(st.integers(1, 5))], "never in there"]
        # the text of a special token may have it, or divide it: the tests below
        assume(not set(answer) & set(tokenizer.all_special_ids))
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
