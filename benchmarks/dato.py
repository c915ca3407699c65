"""The figures of Dato (arXiv 2509.06794) as modelled rows beside the published ones.

    python benchmarks/dato.py [gemm] [attention] [ffn] [scaling] [ablation] [systolic]

Without names of tables it prints all of them. *modelled*: clock cycles of our model of time, for programs of this file
with the rates that are stated; nothing was measured on a device. *published*: read from the paper, whose devices are an
AMD XDNA1 of 4 x 5 tiles, of which 16 are used, and an Alveo U280.

Stated of a tile: a vector unit does 64 (i16), 128 (bf16), 256 (i8) or 512 (i8 by i4) multiply-adds a cycle, and 16
elements of other kernels; 64 elements pass a stream in a cycle. Stated of the mesh: 8 ports from memory and
8 to it, of 4 bytes a cycle each.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from rsn.benchmarks.measuring import command_line, print_tables
from rsn.benchmarks.streams_cases import cycles, scaling, systolic
from rsn.streams.check import report_on
from rsn.streams.reader import read

PORT = 4
"""Bytes that a port to memory moves in a cycle."""
PORTS = 8
"""Ports of the mesh to memory, each way: tiles that store share them."""
ELEMENTS = 16
"""Elements of kernels other than products that a tile takes in a cycle."""
BYTES = {"i16": 2.0, "bf16": 2.0, "i8": 1.0, "i8 x i4": 0.5}
"""Bytes of an element of the right operand."""
PEAK = {"i16": 64, "bf16": 128, "i8": 256, "i8 x i4": 512}
"""Multiply-adds of a tile in a cycle."""

GEMM = """
from typing import Annotated
from rsn.streams import *

R, C = {R}, {C}
M, N, K = {M}, {N}, {K}
TM, TN, TK = {TM}, {TN}, {TK}
A: {kind}[M, K]
B: {kind}[K, N]
Y: {kind}[M, N]
rows = Stream[{kind}[TM, TK], 2][R, C]
columns = Stream[{kind}[TK, TN], 2][R, C]
results = Stream[{kind}[TM, TN], 2][R, C]

