"""What a datapath asks of its device, against what the device has; and how long its units take for what they do.

An overlay says what it needs (`Overlay.needs`), part by part; a `Device` says what there is. What follows from the
structure (memories, streams, AIE tiles) is exact; DSPs and LUTs are what a compiler makes of arithmetic, so estimates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..base.errors import ResourceError


@dataclass(frozen=True)
class Capacity:
    """How much of a resource a device has. published: how much of it the paper's bitstream takes, as it says."""

    amount: int
    unit: str
    source: str
    published: int | None = None
    remark: str = ""


@dataclass(frozen=True)
class Device:
    """A chip: its resources by name."""

    name: str
    capacities: Mapping[str, Capacity]


@dataclass(frozen=True)
class Need:
    """What one part of a datapath takes of one resource."""

    resource: str
    amount: int
    part: str
    estimate: bool = False


@dataclass(frozen=True)
class ResourceUse:
    """A resource: what there is of it, and what the parts of a datapath take, the largest first."""

    resource: str
    capacity: Capacity
    parts: Mapping[str, int]
    estimate: bool

    @property
    def needed(self) -> int:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        return self.needed / self.capacity.amount


def budget(needs: Iterable[Need], device: Device) -> list[ResourceUse]:
    """Needs by resource, in the order of the device's, those of parts with the same name added up."""
    parts: dict[str, Counter[str]] = {name: Counter() for name in device.capacities}
    estimates = set()
    for need in needs:
        parts[need.resource][need.part] += need.amount
        if need.estimate:
            estimates.add(need.resource)
    return [
        ResourceUse(name, device.capacities[name], dict(found.most_common()), name in estimates)
        for name, found in parts.items()
    ]


def require_fits(rows: Iterable[ResourceUse], device: Device) -> None:
    """Raise `ResourceError` where the device has too little of something."""
    for row in rows:
        if row.share > 1:
            most = next(iter(row.parts))
            about = "about " if row.estimate else ""
            raise ResourceError(
                f"the datapath needs {about}{row.needed} {row.resource} ({row.capacity.unit}) and a {device.name} has "
                f"{row.capacity.amount}; {most} alone: {row.parts[most]}"
            )


@dataclass(frozen=True)
class Cost:
    """How long a unit takes for something: as its sources state it, and as the simulator has it. remark: what the
    difference is, or means. rate: the simulator's rate that this speaks of, and its value by the sources."""

    what: str
    cycles: int
    seconds: float
    simulated: float
    remark: str = ""
    rate: tuple[str, float] | None = None

    @property
    def difference(self) -> float:
        """Of the sources from the simulator, relative."""
        return self.seconds / self.simulated - 1


VC1902 = Device(
    "VC1902",
    {
        "AIE": Capacity(400, "tiles", "8 rows of 50; paper section 2.1", 384),
        "PLIO in": Capacity(234, "streams of 64 bit", "paper section 5.3", 192),
        "PLIO out": Capacity(156, "streams of 64 bit", "paper section 5.3", 96),
        "URAM": Capacity(463, "blocks of 4096 x 72 bit", "AMD product table", 463, "given as 41 %, which is 190"),
        "BRAM": Capacity(967, "blocks of 36 Kbit", "AMD product table", 967, "given as 59 %, which is 571"),
        "DSP": Capacity(1968, "DSP58", "AM004, table 1", 1073),
        "LUT": Capacity(899_840, "6-input tables", "AMD product table", 494_855),
    },
)
"""The device of the VCK190. The paper's utilization (section 5) gives URAM and BRAM as 463 and 967, which are all there
are, but as 41 and 59 per cent."""
