"""A module as torch.export captures it, and the graph's own terms: names, shapes, arguments, values."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.node import map_arg
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from ..base.errors import TensorError, UnsupportedError
from ..scheduler.graph import TOP
from .structure import Structure

Environment = dict[Node, Any]
FLOAT32 = "the machine computes in float32"
TORCH = Path(torch.__file__).parent
LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def module_of(model: Any) -> nn.Module:
    """The module to capture: in eval mode, its weights on the CPU.

    Raises UnsupportedError for what is none, or none that can be captured, and TensorError for weights elsewhere.
    """
    if isinstance(model, type):
        raise UnsupportedError(f"{model.__name__} is a class: give a module, {model.__name__}(...)")
    if isinstance(model, torch.jit.ScriptModule):
        raise UnsupportedError(f"{type(model).__name__}: TorchScript; give the module that it was made of")
    if isinstance(model, ExportedProgram):
        raise UnsupportedError("an ExportedProgram: give the module that it was made of")
    if not isinstance(model, nn.Module):
        function = '; a function goes through torch.compile(function, backend="rsn")' if callable(model) else ""
        raise UnsupportedError(f"a model is a torch.nn.Module, not {type(model).__name__}{function}")
    module: nn.Module = getattr(model, "_orig_mod", model)
    for path, part in module.named_modules():
        where = f"{path} ({type(part).__name__})" if path else type(part).__name__
        if ".quantized" in type(part).__module__:
            raise UnsupportedError(f"{where} is quantized; {FLOAT32}: give the model that was quantized")
        if part.training:
            raise UnsupportedError(f"{where} is in training mode: call model.eval() first")
    for path, parameter in module.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UnsupportedError(f"{path} has no shape yet: call the model once first")
        _check_place(path, parameter, "model")
    for path, tensor in module.named_buffers():
        _check_place(path, tensor, "model")
    if torch.is_autocast_enabled("cpu"):
        raise UnsupportedError(f"torch.autocast is on; {FLOAT32}: leave it first")
    return module


def _check_place(name: str, tensor: torch.Tensor, owner: str) -> None:
    if tensor.device.type == "meta":
        raise TensorError(f"{name} is on meta, without values: make it on the CPU")
    if tensor.device.type != "cpu":
        raise TensorError(f'{name} is on {tensor.device}: call {owner}.to("cpu") first')


def _check_argument(name: str, x: Any) -> None:
    what = f"argument {name}"
    if isinstance(x, np.ndarray):
        raise TensorError(f"{what} is a numpy array: torch.from_numpy({name}) makes a tensor of it")
    if not isinstance(x, torch.Tensor):
        return
    _check_place(what, x, name)
    if x.is_nested:
        raise TensorError(f"{what} is nested: torch.nested.to_padded_tensor makes a padded one of it")
    if x.layout != torch.strided:
        raise TensorError(f"{what} is {x.layout}: {name}.to_dense() makes a dense one of it")
    if not x.numel():
        raise TensorError(f"{what} is empty, {tuple(x.shape)}: a program is for at least one row")


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The undecomposed graph of a module from `module_of`. Raises UnsupportedError where torch cannot capture it."""
    name = type(model).__name__
    # The same tensor given for two arguments would become one.
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    try:
        model = _twin(model)
        # Without gradients, or each `with torch.no_grad()` inside the module would become a graph of its own.
        with in_turn(), torch.no_grad(), preserve_node_meta():
            program = torch.export.export(model, args, kwargs, strict=False)
            if any(writes_in_place(node) for node in program.graph.nodes):
                program = _without_writes(program)
    except Exception as error:  # there is no common type for what cannot be captured
        raise UnsupportedError(_why_not(name, error)) from error
    # What a module throws away, such as the weights of an attention, need not be possible on the machine.
    program.graph.eliminate_dead_code()
    signature = program.graph_signature
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise UnsupportedError(f"{name} changes its own state or its arguments when called")
    for spec in signature.input_specs:
        if spec.kind not in (*LIFTED, InputKind.USER_INPUT):
            raise UnsupportedError(f"{name} has an input of kind {spec.kind.name}")
    for node in program.graph.nodes:
        _check_types(node)
    return program


