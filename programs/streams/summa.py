"""SUMMA: C = A B on a P x P grid. In step k, column k of the grid sends its tiles of A along the rows, and row k its
tiles of B along the columns.
"""

from typing import Annotated

from rsn.streams import *

P = 2  # the grid is P x P, at least 2 x 2
M, N, K = 32, 32, 32

A: f32[M, K]
B: f32[K, N]
C: f32[M, N]

east = Stream[f32[M // P, K // P], 1][P, P - 1]
west = Stream[f32[M // P, K // P], 1][P, P - 1]
south = Stream[f32[K // P, N // P], 1][P - 1, P]
north = Stream[f32[K // P, N // P], 1][P - 1, P]


@task(mapping=[P, P], args=[A, B, C])
def summa(
    a: Annotated[f32[M, K], Layout("S0S1")],
    b: Annotated[f32[K, N], Layout("S0S1")],
    c: Annotated[f32[M, N], Layout("S0S1")],
) -> None:
    """Instance (i, j) takes in step k the tiles of A of column k and of B of row k of the grid, hands them on, and adds
    up its tile of C."""
    i, j = get_tid()
    total = zeros(f32, M // P, N // P)
    for k in meta_for(P):
        x, y = a[:, :], b[:, :]
        with meta_if(j > k):
            x = east[i, j - 1].get()
        with meta_elif(j < k):
            x = west[i, j].get()
        with meta_if(i > k):
            y = south[i - 1, j].get()
        with meta_elif(i < k):
            y = north[i, j].get()
        with meta_if(k <= j and j + 1 < P):
            east[i, j].put(x)
        with meta_if(j > 0 and j <= k):
            west[i, j - 1].put(x)
        with meta_if(k <= i and i + 1 < P):
            south[i, j].put(y)
        with meta_if(i > 0 and i <= k):
            north[i - 1, j].put(y)
        total = total + x @ y
    c[:, :] = total
