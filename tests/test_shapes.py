"""One model, calls of many sizes: the family of programs behind `dynamic_shapes`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rsn  # noqa: E402 - torch first: it may be missing
from rsn.base.errors import ScheduleError, TensorError, UnsupportedError  # noqa: E402
from rsn.nn import Encoder  # noqa: E402
from rsn.rsnlib.shapes import Arguments, Dim  # noqa: E402

HIDDEN = 64


class Classifier(torch.nn.Module):
    """Words to a class per sequence and a state per word, padding hidden throughout."""

    def __init__(self, pooled: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pooled = pooled
        self.words = torch.nn.Embedding(50, HIDDEN)
        self.encoder = Encoder(1, HIDDEN, 2, 128)
        self.head = torch.nn.Linear(HIDDEN, 5)

    def forward(self, ids: Any, mask: Any = None, scale: float = 1.0, **more: Any) -> dict[str, Any]:
        states = self.encoder(self.words(ids), mask)
        weight = torch.ones_like(ids) if mask is None else mask
        mean = (states * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
        return {"states": states, "class": self.head(mean if self.pooled else states.mean(1)) * scale}


def inputs(batch: int, length: int, hidden: int = 0) -> dict[str, Any]:
    """The last `hidden` words of the first sequence are padding."""
    random = torch.Generator().manual_seed(batch * 1000 + length)
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - hidden :] = 0
    return {"ids": torch.randint(1, 50, (batch, length), generator=random), "mask": mask}


def family(model: Any, batch: Dim, length: Dim, example: dict[str, Any]) -> Any:
    shapes = {name: {0: batch, 1: length} for name in ("ids", "mask") if name in example}
    return rsn.compile(model, example, dynamic_shapes=shapes)


def difference(got: Any, wanted: Any) -> float:
    return max(float((got[name] - wanted[name]).abs().max() / wanted[name].abs().max()) for name in wanted)


@pytest.mark.long
def test_a_call_takes_the_smallest_program_that_it_fits_into() -> None:
    model = Classifier().eval()
    with family(model, rsn.Batch(1, 3), rsn.Length(20, 40), inputs(2, 30)) as compiled, torch.no_grad():
        for batch, length, taken in [(1, 20, (1, 20)), (2, 7, (3, 20)), (3, 21, (3, 40)), (1, 1, (1, 20))]:
            given = inputs(batch, length, hidden=length // 3)
            got, wanted = compiled(**given), model(**given)
            assert {name: x.shape for name, x in got.items()} == {name: x.shape for name, x in wanted.items()}
            own = length - length // 3
            got["states"], wanted["states"] = got["states"][:, :own], wanted["states"][:, :own]
            assert difference(got, wanted) < 1e-5
            assert compiled.last_run is compiled.program(*taken).last_run
        assert list(compiled.programs) == [(3, 20), (3, 40), (1, 20)]
        assert compiled.explain().startswith("3 x 40 rows")
        assert len(compiled.prepare().programs) == 4
        assert repr(compiled) == "<rsn.Family: batch 1|3, length 20|40; 4 programs so far>"


def test_by_position_and_without_optional_arguments() -> None:
    model = Classifier().eval()
    shapes = {"ids": {0: rsn.Batch(2, 4)}}
    ids = inputs(3, 16)["ids"]
    with rsn.compile(model, (ids,), dynamic_shapes=shapes) as compiled, torch.no_grad():
        assert difference(compiled(ids), model(ids)) < 1e-5
        assert list(compiled.programs) == [(4,)]


@pytest.mark.long
def test_where_nothing_hides_what_is_filled_in() -> None:
    model = Classifier().eval()
    example = {"ids": inputs(2, 16)["ids"]}
    with pytest.raises(
        UnsupportedError,
        match=r"padding the length changes output 0: aten.scaled_dot_product_attention.default at "
        r"encoder.layers.0.attn: .*no mask hides them; .*Length\(..., exact=True\)",
    ):
        family(model, rsn.Batch(2), rsn.Length(16, 32), example)
    with pytest.raises(UnsupportedError, match=r"padding the length changes output 1: aten\.mean\.dim at"):
        family(Classifier(pooled=False).eval(), rsn.Batch(2), rsn.Length(16, 32), inputs(2, 16))
    with family(model, rsn.Batch(2), rsn.Length(16, 32, exact=True), example) as compiled, torch.no_grad():
        ids = inputs(2, 32)["ids"]
        assert difference(compiled(ids=ids), model(ids)) < 1e-5
        there_are = "there are programs for batch 1 to 2, length 16; batch 1 to 2, length 32"
        with pytest.raises(TensorError, match=rf"^no program takes ids of \(2, 20\); {there_are}$"):
            compiled(ids=ids[:, :20])


class Doubled(torch.nn.Module):
    """Each sequence twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return torch.cat([y, y])


