"""A producer and a consumer: one stream, with more tokens than slots. Dato, Fig. 2."""

from rsn.streams import *

N = 16

A: f32[N]
B: f32[N]

s = Stream[f32, 4]


@task(mapping=[1], args=[A])
def producer(a: f32[N]) -> None:
    """Put the elements of A, one by one."""
    for i in range(N):
        s.put(a[i])


@task(mapping=[1], args=[B])
def consumer(b: f32[N]) -> None:
    """Store each element that comes, plus 1, in B."""
    for i in range(N):
        b[i] = s.get() + 1.0
