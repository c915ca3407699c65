"""Stopping before a uOP: what is seen is what a whole run has at that moment."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rsn.base.durations import duration
from rsn.base.errors import DeadlockError, ProgramError
from rsn.hw.sim import breakpoint as breakpoints
from rsn.hw.sim.breakpoint import Stopped, stop
from rsn.hw.sim.machine import Machine, launch_seconds, one_blas_thread
from rsn.isa.expansion import ExpandedProgram
from rsn.isa.fields import Record
from rsn.isa.overlays.xnn.buffer import SlotData
from rsn.isa.packet import Packet
from rsn.machine.executor import ProcessNetwork

from .examples import Array, example, machine


@dataclasses.dataclass(frozen=True)
class Seen:
    """A unit at the beginning of a uOP, in a run to the end: its attributes, copied, and its clock."""

    state: dict[str, Any]
    clock: float


def copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [copied(item) for item in value]
    return np.array(value) if isinstance(value, (np.ndarray, SlotData)) else value


@cache
def whole_run(name: str) -> tuple[ProcessNetwork, dict[tuple[str, int], Seen]]:
    """With data and clocks, every kernel looked at when it begins."""
    p = example(name).program
    net = ProcessNetwork(
        p.overlay,
        machine(name).path,
        banks=example(name).banks(),
        data=True,
        record=True,
    )
    seen: dict[tuple[str, int], Seen] = {}
    for unit in net.units.values():

        def kernel(uop: Any, unit: Any = unit, inner: Any = unit.kernel) -> Any:
            progress = net.progress[unit.name]
            state = {k: copied(v) for k, v in vars(unit).items() if k not in ("memory", "kernel")}
            seen[unit.name, progress.number] = Seen(state, progress.task.clock)
            return inner(uop)

        unit.kernel = kernel  # type: ignore[method-assign]
    with one_blas_thread():
        net.run()
    return net, seen


def check_state(stopped: Stopped, seen: Seen) -> None:
    """Every array and number that the unit had is shown, and nothing else."""
    arrays: dict[str, Array] = {}
    flags: dict[str, Any] = {}
    for name, value in seen.state.items():
        if name.startswith("_") or name in ("name", "index", "ahead"):
            continue
        for label, item in (
            [(f"{name}[{i}]", x) for i, x in enumerate(value)] if isinstance(value, list) else [(name, value)]
        ):
            if isinstance(item, np.ndarray):
                arrays[label] = item
            elif isinstance(item, Record):
                flags |= {f"{label}.{x.name}": getattr(item, x.name) for x in item.FIELDS}
            elif isinstance(item, (int, float, np.generic)) and not isinstance(item, bool):
                flags[label] = item
    assert stopped.flags == flags
    assert stopped.arrays.keys() == arrays.keys()
    for label, array in arrays.items():
        np.testing.assert_array_equal(stopped.arrays[label], array)


def check_fills(stopped: Stopped, net: ProcessNetwork, launch: float) -> None:
    """Words in each stream of the unit, from the log of the whole run: what had been put less what had been got."""
    log = net.events
    assert log is not None
    clock = stopped.clock - launch
    held = net.progress[stopped.unit].index
    # Steps without duration that what is held would have taken at that very moment, and what follows from them.
    later: set[int] = set()
    for i in range(len(log)):
        own = log.unit[i] == held and log.number[i] >= stopped.number  # its fetch is counted with the uOP before
        if own or log.before[i] in later or log.bound[i] in later:
            later.add(i)
    ends = {s.name: (s.src, s.dst) for s in net.machine.streams}
    expected = {}
    for c in net.channels:
        if stopped.unit not in ends.get(c.name, ()) and c.name != f"uOP FIFO of {stopped.unit}":
            continue
        words = 0
        for i, step in enumerate(log.step):
            if log.end[i] <= clock * (1 + 1e-12) and i not in later:
                s = log.steps[step]
                words += s.words * ((c.number in s.puts) - (c.number in s.gets))
        expected[c.name] = (words, c.capacity)
    assert stopped.fills == expected


def places(name: str) -> list[tuple[str, int]]:
    """Every uOP of a program."""
    runs = ExpandedProgram(example(name).program).sequences
    return [(unit, n) for unit, run in runs.items() for n in range(len(run))]


@pytest.mark.parametrize("name", ["fig6_app2", "fig7_app2", "fig10"])
def test_all_that_is_seen_is_what_a_whole_run_has_then(name: str) -> None:
    rng = random.Random(1)
    everywhere = places(name)
    net, seen = whole_run(name)
    launch = launch_seconds(net.machine)
    for unit, number in rng.sample(everywhere, min(14, len(everywhere))):
        stopped = stop(machine(name), example(name).banks(), unit, number)
        assert (stopped.unit, stopped.number) == (unit, number)
        assert stopped.clock == pytest.approx(seen[unit, number].clock + launch, rel=1e-12)
        check_state(stopped, seen[unit, number])
        check_fills(stopped, net, launch)


@settings(max_examples=12)
@given(st.data())
def test_anywhere_in_an_encoder(data: st.DataObject) -> None:
    """Softmax, norms, masks, and units that exchange tokens with each other."""
    unit, number = data.draw(st.sampled_from(places("encoder")))
    net, seen = whole_run("encoder")
    stopped = stop(machine("encoder"), example("encoder").banks(), unit, number)
    assert stopped.clock == pytest.approx(seen[unit, number].clock + launch_seconds(net.machine), rel=1e-12)
    check_state(stopped, seen[unit, number])
    for held, depth in stopped.fills.values():
        assert 0 <= held <= depth


@settings(max_examples=25)
@given(st.sampled_from(places("encoder")))
def test_without_data_there_is_the_same_moment(place: tuple[str, int]) -> None:
    stopped = stop(machine("encoder"), None, *place)
    _, seen = whole_run("encoder")
    assert stopped.clock == pytest.approx(seen[place].clock + 40e-6, rel=1e-12)
    assert not any(a.size for a in stopped.arrays.values())
    for held, depth in stopped.fills.values():
        assert 0 <= held <= depth


@pytest.mark.parametrize("place", [("FU2", 0), ("FU3", 1), ("FU1", 2)])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_stepping_changes_nothing(
    place: tuple[str, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stop(machine("fig6_app2"), example("fig6_app2").banks(), *place)
    shuffle = random.Random(seed)
    init: Callable[..., None] = ProcessNetwork.__init__

    def shuffled(net: ProcessNetwork, *args: Any, **options: Any) -> None:
        init(net, *args, **options)
        shuffle.shuffle(net._tasks)

    monkeypatch.setattr(ProcessNetwork, "__init__", shuffled)
    got = stop(machine("fig6_app2"), example("fig6_app2").banks(), *place)
    assert str(got) == str(expected)
    assert got.as_json() == expected.as_json()


def test_the_order_of_stepping_changes_nothing_of_an_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    chosen = rng.sample(places("encoder"), 4)
    expected = [stop(machine("encoder"), example("encoder").banks(), *place) for place in chosen]
    init: Callable[..., None] = ProcessNetwork.__init__

    def reversed_(net: ProcessNetwork, *args: Any, **options: Any) -> None:
        init(net, *args, **options)
        net._tasks.reverse()

    monkeypatch.setattr(ProcessNetwork, "__init__", reversed_)
    for place, before in zip(chosen, expected, strict=True):
        got = stop(machine("encoder"), example("encoder").banks(), *place)
        assert got.as_json() == before.as_json()
        for label, array in before.arrays.items():
            np.testing.assert_array_equal(got.arrays[label], array)


# -- where it cannot stop -----------------------------------------------------------------------------------------


def with_adds(packets: Callable[[Packet], list[Packet]]) -> Machine:
    """fig6_app2 with other packets for FU2."""
    p = example("fig6_app2").program
    new = [x for packet in p.packets for x in (packets(packet) if packet.header.opcode == 2 else [packet])]
    return Machine(dataclasses.replace(p, packets=tuple(new), places=()))


def test_a_program_that_stops_later_can_be_looked_at_before() -> None:
    """FU2 adds to 100 elements instead of 200, so FU3's last uOP gets none."""
    whole = with_adds(lambda packet: [packet])
    stuck = with_adds(lambda x: [dataclasses.replace(x, mops=tuple(dataclasses.replace(m, size=100) for m in x.mops))])
    with pytest.raises(DeadlockError):
        stuck.run()
    for number in (0, 1):
        stopped, expected = (stop(m, example("fig6_app2").banks(), "FU3", number) for m in (stuck, whole))
        assert stopped.as_json() == expected.as_json()
    assert stop(stuck, None, "FU3", 2).clock == stop(whole, None, "FU3", 2).clock


