"""Models of texts, from their folders to answers over HTTP, against sentence-transformers and transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")
httpx = pytest.importorskip("httpx")

from sentence_transformers import SentenceTransformer  # noqa: E402 - torch first: it may be missing
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    RobertaConfig,
    RobertaModel,
)

import rsn  # noqa: E402
from rsn.base.errors import ContainerError, TensorError  # noqa: E402
from rsn.host.serving.texts import application  # noqa: E402
from rsn.tests.effort import full, sampled  # noqa: E402
from rsn.tests.test_module import SIZES, WORDS  # noqa: E402
from rsn.text_encoder import TextEncoder  # noqa: E402

pytestmark = pytest.mark.long
LETTERS = [*WORDS, *"bcdefghijklmnopqrstuvwxyz.?"]
TEXTS = ["a cat sits on the mat", "dogs run", "the mat", "a", "dogs run while the cat sits on the mat while a cat run"]


def folder(path: Path, model: Any, *, takes_types: bool = True) -> Path:
    """A folder of a model of transformers, and a tokenizer."""
    torch.manual_seed(0)
    made = model()
    for name, weight in made.named_parameters():  # of the initial size all texts are the same
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=1.0 if "embed" in name else 0.2)
    made.eval().save_pretrained(path)
    names = ["input_ids", "attention_mask"]
    names += ["token_type_ids"] if takes_types else []
    tokenizer = BertTokenizer(vocab={word: i for i, word in enumerate(LETTERS)}, model_input_names=names)
    tokenizer.save_pretrained(path)
    return path


def bert() -> Any:
    return BertModel(BertConfig(**SIZES, max_position_embeddings=40), add_pooling_layer=False)


def roberta() -> Any:
    return RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=41, pad_token_id=0), add_pooling_layer=False)


def classifier(labels: int, **more: Any) -> Callable[[], Any]:
    return lambda: BertForSequenceClassification(
        BertConfig(**SIZES, max_position_embeddings=40, num_labels=labels, **more)
    )


def served(path: Path, route: str, body: Any) -> Any:
    """What a server of a file answers."""
    with rsn.load(path) as loaded, loaded.server(name="texts") as server:
        text = loaded.text()
        assert text is not None

        async def call() -> Any:
            transport = httpx.ASGITransport(application(server, *text))
            async with httpx.AsyncClient(transport=transport, base_url="http://rsn") as client:
                return await client.post(route, json=body)

        return asyncio.run(call()).json()


def near(got: Any, wanted: Any) -> bool:
    """The largest deviation over the largest magnitude."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    return bool(np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", sampled(["mean", "cls", "max", "weightedmean", "roberta"], ("mean", "cls"), full))
def test_a_sentence_encoder(kind: str, tmp_path: Path) -> None:
    bare = folder(tmp_path / "bare", roberta if kind == "roberta" else bert, takes_types=kind != "roberta")
    mode = "mean" if kind == "roberta" else kind
    first = Transformer(str(bare))
    parts = [first, Pooling(first.get_embedding_dimension(), mode), *[Normalize()] * (kind == "mean")]
    more = {"prompts": {"query": "the cat "}, "default_prompt_name": "query"} if kind == "cls" else {}
    wanted = SentenceTransformer(modules=parts, device="cpu", **more).eval()
    wanted.save(str(tmp_path / "whole"))
    with TextEncoder(tmp_path / "whole", batches=(2,), lengths=(16, 39)) as encoder:
        encoder.save(tmp_path / "texts.rsnmodel")
    answer = served(tmp_path / "texts.rsnmodel", "/v1/embeddings", {"input": TEXTS, "model": "texts"})
    reference = wanted.encode(TEXTS)
    assert np.abs(reference - reference[0]).max() > 0.1 * np.abs(reference).max(), "all texts are the same"
    assert near([x["embedding"] for x in answer["data"]], reference)
    assert answer["usage"]["prompt_tokens"] == sum(
        len(wanted.tokenizer(more.get("prompts", {}).get("query", "") + text)["input_ids"]) for text in TEXTS
    )
    if kind in ("mean", "cls"):  # without modules.json, the same as stated
        with TextEncoder(bare, batches=(2,), lengths=(16,), pooling=mode, normalize=kind == "mean") as stated:
            ids = stated.tokenizer("a cat sits", return_tensors="pt")
            given = {name: ids[name] for name in ("input_ids", "attention_mask")}
            assert near(stated.family(**given), wanted.encode(["a cat sits"], prompt=""))
        with pytest.raises(TensorError, match="the pooling has to be stated"):
            TextEncoder(bare)
        with pytest.raises(TensorError, match=r"those of its modules\.json"):
            TextEncoder(tmp_path / "whole", pooling="mean")


