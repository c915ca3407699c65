"""Machines that models are compiled for product by product, written as own overlays are: units, formats, `emit`.

::

    Ddr -> [LeftN] -> ProductN -> [Merge] -> PostN -> Ddr
        -> [RightN] ->                        ^
        --------------------------------------+   bias, scale, residual

Streams count elements. A product unit takes whole tiles, the post unit whole tiles and rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy.special import erf

from rsn.isa.fields import Record, bits
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
from rsn.machine.steps import Par, Step, Steps
from rsn.machine.unit import Unit
from rsn.machine.wiring import Wiring

Tile = tuple[int, int, int]
"""Rows, K and columns of a product."""

# -- instructions


class Move(Record, words=5):
    """Ddr: move `chunks` pieces of `size` elements to or from a port."""

    addr: int = bits(0, 0, 32, "first element")
    size: int = bits(1, 0, 16, "elements of a piece")
    chunks: int = bits(1, 16, 16, "pieces")
    chunk_stride: int = bits(2, 0, 32, "elements from one piece to the next")
    port: int = bits(3, 0, 8, "stream, in the order of the unit's")
    store: int = bits(3, 8, 1, "write off-chip memory")
    transpose: int = bits(3, 9, 1, "the pieces are rows of a matrix that is sent transposed")


class Hold(Record, words=3):
    """Left, Right: fill a slot while another is sent."""

    load: int = bits(0, 0, 1, "fill a slot")
    rows: int = bits(0, 1, 15, "rows to fill")
    columns: int = bits(0, 16, 15, "columns to fill")
    transpose: int = bits(0, 31, 1, "they come transposed")
    send: int = bits(1, 0, 1, "send a slot")
    tiles: int = bits(1, 1, 15, "tiles to send, side by side")
    times: int = bits(2, 0, 16, "how often")


class Product(Record, words=2):
    """Product: multiply tiles."""

    groups: int = bits(0, 0, 16, "column groups")
    depth: int = bits(0, 16, 16, "tiles of K")
    columns: int = bits(1, 0, 16, "tiles in a group")
    sums: int = bits(1, 16, 1, "add over K")


class Pass(Record, words=1):
    """Merge: pass tiles on from a product unit."""

    tiles: int = bits(0, 0, 24, "tiles")
    source: int = bits(0, 24, 8, "number of the product unit")


class Post(Record, words=6):
    """Post: receive a strip while another is stored."""

    receive: int = bits(0, 0, 1, "fill a slot")
    source: int = bits(0, 1, 7, "number of the product unit")
    rounds: int = bits(0, 8, 12, "rounds of products to add up")
    tiles: int = bits(0, 20, 12, "tiles of the strip")
    bias: int = bits(1, 0, 1, "take a bias")
    scale: int = bits(1, 1, 1, "take a scale of the residual")
    residual: int = bits(1, 2, 1, "take a residual")
    softmax: int = bits(1, 3, 1, "apply softmax")
    causal: int = bits(1, 4, 1, "hide columns behind the row")
    offset: int = bits(1, 5, 16, "first row")
    keys: int = bits(2, 0, 16, "columns that softmax is over")
    store: int = bits(2, 16, 1, "store a slot")
    activation: int = bits(2, 17, 3, "activation, 0 for none")
    norm: int = bits(2, 20, 2, "1 LayerNorm, 2 RMSNorm")
    rows: int = bits(3, 0, 16, "rows to store")
    columns: int = bits(3, 16, 16, "columns to store")
    norm_columns: int = bits(4, 0, 16, "columns that the norm is over")
    eps: float = bits(5, 0, 32, "added to the variance", default=0.0, real=True)


# -- units


class DdrUnit(Unit):
    """Loads and stores, in the order of its list."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        ports = net.machine.ports[spec.name]
        self.ports = [self.source(p.peer, p.label) if p.receives else self.sink(p.peer, p.label) for p in ports]

    def kernel(self, uop: Move) -> Steps:
        port = self.ports[uop.port]
        if uop.transpose:
            span = (uop.chunks - 1) * uop.chunk_stride + 1
            for i in range(uop.addr, uop.addr + uop.size):

                def column(i: int = i) -> tuple[Any]:
                    return (self.read(i, span)[:: uop.chunk_stride],)

                yield Step("ddr_read_gbs", 4 * uop.chunks, puts=(port,), words=uop.chunks, do=column)
            return
        if uop.store:
            store = lambda x: self.write(uop.addr, x.reshape(-1))  # noqa: E731
            yield Step("ddr_write_gbs", 4 * uop.size, gets=(port,), words=uop.size, do=store)
        else:
            load = lambda: (self.read(uop.addr, uop.size),)  # noqa: E731
            yield Step("ddr_read_gbs", 4 * uop.size, puts=(port,), words=uop.size, do=load)

    def effect_key(self, uop: Move) -> Hashable:
        return uop.replace(addr=0)


