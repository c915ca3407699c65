"""Split a graph that the machine cannot run as a whole into pieces, and run the supported pieces on the machine.

At an operator that is refused, the graph is cut: the operator and everything that depends on it form the rest. In the
rest its operands are tensors of the host, so that it may be supported there. If it is refused again, it becomes a piece
for PyTorch. If the scheduler refuses a layer, the graph is cut at an operator of that layer; if a program has too many
layers, in its middle.
"""

from __future__ import annotations

import inspect
import operator
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node
from torch.random import fork_rng
from torch.utils import _pytree as pytree

from ..base.errors import ScheduleError, TensorError, UnsupportedError
from ..scheduler.graph import AttentionLayer, Gemm, Layer, LayerGraph, Output, behind
from ..scheduler.memory import RoomError
from ..scheduler.pack import ListTooLong
from .capture import (
    Environment,
    Interface,
    arguments,
    draws,
    is_static,
    lifted,
    module_path,
    run,
    site,
    steps_of,
    used_up,
)
from .experts.replace import ExpertsPlan
from .fallback import Refusal
from .flops import FlopCounter
from .ideas import with_ideas
from .partition import Traced
from .passes import USUAL, Passes
from .rewrites import rewrite
from .summary import ModuleWork
from .trace import DRAWS, NOTHING, NoProductError, captured, interpret, trace
from .values import AbstractState, RefusedError, WrongTypeError


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of a split graph. nodes: its operators, in order. takes: the values that it takes, the arguments of
    `traced` in order. gives: the values that later pieces need, the results of `traced` in order; both are empty for
    PyTorch. traced: the piece for the machine; None for PyTorch.

    why: reasons, as texts. For PyTorch: what the machine cannot run, empty if the piece has no product. For the
    machine: why the graph is cut before this piece, empty if the piece before is the reason.
    """

    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]
    gives: tuple[Node, ...]
    traced: Traced | None
    why: tuple[str, ...]


def work_of(piece: Piece) -> list[ModuleWork]:
    """Return the FLOPs of each operator of a piece for PyTorch, with its module."""
    counter = FlopCounter()
    return [ModuleWork(module_path(node), counter.of(node)) for node in piece.nodes]


T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Split:
    """A module as pieces that run one after the other. interface: how the module is called. constants: values of the
    weights that pieces and result need, by node."""

    interface: Interface
    constants: Environment
    pieces: tuple[Piece, ...]

    @property
    def reasons(self) -> list[str]:
        """Why the graph is cut or runs in PyTorch, as texts for messages; each reason once."""
        return list(dict.fromkeys(text for piece in self.pieces for text in piece.why))

    def built(self, build: Callable[[Traced], T]) -> tuple[Split, list[T | None]]:
        """Build the programs of the pieces. build: makes a program; raises one of `Refusal` for a piece that cannot be
        scheduled, which becomes one for PyTorch.

        Returns the split with copies of those constants alone that PyTorch needs, which share no memory with the module
        and are laid out as in a file; and the program of each piece, None for PyTorch. Raises `UnsupportedError` if
        nothing can run on the machine.
        """
        programs: list[T | None] = []
        pieces: list[Piece] = []
        for piece in self.pieces:
            try:
                programs.append(None if piece.traced is None else build(piece.traced))
                pieces.append(piece)
            except Refusal as e:
                programs.append(None)
                pieces.append(Piece(piece.nodes, (), (), None, (*piece.why, str(e))))
        if all(program is None for program in programs):
            raise UnsupportedError([text for piece in pieces for text in piece.why][-1])
        runs = (node for piece in pieces if piece.traced is None for node in piece.nodes)
        needed = {x for node in (*runs, self.interface.result) for x in node.all_input_nodes}
        constants = {
            node: value.clone(memory_format=torch.contiguous_format) if isinstance(value, torch.Tensor) else value
            for node, value in self.constants.items()
            if node in needed
        }
        return Split(self.interface, constants, tuple(pieces)), programs

    def calls(
        self, programs: Sequence[object], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Generator[tuple[int, tuple[Any, ...]], Sequence[Any], Any]:
        """Run a call of the module, in which the caller runs the programs. It is a generator: it yields the number of a
        piece and the values that its program takes, is sent the values that the program gives, and returns the module's
        result. programs: as `built` returns them. args, kwargs: the module's arguments, by position and by name. Raises
        `TensorError` for arguments that differ from the example, and for operands that an operator cannot take."""
        environment = self.constants | self.interface.bind(args, kwargs)
        for number, (piece, program) in enumerate(zip(self.pieces, programs, strict=True)):
            if program is None:
                run(piece.nodes, environment, self._used_up)
            else:
                given = yield number, tuple(environment[node] for node in piece.takes)
                environment.update(zip(piece.gives, given, strict=True))
                del given
                for node in self._used_up[piece.gives[-1]]:
                    del environment[node]
        return self.interface.unbind(environment)

    @cached_property
    def _used_up(self) -> dict[Node, list[Node]]:
        steps: list[tuple[Node, Sequence[Node]]] = []
        for piece in self.pieces:
            own = [(piece.gives[-1], (*piece.takes, *piece.gives))] if piece.gives else steps_of(piece.nodes)
            steps += own
        return used_up(steps, (*self.interface.arguments, *self.interface.result.all_input_nodes))

    def run(self, programs: Sequence[Callable[..., Any] | None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the module. programs: the function to call for each piece, from the values of `takes` to those of
        `gives`; None runs it in PyTorch. args, kwargs: the module's arguments. Raises as `calls` and programs do."""
        calls = self.calls(programs, args, kwargs)
        try:
            number, taken = next(calls)
            while True:
                program = programs[number]
                assert program is not None
                number, taken = calls.send(program(*taken))
        except StopIteration as end:
            return end.value


