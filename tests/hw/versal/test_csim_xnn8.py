"""The C++ machine of xnn8, its kernel and its 384 tiles, computes what its model in Python does, in every bit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError
from rsn.hw.sim.machine import Machine, simulate
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.layout import UNIT
from rsn.isa.overlays.xnn8 import numbers
from rsn.isa.overlays.xnn8.emission import Destination, HeadsRound, PanelNorm
from rsn.isa.overlays.xnn8.formats import (
    LANES,
    PAIRS,
    SHORT_ROW_PAIR,
    T_CELLS,
    WIDE_ROWS,
    X_CELLS,
    AddedResidual,
    ChunkSource,
    EngineOp,
    LaneMemory,
    PanelHeads,
    PanelRows,
    PanelSend,
    RowOp,
    cells,
)
from rsn.isa.overlays.xnn8.lanes import HEADS, SEND
from rsn.isa.overlays.xnn8.numbers import BLOCK, T_BITS, X_BITS, BlockNumbers, NormConstants
from rsn.isa.overlays.xnn8.stored import columns_of, units_of_row, words_by_row
from rsn.tests.effort import FULL, examples
from rsn.tests.isa.xnn8_programs import HandMade

from .native import native

pytestmark = pytest.mark.long  # the first of them builds the machine
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


class Layer(HandMade):
    """Parts of an encoder layer with random numbers. shape: as of `HandMade`."""

    def __init__(self, seed: int, *shape: int, spread: bool = False) -> None:
        super().__init__(*shape, spread=spread)
        self.rng = np.random.default_rng(seed)
        self.four_bits = False
        self._walked = False

    def vector(self, blocks: int, low: float, high: float) -> BlockNumbers:
        return numbers.blocks_of(self.rng.uniform(low, high, 64 * blocks), X_BITS)

    def begin(self, blocks: int, norm: PanelNorm | None, *, gains: bool = True, low_bits: int = 0) -> None:
        """Load rows and walk them. low_bits: as for `product`."""
        x = numbers.blocks_of(self.rng.normal(size=(self.rows, 64 * blocks)), X_BITS)
        self.load(x, self.vector(blocks, 0.5, 2) if gains else None)
        self.emit.walk(0, blocks, norm, low_bits)

    def product(
        self, source: ChunkSource, slot: int, chunks: int, to: Destination, columns: int, of_ddr: int, low_bits: int = 0
    ) -> None:
        """A product of up to 512 columns. low_bits: that its rows have beyond 8."""
        weight, multipliers = self.rng.integers(-127, 128, (64 * chunks, 64 * columns)), None
        if self.four_bits:
            weight = self.rng.integers(-8, 8, weight.shape)
            multipliers = self.rng.integers(0, 256, (2 * chunks, 64 * columns), np.uint8)
        shifts = np.full((columns, 1), numbers.drain_shift((127 << low_bits) * 127 * 64 * chunks))
        scale, bias = self.vector(columns, 1e-4, 2e-4), self.vector(columns, -0.1, 0.1)
        of_sums = [[*pair, int(shifts[0, 0])] for pair in zip(columns_of(scale), columns_of(bias), strict=True)]
        each, together = 1 + to.gated, 1 + (to.norm is not None and to.pitch > BLOCK)
        kinds = [of_sums[i :: each * together] for i in range(each * together)]
        while len(kinds) * columns < to.constants(columns) * each * together:
            others = (columns_of(self.vector(columns // each, *limits)) for limits in ((0.5, 2), (-0.1, 0.1)))
            of_blocks = [[*pair, 0] for pair in zip(*others, strict=True)]
            kinds += [of_blocks[i::together] for i in range(together)]
        (weights,) = self.weights(weight, shifts, of_ddr, multipliers)
        stored = weights._replace(low_bits=low_bits)
        begins = source is ChunkSource.X8 and not self._walked
        self._walked = True
        self.emit.product(source, slot, chunks, stored, self.constants(*kinds).addr, to, each=begins)


def check_alike(hand: HandMade, stalls: int = 0) -> None:
    banks = hand.banks()
    model, machine = ({name: bank.copy() for name, bank in banks.items()} for _ in range(2))
    simulate(hand.program, model)
    native("xnn8").run(hand.program, machine, stalls=stalls)
    for name, words in model.items():
        np.testing.assert_array_equal(machine[name].view(np.uint32), words.view(np.uint32))


@examples(12, quick=3, phases=UNSHRUNK)
@given(
    seed=st.integers(0, 1000),
    engines=st.integers(1, 3),
    sequences=st.integers(0, 2),
    lanes=st.integers(1, 4),
    rows=st.sampled_from([16, 32, 48, 64]),
    heads=st.integers(1, 8),
    head_dim=st.sampled_from([32, 64, 64, 128]),
    groups=st.sampled_from([1, 1, 2, 3, 4, 8]),
    causal=st.booleans(),
    norm=st.sampled_from([None, False, True]),
    residual=st.sampled_from(AddedResidual),
    function=st.integers(0, 4),
    summed=st.sampled_from([0, 0, 1, 2]),
    gated=st.booleans(),
    rotated=st.booleans(),
    of_heads=st.sampled_from([None, None, False, True]),
    apart=st.booleans(),
    gains=st.booleans(),
    four_bits=st.booleans(),
    low_bits=st.sampled_from([0, 0, 1, 5, 7, 8]),
    of_x=st.booleans(),
    stalls=st.sampled_from([0, 0, 1]),
    data=st.data(),
)
def test_an_encoder_layer(
    seed: int,
    engines: int,
    sequences: int,
    lanes: int,
    rows: int,
    heads: int,
    head_dim: int,
    groups: int,
    causal: bool,
    norm: bool | None,
    residual: AddedResidual,
    function: int,
    summed: int,
    gated: bool,
    rotated: bool,
    of_heads: bool | None,
    apart: bool,
    gains: bool,
    four_bits: bool,
    low_bits: int,
    of_x: bool,
    stalls: int,
    data: st.DataObject,
) -> None:
    """Queries, keys and values, attention, a projection with a residual, a hidden tensor through a function, and what
    is added to X. sequences: of an engine; 0 for one over all engines. groups: heads that share keys and values. norm:
    None for none, True for one without a mean. summed: addends of a sum without a product, through a function; the
    projection and what was loaded; 0 for no sum. gated: the hidden tensor, and what goes to X if there are columns for
    it. rotated: queries, keys and the projection. of_heads: norms of queries and keys, as of `norm`. apart: the first
    sum lies behind its addend in X. gains: of what is loaded. four_bits: of weights behind attention. low_bits: that
    rows of T have beyond 8; of_x: those of X, too. Many lanes have many rows each in `make test-full` alone: each row
    takes 10 ms."""
    if head_dim > 64:
        rows = min(rows, WIDE_ROWS)
    if not FULL:
        rows = min(rows, 256 // (engines * (sequences or 2) * lanes) // 16 * 16 or 16)
    spread, parts = not sequences, 1 if sequences else engines
    if spread:  # T has keys and values twice; a block of its rows has a multiple of 32
        rows, lanes = min(rows, 16 if head_dim > 64 else 32), 2 * lanes
    hand = Layer(seed, engines, sequences, lanes, rows, spread=spread)
    count = data.draw(st.integers((parts - 1) * lanes * rows + 1, parts * lanes * rows))
    of_norm = None if norm is None else PanelNorm(NormConstants.of(64 * heads - 5, 1e-5), norm)
    if of_norm is None and residual is AddedResidual.NORMALISED:
        residual = AddedResidual.RAW
    of_ddr = data.draw(st.integers(0, heads))
    bits_of_x = low_bits if of_x and 2 * heads * cells(rows) <= X_CELLS else 0
    hand.begin(heads, of_norm, gains=gains, low_bits=bits_of_x)
    if rotated:
        angles = hand.rng.uniform(-1, 1, (hand.rows, max(64, head_dim)))
        angles *= 2.0 ** hand.rng.integers(-20, 1, (hand.rows, 1))
        hand.load(numbers.blocks_of(angles, X_BITS), None, LaneMemory.ANGLES)
    most = (16 if head_dim > 64 else 8) * cells(rows)
    first = data.draw(st.integers(0, T_CELLS - (5 + 2 * parts * spread) * most))
    own_keys, own_values, queries, attended, inner = range(first, first + 5 * most, most)
    keys_slot, values = own_keys, own_values
    if spread:
        keys_slot, values = inner + most, inner + (1 + parts) * most
    per = 64 // min(head_dim, 64)  # heads of a block
    shown, skip = data.draw(st.integers(1, count)), data.draw(st.integers(0, per * groups - 1))
    attention = HeadsRound(
        queries, keys_slot, values, attended, heads, head_dim, count, shown, groups, skip, causal=causal
    )
    keys, blocks = (attention.blocks(shared=shared) for shared in (True, False))
    columns_of_heads = data.draw(st.integers(head_dim - 5, head_dim))
    norm_of_heads = None if of_heads is None else PanelNorm(NormConstants.of(columns_of_heads, 1e-6), of_heads)
    reader = SEND if spread else HEADS
    for slot, columns, told in ((own_keys, keys, reader), (own_values, keys, reader), (queries, blocks, SEND)):
        to = Destination(slot, True, (told,), pitch=attention.pitch)
        if slot != own_values:
            to = replace(to, norm=norm_of_heads, rotated=rotated)
        for at in range(0, columns, PAIRS):
            to, some = replace(to, slot=slot + at * cells(rows)), min(PAIRS, columns - at)
            hand.product(ChunkSource.X8, 0, heads, to, some, min(of_ddr, some), bits_of_x)
    for slot, to_all, readers in ((own_values, values, (HEADS,)), (own_keys, keys_slot, (SEND, HEADS))) * spread:
        apart_at = hand.put("ddr", np.zeros(keys * hand.pitch * SHORT_ROW_PAIR // 2, np.float32))
        hand.emit.put_apart(apart_at, slot, keys)
        hand.emit.fetch(apart_at, to_all, keys, readers)
    hand.emit.attention(attention, last=True)
    hand.four_bits = four_bits
    loaded = heads * cells(rows)
    added = data.draw(st.integers(loaded, X_CELLS - loaded)) if apart else 0
    projected = Destination(added, residual=residual, gains=True, rotated=rotated)
    hand.product(ChunkSource.T, attended, blocks, projected, heads, of_ddr, low_bits)
    if summed:
        source, each = added, cells(rows)
        if summed == 1 and apart:
            added -= data.draw(st.integers(0, (added - loaded) // each)) * each
        of_sum = Destination(added, residual=AddedResidual(summed - 1), function=function, gains=True)
        hand.emit.sum(source, of_sum, heads, hand.gains(hand.vector(heads, 0.5, 2)).addr)
    hand.emit.walk(added, heads, of_norm, bits_of_x)
    hidden = Destination(inner, True, (SEND,), function=function, gated=gated)
    hand.product(ChunkSource.X8, added, heads, hidden, 4 << gated, 1, bits_of_x)
    last = Destination(0, residual=AddedResidual.RAW, residual_slot=added, gains=True)
    if gated and heads <= 4:
        last = Destination(0, function=function, gains=True, gated=True)
    hand.product(ChunkSource.T, inner, 4, last, heads << last.gated, of_ddr, min(low_bits, 7))
    hand.store(heads, of_norm)
    check_alike(hand, stalls)


@examples(4, quick=2, phases=UNSHRUNK)
@given(
    seed=st.integers(0, 1000),
    rows=st.sampled_from([16, 32, 64]),
    blocks=st.integers(1, PAIRS),
    in_x=st.booleans(),
    kept=st.sampled_from([None, 0, 5, 255]),
    stalls=st.sampled_from([0, 1]),
    data=st.data(),
)
def test_rows_one_by_one(
    seed: int, rows: int, blocks: int, in_x: bool, kept: int | None, stalls: int, data: st.DataObject
) -> None:
    """Rows of X are stored, and rows of caches go to T and come back, in two engines. kept: the row of a cache that the
    first row of a sequence becomes, of 128; None: all rows are stored."""
    hand = Layer(seed, 2, 1, LANES, rows)
    x, short = (numbers.blocks_of(hand.rng.normal(size=(hand.rows, 64 * blocks)), bits) for bits in (X_BITS, T_BITS))
    hand.load(x, None)
    slot = data.draw(st.integers(0, T_CELLS - blocks * cells(rows)))
    memory = LaneMemory.X if in_x else LaneMemory.T
    of_x = data.draw(st.integers(0, X_CELLS - blocks * cells(rows))) if in_x else 0
    of_x = of_x if of_x >= blocks * cells(rows) else 0
    for number, of in enumerate(hand.placed):
        part = BlockNumbers(*(y[number * hand.pitch : (number + 1) * hand.pitch] for y in short))
        hand.emit.load_rows(of._replace(spread=rows), hand.put("ddr", words_by_row(part)), slot, blocks, (SEND, HEADS))
        for kind, waits in ("Send", PanelSend(chunks=0)), ("Heads", PanelHeads(heads=0)):
            hand.emit.sequences[f"{kind}{of.engine}"].append(waits)
    if of_x:
        hand.emit.sum(0, Destination(of_x), blocks, 0)
    count = units_of_row(blocks, X_BITS if in_x else T_BITS) * UNIT * (hand.pitch if kept is None else 128)
    at = [hand.put("ddr", hand.rng.normal(size=count).astype(np.float32)) for _ in hand.placed]
    hand.emit.store_rows(at, of_x if in_x else slot, blocks, 0 if kept is None else 128, memory)
    hand.emit.stored_late()
    mops = hand.emit.sequences["DDR"]
    mops[:] = [mop.replace(row=kept) if getattr(mop, "keeps", 0) else mop for mop in mops]
    check_alike(hand, stalls)


@examples(10, quick=3, phases=UNSHRUNK)
@given(
    seed=st.integers(0, 1000),
    engines=st.integers(1, 3),
    sequences=st.integers(1, 4),
    heads=st.integers(1, PAIRS),
    head_dim=st.sampled_from([32, 64, 64, 128]),
    groups=st.sampled_from([1, 2, 3, 4, 7, 16]),
    keys=st.sampled_from([16, 32, 64, 96, 192]),
    rotated=st.booleans(),
    four_bits=st.booleans(),
    low_bits=st.sampled_from([0, 0, 8]),
    stalls=st.sampled_from([0, 1]),
    data=st.data(),
)
def test_a_step_of_a_decoder(
    seed: int,
    engines: int,
    sequences: int,
    heads: int,
    head_dim: int,
    groups: int,
    keys: int,
    rotated: bool,
    four_bits: bool,
    low_bits: int,
    stalls: int,
    data: st.DataObject,
) -> None:
    """The new rows of keys and values go to caches, these to T of all lanes; attention over them, and two products of
    which the second one passes through X. heads: of keys and values, of which groups of queries share each. keys: in
    each lane."""
    wide, per = head_dim > 64, max(1, 64 // head_dim)
    if per > 1:
        groups = 1
    if wide and keys > 96:
        keys = 96
    blocks = -(-heads // per) << wide  # of keys and values
    if not FULL:
        keys = min(keys, 96 if engines * sequences < 4 else 32)
    while 2 * blocks * groups + 2 * blocks * (1 + cells(keys)) > T_CELLS or blocks * groups > 48:
        heads, groups = (heads, groups - per) if groups > per else (heads - 1, groups)
        blocks = -(-heads // per) << wide
    hand = Layer(seed, engines, sequences, 2, 16)
    hand.emit.begin([of._replace(spread=keys) for of in hand.placed])
    hand.four_bits = four_bits
    hand.begin(blocks, PanelNorm(NormConstants.of(64 * blocks, 1e-5), True))
    if rotated:
        angles = hand.rng.uniform(-1, 1, (hand.rows, max(64, head_dim)))
        hand.load(numbers.blocks_of(angles, X_BITS), None, LaneMemory.ANGLES)
    of_queries, of_caches = -(-heads * groups // per) << wide, blocks * cells(keys)
    queries, results, new_keys, new_values = (0, of_queries, 2 * of_queries, 2 * of_queries + blocks)
    of_keys, of_values = (2 * (of_queries + blocks) + i * of_caches for i in range(2))
    of_heads = HeadsRound(
        *(queries, of_keys, of_values, results, heads, head_dim, 1, data.draw(st.integers(1, 8 * keys)), groups),
        grouped=groups > 1,
    )
    for slot, columns in ((new_keys, blocks), (new_values, blocks), (queries, of_queries)):
        turned = {"rotated": rotated and slot != new_values, "pitch": of_heads.pitch}
        for at in range(0, columns, PAIRS):
            some = min(PAIRS, columns - at)
            hand.product(ChunkSource.X8, 0, blocks, Destination(slot + at, True, (SEND,), **turned), some, 1)
    caches = []
    for slot in (new_keys, new_values):
        stored = [numbers.blocks_of(hand.rng.normal(size=(8 * keys, 64 * blocks)), T_BITS) for _ in hand.placed]
        parts = [[BlockNumbers(*(y[:, at : at + PAIRS] for y in x)) for at in range(0, blocks, PAIRS)] for x in stored]
        caches.append([[hand.put("ddr", words_by_row(part)) for part in x] for x in parts])
        for i, at in enumerate(range(0, blocks, PAIRS)):
            addresses = [of_sequence[i] for of_sequence in caches[-1]]
            hand.emit.store_rows(addresses, slot + at, min(PAIRS, blocks - at), 8 * keys)
    work = [of for some in hand.emit.rounds() for of in some]
    last = {of.engine: of for of in work}
    for of in work:
        for at_cells, of_all, readers in zip((of_keys, of_values), caches, ((SEND, HEADS), (HEADS,)), strict=True):
            for addr, at in zip(of_all[of.number], range(0, blocks, PAIRS), strict=True):
                to = at_cells + at * cells(keys)
                hand.emit.load_rows(of, addr, to, min(PAIRS, blocks - at), readers)
        hand.emit.attend(of_heads, of, ends=last[of.engine] == of)
    some = min(PAIRS, blocks)
    hand.product(ChunkSource.T, results, of_queries, Destination(0, residual=AddedResidual.RAW), some, some, low_bits)
    words = units_of_row(some, X_BITS) * UNIT
    hand.emit.store_rows([hand.put("ddr", np.ones(words, np.float32)) for _ in work], 0, some, 1, LaneMemory.X)
    hand.emit.stored_late()
    check_alike(hand, stalls)


def test_a_compiled_layer_of_a_decoder() -> None:
    """Causal, with RMS norms, also of heads, rotations and a gate; of 12 heads each three share keys, and the second
    round begins with the last of three."""
    torch = pytest.importorskip("torch")
    import rsn

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(128) for _ in range(2))
            self.q, self.k, self.v = (torch.nn.Linear(128, 64 * heads, bias=False) for heads in (12, 4, 4))
            self.of_heads = torch.nn.ModuleList(torch.nn.RMSNorm(64) for _ in range(2))
            self.gate, self.up = (torch.nn.Linear(128, 320) for _ in range(2))
            self.o, self.down = torch.nn.Linear(768, 128, bias=False), torch.nn.Linear(320, 128)
            angles = torch.arange(40)[:, None] / 100 ** (torch.arange(64) % 32 / 32)
            self.cosine, self.sine = torch.nn.Buffer(angles.cos()), torch.nn.Buffer(angles.sin())

        def turned(self, x: Any) -> Any:
            lower, upper = x.chunk(2, -1)
            return x * self.cosine + torch.cat((-upper, lower), -1) * self.sine

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            q, k, v = (w(y).unflatten(-1, (-1, 64)).transpose(1, 2) for w in (self.q, self.k, self.v))
            q, k = (self.turned(norm(x)) for norm, x in zip(self.of_heads, (q, k), strict=True))
            heads = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(heads.transpose(1, 2).flatten(2))
            y = self.norms[1](x)
            return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))

    torch.manual_seed(0)
    model, x = Layer().eval(), torch.randn(2, 40, 128)
    with rsn.compile(model, (x,), overlay="xnn8", board="csim") as compiled, torch.no_grad():
        got, integers, floats = compiled(x), rsn.in_integers(model, (x,))(x), model(x)
    assert torch.equal(got, integers)
    assert (got - floats).abs().max() < 0.02 * floats.abs().max()


@pytest.mark.parametrize(("make", "slots"), [("gpt2", 2), ("llama", 4)])
def test_decoders(make: str, slots: int) -> None:
    """Prompts and steps of decoders, of which each call is compared with the integers, caches too."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from rsn.host.generation import Decoder
    from rsn.tests import test_integer_decoding as decoding

    torch.manual_seed(0)
    model = decoding.gpt2() if make == "gpt2" else decoding.llama(head_dim=64, vocab_size=600)
    options = {"overlay": "xnn8", "verify": "always", "board": "csim"}
    with Decoder(model, slots=slots, capacity=40, **options) as decoder:
        for slot in range(2):
            decoder.prefill(slot, [7 * k % 90 + slot for k in range(3 + 4 * slot)])
        for token in range(2):
            decoder.step({slot: token + slot for slot in range(2)})
        step = ExpandedProgram(decoder._step.program)
    assert {uop.spread for uop in step.uops if isinstance(uop, EngineOp) and uop.attention} == {1}


