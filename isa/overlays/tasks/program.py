"""A task program as data: streams, tensors, tasks with their trees, and which instances each unit runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ....base.element_types import ElementType
from ....base.place import Place
from .tree import Expression, Statement
from .values import WORDS

ELEMENTS = "elements"
"""The key of a rate for all kernels that have none of their own: what a task computes of a tile in one pass."""

FABRIC = "fabric"
"""In the rates of a task: how many of the multiply-adds of integers of `matmul` multiply in LUTs."""


@dataclass(frozen=True)
class StreamArray:
    """An array of streams, or a single one (shape empty). type: of an element. depth: of each stream, in elements.
    packing: how many elements move together, in one transfer.
    """

    name: str
    type: ElementType
    depth: int
    packing: int = 1
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class OffChipTensor:
    """An array off the chip.

    type: its element type and shape. Where a size of the shape depends on sizes that each run gives, it is the one for
    their largest values, and a run accesses the leading part of the axis. input: tasks read the array before they write
    it. output: tasks write it. channels: the memory channels in which it lies, as indices in the list of the device;
    empty if none are chosen. In n channels it lies word by word: its word k, of 64 bytes, is word k // n of channel
    number k % n. sized: the axes whose sizes each run gives, each with its size as an expression of these sizes."""

    name: str
    type: ElementType
    input: bool
    output: bool
    channels: tuple[int, ...] = ()
    sized: tuple[tuple[int, Expression], ...] = ()

    @property
    def words(self) -> int:
        """Number of 32-bit words that it takes off the chip."""
        return prod(self.type.shape) * WORDS[self.type.dtype]


@dataclass(frozen=True)
class TensorParameter:
    """A name in a task for a part of a tensor. axes: for each axis of the tensor, the axis of the task's grid that cuts
    it, -1 for none."""

    name: str
    tensor: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """A task. mapping: its grid of instances. body: its tree. place: of its definition. rates: how much its datapath
    does in a cycle, by name: multiply-adds for `matmul`, elements for another library kernel; the name `elements`
    stands for all kernels without a rate of their own. Empty where nothing is stated."""

    name: str
    mapping: tuple[int, ...]
    parameters: tuple[TensorParameter, ...]
    body: tuple[Statement, ...]
    place: Place
    rates: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Shot:
    """One run of a task instance. tid: its point in the task's grid."""

    task: str
    tid: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the instance: `gemm[1,2]`, or `gemm` for a grid of one point."""
        return self.task if not any(self.tid) and len(self.tid) == 1 else f"{self.task}[{','.join(map(str, self.tid))}]"


@dataclass(frozen=True)
class Link:
    """A stream of the machine: the element `index` of an array, from unit to unit, or from a unit to itself. depth: in
    elements. shared: the name of the stream of the machine, if several elements take turns on it."""

    stream: str
    index: tuple[int, ...]
    source: str
    sink: str
    depth: int
    shared: str = ""

    @property
    def element(self) -> str:
        """The name of the element of the array: `s[1,2]`, or `s` for a single stream."""
        return self.stream + (f"[{','.join(map(str, self.index))}]" if self.index else "")

    @property
    def label(self) -> str:
        """The label of the stream of the machine: that of the element, or the name of a shared stream."""
        return self.shared or self.element


@dataclass(frozen=True)
class TaskProgram:
    """Everything that a task machine and its runs are made of.

    name: of the machine. file: name of the file that all places are in. units: the shots of each unit, in order, by its
    name. constants: values of names that all tasks may read. apart: by unit, the places of beats whose operations fire
    one after the other. clock_hz: clock of the machine, in Hz. seed: of the random numbers that tasks may draw. device:
    the name of the device that it is made for, "" for none. sizes: names and largest values of the sizes that each run
    gives; the least value is 1. Trees read them as variables."""

    name: str
    file: str
    streams: tuple[StreamArray, ...]
    tensors: tuple[OffChipTensor, ...]
    tasks: tuple[Task, ...]
    units: tuple[tuple[str, tuple[Shot, ...]], ...]
    links: tuple[Link, ...]
    constants: tuple[tuple[str, bool | int | float | str | tuple[int | float | bool | str, ...]], ...] = ()
    apart: tuple[tuple[str, tuple[Place, ...]], ...] = ()
    clock_hz: float = 300e6
    seed: int = field(default=0)
    device: str = ""
    sizes: tuple[tuple[str, int], ...] = ()
