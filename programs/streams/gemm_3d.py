"""C = A B on a grid of three axes: each instance multiplies one tile of A with one of B, and the products are added
along the first axis. Dato, Fig. 7.
"""

from typing import Annotated

from rsn.streams import *

M, N, K = 64, 64, 128
Pk, Pm, Pn = 2, 2, 2

A: f32[M, K]
B: f32[K, N]
C: f32[M, N]


@task(mapping=[Pk, Pm, Pn], args=[A, B, C])
def gemm(
    a: Annotated[f32[M, K], Layout("S1S0")],
    b: Annotated[f32[K, N], Layout("S0S2")],
    c: Annotated[f32[M, N], Layout("S1S2")],
) -> None:
    """Instance (k, m, n) multiplies its tiles of A and B; the sum over k is stored."""
    part = a @ b
    c[:, :] = part.allreduce("+")
