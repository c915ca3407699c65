"""Small programs for the XNN units with known answers: results by numpy.

Each program is given an overlay, which may have a mutant for a kernel, and says what it computed, what it should have,
and how long it took. With those of `mode_programs` they use every branch of every kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rsn.isa.fields import Record
from rsn.isa.layout import block, unblock
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import formats as f
from rsn.tests.isa.mutants.steps import (
    ONCE,
    Array,
    Outcome,
    blocks_at,
    chain,
    ddr,
    gelu,
    lpddr,
    op,
    random,
    route,
    run,
    tail,
)


def products(overlay: Overlay) -> Outcome:
    """gelu(residual * scale + x @ w + bias), in two groups of rows, the columns on two MMEs."""
    x, w, residual = random(1, 512, 384) / 8, random(2, 384, 1024) / 8, random(3, 512, 1024)
    scale, bias = random(4, 1024), random(5, 1024)
    expected = gelu(residual * scale + x @ w + bias)
    at_residual = x.size
    at_y = at_residual + residual.size
    memory = np.concatenate([block(x).reshape(-1), block(residual).reshape(-1), np.zeros(512 * 1024, np.float32)])
    weights = np.concatenate([block(w).reshape(-1), scale, bias])
    loads: list[f.Ddr] = []
    a_fills: list[dict[str, int]] = []
    a_sends: list[dict[str, int]] = []
    mesh_a: list[f.MeshA] = []
    b_fills = [[{"load": 1, "bias": 1, "dim1": 16, "dim2": 1}] * 2 for _ in range(2)]
    b_sends = [[dict(ONCE)] * 2 for _ in range(2)]
    low = [lpddr(w.size + 1024 * v + 512 * j, 512, f"MemB{j}", 1) for v in range(2) for j in range(2)]
    for group in range(2):
        for mme in range(2):
            for i in range(2):
                for j in range(4):
                    rows = slice(256 * group + 128 * i, 256 * group + 128 * i + 128)
                    columns = slice(512 * mme + 128 * j, 512 * mme + 128 * j + 128)
                    loads += [ddr(*p, to="MemA0") for p in blocks_at(at_residual, 1024, rows, columns)]
                    a_fills.append({"load": 1, "dim1": 128, "dim2": 128})
                    a_sends.append(dict(ONCE))
            mesh_a.append(f.MeshA(size=512 * 8, a0_0=mme == 0, a0_1=mme == 1))
        for k in range(3):
            rows, columns = slice(256 * group, 256 * group + 256), slice(128 * k, 128 * k + 128)
            loads += [ddr(*p, to="MemA0") for p in blocks_at(0, 384, rows, columns)]
            a_fills.append({"load": 1, "dim1": 256, "dim2": 128})
            a_sends.append({"send": 1, "acc_a": 2, "acc_b": 4})
            for j in range(2):
                low += [
                    lpddr(*p, f"MemB{j}")
                    for p in blocks_at(0, 1024, slice(128 * k, 128 * k + 128), slice(512 * j, 512 * j + 512))
                ]
                b_fills[j].append({"load": 1, "dim1": 128, "dim2": 512})
                b_sends[j].append({"send": 1, "acc_a": 2, "acc_b": 4})
        mesh_a.append(f.MeshA(size=512 * 8 * 3, a0_0=1, a0_1=1))
    recv = {"recv": 1, "recv_a": 2, "recv_b": 4, "k_iter": 4}
    out = {"store": 1, "dim1": 256, "dim2": 512, "gelu": 1}
    stores = [
        ddr(*p, source=f"MemC{j}")
        for group in range(2)
        for j in range(2)
        for p in blocks_at(at_y, 1024, slice(256 * group, 256 * group + 256), slice(512 * j, 512 * j + 512))
    ]
    half = len(loads) // 2
    ops = [op(load_prev=1, prev=1, bias=1, a_iter=2, k_iter=3, acc_a=2, acc_b=4)]
    memories, seconds = run(
        overlay,
        (memory, weights),
        {
            "DDR": [*loads[:half], *loads[half:], *stores],
            "LPDDR": low,
            "MemA0": chain(f.MemA, a_fills, a_sends),
            **{f"MemB{j}": chain(f.MemB, b_fills[j], b_sends[j]) for j in range(2)},
            "MeshA": mesh_a,
            "MeshB": [f.MeshB(size=512 * (2 + 2 * 24), b0_0=1, b1_1=1)],
            **{f"MME{j}": ops for j in range(2)},
            **{f"MemC{j}": chain(f.MemC, [recv] * 2, [out] * 2) for j in range(2)},
        },
    )
    return Outcome(tail(memories, 512, 1024), [expected] * 2, seconds)


def one_mme(
    overlay: Overlay,
    ops: Sequence[f.Mme],
    a: Sequence[Array],
    b: Sequence[Array],
    vectors: Sequence[Array],
    mem_c: Sequence[Record],
    stores: Sequence[tuple[int, int]],
    before: int = 0,
    ahead: int = 16,
) -> tuple[list[Array], float]:
    """Tiles a and, behind vectors and `before` of them, tiles b to MME3, each sent on its own; MemC3 stores matrices of
    these sizes one behind the other, each `ahead` loads after the one before. DDR after both runs, from there on."""
    size = sum(r * c for r, c in stores)
    memory = np.concatenate([*(block(x).reshape(-1) for x in a), np.zeros(size, np.float32)])
    weights = np.concatenate([*(block(x).reshape(-1) for x in b), *vectors])
    tiles = [({"load": 1, "dim1": 128, "dim2": 128}, [lpddr(16384 * i, 16384, "MemB1")]) for i in range(len(b))]
    at = 16384 * len(b)
    longs = []
    for v in vectors:
        fill = {"load": 1, "bias": 1, "dim1": min(32, len(v) // 32), "dim2": max(1, len(v) // 1024)}
        longs.append((fill, [lpddr(at, len(v), "MemB1", 1)]))
        at += len(v)
    order = [*tiles[:before], *longs, *tiles[before:]]
    at, moves = 16384 * len(a), [ddr(16384 * i, 16384, to="MemA1") for i in range(len(a))]
    for number, (r, c) in enumerate(stores):
        moves.insert((number + 1) * (ahead + 1) - 1, ddr(at, r * c, source="MemC3"))
        at += r * c
    memories, seconds = run(
        overlay,
        (memory, weights),
        {
            "DDR": moves,
            "LPDDR": [x for _, loads in order for x in loads],
            "MemA1": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * len(a), [ONCE] * len(a)),
            "MemB1": chain(f.MemB, [fill for fill, _ in order], [ONCE] * len(order)),
            "MeshA": [f.MeshA(size=512 * len(a), a1_3=1)],
            "MeshB": [f.MeshB(size=512 * len(order), b1_3=1)],
            "MME3": ops,
            "MemC3": mem_c,
        },
    )
    return [m[-size:] for m in memories], seconds


def modes(overlay: Overlay) -> Outcome:
    """K = 64; N = 64; sums over k inside the MME, with a bias for each column tile; and the K = 64 mode's blindness for
    bits that mean something in K = 128."""
    a, b, bias = (
        [random(i, 128, 128) for i in range(10, 17)],
        [random(i, 128, 128) for i in range(20, 27)],
        random(30, 256),
    )
    recv = {"recv": 1, "recv_a": 1, "recv_b": 1, "k_iter": 1}
    full = {"store": 1, "dim1": 128, "dim2": 128}
    narrow = {"store": 1, "dim1": 128, "dim2": 64}
    ops = [
        op(k128=0, n128=0, acc_k=1, prev=1),
        op(n128=0),
        op(n128=0, acc_k=1),
        op(b_iter=2, k_iter=2, acc_k=1, bias=1),
    ]
    memories, seconds = one_mme(
        overlay,
        ops,
        a,
        b,
        [bias],
        chain(f.MemC, [recv] * 5, [full, narrow, narrow, full, full]),
        [(128, 128), (128, 64), (128, 64), (128, 128), (128, 128)],
        before=3,
    )
    expected = [a[0][:, :64] @ b[0][:64], *((a[i] @ b[i])[:, :64] for i in (1, 2))]
    expected += [a[3] @ b[3] + a[4] @ b[4] + bias[:128], a[5] @ b[5] + a[6] @ b[6] + bias[128:]]
    flat = np.concatenate([block(np.ascontiguousarray(x, np.float32)).reshape(-1) for x in expected])
    return Outcome(memories, [flat] * 2, seconds)


def groups(overlay: Overlay) -> Outcome:
    """Row groups, column groups and a bias of several tiles: products in MemC, a round of K after the other."""
    a, b, bias = (
        [random(i, 128, 128) for i in range(40, 56)],
        [random(i, 128, 128) for i in range(60, 76)],
        random(31, 512),
    )
    recv = {"recv": 1, "recv_a": 1, "recv_b": 2, "k_iter": 2}
    out = {"store": 1, "dim1": 128, "dim2": 256}
    ops = [op(a_iter=2, b_iter=2, k_iter=2, acc_b=2, bias=1)]
    memories, seconds = one_mme(
        overlay, ops, a, b, [bias], chain(f.MemC, [recv] * 4, [out] * 4), [(128, 256)] * 4, ahead=6
    )
    expected = []
    for group in range(4):
        at = 4 * group
        tiles = [a[at + j] @ b[at + j] + a[at + 2 + j] @ b[at + 2 + j] for j in range(2)]
        expected.append(np.concatenate(tiles, axis=1) + bias.reshape(2, 256)[group % 2])
    flat = np.concatenate([block(np.ascontiguousarray(x, np.float32)).reshape(-1) for x in expected])
    return Outcome(memories, [flat] * 2, seconds)


def long_vector(overlay: Overlay) -> Outcome:
    """A vector of two column blocks of 32 groups: tile t of the result takes groups 4t to 4t + 3."""
    a, b, bias = [random(80, 128, 128)] * 12, [random(81, 128, 128)] * 12, random(82, 2048)
    recv = {"recv": 1, "recv_a": 1, "recv_b": 4, "k_iter": 1}
    out = {"store": 1, "dim1": 128, "dim2": 512}
    memories, seconds = one_mme(
        overlay, [op(b_iter=3, acc_b=4, bias=1)], a, b, [bias], chain(f.MemC, [recv] * 3, [out] * 3), [(128, 512)] * 3
    )
    y = np.tile(a[0] @ b[0], (1, 12)) + bias[:1536]
    flat = np.concatenate([block(np.ascontiguousarray(y[:, i : i + 512])).reshape(-1) for i in range(0, 1536, 512)])
    return Outcome(memories, [flat] * 2, seconds)


def attention(
    registers: Sequence[f.MemCConfig | None],
    reference: Callable[[Array], Array],
    size: float = 1.0,
    pair: int = 0,
    loud: slice = slice(0),
) -> Callable[[Overlay], Outcome]:
    """softmax(q @ k.T) @ v for two heads, 256 queries, 512 keys; reference: the softmax. Each half of the keys is on an
    MME and a MemC of its own, with its registers. pair: 0 for MME0, 1 and 4, or 1 for MME2, 3 and 5. loud: keys whose
    scores are much larger."""

    def program(overlay: Overlay) -> Outcome:
        q, k, v = (random(90 + i, 2, n, 64) for i, n in enumerate((256, 512, 512)))
        q, k = q * np.float32(size / 4), k.copy()
        k[:, loud] *= 20
        expected = np.concatenate([reference(q[h] @ k[h].T) @ v[h] for h in range(2)])
        heads = [block(x[h]).reshape(-1) for h in range(2) for x in (q, k, v)]
        memory = np.concatenate([*heads, np.zeros(2 * 256 * 64, np.float32)])
        each = q[0].size + k[0].size + v[0].size
        scores, left, right, last = 2 * pair, f"MemC{2 * pair}", f"MemC{2 * pair + 1}", 4 + pair
        order: list[Record] = []
        for h in range(2):
            at = h * each
            order.append(ddr(at, 256 * 64, to=f"MemA{pair}"))
            order += [ddr(at + 256 * 64 + 256 * 64 * j, 256 * 64, to=f"MemB{j}") for j in range(2)]
            order.append(ddr(at + (256 + 512) * 64, 512 * 64, to="MemB2"))
        order += [ddr(2 * each + h * 256 * 64, 256 * 64, source=f"MemC{last}") for h in range(2)]
        keys = {"load": 1, "transpose": 1, "dim1": 64, "dim2": 256}
        twice = {"send": 1, "acc_a": 2, "acc_b": 2}
        values = {"send": 1, "acc_a": 2, "acc_b": 1, "acc_k": 4}
        recv = {"recv": 1, "recv_a": 2, "recv_b": 2, "k_iter": 1, "softmax": 1}
        send = {"send": 1, "send_a": 2, "send_b": 1, "send_k": 2}
        turns = [route(f.MeshA, 1024, {left: [f"MME{last}"]}), route(f.MeshA, 1024, {right: [f"MME{last}"]})] * 2
        both = [f"MME{scores}", f"MME{scores + 1}"]
        memories, seconds = run(
            overlay,
            (memory, np.zeros(16, np.float32)),
            {
                "DDR": order,
                f"MemA{pair}": chain(f.MemA, [{"load": 1, "dim1": 256, "dim2": 64}] * 2, [twice] * 2),
                **{f"MemB{j}": chain(f.MemB, [keys] * 2, [twice] * 2) for j in range(2)},
                "MemB2": chain(f.MemB, [{"load": 1, "dim1": 512, "dim2": 64}] * 2, [values] * 2),
                "MeshA": [*[route(f.MeshA, 2048, {f"MemA{pair}": both})] * 2, *turns, *turns],
                "MeshB": [
                    *[route(f.MeshB, 2048, {"MemB0": both[:1], "MemB1": both[1:]})] * 2,
                    route(f.MeshB, 8192, {"MemB2": [f"MME{last}"]}),
                ],
                **{mme: [op(k128=0, acc_a=2, acc_b=2)] * 2 for mme in both},
                f"MME{last}": [op(a_iter=2, k_iter=4, acc_k=1, n128=0)] * 2,
                **{
                    unit: [*([reg] if reg else []), *chain(f.MemC, [recv] * 2, [send] * 2)]
                    for unit, reg in zip((left, right), registers, strict=True)
                },
                f"MemC{last}": chain(
                    f.MemC,
                    [{"recv": 1, "recv_a": 2, "recv_b": 1, "k_iter": 1}] * 2,
                    [{"store": 1, "dim1": 256, "dim2": 64}] * 2,
                ),
            },
        )
        found = [unblock(m[-2 * 256 * 64 :].reshape(2, -1)[h], 256, 64) for m in memories for h in range(2)]
        return Outcome([np.concatenate(found[i : i + 2]) for i in (0, 2)], [expected] * 2, seconds)

    return program


def softmax(scores: Array, valid: npt.NDArray[np.bool_] | None = None, scale: float = 1.0) -> Array:
    """By rows, over the valid columns; 0 where there are none."""
    keep = np.ones(scores.shape, bool) if valid is None else valid
    x = np.where(keep, scores.astype(np.float64) * scale, -np.inf)
    e = np.exp(x - np.where(keep.any(1), x.max(1), 0)[:, None])
    total = e.sum(1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0).astype(np.float32)


def halves(scores: Array) -> Array:
    return np.concatenate([softmax(scores[:, :256]), softmax(scores[:, 256:])], axis=1)


_ROWS, _COLUMNS = np.arange(256)[:, None], np.arange(512)[None]
MASKED = np.broadcast_to((_COLUMNS < 200) | ((_COLUMNS >= 256) & (_COLUMNS < 256 + 90)), (256, 512))
CAUSAL = _COLUMNS <= _ROWS + 100
EARLY = _COLUMNS <= _ROWS - 3


def norm(registers: Sequence[f.MemCConfig | None], activate: int = 0) -> Callable[[Overlay], Outcome]:
    """norm(gelu(x * scale)) of 256 rows, half of the columns on each of two MemCs; each stores what its registers call
    valid, and 0 behind. activate: with the gelu. scale: 1 for one half, 2 for the other."""

    def program(overlay: Overlay) -> Outcome:
        x = random(100, 256, 1024) * 3 + 1
        scale = np.repeat(np.float32([1, 2]), 512)
        y = x * scale
        reg = [r or f.MemCConfig() for r in registers]
        if activate:
            y = gelu(y)
        parts = [y[:, : reg[0].norm_cols], y[:, 512 : 512 + reg[1].norm_cols]]
        both = np.concatenate(parts, axis=1).astype(np.float64)
        centred = [p - (0 if reg[0].rms else both.mean(1, keepdims=True)) for p in parts]
        variance = np.mean(np.concatenate(centred, axis=1) ** 2, axis=1, keepdims=True)
        expected = np.zeros((256, 1024), np.float32)
        for j in range(2):
            expected[:, 512 * j : 512 * j + reg[j].norm_cols] = centred[j] / np.sqrt(variance + reg[j].eps)
        memory = np.concatenate([block(x).reshape(-1), np.zeros(x.size, np.float32)])
        order: list[f.Ddr] = []
        for half in range(2):
            for i in range(2):
                for j in range(4):
                    rows, columns = (
                        slice(128 * i, 128 * i + 128),
                        slice(512 * half + 128 * j, 512 * half + 128 * j + 128),
                    )
                    order += [ddr(*p, to="MemA2") for p in blocks_at(0, 1024, rows, columns)]
        for half in range(2):
            order += [
                ddr(*p, source=f"MemC{4 + half}")
                for p in blocks_at(x.size, 1024, slice(0, 256), slice(512 * half, 512 * half + 512))
            ]
        vector = chain(f.MemB, [{"load": 1, "bias": 1, "dim1": 16, "dim2": 1}], [ONCE])
        scaling = op(a_iter=1, acc_a=2, acc_b=4, k_iter=0, load_prev=1, prev=1)
        recv = f.MemC(recv=1, recv_a=2, recv_b=4, k_iter=1)
        out = f.MemC(store=1, dim1=256, dim2=512, layernorm=1, gelu=activate)
        memories, seconds = run(
            overlay,
            (memory, scale),
            {
                "DDR": order,
                "LPDDR": [lpddr(512 * j, 512, f"MemB{j}", 1) for j in range(2)],
                "MemA2": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * 16, [ONCE] * 16),
                "MemB0": vector,
                "MemB1": vector,
                "MeshA": [f.MeshA(size=512 * 8, a2_4=1), f.MeshA(size=512 * 8, a2_5=1)],
                "MeshB": [f.MeshB(size=512, b0_4=1, b1_5=1)],
                **{f"MME{4 + j}": [scaling] for j in range(2)},
                **{f"MemC{4 + j}": [*([registers[j]] if registers[j] else []), recv, out] for j in range(2)},
            },
        )
        return Outcome(tail(memories, 256, 1024), [expected] * 2, seconds)

    return program


def activations(overlay: Overlay) -> Outcome:
    """Each activation of the register, one tile after the other; of the last, 64 columns alone."""
    from scipy import special

    x, eye = [random(110 + i, 128, 128) * 2 for i in range(5)], np.eye(128, dtype=np.float32)
    recv = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1)
    mem_c: list[Record] = []
    for code in range(5):
        mem_c += [f.MemCConfig(activation=code), recv, f.MemC(store=1, dim1=128, dim2=128 if code < 4 else 64, gelu=1)]
    sizes = [(128, 128 if code < 4 else 64) for code in range(5)]
    memories, seconds = one_mme(overlay, [op(a_iter=5)], x, [eye] * 5, [], mem_c, sizes)
    erf = 0.5 * x[1] * (1 + special.erf(x[1] / np.sqrt(2)))
    expected = [gelu(x[0]), erf, np.maximum(x[2], 0), x[3] / (1 + np.exp(-x[3])), x[4][:, :64]]
    flat = np.concatenate([block(np.ascontiguousarray(y, np.float32)).reshape(-1) for y in expected])
    return Outcome(memories, [flat] * 2, seconds)


def pieces(overlay: Overlay) -> Outcome:
    """Loads and stores of quarter blocks, in which blocks begin and end; two Mems in turns, each with two matrices."""
    x, eye = random(120, 2, 128, 256), np.eye(128, dtype=np.float32)
    sizes = [2048, 8192, 6144, 14336, 2048]
    starts = np.cumsum([0, *sizes])[:-1].tolist()
    parts = [block(np.ascontiguousarray(y[:, i : i + 128])).reshape(-1) for y in x for i in (0, 128)]
    memory = np.concatenate([*parts, np.zeros(4 * 16384, np.float32)])
    moves = [(32768 * m + at, n, m) for at, n in zip(starts, sizes, strict=True) for m in range(2)]
    recv = {"recv": 1, "recv_a": 1, "recv_b": 1, "k_iter": 1}
    memories, seconds = run(
        overlay,
        (memory, block(eye).reshape(-1)),
        {
            "DDR": [
                *(ddr(at, n, to=f"MemA{m}") for at, n, m in moves),
                *(ddr(65536 + at, n, source=f"MemC{2 * m}") for at, n, m in moves),
            ],
            "LPDDR": [lpddr(0, 16384, "MemB0")],
            **{f"MemA{m}": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * 2, [ONCE] * 2) for m in range(2)},
            "MemB0": chain(f.MemB, [{"load": 1, "dim1": 128, "dim2": 128}], [{"send": 1, "acc_a": 2, "acc_b": 1}]),
            "MeshA": [f.MeshA(size=1024, a0_0=1, a1_2=1)],
            "MeshB": [f.MeshB(size=1024, b0_0=1, b0_2=1)],
            **{f"MME{2 * m}": [op(a_iter=2)] for m in range(2)},
            **{
                f"MemC{2 * m}": chain(f.MemC, [recv] * 2, [{"store": 1, "dim1": 128, "dim2": 128}] * 2)
                for m in range(2)
            },
        },
    )
    return Outcome([m[65536:] for m in memories], [np.concatenate(parts)] * 2, seconds)


def flags(overlay: Overlay) -> Outcome:
    """Two empty uOPs between load and send, and between recv and store; then the same buffer is sent once more."""
    x, w = random(130, 128, 128), random(131, 128, 128)
    memory = np.concatenate([block(x).reshape(-1), np.zeros(2 * 16384, np.float32)])
    send = f.MemA(send=1, acc_a=1, acc_b=1)
    recv, out = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1), f.MemC(store=1, dim1=128, dim2=128)
    memories, seconds = run(
        overlay,
        (memory, block(w).reshape(-1)),
        {
            "DDR": [ddr(0, 16384, to="MemA0"), ddr(16384, 16384, source="MemC0"), ddr(32768, 16384, source="MemC0")],
            "LPDDR": [lpddr(0, 16384, "MemB0")],
            "MemA0": [f.MemA(load=1, dim1=128, dim2=128), f.MemA(), f.MemA(), send, f.MemA(), send],
            "MemB0": [
                f.MemB(load=1, dim1=128, dim2=128),
                f.MemB(),
                f.MemB(),
                f.MemB(send=1, acc_a=2, acc_b=1),
            ],
            "MeshA": [f.MeshA(size=1024, a0_0=1)],
            "MeshB": [f.MeshB(size=1024, b0_0=1)],
            "MME0": [op(a_iter=2)],
            "MemC0": [recv, f.MemC(), f.MemC(), out, recv, out],
        },
    )
    return Outcome([m[16384:] for m in memories], [np.tile(block(x @ w).reshape(-1), 2)] * 2, seconds)


def stale(overlay: Overlay) -> Outcome:
    """What nothing was loaded into is NaN, and so is the right half of an N = 64 product; a smaller load leaves
    the rest of a buffer as it was."""
    x, y, w = random(150, 128, 128), random(151, 128, 64), random(152, 128, 128)
    memory = np.concatenate([block(x).reshape(-1), block(y).reshape(-1), np.zeros(3 * 16384, np.float32)])
    out = f.MemC(store=1, dim1=128, dim2=128)
    recv = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1)
    send = f.MemA(**ONCE)
    memories, seconds = run(
        overlay,
        (memory, block(w).reshape(-1)),
        {
            "DDR": [
                ddr(0, 16384, to="MemA0"),
                ddr(16384, 8192, to="MemA0"),
                *(ddr(16384 + 8192 + 16384 * i, 16384, source="MemC0") for i in range(3)),
            ],
            "LPDDR": [lpddr(0, 16384, "MemB0")],
            "MemA0": [
                send,  # of a buffer that nothing has filled
                f.MemA(),
                f.MemA(load=1, dim1=128, dim2=128),
                send,
                f.MemA(load=1, dim1=128, dim2=64),
                send,
            ],
            "MemB0": chain(f.MemB, [{"load": 1, "dim1": 128, "dim2": 128}], [{"send": 1, "acc_a": 3, "acc_b": 1}]),
            "MeshA": [f.MeshA(size=1536, a0_0=1)],
            "MeshB": [f.MeshB(size=1536, b0_0=1)],
            "MME0": [op(), op(n128=0), op()],
            "MemC0": [recv, out, recv, out, recv, out],
        },
    )
    nothing = np.full((128, 128), np.nan, np.float32)
    narrow = np.concatenate([(x @ w)[:, :64], nothing[:, 64:]], axis=1)
    expected = [nothing, narrow, np.concatenate([y, x[:, 64:]], axis=1) @ w]
    flat = np.concatenate([block(np.ascontiguousarray(e)).reshape(-1) for e in expected])
    return Outcome([m[-3 * 16384 :] for m in memories], [flat] * 2, seconds)


def in_place(overlay: Overlay) -> Outcome:
    """MME4 waits for v, which DDR loads last, so that all it takes is on its way for long. Meanwhile MemC0 activates in
    place what it has sent; MemC1 receives into the buffer that it has sent; DDR stores over what it has loaded."""
    x, x2, v = random(140, 128, 128), random(143, 128, 128), random(141, 128, 64)
    z, y, eye = random(142, 128, 128), random(144, 128, 64), np.eye(128, dtype=np.float32)
    memory = np.concatenate([block(m).reshape(-1) for m in (x, x2, z, v)] + [np.zeros(4 * 16384, np.float32)])
    at_v, at_y = 3 * 16384, 3 * 16384 + 8192
    at_second, at_out = at_y + 16384, at_y + 2 * 16384
    memory[at_y : at_y + 8192] = block(y).reshape(-1)
    recv = f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=1)
    send = f.MemC(send=1, send_a=1, send_b=1, send_k=1, store=1, dim1=128, dim2=128)  # sending wins over storing
    matrix = {"load": 1, "dim1": 128, "dim2": 128}
    memories, seconds = run(
        overlay,
        (memory, block(eye).reshape(-1)),
        {
            "DDR": [
                ddr(0, 16384, to="MemA0"),
                ddr(16384, 16384, to="MemA0"),
                ddr(2 * 16384, 16384, to="MemA2"),
                ddr(at_y, 8192, to="MemA2"),
                ddr(at_y, 16384, source="MemC0"),
                ddr(at_second, 16384, source="MemC1"),
                ddr(at_v, 8192, to="MemB2"),
                ddr(at_out, 16384, source="MemC4"),
            ],
            "LPDDR": [lpddr(0, 16384, f"MemB{j}") for j in range(2)],
            "MemA0": chain(f.MemA, [matrix] * 2, [ONCE] * 2),
            "MemA2": [
                f.MemA(**matrix),
                f.MemA(send=1, acc_a=1, acc_b=4),
                f.MemA(load=1, dim1=128, dim2=64),
                f.MemA(**ONCE),
            ],
            **{f"MemB{j}": chain(f.MemB, [matrix], [{"send": 1, "acc_a": 1 + j, "acc_b": 1}]) for j in range(2)},
            "MemB2": chain(
                f.MemB, [{"load": 1, "dim1": 128, "dim2": 64}], [{"send": 1, "acc_a": 7, "acc_b": 1, "acc_k": 1}]
            ),
            "MeshA": [
                f.MeshA(size=512, a0_0=1, a0_1=1),
                f.MeshA(size=512, c0_4=1),
                f.MeshA(size=512, c1_4=1),
                f.MeshA(size=512, a0_1=1),
                f.MeshA(size=5 * 512, a2_4=1),
            ],
            "MeshB": [f.MeshB(size=512, b0_0=1, b1_1=1), f.MeshB(size=512, b1_1=1), f.MeshB(size=7 * 512, b2_4=1)],
            "MME0": [op()],
            "MME1": [op(a_iter=2)],
            "MME4": [op(k_iter=6), op(k128=0)],
            "MemC0": [recv, send, f.MemC(), f.MemC(store=1, dim1=128, dim2=128, gelu=1)],
            "MemC1": [recv, send, recv, f.MemC(store=1, dim1=128, dim2=128)],
            "MemC4": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=7), f.MemC(store=1, dim1=128, dim2=128)],
        },
    )
    product = 2 * (x @ v) + 4 * (z @ v) + y @ v[:64]
    expected = [gelu(x), x2, np.concatenate([product, np.zeros_like(product)], axis=1)]
    flat = np.concatenate([block(np.ascontiguousarray(e)).reshape(-1) for e in expected])
    return Outcome([m[at_y : at_out + 16384] for m in memories], [flat] * 2, seconds)


def on_the_way(overlay: Overlay) -> Outcome:
    """What a MemB has sent waits for a left operand, while the MemB loads into the same buffer: a transposed matrix on
    MemB0, vectors on MemB1."""
    x, t = random(160, 128, 128), [random(161 + i, 128, 64) for i in range(2)]
    w, scales = random(163, 128, 128), [random(164 + i, 128) for i in range(2)]
    memory = np.concatenate([block(m).reshape(-1) for m in (*t, x)] + [np.zeros(2 * 16384, np.float32)])
    at = 2 * 8192 + 16384
    key = {"load": 1, "transpose": 1, "dim1": 64, "dim2": 128}
    vector = {"load": 1, "bias": 1, "dim1": 4, "dim2": 1}
    memories, seconds = run(
        overlay,
        (memory, np.concatenate([block(w).reshape(-1), *scales])),
        {
            "DDR": [
                *(ddr(8192 * i, 8192, to="MemB0") for i in range(2)),
                ddr(2 * 8192, 16384, to="MemA0"),
                *(ddr(at + 16384 * i, 16384, source=f"MemC{i}") for i in range(2)),
            ],
            "LPDDR": [lpddr(0, 16384, "MemB1"), *(lpddr(16384 + 128 * i, 128, "MemB1", 1) for i in range(2))],
            "MemA0": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}], [{"send": 1, "acc_a": 1, "acc_b": 3}]),
            "MemB0": [f.MemB(**key), f.MemB(**ONCE), f.MemB(**key), f.MemB(**ONCE)],
            "MemB1": [
                f.MemB(load=1, dim1=128, dim2=128),
                f.MemB(**(ONCE | vector)),
                f.MemB(**ONCE),
                f.MemB(**vector),
                f.MemB(**ONCE),
            ],
            "MeshA": [f.MeshA(size=1024, a0_0=1, a0_1=1), f.MeshA(size=512, a0_1=1)],
            "MeshB": [f.MeshB(size=1024, b0_0=1, b1_1=1), f.MeshB(size=512, b1_1=1)],
            "MME0": [op(k128=0, k_iter=2)],
            "MME1": [op(), *[op(load_prev=1, prev=1, k_iter=0)] * 2],
            "MemC0": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=2), f.MemC(store=1, dim1=128, dim2=128)],
            "MemC1": [f.MemC(recv=1, recv_a=1, recv_b=1, k_iter=3), f.MemC(store=1, dim1=128, dim2=128)],
        },
    )
    expected = [x[:, :64] @ (t[0] + t[1]).T, x @ w + x * scales[0] + x * scales[1]]
    flat = np.concatenate([block(np.ascontiguousarray(e)).reshape(-1) for e in expected])
    return Outcome([m[at:] for m in memories], [flat] * 2, seconds)
