"""Products that share arrays of multipliers: the results of products that have their own, in fewer multipliers."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import ceil, gcd
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
torchao = pytest.importorskip("torchao")

from torch import nn  # noqa: E402 - torch first: it may be missing

from rsn.assembler import container  # noqa: E402
from rsn.benchmarks.hls_cycles import counted  # noqa: E402
from rsn.host.native_tasks import run_native  # noqa: E402
from rsn.host.tasks import run_tasks  # noqa: E402
from rsn.rsnlib.streamed import Knobs, streamed  # noqa: E402
from rsn.rsnlib.streamed.arrays import arrays_of, with_shared_arrays  # noqa: E402
from rsn.rsnlib.streamed.balance import _ports, _shared  # noqa: E402
from rsn.rsnlib.streamed.block import Streamed  # noqa: E402
from rsn.rsnlib.streamed.figures import facts, lines  # noqa: E402
from rsn.rsnlib.streamed.generate import DEFAULT, _widened, generate  # noqa: E402
from rsn.rsnlib.streamed.operators import OperatorGraph, StreamOperator  # noqa: E402
from rsn.rsnlib.streamed.search import tile_candidates  # noqa: E402
from rsn.streams.build import task_program  # noqa: E402
from rsn.streams.placing.devices import U55C  # noqa: E402
from rsn.tests.effort import cases, examples, full, long  # noqa: E402
from rsn.tests.streams.test_hls import built  # noqa: E402

from .quantised_models import CONFIGS  # noqa: E402

KINDS = (None, "with zero points", "int8 rows, int8 weights", "int4 in groups of 32")
"""Float32, and integers: with zero points of rows and without, with groups of weights."""


class Branches(nn.Module):
    """Products of the same rows, one behind the other, and beside each other behind a third; some without a bias."""

    def __init__(self, widths: tuple[int, int, int], biases: tuple[bool, ...]) -> None:
        super().__init__()
        inner, outer, hidden = widths
        self.first = nn.Linear(inner, hidden, bias=biases[0])
        self.second = nn.Linear(inner, hidden, bias=biases[1])
        self.up = nn.Linear(hidden, outer, bias=biases[2])
        self.down = nn.Linear(outer, inner, bias=biases[3])

    def forward(self, x: Any) -> Any:
        """Return rows of the same width."""
        return x + self.down(torch.relu(self.up(self.first(x) * self.second(x))))


def drawn(random: Random, kind: str | None) -> tuple[nn.Module, Any]:
    """A module of a kind, and rows for it."""
    torch.manual_seed(random.randrange(1 << 20))
    widths = random.choice([(64, 128, 64), (64, 96, 32), (128, 64, 192), (64, 224, 32)])
    model = Branches(widths, tuple(random.random() < 0.7 for _ in range(4))).eval()
    if kind is not None:
        torchao.quantization.quantize_(model, CONFIGS[kind]())
    return model, torch.randn(random.choice([1, 6, 8]), widths[0])


def bits(made: Streamed, x: Any) -> bytes:
    """The bits of the result of a run on the engine."""
    tensors = made.tensors(x)
    (output,) = made.written.outputs.values()
    found = run_tasks(made.machine, tensors).outputs[output]
    return made.written.elements(output, found).tobytes()


def test_results_are_those_of_products_with_their_own_multipliers() -> None:
    """For float32 and all kinds of integers, in any number of arrays and row tiles, from one group of kernels or
    several."""
    random = Random(7)
    for number in range(cases(40, 2)):
        kind = KINDS[number % len(KINDS)]
        model, x = drawn(random, kind)
        knobs = Knobs(rows=random.choice([1, 3, 4]), columns=16, depth=random.choice([16, 32]), packed=number % 3 % 2)
        shared = streamed(model, (x,), replace(knobs, arrays=random.choice([1, 2, 4, 5])))
        arrays = [plan for y, plan in shared.plans.items() if y.op == "array"]
        assert arrays
        assert not any(y.op == "linear" for y in shared.plans)
        if number % 5 == 4:
            names = [node.name for node in shared.dataflow.nodes]
            shared = shared.changed(groups={name: int(k > len(names) // 2) for k, name in enumerate(names)})
        assert bits(shared, x) == bits(streamed(model, (x,), knobs), x), (number, kind, shared.knobs)


class Uneven(nn.Module):
    """Two products of the same rows, one with twice the columns of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 64), nn.Linear(32, 32)
        self.of_wide, self.of_narrow = nn.Linear(64, 64), nn.Linear(32, 64)

    def forward(self, x: Any) -> Any:
        """Return rows of twice the width."""
        return self.of_wide(torch.relu(self.wide(x))) + self.of_narrow(torch.relu(self.narrow(x)))


