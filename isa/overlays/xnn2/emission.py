"""Turns the work of lanes into instructions, in the order in which it is given."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...fields import Record
from ...lanes import (
    HeadFunctions,
    LaneWork,
    Part,
    ResultTarget,
    RowNorm,
    RowSource,
    RowTarget,
    TileSource,
    TileTarget,
    Weight,
)
from ...layout import UNIT
from ...overlay import Overlay
from ...program import KernelPatch
from ...work import Access, LengthField, Softmax
from ..xnn.tiles import TILE
from .mesh import MeshA, MeshB, left_sources, right_sources
from .mme import Mme
from .off_chip import DDR_PEERS, DDR_SINKS, Ddr, Lpddr
from .operands import FROM_DDR, KvIn, KvOut, W
from .ports import TILE_BLOCKS
from .results import ACTIVATIONS, IDENTITY, C, Post, Soft
from .rows import COLUMNS, XIn, XOut, XStore
from .scratch import TIn, TOut
from .tokens import Slots


@dataclass(frozen=True)
class Group:
    """Products of an MME: `results` sums over `depth` products."""

    results: int
    depth: int
    k64: int = 0
    n64: int = 0


class Emission(LaneWork):
    """Instructions by unit. x, t, kv: the tokens of each memory."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.made: dict[str, list[Any]] = defaultdict(list)
        self.accesses: list[Access] = []
        self.patches: dict[str, list[KernelPatch]] = defaultdict(list)
        self.x, self.t, self.kv = ([Slots() for _ in overlay.by_kind[kind]] for kind in ("XIn", "TIn", "KvIn"))
        self.stores: list[list[Sequence[int]]] = [[] for _ in self.x]
        """Of each X, the slots that XStore reads and that no later operation of XIn waits for."""

    # -- off-chip memory

    def move(self, peer: str, addr: int, size: int, chunks: int = 1, stride: int = 0) -> None:
        self.accesses.append(Access(_peer(peer), peer not in DDR_SINKS_OF, addr, size, chunks, stride))

    def load(self, to: Weight, addr: int, size: int, chunks: int = 1, stride: int = 0, lanes: int = 0) -> None:
        if chunks > 1 and stride == size:
            size, chunks, stride = size * chunks, 1, 0
        self.made["LPDDR"].append(
            Lpddr(addr=addr // UNIT, size=size, lanes=lanes, to=int(to), chunks=chunks, chunk_stride=stride // UNIT)
        )

    def weights(self, unit: int, tiles: int, lanes: int, *, activations: bool = False) -> None:
        self._more(f"W{unit}", W(tiles=tiles, lanes=lanes, ddr=int(activations)), "tiles")

    # -- lanes

    def send_rows(self, lane: int, slots: Sequence[int], to: RowTarget, *, norm: RowNorm | None = None) -> None:
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
        slots = range(bank * COLUMNS, (bank + 1) * COLUMNS)
        wait = self.x[lane].read(slots)
        self.made[f"XOut{lane}"].append(XOut(slot=slots[0], share=2 if empty else 1, wait=wait))

    def store_rows(self, lane: int, slots: Sequence[int], norm: RowNorm | None = None, *, joined: bool = False) -> None:
        made = self.made[f"XIn{lane}"]
        if joined:
            made.append(XIn(wait=self.x[lane].after_reads(), store=1))
        else:
            made[-1] = made[-1].replace(store=1)
        self.made[f"XStore{lane}"].append(XStore(slot=slots[0], tiles=len(slots), wait=1, **_norm(norm)))
        self.stores[lane].append(slots)

    def send_tiles(
        self,
        lane: int,
        slots: Sequence[int],
        to: TileTarget,
        *,
        times: int = 1,
        part: Part = Part.WHOLE,
        weights: bool = False,
    ) -> None:
        wait = self.t[lane].read(slots)
        self.made[f"TOut{lane}"].append(
            TOut(
                slot=slots[0],
                tiles=len(slots),
                times=times,
                to=int(to),
                part=int(part),
                weights=int(weights),
                wait=wait,
            )
        )

    def take_tiles(self, lane: int, slots: Sequence[int], source: TileSource, *, part: Part = Part.WHOLE) -> None:
        wait = self.t[lane].write(slots)
        self.made[f"TIn{lane}"].append(
            TIn(slot=slots[0], tiles=len(slots), source=int(source), part=int(part), wait=wait)
        )

    def take_heads(self, unit: int, slots: Sequence[int]) -> None:
        wait = self.kv[unit].write(slots)
        self.made[f"KvIn{unit}"].append(KvIn(slot=slots[0], tiles=len(slots), source=FROM_DDR, wait=wait))

    def take_both(self, unit: int, lane: int, slot: int, second: int) -> None:
        wait = self.kv[unit].write([(slot, second)])
        self.made[f"KvIn{unit}"].append(KvIn(slot=slot, tiles=1, source=lane, second=second, wait=wait))

    def send_heads(self, unit: int, slots: Sequence[int], lanes: int, *, wide: bool) -> None:
        wait = self.kv[unit].read(slots)
        tiles = len(slots) // (TILE_BLOCKS if wide else 1)
        self.made[f"KvOut{unit}"].append(KvOut(slot=slots[0], tiles=tiles, wide=int(wide), lanes=lanes, wait=wait))

    def left(self, lane: int, source: str, tiles: int) -> None:
        self._more(f"MeshA{lane}", MeshA(tiles=tiles, source=left_sources(lane).index(_read(source))), "tiles")

    def right(self, lane: int, source: str, tiles: int) -> None:
        self._more(f"MeshB{lane}", MeshB(tiles=tiles, source=right_sources(lane).index(_read(source))), "tiles")

    def multiply(
        self, lane: int, results: int, depth: int, *, half_depth: bool = False, half_columns: bool = False
    ) -> None:
        self.made[f"MME{lane}"].append(Group(results, depth, int(half_depth), int(half_columns)))

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
        flags = {"bias": int(bias), "scale": int(scale), "residual": int(residual), "alone": int(alone)}
        made = C(tiles=tiles, to=int(to), **flags)
        self._more(f"C{lane}", made, "tiles")

    def post(
        self,
        lane: int,
        to: int,
        activation: str | None = None,
        *,
        gate: bool = False,
        heads: HeadFunctions | None = None,
    ) -> None:
        fields: dict[str, Any] = {"activation": ACTIVATIONS.index(activation) if activation else IDENTITY}
        if heads is not None:
            fields |= {"heads": int(heads.pitch < TILE), "rotate": int(heads.rotate), "table": int(heads.table)}
            fields["gains"] = int(heads.gains)
            if heads.columns:
                fields |= {"norm": 1, "columns": heads.columns, "eps": heads.eps, "rms": int(heads.rms)}
        self.made[f"Post{lane}"].append(Post(tiles=1, to=to, gate=int(gate), **fields))

    def softmax(self, pair: int, tiles: int, softmax: Softmax) -> None:
        unit = f"Soft{pair}"
        fields: dict[str, Any] = {"cap": softmax.cap or 0.0}
        if softmax.causal:
            fields |= {"causal": 1, "offset": softmax.offset}
        if softmax.low is not None:
            fields |= {"windowed": 1, "low": softmax.low}
        for name, value in (("keys", softmax.columns), ("first", softmax.first)):
            if isinstance(value, LengthField):
                patch = KernelPatch(unit, len(self.made[unit]), name, value.base, value.cap)
                self.patches[f"{value.parameter}[{value.sequence}]"].append(patch)
                fields[name] = value.cap if value.parameter == "len" else 0
            else:
                fields[name] = tiles * TILE if value is None else value
        self.made[unit].append(Soft(heads=1, tiles=tiles, **fields))

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
        return {unit: tuple(made) for unit, made in self.made.items() if not unit.startswith("MME") and made}

    def op_lists(self) -> dict[str, tuple[Mme, ...]]:
        return {unit: tuple(ops_of(made)) for unit, made in self.made.items() if unit.startswith("MME") and made}

    def repeat(self, length: int, times: int) -> Mme:
        return Mme(length=length, times=times)

    def moves(self, accesses: Sequence[Access]) -> list[Ddr]:
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


DDR_SINKS_OF = {name.replace("In", "") for name in DDR_SINKS}


def _peer(name: str) -> str:
    """The port of a memory that DDR has a stream from or to; other units are their own."""
    if f"{name[:-1]}In{name[-1]}" in DDR_SINKS:
        return f"{name[:-1]}In{name[-1]}"
    return name.replace("X", "XStore")


def _read(name: str) -> str:
    """The read port of a memory; W is its own."""
    return name if name[0] == "W" else f"{name[:-1]}Out{name[-1]}"


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
        alike = last is not None and (last.depth, last.k64, last.n64) == (g.depth, g.k64, g.n64)
        if last is not None and alike and last.results + g.results <= MOST_RESULTS:
            joined[-1] = Group(last.results + g.results, g.depth, g.k64, g.n64)
        else:
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
