"""Arguments of which the machine has tables, such as the positions of rotary embeddings: their values in the example
become constants of the program, and each call must give the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from .capture import Environment, Interface
from .values import AbstractState, HostSuffix, is_host

FIXED = "rsn_argument_"
"""Begins the name of a constant that was an argument."""


def arguments_of_tables(values: AbstractState, node: Node) -> tuple[str, ...]:
    """Return the names of the arguments from which the host computes tables, such as those of rotary positions: tensors
    that results of the machine were multiplied by, or that were added to them, before they reached `node`.

    An argument that these results of the machine depend on too, such as token ids, is left out.
    """
    tables: set[Node] = set()
    computed: set[Node] = set()
    stack = [x for x in node.all_input_nodes if isinstance(values.of.get(x), HostSuffix)]
    seen = set(stack)
    while stack:
        for x in stack.pop().all_input_nodes:
            value = values.of.get(x)
            if value is None or x in seen:
                continue
            seen.add(x)
            if isinstance(value, HostSuffix):
                stack.append(x)
            else:
                (tables if is_host(value) else computed).add(x)
    found = _behind(tables) - _behind(computed)
    program = values.program
    placeholders = program.graph.find_nodes(op="placeholder")
    return tuple(
        node.name
        for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True)
        if node in found and (spec.kind == InputKind.USER_INPUT or str(spec.target).startswith(FIXED))
    )


def _behind(nodes: Iterable[Node]) -> set[Node]:
    """The nodes, and all that they are computed from."""
    stack = list(nodes)
    found = set(stack)
    while stack:
        new = set(stack.pop().all_input_nodes) - found
        found |= new
        stack += new
    return found


def fix(
    program: ExportedProgram, interface: Interface, environment: Environment, names: Sequence[str]
) -> tuple[Interface, Environment]:
    """Make arguments constants of a captured graph, in place, with their values of the example. environment: as
    `trace.captured` returns it. names: of their placeholders; others are ignored. Returns an interface that compares
    the arguments of each call with these values, and the environment with copies of them."""
    fixed = {x: environment[x].detach().clone() for x in interface.arguments if x.name in names}
    specs = program.graph_signature.input_specs
    for i, (node, spec) in enumerate(zip(program.graph.find_nodes(op="placeholder"), specs, strict=True)):
        if node in fixed:
            target = f"{FIXED}{node.name}"
            specs[i] = replace(spec, kind=InputKind.CONSTANT_TENSOR, target=target)
            program.constants[target] = fixed[node]
    return replace(interface, fixed=fixed), environment | fixed
