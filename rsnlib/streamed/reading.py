"""From the graph that torch.export captures to operators of streams.

The graph is that of PyTorch's operators, after the rewrites that give norms and rotary positions one spelling, not the
network of layers for the matrix machine: that one has products with everything else fused into them, while kernels of a
generated machine are single operators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ...base.errors import TensorError, UnsupportedError
from ...scheduler.graph import unique_name
from ..capture import (
    Constants,
    Environment,
    Interface,
    arguments,
    dtype_of,
    is_empty,
    is_static,
    module_path,
    op_name,
    packet,
    run,
    shape_of,
    site,
)
from ..changes import Numbers
from ..layers import identifier
from ..rules import VIEWS
from ..view import View
from .names import RESERVED
from .operators import Array, FromHost, OperatorGraph, Positions, StreamOperator, reachable
from .pointwise import fused
from .repeated import RepeatedLayers
from .showing import ColumnSlice, ShownTensor, is_matrix, part_of

aten = torch.ops.aten
MODULES = ("linear", "layernorm", "rmsnorm")
"""Operators that most models have modules for, so that their paths say what they are."""


class OperatorRefused(Exception):
    """An operator is not supported. The message is the reason, without the operator's name."""


@dataclass(frozen=True)
class Host:
    """A tensor, or another value, that the host computes before the run. node: of the captured graph. given: it is an
    argument of the module, or an argument that operators only rearranged."""

    node: Node
    given: bool = False


@dataclass(frozen=True)
class Missing:
    """A tensor that no kernel computes. It may be a step of something that a kernel computes as a whole. why: message
    of the error if it is needed."""

    why: str


Value = ShownTensor | Host | Missing


@dataclass(frozen=True, eq=False)
class OperatorBlock:
    """A PyTorch module as operators of streams.

    graph: the operators. interface: how the module is called. results: for each output node of the captured graph that
    kernels compute, which elements of which operator's result it is. host: the nodes that the host computes before each
    run, in order: first those that say which rows of caches are replaced. lifted: copies of the module's tensors that
    the host reads, by node. weights: the state of each of the module's tensors at the capture, by name: operators and
    `lifted` hold the numbers of that time. repeated: the layers of which the operators are the first one, None if the
    operators are the whole module.
    """

    graph: OperatorGraph
    interface: Interface
    results: Mapping[Node, ShownTensor]
    host: tuple[Node, ...]
    lifted: Environment
    weights: Mapping[str, Numbers]
    repeated: RepeatedLayers | None = None

    def environment(self, arguments_: Environment) -> Environment:
        """Return the values of all nodes of the host. arguments_: the values of the arguments, from `Interface.bind`.
        Raises `TensorError` for positions that a cache does not have, if a tensor of the module has changed since the
        capture, and as `run` does."""
        for name, numbers in self.weights.items():
            if numbers.have_moved() or numbers.have_changed():
                raise TensorError(
                    f"{name} of the module has changed since this program was made from it; make the program again"
                )
        values = {**self.lifted, **arguments_}
        unchecked = [x.positions for x in self.graph.operators if x.positions is not None]
        if self.repeated:
            unchecked += self.repeated.positions
        for node in (None, *self.host):
            if node is not None and node not in values:
                run([node], values)
            for positions in [positions for positions in unchecked if positions.node in values]:
                _check_positions(positions, values[positions.node])
                unchecked.remove(positions)
        return values


def _check_positions(positions: Positions, given: torch.Tensor) -> None:
    """Raise `TensorError` for a position that its cache does not have."""
    for position in given.reshape(-1).tolist():
        if position >= positions.capacity:
            raise TensorError(
                f"position {position} is beyond the capacity of {positions.capacity} rows of {positions.cache}; make "
                f"the program for a larger cache"
            )
        if position < 0:
            raise TensorError(f"position {position} of {positions.cache}; positions begin at 0")


Rule = Callable[["GraphReader", Node, dict[str, Any]], "Value | None"]
"""A rule: called with the reader, an operator of PyTorch, and its arguments by name. It returns what the operator's
result is; None: leave it to the host, if all its operands are there. Raises `OperatorRefused` with the reason if no
kernel computes it."""


@dataclass(frozen=True)
class GraphPart:
    """A part of a captured graph that kernels compute, such as a layer. path: of its module. nodes: its operators.
    given: the node in front of the part that it takes as its input. results: the nodes of the part that others read."""

    path: str
    nodes: frozenset[Node]
    given: Node
    results: tuple[Node, ...]


def weight_memory(name: str, matrix: npt.NDArray[Any], dtype: str = "f32") -> StreamOperator:
    """Return the operator of a constant matrix off the chip. matrix: (rows, columns), as a run keeps elements of
    `dtype`."""
    data = np.array(matrix[None], order="C")  # a copy: the module may change its own
    return StreamOperator(name, "memory", (), (1, *matrix.shape), data=data, dtype=dtype)