Lower = Callable[[LayerGraph], object]
"""Checks that the scheduler can lower a network. Raises UnsupportedError if the machine cannot run it, ScheduleError if
the schedule does not fit."""


Examples = tuple[Any, ...] | dict[str, Any]
"""Example inputs, by position or by name."""
MAX_LOOKS = 8
"""Largest number of pieces that `runs_in_pieces` tries."""


class LimitError(UnsupportedError):
    """The scheduler cannot lower a network because of a limit of the machine, which the message tells."""


def split(
    model: nn.Module,
    example_inputs: Examples,
    lower: Lower,
    *,
    whole: bool = False,
    passes: Passes = USUAL,
    again: bool = False,
) -> Traced | Split:
    """Trace a module as a whole, or else split it into pieces. All parts for the machine can be lowered.

    example_inputs: by position or by name. lower: checks that the scheduler can lower a network. whole: do not split,
    raise the error instead. passes: of the compiler. again: if the module is traced as a whole, the result can be
    traced again with new weights (as for `trace`). Raises `UnsupportedError`, `TensorError` or `ScheduleError` if no
    piece could run on the machine.
    """
    try:
        return _lowered(trace(model, example_inputs, passes, again=again), lower)
    except (RefusedError, WrongTypeError, LimitError) as refused:
        if whole:
            raise
        return split_again(model, example_inputs, lower, passes, refused)


def split_again(
    model: nn.Module, example_inputs: Examples, lower: Lower, passes: Passes = USUAL, refused: Exception | None = None
) -> Split:
    """Split a module into pieces; into a single one, if it could run as a whole.

    refused: the error that says why it cannot run as a whole, if that is known. The other arguments, and what is
    raised: as for `split`.
    """
    program, interface, environment = _captured(refused, model, example_inputs, passes.experts)
    _check_dropout(program)
    cut = _Cut(program, environment, lower, passes)
    try:
        pieces = tuple(cut.pieces())
    except CutError:
        pieces = ()
    if all(piece.traced is None for piece in pieces):
        why = [text for piece in pieces for text in piece.why] or ["it cannot be cut into pieces"]
        raise refused or UnsupportedError(f"{NOTHING}{why[0]}")
    needed = {x for piece in pieces for node in (*piece.nodes, interface.result) for x in node.all_input_nodes}
    return Split(interface, {node: cut.example[node] for node in needed if cut.values.is_constant(node)}, pieces)


