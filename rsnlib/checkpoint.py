"""Checkpoints of quantised models in the format compressed-tensors: a folder with `config.json` and safetensors.

The layout is that of the package compressed-tensors 0.20 for `pack-quantized` and `int-quantized`:
https://github.com/vllm-project/compressed-tensors. The package is not needed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its name everywhere
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..base.errors import TensorError, UnsupportedError
from .precision import HALVES
from .quantised_ops import DEQUANTISE, QUANTISE, ROW_SCALES

WORD = 32
"""Bits of a word that holds packed integers."""
ROW_BITS = 8
"""Bits of the integers of rows."""
SHOWN = 5
"""How many names a message shows."""


class QuantisedLinear(nn.Module):
    """A linear layer whose weight is of integers, and whose rows may become int8 at each call.

    weight: int8 (N, K). scale, zero: scales and zero points of G groups of K / G columns of each row, float32 and int8,
    (N, G); zero is None for zeros. bias: (N,) or None. bits: of the weight's signed integers. are_rows_symmetric: how
    each call quantises its rows: True: to integers around 0; False: with a zero point for each row; None: not at all,
    rows stay in float32.
    """

    weight: Tensor
    """int8, (N, K)."""
    weight_scale: Tensor
    """float32, (N, G): of G groups of K / G columns of each row."""
    weight_zero: Tensor | None
    """int8, (N, G); None for zeros."""
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: Tensor,
        scale: Tensor,
        zero: Tensor | None,
        bias: nn.Parameter | None,
        bits: int,
        are_rows_symmetric: bool | None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", scale)
        self.register_buffer("weight_zero", zero)
        self.register_parameter("bias", bias)
        self.bits, self.are_rows_symmetric = bits, are_rows_symmetric

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., N). x: float32, (..., K). Raises `TensorError` for another type."""
        if x.dtype != torch.float32:
            raise TensorError(f"a quantised linear layer takes rows in float32, not {x.dtype}")
        if self.are_rows_symmetric is not None:
            low, high = -(1 << (ROW_BITS - 1)), (1 << (ROW_BITS - 1)) - 1
            least = torch.finfo(torch.float32).smallest_normal
            scale, zero = ROW_SCALES(x, self.are_rows_symmetric, least, low, high)
            zero = None if self.are_rows_symmetric else zero  # known to be 0
            x = DEQUANTISE(QUANTISE(x, scale, zero, low, high), scale, zero, ROW_BITS)
        return F.linear(x, DEQUANTISE(self.weight, self.weight_scale, self.weight_zero, self.bits), self.bias)


def load_checkpoint(model: nn.Module, folder: str | os.PathLike[str]) -> None:
    """Fill a module with a checkpoint in the format compressed-tensors, in place: linear layers that are quantised
    become a `QuantisedLinear` each, all other parameters and buffers get the stored values.

    model: in float32, with the names of the checkpoint, such as transformers' `from_config(config,
    dtype=torch.float32)`. folder: has `config.json` with `quantization_config`, and `model.safetensors` or several
    files with an index. Weights are int4 or int8, one scale a group, a row, or a tensor; rows are float32, or int8 with
    scales that each call chooses for each row. Stored numbers in half precision are widened, which is exact.

    Nothing is changed if it raises: `UnsupportedError` for what is quantised otherwise, `TensorError` for tensors that
    are missing, that the module lacks, or that do not fit, and for files that cannot be read.
    """
    stored = StoredTensors(Path(folder))
    schemes = list(_schemes(stored.config("quantization_config")))
    ignored = stored.config("quantization_config").get("ignore") or []
    made: dict[str, QuantisedLinear] = {}
    for path, module in model.named_modules():
        found = [] if _matches(path, module, ignored) else [x for x in schemes if _matches(path, module, x.targets)]
        if not found:
            continue
        if len(found) > 1:
            raise UnsupportedError(f"{path}: several groups of the quantization_config have it as a target")
        if not path or not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
            what = type(module).__name__
            raise UnsupportedError(
                f"{path or 'the model itself'}: {what} is quantised; only linear layers in it can be"
            )
        made[path] = found[0].read(stored, path, module)
    weights = {f"{path}.weight" for path in made}
    named = {name: x for name, x in model.state_dict(keep_vars=True).items() if name not in weights}
    values: dict[int, tuple[Tensor, Tensor]] = {}
    for name, x in named.items():
        if name in stored:
            value = _value(stored, name, x)
            if id(x) in values and not torch.equal(values[id(x)][1], value):
                raise TensorError(f"{name} has other values in {stored.folder} than what the model ties it to")
            values[id(x)] = x, value
    missing = [name for name, x in named.items() if id(x) not in values]  # one name of what is tied suffices
    if missing:
        raise TensorError(f"{stored.folder}: no tensor {_shown(missing)}")
    if stored.left:
        raise TensorError(f"{stored.folder}: the model has no place for {_shown(sorted(stored.left))}")
    with torch.no_grad():
        for x, value in values.values():
            x.copy_(value)
    for path, layer in made.items():
        model.set_submodule(path, layer.train(model.get_submodule(path).training))