_turn = threading.Lock()
"""torch.export exchanges parts of PyTorch while it captures: one thread at a time."""


def _turn_in_child() -> None:
    global _turn  # another thread may have held it when the process was forked
    _turn = threading.Lock()


os.register_at_fork(after_in_child=_turn_in_child)


@contextmanager
def in_turn() -> Iterator[None]:
    """For what makes torch look at a module without values: alone, and without what torch logs of it."""
    with _turn, unlogged():
        yield


def tensors_of(model: nn.Module) -> Iterable[torch.Tensor]:
    """Parameters, buffers and attributes, each once."""
    attributes = (x for module in model.modules() for x in vars(module).values() if isinstance(x, torch.Tensor))
    return {id(x): x for x in chain(model.parameters(), model.buffers(), attributes)}.values()


def copied(model: nn.Module, others: Mapping[int, torch.Tensor] = MappingProxyType({})) -> nn.Module:
    """Other modules with the same tensors, but for those that have another one in `others`, by their identity. Raises
    whatever a copy of what the module holds raises."""
    return copy.deepcopy(model, {id(x): others.get(id(x), x) for x in tensors_of(model)})


def _twin(model: nn.Module) -> nn.Module:
    """Other modules with the same tensors: torch.export puts tensors without values in place of a module's own, which
    other threads may be using. The module itself where it cannot be copied."""
    try:
        return copied(model)
    except Exception:
        return model


def _check_types(node: Node) -> None:
    """What PyTorch refuses or does only when it runs."""
    if node.op == "call_function" and op_name(node) == "wrap_with_autocast" and node.args[2]:
        raise TensorError(f"{site(node)}: torch.autocast; {FLOAT32}: leave it away")
    if packet(node) not in (torch.ops.aten.layer_norm, torch.ops.aten.linear, torch.ops.aten.addmm):
        return
    operands = {name: x for name, x in arguments(node).items() if isinstance(x, Node)}
    types = {dtype_of(x) for x in operands.values()}
    if len(types) > 1:
        name, odd = next((name, x) for name, x in operands.items() if dtype_of(x) != torch.float32)
        raise TensorError(
            f"{site(node)}: its {name} is {dtype_of(odd)}; {FLOAT32}: convert it first, as model.float() does"
        )


def _why_not(name: str, error: Exception) -> str:
    """In a line, with the user's own where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    begun = next((i for i, frame in enumerate(frames) if Path(frame.filename).is_relative_to(TORCH)), 0)
    own = [x for x in frames[begun:] if not Path(x.filename).is_relative_to(TORCH) and x.filename[:1] != "<"]
    where = f", at {own[-1].filename}:{own[-1].lineno}, in {own[-1].name}" if own else ""
    message = str(error).strip().partition("\n")[0]
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            f"{name} decides by what is in a tensor{where}: take that out of the module, or use torch.compile(model, "
            'backend="rsn"), which breaks the graph there'
        )
    unknown = re.match(r"Found <class '(?:.*\.)?(\w+)'> in output", message)
    if unknown:
        is_cache = "cache" in unknown[1].lower()
        way_out = "a cache of keys and values: use_cache=False leaves it out" if is_cache else "return tensors instead"
        return f"{name} returns a {unknown[1]}, which torch.export does not know ({way_out})"
    if own and own[-1] is frames[-1]:
        return f"{name} raises {type(error).__name__}: {message}{where}"
    return f"torch.export cannot capture {name}: {message or type(error).__name__}{where}"


def fitting(
    forward: Callable[..., Any], name: str, example_inputs: tuple[Any, ...] | dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], inspect.Signature]:
    """Example inputs by position and by name, in one form, and the signature that they fit. name: of what is called.
    Raises TensorError."""
    if not isinstance(example_inputs, tuple | dict):
        raise TensorError(f"example inputs are a tuple or a dict of tensors, not {type(example_inputs).__name__}")
    args, kwargs = (example_inputs, {}) if isinstance(example_inputs, tuple) else ((), example_inputs)
    signature = inspect.signature(forward)
    try:
        args, kwargs = canonical(signature, args, kwargs)
    except TypeError as error:
        raise TensorError(f"the example inputs do not fit {name}{signature}: {error}") from error
    for argument, given in signature.bind(*args, **kwargs).arguments.items():
        for x in pytree.tree_leaves(given):
            _check_argument(argument, x)
    return args, kwargs, signature


@contextmanager
def unlogged() -> Iterator[None]:
    """Without what torch logs and prints of what it cannot capture, graphs and traces: the error says it. What is
    printed where nothing fails is printed."""
    names = [name for name in logging.root.manager.loggerDict if name == "torch" or name.startswith("torch.")]
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    levels = [handler.level for handler in handlers]
    try:
        for handler in handlers:
            handler.setLevel(logging.CRITICAL)
        with redirect_stderr(StringIO()) as printed:
            yield
        sys.stderr.write(printed.getvalue())
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


def _without_writes(program: ExportedProgram) -> ExportedProgram:
    """The same operators, but none in place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch about its own copying
        return program.run_decompositions({})


