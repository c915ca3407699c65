"""What each unit of the XNN overlay does with a uOP: stream effects, time and data, stated once (contract 1.4 and 2).

Streams count words: 256 to a 128x64 block on the off-chip side (1024 bit each), one to a 128x128 tile elsewhere.
Buffers are fresh arrays at every load, so that a tile on its way is never overwritten. What a unit has not received is
NaN: reading it shows in the result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ...base.errors import ProgramError
from ...machine.description import UnitSpec
from ...machine.executor import ProcessNetwork
from ...machine.steps import Burst, Channel, Par, Step, Steps
from ...machine.unit import Unit
from ..layout import BLOCK, QUARTER, UNIT, block, padded, unblock
from ..overlay import Transfer
from . import xnn_formats as f

Array = npt.NDArray[np.float32]
Places = tuple[tuple[int, int], ...]
Pieces = Sequence[Array] | Array
"""Payloads of a burst: the rows of an array count as well."""


TILE = 128
BLOCK_WORDS = 256
LANES = 16
"""Streams of 64 bit between a Mesh or a MemC and an MME."""
BEAT = 32
"""Floats in a beat, which is a word of 1024 bit: two of each lane."""
BEATS = TILE * TILE // BEAT
"""Mesh beats in a tile."""
BIAS_WORD = 16
"""Floats in a stream word of bias mode."""
FETCH_WORDS = 8
"""Words of the image that are fetched ahead of the dispatcher."""


class Tiles(Sequence[Array]):
    """128x128 tiles of one matrix, in any order: what a burst of tiles is, as long as nobody takes it apart.

    places: row and column, in tiles, of each.
    """

    __slots__ = ("matrix", "places")

    def __init__(self, matrix: Array, places: Places) -> None:
        self.matrix = matrix
        self.places = places

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Array]:
        return (self._tile(i, j) for i, j in self.places)

    @overload
    def __getitem__(self, at: int) -> Array: ...
    @overload
    def __getitem__(self, at: slice) -> Tiles: ...
    def __getitem__(self, at: int | slice) -> Array | Tiles:
        return Tiles(self.matrix, self.places[at]) if isinstance(at, slice) else self._tile(*self.places[at])

    def _tile(self, i: int, j: int) -> Array:
        return self.matrix[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE]

    def block(self, rows: int, cols: int) -> Array:
        """The upper left part of the matrix, in tiles."""
        return self.matrix[: rows * TILE, : cols * TILE]


@cache
def tile_rows(rows: int, times: int) -> Places:
    """Each of `rows` tiles of a column so often: the order of a left operand."""
    return tuple((i, 0) for i in range(rows) for _ in range(times))


@cache
def tile_columns(times: int, cols: int) -> Places:
    """A row of `cols` tiles, so often: the order of a right operand."""
    return tuple((0, j) for _ in range(times) for j in range(cols))


@cache
def tile_grid(rows: int, cols: int) -> Places:
    """Row after row."""
    return tuple((i, j) for i in range(rows) for j in range(cols))


class OffChip(Unit):
    """DDR and LPDDR: one uOP after another, strictly in order, reading and writing never overlapped."""

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.read_only = spec.bank == "lpddr"
        self._read, self._write = f"{spec.bank}_read_gbs", f"{spec.bank}_write_gbs"
        self._begun: dict[tuple[str, bool], int] = {}
        """Elements of a block that quarters have left begun, by peer and direction."""

    def kernel(self, uop: f.Transfer) -> Steps:
        if not uop.peer:
            return
        yield Step("offchip_uop")
        at = uop.addr * UNIT
        for pieces, size in self._pieces(uop):
            if pieces:
                yield self._move(uop, at, pieces, size)
            at += pieces * size

    def _pieces(self, uop: f.Transfer) -> Iterator[tuple[int, int]]:
        """How many of which size. Who is at the other end takes whole blocks, so one that quarters have begun is
        completed first: a stream has room for one."""
        if uop.bias:
            whole, rest = divmod(uop.size, BLOCK_WORDS * BIAS_WORD)
            yield whole, BLOCK_WORDS * BIAS_WORD
            yield int(rest > 0), rest
            return
        begun = self._begun.get((uop.peer, uop.store), 0)
        first = min(-begun % BLOCK, padded(uop.size, QUARTER))
        whole, rest = divmod(uop.size - first, BLOCK)
        yield first // QUARTER, QUARTER
        yield whole, BLOCK
        yield -(-rest // QUARTER), QUARTER
        self._begun.pop((uop.peer, uop.store), None)
        if left := (begun + padded(uop.size, QUARTER)) % BLOCK:
            self._begun[uop.peer, uop.store] = left

    def _move(self, uop: f.Transfer, start: int, pieces: int, size: int) -> Burst:
        """So many pieces of `size` elements each, from element `start` on."""
        words = size // BIAS_WORD if uop.bias else size * BLOCK_WORDS // BLOCK
        at = start

        def fetch(n: int) -> tuple[Array]:
            nonlocal at
            at += n * size
            return (self.read(at - n * size, n * size).reshape(n, size),)

        def keep(n: int, tokens: Pieces) -> None:
            nonlocal at
            for token in tokens.reshape(1, -1) if isinstance(tokens, np.ndarray) else tokens:
                self.write(at, token)
                at += len(token)

        if uop.store:
            source = (self.source(uop.peer),)
            return Burst(pieces, self._write, size * 4, gets=source, words=words, do=keep)
        return Burst(pieces, self._read, size * 4, puts=(self.sink(uop.peer),), words=words, do=fetch)

    def effect_key(self, uop: f.Transfer) -> Hashable:
        if not uop.bias and (self._begun or uop.size % BLOCK):
            return None  # what it does depends on what has been begun
        return uop.size, uop.store, uop.peer, uop.bias


class PingPong(Unit):
    """A double buffer whose flag `cur` flips after every uOP, the empty ones included, and lives for the whole run. The
    flag says which buffer a step touches, not which steps there are: it takes no part in any `effect_key`."""

    ROWS = 0
    COLS = 0

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.cur = 0
        self.buffers: list[Array] = []
        if net.data:
            self.buffers = [np.full((self.ROWS, self.COLS), np.nan, np.float32) for _ in range(2)]

    def fresh(self, side: int, rows: int, cols: int) -> None:
        """Replace a buffer before rows x cols of it are overwritten; the rest stays stale."""
        if self.buffers:
            old = self.buffers[side]
            whole = rows >= self.ROWS and cols >= self.COLS
            self.buffers[side] = np.empty_like(old) if whole else old.copy()

    def load(self, source: Channel, uop: f.MemA | f.MemB) -> Burst:
        """Fill the buffer that is not current with dim1 x dim2, in 128x64 blocks as they come."""
        side = 1 - self.cur
        rows, cols = uop.dim1, uop.dim2
        count = (rows // 128) * (cols // 64)
        places = iter(_blocks(rows, cols))
        self.fresh(side, rows, cols)

        def put(n: int, pieces: Pieces) -> None:
            if n == count and isinstance(pieces, np.ndarray):  # all of them, as they lay in memory
                if (rows, cols) == (self.ROWS, self.COLS):
                    self.buffers[side] = unblock(pieces, rows, cols)
                else:
                    self.buffers[side][:rows, :cols] = unblock(pieces, rows, cols)
                return
            buffer = self.buffers[side]
            for piece, (i, j) in zip(pieces, islice(places, n), strict=True):
                buffer[i : i + 128, j : j + 64] = unblock(piece, 128, 64)

        return Burst(count, "mem_word", BLOCK_WORDS, gets=(source,), words=BLOCK_WORDS, do=put)

    def send(self, sink: Channel, side: int, index: Places) -> Burst:
        """Send tiles of a buffer."""
        at = 0

        def tiles(n: int) -> tuple[Tiles]:
            nonlocal at
            at += n
            return (Tiles(self.buffers[side], index[at - n : at]),)

        return Burst(len(index), "mesh_beat", BEATS, puts=(sink,), do=tiles)

    def lanes(self, *lanes: Steps | None) -> Steps:
        """Run what is enabled side by side, then flip."""
        active = [lane for lane in lanes if lane is not None]
        if len(active) > 1:
            yield Par(*active)
        elif active:
            yield from active[0]
        self.cur ^= 1


def _blocks(rows: int, cols: int) -> Iterator[tuple[int, int]]:
    """First row and column of each 128x64 block, row after row."""
    return ((i, j) for i in range(0, rows - 127, 128) for j in range(0, cols - 63, 64))


class MemA(PingPong):
    """LHS scratchpad, 256x128."""

    ROWS, COLS = 256, 128

    def kernel(self, uop: f.MemA) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send(uop) if uop.send else None)

    def effect_key(self, uop: f.MemA) -> Hashable:
        return uop

    def _load(self, uop: f.MemA) -> Steps:
        yield self.load(self.source("DDR"), uop)

    def _send(self, uop: f.MemA) -> Steps:
        yield self.send(self.sink("MeshA"), self.cur, tile_rows(uop.acc_a, uop.acc_b))


class MemB(PingPong):
    """RHS scratchpad of MME columns: MemB0 and MemB1, 128x512."""

    ROWS, COLS = 128, 512

    def kernel(self, uop: f.MemB) -> Steps:
        return self.lanes(self._load(uop) if uop.load else None, self._send(uop) if uop.send else None)

    def effect_key(self, uop: f.MemB) -> Hashable:
        return uop

    def _load(self, uop: f.MemB) -> Steps:
        if uop.bias:
            return self._load_vector(uop)
        if uop.transpose:
            return self._load_transposed(uop)
        return self._load_blocks(uop, self.source("LPDDR"))

    def _load_blocks(self, uop: f.MemB, source: Channel) -> Steps:
        yield self.load(source, uop)

    def _load_transposed(self, uop: f.MemB) -> Steps:
        """dim1 and dim2 are K and N after transposition; the blocks come as N x K."""
        side = 1 - self.cur
        self.fresh(side, uop.dim1, uop.dim2)
        places = iter(_blocks(uop.dim2, uop.dim1))

        def put(n: int, pieces: list[Array]) -> None:
            buffer = self.buffers[side]
            for piece, (i, j) in zip(pieces, islice(places, n), strict=True):
                buffer[j : j + 64, i : i + 128] = unblock(piece, 128, 64).T

        count, source = (uop.dim2 // 128) * (uop.dim1 // 64), (self.source("DDR"),)
        yield Burst(count, "mem_word", BLOCK_WORDS, gets=source, words=BLOCK_WORDS, do=put)

    def _load_vector(self, uop: f.MemB) -> Steps:
        """Groups of 32 floats: group g lands at row 4*(g mod dim1), columns 32*(g div dim1)."""
        side = 1 - self.cur
        rows, blocks = uop.dim1, uop.dim2
        self.fresh(side, 0, 0)

        def put(vector: Array) -> None:
            groups = vector.reshape(blocks, rows, 32).transpose(1, 0, 2).reshape(rows, blocks * 32)
            self.buffers[side][0 : 4 * rows : 4, 0 : blocks * 32] = groups

        words = rows * blocks * 32 // BIAS_WORD
        if words:
            yield Step("mem_word", words, gets=(self.source("LPDDR"),), words=words, do=put)

    def _send(self, uop: f.MemB) -> Steps:
        yield self.send(self.sink("MeshB"), self.cur, tile_columns(uop.acc_a, uop.acc_b))


class MemB2(MemB):
    """RHS scratchpad of the attention values: 512x64, sent as 128x128 tiles whose right half is 0."""

    ROWS, COLS = 512, 64

    def _load(self, uop: f.MemB) -> Steps:
        return self._load_blocks(uop, self.source("DDR"))

    def _send(self, uop: f.MemB) -> Steps:
        side = self.cur
        repeats = uop.acc_a * uop.acc_b
        order = iter([*range(uop.acc_k)] * repeats)

        def tiles(n: int) -> tuple[list[Array]]:
            return ([self._padded(side, k) for k in islice(order, n)],)

        yield Burst(uop.acc_k * repeats, "mesh_beat", BEATS, puts=(self.sink("MeshB"),), do=tiles)

    def _padded(self, side: int, k: int) -> Array:
        out = np.zeros((TILE, TILE), np.float32)
        out[:, :64] = self.buffers[side][k * 128 : k * 128 + 128]
        return out


class Mesh(Unit):
    """Copy tiles from each active source to all its active destinations, all sources in lock step."""

    def kernel(self, uop: f.MeshA | f.MeshB) -> Steps:
        routes: dict[str, list[str]] = {}
        for field in uop.FIELDS:
            if field.source and field.to and getattr(uop, field.name):
                routes.setdefault(field.source, []).append(field.to)
        gets = tuple(self.source(s) for s in routes)
        puts = tuple(self.sink(d) for dests in routes.values() for d in dests)
        fan = tuple(len(dests) for dests in routes.values())

        def copy(n: int, *tiles: Sequence[Array]) -> list[Sequence[Array]]:
            return [t for t, k in zip(tiles, fan, strict=True) for _ in range(k)]

        if gets:
            yield Burst(uop.size // BEATS, "mesh_beat", BEATS, gets=gets, puts=puts, do=copy)

    def effect_key(self, uop: f.MeshA | f.MeshB) -> Hashable:
        return uop


class Mme(Unit):
    """Matrix multiplication engine: 64 AIE tiles that multiply a 128x128 by a 128x128 tile."""

    @property
    def products(self) -> type[_Products]:
        """What multiplies tiles; with `sum`, all that depends on the order of summation."""
        return _Products

    @property
    def sum(self) -> type[_Sum]:
        return _Sum

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.a = self.source("MeshA")
        self.b = self.source("MeshB")
        self.c = self.sink(f"MemC{spec.index}")
        self.scale = np.empty(0, np.float32)
        self.bias = np.empty(0, np.float32)

    def kernel(self, op: f.Mme) -> Steps:
        full_k = bool(op.k128)
        full_n = bool(op.n128) or not full_k  # K = 64 mode ignores bits 22, 24, 25 and the bias
        acc_k, prev, bias = op.acc_k and full_k, op.prev and full_k, op.bias and full_k
        rate = "mme_tile_us" if full_k and full_n else "mme_k64_us" if full_n else "mme_n64_us"
        if op.load_prev:
            yield Step(gets=(self.b,), do=self._keep_scale, needs_whole_token=True)
        if bias:
            yield Step(gets=(self.b,), do=self._keep_bias, needs_whole_token=True)
        ab, c = (self.a, self.b), (self.c,)
        for _ in range(op.a_iter):
            for bi in range(op.b_iter):
                yield Step("mme_setup_us")
                block = [*range(bi * op.acc_b, (bi + 1) * op.acc_b)] * op.acc_a
                if prev:
                    scale = self._scaler(iter(block))
                    yield Burst(
                        len(block), "mesh_beat", BEATS, gets=(self.a,), puts=c, do=scale, needs_whole_token=True
                    )
                if acc_k and op.k_iter:
                    for t in block:
                        sums = self.sum(self._vector(t) if bias else None, full_n)
                        yield Burst(op.k_iter - 1, rate, gets=ab, do=sums.add, needs_whole_token=True)
                        yield Step(rate, gets=ab, puts=c, do=sums.emit, needs_whole_token=True)
                else:
                    products = self.products(self._bias(bi, op) if bias else None, op, full_k, full_n)
                    yield Burst(op.k_iter * len(block), rate, gets=ab, puts=c, do=products, needs_whole_token=True)

    def effect_key(self, op: f.Mme) -> Hashable:
        return op

    def _vector(self, t: int) -> Array:
        return self.bias[t * TILE : t * TILE + TILE]

    def _bias(self, bi: int, op: f.Mme) -> Array:
        return self.bias[bi * op.acc_b * TILE : (bi + 1) * op.acc_b * TILE]

    def _keep_bias(self, tile: Array) -> None:
        self.bias = vector_of(tile)

    def _keep_scale(self, tile: Array) -> None:
        self.scale = vector_of(tile)

    def _scaler(self, block: Iterator[int]) -> Any:
        def scale(n: int, tiles: list[Array]) -> tuple[list[Array]]:
            return ([x * self.scale[t * TILE : t * TILE + TILE] for x, t in zip(tiles, islice(block, n), strict=True)],)

        return scale


def vector_of(tile: Array) -> Array:
    """The 4096 floats that a bias load laid out in a B tile, in order."""
    return tile[::4].reshape(32, 4, 32).transpose(1, 0, 2).reshape(-1)


class _Products:
    """Tile products. bias: what to add to the rows of the first acc_a x acc_b of them. Columns beyond N are undefined,
    so NaN."""

    def __init__(self, bias: Array | None, op: f.Mme, full_k: bool, full_n: bool) -> None:
        self.bias, self.rows, self.cols, self.full_k, self.full_n = bias, op.acc_a, op.acc_b, full_k, full_n
        self.left, self.right = tile_rows(self.rows, self.cols), tile_columns(self.rows, self.cols)
        self.done = 0

    def __call__(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> tuple[Sequence[Array]]:
        if isinstance(a, Tiles) and isinstance(b, Tiles) and a.places == self.left and b.places == self.right:
            return (self._block(a.block(self.rows, 1), b.block(1, self.cols)),)
        out = [self._tile(x, y) for x, y in zip(a, b, strict=True)]
        return (out,)

    def _block(self, a: Array, b: Array) -> Tiles:
        """All of a slice of K in one product."""
        out = product(a, b, self.full_k, self.full_n)
        if self.bias is not None and not self.done:
            out += self.bias
        self.done += len(self.left)
        return Tiles(out, tile_grid(self.rows, self.cols))

    def _tile(self, a: Array, b: Array) -> Array:
        out = product(a, b, self.full_k, self.full_n)
        if self.bias is not None and self.done < len(self.left):
            at = self.done % self.cols * TILE
            out += self.bias[at : at + TILE]
        self.done += 1
        return out


def product(a: Array, b: Array, full_k: bool, full_n: bool) -> Array:
    """Of tiles, or of a column and a row of them. Only the first 64 of each tile's K and N count where it is not full;
    what is beyond N is NaN."""
    if not full_k:
        a, b = a[:, :64], b[:64]
    if full_n:
        return np.asarray(a @ b)
    out = np.full((len(a), b.shape[1]), np.nan, np.float32)
    for j in range(0, b.shape[1], TILE):
        np.matmul(a, b[:, j : j + 64], out=out[:, j : j + 64])
    return out


class _Sum:
    """Products summed over k inside the MME, one tile emitted."""

    def __init__(self, bias: Array | None, full_n: bool) -> None:
        self.bias, self.full_n = bias, full_n
        self.total: Array | None = None

    def add(self, n: int, a: Sequence[Array], b: Sequence[Array]) -> None:
        for x, y in zip(a, b, strict=True):
            more = product(x, y, True, self.full_n)
            if self.total is not None:
                self.total += more
            else:
                self.total = more if self.bias is None else more + self.bias

    def emit(self, a: Array, b: Array) -> tuple[Array]:
        self.add(1, [a], [b])
        assert self.total is not None
        return (self.total,)


class MemC(PingPong):
    """Result scratchpad, 256x512: receives and accumulates; applies softmax before its flip, activation and norm before
    its store. Neighbours are 0-1, 2-3 and 4-5."""

    ROWS, COLS = 256, 512

    def __init__(self, spec: UnitSpec, net: ProcessNetwork) -> None:
        super().__init__(spec, net)
        self.sends = spec.index < 4
        self.neighbour = f"MemC{spec.index ^ 1}"
        self.registers = f.MemCConfig()
        self.norm_links = (self.sink(self.neighbour, "norm"), self.source(self.neighbour, "norm"))
        if self.sends:
            self.softmax_links = (self.sink(self.neighbour, "softmax"), self.source(self.neighbour, "softmax"))

    def kernel(self, uop: f.MemC | f.MemCConfig) -> Steps:
        if isinstance(uop, f.MemCConfig):
            return self._configure(uop)
        out = self._send(uop) if uop.send and self.sends else self._store(uop) if uop.store else None
        return self.lanes(self._recv(uop) if uop.recv else None, out)

    def effect_key(self, uop: f.MemC | f.MemCConfig) -> Hashable | None:
        if isinstance(uop, f.MemCConfig):
            return None  # it sets the registers
        reg = self.registers
        return uop, reg.alone, reg.causal, reg.max_sub, reg.rms

    def _configure(self, uop: f.MemCConfig) -> Steps:
        self.registers = uop
        yield Step()

    # -- receiving side

    def _recv(self, uop: f.MemC) -> Steps:
        side = self.cur
        source = (self.source(f"MME{self.index}"),)
        rows = uop.recv_a & 3 if self.sends else uop.recv_a
        self.fresh(side, rows * TILE, uop.recv_b * TILE)
        block = tile_grid(rows, uop.recv_b)
        done = 0

        def put(n: int, tiles: Sequence[Array]) -> None:
            nonlocal done
            buffer = self.buffers[side]
            if isinstance(tiles, Tiles) and tiles.places == block and not done % len(block):
                pairs = [(buffer[: rows * TILE, : uop.recv_b * TILE], tiles.block(rows, uop.recv_b))]
            else:
                places = (block[i % len(block)] for i in range(done, done + n))
                parts = (buffer[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE] for i, j in places)
                pairs = list(zip(parts, tiles, strict=True))
            for i, (part, tile) in enumerate(pairs, done):
                if i < len(block):  # nothing is in it yet
                    part[:] = tile
                else:
                    part += tile
            done += n

        yield Burst(uop.k_iter * len(block), "mesh_beat", BEATS, gets=source, do=put)
        if uop.softmax and self.sends:
            yield from self._softmax(side, rows, uop.recv_b)

    def _softmax(self, side: int, row_tiles: int, col_tiles: int) -> Steps:
        """exp over the valid columns, divided by the row sum over both neighbours.

        A pass walks over all that was received, whatever is masked: one for the maxima where they are subtracted, one
        for exp, one for the division. Between passes a number per row goes to the neighbour and comes back, at the cost
        of filling the two loops that do it."""
        reg = self.registers
        rows, cols = row_tiles * TILE, col_tiles * TILE
        beats = row_tiles * col_tiles * BEATS
        some = int(beats > 0)
        state = _Softmax(self, side, rows, cols)
        yield Step("softmax_fill", some, do=state.begin)
        if reg.alone:
            yield Step("softmax_max_fill", some * reg.max_sub)
            yield Step("softmax_beat", (2 + reg.max_sub) * beats, do=state.finish)
            return
        out, back = self.softmax_links
        if reg.causal:  # the odd unit counts its columns behind the even one's
            yield Step(puts=(out,), do=lambda: (cols,))
            yield Step(gets=(back,), do=state.set_left)
        if reg.max_sub:
            yield Step("softmax_max_fill", some)
            yield Step("softmax_beat", beats)
            yield Step("exchange_fill", puts=(out,), words=rows, do=state.own_max)
            yield Step("exchange_fill", gets=(back,), words=rows, do=state.other_max)
        yield Step("softmax_beat", beats)
        if cols:
            yield Step("exchange_fill", puts=(out,), words=rows, do=state.own_sum)
        yield Step("exchange_fill", gets=(back,), words=rows, do=state.other_sum)
        yield Step("softmax_beat", beats, do=state.finish)

    # -- sending side

    def _send(self, uop: f.MemC) -> Steps:
        side = 1 - self.cur
        rows, depth = range(uop.send_a), range(uop.send_k & 3)
        index = tuple((a, k) for a in rows for _ in range(uop.send_b) for k in depth)
        yield self.send(self.sink("MeshA"), side, index)

    def _store(self, uop: f.MemC) -> Steps:
        side = 1 - self.cur
        reg = self.registers
        if uop.gelu or uop.layernorm:
            self.fresh(side, 0, 0)  # tiles of it may still be on their way: an earlier uOP may have sent them
        if uop.gelu:
            cols = self.COLS if uop.layernorm else uop.dim2

            def activate() -> None:
                part = self.buffers[side][: uop.dim1, :cols]
                part[:] = activation(part, reg.activation)

            beats = uop.dim1 * self.COLS // BEAT  # all columns, whatever is stored
            yield Step("gelu_beat", beats, do=activate)
        if uop.layernorm:
            yield from self._norm(side, uop.dim1)
        sink = (self.sink("DDR"),)
        count = (uop.dim1 // 128) * (uop.dim2 // 64)
        places = iter(_blocks(uop.dim1, uop.dim2))

        def pieces(n: int) -> tuple[Pieces]:
            buffer = self.buffers[side]
            if n == count:
                return (block(buffer[: uop.dim1, : uop.dim2]).reshape(count, BLOCK),)
            return ([block(buffer[i : i + 128, j : j + 64]) for i, j in islice(places, n)],)

        yield Burst(count, "mem_word", BLOCK_WORDS, puts=sink, words=BLOCK_WORDS, do=pieces)

    def _norm(self, side: int, rows: int) -> Steps:
        """Two passes over own and neighbour's columns; sums are exchanged together with counts."""
        out, back = self.norm_links
        state = _Norm(self, side, rows)
        yield Step("norm_us", rows / self.ROWS)
        if not self.registers.rms:
            yield Step(puts=(out,), words=rows, do=state.own_sum)
            yield Step(gets=(back,), words=rows, do=state.other_sum)
        yield Step(puts=(out,), words=rows, do=state.own_squares)
        yield Step(gets=(back,), words=rows, do=state.other_squares)


