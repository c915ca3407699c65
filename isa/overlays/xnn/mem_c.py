"""MemC: results, what is applied to them before they leave, its registers, and its instructions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ....base.errors import ProgramError
from ....machine.description import Capability, Memory, UnitSpec, Where, memory_of
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.unit import Halves, Wiring
from ...fields import Record, bits
from ...versal.functions import HeadNorm
from ...versal.loop import PipelinedLoop
from ...versal.tiles import BEAT, BEATS, TILE, Array, Pieces, tile_grid
from ...work import KeyPart, Patched, Receive, Registers, Send, Softmax, Store
from .buffer import SlotData
from .post_ops import BLOCK_QUARTERS, QUARTER_WORDS, NormData, SoftmaxData
from .ring import RingUnit, SizeField, check_size, nothing

LOOPS: Mapping[str, PipelinedLoop] = {
    "receive": PipelinedLoop(1, 10, "a beat added to a buffer"),
    "exchange": PipelinedLoop(1, 30, "a row's number to or from a neighbour, or made of both"),
    "softmax_max": PipelinedLoop(1, 30, "a 4x8 patch: row maxima"),
    "softmax_exp": PipelinedLoop(1, 50, "a 4x8 patch: scale, subtract, exp, row sums"),
    "deliver": PipelinedLoop(
        1, 12, "a beat to MeshA, a word to DDR or back: times 1 / row sums, where they are still missing"
    ),
    "activation": PipelinedLoop(1, 150, "a 4x8 patch, four elements a round", rounds=8),
    "norm_sum": PipelinedLoop(1, 25, "a 4x8 patch, two rows a round: row sums", rounds=2),
    "norm_squares": PipelinedLoop(1, 30, "a 4x8 patch, a row a round: sums of squares", rounds=4),
    "norm_scale": PipelinedLoop(1, 70, "a 4x8 patch, a row a round: subtract, multiply", rounds=4),
    "rotate": PipelinedLoop(1, 40, "a 4x8 patch, a row a round: times own and partner's factors of a table", rounds=4),
    "softcap": PipelinedLoop(1, 110, "a 4x8 patch, four elements a round: cap * tanh(score / cap)", rounds=8),
}
BASE_LOOPS: Mapping[str, PipelinedLoop] = {
    "softmax_scale": PipelinedLoop(1, 35, "a 4x8 patch: multiply by 1 / row sum")
}
"""Of a machine that multiplies by them after exp, in a pass of its own, as the published one. The sources have no such
loop."""


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
    """Fill a MemC's table from its MME (our opcode 11). The MemC stays at its current buffer."""

    recv_a: int = bits(0, 0, 3, "row tiles to receive")
    recv_b: int = bits(0, 3, 3, "column tiles to receive")


Configuration = MemCConfig | MemCScores | MemCStore | MemCTable
"""What goes through a MemC's queue beside `MemC`; it acts alone, and does not go on to the next slot."""
MEMORY = Memory(256, 512)
"""The results of two row tiles and four column tiles."""
SENDS = 4
"""MemC0 to MemC3 compute softmax and can send to MMEs; the others cannot."""
PAIR = 2
"""Neighbours that share the rows of a softmax or a norm: 0-1, 2-3 and 4-5."""
LATE_PRODUCT = "late_product"
"""The capability to multiply by 1 / row sums while results leave, without a pass for it."""
ALL_COLUMNS = MemCConfig.field("softmax_cols").bounds[1]
"""The value of `softmax_cols` that stands for all columns received."""
MAX_SENT = 3
"""Column tiles that a MemC can send: more than these do not fit the counter of its loop (contract section 2)."""
NORM_ELEMENTS = MEMORY.rows * MEMORY.columns
"""Elements that the rate `norm_us` is stated for."""
STATISTICS_SHARE = 1 - LOOPS["norm_scale"].rounds / sum(LOOPS[f"norm_{x}"].rounds for x in ("sum", "squares", "scale"))
"""Of the time of a norm: what is left without its last loop."""
MAX_KEYS = 8192
"""Columns of a softmax in parts. No register ends there; longer rows have not been tried."""
TABLE_COLUMNS = 512
"""Columns of a table; it has as many rows as a slot."""
HEADS = (0, 64, 128, 256)
"""Columns from a head to the next, by the value of the register `head`."""
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "relu", "silu")
"""Activations by the value of the register `activation`; without registers there is the first one only."""
IDENTITY = "identity"
"""The activation of the value behind these."""
BASE_EPS = 1e-6
"""The eps of LayerNorm without registers."""


