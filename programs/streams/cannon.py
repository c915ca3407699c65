"""Cannon's algorithm: C = A B on a torus of P x P. The tiles of row i of A first go i steps to the left, those of
column j of B j steps up; then every step multiplies and moves both on by one.
"""

from typing import Annotated

from rsn.streams import *

P = 2  # the torus is P x P
M, N, K = 32, 32, 32

A: f32[M, K]
B: f32[K, N]
C: f32[M, N]

left = Stream[f32[M // P, K // P], 1][P, P]
up = Stream[f32[K // P, N // P], 1][P, P]


@task(mapping=[P, P], args=[A, B, C])
def cannon(
    a: Annotated[f32[M, K], Layout("S0S1")],
    b: Annotated[f32[K, N], Layout("S0S1")],
    c: Annotated[f32[M, N], Layout("S0S1")],
) -> None:
    """Instance (i, j) brings its tiles of A and B to their places, then P times multiplies and moves both on by one."""
    i, j = get_tid()
    x, y = a[:, :], b[:, :]
    for _ in range(i):
        left[i, (j - 1) % P].put(x)
        x = left[i, j].get()
    for _ in range(j):
        up[(i - 1) % P, j].put(y)
        y = up[i, j].get()
    total = x @ y
    for _ in range(P - 1):
        left[i, (j - 1) % P].put(x)
        up[(i - 1) % P, j].put(y)
        x = left[i, j].get()
        y = up[i, j].get()
        total = total + x @ y
    c[:, :] = total
