"""Modules that write: captured graphs without operators that write in place, and modules that change their own
state."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._export.utils import _get_decomp_for_cia
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.fx.node import map_arg
from torch.random import fork_rng
from torch.utils import _pytree as pytree

from ..base.errors import UnsupportedError

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


REGIONS: dict[Any, int] = {
    torch.ops.higher_order.wrap_with_set_grad_enabled: 2,
    torch.ops.higher_order.wrap_with_autocast: 5,
}
"""Operators that only call their subgraph in some mode, each with the number of arguments before the subgraph's."""
PART_OF_TENSOR = torch.ops.export.access_subclass_inner_tensor.default
"""Returns a tensor that a tensor of a subclass holds, such as the integers of a quantised weight, and declares a new
one."""
LAID_OUT = "rsn_laid_out"
"""Key in a graph's meta: the names of arguments whose memory the module may write to. Whether it does may depend on
their strides, as after `contiguous` or `reshape`, which copy some tensors and not others."""


class UnfollowedWriteError(Exception):
    """A graph writes in place, and it cannot be told what else that write changes. node: the operator that is the
    reason. why: the reason, which is the message."""

    def __init__(self, node: Node, why: str) -> None:
        super().__init__(why)
        self.node = node


def writes_in_place(node: Node) -> bool:
    """Return whether the operator of a node writes to one of its arguments."""
    return isinstance(node.target, OpOverload) and bool(node.target._schema.is_mutable)


def writes(program: ExportedProgram) -> bool:
    """Return whether an operator of a graph, or of one of its subgraphs, writes to one of its arguments."""
    return any(map(writes_in_place, _operators(program)))


def without_writes(program: ExportedProgram) -> ExportedProgram:
    """Functionalize a graph: return one with the same operators, but none in place. The graph's meta gets the entry
    `LAID_OUT`. program: is changed too; use the result alone.

    torch's functionalization believes what operators declare. Some composite ones return a view of their operand, or
    the operand itself, and declare a new tensor: dropout in eval mode, type_as, einsum. A write to such a result would
    be lost. So these become their operand, or the operators that they are composed of, if they share memory for the
    shapes, types and strides of the example. Raises `UnfollowedWriteError` for an operator that shares memory so and is
    composed of no others.

    If all writes are to whole tensors, such as caches, or to views of results that nothing else reads afterwards, the
    operators that write are replaced one by one: torch's functionalization captures the whole graph again, which takes
    twice as long as the first capture.
    """
    _inline(program)
    composed: dict[Any, Callable[..., Any]] = {}
    views: set[Node] = set()
    for node in list(program.graph.nodes):
        shared = node.all_input_nodes[0] if _is_operand(node) else _shared(node)
        if isinstance(shared, Node):
            node.replace_all_uses_with(shared)
            program.graph.erase_node(node)
        elif shared:
            views.add(node)
            if not node.target.has_kernel_for_dispatch_key(COMPOSITE) or "unsafe" in str(node.target):
                raise UnfollowedWriteError(
                    node, "its result shares memory with its operand, and the module writes in place"
                )
            composed[node.target] = _get_decomp_for_cia(node.target)
    laid_out = _laid_out(program, views)
    if (found := _replaceable_writes(program, views)) is not None:
        made = _out_of_place(program, found)
    else:
        program.graph_module.recompile()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # about copying inside torch
            made = program.run_decompositions(composed)
    for node in _operators(made):
        if writes_in_place(node):
            raise UnfollowedWriteError(node, "it writes in place, in a way that cannot be followed")
    made.graph_module.meta[LAID_OUT] = laid_out
    return made


class _Write(NamedTuple):
    """What an operator writes to a tensor. nodes: all that are this tensor, the first one first. operator: the one that
    returns the same as a new tensor. value: that tensor of the example."""

    nodes: list[Node]
    operator: OpOverload
    value: Any


