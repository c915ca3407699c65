"""What `check` knows about the XNN units beyond counting words: double buffers, what tiles hold, exchanges.

Nothing runs. A Mem is followed uOP by uOP as a small machine (which of its two buffers holds what), and what a tile
holds travels with it through Mesh, MME and MemC as a number. Only valid data may be sent, multiplied or stored. Source:
contract section 2.

A buffer may be sent again without being loaded again (the order that walks K forwards and backwards does so); a MemC
buffer may be stored twice, but not with its post-op twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ....base.finding import Finding
from ...expansion import Expansion, Ints
from . import formats as f
from .tiles import BEATS, BIAS_WORD, BLOCK_WORDS, TILE

FULL = 2
"""A whole A or C tile: valid columns / 64."""
FULL_B = 10
"""A whole B tile: valid rows / 64 + 4 * valid columns / 64."""
VECTOR = 100
"""A B tile that holds a vector: this number plus its groups of 32 floats."""
MAX_FOUND = 100
"""Findings of one code that are kept."""
MAX_TILES = 4_000_000
"""Tiles from one unit that are followed; 24 layers (B=8, L=384) send a tenth of that."""
_UNITS = 64
"""More than there are units."""


def rules(expansion: Expansion, balanced: bool) -> Iterator[Finding]:
    """Everything below. Where sends do not equal receives it is not known which tile goes where, so tiles are then not
    followed beyond the Mem that sends them."""
    yield from _Flow(expansion).findings(balanced)
    yield from _exchanges(expansion)
    yield from _vectors(expansion)


# -- what a buffer holds --------------------------------------------------------------------------------------------


class Held(NamedTuple):
    """What a buffer of a Mem holds. rows, cols: valid, from 0; vector: groups of 32 floats instead. used: sent, stored
    or not yet; done: a post-op was applied in place. by: uOP that filled it."""

    rows: int
    cols: int
    vector: int = 0
    used: bool = False
    done: bool = False


EMPTY = Held(0, 0, used=True)


class Problem(NamedTuple):
    """What a step of a Mem does wrong: code, text, way out, warning."""

    code: str
    text: str
    help: str
    warning: bool = False


LOST = Problem(
    "X02",
    "fills a buffer whose data were never sent or stored: they are lost",
    "send or store it before; what is padding alone may be lost",
    True,
)


def _unfilled(verb: str, unit: str) -> Problem:
    fill = "recv" if unit.startswith("MemC") else "load"
    return Problem(
        "X01",
        f"{verb}s a buffer that nothing has filled",
        f"the flag flips at every uOP: the {fill} must stand in the uOP before the {verb}",
    )


def _stale(verb: str, what: str, has: str) -> Problem:
    return Problem("X03", f"{verb}s {what}; the buffer holds {has}, the rest is stale", "make the two sizes agree")


class Step(NamedTuple):
    """One uOP of a MemA or MemB: what it leaves in the two buffers, what it sends, what is wrong."""

    buffers: tuple[Held, Held]
    tiles: tuple[int, ...]
    problems: tuple[Problem, ...]


def _mem(unit: str, uop: f.MemA | f.MemB, current: Held, other: Held) -> Step:
    """One uOP of a MemA or MemB; current is the buffer it sends, other the one it fills. The flag flips."""
    problems: list[Problem] = []
    tiles: tuple[int, ...] = ()
    if uop.send:
        send = _send_a if isinstance(uop, f.MemA) else _send_b2 if unit == "MemB2" else _send_b
        if current == EMPTY or not (current.rows or current.vector):
            problems.append(_unfilled("send", unit))
            codes: Iterator[int] = iter([FULL if isinstance(uop, f.MemA) else FULL_B] * _count(unit, uop))
        else:
            codes = send(uop, current, problems)
        tiles = tuple(codes)
        current = current._replace(used=True)
    if uop.load:
        if not other.used:
            problems.append(LOST)
        if isinstance(uop, f.MemB) and uop.bias:
            other = Held(0, 0, uop.dim1 * uop.dim2)
        elif isinstance(uop, f.MemB) and uop.transpose and unit != "MemB2":
            other = Held(uop.dim1 // 64 * 64, uop.dim2 // 128 * 128)
        else:
            other = Held(uop.dim1 // 128 * 128, uop.dim2 // 64 * 64)
    return Step((other, current), tiles, tuple(problems))


def _count(unit: str, uop: f.MemA | f.MemB) -> int:
    return uop.acc_a * uop.acc_b * (uop.acc_k if unit == "MemB2" and isinstance(uop, f.MemB) else 1)


def _send_a(uop: Any, held: Held, problems: list[Problem]) -> Iterator[int]:
    if uop.acc_a * TILE > held.rows:
        problems.append(_stale("send", f"{uop.acc_a} row tiles", f"{held.rows}x{held.cols}"))
    return iter([held.cols // 64] * (uop.acc_a * uop.acc_b))


def _send_b(uop: Any, held: Held, problems: list[Problem]) -> Iterator[int]:
    """Codes of B tiles: rows/64 + 4 * columns/64, or a vector."""
    if held.vector:
        if uop.acc_b > 1:
            problems.append(_stale("send", f"{uop.acc_b} column tiles", "a vector, which is one tile"))
        return iter([VECTOR + held.vector] * (uop.acc_a * uop.acc_b))
    valid = [max(0, min(FULL, held.cols // 64 - FULL * b)) for b in range(uop.acc_b)]
    if 0 in valid:
        problems.append(_stale("send", f"{uop.acc_b} column tiles", f"{held.rows}x{held.cols}"))
        valid = [v or FULL for v in valid]
    return iter([held.rows // 64 + 4 * v for v in valid] * uop.acc_a)


def _send_b2(uop: Any, held: Held, problems: list[Problem]) -> Iterator[int]:
    if uop.acc_k * TILE > held.rows:
        problems.append(_stale("send", f"{uop.acc_k} row tiles", f"{held.rows}x{held.cols}"))
    return iter([FULL_B] * _count("MemB2", uop))  # columns from 64 on are sent as 0, so valid


# -- tiles on their way ---------------------------------------------------------------------------------------------


class _Tiles:
    """What a stream carries: a code per tile, and who sent it (uOP number and position of the unit in the overlay)."""

    def __init__(self, codes: Ints, senders: Ints) -> None:
        self.codes = codes
        self.senders = senders

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _odd(self) -> Ints:
        """How many tiles before each are not whole."""
        whole = (self.codes == FULL) | (self.codes == FULL_B)
        return np.concatenate([[0], np.cumsum(~whole)])

    def whole(self, start: int, stop: int) -> bool:
        n = len(self.codes)
        return bool(self._odd[min(stop, n)] == self._odd[min(start, n)])


_NO_TILES = _Tiles(np.zeros(0, np.int64), np.zeros(0, np.int64))


class _TooManyError(Exception):
    """Following the tiles would take too long."""


class _Flow:
    """Follows the tiles of one program."""

    def __init__(self, expansion: Expansion) -> None:
        self.x = expansion
        self.found: list[Finding] = []
        self.told: dict[str, int] = {}
        self.streams: dict[str, _Tiles] = {}

    def findings(self, balanced: bool) -> Iterator[Finding]:
        try:
            self._follow(balanced)
        except _TooManyError:
            text = f"more than {MAX_TILES} tiles leave one unit: what they hold was not followed"
            self.found.append(Finding("X10", text, "program", True, "nothing is wrong with that; run it to be sure"))
        yield from self.found

    def _follow(self, balanced: bool) -> None:
        units = self.x.overlay.by_kind
        for u in (*units["MemA"], *units["MemB"]):
            self._mem(u.name)
        if balanced:
            self._mesh("MeshB", "Mem")
            self._mesh("MeshA", "MemA")
            for i in range(4):
                self._mme(i)
                self._mem_c(i, follow=True)
            self._mesh("MeshA", "Mem")  # once more, now that it is known what MemC0-3 send
            for i in (4, 5):
                self._mme(i)
                self._mem_c(i, follow=True)
        else:
            for i in range(6):
                self._mem_c(i, follow=False)

    def _report(self, unit: str, uop: int, problem: Problem) -> None:
        self.told[problem.code] = told = self.told.get(problem.code, 0) + 1
        if told > MAX_FOUND:
            return
        text = f"{unit} {'op' if unit.startswith('MME') else 'uOP'} {uop} {problem.text}"
        self.found.append(Finding(problem.code, text, self.x.where(unit, uop), problem.warning, problem.help))

    def _leftover(self, unit: str, buffers: tuple[Held, Held], last: int) -> None:
        if not all(b.used for b in buffers):
            lost = LOST._replace(text="is the last, and a filled buffer was never sent or stored: its data are lost")
            self._report(unit, last, lost)

    def _mem(self, unit: str) -> None:
        """The tiles that a MemA or MemB sends."""
        kinds: list[int] = self.x.sequences[unit].kinds.tolist()
        known: dict[tuple[int, tuple[Held, Held]], Step] = {}
        buffers = (EMPTY, EMPTY)
        codes: list[int] = []
        counts: list[int] = []
        for i, kind in enumerate(kinds):
            step = known.get((kind, buffers))
            if step is None:
                step = known[kind, buffers] = _mem(unit, self.x.uops[kind], *buffers)
            for problem in step.problems:
                self._report(unit, i, problem)
            buffers = step.buffers
            codes += step.tiles
            counts.append(len(step.tiles))
            if len(codes) > MAX_TILES:
                raise _TooManyError
        self._leftover(unit, buffers, len(kinds) - 1)
        self._sent(unit, codes, counts)

    def _sent(self, unit: str, codes: Sequence[int], counts: Sequence[int]) -> None:
        """Keep what a Mem sends: a code per tile, and how many tiles each uOP sends."""
        position = self.x.overlay.units.index(self.x.overlay.by_unit[unit])
        senders = np.repeat(np.arange(len(counts)) * _UNITS + position, counts)
        self.streams[unit] = _Tiles(np.array(codes, np.int64), senders)

    def _mesh(self, mesh: str, prefix: str) -> None:
        """Route the tiles of sources called `prefix`... to the MMEs: every active source is read once per tile."""
        pieces: dict[str, list[Ints]] = {}
        taken: dict[str, int] = {}
        routes: dict[int, tuple[int, list[tuple[str, list[str]]]]] = {}
        known = {s: np.stack([t.codes, t.senders]) for s, t in self.streams.items() if s.startswith(prefix)}
        for kind in self.x.sequences[mesh].kinds.tolist():
            if kind not in routes:
                uop = self.x.uops[kind]
                active: dict[str, list[str]] = {}
                for x in uop.FIELDS:
                    if x.source in known and getattr(uop, x.name):
                        active.setdefault(x.source, []).append(x.to)
                routes[kind] = uop.size // BEATS, list(active.items())
            tiles, sources = routes[kind]
            for src, destinations in sources:
                start = taken.get(src, 0)
                taken[src] = start + tiles
                piece = known[src][:, start : start + tiles]
                for to in destinations:
                    pieces.setdefault(to, []).append(piece)
        for to, parts in pieces.items():
            self.streams[f"{mesh}->{to}"] = _Tiles(*np.concatenate(parts, axis=1))

    def _sender(self, tiles: _Tiles, at: int) -> str:
        uop, position = divmod(int(tiles.senders[at]), _UNITS)
        name = self.x.overlay.units[position].name
        return f"sent by {name} uOP {uop} at {self.x.where(name, uop)}"

    # -- MME

    def _mme(self, index: int) -> None:
        """What an MME takes and gives. Its output tiles' codes are valid columns."""
        unit = f"MME{index}"
        a, b = self.streams.get(f"MeshA->{unit}", _NO_TILES), self.streams.get(f"MeshB->{unit}", _NO_TILES)
        at_a = at_b = 0
        out: list[Ints] = []
        for i, kind in enumerate(self.x.sequences[unit].kinds.tolist()):
            op: f.Mme = self.x.uops[kind]
            full_k = bool(op.k128)
            groups = 4 * op.b_iter * op.acc_b
            for wanted, what in ((op.load_prev, "previous-layer weights"), (op.bias and full_k, "a bias")):
                if wanted:
                    self._vector(unit, i, b, at_b, groups, what)
                    at_b += 1
            inner = op.k_iter * op.acc_a * op.acc_b
            first = op.acc_a * op.acc_b if op.prev and full_k else 0
            rounds = op.a_iter * op.b_iter
            n_a, n_b = rounds * (first + inner), rounds * inner
            self._operands(unit, i, op, a, at_a, n_a, first + inner)
            narrow = self._weights(unit, i, op, b, at_b, n_b)
            emitted = rounds * (first + (op.acc_a * op.acc_b if op.acc_k and full_k else inner))
            if narrow is None:
                codes = np.full(emitted, 1 if full_k and not op.n128 else FULL)
            else:  # some B tile has 64 columns only: the columns of each product, in order
                codes = np.full(emitted, FULL)
                products = narrow.reshape(rounds, -1)
                if op.acc_k and full_k and op.k_iter:
                    products = products.reshape(rounds, -1, op.k_iter).min(axis=2)
                codes.reshape(rounds, -1)[:, first:] = products
            out.append(codes)
            at_a, at_b = at_a + n_a, at_b + n_b
        codes = np.concatenate(out) if out else _NO_TILES.codes
        self.streams[unit] = _Tiles(codes, codes)  # nobody asks which op a tile came from

    def _vector(self, unit: str, i: int, b: _Tiles, at: int, groups: int, what: str) -> None:
        if at >= len(b.codes):
            return
        code = int(b.codes[at])
        if code < VECTOR:
            text = f"reads {what} from a B tile that is a matrix, {self._sender(b, at)}"
            self._report(unit, i, Problem("X04", text, "load the vector with `bias` just before, or drop the flag"))
        elif code - VECTOR < groups:
            text = f"reads {what} of {32 * groups} columns; the vector {self._sender(b, at)} has {32 * (code - VECTOR)}"
            self._report(unit, i, Problem("X04", text, "load as many groups of 32 floats as the op has columns"))

    def _operands(self, unit: str, i: int, op: f.Mme, a: _Tiles, at: int, count: int, each: int) -> None:
        if not count or a.whole(at, at + count):
            return
        codes = a.codes[at : at + count]
        if not op.k128:
            return  # 64 columns are enough
        bad = np.flatnonzero(codes < FULL)
        if len(bad):
            where = at + int(bad[0])
            text = f"works in K = 128 mode on an A tile with 64 valid columns, {self._sender(a, where)}"
            self._report(unit, i, Problem("X05", text, "load 128 columns (dim2=128), or clear k128"))

    def _weights(self, unit: str, i: int, op: f.Mme, b: _Tiles, at: int, count: int) -> Ints | None:
        """Check the B tiles of an op; valid columns of each product if some are narrow."""
        if not count or b.whole(at, at + count):
            return None
        codes = b.codes[at : at + count]
        (vector,) = np.nonzero(codes >= VECTOR)
        if len(vector):
            text = f"multiplies by a B tile that holds a vector, {self._sender(b, at + int(vector[0]))}"
            self._report(unit, i, Problem("X04", text, "read it with bias or load_prev, or load a matrix"))
            return None
        (short,) = np.nonzero((codes % 4 < FULL) & bool(op.k128))
        if len(short):
            text = f"works in K = 128 mode on a B tile with 64 valid rows, {self._sender(b, at + int(short[0]))}"
            self._report(unit, i, Problem("X05", text, "load 128 rows (dim1=128), or clear k128"))
        columns = codes // 4
        if columns.min() == FULL or len(columns) < count:
            return None
        return np.minimum(columns, 1 if op.k128 and not op.n128 else FULL)

    # -- MemC

    def _mem_c(self, index: int, follow: bool) -> None:
        """What a MemC stores or sends of what it received."""
        unit, sends = f"MemC{index}", index < 4
        source = self.streams.get(f"MME{index}") if follow else None
        taken = 0
        registers = f.MemCConfig()
        buffers = (EMPTY, EMPTY)  # the one received into, the other
        known: dict[tuple[Any, ...], tuple[tuple[Held, Held], tuple[int, ...], list[Problem]]] = {}
        codes: list[int] = []
        counts: list[int] = []
        kinds: list[int] = self.x.sequences[unit].kinds.tolist()
        for i, kind in enumerate(kinds):
            uop = self.x.uops[kind]
            if isinstance(uop, f.MemCConfig):
                registers = uop
                counts.append(0)
                continue
            rows = uop.recv_a & 3 if sends else uop.recv_a
            n = uop.k_iter * rows * uop.recv_b if uop.recv else 0
            cols = TILE * uop.recv_b
            if source is not None and n and not source.whole(taken, taken + n):
                piece = source.codes[taken : taken + n]
                if len(piece) == n:
                    valid = piece.reshape(-1, uop.recv_b).min(axis=0)
                    cols = 64 * sum(int(v) for v in valid[: int(np.argmax([*(valid < FULL), True])) + 1])
            taken += n
            key = (kind, registers, buffers, cols)
            if key not in known:
                known[key] = _receive_and_store(unit, uop, registers, buffers, rows, cols, sends)
            buffers, tiles, problems = known[key]
            for problem in problems:
                self._report(unit, i, problem)
            codes += tiles
            counts.append(len(tiles))
            if len(codes) > MAX_TILES:
                raise _TooManyError
        self._leftover(unit, buffers, len(kinds) - 1)
        self._sent(unit, codes, counts)


