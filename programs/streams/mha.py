"""Multi-head attention with its four projections. Each head has a pipeline of four instances, through which blocks of B
rows move; scores stay on the chip. Rows of X go from head to head: first all of them for keys and values, then again
for queries. The last projection adds up the heads, from one to the next.
"""

from typing import Annotated

from rsn.streams import *

L, H, D = 128, 12, 64  # rows, heads (at least 2), columns of a head
E = H * D
B = 64  # rows of a block

assert L % B == 0, "blocks are whole"

X: f32[L, E]
WQ: f32[E, E]
WK: f32[E, E]
WV: f32[E, E]
WO: f32[E, E]
Y: f32[L, E]

rows = Stream[f32[B, E], 2][H - 1]
q = Stream[f32[B, D], 2][H]
k = Stream[f32[B, D], 2][H]
v = Stream[f32[B, D], 2][H]
s = Stream[f32[B, L], 2][H]
c = Stream[f32[B, D], 2][H]
sums = Stream[f32[B, E], 2][H - 1]


@task(mapping=[H], args=[X, WQ, WK, WV])
def project(
    x: f32[L, E],
    wq: Annotated[f32[E, E], Layout("RS0")],
    wk: Annotated[f32[E, E], Layout("RS0")],
    wv: Annotated[f32[E, E], Layout("RS0")],
) -> None:
    """Instance h computes keys and values of its head from the blocks of X, then queries, scaled by 1 / sqrt(D); it
    hands the blocks on to the next head."""
    h, to_q, to_k, to_v = get_tid(), wq[:, :], wk[:, :], wv[:, :]
    for turn, i in grid(2, L // B):
        with meta_if(h == 0):
            block = x[i * B : i * B + B]
        with meta_else():
            block = rows[h - 1].get()
        with meta_if(h + 1 < H):
            rows[h].put(block)
        if turn == 0:
            k[h].put(block @ to_k)
            v[h].put(block @ to_v)
        else:
            q[h].put(scale(block @ to_q, D**-0.5))


@task(mapping=[H])
def scores() -> None:
    """Keep the keys of head h, then compute the scores of each block of queries, B x L."""
    h, keys = get_tid(), zeros(f32, D, L)
    for i in range(L // B):
        keys[:, i * B : i * B + B] = transpose(k[h].get())
    for i in range(L // B):
        s[h].put(q[h].get() @ keys)


@task(mapping=[H])
def attend() -> None:
    """Keep the values of head h, then compute softmax(scores) V of each block."""
    h, values = get_tid(), zeros(f32, L, D)
    for i in range(L // B):
        values[i * B : i * B + B] = v[h].get()
    for i in range(L // B):
        c[h].put(softmax(s[h].get()) @ values)


@task(mapping=[H], args=[WO, Y])
def project_out(w: Annotated[f32[E, E], Layout("S0R")], y: f32[L, E]) -> None:
    """Multiply the results of head h by its rows of WO and add the sum of the heads before; the last head stores Y."""
    h, weight = get_tid(), w[:, :]
    for i in range(L // B):
        total = c[h].get() @ weight
        with meta_if(h > 0):
            total = total + sums[h - 1].get()
        with meta_if(h + 1 < H):
            sums[h].put(total)
        with meta_else():
            y[i * B : i * B + B] = total