class GraphReader:
    """Reads a captured graph, operator by operator, and makes operators of streams of it. program: the graph.
    interface: how its module is called. rules: the rule for each operator of PyTorch. part: the part that is read, None
    for all of it. taken: names that operators must not get. of: what each node was read as, so far."""

    def __init__(
        self,
        program: ExportedProgram,
        interface: Interface,
        rules: Mapping[Any, Rule],
        part: GraphPart | None = None,
        taken: Collection[str] = (),
    ) -> None:
        self.rules = rules
        self._part = part
        self.program = program
        self.interface = interface
        self.constants = Constants(program)
        self.of: dict[Node, Value] = {}
        self._names: set[str] = {*RESERVED, *taken}
        self._memories: dict[tuple[Node, View, tuple[int, int, int], bool], StreamOperator] = {}
        self._shared: dict[tuple[object, ...], StreamOperator] = {}
        self._columns: dict[tuple[StreamOperator, int, int], StreamOperator] = {}

    def block(self, values: Environment) -> OperatorBlock:
        """Read the whole graph, and return it as a block. values: of all nodes that are no operators, by node. Raises
        as `read`."""
        graph, results = self.read()
        positions, _ = ahead(self.program, {x.positions.node for x in graph.operators if x.positions is not None})
        needed = {operator.data.node for operator in graph.operators if isinstance(operator.data, FromHost)}
        needed |= {node for node in self.interface.result.all_input_nodes if node not in results}
        others, _ = ahead(self.program, needed)
        host = (*positions, *(node for node in others if node not in positions))
        return block_of(self.program, self.interface, graph, results, host, values)

    def read(self) -> tuple[OperatorGraph, dict[Node, ShownTensor]]:
        """Read the graph, or its part. Returns its operators; and, for each node that is a result and that kernels
        compute, which elements of which operator's result it is. Raises `UnsupportedError` for an operator on which a
        result depends and that no kernel computes, and for a module of which nothing can be a kernel."""
        part = self._part
        for node in self.program.graph.nodes:
            if node.op == "call_function" and (part is None or node in part.nodes):
                self.of[node] = self._read(node)
            elif node.op != "output":
                self.of[node] = Host(
                    node, node in self.interface.arguments or (part is not None and node is part.given)
                )
        results = {}
        for node in self.interface.result.all_input_nodes if part is None else part.results:
            value = self.of[node]
            if isinstance(value, ShownTensor):
                results[node] = value
            elif isinstance(value, Missing):
                raise UnsupportedError(value.why)
        if not results:
            sites = [site(node) for node in self.of if node.op == "call_function"]
            found = f"; it has {', '.join(sites[:5])}{', ...' * (len(sites) > 5)}" if sites else ""
            raise UnsupportedError(
                "nothing in this module can be a kernel: there is no product, norm, attention or activation of its "
                f"arguments{found}"
            )
        roots = tuple(dict.fromkeys(shown.operator for shown in results.values()))
        graph = fused(OperatorGraph(reachable(roots), roots))
        # Operators of results keep their names when chains are joined.
        made = {operator.name: operator for operator in graph.results}
        return graph, {node: ShownTensor(made[x.operator.name], x.view) for node, x in results.items()}

    def _read(self, node: Node) -> Value:
        from_host = all(isinstance(self.of.get(x), Host) for x in node.all_input_nodes)
        rule = self.rules.get(packet(node))
        missing = next((value for x in node.all_input_nodes if isinstance(value := self.of[x], Missing)), None)
        if missing is not None and packet(node) is not aten.cat:
            return missing
        try:
            if not from_host and is_empty(node):
                raise OperatorRefused("its result has no elements")
            if not from_host and not is_static(node):
                raise OperatorRefused("its result has a size that depends on the data: give lengths that are fixed")
            made = rule(self, node, arguments(node)) if rule is not None else None
        except OperatorRefused as refused:
            return missing or Missing(f"{site(node)}: {refused}")
        if made is not None:
            return made
        if not from_host:
            names = ", ".join(
                sorted({str(op).removeprefix("aten.") for op in self.rules if hasattr(op, "_qualified_op_name")})
            )
            return Missing(f"{site(node)}: no kernel computes {op_name(node)}; there are kernels for {names}")
        operands = [self.of[x] for x in node.all_input_nodes]
        return Host(node, packet(node) in VIEWS and any(isinstance(x, Host) and x.given for x in operands))

    # -- names and operators

    def name(self, node: Node, kind: str) -> str:
        """Return a new name for an operator, made of the path of its module and `kind`, a word for what the operator
        does. `kind` is left out for modules that are just this operator (`MODULES`), and for a path that is a number
        only. node: the operator of PyTorch."""
        path = module_path(node)
        if self._part is not None:
            path = path.removeprefix(self._part.path).removeprefix(".")
        plain = path if kind in MODULES or path.isdigit() else "_".join(filter(None, (path, kind)))
        return unique_name(identifier(plain or kind, kind), self._names)

    def operator(
        self, node: Node, op: str, operands: Sequence[StreamOperator], shape: tuple[int, int, int], **attributes: Any
    ) -> StreamOperator:
        """Return a new operator that stands for a node. op, operands, attributes: as in `StreamOperator`. shape: of the
        result, (heads, rows, columns)."""
        return StreamOperator(self.name(node, op), op, tuple(operands), shape, attributes, site=site(node))

    def again(self, x: StreamOperator, operand: StreamOperator) -> StreamOperator:
        """Return an operator that computes of `operand` what x computes of its own operand. operand: with fewer rows,
        such as the last one of a sequence."""
        return replace(x, name=unique_name(x.name, self._names), operands=(operand,), shape=operand.shape)

    def once(self, key: tuple[object, ...], make: Callable[[], StreamOperator]) -> StreamOperator:
        """Return the one operator for a key: `make` makes it at the first call with this key. So layers that quantise
        the same rows share one kernel. key: everything that the operator's numbers depend on."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def known(self, x: object) -> float | None:
        """Return the value of x if it is a number that does not depend on the arguments; None for anything else."""
        if isinstance(x, int | float) and not isinstance(x, bool):
            return float(x)
        if isinstance(x, Node) and x in self.constants and prod(shape_of(x)) == 1:
            return float(self.constants.value(x))
        return None

    def array(self, node: Node) -> Array:
        """Return the value of a constant node, float32 in the node's shape. It may share memory with the module: copy
        what is kept. Raises `OperatorRefused` for a node that depends on the arguments."""
        if node not in self.constants:
            raise OperatorRefused(f"{node.name} depends on the arguments; it must be a constant of the module")
        value: Array = self.constants.value(node).detach().to(torch.float32).contiguous().numpy()
        return value

    def vector(self, node: Node | None, size: int) -> Array | None:
        """Return a constant of `size` elements, float32 (size,), of its own memory; None for a node that is None.
        Raises `OperatorRefused` for a node that depends on the arguments, or is not one row of 1 or `size` elements."""
        if node is None:
            return None
        shape = shape_of(node)
        if shape[-1:] not in ((), (1,), (size,)) or prod(shape[:-1]) != 1:
            raise OperatorRefused(f"{node.name} is {list(shape)}; it must be one row of {size} elements")
        return np.array(np.broadcast_to(self.array(node).reshape(-1), size))

    # -- tensors off the chip

    def constant(self, node: Node, kind: str, data: Array) -> StreamOperator:
        """Return a new operator for a constant tensor off the chip. node, kind: for its name. data: (rows, columns) or
        (heads, rows, columns)."""
        whole = np.array(data, np.float32, order="C").reshape((1, *data.shape) if data.ndim == 2 else data.shape)
        name = self.name(node, kind)
        return StreamOperator(name, "memory", (), (whole.shape[0], whole.shape[1], whole.shape[2]), data=whole)

    def memory(
        self,
        node: Node,
        view: View | None = None,
        shape: tuple[int, int, int] | None = None,
        masks: bool = False,
        integers: bool = False,
    ) -> StreamOperator:
        """Return the operator for a tensor of the host that lies off the chip; the same operator for equal arguments.

        node: the tensor. view: where its elements lie in matrices of `shape`, (heads, rows, columns); None for one
        matrix, whose columns are the tensor's last dimension. masks: the tensor is a mask, which is added to scores, or
        whose Booleans say which scores count. integers: the tensor may be int8. Raises `OperatorRefused` for a tensor
        that is not float32, nor Boolean with `masks`, nor int8 with `integers`.
        """
        is_integers = integers and dtype_of(node) == torch.int8
        if dtype_of(node) != torch.float32 and not is_integers and not (masks and dtype_of(node) == torch.bool):
            raise OperatorRefused(f"{node.name} is {dtype_of(node)}; kernels compute in float32")
        if view is None or shape is None:
            sizes = shape_of(node)
            view, shape = View.dense(sizes), (1, prod(sizes[:-1]), sizes[-1] if sizes else 1)
        key = node, view, shape, masks
        if key not in self._memories:
            name = unique_name(identifier(node.name, "input"), self._names)
            data, dtype = FromHost(node, view, masks), "i8" if is_integers else "f32"
            self._memories[key] = StreamOperator(name, "memory", (), shape, data=data, dtype=dtype)
        return self._memories[key]

    # -- operands

    def shown(self, node: Node, integers: bool = False) -> ShownTensor:
        """Return a node as a tensor on streams; one of the host is loaded. integers: as for `memory`. Raises
        `OperatorRefused` as `memory` does."""
        value = self.of[node]
        if isinstance(value, ShownTensor):
            return value
        assert isinstance(value, Host)
        return ShownTensor(self.memory(node, integers=integers), View.dense(shape_of(node)))

    def whole(self, part: ColumnSlice) -> StreamOperator:
        """Return an operator whose result is exactly the columns of `part`. If `part` is some columns of a product, the
        product is divided: its other columns become other products. Raises `OperatorRefused` for some columns of
        another operator."""
        operator = part.operator
        if part.is_whole:
            return operator
        span = part.start, part.start + part.width
        key = (operator, *span)
        if key in self._columns:
            return self._columns[key]
        if operator.op == "linear":
            bias = operator.attributes["bias"]
            name = unique_name(f"{operator.name}_{span[0]}", self._names)
            operands = []
            for kind, operand in zip(operator.attributes["operand_names"], operator.operands, strict=True):
                if kind.startswith("weight"):
                    data: Any = operand.data
                    operand = weight_memory(f"{name}_{kind}", data[0, :, slice(*span)], operand.dtype)
                operands.append(operand)
            attributes = {**operator.attributes, "bias": None if bias is None else bias[slice(*span)]}
            shape = *operator.shape[:2], part.width
            made = StreamOperator(name, "linear", tuple(operands), shape, attributes, site=operator.site)
        else:
            raise OperatorRefused(
                f"it reads columns {span[0]} to {span[1] - 1} of {operator.shape[2]} of "
                f"{operator.site or operator.name}; a kernel gives all of its columns, unless it is a "
                "product with a constant weight"
            )
        self._columns[key] = made
        return made

    def part(self, node: Node) -> ColumnSlice:
        """Return which columns of which operator's result a node is, and in which order its rows are. A tensor of the
        host is loaded. Raises `OperatorRefused` for a node that repeats or leaves out elements, or whose columns do not
        stand side by side, and as `shown`."""
        found = part_of(self.shown(node))
        if found is None:
            raise OperatorRefused(
                f"{node.name} repeats or leaves out elements, or its columns do not stand side by side"
            )
        return found

    def matrix(self, node: Node) -> StreamOperator:
        """Return an operator whose result is the node's tensor, as rows of its last dimension. Raises `OperatorRefused`
        for a node that is no matrix as it is stored, and as `part` and `whole` do."""
        part = self.part(node)
        if not is_matrix(part):
            raise OperatorRefused(
                f"{node.name} is no matrix as it is stored: a transpose or a reshape has mixed its rows and columns"
            )
        return self.whole(part)


def ahead(
    program: ExportedProgram, nodes: Collection[Node], until: Collection[Node] = ()
) -> tuple[list[Node], list[Node]]:
    """Return operators together with all operators that they depend on, in order; and the arguments and constants that
    these depend on. program: the graph. nodes: the operators. until: nodes that are known; neither they nor what they
    depend on is returned."""
    needed = {node for node in nodes if node not in until}
    stack = list(needed)
    while stack:
        for x in stack.pop().all_input_nodes:
            if x not in needed and x not in until:
                needed.add(x)
                stack.append(x)
    found = [node for node in program.graph.nodes if node in needed]
    operators = [node for node in found if node.op == "call_function"]
    return operators, [node for node in found if node.op in ("placeholder", "get_attr")]


def block_of(
    program: ExportedProgram,
    interface: Interface,
    graph: OperatorGraph,
    results: Mapping[Node, ShownTensor],
    host: Sequence[Node],
    values: Environment,
    repeated: RepeatedLayers | None = None,
) -> OperatorBlock:
    """Return the block of operators that were read from a graph.

    program, interface: of the module. graph, results, host, repeated: as in `OperatorBlock`; host may have nodes that
    the results do not need. values: of all nodes that are no operators, by node.
    """
    behind = repeated.behind if repeated else ()
    read = {x for node in (*host, *behind) for x in node.all_input_nodes if x.op in ("placeholder", "get_attr")}
    read |= {operator.data.node for operator in graph.operators if isinstance(operator.data, FromHost)}
    read |= set(interface.result.all_input_nodes)
    read |= {x.positions.node for x in graph.operators if x.positions is not None}
    lifted_ = {node: x for node, x in values.items() if node in read and node not in interface.arguments}
    copies = {node: x.clone() if isinstance(x, torch.Tensor) else x for node, x in lifted_.items()}
    weights = {**program.state_dict, **program.constants}
    states = {name: Numbers([x]) for name, x in weights.items() if isinstance(x, torch.Tensor)}
    return OperatorBlock(graph, interface, results, tuple(host), copies, states, repeated)
