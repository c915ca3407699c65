"""The builder of kernel sequences: lowering a segment appends to it, unit by unit.

Every Mem is double-buffered over one chain for the whole program: uOP i loads (or receives) the data of work item i
while it sends (or stores) those of item i - 1. No unit drains between tiles, segments or layers. DDR accesses are kept
separately, as loads and stores of each tile, because their order on the one channel is decided later (`order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

from ..base.errors import ScheduleError
from ..isa.fields import Record
from ..isa.layout import BLOCK, BLOCK_COLS, BLOCK_ROWS, UNIT, block, padded
from ..isa.overlay import Overlay
from ..isa.overlays.xnn import formats as f
from ..isa.program import Buffer, KernelPatch, Layout, Parameter, Role, UnpackedProgram
from ..machine.timing import Timing
from .graph import Array, AttentionLayer, LayerGraph
from .groups import plan
from .listing import list_accesses
from .memory import columns_of
from .order import BLOCK_UNITS, Access, Tile, interleave_of, order_accesses
from .pack import Starts, issued, starts_of
from .schedule import Interleave, Schedule

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class WorkItem(NamedTuple):
    """One piece of work of a Mem, in two halves that become parts of consecutive uOPs.

    fill: uOP fields to load or receive. drain: uOP fields to send or store. recv_config, store_config: MemC registers
    that the first and the second half need.
    """

    fill: Mapping[str, Any] = _NOTHING
    drain: Mapping[str, Any] = _NOTHING
    recv_config: Mapping[str, Any] = _NOTHING
    store_config: Mapping[str, Any] = _NOTHING


class Span(NamedTuple):
    """The place of a sequence among the rows of all: its first block of 128 rows, the number of its blocks, and its
    rows without padding."""

    start: int
    blocks: int
    rows: int


@dataclass(frozen=True)
class LengthField:
    """A register value that depends on the run-time length of a sequence: clamp(len[sequence] - base, 0, cap)."""

    sequence: int
    base: int
    cap: int


class KernelBuilder:
    """Collects the kernel sequences, buffers and weights of one program.

    extended: the overlay has opcode 8. spans: the places of the network's sequences. row_blocks, seq_blocks: blocks of
    128 rows in all sequences and in the longest one, padding included. Raises `ScheduleError` or `UnsupportedError`.
    """

    def __init__(self, network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
        self.net = network
        self.overlay = overlay
        self.extended = overlay.extends is not None
        self.schedule = schedule
        self.plan = plan(network, schedule)
        self.cuts = {
            gemm.y: segment.tiles
            for segment in self.plan
            if not isinstance(segment.layers, AttentionLayer)
            for gemm in segment.layers
        }
        """How products are cut, by the activation that they compute."""
        self.columns = columns_of(network, self.cuts, schedule.whole_tiles)
        blocks = [padded(n, BLOCK_ROWS) // BLOCK_ROWS for n in network.rows]
        starts = accumulate(blocks, initial=0)
        self.spans = [Span(*span) for span in zip(starts, blocks, network.rows, strict=False)]
        self.seq_blocks = max(blocks)
        self.row_blocks = self._row_blocks()
        self.interleave = interleave_of(schedule, self.row_blocks)
        self.mem: dict[str, list[WorkItem]] = {
            u.name: [] for kind in ("MemA", "MemB", "MemC") for u in overlay.by_kind[kind]
        }
        self.mesh: dict[str, list[f.MeshA | f.MeshB]] = {"MeshA": [], "MeshB": []}
        self.mme: dict[str, list[f.Mme]] = {u.name: [] for u in overlay.by_kind["MME"]}
        self.lpddr: list[f.Lpddr] = []
        self.tiles: list[Tile] = []
        self.buffers: dict[str, Buffer] = {}
        self.weights: dict[str, Callable[[], Array]] = {}
        self.ends = dict.fromkeys(overlay.banks, 0)
        """The end of the weights in each bank, in address units."""
        self._shared: dict[object, Buffer] = {}
        self.found: Timing | None = None
        """The run of list scheduling, after `finish`; None for other orders of DDR."""
        self.starts: Starts | None = None
        """When each mOP began in that run."""

    def _row_blocks(self) -> int:
        """Row blocks of all sequences. Raises `ScheduleError` if padding to whole tiles would separate sequences."""
        blocks = sum(span.blocks for span in self.spans)
        if not self.schedule.whole_tiles:
            return blocks
        whole = 3 if blocks <= 3 else padded(blocks, 6)
        if whole != blocks and self.net.batch > 1:
            rows = f"{self.net.batch} sequences of {blocks * BLOCK_ROWS} rows in total"
            raise ScheduleError(
                f"whole_tiles: {rows} do not fill whole tiles of 768 rows; padding is possible for one sequence only"
            )
        return whole

    def weight(self, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str = "lpddr") -> Buffer:
        """Reserve a buffer for a weight matrix (blocked) or vector (linear) at the end of a bank.

        stored: makes the elements, shape `shape`; called only when weights are read, because no schedule depends on
        them. A name already in use gets a suffix.
        """
        base, n = name, 2
        while name in self.buffers:
            name, n = f"{base}.{n}", n + 1
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        self.weights[name] = (lambda: block(stored())) if len(shape) == 2 else stored
        self.buffers[name] = Buffer(name, bank, self.ends[bank], shape, layout, Role.WEIGHT)
        self.ends[bank] += padded(prod(shape) // UNIT, 64)
        return self.buffers[name]

    def shared(self, key: object, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str) -> Buffer:
        """Reserve a weight once per key; later calls with the same key return the same buffer."""
        if key not in self._shared:
            self._shared[key] = self.weight(name, shape, stored, bank)
        return self._shared[key]

    def route(self, mesh: str, routes: Iterable[str], tiles: int) -> None:
        """Append a mesh uOP that moves `tiles` tiles along all `routes`, such as a0_1 (MemA0 to MME1), at the same
        time."""
        active = tuple(routes)
        if tiles and active:
            self.mesh[mesh].append(_route(mesh, active, tiles))

    def op(self, mme: int, **fields: int) -> None:
        """Append an op to MME number `mme`."""
        self.mme[f"MME{mme}"].append(f.Mme(**fields))

    def vector(self, buffer: Buffer, half: int, start: int, count: int) -> None:
        """Append the load of `count` elements of a vector, from element `start` on, into MemB `half`, and its send to
        the MMEs as one B tile."""
        groups = count // 32
        rows = min(32, groups)
        self.lpddr.append(f.Lpddr(addr=buffer.offset + start // UNIT, size=count, bias=1, **{f"to_b{half}": 1}))
        self.mem[f"MemB{half}"].append(
            WorkItem({"load": 1, "bias": 1, "dim1": rows, "dim2": groups // rows}, {"send": 1, "acc_a": 1, "acc_b": 1})
        )

    def blocks(self, name: str, row: int, rows: int, col: int, cols: int, peer: str, store: bool = False) -> Access:
        """Make a DDR access to `rows` x `cols` blocks of an activation (128 rows, 64 columns each), from block (row,
        col) on. The columns must lie within one panel. peer: the unit that receives or sends the data."""
        b = self.buffers[name]
        width = b.shape[1] // BLOCK_COLS
        panel, col = divmod(col, width)
        addr = b.offset + ((panel * self.row_blocks + row) * width + col) * BLOCK_UNITS
        if rows == 1 or cols == width:
            return Access(peer, store, addr, rows * cols)
        return Access(peer, store, addr, cols, rows, width)

    def finish(self) -> UnpackedProgram:
        """Order the DDR accesses and make the uOP chain of every Mem. Raises `DeadlockError` if list scheduling finds
        that the program cannot end."""
        patches: dict[str, list[KernelPatch]] = {}
        sequences: dict[str, tuple[Record, ...]] = {
            "LPDDR": tuple(self.lpddr),
            "MeshA": tuple(self.mesh["MeshA"]),
            "MeshB": tuple(self.mesh["MeshB"]),
            **{unit: tuple(self._chain(unit, jobs, patches)) for unit, jobs in self.mem.items()},
        }
        preloaded = {u: tuple(ops) for u, ops in self.mme.items()}
        if self.interleave in (Interleave.HARDWARE, Interleave.LISTED):
            issues, firsts = issued(self.overlay, sequences)
            listed = list_accesses(self.tiles, self._loads(), issues, preloaded, self.overlay)
            sequences["DDR"], self.found = tuple(listed.mops), listed.run
            self.starts = {**starts_of(listed.run, firsts), "DDR": listed.starts}
        else:
            sequences["DDR"] = tuple(order_accesses(self.tiles, self.interleave))
        max_lengths = {_length_name(i): span.rows for i, span in enumerate(self.spans)}
        return UnpackedProgram(
            overlay=self.overlay,
            sequences={u: s for u, s in sequences.items() if s},
            preloaded=preloaded,
            buffers=tuple(self.buffers.values()),
            parameters=tuple(Parameter(name, 1, n, n) for name, n in max_lengths.items() if name in patches),
            patches={name: tuple(p) for name, p in patches.items()},
        )

    def _loads(self) -> dict[str, list[int]]:
        """Number of blocks that each uOP loads from DDR, by Mem."""
        out: dict[str, list[int]] = {}
        for unit, jobs in self.mem.items():
            loads = [job.fill for job in jobs if job.fill.get("load") and not job.fill.get("bias")]
            if unit in ("MemB0", "MemB1"):
                loads = [load for load in loads if load.get("transpose")]
            out[unit] = [load["dim1"] * load["dim2"] // BLOCK for load in loads]
        return out

    def _chain(self, unit: str, jobs: Sequence[WorkItem], patches: dict[str, list[KernelPatch]]) -> list[Record]:
        """The uOPs of a Mem: uOP i does the first half of item i and the second half of item i - 1."""
        kind = {"MemA": f.MemA, "MemB": f.MemB, "MemC": f.MemC}[unit[:4]]
        out: list[Record] = []
        made: dict[tuple[int, int], Record] = {}  # by id() of both halves; `jobs` keeps them alive
        current: dict[str, Any] = {}
        for begun, ended in zip([*jobs, WorkItem()], [WorkItem(), *jobs], strict=True) if jobs else ():
            needed = {**begun.recv_config, **ended.store_config}
            if any(current.get(name, _POWER_ON.get(name)) != value for name, value in needed.items()):
                current |= needed
                lengths = {n: v for n, v in current.items() if isinstance(v, LengthField)}
                for name, v in lengths.items():
                    patch = KernelPatch(unit, len(out), name, v.base, v.cap)
                    patches.setdefault(_length_name(v.sequence), []).append(patch)
                out.append(f.MemCConfig(**{n: 0 if n in lengths else v for n, v in current.items()}))
            key = id(begun.fill), id(ended.drain)
            if key not in made:
                made[key] = kind(**begun.fill, **ended.drain)
            out.append(made[key])
        return out


_POWER_ON = {x.name: getattr(f.MemCConfig(), x.name) for x in f.MemCConfig.FIELDS}


@cache
def _route(mesh: str, active: tuple[str, ...], tiles: int) -> f.MeshA | f.MeshB:
    kind = f.MeshA if mesh == "MeshA" else f.MeshB
    return kind(size=512 * tiles, **dict.fromkeys(active, 1))


def _length_name(sequence: int) -> str:
    return f"len[{sequence}]"
