"""MemC: results, what is applied to them before they leave, and the registers that say how."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ....machine.description import Capability, Memory, UnitSpec, Where
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.unit import Halves
from ....machine.wiring import Wiring
from ...fields import Record, bits
from ...work import LengthField, Patched, Receive, Send, Store
from .loop import Loop
from .post_ops import Norm, Softmax
from .ring import Bound, RingUnit, blocks_of, check_size, memory_of
from .tiles import BEAT, BEATS, BLOCK_WORDS, TILE, Array, Pieces, tile_grid

LOOPS: Mapping[str, Loop] = {
    "receive": Loop(1, 10, "a beat added to a buffer"),
    "exchange": Loop(1, 30, "a row's number to or from a neighbour, or made of both"),
    "softmax_max": Loop(1, 30, "a 4x8 patch: row maxima"),
    "softmax_exp": Loop(1, 50, "a 4x8 patch: scale, subtract, exp, row sums"),
    "softmax_scale": Loop(1, 35, "a 4x8 patch: multiply by 1 / row sum"),
    "activation": Loop(1, 150, "a 4x8 patch, four elements a round", rounds=8),
    "norm_sum": Loop(1, 25, "a 4x8 patch, two rows a round: row sums", rounds=2),
    "norm_squares": Loop(1, 30, "a 4x8 patch, a row a round: sums of squares", rounds=4),
    "norm_scale": Loop(1, 70, "a 4x8 patch, a row a round: subtract, multiply", rounds=4),
}


class MemC(Record, words=2):
    """Result scratchpad: receive and accumulate into one buffer while storing or sending the other."""

    dim1: int = bits(0, 0, 9, "rows to store")
    dim2: int = bits(0, 9, 10, "columns to store")
    recv_a: int = bits(0, 19, 3, "row tiles to receive")
    recv_b: int = bits(0, 22, 3, "column tiles to receive")
    recv_k: int = bits(0, 25, 3, "no effect")
    send_a: int = bits(0, 28, 3, "row tiles to send")
    store: int = bits(0, 31, 1, "store the other buffer to DDR")
    k_iter: int = bits(1, 0, 16, "rounds to receive; the first overwrites, the others add")
    send_b: int = bits(1, 16, 3, "times each row is sent")
    send_k: int = bits(1, 19, 3, "column tiles to send")
    send: int = bits(1, 22, 1, "send the other buffer to MeshA; suppresses store on MemC0-3")
    recv: int = bits(1, 23, 1, "receive from the MME")
    softmax: int = bits(1, 24, 1, "softmax after receiving")
    gelu: int = bits(1, 25, 1, "activation before storing")
    layernorm: int = bits(1, 26, 1, "normalise before storing")


class MemCConfig(Record, words=4):
    """Registers of a MemC (our opcode 8). The defaults are the power-on values, which give exactly the base machine."""

    softmax_cols: int = bits(0, 0, 10, "own leading valid columns; 1023 is all received", default=1023)
    norm_cols: int = bits(0, 10, 10, "own leading valid columns of the norm", default=512)
    activation: int = bits(0, 20, 3, "0 gelu tanh, 1 gelu erf, 2 relu, 3 silu, 4 identity")
    rms: int = bits(0, 23, 1, "norm without mean")
    max_sub: int = bits(0, 24, 1, "subtract the row maximum before exp")
    causal: int = bits(0, 25, 1, "column c is valid for row r if c <= r + offset")
    alone: int = bits(0, 26, 1, "no softmax exchange with the neighbour")
    offset: int = bits(1, 0, 32, "of the causal mask", signed=True)
    scale: float = bits(2, 0, 32, "score scale", default=1.0, real=True)
    eps: float = bits(3, 0, 32, "of the norm", default=1e-6, real=True)


class MemCScores(Record, words=4):
    """Registers of a MemC's softmax (our opcode 9). The defaults are the power-on values: nothing of this is used.

    A key is a column of the scores, counted like that of `MemCConfig.causal`.
    """

    first_cols: int = bits(0, 0, 10, "own leading columns that do not count (left padding)")
    windowed: int = bits(0, 10, 1, "column c is valid for row r only if c >= r + low")
    capped: int = bits(0, 11, 1, "scaled scores become cap * tanh(score * inverse_cap)")
    part: int = bits(0, 12, 2, "0 all keys; 1 maxima and sums of the first keys, 2 of more keys; 3 exp by these")
    low: int = bits(1, 0, 32, "first column that counts for row 0", signed=True)
    cap: float = bits(2, 0, 32, "of the scores", default=1.0, real=True)
    inverse_cap: float = bits(3, 0, 32, "1 / cap", default=1.0, real=True)


class MemCStore(Record, words=1):
    """Registers of a MemC's store (our opcode 10). The defaults are the power-on values: nothing of this is used."""

    gate: int = bits(0, 0, 1, "activation times the columns that begin dim2 columns behind, at a store with gelu")
    rotate: int = bits(0, 1, 1, "apply the table: x * own + partner's x * partner")
    statistics: int = bits(0, 2, 1, "a norm leaves the data alone; mean and variance of its rows follow them")
    head: int = bits(0, 3, 2, "columns from a head to the next: 0 no heads, 1 64, 2 128, 3 256")
    head_cols: int = bits(0, 5, 9, "leading columns of each head that its norm is over", default=64)
    head_norm: int = bits(0, 14, 1, "a norm is over each head, not over whole rows")


