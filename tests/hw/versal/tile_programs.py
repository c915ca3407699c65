"""Random programs of two MMEs: every kind of op, whatever its counts and flags, into two neighbouring MemCs with
whatever registers and post-ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Buffer, Layout, Program, Role, UnpackedProgram
from rsn.scheduler.pack import pack

TILE = 128 * 128
UNITS = TILE // 16
VECTOR = 4096


def steps(op: f.Mme) -> Iterator[str]:
    """What an op reads and emits, in order: `v` a vector, `a` and `b` tiles, `c` a tile out."""
    full = bool(op.k128)
    if op.load_prev:
        yield "v"
    if op.bias and full:
        yield "v"
    block = op.acc_a * op.acc_b
    for _ in range(op.a_iter * op.b_iter):
        if op.prev and full:
            yield from "ac" * block
        if op.acc_k and full:
            yield from ("ab" * op.k_iter + "c") * block if op.k_iter else ""
        else:
            yield from "abc" * op.k_iter * block


def count(ops: list[f.Mme], kind: str) -> int:
    return sum(s == kind for op in ops for s in steps(op))


@st.composite
def mme_ops(draw: st.DrawFn, first: bool) -> f.Mme:
    """Any legal op of a dozen tiles at most. first: nothing has been loaded before it."""
    flag, few = st.booleans(), st.integers(1, 2)
    k128 = draw(st.integers(0, 3)) > 0
    n128 = draw(st.integers(0, 3)) > 0
    bias = k128 and n128 and draw(flag)
    prev = k128 and n128 and draw(flag)
    acc_k = k128 and draw(flag)
    single = acc_k and bias
    return f.Mme(
        a_iter=draw(few),
        b_iter=1 if prev else draw(few),
        k_iter=draw(st.integers(0 if prev else 1, 3)),
        acc_a=1 if single else draw(few),
        acc_b=1 if single else draw(few),
        load_prev=prev and (first or draw(flag)),
        bias=bias,
        n128=n128,
        k128=k128,
        acc_k=acc_k,
        prev=prev,
    )


@st.composite
def op_lists(draw: st.DrawFn) -> list[f.Mme]:
    first = draw(mme_ops(True))
    more = draw(st.lists(mme_ops(not first.load_prev), max_size=1))
    return [first, *more]


@dataclass
class Group:
    """What a MemC receives and then stores."""

    recv: dict[str, int]
    store: dict[str, int]
    registers: tuple[f.MemCConfig | None, f.MemCConfig | None] = (None, None)

    @property
    def tiles(self) -> int:
        return self.recv["k_iter"] * self.recv["recv_a"] * self.recv["recv_b"]


@st.composite
def groups(draw: st.DrawFn, tiles: int, post: bool = False) -> list[Group]:
    """So many tiles cut into what a MemC holds. post: with post-ops."""
    out = []
    while tiles:
        a = draw(st.integers(1, min(2, tiles)))
        b = draw(st.integers(1, min(4, tiles // a)))
        k = draw(st.integers(1, min(3, tiles // (a * b))))
        tiles -= a * b * k
        recv = {"recv": 1, "recv_a": a, "recv_b": b, "k_iter": k}
        store = {"store": 1, "dim1": 128 * a, "dim2": 64 * draw(st.integers(1, 2 * b))}
        registers: tuple[f.MemCConfig | None, f.MemCConfig | None] = (None, None)
        if post:
            recv["softmax"] = draw(st.booleans())
            store["gelu"] = draw(st.booleans())
            store["layernorm"] = draw(st.booleans())
            if store["layernorm"] or draw(st.booleans()):  # a norm over stale columns would be one over leftovers
                registers = draw(pairs(128 * b))
        out.append(Group(recv, store, registers))
    return out


@st.composite
def pairs(draw: st.DrawFn, cols: int) -> tuple[f.MemCConfig, f.MemCConfig]:
    """Registers of two neighbours: masks of their own, the same exchange. Norms are over enough columns, with an eps
    that is large enough, that the last bit of exp does not become the first one of their results."""
    both: dict[str, Any] = {
        "activation": draw(st.integers(0, 4)),
        "rms": draw(st.booleans()),
        "max_sub": draw(st.booleans()),
        "causal": draw(st.booleans()),
        "alone": draw(st.booleans()),
        "offset": draw(st.integers(-200, 300)),
        "scale": draw(st.sampled_from([1.0, 0.125, 2.0])),
        "eps": draw(st.sampled_from([1e-6, 1e-5, 1e-3])),
    }

    def one() -> f.MemCConfig:
        valid = draw(st.sampled_from([1023, 0, 1, 64, cols]) | st.integers(0, cols))
        return f.MemCConfig(softmax_cols=valid, norm_cols=draw(st.sampled_from([cols, 100])), **both)

    return one(), one()


@dataclass
class Case:
    """Ops of MME0 and MME1, and what MemC0 and MemC1 do with the tiles."""

    ops: list[f.Mme]
    groups: list[Group]
    seed: int = 0
    cuts: tuple[int, ...] = (TILE,)  # a tile of A in so many loads
    program: Program = field(init=False)

    def __post_init__(self) -> None:
        a, c = count(self.ops, "a"), sum(g.store["dim1"] * g.store["dim2"] for g in self.groups)
        b = sum({"b": TILE, "v": VECTOR}.get(s, 0) for op in self.ops for s in steps(op))
        layout = Layout.LINEAR
        buffers = (
            Buffer("a", "ddr", 0, (a * TILE,), layout, Role.INPUT),
            Buffer("c", "ddr", a * UNITS, (2 * c,), layout, Role.OUTPUT),
            Buffer("b", "lpddr", 0, (max(16, 2 * b),), layout, Role.WEIGHT),
        )
        mmes = {f"MME{m}": tuple(self.ops) for m in range(2)}
        self.program = pack(UnpackedProgram(XNN, dict(self._sequences(a)), mmes, buffers))

    def _sequences(self, a: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
        ddr: list[f.Ddr] = []
        lpddr: list[f.Lpddr] = []
        loads: list[dict[str, int]] = []
        at, to, received = 0, a * UNITS, 0
        ends = np.cumsum([g.tiles for g in self.groups]).tolist()
        left = 0  # tiles of A that have been loaded
        for step in (s for op in self.ops for s in steps(op)):
            if step == "a":
                begin = left * UNITS
                for size in self.cuts:
                    ddr.append(f.Ddr(addr=begin, size=size, load=1, to_a0=1))
                    begin += size // 16
                left += 1
            elif step in "bv":
                size = TILE if step == "b" else VECTOR
                for peer in ("to_b0", "to_b1"):
                    lpddr.append(f.Lpddr(addr=at, size=size, bias=step == "v", **{peer: 1}))
                    at += size // 16
                shape = {"dim1": 128, "dim2": 128} if step == "b" else {"dim1": 32, "dim2": 4, "bias": 1}
                loads.append({"load": 1, **shape})
            else:
                received += 1
                if received in ends:
                    group = self.groups[ends.index(received)]
                    size = group.store["dim1"] * group.store["dim2"]
                    for peer in ("from_c0", "from_c1"):
                        ddr.append(f.Ddr(addr=to, size=size, store=1, **{peer: 1}))
                        to += size // 16
        yield "DDR", tuple(ddr)
        yield "LPDDR", tuple(lpddr)
        send = {"send": 1, "acc_a": 1, "acc_b": 1}
        yield "MemA0", tuple(f.MemA(**x) for x in _overlapped([{"load": 1, "dim1": 128, "dim2": 128}] * left, send))
        for unit in ("MemB0", "MemB1"):
            yield unit, tuple(f.MemB(**x) for x in _overlapped(loads, send))
        yield "MeshA", (f.MeshA(size=512, a0_0=1, a0_1=1),) * left
        yield "MeshB", (f.MeshB(size=512, b0_0=1, b1_1=1),) * len(loads)
        for m in range(2):
            yield f"MemC{m}", tuple(self._memc(m))

    def _memc(self, m: int) -> Iterator[f.MemC | f.MemCConfig]:
        """Each group is stored while the next one is received, unless registers change between them."""
        before: dict[str, int] = {}
        for group in self.groups:
            registers = group.registers[m]
            if registers is not None:
                if before:
                    yield f.MemC(**before)
                    before = {}
                yield registers
            yield f.MemC(**group.recv, **before)
            before = group.store
        yield f.MemC(**before)

    def banks(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        sizes = {bank: self.program.bank_size(bank) for bank in ("ddr", "lpddr")}
        return {name: (rng.standard_normal(n) / 8).astype(np.float32) for name, n in sizes.items()}


def _overlapped(loads: list[dict[str, int]], send: dict[str, int]) -> Iterator[dict[str, int]]:
    """Load each piece while the one before is sent."""
    for i in range(len(loads) + 1 if loads else 0):
        yield {**(loads[i] if i < len(loads) else {}), **(send if i else {})}


@st.composite
def products(draw: st.DrawFn) -> Case:
    """Ops and accumulation alone: sums and products, so the same bits."""
    ops = draw(op_lists())
    cuts = draw(st.sampled_from([(TILE,), (8192, 8192), (2048, 8192, 6144), (10240, 6144), (2048,) * 8]))
    return Case(ops, draw(groups(count(ops, "c"))), draw(st.integers(0, 9)), cuts)


@st.composite
def post_ops(draw: st.DrawFn) -> Case:
    """Plain products into MemCs that do anything."""
    tiles = draw(st.integers(1, 8))
    op = f.Mme(a_iter=1, b_iter=1, k_iter=tiles, acc_a=1, acc_b=1, n128=1, k128=1)
    return Case([op], draw(groups(tiles, post=True)), draw(st.integers(0, 9)))
