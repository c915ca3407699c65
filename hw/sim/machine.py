"""The simulator: run a program's decoded image on an overlay's network, with data or for time alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from ...isa.compiled import Timing, execute
from ...isa.datapath import Overlay
from ...isa.network import Chain, Network, seconds_by_rate
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
    packets = decode_image(image, program.overlay)
    if banks is None:
        done = execute(program.overlay, packets=packets, preloaded=program.preloaded, where=program.where, record=True)
    else:
        net = Network(
            program.overlay,
            packets=packets,
            preloaded=program.preloaded,
            banks=banks,
            data=True,
            record=True,
            where=program.where,
        )
        # Tile products are too small for BLAS threads to pay, and on a loaded machine they wait for each other.
        with threadpool_limits(1, user_api="blas"):
            done = Timing.of(net, net.run())
    return summary(done, program.overlay, 4 * len(image))


def summary(done: Timing, overlay: Overlay, instructions: int) -> Run:
    """What a recorded run of a program with an image of `instructions` bytes took."""
    launch = overlay.rates.get("launch_us")
    latency = done.latency + (launch.seconds if launch else 0.0)
    buses = [name for name, rate in overlay.rates.items() if rate.unit == "GB/s"]
    moved = {name.removesuffix("_gbs"): int(done.amounts[name]) for name in buses}
    moved["instructions"] = instructions
    return Run(
        latency_s=latency,
        bytes=moved,
        utilization={u.name: done.busy[u.name] / latency if latency else 0.0 for u in overlay.units},
        critical_path=critical_path(done.chain, overlay, latency),
    )


def critical_path(chain: Chain, overlay: Overlay, latency: float) -> dict[str, float]:
    """Share of `latency` per cause, over the steps that decided it."""
    causes: dict[str, float] = {}

    def add(cause: str, seconds: float) -> None:
        if seconds > 0:
            causes[cause] = causes.get(cause, 0.0) + seconds

    of_rate = [overlay.rates[name].cause if name in overlay.rates else "control" for name in seconds_by_rate(overlay)]
    for rate, seconds in zip(chain.rate, chain.seconds, strict=True):
        add(of_rate[rate], seconds)
    launch = overlay.rates.get("launch_us")
    if launch:
        add(launch.cause, launch.seconds)
    return {c: s / latency for c, s in sorted(causes.items(), key=lambda item: -item[1])} if latency else {}
