"""Models in pieces: those that the machine cannot run as a whole, compiled, changed, saved and served."""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch first: it may be missing
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import BoardError, ScheduleError, TensorError, UnsupportedError  # noqa: E402
from rsn.host.boards.device import BoardLost  # noqa: E402
from rsn.host.model.pieces import CompiledPieces  # noqa: E402
from rsn.rsnlib.fallback import Fallback  # noqa: E402
from rsn.rsnlib.graph_split import Split  # noqa: E402
from rsn.rsnlib.pipeline import Pipeline  # noqa: E402
from rsn.tests.effort import full  # noqa: E402
from rsn.tests.host.rigged import Rig  # noqa: E402

C = 64


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Pooled(nn.Module):
    """An encoder, and an attention of one row over its rows: two numbers of rows, of which xnn2 takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = rsn.nn.Encoder(1, C, 2, 96)
        self.probe = nn.Linear(C, C)
        self.head = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, x: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        y = self.encoder(x)
        z, _ = self.head(self.probe(one), y, y, need_weights=False)
        return z.squeeze(1)


@pytest.mark.long
def test_layers_that_cannot_be_beside_each_other_are_cut_apart() -> None:
    model, given = Pooled().eval(), (torch.randn(2, 9, C), torch.randn(2, 1, C))
    assert not isinstance(Pipeline.named("xnn").divide(model, given, whole=False), Split)
    found = Pipeline.named("xnn2").divide(model, given, whole=False)
    assert isinstance(found, Split)
    assert "takes one number of rows" in found.reasons[0]
    on_machine = [piece.traced.network for piece in found.pieces if piece.traced is not None]
    assert not any(network.seqs for network in on_machine)
    assert sum(len(network.layers) for network in on_machine) >= 8


class Squares(nn.Module):
    """An encoder; products of activations, which no machine has, of each row by itself; and layers behind them, one in
    float64."""

    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(50, C)
        self.encoder = rsn.nn.Encoder(1, C, 2, 96)
        self.scale = nn.Parameter(torch.rand(C))
        self.last, self.exact, self.end = nn.Linear(C, 32), nn.Linear(32, C).double(), nn.Linear(C, 24)
        self.draws = draws

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        y = self.encoder(self.words(ids), mask)
        y = y + torch.rand_like(y) if self.draws else y
        matrix = (y * self.scale).reshape(-1, 8, 8)
        last = self.last(torch.bmm(matrix, matrix).reshape(y.shape))
        exact = self.exact(last.to(self.exact.weight.dtype)).to(last.dtype)
        return {"rows": self.end(exact.relu()), "encoded": y}


def words(batch: int, length: int) -> dict[str, Any]:
    drawn = torch.Generator().manual_seed(batch * 100 + length)
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, max(1, length - 3) :] = 0
    return {"ids": torch.randint(50, (batch, length), generator=drawn), "mask": mask}


def in_pieces(model: nn.Module, given: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rsn.compile(model, given, whole=False, **options)


def assert_as_pytorch(got: Any, model: nn.Module, given: dict[str, Any]) -> None:
    """Rows of padding do not count."""
    shown = given["mask"].bool()
    for name, wanted in model(**given).items():
        assert (got[name] - wanted)[shown].abs().max() <= 1e-5 * wanted[shown].abs().max()


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def near(a: Any, b: Any) -> bool:
    """Whether what PyTorch computes differs no more than by where its operands lie in memory."""
    x, y = (r.values() if isinstance(r, dict) else [r] for r in (a, b))
    return all(float((p - q).abs().max()) <= 1e-6 * float(q.abs().max()) for p, q in zip(x, y, strict=True))


def test_a_model_in_pieces_is_as_pytorch() -> None:
    model, given = Squares().eval(), words(2, 12)
    with pytest.raises(UnsupportedError, match=r"rsn.compile\(..., whole=False\)"):
        rsn.compile(model, given)
    with pytest.warns(Fallback, match="a part of this model runs in PyTorch: .*aten.bmm.default"):
        compiled = rsn.compile(model, given, whole=False, verify="always")
    with compiled:
        assert isinstance(compiled, CompiledPieces)
        assert repr(compiled) == "<rsn.CompiledPieces: 3 of 4 pieces on xnn>"
        assert compiled.last_run is None
        got = compiled(**given)
        assert_as_pytorch(got, model, given)
        assert same(compiled(given["ids"], given["mask"].numpy()), got)
        assert compiled.last_run.latency_s == pytest.approx(sum(x.last_run.latency_s for x in compiled.programs))
        with pytest.raises(TensorError, match="the module was traced with"):
            compiled(**words(2, 11))
        explained = compiled.explain()
        assert rsn.explain(model, given, whole=False) == explained
        assert same(compiled.module()(**given), got)
    with pytest.raises(BoardError, match="closed"):
        compiled(**given)


@pytest.mark.long
def test_pieces_are_those_of_torch_compile() -> None:
    model, given = Squares().eval(), words(2, 12)
    torch._dynamo.reset()
    captured = torch.compile(model, backend="rsn")
    with in_pieces(model, given) as compiled, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        share = re.search(r"[\d.]+ % of", rsn.explain(captured, given))
        assert share is not None
        assert share[0] in compiled.explain().splitlines()[0]
        assert same(captured(**given), compiled(**given))
    torch._dynamo.reset()


def test_what_can_run_as_a_whole_is_no_model_in_pieces() -> None:
    model, given = Pooled().eval(), (torch.randn(2, 9, C), torch.randn(2, 1, C))
    with rsn.compile(model, given, whole=False) as compiled:
        assert not isinstance(compiled, CompiledPieces)


def test_changes_of_the_model_are_taken_over_in_all_pieces() -> None:
    model, given = Squares().eval(), words(2, 12)
    with in_pieces(model, given) as compiled:
        first = compiled(**given)
        for x in (model.exact.weight, model.end.weight):
            x.data.numpy()[1] *= 2  # no check detects it, so no piece may use it
        assert same(compiled(**given), first)
        model.last.weight.mul_(0.5)
        assert_as_pytorch(compiled(**given), model, given)
        model.exact.weight.mul_(0.5)
        assert_as_pytorch(compiled(**given), model, given)
        model.end.weight.data.numpy()[1] *= 2
        compiled.refresh()
        assert_as_pytorch(compiled(**given), model, given)
        model.encoder = rsn.nn.Encoder(2, C, 2, 96).eval()
        assert_as_pytorch(compiled(**given), model, given)
        model.train()
        with pytest.raises(UnsupportedError, match="training mode"):
            compiled(**given)


def test_a_file_of_pieces_gives_the_same_numbers_called_and_served(tmp_path: Path) -> None:
    model, path = Squares().eval(), tmp_path / "x.rsnmodel"
    calls = [words(2, 12) | {"ids": torch.randint(50, (2, 12))} for _ in range(6)]
    with in_pieces(model, calls[0]) as compiled:
        compiled.save(path)
        expected = [compiled(**x) for x in calls]
        compiled.save(tmp_path / "verified.rsnmodel")
    assert rsn.load(path).verified == {(): None}
    assert rsn.load(tmp_path / "verified.rsnmodel").verified[()] is not None
    with rsn.load(path) as loaded:
        assert [near(loaded(**x), y) for x, y in zip(calls, expected, strict=True)] == [True] * 6
        assert "one size; 3 programs" in repr(loaded)
        assert len(loaded.pieces[()]) == 3
        with pytest.raises(UnsupportedError, match="see pieces"):
            _ = loaded.programs
        with pytest.raises(TensorError, match="index out of range"):
            loaded(**(calls[0] | {"ids": calls[0]["ids"] + 50}))
        server = loaded.server()
        futures = [server.submit(**x) for x in calls]
        server.close()  # which ends what has begun, in all of its pieces
        assert [same(x.result(), loaded(**y)) for x, y in zip(futures, calls, strict=True)] == [True] * 6
        with pytest.raises(BoardError):
            server.submit(**calls[0])


def test_a_call_of_a_server_is_cancelled_late_and_tried_again_between_its_pieces(tmp_path: Path) -> None:
    model, path, given = Squares().eval(), tmp_path / "x.rsnmodel", words(2, 12)
    with in_pieces(model, given) as compiled:
        compiled.save(path)
    begun, go_on = threading.Event(), threading.Event()

    def before(run: int) -> None:
        """Wait before the second piece of the first call; fail before the second one of the second call."""
        if run == 2:
            begun.set()
            assert go_on.wait(60)
        if run == 4:
            raise BoardLost("gone")

    rig = Rig(before=before)
    with rsn.load(path, board=rig).server() as server:
        first = server.submit(**given)
        assert begun.wait(60)
        assert first.cancel()
        go_on.set()
        with pytest.raises(CancelledError):
            first.result(60)
        assert_as_pytorch(server.submit(**given).result(60), model, given)
    assert [len(rig.runs), rig.opened - rig.closed] == [6, 0]


@pytest.mark.long
def test_a_family_of_pieces(tmp_path: Path) -> None:
    model, path = Squares().eval(), tmp_path / "x.rsnmodel"
    sizes = {0: rsn.Batch(1, 3), 1: rsn.Length(12, exact=False)}
    with in_pieces(model, words(3, 12), dynamic_shapes={"ids": sizes, "mask": sizes}).prepare() as family:
        for size in ((1, 5), (2, 12), (3, 7)):
            assert_as_pytorch(family(**words(*size)), model, words(*size))
        for x in (model.scale, model.last.weight, model.exact.weight):
            x.mul_(0.5)
        got = family(**words(2, 7))
        assert_as_pytorch(got, model, words(2, 7))
        family.save(path)
    with rsn.load(path) as loaded, loaded.server() as server:
        assert near(loaded(**words(2, 7)), got)
        calls = [words(*size) for size in ((1, 3), (1, 12), (2, 5), (3, 12), (1, 3), (2, 12))]
        futures = [server.submit(**call) for call in calls]  # at the same time, for the same programs and for others
        for call, future in zip(calls, futures, strict=True):
            assert_as_pytorch(future.result(), model, call)
            assert same(loaded(**call), future.result())


@pytest.mark.long
def test_half_precision_in_pieces(tmp_path: Path) -> None:
    model, given = Squares().eval().half(), words(2, 12)
    with in_pieces(model, given) as compiled:
        compiled.save(tmp_path / "x.rsnmodel")
        got = compiled(**given)
    assert got["rows"].dtype == torch.float16
    assert same(rsn.load(tmp_path / "x.rsnmodel")(**given), got)


def test_what_pieces_cannot_have(tmp_path: Path) -> None:
    given = words(2, 12)
    with pytest.raises(ScheduleError, match=r"lengths are of one program.* rsn.Length, with dynamic_shapes"):
        rsn.compile(Squares().eval(), given, whole=False, lengths=[12, 7])
    with pytest.raises(UnsupportedError, match="nothing in this module runs on the machine"):
        rsn.compile(nn.ReLU().eval(), (torch.randn(2, 3),), whole=False)
    model = Squares(draws=True).eval()
    with in_pieces(model, given, verify="always") as compiled:
        torch.manual_seed(3)
        got = compiled(**given)
        torch.manual_seed(3)
        assert_as_pytorch(got, model, given)
        with pytest.raises(UnsupportedError, match=r"aten.rand_like.default at .*: it draws random numbers"):
            compiled.save(tmp_path / "x.rsnmodel")
    assert not np.any(list(tmp_path.iterdir()))


class FurtherKeys(nn.Module):
    """An attention with keys and values that are of no row, between two layers."""

    def __init__(self, has_bias: bool, has_zero: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(C, C), nn.Linear(C, 32)
        self.attention = nn.MultiheadAttention(C, 2, add_bias_kv=has_bias, add_zero_attn=has_zero, batch_first=True)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        y = self.first(x)
        return self.last(y + self.attention(y, y, y, key_padding_mask=hidden, need_weights=False)[0])


@pytest.mark.parametrize(
    ("has_bias", "has_zero", "hides", "overlay", "share"),
    [(True, False, False, "xnn", 99), (False, True, False, "xnn2", 90), (True, True, True, "xnn", 90)],
)
def test_keys_that_are_of_no_row(
    has_bias: bool, has_zero: bool, hides: bool, overlay: str, share: float, tmp_path: Path
) -> None:
    model, x = FurtherKeys(has_bias, has_zero).eval(), torch.randn(2, 9, C)
    given = (x, torch.arange(9).expand(2, 9) > torch.tensor([[8], [5]])) if hides else (x,)
    with pytest.raises(UnsupportedError, match=r"at attention, .*along their last dimension only; .*whole=False"):
        rsn.compile(model, given, overlay=overlay)
    with in_pieces(model, given, overlay=overlay) as compiled:
        got, wanted = compiled(*given), model(*given)
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        found = re.search(r"([\d.]+) % of", compiled.explain())
        assert found is not None
        assert float(found[1]) >= share
        compiled.save(tmp_path / "x.rsnmodel")
    assert near(rsn.load(tmp_path / "x.rsnmodel")(*given), got)


class Counted(nn.Module):
    """Layers with a sum of rows between them, whose number is read from a tensor, and products that no machine has."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.first, self.last = nn.Parameter(torch.rand(1, 1, C)), nn.Linear(C, C), nn.Linear(C, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1]).repeat(len(x), 1)
        rows = self.row.repeat(len(x), places.max() + 1, 1)
        y = self.first(x + torch.gather(rows, 1, places[..., None].repeat(1, 1, C))).reshape(-1, 8, 8)
        return self.last(torch.bmm(y, y).reshape(x.shape))


