"""The instructions of all units, as they are added: an order in which the operations could be executed one by one.

Each unit keeps its own order; the units run side by side as far as their streams and the tokens of memories let them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...isa.fields import Record
from ...isa.layout import UNIT
from ...isa.overlays.xnn2.mesh import MeshA, MeshB, left_sources, right_sources
from ...isa.overlays.xnn2.mme import Mme
from ...isa.overlays.xnn2.off_chip import DDR_PEERS, DDR_SINKS, Ddr, Lpddr, Weight
from ...isa.overlays.xnn2.operands import FROM_DDR, KV, LANES, KvIn, KvOut, W
from ...isa.overlays.xnn2.results import C, Post, ResultTarget, Soft
from ...isa.overlays.xnn2.rows import COLUMNS, RowSource, RowTarget, XIn, XOut, XStore
from ...isa.overlays.xnn2.scratch import TIn, TileSource, TileTarget, TOut
from ...isa.program import KernelPatch
from .blocks import TILE, Mask, RowNorm, RowTile
from .slots import Slots

TILE_BLOCKS = 2


@dataclass(frozen=True)
class Access:
    """An access to DDR: `chunks` pieces of `size` elements. addr, stride: in elements."""

    peer: str
    store: bool
    addr: int
    size: int
    chunks: int = 1
    stride: int = 0

    @property
    def elements(self) -> int:
        """Elements of all pieces."""
        return self.size * self.chunks


@dataclass(frozen=True)
class Group:
    """Products of an MME: `results` sums over `depth` products."""

    results: int
    depth: int
    k64: int = 0
    n64: int = 0


class Emission:
    """Instructions by unit. accesses: those of DDR, in an order that keeps what is stored before it is loaded."""

    def __init__(self) -> None:
        self.made: dict[str, list[Any]] = defaultdict(list)
        self.accesses: list[Access] = []
        self.patches: dict[str, list[KernelPatch]] = defaultdict(list)
        self.x = [Slots() for _ in range(LANES)]
        self.t = [Slots() for _ in range(LANES)]
        self.stores: list[list[Sequence[int]]] = [[] for _ in range(LANES)]
        """Of each X, the slots that XStore reads and that no later operation of XIn waits for."""
        self.kv = [Slots() for _ in range(KV)]

    # -- off-chip memory

    def ddr(self, peer: str, addr: int, size: int, chunks: int = 1, stride: int = 0) -> None:
        """Load to a peer, or store what it sends."""
        self.accesses.append(Access(peer, peer not in DDR_SINKS, addr, size, chunks, stride))

    def lpddr(self, to: Weight, addr: int, size: int, chunks: int = 1, stride: int = 0, lanes: int = 0) -> None:
        """Load weights, vectors or tables."""
        if chunks > 1 and stride == size:
            size, chunks, stride = size * chunks, 1, 0
        self.made["LPDDR"].append(
            Lpddr(addr=addr // UNIT, size=size, lanes=lanes, to=int(to), chunks=chunks, chunk_stride=stride // UNIT)
        )

    def weights(self, unit: int, tiles: int, lanes: int, *, ddr: bool = False) -> None:
        """W passes tiles on to lanes."""
        self._more(f"W{unit}", W(tiles=tiles, lanes=lanes, ddr=int(ddr)), "tiles")

    # -- lanes

    def send_rows(
        self, lane: int, slots: Sequence[int], to: RowTarget, *, norm: RowNorm | None = None
    ) -> None:
        """X sends consecutive slots."""
        fields = _norm(norm)
        fields |= {"slot": slots[0], "tiles": len(slots), "to": int(to)}
        made = self.made[f"XOut{lane}"]
        book = self.x[lane]
        if made and book.reread(slots):
            last = made[-1]
            same = last.replace(times=1, wait=0) == XOut(**fields)
            if same and last.times < 255:
                made[-1] = last.replace(times=last.times + 1)
                return
        made.append(XOut(**fields, wait=book.read(slots)))

    def take_rows(
        self,
        lane: int,
        slots: Sequence[int],
        source: RowSource = RowSource.RESULT,
        *,
        add: bool = False,
        statistics: int = 0,
        columns: int = 0,
    ) -> None:
        """X takes tiles into consecutive slots."""
        wait = self.x[lane].write(slots)
        stored = 0
        if any(not set(slots).isdisjoint(other) for other in self.stores[lane]):
            stored = len(self.stores[lane])
            self.stores[lane] = []
        self.made[f"XIn{lane}"].append(
            XIn(
                slot=slots[0],
                tiles=len(slots),
                source=int(source),
                add=int(add),
                statistics=statistics,
                columns=columns,
                wait=wait,
                stored=stored,
            )
        )

    def join_statistics(self, lane: int, bank: int, *, empty: bool) -> None:
        """X joins the statistics of a bank with those of the other lane of its pair. empty: it has none of its own."""
        slots = range(bank * COLUMNS, (bank + 1) * COLUMNS)
        wait = self.x[lane].read(slots)
        self.made[f"XOut{lane}"].append(XOut(slot=slots[0], share=2 if empty else 1, wait=wait))

    def store_rows(
        self, lane: int, slots: Sequence[int], norm: RowNorm | None = None, *, joined: bool = False
    ) -> None:
        """X stores consecutive slots, when its last operation of the write port has ended. joined: when the read port has
        joined statistics as well."""
        made = self.made[f"XIn{lane}"]
        if joined:
            made.append(XIn(wait=self.x[lane].after_reads(), store=1))
        else:
            made[-1] = made[-1].replace(store=1)
        self.made[f"XStore{lane}"].append(XStore(slot=slots[0], tiles=len(slots), wait=1, **_norm(norm)))
        self.stores[lane].append(slots)

    def send_tiles(
        self, lane: int, slots: Sequence[int], to: TileTarget, *, times: int = 1, part: int = 0, weights: bool = False
    ) -> None:
        """T sends consecutive slots, each `times` times."""
        wait = self.t[lane].read(slots)
        self.made[f"TOut{lane}"].append(
            TOut(slot=slots[0], tiles=len(slots), times=times, to=int(to), part=part, weights=int(weights), wait=wait)
        )

    def take_tiles(self, lane: int, slots: Sequence[int], source: TileSource, *, part: int = 0) -> None:
        """T takes tiles into consecutive slots."""
        wait = self.t[lane].write(slots)
        self.made[f"TIn{lane}"].append(
            TIn(slot=slots[0], tiles=len(slots), source=int(source), part=part, wait=wait)
        )

    def take_heads(self, unit: int, slots: Sequence[int]) -> None:
        """K or V takes blocks from DDR into consecutive slots."""
        wait = self.kv[unit].write(slots)
        self.made[f"KvIn{unit}"].append(KvIn(slot=slots[0], tiles=len(slots), source=FROM_DDR, wait=wait))

    def take_both(self, unit: int, lane: int, slot: int, second: int) -> None:
        """K or V takes a tile of two blocks from a lane."""
        wait = self.kv[unit].write([(slot, second)])
        self.made[f"KvIn{unit}"].append(KvIn(slot=slot, tiles=1, source=lane, second=second, wait=wait))

    def send_heads(self, unit: int, slots: Sequence[int], lanes: int, *, wide: bool = False) -> None:
        """K or V sends tiles from consecutive slots to lanes."""
        wait = self.kv[unit].read(slots)
        tiles = len(slots) // (TILE_BLOCKS if wide else 1)
        self.made[f"KvOut{unit}"].append(KvOut(slot=slots[0], tiles=tiles, wide=int(wide), lanes=lanes, wait=wait))

    def left(self, lane: int, source: str, tiles: int) -> None:
        """MeshA of a lane passes tiles on."""
        self._more(f"MeshA{lane}", MeshA(tiles=tiles, source=left_sources(lane).index(source)), "tiles")

    def right(self, lane: int, source: str, tiles: int) -> None:
        """MeshB of a lane passes tiles on."""
        self._more(f"MeshB{lane}", MeshB(tiles=tiles, source=right_sources(lane).index(source)), "tiles")

    def multiply(self, lane: int, results: int, depth: int, *, k64: bool = False, n64: bool = False) -> None:
        """The MME of a lane makes results."""
        self.made[f"MME{lane}"].append(Group(results, depth, int(k64), int(n64)))

    def result(
        self,
        lane: int,
        tiles: int,
        to: ResultTarget,
        *,
        bias: bool = False,
        scale: bool = False,
        residual: bool = False,
        alone: bool = False,
    ) -> None:
        """C of a lane passes results on."""
        flags = {"bias": int(bias), "scale": int(scale), "residual": int(residual), "alone": int(alone)}
        made = C(tiles=tiles, to=int(to), **flags)
        self._more(f"C{lane}", made, "tiles")

    def post(self, lane: int, tiles: int, to: int, **fields: Any) -> None:
        """Post of a lane passes tiles on."""
        self.made[f"Post{lane}"].append(Post(tiles=tiles, to=to, **fields))

    def softmax(self, pair: int, tiles: int, keys: int, rows: RowTile, mask: Mask) -> None:
        """Softmax of a pair makes the probabilities of a head. keys: of the sequence. rows: which these are."""
        fields: dict[str, Any] = {"keys": keys, "cap": mask.softcap}
        at = rows.at * TILE
        if mask.causal:
            fields |= {"causal": 1, "offset": at}
        if mask.window is not None:
            fields |= {"windowed": 1, "low": at - mask.window + 1}
            if not mask.causal:
                fields |= {"causal": 1, "offset": at + mask.window - 1}
        unit = f"Soft{pair}"
        number = len(self.made[unit])
        self.made[unit].append(Soft(heads=1, tiles=tiles, **fields))
        if mask.lengths:
            self.patches[f"len[{rows.seq}]"].append(KernelPatch(unit, number, "keys", 0, keys))
        if mask.starts:
            self.patches[f"start[{rows.seq}]"].append(KernelPatch(unit, number, "first", 0, keys))

    def _more(self, unit: str, record: Record, field: str) -> None:
        """Add an instruction, or to the last one if that does the same."""
        made = self.made[unit]
        if made:
            total = getattr(made[-1], field) + getattr(record, field)
            if made[-1].replace(**{field: getattr(record, field)}) == record and total <= record.field(field).bounds[1]:
                made[-1] = record.replace(**{field: total})
                return
        made.append(record)

    def finish(self) -> None:
        """Take the tokens that are left, by operations without tiles."""
        ports = (("X", XIn, XOut, self.x), ("T", TIn, TOut, self.t), ("Kv", KvIn, KvOut, self.kv))
        for kind, write, read, books in ports:
            for i, book in enumerate(books):
                if book.unread:
                    self.made[f"{kind}Out{i}"].append(read(wait=book.unread))
                    book.read(())
                if book.unwaited:
                    self.made[f"{kind}In{i}"].append(write(wait=book.unwaited))
        for lane, stores in enumerate(self.stores):
            if stores:
                self.made[f"XIn{lane}"].append(XIn(stored=len(stores)))

    # -- the result

    def sequences(self) -> dict[str, tuple[Record, ...]]:
        """Instructions of the units that packets drive, without DDR."""
        return {unit: tuple(made) for unit, made in self.made.items() if not unit.startswith("MME") and made}

    def op_lists(self) -> dict[str, tuple[Mme, ...]]:
        """Op lists of the MMEs."""
        return {unit: tuple(ops_of(made)) for unit, made in self.made.items() if unit.startswith("MME") and made}

    def ddr_mops(self, accesses: Sequence[Access]) -> list[Ddr]:
        """Instructions of DDR."""
        return [
            Ddr(
                addr=a.addr // UNIT,
                size=a.size,
                peer=DDR_PEERS.index(a.peer),
                chunks=a.chunks,
                chunk_stride=a.stride // UNIT,
            )
            for a in accesses
        ]


def _norm(norm: RowNorm | None) -> dict[str, Any]:
    """The fields of a read port of X for a norm."""
    return {} if norm is None else {"normalise": 1, "eps": norm.eps, "rms": int(norm.rms)}


MOST_RESULTS = 255
MOST_TIMES = 4095


def ops_of(groups: Sequence[Group]) -> list[Mme]:
    """Groups of products as operations: two groups in one, and pairs that repeat in one."""
    joined: list[Group] = []
    for g in groups:
        last = joined[-1] if joined else None
        if last is not None and (last.depth, last.k64, last.n64) == (g.depth, g.k64, g.n64):
            if last.results + g.results <= MOST_RESULTS:
                joined[-1] = Group(last.results + g.results, g.depth, g.k64, g.n64)
                continue
        joined.append(g)
    out: list[Mme] = []
    at = 0
    while at < len(joined):
        a = joined[at]
        b = joined[at + 1] if at + 1 < len(joined) else None
        if b is None or (a.k64, a.n64) != (b.k64, b.n64):
            out.append(Mme(first=a.results, first_depth=a.depth, k64=a.k64, n64=a.n64))
            at += 1
            continue
        times = 1
        while joined[at + 2 * times : at + 2 * times + 2] == [a, b] and times < MOST_TIMES:
            times += 1
        out.append(
            Mme(
                first=a.results,
                first_depth=a.depth,
                second=b.results,
                second_depth=b.depth,
                times=times,
                k64=a.k64,
                n64=a.n64,
            )
        )
        at += 2 * times
    return out
