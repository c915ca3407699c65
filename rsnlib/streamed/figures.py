"""What a generated machine is, as lines to read and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...base.durations import duration
from ...base.element_types import FLOATS
from ...streams.dataflow.graph import KernelNode
from .block import Streamed
from .generate import Generated
from .knobs import PRODUCTS, Knobs
from .operators import StreamOperator

MANY = 2
"""How many times the bytes of its tensors a machine may move without a warning."""


def facts(made: Generated) -> dict[str, Any]:
    """Return the figures of a machine by name, as data for JSON. clock_mhz: MHz. a_cycle: multiply-adds of a product,
    or elements of another kernel, in a clock cycle. group: number of a kernel's group; None for arrays that products
    share. cut_bits: bits that cross a border between dies in a cycle. used: as `Generated.used`. Names that end in _s,
    and the values of `seconds`, are times in seconds: modelled, but for `seconds`, which the steps of the generation
    took. DSP and LUT are estimates."""
    return {
        "device": made.device.name,
        "clock_mhz": made.device.mhz,
        "kernels": {
            node.name: {
                "operator": node.op,
                "group": group,
                "die": made.dies.die[node.name],
                "a_cycle": made.streamed.units[node.name],
            }
            for node, group in _grouped(made)
        },
        "groups": len(made.fusion.groups),
        "cycles": made.cycles,
        "latency_s": made.latency_s,
        "bounds_s": made.bounds_s,
        "slowest_kernel": made.slowest[0],
        "off_chip_bytes": made.off_chip_bytes,
        "needed_bytes": made.needed_bytes,
        "knobs": {knob: getattr(made.streamed.knobs, knob) for knob in ("rows", "columns", "depth")},
        "channels": [
            {"name": x.channel.name, "bytes_a_cycle": dict(x.shares), "busy_s": x.busy_s} for x in made.channels
        ],
        "used": made.used(),
        "cut_bits": made.dies.cut,
        "seconds": dict(made.seconds),
    }


def tiles(knobs: Knobs) -> str:
    """Return the sizes of a tile that knobs give, as text."""
    return f"tiles of {knobs.rows} x {knobs.columns} x {knobs.depth}"


def warnings(made: Generated) -> Iterator[str]:
    """Yield a warning, as text, if a machine moves many more bytes than if it moved each tensor once. It names the
    tensor that takes most bytes, and the knob that changes that."""
    if made.off_chip_bytes <= MANY * made.needed_bytes:
        return
    moved = (
        f"an execution moves {made.off_chip_bytes:,} bytes between the chip and memory, and each tensor once would be "
        f"{made.needed_bytes:,}"
    )
    most = max(made.repeated, key=lambda x: x.bytes, default=None)
    if most is None:
        yield f"{moved}: several operators load the same tensors"
        return
    knobs = made.streamed.knobs
    yield (
        f"{moved}: {most.operator} loads {most.tensor} {most.times:g} times with {tiles(knobs)}; more {most.knob} in a "
        f"tile load it fewer times (--set {most.knob}={2 * getattr(knobs, most.knob)})"
    )


def lines(made: Generated) -> Iterator[str]:
    """Yield the figures of a machine as lines of text: its latency and bounds, its memory channels, what it uses of the
    device, and a table of its kernels."""
    device = made.device
    yield f"latency        {duration(made.latency_s)} ({made.cycles:,} cycles at {device.mhz} MHz, modelled)"
    yield f"off the chip   {made.off_chip_bytes / 1e6:.1f} MB in an execution, with {tiles(made.streamed.knobs)}"
    bounds = ", ".join(f"{name} {duration(seconds)}" for name, seconds in made.bounds_s.items())
    yield f"bounds         {bounds} (busiest: {made.slowest[0]})"
    used_channels = [x for x in made.channels if x.shares]
    ports = sum(len(x.shares) for x in used_channels)
    fullest = max(used_channels, key=lambda x: sum(x.shares.values()) / x.channel.gbs)
    room = device.bytes_a_cycle(fullest.channel.gbs)
    yield (
        f"channels       {len(used_channels)} of {len(device.channels)}, with {ports} ports; the fullest, "
        f"{fullest.channel.name}, for {sum(fullest.shares.values())} of {room:.1f} bytes a cycle"
    )
    groups = len(made.fusion.groups)
    shared = f", and {len(made.streamed.arrays)} arrays of multipliers" if made.streamed.arrays else ""
    yield f"kernels        {len(made.streamed.dataflow.nodes)} in {groups} group{'s' * (groups != 1)}{shared}"
    used = made.used()
    shares = (f"{name} {used[name]:,} of {most:,} ({used[name] / most:.0%})" for name, most in device.total.items())
    yield f"{device.name:<14} {', '.join(shares)}; LUT and DSP are estimates"
    if len(device.dies) > 1:
        yield f"dies           {made.dies.cut} bits a cycle cross a border"
    yield ""
    types = products(made.streamed)
    is_float = set(types.values()) <= {"f32 x f32"}
    heading = "" if is_float else "  products of"
    rows = list(_grouped(made))
    name = 2 + max([26, *(len(node.name) for node, _ in rows)])
    op = 2 + max([10, *(len(node.op) for node, _ in rows)])
    yield f"{'kernel':<{name}}{'operator':<{op}}{'a cycle':>8}{'group':>7}{'die':>5}{heading}"
    for node, group in rows:
        a_cycle, of = made.streamed.units[node.name], "" if group is None else group
        told = f"  {types[node.name]}" if node.name in types and not is_float else ""
        yield f"{node.name:<{name}}{node.op:<{op}}{a_cycle:>8}{of:>7}{made.dies.die[node.name]:>5}{told}"


def _grouped(made: Generated) -> Iterator[tuple[KernelNode, int | None]]:
    """The kernels with their groups; arrays that products share belong to all, and have none."""
    yield from zip(made.streamed.dataflow.nodes, made.fusion.group, strict=True)
    yield from ((node, None) for node in made.streamed.arrays)


def products(made: Streamed) -> dict[str, str]:
    """Return what each product multiplies, as text such as "i8 x i4", by the name of its kernel."""
    return {x.name: _multiplied(x) for x in made.plans if x.op in PRODUCTS}


def _multiplied(x: StreamOperator) -> str:
    """The element types of what a product multiplies, as text."""
    if x.op == "array":
        return " x ".join(x.attributes["arrays"].types)
    left, right = (operand.dtype for operand in x.operands[:2])
    return f"{left} x {right}, dequantised" if left in FLOATS and right not in FLOATS else f"{left} x {right}"
