"""What is filled in reaches no result: the operators' rules, against PyTorch with and without filling up."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.rsnlib.padding_check import Filling  # noqa: E402
from rsn.rsnlib.shapes import Arguments  # noqa: E402
from rsn.tests.effort import cases, in_full, long, thinned  # noqa: E402
from rsn.tests.padding import chains  # noqa: E402
from rsn.tests.padding.heads import HEADS, draw, tried  # noqa: E402

B, L, C = 3, 5, 6


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tensors as small as these are slower with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@in_full
@pytest.mark.usefixtures("one_thread")
def test_random_heads() -> None:
    """None is wrong, and few are refused without need. `python -m rsn.tests.padding.heads` tries more."""
    count = cases(50, 20)
    start = 0 if os.environ.get("CI") else torch.seed() % 1_000_000
    found = Counter((verdict, f"{case} {why}") for case, verdict, why in tried(range(start, start + count)))
    assert not [text for verdict, text in found if verdict == "wrong"]
    strict = [text for verdict, text in found if verdict == "too strict"]
    right = sum(count for (verdict, _), count in found.items() if verdict == "right")
    assert right > cases(12, 2)
    assert len(strict) <= max(1, 0.2 * right), strict  # of 600 it is 2 %


@in_full
@pytest.mark.usefixtures("one_thread")
def test_random_chains() -> None:
    """None is wrong. `python -m rsn.tests.padding.chains` tries more."""
    start = 0 if os.environ.get("CI") else torch.seed() % 1_000_000
    found = [chains.verdict(seed) for seed in range(start, start + cases(10, 5))]
    assert not [(chain.steps, start) for chain, verdict, _ in found if verdict == "wrong"]
    assert {verdict for _, verdict, _ in found} & {"right", "refused"}


def test_the_heads_are_many() -> None:
    assert len(HEADS) >= 25
    assert len({draw(seed).head for seed in range(1000)}) == len(HEADS)


class Of(torch.nn.Module):
    """A function of a layer's result, of a mask and of token numbers."""

    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.made, self.words = torch.nn.Linear(C, C), made, torch.nn.Embedding(50, C)
        self.heads = torch.nn.MultiheadAttention(C, 2, batch_first=True)
        self.register_buffer("positions", torch.randn(1, 32, C))

    def forward(self, x: Any, mask: Any, ids: Any) -> Any:
        return self.made(self, self.layer(x), mask, ids)


def filling(made: Callable[..., Any], batch: Any = None, length: Any = None) -> tuple[Filling, Of, Arguments]:
    model = Of(made).eval()
    dims = {0: rsn.Batch(4) if batch is None else batch, 1: rsn.Length(8) if length is None else length}
    x = {"x": torch.randn(B, L, C), "mask": torch.ones(B, L, dtype=torch.int64), "ids": torch.randint(1, 50, (B, L))}
    given = Arguments(inspect.signature(model.forward), x, dict.fromkeys(x, dims))
    return Filling(model, given), model, given


def check(made: Callable[..., Any], sizes: list[tuple[int, int]], **dims: Any) -> None:
    """Filled up to the largest and cut, results are those of the arguments as they are."""
    found, model, given = filling(made, **dims)
    largest = tuple(dim.sizes[-1] for dim in given.dims)
    for batch, length in sizes:
        x = {
            "x": torch.randn(batch, length, C),
            "mask": torch.ones(batch, length, dtype=torch.int64),
            "ids": torch.randint(1, 50, (batch, length)),
        }
        found.padding.check_sizes((batch, length))
        with torch.no_grad():
            wanted = torch.utils._pytree.tree_leaves(model(**x))
            full = torch.utils._pytree.tree_leaves(model(**given.resized(x, largest)))
        for a, b in zip(found.padding.cut_leaves(full, largest, (batch, length)), wanted, strict=True):
            torch.testing.assert_close(a, b)


def attention(query: Any, mask: Any, is_causal: bool = False) -> Any:
    q = query.unflatten(-1, (2, 3)).transpose(1, 2)
    hidden = None if mask is None else mask[:, None, None, :].bool()
    y = torch.nn.functional.scaled_dot_product_attention(q, q, q, hidden, is_causal=is_causal)
    return y.transpose(1, 2).flatten(2)


