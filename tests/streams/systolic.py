"""The output-stationary systolic array of appendix A of Dato (arXiv 2509.06794), 16 x 16, with its types put right, in
the language. Its modelled cycles are known from an independent evaluation.

In the array, products are accumulated in K beats a tile; then each element takes the column from above, adds its own
value in a loop that takes PACK cycles, and hands it down.
"""

from __future__ import annotations

PROGRAM = """
from rsn.streams import *

PACK = 1
DEPTH = 2
M = 64
N = 64
K = 64
Rt = 16
Ct = 16
P0 = Rt + 2
P1 = Ct + 2
L3_A: Stream[i8[Rt], DEPTH]
L3_B: Stream[i8[Ct], DEPTH]
L3_C: Stream[i8[Rt], DEPTH]
L2_A: Stream[i8[Rt], DEPTH][P0 - 1]
L2_B: Stream[i8[Ct], DEPTH][P1 - 1]
L1_C: Stream[i8[Rt], DEPTH][Rt, Ct]
L2_C: Stream[i8[Rt], DEPTH][Ct]
fifo_A: Stream[i8, DEPTH][Rt, Ct]
fifo_B: Stream[i8, DEPTH][Rt, Ct]


@task(mapping=[1])
def offchip_loadA():
    for mt, nt in grid(M // Rt, N // Ct):
        for k in range(K):
            L3_A.put(use(mt, k))


@task(mapping=[1])
def offchip_loadB():
    for mt, nt in grid(M // Rt, N // Ct):
        for k in range(K):
            L3_B.put(use(nt, k))


@task(mapping=[P0, P1])
def gemm_systolic():
    i, j = get_tid()
    with meta_if(i == 0 and j == 0):
        for mt, nt in grid(M // Rt, N // Ct):
            for k in range(K):
                a = L3_A.get()
                b = L3_B.get()
                L2_A[1].put(a)
                L2_B[1].put(b)
    with meta_elif(i == P0 - 1 and j == P1 - 1):
        for mt, nt in grid(M // Rt, N // Ct):
            for n in range(Ct):
                L3_C.put(L2_C[Ct - 1].get())
    with meta_elif(i in {0, P0 - 1} and j in {0, P1 - 1}):
        pass
    with meta_elif(j == 0):
        for mt, nt in grid(M // Rt, N // Ct):
            for k in range(K):
                a = L2_A[i].get()
                fifo_A[i - 1, 0].put(a[i - 1])
                with meta_if(i < Rt):
                    L2_A[i + 1].put(a)
    with meta_elif(i == 0):
        for mt, nt in grid(M // Rt, N // Ct):
            for k in range(K):
                b = L2_B[j].get()
                fifo_B[0, j - 1].put(b[j - 1])
                with meta_if(j < Ct):
                    L2_B[j + 1].put(b)
    with meta_elif(i == P0 - 1):
        for mt, nt in grid(M // Rt, N // Ct):
            L2_C[j - 1].put(L1_C[i - 2, Ct - j].get())
            with meta_if(j != 1):
                for ind in range(j - 1):
                    L2_C[j - 1].put(L2_C[j - 2].get())
    with meta_elif(j == P1 - 1):
        pass
    with meta_else():
        for mt, nt in grid(M // Rt, N // Ct):
            c: i8 = 0
            for k in range(K):
                a: i8 = fifo_A[i - 1, j - 1].get()
                b: i8 = fifo_B[i - 1, j - 1].get()
                c += a * b
                with meta_if(j < Ct):
                    fifo_A[i - 1, j].put(a)
                with meta_if(i < Rt):
                    fifo_B[i, j - 1].put(b)
            packed = tile("i8", Rt)
            with meta_if(i != 1):
                column = L1_C[i - 2, j - 1].get()
                packed = column
            for m in range(Rt):
                packed[m] = c
            cycles(PACK)
            L1_C[i - 1, j - 1].put(packed)


@task(mapping=[1])
def offchip_store():
    for mt, nt in grid(M // Rt, N // Ct):
        for n in range(Ct):
            use(L3_C.get())
"""


def systolic(size: int, depth: int, pack: int) -> str:
    """Return the program for matrices of size x size x size, all streams of one depth."""
    text = PROGRAM.replace("PACK = 1\n", f"PACK = {pack}\n").replace("DEPTH = 2\n", f"DEPTH = {depth}\n")
    for name in "MNK":
        text = text.replace(f"\n{name} = 64\n", f"\n{name} = {size}\n")
    return text
