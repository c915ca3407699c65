"""From a PyTorch module to the machine's network, by abstract interpretation of the graph that torch.export captures.

Each value of the graph is one of four things: a tensor that the host computes before the machine starts (`Value` over a
`HostInput`), an activation of the machine behind some reshaping (`Value`), an unfinished attention
(`PartialAttention`), or a tensor that the host computes after the machine (`HostSuffix`). Operators without a lowering
rule stay in PyTorch. Matrix products over the machine's rows, and attention, never stay there silently: an error names
the operator that prevents them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node

from ..base.errors import TensorError, UnsupportedError
from ..scheduler.graph import AttentionLayer, Gemm, LayerGraph
from .capture import (
    Environment,
    Interface,
    arguments,
    cloned,
    computed,
    draws,
    dtype_of,
    fitting,
    is_empty,
    is_static,
    lifted,
    module_of,
    module_path,
    op_name,
    packet,
    shape_of,
    short_name,
    site,
)
from .experts.choice import EXECUTOR
from .experts.library import in_groups
from .experts.replace import ExpertsPlan, replace_experts
from .fixed_arguments import arguments_of_tables, fix
from .host_part import HostPart, RotaryTable
from .ideas import ROTARY, ideas, with_ideas
from .layers import Base, HostInput, LayerBuilder
from .mask import PLAIN, Pattern, attended_keys, pattern_of
from .normal_form.passes import capture
from .partition import OperatorPlacement, Traced
from .passes import USUAL, Passes
from .pointwise import PointwiseFunction
from .quantised_ops import INTEGER_PRODUCTS
from .rewriter import Premise
from .rewrites import BETWEEN, rewrite
from .rotate import ROLL_IN
from .rules import PRODUCTS, VIEWS
from .values import Abstract, AbstractState, HostSuffix, PartialAttention, RefusedError, Value, is_host, unsupported

SOFTMAX = torch.ops.aten.softmax
DRAWS = "it draws random numbers, which a compiled model does not"
NOTHING = "nothing in this module runs on the machine: "


class NoProductError(UnsupportedError):
    """A module has no matrix product and no attention for the machine."""


def trace(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    passes: Passes = USUAL,
    *,
    again: bool = False,
    fixes: bool = False,
) -> Traced:
    """Split a module into a host part, a machine part, and a host part; all shapes are those of the example.

    example_inputs: positional (tuple) or keyword (dict) arguments of the module's forward. The module must be in eval
    mode; its weights are copied. passes: of the compiler. again: set Traced.again, which traces the same graph with the
    weights' new values; it keeps the graph alive. fixes: arguments that rotary positions are computed from become
    constants of the program, if the machine can run it then. Raises `UnsupportedError` for a module that the machine
    cannot run, naming operator and module path (`NoProductError` if it has no product for it), and `TensorError` for
    weights or activations that are not float32.
    """
    try:
        return _trace(model, example_inputs, passes, again)
    except RefusedError as refused:
        names = refused.tables
        if not names:
            raise
        if fixes:
            try:
                return _trace(model, example_inputs, passes, again, names)
            except RefusedError as beyond:
                if not beyond.tables:
                    raise  # the positions were not the reason
        plural = "s" * (len(names) > 1)
        remedy = "leave it out, then they count the rows of the sequence; attention_mask alone tells padding"
        final = RefusedError(
            refused.node,
            f"{refused}; its rotary positions depend on the argument{plural} {', '.join(names)}, which must be the "
            f"same in every call and for every sequence: {remedy}",
            refused.left,
        )
        final.captured = refused.captured
        raise final from refused.__cause__


def _trace(
    model: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    passes: Passes,
    again: bool,
    fixed: Sequence[str] = (),
) -> Traced:
    """Trace a module, like `trace`. fixed: names of arguments whose values become constants."""
    program, interface, environment = found = _fixed(captured(model, example_inputs, passes.experts), fixed)
    if not fixed:
        passes.observe("capture", program)
    drawn = next(filter(draws, program.graph.nodes), None)
    if drawn is not None:
        unrepeatable = RefusedError(drawn, f"{site(drawn)}: {DRAWS}")
        unrepeatable.captured = found
        raise unrepeatable
    rewritten: RefusedError | None = None
    """The error of the rewritten graph."""
    tells = False
    """Whether the rewritten graph recognises an unsupported construct at its error."""
    weighted: RefusedError | None = None
    """The error of the rewritten graph, if it refuses what is behind the softmax of an attention."""
    premise = rewrite(program, passes.rewrites)
    if premise is not None:
        passes.observe("rewrite", program)
        try:
            return interpret(program, interface, environment, passes, premise, again=again)
        except (UnsupportedError, TensorError) as error:
            if isinstance(error, RefusedError):
                rewritten, tells = _with_ideas(error, program), bool(ideas(program, error.node))
            if isinstance(error, RefusedError) and any(packet(x) is SOFTMAX for x in error.node.all_input_nodes):
                weighted = error
        # The rewrites made something else impossible: try the graph as it was captured.
        program, interface, environment = found = _fixed(captured(model, example_inputs, passes.experts), fixed)
    passes.observe("rewrite", program)
    try:
        return interpret(program, interface, environment, passes, again=again)
    except RefusedError as refused:
        # Name the user's operators, unless the rewrites take the machine further, or only the rewritten graph shows the
        # construct: a rewrite may support the operator that is refused here.
        final = rewritten
        only_there = tells and not ideas(program, refused.node)
        if final is None or not (only_there or _is_later(final, refused, program)):
            is_mask = packet(refused.node) in BETWEEN  # which the rewritten graph has
            if is_mask and weighted is not None and module_path(weighted.node) == module_path(refused.node):
                refused = RefusedError(refused.node, str(weighted), refused.left)
            final = _with_ideas(refused, program)
        final.captured = found
        raise final from refused.__cause__


def _with_ideas(refused: RefusedError, program: ExportedProgram) -> RefusedError:
    """The same error with the constructs that the operator is part of (`ideas`) in its message."""
    words = with_ideas(program, refused.node, site(refused.node), str(refused))
    error = RefusedError(refused.node, words, refused.left)
    error.tables = refused.tables if ROTARY in ideas(program, refused.node) else ()
    error.__cause__ = refused.__cause__
    return error


def _is_later(one: RefusedError, other: RefusedError, program: ExportedProgram) -> bool:
    """Whether an error is at a module that begins behind that of another error, in the order of a captured graph."""
    paths = [module_path(node) for node in program.graph.nodes if node.op == "call_function"]
    places = [paths.index(path) if path in paths else -1 for path in (module_path(x.node) for x in (one, other))]
    return places[0] > places[1] >= 0


def _fixed(
    found: tuple[ExportedProgram, Interface, Environment], names: Sequence[str]
) -> tuple[ExportedProgram, Interface, Environment]:
    program, interface, environment = found
    return (program, *fix(program, interface, environment, names)) if names else found


def captured(
    model: nn.Module, example_inputs: tuple[Any, ...] | dict[str, Any], experts: ExpertsPlan | None = None
) -> tuple[ExportedProgram, Interface, Environment]:
    """Capture a module. example_inputs: as for `trace`. Returns its graph, its interface, and the values of all nodes
    that are no operators: weights and constants, and the example's arguments. experts: what takes the place of experts
    that data choose. Raises like `module_of`, `fitting`, `capture` and `replace_experts`."""
    model = module_of(model)
    args, kwargs, signature = fitting(model.forward, f"{type(model).__name__}.forward", example_inputs)
    if experts is None:
        program = capture(model, args, kwargs)
    else:
        with in_groups(model):
            program = capture(model, args, kwargs)
        replace_experts(program, experts)
    interface = Interface.of(program, signature)
    return program, interface, lifted(program) | interface.bind(args, kwargs)


def interpret(
    program: ExportedProgram,
    interface: Interface,
    environment: Environment,
    passes: Passes = USUAL,
    premise: Premise | None = None,
    *,
    again: bool = False,
) -> Traced:
    """Trace a captured graph, like `trace`. environment: values of all nodes that are no operators, as `captured`
    returns them. premise: values that the graph was rewritten for; raises `UnsupportedError` if they have changed.
    again: as for `trace`. Raises like `trace` otherwise."""
    if premise is not None and not premise.holds():
        raise UnsupportedError("values that the graph was rewritten for have changed; capture the model again")
    given, environment = environment, dict(environment)
    tracer = _Tracer(program, interface, passes, environment)
    patterns = tracer.patterns_of_masks(environment)
    if any(pattern != PLAIN for pattern in patterns.values()):
        tracer = _Tracer(program, interface, passes, environment, patterns)
    traced = tracer.partition()
    tracer.check_masks(traced, environment)
    if not again:
        return traced
    return replace(traced, again=partial(interpret, program, interface, given, passes, premise, again=True))


def _role(value: Abstract, layers: LayerBuilder) -> str:
    """What an operator of the machine became, for the table of `explain`."""
    layer = value.base if isinstance(value, Value) else None
    if isinstance(layer, Gemm) and layer.multiplies:
        k, n = layer.weight.shape
        if layer.into is not None:
            return "a row appended to a cache"
        whole = layers.before(layer) is None
        return f"matrix product {k} x {n}" if whole else f"fused into {layer.path or 'the product'}"
    if isinstance(layer, Gemm):
        x = layers.of(layer.x)
        return f"a pass over {x.path if isinstance(x, Gemm) and x.multiplies else 'what is before it'}"
    if isinstance(layer, AttentionLayer):
        words = [f"attention, {layer.heads} heads of {layer.head_dim}", "masked" * layer.masked]
        words += ["causal" * layer.causal, "" if layer.bias is None else "its scores with a bias"]
        return ", ".join(filter(None, words))
    if isinstance(value, PointwiseFunction):
        return "part of an activation" if value.square is None else "a square, or part of an activation"
    return "part of an attention"


def _emptiness(node: Node) -> str:
    """A message on which of an operator's tensors has no elements."""
    names = {x: name for name, x in arguments(node).items() if isinstance(x, Node)}
    x = next((x for x in node.all_input_nodes if is_empty(x)), node)
    return f"its {'result' if x is node else names.get(x, 'operand')} is empty, {shape_of(x)}"


