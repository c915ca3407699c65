"""Checkpoints in the format compressed-tensors, which the tests write by its layout: read bit by bit, or refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from safetensors.torch import save_file
from torch import nn

import rsn
from rsn.base import quantised as definition
from rsn.base.errors import RsnError, TensorError, UnsupportedError
from rsn.rsnlib.capture import packet
from rsn.rsnlib.checkpoint import QuantisedLinear
from rsn.rsnlib.normal_form.passes import capture
from rsn.rsnlib.quantised_ops import INTEGER_LINEAR
from rsn.rsnlib.streamed import Knobs, streamed
from rsn.tests.effort import long

Array = np.ndarray
ROWS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None}


def packed(integers: Array, bits: int) -> torch.Tensor:
    """Integers (N, K) as words: K * bits / 32 of them a row, rounded up; the first integer in the lowest bits."""
    rows, count = integers.shape
    words = np.zeros((rows, -(-count * bits // 32)), np.uint32)
    for column in range(count):
        field = (integers[:, column].astype(np.int64) + (1 << (bits - 1))).astype(np.uint32)
        words[:, column * bits // 32] |= field << np.uint32(column * bits % 32)
    return torch.from_numpy(words.view(np.int32))


@dataclass
class Stored:
    """A checkpoint to write: its config, its tensors, and of each quantised layer integers, scales and zero points."""

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    layers: dict[str, tuple[Array, Array, Array | None]]

    @property
    def weights(self) -> dict[str, Any]:
        weights: dict[str, Any] = self.config["config_groups"]["group_0"]["weights"]
        return weights

    def write(self, folder: Path) -> Path:
        text = json.dumps({"model_type": "any", "quantization_config": self.config})
        (folder / "config.json").write_text(text, encoding="utf-8")
        save_file({name: x.contiguous() for name, x in self.tensors.items()}, folder / "model.safetensors")
        return folder


def stored(
    model: nn.Module,
    form: str = "pack-quantized",
    bits: int = 4,
    strategy: str = "group",
    group: int = 32,
    is_symmetric: bool = True,
    rows: dict[str, Any] | None = None,
    ignore: tuple[str, ...] = (),
    scales: torch.dtype = torch.float32,
) -> Stored:
    """Random integers for the linear layers of a model, and random numbers for what else it has."""
    drawn = np.random.default_rng(0)
    low, high = -(1 << (bits - 1)), 1 << (bits - 1)
    weights = {"num_bits": bits, "type": "int", "symmetric": is_symmetric, "strategy": strategy, "dynamic": False}
    weights |= {"group_size": group if strategy == "group" else None, "observer": "minmax"}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": rows, "output_activations": None}
    config = {"quant_method": "compressed-tensors", "format": form, "ignore": list(ignore), "kv_cache_scheme": None}
    config |= {"config_groups": {"group_0": scheme}, "quantization_status": "compressed"}
    made = Stored(config, {}, {})
    for path, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or path in ignore:
            continue
        count, columns = layer.out_features, layer.in_features
        shape = (count, columns // group if strategy == "group" else 1)
        integers = drawn.integers(low, high, (count, columns)).astype(np.int8)
        scale = drawn.uniform(0.001, 0.02, (1,) if strategy == "tensor" else shape).astype(np.float32)
        kept = torch.from_numpy(scale).to(scales)
        zero = None if is_symmetric else drawn.integers(low, high, scale.shape).astype(np.int8)
        if form == "pack-quantized":
            made.tensors[f"{path}.weight_packed"] = packed(integers, bits)
            made.tensors[f"{path}.weight_shape"] = torch.tensor([count, columns])
        else:
            made.tensors[f"{path}.weight"] = torch.from_numpy(integers)
        made.tensors[f"{path}.weight_scale"] = kept
        if zero is not None:
            is_packed = form == "pack-quantized" and strategy != "tensor"
            made.tensors[f"{path}.weight_zero_point"] = packed(zero.T, bits).T if is_packed else torch.from_numpy(zero)
        full = [None if x is None else np.broadcast_to(x, shape) for x in (kept.float().numpy(), zero)]
        made.layers[path] = integers, full[0], full[1]  # type: ignore[assignment]
    for name, x in model.named_parameters():
        if name.removesuffix(".weight") not in made.layers:
            made.tensors[name] = torch.from_numpy(drawn.standard_normal(x.shape).astype(np.float32))
    return made


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return rsn.nn.Encoder(layers=1, hidden=64, heads=2, inner=96).eval()


def one(columns: int = 96) -> nn.Module:
    return nn.Sequential(nn.Linear(columns, 36), nn.Linear(36, 5)).eval()


LAYOUTS = {
    "int4 in groups": {},
    "int4 in groups, with zero points": {"is_symmetric": False},
    "int4 rows": {"strategy": "channel"},
    "int4 rows, with zero points": {"strategy": "channel", "is_symmetric": False},
    "packed int8 in groups": {"bits": 8},
    "int8 rows": {"form": "int-quantized", "bits": 8, "strategy": "channel"},
    "int8 rows, with zero points": {"form": "int-quantized", "bits": 8, "strategy": "channel", "is_symmetric": False},
    "int8 tensors": {"form": "int-quantized", "bits": 8, "strategy": "tensor"},
    "int4 tensors, with zero points": {"strategy": "tensor", "is_symmetric": False},
    "scales in bfloat16": {"scales": torch.bfloat16},
}


@pytest.mark.parametrize("rows", [None, ROWS, {**ROWS, "symmetric": False}], ids=["float32", "int8", "zero points"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_read_bit_by_bit(layout: str, rows: dict[str, Any] | None, tmp_path: Path) -> None:
    """Integers, scales and zero points; and the layer computes what these stand for."""
    model = encoder()
    given = stored(model, rows=rows, **LAYOUTS[layout])  # type: ignore[arg-type]
    rsn.load_checkpoint(model, given.write(tmp_path))
    x = torch.randn(3, 5, 64)
    assert len(given.layers) == 6
    for path, (integers, scale, zero) in given.layers.items():
        layer = model.get_submodule(path)
        assert isinstance(layer, QuantisedLinear)
        assert np.array_equal(layer.weight, integers)
        assert np.array_equal(layer.weight_scale, scale)
        assert layer.weight_zero is None if zero is None else np.array_equal(layer.weight_zero, zero)
        assert torch.equal(layer.bias, given.tensors[f"{path}.bias"])
        if layer.weight.shape[1] != 64:
            continue
        bias = layer.bias.detach().numpy()
        if rows is None:
            wanted = (
                x.numpy().astype(np.float64) @ definition.dequantise(integers, scale, zero).astype(np.float64).T + bias
            )
        else:
            tiny = float(np.finfo(np.float32).smallest_normal)
            of_rows = definition.row_scales(x.numpy(), -128, 127, is_symmetric=rows["symmetric"], least=tiny)
            whole = definition.quantise(x.numpy(), *of_rows, -128, 127)
            wanted = definition.integer_linear(whole, *of_rows, integers, scale, zero, bias)
        got = layer(x).detach().numpy()
        assert np.abs(got - wanted).max() < 1e-6 * np.abs(wanted).max()
    for name, x in model.named_parameters():
        assert torch.equal(x, given.tensors[name])


@pytest.mark.parametrize("rows", [None, ROWS], ids=["float32", "int8"])
def test_a_filled_module_runs_on_the_machine(rows: dict[str, Any] | None, tmp_path: Path) -> None:
    """The same operators as of a model that torchao quantised: products of integers, or of dequantised weights."""
    model, x = encoder(), (torch.randn(2, 7, 64),)
    rsn.load_checkpoint(model, stored(model, rows=rows).write(tmp_path))
    operators = [packet(node) for node in capture(model, x, {}).graph.nodes]
    assert operators.count(INTEGER_LINEAR) == (0 if rows is None else 6)
    if rows is not None:
        with pytest.warns(UserWarning, match=r"^6 products of integers"):
            compiled = rsn.compile(model, x)
    else:
        compiled = rsn.compile(model, x)
    with compiled, torch.no_grad():
        wanted = model(*x)
        assert (compiled(*x) - wanted).abs().max() < (1e-5 if rows is None else 2e-2) * wanted.abs().max()
        types = "float32 x int4 in groups of 32" if rows is None else "int8 x int4 in groups of 32"
        assert types in compiled.explain()


@pytest.mark.parametrize("rows", [long(None), ROWS], ids=["float32", "int8"])
def test_a_filled_module_has_a_machine_of_its_own(rows: dict[str, Any] | None, tmp_path: Path) -> None:
    """Whose weights lie off the chip in 4 bits, with the scales of the checkpoint."""
    torch.manual_seed(1)
    model, x = encoder(), torch.randn(1, 8, 64)
    given = stored(model, rows=rows)
    rsn.load_checkpoint(model, given.write(tmp_path))
    made = streamed(model, (x,), Knobs(rows=4, columns=16, depth=32, packed=1))
    products = [y for y in made.plans if y.op == "linear"]
    assert len(products) == 6
    assert [y.multiplies_integers for y in products] == [rows is not None] * 6
    assert {made.written.dtypes[f"{y.name}_weight"] for y in products} == {"i4"}
    lying = {made.written.inputs[f"{y.name}_weight_scale"].tobytes() for y in products}  # type: ignore[union-attr]
    assert lying == {np.ascontiguousarray(scale.T).tobytes() for _, scale, _ in given.layers.values()}
    with torch.no_grad():
        wanted = model(x)
    # A step of an integer, where rounding is between two of them.
    assert (made.run(x) - wanted).abs().max() < (1e-6 if rows is None else 2e-2) * wanted.abs().max()


@pytest.mark.parametrize("is_symmetric", [True, long(False)])
def test_a_filled_module_runs_in_integers(is_symmetric: bool, tmp_path: Path) -> None:
    """On overlay xnn8: groups of 4 bits, and with zero points 8 bits."""
    torch.manual_seed(1)
    model, x = encoder(), torch.randn(1, 8, 64)
    rsn.load_checkpoint(model, stored(model, rows=ROWS, is_symmetric=is_symmetric).write(tmp_path))
    with rsn.compile(model, (x,), overlay="xnn8") as compiled, torch.no_grad():
        got, wanted = compiled(x), model(x)
        assert f"int4 in groups of 32  {4 if is_symmetric else 8}     6" in compiled.explain()
    assert torch.equal(got, rsn.in_integers(model, (x,))(x))
    assert (got - wanted).abs().max() < 2e-2 * wanted.abs().max()


def test_files_with_an_index(tmp_path: Path) -> None:
    """The tensors lie in several files; half precision is widened; what is ignored has a plain weight."""
    model = one()
    given = stored(model, ignore=("1",))
    given.config["ignore"] = ["re:.*1$"]
    given.tensors["1.weight"] = given.tensors["1.weight"].bfloat16()
    given.write(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    files = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(given.tensors)}
    for file in set(files.values()):
        save_file({name: x for name, x in given.tensors.items() if files[name] == file}, tmp_path / file)
    index = json.dumps({"metadata": {}, "weight_map": files})
    (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    rsn.load_checkpoint(model, tmp_path)
    assert np.array_equal(model[0].weight, given.layers["0"][0])
    assert type(model[1]) is nn.Linear
    assert torch.equal(model[1].weight, given.tensors["1.weight"].float())


class Tied(nn.Module):
    """A head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.inner, self.head = nn.Embedding(10, 32), nn.Linear(32, 32), nn.Linear(32, 10, bias=False)
        self.head.weight = self.tokens.weight