@pytest.mark.parametrize(
    ("heads", "columns", "rows16", "seq"), [(4, 32, ["qkv.*", "o", "up"], 40), (2, 128, [], 40), (2, 64, [], 300)]
)
def test_a_compiled_layer_with_other_heads(heads: int, columns: int, rows16: list[str], seq: int) -> None:
    """Heads of 32 columns with rows of 16 bits, of 128 columns, and of a sequence over three engines, all with norms. A
    sum is behind no product."""
    torch = pytest.importorskip("torch")
    import rsn

    width = heads * columns

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
            self.of_heads = torch.nn.ModuleList(torch.nn.LayerNorm(columns) for _ in range(2))
            self.o, self.up = (torch.nn.Linear(width, width) for _ in range(2))

        def forward(self, x: Any) -> Any:
            y = self.norms[0](x)
            q, k, v = (w(y).unflatten(-1, (heads, -1)).transpose(1, 2) for w in self.qkv)
            q, k = (norm(x) for norm, x in zip(self.of_heads, (q, k), strict=True))
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            h = x + self.o(made.transpose(1, 2).flatten(2))
            return torch.relu(h + (x + self.up(self.norms[1](h))))

    torch.manual_seed(0)
    model, x = Layer().eval(), torch.randn(1, seq, width)
    with rsn.compile(model, (x,), overlay="xnn8", board="csim", rows16=rows16) as compiled, torch.no_grad():
        uops = ExpandedProgram(compiled.program).uops
        ops = {uop.op for uop in uops if isinstance(uop, PanelRows)}
        others = {uop.others for uop in uops if isinstance(uop, PanelSend) and uop.source == ChunkSource.QUERIES}
        got, integers, floats = compiled(x), rsn.in_integers(model, (x,), rows16=rows16)(x), model(x)
    assert RowOp.SUM in ops
    assert others == ({0} if seq == 40 else {0b110, 0b101, 0b011})
    assert torch.equal(got, integers)
    assert (got - floats).abs().max() < 0.02 * floats.abs().max()


