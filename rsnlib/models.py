"""Models by name, for the command line: the networks of the paper's tables, and a user's model from a file.

The presets are plain modules with random weights of the scale of a trained model; equal seeds give equal weights.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from torch import nn

from ..base.deferred import deferred
from ..base.errors import RsnError, require
from ..isa.overlay import Overlay
from . import exported_programs
from .nn import Attention, Encoder, Linear

if TYPE_CHECKING:
    from . import onnx_module
else:
    onnx_module = deferred("rsn.rsnlib.onnx_module")

Inputs = tuple[Any, ...] | dict[str, Any]
"""Example inputs, by position or by name."""


class SpecError(RsnError, ValueError):
    """A model specification does not name a model, or the user's file fails."""

    exit_code = 2


class Mlp(nn.Module):
    """A multi-layer perceptron: linear layers of the given widths (columns) with ReLU between them. Raises
    `OperatorError` for widths below 1."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Linear(k, n) for k, n in pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., last width). x: (..., first width)."""
        for i, layer in enumerate(self.layers):
            x = layer(F.relu(x) if i else x)
        return x


class Ncf(nn.Module):
    """Neural collaborative filtering as in CHARM's benchmark: a tower down to 16 columns, and a prediction layer.

    The prediction reads 32 columns: the tower's 16 and 16 others. The benchmark counts it as a separate product, so
    these 32 columns are an input here.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tower = Mlp(4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
        self.predict = Linear(32, 1)

    def forward(self, x: torch.Tensor, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tower's result (rows, 16) and the prediction (rows, 1). x: (rows, 4096). joined: (rows, 32)."""
        return self.tower(x), self.predict(joined)


class Vit(nn.Module):
    """The products of CHARM's ViT benchmark: four linear layers and attention, without norms and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Linear(3024, 1024)
        self.attn = Attention(1024, heads=16)
        self.up, self.down, self.head = Linear(1024, 4096), Linear(4096, 1024), Linear(1024, 3048)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, seq, 3048). x: (batch, seq, 3024), in the benchmark (48, 64, 3024)."""
        return self.head(self.down(self.up(self.attn(self.embed(x)))))


def _encoder(layers: int, hidden: int, heads: int, inner: int, masked: bool) -> Callable[..., tuple[nn.Module, Inputs]]:
    def build(batch: int | None, seq: int | None, base: bool) -> tuple[nn.Module, Inputs]:
        batch, seq = batch or 1, seq or 128
        inputs: dict[str, Any] = {"hidden_states": torch.empty(batch, seq, hidden)}
        if masked and not base:
            inputs["attention_mask"] = torch.ones(batch, seq, dtype=torch.int64)
        activation, eps = ("gelu_tanh", 1e-6) if base else ("gelu", 1e-12)
        return Encoder(layers, hidden, heads, inner, activation, eps), inputs

    return build


def _rows(module: Callable[[], nn.Module], *widths: int) -> Callable[..., tuple[nn.Module, Inputs]]:
    def build(batch: int | None, seq: int | None, base: bool) -> tuple[nn.Module, Inputs]:
        rows = 3072 if batch is None and seq is None else (batch or 1) * (seq or 128)
        return module(), tuple(torch.empty(rows, width) for width in widths)

    return build


def _vit(batch: int | None, seq: int | None, base: bool) -> tuple[nn.Module, Inputs]:
    return Vit(), (torch.empty(batch or 48, seq or 64, 3024),)


PRESETS: dict[str, Callable[..., tuple[nn.Module, Inputs]]] = {
    "bert-large": _encoder(24, 1024, 16, 4096, masked=True),
    "bert-large-encoder": _encoder(1, 1024, 16, 4096, masked=False),
    "minilm": _encoder(6, 384, 12, 1536, masked=True),
    "mlp": _rows(lambda: Mlp(2048, 4096, 4096, 4096, 1024), 2048),
    "ncf": _rows(Ncf, 4096, 32),
    "vit": _vit,
}