def capabilities(memory: Memory, *, registers: bool, sends: bool) -> tuple[Capability, ...]:
    """Return the capabilities of a MemC. memory: its slots, whose columns limit the norm and the softmax. registers: it
    has the registers of opcodes 8 to 11. sends: it has a stream to MeshA, and so computes softmax."""
    columns = PAIR * memory.columns
    norm = {"columns": (1, columns)} if registers else {"columns": (columns, columns), "eps": (0.0, 2 * BASE_EPS)}
    activations = ACTIVATIONS if registers else ACTIVATIONS[:1]
    out = [Capability(name, Where.STORE, rate="gelu_beat", elements=BEAT) for name in activations]
    out.append(Capability("layernorm", Where.STORE, norm, "norm_us", NORM_ELEMENTS))
    if registers:
        out.append(Capability("rmsnorm", Where.STORE, norm, "norm_us", NORM_ELEMENTS))
        out += _store_capabilities(memory)
    if sends:
        passes = 2  # maxima and exp; without registers exp and product
        out.append(Capability("softmax", Where.RECEIVE, {"columns": (1, columns)}, "softmax_beat", BEAT / passes))
        out.append(Capability("send", Where.SEND, {"columns": (1, max_sent(memory) * TILE)}, "mesh_beat"))
        if registers:
            masks = ("mask", "causal_mask", "row_softmax", "mask_first", "window")
            out += [Capability(name, Where.RECEIVE) for name in masks]
            out.append(Capability("softcap", Where.RECEIVE, rate="softcap_beat", elements=BEAT))
            passes = 3  # maxima and exp for the sums; exp to apply them
            long = {"columns": (1, MAX_KEYS)}
            out.append(Capability(LATE_PRODUCT, Where.SEND))
            out.append(Capability("long_softmax", Where.RECEIVE, long, "softmax_beat", BEAT / passes))
    return tuple(out)


