"""Models that need some rows, and refusals that name what is at fault: the batch, a length, or that of an argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import TensorError, UnsupportedError  # noqa: E402
from rsn.rsnlib.padding_check import Filling  # noqa: E402
from rsn.rsnlib.shapes import Arguments  # noqa: E402
from rsn.tests.effort import long, thinned  # noqa: E402

C = 64


class Of(torch.nn.Module):
    """A function of the results of two layers."""

    def __init__(self, made: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.other, self.made = torch.nn.Linear(C, C), torch.nn.Linear(C, C), made
        self.conv = torch.nn.Conv1d(C, C, 3)
        self.register_buffer("positions", torch.randn(1, 64, C))

    def forward(self, x: Any, y: Any = None) -> Any:
        return self.made(self, self.one(x), None if y is None else self.other(y))


def at_least(x: Any, least: int, axis: int) -> Any:
    if x.shape[axis] < least:
        raise ValueError("too few")
    return x


SOME: dict[str, Callable[..., Any]] = {
    "without the ends": lambda m, x, y: x[:, 1:-1],
    "behind the second": lambda m, x, y: x[:, 2:],
    "before the last three": lambda m, x, y: x[:, :-3],
    "the first four": lambda m, x, y: x[:, :4],
    "some": lambda m, x, y: x[:, 1:5],
    "one": lambda m, x, y: x[:, 3],
    "the last": lambda m, x, y: x[:, -1],
    "the last four": lambda m, x, y: x[:, -4:],
    "before the last": lambda m, x, y: x[:, -4:-1],
    "a narrow": lambda m, x, y: x.narrow(1, 2, x.shape[1] - 3),
    "a narrow of the first": lambda m, x, y: x.narrow(1, 0, 4),
    "differences": lambda m, x, y: x[:, 1:] - x[:, :-1],
    "both ends": lambda m, x, y: torch.cat([x[:, 2:-2], x], 1),
    "indices": lambda m, x, y: x[:, [0, 5]],
    "unfold": lambda m, x, y: x.unfold(1, 4, 1),
    "a convolution": lambda m, x, y: m.conv(x[..., :C].transpose(1, 2)),
    "an average": lambda m, x, y: F.avg_pool1d(x.transpose(1, 2), 3, 1),
    "a maximum": lambda m, x, y: F.max_pool1d(x.transpose(1, 2), 4),
    "reflections": lambda m, x, y: F.pad(x.transpose(1, 2), (2, 2), mode="reflect"),
    "the largest five": lambda m, x, y: x.topk(5, 1).values,
    "pairs": lambda m, x, y: x.reshape(x.shape[0], -1, 2, C)[:, :, 0],
    "a part": lambda m, x, y: x.split([2, x.shape[1] - 2], 1)[1],
    "an error": lambda m, x, y: at_least(x, 4, 1),
    "an error of few sequences": lambda m, x, y: at_least(x, 2, 0),
    "all but the first sequence": lambda m, x, y: x[1:],
    "the second sequence": lambda m, x, y: x[1],
}
COMPILED = {"without the ends", "behind the second", "the first four", "one", "a narrow", "differences", "an error"}
"""Those that must not be refused."""


@pytest.mark.parametrize("name", thinned(SOME, 2))
def test_models_that_need_some_rows(name: str) -> None:
    """They are refused, or right for all sizes that are not too small."""
    model, x = Of(SOME[name]).eval(), torch.randn(2, 16, C)
    given = Arguments(inspect.signature(model.forward), (x,), {"x": {0: rsn.Batch(1, 4), 1: rsn.Length(16, 32)}})
    try:
        padding = Filling(model, given).padding
    except (UnsupportedError, TensorError):
        assert name not in COMPILED
        return
    taken = 0
    for sizes in ((1, 1), (1, 2), (2, 3), (3, 4), (1, 5), (2, 6), (2, 9), (3, 16), (4, 20)):
        called = torch.randn(*sizes, C)
        try:
            padding.check_sizes(sizes)
        except TensorError as error:
            assert "this module takes a" in str(error)  # noqa: PT017
            continue
        with torch.no_grad():
            wanted, full = model(called), model(**given.resized({"x": called}, (4, 32)))
        (cut,) = padding.cut_leaves([full], (4, 32), sizes)
        torch.testing.assert_close(cut, wanted)
        taken += 1
    assert taken >= 3


def test_a_call_with_too_few_rows() -> None:
    """It is refused by name; with enough rows the result is PyTorch's."""
    model, shape = Of(SOME["without the ends"]).eval(), {0: rsn.Batch(1, 2), 1: rsn.Length(16, 32)}
    with rsn.compile(model, (torch.randn(2, 16, C),), dynamic_shapes={"x": shape}) as family, torch.no_grad():
        x = torch.randn(1, 3, C)
        torch.testing.assert_close(family(x), model(x), rtol=1e-4, atol=1e-5)
        with pytest.raises(TensorError, match=r"argument x has a length of 2; this module takes a length of 3 or more"):
            family(x[:, :2])