def _replaceable_writes(program: ExportedProgram, views: set[Node]) -> dict[Node, _Write] | None:
    """What each operator that writes in place writes.

    None if what one of them writes to is read afterwards under another name: if it writes to a view of an argument, or
    if a tensor that shares memory with it, and was made before, is read later. views: operators that return views and
    do not declare it; None, too, for one of an argument that is written to, because results may be such views.
    """
    specs = program.graph_signature.input_specs
    arguments = {spec.arg.name for spec in specs if spec.kind == InputKind.USER_INPUT}
    nodes_of: dict[Node, list[Node]] = {}
    """For each node that is a tensor of its own, all that are the same one."""
    times: Counter[Node] = Counter()
    """How often the memory of such a tensor has been written to, by its first node."""
    shown: dict[Node, set[tuple[Node, int]]] = {}
    """For each other node, the tensors whose memory it may show, and how often these had been written to before."""
    undeclared: set[Node] = set()
    """The tensors of which an operator returns a view and does not declare it."""
    found: dict[Node, _Write] = {}
    for node in program.graph.nodes:
        if any(times[x] != n for y in node.all_input_nodes for x, n in shown.get(y, ())):
            return None
        operands = node.all_input_nodes if node in views else _operands_shown(node)
        if writes_in_place(node):
            if node.args[:1] != (operands[0],) or (written := _written(node)) is None:
                return None
            same = nodes_of.get(operands[0])
            if same is None:  # a view: what it is of, and other views of that, are not to be read from here on
                for whole, count in shown.pop(operands[0]):
                    if whole.op != "call_function":
                        return None
                    times[whole] += 1
                    shown |= {x: {(whole, count)} for x in nodes_of[whole]}
                same = nodes_of[operands[0]] = [operands[0]]
            elif same[0].op != "call_function" and same[0].name not in arguments:
                return None
            found[node] = _Write(same, *written)
            times[same[0]] += 1
        elif operands:
            shown[node] = {(x[0], times[x[0]]) for y in operands if (x := nodes_of.get(y))}
            shown[node] |= {x for y in operands for x in shown.get(y, ())}
            undeclared |= {x for x, _ in shown[node] if node in views}
            continue
        else:
            same = [node]
        nodes_of[node] = same
        if operands:
            same.append(node)
    written_arguments = {x.nodes[0] for x in found.values() if x.nodes[0].op != "call_function"}
    return found if written_arguments.isdisjoint(undeclared) else None


def _is_operand(node: Node) -> bool:
    """Whether an operator such as `to` returns its only operand itself, and writes nothing."""
    if node.target is torch.ops.aten.detach_.default:
        return True
    if not isinstance(node.target, OpOverload) or not node.target.has_kernel_for_dispatch_key(COMPOSITE):
        return False
    if writes_in_place(node) or len(node.all_input_nodes) != 1:
        return False
    operand = node.all_input_nodes[0].meta.get("val")
    return isinstance(operand, torch.Tensor) and _result(node.target, node) is operand


def _written(node: Node) -> tuple[OpOverload, Any] | None:
    """The operator that returns what another one writes to its first operand, and its result for the example: a tensor
    like the operand, in memory of its own. None if there is none."""
    name = node.target.overloadpacket.__name__
    if not name.endswith("_") or torch.Tag.inplace_view in node.target.tags:
        return None
    if node.target.namespace != "aten":
        return None  # elsewhere, an operator with such a name may compute something else
    operator = getattr(getattr(torch.ops.aten, name[:-1], None), node.target._overloadname, None)
    if operator is None or operator._schema.is_mutable or _takes(operator) != _takes(node.target):
        return None
    value, like = _result(operator, node), _value(node.args[0])
    given = [x for x in map(_value, node.all_input_nodes) if isinstance(x, torch.Tensor)]
    if not isinstance(value, torch.Tensor) or any(value.untyped_storage() is x.untyped_storage() for x in given):
        return None
    same = sym_eq((value.shape, value.stride()), (like.shape, like.stride()))  # sizes may depend on data
    return (operator, value) if value.dtype == like.dtype and statically_known_true(same) else None


def _takes(operator: OpOverload) -> list[tuple[str, Any]]:
    """The names and types of an operator's arguments. `pow_` and `pow` have overloads of one name that take others."""
    return [(x.name, x.type) for x in operator._schema.arguments]


