"""Programs for the machine with Seq: results, times and bytes; that the order of visits changes nothing; refusals."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rsn.base.errors import DeadlockError, ProgramError, TensorError, UnsupportedError
from rsn.host.model.expert_layer import ExpertLayer
from rsn.hw.sim.machine import Machine
from rsn.isa.image import decode_image
from rsn.isa.overlays.moe import moe
from rsn.isa.overlays.moe.formats import Line, Rows, TemplatePatch
from rsn.isa.overlays.moe.sequence import ExpertRows, SequencedPath, issued, parts_of
from rsn.isa.packet import Packet, encode_image
from rsn.isa.program import Program
from rsn.isa.verify import check
from rsn.machine.executor import ProcessNetwork
from rsn.scheduler.expert_machine import MoePrograms, MoeSizes
from rsn.tests.effort import cases, in_both

Array = npt.NDArray[np.float32]
SMALL = moe(rows=8, tile=16)
SIZES = MoeSizes("moe", 20, 2, 5, 40, 24, "silu", True)
HOWS = ("static", "patched", "sequenced")


def drawn(rng: np.random.Generator, sizes: MoeSizes) -> list[list[int]]:
    """Selectors: some experts have many rows, some none."""
    likely = rng.dirichlet(np.full(sizes.experts, 0.7))
    weights = np.log(likely + 1e-9) + rng.gumbel(size=(sizes.tokens, sizes.experts))
    found: list[list[int]] = np.argsort(-weights, axis=1)[:, : sizes.each].tolist()
    return found


def filled(programs: MoePrograms, program: Program) -> dict[str, Array]:
    """Memories with random weights and rows."""
    s, rng = programs.sizes, np.random.default_rng(0)

    def numbers(*shape: int) -> Array:
        return (rng.normal(size=shape) / shape[-1] ** 0.5).astype(np.float32)

    given = numbers(s.experts, s.width), numbers(s.experts, 2 * s.inner, s.width), numbers(s.experts, s.width, s.inner)
    banks = {"ddr": np.zeros(program.bank_size("ddr"), np.float32), "weights": programs.packed(*given)}
    x = program.buffer("x")
    rows = rng.normal(size=(s.tokens, s.width)).astype(np.float32)
    banks["ddr"][x.offset : x.offset + x.size] = np.pad(rows, ((0, 0), (0, programs.width - s.width))).reshape(-1)
    return banks


class AnyOrder(ProcessNetwork):
    """Visits, of all tasks that may be able to move, any one."""

    seed = 0

    def run(self) -> float:
        rng, ready, alive, end = random.Random(self.seed), deque(self._tasks), set(self._tasks), 0.0
        while ready:
            ready.rotate(rng.randrange(len(ready)))
            task = ready.popleft()
            task.queued = False
            self._step(task, ready, alive)
            end = max(end, task.clock)
        self.settle(alive)
        return end


def network(
    program: Program, banks: dict[str, Array] | None, seed: int | None = None, parts: Sequence[ExpertRows] | None = None
) -> ProcessNetwork:
    """A run. seed: of the order in which tasks are visited, None for the usual one."""
    path = SequencedPath(program, decode_image(program.image, program.overlay), parts)
    kind = ProcessNetwork if seed is None else AnyOrder
    net = kind(program.overlay, path, banks=banks, data=banks is not None)
    net.seed = seed  # type: ignore[attr-defined]
    return net


@in_both
def test_the_order_of_visits_changes_nothing() -> None:
    """A Kahn process network: memories, latency, and the time of each process are the same in each order in which
    tasks are visited, on machines with FIFOs of any depth."""
    for fifo in (1, 2, 6):
        programs = MoePrograms(SIZES, moe(rows=8, tile=16, fifo=fifo))
        program = programs.sequenced()
        seen = set()
        for seed in range(cases(30, 3)):
            banks = filled(programs, program)
            net = network(program, banks, seed)
            latency = net.run()
            busy = tuple(sorted((name, p.task.clock, p.busy) for name, p in net.progress.items()))
            seen.add((latency, busy, banks["ddr"].tobytes()))
        assert len(seen) == 1


@in_both
def test_seq_moves_what_the_host_s_program_moves() -> None:
    """Time without data is that of a run with data; the parts of Seq and of the host's program are the same, and so are
    the bytes of weights; no way of choosing leads to a deadlock."""
    rng = np.random.default_rng(1)
    programs = MoePrograms(SIZES, SMALL)
    for _ in range(cases(40, 2)):
        chosen = drawn(rng, SIZES)
        runs = {how: ExpertLayer(SIZES, how=how, machine=SMALL).time(chosen) for how in HOWS}
        patched, sequenced, static = runs["patched"], runs["sequenced"], runs["static"]
        assert patched.rows == sequenced.rows
        assert patched.bytes["weights_read"] == sequenced.bytes["weights_read"]
        parts = parts_of(chosen, SIZES.experts, 8)
        assert sequenced.bytes["weights_read"] == 4 * (programs.router_elements * 3 + programs.pitch * len(parts))
        assert static.bytes["weights_read"] == 4 * (programs.router_elements + programs.pitch * SIZES.experts) * 3
        assert sequenced.latency_s < patched.latency_s
        assert patched.latency_s > 80e-6  # two launches
        assert sequenced.latency_s > programs.bound_s(len(sequenced.rows))


def test_time_without_data_is_that_with_data() -> None:
    programs = MoePrograms(SIZES, SMALL)
    program = programs.sequenced()
    net = network(program, filled(programs, program))
    latency = net.run()
    logits = program.buffer("logits")
    rows = net.banks["ddr"][logits.offset : logits.offset + logits.size].reshape(SIZES.tokens, -1)[:, : SIZES.experts]
    chosen = np.argsort(-rows, axis=1, kind="stable")[:, : SIZES.each].tolist()
    assert network(program, None, parts=parts_of(chosen, SIZES.experts, 8)).run() == latency
    with pytest.raises(ProgramError, match="what it chooses must be given"):
        network(program, None).run()


@in_both
def test_programs_pass_the_checks() -> None:
    """Those that have no Seq, for any selectors."""
    rng = np.random.default_rng(2)
    programs = MoePrograms(SIZES, SMALL)
    assert list(check(programs.static())) == []
    assert list(check(programs.router())) == []
    for _ in range(cases(20, 2)):
        assert list(check(programs.patched(parts_of(drawn(rng, SIZES), SIZES.experts, 8)))) == []


def test_selectors_that_do_not_fit() -> None:
    layer = ExpertLayer(SIZES, machine=SMALL, rows=10)
    fine = [[0, 1], [2, 3], [4, 0], [1, 2]] * 5
    assert sum(layer.time(fine).rows.values()) == 40
    for expert in (5, -1):
        with pytest.raises(TensorError, match=rf"token 1 selects expert {expert} \(its selector 0\)"):
            layer.time([[0, 1], [expert, 3], *fine[2:]])
    with pytest.raises(TensorError, match="20 rows select expert 0; the program is for at most 10"):
        layer.time([[0, 1]] * 20)
    with pytest.raises(TensorError, match="selectors are 20 rows of 2 experts"):
        layer.time(fine[1:])
    with pytest.raises(TensorError, match="has sizes and no weights"):
        layer.run(np.zeros((20, 40), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 4000, "each": 1}, "pairs of token and expert; instructions of moe count 65535"),
        ({"width": 70000}, "columns of a row"),
        ({"activation": "tanh"}, "activation tanh; Post has gelu_tanh"),
        ({"width": 16000, "inner": 16000, "experts": 30}, "needs .* bytes of weights; overlay moe has"),
    ],
)
def test_sizes_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        MoePrograms(replace(SIZES, **change), SMALL)


def test_a_template_that_is_wrong_ends_in_a_report() -> None:
    """Without the line that gathers rows, X waits for rows that Acts never sends."""
    programs = MoePrograms(SIZES, SMALL)
    program = programs.sequenced()
    packets = []
    for packet in program.packets:
        kept = [m for m in packet.mops if not (isinstance(m, Line) and m.patch == TemplatePatch.GATHER)]
        packets.append(Packet.of(packet.header.opcode, kept) if len(kept) < len(packet.mops) else packet)
    image = encode_image(packets)
    path = SequencedPath(program, decode_image(image, SMALL), [ExpertRows(0, (0, 2))])
    with pytest.raises(DeadlockError, match=r"X .* waits to get Acts->X"):
        ProcessNetwork(SMALL, path).run()


def test_instructions_of_parts() -> None:
    """Weights move by the pitch, rows are named eight at a time, stores come behind the loads of the next part."""
    by_name = SMALL.by_format
    rows = Rows(addr=100, size=4)
    lines = [
        Line.of(by_name["Acts"].opcode, rows.replace(port=0), TemplatePatch.GATHER),
        Line.of(by_name["Acts"].opcode, rows.replace(port=4), TemplatePatch.SCATTER),
    ]
    parts = parts_of([[0, 1], [0, 1]] * 6, 2, 10)
    assert [(p.expert, len(p.pairs)) for p in parts] == [(0, 10), (0, 2), (1, 10), (1, 2)]
    made: list[Any] = [mop for _, mop in issued(lines, parts[:2], 2, SMALL)]
    assert [(m.port, m.count, m.row0) for m in made] == [
        *((0, 8, 0), (0, 2, 8), (0, 2, 10)),
        *((4, 8, 0), (4, 2, 16), (4, 2, 20)),
    ]


def test_the_static_program_does_not_depend_on_data() -> None:
    """It is traced, and its time is the same whatever tokens choose."""
    programs = MoePrograms(SIZES, SMALL)
    machine = Machine(programs.static())
    assert machine.plan.traced
    banks = filled(programs, machine.program)
    assert machine.run(banks).latency_s == machine.run().latency_s


@in_both
def test_any_layer_on_any_machine() -> None:
    """Three ways, on machines with tiles and FIFOs of any size: the results of NumPy, and no deadlock."""
    rng = np.random.default_rng(3)
    for _ in range(cases(60, 4)):
        experts = int(rng.integers(1, 13))
        each = int(rng.integers(1, min(experts, 9) + 1))
        tokens, width, inner = (int(n) for n in rng.integers(1, (40, 50, 50)))
        sizes = MoeSizes("moe", tokens, each, experts, width, inner, "relu", bool(rng.integers(2)))
        machine = moe(rows=int(rng.choice([1, 3, 8, 64])), tile=16, fifo=int(rng.choice([1, 2, 6])))
        router, gate_up, down, x = (
            rng.normal(size=shape).astype(np.float32)
            for shape in ((experts, width), (experts, 2 * inner, width), (experts, width, inner), (tokens, width))
        )
        expected = by_numpy(sizes, router, gate_up, down, x)
        for how in HOWS:
            layer = ExpertLayer(sizes, how=how, machine=machine)
            layer.load(router, gate_up, down)
            assert np.abs(layer.run(x) - expected).max() <= 1e-5 * np.abs(expected).max(), (how, sizes)


def by_numpy(s: MoeSizes, router: Array, gate_up: Array, down: Array, x: Array) -> Any:
    """The layer, token by token, in float64."""
    out = np.zeros(x.shape)
    for row, y in zip(x.astype(np.float64), out, strict=True):
        logits = router @ row
        chosen = np.argsort(-logits)[: s.each]
        share = np.exp(logits - logits.max())
        share /= share[chosen].sum() if s.over_chosen else share.sum()
        for e in chosen:
            gate, up = np.split(gate_up[e] @ row, 2)
            y += share[e] * (down[e] @ (np.maximum(gate, 0) * up))
    return out


def test_weights_that_do_not_fit() -> None:
    layer = ExpertLayer(SIZES, machine=SMALL)
    router, gate_up, down = (np.zeros(n, np.float32) for n in ((5, 40), (5, 48, 40), (5, 40, 24)))
    layer.load(router, gate_up, down)
    with pytest.raises(TensorError, match=r"gate_up is float32 \(5, 40, 24\); the layer takes float32 \(5, 48, 40\)"):
        layer.load(router, down, gate_up)
    with pytest.raises(TensorError, match="router is float64"):
        layer.load(router.astype(np.float64), gate_up, down)
    with pytest.raises(TensorError, match=r"down is float32 \(5, 40, 1\)"):  # it would be repeated
        layer.programs.packed(router, gate_up, down[..., :1])
    with pytest.raises(TensorError):
        layer.run(np.zeros((20, 41), np.float32))
    with pytest.raises(TensorError, match="from sizes, not from a module"):
        layer(np.zeros((20, 40), np.float32))