@pytest.mark.parametrize(("blocks", "low_bits"), [(256, 0), (255, 3)])
def test_rows_of_all_blocks_of_t(blocks: int, low_bits: int) -> None:
    hand = Layer(1, 1, 1, 2, 16)
    hand.begin(1, None)
    for at in range(0, blocks, PAIRS):
        hand.product(ChunkSource.X8, 0, 1, Destination(at, True, (SEND,)), min(PAIRS, blocks - at), 0)
    hand.product(ChunkSource.T, 0, blocks, Destination(1), 1, 0, low_bits)
    hand.store(2)
    check_alike(hand)


def test_a_copy_in_front_of_what_is_copied() -> None:
    hand = Layer(1, 1, 1, 1, 32)
    hand.load(numbers.blocks_of(hand.rng.normal(size=(32, 64 * 7)), X_BITS), None)
    hand.emit.sum(4, Destination(2, gains=True), 5, hand.gains(hand.vector(5, 0.5, 2)).addr)
    hand.store(7)
    check_alike(hand)


def test_compiled_panels_in_turn() -> None:
    """Two panels whose steps mix: one has its rows in X8 while the other one computes with those in T."""
    torch = pytest.importorskip("torch")
    import rsn

    class Layer(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up = torch.nn.LayerNorm(64), torch.nn.Linear(64, 640)
            self.down = torch.nn.Linear(640, 64)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(Layer(), Layer()).eval(), torch.randn(4, 260, 64)
    with rsn.compile(model, (x,), overlay="xnn8", board="csim") as compiled, torch.no_grad():
        expansion = ExpandedProgram(compiled.program)
        kinds = expansion.sequences["Rows0"].kinds.tolist()
        slots = [expansion.uops[kind].slot for kind in kinds if expansion.uops[kind].memory == LaneMemory.X]
        assert torch.equal(compiled(x), rsn.in_integers(model, (x,))(x))
    halves = [slot < X_CELLS // 2 for slot in slots]
    assert sum(a != b for a, b in pairwise(halves)) > 2


def test_all_lanes_and_weights_longer_than_fifos() -> None:
    """And more columns than lanes of 64 rows have."""
    hand = Layer(1, 3, 1, 8, 16)
    hand.begin(20, PanelNorm(NormConstants.of(1280, 1e-5)))
    for i in range(2):
        to = Destination(12 * i, residual=AddedResidual.RAW, residual_slot=12 * i)
        hand.product(ChunkSource.X8, 0, 20, to, 8, 3)
    hand.store(20)
    check_alike(hand)


def endless() -> HandMade:
    """A product of more chunks than its rows have."""
    hand = Layer(1, 1, 1, 2, 16)
    hand.begin(2, None)
    hand.product(ChunkSource.X8, 0, 2, Destination(0), 1, 0)
    hand.store(1)
    hand.emit.sequences["Engine0"][0] = EngineOp(columns=1, depth=3, lanes=2, rows=16)
    return hand


def test_a_deadlock_is_told_as_by_the_simulator() -> None:
    with pytest.raises(DeadlockError) as wanted:
        Machine(endless().program).run()
    hand = endless()
    with pytest.raises(DeadlockError) as told:
        native("xnn8").run(hand.program, hand.banks())
    assert str(told.value) == str(wanted.value)
