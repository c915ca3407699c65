"""The instructions and the kernels of the toy machines (`toy_machines`).

Streams count elements. A product unit takes whole tiles, the post unit whole tiles and rows.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from scipy.special import erf

from rsn.isa.fields import Record, bits
from rsn.isa.overlay import Overlay
from rsn.machine.description import UnitSpec
from rsn.machine.steps import Par, Step, Steps
from rsn.machine.unit import Unit, Wiring

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
        assert isinstance(net.machine, Overlay)
        self.unit = net.machine.address_unit
        self.ports = [self.source(p.peer, p.label) if p.receives else self.sink(p.peer, p.label) for p in ports]

    def kernel(self, uop: Move) -> Steps:
        port, addr, stride = self.ports[uop.port], uop.addr * self.unit, uop.chunk_stride * self.unit
        if uop.transpose:
            span = (uop.chunks - 1) * stride + 1
            for i in range(addr, addr + uop.size):

                def column(i: int = i) -> tuple[Any]:
                    return (self.read(i, span)[::stride],)

                yield Step("ddr_read_gbs", 4 * uop.chunks, puts=(port,), words=uop.chunks, do=column)
            return
        if uop.store:
            store = lambda x: self.write(addr, x.reshape(-1))  # noqa: E731
            yield Step("ddr_write_gbs", 4 * uop.size, gets=(port,), words=uop.size, do=store)
        else:
            load = lambda: (self.read(addr, uop.size),)  # noqa: E731
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


class AddedUnit(Slots):
    """A memory of what is added to products: vectors and tiles, in slots of their own size."""

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.shape = (0, 0)
        """Rows and columns that the last operation filled."""

    def kernel(self, uop: Hold) -> Steps:
        sent, self.shape = self.shape, (uop.rows, uop.columns)
        return self.lanes(self._load(uop) if uop.load else None, self._send(*sent) if uop.send else None)

    def _load(self, uop: Hold) -> Steps:
        slot = self.filling
        for i in range(uop.rows):

            def keep(x: Any, i: int = i) -> None:
                slot[i, : uop.columns] = x.reshape(-1)

            yield Step("word", uop.columns, gets=(self.source("Ddr"),), words=uop.columns, do=keep)

    def _send(self, rows: int, columns: int) -> Steps:
        slot, size = self.draining[:rows, :columns], rows * columns
        yield Step("word", size, puts=(self.sink(f"Post{self.index}"),), words=size, do=lambda: (slot.copy(),))


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
        self.added = self.into.get("Ddr") or self.into[f"Added{spec.index}"]

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
                    gets=(self.added,),
                    words=columns,
                    do=lambda x, name=name: vectors.update({name: x.reshape(-1)}),
                )
        yield Step(do=begin)
        products = self.into["Merge" if self.merged else product]
        added = [products] * uop.rounds + [self.added] * uop.residual
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
