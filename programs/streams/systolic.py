"""An output-stationary systolic array of 16 x 16 multipliers: C = A B for int8, with feeders and drains at its borders.

Dato, appendix A. The last row of the grid drains the results, packed by columns of a tile.
"""

from rsn.streams import *

Rt, Ct = 16, 16  # rows and columns of the array
M, N, K = 64, 64, 64
P0, P1 = Rt + 2, Ct + 2
PACK = 1  # cycles to pack a column
DEPTH = 4

assert M % Rt == 0, "tiles are whole"
assert N % Ct == 0, "tiles are whole"

A: i8[M // Rt, K, Rt]
B: i8[N // Ct, K, Ct]
C: i8[M // Rt, N, Rt]

L3_A = Stream[i8[Rt], DEPTH]
L3_B = Stream[i8[Ct], DEPTH]
L3_C = Stream[i8[Rt], DEPTH]
L2_A = Stream[i8[Rt], DEPTH][P0 - 1]
L2_B = Stream[i8[Ct], DEPTH][P1 - 1]
L1_C = Stream[i8[Rt], DEPTH][Rt, Ct]
L2_C = Stream[i8[Rt], DEPTH][Ct]
fifo_A = Stream[i8, DEPTH][Rt, Ct]
fifo_B = Stream[i8, DEPTH][Rt, Ct]


@task(mapping=[1], args=[A])
def offchip_loadA(a: i8[M // Rt, K, Rt]) -> None:
    """Send the columns of each row tile of A, Rt elements, once for each column tile of C."""
    for mt, nt in grid(M // Rt, N // Ct):
        for k in range(K):
            L3_A.put(a[mt, k])


@task(mapping=[1], args=[B])
def offchip_loadB(b: i8[N // Ct, K, Ct]) -> None:
    """Send the rows of each column tile of B, Ct elements, once for each row tile of C."""
    for mt, nt in grid(M // Rt, N // Ct):
        for k in range(K):
            L3_B.put(b[nt, k])


@task(mapping=[P0, P1])
def gemm() -> None:
    """An instance feeds the array at its borders, or is a multiplier that adds up one element of a tile of C, or drains
    results."""
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
            c = i8(0)
            for k in range(K):
                a = fifo_A[i - 1, j - 1].get()
                b = fifo_B[i - 1, j - 1].get()
                c = i8(c + a * b)
                with meta_if(j < Ct):
                    fifo_A[i - 1, j].put(a)
                with meta_if(i < Rt):
                    fifo_B[i, j - 1].put(b)
            packed = zeros(i8, Rt)
            with meta_if(i > 1):
                packed = L1_C[i - 2, j - 1].get()
            for m in range(Rt):
                if m == i - 1:
                    packed[m] = c
            cycles(PACK)
            L1_C[i - 1, j - 1].put(packed)


@task(mapping=[1], args=[C])
def offchip_store(c: i8[M // Rt, N, Rt]) -> None:
    """Store the columns of each tile of C, Rt elements, as they are drained."""
    for mt, nt in grid(M // Rt, N // Ct):
        for n in range(Ct):
            c[mt, nt * Ct + n] = L3_C.get()
