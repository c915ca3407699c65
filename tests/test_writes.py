"""Models that write in place, to arguments or through views of them: the same results and the same writes as PyTorch's,
by `rsn.compile` and by torch.compile, or a refusal."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.tests.effort import cases, in_both, long, spread, thinned  # noqa: E402

VIEWS: dict[str, Callable[[Any], Any]] = {
    # These declare a new tensor, and return their operand or a view of it.
    "dropout": lambda x: F.dropout(x, 0.1, training=False),
    "feature dropout": lambda x: F.dropout1d(x, 0.1, training=False) if x.ndim < 4 else x,
    "dropout, p = 0": lambda x: F.dropout(x, 0.0, training=True),
    "type_as": lambda x: x.type_as(x),
    "einsum": lambda x: torch.einsum("...ij->...ji", x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x)[0],
    "meshgrid": lambda x: torch.meshgrid(x.reshape(-1), indexing="ij")[0],
    "atleast_3d": torch.atleast_3d,
    "sum_to_size": lambda x: x.sum_to_size(x.shape),
    # These copy some tensors, and not others.
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(-1, x.shape[-1]),
    "flatten": lambda x: x.flatten(0, 1),
    "ravel": lambda x: x.ravel(),
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32),
    # These always return views.
    "identity": nn.Identity(),
    "detach": lambda x: x.detach(),
    "expand_as": lambda x: x.expand_as(x),
    "view_as": lambda x: x.view_as(x),
    "chunk": lambda x: x.chunk(2, -1)[-1],
    "split": lambda x: x.split(8, -1)[0],
    "tensor_split": lambda x: x.tensor_split(2, -1)[0],
    "movedim": lambda x: x.movedim(0, 1),
    "unflatten": lambda x: x.unflatten(-1, (1, -1)),
    "transposed": lambda x: x.mT,
    "real": torch.real,
    "positive": lambda x: x.positive(),
    "conj": lambda x: x.conj(),
    "item": lambda x: x[0],
    "slice": lambda x: x[..., ::2],
    "diagonal": lambda x: x.diagonal(dim1=-1, dim2=-2),
    "unfold": lambda x: x.unfold(-1, 2, 2),
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)))),
    "clone": lambda x: x.clone(),
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "mul_": lambda x: x.mul_(3),
    "add_": lambda x: x.add_(1.5),
    "copy_": lambda x: x.copy_(torch.full_like(x, 0.25)),
    "fill_": lambda x: x.fill_(0.5),
    "index_put_": lambda x: x.index_put_((torch.tensor([0]),), torch.tensor(2.0)),
    "masked_fill_": lambda x: x.masked_fill_(x > 0, 0.1),
    "relu_": lambda x: x.relu_(),
    "setitem": lambda x: x.__setitem__(0, 0.75),
    "out": lambda x: torch.mul(x, 2.0, out=x),
    "inplace": lambda x: F.silu(x, inplace=True),
}
WHERE: dict[str, Callable[[nn.Module, Any], Any]] = {
    "an argument": lambda _, x: x,
    "a result of the host": lambda _, x: x * 2,
    "a result of the machine": lambda layer, x: layer(x),
}


class Writing(nn.Module):
    """Writes through a view of a view, and reads what was written to."""

    def __init__(self, where: str, views: list[str], write: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)
        self.where, self.views, self.write = where, views, write

    def forward(self, x: Any) -> Any:
        y = view = WHERE[self.where](self.first, x)
        for name in self.views:
            view = VIEWS[name](view)
        WRITES[self.write](view)
        return self.second(torch.relu(self.first(y))), view.sum(), x + 1


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def by_rsn(model: nn.Module, *example: Any) -> Any:
    return rsn.compile(model, copy.deepcopy(example))


def by_torch(model: nn.Module, *example: Any) -> Any:
    return torch.compile(model, backend="rsn", dynamic=False)


def same(model: nn.Module, made: Any, given: tuple[Any, ...]) -> bool:
    """Whether a call returns and writes the same as the model's."""
    theirs, ours = copy.deepcopy(given), copy.deepcopy(given)
    wanted, got = (model(*theirs), *theirs), (made(*ours), *ours)
    leaves = [torch.utils._pytree.tree_leaves(x) for x in (got, wanted)]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*leaves, strict=True))


