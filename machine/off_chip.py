"""A memory off the chip that loaders and stores of a `DynamicNetwork` share, such as HBM (STeP, v2 section 4.3).

Each client has a stream of requests to it and one of replies back. A transfer is a number of accesses, all of equal
size. All transfers that are under way share the accesses of a cycle equally, and none gets more than `per_client` of
them (max-min fairness): what single accesses in turn come to, without an event for each.
"""

from __future__ import annotations

from collections.abc import Generator
from heapq import heappop, heappush
from math import ceil
from typing import Any

from ..base.errors import ProgramError
from .dynamic import DynamicNetwork, Ports
from .steps import AnyOf, Step, Steps

END = None
"""What a client requests when it needs no more."""

CLOSE = 1e-6
"""Accesses that are taken for none: sums of floats are that exact for 10**9 of them."""

GRAIN = 1024
"""A transfer ends in a multiple of 1 / GRAIN cycles, so that sums of times are exact and equal times are equal."""


class Sharing:
    """Transfers that share a memory.

    channels, per_client: accesses a cycle, of all transfers and of each. Times are in cycles. All transfers go equally
    fast. `_each` counts the accesses, up to cycle `now`, of a transfer that began at the start and never ends: a
    transfer of n accesses is done when `_each` has grown by n. Raises `ProgramError` unless `per_client` is from 1 to
    `channels`."""

    def __init__(self, channels: int, per_client: int) -> None:
        if not 1 <= per_client <= channels:
            raise ProgramError(f"{per_client} accesses a cycle of each client, and {channels} of all")
        self.channels = channels
        self.per_client = per_client
        self.now = 0.0
        self._each = 0.0
        self._under_way: list[tuple[float, int]] = []

    @property
    def _rate(self) -> float:
        return min(self.per_client, self.channels / len(self._under_way))

    @property
    def next_end(self) -> float | None:
        """The cycle in which the next transfer is done if none begins before; None if none is under way."""
        if not self._under_way:
            return None
        return ceil((self.now + (self._under_way[0][0] - self._each) / self._rate - CLOSE) * GRAIN) / GRAIN

    def begin(self, now: float, client: int, accesses: int) -> None:
        """Begin a transfer of `accesses` accesses in cycle `now`, which must not be after `next_end`. client: its
        number, which `end` returns.
        """
        if self._under_way:
            self._each += (now - self.now) * self._rate
        self.now = now
        heappush(self._under_way, (self._each + accesses, client))

    def end(self, now: float) -> list[int]:
        """End the transfers that are done in cycle `now`, which must be `next_end`. Returns the numbers of their
        clients in rising order. Raises `IndexError` if no transfer is under way.
        """
        self.now, self._each = now, self._under_way[0][0]
        done = []
        while self._under_way and self._under_way[0][0] <= self._each + CLOSE:
            done.append(heappop(self._under_way)[1])
        if not self._under_way:
            self._each = 0.0
        return sorted(done)


class OffChipMemory:
    """A unit of a network that stands for a memory off the chip. It is added to `network` under `name`.

    access: bytes of one access; a part of it takes a whole one. channels, per_client: accesses a cycle, of all clients
    and of each. latency: cycles from the last access to its arrival. The defaults are 64 B accesses, 1024 B a cycle
    shared, 64 B a cycle of each client. Transfers are done in whole cycles. Raises `ProgramError` for accesses of less
    than 1 byte, for a latency below 0, for a name that a unit of the network has, and as `Sharing`.
    """

    def __init__(
        self,
        network: DynamicNetwork,
        name: str = "HBM",
        *,
        access: int = 64,
        channels: int = 16,
        per_client: int = 1,
        latency: int = 0,
    ) -> None:
        if access < 1 or latency < 0:
            raise ProgramError(f"{name}: accesses of {access} bytes, {latency} cycles of latency")
        self.name = name
        self.access = access
        self.latency = latency
        self.moved = 0
        self.requests: list[str] = []
        self._limits = channels, per_client
        self._network = network
        Sharing(*self._limits)
        network.unit(name, self._serve)

    def client(self, unit: str) -> tuple[int, int]:
        """Connect a unit of the network to the memory. Returns the number of the unit's output for requests, and of its
        input for replies. The unit must yield `end` when it needs no more.

        Raises `ProgramError` if the network has no such unit.
        """
        number = len(self.requests)
        asks = self._network.connect(unit, self.name, 1, port=number)
        answers = self._network.connect(self.name, unit, 1, output=number)
        self.requests.append(asks.name)
        return int(asks.label.split(".")[0]), int(answers.label.split(".")[1])

    def accesses(self, rows: int, row_bytes: int) -> int:
        """Return the number of accesses of a tile of `rows` rows of `row_bytes` bytes that do not lie together: each
        row takes whole accesses.
        """
        return rows * -(-row_bytes // self.access)

    def transfer(self, ports: Ports, client: tuple[int, int], accesses: int) -> Generator[Step | AnyOf, Any, None]:
        """Return the steps of a unit that moves `accesses` accesses and waits for all of them: `yield from
        memory.transfer(...)`. ports: those of the unit. client: what `client` returned for it.
        """
        yield ports.put(accesses, client[0])
        (ready,) = yield ports.get(client[1])
        yield ports.busy(ready - ports.now)

    def end(self, ports: Ports, client: tuple[int, int]) -> Step:
        """Return the step with which a unit says that it needs no more. ports, client: as for `transfer`."""
        return ports.put(END, client[0])

    def _serve(self, ports: Ports) -> Steps:
        self.moved = 0
        sharing = Sharing(*self._limits)
        left = list(range(ports.inputs))
        while left:
            place = yield ports.any_of(*left, until=sharing.next_end)
            if place is None:
                now = sharing.next_end
                assert now is not None
                for client in sharing.end(now):
                    yield ports.put(ceil(now) + self.latency, client)
                continue
            (accesses,) = yield ports.get(left[place])
            if accesses is END:
                del left[place]
            else:
                self.moved += accesses * self.access
                sharing.begin(ports.now, left[place], accesses)