class _Softmax:
    """The data of one softmax on one MemC, between its exchanges with the neighbour."""

    def __init__(self, unit: MemC, side: int, rows: int, cols: int) -> None:
        self.reg = unit.registers
        self.odd = unit.index & 1
        self.unit, self.side, self.rows, self.cols = unit, side, rows, cols
        self.left = 0

    def begin(self) -> None:
        self.x = self.unit.buffers[self.side][: self.rows, : self.cols]
        if self.reg.scale != 1.0:
            self.x *= np.float32(self.reg.scale)
        self.top = np.zeros(self.rows, np.float32)
        self.total = np.zeros(self.rows, np.float32)

    def set_left(self, columns: int) -> None:
        self.left = columns if self.odd else 0

    def _valid(self) -> npt.NDArray[np.bool_] | None:
        reg = self.reg
        if reg.softmax_cols >= self.cols and not reg.causal:
            return None
        c = np.arange(self.cols)
        valid = np.broadcast_to(c < reg.softmax_cols, (self.rows, self.cols))
        if reg.causal:
            valid = valid & (c[None] + self.left <= np.arange(self.rows)[:, None] + reg.offset)
        return valid

    def own_max(self) -> tuple[Array]:
        valid = self._valid()
        x = self.x if valid is None else np.where(valid, self.x, -np.inf)
        self.top = x.max(axis=1, initial=-np.inf).astype(np.float32)
        return (self.top,)

    def other_max(self, top: Array) -> None:
        self.top = np.maximum(self.top, top)

    def own_sum(self) -> tuple[Array]:
        self._exp()
        return (self.total,)

    def _exp(self) -> None:
        if self.reg.max_sub:
            if self.reg.alone:
                self.own_max()
            self.x -= np.where(np.isfinite(self.top), self.top, 0)[:, None]
        with np.errstate(over="ignore"):
            np.exp(self.x, out=self.x)
        valid = self._valid()
        if valid is not None:
            self.x[~valid] = 0
        self.total = self.x.sum(axis=1, dtype=np.float32)

    def other_sum(self, total: Array) -> None:
        self.total = self.total + total

    def finish(self) -> None:
        if self.reg.alone:
            self._exp()
        with np.errstate(invalid="ignore", divide="ignore"):
            self.x /= self.total[:, None]
        if self._valid() is not None:
            self.x[self.total == 0] = 0


