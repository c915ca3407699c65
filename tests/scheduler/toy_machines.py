"""Machines that models are compiled for product by product, written as own overlays are: units, formats, `emit`.

::

    Ddr -> [LeftN] -> ProductN -> [Merge] -> PostN -> Ddr
        -> [RightN] ->                        ^
        -> [AddedN] --------------------------+   bias, scale, residual

The units in brackets may be absent. The kernels are in `toy_units`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from rsn.isa.fields import Record
from rsn.isa.layout import Layout
from rsn.isa.overlay import InstructionFormat, Overlay, Transfer, one_uop
from rsn.isa.work import (
    Access,
    Item,
    LengthField,
    Load,
    LoadVector,
    Multiply,
    Patched,
    Receive,
    Route,
    Send,
    Store,
    Turn,
)
from rsn.machine.description import Capability, Memory, Rate, Stream, UnitSpec, Where

from .toy_units import (
    ACTIVATIONS,
    NORMS,
    AddedUnit,
    DdrUnit,
    Hold,
    HoldUnit,
    MergeUnit,
    Move,
    Pass,
    Post,
    PostUnit,
    Product,
    ProductUnit,
    Tile,
)

POST_OPS = (*ACTIVATIONS, *NORMS, "softmax", "mask", "causal_mask", "bias", "scale", "residual", "sum")


@dataclass(frozen=True)
class Toy:
    """The parameters of a toy machine.

    tiles: of each product unit. shared: all product units have one post unit, behind a switch. held: rows and columns
    of the memories of left operands, and of right operands, in tiles; None for no such memories. post_ops: what post
    units can do. transposes: the unit that can transpose, Ddr or Right. multiply: cycles of a product, by unit. room:
    factor by which streams are deeper than they must be. bank: bytes of each off-chip memory. apart: right operands
    come from an off-chip memory of their own. unit: elements of an address unit. added:
    vectors and residuals go through a memory.
    """

    name: str
    tiles: tuple[Tile, ...]
    strip: int = 256
    slots: int = 2
    shared: bool = False
    held: tuple[int, int] | None = None
    sums: bool = False
    post_ops: Sequence[str] = POST_OPS
    transposes: str = "Ddr"
    multiply: Sequence[float] = ()
    room: int = 1
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    bank: int = 1 << 24
    apart: bool = False
    unit: int = 1
    added: bool = False


def toy(t: Toy) -> Overlay:
    """Make a toy machine."""
    units, streams = _units(t), _streams(t)
    ports = {
        (s.src, s.dst, s.label) if s.src == unit else (s.dst, s.src, s.label, "store"): i
        for unit in ("Ddr", "Weights")
        for i, s in enumerate(s for s in streams if unit in (s.src, s.dst))
    }
    names = dict.fromkeys(u.kind for u in units)
    kinds = {kind: (opcode, FORMATS[kind]) for opcode, kind in enumerate(names, 1)}
    rates = {
        "ddr_read_gbs": Rate(20, "GB/s", "assumed", "DDR load"),
        "ddr_write_gbs": Rate(20, "GB/s", "assumed", "DDR store"),
        "word": Rate(0.1, "PL cycles", "assumed", "on-chip transfer"),
        "post": Rate(4, "PL cycles", "assumed", "post-op"),
    }
    for i in range(len(t.tiles)):
        cycles = t.multiply[i] if t.multiply else 16.0
        rates[f"multiply{i}"] = Rate(cycles, "PL cycles", "assumed", "compute")
    return Overlay(
        name=t.name,
        units=units,
        streams=streams,
        clock_hz=200e6,
        formats=tuple(
            InstructionFormat(
                kind, opcode, kind, record, not issubclass(record, Hold | Post), 1, UOPS.get(kind, one_uop)
            )
            for kind, (opcode, record) in kinds.items()
        ),
        rates=rates,
        terminators=tuple(kinds),
        banks={"ddr": t.bank, "weights": t.bank} if t.apart else {"ddr": t.bank},
        address_unit=t.unit,
        transfer=lambda unit, uop: transfer(unit, uop, t.unit),
        emit=lambda unit, items: emit(unit, items, ports, t.unit),
        layout=Layout.LINEAR,
    )


LOOPING = ("Ddr", "Weights", "Product", "Merge")
"""Kinds whose decoder loops over a window."""
FORMATS: dict[str, type[Record]] = {
    "Ddr": Move,
    "Weights": Move,
    "Left": Hold,
    "Right": Hold,
    "Added": Hold,
    "Product": Product,
    "Merge": Pass,
    "Post": Post,
}


def _units(t: Toy) -> tuple[UnitSpec, ...]:
    transposes = Capability("transpose", Where.LOAD)
    ddr = UnitSpec("Ddr", "Ddr", 0, DdrUnit, "ddr", capabilities=(transposes,) * (t.transposes == "Ddr"))
    out = [ddr, UnitSpec("Weights", "Weights", 0, DdrUnit, "weights")] if t.apart else [ddr]
    for i, (rows, depth, columns) in enumerate(t.tiles):
        if t.held is not None:
            left, right = Memory(rows, depth * t.held[0], t.slots), Memory(depth, columns * t.held[1], t.slots)
            right_can = (transposes,) * (t.transposes == "Right")
            out.append(UnitSpec(f"Left{i}", "Left", i, HoldUnit, memory=left))
            out.append(UnitSpec(f"Right{i}", "Right", i, HoldUnit, memory=right, capabilities=right_can))
        sizes = {"tile_rows": (rows,) * 2, "tile_depth": (depth,) * 2, "tile_columns": (columns,) * 2}
        able = Capability("matmul", limits={**sizes, **t.limits}, rate=f"multiply{i}", elements=rows * depth * columns)
        adds = (Capability("sum"),) * t.sums
        out.append(UnitSpec(f"Product{i}", "Product", i, ProductUnit, capabilities=(able, *adds)))
    can = []
    for op in t.post_ops:
        if op in (*ACTIVATIONS, *NORMS):
            can.append(Capability(op, Where.STORE, rate="post", elements=t.strip))
        elif op == "softmax":
            most = max(columns for _, _, columns in t.tiles)
            can.append(Capability(op, Where.RECEIVE, {"columns": (1, t.strip)}, "post", most))
        else:
            can.append(Capability(op, Where.RECEIVE))
    rows = max(tile[0] for tile in t.tiles)
    if t.shared:
        out.append(UnitSpec("Merge", "Merge", 0, MergeUnit))
    for i in range(1 if t.shared else len(t.tiles)):
        memory = Memory(rows if t.shared else t.tiles[i][0], t.strip, t.slots)
        if t.added:
            out.append(UnitSpec(f"Added{i}", "Added", i, AddedUnit, memory=Memory(rows, t.strip, t.slots)))
        out.append(UnitSpec(f"Post{i}", "Post", i, PostUnit, memory=memory, capabilities=tuple(can)))
    return tuple(out)


def _streams(t: Toy) -> tuple[Stream, ...]:
    out = []
    for i, (rows, depth, columns) in enumerate(t.tiles):
        sizes = {"left": rows * depth, "right": depth * columns}
        for label, size in sizes.items():
            product, memory = f"Product{i}", f"{label.title()}{i}"
            source = "Weights" if t.apart and label == "right" else "Ddr"
            if t.held is not None:
                out.append(Stream(source, memory, max(sizes.values()) * max(t.held) * t.room))
                out.append(Stream(memory, product, size * t.room, label))
            else:
                out.append(Stream(source, product, size * t.room, label))
        out.append(Stream(f"Product{i}", "Merge" if t.shared else f"Post{i}", rows * columns * t.room))
    most = max(rows * columns for rows, _, columns in t.tiles)
    if t.shared:
        out.append(Stream("Merge", "Post0", most * t.room))
    for i in range(1 if t.shared else len(t.tiles)):
        if t.added:
            out.append(Stream("Ddr", f"Added{i}", t.strip * t.room))
        out.append(Stream(f"Added{i}" if t.added else "Ddr", f"Post{i}", max(most, t.strip) * t.room))
        out.append(Stream(f"Post{i}", "Ddr", t.strip * t.room))
    return tuple(out)


def transfer(unit: UnitSpec, uop: Any, address_unit: int) -> Transfer | None:
    """The off-chip access of a uOP. One that transposes counts as all from its first to its last element."""
    if isinstance(uop, Move):
        span = (uop.chunks - 1) * uop.chunk_stride * address_unit
        return Transfer(str(unit.bank), uop.addr, span + uop.size, store=bool(uop.store))
    return None


def pieces(mop: Move, iteration: int) -> Iterator[Move]:
    """A uOP for each piece; one for all if they are transposed."""
    if mop.transpose:
        yield mop
        return
    for i in range(mop.chunks):
        yield mop.replace(addr=mop.addr + i * mop.chunk_stride, chunks=1, chunk_stride=0)


UOPS = {"Ddr": pieces, "Weights": pieces}


# -- instructions of work items

Ports = Mapping[tuple[str, ...], int]
"""The number of each stream of an off-chip unit: by unit, peer and label, and `store` if the unit stores what comes
over it."""


def emit(unit: UnitSpec, items: Iterable[Item], ports: Ports, address_unit: int) -> Iterator[Record | Patched]:
    """The instructions of a unit."""
    for item in items:
        match item:
            case Access():
                yield Move(
                    addr=item.addr // address_unit,
                    size=item.size,
                    chunks=item.chunks,
                    chunk_stride=item.stride // address_unit,
                    port=ports[(unit.name, item.peer, item.label, *(["store"] * item.store))],
                    store=int(item.store),
                    transpose=int(item.transpose),
                )
            case Turn() if unit.kind == "Post":
                yield _post(item)
            case Turn():
                yield _hold(item)
            case Route():
                (source, _), *_ = item.routes
                yield Pass(tiles=item.tiles, source=_number(source))
            case Multiply():
                yield Product(groups=item.column_groups, depth=item.depth, columns=item.columns, sums=int(item.sums))


def _number(unit: str) -> int:
    return int(unit.removeprefix("Product"))


def _hold(turn: Turn) -> Hold:
    fields: dict[str, int] = {}
    match turn.fill:
        case Load(rows, columns, transpose):
            fields |= {"load": 1, "rows": rows, "columns": columns, "transpose": int(transpose)}
        case LoadVector(size):
            fields |= {"load": 1, "rows": 1, "columns": size}
    if isinstance(turn.drain, Send):
        fields |= {"send": 1, "tiles": turn.drain.columns, "times": turn.drain.times}
    return Hold(**fields)


def _post(turn: Turn) -> Post | Patched:
    fields: dict[str, float] = {}
    patched: tuple[tuple[str, LengthField], ...] = ()
    fill, drain = turn.fill, turn.drain
    if isinstance(fill, Receive):
        fields |= {"receive": 1, "source": _number(fill.product), "rounds": fill.rounds, "tiles": fill.columns}
        fields |= {"bias": int(fill.bias), "scale": int(fill.scaled), "residual": int(fill.residual)}
        if fill.softmax is not None:
            keys = fill.softmax.columns
            fields |= {"softmax": 1, "causal": int(fill.softmax.causal), "offset": fill.softmax.offset}
            fields["keys"] = keys if isinstance(keys, int) else 0xFFFF
            if isinstance(keys, LengthField):
                fields["keys"] = 0
                patched = (("keys", keys),)
    if isinstance(drain, Store):
        fields |= {"store": 1, "rows": drain.rows, "columns": drain.columns}
        if drain.activation is not None:
            fields["activation"] = 1 + list(ACTIVATIONS).index(drain.activation)
        if drain.norm is not None:
            fields |= {"norm": 2 if drain.norm.rms else 1, "norm_columns": drain.norm.columns, "eps": drain.norm.eps}
    record = Post(**fields)
    return Patched(record, patched) if patched else record


TOY3 = toy(Toy("toy3", tiles=((32, 32, 32),)))
"""Three units: off-chip memory, product, post-op."""
TOY5 = toy(Toy("toy5", tiles=((64, 32, 64), (32, 32, 32)), multiply=(64, 16)))
"""Two product units of different sizes, each with a post unit of its own."""
TOY5_SHARED = toy(
    Toy("toy5-shared", ((64, 32, 64), (32, 32, 32)), shared=True, held=(4, 1), transposes="Right", added=True)
)
"""The same with one post unit behind a switch, and memories for operands."""


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    """Any toy machine, which may lack what models need."""
    sizes = st.sampled_from([4, 8, 12, 16])
    tiles = draw(st.lists(st.tuples(sizes, sizes, sizes), min_size=1, max_size=3).map(tuple))
    held = draw(st.none() | st.tuples(st.integers(1, 4), st.integers(1, 2)))
    counts = {"depth": st.integers(1, 4), "columns": st.integers(1, 3), "column_groups": st.integers(1, 3)}
    rare = draw(st.integers(0, 2)) == 0
    return Toy(
        "drawn",
        tiles,
        strip=draw(st.sampled_from([16, 40, 64, 200])),
        slots=draw(st.integers(2, 4)),
        shared=draw(st.booleans()),
        held=held,
        sums=draw(st.booleans()),
        post_ops=draw(st.lists(st.sampled_from(POST_OPS), unique=True, min_size=6).map(tuple)) if rare else POST_OPS,
        transposes=draw(st.sampled_from(["Ddr", "Ddr" if held is None else "Right"])),
        multiply=draw(st.lists(st.integers(0, 90), min_size=len(tiles), max_size=len(tiles))),
        room=draw(st.integers(1, 3)),
        unit=draw(st.sampled_from([1, 2, 4])),
        added=draw(st.booleans()),
        limits={name: (0, draw(most)) for name, most in counts.items() if draw(st.booleans())},
    )
