"""Split-K: C = A B. Each of P instances has a part of the K axis; another task adds their products, tile by tile."""

from typing import Annotated

from rsn.streams import *

P = 4  # parts of the K axis
T = 16  # rows of a tile of C
M, N, K = 32, 32, 64

assert M % T == 0, "tiles are whole"

A: f32[M, K]
B: f32[K, N]
C: f32[M, N]

parts = Stream[f32[T, N], 2][P]


@task(mapping=[P], args=[A, B])
def multiply(a: Annotated[f32[M, K], Layout("RS0")], b: Annotated[f32[K, N], Layout("S0R")]) -> None:
    """Instance p multiplies its columns of A by its rows of B, T rows of the product at a time."""
    p = get_tid()
    columns = b[:, :]
    for m in range(M // T):
        parts[p].put(local(a[m * T : m * T + T] @ columns))


@task(mapping=[1], args=[C])
def add_up(c: f32[M, N]) -> None:
    """Add the products of all instances, and store them in C."""
    for m in range(M // T):
        total = zeros(f32, T, N)
        for p in meta_for(P):
            total = total + parts[p].get()
        c[m * T : m * T + T] = total
