"""A machine for a PyTorch block, on a stated device: unrolled, fused, sized and placed, with its modelled time.

This is what the RSN paper, section 4.2, does by hand: a datapath that follows from a network's segments. The steps, in
order: tiles (`Knobs`), unrolling, groups of kernels within the memory on chip, depths of streams, memories, dies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, get_args

from torch import nn

from ...base.element_types import BITS, CPP_BITS
from ...base.errors import BudgetError, ProgramError, ResourceError
from ...isa.overlays.tasks.overlay import checked_sizes, program_of
from ...isa.program import Program
from ...streams.build import build
from ...streams.dataflow.best_fusion import fuse
from ...streams.dataflow.fusion import Fusion
from ...streams.dataflow.memory import fusion_space
from ...streams.fifos.normal import fast_depths
from ...streams.orders.order import Order
from ...streams.orders.text import token_shape
from ...streams.placing.devices import BRAM_BYTES, URAM_BYTES, MemoryChannel, StreamDevice
from ...streams.placing.dies import DieError, DiePlacement, Wire, place_on_dies
from ...streams.placing.memories import Allocation, Memories, MemoryFitError, allocate
from ...streams.placing.unrolling import unroll
from ...streams.reader import read_again
from ...streams.sizing.depths import safe_depths
from ...streams.sizing.program import SizedProgram
from ...streams.timing.timed import TimedProgram
from ...streams.tree import StreamDecl, bytes_of
from ...streams.words import MOVED, STREAM_BITS, stream_word
from .balance import balanced
from .block import Streamed, streamed
from .knobs import PRODUCTS, Knobs
from .lengths import LENGTH
from .operators import StreamOperator
from .plans import KernelPlan, multiply_adds, types_of, units_of
from .ports import ChannelPorts, port_shares, widest_ports
from .resources import area, multiply_add_dsps

FILL = 0.75
"""Share of a device that kernels may use: the shell of the card and routing take the rest."""

DEFAULT = Knobs(
    rows=32, columns=64, depth=64, unroll=1 << 14, lanes=MOVED, port=STREAM_BITS // 8, together=MOVED, packed=1
)
"""Knobs of a machine for which none are given: its tiles; `unroll`, `lanes`, `port` and `together` are limits."""

Rule = Literal["balanced", "printed"]
"""How kernels share a device: by the time that they save (`balance`), or as StreamTensor prints it (`unrolling`)."""

PREFETCH = 0.6
"""Share of the free bytes on the chip that loads may keep ahead of their kernels: streams take others, and memories are
whole blocks on one die."""

STEPS = ("capture", "fuse, balance, size and place", "machine", "time")
"""The steps, by the names that `done` gets."""

SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1, 0.05, 0.02)
"""Of the multipliers that kernels may use, what they get: less where large kernels leave gaps on dies that no other
kernel fills, and where a device has few LUTs, which are not shared out themselves."""

LATER = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""If streams do not fit, the parts of its time by which a machine may take longer, for less deep ones."""

CUT, CUTS = 0.8, 14
"""If these do not fit, streams keep this share of their slots, and again, up to `CUTS` times; then the safe depths."""

SIZED_LAYERS = 2
"""Layers of a model for which a machine is balanced and sized. In the second one loads have run ahead while the first
one was computed, and it gets its input from the first; the ones behind it do the same."""

BALANCE = 64.0
"""Bits on cut streams that a fully used die is worth, when kernels are placed on dies."""


@dataclass(frozen=True)
class ChannelUse:
    """How a memory channel is used. channel: the channel. shares: bytes that the port of each task moves in a clock
    cycle, by the name of the task. busy_s: seconds that the channel is busy in an execution, with the time that each
    burst takes to begin."""

    channel: MemoryChannel
    shares: Mapping[str, int]
    busy_s: float


@dataclass(frozen=True)
class RepeatedLoad:
    """A load that moves its tensor more than once in an execution. operator: name of the operator that reads the
    tensor. tensor: its name. times: how many times the tensor is moved. bytes: that are moved in all. knob: "rows" or
    "columns": a tile with more of them makes `times` smaller."""

    operator: str
    tensor: str
    times: float
    bytes: int
    knob: str


