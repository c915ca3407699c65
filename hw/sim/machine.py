"""The simulator: run a program's decoded image on an overlay's network, with data or for time alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ...isa.network import Firings, Network
from ...isa.packet import Words, decode_image
from ...isa.program import Program

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Run:
    """What a run took. latency in seconds; bytes moved per direction; utilization: share of the latency in which a
    unit did not wait; critical_path: share of the latency per cause, along the chain of steps that decided it."""

    latency_s: float
    bytes: dict[str, int]
    utilization: dict[str, float]
    critical_path: dict[str, float]


def simulate(program: Program, banks: Mapping[str, Array] | None = None, words: Words | None = None) -> Run:
    """Run `program` (or its image with other run-time parameters, `words`) to the end.

    banks: off-chip memories by name, changed in place; None runs without data, for time alone. Raises `DeadlockError`
    or `ProgramError`.
    """
    image = program.image if words is None else words
    net = Network(
        program.overlay,
        packets=decode_image(image, program.overlay),
        preloaded=program.preloaded,
        banks=banks,
        data=banks is not None,
        record=True,
        where=program.where,
    )
    # Tile products are too small for BLAS threads to pay, and on a loaded machine they wait for each other.
    with threadpool_limits(1, user_api="blas"):
        busy = net.run()
    launch = program.overlay.rates.get("launch_us")
    latency = busy + (launch.seconds if launch else 0.0)
    moved = {
        name.removesuffix("_gbs"): int(net.amounts[name])
        for name, rate in program.overlay.rates.items()
        if rate.unit == "GB/s"
    }
    moved["instructions"] = 4 * len(image)
    assert net.firings is not None
    return Run(
        latency_s=latency,
        bytes=moved,
        utilization={u.name: net.progress[u.name].busy / latency if latency else 0.0 for u in program.overlay.units},
        critical_path=critical_path(net, net.firings, latency),
    )


def critical_path(net: Network, firings: Firings, latency: float) -> dict[str, float]:
    """Share of `latency` per cause, walking back from the last step through whatever it waited for.

    A step that streams a token through ends when its source does; its own duration then does not count.
    """
    causes: dict[str, float] = {}

    def add(cause: str, seconds: float) -> None:
        if seconds > 0:
            causes[cause] = causes.get(cause, 0.0) + seconds

    rates = net.overlay.rates
    if len(firings):
        at = int(np.argmax(np.frombuffer(firings.end, dtype=np.float64)))
        from_end = True
        while at >= 0:
            if from_end and firings.bound[at] >= 0:
                at = firings.bound[at]
                continue
            if from_end:
                name = net.rate_names[firings.rate[at]]
                add(rates[name].cause if name in rates else "control", firings.end[at] - firings.start[at])
            at, from_end = firings.before[at], bool(firings.before_end[at])
    launch = rates.get("launch_us")
    if launch:
        add(launch.cause, launch.seconds)
    return {c: s / latency for c, s in sorted(causes.items(), key=lambda item: -item[1])} if latency else {}