def eager(y: Any, added: Any) -> Any:
    q = y.unflatten(-1, (2, 3)).transpose(1, 2)
    return (q @ q.transpose(2, 3) + added).softmax(-1) @ q


def added(y: Any, mask: Any, number: float) -> Any:
    return y.masked_fill(mask[..., None] == 0, number) if number == -torch.inf else y + (1 - mask[..., None]) * number


def hidden(mask: Any) -> Any:
    return torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None]


def put(y: Any, where: Any, number: float) -> Any:
    y = y.clone()
    y[where] = number
    return y


def causal(length: int) -> Any:
    return torch.full((length, length), -1e30).triu(1)


def twice(y: Any, hides: Callable[[Any, Any], Any]) -> Any:
    """Two attentions, one of the other's result. hides: from scores and the length to what the softmax reads."""
    for _ in range(2):
        q = y.unflatten(-1, (2, 3)).transpose(1, 2)
        y = (hides(q @ q.mT, q.shape[2]).softmax(-1) @ q).transpose(1, 2).flatten(2)
    return y


SIZES = [(1, 1), (2, 3), (4, 8), (3, 7)]


@pytest.mark.parametrize(
    "made",
    thinned(
        [
            lambda m, y, mask, ids: attention(y, mask),
            lambda m, y, mask, ids: attention(y, None, is_causal=True),
            lambda m, y, mask, ids: eager(y, causal(y.shape[1])),
            lambda m, y, mask, ids: eager(y, (1 - mask[:, None, None].float()) * torch.finfo(torch.float32).min),
            lambda m, y, mask, ids: attention(y, mask).reshape(-1, C),  # batch and length in one dimension
            lambda m, y, mask, ids: y + m.positions[:, : y.shape[1]] + m.words(ids),
            lambda m, y, mask, ids: (y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
            lambda m, y, mask, ids: y.masked_fill(mask[..., None] == 0, -torch.inf).amax((0, 1)),
            lambda m, y, mask, ids: y[torch.arange(y.shape[0]), (torch.arange(y.shape[1]) * mask.bool()).argmax(1)],
            lambda m, y, mask, ids: y[torch.arange(y.shape[0]), mask.sum(1) - 1],
            lambda m, y, mask, ids: y[torch.arange(y.shape[0]), mask.bool().sum(1) - 1],
            lambda m, y, mask, ids: y.gather(1, (mask.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, C)),
            lambda m, y, mask, ids: (y * (mask / mask.sum(1, keepdim=True))[..., None]).sum(1),
            lambda m, y, mask, ids: torch.isin(ids, torch.tensor([3, 7])).sum(1),
            lambda m, y, mask, ids: torch.max(y, m.layer(y)) - torch.clip(torch.multiply(y, y), 0, 1),
            lambda m, y, mask, ids: torch.einsum("...ld,...l", y, mask.float()),
            lambda m, y, mask, ids: y.flatten(0, 1) * torch.ones_like(y.flatten(0, 1)).cumsum(1),
            lambda m, y, mask, ids: torch.nn.functional.max_pool1d(y, 2),
            lambda m, y, mask, ids: added(y, mask, -torch.inf).sort(1, descending=True)[0],
            lambda m, y, mask, ids: torch.where(mask.bool(), y[..., 0], -1e9).argsort(1, descending=True),
            lambda m, y, mask, ids: eager(eager(y, hidden(mask)).transpose(1, 2).flatten(2), hidden(mask)),
            lambda m, y, mask, ids: put(y, mask[..., None].expand(y.shape) == 0, -1e9).max(1)[0],
            lambda m, y, mask, ids: put(y, ~mask.bool(), 0.0).sum(1),
            lambda m, y, mask, ids: m.heads(m.positions[:, :2].expand(y.shape[0], -1, -1), y, y, ~mask.bool())[0],
            lambda m, y, mask, ids: twice(y, lambda s, n: s.masked_fill(causal(n) < 0, -torch.inf)),
            lambda m, y, mask, ids: twice(y, lambda s, n: s * 2 + causal(n) * torch.finfo(torch.float32).max),
            lambda m, y, mask, ids: twice(y, lambda s, n: torch.where((causal(n) == 0)[None, None], s, -torch.inf)),
            lambda m, y, mask, ids: y[:, 0],
            lambda m, y, mask, ids: y.narrow(0, 0, 1) + y[:, :1],
            lambda m, y, mask, ids: y[-1],  # of a batch the last, of which there are copies
            lambda m, y, mask, ids: y[:, ::2],
            lambda m, y, mask, ids: torch.cat([m.positions[:, :2].expand(y.shape[0], -1, -1), y], 1)[:, :-1],
            lambda m, y, mask, ids: torch.cumsum(ids.ne(0).int(), 1) * ids.ne(0).int(),
            lambda m, y, mask, ids: (y.relu() * ids.ne(0)[..., None]).amax(1),
            lambda m, y, mask, ids: y[torch.arange(y.shape[0]), ids.argmax(1)] + m.words(ids)[:, 0],
            lambda m, y, mask, ids: torch.einsum("bld,bl->bd", y, mask.float()),
            lambda m, y, mask, ids: y.transpose(0, 1).flip(2).roll(1, 2).transpose(0, 1).diff(dim=2),
        ],
        2,
    ),
)
def test_what_may_be_filled_up(made: Callable[..., Any]) -> None:
    check(made, SIZES)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        long(*case) if i % 2 else case
        for i, case in enumerate(
            [
                (lambda m, y, mask, ids: attention(y, None), "scaled_dot_product_attention.*no mask hides them"),
                (
                    lambda m, y, mask, ids: y.amax(1),
                    "the length changes output 0: aten.amax.default .*no mask hides them",
                ),
                (lambda m, y, mask, ids: (y, m.layer(y).argmax(1)), "the length changes output 1: aten.argmax"),
                (lambda m, y, mask, ids: m.layer(y.relu()).topk(2, 1), "the length changes output 0: aten.topk"),
                (lambda m, y, mask, ids: y / y.abs().amax(), "aten.amax"),
                (lambda m, y, mask, ids: (y * mask[..., None]).amax(1), "aten.amax"),  # 0 may be the largest
                (lambda m, y, mask, ids: (y * mask[..., None]).mean(1), "how many rows there are"),
                (lambda m, y, mask, ids: y * y.shape[1], "the length .*its other .8. depends on the size"),
                (
                    lambda m, y, mask, ids: y + torch.linspace(0, 1, y.shape[1])[:, None],
                    "its values depend on the size",
                ),
                (lambda m, y, mask, ids: y[:, -1], "a position from the end, where the padded rows are"),
                (lambda m, y, mask, ids: y[:, y.shape[1] // 2], "which position it selects"),
                (lambda m, y, mask, ids: y[torch.arange(y.shape[0]), ids[:, 0] % 2], "indices may select padded rows"),
                (lambda m, y, mask, ids: y[torch.arange(y.shape[0]), -mask.sum(1)], "indices may select padded rows"),
                (lambda m, y, mask, ids: y / y.amax().type_as(mask.float()), "aten.amax"),
                (
                    lambda m, y, mask, ids: y[..., y.shape[1] % 6],
                    "which position it selects",
                ),  # of a dimension of one size
                (lambda m, y, mask, ids: y[..., y.shape[1] % 4 : y.shape[1] % 4 + 2], "where its range begins"),
                (
                    lambda m, y, mask, ids: y[torch.arange(y.shape[0]), :, torch.arange(y.shape[0])].amax(0),
                    "no mask hides",
                ),
                (
                    lambda m, y, mask, ids: (y.topk(1, 0)[1], y),
                    "the batch changes output 0: aten.topk",
                ),  # of equal ones which?
                (lambda m, y, mask, ids: added(y, mask, -1e9).topk(2, 1)[1], "aten.topk.* among equal elements"),
                (
                    lambda m, y, mask, ids: added(y, mask, -1e9).argsort(1, descending=True),
                    "aten.argsort.* among equal elements",
                ),
                (lambda m, y, mask, ids: attention(y.log(), mask), "may be infinite"),
                (  # the first row sees no key
                    lambda m, y, mask, ids: twice(
                        y, lambda s, n: s.masked_fill(torch.ones(n, n).triu(0) > 0, -torch.inf)
                    ),
                    "may be infinite",
                ),
                (  # rows behind the third see no key
                    lambda m, y, mask, ids: twice(
                        y,
                        lambda s, n: s.masked_fill((causal(n) < 0) | (torch.arange(n)[:, None] > 2), -torch.inf),
                    ),
                    "may be infinite",
                ),
                (lambda m, y, mask, ids: y[:, min(y.shape[1] // 3, 1)], "which position it selects"),  # 0, 1, 1, 1
                (lambda m, y, mask, ids: y[:, : y.shape[1] // 2], "where its range ends"),
                (
                    # A query before the others sees one row more than is valid.
                    lambda m, y, mask, ids: (
                        (torch.cat([y[:, :1], y], 1) @ y.mT + causal(y.shape[1] + 1)[:, :-1]).softmax(-1) @ y
                    ),
                    "aten.softmax.*no mask hides",
                ),
                (lambda m, y, mask, ids: y.reciprocal().log() * mask[..., None] @ y.mT.amax(-1, True), "aten"),
                (lambda m, y, mask, ids: (y.log() * mask[..., None]).sum(1), "no mask hides them"),  # 0 times -inf
                (lambda m, y, mask, ids: (y.cumsum(0), y.mean(0)), "the batch changes output 1.*how many sequences"),
                (
                    lambda m, y, mask, ids: torch.fft.fft(y, dim=1).real,
                    "how its result depends on the sequences and on the rows is unknown",
                ),
            ]
        )
    ],
)
def test_what_may_not(made: Callable[..., Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=f"padding .*{why}.*exact=True"):
        filling(made)


def test_least_size() -> None:
    """Where the module itself cannot be called."""
    found, *_ = filling(lambda m, y, mask, ids: y[:, 3])
    found.padding.check_sizes((1, 4))
    with pytest.raises(
        TensorError, match=r"^argument x has a length of 3; this module takes a length of 4 or more, or Length"
    ):
        found.padding.check_sizes((1, 3))


def test_another_graph_for_another_size() -> None:
    def made(m: Any, y: Any, mask: Any, ids: Any) -> Any:
        return y.relu() if y.shape[1] % 8 else y

    with pytest.raises(UnsupportedError, match="for one size"):
        filling(made)


@pytest.mark.parametrize("dims", [{"length": rsn.Length(4, 8, exact=True)}, {"batch": rsn.Batch(1)}])
def test_sizes_that_are_not_filled_up(dims: Any) -> None:
    """A mean over what calls have all of."""
    axis = 1 if "length" in dims else 0
    filling(lambda m, y, mask, ids: y.mean(axis), **dims)


def test_each_program_is_looked_at() -> None:
    """The graph for some size may be another one than for the largest."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return y + y.amax(1, keepdim=True) if x.shape[1] == 12 else y

    with rsn.compile(
        Model().eval(), (torch.randn(1, 4, 64),), dynamic_shapes={"x": {1: rsn.Length(8, 12, 16)}}
    ) as family:
        family(torch.randn(1, 7, 64))
        with pytest.raises(UnsupportedError, match="for one size"):
            family(torch.randn(1, 9, 64))


def test_a_table_of_just_the_largest_size() -> None:
    """A slice of the whole is no operator in the graph for the largest size."""
    check(lambda m, y, mask, ids: y + m.positions[:, : y.shape[1]], [(1, 1), (4, 32), (2, 9)], length=rsn.Length(8, 32))


def test_a_mask_stays_one() -> None:
    found, _, given = filling(lambda m, y, mask, ids: y * mask[..., None])
    found.padding.check_masks(given.example)
    with pytest.raises(TensorError, match=r"^argument mask is a mask in the example, 0 or 1 everywhere, but has"):
        found.padding.check_masks(given.example | {"mask": 2 * given.example["mask"]})
