"""MemC: results, what is applied to them before they leave, and the registers that say how."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from ....machine.description import Capability, Memory, UnitSpec, Where
from ....machine.steps import Burst, Channel, Step, Steps
from ....machine.unit import Halves, Wiring
from ...fields import Record, bits
from ...versal.functions import HeadNorm
from ...versal.loop import PipelinedLoop
from ...versal.tiles import BEAT, BEATS, TILE, Array, Pieces, tile_grid
from ...work import KeyPart
from .buffer import SlotData
from .post_ops import BLOCK_QUARTERS, QUARTER_WORDS, NormData, SoftmaxData
from .ring import RingUnit, nothing

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
    """Fill a MemC's table from its MME (our opcode 11). It does not go on to the other buffer."""

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
    """Result scratchpad: receives and accumulates; applies softmax before its flip, activation and norm before its
    store. Neighbours are 0-1, 2-3 and 4-5."""

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
        """Return the halves, None for a configuration (`Unit.halves`). They keep the registers of now: a configuration
        is for later uOPs, though it may be executed before the draining half of this one begins."""
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