class Slots(Unit):
    """A memory: an operation fills a slot while it drains the one that the operation before filled."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        assert spec.memory is not None
        shape = spec.memory.rows, spec.memory.columns
        self.slots = [np.full(shape, np.nan, np.float32) for _ in range(spec.memory.slots)]
        self.filled = 0

    def lanes(self, fill: Steps | None, drain: Steps | None) -> Steps:
        yield Par(*(lane for lane in (fill, drain) if lane is not None))
        self.filled = (self.filled + 1) % len(self.slots)

    @property
    def draining(self) -> Any:
        return self.slots[self.filled - 1]

    @property
    def filling(self) -> Any:
        return self.slots[self.filled]


class HoldUnit(Slots):
    """An operand's memory. Its product unit has its number."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.tile = tile_of(net.machine.by_unit[f"Product{spec.index}"])
        self.label = spec.kind.lower()
        (into,) = (p for p in net.machine.ports[spec.name] if p.receives)
        self.into = self.source(into.peer)
        self.shape = self.tile[:2] if self.label == "left" else self.tile[1:]

    def kernel(self, uop: Hold) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send(uop) if uop.send else None)

    def effect_key(self, uop: Hold) -> Hashable:
        return uop

    def _load(self, uop: Hold) -> Steps:
        source, slot = self.into, self.filling
        rows, columns = (uop.columns, uop.rows) if uop.transpose else (uop.rows, uop.columns)
        for i in range(rows):

            def keep(x: Any, i: int = i) -> None:
                (slot.T if uop.transpose else slot)[i, :columns] = x.reshape(-1)

            yield Step("word", columns, gets=(source,), words=columns, do=keep)

    def _send(self, uop: Hold) -> Steps:
        sink, slot = self.sink(f"Product{self.index}", self.label), self.draining
        rows, columns = self.shape
        for _ in range(uop.times):
            for j in range(uop.tiles):
                piece = slice(j * columns, (j + 1) * columns)
                yield Step(
                    "word",
                    rows * columns,
                    puts=(sink,),
                    words=rows * columns,
                    do=lambda piece=piece: (slot[:rows, piece].copy(),),
                )