def _receive_and_store(
    unit: str, uop: f.MemC, reg: f.MemCConfig, buffers: tuple[Held, Held], rows: int, cols: int, sends: bool
) -> tuple[tuple[Held, Held], tuple[int, ...], list[Problem]]:
    """One uOP of a MemC: the buffers after its flip, the tiles it sends, what is wrong."""
    current, other = buffers
    problems: list[Problem] = []
    tiles: tuple[int, ...] = ()
    if uop.recv:
        if not current.used:
            problems.append(LOST)
        received = TILE * uop.recv_b
        if uop.softmax and sends:
            wanted = min(reg.softmax_cols, received)
            if cols < wanted:
                problems.append(_stale("take", f"the softmax of {wanted} columns", f"{cols} valid ones"))
            cols = received
        full = bool(uop.k_iter and rows and uop.recv_b)
        current = Held(TILE * rows, cols) if full else EMPTY
    if uop.send and sends:
        count = uop.send_a * uop.send_b * (uop.send_k & 3)
        tiles = (FULL,) * count
        if not other.rows:
            problems.append(_unfilled("send", unit))
        elif uop.send_a * TILE > other.rows or (uop.send_k & 3) * TILE > other.cols:
            problems.append(_stale("send", f"{uop.send_a}x{uop.send_k & 3} tiles", f"{other.rows}x{other.cols}"))
        other = other._replace(used=True)
    elif uop.store:
        other = _store(unit, uop, reg, other, problems)
    return (other, current), tiles, problems


