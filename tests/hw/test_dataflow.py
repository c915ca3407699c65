"""Data without clocks: what `ProcessNetwork` computes with them, whatever runs; that memories are left alone where
there is nothing to compute; and who is told when something is complete. Random small networks are in
tests/machine/test_burst.py."""

from __future__ import annotations

import dataclasses
import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim import machine as machines
from rsn.hw.sim.dataflow import DataRun, Queue
from rsn.hw.sim.machine import Machine
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.image import decode_image
from rsn.isa.instruction_path import InstructionPath
from rsn.isa.layout import block, unblock
from rsn.isa.overlays import XNN
from rsn.isa.overlays.xnn import formats as f
from rsn.isa.program import Buffer, Role
from rsn.isa.segments import stored_buffers
from rsn.isa.versal.functions import activation
from rsn.machine.executor import ProcessNetwork, Progress, RunningProcess
from rsn.machine.unit import Unit

from .examples import NAMES, Array, Example, built, encoder, example, with_lengths

Order = Callable[[list[Any]], list[Any]]


def clocked(e: Example, words: Any = None, order: Order | None = None) -> dict[str, Array]:
    """The memories after a run with clocks, instruction path and the machine's own stream depths."""
    banks = e.banks()
    p = e.program
    packets = decode_image(p.image if words is None else words, p.overlay)
    path = InstructionPath(p.overlay, packets, p.preloaded)
    ProcessNetwork(p.overlay, path, banks=banks, data=True, order=order).run()
    return banks


def flowed(e: Example, words: Any = None, order: Order | None = None) -> dict[str, Array]:
    banks = e.banks()
    p = e.program
    packets = decode_image(p.image if words is None else words, p.overlay)
    net = DataRun(InstructionPath(p.overlay, packets, p.preloaded), banks=banks, where=p.where)
    if order is not None:
        net._tasks = order(net._tasks)
    net.run()
    for channel in net.channels:
        assert (channel.filled, len(channel.tokens)) == (0, 0)
    return banks


def check_same(one: dict[str, Array], other: dict[str, Array], within: float = 1e-5) -> None:
    """All of the memories, NaN included; `within` relative to the largest value. Products of several tiles at once may
    be summed in another order than one by one (contract section 8)."""
    assert one.keys() == other.keys()
    for bank, values in one.items():
        np.testing.assert_array_equal(np.isnan(values), np.isnan(other[bank]))
        apart = np.nan_to_num(np.abs(values - other[bank]))
        assert apart.max(initial=0) <= within * np.nan_to_num(np.abs(values)).max(initial=0)