def is_base(overlay: Overlay) -> bool:
    """Return whether presets for an overlay do without masks and exact GELU, as for the base overlay, which lacks
    them."""
    return any(overlay.capability(op) is None for op in ("mask", "gelu_erf"))


def preset(
    name: str, batch: int | None = None, seq: int | None = None, seed: int = 0, base: bool = False
) -> tuple[nn.Module, Inputs]:
    """Build a preset by name, or "gemm:MxKxN", with random weights. Returns the module and random example inputs.

    batch, seq: sequences, and rows of each; by default 1 x 128 for the encoders, 48 x 64 for vit, and 3072 rows for mlp
    and ncf, of which 1 sequence or 128 rows if only the other is given. For a gemm, M is the number of rows; sizes that
    are given must make as many. seed: of weights and inputs. base: for the base overlay, which has no masks and no
    exact GELU: no mask, tanh GELU, eps 1e-6. Raises `SpecError` for an unknown name, for sizes less than 1, and for
    those of a gemm that make another number of rows.
    """
    _check_sizes(batch, seq)
    module: nn.Module
    inputs: Inputs
    # On the meta device first: PyTorch's initialisation of 24 layers of BERT-Large would cost more than ours.
    with torch.device("meta"):
        gemm = re.fullmatch(r"gemm:([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", name)
        if gemm:
            m, k, n = map(int, gemm.groups())
            if (batch, seq) != (None, None) and (batch or 1) * (seq or 1) != m:
                raise SpecError(f"{name} has M = {m} rows, not {batch or 1} x {seq or 1}")
            module = Linear(k, n, bias=False)
            inputs = (torch.empty(m, k),)
        elif name in PRESETS:
            module, inputs = PRESETS[name](batch, seq, base)
        else:
            known = ", ".join(sorted(PRESETS))
            files = "FILE.py:CALLABLE, FILE.onnx and FILE.pt2"
            raise SpecError(f"no preset {name!r}; known are {known}, gemm:MxKxN, {files}")
    random = torch.Generator().manual_seed(seed)
    module = module.to_empty(device="cpu").eval()
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            # Like BERT's initialisation, but biases and shifts are not 0 and scales not 1.
            parameter.normal_(1.0 if path.endswith("norm.weight") else 0.0, 0.02, generator=random)
    if isinstance(inputs, dict):
        return module, {key: _example(x, random) for key, x in inputs.items()}
    return module, tuple(_example(x, random) for x in inputs)


def _example(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    if x.dtype.is_floating_point:
        return torch.empty(x.shape).normal_(generator=random)
    return torch.ones(x.shape, dtype=x.dtype)


def load_spec(
    spec: str, batch: int | None = None, seq: int | None = None, seed: int = 0, base: bool = False
) -> tuple[nn.Module, Inputs]:
    """Load a module and example inputs from the name of a preset, from FILE.py:CALLABLE, FILE.onnx or FILE.pt2.

    batch, seq, seed, base: as for `preset`. The callable gets those of batch, seq and seed that it has parameters for.
    It returns (module, example inputs), or only a module; then the inputs follow from its forward: int64 `input_ids`
    and `attention_mask` (batch, seq), and for one other parameter without default float32 (batch, seq, in_features of
    the first Linear). Raises `SpecError` for a wrong specification, for sizes less than 1, for those that the model
    does not take, and for errors of the file itself, with its line; `UnsupportedError` for a file that cannot be read,
    or a program of torch.export that leaves no such size open; and `MissingError` without the onnx package.
    """
    _check_sizes(batch, seq)
    if spec.endswith(exported_programs.SUFFIX):
        program = exported_programs.read_program(spec)
        return exported_programs.as_module(program), exported_programs.example_of(program, batch, seq)
    if spec.endswith(".onnx"):
        return _onnx(spec, batch or 1, seq or 128)
    if spec.endswith(".py"):
        raise SpecError(f"{spec}: name the callable that makes the model: {spec}:NAME")
    file, colon, attribute = spec.rpartition(":")
    if not colon or not file.endswith(".py"):
        return preset(spec, batch, seq, seed, base)
    builder = _attribute(Path(file), attribute)
    torch.manual_seed(seed)
    given = {"batch": batch or 1, "seq": seq or 128, "seed": seed}
    parameters = inspect.signature(builder).parameters
    with _user_errors(Path(file)):
        made = builder(**{key: value for key, value in given.items() if key in parameters})
    module: Any
    module, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module):
        raise SpecError(
            f"{spec} must return a torch.nn.Module, or (module, example inputs), not {type(module).__name__}"
        )
    module = module.eval()  # the command line never trains
    if inputs is None:
        return module, _guessed_inputs(spec, module, given["batch"], given["seq"])
    for name, asked in (("batch", batch), ("seq", seq)):
        if asked is not None and name not in parameters:
            raise SpecError(f"--{name} {asked}: {spec} returns its own inputs and has no parameter {name}")
    return module, inputs