def _store(unit: str, uop: f.MemC, reg: f.MemCConfig, held: Held, problems: list[Problem]) -> Held:
    moved = bool(uop.dim1 and uop.dim2)
    if not held.rows:
        if moved or uop.layernorm:
            problems.append(_unfilled("store", unit))
        return held
    post = bool(uop.gelu or uop.layernorm)
    if post and held.done:
        problems.append(
            Problem("X06", "applies a post-op to a buffer that has had one", "recv in between, or drop the flag", True)
        )
    cols = held.cols
    if uop.layernorm:
        if held.cols < reg.norm_cols:
            problems.append(_stale("normalise", f"{reg.norm_cols} columns", f"{held.cols}"))
        cols = 512  # what lies beyond becomes 0
    if moved and (uop.dim1 > held.rows or uop.dim2 > cols):
        problems.append(_stale("store", f"{uop.dim1}x{uop.dim2}", f"{held.rows}x{held.cols}"))
    return held._replace(used=True, cols=cols, done=held.done or post)


# -- neighbours -----------------------------------------------------------------------------------------------------


class _Exchange(NamedTuple):
    uop: int
    says: tuple[Any, ...]


def _exchanges(expansion: Expansion) -> Iterator[Finding]:
    """Softmax and LayerNorm: both neighbours take part the same number of times, over the same rows."""
    for even in (0, 2, 4):
        pair = f"MemC{even}", f"MemC{even + 1}"
        lists = [_taking_part(expansion, unit) for unit in pair]
        for what, code in (("softmax", "X07"), ("layernorm", "X08")):
            left, right = lists[0][what], lists[1][what]
            for i in range(max(len(left), len(right))):
                if i >= min(len(left), len(right)):
                    more, less = pair if len(left) > len(right) else pair[::-1]
                    one = (left if len(left) > len(right) else right)[i]
                    text = f"{more} uOP {one.uop} exchanges {what} sums with {less}, which takes no part in it"
                elif left[i].says != right[i].says:
                    more, one = pair[0], left[i]
                    text = (
                        f"{what} of {pair[0]} uOP {left[i].uop} and {pair[1]} uOP {right[i].uop} do not agree: "
                        f"{_differences(what, left[i].says, right[i].says)}"
                    )
                elif what == "softmax" and 0 in left[i].says[-1:] + right[i].says[-1:]:
                    continue
                else:
                    continue
                yield Finding(code, text, expansion.where(more, one.uop), help=_EXCHANGE_HELP[what])
                break
        for unit, taking in zip(pair, lists, strict=True):
            for one in taking["empty"]:
                text = f"{unit} uOP {one.uop} runs softmax with recv_b=0: it sends no sums, so its neighbour waits"
                yield Finding("X07", text, expansion.where(unit, one.uop), help="receive at least one column tile")
                break


