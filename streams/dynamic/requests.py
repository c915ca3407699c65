"""What the kernel of an operator asks of the engine that runs it.

A kernel is a generator: it yields requests, and an engine answers each. One definition serves a run for results and one
for times; an engine needs to know these requests and nothing of operators.

| request | the engine | answer |
| --- | --- | --- |
| `TakeToken(port)` | waits for a token at an input, and takes it | the token |
| `Peek(port)` | waits for a token at an input, and leaves it there | the token |
| `EarliestInput(ports)` | waits for the token that comes first at one of these inputs (ties: lowest port) | the port |
| `DeliverToken(ports, token)` | waits for room at all consumers of these outputs, then delivers | None |
| `Busy(work)` | keeps the operator busy for the time of an element (latency = initiation interval) | None |
| `MoveTile(...)` | moves a tile between the chip and the memory off the chip | None |
| `Keep(bytes)` | notes what the operator holds on chip from now on; takes no time | None |

Stops and D take no time of their own: a kernel is never `Busy` for them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from .tokens import Token


@dataclass(frozen=True, slots=True)
class TakeToken:
    """Take the next token of an input. port: the number of the input, from 0."""

    port: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at the next token of an input. port: the number of the input, from 0."""

    port: int


@dataclass(frozen=True, slots=True)
class EarliestInput:
    """Choose the input whose next token came first. ports: the numbers of the inputs, from 0."""

    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeliverToken:
    """Deliver a token to all consumers of some outputs at once. ports: the numbers of the outputs, from 0."""

    ports: tuple[int, ...]
    token: Token


@dataclass(frozen=True, slots=True)
class ElementWork:
    """The work of an operator for one element (STeP v1, section 4.2; v2, section 4.3).

    bytes_in: bytes of each input that comes through a memory unit; FIFOs between units take no time. flops: operations.
    bytes_out: bytes of the output, if it goes through a memory unit. compute: operations per cycle of this operator;
    None for no bound. least: cycles that the work takes at least."""

    bytes_in: tuple[int, ...] = ()
    flops: int = 0
    bytes_out: int = 0
    compute: int | None = None
    least: int = 1

    def cycles(self, on_chip: int) -> int:
        """Return the cycles of this work: the slowest of reading, computing and writing, and at least `least`. on_chip:
        bytes per cycle of a memory unit. The times of several operands from memory add up."""
        reading = sum(-(-size // on_chip) for size in self.bytes_in)
        computing = -(-self.flops // self.compute) if self.compute else 0
        return max(self.least, reading, computing, -(-self.bytes_out // on_chip))


CYCLE = ElementWork()
"""Work of an element that takes one cycle."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Let the operator be busy for the cycles of some work."""

    work: ElementWork


@dataclass(frozen=True, slots=True)
class MoveTile:
    """Move a tile between the chip and the memory off the chip. read: True from that memory to the chip, False to it.
    address: of the first byte of the tile. rows: of the tile. row_bytes: bytes of a row, which lie together. stride:
    bytes from the beginning of a row to that of the next."""

    read: bool
    address: int
    rows: int
    row_bytes: int
    stride: int

    @property
    def bytes(self) -> int:
        """Bytes that move: those of all rows of the tile."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class Keep:
    """Tell the run that the operator holds this many bytes on chip from now on, as the accounting "paper" of `Rules`
    counts them."""

    bytes: int


Request: TypeAlias = TakeToken | Peek | EarliestInput | DeliverToken | Busy | MoveTile | Keep
Kernel: TypeAlias = Generator[Request, Any, None]
