"""Stream programs whose mapping is known, and what tests of mappings share."""

from __future__ import annotations

from functools import cache

from rsn.streams.check import report_on
from rsn.streams.mapping.graph import MappingGraph, mapping_graph
from rsn.streams.mapping.mapping import Mapped
from rsn.streams.reader import read

HEAD = "from rsn.streams import *\n"

PRODUCTS = """
p: Stream[f32[64, 64], 2][{n}, 2]
@task(mapping=[{n}, 2])
def product():
    i, k = get_tid()
    p[i, k].put(tile(f32, 64, 64))
@task(mapping=[{n}])
def add():
    i = get_tid()
    a = p[i, 0].get()
    b = p[i, 1].get()
    use(a + b)
"""
"""C[i] = A[i, 0] B[i, 0] + A[i, 1] B[i, 1], for n outputs."""

GEMM = """
def product(a, b):
    return a @ b
def plus(a, b):
    return a + b
A: f32[{m} * 64, {k} * 64]
B: f32[{k} * 64, {n} * 64]
C: f32[{m} * 64, {n} * 64]
part: Stream[f32[64, 64], 2][{k}, {m}, {n}]
@task(mapping=[{k}, {m}, {n}], args=[A, B, C])
def gemm(
    a: f32[{m} * 64, {k} * 64] @ Layout("S1S0"),
    b: f32[{k} * 64, {n} * 64] @ Layout("S0S2"),
    c: f32[{m} * 64, {n} * 64] @ Layout("S1S2"),
):
    k, m, n = get_tid()
    x = product(a, b)
    with meta_if(k):
        x = plus(x, part[k - 1, m, n].get())
    with meta_if(k < {last}):
        part[k, m, n].put(x)
    with meta_else():
        c[:, :] = x
"""
"""One instance for each product of tiles; the sums go along k."""

REDUCED_GEMM = """
A: f32[{m} * 64, {k} * 64]
B: f32[{k} * 64, {n} * 64]
C: f32[{m} * 64, {n} * 64]
@task(mapping=[{k}, {m}, {n}], args=[A, B, C])
def gemm(
    a: f32[{m} * 64, {k} * 64] @ Layout("S1S0"),
    b: f32[{k} * 64, {n} * 64] @ Layout("S0S2"),
    c: f32[{m} * 64, {n} * 64] @ Layout("S1S2"),
):
    c[:, :] = (a @ b).allreduce("+", axes=(0,))
"""
"""The same with a collective."""

FLASH = """
Q: f32[{q} * 64, 64]
K: f32[{kv} * 64, 64]
V: f32[{kv} * 64, 64]
O: f32[{q} * 64, 64]
query: Stream[f32[64, 64], 2][{q}, {kv}]
score: Stream[f32[64, 64], 2][{q}, {kv}]
part: Stream[f32[64, 64], 2][{q}, {kv}]
@task(mapping=[{q}], args=[Q])
def send_q(x: f32[{q} * 64, 64] @ Layout("S0R")):
    i = get_tid()
    with meta_for({kv}) as j:
        query[i, j].put(x)
@task(mapping=[{q}, {kv}], args=[K])
def scores(x: f32[{kv} * 64, 64] @ Layout("S1R")):
    i, j = get_tid()
    q = query[i, j].get()
    score[i, j].put(exp(q @ x.T))
@task(mapping=[{q}, {kv}], args=[V])
def attend(x: f32[{kv} * 64, 64] @ Layout("S1R")):
    i, j = get_tid()
    s = score[i, j].get()
    part[i, j].put(s @ x)
@task(mapping=[{q}], args=[O])
def gather(out: f32[{q} * 64, 64] @ Layout("S0R")):
    i = get_tid()
    o = part[i, 0].get()
    with meta_for(1, {kv}) as j:
        o = o + part[i, j].get()
    out[:, :] = o
"""
"""Attention by chunks of queries and of keys; the normalisation is left out."""


def products(n: int) -> str:
    return HEAD + PRODUCTS.format(n=n)


def gemm(k: int, m: int, n: int) -> str:
    return HEAD + GEMM.format(k=k, m=m, n=n, last=k - 1)


def reduced_gemm(k: int, m: int, n: int) -> str:
    return HEAD + REDUCED_GEMM.format(k=k, m=m, n=n)


def flash(q: int, kv: int) -> str:
    return HEAD + FLASH.format(q=q, kv=kv)


@cache
def graph_of(text: str) -> MappingGraph:
    """The graph of a program that the check accepts."""
    region = read(text, timed=True)
    report = report_on(region)
    assert not report.code, str(report)
    return mapping_graph(region)


def start(text: str) -> Mapped:
    """The mapping of a program with an instance on each node."""
    return Mapped.start(graph_of(text))
