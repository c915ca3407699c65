"""Each unit of the XNN overlay against contract section 2, fed uOP by uOP without an instruction path.

What a unit sends or stores is read back at the other end: a stub at DDR stores, a tile at the MME's input.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rsn.base.errors import DeadlockError, ProgramError
from rsn.isa.layout import block, unblock
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.versal.functions import activation
from rsn.machine.executor import ProcessNetwork
from rsn.machine.plan import execute

rng = np.random.default_rng(7)
RECV = f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=1)
STORE = f.MemC(store=1, dim1=128, dim2=128)
CLOSE = {"rtol": 1e-5, "atol": 1e-4}


def random(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def load(to: str, at: int, blocks: int) -> f.Transfer:
    return f.Transfer(at * 512, blocks * 8192, False, to)


def store(source: str, at: int, blocks: int) -> f.Transfer:
    return f.Transfer(at * 512, blocks * 8192, True, source)


def vector(to: str, at: int, size: int) -> f.Transfer:
    return f.Transfer(at // 16, size, False, to, True)


def run(ddr: np.ndarray, lpddr: np.ndarray, mme: dict[str, Sequence[f.Mme]], **issues: list[Any]) -> ProcessNetwork:
    net = ProcessNetwork(XNN, {**issues, **mme}, banks={"ddr": ddr.reshape(-1), "lpddr": lpddr.reshape(-1)}, data=True)
    net.run()
    return net


def chain(kind: Any, loads: list[dict[str, int]], send: dict[str, int]) -> list[Any]:
    """Load each piece while the one before is sent."""
    return [kind(**(loads[i] if i < len(loads) else {}), **(send if i else {})) for i in range(len(loads) + 1)]


def multiply(
    op: f.Mme,
    a: list[np.ndarray],
    b: list[np.ndarray],
    vectors: Sequence[np.ndarray] = (),
    config: Sequence[f.MemCConfig] = (),
    recv: f.MemC = RECV,
    out: f.MemC = STORE,
) -> np.ndarray:
    """Send the tiles `a` and, behind the vectors, the tiles `b` to MME0; the tile that MemC0 stores, (128, 128)."""
    ddr = np.concatenate([*map(block, a), np.zeros(2 * 8192, np.float32)])
    lpddr = np.concatenate([*map(block, b), *vectors])
    at = 16384 * len(b)
    pieces: list[f.Transfer] = []
    loads: list[dict[str, int]] = []
    for v in vectors:
        pieces.append(vector("MemB0", at, len(v)))
        loads.append({"load": 1, "bias": 1, "dim1": min(32, len(v) // 32), "dim2": max(1, len(v) // 1024)})
        at += len(v)
    pieces += [load("MemB0", 2 * i, 2) for i in range(len(b))]
    loads += [{"load": 1, "dim1": 128, "dim2": 128}] * len(b)
    send = {"send": 1, "acc_a": 1, "acc_b": 1}
    run(
        ddr,
        lpddr,
        {"MME0": [op]},
        DDR=[*(load("MemA0", 2 * i, 2) for i in range(len(a))), store("MemC0", 2 * len(a), 2)],
        LPDDR=pieces,
        MemA0=chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * len(a), send),
        MemB0=chain(f.MemB, loads, send),
        MeshA=[f.MeshA(size=512 * len(a), a0_0=1)],
        MeshB=[f.MeshB(size=512 * len(loads), b0_0=1)],
        MemC0=[*config, recv, out],
    )
    return unblock(ddr[16384 * len(a) :], 128, 128)


def op(**fields: int) -> f.Mme:
    return f.Mme(**({"a_iter": 1, "b_iter": 1, "k_iter": 1, "acc_a": 1, "acc_b": 1, "n128": 1, "k128": 1} | fields))


X, W = random(128, 128), random(128, 128)


def test_a_tile_product() -> None:
    np.testing.assert_allclose(multiply(op(), [X], [W]), X @ W, **CLOSE)


def test_k64_uses_the_first_64_columns_and_rows_and_ignores_n() -> None:
    np.testing.assert_allclose(multiply(op(k128=0, n128=0), [X], [W]), X[:, :64] @ W[:64], **CLOSE)


def test_n64_poisons_the_columns_that_the_hardware_leaves_undefined() -> None:
    y = multiply(op(n128=0), [X], [W])
    np.testing.assert_allclose(y[:, :64], (X @ W)[:, :64], **CLOSE)
    assert np.isnan(y[:, 64:]).all()


def test_memc_overwrites_in_the_first_round_and_adds_in_the_others() -> None:
    x, w = [X, random(128, 128)], [W, random(128, 128)]
    y = multiply(op(k_iter=2), x, w, recv=f.MemC(recv=1, k_iter=2, recv_a=1, recv_b=1))
    np.testing.assert_allclose(y, x[0] @ w[0] + x[1] @ w[1], **CLOSE)


def test_the_mme_accumulates_over_k_and_emits_one_tile() -> None:
    x, w, bias = [X, random(128, 128)], [W, random(128, 128)], random(128)
    y = multiply(op(k_iter=2, acc_k=1, bias=1), x, w, [bias])
    np.testing.assert_allclose(y, x[0] @ w[0] + x[1] @ w[1] + bias, **CLOSE)


def test_a_bias_is_added_at_k_0_alone() -> None:
    bias = random(128)
    y = multiply(op(k_iter=2, bias=1), [X, X], [W, W], [bias], recv=f.MemC(recv=1, k_iter=2, recv_a=1, recv_b=1))
    np.testing.assert_allclose(y, 2 * (X @ W) + bias, **CLOSE)


def test_tile_t_takes_groups_4t_of_a_long_vector() -> None:
    bias = random(2048)  # 64 groups in two column blocks of MemB; MemC adds up the 8 tiles of the first 1024
    y = multiply(
        op(b_iter=2, acc_b=4, bias=1), [X] * 8, [W] * 8, [bias], recv=f.MemC(recv=1, k_iter=8, recv_a=1, recv_b=1)
    )
    expected = 8 * (X @ W) + bias[:1024].reshape(8, 128).sum(0)  # b_iter * acc_b = 8 tiles
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-3)


def test_the_previous_layer_term_scales_columns() -> None:
    scale, bias, x2 = random(128), random(128), random(128, 128)
    y = multiply(
        op(load_prev=1, prev=1, bias=1), [x2, X], [W], [scale, bias], recv=f.MemC(recv=1, k_iter=2, recv_a=1, recv_b=1)
    )
    np.testing.assert_allclose(y, x2 * scale + X @ W + bias, **CLOSE)


def test_k_iter_0_emits_the_elementwise_term_alone() -> None:
    scale = random(128)
    np.testing.assert_allclose(multiply(op(load_prev=1, prev=1, k_iter=0), [X], [], [scale]), X * scale, **CLOSE)


def test_activation_registers_act_at_the_store() -> None:
    gelu = f.MemC(store=1, dim1=128, dim2=128, gelu=1)
    y = multiply(op(), [X], [W], out=gelu)
    np.testing.assert_allclose(y, activation(X @ W, 0), **CLOSE)
    for code, reference in ((2, np.maximum(X @ W, 0)), (3, X @ W / (1 + np.exp(-(X @ W)))), (4, X @ W)):
        y = multiply(op(), [X], [W], config=[f.MemCConfig(activation=code)], out=gelu)
        np.testing.assert_allclose(y, reference, **CLOSE)


def test_gelu_forms() -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    for code, form in ((0, "tanh"), (1, "none")):
        reference = torch.nn.functional.gelu(torch.from_numpy(x), approximate=form).numpy()
        np.testing.assert_allclose(activation(x, code), reference, atol=1e-6)


# -- attention: Q on MemA0, K on MemB0 and MemB1, scores on MME0 and MME1, MemC0 and MemC1 neighbours


def softmax_pair(q: np.ndarray, k: np.ndarray, cfg: tuple[f.MemCConfig, f.MemCConfig] | None = None) -> np.ndarray:
    """P = softmax(q k^T), q (128, 64), k (256, 64), from MemC0|1 through an identity product on MME4; (128, 256)."""
    eye = np.zeros((256, 64), np.float32)
    out = []
    for half in range(4):  # V picks 64 columns of P at a time
        eye[:] = 0
        eye[64 * half : 64 * half + 64] = np.eye(64)
        ddr = np.concatenate([block(q), block(k), block(eye), np.zeros(8192, np.float32)])
        score = op(k128=0)
        once = {"send": 1, "acc_a": 1, "acc_b": 1}
        keys = {"load": 1, "transpose": 1, "dim1": 64, "dim2": 128}
        run(
            ddr,
            np.zeros(16, np.float32),
            {"MME0": [score], "MME1": [score], "MME4": [op(k_iter=2, n128=0, acc_k=1)]},
            DDR=[
                load("MemA0", 0, 1),
                load("MemB0", 1, 1),
                load("MemB1", 2, 1),
                load("MemB2", 3, 2),
                store("MemC4", 5, 1),
            ],
            MemA0=chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 64}], once),
            MemB0=chain(f.MemB, [keys], once),
            MemB1=chain(f.MemB, [keys], once),
            MemB2=chain(f.MemB, [{"load": 1, "dim1": 256, "dim2": 64}], once | {"acc_k": 2}),
            MeshA=[f.MeshA(size=512, a0_0=1, a0_1=1), f.MeshA(size=512, c0_4=1), f.MeshA(size=512, c1_4=1)],
            MeshB=[f.MeshB(size=512, b0_0=1, b1_1=1), f.MeshB(size=1024, b2_4=1)],
            **{
                f"MemC{i}": [
                    *([cfg[i]] if cfg else []),
                    f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=1, softmax=1),
                    f.MemC(send=1, send_a=1, send_b=1, send_k=1),
                ]
                for i in range(2)
            },
            MemC4=[RECV, f.MemC(store=1, dim1=128, dim2=64)],
        )
        out.append(unblock(ddr[5 * 8192 :], 128, 64))
    return np.concatenate(out, axis=1)


def reference_softmax(s: np.ndarray, valid: np.ndarray) -> np.ndarray:
    e = np.where(valid, np.exp(s - s.max(1, keepdims=True)), 0)
    total = e.sum(1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0)


Q, K = random(128, 64) / 4, random(256, 64)


def test_softmax_spans_both_neighbours() -> None:
    valid = np.ones((128, 256), bool)
    np.testing.assert_allclose(softmax_pair(Q, K), reference_softmax(Q @ K.T, valid), atol=1e-6)


def test_max_subtraction_survives_scores_that_overflow_exp() -> None:
    cfg = f.MemCConfig(max_sub=1)
    p = softmax_pair(Q * 100, K, (cfg, cfg))
    np.testing.assert_allclose(p, reference_softmax(Q @ K.T * 100, np.ones((128, 256), bool)), atol=1e-4)


@pytest.mark.parametrize("length", [1, 100, 128, 200])
@pytest.mark.parametrize("max_sub", [0, 1])
def test_masked_columns_become_0(length: int, max_sub: int) -> None:
    cfg = tuple(f.MemCConfig(softmax_cols=min(max(length - 128 * i, 0), 128), max_sub=max_sub) for i in range(2))
    valid = np.broadcast_to(np.arange(256) < length, (128, 256))
    np.testing.assert_allclose(softmax_pair(Q, K, cfg), reference_softmax(Q @ K.T, valid), atol=1e-6)


@pytest.mark.parametrize("offset", [-3, 0, 140])
def test_the_causal_mask_counts_through_both_neighbours(offset: int) -> None:
    cfg = f.MemCConfig(causal=1, offset=offset, scale=0.5, max_sub=1)
    r, c = np.arange(128)[:, None], np.arange(256)
    p = softmax_pair(Q, K, (cfg, cfg))
    np.testing.assert_allclose(p, reference_softmax(0.5 * (Q @ K.T), c <= r + offset), atol=1e-6)
    if offset < 0:  # rows without a valid column
        assert (p[:-offset] == 0).all()


def test_without_exchange_each_neighbour_normalises_alone() -> None:
    cfg = f.MemCConfig(alone=1, max_sub=1)
    p = softmax_pair(Q, K, (cfg, cfg))
    s, valid = Q @ K.T, np.ones((128, 128), bool)
    halves = [reference_softmax(s[:, 128 * i : 128 * i + 128], valid) for i in range(2)]
    np.testing.assert_allclose(p, np.concatenate(halves, axis=1), atol=1e-6)


def test_softmax_on_one_neighbour_alone_never_ends() -> None:
    with pytest.raises(DeadlockError, match=r"MemC0 .*waits to get MemC1->MemC0\.softmax"):
        multiply(op(), [X], [W], recv=f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=1, softmax=1))


# -- norm: one GEMM row of 128 through MemA0, column halves on MME0|1


def norm_pair(x: np.ndarray, cols: tuple[int, int], **cfg: float) -> np.ndarray:
    """LayerNorm of the first cols[0] and cols[1] columns of the halves of x (128, 1024), stored by MemC0 and MemC1."""
    ddr = np.concatenate([block(x), np.zeros(x.size, np.float32)])
    prev = op(a_iter=1, acc_b=4, k_iter=0, load_prev=1, prev=1)
    ones = np.ones(512, np.float32)
    tiles = [load("MemA0", 8 * half + 2 * b, 2) for b in range(4) for half in range(2)]
    out = f.MemC(store=1, dim1=128, dim2=512, layernorm=1)
    run(
        ddr,
        ones,
        {"MME0": [prev], "MME1": [prev]},
        DDR=[*tiles, store("MemC0", 16, 8), store("MemC1", 24, 8)],
        LPDDR=[vector("MemB0", 0, 512), vector("MemB1", 0, 512)],
        MemA0=chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * 8, {"send": 1, "acc_a": 1, "acc_b": 1}),
        MemB0=chain(f.MemB, [{"load": 1, "bias": 1, "dim1": 16, "dim2": 1}], {"send": 1, "acc_a": 1, "acc_b": 1}),
        MemB1=chain(f.MemB, [{"load": 1, "bias": 1, "dim1": 16, "dim2": 1}], {"send": 1, "acc_a": 1, "acc_b": 1}),
        MeshA=[f.MeshA(size=512, a0_0=1), f.MeshA(size=512, a0_1=1)] * 4,
        MeshB=[f.MeshB(size=512, b0_0=1, b1_1=1)],
        **{
            f"MemC{i}": [f.MemCConfig(norm_cols=cols[i], **cfg), f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=4), out]
            for i in range(2)
        },
    )
    return unblock(ddr[x.size :], 128, 1024)


@pytest.mark.parametrize("cols", [(512, 512), (256, 128), (320, 0)])
@pytest.mark.parametrize("rms", [0, 1])
def test_norm_runs_over_own_and_neighbours_columns(cols: tuple[int, int], rms: int) -> None:
    x = random(128, 1024) * 3 + 1
    part = np.concatenate([x[:, : cols[0]], x[:, 512 : 512 + cols[1]]], axis=1)
    centred = part if rms else part - part.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-3)
    y = norm_pair(x, cols, eps=1e-3, rms=rms)
    np.testing.assert_allclose(y[:, : cols[0]], expected[:, : cols[0]], atol=1e-5)
    np.testing.assert_allclose(y[:, 512 : 512 + cols[1]], expected[:, cols[0] :], atol=1e-5)
    assert (y[:, cols[0] : 512] == 0).all()
    assert (y[:, 512 + cols[1] :] == 0).all()


# -- flags, quarter blocks, faults


def test_the_flag_flips_after_every_uop_even_an_empty_one() -> None:
    y = {}
    for gap in range(3):
        ddr = np.concatenate([block(X), np.zeros(2 * 8192, np.float32)])
        run(
            ddr,
            block(W),
            {"MME0": [op()]},
            DDR=[load("MemA0", 0, 2), store("MemC0", 2, 2)],
            LPDDR=[load("MemB0", 0, 2)],
            MemA0=[f.MemA(load=1, dim1=128, dim2=128), *[f.MemA()] * gap, f.MemA(send=1, acc_a=1, acc_b=1)],
            MemB0=[f.MemB(load=1, dim1=128, dim2=128), f.MemB(send=1, acc_a=1, acc_b=1)],
            MeshA=[f.MeshA(size=512, a0_0=1)],
            MeshB=[f.MeshB(size=512, b0_0=1)],
            MemC0=[RECV, STORE],
        )
        y[gap] = unblock(ddr[16384:], 128, 128)
    np.testing.assert_allclose(y[0], X @ W, **CLOSE)
    assert np.isnan(y[1]).all()  # sent the buffer that nothing was loaded into
    np.testing.assert_allclose(y[2], X @ W, **CLOSE)


@pytest.mark.parametrize("sizes", [[2048, 8192, 6144], [6144, 2048, 8192], [4096, 10240, 2048], [14336, 2048]], ids=str)
def test_a_block_may_begin_in_one_load_and_end_in_the_next(sizes: list[int]) -> None:
    """A stream has room for one block; what comes next must not wait for the room of a whole one."""
    starts = np.cumsum([0, *sizes])[:-1] // 16
    x, w = random(128, 128), random(128, 128)
    ddr = np.concatenate([block(x), np.zeros(2 * 8192, np.float32)])
    loads = [f.Transfer(int(at), n, False, "MemA0") for at, n in zip(starts, sizes, strict=True)]
    stores = [f.Transfer(1024 + int(at), n, True, "MemC0") for at, n in zip(starts, sizes, strict=True)]
    send = {"send": 1, "acc_a": 1, "acc_b": 1}
    issues: dict[str, list[Any]] = {
        "DDR": [*loads, *stores],
        "LPDDR": [load("MemB0", 0, 2)],
        "MemA0": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}], send),
        "MemB0": chain(f.MemB, [{"load": 1, "dim1": 128, "dim2": 128}], send),
        "MeshA": [f.MeshA(size=512, a0_0=1)],
        "MeshB": [f.MeshB(size=512, b0_0=1)],
        "MemC0": [RECV, STORE],
    }
    net = run(ddr, block(w), {"MME0": [op()]}, **issues)
    np.testing.assert_allclose(unblock(ddr[16384:], 128, 128), x @ w, **CLOSE)
    assert execute(XNN, {**issues, "MME0": [op()]}).latency == max(p.task.clock for p in net.progress.values())


def test_quarter_blocks_make_up_blocks() -> None:
    ddr = np.concatenate([block(X), np.zeros(2 * 8192, np.float32)])
    quarters = [f.Transfer(i * 128, 2048, False, "MemA0") for i in range(8)]
    net = run(
        ddr,
        block(W),
        {"MME0": [op()]},
        DDR=[*quarters, store("MemC0", 2, 2)],
        LPDDR=[load("MemB0", 0, 2)],
        MemA0=[f.MemA(load=1, dim1=128, dim2=128), f.MemA(send=1, acc_a=1, acc_b=1)],
        MemB0=[f.MemB(load=1, dim1=128, dim2=128), f.MemB(send=1, acc_a=1, acc_b=1)],
        MeshA=[f.MeshA(size=512, a0_0=1)],
        MeshB=[f.MeshB(size=512, b0_0=1)],
        MemC0=[RECV, STORE],
    )
    np.testing.assert_allclose(unblock(ddr[16384:], 128, 128), X @ W, **CLOSE)
    assert net.amounts["ddr_read_gbs"] == 65536


def test_reading_beyond_the_memory_is_an_error() -> None:
    with pytest.raises(ProgramError, match="DDR reads 8192 elements at 512000, beyond its 8192"):
        run(
            np.zeros(8192, np.float32),
            np.zeros(16, np.float32),
            {},
            DDR=[f.Transfer(32000, 8192, False, "MemA0")],
            MemA0=[f.MemA(load=1, dim1=128, dim2=64)],
        )


@pytest.mark.parametrize(
    ("unit", "uop", "reason"),
    [
        ("DDR", f.Transfer(0, 100, False, "MemA0"), "size 100 is not a multiple of 2048 elements"),
        ("DDR", f.Transfer(0, 8192, False, ""), "names no destination"),
        ("LPDDR", f.Transfer(0, 16384, False, "MemB0", True), "fewer than 1024 words"),
        ("MemA1", f.MemA(load=1, dim1=384, dim2=64), "256x128 buffer"),
        ("MemB2", f.MemB(load=1, dim1=128, dim2=64, transpose=1), "MemB2 does not transpose"),
        ("MemB0", f.MemB(load=1, bias=1, dim1=8, dim2=2), "at most 4 of exactly 32"),
        ("MemC0", f.MemC(recv=1, recv_a=3, recv_b=1, k_iter=1), "receives 3x1 tiles"),
        ("MemC5", f.MemC(send=1, send_a=1, send_k=1), "no way to MeshA"),
        ("MemC0", f.MemCConfig(softmax_cols=600), "softmax_cols=600"),
        ("MeshA", f.MeshA(size=100, a0_0=1), "not a whole number of tiles"),
        ("MeshA", f.MeshA(size=512, a2_4=1, c0_4=1), "two sources for one destination"),
        ("MME0", op(k128=0, bias=1), "K = 64 mode has no bias"),
        ("MME0", op(n128=0, bias=1), "a bias needs N = 128"),
        ("MME0", op(acc_k=1, bias=1, acc_b=2), "acc_a = acc_b = 1"),
        ("MME0", op(k_iter=0), "does nothing"),
        ("MME0", op(bias=1, b_iter=5, acc_b=4), "2560 columns; 2048 is the most"),
        ("MME0", op(load_prev=1, prev=1, b_iter=2), "b_iter = 1 only"),
        ("MME0", op(prev=1, b_iter=2), "b_iter = 1 only"),
    ],
)
def test_what_the_bits_allow_and_the_units_do_not(unit: str, uop: Any, reason: str) -> None:
    assert any(reason in found for found in XNN.legal(XNN.by_unit[unit], uop))
