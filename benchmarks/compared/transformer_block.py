"""The dataflow graph of a transformer block: its kernels, the orders of their streams, and their own memory.

Tensors are cut into tiles of `tile` x `tile` elements, which are the tokens. All kernels put their result row of tiles
by row of tiles. A product gets the tiles of its left operand once for each column of output tiles; a product of two
activations gets all of its right operand, keys or values, for each row of tiles. So a converter holds a row of tiles of
a left operand, and the whole tensor of keys or values.

Attention has its loops in the order rows, heads of keys, query heads of a head of keys, so that a query needs no more
than the tiles of its row. Positions (rotary), masks and scales change values, and no order.

Own memory of the kernels, in bytes, for elements of b bytes and accumulators of 4:

- product: the accumulators of an output tile; where one operand is weights, two tiles of them (one is loaded while the
  other is used), and two slices of a bias;
- norm, softmax: two strips (one is read while the other is put), each of the tiles that a result depends on: a row of
  the tensor, or of a head of it; two sums for each row of a strip; two slices of each vector of a norm's weights;
- rotary positions: two strips of a head; sum, product of elements, activation function: one tile;
- load of the input: two tiles.

A slice is `tile` elements of a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rsn.base.errors import ProgramError, ScheduleError
from rsn.streams.dataflow.graph import Dataflow, Edge, KernelNode
from rsn.streams.orders.order import Axis, Order

ACCUMULATOR_BYTES = 4


@dataclass(frozen=True)
class Again:
    """A loop that gets the same tiles in each of its trips."""

    trips: int


@dataclass(frozen=True)
class BlockShape:
    """The shape of a transformer block, with a norm before attention and one before the feed-forward network.

    length: rows (tokens of a sequence). hidden: columns. ffn: columns between the products of the feed-forward network.
    heads: of queries. kv_heads: of keys and values, `heads` if not given. head_dim: columns of a head, hidden / heads
    if not given. activation: name of the function. gated: its result is multiplied with a second product. rotary:
    queries and keys carry positions. head_norms: queries and keys have norms. after_norms: the results of attention and
    of the feed-forward network have norms before they are added. layer_norms: norms subtract a mean and add a bias.
    bias: products add one.
    """

    length: int
    hidden: int
    ffn: int
    heads: int = 1
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "gelu"
    gated: bool = False
    rotary: bool = False
    head_norms: bool = False
    after_norms: bool = False
    layer_norms: bool = True
    bias: bool = True

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads if self.kv_heads is not None else self.heads

    @property
    def columns(self) -> int:
        """Columns of a head."""
        return self.head_dim if self.head_dim is not None else self.hidden // self.heads

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that are cut into tiles, by name."""
        return {"length": self.length, "hidden": self.hidden, "ffn": self.ffn, "head_dim": self.columns}

    def check(self, tile: int) -> None:
        """Raise `ProgramError` if a size is less than 1 or heads do not divide, and `ScheduleError` if `tile` does not
        divide a size."""
        if min(self.heads, self.key_heads) < 1:
            raise ProgramError(f"a block of {self.heads} heads and {self.key_heads} heads of keys; the least is 1")
        if self.heads % self.key_heads:
            raise ProgramError(f"{self.heads} heads cannot share {self.key_heads} heads of keys evenly")
        if self.head_dim is None and self.hidden % self.heads:
            raise ProgramError(f"{self.heads} heads do not divide {self.hidden} columns; give head_dim")
        for name, size in self.sizes.items():
            if size < 1:
                raise ProgramError(f"{name} is {size}; the least is 1")
            if tile < 1 or size % tile:
                raise ScheduleError(f"a tile of {tile} does not divide {name}, {size}; choose one that does")


