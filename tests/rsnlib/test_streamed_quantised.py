"""Machines of quantised models: kernels of integers have the bits of `base.quantised`, on the engine and in C++."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")  # it defines operators, and so does torchao
torchao = pytest.importorskip("torchao")

from dataclasses import replace  # noqa: E402 - torch first: it may be missing
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
from torch import nn  # noqa: E402

from rsn.assembler import container  # noqa: E402
from rsn.base.errors import UnsupportedError  # noqa: E402
from rsn.benchmarks.hls_cycles import counted  # noqa: E402
from rsn.host.native_tasks import run_native  # noqa: E402
from rsn.host.tasks import run_tasks  # noqa: E402
from rsn.rsnlib.capture import lifted, packet, run  # noqa: E402
from rsn.rsnlib.normal_form.passes import capture  # noqa: E402
from rsn.rsnlib.quantised_ops import DEQUANTISE  # noqa: E402
from rsn.rsnlib.streamed import Knobs, streamed  # noqa: E402
from rsn.rsnlib.streamed.balance import balanced  # noqa: E402
from rsn.rsnlib.streamed.block import Streamed  # noqa: E402
from rsn.rsnlib.streamed.figures import lines  # noqa: E402
from rsn.rsnlib.streamed.generate import DEFAULT, FILL, Rule, generate  # noqa: E402
from rsn.rsnlib.streamed.resources import area, multiply_add_dsps  # noqa: E402
from rsn.streams.build import task_program  # noqa: E402
from rsn.streams.dataflow.graph import KernelNode  # noqa: E402
from rsn.streams.placing.devices import U55C, VC1902  # noqa: E402
from rsn.tests.effort import full, long, sampled  # noqa: E402
from rsn.tests.streams.test_hls import built  # noqa: E402

from .quantised_models import CONFIGS, OF_INTEGERS, OF_WEIGHTS, calibrated, quantised  # noqa: E402

BY_ROWS = [name for name in OF_INTEGERS if name != "one scale a tensor"]
ROWS = 6
KNOBS = Knobs(rows=3, columns=16, depth=16, packed=1)
Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def perceptron(config: str) -> Made:
    """A quantised perceptron without a function whose last bits PyTorch and kernels have differently. Its rows are of
    all sizes, of one sign, and zeros."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32, bias=False)).eval()
    torchao.quantization.quantize_(model, CONFIGS[config if "128" not in config else "int4 in groups of 64"]())
    x = torch.randn(ROWS, 128) * torch.tensor([1e-6, 1.0, 30.0, 1e4, 1.0, 0.0])[:, None]
    x[4] = x[4].abs()
    return model, (x,)


def defined(made: Made) -> Any:
    """What the normal form of a model computes: its operators on integers are `base.quantised`. Several results are a
    list."""
    model, given = made
    program = capture(model, given, {})
    values = lifted(program)
    arguments = [x for x in program.graph.find_nodes(op="placeholder") if x not in values]
    values.update(zip(arguments, given, strict=True))
    run([x for x in program.graph.nodes if x.op == "call_function"], values)
    results = [values[x] for x in program.graph.output_node().args[0]]
    return results[0] if len(results) == 1 else results


def on_engine_and_native(made: dict[str, Streamed], given: dict[str, Any], path: Path) -> dict[str, Any]:
    """Results of programs, by name, which have the same bits on the engine and in C++."""
    regions = built(path, {name: task_program(one.report.region) for name, one in made.items()})
    results = {}
    for name, one in made.items():
        tensors = one.tensors(*given[name])
        (output,) = one.written.outputs.values()
        outputs = run_tasks(one.machine, tensors).outputs[output]
        assert outputs.tobytes() == run_native(regions[name], tensors)[output].tobytes(), name
        results[name] = one.written.elements(output, outputs)
    return results


@pytest.mark.long
def test_products_of_integers_have_the_bits_of_their_definition(tmp_path: Path) -> None:
    """And so those of PyTorch, within 1e-6 of the largest value of each row where only one product is between. Weights
    lie off the chip in their types, two i4 in a byte."""
    models = {config.replace(" ", "_").replace(",", ""): perceptron(config) for config in BY_ROWS}
    made = {name: streamed(*model, KNOBS) for name, model in models.items()}
    given = {name: model[1] for name, model in models.items()}
    results = on_engine_and_native(made, given, tmp_path)
    for name, one in made.items():
        wanted = defined(models[name]).numpy()
        assert results[name].tobytes() == wanted.tobytes(), name
        first, _ = (x for x in one.plans if x.op == "linear")
        assert first.multiplies_integers
        bits = 4 if name.startswith("int4") else 8
        tensor = f"{first.name}_weight"
        assert one.written.dtypes[tensor] == f"i{bits}"
        assert one.written.tensor_bytes(tensor) == 128 * 64 * bits // 8
        # Scales and integers of rows are those of the definition in any case: rows do not see each other.
        layer, x = nn.Sequential(models[name][0][0]).eval(), given[name]
        got = streamed(layer, x, KNOBS).run(*x)
        with torch.no_grad():
            expected = layer(*x)
        assert ((got - expected).abs().amax(1) <= 1e-6 * expected.abs().amax(1)).all(), name