class MemCTable(Record, words=1):
    """Fill a MemC's table from its MME (our opcode 11). It does not go on to the other buffer."""

    recv_a: int = bits(0, 0, 3, "row tiles to receive")
    recv_b: int = bits(0, 3, 3, "column tiles to receive")


MEMORY = Memory(256, 512)
"""The results of two row tiles and four column tiles."""
SENDS = 4
"""MemC0 to MemC3 compute softmax and can send to MMEs; the others cannot."""
PAIR = 2
"""Neighbours that share the rows of a softmax or a norm: 0-1, 2-3 and 4-5."""
ALL_COLUMNS = MemCConfig.field("softmax_cols").bounds[1]
"""The value of `softmax_cols` that stands for all columns received."""
MAX_SENT = 3
"""Column tiles that a MemC can send: more than these do not fit the counter of its loop (contract section 2)."""
NORM_ELEMENTS = MEMORY.rows * MEMORY.columns
"""Elements that the rate `norm_us` is stated for."""
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu")
"""Activations by the value of the register `activation`; without registers there is the first one only."""
BASE_EPS = 1e-6
"""The eps of LayerNorm without registers."""


def capabilities(memory: Memory, *, registers: bool, sends: bool) -> tuple[Capability, ...]:
    """What a MemC can do. registers: it has those of opcode 8. sends: it has a way to MeshA."""
    columns = PAIR * memory.columns
    norm = {"columns": (1, columns)} if registers else {"columns": (columns, columns), "eps": (0.0, 2 * BASE_EPS)}
    activations = ACTIVATIONS if registers else ACTIVATIONS[:1]
    out = [Capability(name, Where.STORE, rate="gelu_beat", elements=BEAT) for name in activations]
    out.append(Capability("layernorm", Where.STORE, norm, "norm_us", NORM_ELEMENTS))
    if registers:
        out.append(Capability("rmsnorm", Where.STORE, norm, "norm_us", NORM_ELEMENTS))
    if sends:
        passes = 3 if registers else 2  # maxima, exp, product
        out.append(Capability("softmax", Where.RECEIVE, {"columns": (1, columns)}, "softmax_beat", BEAT / passes))
        out.append(Capability("send", Where.SEND, {"columns": (1, max_sent(memory) * TILE)}, "mesh_beat"))
        if registers:
            out += [Capability(name, Where.RECEIVE) for name in ("mask", "causal_mask", "row_softmax")]
    return tuple(out)