def runs_in_pieces(refused: UnsupportedError, model: nn.Module, example_inputs: Examples, lower: Lower) -> bool:
    """Return whether a module that was refused as a whole (`refused`) would run on the machine at least in part, if
    split. lower: as for `split`. It stops at the first such piece, and looks at no more than `MAX_LOOKS` pieces."""
    if not isinstance(refused, RefusedError | LimitError):
        return False
    try:
        program, _, environment = _captured(refused, model, example_inputs)
        _check_dropout(program)
        return any(piece.traced is not None for piece in islice(_Cut(program, environment, lower).cut(), MAX_LOOKS))
    except (CutError, UnsupportedError, TensorError, ScheduleError):
        return False


def _captured(
    refused: Exception | None, model: nn.Module, example_inputs: Examples, experts: ExpertsPlan | None = None
) -> tuple[ExportedProgram, Interface, Environment]:
    found = refused.captured if isinstance(refused, RefusedError) else None
    return captured(model, example_inputs, experts) if found is None else found


def _lowered(traced: Traced, lower: Lower) -> Traced:
    """Check that a traced module can be lowered, and return it. Raises LimitError."""
    try:
        lower(traced.network)
    except UnsupportedError as error:
        raise LimitError(str(error)) from error
    return traced


def _check_dropout(program: ExportedProgram) -> None:
    """Raises UnsupportedError for dropout in training mode. torch.compile drops the module's mode, so only the
    operators show it."""
    for node in _operators(program):
        given = arguments(node)
        if given.get("dropout_p") or (given.get("train") and (given.get("p") or given.get("dropout"))):
            raise UnsupportedError(f"{site(node)}: dropout in training mode: call model.eval() first")


def _operators(program: ExportedProgram) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "call_function"]


@dataclass(frozen=True)
class _Why:
    """Why a graph is cut before an operator. is_limit: only its size is not supported; then this reason says more than
    a later error of the same operator."""

    texts: tuple[str, ...] = ()
    is_limit: bool = False


class CutError(Exception):
    """The graph cannot be cut at a place, because a value there is no tensor of known shape."""