class ProductUnit(Unit):
    """Multiplies tiles."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.tile = tile_of(spec)
        into = {p.label: p.peer for p in net.machine.ports[spec.name] if p.receives}
        self.left, self.right = (self.source(into[label], label) for label in ("left", "right"))
        (out,) = (p.peer for p in net.machine.ports[spec.name] if not p.receives)
        self.out = self.sink(out)

    def kernel(self, uop: Product) -> Steps:
        if uop.sums:
            for _ in range(uop.groups * uop.columns):
                total = np.zeros((self.tile[0], self.tile[2]), np.float32)
                for _ in range(uop.depth):
                    yield from self._product(lambda x, total=total: np.add(total, x, out=total))
                yield Step(puts=(self.out,), words=total.size, do=lambda total=total: (total,))
            return
        for _ in range(uop.groups * uop.depth * uop.columns):
            made: list[Any] = []
            yield from self._product(made.append)
            size = self.tile[0] * self.tile[2]
            yield Step(puts=(self.out,), words=size, do=lambda made=made: (made.pop(),))

    def effect_key(self, uop: Product) -> Hashable:
        return uop

    def _product(self, then: Any) -> Steps:
        rows, depth, columns = self.tile
        taken: list[Any] = []
        yield Step(gets=(self.left,), words=rows * depth, do=taken.append)
        yield Step(gets=(self.right,), words=depth * columns, do=taken.append)

        def multiply() -> tuple[()]:
            left, right = taken
            then(left.reshape(rows, depth) @ right.reshape(depth, columns))
            return ()

        yield Step(f"multiply{self.index}", do=multiply)


class MergeUnit(Unit):
    """A switch: passes on tiles of one product unit at a time."""

    def kernel(self, uop: Pass) -> Steps:
        name = f"Product{uop.source}"
        source, sink = self.source(name), self.sink("Post0")
        rows, _, columns = tile_of(self._net.machine.by_unit[name])
        for _ in range(uop.tiles):
            yield Step("word", gets=(source,), puts=(sink,), words=rows * columns, do=lambda x: (x,))

    def effect_key(self, uop: Pass) -> Hashable:
        return uop


ACTIVATIONS = {
    "gelu_tanh": lambda x: x * np.float32(0.5) * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
NORMS = ("layernorm", "rmsnorm")


class PostUnit(Slots):
    """Receives strips, adds, applies softmax; at the store an activation and a norm."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.into = {p.peer: self.source(p.peer) for p in net.machine.ports[spec.name] if p.receives}
        self.merged = "Merge" in self.into

    def kernel(self, uop: Post) -> Steps:
        return self.lanes(self._receive(uop) if uop.receive else None, self._store(uop) if uop.store else None)

    def effect_key(self, uop: Post) -> Hashable:
        return uop

    def _receive(self, uop: Post) -> Steps:
        product = f"Product{uop.source}"
        tile = tile_of(self._net.machine.by_unit[product])
        rows, width = tile[0], tile[2]
        columns = uop.tiles * width
        slot = self.filling[:rows, :columns]
        vectors: dict[str, Any] = {"bias": np.float32(0), "scale": np.float32(1)}

        def begin() -> tuple[()]:
            slot[:] = vectors["bias"]
            return ()

        for name, is_taken in (("bias", uop.bias), ("scale", uop.scale)):
            if is_taken:
                yield Step(
                    gets=(self.into["Ddr"],),
                    words=columns,
                    do=lambda x, name=name: vectors.update({name: x.reshape(-1)}),
                )
        yield Step(do=begin)
        products = self.into["Merge" if self.merged else product]
        added = [products] * uop.rounds + [self.into["Ddr"]] * uop.residual
        for i, source in enumerate(added):
            for j in range(uop.tiles):

                def add(x: Any, i: int = i, j: int = j) -> None:
                    at = slice(j * width, (j + 1) * width)
                    scale = vectors["scale"]
                    factor = np.float32(1) if i < uop.rounds or np.ndim(scale) == 0 else scale[at]
                    slot[:, at] += x.reshape(rows, width) * factor

                yield Step("word", rows, gets=(source,), words=rows * width, do=add)
        if uop.softmax:
            yield Step("post", rows * uop.tiles, do=lambda: self._softmax(slot, uop))

    @staticmethod
    def _softmax(x: Any, uop: Post) -> tuple[()]:
        row, column = np.indices(x.shape)
        seen = column < uop.keys
        if uop.causal:
            seen &= column <= row + uop.offset
        x[~seen] = -np.inf
        x[:] = np.exp(x - x.max(axis=1, keepdims=True))
        x /= x.sum(axis=1, keepdims=True)
        return ()

    def _store(self, uop: Post) -> Steps:
        slot = self.draining[: uop.rows, : uop.columns]

        def finish() -> tuple[()]:
            if uop.activation:
                slot[:] = list(ACTIVATIONS.values())[uop.activation - 1](slot)
            if uop.norm:
                x = slot[:, : uop.norm_columns].astype(np.float64)
                x -= 0 if uop.norm == 2 else x.mean(axis=1, keepdims=True)
                slot[:] = 0
                slot[:, : uop.norm_columns] = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + uop.eps)
            return ()

        yield Step("post", uop.rows, do=finish)
        for i in range(uop.rows):
            yield Step("word", puts=(self.sink("Ddr"),), words=uop.columns, do=lambda i=i: (slot[i].copy(),))