@task(mapping=[R], args=[A])
def load_a(a: Annotated[{kind}[M, K], Layout("S0R")]):
    i = get_tid()
    for m, n, k in grid(M // R // TM, N // C // TN, K // TK):
        x = a[m * TM : m * TM + TM, k * TK : k * TK + TK]
        cycles({load_a})
        for j in meta_for(C):
            rows[i, j].put(x)

@task(mapping=[C], args=[B])
def load_b(b: Annotated[{kind}[K, N], Layout("RS0")]):
    j = get_tid()
    for m, n, k in grid(M // R // TM, N // C // TN, K // TK):
        x = b[k * TK : k * TK + TK, n * TN : n * TN + TN]
        cycles({load_b})
        for i in meta_for(R):
            columns[i, j].put(x)

@task(mapping=[R, C], rates=dict(matmul={rate}, elements={elements}))
def multiply():
    i, j = get_tid()
    for m, n in grid(M // R // TM, N // C // TN):
        total = zeros({kind}, TM, TN)
        for k in range(K // TK):
            x = {left}
            total = total + x @ columns[i, j].get()
{partial}        results[i, j].put(total)

@task(mapping=[R, C], args=[Y])
def store(y: Annotated[{kind}[M, N], Layout("S0S1")]):
    i, j = get_tid()
    for m, n in grid(M // R // TM, N // C // TN):
        y[m * TM : m * TM + TM, n * TN : n * TN + TN] = results[i, j].get()
        cycles({store})
"""
"""C = A B on R x C tiles: loads reach all tiles of a row or a column at once, and are hidden behind products."""


def gemm(
    size: tuple[int, int, int],
    tile: tuple[int, int, int],
    number: str,
    mesh: tuple[int, int] = (4, 4),
    rate: float | None = None,
    packs: bool = False,
    partial_sums: bool = False,
) -> int:
    """Return the modelled cycles of a product (M, K) x (K, N). size: M, N, K. tile: the same of the product of a tile.
    number: key of `PEAK`, the element types of the operands. mesh: rows and columns of tiles. rate: multiply-adds of a
    tile in a cycle; None for the peak. packs: the tile brings the left operand into the order of its kernel.
    partial_sums: each product of tiles is a launch of its own, which loads and stores its sums."""
    (M, N, K), (TM, TN, TK) = size, tile
    kind = number.partition(" ")[0]
    left_bytes = max(1.0, BYTES[number])
    sums = TM * TN * left_bytes / PORT
    text = GEMM.format(
        R=mesh[0], C=mesh[1], M=M, N=N, K=K, TM=TM, TN=TN, TK=TK, kind=kind,
        load_a=round(TM * TK * left_bytes / PORT), load_b=round(TK * TN * BYTES[number] / PORT),
        store=round(sums * max(1, mesh[0] * mesh[1] / PORTS)),
        rate=rate or PEAK[number], elements=ELEMENTS,
        left="transpose(transpose(rows[i, j].get()))" if packs else "rows[i, j].get()",
        partial=f"            cycles({round(2 * sums)})\n" if partial_sums else "",
    )  # fmt: skip
    return timed(text)


def timed(text: str) -> int:
    """Return the modelled cycles of a stream program, given as text. Raises `AssertionError` for one that the check
    refuses."""
    region = read(text, timed=True)
    report = report_on(region)
    assert not report.code, str(report)
    return cycles(region)


# -- figure 8 ---------------------------------------------------------------------------------------------------------

FIGURE_8 = {
    "i16": ((64, 64, 64), 75.01),
    "bf16": ((64, 64, 64), 47.56),
    "i8": ((64, 128, 64), 61.58),
    "i8 x i4": ((64, 128, 128), 84.0),
}
"""Tile of a product, and the published share of the peak at best. The tile of the last row is not published."""
SIZES = (256, 512, 1024, 2048)


def products(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: products on 16 tiles, in percent of the peak (Dato, Fig. 8). options: not read."""
    yield "GEMM on 4 x 4 tiles, share of the peak in % (modelled with kernels at the peak; published: the best)"
    yield f"{'':<10}{'tile':<16}" + "".join(f"{f'{n}^3':>9}" for n in SIZES) + f"{'published':>12}"
    for number, (tile, published) in FIGURE_8.items():
        cells = ""
        for n in SIZES:
            fits = n >= 4 * tile[1]  # a tile of the mesh has at least one product
            share = 100 * n**3 / (16 * PEAK[number] * gemm((n, n, n), tile, number)) if fits else None
            cells += f"{'-' if share is None else f'{share:.1f}':>9}"
        yield f"{number:<10}{' x '.join(map(str, tile)):<16}{cells}{published:>12.1f}"


# -- figure 9 ---------------------------------------------------------------------------------------------------------

HEADS, WIDTH, HIDDEN = 12, 768, 3072
TILE = 64
LENGTHS = (128, 256, 512, 1024, 2048)
MOVE = TILE * TILE * 2 // PORT
"""Cycles in which a port moves a tile of 64 x 64."""

FLASH = """
from rsn.streams import *

L, T = {L}, 64
P, G = 8, {G}  # pipelines, and those that share a head
K: bf16[{heads}, L, T]
V: bf16[{heads}, L, T]
Y: bf16[{heads}, L, T]
q = Stream[bf16[T, T], 2][P]
k = Stream[bf16[T, T], 2][P]
v = Stream[bf16[T, T], 2][P]
s = Stream[bf16[T, T], 2][P]
y = Stream[bf16[T, T], 2][P]

@task(mapping=[P // G], args=[K])
def load_k(keys: bf16[{heads}, L, T]):
    g = get_tid()
    for h, i in grid({heads} * G // P, L // T // G):
        for p in meta_for(G):
            block = keys[0, 0:T]
            cycles({move})
            q[g * G + p].put(block)
        for j in range(L // T):
            chunk = keys[0, 0:T]
            cycles({move})
            for p in meta_for(G):
                k[g * G + p].put(chunk)

@task(mapping=[P // G], args=[V])
def load_v(values: bf16[{heads}, L, T]):
    g = get_tid()
    for h, i, j in grid({heads} * G // P, L // T // G, L // T):
        chunk = values[0, 0:T]
        cycles({move})
        for p in meta_for(G):
            v[g * G + p].put(chunk)

@task(mapping=[P], rates=dict(matmul={rate}, elements={elements}))
def scores():
    p = get_tid()
    for h, i in grid({heads} * G // P, L // T // G):
        block = scale(q[p].get(), 0.125)
        for j in range(L // T):
            s[p].put(block @ transpose(k[p].get()))

@task(mapping=[P], rates=dict(matmul={rate}, elements={elements}))
def attend():
    p = get_tid()
    for h, i in grid({heads} * G // P, L // T // G):
        largest, weights = full(bf16, -60000.0, T, 1), zeros(bf16, T, 1)
        sums = zeros(bf16, T, T)
        for j in range(L // T):
            tile_s, tile_v = s[p].get(), v[p].get()
            new = maximum(largest, reduce_max(tile_s, 1, keepdims=True))
            powers, decay = exp(tile_s - new), exp(largest - new)
            weights = weights * decay + reduce_sum(powers, 1, keepdims=True)
            sums = sums * decay + powers @ tile_v
            largest = new
        y[p].put(sums / weights)

@task(mapping=[P], args=[Y])
def store(out: bf16[{heads}, L, T]):
    p = get_tid()
    for h, i in grid({heads} * G // P, L // T // G):
        out[p, 0:T] = y[p].get()
        cycles({move})
"""
"""FlashAttention on 8 pairs of tiles. Pairs on one head get its keys and values at once."""

PASS = """
from rsn.streams import *

X: bf16[16, {rows}, {columns}]
Y: bf16[16, {rows}, {columns}]
x = Stream[bf16[{rows}, {columns}], 2][16]
y = Stream[bf16[{rows}, {columns}], 2][16]

@task(mapping=[16], args=[X])
def load(a: bf16[16, {rows}, {columns}]):
    i = get_tid()
    for n in range({steps}):
        block = a[i]
        cycles({load})
        x[i].put(block)

@task(mapping=[16], rates=dict(elements={elements}))
def compute():
    i = get_tid()
    for n in range({steps}):
        y[i].put({kernel}(x[i].get()))

@task(mapping=[16], args=[Y])
def store(a: bf16[16, {rows}, {columns}]):
    i = get_tid()
    for n in range({steps}):
        a[i] = y[i].get()
        cycles({store})
"""
"""A kernel on rows, from memory to memory."""


def rows_pass(kernel: str, rows: int, columns: int, operands: int = 1) -> int:
    """Return the modelled cycles of a kernel of rows on 16 tiles, which loads and stores (rows, columns). kernel: name
    of the library kernel. operands: how many such tensors it loads."""
    together = max(1, min(rows // 16, 4096 // columns))
    moved = round(together * columns * 2 / PORT * 16 / PORTS)
    return timed(
        PASS.format(
            rows=together, columns=columns, steps=-(-rows // 16 // together), load=operands * moved, store=moved,
            kernel=kernel, elements=ELEMENTS,
        )
    )  # fmt: skip


def attention(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: modelled cycles of attention, fused and kernel after kernel (Dato). options: not
    read."""
    yield "Attention, 12 heads x 64, bf16, on 16 tiles (modelled cycles; launches take no time)"
    yield f"{'L':<6}{'fused':>10}{'Q K':>10}{'softmax':>10}{'P V':>10}{'one by one':>12}{'ratio':>7}"
    for rows in LENGTHS:
        shared = min(8, rows // TILE)
        text = FLASH.format(L=rows, G=shared, heads=HEADS, move=MOVE, rate=PEAK["bf16"], elements=ELEMENTS)
        fused = timed(text)
        tile, strip = min(TILE, rows // 4), min(TILE, rows // 8)
        scores = HEADS * gemm((rows, rows, TILE), (tile, tile, TILE), "bf16")
        softmax = rows_pass("softmax", HEADS * rows, rows)
        # Its left operand is the large one, so it comes through 8 ports.
        weighed = HEADS * gemm((rows, TILE, rows), (strip, TILE // 2, TILE), "bf16", mesh=(8, 2))
        total = scores + softmax + weighed
        yield f"{rows:<6}{fused:>10}{scores:>10}{softmax:>10}{weighed:>10}{total:>12}{total / fused:>7.2f}"
    yield f"{'published, at most':<58}{2.81:>7.2f}"


GATED = """
from typing import Annotated
from rsn.streams import *

M, N, K, T = {M}, {N}, {K}, 64
TM = {TM}
X: bf16[M, K]
W: bf16[K, 2 * N]  # of the one half of the tiles, then of the other
Y: bf16[M, N]
rows = Stream[bf16[TM, T], 2][4, 4]
weights = Stream[bf16[T, T], 2][4, 4]
parts = Stream[bf16[TM, T], 2][4, 2]
results = Stream[bf16[TM, T], 2][4, 2]

@task(mapping=[4], args=[X])
def load_x(a: Annotated[bf16[M, K], Layout("S0R")]):
    i = get_tid()
    for m, n, k in grid(M // 4 // TM, N // 2 // T, K // T):
        x = a[m * TM : m * TM + TM, k * T : k * T + T]
        cycles({load_x})
        for j in meta_for(4):
            rows[i, j].put(x)

@task(mapping=[4], args=[W])
def load_w(b: Annotated[bf16[K, 2 * N], Layout("RS0")]):
    j = get_tid()
    for m, n, k in grid(M // 4 // TM, N // 2 // T, K // T):
        x = b[k * T : k * T + T, n * T : n * T + T]
        cycles({move})
        for i in meta_for(4):
            weights[i, j].put(x)

@task(mapping=[4, 2], rates=dict(matmul={rate}, elements={elements}))
def up():
    i, j = get_tid()
    for m, n in grid(M // 4 // TM, N // 2 // T):
        total = zeros(bf16, TM, T)
        for k in range(K // T):
            x = rows[i, j].get()
            total = total + x @ weights[i, j].get()
        parts[i, j].put(total)

@task(mapping=[4, 2], rates=dict(matmul={rate}, elements={elements}))
def gate():
    i, j = get_tid()
    for m, n in grid(M // 4 // TM, N // 2 // T):
        total = zeros(bf16, TM, T)
        for k in range(K // T):
            x = rows[i, j + 2].get()
            total = total + x @ weights[i, j + 2].get()
        results[i, j].put(silu(total) * parts[i, j].get())

@task(mapping=[4, 2], args=[Y])
def store(y: Annotated[bf16[M, N], Layout("S0S1")]):
    i, j = get_tid()
    for m, n in grid(M // 4 // TM, N // 2 // T):
        y[m * TM : m * TM + TM, n * T : n * T + T] = results[i, j].get()
        cycles({load_x})
"""
"""silu(X V) * (X U) on two meshes of 4 x 2 tiles, which get the rows of X at once."""


def ffn(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: modelled cycles of a gated feed-forward network, fused and kernel after kernel
    (Dato). options: not read."""
    yield "FFN with a gate, 768 to 3072, bf16, on 16 tiles (modelled cycles; launches take no time)"
    yield f"{'L':<6}{'fused':>10}{'up, gate':>10}{'silu(g) u':>10}{'one by one':>12}{'ratio':>7}"
    for rows in LENGTHS:
        tile = min(TILE, rows // 4)
        fused = timed(
            GATED.format(
                M=rows, N=HIDDEN, K=WIDTH, TM=tile, load_x=MOVE * tile // TILE, move=MOVE, rate=PEAK["bf16"],
                elements=ELEMENTS,
            )
        )  # fmt: skip
        both = 2 * gemm((rows, HIDDEN, WIDTH), (tile, TILE, TILE), "bf16")
        gated = rows_pass("silu", rows, HIDDEN, operands=2)
        total = both + gated
        yield f"{rows:<6}{fused:>10}{both:>10}{gated:>10}{total:>12}{total / fused:>7.2f}"
    yield f"{'published':<48}{1.64:>7.2f}"


# -- figure 11 --------------------------------------------------------------------------------------------------------

LARGEST = (2048, 2048, 2048)
CUBE = (TILE, TILE, TILE)
PLAIN = ELEMENTS
"""Multiply-adds a cycle of a kernel that is not written for the vector unit: those of elements."""


def ablation(options: Namespace) -> Iterator[str]:
    """Yield the lines of a table: modelled cycles of a product after each step of the compiler (Dato). options: not
    read."""
    steps: dict[str, tuple[float | None, bool, bool, float]] = {  # rate, packs, partial sums, published
        "base": (PLAIN, True, True, 13.65),
        "virtual mapping": (PLAIN, True, False, 6.42),
        "kernels": (None, True, False, 3.13),
        "layout": (None, False, False, 2.83),
    }
    yield "GEMM 2048^3 on 4 x 4 tiles: what each step leaves (modelled; published: of the time on the device)"
    yield f"{'':<18}{'i16 cycles':>12}{'left':>7}{'bf16 cycles':>13}{'left':>7}{'published ms':>14}{'left':>7}"
    before: list[float] = []
    for name, (rate, packs, sums, published) in steps.items():
        now = [gemm(LARGEST, CUBE, number, (4, 4), rate, packs, sums) for number in ("i16", "bf16")]
        row = [*now, published]
        left = [f"{n / b:.2f}" for n, b in zip(row, before, strict=True)] if before else ["", "", ""]
        yield f"{name:<18}{now[0]:>12}{left[0]:>7}{now[1]:>13}{left[1]:>7}{published:>14.2f}{left[2]:>7}"
        before = row


TABLES = {
    "gemm": products,
    "attention": attention,
    "ffn": ffn,
    "scaling": scaling,
    "ablation": ablation,
    "systolic": systolic,
}


def main() -> None:
    """Print the tables."""
    print_tables(command_line(__doc__), TABLES)


if __name__ == "__main__":
    main()
