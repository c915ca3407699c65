"""What all operators have: types, kernel, and what they take of memory, traffic and computation.

An operator is its parameters. Called with streams, it adds itself to their program and returns its streams:
`Accum(1, RetileRow)(rows)`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import sympy

from ....base.element_types import BITS
from ..errors import StepError, StreamFault, TokenError
from ..functions import InputRefused
from ..requests import Kernel, Peek, Request, TakeToken
from ..shapes import DataType, Dimension, Expression, StreamType, Symbols, TileType, as_on_chip, bytes_of
from ..tokens import Done, Groups, Stop, Tile, Token

if TYPE_CHECKING:
    from ..graph import Program, Stream
    from ..memory import TensorMemory

Accounting: TypeAlias = Literal["paper", "figures"]


@dataclass(frozen=True)
class Rules:
    """How memory on chip is counted (STeP v2, section 4.2, and what the published figures use).

    accounting: "paper" for the equations of the text; "figures" for those behind the published points: operators for
    memory off the chip hold one tile, not two; products hold nothing of their own; tiles on chip have the type
    `on_chip_dtype`, but those of loads the type that they have off the chip. on_chip_dtype: an element type; None for
    the type that the tiles have. Raises `StepError` for another accounting, and an unknown element type."""

    accounting: Accounting = "paper"
    on_chip_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.accounting not in ("paper", "figures"):
            raise StepError("Rules", f"accounting {self.accounting!r}; there are 'paper' and 'figures'")
        if self.on_chip_dtype is not None and self.on_chip_dtype not in BITS:
            raise StepError("Rules", f"{self.on_chip_dtype} is no type of elements; these are {', '.join(BITS)}")

    @property
    def tiles_off_chip(self) -> int:
        """The number of tiles that one operator for off-chip memory holds on chip: 2, or 1 with the accounting
        "figures".
        """
        return 2 if self.accounting == "paper" else 1

    def size(self, data: Any) -> Expression:
        """Return the bytes of one element on chip: |data| in the paper. data: the type of the element."""
        return bytes_of(as_on_chip(data, self.on_chip_dtype))


PAPER = Rules()
FIGURES = Rules("figures", "f32")


class InputReader:
    """Reads an input of a kernel: follows the groups of its stream, and makes the error for a token that cannot come.
    context: of the kernel. label: of the input, such as "input 0". rank: of the stream. The attribute `groups` follows
    the tokens so far."""

    __slots__ = ("_context", "groups", "label")

    def __init__(self, context: KernelContext, label: str, rank: int) -> None:
        self._context = context
        self.label = label
        self.groups = Groups(rank)

    def __call__(self, token: Token) -> Token:
        """Follow one more token, and return it. Raises `StreamFault` if the token cannot come here."""
        try:
            self.groups.see(token)
        except TokenError as error:
            raise self.fault(error.text) from error
        return token

    def fault(self, text: str) -> StreamFault:
        """Return an error for the caller to raise, at the position of the last token. text: what is wrong."""
        return self._context.fault(self.label, text, self.groups.position)

    def apply(self, function: Callable[..., Any], *of: Any) -> Any:
        """Return the result of a function. of: its arguments, elements. Raises `StreamFault`, at the last token, for
        any exception that the function raises, so that an error in a user's function is shown with the line of its
        operator."""
        try:
            return function(*of)
        except ValueError as error:
            raise self.fault(str(error)) from error
        except Exception as error:
            raise self.fault(f"{type(error).__name__}: {error}") from error

    def ended(self, level: int, stop: Stop) -> bool:
        """Return whether a stop ended a tensor of rank `level`. stop: the last token that was read."""
        return self.groups.lowest <= level <= stop.level

    @property
    def empty(self) -> bool:
        """Whether the innermost tensor that the last stop ended had no children."""
        return self.groups.was_empty


@dataclass(frozen=True)
class KernelContext:
    """What a kernel knows of its operator. node: the name of the operator in the program. where: the line of the user's
    code that added it. inputs, outputs: the types of its streams, by port. memory: the memory off the chip; each run
    has its own."""

    node: str
    where: str
    inputs: tuple[StreamType, ...]
    outputs: tuple[StreamType, ...]
    memory: TensorMemory

    def reader(self, port: int) -> InputReader:
        """Return a new reader of an input, before its first token. port: the number of the input, from 0."""
        return InputReader(self, f"input {port}", self.inputs[port].rank)

    def fault(self, stream: str, text: str, position: int | None) -> StreamFault:
        """Return an error of this node for the caller to raise. stream: such as "input 0". text: what is wrong.
        position: of the token, from 0; None if there is none.
        """
        return StreamFault(self.node, self.where, stream, text, position)


@dataclass(frozen=True)
class Limits:
    """What a program allows its operators. ragged_traffic: whether an operator for memory off the chip may have ragged
    dimensions below the two outermost ones (STeP v2 allows it; v1, section 4.1, does not)."""

    ragged_traffic: bool = False


class Operator(ABC):
    """An operator of STeP: its parameters, its types, its kernel, and its costs in a whole run, as expressions over the
    symbols of sizes."""

    @property
    def name(self) -> str:
        """The name of the operator in the paper."""
        return type(self).__name__

    @property
    def several(self) -> bool:
        """Whether a call returns a tuple of streams, even of one."""
        return False

    @abstractmethod
    def types(self, inputs: Sequence[StreamType], symbols: Symbols, limits: Limits) -> tuple[StreamType, ...]:
        """Return the types of the outputs, by port. inputs: the types of the input streams. symbols: makes symbols for
        new sizes. limits: what the program allows. Raises `InputRefused`, with the reason, for inputs that the operator
        does not take."""

    @abstractmethod
    def kernel(self, context: KernelContext) -> Kernel:
        """Return the generator that runs this operator once, to the end of its streams; it yields requests, such as
        `TakeToken`, `DeliverToken` and `Busy`. context: the types of its streams and its memory. The generator raises
        `StreamFault` for tokens that do not fit."""

    def traffic(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression:
        """Return the bytes that the operator moves between the chip and off-chip memory in the whole run. inputs,
        outputs: types of the streams.
        """
        return sympy.Integer(0)

    def memory(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType], rules: Rules) -> Expression:
        """Return the bytes that the operator holds on chip. rules: how they are counted. inputs, outputs: types of the
        streams.
        """
        return sympy.Integer(0)

    def flops(self, inputs: Sequence[StreamType], outputs: Sequence[StreamType]) -> Expression | None:
        """Return the operations that the operator computes in the whole run; None if only a run can count them. inputs,
        outputs: types of the streams.
        """
        return sympy.Integer(0)

    def __call__(self, *streams: Stream) -> Any:
        """Add this operator to the program of its inputs. Returns its stream, a tuple of several, or None for none.
        Raises `StepError` at the caller's line."""
        if not streams:
            raise StepError(self.name, "takes streams, and has none")
        return streams[0].program.add(self, *streams)