@pytest.mark.parametrize("natively", [False, long(True)])
def test_arrays_with_fewer_tiles_drop_the_rows_of_others(natively: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Uneven().eval(), torch.randn(6, 32)
    torchao.quantization.quantize_(model, CONFIGS["with zero points"]())
    knobs = Knobs(rows=3, columns=16, depth=16, packed=1, arrays=4)
    made = streamed(model, (x,), knobs)
    assert "drop(" in made.text
    assert bits(made, x) == bits(streamed(model, (x,), replace(knobs, arrays=0)), x)
    if natively:
        tensors = made.tensors(x)
        (output,) = made.written.outputs.values()
        region = built(tmp_path, {"block": task_program(made.report.region)})["block"]
        assert (
            run_native(region, tensors)[output].tobytes() == run_tasks(made.machine, tensors).outputs[output].tobytes()
        )


@given(
    widths=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    turns=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    arrays=st.integers(1, 9),
)
@examples(300, 30)
def test_all_columns_are_dealt_to_arrays(widths: list[int], turns: list[int], arrays: int) -> None:
    """Each number of a weight is in one array, and no array is without products. A number of arrays that divides the
    tiles of all products is taken."""
    left = [StreamOperator(f"x_{k}", "memory", (), (1, 2, 8)) for k in range(3)]
    products = []
    for k, (width, turn) in enumerate(zip(widths, turns, strict=False)):
        data = np.arange(8 * 4 * width, dtype=np.float32).reshape(1, 8, 4 * width)
        weight = StreamOperator(f"w_{k}", "memory", (), data.shape, data=data)
        names = {"operand_names": ("x", "weight"), "bias": None}
        products.append(StreamOperator(f"p_{k}", "linear", (left[turn], weight), (1, 2, 4 * width), names))
    graph = OperatorGraph((*left, *(x.operands[1] for x in products), *products), tuple(products))
    common = 4 * reduce(gcd, widths)
    shared = with_shared_arrays(graph, Knobs(columns=common, depth=4, arrays=arrays))
    made = arrays_of(shared.kernels)
    (arrays_made,) = {x.attributes["arrays"] for x in made}
    assert len(made) == len(arrays_made.names) <= arrays
    assert all(arrays_made.of_array(k) for k in range(len(made)))
    dealt = np.sort(np.concatenate([x.operands[0].data.reshape(-1) for x in made]))  # type: ignore[union-attr]
    whole = np.sort(np.concatenate([x.operands[1].data.reshape(-1) for x in products]))  # type: ignore[union-attr]
    np.testing.assert_array_equal(dealt, whole)
    if all(width * 4 // common % arrays == 0 for width in widths):
        assert len(made) == arrays


def test_a_search_tries_arrays_for_products_of_integers() -> None:
    """But not where their number is fixed, or all sizes of a tile."""
    model, x = drawn(Random(1), "int8 rows, int8 weights")
    block = streamed(model, (x,), DEFAULT)
    assert {knobs.arrays for knobs in tile_candidates(block, DEFAULT, ())} == {0, 12}
    assert {knobs.arrays for knobs in tile_candidates(block, DEFAULT, ("rows", "columns"))} == {0, 12}
    two = replace(DEFAULT, arrays=2)
    found = tile_candidates(block.changed(two), two, ("arrays",))
    assert {(knobs.rows, knobs.arrays) for knobs in found} >= {(DEFAULT.rows, 2), (8, 2)}
    assert tile_candidates(block, DEFAULT, ("rows", "columns", "depth")) == (DEFAULT,)
    plain, rows = drawn(Random(1), None)
    assert {knobs.arrays for knobs in tile_candidates(streamed(plain, (rows,), DEFAULT), DEFAULT, ())} == {0}


def test_what_does_not_share() -> None:
    """A product that is alone of its kind, or has knobs of its own; with one array for each kind."""
    model, x = drawn(Random(1), None)
    names = [y.name for y in streamed(model, (x,)).plans if y.op == "linear"]
    made = streamed(model, (x,), Knobs(arrays=2, of={names[0]: {"columns": 8}}))
    assert [y.name for y in made.plans if y.op == "linear"] == names[:1]
    assert sum(y.op == "array" for y in made.plans) == 2
    alone = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32))
    assert streamed(alone.eval(), (x[:, :64],), Knobs(arrays=2)).text == streamed(alone, (x[:, :64],)).text


@pytest.mark.parametrize("kind", ["with zero points", long("int8 rows, int8 weights"), long(None)])
def test_balance_sees_nearly_the_time_of_the_block_that_it_chooses(kind: str | None) -> None:
    """Also of arrays whose fewest units are many, and of lanes so wide that loops take little but their depth."""
    torch.manual_seed(0)
    model = Branches((64, 128, 64), (True,) * 4).eval()
    if kind is not None:
        torchao.quantization.quantize_(model, CONFIGS[kind]())
    layers = nn.Sequential(model, nn.LayerNorm(64)).eval()
    knobs = replace(DEFAULT, rows=1, columns=64, depth=64, arrays=2)
    made, cycles = _shared(streamed(layers, (torch.randn(1, 64),), knobs), U55C, 1000, 1 << 20, 0.0)
    times = made.sized().together({})
    assert times is not None
    assert cycles == pytest.approx(times.latency, rel=0.1)