def test_a_uop_that_is_never_reached_gives_the_deadlock() -> None:
    """FU2 ends at once: FU1 and FU3 both stand at their first uOP."""
    stuck = with_adds(lambda packet: [packet] if packet.header.last else [])
    with pytest.raises(DeadlockError) as e:
        stuck.run()
    for place in (("FU1", 1), ("FU3", 1), ("FU3", 2)):
        with pytest.raises(DeadlockError) as never:
            stop(stuck, None, *place)
        assert str(never.value) == str(e.value)
    assert stop(stuck, None, "FU3", 0).fills["FU2->FU3"] == (0, 2)


@pytest.mark.parametrize(
    ("unit", "number", "message"),
    [
        ("FU4", 0, "overlay fig6 has no unit 'FU4'; it has FU1, FU2, FU3"),
        ("", 0, "overlay fig6 has no unit ''"),
        ("fu1", 0, "overlay fig6 has no unit 'fu1'"),
        ("decoder FU1", 0, "overlay fig6 has no unit 'decoder FU1'"),
        ("FU1", 1, "FU1 runs 1 uOPs, numbered from 0: there is no uOP 1"),
        ("FU1", -1, "there is no uOP -1"),
        ("FU1", 10**30, "there is no uOP 10"),
    ],
)
def test_what_is_not_there_is_refused(unit: str, number: int, message: str) -> None:
    banks = example("fig6_app1").banks()
    with pytest.raises(ProgramError, match=message):
        stop(machine("fig6_app1"), banks, unit, number)
    np.testing.assert_array_equal(banks["ddr"], example("fig6_app1").banks()["ddr"])