def tile_of(spec: UnitSpec) -> Tile:
    """Rows, K and columns of a product unit's tile."""
    limits = spec.capabilities[0].limits
    return tuple(int(limits[name][0]) for name in ("tile_rows", "tile_depth", "tile_columns"))  # type: ignore[return-value]


# -- the machine as data

POST_OPS = (*ACTIVATIONS, *NORMS, "softmax", "mask", "causal_mask", "bias", "scale", "residual", "sum")


@dataclass(frozen=True)
class Toy:
    """The parameters of a toy machine.

    tiles: of each product unit. shared: all product units have one post unit, behind a switch. held: rows and columns
    of the memories of left operands, and of right operands, in tiles; None for no such memories. post_ops: what post
    units can do. transposes: the unit that can transpose, Ddr or Right. multiply: cycles of a product, by unit. room:
    factor by which streams are deeper than they must be. bank: bytes of each off-chip memory. apart: right operands
    come from an off-chip memory of their own.
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


def toy(t: Toy) -> Overlay:
    """Make a toy machine."""
    units, streams = _units(t), _streams(t)
    ports = {
        (s.src, s.dst, s.label) if s.src == unit else (s.dst, s.src, s.label, "store"): i
        for unit in ("Ddr", "Weights")
        for i, s in enumerate(s for s in streams if unit in (s.src, s.dst))
    }
    kinds = {u.kind: (1 + i, record) for i, (u, record) in enumerate((u, FORMATS[u.kind]) for u in units)}
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
        transfer=transfer,
        emit=lambda unit, items: emit(unit, items, ports),
        layout=Layout.LINEAR,
    )


LOOPING = ("Ddr", "Weights", "Product", "Merge")
"""Kinds whose decoder loops over a window."""
FORMATS: dict[str, type[Record]] = {
    "Ddr": Move,
    "Weights": Move,
    "Left": Hold,
    "Right": Hold,
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
    at_store = {*ACTIVATIONS, *NORMS}
    can = tuple(Capability(op, Where.STORE if op in at_store else Where.RECEIVE, rate="post") for op in t.post_ops)
    rows = max(tile[0] for tile in t.tiles)
    if t.shared:
        out.append(UnitSpec("Merge", "Merge", 0, MergeUnit))
    for i in range(1 if t.shared else len(t.tiles)):
        memory = Memory(rows if t.shared else t.tiles[i][0], t.strip, t.slots)
        out.append(UnitSpec(f"Post{i}", "Post", i, PostUnit, memory=memory, capabilities=can))
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
        out.append(Stream("Ddr", f"Post{i}", max(most, t.strip) * t.room))
        out.append(Stream(f"Post{i}", "Ddr", t.strip * t.room))
    return tuple(out)


def transfer(unit: str, uop: Any) -> Transfer | None:
    """The off-chip access of a uOP. One that transposes counts as all from its first to its last element."""
    if isinstance(uop, Move):
        bank = "ddr" if unit == "Ddr" else "weights"
        return Transfer(bank, uop.addr, (uop.chunks - 1) * uop.chunk_stride + uop.size, store=bool(uop.store))
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


def emit(
    unit: UnitSpec, items: Iterable[Item], ports: Mapping[tuple[str, str, bool], int]
) -> Iterator[Record | Patched]:
    """The instructions of a unit."""
    for item in items:
        match item:
            case Access():
                yield Move(
                    addr=item.addr,
                    size=item.size,
                    chunks=item.chunks,
                    chunk_stride=item.stride,
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
TOY5_SHARED = toy(Toy("toy5-shared", tiles=((64, 32, 64), (32, 32, 32)), shared=True, held=(4, 1), transposes="Right"))
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
        limits={name: (0, draw(most)) for name, most in counts.items() if draw(st.booleans())},
    )