class SourceOperator(Operator):
    """An operator that may have no inputs. Without inputs it is added to the program of the `with` statement in which
    it is called."""

    def __call__(self, *streams: Stream) -> Any:
        """Add this operator to a program. Raises `StepError` without inputs outside of a `with Program()`."""
        program = streams[0].program if streams else BUILDING.get()
        if program is None:
            raise StepError(self.name, "has no inputs, and stands outside of a `with Program()`")
        return program.add(self, *streams)


BUILDING: ContextVar[Program | None] = ContextVar("BUILDING", default=None)
"""The program whose `with` is open."""


def take(inputs: Sequence[StreamType], count: int) -> None:
    """Raise `InputRefused` unless there are `count` inputs. inputs: their types."""
    if len(inputs) != count:
        raise InputRefused(f"takes {count} stream{'s' * (count != 1)}, not {len(inputs)}")


def check_same(a: Sequence[Dimension], b: Sequence[Dimension], what: str = "") -> None:
    """Raise `InputRefused` unless two shapes are equal for certain. a, b: the outermost dimension first; the message
    counts dimensions from the innermost one, 0. what: the beginning of the message, such as "buffers and reference:
    "."""
    if len(a) != len(b):
        raise InputRefused(f"{what}rank {len(a) - 1} and rank {len(b) - 1}")
    for number in range(len(a)):
        one, other = a[-1 - number], b[-1 - number]
        if not one.same(other):
            raise InputRefused(f"{what}dimension {number} is {one} there and {other} here")


def check_ragged_traffic(stream: StreamType, limits: Limits) -> None:
    """Raise `InputRefused` for ragged dimensions below the two outermost ones, unless `limits` allows them. STeP v1,
    section 4.1, has no equation for the traffic of such streams."""
    if not limits.ragged_traffic and any(one.ragged for one in stream.shape[2:]):
        raise InputRefused("ragged below the two outermost dimensions of its output (the restriction of 4.1)")


def check_flags(data: DataType) -> None:
    """Raise `InputRefused` unless elements of the type `data` are flags, [1,1] tiles."""
    if not isinstance(data, TileType) or str(data) != "[1,1]":
        raise InputRefused(f"a flag is a [1,1] tile, not {data}")


def flag_of(tile: Tile) -> bool:
    """Return the flag in a [1,1] tile. Raises `ValueError` as `Tile.scalar`."""
    return bool(tile.scalar)


def take_together(
    readers: Sequence[InputReader], unlike: str = "{} where input 0 has {}"
) -> Generator[Request, Any, tuple[Token, ...]]:
    """Wait until inputs 0, 1 .. all have a token, then take one token of each; return them, by port. No input is taken
    before all have one, as where hardware joins streams. readers: of all inputs. unlike: the message for tokens that do
    not fit; its two {} become the token at fault and that of input 0. Raises `StreamFault` if one input has a stop or
    an end where another has not the same."""
    for port in range(len(readers)):
        yield Peek(port)
    tokens: list[Token] = []
    for port, reader in enumerate(readers):
        token = reader((yield TakeToken(port)))
        steers = isinstance(token, Stop | Done)
        if tokens and (steers or isinstance(tokens[0], Stop | Done)) and token != tokens[0]:
            raise reader.fault(unlike.format(token, tokens[0]))
        tokens.append(token)
    return tuple(tokens)


def merged_stop(level: int, after_empty: bool, raised: int) -> tuple[int, ...]:
    """Return the levels of the one or two stops to put at the end of a tensor, in order. level: the rank of the tensor.
    after_empty: whether the tensor has no children. raised: how many tensors around it, one of each higher rank, end as
    well. One stop ends all of them; only a tensor without children keeps a stop of its own before that of the
    others."""
    return (level, level + raised) if after_empty and raised else (level + raised,)