@pytest.mark.parametrize("config", sampled(OF_WEIGHTS, ("only int4 weights",)))
def test_weights_are_dequantised_on_the_chip(config: str, tmp_path: Path) -> None:
    """With the bits of the same machine in float32, whose weights are what the integers stand for."""
    model, given = perceptron(config)
    program = capture(model, given, {})
    values = lifted(program)
    run([x for x in program.graph.nodes if packet(x) in (torch.ops.aten._to_copy, DEQUANTISE)], values)
    plain = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32, bias=False)).eval()
    dequantised = [x for x in program.graph.nodes if packet(x) is DEQUANTISE]
    assert len(dequantised) == 2
    with torch.no_grad():
        plain[0].bias.copy_(model[0].bias)
        for layer, node in zip((plain[0], plain[2]), dequantised, strict=True):
            layer.weight.copy_(values[node])
    made = streamed(model, given, KNOBS)
    assert {x.operands[1].dtype for x in made.plans if x.op == "linear"} == {"i4" if "int4" in config else "i8"}
    (result,) = on_engine_and_native({"machine": made}, {"machine": given}, tmp_path).values()
    assert result.tobytes() == streamed(plain, given, KNOBS).run(*given).numpy().tobytes()


def test_static_scales() -> None:
    """Rows get integers element by element, without a scale for each row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    given = (torch.randn(2, 8, 64),)
    made = calibrated(model, given)
    one = streamed(made, given, KNOBS)
    assert "quantise" not in {x.op for x in one.plans}
    assert sum(x.op == "linear" and x.multiplies_integers for x in one.plans) == 2
    assert one.run(*given).numpy().tobytes() == defined((made, given)).numpy().tobytes()
    with torch.no_grad():
        assert (one.run(*given) - made(*given)).abs().max() < 2e-2 * made(*given).abs().max()


class Rows(nn.Module):
    """Rows that two layers quantise, and that are a result too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = nn.functional.relu(x)
        return self.last(self.one(rows) * nn.functional.relu(self.two(rows))), rows - x


@pytest.mark.parametrize("columns", [long(16), full(32)])
def test_a_kernel_makes_scales_zero_points_and_integers(columns: int, tmp_path: Path) -> None:
    """Layers that quantise the same rows share one, unless their ranges differ."""
    torch.manual_seed(0)
    configs = {
        kind: CONFIGS[name]() for kind, name in (("plain", "int8 rows, int8 weights"), ("zeros", "with zero points"))
    }
    models: dict[str, Made] = {}
    for first in configs:
        for second in configs:
            model = Rows().eval()
            torchao.quantization.quantize_(model, configs[first], lambda module, path: path in ("one", "last"))
            torchao.quantization.quantize_(model, configs[second], lambda module, path: path == "two")
            models[f"{first}_{second}"] = model, (torch.randn(ROWS, 32) * 3 + 0.5,)
    knobs = Knobs(rows=3, columns=columns, depth=16, packed=1)
    made = {name: streamed(*model, knobs) for name, model in models.items()}
    regions = built(tmp_path, {name: task_program(one.report.region) for name, one in made.items()})
    for name, one in made.items():
        first, second = name.split("_")
        assert sum(x.op == "quantise" for x in one.plans) == (2 if first == second else 3)
        tensors = one.tensors(*models[name][1])
        outputs, native = run_tasks(one.machine, tensors).outputs, run_native(regions[name], tensors)
        assert {key: x.tobytes() for key, x in outputs.items()} == {key: x.tobytes() for key, x in native.items()}
        for got, wanted in zip(one.run(*models[name][1]), defined(models[name]), strict=True):
            assert got.numpy().tobytes() == wanted.numpy().tobytes(), name


