"""What cannot be compiled is told in a line: which module or argument, what is wrong with it, and the way out."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812 - torch first: it may be missing
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm  # noqa: E402

import rsn  # noqa: E402
from rsn.base.errors import RsnError, TensorError, UnsupportedError  # noqa: E402
from rsn.cli.main import main  # noqa: E402
from rsn.host.model.torch_backend import Fallback  # noqa: E402

HALF = torch.float16
WAY_OUT = (
    '; rsn.compile(..., whole=False), or torch.compile(model, backend="rsn"), runs the rest on the machine, in pieces'
)
CALL_FLOAT = "the machine computes in float32: convert it first, as model.float() does"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def rows() -> Any:
    return torch.randn(3, 8)


def layer() -> nn.Module:
    return nn.Linear(8, 4).eval()


class Layers(nn.Module):
    """Two products and what stands between them."""

    def __init__(self, between: Callable[[Any], Any] = F.relu) -> None:
        super().__init__()
        self.first, self.second, self.between = nn.Linear(8, 8), nn.Linear(8, 4), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(x)))


def said(model: Any, inputs: Any, kind: type[RsnError]) -> str:
    """The message of `rsn.compile`, which is that of `rsn.explain`."""
    with pytest.raises(kind) as compiling:
        rsn.compile(model, inputs)
    with pytest.raises(kind) as explaining:
        rsn.explain(model, inputs)
    assert str(explaining.value) == str(compiling.value)
    assert "\n" not in str(compiling.value)
    return str(compiling.value).replace(__file__, "FILE")


# -- modes


def test_training_mode() -> None:
    assert said(nn.Linear(8, 4), (rows(),), UnsupportedError) == "Linear is in training mode: call model.eval() first"
    model = nn.Sequential(layer(), nn.Dropout()).eval()
    model[1].train()
    told = said(model, (rows(),), UnsupportedError)
    assert told == "1 (Dropout) is in training mode: call model.eval() first"


def test_the_command_line_needs_no_eval(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("from torch import nn\ndef make():\n    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.9))\n")
    result = CliRunner().invoke(main, ["compile", f"{source}:make", "-o", str(tmp_path / "p.rsn")])
    assert result.exit_code == 0, result.output


# -- devices


def test_devices() -> None:
    elsewhere = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4, device="meta")).eval()
    with pytest.raises(TensorError, match=r"^1\.weight is on the meta device, without values: create it on the CPU$"):
        rsn.compile(elsewhere, (rows(),))
    assert "2 layers on the machine" in rsn.explain(elsewhere, (rows(),))  # a report needs no values
    told = said(layer(), (rows().to("meta"),), TensorError)
    assert told == "argument input is on the meta device, without values: create it on the CPU"


class Elsewhere(torch.Tensor):
    """A tensor that says it is on a GPU, of which there is none here."""

    device = torch.device("cuda:0")


def test_devices_with_values() -> None:
    far = torch.randn(3, 8).as_subclass(Elsewhere)
    assert said(layer(), (far,), TensorError) == 'argument input is on cuda:0: call input.to("cpu") first'
    model = layer()
    model.register_buffer("far", far)
    assert said(model, (rows(),), TensorError) == 'far is on cuda:0: call model.to("cpu") first'


# -- types


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_types_of_arguments(dtype: torch.dtype) -> None:
    told = said(nn.Sequential(layer()).eval(), (rows().to(dtype),), TensorError)
    assert told == f"aten.linear.default at 0: its input is {dtype}; {CALL_FLOAT}"


def test_types_of_weights() -> None:
    """Half precision is widened: test_precision."""
    told = said(nn.Sequential(layer()).double().eval(), (rows().double(),), TensorError)
    assert told == f"aten.linear.default at 0: its weight is torch.float64; {CALL_FLOAT}"


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(10, 8), nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.dense(self.embedding(ids))


def test_types_within() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8).double(), nn.Linear(8, 8)).eval()
    told = said(model, (rows(),), TensorError)
    assert told == f"aten.layer_norm.default at 1: its weight is torch.float64; {CALL_FLOAT}"

    embedded = Embedded().eval()
    embedded.embedding.double()
    told = said(embedded, (torch.tensor([[1, 2]]),), TensorError)
    assert told == f"aten.linear.default at dense: its input is torch.float64; {CALL_FLOAT}"

    model = Layers(lambda x: x.half().relu().float()).eval()
    assert said(model, (rows(),), UnsupportedError) == (
        "aten.linear.default at second: it depends on aten.to.dtype at the top level, which cannot run on the machine: "
        f"a conversion from torch.float32 to torch.float16; the machine computes in float32{WAY_OUT}"
    )

    told = said(layer(), (torch.ones(3, 8, dtype=torch.int64),), TensorError)
    assert told == f"aten.linear.default at the top level: its input is torch.int64; {CALL_FLOAT}"


class Autocast(Layers):
    enabled = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.enabled):
            x = self.first(x)
        return self.second(x)


def test_autocast() -> None:
    told = said(Autocast().eval(), (rows(),), TensorError)
    assert told == "wrap_with_autocast at the top level: torch.autocast; the machine computes in float32: remove it"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        told = said(layer(), (rows(),), UnsupportedError)
    assert told == "torch.autocast is on; the machine computes in float32: compile outside of it"
    torch._dynamo.reset()  # other tests compile this function for as many shapes as torch does
    fast = torch.compile(layer(), backend="rsn")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad(), pytest.warns(Fallback, match="autocast is on"):
        assert fast(rows()).dtype == torch.bfloat16


# -- what depends on data


def branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x.abs().max())):
        x = x + 1
    return x


def cut(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.argmax().item())]


def line(function: Callable[..., Any]) -> int:
    """Of the decision."""
    return function.__code__.co_firstlineno + 1


@pytest.mark.parametrize("decide", [branch, loop, cut])
def test_decisions_by_data(decide: Callable[[Any], Any]) -> None:
    told = said(nn.Sequential(Layers(decide)).eval(), (rows(),), UnsupportedError)
    where = f"FILE:{line(decide)}, in {decide.__name__}"
    assert told == (
        f"Sequential branches on the values of a tensor, at {where}: move that out of the module, or use "
        'torch.compile(model, backend="rsn"), which breaks the graph there'
    )


def test_the_way_out_of_decisions_by_data() -> None:
    model, x = Layers(branch).eval(), rows()
    torch._dynamo.reset()
    fast = torch.compile(model, backend="rsn", options={"fallback": "error"})
    assert re.search(
        rf"^graph break in branch at \S*{Path(__file__).name}:{line(branch)}: ", rsn.explain(fast, (x,)), re.M
    )
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


class Chosen(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x[x.sum(1) > 0])


def test_shapes_by_data() -> None:
    told = said(Chosen().eval(), (rows(),), UnsupportedError)
    assert told == (
        "nothing in this module runs on the machine: aten.linear.default at second: its shape depends on data"
    )
    told = said(Layers(lambda x: x[x.sum(1) > 0]).eval(), (rows(),), UnsupportedError)
    assert told.startswith("aten.linear.default at second: it depends on aten.sum.dim_IntList at the top level")


def fail(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("my own mistake\nin two lines")


def test_mistakes_of_the_users_own() -> None:
    told = said(nn.Sequential(Layers(fail)).eval(), (rows(),), UnsupportedError)
    assert told == f"Sequential raises ValueError: my own mistake, at FILE:{line(fail)}, in fail"
    told = said(Layers(lambda x: torch.from_numpy(x.numpy())).eval(), (rows(),), UnsupportedError)
    assert told.startswith(
        "torch.export cannot capture Layers: .numpy() is not supported for tensor subclasses., at FILE:"
    )
    told = said(layer(), (torch.randn(3, 9),), UnsupportedError)
    assert told.startswith("torch.export cannot capture Linear: a and b must have same reduction dim, but got [3, 9]")


# -- example inputs


SIGNATURE = "Linear.forward(input: torch.Tensor) -> torch.Tensor"
INPUTS = [
    ({"x": 1}, f"the example inputs do not fit {SIGNATURE}: missing a required argument: 'input'"),
    ({}, f"the example inputs do not fit {SIGNATURE}: missing a required argument: 'input'"),
    ((), f"the example inputs do not fit {SIGNATURE}: missing a required argument: 'input'"),
    ((rows(), 1), f"the example inputs do not fit {SIGNATURE}: too many positional arguments"),
    ({"input": rows(), "y": 1}, f"the example inputs do not fit {SIGNATURE}: got an unexpected keyword argument 'y'"),
    ([rows()], "example inputs are a tuple or a dict of tensors, not list; write (x,)"),
    (rows(), "example inputs are a tuple or a dict of tensors, not Tensor; write (x,)"),
    (None, "example inputs are a tuple or a dict of tensors, not NoneType"),
    ((np.ones((3, 8), np.float32),), "argument input is a numpy array: convert it with torch.from_numpy(input)"),
    ((torch.ones(0, 8),), "argument input is empty, shape (0, 8): a program needs at least one row"),
    ((rows().to_sparse(),), "argument input is torch.sparse_coo: convert it with input.to_dense()"),
    (
        (rows().tolist(),),
        "torch.export cannot capture Linear: linear(): argument 'input' (position 1) must be Tensor, not list",
    ),
]


@pytest.mark.parametrize(("inputs", "message"), INPUTS)
def test_example_inputs(inputs: Any, message: str) -> None:
    assert said(layer(), inputs, RsnError) == message


def test_example_inputs_that_are_nested() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about nested tensors
        nested = torch.nested.nested_tensor([rows()])
    told = said(layer(), (nested,), TensorError)
    assert told == "argument input is nested: convert it with torch.nested.to_padded_tensor"


# -- what is no module, and modules of other kinds


def test_no_modules() -> None:
    function = '; for a function use torch.compile(function, backend="rsn")'
    for model, name in ((functools.partial(layer()), "partial"), (lambda x: x, "function")):
        told = said(model, (rows(),), UnsupportedError)
        assert told == f"the model must be a torch.nn.Module, not {name}{function}"
    assert said(None, (rows(),), UnsupportedError) == "the model must be a torch.nn.Module, not NoneType"
    assert said(nn.Linear, (rows(),), UnsupportedError) == "Linear is a class: give a module, Linear(...)"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts() -> None:
    told = said(torch.jit.script(layer()), (rows(),), UnsupportedError)
    assert told == "RecursiveScriptModule is TorchScript: give the module that it was made from"
    told = said(torch.jit.trace(layer(), rows()), (rows(),), UnsupportedError)
    assert told == "TopLevelTracedModule is TorchScript: give the module that it was made from"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_quantized() -> None:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer()).eval(), {nn.Linear})
    told = said(model, (rows(),), UnsupportedError)
    assert told == "0 (Linear) is quantized; the machine computes in float32: give the model before quantization"


def test_weights_that_are_none() -> None:
    told = said(nn.LazyLinear(4).eval(), (rows(),), UnsupportedError)
    assert told == "weight has no shape yet: call the model once first"
    told = said(nn.Linear(8, 0).eval(), (rows(),), UnsupportedError)
    assert told.endswith("runs on the machine: aten.linear.default at the top level: its weight is empty, (0, 8)")


def hooked() -> nn.Module:
    model = layer()
    model.register_forward_pre_hook(lambda module, args: (2 * args[0],))
    model.register_forward_hook(lambda module, args, result: result + 1)
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {
    "hooks that change what goes in and comes out": hooked,
    "weight norm, as a hook": lambda: weight_norm(layer()),
    "weight norm, as a parametrization": lambda: parametrizations.weight_norm(layer()),
    "spectral norm, as a hook": lambda: spectral_norm(layer()),
    "spectral norm, as a parametrization": lambda: parametrizations.spectral_norm(layer()),
    "an orthogonal weight": lambda: parametrizations.orthogonal(layer()),
    "a pruned weight": lambda: prune.l1_unstructured(layer(), "weight", amount=0.3),
    "a graph of torch.fx": lambda: torch.fx.symbolic_trace(layer()),
    "what torch.compile made": lambda: torch.compile(layer(), backend="rsn"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_modules_of_other_kinds_compute_the_same(kind: str) -> None:
    model, x = KINDS[kind]().eval(), rows()
    with torch.no_grad(), rsn.compile(model, (x,)) as compiled:
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
