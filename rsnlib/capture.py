"""A module as torch.export captures it, and the graph's own terms: names, shapes, arguments, values."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ..isa.errors import TensorError, UnsupportedError

Environment = dict[Node, Any]
LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The undecomposed graph of the module in eval mode.

    Raises UnsupportedError where torch cannot capture it, TensorError for a module that is not on the CPU.
    """
    name = type(model).__name__
    modes = {module: module.training for module in model.modules()}
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise TensorError(f"{path} is on {tensor.device}; move the module to the CPU")
    # The same tensor given for two arguments would become one.
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
    try:
        # Without gradients, or each `with torch.no_grad()` inside the module would become a graph of its own.
        with torch.no_grad():
            program = torch.export.export(model.eval(), args, kwargs, strict=False)
            if any(writes_in_place(node) for node in program.graph.nodes):
                program = _without_writes(program)
    except Exception as error:  # there is no common type for what cannot be captured
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnsupportedError(f"torch.export cannot capture {name}: {message}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    signature = program.graph_signature
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise UnsupportedError(f"{name} changes its own state or its arguments when called")
    for spec in signature.input_specs:
        if spec.kind not in (*LIFTED, InputKind.USER_INPUT):
            raise UnsupportedError(f"{name} has an input of kind {spec.kind.name}")
    return program


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
    result_structure: pytree.TreeSpec

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
            raise TensorError("the arguments differ in number or structure from those the module was traced with")
        for node, value in zip(self.arguments, flat, strict=True):
            example = node.meta["val"]
            if not isinstance(example, torch.Tensor):
                if isinstance(value, torch.Tensor) or value != example:
                    raise TensorError(f"argument {node.name} is not {example!r}, as when the module was traced")
            elif not isinstance(value, torch.Tensor):
                raise TensorError(f"argument {node.name} must be a tensor, not {type(value).__name__}")
            elif (value.dtype, value.shape) != (example.dtype, example.shape):
                raise TensorError(
                    f"argument {node.name} is {value.dtype} {tuple(value.shape)}; the module was traced with "
                    f"{example.dtype} {tuple(example.shape)}"
                )
        return dict(zip(self.arguments, flat, strict=True))

    def unbind(self, environment: Environment) -> Any:
        """The module's result, in the module's own structure."""
        (values,) = map_arg(self.result.args, environment.__getitem__)
        return pytree.tree_unflatten(values, self.result_structure)


def canonical(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in one form, whether given by position or by name. Raises TypeError if they do not fit."""
    bound = signature.bind(*args, **kwargs)
    return bound.args, bound.kwargs


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


def packet(node: Node) -> Any:
    """The operator without its overload, such as torch.ops.aten.add."""
    return getattr(node.target, "overloadpacket", node.target)


def op_name(node: Node) -> str:
    """Such as aten.gelu.default."""
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.target.__name__


def module_path(node: Node) -> str:
    """Where in the module an operator comes from, "" for the module itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def site(node: Node) -> str:
    """For messages."""
    return f"{op_name(node)} at {module_path(node) or 'the top level'}"


def shape_of(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


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
