"""Kernel sequences in the making: what lowering a segment appends to, unit by unit.

Every Mem keeps one chain for the whole program: uOP i loads (or receives) what job i needs while it sends (or stores)
what job i - 1 brought. No unit drains between tiles, segments or layers. What DDR does is kept apart, as loads and
stores per tile, because their order on the one channel is a decision of its own (`order`).
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
from ..isa.program import Buffer, KernelPatch, Kernels, Layout, Parameter, Role
from ..machine.timing import Timing
from .graph import Array, Attention, LayerGraph
from .groups import plan
from .listing import list_accesses
from .memory import columns_of
from .order import BLOCK_UNITS, Access, Tile, interleave_of, order_accesses
from .pack import Starts, issued, starts_of
from .schedule import Interleave, Schedule

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class WorkItem(NamedTuple):
    """What a Mem does for one piece of work, in two halves that fall into consecutive uOPs."""

    fill: Mapping[str, Any] = _NOTHING
    drain: Mapping[str, Any] = _NOTHING
    recv_config: Mapping[str, Any] = _NOTHING
    store_config: Mapping[str, Any] = _NOTHING


class Span(NamedTuple):
    """Where a sequence lies among the rows of all: its first block of 128 rows, how many blocks, and how many rows of
    those are no padding."""

    start: int
    blocks: int
    rows: int


@dataclass(frozen=True)
class LengthField:
    """A run-time field value: clamp(len[sequence] - base, 0, cap)."""

    sequence: int
    base: int
    cap: int


class KernelBuilder:
    """The kernel sequences of one program. extended: the overlay has opcode 8. spans: of the network's sequences.
    row_blocks, seq_blocks: blocks of 128 rows in all and in the longest sequence, padding included."""

    def __init__(self, network: LayerGraph, overlay: Overlay, schedule: Schedule) -> None:
        self.net = network
        self.overlay = overlay
        self.extended = overlay.extends is not None
        self.schedule = schedule
        self.plan = plan(network, schedule)
        self.cuts = {
            gemm.y: segment.tiles
            for segment in self.plan
            if not isinstance(segment.layers, Attention)
            for gemm in segment.layers
        }
        """How the segment that makes an activation is cut."""
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
        """Behind the weights in each bank, in address units."""
        self._shared: dict[object, Buffer] = {}
        self.found: Timing | None = None
        """The run that found the order of DDR, where one did."""
        self.starts: Starts | None = None
        """Of that run."""

    def _row_blocks(self) -> int:
        """Of all sequences together. Raises `ScheduleError` where whole tiles would come between them."""
        blocks = sum(span.blocks for span in self.spans)
        if not self.schedule.whole_tiles:
            return blocks
        whole = 3 if blocks <= 3 else padded(blocks, 6)
        if whole != blocks and self.net.batch > 1:
            rows = f"{self.net.batch} sequences of {blocks * BLOCK_ROWS} rows in all"
            raise ScheduleError(f"whole_tiles: {rows} are no whole number of tiles of 768 rows; only one may be padded")
        return whole

    def weight(self, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str = "lpddr") -> Buffer:
        """Append a weight matrix (blocked) or vector (linear) to a bank. It is made when somebody wants it: no schedule
        depends on what is in it."""
        base, n = name, 2
        while name in self.buffers:
            name, n = f"{base}.{n}", n + 1
        layout = Layout.BLOCKED if len(shape) == 2 else Layout.LINEAR
        self.weights[name] = (lambda: block(stored())) if len(shape) == 2 else stored
        self.buffers[name] = Buffer(name, bank, self.ends[bank], shape, layout, Role.WEIGHT)
        self.ends[bank] += padded(prod(shape) // UNIT, 64)
        return self.buffers[name]

    def shared(self, key: object, name: str, shape: tuple[int, ...], stored: Callable[[], Array], bank: str) -> Buffer:
        """A weight that there is once for all who have the same key."""
        if key not in self._shared:
            self._shared[key] = self.weight(name, shape, stored, bank)
        return self._shared[key]

    def route(self, mesh: str, routes: Iterable[str], tiles: int) -> None:
        """Append tiles along routes such as a0_1; equal routes in a row become one uOP."""
        active = tuple(routes)
        if tiles and active:
            self.mesh[mesh].append(_route(mesh, active, tiles))

    def op(self, mme: int, **fields: int) -> None:
        self.mme[f"MME{mme}"].append(f.Mme(**fields))

    def vector(self, buffer: Buffer, half: int, start: int, count: int) -> None:
        """Load `count` floats of a vector into MemB `half` and send them to the MMEs as one B tile."""
        groups = count // 32
        rows = min(32, groups)
        self.lpddr.append(f.Lpddr(addr=buffer.offset + start // UNIT, size=count, bias=1, **{f"to_b{half}": 1}))
        self.mem[f"MemB{half}"].append(
            WorkItem({"load": 1, "bias": 1, "dim1": rows, "dim2": groups // rows}, {"send": 1, "acc_a": 1, "acc_b": 1})
        )

    def blocks(self, name: str, row: int, rows: int, col: int, cols: int, peer: str, store: bool = False) -> Access:
        """A DDR access to `rows` x `cols` blocks of an activation, from block (row, col) on. The columns lie within one
        panel."""
        b = self.buffers[name]
        width = b.shape[1] // BLOCK_COLS
        panel, col = divmod(col, width)
        addr = b.offset + ((panel * self.row_blocks + row) * width + col) * BLOCK_UNITS
        if rows == 1 or cols == width:
            return Access(peer, store, addr, rows * cols)
        return Access(peer, store, addr, cols, rows, width)

    def finish(self) -> Kernels:
        """Order the off-chip accesses and write out the chains."""
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
        most = {_length_name(i): span.rows for i, span in enumerate(self.spans)}
        return Kernels(
            overlay=self.overlay,
            sequences={u: s for u, s in sequences.items() if s},
            preloaded=preloaded,
            buffers=tuple(self.buffers.values()),
            parameters=tuple(Parameter(name, 1, n, n) for name, n in most.items() if name in patches),
            patches={name: tuple(p) for name, p in patches.items()},
        )

    def _loads(self) -> dict[str, list[int]]:
        """Blocks that each uOP loads from DDR, by Mem."""
        out: dict[str, list[int]] = {}
        for unit, jobs in self.mem.items():
            loads = [job.fill for job in jobs if job.fill.get("load") and not job.fill.get("bias")]
            if unit in ("MemB0", "MemB1"):
                loads = [load for load in loads if load.get("transpose")]
            out[unit] = [load["dim1"] * load["dim2"] // BLOCK for load in loads]
        return out

    def _chain(self, unit: str, jobs: Sequence[WorkItem], patches: dict[str, list[KernelPatch]]) -> list[Record]:
        """uOP i does the first half of job i and the second half of job i - 1."""
        kind = {"MemA": f.MemA, "MemB": f.MemB, "MemC": f.MemC}[unit[:4]]
        out: list[Record] = []
        made: dict[tuple[int, int], Record] = {}  # by the identities of its halves, which `jobs` keeps alive
        current: dict[str, Any] = {}
        for begun, ended in zip([*jobs, WorkItem()], [WorkItem(), *jobs], strict=True) if jobs else ():
            wanted = {**begun.recv_config, **ended.store_config}
            if any(current.get(name, _POWER_ON.get(name)) != value for name, value in wanted.items()):
                current |= wanted
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
