"""What quantisation costs, and what the machine adds: by `rsn.quality`, by `compare`, and by the command line."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
pytest.importorskip("torchao")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import RsnError, TensorError, UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.host.model.compare import ComparedModel  # noqa: E402
from rsn.rsnlib.quality import NO_TOKEN  # noqa: E402
from rsn.tests.rsnlib.quantised_models import CONFIGS, MODELS, quantize_  # noqa: E402

CONFIG = "only int4 weights"
COLUMNS = ["difference by", "rows", "worst cosine", "mean cosine", "Spearman of pairs", "largest difference"]


def rows(*numbers: list[float]) -> Any:
    """A model that returns these rows, whatever it is given."""
    return lambda x: torch.tensor(numbers)


def pair(name: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """A model in float32, the same with int4 weights, and arguments."""
    torch.manual_seed(0)
    make, given = MODELS[name]
    reference, arguments = make().eval(), given()
    model = copy.deepcopy(reference)
    quantize_(model, CONFIGS[CONFIG]())
    return reference, model, arguments


# -- the numbers


def test_rows_beside_those_of_a_reference() -> None:
    """Cosines, rank correlation and difference are those that NumPy and SciPy compute of the rows themselves."""
    one, other = torch.randn(7, 5), torch.randn(7, 5)
    found = rsn.quality(lambda x: one[x], lambda x: other[x], [(slice(0, 4),), (slice(4, 7),)])
    a, b = (np.array([r / np.linalg.norm(r) for r in x.double().numpy()]) for x in (one, other))
    cosines = [float(x @ y) for x, y in zip(a, b, strict=True)]
    assert found.rows == 7
    assert (found.worst, found.mean) == pytest.approx((min(cosines), sum(cosines) / 7), abs=1e-12)
    pairs = [(i, j) for i in range(7) for j in range(i)]
    ranks = spearmanr(*([x[i] @ x[j] for i, j in pairs] for x in (a, b))).statistic
    assert found.spearman == pytest.approx(ranks, abs=1e-12)
    assert found.largest == pytest.approx(float((one - other).abs().max() / other.abs().max()), rel=1e-6)
    assert found.perplexity is found.of_reference is None


def test_two_rows_have_no_order_of_pairs() -> None:
    found = rsn.quality(rows([1, 0], [0, 2]), rows([1, 1], [0, 1]), [(0,)])
    assert found.spearman is None
    assert (found.worst, found.mean, found.largest) == pytest.approx((0.5**0.5, (1 + 0.5**0.5) / 2, 1.0))


def test_equal_rows_have_no_order_of_pairs() -> None:
    found = rsn.quality(rows([1, 0], [1, 0], [1, 0]), rows([1, 0], [0, 1], [1, 1]), [(0,)])
    assert found.spearman is None


def test_perplexity_is_of_the_tokens_that_follow() -> None:
    """By hand: probabilities of a half, a quarter and an eighth for the next tokens; padding is not counted."""
    share = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.125, 0.75, 0.125], [1, 1, 1]]]).log()
    tokens = torch.tensor([[2, 0, 2, 0]])
    even = torch.zeros(1, 4, 3)
    found = rsn.quality(lambda x: share, lambda x: even, [(0,)], perplexity_of=[tokens])
    assert found.perplexity == pytest.approx((2 * 4 * 8) ** (1 / 3))
    assert found.of_reference == pytest.approx(3)
    assert found.spearman is None
    padded = torch.tensor([[2, 0, NO_TOKEN, NO_TOKEN]])
    assert rsn.quality(lambda x: share, lambda x: even, [(0,)], perplexity_of=[padded]).perplexity == pytest.approx(2)


LOGITS = torch.zeros(1, 3, 4)


@pytest.mark.parametrize(
    ("result", "reference", "tokens", "said"),
    [
        (
            torch.ones(2, 3),
            torch.ones(2, 4),
            None,
            r"^results of shape \(2, 3\); those of the reference have \(2, 4\)$",
        ),
        (torch.ones(0, 3), torch.ones(0, 3), None, "^no rows to compare$"),
        (torch.tensor([[1, math.nan]]), torch.ones(1, 2), None, "^a result is not finite$"),
        (3, torch.ones(1, 2), None, "^a model returns int without rows to compare$"),
        (LOGITS, LOGITS, [], "^tokens of 0 batches; there are 1$"),
        (LOGITS, LOGITS, [torch.zeros(1, 4, dtype=torch.long)], r"\(1, 4\); the results are \(1, 3, 4\): a perplexity"),
        (LOGITS, LOGITS, [torch.zeros(1, 3)], r"^tokens are torch\.float32 \(1, 3\)"),
        (LOGITS[0], LOGITS[0], [torch.zeros(3, dtype=torch.long)], r"^tokens are torch\.int64 \(3,\)"),
        (LOGITS, LOGITS, [torch.tensor([[0, 4, 1]])], "^tokens from 1 to 4; the results have 4 logits$"),
        (LOGITS, LOGITS, [torch.tensor([[0, -1, 1]])], "^tokens from -1 to 1; the results have 4 logits$"),
        (LOGITS, LOGITS, [torch.tensor([[0, NO_TOKEN, NO_TOKEN]])], "^no token behind another one"),
    ],
)
def test_what_cannot_be_compared(result: Any, reference: Any, tokens: Any, said: str) -> None:
    with pytest.raises(TensorError, match=said):
        rsn.quality(lambda x: result, lambda x: reference, [(0,)], perplexity_of=tokens)


def test_batches_of_rows_of_different_widths() -> None:
    with pytest.raises(TensorError, match=r"^rows of 2 and 3 numbers cannot be compared as one$"):
        rsn.quality(lambda x: torch.ones(1, x), lambda x: torch.ones(1, x), [(2,), (3,)])


# -- a compiled model


def test_compare_with_a_reference() -> None:
    """The same as three calls of `quality`, beside the segments."""
    reference, model, given = pair("encoder")
    with rsn.compile(model, given) as compiled:
        found = compiled.compare(*given, reference=reference)
        assert isinstance(found, ComparedModel)
        assert found.segments == compiled.compare(*given)
        assert found.quantisation == rsn.quality(model, reference, [given])
        assert found.machine == rsn.quality(compiled, model, [given])
    assert 1e-4 < 1 - found.quantisation.worst < 0.05
    assert found.machine.worst > 1 - 1e-9
    text = str(found).splitlines()
    assert text[0].startswith("segment ")
    assert re.split(r" {2,}", text[-3].strip()) == COLUMNS
    assert [line.split()[:3] for line in text[-2:]] == [["quantisation", "32", "1"], ["machine", "32", "1"]]


def test_padding_is_not_compared() -> None:
    """Rows that a mask hides have no attention on the machine; what PyTorch computes for them means nothing."""
    reference, model, (x,) = pair("encoder")
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[0, 5:] = 0
    with rsn.compile(model, (x, mask)) as compiled:
        found = compiled.compare(x, mask, reference=reference)
    assert found.quantisation.rows == found.machine.rows == 21
    assert found.machine.largest < 1e-5
    shown = mask.bool()
    wanted = rsn.quality(lambda *given: model(*given)[shown], lambda *given: reference(*given)[shown], [(x, mask)])
    assert found.quantisation == wanted


def test_lengths_are_refused() -> None:
    reference, model, given = pair("encoder")
    with rsn.compile(model, given, lengths=[16, 9]) as compiled, pytest.raises(UnsupportedError, match="with lengths"):
        compiled.compare(*given, reference=reference)


def test_compare_logits_with_a_reference() -> None:
    reference, model, (ids,) = pair("decoder")
    with rsn.compile(model, (ids,)) as compiled:
        found = compiled.compare(ids, reference=reference, perplexity_of=ids)
    with torch.no_grad():
        wanted, own = (
            math.exp(torch.nn.functional.cross_entropy(m(ids)[:, :-1].double().flatten(0, 1), ids[:, 1:].flatten()))
            for m in (reference, model)
        )
    assert (found.quantisation.of_reference, found.quantisation.perplexity) == pytest.approx((wanted, own))
    assert found.machine.of_reference == found.quantisation.perplexity
    assert found.machine.perplexity == pytest.approx(own, rel=1e-5)
    assert found.quantisation.spearman is None
    assert f"{wanted:.6g} -> {own:.6g}" in str(found)


def test_padding_follows_no_token() -> None:
    """The token behind the last one of a text is padding, of which the perplexity is not."""
    reference, model, (ids,) = pair("decoder")
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    with rsn.compile(model.model, given) as compiled:
        found = compiled.compare(**given, reference=reference.model, perplexity_of=ids).quantisation
    labels = ids.masked_fill(mask == 0, NO_TOKEN)[:, 1:]
    for module, perplexity in ((reference, found.of_reference), (model, found.perplexity)):
        with torch.no_grad():
            logits = module.model(**given).logits[:, :-1].double()
        wanted = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=NO_TOKEN)
        assert perplexity == pytest.approx(math.exp(wanted))


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda m: m.train(), UnsupportedError, "is in training mode"),
        (lambda m: lambda x: x, UnsupportedError, r"must be a torch\.nn\.Module"),
        (lambda m: torch.nn.Flatten().eval(), TensorError, r"^results of shape \(32, 128\); .* have \(2, 2048\)$"),
    ],
)
def test_references_that_are_refused(change: Any, kind: type[RsnError], said: str) -> None:
    reference, model, given = pair("encoder")
    with rsn.compile(model, given) as compiled, pytest.raises(kind, match=said):
        compiled.compare(*given, reference=change(reference))


def test_perplexity_takes_a_reference() -> None:
    _, model, given = pair("rows")
    with rsn.compile(model, given) as compiled, pytest.raises(TensorError, match=r"only with a reference$"):
        compiled.compare(*given, perplexity_of=torch.zeros(1, 2))


@pytest.mark.long
def test_what_quantisation_costs_a_trained_decoder() -> None:
    """The perplexity of sentences that it has not seen: 4 bits a weight cost little, and the machine adds nothing."""
    pytest.importorskip("transformers")
    from rsn.benchmarks import quantised_decoder

    name = "int4 weights, groups of 32"
    model = quantised_decoder.trained(seed=0, steps=60)
    ((reference, own, machine),) = quantised_decoder.costs(model, 0, {name: quantised_decoder.CONFIGS[name]}).values()
    assert reference < len(quantised_decoder.LETTERS) / 3
    assert 1e-5 < abs(own / reference - 1) < 0.02
    assert machine == pytest.approx(own, rel=1e-5)


# -- the command line

FILE = """
from rsn.tests.rsnlib.quantised_models import CONFIGS, MODELS, quantize_
import torch

