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
    """The ports of tasks that load and store.

    device: whose channels they are. shares: channels of tensors by their names, and bytes a cycle of ports by the names
    of their tasks. A tensor that has no channels counts as alone in the first one, and a port without bytes has those
    that the knobs say. waits: a load waits for its first word, and a store for the response to its last one; False for
    models of which the ports are sped up.
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
        """Return what a run of bytes that follow each other costs on each channel of its tensor, in bytes that the
        channel could move meanwhile: each run begins a burst. tensor: its name. size: bytes of the run, on all channels
        together. apart: runs begin at multiples of so many bytes, from a begin that is a multiple of a word."""
        chosen = self.channels(tensor)
        n = len(chosen)
        return max(burst_bytes(self.device.channels[k], size // n, apart // n) for k in chosen)

    def share(self, task: str, tensor: str, port: int) -> int:
        """Return the bytes a cycle of a task on each channel of its tensor, rounded up. task, tensor: names. port: the
        bytes a cycle that the knobs say, on all channels of the tensor together."""
        return -(-self.shares.bytes.get(task, port) // len(self.channels(tensor)))


def float_add_of(ports: ChannelPorts | None) -> int:
    """Return the cycles of an addition of floats on the device of a program; 1 for no device (None)."""
    return 1 if ports is None else ports.device.float_add


def pieces(token_bytes: int) -> int:
    """Return the words (of `PORT_BYTES`) of a token that lies in one piece; 1 for a token of no whole words.
    token_bytes: its size. Its tensor can lie in any number of channels that divides this one, so that each token begins
    in the first channel."""
    return token_bytes // PORT_BYTES if token_bytes % PORT_BYTES == 0 else 1


def mover(made: Streamed, task: str) -> str:
    """Return the name of the operator for which a task loads, or of the task itself if it stores."""
    return made.written.loads.get(task, task)


def port_shares(
    made: Streamed, device: StreamDevice, wanted: Mapping[str, float], most: int
) -> Iterator[ChannelShares]:
    """Yield ways to share the channels of a device, those with fewer ports first.

    made: the program whose tensors move. wanted: bytes a cycle of loads and stores, by their `mover`; others get what
    the knobs say. most: of any of these. All tensors get channels, also
    those that kernels read themselves. Raises as `placing.channels.shares` does.
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
    """Return, by the name of each load and store, the part of the bytes a cycle of its `mover` that it has: 1, but
    scales and zero points of a quantised weight come beside it, and are fewer bytes."""
    written, operators = made.written, {x.name: x for x in made.plans}
    parts = dict.fromkeys(written.moved, 1.0)
    for task, name in written.loads.items():
        of = [written.moved[other].cost for other, operator in written.loads.items() if operator == name]
        x = operators[name]
        is_quantised = x.op == "linear" and x.operand("weight_scale") is not None
        parts[task] = written.moved[task].cost / max(of) if is_quantised else 1.0
    return parts


def widths(made: Streamed) -> dict[str, int]:
    """Return, by the tensor's name, how many times as wide as `STREAM_BITS` the words of its narrowest stream are,
    rounded down, and at least 1. A port has as many times the bytes a cycle that the knobs say."""
    found: dict[str, int] = {}
    for moved in made.written.moved.values():
        found[moved.tensor] = min(found.get(moved.tensor, WIDE_BITS), max(1, moved.word_bits // STREAM_BITS))
    return found


def widest_ports(made: Streamed, device: StreamDevice) -> dict[str, int]:
    """Return, by the `mover` of loads and stores, the most bytes a cycle that they can have, as their tensors lie off
    the chip."""
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
