"""Small programs that use opcodes 9 to 13, as those of `programs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rsn.isa.layout import block
from rsn.isa.overlay import Overlay
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.versal.functions import activation
from rsn.tests.hw.load_modes import Norm
from rsn.tests.hw.score_modes import Scores, left_three_times
from rsn.tests.hw.store_modes import Halves
from rsn.tests.isa.mutants.steps import (
    ONCE,
    Array,
    Outcome,
    chain,
    ddr,
    op,
    random,
    run,
)


def values(overlay: Overlay) -> Outcome:
    """p @ v with v in whole tiles of MemB2; then of its first 64 columns, as half tiles that are sent twice."""
    p, v = random(190, 256, 256), random(191, 256, 256)
    tiles = [
        [np.ascontiguousarray(p[128 * i : 128 * i + 128, 128 * k : 128 * k + 128]) for k in range(2)] for i in range(2)
    ]
    at_v, at_y = p.size, p.size + v.size
    narrow = np.ascontiguousarray(v[:, :64])
    parts = [*(block(t).reshape(-1) for row in tiles for t in row), block(v).reshape(-1), block(narrow).reshape(-1)]
    memory = np.concatenate([*parts, np.zeros(256 * 448, np.float32)])
    order = [2 * i + k for i in range(2) for _ in range(2) for k in range(2)] * 2
    at_out = at_y + narrow.size
    send = {"send": 1, "acc_a": 2, "acc_b": 2, "acc_k": 2}
    memories, seconds = run(
        overlay,
        (memory, np.zeros(16, np.float32)),
        {
            "DDR": [
                ddr(at_v, v.size, to="MemB2"),
                *(ddr(16384 * i, 16384, to="MemA2") for i in order[:8]),
                ddr(at_y, narrow.size, to="MemB2"),
                *(ddr(16384 * i, 16384, to="MemA2") for i in order[8:]),
                ddr(at_out, 256 * 256, source="MemC4"),
                ddr(at_out + 256 * 256, 256 * 192, source="MemC4"),
            ],
            "MemA2": chain(f.MemA, [{"load": 1, "dim1": 128, "dim2": 128}] * 16, [ONCE] * 16),
            "MemB2": [
                f.MemB(load=1, dim1=256, dim2=256),
                f.MemBConfig(whole=1),
                f.MemB(load=1, dim1=256, dim2=64, **send),
                f.MemBConfig(),
                f.MemB(**send),
            ],
            "MeshA": [f.MeshA(size=512 * 16, a2_4=1)],
            "MeshB": [f.MeshB(size=512 * 16, b2_4=1)],
            "MME4": [op(k_iter=2, acc_a=2, acc_b=2, acc_k=1), op(k_iter=2, acc_a=2, acc_b=2, acc_k=1, n128=0)],
            "MemC4": chain(
                f.MemC,
                [{"recv": 1, "recv_a": 2, "recv_b": 2, "k_iter": 1}] * 2,
                [{"store": 1, "dim1": 256, "dim2": n} for n in (256, 192)],
            ),
        },
    )
    y = p @ v
    twice = np.concatenate([y[:, :64], np.full((256, 64), np.nan, np.float32), y[:, :64]], axis=1)
    flat = np.concatenate([block(x).reshape(-1) for x in (y, twice)])
    return Outcome([m[at_out:] for m in memories], [flat] * 2, seconds)


def stores(program: Halves) -> Callable[[Overlay], Outcome]:
    """A matrix through two MemCs, and the statistics behind it."""

    def outcome(overlay: Overlay) -> Outcome:
        found, statistics, seconds = program.run(overlay)
        expected, wanted = program.expected()
        more = [] if statistics is None or wanted is None else [(statistics, wanted)]
        return Outcome([*found, *(a for a, _ in more)], [*expected, *(b for _, b in more)], seconds)

    return outcome


def parts(program: Scores) -> Callable[[Overlay], Outcome]:
    """A softmax of rows whose keys come in parts."""

    def outcome(overlay: Overlay) -> Outcome:
        found, seconds = program.run(overlay)
        return Outcome([x * 100 for x in found], [x * 100 for x in program.expected()], seconds)

    return outcome


def leaving(overlay: Overlay) -> Outcome:
    """A softmax that leaves its slot three times, the last two with gelu."""
    x = random(196, 2, 128, 128) * 3
    found, seconds = left_three_times(x, overlay)
    (once,) = [Scores(x[None], parts=False).expected()]
    expected = [(p, activation(p, 0), activation(activation(p, 0), 0)) for p in once]
    return Outcome([y * 100 for of in found for y in of], [y * 100 for of in expected for y in of], seconds)


def loads(overlay: Overlay) -> Outcome:
    """Rows that a MemA normalises: those of the first statistics, of both, and of the second for both row tiles."""
    program = Norm(random(170, 256, 448) * 3 + 1, (128, 256, 64), ((1, 0, 0), (2, 0, 0), (2, 1, 1)), eps=0.25)
    found, seconds = program.run(overlay)
    return Outcome(found, program.expected(), seconds)


def loads_without_mean(overlay: Overlay) -> Outcome:
    program = Norm(random(171, 128, 384) + 1, (128, 256), ((1, 0, 0),), rms=1, centred=True)
    found, seconds = program.run(overlay)
    return Outcome(found, program.expected(), seconds)


def table(head: int) -> tuple[Array, Array]:
    return random(180, 256, head), random(181, 256, head)


def both(record: f.MemCConfig | f.MemCStore) -> Any:
    return record, record
