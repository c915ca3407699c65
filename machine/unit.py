"""The units and streams of a machine as objects (`Wiring`), and the base class of functional units: state, access to
streams and memory, and the kernel. `ProcessNetwork` runs them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ..base.errors import ProgramError
from .description import StreamNetwork, UnitSpec
from .steps import Channel, Steps


class Wiring:
    """The units of a machine as objects, and its streams as channels.

    data: kernels compute data; otherwise a run gives times only. banks: off-chip memories by name (float32 vectors);
    ignored unless `data`. channel_type: the class of the channels. units: by name.
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
        """Add a FIFO between the processes `source` and `sink`, numbered behind those there are. capacity: in words.
        control: it carries instructions, not data.
        """
        channel = self.channel_type(name, capacity, source, sink, control)
        channel.number = len(self._channels)
        self._channels[name] = channel
        return channel

    def channel(self, src: str, dst: str, label: str = "") -> Channel:
        """Return the stream from unit `src` to unit `dst`. label: of the stream, where two have the same units. Raises
        `ProgramError` if there is none.
        """
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


Halves = tuple[Steps | None, Steps | None]
"""The steps of a uOP in two parts: what fills a slot of a memory, and what drains one. None: it has no such part."""


def draining(unit: str) -> str:
    """Return the name of the process that drains the slots of a unit whose halves are apart."""
    return f"{unit} drain"


class Unit:
    """A functional unit: its kernel, and the state that is kept between kernels. Subclass it to define a unit.

    spec: its description, of which it keeps name and index. net: the units and streams that it is one of. memory: the
    off-chip bank that its `UnitSpec` names, a float32 vector; None in a run without data. read_only: no unit writes
    that bank during a run. ahead: uOPs by which filling may be ahead of draining, in a unit whose halves are apart: two
    processes then execute the `halves` of its uOPs. With 0 one process executes the `kernel`.
    """

    read_only = False
    ahead = 0

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        self.name = spec.name
        self.index = spec.index
        self.memory: Any = net.banks.get(str(spec.bank))
        self._net = net

    def source(self, peer: str, label: str = "") -> Channel:
        """Return the stream from `peer` to this unit. label: as for `Wiring.channel`. Raises `ProgramError` if there is
        none.
        """
        return self._net.channel(peer, self.name, label)

    def sink(self, peer: str, label: str = "") -> Channel:
        """Return the stream from this unit to `peer`. label: as for `Wiring.channel`. Raises `ProgramError` if there is
        none.
        """
        return self._net.channel(self.name, peer, label)

    def read(self, at: int, size: int) -> Any:
        """Return `size` float32 elements of the memory from element `at` on; the caller must not change them.

        Call it in a step's `do` only: without data there is no memory. The result is a copy unless `read_only`, because
        the memory may change before the receiver uses it. Raises `ProgramError` if the range ends beyond the memory.
        """
        piece = self.memory[at : at + size]
        if len(piece) != size:
            raise ProgramError(f"{self.name} reads {size} elements at {at}, beyond its {len(self.memory)}")
        return piece if self.read_only else piece.copy()

    def write(self, at: int, piece: Any) -> None:
        """Write the float32 elements `piece` to the memory from element `at` on. Call it in a step's `do` only.

        Raises `ProgramError` if the range ends beyond the memory.
        """
        target = self.memory[at : at + len(piece)]
        if len(target) != len(piece):
            raise ProgramError(f"{self.name} writes {len(piece)} elements at {at}, beyond its {len(self.memory)}")
        target[:] = piece

    def kernel(self, uop: Any) -> Steps:
        """Execute one uOP: a generator of `Step`, `Par` and `AnyOf`. It is the only definition of what the unit does. A
        subclass defines it, and may raise `ProgramError` for a uOP that cannot be executed; this class raises
        `NotImplementedError`.
        """
        raise NotImplementedError

    def halves(self, uop: Any) -> Halves | None:
        """The steps of a uOP in two parts, for a unit whose halves are apart. None: the uOP touches no slot, and its
        `kernel` is executed between those of the uOPs before and behind it (a configuration).

        It is called when the unit takes the uOP; the draining half may begin after later uOPs have been taken, and
        must not depend on state that these change. The two halves must not use the same stream.
        """
        return None

    def effect_key(self, uop: Any) -> Hashable | None:
        """Return a key such that uOPs of this unit with equal keys take the same steps; None if there is no such key.

        Steps are compared without data and addresses. `traces` steps the kernel once per key, and once per uOP
        where the key is None. None is always correct. It must be returned for a uOP that changes state on which the
        steps of later uOPs depend; the keys of those later uOPs must contain that state.
        """
        return None

    @classmethod
    def is_keyed(cls) -> bool:
        """Whether `effect_key` is valid for this class's kernel.

        It is not if a subclass overrides `kernel` or `halves` and inherits the `effect_key` of the class above.
        """
        owner = next(c for c in cls.__mro__ if not {"kernel", "halves"}.isdisjoint(vars(c)))
        return any("effect_key" in vars(c) for c in cls.__mro__ if issubclass(c, owner))