@in_both
@pytest.mark.filterwarnings("ignore::rsn.host.model.torch_backend.Fallback")
@pytest.mark.parametrize("by", [by_rsn, long(by_torch)])
def test_writes_through_views(by: Callable[..., Any]) -> None:
    chosen = random.Random(0)
    single = [([view], chosen.choice([*WRITES]), "an argument") for view in VIEWS]
    dropped = [(["dropout"], write, where) for write in WRITES for where in WHERE]
    double = [
        ([chosen.choice([*VIEWS]) for _ in range(2)], chosen.choice([*WRITES]), chosen.choice([*WHERE]))
        for _ in range(300)
    ]
    count, tried, refused = cases(240, 8, share=30), 0, 0
    given = (torch.randn(2, 6, 32),)
    for views, write, where in chosen.sample([*single, *dropped, *double], count):
        model = Writing(where, views, write).eval()
        try:
            model(*copy.deepcopy(given))
        except (RuntimeError, IndexError):
            continue  # PyTorch cannot do that
        torch._dynamo.reset()
        tried += 1
        try:
            made = by(model, *given)
            assert same(model, made, given), (views, write, where)
        except UnsupportedError:
            refused += 1
    assert tried > count / 2 > refused


@pytest.mark.parametrize("by", [by_rsn, long(by_torch)])
@pytest.mark.parametrize("view", ["dropout", "type_as", "einsum", "broadcast_tensors"])
def test_writes_through_what_is_declared_a_new_tensor(view: str, by: Callable[..., Any]) -> None:
    model, given = Writing("an argument", [view], "mul_").eval(), (torch.randn(2, 6, 32),)
    made = by(model, *given)
    assert same(model, made, given)
    assert same(model, made, (given[0] + 1,))


def twice(x: Any) -> Any:
    """The argument and a result of the graph are written to again and again, also by another name."""
    y = x * 2
    same, other = y.to(torch.float32), y.sum()
    y.mul_(3).add_(1)
    same.masked_fill_(y > 0, 0.5)
    x.copy_(y[..., :1])
    return same + y, y.mT, other, x


def steps(x: Any) -> Any:
    """Views are made, read and only then written to."""
    first = x[0] + x[1]
    x.index_copy_(0, torch.tensor([1]), first[None])
    second = x[1].clone()
    x.mul_(x[0] + 1)
    return first, second, x[1]


def earlier(x: Any) -> Any:
    """A view is read that was made before the write."""
    view = x[0]
    x.mul_(3)
    return view + 1


def between(x: Any) -> Any:
    """A view of a view is read, and the second write to the tensor comes before."""
    y = x + 1
    y.mul_(3)
    view = y.mT[0]
    y.add_(1)
    return view + 1, y.float()


def part(x: Any) -> Any:
    x[0].mul_(3)
    return x + 1


def alone(x: Any) -> Any:
    """A part of a result, and views of results that do not declare it: nothing else of these is read later."""
    y = x * 2
    first = y[0]
    total = y.sum()
    first.add_(1).mul_(first)
    other = (x - 1).reshape(-1, 32)
    other.add_(total)
    return first, other.reshape(-1)[:5], first.mT


def beside(x: Any) -> Any:
    """What is written to is a view, and another view of the same result is read later."""
    y = x * 2
    first, both = y[0], y.reshape(-1)
    first.add_(1)
    return both


def above(x: Any) -> Any:
    """A view is written to, and what it is a view of is read later."""
    y = x * 2
    y.reshape(-1, 32).add_(1)
    return y


def again_above(x: Any) -> Any:
    """A view of a view is written to; the view is read, then written to."""
    view = (x * 2).reshape(-1, 32)
    view[0].add_(1)
    return view.mul_(3)


def powers(x: Any) -> Any:
    """`pow` has an overload of that name too, of a number and a tensor."""
    return (x + 1).pow_(2), x.pow_(3).sum()


def places(x: Any) -> Any:
    """How many rows there are, and so the strides, depends on data."""
    return (x > 0).nonzero().add_(1).sum()


def named(x: Any) -> Any:
    """The result is the argument, by an operator that declares a new tensor."""
    x.mul_(3)
    return torch.broadcast_tensors(x, x)[0]


def converted(x: Any) -> Any:
    """The result is the argument, by an operator that may return a new tensor."""
    return x.mul_(3).float()


LIBRARY = torch.library.Library("rsn_writes", "DEF")
LIBRARY.define("scale_(Tensor(a!) x, Tensor y) -> ()")
LIBRARY.define("scale(Tensor x, Tensor y) -> Tensor")