class _Tracer:
    """One pass over a captured graph, which decides for each operator where it runs."""

    def __init__(
        self,
        program: ExportedProgram,
        interface: Interface,
        passes: Passes,
        example: Environment,
        patterns: Mapping[Node, Pattern | None] = MappingProxyType({}),
    ) -> None:
        """example, patterns: as for `AbstractState`."""
        self.program, self.interface = program, interface
        self.passes = passes
        self.values = AbstractState(
            program,
            patterns,
            norms_of_inputs=passes.norms_of_inputs,
            keeps_caches=passes.keeps_caches,
            example=example,
        )
        self.before: list[Node] = []
        self.after: list[Node] = []
        self.results: dict[Node, Value] = {}
        self.placements: dict[Node, OperatorPlacement] = {}
        self.refused: list[tuple[Node, str]] = []
        self.empty: list[str] = []
        for node in program.graph.nodes:
            if node.op == "call_function":
                self.values.of[node] = self._visit(node)
            elif node.op in ("placeholder", "get_attr"):
                self.values.of[node] = self.values.root(node)
            made = self.values.of.get(node)
            if isinstance(made, Value) and is_host(made):
                self.values.shown.setdefault(made, node)
        self._leave(program.graph.output_node())

    def _visit(self, node: Node) -> Abstract:
        inputs = [self.values.of[x] for x in node.all_input_nodes]
        rule = self.passes.rules.get(packet(node))
        result: Abstract | str = f"{op_name(node)} is not an operation of the machine"
        if not all(map(is_static, (node, *node.all_input_nodes))):
            result = "its shape depends on data"
        elif any(map(is_empty, (node, *node.all_input_nodes))):
            result = _emptiness(node)
        elif rule is not None and (
            packet(node) in INTEGER_PRODUCTS or not any(isinstance(x, HostSuffix) for x in inputs)
        ):
            made: object = rule(self.values, node, arguments(node))
            if not isinstance(
                made, str | Value | PartialAttention | PointwiseFunction | HostSuffix
            ):  # a wrong rule of the user
                raise TypeError(f"the rule for {op_name(node)} returned {type(made).__name__}, not a value or a reason")
            if isinstance(made, Value | PointwiseFunction) and made.base not in self.values.layers:
                raise TypeError(f"the rule for {op_name(node)} returned a layer that values.layers did not make")
            result = made
            if isinstance(result, Value) and result.view.shape != shape_of(node):
                result = f"its operands must have the shape of its result, {shape_of(node)}"
            elif isinstance(result, Value) and not is_host(result) and dtype_of(node) != torch.float32:
                result = f"its result is {dtype_of(node)}"
        if isinstance(result, str):
            return self._stay(node, inputs, result)
        if is_host(result):
            self.before.append(node)
        elif packet(node) not in VIEWS:
            self._place(node, "machine", _role(result, self.values.layers))
        return result

    def _stay(self, node: Node, inputs: Sequence[Abstract], why: str) -> Abstract:
        """Leave an operator to PyTorch. Raises RefusedError if a product or attention behind the machine would then run
        on the host too."""
        for x in inputs:
            if isinstance(x, PointwiseFunction):
                self._spill(x)
        inputs = [self.values.of[x] for x in node.all_input_nodes]
        # A subgraph (a loop, a condition) may contain products.
        is_product = packet(node) in PRODUCTS or isinstance(node.target, torch._ops.HigherOrderOperator)
        if is_product and any(map(is_empty, (node, *node.all_input_nodes))):
            is_product = False  # an empty product computes nothing
            self.empty.append(f"{site(node)}: {why}")
        is_told = is_product or packet(node) in INTEGER_PRODUCTS
        if all(map(is_host, inputs)):
            self.before.append(node)
            self._place(node, "host", f"before the machine: {why}" if is_told else "before the machine")
            self.refused += [(node, why)] if is_told else []
            return self.values.root(node)
        if any(isinstance(x, PartialAttention) for x in inputs):
            raise unsupported(node, f"{why}; it is between the two products of an attention")
        left = next((x for x in inputs if isinstance(x, HostSuffix)), HostSuffix(node, why))
        *rows, _ = shape_of(node) or (self.values.rows, 1)
        if is_product and (not is_static(node) or prod(rows) > self.values.batch):
            if left.node is node:
                raise unsupported(node, why)
            reason = f"it depends on {site(left.node)}, which cannot run on the machine: {left.why}"
            error = RefusedError(node, f"{site(node)}: {reason}", left.node)
            error.tables = arguments_of_tables(self.values, node)
            raise error
        self._leave(node)
        self.after.append(node)
        is_told = packet(node) in INTEGER_PRODUCTS or left.node is node
        self._place(node, "host", f"after the machine: {why}" if is_told else "after the machine")
        return left

    def _leave(self, node: Node) -> None:
        """Make the operands of a host operator that the machine computes results of the machine."""
        for x in node.all_input_nodes:
            value = self.values.of[x]
            if isinstance(value, PointwiseFunction):
                self._spill(value)
            if isinstance(value, PartialAttention):
                raise unsupported(x, "the host needs its result, but it exists only inside the machine")
            if isinstance(value, Value) and not is_host(value):
                if isinstance(value.base, Gemm) and value.base.into is not None:
                    self._append(x)
                else:
                    self.results[x] = value

    def _append(self, node: Node) -> None:
        """Let the host append rows to its cache as well. node: the cache with the new rows."""
        if node not in self.values.appended:
            raise unsupported(node, "the host needs rows of a cache that exist only inside the machine")
        if node not in self.after:
            new = arguments(node)["new" if packet(node) is ROLL_IN else "source"]
            self.results[new] = self.values.appended[node].new
            self.after.append(node)

    def _kept_in_place(self, node: Node) -> bool:
        """Whether an operator of the host makes what is nothing but the new value of a cache, which then needs no copy
        (`Interface.unbind`)."""
        written = packet(node) is torch.ops.aten.index_copy and (arguments(node)["self"], node) in self.interface.writes
        return written and not any(node in x.all_input_nodes for x in self.after)

    def _spill(self, value: PointwiseFunction) -> None:
        """Leave elementwise operators to PyTorch that did not become an activation of the machine."""
        for node in value.nodes:
            if not isinstance(self.values.of[node], HostSuffix):
                self._leave(node)
                self.after.append(node)
                self.values.of[node] = HostSuffix(node, f"{op_name(node)} is not part of an activation of the machine")
                self._place(node, "host", "after the machine: not an activation of the machine")

    def _place(self, node: Node, where: str, why: str) -> None:
        if EXECUTOR in node.meta:
            where, why = (
                "machine",
                "the experts that rows select: programs of each call, not timed here",
            )
        self.placements[node] = OperatorPlacement(module_path(node), short_name(node), where, why, node)

    def partition(self) -> Traced:
        """The network and the host part; of the operators before the machine only those that are needed. Raises
        NoProductError, UnsupportedError or RefusedError."""
        interface = self.interface
        outputs = list(dict.fromkeys(x.base for x in self.results.values() if not isinstance(x.base, HostInput)))
        if not outputs:
            if not self.refused:
                raise NoProductError(f"{NOTHING}{(*self.empty, 'it has no matrix product and no attention')[0]}")
            node, why = self.refused[0]
            raise UnsupportedError(f"{NOTHING}{with_ideas(self.program, node, site(node), f'{site(node)}: {why}')}")
        matched, names = self.values.layers.graph(outputs, self.values.batch, self.values.seq)
        self.passes.observe("match", matched)
        network = self.passes.fold(matched)
        self.passes.observe("fold", network)
        stored = {a.name: b.name for a, b in zip(matched.outputs, network.outputs, strict=True)}
        used = ((self.values.layers.of(y), name) for y, name in names.items())
        given = [(x, name) for x, name in used if isinstance(x, HostInput)]
        tables = {name: self.values.tables[x] for x, name in given if x in self.values.tables}
        rotations, folded = matched.rotated_by, network.rotated_by
        sources = {name: (self.values.source_nodes[x], x.view) for x, name in given if name not in tables}
        states = {name: sources.pop(name) for name in network.states}
        kinds, rings, prompts = self._appends(network, names)
        masks = tuple(dict.fromkeys(mask for layer, mask in self.values.masks.items() if layer.y in names))
        needed = {*masks, *(node for node, _ in sources.values()), *interface.result.all_input_nodes}
        needed.update(x for node in self.after for x in node.all_input_nodes)
        needed.update(x for _, value in interface.writes for x in value.all_input_nodes)
        needed.update(kinds, (index for index, _ in prompts))
        needed.update(x for table in tables.values() for x in (table.own, table.partner))
        for node in reversed(self.before):
            if node in needed:
                needed.update(node.all_input_nodes)
        dropped = {node for node in self.before if node not in needed}
        host = HostPart(
            network.batch,
            network.seq,
            network.lengths,
            columns={out.name: network.columns(out.name) for out in network.outputs},
            interface=interface,
            constants={
                node: cloned(value) if isinstance(value, torch.Tensor) else value
                for node, value in lifted(self.program).items()
                if node in needed and node not in interface.fixed
            },
            before=tuple(node for node in self.before if node not in dropped),
            after=tuple(node for node in self.after if not self._kept_in_place(node)),
            sources=sources,
            results={node: (stored[names[value.base.y]], value.view) for node, value in self.results.items()},
            masks=masks,
            patterns={x: pattern for x in masks if (pattern := self.values.patterns.get(x)) not in (None, PLAIN)},
            seqs={
                name: rows
                for name in (*network.inputs, *(out.name for out in network.outputs))
                if (rows := network.seq_of(name)) != network.seq
            },
            counted=network.counted_seq if masks else 0,
            states=states,
            tables={
                str(x.source): RotaryTable(
                    tables[str(rotations[y].source)], x, network.inputs[str(x.source)] // 2, self.passes.pairs_factors
                )
                for y, x in folded.items()
            },
            stored_columns=network.stored_columns,
            rows_taken=kinds,
            rings=rings,
            counts={
                mask: layer.counted for layer, mask in self.values.masks.items() if layer.y in names and layer.counted
            },
            prompts=prompts,
            added=frozenset(x.mask for x in network.layers if isinstance(x, AttentionLayer) and x.mask is not None),
        )
        placements = tuple(p for node, p in self.placements.items() if node not in dropped)
        return Traced(network, host, placements, self._origins(names))

    def _appends(
        self, network: LayerGraph, names: Mapping[str, str]
    ) -> tuple[dict[Node, int], dict[str, int], tuple[tuple[Node, int], ...]]:
        """The rows that caches take: of steps, with the kind of the caches; caches whose rows move up, with their kind;
        rows of prompts, with their number, unless they are constant. names: of results, by provisional name. Raises
        UnsupportedError for caches of both kinds with the same number of rows."""
        kinds: dict[Node, int] = {}
        rings: dict[str, int] = {}
        prompts: dict[tuple[Node, int], None] = {}
        first = next(iter(network.state_rows), 0)
        for layer, append in self.values.appends.items():
            index = append.index
            if append.is_step and str(layer.into) in names:
                name = names[str(layer.into)]
                rows = network.seq_of(name)
                kind = 0 if rows == first else rows
                if index is None:
                    rings[name] = kind
                else:
                    kinds[index] = kind
            elif index is not None and not append.is_step and not self.values.is_constant(index):
                prompts[index, shape_of(index)[0]] = None
        if set(rings.values()) & set(kinds.values()):
            raise UnsupportedError("caches whose rows move up beside others with as many rows")
        return kinds, rings, tuple(prompts)

    def _origins(self, names: Mapping[str, str]) -> dict[str, Node]:
        """The operator that completes each matched layer, for an attention its first operator, by the name of the
        layer's result. names: of the layers' results, by provisional name."""
        completed: dict[Base, Node] = {}
        for node, value in self.values.of.items():
            if isinstance(value, Value) and not is_host(value):
                completed.setdefault(value.base, node)
        origins: dict[str, Node] = {}
        for y, name in names.items():
            layer = self.values.layers.of(y)
            found = completed.get(layer)
            if found is None and isinstance(layer, Gemm):  # a slice of a product's columns, or a scaled product
                whole = (x for x in completed if isinstance(x, Gemm) and (x.path, x.x) == (layer.path, layer.x))
                found = next((completed[x] for x in whole), None)
            if found is not None:
                origins[name] = self._first_of(found) if isinstance(layer, AttentionLayer) else found
        return origins

    def _first_of(self, node: Node) -> Node:
        """The first operator of the attention whose last operator is `node`."""
        while True:
            part = next((x for x in node.all_input_nodes if isinstance(self.values.of.get(x), PartialAttention)), None)
            if part is None:
                return node
            node = part

    def patterns_of_masks(self, environment: Environment) -> dict[Node, Pattern | None]:
        """For each mask of an attention, which keys a row sees with the example's values, which are in `environment`;
        None for a mask that the machine cannot apply by itself."""
        found: dict[Node, Pattern | None] = {}
        stepping = {
            mask for layer, mask in self.values.masks.items() if self.values.layers.of(layer.k) in self.values.appends
        }
        for mask, keys in {mask: self._keys_of(layer) for layer, mask in self.values.masks.items()}.items():
            found[mask] = None
            with suppress(TensorError):
                found[mask] = pattern_of(computed(mask, environment), self.values.batch, keys)
                if mask in stepping and found[mask] in (PLAIN, Pattern(left=True)):
                    found[mask] = Pattern(left=True)  # whatever the first step's rows are
        return found

    def check_masks(self, traced: Traced, environment: Environment) -> None:
        """Raises RefusedError if a mask of the example is not of a kind that the machine supports."""
        for layer, mask in self.values.masks.items():
            try:
                if mask in traced.host.masks:
                    keys, pattern = self._keys_of(layer), self.values.patterns.get(mask) or PLAIN
                    attended_keys(computed(mask, environment), self.values.batch, keys, pattern)
            except TensorError as error:
                message = f"attention at {layer.place}: {error}"
                raise RefusedError(self._node_of(layer), message) from error

    def _keys_of(self, layer: AttentionLayer) -> int:
        """Keys of each sequence of an attention."""
        return self.values.seq_of(self.values.layers.of(layer.k))

    def _node_of(self, layer: Base) -> Node:
        return next(node for node, x in self.values.of.items() if isinstance(x, Value) and x.base is layer)