def test_sizes_with_which_a_module_cannot_be_captured() -> None:
    """The error names them, and arguments that may lack them."""
    given = (torch.randn(2, 16, C), torch.randn(2, 16, C))
    length = rsn.Length(16, 32)
    with pytest.raises(
        TensorError, match=r"with a length of 32 \(.*\); .* argument that has a length: y has one of 16$"
    ):
        rsn.compile(Of(lambda m, x, y: x + y).eval(), given, dynamic_shapes={"x": {1: length}})
    small = Of(lambda m, x, y: x + m.positions[:, :20].expand(1, 20, C)[:, : x.shape[1]])
    with pytest.raises(TensorError, match=r"with a length of 32 \(.*\); .*, and list sizes that the module takes$"):
        rsn.compile(small.eval(), given[:1], dynamic_shapes={"x": {1: length}})


FAULTS: dict[str, list[Callable[..., Any]]] = {
    "length of x": [
        lambda m, x, y: (x.mean(1), y),
        lambda m, x, y: (x.flip(1), y),
        lambda m, x, y: (x * x.shape[1], y),
        lambda m, x, y: (x, y.new_full((3,), float(x.shape[1]))),
        lambda m, x, y: (torch.cat([x, x[:, :2]], 1), y),
        lambda m, x, y: (F.pad(x.transpose(1, 2), (2, 2), mode="reflect"), y),
        lambda m, x, y: (x.flatten(1).sum(-1), y),
        lambda m, x, y: (x.unfold(1, 3, 1), y),
        lambda m, x, y: (F.interpolate(x.transpose(1, 2), scale_factor=2), y),
        lambda m, x, y: (x.reshape(x.shape[0], 4, -1, C).mean(1), y),
        lambda m, x, y: (torch.arange(x.shape[1]).flip(0) + x.sum(-1), y),
        lambda m, x, y: (x + m.positions[:, -x.shape[1] :], y),
        lambda m, x, y: (torch.linalg.norm(x, dim=1), y),
        lambda m, x, y: (torch.fft.rfft(x, dim=1).real, y),
    ],
    "batch": [
        lambda m, x, y: (x - x.mean(0), y),
        lambda m, x, y: (x * x.shape[0], y),
        lambda m, x, y: (x, y.sum(0)),
        lambda m, x, y: (torch.cat([x, x]), y),
        lambda m, x, y: (x + torch.arange(x.shape[0]).flip(0)[:, None, None], y),
        lambda m, x, y: (x.unfold(0, 2, 1), y),
        lambda m, x, y: (torch.fft.rfft(x, dim=0).real, y),
        lambda m, x, y: (torch.linalg.norm(x, dim=0), y),
    ],
    "length of y": [
        lambda m, x, y: (x, y.amax(1)),
        lambda m, x, y: (x * y.shape[1], y),
        lambda m, x, y: (x + y.mean(1, keepdim=True),),
        lambda m, x, y: (F.scaled_dot_product_attention(x, y, y),),
        lambda m, x, y: ((x @ y.transpose(1, 2)).amax(-1),),
        lambda m, x, y: (torch.cat([y, x], 1),),
        lambda m, x, y: (x, y.unfold(1, 3, 1)),
        lambda m, x, y: (torch.fft.rfft(x @ y.transpose(1, 2), dim=2).real,),
        lambda m, x, y: (x, y.reshape(y.shape[0], 4, -1, C).mean(1)),
    ],
}
NUMBERED = [(name, i) for name, made in FAULTS.items() for i in range(len(made))]


@pytest.mark.parametrize(("name", "i"), [case if case[1] == 0 else long(*case) for case in NUMBERED])
def test_a_refusal_names_what_is_at_fault(name: str, i: int) -> None:
    model = Of(FAULTS[name][i]).eval()
    batch = rsn.Batch(1, 4)
    shapes = {"x": {0: batch, 1: rsn.Length(16, 32, 64)}, "y": {0: batch, 1: rsn.Length(24, 48)}}
    given = Arguments(inspect.signature(model.forward), (torch.randn(2, 16, C), torch.randn(2, 24, C)), shapes)
    with pytest.raises(UnsupportedError, match=f"^padding the {name} changes output "):
        Filling(model, given)
