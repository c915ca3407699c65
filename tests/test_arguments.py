"""Arguments of compiled models: NumPy arrays, those that the example has not, and what pipelines ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError  # noqa: E402
from rsn.tests.effort import long  # noqa: E402

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sits",
    "on",
    "a",
    "mat",
    "dog",
    "runs",
    "in",
    "house",
    "red",
    "blue",
]
CONFIG = {
    "hidden_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": len(WORDS),
}
SHAPES = {name: {0: rsn.Batch(1, 4), 1: rsn.Length(16)} for name in ("input_ids", "token_type_ids", "attention_mask")}


def bert(name: str = "BertModel") -> Any:
    torch.manual_seed(0)
    return getattr(transformers, name)(transformers.BertConfig(**CONFIG, num_labels=3)).eval()


def tokens(batch: int = 1, length: int = 16) -> dict[str, Any]:
    """Zeros at the end are padding."""
    ids = torch.randint(5, len(WORDS), (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def compiled(model: Any) -> Any:
    return rsn.compile(model, tokens())


def family(model: Any) -> Any:
    return rsn.compile(model, tokens(), dynamic_shapes=SHAPES)


either = pytest.mark.parametrize("make", [compiled, long(family)])


@pytest.fixture(scope="module", params=[compiled, family])
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One model for tests that only call it with what it refuses."""
    with request.param(bert()) as model:
        yield model


def backwards(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x[:, ::-1])[:, ::-1]


def constant(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


WAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "plain": np.ascontiguousarray,
    "by columns": np.asfortranarray,
    "backwards": backwards,
    "of the other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "read-only": constant,
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
}


@either
def test_numpy_arrays_are_taken_for_tensors(make: Callable[[Any], Any], recwarn: pytest.WarningsRecorder) -> None:
    model = bert()
    with make(model) as made:
        for how, way in WAYS.items():
            given = {name: x.numpy() for name, x in tokens().items()}
            given["input_ids"] = way(given["input_ids"])
            with torch.no_grad():
                wanted = model(**{k: torch.tensor(np.array(x, x.dtype.newbyteorder("="))) for k, x in given.items()})
            got = made(**given)
            assert torch.allclose(got.last_hidden_state[0, :13], wanted.last_hidden_state[0, :13], atol=1e-5), how
            assert torch.equal(made(*given.values()).pooler_output, got.pooler_output)
    assert not [w for w in recwarn if "writable" in str(w.message)]


@either
def test_whole_numbers_of_fewer_bits_and_truths(make: Callable[[Any], Any]) -> None:
    """Truths where the model does nothing with a mask but make truths of it, as `generate` of transformers."""
    model, given = bert(), tokens()
    with make(model) as made:
        wanted = made(**given).last_hidden_state
        for kind in (torch.int32, torch.int16, torch.uint8):
            assert torch.equal(made(**{name: x.to(kind) for name, x in given.items()}).last_hidden_state, wanted)
        assert torch.equal(made(**given | {"attention_mask": given["attention_mask"].bool()}).last_hidden_state, wanted)


class Counts(torch.nn.Module):
    """Numbers that are more than truths, and an argument among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any, count: Any, returned: Any) -> Any:
        return self.layer(x) * (2 - count)[..., None], returned


def test_other_types_are_refused() -> None:
    given = {"x": torch.randn(2, 3, 4), "count": torch.ones(2, 3).long(), "returned": torch.ones(2).long()}
    with rsn.compile(Counts().eval(), given) as made:
        made(**given | {"count": given["count"].int()})
        for name, kind in (("count", torch.bool), ("count", torch.float32), ("returned", torch.int32)):
            with pytest.raises(TensorError, match=f"argument {name} is {kind} .* the module was traced with"):
                made(**given | {name: given[name].to(kind)})


def test_a_family_cuts_and_fills_numpy_arrays() -> None:
    model, given = bert(), tokens(3, 11)
    with family(model) as made, torch.no_grad():
        got = made(**{name: x.numpy() for name, x in given.items()}).last_hidden_state
        wanted = model(**given).last_hidden_state
    assert got.shape == (3, 11, 128)
    assert torch.allclose(got[:2], wanted[:2], atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_ids": np.zeros((1, 16))}, r"argument input_ids is torch.float64 \(1, 16\)"),
        ({"input_ids": np.ma.zeros((1, 16), np.int64)}, "argument input_ids is a masked array"),
        (
            {"input_ids": np.full((1, 16), "x")},
            "argument input_ids is a NumPy array of <U1, a type that PyTorch does not have",
        ),
        ({"input_ids": np.full((1, 16), None)}, "argument input_ids is a NumPy array of object"),
        (
            {"output_attentions": True},
            "unexpected argument output_attentions: the example has input_ids, attention_mask",
        ),
        ({"inputs_ids": torch.zeros(1, 16)}, "unexpected argument inputs_ids: the example has input_ids, "),
    ],
)
def test_what_does_not_fit_is_named(made: Any, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorError, match=message):
        made(**tokens() | changed)


def test_what_is_missing_is_named() -> None:
    given = tokens()
    del given["token_type_ids"]
    with compiled(bert()) as made:
        with pytest.raises(TensorError, match="argument token_type_ids is missing; the example has input_ids, "):
            made(**given)
        with pytest.raises(TensorError, match=r"argument attention_mask \(tuple\) has another structure"):
            made(**tokens() | {"attention_mask": (torch.ones(1, 16), torch.ones(1, 16))})


@either
def test_what_pipelines_ask_for(make: Callable[[Any], Any]) -> None:
    model = bert()
    with make(model) as made:
        assert made.device == torch.device("cpu")
        assert made.config is model.config
        assert torch.equal(made.forward(**tokens()).pooler_output, made(**tokens()).pooler_output)
    with rsn.compile(torch.nn.Linear(128, 128).eval(), (torch.zeros(1, 16, 128),)) as plain:
        assert not hasattr(plain, "config")


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("feature-extraction", "BertModel"),
        long("text-classification", "BertForSequenceClassification"),
        long("token-classification", "BertForTokenClassification"),
        long("fill-mask", "BertForMaskedLM"),
    ],
)
def test_pipelines(task: str, name: str) -> None:
    tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})
    model = bert(name)
    texts = ["the cat sits on a [MASK]", "a [MASK] runs in the red house"]
    with family(model) as made:
        found = [transformers.pipeline(task, model=m, tokenizer=tokenizer)(texts) for m in (made, model)]
    got, wanted = (list(flat(result)) for result in found)
    assert len(got) == len(wanted) > 1
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours == (pytest.approx(theirs, abs=1e-5) if isinstance(theirs, float | np.floating) else theirs)


def flat(result: Any) -> Any:
    """Numbers and words of nested lists and dicts."""
    if isinstance(result, list | dict):
        for part in result.values() if isinstance(result, dict) else result:
            yield from flat(part)
    else:
        yield result