@dataclass(frozen=True)
class Generated:
    """A machine, its program, and what is known about them before they run.

    streamed: the block as a stream program, with the depths that were chosen. device: that the machine is made for.
    machine: the machine with its program, at the clock of the device. fusion: groups of kernels. held: bytes of each
    kernel, converter and stream, by name. memories: in which memories of the chip these are, by name. dies: the die of
    each kernel. cycles: modelled clock cycles of an execution. slowest: the kernel with most work, and the cycles that
    it is busy. off_chip_bytes: bytes that an execution loads and stores. seconds: that each step of the generation
    took, by the names in `STEPS`.
    """

    streamed: Streamed
    device: StreamDevice
    machine: Program
    fusion: Fusion
    held: Mapping[str, int]
    memories: Allocation
    dies: DiePlacement
    cycles: int
    slowest: tuple[str, int]
    off_chip_bytes: int
    seconds: Mapping[str, float]

    @property
    def latency_s(self) -> float:
        """The modelled seconds of one execution: its cycles at the clock of the device."""
        return self.cycles / (self.device.mhz * 1e6)

    def latency_of(self, length: int) -> float:
        """Return the modelled seconds of one execution with a sequence of this length, in rows, of a block of any
        length. Raises `ProgramError` for a length that the machine does not take, and for a block of one length."""
        checked_sizes(program_of(self.machine.overlay), {LENGTH: length})
        region = self.streamed.report.region
        shorter = SizedProgram(read_again(region, region.buffered, {LENGTH: length}), 1)
        return _cycles(shorter) / (self.device.mhz * 1e6)

    @property
    def on_chip_bytes(self) -> int:
        """The bytes on the chip that kernels, converters and streams hold."""
        return sum(self.held.values())

    @cached_property
    def needed_bytes(self) -> int:
        """How many bytes loads and stores would move if they moved each tensor once."""
        written = self.streamed.written
        return sum(map(written.tensor_bytes, {moved.tensor for moved in written.moved.values()}))

    @cached_property
    def repeated(self) -> tuple[RepeatedLoad, ...]:
        """The loads that move a tensor more than once."""
        written = self.streamed.written
        operators = {x.name: x for x in self.streamed.plans}
        found = []
        for task, moved in _moved_bytes(self.streamed).items():
            tensor = written.moved[task].tensor
            whole = written.tensor_bytes(tensor)
            if task in written.loads and moved > whole:
                x = operators[written.loads[task]]
                left = x.op == "linear" and not tensor.startswith(x.operands[1].name)
                knob = "columns" if left else "rows"
                found.append(RepeatedLoad(x.name, tensor, moved / whole, moved, knob))
        return tuple(found)

    @property
    def bounds_s(self) -> dict[str, float]:
        """Lower bounds of the latency in seconds, by name: the time of the busiest kernel of this machine; the time of
        all products if they kept all multipliers busy that kernels may use, and those that this machine has in LUTs;
        the time of all bytes at the peak bandwidth of the memory off the chip; and the time of the busiest memory
        channel of this machine, with its bursts."""
        hz = self.device.mhz * 1e6
        dsps = multiply_add_dsps(self.device)
        most = max(1, int(FILL * self.device.total["DSP"]) // dsps)
        products = [x for x in self.streamed.block.graph.kernels if x.op in PRODUCTS]
        cost = {x.name: multiply_add_dsps(self.device, types_of(x)) / dsps for x in products}
        work = sum(multiply_adds(x) * cost[x.name] * self.streamed.times_of(x.name) for x in products)
        fabric = self.streamed.fabric
        multiply = (x for x in self.streamed.plans if fabric[x.name])
        most += sum(fabric[x.name] * multiply_add_dsps(self.device, types_of(x)) / dsps for x in multiply)
        return {
            "slowest kernel": self.slowest[1] / hz,
            "multipliers": work / most / hz,
            "memory off the chip": self.off_chip_bytes / (self.device.gbs * 1e9),
            "busiest channel": max(x.busy_s for x in self.channels),
        }

    @cached_property
    def channels(self) -> tuple[ChannelUse, ...]:
        """What uses each memory channel of the device, in its order."""
        ports, moved = self.streamed.ports, self.streamed.written.moved
        assert ports is not None, "a machine is for a device"
        found = []
        for k, channel in enumerate(self.device.channels):
            tasks = {task: m for task, m in moved.items() if k in ports.channels(m.tensor)}
            busy_s = sum(m.cost for m in tasks.values()) / (channel.gbs * 1e9)
            found.append(ChannelUse(channel, {task: m.share for task, m in tasks.items()}, busy_s))
        return tuple(found)

    def used(self) -> dict[str, int]:
        """Return how much of each resource of the device is used, by its name: DSP, LUT, BRAM and URAM in units of the
        device, and bytes of LUTRAM. DSP and LUT are estimates."""
        sums = {name: sum(load.get(name, 0) for load in self.dies.loads) for name in self.device.total}
        return sums | {"LUTRAM bytes": self.memories.used("LUTRAM")}


def generate(
    module: nn.Module,
    example_inputs: tuple[Any, ...] | dict[str, Any],
    device: StreamDevice,
    knobs: Knobs | None = None,
    *,
    rule: Rule = "balanced",
    on_chip_bytes: int | None = None,
    name: str | None = None,
    any_length: bool = False,
    done: Callable[[str], None] = lambda step: None,
) -> Generated:
    """Generate a machine for a PyTorch block (paper section 4.2, which does it by hand).

    module, example_inputs, any_length: as for `streamed`; with any length, times are those of the longest sequence.
    device: that the machine must fit on. knobs: sizes of tiles, and limits of `unroll`, `lanes` and `port`; for an
    operator that has such a knob of its own, that is the value. None for `DEFAULT`. rule: how kernels share multipliers
    and bandwidth: "balanced", so that the block takes the least time, or "printed", as the paper StreamTensor does it.
    on_chip_bytes: limit of the bytes of kernels, converters and streams; None for the share `FILL` of the device's
    memories. name: of the program. done: called after each step, with its name in `STEPS`.

    Raises as `streamed` does, and `ResourceError` with the numbers if the block does not fit: no group of kernels, no
    memory, no die; `ProgramError` for another rule.
    """
    seconds: dict[str, float] = {}
    step = _steps(seconds, done)
    with step("capture"):
        made = streamed(module, example_inputs, knobs or DEFAULT, name=name, any_length=any_length)
    return place(made, device, rule=rule, on_chip_bytes=on_chip_bytes, seconds=seconds, done=done)


def place(
    made: Streamed,
    device: StreamDevice,
    knobs: Knobs | None = None,
    *,
    rule: Rule = "balanced",
    on_chip_bytes: int | None = None,
    seconds: dict[str, float] | None = None,
    done: Callable[[str], None] = lambda step: None,
) -> Generated:
    """Generate a machine as `generate` does, for a block that was captured before. made: the block. device: that the
    machine must fit on. knobs: in place of those of the block; None for its own. rule, on_chip_bytes, done: as for
    `generate`. seconds: the times of earlier steps of the generation, by name; the times of the other steps are added
    to it. Raises as `generate` does, and `ProgramError` for knobs of operators that the block does not have."""
    seconds = {} if seconds is None else seconds
    step = _steps(seconds, done)
    if rule not in get_args(Rule):
        raise ProgramError(f"no rule is named {rule!r}; there are {', '.join(get_args(Rule))}")
    limit = _bytes_on_chip(device) if on_chip_bytes is None else on_chip_bytes
    layers = made.layers
    made = made.changed(knobs, layers=min(layers, SIZED_LAYERS))
    with step("fuse, balance, size and place"):
        made = made.changed(_widened(made, device))
        if rule == "balanced":
            made = made.changed(_outward(made))
            made = made.changed(_as_they_come(made))
        made, fusion, held, memories, dies = _fused(made, device, limit, rule)
    with step("machine"):
        if made.layers < layers:
            made = made.changed(depths=made.sized().declared, layers=layers)
        channels = made.ports.shares.channels if made.ports else {}
        machine = build(made.report, clock_hz=device.mhz * 1e6, device=device.name, channels=channels)
    with step("time"):
        sized = made.sized()
        cycles = _cycles(sized)
        slowest = _slowest(made, sized)
    moved = sum(_moved_bytes(made).values())
    return Generated(made, device, machine, fusion, held, memories, dies, cycles, slowest, moved, seconds)


def _steps(seconds: dict[str, float], done: Callable[[str], None]) -> Any:
    @contextmanager
    def step(name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        seconds[name] = time.perf_counter() - begun
        done(name)

    return step


def _bytes_on_chip(device: StreamDevice) -> int:
    """Bytes of block RAMs and UltraRAMs that kernels may use."""
    return int(FILL * (device.total["BRAM"] * BRAM_BYTES + device.total["URAM"] * URAM_BYTES))


def _widened(made: Streamed, device: StreamDevice) -> Knobs:
    """Let tiles of so few sums that they become registers have more columns: then a product adds to other words of sums
    before it comes back to one. Arrays of integers that products share add to all sums in each cycle, and keep their
    tiles; with more rows, other kernels get tiles as wide as those of all arrays together: then fewer loops begin."""
    knobs, rows = made.knobs, {x.name: plan.sizes["tm"] for x, plan in made.plans.items() if x.op in PRODUCTS}
    most = max(rows.values(), default=MOVED)
    few, of = most * knobs.columns <= MOVED, {operator: dict(chosen) for operator, chosen in knobs.of.items()}
    arrays = [x.attributes["arrays"] for x in made.plans if x.op == "array" and x.multiplies_integers]
    wide = max((shared.tile[1] * len(shared.names) for shared in arrays), default=knobs.columns)
    wide = max(wide, (device.float_add + 2) * MOVED // most) if few else wide
    if few and not arrays:
        return replace(knobs, columns=wide)
    for x in made.plans if arrays else ():
        if x.op not in ("array", "epilogue"):
            of.setdefault(x.name, {}).setdefault("columns", wide)
    for name, own in rows.items():  # such as the one row of a product with the vocabulary, beside those of a prompt
        if own < most and own * knobs.at(name).columns <= MOVED and "columns" not in of.get(name, {}):
            of.setdefault(name, {})["columns"] = (device.float_add + 2) * MOVED // own
    return replace(knobs, of=of)


def _outward(made: Streamed) -> Knobs:
    """Let a linear operator sum outward if its operand comes from another product, column by column: then both work at
    the same time. Its tiles along the sum are the columns of that product's tiles."""
    of = {operator: dict(chosen) for operator, chosen in made.knobs.of.items()}
    for x in made.plans:
        source = x.operands[0] if x.op == "linear" and x.operand("weight_scale") is None else None
        while source is not None and source.op == "pointwise":
            source = next((operand for operand in source.operands if not operand.is_memory), None)
        if source is not None and source.op in PRODUCTS and "outward" not in made.knobs.of.get(x.name, {}):
            columns = made.plans[x.operands[0]].put.element[-1]
            of.setdefault(x.name, {}).update(outward=int(columns < x.operands[0].shape[2]), depth=columns)
    return replace(made.knobs, of=of)


def _as_they_come(made: Streamed) -> Knobs:
    """Let an elementwise kernel, and one that gathers a row of tiles, take tiles as narrow as those of the kernel in
    front of it. So it works on each as it comes, and no converter gathers several."""
    of = {operator: dict(chosen) for operator, chosen in made.knobs.of.items()}
    width = {x: plan.put.element[-1] for x, plan in made.plans.items()}
    for x, plan in made.plans.items():
        source = next((operand for operand in x.operands if operand.kernel in width), None)
        gathers = x.op in ("softmax", "layernorm", "rmsnorm", "quantise") and plan.loops["columns"] > 1
        gathers = gathers and x.attributes.get("columns", x.shape[2]) == x.shape[2]
        if source is None or source.shape != x.shape or not (gathers or x.op == "pointwise"):
            continue
        narrow = width[source.kernel]
        if narrow < width[x] and width[x] % narrow == 0 and "columns" not in made.knobs.of.get(x.name, {}):
            of.setdefault(x.name, {})["columns"] = width[x] = narrow
    return replace(made.knobs, of=of)


def _unrolled(made: Streamed, device: StreamDevice, dsps: int) -> Streamed:
    """Spend the multipliers on the slowest products, and share the bandwidth evenly. Heads are taken one by one."""
    made = made.changed(replace(made.knobs, together=1), ports=ChannelPorts(device, waits=False))
    port = _port(made, device)
    widest = widest_ports(made, device)
    wanted = {x: float(min(port, most)) for x, most in widest.items() if "port" not in made.knobs.of.get(x, {})}
    ways = port_shares(made, device, wanted, port)
    shared = ChannelPorts(device, max(ways, key=lambda shares: sum(shares.bytes.values())))
    made = made.changed(replace(made.knobs, port=port), ports=shared)
    knobs = made.knobs
    products = {x.name: multiply_adds(x) for x in made.plans if multiply_adds(x)}
    others = {node.name: node for node in made.dataflow.nodes if node.name not in products}
    of = {operator: dict(chosen) for operator, chosen in knobs.of.items()}
    taken = {x: area(node, knobs.at(x).lanes, device)["DSP"] for x, node in others.items()}
    while sum(taken.values()) > dsps // 2:  # the other half is for products
        dearest = max(taken, key=taken.__getitem__)
        lanes = of.get(dearest, {}).get("lanes", knobs.lanes) // 2
        if not lanes or "lanes" in knobs.of.get(dearest, {}):
            break
        of.setdefault(dearest, {})["lanes"] = lanes
        taken[dearest] = area(others[dearest], lanes, device)["DSP"]
    dsps -= sum(taken.values())
    if products:
        if dsps < multiply_add_dsps(device) * len(products):
            raise ResourceError(
                f"{device.name}: {int(FILL * device.total['DSP']):,} DSPs may be used, and {len(products)} products "
                f"and the other kernels with {knobs.lanes} lanes need more; choose fewer lanes, or a larger device"
            )
        most = {
            x.name: _widest(x, plan, knobs.at(x.name), device.float_add)
            for x, plan in made.plans.items()
            if x.name in products
        }
        each = multiply_add_dsps(device)
        cost = {x.name: multiply_add_dsps(device, types_of(x)) / each for x in made.plans if x.name in products}
        found = unroll(products, max(len(products), int(dsps // each)), most, cost=cost)
        for operator, units in found.unroll.items():
            if "unroll" not in of.get(operator, {}):
                of.setdefault(operator, {})["unroll"] = units
    return made.changed(replace(knobs, of=of), ports=shared)


def _port(made: Streamed, device: StreamDevice) -> int:
    """Bytes in a cycle of a load or store, so that all of them together are within the bandwidth of the device."""
    return max(1, min(made.knobs.port, int(device.bytes_a_cycle(device.gbs)) // len(made.written.moved)))


def _widest(x: StreamOperator, plan: KernelPlan, knobs: Knobs, float_add: int) -> int:
    """The most multiply-adds in a cycle of a kernel whose streams are `port` bytes wide: its operands must arrive."""
    beat = multiply_adds(x) // prod(plan.loops.values())
    arrive = max(-(-order.bytes_per_token // knobs.port) for order in plan.gets)
    return units_of(x, plan, float_add, max(1, min(knobs.unroll, beat // arrive)))


_Sized = tuple[Streamed, dict[str, int], Allocation, DiePlacement]
"""A block with its depths, the bytes of all that is on the chip, and where these and the kernels are."""


def _fused(
    made: Streamed, device: StreamDevice, limit: int, rule: Rule
) -> tuple[Streamed, Fusion, dict[str, int], Allocation, DiePlacement]:
    """Choose groups, units of kernels, depths, memories and dies. All groups are on the chip at once, so each gets less
    than the limit until their sum is within it."""
    space = fusion_space(made.dataflow)
    fusion = fuse(space, limit)
    share = limit
    while True:
        group = dict(zip(space.names, fusion.group, strict=True))
        parted = made.changed(groups=group) if len(fusion.groups) > 1 else made
        shared = _shared(parted, device, limit, rule)  # smaller groups would not help kernels that are too large
        try:
            sized, held, memories, dies = _sized(shared, device, limit)
            return sized, fusion, held, memories, dies
        except ResourceError as e:
            too_large = e
        while True:
            share = share * 3 // 4
            if not share:
                raise too_large
            try:
                smaller = fuse(space, share)
            except BudgetError:
                raise too_large from None
            if smaller.group != fusion.group:
                break
        fusion = smaller


def _shared(made: Streamed, device: StreamDevice, limit: int, rule: Rule) -> Streamed:
    """Share the multipliers, of which kernels get less where they do not fit on dies. Raises `ResourceError` if they do
    not fit with the least share."""
    dsps, luts = FILL * device.total["DSP"], FILL * device.total["LUT"]
    # Two buffers for each converter, as fusion counts them, whatever the program has.
    prefetch = int(PREFETCH * max(0, limit - sum(_buffers(made, two=True).values())))
    too_large: ResourceError | None = None
    for share in SHARES:
        try:
            if rule == "balanced":
                shared = balanced(made, device, int(share * dsps), prefetch, int(share * luts))
            else:
                shared = _unrolled(made, device, int(share * dsps))
            place_on_dies(_areas(shared, device), (), device.dies, fill=FILL)  # whether there is a placement
        except DieError as e:
            too_large = e
        except ResourceError as e:
            raise too_large or e from None
        else:
            return shared
    assert too_large is not None, "there are shares"
    raise too_large


def _sized(made: Streamed, device: StreamDevice, limit: int) -> _Sized:
    """Choose depths, memories and dies: the fast depths if there is room for them, else those of fewest bits with which
    the machine takes a little longer, and longer again. Where none of these fit, less deep streams, those of loads
    first; below the safe depths a run would hang."""
    sized, loads = made.sized(), _load_streams(made)

    def placed(depths: Mapping[str, int]) -> _Sized:
        held = _held(made, sized, depths, limit)
        memories = allocate(held, Memories.of_device(device), _wide(made))
        return made.changed(depths=depths), held, memories, _on_dies(made, memories, device)

    for slack in LATER:
        fast = fast_depths(sized, slack).levels
        try:
            return placed(fast)
        except ResourceError as e:
            too_large = e
    safe = safe_depths(sized).levels
    shares = [CUT**step for step in range(CUTS)] + [0.0]
    for of_loads, of_others in [*((share, 1.0) for share in shares), *((0.0, share) for share in shares[1:])]:
        of = {stream: of_loads if stream in loads else of_others for stream in fast}
        try:
            return placed({stream: max(safe[stream], int(of[stream] * depth)) for stream, depth in fast.items()})
        except ResourceError as e:
            too_large = e
    raise too_large


def _ends(made: Streamed) -> Iterator[tuple[str, StreamDecl, bool, int]]:
    """Each end of a stream: its task, the stream, whether the task puts, and how many tokens in an execution."""
    region = made.report.region
    for instance in region.instances:
        for node in instance.body:
            for stream, put, tokens in node.needs:
                yield instance.task.name, region.stream(stream)[0], put, tokens


def _load_streams(made: Streamed) -> set[str]:
    """The streams on which loads put what they load."""
    return {stream.name for task, stream, put, _ in _ends(made) if put and task in made.written.loads}


def _buffers(made: Streamed, two: bool) -> dict[str, int]:
    """Bytes of kernels and converters. two: each converter has two buffers; else it has one."""
    buffers = {node.name: node.memory_bytes for node in made.nodes if node.memory_bytes}
    converters = made.written.converters.items()
    return buffers | {task: found.ping_pong_bytes // (1 if two else 2) for task, found in converters}


def _wide(made: Streamed) -> dict[str, int]:
    """Bits of a word of each stream whose words are wider than `STREAM_BITS`, by name."""
    words = {
        stream.name: CPP_BITS[stream.type.dtype] * stream_word(stream.type.dtype, stream.type.shape).elements
        for _, stream, put, _ in _ends(made)
        if put and stream.type.shape
    }
    return {name: bits for name, bits in words.items() if bits > STREAM_BITS}


def _held(made: Streamed, sized: SizedProgram, depths: Mapping[str, int], limit: int) -> dict[str, int]:
    """Bytes of kernels, converters and streams with these depths. Raises `ResourceError` for more than the limit."""
    buffers = _buffers(made, bool(made.knobs.ping_pong))
    for stream, depth in depths.items():
        group = sized.groups[stream]
        buffers[stream] = -(-depth * group.bits * len(group.elements) // 8)
    held = sum(buffers.values())
    if held > limit:
        largest = max(buffers, key=lambda name: buffers[name])
        raise MemoryFitError(
            f"kernels, converters and streams hold {held:,} bytes, and {limit:,} may be used on the chip; the largest "
            f"is {largest} with {buffers[largest]:,}; choose smaller tiles, or a larger limit",
            largest,
            Allocation({}),
        )
    return buffers


def _on_dies(made: Streamed, memories: Allocation, device: StreamDevice) -> DiePlacement:
    """Put each kernel on a die, with the memories of what leads to it."""
    areas, holder = _areas(made, device), _holders(made)
    for name, place_ in memories.places.items():
        if place_.kind != "LUTRAM":
            areas[holder[name]][place_.kind] += place_.amount
    wires = [Wire(edge.source, edge.target, _bits_a_cycle(edge.put)) for edge in made.dataflow.edges]
    for x, plan in made.plans.items():
        if x.op == "array":
            sums, arrays = _bits_a_cycle(plan.put), x.attributes["arrays"]
            own = arrays.of_array(arrays.names.index(x.name))
            wires += [Wire(x.name, product.name, sums) for product in own]
    return place_on_dies(areas, wires, device.dies, BALANCE, FILL)


def _areas(made: Streamed, device: StreamDevice) -> dict[str, dict[str, int]]:
    """What each kernel takes of each resource of a die, by name, without memories."""
    units, fabric = made.units, made.fabric
    return {
        node.name: area(node, units[node.name], device, fabric[node.name]) | {"BRAM": 0, "URAM": 0}
        for node in made.nodes
    }


def _holders(made: Streamed) -> dict[str, str]:
    """The kernel on whose die each buffer is: of a stream or a converter, the kernel that it leads to; of what is
    stored, the kernel that it comes from."""
    kernels = {node.name for node in made.nodes}
    writer: dict[str, str] = {}
    reader: dict[str, str] = {}
    for task, stream, put, _ in _ends(made):
        (writer if put else reader)[stream.name] = task
    data = {stream: task for stream, task in reader.items() if stream not in made.written.requests}
    ahead: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    for name, task in data.items():
        ahead.setdefault(writer[name], []).append(task)
        behind.setdefault(task, []).append(writer[name])

    def kernel(task: str) -> str:
        found = (_first_kernel(task, kernels, ways) for ways in (ahead, behind))
        return next(x for x in found if x is not None)

    found = {name: name for name in kernels}
    found |= {task: kernel(task) for task in made.written.converters}
    return found | {stream: kernel(task) for stream, task in reader.items()}


def _first_kernel(task: str, kernels: Collection[str], ways: Mapping[str, list[str]]) -> str | None:
    """The first kernel on the ways from a task, itself included; None if they lead to none. ways: from each task to
    others, of which the last one is tried first."""
    seen, stack = {task}, [task]
    while stack:
        along = stack.pop()
        if along in kernels:
            return along
        stack += [x for x in ways.get(along, ()) if x not in seen]
        seen.update(stack)
    return None


def _bits_a_cycle(put: Order) -> int:
    """The width of the streams of a result. put: order of its tokens."""
    return BITS[put.dtype] * stream_word(put.dtype, token_shape(put)).elements


def _slowest(made: Streamed, sized: SizedProgram) -> tuple[str, int]:
    """The kernel that is busy longest, and the cycles of its beats."""
    cycles = TimedProgram(sized.outcomes.bodies[0], sized.packing).code.cycles
    busy = dict(zip((instance.task.name for instance in sized.region.instances), cycles, strict=True))
    slowest = max((x.name for x in made.plans), key=busy.__getitem__)
    return slowest, busy[slowest]


def _cycles(sized: SizedProgram) -> int:
    times = sized.times(sized.declared)
    assert times is not None, "depths that were found safe wait for ever"
    return times.latency


def _moved_bytes(made: Streamed) -> dict[str, int]:
    """Bytes that each load puts on streams and each store gets from them in an execution, by task. Tokens without data,
    which say that a tensor is complete, stay on the chip."""
    written = made.written
    moved: dict[str, int] = {}
    for task, stream, put, tokens in _ends(made):
        moves = (put and task in written.loads) or (not put and task in written.stores)
        if moves and stream.type.dtype != "boolean":
            moved[task] = moved.get(task, 0) + tokens * bytes_of(stream.type)
    return moved
