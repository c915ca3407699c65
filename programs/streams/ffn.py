"""A feed-forward block: Y = gelu(X W1 + b1) W2 + b2. P pairs of instances each have a part of the hidden columns; the
last product is added up from one pair to the next.
"""

from typing import Annotated

from rsn.streams import *

L, E, F = 128, 768, 3072  # rows, columns, hidden columns
P = 4  # at least 2
B = 64  # rows of a block

assert L % B == 0, "blocks are whole"

X: f32[L, E]
W1: f32[E, F]
B1: f32[F]
W2: f32[F, E]
B2: f32[E]
Y: f32[L, E]

hidden = Stream[f32[B, F // P], 2][P]
sums = Stream[f32[B, E], 2][P - 1]


@task(mapping=[P], args=[X, W1, B1])
def up(x: f32[L, E], w: Annotated[f32[E, F], Layout("RS0")], b: Annotated[f32[F], Layout("S0")]) -> None:
    """Instance p computes its F / P columns of gelu(X W1 + b1), block of B rows by block."""
    weight, bias = w[:, :], b[:]
    for i in range(L // B):
        hidden[get_tid()].put(gelu(x[i * B : i * B + B] @ weight + bias))


@task(mapping=[P], args=[W2, B2, Y])
def down(w: Annotated[f32[F, E], Layout("S0R")], b: f32[E], y: f32[L, E]) -> None:
    """Instance p multiplies its hidden columns by its rows of W2 and adds the sum of the instances before; the last one
    adds b2 and stores Y."""
    p, weight, bias = get_tid(), w[:, :], b[:]
    for i in range(L // B):
        total = hidden[p].get() @ weight
        with meta_if(p > 0):
            total = total + sums[p - 1].get()
        with meta_if(p + 1 < P):
            sums[p].put(total)
        with meta_else():
            y[i * B : i * B + B] = total + bias