class _Cut:
    """A graph that is being cut into pieces. environment: values of its inputs, as `captured` returns them."""

    def __init__(
        self, program: ExportedProgram, environment: Environment, lower: Lower, passes: Passes = USUAL
    ) -> None:
        self.values = AbstractState(program)
        self.lower = lower
        self.passes = replace(passes, keeps_caches=False)  # what a piece gives are whole caches
        self._given = environment
        self.program = program
        placeholders = program.graph.find_nodes(op="placeholder")
        self.specs = dict(zip(placeholders, program.graph_signature.input_specs, strict=True))
        self._place = {node: i for i, node in enumerate(program.graph.nodes)}

    @cached_property
    def example(self) -> Environment:
        """The value of every node with the example's arguments."""
        environment = dict(self._given)
        operators = _operators(self.program)
        # The call that the graph is cut for draws its own numbers, as PyTorch would.
        with fork_rng(devices=[], enabled=any(map(draws, operators))):
            run(operators, environment)
        return environment

    def value(self, node: Node) -> Any:
        """The example's value of a node; the graph runs only if the node is no input."""
        return self._given[node] if node in self._given else self.example[node]

    def pieces(self) -> Iterator[Piece]:
        """The pieces in order, with neighbouring pieces for PyTorch merged."""
        for traced, group in groupby(self.cut(), key=lambda piece: piece.traced):
            pieces = list(group)
            if traced is not None:
                yield pieces[0]
            else:
                why = dict.fromkeys(text for piece in pieces for text in piece.why)
                yield replace(pieces[0], nodes=tuple(n for piece in pieces for n in piece.nodes), why=tuple(why))

    def cut(self) -> Iterator[Piece]:
        """The pieces in order, each as soon as it is found. What draws random numbers stays in its place among them, so
        that they are drawn in the order of the graph."""
        for nodes in self._between_draws():
            if draws(nodes[0]):
                yield Piece(nodes, (), (), None, (f"{site(nodes[0])}: {DRAWS}",))
            else:
                yield from self._cut(nodes)

    def _between_draws(self) -> Iterator[tuple[Node, ...]]:
        """The operators in order: groups of those that draw no random numbers, and alone each one that does."""
        group: list[Node] = []
        for node in self._order():
            is_drawn = draws(node.args[0] if _is_part(node) and isinstance(node.args[0], Node) else node)
            if group and (draws(group[0]) != is_drawn or (is_drawn and not _is_part(node))):
                yield tuple(group)
                group = []
            group.append(node)
        if group:
            yield tuple(group)

    def _cut(self, nodes: tuple[Node, ...]) -> Iterator[Piece]:
        """The pieces of some operators, in order."""
        todo: list[tuple[tuple[Node, ...], _Why]] = [(nodes, _Why())]
        while todo:
            nodes, why = todo.pop()
            try:
                yield self._piece(nodes, why.texts)
            except RefusedError as refused:
                first, rest = _divided(nodes, refused.node)
                if first:
                    todo += [(rest, _Why((str(refused),), isinstance(refused.__cause__, LimitError))), (first, why)]
                else:
                    yield Piece(rest[:1], (), (), None, why.texts if why.is_limit else (str(refused),))
                    todo += [(rest[1:], _Why())] if rest[1:] else []
            except NoProductError:
                yield Piece(nodes, (), (), None, why.texts if why.is_limit else ())
            except (UnsupportedError, TensorError, ScheduleError) as error:
                yield Piece(nodes, (), (), None, (str(error).removeprefix(NOTHING),))

    def _piece(self, nodes: tuple[Node, ...], why: tuple[str, ...]) -> Piece:
        """Make a piece for the machine of these nodes. Raises RefusedError with one of these nodes, UnsupportedError,
        TensorError or ScheduleError."""
        part = _Part(self, nodes)
        traced, rewritten = None, None
        if rewrite(part.program, self.passes.rewrites):
            with suppress(UnsupportedError, TensorError):
                try:
                    traced = part.traced()
                except (RefusedError, WrongTypeError) as refused:
                    rewritten = self._refusal(part, refused)
        if traced is None:
            part = _Part(self, nodes)
            try:
                traced = part.traced()
            except (RefusedError, WrongTypeError) as refused:
                plain = self._refusal(part, refused) or RefusedError(nodes[0], str(refused))
                # The rewrites may take the machine further.
                later = rewritten is not None and self._place[rewritten.node] > self._place[plain.node]
                raise (rewritten if rewritten is not None and later else plain) from refused
        try:
            return Piece(nodes, part.takes, part.gives, _lowered(traced, self.lower), why)
        except LimitError as error:
            found = self._at_fault(part, traced)
            if found is None and not isinstance(error.__cause__, RoomError):
                too_long = isinstance(error.__cause__, ListTooLong)
                layer = None if too_long else self._first_beyond(traced.network)
                at = self._middle(part, traced) if layer is None else _origin(part, traced, layer)
                limit = str(error) if layer is None else str(error).removeprefix(f"{layer.place}: ")
                found = None if at is None else (at, limit)
            if found is None:
                raise
            at, limit = found
            raise RefusedError(at, f"{site(at)}: {limit}") from error

    def _refusal(self, part: _Part, refused: RefusedError | WrongTypeError) -> RefusedError | None:
        """The error for a piece, at the operator of the whole graph; None if the refused operator comes from none."""
        at = part.original(refused.node)
        if at is None:
            return None
        # Where an operator left the machine, so that all that depends on it stays together.
        left = part.original(refused.left) if isinstance(refused, RefusedError) and refused.left is not None else None
        return RefusedError(left or at, with_ideas(self.program, at, site(refused.node), str(refused)))

    def _at_fault(self, part: _Part, traced: Traced) -> tuple[Node, str] | None:
        """Find the first layer that cannot be lowered even alone. Returns where to cut (the operator fused last, or the
        first of an attention) and the reason; None if every layer alone can be lowered."""
        for layer in traced.network.layers:
            try:
                self.lower(_alone(traced.network, layer))
            except UnsupportedError as limit:
                at = _origin(part, traced, layer)
                return None if at is None else (at, str(limit).removeprefix(f"{layer.place}: "))
            except ScheduleError:  # the schedule names layers of the other pieces
                continue
        return None

    def _first_beyond(self, network: LayerGraph) -> Layer:
        """The first layer that cannot be beside those before it, of a network of which each layer alone can be lowered,
        but not all of them together."""

        def is_refused(count: int) -> bool:
            first = _first_layers(network, count)
            try:
                if first.layers:
                    self.lower(first)
            except UnsupportedError:
                return True
            except ScheduleError:  # the schedule names layers of the other pieces
                pass
            return False

        count = bisect_left(range(len(network.layers)), True, lo=1, key=is_refused)
        return network.layers[count - 1]

    def _middle(self, part: _Part, traced: Traced) -> Node | None:
        """Where to cut a piece that has too many layers for one program."""
        layers = traced.network.layers
        found = (_origin(part, traced, layer) for layer in layers[len(layers) // 2 :])
        return next((at for at in found if at is not None), None)

    def _order(self) -> Iterator[Node]:
        """The operators that depend on arguments, in order. The parts of a list follow it directly, because only
        tensors can cross a cut."""
        for node in _operators(self.program):
            if not self.values.is_constant(node) and not _is_part(node):
                yield node
                yield from filter(_is_part, node.users)

    def sorted(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Sort nodes into the order of the graph."""
        return tuple(sorted(nodes, key=self._place.__getitem__))


class _Part:
    """Some operators of a graph, with the constants that they need, as a separate graph. copies: by node of the whole
    graph its copy."""

    NAME = "rsn_original"
    """Key in a node's meta: the name of the operator of the whole graph that it was copied or rewritten from."""

    def __init__(self, cut: _Cut, nodes: tuple[Node, ...]) -> None:
        self._cut = cut
        self.takes, self.gives = _takes(cut, nodes), _gives(nodes)
        graph = Graph()
        self.copies: dict[Node, Node] = {}
        inputs: list[InputSpec] = []
        constants = _constants(cut, nodes)
        for node in (*(x for x in constants if x.op == "placeholder"), *self.takes):
            made = self.copies[node] = graph.placeholder(node.name)
            made.meta = dict(node.meta)
            spec = cut.specs.get(node) if node in constants else None
            argument = TensorArgument(made.name)
            inputs.append(replace(spec, arg=argument) if spec else InputSpec(InputKind.USER_INPUT, argument, None))
        for node in (*constants, *nodes):
            if node.op != "placeholder":
                made = self.copies[node] = graph.node_copy(node, self.copies.__getitem__)
                made.meta[self.NAME] = node.name
        self._originals = {node.name: node for node in nodes}
        graph.output(tuple(self.copies[node] for node in self.gives))
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(self.copies[n].name), None) for n in self.gives]
        whole = cut.program
        self.program = ExportedProgram(
            whole.graph_module,
            graph,
            ExportGraphSignature(inputs, outputs),
            whole.state_dict,
            {},
            whole.module_call_graph,
            constants=whole.constants,
        )

    def original(self, node: Node) -> Node | None:
        """The operator of the whole graph that a node was copied or rewritten from; None if it was from none of this
        part."""
        return self._originals.get(node.meta.get(self.NAME, ""))

    def traced(self) -> Traced:
        """Trace this part. Raises like `interpret`."""
        arguments = tuple(self.copies[node] for node in self.takes)
        interface = Interface(
            inspect.signature(lambda *values: values),
            arguments,
            pytree.tree_structure((arguments, {})),
            self.program.graph.output_node(),
            pytree.tree_structure(self.gives),
        )
        environment = lifted(self.program) | {self.copies[node]: self._cut.value(node) for node in self.takes}
        return interpret(self.program, interface, environment, self._cut.passes)


def _origin(part: _Part, traced: Traced, layer: Layer) -> Node | None:
    """The operator of the whole graph that a layer was made from. A product that was inserted to rearrange columns has
    none; its operand has one."""
    made = [traced.origins[y] for y in (layer.y, *layer.operands) if y in traced.origins]
    return part.original(made[0]) if made else None


def _divided(nodes: tuple[Node, ...], at: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Divide operators into those that do not depend on `at`, and `at` with those that do."""
    behind = {at}
    for node in nodes:
        if not behind.isdisjoint(node.all_input_nodes):
            behind.add(node)
    return tuple(node for node in nodes if node not in behind), tuple(node for node in nodes if node in behind)


def _alone(network: LayerGraph, layer: Layer) -> LayerGraph:
    """A network of one layer. An attention gets products around it, because heads cannot be inputs or outputs."""
    if isinstance(layer, Gemm):
        width = layer.width
        inputs = {layer.x: len(layer.weight) or width} | ({} if layer.residual is None else {layer.residual: width})
        seqs = {name: n for name in inputs if (n := network.seq_of(name)) != network.seq}
        return replace(network, inputs=inputs, outputs=(Output(layer.y),), layers=(layer,), seqs=seqs)
    shared = (layer.kv_heads or layer.heads) * layer.head_dim
    columns = {layer.q: layer.width, layer.k: shared, layer.v: shared}
    rows = {name: network.seq_of(name) for name in columns}
    heads = [_zeros(f"in{n}", name, 128, columns[name]) for name, n in rows.items()]
    around: tuple[Layer, ...] = (*heads, layer, _zeros(layer.y, "out", layer.width, 128))
    counts = {f"in{n}": n for n in rows.values()}
    inputs = dict.fromkeys(counts, 128)
    if layer.mask is not None:
        counts[layer.mask] = network.seq_of(layer.mask)
        inputs[layer.mask] = network.inputs[layer.mask]
    seqs = {name: n for name, n in counts.items() if n != network.seq}
    return replace(network, inputs=inputs, outputs=(Output("out"),), layers=around, seqs=seqs)


def _first_layers(network: LayerGraph, count: int) -> LayerGraph:
    """The network of the first `count` layers. Its outputs are what others need of these, but for heads that an
    attention reads, which cannot be outputs."""
    first, named = network.layers[:count], {layer.y: layer for layer in network.layers[:count]}
    heads = {x for layer in network.layers if isinstance(layer, AttentionLayer) for x in (layer.q, layer.k, layer.v)}
    wanted = {x for layer in network.layers[count:] for x in layer.operands} | {out.name for out in network.outputs}
    outputs = [layer.y for layer in first if layer.y in wanted - heads]
    kept = behind(outputs, named)
    return replace(
        network,
        inputs={name: columns for name, columns in network.inputs.items() if name in kept},
        outputs=tuple(next((o for o in network.outputs if o.name == name), Output(name)) for name in outputs),
        layers=tuple(layer for layer in first if layer.y in kept),
        seqs={name: rows for name, rows in network.seqs.items() if name in kept},
        stored_columns={name: x for name, x in network.stored_columns.items() if name in kept},
    )


def _zeros(x: str, y: str, k: int, n: int) -> Gemm:
    return Gemm(y, x, y, np.zeros((k, n), np.float32), np.zeros(n, np.float32))


def _takes(cut: _Cut, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The live-ins of a subgraph: values that its operators read but do not compute. Raises CutError for one that is no
    tensor of known shape."""
    inner = set(nodes)
    found = {x for n in nodes for x in n.all_input_nodes if x not in inner and not cut.values.is_constant(x)}
    for x in found:
        if not isinstance(x.meta.get("val"), torch.Tensor) or not is_static(x):
            raise CutError(f"{site(x)}: its result is not a tensor of known shape")
    return cut.sorted(found)


def _gives(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The live-outs of a subgraph: values that operators outside of it read."""
    inner = set(nodes)
    return tuple(node for node in nodes if any(x not in inner for x in node.users))


def _constants(cut: _Cut, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes behind a subgraph that depend on no argument."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        new = {x for x in stack.pop().all_input_nodes if cut.values.is_constant(x)} - found
        found |= new
        stack += new
    return cut.sorted(found)


def _is_part(node: Node) -> bool:
    """Whether a node selects one result of an operator that has several."""
    return node.target is operator.getitem