class Named(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids)

def plain():
    model, given = MODELS["decoder"]
    return Named(model()), given()

def quantised():
    model, given = plain()
    quantize_(model.eval(), CONFIGS["only int4 weights"]())
    return model, given

def encoder():
    model, given = MODELS["encoder"]
    return model(), given()
"""


def compiled(folder: Path, *more: str, spec: str = "quantised") -> Any:
    (folder / "m.py").write_text(FILE, encoding="utf-8")
    given = [f"{folder / 'm.py'}:{x}" if x in ("plain", "encoder") else x for x in more]
    return CliRunner().invoke(main, ["compile", f"{folder / 'm.py'}:{spec}", "-o", str(folder / "m.rsn"), *given])


def test_the_command_compares(tmp_path: Path) -> None:
    result = compiled(tmp_path, "--compare", "plain", "--perplexity", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["compared"]
    assert list(found) == ["segments", "quantisation", "machine"]
    assert all(row["difference"] < 1e-4 for row in found["segments"])
    assert 1e-4 < 1 - found["quantisation"]["worst"] < 0.05
    assert found["machine"]["worst"] > 1 - 1e-9
    assert found["machine"]["perplexity"] == pytest.approx(found["quantisation"]["perplexity"], rel=1e-5)
    assert found["quantisation"]["perplexity"] != found["quantisation"]["of_reference"]


def test_the_command_shows_a_table(tmp_path: Path) -> None:
    """Also beside the whole model; without tokens, rows have an order of pairs."""
    result = compiled(tmp_path, "--compare", "encoder", "-o", str(tmp_path / "m.rsnmodel"), spec="encoder")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "Spearman of pairs" in lines[-3]
    assert "perplexity" not in lines[-3]
    assert lines[-2].split()[0] == "quantisation"
    assert lines[-1].split()[0] == "machine"


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--perplexity"], 2, "--perplexity goes with --compare"),
        (["--compare", "nope"], 2, "no preset 'nope'"),
        (["--compare", "encoder"], 1, "the reference cannot compute this call: RuntimeError: "),
    ],
)
def test_the_command_refuses(more: list[str], code: int, said: str, tmp_path: Path) -> None:
    result = compiled(tmp_path, *more)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert not (tmp_path / "m.rsn").exists()


def test_the_command_takes_tokens_of_the_example(tmp_path: Path) -> None:
    result = compiled(tmp_path, "--compare", "encoder", "--perplexity", spec="encoder")
    assert result.exit_code == 2
    assert "encoder has no input_ids" in result.stderr