def _out_of_place(program: ExportedProgram, found: Mapping[Node, _Write]) -> ExportedProgram:
    """Replace the operators that write in place. What arguments are in the end are the first results, as torch has
    it."""
    graph = Graph()
    now: dict[Node, Node] = {}
    """Each node so far in the new graph; for a tensor that has been written to, the last value."""
    for node in program.graph.nodes:
        if node in found:
            nodes, operator, value = found[node]
            args, kwargs = map_arg((node.args, node.kwargs), now.__getitem__)
            made = graph.create_node("call_function", operator, args, kwargs, operator.overloadpacket.__name__)
            made.meta = node.meta | {"val": value}
            now |= dict.fromkeys(nodes, made)
        else:
            now[node] = graph.node_copy(node, now.__getitem__)
    specs, output = program.graph_signature.output_specs, graph.output_node()
    for spec, result in zip(specs, output.args[0], strict=True):
        if isinstance(result, Node):
            spec.arg.name = result.name
    written = {x.nodes[0] for x in found.values()}
    changed = [x for x in program.graph.find_nodes(op="placeholder") if x in written]
    output.args = ((*(now[x] for x in changed), *output.args[0]),)
    specs[:0] = [OutputSpec(OutputKind.USER_INPUT_MUTATION, TensorArgument(now[x].name), x.name) for x in changed]
    graph.eliminate_dead_code()
    program.graph_module.graph = graph
    program.graph_module.delete_all_unused_submodules()  # regions that are inlined
    return program


def _inline(program: ExportedProgram) -> None:
    """Put the operators of regions such as `with torch.enable_grad()` into the graph itself, if functionalization would
    lose writes there. Autocast that is on is refused elsewhere. Raises like `without_writes`."""
    for node in list(program.graph.nodes):
        parts = [getattr(program.graph_module, x.target) for x in node.all_input_nodes if x.op == "get_attr"]
        inner = [x for part in parts if isinstance(part, GraphModule) for x in part.graph.nodes]
        if not any(writes_in_place(x) or _shared(x) for x in inner):
            continue
        if node.target not in REGIONS or any(x.op == "get_attr" for x in inner):
            raise UnfollowedWriteError(node, "the module writes in place inside of it")
        operands = node.args[REGIONS[node.target] :]
        placeholders = parts[0].graph.find_nodes(op="placeholder")
        with program.graph.inserting_before(node):
            made = program.graph.graph_copy(parts[0].graph, dict(zip(placeholders, operands, strict=True)))
        for user in list(node.users):
            user.replace_all_uses_with(made[user.args[1]])
            program.graph.erase_node(user)
        program.graph.erase_node(node)


def _shared(node: Node) -> Node | bool:
    """Whether an operator that declares new tensors returns memory of an operand; the operand, if it returns that."""
    if not isinstance(node.target, OpOverload) or any(x.alias_info for x in node.target._schema.arguments):
        return False
    operands = {id(x.meta["val"]): x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)}
    given = {x.meta["val"].untyped_storage()._cdata for x in operands.values()}
    if not given:
        return False
    if not node.target.has_kernel_for_dispatch_key(COMPOSITE) and "unsafe" not in str(node.target):
        return False  # it computes
    result = _result(node.target, node)
    if id(result) in operands:
        return operands[id(result)]
    made = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
    return any(x.untyped_storage()._cdata in given for x in made)


def _result(operator: OpOverload, node: Node) -> Any:
    """What an operator makes of a node's operands in the example. One of these is a tensor."""
    fakes = (_value(x) for x in node.all_input_nodes)
    symbols = next(x for x in fakes if isinstance(x, torch.Tensor)).fake_mode.shape_env
    with nullcontext() if symbols is None else symbols.ignore_fresh_unbacked_symbols():
        return operator(*map_arg(node.args, _value), **map_arg(node.kwargs, _value))