@torch.library.impl(LIBRARY, "scale_", "CompositeExplicitAutograd")
def multiply(x: Any, y: Any) -> None:
    x.mul_(y)


@torch.library.impl(LIBRARY, "scale", "CompositeExplicitAutograd")
def shift(x: Any, y: Any) -> Any:
    return x + y


def unlike(x: Any) -> Any:
    """An operator from elsewhere, and another one with the name that PyTorch would give to the first without writes."""
    y = x * 2
    torch.ops.rsn_writes.scale_(y, x)
    return y


class Body(nn.Module):
    """A layer behind a function of the argument."""

    def __init__(self, body: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.body = nn.Linear(32, 32), body

    def forward(self, x: Any) -> Any:
        made = self.body(x)
        return made, self.layer(x)


@pytest.mark.parametrize(
    ("body", "one_by_one"),
    [
        (twice, True),
        (steps, True),
        (earlier, False),
        (between, False),
        (part, False),
        (alone, True),
        (beside, False),
        (above, False),
        (again_above, False),
        (powers, False),
        (places, False),
        (named, False),
        (unlike, False),
    ],
)
def test_writes_are_replaced(body: Callable[[Any], Any], one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by an operator that does not write; where its memory is read later by another name, torch captures the graph
    again."""
    model, given, again = Body(body).eval(), (torch.randn(2, 6, 32),), list[bool]()
    functionalize = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda program, table: again.append(True) or functionalize(program, table),
    )
    made = by_rsn(model, *given)
    assert same(model, made, given)
    assert same(model, made, (given[0] + 1,))
    assert again == ([] if one_by_one else [True])


class Counting(nn.Module):
    """Writes to the integers of a quantised weight, which is read before and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        self.layer.weight.qdata.add_(1)
        return y + self.layer(x)


def test_a_write_to_the_integers_of_a_weight_is_refused() -> None:
    """Torch takes them out of the weight by an operator that declares a new tensor."""
    quantization = pytest.importorskip("torchao.quantization")
    model = Counting().eval()
    quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(UnsupportedError, match="Counting changes its own state when called: layer"):
        by_rsn(model, torch.randn(4, 64))


@pytest.mark.parametrize("body", [named, converted])
def test_results_that_are_arguments(body: Callable[[Any], Any]) -> None:
    made, x = by_rsn(Body(body).eval(), torch.randn(2, 6, 32)), torch.randn(2, 6, 32)
    assert made(x)[0] is x


class Region(nn.Module):
    """Writes in a region of another mode, which torch captures as a graph of its own."""

    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.region = nn.Linear(32, 32), region

    def forward(self, x: Any) -> Any:
        with self.region():
            y = F.dropout(x, 0.1, training=False).contiguous()
            y.mul_(3)
        return self.layer(x), y


@pytest.mark.parametrize("by", [by_rsn, by_torch])
@pytest.mark.parametrize(
    "region",
    [torch.enable_grad, torch.no_grad, lambda: torch.autocast("cpu", enabled=False)],
    ids=["enable_grad", "no_grad", "autocast"],
)
def test_writes_in_regions(region: Any, by: Callable[..., Any]) -> None:
    model, given = Region(region).eval(), (torch.randn(2, 6, 32),)
    assert same(model, by(model, *given), given)


class Behind(nn.Module):
    """A region, and behind it a result that an operator reads whose own result nobody reads."""

    def __init__(self, *, is_written: bool) -> None:
        super().__init__()
        self.layer, self.is_written = nn.Linear(32, 32), is_written

    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            y = x * 1.5
        y = self.layer(y.add_(1) if self.is_written else y)
        y.sum(0)
        return y


@pytest.mark.parametrize("is_written", [True, False])
def test_unread_results_behind_a_region(is_written: bool) -> None:
    model, given = Behind(is_written=is_written).eval(), (torch.randn(2, 6, 32),)
    assert same(model, by_rsn(model, *given), given)


class Twice(nn.Module):
    def __init__(self, body: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.layer, self.body = nn.Linear(32, 32), body

    def forward(self, x: Any, y: Any) -> Any:
        return self.layer(self.body(x, y))


def scaled(x: Any, y: Any) -> Any:
    x.mul_(2)
    return y


def swapped(x: Any, y: Any) -> Any:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)
    return x


def moved(x: Any, y: Any) -> Any:
    y.copy_(x)
    x.mul_(2)
    return y


def through_contiguous(x: Any, y: Any) -> Any:
    x.contiguous().mul_(2)
    return x + y


def of_a_copy(x: Any, y: Any) -> Any:
    z = (x + 1).reshape(-1, 32)
    z.mul_(2)
    return z.view(2, 6, 32) + y


BODIES = [scaled, swapped, moved, through_contiguous, of_a_copy]


def shared(kind: str) -> tuple[Any, Any]:
    memory = torch.randn(4, 6, 32)
    if kind == "the same":
        return memory[:2], memory[:2]
    if kind == "overlapping":
        return memory[:2], memory[1:3]
    if kind == "apart":
        return memory[:2], memory[2:]
    return torch.randn(32, 6, 2).permute(2, 1, 0), memory[:2]


@pytest.mark.filterwarnings("ignore::rsn.host.model.torch_backend.Fallback")
@pytest.mark.parametrize("body", thinned(BODIES, 2))
def test_arguments_that_share_memory_or_lie_otherwise(body: Callable[[Any, Any], Any]) -> None:
    model = Twice(body).eval()
    made, fast = by_rsn(model, *shared("apart")), by_torch(model)
    for kind in ("apart", "the same", "overlapping", "transposed"):
        given = shared(kind)
        try:
            wanted = model(*copy.deepcopy(given))
        except RuntimeError:
            continue  # PyTorch does not copy between these
        ours = copy.deepcopy(given)
        torch.testing.assert_close(fast(*ours), wanted, rtol=1e-4, atol=1e-4)
        refused = body is not of_a_copy and kind != "apart"
        if refused:
            with pytest.raises(TensorError, match=r"share their memory, and the module writes to x|has strides"):
                made(*given)
        else:
            assert same(model, made, given)


class Broken(nn.Module):
    """Writes, between two graphs, through a view of a result of the machine."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.view = nn.Linear(32, 32), view

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        view = self.view(y)
        torch._dynamo.graph_break()
        view.mul_(2)
        torch._dynamo.graph_break()
        return self.layer(y)


@pytest.mark.parametrize("view", thinned(["slice", "item", "transposed", "reshape", "diagonal", "chunk"], 3))
def test_results_that_share_memory(view: str) -> None:
    model, given = Broken(VIEWS[view]).eval(), (torch.randn(2, 6, 32),)
    assert same(model, by_torch(model), given)


class WrittenBehindABreak(nn.Module):
    """Returns, of its first graph, a view of an argument that it writes to, and writes to the view."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self.layer, self.view = nn.Linear(32, 32), view

    def forward(self, x: Any, state: Any) -> Any:
        state.add_(self.layer(x))
        view = self.view(state)
        torch._dynamo.graph_break()
        view.mul_(2)
        return self.layer(x)


@pytest.mark.parametrize("view", spread(sorted({*VIEWS}), 2, sorted({*VIEWS})[::6]))
def test_a_result_that_is_a_view_of_a_written_argument(view: str) -> None:
    model, given = WrittenBehindABreak(VIEWS[view]).eval(), (torch.randn(2, 6, 32), torch.randn(2, 6, 32))
    assert same(model, by_torch(model), given)


def test_a_result_that_is_a_written_argument_as_another_type() -> None:
    class Bits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Any, state: Any) -> Any:
            state.add_(self.layer(x))
            return state[1:].view(torch.int16)

    x, state = torch.randn(6, 32), torch.zeros(6, 32)
    bits = by_rsn(Bits().eval(), x, state)(x, state)
    assert bits.dtype == torch.int16
    bits.zero_()
    assert state[0].any()
    assert not state[1:].any()


def test_an_array_that_is_not_written_to_in_place_is_refused() -> None:
    model, given = Twice(scaled).eval(), shared("apart")
    made = by_rsn(model, *given)
    x, y = (value.numpy() for value in given)
    wanted = 2 * x
    made(x, y)
    assert (x == wanted).all()
    with pytest.raises(TensorError, match="argument x, which the module writes to, is an array that PyTorch cannot"):
        made(x[:, ::-1], y)


def test_what_shares_memory_in_secret_is_refused() -> None:
    class Unsafe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Any) -> Any:
            x.unsafe_split(1)[0].mul_(2)
            return self.layer(x)

    with pytest.raises(
        UnsupportedError, match=r"unsafe_split\.Tensor at .*shares memory with its operand, and the module"
    ):
        by_rsn(Unsafe().eval(), torch.randn(2, 6, 32))