class _Norm:
    """The data of one norm on one MemC. A sum travels with its column count."""

    def __init__(self, unit: MemC, side: int, rows: int) -> None:
        self.reg = unit.registers
        self.unit, self.side, self.rows = unit, side, rows
        self.count: Any = 0
        self.mean = np.zeros((rows, 1), np.float32)

    def _part(self) -> Array:
        return self.unit.buffers[self.side][: self.rows, : min(self.reg.norm_cols, self.unit.COLS)]

    def own_sum(self) -> tuple[Any]:
        part = self._part()
        self.sum, self.count = part.sum(axis=1, dtype=np.float32), part.shape[1]
        return ((self.sum, self.count),)

    def other_sum(self, token: Any) -> None:
        total, count = token
        self.mean = ((self.sum + total) / np.float32(max(self.count + count, 1)))[:, None]

    def own_squares(self) -> tuple[Any]:
        centred = self._part() - self.mean
        self.squares, self.count = np.square(centred).sum(axis=1, dtype=np.float32), centred.shape[1]
        return ((self.squares, self.count),)

    def other_squares(self, token: Any) -> None:
        total, count = token
        variance = (self.squares + total) / np.float32(max(self.count + count, 1))
        part = self._part()
        part -= self.mean
        part /= np.sqrt(variance + np.float32(self.reg.eps))[:, None]
        self.unit.buffers[self.side][: self.rows, part.shape[1] :] = 0