def test_arrays_that_get_more_tiles_have_a_port_of_their_own() -> None:
    torch.manual_seed(0)
    model = Uneven().eval()
    torchao.quantization.quantize_(model, CONFIGS["with zero points"]())
    knobs = Knobs(rows=3, columns=16, depth=16, packed=1, arrays=4)
    made = streamed(model, (torch.randn(6, 32),), knobs)
    tiles = {x.name: x.operands[0].shape for x in made.plans if x.op == "array"}
    holders = [holder for holder in _ports(made, knobs, U55C) if {*holder.operators} <= {*tiles}]
    assert len(holders) == len({*tiles.values()}) > 1
    assert all(len({tiles[name] for name in holder.operators}) == 1 for holder in holders)


def test_other_kernels_of_one_row_have_tiles_as_wide_as_all_arrays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).eval()
    torchao.quantization.quantize_(model, CONFIGS["int8 rows, int8 weights"]())
    knobs = replace(DEFAULT, rows=1, depth=64, arrays=16)
    widened = _widened(streamed(model, (torch.randn(1, 1024),), knobs), U55C)
    assert {chosen["columns"] for chosen in widened.of.values()} == {1024}


@pytest.mark.parametrize(("width", "hidden", "dsps"), [(64, 128, 600), full(128, 512, 1000)])
def test_other_kernels_gain_nothing_by_another_begin_beside_arrays(width: int, hidden: int, dsps: int) -> None:
    """If the sizes of the arrays are given, balance ends where it does when it finds them, or later."""
    torch.manual_seed(0)
    model = Branches((width, hidden, width), (True,) * 4).eval()
    torchao.quantization.quantize_(model, CONFIGS["int8 rows, int8 weights"]())
    layers = nn.Sequential(nn.LayerNorm(width), model, nn.LayerNorm(width), nn.GELU()).eval()
    block = streamed(layers, (torch.randn(8, width),), replace(DEFAULT, rows=1, columns=64, depth=64, arrays=2))
    made, cycles = _shared(block, U55C, dsps, 1 << 20, 0.0)
    of = {node.name: {"unroll": made.units[node.name]} for node in made.arrays}
    assert cycles <= _shared(block.changed(replace(block.knobs, of=of)), U55C, dsps, 1 << 20, 0.0)[1]


@pytest.mark.parametrize("kind", [full(None), full("with zero points"), full("int4 in groups of 32")])
def test_cpp_has_one_array_for_all_products(kind: str | None, tmp_path: Path) -> None:
    """With the bits of the engine, the cycles of the model, and the multiplications of one product. No unit takes
    longer than it is modelled with: kernels with scales of groups and loads of weights, too."""
    torch.manual_seed(0)
    model, x = Branches((64, 128, 64), (True,) * 4).eval(), torch.randn(8, 64)
    if kind is not None:
        torchao.quantization.quantize_(model, CONFIGS[kind]())
    # Fewer units than a tile has multiply-adds: a product that is no loop takes no time for the checker.
    made = generate(model, (x,), U55C, replace(DEFAULT, rows=4, columns=16, depth=32, arrays=2, unroll=128))
    region = built(tmp_path, {"block": task_program(made.streamed.report.region)})["block"]
    tensors = made.streamed.tensors(x)
    (output,) = made.streamed.written.outputs.values()
    wanted = run_tasks(made.streamed.machine, tensors).outputs[output]
    assert run_native(region, tensors)[output].tobytes() == wanted.tobytes()
    file = tmp_path / "block.bin"
    container.write(made.machine, file)
    found = counted(file)
    assert not found.report.findings
    assert {unit.name for unit in found.units} >= {*made.streamed.units}
    assert not [unit for unit in found.units if unit.derived > round(unit.modelled)]
    names = [node.name for node in made.streamed.arrays]
    (on_path,) = (unit for unit in found.units if unit.name in names and unit.path)
    assert on_path.derived == pytest.approx(on_path.modelled, rel=0.15)
    for node in made.streamed.arrays:
        name = node.name
        loops = [loop for loop in found.report.loops if loop.function == f"{name}_product_0"]
        units, fabric = made.streamed.units[name], made.streamed.fabric[name]
        shared = 2 if node.attributes["types"] == ("i16", "i4") else 1
        assert [ceil(loop.multiplications / loop.stated) for loop in loops] == [(units - fabric) // shared]
    assert sum("array" in line.split()[1:2] for line in lines(made)) == 2
    assert [facts(made)["kernels"][node.name]["group"] for node in made.streamed.arrays] == [None, None]