def test_a_tied_weight_is_stored_once(tmp_path: Path) -> None:
    model = Tied()
    given = stored(model, ignore=("head",))
    assert "head.weight" not in given.tensors
    rsn.load_checkpoint(model, given.write(tmp_path))
    assert model.head.weight is model.tokens.weight
    assert torch.equal(model.head.weight, given.tensors["tokens.weight"])
    given.tensors["head.weight"] = given.tensors["tokens.weight"] + 1
    with pytest.raises(TensorError, match=r"^head\.weight has other values in .* than what the model ties it to$"):
        rsn.load_checkpoint(model, given.write(tmp_path))


# -- what is refused

Change = Callable[[Stored], object]


def _group(**values: Any) -> Change:
    return lambda x: x.config["config_groups"]["group_0"].update(values)


def _weights(**values: Any) -> Change:
    return lambda x: x.weights.update(values)


def _tensors(**values: torch.Tensor) -> Change:
    return lambda x: x.tensors.update({name.replace("__", "."): value for name, value in values.items()})


def _without(name: str) -> Change:
    return lambda x: x.tensors.pop(name)


AT = r"quantization_config: config_groups\.group_0"
REFUSED: list[tuple[Change, type[RsnError], str]] = [
    (_without("0.weight_packed"), TensorError, r"no tensor 0\.weight_packed$"),
    (_without("0.weight_scale"), TensorError, r"no tensor 0\.weight_scale$"),
    (_without("0.weight_shape"), TensorError, r"no tensor 0\.weight_shape$"),
    (_without("1.weight"), TensorError, r"no tensor 1\.weight$"),
    (_without("0.bias"), TensorError, r"no tensor 0\.bias$"),
    (_weights(symmetric=False), TensorError, r"no tensor 0\.weight_zero_point$"),
    (_tensors(other=torch.ones(2)), TensorError, r"the model has no place for other$"),
    (_tensors(**{"0__weight_zero_point": torch.ones(2)}), TensorError, r"no place for 0\.weight_zero_point$"),
    (_tensors(**{"0__weight_g_idx": torch.zeros(96)}), UnsupportedError, r"^0\.weight_g_idx: .*actorder"),
    (
        _tensors(**{"0__weight_shape": torch.tensor([36, 95])}),
        TensorError,
        r"weight_shape is \[36, 95\] .* \[36, 96\]$",
    ),
    (
        _tensors(**{"0__weight_packed": torch.zeros(36, 12)}),
        TensorError,
        r"weight_packed is torch\.float32 .*torch\.int32$",
    ),
    (_tensors(**{"0__weight_packed": torch.zeros(36, 13)}), TensorError, r"\(36, 13\) .* the model takes \(36, 12\)$"),
    (_tensors(**{"0__weight_scale": torch.ones(36, 4)}), TensorError, r"\(36, 4\) .* the model takes \(36, 3\)$"),
    (
        _tensors(**{"0__weight_scale": torch.ones(36, 3).to(torch.float8_e4m3fn)}),
        TensorError,
        r"weight_scale is torch\.float8",
    ),
    (_tensors(**{"1__bias": torch.ones(4)}), TensorError, r"^1\.bias has shape \(4,\)"),
    (
        _tensors(**{"1__bias": torch.ones(5, dtype=torch.int8)}),
        TensorError,
        r"^1\.bias is torch\.int8 .*torch\.float32$",
    ),
    (_weights(group_size=36), UnsupportedError, r"^0: groups of 36 do not divide the 96 columns"),
    (_weights(group_size=0), UnsupportedError, rf"^{AT}\.weights: group_size is 0; it is a positive number$"),
    (_weights(group_size="32"), UnsupportedError, r"group_size is '32'"),
    (_weights(num_bits=3), UnsupportedError, rf"^{AT}\.weights: num_bits is 3; supported: 4, 8$"),
    (_weights(type="float"), UnsupportedError, rf"^{AT}\.weights: type is 'float'; supported: 'int'$"),
    (_weights(strategy="block"), UnsupportedError, "strategy is 'block'; supported: 'group', 'channel', 'tensor'$"),
    (_weights(actorder="group"), UnsupportedError, "actorder is 'group'"),
    (_weights(dynamic=True), UnsupportedError, "dynamic is True"),
    (_weights(symmetric=None), UnsupportedError, "symmetric is None"),
    (
        _group(format="marlin-24"),
        UnsupportedError,
        "format is 'marlin-24'; supported: 'pack-quantized', 'int-quantized'$",
    ),
    (_group(input_activations={**ROWS, "dynamic": False}), UnsupportedError, r"input_activations: dynamic is False"),
    (_group(input_activations={**ROWS, "num_bits": 4}), UnsupportedError, r"input_activations: num_bits is 4"),
    (_group(input_activations={**ROWS, "strategy": "tensor"}), UnsupportedError, r"strategy is 'tensor'; .*'token'$"),
    (_group(input_activations=8), UnsupportedError, r"input_activations: 8 is no object$"),
    (_group(output_activations=ROWS), UnsupportedError, "output_activations are not supported$"),
    (_group(weights=None), UnsupportedError, rf"^{AT}: it must have targets and weights$"),
    (_group(targets=["Sequential"]), UnsupportedError, "^the model itself: Sequential is quantised"),
    (lambda x: x.config.update(kv_cache_scheme=ROWS), UnsupportedError, "kv_cache_scheme is not supported$"),
    (lambda x: x.config.update(quant_method="awq"), UnsupportedError, "quant_method is 'awq'; .*'compressed-tensors'$"),
    (lambda x: x.config.update(format="dense"), UnsupportedError, "format is 'dense'"),
    (lambda x: x.config.update(config_groups=["W4A16"]), UnsupportedError, "it must have targets and weights$"),
    (
        lambda x: x.config["config_groups"].update(more={**x.config["config_groups"]["group_0"], "targets": ["0"]}),
        UnsupportedError,
        "^0: several groups",
    ),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_refused_is_named(case: int, tmp_path: Path) -> None:
    """And nothing of the module is changed then."""
    change, kind, said = REFUSED[case]
    model = one()
    given = stored(model, ignore=("1",))
    change(given)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(kind, match=said):
        rsn.load_checkpoint(model, given.write(tmp_path))
    assert all(type(layer) is nn.Linear for layer in model)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_modules_that_cannot_be_filled(tmp_path: Path) -> None:
    stored(one(), ignore=("1",)).write(tmp_path)
    with pytest.raises(TensorError, match=r"^0\.bias of the model is in torch\.bfloat16: make the model in float32"):
        rsn.load_checkpoint(one().bfloat16(), tmp_path)
    with torch.device("meta"):
        model = one()
    with pytest.raises(TensorError, match=r"^0\.bias of the model is on the meta device"):
        rsn.load_checkpoint(model, tmp_path)


class Doubled(nn.Linear):
    """A linear layer that is more than one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_other_layers_than_linear_ones(tmp_path: Path) -> None:
    stored(one(), ignore=("1",)).write(tmp_path)
    model = nn.Sequential(Doubled(96, 36), nn.Linear(36, 5))
    with pytest.raises(UnsupportedError, match=r"^0: Doubled is quantised; only linear layers"):
        rsn.load_checkpoint(model, tmp_path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TensorError, match=r"config\.json: .*No such file"):
        rsn.load_checkpoint(one(), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    for text, said in (
        ("{", r"config\.json: "),
        ("[" * 200_000, r"config\.json: .*recursion"),
        ("[]", "it is no JSON object$"),
        ("{}", r"model\.safetensors: "),
    ):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(TensorError, match=said):
            rsn.load_checkpoint(one(), tmp_path)
    save_file({"x": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(TensorError, match=r"no object 'quantization_config'$"):
        rsn.load_checkpoint(one(), tmp_path)


def test_rows_are_float32(tmp_path: Path) -> None:
    model = one()
    rsn.load_checkpoint(model, stored(model, ignore=("1",)).write(tmp_path))
    with pytest.raises(TensorError, match=r"takes rows in float32, not torch\.float64$"):
        model(torch.ones(2, 96, dtype=torch.float64))


@pytest.mark.parametrize(("bits", "count"), list(itertools.product((4, 8), (1, 7, 8, 9, 64))))
def test_rows_of_any_length_are_packed(bits: int, count: int, tmp_path: Path) -> None:
    """Also those that do not fill their last word."""
    model = nn.Sequential(nn.Linear(count, 3))
    given = stored(model, bits=bits, strategy="channel", is_symmetric=False)
    rsn.load_checkpoint(model, given.write(tmp_path))
    integers, _, zero = given.layers["0"]
    assert np.array_equal(model[0].weight, integers)
    assert np.array_equal(model[0].weight_zero, zero)


def test_scales_are_checked_by_the_compiler(tmp_path: Path) -> None:
    model = one()
    given = stored(model, ignore=("1",))
    given.tensors["0.weight_scale"][3, 1] = 0
    rsn.load_checkpoint(model, given.write(tmp_path))
    with pytest.raises(TensorError, match=r"at 0: .*scale is 0 at \(3, 1\); a scale is a positive finite number"):
        rsn.compile(model, (torch.randn(2, 96),))