@dataclass(frozen=True, eq=False)
class Interface:
    """How a captured module is called: its arguments, flat, as placeholders, and its result as the output node."""

    signature: inspect.Signature
    arguments: tuple[Node, ...]
    structure: pytree.TreeSpec
    result: Node
    result_structure: pytree.TreeSpec | Structure

    @classmethod
    def of(cls, program: ExportedProgram, signature: inspect.Signature) -> Interface:
        placeholders = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
        arguments = tuple(node for node, spec in placeholders if spec.kind == InputKind.USER_INPUT)
        specs = program.call_spec
        return cls(signature, arguments, specs.in_spec, program.graph.output_node(), specs.out_spec)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Environment:
        """The arguments by placeholder. Raises TensorError where they differ from those the module was traced with."""
        try:
            flat, structure = pytree.tree_flatten(canonical(self.signature, args, kwargs))
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        if structure != self.structure:
            raise TensorError(self._difference(args, kwargs))
        for i, (node, value) in enumerate(zip(self.arguments, flat, strict=True)):
            example = node.meta["val"]
            if isinstance(value, np.ndarray) and isinstance(example, torch.Tensor):
                value = flat[i] = as_tensor(node.name, value)
            if not isinstance(example, torch.Tensor):
                if type(value) is not type(example) or value != example:
                    raise TensorError(f"argument {node.name} is not {example!r}, as when the module was traced")
            elif not isinstance(value, torch.Tensor):
                raise TensorError(f"argument {node.name} must be a tensor, not {type(value).__name__}")
            elif value.layout != torch.strided or value.device.type != "cpu":
                kind = value.layout if value.layout != torch.strided else value.device
                raise TensorError(f"argument {node.name} is a tensor of {kind}; it must be a plain one on the CPU")
            elif (value.dtype, value.shape) != (example.dtype, example.shape):
                raise TensorError(
                    f"argument {node.name} is {value.dtype} {tuple(value.shape)}; the module was traced with "
                    f"{example.dtype} {tuple(example.shape)}"
                )
        return dict(zip(self.arguments, flat, strict=True))

    def _difference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The first argument that the example has not, or has in another form."""
        example_args, example_kwargs = pytree.tree_unflatten(list(self.arguments), self.structure)
        known = by_name(self.signature, example_args, example_kwargs)
        given = by_name(self.signature, args, kwargs)
        there = ", ".join(known)
        for name in given:
            if name not in known:
                return f"unexpected argument {name}: the example has {there}; what a call gives, the example must have"
        for name in known:
            if name not in given:
                return f"argument {name} is missing; the example has {there}"
        for name, value in given.items():
            if pytree.tree_structure(value) != pytree.tree_structure(known[name]):
                form = "a tensor or a number" if isinstance(known[name], Node) else f"a {type(known[name]).__name__}"
                return f"argument {name} ({type(value).__name__}) has another structure than in the example: {form}"
        return "the arguments differ in number or structure from those the module was traced with"

    def unbind(self, environment: Environment) -> Any:
        """The module's result, in the module's own structure."""
        (values,) = map_arg(self.result.args, environment.__getitem__)
        return self.result_structure.unflatten(values)


def as_tensor(name: str, array: npt.NDArray[Any]) -> torch.Tensor:
    """What a NumPy array holds, in its memory if PyTorch can use that. name: of the argument. Raises TensorError for a
    dtype that PyTorch has not, and for a masked array, whose mask a tensor would lose."""
    if isinstance(array, np.ma.MaskedArray):
        raise TensorError(f"argument {name} is a masked array: {name}.filled() makes a plain one of it")
    plain = array.dtype.isnative and array.flags.writeable and min(array.strides, default=0) >= 0
    try:
        return torch.from_numpy(array if plain else np.array(array, array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise TensorError(f"argument {name} is a NumPy array of {array.dtype}, which PyTorch has not") from None


def by_name(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name; those that a module takes by any name have their own."""
    named: dict[str, Any] = {}
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        is_any = signature.parameters[name].kind == inspect.Parameter.VAR_KEYWORD
        named |= value if is_any else {name: value}
    return named