BATCH = rsn.Batch(1, 2)
BOTH = {"ids": {0: BATCH}, "mask": {0: BATCH}}


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        (
            BOTH,
            inputs(3, 16),
            r"no program takes ids of \(3, 16\), mask of \(3, 16\); there are programs for batch 1 to 2",
        ),
        (
            {"ids": {0: rsn.Batch(1, 2)}},
            {},
            r"the module cannot be called with a batch of 3 \(RuntimeError: .*\); dynamic_shapes must name every "
            "argument that has a batch: mask has one of 2",
        ),
        ({"words": {0: rsn.Batch(2)}}, {}, "dynamic_shapes: no argument 'words' in the example; there are ids, mask"),
        ({"ids": {2: rsn.Batch(2)}}, {}, "argument ids is 2x16; it needs an axis 2 for the batch"),
        ({"scale": {0: rsn.Batch(2)}}, {}, "argument scale is float; it needs an axis 0 for the batch"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, given: Any, message: str) -> None:
    example = {**inputs(2, 16), **({"scale": 2.0} if "scale" in shapes else {})}
    with pytest.raises(TensorError, match=f"^{message}$"):
        rsn.compile(Classifier().eval(), example, dynamic_shapes=shapes)(**given)


def test_what_belongs_together_has_one_size() -> None:
    with rsn.compile(Classifier().eval(), inputs(2, 16), dynamic_shapes=BOTH) as compiled:
        with pytest.raises(TensorError, match=r"^mask has a batch of 1, but ids has one of 2$"):
            compiled(inputs(2, 16)["ids"], inputs(1, 16)["mask"])
        with pytest.raises(TensorError, match="the module's arguments: missing a required argument: 'ids'"):
            compiled()


def test_outputs_that_cannot_be_cut() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"changes output 0: aten\.cat\.default at the top level: it appends something behind padding",
    ):
        rsn.compile(Doubled().eval(), (torch.randn(2, 4, 8),), dynamic_shapes={"x": {0: rsn.Batch(2, 4)}})


def test_sizes() -> None:
    with pytest.raises(TensorError, match=r"Batch\(\): give at least one size"):
        rsn.Batch()
    with pytest.raises(TensorError, match=r"Length\(0,\): give at least one size, each 1 or more"):
        rsn.Length(0)
    with pytest.raises(ScheduleError, match=r"with dynamic_shapes give sizes as rsn\.Length"):
        rsn.compile(Classifier().eval(), inputs(2, 16), lengths=[3, 4], dynamic_shapes=BOTH)  # type: ignore[call-overload]


class Of(torch.nn.Module):
    """What a function makes of a layer and an argument."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.layer, self.made = torch.nn.Linear(64, 64), made

    def forward(self, x: Any) -> Any:
        return self.made(self.layer, x)


@pytest.mark.parametrize(
    ("made", "shape", "dims", "message"),
    [
        *(
            (lambda s, x: s(x - x.mean(0, keepdim=True)), (n, 4, 64), {0: rsn.Batch(8)}, "padding the batch changes")
            for n in (1, 2, 3)
        ),
        (lambda s, x: s(x)[:, -1], (2, 1, 64), {1: rsn.Length(8)}, "padding the length changes output 0"),
        (lambda s, x: s(x) + x.amax(1, keepdim=True), (2, 4, 64), {1: rsn.Length(8)}, "padding the length changes"),
        (
            lambda s, x: (s(x), x.shape[1]),
            (2, 13, 64),
            {1: rsn.Length(30)},
            "output 1 is not a tensor and changes with the length: 13, 30",
        ),
    ],
)
def test_small_examples_are_looked_at_too(made: Any, shape: Any, dims: Any, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UnsupportedError, match=message):
        rsn.compile(Of(made).eval(), (torch.rand(shape),), dynamic_shapes={"x": dims})


@pytest.mark.parametrize("shapes", [{}, {"x": {}}, {"x": rsn.Batch(2)}, 5, {"x": {0: 2}}, {"x": {"0": rsn.Batch(2)}}])
def test_what_are_no_shapes(shapes: Any) -> None:
    with pytest.raises(TensorError, match=r"^dynamic_shapes.*rsn\.Batch\(1, 8\)"):
        rsn.compile(Classifier().eval(), inputs(2, 16), dynamic_shapes=shapes)


def test_a_dimension_is_its_sizes() -> None:
    assert rsn.Length(40, 128) == rsn.Length(128, 40) != rsn.Batch(40, 128)
    with pytest.raises(TensorError, match="sizes must be whole numbers"):
        rsn.Batch(True)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([[1]], [[1, 1, 1]]),
        ([[1, 1], [1, 0]], [[1, 1, 1], [1, 1, 1]]),
        ([[1, 1], [0, 1]], [[0, 1, 1], [1, 1, 1]]),
        ([[1, 0, 1]], [[1, 0, 1]]),
        ([[2, 1]], [[2, 1, 0]]),
    ],
    ids=["of one row", "right", "left", "a hole", "no mask"],
)
def test_masks_of_examples_show_all_rows(mask: Any, expected: Any) -> None:
    """Else no program for more rows than the example has could tell whether its mask is causal. Only the side of the
    padding is the example's."""

    def forward(mask: Any) -> None: ...

    arguments = Arguments(inspect.signature(forward), (torch.tensor(mask),), {"mask": {1: rsn.Length(3)}})
    assert arguments.example_of((3,))["mask"].tolist() == expected