def test_a_sentence_transformer_on_the_machine(tmp_path: Path) -> None:
    first = Transformer(str(folder(tmp_path, bert)))
    wanted = SentenceTransformer(modules=[first, Pooling(first.get_embedding_dimension())], device="cpu").eval()
    found = rsn.sentence_transformer(wanted, batches=(1, 2), lengths=(16,))
    assert isinstance(found, SentenceTransformer)
    assert found[0].auto_model is not wanted[0].auto_model
    assert near(found.encode(TEXTS), wanted.encode(TEXTS))  # five texts in three runs
    before = found.encode(TEXTS)
    with torch.no_grad():
        wanted[0].auto_model.embeddings.word_embeddings.weight.mul_(0.5)
    assert near(found.encode(TEXTS), wanted.encode(TEXTS))
    assert not near(found.encode(TEXTS), before)
    with pytest.raises(TensorError):
        found.encode(["a cat " * 10])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::rsn.rsnlib.fallback.Fallback")
def test_a_classifier_in_pieces(tmp_path: Path) -> None:
    config = DebertaV2Config(
        **SIZES, max_position_embeddings=40, num_labels=1, relative_attention=True, pos_att_type=["p2c", "c2p"]
    )
    path = folder(tmp_path / "folder", lambda: DebertaV2ForSequenceClassification(config))
    with TextEncoder(path, batches=(1,), lengths=(32,)) as encoder:
        encoder.save(tmp_path / "scores.rsnmodel")
    model, tokenizer = (
        DebertaV2ForSequenceClassification.from_pretrained(path).eval(),
        BertTokenizer.from_pretrained(path),
    )
    with torch.no_grad():
        logits = model(**tokenizer([["a cat", text] for text in TEXTS], padding=True, return_tensors="pt")).logits
    answer = served(tmp_path / "scores.rsnmodel", "/v1/rerank", {"query": "a cat", "texts": TEXTS, "raw_scores": True})
    assert near([x["score"] for x in answer], logits[:, 0].sort(descending=True).values)


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier(labels: int, tmp_path: Path) -> None:
    path = folder(tmp_path / "folder", classifier(labels))
    with TextEncoder(path, batches=(1, 2), lengths=(16, 32)) as encoder:
        assert encoder.settings.has_types
        encoder.save(tmp_path / "scores.rsnmodel")
    model, tokenizer = BertForSequenceClassification.from_pretrained(path).eval(), BertTokenizer.from_pretrained(path)
    pairs = [["a cat", text] for text in TEXTS]
    with torch.no_grad():
        logits = model(**tokenizer(pairs, padding=True, return_tensors="pt")).logits.double()
    if labels == 1:
        body = {"query": "a cat", "texts": TEXTS, "raw_scores": True}
        answer = served(tmp_path / "scores.rsnmodel", "/v1/rerank", body)
        assert [x["index"] for x in answer] == logits[:, 0].argsort(descending=True).tolist()
        assert near([x["score"] for x in answer], logits[:, 0].sort(descending=True).values)
    else:
        answer = served(tmp_path / "scores.rsnmodel", "/v1/classify", {"inputs": pairs})
        shown = [{x["label"]: x["score"] for x in text} for text in answer]
        assert near([[text[f"LABEL_{i}"] for i in range(labels)] for text in shown], logits.softmax(1))
    with rsn.load(tmp_path / "scores.rsnmodel") as loaded:
        loaded._saved.encoder.settings["columns"] = 7  # type: ignore[union-attr, index]
        with pytest.raises(ContainerError, match="cannot be read"):
            loaded.text()


def test_wrong_folders(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=r"config\.json"):
        TextEncoder(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["BertForSequenceClassification"]}')
    with pytest.raises(TensorError, match="no classifier"):
        TextEncoder(tmp_path)
    with pytest.raises(TensorError, match="has no pooling"):
        TextEncoder(tmp_path, pooling="mean")
    path = folder(tmp_path / "folder", bert)
    with pytest.raises(TensorError, match="the model takes 40 tokens"):
        TextEncoder(path, pooling="mean", lengths=(64,))
    with pytest.raises(TensorError, match="no sentence encoder"):
        TextEncoder(path, pooling="middle")