def canonical(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in one form, whether given by position or by name. Raises TypeError if they do not fit."""
    bound = signature.bind(*args, **kwargs)
    return bound.args, dict(sorted(bound.kwargs.items()))  # in whatever order they were given


def run(nodes: Iterable[Node], environment: Environment) -> None:
    """Run operators in order; `environment` has their operands and receives their results."""
    with torch.no_grad():
        for node in nodes:
            args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
            environment[node] = node.target(*args, **kwargs)


def lifted(program: ExportedProgram) -> Environment:
    """The values of what is no argument: parameters, buffers, constants and graphs within the graph."""
    values = {node: getattr(program.graph_module, node.target) for node in program.graph.find_nodes(op="get_attr")}
    placeholders = program.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind in LIFTED:
            tensors = program.state_dict if spec.target in program.state_dict else program.constants
            values[node] = tensors[spec.target].detach()
    return values


class Constants:
    """What of a graph depends on no argument, with the values that it has. They are worked out when asked for."""

    def __init__(self, program: ExportedProgram) -> None:
        self._values = lifted(program)
        self._nodes = set(self._values)
        for node in program.graph.nodes:
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if node.op == "call_function" and not random and all(x in self._nodes for x in node.all_input_nodes):
                self._nodes.add(node)

    def __contains__(self, x: object) -> bool:
        return isinstance(x, Node) and x in self._nodes

    def value(self, node: Node) -> torch.Tensor:
        """Of one of these nodes."""
        if node not in self._values:
            for x in node.all_input_nodes:
                self.value(x)
            run([node], self._values)
        tensor: torch.Tensor = self._values[node]
        return tensor


def packet(node: Node) -> Any:
    """The operator without its overload, such as torch.ops.aten.add."""
    return getattr(node.target, "overloadpacket", node.target)


def op_name(node: Node) -> str:
    """Such as aten.gelu.default."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__


def module_path(node: Node) -> str:
    """Where in the module an operator comes from, "" for the module itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]) if stack else ""
    # torch.compile names a module by the variable that it found it in: G['model'].layers.0, or L['self'].layers.0; it
    # calls a module of PyTorch's own fn.
    return re.sub(r"^[LG]\['(\w+)'\]", r"\1", re.sub(r"^L\['(self|fn)'\]\.?", "", path))


def site(node: Node) -> str:
    """For messages."""
    return f"{op_name(node)} at {module_path(node) or TOP}"


def shape_of(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


def is_empty(node: Node) -> bool:
    """Whether it is known to be a tensor without elements."""
    return any(isinstance(n, int) and n == 0 for n in shape_of(node))


def is_static(node: Node) -> bool:
    """Whether the shape of its result is known, and does not depend on data."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(n, int) for part in parts if isinstance(part, torch.Tensor) for n in part.shape)


def dtype_of(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None


def writes_in_place(node: Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def arguments(node: Node) -> dict[str, Any]:
    """An operator's arguments by name, with the defaults of those not given."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    declared = node.target._schema.arguments
    given = dict(zip((x.name for x in declared), node.args, strict=False))
    return {**{x.name: x.default_value for x in declared}, **given, **node.kwargs}
