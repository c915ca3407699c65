"""What `check` knows about the XNN units beyond counting words: double buffers, what tiles hold, exchanges.

Only valid data may be sent, multiplied or stored. A buffer may be sent again without being loaded again (the order that
walks K forwards and backwards does so); a MemC buffer may be stored twice, but not with its post-op twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ....base.finding import Finding
from ....machine.unit import Wiring
from ...expansion import ExpandedProgram, Ints
from ...layout import BLOCK
from ...overlay import Overlay
from ...versal.tiles import BEAT, ROW_SUM_TOKEN, TILE
from .counted import Exchange
from .flow import TileFlow, words_moved
from .mem_a import MemA, MemANorm
from .mem_c import MemC, MemCStore
from .off_chip import RowTransfer, Transfer
from .post_ops import QUARTER_WORDS


def rules(expansion: ExpandedProgram, balanced: bool) -> Iterator[Finding]:
    """Yield all findings about a program: of tiles and buffers, exchanges of neighbours, vectors, statistics of rows.

    balanced: sends equal receives on every stream. Otherwise it is not known which tile goes where, so tiles are not
    followed beyond the Mem that sends them.
    """
    flow = TileFlow(expansion)
    yield from flow.findings(balanced)
    yield from _exchanges(expansion, flow.exchanges)
    yield from _vectors(expansion, flow.net)
    yield from _statistics(expansion)


# -- neighbours -------------------------------------------------------------------------------------------------------

_SAYS = {"softmax": ("recv_a", "max_sub", "causal", "windowed", "part"), "layernorm": ("dim1", "rms")}
_EXCHANGE_HELP = {
    "softmax": "give both neighbours softmax at the same time with the same recv_a and recv_b >= 1, or set `alone`",
    "layernorm": "give both neighbours layernorm at the same time with the same dim1",
}


def _exchanges(expansion: ExpandedProgram, found: Mapping[str, list[tuple[int, Exchange]]]) -> Iterator[Finding]:
    """Softmax and LayerNorm: each neighbour sends what the other expects, the same number of times."""
    for pair in _pairs(expansion.overlay):
        for what, code in (("softmax", "X07"), ("layernorm", "X08")):
            left, right = ([(i, e) for i, e in found.get(unit, ()) if e.what == what] for unit in pair)
            differ = next(
                (n for n, (a, b) in enumerate(zip(left, right, strict=False)) if not _agree(a[1], b[1])), None
            )
            if differ is not None:
                (i, a), (j, b) = left[differ], right[differ]
                says = [f"{n} {x} and {y}" for n, x, y in zip(_SAYS[what], a.says, b.says, strict=True) if x != y]
                unit, uop = pair[0], i
                text = f"{what} of {pair[0]} uOP {i} and {pair[1]} uOP {j} do not agree: {', '.join(says)}"
                if not says:
                    unit, uop = (pair[1], j) if len(a.puts) == len(a.gets) else (pair[0], i)
                    text = f"{unit} uOP {uop} runs softmax with recv_b=0: it sends no sums, so its neighbour waits"
            elif len(left) != len(right):
                unit, less = pair if len(left) > len(right) else pair[::-1]
                uop, _ = max(left, right, key=len)[min(len(left), len(right))]
                text = f"{unit} uOP {uop} exchanges {what} sums with {less}, which takes no part in it"
            else:
                continue
            yield Finding(code, text, expansion.where(unit, uop), help=_EXCHANGE_HELP[what])


def _pairs(overlay: Overlay) -> list[tuple[str, str]]:
    """The units that exchange numbers of rows, as pairs of neighbours."""
    links = [(s.src, s.dst) for s in overlay.streams if s.token is ROW_SUM_TOKEN]
    order = list(overlay.by_unit)
    return [pair for pair in links if order.index(pair[0]) < order.index(pair[1])]


def _agree(a: Exchange, b: Exchange) -> bool:
    return a.puts == b.gets and b.puts == a.gets and a.says == b.says


# -- statistics of rows -----------------------------------------------------------------------------------------------


def _statistics(expansion: ExpandedProgram) -> Iterator[Finding]:
    """A transfer of DDR is of data, or of statistics of rows, which lie elsewhere: none is of both."""
    for stream in expansion.overlay.streams:
        left, right = (expansion.overlay.by_unit[unit].kind for unit in (stream.src, stream.dst))
        if (left, right) == ("MemC", "DDR"):
            mem, peer, spans = stream.src, stream.dst, _stored
        elif (left, right) == ("DDR", "MemA"):
            mem, peer, spans = stream.dst, stream.src, _loaded
        else:
            continue
        edges: list[tuple[int, int]] = []  # where words of the other kind begin, and with which uOP
        at, last = 0, "data"
        for uop, what, words in spans(expansion, mem):
            if what != last:
                edges.append((at, uop))
            at, last = at + words, what
        if not edges:
            continue
        ends, moves = _transfers(expansion, peer, mem)
        for edge, uop in edges:
            i = int(np.searchsorted(ends, edge))
            if edge and i < len(ends) and ends[i] != edge:
                text = (
                    f"{peer} uOP {int(moves[i])} moves data of {mem} and the statistics of rows that its uOP {uop} "
                    "begins or ends with"
                )
                way_out = "give statistics transfers of their own, of 2048 elements a row tile and part"
                yield Finding("X12", text, expansion.where(peer, int(moves[i])), help=way_out)
                break


def _stored(expansion: ExpandedProgram, name: str) -> Iterator[tuple[int, str, int]]:
    """The words that a MemC stores, run by run: uOP, what they are, how many."""
    registers, even = MemCStore(), not expansion.overlay.by_unit[name].index & 1
    sends = expansion.overlay.by_unit[name].capability("send") is not None
    for number, kind in enumerate(expansion.sequences[name].kinds.tolist()):
        uop = expansion.uops[kind]
        if isinstance(uop, MemCStore):
            registers = uop
        if not isinstance(uop, MemC) or not uop.store or (uop.send and sends):
            continue
        if uop.dim2:
            yield number, "data", uop.dim1 * uop.dim2 // BEAT
        if uop.layernorm and registers.statistics and even:
            yield number, "statistics", uop.dim1 // TILE * QUARTER_WORDS


def _loaded(expansion: ExpandedProgram, name: str) -> Iterator[tuple[int, str, int]]:
    """The words that a MemA loads, as `_stored`."""
    for number, kind in enumerate(expansion.sequences[name].kinds.tolist()):
        uop = expansion.uops[kind]
        if isinstance(uop, MemANorm) and uop.rows:
            yield number, "statistics", uop.rows * uop.parts * QUARTER_WORDS
        elif isinstance(uop, MemA) and uop.load:
            yield number, "data", uop.dim1 * uop.dim2 // BEAT


def _transfers(expansion: ExpandedProgram, name: str, peer: str) -> tuple[Ints, Ints]:
    """Where each transfer of DDR with a peer ends, in words, and its uOP."""
    each = np.array([_elements(u, peer) // BEAT for u in expansion.uops])
    words = each[expansion.sequences[name].kinds]
    (moves,) = np.nonzero(words)
    return np.cumsum(words[moves]), moves


def _elements(uop: object, peer: str) -> int:
    if isinstance(uop, RowTransfer) and uop.peer == peer:
        return BLOCK
    return uop.size if isinstance(uop, Transfer) and uop.peer == peer else 0


# -- vectors ----------------------------------------------------------------------------------------------------------


def _vectors(expansion: ExpandedProgram, net: Wiring) -> Iterator[Finding]:
    """LPDDR and a MemB must mean the same by every word: a vector's words are not a matrix's. Quarters of blocks meet
    whole ones, so that only the counts of words say which uOPs meet."""
    for stream in (s for s in expansion.overlay.streams if expansion.overlay.by_unit[s.src].kind == "LPDDR"):
        sent, taken = (_words(expansion, net, unit, stream.name) for unit in (stream.src, stream.dst))
        ends = np.union1d(sent[0], taken[0])
        ends = ends[ends <= min(sent[0][-1:].sum(), taken[0][-1:].sum())]
        if not len(ends):
            continue
        at_sent, at_taken = np.searchsorted(sent[0], ends), np.searchsorted(taken[0], ends)
        (differ,) = np.nonzero(sent[2][at_sent] != taken[2][at_taken])
        if len(differ):
            i, j = int(sent[1][at_sent[differ[0]]]), int(taken[1][at_taken[differ[0]]])
            kinds = ("a vector", "a matrix") if sent[2][at_sent[differ[0]]] else ("a matrix", "a vector")
            where = expansion.where(stream.dst, j)
            text = f"{stream.src} uOP {i} sends {kinds[0]} which {stream.dst} uOP {j} ({where}) loads as {kinds[1]}"
            yield Finding("X09", text, expansion.where(stream.src, i), help="set `bias` in both or in neither")


def _words(expansion: ExpandedProgram, net: Wiring, name: str, stream: str) -> tuple[Ints, Ints, Ints]:
    """Where each transfer of a unit on a stream ends, in words; its uOP; and whether it is a vector."""
    unit, run = net.units[name], expansion.sequences[name]
    distinct = np.unique(run.kinds).tolist()
    uops = [expansion.uops[kind] for kind in distinct]
    if any(unit.effect_key(uop) is None for uop in uops):  # what a uOP moves depends on those before it
        kernels = (unit.kernel(expansion.uops[kind]) for kind in run.kinds.tolist())
        words = np.array([words_moved(steps)[stream] for steps in kernels], np.int64)
    else:
        each = np.zeros(len(expansion.uops), np.int64)
        each[distinct] = [words_moved(unit.kernel(uop))[stream] for uop in uops]
        words = each[run.kinds]
    vector = np.zeros(len(expansion.uops), np.int64)
    vector[distinct] = [bool(uop.bias) for uop in uops]
    (moves,) = np.nonzero(words)
    return np.cumsum(words[moves]), moves, vector[run.kinds[moves]]