_SAYS = {"softmax": ("recv_a", "max_sub", "causal"), "layernorm": ("dim1", "rms")}
_EXCHANGE_HELP = {
    "softmax": "give both neighbours softmax at the same time with the same recv_a and recv_b >= 1, or set `alone`",
    "layernorm": "give both neighbours layernorm at the same time with the same dim1",
}


def _differences(what: str, left: tuple[Any, ...], right: tuple[Any, ...]) -> str:
    return ", ".join(f"{n} {a} and {b}" for n, a, b in zip(_SAYS[what], left, right, strict=True) if a != b)


def _taking_part(expansion: Expansion, unit: str) -> dict[str, list[_Exchange]]:
    """The exchanges of one MemC, in order; and softmaxes over no columns."""
    out: dict[str, list[_Exchange]] = {"softmax": [], "layernorm": [], "empty": []}
    sends = unit < "MemC4"
    reg = f.MemCConfig()
    for i, kind in enumerate(expansion.sequences[unit].kinds.tolist()):
        uop = expansion.uops[kind]
        if isinstance(uop, f.MemCConfig):
            reg = uop
            continue
        if uop.softmax and uop.recv and sends and not reg.alone:
            out["softmax"].append(_Exchange(i, (uop.recv_a & 3, reg.max_sub, reg.causal)))
            if not uop.recv_b:
                out["empty"].append(_Exchange(i, ()))
        if uop.layernorm and uop.store and not (uop.send and sends):
            out["layernorm"].append(_Exchange(i, (uop.dim1, reg.rms)))
    return out