def test_a_file_has_numbers_that_are_read_from_tensors(tmp_path: Path) -> None:
    model, x = Counted().eval(), torch.randn(2, 9, C)
    with in_pieces(model, (x,)) as compiled:
        got, wanted = compiled(x), model(x)
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        compiled.save(tmp_path / "x.rsnmodel")
    assert near(rsn.load(tmp_path / "x.rsnmodel")(x), got)


SIZES = {"vocab_size": 100, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4, "use_cache": False}
SIZES |= {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
GROUPS = SIZES | {"num_key_value_heads": 2, "intermediate_size": 128}
CHOSEN = GROUPS | {"num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = [  # class, configuration, overlay, experts, share of the FLOPs on the machine
    ("MixtralForCausalLM", CHOSEN, "xnn", "static", 99),
    full("MixtralForCausalLM", CHOSEN, "xnn", None, 35),
    ("Olmo2ForCausalLM", GROUPS, "xnn2", None, 90),
]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "config", "overlay", "experts", "share"), FAMILIES)
def test_transformers_in_pieces(
    kind: str, config: dict[str, Any], overlay: str, experts: str | None, share: float, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    model = getattr(transformers, kind)(getattr(transformers, kind).config_class(**config)).eval()
    given = {"input_ids": torch.randint(5, 90, (2, 14)), "attention_mask": torch.ones(2, 14, dtype=torch.long)}
    with in_pieces(model, given, overlay=overlay, experts=experts) as compiled:
        assert isinstance(compiled, CompiledPieces)
        got, wanted = compiled(**given).logits, model(**given).logits
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        found = re.search(r"([\d.]+) % of", compiled.explain())
        assert found is not None
        assert float(found[1]) >= share
        compiled.save(tmp_path / "x.rsnmodel")
    with rsn.load(tmp_path / "x.rsnmodel") as loaded:
        assert near(loaded(**given).logits, got)


class LongTail(nn.Module):
    """A layer for the machine in front of and behind many operators for PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(C, C), nn.Linear(C, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = first = self.first(x)
        for _ in range(20):
            y = torch.sinh(y).cos()
        return self.last(y), first


class Alive(TorchDispatchMode):
    """Counts the results of `aten.sinh` that are alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.sinh.default:
            self.made.append(weakref.ref(result))
            self.most = max(self.most, sum(made() is not None for made in self.made))
        return result


def test_a_call_keeps_no_value_that_nobody_reads_any_more() -> None:
    model, x = LongTail().eval(), torch.randn(2, 8, C)
    with in_pieces(model, (x,), verify="never") as compiled, Alive() as alive:
        got = compiled(x)
    assert all(near(a, b) for a, b in zip(got, model(x), strict=True))
    assert (len(alive.made), alive.most) == (20, 1)
