"""Resources that a datapath needs, compared with its device; and the time that its units take, by their sources.

An overlay lists its needs part by part (`Overlay.resources`); a `Chip` lists its capacities. Needs that follow from
the structure (memories, streams, AIE tiles) are exact. DSPs and LUTs depend on the HLS compiler and are estimates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..base.errors import ResourceError


@dataclass(frozen=True)
class Capacity:
    """How much of one resource a device has.

    source: where `amount` comes from. published: how much the published implementation uses by the paper. post_route:
    the same by its report after routing. remark: on these two.
    """

    amount: int
    unit: str
    source: str
    published: int | None = None
    post_route: int | None = None
    remark: str = ""


@dataclass(frozen=True)
class Chip:
    """A chip. capacities: by name of the resource."""

    name: str
    capacities: Mapping[str, Capacity]


@dataclass(frozen=True)
class Need:
    """How much one part of a datapath uses of one resource. estimate: the amount is not exact."""

    resource: str
    amount: int
    part: str
    estimate: bool = False


@dataclass(frozen=True)
class Deviation:
    """How far an estimate is from a published figure.

    resource: its name. unit: of which part of the published machine; "" for all of it. published, estimated: how much.
    """

    resource: str
    unit: str
    published: int
    estimated: int

    @property
    def error(self) -> float:
        """Relative error of the estimate: 0.1 if it is 10 % too high."""
        return self.estimated / self.published - 1


@dataclass(frozen=True)
class ResourceUse:
    """The use of one resource: the device's capacity, and how much each part of a datapath uses, the largest first.

    estimate: at least one part is an estimate.
    """

    resource: str
    capacity: Capacity
    parts: Mapping[str, int]
    estimate: bool

    @property
    def needed(self) -> int:
        """How much all parts use together."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """The used share of the capacity; above 1 the datapath does not fit."""
        return self.needed / self.capacity.amount


def budget(needs: Iterable[Need], device: Chip) -> list[ResourceUse]:
    """Add up needs by resource, in the device's order, and within a resource by the name of the part."""
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


def require_fits(rows: Iterable[ResourceUse], device: Chip) -> None:
    """Raise `ResourceError` for the first resource of which the device has too little."""
    for row in rows:
        if row.share > 1:
            most = next(iter(row.parts))
            about = "about " if row.estimate else ""
            raise ResourceError(
                f"the datapath needs {about}{row.needed} {row.resource} ({row.capacity.unit}) and a {device.name} has "
                f"{row.capacity.amount}; {most} alone: {row.parts[most]}"
            )


@dataclass(frozen=True)
class OperationTime:
    """The time of one operation of a unit, by its C++ sources and in the simulator.

    what: the operation. cycles, seconds: by the sources. simulated: seconds that the simulator charges. remark: the
    reason of the difference. rate: name of the simulator's rate that is compared, and its value by the sources.
    """

    what: str
    cycles: int
    seconds: float
    simulated: float
    remark: str = ""
    rate: tuple[str, float] | None = None

    @property
    def difference(self) -> float:
        """Relative difference of the sources from the simulator: 0.1 if the sources are 10 % slower."""
        return self.seconds / self.simulated - 1


VC1902 = Chip(
    "VC1902",
    {
        "AIE": Capacity(400, "tiles", "8 rows of 50; paper section 2.1", 384),
        "PLIO in": Capacity(234, "streams of 64 bit", "paper section 5.3", 192),
        "PLIO out": Capacity(156, "streams of 64 bit", "paper section 5.3", 96),
        "URAM": Capacity(463, "blocks of 4096 x 72 bit", "AMD product table", 190, 192, "paper: 41 %"),
        "BRAM": Capacity(967, "blocks of 36 Kbit", "AMD product table", 571, 575, "paper: 59 %"),
        "DSP": Capacity(1968, "DSP58", "AM004, table 1", 1073, 846),
        "LUT": Capacity(899_840, "6-input tables", "AMD product table", 494_855, 518_255),
    },
)
"""The device of the VCK190, beside what the published implementation uses of it: by the paper, section 5, and by the
post-route report of the published implementation (Vitis 2024.1, 260 MHz). For URAM and BRAM the paper prints 463 and
967, which is what the device has; what is used are its 41 and 59 per cent."""
