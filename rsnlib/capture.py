"""A module as torch.export captures it, and the graph's own terms: names, shapes, arguments, values."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

from ..isa.errors import UnsupportedError

Environment = dict[Node, Any]
LIFTED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The undecomposed graph of the module in eval mode. Raises UnsupportedError where torch cannot capture it."""
    name = type(model).__name__
    modes = {module: module.training for module in model.modules()}
    try:
        # Without gradients, or each `with torch.no_grad()` inside the module would become a graph of its own.
        with torch.no_grad():
            program = torch.export.export(model.eval(), args, kwargs, strict=False)
            if any(writes_in_place(node) for node in program.graph.nodes):
                program = _without_writes(program)
    except Exception as error:  # there is no common type for what cannot be captured
        raise UnsupportedError(f"torch.export cannot capture {name}: {error}") from error
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


def user_inputs(program: ExportedProgram) -> list[Node]:
    """The placeholders of the module's own arguments, in flat order."""
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    return [node for node, spec in zip(placeholders, specs, strict=True) if spec.kind == InputKind.USER_INPUT]


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
    return str(node.target) if isinstance(node.target, torch._ops.OpOverload) else node.name


def module_path(node: Node) -> str:
    """Where in the module an operator comes from, "" for the module itself."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def place(node: Node) -> str:
    """For messages."""
    return f"{op_name(node)} at {module_path(node) or 'the top level'}"


def shape_of(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()


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