def _check_sizes(batch: int | None, seq: int | None) -> None:
    for name, asked in (("batch", batch), ("seq", seq)):
        if asked is not None and asked < 1:
            raise SpecError(f"--{name} {asked}: the least is 1")


def load_calls(spec: str) -> list[Inputs]:
    """Load calls of a model from FILE.py:CALLABLE, which returns a list of example inputs, by position or by name.
    Raises `SpecError` for a wrong specification, and for errors of the file itself, with its line."""
    file, _, attribute = spec.rpartition(":")
    if not file.endswith(".py"):
        raise SpecError(f"{spec}: must be FILE.py:CALLABLE, which returns a list of calls")
    builder = _attribute(Path(file), attribute)
    with _user_errors(Path(file)):
        made = builder()
    if not isinstance(made, list) or not made or not all(isinstance(x, tuple | dict) for x in made):
        raise SpecError(f"{spec} must return a list of calls, each a tuple or a dict of tensors")
    return made


def _onnx(path: str, batch: int, seq: int) -> tuple[nn.Module, Inputs]:
    """Load an ONNX model. Sizes that the model leaves open become batch on the first axis, seq on others; integers are
    1, as in a mask."""
    require("onnx", f"{path}: a model from ONNX", "pip install onnx")
    model = onnx_module.load_onnx(path)
    return model, model.example(batch, seq)


@contextmanager
def _user_errors(file: Path) -> Iterator[None]:
    """Context that turns an exception of the user's file into a SpecError with the innermost line of that file."""
    try:
        yield
    except SyntaxError as e:
        raise SpecError(f"{e.filename}:{e.lineno}: {type(e).__name__}: {e.msg}") from e
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if Path(f.filename).resolve() == file.resolve()]
        where = f"{file}:{frames[-1].lineno}, in {frames[-1].name}" if frames else str(file)
        raise SpecError(f"{where}: {type(e).__name__}: {e}") from e


def _attribute(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        raise SpecError(f"no file {file}")
    found = importlib.util.spec_from_file_location(file.stem, file)
    assert found is not None
    assert found.loader is not None
    source = importlib.util.module_from_spec(found)
    with _user_errors(file):
        found.loader.exec_module(source)
    builder: Callable[..., Any] | None = getattr(source, name, None)
    if not callable(builder):
        raise SpecError(f"{file} has no callable {name!r}")
    return builder


def _guessed_inputs(spec: str, module: nn.Module, batch: int, seq: int) -> dict[str, torch.Tensor]:
    tokens = {"input_ids": torch.zeros, "attention_mask": torch.ones}
    parameters = inspect.signature(module.forward).parameters
    inputs = {key: make(batch, seq, dtype=torch.int64) for key, make in tokens.items() if key in parameters}
    needed = [
        key
        for key, p in parameters.items()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and key not in inputs
    ]
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Linear)), None)
    if len(needed) == 1 and first is not None:
        inputs[needed[0]] = torch.randn(batch, seq, first.in_features)
    elif needed or not inputs:
        raise SpecError(f"{spec}: example inputs cannot be derived from its module; return (module, example inputs)")
    return inputs
