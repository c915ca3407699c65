"""FlashAttention: for each block of queries, softmax over the chunks of keys and values as they arrive. Of the scores
only one tile of R x B is kept; what was summed before a larger maximum came is scaled down.
"""

from typing import Annotated

from rsn.streams import *

L, H, D = 128, 12, 64  # rows, heads, columns of a head
R, B = 128, 64  # rows of a block of queries, and of a chunk of keys and values
LOWEST = -1e30

assert L % R == 0, "blocks are whole"
assert L % B == 0, "chunks are whole"

Q: f32[H, L, D]
K: f32[H, L, D]
V: f32[H, L, D]
Y: f32[H, L, D]

q = Stream[f32[R, D], 2][H]
k = Stream[f32[B, D], 2][H]
v = Stream[f32[B, D], 2][H]
s = Stream[f32[R, B], 2][H]


@task(mapping=[H], args=[Q, K, V])
def load(
    queries: Annotated[f32[H, L, D], Layout("S0RR")],
    keys: Annotated[f32[H, L, D], Layout("S0RR")],
    values: Annotated[f32[H, L, D], Layout("S0RR")],
) -> None:
    """Send the queries of head h in blocks of R rows, and for each of them all keys and values in chunks of B rows."""
    h = get_tid()
    for i in range(L // R):
        q[h].put(queries[0, i * R : i * R + R])
        for j in range(L // B):
            k[h].put(keys[0, j * B : j * B + B])
            v[h].put(values[0, j * B : j * B + B])


@task(mapping=[H])
def scores() -> None:
    """Compute the scores of a block of queries and a chunk of keys, R x B, scaled by 1 / sqrt(D)."""
    h = get_tid()
    for i in range(L // R):
        block = scale(q[h].get(), D**-0.5)
        for j in range(L // B):
            s[h].put(block @ transpose(k[h].get()))


@task(mapping=[H], args=[Y])
def attend(out: Annotated[f32[H, L, D], Layout("S0RR")]) -> None:
    """Add up softmax(scores) V over the chunks, and scale down what was summed before a larger maximum came."""
    h = get_tid()
    for i in range(L // R):
        largest, weights = full(f32, LOWEST, R, 1), zeros(f32, R, 1)
        sums = zeros(f32, R, D)
        for j in range(L // B):
            tile_s, tile_v = s[h].get(), v[h].get()
            new = maximum(largest, reduce_max(tile_s, 1, keepdims=True))
            powers, decay = exp(tile_s - new), exp(largest - new)
            weights = weights * decay + reduce_sum(powers, 1, keepdims=True)
            sums = sums * decay + powers @ tile_v
            largest = new
        out[0, i * R : i * R + R] = sums / weights