def block(shape: BlockShape, tile: int, dtype: str = "i8", layers: int = 1) -> Dataflow:
    """Return the graph of a block, or of several in a row. tile: rows and columns of a token. dtype: of all tensors.
    layers: how many blocks; if there are several, the names of their nodes begin with the number of the block, as 3.ln.

    Its nodes: x (the input), ln, q, k, v, qk, softmax, sv, proj, add, ln_2, up, the activation, down, add_2; with a
    gate also gate and mul; with positions and norms of heads also q_norm, k_norm, q_rotary, k_rotary; with norms after
    also proj_norm and down_norm. Raises `ProgramError` for sizes that are no shape, and `ScheduleError` for a tile that
    does not divide them.
    """
    shape.check(tile)
    if layers < 1:
        raise ProgramError(f"layers is {layers}; the least is 1")
    return _BlockBuilder(shape, tile, dtype).build(layers)


class _BlockBuilder:
    """Makes nodes in topological order, and the edges into each."""

    def __init__(self, shape: BlockShape, tile: int, dtype: str) -> None:
        self.shape, self.tile, self.dtype = shape, tile, dtype
        self.nodes: list[KernelNode] = []
        self.edges: list[Edge] = []
        self.put: dict[str, Order] = {}
        self.prefix = ""
        self.element_bytes = rows((tile, tile), tile, dtype).bytes_per_token // tile**2

    def build(self, layers: int) -> Dataflow:
        x = self.add("x", "load", (self.shape.length, self.shape.hidden), 2 * self.tile_bytes())
        for layer in range(layers):
            self.prefix = f"{layer}." if layers > 1 else ""
            x = self.layer(x)
        return Dataflow(tuple(self.nodes), tuple(self.edges))

    def layer(self, x: str) -> str:
        hidden = self.shape.length, self.shape.hidden
        attended = self.attention(self.norm("ln", x, hidden))
        if self.shape.after_norms:
            attended = self.norm("proj_norm", attended, hidden)
        middle = self.sum("add", attended, x)
        result = self.feed_forward(self.norm("ln_2", middle, hidden))
        if self.shape.after_norms:
            result = self.norm("down_norm", result, hidden)
        return self.sum("add_2", result, middle)

    def attention(self, x: str) -> str:
        shape, tile = self.shape, self.tile
        length, columns = shape.length, shape.columns
        shared = shape.heads // shape.key_heads
        queries = length, shape.key_heads, shared, columns
        keys = length, shape.key_heads, columns
        scores = length, shape.key_heads, shared, length
        q, k = (self.product(name, x, sizes) for name, sizes in (("q", queries), ("k", keys)))
        v = self.product("v", x, keys)
        if shape.head_norms:
            q, k = self.norm("q_norm", q, queries), self.norm("k_norm", k, keys)
        if shape.rotary:
            strips = 2 * self.tile_bytes(columns // tile)
            q = self.add("q_rotary", "rotary", queries, strips, (q, self.put[q]))
            k = self.add("k_rotary", "rotary", keys, strips, (k, self.put[k]))
        # Loops of qk: rows, heads of keys, their queries, columns of scores, columns of the head, which are summed.
        rows_again = Again(length // tile)
        left = self.nest(queries, 0, 1, 2, Again(length // tile), 3)
        right = self.nest(keys, rows_again, 1, Again(shared), 0, 2)
        accumulators = tile**2 * ACCUMULATOR_BYTES
        qk = self.add("qk", "matmul", scores, accumulators, (q, left), (k, right))
        sums = 2 * 2 * tile * ACCUMULATOR_BYTES
        strips = 2 * self.tile_bytes(length // tile)
        softmax = self.add("softmax", "softmax", scores, strips + sums, (qk, self.put[qk]))
        # Loops of sv: rows, heads of keys, their queries, columns of the head, keys, which are summed.
        left = self.nest(scores, 0, 1, 2, Again(columns // tile), 3)
        right = self.nest(keys, rows_again, 1, Again(shared), 2, 0)
        sv = self.add("sv", "matmul", queries, accumulators, (softmax, left), (v, right))
        return self.product("proj", sv, (length, shape.hidden))

    def feed_forward(self, x: str) -> str:
        shape = self.shape
        inner = shape.length, shape.ffn
        if not shape.gated:
            y = self.elementwise(shape.activation, self.product("up", x, inner))
        else:
            gate = self.elementwise(shape.activation, self.product("gate", x, inner))
            y = self.elementwise("mul", gate, self.product("up", x, inner))
        return self.product("down", y, (shape.length, shape.hidden))

    def product(self, name: str, x: str, sizes: tuple[int, ...]) -> str:
        """A product with weights. It gets each row of tiles of x once for each column of its tiles, all axes of x but
        the first being summed."""
        columns = prod(sizes[1:]) // self.tile
        left = self.nest(self.put[x].tensor, 0, Again(columns), *range(1, len(self.put[x].tensor)))
        memory = self.tile**2 * ACCUMULATOR_BYTES + 2 * self.tile_bytes() + 2 * self.slice_bytes * self.shape.bias
        return self.add(name, "linear", sizes, memory, (x, left), bias=self.shape.bias)

    def norm(self, name: str, x: str, sizes: tuple[int, ...]) -> str:
        op, vectors = ("layer_norm", 2) if self.shape.layer_norms else ("rms_norm", 1)
        sums = 2 * 2 * self.tile * ACCUMULATOR_BYTES
        memory = 2 * self.tile_bytes(sizes[-1] // self.tile) + sums + 2 * vectors * self.slice_bytes
        return self.add(name, op, sizes, memory, (x, self.put[x]))

    def sum(self, name: str, *operands: str) -> str:
        return self.elementwise(name, *operands, op="add")

    def elementwise(self, name: str, *operands: str, op: str | None = None) -> str:
        inputs = [(operand, self.put[operand]) for operand in operands]
        return self.add(name, op or name, self.put[operands[0]].tensor, self.tile_bytes(), *inputs)

    def add(
        self, name: str, op: str, sizes: tuple[int, ...], memory: int, *inputs: tuple[str, Order], **attributes: object
    ) -> str:
        """Add a kernel that puts a tensor of these sizes row by row, and return its name in the graph. inputs: the
        kernel that puts each, and the order in which this one gets it."""
        name = self.prefix + name
        self.nodes.append(KernelNode(name, op, {"tile": self.tile, **attributes}, memory))
        self.edges += (Edge(source, name, self.put[source], get, k) for k, (source, get) in enumerate(inputs))
        self.put[name] = self.nest(sizes, *range(len(sizes)))
        return name

    def nest(self, sizes: tuple[int, ...], *loops: int | Again) -> Order:
        return tiles(sizes, self.tile, self.dtype, *loops)

    def tile_bytes(self, tiles: int = 1) -> int:
        return tiles * self.tile**2 * self.element_bytes

    @property
    def slice_bytes(self) -> int:
        return self.tile * self.element_bytes


def rows(sizes: tuple[int, ...], tile: int, dtype: str) -> Order:
    """Return the order of a tensor's tiles row by row. sizes, tile, dtype: as for `tiles`."""
    return tiles(sizes, tile, dtype, *range(len(sizes)))


def tiles(sizes: tuple[int, ...], tile: int, dtype: str, *loops: int | Again) -> Order:
    """Return an order of a tensor's tiles. sizes: of the tensor, in elements, two axes or more. tile: elements of a
    tile along the first and the last axis, which it must divide; of the other axes a tile has one element. dtype: of
    the elements. loops: outermost first, each the axis that it goes along, or `Again`."""
    element = (tile, *(1 for _ in sizes[2:]), tile)
    trips = tuple(loop.trips if isinstance(loop, Again) else sizes[loop] // element[loop] for loop in loops)
    steps = tuple(1 if isinstance(loop, Again) else element[loop] for loop in loops)
    return Order(element, trips, steps, tuple(Axis(loops.index(axis)) for axis in range(len(sizes))), dtype)