def _operands_shown(node: Node) -> list[Node]:
    """The operands whose memory a result may show, if the operator declares it, or is known for it."""
    if not isinstance(node.target, OpOverload) or node.target is PART_OF_TENSOR:
        return list(node.all_input_nodes)
    declared = node.target._schema.arguments
    given = dict(zip((x.name for x in declared), node.args, strict=False)) | node.kwargs
    return [y for x in declared if x.alias_info for y in pytree.tree_leaves(given.get(x.name)) if isinstance(y, Node)]


def _laid_out(program: ExportedProgram, views: set[Node]) -> frozenset[str]:
    """The names of the arguments that a graph may write to. views: operators whose results share memory with operands,
    beside those that declare it."""
    behind: dict[Node, set[Node]] = {}
    """By node, the inputs of the graph whose memory it may show."""
    written: set[Node] = set()
    for node in program.graph.nodes:
        operands = node.all_input_nodes if node in views else _operands_shown(node)
        shown = {x for operand in operands for x in behind.get(operand, ())}
        behind[node] = {node} if node.op == "placeholder" else shown
        if writes_in_place(node):
            written |= shown
    return frozenset(node.name for node in written)


def _operators(program: ExportedProgram) -> list[Node]:
    """The nodes of a graph and of its subgraphs."""
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)]
    return [node for graph in graphs for node in graph.nodes]


def _value(node: Node) -> Any:
    return node.meta["val"]


OWN = frozenset(vars(nn.Module())) - {"training"}
"""Attributes that PyTorch gives every module."""


class Attributes:
    """The attributes of a module and of its submodules, buffers among them, to find those that a call changes. changed:
    the paths of the attributes that calls have changed so far."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.changed: dict[str, None] = {}
        """The paths of attributes that had another value after a call than before, or none before."""

    @contextmanager
    def called(self, module: nn.Module) -> Iterator[None]:
        """Context of a call of a module, for `in_turn`: records the attributes that the call changes in `changed`.
        Calls of other modules do not count."""
        if vars(module) is not vars(self._module):  # not the same object: torch.export calls a stand-in
            yield
            return
        before = {name: _shallow(value) for name, value in _attributes(self._module)}
        yield
        for name, value in _attributes(self._module):
            if name not in before or not _same(before[name], _shallow(value)):
                self.changed[name] = None


def changes_state(name: str, changed: Iterable[str]) -> UnsupportedError:
    """Return the error for a module that changes its own state. name: of the module. changed: paths of its
    attributes."""
    return UnsupportedError(
        f'{name} changes its own state when called: {", ".join(changed)}; torch.compile(model, backend="rsn") follows '
        "such changes"
    )


def depends_on_calls(model: nn.Module, args: Any, kwargs: Any) -> bool:
    """Return whether a second call of a module computes other results than the first, because its attributes changed; a
    table that is only remembered makes no difference.

    PyTorch runs the module twice, with the same arguments. model: a copy of the module, because the calls change it.
    args, kwargs: by position and by name. A call that raises in the second run counts as a difference; in the first
    one, the error is raised.
    """

    def called() -> list[Any]:
        by_position, by_name = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        torch.manual_seed(0)
        leaves: list[Any] = pytree.tree_leaves(model(*by_position, **by_name))
        return leaves

    with torch.no_grad(), fork_rng(devices=[]):
        first = pytree.tree_map_only(torch.Tensor, torch.clone, called())
        try:
            second = called()
        except Exception:  # whatever a model raises
            return True
    return len(first) != len(second) or not all(map(_equal, first, second))


def _attributes(module: nn.Module) -> Iterable[tuple[str, Any]]:
    for path, part in module.named_modules():
        for name, value in chain(vars(part).items(), part._buffers.items()):
            if name not in OWN:
                yield f"{path}.{name}" if path else name, value


def _shallow(value: Any) -> Any:
    """A value, or a copy of a container that others may change."""
    return value.copy() if type(value) in (list, dict, set) else value


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(_same, a.values(), b.values()))
    return isinstance(a, int | float | str | set | torch.dtype) and bool(a == b)


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a is b or bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype or not a.is_floating_point():
        return bool(torch.equal(a, b))
    return bool(torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True))