class MemCUnit(RingUnit):
    """Result scratchpad: receives and accumulates; applies softmax before its flip, activation and norm before its
    store. Neighbours are 0-1, 2-3 and 4-5."""

    softmax: type[Softmax] = Softmax
    norm: type[Norm] = Norm

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sends = spec.capability("send") is not None
        self.registers = MemCConfig()
        ports = net.machine.ports[spec.name]
        self.mme = next((p.peer for p in ports if p.receives and not p.label), "")
        self.norm_links = self._links("norm", [p.peer for p in ports if p.label == "norm" and p.receives])
        self.softmax_links = self._links("softmax", [p.peer for p in ports if p.label == "softmax" and p.receives])

    def _links(self, label: str, peers: Sequence[str]) -> tuple[Channel, ...]:
        """The streams to and from the neighbour; none if there is no neighbour."""
        return tuple(c for peer in peers for c in (self.sink(peer, label), self.source(peer, label)))

    def kernel(self, uop: MemC | MemCConfig) -> Steps:
        return self._configure(uop) if isinstance(uop, MemCConfig) else super().kernel(uop)

    def halves(self, uop: MemC | MemCConfig) -> Halves | None:
        """The halves keep the registers of now: a configuration is for later uOPs, though it may be executed before the
        draining half of this one begins."""
        if isinstance(uop, MemCConfig):
            return None
        cur, reg = self.turn(), self.registers
        other = self.beside(cur, -1)
        out = self._send(uop, other) if uop.send and self.sends else self._store(uop, other, reg) if uop.store else None
        return self._recv(uop, cur, reg) if uop.recv else None, out

    def effect_key(self, uop: MemC | MemCConfig) -> Hashable | None:
        if isinstance(uop, MemCConfig):
            return None  # it sets the registers
        reg = self.registers
        return uop, reg.alone, reg.causal, reg.max_sub, reg.rms

    def _configure(self, uop: MemCConfig) -> Steps:
        self.registers = uop
        yield Step()

    # -- receiving side

    def _recv(self, uop: MemC, side: int, reg: MemCConfig) -> Steps:
        source = (self.source(self.mme),)
        rows = uop.recv_a & 3 if self.sends else uop.recv_a
        self.renew(side, rows * TILE, uop.recv_b * TILE)
        places = tile_grid(rows, uop.recv_b)
        done = 0

        def put(n: int, tiles: Sequence[Array]) -> None:
            nonlocal done
            self.buffers[side].add(tiles, places, done)
            done += n

        yield Burst(uop.k_iter * len(places), "mesh_beat", BEATS, gets=source, do=put)
        if uop.softmax and self.sends:
            yield from self._softmax(side, reg, rows, uop.recv_b)

    def _softmax(self, side: int, reg: MemCConfig, row_tiles: int, col_tiles: int) -> Steps:
        """exp over the valid columns, times the reciprocal of the row sum over both neighbours.

        A pass walks over all that was received, whatever is masked: one for the maxima where they are subtracted, one
        for exp, one for the product. Between passes a number per row goes to the neighbour and comes back, at the cost
        of filling the two loops that do it."""
        rows, cols = row_tiles * TILE, col_tiles * TILE
        beats = row_tiles * col_tiles * BEATS
        some = int(beats > 0)
        state = self.softmax(self, side, reg, rows, cols)
        yield Step("softmax_fill", some, do=state.begin)
        if reg.alone:
            yield Step("softmax_max_fill", some * reg.max_sub)
            yield Step("softmax_beat", (2 + reg.max_sub) * beats, do=state.finish)
            return
        out, back = self.softmax_links
        if reg.causal:  # the odd unit counts its columns behind the even one's
            yield Step(puts=(out,), do=lambda: (cols,))
            yield Step(gets=(back,), do=state.set_left)
        if reg.max_sub:
            yield Step("softmax_max_fill", some)
            yield Step("softmax_beat", beats)
            yield Step("exchange_fill", puts=(out,), words=rows, do=state.own_max)
            yield Step("exchange_fill", gets=(back,), words=rows, do=state.other_max)
        yield Step("softmax_beat", beats)
        if cols:
            yield Step("exchange_fill", puts=(out,), words=rows, do=state.own_sum)
        yield Step("exchange_fill", gets=(back,), words=rows, do=state.other_sum)
        yield Step("softmax_beat", beats, do=state.finish)

    # -- sending side

    def _send(self, uop: MemC, side: int) -> Steps:
        rows, depth = range(uop.send_a), range(uop.send_k & 3)
        index = tuple((a, k) for a in rows for _ in range(uop.send_b) for k in depth)
        yield self.send(self.sink("MeshA"), side, index)

    def _store(self, uop: MemC, side: int, reg: MemCConfig) -> Steps:
        if uop.gelu or uop.layernorm:
            self.detach(side)
        if uop.gelu:
            cols = self.size.columns if uop.layernorm else uop.dim2

            def activate() -> None:
                self.buffers[side].activate(uop.dim1, cols, reg.activation)

            beats = uop.dim1 * self.size.columns // BEAT  # all columns, whatever is stored
            yield Step("gelu_beat", beats, do=activate)
        if uop.layernorm:
            yield from self._norm(side, reg, uop.dim1)
        sink = (self.sink("DDR"),)
        places = blocks_of(uop.dim1, uop.dim2)
        at = 0

        def pieces(n: int) -> tuple[Pieces]:
            nonlocal at
            at += n
            return (self.buffers[side].blocks(places[at - n : at], uop.dim1, uop.dim2),)

        yield Burst(len(places), "mem_word", BLOCK_WORDS, puts=sink, words=BLOCK_WORDS, do=pieces)

    def _norm(self, side: int, reg: MemCConfig, rows: int) -> Steps:
        """Two passes over own and neighbour's columns; sums are exchanged together with counts."""
        out, back = self.norm_links
        state = self.norm(self, side, reg, rows)
        yield Step("norm_us", rows * self.size.columns / NORM_ELEMENTS)
        if not reg.rms:
            yield Step(puts=(out,), words=rows, do=state.own_sum)
            yield Step(gets=(back,), words=rows, do=state.other_sum)
        yield Step(puts=(out,), words=rows, do=state.own_squares)
        yield Step(gets=(back,), words=rows, do=state.other_squares)