def test_scales_of_other_rows_are_refused() -> None:
    class Other(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x, y, block = nn.functional.relu(x), nn.functional.relu(y), (1, x.shape[-1])
            types = torch.float32, torch.int32
            scale, zero = torch.ops.torchao.choose_qparams_affine(
                x, "SYMMETRIC", block, torch.int8, -128, 127, 1e-6, *types
            )
            return torch.ops.torchao.quantize_affine(y, block, scale, zero, torch.int8, -128, 127)

    with pytest.raises(UnsupportedError, match="its scales, or zero points, are those of other rows"):
        streamed(Other().eval(), (torch.randn(4, 8), torch.randn(4, 8)))


@pytest.mark.parametrize("config", [full("int8 rows, int8 weights"), full("int4 in groups of 32"), "only int4 weights"])
def test_an_encoder_layer_as_a_machine(config: str) -> None:
    """Its linear layers multiply integers; its attention stays float32, and the table says so."""
    model, given = quantised("encoder", config)
    made = generate(model, given, U55C)
    with torch.no_grad():
        wanted = model(*given)
    assert (made.streamed.run(*given) - wanted).abs().max() < 2e-2 * wanted.abs().max()
    told = [line.split("  ")[-1] for line in lines(made) if line.endswith(("8", "4", "32", "dequantised"))]
    of_weights = {"int8 rows, int8 weights": "i8 x i8", "int4 in groups of 32": "i8 x i4"}
    assert told.count(of_weights.get(config, "f32 x i4, dequantised")) == 6
    assert told.count("f32 x f32") == 2
    of_rows = [x.name for x in made.streamed.plans if x.op == "quantise"]
    assert len(of_rows) == (0 if "only" in config else 4)  # queries, keys and values share one


@pytest.mark.parametrize(
    "config", [full("int8 rows, int8 weights"), full("int4 in groups of 32"), long("only int4 weights")]
)
def test_the_source_has_the_cycles_that_are_modelled(config: str, tmp_path: Path) -> None:
    model, given = quantised("rows", config)
    machine = generate(model, (given[0].repeat(8, 1)[:32],), U55C)
    file = tmp_path / "block.bin"
    container.write(machine.machine, file)
    found = counted(file)
    assert not found.report.findings
    assert found.path == pytest.approx(machine.cycles, rel=0.1)
    assert max(taken.cycles for _, taken in found.report.processes) <= found.modelled


@pytest.mark.parametrize("rule", ["balanced", long("printed")])
def test_products_of_integers_cost_what_they_take(rule: Rule) -> None:
    """More multiply-adds than there is room for in float32."""
    model, given = quantised("rows", "int4 in groups of 32")
    made = generate(model, (given[0].repeat(8, 1)[:32],), U55C, rule=rule)
    products = [x for x in made.streamed.plans if x.op == "linear"]
    assert all(x.multiplies_integers for x in products)
    assert sum(made.streamed.units[x.name] for x in products) * multiply_add_dsps(U55C) > FILL * U55C.total["DSP"]
    assert made.used()["DSP"] <= FILL * U55C.total["DSP"]
    assert made.bounds_s["multipliers"] < made.latency_s


def test_multiply_adds_in_luts() -> None:
    """Where DSPs are short and LUTs are not, a part of each product multiplies in LUTs, and that saves time."""
    model, given = quantised("rows", "int4 in groups of 32")
    block = streamed(model, (given[0].repeat(8, 1)[:32],), DEFAULT)
    dsps, luts = 1500, 400_000
    plain, both = (balanced(block, U55C, dsps, 1 << 20, n) for n in (0, luts))
    assert not any(plain.fabric.values())
    for made in (plain, both):
        areas = [area(node, made.units[node.name], U55C, made.fabric[node.name]) for node in made.dataflow.nodes]
        assert sum(x["DSP"] for x in areas) <= 1.01 * dsps  # a unit costs what one of many does
        assert made is plain or sum(x["LUT"] for x in areas) <= luts
    products = [x.name for x in both.plans if x.op == "linear"]
    assert all(0 < both.fabric[name] < both.units[name] for name in products)
    times = [made.sized().times(made.sized().declared) for made in (plain, both)]
    assert times[1].latency < times[0].latency
    of_task = {task.name: dict(task.rates) for task in task_program(both.report.region).tasks}
    assert {name: of_task[name]["fabric"] for name in products} == {name: both.fabric[name] for name in products}


def test_scales_that_all_rows_share_are_refused() -> None:
    model, given = quantised("rows", "one scale a tensor")
    with pytest.raises(UnsupportedError, match=r"its scale is neither one constant nor one number for each row"):
        streamed(model, given)


def test_multipliers_of_integers() -> None:
    """Two products of i4 share a DSP, but not with zero points of the weight, which add a bit to its wide operand."""
    assert multiply_add_dsps(U55C) == 5
    assert [multiply_add_dsps(U55C, t) for t in (("i8", "i8"), ("i16", "i4"), ("i8", "i16"))] == [1, 0.5, 1]
    for device in (U55C, VC1902):
        dsps = [
            area(KernelNode("x", "linear", {"types": types, "tm": 32}), lanes, device)["DSP"]
            for types in (("i8", "i4"), ("i8", "i8"))
            for lanes in (0, 101)
        ]
        assert np.diff(dsps)[[0, 2]].tolist() == [51, 101]


@pytest.mark.parametrize(
    ("config", "kernels"),
    [
        long("with zero points", 1),
        full("with zero points", 2),
        *(full(config, kernels) for config in ("int8 rows, int8 weights", "only int8 weights") for kernels in (1, 2)),
    ],
)
def test_sequences_of_any_length(config: str, kernels: int) -> None:
    """Rows that only cover the last tile have no part in scales of others."""
    model, (x,) = perceptron(config)
    knobs = replace(KNOBS, kernels=kernels)
    made = streamed(model, (x,), knobs, any_length=True)
    for rows in (ROWS, 1, 4):
        assert torch.equal(made.run(x[:rows]), streamed(model, (x[:rows],), knobs).run(x[:rows]))
