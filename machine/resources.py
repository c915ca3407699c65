"""Resources that a datapath needs, compared with its device; and the time that its units take, by their sources.

An overlay lists its needs part by part (`Overlay.resources`); a `Chip` lists its capacities. Needs that follow from
the structure (memories, streams, AIE tiles) are exact. DSPs, LUTs and flip-flops depend on the HLS compiler and are
estimates. `plan` tells by which of them a router is limited, and the clock that one would plan with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..base.errors import ResourceError


@dataclass(frozen=True)
class Capacity:
    """How much of one resource a device has.

    amount: in `unit`, as are the other counts. source: where `amount` comes from. published: how much the published
    implementation uses by the paper. post_route: the same by its report after routing. remark: on these two. guideline:
    the share up to which the vendor expects timing to be met without more effort, 1 for the whole device. None for what
    is not known.
    """

    amount: int
    unit: str
    source: str
    published: int | None = None
    post_route: int | None = None
    remark: str = ""
    guideline: float | None = None


@dataclass(frozen=True)
class Guidelines:
    """What the vendor says of full devices.

    hard: names of the hard blocks, as in `Chip.capacities`. average: the guideline of their average share, 1 for the
    whole device. source: of all guidelines.
    """

    hard: tuple[str, ...]
    average: float
    source: str


@dataclass(frozen=True)
class Chip:
    """A chip. capacities: by name of the resource. guidelines: what its vendor says of full devices. routed_hz: the
    clock, in Hz, at which the published implementation was routed, the one of `Capacity.post_route`."""

    name: str
    capacities: Mapping[str, Capacity]
    guidelines: Guidelines
    routed_hz: float


@dataclass(frozen=True)
class Need:
    """How much one part of a datapath uses of one resource.

    amount: in the unit of the device's `Capacity`. part: its name. estimate: the amount is not exact.
    """

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
        """Relative error of the estimate: 0.1 if it is 10 % too high. Raises `ZeroDivisionError` for a published 0."""
        return self.estimated / self.published - 1


@dataclass(frozen=True)
class ResourceUse:
    """The use of one resource: the device's capacity, and how much each part of a datapath uses by its name, the
    largest first, in `capacity.unit`.

    estimate: at least one part is an estimate.
    """

    resource: str
    capacity: Capacity
    parts: Mapping[str, int]
    estimate: bool

    @property
    def needed(self) -> int:
        """How much all parts use together, in `capacity.unit`."""
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        """The used share of the capacity; above 1 the datapath does not fit."""
        return self.needed / self.capacity.amount


def budget(needs: Iterable[Need], device: Chip) -> list[ResourceUse]:
    """Add up needs by resource, in the device's order, and within a resource by the name of the part, the largest
    first.

    Raises `KeyError` for a resource that the device does not list.
    """
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
    """Raise `ResourceError` for the first resource of `rows` that is used to more than the capacity. device: for the
    message.
    """
    for row in rows:
        if row.share > 1:
            most = next(iter(row.parts))
            about = "about " if row.estimate else ""
            raise ResourceError(
                f"the datapath needs {about}{row.needed} {row.resource} ({row.capacity.unit}) and a {device.name} has "
                f"{row.capacity.amount}; {most} alone: {row.parts[most]}"
            )


HARD_BLOCKS = "hard blocks"
SLOWER_MHZ = 220, 200, 180
"""Clocks in MHz to plan with where a device is fuller than the one that was routed: within the guidelines, up to a
quarter above one of them, and beyond. An estimate: these are clocks that full Versal devices reach, no rule."""
FAR_ABOVE = 1.25


@dataclass(frozen=True)
class ClockPlan:
    """What a router would be limited by, and the clock to plan with.

    average: the mean used share of the hard blocks. used: by resource that has a guideline, and for `HARD_BLOCKS`: the
    used share divided by the guideline, so that 1 is just within it. routed: the largest such number of the published
    implementation. clock_hz: the clock to plan with, in Hz, an estimate. reason: why this clock, as text.
    """

    average: float
    used: Mapping[str, float]
    routed: float
    clock_hz: float
    reason: str

    @property
    def limit(self) -> str:
        """The name of the resource (or `HARD_BLOCKS`) that uses the largest part of its guideline."""
        return max(self.used, key=self.used.__getitem__)


def plan(rows: Iterable[ResourceUse], device: Chip) -> ClockPlan:
    """Return how full a datapath makes its device, and the clock to plan with. rows: what `budget` returned for it.

    Raises `ZeroDivisionError` if `rows` are without the device's hard blocks.
    """
    rows = list(rows)
    average, used = _used({row.resource: row.share for row in rows}, device)
    _, published = _used({row.resource: (row.capacity.post_route or 0) / row.capacity.amount for row in rows}, device)
    most, routed, mhz = max(used.values()), max(published.values()), device.routed_hz / 1e6
    near, above, far = SLOWER_MHZ
    if most <= routed:
        clock, reason = mhz, f"the published implementation was routed at {mhz:.0f} MHz, and is as full"
    elif most <= 1:
        clock, reason = near, "within the guidelines, but fuller than the published implementation"
    elif most <= FAR_ABOVE:
        clock, reason = above, "above a guideline, by less than a quarter of it"
    else:
        clock, reason = far, "above a guideline, by more than a quarter of it"
    return ClockPlan(average, used, routed, clock * 1e6, reason)


def _used(shares: Mapping[str, float], device: Chip) -> tuple[float, dict[str, float]]:
    """The average of the hard blocks, and the parts of guidelines that are used."""
    hard = device.guidelines.hard
    average = sum(shares[name] for name in hard) / len(hard)
    guided = {name: c.guideline for name, c in device.capacities.items()}
    used = {name: shares[name] / guide for name, guide in guided.items() if guide is not None}
    return average, {**used, HARD_BLOCKS: average / device.guidelines.average}


@dataclass(frozen=True)
class OperationTime:
    """The time of one operation of a unit, by its C++ sources and in the simulator.

    what: the operation. cycles, seconds: by the sources. simulated: seconds that the simulator charges. remark: the
    reason of the difference. rate: name of the simulator's rate that is compared, and its value by the sources; None if
    no rate is compared.
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
        "URAM": Capacity(463, "blocks of 4096 x 72 bit", "AMD product table", 190, 192, "paper: 41 %", 0.8),
        "BRAM": Capacity(967, "blocks of 36 Kbit", "AMD product table", 571, 575, "paper: 59 %", 0.8),
        "DSP": Capacity(1968, "DSP58", "AM004, table 1", 1073, 846, guideline=0.8),
        "LUT": Capacity(899_840, "6-input tables", "AMD product table", 494_855, 518_255, guideline=0.7),
        "FF": Capacity(1_799_680, "flip-flops", "AMD product table", guideline=0.5),
    },
    Guidelines(
        ("URAM", "BRAM", "DSP"),
        0.7,
        "AMD UG1393 (2024.1), Timing Closure Considerations; the average: report_failfast, whose guidelines may be "
        "relaxed on a device of one die (UG1399, Implementation Report)",
    ),
    routed_hz=260e6,
)
"""The device of the VCK190, beside what the published implementation uses of it: by the paper, section 5, and by the
post-route report of the published implementation (Vitis 2024.1, 260 MHz). For URAM and BRAM the paper prints 463 and
967, which is what the device has; what is used are its 41 and 59 per cent."""