def max_sent(memory: Memory) -> int:
    """Column tiles of a slot that a MemC can send."""
    return min(MAX_SENT, memory.columns // TILE)


def legal(unit: UnitSpec, uop: MemC) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and
    2)."""
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    row_tiles, col_tiles = rows // TILE, cols // TILE
    if unit.capability("send") is None and (uop.send or uop.softmax):
        yield "has no way to MeshA and no softmax"
    if uop.recv and uop.softmax and not uop.recv_a & 3:
        yield "a softmax over no rows"
    if uop.store and uop.layernorm and not uop.dim1:
        yield "a norm over no rows"
    if uop.recv and (uop.recv_a > row_tiles or uop.recv_b > col_tiles):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a buffer of {row_tiles}x{col_tiles}"
    if uop.store and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"store {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and (uop.send_a > row_tiles or uop.send_k > max_sent(memory_of(unit))):
        yield f"sends {uop.send_a}x{uop.send_k} tiles; {row_tiles}x{max_sent(memory_of(unit))} is the most"


def legal_config(unit: UnitSpec, uop: MemCConfig) -> Iterator[str]:
    """Yield the reasons why values of registers are not defined, although they are in range (contract section 7)."""
    cols = memory_of(unit).columns
    if uop.activation > len(ACTIVATIONS):
        yield f"activation {uop.activation} is not defined"
    if uop.softmax_cols > cols and uop.softmax_cols != ALL_COLUMNS:
        yield f"softmax_cols={uop.softmax_cols} is neither within 0..{cols} nor {ALL_COLUMNS}"
    if uop.norm_cols > cols:
        yield f"norm_cols={uop.norm_cols} is not within 0..{cols}"


def check_memory(unit: UnitSpec, *, registers: bool) -> None:
    """Raise `ProgramError` if the fields of `MemC`, and of its registers, cannot say all of a memory. `recv_a` has 3
    bits, of which a MemC that sends reads two."""
    rows = [Bound(MemC, "dim1"), Bound(MemC, "recv_a", TILE), Bound(MemC, "send_a", TILE)]
    columns = [Bound(MemC, "dim2"), Bound(MemC, "recv_b", TILE)]
    if registers:
        columns += [Bound(MemCConfig, "softmax_cols"), Bound(MemCConfig, "norm_cols")]
    check_size(unit, "rows", rows)
    check_size(unit, "columns", columns)


def lint(mop: MemC) -> Iterator[str]:
    """Yield warnings on fields of a mOP that the unit ignores, or that contradict each other (contract 1.4, 2)."""
    if mop.send and mop.store:
        yield "send and store are both set; on MemC0-3 send suppresses the store"
    if mop.recv_k:
        yield "recv_k has no effect"
    if (mop.gelu or mop.layernorm) and not mop.store:
        yield "a post-op without store does nothing"
    if mop.softmax and not mop.recv:
        yield "softmax without recv does nothing"


@lru_cache(typed=True)
def _operation(fill: Receive | None, drain: Send | Store | None) -> MemC:
    receive: dict[str, int] = {}
    if fill is not None:
        receive = {"recv": 1, "k_iter": fill.rounds, "recv_a": fill.rows, "recv_b": fill.columns}
        receive["softmax"] = int(fill.softmax is not None)
    out: dict[str, int] = {}
    if isinstance(drain, Send):
        out = {"send": 1, "send_a": drain.rows, "send_b": drain.times, "send_k": drain.columns}
    elif drain is not None:
        out = {"store": 1, "dim1": drain.rows, "dim2": drain.columns}
        out |= {"gelu": int(drain.activation is not None), "layernorm": int(drain.norm is not None)}
    return MemC(**receive, **out)


@lru_cache(typed=True)
def _registers(fill: Receive | None, drain: Send | Store | None) -> tuple[tuple[str, Any], ...]:
    """The registers that an operation needs, with their values."""
    out: dict[str, Any] = {}
    if fill is not None and fill.softmax is not None:
        softmax = fill.softmax
        columns = ALL_COLUMNS if softmax.columns is None else softmax.columns
        out |= {"softmax_cols": columns, "max_sub": 1, "alone": int(softmax.alone), "causal": int(softmax.causal)}
        if softmax.causal:
            out["offset"] = softmax.offset
    if isinstance(drain, Store):
        if drain.activation is not None:
            out["activation"] = ACTIVATIONS.index(drain.activation)
        if drain.norm is not None:
            eps = float(np.float32(drain.norm.eps))
            out |= {"eps": eps, "rms": int(drain.norm.rms), "norm_cols": drain.norm.columns}
    return tuple(out.items())


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemC | Patched]:
    """Yield the instruction of each `Turn`, and before it those that set registers, if their values change."""
    columns = memory_of(unit).columns
    current: dict[str, Any] = {} if columns >= _POWER_ON["norm_cols"] else {"norm_cols": columns}
    for turn in items:
        needed = _registers(turn.fill, turn.drain) if registers else ()
        if any(current.get(name, _POWER_ON.get(name)) != value for name, value in needed):
            current |= needed
            lengths = tuple((n, v) for n, v in current.items() if isinstance(v, LengthField))
            config = MemCConfig(**current | dict.fromkeys((n for n, _ in lengths), 0))
            yield Patched(config, lengths)
        yield _operation(turn.fill, turn.drain)


_POWER_ON = {x.name: getattr(MemCConfig(), x.name) for x in MemCConfig.FIELDS}