@pytest.fixture
def singly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes several steps at once."""
    ready = Queue.ready
    monkeypatch.setattr(Queue, "ready", lambda queue, words: min(1, ready(queue, words)))


@pytest.mark.usefixtures("singly")
@pytest.mark.parametrize("name", NAMES)
def test_step_by_step_programs_are_the_same_to_the_bit(name: str) -> None:
    check_same(clocked(example(name)), flowed(example(name)), within=0)


@pytest.mark.parametrize("name", NAMES)
def test_programs(name: str) -> None:
    exact = name.startswith(("fig6", "fig7"))  # these have no tiles
    check_same(clocked(example(name)), flowed(example(name)), within=0 if exact else 1e-5)


@settings(max_examples=6)
@given(st.data())
def test_small_encoders(data: st.DataObject) -> None:
    """Heads, sequences, masks and lengths of some choice."""
    draw = data.draw
    batch, seq = draw(st.integers(1, 3)), draw(st.sampled_from([5, 64, 100, 129]))
    hidden, heads = draw(st.sampled_from([(64, 1), (128, 2), (128, 4), (192, 3)]))
    masked = draw(st.booleans())
    e = built(encoder(1, batch, seq, hidden, heads, draw(st.sampled_from([64, 300])), masked))
    lengths = {f"len[{i}]": draw(st.integers(1, seq)) for i in range(batch)} if masked else {}
    words = e.program.bind(lengths)
    check_same(clocked(e, words), flowed(e, words))


@pytest.mark.parametrize("name", ["fig6_app2", "fig7_app2", "fig10", "encoder"])
def test_the_order_of_stepping_changes_nothing(name: str) -> None:
    """How many steps are taken at once depends on the order, what they compute does not."""
    shuffle = random.Random(3)
    expected = flowed(example(name))
    for _ in range(2):
        check_same(expected, flowed(example(name), order=lambda tasks: shuffle.sample(tasks, len(tasks))))


@pytest.mark.parametrize("engine", ["clocked", "flowed"])
def test_a_tile_on_its_way_is_not_what_its_sender_makes_of_it_later(engine: str) -> None:
    """MemC0 sends a tile to MME4, which waits for its other operand; then it stores the same tile through a GELU."""
    rng = np.random.default_rng(0)
    x, w, v = rng.standard_normal((3, 128, 128)).astype(np.float32)
    banks = {"ddr": np.concatenate([block(x), np.zeros(32768, np.float32)]), "lpddr": np.r_[block(w), block(v)]}

    def move(peer: str, tile: int, store: bool = False) -> f.Transfer:
        return f.Transfer(tile * 1024, 16384, store, peer)

    load, send = {"load": 1, "dim1": 128, "dim2": 128}, {"send": 1, "acc_a": 1, "acc_b": 1}
    recv, store = f.MemC(recv=1, k_iter=1, recv_a=1, recv_b=1), {"store": 1, "dim1": 128, "dim2": 128}
    issues = {
        "DDR": [move("MemA0", 0), move("MemC0", 1, True), move("MemC4", 2, True)],
        "LPDDR": [move("MemB0", 0), move("MemB0", 1)],
        "MemA0": [f.MemA(**load), f.MemA(**send)],
        "MemB0": [f.MemB(**load), f.MemB(**send, **load), f.MemB(**send)],
        "MeshA": [f.MeshA(size=512, a0_0=1), f.MeshA(size=512, c0_4=1)],
        "MeshB": [f.MeshB(size=512, b0_0=1), f.MeshB(size=512, b0_4=1)],
        "MemC0": [recv, f.MemC(send=1, send_a=1, send_b=1, send_k=1), f.MemC(), f.MemC(**store, gelu=1)],
        "MemC4": [recv, f.MemC(**store)],
    }
    product = f.Mme(a_iter=1, b_iter=1, k_iter=1, acc_a=1, acc_b=1, n128=1, k128=1)
    preloaded: dict[str, Any] = {"MME0": [product], "MME4": [product]}
    if engine == "flowed":
        net: ProcessNetwork = DataRun(InstructionPath(XNN, [], preloaded), banks=banks, where=lambda u, o: "")
        for name, uops in issues.items():
            net.progress[name].task.steps = net.feed(name, uops)
    else:
        net = ProcessNetwork(XNN, {**issues, **preloaded}, banks=banks, data=True)
    net.run()
    np.testing.assert_allclose(unblock(banks["ddr"][16384:32768], 128, 128), activation(x @ w, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(unblock(banks["ddr"][32768:], 128, 128), (x @ w) @ v, rtol=1e-4, atol=1e-3)


# -- Machine.run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_gives_the_same_twice(name: str) -> None:
    """Time once, data as often as asked, from the same state of the memories or from what a run before has left."""
    e = example(name)
    machine = Machine(e.program)
    machine.run()  # for the time
    first, second = e.banks(), e.banks()
    runs = [machine.run(first), machine.run(second), machine.run(first), Machine(e.program).run()]
    assert runs == [runs[0]] * 4 or all(r.__dict__ == runs[0].__dict__ for r in runs)
    for b in e.program.with_role(Role.OUTPUT):
        at = b.offset * e.program.overlay.address_unit
        np.testing.assert_array_equal(*(banks[b.bank][at : at + b.size] for banks in (first, second)))


def test_nothing_is_written_where_the_time_shows_that_it_cannot_end() -> None:
    """FU3 is to store one element more than there are: clocks alone show it, with the memory as it was."""
    e = example("fig6_app1")
    p = e.program
    at = next(i for i, packet in enumerate(p.packets) if packet.header.opcode == 3)
    (store,) = p.packets[at].mops
    longer = dataclasses.replace(p.packets[at], mops=(dataclasses.replace(store, size=store.size + 1),))
    broken = Machine(dataclasses.replace(p, packets=(*p.packets[:at], longer, *p.packets[at + 1 :])))
    banks = e.banks()
    with pytest.raises(DeadlockError, match=r"FU3 .* waits to get FU2->FU3"):
        broken.run(banks)
    np.testing.assert_array_equal(banks["ddr"], e.banks()["ddr"])
    net = DataRun(broken.path, banks=banks, where=p.where)
    with pytest.raises(DeadlockError, match=r"FU3 .* waits to get FU2->FU3"):
        net.run()


def test_a_run_is_freed_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the data of slots, and without a garbage collection."""
    e = example("encoder")
    machine = Machine(e.program)
    machine.run()  # for the time
    made: list[weakref.ref[Unit]] = []

    class Noting(DataRun):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.extend(map(weakref.ref, self.units.values()))

    monkeypatch.setattr(machines, "DataRun", Noting)

    def processes() -> int:
        return sum(isinstance(x, Progress | RunningProcess) for x in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        others = processes()
        machine.run(e.banks())
        assert made
        assert not any(unit() for unit in made)
        assert processes() == others
    finally:
        gc.enable()


def test_each_segment_is_shown_once_when_it_is_complete() -> None:
    """In the order of the layers, before its memory serves another; the last one is what the run leaves."""
    e = example("encoder")
    seen: list[tuple[Buffer, Array]] = []
    banks = e.banks()
    Machine(e.program).run(banks, watch=lambda buffer, flat: seen.append((buffer, flat.copy())))
    names = [f"l{i}.{n}" for i in range(2) for n in "qkvcdhy"]
    assert [b.name for b, _ in seen] == names == [s.name for s in stored_buffers(ExpandedProgram(e.program))]
    last, flat = seen[-1]
    np.testing.assert_array_equal(flat, banks[last.bank][last.offset * 16 : last.offset * 16 + last.size])
    assert len({(b.bank, b.offset) for b, _ in seen}) < len(seen)  # some do share memory
    for buffer, flat in seen:
        assert flat.shape == (buffer.size,)
        assert np.isfinite(flat).all()


def test_progress_goes_from_0_to_1() -> None:
    shares: list[float] = []
    e = built(encoder(1, 2, 384, hidden=256, heads=4))
    Machine(e.program).run(e.banks(), progress=shares.append)
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.2
    assert 0.5 < shares[-1] <= 1


def test_lengths_are_heeded() -> None:
    """A run with shorter sequences differs, and is what the clocked machine computes."""
    e = example("encoder")
    outcomes = []
    for lengths in ((100, 100), (7, 100)):
        machine = with_lengths(e.program, lengths)
        banks = e.banks()
        machine.run(banks)
        check_same(clocked(e, machine.image), banks)
        outcomes.append(banks["ddr"])
    assert not np.array_equal(*outcomes, equal_nan=True)


def test_without_clocks_an_access_beyond_the_memory_is_an_error_too() -> None:
    e = example("fig6_app1")
    with pytest.raises(ProgramError, match=r"FU3 writes 1 elements at 150, beyond its 150"):
        Machine(e.program).run({"ddr": np.zeros(150, np.float32)})