def erf(x: Array) -> Array:
    """The error function, float32."""
    from scipy import special  # here, because importing it takes longer than most commands

    return np.asarray(special.erf(x), np.float32)


def activation(x: Array, which: int) -> Array:
    """MemC's activation register applied to x: gelu tanh, gelu erf, relu, silu, identity."""
    match which:
        case 0:
            inner = np.float32(0.7978845608) * (x + np.float32(0.044715) * x * x * x)
            out = np.float32(0.5) * x * (1 + np.tanh(inner))
        case 1:
            out = np.float32(0.5) * x * (1 + erf(x * np.float32(0.7071067811865476)))
        case 2:
            out = np.maximum(x, 0)
        case 3:
            with np.errstate(over="ignore"):
                out = x / (1 + np.exp(-x))
        case 4:
            out = x
        case _:
            raise ProgramError(f"MemC activation {which} is not defined")
    return np.asarray(out, np.float32)


def legal(unit: str, uop: Any) -> Iterator[str]:
    """What the units cannot do although the bits allow it (contract sections 1.4, 2 and 7)."""
    match uop:
        case f.Transfer():
            if not uop.peer and uop.size:
                yield "names no destination or source"
            if uop.bias and uop.size % 32:
                yield f"a vector is a whole number of groups of 32, not {uop.size} elements"
            if uop.bias and uop.size // BIAS_WORD >= 1024:
                yield f"a vector has fewer than 1024 words of 16 floats, not {uop.size // BIAS_WORD}"
            if not uop.bias and uop.size % QUARTER:
                yield f"size {uop.size} is not a multiple of {QUARTER} elements"
            if uop.store and unit == "LPDDR":
                yield "LPDDR is read only"
        case f.MemA():
            if uop.load and (uop.dim1 > 256 or uop.dim2 > 128 or uop.dim1 % 128 or uop.dim2 % 64):
                yield f"load {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a 256x128 buffer"
            if uop.send and uop.acc_a > 2:
                yield f"acc_a={uop.acc_a} row tiles of a buffer with 2"
        case f.MemB():
            yield from _legal_mem_b(unit, uop)
        case f.MemC():
            yield from _legal_mem_c(unit, uop)
        case f.MemCConfig():
            if uop.activation > 4:
                yield f"activation {uop.activation} is not defined"
            if uop.softmax_cols > 512 and uop.softmax_cols != 1023:
                yield f"softmax_cols={uop.softmax_cols} is neither within 0..512 nor 1023"
            if uop.norm_cols > 512:
                yield f"norm_cols={uop.norm_cols} is not within 0..512"
        case f.MeshA() | f.MeshB():
            if uop.size % BEATS:
                yield f"size {uop.size} is not a whole number of tiles of {BEATS} beats"
            dests = [x.to for x in uop.FIELDS if x.to and getattr(uop, x.name)]
            if len(dests) != len(set(dests)):
                yield "two sources for one destination"
            if uop.size and not dests:
                yield "moves tiles along no route"
        case f.Mme():
            yield from _legal_mme(uop)