class StoredTensors:
    """The tensors of a checkpoint by name, from one file or from several with an index. left: names of the tensors that
    have not been taken. Raises `TensorError` for files that are missing or cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = self._json("config.json")
        index = "model.safetensors.index.json"
        files = ["model.safetensors"]
        if (folder / index).exists():
            files = sorted({str(x) for x in _object(self._json(index), "weight_map", index).values()})
        self._files: dict[str, Any] = {}
        for file in files:
            try:
                opened: Any = safe_open(folder / file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise TensorError(f"{folder / file}: {error}") from error
            self._files |= dict.fromkeys(opened.keys(), opened)
        self.left = set(self._files)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            made = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise TensorError(f"{self.folder / name}: {error}") from error
        if not isinstance(made, dict):
            raise TensorError(f"{self.folder / name}: it is no JSON object")
        return made

    def config(self, name: str) -> dict[str, Any]:
        """Return the object `name` of `config.json`. Raises `TensorError` if it has none."""
        return _object(self._config, name, str(self.folder / "config.json"))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor, and note that it is taken. name: of the tensor. shapes: it must have one of these. dtype:
        that it must have; None takes any. Raises `TensorError` if it is missing, or has another shape or type."""
        if name not in self:
            raise TensorError(f"{self.folder}: no tensor {name}")
        self.left.discard(name)
        made: Tensor = self._files[name].get_tensor(name)
        if tuple(made.shape) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise TensorError(f"{name} has shape {tuple(made.shape)} in {self.folder}; the model takes {wanted}")
        if dtype is not None and made.dtype != dtype:
            raise TensorError(f"{name} is {made.dtype} in {self.folder}; the format has {dtype}")
        return made


def _value(stored: StoredTensors, name: str, x: Tensor) -> Tensor:
    """What the checkpoint has for a parameter or buffer. Raises `TensorError`."""
    if x.is_meta or x.dtype in HALVES.values():
        where = "on the meta device" if x.is_meta else f"in {x.dtype}"
        raise TensorError(f"{name} of the model is {where}: make the model in float32, with memory")
    value = stored.take(name, tuple(x.shape))
    if value.dtype != x.dtype and not (x.dtype == torch.float32 and value.dtype in HALVES.values()):
        raise TensorError(f"{name} is {value.dtype} in {stored.folder}; the model has {x.dtype}")
    return value


