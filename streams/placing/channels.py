"""Which channels of the memory off the chip each tensor lies in, and the share of a channel that each port gets.

A port is what a load or a store moves its tensor with; it has a part on each channel of the tensor. Shares are static:
the ports of a channel have together at most the bytes in a clock cycle that it moves, so that ports which ask for no
more never wait for each other, in whatever order the channel serves them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from math import ceil

from ...base.errors import ResourceError
from .devices import BURST_BYTES, PORT_BYTES, MemoryChannel, StreamDevice

LESS = 0.97
"""Ports that do not fit get this share of what they want, and again, until they do."""

CROWDS = (1, 2)
"""Tensors that have room on a channel beside each other: with more of them each lies in more channels, has more ports,
and leaves smaller gaps. An HBM channel has one AXI port of its own, so what shares it must be joined in front of it."""


SPREAD, SMALL = 4, 8
"""A tensor that one channel has room for is spread over `SPREAD` channels, unless its shares then have fewer than
`SMALL` bytes a cycle. On one channel it would slow down large tensors, which lie in many channels and wait for each."""


class ChannelError(ResourceError):
    """The memory channels of a device cannot move the bytes that tensors off the chip need. The message has the
    numbers."""


@dataclass(frozen=True)
class MovedTensor:
    """A tensor off the chip, for the choice of its memory channels. pieces: the tensor can be cut over as many channels
    as divide this number. ports: bytes a clock cycle that each of its ports wants over all channels together, by the
    name of the port; above 0. given: the ports that must get all that they want. wider: by what factor the limit of
    bytes a cycle is higher for its ports than for those of other tensors."""

    pieces: int
    ports: Mapping[str, float]
    given: frozenset[str] = frozenset()
    wider: int = 1


@dataclass(frozen=True)
class ChannelShares:
    """How tensors share memory channels. channels: the numbers of the channels of each tensor, in order. bytes: for
    each port, the bytes a clock cycle over all channels of its tensor together."""

    channels: Mapping[str, tuple[int, ...]]
    bytes: Mapping[str, int]

    def share(self, tensor: str, port: str) -> int:
        """Return the bytes a clock cycle of a port on each channel of its tensor, rounded up. tensor, port: their
        names."""
        return -(-self.bytes[port] // len(self.channels[tensor]))


def widest(device: StreamDevice, pieces: int, ports: int = 1) -> int:
    """Return the most bytes a clock cycle that each of `ports` equal ports of a tensor can have over all channels
    together. pieces: as for `MovedTensor`."""
    return _most(pieces, len(device.channels)) * max(1, min(PORT_BYTES, _least_room(device) // ports))


def burst_bytes(channel: MemoryChannel, size: int, apart: int) -> int:
    """Return the time of an access to contiguous bytes, counted in bytes that the channel could move in it: the bytes
    of all memory words that the access may touch, and for each burst those that could be moved while it begins. size:
    bytes of the access. apart: bytes of which the address is known to be a multiple."""
    words = _touched(size, apart, PORT_BYTES) * PORT_BYTES
    return words + _touched(size, apart, BURST_BYTES) * ceil(channel.begin_ns * channel.gbs)


def shares(tensors: Mapping[str, MovedTensor], device: StreamDevice, most: int) -> Iterator[ChannelShares]:
    """Yield ways to share the memory channels of a device, at most one for each number in `CROWDS`. In each, the ports
    that are not `given` first get the same share of what they want, as large as possible, and then the bytes that are
    left.

    tensors: by name. most: the limit of bytes a clock cycle of such a port, times `MovedTensor.wider`. Raises
    `ChannelError` if there is no way."""
    found: list[ChannelShares] = []
    for crowd in CROWDS:
        made = _shares(tensors, device, max(1, _least_room(device) // crowd), most)
        if made is not None and made not in found:
            found.append(made)
            yield made
    if not found:
        least = sum(int(t.ports[p]) if p in t.given else 1 for t in tensors.values() for p in t.ports)
        ports = sum(len(t.ports) for t in tensors.values())
        rooms = [device.bytes_a_cycle(channel.gbs) for channel in device.channels]
        raise ChannelError(
            f"{device.name}: {ports} loads and stores need at least {least:,} bytes a cycle, and its {len(rooms)} "
            f"memory channels move {sum(map(int, rooms)):,}, none more than {max(rooms):.1f}, and a port no more than "
            f"{PORT_BYTES} on each; choose a larger device, fewer bytes for ports that are given, or cut the block"
        )


def _least_room(device: StreamDevice) -> int:
    """Whole bytes a cycle of the slowest channel."""
    return int(min(device.bytes_a_cycle(channel.gbs) for channel in device.channels))


def _touched(size: int, apart: int, unit: int) -> int:
    """The most units that a run of bytes touches. apart: it begins at a multiple of this."""
    return (unit - min(unit, _power_of_two(apart)) + size - 1) // unit + 1


def _power_of_two(n: int) -> int:
    """The largest power of two that divides a number."""
    return n & -n


def _most(pieces: int, channels: int) -> int:
    """The most channels that a tensor can lie in."""
    return max(n for n in range(1, channels + 1) if pieces % n == 0)


def _shares(tensors: Mapping[str, MovedTensor], device: StreamDevice, limit: int, most: int) -> ChannelShares | None:
    """Shares of which those of a tensor are at most `limit` bytes on a channel, if its pieces allow it."""
    scale = 1.0
    while True:
        wanted = {
            port: int(bytes_) if port in tensor.given else max(1, int(scale * bytes_))
            for tensor in tensors.values()
            for port, bytes_ in tensor.ports.items()
        }
        found = _placed(tensors, wanted, device, limit, most)
        if found is not None:
            return found
        if all(wanted[p] == 1 or p in t.given for t in tensors.values() for p in t.ports):
            return None
        scale *= LESS


def _placed(
    tensors: Mapping[str, MovedTensor], wanted: Mapping[str, int], device: StreamDevice, limit: int, most: int
) -> ChannelShares | None:
    """The tensor with the largest shares goes first, to the channels with most room left. What is left at the end goes
    to ports that are not given, a byte a cycle each time to the one that has least of what it wants."""
    room = [device.bytes_a_cycle(channel.gbs) for channel in device.channels]
    cut: list[tuple[int, int, str]] = []
    for name, tensor in tensors.items():
        ports = [wanted[port] for port in tensor.ports]
        counts = [n for n in range(1, len(room) + 1) if tensor.pieces % n == 0]
        small = min(limit, max(SMALL, -(-sum(ports) // SPREAD)))
        count = next((n for n in counts if _on_each(ports, n) <= small), counts[-1])
        if max((-(-bytes_ // count) for bytes_ in ports), default=0) > PORT_BYTES:
            return None
        cut.append((_on_each(ports, count), count, name))
    channels: dict[str, tuple[int, ...]] = {}
    for each, count, name in sorted(cut, key=lambda item: item[:2], reverse=True):
        chosen = sorted(range(len(room)), key=lambda k: (-room[k], k))[:count]
        for channel in chosen:
            room[channel] -= each
        channels[name] = tuple(sorted(chosen))
    if min(room) < 0:
        return None
    shares_ = ChannelShares({name: channels[name] for name in tensors}, wanted)
    return _grown(tensors, shares_, room, most)


def _grown(tensors: Mapping[str, MovedTensor], found: ChannelShares, room: list[float], most: int) -> ChannelShares:
    """Give what is left of each channel to ports that are not given: a byte of each channel of its tensor to the port
    that has least of what it wants."""
    bytes_ = dict(found.bytes)
    heap = [
        (bytes_[port] / wanted, port, name)
        for name, tensor in tensors.items()
        for port, wanted in tensor.ports.items()
        if port not in tensor.given
    ]
    heapify(heap)
    while heap:
        _, port, name = heap[0]
        channels = found.channels[name]
        share = -(-bytes_[port] // len(channels)) + 1
        beyond = share > PORT_BYTES or share * len(channels) > most * tensors[name].wider
        if beyond or any(room[k] < 1 for k in channels):
            heappop(heap)
            continue
        for k in channels:
            room[k] -= 1
        bytes_[port] = share * len(channels)
        heapreplace(heap, (bytes_[port] / tensors[name].ports[port], port, name))
    return ChannelShares(found.channels, bytes_)


def _on_each(ports: Sequence[int], count: int) -> int:
    """Bytes a cycle of all ports of a tensor on each of its channels."""
    return sum(-(-bytes_ // count) for bytes_ in ports)