def _vectors(expansion: Expansion) -> Iterator[Finding]:
    """LPDDR and a MemB must mean the same by every word: a vector's words are not a matrix's."""
    run = expansion.sequences["LPDDR"]
    for b in ("MemB0", "MemB1"):
        sent = _words(
            (
                (i, u.size // BIAS_WORD if u.bias else u.size * BLOCK_WORDS // (TILE * 64), u.bias)
                for i, u in enumerate(expansion.uops[k] for k in run.kinds.tolist())
                if u.peer == b
            )
        )
        loads = expansion.sequences[b]
        taken = _words(
            (
                (
                    i,
                    u.dim1 * u.dim2 * 32 // BIAS_WORD if u.bias else (u.dim1 // 128) * (u.dim2 // 64) * BLOCK_WORDS,
                    u.bias,
                )
                for i, u in enumerate(expansion.uops[k] for k in loads.kinds.tolist())
                if u.load and (u.bias or not u.transpose)
            )
        )
        ends = np.union1d(sent[0], taken[0])
        ends = ends[ends <= min(sent[0][-1:].sum(), taken[0][-1:].sum())]
        if not len(ends):
            continue
        at_sent, at_taken = np.searchsorted(sent[0], ends), np.searchsorted(taken[0], ends)
        (differ,) = np.nonzero(sent[2][at_sent] != taken[2][at_taken])
        if len(differ):
            i, j = int(sent[1][at_sent[differ[0]]]), int(taken[1][at_taken[differ[0]]])
            kinds = ("a vector", "a matrix") if sent[2][at_sent[differ[0]]] else ("a matrix", "a vector")
            text = f"LPDDR uOP {i} sends {kinds[0]} which {b} uOP {j} ({expansion.where(b, j)}) loads as {kinds[1]}"
            yield Finding("X09", text, expansion.where("LPDDR", i), help="set `bias` in both or in neither")


def _words(rows: Iterator[tuple[int, int, Any]]) -> tuple[Ints, Ints, Ints]:
    """Where each transfer ends, its uOP, and whether it is a vector."""
    table = np.array([(n, i, int(bool(v))) for i, n, v in rows if n], np.int64).reshape(-1, 3)
    return np.cumsum(table[:, 0]), table[:, 1], table[:, 2]
