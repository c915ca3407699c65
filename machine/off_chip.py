"""A memory off the chip that loaders and stores of a `DynamicNetwork` share, such as HBM (STeP, v2 section 4.3).

Each client has a stream of requests to it and one of replies back. A transfer is a number of accesses, all of equal
size; a client has at most `per_client` accesses a cycle, all together have `channels`. Accesses are served in the order
in which transfers came (ties: the client that was added first), and whatever that leaves free serves the next transfer.
A transfer is computed at once, not access by access.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from ..base.errors import ProgramError
from .dynamic import DynamicNetwork, Ports
from .steps import AnyOf, Step, Steps

END = None
"""What a client requests when it needs no more."""


class Calendar:
    """Accesses that are given away, by cycle. Cycles before the last transfer are forgotten."""

    def __init__(self, channels: int, per_client: int) -> None:
        if not 1 <= per_client <= channels:
            raise ProgramError(f"{per_client} accesses a cycle of each client, and {channels} of all")
        self.channels = channels
        self.per_client = per_client
        self._base = 0
        self._free = np.full(4096, channels, np.int64)

    def book(self, now: int, accesses: int) -> int:
        """Give a transfer the first accesses that are free from cycle `now` on, at most `per_client` in one cycle.
        Returns the cycle in which it has them all. now: not before that of earlier calls."""
        if accesses <= 0:
            return now
        self._forget(now)
        span = -(-accesses // self.per_client)
        while True:
            given = np.minimum(self._free[:span], self.per_client)
            total = np.cumsum(given)
            if total[-1] >= accesses:
                last = int(np.searchsorted(total, accesses))
                given[last] -= int(total[last]) - accesses
                self._free[: last + 1] -= given[: last + 1]
                return now + last + 1
            span += max(-(-(accesses - int(total[-1])) // self.per_client), span // 4)
            if span > len(self._free):
                self._free = np.r_[self._free, np.full(max(span, len(self._free)), self.channels, np.int64)]

    def _forget(self, now: int) -> None:
        past = now - self._base
        if past < 0:
            raise ValueError(f"a transfer in cycle {now} after one in {self._base}")
        size = len(self._free)
        if past >= size:
            self._free.fill(self.channels)
        elif past:
            self._free[:-past] = self._free[past:].copy()
            self._free[-past:] = self.channels
        self._base = now


class OffChipMemory:
    """A unit of a network that stands for a memory off the chip.

    access: bytes of one access; a part of it takes a whole one. channels, per_client: accesses a cycle, of all clients
    and of each. latency: cycles from the last access to its arrival. The defaults are 64 B accesses, 1024 B a cycle
    shared, 64 B a cycle of each client. Raises `ProgramError` for sizes below 1.
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
        self._limits = channels, per_client
        self._network = network
        self._clients: list[str] = []
        Calendar(*self._limits)
        network.unit(name, self._serve)

    def client(self, unit: str) -> tuple[int, int]:
        """Connect a unit; returns its output for requests and its input for replies. It must `end` at its end."""
        asks = self._network.connect(unit, self.name, 1, port=len(self._clients))
        answers = self._network.connect(self.name, unit, 1, output=len(self._clients))
        self._clients.append(unit)
        return int(asks.label.split(".")[0]), int(answers.label.split(".")[1])

    def accesses(self, rows: int, row_bytes: int) -> int:
        """Accesses of a tile whose rows do not lie together."""
        return rows * -(-row_bytes // self.access)

    def transfer(self, ports: Ports, client: tuple[int, int], accesses: int) -> Generator[Step | AnyOf, Any, None]:
        """Steps of a unit that moves a tile and waits for all of it: `yield from memory.transfer(...)`."""
        yield ports.put(accesses, client[0])
        (ready,) = yield ports.get(client[1])
        yield ports.busy(ready - ports.now)

    def end(self, ports: Ports, client: tuple[int, int]) -> Step:
        """The step of a unit that needs no more."""
        return ports.put(END, client[0])

    def _serve(self, ports: Ports) -> Steps:
        self.moved = 0
        calendar = Calendar(*self._limits)
        left = list(range(ports.inputs))
        while left:
            port = left[(yield ports.any_of(*left))]
            (accesses,) = yield ports.get(port)
            if accesses is END:
                left.remove(port)
                continue
            self.moved += accesses * self.access
            now = -int(-ports.now // 1)
            yield ports.put(calendar.book(now, accesses) + self.latency, port)
