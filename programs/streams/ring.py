"""A ring all-reduce: each of P instances holds a row; at the end each has the sum of all rows. Every step moves one
chunk of N / P elements from each instance to the next one: P - 1 steps add, P - 1 steps hand the sums round.
"""

from typing import Annotated

from rsn.streams import *

P = 4
N = 64

X: f32[P, N]
Y: f32[P, N]

ring = Stream[f32[N // P], 1][P]


@task(mapping=[P], args=[X, Y])
def all_reduce(x: Annotated[f32[P, N], Layout("S0R")], y: Annotated[f32[P, N], Layout("S0R")]) -> None:
    """Instance p adds its chunks to those that come, hands them on, then hands the sums round and stores them."""
    p = get_tid()
    chunks = x[0].reshape(P, N // P)
    for step in range(P - 1):
        ring[(p + 1) % P].put(chunks[(p - step) % P])
        own = (p - step - 1) % P
        chunks[own] = chunks[own] + ring[p].get()
    for step in range(P - 1):
        ring[(p + 1) % P].put(chunks[(p + 1 - step) % P])
        chunks[(p - step) % P] = ring[p].get()
    y[0] = chunks.reshape(N)
