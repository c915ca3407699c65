"""Instantiates the units and streams of a machine; `ProcessNetwork` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base.errors import ProgramError
from .description import StreamNetwork
from .steps import Channel


class Wiring:
    """The units of a machine as objects, and its streams as channels.

    data: kernels compute data; otherwise a run decides only time. banks: off-chip memories by name (float32 vectors);
    ignored unless `data`.
    """

    channel_type: type[Channel] = Channel

    def __init__(self, machine: StreamNetwork, *, banks: Mapping[str, Any] | None = None, data: bool = False) -> None:
        self.machine = machine
        self.data = data
        self.banks: Mapping[str, Any] = (banks or {}) if data else {}
        self._channels: dict[str, Channel] = {}
        for s in machine.streams:
            self.add_channel(s.name, s.depth, s.src, s.dst)
        self.units = {u.name: u.behaviour(u, self) for u in machine.units}

    def add_channel(self, name: str, capacity: int, source: str, sink: str, *, control: bool = False) -> Channel:
        """Add a FIFO between two processes. capacity: in words. control: it carries instructions, not data."""
        channel = self.channel_type(name, capacity, source, sink, control)
        channel.number = len(self._channels)
        self._channels[name] = channel
        return channel

    def channel(self, src: str, dst: str, label: str = "") -> Channel:
        """Return the stream from one unit to another. Raises `ProgramError` if there is none."""
        return self.named_channel(f"{src}->{dst}" + (f".{label}" if label else ""))

    def named_channel(self, name: str) -> Channel:
        """Return the stream or FIFO of this name. Raises `ProgramError` if there is none."""
        try:
            return self._channels[name]
        except KeyError:
            raise ProgramError(f"overlay {self.machine.name} has no stream {name}") from None

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The streams of the machine, then the FIFOs that the workload added; index i is the channel of number i."""
        return tuple(self._channels.values())