def _legal_mem_b(unit: str, uop: f.MemB) -> Iterator[str]:
    second = unit == "MemB2"
    if uop.load and uop.bias:
        if second:
            yield "MemB2 loads no vectors"
        if uop.dim1 > 32 or uop.dim2 > 4 or (uop.dim2 > 1 and uop.dim1 != 32):
            yield f"vector of {uop.dim2} column blocks of {uop.dim1} groups: at most 4 of exactly 32, or 1 of fewer"
    elif uop.load:
        if second and uop.transpose:
            yield "MemB2 does not transpose"
        rows, cols = (512, 64) if second else (128, 512)
        row_step, col_step = (64, 128) if uop.transpose else (128, 64)
        if uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % row_step or uop.dim2 % col_step:
            yield f"load {uop.dim1}x{uop.dim2} is no whole number of blocks of a {rows}x{cols} buffer"
    if uop.send and second and (uop.acc_k > 4):
        yield f"acc_k={uop.acc_k} row tiles of a buffer with 4"
    if uop.send and not second and uop.acc_b > 4:
        yield f"acc_b={uop.acc_b} column tiles of a buffer with 4"


def _legal_mem_c(unit: str, uop: f.MemC) -> Iterator[str]:
    if unit in ("MemC4", "MemC5") and (uop.send or uop.softmax):
        yield "has no way to MeshA and no softmax"
    if uop.recv and uop.softmax and not uop.recv_a & 3:
        yield "a softmax over no rows"
    if uop.store and uop.layernorm and not uop.dim1:
        yield "a norm over no rows"
    if uop.recv and (uop.recv_a > 2 or uop.recv_b > 4):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a buffer of 2x4"
    if uop.store and (uop.dim1 > 256 or uop.dim2 > 512 or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"store {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a 256x512 buffer"
    if uop.send and (uop.send_a > 2 or uop.send_k > 3):
        yield f"sends {uop.send_a}x{uop.send_k} tiles; 2x3 is the most"


def _legal_mme(op: f.Mme) -> Iterator[str]:
    if not op.k128:
        if op.bias:
            yield "K = 64 mode has no bias"
        return
    if op.bias and not op.n128:
        yield "a bias needs N = 128"
    if op.prev and not op.n128:
        yield "the previous-layer term needs N = 128"
    if op.acc_k and op.bias and (op.acc_a, op.acc_b) != (1, 1):
        yield "accumulating over k with a bias needs acc_a = acc_b = 1"
    if op.k_iter == 0 and not op.prev:
        yield "k_iter = 0 without a previous-layer term does nothing"
    if op.bias and op.b_iter * op.acc_b * TILE > 2048:
        yield f"a bias of {op.b_iter * op.acc_b * TILE} columns; 2048 is the most"
    if (op.load_prev or op.prev) and (op.b_iter > 1 or op.acc_b * TILE > 512):
        yield "previous-layer weights reach 512 columns, b_iter = 1 only"


def transfer(unit: str, uop: Any) -> Transfer | None:
    """The off-chip access of a uOP, None if it makes none."""
    if isinstance(uop, f.Transfer) and uop.peer and uop.size:
        return Transfer(unit.lower(), uop.addr, uop.size, uop.store)
    return None


def flops(op: f.Mme) -> int:
    """Multiply-adds of one MME op, counted as 2 each, without the padding of 64-wide modes."""
    k, n = (128 if op.k128 else 64), (128 if op.n128 or not op.k128 else 64)
    return 2 * op.a_iter * op.b_iter * op.k_iter * op.acc_a * op.acc_b * TILE * k * n
