"""The ports of a stream program on the memory channels of a device: what they move costs, and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...streams.placing.channels import ChannelShares, MovedTensor, burst_bytes, shares, widest
from ...streams.placing.devices import PORT_BYTES, StreamDevice
from ...streams.words import STREAM_BITS, WIDE_BITS

if TYPE_CHECKING:
    from .block import Streamed


NONE = ChannelShares({}, {})


@dataclass(frozen=True)
class ChannelPorts:
    """How tasks that load and store use the memory channels of a device.

    device: whose channels they are. shares: the channels of each tensor, by the tensor's name, and the bytes a cycle of
    each port, by the name of its task. A tensor without an entry lies in the first channel; a port without an entry
    moves as many bytes as the knobs say. waits: whether a load waits for its first word, and a store for the response
    to its last one; False for models in which ports are faster than on the device.
    """

    device: StreamDevice
    shares: ChannelShares = NONE
    waits: bool = True

    def channels(self, tensor: str) -> tuple[int, ...]:
        """Return the channels of a tensor, given its name, as indices of the device's channels."""
        return self.shares.channels.get(tensor, (0,))

    def latency(self, tensor: str) -> int:
        """Return the cycles from a request for a tensor, given its name, to the first word, and from the last word to
        its response; 0 if ports do not wait."""
        return max(self.device.channels[k].latency for k in self.channels(tensor)) if self.waits else 0

    def cost(self, tensor: str, size: int, apart: int) -> int:
        """Return what it costs each channel of a tensor to move bytes that follow each other in memory, as the bytes
        that the channel could move in that time: they begin a burst. tensor: its name. size: number of bytes, on all
        channels together. apart: the bytes begin at an address that is a multiple of this, counted from a begin of a
        word."""
        chosen = self.channels(tensor)
        n = len(chosen)
        return max(burst_bytes(self.device.channels[k], size // n, apart // n) for k in chosen)

    def share(self, task: str, tensor: str, port: int) -> int:
        """Return how many bytes a task moves in a cycle on each channel of its tensor, rounded up. task, tensor: their
        names. port: the bytes a cycle that the knobs say, on all channels of the tensor together."""
        return -(-self.shares.bytes.get(task, port) // len(self.channels(tensor)))


def float_add_of(ports: ChannelPorts | None) -> int:
    """Return the cycles of an addition of floats on the device of a program; 1 for no device (None)."""
    return 1 if ports is None else ports.device.float_add


def pieces(token_bytes: int) -> int:
    """Return the number that the number of channels of a tensor must divide, so that each of its tokens begins in the
    first channel: the words (of `PORT_BYTES`) of a token. It is 1 if a token is not made of whole words. token_bytes:
    bytes of a token, which lie one after the other."""
    return token_bytes // PORT_BYTES if token_bytes % PORT_BYTES == 0 else 1


def mover(made: Streamed, task: str) -> str:
    """Return the name by which the knob `port` of a task is set: the operator for which the task loads, or the task
    itself if it stores. task: name of the task."""
    return made.written.loads.get(task, task)


def port_shares(
    made: Streamed, device: StreamDevice, wanted: Mapping[str, float], most: int
) -> Iterator[ChannelShares]:
    """Yield ways to share the channels of a device among the tensors of a program, those with fewer ports first.

    made: the program. wanted: the bytes a cycle that a load or store should have, by its `mover`; others get what the
    knobs say. most: the largest number of bytes a cycle of any port. All tensors get channels, also those that kernels
    read themselves. Raises as `placing.channels.shares` does.
    """
    written = made.written
    ports: dict[str, dict[str, float]] = {name: {} for name in written.shapes}
    given, parts, wider = set(), load_parts(made), widths(made)
    for task, moved in written.moved.items():
        name = mover(made, task)
        if name in wanted:
            ports[moved.tensor][task] = wanted[name] * parts[task]
        else:
            ports[moved.tensor][task] = made.knobs.at(name).port
            given.add(task)
    for name, of in ports.items():  # those of a tensor beyond what all its channels move take nothing from others
        beyond = sum(of.values()) / widest(device, written.pieces(name))
        of |= {task: bytes_ / beyond for task, bytes_ in of.items() if task not in given and beyond > 1}
    tensors = {
        name: MovedTensor(written.pieces(name), of, frozenset(given & of.keys()), wider.get(name, 1))
        for name, of in ports.items()
    }
    return shares(tensors, device, most)


def load_parts(made: Streamed) -> dict[str, float]:
    """Return, by the name of each task that loads or stores, which part of the bytes a cycle of its `mover` it gets: 1,
    but less for the scales and zero points of a quantised weight, which are fewer bytes and come at the same time as
    the weight."""
    written, operators = made.written, {x.name: x for x in made.plans}
    parts = dict.fromkeys(written.moved, 1.0)
    for task, name in written.loads.items():
        of = [written.moved[other].cost for other, operator in written.loads.items() if operator == name]
        x = operators[name]
        is_quantised = x.op == "linear" and x.operand("weight_scale") is not None
        parts[task] = written.moved[task].cost / max(of) if is_quantised else 1.0
    return parts


def widths(made: Streamed) -> dict[str, int]:
    """Return, by the name of each tensor, how many times as wide as `STREAM_BITS` the words of its narrowest stream
    are, rounded down, and at least 1. Its port moves as many times the bytes a cycle that the knobs say."""
    found: dict[str, int] = {}
    for moved in made.written.moved.values():
        found[moved.tensor] = min(found.get(moved.tensor, WIDE_BITS), max(1, moved.word_bits // STREAM_BITS))
    return found


def widest_ports(made: Streamed, device: StreamDevice) -> dict[str, int]:
    """Return, by the `mover` of loads and stores, the most bytes a cycle that each can have, if its tensor lies in as
    many channels as it can. Tasks that move the same tensor leave each other at least a byte."""
    written = made.written
    sharing: dict[str, int] = {}
    for moved in written.moved.values():
        sharing[moved.tensor] = sharing.get(moved.tensor, 0) + 1
    most: dict[str, int] = {}
    parts = load_parts(made)
    for task, moved in written.moved.items():
        if parts[task] < 1:
            continue
        found, name = widest(device, written.pieces(moved.tensor)) - sharing[moved.tensor] + 1, mover(made, task)
        most[name] = min(max(1, found), most.get(name, found))
    return most