def _object(of: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    made = of.get(name)
    if not isinstance(made, dict):
        raise TensorError(f"{where}: no object {name!r}")
    return made


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _matches(path: str, module: nn.Module, targets: Iterable[str]) -> bool:
    """Whether a module is one of `targets`: paths, names of its classes, or after "re:" how its path begins."""
    classes = {kind.__name__ for kind in type(module).__mro__}
    return any(
        re.match(target.removeprefix("re:"), path) is not None
        if target.startswith("re:")
        else target == path or target in classes
        for target in targets
    )


@dataclass(frozen=True)
class LinearScheme:
    """How a checkpoint stores some linear layers. targets: which layers: module paths, names of classes, or "re:" and a
    regular expression for the begin of a module path. is_packed: an int32 word holds several integers. bits: of each
    integer. is_symmetric: there are no zero points. group: how many columns share a scale; 0 for all columns of a row,
    -1 for the whole tensor. are_rows_symmetric: as for `QuantisedLinear`."""

    targets: tuple[str, ...]
    is_packed: bool
    bits: int
    is_symmetric: bool
    group: int
    are_rows_symmetric: bool | None

    def read(self, stored: StoredTensors, path: str, linear: nn.Linear) -> QuantisedLinear:
        """Return the quantised layer that takes the place of `linear`, and keeps its bias. stored: the checkpoint.
        path: the module path of `linear`. Raises `TensorError` for tensors that are missing or do not fit,
        `UnsupportedError` for groups that do not divide a row and for columns in another order."""
        rows, columns = linear.out_features, linear.in_features
        if f"{path}.weight_g_idx" in stored:
            raise UnsupportedError(f"{path}.weight_g_idx: columns whose groups are in another order (actorder)")
        if self.group > 0 and columns % self.group:
            raise UnsupportedError(f"{path}: groups of {self.group} do not divide the {columns} columns of its weight")
        groups = columns // self.group if self.group > 0 else 1
        shape = (rows, groups)
        if self.is_packed:
            given = stored.take(f"{path}.weight_shape", (2,)).tolist()
            if given != [rows, columns]:
                raise TensorError(f"{path}.weight_shape is {given} in {stored.folder}; the model has {[rows, columns]}")
            words = stored.take(f"{path}.weight_packed", (rows, self._words(columns)), dtype=torch.int32)
            weight = unpacked(words, self.bits, columns)
        else:
            weight = stored.take(f"{path}.weight", (rows, columns), dtype=torch.int8).clone()
        shapes: list[tuple[int, ...]] = [(), (1,), (1, 1)] if self.group < 0 else [shape]
        scale = stored.take(f"{path}.weight_scale", *shapes)
        if scale.dtype not in (torch.float32, *HALVES.values()):
            raise TensorError(f"{path}.weight_scale is {scale.dtype} in {stored.folder}; the format has floating point")
        zero = None if self.is_symmetric else self._zero(stored, f"{path}.weight_zero_point", shape, shapes)
        of_rows = scale.float().expand(shape).contiguous()
        return QuantisedLinear(weight, of_rows, zero, linear.bias, self.bits, self.are_rows_symmetric)

    def _words(self, count: int) -> int:
        return -(-count * self.bits // WORD)

    def _zero(self, stored: StoredTensors, name: str, shape: tuple[int, int], shapes: list[tuple[int, ...]]) -> Tensor:
        """Zero points, int8 (N, G). Packed ones lie along N."""
        if self.is_packed and self.group >= 0:
            words = stored.take(name, (self._words(shape[0]), shape[1]), dtype=torch.int32)
            return unpacked(words.T, self.bits, shape[0]).T.contiguous()
        return stored.take(name, *shapes, dtype=torch.int8).expand(shape).contiguous()


def unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Return the signed integers in words: int8 (N, count). words: int32, (N, count * bits / 32 rounded up). In each
    word the lowest bits hold the first integer, plus 2^(bits - 1)."""
    fields = (words[..., None] >> torch.arange(0, WORD, bits, dtype=torch.int32)) & ((1 << bits) - 1)
    return (fields.flatten(-2)[..., :count] - (1 << (bits - 1))).to(torch.int8)


GROUPS = {"channel": 0, "tensor": -1}
FORMATS = {"pack-quantized": True, "int-quantized": False}
"""Whether integers of a format are packed."""


def _schemes(config: dict[str, Any]) -> Iterator[LinearScheme]:
    """The schemes of a `quantization_config`. Raises `UnsupportedError`, naming the key, for what is not supported."""
    where = "quantization_config"
    _one_of(config, "quant_method", ["compressed-tensors"], where)
    for key in ("kv_cache_scheme", "transform_config", "sparsity_config"):
        if config.get(key):
            raise UnsupportedError(f"{where}: {key} is not supported")
    groups = config.get("config_groups")
    for name, group in (groups if isinstance(groups, dict) else {"": None}).items():
        at = f"{where}: config_groups.{name}"
        if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
            raise UnsupportedError(f"{at}: it must have targets and weights")
        if group.get("output_activations"):
            raise UnsupportedError(f"{at}: output_activations are not supported")
        form = _one_of({"format": group.get("format") or config.get("format")}, "format", list(FORMATS), at)
        weights, rows = group["weights"], group.get("input_activations")
        _one_of(weights, "type", ["int"], f"{at}.weights")
        _one_of({"dynamic": False, **weights}, "dynamic", [False], f"{at}.weights")
        _one_of({"actorder": None, **weights}, "actorder", [None, False, "weight", "static"], f"{at}.weights")
        strategy = _one_of(weights, "strategy", ["group", *GROUPS], f"{at}.weights")
        size = weights.get("group_size")
        if strategy == "group" and not (type(size) is int and size > 0):
            raise UnsupportedError(f"{at}.weights: group_size is {size!r}; it is a positive number")
        yield LinearScheme(
            tuple(map(str, group.get("targets") or ())),
            FORMATS[form],
            _one_of(weights, "num_bits", [4, 8], f"{at}.weights"),
            _one_of(weights, "symmetric", [True, False], f"{at}.weights"),
            size if strategy == "group" else GROUPS[strategy],
            None if rows is None else _are_rows_symmetric(rows, f"{at}.input_activations"),
        )


def _are_rows_symmetric(rows: object, where: str) -> bool:
    if not isinstance(rows, dict):
        raise UnsupportedError(f"{where}: {rows!r} is no object")
    for key, only in {"type": "int", "num_bits": ROW_BITS, "strategy": "token", "dynamic": True}.items():
        _one_of(rows, key, [only], where)
    return bool(_one_of(rows, "symmetric", [True, False], where))


def _one_of(given: Mapping[str, Any], key: str, known: list[Any], where: str) -> Any:
    """The value of a key. Raises `UnsupportedError` if it is none of the known ones."""
    value = given.get(key)
    if value not in known:
        raise UnsupportedError(f"{where}: {key} is {value!r}; supported: {', '.join(map(repr, known))}")
    return known[known.index(value)]