# -- what is shown ------------------------------------------------------------------------------------------------


def stopped_memc() -> Stopped:
    return stop(machine("encoder"), example("encoder").banks(), "MemC0", 3)


def test_the_text_says_where_and_what() -> None:
    stopped = stop(machine("fig6_app2"), example("fig6_app2").banks(), "FU3", 1)
    first, what, *rest = str(stopped).splitlines()
    assert first == f"FU3 stopped before uOP 1 (fig6_app2.rsn:21) at {duration(stopped.clock)}"
    assert what == "  Write addr 420, size 100, from_fu1 1"
    assert [row.split()[0] for row in rest] == ["FU1->FU3", "FU2->FU3", "uOP"]
    text = str(stopped_memc())
    assert "buffers[0]" in text
    assert "256x512, " in text
    assert "registers.softmax_cols" in text


def test_json_has_no_arrays() -> None:
    facts = json.loads(json.dumps(stopped_memc().as_json()))
    assert list(facts) == ["unit", "uop", "what", "where", "clock_s", "flags", "buffers", "fills"]
    assert facts["buffers"] == {"buffers[0]": [256, 512], "buffers[1]": [256, 512], "tables[0]": [256, 512]}
    assert set(facts["fills"]["MME0->MemC0"]) == {"words", "depth"}


def test_a_dump_has_all_of_it(tmp_path: Path) -> None:
    stopped = stopped_memc()
    stopped.save(tmp_path / "d.npz")
    with np.load(tmp_path / "d.npz", allow_pickle=False) as dump:
        known = {**stopped.arrays}
        known |= {f"flag {name}": value for name, value in stopped.flags.items()}
        known |= {f"fill {name}": pair for name, pair in stopped.fills.items()}
        assert set(dump.files) == set(known)
        for name, value in known.items():
            np.testing.assert_array_equal(dump[name], value)
            assert dump[name].dtype == np.asarray(value).dtype
    assert [p.name for p in tmp_path.iterdir()] == ["d.npz"]


def test_a_dump_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.npz").write_bytes(b"old")

    def fail(*args: Any, **arrays: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(breakpoints.np, "savez", fail)
    with pytest.raises(OSError, match="No space left"):
        stopped_memc().save(tmp_path / "d.npz")
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("d.npz", b"old")]


def test_values_that_were_never_received_are_told() -> None:
    first = stop(machine("fig7_app2"), example("fig7_app2").banks(), "LHS1", 0)
    assert "10x10, never written" in str(first)
    later = stop(machine("fig7_app2"), example("fig7_app2").banks(), "LHS1", 1)
    assert "% never written" not in "\n".join(row for row in str(later).splitlines() if "buffers[1]" in row)
    assert first.flags == {"current": 0}
    assert later.flags == {"current": 1}


def test_single_values_of_numpy_are_flags() -> None:
    """Compute1's sum is a float32: after the first tile, that of the last pair of row and column."""
    e = example("fig7_app2")
    stopped = stop(machine("fig7_app2"), e.banks(), "Compute1", 1)
    x, w1 = e.given["x"].reshape(20, 10), e.given["w1"].reshape(10, 10)
    assert stopped.flags["total"] == pytest.approx(float(x[9] @ w1[:, 9]), rel=1e-5)
