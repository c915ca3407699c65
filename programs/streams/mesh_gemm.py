"""C = A B on a mesh of R x C instances. Tiles of A enter each row, tiles of B each column, and every instance hands
them on; it adds up one tile of the result at a time. A load of a tile takes LOAD cycles.
"""

from typing import Annotated

from rsn.streams import *

R, C = 2, 4
T = 16  # tiles are T x T
M, N, K = 64, 64, 64
LOAD = 1

assert M % (R * T) == 0, "tiles are whole"
assert N % (C * T) == 0, "tiles are whole"
assert K % T == 0, "tiles are whole"

A: f32[M, K]
B: f32[K, N]
Y: f32[M, N]

right = Stream[f32[T, T], 2][R, C]
down = Stream[f32[T, T], 2][R, C]


@task(mapping=[R], args=[A])
def load_a(a: Annotated[f32[M, K], Layout("S0R")]) -> None:
    """Instance i sends the tiles of its rows of A, T x T, into row i of the mesh."""
    for m, n, k in grid(M // R // T, N // C // T, K // T):
        right[get_tid(), 0].put(a[m * T : m * T + T, k * T : k * T + T])
        cycles(LOAD)


@task(mapping=[C], args=[B])
def load_b(b: Annotated[f32[K, N], Layout("RS0")]) -> None:
    """Instance j sends the tiles of its columns of B, T x T, into column j of the mesh."""
    for m, n, k in grid(M // R // T, N // C // T, K // T):
        down[0, get_tid()].put(b[k * T : k * T + T, n * T : n * T + T])
        cycles(LOAD)


@task(mapping=[R, C], args=[Y])
def multiply(y: Annotated[f32[M, N], Layout("S0S1")]) -> None:
    """Instance (i, j) hands tiles on to the right and down, and adds up one tile of Y at a time."""
    i, j = get_tid()
    for m, n in grid(M // R // T, N // C // T):
        total = zeros(f32, T, T)
        for k in range(K // T):
            x, w = right[i, j].get(), down[i, j].get()
            with meta_if(j + 1 < C):
                right[i, j + 1].put(x)
            with meta_if(i + 1 < R):
                down[i + 1, j].put(w)
            total = total + x @ w
        y[m * T : m * T + T, n * T : n * T + T] = total
