"""A PyTorch block as a graph of streams and as a stream program: one function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.fx import Node

from ...base.errors import TensorError
from ...hw.sim.machine import Run
from ...hw.sim.tasks import run_on_tensors
from ...isa.overlays.tasks.overlay import with_sizes
from ...isa.overlays.tasks.values import DTYPES
from ...isa.program import Program
from ...streams.build import build
from ...streams.check import Report, report_on
from ...streams.dataflow.graph import Dataflow, KernelNode, Timing
from ...streams.fifos.measure import alone
from ...streams.fifos.normal import fast_depths, normal_depths
from ...streams.reader import read_source
from ...streams.sizing.program import SizedProgram
from ...streams.source import Source
from ...streams.tree import Body
from ..capture import Interface, fitting, lifted, module_of
from ..capture import run as run_on_host
from ..layers import identifier
from ..norm_spellings import norms
from ..normal_form.passes import capture
from ..rewrites import aliases, joins, likes, rewrite
from ..rotary import constant_rotations
from .arrays import with_shared_arrays
from .attention import NEVER, flat_matrices
from .carrying import Carrying
from .covering import with_whole_columns, with_whole_tiles
from .knobs import Knobs
from .lengths import BlockOfLength, BlocksByLength, with_any_length
from .operators import Array, FromHost, OperatorGraph, Positions, StreamOperator
from .plans import KernelPlan, dataflow, fabric_of, node_of, planned, units_of
from .ports import ChannelPorts, float_add_of
from .program import HeldByTensor, StreamProgramText, program
from .reading import GraphReader, OperatorBlock
from .repeated import HeldOneBehindOther, of_layer
from .repeated_layers import repeated_block
from .rules import RULES
from .showing import ShownTensor
from .splitting import with_split_products

REWRITES = (aliases, likes, joins, norms, constant_rotations)
"""Rewrites of the captured graph that kernels profit from: norms and rotary positions in one spelling."""


@dataclass(frozen=True, eq=False)
class Streamed:
    """A PyTorch block as a stream program.

    block: its operators. knobs, plans: how each operator is cut into tiles. groups: the number of each kernel's group,
    by the kernel's name; empty for one group. written: the stream program, and what its tensors hold. name: of the
    program. layers: how many layers the program goes through, if the block is one of several equal layers. ports: how
    its loads and stores use the memory channels of a device, None for no device. lengths: the block for sequences of
    other lengths, None if the program is for one length.
    """

    block: OperatorBlock
    knobs: Knobs
    plans: Mapping[StreamOperator, KernelPlan]
    groups: Mapping[str, int]
    written: StreamProgramText
    name: str
    layers: int = 1
    ports: ChannelPorts | None = None
    lengths: BlocksByLength | None = None

    @property
    def text(self) -> str:
        """The text of the stream program, as `rsn check`, `rsn run`, `rsn hls` and the other commands take it."""
        return self.written.printed.text

    def changed(
        self,
        knobs: Knobs | None = None,
        *,
        groups: Mapping[str, int] | None = None,
        depths: Mapping[str, int] | None = None,
        ports: ChannelPorts | None = None,
        layers: int | None = None,
    ) -> Streamed:
        """Return the same block with other knobs, groups of kernels, depths of streams, ports or layers; the module is
        not captured again.

        knobs: None for the present ones. groups: the number of each kernel's group, by name, such as a `Fusion` gives:
        between groups, results go through memory off the chip; None for the present ones. depths: of streams of the
        program in tokens, by name; others get depths that are safe. ports: how the program uses the memory channels of
        a device; None for the present ports, but with other knobs or groups for a memory without channels, because the
        present ports do not fit these. layers: how many of the block's layers the program goes through, from the first
        on; None for the present number. Raises `ProgramError` for names that the block does not have, and for a kernel
        without a group.
        """
        if ports is None and knobs is None and groups is None:
            ports = self.ports
        parted = self.groups if groups is None else groups
        count = self.layers if layers is None else layers
        return _made(self.block, knobs or self.knobs, parted, depths, self.name, count, ports, self.lengths)

    @cached_property
    def dataflow(self) -> Dataflow:
        """The kernels, and the streams between them with the order of the tokens at either end."""
        return dataflow(self.plans)

    @cached_property
    def timed_dataflow(self) -> Dataflow:
        """As `dataflow`, with the times of the tokens of each kernel, in clock cycles. All kernels are timed in one
        group, for one layer."""
        whole = self.changed(groups={}, layers=1) if self.groups or self.layers > 1 else self
        beats = {instance.task.name: instance.beats for instance in whole.report.region.instances}
        nodes = (replace(node, timing=_timing(beats[node.name])) for node in self.dataflow.nodes)
        return replace(self.dataflow, nodes=tuple(nodes))

    @cached_property
    def arrays(self) -> tuple[KernelNode, ...]:
        """The arrays of multipliers that products share, as kernels without times."""
        return tuple(node_of(x, plan) for x, plan in self.plans.items() if x.op == "array")

    @property
    def nodes(self) -> tuple[KernelNode, ...]:
        """All kernels: those of the dataflow, then the arrays that products share."""
        return (*self.dataflow.nodes, *self.arrays)

    @cached_property
    def units(self) -> Mapping[str, int]:
        """How many multiply-adds (of a product) or elements (of another kernel) each kernel computes in a clock cycle,
        by its name. This is what its knobs allow, but no more than its tiles can use."""
        float_add = float_add_of(self.ports)
        most = {x: self.knobs.lanes_of(x.name, x.op) for x in self.plans}
        return {x.name: units_of(x, plan, float_add, most[x]) for x, plan in self.plans.items()}

    def times_of(self, name: str) -> int:
        """Return how many times an execution computes an operator: once for each layer, or once behind them. name: of
        an operator of the block."""
        if self.layers == 1 or self.block.repeated is None:
            return 1
        layer = of_layer(self.block.graph, self.block.repeated.result)
        return self.layers if any(x.name == name for x in layer.operators) else 1

    @property
    def fabric(self) -> Mapping[str, int]:
        """How many of the multiply-adds of each kernel are in LUTs, by the kernel's name; 0 for kernels that are no
        products of integers."""
        units = self.units
        return {x.name: fabric_of(x, p, units[x.name], self.knobs.at(x.name).fabric) for x, p in self.plans.items()}

    def sized(self, executions: int = 1) -> SizedProgram:
        """Return the program, ready to be tried with other depths. executions: how many, back to back, are timed."""
        return SizedProgram(self.report.region, executions)

    def with_normal_depths(self) -> Streamed:
        """Return the same program with the least depths with which no task waits for a free slot, as `normal_depths`
        measures them on the program itself. Raises as it does."""
        return self.changed(depths=normal_depths(self.sized()).depths)

    def with_fast_depths(self, slack: float = 0.0) -> Streamed:
        """Return the same program with depths of fewer bits, with which it ends as early as with normal ones: tasks
        wait for free slots where this costs no time, such as loads of weights (`fast_depths`). slack: it may end later
        by this share of the time, such as 0.05. Raises as `fast_depths` does."""
        return self.changed(depths=fast_depths(self.sized(), slack).levels)

    @cached_property
    def report(self) -> Report:
        """The program, checked: with its region, and with findings if it has mistakes."""
        source = Source(self.text, f"{self.name}.py", tree=self.written.printed.tree)
        return report_on(read_source(source, timed=True, float_add=float_add_of(self.ports)))

    @cached_property
    def machine(self) -> Program:
        """The machine of the program, and its program. Raises `streams.build.Refused` if the check has findings."""
        return build(self.report)

    def tensors(self, *args: Any, **kwargs: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the input tensors of the stream program for arguments of the module, by name, in the shapes of
        `written.shape`: float32, and int32 for positions. Raises `TensorError` for arguments that differ from the
        example in structure, type or shape, for masks that hide all keys of a row, for positions that a cache does not
        have, and if a weight of the module has changed since the capture."""
        at = self.of_length(args, kwargs)
        return self._tensors(at, at.block.environment(at.block.interface.bind(args, kwargs)))

    def sizes(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        """Return the values of the sizes of the machine for arguments of the module, by name; none for a program with
        one length. Raises as `tensors`."""
        return self.of_length(args, kwargs).sizes

    def of_length(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> BlockOfLength:
        """Return the block for the length of the sequence that arguments of the module have; for a program with one
        length, the block itself. Raises as `BlocksByLength.of`."""
        return self.lengths.of(args, kwargs) if self.lengths else BlockOfLength(self.block)

    def _tensors(self, at: BlockOfLength, values: Mapping[Node, Any]) -> dict[str, npt.NDArray[Any]]:
        return {name: self.tensor(name, at, values) for name in self.written.inputs}

    def tensor(self, name: str, at: BlockOfLength, values: Mapping[Node, Any]) -> npt.NDArray[Any]:
        """Return one input tensor of the stream program, as `tensors` returns all. name: of the tensor. at: the block
        for the arguments of the run (`of_length`). values: of the nodes that the host computes, as
        `OperatorBlock.environment` returns them. Raises `TensorError` for a mask that hides all keys of a row."""
        return self._tensor(name, self.written.inputs[name], at, values)

    def _tensor(self, name: str, data: HeldByTensor, at: BlockOfLength, values: Mapping[Node, Any]) -> npt.NDArray[Any]:
        if isinstance(data, HeldOneBehindOther):
            parts: list[Array] = [*data.parts]  # type: ignore[list-item]
            return self.written.laid_out(name, np.concatenate(parts, axis=-2))
        if isinstance(data, tuple):
            return np.stack([self._tensor(name, of_layer, at, values) for of_layer in data])
        data, length = at.held.get(id(data), data), at.length or None
        if data is None:
            return np.zeros(self.written.shape(name, length), DTYPES[self.written.dtypes[name]])
        if isinstance(data, Positions):
            positions: npt.NDArray[Any] = values[data.node].to(torch.int32).numpy().reshape(-1)
            (count,) = self.written.shape_of_one(name)
            return np.pad(positions, (0, count - positions.size), mode="edge")
        if not isinstance(data, FromHost):
            return self.written.laid_out(name, data, length)
        made = flat_matrices(values[data.node], data.view)
        keys = data.view.shape[-1]
        if data.masks and (made.reshape(-1, keys) <= NEVER).all(axis=-1).any():
            raise TensorError(f"{name} hides all keys of a row; let each row see at least one key, such as its own")
        return self.written.laid_out(name, made, length)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stream program on the engine with arguments of the module, by position or by name. Returns what the
        module returns: float32 tensors of the same structure. Raises as `tensors` and `machine` do."""
        return self.timed_run(*args, **kwargs)[0]

    def carrying(self, carried: Mapping[str, int], **state: Any) -> Carrying:
        """Return an object that runs steps whose state goes from step to step: some results of a step are arguments of
        the next one, such as caches of keys and values.

        carried: for each such argument, by name, its position in the result of the step before, from 0 on. state: the
        values of these arguments for the first step, by name. Raises `ProgramError` for arguments and results that do
        not exist or do not have the same shapes, `TensorError` for a `state` with other names than `carried`.
        """
        return Carrying(self, carried, state)

    def timed_run(self, *args: Any, **kwargs: Any) -> tuple[Any, Run]:
        """As `run`, with the run itself: its modelled time in seconds, and what took it. Raises as `run` does."""
        at = self.of_length(args, kwargs)
        values = at.block.environment(at.block.interface.bind(args, kwargs))
        outputs, run = run_on_tensors(with_sizes(self.machine, at.sizes), self._tensors(at, values))
        for node in at.block.results:
            values[node] = self.result(node, at, outputs)
        if at.block.repeated:
            run_on_host(at.block.repeated.behind, values)
        return at.block.interface.unbind(values), run

    def result(self, node: Node, at: BlockOfLength, outputs: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
        """Return the value of a result of the module after a run, in its shape. node: the result's node in the captured
        graph, a key of `OperatorBlock.results`. at: the block for the arguments of the run (`of_length`); the node
        belongs to its graph. outputs: the output tensors of the run, by name."""
        shown, repeated = at.block.results[node], at.block.repeated
        tensor = self.written.outputs[shown.operator.name]
        found = outputs[tensor]
        if repeated and tensor in self.written.layered:
            found = found[repeated.results[node]]
        return _tensor_of(self.written.elements(tensor, found, at.length or None), shown)


def _timing(beats: Body) -> Timing:
    """The times of a kernel's result. New rows of a cache go to a store of their own, before it."""
    ends = max((puts.end for puts in alone(beats).puts.values()), key=lambda ends: int(ends[-1]))
    first, tokens = int(ends[0]), len(ends)
    return Timing(first, -(-int(ends[-1] - first) // (tokens - 1)) if tokens > 1 else first, tokens)


def _tensor_of(elements: Array, shown: ShownTensor) -> torch.Tensor:
    """What a node of PyTorch shows of an operator's result. elements: of the result, row-major."""
    view = shown.view
    flat = torch.from_numpy(elements)
    strided = flat.as_strided([size for size, _ in view.atoms], [stride for _, stride in view.atoms], view.offset)
    return strided.reshape(view.shape).clone()


def streamed(
    module: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    knobs: Knobs | None = None,
    *,
    name: str | None = None,
    any_length: bool = False,
    repeated: bool = False,
    head: bool = False,
) -> Streamed:
    """Make a stream program of a PyTorch module.

    example_inputs: positional (tuple) or keyword (dict) arguments of the module's forward; the program is for their
    shapes, and with the weights that the module has now: once they change, it refuses to run. knobs: tiles and widths
    of its kernels. name: of the program, by default the class of the module. any_length: the rows of the sequence are a
    size that each run gives, from 1 to those of the example (`lengths`). repeated: the module has layers that are the
    same but for their constants, in a ModuleList: kernels compute these, one after the other, and PyTorch what is
    before and behind them. head: with repeated layers, kernels compute what is behind them too, such as a norm and the
    product with a vocabulary. The module must be in eval mode, with float32 weights on the CPU.

    Raises `UnsupportedError` for an operator that no kernel computes, naming it and its module, for any length of
    several sequences or without a cache of fixed capacity, and for layers that differ;
    `TensorError` for inputs that do not fit, and `ProgramError` for knobs of operators that the block does not have.
    """
    model = module_of(module)
    args, kwargs, signature = fitting(model.forward, f"{type(model).__name__}.forward", example_inputs)

    def captured(args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorBlock:
        return _captured(model, args, kwargs, signature, repeated, head)

    block = captured(args, kwargs)
    lengths = BlocksByLength(block, captured) if any_length else None
    name = identifier(name or type(model).__name__.lower(), "block")
    layers = block.repeated.count if block.repeated else 1
    return _made(block, knobs or Knobs(), {}, None, name, layers, None, lengths)


def _captured(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    signature: inspect.Signature,
    repeated: bool,
    head: bool,
) -> OperatorBlock:
    captured = capture(model, args, kwargs)
    interface = Interface.of(captured, signature)
    values = lifted(captured) | interface.bind(args, kwargs)
    rewrite(captured, REWRITES)
    if repeated:
        return repeated_block(model, captured, interface, values, RULES, head)
    return GraphReader(captured, interface, RULES).block(values)


def _made(
    block: OperatorBlock,
    knobs: Knobs,
    groups: Mapping[str, int],
    depths: Mapping[str, int] | None,
    name: str,
    layers: int = 1,
    ports: ChannelPorts | None = None,
    lengths: BlocksByLength | None = None,
) -> Streamed:
    carried = block.repeated.result if block.repeated else ""

    def changed(graph: OperatorGraph) -> OperatorGraph:
        covered = with_whole_tiles(graph, knobs.rows, knobs.columns)
        if graph is block.graph:  # of the other layers, the next ones read all results but caches
            covered = with_whole_columns(covered, knobs, carried)
        made = with_split_products(covered, knobs)
        # Nothing is behind the others, whose results have other names.
        behind = carried if graph is block.graph else ""
        return with_shared_arrays(with_any_length(made, knobs.rows) if lengths else made, knobs, behind)

    graph, repeated = changed(block.graph), None
    if block.repeated and layers > 1:
        repeated = block.repeated.layers(layers, [graph, *map(changed, block.repeated.others[: layers - 1])])
    plans = planned(graph, knobs, {repeated.carried: repeated.result} if repeated else None)
    many = f", {layers} layers" * (layers > 1)
    title = f"{name}: {len(plans)} kernels{many}, tiles of {knobs.rows} x {knobs.columns}."
    written = program(graph, plans, knobs, title, groups=groups, depths=depths, ports=ports, repeated=repeated)
    return Streamed(block, knobs, plans, groups, written, name, layers, ports, lengths)