def _store_capabilities(memory: Memory) -> Iterator[Capability]:
    """What opcode 10 adds to a store, as capabilities. The columns of a head are those from a head to the next."""
    widest = max((head for head in HEADS if head <= memory.columns), default=0)
    yield Capability("gate", Where.STORE, {"columns": (1, memory.columns // 2)}, "gelu_beat", BEAT)
    if widest:
        yield Capability("head_norm", Where.STORE, {"columns": (1, widest)}, "norm_us", NORM_ELEMENTS)
    if widest and memory.slots == 2:
        yield Capability("rotate", Where.STORE, {"columns": (1, widest)}, "rotate_beat", BEAT)
    columns = {"columns": (1, PAIR * memory.columns)}
    yield Capability("statistics", Where.STORE, columns, "norm_us", NORM_ELEMENTS / STATISTICS_SHARE)


class MemCUnit(RingUnit):
    """Result scratchpad: receives tiles and adds them up. It applies a softmax when all tiles have been received, and
    an activation and a norm before it stores. MemC0 and MemC1 are neighbours, as are MemC2 and MemC3, and MemC4 and
    MemC5."""

    softmax: type[SoftmaxData] = SoftmaxData
    norm: type[NormData] = NormData

    def __init__(self, spec: UnitSpec, net: Wiring) -> None:
        super().__init__(spec, net)
        self.sends = spec.capability("send") is not None
        self.late = spec.capability(LATE_PRODUCT) is not None
        """It multiplies by 1 / row sums while results leave. In `buffers` they are there after a receive nevertheless:
        the products are the same."""
        self.unscaled = (False,) * self.size.slots
        """Of each slot, from the current one on, whether it holds exps whose rows still lack that product."""
        self.registers = MemCConfig()
        self.scores = MemCScores()
        self.kept: tuple[Array, Array] | None = None
        """Maxima and sums of the parts of a softmax; known in a run with data."""
        self.at_store = MemCStore()
        self.tables: list[SlotData] = [SlotData(self.size.rows, TABLE_COLUMNS)] if net.data else []
        self.table_tiles = 0, 0
        """Rows and columns of the table, in tiles; known in a run with data."""
        self.begun = 0
        """Quarters of a block that it has stored beyond whole blocks: statistics are quarter blocks."""
        ports = net.machine.ports[spec.name]
        self.mme = next((p.peer for p in ports if p.receives and not p.label), "")
        self.norm_links = self._links("norm", [p.peer for p in ports if p.label == "norm" and p.receives])
        self.softmax_links = self._links("softmax", [p.peer for p in ports if p.label == "softmax" and p.receives])

    def _links(self, label: str, peers: Sequence[str]) -> tuple[Channel, ...]:
        """The streams to and from the neighbour; none if there is no neighbour."""
        return tuple(c for peer in peers for c in (self.sink(peer, label), self.source(peer, label)))

    def kernel(self, uop: MemC | Configuration) -> Steps:
        if isinstance(uop, MemCTable):
            return self._fill_table(uop)
        return super().kernel(uop) if isinstance(uop, MemC) else self._configure(uop)

    def halves(self, uop: MemC | Configuration) -> Halves | None:
        """Return the halves, None for a configuration (`Unit.halves`). They use the values that the registers have when
        this is called: a configuration is for later uOPs, though it may be executed before the draining half of this
        one begins. Raises `ProgramError` if the uOP and the registers do not go together (`refuse`)."""
        if not isinstance(uop, MemC):
            return None
        first = self._multiplies_first(uop)
        self.unscaled = self._unscaled_behind(uop)
        cur, reg, scores = self.turn(), self.registers, self.scores
        other = self.beside(cur, -1)
        if uop.send and self.sends:
            out: Steps | None = self._send(uop, other)
        else:
            out = self._store(uop, other, reg, multiply=first) if uop.store else None
        return self._recv(uop, cur, reg, scores) if uop.recv else None, out

    def effect_key(self, uop: MemC | Configuration) -> Hashable | None:
        if not isinstance(uop, MemC):
            return None  # it sets registers
        reg, at_store = self.registers, self.at_store
        if uop.store and uop.layernorm and at_store.statistics:
            return None  # it changes `begun`
        if self.unscaled != self._unscaled_behind(uop):
            return None
        scores = self.scores.capped, self.scores.windowed, self.scores.part
        first = self._multiplies_first(uop)
        return uop, reg.alone, reg.causal, reg.max_sub, reg.rms, scores, at_store, self.begun, first

    def _multiplies_first(self, uop: MemC) -> bool:
        """Whether a store multiplies by 1 / row sums in a pass of its own, because a post-op comes behind."""
        post_op = uop.gelu or uop.layernorm or self.at_store.rotate
        return bool(self.unscaled[-1] and uop.store and not (uop.send and self.sends) and post_op)

    def _unscaled_behind(self, uop: MemC) -> tuple[bool, ...]:
        """What `unscaled` is for the next uOP."""
        cur, *between = self.unscaled
        if uop.recv and uop.k_iter:
            cur = bool(self.late and uop.softmax and self.scores.part in (KeyPart.ALL, KeyPart.APPLY))
        if between and self._multiplies_first(uop):
            between[-1] = False
        return (*between, cur)

    def _configure(self, uop: Configuration) -> Steps:
        match uop:
            case MemCConfig():
                self.registers = uop
            case MemCScores():
                self.scores = uop
            case MemCStore():
                self.at_store = uop
        yield Step()

    # -- receiving side

    def _recv(self, uop: MemC, side: int, reg: MemCConfig, scores: MemCScores) -> Steps:
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
            state = self.softmax(self, side, reg, scores, rows * TILE, uop.recv_b * TILE)
            yield from self._softmax(state, rows * uop.recv_b * BEATS)

    def _softmax(self, state: SoftmaxData, beats: int) -> Steps:
        """exp over the valid columns, times the reciprocal of the row sum over both neighbours.

        A pass walks over all that was received, whatever is masked: one for a soft cap, one for the maxima where they
        are subtracted, one for exp, and one for the product unless that is made while the results leave. Between passes
        a number per row goes to the neighbour and comes back, at the cost of filling the two loops that do it. Of all
        keys but the last, in parts, maxima and sums are kept; to apply them takes no exchange."""
        reg, part, some = state.reg, state.scores.part, int(beats > 0)
        product = 0 if self.late or part in (KeyPart.FIRST, KeyPart.MORE) else beats
        yield Step("softmax_fill", some, do=state.begin)
        if state.scores.capped:
            yield Step("softcap_beat", beats, do=state.cap)
        if not reg.alone and (reg.causal or state.scores.windowed):  # the odd unit counts behind the even one's columns
            out, back = self.softmax_links
            yield Step(puts=(out,), do=lambda: (state.cols,))
            yield Step(gets=(back,), do=state.set_left)
        if part == KeyPart.APPLY:
            yield Step("softmax_beat", beats + product, do=state.apply)
        elif reg.alone:
            yield Step("softmax_max_fill", some * state.max_sub)
            passes = 1 + state.max_sub
            yield Step("softmax_beat", passes * beats + product, do=state.keep if part else state.finish)
        else:
            yield from self._exchanges(state, beats)
            yield Step("softmax_beat", product, do=state.keep if part else state.finish)

    def _exchanges(self, state: SoftmaxData, beats: int) -> Steps:
        """Maxima, exp and sums with the neighbour."""
        out, back = self.softmax_links
        if state.max_sub:
            yield Step("softmax_max_fill", int(beats > 0))
            yield Step("softmax_beat", beats)
            yield Step("exchange_fill", puts=(out,), words=state.rows, do=state.own_max)
            yield Step("exchange_fill", gets=(back,), words=state.rows, do=state.other_max)
        yield Step("softmax_beat", beats)
        if state.cols:
            yield Step("exchange_fill", puts=(out,), words=state.rows, do=state.own_sum)
        yield Step("exchange_fill", gets=(back,), words=state.rows, do=state.other_sum)

    # -- sending side

    def _send(self, uop: MemC, side: int) -> Steps:
        rows, depth = range(uop.send_a), range(uop.send_k & 3)
        index = tuple((a, k) for a in rows for _ in range(uop.send_b) for k in depth)
        yield self.send(self.sink("MeshA"), side, index)

    def _store(self, uop: MemC, side: int, reg: MemCConfig, *, multiply: bool) -> Steps:
        """What the registers of now say; `begun` is counted at once, because stores go in this order. multiply: first
        all that is in the slot by 1 / row sums."""
        post, begun = self.at_store, self.begun
        for reason in wrong_store(self.size, post, uop):
            self.refuse(reason)
            return nothing()
        statistics = bool(uop.layernorm and post.statistics)
        if statistics and not self.index & 1:
            self.begun = (begun + uop.dim1 // TILE) % BLOCK_QUARTERS
        return self._stored(uop, side, reg, post, quarters=begun > 0, multiply=multiply)

    def _stored(
        self, uop: MemC, side: int, reg: MemCConfig, post: MemCStore, *, quarters: bool, multiply: bool
    ) -> Steps:
        statistics = bool(uop.layernorm and post.statistics)
        if uop.gelu or post.rotate or (uop.layernorm and not statistics):
            self.detach(side)
        if multiply:
            yield Step("softmax_beat", self.size.rows * self.size.columns // BEAT)
        if uop.gelu:
            yield self._activate(uop, side, reg.activation, gate=bool(post.gate))
        state = self.norm(self, side, reg, uop.dim1) if uop.layernorm and not post.head_norm else None
        if state is not None:
            yield from self._norm(state, statistics=statistics)
        elif uop.layernorm:
            norm = HeadNorm(post.head_cols, reg.eps, bool(reg.rms))

            def normalise() -> None:
                self.buffers[side].normalise_heads(uop.dim1, uop.dim2, HEADS[post.head], norm)

            yield Step("norm_us", uop.dim1 * self.size.columns / NORM_ELEMENTS, do=normalise)
        if post.rotate:
            yield self._rotate(uop, side, HEADS[post.head])
        yield self.drain(self.sink("DDR"), side, uop.dim1, uop.dim2, quarters=quarters)
        if state is not None and statistics and not self.index & 1:
            yield self._statistics(state, uop.dim1 // TILE)

    def _activate(self, uop: MemC, side: int, which: int, *, gate: bool) -> Step:
        """The activation walks over all columns, whatever is stored; with a gate, over those that are stored."""

        def activate() -> None:
            if gate:
                self.buffers[side].gate(uop.dim1, uop.dim2, which)
            else:
                cols = self.size.columns if uop.layernorm else uop.dim2
                self.buffers[side].activate(uop.dim1, cols, which)

        return Step("gelu_beat", uop.dim1 * (uop.dim2 if gate else self.size.columns) // BEAT, do=activate)

    def _rotate(self, uop: MemC, side: int, head: int) -> Step:
        def rotate() -> None:
            if self.table_tiles[0] * TILE < uop.dim1 or self.table_tiles[1] * TILE < 2 * head:
                self.refuse(no_table(uop, head, self.table_tiles))
            else:
                self.buffers[side].rotate(uop.dim1, uop.dim2, head, self.tables[0])

        return Step("rotate_beat", uop.dim1 * uop.dim2 // BEAT, do=rotate)

    def _statistics(self, state: NormData, tiles: int) -> Burst:
        """The quarter blocks that follow the data."""
        at = 0

        def quarters(n: int) -> tuple[Pieces]:
            nonlocal at
            at += n
            return (state.statistics()[at - n : at],)

        words = QUARTER_WORDS
        return Burst(tiles, "mem_word", words, puts=(self.sink("DDR"),), words=words, do=quarters)

    def _norm(self, state: NormData, *, statistics: bool) -> Steps:
        """Two passes over own and neighbour's columns; sums are exchanged together with counts. statistics: without the
        pass that rescales."""
        out, back = self.norm_links
        rows = state.rows
        yield Step("norm_us", rows * self.size.columns / NORM_ELEMENTS * (STATISTICS_SHARE if statistics else 1))
        if not state.reg.rms:
            yield Step(puts=(out,), words=rows, do=state.own_sum)
            yield Step(gets=(back,), words=rows, do=state.other_sum)
        yield Step(puts=(out,), words=rows, do=state.own_squares)
        yield Step(gets=(back,), words=rows, do=state.other_squares if statistics else state.normalise)

    # -- table

    def _fill_table(self, uop: MemCTable) -> Steps:
        """Receive the tiles of a table, one round; it replaces the one of before."""
        places = tile_grid(uop.recv_a, uop.recv_b)
        done = 0

        def put(n: int, tiles: Sequence[Array]) -> None:
            nonlocal done
            if not done:
                self.tables[0].renew(self.size.rows, TABLE_COLUMNS)
            self.tables[0].add(tiles, places, done)
            self.table_tiles = uop.recv_a, uop.recv_b
            done += n

        yield Burst(len(places), "mesh_beat", BEATS, gets=(self.source(self.mme),), do=put)


def wrong_store(memory: Memory, post: MemCStore, uop: MemC) -> Iterator[str]:
    """Yield the reasons why a store cannot be executed with these registers. memory: of the MemC. post: the values of
    the registers. uop: the store.
    """
    head = HEADS[post.head]
    if uop.gelu and post.gate and not 0 < 2 * uop.dim2 <= memory.columns:
        yield f"gate: stores {uop.dim2} columns; 64 to {memory.columns // 2} is possible, the others lie behind them"
    by_head = post.rotate or (uop.layernorm and post.head_norm)
    if by_head and (not head or not uop.dim2 or uop.dim2 % head):
        yield f"stores {uop.dim2} columns, which are no whole number of heads of {head}"


def no_table(uop: MemC, head: int, tiles: tuple[int, int]) -> str:
    """Return the message for a rotation whose table is too small. uop: the store that rotates. head: columns from a
    head to the next. tiles: row and column tiles that the table holds.
    """
    return (
        f"rotates {uop.dim1} rows of heads of {head} columns; its table holds {tiles[0] * TILE} rows of "
        f"{tiles[1] * TILE} columns: load one of as many rows and {2 * head} columns before (MemCTable)"
    )


def max_sent(memory: Memory) -> int:
    """Return how many column tiles of a slot a MemC can send: `MAX_SENT`, or all if there are fewer."""
    return min(MAX_SENT, memory.columns // TILE)


# -- instructions: from the work of a MemC, what they may say, what they say to no effect ----------------------------

Needed = Mapping[type[Record], Mapping[str, Any]]
"""The registers that an operation uses, with their values, by format."""


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
        out |= {"gelu": int(drain.activation is not None or drain.gate), "layernorm": int(drain.norm is not None)}
    return MemC(**receive, **out)


@lru_cache(typed=True)
def _needed(fill: Receive | None, drain: Send | Store | None) -> Needed:
    config: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    post: dict[str, Any] = {}
    if fill is not None and fill.softmax is not None:
        config |= dict(_softmax(fill.softmax))
        scores |= dict(_scores(fill.softmax))
    if isinstance(drain, Store):
        if drain.activation is not None or drain.gate:
            config["activation"] = (*ACTIVATIONS, IDENTITY).index(drain.activation or IDENTITY)
        if drain.norm is not None:
            config |= {"eps": _float(drain.norm.eps), "rms": int(drain.norm.rms)}
            config |= {} if drain.norm.head else {"norm_cols": drain.norm.columns}
        post |= dict(_at_store(drain))
    return {MemCConfig: config, MemCScores: scores, MemCStore: post}


def _float(value: float) -> float:
    return float(np.float32(value))


def _softmax(softmax: Softmax) -> Iterator[tuple[str, Any]]:
    yield "softmax_cols", ALL_COLUMNS if softmax.columns is None else softmax.columns
    yield from (("max_sub", 1), ("alone", int(softmax.alone)), ("causal", int(softmax.causal)))
    if softmax.causal:
        yield "offset", softmax.offset


def _scores(softmax: Softmax) -> Iterator[tuple[str, Any]]:
    yield from (("first_cols", softmax.first), ("part", int(softmax.part)))
    yield from (("windowed", int(softmax.low is not None)), ("capped", int(softmax.cap is not None)))
    if softmax.low is not None:
        yield "low", softmax.low
    if softmax.cap is not None:
        yield from (("cap", _float(softmax.cap)), ("inverse_cap", _float(1 / softmax.cap)))


def _at_store(store: Store) -> Iterator[tuple[str, Any]]:
    yield "rotate", int(store.rotation is not None)
    if store.activation is not None or store.gate:
        yield "gate", int(store.gate)
    heads = {store.norm.head if store.norm else 0, store.rotation.head if store.rotation else 0} - {0}
    if len(heads) > 1:
        raise ProgramError(f"a store with heads of {' and '.join(map(str, sorted(heads)))} columns: give both the same")
    if heads:
        yield "head", HEADS.index(*heads)
        if store.norm is None:
            yield "head_norm", 0  # that of wider heads before would be of more columns than these have
    if store.statistics and store.norm is None:
        raise ProgramError("a store leaves statistics of no norm: give it the norm whose mean and variance they are")
    if store.norm is not None:
        yield from (("statistics", int(store.statistics)), ("head_norm", int(store.norm.head > 0)))
        if store.norm.head:
            yield "head_cols", store.norm.columns


def emit(unit: UnitSpec, items: Iterable[Any], *, registers: bool) -> Iterator[MemC | MemCTable | Patched]:
    """Yield the instruction of each of the items, `Turn`s. Before it come those that set registers whose values change,
    and those that fill the table of its store. registers: the unit has those of opcodes 8 to 11.

    Raises `ProgramError` if the unit has no memory, needs a register that it does not have, or if a store says things
    that do not go together; `FieldError` for a value that does not fit its field.
    """
    columns, power_on = memory_of(unit).columns, MemCConfig().norm_cols
    held = [
        Registers(MemCConfig, **({} if columns >= power_on else {"norm_cols": columns})),
        Registers(MemCScores),
        Registers(MemCStore),
    ]
    for turn in items:
        needed = _needed(turn.fill, turn.drain)
        if not registers:
            for of_format in held[1:]:
                of_format.require_power_on(unit, needed[of_format.record])
        else:
            for of_format in held:
                yield from of_format.set(needed[of_format.record])
            if isinstance(turn.drain, Store) and turn.drain.rotation is not None and any(turn.drain.rotation.fresh):
                rows, cols = turn.drain.rotation.fresh
                yield MemCTable(recv_a=rows, recv_b=cols)
        yield _operation(turn.fill, turn.drain)


def legal(unit: UnitSpec, uop: MemC) -> Iterator[str]:
    """Yield the reasons why the unit cannot execute a uOP whose fields are all in range (contract sections 1.4 and 2).

    Raises `ProgramError` if the unit has no memory.
    """
    rows, cols = memory_of(unit).rows, memory_of(unit).columns
    row_tiles, col_tiles = rows // TILE, cols // TILE
    if unit.capability("send") is None and (uop.send or uop.softmax):
        yield "has no way to MeshA and no softmax"
    if uop.recv and uop.softmax and not uop.recv_a & 3:
        yield "a softmax over no rows"
    if uop.recv and uop.softmax and not uop.k_iter and unit.capability(LATE_PRODUCT) is not None:
        yield "a softmax of what was received before, which may still lack its product by 1 / row sums"
    if uop.store and uop.layernorm and not uop.dim1:
        yield "a norm over no rows"
    if uop.recv and (uop.recv_a > row_tiles or uop.recv_b > col_tiles):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a buffer of {row_tiles}x{col_tiles}"
    if uop.store and (uop.dim1 > rows or uop.dim2 > cols or uop.dim1 % 128 or uop.dim2 % 64):
        yield f"store {uop.dim1}x{uop.dim2} is no whole number of 128x64 blocks of a {rows}x{cols} buffer"
    if uop.send and (uop.send_a > row_tiles or uop.send_k > max_sent(memory_of(unit))):
        yield f"sends {uop.send_a}x{uop.send_k} tiles; {row_tiles}x{max_sent(memory_of(unit))} is the most"


def legal_config(unit: UnitSpec, uop: MemCConfig) -> Iterator[str]:
    """Yield the reasons why values of registers are not defined, although they are in range (contract section 7).

    Raises `ProgramError` if the unit has no memory.
    """
    cols = memory_of(unit).columns
    if uop.activation > len(ACTIVATIONS):
        yield f"activation {uop.activation} is not defined"
    if uop.softmax_cols > cols and uop.softmax_cols != ALL_COLUMNS:
        yield f"softmax_cols={uop.softmax_cols} is neither within 0..{cols} nor {ALL_COLUMNS}"
    if uop.norm_cols > cols:
        yield f"norm_cols={uop.norm_cols} is not within 0..{cols}"


def legal_scores(unit: UnitSpec, uop: MemCScores) -> Iterator[str]:
    """Yield the reasons why values of the registers of a softmax are not defined, although they are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    cols = memory_of(unit).columns
    if unit.capability("send") is None:
        yield "has no softmax"
    if uop.first_cols > cols:
        yield f"first_cols={uop.first_cols} is not within 0..{cols}"
    if uop.capped and (uop.cap <= 0 or uop.inverse_cap <= 0):
        yield f"cap={uop.cap:g} and inverse_cap={uop.inverse_cap:g}: both must be greater than 0"


def legal_store(unit: UnitSpec, uop: MemCStore) -> Iterator[str]:
    """Yield the reasons why values of the registers of a store are not defined, although they are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    head, cols = HEADS[uop.head], memory_of(unit).columns
    if (uop.rotate or uop.head_norm) and not head:
        yield "rotate and head_norm need heads: head = 1 (64 columns), 2 (128) or 3 (256)"
    if head > cols:
        yield f"heads of {head} columns in a buffer of {cols}"
    if uop.head_norm and head and not 0 < uop.head_cols <= head:
        yield f"head_cols={uop.head_cols} is not within 1..{head}"
    if uop.head_norm and uop.statistics:
        yield "statistics are of whole rows: head_norm must be 0"


def legal_table(unit: UnitSpec, uop: MemCTable) -> Iterator[str]:
    """Yield the reasons why the unit cannot fill a table as a uOP says, although its fields are in range.

    Raises `ProgramError` if the unit has no memory.
    """
    memory = memory_of(unit)
    rows, cols = memory.rows // TILE, TABLE_COLUMNS // TILE
    if memory.slots > 2:
        yield f"a table needs a buffer of two slots, not {memory.slots}: a store may still use the one of before"
    if not (0 < uop.recv_a <= rows and 0 < uop.recv_b <= cols):
        yield f"receives {uop.recv_a}x{uop.recv_b} tiles into a table of {rows}x{cols}"


def check_memory(unit: UnitSpec, *, registers: bool) -> None:
    """Raise `ProgramError` if a unit has no memory, or one that is not a whole number of tiles, or one that is too
    large for the fields of `MemC`. registers: the unit has registers; their fields must then hold the sizes too. Of the
    3 bits of `recv_a`, a MemC that sends reads only two."""
    rows = [SizeField(MemC, "dim1"), SizeField(MemC, "recv_a", TILE), SizeField(MemC, "send_a", TILE)]
    columns = [SizeField(MemC, "dim2"), SizeField(MemC, "recv_b", TILE)]
    if registers:
        columns += [SizeField(MemCConfig, "softmax_cols"), SizeField(MemCConfig, "norm_cols")]
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
