"""A traced module in three parts: PyTorch before the machine, the machine's network, PyTorch after it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from ..isa.errors import TensorError
from ..scheduler.segment import Array, Network
from .mask import prefix_lengths
from .view import View

Environment = dict[Node, Any]


@dataclass(frozen=True)
class Placement:
    """Where an operator of the module runs, and why there."""

    path: str
    op: str
    where: str
    why: str


@dataclass(frozen=True, eq=False)
class Traced:
    """What `trace` made of a module. Calling the module is prologue, network, epilogue.

    sources: the host's tensor behind each machine input, and how it shows the machine's rows. results: the tensors that
    the machine's outputs stand for, likewise. before and after: the host's operators, in order. masks: the attention
    masks, all of which must hide the same keys.
    """

    network: Network
    placements: tuple[Placement, ...]
    program: ExportedProgram
    signature: inspect.Signature
    before: tuple[Node, ...]
    after: tuple[Node, ...]
    sources: Mapping[str, tuple[Node, View]]
    results: Mapping[Node, tuple[str, View]]
    masks: tuple[Node, ...]

    def prologue(self, *args: Any, **kwargs: Any) -> tuple[dict[str, Array], npt.NDArray[np.int64] | None, Environment]:
        """What runs before the machine, on the arguments of the module.

        Returns the machine's inputs by activation name, each float32 (batch, seq, columns); the keys that take part in
        each sequence, int64 (batch,), or None for a network without masks; and what the epilogue needs to know. Raises
        TensorError where an argument differs from the example in kind, shape or type, or a mask is not a prefix.
        """
        batch, seq = self.network.batch, self.network.seq
        environment = lifted(self.program) | self.arguments(args, kwargs)
        with torch.no_grad():
            run(self.before, environment)
            inputs = {name: _store(environment[node], view) for name, (node, view) in self.sources.items()}
            lengths = [prefix_lengths(environment[mask], batch, seq) for mask in self.masks]
        if any((other != lengths[0]).any() for other in lengths):
            raise TensorError("the layers' attention masks hide different keys; the machine has one length a sequence")
        shaped = {name: flat.reshape(batch, seq, -1) for name, flat in inputs.items()}
        state = {node: environment[node] for node in self._operands() if node in environment}
        return shaped, lengths[0] if lengths else None, state

    def epilogue(self, outputs: Mapping[str, Array], state: Environment) -> Any:
        """What runs after the machine, and the module's result in the module's own structure.

        outputs: by activation name, float32 (batch, seq, columns), the scale and shift of the network's Output already
        applied. Raises TensorError for an output that is missing or has another shape.
        """
        environment = dict(state)
        for node, (name, view) in self.results.items():
            environment[node] = self._load(outputs, name, view, tuple(node.meta["val"].shape))
        with torch.no_grad():
            run(self.after, environment)
        (values,) = map_arg(self.program.graph.output_node().args, environment.__getitem__)
        return pytree.tree_unflatten(values, self.program.call_spec.out_spec)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Environment:
        """The module's flat inputs, checked against the example's."""
        try:
            args, kwargs = canonical(self.signature, args, kwargs)
        except TypeError as error:
            raise TensorError(f"the module's arguments: {error}") from error
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.program.call_spec.in_spec:
            raise TensorError("the arguments differ in number or structure from the example the module was traced with")
        placeholders = user_inputs(self.program)
        for node, value in zip(placeholders, flat, strict=True):
            example = node.meta.get("val")
            if not isinstance(example, torch.Tensor):
                if value != example:
                    raise TensorError(f"argument {node.name} was {example!r} when the module was traced, not {value!r}")
            elif not isinstance(value, torch.Tensor):
                raise TensorError(f"argument {node.name} must be a tensor, not {type(value).__name__}")
            elif value.shape != example.shape or value.dtype != example.dtype:
                raise TensorError(
                    f"argument {node.name} is {value.dtype} {tuple(value.shape)}, but the module was traced with "
                    f"{example.dtype} {tuple(example.shape)}"
                )
        return dict(zip(placeholders, flat, strict=True))

    def explain(self) -> str:
        """A table of the module's operators: where each runs, and why."""
        network = self.network
        lines = [
            f"{network.batch} x {network.seq} rows; {len(network.layers)} layers on the machine; "
            f"inputs {', '.join(network.inputs)}; outputs {', '.join(output.name for output in network.outputs)}"
            + ("; attention masked by length" if self.masks else "")
        ]
        rows: list[tuple[str, str, str, str]] = []
        for p in self.placements:
            if rows and (rows[-1][0], rows[-1][1], rows[-1][3]) == (p.path, p.where, p.why):
                ops = rows[-1][2].split(", ")
                rows[-1] = (p.path, p.where, ", ".join(ops if p.op in ops else [*ops, p.op]), p.why)
            else:
                rows.append((p.path, p.where, p.op, p.why))
        table = [("module", "runs on", "operators", "why"), *rows]
        widths = [max(len(row[i]) for row in table) for i in range(3)]
        lines += ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[3]]).rstrip() for row in table]
        return "\n".join(lines)

    def _operands(self) -> set[Node]:
        return {x for node in (*self.after, self.program.graph.output_node()) for x in node.all_input_nodes}

    def _load(self, outputs: Mapping[str, Array], name: str, view: View, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in outputs:
            raise TensorError(f"the network's output {name} is missing")
        array = outputs[name]
        if array.ndim != 3 or array.shape[:2] != (self.network.batch, self.network.seq):
            raise TensorError(f"output {name} is {array.shape}, not ({self.network.batch}, {self.network.seq}, columns)")
        flat = torch.tensor(np.asarray(array, np.float32)).ravel()
        sizes, strides = _strided(view)
        return flat.as_strided(sizes, strides, view.offset).reshape(shape)


def canonical(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in one form, whether they were given by position or by name."""
    bound = signature.bind(*args, **kwargs)
    return bound.args, bound.kwargs


def run(nodes: Iterable[Node], environment: Environment) -> None:
    """Run operators in order; `environment` has their operands and receives their results."""
    for node in nodes:
        args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
        environment[node] = node.target(*args, **kwargs)  # type: ignore[operator]


def user_inputs(program: ExportedProgram) -> list[Node]:
    """The placeholders of the module's own arguments, in flat order."""
    specs = program.graph_signature.input_specs
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    return [n for n, spec in zip(placeholders, specs, strict=True) if spec.kind == InputKind.USER_INPUT]


def lifted(program: ExportedProgram) -> Environment:
    """The values of the other placeholders: parameters, buffers and constants."""
    values: Environment = {}
    specs = iter(program.graph_signature.input_specs)
    for node in program.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(program.graph_module, node.target)
        elif node.op == "placeholder":
            spec = next(specs)
            if spec.kind != InputKind.USER_INPUT and not isinstance(spec.arg, ConstantArgument):
                tensors = program.state_dict if spec.target in program.state_dict else program.constants
                values[node] = tensors[spec.target]
    return values


def _strided(view: View) -> tuple[list[int], list[int]]:
    return [size for size, _ in view.atoms], [stride for _, stride in view.atoms]


def _store(tensor: torch.Tensor, view: View) -> Array:
    """The machine's rows, flat, that `view` shows as this tensor (or as what it broadcasts to)."""
    sizes, strides = _strided(view)
    flat = torch.empty(tensor.broadcast_to(view.shape).numel())
    flat.as_strided(sizes, strides).copy_(tensor.broadcast_to(view.shape).reshape(sizes))
    array: Array = flat.numpy()
    return array
